//! Answers: the objects and chunks of OpenAI's API, made of tokens as they come.

use crate::{
    error::{ApiError, Result},
    server::{Phase, now},
};
use axum::response::{
    Sse,
    sse::{Event, KeepAlive},
};
use bitnet_wgpu::model::{Reasoning, Said, Stop, Token, TokenStream};
use futures_util::{
    Stream, StreamExt,
    future::{Either, select},
    stream::{SelectAll, unfold},
};
use serde_json::{Map, Value, json};
use std::{
    collections::VecDeque,
    convert::Infallible,
    hash::{BuildHasher, RandomState},
    pin::{Pin, pin},
};
use tokio::sync::watch;

/// Which of the two endpoints.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Chat,
    Completion,
}

/// A choice that runs, and what tells the parts of its text; none where it has no parts.
pub type Choice = (TokenStream, Option<Reasoning>);

/// The choices of a request, which run. Dropped, as when the client has gone, they leave the batch.
pub struct Choices {
    tokens: SelectAll<Pin<Box<dyn Stream<Item = Next> + Send>>>,
    parts: Vec<Option<Reasoning>>,
    /// Is reasoning given?
    reasoning: bool,
    used: Used,
    /// The server waits for this to be dropped.
    _alive: watch::Receiver<()>,
    phase: watch::Receiver<Phase>,
}

/// What comes of the choice of a number.
type Next = (usize, Progress);

enum Progress {
    Token(bitnet_wgpu::Result<Token>),
    /// No more tokens: why, and how many of its prompt's tokens there were, and were known.
    End {
        stop: Option<Stop>,
        prompt: usize,
        cached: usize,
    },
}

/// What is new of a choice.
enum Step {
    Said(Said),
    /// The last of its text, and why it ended.
    End(Said, Option<Stop>),
}

/// Tokens of an answer.
#[derive(Clone, Copy, Default)]
struct Used {
    prompt: usize,
    cached: usize,
    completion: usize,
    /// Those of the completion that are reasoning; none where it has no parts.
    reasoning: Option<usize>,
}

impl Choices {
    pub fn new(choices: Vec<Choice>, reasoning: bool, alive: watch::Receiver<()>, phase: &watch::Sender<Phase>) -> Self {
        let (streams, parts): (Vec<_>, Vec<_>) = choices.into_iter().unzip();
        let tokens = streams.into_iter().enumerate().map(|(n, stream)| Box::pin(progress(n, stream)) as _).collect();
        let used = Used { reasoning: parts.iter().any(Option::is_some).then_some(0), ..Used::default() };
        Self { tokens, parts, reasoning, used, _alive: alive, phase: phase.subscribe() }
    }

    /// What a token adds to a choice's text.
    fn said(&mut self, choice: usize, text: String) -> Said {
        self.used.completion += 1;
        let Some(parts) = &mut self.parts[choice] else { return Said { answer: text, ..Said::default() } };
        let before = parts.pieces();
        let said = parts.push(&text);
        let more = parts.pieces() - before;
        self.used.reasoning = self.used.reasoning.map(|count| count + more);
        self.given(said)
    }

    fn given(&self, said: Said) -> Said {
        if self.reasoning { said } else { Said { reasoning: String::new(), ..said } }
    }

    /// What comes next; none when all have ended. A server that ends cuts them.
    async fn next(&mut self, n: usize) -> Option<Result<(usize, Step)>> {
        let Self { tokens, phase, .. } = self;
        let next = match select(tokens.next(), pin!(phase.wait_for(|phase| *phase == Phase::Cut))).await {
            Either::Left((next, _)) => next?,
            Either::Right(_) => return Some(Err(ApiError::ending())),
        };
        Some(match next {
            // What a client may have wrong was found before it ran.
            (_, Progress::Token(Err(error))) => Err(ApiError::server(error.to_string())),
            (choice, Progress::Token(Ok(token))) => Ok((choice, Step::Said(self.said(choice, token.text)))),
            (choice, Progress::End { stop, prompt, cached }) => {
                // Choices of one prompt share it.
                if choice % n == 0 {
                    self.used.prompt += prompt;
                    self.used.cached += cached;
                }
                let last = self.parts[choice].as_mut().map(Reasoning::finish).unwrap_or_default();
                Ok((choice, Step::End(self.given(last), stop)))
            }
        })
    }
}

/// The tokens of a stream, then its end.
fn progress(n: usize, stream: TokenStream) -> impl Stream<Item = Next> + Send {
    unfold(Some(stream), move |stream| async move {
        let mut stream = stream?;
        Some(match stream.next().await {
            Some(Ok(token)) => ((n, Progress::Token(Ok(token))), Some(stream)),
            Some(Err(error)) => ((n, Progress::Token(Err(error))), None),
            None => {
                let (prompt, cached) = (stream.prompt_tokens(), stream.cached_tokens());
                ((n, Progress::End { stop: stream.stop(), prompt, cached }), None)
            }
        })
    })
}

/// What all chunks of an answer have in common.
pub struct Answer {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
    /// Choices of each prompt.
    n: usize,
}

impl Answer {
    pub fn new(kind: Kind, model: String, n: usize) -> Self {
        let name = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        Self { kind, id: format!("{name}-{:016x}", RandomState::new().hash_one(0)), created: now(), model, n }
    }

    fn object(&self, choices: Value, chunk: bool) -> Value {
        let object = match (self.kind, chunk) {
            (Kind::Chat, false) => "chat.completion",
            (Kind::Chat, true) => "chat.completion.chunk",
            (Kind::Completion, _) => "text_completion",
        };
        json!({ "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices })
    }

    /// All of it at once.
    pub async fn whole(self, mut choices: Choices) -> Result<Value> {
        let mut texts = vec![(Said::default(), "stop"); choices.parts.len()];
        while let Some(next) = choices.next(self.n).await {
            match next? {
                (choice, Step::Said(said)) => texts[choice].0 += said,
                (choice, Step::End(said, stop)) => {
                    texts[choice].0 += said;
                    texts[choice].1 = reason(stop);
                }
            }
        }
        let choice = |(index, (Said { reasoning, answer: text }, reason)): (usize, (Said, &str))| match self.kind {
            Kind::Chat => {
                let mut message = json!({ "role": "assistant", "content": text, "refusal": null });
                if !reasoning.is_empty() {
                    message["reasoning_content"] = reasoning.into();
                }
                json!({ "index": index, "message": message, "logprobs": null, "finish_reason": reason })
            }
            Kind::Completion => json!({ "index": index, "text": text, "logprobs": null, "finish_reason": reason }),
        };
        let list = texts.into_iter().enumerate().map(choice).collect();
        let mut object = self.object(list, false);
        object["usage"] = usage(choices.used);
        Ok(object)
    }

    /// A chunk for each piece of text. Comments keep the connection open while there is none.
    pub fn stream(self, choices: Choices, usage: bool) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
        let mut waiting = VecDeque::new();
        if self.kind == Kind::Chat {
            waiting.extend(
                (0..choices.parts.len()).map(|index| self.chunk(index, json!({ "role": "assistant", "content": "" }), None, usage)),
            );
        }
        let state = Streaming { answer: self, choices, usage, waiting, ended: false };
        Sse::new(unfold(state, |mut state| async move { state.next().await.map(|event| (Ok(event), state)) }))
            .keep_alive(KeepAlive::default())
    }

    /// A chunk of one choice: `what` is the delta of a message, or a text.
    fn chunk(&self, index: usize, what: Value, reason: Option<&str>, usage: bool) -> Event {
        let name = if self.kind == Kind::Chat { "delta" } else { "text" };
        let mut object = self.object(json!([{ "index": index, name: what, "logprobs": null, "finish_reason": reason }]), true);
        if usage {
            // It comes with the last chunk, and until then it is null.
            object["usage"] = Value::Null;
        }
        event(&object)
    }

    /// The chunk of a text; none where nothing is said.
    fn text(&self, index: usize, Said { reasoning, answer }: &Said, usage: bool) -> Option<Event> {
        let parts = [("reasoning_content", reasoning), ("content", answer)].into_iter().filter(|(_, text)| !text.is_empty());
        let delta: Map<String, Value> = parts.map(|(name, text)| (name.to_owned(), text.as_str().into())).collect();
        let is_said = !delta.is_empty();
        let what = if self.kind == Kind::Chat { Value::Object(delta) } else { json!(answer) };
        is_said.then(|| self.chunk(index, what, None, usage))
    }
}

struct Streaming {
    answer: Answer,
    choices: Choices,
    usage: bool,
    waiting: VecDeque<Event>,
    ended: bool,
}

impl Streaming {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            let answer = &self.answer;
            match self.choices.next(answer.n).await {
                Some(Ok((index, Step::Said(said)))) => self.waiting.extend(answer.text(index, &said, self.usage)),
                Some(Ok((index, Step::End(said, stop)))) => {
                    self.waiting.extend(answer.text(index, &said, self.usage));
                    let what = if answer.kind == Kind::Chat { json!({}) } else { json!("") };
                    self.waiting.push_back(answer.chunk(index, what, Some(reason(stop)), self.usage));
                }
                Some(Err(error)) => {
                    self.ended = true;
                    return Some(event(&error.object()));
                }
                None => {
                    self.ended = true;
                    if self.usage {
                        let mut object = answer.object(json!([]), true);
                        object["usage"] = usage(self.choices.used);
                        self.waiting.push_back(event(&object));
                    }
                    self.waiting.push_back(Event::default().data("[DONE]"));
                }
            }
        }
    }
}

fn event(object: &Value) -> Event {
    Event::default().data(object.to_string())
}

fn reason(stop: Option<Stop>) -> &'static str {
    match stop {
        Some(Stop::MaxTokens | Stop::Context) => "length",
        _ => "stop",
    }
}

fn usage(used: Used) -> Value {
    let Used { prompt, cached, completion, reasoning } = used;
    let mut usage = json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": cached },
    });
    if let Some(reasoning) = reasoning {
        usage["completion_tokens_details"] = json!({ "reasoning_tokens": reasoning });
    }
    usage
}
