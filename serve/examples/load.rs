//! Many clients at once: tokens a second, the time to the first token, and how many requests were
//! refused.
//!
//!     cargo run --release -p bitnet-wgpu-serve --example load -- 127.0.0.1:8080 [CLIENTS] [REQUESTS OF EACH] [TOKENS OF EACH]

#[path = "../tests/client/mod.rs"]
mod client;

use serde_json::{Value, json};
use std::{
    thread::{sleep, spawn},
    time::{Duration, Instant},
};

/// What a client saw of one request: the time to its first token, its tokens, and how often it was
/// refused before.
struct Seen {
    first: Duration,
    tokens: u64,
    refused: u32,
}

fn request(address: &str, client: u64, tokens: u64) -> Seen {
    let prompt = ["Once upon a time", "The bear", "A little girl lived", "In the wood there was"]
        [client as usize % 4];
    let body = json!({
        "prompt": format!("{prompt} {client}"), "max_tokens": tokens, "seed": client, "temperature": 0.7,
        "stream": true, "stream_options": { "include_usage": true },
    });
    let (begun, mut refused) = (Instant::now(), 0);
    let mut answer = loop {
        let answer = client::post(address, "/v1/completions", &body);
        match answer.status {
            200 => break answer,
            429 => refused += 1,
            status => panic!("{status}: {}", answer.json()),
        }
        sleep(Duration::from_millis(200));
    };
    let (mut first, mut used) = (None, 0);
    while let Some(event) = answer.event() {
        first.get_or_insert_with(|| begun.elapsed());
        if let Ok(chunk) = serde_json::from_str::<Value>(&event) {
            assert!(chunk.get("error").is_none(), "{chunk}");
            used = chunk["usage"]["completion_tokens"].as_u64().unwrap_or(used);
        }
    }
    Seen { first: first.unwrap_or_default(), tokens: used, refused }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().expect("an address, as 127.0.0.1:8080");
    let mut number =
        |default| arguments.next().map_or(default, |number| number.parse().expect("a number"));
    let (clients, requests, tokens) = (number(64), number(2), number(64));
    let begun = Instant::now();
    let threads: Vec<_> = (0..clients)
        .map(|client| {
            let address = address.clone();
            spawn(move || {
                (0..requests)
                    .map(|n| request(&address, client + n * clients, tokens))
                    .collect::<Vec<_>>()
            })
        })
        .collect();
    let mut seen: Vec<Seen> =
        threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect();
    let seconds = begun.elapsed().as_secs_f64();
    seen.sort_by_key(|seen| seen.first);
    let (all, refused): (u64, u32) =
        (seen.iter().map(|seen| seen.tokens).sum(), seen.iter().map(|seen| seen.refused).sum());
    let at = |share: f64| seen[((seen.len() - 1) as f64 * share) as usize].first.as_secs_f64();
    println!(
        "{clients} clients, {} requests, {all} tokens in {seconds:.1} s: {:.1} tokens a second",
        seen.len(),
        all as f64 / seconds
    );
    println!(
        "to the first token: median {:.2} s, 95 % {:.2} s; refused {refused} times, and tried again",
        at(0.5),
        at(0.95)
    );
}
