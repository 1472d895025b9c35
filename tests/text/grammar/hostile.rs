//! Schemas, expressions and grammars that would take much memory or time.

use super::*;
use std::time::{Duration, Instant};

/// Makes a grammar in bounded time: it works or is an error, also when texts begin.
pub(super) fn made(what: &str, make: impl FnOnce() -> Result<Grammar>) {
    let begun = Instant::now();
    let result = make().and_then(|grammar| GrammarWalk::new(&grammar, &TOKENIZER, TOKENIZER.eos()));
    let time = begun.elapsed();
    let message = match result {
        Ok(_) => "accepted".to_owned(),
        Err(Error::Grammar { message }) => message,
        Err(other) => panic!("{what}: {other}"),
    };
    println!("{what}: {time:?}: {message}");
    assert!(time < Duration::from_secs(20), "{what}: {time:?}");
}

#[test]
fn hostile_schemas_are_bounded() {
    let nested = |open: &str, close: &str, depth: usize| {
        open.repeat(depth) + r#"{"type": "null"}"# + &close.repeat(depth)
    };
    let array = nested(r#"{"type": "array", "items": "#, "}", 60);
    made("arrays 60 deep", || Grammar::json_schema(&array));
    let array = nested(r#"{"type": "array", "items": "#, "}", 5000);
    made("arrays 5000 deep", || Grammar::json_schema(&array));
    let choice = nested(r#"{"anyOf": ["#, "]}", 60);
    made("choices 60 deep", || Grammar::json_schema(&choice));
    let all: Vec<String> = (0..20_000).map(|n| format!("\"value {n}\"")).collect();
    let all = format!(r#"{{"enum": [{}]}}"#, all.join(","));
    made("an enum of 20 000", || Grammar::json_schema(&all));
    let all: Vec<String> = (0..5000).map(|n| format!(r#""p{n}": {{"type": "string"}}"#)).collect();
    let all = format!(r#"{{"type": "object", "properties": {{{}}}}}"#, all.join(","));
    assert!(grammar_error(Grammar::json_schema(&all)).contains("too many properties"));
    made("a list of 10^9", || {
        Grammar::json_schema(
            r#"{"type": "array", "items": {"type": "null"}, "minItems": 1000000000}"#,
        )
    });
    made("a string of 10^9", || {
        Grammar::json_schema(r#"{"type": "string", "minLength": 1000000000}"#)
    });
    let long = format!(r#"{{"const": "{}"}}"#, "a".repeat(10 << 20));
    assert!(grammar_error(Grammar::json_schema(&long)).contains("at most 1048576"));
    let long = format!(r#"{{"const": "{}"}}"#, "a".repeat(1_000_000));
    made("a constant of 1 MB", || Grammar::json_schema(&long));
    let recursive = r##"{"$defs": {"n": {"type": "object", "properties": {"l": {"$ref": "#/$defs/n"}, "r": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}"##;
    made("a tree", || Grammar::json_schema(recursive));
    made("a reference to itself", || Grammar::json_schema(r##"{"$ref": "#"}"##));
    // Each definition refers twice to the next: 2^40 if it were expanded.
    let defs: Vec<String> = (0..40).map(|n| format!(r##""d{n}": {{"allOf": [{{"$ref": "#/$defs/d{0}"}}, {{"$ref": "#/$defs/d{0}"}}]}}"##, n + 1)).collect();
    let doubling = format!(
        r##"{{"$defs": {{{}, "d40": {{"type": "null"}}}}, "$ref": "#/$defs/d0"}}"##,
        defs.join(",")
    );
    made("doubling references", || Grammar::json_schema(&doubling));
    let chain = |length: usize| {
        let defs: Vec<String> =
            (0..length).map(|n| format!(r##""d{n}": {{"$ref": "#/$defs/d{}"}}"##, n + 1)).collect();
        let last = format!(r##""d{length}": {{"type": "null"}}"##);
        format!(r##"{{"$defs": {{{}, {last}}}, "$ref": "#/$defs/d0"}}"##, defs.join(","))
    };
    made("a chain of references", || Grammar::json_schema(&chain(1900)));
    assert!(grammar_error(Grammar::json_schema(&chain(20_000))).contains("references"));
    let (many, options): (Vec<_>, Vec<_>) =
        (0..900).map(|n| (format!(r#""p{n}": {{}}"#), "{}")).unzip();
    let beside = many.join(",");
    let multiplied = |times: usize| {
        let options = options.join(",").repeat(times).replace("}{", "},{");
        format!(r#"{{"type": "object", "properties": {{{beside}}}, "anyOf": [{options}]}}"#)
    };
    assert!(grammar_error(Grammar::json_schema(&multiplied(10))).contains("too many choices"));
    let one: Vec<String> = (0..12).map(|n| format!(r#"{{"anyOf": [{{"properties": {{"a{n}": {{"type": "null"}}}}}}, {{"properties": {{"b{n}": {{"type": "null"}}}}}}]}}"#)).collect();
    let product = format!(r#"{{"type": "object", "allOf": [{}]}}"#, one.join(","));
    made("a product of choices", || Grammar::json_schema(&product));
}

#[test]
fn hostile_expressions_are_bounded() {
    made("nested repetitions", || Grammar::regex("((a{1,1000}){1,1000}){1,1000}"));
    made("an exponential automaton", || Grammar::regex("(a|b)*a(a|b){60}"));
    made("a repetition of Unicode", || Grammar::regex(r"(\w{1,500}\s){1,500}"));
    made("parentheses", || Grammar::regex(&("(".repeat(20_000) + "a" + &")".repeat(20_000))));
    made("many choices", || {
        let words: Vec<String> = (0..20_000).map(|n| format!("w{n}x")).collect();
        Grammar::regex(&words.join("|"))
    });
    made("long", || Grammar::regex(&"ab".repeat(500_000)));
}

#[test]
fn hostile_grammars_are_bounded() {
    let parentheses = format!("start: {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000));
    made("parentheses", || Grammar::lark(&parentheses));
    let chain = |length: usize| {
        let rules: Vec<String> = (0..length).map(|n| format!("r{n}: r{}", n + 1)).collect();
        format!("start: r0\n{}\nr{length}: \"a\"", rules.join("\n"))
    };
    made("a chain of rules", || Grammar::lark(&chain(1900)));
    assert!(grammar_error(Grammar::lark(&chain(20_000))).contains("lines of rules"));
    made("ambiguity", || Grammar::lark("start: e\ne: e e | e e e | \"a\" | \"\""));
    made("repetition", || Grammar::lark("start: (\"a\" | \"b\"){1,1000000}"));
    let doubling: Vec<String> = (0..60).map(|n| format!("r{n}: r{0} r{0}", n + 1)).collect();
    made("doubling", || Grammar::lark(&format!("start: r0\n{}\nr60: \"a\"", doubling.join("\n"))));
    let json = format!("start: %json {}", r#"{"type":"array","items":"#.repeat(50_000));
    made("deep JSON", || Grammar::lark(&json));
    made("nested grammars", || {
        Grammar::lark(
            &("start: ".to_owned()
                + &"%lark {\nstart: ".repeat(2000)
                + "\"a\""
                + &"\n}".repeat(2000)),
        )
    });
    let tokens: String = (0..20_000).map(|n| format!("<t{n}> ")).collect();
    let tokens = format!("start: {tokens}");
    assert!(grammar_error(Grammar::lark(&tokens)).contains("20000 special tokens"));
}
