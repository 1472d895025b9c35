//! What config.json and generation_config.json say.

use super::{
    families::gemma3,
    file::{ModelDirectory, config, file},
};
use bitnet_wgpu::{
    Error, Result,
    formats::{ModelConfig, ModelFile as _},
    internals::{Activation, FormatError, RopeScaling, config_from_json},
};
use serde_json::{Value, json};
use std::fs;
use support::files::Directory;

pub fn read_config(keys: Value) -> Result<ModelConfig, FormatError> {
    config_from_json(&serde_json::from_str(&config(keys)).unwrap())
}

#[test]
fn configurations_are_read() {
    let bitnet = read_config(json!({})).unwrap();
    let mut expected = bitnet.clone();
    expected.architecture = "bitnet".into();
    (expected.hidden, expected.intermediate, expected.layers, expected.vocab, expected.context) =
        (64, 128, 2, 100, 2048);
    (expected.heads, expected.kv_heads, expected.head_dim) = (4, 2, 16);
    (expected.eps, expected.rope_theta, expected.rope_scaling) =
        (1e-5, 500_000.0, RopeScaling::None);
    (expected.activation, expected.sub_norms, expected.tied_head) =
        (Activation::Relu2, true, false);
    (expected.bos, expected.eos) = (Some(1), vec![2]);
    assert_eq!(bitnet, expected);
    let llama = read_config(json!({
        "model_type": "llama", "num_key_value_heads": null, "head_dim": 32, "tie_word_embeddings": true, "eos_token_id": [3, 4],
        "rms_norm_eps": 1e-6, "max_position_embeddings": 77, "torch_dtype": "bfloat16", "dtype": 3,
    }));
    expected.architecture = "llama".into();
    (expected.kv_heads, expected.head_dim, expected.context) = (4, 32, 77);
    (expected.eps, expected.rope_theta) = (1e-6, 10_000.0);
    (expected.activation, expected.sub_norms, expected.tied_head) = (Activation::Silu, false, true);
    expected.eos = vec![3, 4];
    assert_eq!(llama.unwrap(), expected);
    // What the class assumes may be beyond a small vocabulary: then there is no such token.
    let defaults = read_config(json!({"bos_token_id": null, "eos_token_id": null})).unwrap();
    assert_eq!((defaults.bos, defaults.eos), (None, vec![]));
    let written =
        read_config(json!({"bos_token_id": 128_000, "eos_token_id": [128_001, 5]})).unwrap();
    assert_eq!((written.bos, written.eos), (None, vec![5]));
    let large =
        read_config(json!({"bos_token_id": null, "eos_token_id": null, "vocab_size": 128_256}))
            .unwrap();
    assert_eq!((large.bos, large.eos), (Some(128_000), vec![128_001]));
    let mut null: Value = serde_json::from_str(&config(json!({"vocab_size": 128_256}))).unwrap();
    (null["bos_token_id"], null["eos_token_id"]) = (Value::Null, Value::Null);
    let null = config_from_json(&null).unwrap();
    assert_eq!((null.bos, null.eos), (None, vec![]));
}

#[test]
fn rotary_parameters_are_read_in_both_spellings() {
    let rope =
        |keys: Value| read_config(keys).map(|config| (config.rope_theta, config.rope_scaling));
    let llama3 = json!({
        "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"
    });
    let expected = RopeScaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, context: 8192.0 };
    assert_eq!(rope(json!({"rope_theta": 1e6})), Ok((1e6, RopeScaling::None)));
    assert_eq!(rope(json!({"rope_theta": 1e6, "rope_scaling": llama3})), Ok((1e6, expected)));
    assert_eq!(
        rope(json!({"rope_scaling": {"type": "linear", "factor": 2}})),
        Ok((500_000.0, RopeScaling::Linear(2.0)))
    );
    assert_eq!(
        rope(json!({"rope_parameters": {"rope_theta": 5.0, "rope_type": "default"}})),
        Ok((5.0, RopeScaling::None))
    );
    assert_eq!(rope(json!({"rope_theta": 7.0, "rope_parameters": llama3})), Ok((7.0, expected)));
    for (keys, words) in [
        (json!({"rope_scaling": {"type": "dynamic", "factor": 2}}), "`dynamic`"),
        (json!({"rope_scaling": {"type": "yarn", "factor": 0}}), "out of range"),
        (
            json!({"rope_scaling": {"type": "yarn", "factor": 2, "original_max_position_embeddings": 0}}),
            "out of range",
        ),
        (
            json!({"rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 2}}),
            "the rotary base is 1",
        ),
        (json!({"rope_scaling": {"type": "yarn", "factor": 2, "truncate": 1}}), "truncate"),
        (json!({"rope_scaling": {"type": "linear"}}), "no factor"),
        (json!({"rope_scaling": {"type": "linear", "factor": 0}}), "linear by 0"),
        (json!({"rope_scaling": {"type": "linear", "factor": 1e-60}}), "linear by 0"),
        (json!({"rope_scaling": 3}), "rope_scaling"),
        (json!({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}), "`full_attention`"),
        (
            json!({"rope_theta": 1e6, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}),
            "rope_theta is 1000000, and 10000",
        ),
        (json!({"rope_theta": 0}), "rotary base"),
        (json!({"rope_theta": 1e300}), "rope_theta"),
        (json!({"rope_theta": "10000"}), "rope_theta"),
    ] {
        let error = rope(keys).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn yarn_is_read() {
    let yarn = |keys: Value| {
        let mut all =
            json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192});
        keys.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
        read_config(json!({"rope_scaling": all, "max_position_embeddings": 32_768}))
            .unwrap()
            .rope_scaling
    };
    // 0.1·ln 4 + 1, as transformers has it.
    let usual = RopeScaling::Yarn {
        factor: 4.0,
        context: 8192.0,
        attention: 1.138_629_4,
        fast: 32.0,
        slow: 1.0,
        truncate: true,
    };
    assert_eq!(yarn(json!({})), usual);
    assert_eq!(yarn(json!({"factor": null, "beta_fast": 0, "attention_factor": null})), usual);
    let given =
        yarn(json!({"attention_factor": 0.9, "beta_fast": 16, "beta_slow": 2, "truncate": false}));
    assert_eq!(
        given,
        RopeScaling::Yarn {
            factor: 4.0,
            context: 8192.0,
            attention: 0.9,
            fast: 16.0,
            slow: 2.0,
            truncate: false
        }
    );
    // Where it is not said, the original context is the model's, and a factor below 1 changes
    // nothing of cosines.
    let short = yarn(json!({"original_max_position_embeddings": null, "factor": 0.5}));
    assert_eq!(
        short,
        RopeScaling::Yarn {
            factor: 0.5,
            context: 32_768.0,
            attention: 1.0,
            fast: 32.0,
            slow: 1.0,
            truncate: true
        }
    );
    match yarn(json!({"factor": 8.0, "mscale": 0.7, "mscale_all_dim": 1.3})) {
        RopeScaling::Yarn { attention, .. } => {
            approx::assert_abs_diff_eq!(attention, 0.901_784, epsilon = 1e-6)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn rotary_parameters_that_disagree_are_refused() {
    let yarn = json!({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 8192});
    let plain = json!({"rope_type": "default", "rope_theta": 1e6});
    for (keys, text) in [
        (json!({"rope_parameters": plain, "rope_scaling": yarn}), "differ: YaRN by 4 and none"),
        (
            json!({"rope_scaling": yarn, "original_max_position_embeddings": 4096}),
            "original_max_position_embeddings is 4096",
        ),
        (
            json!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}),
            "partial_rotary_factor 0.5",
        ),
    ] {
        let error = read_config(keys).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    assert!(read_config(json!({"rope_parameters": yarn, "rope_scaling": yarn, "original_max_position_embeddings": 8192})).is_ok());
}

#[test]
fn impossible_configurations_are_refused() {
    let sizes = [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
    ];
    for key in sizes {
        for absurd in [
            json!(0),
            json!(-1),
            json!(1.5),
            json!("64"),
            json!([]),
            json!((1 << 24) + 1),
            json!(u64::MAX),
        ] {
            let error = read_config(json!({ key: absurd })).unwrap_err().to_string();
            assert!(error.contains(key), "{key}: {error}");
        }
    }
    for (keys, words) in [
        (json!({"model_type": "qwen2"}), "`qwen2`"),
        (json!({"model_type": "gemma3"}), "`gemma3` is not supported: it takes images"),
        (json!({"model_type": "qwen3", "use_sliding_window": true}), "use_sliding_window"),
        (
            json!({"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]}),
            "sliding_attention",
        ),
        (json!({"model_type": null}), "model_type"),
        (json!({"hidden_size": null}), "hidden_size"),
        (json!({"hidden_act": "gelu"}), "`gelu`"),
        (json!({"num_key_value_heads": 3}), "4 heads do not divide into 3"),
        (json!({"head_dim": 15}), "odd"),
        (json!({"num_attention_heads": 128, "num_key_value_heads": 128}), "head size"),
        (json!({"num_hidden_layers": 4097}), "4097 layers"),
        (
            json!({"num_attention_heads": 1 << 24, "num_key_value_heads": 1, "head_dim": 1 << 24}),
            "over 16777216 features",
        ),
        (json!({"attention_bias": true}), "attention_bias"),
        (json!({"mlp_bias": true}), "mlp_bias"),
        (
            json!({"quantization_config": {"use_rms_norm": true, "rms_norm_eps": 1e-5}}),
            "use_rms_norm",
        ),
        (
            json!({"model_type": "llama", "rms_norm_eps": 1e-5, "quantization_config": {"use_rms_norm": true}}),
            "one for all",
        ),
        (json!({"model_type": "qwen3", "is_causal": false}), "only causal attention"),
        (json!({"use_bidirectional_attention": true}), "only causal attention"),
        (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor"),
        (json!({"rms_norm_eps": -1.0}), "epsilon"),
        (json!({"tie_word_embeddings": 1}), "tie_word_embeddings"),
        (json!({"bos_token_id": 100}), "token 100"),
        (json!({"bos_token_id": [1, 2]}), "bos_token_id"),
        (json!({"eos_token_id": [1, 100]}), "token 100"),
        (json!({"eos_token_id": -1}), "-1 is not a token id"),
        (json!({"eos_token_id": 1u64 << 40}), "not a token id"),
    ] {
        let error = read_config(keys.clone()).unwrap_err().to_string();
        assert!(error.contains(words), "{keys}: {error}");
    }
    assert!(config_from_json(&json!([])).unwrap_err().to_string().contains("object"));
}

/// A model with recurrent layers, with keys that are set or removed by null.
fn hybrid(keys: Value) -> Value {
    let path = support::models::directory("qwen35").join("config.json");
    let mut json: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    json.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    json
}

#[test]
fn recurrent_layers_are_read_and_checked() {
    let expected = config_from_json(&hybrid(json!({}))).unwrap();
    let own = expected.hybrid.clone().unwrap();
    assert_eq!((own.recurrent, own.rotary), (vec![true, true, false, true], 8));
    assert_eq!((own.kernel, own.key_heads, own.value_heads), (4, 2, 6));
    assert_eq!((own.key_dim, own.value_dim, own.tiled, own.regrouped), (12, 10, false, false));
    let other = |keys| config_from_json(&hybrid(keys)).map(|c| c.hybrid.unwrap());
    let period = other(json!({"layer_types": null, "full_attention_interval": 3})).unwrap();
    assert_eq!(period.recurrent, [true, true, false, true]);
    let rope = json!({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}});
    assert!(other(rope).unwrap_err().to_string().contains("5 rotary features"));
    // With the text model's keys in an object of their own.
    let text = json!({"model_type": "qwen3_5", "text_config": hybrid(json!({}))});
    let nested = config_from_json(&text).unwrap();
    assert_eq!((&nested.hybrid, nested.hidden), (&expected.hybrid, expected.hidden));
    for (keys, words) in [
        (json!({"layer_types": ["full_attention"]}), "1 entries"),
        (json!({"layer_types": ["linear_attention", 1, 2, 3]}), "layer_types has 1"),
        (json!({"layer_types": 3}), "layer_types is 3"),
        (
            json!({"layer_types": ["linear_attention", "linear_attention", "linear_attention", "linear_attention"]}),
            "no layer is attention",
        ),
        (json!({"linear_conv_kernel_dim": 17}), "convolution is 17"),
        (json!({"linear_conv_kernel_dim": 0}), "linear_conv_kernel_dim"),
        (json!({"linear_key_head_dim": 512}), "key head size is 512"),
        (json!({"linear_num_value_heads": 5}), "5 recurrent value heads"),
        (json!({"linear_num_value_heads": 1 << 24}), "features; 16777216 are supported"),
        (json!({"attn_output_gate": false}), "attn_output_gate"),
        (json!({"partial_rotary_factor": 0.5}), "several values"),
        (json!({"rope_parameters": {"partial_rotary_factor": 0.0}}), "partial_rotary_factor is 0"),
        (
            json!({"rope_parameters": {"partial_rotary_factor": 1.5}}),
            "partial_rotary_factor is 1.5",
        ),
        (
            json!({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.4}}),
            "linear by 2",
        ),
        (json!({"quantization": {"bits": 2, "group_size": 128}}), "files of MLX"),
        (json!({"vision_config": {}}), "has a vision_config"),
        (json!({"num_experts": 4}), "num_experts is 4"),
    ] {
        let error = config_from_json(&hybrid(keys.clone())).unwrap_err().to_string();
        assert!(error.contains(words), "{keys}: {error}");
    }
}

/// By their names, and with what is missing.
#[test]
fn unsupported_families_are_named() {
    let (experts, images) = ("mixtures of experts", "it takes images");
    for (name, words) in [
        ("prism_hadamard_qwen35", &["in GGUF files only"][..]),
        ("qwen3_5_moe", &[experts]),
        ("qwen3_next", &["are fused", experts]),
        ("mixtral", &[experts]),
        ("qwen3_vl", &[images]),
        ("qwen3_vl_moe", &[images, experts]),
        ("gemma3", &[images, "`gemma3_text`"]),
    ] {
        match read_config(json!({"model_type": name})) {
            Err(FormatError::Unsupported(text)) => {
                assert!(
                    text.starts_with(&format!("model_type `{name}` is not supported: ")),
                    "{text}"
                );
                assert!(words.iter().all(|word| text.contains(word)), "{text}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    // Under the name of a family that is done.
    for (keys, words) in [
        (json!({"model_type": "minicpm", "num_experts": 8}), "num_experts is 8: mixtures"),
        (
            json!({"model_type": "llama", "num_local_experts": 4}),
            "num_local_experts is 4: mixtures",
        ),
        (
            json!({"model_type": "qwen3", "n_routed_experts": "x"}),
            "n_routed_experts is \"x\": mixtures",
        ),
        (json!({"model_type": "qwen3", "vision_config": {}}), "has a vision_config"),
    ] {
        match read_config(keys.clone()) {
            Err(FormatError::Unsupported(text)) => assert!(text.contains(words), "{keys}: {text}"),
            other => panic!("{keys}: {other:?}"),
        }
    }
    assert!(read_config(json!({"model_type": "minicpm", "num_experts": 0})).is_ok());
}

/// What is known and not done is told apart from what is wrong.
#[test]
fn sound_models_that_cannot_run_are_unsupported() {
    for keys in [
        json!({"model_type": "qwen2"}),
        json!({"model_type": "gemma3"}),
        gemma3(json!({"use_bidirectional_attention": true})),
        gemma3(json!({"final_logit_softcapping": 30.0})),
        gemma3(json!({"rope_parameters": {"rope_theta": 1e6}})),
        json!({"quantization": {"bits": 3, "group_size": 64}}),
        json!({"hidden_act": "gelu"}),
        json!({"attention_bias": true}),
        json!({"quantization_config": {"use_rms_norm": true}}),
        json!({"quantization_config": {"quant_method": "gptq"}}),
        json!({"partial_rotary_factor": 0.5}),
        json!({"rope_scaling": {"type": "dynamic", "factor": 2}}),
        json!({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}),
    ] {
        let directory = Directory::model(&config(keys.clone()), &file(&[]));
        assert!(matches!(directory.open().unwrap_err(), Error::Unsupported { .. }), "{keys}");
    }
    let directory = Directory::model(
        &config(json!({"quantization_config": {"linear_class": "other"}})),
        &file(&[]),
    );
    assert!(matches!(directory.open().unwrap_err(), Error::Unsupported { .. }));
    let wrong = Directory::model(&config(json!({"hidden_size": 0})), &file(&[]));
    assert!(matches!(wrong.open().unwrap_err(), Error::Format { .. }));
}

/// A layer that stays in floats would be quantized as the others are. The head and the embedding
/// always stay so.
#[test]
fn layers_that_are_not_converted_are_refused() {
    let listed = |list: Value| {
        read_config(
            json!({"quantization_config": {"quant_method": "bitnet", "modules_to_not_convert": list}}),
        )
    };
    for ends in [
        json!(null),
        json!([]),
        json!(["lm_head"]),
        json!(["model.embed_tokens", "embed_tokens", "lm_head"]),
    ] {
        assert!(listed(ends.clone()).is_ok(), "{ends}");
    }
    for name in ["model.layers.0.mlp.down_proj", "o_proj", "lm_head.dense", ""] {
        match listed(json!(["lm_head", name])) {
            Err(FormatError::Unsupported(text)) => {
                assert!(text.contains(&format!("modules_to_not_convert has `{name}`")), "{text}")
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    for wrong in [json!("lm_head"), json!(["lm_head", 3]), json!({})] {
        assert!(
            matches!(listed(wrong), Err(FormatError::Damaged(text)) if text.contains("a list of strings is needed"))
        );
    }
}

#[test]
fn settings_of_mlx_are_checked() {
    for (keys, words) in [
        (json!({"quantization": 3}), "quantization is 3"),
        (json!({"quantization": {"bits": 6, "group_size": 128}}), "bits 6"),
        (json!({"quantization": {"bits": 2, "group_size": 100}}), "group_size 100"),
        (json!({"quantization": {"bits": 2, "group_size": 128, "mode": "mxfp4"}}), "mxfp4"),
        (
            json!({"quantization": {"bits": 2, "group_size": 128, "lm_head": {"bits": 3, "group_size": 128}}}),
            "`lm_head`: bits 3",
        ),
        (
            json!({"quantization": {"bits": 2, "group_size": 128, "lm_head": {"bits": 4}}}),
            "`lm_head`: group_size null",
        ),
        (
            json!({"quantization": {"bits": 2, "group_size": 128, "lm_head": {"bits": 4, "group_size": 32, "mode": "nvfp4"}}}),
            "`lm_head`: mode \"nvfp4\"",
        ),
    ] {
        let error =
            Directory::model(&config(keys.clone()), &file(&[])).open().unwrap_err().to_string();
        assert!(error.contains(words), "{keys}: {error}");
    }
}

#[test]
fn generation_config_ends_texts_too() {
    let directory = Directory::model(&config(json!({})), &file(&[]));
    let write = |text: &str| fs::write(directory.0.join("generation_config.json"), text).unwrap();
    write(r#"{"eos_token_id":[2,9]}"#);
    assert_eq!(directory.open().unwrap().config().eos, [2, 9]);
    for none in ["{}", r#"{"eos_token_id":null}"#, r#"{"eos_token_id":128001}"#] {
        write(none);
        assert_eq!(directory.open().unwrap().config().eos, [2]);
    }
    write(
        r#"{"do_sample":true,"temperature":0.6,"top_p":0.9,"repetition_penalty":1.1,"max_new_tokens":77,"top_k":null}"#,
    );
    let generation = directory.open().unwrap().config().generation.clone();
    assert_eq!(
        (generation.sample, generation.temperature, generation.top_p),
        (Some(true), Some(0.6), Some(0.9))
    );
    assert_eq!(
        (generation.top_k, generation.min_p, generation.repetition_penalty),
        (None, None, Some(1.1))
    );
    assert_eq!(generation.max_tokens, Some(77));
    let bad = [
        "{",
        "[]",
        r#"{"eos_token_id":-1}"#,
        r#"{"eos_token_id":"x"}"#,
        r#"{"temperature":"x"}"#,
        r#"{"top_k":-1}"#,
        r#"{"do_sample":1}"#,
        r#"{"top_p":1e999}"#,
    ];
    for bad in bad {
        write(bad);
        assert!(directory.open().unwrap_err().to_string().contains("generation_config.json"));
    }
}
