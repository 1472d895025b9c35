//! Measures how long clients wait while another client attacks the server, beside how long they
//! wait without the attack.
//!
//!     bitnet serve MODEL --cpu --api-key-file KEYS
//!     cargo run --release -p bitnet-wgpu-serve --example fairness -- 127.0.0.1:8080 KEYS [PID OF THE SERVER [ATTACK]]
//!
//! KEYS has one key a line: the first is the attacker's, each other one that of a client. With the
//! server's PID, the example also says how much memory the server holds before, during and after
//! each attack (Linux). ATTACK is a part of the name of those that are measured, instead of all.

#[path = "../tests/client/mod.rs"]
mod client;

use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread::{scope, sleep},
    time::{Duration, Instant},
};

/// Requests of each client in a run.
const REQUESTS: u64 = 4;
/// Tokens of each request.
const TOKENS: u64 = 32;
/// Connections of the attacker.
const CONNECTIONS: usize = 8;
/// Time between an answer and the attacker's next request on a connection: 32 requests of 4 MiB a
/// second are what a link of 1 Gbit/s carries. Without it, what is measured on one machine is the
/// processor time of the attacker itself.
const PAUSE: Duration = Duration::from_millis(250);
/// Time after an attack until what it left has ended, and the server has returned memory.
const SETTLE: Duration = Duration::from_secs(6);

struct Attack {
    name: &'static str,
    /// More than eight send as many requests a second as eight.
    connections: usize,
    path: &'static str,
    body: fn() -> Value,
    /// The last byte of the body is never sent.
    is_cut: bool,
}

const ATTACKS: [Attack; 8] = [
    attack("16 stop strings of 250 kB, n = 4", COMPLETIONS, || stops(16, 250_000)),
    attack("4 stop strings of 1 kB, n = 4", COMPLETIONS, || stops(4, 1000)),
    attack("answers of 400 tokens", COMPLETIONS, || json!({ "prompt": "a", "max_tokens": 400 })),
    attack("prompts of 4 MiB", COMPLETIONS, || json!({ "prompt": text(4 << 20) })),
    attack("conversations of 4 MiB", CHATS, || conversation(4 << 20)),
    attack("prompts of 16 KiB", COMPLETIONS, || json!({ "prompt": text(16 << 10) })),
    attack("embeddings of 2048 texts", EMBEDDINGS, || json!({ "input": vec![text(400); 2048] })),
    Attack {
        connections: 272,
        is_cut: true,
        ..attack(
            "bodies of 4 MiB that do not end",
            COMPLETIONS,
            || json!({ "prompt": text(4 << 20) }),
        )
    },
];

const fn attack(name: &'static str, path: &'static str, body: fn() -> Value) -> Attack {
    Attack { name, connections: CONNECTIONS, path, body, is_cut: false }
}

const COMPLETIONS: &str = "/v1/completions";
const CHATS: &str = "/v1/chat/completions";
const EMBEDDINGS: &str = "/v1/embeddings";

fn text(bytes: usize) -> String {
    "a ".repeat(bytes / 2 - 100)
}

fn stops(count: usize, length: usize) -> Value {
    let stops: Vec<String> = (0..count).map(|n| "x".repeat(length) + &n.to_string()).collect();
    json!({ "prompt": "a", "n": 4, "max_tokens": 400, "stop": stops })
}

fn conversation(bytes: usize) -> Value {
    json!({ "messages": [{ "role": "user", "content": text(bytes) }], "max_tokens": 1 })
}

/// A server, as one of its clients sees it.
struct Target<'a> {
    address: &'a str,
    key: &'a str,
}

impl Target<'_> {
    fn send(&self, path: &str, body: &Value) -> std::io::Result<client::Answer> {
        let authorization = format!("Bearer {}", self.key);
        client::send(
            self.address,
            &format!("POST {path}"),
            &[("Authorization", &authorization)],
            body.to_string().as_bytes(),
        )
    }

    /// The status of the answer to a request of the attacker, which is read to its end; 0 where the
    /// server closes the connection.
    fn attack(&self, path: &str, body: &[u8], is_cut: bool) -> u16 {
        let (authorization, length) = (format!("Bearer {}", self.key), body.len().to_string());
        let headers = [
            ("Authorization", &*authorization),
            ("Content-Length", &*length),
            ("Content-Type", "application/json"),
        ];
        let body = if is_cut { &body[..body.len() - 1] } else { body };
        client::send(self.address, &format!("POST {path}"), &headers, body).map_or(0, |answer| {
            let status = answer.status;
            let _ = answer.text();
            status
        })
    }

    /// The time to the first token of a request. One that is refused for now is sent again after
    /// the time that the server names.
    fn wait(&self, seed: u64) -> Duration {
        let body = json!({ "prompt": format!("Once upon a time {seed}"), "max_tokens": TOKENS, "seed": seed, "temperature": 0.7, "stream": true });
        let begun = Instant::now();
        loop {
            match self.send(COMPLETIONS, &body) {
                Ok(mut answer) if answer.status == 200 => {
                    answer.event();
                    let waited = begun.elapsed();
                    while answer.event().is_some() {}
                    return waited;
                }
                Ok(answer) if answer.status == 429 => {
                    sleep(Duration::from_secs(
                        answer
                            .header("retry-after")
                            .and_then(|seconds| seconds.parse().ok())
                            .unwrap_or(1),
                    ));
                }
                Ok(answer) => {
                    let status = answer.status;
                    panic!("{status}: {}", answer.json())
                }
                // A connection that the server had no room for.
                Err(_) => sleep(Duration::from_millis(100)),
            }
        }
    }
}

/// How long requests waited, in order.
struct Waits(Vec<Duration>);

impl Waits {
    /// Of all clients at once.
    fn measure(address: &str, keys: &[&str]) -> Self {
        let mut waits: Vec<Duration> = scope(|threads| {
            let threads: Vec<_> = keys
                .iter()
                .enumerate()
                .map(|(n, key)| {
                    threads.spawn(move || {
                        (0..REQUESTS)
                            .map(|i| Target { address, key }.wait(n as u64 * REQUESTS + i))
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect()
        });
        waits.sort();
        Self(waits)
    }

    fn longest(&self) -> f64 {
        self.0[self.0.len() - 1].as_secs_f64()
    }

    fn median(&self) -> f64 {
        self.0[self.0.len() / 2].as_secs_f64()
    }
}

/// Memory of a process in MB, if the system says it.
fn resident(pid: Option<&str>) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", pid?)).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? / 1000)
}

fn shown(megabytes: Option<u64>) -> String {
    megabytes.map_or("?".into(), |megabytes| megabytes.to_string())
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().expect("an address, as 127.0.0.1:8080");
    let keys =
        fs::read_to_string(arguments.next().expect("a file of keys")).expect("a file of keys");
    let keys: Vec<&str> = keys.lines().collect();
    let (pid, [attacker, clients @ ..]) = (arguments.next(), &keys[..]) else {
        panic!("a key for the attacker, and one for each client")
    };
    let (pid, expected) = (pid.as_deref(), arguments.next().unwrap_or_default());
    println!(
        "{} clients, {REQUESTS} requests of {TOKENS} tokens each; seconds to the first token: median, longest",
        clients.len()
    );
    Waits::measure(&address, clients);
    println!(
        "| attack | without | during | ratio of the longest | MB before, during, after | the attacker's answers |\n| --- | --- | --- | --: | --- | --- |"
    );
    let attacks = ATTACKS.into_iter().filter(|attack| attack.name.contains(&expected));
    for attack in attacks {
        let before = Waits::measure(&address, clients);
        let memory = resident(pid);
        let (during, most, answers) =
            under(&attack, &Target { address: &address, key: attacker }, || {
                (Waits::measure(&address, clients), resident(pid))
            });
        sleep(SETTLE);
        let after = Waits::measure(&address, clients);
        sleep(SETTLE);
        let without = before.longest().max(after.longest());
        println!(
            "| {} | {:.2}, {:.2} | {:.2}, {:.2} | {:.2} | {}, {}, {} | {answers:?} |",
            attack.name,
            before.median(),
            without,
            during.median(),
            during.longest(),
            during.longest() / without,
            shown(memory),
            shown(most),
            shown(resident(pid)),
        );
    }
}

/// Measures during an attack. Returns the counts of the attacker's answers by status too.
fn under(
    attack: &Attack,
    target: &Target<'_>,
    measure: impl FnOnce() -> (Waits, Option<u64>),
) -> (Waits, Option<u64>, BTreeMap<u16, usize>) {
    let body = (attack.body)().to_string().into_bytes();
    let ends = AtomicBool::new(false);
    let pause = PAUSE * attack.connections as u32 / CONNECTIONS as u32;
    let attacker = || {
        let mut answers = Vec::new();
        while !ends.load(Ordering::Relaxed) {
            answers.push(target.attack(attack.path, &body, attack.is_cut));
            sleep(pause);
        }
        answers
    };
    scope(|threads| {
        let attackers: Vec<_> = (0..attack.connections).map(|_| threads.spawn(attacker)).collect();
        sleep(Duration::from_secs(1));
        let (during, most) = measure();
        ends.store(true, Ordering::Relaxed);
        let mut answers = BTreeMap::new();
        for status in attackers.into_iter().flat_map(|thread| thread.join().expect("an attacker")) {
            *answers.entry(status).or_default() += 1;
        }
        (during, most, answers)
    })
}
