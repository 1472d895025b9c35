//! Models that are written read back equal.

use super::file::{ModelDirectory, bf16, config, file};
use bitnet_wgpu::{
    formats::{Checkpoint, ModelFile as _, ScaleRule, write_packed},
    internals::{CheckpointInternals as _, ModelFilesInternals as _},
    model::ModelFiles,
};
use proptest::prelude::*;
use serde_json::json;
use std::{fs, path::Path, sync::LazyLock};
use support::{files::Directory, models::directory};

/// A model with float_weights of every linear layer, and a tied embedding.
fn float_weights() -> Directory {
    let parts = [
        ("self_attn.q_proj", [64, 64]),
        ("self_attn.k_proj", [32, 64]),
        ("self_attn.v_proj", [32, 64]),
        ("self_attn.o_proj", [64, 64]),
        ("mlp.gate_proj", [128, 64]),
        ("mlp.up_proj", [128, 64]),
        ("mlp.down_proj", [64, 128]),
    ];
    let values = |seed: usize, len: usize| {
        bf16(&(0..len).map(|i| ((i * 7 + seed) as f32).sin() / 8.0).collect::<Vec<_>>())
    };
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![100, 64], values(0, 6400)),
        ("model.norm.weight".into(), vec![64], values(1, 64)),
    ];
    for layer in 0..2 {
        for (i, (part, shape)) in parts.iter().enumerate() {
            let name = format!("model.layers.{layer}.{part}.weight");
            tensors.push((name, shape.to_vec(), values(100 * layer + i, shape[0] * shape[1])));
        }
    }
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, shape, bytes)| (name.as_str(), "BF16", &shape[..], &bytes[..]))
        .collect();
    let directory =
        Directory::model(&config(json!({"tie_word_embeddings": true})), &file(&tensors));
    directory.write("tokenizer.json", "{}");
    directory
}

#[test]
fn packed_models_read_back_equal() {
    let (input, output, again) = (float_weights(), Directory::temporary(), Directory::temporary());
    let source = input.open().unwrap();
    let mut seen = Vec::new();
    write_packed(&source, &output.0, false, |tensor| seen.push(tensor.clone())).unwrap();
    assert_eq!((seen.len(), seen[15].done, seen[15].total), (16, 16, 16));
    assert!(
        seen.iter().all(|tensor| tensor.error.is_none_or(|error| (0.1..0.9).contains(&error))),
        "{seen:?}"
    );
    assert_eq!(seen.iter().filter(|tensor| tensor.error.is_some()).count(), 14);
    let down = seen.iter().find(|tensor| tensor.name.contains("0.mlp.down_proj")).unwrap();
    assert_eq!((down.bytes_before, down.bytes_after), (64 * 128 * 2, 64 * 128 / 4 + 4));

    let packed = output.open().unwrap();
    assert_eq!(
        (packed.config(), packed.scale_rule()),
        (source.config(), Some(ScaleRule::Multiply))
    );
    assert_eq!(packed.linears().len(), 14);
    for name in packed.linears() {
        assert_eq!(packed.ternary(&name).unwrap(), source.ternary(&name).unwrap(), "{name}");
    }
    let bytes =
        |checkpoint: &Checkpoint, name: &str| checkpoint.tensor(name).unwrap().bytes.to_vec();
    for name in ["model.embed_tokens.weight", "model.norm.weight"] {
        assert_eq!(bytes(&packed, name), bytes(&source, name));
    }
    let read = |directory: &Directory, name: &str| fs::read(directory.0.join(name)).unwrap();
    assert_eq!(read(&output, "tokenizer.json"), b"{}");
    // What is packed already stays as it is.
    write_packed(&packed, &again.0, false, |_| {}).unwrap();
    assert_eq!(read(&again, "model.safetensors"), read(&output, "model.safetensors"));
    assert_eq!(read(&again, "config.json"), read(&output, "config.json"));

    let refused = |directory: &Directory, force| {
        write_packed(&source, &directory.0, force, |_| {}).unwrap_err().to_string()
    };
    assert!(refused(&output, false).contains("has a model already"));
    assert!(refused(&input, true).contains("is the input"));
    write_packed(&source, &output.0, true, |_| {}).unwrap();
}

#[test]
fn the_pooling_goes_with_a_packed_model() {
    use bitnet_wgpu::formats::Pooling;
    for folder in ["1_Pooling", "poolings/last"] {
        let (input, output) = (float_weights(), Directory::temporary());
        fs::create_dir_all(input.0.join(folder)).unwrap();
        input.write(
            &format!("{folder}/config.json"),
            json!({"pooling_mode": "lasttoken"}).to_string(),
        );
        if folder != "1_Pooling" {
            let module = |name: &str, path: &str| json!({"type": format!("sentence_transformers.models.{name}"), "path": path});
            input.write(
                "modules.json",
                json!([module("Transformer", ""), module("Pooling", folder)]).to_string(),
            );
        }
        let source = input.open().unwrap();
        write_packed(&source, &output.0, false, |_| {}).unwrap();
        let embedding = &output.open().unwrap().config().embedding.clone();
        assert_eq!(
            (embedding.pooling, embedding),
            (Some(Pooling::Last), &source.config().embedding),
            "{folder}"
        );
    }
}

#[test]
fn models_that_cannot_be_packed_leave_nothing_behind() {
    let output = Directory::temporary();
    let model = Directory::model(
        &config(json!({})),
        &file(&[("model.norm.weight", "BF16", &[1], &bf16(&[1.0]))]),
    );
    let error = write_packed(&model.open().unwrap(), &output.0, false, |_| {}).unwrap_err();
    assert!(
        error.to_string().contains("no tensor `model.layers.0.self_attn.q_proj.weight`"),
        "{error}"
    );
    assert_eq!(fs::read_dir(&output.0).unwrap().count(), 0);
}

/// config.json and model.safetensors of small models as they were packed, and of others in floats:
/// ternary per group, per row, and in layers that see a window.
static MODELS: LazyLock<Vec<[Vec<u8>; 2]>> = LazyLock::new(|| {
    let read = |folder: &Path| {
        ["config.json", "model.safetensors"].map(|file| fs::read(folder.join(file)).unwrap())
    };
    let packed = |name| {
        let output = Directory::temporary();
        write_packed(&Checkpoint::open(directory(name)).unwrap(), &output.0, false, |_| {})
            .unwrap();
        read(&output.0)
    };
    let floats = ["minicpm", "trilm", "gemma3_floats"].map(|name| read(&directory(name)));
    ["online", "llama", "normed"].map(packed).into_iter().chain(floats).collect()
});

/// What is longer is an error before anything is written.
#[test]
fn copied_files_are_bounded_in_bytes() {
    for name in ["tokenizer.json", "merges.txt"] {
        let (input, output) = (float_weights(), Directory::temporary());
        // It takes no room on the disk.
        fs::File::create(input.0.join(name)).unwrap().set_len((256 << 20) + 1).unwrap();
        let error =
            write_packed(&input.open().unwrap(), &output.0, false, |_| {}).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("more than 268435456 bytes"), "{error}");
        assert_eq!(fs::read_dir(&output.0).unwrap().count(), 0, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: support::cases(60), failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes of either file changed, cut out or put in anywhere: whatever comes of it is a model or
    /// an error.
    #[test]
    fn damaged_models_do_not_panic(
        which in any::<prop::sample::Index>(),
        edits in proptest::collection::vec((0..4u8, any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 1..5),
        cut in any::<prop::sample::Index>(),
        keep in 0..8u8,
    ) {
        let [mut config, mut tensors] = MODELS[which.index(MODELS.len())].clone();
        let header = 8 + u64::from_le_bytes(*tensors.first_chunk().unwrap()) as usize;
        for (part, at, value, kind) in edits {
            let (bytes, end) = match part {
                0 => (&mut config, usize::MAX),
                1 => (&mut tensors, usize::MAX),
                _ => (&mut tensors, header),
            };
            let at = at.index(bytes.len().min(end));
            match kind {
                0 => bytes[at] = value,
                // Another digit, or a sign, is a number still.
                1 => bytes[at] = b"0123456789-.e\"{}[]"[usize::from(value) % 18],
                2 => bytes.insert(at, value),
                _ => drop(bytes.remove(at)),
            }
        }
        if keep == 0 {
            tensors.truncate(cut.index(tensors.len()));
        }
        let model = Directory::temporary();
        model.write("config.json", config);
        model.write("model.safetensors", tensors);
        if let Ok(files) = ModelFiles::open(&model.0) {
            let _ = files.problems().take(3).count();
        }
    }
}
