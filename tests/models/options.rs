//! Options of a generation, as they reach the tokens.

use super::stream::models;
use bitnet_wgpu::{
    Error,
    model::{GenerateOptions, Model, Sampling, Stop},
};
use support::block_on;

/// The engine applies biases and penalties; for a hook, it hands over all logits.
#[test]
fn biases_penalties_and_hooks_reach_the_tokens() {
    for (engine, model) in models() {
        let options = GenerateOptions::default().max_tokens(40).ignore_eos(true);
        let ids = |options: &GenerateOptions| -> Vec<u32> {
            model
                .generate("Once upon a time", options)
                .unwrap()
                .into_iter()
                .map(|token| token.unwrap().id)
                .collect()
        };
        let plain = ids(&options);
        assert_eq!(
            ids(&options.clone().logits(|_, _| ())),
            plain,
            "{engine}: a hook that changes nothing"
        );
        let forbidden = ids(&options.clone().logit_bias([(plain[3], f32::NEG_INFINITY)]));
        assert!(forbidden[..3] == plain[..3] && !forbidden.contains(&plain[3]), "{engine}");
        // A penalty that no repetition survives, against none.
        let distinct = |ids: &[u32]| ids.iter().collect::<std::collections::BTreeSet<_>>().len();
        let unlike = ids(&options.clone().sampling(Sampling::GREEDY.presence_penalty(1e4)));
        assert_eq!(distinct(&unlike), 40, "{engine}");
        assert!(distinct(&plain) < 40, "{engine}");
        let prompt = model.encode_prompt("Once upon a time").unwrap().len();
        let forced = ids(&options
            .clone()
            .logits(move |tokens, logits| logits[(tokens.len() - prompt) % 3] = 1e6));
        assert!(forced.iter().enumerate().all(|(i, &id)| id as usize == i % 3), "{engine}");
        let sequences = block_on(model.generate_batch_ids(
            &[vec![1, 5], vec![1, 7]],
            &options.clone().logit_bias([(9, 1e6)]),
        ))
        .unwrap();
        assert!(sequences.iter().flat_map(|sequence| &sequence.ids).all(|&id| id == 9), "{engine}");
        let beyond = options.clone().logit_bias([(model.config().vocab as u32, 1.0)]);
        assert!(
            matches!(model.generate("Once", &beyond).map(drop), Err(Error::Invalid { .. })),
            "{engine}"
        );
    }
}

#[test]
fn what_must_not_occur_does_not() {
    for (engine, model) in models() {
        let generate = |options: &GenerateOptions| {
            let mut generation = model.generate("Once upon a time", options).unwrap();
            let ids: Vec<u32> =
                (&mut generation).into_iter().map(|token| token.unwrap().id).collect();
            (ids, generation.stop())
        };
        let options = GenerateOptions::default().max_tokens(40);
        let (free, _) = generate(&options);
        let word = free[2..4].to_vec();
        let (ids, _) = generate(&options.clone().bad_words([word.clone()]));
        assert!(
            ids[..3] == free[..3] && !ids.windows(2).any(|pair| pair == word),
            "{engine}: {ids:?}"
        );
        let repeats = |ids: &[u32]| {
            (0..ids.len() - 1)
                .any(|at| ids[..at + 1].windows(2).any(|pair| pair == &ids[at..at + 2]))
        };
        let (ids, _) = generate(&options.clone().max_tokens(120).no_repeat_ngram(2));
        assert!(
            !repeats(&ids) && repeats(&generate(&options.clone().max_tokens(120)).0),
            "{engine}"
        );
        // An end that comes at once, without and with a least length.
        let end = model.config().eos[0];
        let eager = options.clone().logit_bias([(end, 1e6)]);
        assert_eq!(generate(&eager), (vec![end], Some(Stop::EndOfText)), "{engine}");
        let (ids, stop) = generate(&eager.min_tokens(5));
        assert_eq!(
            (&ids[..5], ids.len(), stop),
            (&free[..5], 6, Some(Stop::EndOfText)),
            "{engine}"
        );
        let prompt = model.encode_prompt("Once upon a time").unwrap().len();
        let (ids, stop) = generate(&options.clone().max_length(Some(prompt + 3)));
        assert_eq!((ids, stop), (free[..3].to_vec(), Some(Stop::MaxTokens)), "{engine}");
        let refused = |options: GenerateOptions| {
            matches!(model.generate("", &options).map(drop), Err(Error::Invalid { .. }))
        };
        assert!(
            refused(options.clone().bad_words([vec![]]))
                && refused(options.clone().bad_words([vec![1, 99_999]])),
            "{engine}"
        );
    }
}

/// A number among the options, which only their debug output shows.
fn number(options: &GenerateOptions, name: &str) -> usize {
    let all = format!("{options:?}");
    let (_, rest) = all.split_once(&format!("{name}: ")).unwrap();
    rest.split(',').next().unwrap().parse().unwrap()
}

#[test]
fn a_model_has_its_authors_options() {
    let directory = support::files::Directory::temporary();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        directory.write(
            file,
            std::fs::read(support::repository("assets/tales-22m").join(file)).unwrap(),
        );
    }
    let sampling = |json: &str| {
        directory.write("generation_config.json", json);
        let options = Model::builder(&directory.0).cpu().build().unwrap().options();
        (number(&options, "max_tokens"), options.get_sampling())
    };
    assert_eq!(sampling("{}"), (256, Sampling::GREEDY));
    assert_eq!(
        sampling(r#"{"do_sample": true}"#),
        (256, Sampling::GREEDY.temperature(1.0).top_k(50))
    );
    let expected =
        Sampling::GREEDY.temperature(0.6).top_k(0).top_p(0.9).min_p(0.1).repetition_penalty(1.2);
    let json = r#"{"do_sample":true,"temperature":0.6,"top_k":0,"top_p":0.9,"min_p":0.1,"repetition_penalty":1.2,"max_new_tokens":5}"#;
    assert_eq!(sampling(json), (5, expected));
    let whole = |json: &str| {
        directory.write("generation_config.json", json);
        let model = Model::builder(&directory.0).cpu().build().unwrap();
        (model.options(), model.config().generation.ignored.clone())
    };
    let json = r#"{"max_length":9,"min_new_tokens":2,"no_repeat_ngram_size":3,"bad_words_ids":[[1],[2,3]],"suppress_tokens":[4],"stop_strings":"x",
        "num_beams":4,"typical_p":1.0,"guidance_scale":null,"use_cache":true,"transformers_version":"5.0"}"#;
    let (options, ignored) = whole(json);
    assert_eq!(number(&options, "max_tokens"), usize::MAX);
    let all = format!("{options:?}");
    for set in [
        "max_length: Some(9)",
        "min_tokens: 2",
        "no_repeat_ngram: 3",
        "bad_words: [[1], [2, 3]]",
        "logit_bias: [(4, -inf)]",
        r#"stop: ["x"]"#,
    ] {
        assert!(all.contains(set), "{set}: {all}");
    }
    assert_eq!(ignored, ["num_beams"]);
    let (options, _) =
        whole(r#"{"max_length": 9, "max_new_tokens": 7, "stop_strings": ["x", "y"]}"#);
    let all = format!("{options:?}");
    for set in ["max_length: None", "max_tokens: 7", r#"stop: ["x", "y"]"#] {
        assert!(all.contains(set), "{set}: {all}");
    }
    for wrong in [
        r#"{"bad_words_ids": [["a"]]}"#,
        r#"{"suppress_tokens": -1}"#,
        r#"{"stop_strings": [1]}"#,
        r#"{"max_length": "9"}"#,
    ] {
        directory.write("generation_config.json", wrong);
        let error = Model::builder(&directory.0).cpu().build().unwrap_err().to_string();
        assert!(
            error.contains("generation_config.json")
                && error.contains(wrong.split('"').nth(1).unwrap()),
            "{error}"
        );
    }
    // Without sampling the rest is not meant.
    assert_eq!(sampling(r#"{"do_sample": false, "temperature": 0.6}"#), (256, Sampling::GREEDY));
}
