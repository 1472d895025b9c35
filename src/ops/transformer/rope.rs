//! Rotary positions, and the way of keys and values into their cache.

use super::cache::{CachePositions, HostKvCache, KvCache};
use crate::{
    error::{Error, Result},
    gpu::{
        context::Context,
        encoder::Encoder,
        tensor::{Bind, Tensor},
    },
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    language::ShaderLanguage,
    msl, params,
    tuning::TuningKey,
    wgsl,
};

params! { struct Params { tokens: u32, run: u32, sequences: u32, heads: u32, kv_heads: u32, head_dim: u32, capacity: u32 } }

const BINDINGS: &[Binding] = &[
    read("runs", U32),
    read("angles", F32),
    read_write("qkv", F32),
    read_write("keys", Float("C")),
    read_write("values", Float("C")),
];

static ROPE: Kernel = Kernel::trusted(
    "rope",
    Params::FIELDS,
    BINDINGS,
    &[
        Source::wgsl(wgsl!["shared/ids", "shared/flat", "transformer/turned", "transformer/rope"]),
        Source::msl(msl!["shared/prelude", "transformer/turned", "transformer/rope"]),
    ],
)
.flat();

/// For heads whose halves are whole quads: two heads of eight tokens a workgroup. H200: "Exact
/// attention and rows of prompts".
static QUADS: Kernel = Kernel::trusted(
    "rope_quads",
    Params::FIELDS,
    BINDINGS,
    &[Source::wgsl(wgsl!["shared/ids", "transformer/turned", "transformer/rope_quads"])
        .workgroup_size([128, 1, 1])
        .tile([8, 2, 1])],
);

pub(super) const KERNELS: &[&Kernel] = &[&ROPE, &QUADS];

/// Returns cos and sin of position · frequency, `[capacity, frequencies, 2]`, computed as in PyTorch,
/// with the angle in `f32`. They are computed on the CPU, since GPUs differ in the sine of large
/// angles.
pub fn rope_angles(frequencies: &[f32], capacity: usize) -> Vec<f32> {
    let angle =
        |position: usize| frequencies.iter().map(move |frequency| position as f32 * frequency);
    (0..capacity).flat_map(angle).flat_map(|angle| [angle.cos(), angle.sin()]).collect()
}

const OP: &str = "rope";

/// Rotary position embedding into a KV cache: what [`rope`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct Rope<'a> {
    qkv: &'a Tensor<f32>,
    positions: CachePositions<'a>,
    angles: &'a Tensor<f32>,
    cache: &'a KvCache,
}

/// Rotates the queries in `qkv` `[m, (heads + 2·kv_heads)·head_dim]` in place, and appends the
/// rotated keys and the values to `cache` (Su et al. 2021, arXiv 2104.09864, in the halves
/// convention). What is beyond the cache's capacity is dropped, so callers check for room. `angles`
/// are [`rope_angles`] for the capacity. [`RotaryEmbedding`](super::RotaryEmbedding) does it without
/// a cache.
pub fn rope<'a>(
    qkv: &'a Tensor<f32>,
    positions: CachePositions<'a>,
    angles: &'a Tensor<f32>,
    cache: &'a KvCache,
) -> Rope<'a> {
    Rope { qkv, positions, angles, cache }
}

impl Rope<'_> {
    /// Records the op.
    ///
    /// # Errors
    /// [`Error::Shape`] if the tensors do not fit the cache; [`Error::Invalid`] if `m` is not the
    /// number of new tokens, or there are more sequences than in the cache.
    pub fn forward(self, encoder: &mut Encoder) -> Result<()> {
        let Self { qkv, positions, angles, cache } = self;
        let (tokens, shape) = (qkv.shape().as_matrix().0, cache.shape);
        cache.check_rows(OP, qkv, positions)?;
        cache.check_angles(OP, angles)?;
        let params = Params {
            tokens: tokens as u32,
            run: positions.tokens as u32,
            sequences: cache.sequences as u32,
            heads: shape.heads as u32,
            kv_heads: shape.kv_heads as u32,
            head_dim: shape.head_dim as u32,
            capacity: cache.capacity as u32,
        };
        let bindings: [&dyn Bind; 5] =
            [positions.sequences, angles, qkv, &cache.keys, &cache.values];
        if by_quads(encoder.context(), tokens, shape.head_dim) {
            let extent = [tokens, shape.heads + 2 * shape.kv_heads, 1];
            return encoder.dispatch(&QUADS, &params, &bindings, extent);
        }
        encoder.dispatch(&ROPE, &params, &bindings, [tokens * shape.row() / 2, 1, 1])
    }
}

/// Whether [`QUADS`] rotates this many tokens, in place of [`ROPE`].
fn by_quads(context: &Context, tokens: usize, head_dim: usize) -> bool {
    head_dim.is_multiple_of(8)
        && tokens >= context.capabilities().tuned(TuningKey::RopeQuadsTokens)
        && context.language() == ShaderLanguage::Wgsl
}

impl KvCache {
    /// Checks that there are angles for all positions.
    pub(super) fn check_angles(&self, op: &'static str, angles: &Tensor<f32>) -> Result<()> {
        if angles.len() == self.capacity * self.shape.head_dim {
            return Ok(());
        }
        let expected = format!("[{}, {}, 2]", self.capacity, self.shape.head_dim / 2);
        Err(Error::Shape { op, what: "angles", expected, found: angles.shape() })
    }

    /// Checks that `qkv` has new tokens of at most as many sequences as the cache.
    pub(super) fn check_rows(
        &self,
        op: &'static str,
        qkv: &Tensor<f32>,
        positions: CachePositions<'_>,
    ) -> Result<()> {
        let tokens = qkv.shape().as_matrix().0;
        if qkv.shape().as_matrix().1 != self.shape.row() {
            return Err(Error::Shape {
                op,
                what: "qkv",
                expected: format!("[m, {}]", self.shape.row()),
                found: qkv.shape(),
            });
        }
        let new = positions.check(op, tokens)?;
        if new > self.sequences {
            let what = format!("tokens of {new} sequences; the cache has {}", self.sequences);
            return Err(Error::Invalid { op, what });
        }
        Ok(())
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`rope`](super::rope()), for one sequence: appends to `cache`.
    ///
    /// # Errors
    /// [`Error::Length`] if `qkv` is not whole rows; [`Error::Invalid`] if `angles` end before the
    /// last position.
    pub fn rope(qkv: &mut [f32], angles: &[f32], cache: &mut HostKvCache) -> Result<()> {
        let (shape, past) = (cache.shape, cache.len());
        let dim = shape.head_dim;
        if !qkv.len().is_multiple_of(shape.row()) {
            return Err(Error::Length {
                shape: [qkv.len() / shape.row(), shape.row()].into(),
                found: qkv.len(),
            });
        }
        let room = angles.len() / dim;
        if past + qkv.len() / shape.row() > room {
            return Err(Error::Invalid { op: OP, what: format!("angles for {room} positions") });
        }
        for (i, row) in qkv.chunks_exact_mut(shape.row()).enumerate() {
            let turns = &angles[(past + i) * dim..][..dim];
            let (rotated, values) = row.split_at_mut((shape.heads + shape.kv_heads) * dim);
            for head in rotated.chunks_exact_mut(dim) {
                let (low, high) = head.split_at_mut(dim / 2);
                for ((a, b), turn) in low.iter_mut().zip(high).zip(turns.chunks_exact(2)) {
                    (*a, *b) = (*a * turn[0] - *b * turn[1], *b * turn[0] + *a * turn[1]);
                }
            }
            cache.keys.extend_from_slice(&rotated[shape.heads * dim..]);
            cache.values.extend_from_slice(values);
        }
        Ok(())
    }
}
