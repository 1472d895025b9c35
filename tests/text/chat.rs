//! Conversations as text.

use super::*;

#[test]
fn templates_write_what_transformers_writes() {
    let chat = data("chat.json");
    for case in chat["cases"].as_array().unwrap() {
        let tokenizer =
            with_template(chat["templates"][case["template"].as_str().unwrap()].as_str().unwrap());
        let turn = |turn: &Value| {
            Message::new(turn["role"].as_str().unwrap(), turn["content"].as_str().unwrap())
        };
        let messages: Vec<Message> =
            case["messages"].as_array().unwrap().iter().map(turn).collect();
        let text = tokenizer.chat_text(&messages, case["add_generation_prompt"].as_bool().unwrap());
        match case["text"].as_str() {
            Some(expected) => assert_eq!(text.unwrap(), expected, "{case}"),
            None => drop(message(text)),
        }
    }
}

/// Every construct of the language, one by one.
#[test]
fn pieces_of_templates_write_what_transformers_writes() {
    let chat = data("chat.json");
    let turn = |turn: &Value| {
        Message::new(turn["role"].as_str().unwrap(), turn["content"].as_str().unwrap())
    };
    let messages: Vec<Message> = chat["messages"].as_array().unwrap().iter().map(turn).collect();
    let mut wrong = Vec::new();
    for piece in chat["pieces"].as_array().unwrap() {
        let found = with_template(piece["template"].as_str().unwrap()).chat_text(&messages, true);
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
        assert_eq!(with_template(template).chat_text(&[], true).unwrap(), expected, "{template}");
    }
}

#[test]
fn a_conversation_becomes_tokens() {
    let tokenizer = with_template(data("chat.json")["templates"]["methods"].as_str().unwrap());
    let text = "<|begin_of_text|>USER|Hello<|end_of_text|>\nASSISTANT|";
    assert_eq!(tokenizer.chat(&user("Hello")).unwrap(), tokenizer.encode_plain(text).unwrap());
    assert_eq!(tokenizer.chat(&user("Hello")).unwrap()[0], 2046);
    // The shipped model's own.
    let said =
        [Message::new("user", " Who lived in the wood? "), Message::new("assistant", "A bear.")];
    let text = TOKENIZER.chat_text(&said, true).unwrap();
    assert_eq!(text, "<|begin_of_text|>Who lived in the wood?\nA bear.\n");
}

/// As Qwen3's template has it, which leaves reasoning out of turns before the last.
const THINKS: &str = "{% for m in messages %}{{ m.role }}|{% if m.reasoning_content is string %}({{ m.reasoning_content }}){% endif %}{{ m.content }}\n\
    {% endfor %}{% if add_generation_prompt %}assistant|{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n\
    {% endif %}{% endif %}";

#[test]
fn a_template_is_told_whether_the_model_reasons() {
    let tokenizer = with_template(THINKS);
    let text = |tokenizer: &Tokenizer| tokenizer.chat_text(&user("Hello"), true).unwrap();
    let [on, off] = [true, false].map(|thinking| tokenizer.with_thinking(thinking).unwrap());
    assert_eq!(
        (text(&tokenizer), text(&on)),
        ("user|Hello\nassistant|".into(), "user|Hello\nassistant|".to_owned())
    );
    assert_eq!(text(&off), "user|Hello\nassistant|<think>\n\n</think>\n\n");
    assert_eq!(text(&off.with_thinking(true).unwrap()), text(&on));
    let said = [
        Message::new("assistant", "Yes").reasoning(Some("Hm".into())),
        Message::new("assistant", "No"),
    ];
    assert_eq!(tokenizer.chat_text(&said, false).unwrap(), "assistant|(Hm)Yes\nassistant|No\n");
    // One that would not heed it, and none.
    for template in ["{{ messages[0].content }}", "{# enable_thinking #}A"] {
        assert!(
            message(with_template(template).with_thinking(false))
                .contains("does not know `enable_thinking`")
        );
        assert!(
            message(off.with_chat_template(template).with_thinking(true))
                .contains("does not know `enable_thinking`")
        );
    }
    assert_eq!(
        message(Directory::new().open().unwrap().with_thinking(true)),
        "the tokenizer has none"
    );
}

#[test]
fn an_answer_may_begin_within_reasoning() {
    let parts =
        |text: &str| Reasoning::after(&TOKENIZER, &TOKENIZER.encode(text).unwrap()).unwrap();
    assert!(
        parts("a<think>").is_open() && parts(&format!("{}<think>\n", "x ".repeat(500))).is_open()
    );
    assert!(
        !parts("").is_open()
            && !parts("<think>\n\n</think>\n\n").is_open()
            && !parts("<think> a").is_open()
    );
    assert!(Reasoning::after(&TOKENIZER, &[5000]).is_err());
    // As special tokens, marks have no text that could end the reasoning: all is the answer.
    let mut json: serde_json::Value = serde_json::from_slice(
        &std::fs::read(std::path::Path::new(TALES).join("tokenizer.json")).unwrap(),
    )
    .unwrap();
    let added = json["added_tokens"].as_array_mut().unwrap();
    let mut mark = added[0].clone();
    (mark["id"], mark["content"], mark["special"]) = (2048.into(), "<think>".into(), true.into());
    added.push(mark);
    let tokenizer = Directory::new().with("tokenizer.json", &json).open().unwrap();
    let mut parts = Reasoning::after(&tokenizer, &tokenizer.encode("a<think>").unwrap()).unwrap();
    assert!(!parts.is_open() && parts.push("so").answer == "so");
}

#[test]
fn a_template_may_be_one_of_several_or_a_file() {
    let several = json!({ "chat_template": [{ "name": "tool_use", "template": "T" }, { "name": "default", "template": "D" }] });
    let directory = Directory::new().with("tokenizer_config.json", &several);
    assert_eq!(directory.open().unwrap().chat_text(&[], false).unwrap(), "D");
    directory.0.write("chat_template.jinja", "F");
    assert_eq!(directory.open().unwrap().chat_text(&[], false).unwrap(), "F");
    let gguf = GgufVocabulary { chat_template: Some("G".into()), ..byte_level() };
    assert_eq!(Tokenizer::from_gguf(&gguf).unwrap().chat_text(&[], false).unwrap(), "G");
}

/// `{% generation %}` marks the assistant's words for training. In transformers it is a block, so
/// that what is set in it ends with it.
#[test]
fn the_generation_tag_changes_no_text() {
    let messages = [
        Message::new("user", "Hello"),
        Message::new("assistant", "Hi"),
        Message::new("user", "Bye"),
    ];
    let text = |template: &str| with_template(template).chat_text(&messages, true).unwrap();
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
    assert!(matches!(
        with_template("{% generation %}").chat_text(&messages, true),
        Err(Error::ChatTemplate { .. })
    ));
}

/// Limits are far from what conversations need.
#[test]
fn a_long_conversation_is_within_the_limits() {
    let chat = data("chat.json");
    let messages: Vec<_> = (0..10_000)
        .map(|i| Message::new(["user", "assistant"][i % 2], format!("{i} ").repeat(100)))
        .collect();
    for name in ["chatml", "llama3", "llama2", "qwen3", "mistral", "macros"] {
        let text = with_template(chat["templates"][name].as_str().unwrap())
            .chat_text(&messages, true)
            .unwrap();
        assert!(text.len() > 4_000_000, "{name}");
    }
    let gathered = "{% set ns = namespace(all='') %}{% for message in messages %}{% set ns.all = ns.all ~ message.role %}{% endfor %}{{ ns.all }}";
    assert_eq!(with_template(gathered).chat_text(&messages[..2000], true).unwrap().len(), 13_000);
    let long = [Message::new("user", "x".repeat(100_000_000))];
    assert!(
        with_template(chat["templates"]["llama3"].as_str().unwrap())
            .chat_text(&long, true)
            .unwrap()
            .len()
            > 100_000_000
    );
}

#[test]
fn bad_templates_are_errors() {
    let without = Directory::new().open().unwrap();
    assert_eq!(message(without.chat(&user("Hello"))), "the tokenizer has none");
    let error = |template: &str| message(with_template(template).chat(&user("Hello")));
    error("{% for %}");
    error("{{ messages | nothing }}");
    assert!(
        error("{{ raise_exception('roles must alternate') }}").contains("roles must alternate")
    );
    assert!(error("{{ '%d'|format(1) }}").contains("`format`: is no filter"));
    assert!(error("{{ 'a'|upper(1) }}").contains("`upper`: 1 arguments where 0 are taken"));
    // Ten thousand million steps.
    let endless =
        "{% for i in range(100000) %}{% for i in range(100000) %}{% endfor %}{% endfor %}";
    assert!(error(endless).contains("too many steps"), "{}", error(endless));
}
