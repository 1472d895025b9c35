//! Bytes and tokens of requests, before they are computed.

use crate::{
    Served,
    client::{get, open, post, send},
    cpu,
    raw::is_answered,
    with,
};
use axum::{
    body::{Body, to_bytes},
    http::Request,
};
use bitnet_serve::{Options, Server};
use bitnet_wgpu::model::BatchOptions;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use std::{io::Write, net::TcpStream, time::Duration};

const COMPLETIONS: &str = "POST /v1/completions";

/// A request of which only a part of the body has come.
fn unfinished(server: &Served, key: &str, announced: usize, sent: usize) -> TcpStream {
    let (key, length) = (format!("Bearer {key}"), announced.to_string());
    let headers = [("Authorization", &*key), ("Content-Length", &length)];
    open(&server.address, COMPLETIONS, &headers, &vec![b' '; sent]).unwrap()
}

/// A complete request whose body has `bytes` bytes.
fn finished(server: &Served, key: &str, bytes: usize) -> u16 {
    let body = json!({ "prompt": "Hi", "max_tokens": 1 }).to_string();
    let body = " ".repeat(bytes - body.len()) + &body;
    send(
        &server.address,
        COMPLETIONS,
        &[("Authorization", &format!("Bearer {key}"))],
        body.as_bytes(),
    )
    .unwrap()
    .status
}

#[test]
fn bytes_that_arrive_are_bounded() {
    let server = Served::new(&cpu(), 1, 1, |options| {
        options.keys(["ann", "bob"]).max_body_bytes(100_000).max_pending_bytes(400_000)
    });
    let mut held = Vec::new();
    let mut refused = 0;
    for _ in 0..20 {
        let mut connection = unfinished(&server, "ann", 100_000, 60_000);
        if is_answered(&connection, Duration::from_secs(1)) {
            let answer = crate::client::answer(connection).unwrap();
            assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
            assert_eq!(answer.json()["error"]["code"], "rate_limit_exceeded");
            refused += 1;
        } else {
            connection.write_all(b" ").unwrap();
            held.push(connection);
        }
    }
    assert!(
        held.len() <= 3 && refused >= 17,
        "{} held, {refused} refused: 60 000 bytes each, of 200 000",
        held.len()
    );
    assert_eq!(finished(&server, "ann", 90_000), 429);
    assert_eq!(finished(&server, "bob", 90_000), 200, "others have the other half");
    // Bytes are given back with their connection, once the server has seen it end.
    held.iter().for_each(|connection| connection.shutdown(std::net::Shutdown::Both).unwrap());
    while finished(&server, "ann", 90_000) != 200 {
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn announced_bytes_take_no_room() {
    let server = Served::new(&cpu(), 1, 1, |options| {
        options.max_body_bytes(100_000).max_pending_bytes(210_000)
    });
    let held: Vec<TcpStream> = (0..50).map(|_| unfinished(&server, "", 100_000, 1)).collect();
    assert_eq!(finished(&server, "", 90_000), 200);
    assert!(held.iter().all(|connection| !is_answered(connection, Duration::from_millis(1))));
}

#[test]
fn bytes_are_given_back_with_every_answer() {
    let server = Served::new(&cpu(), 1, 1, |options| {
        options.max_body_bytes(100_000).max_pending_bytes(200_000)
    });
    let junk = "x".repeat(90_000);
    for _ in 0..10 {
        assert_eq!(finished(&server, "", 90_000), 200);
        assert_eq!(send(&server.address, COMPLETIONS, &[], junk.as_bytes()).unwrap().status, 400);
        assert_eq!(
            send(&server.address, "POST /v1/embeddings", &[], junk.as_bytes()).unwrap().status,
            400
        );
        assert_eq!(
            post(&server.address, "/v1/embeddings", &json!({ "input": vec!["a"; 40] })).json()["object"],
            "list"
        );
    }
}

/// By their bytes, before they are tokenized; a template that writes too much as well.
#[test]
fn prompts_that_cannot_fit_are_refused() {
    let server = Served::new(&cpu(), 1, 1, |options| options);
    let long = "a ".repeat((2 << 20) - 200);
    let chat = json!([{ "role": "user", "content": long }]);
    for (path, field, value) in [
        ("/v1/completions", "prompt", json!(long)),
        ("/v1/completions", "prompt", json!(["Hi", long])),
        ("/v1/completions", "prompt", json!(vec![7; 501])),
        ("/v1/completions", "prompt", json!(vec![7; 1_000_000])),
        ("/v1/chat/completions", "messages", chat),
        ("/v1/embeddings", "input", json!(long)),
        ("/v1/embeddings", "input", json!([[7], vec![7; 501]])),
    ] {
        let answer = post(&server.address, path, &with(json!({}), &[(field, value)]));
        let (status, error) = (answer.status, answer.json()["error"].clone());
        assert!(
            status == 400 && error["param"] == field && error["code"] == "context_length_exceeded",
            "{path}: {status} {error}"
        );
        assert!(!error["message"].as_str().unwrap().contains("aa"), "{error}");
    }
    let refused = |prompt: Value| {
        post(&server.address, "/v1/completions", &json!({ "prompt": prompt })).json()["error"]["message"].to_string()
    };
    assert!(refused(json!(long)).contains("bytes"), "not tokenized");
    let tokenizer = cpu().tokenizer().unwrap().with_chat_template("{{ 'a ' * 10000000 }}");
    let server = Served::new(&cpu(), 1, 1, |options| options.tokenizer(Some(tokenizer)));
    let answer = post(
        &server.address,
        "/v1/chat/completions",
        &json!({ "messages": [{ "role": "user", "content": "Hi" }] }),
    );
    assert_eq!(answer.status, 400);
}

#[test]
fn tokens_of_embeddings_are_bounded() {
    let server = Served::new(&cpu(), 1, 1, |options| options.max_embedding_tokens(100));
    let embed = |texts: usize| {
        post(&server.address, "/v1/embeddings", &json!({ "input": vec![vec![7; 10]; texts] }))
    };
    assert_eq!(embed(10).status, 200);
    let refused = embed(11);
    let (status, error) = (refused.status, refused.json()["error"].clone());
    assert!(status == 400 && error["param"] == "input", "{status} {error}");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("more than 100 tokens in total (`--max-embedding-tokens`)"),
        "{error}"
    );
    assert_eq!(get(&server.address, "/health").status, 200);
}

#[test]
fn bytes_of_vectors_are_bounded() {
    let server = Served::new(&cpu(), 1, 1, |options| {
        options.max_body_bytes(100_000).max_pending_bytes(200_000)
    });
    let embed = |texts: usize| {
        post(&server.address, "/v1/embeddings", &json!({ "input": vec!["a"; texts] }))
    };
    assert_eq!(embed(40).status, 200);
    let refused = embed(60);
    let (status, error) = (refused.status, refused.json()["error"].clone());
    assert!(
        status == 400 && error["message"].as_str().unwrap().contains("at most 100000"),
        "{status} {error}"
    );
}

#[test]
fn logprobs_are_bounded_in_bytes() {
    let server = Served::new(&cpu(), 1, 1, |options| {
        options.max_body_bytes(10_000).max_pending_bytes(40_000)
    });
    let ask = |body: &Value| post(&server.address, "/v1/completions", body);
    let body = json!({ "prompt": "Hi", "max_tokens": 1, "logprobs": 1, "echo": true });
    assert_eq!(ask(&body).status, 200);
    let long = json!({ "prompt": vec![7; 300], "max_tokens": 0, "logprobs": 20 });
    assert_eq!(ask(&long).status, 200, "nothing is repeated");
    let error = ask(&with(long, &[("echo", true.into())])).json()["error"].clone();
    assert!(
        error["param"] == "logprobs"
            && error["message"].as_str().unwrap().contains("at most 20000"),
        "{error}"
    );
    let generated = json!({ "prompt": "Hi", "max_tokens": 200, "logprobs": 1 });
    assert_eq!(ask(&generated).status, 400);
    assert_eq!(
        ask(&with(generated, &[("stream", true.into())])).status,
        200,
        "it is JSON token by token"
    );
}

#[test]
fn bytes_are_held_until_an_answer_is_read() {
    let model = cpu();
    let batch = model.batch(BatchOptions::new(1, 100)).unwrap();
    let options = Options::new("tales").max_body_bytes(10_000).max_pending_bytes(60_000);
    let app = TowerToHyperService::new(Server::new(batch, options).unwrap().router());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ask = |path: &str, body: &Value| {
        let request = Request::post(path).header("Content-Type", "application/json");
        let request = request.body(Body::from(body.to_string())).unwrap();
        runtime.block_on(app.call(request)).unwrap()
    };
    // Each takes more than a third of the bytes.
    let texts = vec!["Hi"; 21_000 / (4 * model.config().hidden)];
    let logprobs = json!({ "prompt": "Once", "max_tokens": 12, "logprobs": 1 });
    for (path, body) in
        [("/v1/completions", logprobs), ("/v1/embeddings", json!({ "input": texts }))]
    {
        let unread = ask(path, &body);
        assert_eq!([unread.status(), ask(path, &body).status()].map(|it| it.as_u16()), [200, 429]);
        drop(unread);
        let read = ask(path, &body);
        assert_eq!(read.status(), 200);
        runtime.block_on(to_bytes(read.into_body(), usize::MAX)).unwrap();
        assert_eq!(ask(path, &body).status(), 200, "{path}");
    }
}
