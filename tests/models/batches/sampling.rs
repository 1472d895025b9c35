//! Tokens and logits do not depend on the batch, whoever samples them.

use super::{all, alone, batch, greedy, ids, models, take, wait_until};
use bitnet_wgpu::{
    Context, ContextOptions,
    model::{BatchOptions, GenerateOptions, Model, Sampling},
    telemetry::Tracing,
};
use std::sync::{Arc, Mutex};
use support::{block_on, models::two_layers};

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
fn tokens_do_not_depend_on_other_requests() {
    for (engine, model) in models() {
        let kinds = kinds(&model);
        let expected: Vec<_> =
            kinds.iter().map(|(prompt, options)| alone(&model, prompt, options)).collect();
        // In chunks of a few tokens, prompts take several turns.
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
            assert_eq!((&ids, first.stop()), (&expected[0].0, expected[0].2), "{engine}, {piece}");
            for (n, stream) in (1..).zip(streams) {
                assert_eq!(stream.prompt_tokens(), kinds[n].0.len());
                assert_eq!(all(stream), expected[n], "{engine}, {piece}: request {n}");
            }
        }
    }
}

/// Not only tokens: logits are bit-identical, of prompts that are computed in chunks and together,
/// and of steps of more sequences than any kernel is chosen by.
#[test]
fn logits_are_batch_invariant() {
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
        let expected: Vec<_> = prompts
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
        for (n, ((seen, stream), expected)) in runs.into_iter().zip(expected).enumerate() {
            all(stream);
            assert!(
                expected.len() == 4 && *seen.lock().unwrap() == expected,
                "{engine}: request {n}"
            );
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
fn gpu_sampling_uses_each_requests_options() {
    // The trace of a device is one test's.
    let context = block_on(Context::open(ContextOptions::default())).unwrap();
    let model = two_layers(Some(&context));
    let ways = own_ways(&model);
    let expected: Vec<_> =
        ways.iter().map(|(prompt, options)| alone(&model, prompt, options)).collect();
    // The same, chosen on the host: a hook that changes nothing has all logits read back.
    for ((prompt, options), expected) in ways.iter().zip(&expected) {
        assert_eq!(
            &alone(&model, prompt, &options.clone().logits(|_, _| ())),
            expected,
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
        assert_eq!(found, expected[..ways.len()]);
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
fn other_sampling_kinds_reuse_the_recording() {
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
    let expected = kinds.map(|sampling| alone(&model, &prompt, &greedy(6).sampling(sampling)));
    let batch = batch(&model, 1, 0);
    let round = || {
        for (sampling, expected) in kinds.iter().zip(&expected) {
            let found = all(batch.generate_ids(&prompt, &greedy(6).sampling(*sampling)).unwrap());
            assert_eq!(&found, expected, "{sampling:?}");
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
fn only_new_counts_are_uploaded() {
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
fn penalty_counts_include_tokens_chosen_by_host() {
    for (engine, model) in models() {
        let batch = batch(&model, 2, 8);
        let (prompt, penalised) =
            (ids(&model, 3, 5), greedy(48).sampling(Sampling::GREEDY.frequency_penalty(2.0)));
        let mut stream = batch.generate_ids(&prompt, &penalised).unwrap();
        take(&mut stream, 3);
        let (other, by_host) = (ids(&model, 4, 5), greedy(12).no_repeat_ngram(2));
        assert_eq!(
            all(batch.generate_ids(&other, &by_host).unwrap()),
            alone(&model, &other, &by_host),
            "{engine}"
        );
        assert_eq!(all(stream).0, alone(&model, &prompt, &penalised).0, "{engine}");
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
                take(&mut stream, if n < 3 { 2 } else { 0 });
                streams.push(stream);
            }
            for (n, stream) in streams.into_iter().enumerate() {
                assert_eq!(
                    all(stream).0,
                    alone(&model, &prompt(n), &options(n)).0,
                    "{engine}, {sampling:?}: {n}"
                );
            }
        }
    }
}
