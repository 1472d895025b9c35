//! `bitnet tokenize`

use crate::{Directory, TALES, answers, bitnet, errors, fails, json, succeeds};
use std::fs;

#[test]
fn tokenize_shows_ids_and_texts() {
    let text = succeeds(&["tokenize", TALES, "Once upon"]);
    let shown = json(&["tokenize", TALES, "Once upon"]);
    let run = json(&["run", TALES, "Once upon", "--cpu", "--max-tokens", "0"]);
    assert_eq!(shown["token_ids"], run["prompt_token_ids"]);
    let ids = shown["token_ids"].as_array().unwrap();
    assert_eq!(text.lines().count(), ids.len());
    assert!(text.lines().last().unwrap().ends_with("\""), "{text}");
    assert_eq!(answers(&["tokenize", TALES], "Once upon\n"), text);
    let plain = json(&["tokenize", TALES, "Once upon", "--plain"]);
    assert_eq!(plain["token_ids"].as_array().unwrap().as_slice(), &ids[1..]);
    assert_eq!(plain["text"], "Once upon");
    let list: Vec<_> = ids[1..].iter().map(ToString::to_string).collect();
    assert_eq!(succeeds(&["tokenize", TALES, "--token-ids", &list.join(",")]), "Once upon\n");
    let chat = json(&["tokenize", TALES, "Once upon", "--chat"]);
    assert!(chat["token_ids"].as_array().unwrap().len() > ids.len(), "{chat}");
    fails(&["tokenize", TALES, "x", "--thinking", "on"], "need --chat");
    fails(&["tokenize", TALES, "--token-ids", "99999"], "99999");
}

#[test]
fn chat_templates_write_a_given_date() {
    let directory = Directory::new("date");
    let template = directory.path("template");
    fs::write(&template, "{{ strftime_now('%d %b %Y, %H:%M') }}|{{ messages[0].content }}")
        .unwrap();
    let chat = ["tokenize", TALES, "Hi", "--chat"];
    let with = |date: &str| {
        let more = ["--chat-template", &template, "--date", date];
        json(&[&chat[..], &more].concat())["text"].clone()
    };
    assert_eq!(with("2026-07-04"), "04 Jul 2026, 00:00|Hi");
    assert_eq!(with("2026-07-04T09:05:03"), "04 Jul 2026, 09:05|Hi");
    fails(&[&chat[..], &["--date", "2026-02-30"]].concat(), "is not a date like 2026-07-04");
    fails(&["tokenize", TALES, "Hi", "--date", "2026-07-04"], "--date");
    // The shipped model's template has no date.
    let output = bitnet(&[&chat[..], &["--date", "2026-07-04"]].concat()).output().unwrap();
    assert!(output.status.success() && errors(&output).contains("--date has no effect"));
}
