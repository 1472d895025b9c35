//! Bounds of what llguidance is given, which recurses over references and copies what stands beside
//! choices.

use crate::{
    error::Result,
    limits::grammar::{
        MOST_BYTES, MOST_COPIED, MOST_DEPTH, MOST_PROPERTIES, MOST_REFERENCES, MOST_RULES,
    },
    model::tokenizer::vocabulary::failed,
};
use serde_json::Value;

/// Checks the length of a schema, an expression or a grammar.
pub fn check_length(source: &str) -> Result<()> {
    let length = source.len();
    at_most(length, MOST_BYTES, || format!("it has {length} bytes"))
}

/// Checks a grammar in Lark's syntax, and the schemas in it.
pub fn check_lark(grammar: &str) -> Result<()> {
    check_length(grammar)?;
    let mut depth = 0usize;
    for byte in grammar.bytes() {
        // Those in strings count too: few grammars nest ten deep.
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at_most(depth, MOST_DEPTH, || format!("brackets are nested {depth} deep"))?;
    }
    let rules = grammar.lines().filter(|line| line.contains(':')).count();
    at_most(rules, MOST_RULES, || format!("there are {rules} lines of rules"))?;
    for (at, mark) in grammar.match_indices("%json") {
        let mut values =
            serde_json::Deserializer::from_str(&grammar[at + mark.len()..]).into_iter();
        // What is no JSON is an error of the grammar's parser.
        if let Some(Ok(schema)) = values.next() {
            check_schema(&schema)?;
        }
    }
    Ok(())
}

/// Checks a schema.
pub fn check_schema(schema: &Value) -> Result<()> {
    let Cost { references, properties, copied } = cost(schema, schema.to_string().len());
    at_most(references, MOST_REFERENCES, || format!("there are {references} references"))?;
    if properties > MOST_PROPERTIES * MOST_PROPERTIES {
        let what = "too many properties; an object may have";
        return Err(failed(format!("{what} {MOST_PROPERTIES}, and several together fewer")));
    }
    if copied > MOST_COPIED {
        return Err(failed("too many choices in objects that have other keywords beside them"));
    }
    Ok(())
}

/// What takes stack, time and memory.
#[derive(Clone, Copy, Default)]
struct Cost {
    references: usize,
    /// Squares of the numbers of properties.
    properties: usize,
    /// Bytes of what stands beside choices, for each choice.
    copied: usize,
}

fn cost(schema: &Value, bytes: usize) -> Cost {
    let mut sum = Cost::default();
    let mut add = |part: &Value| {
        let more = cost(part, bytes);
        sum.references += more.references;
        sum.properties = sum.properties.saturating_add(more.properties);
        sum.copied = sum.copied.saturating_add(more.copied);
    };
    match schema {
        Value::Array(parts) => parts.iter().for_each(add),
        Value::Object(parts) => {
            parts.values().for_each(&mut add);
            let counts = ["anyOf", "oneOf", "enum"]
                .map(|key| parts.get(key).and_then(Value::as_array).map_or(0, Vec::len));
            let beside =
                ["properties", "patternProperties", "allOf", "items", "prefixItems", "$ref"];
            let several = counts.iter().filter(|&&count| count > 0).count() > 1;
            if several || beside.iter().any(|&key| parts.contains_key(key)) {
                let choices = counts.iter().sum::<usize>().saturating_mul(bytes);
                sum.copied = sum.copied.saturating_add(choices);
            }
            sum.references += usize::from(parts.contains_key("$ref"));
            let of = |key| parts.get(key).and_then(Value::as_object).map_or(0, |of| of.len());
            sum.properties = sum.properties.saturating_add(of("properties").saturating_pow(2));
        }
        _ => {}
    }
    sum
}

fn at_most(value: usize, most: usize, what: impl FnOnce() -> String) -> Result<()> {
    if value <= most {
        return Ok(());
    }
    Err(failed(format!("{}; at most {most} are accepted", what())))
}
