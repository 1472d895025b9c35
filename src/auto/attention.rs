//! Causal attention of a whole sequence.

use super::{
    dispatch::{Auto, Call, Op},
    operand::{Numbers, Operand, View},
};
use crate::{
    cpu,
    element::Element,
    error::{Error, Result},
    gpu::tensor::Tensor,
    ops::transformer::{self, AttentionShape, CachePositions, KvCache},
};

impl Auto {
    /// Returns the causal attention of a sequence, `[tokens, heads · head_dim]`, from its rows of
    /// queries, keys and values, which are rotated first:
    /// [`transformer::attention`] with [`rope`](transformer::Attention::rope) and an empty cache.
    /// `angles` are those of [`rope_angles`](transformer::rope_angles) for as many positions or
    /// more.
    ///
    /// A sequence that goes on keeps a cache on one side: call [`cpu::attention`] or
    /// [`transformer::attention`] with it.
    ///
    /// # Errors
    /// [`Error::Length`] if `qkv` is not whole rows; [`Error::Invalid`] for heads that are not
    /// supported or if `angles` end before the last position; what the device reports.
    pub fn attention<A: Operand + ?Sized>(
        &self,
        qkv: &A,
        angles: &[f32],
        shape: AttentionShape,
    ) -> Result<Numbers<A>> {
        let cache = cpu::KvCache::new(shape, Element::F32)?;
        let (qkv, row) = (qkv.view(), shape.row());
        let tokens = qkv.len() / row;
        if tokens * row != qkv.len() {
            return Err(Error::Length { shape: [tokens, row].into(), found: qkv.len() });
        }
        let room = angles.len() / shape.head_dim;
        let Some(angles) = angles.get(..tokens * shape.head_dim) else {
            let what = format!("angles for {room} positions, of {tokens} tokens");
            return Err(Error::Invalid { op: "attention", what });
        };
        // A token sees half of the others.
        let results = tokens * shape.heads * shape.head_dim;
        let products = results.saturating_mul(tokens);
        A::answer(self.run(
            Call::new(Op::Attention, products, results, (A::READS, &[qkv])),
            || {
                let (mut qkv, mut cache) = (qkv.host()?.into_owned(), cache.clone());
                cpu::rope(&mut qkv, angles, &mut cache)?;
                cpu::attention(&qkv, &cache)
            },
            |e| {
                let context = e.context();
                if tokens == 0 {
                    return Tensor::zeros(context, [0, shape.heads * shape.head_dim]);
                }
                // It is rotated in place.
                let own = match qkv {
                    View::Cpu(_) => qkv.on(context, [tokens, row])?,
                    View::Gpu(tensor) => tensor.reshape([tokens, row])?.duplicate()?,
                };
                let angles = context.upload(angles, [tokens, shape.head_dim / 2, 2])?;
                let sequences = context.upload(&[0u32, 0], [1, 2])?;
                let cache = KvCache::new(context, shape, 1, tokens, Element::F32)?;
                let positions = CachePositions::new(&sequences, tokens);
                transformer::attention(&own, positions, &cache).rope(&angles).forward(e)
            },
        )?)
    }
}
