//! Models that are written for MLX: the words that its description has, and read back equal.

use super::file::{ModelDirectory, bf16, config, file};
use bitnet_wgpu::{
    ErrorKind,
    formats::{Checkpoint, WrittenTensor, write_mlx, write_packed},
    weights::Scales,
};
use half::{bf16 as Bf16, f16};
use serde_json::{Value, json};
use std::fs;
use support::{files::Directory, models::directory, repository};

const NAME: &str = "model.layers.0.self_attn.q_proj";

/// Floats that are -scale, 0 or scale; a scale for this many columns of a row.
fn ternary(rows: usize, columns: usize, group: usize, scale: impl Fn(usize) -> f32) -> Vec<f32> {
    let groups = columns / group;
    (0..rows * columns)
        .map(|i| {
            let value = ((i * i * 7 + i / 5) % 3) as f32 - 1.0;
            value * scale(i / columns * groups + i % columns / group)
        })
        .collect()
}

/// A Qwen3 of one layer, whose rows have 128 and `inner` columns, in a type of floats.
fn model(
    keys: Value,
    inner: usize,
    dtype: &str,
    group: usize,
    scale: impl Fn(usize) -> f32,
) -> Directory {
    let bytes = |values: &[f32]| match dtype {
        "F16" => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        "F32" => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        _ => bf16(values),
    };
    let parts = [
        ("self_attn.q_proj", [128, 128]),
        ("self_attn.k_proj", [64, 128]),
        ("self_attn.v_proj", [64, 128]),
        ("self_attn.o_proj", [128, 128]),
        ("mlp.gate_proj", [inner, 128]),
        ("mlp.up_proj", [inner, 128]),
        ("mlp.down_proj", [128, inner]),
    ];
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![100, 128], bytes(&[0.5; 12800])),
        ("model.norm.weight".into(), vec![128], bytes(&[1.0; 128])),
    ];
    for (part, [rows, columns]) in parts {
        let group = if group == 0 { columns } else { group.min(columns) };
        let values = ternary(rows, columns, group, &scale);
        tensors.push((
            format!("model.layers.0.{part}.weight"),
            vec![rows, columns],
            bytes(&values),
        ));
    }
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, shape, bytes)| (name.as_str(), dtype, &shape[..], &bytes[..]))
        .collect();
    let mut all = json!({
        "model_type": "qwen3", "hidden_size": 128, "intermediate_size": inner, "num_hidden_layers": 1, "head_dim": 32,
        "tie_word_embeddings": true,
    });
    keys.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
    let directory = Directory::model(&config(all), &file(&tensors));
    directory.write("tokenizer.json", "{}");
    directory
}

fn write(input: &Directory, output: &Directory) -> Vec<WrittenTensor> {
    let mut seen = Vec::new();
    write_mlx(&input.open().unwrap(), &output.0, false, |tensor| seen.push(tensor.clone()))
        .unwrap();
    seen
}

#[test]
fn models_for_mlx_read_back_equal() {
    // Scales that the type has: per row, per group of 128, and of 64 where rows have 192 columns.
    let by_row = |i: usize| 0.25 + (i / 2 % 16) as f32 / 32.0;
    let by_group = |i: usize| 0.25 + (i % 16) as f32 / 32.0;
    let cases = [
        (256, "BF16", 128, 128),
        (256, "F16", 128, 128),
        (256, "F32", 128, 128),
        (192, "BF16", 0, 64),
        (96, "BF16", 0, 32),
    ];
    for (inner, dtype, group, expected) in cases {
        let output = Directory::temporary();
        let scale = |i: usize| if group == 0 { by_row(i) } else { by_group(i) };
        let input = model(json!({}), inner, dtype, group, scale);
        let seen = write(&input, &output);
        assert_eq!((seen.len(), seen[8].done, seen[8].total), (9, 9, 9));
        let q = seen.iter().find(|tensor| tensor.name.contains("q_proj")).unwrap();
        let of_scales = 2 * 128 * 128 / expected * if dtype == "F32" { 4 } else { 2 };
        assert_eq!(q.bytes_after, (128 * 128 / 4 + of_scales) as u64);

        let (source, written) = (input.open().unwrap(), output.open().unwrap());
        let json: Value =
            serde_json::from_slice(&fs::read(output.0.join("config.json")).unwrap()).unwrap();
        assert_eq!(
            json["quantization"],
            json!({"group_size": expected, "bits": 2, "mode": "affine"})
        );
        for part in ["self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj", "mlp.down_proj"] {
            let name = format!("model.layers.0.{part}");
            assert_eq!(
                written.ternary(&name).unwrap(),
                source.ternary(&name).unwrap(),
                "{name}, {dtype}, {inner}"
            );
            let scales = written.tensor(&format!("{name}.scales")).unwrap();
            assert_eq!(scales.dtype.to_string(), dtype);
        }
        let embedding =
            |model: &Checkpoint| model.tensor("model.embed_tokens.weight").unwrap().bytes.to_vec();
        assert_eq!(embedding(&written), embedding(&source));
        assert_eq!(fs::read(output.0.join("tokenizer.json")).unwrap(), b"{}");
    }
}

/// By the description of `mlx.core.quantize`: integers of two bits, the first in the lowest, and
/// weight = scale · integer + bias.
#[test]
fn written_words_are_those_of_mlx() {
    let output = Directory::temporary();
    let input = model(json!({}), 256, "F16", 128, |i| 0.25 + (i % 16) as f32 / 32.0);
    write(&input, &output);
    let (source, written) = (input.open().unwrap(), output.open().unwrap());
    let tensor = |end: &str| written.tensor(&format!("{NAME}.{end}")).unwrap();
    let (weight, scales, biases) = (tensor("weight"), tensor("scales"), tensor("biases"));
    assert_eq!(weight.shape, [128, 8]);
    let (scales, biases) = (scales.to_f32().unwrap(), biases.to_f32().unwrap());
    let (words, _) = weight.bytes.as_chunks::<4>();
    let floats = source.tensor(&format!("{NAME}.weight")).unwrap().to_f32().unwrap();
    for (i, float) in floats.iter().enumerate() {
        let integer = u32::from_le_bytes(words[i / 16]) >> (2 * (i % 16)) & 3;
        assert_eq!(scales[i / 128] * integer as f32 + biases[i / 128], *float, "weight {i}");
    }
}

/// Floats that are no ternary numbers are quantized by their absmean, whose scale is rounded to the
/// type of the embedding.
#[test]
fn absmean_scales_are_rounded_for_mlx() {
    let (input, output, packed) = (
        model(json!({"quantization_config": {"quant_method": "bitnet"}}), 256, "BF16", 0, |i| {
            0.1 + (i % 7) as f32 / 100.0
        }),
        Directory::temporary(),
        Directory::temporary(),
    );
    write(&input, &output);
    write_packed(&input.open().unwrap(), &packed.0, false, |_| {}).unwrap();
    let (mlx, packed) = (output.open().unwrap(), packed.open().unwrap());
    let (found, expected) = (mlx.ternary(NAME).unwrap(), packed.ternary(NAME).unwrap());
    assert_eq!(found.words(), expected.words());
    let (&Scales::Tensor(found), &Scales::Tensor(expected)) = (found.scales(), expected.scales())
    else {
        panic!("more than one scale")
    };
    assert_eq!(found, Bf16::from_f32(expected).to_f32());
    let json: Value =
        serde_json::from_slice(&fs::read(output.0.join("config.json")).unwrap()).unwrap();
    assert!(json.get("quantization_config").is_none());
}

#[test]
fn models_that_mlx_cannot_have_are_named() {
    let refused = |checkpoint: &Checkpoint, kind: ErrorKind, words: &str| {
        let output = Directory::temporary();
        let error = write_mlx(checkpoint, &output.0, false, |_| {}).unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(words), "{error}");
        assert!(
            !output.0.join("config.json").exists() && !output.0.join("model.safetensors").exists()
        );
    };
    let open = |path| Checkpoint::open(path).unwrap();
    let unsupported = ErrorKind::Unsupported;
    refused(&open(repository("assets/tales-22m")), unsupported, "--format packed");
    refused(&open(directory("normed")), unsupported, "norms in linear layers");
    refused(&open(directory("llama")), unsupported, "rows of 216 columns");
    let output = Directory::temporary();
    write(&model(json!({}), 256, "BF16", 0, |_| 0.5), &output);
    refused(&output.open().unwrap(), unsupported, "MLX's format already");
    // f16 has neither.
    let tiny = model(json!({}), 256, "F16", 0, |_| 0.5);
    let large = |scale: f32| {
        let bytes: Vec<u8> =
            ternary(128, 128, 128, |_| scale).iter().flat_map(|v| v.to_le_bytes()).collect();
        bytes
    };
    for scale in [1e5, 1e-9] {
        let bytes = large(scale);
        let checkpoint = tiny.open().unwrap();
        let names = checkpoint.names();
        let tensors: Vec<_> = names
            .iter()
            .map(|name| {
                let tensor = checkpoint.tensor(name).unwrap();
                (name.as_str(), tensor.shape.to_vec(), tensor.bytes.to_vec())
            })
            .collect();
        let tensors: Vec<_> = tensors
            .iter()
            .map(|(name, shape, own)| match name.contains("q_proj") {
                true => (*name, "F32", &shape[..], &bytes[..]),
                false => (*name, "F16", &shape[..], &own[..]),
            })
            .collect();
        let text = fs::read_to_string(tiny.0.join("config.json")).unwrap();
        let model = Directory::model(&text, &file(&tensors));
        refused(&model.open().unwrap(), ErrorKind::Damaged, "which f16 does not have");
    }
}
