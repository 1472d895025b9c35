//! The training loop: batches, gradients, AdamW, checkpoints.

use crate::{
    checkpoint::{self, Files, Progress, State},
    data::{Corpus, Order, check_ids},
    error::{Error, Result},
    lesson::{Goal, Lesson},
    memory,
    network::{Batch, Network, Parts, Weight},
    plan::{Kind, ParameterInfo, Plan},
    settings::{Precision, Settings, check_activations},
    source::Source,
    teacher::{Teacher, TeacherState, Tutor},
};
use bitnet_wgpu::{
    Context, Encoder, Tensor,
    formats::ModelConfig,
    optimizer::{self, AdamW, AdamWState},
    tensor,
    weights::PackedTernary,
};
use pollster::block_on;
use serde_json::Value;
use std::path::{Path, PathBuf};

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
    source: Source,
    text: Corpus,
    fingerprint: u64,
    /// A number of the weights that do not learn.
    base: Option<String>,
    order: Order,
    pub(crate) network: Network,
    pub(crate) teacher: Option<Tutor>,
    /// By parameters.
    gradients: Vec<Tensor<f32>>,
    moments: Vec<AdamWState>,
    progress: Progress,
    /// The last step, also where it ended the run.
    report: Option<StepReport>,
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
    /// Number of tokens that were predicted and learned.
    pub tokens: usize,
    /// Norm of all gradients together, before they were clipped.
    pub gradient_norm: f32,
    /// Learning rate.
    pub rate: f32,
    /// Whether the step changed nothing, because loss or gradient was not finite.
    pub skipped: bool,
}

impl Trainer {
    /// Allocates the weights, their gradients and the optimizer's means on a GPU: 16 bytes for each
    /// trained number. With [`Settings::lora`], weights do not learn: linear layers take 2 bits for
    /// each, other weights 4 bytes.
    ///
    /// # Errors
    /// [`Error::Setting`], also for a precision that the device lacks, [`Error::Unsupported`] and
    /// [`Error::Memory`] before anything is allocated;
    /// [`Error::Checkpoint`] for first weights that do not fit; what the device reports.
    pub fn new(
        context: &Context,
        source: Source,
        text: Corpus,
        settings: Settings,
    ) -> Result<Self> {
        Self::taught(context, source, text, settings, None)
    }

    /// As [`new`](Self::new), with the weights of a teacher too, from whose distribution the model
    /// learns: ternary ones take 2 bits for each number, others 4 bytes.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::Teacher`] for a teacher of other tokens.
    pub fn distil(
        context: &Context,
        source: Source,
        text: Corpus,
        settings: Settings,
        teacher: Teacher,
    ) -> Result<Self> {
        teacher.check(source.config(), settings.context)?;
        Self::taught(context, source, text, settings, Some(teacher))
    }

    fn taught(
        context: &Context,
        source: Source,
        text: Corpus,
        settings: Settings,
        teacher: Option<Teacher>,
    ) -> Result<Self> {
        settings.check(source.config())?;
        check_activations(source.json(), settings.linear)?;
        if settings.precision == Precision::Mixed && !context.capabilities().f16 {
            let accepted = "f32 is supported: this device has no f16";
            return Err(Error::setting("the precision", "mixed", accepted));
        }
        let plan = Plan::new(source.config())?;
        memory::check(context, source.config(), &plan, &settings, teacher.as_ref())?;
        check_text(&text, source.config(), &settings)?;
        let (parts, base) = match &settings.lora {
            None => (whole(context, &source, plan, &settings)?, None),
            Some(_) => {
                let (parts, hash) = adapted(context, &source, plan, &settings)?;
                (parts, Some(format!("{hash:016x}")))
            }
        };
        let (mut gradients, mut moments) = (Vec::new(), Vec::new());
        for info in &parts.trained {
            gradients.push(Tensor::zeros(context, info.dimensions())?);
            moments.push(AdamWState::new(context, info.dimensions())?);
        }
        let network = Network::new(context, source.config(), parts, &settings)?;
        let teacher = teacher.map(|teacher| teacher.load(context, &settings)).transpose()?;
        Ok(Self {
            order: Order::new(settings.seed, text.windows()),
            fingerprint: text.fingerprint(),
            source,
            settings,
            text,
            base,
            network,
            teacher,
            gradients,
            moments,
            progress: Progress::default(),
            report: None,
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
        let state = checkpoint::state(path)?;
        let other = |problem: String| Error::Checkpoint { path: path.to_owned(), problem };
        if let Some(name) = self.settings.difference(&state.settings, state.progress.step) {
            return Err(other(format!("was made with another {name}; the same one is needed")));
        }
        let expected = self.state(state.progress);
        if state.config != expected.config {
            return Err(other("was made with another config.json".into()));
        }
        if state.text != expected.text {
            return Err(other("was made with another text or tokenizer".into()));
        }
        if state.base != expected.base {
            return Err(other("was made with another base model".into()));
        }
        let teachers = (state.teacher.as_ref(), expected.teacher.as_ref());
        if let Some(name) = TeacherState::difference(teachers.0, teachers.1) {
            return Err(other(format!("was made with another {name}; the same one is needed")));
        }
        let (trained, weights) = (&self.network.trained, self.weights_file());
        // All is read once before anything is changed.
        checkpoint::load(path, trained, weights, |_, numbers| {
            let is_finite = numbers.iter().flatten().all(|number| number.is_finite());
            let problem = "has numbers that are not finite; resume from an older one";
            if is_finite { Ok(()) } else { Err(other(problem.into())) }
        })?;
        checkpoint::load(path, trained, weights, |i, [weights, mean, square]| {
            self.network.parameters[i].write(&weights)?;
            self.moments[i].mean.write(&mean)?;
            self.moments[i].square.write(&square)?;
            Ok(())
        })?;
        (self.progress, self.last) = (state.progress, Some(path.to_owned()));
        Ok(())
    }

    fn state(&self, progress: Progress) -> State {
        let state = State::new(progress, self.fingerprint, &self.settings, self.source.json());
        let teacher = self.teacher.as_ref().map(|teacher| teacher.state.clone());
        State { base: self.base.clone(), teacher, ..state }
    }

    /// Takes a step: the gradients of all its micro-batches, clipped, then AdamW. If the loss or a
    /// gradient is not finite, nothing is changed, and the next step takes the next windows.
    ///
    /// # Errors
    /// [`Error::Diverged`] after [`Settings::most_skipped`] such steps in a row; what the device
    /// reports.
    pub fn step(&mut self) -> Result<StepReport> {
        let Settings { batch, accumulation, clip, .. } = self.settings;
        let context = self.network.context.clone();
        let sum = Tensor::zeros(&context, [1])?.reshape([])?;
        self.zero_gradients()?;
        let first = self.progress.position;
        let position = first + (batch * accumulation) as u64;
        let windows: Vec<usize> = (first..position).map(|at| self.order.at(at)).collect();
        let batches = windows.chunks(batch).map(|at| Batch::of_text(&context, &self.text, at));
        let batches = batches.collect::<Result<Vec<_>>>()?;
        let tokens: usize = batches.iter().map(|batch| batch.learned).sum();
        self.add_gradients(&batches, tokens, &sum)?;
        let mut encoder = context.encoder("clip");
        let norm = optimizer::clip_gradients(&self.gradients.iter().collect::<Vec<_>>(), clip)
            .forward(&mut encoder)?;
        let _ = encoder.submit()?;
        let loss = f64::from(block_on(sum.read())?[0]) / tokens as f64;
        let gradient_norm = block_on(norm.read())?[0];
        let skipped = !(loss.is_finite() && gradient_norm.is_finite());
        let step = self.progress.step + 1;
        let rate = self.settings.rate_at(step);
        let report = StepReport { step, loss, tokens, gradient_norm, rate, skipped };
        self.report = Some(report);
        if !skipped {
            self.update(&mut context.encoder("update"), rate)?;
        }
        self.advance(position, skipped)?;
        Ok(report)
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
        for (((weights, gradient), moments), info) in parameters.zip(&self.network.trained) {
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
        let state = self.state(self.progress);
        let (last, steps) = (self.last.clone(), self.progress.skipped_in_row);
        let read = |parameter: usize, which: usize| {
            let AdamWState { mean, square, .. } = &self.moments[parameter];
            let tensor = [&self.network.parameters[parameter], mean, square][which];
            let numbers = block_on(tensor.read())?;
            match numbers.iter().all(|number| number.is_finite()) {
                true => Ok(numbers),
                false => Err(Error::Diverged { steps, last: None }),
            }
        };
        // The last good checkpoint stays beside one of weights that no longer give a finite loss.
        let is_good = steps == 0;
        let keep = if is_good { keep } else { keep.saturating_add(1) };
        let config = self.config_file();
        let files = Files {
            trained: &self.network.trained,
            state: &state,
            weights: self.weights_file(),
            config: (config.0, &config.1),
        };
        let path = match checkpoint::save(folder.as_ref(), &files, keep, read) {
            Err(diverged @ Error::Diverged { .. }) => return last.ok_or(diverged),
            saved => saved?,
        };
        if is_good || self.last.is_none() {
            self.last = Some(path.clone());
        }
        Ok(path)
    }

    /// The name of a checkpoint's file of weights.
    fn weights_file(&self) -> &'static str {
        if self.settings.lora.is_some() { checkpoint::ADAPTER } else { checkpoint::WEIGHTS }
    }

    /// The name and contents of the configuration of the weights, with which training can start from
    /// them, or other programs read them.
    pub(crate) fn config_file(&self) -> (&'static str, Value) {
        let base = self.source.path().unwrap_or(Path::new(""));
        let base = std::path::absolute(base).unwrap_or_else(|_| base.to_owned());
        let base = base.to_string_lossy();
        match &self.settings.lora {
            Some(lora) => (checkpoint::ADAPTER_CONFIG, lora.config(&base)),
            None => (checkpoint::CONFIG, self.source.json().clone()),
        }
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
        windows.iter().try_for_each(|window| check_ids(window, self.source.config()))?;
        let windows: Vec<_> = windows.iter().map(|&window| (window, None)).collect();
        self.gradients_of(&Batch::upload(&self.network.context, &windows, length)?)
    }

    /// Computes the gradients of the mean loss of windows of a text, of which only what is learned
    /// counts, without changing the weights.
    ///
    /// # Errors
    /// [`Error::Setting`] for other windows than those of the run; what the device reports.
    pub fn compute_gradients_of(&self, text: &Corpus) -> Result<()> {
        check_text(text, self.source.config(), &self.settings)?;
        let all: Vec<usize> = (0..text.windows()).collect();
        self.gradients_of(&Batch::of_text(&self.network.context, text, &all)?)
    }

    fn gradients_of(&self, batch: &Batch) -> Result<()> {
        self.zero_gradients()?;
        let sum = Tensor::zeros(&self.network.context, [1])?.reshape([])?;
        self.add_gradients(std::slice::from_ref(batch), batch.learned, &sum)
    }

    /// Adds the gradients of the mean loss of `tokens` tokens to gradients that are 0, and the sum
    /// of losses to `sum`.
    fn add_gradients(&self, batches: &[Batch], tokens: usize, sum: &Tensor<f32>) -> Result<()> {
        let mean = 1.0 / tokens as f32;
        let (factor, scale) = match self.settings.precision {
            Precision::F32 => (mean, 1.0),
            Precision::Mixed => (1.0, mean),
        };
        for batch in batches {
            let lesson = self.lesson(batch)?;
            let goal = Goal { factor, lesson: lesson.as_ref() };
            self.network.learn(batch, goal, &self.gradients, sum)?;
        }
        if scale == 1.0 {
            return Ok(());
        }
        let mut encoder = self.network.context.encoder("mean");
        for gradient in &self.gradients {
            tensor::scale(gradient, scale).forward_into(&mut encoder, gradient)?;
        }
        let _ = encoder.submit()?;
        Ok(())
    }

    /// Computes what the teacher says of a batch.
    pub(crate) fn lesson(&self, batch: &Batch) -> Result<Option<Lesson>> {
        self.teacher.as_ref().map(|teacher| teacher.lesson(batch)).transpose()
    }

    /// Returns the names, shapes and kinds of what is trained.
    pub fn parameters(&self) -> &[ParameterInfo] {
        &self.network.trained
    }

    /// Returns what is trained on the GPU, float weights or adapters, in the order of [`parameters`](Self::parameters).
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

    /// Returns the last step, also one after which [`step`](Self::step) failed.
    pub fn last_step(&self) -> Option<StepReport> {
        self.report
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }
}

/// Uploads a model of which all parameters learn.
fn whole(context: &Context, source: &Source, plan: Plan, settings: &Settings) -> Result<Parts> {
    let mut parameters = Vec::new();
    for (index, info) in plan.parameters.iter().enumerate() {
        let numbers = source.initial(index, info, settings.seed)?;
        parameters.push(context.upload(&numbers, info.dimensions())?);
    }
    let weights = parameters.iter().cloned().map(Weight::Float).collect();
    let (trained, adapters) = (plan.parameters.clone(), vec![None; plan.parameters.len()]);
    Ok(Parts { plan, weights, trained, parameters, adapters })
}

/// Uploads a model whose adapters learn, and returns a number of its weights (FNV-1a).
fn adapted(
    context: &Context,
    source: &Source,
    plan: Plan,
    settings: &Settings,
) -> Result<(Parts, u64)> {
    let (trained, adapters) = match &settings.lora {
        Some(lora) => lora.adapters(&plan)?,
        None => (Vec::new(), vec![None; plan.parameters.len()]),
    };
    let (mut weights, mut hash) = (Vec::new(), 0xcbf2_9ce4_8422_2325u64);
    let mut mix = |word: u32| hash = (hash ^ u64::from(word)).wrapping_mul(0x100_0000_01b3);
    for (index, info) in plan.parameters.iter().enumerate() {
        if info.kind == Kind::Linear {
            let matrix: PackedTernary = source.ternary(index, info, settings.seed)?;
            matrix.words().iter().copied().for_each(&mut mix);
            mix(crate::ternary::scale(&matrix).unwrap_or_default().to_bits());
            weights.push(Weight::Ternary(matrix.upload(context)?));
        } else {
            let numbers = source.initial(index, info, settings.seed)?;
            numbers.iter().for_each(|number| mix(number.to_bits()));
            weights.push(Weight::Float(context.upload(&numbers, info.dimensions())?));
        }
    }
    let mut parameters = Vec::new();
    for (index, info) in trained.iter().enumerate() {
        let numbers = crate::lora::initial(index, info, settings.seed);
        parameters.push(context.upload(&numbers, info.dimensions())?);
    }
    Ok((Parts { plan, weights, trained, parameters, adapters }, hash))
}

fn check_text(text: &Corpus, config: &ModelConfig, settings: &Settings) -> Result<()> {
    if text.context() != settings.context {
        let accepted = format!("windows of the context, {}, are needed", settings.context);
        return Err(Error::setting("the length of windows", text.context(), accepted));
    }
    check_ids(text.ids(), config)
}
