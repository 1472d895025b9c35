//! A loaded model: what it is made of, and everything that can be done with it.

use super::{
    cpu::CpuModel,
    engine::{Engine, SessionOptions},
    generate::{self, GenerateOptions, Generation},
    gpu::GpuModel,
    layers::{HostEnds, HostLayer},
    session::Session,
    tokenizer::{chat::Message, text::Tokenizer},
};
use crate::{
    element::Element,
    error::{Error, Result},
    formats::{self, Checkpoint, Gguf, I2sLayout, ModelConfig, ModelFile},
    gpu::{context::Context, recording::Recording, tensor::Tensor},
};
use rayon::prelude::*;
use std::{path::Path, sync::Arc};

/// How a model is loaded.
#[derive(Default)]
pub struct LoadOptions<'a> {
    /// Quantise the head (the embedding too, where it is the head) to 8 bits with a scale a row: half the bytes, and on a large vocabulary most
    /// of what a token costs. Else it stays as it is stored.
    pub int8_head: bool,
    /// How I2_S tensors of a GGUF file lie; see [`I2sLayout`].
    pub i2s_layout: I2sLayout,
    /// Called with the layers that are loaded, and how many there are.
    pub progress: Option<&'a mut dyn FnMut(usize, usize)>,
}

/// A loaded model. Clones share it.
#[derive(Clone)]
pub struct Model {
    engine: Arc<dyn Engine>,
    tokenizer: Option<Tokenizer>,
}

impl Model {
    /// Loads a model directory or a .gguf file to the GPU.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Format`] for what is wrong with the files; [`Error::TooLarge`] for a tensor that the device cannot bind.
    pub fn load(context: &Context, path: impl AsRef<Path>) -> Result<Self> {
        Self::load_with(Some(context), path, LoadOptions::default())
    }

    /// Loads a model to compute on the CPU, without any GPU.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_cpu(path: impl AsRef<Path>) -> Result<Self> {
        Self::load_with(None, path, LoadOptions::default())
    }

    /// Loads a model to a GPU, or for the CPU without a context.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_with(context: Option<&Context>, path: impl AsRef<Path>, options: LoadOptions<'_>) -> Result<Self> {
        let path = path.as_ref();
        match formats::kind(path)? {
            formats::Kind::Directory(directory) => {
                let tokenizer = directory.join("tokenizer.json").exists().then(|| Tokenizer::from_directory(&directory)).transpose()?;
                Self::from_file(context, &Checkpoint::open(&directory)?, tokenizer, options)
            }
            formats::Kind::Gguf => {
                let file = Gguf::open(path)?.with_i2s_layout(options.i2s_layout);
                let tokenizer = match file.file().get("tokenizer.ggml.model") {
                    Some(_) => Some(Tokenizer::from_gguf(&file.vocabulary()?)?),
                    None => None,
                };
                Self::from_file(context, &file, tokenizer, options)
            }
        }
    }

    /// Builds a model from any source of weights.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn from_file(
        context: Option<&Context>,
        file: &dyn ModelFile,
        tokenizer: Option<Tokenizer>,
        mut options: LoadOptions<'_>,
    ) -> Result<Self> {
        let config = file.config().clone().checked().map_err(|what| Error::Invalid { op: "model", what })?;
        config.attention().check("model")?;
        let ends = HostEnds::read(file, options.int8_head)?;
        let count = config.layers;
        let mut progress = |done| {
            if let Some(progress) = &mut options.progress {
                progress(done, count);
            }
        };
        // Read as the engine asks for them, so that one layer at a time is in host memory on the way to a GPU.
        let layers = (0..count).map(|layer| {
            progress(layer);
            HostLayer::read(file, layer)
        });
        let engine: Arc<dyn Engine> = match context {
            Some(context) => Arc::new(GpuModel::new(context, config, ends, layers)?),
            None => Arc::new(CpuModel { layers: layers.collect::<Result<_>>()?, config, ends }),
        };
        progress(count);
        Ok(Self { engine, tokenizer })
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        self.engine.config()
    }

    /// The tokenizer, where its files were there.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] where they were not: such a model takes ids only.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| Error::Tokenizer { message: "the model came without one; it takes ids".into() })
    }

    /// The device that it is on; none for the CPU.
    pub fn context(&self) -> Option<&Context> {
        self.engine.context()
    }

    /// Room for sequences.
    ///
    /// # Errors
    /// [`Error::Context`] for more capacity than the model's context; [`Error::Invalid`] for none; what the device reports.
    pub fn session(&self, options: SessionOptions) -> Result<Session> {
        Session::new(self.engine.clone(), options)
    }

    /// The logits after every token of `ids`, `[ids.len(), vocab]`.
    ///
    /// # Errors
    /// [`Error::Context`] for more tokens than the model's context; [`Error::Invalid`] for none, or tokens that are not in the vocabulary.
    pub async fn logits(&self, ids: &[u32]) -> Result<Vec<f32>> {
        let mut logits = Vec::new();
        self.all_logits(ids, |rows| logits.extend(rows)).await?;
        Ok(logits)
    }

    /// The negative log-likelihood, in nats, of every token of `ids` but the first, given those before it.
    ///
    /// # Errors
    /// As [`Model::logits`].
    pub async fn score(&self, ids: &[u32]) -> Result<Vec<f64>> {
        let (mut scores, vocab) = (Vec::new(), self.config().vocab);
        self.all_logits(ids, |rows| {
            let targets = ids[scores.len() + 1..].par_iter();
            scores.par_extend(rows.par_chunks(vocab).zip(targets).map(|(row, &target)| negative_log_likelihood(row, target)));
        })
        .await?;
        Ok(scores)
    }

    async fn all_logits(&self, ids: &[u32], rows: impl FnMut(Vec<f32>) + Send) -> Result<()> {
        self.session_of(ids.len())?.prefill_all(0, ids, rows).await
    }

    /// Room for one sequence of so many tokens.
    fn session_of(&self, tokens: usize) -> Result<Session> {
        self.session(SessionOptions { sequences: 1, capacity: tokens.max(1), cache: Element::F32 })
    }

    /// What a layer makes of hidden states `[tokens, hidden]` at the beginning of a text: for comparisons, layer by layer.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such layer; [`Error::Length`] if `hidden` is not whole rows.
    pub async fn layer_output(&self, layer: usize, hidden: &[f32]) -> Result<Vec<f32>> {
        let c = self.config();
        if layer >= c.layers {
            return Err(Error::Invalid { op: "model", what: format!("layer {layer}; there are {}", c.layers) });
        }
        if !hidden.len().is_multiple_of(c.hidden) || hidden.is_empty() {
            return Err(Error::Length { shape: [hidden.len() / c.hidden, c.hidden].into(), found: hidden.len() });
        }
        let options = SessionOptions { sequences: 1, capacity: hidden.len() / c.hidden, cache: Element::F32 };
        self.engine.clone().session(options)?.layer_output(layer, hidden)?.await
    }

    /// The dispatches that a prompt takes, as they are recorded for this device, and the tensor that gets the last logits: to be profiled,
    /// printed, or run elsewhere.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a model that is not on a GPU; else as [`Model::logits`].
    pub fn record_prompt(&self, ids: &[u32]) -> Result<(Recording, Tensor<f32>)> {
        self.session_of(ids.len())?.record(ids)
    }

    /// Continues a text, which gets BOS as the tokenizer's own template and configuration say.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the model has none; else as [`Model::generate_ids`].
    pub fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<Generation> {
        self.generate_ids(&self.encode_prompt(prompt)?, options)
    }

    /// The tokens of a text as [`Model::generate`] takes it. An empty text is BOS, whatever the tokenizer adds.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<u32>> {
        let mut ids = self.tokenizer()?.encode(prompt)?;
        if ids.is_empty() {
            ids.extend(self.config().bos);
        }
        Ok(ids)
    }

    /// Continues a conversation with the assistant's turn, as the model's chat template writes it.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] if it has none, or if it refuses the messages; else as [`Model::generate`].
    pub fn chat(&self, messages: &[Message], options: &GenerateOptions) -> Result<Generation> {
        self.generate_ids(&self.tokenizer()?.chat(messages)?, options)
    }

    /// Continues a prompt of token ids, which are taken as they are.
    ///
    /// # Errors
    /// [`Error::Context`] if the prompt does not fit into the model's context; [`Error::Invalid`] for no tokens, tokens that are not in the
    /// vocabulary, or options outside their domain.
    pub fn generate_ids(&self, prompt: &[u32], options: &GenerateOptions) -> Result<Generation> {
        let session = self.session(options.room(1, prompt.len(), self.config().context)?)?;
        let text = self.tokenizer.as_ref().map(Tokenizer::stream);
        Generation::new(session, prompt, text, self.ends(options), *options)
    }

    /// Continues several prompts side by side, every weight read once a step for all of them; gives each one's tokens. The n-th prompt draws its random
    /// numbers from seed + n.
    ///
    /// # Errors
    /// As [`Model::generate_ids`].
    pub async fn generate_batch(&self, prompts: &[Vec<u32>], options: &GenerateOptions) -> Result<Vec<Vec<u32>>> {
        options.sampling.check()?;
        if prompts.is_empty() || options.max_tokens == 0 {
            return Ok(vec![Vec::new(); prompts.len()]);
        }
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let session = self.session(options.room(prompts.len(), longest, self.config().context)?)?;
        generate::batch(session, prompts, &self.ends(options), options).await
    }

    /// The tokens at which a generation ends.
    fn ends(&self, options: &GenerateOptions) -> Vec<u32> {
        if options.ignore_eos {
            return Vec::new();
        }
        let tokenizer = self.tokenizer.as_ref().map_or(&[][..], Tokenizer::eos);
        [&self.config().eos, tokenizer].concat()
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let c = self.config();
        let device = self.context().map_or("CPU", |context| &context.capabilities().adapter);
        write!(f, "Model({}, {} layers × {}, on {device})", c.architecture, c.layers, c.hidden)
    }
}

/// In `f64`: sums over a vocabulary.
fn negative_log_likelihood(logits: &[f32], target: u32) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    sum.ln() - f64::from(logits[target as usize] - largest)
}
