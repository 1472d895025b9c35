//! Reads a model's configuration from config.json.

use super::{
    config::{Activation, ModelConfig},
    embedding::EmbeddingDefaults,
    families,
    family::{Defaults, Family},
    format_error::{FormatError, unsupported},
    generation::GenerationDefaults,
    json::{Keys, token_ids},
    partial_rotary,
    rope::{Rope, whole_heads},
};
use serde_json::{Map, Value};

impl ModelConfig {
    /// Reads a config.json of a supported `model_type`, those of [`families`]. Missing keys get the
    /// defaults of transformers. For `llama`, config.json does not mention sub-norms: they are off
    /// here, and [`Checkpoint`](super::Checkpoint) turns them on if their tensors exist. Activations are quantized in `bitnet` and `llama`, unless MLX wrote
    /// the file, and in other models that say that they are BitNets. Gemma's `embedding_scale` is
    /// the one of files in f32; [`Checkpoint`](super::Checkpoint) rounds it to the embedding's type.
    ///
    /// # Errors
    /// A message that names the key: a size that is missing or out of range; a model graph that is
    /// not supported.
    pub(crate) fn from_json(json: &Value) -> Result<Self, FormatError> {
        let bitnet = json["model_type"] != "bitnet" && is_bitnet(json);
        let json = Keys(json.as_object().ok_or("is not a JSON object")?);
        let architecture = json.text("model_type")?.ok_or("has no model_type")?;
        let family = families::of_json(architecture)?;
        // What the keys of a hybrid are, and those of them that other families have too.
        let (whole, plain) = match family.recurrent_layer {
            [] => (json.0.clone(), json.0.clone()),
            _ => families::qwen35::flat(json)?,
        };
        let (own, json) = (Keys(&whole), Keys(&plain));
        let defaults = &family.defaults;
        let rotating = family.partial_rotary.then(|| partial_rotary::without(json));
        let rotating = rotating.as_ref().map_or(json, Keys);
        check_graph(rotating)?;
        check_experts(json, family)?;
        check_family(json, family)?;
        let context = json.size("max_position_embeddings", Some(defaults.context))?;
        let hidden = json.size("hidden_size", None)?;
        let heads = json.size("num_attention_heads", None)?;
        // A null says that there are as many as heads.
        let kv_heads = defaults
            .kv_heads
            .filter(|_| !json.0.contains_key("num_key_value_heads"))
            .unwrap_or(heads);
        let rope = if family.windows && !family.partial_rotary {
            Rope::from_json(Keys(&with_global_rope(json)?), defaults.theta, context)?
        } else {
            Rope::from_json(rotating, defaults.theta, context)?
        };
        let mut config = Self {
            architecture: architecture.to_owned(),
            hidden,
            intermediate: json.size("intermediate_size", None)?,
            layers: json.size("num_hidden_layers", None)?,
            heads,
            kv_heads: json.size("num_key_value_heads", Some(kv_heads))?,
            head_dim: json.size("head_dim", Some(defaults.head_dim.unwrap_or(hidden / heads)))?,
            vocab: json.size("vocab_size", None)?,
            context,
            eps: json.float("rms_norm_eps", defaults.eps)?,
            rope_theta: rope.theta,
            rope_scaling: rope.scaling,
            rope_factors: rope.factors,
            embedding_scale: 1.0,
            query_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            activation: activation(json, family)?,
            sub_norms: defaults.sub_norms,
            projection_norms: projection_norms(json, defaults)?,
            local: None,
            quantized_activations: bitnet
                || (defaults.quantized_activations && json.get("quantization").is_none()),
            tied_head: json.flag("tie_word_embeddings")?
                || defaults.tied_head && json.get("tie_word_embeddings").is_none(),
            bos: json.token("bos_token_id", defaults.bos)?,
            eos: eos(json, defaults)?,
            generation: GenerationDefaults::default(),
            embedding: EmbeddingDefaults::default(),
            hadamard: None,
            hybrid: None,
            rotary: None,
            experts: None,
        };
        (family.read_json)(own, &mut config)?;
        Ok(config.known_tokens(defaults).checked()?)
    }

    /// Drops default BOS and EOS ids that are beyond the vocabulary: transformers writes its
    /// defaults into every config.json, even for a smaller vocabulary. Any other id out of range
    /// stays, and [`Self::checked`] refuses it.
    fn known_tokens(mut self, defaults: &Defaults) -> Self {
        let vocab = self.vocab;
        self.bos = self.bos.filter(|&id| (id as usize) < vocab || Some(id) != defaults.bos);
        self.eos.retain(|&id| (id as usize) < vocab || Some(id) != defaults.eos);
        self
    }
}

fn activation(json: Keys<'_>, family: &Family) -> Result<Activation, FormatError> {
    let name = json.text(family.activation_key)?;
    Activation::from_name(name.unwrap_or(family.defaults.activation))
}

fn eos(json: Keys<'_>, defaults: &Defaults) -> Result<Vec<u32>, FormatError> {
    match json.0.get("eos_token_id") {
        Some(ids) => Ok(token_ids(ids)?),
        None => Ok(defaults.eos.into_iter().collect()),
    }
}

/// Refuses keys that change the graph of models of this family.
fn check_family(json: Keys<'_>, family: &Family) -> Result<(), FormatError> {
    if let Some((key, why)) = family.refused.iter().find(|(key, _)| json.get(key).is_some()) {
        return unsupported(format!("{key} is not supported: {why}"));
    }
    let kinds = json
        .get("layer_types")
        .and_then(Value::as_array)
        .filter(|_| !family.windows && family.recurrent_layer.is_empty());
    match kinds.and_then(|kinds| kinds.iter().find(|&kind| kind != "full_attention")) {
        Some(kind) => {
            unsupported(format!("layer_types has {kind}; only \"full_attention\" is supported"))
        }
        None => Ok(()),
    }
}

/// Returns config.json with the rotary parameters of layers that see the whole context, where each
/// kind of layers has its own.
fn with_global_rope(json: Keys<'_>) -> Result<Map<String, Value>, FormatError> {
    let mut flat = json.0.clone();
    if let Some(kinds) = json.object("rope_parameters")? {
        if let Some((key, _)) = kinds
            .0
            .iter()
            .find(|(key, _)| !matches!(key.as_str(), "full_attention" | "sliding_attention"))
        {
            return unsupported(format!(
                "rope_parameters has `{key}`; those of `full_attention` and `sliding_attention` are supported"
            ));
        }
        flat.insert(
            "rope_parameters".into(),
            kinds.object("full_attention")?.map_or(Value::Null, |own| own.0.clone().into()),
        );
    }
    Ok(flat)
}

/// Refuses experts under the name of a family without them: MiniCPM and Llama have such models.
fn check_experts(json: Keys<'_>, family: &Family) -> Result<(), FormatError> {
    if family.has_experts() {
        return Ok(());
    }
    for key in ["num_experts", "num_local_experts", "n_routed_experts"] {
        if let Some(count) = json.get(key).filter(|count| count.as_u64() != Some(0)) {
            return unsupported(format!(
                "{key} is {count}: mixtures of experts are not supported in this family"
            ));
        }
    }
    Ok(())
}

/// Refuses options that would change the model's graph.
fn check_graph(json: Keys<'_>) -> Result<(), FormatError> {
    for key in ["attention_bias", "mlp_bias"] {
        if json.flag(key)? {
            return unsupported(format!("{key} is not supported: only layers without biases are"));
        }
    }
    if json.get("vision_config").is_some() {
        return unsupported("has a vision_config: models that see images are not supported");
    }
    let quantization = json.get("quantization_config").and_then(Value::as_object).map(Keys);
    match quantization.map(|quantization| quantization.text("quant_method")).transpose()?.flatten()
    {
        None | Some("bitnet") => {}
        Some(other) => {
            return unsupported(format!(
                "quantization_config.quant_method `{other}` is not supported; `bitnet` is"
            ));
        }
    }
    quantization.map_or(Ok(()), all_converted)?;
    // A model of embeddings may have been trained so.
    if json.get("is_causal").is_some() && !json.flag("is_causal")?
        || json.flag("use_bidirectional_attention")?
    {
        return unsupported(
            "attention to tokens that follow is not supported: only causal attention is",
        );
    }
    // Named by Qwen's, and used where this is set.
    if json.flag("use_sliding_window")? {
        return unsupported(
            "use_sliding_window is not supported: only attention to the whole context is",
        );
    }
    whole_heads(json)
}

/// Refuses a quantization_config that leaves layers in floats, which would be quantized as the
/// others are. The head and the embedding always are in floats.
fn all_converted(quantization: Keys<'_>) -> Result<(), FormatError> {
    const KEY: &str = "modules_to_not_convert";
    let Some(list) = quantization.get(KEY) else { return Ok(()) };
    let names = list
        .as_array()
        .and_then(|names| names.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
    let names = names.ok_or_else(|| {
        format!("quantization_config.{KEY} is {list}; a list of strings is needed")
    })?;
    let is_end = |name: &str| matches!(name.rsplit('.').next(), Some("lm_head" | "embed_tokens"));
    match names.into_iter().find(|name| !is_end(name)) {
        Some(name) => unsupported(format!(
            "quantization_config.{KEY} has `{name}`: float layers next to ternary ones are not supported, except the LM head and the embedding"
        )),
        None => Ok(()),
    }
}

/// Returns whether every linear layer has a norm of its own, by quantization_config.
fn projection_norms(json: Keys<'_>, defaults: &Defaults) -> Result<bool, FormatError> {
    let Some(quantization) = json.get("quantization_config").and_then(Value::as_object).map(Keys)
    else {
        return Ok(false);
    };
    if !quantization.flag("use_rms_norm")? {
        return Ok(false);
    }
    let (eps, own) =
        (json.float("rms_norm_eps", defaults.eps)?, quantization.float("rms_norm_eps", 1e-6)?);
    if eps != own {
        return unsupported(format!(
            "quantization_config.rms_norm_eps is {own}, and {eps} that of the other norms; one for all is supported"
        ));
    }
    match defaults.sub_norms {
        true => unsupported(
            "quantization_config.use_rms_norm is not supported where there are sub-norms",
        ),
        false => Ok(true),
    }
}

/// Returns whether config.json says that the model was trained for ternary weights and int8
/// activations.
pub(super) fn is_bitnet(json: &Value) -> bool {
    let quantization = &json["quantization_config"];
    let architectures = json["architectures"].as_array().map_or(&[][..], Vec::as_slice);
    json["model_type"] == "bitnet"
        || quantization["quant_method"] == "bitnet"
        || quantization["linear_class"].is_string()
        // 1bitLLM
        || json["weight_bits"] == 1
        || architectures.iter().any(|name| name.as_str().is_some_and(|name| name.starts_with("BitNet") || name.starts_with("Bitnet")))
}
