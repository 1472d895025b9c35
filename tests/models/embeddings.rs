//! Embeddings: those of transformers and sentence-transformers, batch-invariant,
//! as files and options say.

use bitnet_wgpu::{
    Context, ContextOptions, Element, Error, ErrorKind,
    formats::{Checkpoint, EmbeddingDefaults, GgufVocabulary, ModelFile as _, Pooling},
    internals::TokenizerInternals as _,
    model::{EmbedOptions, Embedding, Model, SessionOptions, Tokenizer},
};
use serde_json::{Value, json};
use std::fs;
use support::{
    block_on, context,
    files::Directory,
    models::{directory, golden, on_gpu_and_cpu},
    real_model,
};

const POOLINGS: [(&str, Pooling); 3] =
    [("cls", Pooling::Cls), ("mean", Pooling::Mean), ("last", Pooling::Last)];

fn embed(model: &Model, texts: &[Vec<u32>], pooling: Pooling) -> Vec<Embedding> {
    block_on(model.embed_ids(texts, &EmbedOptions::default().pooling(pooling))).unwrap()
}

fn bits(embedding: &Embedding) -> Vec<u32> {
    embedding.vector.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn vectors_are_those_of_sentence_transformers() {
    for name in ["qwen3", "gemma3"] {
        vectors_of(name);
    }
}

fn vectors_of(name: &str) {
    let (prompts, vectors) =
        (golden(name), support::Golden::open(directory(name).join("embeddings.safetensors")));
    let texts: Vec<_> = (0..3).map(|n| prompts.ids(&format!("prompt{n}.ids"))).collect();
    for (engine, model) in on_gpu_and_cpu(name) {
        for (name, pooling) in POOLINGS {
            // Activations are rounded by at most 2^-14.98 of the largest of a block.
            for (normalize, suffix, tolerance) in [(true, ".normalized", 2e-4), (false, "", 2e-3)] {
                let options = EmbedOptions::default().pooling(pooling).normalize(normalize);
                for (n, found) in
                    block_on(model.embed_ids(&texts, &options)).unwrap().iter().enumerate()
                {
                    let expected = vectors.floats(&format!("prompt{n}.{name}{suffix}"));
                    assert_eq!(
                        (found.vector.len(), found.tokens),
                        (expected.len(), texts[n].len())
                    );
                    let far = found
                        .vector
                        .iter()
                        .zip(&expected)
                        .map(|(a, b)| (a - b).abs())
                        .fold(0.0, f32::max);
                    assert!(far < tolerance, "{engine}, prompt {n}, {name}{suffix}: {far}");
                }
            }
        }
    }
}

/// More texts than are computed together, of equal lengths, of lengths that are no multiples of
/// what is, and longer than what is.
#[test]
fn embeddings_do_not_depend_on_the_batch() {
    let quantized = || Model::builder(directory("odd")).device(context()).build().unwrap();
    for (engine, model) in on_gpu_and_cpu("qwen3")
        .into_iter()
        .chain(on_gpu_and_cpu("gemma3_floats"))
        .chain([("quantised activations".into(), quantized())])
    {
        let vocab = model.config().vocab as u32;
        let text = |n: u32| {
            (0..[1, 2, 7, 7, 65, 100, 31][n as usize % 7] + n / 7)
                .map(|i| (i * i * 31 + n * 977 + i) % vocab)
                .collect()
        };
        let texts: Vec<Vec<u32>> = (0..19).map(text).collect();
        for (name, pooling) in POOLINGS {
            let all = embed(&model, &texts, pooling);
            for (n, alone) in [4, 5, 18].map(|n| (n, &texts[n..=n])) {
                assert_eq!(
                    bits(&embed(&model, alone, pooling)[0]),
                    bits(&all[n]),
                    "{engine}: text {n}, {name}"
                );
            }
        }
        let all = embed(&model, &texts, Pooling::Mean);
        let backwards: Vec<_> = texts.iter().rev().skip(3).cloned().collect();
        let backwards = embed(&model, &backwards, Pooling::Mean);
        assert!(
            backwards.iter().rev().zip(&all).all(|(a, b)| bits(a) == bits(b)),
            "{engine}, in another order"
        );
    }
}

/// What the first state is of, and what the mean is.
#[test]
fn poolings_follow_from_states() {
    let (_, model) = &on_gpu_and_cpu("qwen3")[1];
    let (text, options) = (vec![5u32, 6, 7], EmbedOptions::default().normalize(false));
    let of = |ids: &[u32], pooling| {
        block_on(model.embed_ids(&[ids.to_vec()], &options.pooling(pooling)))
            .unwrap()
            .remove(0)
            .vector
    };
    let states: Vec<_> = (1..=3).map(|n| of(&text[..n], Pooling::Last)).collect();
    assert_eq!(of(&text, Pooling::Cls), states[0]);
    let mean =
        |i: usize| (states.iter().map(|state| f64::from(state[i])).sum::<f64>() / 3.0) as f32;
    assert_eq!(of(&text, Pooling::Mean), (0..states[0].len()).map(mean).collect::<Vec<_>>());
    let unit = embed(model, &[text], Pooling::Mean).remove(0).vector;
    approx::assert_abs_diff_eq!(
        unit.iter().map(|x| f64::from(x * x)).sum::<f64>(),
        1.0,
        epsilon = 1e-6
    );
}

#[test]
fn texts_are_tokenized_and_refused() {
    let model = Model::builder(real_model()).cpu().build().unwrap();
    let embed = |texts: &[&str]| block_on(model.embed(texts, &EmbedOptions::default()));
    let found = embed(&["Once upon a time", "The bear ate honey."]).unwrap();
    let ids = model.tokenizer().unwrap().encode("The bear ate honey.").unwrap();
    assert_eq!(found[1].tokens, ids.len());
    // Where nobody says how, it is the last token's state, of length 1.
    assert_eq!(found[1], self::embed(&model, &[ids], Pooling::Last)[0]);
    assert!(embed(&[]).unwrap().is_empty());
    let error = embed(&["Once", ""]).unwrap_err();
    assert!(
        matches!(&error, Error::Invalid { op: "embed", what } if what == "text 1 is empty"),
        "{error}"
    );
    let error = embed(&["Once", &"word ".repeat(600)]).unwrap_err();
    assert!(matches!(error, Error::Context { needed: 600.., capacity: 512 }), "{error}");
    let ids = |ids: &[u32]| {
        block_on(model.embed_ids(&[vec![1], ids.to_vec()], &EmbedOptions::default()))
            .unwrap_err()
            .to_string()
    };
    assert!(ids(&[]).contains("text 1 has no tokens"));
    assert!(ids(&[5000]).contains("token 5000; the vocabulary has"));
    let (_, without) = &on_gpu_and_cpu("qwen3")[1];
    assert!(matches!(
        block_on(without.embed(&["Once"], &EmbedOptions::default())),
        Err(Error::Tokenizer { .. })
    ));
}

/// The small model with more files.
fn with_files(files: &[(&str, Value)]) -> Directory {
    let copy = Directory::temporary();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(directory("qwen3").join(name), copy.0.join(name)).unwrap();
    }
    for (name, json) in files {
        fs::create_dir_all(copy.0.join(name).parent().unwrap()).unwrap();
        copy.write(name, json.to_string());
    }
    copy
}

fn module(kind: &str, path: &str) -> Value {
    json!({ "idx": 0, "name": "0", "path": path, "type": format!("sentence_transformers.models.{kind}") })
}

#[test]
fn files_say_how_texts_become_vectors() {
    let said = |files: &[(&str, Value)]| {
        Checkpoint::open(&with_files(files).0).unwrap().config().embedding.clone()
    };
    let of = |pooling, normalize| {
        let mut said = EmbeddingDefaults::default();
        (said.pooling, said.normalize) = (pooling, normalize);
        said
    };
    assert_eq!(said(&[]), of(None, None));
    let mean = json!({ "word_embedding_dimension": 64, "pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true });
    assert_eq!(said(&[("1_Pooling/config.json", mean.clone())]), of(Some(Pooling::Mean), None));
    let modules = |more: &[Value]| json!([&[module("Transformer", "")], more].concat());
    let (pooling, normalize) = (module("Pooling", "1_Pooling"), module("Normalize", "2_Normalize"));
    for (config, expected) in [
        (mean, Pooling::Mean),
        (json!({ "pooling_mode_cls_token": true }), Pooling::Cls),
        (
            json!({ "pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": false }),
            Pooling::Last,
        ),
        // As newer versions write it; older flags do not count beside.
        (json!({ "pooling_mode": "lasttoken", "pooling_mode_mean_tokens": true }), Pooling::Last),
        (json!({ "pooling_mode": ["cls"] }), Pooling::Cls),
        (json!({ "embedding_dimension": 64 }), Pooling::Mean),
    ] {
        let files = [
            ("modules.json", modules(&[pooling.clone(), normalize.clone()])),
            ("1_Pooling/config.json", config.clone()),
        ];
        assert_eq!(said(&files), of(Some(expected), Some(true)), "{config}");
        let files = [
            ("modules.json", modules(std::slice::from_ref(&pooling))),
            ("1_Pooling/config.json", config),
        ];
        assert_eq!(said(&files), of(Some(expected), Some(false)));
    }
    // A prompt that no text has unless it is asked for, or that is empty, and texts as they are,
    // change nothing.
    for prompts in [
        json!({ "prompts": { "query": "Find: " }, "default_prompt_name": null }),
        json!({ "prompts": { "a": "" }, "default_prompt_name": "a" }),
    ] {
        let files = [
            ("modules.json", modules(std::slice::from_ref(&pooling))),
            ("1_Pooling/config.json", json!({ "pooling_mode": "cls" })),
            ("config_sentence_transformers.json", prompts),
            (
                "sentence_bert_config.json",
                json!({ "max_seq_length": null, "do_lower_case": false }),
            ),
        ];
        assert_eq!(said(&files), of(Some(Pooling::Cls), Some(false)));
    }
    // The options come first, then the files.
    let files = [
        ("modules.json", modules(&[pooling])),
        ("1_Pooling/config.json", json!({ "pooling_mode": "mean" })),
    ];
    let (model, plain) = (
        Model::builder(&with_files(&files).0).cpu().build().unwrap(),
        Model::builder(directory("qwen3")).cpu().build().unwrap(),
    );
    let text = [vec![5u32, 6, 7]];
    let vector = |model: &Model, options| block_on(model.embed_ids(&text, &options)).unwrap();
    let options = EmbedOptions::default();
    assert_eq!(
        vector(&model, options),
        vector(&plain, options.pooling(Pooling::Mean).normalize(false))
    );
    assert_eq!(
        vector(&model, options.pooling(Pooling::Last).normalize(true)),
        vector(&plain, options)
    );
}

/// sentence-transformers would cut what is longer.
#[test]
fn files_say_how_long_a_text_may_be() {
    let files = |length: usize| {
        [
            ("modules.json", json!([module("Transformer", ""), module("Pooling", "1_Pooling")])),
            ("1_Pooling/config.json", json!({ "pooling_mode": "mean" })),
            ("sentence_bert_config.json", json!({ "max_seq_length": length })),
        ]
    };
    let (short, text) =
        (Model::builder(&with_files(&files(3)).0).cpu().build().unwrap(), |tokens: usize| {
            vec![vec![5u32; tokens]]
        });
    assert_eq!(short.config().embedding.max_tokens, Some(3));
    // Whatever pooling is asked for.
    for options in [EmbedOptions::default(), EmbedOptions::default().pooling(Pooling::Last)] {
        assert!(block_on(short.embed_ids(&text(3), &options)).is_ok());
        let error = block_on(short.embed_ids(&text(4), &options)).unwrap_err();
        assert!(matches!(error, Error::Context { needed: 4, capacity: 3 }), "{error}");
    }
    // The context is a limit still; and where no module says that texts become vectors, the file is
    // another's.
    let context = short.config().context;
    let long = Model::builder(&with_files(&files(context + 1)).0).cpu().build().unwrap();
    let error = block_on(long.embed_ids(&text(context + 1), &EmbedOptions::default())).unwrap_err();
    assert!(matches!(error, Error::Context { capacity, .. } if capacity == context), "{error}");
    let plain = Checkpoint::open(&with_files(&files(3)[2..]).0).unwrap();
    assert_eq!(plain.config().embedding, EmbeddingDefaults::default());
}

/// By the options: with the tokenizer's EOS, or without it. The shipped model's files ask for none.
#[test]
fn options_say_whether_texts_end_with_eos() {
    let model = Model::builder(real_model()).cpu().build().unwrap();
    let text = ["The bear ate honey."];
    let embed = |model: &Model, add_eos: Option<bool>| {
        block_on(model.embed(&text, &EmbedOptions::default().add_eos(add_eos)))
    };
    let [plain, without, with] =
        [None, Some(false), Some(true)].map(|add_eos| embed(&model, add_eos).unwrap().remove(0));
    let tokenizer = model.tokenizer().unwrap();
    let ids = tokenizer.encode(text[0]).unwrap();
    let ended = [&ids[..], tokenizer.eos()].concat();
    assert_eq!((&plain, &without), (&self::embed(&model, &[ids], Pooling::Last)[0], &plain));
    assert_eq!(with, self::embed(&model, &[ended], Pooling::Last)[0]);
    // One that a text has already is not put behind it again.
    let twice =
        block_on(model.embed(
            &[format!("{}<|end_of_text|>", text[0])],
            &EmbedOptions::default().add_eos(true),
        ))
        .unwrap();
    assert_eq!(twice[0], with);
    // Where files ask for it.
    let folder = Directory::temporary();
    let checkpoint = Checkpoint::open(real_model()).unwrap();
    let vocabulary = GgufVocabulary { add_eos: Some(true), ..tokenizer.to_gguf().unwrap() };
    let asks = Tokenizer::from_gguf(&vocabulary).unwrap();
    let model_of =
        |tokenizer| Model::builder_from(&checkpoint, Some(tokenizer)).cpu().build().unwrap();
    let asking = model_of(asks);
    for (add_eos, expected) in [(None, &with), (Some(true), &with), (Some(false), &plain)] {
        assert_eq!(&embed(&asking, add_eos).unwrap()[0], expected, "{add_eos:?}");
    }
    // Where they name none.
    folder.write("tokenizer.json", fs::read(real_model().join("tokenizer.json")).unwrap());
    let unnamed = model_of(Tokenizer::from_directory(&folder.0).unwrap());
    assert!(
        matches!(embed(&unnamed, Some(true)), Err(Error::Tokenizer { message }) if message.contains("EOS is wanted"))
    );
    assert!(embed(&unnamed, Some(false)).is_ok());
}

#[test]
fn unsupported_pooling_is_named() {
    let list = |modules: &[Value]| ("modules.json", json!(modules));
    let pooling = |config: Value| ("1_Pooling/config.json", config);
    for (files, words) in [
        (vec![pooling(json!({ "pooling_mode_max_tokens": true }))], "pooling_mode_max_tokens"),
        (vec![pooling(json!({ "pooling_mode": "weightedmean" }))], "weightedmean"),
        (vec![pooling(json!({ "pooling_mode": ["cls", "mean"] }))], "`cls` and `mean`"),
        (vec![list(&[module("Transformer", ""), module("Dense", "2_Dense")])], "module `Dense`"),
        (vec![list(&[module("Pooling", "none")])], "no config.json"),
        (vec![list(&[module("Transformer", "")])], "no pooling"),
        (
            vec![list(&[module("Transformer", ""), module("Normalize", "1_Normalize")])],
            "no pooling",
        ),
        (
            vec![list(&[module("Pooling", "1_Pooling"), module("Pooling", "2_Pooling")])],
            "several poolings",
        ),
        (
            vec![
                list(&[module("Transformer", "")]),
                (
                    "config_sentence_transformers.json",
                    json!({ "prompts": { "query": "Find: " }, "default_prompt_name": "query" }),
                ),
            ],
            "the default prompt `query`",
        ),
        (
            vec![
                list(&[module("Transformer", "")]),
                ("sentence_bert_config.json", json!({ "do_lower_case": true })),
            ],
            "do_lower_case",
        ),
    ] {
        // It loads, and writes texts; vectors it gives by a caller's word only.
        let files = with_files(&files);
        let model = Model::builder(&files.0).cpu().build().unwrap();
        let error = block_on(model.embed_ids(&[vec![5]], &EmbedOptions::default())).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unsupported && error.to_string().contains(words),
            "{error}"
        );
        assert!(error.to_string().contains(files.0.to_str().unwrap()), "{error}");
        assert_eq!(embed(&model, &[vec![5]], Pooling::Mean).len(), 1);
    }
    for (files, words) in [
        (vec![("modules.json", json!({}))], "no list of modules"),
        (vec![list(&[json!({ "path": "" })])], "no type"),
        (vec![list(&[json!({ "type": "a.Pooling", "path": 3 })])], "no path"),
        (vec![list(&[module("Pooling", "../elsewhere")])], "not in the model's"),
        (vec![list(&[module("Pooling", "/etc")])], "not in the model's"),
        (vec![list(&[module("Pooling", "")])], "not in the model's"),
        (vec![list(&[module("Pooling", "1_Pooling")]), pooling(json!([]))], "not a JSON object"),
        (vec![pooling(json!({ "pooling_mode_cls_token": 1 }))], "pooling_mode_cls_token is 1"),
        (vec![pooling(json!({ "pooling_mode": 1 }))], "pooling_mode is 1"),
        (vec![pooling(json!({ "pooling_mode": [1] }))], "no list of strings"),
        (
            vec![
                list(&[module("Transformer", "")]),
                ("sentence_bert_config.json", json!({ "max_seq_length": 0 })),
            ],
            "sentence_bert_config.json: max_seq_length is 0",
        ),
    ] {
        let error = Checkpoint::open(&with_files(&files).0).unwrap_err();
        assert!(error.kind() == ErrorKind::Damaged && error.to_string().contains(words), "{error}");
    }
}

/// A limited memory has room for some texts at a time, and the vectors are the same.
#[test]
fn fewer_texts_go_together_where_memory_is_limited() {
    let texts: Vec<Vec<u32>> =
        (0..16).map(|n| (0..120).map(|i| (i * 7 + n) % 300).collect()).collect();
    let plain = embed(
        &Model::builder(directory("qwen3")).device(context()).build().unwrap(),
        &texts,
        Pooling::Last,
    );
    // Of its own, so that its counters are this test's.
    let context = block_on(Context::open(ContextOptions::default())).unwrap();
    let model = Model::builder(directory("qwen3")).device(&context).build().unwrap();
    let used = context.memory_stats();
    let one = model.session_footprint(SessionOptions::new(1, 120).kv_type(Element::F32)).unwrap();
    context.limit_memory(Some(used.live_bytes + used.cached_bytes + 3 * one.total()));
    assert_eq!(embed(&model, &texts, Pooling::Last), plain);
}
