//! The small model with recurrent layers as converters write it as GGUF, also with rotated weights.
//! There the value heads that read a key head are not neighbors.

use super::*;
use bitnet_wgpu::{formats::Checkpoint, model::Model};
use support::{
    Golden, block_on,
    models::{bits, directory, golden},
};

const LAYER: [(&str, &str); 20] = [
    ("input_layernorm.weight", "attn_norm.weight"),
    ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("linear_attn.A_log", "ssm_a"),
    ("linear_attn.conv1d.weight", "ssm_conv1d.weight"),
    ("linear_attn.norm.weight", "ssm_norm.weight"),
    ("linear_attn.in_proj_a.weight", "ssm_alpha.weight"),
    ("linear_attn.in_proj_b.weight", "ssm_beta.weight"),
    ("linear_attn.in_proj_qkv.weight", "attn_qkv.weight"),
    ("linear_attn.in_proj_z.weight", "attn_gate.weight"),
    ("linear_attn.out_proj.weight", "ssm_out.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
];
const ENDS: [(&str, &str); 3] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
];

/// Groups of `size` neighbors, of which `heads` values belong to `keys` keys, one key after another,
/// in the order in which those of a key are apart.
fn tiled(x: &[f32], keys: usize, heads: usize, size: usize) -> Vec<f32> {
    let group = heads / keys;
    (0..heads)
        .flat_map(|head| &x[(head % keys * group + head / keys) * size..][..size])
        .copied()
        .collect()
}

/// A tensor as converters write it; of the output projection, its columns too, where `columns`.
fn converted(name: &str, x: &[f32], shape: &[usize], columns: bool) -> Vec<f32> {
    // Key heads, value heads, features of all queries, and of a value head.
    let (keys, heads, queries, size) = (2, 6, 24, 10);
    let part = name.rsplit("linear_attn.").next().unwrap_or(name);
    let row = x.len() / shape[0];
    let less_one = name.ends_with("norm.weight") && !name.contains("linear_attn");
    match part {
        _ if less_one => x.iter().map(|x| x + 1.0).collect(),
        "A_log" => tiled(&x.iter().map(|x| -x.exp()).collect::<Vec<_>>(), keys, heads, 1),
        "dt_bias" | "in_proj_a.weight" | "in_proj_b.weight" => tiled(x, keys, heads, row),
        "in_proj_z.weight" => tiled(x, keys, heads, size * row),
        "in_proj_qkv.weight" | "conv1d.weight" => {
            let (before, values) = x.split_at(2 * queries * row);
            [before.to_vec(), tiled(values, keys, heads, size * row)].concat()
        }
        "out_proj.weight" if columns => {
            x.chunks_exact(row).flat_map(|row| tiled(row, keys, heads, size)).collect()
        }
        _ => x.to_vec(),
    }
}

/// The model as a GGUF file of floats, and the names of its linear layers.
fn file(columns: bool) -> (Maker, Vec<String>) {
    let checkpoint = Checkpoint::open(directory("qwen35")).unwrap();
    let mut maker = Maker::configured("qwen35", checkpoint.config());
    for (key, value) in [
        ("rope.dimension_count", 8),
        ("full_attention_interval", 3),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", 12),
        ("ssm.group_count", 2),
        ("ssm.time_step_rank", 6),
        ("ssm.inner_size", 60),
    ] {
        maker = maker.number(&format!("qwen35.{key}"), value);
    }
    let mut linears = Vec::new();
    let layers = (0..4).flat_map(|layer| {
        LAYER.iter().map(move |(name, stored)| {
            (format!("model.layers.{layer}.{name}"), format!("blk.{layer}.{stored}"))
        })
    });
    let ends = ENDS.map(|(name, stored)| (name.to_owned(), stored.to_owned()));
    for (name, stored) in layers.chain(ends) {
        let Ok(tensor) = checkpoint.tensor(&name) else { continue };
        let numbers = converted(&name, &tensor.to_f32().unwrap(), tensor.shape, columns);
        let shape: Vec<u64> =
            tensor.shape.iter().filter(|&&size| size > 1).map(|&size| size as u64).collect();
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let rates = name.contains("in_proj_a") || name.contains("in_proj_b");
        if name.contains("proj") && !rates {
            linears.push(stored.clone());
        }
        maker = maker.tensor(&stored, &shape, 0, &bytes);
    }
    (maker, linears)
}

fn strings(names: &[String]) -> Vec<u8> {
    let all: Vec<u8> = names.iter().flat_map(|name| string(name)).collect();
    [&STRING.to_le_bytes()[..], &(names.len() as u64).to_le_bytes(), &all].concat()
}

fn integers(kind: u32, numbers: &[i32]) -> Vec<u8> {
    let all: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    [&kind.to_le_bytes()[..], &(numbers.len() as u64).to_le_bytes(), &all].concat()
}

/// The file with the keys of rotated weights.
fn rotated(grouped: bool) -> Maker {
    const WIDTHS: [i32; 3] = [48, 60, 80];
    let (maker, mut names) = file(!grouped);
    names.push("output.weight".into());
    let golden = Golden::open(directory("qwen35").join("hadamard.safetensors"));
    let signs: Vec<i32> = WIDTHS
        .iter()
        .flat_map(|width| golden.ids(&format!("signs.{width}")))
        .map(u32::cast_signed)
        .collect();
    let key = |name: &str| format!("prism.hadamard.{name}");
    maker
        .number(&key("version"), 1)
        .number(&key("block_size"), 4)
        .text(&key("transform"), "normalized-sylvester-walsh-hadamard")
        .text(&key("axis"), "input-last-dimension")
        .text(&key("sign_mode"), "explicit")
        .set(&key("sign_widths"), ARRAY, &integers(U32, &WIDTHS))
        .set(&key("sign_values"), ARRAY, &integers(5, &signs))
        .set(&key("weight_names"), ARRAY, &strings(&names))
        .set(&key("inverse_weight_names"), ARRAY, &strings(&["token_embd.weight".into()]))
        .set(&key("gdn_v_grouped"), 7, &[u8::from(grouped)])
}

fn logits(maker: &Maker, prompt: usize) -> Vec<f32> {
    let file = open_bytes(&maker.bytes()).unwrap();
    let model = Model::builder_from(&file, None).cpu().build().unwrap();
    let ids = golden("qwen35").ids(&format!("prompt{prompt}.ids"));
    let all = block_on(model.logits(&ids)).unwrap();
    all[all.len() - model.config().vocab..].to_vec()
}

fn off(found: &[f32], expected: &[f32]) -> f32 {
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn recurrent_layers_are_read_from_gguf() {
    let (maker, _) = file(true);
    for prompt in 0..3 {
        let expected = golden("qwen35").floats(&format!("prompt{prompt}.last_logits"));
        let off = off(&logits(&maker, prompt), &expected);
        assert!(off < 3e-2, "prompt {prompt}: {off}");
    }
    // Value heads in the order of transformers are another model.
    let off = off(&logits(&file(false).0, 2), &golden("qwen35").floats("prompt2.last_logits"));
    assert!(off > 0.5, "{off}");
}

#[test]
fn rotated_recurrent_layers_match_transformers() {
    let expected = Golden::open(directory("qwen35").join("hadamard.safetensors"));
    let maker = rotated(true);
    for prompt in 0..3 {
        let expected = expected.floats(&format!("prompt{prompt}.last_logits"));
        let off = off(&logits(&maker, prompt), &expected);
        let largest = expected.iter().fold(0f32, |largest, v| largest.max(v.abs()));
        // Activations are rounded by at most 2^-14.98 of the largest of a block, and heads that read
        // little are normed: noise of that size moves these logits by 0.03 in f64, too.
        assert!(off < 5e-3 * largest, "prompt {prompt}: {off} of {largest}");
    }
    let tiled = logits(&maker.set("prism.hadamard.gdn_v_grouped", 7, &[0]), 2);
    assert!(off(&tiled, &expected.floats("prompt2.last_logits")) > 0.5);
    let wrong = rotated(true).number("prism.hadamard.gdn_v_grouped", 1);
    let error = open_bytes(&wrong.bytes()).unwrap_err().to_string();
    assert!(error.contains("gdn_v_grouped"), "{error}");
}

#[test]
fn numbers_of_recurrent_layers_are_checked() {
    let (maker, _) = file(true);
    let refused = |key: &str, value: u32, words: &str| {
        let maker = maker.clone().number(&format!("qwen35.{key}"), value);
        let error = open_bytes(&maker.bytes()).unwrap_err().to_string();
        assert!(error.contains(words), "{key}: {error}");
    };
    refused("ssm.conv_kernel", 1, "convolution is 1; 2 to 16");
    refused("ssm.conv_kernel", 17, "convolution is 17; 2 to 16");
    refused("ssm.state_size", 257, "key head size is 257");
    refused("ssm.group_count", 4, "6 recurrent value heads do not divide into 4");
    refused("ssm.time_step_rank", 7, "does not divide into 7 heads");
    refused("ssm.inner_size", 1800, "value head size is 300");
    refused("rope.dimension_count", 22, "rotary features is 22; 2 to 20");
    refused("rope.dimension_count", 7, "7 rotary features");
    refused("full_attention_interval", 5, "no layer is attention");
    refused("nextn_predict_layers", 1, "predict further tokens");
    assert_eq!(bits(logits(&maker, 0)).len(), 260);
}
