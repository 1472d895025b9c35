//! A model whose layers are on several devices. A step goes from one to the next by way of the
//! host; steps follow one another, so that each device computes another of them.

use super::{
    graph::{GpuModel, StepRequest},
    session::GpuSession,
    step::StepOutput,
};
use crate::{
    error::{Error, Result},
    formats::{Hybrid, ModelConfig},
    gpu::{context::Context, recording::Recording, tensor::Tensor},
    memory::Footprint,
    model::engine::{
        interface::{Engine, EngineSession, ModelPart, Pending, SessionOptions, unchosen},
        layers::{HostEnds, HostLayer, LayerKinds},
        sampling_plan::SamplingPlan,
    },
    ops::transformer::HostKvCache,
};
use std::{
    collections::VecDeque,
    ops::Range,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{self, Poll},
};

/// A model in parts, each on a device.
pub(in crate::model) struct SplitModel {
    config: ModelConfig,
    parts: Vec<Arc<GpuModel>>,
}

impl SplitModel {
    /// Uploads the weights, layer by layer as they come, this many to each context or, where that
    /// is empty, as their memory is; with the attention of prompts in f16, or not. What is asked
    /// for has been checked. `kinds` are a layer of each kind.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`] before anything is uploaded, where they will not fit: layers are
    /// taken to be as large as the first of their kind. What the layers report, and the devices.
    pub fn new(
        contexts: &[Context],
        config: ModelConfig,
        host: HostEnds,
        mut layers: impl Iterator<Item = Result<HostLayer>>,
        kinds: LayerKinds,
        (split, f16_attention): (&[usize], bool),
    ) -> Result<Self> {
        let parts = Self::weights(contexts, &config, &host, &kinds, split)?;
        drop(kinds);
        for ModelPart { context, layers, footprint, .. } in &parts {
            context.check_room(footprint.weights, || {
                format!("the weights of layers {} to {}", layers.start, layers.end - 1)
            })?;
        }
        let upload = |part: &ModelPart| {
            host.upload(
                &part.context.with_label(Footprint::WEIGHTS),
                ends_of(&part.layers, &config),
            )
        };
        let ends = parts.iter().map(upload).collect::<Result<Vec<_>>>()?;
        drop(host);
        let mut models = Vec::new();
        for (part, ends) in parts.iter().zip(ends) {
            let local = config.local.as_ref().and_then(|local| local.part(part.layers.clone()));
            let hybrid = config.hybrid.as_ref().map(|hybrid| hybrid.part(part.layers.clone()));
            let own = ModelConfig { layers: part.layers.len(), local, hybrid, ..config.clone() };
            let layers = layers.by_ref().take(part.layers.len());
            models.push(GpuModel::part(&part.context, own, ends, layers, f16_attention)?);
        }
        // Prefill chunks are small enough that there is one for each device.
        let batch = models
            .iter()
            .map(|model| model.batch)
            .min()
            .unwrap_or(1)
            .div_ceil(models.len())
            .next_multiple_of(64);
        models.iter_mut().for_each(|model| model.batch = batch);
        Ok(Self { config, parts: models.into_iter().map(Arc::new).collect() })
    }

    /// Which layers are on which device, and what the weights take there.
    ///
    /// # Errors
    /// What the contexts report.
    pub fn weights(
        contexts: &[Context],
        config: &ModelConfig,
        ends: &HostEnds,
        kinds: &LayerKinds,
        split: &[usize],
    ) -> Result<Vec<ModelPart>> {
        let counts = if split.is_empty() {
            shares(&Self::room(contexts, config, ends, kinds)?, config.layers)
        } else {
            split.to_vec()
        };
        let part = |(context, layers): (&Context, Range<usize>)| {
            let footprint = GpuModel::part_weights(
                context,
                (ends, ends_of(&layers, config)),
                kinds,
                layers.clone(),
            )?;
            Ok(ModelPart { context: context.clone(), layers, footprint })
        };
        contexts.iter().zip(ranges(&counts)).map(part).collect()
    }

    /// The memory that each device has for layers, where it is known.
    fn room(
        contexts: &[Context],
        config: &ModelConfig,
        ends: &HostEnds,
        kinds: &LayerKinds,
    ) -> Result<Vec<Option<u64>>> {
        let room = |(n, context): (usize, &Context)| {
            let which = (n == 0, n + 1 == contexts.len());
            let ends = GpuModel::part_weights(context, (ends, which), kinds, 0..0)?.weights;
            Ok(context.free_memory().map(|free| free.saturating_sub(ends)))
        };
        debug_assert!(contexts.len() <= config.layers);
        contexts.iter().enumerate().map(room).collect()
    }

    fn ranges(&self) -> Vec<Range<usize>> {
        ranges(&self.parts.iter().map(|part| part.config.layers).collect::<Vec<_>>())
    }
}

/// Returns whether the embedding and the LM head are with these layers.
fn ends_of(layers: &Range<usize>, config: &ModelConfig) -> (bool, bool) {
    (layers.start == 0, layers.end == config.layers)
}

/// Runs of this many layers, one after another.
fn ranges(counts: &[usize]) -> Vec<Range<usize>> {
    let run = |end: &mut usize, &count: &usize| {
        let start = *end;
        *end += count;
        Some(start..*end)
    };
    counts.iter().scan(0, run).collect()
}

/// How many of the layers each device gets: by its memory, or as many as others where that of one
/// is not known; one at least.
fn shares(room: &[Option<u64>], layers: usize) -> Vec<usize> {
    let known = room
        .iter()
        .copied()
        .collect::<Option<Vec<u64>>>()
        .filter(|room| room.iter().any(|&bytes| bytes > 0));
    let room: Vec<u128> = known
        .map_or_else(|| vec![1; room.len()], |room| room.into_iter().map(u128::from).collect());
    let all: u128 = room.iter().sum();
    // Where each run ends, to the nearest layer.
    let end = |sum: &mut u128, &bytes: &u128| {
        *sum += bytes;
        Some(((2 * layers as u128 * *sum + all) / (2 * all)) as usize)
    };
    let ends: Vec<usize> = room.iter().scan(0, end).collect();
    let mut counts: Vec<usize> =
        ends.iter().scan(0, |last, &end| Some(end - std::mem::replace(last, end))).collect();
    while let Some(none) = counts.iter().position(|&count| count == 0)
        && let Some(most) =
            (0..counts.len()).max_by_key(|&n| counts[n]).filter(|&most| counts[most] > 1)
    {
        counts[none] += 1;
        counts[most] -= 1;
    }
    counts
}

impl Engine for SplitModel {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn contexts(&self) -> Vec<&Context> {
        self.parts.iter().map(|part| &part.app_context).collect()
    }

    fn session(self: Arc<Self>, options: SessionOptions) -> Result<Box<dyn EngineSession>> {
        let sessions = self
            .parts
            .iter()
            .map(|part| GpuSession::empty(part.clone(), options))
            .collect::<Result<_>>()?;
        Ok(Box::new(SplitSession::new(self, sessions, vec![0; options.sequences])))
    }

    fn parts(&self, options: SessionOptions) -> Result<Vec<ModelPart>> {
        let part = |(part, layers): (&Arc<GpuModel>, Range<usize>)| {
            let mut footprint = part.footprint(options)?;
            if part.ends.head.is_none() {
                // Of every chunk that is under way.
                footprint.staging *= self.parts.len() as u64 + 1;
            }
            Ok(ModelPart { context: part.app_context.clone(), layers, footprint })
        };
        self.parts.iter().zip(self.ranges()).map(part).collect()
    }

    fn warm_up(&self, options: SessionOptions) -> Result<Pending<()>> {
        let parts =
            self.parts.iter().map(|part| part.warm_up(options)).collect::<Result<Vec<_>>>()?;
        Ok(Box::pin(async move {
            for part in parts {
                part.await?;
            }
            Ok(())
        }))
    }
}

struct SplitSession {
    model: Arc<SplitModel>,
    lengths: Vec<usize>,
    flight: Arc<Mutex<Flight>>,
}

/// Steps on their way through the parts, in the order in which they were begun.
struct Flight {
    sessions: Vec<GpuSession>,
    steps: VecDeque<Step>,
    begun: u64,
    /// The tokens that were chosen last.
    next: Vec<u32>,
}

/// A step that is computed by one part after another, whoever polls for any of them.
struct Step {
    number: u64,
    sequences: Vec<usize>,
    /// How many tokens each had before.
    past: Vec<usize>,
    tokens: Vec<u32>,
    output: StepRequest,
    /// Which part computes it.
    part: usize,
    state: State,
}

enum State {
    Computed(Pending<StepOutput>),
    Done(Result<StepOutput>),
}

impl Step {
    /// Has a part compute it.
    fn submit(&self, session: &mut GpuSession, stream: &[f32]) -> Result<Pending<StepOutput>> {
        self.sequences
            .iter()
            .zip(&self.past)
            .for_each(|(&sequence, &past)| session.set_len(sequence, past));
        session.submit(&self.sequences, Some(&self.tokens), stream, self.output)
    }

    /// Goes on as far as it can: to parts at which the step before it was, since each needs its
    /// keys and values.
    fn advance(&mut self, sessions: &mut [GpuSession], before: usize, cx: &mut task::Context<'_>) {
        let last = sessions.len() - 1;
        while let State::Computed(found) = &mut self.state
            && (self.part < before || self.part == last)
            && let Poll::Ready(found) = found.as_mut().poll(cx)
        {
            self.state = match found {
                Ok(StepOutput::Rows(stream)) if self.part < last => {
                    self.part += 1;
                    match self.submit(&mut sessions[self.part], &stream) {
                        Ok(found) => State::Computed(found),
                        Err(error) => State::Done(Err(error)),
                    }
                }
                found => State::Done(found),
            };
        }
    }
}

impl Flight {
    /// What a step gives, if it is done. All steps go on.
    fn poll(&mut self, number: u64, cx: &mut task::Context<'_>) -> Poll<Result<StepOutput>> {
        let mut before = self.sessions.len();
        for step in &mut self.steps {
            step.advance(&mut self.sessions, before, cx);
            before =
                if matches!(step.state, State::Done(_)) { self.sessions.len() } else { step.part };
        }
        let Some(at) = self.steps.iter().position(|step| step.number == number) else {
            return Poll::Ready(Err(unchosen()));
        };
        if matches!(self.steps[at].state, State::Computed(_)) {
            return Poll::Pending;
        }
        let Some(Step { state: State::Done(found), .. }) = self.steps.remove(at) else {
            return Poll::Ready(Err(unchosen()));
        };
        if let Ok(StepOutput::Next(next)) = &found {
            self.next.clone_from(next);
        }
        Poll::Ready(found)
    }
}

/// Awaited, a step is done; dropped, it goes no further. Those of a session are awaited in their
/// order and by one task: who polls moves all of them on, and it is that task that is woken.
struct Underway {
    flight: Arc<Mutex<Flight>>,
    number: u64,
}

impl Future for Underway {
    type Output = Result<StepOutput>;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        locked(&self.flight).poll(self.number, cx)
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        locked(&self.flight).steps.retain(|step| step.number != self.number);
    }
}

fn locked(flight: &Mutex<Flight>) -> MutexGuard<'_, Flight> {
    flight.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SplitSession {
    fn new(model: Arc<SplitModel>, sessions: Vec<GpuSession>, lengths: Vec<usize>) -> Self {
        let flight = Flight { sessions, steps: VecDeque::new(), begun: 0, next: Vec::new() };
        Self { model, lengths, flight: Arc::new(Mutex::new(flight)) }
    }

    /// Begins a step of these tokens, or of those that were chosen last.
    fn begin(
        &mut self,
        sequences: &[usize],
        tokens: Option<&[u32]>,
        output: StepRequest,
    ) -> Result<Pending<StepOutput>> {
        let mut flight = locked(&self.flight);
        let tokens = tokens.map_or_else(|| std::mem::take(&mut flight.next), <[u32]>::to_vec);
        if sequences.is_empty()
            || !tokens.len().is_multiple_of(sequences.len())
            || tokens.is_empty()
        {
            return Err(unchosen());
        }
        flight.begun += 1;
        let (number, past) =
            (flight.begun, sequences.iter().map(|&sequence| self.lengths[sequence]).collect());
        let run = tokens.len() / sequences.len();
        let state = State::Done(Err(unchosen()));
        let mut step =
            Step { number, sequences: sequences.to_vec(), past, tokens, output, part: 0, state };
        let submitted = step.submit(&mut flight.sessions[0], &[]);
        if submitted.is_err() {
            // Less than before, where some recurrent layers may have seen the tokens.
            let own = |&sequence: &usize| flight.sessions[0].len(sequence);
            sequences.iter().for_each(|sequence| self.lengths[*sequence] = own(sequence));
        }
        step.state = State::Computed(submitted?);
        flight.steps.push_back(step);
        sequences.iter().for_each(|&sequence| self.lengths[sequence] += run);
        Ok(Box::pin(Underway { flight: self.flight.clone(), number }))
    }

    /// The sessions of the parts, told how long sequences are.
    fn settled(&self) -> MutexGuard<'_, Flight> {
        let mut flight = locked(&self.flight);
        for session in &mut flight.sessions {
            self.lengths
                .iter()
                .enumerate()
                .for_each(|(sequence, &tokens)| session.set_len(sequence, tokens));
        }
        flight
    }
}

impl EngineSession for SplitSession {
    fn len(&self, sequence: usize) -> usize {
        self.lengths[sequence]
    }

    fn truncate(&mut self, sequence: usize, tokens: usize) {
        if tokens >= self.lengths[sequence] {
            return;
        }
        let mut flight = self.settled();
        let mut left = tokens;
        // Recurrent layers may forget more: all parts, as much as one of them.
        loop {
            flight.sessions.iter_mut().for_each(|session| session.truncate(sequence, left));
            let lengths = flight.sessions.iter().map(|session| session.len(sequence));
            match lengths.min() {
                Some(least) if least < left => left = least,
                _ => break,
            }
        }
        drop(flight);
        self.lengths[sequence] = left;
    }

    fn keep_states(&mut self, sequence: usize) -> Result<()> {
        self.settled().sessions.iter_mut().try_for_each(|session| session.keep_states(sequence))
    }

    fn fork(&self) -> Result<Box<dyn EngineSession>> {
        let sessions =
            self.settled().sessions.iter().map(GpuSession::duplicate).collect::<Result<_>>()?;
        Ok(Box::new(Self::new(self.model.clone(), sessions, self.lengths.clone())))
    }

    fn read(&self) -> Result<Pending<Vec<Vec<HostKvCache>>>> {
        let parts =
            self.settled().sessions.iter().map(GpuSession::read).collect::<Result<Vec<_>>>()?;
        Ok(Box::pin(async move {
            let mut layers = Vec::new();
            for part in parts {
                layers.extend(part.await?);
            }
            Ok(layers)
        }))
    }

    fn write(&mut self, layers: Vec<Vec<HostKvCache>>) -> Result<()> {
        let attention = self.model.config.hybrid.as_ref().map_or(0, Hybrid::first_attention);
        self.lengths = layers
            .get(attention)
            .map_or_else(Vec::new, |layer| layer.iter().map(HostKvCache::len).collect());
        let (mut layers, ranges) = (layers.into_iter(), self.model.ranges());
        let mut flight = locked(&self.flight);
        flight.sessions.iter_mut().zip(ranges).try_for_each(|(session, range)| {
            session.write(layers.by_ref().take(range.len()).collect())
        })
    }

    fn read_states(&self) -> Result<Pending<Vec<Vec<Vec<f32>>>>> {
        let parts = self.settled().sessions.iter().map(GpuSession::read_states).collect::<Vec<_>>();
        let sequences = self.lengths.len();
        Ok(Box::pin(async move {
            let mut all = vec![Vec::new(); sequences];
            for part in parts {
                all.iter_mut().zip(part?.await?).for_each(|(own, states)| own.extend(states));
            }
            Ok(all)
        }))
    }

    fn write_states(&mut self, states: &[Vec<Vec<f32>>]) -> Result<()> {
        let (mut flight, mut from) = (self.settled(), 0);
        for (session, part) in flight.sessions.iter_mut().zip(&self.model.parts) {
            let count = part.config.hybrid.as_ref().map_or(0, |hybrid| hybrid.kept().0);
            let of_part = |own: &Vec<Vec<f32>>| {
                own.iter().skip(from).take(count).cloned().collect::<Vec<_>>()
            };
            session.write_states(&states.iter().map(of_part).collect::<Vec<_>>())?;
            from += count;
        }
        Ok(())
    }

    fn batch(&self) -> usize {
        self.model.parts[0].batch
    }

    fn pieces_ahead(&self) -> usize {
        self.model.parts.len()
    }

    fn extend(
        &mut self,
        sequences: &[usize],
        tokens: &[u32],
        rows: usize,
    ) -> Result<Pending<Vec<f32>>> {
        Ok(Box::pin(StepOutput::rows(self.begin(
            sequences,
            Some(tokens),
            StepRequest::Logits(rows),
        )?)))
    }

    fn states(
        &mut self,
        sequences: &[usize],
        tokens: &[u32],
        rows: usize,
    ) -> Result<Pending<Vec<f32>>> {
        Ok(Box::pin(StepOutput::rows(self.begin(
            sequences,
            Some(tokens),
            StepRequest::States(rows),
        )?)))
    }

    fn choose_by(&mut self, choice: SamplingPlan) -> Result<()> {
        locked(&self.flight)
            .sessions
            .last_mut()
            .map_or_else(|| Err(unchosen()), |session| session.choose_by(choice))
    }

    fn mask(&mut self, sequence: usize, mask: Option<&[u32]>) -> Result<()> {
        locked(&self.flight)
            .sessions
            .last_mut()
            .map_or_else(|| Err(unchosen()), |session| session.mask(sequence, mask))
    }

    fn step_next(
        &mut self,
        sequences: &[usize],
        tokens: Option<&[u32]>,
        rows: usize,
    ) -> Result<Pending<Vec<u32>>> {
        Ok(Box::pin(StepOutput::next(self.begin(sequences, tokens, StepRequest::Next(rows))?)))
    }

    /// A token is chosen by the last device, and known to the first when the host has seen it.
    fn steps_ahead(&self) -> usize {
        0
    }

    fn layer_output(&mut self, layer: usize, hidden: &[f32]) -> Result<Pending<Vec<f32>>> {
        let mut flight = locked(&self.flight);
        let parts = self.model.ranges().into_iter().zip(&mut flight.sessions);
        let mut found = parts.filter(|(range, _)| range.contains(&layer));
        found.next().map_or_else(
            || Err(unchosen()),
            |(range, session)| session.layer_output(layer - range.start, hidden),
        )
    }

    fn record(&self, _: &[u32]) -> Result<(Recording, Tensor<f32>)> {
        Err(not_one())
    }

    fn record_step(&mut self, _: usize) -> Result<Recording> {
        Err(not_one())
    }
}

fn not_one() -> Error {
    Error::Invalid {
        op: "model",
        what: "it is split over several devices, and a recording is for one".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_shared_by_memory() {
        let gib = |room: &[u64]| room.iter().map(|&gib| Some(gib << 30)).collect::<Vec<_>>();
        assert_eq!(shares(&gib(&[24, 24]), 30), [15, 15]);
        assert_eq!(shares(&gib(&[24, 8]), 32), [24, 8]);
        assert_eq!(shares(&gib(&[8, 24, 8]), 5), [1, 3, 1]);
        // Each has one at least, where there is no room too.
        assert_eq!(shares(&gib(&[100, 0, 1]), 3), [1, 1, 1]);
        assert_eq!(shares(&gib(&[0, 0]), 3), [2, 1]);
        assert_eq!(shares(&gib(&[1]), 7), [7]);
        // Of one it is not known.
        assert_eq!(shares(&[Some(1), None, Some(9)], 9), [3, 3, 3]);
        assert_eq!(shares(&[Some(u64::MAX), Some(u64::MAX)], 1 << 20), [1 << 19; 2]);
        assert_eq!(ranges(&[1, 3, 2]), [0..1, 1..4, 4..6]);
    }
}
