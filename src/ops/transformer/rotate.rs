//! rotate: rotary positions alone, without a cache, and the way back.

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
    params, wgsl,
};

params! { struct Params { pairs: u32, tokens: u32, heads: u32, half: u32, start: u32, direction: f32 } }

static ROTATE: Kernel = Kernel::trusted(
    "rotate",
    Params::FIELDS,
    &[read("x", Float("X")), read("angles", F32), read_write("y", Float("X"))],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "transformer/rotate"])],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&ROTATE];

/// Rotates the heads of `x` `[.., tokens, heads, head_dim]`, in halves as [`rope`](super::rope())
/// does; token t of each batch has position `start` + t. `angles` are
/// [`rope_angles`](super::rope_angles), `[positions, head_dim / 2, 2]`.
///
/// # Errors
/// [`Error::Shape`] for fewer than three dimensions, an odd `head_dim`, or angles that end before
/// the last position or have another width.
pub fn rotate<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    angles: &Tensor<f32>,
    start: usize,
) -> Result<Tensor<T>> {
    record(encoder, x, angles, start, 1.0)
}

/// The gradient of [`rotate`], where `dy` is that of its output: the rotation back.
///
/// # Errors
/// As [`rotate`].
pub fn rotate_backward<T: Float>(
    encoder: &mut Encoder,
    dy: &Tensor<T>,
    angles: &Tensor<f32>,
    start: usize,
) -> Result<Tensor<T>> {
    record(encoder, dy, angles, start, -1.0)
}

fn record<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    angles: &Tensor<f32>,
    start: usize,
    direction: f32,
) -> Result<Tensor<T>> {
    let misfit =
        |what, expected: String, found| Error::Shape { op: "rotate", what, expected, found };
    let &[.., tokens, heads, dim] = x.shape().dims() else {
        return Err(misfit("x", "[.., tokens, heads, head_dim]".into(), x.shape()));
    };
    if !dim.is_multiple_of(2) {
        return Err(misfit("x", "an even head_dim".into(), x.shape()));
    }
    let positions = start.saturating_add(tokens);
    match *angles.shape().dims() {
        [room, half, 2] if room >= positions && 2 * half == dim => {}
        _ => {
            return Err(misfit(
                "angles",
                format!("[≥ {positions}, {}, 2]", dim / 2),
                angles.shape(),
            ));
        }
    }
    let (y, pairs) = (Tensor::uninit(encoder.context(), x.shape())?, x.len() / 2);
    let params = Params {
        pairs: pairs as u32,
        tokens: tokens as u32,
        heads: heads as u32,
        half: dim as u32 / 2,
        start: start as u32,
        direction,
    };
    encoder.dispatch(&ROTATE, &params, &[x, angles, &y], [pairs, 1, 1])?;
    Ok(y)
}

/// The CPU twin of [`rotate`], of one head at a position: in place. For the way back, `direction`
/// is -1, else 1.
pub fn rotate_cpu(head: &mut [f32], angles: &[f32], position: usize, direction: f32) {
    let turns = &angles[position * head.len()..][..head.len()];
    let (low, high) = head.split_at_mut(turns.len() / 2);
    for ((a, b), turn) in low.iter_mut().zip(high).zip(turns.chunks_exact(2)) {
        let (cos, sin) = (turn[0], direction * turn[1]);
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}
