//! The requests of Open WebUI 0.12: what its backend sends to an API of OpenAI's kind, from its
//! list of models to its titles, follow-ups and documents.

use crate::{Served, client::send, cpu};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Call {
    what: String,
    #[serde(default)]
    method: Option<String>,
    path: String,
    #[serde(default)]
    body: Option<Value>,
    /// Whether the answer is calls of tools.
    #[serde(default)]
    calls: bool,
}

/// Puts calls together from the pieces of a stream, by their index.
fn calls(chunks: &[Value]) -> Vec<(String, String)> {
    let mut calls: Vec<(String, String)> = Vec::new();
    let deltas = chunks.iter().filter_map(|it| it["choices"][0]["delta"]["tool_calls"].as_array());
    for delta in deltas.flatten() {
        let index = delta["index"].as_u64().unwrap() as usize;
        calls.resize(calls.len().max(index + 1), Default::default());
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        calls[index].0 += &text(&delta["function"]["name"]);
        calls[index].1 += &text(&delta["function"]["arguments"]);
    }
    calls
}

/// What the page reads of an answer.
fn text(call: &Call, answer: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match call.path.as_str() {
        "/v1/models" => text(&answer["data"][0]["id"]),
        "/v1/embeddings" => answer["data"][1]["embedding"][0].as_f64().map(|it| it.to_string()),
        "/v1/messages/count_tokens" => answer["input_tokens"].as_u64().map(|it| it.to_string()),
        _ => text(&answer["choices"][0]["message"]["content"]),
    }
}

#[test]
fn calls_of_open_webui_are_answered() {
    let calls = include_str!("../data/open_webui.json");
    let calls: Vec<Call> = serde_json::from_str(calls).unwrap();
    let tokenizer = crate::tools::tokenizer(include_str!("../tools.jinja"));
    let server =
        Served::new(&cpu(), 2, 2, |options| options.keys(["sesame"]).tokenizer(Some(tokenizer)));
    let headers = [
        ("Authorization", "Bearer sesame"),
        ("X-OpenWebUI-User-Name", "Ann"),
        ("X-OpenWebUI-User-Role", "admin"),
    ];
    for call in calls {
        let head = format!("{} {}", call.method.as_deref().unwrap_or("POST"), call.path);
        let body = call.body.as_ref().map(Value::to_string).unwrap_or_default();
        let answer = send(&server.address, &head, &headers, body.as_bytes()).unwrap();
        let (what, status) = (&call.what, answer.status);
        if status != 200 {
            panic!("{what}: {status} {}", answer.text());
        }
        if !call.body.as_ref().is_some_and(|body| body["stream"] == true) {
            let answer = answer.json();
            assert!(text(&call, &answer).is_some_and(|text| !text.is_empty()), "{what}: {answer}");
            continue;
        }
        if call.path == "/v1/responses" {
            let events = answer.named_events();
            assert!(events.iter().any(|(_, event)| event["delta"].is_string()), "{what}");
            continue;
        }
        let chunks = answer.chunks();
        if call.calls {
            let mut calls = self::calls(&chunks);
            let known = ["search_memories", "get_current_timestamp"];
            assert!(!calls.is_empty(), "{what}");
            assert!(calls.iter().all(|(name, _)| known.contains(&name.as_str())), "{calls:?}");
            // The page runs no call that was cut.
            let is_cut = chunks.iter().any(|it| it["choices"][0]["finish_reason"] == "length");
            calls.truncate(calls.len() - usize::from(is_cut));
            for (_, arguments) in calls {
                let arguments: Value = serde_json::from_str(&arguments).unwrap();
                assert!(arguments.is_object(), "{what}");
            }
            continue;
        }
        let said = |chunk: &Value| chunk["choices"][0]["delta"]["content"].as_str().map(str::len);
        assert!(chunks.iter().filter_map(said).sum::<usize>() > 0, "{what}");
        let has_usage = chunks.last().unwrap()["usage"].is_object();
        assert_eq!(has_usage, body.contains("include_usage"), "{what}");
    }
}
