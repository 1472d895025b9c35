//! The feed-forward gate and `round_activations` in one dispatch.

use super::{
    gate_quantize::Gate,
    round_activations::{Params, RoundedActivations, Rounding, quads, rounding},
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

static RELU2: Rounding = rounding!(
    "gate_round_relu2", "round_activations" in "bitnet/round_activations", Params, BINDINGS,
    quads ["shared/ids", "tensor/relu2", "bitnet/gate", "bitnet/round_gated"]
);
static SILU: Rounding = rounding!(
    "gate_round_silu", "round_activations" in "bitnet/round_activations", Params, BINDINGS,
    quads ["shared/ids", "shared/exp", "shared/sigmoid", "tensor/silu", "bitnet/gate", "bitnet/round_gated"]
);
static GELU: Rounding = rounding!(
    "gate_round_gelu_tanh", "round_activations" in "bitnet/round_activations", Params, BINDINGS,
    quads ["shared/ids", "shared/exp", "shared/sigmoid", "tensor/gelu_tanh", "bitnet/gate", "bitnet/round_gated"]
);

pub(super) const KERNELS: &[&Kernel] =
    &[&RELU2[0], &RELU2[1], &SILU[0], &SILU[1], &GELU[0], &GELU[1]];

/// act(gate)·up of every row of `x` `[m, 2·k]`, which holds k gates, then as many ups, rounded.
/// (Its twin is that of the gate, then [`round_activations_cpu`](super::round_activations_cpu).)
///
/// # Errors
/// [`Error::Shape`] if `rounded` is not `[m, k]`.
pub(crate) fn gate_round_into(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    gate: Gate,
    rounded: &RoundedActivations,
) -> Result<()> {
    let op = "gate_round";
    let (tokens, columns) = x.shape().as_matrix();
    if !columns.is_multiple_of(2) {
        return Err(Error::Shape {
            op,
            what: "x",
            expected: "[tokens, 2 · features]".to_owned(),
            found: x.shape(),
        });
    }
    rounded.check(op, tokens, columns / 2)?;
    let rounding = match gate {
        Gate::Relu2 => &RELU2,
        Gate::Silu => &SILU,
        Gate::GeluTanh => &GELU,
    };
    let (params, extent) = rounded.by_quads();
    encoder.dispatch(
        rounded.kernel(rounding),
        &params,
        &[&rounded.values, &rounded.units, x],
        extent,
    )
}
