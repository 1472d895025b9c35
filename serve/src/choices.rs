//! Choices of a request, which run in the batch when it is their turn.

use crate::{
    client::Client,
    error::{ApiError, Result},
    life::Alive,
    parts::{Parts, Piece, text},
    shared::Shared,
    turns::{Counts, Full, Place},
};
use bitnet_wgpu::{
    Error,
    model::{GenerateOptions, Stop, Token, TokenLogprobs},
};
use futures_util::{
    Stream, StreamExt as _,
    stream::{SelectAll, poll_fn},
};
use std::{pin::Pin, sync::Arc, time::Instant};
use tokio::{
    select,
    sync::mpsc::{UnboundedSender, unbounded_channel},
    task::spawn_blocking,
};

/// A choice before it runs.
pub struct Choice {
    pub ids: Arc<[u32]>,
    pub options: GenerateOptions,
    /// Separates the parts of its text; none where it has no parts.
    pub parts: Option<Parts>,
}

/// Progress of the choice of a number.
type Numbered = (usize, Progress);

/// The choices of a request. Dropped, as when the client has gone, they leave the queue or the
/// batch.
pub struct Choices {
    tokens: SelectAll<Pin<Box<dyn Stream<Item = Numbered> + Send>>>,
    parts: Vec<Option<Parts>>,
    /// Choices of each prompt.
    n: usize,
    /// Tokens of all prompts.
    prompts: usize,
    /// Whether reasoning is given.
    reasoning: bool,
    /// Choices that have not ended.
    open: usize,
    used: Used,
    alive: Alive,
}

/// An event of a choice that runs.
enum Progress {
    Token(Token),
    Failed(ApiError),
    /// No more tokens: why, and how many of its prompt's tokens there were, and were known.
    End {
        stop: Option<Stop>,
        prompt: usize,
        cached: usize,
    },
}

/// One step of a choice.
pub enum Step {
    /// A token, and the text that it completes.
    Token(GeneratedToken, Vec<Piece>),
    /// The rest of its text, and why it ended.
    End(Vec<Piece>, Option<Stop>),
}

/// A token without its text.
pub struct GeneratedToken {
    pub id: u32,
    pub logprobs: Option<TokenLogprobs>,
}

/// Tokens of an answer.
#[derive(Clone, Copy, Default)]
pub struct Used {
    pub prompt: usize,
    pub cached: usize,
    pub completion: usize,
    /// Those of the completion that are reasoning; none where it has no parts.
    pub reasoning: Option<usize>,
}

impl Choices {
    /// Begins choices of which all may run or wait.
    pub fn begin(
        shared: &Shared,
        client: Client,
        choices: Vec<Choice>,
        n: usize,
        reasoning: bool,
        alive: Alive,
        arrival: Instant,
    ) -> Result<Self> {
        let places =
            shared.running.enter(client, choices.len()).map_err(|full| busy(shared, full))?;
        let (mut tokens, mut parts) = (SelectAll::new(), Vec::new());
        let prompts = choices.iter().step_by(n).map(|choice| choice.ids.len()).sum();
        for (number, (choice, place)) in choices.into_iter().zip(places).enumerate() {
            let (sender, mut receiver) = unbounded_channel();
            parts.push(choice.parts);
            tokio::spawn(run(shared.clone(), choice.ids, choice.options, place, arrival, sender));
            tokens.push(Box::pin(
                poll_fn(move |cx| receiver.poll_recv(cx)).map(move |progress| (number, progress)),
            ) as Pin<Box<_>>);
        }
        let used =
            Used { reasoning: parts.iter().any(Option::is_some).then_some(0), ..Used::default() };
        Ok(Self { tokens, open: parts.len(), parts, n, prompts, reasoning, used, alive })
    }

    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Tokens of all prompts, known before anything is computed.
    pub fn prompt_tokens(&self) -> usize {
        self.prompts
    }

    /// Tokens up to now.
    pub fn used(&self) -> Used {
        self.used
    }

    /// Returns what comes next; none when all have ended. A server that ends cuts them.
    pub async fn next(&mut self) -> Option<Result<(usize, Step)>> {
        let next = select! {
            next = self.tokens.next() => next,
            () = self.alive.cut() => return Some(Err(ApiError::ending())),
        };
        Some(match next {
            None if self.open == 0 => return None,
            None => Err(ApiError::server("internal error: a choice ended without a reason")),
            Some((_, Progress::Failed(error))) => Err(error),
            Some((choice, Progress::Token(token))) => {
                let pieces = self.said(choice, token.text);
                let token = GeneratedToken { id: token.id, logprobs: token.logprobs };
                Ok((choice, Step::Token(token, pieces)))
            }
            Some((choice, Progress::End { stop, prompt, cached })) => {
                self.open -= 1;
                // Choices of one prompt share it.
                if choice % self.n == 0 {
                    self.used.prompt += prompt;
                    self.used.cached += cached;
                }
                let last = self.parts[choice].as_mut().map(|parts| parts.finish(stop));
                Ok((choice, Step::End(self.given(last.unwrap_or_default()), stop)))
            }
        })
    }

    /// Returns what a token adds to a choice.
    fn said(&mut self, choice: usize, said: String) -> Vec<Piece> {
        self.used.completion += 1;
        let Some(parts) = &mut self.parts[choice] else { return text(said) };
        let before = parts.reasoning.reasoning_tokens();
        let said = parts.push(&said);
        let more = parts.reasoning.reasoning_tokens() - before;
        self.used.reasoning = self.used.reasoning.map(|count| count + more);
        self.given(said)
    }

    fn given(&self, mut said: Vec<Piece>) -> Vec<Piece> {
        said.retain(|piece| self.reasoning || !matches!(piece, Piece::Reasoning(_)));
        said
    }
}

/// The error of a full queue.
fn busy(shared: &Shared, _: Full) -> ApiError {
    let Counts { running, waiting } = shared.running.counts();
    let options = shared.batch.options();
    let (slots, queue) = (options.slots(), options.get_queue());
    ApiError::library("", &Error::Busy { running, waiting, slots, queue })
}

/// Runs a choice until it ends, or nobody wants it any more. It takes tokens as they come, so that
/// a client that reads slowly keeps no slot from others.
async fn run(
    shared: Shared,
    ids: Arc<[u32]>,
    options: GenerateOptions,
    place: Place,
    arrival: Instant,
    progress: UnboundedSender<Progress>,
) {
    let work = async {
        let _turn = place.turn().await.map_err(|full| busy(&shared, full))?;
        // Errors that its client may be at fault for were found before it had a place.
        let server = |error: Error| match error {
            // The slot of a client that has gone is free after the batch's next step.
            // Only some texts reach the limits of a grammar.
            Error::Busy { .. } | Error::Grammar { .. } => ApiError::library("", &error),
            error => ApiError::server(error.to_string()),
        };
        let (batch, prompt) = (shared.batch.clone(), ids.clone());
        // Compiling a grammar takes milliseconds.
        let begin = spawn_blocking(move || batch.generate_ids(&prompt, &options));
        let begun = begin.await.map_err(|_| ApiError::server("internal error: it panicked"))?;
        let mut stream = begun.map_err(server)?;
        let mut sequence = shared.metrics.sequence(ids.len(), arrival);
        while let Some(token) = stream.next_token().await {
            let token = token.map_err(server)?;
            sequence.generated(stream.cached_tokens());
            let _ = progress.send(Progress::Token(token));
        }
        Ok(Progress::End {
            stop: stream.stop(),
            prompt: stream.prompt_tokens(),
            cached: stream.cached_tokens(),
        })
    };
    select! {
        end = work => drop(progress.send(end.unwrap_or_else(Progress::Failed))),
        () = progress.closed() => {}
    }
}
