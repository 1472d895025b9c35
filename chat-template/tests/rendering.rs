//! Output against transformers, Python's `json` and Jinja2's documentation.

use super::*;
use serde_json::Value;

/// Goldens that tests/data/text/make.py writes.
fn goldens() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/text/chat.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn messages(of: &Value) -> Vec<Message> {
    Vec::deserialize(&of["messages"]).unwrap()
}

#[test]
fn templates_write_what_transformers_writes() {
    let chat = goldens();
    for case in chat["cases"].as_array().unwrap() {
        let source = &chat["templates"][case["template"].as_str().unwrap()];
        let template = Template::parse(source.as_str().unwrap()).unwrap();
        let messages = messages(case);
        let conversation =
            Conversation::new(&messages, case["add_generation_prompt"].as_bool().unwrap());
        let text = template.render(&conversation, &Limits::default());
        match case["text"].as_str() {
            Some(expected) => assert_eq!(text.unwrap(), expected, "{case}"),
            None => assert!(matches!(text, Err(Error::Render(_))), "{text:?}"),
        }
    }
}

/// Every construct of the language, one by one.
#[test]
fn pieces_of_templates_write_what_transformers_writes() {
    let chat = goldens();
    let messages = messages(&chat);
    let mut wrong = Vec::new();
    for piece in chat["pieces"].as_array().unwrap() {
        let found = render(piece["template"].as_str().unwrap(), &messages);
        if found.as_ref().ok().map(String::as_str) != piece["text"].as_str() {
            wrong.push(format!("{piece}\n  gives {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What filters take beside their value; the texts are those of Python's `json` and Jinja2's
/// documentation.
#[test]
fn arguments_of_filters_are_followed() {
    let cases = [
        ("{{ {'b': 1, 'a': 'é'} | tojson }}", r#"{"b": 1, "a": "é"}"#),
        ("{{ {'b': 1, 'a': 'é😀'} | tojson(true) }}", r#"{"b": 1, "a": "\u00e9\ud83d\ude00"}"#),
        (
            "{{ {'b': [1, {}], 'a': 2} | tojson(false, 1) }}",
            "{\n \"b\": [\n  1,\n  {}\n ],\n \"a\": 2\n}",
        ),
        (
            "{{ {'b': 1, 'a': [2, 3]} | tojson(separators=(',', ':'), sort_keys=true) }}",
            r#"{"a":[2,3],"b":1}"#,
        ),
        ("{{ ['b', 'A', 'a', 'B'] | unique | join }}", "bA"),
        ("{{ ['b', 'A', 'a', 'B'] | unique(case_sensitive=true) | join }}", "bAaB"),
        (
            "{{ ['b', 'A', 'a'] | sort | join }} {{ ['b', 'A', 'a'] | sort(true, true) | join }}",
            "Aab baA",
        ),
        (
            "{{ ['b', 'A'] | min }} {{ ['b', 'A'] | max(true) }} {{ [{'x': 3}, {'x': 1}] | min(attribute='x') }}",
            "A b {'x': 1}",
        ),
        (
            "{{ {'a': 2, 'b': 1} | dictsort(by='value') }} {{ {'b': 1, 'A': 2} | dictsort }}",
            "[('b', 1), ('a', 2)] [('A', 2), ('b', 1)]",
        ),
        (
            "{{ [{'a': {'b': 'x'}}] | map(attribute='a.b') | join }} {{ [[4, 5]] | map(attribute='1') | list }}",
            "x [5]",
        ),
        ("{{ 'a\\nb\\r\\nc\\x0bd\u{2028}e\\n'.splitlines() }}", "['a', 'b', 'c', 'd', 'e']"),
        ("{{ dict({1: 2}, a=3) }}", "{1: 2, 'a': 3}"),
    ];
    for (template, expected) in cases {
        assert_eq!(render(template, &[]).unwrap(), expected, "{template}");
    }
}

/// `{% generation %}` marks the assistant's words for training. In transformers it is a block, so
/// that what is set in it ends with it.
#[test]
fn the_generation_tag_changes_no_text() {
    let messages = [message("user", "Hello"), message("assistant", "Hi"), message("user", "Bye")];
    let text = |template: &str| render(template, &messages).unwrap();
    let template = |begin: &str, end: &str| {
        "{%- for message in messages %}\n  {{ message.role }}: ".to_owned()
            + begin
            + " {{ message.content }}\n"
            + end
            + "\n{% endfor %}|"
    };
    assert_eq!(
        text(&template("{% generation %}", "{% endgeneration %}")),
        text(&template("{% if true %}", "{% endif %}"))
    );
    assert_eq!(
        text(&template("{%- generation -%}", "{%-endgeneration-%}")),
        text(&template("{%- if true -%}", "{%- endif -%}"))
    );
    assert_eq!(
        text("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"),
        "21"
    );
    assert_eq!(text("{{ 'a {% generation' }}"), "a {% generation");
    assert!(matches!(render("{% generation %}", &messages), Err(Error::Syntax(_))));
}

/// Limits are far from what conversations need.
#[test]
fn a_long_conversation_is_within_the_limits() {
    let chat = goldens();
    let messages: Vec<_> = (0..10_000)
        .map(|i| message(["user", "assistant"][i % 2], format!("{i} ").repeat(100)))
        .collect();
    for name in ["chatml", "llama3", "llama2", "qwen3", "mistral", "macros"] {
        let text = render(chat["templates"][name].as_str().unwrap(), &messages).unwrap();
        assert!(text.len() > 4_000_000, "{name}");
    }
    let gathered = "{% set ns = namespace(all='') %}{% for message in messages %}{% set ns.all = ns.all ~ message.role %}{% endfor %}{{ ns.all }}";
    assert_eq!(render(gathered, &messages[..2000]).unwrap().len(), 13_000);
    let llama3 = chat["templates"]["llama3"].as_str().unwrap();
    assert!(render(llama3, &user(&"x".repeat(100_000_000))).unwrap().len() > 100_000_000);
}
