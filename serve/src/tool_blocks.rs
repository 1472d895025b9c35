//! Content blocks of Anthropic's messages: text, tool calls and their results.

use crate::{
    conversation::text_of,
    error::Result,
    fields::{Fields, kind},
    tools::CallIds,
};
use bitnet_wgpu::model::{Message, ToolCall};
use serde_json::{Map, Value};

/// Reads a message. Its results of tools become messages of their own, before its text.
pub fn turn(place: &str, value: Value, calls: &mut CallIds) -> Result<Vec<Message>> {
    let mut fields = Fields::new(place, value)?;
    let role = fields.text("role")?.ok_or_else(|| fields.missing("role"))?;
    if role != "user" && role != "assistant" {
        return Err(fields.wrong("role", "expected user or assistant"));
    }
    let content = fields.take("content").ok_or_else(|| fields.missing("content"))?;
    let place = fields.name("content");
    fields.end()?;
    let blocks = match content {
        Value::Array(blocks) => blocks,
        content => return Ok(vec![Message::new(role, text_of(&place, content, &["text"])?)]),
    };
    let (mut text, mut uses, mut messages) = (None, Vec::new(), Vec::new());
    for (n, block) in blocks.into_iter().enumerate() {
        let place = format!("{place}[{n}]");
        match (role.as_str(), block["type"].as_str()) {
            // Reasoning that comes back is left out.
            (_, Some("thinking" | "redacted_thinking")) => {}
            ("assistant", Some("tool_use")) => uses.push(tool_use(&place, block)?),
            ("user", Some("tool_result")) => messages.push(tool_result(&place, block, calls)?),
            _ => *text.get_or_insert_with(String::new) += &text_block(&place, block)?,
        }
    }
    calls.add(&uses);
    if text.is_some() || messages.is_empty() {
        messages.push(Message::new(role, text.unwrap_or_default()).tool_calls(uses));
    }
    Ok(messages)
}

fn text_block(place: &str, block: Value) -> Result<String> {
    let mut fields = Fields::new(place, block)?;
    if fields.text("type")?.is_none_or(|kind| kind != "text") {
        let expected =
            "only `text`, `tool_use` of the assistant and `tool_result` of the user are supported";
        return Err(fields.wrong("type", expected));
    }
    fields.harmless(&["cache_control", "citations"], false)?;
    let text = fields.text("text")?.ok_or_else(|| fields.missing("text"))?;
    fields.end()?;
    Ok(text)
}

fn tool_use(place: &str, block: Value) -> Result<ToolCall> {
    let mut fields = Fields::new(place, block)?;
    fields.harmless(&["type", "cache_control", "caller"], false)?;
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
    let input = Value::Object(input);
    if has_large_number(&input) {
        let what = "it has a number of more than 64 bits; pass it as a string";
        return Err(fields.wrong("input", what));
    }
    fields.end()?;
    Ok(ToolCall { id, name, arguments: input.to_string() })
}

/// Returns whether a value has a number that may have been an integer of more than 64 bits, and is
/// rounded.
fn has_large_number(value: &Value) -> bool {
    match value {
        Value::Number(number) => {
            number.is_f64() && number.as_f64().is_some_and(|number| number.abs() >= 9.2e18)
        }
        Value::Array(values) => values.iter().any(has_large_number),
        Value::Object(fields) => fields.values().any(has_large_number),
        _ => false,
    }
}

fn tool_result(place: &str, block: Value, calls: &CallIds) -> Result<Message> {
    let mut fields = Fields::new(place, block)?;
    // Whether it is an error is in its text too.
    fields.harmless(&["type", "cache_control"], false)?;
    let is_error = fields.flag("is_error")?;
    let id = calls.take(&mut fields, "tool_use_id")?;
    let text = match fields.take("content") {
        Some(content) => text_of(&fields.name("content"), content, &["text"])?,
        None => String::new(),
    };
    fields.end()?;
    // Templates do not know errors.
    let text = if is_error && text.is_empty() { "error".into() } else { text };
    Ok(Message::tool_result(id, text))
}
