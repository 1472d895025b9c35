//! `bitnet tokenize`

use crate::{TALES, answers, fails, json, succeeds};

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
