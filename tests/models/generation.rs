//! What continues a prompt: how tokens are chosen, batches, ends, threads; on every engine, with
//! small random models.

use bitnet_wgpu::{
    Context, Element,
    model::{GenerateOptions, Model, Sampling, Stop},
};
use support::{
    block_on, context,
    files::Directory,
    models::{Reconfigured, directory, engines, golden, on_gpu_and_cpu, session},
};

#[test]
fn sequences_side_by_side_are_as_alone() {
    let name = "odd";
    let golden = golden(name);
    let prompts: Vec<_> = (0..3).map(|prompt| golden.ids(&format!("prompt{prompt}.ids"))).collect();
    let options = GenerateOptions::default().max_tokens(24).ignore_eos(true);
    for (engine, model) in engines(name) {
        let together = block_on(model.generate_batch_ids(&prompts, &options)).unwrap();
        for (prompt, generated) in together.iter().enumerate() {
            assert_eq!(
                generated.ids,
                golden.ids(&format!("prompt{prompt}.greedy")),
                "{engine}: prompt {prompt}"
            );
        }
        assert!(block_on(model.generate_batch_ids(&[], &options)).unwrap().is_empty());
    }
}

#[test]
fn sampling_is_reproducible_and_every_path_agrees() {
    for (engine, model) in engines("newer") {
        let draw = |top_k: usize, seed| {
            let sampling = Sampling::GREEDY.temperature(1.0).top_k(top_k).top_p(0.95).seed(seed);
            let options =
                GenerateOptions::default().max_tokens(12).sampling(sampling).ignore_eos(true);
            let tokens = model.generate_ids(&[510, 3, 7], &options).unwrap();
            tokens.into_iter().map(|token| token.unwrap().id).collect::<Vec<_>>()
        };
        assert_eq!(draw(20, 1), draw(20, 1), "{engine}");
        assert_ne!(draw(20, 1), draw(20, 2), "{engine}");
        // 512 is the vocabulary.
        assert_eq!(draw(256, 3).len(), 12);
        assert_eq!(draw(512, 3), draw(0, 3), "{engine}");
        let greedy = GenerateOptions::default().max_tokens(12).ignore_eos(true);
        let greedy: Vec<_> = model
            .generate_ids(&[510, 3, 7], &greedy)
            .unwrap()
            .into_iter()
            .map(|token| token.unwrap().id)
            .collect();
        assert_eq!(draw(1, 9), greedy, "{engine}");
    }
}

/// A hook that changes nothing has the logits read back: then the host chooses, by the same rule.
#[test]
#[ignore = "takes minutes: scripts/test --only slow"]
fn engines_choose_as_the_host_does() {
    let warm = Sampling::GREEDY.temperature(1.5);
    let options = |sampling: Sampling| {
        GenerateOptions::default().max_tokens(9).ignore_eos(true).sampling(sampling.seed(7))
    };
    let all = [
        options(warm.top_k(20).top_p(0.9)),
        options(warm.top_p(0.8).min_p(0.02)).logit_bias([
            (5, 0.7),
            (9, f32::NEG_INFINITY),
            (5, 0.1),
        ]),
        options(warm.repetition_penalty(1.3).presence_penalty(0.2).frequency_penalty(0.1)),
        options(Sampling::GREEDY.repetition_penalty(1.5)),
        // A prompt's last token is not one that was generated: it is chosen once.
        options(Sampling::GREEDY.presence_penalty(1e4)).logit_bias([(7, 50.0)]),
        // The host begins, and the engine goes on.
        options(warm.frequency_penalty(0.3)).min_tokens(4),
    ];
    let prompts = [vec![510, 3, 7], vec![3], vec![7, 7, 7, 8]];
    for (engine, model) in engines("newer") {
        for options in &all {
            let batch = |options: &GenerateOptions| {
                let all = block_on(model.generate_batch_ids(&prompts, options)).unwrap();
                all.into_iter().map(|generated| generated.ids).collect::<Vec<_>>()
            };
            let by_host = batch(&options.clone().logits(|_, _| ()));
            assert_eq!(batch(options), by_host, "{engine}: {options:?}");
            let alone: Vec<u32> = model
                .generate_ids(&prompts[0], options)
                .unwrap()
                .into_iter()
                .map(|token| token.unwrap().id)
                .collect();
            assert_eq!(alone, by_host[0], "{engine}, ahead: {options:?}");
        }
    }
}

/// Random numbers follow from a token's place in the text.
#[test]
fn generation_in_two_calls_equals_one() {
    for (engine, model) in engines("newer") {
        let options = GenerateOptions::default().kv_type(Element::F32).ignore_eos(true);
        let options = options.sampling(Sampling::GREEDY.temperature(1.5).top_p(0.9).seed(11));
        let whole = model.generate_ids(&[510, 3, 7], &options.clone().max_tokens(12)).unwrap();
        let whole: Vec<u32> = whole.into_iter().map(|token| token.unwrap().id).collect();
        let (mut session, mut text) = (session(&model, 1, 32, Element::F32), vec![510, 3, 7]);
        for tokens in [5, 7] {
            let mut generation =
                model.generate_ids_in(session, &text, &options.clone().max_tokens(tokens)).unwrap();
            text.extend((&mut generation).into_iter().map(|token| token.unwrap().id));
            session = block_on(generation.into_session()).unwrap();
        }
        assert_eq!(text[3..], whole, "{engine}");
    }
}

#[test]
fn a_generation_says_why_it_ended() {
    for (engine, model) in on_gpu_and_cpu("llama") {
        let limit = model.config().context;
        let run = |prompt: usize, options: GenerateOptions| {
            let ids: Vec<u32> = (0..prompt as u32).map(|i| i % 50).collect();
            let mut generation = model.generate_ids(&ids, &options).unwrap();
            let tokens: Vec<_> =
                (&mut generation).into_iter().map(|token| token.unwrap().id).collect();
            assert!((&mut generation).into_iter().next().is_none());
            (tokens, generation.stop())
        };
        let plain = GenerateOptions::default().max_tokens(5).ignore_eos(true);
        assert_eq!(run(3, plain.clone()).1, Some(Stop::MaxTokens), "{engine}");
        assert_eq!(
            run(3, plain.clone().max_tokens(0)),
            (vec![], Some(Stop::MaxTokens)),
            "{engine}"
        );
        // The last position's token is still generated.
        let (tokens, stop) = run(limit - 2, plain.clone().max_tokens(10));
        assert_eq!((tokens.len(), stop), (3, Some(Stop::Context)), "{engine}");
        assert_eq!(run(limit, plain.clone()).0.len(), 1, "{engine}");
        let sampling = Sampling::GREEDY.temperature(1.0).top_k(7);
        assert_eq!(
            run(limit - 2, plain.clone().max_tokens(10).sampling(sampling)).0.len(),
            3,
            "{engine}"
        );
    }
}

#[test]
fn sequences_of_a_batch_sample_and_stop_independently() {
    for (engine, model) in on_gpu_and_cpu("llama") {
        let sampling = |seed| {
            GenerateOptions::default()
                .max_tokens(8)
                .ignore_eos(true)
                .sampling(Sampling::GREEDY.temperature(2.0).top_k(50).seed(seed))
        };
        let prompts = vec![vec![5, 6, 7]; 3];
        let together = block_on(model.generate_batch_ids(&prompts, &sampling(40))).unwrap();
        for (n, generated) in together.iter().enumerate() {
            let alone = model
                .generate_ids(&prompts[n], &sampling(40 + n as u64))
                .unwrap()
                .into_iter()
                .map(|token| token.unwrap().id);
            assert_eq!(generated.ids, alone.collect::<Vec<_>>(), "{engine}: sequence {n}");
        }
        assert!(
            together[0].ids != together[1].ids && together[1].ids != together[2].ids,
            "{engine}: one seed for all"
        );
        // One fills the context, and ends for that; the other goes on.
        let limit = model.config().context;
        let prompts = [(0..limit as u32 - 2).map(|i| i % 50).collect(), vec![1, 2]];
        let options = GenerateOptions::default().max_tokens(9).ignore_eos(true);
        let ended = block_on(model.generate_batch_ids(&prompts, &options)).unwrap();
        let ended: Vec<_> =
            ended.into_iter().map(|generated| (generated.ids.len(), generated.stop)).collect();
        assert_eq!(ended, [(3, Stop::Context), (9, Stop::MaxTokens)], "{engine}");
    }
}

/// The model's own end, and those that only the tokenizer's files name.
#[test]
fn every_eos_token_of_a_file_stops() {
    let tales = support::repository("assets/tales-22m");
    let copy = Directory::temporary();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        copy.write(file, std::fs::read(tales.join(file)).unwrap());
    }
    let eos = "<|end_of_text|>";
    copy.write(
        "tokenizer_config.json",
        serde_json::json!({ "bos_token": "<|begin_of_text|>", "eos_token": eos }).to_string(),
    );
    // The model cannot give the second, which the tokenizer's files then name.
    copy.write("generation_config.json", r#"{ "eos_token_id": [300, 999999] }"#);
    let json = std::fs::read_to_string(tales.join("config.json"))
        .unwrap()
        .replace("\"eos_token_id\": 2047", "\"eos_token_id\": 301");
    copy.write("config.json", json);
    let model = Model::builder(&copy.0).cpu().build().unwrap();
    assert_eq!(model.config().eos, [301, 300]);
    for end in [300, 301, 2047] {
        let options = GenerateOptions::default().max_tokens(6).logit_bias([(end, 1e6)]);
        let mut generation = model.generate_ids(&[2046, 7], &options).unwrap();
        let ids: Vec<_> = (&mut generation).into_iter().map(|token| token.unwrap().id).collect();
        assert_eq!((ids, generation.stop()), (vec![end], Some(Stop::EndOfText)), "{end}");
        let ids: Vec<_> = model
            .generate_ids(&[2046, 7], &options.ignore_eos(true))
            .unwrap()
            .into_iter()
            .map(|token| token.unwrap().id)
            .collect();
        assert_eq!(ids, [end; 6]);
        let not_yet =
            GenerateOptions::default().max_tokens(6).min_tokens(2).logit_bias([(end, 1e6)]);
        let ids: Vec<_> = model
            .generate_ids(&[2046, 7], &not_yet)
            .unwrap()
            .into_iter()
            .map(|token| token.unwrap().id)
            .collect();
        assert!(
            ids.len() == 3
                && ids[..2].iter().all(|id| ![300, 301, 2047].contains(id))
                && ids[2] == end,
            "{ids:?}"
        );
    }
}

#[test]
fn models_and_generations_move_between_threads() {
    fn moves<T: Send + 'static>(value: T) -> T {
        value
    }
    let context: Context = context().clone();
    let model = moves(Model::builder(directory("newer")).device(&context).build().unwrap());
    let runs = (0..3).map(|_| {
        let model = model.clone();
        std::thread::spawn(move || {
            let options = GenerateOptions::default().max_tokens(8).ignore_eos(true);
            let generation = moves(model.generate_ids(&[9, 8, 7], &options).unwrap());
            generation.into_iter().map(|token| token.unwrap().id).collect::<Vec<_>>()
        })
    });
    let runs: Vec<_> =
        runs.collect::<Vec<_>>().into_iter().map(|run| run.join().unwrap()).collect();
    assert!(runs.iter().all(|run| *run == runs[0]));
}

/// As many sequences as there may be are decoded, and a context of millions costs nothing until
/// there are tokens.
#[test]
fn the_largest_sessions_work() {
    let file = Reconfigured::open("odd", |c| c.context = 1 << 24);
    let cpu = Model::builder_from(&file, None).cpu().build().unwrap();
    let options = GenerateOptions::default().max_tokens(usize::MAX).ignore_eos(true);
    let tokens: Vec<_> = cpu
        .generate_ids(&[1, 2], &options)
        .unwrap()
        .into_iter()
        .take(40)
        .map(|token| token.unwrap().id)
        .collect();
    let short = Model::builder(directory("odd")).cpu().build().unwrap();
    let expected = short
        .generate_ids(&[1, 2], &options.max_tokens(40))
        .unwrap()
        .into_iter()
        .map(|token| token.unwrap().id);
    assert_eq!(tokens, expected.collect::<Vec<_>>());
    for model in [Model::builder(directory("odd")).device(context()).build().unwrap(), short] {
        let mut session = session(&model, 4096, 2, Element::F32);
        let logits = block_on(session.decode(&[7; 4096])).unwrap();
        let vocab = model.config().vocab;
        assert!(
            logits.len() == 4096 * vocab && logits[..vocab] == logits[4095 * vocab..],
            "{model:?}"
        );
    }
}
