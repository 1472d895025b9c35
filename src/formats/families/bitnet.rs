//! BitNet b1.58 2B4T, and 1bitLLM's models.

use crate::formats::{
    config::Activation,
    family::{Architecture, BASE, DEFAULTS, Defaults, Family, RotaryOrder},
};

const fn architecture(name: &'static str, activation: Activation, tied: bool) -> Architecture {
    Architecture { name, activation, sub_norms: true, rotary: RotaryOrder::Halves, tied }
}

pub static FAMILY: Family = Family {
    model_types: &["bitnet"],
    // The last is llama.cpp's, the others are bitnet.cpp's.
    architectures: &[
        architecture("bitnet-b1.58", Activation::Relu2, false),
        architecture("bitnet-25", Activation::Relu2, false),
        architecture("bitnet", Activation::Silu, true),
    ],
    defaults: Defaults {
        activation: "relu2",
        sub_norms: true,
        quantized_activations: true,
        theta: 500_000.0,
        eps: 1e-5,
        bos: Some(128_000),
        eos: Some(128_001),
        ..DEFAULTS
    },
    trained: true,
    ..BASE
};
