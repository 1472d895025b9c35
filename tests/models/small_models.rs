//! Small random models of odd shapes (tests/data/models) against transformers, on every engine.
//! Their prompts were chosen so that no activation lies near a code's boundary: there, correct
//! implementations agree to float rounding. And what sessions promise, on the same models.

use bitnet_wgpu::{
    Context, Element, Error,
    formats::{Checkpoint, ModelFile, ReadOptions, write_packed},
    internals::{CheckpointInternals as _, ModelInternals as _},
    model::{Device, GenerateOptions, Model, ModelFiles, Sampling, SessionOptions},
};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::json;
use std::path::PathBuf;
use support::{
    block_on, context, contexts,
    files::Directory,
    models::{Reconfigured, TernaryTables, bits, directory, engines, golden, names, session},
};

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Ten times what transformers, an f64 reference and one in f32 with integer sums are apart; one
/// flipped code would be a hundred times more.
const TOLERANCE: f32 = 2e-4;
/// Where activations are not quantized they are rounded, to 2^-16 of the largest of 128, and of
/// these small models fewer errors cancel out than of others.
const ROUNDED: f32 = 5e-3;

fn tolerance(model: &Model) -> f32 {
    if model.config().quantized_activations { TOLERANCE } else { ROUNDED }
}

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
            let wanted = golden.ids(&format!("prompt{prompt}.greedy"));
            let safe = golden.ids(&format!("prompt{prompt}.safe_steps"))[0] as usize;
            let options =
                GenerateOptions::default().max_tokens(safe).ignore_eos(true).kv_type(Element::F32);
            let generated = model.generate_ids(&ids, &options).unwrap().into_iter();
            let generated: Vec<_> = generated.map(|token| token.unwrap().id).collect();
            assert_eq!(generated, wanted[..safe], "{engine}: prompt {prompt}");
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

/// An embedding and a head that are kept as they are packed: the numbers that they are in floats.
#[test]
fn ternary_tables_are_their_numbers() {
    let ids: Vec<u32> = (0..40).map(|i| i * i * 7 % 300).collect();
    for tied in [true, false] {
        for on in contexts().iter().map(Some).chain([None]) {
            let [packed, floats] = [true, false].map(|packed| {
                // A head that is ternary is not converted.
                let file = TernaryTables::open(tied, packed);
                Model::builder_from(&file, None).device(on).int8_head(packed).build().unwrap()
            });
            let [found, wanted] =
                [&packed, &floats].map(|model| block_on(model.logits(&ids)).unwrap());
            let off = largest_difference(&found, &wanted);
            assert!(off < ROUNDED, "tied: {tied}, {packed:?}: {off} off");
            // 300 rows of 64 columns: a quarter of a byte, or four, for each.
            assert_eq!(floats.weight_bytes() - packed.weight_bytes(), 300 * (256 - 16));
            let texts = [&packed, &floats].map(|model| {
                let options = GenerateOptions::default()
                    .max_tokens(6)
                    .ignore_eos(true)
                    .sampling(Sampling::GREEDY);
                model
                    .generate_ids(&ids, &options)
                    .unwrap()
                    .into_iter()
                    .map(|token| token.unwrap().id)
                    .collect::<Vec<_>>()
            });
            assert_eq!(texts[0], texts[1], "tied: {tied}, {packed:?}");
        }
    }
}

/// Norms in linear layers by both of their names, and tensors without the `model.` that a model of
/// states alone does without.
#[test]
fn names_of_embedding_models_are_known() {
    let checkpoint = Checkpoint::open(directory("normed")).unwrap();
    assert!(checkpoint.config().projection_norms && checkpoint.config().quantized_activations);
    let names = checkpoint.names();
    let tensors: Vec<_> =
        names.iter().map(|name| (name, checkpoint.tensor(name).unwrap())).collect();
    let renamed = |name: &dyn Fn(&str) -> String, json: &dyn Fn(&mut serde_json::Value)| {
        let mut views = Vec::new();
        for (old, stored) in tensors.iter().filter(|(old, _)| !name(old).is_empty()) {
            views.push((
                name(old),
                TensorView::new(stored.dtype, stored.shape.to_vec(), &stored.bytes).unwrap(),
            ));
        }
        let copy = Directory::temporary();
        copy.write("model.safetensors", safetensors::serialize(views, None).unwrap());
        let mut config = checkpoint.config_json().clone();
        json(&mut config);
        copy.write("config.json", config.to_string());
        copy
    };
    let bare =
        |name: &str| name.replace(".rms_norm.", ".norm.").trim_start_matches("model.").to_owned();
    let copy =
        renamed(&bare, &|config| config["quantization_config"]["use_rms_norm"] = false.into());
    let ids = golden("normed").ids("prompt2.ids");
    let logits =
        |path: PathBuf| block_on(Model::builder(path).cpu().build().unwrap().logits(&ids)).unwrap();
    assert_eq!(logits(copy.0.clone()), logits(directory("normed")));
    // Saved without a head, it has the embedding in its place; another model lacks its head.
    let headless =
        |name: &str| if name.starts_with("lm_head") { String::new() } else { name.to_owned() };
    let unmentioned = renamed(&|name| bare(&headless(name)), &|config| {
        config["tie_word_embeddings"] = false.into()
    });
    assert!(Model::builder(&unmentioned.0).cpu().build().unwrap().config().tied_head);
    let lost = renamed(&headless, &|config| config["tie_word_embeddings"] = false.into());
    assert!(
        Model::builder(&lost.0).cpu().build().unwrap_err().to_string().contains("lm_head.weight")
    );
    // Packed anew, it is the same model by the usual names.
    let packed = Directory::temporary();
    write_packed(&Checkpoint::open(&copy.0).unwrap(), packed.0.join("packed"), false, |_| {})
        .unwrap();
    assert_eq!(logits(packed.0.join("packed")), logits(directory("normed")));
    // Without its norms it is another model, and not the same without them.
    let without = renamed(&|name| name.replace(".q_proj.rms_norm.", ".other."), &|_| {});
    assert!(
        Model::builder(&without.0)
            .cpu()
            .build()
            .unwrap_err()
            .to_string()
            .contains("self_attn.q_proj.norm")
    );
}

/// And the same model on any number of them.
#[test]
fn so_many_threads_are_had_or_refused() {
    let ids = golden("odd").ids("prompt0.ids");
    let on =
        |threads: Option<usize>| Model::builder(directory("odd")).cpu().threads(threads).build();
    let computed = |model: &Model| {
        (bits(block_on(model.logits(&ids)).unwrap()), block_on(model.score(&ids)).unwrap())
    };
    let wanted = computed(&on(None).unwrap());
    for threads in [1, 2, 3, 17] {
        let model = on(Some(threads)).unwrap();
        for model in [&model, &model.reload(Device::Cpu).unwrap()] {
            assert!(computed(model) == wanted, "{threads} threads");
        }
    }
    for threads in [0, 1025, usize::MAX] {
        for devices in [None, Some(context())] {
            let refused = Model::builder(directory("odd"))
                .device(devices)
                .threads(threads)
                .build()
                .unwrap_err();
            assert!(
                matches!(refused, Error::Invalid { op: "threads", .. })
                    && refused.to_string().contains(&threads.to_string()),
                "{refused}"
            );
        }
    }
}

#[test]
fn a_head_in_8_bits_is_near() {
    for name in ["newer", "llama"] {
        let golden = golden(name);
        for on_gpu in [true, false] {
            let builder = Model::builder(directory(name)).device(on_gpu.then(context));
            let model = builder.int8_head(true).build().unwrap();
            let logits = block_on(model.logits(&golden.ids("prompt0.ids"))).unwrap();
            let wanted = golden.floats("prompt0.last_logits");
            let largest = wanted.iter().fold(0f32, |max, v| max.max(v.abs()));
            // A tied embedding is quantized too, and the codes after it change: the logits keep
            // their shape, not their digits.
            let off = largest_difference(&logits, &wanted) / largest;
            assert!(
                off > 0.0 && off < if name == "newer" { 0.5 } else { 0.02 },
                "{name}, GPU {on_gpu}: {off}"
            );
        }
    }
}

#[test]
fn prefill_in_one_and_token_by_token_agree() {
    for name in ["newer", "llama"] {
        let ids = golden(name).ids("prompt2.ids");
        for (engine, model) in engines(name) {
            let whole = block_on(session(&model, 1, 64, Element::F32).prefill(0, &ids)).unwrap();
            let mut single = session(&model, 1, 64, Element::F32);
            let mut last = Vec::new();
            for &id in &ids {
                last = block_on(single.decode(&[id])).unwrap();
            }
            assert!(largest_difference(&whole, &last) < TOLERANCE, "{engine}");
            // In pieces, and after a step back.
            let mut pieces = session(&model, 1, 64, Element::F32);
            block_on(pieces.prefill(0, &ids[..13])).unwrap();
            block_on(pieces.prefill(0, &[1, 2, 3])).unwrap();
            pieces.truncate(0, 13).unwrap();
            let last = block_on(pieces.prefill(0, &ids[13..])).unwrap();
            assert!(largest_difference(&whole, &last) < TOLERANCE, "{engine}, in pieces");
            assert_eq!(pieces.len(0), ids.len());
        }
    }
}

/// On a GPU 512 tokens are computed together, and the logits of 64.
#[test]
fn a_long_prompt_equals_its_chunks() {
    let file = Reconfigured::open("newer", |c| c.context = 1024);
    let vocab = file.config().vocab;
    let ids: Vec<u32> = (0..600).map(|i| i * 7 % vocab as u32).collect();
    for context in [Some(context()), None] {
        let model = Model::builder_from(&file, None).device(context).build().unwrap();
        let mut sequence = session(&model, 1, ids.len(), Element::F32);
        let whole = block_on(sequence.prefill(0, &ids)).unwrap();
        assert_eq!((whole.len(), sequence.len(0)), (vocab, ids.len()));
        sequence.truncate(0, 0).unwrap();
        block_on(sequence.prefill(0, &ids[..300])).unwrap();
        let last = block_on(sequence.prefill(0, &ids[300..])).unwrap();
        let largest = whole.iter().fold(0f32, |max, v| max.max(v.abs()));
        let off = largest_difference(&whole, &last) / largest;
        let logits = block_on(model.logits(&ids)).unwrap();
        let all_off = largest_difference(&whole, &logits[logits.len() - vocab..]) / largest;
        println!("{model:?}: {off:.1e}, by rows {all_off:.1e}");
        // A flipped code is a hundredth of a token's activations.
        assert!(
            logits.len() == ids.len() * vocab && off < 0.05 && all_off < 0.05,
            "{model:?}: {off} {all_off}"
        );
    }
}

#[test]
fn keys_and_values_in_16_bits_are_near() {
    let ids = golden("newer").ids("prompt1.ids");
    for (engine, model) in engines("newer") {
        if model.context().is_some_and(|context| !context.capabilities().f16) {
            println!("NOT RUN: the device has no f16");
            continue;
        }
        let wide = block_on(session(&model, 1, 16, Element::F32).prefill(0, &ids)).unwrap();
        let narrow = block_on(session(&model, 1, 16, Element::F16).prefill(0, &ids)).unwrap();
        let largest = wide.iter().fold(0f32, |max, v| max.max(v.abs()));
        let off = largest_difference(&wide, &narrow);
        assert!(off > 0.0 && off < 0.2 * largest, "{engine}: {off} of {largest}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for (engine, model) in engines("odd") {
        let (limit, vocab) = (model.config().context, model.config().vocab as u32);
        let options = GenerateOptions::default();
        let refused = |ids: &[u32]| model.generate_ids(ids, &options).map(drop).unwrap_err();
        assert!(
            matches!(refused(&vec![1; limit + 1]), Error::Context { needed, capacity } if (needed, capacity) == (limit + 1, limit)),
            "{engine}"
        );
        assert!(matches!(refused(&[]), Error::Invalid { .. }), "{engine}");
        assert!(refused(&[1, vocab]).to_string().contains(&format!("token {vocab}")), "{engine}");
        assert!(
            matches!(model.generate("text", &options).map(drop), Err(Error::Tokenizer { .. })),
            "{engine}"
        );
        assert!(matches!(
            model.session(SessionOptions::new(1, limit + 1)),
            Err(Error::Context { .. })
        ));
        assert!(matches!(model.session(SessionOptions::new(0, 1)), Err(Error::Invalid { .. })));
        assert!(matches!(model.session(SessionOptions::new(4097, 1)), Err(Error::Invalid { .. })));
        assert!(matches!(
            model.session(SessionOptions::new(1, 1).kv_type(Element::U32)),
            Err(Error::Invalid { .. })
        ));
        assert!(matches!(block_on(model.logits(&[])), Err(Error::Invalid { .. })));
        let hot = options.clone().sampling(Sampling::GREEDY.temperature(f32::NAN));
        assert!(matches!(model.generate_ids(&[1], &hot).map(drop), Err(Error::Invalid { .. })));

        let mut session = session(&model, 2, 4, Element::F32);
        block_on(session.prefill(1, &[1, 2, 3])).unwrap();
        assert!(
            matches!(
                block_on(session.prefill(1, &[4, 5])),
                Err(Error::Context { needed: 5, capacity: 4 })
            ),
            "{engine}"
        );
        assert_eq!((session.len(0), session.len(1)), (0, 3), "{engine}: nothing is appended");
        assert!(matches!(block_on(session.prefill(2, &[1])), Err(Error::Invalid { .. })));
        assert!(matches!(block_on(session.decode(&[1])), Err(Error::Invalid { .. })));
        assert!(matches!(block_on(session.decode(&[1, vocab])), Err(Error::Invalid { .. })));
        block_on(session.decode(&[1, 4])).unwrap();
        assert!(
            matches!(
                block_on(session.decode(&[1, 4])),
                Err(Error::Context { needed: 5, capacity: 4 })
            ),
            "{engine}"
        );
        assert!(session.truncate(2, 0).is_err());
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

/// The same ternary weights in floats, as some converters write them, and without a word of
/// quantization: the same model, to the bit.
#[test]
fn ternary_weights_in_floats_are_the_same_model() {
    let packed = Checkpoint::open(directory("llama")).unwrap();
    let c = packed.config();
    let rows = |name: &str| match name.rsplit('.').next().unwrap() {
        "q_proj" => c.heads * c.head_dim,
        "k_proj" | "v_proj" => c.kv_heads * c.head_dim,
        "gate_proj" | "up_proj" => c.intermediate,
        _ => c.hidden,
    };
    let linears = packed.linears();
    let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for name in packed.names().iter().filter(|name| !name.ends_with(".weight_scale")) {
        let stored = packed.tensor(name).unwrap();
        match name
            .strip_suffix(".weight")
            .filter(|linear| linears.iter().any(|known| known == linear))
        {
            Some(linear) => {
                let matrix = packed.ternary_with_rows(linear, rows(linear)).unwrap();
                let bytes = matrix.dequantize().into_iter().flat_map(f32::to_le_bytes).collect();
                tensors.push((
                    name.clone(),
                    Dtype::F32,
                    vec![matrix.rows(), matrix.columns()],
                    bytes,
                ));
            }
            None => tensors.push((
                name.clone(),
                stored.dtype,
                stored.shape.to_vec(),
                stored.bytes.to_vec(),
            )),
        }
    }
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    let mut config = packed.config_json().clone();
    config
        .as_object_mut()
        .unwrap()
        .remove("quantization_config")
        .expect("it says that it is quantised");
    let unpacked = Directory::temporary();
    unpacked.write("model.safetensors", safetensors::serialize(views, None).unwrap());
    unpacked.write("config.json", config.to_string());
    // Nothing says any more that activations are to be rounded to 8 bits, so that is said, once for
    // each file that is opened.
    let warnings = support::warnings(|| drop(Model::builder(&unpacked.0).cpu().build().unwrap()));
    assert_eq!(
        warnings.iter().filter(|warning| warning.contains("here in 8 bits")).count(),
        1,
        "{warnings:?}"
    );
    assert!(
        support::warnings(|| drop(Model::builder(directory("llama")).cpu().build().unwrap()))
            .is_empty()
    );
    let (ids, golden) =
        (golden("llama").ids("prompt2.ids"), golden("llama").floats("prompt2.last_logits"));
    for context in [None, Some(context())] {
        let logits = |path: PathBuf| {
            block_on(Model::builder(path).device(context).build().unwrap().logits(&ids)).unwrap()
        };
        let found = logits(unpacked.0.clone());
        assert_eq!(found, logits(directory("llama")));
        assert!(largest_difference(&found[found.len() - golden.len()..], &golden) < TOLERANCE);
    }
    // Nor are they quantized again where the model says that it was trained for ternary weights,
    // except online.
    unpacked.write("config.json", packed.config_json().to_string());
    for context in [None, Some(context())] {
        let logits = |path: PathBuf| {
            block_on(Model::builder(path).device(context).build().unwrap().logits(&ids)).unwrap()
        };
        assert_eq!(logits(unpacked.0.clone()), logits(directory("llama")));
    }
    unpacked.write("config.json", config.to_string());
    // Other weights are refused: it is a Llama that nobody has trained for three values.
    let (damaged, .., bytes) =
        tensors.iter_mut().find(|tensor| tensor.0.ends_with("up_proj.weight")).unwrap();
    bytes[3] ^= 1;
    let damaged = damaged.clone();
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    unpacked.write("model.safetensors", safetensors::serialize(views, None).unwrap());
    match Model::builder(&unpacked.0).cpu().build() {
        Err(error @ Error::Unsupported { .. }) => {
            assert!(error.to_string().contains(&damaged), "{error}")
        }
        other => panic!("{other:?}"),
    }
    assert!(
        ModelFiles::open_with(&unpacked.0, ReadOptions::default().quantize(true))
            .and_then(|files| files.builder().cpu().build())
            .is_ok()
    );
}

/// What a sequence sees through a window is the same however its text was cut, and after it was cut
/// short.
#[test]
fn windows_keep_what_texts_promise() {
    for name in ["gemma3", "gemma3_floats"] {
        let ids = golden(name).ids("text.ids");
        for (engine, model) in engines(name) {
            let whole = block_on(session(&model, 1, 128, Element::F32).prefill(0, &ids)).unwrap();
            let mut pieces = session(&model, 1, 128, Element::F32);
            block_on(pieces.prefill(0, &ids[..90])).unwrap();
            pieces.truncate(0, 50).unwrap();
            block_on(pieces.prefill(0, &ids[50..97])).unwrap();
            let mut forked = pieces.fork().unwrap();
            let last =
                ids[97..].iter().map(|&id| block_on(forked.decode(&[id])).unwrap()).last().unwrap();
            assert_eq!(last, whole, "{engine}");
        }
    }
}

/// A copy of a small model, its config.json and its tensors changed.
fn changed(
    name: &str,
    config: impl Fn(&mut serde_json::Value),
    tensor: impl Fn(&str, &mut Vec<u8>) -> Option<String>,
) -> Directory {
    let checkpoint = Checkpoint::open(directory(name)).unwrap();
    let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for name in checkpoint.names() {
        let stored = checkpoint.tensor(&name).unwrap();
        let mut bytes = stored.bytes.to_vec();
        let copy = tensor(&name, &mut bytes)
            .map(|copy| (copy, stored.dtype, stored.shape.to_vec(), bytes.clone()));
        tensors.push((name, stored.dtype, stored.shape.to_vec(), bytes));
        tensors.extend(copy);
    }
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    let mut json = checkpoint.config_json().clone();
    config(&mut json);
    let copy = Directory::temporary();
    copy.write("model.safetensors", safetensors::serialize(views, None).unwrap());
    copy.write("config.json", json.to_string());
    copy
}

/// Each part of Gemma moves its goldens by more than tests allow for.
#[test]
fn every_part_of_gemma_matters() {
    let (ids, wanted) =
        (golden("gemma3").ids("prompt2.ids"), golden("gemma3").floats("prompt2.last_logits"));
    let off = |copy: &Directory| {
        let logits = block_on(Model::builder(&copy.0).cpu().build().unwrap().logits(&ids)).unwrap();
        largest_difference(&logits[logits.len() - wanted.len()..], &wanted)
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

#[test]
fn non_finite_values_are_errors_in_every_path() {
    for (model, part) in [
        ("llama", "lm_head.weight"),
        ("llama", "model.embed_tokens.weight"),
        ("llama", "model.norm.weight"),
        ("odd", "model.embed_tokens.weight"),
        ("odd", "model.layers.1.self_attn.attn_sub_norm.weight"),
        ("odd", "model.layers.1.input_layernorm.weight"),
    ] {
        let checkpoint = Checkpoint::open(directory(model)).unwrap();
        let tensor = checkpoint.tensor(part).unwrap();
        // The last number, all ones: a NaN in every format.
        let size = tensor.bytes.len() / tensor.shape.iter().product::<usize>();
        let damaged = changed(
            model,
            |_| {},
            |name, bytes| {
                let start = bytes.len() - size;
                if name == part {
                    bytes[start..].fill(0xff);
                }
                None
            },
        );
        for int8_head in [false, true] {
            for context in [None, Some(context())] {
                let builder = Model::builder(&damaged.0).device(context);
                let error = builder.int8_head(int8_head).build().unwrap_err();
                let last =
                    tensor.shape.iter().map(|size| (size - 1).to_string()).collect::<Vec<_>>();
                assert!(
                    matches!(error, Error::Format { .. }) && error.to_string().contains(part),
                    "{part}: {error}"
                );
                let place = error.to_string().contains("NaN")
                    || last.iter().all(|at| error.to_string().contains(at));
                assert!(place, "{part}: {error}");
            }
        }
    }
}

#[test]
fn tensors_that_nobody_asks_for_are_refused() {
    let fewer = |json: &mut serde_json::Value| json["num_hidden_layers"] = 1.into();
    let load =
        |copy: &Directory, ignore| Model::builder(&copy.0).cpu().ignore_unused(ignore).build();
    for model in ["odd", "llama"] {
        let copy = changed(model, fewer, |_, _| None);
        let error = load(&copy, false).unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, Error::Unsupported { .. })
                && text.contains("model.layers.1.")
                && text.contains("ignore_unused"),
            "{text}"
        );
        assert_eq!(load(&copy, true).unwrap().config().layers, 1);
        let more = changed(
            model,
            |_| {},
            |name, _| {
                (name == "model.norm.weight")
                    .then(|| "model.layers.99.input_layernorm.weight".to_owned())
            },
        );
        assert!(load(&more, false).unwrap_err().to_string().contains("model.layers.99"));
        // A scale is of a linear layer; beside another tensor it would change what that means.
        for scale in [
            "model.embed_tokens.weight_scale",
            "model.norm.weight_scale",
            "model.layers.0.mlp.down_proj.scales",
        ] {
            let scaled = changed(
                model,
                |_| {},
                |name, _| (name == "model.norm.weight").then(|| scale.to_owned()),
            );
            assert!(
                load(&scaled, false).unwrap_err().to_string().contains(scale),
                "{model}, {scale}"
            );
        }
        // What older transformers wrote beside is no other model.
        let old = changed(
            model,
            |_| {},
            |name, _| {
                (name == "model.norm.weight")
                    .then(|| "model.layers.0.self_attn.rotary_emb.inv_freq".to_owned())
            },
        );
        assert!(load(&old, false).is_ok());
    }
    let wrong = changed("llama", |json| json["quantization_config"] = 1.into(), |_, _| None);
    assert!(load(&wrong, false).unwrap_err().to_string().contains("quantization_config is 1"));
}

#[test]
fn forgetting_never_adds() {
    for (engine, model) in engines("odd") {
        let mut session = session(&model, 1, 16, Element::F32);
        block_on(session.prefill(0, &[1, 2, 3])).unwrap();
        session.truncate(0, 9).unwrap();
        assert_eq!((session.len(0), session.tokens(0)), (3, &[1, 2, 3][..]), "{engine}");
        let after = block_on(session.decode(&[4])).unwrap();
        let mut plain = self::session(&model, 1, 16, Element::F32);
        assert_eq!(
            block_on(plain.prefill(0, &[1, 2, 3]))
                .map(|_| ())
                .and_then(|()| block_on(plain.decode(&[4])))
                .unwrap(),
            after,
            "{engine}"
        );
    }
}
