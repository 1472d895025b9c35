//! The gradients of [`flash_attention`](super::flash_attention()): with P = e^(scale·q·kᵀ - lse)
//! and delta = Σ y·dy of a row, dv = Pᵀ·dy, dS = P∘(dy·vᵀ - delta), dq = scale·dS·k, dk =
//! scale·dSᵀ·q. Each output has a workgroup that adds it up, in a fixed order: there are no
//! atomics.

use super::{
    attention::dot,
    flash_attention::{FlashAttention, Problem, rows_of, tiled, tiled_msl},
};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{
        encoder::Encoder,
        out::Out,
        tensor::{Bind, Tensor},
    },
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    msl,
    ops::reduce::{by_rows, lanes, rows_extent},
    params, wgsl,
};

params! { struct DeltaParams { rows: u32, columns: u32, lanes: u32 } }
params! { struct QueryParams { groups: u32, tokens: u32, dim: u32, sharing: u32, causal: u32, add: u32, scale: f32 } }
params! { struct KeyParams { groups: u32, tokens: u32, dim: u32, sharing: u32, causal: u32, add_k: u32, add_v: u32, scale: f32 } }

static DELTA: Kernel = Kernel::trusted(
    "flash_attention_delta",
    DeltaParams::FIELDS,
    &[read("y", Float("X")), read("dy", Float("X")), read_write("delta", F32)],
    &[
        by_rows(
            Source::wgsl(wgsl![
                "shared/ids",
                "shared/flat",
                "frames/reduce_sum",
                "shared/lanes",
                "transformer/flash_attention_delta"
            ]),
            1,
        ),
        by_rows(
            Source::msl(msl![
                "shared/prelude",
                "frames/reduce_sum",
                "shared/lanes",
                "transformer/flash_attention_delta"
            ]),
            1,
        ),
    ],
)
.flat();

static DQ: Kernel = Kernel::trusted(
    "flash_attention_dq",
    QueryParams::FIELDS,
    &[
        read("q", Float("X")),
        read("k", Float("X")),
        read("v", Float("X")),
        read("dy", Float("X")),
        read("lse", F32),
        read("delta", F32),
        read_write("dq", Float("X")),
    ],
    &[
        tiled(
            Source::wgsl(wgsl![
                "shared/ids",
                "shared/flat",
                "shared/exp",
                "transformer/flash_attention_tiles",
                "transformer/flash_attention_dq"
            ]),
            0,
        ),
        tiled_msl(
            Source::msl(msl![
                "shared/prelude",
                "shared/exp",
                "transformer/flash_attention_tiles",
                "transformer/flash_attention_dq"
            ]),
            0,
        ),
    ],
)
.flat();

static DKDV: Kernel = Kernel::trusted(
    "flash_attention_dkdv",
    KeyParams::FIELDS,
    &[
        read("q", Float("X")),
        read("k", Float("X")),
        read("v", Float("X")),
        read("dy", Float("X")),
        read("lse", F32),
        read("delta", F32),
        read_write("dk", Float("X")),
        read_write("dv", Float("X")),
    ],
    &[
        tiled(
            Source::wgsl(wgsl![
                "shared/ids",
                "shared/flat",
                "shared/exp",
                "transformer/flash_attention_tiles",
                "transformer/flash_attention_dkdv"
            ]),
            0,
        ),
        tiled_msl(
            Source::msl(msl![
                "shared/prelude",
                "shared/exp",
                "transformer/flash_attention_tiles",
                "transformer/flash_attention_dkdv"
            ]),
            0,
        ),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&DELTA, &DQ, &DKDV];

impl<T: Float> FlashAttention<'_, T> {
    /// Records the gradients: returns those of q, k and v, where `dy` is that of `y`, and `y` and
    /// `lse` are what `forward` gave. Where heads share keys and values, the gradients of these are
    /// added in the order of the heads. Beside the results it takes 4 bytes a row.
    ///
    /// # Errors
    /// As [`backward_into`](Self::backward_into).
    pub fn backward(
        self,
        encoder: &mut Encoder,
        y: &Tensor<T>,
        lse: &Tensor<f32>,
        dy: &Tensor<T>,
    ) -> Result<(Tensor<T>, Tensor<T>, Tensor<T>)> {
        let like = |x: &Tensor<T>| Tensor::uninit(encoder.context(), x.shape());
        let (dq, dk, dv) = (like(self.q)?, like(self.k)?, like(self.v)?);
        let gradients = (Out::set(&dq), Out::set(&dk), Out::set(&dv));
        self.backward_into(encoder, y, lse, dy, gradients)?;
        Ok((dq, dk, dv))
    }

    /// Like [`backward`](Self::backward), into tensors of the caller.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::Shape`] if `y`, `lse`, `dy` or a gradient does not
    /// fit.
    pub fn backward_into(
        self,
        encoder: &mut Encoder,
        y: &Tensor<T>,
        lse: &Tensor<f32>,
        dy: &Tensor<T>,
        (dq, dk, dv): (Out<'_, T>, Out<'_, T>, Out<'_, T>),
    ) -> Result<()> {
        let op = "flash_attention_backward";
        let problem = Problem::of(op, &self)?;
        let (Self { q, k, v, .. }, shape) = (self, self.q.shape());
        let by_rows = shape.without_last();
        for (what, expected, found) in
            [("y", shape, y.shape()), ("lse", by_rows, lse.shape()), ("dy", shape, dy.shape())]
        {
            if found != expected {
                return Err(Error::Shape { op, what, expected: expected.to_string(), found });
            }
        }
        dq.check_shape(op, shape)?;
        dk.check_shape(op, k.shape())?;
        dv.check_shape(op, k.shape())?;

        encoder.transaction(|encoder| {
            let (rows, columns) = shape.as_matrix();
            let delta = &Tensor::<f32>::uninit(encoder.context(), by_rows)?;
            let params = DeltaParams {
                rows: rows as u32,
                columns: columns as u32,
                lanes: lanes(columns) as u32,
            };
            encoder.dispatch(&DELTA, &params, &[y, dy, delta], rows_extent(rows, columns))?;

            let (tokens, dim, sharing) =
                (problem.tokens as u32, problem.dim as u32, problem.sharing() as u32);
            let (causal, scale, groups) = (
                self.causal.into(),
                self.scale_or_default(problem.dim),
                problem.groups(problem.heads),
            );
            let params = QueryParams {
                groups: groups as u32,
                tokens,
                dim,
                sharing,
                causal,
                add: dq.adds().into(),
                scale,
            };
            encoder.dispatch(
                &DQ,
                &params,
                &[q, k, v, dy, lse, delta, dq.tensor()],
                problem.extent(groups, 3),
            )?;

            let groups = problem.groups(problem.kv_heads);
            let (add_k, add_v) = (dk.adds().into(), dv.adds().into());
            let params = KeyParams {
                groups: groups as u32,
                tokens,
                dim,
                sharing,
                causal,
                add_k,
                add_v,
                scale,
            };
            let bindings: [&dyn Bind; 8] = [q, k, v, dy, lse, delta, dk.tensor(), dv.tensor()];
            encoder.dispatch(
                &DKDV,
                &params,
                &bindings,
                problem.extent(groups, 4 * problem.sharing()),
            )
        })
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`FlashAttention::backward`], of one head: all `[tokens, dim]`, but `lse`
    /// `[tokens]`. Where heads share keys, the gradients for these are to be added.
    ///
    /// # Errors
    /// [`Error::Length`] if they are not of one size, or not whole rows.
    pub fn flash_attention_backward(
        [q, k, v]: [&[f32]; 3],
        (y, lse): (&[f32], &[f32]),
        dy: &[f32],
        dim: usize,
        causal: bool,
        scale: Option<f32>,
    ) -> Result<(Vec<f32>, Vec<f32>, Vec<f32>)> {
        let tokens = rows_of(dim, &[q, k, v, y, dy])?;
        if lse.len() != tokens {
            return Err(Error::Length { shape: [tokens].into(), found: lse.len() });
        }
        let (scale, mut made) = (
            scale.unwrap_or((dim as f32).sqrt().recip()),
            [(); 3].map(|()| vec![0f32; tokens * dim]),
        );
        let [dq, dk, dv] = &mut made;
        let at = |i: usize| i * dim..(i + 1) * dim;
        let add = |to: &mut [f32], factor: f32, from: &[f32]| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += factor * from)
        };
        for i in 0..tokens {
            let delta = dot(&y[at(i)], &dy[at(i)]);
            for j in 0..if causal { i + 1 } else { tokens } {
                let weight = (dot(&q[at(i)], &k[at(j)]) * scale - lse[i]).exp();
                let slope = weight * (dot(&dy[at(i)], &v[at(j)]) - delta) * scale;
                add(&mut dv[at(j)], weight, &dy[at(i)]);
                add(&mut dq[at(i)], slope, &k[at(j)]);
                add(&mut dk[at(j)], slope, &q[at(i)]);
            }
        }
        let [dq, dk, dv] = made;
        Ok((dq, dk, dv))
    }
}
