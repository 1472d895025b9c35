//! What is wrong with a grammar is said when it is made.

use super::*;

#[test]
fn impossible_and_wrong_schemas_are_errors() {
    let cases = [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[1]", "a JSON schema is an object"),
        (r#"{"type": "strin"}"#, "strin"),
        (r#"{"type": "string", "minLength": 3, "maxLength": 2}"#, "Unsatisfiable"),
        (r#"{"type": "integer", "minimum": 3, "maximum": 2}"#, "minimum"),
        (r#"{"enum": []}"#, "Unsatisfiable"),
        ("false", "Unsatisfiable"),
        (r##"{"$ref": "#/$defs/nothing"}"##, "nothing"),
        (r##"{"$ref": "https://example.com/schema"}"##, "example.com"),
        (
            r##"{"$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}}, "$ref": "#/$defs/a"}"##,
            "no finite text",
        ),
        (r##"{"type": "array", "items": {"$ref": "#"}, "minItems": 1}"##, "no finite text"),
        (
            r#"{"type": "object", "minProperties": 2, "unevaluatedProperties": false}"#,
            "unevaluatedProperties",
        ),
    ];
    for (schema, expected) in cases {
        let message = grammar_error(Grammar::json_schema(schema));
        assert!(message.contains(expected), "{schema}: {message}");
        assert!(!message.contains("backtrace") && message.len() < 400, "{schema}: {message}");
    }
}
