//! Rotary position embedding without a cache, and its gradient (Su et al. 2021, arXiv 2104.09864).

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

/// Rotary position embedding (RoPE) of heads, in the halves convention: of each pair (a, b) of
/// elements i and i + head_dim/2, (a·cos - b·sin, b·cos + a·sin). [`rope`](super::rope()) does it
/// in place and fills a KV cache.
#[derive(Clone, Copy, Debug)]
pub struct RotaryEmbedding<'a> {
    angles: &'a Tensor<f32>,
    start: usize,
}

impl<'a> RotaryEmbedding<'a> {
    /// RoPE by [`rope_angles`](super::rope_angles), `[positions, head_dim / 2, 2]`.
    pub fn new(angles: &'a Tensor<f32>) -> Self {
        Self { angles, start: 0 }
    }

    /// Sets the position of the first token; it is 0 otherwise.
    #[must_use]
    pub fn start(self, position: usize) -> Self {
        Self { start: position, ..self }
    }

    /// Records the rotation of `x` `[.., tokens, heads, head_dim]` and returns the result.
    ///
    /// # Errors
    /// [`Error::Shape`] for fewer than three dimensions, an odd `head_dim`, or angles that end
    /// before the last position or have another width.
    pub fn forward<T: Float>(self, encoder: &mut Encoder, x: &Tensor<T>) -> Result<Tensor<T>> {
        self.record(encoder, x, 1.0)
    }

    /// Records the gradient: returns that of `x`, where `dy` is that of the output. It is the
    /// rotation back.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    #[cfg(feature = "train")]
    pub fn backward<T: Float>(self, encoder: &mut Encoder, dy: &Tensor<T>) -> Result<Tensor<T>> {
        self.record(encoder, dy, -1.0)
    }

    fn record<T: Float>(
        self,
        encoder: &mut Encoder,
        x: &Tensor<T>,
        direction: f32,
    ) -> Result<Tensor<T>> {
        let Self { angles, start } = self;
        let misfit = |what, expected: String, found| {
            Err(Error::Shape { op: "rotate", what, expected, found })
        };
        let &[.., tokens, heads, dim] = x.shape().dims() else {
            return misfit("x", "[.., tokens, heads, head_dim]".into(), x.shape());
        };
        if !dim.is_multiple_of(2) {
            return misfit("x", "an even head_dim".into(), x.shape());
        }
        let positions = start.saturating_add(tokens);
        match *angles.shape().dims() {
            [room, half, 2] if room >= positions && 2 * half == dim => {}
            _ => {
                let expected = format!("[≥ {positions}, {}, 2]", dim / 2);
                return misfit("angles", expected, angles.shape());
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
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    /// CPU reference of [`RotaryEmbedding`](super::RotaryEmbedding), of one head at a position, in
    /// place. `direction` is 1, or -1 for the gradient.
    pub fn rotate(head: &mut [f32], angles: &[f32], position: usize, direction: f32) {
        let turns = &angles[position * head.len()..][..head.len()];
        let (low, high) = head.split_at_mut(turns.len() / 2);
        for ((a, b), turn) in low.iter_mut().zip(high).zip(turns.chunks_exact(2)) {
            let (cos, sin) = (turn[0], direction * turn[1]);
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}
