//! What is wrong with a prepacked model file is said.

use super::prepacked::{Parts, open, write};
use bitnet_wgpu::{
    Error, formats,
    internals::ModelFilesInternals as _,
    model::{Model, ModelFiles},
    weights::DenseElement,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{fs, sync::LazyLock};
use support::{block_on, files::Directory, models::directory};

/// A small model, with per-group scales.
static SMALL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let folder = Directory::temporary();
    fs::read(write(&directory("qwen3"), &folder, false)).unwrap()
});

/// What opening a file says, or loading its weights.
fn said(bytes: &[u8]) -> Option<Error> {
    let folder = Directory::temporary();
    let path = folder.write("model.safetensors", bytes);
    let files = ModelFiles::open(&path);
    let loaded = files.and_then(|files| files.problems().next().map_or(Ok(()), Err));
    loaded.err()
}

#[track_caller]
fn refused(change: impl FnOnce(&mut Parts), words: &str) {
    let mut parts = Parts::of(&SMALL);
    change(&mut parts);
    match said(&parts.bytes()) {
        Some(error @ (Error::Format { .. } | Error::Unsupported { .. })) => {
            assert!(error.to_string().contains(words), "{error}")
        }
        other => panic!("no error of the file but {other:?}, where `{words}` was expected"),
    }
}

#[test]
fn what_is_wrong_with_a_file_is_said() {
    const CODES: &str = "model.layers.1.self_attn.q_proj+k_proj+v_proj.codes";
    const SCALES: &str = "model.layers.1.self_attn.q_proj+k_proj+v_proj.scales";
    const GROUP: &str = "model.layers.1.self_attn.q_proj+k_proj+v_proj.group";
    assert!(said(&SMALL).is_none() && said(&Parts::of(&SMALL).bytes()).is_none());
    // Other versions and other files.
    refused(
        |parts| *parts.metadata("version") = "1".into(),
        "has version 1 of the prepacked format",
    );
    refused(
        |parts| drop(parts.header["__metadata__"].as_object_mut().unwrap().remove("version")),
        "without a version",
    );
    refused(|parts| *parts.metadata("format") = "pt".into(), "its format is `pt`");
    refused(
        |parts| drop(parts.header.as_object_mut().unwrap().remove("__metadata__")),
        "its format is missing",
    );
    let checkpoint =
        formats::open(directory("qwen3").join("model.safetensors")).map(drop).unwrap_err();
    assert!(
        matches!(&checkpoint, Error::Format { message, .. } if message.contains("by their directory")),
        "{checkpoint}"
    );
    // Truncated, in the header and in the data, and too long.
    for length in [0, 5, 8, 9, 100, SMALL.len() - 1] {
        assert!(matches!(said(&SMALL[..length]), Some(Error::Format { .. })), "{length} bytes");
    }
    assert!(matches!(said(&[&SMALL[..], &[0]].concat()), Some(Error::Format { .. })));
    // The configuration.
    refused(
        |parts| drop(parts.header["__metadata__"].as_object_mut().unwrap().remove("config")),
        "has no config",
    );
    refused(|parts| *parts.metadata("config") = "{".into(), "its config: EOF");
    refused(|parts| parts.configure("spirals", 8.into()), "its config: unknown field `spirals`");
    refused(|parts| parts.configure("hidden", Value::Null), "its config: invalid type: null");
    refused(|parts| parts.configure("heads", 0.into()), "the number of heads is 0");
    refused(|parts| parts.configure("rope_scaling", "Spiral".into()), "unknown variant `Spiral`");
    refused(
        |parts| parts.configure("eos", json!([1_000_000])),
        "token 1000000 is beyond the vocabulary",
    );
    refused(
        |parts| {
            parts.configure("sub_norms", true.into());
            parts.configure("projection_norms", true.into())
        },
        "beside projection_norms",
    );
    // Another model than that of the tensors.
    refused(|parts| parts.configure("layers", 1.into()), "does not account for");
    refused(|parts| parts.configure("layers", 3.into()), "no tensor `model.layers.2.");
    refused(
        |parts| parts.configure("intermediate", 128.into()),
        "`model.layers.0.mlp.gate_proj+up_proj.codes` is",
    );
    refused(|parts| parts.configure("vocab", 301.into()), "`model.embed_tokens.elements` is");
    refused(|parts| parts.configure("architecture", "llama".into()), "does not account for");
    refused(|parts| parts.configure("architecture", "gpt".into()), "architecture `gpt` is unknown");
    refused(|parts| parts.rename("model.norm", "model.morn"), "no tensor `model.norm`");
    // Tensors that are not as kernels read them.
    refused(
        |parts| parts.tensor(CODES)[70] |= 0x30,
        "`model.layers.1.self_attn.q_proj+k_proj+v_proj` is not as kernels read it: ternary matrix: code 3 in word 17",
    );
    refused(
        |parts| parts.tensor(SCALES)[..4].copy_from_slice(&f32::NAN.to_le_bytes()),
        "scale NaN",
    );
    refused(|parts| *parts.metadata(GROUP) = "0".into(), "has groups of `0` columns");
    refused(|parts| *parts.metadata(GROUP) = "-16".into(), "has groups of `-16` columns");
    refused(|parts| *parts.metadata(GROUP) = "20".into(), "q_proj+k_proj+v_proj");
    refused(
        |parts| {
            // What a kernel counts in 32 bits would be groups of 16.
            let scales = parts.header[SCALES].clone();
            *parts.metadata(GROUP) = ((1u64 << 36) + 16).to_string().into();
            let rows = scales["shape"][0].as_u64().unwrap();
            let start = scales["data_offsets"][0].as_u64().unwrap();
            parts.header[SCALES]["shape"][1] = 1.into();
            parts.header[SCALES]["data_offsets"][1] = (start + 4 * rows).into();
            let left = scales["data_offsets"][1].as_u64().unwrap() - start - 4 * rows;
            parts.header["padding.left"] = json!({"dtype": "U8", "shape": [left], "data_offsets": [start + 4 * rows, start + 4 * rows + left]});
        },
        "groups of 68719476752 columns",
    );
    // What is beside the tensors of a model.
    refused(|parts| parts.add("tokenizer.json", 2), "does not account for");
    refused(|parts| parts.add("padding.large", 64), "does not account for");
    refused(|parts| parts.add("model.embed_tokens.scales", 1), "does not account for");
    refused(|parts| parts.add("model.layers.0.mlp.down_proj.elements", 1), "does not account for");
    let mut padded = Parts::of(&SMALL);
    padded.add("padding.small", 63);
    assert!(said(&padded.bytes()).is_none());
    let group = "model.layers.1.mlp.down_proj.group";
    refused(
        |parts| drop(parts.header["__metadata__"].as_object_mut().unwrap().remove(group)),
        "mlp.down_proj.scales` is F32",
    );
    refused(
        |parts| parts.header[CODES]["dtype"] = "I32".into(),
        "q_proj+k_proj+v_proj.codes` is I32",
    );
    refused(
        |parts| parts.header[CODES]["shape"].as_array_mut().unwrap().reverse(),
        "q_proj+k_proj+v_proj.codes` is U32 of shape",
    );
    refused(
        |parts| parts.tensor("model.norm")[..4].copy_from_slice(&f32::INFINITY.to_le_bytes()),
        "`model.norm` has inf at 0",
    );
    refused(
        |parts| {
            parts.tensor("model.embed_tokens.elements")[..4]
                .copy_from_slice(&f32::NAN.to_le_bytes())
        },
        "not finite",
    );
    refused(
        |parts| parts.header["model.embed_tokens.elements"]["dtype"] = "I16".into(),
        "I16; F32, F16, BF16 or I8 is needed",
    );
    // A file that is cut off while it is open: no signal.
    let folder = Directory::temporary();
    let path = folder.write("model.safetensors", &*SMALL);
    let files = open(&path);
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(SMALL.len() as u64 - 1)
        .unwrap();
    let error = files.builder().cpu().build().map(drop).unwrap_err();
    assert!(
        matches!(&error, Error::Format { message, .. } if message.contains("when it was opened")),
        "{error}"
    );
}

/// What pads a row is zeros, in ternary words, in floats and in 8 bits; and 8 bits are symmetrical.
#[test]
fn padding_is_checked() {
    for (int8_head, element) in [(false, None), (true, Some(DenseElement::Int8))] {
        let folder = Directory::temporary();
        let path = write(&directory("odd"), &folder, int8_head);
        let bytes = fs::read(&path).unwrap();
        let config = open(&path).config().clone();
        let head = if config.tied_head { "model.embed_tokens" } else { "lm_head" };
        let expect = |change: &dyn Fn(&mut Parts), words: &str| {
            let mut parts = Parts::of(&bytes);
            change(&mut parts);
            let error = said(&parts.bytes()).unwrap_or_else(|| panic!("{words}")).to_string();
            assert!(error.contains(words), "{error}");
        };
        let row = config.hidden.div_ceil(64) * 16;
        assert!(!config.hidden.is_multiple_of(64), "rows of {} columns are padded", config.hidden);
        expect(
            &|parts| parts.tensor("model.layers.0.mlp.gate_proj+up_proj.codes")[2 * row - 1] = 0x15,
            "row 1 is not padded with zeros",
        );
        if element.is_some() {
            let stride = config.hidden.div_ceil(16) * 16;
            expect(&|parts| parts.tensor(&format!("{head}.elements"))[4] = 0x80, "a code is -128");
            expect(
                &|parts| {
                    parts.tensor(&format!("{head}.scales"))[4..8]
                        .copy_from_slice(&f32::NAN.to_le_bytes())
                },
                "row 1",
            );
            if stride > config.hidden {
                expect(
                    &|parts| parts.tensor(&format!("{head}.elements"))[stride - 1] = 1,
                    "row 0 is not padded with zeros",
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: support::cases(60), failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes changed anywhere, cut out or put in, or cut off: whatever comes of it, it is no panic,
    /// and what loads computes.
    #[test]
    fn damaged_files_do_not_panic(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>(), 0..4u8), 1..6),
        cut in any::<prop::sample::Index>(),
        keep in 0..8u8,
    ) {
        let mut bytes = SMALL.clone();
        for (at, value, early, kind) in edits {
            // Most of the bytes that matter lie at the beginning.
            let at = at.index(if early { 4000 } else { bytes.len() });
            match kind {
                0 => bytes.insert(at, value),
                1 => drop(bytes.remove(at)),
                _ => bytes[at] = value,
            }
        }
        if keep == 0 {
            bytes.truncate(cut.index(bytes.len()));
        }
        let folder = Directory::temporary();
        if let Ok(model) = Model::builder(folder.write("model.safetensors", &bytes)).cpu().build() {
            let _ = block_on(model.logits(&[1, 2]));
        }
    }

    /// Configurations that are JSON and lie.
    #[test]
    fn lying_configurations_do_not_panic(key in any::<prop::sample::Index>(), value in 0..6usize, number in any::<u32>()) {
        let mut parts = Parts::of(&SMALL);
        let config: Value = serde_json::from_str(parts.metadata("config").as_str().unwrap()).unwrap();
        let keys: Vec<_> = config.as_object().unwrap().keys().cloned().collect();
        let values = [json!(number), json!(number % 300), json!(-1.5), json!(true), Value::Null, json!([number % 300])];
        parts.configure(&keys[key.index(keys.len())], values[value].clone());
        let folder = Directory::temporary();
        if let Ok(model) = Model::builder(folder.write("model.safetensors", parts.bytes())).cpu().build() {
            let _ = block_on(model.logits(&[1, 2]));
        }
    }
}
