//! What config.json of each model family says.

use super::configurations::read_config;
use bitnet_wgpu::internals::{Activation, ModelConfigInternals as _, RopeScaling};
use serde_json::{Value, json};

#[test]
fn qwen3_has_the_defaults_of_transformers() {
    let qwen3 = |keys: Value| {
        let mut all = json!({"model_type": "qwen3", "bos_token_id": null, "eos_token_id": null, "num_key_value_heads": 4});
        keys.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
        read_config(all).unwrap()
    };
    let config = qwen3(json!({}));
    assert_eq!(
        (config.head_dim, config.context, config.eps, config.rope_theta),
        (128, 32_768, 1e-6, 10_000.0)
    );
    assert_eq!(
        (config.activation, config.sub_norms, config.qk_norms(), config.tied_head),
        (Activation::Silu, false, true, false)
    );
    assert_eq!((config.bos, config.eos), (None, vec![]));
    assert_eq!(qwen3(json!({"num_attention_heads": 32, "num_key_value_heads": null})).kv_heads, 32);
    // Activations are quantized where BitNet's keys say so, and never by MLX.
    assert!(!config.quantized_activations);
    assert!(
        qwen3(json!({"quantization_config": {"quant_method": "bitnet"}})).quantized_activations
    );
    assert!(qwen3(json!({"architectures": ["BitNetQwen3ForCausalLM"]})).quantized_activations);
    let mlx = json!({"bits": 2, "group_size": 128, "mode": "affine", "lm_head": false, "model.embed_tokens": {"bits": 2, "group_size": 128}});
    assert!(!qwen3(json!({"quantization": mlx})).quantized_activations);
    let llama = json!({"model_type": "llama", "quantization": mlx, "quantization_config": mlx});
    assert!(!read_config(llama).unwrap().quantized_activations);
    assert!(read_config(json!({"model_type": "llama"})).unwrap().quantized_activations);
}

/// The keys and defaults of transformers' Qwen3-MoE.
#[test]
fn qwen3_moe_reads_experts() {
    let moe = |keys: Value| {
        let mut all = json!({"model_type": "qwen3_moe", "num_key_value_heads": 4});
        keys.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
        read_config(all)
    };
    let config = moe(json!({"moe_intermediate_size": 24})).unwrap();
    let experts = config.experts.unwrap();
    assert_eq!((experts.count, experts.used, experts.normalized), (128, 8, false));
    assert_eq!((config.intermediate, config.qk_norms()), (24, true));
    let keys = json!({"num_experts": 5, "num_experts_per_tok": 5, "norm_topk_prob": true, "mlp_only_layers": [], "decoder_sparse_step": 1});
    let experts = moe(keys).unwrap().experts.unwrap();
    assert_eq!((experts.count, experts.used, experts.normalized), (5, 5, true));
    for (keys, words) in [
        (json!({"num_experts": 0}), "num_experts is 0"),
        (json!({"num_experts": 513}), "513 experts; 1 to 512"),
        (json!({"num_experts": 4, "num_experts_per_tok": 5}), "5 of 4 experts"),
        (json!({"num_experts_per_tok": 0}), "num_experts_per_tok is 0"),
        (json!({"num_experts_per_tok": 17}), "17 of 128 experts"),
        (json!({"moe_intermediate_size": 0}), "moe_intermediate_size is 0"),
        (json!({"norm_topk_prob": 1}), "norm_topk_prob is 1"),
        (json!({"mlp_only_layers": [0]}), "mlp_only_layers"),
        (json!({"decoder_sparse_step": 2}), "decoder_sparse_step"),
        (json!({"shared_expert_intermediate_size": 8}), "shared experts are not supported"),
        (
            json!({"quantization_config": {"quant_method": "bitnet", "use_rms_norm": true}}),
            "experts with norms before linear layers",
        ),
    ] {
        let error = moe(keys.clone()).unwrap_err().to_string();
        assert!(error.contains(words), "{keys}: {error}");
    }
}

/// The factors of published models.
#[test]
fn minicpm_has_its_factors() {
    let minicpm = |keys: Value| {
        let mut all = json!({"model_type": "minicpm", "num_hidden_layers": 4, "max_position_embeddings": 4096});
        keys.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
        read_config(all)
    };
    let config =
        minicpm(json!({"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16})).unwrap();
    assert_eq!(
        (config.embedding_scale, config.residual_scale, config.logit_scale),
        (12.0, 0.7, 0.25)
    );
    assert!(!config.quantized_activations && !config.qk_norms() && config.rope_factors.is_empty());
    let plain = read_config(json!({"model_type": "llama", "scale_emb": 12})).unwrap();
    assert_eq!((plain.embedding_scale, plain.residual_scale, plain.logit_scale), (1.0, 1.0, 1.0));
    let (ones, twos) = (vec![1.0; 8], vec![2.0; 8]);
    let longrope = |short: &Vec<f64>, long: &Vec<f64>, original: usize| {
        let scaling = json!({"rope_type": "longrope", "short_factor": short, "long_factor": long, "original_max_position_embeddings": original});
        minicpm(json!({"rope_scaling": scaling, "scale_emb": 12}))
    };
    // What a text up to the original context has; beyond it only where that is the same.
    let short = longrope(&ones, &twos, 4096).unwrap();
    assert_eq!(
        (short.rope_scaling, short.rope_factors),
        (RopeScaling::LongRope { attention: 1.0 }, vec![1.0; 8])
    );
    let beyond = longrope(&twos, &twos, 64).unwrap();
    // sqrt(1 + ln 64 / ln 64)
    assert_eq!(
        (beyond.rope_scaling, beyond.rope_factors.clone()),
        (RopeScaling::LongRope { attention: 2f32.sqrt() }, vec![2.0; 8])
    );
    // The original context may lie beside the factors, and both spellings may be there.
    let list = |factors: &Vec<f64>| json!({"rope_type": "longrope", "short_factor": factors, "long_factor": factors});
    let outside =
        minicpm(json!({"rope_scaling": list(&twos), "original_max_position_embeddings": 64}))
            .unwrap();
    assert_eq!(
        (outside.rope_scaling, &outside.rope_factors),
        (beyond.rope_scaling, &beyond.rope_factors)
    );
    let within = |original: usize| {
        let mut scaling = list(&twos);
        scaling["original_max_position_embeddings"] = original.into();
        scaling
    };
    let both = minicpm(json!({"rope_scaling": within(64), "rope_parameters": within(64), "original_max_position_embeddings": 64})).unwrap();
    assert_eq!(both.rope_factors, beyond.rope_factors);
    // The factor of attention follows from both contexts, and from nothing else that would say
    // another.
    let with = |key: &str, value: f64| {
        let mut scaling = within(64);
        scaling[key] = value.into();
        scaling
    };
    let attention =
        |scaling: Value| match minicpm(json!({"rope_scaling": scaling})).unwrap().rope_scaling {
            RopeScaling::LongRope { attention } => attention,
            other => panic!("{other:?}"),
        };
    let usual = (1.0 + 64f64.ln() / 64f64.ln()).sqrt() as f32;
    assert_eq!([attention(within(64)), attention(with("factor", 64.0))], [usual; 2]);
    let mut both = with("factor", 8.0);
    both["attention_factor"] = 1.5.into();
    assert_eq!([attention(both), attention(with("attention_factor", 1.5))], [1.5; 2]);
    let mut other = within(64);
    other["short_factor"] = json!(ones);
    other["long_factor"] = json!(ones);
    for (config, words) in [
        (
            minicpm(json!({"rope_scaling": within(64), "original_max_position_embeddings": 128})),
            "is 128, but 64 in the rotary parameters",
        ),
        (
            minicpm(json!({"rope_scaling": within(64), "rope_parameters": other})),
            "different values of `short_factor`",
        ),
        (longrope(&ones, &twos, 64), "other factors beyond 64"),
        (
            minicpm(json!({"rope_scaling": with("factor", 8.0)})),
            "the factor 8 and contexts of 64 and 4096 tokens",
        ),
        (longrope(&ones[1..].to_vec(), &twos, 4096), "7 rotary factors; 8 positive"),
        (longrope(&vec![0.0; 8], &twos, 4096), "8 rotary factors; 8 positive"),
        (
            minicpm(
                json!({"rope_scaling": {"rope_type": "longrope", "original_max_position_embeddings": 64}}),
            ),
            "no list of numbers short_factor",
        ),
        (
            minicpm(json!({"rope_scaling": {"rope_type": "longrope"}})),
            "original_max_position_embeddings",
        ),
        (minicpm(json!({"scale_emb": 0})), "scaled by 0"),
        (minicpm(json!({"scale_depth": "1.4"})), "scale_depth"),
        (minicpm(json!({"sparse_config": {"dense_len": 8192}})), "sparse_config"),
    ] {
        let error = config.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn granite_has_its_factors() {
    let granite = |keys: Value| {
        let mut all = json!({"model_type": "granite"});
        all.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        read_config(all)
    };
    let config = granite(json!({
        "embedding_multiplier": 12, "attention_multiplier": 0.015625, "residual_multiplier": 0.22, "logits_scaling": 8,
    }))
    .unwrap();
    // Heads of 16.
    assert_eq!((config.embedding_scale, config.query_scale), (12.0, 0.0625));
    assert_eq!((config.residual_scale, config.logit_scale), (0.22, 0.125));
    assert!(!config.quantized_activations && !config.qk_norms() && config.local.is_none());
    let plain = granite(json!({})).unwrap();
    assert_eq!((plain.embedding_scale, plain.query_scale, plain.logit_scale), (1.0, 4.0, 1.0));
    assert!(
        granite(json!({"quantization_config": {"quant_method": "bitnet"}}))
            .unwrap()
            .quantized_activations
    );
    for (keys, words) in [
        (json!({"attention_multiplier": 0}), "scaled by 0"),
        (json!({"logits_scaling": "8"}), "logits_scaling"),
        (json!({"num_local_experts": 8}), "mixtures of experts"),
        (json!({"attention_bias": true}), "attention_bias"),
    ] {
        let error = granite(keys).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

pub fn gemma3(keys: serde_json::Value) -> serde_json::Value {
    let mut all = json!({"model_type": "gemma3_text", "hidden_act": null, "tie_word_embeddings": null, "num_hidden_layers": 7});
    all.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    all
}

#[test]
fn gemmas_have_layers_that_see_a_window() {
    let read = |keys| read_config(gemma3(keys)).unwrap();
    let usual = read(json!({}));
    assert_eq!(
        (usual.activation, usual.qk_norms(), usual.tied_head),
        (Activation::GeluTanh, true, true)
    );
    assert_eq!((usual.rope_theta, usual.quantized_activations), (1e6, false));
    assert_eq!(usual.embedding_scale, (usual.hidden as f32).sqrt());
    let local = usual.local.unwrap();
    assert_eq!((local.window, local.rope_theta), (4096, 1e4));
    assert_eq!(local.layers, [true, true, true, true, true, false, true]);
    // As older transformers wrote it, and as newer do.
    let older = read(json!({
        "sliding_window": 9, "sliding_window_pattern": 3, "rope_theta": 5e5, "rope_local_base_freq": 500.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }));
    let newer = read(json!({
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention",
            "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
    }));
    assert_eq!(older, newer);
    assert_eq!((newer.rope_theta, newer.rope_scaling), (5e5, RopeScaling::Linear(8.0)));
    let local = newer.local.unwrap();
    assert_eq!((local.window, local.rope_theta, local.layers[2]), (9, 500.0, false));
    assert!(read(json!({"layer_types": vec!["full_attention"; 7]})).local.is_none());
    for (keys, words) in [
        (json!({"layer_types": ["sliding_attention"]}), "has 1 entries"),
        (json!({"layer_types": ["chunked_attention"]}), "layer_types has \"chunked_attention\""),
        (json!({"layer_types": 3}), "a list is needed"),
        (json!({"sliding_window": 0}), "sliding_window"),
        (json!({"sliding_window_pattern": 0}), "sliding_window_pattern"),
        (json!({"rope_local_base_freq": 0.5}), "the rotary base of a window is 0.5"),
        (
            json!({"rope_local_base_freq": 500.0, "rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_theta": 400.0}}}),
            "rope_local_base_freq is 500, and the rope_theta of sliding_attention 400",
        ),
        (
            json!({"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}}),
            "`linear` of sliding_attention",
        ),
        (json!({"rope_parameters": {"rope_theta": 1e6}}), "rope_parameters has `rope_theta`"),
        (json!({"query_pre_attn_scalar": 0.0}), "query_pre_attn_scalar is 0"),
        (json!({"attn_logit_softcapping": 50.0}), "attn_logit_softcapping is not supported"),
        (json!({"use_bidirectional_attention": true}), "attention to tokens that follow"),
        (json!({"hidden_activation": "gelu"}), "`gelu`"),
    ] {
        let error = read_config(gemma3(keys.clone())).unwrap_err().to_string();
        assert!(error.contains(words), "{keys}: {error}");
    }
}
