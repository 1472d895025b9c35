//! The gate of BitNet's feed-forward block: y = relu(gate)² · up.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    msl, params, wgsl,
};

params! { struct Params { tokens: u32, features: u32 } }

pub(super) static RELU2_GATE: Kernel = Kernel::trusted(
    "relu2_gate",
    Params::FIELDS,
    &[read("x", Float("X")), read_write("y", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "bitnet/relu2_gate"]), Source::msl(msl!["shared/prelude", "bitnet/relu2_gate"])],
)
.flat();

/// `x` `[tokens, 2·features]` holds gate, then up, in every row; gives `[tokens, features]`, in `f32` since relu² overflows `f16`.
///
/// # Errors
/// [`Error::Shape`] for an odd number of columns.
pub fn relu2_gate<T: Float>(encoder: &mut Encoder, x: &Tensor<T>) -> Result<Tensor<f32>> {
    let (tokens, columns) = x.shape().as_matrix();
    if !columns.is_multiple_of(2) {
        let expected = "[tokens, 2 · features]".to_owned();
        return Err(Error::Shape { op: "relu2_gate", what: "x", expected, found: x.shape() });
    }
    let features = columns / 2;
    let y = Tensor::uninit(encoder.context(), [tokens, features])?;
    let params = Params { tokens: tokens as u32, features: features as u32 };
    encoder.dispatch(&RELU2_GATE, &params, &[x, &y], [tokens * features, 1, 1])?;
    Ok(y)
}

/// The CPU twin: the same bits, where nothing is subnormal. Rows of `x` hold `features` gates, then as many ups.
///
/// # Errors
/// [`Error::Length`] if `x` is not whole rows.
pub fn relu2_gate_cpu<T: Float>(x: &[T], features: usize) -> Result<Vec<f32>> {
    let columns = features.saturating_mul(2);
    if !x.len().is_multiple_of(columns.max(1)) || (columns == 0 && !x.is_empty()) {
        return Err(Error::Length { shape: [x.len() / columns.max(1), columns].into(), found: x.len() });
    }
    let rows = x.chunks_exact(columns.max(1)).map(|row| row.split_at(features));
    let gated = |(gate, up): (&T, &T)| {
        let gate = (*gate).into().max(0.0);
        gate * gate * (*up).into()
    };
    Ok(rows.flat_map(|(gate, up)| gate.iter().zip(up).map(gated)).collect())
}
