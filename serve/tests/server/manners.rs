//! What clients, browsers and operators expect beside answers.

use crate::{
    Served,
    client::{get, open, post, send},
    cpu,
    raw::{exchange, request},
    with,
};
use bitnet_serve::{Options, Server};
use bitnet_wgpu::model::{BatchOptions, GenerateOptions, Message};
use serde_json::{Value, json};
use std::{
    thread::sleep,
    time::{Duration, Instant},
};
use tokio::net::TcpListener;

#[test]
fn harmless_fields_are_ignored_unless_strict() {
    let user = json!([{ "role": "user", "content": "Once", "name": "Ann" }]);
    let body = json!({ "messages": user, "max_tokens": 1 });
    let harmless = [
        ("user", json!("me")),
        ("parallel_tool_calls", json!(false)),
        ("prediction", json!({ "type": "content", "content": "x" })),
        ("keep_alive", json!("5m")),
    ];
    let [lenient, strict] =
        [false, true].map(|strict| Served::new(&cpu(), 1, 1, |options| options.strict(strict)));
    let ask = |server: &Served, body: &Value| post(&server.address, "/v1/chat/completions", body);
    assert_eq!(ask(&lenient, &with(body.clone(), &harmless)).status, 200);
    let plain = json!({ "messages": [{ "role": "user", "content": "Once" }], "max_tokens": 1 });
    assert_eq!(ask(&strict, &plain).status, 200);
    for (field, value) in harmless {
        let error = ask(&strict, &with(plain.clone(), &[(field, value)])).json()["error"].clone();
        assert_eq!(error["param"], field);
        assert!(error["message"].as_str().unwrap().contains("--strict"), "{error}");
    }
    assert_eq!(ask(&strict, &body).json()["error"]["param"], "messages[0].name");
    for server in [&lenient, &strict] {
        let unknown = ask(server, &with(plain.clone(), &[("temprature", 1.into())]));
        assert_eq!(unknown.json()["error"]["param"], "temprature");
    }
}

#[test]
fn tools_without_choice_are_ignored() {
    let server = Served::new(&cpu(), 1, 1, |options| options);
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 1, "tools": tools });
    let ask = |choice: &str| {
        let body = with(body.clone(), &[("tool_choice", choice.into())]);
        post(&server.address, "/v1/chat/completions", &body).status
    };
    assert_eq!((ask("none"), ask("auto")), (200, 400));
}

#[test]
fn models_name_their_context() {
    let server = Served::new(&cpu(), 1, 1, |options| options);
    assert_eq!(get(&server.address, "/v1/models").json()["data"][0]["max_model_len"], 500);
}

#[test]
fn texts_and_conversations_are_tokenized() {
    let (server, model) = (Served::new(&cpu(), 1, 1, |options| options), cpu());
    let ask = |path: &str, body: Value| {
        let answer = post(&server.address, path, &body);
        (answer.status, answer.json())
    };
    let tokenizer = model.tokenizer().unwrap();
    let ids = tokenizer.encode("The bear").unwrap();
    let (status, answer) = ask("/tokenize", json!({ "prompt": "The bear", "model": "tales" }));
    let expected = json!({ "tokens": ids, "count": ids.len(), "max_model_len": 500 });
    assert_eq!((status, answer), (200, expected));
    let plain = ask("/tokenize", json!({ "prompt": "The bear", "add_special_tokens": false })).1;
    assert_eq!(plain["tokens"], json!(tokenizer.encode_plain("The bear").unwrap()));
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    let chat = ask("/tokenize", json!({ "messages": messages })).1;
    assert_eq!(chat["tokens"], json!(tokenizer.chat(&[Message::new("user", "Hi")]).unwrap()));
    let (status, text) = ask("/detokenize", json!({ "tokens": ids }));
    let whole = tokenizer.decode_with_special(&ids).unwrap();
    assert_eq!((status, text), (200, json!({ "prompt": whole })));
    for (path, body, param) in [
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({ "prompt": "a", "messages": messages }), "messages"),
        ("/tokenize", json!({ "prompt": "a ".repeat(9000) }), "prompt"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({ "tokens": [99999] }), "tokens"),
        ("/detokenize", json!({ "tokens": "a" }), "tokens"),
        ("/detokenize", json!({ "tokens": vec![7; 501] }), "tokens"),
    ] {
        let (status, answer) = ask(path, body);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{answer}");
    }
}

/// The shipped model's template ends no turn: an answer goes on with what comes last.
#[test]
fn last_assistant_message_is_continued() {
    const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}\
        {% if add_generation_prompt %}[assistant]{% endif %}";
    let model = cpu();
    let tokenizer = model.tokenizer().unwrap().with_chat_template(TEMPLATE);
    let server = Served::new(&model, 1, 1, |options| options.tokenizer(Some(tokenizer)));
    let messages = json!([
        { "role": "user", "content": "A tale." },
        { "role": "assistant", "content": "Once upon <|end_of_text|>" },
    ]);
    let body = json!({ "messages": messages, "max_tokens": 6 });
    let continued =
        [("continue_final_message", true.into()), ("add_generation_prompt", false.into())];
    let ask = |body: &Value| post(&server.address, "/v1/chat/completions", body).json();
    let plain = model.tokenizer().unwrap();
    // The name of a special token is text in a message.
    let mut ids = plain.encode_plain("[user]A tale.[assistant]").unwrap();
    let mut rest = plain.encode_plain("Once upon <").unwrap();
    rest.extend(plain.encode_plain("|end_of_text|>").unwrap());
    let answer = ask(&with(body.clone(), &continued[..]));
    let used = answer["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    assert!(used > ids.len() + 8, "{used} tokens");
    let whole = json!([
        { "role": "user", "content": "A tale." },
        { "role": "assistant", "content": "Once upon" },
    ]);
    ids.extend(plain.encode_plain("Once upon").unwrap());
    let options = GenerateOptions::default().max_tokens(6);
    let alone = model.generate_ids(&ids, &options).unwrap();
    let text: String = alone.into_iter().map(|token| token.unwrap().text).collect();
    let answer = ask(&with(with(body, &[("messages", whole)]), &continued));
    assert_eq!(answer["choices"][0]["message"]["content"], text.as_str());
}

#[test]
fn metrics_count_requests_and_tokens() {
    let server = Served::new(&cpu(), 2, 3, |options| options);
    let body = json!({ "prompt": "The bear", "max_tokens": 5 });
    let used = server.complete(&body)["usage"].clone();
    assert_eq!(get(&server.address, "/v1/models/a").status, 404);
    assert_eq!(get(&server.address, "/no/such/path").status, 404);
    let answer = get(&server.address, "/metrics");
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = answer.text();
    for line in [
        "bitnet_requests_total{route=\"/v1/completions\",status=\"200\"} 1",
        "bitnet_requests_total{route=\"/v1/models/NAME\",status=\"404\"} 1",
        "bitnet_requests_total{route=\"other\",status=\"404\"} 1",
        &format!("bitnet_prompt_tokens_total {}", used["prompt_tokens"]),
        "bitnet_generated_tokens_total 5",
        "bitnet_requests_running 0",
        "bitnet_slots 2",
        "bitnet_queue_size 3",
        "bitnet_kv_cache_usage_ratio 0",
        "bitnet_time_to_first_token_seconds_count 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

/// As nginx has it: a status that nobody received.
#[test]
fn clients_that_leave_count_as_499() {
    let timeout = Duration::from_millis(50);
    let server = Served::endless(&cpu(), 1, 3, |options| options.half_closed_timeout(timeout));
    let body = with(crate::long(), &[("stream", false.into())]).to_string();
    let left = open(&server.address, "POST /v1/completions", &[], body.as_bytes()).unwrap();
    server.wait_for_load(1, 0);
    drop(left);
    server.wait_for_load(0, 0);
    let is_counted = || {
        let text = get(&server.address, "/metrics").text();
        let line = "bitnet_requests_total{route=\"/v1/completions\",status=\"499\"} 1";
        text.lines().any(|found| found == line)
    };
    let start = Instant::now();
    while !is_counted() {
        assert!(start.elapsed() < Duration::from_secs(60), "it is not counted");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn metrics_see_what_runs() {
    let server = Served::endless(&cpu(), 1, 3, |options| options);
    let _streams = [(); 2].map(|()| post(&server.address, "/v1/completions", &crate::long()));
    server.wait_for_load(1, 1);
    let text = get(&server.address, "/metrics").text();
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse().unwrap()
    };
    assert_eq!((value("bitnet_requests_running "), value("bitnet_requests_waiting ")), (1.0, 1.0));
    assert!(value("bitnet_kv_cache_usage_ratio ") > 0.0);
}

#[test]
fn pages_of_allowed_origins_may_read() {
    let server = Served::new(&cpu(), 1, 1, |options| {
        options.keys(["sesame"]).cors_origins(["https://app.example:8443"])
    });
    let ask = |head: &str, headers: &str| {
        let headers = format!("Host: localhost\r\n{headers}");
        let (status, answer) = exchange(&server.address, &request(head, &headers, ""));
        (status, answer.to_lowercase())
    };
    let origin = "Origin: https://app.example:8443\r\n";
    let allowed = "access-control-allow-origin: https://app.example:8443";
    let asked = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,x-stainless-os\r\n";
    let (status, answer) = ask("OPTIONS /v1/chat/completions", &format!("{origin}{asked}"));
    assert_eq!(status, 204);
    for line in [
        allowed,
        "access-control-allow-methods: get, post",
        "access-control-allow-headers: authorization,x-stainless-os",
        "vary: origin",
    ] {
        assert!(answer.contains(line), "{line}: {answer}");
    }
    let key = "Authorization: Bearer sesame\r\n";
    let (status, answer) = ask("GET /v1/models", &format!("{origin}{key}"));
    assert!(status == 200 && answer.contains(allowed), "{answer}");
    // A page may read why it is refused.
    let (status, answer) = ask("GET /v1/models", origin);
    assert!(status == 401 && answer.contains(allowed), "{answer}");
    for other in ["https://app.example", "https://evil.example:8443", "null"] {
        let origin = format!("Origin: {other}\r\n");
        let (status, answer) = ask("OPTIONS /v1/models", &format!("{origin}{asked}"));
        assert!(status == 403 && !answer.contains("access-control"), "{other}: {answer}");
        let (status, answer) = ask("GET /v1/models", &format!("{origin}{key}"));
        assert!(status == 403 && !answer.contains("access-control"), "{other}: {answer}");
    }
    let (status, answer) = ask("GET /v1/models", key);
    assert!(status == 200 && !answer.contains("access-control"), "{answer}");
    let any = Served::new(&cpu(), 1, 1, |options| options.cors_origins(["*"]));
    let headers = "Host: localhost\r\nOrigin: https://evil.example\r\n";
    let (status, answer) = exchange(&any.address, &request("GET /v1/models", headers, ""));
    assert!(status == 200 && answer.contains("access-control-allow-origin: https://evil.example"));
}

/// An app has the routes beside its own, at its root or below a path.
#[test]
fn apps_have_the_routes() {
    let batch = cpu().batch(BatchOptions::new(1, 100)).unwrap();
    let server = Server::new(batch, Options::new("tales").keys(["sesame"])).unwrap();
    let own = axum::routing::get(|| async { "own" });
    let app =
        axum::Router::new().route("/", own).nest("/llm", server.router()).merge(server.router());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    runtime.spawn(async move { axum::serve(listener, app).await.unwrap() });
    let key = [("Authorization", "Bearer sesame")];
    let body = json!({ "prompt": "Once", "max_tokens": 2 }).to_string();
    for prefix in ["", "/llm"] {
        let path = format!("POST {prefix}/v1/completions");
        let answer = send(&address, &path, &key, body.as_bytes()).unwrap();
        assert_eq!((answer.status, &answer.json()["usage"]["completion_tokens"]), (200, &json!(2)));
        assert_eq!(send(&address, &path, &[], body.as_bytes()).unwrap().status, 401);
        assert_eq!(get(&address, &format!("{prefix}/health")).status, 200);
    }
    assert_eq!(get(&address, "/").text(), "own");
    assert_eq!(get(&address, "/nowhere").status, 404, "the app's own");
    assert!(server.failure().is_none());
}

#[test]
fn keys_of_other_clients_are_accepted() {
    let server = Served::new(&cpu(), 1, 1, |options| options.keys(["sesame"]));
    let status = |headers: &[(&str, &str)]| {
        send(&server.address, "GET /v1/models", headers, b"").unwrap().status
    };
    assert_eq!(status(&[("x-api-key", "sesame")]), 200);
    assert_eq!(status(&[("x-api-key", "lentil")]), 401);
    assert_eq!(status(&[("x-api-key", "sesame"), ("Authorization", "Bearer lentil")]), 401);
}
