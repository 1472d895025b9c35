//! Answers of `/v1/chat/completions` and `/v1/completions`.

use crate::{
    budget::Held,
    choices::{Choices, GeneratedToken, Step, Used},
    error::{ApiError, Result},
    life::now,
    logprobs::{self, Completion, Echo, TokenTexts},
    prepare::Shape,
    stream::{self, Events, Whole},
};
use axum::response::sse::Event;
use bitnet_wgpu::model::{SplitText, Stop};
use serde_json::{Map, Value, json};
use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

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
    /// Of each choice, the characters that were written.
    offsets: Vec<usize>,
}

/// Returns a new id, which begins with `prefix`.
pub fn new_id(prefix: &str) -> String {
    format!("{prefix}{:016x}", RandomState::new().hash_one(0))
}

impl Answer {
    pub fn new(kind: Kind, model: String, shape: Shape, texts: TokenTexts) -> Self {
        let id = new_id(if kind == Kind::Chat { "chatcmpl-" } else { "cmpl-" });
        Self { kind, id, created: now(), model, shape, texts, offsets: Vec::new() }
    }

    /// Returns what counts the bytes of log-probabilities.
    pub fn held(&self) -> Arc<Held> {
        self.shape.held.clone()
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
    pub async fn whole(self, mut choices: Choices) -> Result<Value> {
        let all = stream::whole(&mut choices).await?;
        let list = all.into_iter().enumerate().map(|(index, whole)| self.choice(index, whole));
        let mut object = self.object(list.collect(), false);
        object["usage"] = usage(choices.used());
        Ok(object)
    }

    /// Returns the prompt that a choice repeats, if it does.
    fn echo(&self, choice: usize) -> Option<&Echo> {
        self.shape.echoes.get(choice / self.shape.n)
    }

    fn choice(&self, index: usize, whole: Whole) -> Value {
        let Whole { text: SplitText { reasoning, answer }, tokens, stop } = whole;
        let mut object = json!({ "index": index, "logprobs": null, "finish_reason": reason(stop) });
        match self.kind {
            Kind::Chat => {
                let mut message =
                    json!({ "role": "assistant", "content": answer, "refusal": null });
                if !reasoning.is_empty() {
                    message["reasoning_content"] = reasoning.into();
                }
                object["message"] = message;
            }
            Kind::Completion => {
                let prompt = self.echo(index).map_or("", |echo| &echo.text);
                object["text"] = format!("{prompt}{answer}").into();
            }
        }
        if self.shape.logprobs {
            object["logprobs"] = self.logprobs(self.echo(index), &tokens, &mut 0);
        }
        object
    }

    /// Returns the log-probabilities of tokens, and before them of a prompt that is repeated.
    fn logprobs(
        &self,
        echo: Option<&Echo>,
        tokens: &[GeneratedToken],
        offset: &mut usize,
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

    /// The chunk of a text; none without text and log-probabilities.
    fn text(&self, index: usize, text: SplitText, logprobs: Value) -> Option<Event> {
        let parts = [("reasoning_content", text.reasoning), ("content", text.answer.clone())];
        let parts = parts.into_iter().filter(|(_, text)| !text.is_empty());
        let delta: Map<String, Value> =
            parts.map(|(name, text)| (name.to_owned(), text.into())).collect();
        let is_empty = delta.is_empty() && logprobs.is_null();
        let what = if self.kind == Kind::Chat { delta.into() } else { text.answer.into() };
        (!is_empty).then(|| self.chunk(index, what, None, logprobs))
    }
}

impl Events for Answer {
    fn begin(&mut self, choices: &Choices) -> Vec<Event> {
        self.offsets = vec![0; choices.len()];
        let first = |index: usize| {
            if self.kind == Kind::Chat {
                let delta = json!({ "role": "assistant", "content": "" });
                return Some(self.chunk(index, delta, None, Value::Null));
            }
            let echo = self.echo(index)?;
            let mut offset = 0;
            let logprobs = match self.shape.logprobs {
                true => self.logprobs(Some(echo), &[], &mut offset),
                false => Value::Null,
            };
            Some(self.chunk(index, echo.text.clone().into(), None, logprobs))
        };
        let events = (0..choices.len()).filter_map(first).collect();
        for index in 0..choices.len() {
            let length = self.echo(index).map_or(0, |echo| echo.text.chars().count());
            self.offsets[index] = length;
        }
        events
    }

    fn step(&mut self, index: usize, step: Step) -> Vec<Event> {
        match step {
            Step::Token(token, text) => {
                let mut offset = self.offsets[index];
                let logprobs = match self.shape.logprobs {
                    true => self.logprobs(None, std::slice::from_ref(&token), &mut offset),
                    false => Value::Null,
                };
                self.offsets[index] = offset;
                self.text(index, text, logprobs).into_iter().collect()
            }
            Step::End(text, stop) => {
                let what = if self.kind == Kind::Chat { json!({}) } else { json!("") };
                let last = self.chunk(index, what, Some(reason(stop)), Value::Null);
                self.text(index, text, Value::Null).into_iter().chain([last]).collect()
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
