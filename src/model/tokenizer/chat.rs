//! Chat templates: a conversation as the text that a model expects.

use super::text::Tokenizer;
use crate::error::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value, context};

/// A template is a program from an untrusted file, so its steps are limited; these suffice for ten thousand messages.
const FUEL: u64 = 10_000_000;

/// A turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`.
    pub role: String,
    /// What they say.
    pub content: String,
}

impl Message {
    /// A turn.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

impl Tokenizer {
    /// Is there a chat template?
    pub fn has_chat_template(&self) -> bool {
        self.0.template.is_some()
    }

    /// The tokens of a conversation, ending where the assistant's turn begins. As in transformers, only the template inserts BOS, and names
    /// of special tokens within a message become those tokens.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`], [`Error::Tokenizer`].
    pub fn chat(&self, messages: &[Message]) -> Result<Vec<u32>> {
        self.encode_plain(&self.chat_text(messages, true)?)
    }

    /// A conversation as text, rendered by the model's template, with or without the beginning of the assistant's turn. Templates see the
    /// variables of transformers except the date, tools and documents.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] if there is no template, or if it is faulty or refuses the messages.
    pub fn chat_text(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let template = self.0.template.as_deref().ok_or_else(|| Error::ChatTemplate { message: "the tokenizer has none".into() })?;
        let name = |id: Option<u32>| id.and_then(|id| self.0.inner.id_to_token(id)).unwrap_or_default();
        let messages: Vec<Value> = messages.iter().map(|m| context! { role => m.role.as_str(), content => m.content.as_str() }).collect();
        let (bos_token, eos_token) = (name(self.0.bos), name(self.0.eos_token));
        let context = context! { messages, add_generation_prompt, bos_token, eos_token };
        let template = without_generation_tags(template);
        let text = environment().and_then(|environment| environment.render_str(&template, context));
        text.map_err(|e| Error::ChatTemplate { message: e.to_string() })
    }
}

/// A template with the tags `{% generation %}` and `{% endgeneration %}` replaced. They mark the assistant's words for training, and change the text
/// no more than a scope of variables does.
fn without_generation_tags(template: &str) -> String {
    let (mut replaced, mut rest) = (String::new(), template);
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        let Some(end) = tag.find("%}") else { break };
        let name = tag[..end].trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        let scope = match name {
            "generation" => "with",
            "endgeneration" => "endwith",
            other => other,
        };
        replaced += before;
        replaced += &tag[..end].replacen(name, scope, 1);
        rest = &tag[end..];
    }
    replaced + rest
}

/// Jinja with the settings of transformers.
fn environment() -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    Ok(environment)
}
