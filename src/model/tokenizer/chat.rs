//! Chat templates: a conversation as the text that a model expects.

use super::{
    names::unused_mark,
    text::{Chat, Tokenizer},
};
use crate::error::{Error, Result};
use chat_template::{Limits, LocalTime, Template};
use serde::Serialize;

/// What begins and ends the reasoning of an answer.
pub(in crate::model) const OPEN: &str = "<think>";
pub(in crate::model) const CLOSE: &str = "</think>";

/// A turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`.
    pub role: String,
    /// What they say.
    pub content: String,
    /// What an assistant has said to itself before; templates know it as `reasoning_content`, and
    /// mostly leave it out.
    pub reasoning: Option<String>,
}

impl Message {
    /// Returns a turn without reasoning.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), reasoning: None }
    }

    /// Sets [`Message::reasoning`].
    #[must_use]
    pub fn reasoning(self, reasoning: Option<String>) -> Self {
        Self { reasoning, ..self }
    }
}

/// Variables of a chat template, by the names of transformers.
#[derive(Serialize)]
struct Context<'a> {
    messages: Vec<Turn<'a>>,
    /// None, as in transformers for a conversation without tools.
    tools: (),
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
}

impl<'a> Turn<'a> {
    fn new(Message { role, content, reasoning }: &'a Message) -> Self {
        Self { role, content, reasoning_content: reasoning.as_deref() }
    }
}

impl Tokenizer {
    /// Returns whether there is a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.1.template.is_some()
    }

    /// Returns the tokenizer with another chat template, in Jinja, which is asked anew whether it
    /// knows [`Self::with_thinking`].
    #[must_use]
    pub fn with_chat_template(&self, template: &str) -> Self {
        Self(
            self.0.clone(),
            Chat { template: Some(template.into()), thinking: None, ..self.1.clone() },
        )
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
    /// [`Error::ChatTemplate`], [`Error::Tokenizer`]; [`Error::TextTooLong`] where the template
    /// writes more than [`Tokenizer::within`] allows; [`Error::TextWork`] as [`Tokenizer::encode`].
    pub fn chat(&self, messages: &[Message]) -> Result<Vec<u32>> {
        if self.1.special_in_content {
            return self.encode_plain(&self.chat_text(messages, true)?);
        }
        let parts = messages.iter().flat_map(|m| {
            [m.role.as_str(), m.content.as_str(), m.reasoning.as_deref().unwrap_or_default()]
        });
        let mark = unused_mark(parts.chain(self.1.template.as_deref())).ok_or_else(|| Error::ChatTemplate {
            message: "the conversation uses every hieroglyph; one must be free, to mark names of special tokens".into(),
        })?;
        let messages: Vec<Message> =
            messages.iter().map(|message| self.marked(message, mark)).collect();
        let text = self.chat_text(&messages, true)?;
        self.check_length(text.len())?;
        self.0.encode_marked(&text, false, Some(mark))
    }

    /// A message with a mark in each name of a special token.
    fn marked(&self, message: &Message, mark: char) -> Message {
        let kept: &[&str] = if message.role == "assistant" { &[OPEN, CLOSE] } else { &[] };
        let marked = |text: &str| self.0.names.marked(text, mark, kept).into_owned();
        Message {
            role: marked(&message.role),
            content: marked(&message.content),
            reasoning: message.reasoning.as_deref().map(marked),
        }
    }

    /// Returns a conversation as text, rendered by the model's template, with or without the
    /// beginning of the assistant's turn. Templates see the variables of transformers; tools and
    /// documents are none. In the text nothing tells names of special tokens that people wrote from
    /// those that the template wrote: [`Tokenizer::chat`] does.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] if there is no template, or if it is faulty or refuses the messages;
    /// [`Error::TextTooLong`] where it writes more than [`Tokenizer::within`] allows.
    pub fn chat_text(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let template = self
            .1
            .template
            .as_deref()
            .ok_or_else(|| Error::ChatTemplate { message: "the tokenizer has none".into() })?;
        let name =
            |id: Option<u32>| id.and_then(|id| self.0.inner.id_to_token(id)).unwrap_or_default();
        let context = Context {
            messages: messages.iter().map(Turn::new).collect(),
            tools: (),
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
        rendered.map_err(|error| {
            let too_long = match error {
                chat_template::Error::OutputTooLong { bytes } => self.check_length(bytes).err(),
                _ => None,
            };
            too_long.unwrap_or_else(|| Error::ChatTemplate { message: error.to_string() })
        })
    }
}
