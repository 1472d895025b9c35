//! Conversations as text.

use super::*;

#[test]
fn a_conversation_becomes_tokens() {
    let tokenizer = with_template(data("chat.json")["templates"]["methods"].as_str().unwrap());
    let text = "<|begin_of_text|>USER|Hello<|end_of_text|>\nASSISTANT|";
    assert_eq!(tokenizer.chat(&user("Hello")).unwrap(), tokenizer.encode_plain(text).unwrap());
    assert_eq!(tokenizer.chat(&user("Hello")).unwrap()[0], 2046);
    // Messages have the keys of transformers, in this order.
    let [hello] = user("Hello");
    let json = with_template("{{ messages | tojson }}")
        .chat_text(&[hello.reasoning(Some("Hm".into()))], false);
    assert_eq!(
        json.unwrap(),
        r#"[{"role": "user", "content": "Hello", "reasoning_content": "Hm"}]"#
    );
    // The shipped model's own.
    let said =
        [Message::new("user", " Who lived in the wood? "), Message::new("assistant", "A bear.")];
    let text = TOKENIZER.chat_text(&said, true).unwrap();
    assert_eq!(text, "<|begin_of_text|>Who lived in the wood?\nA bear.\n");
}

#[test]
fn templates_write_a_fixed_or_the_local_date() {
    let tokenizer = with_template("{{ strftime_now('%d %b %Y') }}{{ tools is none }}");
    let fixed = tokenizer.with_chat_time("2026-07-04".parse().unwrap());
    assert_eq!(fixed.chat_text(&user("Hello"), true).unwrap(), "04 Jul 2026True");
    let year = with_template("{{ strftime_now('%Y') }}").chat_text(&user("Hello"), true).unwrap();
    assert!(year.parse::<u32>().unwrap() >= 2026, "{year}");
    let invalid = "2026-02-30".parse::<LocalTime>().unwrap_err().to_string();
    assert!(invalid.starts_with("`2026-02-30` is not a date like 2026-07-04"), "{invalid}");
}

/// As Qwen3's template has it, which leaves reasoning out of turns before the last.
const THINKS: &str = "{% for m in messages %}{{ m.role }}|{% if m.reasoning_content is string %}({{ m.reasoning_content }}){% endif %}{{ m.content }}\n\
    {% endfor %}{% if add_generation_prompt %}assistant|{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n\
    {% endif %}{% endif %}";

#[test]
fn a_template_knows_whether_the_model_reasons() {
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
        |text: &str| ReasoningParser::after(&TOKENIZER, &TOKENIZER.encode(text).unwrap()).unwrap();
    assert!(
        parts("a<think>").is_open() && parts(&format!("{}<think>\n", "x ".repeat(500))).is_open()
    );
    assert!(
        !parts("").is_open()
            && !parts("<think>\n\n</think>\n\n").is_open()
            && !parts("<think> a").is_open()
    );
    assert!(ReasoningParser::after(&TOKENIZER, &[5000]).is_err());
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
    let mut parts =
        ReasoningParser::after(&tokenizer, &tokenizer.encode("a<think>").unwrap()).unwrap();
    assert!(!parts.is_open() && parts.push("so").answer == "so");
}

#[test]
fn template_files_win_over_lists() {
    let several = json!({ "chat_template": [{ "name": "tool_use", "template": "T" }, { "name": "default", "template": "D" }] });
    let directory = Directory::new().with("tokenizer_config.json", &several);
    assert_eq!(directory.open().unwrap().chat_text(&[], false).unwrap(), "D");
    directory.0.write("chat_template.jinja", "F");
    assert_eq!(directory.open().unwrap().chat_text(&[], false).unwrap(), "F");
    let gguf = GgufVocabulary { chat_template: Some("G".into()), ..byte_level() };
    assert_eq!(Tokenizer::from_gguf(&gguf).unwrap().chat_text(&[], false).unwrap(), "G");
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
    assert!(error("{{ 'a'|pprint }}").contains("`pprint`: is no filter"));
    assert!(error("{{ 'a'|upper(1) }}").contains("`upper`: 1 arguments where 0 are taken"));
    // Ten thousand million steps.
    let endless =
        "{% for i in range(100000) %}{% for i in range(100000) %}{% endfor %}{% endfor %}";
    assert!(error(endless).contains("too many steps"), "{}", error(endless));
}
