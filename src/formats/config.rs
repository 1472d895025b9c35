//! A model's configuration, and reading it from config.json.

use super::{
    generation::GenerationDefaults,
    json::{Keys, token_ids},
    problem::{Problem, unsupported},
};
use crate::limits::files::{MOST_LAYERS, MOST_SIZE};
use serde_json::Value;

/// The activation function of the feed-forward block's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// relu(x)²: BitNet b1.58 2B4T.
    Relu2,
    /// x / (1 + e^-x): the Llama-like ternary models.
    Silu,
}

/// How rotary frequencies are scaled for a context longer than the one the model was trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Not scaled.
    None,
    /// All frequencies are divided by this factor.
    Linear(f32),
    /// As in Llama 3.1: low frequencies are divided by `factor`, high ones kept, with a ramp between.
    Llama3 {
        /// Divides the low frequencies.
        factor: f32,
        /// Wavelengths above `context / low` count as low frequencies.
        low: f32,
        /// Wavelengths below `context / high` count as high frequencies.
        high: f32,
        /// The context length of the original training, in tokens.
        context: f32,
    },
}

/// The dimensions and hyperparameters of a transformer, whichever file format they came from.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelConfig {
    /// The architecture's name in the file (`bitnet`, `llama`, `bitnet-b1.58`, ...).
    pub architecture: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward block.
    pub intermediate: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// The maximum context length, in tokens.
    pub context: usize,
    /// Added to the mean of squares in every RMSNorm.
    pub eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// How the rotary frequencies are scaled.
    pub rope_scaling: RopeScaling,
    /// The activation function of the feed-forward gate.
    pub activation: Activation,
    /// Are there norms before the attention's output projection and before the feed-forward's down projection?
    pub sub_norms: bool,
    /// Does the head share the embedding's weights?
    pub tied_head: bool,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// The tokens that end a text.
    pub eos: Vec<u32>,
    /// How its authors would have it generate.
    pub generation: GenerationDefaults,
}

impl ModelConfig {
    /// Reads a config.json of `model_type` `bitnet` or `llama`. Missing keys get the defaults of transformers. For `llama`, config.json
    /// does not mention sub-norms: they are off here, and [`Checkpoint`](super::Checkpoint) turns them on if their tensors exist.
    ///
    /// # Errors
    /// A message that names the key: a size that is missing or out of range; a model graph that is not supported.
    pub fn from_json(json: &Value) -> Result<Self, Problem> {
        let json = Keys(json.as_object().ok_or("is not a JSON object")?);
        let architecture = json.text("model_type")?.ok_or("has no model_type")?;
        let defaults = match architecture {
            "bitnet" => &BITNET,
            "llama" => &LLAMA,
            other => return unsupported(format!("model_type `{other}` is not supported; `bitnet` and `llama` are")),
        };
        check_graph(json)?;
        let (hidden, heads) = (json.size("hidden_size", None)?, json.size("num_attention_heads", None)?);
        let vocab = json.size("vocab_size", None)?;
        let rope = Rope::from_json(json, defaults)?;
        let eos = match json.0.get("eos_token_id") {
            Some(ids) => token_ids(ids)?,
            None => vec![defaults.eos],
        };
        let config = Self {
            architecture: architecture.to_owned(),
            hidden,
            intermediate: json.size("intermediate_size", None)?,
            layers: json.size("num_hidden_layers", None)?,
            heads,
            kv_heads: json.size("num_key_value_heads", Some(heads))?,
            head_dim: json.size("head_dim", Some(hidden / heads))?,
            vocab,
            context: json.size("max_position_embeddings", Some(2048))?,
            eps: json.float("rms_norm_eps", defaults.eps)?,
            rope_theta: rope.theta,
            rope_scaling: rope.scaling,
            activation: Activation::from_name(json.text("hidden_act")?.unwrap_or(defaults.activation))?,
            sub_norms: defaults.sub_norms,
            tied_head: json.flag("tie_word_embeddings")?,
            bos: json.token("bos_token_id", defaults.bos)?,
            eos,
            generation: GenerationDefaults::default(),
        };
        Ok(config.known_tokens(defaults).checked()?)
    }

    /// Drops default BOS and EOS ids that are beyond the vocabulary: transformers writes its defaults into every config.json, even for a
    /// smaller vocabulary. Any other id out of range stays, and [`Self::checked`] refuses it.
    fn known_tokens(mut self, defaults: &Defaults) -> Self {
        let vocab = self.vocab;
        self.bos = self.bos.filter(|&id| (id as usize) < vocab || id != defaults.bos);
        self.eos.retain(|&id| (id as usize) < vocab || id != defaults.eos);
        self
    }

    /// Checks that sizes are in range, that heads divide by key-value heads, and that tokens are in the vocabulary.
    pub(crate) fn checked(self) -> Result<Self, String> {
        let sizes = [
            ("the hidden size", self.hidden),
            ("the feed-forward size", self.intermediate),
            ("the number of heads", self.heads),
            ("the number of key-value heads", self.kv_heads),
            ("the head size", self.head_dim),
            ("the vocabulary", self.vocab),
            ("the context", self.context),
        ];
        if let Some((what, size)) = sizes.into_iter().find(|&(_, size)| size == 0 || size > MOST_SIZE) {
            return Err(format!("{what} is {size}; 1 to {MOST_SIZE} are supported"));
        }
        if self.layers == 0 || self.layers > MOST_LAYERS {
            return Err(format!("{} layers; 1 to {MOST_LAYERS} are supported", self.layers));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(format!("{} heads do not divide into {} key-value heads", self.heads, self.kv_heads));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(format!("the head size {} is odd; rotary pairs need an even one", self.head_dim));
        }
        if self.heads * self.head_dim > MOST_SIZE {
            return Err(format!("{} heads of size {} are over {MOST_SIZE} features", self.heads, self.head_dim));
        }
        if !(self.eps >= 0.0 && self.eps <= 1.0) {
            return Err(format!("the norms' epsilon is {}; 0 to 1 is supported", self.eps));
        }
        if !(self.rope_theta >= 1.0 && self.rope_theta.is_finite()) {
            return Err(format!("the rotary base is {}; a finite number of at least 1 is needed", self.rope_theta));
        }
        self.rope_scaling.check()?;
        match self.bos.iter().chain(&self.eos).find(|&&id| id as usize >= self.vocab) {
            Some(id) => Err(format!("token {id} is beyond the vocabulary of {}", self.vocab)),
            None => Ok(self),
        }
    }
}

impl Activation {
    fn from_name(name: &str) -> Result<Self, Problem> {
        match name {
            "relu2" => Ok(Self::Relu2),
            "silu" => Ok(Self::Silu),
            other => unsupported(format!("hidden_act `{other}` is not supported; `relu2` and `silu` are")),
        }
    }
}

impl RopeScaling {
    fn check(&self) -> Result<(), String> {
        let sound = |value: f32| value > 0.0 && value.is_finite();
        match *self {
            Self::None => Ok(()),
            Self::Linear(factor) if sound(factor) => Ok(()),
            Self::Llama3 { factor, low, high, context } if [factor, low, high, context].into_iter().all(sound) && low < high => Ok(()),
            _ => Err(format!("rotary scaling {self:?} has a parameter out of range")),
        }
    }
}

/// The defaults of transformers for missing keys.
struct Defaults {
    activation: &'static str,
    sub_norms: bool,
    theta: f32,
    eps: f32,
    bos: u32,
    eos: u32,
}

static BITNET: Defaults = Defaults { activation: "relu2", sub_norms: true, theta: 500_000.0, eps: 1e-5, bos: 128_000, eos: 128_001 };
static LLAMA: Defaults = Defaults { activation: "silu", sub_norms: false, theta: 10_000.0, eps: 1e-6, bos: 1, eos: 2 };

/// Refuses options that would change the model's graph.
fn check_graph(json: Keys<'_>) -> Result<(), Problem> {
    for key in ["attention_bias", "mlp_bias"] {
        if json.flag(key)? {
            return unsupported(format!("{key} is not supported: only layers without biases are"));
        }
    }
    let quantization = json.get("quantization_config").and_then(Value::as_object);
    match quantization.map(|quantization| Keys(quantization).text("quant_method")).transpose()?.flatten() {
        None | Some("bitnet") => {}
        Some(other) => return unsupported(format!("quantization_config.quant_method `{other}` is not supported; `bitnet` is")),
    }
    if quantization.map_or(Ok(false), |quantization| Keys(quantization).flag("use_rms_norm"))? {
        return unsupported("quantization_config.use_rms_norm is not supported: only linear layers without a norm of their own are");
    }
    match json.float("partial_rotary_factor", 1.0)? {
        1.0 => Ok(()),
        part => unsupported(format!("partial_rotary_factor {part} is not supported: only rotation of whole heads is")),
    }
}

struct Rope {
    theta: f32,
    scaling: RopeScaling,
}

impl Rope {
    /// Reads either spelling: `rope_theta` and `rope_scaling`, or `rope_parameters` with everything.
    fn from_json(json: Keys<'_>, defaults: &Defaults) -> Result<Self, Problem> {
        let theta = json.float("rope_theta", defaults.theta)?;
        if let Some(parameters) = json.object("rope_parameters")? {
            return Ok(Self { theta: parameters.float("rope_theta", theta)?, scaling: Self::scaling(parameters)? });
        }
        let scaling = json.object("rope_scaling")?.map_or(Ok(RopeScaling::None), Self::scaling);
        Ok(Self { theta, scaling: scaling? })
    }

    fn scaling(json: Keys<'_>) -> Result<RopeScaling, Problem> {
        if let Some((key, _)) = json.0.iter().find(|(_, value)| value.is_object()) {
            return unsupported(format!("separate rotary parameters for `{key}` are not supported"));
        }
        let kind = json.text("rope_type")?.or(json.text("type")?).unwrap_or("default");
        match kind {
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear(json.needed("factor")?)),
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: json.needed("factor")?,
                low: json.needed("low_freq_factor")?,
                high: json.needed("high_freq_factor")?,
                context: json.needed("original_max_position_embeddings")?,
            }),
            other => unsupported(format!("rotary scaling `{other}` is not supported; `default`, `linear` and `llama3` are")),
        }
    }
}
