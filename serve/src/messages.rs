//! Requests and answers of `/v1/messages`, Anthropic's API, for text and tool calls.

use crate::{
    answer::new_id,
    choices::{Choices, Step},
    conversation::{MOST_MESSAGES, text_of},
    error::{ApiError, Result, json_response},
    fields::Fields,
    grammar::{Format, take_format},
    json,
    options::Options,
    parts::Piece,
    prepare::{Shape, encode_chat, thinking_tokenizer},
    request::{HARMLESS, Prompt, Request, Thinking, cache_salt, sampling, seed, stops},
    shared::Shared,
    stream::{self, Events},
    tool_blocks::turn,
    tools::{Api, CallIds, Tools},
};
use axum::{
    http::StatusCode,
    response::{IntoResponse as _, Response, sse::Event},
};
use bitnet_wgpu::model::{Message, Stop, Tokenizer, ToolCallEvent};
use serde::Serialize;
use serde_json::{
    Value, json, to_string,
    value::{RawValue, to_raw_value},
};

/// Fields that are not supported, and the values that they may have nevertheless.
const UNSUPPORTED: [(&str, &[&str]); 2] = [("mcp_servers", &["[]"]), ("container", &[])];

/// Reads a request. The server's options are the defaults.
pub fn read(body: Value, server: &Options) -> Result<Request> {
    let mut fields = Fields::new("", body, server.strict)?;
    let most =
        fields.count("max_tokens", 1..=u64::MAX)?.ok_or_else(|| fields.missing("max_tokens"))?;
    let mut request = conversation(&mut fields, server)?;
    request.stream = fields.flag("stream")?;
    request.cache_salt = cache_salt(&mut fields)?;
    request.seed = seed(&mut fields)?.unwrap_or(request.seed);
    let sampling = sampling(&mut fields, server.defaults.get_sampling())?;
    request.stops = stops(&mut fields, "stop_sequences")?;
    request.options = request.options.sampling(sampling).stop(&request.stops).max_tokens(most);
    fields.end()?;
    Ok(request)
}

/// Returns the number of tokens of a conversation: `/v1/messages/count_tokens`.
pub fn count(shared: &Shared, body: &[u8]) -> Result<Value> {
    let mut fields = Fields::new("", json::read(body)?, shared.options.strict)?;
    let request = conversation(&mut fields, &shared.options)?;
    fields.end()?;
    shared.check_model(request.model.as_deref())?;
    let tokenizer = match thinking_tokenizer(shared, request.thinking)? {
        Some(tokenizer) => tokenizer,
        None => shared.tokenizer().map_err(|error| ApiError::library("messages", &error))?,
    };
    let tokenizer = match &request.tools {
        Some(tools) => tools.prepare(&tokenizer)?.0,
        None => tokenizer,
    };
    let mut tokens = 0;
    for prompt in &request.prompts {
        let Prompt::Chat { messages, continues } = prompt else { continue };
        let ids = encode_chat(&tokenizer, messages, *continues);
        tokens += ids.map_err(|error| ApiError::library("messages", &error))?.len();
    }
    Ok(json!({ "input_tokens": tokens }))
}

/// Reads what a request and a count of its tokens have in common.
fn conversation(fields: &mut Fields, server: &Options) -> Result<Request> {
    let system = match fields.take("system") {
        Some(system) => Some(Message::new("system", text_of(fields, "system", system, &["text"])?)),
        None => None,
    };
    let turns = turns(fields)?;
    let continues = turns.last().is_some_and(|last| last.role == "assistant");
    let messages = system.into_iter().chain(turns).collect();
    let tools = Tools::take(fields, Api::Messages)?;
    fields.harmless(&HARMLESS)?;
    fields.harmless(&["cache_control", "context_management"])?;
    fields.unsupported(&UNSUPPORTED)?;
    let (thinking, reasoning) = thinking(fields)?;
    let format = output_format(fields)?;
    let prompt = Prompt::Chat { messages, continues };
    let request = Request::conversation("messages", prompt, server);
    Ok(Request { model: fields.text("model")?, thinking, reasoning, tools, format, ..request })
}

/// Reads what the answer must be.
fn output_format(fields: &mut Fields) -> Result<Option<Format>> {
    let Some(config) = fields.take("output_config") else { return Ok(None) };
    let mut config = fields.nested("output_config", config)?;
    let format = take_format(&mut config)?;
    config.unsupported(&[("effort", &["\"high\""])])?;
    config.end()?;
    Ok(format)
}

/// Reads whether the model reasons, and whether the answer has the reasoning.
fn thinking(fields: &mut Fields) -> Result<(Option<Thinking>, bool)> {
    let Some(thinking) = fields.take("thinking") else { return Ok((None, false)) };
    let mut thinking = fields.nested("thinking", thinking)?;
    // Clients disable it for all models alike, and the answer is without reasoning in any case.
    let choice = |is_on| Some(Thinking { is_on, field: "thinking", is_required: is_on });
    let chosen = match thinking.text("type")?.as_deref() {
        Some("enabled") => (choice(true), true),
        Some("adaptive") => (None, true),
        Some("disabled") => (choice(false), false),
        _ => return Err(thinking.wrong("type", "expected enabled, adaptive or disabled")),
    };
    // The model reasons as long as it does, but Anthropic's clients have to send a budget.
    thinking.take("budget_tokens");
    thinking.harmless(&["display"])?;
    thinking.end()?;
    Ok(chosen)
}

fn turns(fields: &mut Fields) -> Result<Vec<Message>> {
    match fields.take("messages") {
        None => Err(ApiError::missing("messages")),
        Some(Value::Array(list)) if (1..=MOST_MESSAGES).contains(&list.len()) => {
            let (mut turns, mut calls) = (Vec::new(), CallIds::default());
            for (n, value) in list.into_iter().enumerate() {
                turns.extend(turn(fields.nested(&format!("messages[{n}]"), value)?, &mut calls)?);
            }
            Ok(turns)
        }
        Some(_) => {
            let what = format!("expected a list of 1 to {MOST_MESSAGES} messages");
            Err(ApiError::field("messages", what))
        }
    }
}

/// Answers an error in the form of Anthropic's API.
pub fn failed(error: &ApiError) -> Response {
    let mut response = json_response(error.status(), &object(error));
    // Headers, of when to try again perhaps, are those of all errors.
    let other = error.clone().into_response();
    let headers = other.headers().iter().filter(|(name, _)| *name != "content-length");
    headers.for_each(|(name, value)| drop(response.headers_mut().insert(name, value.clone())));
    response
}

fn object(error: &ApiError) -> Value {
    let kind = match error.status() {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    json!({ "type": "error", "error": { "type": kind, "message": error.message() } })
}

/// An answer as far as it has come.
pub struct Answer {
    id: String,
    model: String,
    stops: Vec<String>,
    tokenizer: Option<Tokenizer>,
    /// Tokens of the answer, by which the stop string is found that ended it.
    ids: Vec<u32>,
    blocks: Vec<Block>,
    /// Calls that began, and those of them that are complete.
    begun: usize,
    ended: usize,
    stop: Option<Stop>,
}

struct Block {
    kind: BlockKind,
    text: String,
}

#[derive(Clone, PartialEq, Eq)]
enum BlockKind {
    Thinking,
    Text,
    /// A call, whose text is its arguments.
    Call {
        id: String,
        name: String,
    },
}

/// A complete call. Numbers have all their digits.
#[derive(Serialize)]
struct ToolUse<'a> {
    #[serde(flatten)]
    fields: Value,
    input: &'a RawValue,
}

/// A complete answer.
#[derive(Serialize)]
struct Whole {
    #[serde(flatten)]
    fields: Value,
    content: Vec<Box<RawValue>>,
}

/// Returns an object without one of its fields.
fn without(mut object: Value, field: &str) -> Value {
    object.as_object_mut().and_then(|fields| fields.remove(field));
    object
}

impl Block {
    /// The block without text of a call.
    fn object(&self) -> Value {
        let text = &self.text;
        match &self.kind {
            BlockKind::Thinking => json!({ "type": "thinking", "thinking": text, "signature": "" }),
            BlockKind::Text => json!({ "type": "text", "text": text }),
            BlockKind::Call { id, name } => {
                json!({ "type": "tool_use", "id": id, "name": name, "input": {} })
            }
        }
    }

    /// The block as JSON, with the arguments of a call as the model wrote them.
    fn whole(&self) -> serde_json::Result<Box<RawValue>> {
        match (&self.kind, serde_json::from_str(&self.text)) {
            (BlockKind::Call { .. }, Ok(input)) => {
                to_raw_value(&ToolUse { fields: without(self.object(), "input"), input })
            }
            _ => to_raw_value(&self.object()),
        }
    }

    fn delta(&self, text: &str) -> Value {
        match self.kind {
            BlockKind::Thinking => json!({ "type": "thinking_delta", "thinking": text }),
            BlockKind::Text => json!({ "type": "text_delta", "text": text }),
            BlockKind::Call { .. } => json!({ "type": "input_json_delta", "partial_json": text }),
        }
    }
}

impl Answer {
    pub fn new(model: String, shape: Shape, tokenizer: Option<Tokenizer>) -> Self {
        let (id, stops) = (new_id("msg_"), shape.stops);
        let (ids, blocks) = (Vec::new(), Vec::new());
        Self { id, model, stops, tokenizer, ids, blocks, begun: 0, ended: 0, stop: None }
    }

    /// Returns the answer at once.
    pub async fn whole(mut self, mut choices: Choices) -> Result<String> {
        for choice in stream::whole(&mut choices).await? {
            self.ids.extend(choice.tokens.iter().map(|token| token.id));
            self.push(choice.parts.into_pieces());
            self.stop = choice.stop;
        }
        let mut object = self.object(Value::Null, usage(&choices));
        let (reason, stop) = self.reason();
        object["stop_reason"] = reason.into();
        object["stop_sequence"] = stop.into();
        let content = self.blocks.iter().map(Block::whole).collect::<Result<_, _>>();
        let whole = |content| to_string(&Whole { fields: without(object, "content"), content });
        content.and_then(whole).map_err(|error| ApiError::server(error.to_string()))
    }

    fn object(&self, content: Value, usage: Value) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": null, "stop_sequence": null, "usage": usage,
        })
    }

    /// Why the answer ended, and the stop string if that is why.
    fn reason(&self) -> (&'static str, Option<&str>) {
        match self.stop {
            Some(Stop::MaxTokens | Stop::Context) => ("max_tokens", None),
            Some(Stop::StopString) => match self.stop_string() {
                Some(stop) => ("stop_sequence", Some(stop)),
                // One of the server's own.
                None => ("end_turn", None),
            },
            _ if self.begun > 0 && self.begun == self.ended => ("tool_use", None),
            _ => ("end_turn", None),
        }
    }

    /// Returns the stop string that is complete first; of several, the longest.
    fn stop_string(&self) -> Option<&str> {
        let text = self.tokenizer.as_ref()?.decode(&self.ids).ok()?;
        let end = |stop: &&String| text.find(stop.as_str()).map(|at| (at + stop.len(), at));
        let found = self.stops.iter().filter(|stop| end(stop).is_some());
        found.min_by_key(|stop| end(stop)).map(String::as_str)
    }

    /// Adds pieces, to the open block or to new ones.
    fn push(&mut self, pieces: Vec<Piece>) -> Vec<Event> {
        let mut events = Vec::new();
        for piece in pieces {
            let (kind, text) = match piece {
                Piece::Reasoning(text) => (Some(BlockKind::Thinking), text),
                Piece::Answer(ToolCallEvent::Text(text) | ToolCallEvent::Malformed(text)) => {
                    (Some(BlockKind::Text), text)
                }
                Piece::Answer(ToolCallEvent::Begin { id, name }) => {
                    self.begun += 1;
                    (Some(BlockKind::Call { id, name }), String::new())
                }
                Piece::Answer(ToolCallEvent::Arguments(text)) => (None, text),
                Piece::Answer(ToolCallEvent::End) => {
                    self.ended += 1;
                    continue;
                }
            };
            if let Some(kind) = kind {
                events.extend(self.begin_block(kind));
            }
            let Some(block) = self.blocks.last_mut().filter(|_| !text.is_empty()) else { continue };
            let delta = block.delta(&text);
            block.text += &text;
            events.push(self.block_event("content_block_delta", ("delta", delta)));
        }
        events
    }

    /// Begins a block, unless the open one is of this kind.
    fn begin_block(&mut self, kind: BlockKind) -> Vec<Event> {
        if self.blocks.last().is_some_and(|block| block.kind == kind) {
            return Vec::new();
        }
        let closed = self.close();
        let block = Block { kind, text: String::new() };
        let object = block.object();
        self.blocks.push(block);
        let begun = self.block_event("content_block_start", ("content_block", object));
        closed.into_iter().chain([begun]).collect()
    }

    /// Returns the event of the last block's end, if there is one.
    fn close(&self) -> Option<Event> {
        let index = self.blocks.len().checked_sub(1)?;
        Some(event("content_block_stop", json!({ "index": index })))
    }

    fn block_event(&self, name: &str, (field, value): (&str, Value)) -> Event {
        event(name, json!({ "index": self.blocks.len().saturating_sub(1), field: value }))
    }
}

impl Events for Answer {
    fn begin(&mut self, choices: &Choices) -> Vec<Event> {
        // What is cached is known when the prompt is computed.
        let usage = json!({ "input_tokens": choices.prompt_tokens(), "output_tokens": 0 });
        let message = self.object(json!([]), usage);
        vec![event("message_start", json!({ "message": message }))]
    }

    fn step(&mut self, _: usize, step: Step) -> Vec<Event> {
        match step {
            Step::Token(token, pieces) => {
                self.ids.push(token.id);
                self.push(pieces)
            }
            Step::End(pieces, stop) => {
                self.stop = stop;
                self.push(pieces)
            }
        }
    }

    fn end(&mut self, choices: &Choices) -> Vec<Event> {
        let (reason, stop) = self.reason();
        let delta = json!({ "stop_reason": reason, "stop_sequence": stop });
        let last = [
            event("message_delta", json!({ "delta": delta, "usage": usage(choices) })),
            event("message_stop", json!({})),
        ];
        self.close().into_iter().chain(last).collect()
    }

    fn failed(&self, error: &ApiError) -> Event {
        event("error", object(error))
    }
}

fn event(name: &str, mut object: Value) -> Event {
    object["type"] = name.into();
    Event::default().event(name).data(object.to_string())
}

fn usage(choices: &Choices) -> Value {
    let used = choices.used();
    json!({
        "input_tokens": used.prompt.saturating_sub(used.cached),
        "cache_read_input_tokens": used.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": used.completion,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_all_digits_of_their_numbers() {
        let kind = BlockKind::Call { id: "a".into(), name: "f".into() };
        let block = |text: &str| Block { kind: kind.clone(), text: text.into() };
        let input = r#"{"n": 123456789012345678901234567890, "x": 0.10}"#;
        let whole = block(input).whole().unwrap();
        assert!(whole.get().ends_with(&format!("\"input\":{input}}}")), "{whole}");
        // A call that was cut.
        let cut = block("{\"n\": 1").whole().unwrap();
        assert!(cut.get().ends_with("\"input\":{}}"), "{cut}");
    }
}
