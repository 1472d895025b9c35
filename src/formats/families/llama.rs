//! Llama, and ternary models with its graph: Falcon3, Falcon-E, TriLM.

use crate::formats::{
    config::Activation,
    family::{Architecture, BASE, DEFAULTS, Defaults, Family, RotaryOrder},
};

pub static FAMILY: Family = Family {
    model_types: &["llama"],
    architectures: &[Architecture::new("llama", Activation::Silu, RotaryOrder::Pairs)],
    defaults: Defaults { quantized_activations: true, ..DEFAULTS },
    activations_unsaid: true,
    ..BASE
};
