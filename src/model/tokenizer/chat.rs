//! Chat templates: a conversation as the text that a model expects.

use super::{
    jinja::{self, Refusal, Variable},
    text::{Chat, Tokenizer},
};
use crate::error::{Error, Result};

/// A turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`.
    pub role: String,
    /// What they say.
    pub content: String,
    /// What an assistant has said to itself before; templates know it as `reasoning_content`, and mostly leave it out.
    pub reasoning: Option<String>,
}

impl Message {
    /// A turn.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), reasoning: None }
    }

    /// Sets [`Message::reasoning`].
    #[must_use]
    pub fn reasoning(self, reasoning: Option<String>) -> Self {
        Self { reasoning, ..self }
    }
}

impl Tokenizer {
    /// Is there a chat template?
    pub fn has_chat_template(&self) -> bool {
        self.1.template.is_some()
    }

    /// The same tokenizer with another chat template, in Jinja, which is asked anew whether it knows [`Self::with_thinking`].
    #[must_use]
    pub fn with_chat_template(&self, template: &str) -> Self {
        Self(self.0.clone(), Chat { template: Some(template.into()), thinking: None, ..self.1.clone() })
    }

    /// The same tokenizer, whose chat template is told whether the model is to reason before it answers: by the variable `enable_thinking`, as Qwen's
    /// templates have it. [`Reasoning`](crate::model::Reasoning) tells such an answer's parts apart.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] if there is no template, or if it writes the same with and without: the choice would be ignored.
    pub fn with_thinking(&self, thinking: bool) -> Result<Self> {
        let told = |thinking| Self(self.0.clone(), Chat { thinking: Some(thinking), ..self.1.clone() });
        let text = |thinking| told(thinking).chat_text(&[Message::new("user", "Hello")], true);
        if text(true)? == text(false)? {
            let message = "it does not know `enable_thinking`: whether the model reasons before it answers cannot be chosen";
            return Err(Error::ChatTemplate { message: message.into() });
        }
        Ok(told(thinking))
    }

    /// The tokens of a conversation, ending where the assistant's turn begins. As in transformers, only the template inserts BOS, and names
    /// of special tokens within a message become those tokens.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`], [`Error::Tokenizer`]; [`Error::TextTooLong`] where the template writes more than [`Tokenizer::within`] allows.
    pub fn chat(&self, messages: &[Message]) -> Result<Vec<u32>> {
        self.encode_plain(&self.chat_text(messages, true)?)
    }

    /// A conversation as text, rendered by the model's template, with or without the beginning of the assistant's turn. Templates see the
    /// variables of transformers except the date, tools and documents.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] if there is no template, or if it is faulty or refuses the messages; [`Error::TextTooLong`] where it writes more than
    /// [`Tokenizer::within`] allows.
    pub fn chat_text(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let template = self.1.template.as_deref().ok_or_else(|| Error::ChatTemplate { message: "the tokenizer has none".into() })?;
        let name = |id: Option<u32>| id.and_then(|id| self.0.inner.id_to_token(id)).unwrap_or_default();
        let messages = messages.iter().map(|m| {
            let reasoning = m.reasoning.as_deref().map(|reasoning| ("reasoning_content", reasoning));
            [("role", m.role.as_str()), ("content", m.content.as_str())].into_iter().chain(reasoning).collect()
        });
        let (bos_token, eos_token) = (name(self.0.bos), name(self.0.eos_token));
        let mut variables = vec![
            ("messages", Variable::Messages(messages.collect())),
            ("add_generation_prompt", Variable::Bool(add_generation_prompt)),
            ("bos_token", Variable::Str(&bos_token)),
            ("eos_token", Variable::Str(&eos_token)),
        ];
        variables.extend(self.1.thinking.map(|thinking| ("enable_thinking", Variable::Bool(thinking))));
        jinja::render(template, &variables, self.most_bytes()).map_err(|refusal| match refusal {
            Refusal::TooLong { bytes } => match self.check_length(bytes) {
                Err(error) => error,
                Ok(()) => Error::ChatTemplate { message: format!("it writes {bytes} bytes") },
            },
            Refusal::Faulty(message) => Error::ChatTemplate { message },
        })
    }
}
