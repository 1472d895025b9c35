//! Recurrent layers of language models: gated DeltaNet, and the gated attention beside it.
//!
//! Formulas are those of transformers' `Qwen3_5ForCausalLM`: the gated delta rule (Yang et al. 2024,
//! arXiv 2412.06464) after a short convolution.

mod expect;
pub(crate) mod gated_delta;
pub(crate) mod gated_norm;
pub(crate) mod output_gate;
mod shape;
pub(crate) mod short_conv;

pub use shape::{DeltaRates, DeltaShape};

family!(
    gated_delta,
    gated_norm,
    output_gate,
    short_conv;
    reference:;
    host: gated_delta, gated_norm, output_gate, short_conv
);
