//! Checkpoints in safetensors, sound, damaged and hostile.

use super::file::{ModelDirectory, OFFLINE, PLAIN, bf16, config, file, with_header};
use bitnet_wgpu::{
    Error, bitnet,
    formats::{Checkpoint, ModelFile, ReadOptions, ScaleRule},
    internals::{CheckpointInternals as _, SafeTensors},
    reference,
    weights::{DenseElement, PackedTernary, Scales},
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{fs, path::PathBuf, sync::LazyLock};
use support::{files::Directory, models};

#[test]
fn scales_mean_what_the_linear_class_says() {
    // Eight rows of one column: R = 2. Codes 2 (+1) in rows 0 and 1, else 1 (0).
    let packed = [0b01_01_01_10u8, 0b01_01_01_10];
    let bf16 = half::bf16::from_f32(4.0).to_le_bytes();
    let file =
        file(&[("l.weight", "U8", &[2, 1], &packed), ("l.weight_scale", "BF16", &[1], &bf16)]);
    for (config, rule, beta) in
        [(&*OFFLINE, ScaleRule::Multiply, 4.0), (&PLAIN, ScaleRule::Divide, 0.25)]
    {
        let directory = Directory::model(config, &file);
        let checkpoint = directory.open().unwrap();
        assert_eq!(
            (checkpoint.scale_rule(), checkpoint.linears()),
            (Some(rule), vec!["l".to_owned()])
        );
        let w = checkpoint.ternary("l").unwrap();
        assert_eq!((w.rows(), w.columns(), w.scales()), (8, 1, &Scales::Tensor(beta)));
        assert_eq!(w.to_values(), [1, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            checkpoint.ternary_with_rows("l", 7).unwrap().to_values(),
            [1, 1, 0, 0, 0, 0, 0]
        );
        assert!(
            checkpoint.ternary_with_rows("l", 9).unwrap_err().to_string().contains("`l.weight`")
        );
    }
}

/// A config.json without quantization_config does not say what scales mean, and their size may.
#[test]
fn scale_rule_is_found_or_asked_for() {
    let packed = [0b01_01_01_10u8, 0b01_01_01_10];
    let with_scale = |scale: f32| {
        let scale = half::bf16::from_f32(scale).to_le_bytes();
        let file =
            file(&[("l.weight", "U8", &[2, 1], &packed), ("l.weight_scale", "BF16", &[1], &scale)]);
        Directory::model(&config(json!({})), &file)
    };
    for (scale, rule, beta) in
        [(0.0625, ScaleRule::Multiply, 0.0625), (32.0, ScaleRule::Divide, 0.03125)]
    {
        let checkpoint = with_scale(scale).open().unwrap();
        assert_eq!(checkpoint.scale_rule(), Some(rule));
        assert_eq!(checkpoint.ternary("l").unwrap().scales(), &Scales::Tensor(beta));
    }
    let directory = with_scale(4.0);
    let checkpoint = directory.open().unwrap();
    assert_eq!(checkpoint.scale_rule(), None);
    let error = checkpoint.ternary("l").unwrap_err();
    assert!(
        matches!(&error, Error::Unsupported { message, .. }
            if message.contains("is 4") && message.contains("ReadOptions::scale_rule")),
        "{error}"
    );
    for (rule, beta) in [(ScaleRule::Multiply, 4.0), (ScaleRule::Divide, 0.25)] {
        let options = ReadOptions::default().scale_rule(rule);
        let checkpoint = directory.open().unwrap().with_options(options);
        assert_eq!(checkpoint.ternary("l").unwrap().scales(), &Scales::Tensor(beta));
    }
}

#[test]
fn float_weights_are_quantized() {
    let dense = [0.5f32, -0.25, 0.0, 1.0, -1.0, 0.125];
    let bytes: Vec<u8> =
        dense.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
    let directory = Directory::model(&OFFLINE, &file(&[("l.weight", "BF16", &[2, 3], &bytes)]));
    let w = directory.open().unwrap().ternary("l").unwrap();
    assert_eq!(
        w,
        reference::quantize_weights(&dense, [2, 3], bitnet::WeightQuantizer::absmean()).unwrap()
    );
}

fn error(config: &str, file: &[u8]) -> String {
    let directory = Directory::model(config, file);
    match directory.open().and_then(|checkpoint| checkpoint.ternary("l")) {
        Err(error @ (Error::Format { .. } | Error::Unsupported { .. })) => error.to_string(),
        other => panic!("no error of the file: {other:?}"),
    }
}

#[test]
fn bad_files_are_named() {
    let scale = 1f32.to_le_bytes();
    let good: [(&str, &str, &[usize], &[u8]); 2] =
        [("l.weight", "U8", &[1, 2], &[0, 1]), ("l.weight_scale", "F32", &[1], &scale)];
    let whole = file(&good);
    assert!(Directory::model(&OFFLINE, &whole).open().unwrap().ternary("l").is_ok());
    let expect = |file: &[u8], words: &[&str]| {
        let text = error(&OFFLINE, file);
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        assert!(text.contains("model.safetensors"), "{text}");
    };
    // Truncated: in the length, in the header, in the data; and too long.
    expect(&whole[..5], &["5 bytes"]);
    expect(&whole[..40], &["claims", "32 more"]);
    expect(&whole[..whole.len() - 1], &["`l.weight_scale` claims bytes 2..6 of the 5"]);
    expect(&[&whole[..], &[0]].concat(), &[]);
    // Lengths over the file, and over memory.
    expect(&[&u64::MAX.to_le_bytes()[..], b"{}"].concat(), &["18446744073709551615"]);
    let header = |weight: &str| {
        let other = r#""l.weight_scale":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}"#;
        with_header(&format!(r#"{{"l.weight":{weight},{other}}}"#), &[0; 6])
    };
    expect(
        &header(r#"{"dtype":"U8","shape":[1,2],"data_offsets":[0,18446744073709551615]}"#),
        &["`l.weight` claims bytes"],
    );
    expect(
        &header(r#"{"dtype":"U8","shape":[1,2],"data_offsets":[2,0]}"#),
        &["`l.weight` claims bytes 2..0"],
    );
    expect(
        &header(r#"{"dtype":"U8","shape":[1,2],"data_offsets":[-1,2]}"#),
        &["`l.weight` has no data_offsets"],
    );
    expect(&header(r#"{"dtype":"U8","shape":[1,2]}"#), &["`l.weight` has no data_offsets"]);
    expect(&header(r#"{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,2]}"#), &[]);
    // Overlap, gap, a type that does not exist, and what is no JSON.
    expect(&header(r#"{"dtype":"U8","shape":[1,4],"data_offsets":[0,4]}"#), &["l.weight"]);
    expect(&header(r#"{"dtype":"U8","shape":[1,1],"data_offsets":[0,1]}"#), &["l.weight"]);
    expect(&header(r#"{"dtype":"U2","shape":[1,2],"data_offsets":[0,2]}"#), &[]);
    expect(&with_header("[1]", &[]), &["JSON"]);
    expect(&with_header("{", &[]), &["JSON"]);
    // The wrong contents.
    expect(&file(&[good[1]]), &["no tensor `l.weight`"]);
    expect(&file(&[good[0]]), &["no tensor `l.weight_scale`"]);
    expect(&file(&[("l.weight", "U8", &[2], &[0, 1]), good[1]]), &["`l.weight` has shape [2]"]);
    expect(
        &file(&[("l.weight", "U8", &[1, 2], &[0, 0b1100]), good[1]]),
        &["`l.weight`", "code 3 in byte 1"],
    );
    expect(
        &file(&[("l.weight", "U8", &[1 << 62, 0], &[]), good[1]]),
        &["`l.weight` has no columns"],
    );
    expect(&file(&[("l.weight", "U8", &[0, 1 << 40], &[]), good[1]]), &["`l.weight`", "32 bits"]);
    expect(&file(&[("l.weight", "I8", &[1, 2], &[0, 1]), good[1]]), &["`l.weight` is I8"]);
    expect(
        &file(&[good[0], ("l.weight_scale", "F32", &[2], &[0; 8])]),
        &["`l.weight_scale` has shape [2]"],
    );
    expect(&file(&[good[0], ("l.weight_scale", "U8", &[1], &[1])]), &["`l.weight_scale` is U8"]);
    for bad in [0f32, -1.0, f32::NAN, f32::INFINITY] {
        expect(
            &file(&[good[0], ("l.weight_scale", "F32", &[1], &bad.to_le_bytes())]),
            &["`l.weight_scale` is"],
        );
    }
    // The configuration.
    assert!(error("{", &whole).contains("config.json"));
    assert!(
        error(&config(json!({"quantization_config": {"linear_class": "bitnonlinear"}})), &whole)
            .contains("bitnonlinear")
    );
    assert!(matches!(Checkpoint::open("does/not/exist").unwrap_err(), Error::Io { .. }));
}

/// Of every graph, and of what is beside it: rotary scaling, MLX's integers, layers that see a
/// window.
static CONFIGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let read =
        |name: String| fs::read_to_string(models::directory(&name).join("config.json")).unwrap();
    let mlx = config(
        json!({"model_type": "qwen3", "quantization": {"bits": 2, "group_size": 32, "lm_head": {"bits": 4, "group_size": 32}}}),
    );
    [OFFLINE.clone(), mlx].into_iter().chain(models::names().into_iter().map(read)).collect()
});

proptest! {
    #![proptest_config(ProptestConfig { cases: support::cases(500), failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes changed, cut out or put in anywhere: whatever comes of it, it is no panic.
    #[test]
    fn damaged_files_do_not_panic(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..6),
        cut in any::<prop::sample::Index>(),
        keep in any::<bool>(),
    ) {
        let scale = 1f32.to_le_bytes();
        let mut bytes = file(&[("l.weight", "U8", &[2, 3], &[0, 1, 2, 4, 8, 16]), ("l.weight_scale", "F32", &[1], &scale)]);
        for (at, value, kind) in edits {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = value,
                1 => bytes.insert(at, value),
                _ => { bytes.remove(at); }
            }
        }
        if !keep {
            bytes.truncate(cut.index(bytes.len()));
        }
        let directory = Directory::model(&OFFLINE, &bytes);
        if let Ok(checkpoint) = directory.open() {
            let _ = checkpoint.ternary("l").map(|w| w.dequantize());
            for name in checkpoint.names() {
                let _ = checkpoint.tensor(&name).map(|tensor| tensor.to_f32());
            }
        }
    }

    /// Words of MLX with their scales and their configuration, damaged as above.
    #[test]
    fn damaged_words_of_mlx_do_not_panic(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..6u8), 1..6),
        power in 0..4u32,
        cut in any::<prop::sample::Index>(),
        keep in 0..8u8,
    ) {
        let bits = 2usize.pow(power);
        let mut bytes = file(&[
            ("lm_head.weight", "U32", &[2, 2 * bits], &vec![0x21; 16 * bits]),
            ("lm_head.scales", "F16", &[2, 2], &[0, 0x3c, 0, 0x38, 0, 0, 0, 0x40]),
            ("lm_head.biases", "F16", &[2, 2], &[0, 0xbc, 0, 0xb8, 0, 0x80, 0, 0xc0]),
        ]);
        let keys = json!({"model_type": "qwen3", "quantization": {"bits": bits, "group_size": 32, "mode": "affine", "lm_head": {"bits": bits, "group_size": 32}}});
        let mut text = config(keys).into_bytes();
        for (at, value, kind) in edits {
            let edited = if kind < 4 { &mut bytes } else { &mut text };
            let at = at.index(edited.len());
            match kind % 4 {
                0 => edited[at] = value,
                1 => edited.insert(at, value),
                2 => { edited.remove(at); }
                // Digits, so that other numbers come of it.
                _ => edited[at] = b'0' + value % 10,
            }
        }
        if keep == 0 {
            bytes.truncate(cut.index(bytes.len()));
        }
        let directory = Directory::temporary();
        directory.write("config.json", &text);
        directory.write("model.safetensors", &bytes);
        if let Ok(model) = directory.open() {
            let _ = model.ternary("lm_head").map(|w| w.dequantize());
            let _ = (model.dense("lm_head", 2, 64), model.ternary_table("lm_head", 2, 64), ModelFile::linear(&model, "lm_head", 2, 64));
        }
    }

    /// Configurations of all graphs, indices, and what sentence-transformers writes, with bytes
    /// changed, cut out or put in.
    #[test]
    fn damaged_json_does_not_panic(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), "[0-9a-z{}\\[\\]\",:.-]", 0..3u8), 1..4),
        model in 0..CONFIGS.len(),
        which in 0..9usize,
    ) {
        let directory = Directory::temporary();
        let module = |kind: &str, path: &str| json!({"idx": 0, "name": "0", "path": path, "type": format!("sentence_transformers.models.{kind}")});
        let mut files = [
            ("config.json", CONFIGS[model].clone()),
            ("model.safetensors.index.json", json!({"weight_map": {"x.weight": "a.safetensors"}}).to_string()),
            ("generation_config.json", r#"{"eos_token_id":[2,9]}"#.into()),
            ("modules.json", json!([module("Transformer", ""), module("Pooling", "1_Pooling"), module("Normalize", "2_Normalize")]).to_string()),
            ("1_Pooling/config.json", r#"{"pooling_mode":"mean","pooling_mode_cls_token":true}"#.into()),
            ("config_sentence_transformers.json", r#"{"prompts":{"query":"Find: "},"default_prompt_name":null}"#.into()),
            ("sentence_bert_config.json", r#"{"max_seq_length":512,"do_lower_case":false}"#.into()),
        ];
        // Configurations have most to damage.
        let text = &mut files[which.saturating_sub(2)].1;
        for (at, character, kind) in edits {
            let at = at.index(text.len().max(1)).min(text.len().saturating_sub(1));
            match kind {
                0 => text.replace_range(at..at + 1, &character),
                1 => text.insert_str(at, &character),
                _ => text.replace_range(at..at + 1, ""),
            }
        }
        fs::create_dir(directory.0.join("1_Pooling")).unwrap();
        for (name, text) in &files {
            directory.write(name, text);
        }
        directory.write("a.safetensors", file(&[("x.weight", "BF16", &[1], &[0, 0])]));
        let _ = directory.open().map(|model| model.vector("x", 1).map(|x| x.len()));
    }

    /// Headers that are JSON and lie.
    #[test]
    fn lying_headers_do_not_panic(start in any::<u64>(), end in any::<u64>(), rows in any::<u64>(), columns in any::<u64>(), dtype in 0..4usize) {
        let dtype = ["U8", "BF16", "F32", "I64"][dtype];
        let header = format!(r#"{{"l.weight":{{"dtype":"{dtype}","shape":[{rows},{columns}],"data_offsets":[{start},{end}]}}}}"#);
        let path = Directory::model(&OFFLINE, &with_header(&header, &[0; 64]));
        let _ = path.open().map(|checkpoint| checkpoint.ternary("l").map(|w| w.dequantize()));
    }
}

#[test]
fn the_shipped_model_opens() {
    let checkpoint = Checkpoint::open(support::repository("assets/tales-22m")).unwrap();
    assert_eq!(checkpoint.linears().len(), 8 * 7);
    let w: PackedTernary = checkpoint.ternary("model.layers.0.mlp.down_proj").unwrap();
    assert_eq!((w.rows(), w.columns()), (512, 1280));
    let norm =
        SafeTensors::open(support::repository("assets/tales-22m/model.safetensors")).unwrap();
    assert_eq!(norm.tensor("model.norm.weight").unwrap().to_f32().unwrap().len(), 512);
}

/// Float weights: of three values, of more; in models that say that they were trained so, and in
/// others.
#[test]
fn float_weights_are_never_quantised_unasked() {
    let scale = 0.40625f32;
    let unpacked: Vec<f32> = [1.0, -1.0, 0.0, 0.0, -1.0, 0.0].map(|v| v * scale).to_vec();
    let masters = [0.5f32, -0.25, 0.125, 0.0, 1.0, -0.5];
    let tensors = file(&[
        ("unpacked.weight", "BF16", &[2, 3], &bf16(&unpacked)),
        ("masters.weight", "BF16", &[2, 3], &bf16(&masters)),
    ]);
    let open = |keys: Value| Directory::model(&config(keys), &tensors).open().unwrap();
    let quantized = |weights: &[f32]| {
        reference::quantize_weights(weights, [2, 3], bitnet::WeightQuantizer::absmean()).unwrap()
    };
    let own =
        PackedTernary::from_values(2, 3, &[1, -1, 0, 0, -1, 0], Scales::Tensor(scale)).unwrap();
    for trained in [
        json!({}),
        json!({"model_type": "llama", "quantization_config": {"quant_method": "bitnet"}}),
        json!({"model_type": "llama", "weight_bits": 1}),
        json!({"model_type": "llama", "architectures": ["BitNetForCausalLM"]}),
    ] {
        let model = open(trained.clone());
        assert_eq!(model.ternary("unpacked").unwrap(), own, "{trained}");
        assert_eq!(model.ternary("masters").unwrap(), quantized(&masters), "{trained}");
    }
    // As transformers: in this mode layers quantize whatever they hold.
    let online = open(
        json!({"quantization_config": {"quant_method": "bitnet", "quantization_mode": "online"}}),
    );
    assert_eq!(online.ternary("unpacked").unwrap(), quantized(&unpacked));
    for plain in
        [json!({"model_type": "llama"}), json!({"model_type": "llama", "quantization_config": {}})]
    {
        let model = open(plain.clone());
        assert_eq!(model.ternary("unpacked").unwrap(), own, "{plain}");
        match model.ternary("masters") {
            Err(error @ Error::Unsupported { .. }) => {
                let text = error.to_string();
                assert!(
                    text.contains("`masters.weight`") && text.contains("ReadOptions::quantize"),
                    "{text}"
                );
            }
            other => panic!("{plain}: {other:?}"),
        }
        assert_eq!(
            model.with_options(ReadOptions::default().quantize(true)).ternary("masters").unwrap(),
            quantized(&masters),
            "{plain}"
        );
    }
}

#[test]
fn tensors_have_the_shapes_that_are_asked_for() {
    let f16: Vec<u8> = [1.0f32, -2.0, 0.5, 4.0, 0.0, 1.5]
        .iter()
        .flat_map(|v| half::f16::from_f32(*v).to_le_bytes())
        .collect();
    let scale = 0.5f32.to_le_bytes();
    let directory = Directory::model(
        &config(json!({"model_type": "llama", "quantization_config": {"quant_method": "bitnet"}})),
        &file(&[
            ("model.embed_tokens.weight", "F16", &[2, 3], &f16),
            ("model.norm.weight", "BF16", &[3], &bf16(&[1.0, 2.0, -3.0])),
            ("model.layers.0.self_attn.inner_attn_ln.weight", "BF16", &[1], &bf16(&[4.0])),
            ("model.layers.0.mlp.ffn_layernorm.weight", "F32", &[1], &scale),
            ("l.weight", "U8", &[1, 2], &[0, 1]),
            ("l.weight_scale", "F32", &[1], &scale),
            ("b.weight", "BF16", &[1, 1], &bf16(&[1.0])),
            ("b.bias", "BF16", &[1], &bf16(&[1.0])),
            ("s.weight", "BF16", &[1, 1], &bf16(&[1.0])),
            ("s.weight_scale", "BF16", &[1], &bf16(&[1.0])),
            ("n.weight", "BF16", &[1, 1], &bf16(&[f32::NAN])),
        ]),
    );
    let model = bitnet_wgpu::formats::open(&directory.0).unwrap();
    // Sub-norms under their older names are sub-norms.
    assert!(model.config().sub_norms && model.contains("model.layers.0.self_attn.attn_sub_norm"));
    assert_eq!(model.vector("model.layers.0.self_attn.attn_sub_norm", 1).unwrap(), [4.0]);
    assert_eq!(model.vector("model.layers.0.mlp.ffn_sub_norm", 1).unwrap(), [0.5]);
    assert_eq!(model.vector("model.norm", 3).unwrap(), [1.0, 2.0, -3.0]);
    let embedding = model.dense("model.embed_tokens", 2, 3).unwrap();
    assert_eq!((embedding.element(), embedding.row(1)), (DenseElement::F16, vec![4.0, 0.0, 1.5]));
    assert_eq!(model.linear("l", 3, 2).unwrap().scales(), &Scales::Tensor(2.0));
    assert!(model.contains("l") && !model.contains("lm_head"));
    let refused = [
        (model.vector("model.norm", 4).map(drop), "[4] is needed"),
        (model.vector("model.embed_tokens", 6).map(drop), "[6] is needed"),
        (model.vector("l", 2).map(drop), "`l.weight`"),
        (model.dense("model.embed_tokens", 3, 2).map(drop), "[3, 2] is needed"),
        (model.dense("l", 1, 2).map(drop), "is U8"),
        (model.dense("lm_head", 1, 2).map(drop), "no tensor `lm_head.weight`"),
        (model.linear("l", 5, 2).map(drop), "that is not 5"),
        (model.linear("l", 4, 3).map(drop), "3 columns"),
        (model.linear("b", 1, 1).map(drop), "has a bias"),
        (model.linear("s", 1, 1).map(drop), "weight_scale"),
        (model.linear("n", 1, 1).map(drop), "finite"),
        (model.linear("model.embed_tokens", 4, 3).map(drop), "2 rows, not 4"),
    ];
    for (result, words) in refused {
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::Format { .. } | Error::Unsupported { .. })
                && error.to_string().contains(words),
            "{error}"
        );
    }
}

#[test]
fn sharded_checkpoints_are_read() {
    let directory = Directory::temporary();
    let write = |name: &str, bytes: &[u8]| fs::write(directory.0.join(name), bytes).unwrap();
    write("config.json", config(json!({})).as_bytes());
    write("a.safetensors", &file(&[("x.weight", "BF16", &[1], &bf16(&[1.0]))]));
    write(
        "b.safetensors",
        &file(&[("y.weight", "BF16", &[1], &bf16(&[2.0])), ("hidden.weight", "BF16", &[0], &[])]),
    );
    let index = |map: Value| {
        write(
            "model.safetensors.index.json",
            json!({ "metadata": {}, "weight_map": map }).to_string().as_bytes(),
        )
    };
    index(json!({"x.weight": "a.safetensors", "y.weight": "b.safetensors"}));
    let model = directory.open().unwrap();
    assert_eq!(
        (model.vector("x", 1).unwrap(), model.vector("y", 1).unwrap()),
        (vec![1.0], vec![2.0])
    );
    assert_eq!(model.names(), ["x.weight", "y.weight"]);
    assert!(
        model.vector("hidden", 0).unwrap_err().to_string().contains("no tensor `hidden.weight`")
    );
    let error = || directory.open().unwrap_err().to_string();
    index(json!({"x.weight": "b.safetensors"}));
    assert!(error().contains("the index places `x.weight` in \"b.safetensors\""), "{}", error());
    index(json!({"x.weight": "c.safetensors"}));
    assert!(matches!(directory.open().unwrap_err(), Error::Io { .. }));
    for hostile in [
        "../a.safetensors",
        "/etc/passwd",
        "sub/a.safetensors",
        "..",
        ".",
        "",
        "a\\b",
        "C:a",
        "a\0",
        "./a.safetensors",
        "a/",
    ] {
        index(json!({ "x.weight": hostile }));
        assert!(error().contains("same directory"), "{hostile:?}: {}", error());
    }
    for damaged in [json!({"x.weight": 3}), json!([]), Value::Null] {
        index(damaged);
        assert!(matches!(directory.open().unwrap_err(), Error::Format { .. }));
    }
    write("model.safetensors.index.json", b"{");
    assert!(matches!(directory.open().unwrap_err(), Error::Format { .. }));
}

/// Whoever truncates a file while it is read gets an error for it, not a signal.
#[test]
fn a_file_that_becomes_shorter_is_an_error() {
    let directory =
        Directory::model("{}", &file(&[("a", "F32", &[2], &[0; 8]), ("b", "F32", &[3], &[1; 12])]));
    let path = directory.0.join("model.safetensors");
    let opened = SafeTensors::open(&path).unwrap();
    assert_eq!(
        (opened.size("b"), opened.shape("b"), opened.size("c")),
        (Some(12), Some(&[3][..]), None)
    );
    assert_eq!(opened.tensor("b").unwrap().bytes, [1; 12]);
    let length = fs::metadata(&path).unwrap().len();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length - 1).unwrap();
    assert!(opened.tensor("a").is_ok());
    match opened.tensor("b") {
        Err(Error::Format { message, .. }) => {
            assert_eq!(
                message,
                format!("had {length} bytes when it was opened, and has {} now", length - 1)
            )
        }
        other => panic!("{other:?}"),
    }
}

/// What MLX writes beside weights that are rotated; hadamard.json, which says it too, may be
/// missing.
#[test]
fn signs_of_a_rotation_are_refused() {
    let tensors = |name| {
        file(&[
            ("l.weight", "BF16", &[1, 1], &bf16(&[1.0])),
            (name, "F32", &[1], &1f32.to_le_bytes()),
        ])
    };
    let error = Directory::model(&OFFLINE, &tensors("l.signs")).open().unwrap_err();
    assert!(
        matches!(&error, Error::Unsupported { message, .. } if message.contains("`l.signs` has weights for rotated")),
        "{error}"
    );
    assert!(Directory::model(&OFFLINE, &tensors("l.signs.weight")).open().is_ok());
}

#[test]
fn headers_are_bounded_in_bytes() {
    let directory = Directory::model(&OFFLINE, &[]);
    let path = directory.0.join("model.safetensors");
    let message = |length: u64| {
        let mut file = fs::File::create(&path).unwrap();
        std::io::Write::write_all(&mut file, &length.to_le_bytes()).unwrap();
        // It takes no room on the disk.
        file.set_len(8 + length).unwrap();
        SafeTensors::open(&path).err().unwrap().to_string()
    };
    let limit = "16777216 are supported";
    assert!(message((16 << 20) + 1).contains(limit), "{}", message((16 << 20) + 1));
    assert!(!message(16 << 20).contains(limit));
}

#[test]
fn whatever_is_no_model_is_refused() {
    use bitnet_wgpu::formats::open;
    let directory = Directory::model(&config(json!({})), &file(&[]));
    assert!(open(directory.0.join("config.json")).is_ok());
    let error = |path: PathBuf| open(path).map(|_| ()).unwrap_err();
    assert!(matches!(error(directory.0.join("nothing")), Error::Io { .. }));
    assert!(matches!(error(directory.0.join("model.safetensors")), Error::Format { .. }));
    fs::remove_file(directory.0.join("model.safetensors")).unwrap();
    assert!(matches!(error(directory.0.clone()), Error::Io { .. }));
}
