//! One call, read while its text comes.

use super::{
    event::{MOST_SPACES, ToolCallEvent},
    format::Body,
    schema::{Argument, kind_of},
};
use crate::model::tokenizer::tools::{Tool, new_id};
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};
use std::collections::HashSet;

/// Bytes of a call within which its name is looked for before its end. In the form of Qwen3-Coder,
/// the names of the function and of arguments are shorter.
pub(super) const NAME_WITHIN: usize = 1024;
/// How often it is looked for.
const TRIES: u8 = 8;
/// Marks of the form of Qwen3-Coder.
const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
const FUNCTION_END: &str = "</function>";

/// How far a call was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// More text is needed.
    More,
    /// It is complete, and has as many bytes.
    End(usize),
    /// It is none; as many bytes were read.
    Malformed(usize),
}

/// A call that is read.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Object(Object),
    Function(Function),
}

impl Call {
    pub fn new(body: &Body) -> Self {
        match body {
            Body::Json { .. } => Self::Object(Object::default()),
            Body::Functions => Self::Function(Function::default()),
        }
    }

    /// Goes on reading a call, of which `text` is known from its begin on.
    pub fn read(&mut self, text: &str, tools: &[Tool], events: &mut Vec<ToolCallEvent>) -> Read {
        match self {
            Self::Object(object) => object.read(text, tools, events),
            Self::Function(function) => function.read(text, tools, events),
        }
    }
}

fn begin(name: &str) -> ToolCallEvent {
    ToolCallEvent::Begin { id: new_id(), name: name.to_owned() }
}

/// A call as a JSON object.
#[derive(Clone, Debug, Default)]
pub(super) struct Object {
    /// Bytes that were read.
    at: usize,
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    tries: u8,
    /// Where the arguments that were not sent begin, once the name is known.
    arguments: Option<usize>,
    /// Whether the arguments are complete.
    is_complete: bool,
}

/// A call's entries. Others are ignored, and one that is there twice is an error.
#[derive(Deserialize)]
struct Entries<'a> {
    name: String,
    #[serde(borrow, alias = "parameters")]
    arguments: Option<&'a RawValue>,
}

impl Object {
    /// The text begins with a brace.
    fn read(&mut self, text: &str, tools: &[Tool], events: &mut Vec<ToolCallEvent>) -> Read {
        for (at, byte) in text.bytes().enumerate().skip(self.at) {
            self.at = at + 1;
            if self.in_string {
                self.in_string = self.is_escaped || byte != b'"';
                self.is_escaped = !self.is_escaped && byte == b'\\';
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => {
                    if self.depth == 1 && byte == b'{' {
                        self.find_name(&text[..at], tools, events);
                    }
                    self.depth += 1;
                }
                b'}' | b']' => {
                    self.depth -= 1;
                    match self.depth {
                        0 => return self.end(&text[..self.at], tools, events),
                        1 => self.send(text, true, events),
                        _ => {}
                    }
                }
                b',' | b':' | b'+' | b'-' | b'.' => {}
                _ if byte.is_ascii_alphanumeric() || byte.is_ascii_whitespace() => {}
                _ => return Read::Malformed(at),
            }
        }
        self.send(text, false, events);
        Read::More
    }

    /// Sends the arguments as far as they were read.
    fn send(&mut self, text: &str, is_last: bool, events: &mut Vec<ToolCallEvent>) {
        let Some(from) = self.arguments.filter(|_| !self.is_complete) else { return };
        if from < self.at {
            events.push(ToolCallEvent::Arguments(text[from..self.at].to_owned()));
        }
        (self.arguments, self.is_complete) = (Some(self.at), is_last);
    }

    /// Begins the call if the arguments come next, and the name was before.
    fn find_name(&mut self, before: &str, tools: &[Tool], events: &mut Vec<ToolCallEvent>) {
        if self.arguments.is_some() || self.tries == TRIES || before.len() > NAME_WITHIN {
            return;
        }
        self.tries += 1;
        let key = before.trim_end().strip_suffix(':').unwrap_or("").trim_end();
        if !key.ends_with("\"arguments\"") && !key.ends_with("\"parameters\"") {
            return;
        }
        let completed = format!("{before}0}}");
        if let Ok(Entries { name, arguments: Some(value) }) = serde_json::from_str(&completed)
            && value.get() == "0"
            && tools.iter().any(|tool| tool.name() == name)
        {
            events.push(begin(&name));
            self.arguments = Some(before.len());
        }
    }

    fn end(&self, call: &str, tools: &[Tool], events: &mut Vec<ToolCallEvent>) -> Read {
        let malformed = Read::Malformed(call.len());
        let Ok(Entries { name, arguments }) = serde_json::from_str(call) else { return malformed };
        if self.arguments.is_none() {
            let arguments = arguments.map_or(Some("{}".into()), object);
            let is_known = tools.iter().any(|tool| tool.name() == name);
            let Some(arguments) = arguments.filter(|_| is_known) else { return malformed };
            events.extend([begin(&name), ToolCallEvent::Arguments(arguments)]);
        }
        events.push(ToolCallEvent::End);
        Read::End(call.len())
    }
}

/// Arguments as an object; some models write it as a string.
fn object(value: &RawValue) -> Option<String> {
    let text = serde_json::from_str(value.get()).unwrap_or_else(|_| value.get().to_owned());
    serde_json::from_str::<Map<String, Value>>(&text).is_ok().then_some(text)
}

/// A call in the form of Qwen3-Coder.
#[derive(Clone, Debug, Default)]
pub(super) struct Function {
    /// Bytes that were read.
    at: usize,
    /// Bytes from there that have no end of a parameter.
    searched: usize,
    /// The tool's place in the list, once it is known.
    tool: Option<usize>,
    /// Name of the argument that is read.
    key: Option<String>,
    /// Names of those that were.
    keys: HashSet<String>,
}

impl Function {
    fn read(&mut self, text: &str, tools: &[Tool], events: &mut Vec<ToolCallEvent>) -> Read {
        loop {
            if self.key.is_some() {
                if self.argument(text, tools, events) {
                    continue;
                }
                return Read::More;
            }
            let rest = text[self.at..].trim_ascii_start();
            let after = text.len() - rest.len();
            let expected: &[&str] =
                if self.tool.is_none() { &[FUNCTION] } else { &[PARAMETER, FUNCTION_END] };
            let Some(mark) = expected.iter().find(|mark| rest.starts_with(**mark)) else {
                let may_come = expected.iter().any(|mark| mark.starts_with(rest));
                let is_short = after - self.at <= MOST_SPACES;
                return if may_come && is_short { Read::More } else { Read::Malformed(self.at) };
            };
            let after = after + mark.len();
            if *mark == FUNCTION_END {
                let end = if self.keys.is_empty() { "{}" } else { "}" };
                events.extend([ToolCallEvent::Arguments(end.into()), ToolCallEvent::End]);
                return Read::End(after);
            }
            let within = &text.as_bytes()[after..text.len().min(after + NAME_WITHIN)];
            let Some(length) = within.iter().position(|byte| *byte == b'>') else {
                let is_short = within.len() < NAME_WITHIN;
                return if is_short { Read::More } else { Read::Malformed(after) };
            };
            (self.at, self.searched) = (after + length + 1, 0);
            if !self.name(&text[after..after + length], tools, events) {
                return Read::Malformed(self.at);
            }
        }
    }

    /// Takes the name of the tool, or of an argument. Returns false for an unknown tool, and for an
    /// argument that is there twice.
    fn name(&mut self, name: &str, tools: &[Tool], events: &mut Vec<ToolCallEvent>) -> bool {
        if self.tool.is_some() {
            self.key = Some(name.to_owned());
            return !self.keys.contains(name);
        }
        self.tool = tools.iter().position(|tool| tool.name() == name);
        events.extend(self.tool.map(|_| begin(name)));
        self.tool.is_some()
    }

    /// Reads an argument. Returns false if more is needed.
    fn argument(&mut self, text: &str, tools: &[Tool], events: &mut Vec<ToolCallEvent>) -> bool {
        let Some(end) = self.argument_end(text) else { return false };
        let tool = self.tool.and_then(|tool| tools.get(tool));
        if let Some(key) = self.key.take() {
            let value = argument(&text[self.at..end], tool, &key);
            let before = if self.keys.is_empty() { "{" } else { ", " };
            let entry = format!("{before}{}: {value}", Value::from(key.as_str()));
            events.push(ToolCallEvent::Arguments(entry));
            self.keys.insert(key);
        }
        self.at = end + PARAMETER_END.len();
        true
    }

    /// Where the argument ends. A value may contain the mark of its end, so another mark has to
    /// follow.
    fn argument_end(&mut self, text: &str) -> Option<usize> {
        let mut from = self.searched.max(self.at);
        let is_end = |bytes: &[u8]| bytes == PARAMETER_END.as_bytes();
        let find =
            |from: usize| text.as_bytes()[from..].windows(PARAMETER_END.len()).position(is_end);
        while let Some(length) = find(from) {
            let end = from + length;
            let after = &text[end + PARAMETER_END.len()..];
            let next = after.trim_ascii_start();
            let is_short = after.len() - next.len() <= MOST_SPACES;
            let marks = [PARAMETER, FUNCTION_END];
            if is_short && marks.iter().any(|mark| next.starts_with(mark)) {
                return Some(end);
            }
            if is_short && marks.iter().any(|mark| mark.starts_with(next)) {
                self.searched = end;
                return None;
            }
            from = end + PARAMETER_END.len();
        }
        self.searched = from.max((text.len() + 1).saturating_sub(PARAMETER_END.len()));
        None
    }
}

/// An argument as JSON: a text, unless the schema allows what it is as JSON. JSON stays as the model
/// wrote it, with all digits of its numbers.
fn argument(text: &str, tool: Option<&Tool>, key: &str) -> String {
    let text = text.strip_prefix('\n').unwrap_or(text);
    let text = text.strip_suffix('\n').unwrap_or(text);
    // As Jinja writes them.
    let json = match text {
        "True" => "true",
        "False" => "false",
        "None" => "null",
        text => text,
    };
    let as_text = || Value::from(text).to_string();
    // What is JSON but no value here (1e400, lone surrogates) could not be read again.
    if serde_json::from_str::<&RawValue>(json).is_err()
        || serde_json::from_str::<Value>(json).is_err()
    {
        return as_text();
    }
    let kind = kind_of(json);
    let root = tool.map(Tool::parameters);
    let is_json = match root.and_then(|root| Some((root, root["properties"].get(key)?))) {
        None => kind != "string",
        Some((root, part)) => {
            let schema = Argument { root, part };
            !schema.is_text() && (schema.allows(kind) || !schema.allows("string"))
        }
    };
    if is_json { json.trim_ascii().to_owned() } else { as_text() }
}
