//! Speculative decoding: drafts the next tokens, so that one pass over the weights verifies several (Leviathan, Kalman,
//! Matias 2023, "Fast Inference from Transformers via Speculative Decoding", arXiv 2211.17192).
//! Where a token is a function of logits, seed and position, drafts need not be drawn by a rule of
//! their own: what is chosen after them is compared.

use super::{ngram::NgramIndex, sampling::Sampling};
use crate::{
    error::{Error, ErrorKind, Result},
    limits::speculation::{LONGEST_RUN, MOST_DRAFTED},
    model::{
        engine::{
            interface::{Engine, SessionOptions},
            sampling_plan::SamplingPlan,
        },
        session::{saved::Fingerprint, sequences::Session},
    },
    ops::transformer::TopK,
};
use std::{collections::VecDeque, sync::Arc};

/// How the next tokens of a sequence are drafted. A *draft* is appended together with the
/// last token, in one pass, and a token is chosen after each of them; those that were drafted
/// rightly are kept, and the first that was not is replaced by the one that was chosen. So the text
/// is the one that it would be without: the same tokens, greedy or sampled, by any options. Only
/// the time differs. Models with recurrent layers keep a copy of a sequence's states before each
/// draft.
///
/// Drafts begin at half of [`Speculation::tokens`](Speculation::tokens()). One of which all is accepted doubles the next;
/// less than half halves it. After drafts in a row of which nothing was accepted, 1, 2, 4 and at
/// most 32 tokens are generated without.
///
/// ```no_run
/// # fn main() -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::model::{GenerateOptions, Model, Speculation};
///
/// let model = Model::open("path/to/a/large/model")?;
/// // What followed the last tokens before: for lists, code, and answers that quote the prompt.
/// let options = GenerateOptions::default().speculate(Speculation::ngram());
/// // Or what a small model of the same vocabulary says.
/// let draft = Model::open("path/to/a/small/model")?;
/// let options = options.speculate(Speculation::from(&draft).tokens(6));
/// let mut generation = model.generate("A list:", &options)?;
/// for token in &mut generation {
///     print!("{}", token?.text);
/// }
/// println!("{:?}", generation.speculation());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Speculation {
    drafter: Drafter,
    tokens: usize,
}

/// What drafts the next tokens.
#[derive(Clone, Debug)]
enum Drafter {
    Ngram { shortest: usize, longest: usize },
    Model(DraftModel),
}

/// A model that drafts for another of the same vocabulary, with the options, seed and positions of
/// the text: so what is sampled is drafted too. Of penalties, biases, hooks and forbidden tokens it
/// knows nothing. Where its context is full, no more is drafted.
#[derive(Clone)]
struct DraftModel {
    engine: Arc<dyn Engine>,
    fingerprint: Fingerprint,
}

impl std::fmt::Debug for DraftModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let c = self.engine.config();
        write!(f, "DraftModel({}, {} layers × {})", c.architecture, c.layers, c.hidden)
    }
}

/// How well the drafts of a generation were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpeculationCounts {
    /// Passes that verified a draft.
    pub passes: usize,
    /// Tokens of drafts.
    pub drafted: usize,
    /// Tokens of drafts that became the text's. Every pass gives one token more than are accepted
    /// of its draft.
    pub accepted: usize,
}

impl Speculation {
    /// Up to 7 tokens at once: with the one before, eight are verified, which read the weights
    /// together.
    fn new(drafter: Drafter) -> Self {
        Self { drafter, tokens: 7 }
    }

    /// Drafts from the text itself (prompt lookup): what followed its last 2 to 5 tokens before.
    pub fn ngram() -> Self {
        Self::ngram_lengths(2, 5)
    }

    /// Drafts from the text itself: what followed its last `longest` tokens before, or fewer, down
    /// to `shortest`. Both are from 1 to 32.
    pub fn ngram_lengths(shortest: usize, longest: usize) -> Self {
        Self::new(Drafter::Ngram { shortest, longest })
    }

    pub(crate) fn draft_model(engine: Arc<dyn Engine>, fingerprint: Fingerprint) -> Self {
        Self::new(Drafter::Model(DraftModel { engine, fingerprint }))
    }

    /// Sets the most tokens of a draft, 1 to 15; the default is 7.
    #[must_use]
    pub fn tokens(self, tokens: usize) -> Self {
        Self { tokens, ..self }
    }

    /// Checks that the numbers are in range, and that a draft model has as many tokens as the
    /// vocabulary.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is not.
    pub(crate) fn check(&self, vocab: usize) -> Result<()> {
        let invalid = |what| Err(Error::Invalid { op: "speculation", what });
        if !(1..=MOST_DRAFTED).contains(&self.tokens) {
            return invalid(format!(
                "drafts of {} tokens; 1 to {MOST_DRAFTED} are possible",
                self.tokens
            ));
        }
        match &self.drafter {
            Drafter::Ngram { shortest, longest }
                if *shortest == 0 || longest < shortest || *longest > LONGEST_RUN =>
            {
                invalid(format!(
                    "runs of {shortest} to {longest} tokens; 1 to {LONGEST_RUN} are possible"
                ))
            }
            Drafter::Model(draft) if draft.engine.config().vocab != vocab => {
                let other = draft.engine.config().vocab;
                invalid(format!(
                    "the draft model has a vocabulary of {other} tokens, the model one of {vocab}"
                ))
            }
            _ => Ok(()),
        }
    }
}

impl DraftModel {
    /// A session for drafts of sequences of up to this many tokens.
    fn session(&self, capacity: usize) -> Result<Session> {
        let capacity = capacity.min(self.engine.config().context);
        Session::new(self.engine.clone(), self.fingerprint, SessionOptions::new(1, capacity))
    }
}

/// How long drafts are, and when there are none.
#[derive(Debug, PartialEq)]
struct Pace {
    most: usize,
    length: usize,
    /// Drafts in a row of which nothing was accepted.
    missed: u32,
    /// Tokens to generate before the next draft.
    pause: usize,
}

impl Pace {
    fn new(most: usize) -> Self {
        Self { most, length: most.div_ceil(2), missed: 0, pause: 0 }
    }

    fn verified(&mut self, drafted: usize, accepted: usize) {
        if accepted == drafted {
            self.length = (2 * self.length).min(self.most);
        } else if 2 * accepted < drafted {
            self.length = self.length.div_ceil(2);
        }
        (self.missed, self.pause) =
            if accepted == 0 { (self.missed + 1, 1 << self.missed.min(5)) } else { (0, 0) };
    }
}

/// Drafts the next tokens of one sequence.
pub(crate) struct Speculator {
    guess: Guess,
    pace: Pace,
    pub counts: SpeculationCounts,
}

enum Guess {
    Ngram(NgramIndex),
    Model(Follower),
}

impl Speculator {
    /// For a text in a session, of which it takes the draft model's session that the last text left
    /// there.
    pub fn new(
        speculation: &Speculation,
        session: &mut Session,
        sampling: &Sampling,
    ) -> Result<Self> {
        session.reserve_states()?;
        let guess = match &speculation.drafter {
            &Drafter::Ngram { shortest, longest } => {
                Guess::Ngram(NgramIndex::new(shortest..=longest))
            }
            Drafter::Model(draft) => {
                let ready = match session.take_draft().filter(|known| known.is_of(&draft.engine)) {
                    Some(known) => Ok(known),
                    None => draft.session(session.options().capacity),
                };
                let ready = ready.and_then(|mut session| {
                    session
                        .choose_by(SamplingPlan::new(vec![(sampling.options, sampling.seed)]))?;
                    session.reserve_states()?;
                    Ok(session)
                });
                // A text goes on without drafts where only their device is gone.
                let session = match ready {
                    Err(error) if error.kind() == ErrorKind::Lost => None,
                    ready => Some(ready?),
                };
                Guess::Model(Follower { session, known: 0 })
            }
        };
        Ok(Self {
            guess,
            pace: Pace::new(speculation.tokens),
            counts: SpeculationCounts::default(),
        })
    }

    /// How long a draft of what follows the text may be, up to `most`; 0 for no draft.
    pub fn length(&mut self, text: &[u32], most: usize) -> usize {
        let most = match &mut self.guess {
            _ if self.pace.pause > 0 => 0,
            Guess::Ngram(index) => index.find(text).map_or(0, |_| most),
            Guess::Model(follower) => most.min(follower.room(text)),
        };
        most.min(self.pace.length)
    }

    /// What may follow the text: as many tokens as [`Speculator::length`] allows. Nothing, then and
    /// later, where the draft model fails: a text is right without drafts too.
    pub async fn draft(&mut self, text: &[u32], length: usize) -> Vec<u32> {
        match &mut self.guess {
            Guess::Ngram(index) => index
                .find(text)
                .map_or_else(Vec::new, |place| NgramIndex::tokens(text, place, length)),
            Guess::Model(follower) => follower.draft(text, length).await.unwrap_or_else(|error| {
                log::warn!("speculative decoding stops for this generation: {error}");
                Vec::new()
            }),
        }
    }

    /// A token was generated without a draft.
    pub fn went_without(&mut self) {
        self.pace.pause = self.pace.pause.saturating_sub(1);
    }

    /// This many tokens of a draft are verified.
    pub fn verified(&mut self, drafted: usize, accepted: usize) {
        self.pace.verified(drafted, accepted);
    }

    /// The draft model's session.
    pub fn into_session(self) -> Option<Session> {
        match self.guess {
            Guess::Ngram(_) => None,
            Guess::Model(follower) => follower.session,
        }
    }
}

/// A draft model's session that follows a text.
struct Follower {
    /// None after an error, which leaves it in the middle of something.
    session: Option<Session>,
    /// Tokens of the text that are known to be the session's, if it has this many.
    known: usize,
}

impl Follower {
    /// How many tokens it can draft after a text. The last is not appended.
    fn room(&self, text: &[u32]) -> usize {
        self.session
            .as_ref()
            .map_or(0, |session| (session.options().capacity + 1).saturating_sub(text.len()))
    }

    async fn draft(&mut self, text: &[u32], length: usize) -> Result<Vec<u32>> {
        let Some((mut session, (_, before))) = self.session.take().zip(text.split_last()) else {
            return Ok(Vec::new());
        };
        // What was drafted before and did not become text is forgotten; what became text without a
        // draft is caught up with.
        let known = self.known.min(session.len(0)).min(before.len());
        let kept = known
            + session.tokens(0)[known..]
                .iter()
                .zip(&before[known..])
                .take_while(|(a, b)| a == b)
                .count();
        let kept = session.keep(0, kept);
        let (behind, new) =
            text[kept..].split_at((text.len() - kept).saturating_sub(1 + MOST_DRAFTED));
        if !behind.is_empty() {
            session.prefill(0, behind).await?;
        }
        let (mut input, mut submitted, mut draft) =
            (Some(new.to_vec()), VecDeque::new(), Vec::with_capacity(length));
        for n in 0..length {
            if n == 1 {
                // What is drafted from here on may be forgotten.
                session.keep_states(0).await?;
            }
            submitted.push_back(session.submit_next(&[0], input.as_deref())?);
            // From steps of one token the next goes on before they are awaited.
            let single = input.is_none_or(|input| input.len() == 1);
            while submitted.len() > session.steps_ahead() || !single || n + 1 == length {
                let Some(next) = submitted.pop_front() else { break };
                match next.await?.last() {
                    Some(&id) if id != TopK::NONE => draft.push(id),
                    _ => {
                        return Err(Error::Overflow {
                            op: "speculation",
                            what: "the draft model's logits".into(),
                        });
                    }
                }
            }
            input = if single { None } else { draft.last().map(|&id| vec![id]) };
        }
        session.settle(0, text.len() - new.len(), &[new, &draft[..length - 1]].concat());
        (self.session, self.known) = (Some(session), text.len());
        Ok(draft)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_grow_and_shrink_and_pause() {
        let mut pace = Pace::new(8);
        let mut after = |drafted, accepted| {
            pace.verified(drafted, accepted);
            (pace.length, pace.pause)
        };
        assert_eq!(
            [after(4, 4), after(8, 8), after(8, 4), after(8, 3)],
            [(8, 0), (8, 0), (8, 0), (4, 0)]
        );
        assert_eq!(
            [after(4, 0), after(2, 0), after(1, 0), after(1, 0)],
            [(2, 1), (1, 2), (1, 4), (1, 8)]
        );
        assert_eq!(
            [after(1, 0), after(1, 0), after(1, 0), after(1, 1), after(2, 0)],
            [(1, 16), (1, 32), (1, 32), (2, 0), (1, 1)]
        );
        assert_eq!(Pace::new(1).length, 1);
    }
}
