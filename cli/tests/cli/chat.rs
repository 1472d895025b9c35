//! `bitnet chat`

use crate::{Directory, TALES, answers, errors, fails, output_of};
use serde_json::Value;
use std::fs;

#[test]
fn chat_goes_on_after_invalid_utf8() {
    let arguments = ["chat", TALES, "--max-tokens", "3", "--cpu", "--json"];
    let output = output_of(&arguments, b"Tell me \xff a tale.\nAnother\n");
    assert!(
        output.status.success() && output.stdout.split(|&byte| byte == b'\n').count() == 3,
        "{}",
        errors(&output)
    );
    assert!(errors(&output).contains("the line is not UTF-8"), "{}", errors(&output));
    let repaired = output_of(&arguments, "Tell me \u{fffd} a tale.\nAnother\n".as_bytes());
    assert_eq!(output.stdout, repaired.stdout);
}

#[test]
fn chat_talks() {
    let arguments = ["chat", TALES, "--max-tokens", "10", "--cpu", "--json"];
    let lines = |input: &str| -> Vec<Value> {
        answers(&arguments, input).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let talk = lines("Tell me a tale.\n\nAnother\n");
    assert_eq!(talk.len(), 2);
    assert!(
        talk[1]["prompt_tokens"].as_u64() > talk[0]["prompt_tokens"].as_u64(),
        "the conversation goes on"
    );
    let anew = lines("Tell me a tale.\n/clear\nTell me a tale.\n/bye\nnot read\n");
    assert_eq!((anew.len(), &anew[0], &anew[1]), (2, &talk[0], &talk[0]));
    let text = answers(&["chat", TALES, "--max-tokens", "10", "--cpu"], "Tell me a tale.\n");
    assert_eq!(
        text.trim_end_matches('\n'),
        talk[0]["content"].as_str().unwrap().trim_end_matches('\n')
    );
    let full = answers(
        &["chat", TALES, "--max-tokens", "5", "--cpu", "--context-length", "20"],
        &format!("{}\n/clear\nHi\n", "word ".repeat(50)),
    );
    assert!(!full.trim().is_empty(), "what does not fit is left out, and the conversation goes on");
    fails(&["chat", TALES, "--context-length", "100000"], "to 512 tokens are accepted");
    let directory = Directory::new("chat");
    let plain = directory.model("", <[u8]>::to_vec);
    fs::remove_file(directory.path("chat_template.jinja")).unwrap();
    fails(&["chat", &plain], "chat template");
    fs::write(directory.path("template"), "{{ bos_token }}{{ messages[-1].content }}").unwrap();
    let with = [
        "chat",
        &plain,
        "--cpu",
        "--max-tokens",
        "5",
        "--json",
        "--chat-template",
        &directory.path("template"),
    ];
    let answer: Value = serde_json::from_str(&answers(&with, "Once upon a time\n")).unwrap();
    assert_eq!(answer["prompt_tokens"], 6);
    assert_eq!((&answer["reasoning"], &answer["reasoning_tokens"]), (&"".into(), &0.into()));
    // The shipped model does not reason, but what follows the mark counts as reasoning.
    fs::write(
        directory.path("template"),
        "{{ bos_token }}{{ messages[-1].content }}{% if enable_thinking %}<think>\n{% endif %}",
    )
    .unwrap();
    let thinking = [&with[..], &["--thinking", "on"]].concat();
    let reasons: Value = serde_json::from_str(&answers(&thinking, "Once upon a time\n")).unwrap();
    assert_eq!((&reasons["content"], &reasons["reasoning_tokens"]), (&"".into(), &5.into()));
    let reasoning = reasons["reasoning"].as_str().unwrap();
    let plain: Vec<_> = thinking.iter().copied().filter(|word| *word != "--json").collect();
    assert!(!reasoning.is_empty() && answers(&plain, "Once upon a time\n").trim() == reasoning);
    assert_eq!(
        answers(&[&plain[..], &["--hide-thinking"]].concat(), "Once upon a time\n").trim(),
        ""
    );
    let without: Value = serde_json::from_str(&answers(
        &[&with[..], &["--thinking", "off"]].concat(),
        "Once upon a time\n",
    ))
    .unwrap();
    assert_eq!(without, answer);
    // A name of a special token in a message is text, unless it is asked for.
    let tokens = |more: &[&str]| {
        let answer: Value =
            serde_json::from_str(&answers(&[&with[..], more].concat(), "a<|end_of_text|>\n"))
                .unwrap();
        answer["prompt_tokens"].as_u64().unwrap()
    };
    assert!(tokens(&["--special-tokens-in-content"]) == 3 && tokens(&[]) > 5);
    fails(&["chat", TALES, "--thinking", "on"], "does not know `enable_thinking`");
    fails(
        &["run", TALES, "Hi", "--thinking", "off"],
        "--chat-template, --thinking and --special-tokens-in-content need --chat",
    );
    fails(
        &["run", TALES, "--token-ids", "1,2", "--thinking", "off"],
        "--chat-template, --thinking and --special-tokens-in-content need --chat",
    );
}
