//! Logits, layers and tokens against transformers.

use super::{TOLERANCE, changed, largest_difference, tolerance};
use bitnet_wgpu::{
    Context, Element, Error,
    internals::ModelInternals as _,
    model::{GenerateOptions, Model},
};
use serde_json::json;
use support::{
    block_on, contexts,
    files::Directory,
    models::{engines, golden, names},
};

#[test]
fn layers_and_logits() {
    for name in &names() {
        let golden = golden(name);
        for (engine, model) in engines(name) {
            let mut input = golden.floats("prompt1.embed.out");
            // Recorded before it is scaled.
            input.iter_mut().for_each(|x| *x *= model.config().embedding_scale);
            for layer in 0..model.config().layers {
                let output = block_on(model.layer_output(layer, &input)).unwrap();
                input = golden.floats(&format!("prompt1.layer{layer}.out"));
                let off = largest_difference(&output, &input);
                assert!(off < tolerance(&model), "{engine}: layer {layer} is {off} off");
            }
            for prompt in 0..3 {
                let logits =
                    block_on(model.logits(&golden.ids(&format!("prompt{prompt}.ids")))).unwrap();
                if prompt == 1 {
                    let off = largest_difference(&logits, &golden.floats("prompt1.logits"));
                    assert!(off < tolerance(&model), "{engine}: logits are {off} off");
                }
                let last = &logits[logits.len() - model.config().vocab..];
                let off = largest_difference(
                    last,
                    &golden.floats(&format!("prompt{prompt}.last_logits")),
                );
                assert!(
                    off < tolerance(&model),
                    "{engine}: the last logits of prompt {prompt} are {off} off"
                );
            }
        }
    }
}

/// Each engine continues one of the prompts, and a third of them score a text:
/// [`layers_and_logits`] compares all.
#[test]
fn greedy_tokens_and_scores() {
    for name in &names() {
        let golden = golden(name);
        for (n, (engine, model)) in engines(name).into_iter().enumerate() {
            let prompt = n % 3;
            let ids = golden.ids(&format!("prompt{prompt}.ids"));
            let expected = golden.ids(&format!("prompt{prompt}.greedy"));
            let safe = golden.ids(&format!("prompt{prompt}.safe_steps"))[0] as usize;
            let options =
                GenerateOptions::default().max_tokens(safe).ignore_eos(true).kv_type(Element::F32);
            let generated = model.generate_ids(&ids, &options).unwrap().into_iter();
            let generated: Vec<_> = generated.map(|token| token.unwrap().id).collect();
            assert_eq!(generated, expected[..safe], "{engine}: prompt {prompt}");
            if prompt > 0 {
                continue;
            }
            let scores = block_on(model.score(&golden.ids("text.ids"))).unwrap();
            let scores: Vec<_> = scores.into_iter().map(|score| score as f32).collect();
            let off = largest_difference(&scores, &golden.floats("text.nll"));
            assert!(off < tolerance(&model), "{engine}: scores are {off} off");
        }
    }
}

/// A file of each architecture, in I2_S, TQ1_0, TQ2_0 and others: the engines agree. (That the
/// weights are those of the file, tests/gguf says.)
#[test]
fn gguf_models_run_alike_on_every_engine() {
    for name in ["bitnet-b1.58", "bitnet-25", "bitnet", "llama"] {
        let path = support::data(format!("gguf/{name}.gguf"));
        let load =
            |context: Option<&Context>| Model::builder(&path).device(context).build().unwrap();
        // Their vocabularies are not meant to be tokenizers: that is an error where text is, and no
        // sooner.
        let text = load(None).generate("text", &GenerateOptions::default()).map(drop);
        assert!(matches!(text, Err(Error::Tokenizer { .. })), "{name}: {text:?}");
        let ids = [1, 2, 3, 5, 7, 4, 6];
        let cpu = block_on(load(None).logits(&ids)).unwrap();
        let largest = cpu.iter().fold(0f32, |max, v| max.max(v.abs()));
        assert!(largest.is_finite() && largest > 0.0, "{name}");
        for context in contexts() {
            let model = load(Some(&context));
            let off = largest_difference(&block_on(model.logits(&ids)).unwrap(), &cpu) / largest;
            println!("{name}: {off:.1e}");
            // A flipped code is a hundredth of a token's activations.
            assert!(off < 0.05, "{name}: {off}");
            let options = GenerateOptions::default().max_tokens(4).ignore_eos(true);
            assert_eq!(
                model
                    .generate_ids(&ids, &options)
                    .unwrap()
                    .into_iter()
                    .filter(|token| token.is_ok())
                    .count(),
                4,
                "{name}"
            );
        }
    }
}

/// Each part of Gemma moves its goldens by more than tests allow for.
#[test]
fn every_part_of_gemma_matters() {
    let (ids, expected) =
        (golden("gemma3").ids("prompt2.ids"), golden("gemma3").floats("prompt2.last_logits"));
    let off = |copy: &Directory| {
        let logits = block_on(Model::builder(&copy.0).cpu().build().unwrap().logits(&ids)).unwrap();
        largest_difference(&logits[logits.len() - expected.len()..], &expected)
    };
    assert!(off(&changed("gemma3", |_| {}, |_, _| None)) < TOLERANCE);
    let (local, global) = ("sliding_attention", "full_attention");
    for (keys, value) in [
        (&["sliding_window"][..], json!(4)),
        (&["sliding_window"], json!(6)),
        (&["layer_types"], json!([local, local])),
        (&["layer_types"], json!([global, global])),
        (&["layer_types"], json!([global, local])),
        (&["query_pre_attn_scalar"], json!(12)),
        (&["hidden_activation"], json!("silu")),
        (&["rope_parameters", local, "rope_theta"], json!(100_000.0)),
        (&["rope_parameters", global, "rope_theta"], json!(500.0)),
        (&["rope_parameters", global, "factor"], json!(1.0)),
    ] {
        let change = |json: &mut serde_json::Value| {
            *keys.iter().fold(json, |json, key| &mut json[*key]) = value.clone()
        };
        let off = off(&changed("gemma3", change, |_, _| None));
        assert!(off > 10.0 * TOLERANCE, "{keys:?} of {value}: {off}");
    }
    let norms = ["input", "post_attention", "pre_feedforward", "post_feedforward"]
        .map(|name| format!("layers.1.{name}_layernorm.weight"));
    let own = [
        "layers.1.self_attn.q_norm.weight",
        "layers.1.self_attn.k_norm.weight",
        "model.norm.weight",
    ]
    .map(str::to_owned);
    for part in norms.into_iter().chain(own) {
        // Gains of one.
        let clear = |name: &str, bytes: &mut Vec<u8>| {
            if name.ends_with(&part) {
                bytes.fill(0);
            }
            None
        };
        let off = off(&changed("gemma3", |_| {}, clear));
        assert!(off > 10.0 * TOLERANCE, "{part}: {off}");
    }
}
