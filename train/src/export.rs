//! A trained model as a folder that the library and transformers open.

use crate::{
    checkpoint::{ADAPTER, CONFIG, WEIGHTS},
    error::{Error, Result},
    lora::add_product,
    plan::{Kind, ParameterInfo},
    settings::LinearMode,
    tensors::{self, Entry, at, bytes},
    ternary::{nearest, scale},
    trainer::Trainer,
};
use bitnet_wgpu::{
    bitnet::WeightQuantizer,
    cpu::quantize_weights,
    internals::files::{read, write},
    weights::{DenseElement, PackedTernary},
};
use half::{bf16, f16};
use pollster::block_on;
use safetensors::Dtype;
use serde_json::{Value, json};
use std::{fs, path::Path};

/// Files of a tokenizer's folder that a model needs.
const TOKENIZER: [&str; 6] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
];

/// Most bytes of such a file: as much as the library reads.
const MOST_FILE: u64 = 256 << 20;

impl Trainer {
    /// Writes the model to a folder: config.json, model.safetensors, and the files of the tokenizer
    /// in the folder `tokenizer`. With int8 activations, weights are packed as transformers packs
    /// BitNet's. With float activations, they are ternary numbers in f16. Embedding, LM head and
    /// norms are in `ends`: f32, bf16 or f16. config.json is written last. Adapters are merged: their
    /// products are added to the weights, which are made ternary again. Most of a small product is
    /// lost by that, so the model can answer differently than with its adapters.
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
        let plan = &self.network.plan.parameters;
        let entries: Vec<Entry> =
            plan.iter().flat_map(|info| entries(info, linear, ends)).collect();
        let places: Vec<usize> =
            (0..plan.len()).flat_map(|i| vec![i; entries_of(&plan[i], linear)]).collect();
        at(folder, fs::create_dir_all(folder))?;
        let config = folder.join(CONFIG);
        // Without a config.json, an unfinished model cannot be opened.
        if config.exists() {
            at(&config, fs::remove_file(&config))?;
        }
        tensors::write(&folder.join(WEIGHTS), &entries, |entry| {
            let (index, name) = (places[entry], &entries[entry].name);
            let info = &plan[index];
            if info.kind != Kind::Linear {
                return float(&self.exported_floats(index)?, ends);
            }
            let matrix = self.exported_matrix(index)?;
            let scale = scale(&matrix).unwrap_or(1.0);
            match linear {
                LinearMode::Int8 if *name == info.name => Ok(matrix.to_transformers()),
                LinearMode::Int8 => Ok(bytes(&[scale])),
                _ => ternary(&matrix, scale),
            }
        })?;
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
        let source = self.source();
        let json = config_json(source.json(), source.config().tied_head, linear, ends);
        write(&config, format!("{json:#}\n").as_bytes())?;
        Ok(())
    }

    /// Writes trained adapters to a folder, as PEFT does: adapter_model.safetensors and
    /// adapter_config.json, which is written last.
    ///
    /// # Errors
    /// [`Error::Setting`] for a run without adapters; [`Error::Library`] for what the device or the
    /// disk reports.
    pub fn export_adapter(&self, folder: impl AsRef<Path>) -> Result<()> {
        let folder = folder.as_ref();
        if self.settings().lora.is_none() {
            let accepted = "adapters are trained with LoRA";
            return Err(Error::setting("the number of adapters", 0, accepted));
        }
        at(folder, fs::create_dir_all(folder))?;
        let (name, config) = self.config_file();
        let path = folder.join(name);
        if path.exists() {
            at(&path, fs::remove_file(&path))?;
        }
        let entry = |info: &ParameterInfo| Entry {
            name: info.name.clone(),
            dtype: Dtype::F32,
            shape: info.shape.clone(),
        };
        let entries: Vec<Entry> = self.parameters().iter().map(entry).collect();
        tensors::write(&folder.join(ADAPTER), &entries, |at| {
            Ok(bytes(&block_on(self.weights()[at].read())?))
        })?;
        Ok(write(path, format!("{config:#}\n").as_bytes())?)
    }

    /// The numbers of a table or of gains.
    fn exported_floats(&self, index: usize) -> Result<Vec<f32>> {
        Ok(block_on(self.network.float(index)?.read())?)
    }

    /// The ternary matrix of a linear layer: that of training, or the one nearest to the sum of the
    /// base and its adapter.
    fn exported_matrix(&self, index: usize) -> Result<PackedTernary> {
        let info = &self.network.plan.parameters[index];
        let shape = (info.shape[0], info.shape[1]);
        let Some(lora) = &self.settings().lora else {
            let numbers = self.exported_floats(index)?;
            let absmean = WeightQuantizer::absmean();
            return Ok(quantize_weights(&numbers, [shape.0, shape.1], absmean)?);
        };
        let base = self.source().ternary(index, info, self.settings().seed)?;
        let Some((_, a, b)) = self.network.adapter(index) else { return Ok(base) };
        let mut numbers = base.dequantize();
        let (a, b) = (block_on(a.read())?, block_on(b.read())?);
        add_product(&mut numbers, &a, &b, lora.rank, lora.factor());
        Ok(nearest(&numbers, shape, scale(&base).unwrap_or(1.0))?)
    }
}

/// Number of tensors of a parameter: packed weights have a scale.
fn entries_of(info: &ParameterInfo, linear: LinearMode) -> usize {
    if info.kind == Kind::Linear && linear == LinearMode::Int8 { 2 } else { 1 }
}

/// The tensors of a parameter. Packed weights have four rows in a byte, and a scale that multiplies
/// them. Ternary numbers as floats say that activations are floats, too.
fn entries(info: &ParameterInfo, linear: LinearMode, ends: DenseElement) -> Vec<Entry> {
    let entry = |name: &str, dtype, shape| Entry { name: name.to_owned(), dtype, shape };
    let (name, shape) = (info.name.as_str(), info.shape.clone());
    match (info.kind, linear) {
        (Kind::Linear, LinearMode::Int8) => vec![
            entry(name, Dtype::U8, vec![shape[0].div_ceil(4), shape[1]]),
            entry(&format!("{name}_scale"), Dtype::F32, vec![1]),
        ],
        (Kind::Linear, _) => vec![entry(name, Dtype::F16, shape)],
        _ => {
            let dtype = match ends {
                DenseElement::F32 => Dtype::F32,
                DenseElement::F16 => Dtype::F16,
                _ => Dtype::BF16,
            };
            vec![entry(name, dtype, shape)]
        }
    }
}

/// Ternary numbers in f16.
fn ternary(matrix: &PackedTernary, scale: f32) -> Result<Vec<u8>> {
    let scale = f16::from_f32(scale);
    if scale == f16::ZERO || !scale.is_finite() {
        return Err(Error::setting("the scale of a matrix", scale, "a number of f16 is needed"));
    }
    let number = |value: i8| f16::from_f32(f32::from(value) * scale.to_f32()).to_le_bytes();
    Ok(matrix.to_values().into_iter().flat_map(number).collect())
}

fn float(numbers: &[f32], element: DenseElement) -> Result<Vec<u8>> {
    Ok(match element {
        DenseElement::F32 => bytes(numbers),
        DenseElement::F16 => numbers.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        DenseElement::Bf16 => {
            numbers.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect()
        }
        _ => {
            let accepted = "a float type is needed";
            return Err(Error::setting("the type of embeddings", "an integer", accepted));
        }
    })
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
