//! Files that are written: what a directory of transformers says, in the bytes of the format's
//! description.

use super::{
    file::*,
    hostile::{read_everything, refused},
    *,
};
use bitnet_wgpu::{
    formats::{Checkpoint, GgufVocabulary, ReadOptions, WrittenTensor, write_gguf},
    internals::ModelFilesInternals as _,
    model::{Model, ModelFiles, Tokenizer},
};
use serde_json::{Value, json};
use std::{fs, sync::LazyLock};
use support::files::Directory;

const HIDDEN: usize = 256;
const HEAD: usize = 64;

/// A tensor of a directory: its type, shape and bytes.
type Stored = (String, &'static str, Vec<usize>, Vec<u8>);

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A directory of one layer, with `scale` for every matrix or group: packed, or in floats where it
/// goes per group.
fn directory(keys: Value, group: Option<usize>, scale: impl Fn(u32) -> f32) -> Directory {
    let mut config = json!({
        "model_type": "bitnet", "hidden_size": HIDDEN, "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": HEAD, "vocab_size": 40, "bos_token_id": 1, "eos_token_id": [2, 3], "max_position_embeddings": 64, "tie_word_embeddings": true,
        "quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"},
    });
    for (key, value) in keys.as_object().unwrap() {
        config[key] = value.clone();
    }
    let (kind, vocab) =
        (config["model_type"].as_str().unwrap(), config["vocab_size"].as_u64().unwrap() as usize);
    let mut tensors: Vec<Stored> = Vec::new();
    let mut floats = |name: &str, shape: &[usize]| {
        let len = shape.iter().product();
        tensors.push((
            format!("{name}.weight"),
            "F32",
            shape.to_vec(),
            f32s(&super::floats(tensors.len() as u32, len)),
        ));
    };
    floats("model.embed_tokens", &[vocab, HIDDEN]);
    floats("model.norm", &[HIDDEN]);
    if config["tie_word_embeddings"] == false {
        floats("lm_head", &[vocab, HIDDEN]);
    }
    let normed = config["quantization_config"]["use_rms_norm"] == true;
    let parts = [
        ("self_attn.q_proj", 256, HIDDEN),
        ("self_attn.k_proj", 128, HIDDEN),
        ("self_attn.v_proj", 128, HIDDEN),
        ("self_attn.o_proj", HIDDEN, 256),
    ];
    let parts = parts.into_iter().chain([
        ("mlp.gate_proj", 512, HIDDEN),
        ("mlp.up_proj", 512, HIDDEN),
        ("mlp.down_proj", HIDDEN, 512),
    ]);
    let mut norms =
        vec![("input_layernorm".to_owned(), HIDDEN), ("post_attention_layernorm".into(), HIDDEN)];
    match kind {
        "bitnet" => norms
            .extend([("self_attn.attn_sub_norm".into(), 256), ("mlp.ffn_sub_norm".into(), 512)]),
        "qwen3" => {
            norms.extend([("self_attn.q_norm".into(), HEAD), ("self_attn.k_norm".into(), HEAD)])
        }
        _ => {}
    }
    if normed {
        norms.extend(parts.clone().map(|(name, _, columns)| (format!("{name}.norm"), columns)));
    }
    norms.iter().for_each(|(name, len)| floats(&format!("model.layers.0.{name}"), &[*len]));
    for (seed, (name, rows, columns)) in (50..).zip(parts) {
        let (values, name) = (trits(seed, rows * columns), format!("model.layers.0.{name}.weight"));
        if let Some(group) = group {
            let weights: Vec<f32> = values
                .iter()
                .enumerate()
                .map(|(i, &value)| f32::from(value) * scale((i / group) as u32))
                .collect();
            tensors.push((name, "F32", vec![rows, columns], f32s(&weights)));
            continue;
        }
        let matrix =
            PackedTernary::from_values(rows, columns, &values, Scales::Tensor(1.0)).unwrap();
        tensors.push((format!("{name}_scale"), "F32", vec![1], f32s(&[scale(seed)])));
        tensors.push((name, "U8", vec![rows / 4, columns], matrix.to_transformers()));
    }
    let (mut header, mut data) = (json!({}), Vec::new());
    for (name, dtype, shape, bytes) in &tensors {
        header[name] = json!({"dtype": dtype, "shape": shape, "data_offsets": [data.len(), data.len() + bytes.len()]});
        data.extend(bytes);
    }
    let header = header.to_string();
    let directory = Directory::temporary();
    directory.write("config.json", config.to_string());
    directory.write(
        "model.safetensors",
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat(),
    );
    directory
}

fn write(from: &Directory, kind: GgufType, force: bool) -> bitnet_wgpu::Result<GgufModel> {
    let path = from.0.join("written/model.gguf");
    write_gguf(&Checkpoint::open(&from.0)?, None, &path, kind, force, |_| {})?;
    GgufModel::open(path)
}

const KINDS: [GgufType; 2] = [GgufType::Tq2_0, GgufType::Q2_0];

/// Factors for every pair of a head, and one of attention.
fn longrope() -> Value {
    let factors: Vec<f32> = (0..HEAD / 2).map(|pair| 1.0 + 0.3 * pair as f32).collect();
    json!({"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "original_max_position_embeddings": 32})
}

fn halves(seed: u32) -> f32 {
    (1 + seed % 7) as f32 / 64.0
}

#[test]
fn what_is_written_is_what_was_read() {
    let masters = json!({"quantization_mode": "online", "quant_method": "bitnet", "use_rms_norm": true, "rms_norm_eps": 1e-5});
    let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16});
    let long = longrope();
    let cases = [
        ("bitnet-b1.58", json!({}), None),
        ("bitnet", json!({"hidden_act": "silu"}), None),
        (
            "llama",
            json!({"model_type": "llama", "tie_word_embeddings": false, "rope_scaling": {"type": "linear", "factor": 3.0}}),
            None,
        ),
        ("llama", json!({"model_type": "llama", "rope_scaling": long}), None),
        (
            "qwen3",
            json!({"model_type": "qwen3", "quantization_config": null, "rope_scaling": yarn}),
            Some(128),
        ),
        (
            "qwen3",
            json!({"model_type": "qwen3", "rms_norm_eps": 1e-5, "quantization_config": masters}),
            Some(512),
        ),
        (
            "minicpm",
            json!({"model_type": "minicpm", "quantization_config": null, "scale_emb": 3, "scale_depth": 1.4, "dim_model_base": 48, "rope_scaling": long}),
            Some(128),
        ),
        (
            "granite",
            json!({"model_type": "granite", "quantization_config": null, "embedding_multiplier": 3, "attention_multiplier": 0.3, "residual_multiplier": 0.7, "logits_scaling": 6}),
            Some(128),
        ),
    ];
    for (architecture, keys, group) in cases {
        // All groups of a model for blocks of 256 have one scale, so that it has one for every
        // matrix.
        for (kind, one) in [(GgufType::Q2_0, false), (GgufType::Tq2_0, true)] {
            let from = directory(keys.clone(), group, |seed| halves(if one { 5 } else { seed }));
            let (source, written) =
                (Checkpoint::open(&from.0).unwrap(), write(&from, kind, false).unwrap());
            let (c, read) = (source.config(), written.config());
            assert_eq!(read.architecture, architecture);
            assert_eq!(
                (&read.eos, read.bos, read.rope_scaling),
                (&vec![2, 3], Some(1), c.rope_scaling),
                "{architecture}"
            );
            let scales = |c: &bitnet_wgpu::formats::ModelConfig| {
                [
                    c.embedding_scale,
                    c.query_scale,
                    c.residual_scale,
                    c.logit_scale,
                    c.eps,
                    c.rope_theta,
                ]
            };
            assert_eq!(
                (scales(read), read.projection_norms),
                (scales(c), c.projection_norms),
                "{architecture}"
            );
            assert_eq!(read.rope_factors, c.rope_factors, "{architecture}");
            written.check_unused().unwrap();
            let same = |name: &str, rows: usize, columns: usize| {
                let [a, b] = [&source as &dyn ModelFile, &written].map(|file| {
                    file.linear(&format!("model.layers.0.{name}"), rows, columns).unwrap()
                });
                assert_eq!(a, b, "{architecture} {name}");
            };
            same("self_attn.q_proj", 256, HIDDEN);
            same("self_attn.k_proj", 128, HIDDEN);
            same("mlp.down_proj", HIDDEN, 512);
            let [a, b] = [&source as &dyn ModelFile, &written]
                .map(|file| Model::builder_from(file, None).cpu().build().unwrap());
            let logits =
                |model: &Model| pollster::block_on(model.logits(&[1, 17, 30, 4, 4, 39])).unwrap();
            let (a, b): (Vec<u32>, Vec<u32>) =
                logits(&a).iter().zip(logits(&b)).map(|(a, b)| (a.to_bits(), b.to_bits())).unzip();
            assert!(a == b && a.iter().any(|&bits| bits != a[0]), "{architecture} as {kind:?}");
        }
    }
}

/// What a model does with its activations is not lost where no architecture of GGUF does it.
#[test]
fn activations_that_gguf_cannot_say_are_refused() {
    let floats = json!({"model_type": "llama", "quantization_config": null});
    let cases = [
        (
            json!({"model_type": "qwen3"}),
            None,
            "quantizes its activations; GGUF's `qwen3` has float activations",
        ),
        (
            json!({"model_type": "minicpm"}),
            None,
            "quantizes its activations; GGUF's `minicpm` has float activations",
        ),
        (floats, Some(128), "has float activations; GGUF's `llama` has quantized ones"),
    ];
    for (keys, group, words) in cases {
        let from = directory(keys, group, halves);
        for kind in KINDS {
            refused(write(&from, kind, false), words);
        }
        assert!(!from.0.join("written").exists(), "nothing is left");
    }
    // The same models as the others have them.
    let path = Directory::temporary();
    let from = directory(json!({"model_type": "qwen3"}), None, halves);
    let said = |quantized| {
        Checkpoint::open(&from.0)
            .unwrap()
            .with_options(ReadOptions::default().quantized_activations(quantized))
    };
    write_gguf(&said(Some(false)), None, path.0.join("model.gguf"), GgufType::Q2_0, false, |_| {})
        .unwrap();
}

/// A model of each architecture as it was written, with a vocabulary that goes by merges or by
/// scores.
static WRITTEN: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let merges = Tokenizer::from_directory(support::data("../../assets/tales-22m"))
        .unwrap()
        .to_gguf()
        .unwrap();
    let pieces = GgufVocabulary {
        model: "llama".into(),
        tokens: ["<unk>", "<s>", "</s>", "<0x41>", "▁", "a", "b", "ab", "▁a", "▁ab"]
            .map(str::to_owned)
            .to_vec(),
        token_types: vec![2, 3, 3, 6, 1, 1, 1, 1, 1, 1],
        scores: Some((0..10).map(|id| -(id as f32)).collect()),
        add_space_prefix: Some(true),
        ..GgufVocabulary::default()
    };
    let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16});
    let cases = [
        (json!({"vocab_size": 2048, "eos_token_id": 2047}), None, Some(&merges)),
        (json!({"hidden_act": "silu"}), None, Some(&pieces)),
        (
            json!({"model_type": "llama", "tie_word_embeddings": false, "rope_scaling": {"type": "linear", "factor": 3.0}}),
            None,
            Some(&pieces),
        ),
        (
            json!({"model_type": "qwen3", "quantization_config": null, "rope_scaling": yarn}),
            Some(128),
            None,
        ),
        (
            json!({"model_type": "minicpm", "quantization_config": null, "scale_emb": 3, "rope_scaling": longrope()}),
            Some(128),
            Some(&pieces),
        ),
    ];
    let written = |(keys, group, vocabulary): (Value, Option<usize>, Option<&GgufVocabulary>)| {
        let from = directory(keys, group, halves);
        let path = from.0.join("model.gguf");
        write_gguf(
            &Checkpoint::open(&from.0).unwrap(),
            vocabulary,
            &path,
            GgufType::Q2_0,
            false,
            |_| {},
        )
        .unwrap();
        fs::read(path).unwrap()
    };
    cases.into_iter().map(written).collect()
});

/// These, and what is not written here: all types of blocks, norms in linear layers, Gemma, weights
/// that are stored rotated.
static FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    WRITTEN
        .iter()
        .cloned()
        .chain(encodings::all())
        .chain(converted::all())
        .chain([hadamard::keyed().bytes()])
        .collect()
});

proptest! {
    #![proptest_config(ProptestConfig { cases: support::cases(60), failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes changed anywhere, numbers of the header to any other, the file cut off: whatever comes
    /// of it is a model or an error.
    #[test]
    fn damaged_files_of_all_kinds_do_not_panic(
        which in any::<prop::sample::Index>(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 0..64u32, 1..9usize, 0..4u8), 1..5),
        cut in any::<prop::sample::Index>(),
        keep in 0..8u8,
    ) {
        let mut bytes = FILES[which.index(FILES.len())].clone();
        // The header ends where the embedding begins, and most that matters is before the
        // vocabulary or behind it.
        let end = bytes.windows(18).rposition(|name| name == b"output_norm.weight").unwrap() + 100;
        for (at, value, shift, width, part) in edits {
            let at = match part {
                0 => at.index(bytes.len() - 8),
                1 => at.index(end),
                2 => end - 1 - at.index(1000),
                _ => at.index(1500),
            };
            bytes[at..at + width].copy_from_slice(&(value >> shift).to_le_bytes()[..width]);
        }
        if keep == 0 {
            bytes.truncate(cut.index(bytes.len()));
        }
        read_everything(&bytes);
        let directory = Directory::temporary();
        let path = directory.write("model.gguf", bytes);
        if let Ok(files) = ModelFiles::open(&path) {
            let _ = files.tokenizer().and_then(|tokenizer| tokenizer.encode("ab A b"));
            // As far as it would be loaded.
            let _ = files.problems().take(3).count();
        }
    }
}

/// The bytes by the format's description, and what is said of them.
#[test]
fn blocks_are_those_of_the_format() {
    let from = directory(json!({"model_type": "llama"}), None, halves);
    for (kind, size, encode) in
        [(GgufType::Tq2_0, 256, tq2 as fn(&[i8], &[f32]) -> Vec<u8>), (GgufType::Q2_0, 64, q2)]
    {
        let file = write(&from, kind, true).unwrap();
        let tensor = file.file().tensor("blk.0.ffn_up.weight").unwrap();
        assert_eq!((tensor.kind, tensor.shape), (kind, &[512, HIDDEN][..]));
        assert_eq!(
            tensor.bytes,
            encode(&trits(55, 512 * HIDDEN), &vec![halves(55); 512 * HIDDEN / size])
        );
        // Rows of queries in pairs: row 2i + s of a head is row 32s + i of transformers.
        let tensor = file.file().tensor("blk.0.attn_q.weight").unwrap();
        let rows = trits(50, 256 * HIDDEN);
        let row = |row: usize| {
            rows[(row / HEAD * HEAD + row % 2 * (HEAD / 2) + row % HEAD / 2) * HIDDEN..][..HIDDEN]
                .to_vec()
        };
        let values: Vec<i8> = (0..256).flat_map(row).collect();
        assert_eq!(tensor.bytes, encode(&values, &vec![halves(50); 256 * HIDDEN / size]));
        let key = |key: &str| file.file().get(key);
        assert_eq!(
            key("general.file_type"),
            Some(GgufValue::Unsigned(if size == 256 { 37 } else { 41 }))
        );
        assert_eq!(
            (key("llama.rope.dimension_count"), key("llama.vocab_size")),
            (Some(GgufValue::Unsigned(64)), Some(GgufValue::Unsigned(40)))
        );
        assert_eq!(key("tokenizer.ggml.model"), Some(GgufValue::String("no_vocab")));
    }
}

#[test]
fn scales_outside_f16_are_separate_or_refused() {
    for (scale, beside) in [
        (0.1f32, true),
        (2f32.powi(-30), true),
        (3e5, true),
        (2f32.powi(-24), false),
        (0.0998, true),
        (0.5, false),
    ] {
        let from = directory(json!({}), None, |_| scale);
        for kind in KINDS {
            let file = write(&from, kind, true).unwrap();
            assert_eq!(file.file().contains("blk.0.attn_v.scale"), beside, "{scale}");
            let read =
                ModelFile::linear(&file, "model.layers.0.self_attn.v_proj", 128, HIDDEN).unwrap();
            assert_eq!(read, ternary(52, 128, HIDDEN, scale), "{scale}");
        }
    }
    let qwen3 = json!({"model_type": "qwen3", "quantization_config": null});
    let from = directory(qwen3.clone(), Some(128), |i| if i == 77 { 0.1 } else { 0.5 });
    refused(
        write(&from, GgufType::Q2_0, false),
        "self_attn.q_proj.weight` has the scale 0.1; Q2_0 needs",
    );
    let from = directory(qwen3, Some(128), halves);
    refused(
        write(&from, GgufType::Tq2_0, false),
        "has a scale for every 128 columns; blocks of TQ2_0 have 256; Q2_0 has blocks of 64",
    );
    assert!(!from.0.join("written").exists(), "nothing is left");
}

#[test]
fn what_gguf_cannot_say_is_refused() {
    let refuses = |keys: Value, words: &str| {
        let from = directory(keys, None, halves);
        refused(write(&from, GgufType::Q2_0, false), words);
        assert!(!from.0.join("written/model.gguf").exists());
    };
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32});
    refuses(json!({"rope_scaling": llama3}), "rotary scaling Llama 3.1");
    refuses(json!({"hidden_act": "silu", "tie_word_embeddings": false}), "a tied head");
    refuses(json!({"hidden_act": "relu2", "model_type": "llama"}), "no architecture");
    refuses(json!({"num_hidden_layers": 2}), "no tensor `model.layers.1.");
    refuses(
        json!({"eos_token_id": [2, 3, 4]}),
        "end-of-sequence tokens [2, 3, 4]; a GGUF file can name two",
    );
    let from = directory(json!({}), None, halves);
    let module = |class: &str, path: &str| json!({"type": format!("sentence_transformers.models.{class}"), "path": path});
    let all = [
        module("Transformer", ""),
        module("Pooling", "1_Pooling"),
        module("Normalize", "2_Normalize"),
        module("Dense", "3_Dense"),
    ];
    fs::create_dir(from.0.join("1_Pooling")).unwrap();
    fs::write(from.0.join("1_Pooling/config.json"), r#"{"pooling_mode_mean_tokens": true}"#)
        .unwrap();
    for (modules, words) in
        [(&all[..2], "does not normalize its embeddings"), (&all[..], "makes embeddings in a way")]
    {
        fs::write(from.0.join("modules.json"), serde_json::to_vec(modules).unwrap()).unwrap();
        refused(write(&from, GgufType::Q2_0, false), words);
    }
    let from = directory(json!({}), None, halves);
    for other in [GgufType::Tq1_0, GgufType::F16, GgufType::Other(7)] {
        refused(write(&from, other, false), "TQ2_0 and Q2_0 are supported");
    }
    write(&from, GgufType::Q2_0, false).unwrap();
    let before = fs::read(from.0.join("written/model.gguf")).unwrap();
    let error = write(&from, GgufType::Tq2_0, false).unwrap_err();
    assert!(
        matches!(&error, Error::Io { .. }) && error.to_string().contains("exists already"),
        "{error}"
    );
    assert_eq!(fs::read(from.0.join("written/model.gguf")).unwrap(), before);
    assert_ne!(
        write(&from, GgufType::Tq2_0, true).unwrap().file().kind("blk.0.ffn_up.weight"),
        Some(GgufType::Q2_0)
    );
    assert_eq!(fs::read_dir(from.0.join("written")).unwrap().count(), 1, "nothing is left");
}

#[test]
fn vocabularies_and_progress_are_written() {
    let from = directory(json!({}), None, halves);
    let checkpoint = Checkpoint::open(&from.0).unwrap();
    let vocabulary = GgufVocabulary {
        model: "llama".into(),
        tokens: (0..30).map(|id| format!("t{id}")).collect(),
        token_types: [vec![2, 3, 3], vec![1; 27]].concat(),
        scores: Some((0..30).map(|id| -(id as f32)).collect()),
        bos: Some(1),
        eos: Some(3),
        add_bos: Some(true),
        add_eos: Some(false),
        add_space_prefix: Some(false),
        chat_template: Some("{{ messages }} é".into()),
        ..GgufVocabulary::default()
    };
    let (path, mut seen) = (from.0.join("model.gguf"), Vec::<WrittenTensor>::new());
    write_gguf(&checkpoint, Some(&vocabulary), &path, GgufType::Q2_0, false, |tensor| {
        seen.push(tensor.clone())
    })
    .unwrap();
    let (file, mut read) =
        (GgufModel::open(&path).unwrap(), GgufModel::open(&path).unwrap().vocabulary().unwrap());
    assert_eq!((file.config().eos.as_slice(), read.tokens.len()), (&[3, 2][..], 40));
    assert_eq!(
        (read.tokens[30].as_str(), read.token_types[30..].to_vec()),
        ("[PAD30]", vec![5; 10])
    );
    read.tokens.truncate(30);
    read.token_types.truncate(30);
    read.scores.as_mut().unwrap().truncate(30);
    assert_eq!(read, vocabulary);
    let total: usize = file.file().names().map(|name| file.file().size(name).unwrap()).sum();
    assert_eq!((seen.len(), seen.last().unwrap().done, seen[0].total), (13, 13, 13));
    assert_eq!(seen.iter().map(|tensor| tensor.bytes_after).sum::<u64>(), total as u64);
    let up = seen.iter().find(|tensor| tensor.name == "blk.0.ffn_up.weight").unwrap();
    assert_eq!((up.bytes_before, up.bytes_after, up.error), (512 * 64 + 4, 512 * 4 * 18, None));
    let small =
        GgufVocabulary { tokens: (0..41).map(|id| format!("t{id}")).collect(), ..vocabulary };
    refused(
        write_gguf(&checkpoint, Some(&small), &path, GgufType::Q2_0, true, |_| {}),
        "41 tokens in its tokenizer, 40 in its configuration",
    );
}
