//! Linear layers: what enters them is normed, rotated, quantized or rounded, in one dispatch with
//! the product where that is better.

use crate::{
    error::Result,
    formats::{Hadamard, Hybrid, config::ModelConfig, tensors::Stack},
    gpu::{context::Context, encoder::Encoder, out::Out, tensor::Tensor},
    ops::{
        bitnet::{self, BlockFloatActivations, Gate, Norm, QuantizedActivations},
        tensor,
        transformer::RmsNorm,
    },
    weights::ternary::matrix::TernaryMatrix,
};
use std::collections::BTreeMap;

pub(super) type GpuStack = Stack<TernaryMatrix, Tensor<f32>>;

/// How activations are rotated that meet rotated weights; see
/// [`Hadamard`](crate::formats::Hadamard).
#[derive(Clone)]
pub(super) struct Rotation {
    block: usize,
    signs: Option<Tensor<f32>>,
}

impl Rotation {
    /// Records it for rows, where they are.
    pub fn apply(&self, encoder: &mut Encoder, x: &Tensor<f32>) -> Result<()> {
        if let Some(signs) = &self.signs {
            tensor::mul(x, signs).forward_into(encoder, x)?;
        }
        bitnet::hadamard(x, self.block).forward_into(encoder, x)
    }

    /// Records the way back.
    pub fn undo(&self, encoder: &mut Encoder, x: &Tensor<f32>) -> Result<()> {
        bitnet::hadamard(x, self.block).forward_into(encoder, x)?;
        self.signs.as_ref().map_or(Ok(()), |signs| tensor::mul(x, signs).forward_into(encoder, x))
    }
}

/// Where the input of a linear layer is prepared.
pub(super) enum Prepared {
    /// Normed and quantized.
    Quantized(QuantizedActivations),
    /// Of a model that does not quantize its activations: normed, rotated where it is so, and
    /// rounded.
    Floats { rounded: BlockFloatActivations, rotation: Option<Rotation> },
}

impl Prepared {
    pub fn tokens(&self) -> usize {
        match self {
            Self::Quantized(x) => x.tokens(),
            Self::Floats { rounded, .. } => rounded.tokens(),
        }
    }
}

/// How what enters linear layers is rotated, by its width.
pub(super) fn rotations(context: &Context, c: &ModelConfig) -> Result<BTreeMap<usize, Rotation>> {
    let Some(Hadamard { block, signs, .. }) = &c.hadamard else { return Ok(BTreeMap::new()) };
    let rotation = |width: usize| {
        let signs = signs.get(&width).map(|signs| context.upload(signs, [width])).transpose()?;
        Ok((width, Rotation { block: *block, signs }))
    };
    let widths = [c.hidden, c.heads * c.head_dim, c.intermediate];
    let values = c.hybrid.as_ref().map(Hybrid::values);
    widths.into_iter().chain(values).map(rotation).collect()
}

/// Records the products of linear layers of one input, side by side in `y`.
pub(super) fn side_by_side(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    (gain, eps): (Option<&Tensor<f32>>, f32),
    stack: &GpuStack,
    prepared: &Prepared,
    y: Out<'_, f32>,
) -> Result<()> {
    let norm = gain.map(|gain| (gain, eps));
    let parts = match stack {
        Stack::One(w) => return linear(encoder, x, norm, w, prepared, y),
        Stack::Normed(parts) => parts,
    };
    let normed = norm.map(|(gain, eps)| RmsNorm::new(gain, eps).forward(encoder, x)).transpose()?;
    let x = normed.as_ref().unwrap_or(x);
    let mut products = Vec::new();
    for (own, w) in parts {
        let product = Tensor::uninit(encoder.context(), [prepared.tokens(), w.rows()])?;
        linear(encoder, x, Some((own, eps)), w, prepared, Out::set(&product))?;
        products.push(product);
    }
    tensor::concat(&products.iter().collect::<Vec<_>>(), 1).forward_into(encoder, y.tensor())
}

/// Norm, quantizer where the model has them, and product: in one dispatch where that is better,
/// else by way of `prepared`.
pub(super) fn linear(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    norm: Norm<'_, Tensor<f32>>,
    w: &TernaryMatrix,
    prepared: &Prepared,
    y: Out<'_, f32>,
) -> Result<()> {
    let xq = match prepared {
        Prepared::Quantized(xq) => xq,
        Prepared::Floats { rounded, rotation } => {
            return product_of_floats(encoder, x, norm, w, (rounded, rotation.as_ref()), y);
        }
    };
    if bitnet::norm_bitlinear_fuses(encoder.context(), xq.tokens(), w) {
        return bitnet::norm_bitlinear_into(encoder, x, norm, w, y);
    }
    match norm {
        Some((gain, eps)) => bitnet::rms_norm_quantize_into(encoder, x, gain, eps, xq)?,
        None => bitnet::quantize_activations_into(encoder, x, xq)?,
    }
    bitnet::bitlinear_quantized_into(encoder, xq, w, y)
}

/// Records norm, product and gate in one dispatch, where that is faster. Returns whether it did.
pub(super) fn gated(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    norm: Norm<'_, Tensor<f32>>,
    (stack, gate): (&GpuStack, Gate),
    prepared: &Prepared,
    y: &Tensor<f32>,
) -> Result<bool> {
    let (Stack::One(w), context, tokens) = (stack, encoder.context(), prepared.tokens()) else {
        return Ok(false);
    };
    match prepared {
        Prepared::Quantized(_) if bitnet::norm_bitlinear_fuses(context, tokens, w) => {
            bitnet::norm_bitlinear_gated_into(encoder, x, norm, w, gate, y)?;
        }
        Prepared::Floats { rotation: None, .. }
            if bitnet::norm_bitlinear_block_float_fuses(context, tokens, w) =>
        {
            bitnet::norm_bitlinear_block_float_gated_into(encoder, x, norm, w, gate, y)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Norm and product of activations in floats; by way of `rounded`, where its blocks are those of
/// the matrix.
fn product_of_floats(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    norm: Norm<'_, Tensor<f32>>,
    w: &TernaryMatrix,
    (rounded, rotation): (&BlockFloatActivations, Option<&Rotation>),
    y: Out<'_, f32>,
) -> Result<()> {
    if rotation.is_none()
        && bitnet::norm_bitlinear_block_float_fuses(encoder.context(), rounded.tokens(), w)
    {
        return bitnet::norm_bitlinear_block_float_into(encoder, x, norm, w, y);
    }
    let own = (!fits(rounded, w))
        .then(|| {
            BlockFloatActivations::uninit(
                encoder.context(),
                rounded.tokens(),
                w.columns(),
                w.group(),
            )
        })
        .transpose()?;
    let rounded = own.as_ref().unwrap_or(rounded);
    match (norm, rotation) {
        (Some((gain, eps)), None) => {
            bitnet::rms_norm_block_float_into(encoder, x, 0, gain, eps, rounded)?
        }
        (norm, rotation) => {
            let normed =
                norm.map(|(gain, eps)| RmsNorm::new(gain, eps).forward(encoder, x)).transpose()?;
            let x = normed.as_ref().unwrap_or(x);
            // Nobody needs it as it was: it is normed, or attended, or gated, for this product.
            rotation.map_or(Ok(()), |rotation| rotation.apply(encoder, x))?;
            bitnet::quantize_block_float_into(encoder, x, rounded)?;
        }
    }
    bitnet::bitlinear_block_float_into(encoder, rounded, w, y)
}

pub(super) fn fits(rounded: &BlockFloatActivations, w: &TernaryMatrix) -> bool {
    rounded.block() == bitnet::block_columns(w.group())
}
