//! A GGUF file as a model.

use super::{
    blocks::{GgufType, I2sLayout},
    config,
    file::{GgufFile, GgufTensor},
    hadamard,
    layout::{self, Weights},
    vocabulary::{self, GgufVocabulary},
};
use crate::{
    error::Result,
    formats::{
        config::ModelConfig,
        expert_tensors::gguf_names,
        family::{Family, RotaryOrder},
        float_weights::{FloatWeights, has_several_scales},
        format_error::FormatError,
        model_file::ModelFile,
        read_options::ReadOptions,
        tensors::{self, linear_names, tensor_names},
    },
    weights::{dense::PackedDense, ternary::packed::PackedTernary},
};
use std::{
    collections::HashSet,
    path::Path,
    sync::{Once, OnceLock},
};

/// The model in a GGUF file, of an architecture in `formats/families`.
/// [`GgufFile`] has its metadata and tensors.
#[derive(Debug)]
pub struct GgufModel {
    file: GgufFile,
    config: ModelConfig,
    /// The layout that was asked for.
    layout: Option<I2sLayout>,
    /// The layout of I2_S tensors, as soon as one is read.
    found_layout: OnceLock<I2sLayout>,
    rotary: RotaryOrder,
    float_weights: FloatWeights,
    /// Whether nothing says how activations are computed.
    unsaid: bool,
    said: Once,
}

impl GgufModel {
    /// Opens a file. The layout of I2_S tensors is found by the weights: see
    /// [`ReadOptions::i2s_layout`]. Query and key rows are read in the architecture's usual
    /// [`RotaryOrder`]; linear layers in floats are quantized in BitNet's
    /// architectures, and otherwise refused unless they are ternary already.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io); [`Error::Format`](crate::Error::Format) for a damaged file,
    /// [`Error::Unsupported`](crate::Error::Unsupported) for another architecture.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let file = GgufFile::open(path)?;
        let (mut config, rotary) = config::read(&file).map_err(|problem| file.error(problem))?;
        config.hadamard = hadamard::read(&file, &config, &linears(&config))
            .map_err(|problem| file.error(problem))?;
        if let Some(hybrid) = config.hybrid.as_mut().filter(|_| config.hadamard.is_some()) {
            hybrid.regrouped = hadamard::regrouped(&file).map_err(|problem| file.error(problem))?;
        }
        config.check_experts().map_err(|problem| file.error(FormatError::Unsupported(problem)))?;
        let float_weights =
            if config.family().trained { FloatWeights::Quantize } else { FloatWeights::Refuse };
        // As of a directory whose linear layers have norms.
        let float_weights = float_weights.or_quantize(config.projection_norms);
        if is_trilm(&file, &config) {
            config.quantized_activations = false;
        }
        let unsaid = float_weights == FloatWeights::Refuse && config.quantized_activations;
        Ok(Self {
            file,
            config,
            layout: None,
            found_layout: OnceLock::new(),
            rotary,
            float_weights,
            unsaid,
            said: Once::new(),
        })
    }

    /// Sets how the file is read.
    #[must_use]
    pub fn with_options(mut self, options: ReadOptions) -> Self {
        (self.layout, self.found_layout) = (options.i2s_layout, OnceLock::new());
        self.rotary = options.rotary_order.unwrap_or(self.rotary);
        self.float_weights = self.float_weights.or_quantize(options.quantize);
        if let Some(quantized) = options.quantized_activations {
            (self.unsaid, self.config.quantized_activations) = (false, quantized);
        }
        self
    }

    /// Returns the underlying file: metadata and tensors as stored.
    pub fn file(&self) -> &GgufFile {
        &self.file
    }

    /// The model's dimensions and hyperparameters.
    pub(crate) fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the tokenizer's vocabulary.
    ///
    /// # Errors
    /// [`Error::Format`](crate::Error::Format) if it is missing, has values of a wrong type, or
    /// contradicts itself.
    pub fn vocabulary(&self) -> Result<GgufVocabulary> {
        vocabulary::read(&self.file, self.config.vocab).map_err(|message| self.file.error(message))
    }

    /// The matrix of a linear layer in `tensor`, a part of one.
    pub(in crate::formats) fn matrix_in(&self, tensor: &GgufTensor<'_>) -> Result<PackedTernary> {
        self.matrix(tensor)
    }

    /// The names of the tensors in the file that a tensor is read from.
    fn all_full(&self, name: &str) -> Vec<String> {
        match gguf_names(name) {
            Some(names) => names.iter().map(|name| format!("{name}.weight")).collect(),
            None => vec![self.full(name)],
        }
    }

    /// Reads a stack of all experts' matrices, `[rows, columns]`, of which each expert has
    /// `rows / experts`.
    ///
    /// # Errors
    /// As [`ModelFile::linear`](super::ModelFile::linear), of each matrix.
    fn experts(&self, name: &str, rows: usize, columns: usize) -> Result<PackedTernary> {
        let count = self.config.experts.map_or(1, |experts| experts.count);
        let stored = gguf_names(name).unwrap_or_default();
        let shape = [rows / count / stored.len().max(1), columns];
        let mut projections = Vec::new();
        for stored in &stored {
            let all = self.file.tensor(&format!("{stored}.weight"))?;
            if all.shape != [count, shape[0], columns] {
                return Err(all.error(format!(
                    "has shape {:?}; [{count}, {}, {columns}] is needed",
                    all.shape, shape[0]
                )));
            }
            let beside = format!("{stored}.scale");
            if self.file.contains(&beside) {
                let problem = "is a scale of experts beside their matrices, which is not supported";
                return Err(self.file.tensor(&beside)?.unsupported(problem));
            }
            let read = |expert: usize| self.matrix_in(&all.part(expert, &shape)?);
            projections.push((0..count).map(read).collect::<Result<Vec<_>>>()?);
        }
        let of = |expert: usize| projections.iter().map(move |parts| &parts[expert]);
        PackedTernary::concat(&(0..count).flat_map(of).collect::<Vec<_>>())
    }

    fn stored(&self, name: &str) -> String {
        stored(name, self.config.family())
    }

    /// Returns the layout of I2_S tensors.
    fn i2s_layout(&self) -> I2sLayout {
        *self.found_layout.get_or_init(|| {
            let weights = Weights {
                path: self.file.path(),
                config: &self.config,
                matrix: &|name| self.tensor(name).ok(),
                gains: &|name, len| self.vector(name, len).ok(),
            };
            layout::choose(&weights, self.layout)
        })
    }

    /// Returns the matrix of a linear layer.
    fn matrix(&self, tensor: &GgufTensor<'_>) -> Result<PackedTernary> {
        let layout = match tensor.kind {
            GgufType::I2S => self.i2s_layout(),
            _ => I2sLayout::X86,
        };
        tensor.linear(layout, self.float_weights)
    }

    /// The name of a tensor in the file.
    fn full(&self, name: &str) -> String {
        let stored = self.stored(name);
        let bare = stored.ends_with(".bias") || stored.ends_with(".ssm_a");
        if bare { stored } else { format!("{stored}.weight") }
    }

    fn tensor(&self, name: &str) -> Result<GgufTensor<'_>> {
        self.file.tensor(&self.full(name))
    }

    /// `matrix` times the scale that llama.cpp's architecture `bitnet` stores as a separate tensor.
    fn scaled(&self, name: &str, matrix: PackedTernary) -> Result<PackedTernary> {
        let beside = format!("{}.scale", self.stored(name));
        if !self.file.contains(&beside) {
            return Ok(matrix);
        }
        let stored = self.file.tensor(&beside)?;
        let &[factor] = stored.to_f32()?.as_slice() else {
            return Err(stored.error(format!("has shape {:?}; one number is needed", stored.shape)));
        };
        if !(factor > 0.0 && factor.is_finite()) {
            return Err(stored.error(format!("is {factor}")));
        }
        matrix.scaled(factor).map_err(|e| stored.error(format!("is {factor}: {e}")))
    }

    /// Reorders query and key rows from pairs to halves, the order of transformers.
    fn unpaired(&self, name: &str, matrix: PackedTernary) -> Result<PackedTernary> {
        let rotates = name.ends_with(".self_attn.q_proj") || name.ends_with(".self_attn.k_proj");
        if self.rotary == RotaryOrder::Halves || !rotates {
            return Ok(matrix);
        }
        if self.config.qk_norms() {
            let problem = "rows in pairs are not supported where heads have norms, whose gains would be in another order";
            return Err(self.file.error(FormatError::Unsupported(problem.into())));
        }
        let size = self.config.head_dim;
        if !matrix.rows().is_multiple_of(size) {
            return Err(self.file.error(format!(
                "`{}.weight` has {} rows, not whole heads of {size}",
                self.stored(name),
                matrix.rows()
            )));
        }
        matrix.reorder_rows(|row| {
            let (head, half, pair) = (row / size, row % size / (size / 2), row % (size / 2));
            head * size + 2 * pair + half
        })
    }
}

/// The row, in the order of halves, that is row `row` in the order of pairs, in heads of `size`
/// rows.
pub(super) fn paired(row: usize, size: usize) -> usize {
    let (head, pair, half) = (row / size, row % size / 2, row % 2);
    head * size + half * (size / 2) + pair
}

impl ModelFile for GgufModel {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn check_unused(&self) -> Result<()> {
        let names = tensor_names(&self.config);
        if !names.iter().all(|name| self.contains(name)) {
            // What is missing says more; reading it names it.
            return Ok(());
        }
        let used: HashSet<String> = names
            .iter()
            .flat_map(|name| self.all_full(name))
            .chain(linear_names(&self.config).map(|name| format!("{}.scale", self.stored(&name))))
            // Read with the configuration.
            .chain([config::FREQUENCIES, config::SHORT, config::LONG].map(str::to_owned))
            .collect();
        let names = self.file.names().filter(|name| !used.contains(*name)).map(str::to_owned);
        tensors::unused(names).map_err(|problem| self.file.error(problem))
    }

    fn contains(&self, name: &str) -> bool {
        self.all_full(name).iter().all(|name| self.file.contains(name))
    }

    fn linear(&self, name: &str, rows: usize, columns: usize) -> Result<PackedTernary> {
        if gguf_names(name).is_some() {
            return self.experts(name, rows, columns);
        }
        let tensor = self.tensor(name)?;
        check_shape(&tensor, rows, columns)?;
        if self.file.contains(&format!("{}.bias", self.stored(name))) {
            return Err(tensor.unsupported("has a bias; layers with biases are not supported"));
        }
        let matrix = self.scaled(name, self.matrix(&tensor)?)?;
        if self.unsaid && matches!(tensor.kind, GgufType::F32 | GgufType::F16 | GgufType::Bf16) {
            FloatWeights::warn(&self.said, self.file.path(), self.config.quantized_activations);
        }
        self.config.rotary_rows(name, self.unpaired(name, matrix)?)
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let tensor = self.tensor(name)?;
        match tensor.shape {
            [outer @ .., found] if *found == len && outer.iter().all(|&size| size == 1) => {
                let gains = self.config.rotary_gains(name, tensor.to_f32()?);
                tensors::finite(gains, |what| tensor.error(what))
            }
            shape => Err(tensor.error(format!("has shape {shape:?}; [{len}] is needed"))),
        }
    }

    fn dense(&self, name: &str, rows: usize, columns: usize) -> Result<PackedDense> {
        let tensor = self.tensor(name)?;
        check_shape(&tensor, rows, columns)?;
        tensors::finite_matrix(tensor.dense()?, |what| tensor.error(what))
    }

    fn ternary_table(
        &self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<Option<PackedTernary>> {
        let tensor = self.tensor(name)?;
        check_shape(&tensor, rows, columns)?;
        match tensor.kind {
            // With code 3, it is none.
            GgufType::Q2_0 | GgufType::Pq2_0 | GgufType::Ptq1_0 | GgufType::Q1_0 => {
                Ok(tensor.ternary(I2sLayout::X86).ok())
            }
            GgufType::Tq1_0 | GgufType::Tq2_0 => tensor.ternary(I2sLayout::X86).map(Some),
            _ => Ok(None),
        }
    }
}

/// Returns whether it is a TriLM, whose activations are floats. Its architecture is any Llama's.
/// The larger ones have several scales a matrix, as no BitNet has; the others are known by the name
/// that converters take from the model's.
fn is_trilm(file: &GgufFile, config: &ModelConfig) -> bool {
    let named = |key| {
        file.get(key)
            .and_then(|value| value.as_str())
            .is_some_and(|name| name.to_lowercase().starts_with("trilm"))
    };
    let first = || {
        file.tensor("blk.0.attn_q.weight")
            .and_then(|tensor| tensor.linear(I2sLayout::X86, FloatWeights::Refuse))
    };
    let plain = config.family().activations_unsaid && !config.sub_norms && !config.projection_norms;
    plain
        && (["general.basename", "general.name"].into_iter().any(named)
            || first().is_ok_and(|matrix| has_several_scales(&matrix)))
}

fn check_shape(tensor: &GgufTensor<'_>, rows: usize, columns: usize) -> Result<()> {
    if tensor.matrix()? == (rows, columns) {
        return Ok(());
    }
    Err(tensor.error(format!("has shape {:?}; [{rows}, {columns}] is needed", tensor.shape)))
}

/// The names of all linear layers.
fn linears(config: &ModelConfig) -> Vec<String> {
    linear_names(config).map(|name| format!("{}.weight", stored(&name, config.family()))).collect()
}

/// The GGUF name of a tensor of a family, from its name in transformers, both without `.weight`. A
/// name without a counterpart is returned as it is.
pub(super) fn stored(name: &str, family: &Family) -> String {
    let part = |part: &str| {
        if let Some((_, own)) = family.gguf_names.iter().find(|(name, _)| *name == part) {
            return Some(*own);
        }
        Some(match part {
            "input_layernorm" => "attn_norm",
            "post_attention_layernorm" => "ffn_norm",
            "self_attn.q_proj" => "attn_q",
            "self_attn.k_proj" => "attn_k",
            "self_attn.v_proj" => "attn_v",
            "self_attn.o_proj" => "attn_output",
            "self_attn.q_norm" => "attn_q_norm",
            "self_attn.k_norm" => "attn_k_norm",
            "self_attn.attn_sub_norm" => "attn_sub_norm",
            "mlp.gate_proj" => "ffn_gate",
            "mlp.up_proj" => "ffn_up",
            "mlp.down_proj" => "ffn_down",
            "mlp.ffn_sub_norm" => "ffn_sub_norm",
            "self_attn.q_proj.norm" => "attn_q_norm_in",
            "self_attn.k_proj.norm" => "attn_k_norm_in",
            "self_attn.v_proj.norm" => "attn_v_norm_in",
            "self_attn.o_proj.norm" => "attn_output_norm_in",
            "mlp.gate_proj.norm" => "ffn_gate_norm_in",
            "mlp.up_proj.norm" => "ffn_up_norm_in",
            "mlp.down_proj.norm" => "ffn_down_norm_in",
            _ => return None,
        })
    };
    match name {
        "model.embed_tokens" => "token_embd".into(),
        "lm_head" => "output".into(),
        "model.norm" => "output_norm".into(),
        _ => {
            let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
            let stored =
                layer.and_then(|(layer, rest)| Some(format!("blk.{layer}.{}", part(rest)?)));
            stored.unwrap_or_else(|| name.into())
        }
    }
}
