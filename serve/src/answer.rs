//! Answers: the objects and chunks of OpenAI's API, made of tokens as they come.

use crate::{
    error::{ApiError, Result},
    server::{Phase, now},
};
use axum::response::{
    Sse,
    sse::{Event, KeepAlive},
};
use bitnet_wgpu::model::{Stop, Token, TokenStream};
use futures_util::{
    Stream, StreamExt,
    future::{Either, select},
    stream::{SelectAll, unfold},
};
use serde_json::{Value, json};
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

/// The choices of a request, which run. Dropped, as when the client has gone, they leave the batch.
pub struct Choices {
    tokens: SelectAll<Pin<Box<dyn Stream<Item = Next> + Send>>>,
    count: usize,
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

/// Tokens of an answer.
#[derive(Clone, Copy, Default)]
struct Used {
    prompt: usize,
    cached: usize,
    completion: usize,
}

impl Choices {
    pub fn new(streams: Vec<TokenStream>, alive: watch::Receiver<()>, phase: &watch::Sender<Phase>) -> Self {
        let count = streams.len();
        let tokens = streams.into_iter().enumerate().map(|(n, stream)| Box::pin(progress(n, stream)) as _).collect();
        Self { tokens, count, used: Used::default(), _alive: alive, phase: phase.subscribe() }
    }

    /// What comes next; none when all have ended. A server that ends cuts them.
    async fn next(&mut self, n: usize) -> Option<Result<Next>> {
        let Self { tokens, phase, used, .. } = self;
        let next = match select(tokens.next(), pin!(phase.wait_for(|phase| *phase == Phase::Cut))).await {
            Either::Left((next, _)) => next?,
            Either::Right(_) => return Some(Err(ApiError::ending())),
        };
        Some(match next {
            (_, Progress::Token(Err(error))) => Err(ApiError::library("", &error)),
            (choice, Progress::End { prompt, cached, .. }) => {
                // Choices of one prompt share it.
                if choice % n == 0 {
                    used.prompt += prompt;
                    used.cached += cached;
                }
                Ok(next)
            }
            _ => {
                used.completion += 1;
                Ok(next)
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
        let mut texts = vec![(String::new(), "stop"); choices.count];
        while let Some(next) = choices.next(self.n).await {
            match next? {
                (choice, Progress::Token(Ok(token))) => texts[choice].0 += &token.text,
                (choice, Progress::End { stop, .. }) => texts[choice].1 = reason(stop),
                _ => {}
            }
        }
        let choice = |(index, (text, reason)): (usize, (String, &str))| match self.kind {
            Kind::Chat => {
                let message = json!({ "role": "assistant", "content": text, "refusal": null });
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
            waiting.extend((0..choices.count).map(|index| self.chunk(index, json!({ "role": "assistant", "content": "" }), None, usage)));
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

    fn text(&self, text: &str) -> Value {
        if self.kind == Kind::Chat { json!({ "content": text }) } else { json!(text) }
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
                Some(Ok((index, Progress::Token(Ok(token))))) if !token.text.is_empty() => {
                    return Some(answer.chunk(index, answer.text(&token.text), None, self.usage));
                }
                Some(Ok((_, Progress::Token(_)))) => {}
                Some(Ok((index, Progress::End { stop, .. }))) => {
                    let what = if answer.kind == Kind::Chat { json!({}) } else { json!("") };
                    return Some(answer.chunk(index, what, Some(reason(stop)), self.usage));
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
    let Used { prompt, cached, completion } = used;
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": cached },
    })
}
