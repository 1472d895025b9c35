//! Separates tool calls from the text of an answer.

use super::{
    call::{Call, Read},
    event::{MOST_SPACES, ToolCallEvent},
    format::{Body, Format},
};
#[cfg(feature = "grammar")]
use crate::model::grammar::source::Grammar;
use crate::{
    error::Result,
    model::tokenizer::{
        text::Tokenizer,
        tools::{Tool, ToolCall},
    },
};
use std::sync::Arc;

/// What Llama 3 writes before a call.
const PYTHON: &str = "<|python_tag|>";

/// Which tools a model may call: see [`ToolCallParser::grammar`].
#[cfg(feature = "grammar")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// Any tool, or none.
    Auto,
    /// At least one tool.
    Required,
    /// The tool of this name.
    Named(String),
}

/// Separates tool calls from an answer while its text comes, by the form in which the model's chat
/// template writes calls: JSON between marks such as `<tool_call>` (Qwen, Hermes), JSON alone (Llama
/// 3, Mistral), or `<function=..>` (Qwen3-Coder). White space before and between calls is left out.
/// What is no call of one of the tools is text.
///
/// ```
/// use bitnet_wgpu::model::{ParsedAnswer, Tokenizer, Tool, ToolCallParser};
///
/// # fn main() -> bitnet_wgpu::Result<()> {
/// # let template = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}
/// # <tool_call>
/// # {{ c.function | tojson }}
/// # </tool_call>{% endfor %}{% endfor %}";
/// # let tokenizer = Tokenizer::from_directory("assets/tales-22m")?.with_chat_template(template);
/// let tokenizer = tokenizer.with_tools([Tool::new("weather", r#"{"type": "object"}"#)?])?;
/// let mut parser = ToolCallParser::new(&tokenizer)?;
/// let mut answer = ParsedAnswer::default();
/// for text in ["Let me see.\n<tool_", "call>\n{\"name\": \"weather\", \"argu", "ments\": {\"city\": \"Oslo\"}}\n</tool_call>"] {
///     parser.push(text).into_iter().for_each(|event| answer.add(event));
/// }
/// parser.finish().into_iter().for_each(|event| answer.add(event));
/// assert_eq!((answer.text.as_str(), answer.calls.len()), ("Let me see.", 1));
/// assert_eq!(answer.calls[0].arguments, r#"{"city": "Oslo"}"#);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ToolCallParser {
    format: Arc<Format>,
    tools: Arc<[Tool]>,
    /// Texts with which calls begin that come first or not at all; empty if they may come anywhere.
    starts: Vec<String>,
    /// What an answer without calls is.
    #[cfg(feature = "grammar")]
    text: Option<Grammar>,
    state: State,
    /// Text from which no event came yet, or from the begin of a call on.
    held: String,
    /// Bytes of it that are done.
    done: usize,
    /// White space before the first text, while a call may come first.
    blank: String,
    /// Whether there was a call, and no text since.
    called: bool,
}

/// What comes next. Places are bytes of the held text that is not done.
#[derive(Clone, Debug)]
enum State {
    /// Nothing was said but spaces.
    Begin,
    Text,
    /// Text until the end: no call came first.
    TextOnly,
    /// A call may begin at this place.
    Opened(usize),
    /// A call, which begins at this place.
    Call(usize, Call),
    /// A call is complete, perhaps in a list that goes on. Its end may come.
    Closing {
        in_list: bool,
    },
}

impl ToolCallParser {
    /// Returns a parser of an answer to a conversation of this tokenizer.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`](crate::Error::ChatTemplate) if the chat template writes no calls, or
    /// writes them in a form that is not supported.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self> {
        let tools = tokenizer.tools().into();
        Ok(Self::of(Format::of(tokenizer)?, tools))
    }

    pub(super) fn of(format: Format, tools: Arc<[Tool]>) -> Self {
        Self {
            format: format.into(),
            tools,
            starts: Vec::new(),
            #[cfg(feature = "grammar")]
            text: None,
            state: State::Begin,
            held: String::new(),
            done: 0,
            blank: String::new(),
            called: false,
        }
    }

    /// Has calls come first, with one of these texts, or not at all.
    #[cfg(feature = "grammar")]
    pub(super) fn with_text(self, text: Grammar, starts: Vec<String>) -> Self {
        Self { text: Some(text), starts, ..self }
    }

    /// The grammar of answers without calls.
    #[cfg(feature = "grammar")]
    pub(super) fn text_grammar(&self) -> Option<&Grammar> {
        self.text.as_ref()
    }

    /// The texts with which none of them begins.
    #[cfg(feature = "grammar")]
    pub(super) fn starts(&self) -> &[String] {
        &self.starts
    }

    pub(super) fn format(&self) -> &Format {
        &self.format
    }

    pub(super) fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// Takes the text of the next token, and returns what is certain by now.
    pub fn push(&mut self, text: &str) -> Vec<ToolCallEvent> {
        self.held += text;
        let mut events = Vec::new();
        while self.done < self.held.len() && self.step(&mut events) {}
        self.held.drain(..self.done);
        self.done = 0;
        events
    }

    /// Ends the text, and returns what was held back.
    pub fn finish(&mut self) -> Vec<ToolCallEvent> {
        let held = std::mem::take(&mut self.blank) + &std::mem::take(&mut self.held);
        let is_done = held.is_empty() || self.called && held.trim_ascii().is_empty();
        let event = match std::mem::replace(&mut self.state, State::Text) {
            State::Call(..) => ToolCallEvent::Malformed(held),
            _ => ToolCallEvent::Text(held),
        };
        Some(event).filter(|_| !is_done).into_iter().collect()
    }

    /// Reads on in the held text. Returns false if more is needed.
    fn step(&mut self, events: &mut Vec<ToolCallEvent>) -> bool {
        match &mut self.state {
            State::Begin if !self.starts.is_empty() => self.start(events),
            State::Begin => self.begin(),
            State::TextOnly => {
                events.push(ToolCallEvent::Text(self.take(self.rest().len())));
                self.state = State::TextOnly;
                true
            }
            State::Text => self.text(events),
            State::Opened(at) => {
                let at = *at;
                self.opened(at, events)
            }
            State::Closing { in_list } => {
                let in_list = *in_list;
                self.closing(in_list)
            }
            State::Call(begin, call) => {
                let begin = *begin;
                match call.read(&self.held[self.done + begin..], &self.tools, events) {
                    Read::More => return false,
                    Read::End(length) => {
                        self.done += begin + length;
                        self.called = true;
                        let in_list = matches!(self.format.body, Body::Json { is_list: true, .. });
                        self.state = State::Closing { in_list };
                    }
                    Read::Malformed(length) => {
                        let text = self.take(begin + length);
                        events.push(ToolCallEvent::Malformed(text));
                    }
                }
                true
            }
        }
    }

    /// The held text that is not done.
    fn rest(&self) -> &str {
        &self.held[self.done..]
    }

    /// Takes as many bytes as text, and goes on with text.
    fn take(&mut self, bytes: usize) -> String {
        let text = self.rest()[..bytes].to_owned();
        self.done += bytes;
        self.state = State::Text;
        self.called &= text.is_empty();
        text
    }

    /// Decides whether calls come first. White space before them is left out.
    fn start(&mut self, events: &mut Vec<ToolCallEvent>) -> bool {
        let rest = &self.held[self.done..];
        let text = rest.trim_start();
        self.blank += &rest[..rest.len() - text.len()];
        self.done += rest.len() - text.len();
        let mut starts = self.starts.iter().map(|start| start.trim_start());
        if starts.clone().any(|start| text.starts_with(start)) {
            self.starts.clear();
            self.blank.clear();
        } else if starts.any(|start| start.starts_with(text)) {
            return false;
        } else {
            self.state = State::TextOnly;
            let blank = std::mem::take(&mut self.blank);
            events.extend(Some(blank).filter(|text| !text.is_empty()).map(ToolCallEvent::Text));
        }
        true
    }

    fn begin(&mut self) -> bool {
        let rest = self.rest().trim_ascii_start();
        let spaces = self.rest().len() - rest.len();
        if !self.format.mark().is_empty() || spaces > MOST_SPACES {
            self.state = State::Text;
        } else if rest.starts_with(['{', '[']) {
            self.state = State::Opened(spaces);
        } else if rest.starts_with(PYTHON) {
            self.state = State::Opened(spaces + PYTHON.len());
        } else if PYTHON.starts_with(rest) {
            return false;
        } else {
            self.state = State::Text;
        }
        true
    }

    /// Looks for the mark of a call. What may be a part of it, or the spaces before it, is held
    /// back.
    fn text(&mut self, events: &mut Vec<ToolCallEvent>) -> bool {
        let (rest, mark) = (self.rest(), self.format.mark());
        let found = Some(mark).filter(|mark| !mark.is_empty()).and_then(|mark| rest.find(mark));
        let part = |length: &usize| rest.ends_with(mark.get(..*length).unwrap_or(mark));
        let marked = || rest.len() - (1..mark.len()).rev().find(part).unwrap_or(0);
        let at = found.unwrap_or_else(marked);
        let spaces = rest[..at].bytes().rev().take(MOST_SPACES);
        let spaces = spaces.take_while(u8::is_ascii_whitespace).count();
        let spaces = if mark.is_empty() { 0 } else { spaces };
        let body = if self.format.open.is_empty() { 0 } else { mark.len() };
        if at > spaces {
            events.push(ToolCallEvent::Text(self.take(at - spaces)));
        }
        if found.is_some() {
            self.state = State::Opened(spaces + body);
        }
        found.is_some()
    }

    /// Begins a call behind its mark, or finds that there is none.
    fn opened(&mut self, at: usize, events: &mut Vec<ToolCallEvent>) -> bool {
        let after = &self.rest()[at..];
        let mut body = after.trim_ascii_start();
        let call = match self.format.body {
            Body::Functions => Some(at),
            Body::Json { is_list, .. } => {
                let list = body.strip_prefix('[').filter(|_| is_list);
                let is_missing = is_list && list.is_none() && !body.is_empty();
                body = list.unwrap_or(body).trim_ascii_start();
                let begin = self.rest().len() - body.len();
                (body.starts_with('{') && !is_missing).then_some(begin)
            }
        };
        match call {
            Some(begin) if begin - at <= MOST_SPACES => {
                self.state = State::Call(begin, Call::new(&self.format.body));
            }
            None if body.is_empty() && after.len() <= MOST_SPACES => return false,
            _ => {
                let text = self.take(at);
                events.extend(Some(text).filter(|text| !text.is_empty()).map(ToolCallEvent::Text));
            }
        }
        true
    }

    /// Looks for the next call of a list, or for the end of a call.
    fn closing(&mut self, in_list: bool) -> bool {
        let rest = self.rest().trim_ascii_start();
        let spaces = self.rest().len() - rest.len();
        let is_list = matches!(self.format.body, Body::Json { is_list: true, .. });
        let (end, is_bare) = (&*self.format.close, self.format.mark().is_empty() && !is_list);
        let between = if in_list { "," } else { ";" };
        let next = rest.strip_prefix(between).map_or(rest, str::trim_ascii_start);
        let is_next =
            next.starts_with('{') && (in_list && next.len() < rest.len() || !in_list && is_bare);
        let skipped = self.rest().len() - next.len();
        if spaces > MOST_SPACES || skipped > 2 * MOST_SPACES {
            self.state = State::Text;
        } else if is_next {
            self.state = State::Call(skipped, Call::new(&self.format.body));
        } else if next.is_empty() && (in_list || self.format.mark().is_empty()) {
            return false;
        } else if in_list {
            self.done += if rest.starts_with(']') { spaces + 1 } else { 0 };
            self.state = State::Closing { in_list: false };
        } else if !end.is_empty() && rest.starts_with(end) {
            self.done += spaces + end.len();
            self.state = State::Text;
        } else if end.starts_with(rest) && !end.is_empty() {
            return false;
        } else {
            self.state = State::Text;
        }
        true
    }
}

/// An answer, put together from events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedAnswer {
    /// The text outside of calls.
    pub text: String,
    /// The calls.
    pub calls: Vec<ToolCall>,
    /// The call that is not complete.
    open: Option<ToolCall>,
}

impl ParsedAnswer {
    /// Adds an event. Of a call that has no valid end, only the text remains.
    pub fn add(&mut self, event: ToolCallEvent) {
        match event {
            ToolCallEvent::Text(text) => self.text += &text,
            ToolCallEvent::Begin { id, name } => {
                self.open = Some(ToolCall { id, name, arguments: String::new() });
            }
            ToolCallEvent::Arguments(piece) => {
                self.open.iter_mut().for_each(|call| call.arguments += &piece);
            }
            ToolCallEvent::End => self.calls.extend(self.open.take()),
            ToolCallEvent::Malformed(text) => {
                self.open = None;
                self.text += &text;
            }
        }
    }
}
