//! RMSNorm of every query and key head, before they are rotated: Qwen3.

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

/// Every query and key head v in `qkv` `[m, (heads + 2·kv_heads)·D]` becomes v / sqrt(mean(v²) +
/// eps) · gain, where it is; gains are `[D]`, one for all queries and one for all keys. Values
/// stay.
///
/// # Errors
/// [`Error::Shape`] if `qkv` or a gain does not fit `shape`; [`Error::Invalid`] for a shape that
/// attention does not take.
pub fn rms_norm_heads(
    encoder: &mut Encoder,
    qkv: &Tensor<f32>,
    shape: AttentionShape,
    query_gain: &Tensor<f32>,
    key_gain: &Tensor<f32>,
    eps: f32,
) -> Result<()> {
    let op = "rms_norm_heads";
    shape.check(op)?;
    let (tokens, columns) = qkv.shape().as_matrix();
    if columns != shape.row() {
        return Err(Error::Shape {
            op,
            what: "qkv",
            expected: format!("[m, {}]", shape.row()),
            found: qkv.shape(),
        });
    }
    for (what, gain) in [("the gain of queries", query_gain), ("the gain of keys", key_gain)] {
        if gain.shape().dims() != [shape.head_dim] {
            return Err(Error::Shape {
                op,
                what,
                expected: format!("[{}]", shape.head_dim),
                found: gain.shape(),
            });
        }
    }
    let params = Params {
        tokens: tokens as u32,
        heads: shape.heads as u32,
        kv_heads: shape.kv_heads as u32,
        features: shape.head_dim as u32,
        eps,
    };
    encoder.dispatch(
        &RMS_NORM_HEADS,
        &params,
        &[query_gain, key_gain, qkv],
        [tokens * (shape.heads + shape.kv_heads), 1, 1],
    )
}

/// The CPU twin: the same bits.
///
/// # Errors
/// [`Error::Length`] if `qkv` is not whole rows or a gain has another length; [`Error::Invalid`]
/// for a shape that attention does not take.
pub fn rms_norm_heads_cpu(
    qkv: &mut [f32],
    shape: AttentionShape,
    query_gain: &[f32],
    key_gain: &[f32],
    eps: f32,
) -> Result<()> {
    shape.check("rms_norm_heads")?;
    let (row, dim) = (shape.row(), shape.head_dim);
    if !qkv.len().is_multiple_of(row) {
        return Err(Error::Length { shape: [qkv.len() / row, row].into(), found: qkv.len() });
    }
    if let Some(gain) = [query_gain, key_gain].into_iter().find(|gain| gain.len() != dim) {
        return Err(Error::Length { shape: [dim].into(), found: gain.len() });
    }
    for row in qkv.chunks_exact_mut(row) {
        let (queries, rest) = row.split_at_mut(shape.heads * dim);
        let keys = &mut rest[..shape.kv_heads * dim];
        for (heads, gain) in [(queries, query_gain), (keys, key_gain)] {
            heads
                .chunks_exact_mut(dim)
                .for_each(|head| normalize(head, gain, inverse_rms(head, eps)));
        }
    }
    Ok(())
}
