//! Templates against transformers, hostile templates, contexts and limits.

mod context;
mod hostile;
mod ordered;
mod published;
mod rendering;

use chat_template::{Error, Limits, LocalTime, Template};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Deserialize, Serialize)]
struct Message {
    role: String,
    content: String,
}

#[derive(Serialize)]
struct Conversation<'a> {
    messages: &'a [Message],
    add_generation_prompt: bool,
    bos_token: &'a str,
    eos_token: &'a str,
}

impl<'a> Conversation<'a> {
    fn new(messages: &'a [Message], add_generation_prompt: bool) -> Self {
        let (bos_token, eos_token) = ("<|begin_of_text|>", "<|end_of_text|>");
        Self { messages, add_generation_prompt, bos_token, eos_token }
    }
}

fn message(role: &str, content: impl Into<String>) -> Message {
    Message { role: role.into(), content: content.into() }
}

fn user(content: &str) -> [Message; 1] {
    [message("user", content)]
}

fn render(template: &str, messages: &[Message]) -> Result<String, Error> {
    let conversation = Conversation::new(messages, true);
    Template::parse(template)?.render(&conversation, &Limits::default())
}

fn error(template: &str) -> String {
    render(template, &[]).unwrap_err().to_string()
}
