//! Prompts that come to a batch while others run: each has the tokens that it has alone, and nobody
//! waits for who does not take them.

use bitnet_wgpu::{
    Context, ContextOptions, Error,
    error::ErrorKind,
    model::{Batch, BatchOptions, GenerateOptions, Generation, Model, Sampling, Stop, Token},
    telemetry::Tracing,
};
use std::{
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};
use support::{block_on, context, models::two_layers};

/// A model on each engine.
fn models() -> [(&'static str, Model); 2] {
    static MODELS: LazyLock<[Model; 2]> =
        LazyLock::new(|| [two_layers(None), two_layers(Some(context()))]);
    let [cpu, gpu] = &*MODELS;
    [("CPU", cpu.clone()), ("GPU", gpu.clone())]
}

fn batch(model: &Model, slots: usize, queue: usize) -> Batch {
    model.batch(BatchOptions::new(slots, 256).queue(queue)).unwrap()
}

fn greedy(tokens: usize) -> GenerateOptions {
    GenerateOptions::default().max_tokens(tokens).ignore_eos(true)
}

fn take(stream: &mut Generation, tokens: usize) -> Vec<Token> {
    stream.into_iter().take(tokens).collect::<Result<_, _>>().unwrap()
}

/// A text of so many tokens.
fn ids(model: &Model, seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (i * i * 31 + i * 7 + seed * 977) % model.config().vocab as u32).collect()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: never");
        sleep(Duration::from_millis(2));
    }
}

/// What a prompt gives without any batch.
fn alone(
    model: &Model,
    prompt: &[u32],
    options: &GenerateOptions,
) -> (Vec<u32>, String, Option<Stop>) {
    let mut generation = model.generate_ids(prompt, options).unwrap();
    let tokens: Vec<Token> = (&mut generation).into_iter().map(Result::unwrap).collect();
    let text = tokens.iter().map(|token| &*token.text).collect();
    (tokens.iter().map(|token| token.id).collect(), text, generation.stop())
}

/// All that comes of a stream.
fn all(stream: Generation) -> (Vec<u32>, String, Option<Stop>) {
    let generated = block_on(stream.all()).unwrap();
    (generated.ids, generated.text, Some(generated.stop))
}

/// What the engine can choose by, alike and different, and what only the host can.
fn kinds(model: &Model) -> Vec<(Vec<u32>, GenerateOptions)> {
    let sampled = |seed| Sampling::GREEDY.temperature(1.1).top_k(40).seed(seed);
    let text = |text: &str| model.encode_prompt(text).unwrap();
    vec![
        (text("Once upon a time"), greedy(40)),
        (text("The bear"), greedy(20).sampling(sampled(7))),
        (ids(model, 3, 110), greedy(15).sampling(sampled(8))),
        (
            text("A little girl"),
            greedy(20).sampling(
                Sampling::GREEDY.temperature(0.8).top_p(0.9).frequency_penalty(0.5).seed(1),
            ),
        ),
        (text("Once upon a time"), greedy(20).sampling(Sampling::GREEDY.repetition_penalty(1.3))),
        (ids(model, 4, 40), greedy(1)),
        (text("The king"), greedy(15).logits(|tokens, logits| logits[tokens.len() % 7] += 2.0)),
        (text("The king"), greedy(25).min_tokens(10).ignore_eos(false).sampling(sampled(3))),
        (text("Once"), greedy(25).stop(["the"])),
        (ids(model, 5, 151), greedy(10)),
        (text("The end"), greedy(0)),
    ]
}

#[test]
fn tokens_are_those_of_a_sequence_alone_whoever_comes_and_goes() {
    for (engine, model) in models() {
        let kinds = kinds(&model);
        let wanted: Vec<_> =
            kinds.iter().map(|(prompt, options)| alone(&model, prompt, options)).collect();
        // In pieces of a few tokens, prompts take several turns.
        for piece in if engine == "CPU" { &[512, 5][..] } else { &[9] } {
            let batch =
                model.batch(BatchOptions::new(3, 256).queue(32).prefill_chunk(*piece)).unwrap();
            let start = |n: usize| batch.generate_ids(&kinds[n].0, &kinds[n].1).unwrap();
            let mut first = start(0);
            let mut tokens = take(&mut first, 3);
            let mut streams: Vec<_> = [1, 2].into_iter().map(start).collect();
            let dropped = start(9);
            tokens.extend(take(&mut first, 5));
            streams.extend([3, 4, 5].into_iter().map(start));
            let mut left = start(0);
            take(&mut left, 2);
            drop((dropped, left));
            streams.extend((6..kinds.len()).map(start));
            tokens.extend(take(&mut first, 1000));
            let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
            assert_eq!((&ids, first.stop()), (&wanted[0].0, wanted[0].2), "{engine}, {piece}");
            for (n, stream) in (1..).zip(streams) {
                assert_eq!(stream.prompt_tokens(), kinds[n].0.len());
                assert_eq!(all(stream), wanted[n], "{engine}, {piece}: request {n}");
            }
        }
    }
}

/// Not only tokens: logits are the same bits, of prompts that are computed in pieces and together,
/// and of steps of more sequences than any kernel is chosen by.
#[test]
fn logits_are_the_same_bits_in_any_company() {
    type Seen = Arc<Mutex<Vec<Vec<u32>>>>;
    let watched = || {
        let seen = Seen::default();
        let log = seen.clone();
        let note = move |_: &[u32], logits: &mut [f32]| {
            log.lock().unwrap().push(logits.iter().map(|logit| logit.to_bits()).collect())
        };
        (seen, greedy(4).logits(note))
    };
    for (engine, model) in models() {
        let prompts: Vec<_> = (0..40).map(|n| ids(&model, n, 1 + n * 7 % 23)).collect();
        let wanted: Vec<_> = prompts
            .iter()
            .map(|prompt| {
                let (seen, options) = watched();
                alone(&model, prompt, &options);
                seen.lock().unwrap().clone()
            })
            .collect();
        let batch = model.batch(BatchOptions::new(40, 64).queue(40).prefill_chunk(9)).unwrap();
        let runs: Vec<_> = prompts
            .iter()
            .map(|prompt| {
                let (seen, options) = watched();
                (seen, batch.generate_ids(prompt, &options).unwrap())
            })
            .collect();
        for (n, ((seen, stream), wanted)) in runs.into_iter().zip(wanted).enumerate() {
            all(stream);
            assert!(wanted.len() == 4 && *seen.lock().unwrap() == wanted, "{engine}: request {n}");
        }
    }
}

/// Each by its own options, all of which a GPU knows.
fn own_ways(model: &Model) -> Vec<(Vec<u32>, GenerateOptions)> {
    let text = |text: &str| model.encode_prompt(text).unwrap();
    let warm = |seed| Sampling::GREEDY.temperature(1.2).seed(seed);
    let sampled = |sampling: Sampling| greedy(12).sampling(sampling);
    vec![
        (text("Once upon a time"), greedy(12)),
        (text("The bear"), sampled(warm(7).top_k(40))),
        (text("A little girl"), sampled(warm(8).top_p(0.8).frequency_penalty(0.5))),
        (
            ids(model, 3, 70),
            sampled(warm(9).min_p(0.02)).logit_bias([(5, 3.0), (9, f32::NEG_INFINITY)]),
        ),
        (text("The king"), sampled(Sampling::GREEDY.repetition_penalty(1.4))),
        (text("The king"), sampled(warm(10).temperature(0.7))),
        (ids(model, 4, 3), sampled(warm(11).top_k(9).top_p(0.9)).logit_bias([(5, 12.0)])),
    ]
}

#[test]
fn a_gpu_chooses_for_each_by_its_own_options() {
    // The trace of a device is one test's.
    let context = block_on(Context::open(ContextOptions::default())).unwrap();
    let model = two_layers(Some(&context));
    let ways = own_ways(&model);
    let wanted: Vec<_> =
        ways.iter().map(|(prompt, options)| alone(&model, prompt, options)).collect();
    // The same, chosen on the host: a hook that changes nothing has all logits read back.
    for ((prompt, options), wanted) in ways.iter().zip(&wanted) {
        assert_eq!(
            &alone(&model, prompt, &options.clone().logits(|_, _| ())),
            wanted,
            "{options:?}"
        );
    }
    // The most bytes that come back at once.
    let most = |ways: &[(Vec<u32>, GenerateOptions)]| {
        let tracing = context.trace().unwrap();
        let batch = batch(&model, ways.len(), 0);
        let streams: Vec<_> = ways
            .iter()
            .map(|(prompt, options)| batch.generate_ids(prompt, options).unwrap())
            .collect();
        let found: Vec<_> = streams.into_iter().map(all).collect();
        assert_eq!(found, wanted[..ways.len()]);
        drop(batch);
        read_back(tracing)
    };
    assert_eq!(most(&ways), 4 * ways.len() as u64, "a token for each, of prompts and steps");
    assert_eq!(most(&ways[..1]), 4);
    let hooked =
        [ways[..2].to_vec(), vec![(ways[2].0.clone(), ways[2].1.clone().logits(|_, _| ()))]]
            .concat();
    assert_eq!(
        most(&hooked),
        4 * 3 * model.config().vocab as u64,
        "one that only the host can choose for"
    );
}

/// What was traced, of one category.
fn events(tracing: Tracing, category: &str) -> Vec<serde_json::Value> {
    let mut trace: serde_json::Value =
        serde_json::from_str(&block_on(tracing.finish()).unwrap().to_string()).unwrap();
    let serde_json::Value::Array(events) = trace["traceEvents"].take() else { panic!("{trace}") };
    events.into_iter().filter(|event| event["cat"] == category).collect()
}

/// The most bytes that were read back at once.
fn read_back(tracing: Tracing) -> u64 {
    events(tracing, "readback")
        .iter()
        .filter_map(|event| event["args"]["bytes"].as_u64())
        .max()
        .unwrap()
}

/// A step that has more than is needed serves too: requests of kinds that take turns find theirs
/// recorded.
#[test]
fn requests_of_other_kinds_are_served_by_what_is_recorded() {
    let context = block_on(Context::open(ContextOptions::default())).unwrap();
    let model = two_layers(Some(&context));
    let warm = Sampling::GREEDY.temperature(1.2).seed(7);
    let kinds = [
        Sampling::GREEDY,
        warm.top_k(40),
        warm.top_p(0.8),
        Sampling::GREEDY.frequency_penalty(0.7),
        warm,
    ];
    let prompt = ids(&model, 1, 3);
    let wanted = kinds.map(|sampling| alone(&model, &prompt, &greedy(6).sampling(sampling)));
    let batch = batch(&model, 1, 0);
    let round = || {
        for (sampling, wanted) in kinds.iter().zip(&wanted) {
            let found = all(batch.generate_ids(&prompt, &greedy(6).sampling(*sampling)).unwrap());
            assert_eq!(&found, wanted, "{sampling:?}");
            // A slot is free when the last token is taken, and the next request is not refused.
            wait_until("it leaves", || batch.load().running == 0);
        }
    };
    round();
    let tracing = context.trace().unwrap();
    round();
    round();
    let recordings = events(tracing, "recording");
    assert!(recordings.is_empty(), "{recordings:?}");
}

/// What is added to logits, and how often tokens were there, are a vocabulary's numbers for each
/// slot: they are written when a request comes that has some.
#[test]
fn only_what_is_new_is_told() {
    let context = block_on(Context::open(ContextOptions::default())).unwrap();
    let model = two_layers(Some(&context));
    let vocabulary = 4 * model.config().vocab as u64;
    let batch = batch(&model, 3, 0);
    let penalised = greedy(200).sampling(Sampling::GREEDY.frequency_penalty(0.5));
    let mut first = batch.generate_ids(&ids(&model, 1, 5), &penalised).unwrap();
    take(&mut first, 2);
    let uploads = |options: GenerateOptions| {
        let (tracing, prompt) = (context.trace().unwrap(), ids(&model, 2, 5));
        let found = all(batch.generate_ids(&prompt, &options).unwrap());
        let calls = events(tracing, "call");
        assert_eq!(found, alone(&model, &prompt, &options), "{options:?}");
        let bytes = calls
            .iter()
            .filter(|call| call["name"] == "upload")
            .filter_map(|call| call["args"]["bytes"].as_u64());
        bytes.filter(|&bytes| bytes >= vocabulary).collect::<Vec<_>>()
    };
    assert_eq!(uploads(greedy(3)), [0; 0], "others are as they were");
    assert_eq!(uploads(penalised.clone().max_tokens(3)), [vocabulary], "its own counts");
    assert_eq!(
        uploads(penalised.max_tokens(3).logit_bias([(5, 2.0)])),
        [vocabulary; 2],
        "its counts, and its biases"
    );
    // More than there are places: some are after others with biases.
    for id in [7, 8, 9] {
        let written = uploads(greedy(3).logit_bias([(id, 30.0)]));
        assert!(
            [vec![vocabulary], vec![vocabulary; 2]].contains(&written),
            "its biases, and none in place of others': {written:?}"
        );
    }
    assert!(first.stop().is_none());
}

/// While somebody is there whose tokens only the host can choose, it chooses all, and the engine
/// counts none.
#[test]
fn counts_go_on_where_the_host_has_chosen_for_a_while() {
    for (engine, model) in models() {
        let batch = batch(&model, 2, 8);
        let (prompt, penalised) =
            (ids(&model, 3, 5), greedy(48).sampling(Sampling::GREEDY.frequency_penalty(2.0)));
        let mut stream = batch.generate_ids(&prompt, &penalised).unwrap();
        let mut found: Vec<u32> = take(&mut stream, 3).iter().map(|token| token.id).collect();
        let (other, by_host) = (ids(&model, 4, 5), greedy(12).no_repeat_ngram(2));
        assert_eq!(
            all(batch.generate_ids(&other, &by_host).unwrap()),
            alone(&model, &other, &by_host),
            "{engine}"
        );
        found.extend(all(stream).0);
        assert_eq!(found, alone(&model, &prompt, &penalised).0, "{engine}");
    }
}

/// The engine is told of each that comes, and counts tokens for each.
#[test]
fn those_alike_keep_their_seeds_and_their_counts() {
    for (engine, model) in models() {
        for sampling in [
            Sampling::GREEDY.temperature(1.1).top_k(40),
            Sampling::GREEDY.temperature(0.9).frequency_penalty(0.7),
        ] {
            let batch = batch(&model, 3, 8);
            let options = |n: usize| greedy(8 + 3 * n).sampling(sampling.seed(n as u64));
            let prompt = |n: usize| ids(&model, n as u32, 3 + n as u32);
            let mut streams = Vec::new();
            for n in 0..5 {
                let mut stream = batch.generate_ids(&prompt(n), &options(n)).unwrap();
                let begun = if n < 3 { take(&mut stream, 2) } else { Vec::new() };
                streams.push((begun, stream));
            }
            for (n, (begun, stream)) in streams.into_iter().enumerate() {
                let ids: Vec<u32> =
                    begun.iter().map(|token| token.id).chain(all(stream).0).collect();
                assert_eq!(
                    ids,
                    alone(&model, &prompt(n), &options(n)).0,
                    "{engine}, {sampling:?}: {n}"
                );
            }
        }
    }
}

/// Steps are submitted before the end of a sequence is known: they are not the next one's.
#[test]
fn who_waits_gets_nothing_of_who_ended_before() {
    for (engine, model) in models() {
        let prompts: Vec<Vec<u32>> = (0..6).map(|n| ids(&model, 20 + n, 4)).collect();
        // Each but the first ends in its middle, at a text that it has there.
        let ends = |prompt: &Vec<u32>| {
            let mut tokens = model
                .generate_ids(prompt, &greedy(24))
                .unwrap()
                .into_iter()
                .map(Result::unwrap)
                .skip(5);
            tokens.find(|token| token.text.trim().len() > 1).unwrap().text
        };
        let options =
            |n: usize| if n == 0 { greedy(60) } else { greedy(24).stop([ends(&prompts[n])]) };
        let options: Vec<_> = (0..prompts.len()).map(options).collect();
        let batch = batch(&model, 2, 8);
        let streams: Vec<_> = prompts
            .iter()
            .zip(&options)
            .map(|(prompt, options)| batch.generate_ids(prompt, options).unwrap())
            .collect();
        for (n, stream) in streams.into_iter().enumerate() {
            assert_eq!(
                all(stream),
                alone(&model, &prompts[n], &options[n]),
                "{engine}: request {n}"
            );
        }
    }
}

#[test]
fn a_full_queue_is_told_and_what_is_dropped_makes_room() {
    for (engine, model) in models() {
        let batch = batch(&model, 2, 1);
        let steps = Arc::new(AtomicUsize::new(0));
        let count = steps.clone();
        let options = greedy(200).logits(move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let start = || batch.generate("Once upon a time", &options);
        let (mut a, mut b, c) = (start().unwrap(), start().unwrap(), start().unwrap());
        assert!([&mut a, &mut b].into_iter().all(|stream| take(stream, 1).len() == 1), "{engine}");
        let error = start().map(drop).unwrap_err();
        assert!(
            matches!(error, Error::Busy { running: 2, waiting: 1, slots: 2, queue: 1 }),
            "{engine}: {error:?}"
        );
        assert_eq!(
            (error.kind(), batch.load().running, batch.load().waiting),
            (ErrorKind::Busy, 2, 1),
            "{engine}"
        );
        // From the queue at once, from a slot before the next step.
        drop(c);
        let mut c = start().unwrap();
        assert!(start().is_err(), "{engine}");
        drop(a);
        take(&mut c, 1);
        drop((b, c));
        wait_until("both leave", || batch.load().running == 0);
        assert!(steps.load(Ordering::SeqCst) < 200, "{engine}: {steps:?} of 600 steps");
        assert_eq!(
            block_on(batch.generate("Once", &greedy(3)).unwrap().all()).unwrap().ids.len(),
            3,
            "{engine}"
        );
    }
}

#[test]
fn an_app_says_how_many_run() {
    for (engine, model) in models() {
        let batch = batch(&model, 3, 8);
        let prompts = [ids(&model, 1, 5), ids(&model, 2, 9), ids(&model, 3, 3), ids(&model, 4, 7)];
        let wanted: Vec<_> =
            prompts.iter().map(|prompt| alone(&model, prompt, &greedy(40)).0).collect();
        // None at all.
        batch.limit(0);
        let mut streams: Vec<_> =
            prompts.iter().map(|prompt| batch.generate_ids(prompt, &greedy(40)).unwrap()).collect();
        sleep(Duration::from_millis(50));
        assert_eq!((batch.load().running, batch.load().waiting), (0, 4), "{engine}");
        // One by one, in their order.
        batch.limit(1);
        let mut got: Vec<Vec<u32>> = vec![Vec::new()];
        for _ in 0..10 {
            got[0].push(take(&mut streams[0], 1)[0].id);
            assert_eq!(batch.load().running, 1, "{engine}");
        }
        // All that there is room for; fewer change nothing for those that run.
        batch.limit(usize::MAX);
        got.extend(
            streams[1..3]
                .iter_mut()
                .map(|stream| take(stream, 1).iter().map(|token| token.id).collect::<Vec<_>>()),
        );
        batch.limit(1);
        for (n, stream) in streams.into_iter().enumerate() {
            let rest = block_on(stream.all()).unwrap().ids;
            let all = [got.get(n).cloned().unwrap_or_default(), rest].concat();
            assert_eq!(all, wanted[n], "{engine}, prompt {n}");
        }
    }
}

#[test]
fn the_error_of_one_is_its_own() {
    for (engine, model) in models() {
        let batch = batch(&model, 4, 8);
        let wanted = alone(&model, &[5, 6, 7], &greedy(20));
        let fine = batch.generate_ids(&[5, 6, 7], &greedy(20)).unwrap();
        let nan = greedy(20)
            .logits(|tokens, logits| logits[3] = if tokens.len() == 6 { f32::NAN } else { 0.0 });
        let mut wrong = batch.generate_ids(&[5, 6, 7], &nan).unwrap();
        assert_eq!(take(&mut wrong, 3).len(), 3, "{engine}");
        let error = block_on(wrong.next_token()).unwrap().unwrap_err();
        assert!(
            matches!(&error, Error::Invalid { what, .. } if what.contains("NaN")),
            "{engine}: {error}"
        );
        assert!(block_on(wrong.next_token()).is_none() && wrong.stop().is_none(), "{engine}");
        assert_eq!(all(fine), wanted, "{engine}");
        // What is wrong with a request is known before it waits.
        let invalid = |prompt: &[u32], options: &GenerateOptions| {
            batch.generate_ids(prompt, options).map(drop).unwrap_err().to_string()
        };
        assert!(invalid(&[], &greedy(1)).contains("no tokens"));
        assert!(invalid(&[99_999], &greedy(1)).contains("token 99999"));
        assert!(invalid(&[5; 257], &greedy(1)).contains("257 positions"));
        assert!(invalid(&[5], &greedy(1).stop([""])).contains("stop string"));
        assert!(
            invalid(&[5], &greedy(1).sampling(Sampling::GREEDY.temperature(-1.0)))
                .contains("temperature")
        );
    }
    let (_, model) = &models()[0];
    for (options, wanted) in [
        (BatchOptions::new(0, 16), "0 sequences"),
        (BatchOptions::new(1, 1 << 20), "positions"),
        (BatchOptions::new(1, 16).prefill_chunk(0), "chunks of 0"),
    ] {
        assert!(
            model.batch(options).map(drop).unwrap_err().to_string().contains(wanted),
            "{wanted}"
        );
    }
}

/// A hook is the caller's: where it panics, the thread is gone, and nobody waits for it.
#[test]
fn the_end_of_the_thread_is_told_to_all() {
    for (engine, model) in models() {
        let batch = batch(&model, 2, 8);
        let fine: Vec<_> = (0..3).map(|_| batch.generate("Once", &greedy(200)).unwrap()).collect();
        drop(fine);
        let mut fine = batch.generate("Once", &greedy(250)).unwrap();
        take(&mut fine, 1);
        let panics =
            batch.generate("Once", &greedy(9).logits(|_, _| panic!("on purpose"))).unwrap();
        let waits = batch.generate("Once", &greedy(9)).unwrap();
        for stream in [fine, panics, waits] {
            let error = block_on(stream.all()).unwrap_err();
            assert!(
                matches!(&error, Error::Gpu { message, .. } if message.contains("panicked")),
                "{engine}: {error}"
            );
        }
        assert!(
            matches!(batch.generate("Once", &greedy(9)).map(drop), Err(Error::Gpu { .. })),
            "{engine}"
        );
        assert_eq!((batch.load().running, batch.load().waiting), (0, 0), "{engine}");
    }
}

#[test]
fn prefixes_are_reused_within_a_salt() {
    for (engine, model) in models() {
        let prompt = ids(&model, 1, 60);
        let wanted = alone(&model, &prompt, &greedy(5)).0;
        let salts = [None, Some("a"), Some("b"), Some("")];
        for first in salts {
            for second in salts {
                let batch = batch(&model, 1, 8);
                let run = |salt: Option<&str>| {
                    let options = greedy(5).cache_salt(salt);
                    let mut stream = batch.generate_ids(&prompt, &options).unwrap();
                    let tokens: Vec<u32> =
                        take(&mut stream, 5).into_iter().map(|token| token.id).collect();
                    assert_eq!(tokens, wanted, "{engine}");
                    stream.cached_tokens()
                };
                assert_eq!(run(first), 0);
                let expected = if first == second { prompt.len() - 1 } else { 0 };
                assert_eq!(run(second), expected, "{engine}: {first:?}, then {second:?}");
            }
        }
        let error = batch(&model, 1, 8)
            .generate_ids(&prompt, &greedy(5).cache_salt(Some("x".repeat(1025))))
            .map(drop)
            .unwrap_err();
        assert!(error.to_string().contains("cache salt of 1025 bytes"), "{engine}: {error}");
    }
}

#[test]
fn long_stop_strings_are_refused() {
    for (engine, model) in models() {
        let prompt = ids(&model, 1, 6);
        for (stop, allowed) in [
            (vec!["x".repeat(4096)], true),
            (vec!["x".repeat(4097)], false),
            (vec!["x".repeat(4096); 5], false),
        ] {
            let result = batch(&model, 1, 8).generate_ids(&prompt, &greedy(2).stop(stop)).map(drop);
            assert_eq!(result.is_ok(), allowed, "{engine}: {result:?}");
            assert!(
                allowed || result.unwrap_err().to_string().contains("stop strings of up to"),
                "{engine}"
            );
        }
    }
}

#[test]
fn a_slot_keeps_what_a_following_prompt_begins_with() {
    for (engine, model) in models() {
        let batch = batch(&model, 3, 8);
        let texts: Vec<_> =
            [(1, 60), (2, 90), (3, 30)].map(|(seed, len)| ids(&model, seed, len)).into();
        let run = |prompt: &[u32]| {
            let mut stream = batch.generate_ids(prompt, &greedy(5)).unwrap();
            let tokens: Vec<u32> = take(&mut stream, 5).into_iter().map(|token| token.id).collect();
            assert_eq!(tokens, alone(&model, prompt, &greedy(5)).0, "{engine}");
            (stream.cached_tokens(), tokens)
        };
        let begun: Vec<_> = texts.iter().map(|text| run(text)).collect();
        assert!(begun.iter().all(|(cached, _)| *cached == 0), "{engine}: {begun:?}");
        // The next turn of each: all but the last token generated is there. In another order, so
        // that it is not the slot which is the turn's.
        for n in [1, 2, 0] {
            let next = [&texts[n][..], &begun[n].1, &[9, 8, 7]].concat();
            assert_eq!(run(&next).0, texts[n].len() + 4, "{engine}: turn of {n}");
        }
        // The same again: of all that is there, the last token is computed once more.
        assert_eq!(run(&texts[1]).0, texts[1].len() - 1, "{engine}");
        // Two tokens are no reason: the one that was not used for longest goes, which is the third.
        let other = [&texts[1][..2], &[1, 2, 3]].concat();
        assert_eq!(run(&other).0, 0, "{engine}");
        assert_eq!(run(&texts[1]).0, texts[1].len() - 1, "{engine}");
        assert_eq!(run(&texts[0]).0, texts[0].len() - 1, "{engine}");
        assert_eq!(run(&texts[2]).0, 0, "{engine}");
    }
}

#[test]
fn who_reads_slowly_makes_nobody_wait() {
    for (engine, model) in models() {
        let batch = batch(&model, 1, 8);
        let slow = batch.generate_ids(&[5, 6], &greedy(50)).unwrap();
        // There is one slot.
        assert_eq!(
            block_on(batch.generate_ids(&[7], &greedy(5)).unwrap().all()).unwrap().ids.len(),
            5,
            "{engine}"
        );
        assert_eq!(all(slow), alone(&model, &[5, 6], &greedy(50)), "{engine}");
    }
}

#[test]
fn a_long_prompt_does_not_stop_those_that_run() {
    for (engine, model) in models() {
        let batch = model.batch(BatchOptions::new(2, 256).prefill_chunk(4)).unwrap();
        let steps = Arc::new(AtomicUsize::new(0));
        let (count, seen) = (steps.clone(), steps.clone());
        let running = greedy(usize::MAX).logits(move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let mut running = batch.generate_ids(&[5], &running).unwrap();
        take(&mut running, 1);
        let at = Arc::new(AtomicUsize::new(0));
        let first = at.clone();
        let before = steps.load(Ordering::SeqCst);
        let long = greedy(1)
            .logits(move |_, _| first.store(seen.load(Ordering::SeqCst), Ordering::SeqCst));
        block_on(batch.generate_ids(&ids(&model, 1, 200), &long).unwrap().all()).unwrap();
        // 50 pieces, and a step after each but the last.
        let between = at.load(Ordering::SeqCst) - before;
        assert!(
            (49..60).contains(&between),
            "{engine}: {between} steps while a prompt of 50 pieces was computed"
        );
        assert!(running.stop().is_none(), "{engine}");
    }
}

#[test]
fn it_ends_with_its_last_owner() {
    let path = support::repository("assets/tales-22m");
    for (engine, context) in [("CPU", None), ("GPU", Some(context()))] {
        let model = Model::builder(&path).device(context).build().unwrap();
        let steps = Arc::new(AtomicUsize::new(0));
        let count = steps.clone();
        let options = greedy(usize::MAX).logits(move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let first = model.batch(BatchOptions::new(2, 512)).unwrap();
        let mut stream = first.clone().generate_ids(&[5], &options).unwrap();
        drop((model, first));
        // The stream is an owner.
        take(&mut stream, 2);
        drop(stream);
        let after = steps.load(Ordering::SeqCst);
        assert!(after < 400, "{engine}: {after} of 512");
        sleep(Duration::from_millis(100));
        assert_eq!(steps.load(Ordering::SeqCst), after, "{engine}: the thread was not waited for");
    }
}

#[test]
fn streams_end_for_the_reasons_of_generations() {
    for (engine, model) in models() {
        let batch = model.batch(BatchOptions::new(2, 20)).unwrap();
        let stop = |options: &GenerateOptions| {
            let mut stream = batch.generate_ids(&[2046, 7, 8], options).unwrap();
            (take(&mut stream, 1000).len(), stream.stop())
        };
        assert_eq!(stop(&greedy(0)), (0, Some(Stop::MaxTokens)), "{engine}");
        assert_eq!(stop(&greedy(4)), (4, Some(Stop::MaxTokens)), "{engine}");
        // The last token is not appended.
        assert_eq!(stop(&greedy(1000)), (18, Some(Stop::Context)), "{engine}");
        assert_eq!(
            stop(&greedy(9).ignore_eos(false).logit_bias([(2047, 1e6)])),
            (1, Some(Stop::EndOfText)),
            "{engine}"
        );
    }
}
