//! A trained model as a folder that the library and transformers open.

use crate::{
    checkpoint::{CONFIG, NamedBytes, WEIGHTS, bytes, serialized},
    error::{Error, Result},
    plan::{Kind, ParameterInfo},
    settings::LinearMode,
    trainer::Trainer,
};
use bitnet_wgpu::{
    Error as LibraryError,
    bitnet::WeightQuantizer,
    cpu::quantize_weights,
    internals::files::{read, write},
    weights::{DenseElement, PackedTernary, Scales},
};
use half::{bf16, f16};
use safetensors::Dtype;
use serde_json::{Value, json};
use std::{fs, io, path::Path};

/// Files of a tokenizer's folder that a model needs.
const TOKENIZER: [&str; 5] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
];

/// Most bytes of such a file: as much as the library reads.
const MOST_FILE: u64 = 256 << 20;

impl Trainer {
    /// Writes the model to a folder: config.json, model.safetensors, and the files of the tokenizer
    /// in the folder `tokenizer`. With int8 activations, weights are packed as transformers packs
    /// BitNet's. With float activations, they are ternary numbers in f16. Embedding, LM head and
    /// norms are in `ends`: f32, bf16 or f16. config.json is written last.
    ///
    /// # Errors
    /// [`Error::Setting`] for a model with dense weights, and for an `ends` that is not a float
    /// type; [`Error::Library`] for what the device or the disk reports.
    pub fn export(
        &self,
        folder: impl AsRef<Path>,
        tokenizer: impl AsRef<Path>,
        ends: DenseElement,
    ) -> Result<()> {
        let (folder, tokenizer) = (folder.as_ref(), tokenizer.as_ref());
        let linear = self.settings().linear;
        if linear == LinearMode::Dense {
            return Err(Error::setting(
                "the activation type",
                "dense",
                "int8 or float can be exported",
            ));
        }
        let mut tensors = Vec::new();
        for (info, numbers) in self.parameters().iter().zip(self.read_weights()?) {
            match (info.kind, linear) {
                (Kind::Linear, LinearMode::Int8) => packed(info, &numbers, &mut tensors)?,
                (Kind::Linear, _) => tensors.push(ternary(info, &numbers)?),
                _ => tensors.push(float(info, &numbers, ends)?),
            }
        }
        at(folder, fs::create_dir_all(folder))?;
        let config = folder.join(CONFIG);
        // Without a config.json, an unfinished model cannot be opened.
        if config.exists() {
            at(&config, fs::remove_file(&config))?;
        }
        write(folder.join(WEIGHTS), &serialized(&tensors)?)?;
        for name in TOKENIZER {
            let file = tokenizer.join(name);
            let target = folder.join(name);
            let is_same = file.canonicalize().ok() == target.canonicalize().ok();
            if file.is_file() && !is_same {
                write(&target, &read(&file, MOST_FILE)?)?;
            } else if target.is_file() && !file.is_file() {
                // Of another model that was here.
                at(&target, fs::remove_file(&target))?;
            }
        }
        let json = config_json(self.source_json(), self.is_tied(), linear, ends);
        write(&config, format!("{json:#}\n").as_bytes())?;
        Ok(())
    }
}

/// The ternary matrix of float weights, with the bits of the one in training.
fn quantized(info: &ParameterInfo, numbers: &[f32]) -> Result<(PackedTernary, f32)> {
    let shape = [info.shape[0], info.shape[1]];
    let matrix = quantize_weights(numbers, shape, WeightQuantizer::absmean())?;
    let scale = match matrix.scales() {
        Scales::Tensor(scale) => *scale,
        _ => 1.0,
    };
    Ok((matrix, scale))
}

/// Four rows in a byte, and the scale that multiplies them.
fn packed(info: &ParameterInfo, numbers: &[f32], tensors: &mut Vec<NamedBytes>) -> Result<()> {
    let (matrix, scale) = quantized(info, numbers)?;
    let shape = vec![info.shape[0].div_ceil(4), info.shape[1]];
    tensors.push((info.name.clone(), Dtype::U8, shape, matrix.to_transformers()));
    tensors.push((format!("{}_scale", info.name), Dtype::F32, vec![1], bytes(&[scale])));
    Ok(())
}

/// Ternary numbers as floats, by which readers know that activations are floats, too.
fn ternary(info: &ParameterInfo, numbers: &[f32]) -> Result<NamedBytes> {
    let (matrix, scale) = quantized(info, numbers)?;
    let scale = f16::from_f32(scale);
    if scale == f16::ZERO || !scale.is_finite() {
        return Err(Error::setting("the scale of a matrix", scale, "a number of f16 is needed"));
    }
    let number = |value: i8| f16::from_f32(f32::from(value) * scale.to_f32()).to_le_bytes();
    let bytes = matrix.to_values().into_iter().flat_map(number).collect();
    Ok((info.name.clone(), Dtype::F16, info.shape.clone(), bytes))
}

fn float(info: &ParameterInfo, numbers: &[f32], element: DenseElement) -> Result<NamedBytes> {
    let (dtype, bytes) = match element {
        DenseElement::F32 => (Dtype::F32, bytes(numbers)),
        DenseElement::F16 => {
            (Dtype::F16, numbers.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect())
        }
        DenseElement::Bf16 => {
            (Dtype::BF16, numbers.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect())
        }
        _ => {
            return Err(Error::setting(
                "the type of embeddings",
                "an integer",
                "a float type is needed",
            ));
        }
    };
    Ok((info.name.clone(), dtype, info.shape.clone(), bytes))
}

/// The configuration, with what it says of quantization and types as it is now.
fn config_json(json: &Value, tied: bool, linear: LinearMode, ends: DenseElement) -> Value {
    let mut json = json.clone();
    let dtype = match (linear, ends) {
        (LinearMode::Float, _) | (_, DenseElement::F16) => "float16",
        (_, DenseElement::F32) => "float32",
        _ => "bfloat16",
    };
    if let Some(json) = json.as_object_mut() {
        json.shift_remove("quantization_config");
        json.shift_remove("dtype");
        json.insert("torch_dtype".into(), dtype.into());
        json.insert("tie_word_embeddings".into(), tied.into());
        if linear == LinearMode::Int8 {
            json.insert("quantization_config".into(), json!({
                "quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline",
            }));
        }
    }
    json
}

fn at<T>(path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|source| LibraryError::Io { path: path.to_owned(), source }.into())
}
