//! What an answer must be: `response_format` of OpenAI's API, and `structured_outputs` of vLLM.

use crate::{
    error::{ApiError, Result},
    fields::Fields,
};
use bitnet_wgpu::model::Grammar;
use serde_json::Value;

/// The most texts to choose from.
const MOST_CHOICES: usize = 1000;

/// Reads the grammar of a completion or a chat, if there is one.
pub fn read(fields: &mut Fields) -> Result<Option<Grammar>> {
    let grammar = match fields.take("response_format") {
        None => None,
        Some(value) => format(Fields::new("response_format", value)?, Some("json_schema"))?,
    };
    let Some(outputs) = fields.take("structured_outputs") else { return Ok(grammar) };
    if grammar.is_some() {
        let what = "only one of it and `response_format` is accepted";
        return Err(fields.wrong("structured_outputs", what));
    }
    structured(Fields::new("structured_outputs", outputs)?).map(Some)
}

/// Reads a format of `/v1/responses`.
pub fn read_text_format(value: Value) -> Result<Option<Grammar>> {
    format(Fields::new("text.format", value)?, None)
}

/// Reads a format, whose schema is in another object where it is `nested`.
fn format(mut fields: Fields, nested: Option<&str>) -> Result<Option<Grammar>> {
    let kind = fields.text("type")?.ok_or_else(|| fields.missing("type"))?;
    let grammar = match (kind.as_str(), nested) {
        ("text", _) => None,
        ("json_object", _) => Some(Grammar::json()),
        ("json_schema", None) => Some(named_schema(&mut fields)?),
        ("json_schema", Some(field)) => {
            let inner = fields.take(field).ok_or_else(|| fields.missing(field))?;
            let mut inner = Fields::new(&fields.name(field), inner)?;
            let grammar = named_schema(&mut inner)?;
            inner.end()?;
            Some(grammar)
        }
        _ => {
            let what = "expected `text`, `json_object` or `json_schema`";
            return Err(fields.wrong("type", what));
        }
    };
    fields.end()?;
    Ok(grammar)
}

/// Reads a schema with its name. An answer fulfills it, whether `strict` is true or not.
fn named_schema(fields: &mut Fields) -> Result<Grammar> {
    fields.text("name")?;
    fields.text("description")?;
    fields.choice("strict")?;
    let schema = fields.take("schema").ok_or_else(|| fields.missing("schema"))?;
    checked(fields, "schema", Grammar::json_schema(&schema.to_string()))
}

/// Reads `structured_outputs`, which has one of several fields.
fn structured(mut fields: Fields) -> Result<Grammar> {
    let mut grammars = Vec::new();
    if let Some(schema) = fields.take("json") {
        let schema = schema.as_str().map_or_else(|| schema.to_string(), str::to_owned);
        grammars.push(checked(&fields, "json", Grammar::json_schema(&schema))?);
    }
    if let Some(expression) = fields.text("regex")? {
        grammars.push(checked(&fields, "regex", Grammar::regex(&expression))?);
    }
    if let Some(source) = fields.text("grammar")? {
        grammars.push(checked(&fields, "grammar", Grammar::detect(&source))?);
    }
    if let Some(choices) = fields.take("choice") {
        let source = choices_source(&choices).ok_or_else(|| {
            fields.wrong("choice", format!("expected a list of 1 to {MOST_CHOICES} strings"))
        })?;
        grammars.push(checked(&fields, "choice", Grammar::lark(&source))?);
    }
    if fields.flag("json_object")? {
        grammars.push(Grammar::json());
    }
    fields.end()?;
    match <[Grammar; 1]>::try_from(grammars) {
        Ok([grammar]) => Ok(grammar),
        Err(found) => {
            let what = "expected one of `json`, `regex`, `grammar`, `choice` and `json_object`";
            let what = format!("{what}, found {}", found.len());
            Err(ApiError::field("structured_outputs", what))
        }
    }
}

/// The grammar of one of some texts.
fn choices_source(choices: &Value) -> Option<String> {
    let choices = choices.as_array().filter(|list| (1..=MOST_CHOICES).contains(&list.len()))?;
    // Strings of Lark are written as in JSON.
    let choices: Option<Vec<String>> =
        choices.iter().map(|choice| choice.is_string().then(|| choice.to_string())).collect();
    Some(format!("start: {}", choices?.join(" | ")))
}

fn checked(fields: &Fields, field: &str, made: bitnet_wgpu::Result<Grammar>) -> Result<Grammar> {
    made.map_err(|error| ApiError::library(&fields.name(field), &error))
}
