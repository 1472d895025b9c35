//! `bitnet chat`

use crate::{Directory, TALES, answers, errors, fails, output_of};
use serde_json::Value;
use std::fs;

#[test]
fn chat_goes_on_after_invalid_utf8() {
    let arguments = ["chat", TALES, "--max-tokens", "3", "--cpu", "--json", "--seed", "0"];
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
    let arguments = ["chat", TALES, "--max-tokens", "10", "--cpu", "--json", "--seed", "0"];
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
    let text = answers(
        &["chat", TALES, "--max-tokens", "10", "--cpu", "--seed", "0"],
        "Tell me a tale.\n",
    );
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
        "--seed",
        "0",
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
        "--chat-template, --thinking, --date and --special-tokens-in-content need --chat",
    );
    fails(
        &["run", TALES, "--token-ids", "1,2", "--thinking", "off"],
        "--chat-template, --thinking, --date and --special-tokens-in-content need --chat",
    );
}

const GREEDY: [&str; 3] = ["--greedy", "--seed", "0"];

/// Returns the objects that a conversation prints for lines of input.
fn talk(options: &[&str], input: &str) -> Vec<Value> {
    let fixed = ["chat", TALES, "--cpu", "--json", "--max-tokens", "8"];
    let text = answers(&[&fixed[..], options].concat(), input);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn commands_change_a_conversation() {
    let again = talk(&["--seed", "0"], "Tell me a tale.\n/regenerate\n");
    assert_eq!(again[0]["prompt_tokens"], again[1]["prompt_tokens"]);
    assert_eq!((&again[0]["seed"], &again[1]["seed"]), (&0.into(), &1.into()));
    assert_ne!(again[0]["token_ids"], again[1]["token_ids"]);
    let greedy = talk(&GREEDY, "Tell me a tale.\n");
    let set = talk(&["--seed", "0"], "/set temperature 0\n/set max-tokens 3\nTell me a tale.\n");
    let first: Vec<_> = greedy[0]["token_ids"].as_array().unwrap()[..3].to_vec();
    assert_eq!(set[0]["token_ids"], Value::Array(first));
    let system = talk(&GREEDY, "/system Tell of a bear.\nTell me a tale.\n");
    let given =
        talk(&[&GREEDY[..], &["--system-prompt", "Tell of a bear."]].concat(), "Tell me a tale.\n");
    assert_eq!(system, given);
    assert_eq!(talk(&GREEDY, "/system x\n/system\nTell me a tale.\n"), greedy);
}

#[test]
fn wrong_commands_are_errors() {
    for (line, error) in [
        ("/nope", "unknown command /nope; commands: /help, /clear, /regenerate, /system, /set"),
        ("/regenerate", "there is no answer to generate again"),
        ("/set top-p 1.5", "top_p"),
        ("/set top-p x", "`x` is not a number"),
        ("/set heat 1", "unknown option heat; options: temperature, top-k"),
        ("/load no/such/file", "no/such/file"),
        ("/save", "usage: /save FILE"),
    ] {
        let objects = talk(&[], &format!("{line}\nHi\n"));
        let found = objects[0]["error"].as_str().unwrap_or_default();
        assert!(found.contains(error) && objects.len() == 2, "{line}: {objects:?}");
    }
}

#[test]
fn a_seed_is_chosen_for_each_conversation() {
    let seed = |options: &[&str]| talk(options, "Hi\n")[0]["seed"].as_u64().unwrap();
    assert_ne!((seed(&[]), seed(&[])), (seed(&["--seed", "-1"]), seed(&[])));
    assert_eq!(seed(&["--seed", "7"]), 7);
    fails(&["chat", TALES, "--seed", "-2"], "or -1 for a random one");
}

#[test]
fn saved_conversations_continue() {
    let directory = Directory::new("saved");
    let file = directory.path("talk.json");
    let whole = talk(&GREEDY, "Tell me a tale.\nAnother\n");
    let first = talk(&GREEDY, &format!("Tell me a tale.\n/save {file}\n/save {file}\n"));
    assert!(first[1]["error"].as_str().unwrap().contains("exists already"), "{first:?}");
    let second = talk(&GREEDY, &format!("/load {file}\nAnother\n"));
    for key in ["prompt_tokens", "token_ids", "content"] {
        assert_eq!(second[0][key], whole[1][key]);
    }
    fs::write(&file, r#"{"messages": [{"role": "king"}]}"#).unwrap();
    let wrong = talk(&GREEDY, &format!("/load {file}\n"));
    assert!(wrong[0]["error"].as_str().unwrap().contains("message 1 has no `role`"), "{wrong:?}");
}

#[test]
fn messages_may_have_several_lines() {
    let one = talk(&GREEDY, "\"\"\"\nTell me\na tale.\n\"\"\"\n");
    assert_eq!(one.len(), 1);
    assert_eq!(talk(&GREEDY, "Tell me\\\na tale.\n"), one);
}

/// The oldest turns make room for new ones.
#[test]
fn a_full_context_drops_the_oldest_turns() {
    let options = ["--context-length", "64", "--greedy", "--ignore-eos"];
    let input = "Tell me a tale.\n".repeat(6);
    let objects = talk(&options, &input);
    let dropped: Vec<_> = objects.iter().map(|o| o["dropped_turns"].as_u64().unwrap()).collect();
    assert!(objects.len() == 6 && dropped[0] == 0 && dropped[5] > 0, "{dropped:?}");
    let fits = |object: &Value| object["prompt_tokens"].as_u64().unwrap() <= 48;
    assert!(objects.iter().all(fits), "{objects:?}");
    let arguments = ["chat", TALES, "--cpu", "--max-tokens", "8"];
    let output = output_of(&[&arguments[..], &options].concat(), input.as_bytes());
    assert!(errors(&output).contains("the oldest turn is left out"), "{}", errors(&output));
    assert!(errors(&output).contains(" tok/s, first token after "), "{}", errors(&output));
}
