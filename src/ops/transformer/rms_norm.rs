//! RMSNorm without a quantiser after it, for what is not quantised: the head's input.

use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{REDUCE, Source},
    },
    msl,
    ops::rms::inverse_rms,
    params, wgsl,
};

params! { struct Params { tokens: u32, features: u32, first: u32, padded: u32, eps: f32 } }

pub(super) static RMS_NORM: Kernel = Kernel::trusted(
    "rms_norm",
    Params::FIELDS,
    &[read("x", F32), read("gain", F32), read_write("y", F32)],
    &[
        Source::wgsl(wgsl![REDUCE, "shared/exact", "shared/rms", "shared/flat", "transformer/rms_norm"])
            .workgroup_size([256, 1, 1])
            .tile([1, 1, 1])
            .workgroup_bytes(1024),
        Source::msl(msl!["shared/prelude", "shared/exact", "shared/reduce", "shared/rms", "transformer/rms_norm"])
            .workgroup_size([256, 1, 1])
            .tile([1, 1, 1])
            .workgroup_bytes(256),
    ],
)
.flat();

/// Rows `first..` of `x` `[m, k]`, as many as `y` `[.., k or more]` has: x / sqrt(mean(x²) + eps) · gain, padded with zeros to the columns of
/// `y`, which is what [`dense_gemv`](super::dense_gemv) wants.
///
/// # Errors
/// [`Error::Shape`] if `gain` is not `[k]`, or `y` has more rows than there are or fewer columns.
pub fn rms_norm(encoder: &mut Encoder, x: &Tensor<f32>, first: usize, gain: &Tensor<f32>, eps: f32, y: &Tensor<f32>) -> Result<()> {
    let op = "rms_norm";
    let ((m, k), (tokens, padded)) = (x.shape().as_matrix(), y.shape().as_matrix());
    if gain.shape().dims() != [k] {
        return Err(Error::Shape { op, what: "gain", expected: format!("[{k}]"), found: gain.shape() });
    }
    if first > m || tokens > m - first || padded < k {
        return Err(Error::Shape { op, what: "y", expected: format!("[≤ {}, ≥ {k}]", m.saturating_sub(first)), found: y.shape() });
    }
    let params = Params { tokens: tokens as u32, features: k as u32, first: first as u32, padded: padded as u32, eps };
    encoder.dispatch(&RMS_NORM, &params, &[x, gain, y], [tokens, 1, 1])
}

/// The CPU twin on whole rows, not padded: the same bits.
///
/// # Errors
/// [`Error::Length`] if `x` is not whole rows.
pub fn rms_norm_cpu(x: &[f32], gain: &[f32], eps: f32) -> Result<Vec<f32>> {
    let k = gain.len().max(1);
    if !x.len().is_multiple_of(k) {
        return Err(Error::Length { shape: [x.len() / k, k].into(), found: x.len() });
    }
    let normal = |row: &[f32]| {
        let inverse = inverse_rms(row.iter().copied(), eps);
        row.iter().zip(gain).map(move |(v, g)| v * inverse * g).collect::<Vec<_>>()
    };
    Ok(x.chunks_exact(k).flat_map(normal).collect())
}
