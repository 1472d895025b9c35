//! What the schema of a tool says of one argument.

use serde_json::Value;

/// Parts of a schema that are looked at for one argument; what lies beyond may be anything.
const MOST_PARTS: usize = 1000;

/// An argument's part of the schema of a tool.
#[derive(Clone, Copy)]
pub(super) struct Argument<'a> {
    /// The whole schema, to which references are.
    pub root: &'a Value,
    pub part: &'a Value,
}

impl<'a> Argument<'a> {
    /// Returns what a part refers to, or the part itself.
    pub fn resolved(self) -> Self {
        let mut part = self.part;
        for _ in 0..MOST_PARTS {
            let only = part.as_object().is_some_and(|fields| fields.len() == 1);
            match self.target(part).filter(|_| only) {
                Some(target) => part = target,
                None => break,
            }
        }
        Self { part, ..self }
    }

    /// Returns whether it is text as it stands: whether only strings are allowed.
    pub fn is_text(self) -> bool {
        let others = ["null", "boolean", "integer", "number", "array", "object"];
        self.allows("string") && !others.iter().any(|kind| self.allows(kind))
    }

    /// Returns whether the schema allows values of a type. It may say so where none conforms.
    pub fn allows(self, kind: &str) -> bool {
        let mut left = MOST_PARTS;
        self.part_allows(self.part, kind, &mut left)
    }

    fn part_allows(self, part: &Value, kind: &str, left: &mut usize) -> bool {
        let Some(less) = left.checked_sub(1) else { return true };
        *left = less;
        let Value::Object(fields) = part else { return *part != Value::Bool(false) };
        let is_kind = |name: &Value| name == kind || kind == "integer" && name == "number";
        let own = fields.iter().all(|(key, value)| match (key.as_str(), value) {
            ("type", Value::Array(names)) => names.iter().any(is_kind),
            ("type", name) => is_kind(name),
            ("const", value) => type_of(value) == kind,
            ("enum", Value::Array(values)) => {
                *left = left.saturating_sub(values.len());
                values.iter().any(|value| type_of(value) == kind)
            }
            ("anyOf" | "oneOf", Value::Array(parts)) => {
                parts.iter().any(|part| self.part_allows(part, kind, left))
            }
            ("allOf", Value::Array(parts)) => {
                parts.iter().all(|part| self.part_allows(part, kind, left))
            }
            _ => true,
        });
        own && self.target(part).is_none_or(|target| self.part_allows(target, kind, left))
    }

    /// Returns what a part refers to within the schema.
    fn target(self, part: &Value) -> Option<&'a Value> {
        self.root.pointer(part["$ref"].as_str()?.strip_prefix('#')?)
    }
}

/// Returns the type of a value in JSON. Of numbers, those without fraction and exponent are
/// integers.
pub(super) fn kind_of(json: &str) -> &'static str {
    match json.trim_ascii_start().as_bytes().first() {
        Some(b'"') => "string",
        Some(b'{') => "object",
        Some(b'[') => "array",
        Some(b't' | b'f') => "boolean",
        Some(b'n') => "null",
        _ if json.contains(['.', 'e', 'E']) => "number",
        _ => "integer",
    }
}

/// As [`kind_of`] its JSON.
fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn kinds(part: Value) -> Vec<&'static str> {
        let root = json!({
            "properties": { "a": { "type": "string" }, "b": part },
            "$defs": { "large": { "enum": vec![1; 1_000_000] }, "text": { "$ref": "#/properties/a" }, "loop": { "$ref": "#/$defs/loop" },
                       "many": { "anyOf": vec![json!({ "$ref": "#/$defs/many" }); 9] } },
            "type": "object",
        });
        let argument = Argument { root: &root, part: &root["properties"]["b"] };
        let kinds = ["null", "boolean", "integer", "number", "string", "array", "object"];
        kinds.into_iter().filter(|kind| argument.allows(kind)).collect()
    }

    #[test]
    fn types_are_found_by_references_and_choices() {
        let numbers = ["integer", "number"];
        assert_eq!(kinds(json!({ "type": "number" })), numbers);
        assert_eq!(kinds(json!({ "type": ["string", "null"] })), ["null", "string"]);
        assert_eq!(kinds(json!({ "$ref": "#/$defs/text" })), ["string"]);
        assert_eq!(kinds(json!({ "$ref": "#" })), ["object"]);
        assert_eq!(kinds(json!({ "enum": ["a", 1] })), ["integer", "string"]);
        assert_eq!(kinds(json!({ "enum": ["a", 1.5] })), ["number", "string"]);
        assert_eq!(kinds(json!({ "const": false })), ["boolean"]);
        let either = json!([{ "$ref": "#/$defs/text" }, { "type": "array" }]);
        assert_eq!(kinds(json!({ "anyOf": either })), ["string", "array"]);
        let both = json!([{ "type": ["string", "null"] }, { "type": ["null", "object"] }]);
        assert_eq!(kinds(json!({ "allOf": both })), ["null"]);
        assert!(kinds(json!(false)).is_empty());
        for any in [json!({}), json!(true), json!({ "$ref": "#/$defs/no" })] {
            assert_eq!(kinds(any).len(), 7);
        }
        // Of values that are many, few are looked at.
        let many = vec![json!({ "$ref": "#/$defs/large" }); 990];
        assert_eq!(kinds(json!({ "anyOf": many })).len(), 7);
        // References that have no end.
        for endless in ["loop", "many"] {
            assert_eq!(kinds(json!({ "$ref": format!("#/$defs/{endless}") })).len(), 7);
        }
    }
}
