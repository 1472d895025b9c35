//! Content blocks of Anthropic's messages: text, tool calls and their results.

use crate::{
    conversation::text_of,
    error::Result,
    fields::{Fields, kind},
    tools::CallIds,
};
use bitnet_wgpu::model::{Message, ToolCall};
use serde_json::{Map, Value};

/// Fields of reasoning that comes back.
const THINKING: [&str; 4] = ["type", "thinking", "signature", "data"];

/// Reads a message. Its results of tools become messages of their own, before its text.
pub fn turn(mut fields: Fields, calls: &mut CallIds) -> Result<Vec<Message>> {
    let role = fields.text("role")?.ok_or_else(|| fields.missing("role"))?;
    if role != "user" && role != "assistant" {
        return Err(fields.wrong("role", "expected user or assistant"));
    }
    let content = fields.take("content").ok_or_else(|| fields.missing("content"))?;
    let (place, strict) = (fields.name("content"), fields.is_strict());
    let blocks = match content {
        Value::Array(blocks) => blocks,
        content => {
            let text = text_of(&fields, "content", content, &["text"])?;
            fields.end()?;
            return Ok(vec![Message::new(role, text)]);
        }
    };
    fields.end()?;
    let (mut text, mut uses, mut messages) = (None, Vec::new(), Vec::new());
    for (n, block) in blocks.into_iter().enumerate() {
        let kind = block["type"].as_str().map(str::to_owned);
        let block = Fields::new(&format!("{place}[{n}]"), block, strict)?;
        match (role.as_str(), kind.as_deref()) {
            // Reasoning that comes back is left out.
            (_, Some("thinking" | "redacted_thinking")) => block.without_effect(&THINKING)?,
            ("assistant", Some("tool_use")) => uses.push(tool_use(block)?),
            ("user", Some("tool_result")) => messages.push(tool_result(block, calls)?),
            _ => *text.get_or_insert_with(String::new) += &text_block(block)?,
        }
    }
    calls.add(&uses);
    if text.is_some() || messages.is_empty() {
        messages.push(Message::new(role, text.unwrap_or_default()).tool_calls(uses));
    }
    Ok(messages)
}

fn text_block(mut fields: Fields) -> Result<String> {
    if fields.text("type")?.is_none_or(|kind| kind != "text") {
        let expected =
            "only `text`, `tool_use` of the assistant and `tool_result` of the user are supported";
        return Err(fields.wrong("type", expected));
    }
    fields.harmless(&["cache_control", "citations"])?;
    let text = fields.text("text")?.ok_or_else(|| fields.missing("text"))?;
    fields.end()?;
    Ok(text)
}

fn tool_use(mut fields: Fields) -> Result<ToolCall> {
    fields.take("type");
    fields.harmless(&["cache_control", "caller"])?;
    let id = fields.text("id")?.ok_or_else(|| fields.missing("id"))?;
    let name = fields.text("name")?.ok_or_else(|| fields.missing("name"))?;
    let input = match fields.take("input") {
        Some(Value::Object(input)) => input,
        Some(other) => {
            return Err(
                fields.wrong("input", format!("expected an object, found {}", kind(&other)))
            );
        }
        None => Map::new(),
    };
    fields.end()?;
    Ok(ToolCall { id, name, arguments: Value::Object(input).to_string() })
}

fn tool_result(mut fields: Fields, calls: &CallIds) -> Result<Message> {
    fields.take("type");
    fields.harmless(&["cache_control"])?;
    // Whether it is an error is in its text too.
    let is_error = fields.flag("is_error")?;
    let id = calls.take(&mut fields, "tool_use_id")?;
    let text = match fields.take("content") {
        Some(content) => text_of(&fields, "content", content, &["text"])?,
        None => String::new(),
    };
    fields.end()?;
    // Templates do not know errors.
    let text = if is_error && text.is_empty() { "error".into() } else { text };
    Ok(Message::tool_result(id, text))
}
