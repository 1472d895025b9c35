//! Clients take turns, however many requests each has.

use crate::{
    Served,
    client::{Answer, answer, open, send},
    cpu, long, with,
};
use serde_json::{Value, json};
use std::{sync::mpsc::channel, thread::scope};

const KEYS: [&str; 3] = ["ann", "bob", "cat"];

fn ask(server: &Served, key: &str, path: &str, body: &Value) -> Answer {
    let key = format!("Bearer {key}");
    send(
        &server.address,
        &format!("POST {path}"),
        &[("Authorization", &key)],
        body.to_string().as_bytes(),
    )
    .unwrap()
}

/// How many of one client's requests are answered before another's, which comes when there is room
/// for no more of the first client's. `count` is more than there is room for.
fn answered_before(server: &Served, count: usize, path: &str, many: &Value, one: &Value) -> usize {
    scope(|scope| {
        let (sender, statuses) = channel();
        for _ in 0..count {
            let sender = sender.clone();
            scope.spawn(move || sender.send(ask(server, "ann", path, many).status).unwrap_or(()));
        }
        drop(sender);
        let before = statuses.iter().take_while(|status| *status != 429).count();
        assert!(before < count, "there was room for all");
        assert_eq!(ask(server, "bob", path, one).status, 200);
        before + statuses.try_iter().filter(|status| *status == 200).count()
    })
}

#[test]
fn prompts_of_another_client_come_next() {
    let server = Served::endless(&cpu(), 1, 9, |options| options.keys(KEYS));
    let (many, one) = (
        json!({ "prompt": "Once", "max_tokens": 100 }),
        json!({ "prompt": "The bear", "max_tokens": 1 }),
    );
    let before = answered_before(&server, 11, "/v1/completions", &many, &one);
    assert!(before <= 2, "{before} of 10 came first");
}

/// Without free slots, it would wait until one of the first client's answers ends.
#[test]
fn one_client_leaves_slots_to_others() {
    let server = Served::endless(&cpu(), 4, 2, |options| options.keys(KEYS));
    let (many, one) = (
        json!({ "prompt": "Once", "max_tokens": 200 }),
        json!({ "prompt": "The bear", "max_tokens": 1 }),
    );
    assert_eq!(answered_before(&server, 7, "/v1/completions", &many, &one), 0);
}

/// At most eight are prepared at once, on however many cores, and 25 wait.
#[test]
fn preparing_takes_turns() {
    const SLOW: &str = "{% for i in range(200) %}{% for j in range(1000) %}{% endfor %}{% endfor %}{{ messages[0].content }}";
    let tokenizer = cpu().tokenizer().unwrap().with_chat_template(SLOW);
    let server =
        Served::endless(&cpu(), 25, 0, |options| options.keys(KEYS).tokenizer(Some(tokenizer)));
    let body = json!({ "messages": [{ "role": "user", "content": "Once" }], "max_tokens": 1 });
    let before = answered_before(&server, 50, "/v1/chat/completions", &body, &body);
    assert!(before <= 18, "{before} of 26 at least came first");
}

#[test]
fn a_full_queue_makes_room_for_another_client() {
    let server = Served::endless(&cpu(), 1, 4, |options| options.keys(KEYS));
    let stream = |key: &str| ask(&server, key, "/v1/completions", &long());
    let mut ann: Vec<Answer> = (0..5).map(|_| stream("ann")).collect();
    assert!(ann[0].event().is_some());
    server.wait_for_load(1, 4);
    assert_eq!(stream("ann").status, 429, "one client has all places");
    let bob = [stream("bob"), stream("bob")];
    assert_eq!([bob[0].status, bob[1].status, stream("bob").status], [200, 200, 429]);
    server.wait_for_load(1, 4);
    for lost in ann.drain(3..) {
        assert!(lost.last_event().contains("rate_limit_exceeded"), "the last of the first client");
    }
    // One that waits for the whole answer is told by the status.
    let whole = with(long(), &[("stream", false.into())]).to_string();
    let key = |key: &'static str| [("Authorization", key)];
    let server = Served::endless(&cpu(), 1, 1, |options| options.keys(KEYS));
    let mut first = ask(&server, "ann", "/v1/completions", &long());
    assert!(first.event().is_some());
    let second =
        open(&server.address, "POST /v1/completions", &key("Bearer ann"), whole.as_bytes())
            .unwrap();
    server.wait_for_load(1, 1);
    assert_eq!(
        ask(&server, "bob", "/v1/completions", &with(long(), &[("n", 2.into())])).status,
        429,
        "more than its share"
    );
    drop(first);
    assert_eq!(answer(second).unwrap().status, 200);
}

/// Slots are for those that compute: what was computed waits for its reader beside them.
#[test]
fn slow_readers_keep_no_slot() {
    let server = Served::endless(&cpu(), 1, 1, |options| options.keys(KEYS));
    let unread =
        ask(&server, "ann", "/v1/completions", &with(long(), &[("max_tokens", 200.into())]));
    assert_eq!(
        ask(&server, "bob", "/v1/completions", &json!({ "prompt": "Once", "max_tokens": 2 }))
            .status,
        200
    );
    server.wait_for_load(0, 0);
    assert_eq!(unread.chunks().len(), 201);
}

#[test]
fn embeddings_of_another_client_come_between() {
    let server = Served::new(&cpu(), 1, 2, |options| options.keys(KEYS));
    let many = json!({ "input": vec![vec![7; 4]; 160] });
    let one = json!({ "input": "bear" });
    let before = answered_before(&server, 4, "/v1/embeddings", &many, &one);
    assert_eq!(before, 0, "of three that have 10 parts each");
}
