//! Requests and answers of `/v1/responses`, OpenAI's newer API, for text and tool calls.

use crate::{
    answer::new_id,
    choices::{Choices, Step, Used},
    conversation::{MOST_MESSAGES, role, text_of},
    error::{ApiError, Result},
    fields::Fields,
    grammar::{Format, take_format},
    life::now,
    options::Options,
    parts::Piece,
    prepare::Shape,
    repeated::{repeated, with_fields},
    request::{HARMLESS, Prompt, Request, cache_salt, sampling, seed},
    stream::{self, Events},
    tools::{Api, CallIds, Tools, call},
};
use axum::response::sse::Event;
use bitnet_wgpu::model::{Message, Stop, ToolCallEvent};
use serde_json::{Value, json};

/// Fields that are not supported, and the values that they may have nevertheless.
const UNSUPPORTED: [(&str, &[&str]); 8] = [
    ("previous_response_id", &[]),
    ("conversation", &[]),
    ("background", &["false"]),
    ("prompt", &[]),
    ("max_tool_calls", &[]),
    ("top_logprobs", &["0"]),
    ("truncation", &["\"disabled\""]),
    ("context_management", &[]),
];

/// Fields of reasoning that comes back, beside its type.
const REASONING: [&str; 5] = ["id", "status", "summary", "content", "encrypted_content"];

/// Reads a request. The server's options are the defaults.
pub fn read(body: Value, server: &Options) -> Result<Request> {
    let repeated = repeated(&body);
    let mut fields = Fields::new("", body, server.strict)?;
    let instructions = fields.text("instructions")?;
    let mut messages: Vec<Message> =
        instructions.map(|text| Message::new("system", text)).into_iter().collect();
    messages.extend(input(&mut fields)?);
    let tools = Tools::take(&mut fields, Api::Responses)?;
    fields.harmless(&HARMLESS)?;
    fields.harmless(&["include", "stream_options"])?;
    fields.unsupported(&UNSUPPORTED)?;
    let format = text_format(&mut fields)?;
    check_reasoning(&mut fields)?;
    let prompt = Prompt::Chat { messages, continues: false };
    let mut request = Request::conversation("input", prompt, server);
    request.tools = tools;
    request.model = fields.text("model")?;
    request.stream = fields.flag("stream")?;
    request.cache_salt = cache_salt(&mut fields)?;
    request.seed = seed(&mut fields)?.unwrap_or(request.seed);
    let sampling = sampling(&mut fields, server.defaults.get_sampling())?;
    request.options = request.options.sampling(sampling);
    request.format = format;
    request.repeated = repeated;
    if let Some(most) = fields.count("max_output_tokens", 1..=u64::MAX)? {
        request.options = request.options.max_tokens(most);
    }
    fields.end()?;
    Ok(request)
}

/// Reads what the answer must be.
fn text_format(fields: &mut Fields) -> Result<Option<Format>> {
    let Some(text) = fields.take("text") else { return Ok(None) };
    let mut text = fields.nested("text", text)?;
    let format = take_format(&mut text)?;
    text.unsupported(&[("verbosity", &["\"medium\""])])?;
    text.end()?;
    Ok(format)
}

fn check_reasoning(fields: &mut Fields) -> Result<()> {
    let Some(reasoning) = fields.take("reasoning") else { return Ok(()) };
    let mut reasoning = fields.nested("reasoning", reasoning)?;
    reasoning.harmless(&["summary", "generate_summary"])?;
    reasoning.unsupported(&[("effort", &["\"medium\""])])?;
    reasoning.end()
}

/// Reads a text of the user, or messages. Reasoning that comes back is left out.
fn input(fields: &mut Fields) -> Result<Vec<Message>> {
    let items = match fields.take("input") {
        None => return Err(ApiError::missing("input")),
        Some(Value::String(text)) => return Ok(vec![Message::new("user", text)]),
        Some(Value::Array(items)) if (1..=MOST_MESSAGES).contains(&items.len()) => items,
        Some(_) => {
            let what = format!("expected a string or a list of 1 to {MOST_MESSAGES} messages");
            return Err(ApiError::field("input", what));
        }
    };
    let (mut messages, mut calls) = (Vec::new(), CallIds::default());
    for (n, item) in items.into_iter().enumerate() {
        add_item(fields.nested(&format!("input[{n}]"), item)?, &mut messages, &mut calls)?;
    }
    Ok(messages)
}

/// Adds an item to the messages: a call to the assistant's message before it.
fn add_item(mut fields: Fields, messages: &mut Vec<Message>, calls: &mut CallIds) -> Result<()> {
    let types = ["input_text", "output_text", "text"];
    match fields.text("type")?.as_deref() {
        None | Some("message") => {
            let role = role(&mut fields, false)?;
            let content = fields.take("content").ok_or_else(|| fields.missing("content"))?;
            let text = text_of(&fields, "content", content, &types)?;
            messages.push(Message::new(role, text));
        }
        Some("reasoning") => return fields.without_effect(&REASONING),
        Some("function_call") => {
            let id = fields.text("call_id")?.ok_or_else(|| fields.missing("call_id"))?;
            let call = call(&mut fields, id)?;
            calls.add(std::slice::from_ref(&call));
            match messages.last_mut() {
                Some(last) if last.role == "assistant" => last.tool_calls.push(call),
                _ => messages.push(Message::new("assistant", "").tool_calls([call])),
            }
        }
        Some("function_call_output") => {
            let id = calls.take(&mut fields, "call_id")?;
            let output = fields.take("output").ok_or_else(|| fields.missing("output"))?;
            let text = text_of(&fields, "output", output, &types)?;
            messages.push(Message::tool_result(id, text));
        }
        Some(_) => {
            let expected =
                "only `message`, `function_call` and `function_call_output` are supported";
            return Err(fields.wrong("type", expected));
        }
    }
    // Items of an answer come back with these.
    fields.take("id");
    fields.take("status");
    fields.harmless(&["phase"])?;
    fields.end()
}

/// An answer as far as it has come.
pub struct Answer {
    id: String,
    created: u64,
    model: String,
    shape: Shape,
    /// Items that are complete.
    items: Vec<Value>,
    open: Option<Item>,
    stop: Option<Stop>,
    /// Number of the next event.
    sequence: u64,
}

/// An item that is written.
struct Item {
    kind: ItemKind,
    id: String,
    text: String,
}

#[derive(Clone, PartialEq, Eq)]
enum ItemKind {
    Reasoning,
    Message,
    Call { id: String, name: String },
}

impl Item {
    fn new(kind: ItemKind) -> Self {
        let id = new_id(match kind {
            ItemKind::Reasoning => "rs_",
            ItemKind::Message => "msg_",
            ItemKind::Call { .. } => "fc_",
        });
        Self { kind, id, text: String::new() }
    }

    /// Its part; a call has none.
    fn part(&self) -> Option<Value> {
        match self.kind {
            ItemKind::Reasoning => Some(json!({ "type": "reasoning_text", "text": self.text })),
            ItemKind::Message => {
                let text = &self.text;
                Some(
                    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }),
                )
            }
            ItemKind::Call { .. } => None,
        }
    }

    fn object(&self, status: &str, content: Value) -> Value {
        let id = &self.id;
        match &self.kind {
            ItemKind::Reasoning => json!({
                "id": id, "type": "reasoning", "status": status, "summary": [], "content": content,
            }),
            ItemKind::Message => json!({
                "id": id, "type": "message", "status": status, "role": "assistant", "content": content,
            }),
            ItemKind::Call { id: call, name } => json!({
                "id": id, "type": "function_call", "status": status, "call_id": call, "name": name,
                "arguments": self.text,
            }),
        }
    }

    /// The name of an event of its text.
    fn event(&self, what: &str) -> String {
        let part = match self.kind {
            ItemKind::Reasoning => "reasoning_text",
            ItemKind::Message => "output_text",
            ItemKind::Call { .. } => "function_call_arguments",
        };
        format!("response.{part}.{what}")
    }

    /// The place of its text in an event, at this place in the output.
    fn place(&self, index: usize) -> Value {
        match self.kind {
            ItemKind::Call { .. } => json!({ "item_id": self.id, "output_index": index }),
            _ => json!({ "item_id": self.id, "output_index": index, "content_index": 0 }),
        }
    }
}

impl Answer {
    pub fn new(model: String, shape: Shape) -> Self {
        let (id, created) = (new_id("resp_"), now());
        Self { id, created, model, shape, items: Vec::new(), open: None, stop: None, sequence: 0 }
    }

    /// Returns the answer at once.
    pub async fn whole(mut self, mut choices: Choices) -> Result<Value> {
        for choice in stream::whole(&mut choices).await? {
            self.push(choice.parts.into_pieces());
            self.stop = choice.stop;
        }
        self.close();
        Ok(self.object(self.status(), Some(choices.used())))
    }

    fn status(&self) -> &'static str {
        let is_cut = matches!(self.stop, Some(Stop::MaxTokens | Stop::Context));
        if is_cut { "incomplete" } else { "completed" }
    }

    fn object(&self, status: &str, used: Option<Used>) -> Value {
        let cut = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        let own = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status,
            "completed_at": (status == "completed").then(now), "model": self.model,
            "output": self.items, "usage": used.map(usage), "error": null,
            "incomplete_details": cut,
        });
        let repeated = serde_json::from_str(&self.shape.repeated.json).unwrap_or_default();
        with_fields(repeated, &own)
    }

    fn event(&mut self, name: &str, mut object: Value) -> Event {
        object["type"] = name.into();
        object["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        Event::default().event(name).data(object.to_string())
    }

    /// Adds pieces, to the open item or to new ones.
    fn push(&mut self, pieces: Vec<Piece>) -> Vec<Event> {
        let mut events = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => events.extend(self.push_text(ItemKind::Reasoning, &text)),
                Piece::Answer(ToolCallEvent::Text(text)) => {
                    events.extend(self.push_text(ItemKind::Message, &text));
                }
                Piece::Answer(ToolCallEvent::Begin { id, name }) => {
                    events.extend(self.close_open("completed"));
                    events.extend(self.begin_item(ItemKind::Call { id, name }));
                }
                Piece::Answer(ToolCallEvent::Arguments(text)) => events.extend(self.delta(&text)),
                Piece::Answer(ToolCallEvent::End) => events.extend(self.close_open("completed")),
                Piece::Answer(ToolCallEvent::Malformed(text)) => {
                    let is_call = |item: &Item| matches!(item.kind, ItemKind::Call { .. });
                    if self.open.as_ref().is_some_and(is_call) {
                        events.extend(self.close_open("incomplete"));
                    }
                    events.extend(self.push_text(ItemKind::Message, &text));
                }
            }
        }
        events
    }

    fn push_text(&mut self, kind: ItemKind, text: &str) -> Vec<Event> {
        let mut events = Vec::new();
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            events.extend(self.close_open("completed"));
            events.extend(self.begin_item(kind));
        }
        events.extend(self.delta(text));
        events
    }

    /// Adds text to the open item.
    fn delta(&mut self, text: &str) -> Option<Event> {
        let open = self.open.as_mut()?;
        open.text += text;
        let (name, mut delta) = (open.event("delta"), open.place(self.items.len()));
        delta["delta"] = text.into();
        if open.kind == ItemKind::Message {
            delta["logprobs"] = json!([]);
        }
        Some(self.event(&name, delta))
    }

    fn begin_item(&mut self, kind: ItemKind) -> Vec<Event> {
        let item = Item::new(kind);
        let index = self.items.len();
        let added = json!({ "output_index": index, "item": item.object("in_progress", json!([])) });
        let mut events = vec![self.event("response.output_item.added", added)];
        if let Some(part) = item.part() {
            let mut added = item.place(index);
            added["part"] = part;
            events.push(self.event("response.content_part.added", added));
        }
        self.open = Some(item);
        events
    }

    fn close_open(&mut self, status: &str) -> Vec<Event> {
        let Some(open) = self.open.take() else { return Vec::new() };
        let (index, part) = (self.items.len(), open.part());
        let mut done = open.place(index);
        match &open.kind {
            ItemKind::Call { name, .. } => {
                done["name"] = name.as_str().into();
                done["arguments"] = open.text.as_str().into();
            }
            ItemKind::Message => {
                done["text"] = open.text.as_str().into();
                done["logprobs"] = json!([]);
            }
            ItemKind::Reasoning => done["text"] = open.text.as_str().into(),
        }
        let mut events = vec![self.event(&open.event("done"), done)];
        if let Some(part) = &part {
            let mut done = open.place(index);
            done["part"] = part.clone();
            events.push(self.event("response.content_part.done", done));
        }
        let item = open.object(status, part.into_iter().collect());
        let done = json!({ "output_index": index, "item": item });
        events.push(self.event("response.output_item.done", done));
        self.items.push(item);
        events
    }

    /// Completes the last item. An answer without calls has a message, if only an empty one.
    fn close(&mut self) -> Vec<Event> {
        let mut events = self.close_open(self.status());
        let said = |item: &Value| item["type"] == "message" || item["type"] == "function_call";
        if !self.items.iter().any(said) {
            events.extend(self.begin_item(ItemKind::Message));
            events.extend(self.close_open(self.status()));
        }
        events
    }
}

impl Events for Answer {
    fn begin(&mut self, _: &Choices) -> Vec<Event> {
        let object = json!({ "response": self.object("in_progress", None) });
        ["response.created", "response.in_progress"]
            .map(|name| self.event(name, object.clone()))
            .into()
    }

    fn step(&mut self, _: usize, step: Step) -> Vec<Event> {
        match step {
            Step::Token(_, pieces) => self.push(pieces),
            Step::End(pieces, stop) => {
                self.stop = stop;
                self.push(pieces)
            }
        }
    }

    fn end(&mut self, choices: &Choices) -> Vec<Event> {
        let mut events = self.close();
        let status = self.status();
        let object = json!({ "response": self.object(status, Some(choices.used())) });
        events.push(self.event(&format!("response.{status}"), object));
        events
    }

    fn failed(&self, error: &ApiError) -> Event {
        let mut object = error.object()["error"].take();
        object["type"] = "error".into();
        object["sequence_number"] = self.sequence.into();
        Event::default().event("error").data(object.to_string())
    }
}

fn usage(used: Used) -> Value {
    let Used { prompt, cached, completion, reasoning } = used;
    json!({
        "input_tokens": prompt,
        "input_tokens_details": { "cached_tokens": cached, "cache_write_tokens": 0 },
        "output_tokens": completion,
        "output_tokens_details": { "reasoning_tokens": reasoning.unwrap_or(0) },
        "total_tokens": prompt + completion,
    })
}
