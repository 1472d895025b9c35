//! Who waits, who goes, and the end.

use crate::{
    Served,
    client::{get, open, post},
    long, models, with,
};
use bitnet_wgpu::model::GenerateOptions;
use serde_json::json;
use std::{
    thread::spawn,
    time::{Duration, Instant},
};

#[test]
fn a_full_queue_is_429_and_who_leaves_makes_room() {
    for (engine, model) in models() {
        let server = Served::endless(&model, 1, 1);
        let mut first = post(&server.address, "/v1/completions", &long());
        assert!(first.event().is_some());
        let second =
            open(&server.address, "POST /v1/completions", &[], with(long(), &[("stream", false.into())]).to_string().as_bytes()).unwrap();
        server.wait_for_load(1, 1);
        let refused = post(&server.address, "/v1/completions", &long());
        assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")), "{engine}");
        let error = refused.json()["error"].clone();
        assert!(
            error["code"] == "rate_limit_exceeded" && error["message"].as_str().unwrap().contains("1 sequences run and 1 wait"),
            "{error}"
        );
        // Of several choices all run, or none.
        let several = post(&server.address, "/v1/completions", &with(long(), &[("n", 2.into())]));
        assert_eq!(several.status, 429, "{engine}");
        // A client in the queue goes, then the one in the middle of its stream, then one that waits for all of it.
        drop(second);
        server.wait_for_load(1, 0);
        let third =
            open(&server.address, "POST /v1/completions", &[], with(long(), &[("stream", false.into())]).to_string().as_bytes()).unwrap();
        server.wait_for_load(1, 1);
        drop(first);
        server.wait_for_load(1, 0);
        drop(third);
        server.wait_for_load(0, 0);
        assert_eq!(server.complete(&json!({ "prompt": "Hi", "max_tokens": 3 }))["usage"]["completion_tokens"], 3, "{engine}");
    }
}

#[test]
fn the_end_lets_answers_finish_and_cuts_those_that_do_not() {
    for (engine, model) in models() {
        let finish = |grace: u64, tokens: u64| {
            let options = GenerateOptions::default().ignore_eos(true);
            let mut server = Served::new(&model, 2, 8, |o| o.defaults(options).grace(Duration::from_millis(grace)));
            let mut stream = post(&server.address, "/v1/completions", &with(long(), &[("max_tokens", tokens.into())]));
            assert!(stream.event().is_some(), "{engine}");
            let start = Instant::now();
            server.end();
            // It refuses what is new, and says so.
            while get(&server.address, "/health").status == 200 {
                assert!(start.elapsed() < Duration::from_secs(10), "{engine}");
            }
            let refused = post(&server.address, "/v1/completions", &long());
            assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("ending")), "{engine}");
            let mut last = String::new();
            while let Some(event) = stream.event() {
                last = event;
            }
            server.thread.take().unwrap().join().unwrap();
            let took = start.elapsed();
            server.thread = Some(spawn(|| ()));
            assert!(open(&server.address, "GET /health", &[], b"").is_err(), "{engine}: it still listens");
            (last, took)
        };
        let (last, _) = finish(60_000, 60);
        assert_eq!(last, "[DONE]", "{engine}");
        let (last, took) = finish(300, 500);
        assert!(last.contains("\"ending\"") && took < Duration::from_secs(20), "{engine}: {last} after {took:?}");
    }
}
