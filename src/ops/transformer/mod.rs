//! What a transformer needs beside its linear layers: embedding, norm, rotary positions with a
//! key-value cache, attention, the LM head, and the choice of a token.
//!
//! Formulas are those of transformers' `BitNetForCausalLM`, `LlamaForCausalLM`, `Qwen3ForCausalLM`
//! and `Gemma3ForCausalLM`, and of a mixture's router `Qwen3MoeForCausalLM`: RMSNorm (Zhang and Sennrich, arXiv 1910.07467), rotary positions (Su et
//! al., 2104.09864) in the halves convention, grouped-query attention (Ainslie et al., 2305.13245).

pub(crate) mod attention;
mod attention_params;
pub(crate) mod attention_tensor_cores;
pub(crate) mod cache;
pub(crate) mod dense_gemv;
pub(crate) mod dense_int8;
pub(crate) mod embed;
pub(crate) mod embed_ternary;
pub(crate) mod flash_attention;
#[cfg(feature = "train")]
pub(crate) mod flash_attention_backward;
pub(crate) mod mask_logits;
pub(crate) mod penalize;
pub(crate) mod rms_norm;
pub(crate) mod rms_norm_heads;
pub(crate) mod rope;
pub(crate) mod rotate;
pub(crate) mod route;
pub(crate) mod sample;
pub(crate) mod top_k;

pub use cache::{AttentionShape, CachePositions, HostKvCache, KvCache};

family!(
    attention,
    attention_tensor_cores,
    dense_gemv,
    dense_int8,
    embed,
    embed_ternary,
    flash_attention,
    #[cfg(feature = "train")]
    flash_attention_backward,
    mask_logits,
    penalize,
    rms_norm,
    rms_norm_heads,
    rope,
    rotate,
    route,
    sample,
    top_k;
    reference: attention, dense_gemv, dense_int8, embed_ternary, flash_attention, rms_norm, rope, rotate,
        #[cfg(feature = "train")] flash_attention_backward;
    host: embed, mask_logits, penalize, rms_norm_heads, route, sample, top_k
);
