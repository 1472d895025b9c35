//! Answers: the objects and chunks of OpenAI's API, made of tokens as they come.

use crate::{
    choices::{Choices, Step, Used},
    error::Result,
    life::now,
};
use axum::response::{
    Sse,
    sse::{Event, KeepAlive},
};
use bitnet_wgpu::model::{SplitText, Stop};
use futures_util::{Stream, stream::unfold};
use serde_json::{Map, Value, json};
use std::{
    collections::VecDeque,
    convert::Infallible,
    hash::{BuildHasher, RandomState},
};

/// Which of the two endpoints.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Chat,
    Completion,
}

/// What all chunks of an answer have in common.
pub struct Answer {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
}

impl Answer {
    pub fn new(kind: Kind, model: String) -> Self {
        let name = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        Self {
            kind,
            id: format!("{name}-{:016x}", RandomState::new().hash_one(0)),
            created: now(),
            model,
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

    /// All of it at once.
    pub async fn whole(self, mut choices: Choices) -> Result<Value> {
        let mut texts = vec![(SplitText::default(), "stop"); choices.len()];
        while let Some(next) = choices.next().await {
            match next? {
                (choice, Step::Text(said)) => texts[choice].0 += said,
                (choice, Step::End(said, stop)) => {
                    texts[choice].0 += said;
                    texts[choice].1 = reason(stop);
                }
            }
        }
        let choice = |(index, (SplitText { reasoning, answer: text }, reason)): (
            usize,
            (SplitText, &str),
        )| match self.kind {
            Kind::Chat => {
                let mut message = json!({ "role": "assistant", "content": text, "refusal": null });
                if !reasoning.is_empty() {
                    message["reasoning_content"] = reasoning.into();
                }
                json!({ "index": index, "message": message, "logprobs": null, "finish_reason": reason })
            }
            Kind::Completion => {
                json!({ "index": index, "text": text, "logprobs": null, "finish_reason": reason })
            }
        };
        let list = texts.into_iter().enumerate().map(choice).collect();
        let mut object = self.object(list, false);
        object["usage"] = usage(choices.used());
        Ok(object)
    }

    /// A chunk for each piece of text. Comments keep the connection open while there is none.
    pub fn stream(
        self,
        choices: Choices,
        usage: bool,
    ) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
        let mut waiting = VecDeque::new();
        if self.kind == Kind::Chat {
            waiting.extend((0..choices.len()).map(|index| {
                self.chunk(index, json!({ "role": "assistant", "content": "" }), None, usage)
            }));
        }
        let state = Streaming { answer: self, choices, usage, waiting, ended: false };
        Sse::new(unfold(state, |mut state| async move {
            state.next().await.map(|event| (Ok(event), state))
        }))
        .keep_alive(KeepAlive::default())
    }

    /// A chunk of one choice: `what` is the delta of a message, or a text.
    fn chunk(&self, index: usize, what: Value, reason: Option<&str>, usage: bool) -> Event {
        let name = if self.kind == Kind::Chat { "delta" } else { "text" };
        let mut object = self.object(
            json!([{ "index": index, name: what, "logprobs": null, "finish_reason": reason }]),
            true,
        );
        if usage {
            // It comes with the last chunk, and until then it is null.
            object["usage"] = Value::Null;
        }
        event(&object)
    }

    /// The chunk of a text; none where nothing is said.
    fn text(
        &self,
        index: usize,
        SplitText { reasoning, answer }: &SplitText,
        usage: bool,
    ) -> Option<Event> {
        let parts = [("reasoning_content", reasoning), ("content", answer)]
            .into_iter()
            .filter(|(_, text)| !text.is_empty());
        let delta: Map<String, Value> =
            parts.map(|(name, text)| (name.to_owned(), text.as_str().into())).collect();
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
            match self.choices.next().await {
                Some(Ok((index, Step::Text(said)))) => {
                    self.waiting.extend(answer.text(index, &said, self.usage))
                }
                Some(Ok((index, Step::End(said, stop)))) => {
                    self.waiting.extend(answer.text(index, &said, self.usage));
                    let what = if answer.kind == Kind::Chat { json!({}) } else { json!("") };
                    self.waiting.push_back(answer.chunk(
                        index,
                        what,
                        Some(reason(stop)),
                        self.usage,
                    ));
                }
                Some(Err(error)) => {
                    self.ended = true;
                    return Some(event(&error.object()));
                }
                None => {
                    self.ended = true;
                    if self.usage {
                        let mut object = answer.object(json!([]), true);
                        object["usage"] = usage(self.choices.used());
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
