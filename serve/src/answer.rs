//! Answers of `/v1/chat/completions` and `/v1/completions`.

use crate::{
    choices::{Choices, GeneratedToken, Step, Used},
    error::{ApiError, Result, json_response},
    life::now,
    logprobs::{self, Completion, Echo, Offset, TokenTexts},
    parts::{Piece, WholeParts},
    prepare::Shape,
    stream::{self, Events, Whole},
};
use axum::{
    http::StatusCode,
    response::{Response, sse::Event},
};
use bitnet_wgpu::model::{Stop, ToolCall, ToolCallEvent};
use serde_json::{Map, Value, json};
use std::hash::{BuildHasher, RandomState};
use tokio::task::spawn_blocking;

/// Which of the two endpoints.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Chat,
    Completion,
}

/// An answer: what all its chunks have in common.
pub struct Answer {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
    shape: Shape,
    texts: TokenTexts,
    /// Where each choice of a stream is.
    offsets: Vec<Offset>,
    /// Of each choice, its tool calls.
    calls: Vec<Calls>,
}

/// Tool calls of a choice that is streamed.
#[derive(Clone, Copy, Default)]
struct Calls {
    begun: usize,
    ended: usize,
}

/// Returns a new id, which begins with `prefix`.
pub fn new_id(prefix: &str) -> String {
    format!("{prefix}{:016x}", RandomState::new().hash_one(0))
}

impl Answer {
    pub fn new(kind: Kind, model: String, shape: Shape, texts: TokenTexts) -> Self {
        let id = new_id(if kind == Kind::Chat { "chatcmpl-" } else { "cmpl-" });
        Self {
            kind,
            id,
            created: now(),
            model,
            shape,
            texts,
            offsets: Vec::new(),
            calls: Vec::new(),
        }
    }

    fn object(&self, choices: Value, chunk: bool) -> Value {
        let object = match (self.kind, chunk) {
            (Kind::Chat, false) => "chat.completion",
            (Kind::Chat, true) => "chat.completion.chunk",
            (Kind::Completion, _) => "text_completion",
        };
        json!({ "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices })
    }

    /// Returns the answer at once.
    pub async fn whole(self, mut choices: Choices) -> Result<Response> {
        let (all, used) = (stream::whole(&mut choices).await?, choices.used());
        if !self.shape.logprobs {
            return Ok(self.response(all, used));
        }
        blocking(move || self.response(all, used)).await
    }

    /// Returns the answer as events.
    pub async fn events(self, choices: Choices) -> Result<Response> {
        if !self.shape.logprobs || self.shape.echoes.is_empty() {
            return Ok(stream::events(self, choices));
        }
        blocking(move || stream::events(self, choices)).await
    }

    fn response(self, all: Vec<Whole>, used: Used) -> Response {
        let list = all.into_iter().enumerate().map(|(index, whole)| self.choice(index, whole));
        let mut object = self.object(list.collect(), false);
        object["usage"] = usage(used);
        let mut response = json_response(StatusCode::OK, &object);
        response.extensions_mut().insert(self.shape.held);
        response
    }

    /// Returns the prompt that a choice repeats, if it does.
    fn echo(&self, choice: usize) -> Option<&Echo> {
        self.shape.echoes.get(choice / self.shape.n)
    }

    fn choice(&self, index: usize, whole: Whole) -> Value {
        let Whole { parts: WholeParts { reasoning, answer }, tokens, stop } = whole;
        let reason = reason(stop, !answer.calls.is_empty());
        let mut object = json!({ "index": index, "logprobs": null, "finish_reason": reason });
        match self.kind {
            Kind::Chat => {
                let mut message =
                    json!({ "role": "assistant", "content": answer.text, "refusal": null });
                if !answer.calls.is_empty() {
                    // Clients expect null where there is nothing but calls.
                    let text = Some(answer.text).filter(|text| !text.is_empty());
                    message["content"] = text.into();
                    message["tool_calls"] = answer.calls.iter().map(call).collect();
                }
                if !reasoning.is_empty() {
                    message["reasoning_content"] = reasoning.into();
                }
                object["message"] = message;
            }
            Kind::Completion => {
                let prompt = self.echo(index).map_or("", |echo| &echo.text);
                object["text"] = format!("{prompt}{}", answer.text).into();
            }
        }
        if self.shape.logprobs {
            let echo = self.echo(index);
            let mut offset = self.texts.offset(echo.is_some());
            object["logprobs"] = self.logprobs(echo, &tokens, &mut offset);
        }
        object
    }

    /// Returns the log-probabilities of tokens, and before them of a prompt that is repeated.
    fn logprobs(
        &self,
        echo: Option<&Echo>,
        tokens: &[GeneratedToken],
        offset: &mut Offset,
    ) -> Value {
        if self.kind == Kind::Chat {
            return logprobs::chat(&self.texts, tokens);
        }
        let mut object = Completion::default();
        if let Some(echo) = echo {
            object.echo(&self.texts, echo, offset);
        }
        tokens.iter().for_each(|token| object.token(&self.texts, token, offset));
        object.object()
    }

    /// Returns the log-probabilities of the next token of a choice.
    fn next_logprobs(&mut self, index: usize, token: &GeneratedToken) -> Value {
        let mut offset = std::mem::take(&mut self.offsets[index]);
        let logprobs = self.logprobs(None, std::slice::from_ref(token), &mut offset);
        self.offsets[index] = offset;
        logprobs
    }

    /// A chunk of one choice: `what` is the delta of a message, or a text.
    fn chunk(&self, index: usize, what: Value, reason: Option<&str>, logprobs: Value) -> Event {
        let name = if self.kind == Kind::Chat { "delta" } else { "text" };
        let choice =
            json!({ "index": index, name: what, "logprobs": logprobs, "finish_reason": reason });
        let mut object = self.object(json!([choice]), true);
        if self.shape.usage {
            // It comes with the last chunk, and until then it is null.
            object["usage"] = Value::Null;
        }
        event(&object)
    }

    /// The chunk of some pieces; none without pieces and log-probabilities.
    fn pieces(&mut self, index: usize, pieces: Vec<Piece>, logprobs: Value) -> Option<Event> {
        let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        for piece in pieces {
            match piece {
                Piece::Reasoning(more) => reasoning += &more,
                Piece::Answer(ToolCallEvent::Text(more) | ToolCallEvent::Malformed(more)) => {
                    text += &more
                }
                Piece::Answer(event) => self.calls[index].add(event, &mut calls),
            }
        }
        if self.kind == Kind::Completion {
            let is_empty = text.is_empty() && logprobs.is_null();
            return (!is_empty).then(|| self.chunk(index, text.into(), None, logprobs));
        }
        let mut delta = Map::new();
        for (name, text) in [("reasoning_content", reasoning), ("content", text)] {
            if !text.is_empty() {
                delta.insert(name.into(), text.into());
            }
        }
        if !calls.is_empty() {
            delta.insert("tool_calls".into(), calls.into());
        }
        let is_empty = delta.is_empty() && logprobs.is_null();
        (!is_empty).then(|| self.chunk(index, delta.into(), None, logprobs))
    }
}

impl Calls {
    /// Adds an event to the list of a delta, which has an entry for each call.
    fn add(&mut self, event: ToolCallEvent, list: &mut Vec<Value>) {
        match event {
            ToolCallEvent::Begin { id, name } => {
                let begun = ToolCall { id, name, arguments: String::new() };
                let mut entry = call(&begun);
                entry["index"] = self.begun.into();
                list.push(entry);
                self.begun += 1;
            }
            ToolCallEvent::Arguments(piece) => {
                let index = self.begun.saturating_sub(1);
                match list.last_mut() {
                    Some(last) => {
                        let before = last["function"]["arguments"].as_str().unwrap_or("");
                        last["function"]["arguments"] = format!("{before}{piece}").into();
                    }
                    None => {
                        list.push(json!({ "index": index, "function": { "arguments": piece } }))
                    }
                }
            }
            ToolCallEvent::End => self.ended += 1,
            ToolCallEvent::Text(_) | ToolCallEvent::Malformed(_) => {}
        }
    }
}

/// A call as the API has it.
fn call(ToolCall { id, name, arguments }: &ToolCall) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

impl Events for Answer {
    fn begin(&mut self, choices: &Choices) -> Vec<Event> {
        self.calls = vec![Calls::default(); choices.len()];
        let first = |index: usize| {
            let mut offset = self.texts.offset(self.echo(index).is_some());
            if self.kind == Kind::Chat {
                let delta = json!({ "role": "assistant", "content": "" });
                return (offset, Some(self.chunk(index, delta, None, Value::Null)));
            }
            let event = self.echo(index).map(|echo| {
                let logprobs = match self.shape.logprobs {
                    true => self.logprobs(Some(echo), &[], &mut offset),
                    false => Value::Null,
                };
                self.chunk(index, echo.text.clone().into(), None, logprobs)
            });
            (offset, event)
        };
        let (offsets, events): (_, Vec<Option<Event>>) = (0..choices.len()).map(first).unzip();
        self.offsets = offsets;
        events.into_iter().flatten().collect()
    }

    fn step(&mut self, index: usize, step: Step) -> Vec<Event> {
        match step {
            Step::Token(token, pieces) => {
                let logprobs = match self.shape.logprobs {
                    true => self.next_logprobs(index, &token),
                    false => Value::Null,
                };
                self.pieces(index, pieces, logprobs).into_iter().collect()
            }
            Step::End(pieces, stop) => {
                let what = if self.kind == Kind::Chat { json!({}) } else { json!("") };
                let rest = self.pieces(index, pieces, Value::Null);
                // Pieces of a malformed call went out already: nothing may be run then.
                let Calls { begun, ended } = self.calls[index];
                let reason = reason(stop, begun > 0 && begun == ended);
                let last = self.chunk(index, what, Some(reason), Value::Null);
                rest.into_iter().chain([last]).collect()
            }
        }
    }

    fn end(&mut self, choices: &Choices) -> Vec<Event> {
        let mut events = Vec::new();
        if self.shape.usage {
            let mut object = self.object(json!([]), true);
            object["usage"] = usage(choices.used());
            events.push(event(&object));
        }
        events.push(Event::default().data("[DONE]"));
        events
    }

    fn failed(&self, error: &ApiError) -> Event {
        event(&error.object())
    }
}

/// Does work on a thread that may block: the texts of all tokens and their alternatives may take
/// seconds.
async fn blocking(work: impl FnOnce() -> Response + Send + 'static) -> Result<Response> {
    let panicked = |_| ApiError::server("internal error: writing the answer panicked");
    spawn_blocking(work).await.map_err(panicked)
}

fn event(object: &Value) -> Event {
    Event::default().data(object.to_string())
}

fn reason(stop: Option<Stop>, has_calls: bool) -> &'static str {
    match stop {
        Some(Stop::MaxTokens | Stop::Context) => "length",
        _ if has_calls => "tool_calls",
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
