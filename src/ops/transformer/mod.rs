//! What a transformer needs beside its linear layers: embedding, norm, rotary positions with a key-value cache, attention, the head, and the
//! largest logits.
//!
//! Formulas are those of transformers' `BitNetForCausalLM` and `LlamaForCausalLM`: RMSNorm (Zhang and Sennrich, arXiv 1910.07467), rotary
//! positions (Su et al., 2104.09864) in the halves convention, grouped-query attention (Ainslie et al., 2305.13245).

pub(crate) mod attention;
pub(crate) mod cache;
pub(crate) mod dense_gemv;
pub(crate) mod embed;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod top_k;

pub use attention::{attention, attention_cpu, attention_into, attention_splits};
pub use cache::{AttentionShape, HostKvCache, KvCache, NewTokens};
pub use dense_gemv::{dense_gemv, dense_gemv_cpu, dense_gemv_into};
pub use embed::{embed, embed_cpu, embed_into};
pub use rms_norm::{rms_norm, rms_norm_cpu, rms_norm_into};
pub use rope::{rope, rope_angles, rope_cpu};
pub use top_k::{TopK, top_k, top_k_cpu, top_k_into};

pub(super) static KERNELS: &[&crate::kernel::declaration::Kernel] = &[
    &embed::EMBED_F32,
    &embed::EMBED_F16,
    &embed::EMBED_BF16,
    &embed::EMBED_INT8,
    &rms_norm::RMS_NORM,
    &rope::ROPE,
    &attention::FEW,
    &attention::MANY,
    &attention::COMBINE,
    &dense_gemv::DENSE_GEMV_F32,
    &dense_gemv::DENSE_GEMV_F16,
    &dense_gemv::DENSE_GEMV_BF16,
    &dense_gemv::DENSE_GEMV_INT8,
    &top_k::TOP_K,
    &top_k::TOP_K_MERGE,
];
