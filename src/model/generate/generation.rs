//! A prompt's continuation, token by token.

use super::{
    sequence::{Sequence, Token, choose_by, step},
    speculation::{SpeculationCounts, Speculator},
    stop::Stop,
};
use crate::{
    error::{Error, Result},
    limits::speculation::MOST_DRAFTED,
    model::{
        engine::interface::Pending,
        session::sequences::Session,
        threads::{
            background::{AHEAD, BackgroundStream, Blocking, Producer},
            unbounded::Receiver,
            workers::Workers,
        },
    },
};
use futures_core::Stream;
use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

/// The continuation of a prompt: a [`Stream`] of tokens, or in a `for` loop, which blocks, an
/// iterator.
///
/// That of [`Model::generate`](crate::model::Model::generate) computes on a thread of its own from
/// the first token that is asked for, a few tokens ahead of the reader, or sixteen with drafts.
/// Dropping it ends it after the current token or prefill chunk. That of a
/// [`Batch`](crate::model::Batch) computes whether it is read or not, and keeps all tokens, so that
/// a slow reader makes nobody wait. Dropping it frees its slot before the next step.
///
/// ```no_run
/// # async fn story(model: bitnet_wgpu::model::Model) -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::model::GenerateOptions;
///
/// let mut story = model.generate("Once upon a time", &GenerateOptions::default())?;
/// while let Some(token) = story.next_token().await {
///     print!("{}", token?.text);
/// }
/// println!("({:?})", story.stop());
/// # Ok(())
/// # }
/// ```
pub struct Generation {
    tokens: Tokens,
    prompt: usize,
    cached: Arc<AtomicUsize>,
    /// Of the tokens that were taken.
    ids: Vec<u32>,
    text: String,
    stop: Option<Stop>,
    speculation: Option<SpeculationCounts>,
}

/// Where tokens come from.
enum Tokens {
    /// A thread of the generation's own.
    Own(BackgroundStream<GenerationState>),
    /// The thread of a batch.
    Batch { items: Receiver<BatchItem>, thread: Arc<dyn BatchThread>, ended: bool },
}

/// A token of a sequence of a batch, and why it was the last if it was.
pub(crate) type BatchItem = Result<(Token, Option<Stop>)>;

/// The thread of a batch, which ends with its last owner.
pub(crate) trait BatchThread: Send + Sync {
    /// Returns why it ended without a last token.
    fn cause(&self) -> Error;
}

/// The whole continuation of a prompt.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Generated {
    /// The tokens.
    pub ids: Vec<u32>,
    /// Their text; empty for a model without a tokenizer.
    pub text: String,
    /// Why it ended.
    pub stop: Stop,
}

/// The state of a generation.
struct GenerationState {
    session: Session,
    sequence: Sequence,
    /// Whether the engine can choose the tokens.
    plan_is_set: bool,
    /// Steps that are submitted and not yet awaited.
    pending: VecDeque<Pending<Vec<u32>>>,
    speculator: Option<Speculator>,
    verified: Option<Verified>,
}

/// A pass over the last token and a draft. The session has those that may come next; tokens are chosen one by one,
/// as they are asked for.
struct Verified {
    draft: Vec<u32>,
    /// Tokens of the draft that were computed.
    valid: usize,
    verification: Verification,
    accepted: usize,
}

/// What is known after the last token and after every token of the draft.
enum Verification {
    /// `[1 + valid draft, vocab]`
    Logits(Vec<f32>),
    /// `[1 + valid draft]`: the engine has chosen.
    Next(Vec<u32>),
}

impl Generation {
    /// Makes the sequence's prompt of `prompt` tokens the text of the first sequence of a session,
    /// and continues it.
    pub(crate) fn new(
        workers: &Arc<Workers>,
        session: Session,
        sequence: Sequence,
        prompt: usize,
        speculator: Option<Speculator>,
    ) -> Self {
        let text = sequence.chooser.tokens();
        let cached = session.common(0, text).min(text.len().saturating_sub(1));
        let (stop, speculation) =
            (sequence.stop, speculator.as_ref().map(|speculator| speculator.counts));
        let run = GenerationState {
            session,
            sequence,
            plan_is_set: false,
            pending: VecDeque::new(),
            speculator,
            verified: None,
        };
        let stream = if stop.is_some() {
            BackgroundStream::empty(run)
        } else {
            BackgroundStream::new(run, workers)
        };
        let cached = Arc::new(AtomicUsize::new(cached));
        Self { speculation, ..Self::of(Tokens::Own(stream), prompt, cached, stop) }
    }

    /// Takes the tokens of a batch's sequence, or none if `stop` says that it has ended already.
    pub(crate) fn in_batch(
        items: Receiver<BatchItem>,
        thread: Arc<dyn BatchThread>,
        prompt: usize,
        cached: Arc<AtomicUsize>,
        stop: Option<Stop>,
    ) -> Self {
        let tokens = Tokens::Batch { items, thread, ended: stop.is_some() };
        Self::of(tokens, prompt, cached, stop)
    }

    fn of(tokens: Tokens, prompt: usize, cached: Arc<AtomicUsize>, stop: Option<Stop>) -> Self {
        let (ids, text) = (Vec::new(), String::new());
        Self { tokens, prompt, cached, ids, text, stop, speculation: None }
    }

    /// Returns the next token, as a future for any executor; nothing after the last.
    /// (`StreamExt::next` does the same.)
    pub async fn next_token(&mut self) -> Option<Result<Token>> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Returns the whole continuation, with the tokens that were taken before.
    ///
    /// # Errors
    /// [`Error::Overflow`] for logits that are not finite; what a device reports, in a batch as
    /// [`Error::BatchEnded`].
    pub async fn all(mut self) -> Result<Generated> {
        while let Some(token) = self.next_token().await {
            token?;
        }
        Ok(Generated { ids: self.ids, text: self.text, stop: self.stop.unwrap_or(Stop::MaxTokens) })
    }

    /// Returns the tokens that were taken so far.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Returns the text of the tokens that were taken so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the number of tokens of the prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt
    }

    /// Returns how many tokens of the prompt were in the session or the slot already, from a text
    /// with the same beginning, and are not computed again. In a batch it is known with the first
    /// token.
    pub fn cached_tokens(&self) -> usize {
        self.cached.load(Ordering::Relaxed)
    }

    /// Returns why it ended; nothing while there are tokens to take.
    pub fn stop(&self) -> Option<Stop> {
        self.stop
    }

    /// Returns the counts of drafts up to the last token that was taken; nothing without
    /// [`GenerateOptions::speculate`](crate::model::GenerateOptions::speculate()).
    pub fn speculation(&self) -> Option<SpeculationCounts> {
        self.speculation
    }

    /// Ends it, and returns the session with the text so far, for
    /// [`Model::generate_in`](crate::model::Model::generate_in). The last token generated is not in
    /// it yet. It may have some tokens more than were read, since they are computed ahead;
    /// `generate_in` keeps what its prompt has in common with them.
    ///
    /// The session of [`Model::generate`](crate::model::Model::generate) has room for the prompt and
    /// `max_tokens`, or more by
    /// [`GenerateOptions::capacity`](crate::model::GenerateOptions::capacity). [`Session::grow`]
    /// makes more room.
    ///
    /// # Errors
    /// [`Error::Gpu`] if its thread panicked; [`Error::Invalid`] for a sequence of a batch.
    pub async fn into_session(self) -> Result<Session> {
        match self.tokens {
            Tokens::Own(stream) => stream.into_rest().await,
            Tokens::Batch { .. } => {
                let what = "a batch keeps the session of its sequences".into();
                Err(Error::Invalid { op: "generate", what })
            }
        }
    }
}

impl Stream for Generation {
    type Item = Result<Token>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let item = match &mut this.tokens {
            Tokens::Own(stream) => stream.poll_next(cx).map(|item| {
                item.map(|item| {
                    let (token, stop, speculation) = item?;
                    (this.stop, this.speculation) = (stop, speculation);
                    Ok(token)
                })
            }),
            Tokens::Batch { ended: true, .. } => Poll::Ready(None),
            Tokens::Batch { items, thread, ended } => items.poll_next(cx).map(|item| {
                let item = item.unwrap_or_else(|| Err(thread.cause()));
                *ended = item.as_ref().map_or(true, |(_, stop)| stop.is_some());
                Some(item.map(|(token, stop)| {
                    this.stop = stop;
                    token
                }))
            }),
        };
        if let Poll::Ready(Some(Ok(token))) = &item {
            this.ids.push(token.id);
            this.text += &token.text;
        }
        item
    }
}

impl IntoIterator for Generation {
    type Item = Result<Token>;
    type IntoIter = Blocking<Self>;

    fn into_iter(self) -> Blocking<Self> {
        Blocking(self)
    }
}

impl IntoIterator for &mut Generation {
    type Item = Result<Token>;
    type IntoIter = Blocking<Self>;

    fn into_iter(self) -> Blocking<Self> {
        Blocking(self)
    }
}

impl Producer for GenerationState {
    type Item = (Token, Option<Stop>, Option<SpeculationCounts>);
    type Rest = Session;

    async fn next(&mut self) -> Result<(Self::Item, bool)> {
        self.choose().await?;
        let full = self.sequence.chooser.tokens().len() > self.session.options().capacity;
        let token = self.sequence.take(full)?;
        let stop = self.sequence.stop;
        Ok((
            (token, stop, self.speculator.as_ref().map(|speculator| speculator.counts)),
            stop.is_some(),
        ))
    }

    /// As many as a verified draft gives at once, so that the next one is under way then.
    fn ahead(&self) -> usize {
        if self.speculator.is_some() { MOST_DRAFTED + 1 } else { AHEAD }
    }

    /// The session with the text so far, without drafts and steps that were submitted ahead.
    fn rest(mut self) -> Session {
        if self.sequence.chooser.has_chosen() {
            // The last token was chosen, and not yet appended.
            let tokens = self.sequence.chooser.tokens();
            self.session.settle(0, 0, &tokens[..tokens.len() - 1]);
        }
        if let Some(draft) = self.speculator.and_then(Speculator::into_session) {
            self.session.keep_draft(draft);
        }
        self.session
    }
}

impl GenerationState {
    /// Chooses the next token.
    async fn choose(&mut self) -> Result<()> {
        if !self.sequence.chooser.has_chosen() {
            return self.begin().await;
        }
        if self.verified.is_some() {
            return self.accept();
        }
        let length = self.draft_length();
        if length > 0 && self.pending.is_empty() {
            self.verify(length).await?;
            return self.accept();
        }
        if let Some(speculator) = &mut self.speculator {
            speculator.went_without();
        }
        if self.sequence.chooser.is_for_engine() {
            // Where there is a draft, what was submitted without is waited for first.
            return self.ahead(if length > 0 { 0 } else { self.session.steps_ahead() }).await;
        }
        self.plan_is_set = false;
        let chosen = step(&mut self.session, &mut [(0, &mut self.sequence)]).await?;
        chosen.into_iter().try_for_each(|chosen| chosen.map(drop))
    }

    /// Computes the prompt, and chooses the first token.
    async fn begin(&mut self) -> Result<()> {
        if self.sequence.chooser.is_for_engine() {
            self.tell()?;
            let next = self.session.set_text_next(0, self.sequence.chooser.tokens()).await?;
            return self.take(&next);
        }
        let chooser = &mut self.sequence.chooser;
        let mut logits = self.session.set_text(0, chooser.tokens()).await?;
        chooser.of_logits(&mut logits).map(drop)
    }

    /// Takes the token that the engine chose.
    fn take(&mut self, next: &[u32]) -> Result<()> {
        let &id = next
            .first()
            .ok_or_else(|| Error::Invalid { op: "generate", what: "no sequence".into() })?;
        self.sequence.chooser.of_engine(id).map(drop)
    }

    /// Number of the next tokens that can be drafted: one more is chosen after them, and all but that
    /// one need room beside the last.
    fn draft_length(&mut self) -> usize {
        let Some(speculator) = &mut self.speculator else { return 0 };
        let text = self.sequence.chooser.tokens();
        let room = self
            .session
            .options()
            .capacity
            .saturating_sub(text.len())
            .min(self.session.batch() - 1);
        speculator.length(text, room.min(self.sequence.left() - 1))
    }

    /// Drafts, and computes what comes after the last token and after every token of the draft.
    async fn verify(&mut self, length: usize) -> Result<()> {
        let (chooser, Some(speculator)) = (&mut self.sequence.chooser, &mut self.speculator) else {
            return Ok(());
        };
        let mut draft = speculator.draft(chooser.tokens(), length).await;
        // Nothing follows an end.
        let end =
            draft.iter().position(|&id| chooser.is_end(id)).map_or(draft.len(), |end| end + 1);
        draft.truncate(end);
        speculator.counts.passes += 1;
        speculator.counts.drafted += draft.len();
        // What cannot be chosen need not be computed.
        let valid = chooser.valid_draft(&draft)?;
        let run = [&[chooser.last()], &draft[..valid]].concat();
        self.session.keep_states(0).await?;
        let verification = if chooser.is_for_engine() && !chooser.changes_logits() {
            self.tell()?;
            Verification::Next(self.session.step_next(&[0], &run, run.len()).await?)
        } else {
            // The engine does not count these tokens for its penalties.
            self.plan_is_set &= !chooser.penalises();
            Verification::Logits(self.session.extend(&[0], &run, run.len()).await?)
        };
        self.verified = Some(Verified { draft, valid, verification, accepted: 0 });
        Ok(())
    }

    /// Chooses the next token after what was verified. Where it differs from the draft, the
    /// rest is forgotten.
    fn accept(&mut self) -> Result<()> {
        let (Some(verified), Some(speculator)) = (&mut self.verified, &mut self.speculator) else {
            return Ok(());
        };
        let (vocab, chooser, Verified { draft, valid, verification, accepted }) =
            (self.session.vocab(), &mut self.sequence.chooser, verified);
        let id = match verification {
            Verification::Logits(logits) => {
                chooser.of_logits(&mut logits[*accepted * vocab..][..vocab])?
            }
            Verification::Next(next) => chooser.of_engine(next[*accepted])?,
        };
        if *accepted < *valid && draft.get(*accepted) == Some(&id) {
            *accepted += 1;
            speculator.counts.accepted += 1;
            return Ok(());
        }
        speculator.verified(draft.len(), *accepted);
        self.verified = None;
        self.session.truncate(0, chooser.tokens().len() - 1)
    }

    /// Tells the engine how to choose, if it does not know.
    fn tell(&mut self) -> Result<()> {
        let chooser = &self.sequence.chooser;
        if !std::mem::replace(&mut self.plan_is_set, true) {
            choose_by(&mut self.session, [(0, chooser, false)].into_iter())?;
        }
        self.session.mask(0, chooser.allowed())
    }

    /// Up to `ahead` steps are submitted beyond the one that is awaited: a token need not come back
    /// before the next step begins.
    async fn ahead(&mut self, ahead: usize) -> Result<()> {
        self.tell()?;
        let next = match self.pending.pop_front() {
            Some(next) => next,
            None => self.session.submit_next(&[0], Some(&[self.sequence.chooser.last()]))?,
        };
        let may_run = self.sequence.chooser.allowed().is_none();
        let ahead = if may_run { ahead.min(self.sequence.left() - 1) } else { 0 };
        while self.pending.len() < ahead && self.session.room(0) > 0 {
            self.pending.push_back(self.session.submit_next(&[0], None)?);
        }
        let next = next.await?;
        self.take(&next)
    }
}
