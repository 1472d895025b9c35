//! Reads a model's configuration from the metadata.

use super::{file::GgufFile, value::GgufValue};
use crate::{
    formats::{
        config::{Activation, ModelConfig, RopeScaling, yarn_attention},
        embedding::EmbeddingDefaults,
        families,
        gemma::{self, LocalLayers},
        generation::GenerationDefaults,
        problem::{Problem, unsupported},
    },
    limits::files::MOST_SIZE,
};

/// Tensors that a configuration is read with: what rotary frequencies are divided by.
pub(super) const FREQUENCIES: &str = "rope_freqs.weight";
pub(super) const SHORT: &str = "rope_factors_short.weight";
pub(super) const LONG: &str = "rope_factors_long.weight";

/// Which two rows of a head of the query and key matrices rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RotaryOrder {
    /// Row i and row i + half: transformers.
    Halves,
    /// Rows 2i and 2i + 1: llama.cpp's converter reorders them so for the architecture `llama`.
    Pairs,
}

/// The metadata keys that begin with the architecture's name.
#[derive(Clone, Copy)]
struct Keys<'a> {
    file: &'a GgufFile,
    architecture: &'a str,
}

pub(super) fn read(file: &GgufFile) -> Result<(ModelConfig, RotaryOrder), Problem> {
    let architecture = file
        .get("general.architecture")
        .and_then(|value| value.as_str())
        .ok_or("names no general.architecture")?;
    let (activation, sub_norms, rotary) = match architecture {
        "bitnet-b1.58" | "bitnet-25" => (Activation::Relu2, true, RotaryOrder::Halves),
        "bitnet" => (Activation::Silu, true, RotaryOrder::Halves),
        "llama" => (Activation::Silu, false, RotaryOrder::Pairs),
        "qwen3" => (Activation::Silu, false, RotaryOrder::Halves),
        "minicpm" => (Activation::Silu, false, RotaryOrder::Pairs),
        "gemma3" => (Activation::GeluTanh, false, RotaryOrder::Halves),
        other => {
            let known =
                "`bitnet-b1.58`, `bitnet-25`, `bitnet`, `llama`, `qwen3`, `minicpm` and `gemma3`";
            return families::refuse("architecture", other, known);
        }
    };
    let (qwen3, minicpm, gemma3) =
        (architecture == "qwen3", architecture == "minicpm", architecture == "gemma3");
    // bitnet.cpp's embedding models.
    let projection_norms = file.contains("blk.0.attn_q_norm_in.weight");
    let sub_norms = sub_norms || file.contains("blk.0.attn_sub_norm.weight");
    if projection_norms && sub_norms {
        return unsupported(
            "has `blk.0.attn_q_norm_in.weight`, a norm of a linear layer, beside sub-norms, which is not supported",
        );
    }
    let keys = Keys { file, architecture };
    let (hidden, heads) =
        (keys.size("embedding_length", None)?, keys.size("attention.head_count", None)?);
    let head_dim = keys.size("attention.key_length", Some(hidden / heads))?;
    keys.check_graph(head_dim)?;
    let vocab = keys.vocab()?;
    let context = keys.size("context_length", None)?;
    let (bos, eos) = tokens(file)?;
    let layers = keys.size("block_count", None)?;
    let mut scales = [1.0; 3];
    let mut local = None;
    if minicpm {
        scales = keys.minicpm_scales()?;
    } else if gemma3 {
        keys.check_gemma(layers, hidden / heads, head_dim)?;
        scales[0] = gemma::embedding_scale(hidden, None);
        local = keys.local_layers(layers)?;
    }
    let (rope_scaling, rope_factors) = keys.rope_scaling(context)?;
    let config = ModelConfig {
        architecture: architecture.to_owned(),
        hidden,
        intermediate: keys.size("feed_forward_length", None)?,
        layers,
        heads,
        kv_heads: keys.size("attention.head_count_kv", Some(heads))?,
        head_dim,
        vocab,
        context,
        eps: keys.float("attention.layer_norm_rms_epsilon", None)?,
        rope_theta: keys.float("rope.freq_base", Some(10_000.0))?,
        rope_scaling,
        rope_factors,
        embedding_scale: scales[0],
        residual_scale: scales[1],
        logit_scale: scales[2],
        activation,
        sub_norms,
        projection_norms,
        qk_norms: qwen3 || gemma3,
        post_norms: gemma3,
        local,
        quantized_activations: !(qwen3 || minicpm || gemma3) || projection_norms,
        tied_head: !file.contains("output.weight"),
        bos,
        eos,
        generation: GenerationDefaults::default(),
        embedding: keys.embedding()?,
        hadamard: None,
    };
    Ok((config.checked()?, rotary))
}

impl<'a> Keys<'a> {
    fn get(self, key: &str) -> (String, Option<GgufValue<'a>>) {
        let key = format!("{}.{key}", self.architecture);
        let value = self.file.get(&key);
        (key, value)
    }

    fn size(self, key: &str, default: Option<usize>) -> Result<usize, String> {
        let (key, value) = self.get(key);
        let Some(value) = value else { return default.ok_or_else(|| format!("has no {key}")) };
        let size = value
            .as_u64()
            .and_then(|size| usize::try_from(size).ok())
            .filter(|&size| (1..=MOST_SIZE).contains(&size));
        size.ok_or_else(|| format!("{key} is {}; 1 to {MOST_SIZE} are supported", show(value)))
    }

    fn float(self, key: &str, default: Option<f32>) -> Result<f32, String> {
        let (key, value) = self.get(key);
        let Some(value) = value else { return default.ok_or_else(|| format!("has no {key}")) };
        let float = value.as_f64().map(|float| float as f32).filter(|float| float.is_finite());
        float.ok_or_else(|| format!("{key} is {}; a number is needed", show(value)))
    }

    /// The vocabulary's size: the number of the embedding's rows, which the metadata must not
    /// contradict.
    fn vocab(self) -> Result<usize, String> {
        // Of its type nothing is said here: reading it does that.
        let rows = match self.file.shape("token_embd.weight") {
            Some([outer @ .., rows, columns])
                if *rows > 0 && *columns > 0 && outer.iter().all(|&size| size == 1) =>
            {
                *rows
            }
            Some(shape) => {
                return Err(format!(
                    "`token_embd.weight` has shape {shape:?}; a matrix with elements is needed"
                ));
            }
            None => return Err("no tensor `token_embd.weight`".into()),
        };
        let vocab = self.size("vocab_size", Some(rows))?;
        if vocab == rows {
            Ok(vocab)
        } else {
            Err(format!("has {vocab} tokens by its metadata, {rows} by `token_embd.weight`"))
        }
    }

    /// Refuses options that would change the model's graph.
    fn check_graph(self, head_dim: usize) -> Result<(), Problem> {
        for key in ["attention.value_length", "rope.dimension_count"] {
            let size = self.size(key, Some(head_dim))?;
            if size != head_dim {
                return unsupported(format!(
                    "{key} is {size}; heads have size {head_dim}, and all of it must rotate"
                ));
            }
        }
        let (key, causal) = self.get("attention.causal");
        match causal
            .map(|value| {
                value
                    .as_bool()
                    .ok_or_else(|| format!("{key} is {}; true or false is needed", show(value)))
            })
            .transpose()?
        {
            None | Some(true) => {}
            Some(false) => {
                return unsupported(format!("{key} is false; only causal attention is supported"));
            }
        }
        let experts = self.get("expert_count").1.and_then(|value| value.as_u64()).unwrap_or(0);
        if experts > 0 {
            unsupported(format!("has {experts} experts, which are not supported"))
        } else {
            Ok(())
        }
    }

    /// What MiniCPM's embedding, residual stream and logits are multiplied by, as llama.cpp's
    /// converter writes it; the last is a divisor there. Older files have no such keys, and readers
    /// differ in what they then take.
    fn minicpm_scales(self) -> Result<[f32; 3], Problem> {
        let scale = |key| match self.get(key) {
            (key, None) => unsupported(format!(
                "has no {key}, as older files have none, and readers differ in what they then take"
            )),
            _ => Ok(self.float(key, None)?),
        };
        Ok([scale("embedding_scale")?, scale("residual_scale")?, 1.0 / scale("logit_scale")?])
    }

    /// Refuses what would change Gemma's graph, as llama.cpp reads it.
    fn check_gemma(self, layers: usize, share: usize, head_dim: usize) -> Result<(), Problem> {
        for key in ["final_logit_softcapping", "attn_logit_softcapping"] {
            if self.float(key, Some(0.0))? != 0.0 {
                return unsupported(format!(
                    "gemma3.{key} is not supported: logits and scores are taken as they are"
                ));
            }
        }
        // Known by its layers: the one of 27 B, whose queries have another scale.
        if layers == 62 && share != head_dim {
            return unsupported(format!(
                "queries of {layers} layers are scaled by {share} and not by {head_dim}, which is not supported in GGUF files"
            ));
        }
        Ok(())
    }

    /// The layers that see a window only, as llama.cpp reads it: all but every sixth, unless the
    /// file says another number, or names them.
    fn local_layers(self, layers: usize) -> Result<Option<LocalLayers>, Problem> {
        let (key, window) = self.get("attention.sliding_window");
        if window.is_none_or(|window| window.as_u64() == Some(0)) {
            return Ok(None);
        }
        let window = window
            .and_then(|window| window.as_u64())
            .and_then(|window| usize::try_from(window).ok());
        let window = window
            .filter(|&window| window <= MOST_SIZE)
            .ok_or_else(|| format!("{key} is no number up to {MOST_SIZE}"))?;
        let (key, pattern) = self.get("attention.sliding_window_pattern");
        let local = match pattern.and_then(|pattern| pattern.as_array()) {
            Some(array) => {
                let flags = array.iter().map(|flag| flag.as_bool()).collect::<Option<Vec<_>>>();
                flags.ok_or_else(|| format!("{key} has something else than true and false"))?
            }
            None => LocalLayers::but_every(
                self.size("attention.sliding_window_pattern", Some(gemma::PERIOD))?,
                layers,
            ),
        };
        Ok(LocalLayers::of(
            local,
            layers,
            window,
            self.float("rope.freq_base_swa", Some(gemma::THETA))?,
        )?)
    }

    fn embedding(self) -> Result<EmbeddingDefaults, String> {
        let (key, kind) = self.get("pooling_type");
        let number = |value: GgufValue<'_>| {
            value.as_u64().ok_or_else(|| format!("{key} is {}; a number is needed", show(value)))
        };
        Ok(EmbeddingDefaults::from_gguf(kind.map(number).transpose()?))
    }

    /// And what each frequency is divided by, where these have numbers of their own. `context` is
    /// the model's, in tokens.
    fn rope_scaling(self, context: usize) -> Result<(RopeScaling, Vec<f32>), Problem> {
        let (_, kind) = self.get("rope.scaling.type");
        let attention = self.float("rope.scaling.attn_factor", Some(1.0))?;
        if attention != 1.0
            && !matches!(kind.and_then(|kind| kind.as_str()), Some("yarn" | "longrope"))
        {
            return unsupported(format!(
                "{}.rope.scaling.attn_factor is {attention}, which is supported with `yarn` and `longrope` only",
                self.architecture
            ));
        }
        // As in llama.cpp: the type defaults to linear, the factor may have its old name, and a
        // factor of 0 means no scaling.
        let scaling = match kind.map_or(Some("linear"), |kind| kind.as_str()) {
            Some("none") => RopeScaling::None,
            Some("linear" | "longrope") => {
                let old = self.float("rope.scale_linear", Some(0.0))?;
                let linear = kind.is_some_and(|kind| kind.as_str() == Some("linear"));
                let default = if linear && old == 0.0 { None } else { Some(old) };
                match self.float("rope.scaling.factor", default)? {
                    0.0 | 1.0 => RopeScaling::None,
                    factor => RopeScaling::Linear(factor),
                }
            }
            Some("yarn") => self.yarn(context, attention)?,
            _ => {
                return unsupported(format!(
                    "rotary scaling {} is not supported; `none`, `linear`, `yarn` and `longrope` are",
                    kind.map_or_else(String::new, show)
                ));
            }
        };
        let longrope = kind.and_then(|kind| kind.as_str()) == Some("longrope");
        // llama.cpp takes these tensors whatever the type is; its converter writes the type beside
        // them.
        if let Some(name) =
            [SHORT, LONG].into_iter().find(|name| !longrope && self.file.contains(name))
        {
            return unsupported(format!(
                "has the tensor `{name}`, and its rotary scaling is not `longrope`"
            ));
        }
        let own = longrope.then(|| self.longrope(context)).transpose()?;
        // Llama 3.1's, of which converters make numbers.
        let frequencies = self
            .rope_factors(FREQUENCIES)?
            .filter(|factors| factors.iter().any(|&factor| factor != 1.0));
        if own.is_some() && frequencies.is_some() {
            return unsupported(format!("has longrope and the tensor `{FREQUENCIES}`"));
        }
        let own = own.or(frequencies);
        match (own, scaling) {
            (None, scaling) => Ok((scaling, Vec::new())),
            (Some(factors), RopeScaling::None) => {
                Ok((RopeScaling::LongRope { attention }, factors))
            }
            (Some(_), other) => unsupported(format!(
                "divides each rotary frequency by a number of its own beside the scaling {other}, which is not supported"
            )),
        }
    }

    fn rope_factors(self, name: &str) -> Result<Option<Vec<f32>>, Problem> {
        let read =
            || self.file.tensor(name).and_then(|tensor| tensor.to_f32()).map_err(|e| e.to_string());
        Ok(self.file.contains(name).then(read).transpose()?)
    }

    /// There are factors for texts up to the original context, and others for longer ones: as in
    /// safetensors, only what is the same for all is supported.
    fn longrope(self, context: usize) -> Result<Vec<f32>, Problem> {
        let [short, long] = [SHORT, LONG].map(|name| {
            let factors = self.rope_factors(name)?;
            factors.ok_or_else(|| Problem::from(format!("has longrope and no tensor `{name}`")))
        });
        let (short, long) = (short?, long?);
        if short != long {
            // Which of them serves a text hangs on it.
            let original = self.size("rope.scaling.original_context_length", None)?;
            if context > original {
                return unsupported(format!(
                    "longrope with other factors beyond {original} tokens is not supported"
                ));
            }
        }
        Ok(short)
    }

    /// As in llama.cpp, whose factor of attention multiplies what follows from the frequencies'
    /// factor. Its converter writes that of transformers, the product, under another name, which it
    /// does not read.
    fn yarn(self, context: usize, attention: f32) -> Result<RopeScaling, Problem> {
        for (key, usual) in
            [("rope.scaling.yarn_ext_factor", 1.0), ("rope.scaling.yarn_log_multiplier", 0.0)]
        {
            let value = self.float(key, Some(usual))?;
            if value != usual {
                return unsupported(format!(
                    "{}.{key} is {value}, which is not supported",
                    self.architecture
                ));
            }
        }
        let factor = self.float("rope.scaling.factor", None)?;
        let attention = attention * yarn_attention(factor, 1.0);
        let product = self.float("rope.scaling.yarn_attn_factor", Some(attention))?;
        let same = (product - attention).abs() <= 1e-4 * attention;
        if !same {
            let readers = "by which transformers and llama.cpp differ";
            return unsupported(format!(
                "{}.rope.scaling.yarn_attn_factor is {product} and not {attention}, {readers}",
                self.architecture
            ));
        }
        Ok(RopeScaling::Yarn {
            factor,
            context: self.size("rope.scaling.original_context_length", Some(context))? as f32,
            attention,
            fast: self.float("rope.scaling.yarn_beta_fast", Some(32.0))?,
            slow: self.float("rope.scaling.yarn_beta_slow", Some(1.0))?,
            truncate: true,
        })
    }
}

/// The token that begins a text, and those that end a text or a turn of a chat.
fn tokens(file: &GgufFile) -> Result<(Option<u32>, Vec<u32>), String> {
    let token = |name: &str| {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(value) = file.get(&key) else { return Ok(None) };
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.map(Some).ok_or_else(|| format!("{key} is {}; a token id is needed", show(value)))
    };
    let mut eos: Vec<u32> = [token("eos")?, token("eot")?].into_iter().flatten().collect();
    eos.dedup();
    Ok((token("bos")?, eos))
}

/// A metadata value for an error message, shortened.
pub(super) fn show(value: GgufValue<'_>) -> String {
    match value.as_array() {
        Some(array) => format!("an array of {}", array.len()),
        None => format!("{value:?}").chars().take(80).collect(),
    }
}
