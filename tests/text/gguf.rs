//! Vocabularies of GGUF files.

use super::*;

#[test]
fn gguf_byte_level_gives_the_same_tokens() {
    let tokenizer = Tokenizer::from_gguf(&byte_level()).unwrap();
    for vector in tales("golden/golden.json")["tokenizer"].as_array().unwrap() {
        let text = vector["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode_plain(text).unwrap(), ids(&vector["ids"]), "{text}");
        assert_eq!(tokenizer.encode(text).unwrap(), ids(&vector["ids_with_special"]), "{text}");
        assert_eq!(
            tokenizer.decode(&ids(&vector["ids"])).unwrap(),
            vector["decoded_skip_special"].as_str().unwrap()
        );
    }
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.vocab_size()),
        (Some(2046), &[2047][..], 2048)
    );
}

#[test]
fn gguf_sentence_pieces_are_those_of_sentencepiece() {
    for vector in data("sentencepiece.json")["vectors"].as_array().unwrap() {
        let (text, expected) = (vector["text"].as_str().unwrap(), ids(&vector["ids"]));
        assert_eq!(SENTENCE_PIECE.encode_plain(text).unwrap(), expected, "{text}");
        assert_eq!(SENTENCE_PIECE.encode(text).unwrap(), [&[1], expected.as_slice()].concat());
        assert_eq!(SENTENCE_PIECE.decode(&expected).unwrap(), vector["decoded"].as_str().unwrap());
        assert_eq!(
            streamed(SENTENCE_PIECE.stream(), &expected),
            vector["decoded"].as_str().unwrap()
        );
    }
}

/// Gemma's: a text gets no space before it, runs of spaces and of lines are tokens as they stand
/// (the former with spaces, as the converter writes them), and what has no token is bytes.
#[test]
fn gguf_vocabularies_of_gemma_follow_its_rules() {
    let tokens = [
        ("<pad>", 3, 0.0),
        ("<eos>", 3, 0.0),
        ("<bos>", 3, 0.0),
        ("<unk>", 2, 0.0),
        ("<start_of_turn>", 3, 0.0),
        ("<end_of_turn>", 3, 0.0),
        ("\n\n", 4, 0.0),
        ("  ", 4, 0.0),
        ("<0x7A>", 6, 0.0),
        ("<0xC3>", 6, 0.0),
        ("<0xA9>", 6, 0.0),
        ("ab", 1, -1.0),
        ("▁a", 1, -2.0),
        ("▁ab", 1, -3.0),
        ("\n", 1, -4.0),
        ("▁", 1, -5.0),
        ("a", 1, -6.0),
        ("b", 1, -7.0),
    ];
    let vocabulary = GgufVocabulary {
        model: "llama".into(),
        tokens: tokens.iter().map(|token| token.0.into()).collect(),
        token_types: tokens.iter().map(|token| token.1).collect(),
        scores: Some(tokens.iter().map(|token| token.2).collect()),
        bos: Some(2),
        eos: Some(1),
        add_space_prefix: Some(false),
        ..Default::default()
    };
    let tokenizer = Tokenizer::from_gguf(&vocabulary).unwrap();
    let id = |name: &str| tokens.iter().position(|token| token.0 == name).unwrap() as u32;
    for (text, names) in [
        ("ab ab", &["ab", "▁ab"][..]),
        (" a", &["▁a"]),
        ("a  b", &["a", "  ", "b"]),
        ("a   b", &["a", "  ", "▁", "b"]),
        ("a\nb\n\na", &["a", "\n", "b", "\n\n", "a"]),
        ("zé", &["<0x7A>", "<0xC3>", "<0xA9>"]),
    ] {
        let expected: Vec<u32> = names.iter().map(|name| id(name)).collect();
        assert_eq!(tokenizer.encode_plain(text).unwrap(), expected, "{text:?}");
        assert_eq!(
            tokenizer.encode(text).unwrap(),
            [&[id("<bos>")], &expected[..]].concat(),
            "{text:?}"
        );
        assert_eq!(tokenizer.decode(&expected).unwrap(), text);
    }
    let turn = tokenizer.encode("<start_of_turn>a<end_of_turn>").unwrap();
    assert_eq!(turn, ["<bos>", "<start_of_turn>", "a", "<end_of_turn>"].map(id));
    // With a space before, as other files have it, the first token is another.
    let prefixed =
        Tokenizer::from_gguf(&GgufVocabulary { add_space_prefix: None, ..vocabulary }).unwrap();
    assert_eq!(prefixed.encode_plain("ab").unwrap(), [id("▁ab")]);
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
    assert_eq!(begins(Some("default"), None), [2046, 64]);
    assert_eq!(begins(Some("gpt-2"), None), [64]);
    assert_eq!(begins(Some("olmo"), None), [64]);
    assert_eq!(begins(Some("qwen2"), Some(true)), [2046, 64]);
}

/// By another rule, texts would be other tokens.
#[test]
fn gguf_rules_that_are_not_known_are_refused() {
    for name in ["deepseek-coder", "llama", "Default", ""] {
        let error = message(Tokenizer::from_gguf(&GgufVocabulary {
            pre: Some(name.into()),
            ..byte_level()
        }));
        assert!(
            error.contains(&format!("tokenizer.ggml.pre `{name}`"))
                && error.contains("`qwen35`, `gpt-2`"),
            "{error}"
        );
    }
    // SentencePiece splits by no rule.
    assert!(
        Tokenizer::from_gguf(&GgufVocabulary { pre: Some("nothing".into()), ..sentence_piece() })
            .is_ok()
    );
}

/// The pieces of a text by a rule: whatever is within one piece is merged to one token, as every
/// part of the text is a token, and every cut of one a merge.
fn pieces(pre: &str, text: &str) -> Vec<String> {
    // As byte-level BPE writes bytes: those that are no printable characters of Latin-1, after
    // these.
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let odd: Vec<u8> = (0..=255).filter(|&byte| !printable(byte)).collect();
    let written = |byte: u8| match odd.iter().position(|&other| other == byte) {
        Some(at) => char::from_u32(256 + at as u32).unwrap(),
        None => char::from(byte),
    };
    let characters: Vec<char> = text.bytes().map(written).collect();
    let part = |range: std::ops::Range<usize>| characters[range].iter().collect::<String>();
    let parts = (0..characters.len())
        .flat_map(|start| (start + 1..=characters.len()).map(move |end| (start, end)));
    let tokens: BTreeSet<String> = parts.clone().map(|(start, end)| part(start..end)).collect();
    let merges: BTreeSet<String> = parts
        .flat_map(|(start, end)| {
            (start + 1..end).map(move |cut| format!("{} {}", part(start..cut), part(cut..end)))
        })
        .collect();
    let vocabulary = GgufVocabulary {
        model: "gpt2".into(),
        pre: Some(pre.into()),
        tokens: tokens.into_iter().collect(),
        merges: merges.into_iter().collect(),
        ..Default::default()
    };
    let tokenizer = Tokenizer::from_gguf(&vocabulary).unwrap();
    // Each by itself, as a text, since it may be a part of a character's bytes in no rule here.
    tokenizer
        .encode_plain(text)
        .unwrap()
        .iter()
        .map(|&id| tokenizer.decode(&[id]).unwrap())
        .collect()
}

/// Derived by hand from the published regular expressions. In both, the first alternative that
/// matches at a place is taken: contractions, letters with one character of another kind before
/// them, a digit, other characters with a space before and ends of lines behind, spaces up to an
/// end of lines, spaces but for the last before a word, spaces.
#[test]
fn gguf_rules_split_as_published() {
    for (text, both) in [
        ("It's WE'LL I'mx 'tis", &["It", "'s", " WE", "'LL", " I", "'m", "x", " '", "tis"][..]),
        ("in 42 abc20٣x", &["in", " ", "4", "2", " abc", "2", "0", "٣", "x"]),
        ("a(b) (c).\n\nD!\r\n", &["a", "(b", ")", " (", "c", ").\n\n", "D", "!\r\n"]),
        ("a   b \n  c  ", &["a", "  ", " b", " \n", " ", " c", "  "]),
        ("東京ー20年、雪 。", &["東京ー", "2", "0", "年", "、雪", " 。"]),
    ] {
        for pre in ["qwen2", "qwen35"] {
            assert_eq!(pieces(pre, text), both, "{pre}: {text:?}");
        }
    }
}

/// Marks are letters to the second rule, and to the first something else, of which one may stand
/// before letters.
#[test]
fn gguf_rules_differ_in_marks() {
    for (text, qwen2, qwen35) in [
        ("x\u{301}y z", &["x", "\u{301}y", " z"][..], &["x\u{301}y", " z"][..]),
        ("हिन्दी", &["ह", "िन", "्द", "ी"], &["हिन्दी"]),
        ("x?!\u{301}", &["x", "?!\u{301}"], &["x", "?!", "\u{301}"]),
        ("!\u{301}a", &["!\u{301}", "a"], &["!\u{301}a"]),
    ] {
        assert_eq!(pieces("qwen2", text), qwen2, "{text:?}");
        assert_eq!(pieces("qwen35", text), qwen35, "{text:?}");
    }
}

/// A text that becomes a vector ends with EOS where the file says so, and one that is continued
/// does not.
#[test]
fn gguf_says_whether_embedded_texts_end_with_eos() {
    let of = |add_eos, eos| Tokenizer::from_gguf(&GgufVocabulary { add_eos, eos, ..byte_level() });
    let tokens = |add_eos| of(add_eos, Some(2047)).unwrap().encode_for_embedding("a").unwrap();
    assert_eq!(
        (tokens(Some(true)), tokens(Some(false)), tokens(None)),
        (vec![2046, 64, 2047], vec![2046, 64], vec![2046, 64])
    );
    assert_eq!(of(Some(true), Some(2047)).unwrap().encode("a").unwrap(), [2046, 64]);
    assert!(message(of(Some(true), None)).contains("EOS is wanted by add_eos_token"));
}

/// So does a directory, and once where its post-processor adds it already.
#[test]
fn directories_say_whether_embedded_texts_end_with_eos() {
    let config = |add: bool| json!({ "bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "add_eos_token": add });
    let ids = |directory: Directory| directory.open().unwrap().encode_for_embedding("a").unwrap();
    assert_eq!(
        ids(Directory::new().with("tokenizer_config.json", &config(true))),
        [2046, 64, 2047]
    );
    assert_eq!(ids(Directory::new().with("tokenizer_config.json", &config(false))), [2046, 64]);
    let (mut json, special) =
        (tales("tokenizer.json"), |name: &str| json!({"SpecialToken": {"id": name, "type_id": 0}}));
    let template = &mut json["post_processor"]["processors"][1];
    template["single"] = json!([special("<|begin_of_text|>"), {"Sequence": {"id": "A", "type_id": 0}}, special("<|end_of_text|>")]);
    template["special_tokens"]["<|end_of_text|>"] =
        json!({"id": "<|end_of_text|>", "ids": [2047], "tokens": ["<|end_of_text|>"]});
    let both =
        Directory::new().with("tokenizer.json", &json).with("tokenizer_config.json", &config(true));
    assert_eq!(both.open().unwrap().to_gguf().unwrap().add_eos, Some(true));
    assert_eq!(ids(both), [2046, 64, 2047]);
}

/// A token that the post-processor puts behind a text is its end, whichever it is.
#[test]
fn a_text_that_is_embedded_has_one_end() {
    let config = json!({ "bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "add_eos_token": true });
    let special = json!({"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}});
    let mut json = tales("tokenizer.json");
    json["post_processor"]["processors"][1]["single"] =
        json!([{"Sequence": {"id": "A", "type_id": 0}}, special]);
    let directory =
        Directory::new().with("tokenizer.json", &json).with("tokenizer_config.json", &config);
    assert_eq!(directory.open().unwrap().encode_for_embedding("a").unwrap(), [64, 2046]);
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

/// The shipped tokenizer, with these parts in its tokenizer.json.
fn with_parts(parts: &[(&str, Value)]) -> Result<Tokenizer> {
    let mut json = tales("tokenizer.json");
    for (path, value) in parts {
        *json.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value.clone();
    }
    Directory::new()
        .with("tokenizer.json", &json)
        .with("tokenizer_config.json", &tales("tokenizer_config.json"))
        .open()
}

#[test]
fn tokenizers_become_gguf_vocabularies() {
    let written = Tokenizer::from_directory(TALES).unwrap().to_gguf().unwrap();
    let template = fs::read_to_string(Path::new(TALES).join("chat_template.jinja")).unwrap();
    let expected = GgufVocabulary {
        add_bos: Some(true),
        add_eos: Some(false),
        chat_template: Some(template),
        ..byte_level()
    };
    assert_eq!(written, expected);
    // Other rules, of which the last takes no piece as it is.
    const REGEX: &str = "/pre_tokenizer/pretokenizers/0/pattern/Regex";
    for (pre, text) in
        [("qwen2", "123 x\u{301}y"), ("qwen35", "123 x\u{301}y"), ("llama-bpe", "123 x\u{301}y")]
    {
        let vocabulary =
            GgufVocabulary { pre: Some(pre.into()), add_bos: Some(true), ..byte_level() };
        let tokenizer = Tokenizer::from_gguf(&vocabulary).unwrap();
        let again = tokenizer.to_gguf().unwrap();
        assert_eq!(again, GgufVocabulary { add_eos: Some(false), ..vocabulary });
        assert_eq!(
            Tokenizer::from_gguf(&again).unwrap().encode(text).unwrap(),
            tokenizer.encode(text).unwrap()
        );
    }
    let plain = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    assert_eq!(
        with_parts(&[("/pre_tokenizer", plain.clone())]).unwrap().to_gguf().unwrap().pre.as_deref(),
        Some("gpt-2")
    );
    assert!(with_parts(&[("/normalizer", json!({"type": "NFC"}))]).unwrap().to_gguf().is_ok());

    let refused = |parts: &[(&str, Value)], words: &str| {
        let error = message(with_parts(parts).unwrap().to_gguf());
        assert!(
            error.contains("cannot be written to a GGUF file") && error.contains(words),
            "{error}"
        );
    };
    refused(&[(REGEX, json!(r"\p{L}+|\P{L}+"))], "has no name in GGUF files: \\p{L}+|");
    refused(&[("/pre_tokenizer/pretokenizers/0/behavior", json!("Removed"))], "has no name");
    let mut spaced = plain;
    spaced["add_prefix_space"] = true.into();
    refused(&[("/pre_tokenizer", spaced)], "has no name");
    refused(&[("/normalizer", json!({"type": "Lowercase"}))], "its normalizer \"Lowercase\"");
    refused(&[("/model/byte_fallback", json!(true))], "unlike SentencePiece");
    refused(&[("/added_tokens/0/rstrip", json!(true))], "strips spaces");
    // Without its merge, a token is made by nothing, and yet the rule's name has it taken as it is.
    let merges = tales("tokenizer.json")["model"]["merges"].as_array().unwrap().clone();
    refused(&[("/model/merges", json!(merges[..merges.len() - 1]))], "is not made by its merges");
    let pieces = json!({"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.0]], "unk_id": 0, "byte_fallback": false});
    refused(&[("/model", pieces)], "its model is \"Unigram\"");
    let between = json!([{"SpecialToken": {"id": "<|end_of_text|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
    let token = |name: &str, id: u32| json!({"id": name, "ids": [id], "tokens": [name]});
    let tokens = json!({"<|begin_of_text|>": token("<|begin_of_text|>", 2046), "<|end_of_text|>": token("<|end_of_text|>", 2047)});
    refused(
        &[
            ("/post_processor/processors/1/special_tokens", tokens),
            ("/post_processor/processors/1/single", between),
        ],
        "BOS at the start and EOS at the end",
    );
}

#[test]
fn sentence_pieces_become_gguf_vocabularies() {
    let written = SENTENCE_PIECE.to_gguf().unwrap();
    let plain = |v: &GgufVocabulary| GgufVocabulary {
        scores: None,
        add_bos: None,
        add_eos: None,
        add_space_prefix: None,
        ..v.clone()
    };
    assert_eq!(plain(&written), plain(&sentence_piece()));
    assert_eq!(
        (written.add_bos, written.add_eos, written.add_space_prefix),
        (Some(true), Some(false), Some(true))
    );
    let again = Tokenizer::from_gguf(&written).unwrap();
    for vector in data("sentencepiece.json")["vectors"].as_array().unwrap() {
        assert_eq!(
            again.encode_plain(vector["text"].as_str().unwrap()).unwrap(),
            ids(&vector["ids"])
        );
    }
    let without =
        Tokenizer::from_gguf(&GgufVocabulary { add_space_prefix: Some(false), ..sentence_piece() })
            .unwrap();
    assert_eq!(without.to_gguf().unwrap().add_space_prefix, Some(false));
    // As transformers has them: merges in the order of their tokens' scores, and every way to cut a
    // token.
    let file = |merges: &[[&str; 2]], normalizers: Value| {
        let vocab: serde_json::Map<_, _> =
            ["<unk>", "<s>", "</s>", "<0x41>", "▁", "a", "b", "ab", "▁a", "▁ab"]
                .iter()
                .zip(0..)
                .map(|(token, id)| (token.to_string(), json!(id)))
                .collect();
        let model = json!({"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": merges});
        let json = json!({"version": "1.0", "added_tokens": [], "normalizer": {"type": "Sequence", "normalizers": normalizers}, "model": model});
        Directory::new().with("tokenizer.json", &json).open().unwrap().to_gguf()
    };
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let usual = json!([{"type": "Prepend", "prepend": "▁"}, replace]);
    let merges = [["a", "b"], ["▁", "a"], ["▁a", "b"], ["▁", "ab"]];
    let vocabulary = file(&merges, usual.clone()).unwrap();
    assert_eq!(
        vocabulary.scores.unwrap(),
        [-4.0, -4.0, -4.0, -4.0, -4.0, -4.0, -4.0, 0.0, -1.0, -2.0]
    );
    assert_eq!(vocabulary.token_types, [2, 1, 1, 6, 1, 1, 1, 1, 1, 1]);
    for other in [&merges[..3], &[merges[0], merges[2], merges[1], merges[3]]] {
        assert!(message(file(other, usual.clone())).contains("do not follow from token scores"));
    }
    assert!(message(file(&merges, json!([replace, replace]))).contains("unlike SentencePiece"));
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
    let merge = |merge: &str| {
        message(Tokenizer::from_gguf(&GgufVocabulary {
            merges: vec![merge.into()],
            ..byte_level()
        }))
    };
    for bad in ["", "a", "a  ", "a nothing", "a b c", "~ ~"] {
        assert!(merge(bad).contains("does not join two tokens"), "{bad}");
    }
    assert!(
        message(Tokenizer::from_gguf(&GgufVocabulary { scores: None, ..sentence_piece() }))
            .contains("needs scores")
    );
    let odd = GgufVocabulary { scores: Some(vec![f32::NAN; 420]), ..sentence_piece() };
    assert!(Tokenizer::from_gguf(&odd).unwrap().encode("the kite").is_ok());
    assert!(
        Tokenizer::from_gguf(&GgufVocabulary { model: "gpt2".into(), ..Default::default() })
            .unwrap()
            .encode("a")
            .unwrap()
            .is_empty()
    );
}

/// What may be wrong with a vocabulary.
#[derive(Clone, Debug)]
enum Fault {
    Token(usize, String),
    Type(usize, i32),
    Score(usize, f32),
    Merge(usize, String),
    Ends([Option<u32>; 2], Option<bool>, Option<bool>),
    Pre(Option<String>),
    Shorter(u8, usize),
}

fn fault() -> impl Strategy<Value = Fault> {
    let at = 0usize..2048;
    let text = || {
        prop_oneof![
            "\\PC{0,3}",
            Just("<0x41>".to_owned()),
            Just("\u{2581}".to_owned()),
            Just("a".repeat(300)),
            Just(String::new())
        ]
    };
    let id = || prop::option::of(prop_oneof![0u32..2100, Just(u32::MAX)]);
    const PRE: &[&str] =
        &["llama-bpe", "gpt-2", "qwen2", "deepseek-coder", "default", "nothing", ""];
    prop_oneof![
        (at.clone(), text()).prop_map(|(at, token)| Fault::Token(at, token)),
        (at.clone(), -2i32..9).prop_map(|(at, kind)| Fault::Type(at, kind)),
        (at.clone(), any::<f32>()).prop_map(|(at, score)| Fault::Score(at, score)),
        (at.clone(), "[ -~]{0,5}").prop_map(|(at, merge)| Fault::Merge(at, merge)),
        (id(), id(), any::<Option<bool>>(), any::<Option<bool>>())
            .prop_map(|(bos, eos, add, space)| Fault::Ends([bos, eos], add, space)),
        prop::option::of(prop::sample::select(PRE)).prop_map(|pre| Fault::Pre(pre.map(Into::into))),
        (0u8..4, at).prop_map(|(which, length)| Fault::Shorter(which, length)),
    ]
}

impl Fault {
    fn put(self, v: &mut GgufVocabulary) {
        match self {
            Self::Token(at, token) => {
                v.tokens.get_mut(at).into_iter().for_each(|t| *t = token.clone())
            }
            Self::Type(at, kind) => v.token_types.get_mut(at).into_iter().for_each(|t| *t = kind),
            Self::Score(at, score) => {
                v.scores.iter_mut().filter_map(|scores| scores.get_mut(at)).for_each(|s| *s = score)
            }
            Self::Merge(at, merge) => {
                v.merges.get_mut(at).into_iter().for_each(|m| *m = merge.clone())
            }
            Self::Ends([bos, eos], add, space) => {
                (v.bos, v.eos, v.add_bos, v.add_space_prefix) = (bos, eos, add, space)
            }
            Self::Pre(pre) => v.pre = pre,
            Self::Shorter(0, length) => v.tokens.truncate(length),
            Self::Shorter(1, length) => v.token_types.truncate(length),
            Self::Shorter(2, length) => v.merges.truncate(length),
            Self::Shorter(_, length) => {
                v.scores.iter_mut().for_each(|scores| scores.truncate(length))
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(200), ..ProptestConfig::default() })]
    #[test]
    fn any_gguf_vocabulary_encodes_or_is_refused(pieces in any::<bool>(), faults in prop::collection::vec(fault(), 1..4)) {
        let mut vocabulary = if pieces { sentence_piece() } else { byte_level() };
        faults.into_iter().for_each(|fault| fault.put(&mut vocabulary));
        if let Ok(tokenizer) = Tokenizer::from_gguf(&vocabulary) {
            for text in ["Once upon a time, 東京! <|end_of_text|>", ""] {
                match tokenizer.encode(text) {
                    Ok(ids) => {
                        prop_assert!(ids.iter().all(|&id| (id as usize) < vocabulary.tokens.len()));
                        prop_assert_eq!(&tokenizer.encode(text).unwrap(), &ids);
                        // Of bytes that are not UTF-8, a stream keeps what was whole before.
                        let decoded = tokenizer.decode(&ids).unwrap();
                        prop_assert!(decoded.contains(char::REPLACEMENT_CHARACTER) || streamed(tokenizer.stream(), &ids) == decoded);
                    }
                    Err(error) => prop_assert!(!error.to_string().contains("contradicts itself"), "{error}"),
                }
            }
        }
    }
}
