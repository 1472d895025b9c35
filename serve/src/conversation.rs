//! Conversations of requests.

use crate::{
    error::{ApiError, Result},
    fields::{Fields, kind},
};
use bitnet_wgpu::model::Message;
use serde_json::Value;

/// The most messages of a conversation.
pub const MOST_MESSAGES: usize = 4096;

/// Reads the messages of a conversation.
pub fn messages(value: Option<Value>, strict: bool) -> Result<Vec<Message>> {
    let wrong = |what: &str| ApiError::field("messages", what);
    let Some(value) = value else { return Err(ApiError::missing("messages")) };
    let Value::Array(list) = value else { return Err(wrong("expected a list")) };
    if list.is_empty() || list.len() > MOST_MESSAGES {
        return Err(wrong(&format!("{} messages; 1 to {MOST_MESSAGES} are accepted", list.len())));
    }
    list.into_iter()
        .enumerate()
        .map(|(n, value)| message(&format!("messages[{n}]"), value, strict))
        .collect()
}

/// Takes the role of a message of OpenAI's APIs.
pub fn role(fields: &mut Fields) -> Result<&'static str> {
    match fields.text("role")?.as_deref() {
        // Newer models of OpenAI call it so.
        Some("system" | "developer") => Ok("system"),
        Some("user") => Ok("user"),
        Some("assistant") => Ok("assistant"),
        Some(_) => Err(fields.wrong("role", "expected system, developer, user or assistant")),
        None => Err(fields.missing("role")),
    }
}

fn message(place: &str, value: Value, strict: bool) -> Result<Message> {
    let mut fields = Fields::new(place, value)?;
    let role = role(&mut fields)?;
    let content = fields.take("content").ok_or_else(|| fields.missing("content"))?;
    let text = text_of(&fields.name("content"), content, &["text"])?;
    let reasoning = if role == "assistant" { fields.text("reasoning_content")? } else { None };
    // Templates do not know names.
    fields.text("name")?.map_or(Ok(()), |_| fields.refuse_if(strict, "name"))?;
    // An answer of this server may come back as it was.
    fields.unsupported(&[
        ("tool_calls", &["[]"]),
        ("function_call", &[]),
        ("audio", &[]),
        ("annotations", &["[]"]),
        ("refusal", &[]),
    ])?;
    fields.end()?;
    Ok(Message::new(role, text).reasoning(reasoning))
}

/// Reads a text, or the texts of parts whose type is one of `types`.
pub fn text_of(place: &str, content: Value, types: &[&str]) -> Result<String> {
    match content {
        Value::String(text) => Ok(text),
        Value::Array(parts) => parts
            .into_iter()
            .enumerate()
            .map(|(n, part)| text_part(&format!("{place}[{n}]"), part, types))
            .collect(),
        other => {
            let what = format!("expected a string or a list of texts, found {}", kind(&other));
            Err(ApiError::field(place, what))
        }
    }
}

fn text_part(place: &str, part: Value, types: &[&str]) -> Result<String> {
    let mut fields = Fields::new(place, part)?;
    if !fields.text("type")?.is_some_and(|it| types.contains(&it.as_str())) {
        let what = format!("only `{}` is supported", types.join("` or `"));
        return Err(fields.wrong("type", what));
    }
    // Of answers that come back, and hints about caching.
    fields.harmless(&["annotations", "logprobs", "cache_control", "citations"], false)?;
    let text = fields.text("text")?.ok_or_else(|| fields.missing("text"))?;
    fields.end()?;
    Ok(text)
}
