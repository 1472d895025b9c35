//! tokenizer.json, as transformers reads it; damaged and hostile ones.

use super::*;

#[test]
fn texts_give_the_tokens_of_transformers() {
    for vector in tales("golden/golden.json")["tokenizer"].as_array().unwrap() {
        let (text, plain, special) = (
            vector["text"].as_str().unwrap(),
            ids(&vector["ids"]),
            ids(&vector["ids_with_special"]),
        );
        assert_eq!(TOKENIZER.encode_plain(text).unwrap(), plain, "{text}");
        assert_eq!(TOKENIZER.encode(text).unwrap(), special, "{text}");
        assert_eq!(
            TOKENIZER.decode_with_special(&plain).unwrap(),
            vector["decoded"].as_str().unwrap()
        );
        assert_eq!(
            TOKENIZER.decode(&special).unwrap(),
            vector["decoded_skip_special"].as_str().unwrap()
        );
        assert_eq!(
            streamed(TOKENIZER.stream(), &special),
            vector["decoded_skip_special"].as_str().unwrap()
        );
    }
}

#[test]
fn a_long_text_gives_the_tokens_of_transformers() {
    let text = fs::read_to_string(Path::new(TALES).join("golden/heldout_own.txt")).unwrap();
    let expected =
        Golden::open(Path::new(TALES).join("golden/golden.safetensors")).ids("heldout_own.ids");
    assert_eq!(TOKENIZER.encode_plain(&text).unwrap(), expected);
    assert_eq!(Tokenizer::from_gguf(&byte_level()).unwrap().encode_plain(&text).unwrap(), expected);
}

#[test]
fn the_shipped_tokenizer_knows_its_special_tokens() {
    assert_eq!(
        (TOKENIZER.bos(), TOKENIZER.eos(), TOKENIZER.vocab_size()),
        (Some(2046), &[2047][..], 2048)
    );
    assert_eq!(TOKENIZER.token("<|end_of_text|>"), Some(2047));
    assert!(TOKENIZER.is_special(2046) && !TOKENIZER.is_special(0));
}

#[test]
fn every_file_may_name_what_ends_a_text() {
    let directory = Directory::new()
        .with("generation_config.json", &json!({ "eos_token_id": [7, 2047], "bos_token_id": 5 }))
        .with("config.json", &json!({ "eos_token_id": 9 }))
        .with(
            "special_tokens_map.json",
            &json!({ "eos_token": { "content": "<|begin_of_text|>" } }),
        );
    let tokenizer = directory.open().unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(5), &[7, 2047, 9, 2046][..]));
}

#[test]
fn bos_is_added_once() {
    let mut without = tales("tokenizer.json");
    without["post_processor"] = Value::Null;
    let begins = |json: &Value, config: Value| {
        let directory =
            Directory::new().with("tokenizer.json", json).with("tokenizer_config.json", &config);
        directory.open().unwrap().encode("a").unwrap()
    };
    let config = |add: bool| json!({ "bos_token": "<|begin_of_text|>", "add_bos_token": add });
    assert_eq!(begins(&tales("tokenizer.json"), config(true)), [2046, 64]);
    // The post-processor is followed before the configuration.
    assert_eq!(begins(&tales("tokenizer.json"), config(false)), [2046, 64]);
    assert_eq!(begins(&without, config(true)), [2046, 64]);
    assert_eq!(begins(&without, config(false)), [64]);
    assert_eq!(begins(&without, json!({ "add_bos_token": true })), [64]);
}

#[test]
fn truncation_and_padding_settings_are_ignored() {
    let mut json = tales("tokenizer.json");
    json["truncation"] =
        json!({ "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0 });
    json["padding"] = json!({
        "strategy": { "Fixed": 8 }, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "!"
    });
    let tokenizer = Directory::new().with("tokenizer.json", &json).open().unwrap();
    assert_eq!(
        tokenizer.encode("Once upon a time").unwrap(),
        TOKENIZER.encode("Once upon a time").unwrap()
    );
    assert_eq!(tokenizer.encode("a").unwrap(), [2046, 64]);
}

#[test]
fn an_id_without_a_token_is_an_error() {
    assert_eq!(message(TOKENIZER.decode(&[0, 2048])), "there is no token 2048");
    let mut stream = TOKENIZER.stream();
    assert_eq!(stream.push(64).unwrap(), "a");
    assert_eq!(message(stream.push(u32::MAX)), "there is no token 4294967295");
    assert_eq!(stream.push(65).unwrap(), "b");
}

#[test]
fn damaged_files_are_errors() {
    assert!(matches!(Tokenizer::from_directory("/nowhere"), Err(Error::Io { .. })));
    let tokenizer = |change: &dyn Fn(&mut Value)| {
        let mut json = tales("tokenizer.json");
        change(&mut json);
        message(Directory::new().with("tokenizer.json", &json).open())
    };
    tokenizer(&|json| *json = json!([]));
    tokenizer(&|json| json["model"]["vocab"] = json!(["a"]));
    tokenizer(&|json| json["model"]["merges"] = json!([["a", "nothing"]]));
    tokenizer(&|json| json["model"]["merges"] = json!([["nothing", "a"]]));
    tokenizer(&|json| json["model"]["vocab"] = json!({ "a": 0, "b": 1 }));
    tokenizer(&|json| {
        json["model"]["vocab"] = json!({ "a": 0, "b": 1 });
        json["model"]["merges"] = json!([["a", "b"]]);
    });
    tokenizer(&|json| json["model"]["continuing_subword_prefix"] = json!("longer than any token"));
    tokenizer(&|json| json["post_processor"]["processors"][1]["special_tokens"] = json!({}));
    tokenizer(&|json| {
        json["post_processor"]["processors"][1]["single"] =
            json!([{ "Sequence": { "id": "B", "type_id": 0 } }])
    });
    let cut = Directory::new();
    cut.0.write("generation_config.json", "{");
    message(cut.open());
}

/// A tokenizer's file is a program: what it may ask for is bounded, and the same text always gives
/// the same tokens.
#[test]
fn hostile_tokenizers_do_no_harm() {
    let with = |key: &str, value: Value| {
        let mut json = tales("tokenizer.json");
        json[key] = value;
        Directory::new().with("tokenizer.json", &json).open()
    };
    let sequence = |kind: &str, steps: Vec<Value>| json!({ "type": "Sequence", kind: steps });
    let replace =
        |from: Value, to: String| json!({ "type": "Replace", "pattern": from, "content": to });
    let string = |text: &str| json!({ "String": text });
    let normalizers = [
        sequence("normalizers", vec![replace(string("a"), "a".repeat(10)); 9]),
        sequence(
            "normalizers",
            vec![sequence("normalizers", vec![replace(string("a"), "a".repeat(10)); 2]); 2],
        ),
        replace(json!({ "Regex": "." }), "a".repeat(1 << 20)),
        replace(json!({ "Regex": "." }), "a".repeat(257)),
        replace(string(""), "a".into()),
        replace(json!({ "Regex": "a".repeat(5000) }), "a".into()),
        json!({ "type": "Precompiled", "precompiled_charsmap": "/////wAA" }),
        json!({ "type": "Precompiled", "precompiled_charsmap": "AAAAAAAA" }),
        json!({ "type": "Precompiled", "precompiled_charsmap": "é" }),
        json!({ "type": "Nothing" }),
        (0..10).fold(json!({ "type": "NFC" }), |inner, _| sequence("normalizers", vec![inner])),
    ];
    for normalizer in normalizers {
        let error = message(with("normalizer", normalizer.clone()));
        assert!(error.starts_with("normalizer: "), "{error}");
        println!("{error}");
        assert!(!error.contains("contradicts itself"), "{error}");
    }
    for (key, value) in [
        (
            "decoder",
            json!({ "type": "Strip", "content": "a", "start": 4_000_000_000u64, "stop": 0 }),
        ),
        ("decoder", sequence("decoders", vec![replace(string("a"), "a".repeat(10)); 9])),
        (
            "pre_tokenizer",
            json!({ "type": "Metaspace", "replacement": "ab", "prepend_scheme": "always" }),
        ),
        ("model", json!({ "type": "WordLevel", "vocab": {}, "unk_token": "a" })),
        ("model", json!({ "type": "BPE", "vocab": { "a": 4_000_000_000u64 }, "merges": [] })),
        ("model", json!({ "type": "BPE", "vocab": { "a": 0, "b": 0 }, "merges": [] })),
        ("model", json!({ "type": "BPE", "vocab": { "a": 0 }, "merges": [], "unk_token": "b" })),
        ("model", json!({ "type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 1 })),
        (
            "added_tokens",
            json!([{ "id": 0, "content": "", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false }]),
        ),
    ] {
        println!("{}", message(with(key, value)));
    }
    // Chance is taken out.
    let mut json = tales("tokenizer.json");
    json["model"]["dropout"] = json!(0.5);
    let tokenizer = Directory::new().with("tokenizer.json", &json).open().unwrap();
    for _ in 0..20 {
        assert_eq!(
            tokenizer.encode("Once upon a time there was a king").unwrap(),
            TOKENIZER.encode("Once upon a time there was a king").unwrap()
        );
    }
    // Two tokens for what is unknown: a map's order is another every time.
    let several = || {
        let mut vocabulary = sentence_piece();
        vocabulary.token_types[300] = 2;
        // Without bytes, what the vocabulary lacks is unknown.
        (3..259).for_each(|id| vocabulary.token_types[id] = 5);
        (3..259).for_each(|id| vocabulary.tokens[id] = format!("unused {id}"));
        Tokenizer::from_gguf(&vocabulary).unwrap().encode("東 the").unwrap()
    };
    let first = several();
    assert!((0..20).all(|_| several() == first));
}

/// The shipped file with the first 300 tokens alone, which is opened in less time.
static SHORT: LazyLock<Value> = LazyLock::new(|| {
    let mut json = tales("tokenizer.json");
    let model = &mut json["model"];
    model["vocab"].as_object_mut().unwrap().retain(|_, id| id.as_u64() < Some(300));
    model["merges"].as_array_mut().unwrap().truncate(44);
    let json = json.to_string().replace("2046", "300").replace("2047", "301");
    serde_json::from_str(&json).unwrap()
});

/// A part of the short file made something else: it is refused, or it encodes.
fn mutated(path: usize, value: &Value) -> (Value, String) {
    fn parts(json: &mut Value, left: &mut usize, value: &Value) -> Option<String> {
        if *left == 0 {
            let before = std::mem::replace(json, value.clone());
            return Some(before.to_string().chars().take(80).collect());
        }
        *left -= 1;
        match json {
            Value::Array(all) => all.iter_mut().take(12).find_map(|part| parts(part, left, value)),
            Value::Object(all) => {
                all.values_mut().take(24).find_map(|part| parts(part, left, value))
            }
            _ => None,
        }
    }
    let mut json = SHORT.clone();
    let mut left = path;
    let what = parts(&mut json, &mut left, value).unwrap_or_default();
    (json, what)
}

fn odd_values() -> impl Strategy<Value = Value> {
    let strings = prop_oneof![
        Just(""),
        Just("a"),
        Just("Ġ"),
        Just("\u{0}"),
        Just("A"),
        Just("B"),
        Just("ByteLevel"),
        Just("Sequence"),
        Just("<|eos|>")
    ];
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        prop_oneof![Just(-1i64), Just(0), Just(1), Just(301), Just(302), Just(i64::MAX)]
            .prop_map(Value::from),
        strings.prop_map(Value::from),
        Just(json!([])),
        Just(json!({})),
        Just(json!([["a", "b"]])),
        Just(json!({ "type": "ByteLevel" })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(400), ..ProptestConfig::default() })]
    #[test]
    fn mutated_tokenizers_are_refused_or_encode(path in 0usize..220, value in odd_values()) {
        let (json, what) = mutated(path, &value);
        match Directory::new().with("tokenizer.json", &json).open() {
            Err(error) => prop_assert!(!error.to_string().contains("contradicts itself"), "{what} as {value}: {error}"),
            Ok(tokenizer) => {
                for text in ["Once upon a time, 東京! <|end_of_text|>", ""] {
                    match tokenizer.encode(text) {
                        Ok(ids) => {
                            prop_assert_eq!(&tokenizer.encode(text).unwrap(), &ids);
                            let decoded = tokenizer.decode(&ids).map_err(|e| e.to_string());
                            prop_assert!(decoded.err().is_none_or(|e| !e.contains("contradicts itself")), "{what} as {value}");
                        }
                        Err(error) => prop_assert!(!error.to_string().contains("contradicts itself"), "{what} as {value}: {error}"),
                    }
                }
            }
        }
    }
}
