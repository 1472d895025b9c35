//! Small models as converters write them as GGUF: bitnet.cpp's of bitnet-embedding, with a norm in
//! every linear layer, and Gemma's. They give the bits of the safetensors that they are made of.

use super::*;
use bitnet_wgpu::{
    Context,
    formats::{Checkpoint, ReadOptions},
    internals::{CheckpointInternals as _, ModelConfigInternals as _, ModelFilesInternals as _},
    model::ModelFiles,
};
use safetensors::Dtype;
use support::{
    block_on,
    files::{self, Directory},
    models::{bits, directory, golden},
};

/// The norms of a layer of Gemma, whose names say other things than those of Qwen3.
const GEMMA: [(&str, &str); 3] = [
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// A small model with its embedding in 32 bits: of GGUF files, Gemma's multiply it by a number that
/// is not rounded to fewer.
fn source(name: &str) -> Directory {
    let (checkpoint, copy) = (Checkpoint::open(directory(name)).unwrap(), Directory::temporary());
    copy.write("config.json", checkpoint.config_json().to_string());
    let tensors: Vec<_> = checkpoint
        .names()
        .into_iter()
        .map(|name| {
            let tensor = checkpoint.tensor(&name).unwrap();
            let (wide, shape) = (name == "model.embed_tokens.weight", tensor.shape.to_vec());
            match wide {
                true => {
                    (name, Dtype::F32.to_string(), shape, float_bytes(&tensor.to_f32().unwrap()))
                }
                false => (name, tensor.dtype.to_string(), shape, tensor.bytes),
            }
        })
        .collect();
    let tensors: Vec<(&str, &str, &[usize], &[u8])> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            (name.as_str(), dtype.as_str(), shape.as_slice(), bytes.as_slice())
        })
        .collect();
    copy.write("model.safetensors", files::safetensors(&tensors));
    copy
}

fn float_bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// A model as a GGUF file: its matrices as I2_S where that holds them, else in floats.
fn converted(checkpoint: &Checkpoint) -> Maker {
    let c = checkpoint.config();
    let gemma = c.architecture == "gemma3_text";
    let architecture = if gemma { "gemma3" } else { "qwen3" };
    let mut maker = Maker::configured(architecture, c);
    if let RopeScaling::Linear(factor) = c.rope_scaling {
        maker = maker
            .text("gemma3.rope.scaling.type", "linear")
            .float("gemma3.rope.scaling.factor", factor);
    }
    if let Some(local) = &c.local {
        let flags: Vec<u8> = local.layers.iter().map(|&local| local.into()).collect();
        let flags = [&7u32.to_le_bytes()[..], &(flags.len() as u64).to_le_bytes(), &flags].concat();
        maker = maker.number("gemma3.attention.sliding_window", local.window as u32).set(
            "gemma3.attention.sliding_window_pattern",
            ARRAY,
            &flags,
        );
        maker = maker.float("gemma3.rope.freq_base_swa", local.rope_theta);
    }
    let (attention, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let shape = |part: &str| match part {
        "q_proj" => (attention, c.hidden),
        "k_proj" | "v_proj" => (kv, c.hidden),
        "o_proj" => (c.hidden, attention),
        "down_proj" => (c.hidden, c.intermediate),
        _ => (c.intermediate, c.hidden),
    };
    // Gains as they multiply.
    let gains = |maker: Maker, name: &str, stored: &str, len: usize| {
        let mut gains = checkpoint.vector(name, len).unwrap();
        if name.ends_with(".q_norm") {
            gains.iter_mut().for_each(|gain| *gain *= c.query_scale);
        }
        maker.tensor(&format!("{stored}.weight"), &[len as u64], 0, &float_bytes(&gains))
    };
    for layer in 0..c.layers {
        for (part, usual) in QWEN3 {
            let own =
                GEMMA.iter().find(|(name, _)| gemma && *name == part).map_or(usual, |(_, own)| own);
            let (name, stored) =
                (format!("model.layers.{layer}.{part}"), format!("blk.{layer}.{own}"));
            let Some(linear) = part.split('.').nth(1).filter(|part| part.ends_with("_proj")) else {
                maker = gains(
                    maker,
                    &name,
                    &stored,
                    if part.contains("self_attn") { c.head_dim } else { c.hidden },
                );
                continue;
            };
            let (rows, columns) = shape(linear);
            let matrix = ModelFile::linear(checkpoint, &name, rows, columns).unwrap();
            let values: Vec<i8> = matrix.to_values();
            let (kind, bytes) = match matrix.scales() {
                Scales::Tensor(scale) if values.len().is_multiple_of(128) => {
                    (36, i2s(I2sLayout::X86, columns, &values, *scale))
                }
                _ => (0, float_bytes(&matrix.dequantize())),
            };
            maker = maker.tensor(
                &format!("{stored}.weight"),
                &[rows as u64, columns as u64],
                kind,
                &bytes,
            );
            if c.projection_norms {
                // In f16, as the converter writes them.
                let gains = checkpoint.vector(&format!("{name}.norm"), columns).unwrap();
                let halves: Vec<u8> =
                    gains.iter().flat_map(|&gain| f16::from_f32(gain).to_le_bytes()).collect();
                maker = maker.tensor(
                    &format!("{stored}_norm_in.weight"),
                    &[columns as u64],
                    1,
                    &halves,
                );
            }
        }
        if gemma {
            for (name, stored) in &GEMMA[1..] {
                maker = gains(
                    maker,
                    &format!("model.layers.{layer}.{name}"),
                    &format!("blk.{layer}.{stored}"),
                    c.hidden,
                );
            }
        }
    }
    let table = |maker: Maker, name: &str, stored: &str| {
        let tensor = checkpoint.tensor(name).unwrap();
        let kind = match tensor.dtype {
            Dtype::F32 => 0,
            Dtype::F16 => 1,
            Dtype::BF16 => 30,
            other => panic!("{other}"),
        };
        maker.tensor(stored, &[c.vocab as u64, c.hidden as u64], kind, &tensor.bytes)
    };
    let maker = table(
        table(maker, "model.embed_tokens.weight", "token_embd.weight"),
        "lm_head.weight",
        "output.weight",
    );
    gains(maker, "model.norm", "output_norm", c.hidden)
}

/// Files of these models.
pub fn all() -> impl Iterator<Item = Vec<u8>> {
    ["normed", "gemma3", "gemma3_plain"]
        .into_iter()
        .map(|name| converted(&Checkpoint::open(&source(name).0).unwrap()).bytes())
}

fn converted_models_give_the_bits_of_their_safetensors(on: Option<&Context>) {
    for name in ["normed", "gemma3", "gemma3_plain", "gemma3_floats"] {
        let (source, folder) = (source(name), Directory::temporary());
        let checkpoint = Checkpoint::open(&source.0).unwrap();
        let c = checkpoint.config();
        let path = folder.write("model.gguf", converted(&checkpoint).bytes());
        // Nothing says it where linear layers have no norms.
        let options =
            ReadOptions::default().quantized_activations((name == "gemma3_plain").then_some(true));
        let file = GgufModel::open(&path).unwrap().with_options(options);
        let found = file.config();
        assert_eq!(
            (found.projection_norms, found.qk_norms()),
            (c.projection_norms, c.qk_norms()),
            "{name}"
        );
        assert_eq!(
            (found.quantized_activations, &found.local, found.rope_scaling),
            (c.quantized_activations, &c.local, c.rope_scaling)
        );
        assert_eq!(found.embedding_scale, c.embedding_scale, "{name}");
        let kinds = |kind: GgufType| {
            file.file().names().filter(|name| file.file().kind(name) == Some(kind)).count()
        };
        assert!(
            kinds(GgufType::F16) >= if c.projection_norms { 14 } else { 0 }
                && (name != "normed" || kinds(GgufType::I2S) == 14)
        );
        file.check_unused().unwrap();

        for prompt in ["prompt0.ids", "prompt2.ids"] {
            let logits = |path| {
                let files = ModelFiles::open_with(path, options).unwrap();
                let model = files.builder().device(on).build().unwrap();
                bits(block_on(model.logits(&golden(name).ids(prompt))).unwrap())
            };
            assert!(logits(&path) == logits(&source.0), "{name}, {prompt}, GPU: {}", on.is_some());
        }
    }
}

support::each_device!(converted_models_give_the_bits_of_their_safetensors);

/// A scale is of a linear layer; beside another tensor it would change what that means.
#[test]
fn scales_of_other_tensors_are_refused() {
    let checkpoint = Checkpoint::open(&source("normed").0).unwrap();
    for name in ["output.scale", "token_embd.scale", "output_norm.scale", "blk.0.attn_norm.scale"] {
        let file = open_bytes(
            &converted(&checkpoint).tensor(name, &[1], 0, &0.5f32.to_le_bytes()).bytes(),
        )
        .unwrap();
        let error = file.check_unused().unwrap_err().to_string();
        assert!(error.contains(&format!("`{name}`")), "{error}");
    }
}

/// Without one of its norms, such a file is refused by the norm's name; with sub-norms beside them,
/// for these.
#[test]
fn norms_of_linear_layers_are_all_there() {
    let maker = converted(&Checkpoint::open(&source("normed").0).unwrap());
    let problems = |maker: &Maker| {
        let folder = Directory::temporary();
        let files = ModelFiles::open(folder.write("model.gguf", maker.bytes()))?;
        files.problems().next().map_or(Ok(()), Err)
    };
    assert!(problems(&maker).is_ok());
    for (_, stored) in &QWEN3[4..] {
        for layer in [0, 1] {
            // By that of the first layer's queries such files are known; without it, the others are
            // of no use.
            let name = format!("blk.{layer}.{stored}_norm_in.weight");
            hostile::refused(
                problems(&maker.clone().without(&name)),
                if name == "blk.0.attn_q_norm_in.weight" { "blk.0." } else { &name },
            );
        }
    }
    let beside = maker.tensor("blk.0.attn_sub_norm.weight", &[48], 0, &[0; 192]);
    hostile::refused(problems(&beside), "beside sub-norms");
}
