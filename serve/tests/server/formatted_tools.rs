//! A format of the answer together with tools: calls, or text of the format.

use crate::{
    Served,
    client::post,
    cpu, joined,
    tools::{add, check_weather, parsed, served, tokenizer, user, weather},
    with,
};
use serde_json::{Value, json};

/// A template that writes calls as Llama 3 does: JSON and nothing else.
const BARE: &str = "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}{\"name\": \"{{ c.function.name }}\", \"parameters\": {{ c.function.arguments | tojson }}}{% endfor %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

fn format() -> Value {
    let answer = json!({ "enum": ["yes", "no"] });
    let schema = json!({ "type": "object", "properties": { "answer": answer }, "required": ["answer"], "additionalProperties": false });
    json!({ "type": "json_schema", "json_schema": { "name": "answer", "schema": schema } })
}

/// A request that prefers some text to begin with.
fn body(server: &Served, first: &str, more: &[(&str, Value)]) -> Value {
    let ids = post(
        &server.address,
        "/tokenize",
        &json!({ "prompt": first, "add_special_tokens": false }),
    );
    let id = ids.json()["tokens"][0].as_u64().unwrap();
    let body = json!({
        "messages": user(), "tools": [weather(), add()], "response_format": format(),
        "logit_bias": { id.to_string(): 100 }, "max_tokens": 100, "temperature": 0.8, "seed": 3,
        "parallel_tool_calls": false,
    });
    with(body, more)
}

fn ask(server: &Served, body: &Value) -> Value {
    let answer = post(&server.address, "/v1/chat/completions", body);
    assert!(answer.status == 200, "{}", answer.json());
    answer.json()["choices"][0].clone()
}

fn check_call(choice: &Value) {
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &Value::Null)
    );
    let function = &choice["message"]["tool_calls"][0]["function"];
    match function["name"].as_str() {
        Some("weather") => check_weather(&parsed(&function["arguments"])),
        _ => assert!(parsed(&function["arguments"])["a"].is_boolean(), "{choice}"),
    }
}

fn check_text(choice: &Value) {
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["tool_calls"]),
        (&json!("stop"), &Value::Null)
    );
    let answer = parsed(&choice["message"]["content"])["answer"].clone();
    assert!(["yes", "no"].contains(&answer.as_str().unwrap()), "{choice}");
}

#[test]
fn answers_are_calls_or_of_the_format() {
    let server = served();
    for seed in 0..3 {
        let seed = [("seed", json!(seed))];
        check_call(&ask(&server, &body(&server, "<", &seed)));
        check_text(&ask(&server, &body(&server, "{", &seed)));
    }
    let choose = |choice: &str| [("tool_choice", json!(choice))];
    check_text(&ask(&server, &body(&server, "<", &choose("none"))));
    check_call(&ask(&server, &body(&server, "{", &choose("required"))));
    // Other formats.
    let regex =
        [("response_format", Value::Null), ("structured_outputs", json!({ "regex": "[ab]{3}<" }))];
    let text = ask(&server, &body(&server, "a", &regex))["message"]["content"].clone();
    assert!(text.as_str().unwrap().len() == 4, "{text}");
    check_call(&ask(&server, &body(&server, "<", &regex)));
}

#[test]
fn formatted_answers_stream_calls_and_text() {
    let server = served();
    let stream = [("stream", json!(true))];
    let whole = ask(&server, &body(&server, "{", &[]));
    let chunks =
        post(&server.address, "/v1/chat/completions", &body(&server, "{", &stream)).chunks();
    assert_eq!(
        joined(&chunks, 0),
        (whole["message"]["content"].as_str().unwrap().into(), "stop".into())
    );
    let texts = chunks.iter().filter(|chunk| chunk["choices"][0]["delta"]["content"].is_string());
    assert!(texts.count() > 3, "text comes in pieces");
    let whole = ask(&server, &body(&server, "<", &[]));
    let chunks =
        post(&server.address, "/v1/chat/completions", &body(&server, "<", &stream)).chunks();
    assert_eq!(joined(&chunks, 0), (String::new(), "tool_calls".into()));
    let pieces = chunks.iter().filter_map(|chunk| {
        chunk["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str()
    });
    let arguments = &whole["message"]["tool_calls"][0]["function"]["arguments"];
    assert_eq!(&json!(pieces.collect::<String>()), arguments);
}

/// Where a call is JSON and nothing else, any object of a format may look like one.
#[test]
fn bare_calls_are_told_from_formatted_text() {
    let server = Served::new(&cpu(), 2, 8, |options| options.tokenizer(Some(tokenizer(BARE))));
    check_text(&ask(&server, &body(&server, "{", &[("seed", json!(1))])));
    let schema = json!({ "type": "object", "properties": { "name": { "enum": ["add"] } }, "required": ["name"], "additionalProperties": false });
    let named = json!({ "type": "json_object", "schema": schema });
    for seed in 0..4 {
        let more = [("response_format", named.clone()), ("seed", json!(seed))];
        let mut body = body(&server, "{", &more);
        let text = ask(&server, &body);
        assert_eq!(parsed(&text["message"]["content"]), json!({ "name": "add" }));
        body["tool_choice"] = "required".into();
        check_call(&ask(&server, &body));
    }
}

#[test]
fn responses_have_calls_or_formatted_text() {
    let server = served();
    let mut function = weather()["function"].clone();
    function["type"] = "function".into();
    let mut format = format()["json_schema"].clone();
    format["type"] = "json_schema".into();
    for choice in ["auto", "required", "none"] {
        let body = json!({
            "input": "Oslo?", "tools": [function], "tool_choice": choice, "seed": 1,
            "text": { "format": format }, "parallel_tool_calls": false,
        });
        let answer = post(&server.address, "/v1/responses", &body).json();
        let item = &answer["output"][0];
        assert_eq!(item["type"] == "function_call", choice == "required", "{answer}");
        if choice == "required" {
            check_weather(&parsed(&item["arguments"]));
        } else {
            assert!(parsed(&item["content"][0]["text"])["answer"].is_string(), "{answer}");
        }
    }
}
