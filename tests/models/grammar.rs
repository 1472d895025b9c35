//! Texts of a real model by grammars: they parse on every engine, and are equal in batches, with
//! drafts and in parts.

use bitnet_wgpu::{
    Error,
    model::{
        BatchOptions, GenerateOptions, Generated, Grammar, Model, Sampling, Speculation, Stop,
    },
};
use serde_json::{Value, json};
use std::sync::LazyLock;
use support::{block_on, context, models::two_layers};

const PERSON: &str = r#"{
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "colors": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3}
    },
    "required": ["name", "age", "colors"],
    "additionalProperties": false
}"#;

/// Two layers of the shipped model, on the CPU and on the GPU.
static MODELS: LazyLock<[Model; 2]> = LazyLock::new(|| [None, Some(context())].map(two_layers));

fn grammars() -> Vec<(&'static str, Grammar)> {
    vec![
        ("an object", Grammar::json_schema(PERSON).unwrap()),
        (
            "a number",
            Grammar::json_schema(r#"{"type": "number", "minimum": 5, "maximum": 7.5}"#).unwrap(),
        ),
        (
            "a choice",
            Grammar::json_schema(r#"{"enum": ["Once upon", "a time", 3, null]}"#).unwrap(),
        ),
        ("a date", Grammar::regex("[0-9]{4}-[0-9]{2}-[0-9]{2}").unwrap()),
        (
            "a list",
            Grammar::lark("start: item (\", \" item){2}\nitem: %json {\"type\": \"boolean\"}")
                .unwrap(),
        ),
    ]
}

/// Greedy, and sampled with what else changes logits.
fn options() -> [GenerateOptions; 2] {
    let options = GenerateOptions::default().max_tokens(120);
    let sampled = Sampling::GREEDY.temperature(1.0).top_k(50).seed(7);
    [
        options.clone(),
        options.sampling(sampled.repetition_penalty(1.2)).logit_bias([(40, 2.0), (50, -3.0)]),
    ]
}

fn generated(model: &Model, options: &GenerateOptions) -> Generated {
    block_on(model.generate("Once upon a time", options).unwrap().all()).unwrap()
}

fn check(name: &str, text: &Generated) {
    // A number may have digits without an end.
    if name != "a number" {
        assert_eq!(text.stop, Stop::EndOfText, "{name}: {}", text.text);
    }
    let text = &text.text;
    let json =
        || serde_json::from_str::<Value>(text).unwrap_or_else(|e| panic!("{name}: {text}: {e}"));
    match name {
        "an object" => {
            let keys: Vec<String> = json().as_object().unwrap().keys().cloned().collect();
            assert_eq!(keys, ["name", "age", "colors"]);
            assert!(json()["age"].as_u64().unwrap() <= 150);
        }
        "a number" => assert!((5.0..=7.5).contains(&json().as_f64().unwrap()), "{text}"),
        "a choice" => {
            let choices = [json!("Once upon"), json!("a time"), json!(3), json!(null)];
            assert!(choices.contains(&json()), "{text}");
        }
        "a date" => assert!(text.len() == 10 && text.as_bytes()[7] == b'-', "{text}"),
        _ => assert_eq!(text.split(", ").count(), 3, "{text}"),
    }
}

#[test]
fn drafts_and_host_give_the_same_text() {
    for (n, (name, grammar)) in grammars().into_iter().enumerate() {
        for (o, options) in options().into_iter().enumerate() {
            let options = options.grammar(grammar.clone());
            for (m, model) in MODELS.iter().enumerate() {
                let plain = generated(model, &options);
                check(name, &plain);
                let options = options.clone();
                // Every model and options with each, over the grammars.
                let (way, options) = match (n + o + 2 * m) % 4 {
                    0 => ("n-grams", options.speculate(Speculation::ngram_lengths(1, 3))),
                    1 => ("a draft model", options.speculate(Speculation::from(&MODELS[0]))),
                    2 => ("chosen by the host", options.logits(|_, _| {})),
                    _ => ("with log-probabilities", options.logprobs(2)),
                };
                assert_eq!(generated(model, &options), plain, "{name}, {way}");
            }
        }
    }
}

#[test]
fn batches_give_the_same_texts() {
    let free = GenerateOptions::default().max_tokens(30);
    for model in &*MODELS {
        let batch = model.batch(BatchOptions::new(3, 256)).unwrap();
        // More than slots, so that one with a grammar follows one without, and the reverse.
        let begun: Vec<_> = grammars()
            .into_iter()
            .flat_map(|(name, grammar)| {
                let options = options().map(|options| options.grammar(grammar.clone()));
                options.into_iter().map(move |options| (name, options)).collect::<Vec<_>>()
            })
            .chain((0..4).map(|_| ("free", free.clone())))
            .enumerate()
            .map(|(n, (name, options))| {
                let options = if n % 5 == 3 { free.clone() } else { options };
                (name, batch.generate("Once upon a time", &options).unwrap(), options)
            })
            .collect();
        for (name, generation, options) in begun {
            assert_eq!(block_on(generation.all()).unwrap(), generated(model, &options), "{name}");
        }
    }
}

#[test]
fn a_cut_text_says_so() {
    for model in &*MODELS {
        let options = GenerateOptions::default().grammar(Grammar::json_schema(PERSON).unwrap());
        let cut = generated(model, &options.clone().max_tokens(5));
        assert_eq!((cut.stop, cut.ids.len()), (Stop::MaxTokens, 5));
        let whole = generated(model, &options);
        assert!(whole.text.starts_with(&cut.text));
        // Goes on where it was cut, by the same grammar.
        let prompt = model.encode_prompt("Once upon a time").unwrap();
        let resumed = options.clone().resumed(cut.ids.len());
        let rest = model.generate_ids(&[&prompt[..], &cut.ids].concat(), &resumed).unwrap();
        let rest = block_on(rest.all()).unwrap();
        assert_eq!([cut.ids, rest.ids].concat(), whole.ids);
        let stopped = generated(model, &options.stop(["\"age"]));
        assert_eq!(stopped.stop, Stop::StopString);
    }
}

#[test]
fn other_options_bring_no_token_back() {
    let digits = Grammar::regex("[0-9]{3}").unwrap();
    for model in &*MODELS {
        let plain = GenerateOptions::default().grammar(digits.clone());
        let options = [
            plain.clone().min_tokens(50),
            plain.clone().ignore_eos(true),
            plain.clone().logits(|_, logits| logits.fill(1.0)),
            plain.clone().logit_bias([(100, 100.0)]),
        ];
        for options in options {
            let text = generated(model, &options);
            assert!(
                text.text.len() == 3 && text.text.bytes().all(|b| b.is_ascii_digit()),
                "{text:?}"
            );
            assert_eq!(text.stop, Stop::EndOfText);
        }
        let vocab = model.config().vocab as u32;
        let none = plain.logit_bias((0..vocab).map(|id| (id, f32::NEG_INFINITY)));
        let error = block_on(model.generate("Once", &none).unwrap().all()).unwrap_err();
        assert!(
            matches!(&error, Error::Invalid { what, .. } if what.contains("the grammar allows")),
            "{error}"
        );
        let unknown = Grammar::lark("start: <|no_such_token|> \"a\"").unwrap();
        let error = model
            .generate("Once", &GenerateOptions::default().grammar(unknown))
            .map(drop)
            .unwrap_err();
        assert!(
            matches!(&error, Error::Grammar { message } if message.contains("no_such_token")),
            "{error}"
        );
    }
}
