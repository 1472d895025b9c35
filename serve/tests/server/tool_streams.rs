//! Tool calls as they are streamed and cut, by the three APIs.

use crate::{
    Served,
    client::post,
    joined,
    tools::{add, check_weather, served, user, weather},
    with,
};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn forced() -> Value {
    json!({
        "messages": user(), "tools": [weather(), add()], "tool_choice": "required", "seed": 3,
        "max_tokens": 150, "temperature": 0.8, "stream": true,
    })
}

/// The tool as Anthropic's API has it.
fn own() -> Value {
    let function = &weather()["function"];
    json!({ "name": "weather", "input_schema": function["parameters"] })
}

#[test]
fn streamed_calls_are_numbered() {
    let server = served();
    // Without an end of the text, calls go on.
    let end = json!({ "2047": -100 });
    let chunks = post(&server.address, CHAT, &with(forced(), &[("logit_bias", end)])).chunks();
    let mut calls: Vec<(String, String)> = Vec::new();
    let deltas = chunks.iter().filter_map(|it| it["choices"][0]["delta"]["tool_calls"].as_array());
    for entry in deltas.flatten() {
        let index = entry["index"].as_u64().unwrap() as usize;
        if entry["id"].is_string() {
            assert_eq!(index, calls.len(), "{entry}");
            calls.push((entry["function"]["name"].as_str().unwrap().into(), String::new()));
        }
        calls[index].1 += entry["function"]["arguments"].as_str().unwrap_or("");
    }
    assert!(calls.len() > 1, "{calls:?}");
    for (name, arguments) in &calls[..calls.len() - 1] {
        let arguments: Value = serde_json::from_str(arguments).unwrap();
        match name.as_str() {
            "weather" => check_weather(&arguments),
            _ => assert!(arguments["a"].is_boolean(), "{arguments}"),
        }
    }
}

/// Pieces of it have gone out: the reason says that nothing may be run.
#[test]
fn cut_calls_are_not_to_be_run() {
    let server = served();
    let named = json!({ "type": "function", "function": { "name": "weather" } });
    let body = with(forced(), &[("tool_choice", named), ("stop", json!("days"))]);
    let chunks = post(&server.address, CHAT, &body).chunks();
    assert_eq!(joined(&chunks, 0).1, "stop");
    let begun = |chunk: &Value| chunk["choices"][0]["delta"]["tool_calls"].is_array();
    assert!(chunks.iter().any(begun));
    let whole = post(&server.address, CHAT, &with(body, &[("stream", false.into())])).json();
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["tool_calls"]),
        (&json!("stop"), &Value::Null)
    );
    assert!(choice["message"]["content"].as_str().unwrap().contains("weather"), "{whole}");
    // The newer API has a status for it.
    let long = json!({ "type": "object", "properties": { "text": { "type": "string", "minLength": 300 } }, "required": ["text"] });
    let tool = json!({ "type": "function", "name": "write", "parameters": long });
    let body = json!({ "input": "Oslo?", "tools": [tool], "tool_choice": "required", "stream": true, "max_output_tokens": 80, "temperature": 0 });
    let events = post(&server.address, "/v1/responses", &body).named_events();
    let (name, last) = events.last().unwrap();
    let call = &last["response"]["output"][0];
    assert_eq!(
        (name.as_str(), &call["type"], &call["status"]),
        ("response.incomplete", &json!("function_call"), &json!("incomplete"))
    );
}

/// Of answers that `max_tokens` ends within a call, after others or not.
#[test]
fn half_calls_are_no_text() {
    let server = served();
    let (mut cut, mut complete) = (0, 0);
    for most in [4, 12, 20, 45, 70, 90, 110, 130, 150] {
        let end = json!({ "2047": -100 });
        let body = with(forced(), &[("logit_bias", end), ("max_tokens", most.into())]);
        let chunks = post(&server.address, CHAT, &body).chunks();
        assert_eq!(joined(&chunks, 0), (String::new(), "length".into()));
        let whole = post(&server.address, CHAT, &with(body, &[("stream", false.into())])).json();
        let (choice, message) = (&whole["choices"][0], &whole["choices"][0]["message"]);
        assert_eq!(choice["finish_reason"], "length", "{whole}");
        assert!(message["content"].as_str().is_none_or(str::is_empty), "{whole}");
        let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        for call in calls {
            let arguments = call["function"]["arguments"].as_str().unwrap();
            assert!(serde_json::from_str::<Value>(arguments).unwrap().is_object(), "{call}");
        }
        cut += usize::from(calls.is_empty());
        complete += usize::from(!calls.is_empty());
    }
    assert!(cut > 0 && complete > 2, "{cut} answers have no call, {complete} have some");
    let choice = json!({ "type": "any" });
    let body =
        json!({ "messages": user(), "tools": [own()], "tool_choice": choice, "max_tokens": 12 });
    let answer = post(&server.address, "/v1/messages", &body).json();
    assert_eq!((&answer["content"], &answer["stop_reason"]), (&json!([]), &json!("max_tokens")));
}

/// Where a model may call a tool or not, only schemas of strict tools must be supported.
#[test]
fn schemas_of_strict_tools_are_checked() {
    let server = served();
    let ask = |strict: bool| {
        let schema = json!({ "type": "object", "properties": { "a": { "type": "strng" } }, "required": ["a"] });
        let function = json!({ "name": "f", "parameters": schema, "strict": strict });
        let tools = json!([{ "type": "function", "function": function }]);
        let body = json!({ "messages": user(), "tools": tools, "max_tokens": 1 });
        let answer = post(&server.address, CHAT, &body);
        (answer.status, answer.json()["error"]["message"].as_str().unwrap_or("").to_owned())
    };
    assert_eq!(ask(false).0, 200);
    let (status, message) = ask(true);
    assert!(status == 400 && message.contains("schema of the tool `f`"), "{message}");
}

#[test]
fn messages_have_blocks_of_calls() {
    let server = served();
    let ask = |single: bool, seed: u64, stream: bool| {
        let choice = json!({ "type": "any", "disable_parallel_tool_use": single });
        let body = json!({
            "messages": user(), "tools": [own()], "tool_choice": choice, "temperature": 1.5, "seed": seed,
            "max_tokens": 400, "stream": stream,
        });
        post(&server.address, "/v1/messages", &body)
    };
    let mut several = 0;
    for seed in 0..6 {
        for single in [true, false] {
            let answer = ask(single, seed, false).json();
            let blocks = answer["content"].as_array().unwrap();
            if answer["stop_reason"] == "max_tokens" {
                continue;
            }
            assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
            for block in blocks {
                assert_eq!(
                    (&block["type"], &block["name"]),
                    (&json!("tool_use"), &json!("weather"))
                );
                check_weather(&block["input"]);
            }
            assert!(blocks.len() == 1 || !single, "{answer}");
            several += usize::from(blocks.len() > 1);
        }
    }
    assert!(several > 0, "no answer has several calls");
    // Streamed, it is the same in pieces.
    let whole = ask(true, 0, false).json();
    let events = ask(true, 0, true).named_events();
    let pieces = events.iter().filter_map(|(_, data)| data["delta"]["partial_json"].as_str());
    let input: Value = serde_json::from_str(&pieces.collect::<String>()).unwrap();
    assert_eq!(input, whole["content"][0]["input"]);
    let reason = events.iter().find_map(|(_, data)| data["delta"]["stop_reason"].as_str());
    assert_eq!(reason, Some("tool_use"));
}

#[test]
fn repeated_fields_are_bounded() {
    let server = Served::new(&crate::cpu(), 1, 1, |options| {
        options.max_body_bytes(100_000).max_pending_bytes(200_000)
    });
    let body = |bytes: usize| json!({ "input": "Hi", "metadata": { "a": "x".repeat(bytes) }, "max_output_tokens": 1 });
    let ask = |body: &Value| {
        let answer = post(&server.address, "/v1/responses", body);
        (answer.status, answer.json()["error"]["param"].clone())
    };
    assert_eq!(ask(&body(20_000)), (200, Value::Null));
    assert_eq!(ask(&body(60_000)), (400, json!("metadata")));
    let format = json!({ "type": "json_schema", "name": "x".repeat(50_000), "schema": true });
    let body = with(body(20_000), &[("text", json!({ "format": format }))]);
    assert_eq!(ask(&body), (400, json!("text")));
}
