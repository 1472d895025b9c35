//! RMSNorm and `quantize_block_float` in one dispatch.

use super::quantize_block_float::{BlockFloatActivations, BlockFloatKernels, block_float_kernels};
use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{CELLS, EXACT, Part, REDUCE, Source, Work},
    },
    params,
};

params! { struct Params { tokens: u32, features: u32, first: u32, blocks: u32, quads: u32, order: u32, eps: f32 } }

/// A workgroup for a row, with this many bytes of workgroup memory a thread for its blocks.
const fn row(parts: &'static [Part], bytes: u32) -> Source {
    let source =
        Source::wgsl(parts).workgroup_size([256, 1, 1]).tile([1, 1, 1]).constants(&[("HELD", 4)]);
    source.workgroup_bytes(1056 + 256 * bytes).work(Work::new(4, "elements", 48, 28))
}

static RMS_NORM_BLOCK_FLOAT: BlockFloatKernels = block_float_kernels!(
    "rms_norm_block_float", "rms_norm_block_float" in "bitnet/rms_norm_block_float", Params,
    &[read_write("y", U32), read_write("units", F32), read("x", F32), read("gain", F32)],
    row [
        REDUCE, CELLS, EXACT, "shared/row_of_group", "shared/row", "shared/row_any", "shared/row_numbers", "shared/rms", "shared/gain_any", "shared/rms_row"
    ]
);

pub(super) const KERNELS: &[&Kernel] = &[&RMS_NORM_BLOCK_FLOAT[0], &RMS_NORM_BLOCK_FLOAT[1]];

/// Rows `first..` of `x` `[m, k]`, as many as `quantized` has, as
/// [`RmsNorm`](crate::transformer::RmsNorm) makes them, in block floating point.
///
/// # Errors
/// [`Error::Shape`] if `gain` is not `[k]`, or the output has more rows than there are or other
/// columns.
pub(crate) fn rms_norm_block_float_into(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    first: usize,
    gain: &Tensor<f32>,
    eps: f32,
    quantized: &BlockFloatActivations,
) -> Result<()> {
    let op = "rms_norm_block_float";
    let ((m, features), tokens) = (x.shape().as_matrix(), quantized.tokens());
    if gain.shape().dims() != [features] {
        return Err(Error::Shape {
            op,
            what: "gain",
            expected: format!("[{features}]"),
            found: gain.shape(),
        });
    }
    if first > m || tokens > m - first || quantized.features() != features {
        let (expected, found) = (
            format!("[≤ {}, {features}]", m.saturating_sub(first)),
            [tokens, quantized.features()].into(),
        );
        return Err(Error::Shape { op, what: "the output", expected, found });
    }
    let [blocks, quads, order] = quantized.numbers();
    let params = Params {
        tokens: tokens as u32,
        features: features as u32,
        first: first as u32,
        blocks,
        quads,
        order,
        eps,
    };
    encoder.dispatch(
        quantized.kernel(&RMS_NORM_BLOCK_FLOAT),
        &params,
        &[&quantized.values, &quantized.units, x, gain],
        [tokens, 1, 1],
    )
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;
    use crate::ops::{
        bitnet::quantize_block_float::host::quantize_block_float, transformer::rms_norm::reference,
    };

    /// CPU reference of
    /// [`ActivationQuantizer::block_float`](crate::bitnet::ActivationQuantizer::block_float) after
    /// a norm, on whole rows: bit-identical.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not whole rows.
    pub fn rms_norm_block_float(
        x: &[f32],
        gain: &[f32],
        eps: f32,
        group: Option<usize>,
    ) -> Result<Vec<f32>> {
        let mut normed = reference::rms_norm(x, gain, eps)?;
        quantize_block_float(&mut normed, gain.len(), group)?;
        Ok(normed)
    }
}
