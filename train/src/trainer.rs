//! The training loop: batches, gradients, AdamW, checkpoints.

use crate::{
    checkpoint::{self, Numbers, Progress, State},
    data::{Corpus, Order},
    error::{Error, Result},
    network::{Batch, Network},
    plan::{Kind, ParameterInfo, Plan},
    settings::{Settings, check_activations},
    source::Source,
};
use bitnet_wgpu::{
    Context, Encoder, Error as LibraryError, Tensor,
    formats::ModelConfig,
    optimizer::{self, AdamW, AdamWState},
    tensor,
};
use pollster::block_on;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Bytes on the GPU per trained number: the weight, its gradient, two means.
const BYTES: u64 = 16;

/// Trains a model. Each [`step`](Self::step) takes the next windows of a text and changes the
/// weights.
///
/// ```no_run
/// use bitnet_train::{Corpus, DenseElement, Settings, Source, Trainer, end_of_text};
/// use bitnet_wgpu::{Context, model::Tokenizer};
///
/// # fn main() -> bitnet_train::Result<()> {
/// let folder = "assets/tales-22m";
/// let (source, tokenizer) = (Source::from_config(folder)?, Tokenizer::from_directory(folder)?);
/// let settings = Settings::new(1000, 8, 256);
/// settings.check(source.config())?;
/// let end = end_of_text(&tokenizer, source.config(), folder.as_ref())?;
/// let (text, held_out) = Corpus::read(&["texts".into()], &tokenizer, end, 256)?.split(16)?;
///
/// let context = pollster::block_on(Context::new())?;
/// let mut trainer = Trainer::new(&context, source, text, settings)?;
/// while !trainer.is_done() {
///     let step = trainer.step()?;
///     println!("{}: {:.4}", step.step, step.loss);
/// }
/// trainer.export("my-model", folder, DenseElement::Bf16)?;
/// println!("{:.4}", trainer.loss(&held_out)?);
/// # Ok(())
/// # }
/// ```
pub struct Trainer {
    settings: Settings,
    config: ModelConfig,
    json: Value,
    text: Corpus,
    fingerprint: u64,
    order: Order,
    network: Network,
    /// By parameters.
    gradients: Vec<Tensor<f32>>,
    moments: Vec<AdamWState>,
    progress: Progress,
    /// The last checkpoint that was written or read.
    last: Option<PathBuf>,
}

/// What a step has done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Number of the step; the first is 1.
    pub step: u64,
    /// Mean loss of a token before the step, in nats.
    pub loss: f64,
    /// Norm of all gradients together, before they were clipped.
    pub gradient_norm: f32,
    /// Learning rate.
    pub rate: f32,
    /// Whether the step changed nothing, because loss or gradient was not finite.
    pub skipped: bool,
}

impl Trainer {
    /// Allocates the weights, their gradients and the optimizer's means on a GPU: 16 bytes for each
    /// trained number.
    ///
    /// # Errors
    /// [`Error::Setting`] and [`Error::Unsupported`] before anything is allocated;
    /// [`Error::Checkpoint`] for first weights that do not fit; what the device reports.
    pub fn new(
        context: &Context,
        source: Source,
        text: Corpus,
        settings: Settings,
    ) -> Result<Self> {
        settings.check(source.config())?;
        check_activations(source.json(), settings.linear)?;
        let plan = Plan::new(source.config())?;
        check_fits(context, &plan)?;
        check_text(&text, source.config(), &settings)?;
        let (mut parameters, mut gradients, mut moments) = (Vec::new(), Vec::new(), Vec::new());
        for (index, info) in plan.parameters.iter().enumerate() {
            let numbers = source.initial(index, info, settings.seed)?;
            parameters.push(context.upload(&numbers, info.dimensions())?);
            gradients.push(Tensor::zeros(context, info.dimensions())?);
            moments.push(AdamWState::new(context, info.dimensions())?);
        }
        let on = (context, settings.context);
        let network = Network::new(source.config(), plan, parameters, settings.linear, on)?;
        Ok(Self {
            order: Order::new(settings.seed, text.windows()),
            fingerprint: text.fingerprint(),
            config: source.config().clone(),
            json: source.json().clone(),
            settings,
            text,
            network,
            gradients,
            moments,
            progress: Progress::default(),
            last: None,
        })
    }

    /// Goes on from a checkpoint, with the bits of a run that was not interrupted.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for one of another model, text or setting; it names the first that
    /// differs. [`Error::Library`] for damaged files.
    pub fn resume(&mut self, checkpoint: impl AsRef<Path>) -> Result<()> {
        let path = checkpoint.as_ref();
        let (numbers, state) = checkpoint::load(path, &self.network.plan)?;
        let other = |problem: String| Error::Checkpoint { path: path.to_owned(), problem };
        if let Some(name) = self.settings.difference(&state.settings, state.progress.step) {
            return Err(other(format!("was made with another {name}; the same one is needed")));
        }
        let expected = State::new(state.progress, self.fingerprint, &self.settings, &self.json);
        if state.config != expected.config {
            return Err(other("was made with another config.json".into()));
        }
        if state.text != expected.text {
            return Err(other("was made with another text or tokenizer".into()));
        }
        if !all_finite(&numbers) {
            return Err(other("has numbers that are not finite; resume from an older one".into()));
        }
        for (i, [weights, mean, square]) in numbers.iter().enumerate() {
            self.network.parameters[i].write(weights)?;
            self.moments[i].mean.write(mean)?;
            self.moments[i].square.write(square)?;
        }
        (self.progress, self.last) = (state.progress, Some(path.to_owned()));
        Ok(())
    }

    /// Takes a step: the gradients of all its micro-batches, clipped, then AdamW. If the loss or a
    /// gradient is not finite, nothing is changed, and the next step takes the next windows.
    ///
    /// # Errors
    /// [`Error::Diverged`] after [`Settings::most_skipped`] such steps in a row; what the device
    /// reports.
    pub fn step(&mut self) -> Result<StepReport> {
        let Settings { batch, accumulation, context: length, clip, .. } = self.settings;
        let context = self.network.context.clone();
        let tokens = self.settings.tokens();
        let sum = Tensor::zeros(&context, [1])?.reshape([])?;
        self.zero_gradients()?;
        let mut position = self.progress.position;
        for _ in 0..accumulation {
            let indices: Vec<usize> =
                (position..position + batch as u64).map(|at| self.order.at(at)).collect();
            let windows = indices.iter().map(|&index| self.text.window(index));
            let batch = Batch::upload(&context, windows, length)?;
            self.network.learn(&batch, 1.0 / tokens as f32, &self.gradients, &sum)?;
            position += indices.len() as u64;
        }
        let mut encoder = context.encoder("clip");
        let norm = optimizer::clip_gradients(&self.gradients.iter().collect::<Vec<_>>(), clip)
            .forward(&mut encoder)?;
        let _ = encoder.submit()?;
        let loss = f64::from(block_on(sum.read())?[0]) / tokens as f64;
        let gradient_norm = block_on(norm.read())?[0];
        let skipped = !(loss.is_finite() && gradient_norm.is_finite());
        let step = self.progress.step + 1;
        let rate = self.settings.rate_at(step);
        if !skipped {
            self.update(&mut context.encoder("update"), rate)?;
        }
        self.advance(position, skipped)?;
        Ok(StepReport { step, loss, gradient_norm, rate, skipped })
    }

    fn zero_gradients(&self) -> Result<()> {
        let mut encoder = self.network.context.encoder("zero");
        for gradient in &self.gradients {
            tensor::fill(0.0).forward_into(&mut encoder, gradient)?;
        }
        let _ = encoder.submit()?;
        Ok(())
    }

    /// Changes the weights along their gradients.
    fn update(&self, encoder: &mut Encoder, rate: f32) -> Result<()> {
        let Settings { betas: (mean, square), decay, .. } = self.settings;
        let adamw = AdamW::new(rate).betas(mean, square);
        let parameters = self.network.parameters.iter().zip(&self.gradients).zip(&self.moments);
        for (((weights, gradient), moments), info) in parameters.zip(&self.network.plan.parameters)
        {
            let adamw = adamw.decay(if info.kind == Kind::Gain { 0.0 } else { decay });
            adamw.step(encoder, self.progress.updates + 1, weights, gradient, moments)?;
        }
        let all = std::mem::replace(encoder, encoder.context().encoder("update"));
        let _ = all.submit()?;
        Ok(())
    }

    /// Counts a step.
    fn advance(&mut self, position: u64, skipped: bool) -> Result<()> {
        let progress = &mut self.progress;
        progress.step += 1;
        progress.position = position;
        if !skipped {
            progress.updates += 1;
            progress.skipped_in_row = 0;
            return Ok(());
        }
        progress.skipped += 1;
        progress.skipped_in_row += 1;
        if progress.skipped_in_row >= self.settings.most_skipped {
            let (steps, last) = (progress.skipped_in_row, self.last.clone());
            return Err(Error::Diverged { steps, last });
        }
        Ok(())
    }

    /// Writes a checkpoint to a folder within `folder`, keeps the last `keep` of them, and returns
    /// its path. If a weight is no longer finite, nothing is written, and the path is that of the
    /// last checkpoint.
    ///
    /// # Errors
    /// [`Error::Diverged`] if a weight is not finite and there is no checkpoint; what the device or
    /// the disk reports.
    pub fn save(&mut self, folder: impl AsRef<Path>, keep: usize) -> Result<PathBuf> {
        let read = |tensor: &Tensor<f32>| block_on(tensor.read());
        let numbers =
            self.network.parameters.iter().zip(&self.moments).map(|(weights, moments)| {
                Ok([read(weights)?, read(&moments.mean)?, read(&moments.square)?])
            });
        let numbers: Vec<Numbers> = numbers.collect::<Result<_>>()?;
        if !all_finite(&numbers) {
            let diverged = Error::Diverged { steps: self.progress.skipped_in_row, last: None };
            return self.last.clone().ok_or(diverged);
        }
        let state = State::new(self.progress, self.fingerprint, &self.settings, &self.json);
        // The last good checkpoint stays beside one of weights that no longer give a finite loss.
        let is_good = self.progress.skipped_in_row == 0;
        let keep = if is_good { keep } else { keep.saturating_add(1) };
        let path = checkpoint::save(folder.as_ref(), &self.network.plan, &numbers, &state, keep)?;
        if is_good || self.last.is_none() {
            self.last = Some(path.clone());
        }
        Ok(path)
    }

    /// Returns the mean loss of a token of other windows, in nats, by the forward pass of training.
    ///
    /// # Errors
    /// [`Error::Setting`] for windows of more tokens than those of the run; what the device reports.
    pub fn loss(&self, text: &Corpus) -> Result<f64> {
        let length = text.window(0).len() - 1;
        if length > self.settings.context {
            let accepted = format!("at most {} tokens are supported", self.settings.context);
            return Err(Error::setting("the length of held-out windows", length, accepted));
        }
        check_ids(text.ids(), &self.config)?;
        let (mut sum, count) = (0.0, text.windows());
        for first in (0..count).step_by(self.settings.batch) {
            let windows = (first..count.min(first + self.settings.batch)).map(|i| text.window(i));
            let batch = Batch::upload(&self.network.context, windows, length)?;
            let losses = block_on(self.network.losses(&batch)?.read())?;
            sum += losses.iter().map(|&loss| f64::from(loss)).sum::<f64>();
        }
        Ok(sum / (count * length) as f64)
    }

    /// Computes the gradients of the mean loss of some windows, `[context + 1]` ids each, without
    /// changing the weights. They are in [`gradients`](Self::gradients) until the next step.
    ///
    /// # Errors
    /// [`Error::Setting`] for no windows, or windows of another length; what the device reports.
    pub fn compute_gradients(&self, windows: &[&[u32]]) -> Result<()> {
        let length = self.settings.context;
        if windows.is_empty() || windows.iter().any(|window| window.len() != length + 1) {
            let accepted = format!("windows of {} ids are needed", length + 1);
            return Err(Error::setting("a window", "of another length", accepted));
        }
        windows.iter().try_for_each(|window| check_ids(window, &self.config))?;
        let context = &self.network.context;
        self.zero_gradients()?;
        let batch = Batch::upload(context, windows.iter().copied(), length)?;
        let sum = Tensor::zeros(context, [1])?.reshape([])?;
        let share = 1.0 / (windows.len() * length) as f32;
        self.network.learn(&batch, share, &self.gradients, &sum)
    }

    /// Returns the names, shapes and kinds of the parameters.
    pub fn parameters(&self) -> &[ParameterInfo] {
        &self.network.plan.parameters
    }

    /// Returns the float weights on the GPU, in the order of [`parameters`](Self::parameters).
    pub fn weights(&self) -> &[Tensor<f32>] {
        &self.network.parameters
    }

    /// Returns the gradients of the last step on the GPU, clipped, in the order of
    /// [`parameters`](Self::parameters).
    pub fn gradients(&self) -> &[Tensor<f32>] {
        &self.gradients
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns where the run is.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Returns whether all steps have been taken.
    pub fn is_done(&self) -> bool {
        self.progress.step >= self.settings.steps
    }

    pub(crate) fn source_json(&self) -> &Value {
        &self.json
    }

    pub(crate) fn is_tied(&self) -> bool {
        self.config.tied_head
    }

    /// Copies the float weights to host memory.
    pub(crate) fn read_weights(&self) -> Result<Vec<Vec<f32>>> {
        Ok(self
            .weights()
            .iter()
            .map(|tensor| block_on(tensor.read()))
            .collect::<bitnet_wgpu::Result<_>>()?)
    }
}

fn all_finite(numbers: &[Numbers]) -> bool {
    numbers.iter().flatten().flatten().all(|number| number.is_finite())
}

/// Checks that the device can bind each tensor, and that a memory limit has room for all.
fn check_fits(context: &Context, plan: &Plan) -> Result<()> {
    let limit = context.capabilities().max_binding_bytes;
    for info in &plan.parameters {
        let bytes = 4 * info.shape.iter().map(|&n| n as u64).product::<u64>();
        if bytes > limit {
            let what = info.name.clone();
            return Err(LibraryError::TooLarge { what, bytes, limit }.into());
        }
    }
    let bytes = BYTES * plan.numbers();
    match context.memory_stats().limit {
        Some(limit) if bytes > limit => {
            let what = "weights, gradients and the optimizer's means".to_owned();
            let live = context.live_memory();
            Err(LibraryError::MemoryLimit { what, bytes, limit, live }.into())
        }
        _ => Ok(()),
    }
}

fn check_text(text: &Corpus, config: &ModelConfig, settings: &Settings) -> Result<()> {
    let length = text.window(0).len() - 1;
    if length != settings.context {
        let accepted = format!("windows of the context, {}, are needed", settings.context);
        return Err(Error::setting("the length of windows", length, accepted));
    }
    check_ids(text.ids(), config)
}

fn check_ids(ids: &[u32], config: &ModelConfig) -> Result<()> {
    match ids.iter().find(|&&id| id as usize >= config.vocab) {
        Some(id) => {
            let accepted = format!("ids below the vocab_size of {} are needed", config.vocab);
            Err(Error::setting("a token", id, accepted))
        }
        None => Ok(()),
    }
}
