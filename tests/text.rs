//! Tokenizers and chat templates against transformers and sentencepiece; damaged and hostile ones.

use bitnet_wgpu::model::{Message, TextStream, Tokenizer};
use bitnet_wgpu::{Error, Result, formats::GgufVocabulary};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::Path;
use std::{fs, sync::LazyLock};
use support::Golden;

const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tales-22m");

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::from_directory(TALES).unwrap());

fn read_json(path: impl AsRef<Path>) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn tales(file: &str) -> Value {
    read_json(Path::new(TALES).join(file))
}

fn data(file: &str) -> Value {
    read_json(support::data("text").join(file))
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Through a stream, one by one.
fn streamed(mut stream: TextStream, ids: &[u32]) -> String {
    let pieces: Vec<String> = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
    pieces.concat() + &stream.finish().unwrap()
}

/// A copy of the shipped tokenizer that is gone with the test.
struct Directory(support::files::Directory);

impl Directory {
    fn new() -> Self {
        let directory = support::files::Directory::temporary();
        directory.write("tokenizer.json", fs::read(Path::new(TALES).join("tokenizer.json")).unwrap());
        Self(directory)
    }

    fn with(self, file: &str, content: &Value) -> Self {
        self.0.write(file, content.to_string());
        self
    }

    fn open(&self) -> Result<Tokenizer> {
        Tokenizer::from_directory(&self.0.0)
    }
}

fn message(result: Result<impl std::fmt::Debug>) -> String {
    match result {
        Err(Error::Tokenizer { message } | Error::ChatTemplate { message } | Error::Format { message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

// --- tokenizer.json

#[test]
fn texts_give_the_tokens_of_transformers() {
    for vector in tales("golden/golden.json")["tokenizer"].as_array().unwrap() {
        let (text, plain, special) = (vector["text"].as_str().unwrap(), ids(&vector["ids"]), ids(&vector["ids_with_special"]));
        assert_eq!(TOKENIZER.encode_plain(text).unwrap(), plain, "{text}");
        assert_eq!(TOKENIZER.encode(text).unwrap(), special, "{text}");
        assert_eq!(TOKENIZER.decode_with_special(&plain).unwrap(), vector["decoded"].as_str().unwrap());
        assert_eq!(TOKENIZER.decode(&special).unwrap(), vector["decoded_skip_special"].as_str().unwrap());
        assert_eq!(streamed(TOKENIZER.stream(), &special), vector["decoded_skip_special"].as_str().unwrap());
    }
}

#[test]
fn a_long_text_gives_the_tokens_of_transformers() {
    let text = fs::read_to_string(Path::new(TALES).join("golden/heldout_own.txt")).unwrap();
    let expected = Golden::open(Path::new(TALES).join("golden/golden.safetensors")).ids("heldout_own.ids");
    assert_eq!(TOKENIZER.encode_plain(&text).unwrap(), expected);
    assert_eq!(Tokenizer::from_gguf(&byte_level()).unwrap().encode_plain(&text).unwrap(), expected);
}

#[test]
fn the_shipped_tokenizer_knows_its_special_tokens() {
    assert_eq!((TOKENIZER.bos(), TOKENIZER.eos(), TOKENIZER.vocab_size()), (Some(2046), &[2047][..], 2048));
    assert_eq!(TOKENIZER.token("<|end_of_text|>"), Some(2047));
    assert!(TOKENIZER.is_special(2046) && !TOKENIZER.is_special(0));
}

#[test]
fn every_file_may_name_what_ends_a_text() {
    let directory = Directory::new()
        .with("generation_config.json", &json!({ "eos_token_id": [7, 2047], "bos_token_id": 5 }))
        .with("config.json", &json!({ "eos_token_id": 9 }))
        .with("special_tokens_map.json", &json!({ "eos_token": { "content": "<|begin_of_text|>" } }));
    let tokenizer = directory.open().unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(5), &[7, 2047, 9, 2046][..]));
}

#[test]
fn bos_is_added_once() {
    let mut without = tales("tokenizer.json");
    without["post_processor"] = Value::Null;
    let begins = |json: &Value, config: Value| {
        let directory = Directory::new().with("tokenizer.json", json).with("tokenizer_config.json", &config);
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
fn truncation_and_padding_of_a_file_are_not_followed() {
    let mut json = tales("tokenizer.json");
    json["truncation"] = json!({ "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0 });
    json["padding"] = json!({
        "strategy": { "Fixed": 8 }, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "!"
    });
    let tokenizer = Directory::new().with("tokenizer.json", &json).open().unwrap();
    assert_eq!(tokenizer.encode("Once upon a time").unwrap(), TOKENIZER.encode("Once upon a time").unwrap());
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
    tokenizer(&|json| json["post_processor"]["processors"][1]["single"] = json!([{ "Sequence": { "id": "B", "type_id": 0 } }]));
    let cut = Directory::new();
    cut.0.write("generation_config.json", "{");
    message(cut.open());
}

/// A tokenizer's file is a program: what it may ask for is bounded, and the same text always gives the same tokens.
#[test]
fn hostile_tokenizers_do_no_harm() {
    let with = |key: &str, value: Value| {
        let mut json = tales("tokenizer.json");
        json[key] = value;
        Directory::new().with("tokenizer.json", &json).open()
    };
    let sequence = |kind: &str, steps: Vec<Value>| json!({ "type": "Sequence", kind: steps });
    let replace = |from: Value, to: String| json!({ "type": "Replace", "pattern": from, "content": to });
    let string = |text: &str| json!({ "String": text });
    let normalizers = [
        sequence("normalizers", vec![replace(string("a"), "a".repeat(10)); 9]),
        sequence("normalizers", vec![sequence("normalizers", vec![replace(string("a"), "a".repeat(10)); 2]); 2]),
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
        ("decoder", json!({ "type": "Strip", "content": "a", "start": 4_000_000_000u64, "stop": 0 })),
        ("decoder", sequence("decoders", vec![replace(string("a"), "a".repeat(10)); 9])),
        ("pre_tokenizer", json!({ "type": "Metaspace", "replacement": "ab", "prepend_scheme": "always" })),
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

/// A part of the shipped file made something else: it is refused, or it encodes.
fn mutated(path: usize, value: &Value) -> (Value, String) {
    fn parts(json: &mut Value, left: &mut usize, value: &Value) -> Option<String> {
        if *left == 0 {
            let before = std::mem::replace(json, value.clone());
            return Some(before.to_string().chars().take(80).collect());
        }
        *left -= 1;
        match json {
            Value::Array(all) => all.iter_mut().take(12).find_map(|part| parts(part, left, value)),
            Value::Object(all) => all.values_mut().take(24).find_map(|part| parts(part, left, value)),
            _ => None,
        }
    }
    let mut json = tales("tokenizer.json");
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
        prop_oneof![Just(-1i64), Just(0), Just(1), Just(2047), Just(2048), Just(i64::MAX)].prop_map(Value::from),
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

// --- streams

/// In SentencePiece a space belongs to the word after it, and is left out where a text begins.
#[test]
fn what_follows_a_prompt_keeps_its_space() {
    let text = "Oliver ran after the kite.";
    for tokenizer in [&*SENTENCE_PIECE, &*TOKENIZER] {
        let ids = tokenizer.encode_plain(text).unwrap();
        for cut in 0..ids.len() {
            let mut stream = tokenizer.stream();
            stream.follow(&ids[..cut]);
            let rest: String = ids[cut..].iter().map(|&id| stream.push(id).unwrap()).collect();
            let prompt = tokenizer.decode(&ids[..cut]).unwrap();
            assert_eq!(prompt + &rest + &stream.finish().unwrap(), text, "{cut}");
        }
        // After a special token a text begins.
        let mut stream = tokenizer.stream();
        stream.follow(&[ids[0], tokenizer.bos().unwrap()]);
        let begun: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
        assert_eq!(begun, text);
        stream.follow(&[u32::MAX]);
    }
}

/// Bytes that are never a character are given up while they come: a stream holds a few tokens, however long it is.
#[test]
fn what_is_no_character_is_not_held_back() {
    let byte = |byte: u8| SENTENCE_PIECE.token(&format!("<0x{byte:02X}>")).unwrap();
    let mut stream = SENTENCE_PIECE.stream();
    let mut text = String::new();
    for at in 1..=4000 {
        text += &stream.push(byte(0x80)).unwrap();
        assert!(text.chars().count() + 70 >= at, "{} of {at}", text.chars().count());
    }
    text += &stream.finish().unwrap();
    assert_eq!(text, "\u{fffd}".repeat(4000));
}

#[test]
fn characters_come_whole() {
    let text = "a🦊東é!";
    let mut stream = TOKENIZER.stream();
    let mut pieces: Vec<String> = TOKENIZER.encode(text).unwrap().iter().map(|id| stream.push(*id).unwrap()).collect();
    pieces.retain(|piece| !piece.is_empty());
    assert_eq!(pieces, ["a", "🦊", "東", "é", "!"]);
    assert_eq!(stream.finish().unwrap(), "");

    let fox = TOKENIZER.encode_plain("🦊").unwrap();
    assert_eq!(fox.iter().take(2).map(|id| stream.push(*id).unwrap()).collect::<String>(), "");
    assert_eq!(stream.finish().unwrap(), "\u{fffd}");
    assert_eq!(stream.finish().unwrap(), "");
}

proptest! {
    #[test]
    fn streams_give_what_decode_gives(ids in prop::collection::vec(prop_oneof![0u32..256, 0u32..2048], 0..60)) {
        prop_assert_eq!(streamed(TOKENIZER.stream(), &ids), TOKENIZER.decode(&ids).unwrap());
    }

    #[test]
    fn streams_of_sentence_pieces_too(text in "\\PC{0,40}", noise in prop::collection::vec(prop_oneof![3u32..259, 0u32..420], 0..60)) {
        let ids = SENTENCE_PIECE.encode_plain(&text).unwrap();
        prop_assert_eq!(streamed(SENTENCE_PIECE.stream(), &ids), SENTENCE_PIECE.decode(&ids).unwrap());
        // Of bytes that are not UTF-8, a stream keeps what was whole before.
        let (noise, streamed) = (SENTENCE_PIECE.decode(&noise).unwrap(), streamed(SENTENCE_PIECE.stream(), &noise));
        prop_assert!(noise.contains(char::REPLACEMENT_CHARACTER) || noise == streamed);
    }

    #[test]
    fn text_survives(text in "\\PC{0,40}") {
        let ids = TOKENIZER.encode_plain(&text).unwrap();
        prop_assert_eq!(TOKENIZER.decode_with_special(&ids).unwrap(), text);
    }
}

// --- GGUF

/// The shipped tokenizer as a GGUF file has it.
fn byte_level() -> GgufVocabulary {
    let json = tales("tokenizer.json");
    let mut tokens = vec![String::new(); 2048];
    for (token, id) in json["model"]["vocab"].as_object().unwrap() {
        tokens[id.as_u64().unwrap() as usize] = token.clone();
    }
    let mut token_types = vec![1; 2048];
    for added in json["added_tokens"].as_array().unwrap() {
        let id = added["id"].as_u64().unwrap() as usize;
        (tokens[id], token_types[id]) = (added["content"].as_str().unwrap().into(), 3);
    }
    let merge = |merge: &Value| match merge.as_array() {
        Some(pair) => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
        None => merge.as_str().unwrap().into(),
    };
    let merges = json["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
    let (model, pre) = ("gpt2".into(), Some("llama-bpe".into()));
    GgufVocabulary { model, pre, tokens, token_types, merges, bos: Some(2046), eos: Some(2047), ..Default::default() }
}

static SENTENCE_PIECE: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::from_gguf(&sentence_piece()).unwrap());

fn sentence_piece() -> GgufVocabulary {
    let json = data("sentencepiece.json");
    let array = |key: &str| json[key].as_array().unwrap().clone();
    GgufVocabulary {
        model: "llama".into(),
        tokens: array("tokens").iter().map(|token| token.as_str().unwrap().into()).collect(),
        token_types: array("token_types").iter().map(|kind| kind.as_i64().unwrap() as i32).collect(),
        scores: Some(array("scores").iter().map(|score| score.as_f64().unwrap() as f32).collect()),
        bos: Some(json["bos"].as_u64().unwrap() as u32),
        eos: Some(json["eos"].as_u64().unwrap() as u32),
        ..Default::default()
    }
}

#[test]
fn gguf_byte_level_gives_the_same_tokens() {
    let tokenizer = Tokenizer::from_gguf(&byte_level()).unwrap();
    for vector in tales("golden/golden.json")["tokenizer"].as_array().unwrap() {
        let text = vector["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode_plain(text).unwrap(), ids(&vector["ids"]), "{text}");
        assert_eq!(tokenizer.encode(text).unwrap(), ids(&vector["ids_with_special"]), "{text}");
        assert_eq!(tokenizer.decode(&ids(&vector["ids"])).unwrap(), vector["decoded_skip_special"].as_str().unwrap());
    }
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.vocab_size()), (Some(2046), &[2047][..], 2048));
}

#[test]
fn gguf_sentence_pieces_are_those_of_sentencepiece() {
    for vector in data("sentencepiece.json")["vectors"].as_array().unwrap() {
        let (text, expected) = (vector["text"].as_str().unwrap(), ids(&vector["ids"]));
        assert_eq!(SENTENCE_PIECE.encode_plain(text).unwrap(), expected, "{text}");
        assert_eq!(SENTENCE_PIECE.encode(text).unwrap(), [&[1], expected.as_slice()].concat());
        assert_eq!(SENTENCE_PIECE.decode(&expected).unwrap(), vector["decoded"].as_str().unwrap());
        assert_eq!(streamed(SENTENCE_PIECE.stream(), &expected), vector["decoded"].as_str().unwrap());
    }
}

#[test]
fn gguf_says_whether_texts_begin_with_bos() {
    let begins = |pre: Option<&str>, add_bos| {
        let vocabulary = GgufVocabulary { pre: pre.map(Into::into), add_bos, ..byte_level() };
        Tokenizer::from_gguf(&vocabulary).unwrap().encode("a").unwrap()
    };
    assert_eq!(begins(Some("llama-bpe"), None), [2046, 64]);
    assert_eq!(begins(Some("llama-bpe"), Some(false)), [64]);
    assert_eq!(begins(None, None), [2046, 64]);
    assert_eq!(begins(Some("gpt-2"), None), [64]);
    assert_eq!(begins(Some("qwen2"), Some(true)), [2046, 64]);
}

#[test]
fn gguf_knows_what_ends_a_turn() {
    let mut vocabulary = byte_level();
    vocabulary.tokens.extend(["<|eot_id|>", "<tool>"].map(Into::into));
    vocabulary.token_types.extend([3, 4]);
    let tokenizer = Tokenizer::from_gguf(&vocabulary).unwrap();
    assert_eq!(tokenizer.eos(), [2047, 2048]);
    assert_eq!(tokenizer.encode_plain("a<tool>b<|eot_id|>").unwrap(), [64, 2049, 65, 2048]);
    assert_eq!(tokenizer.decode(&[64, 2049, 65, 2048]).unwrap(), "a<tool>b");
}

#[test]
fn damaged_gguf_vocabularies_are_errors() {
    let refused = |change: &dyn Fn(&mut GgufVocabulary), part: &str| {
        for mut vocabulary in [byte_level(), sentence_piece()] {
            change(&mut vocabulary);
            let message = message(Tokenizer::from_gguf(&vocabulary));
            assert!(message.contains(part), "{message}");
        }
    };
    refused(&|v| v.model = "bert".into(), "`bert` is not supported");
    refused(&|v| v.tokens[300] = v.tokens[301].clone(), "tokens 300 and 301 are both");
    refused(&|v| v.token_types.truncate(2), "token types");
    refused(&|v| v.scores = Some(vec![0.0]), "1 scores");
    refused(&|v| v.eos = Some(5000), "is 5000 of");
    refused(&|v| (v.bos, v.add_bos) = (None, Some(true)), "BOS is wanted");
    let merge = |merge: &str| message(Tokenizer::from_gguf(&GgufVocabulary { merges: vec![merge.into()], ..byte_level() }));
    for bad in ["", "a", "a  ", "a nothing", "a b c", "~ ~"] {
        assert!(merge(bad).contains("is not of two tokens"), "{bad}");
    }
    assert!(message(Tokenizer::from_gguf(&GgufVocabulary { scores: None, ..sentence_piece() })).contains("needs scores"));
    let odd = GgufVocabulary { scores: Some(vec![f32::NAN; 420]), ..sentence_piece() };
    assert!(Tokenizer::from_gguf(&odd).unwrap().encode("the kite").is_ok());
    assert!(Tokenizer::from_gguf(&GgufVocabulary { model: "gpt2".into(), ..Default::default() }).unwrap().encode("a").unwrap().is_empty());
}

// --- conversations

fn with_template(template: &str) -> Tokenizer {
    let config = json!({ "bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "chat_template": template });
    Directory::new().with("tokenizer_config.json", &config).open().unwrap()
}

fn user(content: &str) -> [Message; 1] {
    [Message::new("user", content)]
}

#[test]
fn templates_write_what_transformers_writes() {
    let chat = data("chat.json");
    for case in chat["cases"].as_array().unwrap() {
        let tokenizer = with_template(chat["templates"][case["template"].as_str().unwrap()].as_str().unwrap());
        let turn = |turn: &Value| Message::new(turn["role"].as_str().unwrap(), turn["content"].as_str().unwrap());
        let messages: Vec<Message> = case["messages"].as_array().unwrap().iter().map(turn).collect();
        let text = tokenizer.chat_text(&messages, case["add_generation_prompt"].as_bool().unwrap());
        match case["text"].as_str() {
            Some(expected) => assert_eq!(text.unwrap(), expected, "{case}"),
            None => drop(message(text)),
        }
    }
}

/// Every construct of the language, one by one.
#[test]
fn pieces_of_templates_write_what_transformers_writes() {
    let chat = data("chat.json");
    let turn = |turn: &Value| Message::new(turn["role"].as_str().unwrap(), turn["content"].as_str().unwrap());
    let messages: Vec<Message> = chat["messages"].as_array().unwrap().iter().map(turn).collect();
    let mut wrong = Vec::new();
    for piece in chat["pieces"].as_array().unwrap() {
        let found = with_template(piece["template"].as_str().unwrap()).chat_text(&messages, true);
        if found.as_ref().ok().map(String::as_str) != piece["text"].as_str() {
            wrong.push(format!("{piece}\n  gives {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_conversation_becomes_tokens() {
    let tokenizer = with_template(data("chat.json")["templates"]["methods"].as_str().unwrap());
    let text = "<|begin_of_text|>USER|Hello<|end_of_text|>\nASSISTANT|";
    assert_eq!(tokenizer.chat(&user("Hello")).unwrap(), tokenizer.encode_plain(text).unwrap());
    assert_eq!(tokenizer.chat(&user("Hello")).unwrap()[0], 2046);
    // The shipped model's own.
    let said = [Message::new("user", " Who lived in the wood? "), Message::new("assistant", "A bear.")];
    let text = TOKENIZER.chat_text(&said, true).unwrap();
    assert_eq!(text, "<|begin_of_text|>Who lived in the wood?\nA bear.\n");
}

#[test]
fn a_template_may_be_one_of_several_or_a_file() {
    let several = json!({ "chat_template": [{ "name": "tool_use", "template": "T" }, { "name": "default", "template": "D" }] });
    let directory = Directory::new().with("tokenizer_config.json", &several);
    assert_eq!(directory.open().unwrap().chat_text(&[], false).unwrap(), "D");
    directory.0.write("chat_template.jinja", "F");
    assert_eq!(directory.open().unwrap().chat_text(&[], false).unwrap(), "F");
    let gguf = GgufVocabulary { chat_template: Some("G".into()), ..byte_level() };
    assert_eq!(Tokenizer::from_gguf(&gguf).unwrap().chat_text(&[], false).unwrap(), "G");
}

/// `{% generation %}` marks the assistant's words for training. In transformers it is a block, so that what is set in it ends with it.
#[test]
fn the_generation_tag_changes_no_text() {
    let messages = [Message::new("user", "Hello"), Message::new("assistant", "Hi"), Message::new("user", "Bye")];
    let text = |template: &str| with_template(template).chat_text(&messages, true).unwrap();
    let template = |begin: &str, end: &str| {
        "{%- for message in messages %}\n  {{ message.role }}: ".to_owned() + begin + " {{ message.content }}\n" + end + "\n{% endfor %}|"
    };
    assert_eq!(text(&template("{% generation %}", "{% endgeneration %}")), text(&template("{% if true %}", "{% endif %}")));
    assert_eq!(text(&template("{%- generation -%}", "{%-endgeneration-%}")), text(&template("{%- if true -%}", "{%- endif -%}")));
    assert_eq!(text("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"), "21");
    assert_eq!(text("{{ 'a {% generation' }}"), "a {% generation");
    assert!(matches!(with_template("{% generation %}").chat_text(&messages, true), Err(Error::ChatTemplate { .. })));
}

/// Templates that took a general interpreter's stack or gigabytes of memory. Here each is an error, on a thread of 2 MiB; one that is within the
/// limits may render.
#[test]
fn hostile_templates_do_no_harm() {
    let chain =
        |open: &str, inner: &str, close: &str, length: usize| format!("{{{{ {}{inner}{} }}}}", open.repeat(length), close.repeat(length));
    let blocks = |open: &str, close: &str, length: usize| open.repeat(length) + &close.repeat(length);
    let nested = "{% set n = namespace(x=[]) %}{% for i in range(100000) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}";
    let refused = [
        "{% set n = namespace() %}{% set n.x = n %}{{ n }}".to_owned(),
        "{% set n = namespace() %}{% set n.x = [n] %}{{ n.x }}".into(),
        "{% set n = namespace() %}{% set n = namespace(x=n) %}".into(),
        "{% for i in [1] %}{% set x = [loop] %}{{ x }}{% endfor %}".into(),
        nested.into(),
        nested.replace("[n.x] ", "{'a': n.x} "),
        chain("-", "1", "", 100_000),
        chain("not ", "1", "", 100_000),
        chain("", "1", "+1", 100_000),
        chain("", "a", ".b", 100_000),
        chain("", "a", "[0]", 100_000),
        chain("", "a", "|string", 100_000),
        chain("", "a", " is string", 100_000),
        chain("", "a", "()", 100_000),
        chain("(", "1", ")", 100_000),
        chain("[", "1", "]", 100_000),
        chain("{1:", "1", "}", 100_000),
        chain("", "1", " if 1", 100_000),
        chain("", "1", " if 1 else 1", 100_000),
        chain("", "1", " and 1", 100_000),
        chain("", "1", "~1", 100_000),
        chain("", "1", "**1", 100_000),
        blocks("{% if 1 %}", "{% endif %}", 100_000),
        blocks("{% for i in [1] %}", "{% endfor %}", 100_000),
        blocks("{% with %}", "{% endwith %}", 100_000),
        blocks("{% macro f() %}", "{% endmacro %}", 100_000),
        blocks("{% set x %}", "{% endset %}", 100_000),
        "{% for ".to_owned() + &"(".repeat(100_000) + "a in b %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".into(),
        "{% macro f(x) %}{{ x(x) }}{% endmacro %}{{ f(f) }}".into(),
        "{% macro f() %}".to_owned()
            + &"{% if 1 %}".repeat(50)
            + "{{ "
            + &"[".repeat(50)
            + "f()"
            + &"]".repeat(50)
            + " }}"
            + &"{% endif %}".repeat(50)
            + "{% endmacro %}{{ f() }}",
        "{% for i in [1] %}{{ loop.cycle() }}{% endfor %}".into(),
        "{{ messages|batch(1000000000000, 1)|list }}".into(),
        "{{ '%4000000000d'|format(1) }}".into(),
        "{{ 'a' * 4000000000 }}".into(),
        "{{ range(1000000000) }}".into(),
        "{{ [1] * 1000000000 }}".into(),
        "{{ 9223372036854775807 + 1 }}".into(),
        "{{ -9223372036854775807 - 2 }}".into(),
        "{{ 2 ** 100000000 }}".into(),
        "{{ 1.5 | round(999999999999) | tojson(indent=999999999) }}".into(),
        "{{ 'a' | indent(4000000000) }}".into(),
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}".into(),
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}".into(),
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}".into(),
        "{% set n = namespace(x=[1]) %}{% for i in range(50) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}".into(),
        "{% set n = namespace(x=[1]) %}{% for i in range(50) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x == n.x }}".into(),
        "{% set n = namespace(x=[1]) %}{% for i in range(50) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}".into(),
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x.replace('a', 'aaaaaaaaaa') %}{% endfor %}".into(),
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x | join(n.x) %}{% endfor %}".into(),
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}{% endfor %}"
            .into(),
        "{% set n = namespace(x=[]) %}{% for i in range(100000) %}{% set n.x = n.x + ['a' * 100000] %}{% endfor %}".into(),
        "{% for i in range(100000) %}{{ 'a' * 10000 }}{% endfor %}".into(),
        "{% for i in range(100000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}".into(),
        "{% set x = 'a' * 10000000 %}{% for i in range(100000) %}{% if 'b' in x %}{% endif %}{% endfor %}".into(),
        "{% set x = 'a' * 10000000 %}{% for i in range(100000) %}{% if x | list | length %}{% endif %}{% endfor %}".into(),
        "{{ ['a', 1] | sort }}".into(),
        "x".repeat(2 << 20),
    ];
    for template in refused {
        let shown: String = template.chars().take(100).collect();
        let started = std::time::Instant::now();
        let result = with_template(&template).chat_text(&user("Hello"), true);
        assert!(matches!(result, Err(Error::ChatTemplate { .. })), "{shown}: {:?}", result.map(|text| text.len()));
        if template.contains("['a' * 100000]") {
            // Not for its steps: 256 MiB are had long before.
            assert!(result.as_ref().unwrap_err().to_string().contains("256 MiB"), "{result:?}");
        }
        println!("{:6.2} s  {shown}", started.elapsed().as_secs_f64());
    }
}

/// Any sequence of the language's pieces renders, or is an error.
fn fragments() -> impl Strategy<Value = String> {
    const PIECES: [&str; 92] = [
        "{{ ",
        " }}",
        "{{- ",
        " -}}",
        "{% ",
        " %}",
        "{%- ",
        " -%}",
        "{# ",
        " #}",
        "for ",
        "in ",
        "if ",
        "elif ",
        "else ",
        "endif ",
        "endfor ",
        "set ",
        "endset ",
        "with ",
        "endwith ",
        "macro f(x) ",
        "endmacro ",
        "filter upper ",
        "endfilter ",
        "raw ",
        "endraw ",
        "generation ",
        "endgeneration ",
        "break ",
        "continue ",
        "is ",
        "not ",
        "and ",
        "or ",
        "defined ",
        "none ",
        "true ",
        "x ",
        "y ",
        "n.x ",
        "f(x) ",
        "messages ",
        "message ",
        "loop ",
        "loop.index ",
        "namespace(x=1) ",
        "range(9) ",
        "range(100000) ",
        "= ",
        "== ",
        "< ",
        "+ ",
        "- ",
        "* ",
        "/ ",
        "// ",
        "% ",
        "** ",
        "~ ",
        "| ",
        ". ",
        ", ",
        ": ",
        "( ",
        ") ",
        "[ ",
        "] ",
        "{ ",
        "} ",
        "'a' ",
        "\"b\" ",
        "'é東' ",
        "1 ",
        "0 ",
        "-1 ",
        "1.5 ",
        "9223372036854775807 ",
        "join ",
        "length ",
        "list ",
        "batch(2) ",
        "tojson ",
        "sort ",
        "replace('a', 'aa') ",
        "split('a') ",
        "[::-1] ",
        "[1:] ",
        "\n",
        " ",
        "text",
        "\u{1b}",
    ];
    prop::collection::vec(prop::sample::select(&PIECES[..]), 0..40).prop_map(|pieces| pieces.concat())
}

/// A template with its statements closed, so that more of it runs.
fn programs() -> impl Strategy<Value = String> {
    let value = prop::sample::select(
        &["x", "y", "n.x", "messages", "'aé'", "1", "0", "-7", "2.5", "[x, y]", "{'a': x}", "range(50)", "none", "loop.index", "f(y)"][..],
    );
    let operator = prop::sample::select(&["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "and", "or", "if y else"][..]);
    let filter = prop::sample::select(
        &[
            "",
            "|list",
            "|length",
            "|join(x)",
            "|string",
            "|tojson",
            "|sort",
            "|first",
            "|upper",
            "|replace('a', y)",
            "|batch(3)|list",
            "|map('string')|list",
            "[::-1]",
            "[1:]",
            "|reverse|list",
            "|e",
            "|indent",
            "|int",
            "|abs",
        ][..],
    );
    let expression = (value.clone(), operator, value, filter).prop_map(|(a, operator, b, filter)| format!("({a} {operator} {b}){filter}"));
    let statement = (0..8, expression.clone(), expression).prop_map(|(kind, a, b)| match kind {
        0 => format!("{{% set x = {a} %}}"),
        1 => format!("{{% set y = {a} %}}"),
        2 => format!("{{% set n.x = {a} %}}"),
        3 => format!("{{% for x in {a} %}}{{{{ {b} }}}}{{% set n.x = {b} %}}{{% endfor %}}"),
        4 => format!("{{% if {a} %}}{{{{ {b} }}}}{{% endif %}}"),
        5 => format!("{{% set x %}}{{{{ {a} }}}}{{{{ {b} }}}}{{% endset %}}"),
        6 => format!("{{% macro f(x) %}}{{{{ {a} }}}}{{% endmacro %}}"),
        _ => format!("{{{{ {a} }}}}"),
    });
    prop::collection::vec(statement, 1..30)
        .prop_map(|all| "{% set n = namespace(x=2) %}{% set x = 'ab' %}{% set y = [1, 'b'] %}".to_owned() + &all.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(3000), ..ProptestConfig::default() })]
    #[test]
    fn any_template_renders_or_is_refused(template in prop_oneof![fragments(), programs()]) {
        match TOKENIZER.with_chat_template(&template).chat_text(&user("Hello"), true) {
            Ok(_) | Err(Error::ChatTemplate { .. }) => {}
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

/// How many cases, unless `PROPTEST_CASES` says it.
fn cases(usually: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usually)
}

/// Limits are far from what conversations need.
#[test]
fn a_long_conversation_is_within_the_limits() {
    let chat = data("chat.json");
    let messages: Vec<_> = (0..10_000).map(|i| Message::new(["user", "assistant"][i % 2], format!("{i} ").repeat(100))).collect();
    for name in ["chatml", "llama3", "llama2", "qwen3", "mistral", "macros"] {
        let text = with_template(chat["templates"][name].as_str().unwrap()).chat_text(&messages, true).unwrap();
        assert!(text.len() > 4_000_000, "{name}");
    }
    let gathered =
        "{% set ns = namespace(all='') %}{% for message in messages %}{% set ns.all = ns.all ~ message.role %}{% endfor %}{{ ns.all }}";
    assert_eq!(with_template(gathered).chat_text(&messages[..2000], true).unwrap().len(), 13_000);
    let long = [Message::new("user", "x".repeat(100_000_000))];
    assert!(with_template(chat["templates"]["llama3"].as_str().unwrap()).chat_text(&long, true).unwrap().len() > 100_000_000);
}

#[test]
fn bad_templates_are_errors() {
    let without = Directory::new().open().unwrap();
    assert_eq!(message(without.chat(&user("Hello"))), "the tokenizer has none");
    let error = |template: &str| message(with_template(template).chat(&user("Hello")));
    error("{% for %}");
    error("{{ messages | nothing }}");
    assert!(error("{{ raise_exception('roles must alternate') }}").contains("roles must alternate"));
    // Ten thousand million steps.
    let endless = "{% for i in range(100000) %}{% for i in range(100000) %}{% endfor %}{% endfor %}";
    assert!(error(endless).contains("too many steps"), "{}", error(endless));
}
