//! Connections: how many, and for how long.

use crate::{
    Served,
    client::{get, post},
    cpu, long,
    raw::{connect, exchange, half_closed, request, rest, status},
    with,
};
use bitnet_wgpu::model::GenerateOptions;
use serde_json::json;
use std::{
    io::{Read, Write},
    net::Shutdown,
    thread::sleep,
    time::Duration,
};

const HOST: &str = "Host: localhost\r\n";
const WHILE: Duration = Duration::from_millis(300);

#[test]
fn idle_connections_and_unfinished_heads_end() {
    let server = Served::new(&cpu(), 1, 1, |options| options.header_timeout(WHILE));
    let unfinished = b"POST /v1/completions HTTP/1.1\r\nHost: local";
    for (bytes, answers) in
        [(&b""[..], 0), (unfinished, 0), (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 1)]
    {
        let mut connection = connect(&server.address, bytes);
        connection.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(rest(&mut connection).matches("HTTP/1.1 200").count(), answers);
    }
    // An answer may take longer than a head.
    let slow =
        Served::endless(&cpu(), 1, 1, |options| options.header_timeout(Duration::from_millis(1)));
    assert_eq!(
        slow.complete(&json!({ "prompt": "Once", "max_tokens": 100 }))["usage"]["completion_tokens"],
        100
    );
}

#[test]
fn heads_are_bounded_in_bytes() {
    let server = Served::new(&cpu(), 1, 1, |options| options);
    let head = |bytes: usize| {
        request("GET /health", &format!("{HOST}X-Long: {}\r\n", "x".repeat(bytes)), "")
    };
    assert_eq!(exchange(&server.address, &head(30_000)).0, 200);
    assert_eq!(exchange(&server.address, &head(33_000)).0, 431);
}

#[test]
fn half_closed_clients_get_their_answers() {
    let server = Served::endless(&cpu(), 1, 1, |options| options);
    for stream in [false, true] {
        let body =
            json!({ "prompt": "Once", "max_tokens": 20, "stream": stream, "stream_options": null })
                .to_string();
        let answer = half_closed(&server.address, &request("POST /v1/completions", HOST, &body));
        let end = if stream { "data: [DONE]" } else { "\"total_tokens\"" };
        assert!(status(&answer) == 200 && answer.contains(end), "{answer}");
    }
}

/// A stream goes on as long as it is taken; of an answer that comes as a whole, nobody knows
/// whether anybody waits for it.
#[test]
fn half_closed_answers_without_progress_end() {
    // An answer of some tokens, of which each takes a tenth of the limit and what it computes.
    let ask = |limit: Duration, tokens: u64, stream: bool| {
        let slow =
            GenerateOptions::default().ignore_eos(true).logits(move |_, _| sleep(limit / 10));
        let server =
            Served::new(&cpu(), 1, 1, |options| options.defaults(slow).half_closed_timeout(limit));
        let more = [("max_tokens", tokens.into()), ("stream", stream.into())];
        let body = with(long(), &more).to_string();
        let answer = half_closed(&server.address, &request("POST /v1/completions", HOST, &body));
        server.wait_for_load(0, 0);
        answer
    };
    assert_eq!(ask(WHILE, 400, false), "");
    // On busy cores, a token may take longer than a short limit.
    let mut limits = [1, 4, 16].into_iter().map(|times| times * WHILE);
    assert!(limits.any(|limit| ask(limit, 30, true).contains("data: [DONE]")), "it was taken");
}

/// 20 MB, of which sockets hold a part.
#[test]
fn answers_that_nobody_reads_end() {
    let server = Served::new(&cpu(), 1, 1, |options| {
        options.write_timeout(WHILE).body_timeout(Duration::from_secs(60))
    });
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

/// The status of an answer to a connection that an address opens.
fn health_from(source: &str, server: &Served) -> u16 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let connected = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind(format!("{source}:0").parse().unwrap())?;
        socket.connect(server.address.parse().unwrap()).await?.into_std()
    });
    let mut connection = connected.unwrap();
    connection.set_nonblocking(false).unwrap();
    let (mut answer, sent) = (Vec::new(), connection.write_all(&request("GET /health", HOST, "")));
    // It may end with a reset.
    let _ = connection.read_to_end(&mut answer);
    assert!(sent.is_ok() || !answer.is_empty());
    status(&String::from_utf8(answer).unwrap())
}

#[test]
fn connections_are_bounded_in_number() {
    let server = Served::new(&cpu(), 1, 1, |options| options.max_connections(4));
    let idle = [connect(&server.address, b""), connect(&server.address, b"")];
    let refused = rest(&mut connect(&server.address, b""));
    assert!(
        status(&refused) == 429
            && refused.contains("Retry-After: 1")
            && refused.contains("rate_limit_exceeded"),
        "{refused}"
    );
    // Elsewhere, 127.0.0.1 is the only address of the loopback interface.
    if cfg!(any(target_os = "linux", windows)) {
        assert_eq!(health_from("127.0.0.2", &server), 200, "two of four are left");
    }
    assert_eq!(health_from("127.0.0.1", &server), 429);
    // A place is given back with its connection, once the server has seen it end.
    idle[0].shutdown(Shutdown::Both).unwrap();
    while health_from("127.0.0.1", &server) != 200 {
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn one_connection_is_enough_to_serve() {
    let server = Served::new(&cpu(), 1, 1, |options| options.max_connections(1));
    assert_eq!(get(&server.address, "/health").status, 200);
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
    assert_eq!(
        post(&server.address, "/v1/completions", &json!({ "prompt": "Hi", "max_tokens": 1 }))
            .status,
        200
    );
}
