//! The gate of BitNet's feed-forward block: y = relu(gate)² · up.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    params, wgsl,
};

params! { struct Params { length: u32, features: u32, add: u32 } }

static RELU2_GATE: Kernel = Kernel::trusted(
    "relu2_gate",
    Params::FIELDS,
    &[read("x", Float("X")), read_write("y", Float("Y"))],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "tensor/relu2", "bitnet/gate", "bitnet/relu2_gate"])],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&RELU2_GATE];

/// `x` `[tokens, 2·features]` holds gate, then up, in every row; gives `[tokens, features]`, in `f32` since relu² overflows `f16`.
///
/// # Errors
/// [`Error::Shape`] for an odd number of columns.
pub fn relu2_gate<T: Float>(encoder: &mut Encoder, x: &Tensor<T>) -> Result<Tensor<f32>> {
    let (tokens, columns) = x.shape().as_matrix();
    let y = Tensor::uninit(encoder.context(), [tokens, columns / 2])?;
    relu2_gate_into(encoder, x, &y)?;
    Ok(y)
}

/// [`relu2_gate`] into a tensor of the caller, `[tokens, features]`.
///
/// # Errors
/// As [`relu2_gate`]; [`Error::Shape`] if the output does not fit.
pub fn relu2_gate_into<'y, X: Float, Y: Float>(encoder: &mut Encoder, x: &Tensor<X>, y: impl Into<Out<'y, Y>>) -> Result<()> {
    let (op, y) = ("relu2_gate", y.into());
    let (tokens, columns) = x.shape().as_matrix();
    if !columns.is_multiple_of(2) {
        return Err(Error::Shape { op, what: "x", expected: "[tokens, 2 · features]".to_owned(), found: x.shape() });
    }
    let features = columns / 2;
    y.check(op, tokens, features)?;
    let params = Params { length: y.tensor().len() as u32, features: features as u32, add: y.adds().into() };
    encoder.dispatch(&RELU2_GATE, &params, &[x, y.tensor()], [y.tensor().len(), 1, 1])
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
