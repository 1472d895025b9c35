//! Conversations of requests.

use crate::{
    error::{ApiError, Result},
    fields::{Fields, kind},
    tools::{CallIds, take_calls},
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
    let mut calls = CallIds::default();
    let read = |(n, value): (usize, Value)| {
        let fields = Fields::new(&format!("messages[{n}]"), value, strict)?;
        message(fields, &mut calls)
    };
    list.into_iter().enumerate().map(read).collect()
}

/// Takes the role of a message of OpenAI's APIs, of which some have the role `tool`.
pub fn role(fields: &mut Fields, has_tool: bool) -> Result<&'static str> {
    match fields.text("role")?.as_deref() {
        // Newer models of OpenAI call it so.
        Some("system" | "developer") => Ok("system"),
        Some("user") => Ok("user"),
        Some("assistant") => Ok("assistant"),
        Some("tool") if has_tool => Ok("tool"),
        Some(_) => {
            let tool = if has_tool { ", assistant or tool" } else { " or assistant" };
            Err(fields.wrong("role", format!("expected system, developer, user{tool}")))
        }
        None => Err(fields.missing("role")),
    }
}

fn message(mut fields: Fields, calls: &mut CallIds) -> Result<Message> {
    let role = role(&mut fields, true)?;
    let tool_calls = match role {
        "assistant" => take_calls(&mut fields)?,
        _ => Vec::new(),
    };
    let text = match fields.take("content") {
        // An assistant that calls a tool need not say anything.
        None if tool_calls.is_empty() => return Err(fields.missing("content")),
        None => String::new(),
        Some(content) => text_of(&fields, "content", content, &["text"])?,
    };
    let reasoning = if role == "assistant" { fields.text("reasoning_content")? } else { None };
    let result = match role {
        "tool" => Some(calls.take(&mut fields, "tool_call_id")?),
        _ => None,
    };
    calls.add(&tool_calls);
    // Templates do not know names.
    fields.text("name")?.map_or(Ok(()), |_| fields.ineffective("name"))?;
    // An answer of this server may come back as it was.
    fields.unsupported(&[
        ("tool_calls", &["[]"]),
        ("function_call", &[]),
        ("audio", &[]),
        ("annotations", &["[]"]),
        ("refusal", &[]),
    ])?;
    fields.end()?;
    Ok(match result {
        Some(id) => Message::tool_result(id, text),
        None => Message::new(role, text).reasoning(reasoning).tool_calls(tool_calls),
    })
}

/// Reads the text of a field, or the texts of parts whose type is one of `types`.
pub fn text_of(fields: &Fields, field: &str, content: Value, types: &[&str]) -> Result<String> {
    match content {
        Value::String(text) => Ok(text),
        Value::Array(parts) => parts
            .into_iter()
            .enumerate()
            .map(|(n, part)| text_part(fields.nested(&format!("{field}[{n}]"), part)?, types))
            .collect(),
        other => {
            let what = format!("expected a string or a list of texts, found {}", kind(&other));
            Err(fields.wrong(field, what))
        }
    }
}

fn text_part(mut fields: Fields, types: &[&str]) -> Result<String> {
    if !fields.text("type")?.is_some_and(|it| types.contains(&it.as_str())) {
        let what = format!("only `{}` is supported", types.join("` or `"));
        return Err(fields.wrong("type", what));
    }
    // Of answers that come back, and hints about caching.
    // Texts of an answer come back with these.
    fields.take("annotations");
    fields.take("logprobs");
    fields.harmless(&["cache_control", "citations"])?;
    let text = fields.text("text")?.ok_or_else(|| fields.missing("text"))?;
    fields.end()?;
    Ok(text)
}
