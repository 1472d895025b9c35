//! The form in which a model writes tool calls: what its chat template makes of one.

use crate::{
    error::{Error, Result},
    model::tokenizer::{
        chat::Message,
        text::Tokenizer,
        tools::{Tool, ToolCall},
    },
};
use serde_json::{Value, json};

/// Name, key and value of a call that is rendered to see its form.
const NAME: &str = "probe_tool";
const KEY: &str = "probe_key";
const VALUE: &str = "probe_value";
/// Characters by which the begin of the assistant's turn is recognized.
const TURN: usize = 8;

/// The form of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Format {
    /// What begins a call, such as `<tool_call>`; empty if only the call itself does.
    pub open: String,
    /// What ends a call, such as `</tool_call>`; may be empty.
    pub close: String,
    /// What templates write between the call and what begins and ends it.
    pub before: String,
    pub after: String,
    /// A special token that begins a call, and its id; it has no text.
    pub special: Option<(String, u32)>,
    pub body: Body,
}

/// What is between the marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// A JSON object, or a list of them.
    Json {
        is_list: bool,
        /// The object, cut at the name and at the arguments.
        parts: Vec<Part>,
    },
    /// `<function=NAME>`, a `<parameter=KEY>` for each argument, and their ends, as Qwen3-Coder
    /// writes them.
    Functions,
}

/// A part of a call's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Text(String),
    Name,
    Arguments,
}

impl Format {
    /// What begins a call within text; empty if a call is all that an answer has.
    pub fn mark(&self) -> &str {
        match (&*self.open, &self.body) {
            ("", Body::Functions) => "<function=",
            (open, _) => open,
        }
    }

    /// Finds the form in which the chat template of a tokenizer writes calls.
    pub fn of(tokenizer: &Tokenizer) -> Result<Self> {
        let unsupported = |message: &str| Error::ChatTemplate { message: message.into() };
        let schema = json!({ "type": "object", "properties": { KEY: { "type": "string" } } });
        let tool = Tool::new(NAME, &schema.to_string())?.description("A probe.");
        let tokenizer = tokenizer.with_tools([tool])?;
        let user = Message::new("user", "Hello");
        let call = ToolCall::new(NAME, json!({ KEY: VALUE }).to_string());
        let calls = [user.clone(), Message::new("assistant", "").tool_calls([call])];
        let text = tokenizer.chat_text(&calls, false)?;
        let Some(at) = text.rfind(NAME).filter(|at| text[*at..].contains(VALUE)) else {
            return Err(unsupported("it does not write tool calls"));
        };
        let format = functions(&text, at).or_else(|| objects(&text, at));
        let turn = tokenizer.chat_text(&[user], true)?;
        format.and_then(|(begin, format)| format.without_turn(&tokenizer, &turn, &text[..begin])).ok_or_else(|| {
            unsupported(
                "it writes tool calls in a form that is not supported; supported are JSON objects of `name` and `arguments` or `parameters`, and `<function=..>` with `<parameter=..>`",
            )
        })
    }

    /// It without a mark that is the one of the assistant's turn, or a special token, which has no
    /// text. A call without marks is all that an answer has: nothing may be between the turn's
    /// begin, at the end of `turn`, and the call, behind `before`.
    fn without_turn(self, tokenizer: &Tokenizer, turn: &str, before: &str) -> Option<Self> {
        let special = tokenizer.token(&self.open).filter(|&id| tokenizer.is_special(id));
        let (turn, before) = (turn.trim_end(), before.trim_end());
        let last = turn.char_indices().rev().nth(TURN - 1).map_or(turn, |(at, _)| &turn[at..]);
        let is_turn = before.ends_with(last);
        if !is_turn && special.is_none() {
            return (!self.mark().is_empty()).then_some(self);
        }
        let Self { open, before, after, body, .. } = self;
        let special = special.filter(|_| !is_turn).map(|id| (open, id));
        let (before, after) = (before.trim_start().to_owned(), after.trim_end().to_owned());
        Some(Self { open: String::new(), close: String::new(), before, after, special, body })
    }

    /// Of a call between these texts.
    fn between(before: &str, after: &str, body: Body) -> Self {
        let list = match body {
            Body::Json { is_list: true, .. } => {
                before.trim_end().strip_suffix('[').zip(after.trim_start().strip_prefix(']'))
            }
            _ => None,
        };
        let (outer, rest) = list.unwrap_or((before, after));
        let (outer, inner) = (outer.trim_end(), rest.trim_start());
        let open = mark(outer).unwrap_or("");
        let close = open.split_at_checked(1).map(|(first, rest)| format!("{first}/{rest}"));
        let close = close.filter(|close| inner.starts_with(close)).unwrap_or_default();
        let end = if close.is_empty() { rest } else { inner };
        Self {
            open: open.into(),
            before: before[outer.len()..].into(),
            after: after[..after.len() - end.len()].into(),
            close,
            special: None,
            body,
        }
    }
}

/// The form of Qwen3-Coder, of a call whose name is at `at`; and where the call is.
fn functions(text: &str, at: usize) -> Option<(usize, Format)> {
    let begin = text[..at].strip_suffix("<function=")?.len();
    let written = format!(">\n<parameter={KEY}>\n{VALUE}\n</parameter>\n</function>");
    let rest = text[at + NAME.len()..].strip_prefix(&written)?;
    Some((begin, Format::between(&text[..begin], rest, Body::Functions)))
}

/// The form of JSON objects, of a call whose name is at `at`; and where the call is.
fn objects(text: &str, at: usize) -> Option<(usize, Format)> {
    let object = |begin: usize| {
        let mut values = serde_json::Deserializer::from_str(&text[begin..]).into_iter::<Value>();
        let value = values.next()?.ok()?;
        let keys = ["arguments", "parameters"];
        let is_call = value["name"] == NAME && keys.iter().any(|key| value[*key][KEY] == VALUE);
        is_call.then(|| (begin, begin + values.byte_offset()))
    };
    let begins = text[..at].rmatch_indices('{').map(|(begin, _)| begin);
    let (begin, end) = begins.take(4).find_map(object)?;
    let parts = parts(&text[begin..end])?;
    let (before, after) = (&text[..begin], &text[end..]);
    let is_list = before.trim_end().ends_with('[') && after.trim_start().starts_with(']');
    let outer = before.trim_end().trim_end_matches('[').len();
    let begin = if is_list { outer } else { begin };
    Some((begin, Format::between(before, after, Body::Json { is_list, parts })))
}

/// A call in JSON, cut at the name and at the arguments. An id is left out.
fn parts(call: &str) -> Option<Vec<Part>> {
    let arguments = call.find(KEY).and_then(|key| call[..key].rfind('{'))?;
    let end = arguments + call[arguments..].find('}')? + 1;
    let name = call.find(NAME)?;
    let text = |text: &str| Part::Text(text.to_owned());
    Some(if name < arguments {
        let between = &call[name + NAME.len()..arguments];
        vec![text(&call[..name]), Part::Name, text(between), Part::Arguments, text("}")]
    } else {
        let between = &call[end..name];
        vec![text(&call[..arguments]), Part::Arguments, text(between), Part::Name, text("\"}")]
    })
}

/// The mark at the end of a text, in brackets of any kind.
fn mark(text: &str) -> Option<&str> {
    [('<', '>'), ('[', ']'), ('{', '}')].into_iter().find_map(|(open, close)| {
        let begin = text.strip_suffix(close)?.rfind(open)?;
        let mark = &text[begin..];
        (mark.len() > 2 && !mark.contains(char::is_whitespace)).then_some(mark)
    })
}
