//! What a checkpoint says of its model.

use serde_json::{Map, Value};

/// The largest dimension that is believed.
const MOST_SIZE: usize = 1 << 24;
/// The most layers that are believed.
const MOST_LAYERS: usize = 4096;

/// How a feed-forward block's gate is bent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// relu(x)²: BitNet b1.58 2B4T.
    Relu2,
    /// x / (1 + e^-x): the Llama-like ternary models.
    Silu,
}

/// How rotary frequencies are stretched beyond the context that a model was trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All divided by a factor.
    Linear(f32),
    /// As Llama 3.1: low frequencies divided by `factor`, high ones kept, a ramp between.
    Llama3 {
        /// What low frequencies are divided by.
        factor: f32,
        /// Wavelengths above `context / low` are low frequencies.
        low: f32,
        /// Wavelengths below `context / high` are high ones.
        high: f32,
        /// The context that the model was first trained on.
        context: f32,
    },
}

/// The shape and the numbers of a transformer, whichever file they came from.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// What the file calls the architecture (`bitnet`, `llama`, `bitnet-b1.58`, ...).
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
    /// The most positions that the model was made for.
    pub context: usize,
    /// Added to the mean of squares in every RMSNorm.
    pub eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// How the rotary frequencies are stretched.
    pub rope_scaling: RopeScaling,
    /// The feed-forward gate.
    pub activation: Activation,
    /// Norms before the attention's output projection and before the feed-forward's down projection.
    pub sub_norms: bool,
    /// The head is the embedding.
    pub tied_head: bool,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// The tokens that end one.
    pub eos: Vec<u32>,
}

impl ModelConfig {
    /// Reads transformers' config.json of `model_type` `bitnet` or `llama`. Keys that it lacks have the defaults of transformers. A `llama` has
    /// no sub-norms as far as this file says; [`Checkpoint`](super::Checkpoint) looks whether its tensors are there.
    ///
    /// # Errors
    /// A message that names the key: absurd or missing sizes, a graph that is not supported.
    pub fn from_json(json: &Value) -> Result<Self, String> {
        let json = Keys(json.as_object().ok_or("is no JSON object")?);
        let architecture = json.text("model_type")?.ok_or("has no model_type")?;
        let defaults = match architecture {
            "bitnet" => &BITNET,
            "llama" => &LLAMA,
            other => return Err(format!("model_type `{other}` is not supported; `bitnet` and `llama` are")),
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
        };
        config.known_tokens(defaults).checked()
    }

    /// Without the tokens that the class assumes where they are beyond a smaller vocabulary: transformers writes them to every config.json. Any other
    /// token that is not in the vocabulary stays, to be refused.
    fn known_tokens(mut self, defaults: &Defaults) -> Self {
        let vocab = self.vocab;
        self.bos = self.bos.filter(|&id| (id as usize) < vocab || id != defaults.bos);
        self.eos.retain(|&id| (id as usize) < vocab || id != defaults.eos);
        self
    }

    /// Itself, if it describes a model that can be: no size zero or absurd, heads that divide, tokens of the vocabulary.
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
            return Err(format!("{what} is {size}; 1 to {MOST_SIZE} is supported"));
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
            return Err(format!("{} heads of {} are over {MOST_SIZE} features", self.heads, self.head_dim));
        }
        if !(self.eps >= 0.0 && self.eps <= 1.0) {
            return Err(format!("the norms' epsilon is {}; 0 to 1 is supported", self.eps));
        }
        if !(self.rope_theta >= 1.0 && self.rope_theta.is_finite()) {
            return Err(format!("the rotary base is {}; a finite number from 1 is needed", self.rope_theta));
        }
        self.rope_scaling.check()?;
        match self.bos.iter().chain(&self.eos).find(|&&id| id as usize >= self.vocab) {
            Some(id) => Err(format!("token {id} is beyond the vocabulary of {}", self.vocab)),
            None => Ok(self),
        }
    }
}

impl Activation {
    fn from_name(name: &str) -> Result<Self, String> {
        match name {
            "relu2" => Ok(Self::Relu2),
            "silu" => Ok(Self::Silu),
            other => Err(format!("hidden_act `{other}` is not supported; `relu2` and `silu` are")),
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
            _ => Err(format!("rotary scaling {self:?} is not possible")),
        }
    }
}

/// What transformers assumes where a key is missing.
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

/// Refuses what would change the graph.
fn check_graph(json: Keys<'_>) -> Result<(), String> {
    for key in ["attention_bias", "mlp_bias"] {
        if json.flag(key)? {
            return Err(format!("{key} is not supported: layers have no biases"));
        }
    }
    let quantization = json.get("quantization_config").and_then(Value::as_object);
    if quantization.map_or(Ok(false), |quantization| Keys(quantization).flag("use_rms_norm"))? {
        return Err("quantization_config.use_rms_norm is not supported: layers have no norms of their own".into());
    }
    match json.float("partial_rotary_factor", 1.0)? {
        1.0 => Ok(()),
        part => Err(format!("partial_rotary_factor {part} is not supported: whole heads rotate")),
    }
}

struct Rope {
    theta: f32,
    scaling: RopeScaling,
}

impl Rope {
    /// Both spellings: `rope_theta` and `rope_scaling`, or all of it in `rope_parameters`.
    fn from_json(json: Keys<'_>, defaults: &Defaults) -> Result<Self, String> {
        let theta = json.float("rope_theta", defaults.theta)?;
        if let Some(parameters) = json.object("rope_parameters")? {
            return Ok(Self { theta: parameters.float("rope_theta", theta)?, scaling: Self::scaling(parameters)? });
        }
        let scaling = json.object("rope_scaling")?.map_or(Ok(RopeScaling::None), Self::scaling);
        Ok(Self { theta, scaling: scaling? })
    }

    fn scaling(json: Keys<'_>) -> Result<RopeScaling, String> {
        if let Some((key, _)) = json.0.iter().find(|(_, value)| value.is_object()) {
            return Err(format!("rotary parameters for `{key}` alone are not supported"));
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
            other => Err(format!("rotary scaling `{other}` is not supported; `default`, `linear` and `llama3` are")),
        }
    }
}

/// The token ids of a number, a list of numbers, or null.
pub(super) fn token_ids(value: &Value) -> Result<Vec<u32>, String> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| format!("{value} is no token id"));
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(ids) => ids.iter().map(id).collect(),
        one => Ok(vec![id(one)?]),
    }
}

/// A JSON object whose null is as good as missing.
#[derive(Clone, Copy)]
struct Keys<'a>(&'a Map<String, Value>);

impl<'a> Keys<'a> {
    fn get(self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    fn size(self, key: &str, default: Option<usize>) -> Result<usize, String> {
        let Some(value) = self.get(key) else {
            return default.ok_or_else(|| format!("has no {key}"));
        };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok()).filter(|size| (1..=MOST_SIZE).contains(size));
        size.ok_or_else(|| format!("{key} is {value}; 1 to {MOST_SIZE} is supported"))
    }

    fn float(self, key: &str, default: f32) -> Result<f32, String> {
        let Some(value) = self.get(key) else { return Ok(default) };
        let float = value.as_f64().map(|float| float as f32).filter(|float| float.is_finite());
        float.ok_or_else(|| format!("{key} is {value}; a number is needed"))
    }

    fn needed(self, key: &str) -> Result<f32, String> {
        if self.get(key).is_none() {
            return Err(format!("rotary scaling has no {key}"));
        }
        self.float(key, 0.0)
    }

    fn flag(self, key: &str) -> Result<bool, String> {
        let value = self.get(key).unwrap_or(&Value::Bool(false));
        value.as_bool().ok_or_else(|| format!("{key} is {value}; true or false is needed"))
    }

    fn text(self, key: &str) -> Result<Option<&'a str>, String> {
        let text = |value: &'a Value| value.as_str().ok_or_else(|| format!("{key} is {value}; a string is needed"));
        self.get(key).map(text).transpose()
    }

    fn object(self, key: &str) -> Result<Option<Self>, String> {
        let object = |value: &'a Value| value.as_object().map(Self).ok_or_else(|| format!("{key} is {value}; an object is needed"));
        self.get(key).map(object).transpose()
    }

    /// A token that is missing has the default; one that is null is none.
    fn token(self, key: &str, default: u32) -> Result<Option<u32>, String> {
        let Some(value) = self.0.get(key) else { return Ok(Some(default)) };
        match token_ids(value)?.as_slice() {
            [] => Ok(None),
            &[id] => Ok(Some(id)),
            _ => Err(format!("{key} is {value}; one token is needed")),
        }
    }
}
