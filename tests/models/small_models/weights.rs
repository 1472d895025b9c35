//! Models that differ in how their tensors are stored or named.

use super::{ROUNDED, TOLERANCE, changed, largest_difference};
use bitnet_wgpu::{
    Error,
    formats::{Checkpoint, ModelFile as _, ReadOptions, write_packed},
    internals::{CheckpointInternals as _, ModelInternals as _},
    model::{GenerateOptions, Model, ModelFiles, Sampling},
};
use safetensors::{Dtype, tensor::TensorView};
use std::path::PathBuf;
use support::{
    block_on, context, contexts,
    files::Directory,
    models::{TernaryTables, directory, golden},
};

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
            let [found, expected] =
                [&packed, &floats].map(|model| block_on(model.logits(&ids)).unwrap());
            let off = largest_difference(&found, &expected);
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

#[test]
fn a_head_in_8_bits_is_near() {
    for name in ["newer", "llama"] {
        let golden = golden(name);
        for on_gpu in [true, false] {
            let builder = Model::builder(directory(name)).device(on_gpu.then(context));
            let model = builder.int8_head(true).build().unwrap();
            let logits = block_on(model.logits(&golden.ids("prompt0.ids"))).unwrap();
            let expected = golden.floats("prompt0.last_logits");
            let largest = expected.iter().fold(0f32, |max, v| max.max(v.abs()));
            // A tied embedding is quantized too, and the codes after it change: the logits keep
            // their shape, not their digits.
            let off = largest_difference(&logits, &expected) / largest;
            assert!(
                off > 0.0 && off < if name == "newer" { 0.5 } else { 0.02 },
                "{name}, GPU {on_gpu}: {off}"
            );
        }
    }
}

/// Ternary weights in floats, as some converters write them without a word of quantization, are
/// bit-identical to packed ones.
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
        warnings.iter().filter(|warning| warning.contains("assumed: in 8 bits")).count(),
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
