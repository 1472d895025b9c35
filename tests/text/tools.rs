//! Tools, calls and results in prompts.

use super::*;
use bitnet_wgpu::model::{Tool, ToolCall};

const SCHEMA: &str =
    r#"{"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "number"}}}"#;

fn add() -> Tool {
    Tool::new("add", SCHEMA).unwrap().description("Adds <|begin_of_text|>.")
}

fn call(arguments: &str) -> Message {
    let call = ToolCall { id: "c1".into(), name: "add".into(), arguments: arguments.into() };
    Message::new("assistant", "").tool_calls([call])
}

#[test]
fn templates_see_tools_as_transformers_gives_them() {
    let tokenizer = with_template("{{ tools | tojson }}").with_tools([add()]).unwrap();
    let text = tokenizer.chat_text(&user("Hello"), true).unwrap();
    let expected = format!(
        r#"[{{"type": "function", "function": {{"name": "add", "description": "Adds <|begin_of_text|>.", "parameters": {SCHEMA}}}}}]"#
    );
    assert_eq!(text, expected);
    let messages = [call(r#"{"z": "é", "a": 1.50}"#), Message::tool_result("c1", "7")];
    let text = with_template("{{ messages | tojson }}").chat_text(&messages, true).unwrap();
    let expected = r#"[{"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"z": "é", "a": 1.5}}}]}, {"role": "tool", "content": "7", "tool_call_id": "c1", "name": "add"}]"#;
    assert_eq!(text, expected);
}

#[test]
fn ignored_tools_and_calls_are_errors() {
    let tokenizer = with_template("{{ messages[0].content }}");
    assert!(message(tokenizer.with_tools([add()])).contains("does not write tools"));
    assert!(tokenizer.with_tools([] as [Tool; 0]).unwrap().tools().is_empty());
    assert!(message(tokenizer.chat(&[call("{}")])).contains("does not write tool calls"));
    let told = with_template("{{ tools }}").with_tools([add()]).unwrap();
    assert_eq!(told.tools(), [add()]);
    assert!(told.with_chat_template("A").tools().is_empty(), "another template is asked anew");
}

/// Names of special tokens in tools and calls are text, as they are in messages.
#[test]
fn special_tokens_of_tools_are_text() {
    let template = "{{ bos_token }}{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
    let tokenizer = with_template(template).with_tools([add()]).unwrap();
    let arguments = r#"{"<|end_of_text|>": "<|begin_of_text|>", "b": ["\u003c|end_of_text|>"]}"#;
    let messages = [call(arguments), Message::tool_result("c1", "<|end_of_text|>")];
    let ids = tokenizer.chat(&messages).unwrap();
    assert_eq!(ids.iter().filter(|id| tokenizer.is_special(**id)).count(), 1);
    let text = tokenizer.decode_with_special(&ids).unwrap();
    assert_eq!(text, tokenizer.chat_text(&messages, true).unwrap());
    assert_eq!(text.matches("<|end_of_text|>").count(), 3);
}
