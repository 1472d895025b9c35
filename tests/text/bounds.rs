//! Texts and templates that would take too much work or memory.

use super::*;

/// Number of bytes that were found, and of those that are allowed.
fn too_long<T: std::fmt::Debug>(result: Result<T>) -> (usize, usize) {
    match result {
        Err(Error::TextTooLong { bytes, most, .. }) => (bytes, most),
        other => panic!("{other:?}"),
    }
}

/// Bytes of text that the longest token of the shipped vocabulary stands for.
fn longest() -> usize {
    let json = tales("tokenizer.json");
    let vocabulary =
        json["model"]["vocab"].as_object().unwrap().keys().map(|token| token.chars().count());
    vocabulary.chain(["<|begin_of_text|>".len()]).max().unwrap()
}

#[test]
fn texts_beyond_the_bound_are_refused() {
    let most = 8 * longest();
    let tokenizer = TOKENIZER.within(8);
    let (fits, long) = ("a".repeat(most), "a".repeat(most + 1));
    for encode in [Tokenizer::encode, Tokenizer::encode_plain, Tokenizer::encode_for_embedding] {
        assert_eq!(encode(&tokenizer, &fits).unwrap(), encode(&TOKENIZER, &fits).unwrap());
        assert_eq!(too_long(encode(&tokenizer, &long)), (most + 1, most));
        assert!(encode(&TOKENIZER, &long).is_ok());
    }
    let error = tokenizer.encode(&long).unwrap_err();
    assert_eq!(error.kind(), bitnet_wgpu::ErrorKind::Invalid);
    assert_eq!(
        error.to_string(),
        format!("the text has {} bytes; 8 tokens hold at most {most}", most + 1)
    );
}

/// The longest tokens, one after the other, have the bytes that their number allows.
#[test]
fn texts_of_the_longest_tokens_pass() {
    for tokenizer in [&*TOKENIZER, &SENTENCE_PIECE] {
        for id in 0..tokenizer.vocab_size() as u32 {
            let text = tokenizer.decode_with_special(&[id; 3]).unwrap();
            let ids = tokenizer.encode_plain(&text).unwrap();
            assert_eq!(tokenizer.within(ids.len()).encode_plain(&text).unwrap(), ids, "{text:?}");
        }
    }
}

#[test]
fn output_of_templates_stops_at_the_bound() {
    for template in [
        "{{ 'a ' * 1000000 }}",
        "{% for i in range(100000) %}aaaaaaaaaa{% endfor %}",
        "{% for m in messages %}{{ m.content * 100 }}{% endfor %}",
    ] {
        let tokenizer = with_template(template).within(64);
        let messages = user(&"Hello ".repeat(200));
        let (bytes, most) = too_long(tokenizer.chat(&messages));
        assert_eq!(most, 64 * longest());
        // Stopped at the piece that goes beyond it.
        assert!(bytes > most && bytes <= most + 2_000_000, "{bytes}");
        assert!(too_long(tokenizer.chat_text(&messages, true)).0 == bytes);
    }
    let (bytes, most) = too_long(
        with_template("{% for i in range(100000) %}aaaaaaaaaa{% endfor %}").within(64).chat(&[]),
    );
    assert!(bytes <= most + 10);
}

/// Of a short conversation and a small context, a template's values are small, too.
#[test]
fn values_of_templates_are_in_proportion() {
    let gathered = |count: usize| format!("{{% set x = 'a' * {count} %}}{{{{ x | length }}}}");
    let tokenizer = |count| with_template(&gathered(count)).within(64);
    assert_eq!(tokenizer(1 << 20).chat_text(&[], true).unwrap(), "1048576");
    let error = message(tokenizer(20 << 20).chat_text(&[], true));
    assert!(error.contains("take more than 16 MiB"), "{error}");
    // In proportion to the conversation.
    assert!(
        tokenizer(20 << 20).within(1 << 20).chat_text(&user(&"a".repeat(1 << 20)), true).is_ok()
    );
}

#[test]
fn models_refuse_prompts_beyond_their_context() {
    let model = bitnet_wgpu::model::Model::open(TALES).unwrap();
    let most = model.config().context * longest();
    let long = "a".repeat(most + 1);
    assert_eq!(too_long(model.encode_prompt(&long)), (most + 1, most));
    assert_eq!(too_long(model.generate(&long, &Default::default()).map(|_| ())), (most + 1, most));
    let messages = [Message::new("user", long.clone())];
    assert_eq!(too_long(model.chat(&messages, &Default::default()).map(|_| ())).1, most);
    assert_eq!(too_long(pollster::block_on(model.embed(&[&long], &Default::default()))).1, most);
}

#[test]
fn work_beyond_the_bound_is_an_error() {
    let mut json = tales("tokenizer.json");
    json["normalizer"] =
        json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "b ".repeat(125) });
    let grows = Directory::new().with("tokenizer.json", &json).open().unwrap();
    json["normalizer"] =
        json!({ "type": "Replace", "pattern": { "Regex": "(?=(a+a+)+b)a" }, "content": "b" });
    let backtracks = Directory::new().with("tokenizer.json", &json).open().unwrap();
    let text = "a".repeat(200_000);
    for (tokenizer, expected) in [
        (
            grows,
            "tokenizer: a text of 200000 bytes takes more than 2097152 bytes once it is normalized",
        ),
        (
            backtracks,
            "tokenizer: a text of 200000 bytes takes more than 67977216 steps of the tokenizer's patterns",
        ),
    ] {
        let error = tokenizer.encode(&text).unwrap_err();
        assert!(matches!(error, Error::Invalid { op: "tokenizer", .. }), "{error:?}");
        assert_eq!(
            (error.to_string().as_str(), error.kind()),
            (expected, bitnet_wgpu::ErrorKind::Invalid)
        );
        assert!(tokenizer.encode("aaa").is_ok());
    }
}

/// What would take more than its share for each character of a text is refused with the file.
#[test]
fn superlinear_tokenizers_are_refused() {
    let error = |key: &str, value: Value| {
        let mut json = tales("tokenizer.json");
        json[key] = value;
        message(Directory::new().with("tokenizer.json", &json).open())
    };
    let added = |content: &str, lstrip: bool, rstrip: bool, normalized: bool| json!([{ "id": 0, "content": content, "special": true, "single_word": false, "lstrip": lstrip, "rstrip": rstrip, "normalized": normalized }]);
    for value in [added(" ", true, false, false), added("\n\n", false, true, false)] {
        assert!(error("added_tokens", value).contains("cannot have lstrip or rstrip"));
    }
    let mut json = tales("tokenizer.json");
    json["normalizer"] = json!({ "type": "Replace", "pattern": { "String": "a" }, "content": " " });
    json["added_tokens"] = added("a", true, false, true);
    assert!(
        message(Directory::new().with("tokenizer.json", &json).open())
            .contains("cannot have lstrip or rstrip")
    );
    assert!(
        error("added_tokens", added(&"a".repeat(257), false, false, false))
            .contains("1 to 256 bytes")
    );
    let unigram =
        json!({ "type": "Unigram", "unk_id": 0, "vocab": [["u", 0.0], ["a".repeat(129), 0.0]] });
    assert!(error("model", unigram).contains("129 bytes; 128 are supported"));
    let decoder = json!({ "type": "Replace", "pattern": { "Regex": "a*b|a" }, "content": "" });
    assert!(error("decoder", decoder).contains("not supported in a decoder"));
    for pattern in [r"(a)\1", "(?:a*)*"] {
        let split = json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
        assert!(error("pre_tokenizer", split).contains("the pattern"), "{pattern}");
        assert!(
            error(
                "normalizer",
                json!({ "type": "Replace", "pattern": { "Regex": pattern }, "content": "" })
            )
            .contains("the pattern")
        );
    }
    // A table that makes 300 bytes of a character: a trie of one word, and the replacement.
    let table = [&4u32.to_le_bytes()[..], &[0; 4], &[b'a'; 300]].concat();
    let table = json!({ "type": "Precompiled", "precompiled_charsmap": base64(&table) });
    assert!(error("normalizer", table).contains("300 bytes; 256 are supported"));
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letters = |part: &[u8]| {
        let word = part.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - part.len()));
        (0..4)
            .map(|n| {
                if n > part.len() {
                    '='
                } else {
                    LETTERS[(word >> (18 - 6 * n)) as usize & 63] as char
                }
            })
            .collect::<String>()
    };
    bytes.chunks(3).map(letters).collect()
}

/// The largest size that each limit allows is accepted, and one more is refused.
#[test]
fn limits_of_tokenizers_are_exact() {
    let open = |key: &str, value: Value| {
        let mut json = tales("tokenizer.json");
        json[key] = value;
        Directory::new().with("tokenizer.json", &json).open()
    };
    let replace = |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
    let strip = json!({ "type": "Strip", "strip_left": true, "strip_right": true });
    let sequence = |steps: Vec<Value>| json!({ "type": "Sequence", "normalizers": steps });
    let nested = |depth: usize| (0..depth).fold(strip.clone(), |inner, _| sequence(vec![inner]));
    let split = |count: usize| {
        sequence(
            (0..2).map(|n| sequence(vec![strip.clone(); count / 2 + n * (count % 2)])).collect(),
        )
    };
    let bpe =
        |length: usize| json!({ "type": "BPE", "vocab": { "a".repeat(length): 0 }, "merges": [] });
    let token = |length: usize| json!([{ "id": 0, "content": "b".repeat(length), "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false }]);
    let with_id = |id: u64| {
        let mut tokens = token(1);
        tokens[0]["id"] = id.into();
        tokens
    };
    let unigram = |length: usize| json!({ "type": "Unigram", "unk_id": 0, "vocab": [["u", 0.0], ["a".repeat(length), 0.0]] });
    for (key, limit, fits, beyond) in [
        (
            "normalizer",
            "256 are supported",
            replace("a", &"b".repeat(256)),
            replace("a", &"b".repeat(257)),
        ),
        (
            "normalizer",
            "up to 1024 bytes",
            replace("aaaaaaaa", &"b".repeat(1024)),
            replace("aaaaaaaa", &"b".repeat(1025)),
        ),
        (
            "normalizer",
            "1 to 4096 are supported",
            replace(&"a".repeat(4096), "b"),
            replace(&"a".repeat(4097), "b"),
        ),
        (
            "normalizer",
            "more than 64 steps",
            sequence(vec![strip.clone(); 64]),
            sequence(vec![strip.clone(); 65]),
        ),
        ("normalizer", "more than 64 steps", split(64), split(65)),
        ("normalizer", "deeper than 4", nested(4), nested(5)),
        ("added_tokens", "1 to 256 bytes", token(256), token(257)),
        ("added_tokens", "below 16777216", with_id((1 << 24) - 1), with_id(1 << 24)),
        ("model", "128 are supported", unigram(128), unigram(129)),
        ("model", "1024 are accepted", bpe(1024), bpe(1025)),
    ] {
        // Models of one token lack what the other parts refer to, which is found afterwards.
        if let Err(error) = open(key, fits) {
            assert!(key == "model" && !error.to_string().contains(limit), "{error}");
        }
        let error = open(key, beyond).expect_err(limit).to_string();
        assert!(error.contains(limit), "{limit}: {error}");
    }
}

/// What is longer is not read: files that are no JSON are an error of another kind.
#[test]
fn tokenizer_files_are_bounded_in_bytes() {
    let refused = |bytes: u64| {
        let directory = Directory::new();
        // It takes no room on the disk.
        fs::File::create(directory.0.0.join("tokenizer.json")).unwrap().set_len(bytes).unwrap();
        directory.open().unwrap_err().to_string()
    };
    let limit = "268435456 are supported";
    assert!(refused((256 << 20) + 1).contains(limit), "{}", refused((256 << 20) + 1));
    assert!(!refused(256 << 20).contains(limit));
}
