//! Tools of a conversation: functions that a model may call, and its calls.

use crate::error::{Error, Result};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json, value::RawValue};
use std::hash::{BuildHasher, RandomState};

/// The longest name of a tool, in bytes, as in Anthropic's API.
const LONGEST_NAME: usize = 128;
/// Length of an id. Mistral's templates accept no other.
const ID: usize = 9;

/// A function that a model may call. [`Tokenizer::with_tools`](crate::model::Tokenizer::with_tools)
/// puts it into prompts.
///
/// ```
/// use bitnet_wgpu::model::Tool;
///
/// # fn main() -> bitnet_wgpu::Result<()> {
/// let schema = r#"{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}"#;
/// let weather = Tool::new("weather", schema)?.description("Tells the weather of a city.");
/// assert!(Tool::new("the weather", schema).is_err()); // a space in the name
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    name: String,
    description: Option<String>,
    parameters: Value,
    strict: bool,
}

impl Tool {
    /// Returns a tool of this name, whose arguments have this JSON schema: that of an object.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name of other characters than `a-z`, `A-Z`, `0-9`, `_`, `-` and `.`,
    /// or of more than 128, and for a schema that is not a JSON object or not of objects.
    pub fn new(name: impl Into<String>, parameters: &str) -> Result<Self> {
        let name = name.into();
        let invalid = |what: String| Error::Invalid { op: "tool", what };
        let is_plain = |c: u8| c.is_ascii_alphanumeric() || b"_-.".contains(&c);
        if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(is_plain) {
            let what = format!(
                "the name is not 1 to {LONGEST_NAME} characters of `a-z`, `A-Z`, `0-9`, `_`, `-` and `.`"
            );
            return Err(invalid(what));
        }
        let parameters: Map<String, Value> = serde_json::from_str(parameters).map_err(|error| {
            invalid(format!("the schema of `{name}` is not a JSON object: {error}"))
        })?;
        if parameters.get("type").is_some_and(|kind| kind != "object") {
            return Err(invalid(format!(
                "the schema of `{name}` is not of objects: expected `\"type\": \"object\"`"
            )));
        }
        Ok(Self { name, description: None, parameters: parameters.into(), strict: false })
    }

    /// Sets what the tool does, for the model to read.
    #[must_use]
    pub fn description(self, description: impl Into<String>) -> Self {
        Self { description: Some(description.into()), ..self }
    }

    /// Sets whether arguments must conform to the schema, also where the model may choose whether
    /// to call a tool. False by default.
    #[must_use]
    pub fn strict(self, strict: bool) -> Self {
        Self { strict, ..self }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether arguments must conform to the schema.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// The JSON schema of the arguments.
    pub(in crate::model) fn parameters(&self) -> &Value {
        &self.parameters
    }

    /// It as templates see it, in the form of OpenAI's API.
    pub(super) fn value(&self) -> Value {
        let mut function = json!({ "name": self.name });
        if let Some(description) = &self.description {
            function["description"] = description.as_str().into();
        }
        function["parameters"] = self.parameters.clone();
        json!({ "type": "function", "function": function })
    }
}

/// A model's call of a tool, in an assistant's [`Message`](crate::model::Message).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Identifies the call, for its result.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// The arguments: a JSON object, as the model wrote it.
    pub arguments: String,
}

impl ToolCall {
    /// Returns a call with a new random id of nine letters and digits.
    pub fn new(name: impl Into<String>, arguments: impl Into<String>) -> Self {
        Self { id: new_id(), name: name.into(), arguments: arguments.into() }
    }

    /// Checks that templates can write the arguments, whose integers have 64 bits there.
    pub(super) fn check(&self) -> Result<()> {
        let is_large = |text: &&str| text.parse::<i64>().is_err();
        let large = integers(&self.arguments).find(is_large);
        let Some(integer) = large.filter(|_| is_json(&self.arguments)) else { return Ok(()) };
        let name = &self.name;
        let message = format!(
            "arguments of `{name}`: the integer {integer:.40} is not a signed 64-bit integer; pass it as a string"
        );
        Err(Error::ChatTemplate { message })
    }

    /// It with the text of `change` for each text of the name and of the arguments.
    pub(super) fn changed(&self, change: &impl Fn(&str) -> String) -> Self {
        let arguments = match serde_json::from_str(&self.arguments) {
            Ok(value) => changed(value, change).to_string(),
            Err(_) => change(&self.arguments),
        };
        Self { id: change(&self.id), name: change(&self.name), arguments }
    }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok()
}

/// The integers of a JSON text, which are outside of its strings.
fn integers(json: &str) -> impl Iterator<Item = &str> {
    let (mut in_string, mut is_escaped) = (false, false);
    let others = json.split(move |c: char| {
        let is_inside = in_string;
        in_string = if in_string { is_escaped || c != '"' } else { c == '"' };
        is_escaped = is_inside && !is_escaped && c == '\\';
        is_inside || !matches!(c, '-' | '+' | '.' | 'e' | 'E' | '0'..='9')
    });
    others.filter(|text| !text.is_empty() && !text.contains(['.', 'e', 'E']))
}

/// Templates expect arguments as an object. What is not JSON stays a text.
impl Serialize for ToolCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let arguments: Value = serde_json::from_str(&self.arguments)
            .unwrap_or_else(|_| self.arguments.as_str().into());
        let function = json!({ "name": self.name, "arguments": arguments });
        json!({ "id": self.id, "type": "function", "function": function }).serialize(serializer)
    }
}

/// A JSON value with the text of `change` for each of its keys and strings.
pub(super) fn changed(value: Value, change: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => change(&text).into(),
        Value::Array(values) => values.into_iter().map(|value| changed(value, change)).collect(),
        Value::Object(entries) => {
            let entry = |(key, value): (String, _)| (change(&key), changed(value, change));
            Value::Object(entries.into_iter().map(entry).collect())
        }
        other => other,
    }
}

/// A random id of a call.
pub(in crate::model) fn new_id() -> String {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut random = RandomState::new().hash_one(0);
    let letter = |_| {
        let letter = LETTERS[(random % 36) as usize];
        random /= 36;
        char::from(letter)
    };
    (0..ID).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_schemas_are_checked() {
        let error = |name: &str, schema: &str| Tool::new(name, schema).unwrap_err().to_string();
        for name in ["", "a b", "ä", "a\"", "<f>", &"x".repeat(129)] {
            assert!(error(name, "{}").contains("the name is not 1 to 128"), "{name}");
        }
        for (schema, what) in [
            ("", "not a JSON object"),
            ("[]", "not a JSON object"),
            ("{\"type\": \"array\"}", "not of objects"),
            (&"{\"a\":".repeat(1000), "not a JSON object"),
        ] {
            assert!(error("f", schema).contains(what), "{schema}");
        }
        assert!(Tool::new("a-B.c_9", "{}").is_ok());
    }

    #[test]
    fn ids_are_short_and_differ() {
        let (a, b) = (new_id(), new_id());
        assert!(a != b && a.len() == 9 && a.bytes().all(|c| c.is_ascii_alphanumeric()));
    }

    #[test]
    fn integers_are_found_outside_of_strings() {
        let json = r#"{"a\\": -1, "b\"2": [3,"4\\\"5"], "c": true, "d": 6.0, "e":7e2, "f":89}"#;
        assert_eq!(integers(json).collect::<Vec<_>>(), ["-1", "3", "89"]);
        let call = |arguments: &str| ToolCall::new("f", arguments);
        let large = call(r#"{"a": [9223372036854775808]}"#).check().unwrap_err().to_string();
        assert!(large.contains("`f`: the integer 9223372036854775808 is not"), "{large}");
        for fine in [
            r#"{"a": -9223372036854775808, "b": "9223372036854775808"}"#,
            "9223372036854775808 is no JSON",
        ] {
            assert!(call(fine).check().is_ok());
        }
    }

    #[test]
    fn templates_see_arguments_in_order() {
        let call = ToolCall {
            id: "1".into(),
            name: "f".into(),
            arguments: r#"{"b": 1, "a": 2.0}"#.into(),
        };
        let seen = serde_json::to_string(&call).unwrap();
        assert!(
            seen.ends_with(r#""function":{"name":"f","arguments":{"b":1,"a":2.0}}}"#),
            "{seen}"
        );
        let call = call.changed(&|text| text.to_uppercase());
        assert_eq!((call.name.as_str(), call.arguments.as_str()), ("F", r#"{"B":1,"A":2.0}"#));
    }
}
