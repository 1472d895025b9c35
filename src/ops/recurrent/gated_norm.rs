//! The gated norm of what value heads read.

use super::shape::{DeltaShape, expect_columns, expect_shape};
use crate::{
    error::Result,
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    msl,
    ops::forward::forward,
    params,
    shape::Shape,
    wgsl,
};

params! {
    struct Params {
        groups: u32, heads: u32, key_heads: u32, features: u32, stride: u32, regrouped: u32, eps: f32,
    }
}

/// Threads of a head.
const THREADS: u32 = 64;

const fn by_head(source: Source) -> Source {
    source.workgroup_size([THREADS, 1, 1]).tile([1, 1, 1]).workgroup_bytes(4 * THREADS)
}

static GATED_NORM: Kernel = Kernel::trusted(
    "gated_norm",
    Params::FIELDS,
    &[read("x", F32), read("gain", F32), read("gates", F32), read_write("y", F32)],
    &[
        by_head(Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "shared/exp",
            "shared/sigmoid",
            "tensor/silu",
            "recurrent/gated_norm"
        ])),
        by_head(Source::msl(msl![
            "shared/prelude",
            "shared/exp",
            "shared/sigmoid",
            "tensor/silu",
            "recurrent/gated_norm"
        ])),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&GATED_NORM];

const OP: &str = "gated_norm";

/// A gated norm of value heads: what [`gated_norm`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct GatedNorm<'a> {
    shape: DeltaShape,
    x: &'a Tensor<f32>,
    gain: (&'a Tensor<f32>, f32),
    gates: &'a Tensor<f32>,
}

/// RMSNorm of each value head of `x` `[tokens, values]`, times `gain` `[value_dim]` and silu of the
/// gates, which are the last columns of `gates` `[tokens, values or more]`. `eps` is added to the
/// mean of squares. Heads of the result, `[tokens, values]`, are in the order of the output.
pub fn gated_norm<'a>(
    shape: DeltaShape,
    x: &'a Tensor<f32>,
    (gain, eps): (&'a Tensor<f32>, f32),
    gates: &'a Tensor<f32>,
) -> GatedNorm<'a> {
    GatedNorm { shape, x, gain: (gain, eps), gates }
}

forward!(impl['a] GatedNorm<'a> => overwrite f32);

impl GatedNorm<'_> {
    fn shape(&self) -> Result<Shape> {
        Ok(self.x.shape())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, f32>) -> Result<()> {
        let Self { shape, x, gain: (gain, eps), gates } = self;
        shape.check(OP)?;
        let tokens = x.shape().as_matrix().0;
        expect_shape(OP, "x", x, &[tokens, shape.values()])?;
        expect_shape(OP, "the gains", gain, &[shape.value_dim])?;
        let stride = expect_columns(OP, "gates", gates, (tokens, shape.values()))?;
        y.check(OP, tokens, shape.values())?;
        let groups = tokens * shape.value_heads;
        let params = Params {
            groups: groups as u32,
            heads: shape.value_heads as u32,
            key_heads: shape.key_heads as u32,
            features: shape.value_dim as u32,
            stride: stride as u32,
            regrouped: shape.regrouped.into(),
            eps,
        };
        encoder.dispatch(&GATED_NORM, &params, &[x, gain, gates, y.tensor()], [groups, 1, 1])
    }
}

pub(crate) mod host {
    use super::{super::expect::expect, *};
    use crate::ops::exp::exp;

    /// CPU reference of [`gated_norm`](fn@crate::recurrent::gated_norm): returns RMSNorm of each value head of `x` `[tokens, value_heads, value_dim]`, times `gain`
    /// `[value_dim]` and silu of the last columns of `gates` `[tokens, stride]`, with heads in the
    /// order of the output.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for another number of numbers.
    pub fn gated_norm(
        shape: DeltaShape,
        x: &[f32],
        (gain, eps): (&[f32], f32),
        (gates, stride): (&[f32], usize),
    ) -> Result<Vec<f32>> {
        let (op, values, width) = ("gated_norm", shape.values(), shape.value_dim);
        let tokens = x.len() / values.max(1);
        expect(op, "an input", x.len(), tokens * values)?;
        expect(op, "gains", gain.len(), width)?;
        expect(op, "gates", gates.len(), tokens * stride)?;
        expect(op, "rows of gates", stride.max(values), stride)?;
        let mut y = vec![0f32; x.len()];
        for (n, x) in x.chunks_exact(width).enumerate() {
            let (token, head) = (n / shape.value_heads, n % shape.value_heads);
            let gates = &gates[(token + 1) * stride - values..][head * width..][..width];
            let y = &mut y[token * values + shape.place(head) * width..][..width];
            let squares = x.iter().fold(0f32, |sum, x| sum + x * x);
            let factor = 1.0 / (squares / width as f32 + eps).sqrt();
            for (((y, x), gain), gate) in y.iter_mut().zip(x).zip(gain).zip(gates) {
                *y = x * factor * gain * (gate / (1.0 + exp(-gate)));
            }
        }
        Ok(y)
    }
}
