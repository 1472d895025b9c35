//! Many clients at once, of which some leave in the middle: nothing is lost, and memory stays flat.
//! `LOAD_REQUESTS=5000` makes the run longer; it prints what it measured.

mod client;

use bitnet_serve::{Options, Server};
use bitnet_wgpu::model::{BatchOptions, Model};
use client::{Answer, get, post, send};
use serde_json::{Value, json};
use std::{
    fs,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    thread::{scope, sleep},
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, sync::oneshot};

const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tales-22m");
const SLOTS: usize = 4;
const QUEUE: usize = 8;
/// More than have room, so that some are refused and try again.
const CLIENTS: usize = 16;
/// Parts of the run, after each of which memory is measured.
const ROUNDS: usize = 4;
/// Bytes that memory may grow after the first round: the allocator's, not the server's.
const GROWTH: u64 = 24 << 20;

/// What a client does with an answer.
#[derive(Clone, Copy, PartialEq)]
enum Reader {
    /// It takes all of it.
    Takes,
    /// It takes all of it, which is JSON and another one each time.
    Parses,
    /// It leaves after some events of a stream.
    Leaves,
    /// It leaves before anything has come.
    Drops,
}

/// A kind of request.
struct Kind {
    path: &'static str,
    body: Value,
    status: u16,
    reader: Reader,
}

impl Kind {
    fn new(path: &'static str, body: Value, status: u16, reader: Reader) -> Self {
        Self { path, body, status, reader }
    }
}

/// Requests whose answers are JSON or tool calls.
fn structured_kinds() -> Vec<Kind> {
    use Reader::{Drops, Leaves, Parses};
    let chats = "/v1/chat/completions";
    let properties = json!({ "answer": { "enum": ["yes", "no"] }, "n": { "type": "integer", "minimum": 0, "maximum": 999 } });
    let schema = json!({ "type": "object", "properties": properties, "required": ["answer", "n"], "additionalProperties": false });
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "answer", "schema": schema } });
    let function = json!({ "name": "report", "parameters": schema });
    let tools = json!([{ "type": "function", "function": function }]);
    let messages = json!([{ "role": "user", "content": "Does the bear sleep?" }]);
    let chat = |more: Value| {
        let mut body = json!({ "messages": messages, "max_tokens": 200 });
        more.as_object().unwrap().iter().for_each(|(key, value)| body[key] = value.clone());
        body
    };
    let format_of =
        |schema: &Value| json!({ "type": "json_schema", "name": "answer", "schema": schema });
    let item = json!([{ "type": "function", "name": "report", "parameters": schema }]);
    let own = json!([{ "name": "report", "input_schema": schema }]);
    let either = json!({ "tools": tools, "response_format": format, "stream": true });
    let called = json!({ "tools": tools, "tool_choice": "required", "parallel_tool_calls": false, "stream": true });
    vec![
        Kind::new(chats, chat(json!({ "response_format": format })), 200, Parses),
        Kind::new(chats, chat(called.clone()), 200, Parses),
        Kind::new(chats, chat(either.clone()), 200, Parses),
        Kind::new(
            "/v1/responses",
            json!({ "input": "Does it?", "tools": item, "parallel_tool_calls": false, "text": { "format": format_of(&schema) } }),
            200,
            Parses,
        ),
        Kind::new(
            "/v1/messages",
            chat(
                json!({ "tools": own, "tool_choice": { "type": "any", "disable_parallel_tool_use": true } }),
            ),
            200,
            Parses,
        ),
        Kind::new(chats, chat(called), 200, Leaves),
        Kind::new(chats, chat(either), 200, Drops),
        Kind::new(
            "/v1/completions",
            json!({ "prompt": "Once", "max_tokens": 300, "guided_regex": "[a-z ]{400}", "stream": true }),
            200,
            Leaves,
        ),
    ]
}

fn kinds() -> Vec<Kind> {
    use Reader::{Drops, Leaves, Takes};
    let (completions, chats) = ("/v1/completions", "/v1/chat/completions");
    let messages = json!([{ "role": "user", "content": "Tell me a tale of a bear." }]);
    let stream = |tokens: usize| json!({ "prompt": "The bear", "max_tokens": tokens, "temperature": 0, "stream": true });
    let words = "word ".repeat(2000);
    let mut kinds = vec![
        Kind::new(completions, json!({ "prompt": "Once", "max_tokens": 9, "seed": 3 }), 200, Takes),
        Kind::new(completions, stream(12), 200, Takes),
        Kind::new(completions, stream(300), 200, Leaves),
        Kind::new(completions, stream(300), 200, Drops),
        Kind::new(
            completions,
            json!({ "prompt": "The bear ate.", "echo": true, "logprobs": 3, "max_tokens": 4, "temperature": 0 }),
            200,
            Takes,
        ),
        Kind::new(
            chats,
            json!({ "messages": messages, "max_tokens": 6, "n": 2, "seed": 5, "logprobs": true, "top_logprobs": 2 }),
            200,
            Takes,
        ),
        Kind::new(
            chats,
            json!({ "messages": messages, "max_tokens": 200, "stream": true }),
            200,
            Leaves,
        ),
        Kind::new(
            "/v1/messages",
            json!({ "messages": messages, "max_tokens": 6, "temperature": 0, "stream": true }),
            200,
            Takes,
        ),
        Kind::new(
            "/v1/responses",
            json!({ "input": "A ship", "max_output_tokens": 5, "temperature": 0 }),
            200,
            Takes,
        ),
        Kind::new("/v1/embeddings", json!({ "input": ["A bear.", "A ship at sea."] }), 200, Takes),
        Kind::new("/v1/embeddings", json!({ "input": vec!["A bear."; 12] }), 200, Drops),
        Kind::new("/tokenize", json!({ "prompt": "Once upon a time" }), 200, Takes),
        Kind::new(completions, json!({ "prompt": words }), 400, Takes),
        Kind::new(completions, json!({ "prompt": "x", "temperature": 9 }), 400, Takes),
    ];
    kinds.extend(structured_kinds());
    kinds
}

/// Checks the texts and the arguments of an answer: together they are one JSON object.
fn check_json(answer: Answer) {
    let text = settled(answer);
    let (mut said, mut arguments) = (String::new(), String::new());
    for object in text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let choice = &object["choices"][0];
        for message in [&choice["message"], &choice["delta"]] {
            said += message["content"].as_str().unwrap_or("");
            let function = &message["tool_calls"][0]["function"];
            arguments += function["arguments"].as_str().unwrap_or("");
        }
        said += object["output"][0]["content"][0]["text"].as_str().unwrap_or("");
        arguments += object["output"][0]["arguments"].as_str().unwrap_or("");
        if object["content"][0]["type"] == "tool_use" {
            arguments += &object["content"][0]["input"].to_string();
        }
    }
    // Of several calls, the first is enough.
    let value = serde_json::Deserializer::from_str(&(said + &arguments)).into_iter().next();
    let value: Value = value.unwrap_or_else(|| panic!("{text}")).unwrap();
    assert!(value["answer"].is_string() && value["n"].as_u64().unwrap() < 1000, "{text}");
}

/// Returns an answer without what is new each time.
fn settled(answer: Answer) -> String {
    let text = answer.text();
    let mut events = Vec::new();
    for part in text.split("\n\n").map(|part| part.rsplit("data: ").next().unwrap_or("")) {
        let Ok(mut object) = serde_json::from_str::<Value>(part) else { continue };
        forget(&mut object);
        events.push(object.to_string());
    }
    assert!(!events.is_empty(), "{text}");
    events.join("\n")
}

fn forget(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            // How much of a prompt is cached depends on what ran before.
            let new = ["id", "created", "created_at", "completed_at", "item_id", "usage"];
            new.iter().for_each(|field| drop(fields.remove(*field)));
            fields.values_mut().for_each(forget);
        }
        Value::Array(list) => list.iter_mut().for_each(forget),
        _ => {}
    }
}

/// Bytes of this process, if the system says it.
fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

struct Load<'a> {
    address: &'a str,
    kinds: &'a [Kind],
    /// What each kind gets alone.
    alone: &'a [String],
    refused: AtomicU64,
    answered: AtomicU64,
}

impl Load<'_> {
    fn request(&self, number: usize) {
        let kind = &self.kinds[number % self.kinds.len()];
        let (head, body) = (format!("POST {}", kind.path), kind.body.to_string());
        if kind.reader == Reader::Drops {
            drop(client::open(self.address, &head, &[], body.as_bytes()).unwrap());
            return;
        }
        let mut answer = loop {
            let answer = send(self.address, &head, &[], body.as_bytes()).unwrap();
            if answer.status != 429 {
                break answer;
            }
            self.refused.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_millis(20));
        };
        assert_eq!(answer.status, kind.status, "{} {body}", kind.path);
        self.answered.fetch_add(1, Ordering::Relaxed);
        match kind.reader {
            Reader::Leaves => drop([answer.event(), answer.event()].map(Option::unwrap)),
            Reader::Parses => check_json(answer),
            _ => assert_eq!(settled(answer), self.alone[number % self.kinds.len()], "{body}"),
        }
    }

    fn round(&self, requests: usize) {
        let next = AtomicUsize::new(0);
        scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    while let Some(number) =
                        Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&n| n < requests)
                    {
                        self.request(number);
                    }
                });
            }
        });
    }

    /// Waits until nothing runs: what was left in the middle ends by itself.
    fn wait_for_rest(&self) {
        let start = Instant::now();
        loop {
            let health = get(self.address, "/health").json();
            if health["running"] == 0 && health["waiting"] == 0 {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{health}");
            sleep(Duration::from_millis(20));
        }
    }
}

/// Returns how many requests the server counted with a status.
fn counted(address: &str, status: u16) -> u64 {
    let text = get(address, "/metrics").text();
    let lines = text.lines().filter(|line| line.starts_with("bitnet_requests_total{"));
    // Health and metrics are asked by this test.
    let lines =
        lines.filter(|line| !line.contains("\"/health\"") && !line.contains("\"/metrics\""));
    let lines = lines.filter(|line| line.contains(&format!("status=\"{status}\"")));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn mixed_load_loses_nothing() {
    let requests = std::env::var("LOAD_REQUESTS").map_or(96, |text| text.parse().unwrap());
    let model = Model::builder(TALES).cpu().build().unwrap();
    let batch = model.batch(BatchOptions::new(SLOTS, 500).queue(QUEUE)).unwrap();
    let tokenizer = model.tokenizer().unwrap().with_chat_template(include_str!("tools.jinja"));
    let options = Options::new("tales").tokenizer(Some(tokenizer));
    let server = Server::new(batch, options).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (end, ended) = oneshot::channel::<()>();
    let running = runtime.spawn(server.run(listener, async { ended.await.unwrap_or(()) }));
    let kinds = kinds();
    let alone = |kind: &Kind| match kind.reader {
        Reader::Takes => settled(post(&address, kind.path, &kind.body)),
        _ => String::new(),
    };
    let alone: Vec<String> = kinds.iter().map(alone).collect();
    let asked = kinds.iter().filter(|kind| kind.reader == Reader::Takes).count() as u64;
    let load = Load {
        address: &address,
        kinds: &kinds,
        alone: &alone,
        refused: AtomicU64::new(0),
        answered: AtomicU64::new(asked),
    };
    let (start, mut memory) = (Instant::now(), Vec::new());
    for _ in 0..ROUNDS {
        load.round(requests / ROUNDS);
        load.wait_for_rest();
        memory.extend(resident());
    }
    let (answered, refused) = (load.answered.into_inner(), load.refused.into_inner());
    let megabytes: Vec<u64> = memory.iter().map(|bytes| bytes / 1_000_000).collect();
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{requests} requests in {seconds:.1} s: {answered} answered, {refused} refused and tried again, MB after each round: {megabytes:?}"
    );
    // A request is counted when its answer has ended, which the client may see before. Of requests
    // that were dropped, some were answered before the server noticed.
    let start = Instant::now();
    while counted(&address, 200) + counted(&address, 400) < answered
        || counted(&address, 429) < refused
    {
        assert!(start.elapsed() < Duration::from_secs(10), "{}", get(&address, "/metrics").text());
        sleep(Duration::from_millis(20));
    }
    assert_eq!(counted(&address, 500), 0);
    if let (Some(first), Some(most)) = (memory.first(), memory.iter().max()) {
        assert!(most - first <= GROWTH, "{megabytes:?}");
    }
    end.send(()).unwrap();
    runtime.block_on(running).unwrap().unwrap();
}
