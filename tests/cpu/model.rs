//! Whole models on the CPU against transformers: the shipped one, and a small random one of each
//! family.

use bitnet_wgpu::{
    Element,
    model::{GenerateOptions, Model},
};
use support::{Golden, block_on, models, real_model};

/// The tokens that transformers chooses, as far as no other is nearly as likely.
#[track_caller]
fn assert_greedy(model: &Model, golden: &Golden, prompt: usize, safe: usize) {
    let expected = golden.ids(&format!("prompt{prompt}.greedy"));
    let options = GenerateOptions::default()
        .max_tokens(expected.len())
        .ignore_eos(true)
        .kv_type(Element::F32);
    let generation =
        model.generate_ids(&golden.ids(&format!("prompt{prompt}.ids")), &options).unwrap();
    let tokens: Vec<_> = generation.into_iter().map(|token| token.unwrap().id).collect();
    assert_eq!(tokens[..safe], expected[..safe], "prompt {prompt}");
}

#[test]
fn the_shipped_model_writes_what_transformers_does() {
    let folder = real_model().join("golden");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
    let (model, golden) = (
        Model::builder(real_model()).cpu().build().unwrap(),
        Golden::open(folder.join("golden.safetensors")),
    );
    for (prompt, info) in report["prompts"].as_array().unwrap().iter().enumerate() {
        assert_greedy(&model, &golden, prompt, info["safe_steps"].as_u64().unwrap() as usize);
    }
}

#[test]
fn small_models_compute_what_transformers_does() {
    for name in &models::names() {
        let (model, golden) =
            (Model::builder(models::directory(name)).cpu().build().unwrap(), models::golden(name));
        // As in the suite of models on GPUs: activations of 8 bits are exact, others are rounded.
        let tolerance = match model.config().quantized_activations {
            _ if name == "qwen35" => 3e-2,
            true => 2e-4,
            false => 1e-2,
        };
        for prompt in 0..3 {
            let logits =
                block_on(model.logits(&golden.ids(&format!("prompt{prompt}.ids")))).unwrap();
            let last = &logits[logits.len() - model.config().vocab..];
            let expected = golden.floats(&format!("prompt{prompt}.last_logits"));
            approx::assert_abs_diff_eq!(last, &expected[..], epsilon = tolerance);
            assert_greedy(
                &model,
                &golden,
                prompt,
                golden.ids(&format!("prompt{prompt}.safe_steps"))[0] as usize,
            );
        }
    }
}
