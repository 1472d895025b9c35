//! Connections: how many, and for how long.

use crate::{
    Served,
    client::{get, post},
    cpu, long,
    raw::{connect, exchange, half_closed, is_answered, request, rest, status},
    with,
};
use serde_json::json;
use std::{io::Read, thread::sleep, time::Duration};

const HOST: &str = "Host: localhost\r\n";
const WHILE: Duration = Duration::from_millis(300);

#[test]
fn idle_connections_and_unfinished_heads_end() {
    let server = Served::new(&cpu(), 1, 1, |options| options.idle(WHILE));
    let unfinished = b"POST /v1/completions HTTP/1.1\r\nHost: local";
    for (bytes, answers) in [(&b""[..], 0), (unfinished, 0), (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 1)] {
        let mut connection = connect(&server.address, bytes);
        connection.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(rest(&mut connection).matches("HTTP/1.1 200").count(), answers);
    }
    // An answer may take longer than a head.
    let slow = Served::endless(&cpu(), 1, 1, |options| options.idle(Duration::from_millis(1)));
    assert_eq!(slow.complete(&json!({ "prompt": "Once", "max_tokens": 100 }))["usage"]["completion_tokens"], 100);
}

#[test]
fn heads_are_bounded_in_bytes() {
    let server = Served::new(&cpu(), 1, 1, |options| options);
    let head = |bytes: usize| request("GET /health", &format!("{HOST}X-Long: {}\r\n", "x".repeat(bytes)), "");
    assert_eq!(exchange(&server.address, &head(30_000)).0, 200);
    assert_eq!(exchange(&server.address, &head(33_000)).0, 431);
}

#[test]
fn half_closed_clients_get_their_answers() {
    let server = Served::endless(&cpu(), 1, 1, |options| options);
    for stream in [false, true] {
        let body = json!({ "prompt": "Once", "max_tokens": 20, "stream": stream, "stream_options": null }).to_string();
        let answer = half_closed(&server.address, &request("POST /v1/completions", HOST, &body));
        let end = if stream { "data: [DONE]" } else { "\"total_tokens\"" };
        assert!(status(&answer) == 200 && answer.contains(end), "{answer}");
    }
}

/// A stream goes on as long as it is taken; of an answer that comes as a whole, nobody knows whether anybody waits for it.
#[test]
fn half_closed_answers_without_progress_end() {
    let server = Served::endless(&cpu(), 1, 1, |options| options.half_closed(WHILE));
    let body = with(long(), &[("stream", false.into())]).to_string();
    let answer = half_closed(&server.address, &request("POST /v1/completions", HOST, &body));
    assert_eq!(answer, "");
    server.wait_for_load(0, 0);
    let streamed = half_closed(&server.address, &request("POST /v1/completions", HOST, &long().to_string()));
    assert!(streamed.contains("data: [DONE]"), "it was taken");
}

/// 20 MB, of which sockets hold a part.
#[test]
fn answers_that_nobody_reads_end() {
    let server = Served::new(&cpu(), 1, 1, |options| options.stall(WHILE).patience(Duration::from_secs(60)));
    let body = json!({ "input": vec![[7]; 2048] }).to_string();
    let mut connection = connect(&server.address, &request("POST /v1/embeddings", HOST, &body));
    connection.set_read_timeout(None).unwrap();
    connection.read_exact(&mut [0; 12]).unwrap();
    sleep(5 * WHILE);
    connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut left = Vec::new();
    // It may end with a reset.
    let _ = connection.read_to_end(&mut left);
    assert!(!left.ends_with(b"0\r\n\r\n"), "{} bytes", left.len());
}

#[test]
fn connections_are_bounded_in_number() {
    let server = Served::new(&cpu(), 1, 1, |options| options.connections(2));
    let mut first = connect(&server.address, b"");
    let _second = connect(&server.address, b"");
    let third = connect(&server.address, &request("GET /health", HOST, ""));
    assert!(!is_answered(&third, WHILE), "two are open");
    first.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(rest(&mut first), "");
    assert!(is_answered(&third, Duration::from_secs(60)));
}

/// Closed at once, the socket would answer what still comes with a reset.
#[test]
fn refusals_reach_clients_that_still_send() {
    let server = Served::new(&cpu(), 1, 1, |options| options);
    let body = "x".repeat(3 << 20);
    for _ in 0..5 {
        let bytes = request("POST /nowhere", HOST, &body);
        assert_eq!(exchange(&server.address, &bytes).0, 404);
    }
    assert_eq!(get(&server.address, "/health").status, 200);
    assert_eq!(post(&server.address, "/v1/completions", &json!({ "prompt": "Hi", "max_tokens": 1 })).status, 200);
}
