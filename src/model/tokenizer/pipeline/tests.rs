use super::super::text::{Parsed, parse};
use super::*;
use serde_json::json;

/// The shipped tokenizer with some parts of its file replaced.
fn tokenizer(changes: &[(&str, Value)]) -> Parsed {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tales-22m/tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    changes.iter().for_each(|(key, value)| json[*key] = value.clone());
    parse(json).unwrap()
}

fn replace(from: Value, to: &str) -> Value {
    json!({ "type": "Replace", "pattern": from, "content": to })
}

fn excess(parsed: &Parsed, text: &str) -> Option<&'static str> {
    let error = parsed.pipeline.encode(&parsed.inner, text, true, None).err()?;
    Some(error.downcast::<Excess>().unwrap().what)
}

#[test]
fn tokens_are_those_of_the_crate() {
    let string = |text: &str| json!({ "String": text });
    let regex = |text: &str| json!({ "Regex": text });
    let split = |pattern: Value, behavior: &str, invert: bool| json!({ "type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert });
    let kinds = ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"]
        .map(|kind| json!({ "type": kind }));
    let mut normalizers = vec![
        Value::Null,
        json!({ "type": "Strip", "strip_left": true, "strip_right": true }),
        json!({ "type": "Prepend", "prepend": "▁" }),
        json!({ "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true }),
        json!({ "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" }, replace(string(" "), "▁"), replace(regex(r"a|x+"), "é"), { "type": "NFKC" }
        ] }),
        replace(regex(r"\s{2,}|(?<=a)n"), ""),
        replace(string("the"), "one more"),
    ];
    normalizers.extend(kinds);
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let behaviors = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"];
    let mut pre_tokenizers = vec![
        bytes.clone(),
        json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true }),
    ];
    for behavior in behaviors {
        for (pattern, invert) in
            [(regex(r"\s+(?!\S)|\w+"), false), (string("a"), true), (regex("x*"), false)]
        {
            pre_tokenizers.push(json!({ "type": "Sequence", "pretokenizers": [split(pattern, behavior, invert), bytes] }));
        }
    }
    let texts = [
        "",
        " ",
        "a",
        "the banana  and \n\n the ﷺ ﬁ é É e\u{301} 東京",
        "<|begin_of_text|> a<|end_of_text|>na <|end_of_text|>",
        "xxaxx  \n",
    ];
    for (n, normalizer) in normalizers.iter().enumerate() {
        for (m, pre_tokenizer) in pre_tokenizers.iter().enumerate() {
            if n > 0 && m > 2 && n != m % normalizers.len() {
                continue;
            }
            let Parsed { inner, pipeline } = tokenizer(&[
                ("normalizer", normalizer.clone()),
                ("pre_tokenizer", pre_tokenizer.clone()),
            ]);
            for text in texts {
                let expected = inner.encode_fast(text, true).unwrap().get_ids().to_vec();
                assert_eq!(
                    pipeline.encode(&inner, text, true, None).unwrap(),
                    expected,
                    "{normalizer} {pre_tokenizer} {text:?}"
                );
            }
        }
    }
}

#[test]
fn growth_is_bounded_in_bytes() {
    let content = "b ".repeat(125);
    let grows = |count: usize, normalizer: &Value| {
        excess(&tokenizer(&[("normalizer", normalizer.clone())]), &"a".repeat(count))
    };
    let longer = Some("bytes once it is normalized");
    for pattern in [json!({ "String": "a" }), json!({ "Regex": "a" })] {
        let once = replace(pattern, &content);
        assert_eq!((grows(1000, &once), grows(MOST_GROWN / 250 + 1, &once)), (None, longer));
    }
    // A text of four times its length passes, however long it is.
    let four = replace(json!({ "String": "a" }), "bbbb");
    assert_eq!(grows(MOST_GROWN / 4 + 1, &four), None);
    // What is put before each piece between added tokens.
    let parsed =
        tokenizer(&[("normalizer", json!({ "type": "Prepend", "prepend": "b".repeat(1000) }))]);
    let pieces = |count: usize| excess(&parsed, &"a<|end_of_text|>".repeat(count));
    assert_eq!((pieces(100), pieces(MOST_GROWN / 1000 + 1)), (None, longer));
}

/// Of normalizers that are not counted exactly, the length is measured before the whole text is
/// made longer.
#[test]
fn growth_of_characters_is_measured() {
    let parsed = tokenizer(&[("normalizer", json!({ "type": "NFKC" }))]);
    // 3 bytes that become 33.
    assert_eq!(
        excess(&parsed, &"ﷺ".repeat(MOST_GROWN / 33 + 1)),
        Some("bytes once it is normalized")
    );
    let work = Work::new(10_000);
    let nfkc = Normalize::Characters {
        step: parsed.inner.get_normalizer().unwrap().clone(),
        growth: 1 << 20,
    };
    let mut text = NormalizedString::from("é".repeat(5_000).as_str());
    nfkc.run(&mut text, &work).unwrap();
    assert_eq!(text.len(), 10_000);
}

#[test]
fn patterns_share_steps_of_a_text() {
    let split = |pattern: &str| json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
    let steps = Some("steps of the tokenizer's patterns");
    for pattern in ["a*b|a", "(?=a*$)a", "(?=(a+a+)+b)a"] {
        let text = "a".repeat(20_000);
        assert_eq!(
            excess(&tokenizer(&[("pre_tokenizer", split(pattern))]), &text),
            steps,
            "{pattern}"
        );
        assert_eq!(
            excess(&tokenizer(&[("normalizer", replace(json!({ "Regex": pattern }), "b"))]), &text),
            steps,
            "{pattern}"
        );
    }
    // Of pieces between added tokens, each alone is within them.
    let piece = "a".repeat(2000) + "<|end_of_text|>";
    let parsed = tokenizer(&[("pre_tokenizer", split("a*b|a"))]);
    assert_eq!((excess(&parsed, &piece), excess(&parsed, &piece.repeat(20))), (None, steps));
}
