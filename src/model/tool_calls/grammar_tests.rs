//! Random walks through grammars of calls: whatever the model prefers, the calls are valid.

use super::{
    format::{Body, Format, Part},
    parser::{ParsedAnswer, ToolCallParser, ToolChoice},
};
use crate::model::{
    generate::constraint::{ConstraintSource, is_allowed},
    grammar::source::Grammar,
    tokenizer::{text::Tokenizer, tools::Tool},
};
use serde_json::Value;

const SCHEMA: &str = r##"{
    "type": "object",
    "properties": {
        "city": { "type": "string", "enum": ["Oslo", "New \"York\""] },
        "days": { "$ref": "#/$defs/days" },
        "note": { "type": "string", "maxLength": 5 }
    },
    "required": ["city", "days"],
    "additionalProperties": false,
    "$defs": { "days": { "type": "integer", "minimum": 1, "maximum": 20 } }
}"##;

fn tokenizer() -> Tokenizer {
    Tokenizer::from_directory(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tales-22m")).unwrap()
}

fn tools(strict: bool) -> [Tool; 2] {
    let add = r#"{"properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}"#;
    [("weather", SCHEMA), ("add", add)]
        .map(|(name, schema)| Tool::new(name, schema).unwrap().strict(strict))
}

/// Formats of Hermes, Llama 3 and Mistral, and of Qwen3-Coder with and without a mark.
fn formats() -> [Format; 5] {
    let text = |text: &str| Part::Text(text.into());
    let parts = |key: &str| {
        let key = format!("\", \"{key}\": ");
        vec![text("{\"name\": \""), Part::Name, text(&key), Part::Arguments, text("}")]
    };
    let format = |[open, close, before, after]: [&str; 4], body| Format {
        open: open.into(),
        close: close.into(),
        before: before.into(),
        after: after.into(),
        special: None,
        body,
    };
    let json = |is_list, key| Body::Json { is_list, parts: parts(key) };
    [
        format(["<tool_call>", "</tool_call>", "\n", "\n"], json(false, "arguments")),
        format([""; 4], json(false, "parameters")),
        format(["[TOOL_CALLS]", "", " [", "]"], json(true, "arguments")),
        format(["<tool_call>", "</tool_call>", "\n", "\n"], Body::Functions),
        format([""; 4], Body::Functions),
    ]
}

/// Walks from a text on, and returns the answer; none if it has no end within 400 tokens.
fn walk(
    parser: &ToolCallParser,
    choice: &ToolChoice,
    parallel: bool,
    begin: &str,
    seed: u64,
) -> Option<String> {
    let tokenizer = tokenizer();
    let end = tokenizer.eos()[0];
    let grammar = parser.grammar(choice, parallel).unwrap();
    let mut state = grammar.begin(&tokenizer, &[], &[end]).unwrap();
    let mut ids = tokenizer.encode_plain(begin).unwrap();
    for &id in &ids {
        state.append(id).unwrap();
    }
    let mut random = seed;
    while !state.is_complete() && ids.len() < 400 {
        let allowed: Vec<u32> = (0..tokenizer.vocab_size() as u32)
            .filter(|id| is_allowed(state.allowed(), *id))
            .collect();
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut id = allowed[(random >> 33) as usize % allowed.len()];
        if allowed.contains(&end) && random >> 62 > 0 {
            id = end;
        }
        state.append(id).unwrap();
        if id == end {
            break;
        }
        ids.push(id);
    }
    (ids.len() < 400).then(|| tokenizer.decode(&ids).unwrap())
}

fn answer(mut parser: ToolCallParser, text: &str) -> ParsedAnswer {
    let mut answer = ParsedAnswer::default();
    [parser.push(text), parser.finish()].concat().into_iter().for_each(|event| answer.add(event));
    answer
}

/// Checks calls against what the schemas allow.
fn check(answer: &ParsedAnswer, text: &str) {
    for call in &answer.calls {
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
        let is_valid = match call.name.as_str() {
            "weather" => {
                ["Oslo", "New \"York\""].contains(&arguments["city"].as_str().unwrap())
                    && (1..=20).contains(&arguments["days"].as_u64().unwrap())
            }
            _ => arguments["a"].is_boolean() && arguments.as_object().unwrap().len() == 1,
        };
        assert!(is_valid, "{arguments} in {text}");
    }
}

#[test]
fn forced_calls_are_valid_whatever_comes() {
    let (mut several, mut ended) = (0, 0);
    for (n, format) in formats().into_iter().enumerate() {
        let parser = ToolCallParser::of(format, tools(false).into());
        for (choice, parallel) in [
            (ToolChoice::Required, true),
            (ToolChoice::Required, false),
            (ToolChoice::Named("weather".into()), true),
        ] {
            for seed in 0..6 {
                let Some(text) = walk(&parser, &choice, parallel, "", seed * 77 + 5) else {
                    continue;
                };
                let answer = answer(parser.clone(), &text);
                assert!(answer.text.is_empty() && !answer.calls.is_empty(), "{n}: {text}");
                assert!(
                    parallel && choice == ToolChoice::Required || answer.calls.len() == 1,
                    "{n}: {text}"
                );
                assert!(choice == ToolChoice::Required || answer.calls[0].name == "weather");
                check(&answer, &text);
                several += usize::from(answer.calls.len() > 1);
                ended += 1;
            }
        }
    }
    assert!(several > 3 && ended > 70, "{several} answers have several calls, {ended} have an end");
}

#[test]
fn strict_calls_are_valid_within_free_text() {
    for (n, format) in formats().into_iter().enumerate() {
        let has_text = !format.open.is_empty();
        let begin = format!("{}{}", if has_text { "Let me < see.\n" } else { "" }, format.mark());
        let parser = ToolCallParser::of(format, tools(true).into());
        for seed in 0..6 {
            let Some(text) = walk(&parser, &ToolChoice::Auto, true, &begin, seed * 77 + 5) else {
                continue;
            };
            // Without marks, the answer may be text.
            let answer = answer(parser.clone(), &text);
            let is_text = begin.is_empty() && !text.trim_start().starts_with(['{', '[']);
            assert!(is_text || !answer.calls.is_empty(), "{n}: {text}");
            assert_eq!(
                answer.text,
                if is_text {
                    &text
                } else {
                    begin.split('\n').next().unwrap().trim_end_matches("<function=")
                }
            );
            check(&answer, &text);
        }
    }
    let parser = ToolCallParser::of(formats()[0].clone(), tools(true).into());
    let text = walk(&parser, &ToolChoice::Auto, true, "Nothing to call.", 1);
    assert!(text.is_none_or(|text| text.starts_with("Nothing")));
}

#[test]
fn bad_schemas_are_errors_if_strict() {
    let grammar = |schema: &str, strict| {
        let tool = Tool::new("f", schema).unwrap().strict(strict);
        ToolCallParser::of(formats()[0].clone(), [tool].into()).grammar(&ToolChoice::Required, true)
    };
    for schema in [
        r#"{"type": "object", "properties": {"a": {"type": "strng"}}, "required": ["a"]}"#,
        r#"{"type": "object", "properties": {"a": false}, "required": ["a"]}"#,
    ] {
        let error = grammar(schema, true).unwrap_err().to_string();
        assert!(error.starts_with("grammar: schema of the tool `f`: "), "{error}");
        assert!(grammar(schema, false).is_ok());
    }
    let none = ToolCallParser::of(formats()[0].clone(), tools(false).into());
    assert!(none.grammar(&ToolChoice::Named("g".into()), true).is_err());
}

const ANSWER: &str = r#"{"type": "object", "properties": {"answer": {"type": "string", "maxLength": 6}}, "required": ["answer"], "additionalProperties": false}"#;

#[test]
fn answers_are_calls_or_formatted_text() {
    let (mut calls, mut texts) = (0, 0);
    for (n, format) in formats().into_iter().enumerate() {
        let text = Grammar::json_schema(ANSWER).unwrap();
        let parser = ToolCallParser::of(format, tools(false).into()).or_text(text);
        let [.., weather] = &parser.starts()[..2] else { unreachable!() };
        for begin in ["", "{\"answer\"", weather] {
            for seed in 0..4 {
                let seed = seed * 77 + 5;
                let Some(text) = walk(&parser, &ToolChoice::Auto, true, begin, seed) else {
                    continue;
                };
                let answer = answer(parser.clone(), &text);
                if answer.calls.is_empty() {
                    let value: Value = serde_json::from_str(&answer.text).unwrap();
                    assert!(value["answer"].is_string() && *weather != begin, "{n}: {text}");
                    texts += 1;
                } else {
                    assert!(answer.text.is_empty() && !begin.contains("answer"), "{n}: {text}");
                    check(&answer, &text);
                    calls += 1;
                }
            }
        }
    }
    assert!(calls > 20 && texts > 20, "{calls} answers have calls, {texts} are text");
}

/// Text of these formats may be what a call is: nothing but a valid call begins as one.
#[test]
fn text_cannot_begin_like_a_call() {
    let mut ended = 0;
    for (n, format) in formats().into_iter().enumerate() {
        for text in [Grammar::regex("(.|\n)*").unwrap(), Grammar::json()] {
            let parser = ToolCallParser::of(format.clone(), tools(false).into()).or_text(text);
            for start in parser.starts().iter().step_by(2) {
                // The last token of the start is another one, perhaps.
                for cut in [1, 3] {
                    let begin = &start[..start.len() - cut];
                    let seed = cut as u64 * 77 + 5;
                    let text = walk(&parser, &ToolChoice::Auto, true, begin, seed);
                    let Some(text) = text else { continue };
                    let answer = answer(parser.clone(), &text);
                    let begins = text.starts_with(start);
                    assert_eq!(!begins, answer.calls.is_empty(), "{n}: {text}");
                    check(&answer, &text);
                    ended += usize::from(begins);
                }
            }
        }
    }
    assert!(ended > 10, "{ended} answers have calls");
}

/// A text that is complete where a call would go on.
#[test]
fn text_may_be_the_mark_of_a_call() {
    let text = Grammar::regex("<tool_call>").unwrap();
    let parser = ToolCallParser::of(formats()[0].clone(), tools(false).into()).or_text(text);
    let (mut calls, mut texts) = (0, 0);
    for seed in 0..12 {
        let text = walk(&parser, &ToolChoice::Auto, true, "<tool_call>", seed * 77 + 5);
        let Some(text) = text else { continue };
        let answer = answer(parser.clone(), &text);
        check(&answer, &text);
        assert_eq!(answer.text, if answer.calls.is_empty() { "<tool_call>" } else { "" });
        calls += usize::from(!answer.calls.is_empty());
        texts += usize::from(answer.calls.is_empty());
    }
    assert!(calls > 0 && texts > 0, "{calls} answers have calls, {texts} are text");
}

/// Returns whether a grammar allows a text, by its tokens, from its beginning on or after
/// reasoning that has begun.
fn allows(grammar: &Grammar, prompt: &str, text: &str) -> bool {
    let tokenizer = tokenizer();
    let ids = |text: &str| tokenizer.encode_plain(text).unwrap();
    let mut state = grammar.begin(&tokenizer, &ids(prompt), &tokenizer.eos()[..1]).unwrap();
    ids(text).into_iter().all(|id| is_allowed(state.allowed(), id) && state.append(id).is_ok())
}

/// Models write line breaks behind `</think>`, which a format of any text allows.
#[test]
fn calls_may_follow_white_space() {
    const CALL: &str = "<tool_call>\n<function=add>\n<parameter=a>\n";
    let text = Grammar::regex("(.|\n)*").unwrap();
    let parser = ToolCallParser::of(formats()[3].clone(), tools(false).into()).or_text(text);
    let grammar = parser.grammar(&ToolChoice::Auto, true).unwrap();
    let reasoning = grammar.clone().after_reasoning(true);
    for (n, space) in ["", " ", "\n\n", " \n\t\r\n"].into_iter().enumerate() {
        for (grammar, prompt, before) in
            [(&grammar, "", ""), (&reasoning, "<think>\n", "Well.\n</think>")]
        {
            let call = |value: &str| format!("{before}{space}{CALL}{value}\n</parameter>\n");
            assert!(allows(grammar, prompt, &call("true")), "{n}");
            assert!(!allows(grammar, prompt, &call("7")), "{n}: held to the schema");
        }
        let call = format!("{space}{CALL}true\n</parameter>\n</function>\n</tool_call>");
        for at in (0..call.len()).filter(|at| call.is_char_boundary(*at)) {
            let (mut parser, mut parsed) = (parser.clone(), ParsedAnswer::default());
            let events = [parser.push(&call[..at]), parser.push(&call[at..]), parser.finish()];
            events.concat().into_iter().for_each(|event| parsed.add(event));
            assert_eq!((parsed.text.as_str(), parsed.calls.len()), ("", 1), "{n}");
        }
        let text = format!("{space}So <tool_call>");
        assert_eq!(answer(parser.clone(), &text).text, text);
        assert_eq!(answer(parser.clone(), space).text, space);
    }
}

/// Where a special token begins calls, it has no text: what follows it looks like a text that
/// begins as a call does, which is then one.
#[test]
fn texts_may_begin_as_special_calls() {
    let token = "<|begin_of_text|>";
    let special = Some((token.to_owned(), tokenizer().token(token).unwrap()));
    let ([open, close], before, after) = ([""; 2].map(String::from), "[".into(), "]".into());
    let format = Format { open, close, before, after, special, ..formats()[2].clone() };
    // Only texts that begin as calls do.
    let text = Grammar::regex(r#"\[\{"name": "add", "arguments": \{"a": true\}, "id": 7\}\]"#);
    let parser = ToolCallParser::of(format, tools(false).into()).or_text(text.unwrap());
    let grammar = parser.grammar(&ToolChoice::Auto, true).unwrap();
    let call = r#"[{"name": "add", "arguments": {"a": false}}]"#;
    assert!(allows(&grammar, "", call));
    assert!(!allows(&grammar, "", &call.replace("false", "7")));
    let parsed = answer(parser.clone(), call);
    assert_eq!((parsed.text.as_str(), parsed.calls.len()), ("", 1));
    // Behind the special token, nothing is reserved and nothing but a call comes.
    let tokenizer = tokenizer();
    let mut state = grammar.begin(&tokenizer, &[], &tokenizer.eos()[..1]).unwrap();
    state.append(tokenizer.token(token).unwrap()).unwrap();
    for id in tokenizer.encode_plain(call).unwrap() {
        assert!(is_allowed(state.allowed(), id));
        state.append(id).unwrap();
    }
    assert!(state.is_complete() || is_allowed(state.allowed(), tokenizer.eos()[0]));
    let required = parser.grammar(&ToolChoice::Required, true).unwrap();
    assert!(!allows(&required, "", call), "its special token comes first");
}

/// In the form of Qwen3-Coder, no grammar holds names of arguments apart that no schema names.
#[test]
fn arguments_are_named_once() {
    let grammar = |schema: &str, strict: bool| {
        let tool = Tool::new("f", schema).unwrap().strict(strict);
        let parser = ToolCallParser::of(formats()[4].clone(), [tool].into());
        parser.grammar(&ToolChoice::Required, true)
    };
    let call = |arguments: &[&str]| {
        let argument = |name: &&str| format!("<parameter={name}>\nx\n</parameter>\n");
        let arguments: String = arguments.iter().map(argument).collect();
        format!("<function=f>\n{arguments}</function>")
    };
    for schema in ["{}", r#"{"type": "object", "properties": {}}"#, r#"{"required": []}"#] {
        let grammar = grammar(schema, false).unwrap();
        assert!(allows(&grammar, "", &call(&[])), "{schema}");
        assert!(!allows(&grammar, "", &call(&["a"])), "{schema}");
    }
    // A schema that is not supported still has names.
    let unsupported =
        r#"{"properties": {"a": {"type": "strng"}, "b": {"type": "integer"}}, "required": ["a"]}"#;
    let any = grammar(unsupported, false).unwrap();
    for (arguments, is_right) in
        [(&["a"][..], true), (&["a", "b"], true), (&["b"], false), (&["a", "a"], false)]
    {
        assert_eq!(allows(&any, "", &call(arguments)), is_right, "{}", arguments.join(", "));
    }
    let long = format!(r#"{{"properties": {{"{}": {{}}}}}}"#, "x".repeat(1024));
    for (schema, expected) in [
        (r#"{"additionalProperties": {"type": "integer"}}"#, "`additionalProperties` needs `prop"),
        (r#"{"anyOf": [{"properties": {"a": {}}}]}"#, "`anyOf` needs `properties`"),
        (r#"{"properties": {"a>b": {}}}"#, "of the name `a>b`"),
        (&long, "names of up to 1023 bytes"),
    ] {
        for strict in [false, true] {
            let error = grammar(schema, strict).unwrap_err().to_string();
            let is_named = error.starts_with("grammar: schema of the tool `f`: ");
            assert!(is_named && error.contains(expected), "{error}");
        }
    }
    let fits = long.replace(&"x".repeat(1024), &"x".repeat(1023));
    assert!(allows(&grammar(&fits, true).unwrap(), "", &call(&[])));
}

#[test]
fn calls_within_formatted_text_are_text() {
    let text = r#"{"answer": "<tool_call>\n<function=add>\n</function>\n</tool_call>"}"#;
    let text = text.replace("\\n", "\n");
    for format in formats() {
        let parser =
            ToolCallParser::of(format.clone(), tools(false).into()).or_text(Grammar::json());
        for at in 0..text.len() {
            let mut parser = parser.clone();
            let mut parsed = ParsedAnswer::default();
            let events = [parser.push(&text[..at]), parser.push(&text[at..]), parser.finish()];
            events.concat().into_iter().for_each(|event| parsed.add(event));
            assert_eq!((parsed.text.as_str(), parsed.calls.len()), (text.as_str(), 0));
        }
    }
    let plain = ToolCallParser::of(formats()[3].clone(), tools(false).into());
    assert_eq!(answer(plain, &text).calls.len(), 1, "alone it is a call");
}

/// References of parts are to the whole schema, also to what only it has.
#[test]
fn arguments_with_references_conform() {
    const SCHEMA: &str = r##"{
        "type": "object",
        "properties": {
            "kind": { "$ref": "#/definitions/kind" },
            "count": { "$ref": "#/properties/size" },
            "size": { "type": "integer", "minimum": 1, "maximum": 3 },
            "next": { "anyOf": [{ "$ref": "#" }, { "type": "null" }] },
            "never": false
        },
        "required": ["kind", "count", "size"],
        "additionalProperties": false,
        "definitions": { "kind": { "type": "string", "enum": ["a", "b\"c"] } }
    }"##;
    let is_valid = |value: &Value| {
        let is_small = |key: &str| (1..=3).contains(&value[key].as_u64().unwrap());
        let is_kind = ["a", "b\"c"].contains(&value["kind"].as_str().unwrap());
        is_kind && is_small("count") && is_small("size") && value.get("never").is_none()
    };
    let (mut ended, mut nested) = (0, 0);
    for format in &formats()[3..] {
        let tool = Tool::new("f", SCHEMA).unwrap().strict(true);
        let parser = ToolCallParser::of(format.clone(), [tool].into());
        for seed in 0..12 {
            let text = walk(&parser, &ToolChoice::Required, false, "", seed * 77 + 5);
            let Some(text) = text else { continue };
            let [call] = &answer(parser.clone(), &text).calls[..] else { panic!("{text}") };
            let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
            assert!(is_valid(&arguments), "{text}");
            if arguments["next"].is_object() {
                assert!(is_valid(&arguments["next"]), "{text}");
                nested += 1;
            }
            ended += 1;
        }
    }
    assert!(ended > 10 && nested > 1, "{ended} calls, {nested} of them nested");
}
