//! Mixtures of experts in each file format: one model's weights, whichever file has them.

use super::gguf::Maker;
use bitnet_wgpu::{
    Error, Result,
    formats::{Checkpoint, GgufType, ModelConfig, ModelFile, open, write_gguf, write_packed},
    internals::{CheckpointInternals as _, GgufModel, layer_tensors},
};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};
use support::{files::Directory, models::directory};

/// The matrices and vectors of a layer, as products take them.
fn layer(file: &dyn ModelFile, config: &ModelConfig) -> Result<Vec<Vec<u32>>> {
    let tensors = layer_tensors(config);
    let name = |part: &str| format!("model.layers.1.{part}");
    let mut all = Vec::new();
    for matrix in tensors.matrices().into_iter().flatten() {
        let w = file.linear(&name(matrix.name), matrix.rows, matrix.columns)?;
        assert_eq!((w.rows(), w.columns()), (matrix.rows, matrix.columns));
        all.push(w.dequantize().iter().map(|v| v.to_bits()).collect());
    }
    for gains in tensors.vectors() {
        let numbers = match gains.rows {
            None => file.vector(&name(gains.name), gains.len)?,
            Some(rows) => {
                let matrix = file.dense(&name(gains.name), rows, gains.len / rows)?;
                (0..rows).flat_map(|row| matrix.row(row)).collect()
            }
        };
        all.push(numbers.iter().map(|v| v.to_bits()).collect());
    }
    Ok(all)
}

/// Bytes of a tensor in bf16, by its name.
fn bytes(checkpoint: &Checkpoint, name: &str) -> (Vec<usize>, Vec<u8>) {
    let tensor = checkpoint.tensor(name).unwrap();
    (tensor.shape.to_vec(), tensor.bytes.clone())
}

/// The matrices of a projection of all experts, one after another.
fn stacked(checkpoint: &Checkpoint, layer: usize, part: &str, count: usize) -> (Vec<u64>, Vec<u8>) {
    let each = (0..count).map(|expert| {
        bytes(checkpoint, &format!("model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"))
    });
    let (shapes, all): (Vec<_>, Vec<_>) = each.unzip();
    let shape = [&[count][..], &shapes[0]].concat();
    (shape.iter().map(|&size| size as u64).collect(), all.concat())
}

const BF16: u32 = 30;

/// The model as a GGUF file, as llama.cpp's converter lays it out.
fn gguf(name: &str, architecture: &str) -> (Checkpoint, Maker) {
    let checkpoint = Checkpoint::open(directory(name)).unwrap();
    let c = checkpoint.config().clone();
    let experts = c.experts.unwrap();
    let key = |name: &str| format!("{architecture}.{name}");
    let mut maker = Maker::configured(architecture, &c)
        .number(&key("expert_count"), experts.count as u32)
        .number(&key("expert_used_count"), experts.used as u32)
        .number(&key("expert_feed_forward_length"), c.intermediate as u32);
    let mut put = |from: &str, to: &str| {
        let (shape, bytes) = bytes(&checkpoint, from);
        let shape: Vec<u64> = shape.iter().map(|&size| size as u64).collect();
        let next = std::mem::take(&mut maker);
        maker = next.tensor(to, &shape, BF16, &bytes);
    };
    let embedding = if name == "maple" { "word_embeddings" } else { "embed_tokens" };
    put(&format!("model.{embedding}.weight"), "token_embd.weight");
    put("model.norm.weight", "output_norm.weight");
    put("lm_head.weight", "output.weight");
    for layer in 0..c.layers {
        for (from, to) in [
            ("input_layernorm", "attn_norm"),
            ("post_attention_layernorm", "ffn_norm"),
            ("self_attn.q_norm", "attn_q_norm"),
            ("self_attn.k_norm", "attn_k_norm"),
            ("self_attn.q_proj", "attn_q"),
            ("self_attn.k_proj", "attn_k"),
            ("self_attn.v_proj", "attn_v"),
            ("self_attn.o_proj", "attn_output"),
            ("mlp.gate", "ffn_gate_inp"),
        ] {
            put(
                &format!("model.layers.{layer}.{from}.weight"),
                &format!("blk.{layer}.{to}.weight"),
            );
        }
    }
    for layer in 0..c.layers {
        for part in ["gate", "up", "down"] {
            let (shape, bytes) = stacked(&checkpoint, layer, part, experts.count);
            maker =
                maker.tensor(&format!("blk.{layer}.ffn_{part}_exps.weight"), &shape, BF16, &bytes);
        }
    }
    (checkpoint, maker)
}

fn opened(maker: &Maker) -> Result<GgufModel> {
    let folder = Directory::temporary();
    GgufModel::open(folder.write("model.gguf", maker.bytes()))
}

#[test]
fn gguf_files_have_the_experts_of_directories() {
    let (checkpoint, maker) = gguf("qwen3_moe", "qwen3moe");
    let model = opened(&maker).unwrap();
    model.check_unused().unwrap();
    let config = checkpoint.config();
    assert_eq!(ModelFile::config(&model).experts, config.experts);
    assert_eq!(ModelFile::config(&model).intermediate, config.intermediate);
    assert_eq!(layer(&model, config).unwrap(), layer(&checkpoint, config).unwrap());
}

#[test]
fn maple_is_the_same_in_gguf_files() {
    let (checkpoint, maker) = gguf("maple", "maple");
    let flags = [1, 1, 0];
    let flags = [&7u32.to_le_bytes()[..], &3u64.to_le_bytes(), &flags].concat();
    let maker = maker
        .number("maple.rope.dimension_count", 12)
        // llama.cpp counts a token's own position, too.
        .number("maple.attention.sliding_window", 9)
        .set("maple.attention.sliding_window_pattern", 9, &flags);
    let model = opened(&maker).unwrap();
    model.check_unused().unwrap();
    let config = checkpoint.config();
    let found = ModelFile::config(&model);
    assert_eq!((found.experts, found.rotary), (config.experts, config.rotary));
    assert_eq!(found.local, config.local);
    assert_eq!(layer(&model, config).unwrap(), layer(&checkpoint, config).unwrap());
    for (key, value) in [("maple.rope.dimension_count", 22), ("maple.rope.dimension_count", 3)] {
        let error = opened(&maker.clone().number(key, value)).unwrap_err().to_string();
        assert!(error.contains("features of heads of 20 rotate"), "{error}");
    }
    let error = opened(&maker.float("maple.swiglu_clamp_exp", 6.0)).unwrap_err().to_string();
    assert!(error.contains("only 7 is supported"), "{error}");
}

#[test]
fn experts_of_wrong_shapes_are_errors() {
    let (checkpoint, maker) = gguf("qwen3_moe", "qwen3moe");
    let config = checkpoint.config();
    let refused = |maker: Maker, words: &str| {
        let error = opened(&maker)
            .and_then(|model| layer(&model, config).map(drop))
            .unwrap_err()
            .to_string();
        assert!(error.contains(words), "{error}");
    };
    let key = |name: &str| format!("qwen3moe.{name}");
    refused(maker.clone().without("blk.1.ffn_up_exps.weight"), "no tensor `blk.1.ffn_up_exps");
    let flat = [7 * 20, 36].map(|size| size as u64);
    let (_, bytes) = stacked(&checkpoint, 1, "up", 7);
    refused(
        maker.clone().tensor("blk.1.ffn_up_exps.weight", &flat, BF16, &bytes),
        "[7, 20, 36] is needed",
    );
    refused(maker.clone().number(&key("expert_used_count"), 8), "8 of 7 experts");
    refused(maker.clone().number(&key("expert_used_count"), 0), "expert_used_count is 0");
    refused(maker.clone().without(&key("expert_count")), "has no qwen3moe.expert_count");
    refused(maker.clone().number(&key("expert_count"), 600), "600 experts; 1 to 512");
    refused(maker.clone().number(&key("expert_shared_count"), 1), "shared experts");
    refused(maker.clone().number(&key("expert_gating_func"), 2), "only softmax");
    refused(maker.float(&key("expert_weights_scale"), 2.5), "only 1 is supported");
}

/// A copy of a model with other tensors.
fn rewritten(
    checkpoint: &Checkpoint,
    config: Value,
    tensors: Vec<(String, Vec<usize>, Vec<u8>)>,
) -> Directory {
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name, TensorView::new(Dtype::BF16, shape.clone(), bytes).unwrap())
    });
    let mut json = checkpoint.config_json().clone();
    for (key, value) in config.as_object().unwrap() {
        json[key] = value.clone();
    }
    let copy = Directory::temporary();
    copy.write("model.safetensors", safetensors::serialize(views, None).unwrap());
    copy.write("config.json", json.to_string());
    copy
}

#[test]
fn stacked_experts_are_those_of_separate_tensors() {
    let checkpoint = Checkpoint::open(directory("qwen3_moe")).unwrap();
    let config = checkpoint.config();
    let count = config.experts.unwrap().count;
    let mut tensors: Vec<_> = checkpoint
        .names()
        .into_iter()
        .filter(|name| !name.contains(".experts."))
        .map(|name| {
            let (shape, bytes) = bytes(&checkpoint, &name);
            (name, shape, bytes)
        })
        .collect();
    for layer in 0..config.layers {
        let of = |expert: usize, part: &str| {
            let name = format!("model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight");
            bytes(&checkpoint, &name).1
        };
        let prefix = format!("model.layers.{layer}.mlp.experts.");
        let gate_up = (0..count).flat_map(|n| [of(n, "gate"), of(n, "up")]).flatten().collect();
        let down = (0..count).flat_map(|n| of(n, "down")).collect();
        tensors.push((format!("{prefix}gate_up_proj"), vec![count, 40, 36], gate_up));
        tensors.push((format!("{prefix}down_proj"), vec![count, 36, 20], down));
    }
    let copy = rewritten(&checkpoint, json!({}), tensors.clone());
    let other = Checkpoint::open(&copy.0).unwrap();
    other.check_unused().unwrap();
    assert_eq!(layer(&other, config).unwrap(), layer(&checkpoint, config).unwrap());
    // One expert fewer than config.json says.
    let copy = rewritten(&checkpoint, json!({"num_experts": 6}), tensors);
    let other = Checkpoint::open(&copy.0).unwrap();
    let error = layer(&other, other.config()).unwrap_err().to_string();
    assert!(error.contains("[6, 40, 36] is needed"), "{error}");
}

#[test]
fn more_experts_than_configured_are_unused() {
    let checkpoint = Checkpoint::open(directory("qwen3_moe")).unwrap();
    let tensors = checkpoint.names().into_iter().map(|name| {
        let (shape, bytes) = bytes(&checkpoint, &name);
        (name, shape, bytes)
    });
    let copy = rewritten(&checkpoint, json!({"num_experts": 6}), tensors.collect());
    // The router's matrix does not fit either.
    let error = open(&copy.0).unwrap().check_unused().unwrap_err().to_string();
    assert!(error.contains("mlp.experts.6."), "{error}");
}

#[test]
fn experts_are_written_as_prepacked_files_only() {
    let checkpoint = Checkpoint::open(directory("qwen3_moe")).unwrap();
    let folder = Directory::temporary();
    let refused = |result: Result<()>| match result {
        Err(Error::Unsupported { message, .. }) => message,
        other => panic!("{other:?}"),
    };
    let path = folder.0.join("model.gguf");
    let gguf = write_gguf(&checkpoint, None, &path, GgufType::Tq2_0, false, |_| {});
    assert!(refused(gguf).contains("mixture of experts"));
    let packed = write_packed(&checkpoint, folder.0.join("out"), false, |_| {});
    assert!(refused(packed).contains("float activations"));
}
