//! RMSNorm of every query and key head (QK-norm), before they are rotated: Qwen3, Gemma 3.

use super::cache::AttentionShape;
use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{CELLS, EXACT, REDUCE, Source},
    },
    msl,
    ops::rms::{inverse_rms, normalize},
    params, wgsl,
};

params! { struct Params { tokens: u32, heads: u32, kv_heads: u32, features: u32, eps: f32 } }

/// Threads of a head: with a quad each, they hold one of [`AttentionShape::MAX_DIM`].
const THREADS: u32 = AttentionShape::MAX_DIM as u32 / 4;

static RMS_NORM_HEADS: Kernel = Kernel::trusted(
    "rms_norm_heads",
    Params::FIELDS,
    &[read("query_gain", F32), read("key_gain", F32), read_write("qkv", F32)],
    &[
        Source::wgsl(wgsl![
            REDUCE,
            CELLS,
            EXACT,
            "shared/row_of_group",
            "shared/row",
            "shared/row_any",
            "shared/row_numbers",
            "shared/rms",
            "shared/flat",
            "transformer/rms_norm_heads"
        ])
        .workgroup_size([THREADS, 1, 1])
        .tile([1, 1, 1])
        .constants(&[("HELD", 1)])
        .workgroup_bytes(288),
        Source::msl(msl![
            "shared/prelude",
            "shared/exact",
            "shared/reduce",
            "shared/rms",
            "shared/rms_row",
            "transformer/rms_norm_heads"
        ])
        .workgroup_size([THREADS, 1, 1])
        .tile([1, 1, 1])
        .workgroup_bytes(256),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&RMS_NORM_HEADS];

const OP: &str = "rms_norm_heads";

/// RMSNorm of every query and key head (QK-norm), with one weight `[head_dim]` for all queries and
/// one for all keys: a head v becomes v / sqrt(mean(v²) + eps) · weight.
#[derive(Clone, Copy, Debug)]
pub struct RmsNormHeads<'a> {
    shape: AttentionShape,
    weights: [(&'static str, &'a Tensor<f32>); 2],
    eps: f32,
}

impl<'a> RmsNormHeads<'a> {
    /// RMSNorm of heads with these weights; `eps` is added to the mean of squares.
    pub fn new(
        shape: AttentionShape,
        query_weight: &'a Tensor<f32>,
        key_weight: &'a Tensor<f32>,
        eps: f32,
    ) -> Self {
        let weights = [("the weight of queries", query_weight), ("the weight of keys", key_weight)];
        Self { shape, weights, eps }
    }

    /// Records the norm of the queries and keys in `qkv` `[m, (heads + 2·kv_heads)·head_dim]`, in
    /// place; values stay as they are.
    ///
    /// # Errors
    /// [`Error::Shape`] if `qkv` or a weight does not fit the shape; [`Error::Invalid`] for a shape
    /// that attention does not support.
    pub fn forward(self, encoder: &mut Encoder, qkv: &Tensor<f32>) -> Result<()> {
        let Self { shape, weights, eps } = self;
        shape.check(OP)?;
        let (tokens, columns) = qkv.shape().as_matrix();
        let misfit = |what, expected, found| Err(Error::Shape { op: OP, what, expected, found });
        if columns != shape.row() {
            return misfit("qkv", format!("[m, {}]", shape.row()), qkv.shape());
        }
        for (what, weight) in weights {
            if weight.shape().dims() != [shape.head_dim] {
                return misfit(what, format!("[{}]", shape.head_dim), weight.shape());
            }
        }
        let params = Params {
            tokens: tokens as u32,
            heads: shape.heads as u32,
            kv_heads: shape.kv_heads as u32,
            features: shape.head_dim as u32,
            eps,
        };
        let heads = tokens * (shape.heads + shape.kv_heads);
        let [(_, query), (_, key)] = weights;
        encoder.dispatch(&RMS_NORM_HEADS, &params, &[query, key, qkv], [heads, 1, 1])
    }
}

pub(crate) mod host {
    use super::*;

    /// CPU reference of [`RmsNormHeads::forward`]: bit-identical.
    ///
    /// # Errors
    /// [`Error::Length`] if `qkv` is not whole rows or a weight has another length;
    /// [`Error::Invalid`] for a shape that attention does not support.
    pub fn rms_norm_heads(
        qkv: &mut [f32],
        shape: AttentionShape,
        query_weight: &[f32],
        key_weight: &[f32],
        eps: f32,
    ) -> Result<()> {
        shape.check(OP)?;
        let (row, dim) = (shape.row(), shape.head_dim);
        if !qkv.len().is_multiple_of(row) {
            return Err(Error::Length { shape: [qkv.len() / row, row].into(), found: qkv.len() });
        }
        if let Some(weight) = [query_weight, key_weight].into_iter().find(|w| w.len() != dim) {
            return Err(Error::Length { shape: [dim].into(), found: weight.len() });
        }
        for row in qkv.chunks_exact_mut(row) {
            let (queries, rest) = row.split_at_mut(shape.heads * dim);
            let keys = &mut rest[..shape.kv_heads * dim];
            for (heads, weight) in [(queries, query_weight), (keys, key_weight)] {
                heads
                    .chunks_exact_mut(dim)
                    .for_each(|head| normalize(head, weight, inverse_rms(head, eps)));
            }
        }
        Ok(())
    }
}
