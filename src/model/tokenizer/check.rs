//! What a tokenizer.json may ask for. It is a program from a stranger, and the `tokenizers` crate
//! believes it: it indexes with what files say, asks for as much memory as they name, and lets a
//! short file make a long text of every letter. What passes here is of the kinds that published
//! models use, refers only to what it has, and makes a text at most [`MOST_GROWTH`] times as long.

use crate::limits::tokenizer::{
    MOST_ADDED, MOST_CONTENT, MOST_DEPTH, MOST_GROWTH, MOST_ID, MOST_PATTERN, MOST_PIECE,
    MOST_STEPS,
};
use serde_json::{Map, Value};
use std::collections::HashSet;

type Object = Map<String, Value>;

/// Checks a tokenizer.json, and takes out what makes its results random.
pub fn check(json: &mut Value) -> Result<(), String> {
    let json = json.as_object_mut().ok_or("is not a JSON object")?;
    // A file keeps the padding and truncation of its author's last use.
    json.insert("padding".into(), Value::Null);
    json.insert("truncation".into(), Value::Null);
    let added = added_tokens(json)?;
    let model = json.get_mut("model").and_then(Value::as_object_mut).ok_or("has no model")?;
    check_model(model, &added)?;
    steps(json, "normalizer", normalizer, "normalizers")?;
    steps(json, "pre_tokenizer", pre_tokenizer, "pretokenizers")?;
    steps(json, "post_processor", post_processor, "processors")?;
    steps(json, "decoder", decoder, "decoders")
}

/// Checks one of the four programs of the file.
fn steps(
    json: &Object,
    key: &str,
    part: fn(&str, &Object) -> Result<usize, String>,
    inner: &str,
) -> Result<(), String> {
    match json.get(key) {
        Some(value) if !value.is_null() => {
            growth(value, part, inner, 0, &mut 0).map(drop).map_err(|e| format!("{key}: {e}"))
        }
        _ => Ok(()),
    }
}

/// The names of added tokens.
fn added_tokens(json: &Object) -> Result<HashSet<String>, String> {
    let Some(all) = json.get("added_tokens").filter(|all| !all.is_null()) else {
        return Ok(HashSet::new());
    };
    let mut names = HashSet::new();
    for token in all.as_array().ok_or("added_tokens is not a list")? {
        let content = token["content"]
            .as_str()
            .filter(|content| !content.is_empty() && content.len() <= MOST_ADDED);
        let content = content
            .ok_or_else(|| format!("an added token has no name of 1 to {MOST_ADDED} bytes"))?;
        id(&token["id"]).map_err(|e| format!("the added token `{content}`: {e}"))?;
        names.insert(content.to_owned());
    }
    Ok(names)
}

fn id(value: &Value) -> Result<u64, String> {
    value
        .as_u64()
        .filter(|&id| id < MOST_ID)
        .ok_or_else(|| format!("its id is {value}; numbers below {MOST_ID} are supported"))
}

fn check_model(model: &mut Object, added: &HashSet<String>) -> Result<(), String> {
    // Older files do not name it.
    let kind = model.get("type").and_then(Value::as_str).unwrap_or("BPE").to_owned();
    match kind.as_str() {
        "BPE" => {
            // At inference it would make every text's tokens a matter of chance.
            if model
                .get("dropout")
                .is_some_and(|dropout| !dropout.is_null() && dropout.as_f64() != Some(0.0))
            {
                log::warn!("tokenizer.json: `dropout` is ignored; it is for training");
            }
            model.insert("dropout".into(), Value::Null);
            check_bpe(model, added)
        }
        "Unigram" => {
            let vocab = model
                .get("vocab")
                .and_then(Value::as_array)
                .ok_or("the model has no list of tokens")?;
            let sound = |entry: &Value| matches!(entry.as_array().map(Vec::as_slice), Some([Value::String(_), Value::Number(score)]) if score.as_f64().is_some_and(f64::is_finite));
            if let Some(entry) = vocab.iter().find(|entry| !sound(entry)) {
                return Err(format!("{entry} is not a token with a score"));
            }
            let text = |entry: &Value| entry[0].as_str().map_or(0, str::len);
            if let Some(entry) = vocab.iter().find(|entry| text(entry) > MOST_PIECE) {
                return Err(format!(
                    "a token has {} bytes; {MOST_PIECE} are supported in a Unigram model",
                    text(entry)
                ));
            }
            match model.get("unk_id").filter(|id| !id.is_null()) {
                Some(unknown) if unknown.as_u64().is_none_or(|id| id >= vocab.len() as u64) => {
                    Err(format!("unk_id is {unknown}; there are {} tokens", vocab.len()))
                }
                _ => Ok(()),
            }
        }
        other => Err(format!("the model `{other}` is not supported (`BPE` and `Unigram` are)")),
    }
}

fn check_bpe(model: &Object, added: &HashSet<String>) -> Result<(), String> {
    for affix in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if model.get(affix).is_some_and(|value| !value.is_null() && value.as_str() != Some("")) {
            return Err(format!("{affix} is not supported"));
        }
    }
    let vocab =
        model.get("vocab").and_then(Value::as_object).ok_or("the model has no vocabulary")?;
    let mut ids = HashSet::with_capacity(vocab.len());
    for (token, value) in vocab {
        // The longest one bounds how long texts may be.
        if token.len() > MOST_CONTENT {
            return Err(format!(
                "a token has {} bytes; at most {MOST_CONTENT} are accepted",
                token.len()
            ));
        }
        if !ids.insert(id(value).map_err(|e| format!("the token `{token}`: {e}"))?) {
            return Err(format!("the id {value} is that of two tokens"));
        }
    }
    let unknown = model.get("unk_token").filter(|unknown| !unknown.is_null());
    if let Some(unknown) = unknown
        && !unknown
            .as_str()
            .is_some_and(|unknown| vocab.contains_key(unknown) || added.contains(unknown))
    {
        return Err(format!("unk_token is {unknown}, which is not a token"));
    }
    let merges = model.get("merges").and_then(Value::as_array).ok_or("the model has no merges")?;
    for merge in merges {
        let pair = match merge {
            Value::String(merge) => merge.split_once(' '),
            merge => merge.as_array().and_then(|pair| match pair.as_slice() {
                [Value::String(a), Value::String(b)] => Some((a.as_str(), b.as_str())),
                _ => None,
            }),
        };
        let known = |(a, b): &(&str, &str)| {
            vocab.contains_key(*a)
                && vocab.contains_key(*b)
                && vocab.contains_key(&format!("{a}{b}"))
        };
        if !pair.is_some_and(|pair| known(&pair)) {
            return Err(format!("the merge {merge} does not join two tokens into a third"));
        }
    }
    Ok(())
}

/// Returns how many times as long a part, and those within it, make a text. Counts the parts that
/// are no sequences in `count`.
fn growth(
    value: &Value,
    part: fn(&str, &Object) -> Result<usize, String>,
    inner: &str,
    depth: usize,
    count: &mut usize,
) -> Result<usize, String> {
    let object = value.as_object().ok_or("is not a JSON object")?;
    let kind = object.get("type").and_then(Value::as_str).ok_or("has no type")?;
    if kind != "Sequence" {
        *count += 1;
        if *count > MOST_STEPS {
            return Err(format!("more than {MOST_STEPS} steps"));
        }
        return part(kind, object).map_err(|e| format!("{kind}: {e}"));
    }
    let steps = object
        .get(inner)
        .and_then(Value::as_array)
        .ok_or_else(|| format!("a sequence has no {inner}"))?;
    if depth == MOST_DEPTH || steps.len() > MOST_STEPS {
        return Err(format!(
            "a sequence of more than {MOST_STEPS} steps, or deeper than {MOST_DEPTH}"
        ));
    }
    let mut all = 1;
    for step in steps {
        all *= growth(step, part, inner, depth + 1, count)?;
        if all > MOST_GROWTH {
            return Err(format!("makes a text more than {MOST_GROWTH} times as long"));
        }
    }
    Ok(all)
}

fn normalizer(kind: &str, object: &Object) -> Result<usize, String> {
    match kind {
        // The longest decompositions of a character.
        "NFKC" | "NFKD" => Ok(11),
        "NFC" | "NFD" | "Lowercase" => Ok(3),
        "Strip" | "StripAccents" | "Nmt" => Ok(1),
        "BertNormalizer" => Ok(3),
        "ByteLevel" => Ok(2),
        "Prepend" => content(object, "prepend").map(|_| 1),
        "Replace" => replace(object),
        "Precompiled" => precompiled(object),
        _ => Err("is not supported".into()),
    }
}

fn pre_tokenizer(kind: &str, object: &Object) -> Result<usize, String> {
    match kind {
        "ByteLevel" | "Digits" | "Whitespace" | "WhitespaceSplit" | "Punctuation"
        | "BertPreTokenizer" | "UnicodeScripts" => Ok(1),
        "Metaspace" => one_character(object, "replacement").map(|()| 1),
        "CharDelimiterSplit" => one_character(object, "delimiter").map(|()| 1),
        "Split" => pattern(object).map(|_| 1),
        _ => Err("is not supported".into()),
    }
}

fn decoder(kind: &str, object: &Object) -> Result<usize, String> {
    match kind {
        "ByteLevel" | "ByteFallback" | "Fuse" => Ok(1),
        "Metaspace" => one_character(object, "replacement").map(|()| 1),
        // Of a fused text, a regular expression would be looked for in all of it.
        "Replace" if object.get("pattern").is_some_and(|pattern| pattern["Regex"].is_string()) => {
            Err("a regular expression is not supported in a decoder; a string is".into())
        }
        "Replace" => replace(object),
        "Strip" => {
            one_character(object, "content")?;
            for end in ["start", "stop"] {
                if object
                    .get(end)
                    .and_then(Value::as_u64)
                    .is_none_or(|count| count > MOST_CONTENT as u64)
                {
                    return Err(format!("{end} is not a count up to {MOST_CONTENT}"));
                }
            }
            Ok(1)
        }
        _ => Err("is not supported".into()),
    }
}

fn post_processor(kind: &str, object: &Object) -> Result<usize, String> {
    match kind {
        "ByteLevel" => Ok(1),
        "TemplateProcessing" => {
            let tokens = object
                .get("special_tokens")
                .and_then(Value::as_object)
                .ok_or("has no special_tokens")?;
            for (name, token) in tokens {
                let ids = token["ids"].as_array().ok_or_else(|| format!("`{name}` has no ids"))?;
                ids.iter()
                    .try_for_each(|value| id(value).map(drop))
                    .map_err(|e| format!("`{name}`: {e}"))?;
                if ids.is_empty()
                    || ids.len() > MOST_STEPS
                    || token["tokens"].as_array().is_none_or(|tokens| tokens.len() != ids.len())
                {
                    return Err(format!(
                        "`{name}` has not as many tokens as ids, 1 to {MOST_STEPS}"
                    ));
                }
            }
            for (template, sequences) in [("single", &["A"][..]), ("pair", &["A", "B"])] {
                let Some(pieces) = object.get(template).filter(|pieces| !pieces.is_null()) else {
                    continue;
                };
                let pieces = pieces
                    .as_array()
                    .filter(|pieces| pieces.len() <= MOST_STEPS)
                    .ok_or_else(|| format!("{template} is not a short list"))?;
                let mut texts = 0;
                for piece in pieces {
                    let (sequence, special) =
                        (&piece["Sequence"]["id"], &piece["SpecialToken"]["id"]);
                    match (sequence.as_str(), special.as_str()) {
                        (Some(sequence), None) if sequences.contains(&sequence) => texts += 1,
                        (None, Some(special)) if tokens.contains_key(special) => {}
                        _ => return Err(format!("{piece} in {template} is not supported")),
                    }
                }
                if texts != sequences.len() {
                    return Err(format!("{template} has not each text once"));
                }
            }
            Ok(1)
        }
        _ => Err("is not supported".into()),
    }
}

fn content<'a>(object: &'a Object, key: &str) -> Result<&'a str, String> {
    let content =
        object.get(key).and_then(Value::as_str).filter(|content| content.len() <= MOST_CONTENT);
    content.ok_or_else(|| format!("{key} is not a string of up to {MOST_CONTENT} bytes"))
}

fn one_character(object: &Object, key: &str) -> Result<(), String> {
    let one = object
        .get(key)
        .is_none_or(|value| value.as_str().is_some_and(|text| text.chars().count() == 1));
    if one { Ok(()) } else { Err(format!("{key} is not one character")) }
}

/// The least that a pattern matches, in bytes: of a regular expression, one.
fn pattern(object: &Object) -> Result<usize, String> {
    let pattern = object.get("pattern").ok_or("has no pattern")?;
    let (text, least) = match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
        (Some(text), _) => (text, text.len()),
        (None, Some(regex)) => (regex, 1),
        _ => return Err("has a pattern that is neither a string nor a regular expression".into()),
    };
    if text.is_empty() || text.len() > MOST_PATTERN {
        return Err(format!(
            "the pattern has {} bytes; 1 to {MOST_PATTERN} are supported",
            text.len()
        ));
    }
    Ok(least.max(1))
}

fn replace(object: &Object) -> Result<usize, String> {
    let (least, content) = (pattern(object)?, content(object, "content")?);
    let growth = content.len().div_ceil(least).max(1);
    if growth > MOST_GROWTH {
        Err(format!("makes a text {growth} times as long; {MOST_GROWTH} are supported"))
    } else {
        Ok(growth)
    }
}

/// The size that a table of characters claims in its first four bytes is within what it has.
fn precompiled(object: &Object) -> Result<usize, String> {
    let map = object
        .get("precompiled_charsmap")
        .and_then(Value::as_str)
        .ok_or("has no precompiled_charsmap")?;
    let map = base64::decode(map).map_err(|e| format!("its table is not base64: {e}"))?;
    let (size, rest) = map.split_first_chunk::<4>().ok_or("its table is too short")?;
    let size = u32::from_le_bytes(*size) as usize;
    // After the size come the trie, in words, and the replacements.
    if !size.is_multiple_of(4) || size == 0 || size > rest.len() {
        return Err(format!("its table claims {size} bytes and has {}", rest.len()));
    }
    // A replacement ends with a zero.
    if let Some(long) =
        rest[size..].split(|byte| *byte == 0).map(<[u8]>::len).find(|&len| len > MOST_GROWTH)
    {
        return Err(format!(
            "a replacement of its table has {long} bytes; {MOST_GROWTH} are supported"
        ));
    }
    Ok(11)
}
