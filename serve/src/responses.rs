//! Requests and answers of `/v1/responses`, OpenAI's newer API, for text.

use crate::{
    answer::new_id,
    choices::{Choices, Step, Used},
    conversation::{MOST_MESSAGES, role, text_of},
    error::{ApiError, Result},
    fields::Fields,
    grammar,
    life::now,
    options::Options,
    request::{HARMLESS, Prompt, Request, sampling, seed},
    stream::{self, Events},
};
use axum::response::sse::Event;
use bitnet_wgpu::model::{Grammar, Message, SplitText, Stop};
use serde_json::{Value, json};

/// Fields that are not supported, and the values that they may have nevertheless.
const UNSUPPORTED: [(&str, &[&str]); 10] = [
    ("previous_response_id", &[]),
    ("conversation", &[]),
    ("background", &["false"]),
    ("prompt", &[]),
    ("tools", &["[]"]),
    ("tool_choice", &["\"none\"", "\"auto\""]),
    ("max_tool_calls", &[]),
    ("top_logprobs", &["0"]),
    ("truncation", &["\"disabled\""]),
    ("context_management", &[]),
];

/// Reads a request. The server's options are the defaults.
pub fn read(body: Value, server: &Options) -> Result<Request> {
    let mut fields = Fields::new("", body)?;
    let instructions = fields.text("instructions")?;
    let mut messages: Vec<Message> =
        instructions.map(|text| Message::new("system", text)).into_iter().collect();
    messages.extend(input(fields.take("input"))?);
    fields.harmless(&HARMLESS, server.strict)?;
    fields.harmless(&["include", "stream_options"], server.strict)?;
    if fields.is("tool_choice", "none") {
        fields.harmless(&["tools", "tool_choice"], false)?;
    }
    fields.unsupported(&UNSUPPORTED)?;
    let grammar = text_format(&mut fields)?;
    check_reasoning(&mut fields)?;
    let prompt = Prompt::Chat { messages, continues: false };
    let mut request = Request::conversation("input", prompt, server);
    request.model = fields.text("model")?;
    request.stream = fields.flag("stream")?;
    request.cache_salt = fields.text("cache_salt")?;
    request.seed = seed(&mut fields)?.unwrap_or(request.seed);
    let sampling = sampling(&mut fields, server.defaults.get_sampling())?;
    request.options = request.options.sampling(sampling).grammar(grammar);
    if let Some(most) = fields.count("max_output_tokens", 1..=u64::MAX)? {
        request.options = request.options.max_tokens(most);
    }
    fields.end()?;
    Ok(request)
}

/// Reads what the answer must be.
fn text_format(fields: &mut Fields) -> Result<Option<Grammar>> {
    let Some(text) = fields.take("text") else { return Ok(None) };
    let mut text = Fields::new("text", text)?;
    let grammar = text.take("format").map(grammar::read_text_format).transpose()?.flatten();
    text.unsupported(&[("verbosity", &["\"medium\""])])?;
    text.end()?;
    Ok(grammar.map(|grammar| grammar.after_reasoning(true)))
}

fn check_reasoning(fields: &mut Fields) -> Result<()> {
    let Some(reasoning) = fields.take("reasoning") else { return Ok(()) };
    let mut reasoning = Fields::new("reasoning", reasoning)?;
    reasoning.harmless(&["summary", "generate_summary"], false)?;
    reasoning.unsupported(&[("effort", &["\"medium\""])])?;
    reasoning.end()
}

/// Reads a text of the user, or messages. Reasoning that comes back is left out.
fn input(value: Option<Value>) -> Result<Vec<Message>> {
    let items = match value {
        None => return Err(ApiError::missing("input")),
        Some(Value::String(text)) => return Ok(vec![Message::new("user", text)]),
        Some(Value::Array(items)) if (1..=MOST_MESSAGES).contains(&items.len()) => items,
        Some(_) => {
            let what = format!("expected a string or a list of 1 to {MOST_MESSAGES} messages");
            return Err(ApiError::field("input", what));
        }
    };
    let message = |(n, item)| item_message(&format!("input[{n}]"), item).transpose();
    items.into_iter().enumerate().filter_map(message).collect()
}

fn item_message(place: &str, item: Value) -> Result<Option<Message>> {
    let mut fields = Fields::new(place, item)?;
    match fields.text("type")?.as_deref() {
        None | Some("message") => {}
        Some("reasoning") => return Ok(None),
        Some(_) => return Err(fields.wrong("type", "only `message` is supported")),
    }
    let role = role(&mut fields)?;
    let content = fields.take("content").ok_or_else(|| fields.missing("content"))?;
    let types = ["input_text", "output_text", "text"];
    let text = text_of(&fields.name("content"), content, &types)?;
    fields.harmless(&["id", "status", "phase"], false)?;
    fields.end()?;
    Ok(Some(Message::new(role, text)))
}

/// An answer as far as it has come.
pub struct Answer {
    id: String,
    created: u64,
    model: String,
    /// Items that are complete.
    items: Vec<Value>,
    open: Option<Item>,
    stop: Option<Stop>,
    /// Number of the next event.
    sequence: u64,
}

/// An item that is written.
struct Item {
    is_reasoning: bool,
    id: String,
    text: String,
}

impl Item {
    fn new(is_reasoning: bool) -> Self {
        let id = new_id(if is_reasoning { "rs_" } else { "msg_" });
        Self { is_reasoning, id, text: String::new() }
    }

    fn part(&self) -> Value {
        match self.is_reasoning {
            true => json!({ "type": "reasoning_text", "text": self.text }),
            false => json!({ "type": "output_text", "text": self.text, "annotations": [] }),
        }
    }

    fn object(&self, status: &str, content: Value) -> Value {
        let (id, content) = (&self.id, content);
        if self.is_reasoning {
            return json!({
                "id": id, "type": "reasoning", "status": status, "summary": [], "content": content,
            });
        }
        json!({
            "id": id, "type": "message", "status": status, "role": "assistant", "content": content,
        })
    }

    /// The name of an event of its text.
    fn event(&self, what: &str) -> String {
        let part = if self.is_reasoning { "reasoning_text" } else { "output_text" };
        format!("response.{part}.{what}")
    }
}

impl Answer {
    pub fn new(model: String) -> Self {
        let (id, created) = (new_id("resp_"), now());
        Self { id, created, model, items: Vec::new(), open: None, stop: None, sequence: 0 }
    }

    /// Returns the answer at once.
    pub async fn whole(mut self, mut choices: Choices) -> Result<Value> {
        for choice in stream::whole(&mut choices).await? {
            self.push(choice.text);
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
        json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status,
            "model": self.model, "output": self.items, "usage": used.map(usage),
            "error": null, "incomplete_details": cut, "instructions": null, "metadata": {},
            "parallel_tool_calls": true, "previous_response_id": null, "store": false,
            "temperature": null, "top_p": null, "max_output_tokens": null, "tool_choice": "auto",
            "tools": [], "text": { "format": { "type": "text" } }, "truncation": "disabled",
            "reasoning": { "effort": null, "summary": null },
        })
    }

    fn event(&mut self, name: &str, mut object: Value) -> Event {
        object["type"] = name.into();
        object["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        Event::default().event(name).data(object.to_string())
    }

    /// Adds text, to the open item or to a new one.
    fn push(&mut self, text: SplitText) -> Vec<Event> {
        let mut events = Vec::new();
        for (is_reasoning, text) in [(true, text.reasoning), (false, text.answer)] {
            if text.is_empty() {
                continue;
            }
            if self.open.as_ref().is_none_or(|open| open.is_reasoning != is_reasoning) {
                events.extend(self.close_open());
                events.extend(self.begin_item(is_reasoning));
            }
            let Some(open) = &mut self.open else { continue };
            open.text += &text;
            let (name, id) = (open.event("delta"), open.id.clone());
            let mut delta = json!({
                "item_id": id, "output_index": self.items.len(), "content_index": 0, "delta": text,
            });
            if !is_reasoning {
                delta["logprobs"] = json!([]);
            }
            events.push(self.event(&name, delta));
        }
        events
    }

    fn begin_item(&mut self, is_reasoning: bool) -> [Event; 2] {
        let item = Item::new(is_reasoning);
        let index = self.items.len();
        let object = item.object("in_progress", json!([]));
        let part = json!({
            "item_id": item.id, "output_index": index, "content_index": 0, "part": item.part(),
        });
        self.open = Some(item);
        let added = json!({ "output_index": index, "item": object });
        [
            self.event("response.output_item.added", added),
            self.event("response.content_part.added", part),
        ]
    }

    fn close_open(&mut self) -> Vec<Event> {
        let Some(open) = self.open.take() else { return Vec::new() };
        let (index, part) = (self.items.len(), open.part());
        let place = |more: (&str, Value)| {
            let mut object =
                json!({ "item_id": open.id, "output_index": index, "content_index": 0 });
            object[more.0] = more.1;
            object
        };
        let mut text = place(("text", open.text.clone().into()));
        if !open.is_reasoning {
            text["logprobs"] = json!([]);
        }
        let item = open.object("completed", json!([part]));
        let done = json!({ "output_index": index, "item": item });
        let events = vec![
            self.event(&open.event("done"), text),
            self.event("response.content_part.done", place(("part", part))),
            self.event("response.output_item.done", done),
        ];
        self.items.push(item);
        events
    }

    /// Completes the last item. An answer has a message, if only an empty one.
    fn close(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        if self.open.as_ref().is_none_or(|open| open.is_reasoning) {
            events.extend(self.close_open());
            events.extend(self.begin_item(false));
        }
        events.extend(self.close_open());
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
            Step::Token(_, text) => self.push(text),
            Step::End(text, stop) => {
                self.stop = stop;
                self.push(text)
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
        "input_tokens_details": { "cached_tokens": cached },
        "output_tokens": completion,
        "output_tokens_details": { "reasoning_tokens": reasoning.unwrap_or(0) },
        "total_tokens": prompt + completion,
    })
}
