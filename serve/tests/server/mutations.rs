//! Requests that are damaged in many ways: each is answered or its connection closed, and the
//! server goes on.

use crate::{
    Served,
    client::{Answer, answer},
    cpu,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::Write,
    net::{Shutdown, TcpStream},
    time::Duration,
};

/// Threads that send requests: most of the time, they wait for the server to give an unfinished
/// request up.
const CLIENTS: u64 = 64;

/// What came of a request.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Status(u16),
    /// A stream of many tokens, which the client left after the first event.
    Cancelled,
    /// No answer: the server closed the connection, or the client did.
    Closed,
}

/// How many requests, unless `MUTATIONS` says it.
fn count() -> u64 {
    std::env::var("MUTATIONS")
        .map_or(1000, |count| count.parse().expect("MUTATIONS is a whole number"))
}

/// Values where others are expected.
fn odd(random: &mut StdRng) -> Value {
    let long = || "x".repeat(5000);
    match random.random_range(0..16) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => json!(u64::MAX),
        4 => json!(1e308),
        5 => json!(0.5),
        6 => json!(""),
        7 => json!("\u{0}\u{1b}[2J\u{202e}"),
        8 => json!(long()),
        9 => json!([]),
        10 => json!({}),
        11 => json!([[[[[[[[[[[1]]]]]]]]]]]),
        12 => json!([1, "two", null]),
        13 => json!({ "content": [{ "type": "text", "text": long() }] }),
        14 => json!(vec![7; 3000]),
        _ => json!("<|im_end|></s><think>"),
    }
}

/// Replaces, removes, or adds a value somewhere in `value`.
fn change(value: &mut Value, random: &mut StdRng) {
    match value {
        Value::Object(map) if !map.is_empty() && random.random_bool(0.9) => {
            let key = map.keys().nth(random.random_range(0..map.len())).expect("a key").clone();
            match random.random_range(0..6) {
                0 => drop(map.remove(&key)),
                1 => drop(
                    map.insert(
                        ["stop", "n", "logit_bias", "seed", "stream_options", "?"]
                            [random.random_range(0..6)]
                        .into(),
                        odd(random),
                    ),
                ),
                _ => change(map.get_mut(&key).expect("it is there"), random),
            }
        }
        Value::Array(list) if !list.is_empty() && random.random_bool(0.7) => {
            let at = random.random_range(0..list.len());
            match random.random_range(0..4) {
                0 => drop(list.remove(at)),
                1 => list.push(odd(random)),
                _ => change(&mut list[at], random),
            }
        }
        other => *other = odd(random),
    }
}

/// Changes some bytes.
fn damage(bytes: &mut Vec<u8>, random: &mut StdRng) {
    for _ in 0..random.random_range(1..4) {
        let at = random.random_range(0..bytes.len().max(1));
        match random.random_range(0..5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at.min(bytes.len()), random.random()),
            2 => drop((at < bytes.len()).then(|| bytes.remove(at))),
            3 => bytes.extend_from_within(at.min(bytes.len())..),
            _ => bytes
                .iter_mut()
                .skip(at)
                .take(1)
                .for_each(|byte| *byte ^= 1 << random.random_range(0..8)),
        }
    }
}

/// A path, and a body that would be answered.
fn sound(random: &mut StdRng) -> (&'static str, Value) {
    match random.random_range(0..9) {
        0 => (
            "POST /v1/chat/completions",
            json!({ "messages": [{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "Hi" }], "max_tokens": 2, "stream": true }),
        ),
        1 => (
            "POST /v1/completions",
            json!({ "prompt": ["Once", "The"], "max_tokens": 2, "n": 2, "stop": ["x", "\n"], "logit_bias": { "5": 1 }, "seed": 3 }),
        ),
        2 => (
            "POST /v1/completions",
            json!({ "prompt": [5, 6, 7], "max_tokens": 1, "temperature": 0.5, "top_p": 0.9, "stream": true, "stream_options": { "include_usage": true } }),
        ),
        3 => {
            ("POST /v1/embeddings", json!({ "input": ["one", "two"], "encoding_format": "base64" }))
        }
        4 => (
            "POST /v1/completions",
            json!({ "prompt": ["Once", [5, 6]], "max_tokens": 1, "logprobs": 2, "echo": true, "n": 2 }),
        ),
        5 => (
            "POST /v1/messages",
            json!({ "messages": [{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "Oh" }], "system": "Be brief.", "max_tokens": 2, "stop_sequences": ["x"], "stream": true }),
        ),
        6 => (
            "POST /v1/responses",
            json!({ "input": [{ "role": "user", "content": [{ "type": "input_text", "text": "Hi" }] }], "instructions": "Be brief.", "max_output_tokens": 2 }),
        ),
        7 => ("POST /tokenize", json!({ "messages": [{ "role": "user", "content": "Hi" }] })),
        _ => ("GET /v1/models/tales", Value::Null),
    }
}

/// Sends one damaged request, and reads the answer or a part of it.
fn send(address: &str, random: &mut StdRng) -> Outcome {
    let (start, mut body) = sound(random);
    let cancels = body["stream"] == true && random.random_bool(0.5);
    if cancels {
        body["max_tokens"] = 200.into();
    }
    let (changes, damaged) = (random.random_range(0..3), random.random_range(0..4));
    (0..changes).for_each(|_| change(&mut body, random));
    let mut body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    if damaged == 0 {
        damage(&mut body, random);
    }
    let length = if random.random_bool(0.97) { body.len() } else { random.random_range(0..10_000) };
    let mut head = format!(
        "{start} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
    .into_bytes();
    if damaged == 1 {
        damage(&mut head, random);
    }
    let mut connection = TcpStream::connect(address).expect("the server listens");
    connection.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    // The server may have closed it before all is sent.
    let _ = connection.write_all(&[head, body].concat());
    match random.random_range(0..20) {
        0 => return Outcome::Closed,
        // What is unfinished is waited for until a timeout of the server's, which here is not the
        // point.
        n if n < 5 || damaged == 1 || length > 0 => drop(connection.shutdown(Shutdown::Write)),
        _ => {}
    }
    let Ok(answer) = answer(connection) else { return Outcome::Closed };
    read(answer, cancels, random)
}

fn read(mut answer: Answer, cancels: bool, random: &mut StdRng) -> Outcome {
    let is_stream = answer.header("content-type") == Some("text/event-stream");
    if cancels && is_stream && answer.event().is_some() {
        return Outcome::Cancelled;
    }
    if random.random_bool(0.9) {
        while answer.event().is_some() {}
    }
    Outcome::Status(answer.status)
}

/// Sends all requests, and counts what came of them.
fn outcomes(address: &str) -> BTreeMap<Outcome, u64> {
    let client = |seed| {
        let mut random = StdRng::seed_from_u64(seed);
        (seed..count())
            .step_by(CLIENTS as usize)
            .map(|_| send(address, &mut random))
            .collect::<Vec<_>>()
    };
    let mut counts = BTreeMap::new();
    std::thread::scope(|threads| {
        let clients: Vec<_> =
            (0..CLIENTS).map(|seed| threads.spawn(move || client(seed))).collect();
        let all = clients.into_iter().flat_map(|client| client.join().expect("a client"));
        all.for_each(|outcome| *counts.entry(outcome).or_default() += 1);
    });
    counts
}

#[test]
fn damaged_requests_leave_the_server_whole() {
    let hurry = Duration::from_secs(3);
    let server = Served::new(&cpu(), 4, 256, |options| {
        options
            .max_tokens(Some(4))
            .half_closed_timeout(hurry)
            .header_timeout(hurry)
            .body_timeout(hurry)
    });
    let sound = json!({ "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0 });
    let before = server.complete(&sound)["choices"].clone();
    let outcomes = outcomes(&server.address);
    println!("{outcomes:?}");
    // Some are as good as before, some are wrong, some are canceled, and none is the server's
    // fault.
    assert!(
        outcomes[&Outcome::Status(200)] > 0 && outcomes[&Outcome::Status(400)] > 0,
        "{outcomes:?}"
    );
    assert!(outcomes[&Outcome::Cancelled] >= count() / 100, "{outcomes:?}");
    assert!(
        outcomes.keys().all(|outcome| !matches!(outcome, Outcome::Status(500..))),
        "{outcomes:?}"
    );
    server.wait_for_load(0, 0);
    assert_eq!(server.complete(&sound)["choices"], before);
}
