//! Tools of requests: functions that the model may call, its calls and their results.

use crate::{
    error::{ApiError, Result, shown},
    fields::{Fields, kind},
};
use bitnet_wgpu::{
    Error,
    model::{Grammar, Tokenizer, Tool, ToolCall, ToolCallParser, ToolChoice},
};
use serde_json::{Map, Value};
use std::{collections::HashSet, sync::Arc};

/// The most tools of a request, as in OpenAI's API.
pub const MOST_TOOLS: usize = 128;
/// The most calls of a message.
const MOST_CALLS: usize = 128;

/// Whose form a request has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Api {
    Chat,
    Responses,
    Messages,
}

/// Tools of a request.
pub struct Tools {
    pub tools: Arc<[Tool]>,
    pub choice: ToolChoice,
    /// Whether an answer may have several calls.
    pub parallel: bool,
}

impl Tools {
    /// Takes the tools of a request, and how the model may call them. None where it may not.
    pub fn take(fields: &mut Fields, api: Api) -> Result<Option<Self>> {
        let list = match fields.take("tools") {
            None => Vec::new(),
            Some(Value::Array(list)) if list.len() <= MOST_TOOLS => list,
            Some(_) => {
                return Err(
                    fields.wrong("tools", format!("expected a list of at most {MOST_TOOLS} tools"))
                );
            }
        };
        let (choice, single) = choice(fields, api)?;
        let Some(choice) = choice else { return Ok(None) };
        let tools = list.into_iter().enumerate();
        let tools: Vec<Tool> = tools
            .map(|(n, value)| tool(fields.nested(&format!("tools[{n}]"), value)?, api))
            .collect::<Result<_>>()?;
        let mut names = HashSet::new();
        if let Some(twice) = tools.iter().find(|tool| !names.insert(tool.name())) {
            return Err(
                fields.wrong("tools", format!("two tools have the name `{}`", twice.name()))
            );
        }
        match &choice {
            ToolChoice::Named(name) if !names.contains(name.as_str()) => {
                let what = format!("`{}` is not in `tools`", shown(name));
                Err(fields.wrong("tool_choice", what))
            }
            ToolChoice::Required if tools.is_empty() => {
                Err(fields.wrong("tool_choice", "there are no `tools`"))
            }
            // Without tools, whether there may be several calls is nothing to check.
            _ if tools.is_empty() => Ok(None),
            _ => {
                let parallel = fields.flag_or("parallel_tool_calls", !single)?;
                Ok(Some(Self { tools: tools.into(), choice, parallel }))
            }
        }
    }

    /// Returns the tokenizer that tells the model of the tools, and a parser of its calls.
    pub fn prepare(&self, tokenizer: &Tokenizer) -> Result<(Tokenizer, ToolCallParser)> {
        let wrong = |error| ApiError::library("tools", &error);
        let tokenizer = tokenizer.with_tools(self.tools.clone()).map_err(wrong)?;
        let parser = ToolCallParser::new(&tokenizer).map_err(wrong)?;
        Ok((tokenizer, parser))
    }

    /// Returns the grammar of the answer, unless the model writes what it wants. Where text has a
    /// format, it does not.
    pub fn grammar(&self, parser: &ToolCallParser, has_format: bool) -> Result<Option<Grammar>> {
        let is_held = has_format || !self.parallel || self.tools.iter().any(Tool::is_strict);
        if self.choice == ToolChoice::Auto && !is_held {
            return Ok(None);
        }
        let grammar = parser.grammar(&self.choice, self.parallel);
        let grammar = grammar.map_err(|error| ApiError::library("tools", &error))?;
        Ok(Some(grammar.after_reasoning(true)))
    }
}

/// Takes `tool_choice`: none where no tool may be called, and whether there may be one call only.
fn choice(fields: &mut Fields, api: Api) -> Result<(Option<ToolChoice>, bool)> {
    let mut value = match fields.take("tool_choice") {
        None => return Ok((Some(ToolChoice::Auto), false)),
        Some(Value::String(choice)) if api != Api::Messages => {
            let choice = match choice.as_str() {
                "none" => None,
                "auto" => Some(ToolChoice::Auto),
                "required" => Some(ToolChoice::Required),
                _ => {
                    let expected = "expected none, auto, required or a function";
                    return Err(fields.wrong("tool_choice", expected));
                }
            };
            return Ok((choice, false));
        }
        Some(value) => fields.nested("tool_choice", value)?,
    };
    let single = api == Api::Messages && value.flag("disable_parallel_tool_use")?;
    let choice = match (api, value.text("type")?.as_deref()) {
        (Api::Messages, Some("none")) => None,
        (Api::Messages, Some("auto")) => Some(ToolChoice::Auto),
        (Api::Messages, Some("any")) => Some(ToolChoice::Required),
        (Api::Messages, Some("tool")) | (Api::Responses, Some("function")) => {
            let name = value.text("name")?.ok_or_else(|| value.missing("name"))?;
            Some(ToolChoice::Named(name))
        }
        (Api::Chat, Some("function")) => {
            let function = value.take("function").ok_or_else(|| value.missing("function"))?;
            let mut function = value.nested("function", function)?;
            let name = function.text("name")?.ok_or_else(|| function.missing("name"))?;
            function.end()?;
            Some(ToolChoice::Named(name))
        }
        (Api::Messages, _) => return Err(value.wrong("type", "expected none, auto, any or tool")),
        _ => return Err(value.wrong("type", "only `function` is supported")),
    };
    value.end()?;
    Ok((choice, single))
}

/// Reads a tool.
fn tool(mut fields: Fields, api: Api) -> Result<Tool> {
    let expected = if api == Api::Messages { "custom" } else { "function" };
    match fields.text("type")? {
        None if api == Api::Chat => return Err(fields.missing("type")),
        Some(kind) if kind != expected => {
            return Err(fields.wrong("type", format!("only `{expected}` is supported")));
        }
        _ => {}
    }
    if api == Api::Chat {
        let function = fields.take("function").ok_or_else(|| fields.missing("function"))?;
        let inner = fields.nested("function", function)?;
        std::mem::replace(&mut fields, inner).end()?;
    }
    let schema = if api == Api::Messages { "input_schema" } else { "parameters" };
    // Hints about caching.
    fields.harmless(&["cache_control"])?;
    let name = fields.text("name")?.ok_or_else(|| fields.missing("name"))?;
    let parameters = match fields.take(schema) {
        Some(Value::Object(schema)) => schema,
        Some(other) => {
            return Err(fields.wrong(schema, format!("expected an object, found {}", kind(&other))));
        }
        None => Map::new(),
    };
    let wrong = |field, error| match error {
        Error::Invalid { what, .. } => fields.wrong(field, what),
        error => ApiError::library(&fields.name(field), &error),
    };
    Tool::new(&name, "{}").map_err(|error| wrong("name", error))?;
    let tool = Tool::new(&name, &Value::Object(parameters).to_string());
    let tool = tool.map_err(|error| wrong(schema, error))?;
    let tool = tool.strict(fields.flag("strict")?);
    let description = fields.text("description")?;
    fields.end()?;
    Ok(match description {
        Some(description) => tool.description(description),
        None => tool,
    })
}

/// Takes the calls of an assistant's message of `/v1/chat/completions`.
pub fn take_calls(fields: &mut Fields) -> Result<Vec<ToolCall>> {
    match fields.take("tool_calls") {
        None => Ok(Vec::new()),
        Some(Value::Array(calls)) if calls.len() <= MOST_CALLS => {
            let calls = calls.into_iter().enumerate();
            let read = |(n, value): (usize, Value)| {
                chat_call(fields.nested(&format!("tool_calls[{n}]"), value)?)
            };
            calls.map(read).collect()
        }
        Some(_) => {
            Err(fields
                .wrong("tool_calls", format!("expected a list of at most {MOST_CALLS} calls")))
        }
    }
}

fn chat_call(mut fields: Fields) -> Result<ToolCall> {
    if fields.text("type")?.is_some_and(|kind| kind != "function") {
        return Err(fields.wrong("type", "only `function` is supported"));
    }
    let id = fields.text("id")?.ok_or_else(|| fields.missing("id"))?;
    // Of streams.
    fields.harmless(&["index"])?;
    let function = fields.take("function").ok_or_else(|| fields.missing("function"))?;
    let mut function = fields.nested("function", function)?;
    fields.end()?;
    let call = call(&mut function, id)?;
    function.end()?;
    Ok(call)
}

/// Takes the name and the arguments of a call.
pub fn call(fields: &mut Fields, id: String) -> Result<ToolCall> {
    let name = fields.text("name")?.ok_or_else(|| fields.missing("name"))?;
    let arguments = fields.text("arguments")?.ok_or_else(|| fields.missing("arguments"))?;
    // Some clients send nothing for a call without arguments.
    let arguments = if arguments.trim().is_empty() { "{}".into() } else { arguments };
    if serde_json::from_str::<Map<String, Value>>(&arguments).is_err() {
        return Err(fields.wrong("arguments", "expected a JSON object as a string"));
    }
    Ok(ToolCall { id, name, arguments })
}

/// Ids of the calls of a conversation, which results must have.
#[derive(Default)]
pub struct CallIds(HashSet<String>);

impl CallIds {
    /// Takes the calls of a message.
    pub fn add(&mut self, calls: &[ToolCall]) {
        self.0.extend(calls.iter().map(|call| call.id.clone()));
    }

    /// Takes the id of an earlier call from the field of a result.
    pub fn take(&self, fields: &mut Fields, field: &str) -> Result<String> {
        let id = fields.text(field)?.ok_or_else(|| fields.missing(field))?;
        if self.0.contains(&id) {
            return Ok(id);
        }
        let what = format!("no earlier message has a tool call of the id `{}`", shown(&id));
        Err(fields.wrong(field, what))
    }
}
