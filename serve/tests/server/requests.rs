//! What may be asked, and what is refused with which words.

use crate::{
    Served, TALES,
    client::{answer, get, open, post, send},
    cpu, with,
};
use bitnet_serve::{Options, Server};
use bitnet_wgpu::{
    Error,
    model::{BatchOptions, GenerateOptions, Model, Sampling, Speculation},
};
use serde_json::{Value, json};
use std::{io::Write, path::Path, time::Duration};

#[test]
fn what_is_served_and_who_may_ask() {
    let server = Served::new(&cpu(), 2, 3, |options| options.keys(["sesame"]));
    let key = |key: &str, head: &str, body: &[u8]| {
        let answer = send(&server.address, head, &[("Authorization", key)], body).unwrap();
        (answer.status, answer.header("www-authenticate").map(str::to_owned), answer.json())
    };
    assert_eq!(
        get(&server.address, "/health").json(),
        json!({ "status": "ok", "running": 0, "waiting": 0, "slots": 2, "queue": 3 })
    );
    let (status, _, list) = key("Bearer sesame", "GET /v1/models", b"");
    assert_eq!(
        (status, &list["object"], &list["data"][0]["id"]),
        (200, &json!("list"), &json!("tales"))
    );
    assert_eq!(key("Bearer sesame", "GET /v1/models/tales", b"").2["object"], "model");
    let (status, _, error) = key("Bearer sesame", "GET /v1/models/a/b", b"");
    assert_eq!((status, &error["error"]["code"]), (404, &json!("model_not_found")));
    for wrong in
        ["Bearer sesam", "Bearer sesame2", "Bearer sesamf", "sesame", "Bearer ", "Basic sesame"]
    {
        for head in [
            "GET /v1/models",
            "GET /v1/models/tales",
            "POST /v1/completions",
            "POST /v1/chat/completions",
        ] {
            let (status, scheme, error) = key(wrong, head, b"{}");
            assert_eq!(
                (status, scheme.as_deref(), &error["error"]["code"]),
                (401, Some("Bearer"), &json!("invalid_api_key")),
                "{wrong}"
            );
        }
    }
    let (status, _, error) = key("Bearer sesame", "GET /v2", b"");
    assert!(status == 404 && error["error"]["message"].as_str().unwrap().contains("/v2"));
    let (status, _, error) = key("Bearer sesame", "DELETE /v1/models", b"");
    assert!(status == 405 && error["error"]["message"].as_str().unwrap().contains("DELETE"));
}

fn object(value: Value) -> Vec<(&'static str, Value)> {
    let Value::Object(map) = value else { panic!("{value}") };
    map.into_iter().map(|(name, value)| (&*name.leak(), value)).collect()
}

#[test]
fn what_is_wrong_is_named() {
    let server = Served::new(&cpu(), 2, 8, |options| options);
    let user = json!([{ "role": "user", "content": "Hi" }]);
    let chat = |more: Value| (true, with(json!({ "messages": user }), &object(more)));
    let text = |more: Value| (false, with(json!({ "prompt": "Hi" }), &object(more)));
    let messages = |messages: Value| (true, json!({ "messages": messages }));
    let table = [
        (messages(json!(null)), "messages", "missing field `messages`"),
        (messages(json!("Hi")), "messages", "list"),
        (messages(json!([])), "messages", "0 messages"),
        (
            messages(json!(vec![json!({ "role": "user", "content": "x" }); 4097])),
            "messages",
            "4097",
        ),
        (messages(json!(["Hi"])), "messages[0]", "an object"),
        (messages(json!([{ "content": "Hi" }])), "messages[0].role", "missing field"),
        (messages(json!([{ "role": "critic", "content": "Hi" }])), "messages[0].role", "user"),
        (messages(json!([{ "role": 7, "content": "Hi" }])), "messages[0].role", "7"),
        (messages(json!([{ "role": "user" }])), "messages[0].content", "missing field"),
        (messages(json!([{ "role": "user", "content": 7 }])), "messages[0].content", "7"),
        (
            messages(json!([{ "role": "user", "content": [{ "type": "image_url" }] }])),
            "messages[0].content[0].type",
            "text",
        ),
        (
            messages(json!([{ "role": "user", "content": [{ "type": "text" }] }])),
            "messages[0].content[0].text",
            "missing field",
        ),
        (
            messages(json!([{ "role": "user", "content": "Hi", "name": 7 }])),
            "messages[0].name",
            "a string",
        ),
        (chat(json!({ "continue_final_message": true })), "continue_final_message", "assistant"),
        (chat(json!({ "add_generation_prompt": false })), "add_generation_prompt", "must be true"),
        (
            messages(json!([{ "role": "assistant", "content": "Hi", "tool_calls": [{}] }])),
            "messages[0].tool_calls[0].id",
            "missing field",
        ),
        (chat(json!({ "max_tokens": 0 })), "max_tokens", "from 1"),
        (
            chat(json!({ "max_tokens": 3, "max_completion_tokens": 4 })),
            "max_tokens",
            "differs from",
        ),
        (chat(json!({ "logprobs": 1 })), "logprobs", "true or false"),
        (chat(json!({ "top_logprobs": 2 })), "top_logprobs", "needs `logprobs`"),
        (chat(json!({ "logprobs": true, "top_logprobs": 21 })), "top_logprobs", "to 20"),
        (chat(json!({ "tools": [{}] })), "tools[0].type", "missing field"),
        (text(json!({ "tools": [{}] })), "tools", "not supported"),
        (
            chat(json!({ "response_format": { "type": "json" } })),
            "response_format.type",
            "json_object",
        ),
        (chat(json!({ "reasoning_effort": "low" })), "reasoning_effort", "not supported"),
        (chat(json!({ "temprature": 1 })), "temprature", "unknown field"),
        (text(json!({ "prompt": null })), "prompt", "missing field"),
        (text(json!({ "prompt": 7 })), "prompt", "a string"),
        (text(json!({ "prompt": [] })), "prompt", "0 prompts"),
        (text(json!({ "prompt": vec!["x"; 65] })), "prompt", "65"),
        (text(json!({ "prompt": [7, "x"] })), "prompt", "list"),
        (text(json!({ "prompt": [[7], [-1]] })), "prompt", "list"),
        (text(json!({ "prompt": [[]] })), "prompt", "no tokens"),
        (text(json!({ "prompt": [99999] })), "prompt", "99999"),
        (
            text(json!({ "prompt": vec![7; 513] })),
            "prompt",
            "513 tokens; this model's maximum context length is 500",
        ),
        (text(json!({ "max_tokens": -1 })), "max_tokens", "from 0"),
        (text(json!({ "max_tokens": 1.5 })), "max_tokens", "1.5"),
        (text(json!({ "max_tokens": "7" })), "max_tokens", "a string"),
        (text(json!({ "echo": 1 })), "echo", "true or false"),
        (text(json!({ "suffix": "x" })), "suffix", "not supported"),
        (text(json!({ "best_of": 3 })), "best_of", "not supported"),
        (text(json!({ "logprobs": 21 })), "logprobs", "to 20"),
        (text(json!({ "n": 0 })), "n", "from 1"),
        (text(json!({ "n": 65 })), "n", "to 64"),
        (text(json!({ "n": 33, "prompt": ["a", "b"] })), "n", "33 choices of 2"),
        (text(json!({ "temperature": 2.1 })), "temperature", "from 0 to 2"),
        (text(json!({ "temperature": "hot" })), "temperature", "a string"),
        (text(json!({ "top_p": -0.1 })), "top_p", "from 0 to 1"),
        (text(json!({ "min_p": 1.1 })), "min_p", "from 0 to 1"),
        (text(json!({ "top_k": -1 })), "top_k", "from 0"),
        (text(json!({ "repetition_penalty": 0 })), "repetition_penalty", "from 0.01"),
        (text(json!({ "presence_penalty": 3 })), "presence_penalty", "from -2"),
        (text(json!({ "frequency_penalty": [] })), "frequency_penalty", "a list"),
        (text(json!({ "seed": 1.5 })), "seed", "1.5"),
        (text(json!({ "stop": [""] })), "stop", "empty"),
        (text(json!({ "stop": [7] })), "stop", "7"),
        (text(json!({ "stop": 7 })), "stop", "a string"),
        (text(json!({ "stop": vec!["x"; 17] })), "stop", "16"),
        (text(json!({ "stop": "x".repeat(1025) })), "stop", "1024"),
        (text(json!({ "stop": vec!["x".repeat(1000); 5] })), "stop", "4096"),
        (text(json!({ "logit_bias": [] })), "logit_bias", "an object"),
        (text(json!({ "logit_bias": { "x": 1 } })), "logit_bias", "`x`"),
        (text(json!({ "logit_bias": { "7": 101 } })), "logit_bias", "token 7"),
        (text(json!({ "stream": "yes" })), "stream", "a string"),
        (text(json!({ "stream_options": {} })), "stream_options", "streams"),
        (
            text(json!({ "stream": true, "stream_options": { "usage": true } })),
            "stream_options.usage",
            "unknown field",
        ),
        (text(json!({ "model": 7 })), "model", "7"),
        (text(json!({ ("\n".to_owned() + &"x".repeat(300)): 7 })), "xxx", "unknown field"),
    ];
    for ((is_chat, body), param, expected) in table {
        let path = if is_chat { "/v1/chat/completions" } else { "/v1/completions" };
        let answer = post(&server.address, path, &body);
        let (status, error) = (answer.status, answer.json()["error"].clone());
        let named = error["param"].as_str().unwrap_or("");
        let right = named == param
            || (param == "xxx"
                && named.contains(param)
                && named.len() < 120
                && !named.contains('\n'));
        assert!(
            status == 400 && right && error["type"] == "invalid_request_error",
            "{param}: {status} {error}"
        );
        assert!(error["message"].as_str().unwrap().contains(expected), "{param}: {error}");
    }
    let bias = post(
        &server.address,
        "/v1/completions",
        &json!({ "prompt": "Hi", "logit_bias": { "99999": 1 } }),
    );
    assert!(
        bias.status == 400 && bias.json()["error"]["message"].as_str().unwrap().contains("99999")
    );
    let long = post(&server.address, "/v1/completions", &json!({ "prompt": vec![7; 513] })).json();
    assert_eq!(long["error"]["code"], "context_length_exceeded");
    let unknown =
        post(&server.address, "/v1/completions", &json!({ "prompt": "Hi", "model": "gpt" }));
    assert_eq!(
        (unknown.status, &unknown.json()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
    for body in ["", "{", "[]", "7", "\"x\"", "{\"prompt\": \"\u{0}\"}", &"[".repeat(9000)] {
        let answer = send(
            &server.address,
            "POST /v1/completions",
            &[("Content-Type", "application/json"), ("Content-Length", &body.len().to_string())],
            body.as_bytes(),
        )
        .unwrap();
        assert!(
            answer.status == 400
                && answer.json()["error"]["message"].as_str().unwrap().contains("invalid"),
            "{body:.20}"
        );
    }
    assert_eq!(server.load(), (0.into(), 0.into()), "nothing of it ran");
}

#[test]
fn bodies_need_type_length_and_a_deadline() {
    let server = Served::new(&cpu(), 2, 8, |options| {
        options.max_body_bytes(1000).body_timeout(Duration::from_millis(300))
    });
    let body = json!({ "prompt": "Hi", "max_tokens": 1 }).to_string();
    let status = |headers: &[(&str, &str)], body: &[u8]| {
        send(&server.address, "POST /v1/completions", headers, body).unwrap().status
    };
    assert_eq!(
        status(&[("Content-Type", "application/json; charset=utf-8")], body.as_bytes()),
        200
    );
    // What a form of another site can send.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""] {
        assert_eq!(status(&[("Content-Type", kind)], body.as_bytes()), 415, "{kind}");
    }
    let longest = body.clone() + &" ".repeat(1000 - body.len());
    assert_eq!(status(&[], longest.as_bytes()), 200);
    assert_eq!(status(&[], (longest.clone() + " ").as_bytes()), 413);
    // Said to be long, and in pieces of which nobody says how many there are.
    assert_eq!(status(&[("Content-Length", "99999999999")], body.as_bytes()), 413);
    let mut pieces =
        open(&server.address, "POST /v1/completions", &[("Content-Length", "900")], b" ").unwrap();
    pieces.write_all(&[b' '; 100]).unwrap();
    assert_eq!(answer(pieces).unwrap().status, 408);
    let mut chunked = std::net::TcpStream::connect(&server.address).unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    chunked
        .write_all(format!("{head}7d0\r\n{}\r\n0\r\n\r\n", " ".repeat(2000)).as_bytes())
        .unwrap();
    assert_eq!(answer(chunked).unwrap().status, 413);
}

#[test]
fn a_missing_template_or_tokenizer_is_named() {
    let folder = std::env::temp_dir().join(format!("bitnet-serve-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(Path::new(TALES).join(file), folder.join(file)).unwrap();
    }
    let model = || Model::builder(&folder).cpu().build().unwrap();
    let chat = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    let refused = |server: &Served, path: &str, body: &Value, param: &str, expected: &str| {
        let answer = post(&server.address, path, body);
        let (status, error) = (answer.status, answer.json()["error"].clone());
        assert!(
            status == 400
                && error["param"] == param
                && error["message"].as_str().unwrap().contains(expected),
            "{status} {error}"
        );
    };
    let server = Served::new(&model(), 1, 1, |options| options);
    refused(&server, "/v1/chat/completions", &chat, "messages", "chat template");
    assert_eq!(
        server.complete(&json!({ "prompt": "Hi", "max_tokens": 2 }))["usage"]["completion_tokens"],
        2
    );
    // A template of somebody's own, which may refuse what it is given.
    let tokenizer = model()
        .tokenizer()
        .unwrap()
        .with_chat_template("{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}{{ messages[0].content }}");
    let server = Served::new(&model(), 1, 1, |options| options.tokenizer(Some(tokenizer)));
    assert_eq!(
        post(
            &server.address,
            "/v1/chat/completions",
            &with(chat.clone(), &[("max_tokens", 2.into())])
        )
        .status,
        200
    );
    let two = json!({ "messages": [{ "role": "user", "content": "Hi" }, { "role": "user", "content": "Hi" }] });
    refused(&server, "/v1/chat/completions", &two, "messages", "one only");
    std::fs::remove_file(folder.join("tokenizer.json")).unwrap();
    let server = Served::new(&model(), 1, 1, |options| options);
    refused(&server, "/v1/completions", &json!({ "prompt": "Hi" }), "prompt", "tokenizer");
    refused(
        &server,
        "/v1/completions",
        &json!({ "prompt": [5], "stop": "x" }),
        "prompt",
        "tokenizer",
    );
    assert_eq!(
        server.complete(&json!({ "prompt": [5], "max_tokens": 2 }))["choices"][0]["text"],
        ""
    );
    std::fs::remove_dir_all(folder).unwrap();
}

/// Who is told to try again would try for ever.
#[test]
fn too_many_choices_are_a_permanent_error() {
    let server = Served::new(&cpu(), 2, 1, |options| options);
    let ask = |prompts: usize, n: usize| {
        let answer = post(
            &server.address,
            "/v1/completions",
            &json!({ "prompt": vec!["Hi"; prompts], "n": n, "max_tokens": 1 }),
        );
        (answer.status, answer.json()["error"].clone())
    };
    assert_eq!([ask(1, 3).0, ask(3, 1).0], [200; 2]);
    for (prompts, n, field) in [(1, 4, "n"), (2, 2, "n"), (4, 1, "prompt"), (4, 2, "prompt")] {
        let (status, error) = ask(prompts, n);
        assert!(
            status == 400
                && error["param"] == field
                && error["message"].to_string().contains("3 in total"),
            "{status} {error}"
        );
    }
    let chat = post(
        &server.address,
        "/v1/chat/completions",
        &json!({ "messages": [{ "role": "user", "content": "Hi" }], "n": 4 }),
    );
    assert_eq!((chat.status, &chat.json()["error"]["param"]), (400, &json!("n")));
}

#[test]
fn defaults_that_serve_no_request_are_refused() {
    let batch = cpu().batch(BatchOptions::new(1, 64)).unwrap();
    for (defaults, expected) in [
        (GenerateOptions::default().speculate(Speculation::ngram()), "speculate"),
        (GenerateOptions::default().resumed(1), "resumed"),
        (GenerateOptions::default().sampling(Sampling::GREEDY.temperature(-1.0)), "temperature"),
    ] {
        let refused = Server::new(batch.clone(), Options::new("tales").defaults(defaults)).err();
        assert!(
            matches!(&refused, Some(Error::Invalid { what, .. }) if what.contains(expected)),
            "{expected}: {refused:?}"
        );
    }
}
