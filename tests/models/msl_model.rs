//! Whole models with every kernel in Metal, executed on the CPU: a recorded prompt is taken
//! dispatch by dispatch, and its logits are compared with transformers' and with those of the
//! device's WGSL.

use bitnet_wgpu::{
    gpu::Bind,
    internals::{KernelInternals as _, ModelInternals as _},
    model::Model,
};
use msl_host::Order;
use std::path::Path;
use support::{
    Golden, block_on, context, emulated,
    machine::{Memory, Text},
};

/// The last logits of a prompt, by Metal on the CPU and by WGSL on the device.
fn logits(directory: &Path, ids: &[u32]) -> [Vec<f32>; 2] {
    // Kernels for other GPUs and for software adapters have no Metal source, nor has what Metal's
    // barriers do not allow.
    let context =
        context().restricted(|c| (c.software, c.apple, c.device_barriers) = (false, true, false));
    let model = Model::builder(directory).device(&context).build().unwrap();
    let (recording, logits) = model.record_prompt(ids).unwrap();
    // Float activations are rounded by kernels in WGSL alone, but for those of one token.
    let (quantized, mut fused) = (model.config().quantized_activations, 0);
    let mut memory = Memory::new();
    for dispatch in recording.dispatches() {
        let by_hand = dispatch.kernel().source(bitnet_wgpu::kernel::ShaderLanguage::Msl).is_some();
        assert!(by_hand || !quantized, "{} has no Metal text", dispatch.kernel().name);
        fused += usize::from(
            dispatch.kernel().name.starts_with("norm_bitlinear_block_float") && by_hand,
        );
        for (binding, id) in dispatch.buffers().into_iter().enumerate() {
            memory.entry(id).or_insert_with(|| block_on(dispatch.read(binding)).unwrap());
        }
    }
    assert_eq!(
        fused > 0,
        !quantized && ids.len() == 1,
        "{fused} dispatches of a norm, rounding and product"
    );
    for dispatch in recording.dispatches() {
        emulated::run(&dispatch, &mut memory, Text::Metal, Order::Random(1), 65_535).unwrap();
    }
    recording.submit().unwrap().wait().unwrap();
    let by_metal = bytemuck::pod_collect_to_vec(&memory[&logits.bound().id()]);
    [by_metal[..logits.len()].to_vec(), block_on(logits.read()).unwrap()]
}

fn check(directory: &Path, golden: &str, prompt: usize, tolerance: f32) {
    let golden = Golden::open(directory.join(golden));
    let ids = golden.ids(&format!("prompt{prompt}.ids"));
    let expected = golden.floats(&format!("prompt{prompt}.last_logits"));
    for (whose, got) in
        ["Metal on the CPU", "WGSL on the device"].into_iter().zip(logits(directory, &ids))
    {
        let off = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{}, {} tokens: {whose} is {off:.1e} off", directory.display(), ids.len());
        assert!(
            got.len() == expected.len() && off < tolerance,
            "{}: {whose} is {off} off",
            directory.display()
        );
    }
}

/// Prompts of 1 and 7 tokens, by GEMV, and of 40, by GEMM on emulated tensor cores.
#[test]
fn small_models_equal_transformers() {
    for name in ["newer", "llama"] {
        for prompt in 0..3 {
            check(&support::data("models").join(name), "golden.safetensors", prompt, 2e-4);
        }
    }
}

/// Activations in floats, which a token takes through norm, rounding and product in one dispatch.
#[test]
fn a_small_model_with_float_activations_equals_transformers() {
    for prompt in 0..3 {
        check(&support::data("models/qwen3"), "golden.safetensors", prompt, 2e-2);
    }
}

/// A prompt for which two correct implementations were 3e-6 apart, and one with noise in its last
/// bits 0.1.
#[test]
fn a_real_model_equals_transformers() {
    check(&support::repository("assets/tales-22m"), "golden/golden.safetensors", 4, 0.2);
}
