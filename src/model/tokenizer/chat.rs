//! Chat templates: a conversation as the text that a model expects.

use super::{
    names::unused_mark,
    text::{Chat, Tokenizer},
    tools::{Tool, ToolCall, changed},
};
use crate::error::{Error, Result};
use chat_template::{Limits, LocalTime, Template};
use serde::Serialize;
use serde_json::Value;
use std::{collections::HashMap, sync::Arc};

/// What begins and ends the reasoning of an answer.
pub(in crate::model) const OPEN: &str = "<think>";
pub(in crate::model) const CLOSE: &str = "</think>";

/// A turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, or `tool` for the result of a call.
    pub role: String,
    /// What they say.
    pub content: String,
    /// What an assistant has said to itself before; templates know it as `reasoning_content`, and
    /// mostly leave it out.
    pub reasoning: Option<String>,
    /// Tools that an assistant calls, behind the content.
    pub tool_calls: Vec<ToolCall>,
    /// [`ToolCall::id`] of the call of which a message of the role `tool` is the result.
    pub tool_call_id: Option<String>,
}

impl Message {
    /// Returns a turn without reasoning and calls.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
        }
    }

    /// Returns the result of a tool's call of this id.
    pub fn tool_result(id: impl Into<String>, content: impl Into<String>) -> Self {
        Self { tool_call_id: Some(id.into()), ..Self::new("tool", content) }
    }

    /// Sets [`Message::reasoning`].
    #[must_use]
    pub fn reasoning(self, reasoning: Option<String>) -> Self {
        Self { reasoning, ..self }
    }

    /// Sets [`Message::tool_calls`].
    #[must_use]
    pub fn tool_calls(self, tool_calls: impl Into<Vec<ToolCall>>) -> Self {
        Self { tool_calls: tool_calls.into(), ..self }
    }

    /// It with the text of `change` for each text of its parts.
    fn changed(&self, change: &impl Fn(&str) -> String) -> Self {
        Self {
            role: change(&self.role),
            content: change(&self.content),
            reasoning: self.reasoning.as_deref().map(change),
            tool_calls: self.tool_calls.iter().map(|call| call.changed(change)).collect(),
            tool_call_id: self.tool_call_id.as_deref().map(change),
        }
    }

    /// Its texts.
    fn texts(&self) -> impl Iterator<Item = &str> {
        let calls = self.tool_calls.iter();
        let calls = calls.flat_map(|call| [&call.id, &call.name, &call.arguments]);
        let more = self.reasoning.iter().chain(&self.tool_call_id).chain(calls);
        [&self.role, &self.content].into_iter().chain(more).map(String::as_str)
    }
}

/// Variables of a chat template, by the names of transformers.
#[derive(Serialize)]
struct Context<'a> {
    messages: Vec<Turn<'a>>,
    /// None for a conversation without tools, as in transformers.
    tools: Option<&'a [Value]>,
    documents: (),
    add_generation_prompt: bool,
    bos_token: String,
    eos_token: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    enable_thinking: Option<bool>,
}

/// A message as templates see it.
#[derive(Serialize)]
struct Turn<'a> {
    role: &'a str,
    content: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tool_calls: &'a [ToolCall],
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
    /// Name of the tool that was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

/// Checks that templates can write the calls of messages.
fn check_calls(messages: &[Message]) -> Result<()> {
    messages.iter().flat_map(|message| &message.tool_calls).try_for_each(ToolCall::check)
}

/// Messages as templates see them.
fn turns<'a>(messages: &'a [Message]) -> Vec<Turn<'a>> {
    let mut names = HashMap::new();
    let turn = |message: &'a Message| {
        names.extend(message.tool_calls.iter().map(|call| (call.id.as_str(), call.name.as_str())));
        let id = message.tool_call_id.as_deref();
        Turn {
            role: &message.role,
            content: &message.content,
            reasoning_content: message.reasoning.as_deref(),
            tool_calls: &message.tool_calls,
            tool_call_id: id,
            name: id.and_then(|id| names.get(id).copied()),
        }
    };
    messages.iter().map(turn).collect()
}

impl Tokenizer {
    /// Returns whether there is a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.1.template.is_some()
    }

    /// Returns the tokenizer with another chat template, in Jinja, which is asked anew whether it
    /// knows [`Self::with_thinking`] and [`Self::with_tools`].
    #[must_use]
    pub fn with_chat_template(&self, template: &str) -> Self {
        let (template, tools) = (Some(template.into()), Arc::default());
        Self(self.0.clone(), Chat { template, thinking: None, tools, ..self.1.clone() })
    }

    /// Returns the tokenizer with a chat template that is given these tools, which the model may
    /// call. [`ToolCallParser`](crate::model::ToolCallParser) finds the calls in an answer.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] if there is no template, or if it writes the same with and without
    /// tools: they would be ignored.
    pub fn with_tools(&self, tools: impl Into<Arc<[Tool]>>) -> Result<Self> {
        let given = |tools| {
            let now = Some(self.1.now.unwrap_or_else(LocalTime::now));
            Self(self.0.clone(), Chat { tools, now, ..self.1.clone() })
        };
        let text = |tools| given(tools).chat_text(&[Message::new("user", "Hello")], true);
        let tools = tools.into();
        if !tools.is_empty() && text(tools.clone())? == text(Arc::default())? {
            let message = "it does not write tools, so the model would not know of them";
            return Err(Error::ChatTemplate { message: message.into() });
        }
        Ok(Self(self.0.clone(), Chat { tools, ..self.1.clone() }))
    }

    /// Returns the tools of [`Tokenizer::with_tools`].
    pub fn tools(&self) -> &[Tool] {
        &self.1.tools
    }

    /// Returns the tokenizer with a chat template that is told whether the model reasons before it
    /// answers: by the variable `enable_thinking`, as Qwen's templates have it.
    /// [`ReasoningParser`](crate::model::ReasoningParser) splits such an answer into its parts.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] if there is no template, or if it writes the same with and without:
    /// the choice would be ignored.
    pub fn with_thinking(&self, thinking: bool) -> Result<Self> {
        let switched =
            |thinking| Self(self.0.clone(), Chat { thinking: Some(thinking), ..self.1.clone() });
        let now = self.1.now.unwrap_or_else(LocalTime::now);
        let text = |thinking| {
            let tokenizer = switched(thinking).with_chat_time(now);
            tokenizer.chat_text(&[Message::new("user", "Hello")], true)
        };
        if text(true)? == text(false)? {
            let message = "it does not know `enable_thinking`: whether the model reasons before it answers cannot be chosen";
            return Err(Error::ChatTemplate { message: message.into() });
        }
        Ok(switched(thinking))
    }

    /// Returns the tokenizer with a fixed time for chat templates that write the date, by
    /// `strftime_now`. By default they write the local date of this machine, so that their prompts
    /// change every day.
    #[must_use]
    pub fn with_chat_time(&self, now: LocalTime) -> Self {
        Self(self.0.clone(), Chat { now: Some(now), ..self.1.clone() })
    }

    /// Returns this tokenizer, for which names of special tokens within a message are those tokens,
    /// or the text that they are. They are text by default: a message cannot end its turn, or begin
    /// another. It changes [`Tokenizer::chat`], not [`Tokenizer::encode`].
    #[must_use]
    pub fn with_special_tokens_in_content(&self, allowed: bool) -> Self {
        Self(self.0.clone(), Chat { special_in_content: allowed, ..self.1.clone() })
    }

    /// Returns the tokens of a conversation, ending where the assistant's turn begins. As in
    /// transformers, only the template inserts BOS. Unlike there, names of special tokens, of BOS
    /// and of EOS within a message are text, in letters of any case;
    /// [`Tokenizer::with_special_tokens_in_content`] makes them tokens. In an assistant's message,
    /// `<think>` and `</think>` stay what they are, since templates look for them. A special token
    /// whose name is one character is always a token.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`]; [`Error::TextTooLong`] where the template writes more than
    /// [`Tokenizer::within`] allows; else as [`Tokenizer::encode`].
    pub fn chat(&self, messages: &[Message]) -> Result<Vec<u32>> {
        self.chat_ids(messages, true)
    }

    /// [`Tokenizer::chat`], with or without the beginning of the assistant's turn.
    pub(crate) fn chat_ids(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<Vec<u32>> {
        if self.1.special_in_content {
            return self.encode_plain(&self.chat_text(messages, add_generation_prompt)?);
        }
        check_calls(messages)?;
        // Arguments as they are after escapes.
        let messages: Vec<Message> =
            messages.iter().map(|message| message.changed(&str::to_owned)).collect();
        let tools = self.tool_values();
        let of_tools: Vec<String> = tools.iter().map(Value::to_string).collect();
        let texts = messages.iter().flat_map(Message::texts);
        let texts = texts.chain(of_tools.iter().map(String::as_str));
        let mark = unused_mark(texts.chain(self.1.template.as_deref())).ok_or_else(|| Error::ChatTemplate {
            message: "the conversation uses every hieroglyph; one must be free, to mark names of special tokens".into(),
        })?;
        let marked = |text: &str, kept: &[&str]| self.0.names.marked(text, mark, kept).into_owned();
        let messages: Vec<Message> = messages
            .iter()
            .map(|message| {
                let kept: &[&str] = if message.role == "assistant" { &[OPEN, CLOSE] } else { &[] };
                message.changed(&|text| marked(text, kept))
            })
            .collect();
        let tools = tools.into_iter().map(|tool| changed(tool, &|text| marked(text, &[])));
        let text = self.render(&messages, &tools.collect::<Vec<_>>(), add_generation_prompt)?;
        self.check_length(text.len())?;
        self.0.encode_marked(&text, false, Some(mark))
    }

    /// The tools as templates see them.
    fn tool_values(&self) -> Vec<Value> {
        self.1.tools.iter().map(Tool::value).collect()
    }

    /// Returns a conversation as text, rendered by the model's template, with or without the
    /// beginning of the assistant's turn. Templates see the variables of transformers; documents are
    /// none. In the text nothing tells names of special tokens that people wrote from
    /// those that the template wrote: [`Tokenizer::chat`] does.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] if there is no template, or if it is faulty, refuses the messages, or
    /// writes no calls of tools that they have; [`Error::TextTooLong`] where it writes more than [`Tokenizer::within`] allows.
    pub fn chat_text(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        check_calls(messages)?;
        self.render(messages, &self.tool_values(), add_generation_prompt)
    }

    fn render(
        &self,
        messages: &[Message],
        tools: &[Value],
        add_generation_prompt: bool,
    ) -> Result<String> {
        let template = self
            .1
            .template
            .as_deref()
            .ok_or_else(|| Error::ChatTemplate { message: "the tokenizer has none".into() })?;
        let name =
            |id: Option<u32>| id.and_then(|id| self.0.inner.id_to_token(id)).unwrap_or_default();
        let context = Context {
            messages: turns(messages),
            tools: Some(tools).filter(|tools| !tools.is_empty()),
            documents: (),
            add_generation_prompt,
            bos_token: name(self.0.bos),
            eos_token: name(self.0.eos_token),
            enable_thinking: self.1.thinking,
        };
        let limits = Limits { output: self.most_bytes(), ..Limits::default() };
        let now = self.1.now.unwrap_or_else(LocalTime::now);
        let rendered = Template::parse(template)
            .and_then(|template| template.with_now(now).render(&context, &limits));
        let is_lost = |text: &String| {
            let mut calls = messages.iter().flat_map(|message| &message.tool_calls).peekable();
            calls.peek().is_some() && !calls.any(|call| text.contains(&call.name))
        };
        if rendered.as_ref().is_ok_and(is_lost) {
            let message = "it does not write tool calls, so the model would not know of them";
            return Err(Error::ChatTemplate { message: message.into() });
        }
        rendered.map_err(|error| {
            let too_long = match error {
                chat_template::Error::OutputTooLong { bytes } => self.check_length(bytes).err(),
                _ => None,
            };
            too_long.unwrap_or_else(|| Error::ChatTemplate { message: error.to_string() })
        })
    }
}
