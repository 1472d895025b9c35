//! What an answer must be: `response_format` of OpenAI's API, fields of vLLM and of llama.cpp.

use crate::{
    error::{ApiError, Result},
    fields::Fields,
};
use bitnet_wgpu::model::Grammar;
use serde_json::Value;

/// The most texts to choose from.
const MOST_CHOICES: usize = 1000;
/// Fields of a request: those of vLLM's older versions, and two of llama.cpp.
const FIELDS: [(&str, Form); 6] = [
    ("guided_json", Form::Schema),
    ("guided_regex", Form::Regex),
    ("guided_choice", Form::Choice),
    ("guided_grammar", Form::Grammar),
    ("json_schema", Form::Schema),
    ("grammar", Form::Grammar),
];
/// Fields of `structured_outputs`.
const STRUCTURED: [(&str, Form); 5] = [
    ("json", Form::Schema),
    ("regex", Form::Regex),
    ("grammar", Form::Grammar),
    ("choice", Form::Choice),
    ("json_object", Form::Json),
];

/// What an answer must be.
pub struct Format {
    pub grammar: Grammar,
    /// The field that it comes from.
    pub field: String,
}

impl Format {
    /// Has the format begin after the model's reasoning.
    pub fn after_reasoning(self, after_reasoning: bool) -> Self {
        Self { grammar: self.grammar.after_reasoning(after_reasoning), ..self }
    }
}

/// What a field has.
#[derive(Clone, Copy)]
enum Form {
    Schema,
    Regex,
    /// GBNF or Lark.
    Grammar,
    Choice,
    /// Whether it is any JSON object.
    Json,
}

/// Reads the format of a completion or a chat, if there is one.
pub fn read(fields: &mut Fields) -> Result<Option<Format>> {
    let mut found = Vec::new();
    if let Some(value) = fields.take("response_format") {
        found.extend(format(fields.nested("response_format", value)?, Some("json_schema"))?);
    }
    if let Some(outputs) = fields.take("structured_outputs") {
        found.push(structured(fields.nested("structured_outputs", outputs)?)?);
    }
    found.extend(take(fields, &FIELDS)?);
    one(found)
}

/// Takes the format of a conversation by another API.
pub fn take_format(fields: &mut Fields) -> Result<Option<Format>> {
    let Some(value) = fields.take("format") else { return Ok(None) };
    let format = format(fields.nested("format", value)?, None)?;
    Ok(format.map(|format| format.after_reasoning(true)))
}

/// Returns the only format. Two are an error that names them.
fn one(mut found: Vec<Format>) -> Result<Option<Format>> {
    if let [first, second, ..] = &found[..] {
        let what = format!("only one of it and `{}` is accepted", first.field);
        return Err(ApiError::field(&second.field, what));
    }
    Ok(found.pop())
}

/// Reads a format, whose schema is in another object where it is `nested`.
fn format(mut fields: Fields, nested: Option<&str>) -> Result<Option<Format>> {
    let kind = fields.text("type")?.ok_or_else(|| fields.missing("type"))?;
    let format = match (kind.as_str(), nested) {
        ("text", _) => None,
        ("json_object", _) => {
            // Of llama.cpp.
            let schema = take(&mut fields, &[("schema", Form::Schema)])?.pop();
            let any = || Format { grammar: Grammar::json(), field: fields.place().into() };
            Some(schema.unwrap_or_else(any))
        }
        ("json_schema", Some(field)) if !fields.has("schema") => {
            let inner = fields.take(field).ok_or_else(|| fields.missing(field))?;
            let mut inner = fields.nested(field, inner)?;
            let format = named_schema(&mut inner)?;
            inner.end()?;
            Some(format)
        }
        ("json_schema", _) => Some(named_schema(&mut fields)?),
        _ => {
            let what = "expected `text`, `json_object` or `json_schema`";
            return Err(fields.wrong("type", what));
        }
    };
    fields.end()?;
    Ok(format)
}

/// Reads a schema with its name. An answer fulfills it, whether `strict` is true or not.
fn named_schema(fields: &mut Fields) -> Result<Format> {
    // OpenAI's API needs a name.
    fields.text("name")?;
    if fields.text("description")?.is_some() {
        fields.ineffective("description")?;
    }
    if fields.choice("strict")? == Some(false) {
        fields.ineffective("strict")?;
    }
    let schema = take(fields, &[("schema", Form::Schema)])?.pop();
    schema.ok_or_else(|| fields.missing("schema"))
}

/// Reads `structured_outputs`, which has one of several fields.
fn structured(mut fields: Fields) -> Result<Format> {
    // With what the grammars are compiled.
    fields.harmless(&["backend", "disable_fallback"])?;
    let found = take(&mut fields, &STRUCTURED)?;
    fields.end()?;
    one(found)?.ok_or_else(|| {
        let what = "expected one of `json`, `regex`, `grammar`, `choice` and `json_object`";
        ApiError::field("structured_outputs", what)
    })
}

/// Takes the formats that are in some fields.
fn take(fields: &mut Fields, forms: &[(&str, Form)]) -> Result<Vec<Format>> {
    let mut found = Vec::new();
    for &(field, form) in forms {
        if !fields.has(field) {
            continue;
        }
        let made = match form {
            Form::Json if !fields.flag(field)? => continue,
            Form::Json => Ok(Grammar::json()),
            Form::Schema => Grammar::json_schema(&schema(fields.take(field).unwrap_or_default())),
            Form::Choice => Grammar::lark(&choices(fields, field)?),
            Form::Regex => Grammar::regex(&fields.text(field)?.unwrap_or_default()),
            Form::Grammar => Grammar::detect(&fields.text(field)?.unwrap_or_default()),
        };
        let field = fields.name(field);
        let grammar = made.map_err(|error| ApiError::library(&field, &error))?;
        found.push(Format { grammar, field });
    }
    Ok(found)
}

/// A schema, which may be in a string.
fn schema(value: Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The grammar of one of some texts, in Lark's syntax.
fn choices(fields: &mut Fields, field: &str) -> Result<String> {
    let list = fields.take(field).unwrap_or_default();
    let list = list.as_array().filter(|list| (1..=MOST_CHOICES).contains(&list.len()));
    // Strings of Lark are written as in JSON.
    let text = |choice: &Value| choice.is_string().then(|| choice.to_string());
    let choices: Option<Vec<String>> = list.and_then(|list| list.iter().map(text).collect());
    let choices = choices.ok_or_else(|| {
        fields.wrong(field, format!("expected a list of 1 to {MOST_CHOICES} strings"))
    })?;
    Ok(format!("start: {}", choices.join(" | ")))
}
