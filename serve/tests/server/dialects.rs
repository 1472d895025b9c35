//! The other APIs for conversations: OpenAI's `/v1/responses` and Anthropic's `/v1/messages`.

use crate::{
    Served, TALES,
    client::{post, send},
    cpu, with,
};
use bitnet_wgpu::model::{GenerateOptions, Message, Model};
use serde_json::{Value, json};

const SYSTEM: &str = "A tale of a bear.";

/// What the model writes alone after a system message and these.
fn alone(model: &Model, messages: &[Message], tokens: usize) -> String {
    let messages = [&[Message::new("system", SYSTEM)], messages].concat();
    let options = GenerateOptions::default().max_tokens(tokens);
    model.chat(&messages, &options).unwrap().into_iter().map(|token| token.unwrap().text).collect()
}

fn types(events: &[(String, Value)]) -> Vec<&str> {
    let mut types: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    types.dedup();
    types
}

#[test]
fn responses_are_what_the_model_writes() {
    let (server, model) = (Served::new(&cpu(), 1, 1, |options| options), cpu());
    let turns = ["Once", "there was", "And"].map(str::to_owned);
    let [user, assistant, again] = &turns;
    let messages = [("user", user), ("assistant", assistant), ("user", again)]
        .map(|(role, text)| Message::new(role, text));
    let text = alone(&model, &messages, 8);
    let body = json!({
        "model": "tales", "instructions": SYSTEM, "max_output_tokens": 8, "store": false,
        "text": { "format": { "type": "text" } }, "reasoning": {}, "tools": [],
        "input": [
            { "role": "user", "content": user },
            { "type": "reasoning", "id": "rs_1", "summary": [] },
            { "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
              "content": [{ "type": "output_text", "text": assistant, "annotations": [] }] },
            { "role": "user", "content": [{ "type": "input_text", "text": again }] },
        ],
    });
    let answer = post(&server.address, "/v1/responses", &body);
    assert_eq!(answer.status, 200);
    let whole = answer.json();
    let item = &whole["output"][0];
    assert_eq!(
        (&whole["object"], &whole["status"], &whole["incomplete_details"]["reason"]),
        (&json!("response"), &json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(
        (&item["type"], &item["role"], &item["status"], &item["content"][0]["text"]),
        (&json!("message"), &json!("assistant"), &json!("incomplete"), &json!(text))
    );
    assert_eq!(whole["usage"]["output_tokens"], 8);
    let streamed = with(body, &[("stream", true.into())]);
    let events = post(&server.address, "/v1/responses", &streamed).named_events();
    assert_eq!(
        types(&events),
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete",
        ]
    );
    for (n, (name, data)) in events.iter().enumerate() {
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(n)));
    }
    let deltas: String = events.iter().filter_map(|(_, data)| data["delta"].as_str()).collect();
    assert_eq!(deltas, text);
    let last = &events.last().unwrap().1["response"];
    assert_eq!(last["output"][0]["content"][0]["text"], text);
}

/// A response has the fields of its request, as the schema of OpenAI's API orders them.
#[test]
fn responses_repeat_their_requests() {
    // Two layers never end the arguments of a call.
    let server = crate::tools::served_by(&Model::builder(TALES).cpu().build().unwrap());
    let ask = |body: &Value| post(&server.address, "/v1/responses", body);
    let plain = ask(&json!({ "input": "Hi", "max_output_tokens": 2 })).json();
    for (field, value) in [
        ("max_output_tokens", json!(2)),
        ("instructions", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", json!(true)),
        ("text", json!({ "format": { "type": "text" }, "verbosity": "medium" })),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("store", json!(false)),
        ("completed_at", Value::Null),
    ] {
        assert_eq!(plain.get(field), Some(&value), "{field}: {plain}");
    }
    let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let tool = json!({ "type": "function", "name": "rest", "parameters": schema });
    let format = json!({ "type": "json_schema", "name": "none", "schema": schema });
    let sent = json!({
        "instructions": "Be brief.", "metadata": { "a": "b" }, "parallel_tool_calls": false,
        "temperature": 0.0, "top_p": 0.9, "tool_choice": { "type": "function", "name": "rest" },
        "max_output_tokens": 50, "user": "me", "prompt_cache_key": "k", "safety_identifier": "s",
    });
    let more = [
        ("input", json!("Hi")),
        ("tools", json!([tool])),
        ("text", json!({ "format": format })),
        ("reasoning", json!({ "summary": "auto" })),
    ];
    let body = with(sent.clone(), &more);
    let whole = ask(&body).json();
    let events = ask(&with(body, &[("stream", true.into())])).named_events();
    let [first, .., last] = &events[..] else { panic!("{events:?}") };
    for response in [&whole, &first.1["response"], &last.1["response"]] {
        for (field, value) in sent.as_object().unwrap() {
            assert_eq!(&response[field], value, "{field}");
        }
        let tool = json!({ "type": "function", "name": "rest", "parameters": schema, "strict": false, "description": null });
        assert_eq!(response["tools"], json!([tool]));
        let format = with(format.clone(), &[("strict", true.into())]);
        assert_eq!(response["text"], json!({ "format": format, "verbosity": "medium" }));
        assert_eq!(response["reasoning"], json!({ "effort": null, "summary": "auto" }));
    }
    assert!(whole["completed_at"].as_u64() >= whole["created_at"].as_u64(), "{whole}");
    assert_eq!(whole["output"][0]["arguments"], "{}");
}

#[test]
fn messages_are_what_the_model_writes() {
    let (server, model) = (Served::new(&cpu(), 1, 1, |options| options), cpu());
    let text = alone(&model, &[Message::new("user", "Once")], 8);
    let body = json!({
        "model": "tales", "system": [{ "type": "text", "text": SYSTEM }], "max_tokens": 8,
        "messages": [{ "role": "user", "content": [{ "type": "text", "text": "Once" }] }],
    });
    let ask = |body: &Value| post(&server.address, "/v1/messages", body);
    let whole = ask(&body).json();
    assert_eq!(whole["content"], json!([{ "type": "text", "text": text }]));
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["stop_reason"], &whole["stop_sequence"]),
        (&json!("message"), &json!("assistant"), &json!("max_tokens"), &Value::Null)
    );
    assert_eq!(whole["usage"]["output_tokens"], 8);
    let counted = with(body.clone(), &[("max_tokens", Value::Null)]);
    let count = post(&server.address, "/v1/messages/count_tokens", &counted).json();
    assert_eq!(count["input_tokens"], whole["usage"]["input_tokens"]);
    let events = ask(&with(body.clone(), &[("stream", true.into())])).named_events();
    assert_eq!(
        types(&events),
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    let deltas: String =
        events.iter().filter_map(|(_, data)| data["delta"]["text"].as_str()).collect();
    assert_eq!(deltas, text);
    // The stop string that ended it is named.
    let stop: String = text.chars().skip(6).take(3).collect();
    let stops = json!(["never written", stop, "nor this"]);
    let stopped = ask(&with(body.clone(), &[("stop_sequences", stops)])).json();
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!(stop))
    );
    assert_eq!(stopped["content"][0]["text"], text[..text.find(&stop).unwrap()]);
    // A last message of the assistant is continued.
    let more = json!([{ "role": "user", "content": "Once" }, { "role": "assistant", "content": "The bear" }]);
    let continued = ask(&with(body, &[("messages", more)])).json();
    let used = |answer: &Value| {
        let usage = &answer["usage"];
        usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap()
    };
    let length = model.tokenizer().unwrap().encode_plain("The bear").unwrap().len() as u64;
    assert_eq!(used(&continued), used(&whole) + length);
}

/// A template that reasons: what comes after `<think>` is reasoning, since nothing ends it.
#[test]
fn reasoning_is_a_part_of_its_own() {
    const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}{% endfor %}\
        {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}";
    let tokenizer = cpu().tokenizer().unwrap().with_chat_template(TEMPLATE);
    let server = Served::new(&cpu(), 1, 1, |options| options.tokenizer(Some(tokenizer)));
    let body = json!({ "input": "The bear", "max_output_tokens": 6, "stream": true });
    let events = post(&server.address, "/v1/responses", &body).named_events();
    let output = &events.last().unwrap().1["response"]["output"];
    assert_eq!((&output[0]["type"], &output[1]["type"]), (&json!("reasoning"), &json!("message")));
    assert!(!output[0]["content"][0]["text"].as_str().unwrap().is_empty(), "{output}");
    let user = json!([{ "role": "user", "content": "The bear" }]);
    let body = json!({ "messages": user, "max_tokens": 6 });
    let ask = |body: &Value| post(&server.address, "/v1/messages", body).json();
    assert_eq!(ask(&body)["content"], json!([]), "nobody asked for it");
    let thinking = json!({ "type": "enabled", "budget_tokens": 1024 });
    let content = ask(&with(body.clone(), &[("thinking", thinking)]))["content"].clone();
    assert_eq!((&content[0]["type"], content.as_array().unwrap().len()), (&json!("thinking"), 1));
    // The template then ends the reasoning before the answer begins.
    let disabled = json!({ "type": "disabled" });
    let answer = ask(&with(body.clone(), &[("thinking", disabled.clone())]));
    assert_eq!(answer["content"][0]["type"], "text", "{answer}");
    let tokens = |thinking: Value| {
        let body = json!({ "messages": user, "thinking": thinking });
        let counted = post(&server.address, "/v1/messages/count_tokens", &body).json();
        counted["input_tokens"].as_u64().unwrap()
    };
    let used = ["input_tokens", "cache_read_input_tokens"]
        .map(|field| answer["usage"][field].as_u64().unwrap());
    assert_eq!(tokens(disabled), used.iter().sum::<u64>());
    let [enabled, adaptive] =
        ["enabled", "adaptive"].map(|kind| tokens(json!({ "type": kind, "budget_tokens": 1024 })));
    assert!(enabled == adaptive && enabled != used.iter().sum::<u64>(), "{enabled}");
}

/// The shipped model's template does not know whether the model reasons.
#[test]
fn a_template_without_reasoning_names_the_field() {
    let server = Served::new(&cpu(), 1, 1, |options| options);
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 1 });
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        let ask = |kind: &str| {
            let mut body = with(body.clone(), &[("thinking", json!({ "type": kind }))]);
            if path.ends_with("count_tokens") {
                body.as_object_mut().unwrap().remove("max_tokens");
            }
            post(&server.address, path, &body)
        };
        assert_eq!(["disabled", "adaptive"].map(|kind| ask(kind).status), [200, 200]);
        let refused = ask("enabled");
        assert_eq!(refused.status, 400);
        let message = refused.json()["error"]["message"].clone();
        assert!(message.as_str().unwrap().starts_with("thinking: "), "{message}");
    }
    let kwargs = json!({ "enable_thinking": false });
    let answer = post(
        &server.address,
        "/v1/chat/completions",
        &with(body, &[("chat_template_kwargs", kwargs)]),
    );
    let param = answer.json()["error"]["param"].clone();
    assert_eq!(param, "chat_template_kwargs.enable_thinking");
}

#[test]
fn salts_are_bounded_in_every_api() {
    let server = Served::new(&cpu(), 1, 1, |options| options);
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    for (path, mut body) in [
        ("/v1/completions", json!({ "prompt": "Hi", "max_tokens": 1 })),
        ("/v1/chat/completions", json!({ "messages": messages, "max_tokens": 1 })),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 1 })),
        ("/v1/responses", json!({ "input": "Hi", "max_output_tokens": 1 })),
    ] {
        body["cache_salt"] = "x".repeat(256).into();
        assert_eq!(post(&server.address, path, &body).status, 200, "{path}");
        body["cache_salt"] = "x".repeat(257).into();
        let refused = post(&server.address, path, &body);
        let (status, text) = (refused.status, refused.text());
        assert!(status == 400 && text.contains("cache_salt: 257 bytes"), "{path}: {text}");
    }
}

#[test]
fn errors_have_the_form_of_their_api() {
    let server = Served::new(&cpu(), 1, 1, |options| options);
    let user = json!([{ "role": "user", "content": "Hi" }]);
    for (body, named) in [
        (json!({ "messages": user }), "max_tokens"),
        (json!({ "max_tokens": 1 }), "messages"),
        (json!({ "messages": user, "max_tokens": 1, "tools": [{}] }), "tools"),
        (
            json!({ "messages": [{ "role": "system", "content": "Hi" }], "max_tokens": 1 }),
            "messages[0].role",
        ),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image" }] }], "max_tokens": 1 }),
            "messages[0].content[0].type",
        ),
        (json!({ "messages": user, "max_tokens": 1, "stop_sequences": [7] }), "stop_sequences"),
        (json!({ "messages": user, "max_tokens": 1, "thinking": {} }), "thinking.type"),
    ] {
        let answer = post(&server.address, "/v1/messages", &body);
        assert_eq!(answer.status, 400);
        let answer = answer.json();
        assert_eq!(
            (&answer["type"], &answer["error"]["type"]),
            (&json!("error"), &json!("invalid_request_error"))
        );
        assert!(answer["error"]["message"].as_str().unwrap().contains(named), "{named}: {answer}");
    }
    let unknown = json!({ "model": "claude", "messages": user, "max_tokens": 1 });
    let answer = post(&server.address, "/v1/messages", &unknown);
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (404, &json!("not_found_error")));
    for (body, named) in [
        (json!({}), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": [{ "role": "tool", "content": "x" }] }), "input[0].role"),
        (json!({ "input": [{ "type": "computer_call" }] }), "input[0].type"),
        (json!({ "input": "Hi", "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "input": "Hi", "text": { "format": { "type": "xml" } } }), "text.format.type"),
        (json!({ "input": "Hi", "reasoning": { "effort": "high" } }), "reasoning.effort"),
        (json!({ "input": "Hi", "max_tokens": 7 }), "max_tokens"),
    ] {
        let answer = post(&server.address, "/v1/responses", &body);
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(named)));
    }
    let keys = Served::new(&cpu(), 1, 1, |options| options.keys(["sesame"]));
    let body = json!({ "messages": user, "max_tokens": 1 }).to_string();
    let refused = send(&keys.address, "POST /v1/messages", &[], body.as_bytes()).unwrap();
    let (status, error) = (refused.status, refused.json()["error"]["type"].clone());
    assert_eq!((status, error), (401, json!("authentication_error")));
    let headers = [("x-api-key", "sesame")];
    assert_eq!(
        send(&keys.address, "POST /v1/messages", &headers, body.as_bytes()).unwrap().status,
        200
    );
}
