//! The gate of attention's output.

use super::shape::expect_columns;
use crate::{
    error::Result,
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    msl, params, wgsl,
};

params! { struct Params { length: u32, columns: u32, stride: u32 } }

static OUTPUT_GATE: Kernel = Kernel::trusted(
    "output_gate",
    Params::FIELDS,
    &[read("gates", F32), read_write("x", F32)],
    &[
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "shared/exp",
            "shared/sigmoid",
            "recurrent/output_gate"
        ]),
        Source::msl(msl![
            "shared/prelude",
            "shared/exp",
            "shared/sigmoid",
            "recurrent/output_gate"
        ]),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&OUTPUT_GATE];

const OP: &str = "output_gate";

/// Records that `x` `[tokens, columns]` is multiplied by 1 / (1 + e^-gate), in place; the gates are
/// the last columns of `gates` `[tokens, columns or more]`.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) for gates of fewer tokens or columns.
pub fn output_gate(encoder: &mut Encoder, x: &Tensor<f32>, gates: &Tensor<f32>) -> Result<()> {
    let (tokens, columns) = x.shape().as_matrix();
    let stride = expect_columns(OP, "gates", gates, (tokens, columns))?;
    let params =
        Params { length: x.len() as u32, columns: columns.max(1) as u32, stride: stride as u32 };
    encoder.dispatch(&OUTPUT_GATE, &params, &[gates, x], [x.len(), 1, 1])
}

pub(crate) mod host {
    use super::super::expect::expect;
    use crate::{error::Result, ops::exp::exp};

    /// CPU reference of [`output_gate`](fn@crate::recurrent::output_gate): multiplies `x` by 1 / (1 + e^-gate), number by number.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if there are not as many of both.
    pub fn output_gate(x: &mut [f32], gate: &[f32]) -> Result<()> {
        expect("output_gate", "a gate", gate.len(), x.len())?;
        x.iter_mut().zip(gate).for_each(|(x, gate)| *x *= 1.0 / (1.0 + exp(-gate)));
        Ok(())
    }
}
