//! The feed-forward gate and `quantize_block_float` in one dispatch.

use super::{
    gate::Gate,
    quantize_block_float::{
        BlockFloatActivations, BlockFloatKernels, Params, block_float_kernels, quads,
    },
};
use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
    },
};

const BINDINGS: &[Binding] = &[read_write("y", U32), read_write("units", F32), read("x", F32)];

static RELU2: BlockFloatKernels = block_float_kernels!(
    "gate_block_float_relu2", "quantize_block_float" in "bitnet/quantize_block_float", Params, BINDINGS,
    quads ["shared/ids", "tensor/relu2", "bitnet/gate", "bitnet/block_float_gated"]
);
static SILU: BlockFloatKernels = block_float_kernels!(
    "gate_block_float_silu", "quantize_block_float" in "bitnet/quantize_block_float", Params, BINDINGS,
    quads ["shared/ids", "shared/exp", "shared/sigmoid", "tensor/silu", "bitnet/gate", "bitnet/block_float_gated"]
);
static GELU: BlockFloatKernels = block_float_kernels!(
    "gate_block_float_gelu_tanh", "quantize_block_float" in "bitnet/quantize_block_float", Params, BINDINGS,
    quads ["shared/ids", "shared/exp", "shared/sigmoid", "tensor/gelu_tanh", "bitnet/gate", "bitnet/block_float_gated"]
);

pub(super) const KERNELS: &[&Kernel] =
    &[&RELU2[0], &RELU2[1], &SILU[0], &SILU[1], &GELU[0], &GELU[1]];

/// act(gate)·up of every row of `x` `[m, 2·k]`, which holds k gates, then as many ups, in block
/// floating point.
///
/// # Errors
/// [`Error::Shape`] if `quantized` is not `[m, k]`.
pub(crate) fn gate_block_float_into(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    gate: Gate,
    quantized: &BlockFloatActivations,
) -> Result<()> {
    let op = "gate_block_float";
    let (tokens, columns) = x.shape().as_matrix();
    if !columns.is_multiple_of(2) {
        return Err(Error::Shape {
            op,
            what: "x",
            expected: "[tokens, 2 · features]".to_owned(),
            found: x.shape(),
        });
    }
    quantized.check(op, tokens, columns / 2)?;
    let kernels = match gate {
        Gate::Relu2 => &RELU2,
        Gate::Silu => &SILU,
        Gate::GeluTanh => &GELU,
    };
    let (params, extent) = quantized.by_quads();
    encoder.dispatch(
        quantized.kernel(kernels),
        &params,
        &[&quantized.values, &quantized.units, x],
        extent,
    )
}
