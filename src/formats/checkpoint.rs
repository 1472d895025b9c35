//! A model directory as transformers writes it: config.json, and model.safetensors or its shards.

use super::{
    config::ModelConfig,
    config_json::is_bitnet,
    embedding::EmbeddingDefaults,
    float_weights::{self, FloatWeights},
    format_error::FormatError,
    generation::GenerationDefaults,
    json::{read_json, token_ids},
    mlx::{Affine, AffineMatrix, Settings},
    model_file::ModelFile,
    read_options::ReadOptions,
    safetensors::{SafeTensors, TensorBytes},
    scale_rule::{self, ScaleRule},
    shards::Shards,
};
use crate::{
    error::{Result, at},
    files::display,
    weights::ternary::{packed::PackedTernary, scales::Scales},
};
use half::{bf16, f16};
use safetensors::Dtype;
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    sync::Once,
};

/// A BitNet checkpoint: its configuration and its tensors.
///
/// ```no_run
/// use bitnet_wgpu::formats::{Checkpoint, ModelFile as _};
///
/// # fn main() -> bitnet_wgpu::Result<()> {
/// let checkpoint = Checkpoint::open("path/to/bitnet-b1.58-2B-4T")?;
/// println!("{} layers, {} tensors", checkpoint.config().layers, checkpoint.names().len());
/// let w = checkpoint.ternary("model.layers.0.mlp.down_proj")?; // a PackedTernary, [hidden, intermediate]
/// println!("{} × {}, scaled by {:?}", w.rows(), w.columns(), w.scales());
/// # Ok(())
/// # }
/// ```
pub struct Checkpoint {
    pub(super) directory: PathBuf,
    pub(super) shards: Shards,
    json: Value,
    pub(super) config: ModelConfig,
    /// None where neither config.json nor the scales say it.
    rule: Option<ScaleRule>,
    float_weights: FloatWeights,
    /// In what MLX has written.
    pub(super) mlx: Option<Settings>,
    /// Whether nothing says how activations are computed.
    unsaid: bool,
    said: Once,
}

/// The ends of tensor names, and those of the same tensors in older checkpoints (1bitLLM), and as
/// transformers has norms in linear layers, and Maple its embedding.
const ALIASES: [(&str, &str); 4] = [
    ("self_attn.attn_sub_norm", "self_attn.inner_attn_ln"),
    ("mlp.ffn_sub_norm", "mlp.ffn_layernorm"),
    ("_proj.norm", "_proj.rms_norm"),
    ("model.embed_tokens", "model.word_embeddings"),
];

impl Checkpoint {
    /// Opens a model directory: config.json, and model.safetensors or model.safetensors.index.json
    /// with its shards. What a generation_config.json says is added.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io), [`Error::Format`](crate::Error::Format),
    /// [`Error::Unsupported`](crate::Error::Unsupported).
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        let directory = directory.as_ref().to_owned();
        if directory.is_file() {
            let problem = "is a file; a directory with config.json and safetensors files is needed";
            return Err(FormatError::Unsupported(problem.into()).at(directory));
        }
        at(&directory, std::fs::metadata(&directory))?;
        let path = directory.join("config.json");
        if !path.exists() {
            let problem = "is not a model: missing config.json";
            return Err(FormatError::from(problem).at(&directory));
        }
        let json = read_json(&path)?;
        let rule = scale_rule::of_json(&json).map_err(|problem| problem.at(&path))?;
        let mut config = ModelConfig::from_json(&json).map_err(|problem| problem.at(&path))?;
        let float_weights = trained(&json);
        let mlx = Settings::from_json(&json).map_err(|problem| problem.at(&path))?;
        add_generation(&directory, &mut config)?;
        config.embedding = EmbeddingDefaults::read(&directory)?;
        let shards = Shards::open(&directory)?;
        refuse_rotated(&directory, &shards)?;
        let mut checkpoint = Self {
            directory,
            shards,
            json,
            config,
            rule,
            float_weights,
            mlx,
            unsaid: false,
            said: Once::new(),
        };
        // A model that was saved without a head has its config from one with a head.
        let unsaid = checkpoint.config.family().head_unsaid
            && checkpoint.json.get("tie_word_embeddings").is_none();
        checkpoint.config.tied_head |=
            (unsaid || checkpoint.shards.without_head()) && !checkpoint.contains("lm_head");
        checkpoint.config.sub_norms |=
            checkpoint.contains("model.layers.0.self_attn.attn_sub_norm");
        if checkpoint.config.family().rounds_scale {
            let stored = checkpoint.shards.dtype("model.embed_tokens.weight");
            checkpoint.config.embedding_scale = rounded(checkpoint.config.embedding_scale, stored);
        }
        // Norms in linear layers are BitNet's, whose weights are trained to be ternary and whose
        // activations are quantized.
        if checkpoint.contains("model.layers.0.self_attn.q_proj.norm") {
            let config = &mut checkpoint.config;
            if config.sub_norms {
                let problem = FormatError::Unsupported(
                    "has norms of linear layers beside sub-norms, which is not supported".into(),
                );
                return Err(problem.at(&checkpoint.directory));
            }
            (config.projection_norms, config.quantized_activations) = (true, true);
            checkpoint.float_weights = checkpoint.float_weights.or_quantize(true);
        }
        let checked = checkpoint.config.check_experts();
        checked.map_err(|problem| FormatError::Unsupported(problem).at(&checkpoint.directory))?;
        checkpoint.guess_activations();
        if checkpoint.rule.is_none() {
            checkpoint.rule = checkpoint.rule_of_scales();
        }
        Ok(checkpoint)
    }

    /// Files of a ternary Llama in floats are those of any Llama: nothing says whether activations
    /// are quantized, as Falcon-E's are, or floats, as TriLM's. Only TriLM has several scales a
    /// matrix, which BitNet's definition does not have, and only TriLM is published in f16.
    fn guess_activations(&mut self) {
        let c = &self.config;
        if !c.family().activations_unsaid
            || c.sub_norms
            || !c.quantized_activations
            || self.float_weights != FloatWeights::Refuse
        {
            return;
        }
        let read = || {
            let weight = self.tensor("model.layers.0.self_attn.q_proj.weight").ok()?;
            let (rows, columns) = weight.matrix().ok()?;
            let matrix = float_weights::ternary(&weight.to_f32().ok()?, rows, columns).ok()?;
            Some((float_weights::has_several_scales(&matrix), weight.dtype == Dtype::F16))
        };
        if let Some((several, half)) = read() {
            (self.unsaid, self.config.quantized_activations) = (!several, !several && !half);
        }
    }

    /// Returns what the scales of packed weights mean, by their size.
    fn rule_of_scales(&self) -> Option<ScaleRule> {
        let packed =
            |name: &String| self.shards.dtype(&format!("{name}.weight")) == Some(Dtype::U8);
        let scale = |name: String| self.stored_scale(&name).ok().map(|(_, scale)| scale);
        let scales: Vec<f32> =
            self.linears().into_iter().filter(packed).filter_map(scale).collect();
        scale_rule::of_scales(&self.directory, &scales)
    }

    /// Sets how the files are read.
    #[must_use]
    pub fn with_options(mut self, options: ReadOptions) -> Self {
        self.float_weights = self.float_weights.or_quantize(options.quantize);
        self.rule = options.scale_rule.or(self.rule);
        if let Some(quantized) = options.quantized_activations {
            (self.unsaid, self.config.quantized_activations) = (false, quantized);
        }
        self
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// The model's dimensions and hyperparameters.
    pub(crate) fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The contents of config.json.
    pub(crate) fn config_json(&self) -> &Value {
        &self.json
    }

    /// Whether MLX has written the directory.
    pub(super) fn is_mlx(&self) -> bool {
        self.mlx.is_some()
    }

    /// What the checkpoint's weight scales mean; none if that is not known.
    pub(crate) fn scale_rule(&self) -> Option<ScaleRule> {
        self.rule
    }

    /// Returns the names of all tensors, sorted.
    pub fn names(&self) -> Vec<String> {
        self.shards.names()
    }

    /// Reads a tensor, by its full name (`model.norm.weight`).
    ///
    /// # Errors
    /// [`Error::Format`](crate::Error::Format) if there is no tensor of that name.
    pub fn tensor(&self, name: &str) -> Result<TensorBytes<'_>> {
        self.shards.tensor(name)
    }

    /// Whether there is a tensor of this full name.
    pub(super) fn has_tensor(&self, name: &str) -> bool {
        self.shards.contains(name)
    }

    /// The bytes of a tensor by its name in transformers, with what belongs to it.
    pub(super) fn bytes_of(&self, name: &str) -> u64 {
        let parts = [
            self.stored(name),
            format!("{name}.weight_scale"),
            format!("{name}.scales"),
            format!("{name}.biases"),
        ];
        let size = |name: &String| {
            self.place_of(name).ok().and_then(|(file, stored)| file.size(stored)).unwrap_or(0)
        };
        parts.iter().map(size).sum::<usize>() as u64
    }

    /// The file that has a tensor, and its name there.
    pub(super) fn place_of<'a: 'n, 'n>(
        &'a self,
        name: &'n str,
    ) -> Result<(&'a SafeTensors, &'n str)> {
        self.shards.place_of(name)
    }

    /// Returns the names of the linear layers with packed weights: those that have a
    /// `weight_scale`.
    pub fn linears(&self) -> Vec<String> {
        self.names()
            .iter()
            .filter_map(|name| name.strip_suffix(".weight_scale").map(str::to_owned))
            .collect()
    }

    /// Returns the weights of the linear layer `name` (for example `model.layers.0.mlp.down_proj`).
    /// Packed weights are taken as they are, and so are floats with only the values -a, 0 and a
    /// (but for `quantization_mode` `online`), and, where nothing says that others are to be
    /// quantized, floats that are so in every row, or in groups of 128 columns. Integers of MLX are
    /// taken where they are ternary. Other floats are quantized by their absmean, in a model that
    /// was trained so: one of `model_type` `bitnet`, with a BitNet `quantization_config`, or as
    /// 1bitLLM's say it.
    ///
    /// Four rows are packed into one, so rows are padded to a multiple of 4;
    /// [`ModelFile::linear`] drops the padding.
    ///
    /// # Errors
    /// [`Error::Format`](crate::Error::Format) for a missing tensor, a wrong shape, code 3 (not
    /// ternary), or a scale that is not finite and positive;
    /// [`Error::Unsupported`](crate::Error::Unsupported) for another type, a bias, or floats of a
    /// model that was not trained for ternary weights.
    pub fn ternary(&self, name: &str) -> Result<PackedTernary> {
        self.read(name, &self.tensor(&format!("{name}.weight"))?, None)
    }

    /// [`Checkpoint::ternary`] for a matrix that is known to have `rows` rows; padding rows are
    /// dropped.
    ///
    /// # Errors
    /// As [`Checkpoint::ternary`]; [`Error::Format`](crate::Error::Format) for a matrix of other
    /// rows.
    pub(crate) fn ternary_with_rows(&self, name: &str, rows: usize) -> Result<PackedTernary> {
        self.read(name, &self.tensor(&format!("{name}.weight"))?, Some(rows))
    }

    /// The matrix of a layer whose weights have been read.
    fn read(
        &self,
        name: &str,
        weight: &TensorBytes<'_>,
        rows: Option<usize>,
    ) -> Result<PackedTernary> {
        if self.shards.contains(&format!("{name}.bias")) {
            return Err(weight.unsupported("has a bias; layers with biases are not supported"));
        }
        let (stored_rows, columns) = self.size(weight)?;
        if columns == 0 {
            return Err(weight.error("has no columns"));
        }
        if let Some(affine) = self.affine_of(weight) {
            let rows = rows.unwrap_or(stored_rows);
            if rows != stored_rows {
                return Err(weight.error(format!("has {stored_rows} rows, not {rows}")));
            }
            return self.with_groups(name, weight, |matrix| affine.ternary(matrix, rows, columns));
        }
        if weight.dtype != Dtype::U8 {
            return self.of_floats(name, weight, rows.unwrap_or(stored_rows));
        }
        let rows = rows.unwrap_or(stored_rows.saturating_mul(4));
        if rows.div_ceil(4) != stored_rows {
            return Err(weight.error(format!(
                "has {stored_rows} packed rows, of four rows each; that is not {rows}"
            )));
        }
        let beta = self.beta(name)?;
        let matrix =
            PackedTernary::from_transformers(rows, columns, &weight.bytes, Scales::Tensor(beta));
        matrix.map_err(|e| weight.error(format!("is not a packed ternary matrix: {e}")))
    }

    /// The matrix of a linear layer of its own, `[rows, columns]`.
    pub(super) fn matrix_of(
        &self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<PackedTernary> {
        let weight = self.tensor(&format!("{name}.weight"))?;
        if self.size(&weight)?.1 != columns {
            return Err(
                weight.error(format!("has shape {:?}; {columns} columns are needed", weight.shape))
            );
        }
        self.config.rotary_rows(name, self.read(name, &weight, Some(rows))?)
    }

    /// How a weight is stored, where it is in MLX's words.
    pub(super) fn affine_of(&self, weight: &TensorBytes<'_>) -> Option<Affine> {
        self.mlx
            .as_ref()
            .filter(|_| weight.dtype == Dtype::U32)
            .map(|settings| settings.of(weight.name()))
    }

    /// Stored rows and columns of weights.
    pub(super) fn size(&self, weight: &TensorBytes<'_>) -> Result<(usize, usize)> {
        let (rows, columns) = weight.matrix()?;
        Ok((rows, self.affine_of(weight).map_or(columns, |affine| affine.columns(columns))))
    }

    /// What `read` makes of a weight in MLX's words, with what belongs to it.
    pub(super) fn with_groups<T>(
        &self,
        name: &str,
        weight: &TensorBytes<'_>,
        read: impl FnOnce(&AffineMatrix<'_>) -> Result<T>,
    ) -> Result<T> {
        let (scales, biases) =
            (self.tensor(&format!("{name}.scales"))?, self.tensor(&format!("{name}.biases"))?);
        read(&AffineMatrix { weight, scales: &scales, biases: &biases })
    }

    /// Returns the ternary matrix of float weights.
    pub(super) fn of_floats(
        &self,
        name: &str,
        weight: &TensorBytes<'_>,
        rows: usize,
    ) -> Result<PackedTernary> {
        let (stored_rows, columns) = weight.matrix()?;
        if rows != stored_rows {
            return Err(weight.error(format!("has {stored_rows} rows, not {rows}")));
        }
        let float_weights = weight.to_f32()?;
        if self.shards.contains(&format!("{name}.weight_scale")) {
            return Err(weight.error("is in floats and has a weight_scale too; what that scale would mean is not defined"));
        }
        let matrix = self
            .float_weights
            .matrix(&float_weights, rows, columns)
            .map_err(|problem| weight.problem(problem))?;
        if self.unsaid {
            FloatWeights::warn(&self.said, &self.directory, self.config.quantized_activations);
        }
        Ok(matrix)
    }

    /// Reads the scale of a matrix, as it is stored.
    fn stored_scale(&self, name: &str) -> Result<(TensorBytes<'_>, f32)> {
        let stored = self.tensor(&format!("{name}.weight_scale"))?;
        match *stored.to_f32()?.as_slice() {
            [scale] => Ok((stored, scale)),
            _ => Err(stored.error(format!("has shape {:?}; one number is needed", stored.shape))),
        }
    }

    fn beta(&self, name: &str) -> Result<f32> {
        let (stored, scale) = self.stored_scale(name)?;
        let beta = match self.rule {
            Some(ScaleRule::Multiply) => scale,
            Some(ScaleRule::Divide) => 1.0 / scale,
            None => return Err(stored.unsupported(format!("is {scale}: {}", scale_rule::UNKNOWN))),
        };
        if beta.is_finite() && beta > 0.0 {
            Ok(beta)
        } else {
            Err(stored.error(format!("is {scale}")))
        }
    }

    /// The name under which the file stores a tensor: the usual one, or an alias.
    pub(super) fn stored(&self, name: &str) -> String {
        let own = if is_bare(name) { name.to_owned() } else { format!("{name}.weight") };
        let alias = ALIASES.iter().find_map(|(new, old)| {
            name.strip_suffix(new).map(|layer| format!("{layer}{old}.weight"))
        });
        match alias {
            Some(alias) if !self.shards.contains(&own) && self.shards.contains(&alias) => alias,
            _ => own,
        }
    }
}

/// Returns whether a tensor is stored under its name alone.
fn is_bare(name: &str) -> bool {
    name.ends_with(".A_log") || name.ends_with(".dt_bias")
}

/// Rounds a scale to the type of the tensor that it multiplies, as transformers and MLX have it.
fn rounded(scale: f32, stored: Option<Dtype>) -> f32 {
    match stored {
        Some(Dtype::BF16 | Dtype::U32) => bf16::from_f32(scale).to_f32(),
        Some(Dtype::F16) => f16::from_f32(scale).to_f32(),
        _ => scale,
    }
}

/// Refuses MLX's files whose weights are rotated: run as if they were not, they would write
/// gibberish. A file says it, which may have been left behind, and so do the tensors with signs.
fn refuse_rotated(directory: &Path, shards: &Shards) -> Result<()> {
    let problem = "has weights for rotated activations, which are supported in GGUF files only";
    let file = directory.join("hadamard.json");
    if file.exists() {
        return Err(FormatError::Unsupported(problem.into()).at(file));
    }
    match shards.names().into_iter().find(|name| name.ends_with(".signs")) {
        Some(name) => Err(FormatError::Unsupported(format!("`{name}` {problem}")).at(directory)),
        None => Ok(()),
    }
}

/// Returns what config.json says of how the weights were trained.
fn trained(json: &Value) -> FloatWeights {
    match json["quantization_config"]["quantization_mode"].as_str() {
        Some("online") => FloatWeights::Online,
        _ if is_bitnet(json) => FloatWeights::Quantize,
        _ => FloatWeights::Refuse,
    }
}

/// Adds what generation_config.json says: the tokens that end a text, which are often more than
/// config.json has (a chat's end of turn), and how tokens are chosen. Ids beyond the vocabulary
/// cannot occur and are dropped.
fn add_generation(directory: &Path, config: &mut ModelConfig) -> Result<()> {
    let path = directory.join("generation_config.json");
    if !path.exists() {
        return Ok(());
    }
    let json = read_json(&path)?;
    let ids = token_ids(&json["eos_token_id"])
        .map_err(|message| FormatError::from(format!("eos_token_id: {message}")).at(&path))?;
    for id in ids.into_iter().filter(|&id| (id as usize) < config.vocab) {
        if !config.eos.contains(&id) {
            config.eos.push(id);
        }
    }
    config.generation = GenerationDefaults::from_json(&json)
        .map_err(|problem| problem.at(&path))?
        .of_vocabulary(config.vocab);
    Ok(())
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Checkpoint({})", display(&self.directory))
    }
}
