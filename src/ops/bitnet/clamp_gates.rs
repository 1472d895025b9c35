//! Limits of gates and ups before they are multiplied: Maple's, as in gpt-oss.

use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    params, wgsl,
};

params! { struct Params { length: u32, features: u32, limit: f32 } }

static CLAMP_GATES: Kernel = Kernel::trusted(
    "clamp_gates",
    Params::FIELDS,
    &[read_write("x", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "bitnet/clamp_gates"])],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&CLAMP_GATES];

const OP: &str = "clamp_gates";

/// Records clamping of `x` `[tokens, 2·features]`, which holds gates, then as many ups, in place:
/// gates to at most `limit`, ups to at least -`limit` and at most `limit`. [`gate`](super::gate())
/// multiplies them. NaNs stay.
///
/// # Errors
/// [`Error::Shape`] for an odd number of columns; [`Error::Invalid`] for a limit that is not
/// positive.
pub fn clamp_gates(encoder: &mut Encoder, x: &Tensor<f32>, limit: f32) -> Result<()> {
    let (_, columns) = x.shape().as_matrix();
    if !columns.is_multiple_of(2) {
        let (what, expected) = ("x", "[tokens, 2 · features]".to_owned());
        return Err(Error::Shape { op: OP, what, expected, found: x.shape() });
    }
    if limit.is_nan() || limit <= 0.0 {
        let what = format!("a limit of {limit}; a positive number is needed");
        return Err(Error::Invalid { op: OP, what });
    }
    let params = Params { length: x.len() as u32, features: (columns / 2).max(1) as u32, limit };
    encoder.dispatch(&CLAMP_GATES, &params, &[x], [x.len(), 1, 1])
}

pub(crate) mod host {
    /// CPU reference of [`clamp_gates`](fn@crate::bitnet::clamp_gates), in place: bit-identical.
    /// Rows of `x` hold `features` gates, then as many ups.
    pub fn clamp_gates(x: &mut [f32], features: usize, limit: f32) {
        for row in x.chunks_mut((2 * features).max(1)) {
            for (i, v) in row.iter_mut().enumerate() {
                // Not `min` and `max`, which drop NaNs.
                if *v > limit {
                    *v = limit;
                } else if i >= features && *v < -limit {
                    *v = -limit;
                }
            }
        }
    }
}
