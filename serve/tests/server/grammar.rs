//! Answers of a form: `response_format`, `structured_outputs` and `text.format`.

use crate::{Served, client::post, cpu, each_engine, joined};
use bitnet_wgpu::model::Model;
use serde_json::{Value, json};

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 12 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
        },
        "required": ["name", "age"],
        "additionalProperties": false,
    })
}

fn check_person(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(value.as_object().unwrap().len(), 2, "{text}");
    assert!(value["name"].is_string() && value["age"].as_u64().unwrap() <= 150, "{text}");
}

fn answers_have_the_form(model: &Model) {
    let server = Served::new(model, 2, 8, |options| options);
    let named = json!({ "name": "person", "strict": true, "schema": schema() });
    let format = json!({ "type": "json_schema", "json_schema": named });
    let chat = json!({
        "messages": [{ "role": "user", "content": "Who?" }], "response_format": format, "n": 2,
        "temperature": 1, "logprobs": true, "seed": 3,
    });
    let answer = post(&server.address, "/v1/chat/completions", &chat).json();
    for choice in answer["choices"].as_array().unwrap() {
        assert_eq!(choice["finish_reason"], "stop", "{answer}");
        check_person(choice["message"]["content"].as_str().unwrap());
        assert!(choice["logprobs"]["content"][0]["logprob"].as_f64().unwrap() < 0.0);
    }
    let streamed =
        json!({ "prompt": "Who?", "response_format": format, "max_tokens": 100, "stream": true });
    let chunks = post(&server.address, "/v1/completions", &streamed).chunks();
    let (text, reason) = joined(&chunks, 0);
    assert_eq!(reason, "stop");
    check_person(&text);
    let cut = json!({ "prompt": "Who?", "response_format": format, "max_tokens": 3 });
    assert_eq!(server.complete(&cut)["choices"][0]["finish_reason"], "length");
    let form = json!({ "type": "json_schema", "name": "person", "schema": schema() });
    let body = json!({ "input": "Who?", "text": { "format": form } });
    let answer = post(&server.address, "/v1/responses", &body).json();
    check_person(answer["output"][0]["content"][0]["text"].as_str().unwrap());
    let format = json!({ "type": "json_schema", "schema": schema() });
    let body = json!({ "messages": chat["messages"], "output_config": { "format": format }, "max_tokens": 100 });
    let answer = post(&server.address, "/v1/messages", &body).json();
    check_person(answer["content"][0]["text"].as_str().unwrap());
    for (outputs, wanted) in [
        (json!({ "choice": ["yes", "n\"o"] }), &["yes", "n\"o"][..]),
        (json!({ "regex": "[ab]{1}" }), &["a", "b"]),
        (json!({ "grammar": "start: \"x\" | \"y\"" }), &["x", "y"]),
        (json!({ "grammar": "root ::= \"x\" | \"z\"" }), &["x", "z"]),
        (json!({ "json": "{\"const\": 7}" }), &["7"]),
        (json!({ "json": { "enum": [null] } }), &["null"]),
    ] {
        let body = json!({ "prompt": "Who?", "structured_outputs": outputs });
        let answer = server.complete(&body);
        let text = answer["choices"][0]["text"].as_str().unwrap();
        assert!(wanted.contains(&text), "{outputs}: {text}");
    }
}
each_engine!(answers_have_the_form);

/// Names of other servers: vLLM's older ones, and llama.cpp's.
#[test]
fn formats_have_names_of_other_servers() {
    let server = Served::new(&cpu(), 1, 1, |options| options);
    for (field, value, wanted) in [
        ("guided_json", json!({ "enum": [null] }), &["null"][..]),
        ("guided_json", json!("{\"const\": 7}"), &["7"]),
        ("guided_regex", json!("[ab]{1}"), &["a", "b"]),
        ("guided_choice", json!(["yes", "n\"o"]), &["yes", "n\"o"]),
        ("guided_grammar", json!("start: \"x\" | \"y\""), &["x", "y"]),
        ("json_schema", json!({ "const": 7 }), &["7"]),
        (
            "response_format",
            json!({ "type": "json_object", "schema": { "const": [7] } }),
            &["[7]", "[ 7]", "[7 ]", "[ 7 ]"],
        ),
        ("response_format", json!({ "type": "json_schema", "schema": { "const": 7 } }), &["7"]),
    ] {
        let mut body = json!({ "prompt": "Who?", "guided_decoding_backend": "xgrammar" });
        body[field] = value;
        let answer = server.complete(&body);
        let text = answer["choices"][0]["text"].as_str().unwrap();
        assert!(wanted.contains(&text), "{body}: {text}");
        let mut chat = json!({ "messages": [{ "role": "user", "content": "Who?" }] });
        chat[field] = body[field].take();
        let answer = post(&server.address, "/v1/chat/completions", &chat).json();
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(wanted.contains(&text), "{chat}: {text}");
    }
}

#[test]
fn wrong_formats_are_named() {
    let server = Served::new(&cpu(), 1, 1, |options| options);
    let format = |format: Value| json!({ "response_format": format });
    let outputs = |outputs: Value| json!({ "structured_outputs": outputs });
    let schema = |schema: Value| {
        format(json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } }))
    };
    for (mut body, param, wanted) in [
        (format(json!("json")), "response_format", "an object"),
        (format(json!({})), "response_format.type", "missing"),
        (format(json!({ "type": "xml" })), "response_format.type", "json_schema"),
        (format(json!({ "type": "json_schema" })), "response_format.json_schema", "missing"),
        (format(json!({ "type": "text", "x": 1 })), "response_format.x", "unknown"),
        (schema(Value::Null), "response_format.json_schema.schema", "missing"),
        (schema(json!({ "type": 7 })), "response_format.json_schema.schema", "type"),
        (schema(json!({ "enum": [] })), "response_format.json_schema.schema", "nsatisfiable"),
        (outputs(json!({})), "structured_outputs", "expected one of"),
        (
            outputs(json!({ "regex": "a", "json": {} })),
            "structured_outputs.regex",
            "only one of it and `structured_outputs.json`",
        ),
        (outputs(json!({ "regex": "(" })), "structured_outputs.regex", ""),
        (outputs(json!({ "choice": [] })), "structured_outputs.choice", "1 to 1000"),
        (outputs(json!({ "choice": [7] })), "structured_outputs.choice", "strings"),
        (outputs(json!({ "grammar": "x: \"a\"" })), "structured_outputs.grammar", "start"),
        (
            json!({ "response_format": { "type": "json_object" }, "structured_outputs": { "regex": "a" } }),
            "structured_outputs.regex",
            "only one of it and `response_format`",
        ),
        (
            json!({ "guided_json": {}, "guided_choice": ["a"] }),
            "guided_choice",
            "only one of it and `guided_json`",
        ),
        (
            json!({ "json_schema": {}, "structured_outputs": { "json": {} } }),
            "json_schema",
            "only one of it and `structured_outputs.json`",
        ),
        (json!({ "guided_regex": "(" }), "guided_regex", ""),
        (json!({ "guided_regex": 7 }), "guided_regex", "a string"),
        (json!({ "guided_choice": "a" }), "guided_choice", "1 to 1000"),
        (json!({ "guided_json": "{" }), "guided_json", "not JSON"),
        (json!({ "json_schema": [] }), "json_schema", "an object"),
    ] {
        body["prompt"] = "Hi".into();
        let answer = post(&server.address, "/v1/completions", &body);
        let (status, error) = (answer.status, answer.json()["error"].clone());
        assert_eq!((status, &error["param"]), (400, &json!(param)), "{body}: {error}");
        assert!(error["message"].as_str().unwrap().contains(wanted), "{body}: {error}");
    }
}
