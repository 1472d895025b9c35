//! Gemma 3: norms of what is added, and layers that see a window of the context.

use crate::{
    formats::{
        config::{Activation, ModelConfig},
        family::{
            ATTENTION_SUB_NORM, Architecture, BASE, DEFAULTS, DOWN, Defaults,
            FEED_FORWARD_SUB_NORM, Family, GATE_UP, HEAD_NORMS, OUTPUT, Part, QKV, RotaryOrder,
        },
        format_error::{FormatError, unsupported},
        gguf::keys::Keys as GgufKeys,
        json::Keys,
        local_layers::LocalLayers,
    },
    limits::files::MOST_SIZE,
};

const AS_THEY_ARE: &str = "soft-capping of logits and scores is not implemented";

pub static FAMILY: Family = Family {
    model_types: &["gemma3_text"],
    architectures: &[Architecture::new("gemma3", Activation::GeluTanh, RotaryOrder::Halves)],
    layer: &[
        Part::Norm("input_layernorm"),
        QKV,
        HEAD_NORMS,
        Part::Attention,
        ATTENTION_SUB_NORM,
        OUTPUT,
        Part::Norm("post_attention_layernorm"),
        Part::Add,
        Part::Norm("pre_feedforward_layernorm"),
        GATE_UP,
        Part::Gate,
        FEED_FORWARD_SUB_NORM,
        DOWN,
        Part::Norm("post_feedforward_layernorm"),
        Part::Add,
    ],
    defaults: Defaults {
        activation: "gelu_pytorch_tanh",
        tied_head: true,
        kv_heads: Some(4),
        head_dim: Some(256),
        context: 131_072,
        theta: 1_000_000.0,
        bos: Some(2),
        eos: Some(1),
        ..DEFAULTS
    },
    activation_key: "hidden_activation",
    refused: &[("final_logit_softcapping", AS_THEY_ARE), ("attn_logit_softcapping", AS_THEY_ARE)],
    read_json,
    read_gguf,
    gguf_names: &[
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
    ],
    not_written: Some(
        "is a Gemma 3, which is not written as GGUF: its readers do not round the embedding's scale as this model's do",
    ),
    windows: true,
    rounds_scale: true,
    gains_less_one: true,
    ..BASE
};

/// The base of layers that see a window, where files name none.
const THETA: f32 = 10_000.0;

/// After how many layers one sees all of the text, where files do not say.
const PERIOD: usize = 6;

fn read_json(json: Keys<'_>, c: &mut ModelConfig) -> Result<(), FormatError> {
    c.embedding_scale = (c.hidden as f32).sqrt();
    // Scores are divided by the root of this, not of the head size.
    let key = "query_pre_attn_scalar";
    let scalar = json.float(key, 256.0)?;
    if scalar < 1.0 {
        return Err(format!("{key} is {scalar}; at least 1 is needed").into());
    }
    c.query_scale = (c.head_dim as f32 / scalar).sqrt();
    c.local = local_layers(json, c.layers)?;
    Ok(())
}

fn read_gguf(keys: GgufKeys<'_>, c: &mut ModelConfig) -> Result<(), FormatError> {
    check_gguf(keys, c)?;
    c.embedding_scale = (c.hidden as f32).sqrt();
    c.local = local_layers_of_gguf(keys, c.layers)?;
    Ok(())
}

/// The layers that see a window by config.json, of this many.
fn local_layers(json: Keys<'_>, layers: usize) -> Result<Option<LocalLayers>, FormatError> {
    let local = match LocalLayers::of_types(json, "sliding_attention")? {
        Some(local) => local,
        None => LocalLayers::but_every(json.size("sliding_window_pattern", Some(PERIOD))?, layers),
    };
    let theta = json.float("rope_local_base_freq", THETA)?;
    let own = match json.object("rope_parameters")? {
        Some(kinds) => kinds.object("sliding_attention")?,
        None => None,
    };
    if let Some(own) = own
        && let Some(kind) = own.text("rope_type")?
        && kind != "default"
    {
        return unsupported(format!(
            "rotary scaling `{kind}` of sliding_attention is not supported"
        ));
    }
    let of_own = own.map_or(Ok(theta), |own| own.float("rope_theta", theta))?;
    if json.get("rope_local_base_freq").is_some() && of_own != theta {
        return unsupported(format!(
            "rope_local_base_freq is {theta}, and the rope_theta of sliding_attention {of_own}"
        ));
    }
    Ok(LocalLayers::of(local, layers, json.size("sliding_window", Some(4096))?, of_own)?)
}

/// Refuses what would change Gemma's graph, as llama.cpp reads it.
fn check_gguf(keys: GgufKeys<'_>, c: &ModelConfig) -> Result<(), FormatError> {
    for (key, why) in FAMILY.refused {
        if keys.float(key, Some(0.0))? != 0.0 {
            return unsupported(format!("gemma3.{key} is not supported: {why}"));
        }
    }
    let (layers, share, head_dim) = (c.layers, c.hidden / c.heads, c.head_dim);
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
fn local_layers_of_gguf(
    keys: GgufKeys<'_>,
    layers: usize,
) -> Result<Option<LocalLayers>, FormatError> {
    let (key, window) = keys.get("attention.sliding_window");
    let window = match window.map(|window| window.as_u64()) {
        None | Some(Some(0)) => return Ok(None),
        Some(Some(window)) if window <= MOST_SIZE as u64 => window as usize,
        _ => return Err(format!("{key} is not a number up to {MOST_SIZE}").into()),
    };
    let (key, pattern) = keys.get("attention.sliding_window_pattern");
    let local = match pattern.and_then(|pattern| pattern.as_array()) {
        Some(array) => {
            let flags = array.iter().map(|flag| flag.as_bool()).collect::<Option<Vec<_>>>();
            flags.ok_or_else(|| format!("{key} has something else than true and false"))?
        }
        None => LocalLayers::but_every(
            keys.size("attention.sliding_window_pattern", Some(PERIOD))?,
            layers,
        ),
    };
    Ok(LocalLayers::of(local, layers, window, keys.float("rope.freq_base_swa", Some(THETA))?)?)
}
