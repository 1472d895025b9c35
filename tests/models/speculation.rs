//! Speculative decoding does not change the output: ids, ends and logits, greedy and
//! sampled, by every engine. And drafts are accepted where they can be.

use bitnet_wgpu::{
    Element, Error,
    model::{
        GenerateOptions, Model, Sampling, SessionOptions, Speculation, SpeculationCounts, Stop,
    },
};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, LazyLock, Mutex},
};
use support::{
    block_on, context,
    files::Directory,
    models::{self, on_gpu_and_cpu},
};

const TALES: &str = "assets/tales-22m";

/// A text that repeats itself, as does what follows.
const LIST: &str = "One day Tom went to the park. Tom said hello. One day Mia went to the park. Mia said hello. One day Ben went to the park. \
                    Ben said hello. One day";

/// The real model on each engine.
fn tales() -> [(&'static str, Model); 2] {
    static MODELS: LazyLock<[Model; 2]> = LazyLock::new(|| {
        let path = support::repository(TALES);
        [
            Model::builder(&path).cpu().build().unwrap(),
            Model::builder(&path).device(context()).build().unwrap(),
        ]
    });
    let [cpu, gpu] = &*MODELS;
    [("tales on the CPU", cpu.clone()), ("tales on the GPU", gpu.clone())]
}

/// A model's first layers, on the CPU: of the same vocabulary, and another.
fn first_layers(of: &Path, layers: usize) -> Model {
    let copy = Directory::temporary();
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(of.join("config.json")).unwrap()).unwrap();
    config["num_hidden_layers"] = layers.into();
    config["layer_types"].as_array_mut().into_iter().for_each(|types| types.truncate(layers));
    copy.write("config.json", config.to_string());
    copy.write("model.safetensors", std::fs::read(of.join("model.safetensors")).unwrap());
    Model::builder(&copy.0).cpu().ignore_unused(true).build().unwrap()
}

/// What came of a text.
#[derive(Debug, PartialEq)]
struct Run {
    ids: Vec<u32>,
    text: String,
    stop: Option<Stop>,
}

fn run(
    model: &Model,
    prompt: &[u32],
    options: &GenerateOptions,
) -> (Run, Option<SpeculationCounts>) {
    let mut generation = model.generate_ids(prompt, options).unwrap();
    let (mut ids, mut text) = (Vec::new(), String::new());
    for token in &mut generation {
        let token = token.unwrap();
        ids.push(token.id);
        text += &token.text;
    }
    let (stop, counts) = (generation.stop(), generation.speculation());
    // The session has the text, but for the last token, and goes on from there.
    let session = block_on(generation.into_session()).unwrap();
    let whole = [prompt, &ids].concat();
    assert_eq!(session.tokens(0), &whole[..whole.len() - 1]);
    assert_eq!(session.len(0), whole.len() - 1);
    (Run { ids, text, stop }, counts)
}

/// Compares a text with and without; returns what was drafted.
fn same(
    what: &str,
    model: &Model,
    prompt: &[u32],
    options: &GenerateOptions,
    by: impl Into<Speculation>,
) -> SpeculationCounts {
    all_same(what, model, prompt, options, [by.into()])[0]
}

/// Compares a text with drafts in several ways with the text without; returns what was drafted by
/// each.
fn all_same<const N: usize>(
    what: &str,
    model: &Model,
    prompt: &[u32],
    options: &GenerateOptions,
    by: [Speculation; N],
) -> [SpeculationCounts; N] {
    let (plain, none) = run(model, prompt, options);
    assert!(none.is_none() && !plain.ids.is_empty(), "{what}");
    by.map(|by| {
        let (guessed, counts) = run(model, prompt, &options.clone().speculate(by.clone()));
        let counts = counts.unwrap();
        assert_eq!(guessed, plain, "{what}: {by:?}, {counts:?}, {options:?}");
        assert!(
            counts.accepted <= counts.drafted && counts.passes <= counts.drafted,
            "{what}: {counts:?}"
        );
        assert!(
            counts.accepted + counts.passes <= plain.ids.len(),
            "{what}: {counts:?} of {} tokens",
            plain.ids.len()
        );
        counts
    })
}

fn ngram(shortest: usize, longest: usize, tokens: usize) -> Speculation {
    Speculation::ngram_lengths(shortest, longest).tokens(tokens)
}

fn warm(seed: u64) -> Sampling {
    Sampling::GREEDY.temperature(0.8).top_k(40).top_p(0.95).seed(seed)
}

#[test]
fn drafts_of_any_length_keep_the_output() {
    for (engine, model) in on_gpu_and_cpu("newer") {
        let draft = first_layers(&models::directory("newer"), 1);
        let options = GenerateOptions::default().max_tokens(30).ignore_eos(true);
        let prompt = [510, 3, 7, 9, 3, 7, 9, 3, 7];
        for options in [options.clone(), options.sampling(warm(1).temperature(0.3))] {
            let lengths = [1, 2, 3, 4, 5, 6, 7, 8, 15];
            let by_text = all_same(
                &engine,
                &model,
                &prompt,
                &options,
                lengths.map(|tokens| ngram(1, 3, tokens)),
            );
            let by_model = all_same(
                &engine,
                &model,
                &prompt,
                &options,
                lengths.map(|tokens| Speculation::from(&draft).tokens(tokens)),
            );
            assert!(
                by_text.iter().chain(&by_model).any(|counts| counts.accepted > 0),
                "{engine}: {by_text:?} {by_model:?}"
            );
        }
    }
}

/// Recurrent layers cannot forget single tokens, so that what was before a draft is kept.
#[test]
fn drafts_of_hybrids_keep_the_output() {
    let draft = first_layers(&models::directory("qwen35"), 3);
    let prompt = [250, 3, 7, 9, 3, 7, 9, 3, 7];
    for (engine, model) in on_gpu_and_cpu("qwen35") {
        let options = GenerateOptions::default().max_tokens(40).ignore_eos(true);
        let sampled = options.clone().sampling(warm(1).temperature(0.3));
        let penalized = options.clone().sampling(Sampling::GREEDY.repetition_penalty(1.05));
        let (mut accepted, mut missed) = (0, 0);
        for options in [options.clone(), sampled, penalized] {
            let lengths = [1, 2, 3, 8, 15];
            let by_text = lengths.map(|tokens| ngram(1, 3, tokens));
            let by_model = lengths.map(|tokens| Speculation::from(&draft).tokens(tokens));
            for by in [by_text, by_model] {
                for counts in all_same(&engine, &model, &prompt, &options, by) {
                    accepted += counts.accepted;
                    missed += counts.drafted - counts.accepted;
                }
            }
        }
        assert!(accepted > 20 && missed > 20, "{engine}: {accepted} accepted, {missed} missed");
        // Its own drafts are right, on the CPU those of the CPU.
        let counts = same(&engine, &model, &prompt, &options, &model);
        assert_eq!(counts.accepted, counts.drafted, "{engine}");
    }
}

#[test]
fn text_that_repeats_itself_is_guessed() {
    for (engine, model) in tales() {
        let prompt = model.encode_prompt(LIST).unwrap();
        let options = GenerateOptions::default().max_tokens(64).ignore_eos(true);
        let counts = same(engine, &model, &prompt, &options, Speculation::ngram());
        println!("{engine}, greedy: {counts:?}");
        assert!(
            2 * counts.accepted > counts.drafted && counts.accepted > 16,
            "{engine}: {counts:?}"
        );
        let mut accepted = 0;
        for seed in 1..3 {
            let sampled = options.clone().sampling(warm(seed).temperature(0.4));
            let counts = same(engine, &model, &prompt, &sampled, Speculation::ngram());
            println!("{engine}, seed {seed}: {counts:?}");
            accepted += counts.accepted;
        }
        assert!(accepted > 0, "{engine}");
    }
}

/// A model that drafts for itself is never wrong, whatever the numbers are that are drawn.
#[test]
fn a_models_own_drafts_are_all_accepted() {
    let small =
        on_gpu_and_cpu("newer").into_iter().map(|(engine, model)| (engine, model, vec![510, 3, 7]));
    let real = tales().map(|(engine, model)| (engine.to_owned(), model, vec![2046, 7]));
    for (engine, model, prompt) in small.chain(real) {
        for sampling in [Sampling::GREEDY, warm(1), warm(2).temperature(1.5)] {
            let options = GenerateOptions::default().max_tokens(30).sampling(sampling);
            let counts = same(&engine, &model, &prompt, &options, &model);
            assert_eq!(counts.accepted, counts.drafted, "{engine}: {sampling:?}");
            assert!(counts.passes > 0 && counts.passes < 8, "{engine}: {counts:?}");
        }
    }
}

/// What is forced upon a text is not drafted; what follows is, since the draft model forgets what
/// did not become text.
#[test]
fn one_wrong_guess_costs_one_draft() {
    for (engine, model) in on_gpu_and_cpu("newer") {
        // Wherever in a draft it is.
        for (place, sampling) in [12, 13, 14, 15]
            .into_iter()
            .flat_map(|place| [(place, Sampling::GREEDY), (place, warm(5))])
        {
            let forced = move |tokens: &[u32], logits: &mut [f32]| {
                if tokens.len() == place {
                    logits[(tokens[place - 1] as usize + 7) % 512] = 1e4;
                }
            };
            let options = GenerateOptions::default()
                .max_tokens(32)
                .ignore_eos(true)
                .sampling(sampling)
                .logits(forced);
            let counts =
                same(&engine, &model, &[510, 3, 7], &options, Speculation::from(&model).tokens(4));
            let missed = counts.drafted - counts.accepted;
            assert!((1..=4).contains(&missed), "{engine}, {place}: {counts:?}");
        }
    }
}

/// Options that the host looks at, at every token.
fn kinds() -> Vec<GenerateOptions> {
    let options =
        |sampling| GenerateOptions::default().max_tokens(32).ignore_eos(true).sampling(sampling);
    vec![
        options(warm(1).repetition_penalty(1.2).presence_penalty(0.2).frequency_penalty(0.1)),
        options(Sampling::GREEDY.repetition_penalty(1.05)),
        options(Sampling::GREEDY).logit_bias([(5, 3.0), (9, f32::NEG_INFINITY)]),
        options(warm(2)).min_tokens(8).bad_words([vec![3, 7], vec![9]]),
        options(Sampling::GREEDY).no_repeat_ngram(6),
        options(warm(3).min_p(0.1)).logits(|tokens, logits| logits[tokens.len() % 11] += 2.0),
        options(warm(4)).kv_type(Element::F32),
    ]
}

#[test]
fn speculation_keeps_the_output_with_logit_options() {
    let prompt = [510, 3, 7, 9, 3, 7, 9, 3, 7];
    let draft = first_layers(&models::directory("newer"), 1);
    for (engine, model) in on_gpu_and_cpu("newer") {
        for options in kinds() {
            all_same(
                &engine,
                &model,
                &prompt,
                &options,
                [ngram(1, 4, 6), Speculation::from(&model), Speculation::from(&draft)],
            );
        }
    }
}

#[test]
fn another_models_drafts_keep_the_output() {
    let half = first_layers(&support::repository(TALES), 4);
    let int8 = Model::builder(support::repository(TALES)).cpu().int8_head(true).build().unwrap();
    for (engine, model) in tales() {
        let prompt = model.encode_prompt("Once upon a time there was").unwrap();
        for sampling in [Sampling::GREEDY, warm(1), warm(2)] {
            let options = GenerateOptions::default().max_tokens(40).sampling(sampling);
            let [poor, good] = all_same(
                engine,
                &model,
                &prompt,
                &options,
                [Speculation::from(&half), Speculation::from(&int8)],
            );
            println!("{engine}: {poor:?}, {good:?}");
            assert!(
                2 * good.accepted > good.drafted && good.accepted > poor.accepted,
                "{engine}: {poor:?} {good:?}"
            );
        }
    }
}

/// A hook sees, in the same order, the same text and the same logits.
#[test]
fn logits_are_the_same_bits() {
    for (engine, model) in tales() {
        let seen = |by: Option<Speculation>| {
            let log = Arc::new(Mutex::new(Vec::new()));
            let kept = log.clone();
            let hook = move |tokens: &[u32], logits: &mut [f32]| {
                let bits: Vec<u32> = logits.iter().map(|logit| logit.to_bits()).collect();
                kept.lock().unwrap().push((tokens.to_vec(), bits));
            };
            let options = GenerateOptions::default()
                .max_tokens(48)
                .ignore_eos(true)
                .sampling(warm(3).temperature(0.2))
                .logits(hook)
                .speculate(by);
            let (_, counts) = run(&model, &model.encode_prompt(LIST).unwrap(), &options);
            let log = log.lock().unwrap().clone();
            (log, counts)
        };
        let (plain, _) = seen(None);
        assert_eq!(plain.len(), 48);
        for by in [Speculation::ngram().tokens(3), Speculation::from(&model)] {
            let (guessed, counts) = seen(Some(by));
            assert!(counts.unwrap().accepted > 0, "{engine}: {counts:?}");
            assert!(guessed == plain, "{engine}: {counts:?}");
        }
    }
}

#[test]
fn ends_are_where_they_were() {
    for (engine, model) in tales() {
        let prompt = model.encode_prompt("Once upon a time there was").unwrap();
        let options = GenerateOptions::default().max_tokens(32);
        let (plain, _) = run(&model, &prompt, &options.clone().ignore_eos(true));
        // A string and a token in the midst of a draft.
        let stop = plain.text[plain.text.len() / 2..].split(' ').nth(2).unwrap();
        assert!(!plain.text[..4].contains(stop));
        let stopped = options.clone().stop([stop]);
        assert_eq!(run(&model, &prompt, &stopped).0.stop, Some(Stop::StopString), "{engine}");
        let ended = options
            .clone()
            .logits(|tokens, logits| logits[2047] = if tokens.len() > 25 { 1e6 } else { -1e6 });
        let (end, _) = run(&model, &prompt, &ended);
        assert!(end.stop == Some(Stop::EndOfText) && end.ids.len() > 8, "{engine}: {end:?}");
        for options in
            [&stopped, &ended, &options.clone().max_tokens(1), &options.clone().max_tokens(2)]
        {
            all_same(engine, &model, &prompt, options, [ngram(1, 3, 6), Speculation::from(&model)]);
        }
    }
}

#[test]
fn a_context_is_filled_to_its_end() {
    for (engine, model) in on_gpu_and_cpu("llama") {
        let limit = model.config().context;
        for before in [1, 2, 5, 12] {
            let prompt: Vec<u32> = (0..(limit - before) as u32).map(|i| i % 5).collect();
            let options = GenerateOptions::default().max_tokens(40).ignore_eos(true);
            let (plain, _) = run(&model, &prompt, &options);
            assert_eq!(
                (plain.ids.len(), plain.stop),
                (before + 1, Some(Stop::Context)),
                "{engine}"
            );
            let by = [ngram(1, 2, 8), Speculation::from(&model)];
            for counts in all_same(&engine, &model, &prompt, &options, by) {
                assert!(before > 1 || counts.passes == 0, "{engine}: {counts:?}");
            }
        }
        // A draft model of less room than the text: nothing is drafted beyond it.
        let short = models::Reconfigured::open("llama", |c| c.context = 20);
        let short = Model::builder_from(&short, None).cpu().build().unwrap();
        let options = GenerateOptions::default().max_tokens(40).ignore_eos(true);
        let counts = same(&engine, &model, &[1, 2, 3], &options, &short);
        assert!(counts.accepted > 0 && counts.accepted < 20, "{engine}: {counts:?}");
    }
}

/// Turns of a conversation: the draft model's session goes along, and so does what was dropped in
/// the middle.
#[test]
fn a_session_goes_on_with_its_draft_model() {
    for (engine, model) in on_gpu_and_cpu("newer") {
        let options = GenerateOptions::default().ignore_eos(true).sampling(warm(11)).max_tokens(40);
        let (whole, _) = run(&model, &[510, 3, 7], &options);
        for by in [ngram(1, 3, 4), Speculation::from(&model)] {
            let options = options.clone().speculate(by);
            let mut session = model.session(SessionOptions::new(1, 64)).unwrap();
            let mut text = vec![510, 3, 7];
            // Left after this many tokens, wherever the thread is at that time.
            for taken in [5, 1, 7, 3] {
                let mut generation = model.generate_ids_in(session, &text, &options).unwrap();
                text.extend(
                    (&mut generation).into_iter().take(taken).map(|token| token.unwrap().id),
                );
                session = block_on(generation.into_session()).unwrap();
                assert_eq!(session.tokens(0).len(), session.len(0), "{engine}");
                assert_eq!(session.tokens(0)[..text.len() - 1], text[..text.len() - 1], "{engine}");
            }
            assert_eq!(text[3..], whole.ids[..16], "{engine}: {options:?}");
            // Another text in the same session, without and with.
            let (expected, _) = run(&model, &[9, 8], &options.clone().speculate(None));
            let ids = |generation: bitnet_wgpu::model::Generation| {
                generation.into_iter().map(|token| token.unwrap().id).collect::<Vec<_>>()
            };
            assert_eq!(
                ids(model.generate_ids_in(session, &[9, 8], &options).unwrap()),
                expected.ids,
                "{engine}"
            );
        }
    }
}

#[test]
fn many_seeds_give_the_same_pairs() {
    let model = Model::builder(models::directory("newer")).cpu().build().unwrap();
    let draft = Model::builder(models::directory("newer")).cpu().int8_head(true).build().unwrap();
    let pairs = |by: Option<Speculation>| {
        let mut counts = BTreeMap::<Vec<u32>, usize>::new();
        let mut guessed = 0;
        for seed in 0..300 {
            let options =
                GenerateOptions::default().max_tokens(3).ignore_eos(true).speculate(by.clone());
            let options = options.sampling(Sampling::GREEDY.temperature(2.0).top_k(8).seed(seed));
            let (run, speculation) = run(&model, &[510, 3, 7], &options);
            *counts.entry(run.ids[1..].to_vec()).or_default() += 1;
            guessed += speculation.map_or(0, |counts| counts.accepted);
        }
        (counts, guessed)
    };
    let (plain, _) = pairs(None);
    let (guessed, accepted) = pairs(Some(Speculation::from(&draft).tokens(2)));
    println!("{} pairs, {accepted} accepted", plain.len());
    assert!(plain.len() > 10 && accepted > 0, "{} pairs, {accepted} accepted", plain.len());
    assert_eq!(guessed, plain);
}

#[test]
fn what_cannot_be_is_refused() {
    let model = Model::builder(models::directory("newer")).cpu().build().unwrap();
    let other = Model::builder(models::directory("llama")).cpu().build().unwrap();
    let refused = |by: Speculation, what: &str| {
        let options = GenerateOptions::default().speculate(by);
        match model.generate_ids(&[1], &options).map(drop) {
            Err(Error::Invalid { what: found, .. }) => assert!(found.contains(what), "{found}"),
            other => panic!("{what}: {other:?}"),
        }
    };
    refused(Speculation::from(&other), "320 tokens, the model one of 512");
    refused(Speculation::ngram().tokens(0), "drafts of 0 tokens");
    refused(Speculation::ngram().tokens(16), "drafts of 16 tokens");
    refused(Speculation::from(&model).tokens(usize::MAX), "drafts of 18446744073709551615 tokens");
    refused(ngram(0, 3, 4), "runs of 0 to 3 tokens");
    refused(ngram(4, 3, 4), "runs of 4 to 3 tokens");
    refused(ngram(1, 33, 4), "runs of 1 to 33 tokens");
    let options = GenerateOptions::default().speculate(Speculation::ngram());
    let batch = block_on(model.generate_batch_ids(&[vec![1]], &options)).map(drop);
    assert!(
        matches!(&batch, Err(Error::Invalid { what, .. }) if what.contains("batch")),
        "{batch:?}"
    );
}
