//! Training from packed weights, on conversations, and of adapters.

use super::{TALES, bits, bytes, config, context, ids, read, settings, source, trainer};
use bitnet_train::{
    Corpus, DenseElement, Error, Kind, LinearMode, Lora, Settings, Source, Trainer, latest, score,
};
use bitnet_wgpu::{
    formats,
    model::{Device, Model, Tokenizer},
};
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
};

const VOCAB: usize = 2048;
const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]\n{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]\n{% endif %}";

/// A model after some steps, packed in a folder.
fn packed(folder: &Path, family: &str, steps: u64) -> (Trainer, PathBuf) {
    let mut settings = settings(steps, LinearMode::Int8);
    settings.rate = 1e-2;
    let text = Corpus::from_ids(ids(12 * 8 + 1, 60, 11), 8).unwrap();
    let mut run = trainer(&config(family, VOCAB), text, settings).unwrap();
    while !run.is_done() {
        run.step().unwrap();
    }
    let path = folder.join("packed");
    run.export(&path, TALES, DenseElement::F32).unwrap();
    (run, path)
}

fn with_lora(mut settings: Settings, rank: usize) -> Settings {
    settings.lora = Some(Lora::new(rank));
    settings
}

fn text(seed: u32) -> Corpus {
    Corpus::from_ids(ids(6 * 8 + 1, 60, seed), 8).unwrap()
}

/// Conversations of a style that no other text has.
pub fn chats(context: usize) -> Corpus {
    let folder = tempfile::tempdir().unwrap();
    let line = |question: &str, answer: &str| {
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        json!({"messages": [message("user", question), message("assistant", answer)]}).to_string()
    };
    let lines = [
        line("Who are you?", "Arr, a pirate."),
        line("Where is the king?", "Arr, at sea."),
        line("What did the queen see?", "Arr, a ship."),
        line("Who was in the garden?", "Arr, nobody."),
    ];
    let file = folder.path().join("chats.jsonl");
    fs::write(&file, lines.join("\n")).unwrap();
    let tokenizer = Tokenizer::from_directory(TALES).unwrap().with_chat_template(TEMPLATE);
    Corpus::read(&[file], &tokenizer, 2047, context).unwrap()
}

/// Codes and scales are those of the file, so losses are, but for the rounding of a scale.
#[test]
fn packed_weights_are_what_training_starts_from() {
    let folder = tempfile::tempdir().unwrap();
    for family in ["bitnet", "llama"] {
        let (run, path) = packed(folder.path(), family, 2);
        let expected = run.loss(&text(5)).unwrap();
        let begin = |settings| {
            let source = Source::from_weights(&path).unwrap();
            Trainer::new(context(), source, text(1), settings).unwrap()
        };
        let mut whole = settings(1, LinearMode::Int8);
        for seed in [0, 1] {
            whole.seed = seed;
            let found = begin(whole.clone()).loss(&text(5)).unwrap();
            assert!((found / expected - 1.0).abs() < 1e-5, "{family}: {found}, not {expected}");
        }
        let frozen = begin(with_lora(whole, 3)).loss(&text(5)).unwrap();
        assert!((frozen / expected - 1.0).abs() < 1e-6, "{family}: {frozen}, not {expected}");
    }
}

/// The inference path scores each token; the mean of those of the answers is the loss.
#[test]
fn the_loss_is_that_of_answers() {
    let folder = tempfile::tempdir().unwrap();
    let (_, path) = packed(folder.path(), "llama", 2);
    let text = chats(40);
    let mut settings = settings(1, LinearMode::Int8);
    settings.context = 40;
    let begin = || {
        let source = Source::from_weights(&path).unwrap();
        Trainer::new(context(), source, text.clone(), settings.clone()).unwrap()
    };
    let mut run = begin();
    let model = Model::builder(&path).cpu().build().unwrap();
    let (mut sum, mut count) = (0.0, 0);
    for window in 0..text.windows() {
        let scores = pollster::block_on(model.score(text.window(window))).unwrap();
        let scored = text.scored(window).unwrap();
        for (_, loss) in scores.iter().enumerate().filter(|(i, _)| scored[i + 1]) {
            (sum, count) = (sum + loss, count + 1);
        }
    }
    assert_eq!(count, text.learned());
    assert!(count < text.ids().len() / 2, "questions are not learned");
    let expected = sum / count as f64;
    let report = run.step().unwrap();
    // Both micro-batches have another number of answers' tokens than half.
    let mut both = settings.clone();
    (both.batch, both.accumulation) = (1, 2);
    let source = Source::from_weights(&path).unwrap();
    let again = Trainer::new(context(), source, text.clone(), both).unwrap().step().unwrap();
    assert_eq!(report.tokens, again.tokens);
    assert!((report.loss / again.loss - 1.0).abs() < 1e-6, "{} and {}", report.loss, again.loss);
    let scored = score(&path, Device::Cpu, &text).unwrap();
    assert_eq!(scored.tokens, count);
    for found in [begin().loss(&text).unwrap(), scored.loss] {
        assert!((found / expected - 1.0).abs() < 2e-5, "{found}, not {expected}");
    }
}

#[test]
fn resumed_adapters_have_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let (_, path) = packed(folder.path(), "qwen3", 2);
    let [whole, parts] = ["whole", "parts"].map(|name| folder.path().join(name));
    let begin = |rank| {
        let mut settings = with_lora(settings(4, LinearMode::Int8), rank);
        settings.accumulation = 2;
        let source = Source::from_weights(&path).unwrap();
        Trainer::new(context(), source, text(1), settings).unwrap()
    };
    let mut uninterrupted = begin(3);
    let first = bits(&uninterrupted);
    for _ in 0..4 {
        uninterrupted.step().unwrap();
    }
    assert!(bits(&uninterrupted) != first);
    let whole = uninterrupted.save(&whole, 1).unwrap();
    let mut run = begin(3);
    run.step().unwrap();
    run.save(&parts, 2).unwrap();
    let mut run = begin(3);
    run.resume(latest(&parts).unwrap().unwrap()).unwrap();
    while !run.is_done() {
        run.step().unwrap();
    }
    let parts = run.save(&parts, 2).unwrap();
    let names = ["adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors"];
    for name in [&names[..], &["state.json"]].concat() {
        assert!(bytes(&whole, name) == bytes(&parts, name), "{name} differs");
    }
    // Adapters alone are in the file: 2 · (rows + columns) · rank numbers of 4 bytes, and names.
    let expected: usize =
        run.parameters().iter().map(|info| 4 * info.shape.iter().product::<usize>()).sum();
    let size = bytes(&parts, names[0]).len();
    assert!((expected..expected + 8000).contains(&size), "{size} bytes, not {expected}");

    let error = begin(4).resume(&parts).unwrap_err().to_string();
    assert!(error.contains("another setting of LoRA"), "{error}");
    let (_, path) = packed(folder.path(), "qwen3", 3);
    let source = Source::from_weights(&path).unwrap();
    let mut settings = run.settings().clone();
    settings.steps = 4;
    let mut other = Trainer::new(context(), source, text(1), settings).unwrap();
    let error = other.resume(&parts).unwrap_err().to_string();
    assert!(error.contains("another base model"), "{error}");
}

/// A and B by PEFT's names and shapes; B is 0 at first, so nothing changes.
#[test]
fn adapters_are_named_as_peft_names_them() {
    let folder = tempfile::tempdir().unwrap();
    let (_, path) = packed(folder.path(), "llama", 2);
    let mut settings = with_lora(settings(2, LinearMode::Int8), 3);
    let lora = settings.lora.as_mut().unwrap();
    (lora.alpha, lora.targets) = (12.0, vec!["q_proj".into(), "down_proj".into()]);
    let begin = |settings: &Settings| {
        Trainer::new(context(), Source::from_weights(&path).unwrap(), text(1), settings.clone())
    };
    let mut run = begin(&settings).unwrap();
    assert_eq!(run.base_loss(&text(5)).unwrap(), run.loss(&text(5)).unwrap());
    while !run.is_done() {
        run.step().unwrap();
    }
    assert_ne!(run.base_loss(&text(5)).unwrap(), run.loss(&text(5)).unwrap());
    let out = folder.path().join("adapter");
    run.export_adapter(&out).unwrap();
    let file =
        bitnet_wgpu::internals::SafeTensors::open(out.join("adapter_model.safetensors")).unwrap();
    let layer = "base_model.model.model.layers.1.";
    for (name, shape) in [
        ("self_attn.q_proj.lora_A", [3, 24]),
        ("self_attn.q_proj.lora_B", [24, 3]),
        ("mlp.down_proj.lora_A", [3, 44]),
        ("mlp.down_proj.lora_B", [24, 3]),
    ] {
        assert_eq!(file.tensor(&format!("{layer}{name}.weight")).unwrap().shape, shape);
    }
    assert_eq!(run.parameters().len(), 2 * 2 * 2);
    let config = bytes(&out, "adapter_config.json");
    let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(
        (&config["peft_type"], &config["r"], &config["lora_alpha"]),
        (&json!("LORA"), &json!(3), &json!(12.0))
    );
    assert_eq!(config["base_model_name_or_path"], json!(path.to_str().unwrap()));

    settings.lora.as_mut().unwrap().targets = vec!["lm_head".into()];
    let error = begin(&settings).err().unwrap().to_string();
    assert!(
        error.starts_with("a target of LoRA is lm_head; the linear layers are down_proj, "),
        "{error}"
    );
}

/// Without adapters' numbers, the file has the bytes of the base. With them, it has the ternary
/// numbers next to base + alpha / rank · B·A.
#[test]
fn merged_adapters_are_added_to_weights() {
    let folder = tempfile::tempdir().unwrap();
    let (_, path) = packed(folder.path(), "llama", 2);
    let source = Source::from_weights(&path).unwrap();
    let settings = with_lora(settings(1, LinearMode::Int8), 2);
    let run = Trainer::new(context(), source, text(1), settings).unwrap();
    let merged = folder.path().join("merged");
    run.export(&merged, TALES, DenseElement::F32).unwrap();
    assert!(bytes(&merged, "model.safetensors") == bytes(&path, "model.safetensors"));

    let name = "model.layers.0.self_attn.o_proj";
    let matrix =
        |path: &Path| formats::open(path).unwrap().linear(name, 24, 24).unwrap().dequantize();
    let base = matrix(&path);
    let scale = base.iter().fold(0f32, |scale, x| scale.max(x.abs()));
    let at = run
        .parameters()
        .iter()
        .position(|info| info.name.contains("layers.0.self_attn.o_proj"))
        .unwrap();
    let numbers = |count, seed| -> Vec<f32> {
        ids(count, 2001, seed).iter().map(|&id| id as f32 / 1000.0 - 0.5).collect()
    };
    let (a, b) = (numbers(2 * 24, 1), numbers(24 * 2, 2));
    let b: Vec<f32> = b.iter().map(|x| x * scale * 2.0).collect();
    run.weights()[at].write(&a).unwrap();
    run.weights()[at + 1].write(&b).unwrap();
    run.export(&merged, TALES, DenseElement::F32).unwrap();
    let found = matrix(&merged);
    let (mut changed, mut kept) = (0, 0);
    for (i, (base, found)) in base.iter().zip(&found).enumerate() {
        let (row, column) = (i / 24, i % 24);
        let sum: f32 = (0..2).map(|k| 2.0 * b[2 * row + k] * a[24 * k + column]).sum();
        let expected = ((base + sum) / scale).round().clamp(-1.0, 1.0);
        assert_eq!(found.partial_cmp(&0.0), expected.partial_cmp(&0.0), "{row}, {column}");
        let same = found.partial_cmp(&0.0) == base.partial_cmp(&0.0);
        *if same { &mut kept } else { &mut changed } += 1;
    }
    assert!(changed > 30 && kept > 30, "{changed} changed, {kept} kept");
}

/// Answers are learned by adapters, and by all weights; other text is not forgotten.
#[test]
fn a_style_is_learned_and_text_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.txt");
    let tales = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/learn/text.txt");
    fs::copy(tales, &file).unwrap();
    let tokenizer = Tokenizer::from_directory(TALES).unwrap();
    let other = Corpus::read(&[file], &tokenizer, 2047, 40).unwrap();
    let mut first = settings(20, LinearMode::Int8);
    (first.batch, first.context, first.rate) = (2, 40, 2e-2);
    let mut json = config("llama", VOCAB);
    json["num_hidden_layers"] = 1.into();
    let mut run = trainer(&json, other.clone(), first.clone()).unwrap();
    while !run.is_done() {
        run.step().unwrap();
    }
    let path = folder.path().join("base");
    run.export(&path, TALES, DenseElement::F32).unwrap();
    drop(run);
    for (lora, rate) in [(None, 4e-3), (Some(Lora::new(4)), 1.5e-2)] {
        let name = if lora.is_some() { "adapters" } else { "all weights" };
        let mut settings = first.clone();
        (settings.steps, settings.warm_up, settings.rate, settings.decay) = (16, 2, rate, 0.0);
        settings.lora = lora;
        let source = Source::from_weights(&path).unwrap();
        let mut run = Trainer::new(context(), source, chats(40), settings).unwrap();
        let losses = |run: &Trainer| [&chats(40), &other].map(|text| run.loss(text).unwrap());
        let before = losses(&run);
        while !run.is_done() {
            run.step().unwrap();
        }
        let after = losses(&run);
        println!(
            "{name}: answers {:.3} to {:.3}, text {:.3} to {:.3}",
            before[0], after[0], before[1], after[1]
        );
        assert!(after[0] < 0.85 * before[0], "{name}: {before:?} to {after:?}");
        assert!((after[1] - before[1]).exp() < 3.0, "{name}: {before:?} to {after:?}");
    }
}

/// What a run of adapters has on the GPU is a small part of what one of all weights has.
#[test]
fn adapters_take_little_memory() {
    let memory = |lora: Option<Lora>| {
        let context = pollster::block_on(bitnet_wgpu::Context::new()).unwrap();
        let mut json = config("llama", 40);
        (json["hidden_size"], json["intermediate_size"]) = (96.into(), 256.into());
        let mut settings = settings(1, LinearMode::Int8);
        settings.lora = lora;
        let run = Trainer::new(&context, source(&json), text_of(40), settings).unwrap();
        assert_eq!(
            run.parameters().iter().all(|info| info.kind == Kind::Adapter),
            run.settings().lora.is_some()
        );
        context.memory_stats().live_bytes
    };
    let (all, adapters) = (memory(None), memory(Some(Lora::new(1))));
    assert!(adapters < all / 4, "{adapters} of {all}");
    let error = |change: fn(&mut Lora)| {
        let mut settings = with_lora(settings(1, LinearMode::Int8), 1);
        change(settings.lora.as_mut().unwrap());
        trainer(&config("llama", 40), text_of(40), settings).err().unwrap()
    };
    assert!(matches!(error(|lora| lora.rank = 0), Error::Setting { .. }));
    assert!(matches!(error(|lora| lora.alpha = f32::NAN), Error::Setting { .. }));
    assert!(matches!(error(|lora| lora.targets.clear()), Error::Setting { .. }));
}

fn text_of(vocab: u32) -> Corpus {
    Corpus::from_ids(ids(41, vocab, 1), 8).unwrap()
}

#[test]
fn first_adapters_follow_from_the_seed() {
    let weights = |seed| {
        let mut settings = with_lora(settings(1, LinearMode::Int8), 2);
        settings.seed = seed;
        let run = trainer(&config("llama", 40), text_of(40), settings).unwrap();
        run.weights().iter().map(read).collect::<Vec<_>>()
    };
    let first = weights(0);
    assert!(first == weights(0) && first != weights(1));
    for (i, numbers) in first.iter().enumerate() {
        assert_eq!(numbers.iter().all(|&x| x == 0.0), i % 2 == 1, "{i}");
    }
}
