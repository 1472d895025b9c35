//! Sequences in progress: their key-value caches and their lengths.

pub(crate) use super::checks::check_tokens;
use super::{
    checks::{check_appended, check_vocabulary},
    saved::{Fingerprint, Saved},
    undo::Undo,
};
use crate::{
    element::Element,
    error::{Error, Result},
    files::display,
    gpu::{recording::Recording, tensor::Tensor},
    memory::Footprint,
    model::{
        engine::{
            interface::{Engine, EngineSession, ModelPart, Pending, SessionOptions},
            sampling_plan::SamplingPlan,
        },
        threads::workers::yield_now,
    },
};
use std::{collections::VecDeque, fmt, path::Path, sync::Arc};

/// Rows of logits that are computed together, where all of them are wanted.
const LOGIT_ROWS: usize = 64;

/// One or more sequences of tokens with their KV caches: the layer below generation, for own
/// sampling or scheduling.
///
/// On a GPU, its futures wait for results without blocking. On the CPU, they compute where they are
/// polled, and yield between prefill chunks, so async code should poll them on a thread that may
/// block. ([`Model`](crate::model::Model)'s own methods do that.)
///
/// ```no_run
/// # async fn continuations(model: bitnet_wgpu::model::Model) -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::model::SessionOptions;
///
/// let mut session = model.session(SessionOptions::new(1, 512))?; // one sequence of up to 512 tokens
/// let logits = session.prefill(0, &model.encode_prompt("Once upon a time")?).await?; // [vocab], for the next token
/// let mut other = session.fork()?; // goes on independently
/// let logits = session.decode(&[42]).await?; // [1, vocab], after one token more
/// other.save("once.safetensors").await?;
/// # Ok(())
/// # }
/// ```
pub struct Session {
    engine: Arc<dyn Engine>,
    state: Box<dyn EngineSession>,
    /// The tokens of every sequence.
    tokens: Vec<Vec<u32>>,
    options: SessionOptions,
    print: Fingerprint,
    /// That of a model which drafted the text of the first sequence; another text goes on from it.
    draft: Option<Box<Session>>,
}

impl Session {
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        print: Fingerprint,
        options: SessionOptions,
    ) -> Result<Self> {
        let options = options.checked(&*engine)?;
        let SessionOptions { sequences, capacity, .. } = options;
        if engine.contexts().iter().any(|context| context.memory_stats().limit.is_some()) {
            for ModelPart { context, footprint, .. } in engine.parts(options)? {
                let what = || {
                    let Footprint { cache, activations, staging, .. } = footprint;
                    format!(
                        "a session of {sequences} × {capacity} tokens: cache {cache}, activations {activations}, staging {staging}"
                    )
                };
                context.check_room(footprint.total(), what)?;
            }
        }
        let state = engine.clone().session(options)?;
        engine
            .contexts()
            .into_iter()
            .try_for_each(|context| context.check_there("making a session"))?;
        Ok(Self { engine, state, tokens: vec![Vec::new(); sequences], options, print, draft: None })
    }

    /// A session with the sequences of a file that [`Session::save`] wrote.
    pub(crate) fn load(
        engine: Arc<dyn Engine>,
        print: Fingerprint,
        path: &Path,
        options: SessionOptions,
    ) -> Result<Self> {
        let Saved { tokens, layers, states } = Saved::read(path, print, engine.config())?;
        let mut session = Self::new(engine, print, options)?;
        if tokens.len() != options.sequences {
            let what = format!(
                "{} sequences for {} in {}",
                options.sequences,
                tokens.len(),
                display(path)
            );
            return Err(Error::Invalid { op: "session", what });
        }
        let longest = tokens.iter().map(Vec::len).max().unwrap_or(0);
        if longest > options.capacity {
            return Err(Error::Context { needed: longest, capacity: options.capacity });
        }
        session.state.write(layers)?;
        session.state.write_states(&states)?;
        session.tokens = tokens;
        Ok(session)
    }

    /// Returns a copy of the session, whose sequences continue independently. With it, a shared prompt
    /// prefix is computed once. The copy takes as much memory again.
    ///
    /// # Errors
    /// What the device reports.
    pub fn fork(&self) -> Result<Self> {
        let (engine, state) = (self.engine.clone(), self.state.fork()?);
        Ok(Self { engine, state, tokens: self.tokens.clone(), draft: None, ..*self })
    }

    /// Writes the tokens and KV caches to a safetensors file.
    /// [`Model::load_session`](crate::model::Model::load_session) continues from it on any device,
    /// without computing the tokens again. A token takes `2 * layers * kv_heads * head_dim` numbers.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Invalid`] for a sequence with recurrent layers that was truncated, until
    /// something is appended to it; what the device reports.
    pub async fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        if let Some(sequence) = (0..self.tokens.len()).find(|&sequence| self.is_behind(sequence)) {
            let what = format!(
                "sequence {sequence} was truncated, and its recurrent layers are computed again when tokens are appended: append some before it is saved"
            );
            return Err(Error::Invalid { op: "session", what });
        }
        let layers = self.state.read()?.await?;
        let states = self.state.read_states()?.await?;
        let half = self.options.kv_type == Some(Element::F16);
        Saved { tokens: self.tokens.clone(), layers, states }.write(path.as_ref(), self.print, half)
    }

    /// Makes room for `capacity` tokens in each sequence, if there is less, and keeps the tokens that
    /// they have. Until it is done, both sizes are in memory.
    ///
    /// # Errors
    /// As [`Model::session`](crate::model::Model::session). The session then stays as it is.
    pub async fn grow(&mut self, capacity: usize) -> Result<()> {
        if capacity <= self.options.capacity {
            return Ok(());
        }
        let options = SessionOptions { capacity, ..self.options };
        let mut grown = Self::new(self.engine.clone(), self.print, options)?;
        if self.tokens.iter().any(|tokens| !tokens.is_empty()) {
            grown.state.write(self.state.read()?.await?)?;
            grown.state.write_states(&self.state.read_states()?.await?)?;
            grown.tokens.clone_from(&self.tokens);
        }
        *self = grown;
        Ok(())
    }

    /// Replaces the engine's session, for a test.
    #[cfg(test)]
    pub(crate) fn with_state(
        self,
        change: impl FnOnce(Box<dyn EngineSession>) -> Box<dyn EngineSession>,
    ) -> Self {
        Self { state: change(self.state), ..self }
    }

    /// Returns its options, with the type of its KV cache.
    pub fn options(&self) -> SessionOptions {
        self.options
    }

    /// Returns the tokens of a sequence.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn tokens(&self, sequence: usize) -> &[u32] {
        &self.tokens[sequence]
    }

    /// Returns the number of tokens of a sequence.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn len(&self, sequence: usize) -> usize {
        // Of recurrent layers that are behind, the tokens are those that will be computed again.
        self.state.len(sequence).max(self.tokens[sequence].len())
    }

    /// Returns whether a sequence has no tokens.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn is_empty(&self, sequence: usize) -> bool {
        self.len(sequence) == 0
    }

    /// Forgets all but the first `tokens` of a sequence, so that another continuation can follow. Where
    /// some layers are recurrent, what is left is computed again when tokens are appended.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such sequence.
    pub fn truncate(&mut self, sequence: usize, tokens: usize) -> Result<()> {
        self.check_sequence(sequence)?;
        self.state.truncate(sequence, tokens);
        self.tokens[sequence].truncate(tokens);
        Ok(())
    }

    /// How many tokens its model knows.
    pub(crate) fn vocab(&self) -> usize {
        self.engine.config().vocab
    }

    /// Returns whether it is a session of this model.
    pub(crate) fn is_of(&self, engine: &Arc<dyn Engine>) -> bool {
        Arc::ptr_eq(&self.engine, engine)
    }

    /// How many tokens at the beginning of a text a sequence has already.
    pub(crate) fn common(&self, sequence: usize, ids: &[u32]) -> usize {
        self.tokens[sequence].iter().zip(ids).take_while(|(a, b)| a == b).count()
    }

    /// Has a sequence forget all but what it has in common with the beginning of a text, and of
    /// that the text's last token: at least one is to be computed, for its logits. Gives what is
    /// kept.
    pub(crate) fn keep_common(&mut self, sequence: usize, ids: &[u32]) -> usize {
        self.keep(sequence, self.common(sequence, ids).min(ids.len().saturating_sub(1)))
    }

    /// Has a sequence forget all but its first `tokens`, and what recurrent layers forget with the
    /// others. Gives how many are kept.
    pub(crate) fn keep(&mut self, sequence: usize, tokens: usize) -> usize {
        self.state.truncate(sequence, tokens);
        self.tokens[sequence].truncate(self.state.len(sequence).min(tokens));
        self.tokens[sequence].len()
    }

    /// Takes the memory for [`Session::keep_states`].
    pub(crate) fn reserve_states(&mut self) -> Result<()> {
        self.state.keep_states(0)
    }

    /// Has a sequence be able to forget tokens of the next step without being computed again: see
    /// [`EngineSession::keep_states`].
    pub(crate) async fn keep_states(&mut self, sequence: usize) -> Result<()> {
        self.catch_up(sequence).await?;
        self.state.keep_states(sequence)
    }

    /// Makes `ids` the text of a sequence; of what it has, their common beginning is kept. Gives
    /// the logits after the last.
    pub(crate) async fn set_text(&mut self, sequence: usize, ids: &[u32]) -> Result<Vec<f32>> {
        self.check_sequence(sequence)?;
        let kept = self.keep_common(sequence, ids);
        self.prefill(sequence, &ids[kept..]).await
    }

    /// [`Session::set_text`] for the token that is chosen after the last; see
    /// [`Session::step_next`].
    pub(crate) async fn set_text_next(&mut self, sequence: usize, ids: &[u32]) -> Result<Vec<u32>> {
        self.check_sequence(sequence)?;
        let kept = self.keep_common(sequence, ids);
        self.prefill_by(sequence, &ids[kept..], |state, last| {
            state.step_next(&[sequence], Some(last), 1)
        })
        .await
    }

    /// Says which tokens a sequence has after its first `kept`, where steps were submitted without
    /// saying it; it forgets those beyond.
    pub(crate) fn settle(&mut self, sequence: usize, kept: usize, tokens: &[u32]) {
        self.tokens[sequence].truncate(kept);
        self.tokens[sequence].extend(tokens);
        self.state.truncate(sequence, self.tokens[sequence].len());
    }

    /// Takes the session of the model that drafted the text of the first sequence.
    pub(crate) fn take_draft(&mut self) -> Option<Self> {
        self.draft.take().map(|draft| *draft)
    }

    /// Keeps the session of the model that drafted the text of the first sequence.
    pub(crate) fn keep_draft(&mut self, draft: Self) {
        self.draft = Some(Box::new(draft));
    }

    /// Appends tokens to a sequence. Returns the logits after the last of them, `[vocab]`.
    ///
    /// # Errors
    /// [`Error::Context`] if there is no room, [`Error::Invalid`] for no tokens, tokens that are
    /// not in the vocabulary, or a sequence that does not exist; what the device reports. Nothing
    /// is appended then, nor if the future is dropped.
    pub async fn prefill(&mut self, sequence: usize, ids: &[u32]) -> Result<Vec<f32>> {
        self.prefill_by(sequence, ids, |state, last| state.extend(&[sequence], last, 1)).await
    }

    /// Appends tokens to a sequence, of which `last` submits the last batch; gives what that gives.
    async fn prefill_by<T>(
        &mut self,
        sequence: usize,
        ids: &[u32],
        last: impl FnOnce(&mut dyn EngineSession, &[u32]) -> Result<Pending<T>>,
    ) -> Result<T> {
        self.check(sequence, ids)?;
        self.catch_up(sequence).await?;
        let batch = self.batch();
        let (before, rest) = ids.split_at((ids.len() - 1) / batch * batch);
        let undo = self.undo();
        let (mut submitted, ahead) = (VecDeque::new(), undo.state.pieces_ahead());
        for batch in before.chunks(batch) {
            submitted.push_back(undo.state.extend(&[sequence], batch, 0)?);
            // One batch waits on the device for the one that it computes, and no more: what is
            // dropped ends soon.
            if submitted.len() > ahead
                && let Some(first) = submitted.pop_front()
            {
                first.await?;
            }
            yield_now().await;
        }
        let last = last(undo.state, rest)?;
        yield_now().await;
        for piece in submitted {
            piece.await?;
        }
        let found = last.await?;
        undo.keep();
        self.tokens[sequence].extend(ids);
        Ok(found)
    }

    /// Appends tokens to a sequence and calls `rows` with the logits after each of them, in order: some
    /// rows at a time, `[rows, vocab]`.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub async fn prefill_logits(
        &mut self,
        sequence: usize,
        ids: &[u32],
        mut rows: impl FnMut(Vec<f32>) + Send,
    ) -> Result<()> {
        self.check(sequence, ids)?;
        self.catch_up(sequence).await?;
        let batches = ids.chunks(LOGIT_ROWS.min(self.batch()));
        let undo = self.undo();
        for batch in batches {
            rows(undo.state.extend(&[sequence], batch, batch.len())?.await?);
            yield_now().await;
        }
        undo.keep();
        self.tokens[sequence].extend(ids);
        Ok(())
    }

    /// Appends one token to every sequence. Returns their logits, `[sequences, vocab]`.
    ///
    /// # Errors
    /// [`Error::Context`] if a sequence has no room, [`Error::Invalid`] for a wrong number of
    /// tokens or tokens that are not in the vocabulary; what the device reports. Nothing is
    /// appended then, nor if the future is dropped.
    pub async fn decode(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let all: Vec<usize> = (0..self.options.sequences).collect();
        self.extend(&all, tokens, 1).await
    }

    /// Appends as many tokens to each of some sequences, `tokens` `[sequences, run]`, at most
    /// [`Session::batch`] or one each; gives the logits after the last `rows` of each,
    /// `[sequences, rows, vocab]`.
    ///
    /// # Errors
    /// As [`Session::decode`]. Nothing is appended then, nor if the future is dropped.
    pub(crate) async fn extend(
        &mut self,
        sequences: &[usize],
        tokens: &[u32],
        rows: usize,
    ) -> Result<Vec<f32>> {
        self.append(sequences, tokens, |state| state.extend(sequences, tokens, rows)).await
    }

    /// [`Session::extend`] for the states of the last `rows` tokens of each, after the final norm:
    /// `[sequences, rows, hidden]`.
    pub(crate) async fn states(
        &mut self,
        sequences: &[usize],
        tokens: &[u32],
        rows: usize,
    ) -> Result<Vec<f32>> {
        self.append(sequences, tokens, |state| state.states(sequences, tokens, rows)).await
    }

    /// Says how the next tokens are chosen by [`Session::step_next`] and [`Session::submit_next`].
    pub(crate) fn choose_by(&mut self, choice: SamplingPlan) -> Result<()> {
        self.state.choose_by(choice)
    }

    /// Says which tokens may be chosen for a sequence from the next step on, as
    /// [`EngineSession::mask`].
    pub(crate) fn mask(&mut self, sequence: usize, mask: Option<&[u32]>) -> Result<()> {
        self.state.mask(sequence, mask)
    }

    /// [`Session::extend`] for the tokens that are chosen after the last `rows` of each,
    /// `[sequences, rows]`; [`TopK::NONE`](crate::ops::transformer::TopK::NONE) where the logits
    /// are not finite.
    pub(crate) async fn step_next(
        &mut self,
        sequences: &[usize],
        tokens: &[u32],
        rows: usize,
    ) -> Result<Vec<u32>> {
        let step = |state: &mut dyn EngineSession| state.step_next(sequences, Some(tokens), rows);
        self.append(sequences, tokens, step).await
    }

    /// Awaits a step that appends `tokens` to some sequences. Nothing is appended if it fails, nor
    /// if the future is dropped.
    async fn append<T>(
        &mut self,
        sequences: &[usize],
        tokens: &[u32],
        step: impl FnOnce(&mut dyn EngineSession) -> Result<Pending<T>>,
    ) -> Result<T> {
        self.check_run(sequences, tokens)?;
        for &sequence in sequences {
            self.catch_up(sequence).await?;
        }
        let undo = self.undo();
        let output = step(undo.state)?.await?;
        undo.keep();
        self.appended(sequences, tokens);
        Ok(output)
    }

    fn appended(&mut self, sequences: &[usize], tokens: &[u32]) {
        let run = tokens.len() / sequences.len().max(1);
        sequences
            .iter()
            .zip(tokens.chunks(run.max(1)))
            .for_each(|(&sequence, ids)| self.tokens[sequence].extend(ids));
    }

    /// Submits a step of one token of some sequences for the next token of each
    /// ([`Session::settle`] follows when they are known): from `tokens`, or from those that the
    /// step before this one gives, which had the same sequences and need not have been awaited. A
    /// token is [`TopK::NONE`](crate::ops::transformer::TopK::NONE) where the logits are not
    /// finite.
    pub(crate) fn submit_next(
        &mut self,
        sequences: &[usize],
        tokens: Option<&[u32]>,
    ) -> Result<Pending<Vec<u32>>> {
        match tokens {
            Some(tokens) => self.check_run(sequences, tokens)?,
            None => sequences.iter().try_for_each(|&sequence| self.check_room(sequence, 1))?,
        }
        if let Some(sequence) = sequences.iter().find(|&&sequence| self.is_behind(sequence)) {
            let what = format!("sequence {sequence} was truncated, and is to be computed again");
            return Err(Error::Invalid { op: "session", what });
        }
        self.state.step_next(sequences, tokens, 1)
    }

    /// How many such steps are best submitted beyond the one that is awaited.
    pub(crate) fn steps_ahead(&self) -> usize {
        self.state.steps_ahead()
    }

    /// How many tokens may be appended together, where a sequence gets more than one.
    pub(crate) fn batch(&self) -> usize {
        self.state.batch()
    }

    /// How many more tokens a sequence has room for.
    pub(crate) fn room(&self, sequence: usize) -> usize {
        self.options.capacity - self.len(sequence)
    }

    /// The dispatches that append tokens to the first sequence, and the tensor that gets the logits
    /// after the last; nothing is run.
    pub(crate) fn record(&self, ids: &[u32]) -> Result<(Recording, Tensor<f32>)> {
        self.check(0, ids)?;
        self.state.record(ids)
    }

    /// The dispatches of a decoding step after `past` tokens, for empty sequences; nothing is run.
    pub(crate) fn record_step(&mut self, past: usize) -> Result<Recording> {
        let (needed, capacity) = (past.saturating_add(1), self.options.capacity);
        if needed > capacity {
            return Err(Error::Context { needed, capacity });
        }
        self.state.record_step(past)
    }

    /// Lengths that the engine has computed.
    fn lengths(&self) -> Vec<usize> {
        (0..self.options.sequences).map(|sequence| self.state.len(sequence)).collect()
    }

    /// Returns whether the engine has forgotten tokens that the sequence has: recurrent layers forget
    /// everything when a sequence is truncated.
    fn is_behind(&self, sequence: usize) -> bool {
        self.state.len(sequence) < self.tokens[sequence].len()
    }

    /// Computes again what the engine has forgotten of a sequence.
    async fn catch_up(&mut self, sequence: usize) -> Result<()> {
        while self.is_behind(sequence) {
            let (from, batch) = (self.state.len(sequence), self.batch());
            let left = &self.tokens[sequence][from..];
            let piece = left[..left.len().min(batch)].to_vec();
            let undo = self.undo();
            undo.state.extend(&[sequence], &piece, 0)?.await?;
            undo.keep();
            yield_now().await;
        }
        Ok(())
    }

    fn undo(&mut self) -> Undo<'_> {
        Undo { before: self.lengths(), state: &mut *self.state }
    }

    fn check_sequence(&self, sequence: usize) -> Result<()> {
        if sequence < self.options.sequences {
            return Ok(());
        }
        Err(Error::Invalid {
            op: "session",
            what: format!("sequence {sequence}; there are {}", self.options.sequences),
        })
    }

    /// Checks that these tokens may be appended to this sequence.
    fn check(&self, sequence: usize, ids: &[u32]) -> Result<()> {
        self.check_sequence(sequence)?;
        check_appended(self.len(sequence), ids, self.vocab(), self.options.capacity)
    }

    /// Checks that these tokens may be a whole sequence.
    pub(crate) fn check_text(&self, ids: &[u32]) -> Result<()> {
        check_tokens(ids, self.vocab(), self.options.capacity)
    }

    fn check_room(&self, sequence: usize, tokens: usize) -> Result<()> {
        self.check_sequence(sequence)?;
        let (needed, capacity) = (self.len(sequence) + tokens, self.options.capacity);
        if needed <= capacity { Ok(()) } else { Err(Error::Context { needed, capacity }) }
    }

    /// Checks that these tokens may be appended to these sequences.
    fn check_run(&self, sequences: &[usize], tokens: &[u32]) -> Result<()> {
        let n = sequences.len();
        if n == 0 || tokens.is_empty() || !tokens.len().is_multiple_of(n) {
            return Err(Error::Invalid {
                op: "session",
                what: format!("{} tokens for {n} sequences", tokens.len()),
            });
        }
        check_vocabulary(tokens, self.vocab())?;
        sequences.iter().try_for_each(|&sequence| self.check_room(sequence, tokens.len() / n))
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SessionOptions { sequences, capacity, .. } = self.options;
        write!(f, "Session({sequences} × {capacity} tokens)")
    }
}

/// Error of [`Model::generate_in`](crate::model::Model::generate_in), which returns the session
/// unchanged. `?` converts it to its [`Error`].
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct SessionError {
    /// What is wrong.
    pub error: Error,
    /// The session.
    pub session: Box<Session>,
}

impl From<SessionError> for Error {
    fn from(error: SessionError) -> Self {
        error.error
    }
}
