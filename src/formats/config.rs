//! What a checkpoint says of its model.

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
