//! Calls in every form, in any pieces.

use super::{
    event::ToolCallEvent,
    format::{Body, Format, Part},
    parser::{ParsedAnswer, ToolCallParser},
};
use crate::model::tokenizer::{text::Tokenizer, tools::Tool};
use std::sync::Arc;

const WEATHER: &str = r#"{"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}"#;

const PLAN: &str = r##"{"type": "object", "properties": {
    "text": {"$ref": "#/$defs/text"}, "maybe": {"type": ["string", "null"]}, "next": {"$ref": "#"}
}, "$defs": {"text": {"type": "string"}}}"##;

fn tools() -> Arc<[Tool]> {
    [("weather", WEATHER), ("add", "{}"), ("plan", PLAN)]
        .map(|(name, schema)| Tool::new(name, schema).unwrap())
        .into()
}

fn format(open: &str, close: &str, body: Body) -> Format {
    let (before, after) = (String::new(), String::new());
    Format { open: open.into(), close: close.into(), before, after, special: None, body }
}

fn json(is_list: bool) -> Body {
    Body::Json { is_list, parts: Vec::new() }
}

fn parser(form: &str) -> ToolCallParser {
    let format = match form {
        "hermes" => format("<tool_call>", "</tool_call>", json(false)),
        "llama" => format("", "", json(false)),
        "mistral" => format("[TOOL_CALLS]", "", json(true)),
        "list" => format("", "", json(true)),
        "coder" => format("<tool_call>", "</tool_call>", Body::Functions),
        "functions" => format("", "", Body::Functions),
        _ => unreachable!("{form}"),
    };
    ToolCallParser::of(format, tools())
}

/// Events without ids, of which those of one kind that follow each other are one.
fn joined(events: Vec<ToolCallEvent>) -> Vec<ToolCallEvent> {
    use ToolCallEvent::{Arguments, Begin, Malformed, Text};
    let mut all: Vec<ToolCallEvent> = Vec::new();
    for event in events {
        match (all.last_mut(), event) {
            (Some(Text(text)), Text(more)) | (Some(Arguments(text)), Arguments(more)) => {
                *text += &more
            }
            (_, Begin { name, .. }) => all.push(Begin { id: String::new(), name }),
            (_, Malformed(text)) if text.is_empty() => panic!("nothing is malformed"),
            (_, event) => all.push(event),
        }
    }
    all
}

/// Without the arguments of calls that turn out malformed: how many pieces come before depends on
/// the pieces of the text.
fn settled(mut events: Vec<ToolCallEvent>) -> Vec<ToolCallEvent> {
    use ToolCallEvent::{Arguments, Malformed};
    let malformed: Vec<usize> =
        (1..events.len()).filter(|&i| matches!(events[i], Malformed(_))).collect();
    for i in malformed.into_iter().rev() {
        if matches!(events[i - 1], Arguments(_)) {
            events.remove(i - 1);
        }
    }
    events
}

fn events(form: &str, pieces: &[&str]) -> Vec<ToolCallEvent> {
    let mut parser = parser(form);
    let mut events: Vec<_> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    joined(events)
}

/// The text of an answer, and its calls as `NAME ARGUMENTS`.
fn answer(events: Vec<ToolCallEvent>) -> (String, Vec<String>) {
    let mut answer = ParsedAnswer::default();
    events.into_iter().for_each(|event| answer.add(event));
    let calls = answer.calls.into_iter();
    (answer.text, calls.map(|call| format!("{} {}", call.name, call.arguments)).collect())
}

/// Forms, answers, and what they are: text and calls.
const ANSWERS: [(&str, &str, &str, &[&str]); 43] = [
    (
        "hermes",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
        "",
        &[r#"weather {"city": "Oslo"}"#],
    ),
    (
        "hermes",
        "Let me see.\n\n<tool_call>{\"arguments\":{\"a\":[{}, \"}\\\"\"]}, \"name\":\"add\"}</tool_call>\n<tool_call>\n{\"name\": \"add\"}\n</tool_call>\n",
        "Let me see.",
        &[r#"add {"a":[{}, "}\""]}"#, "add {}"],
    ),
    (
        "hermes",
        "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call> And so.",
        " And so.",
        &["add {}"],
    ),
    (
        "hermes",
        "<tool_call>{\"type\": {}, \"name\": \"add\", \"arguments\": {\"ä\": \"東\"}, \"id\": 7}",
        "",
        &["add {\"ä\": \"東\"}"],
    ),
    (
        "hermes",
        "<tool_call>{\"name\": \"add\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
        "",
        &[r#"add {"a": 1}"#],
    ),
    (
        "hermes",
        "<tool_call>{\"name\": \"add\", \"arguments\": {}}<tool_call>{\"name\": \"add\", \"arguments\": {}}",
        "",
        &["add {}", "add {}"],
    ),
    // What is none.
    ("hermes", "No <tool_call> at all <tool_", "No <tool_call> at all <tool_", &[]),
    ("hermes", " \n", " \n", &[]),
    (
        "hermes",
        "{\"name\": \"add\", \"arguments\": {}}",
        "{\"name\": \"add\", \"arguments\": {}}",
        &[],
    ),
    (
        "hermes",
        "a\n<tool_call>{\"name\": \"sub\", \"arguments\": {}}</tool_call>",
        "a\n<tool_call>{\"name\": \"sub\", \"arguments\": {}}</tool_call>",
        &[],
    ),
    (
        "hermes",
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1",
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1",
        &[],
    ),
    (
        "hermes",
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": x}}</tool_call>",
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": x}}</tool_call>",
        &[],
    ),
    (
        "hermes",
        "<tool_call>{\"name\": \"add\", \"arguments\": {]}}</tool_call>",
        "<tool_call>{\"name\": \"add\", \"arguments\": {]}}</tool_call>",
        &[],
    ),
    (
        "hermes",
        "<tool_call>{\"name\": \"add\", \"arguments\": {}, \"arguments\": {}}",
        "<tool_call>{\"name\": \"add\", \"arguments\": {}, \"arguments\": {}}",
        &[],
    ),
    (
        "hermes",
        "<tool_call>{\"name\": \"add\", \"arguments\": 7}",
        "<tool_call>{\"name\": \"add\", \"arguments\": 7}",
        &[],
    ),
    (
        "hermes",
        "<tool_call>{\"name\": \"add\" ä <tool_call>{\"name\": \"add\"}",
        "<tool_call>{\"name\": \"add\" ä",
        &["add {}"],
    ),
    ("hermes", "<tool_call><tool_call>{\"name\": \"add\"}", "<tool_call>", &["add {}"]),
    // Nothing but a call, of which there may be several.
    (
        "llama",
        "{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}",
        "",
        &[r#"weather {"city": "Oslo"}"#],
    ),
    (
        "llama",
        " \n<|python_tag|>{\"name\": \"add\", \"parameters\": {}}; {\"name\": \"add\", \"parameters\": {\"a\": 1}}\n",
        "",
        &["add {}", r#"add {"a": 1}"#],
    ),
    ("llama", "<|python_tag|>print(1)", "<|python_tag|>print(1)", &[]),
    ("llama", "  <|python", "  <|python", &[]),
    ("llama", "{\"answer\": 4}", "{\"answer\": 4}", &[]),
    ("llama", "Four: {\"name\": \"add\"}", "Four: {\"name\": \"add\"}", &[]),
    ("llama", "{\"name\": \"add\"} is what I call;", " is what I call;", &["add {}"]),
    ("llama", "{\"name\": \"add\"};", ";", &["add {}"]),
    // Lists.
    (
        "mistral",
        "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {}}, {\"name\": \"weather\", \"arguments\": {\"days\": 2}, \"id\": \"x\"}]",
        "",
        &["add {}", r#"weather {"days": 2}"#],
    ),
    ("mistral", "So: [TOOL_CALLS][{\"name\": \"add\"}]!", "So:!", &["add {}"]),
    ("mistral", "[TOOL_CALLS] {\"name\": \"add\"}", "[TOOL_CALLS] {\"name\": \"add\"}", &[]),
    ("mistral", "[TOOL_CALLS][{\"name\": \"add\"},", ",", &["add {}"]),
    ("mistral", "[TOOL_CALLS] [] [", "[TOOL_CALLS] [] [", &[]),
    ("list", "[\n{\"name\": \"add\"},\n{\"name\": \"add\"}\n]\n", "", &["add {}", "add {}"]),
    ("list", "[1, 2]", "[1, 2]", &[]),
    // Qwen3-Coder.
    (
        "coder",
        "See:\n<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n12\n</parameter>\n</function>\n</tool_call>\n",
        "See:",
        &[r#"weather {"city": "12", "days": 12}"#],
    ),
    (
        "coder",
        "<tool_call><function=add><parameter=a>\n<b>\n\n</parameter><parameter=c>[1, {\"d\": null}]</parameter></function></tool_call>",
        "",
        &[r#"add {"a": "<b>\n", "c": [1, {"d": null}]}"#],
    ),
    // Numbers have all their digits, and types may be behind references.
    (
        "coder",
        "<tool_call><function=weather><parameter=days>-123456789012345678901234567890</parameter><parameter=x>[1e300, 0.10]</parameter></function></tool_call>",
        "",
        &[r#"weather {"days": -123456789012345678901234567890, "x": [1e300, 0.10]}"#],
    ),
    // No number that can be read again.
    (
        "coder",
        "<tool_call><function=weather><parameter=x>[1e400]</parameter></function></tool_call>",
        "",
        &[r#"weather {"x": "[1e400]"}"#],
    ),
    (
        "coder",
        "<tool_call><function=plan><parameter=text>12</parameter><parameter=maybe>null</parameter><parameter=next>{\"maybe\": \"x\"}</parameter></function></tool_call>",
        "",
        &[r#"plan {"text": "12", "maybe": null, "next": {"maybe": "x"}}"#],
    ),
    (
        "coder",
        "<tool_call><function=plan><parameter=maybe>12</parameter><parameter=text>\"a\"</parameter><parameter=next>True</parameter></function></tool_call>",
        "",
        &[r#"plan {"maybe": "12", "text": "\"a\"", "next": true}"#],
    ),
    (
        "coder",
        "<tool_call>\n<function=sub>\n</function>\n</tool_call>",
        "<tool_call>\n<function=sub>\n</function>\n</tool_call>",
        &[],
    ),
    (
        "coder",
        "<tool_call>\n<function=add>\n<parameter=a>\n1</parameter>\n<parameter=a>2</parameter></function>",
        "<tool_call>\n<function=add>\n<parameter=a>\n1</parameter>\n<parameter=a>2</parameter></function>",
        &[],
    ),
    // Values that contain the mark of their end.
    (
        "coder",
        "<tool_call><function=plan><parameter=text>\na </parameter> b</parameter>\n</parameter>\n<parameter=next>{\"maybe\": \"</parameter>\"}\n</parameter>\n</function></tool_call>",
        "",
        &[r#"plan {"text": "a </parameter> b</parameter>", "next": {"maybe": "</parameter>"}}"#],
    ),
    ("functions", "x <function=add>\n</function> y <function=", "x y <function=", &["add {}"]),
    (
        "functions",
        "<function=add>\n<parameter=a>\n1\n</parameter>\n",
        "<function=add>\n<parameter=a>\n1\n</parameter>\n",
        &[],
    ),
];

#[test]
fn answers_become_text_and_calls() {
    for (form, text, words, calls) in ANSWERS {
        let calls = calls.iter().map(|call| (*call).to_owned()).collect();
        assert_eq!(answer(events(form, &[text])), (words.to_owned(), calls), "{form}: {text}");
    }
}

#[test]
fn calls_are_the_same_in_any_pieces() {
    for (form, text, ..) in ANSWERS {
        let whole = events(form, &[text]);
        let characters: Vec<String> = text.chars().map(String::from).collect();
        let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
        assert_eq!(events(form, &characters), whole, "{form}: {text} by characters");
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        for &a in &places {
            assert_eq!(events(form, &[&text[..a], &text[a..]]), whole, "{form}: {text} cut at {a}");
        }
    }
}

/// Texts of fragments of calls, by a linear congruential generator.
#[test]
fn random_fragments_split_alike() {
    const FRAGMENTS: [&str; 24] = [
        "<tool_call>",
        "</tool_call>",
        "{\"name\": \"add\", \"arguments\": ",
        "{\"name\":\"weather\"",
        ", \"arguments\":",
        "{",
        "}",
        "[",
        "]",
        "\"a\": 1",
        ",",
        ";",
        "\n",
        " ",
        "                                        ",
        "ä",
        "\"",
        "\\",
        "[TOOL_CALLS]",
        "<function=add>",
        "<parameter=a>",
        "</parameter>",
        "</function>",
        "<|python_tag|>",
    ];
    let mut state = 7_u64;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut calls = 0;
    for n in 0..20_000 {
        let form = ["hermes", "llama", "mistral", "list", "coder", "functions"][n % 6];
        let count = random(14);
        let text: String = (0..count).map(|_| FRAGMENTS[random(FRAGMENTS.len())]).collect();
        let whole = settled(events(form, &[&text]));
        let mut pieces = Vec::new();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let piece = rest.chars().take(1 + random(9)).map(char::len_utf8).sum();
            pieces.push(&rest[..piece]);
            rest = &rest[piece..];
        }
        assert_eq!(settled(events(form, &pieces)), whole, "{form}: {pieces:?}");
        calls += whole.iter().filter(|event| **event == ToolCallEvent::End).count();
        if !whole.contains(&ToolCallEvent::End) {
            let text_of = |event| match event {
                ToolCallEvent::Text(text) | ToolCallEvent::Malformed(text) => text,
                _ => String::new(),
            };
            assert_eq!(
                whole.into_iter().map(text_of).collect::<String>(),
                text,
                "{form}: no text is lost"
            );
        }
    }
    assert!(calls > 30, "{calls}");
}

#[test]
fn arguments_come_in_pieces() {
    let mut parser = parser("hermes");
    assert_eq!(
        parser.push("Hm.\n<tool_call>\n{\"name\": \"add\", \"arg"),
        [ToolCallEvent::Text("Hm.".into())]
    );
    let events = parser.push("uments\": {\"a\"");
    assert!(
        matches!(&events[..], [ToolCallEvent::Begin { name, .. }, ToolCallEvent::Arguments(a)] if name == "add" && a == "{\"a\"")
    );
    assert_eq!(parser.push(": 1"), [ToolCallEvent::Arguments(": 1".into())]);
    assert_eq!(parser.push("}"), [ToolCallEvent::Arguments("}".into())]);
    assert_eq!(parser.push("}\n</tool_call>"), [ToolCallEvent::End]);
    assert!(parser.push("\n").is_empty() && parser.finish().is_empty());
}

/// Names are bounded, values are not.
#[test]
fn long_values_are_read() {
    for name in ["a".to_owned(), "x".repeat(1023), "x".repeat(1024)] {
        let value = "a 12 ".repeat(1000);
        let text = format!(
            "<tool_call><function=add><parameter={name}>\n{value}\n</parameter></function>"
        );
        let characters: Vec<&str> = (0..text.len()).map(|at| &text[at..=at]).collect();
        let expected = match name.len() {
            1024 => (text.clone(), Vec::new()),
            _ => (String::new(), vec![format!("add {{\"{name}\": \"{value}\"}}")]),
        };
        for pieces in [&[&*text][..], &characters] {
            assert_eq!(answer(events("coder", pieces)), expected);
        }
    }
}

#[test]
fn long_answers_take_linear_time() {
    for (form, part) in [
        ("hermes", "<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":[1]}}</tool_call>"),
        ("hermes", "<tool_call>{\""),
        ("hermes", "<tool_call>{\"a\":{\"arguments\":{}},"),
        ("hermes", " "),
        ("llama", "{\"name\":\"add\"};"),
        ("llama", "{\"arguments\":{"),
        ("list", "[{\"name\":\"add\"},"),
        ("coder", "<tool_call><function=add><parameter=a>"),
        ("functions", "<function=add><parameter=a>1</parameter>"),
    ] {
        let text = part.repeat(400_000 / part.len());
        let start = std::time::Instant::now();
        let whole = events(form, &[&text]);
        let bytes: Vec<&str> = (0..text.len()).map(|at| &text[at..=at]).collect();
        assert_eq!(events(form, &bytes), whole);
        // Quadratic time would be minutes.
        assert!(start.elapsed().as_secs() < 20, "{form}: {part}: {:?}", start.elapsed());
    }
}

/// The format of a template that writes `{call}` for a call in JSON.
fn form_of(template: &str) -> crate::Result<Format> {
    Format::of(&shipped().with_chat_template(template))
}

fn shipped() -> Tokenizer {
    Tokenizer::from_directory(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tales-22m")).unwrap()
}

#[test]
fn templates_show_their_form() {
    let template = |before: &str, call: &str, after: &str| {
        format!(
            "{{% for t in tools or [] %}}{{{{ t | tojson }}}}{{% endfor %}}{{% for m in messages %}}<{{{{ m.role }}}}>\n{{{{ m.content }}}}{{% if m.tool_calls %}}{{{{ '' }}}}{before}{{% for c in m.tool_calls %}}{call}{{% endfor %}}{{{{ '' }}}}{after}{{% endif %}}<end>{{% endfor %}}{{% if add_generation_prompt %}}<assistant>\n{{% endif %}}"
        )
    };
    let parts = |key: &str| {
        let text = |text: &str| Part::Text(text.into());
        vec![
            text("{\"name\": \""),
            Part::Name,
            text(&format!("\", \"{key}\": ")),
            Part::Arguments,
            text("}"),
        ]
    };
    let object = "{{ c.function | tojson }}";
    let by_parameters = "{\"name\": \"{{ c.function.name }}\", \"parameters\": {{ c.function.arguments | tojson }}, \"id\": \"{{ c.id }}\"}";
    let function = "<function={{ c.function.name }}>\n{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>";
    let body = |is_list, key| Body::Json { is_list, parts: parts(key) };
    let with = |format, before: &str, after: &str| Format {
        before: before.into(),
        after: after.into(),
        ..format
    };
    let special = Some(("<|begin_of_text|>".into(), shipped().token("<|begin_of_text|>").unwrap()));
    for (before, call, after, expected) in [
        (
            "\n<tool_call>\n",
            object,
            "\n</tool_call>",
            with(format("<tool_call>", "</tool_call>", body(false, "arguments")), "\n", "\n"),
        ),
        ("", by_parameters, "", format("", "", body(false, "parameters"))),
        ("[CALLS] [", object, "]", with(format("[CALLS]", "", body(true, "arguments")), " [", "]")),
        (
            "<calls>[\n",
            by_parameters,
            "\n]</calls>",
            with(format("<calls>", "</calls>", body(true, "parameters")), "[\n", "\n]"),
        ),
        (
            "\n<call>\n",
            function,
            "\n</call>",
            with(format("<call>", "</call>", Body::Functions), "\n", "\n"),
        ),
        ("", function, "", format("", "", Body::Functions)),
        // A special token has no text.
        (
            "<|begin_of_text|>",
            object,
            "",
            Format { special, ..format("", "", body(false, "arguments")) },
        ),
    ] {
        assert_eq!(
            form_of(&template(before, call, after)).unwrap(),
            expected,
            "{before}{call}{after}"
        );
    }
    let error = |template: &str| form_of(template).unwrap_err().to_string();
    assert!(error("{{ messages[0].content }}").contains("does not write tools"));
    assert!(error("{{ tools }}{{ messages[0].content }}").contains("does not write tool calls"));
    let python = template("", "{{ c.function.name }}({{ c.function.arguments }})", "");
    assert!(error(&python).contains("in a form that is not supported"), "{}", error(&python));
}
