//! Whole models: load a BitNet checkpoint, generate text, score text; on a GPU or on the processor.
//!
//! ```no_run
//! use bitnet_wgpu::{Context, model::{GenerateOptions, Model}};
//!
//! # fn main() -> bitnet_wgpu::Result<()> {
//! let context = pollster::block_on(Context::new())?;
//! let model = Model::load(&context, "assets/tales-22m")?;
//! for token in model.generate("Once upon a time", &GenerateOptions::default())? {
//!     print!("{}", token?.text);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Model::generate`] gives an iterator that blocks and a [`Stream`](futures_core::Stream) in one; [`Model::logits`] and [`Model::score`] are futures
//! for any executor. A [`Session`] is the layer below: sequences, their key-value caches, prefill and decode.

mod cpu;
mod generate;
mod gpu;
mod layers;
mod sampling;
mod session;
mod tokenizer;

pub use generate::{GenerateOptions, Generation, Stop, Token};
pub use sampling::{Sampler, Sampling};
pub use session::{Session, SessionOptions};
pub use tokenizer::{Message, TextStream, Tokenizer};

use crate::{
    Context, Element, Error, Recording, Result, Tensor,
    formats::{self, Checkpoint, Gguf, I2sLayout, ModelConfig, ModelFile},
};
use cpu::CpuModel;
use gpu::{GpuModel, GpuSession};
use layers::{HostEnds, HostLayer};
use rayon::prelude::*;
use std::{path::Path, sync::Arc};

/// Rows of logits that are computed together, where all of them are wanted.
const LOGIT_ROWS: usize = 64;

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
    inner: Arc<Inner>,
}

struct Inner {
    config: ModelConfig,
    tokenizer: Option<Tokenizer>,
    engine: Engine,
}

enum Engine {
    Gpu(Box<GpuModel>),
    Cpu(Box<CpuModel>),
}

impl Model {
    /// Loads a model directory or a .gguf file to the GPU.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Format`] for what is wrong with the files; [`Error::TooLarge`] for a tensor that the device cannot bind.
    pub fn load(context: &Context, path: impl AsRef<Path>) -> Result<Self> {
        Self::load_with(Some(context), path, LoadOptions::default())
    }

    /// Loads a model to compute on the processor, without any GPU.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_cpu(path: impl AsRef<Path>) -> Result<Self> {
        Self::load_with(None, path, LoadOptions::default())
    }

    /// Loads a model to a GPU, or for the processor without a context.
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
        let mut progress = |done| {
            if let Some(progress) = &mut options.progress {
                progress(done, config.layers);
            }
        };
        progress(0);
        let engine = match context {
            Some(context) => {
                let mut model = GpuModel::new(context, &config, &ends)?;
                drop(ends);
                for layer in 0..config.layers {
                    model.push(&HostLayer::read(file, layer)?)?;
                    progress(layer + 1);
                }
                Engine::Gpu(Box::new(model))
            }
            None => {
                let mut layers = Vec::new();
                for layer in 0..config.layers {
                    layers.push(HostLayer::read(file, layer)?);
                    progress(layer + 1);
                }
                Engine::Cpu(Box::new(CpuModel { config: config.clone(), ends, layers }))
            }
        };
        Ok(Self { inner: Arc::new(Inner { config, tokenizer, engine }) })
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.inner.config
    }

    /// The tokenizer, where its files were there.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] where they were not: such a model takes ids only.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.inner.tokenizer.as_ref().ok_or_else(|| Error::Tokenizer { message: "the model came without one; it takes ids".into() })
    }

    /// The device that it is on; none for the processor.
    pub fn context(&self) -> Option<&Context> {
        match &self.inner.engine {
            Engine::Gpu(model) => Some(&model.context),
            Engine::Cpu(_) => None,
        }
    }

    /// Room for sequences.
    ///
    /// # Errors
    /// [`Error::Context`] for more capacity than the model's context; [`Error::Invalid`] for none; what the device reports.
    pub fn session(&self, options: SessionOptions) -> Result<Session> {
        Session::new(self.inner.clone(), options)
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
        let options = SessionOptions { sequences: 1, capacity: ids.len().max(1), cache: Element::F32 };
        self.session(options)?.prefill_all(0, ids, rows).await
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
        match &self.inner.engine {
            Engine::Gpu(model) => model.layer_output(layer, hidden).await,
            Engine::Cpu(model) => model.layer_output(layer, hidden),
        }
    }

    /// The dispatches that a prompt takes, as they are recorded for this device, and the tensor that gets the last logits: to be profiled,
    /// printed, or run elsewhere.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a model that is not on a GPU; else as [`Model::logits`].
    pub fn record_prompt(&self, ids: &[u32]) -> Result<(Recording, Tensor<f32>)> {
        // The checks of a session of this size.
        self.session(SessionOptions { sequences: 1, capacity: ids.len().max(1), cache: Element::F32 })?.check(0, ids)?;
        match &self.inner.engine {
            Engine::Gpu(model) => GpuSession::new(model, 1, ids.len(), Element::F32)?.record_prompt(model, ids),
            Engine::Cpu(_) => Err(Error::Invalid { op: "model", what: "nothing is recorded on the processor".into() }),
        }
    }
}

impl Inner {
    fn ends_text(&self, id: u32) -> bool {
        self.config.eos.contains(&id) || self.tokenizer.as_ref().is_some_and(|tokenizer| tokenizer.eos().contains(&id))
    }

    fn check_tokens(&self, ids: &[u32]) -> Result<()> {
        match ids.iter().find(|&&id| id as usize >= self.config.vocab) {
            Some(id) => Err(Error::Invalid { op: "model", what: format!("token {id}; the vocabulary has {}", self.config.vocab) }),
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let c = self.config();
        let device = self.context().map_or("processor", |context| &context.capabilities().adapter);
        write!(f, "Model({}, {} layers × {}, on {device})", c.architecture, c.layers, c.hidden)
    }
}

/// In `f64`: sums over a vocabulary.
fn negative_log_likelihood(logits: &[f32], target: u32) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    sum.ln() - f64::from(logits[target as usize] - largest)
}
