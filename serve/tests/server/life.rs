//! Who waits, who goes, and the end.

use crate::{
    Served, TALES,
    client::{get, open, post},
    cpu, each_engine, long, with,
};
use bitnet_wgpu::{
    Context, Error, ErrorKind,
    model::{GenerateOptions, Model},
};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{scope, sleep},
    time::{Duration, Instant},
};

fn a_full_queue_is_429_until_one_leaves(model: &Model) {
    let server = Served::endless(model, 1, 1, |options| {
        options.half_closed_timeout(Duration::from_millis(200))
    });
    let mut first = post(&server.address, "/v1/completions", &long());
    assert!(first.event().is_some());
    let second = open(
        &server.address,
        "POST /v1/completions",
        &[],
        with(long(), &[("stream", false.into())]).to_string().as_bytes(),
    )
    .unwrap();
    server.wait_for_load(1, 1);
    let refused = post(&server.address, "/v1/completions", &long());
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    let error = refused.json()["error"].clone();
    assert!(
        error["code"] == "rate_limit_exceeded"
            && error["message"]
                .as_str()
                .unwrap()
                .contains("batch is full: 1/1 running, 1/1 queued"),
        "{error}"
    );
    // Of several choices all run, or none.
    let several = post(&server.address, "/v1/completions", &with(long(), &[("n", 2.into())]));
    assert_eq!(several.status, 429);
    // A client in the queue goes, then the one in the middle of its stream, then one that waits for
    // all of it.
    drop(second);
    server.wait_for_load(1, 0);
    let third = open(
        &server.address,
        "POST /v1/completions",
        &[],
        with(long(), &[("stream", false.into())]).to_string().as_bytes(),
    )
    .unwrap();
    server.wait_for_load(1, 1);
    drop(first);
    server.wait_for_load(1, 0);
    drop(third);
    server.wait_for_load(0, 0);
    assert_eq!(
        server.complete(&json!({ "prompt": "Hi", "max_tokens": 3 }))["usage"]["completion_tokens"],
        3
    );
}

each_engine!(a_full_queue_is_429_until_one_leaves);

fn shutdown_drains_answers_then_cuts_the_rest(model: &Model) {
    let finish = |grace: u64, is_finished: bool| {
        let gate = Arc::new(Gate::default());
        let waits = gate.clone();
        let options = GenerateOptions::default().ignore_eos(true).logits(move |_, _| waits.pass());
        let mut server = Served::new(model, 2, 8, |o| {
            o.defaults(options).shutdown_timeout(Duration::from_millis(grace))
        });
        let mut stream =
            post(&server.address, "/v1/completions", &with(long(), &[("max_tokens", 60.into())]));
        assert!(stream.event().is_some());
        let start = Instant::now();
        server.end();
        // It refuses what is new, and says so.
        while get(&server.address, "/health").status == 200 {
            assert!(start.elapsed() < Duration::from_secs(10));
        }
        let refused = post(&server.address, "/v1/completions", &long());
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("ending")));
        if is_finished {
            gate.open();
        }
        let last = stream.last_event();
        gate.open();
        server.result().unwrap();
        assert!(open(&server.address, "GET /health", &[], b"").is_err(), "it still listens");
        last
    };
    assert_eq!(finish(60_000, true), "[DONE]");
    let cut = finish(300, false);
    assert!(cut.contains("\"ending\""), "{cut}");
}

each_engine!(shutdown_drains_answers_then_cuts_the_rest);

/// Lets a few tokens pass, and the others once it is open.
#[derive(Default)]
struct Gate {
    passed: AtomicUsize,
    is_open: AtomicBool,
}

impl Gate {
    fn pass(&self) {
        let start = Instant::now();
        let passed = self.passed.fetch_add(1, Ordering::SeqCst);
        while passed >= 5
            && !self.is_open.load(Ordering::SeqCst)
            && start.elapsed() < Duration::from_secs(60)
        {
            sleep(Duration::from_millis(1));
        }
    }

    fn open(&self) {
        self.is_open.store(true, Ordering::SeqCst);
    }
}

/// Requests are refused for good then: whoever watches the server is to begin it anew.
#[test]
#[ignore = "needs a GPU"]
fn a_failed_server_reports_it_and_exits() {
    let fails = |mut server: Served, path: &str, body: &Value, why: ErrorKind| {
        assert_eq!(get(&server.address, "/health").status, 200, "{path}");
        let answer = post(&server.address, path, body);
        assert_eq!(
            (answer.status, &answer.json()["error"]["type"]),
            (500, &json!("server_error")),
            "{path}"
        );
        let health = get(&server.address, "/health");
        assert_eq!((health.status, &health.json()["status"]), (503, &json!("failed")), "{path}");
        let error = server.result().unwrap_err();
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
        assert_eq!(cause.map(Error::kind), Some(why), "{path}: {error}");
    };
    let panics = GenerateOptions::default().logits(|_, _| panic!("as the test wants it"));
    let text = json!({ "prompt": "Once" });
    fails(
        Served::new(&cpu(), 1, 1, |options| options.defaults(panics)),
        "/v1/completions",
        &text,
        ErrorKind::Internal,
    );
    for (path, body) in [("/v1/completions", text), ("/v1/embeddings", json!({ "input": "Once" }))]
    {
        let model = Model::builder(TALES)
            .device(&pollster::block_on(Context::new()).unwrap())
            .build()
            .unwrap();
        let server = Served::new(&model, 1, 1, |options| options);
        model.context().unwrap().device().destroy();
        fails(server, path, &body, ErrorKind::Lost);
    }
}

/// What a hook does stands for a model that has gone wrong.
#[test]
fn non_finite_logits_are_a_server_error() {
    let broken = GenerateOptions::default().logits(|_, logits| logits.fill(f32::NAN));
    let server = Served::new(&cpu(), 1, 1, |options| options.defaults(broken));
    let is_ours = |error: &Value| {
        let error = &error["error"];
        let named = error["message"].as_str().unwrap().contains("sampling");
        assert!(
            named && error["type"] == "server_error" && error["param"] == Value::Null,
            "{error}"
        );
    };
    let whole = post(&server.address, "/v1/completions", &json!({ "prompt": "Once" }));
    assert_eq!(whole.status, 500);
    is_ours(&whole.json());
    let mut stream = post(&server.address, "/v1/completions", &long());
    is_ours(&serde_json::from_str(&stream.event().unwrap()).unwrap());
    assert_eq!(get(&server.address, "/health").status, 200, "others are served");
}

/// As many as may run and wait afterwards.
#[test]
fn requests_that_wait_to_be_prepared_are_bounded() {
    const SLOW: &str = "{% for i in range(1000) %}{% for j in range(3000) %}{% endfor %}{% endfor %}{{ messages[0].content }}";
    let tokenizer = cpu().tokenizer().unwrap().with_chat_template(SLOW);
    let server = Served::new(&cpu(), 1, 1, |options| options.tokenizer(Some(tokenizer)));
    let body = json!({ "messages": [{ "role": "user", "content": "Once" }], "max_tokens": 2 });
    let ask = || post(&server.address, "/v1/chat/completions", &body);
    let answers: Vec<_> = scope(|scope| {
        let asked: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let (served, refused): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|answer| answer.status == 200);
    assert!(
        !served.is_empty() && !refused.is_empty(),
        "{} served, {} refused",
        served.len(),
        refused.len()
    );
    for answer in refused {
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
        let error = answer.json()["error"].clone();
        let told = error["message"].as_str().unwrap().contains("in preparation, 2 queued");
        assert!(told && error["code"] == "rate_limit_exceeded", "{error}");
    }
    assert_eq!(ask().status, 200, "there is room again");
}
