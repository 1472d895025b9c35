//! Reads a model's configuration from the metadata.

use super::{
    file::GgufFile,
    keys::Keys,
    value::{GgufValue, show},
};
use crate::formats::{
    config::ModelConfig,
    embedding::EmbeddingDefaults,
    families,
    family::RotaryOrder,
    format_error::{FormatError, unsupported},
    generation::GenerationDefaults,
    rope::{RopeScaling, yarn_attention},
};

/// Tensors that a configuration is read with: what rotary frequencies are divided by.
pub(super) const FREQUENCIES: &str = "rope_freqs.weight";
pub(super) const SHORT: &str = "rope_factors_short.weight";
pub(super) const LONG: &str = "rope_factors_long.weight";

pub(super) fn read(file: &GgufFile) -> Result<(ModelConfig, RotaryOrder), FormatError> {
    let architecture = file
        .get("general.architecture")
        .and_then(|value| value.as_str())
        .ok_or("names no general.architecture")?;
    let (family, form) = families::of_gguf(architecture)?;
    // bitnet.cpp's embedding models.
    let projection_norms = file.contains("blk.0.attn_q_norm_in.weight");
    let sub_norms = form.sub_norms || file.contains("blk.0.attn_sub_norm.weight");
    if projection_norms && sub_norms {
        return unsupported(
            "has `blk.0.attn_q_norm_in.weight`, a norm of a linear layer, beside sub-norms, which is not supported",
        );
    }
    let keys = Keys { file, architecture };
    let hidden = keys.size("embedding_length", None)?;
    let heads = keys.size("attention.head_count", None)?;
    let head_dim = keys.size("attention.key_length", Some(hidden / heads))?;
    keys.check_graph(head_dim, family.recurrent_layer.is_empty() && !family.partial_rotary)?;
    if !family.has_experts() {
        keys.check_experts()?;
    }
    let vocab = keys.vocab()?;
    let context = keys.size("context_length", None)?;
    let (bos, eos) = tokens(file)?;
    let (rope_scaling, rope_factors) = keys.rope_scaling(context)?;
    let mut config = ModelConfig {
        architecture: architecture.to_owned(),
        hidden,
        // Of an expert, it has another key.
        intermediate: keys.size("feed_forward_length", family.has_experts().then_some(1))?,
        layers: keys.size("block_count", None)?,
        heads,
        kv_heads: keys.size("attention.head_count_kv", Some(heads))?,
        head_dim,
        vocab,
        context,
        eps: keys.float("attention.layer_norm_rms_epsilon", None)?,
        rope_theta: keys.float("rope.freq_base", Some(10_000.0))?,
        rope_scaling,
        rope_factors,
        embedding_scale: 1.0,
        query_scale: 1.0,
        residual_scale: 1.0,
        logit_scale: 1.0,
        activation: form.activation,
        sub_norms,
        projection_norms,
        local: None,
        quantized_activations: family.defaults.quantized_activations || projection_norms,
        tied_head: !file.contains("output.weight"),
        bos,
        eos,
        generation: GenerationDefaults::default(),
        embedding: keys.embedding()?,
        hadamard: None,
        hybrid: None,
        rotary: None,
        experts: None,
    };
    if family.scale_keys {
        keys.scales(&mut config)?;
    }
    (family.read_gguf)(keys, &mut config)?;
    Ok((config.checked()?, form.rotary))
}

impl Keys<'_> {
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

    /// Refuses options that would change the model's graph: a head that rotates in part, too, where
    /// `whole`.
    fn check_graph(self, head_dim: usize, whole: bool) -> Result<(), FormatError> {
        let rotary = whole.then_some("rope.dimension_count");
        for key in ["attention.value_length"].into_iter().chain(rotary) {
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
        Ok(())
    }

    /// Refuses experts under the name of a family without them.
    fn check_experts(self) -> Result<(), FormatError> {
        match self.get("expert_count").1.and_then(|value| value.as_u64()).unwrap_or(0) {
            0 => Ok(()),
            experts => unsupported(format!(
                "has {experts} experts, which are not supported in this family"
            )),
        }
    }

    /// Reads what multiplies embedding and residual stream, and divides logits. Older files of
    /// MiniCPM have no such keys, and readers differ in what they then take.
    fn scales(self, c: &mut ModelConfig) -> Result<(), FormatError> {
        let scale = |key| match self.get(key) {
            (key, None) => unsupported(format!(
                "has no {key}, as older files have none, and readers differ in what they then take"
            )),
            _ => Ok(self.float(key, None)?),
        };
        c.embedding_scale = scale("embedding_scale")?;
        c.residual_scale = scale("residual_scale")?;
        c.logit_scale = 1.0 / scale("logit_scale")?;
        Ok(())
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
    fn rope_scaling(self, context: usize) -> Result<(RopeScaling, Vec<f32>), FormatError> {
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
        let own = self.own_factors(longrope, context)?;
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

    /// What each frequency is divided by, by longrope or by a tensor.
    fn own_factors(self, longrope: bool, context: usize) -> Result<Option<Vec<f32>>, FormatError> {
        let own = longrope.then(|| self.longrope(context)).transpose()?;
        // Llama 3.1's, of which converters make numbers.
        let frequencies = self
            .rope_factors(FREQUENCIES)?
            .filter(|factors| factors.iter().any(|&factor| factor != 1.0));
        if own.is_some() && frequencies.is_some() {
            return unsupported(format!("has longrope and the tensor `{FREQUENCIES}`"));
        }
        Ok(own.or(frequencies))
    }

    fn rope_factors(self, name: &str) -> Result<Option<Vec<f32>>, FormatError> {
        let read =
            || self.file.tensor(name).and_then(|tensor| tensor.to_f32()).map_err(|e| e.to_string());
        Ok(self.file.contains(name).then(read).transpose()?)
    }

    /// There are factors for texts up to the original context, and others for longer ones: as in
    /// safetensors, only what is the same for all is supported.
    fn longrope(self, context: usize) -> Result<Vec<f32>, FormatError> {
        let [short, long] = [SHORT, LONG].map(|name| {
            let factors = self.rope_factors(name)?;
            factors.ok_or_else(|| FormatError::from(format!("has longrope and no tensor `{name}`")))
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
    fn yarn(self, context: usize, attention: f32) -> Result<RopeScaling, FormatError> {
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
