//! The gradients of [`flash_attention`](super::flash_attention()): with P = e^(scale·q·kᵀ - lse)
//! and delta = Σ y·dy of a row, dv = Pᵀ·dy, dS = P∘(dy·vᵀ - delta), dq = scale·dS·k, dk =
//! scale·dSᵀ·q. Each output has a workgroup that adds it up, in a fixed order: there are no
//! atomics.

use super::{
    attention::dot,
    flash_attention::{Attended, FlashAttentionOptions, Problem, Qkv, rows_cpu, tiled, tiled_msl},
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

/// The gradients of [`flash_attention`](super::flash_attention()), which gave `attended` with the
/// same options, where `dy` is that of its `y`. Where heads share keys and values, their gradients
/// are added, in the order of the heads. Beside the results it takes 4 bytes a row.
///
/// # Errors
/// As [`flash_attention_backward_into`].
pub fn flash_attention_backward<T: Float>(
    encoder: &mut Encoder,
    qkv: Qkv<&Tensor<T>>,
    attended: &Attended<Tensor<T>, Tensor<f32>>,
    dy: &Tensor<T>,
    options: FlashAttentionOptions,
) -> Result<Qkv<Tensor<T>>> {
    let of = |x: &Tensor<T>| Tensor::uninit(encoder.context(), x.shape());
    let made = Qkv { q: of(qkv.q)?, k: of(qkv.k)?, v: of(qkv.v)? };
    let outs = Qkv { q: Out::set(&made.q), k: Out::set(&made.k), v: Out::set(&made.v) };
    flash_attention_backward_into(encoder, qkv, attended, dy, options, outs)?;
    Ok(made)
}

/// [`flash_attention_backward`] into tensors of the caller.
///
/// # Errors
/// As [`flash_attention_into`](super::flash_attention_into); [`Error::Shape`] if `y`, `lse`, `dy`
/// or a gradient does not fit.
pub fn flash_attention_backward_into<T: Float>(
    encoder: &mut Encoder,
    qkv: Qkv<&Tensor<T>>,
    attended: &Attended<Tensor<T>, Tensor<f32>>,
    dy: &Tensor<T>,
    options: FlashAttentionOptions,
    gradients: Qkv<Out<'_, T>>,
) -> Result<()> {
    let op = "flash_attention_backward";
    let problem = Problem::of(op, qkv)?;
    let (Qkv { q, k, v }, Attended { y, lse }, shape) = (qkv, attended, qkv.q.shape());
    let by_rows = shape.without_last();
    for (what, expected, found) in
        [("y", shape, y.shape()), ("lse", by_rows, lse.shape()), ("dy", shape, dy.shape())]
    {
        if found != expected {
            return Err(Error::Shape { op, what, expected: expected.to_string(), found });
        }
    }
    gradients.q.check_shape(op, shape)?;
    gradients.k.check_shape(op, k.shape())?;
    gradients.v.check_shape(op, k.shape())?;

    encoder.whole(|encoder| {
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
        let (causal, scale, groups) =
            (options.causal.into(), options.scale_for(problem.dim), problem.groups(problem.heads));
        let params = QueryParams {
            groups: groups as u32,
            tokens,
            dim,
            sharing,
            causal,
            add: gradients.q.adds().into(),
            scale,
        };
        encoder.dispatch(
            &DQ,
            &params,
            &[q, k, v, dy, lse, delta, gradients.q.tensor()],
            problem.extent(groups, 3),
        )?;

        let groups = problem.groups(problem.kv_heads);
        let (add_k, add_v) = (gradients.k.adds().into(), gradients.v.adds().into());
        let params =
            KeyParams { groups: groups as u32, tokens, dim, sharing, causal, add_k, add_v, scale };
        let bindings: [&dyn Bind; 8] =
            [q, k, v, dy, lse, delta, gradients.k.tensor(), gradients.v.tensor()];
        encoder.dispatch(&DKDV, &params, &bindings, problem.extent(groups, 4 * problem.sharing()))
    })
}

/// The CPU twin of [`flash_attention_backward`], of one head: `[tokens, dim]` each. Where heads
/// share keys, the gradients for these are to be added.
///
/// # Errors
/// [`Error::Length`] if they are not of one size, or not whole rows.
pub fn flash_attention_backward_cpu(
    qkv: Qkv<&[f32]>,
    attended: &Attended<Vec<f32>, Vec<f32>>,
    dy: &[f32],
    dim: usize,
    options: FlashAttentionOptions,
) -> Result<Qkv<Vec<f32>>> {
    let (Qkv { q, k, v }, Attended { y, lse }) = (qkv, attended);
    let tokens = rows_cpu(dim, &[q, k, v, y, dy])?;
    if lse.len() != tokens {
        return Err(Error::Length { shape: [tokens].into(), found: lse.len() });
    }
    let (scale, mut made) = (options.scale_for(dim), [(); 3].map(|()| vec![0f32; tokens * dim]));
    let [dq, dk, dv] = &mut made;
    let at = |i: usize| i * dim..(i + 1) * dim;
    let add = |to: &mut [f32], factor: f32, from: &[f32]| {
        to.iter_mut().zip(from).for_each(|(to, from)| *to += factor * from)
    };
    for i in 0..tokens {
        let delta = dot(&y[at(i)], &dy[at(i)]);
        for j in 0..if options.causal { i + 1 } else { tokens } {
            let weight = (dot(&q[at(i)], &k[at(j)]) * scale - lse[i]).exp();
            let slope = weight * (dot(&dy[at(i)], &v[at(j)]) - delta) * scale;
            add(&mut dv[at(j)], weight, &dy[at(i)]);
            add(&mut dq[at(i)], slope, &k[at(j)]);
            add(&mut dk[at(j)], slope, &q[at(i)]);
        }
    }
    let [q, k, v] = made;
    Ok(Qkv { q, k, v })
}
