//! Tokenizers for GGUF files: the inverse of [`gguf`](super::gguf).

use super::{
    gguf::{BYTE, CONTROL, NORMAL, SPLITS, UNKNOWN, UNUSED, USER_DEFINED},
    text::{Tokenizer, parse},
};
use crate::{
    error::{Error, Result},
    formats::gguf::{metadata::unused_token, vocabulary::GgufVocabulary},
    limits::tokenizer::{MOST_CONTENT, MOST_ID},
};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};

impl Tokenizer {
    /// Returns the tokenizer as a GGUF file has it, for [`write_gguf`](crate::formats::write_gguf):
    /// byte-level BPE whose rule for splitting texts has a name there, and BPE made from a
    /// SentencePiece model, whose scores follow from its merges.
    ///
    /// GGUF files say nothing of normalization: where a tokenizer brings texts to Unicode's form
    /// NFC (Qwen's do), readers of the file expect them in it.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] for a tokenizer of another kind, which would split texts in another
    /// way.
    pub fn to_gguf(&self) -> Result<GgufVocabulary> {
        let json = serde_json::to_value(&self.0.inner).map_err(|e| refuse(e.to_string()))?;
        let model = &json["model"];
        if model["type"] != "BPE" {
            return Err(refuse(format!("its model is {}; BPE is supported", model["type"])));
        }
        for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
            if model[key].as_str().is_some_and(|text| !text.is_empty()) {
                return Err(refuse(format!("its model has a {key}")));
            }
        }
        let (tokens, token_types) = self.tokens(model["unk_token"].as_str())?;
        let merges = merges(model)?;
        let (add_bos, add_eos) = self.ends()?;
        let vocabulary = GgufVocabulary {
            tokens,
            token_types,
            bos: self.0.bos,
            eos: self.0.eos_token.or(self.0.eos.first().copied()),
            add_bos: Some(add_bos),
            add_eos: Some(add_eos),
            chat_template: self.1.template.as_deref().map(str::to_owned),
            ..GgufVocabulary::default()
        };
        match model["byte_fallback"].as_bool() {
            Some(true) => sentence_piece(vocabulary, &json, &merges),
            _ => byte_level(vocabulary, json, merges),
        }
    }

    /// The text of every token, and what it is.
    fn tokens(&self, unknown: Option<&str>) -> Result<(Vec<String>, Vec<i32>)> {
        let (vocabulary, added) =
            (self.0.inner.get_vocab(true), self.0.inner.get_added_tokens_decoder());
        // A file says of no token how it is met in a text.
        if let Some(token) =
            added.values().find(|token| token.lstrip || token.rstrip || token.single_word)
        {
            return Err(refuse(format!(
                "its token `{}` strips spaces or matches whole words only, which GGUF files cannot store",
                token.content
            )));
        }
        let count = vocabulary.values().max().map_or(0, |&id| id as usize + 1);
        if count as u64 > MOST_ID {
            return Err(refuse(format!("it has the token {}", count - 1)));
        }
        let mut tokens: Vec<(String, i32)> =
            (0..count).map(|id| (unused_token(id), UNUSED)).collect();
        for (token, id) in vocabulary {
            // The reader of files does not take longer ones: all their cuts are tried.
            if token.len() > MOST_CONTENT {
                return Err(refuse(format!(
                    "token {id} has {} bytes; at most {MOST_CONTENT} are supported",
                    token.len()
                )));
            }
            let kind = match added.get(&id) {
                _ if Some(token.as_str()) == unknown => UNKNOWN,
                Some(added) if added.special => CONTROL,
                Some(_) => USER_DEFINED,
                None if token.len() == 6 && token.starts_with("<0x") && token.ends_with('>') => {
                    BYTE
                }
                None => NORMAL,
            };
            tokens[id as usize] = (token, kind);
        }
        let unused: HashSet<String> = tokens
            .iter()
            .filter(|(_, kind)| *kind == UNUSED)
            .map(|(token, _)| token.clone())
            .collect();
        if let Some((token, _)) =
            tokens.iter().find(|(token, kind)| *kind != UNUSED && unused.contains(token))
        {
            return Err(refuse(format!(
                "its token `{token}` has a name that GGUF files use for unused tokens"
            )));
        }
        Ok(tokens.into_iter().unzip())
    }

    /// Returns whether BOS is put before a text, and EOS after one that is embedded.
    fn ends(&self) -> Result<(bool, bool)> {
        let (text, around) = (self.encode_plain("a")?, self.encode_for_embedding("a")?);
        let bos = around.first().is_some_and(|id| Some(*id) == self.0.bos);
        match around[usize::from(bos)..].strip_prefix(text.as_slice()) {
            Some([]) => Ok((bos, false)),
            Some([id]) if Some(*id) == self.0.eos_token => Ok((bos, true)),
            _ => Err(refuse(
                "its post-processor adds other tokens than BOS at the start and EOS at the end"
                    .into(),
            )),
        }
    }
}

/// The merges, two tokens each.
fn merges(model: &Value) -> Result<Vec<(String, String)>> {
    let pair = |merge: &Value| match merge {
        Value::String(merge) => merge.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())),
        merge => Some((merge[0].as_str()?.to_owned(), merge[1].as_str()?.to_owned())),
    };
    let all = model["merges"].as_array().map_or(&[][..], Vec::as_slice);
    all.iter()
        .map(pair)
        .collect::<Option<_>>()
        .ok_or_else(|| refuse("its merges are not of two tokens".into()))
}

fn byte_level(
    mut vocabulary: GgufVocabulary,
    mut json: Value,
    merges: Vec<(String, String)>,
) -> Result<GgufVocabulary> {
    if !(json["normalizer"].is_null() || json["normalizer"]["type"] == "NFC") {
        return Err(refuse(format!(
            "its normalizer {} cannot be stored",
            json["normalizer"]["type"]
        )));
    }
    let rule = rule(&json["pre_tokenizer"])
        .ok_or_else(|| refuse("its pre-tokenizer has no name in GGUF files".into()))?;
    let Some((name, split)) = SPLITS.iter().find(|(_, split)| split.regex == rule) else {
        return Err(refuse(format!("its pre-tokenizer has no name in GGUF files: {rule}")));
    };
    if let Some((a, b)) = merges.iter().find(|(a, b)| a.contains(' ') || b.contains(' ')) {
        return Err(refuse(format!(
            "it merges `{a}` and `{b}`; a GGUF file cannot store a merge with a space"
        )));
    }
    // The name says whether a piece that is a token is taken as it is. It does not matter if
    // merging makes every token from its pieces.
    if json["model"]["ignore_merges"].as_bool().unwrap_or(false) != split.ignore_merges {
        json["model"]["ignore_merges"] = false.into();
        let merged = parse(json).map_err(refuse)?.inner;
        let normal = vocabulary
            .tokens
            .iter()
            .zip(&vocabulary.token_types)
            .filter(|(_, kind)| **kind == NORMAL);
        use tokenizers::Model;
        for (token, _) in normal {
            if merged.get_model().tokenize(token).map_err(|e| refuse(e.to_string()))?.len() != 1 {
                return Err(refuse(format!(
                    "its token `{token}` is not made by its merges; with the pre-tokenizer `{}` it would match differently",
                    name[0]
                )));
            }
        }
    }
    vocabulary.model = "gpt2".into();
    vocabulary.pre = Some(name[0].to_owned());
    vocabulary.merges = merges.into_iter().map(|(a, b)| format!("{a} {b}")).collect();
    Ok(vocabulary)
}

/// The pattern by which a byte-level tokenizer splits a text.
fn rule(pre_tokenizer: &Value) -> Option<&str> {
    let bytes = |step: &Value, regex: bool| {
        step["type"] == "ByteLevel"
            && step["add_prefix_space"] == false
            && step["use_regex"] == regex
    };
    if bytes(pre_tokenizer, true) {
        return Some(super::gguf::GPT_2.regex);
    }
    match pre_tokenizer["pretokenizers"].as_array()?.as_slice() {
        [split, step]
            if split["type"] == "Split"
                && split["behavior"] == "Isolated"
                && split["invert"] == false
                && bytes(step, false) =>
        {
            split["pattern"]["Regex"].as_str()
        }
        _ => None,
    }
}

fn sentence_piece(
    mut vocabulary: GgufVocabulary,
    json: &Value,
    merges: &[(String, String)],
) -> Result<GgufVocabulary> {
    let normalized = |token: &Value| token["normalized"] == true;
    if let Some(token) = json["added_tokens"]
        .as_array()
        .and_then(|tokens| tokens.iter().find(|token| normalized(token)))
    {
        return Err(refuse(format!(
            "its token {} matches normalized text, which GGUF files do not support",
            token["content"]
        )));
    }
    let prefix = space_prefix(json).ok_or_else(|| {
        refuse("it has byte tokens, and handles spaces unlike SentencePiece".into())
    })?;
    // A token's score is the higher the earlier it is made.
    let mut first = HashMap::new();
    for (rank, (a, b)) in merges.iter().enumerate() {
        first.entry(format!("{a}{b}")).or_insert(rank);
    }
    let score = |token: &String| -(first.get(token).copied().unwrap_or(merges.len()) as f32);
    vocabulary.scores = Some(vocabulary.tokens.iter().map(score).collect());
    vocabulary.model = "llama".into();
    vocabulary.add_space_prefix = Some(prefix);
    // Scores say that two neighbors merge whenever they make a token; merges need not.
    let rank = |(a, b): &(String, String)| first[&format!("{a}{b}")];
    let mut own: BTreeMap<usize, HashSet<(&str, &str)>> = BTreeMap::new();
    for merge in merges {
        own.entry(rank(merge)).or_default().insert((&merge.0, &merge.1));
    }
    let sorted = merges.is_sorted_by_key(rank);
    if vocabulary.cuts(&first) != own || !sorted {
        return Err(refuse(
            "its merges do not follow from token scores, as in a SentencePiece model".into(),
        ));
    }
    Ok(vocabulary)
}

/// Returns whether a space is put before a text. None for a tokenizer that treats spaces in another way.
fn space_prefix(json: &Value) -> Option<bool> {
    let replaces = |step: &Value| {
        step["type"] == "Replace" && step["pattern"]["String"] == " " && step["content"] == "▁"
    };
    let prepends = |step: &Value| step["type"] == "Prepend" && step["prepend"] == "▁";
    let (normalizer, pre_tokenizer) = (&json["normalizer"], &json["pre_tokenizer"]);
    match (pre_tokenizer.is_null(), normalizer.is_null()) {
        (true, false) => match normalizer["normalizers"]
            .as_array()
            .map_or(std::slice::from_ref(normalizer), Vec::as_slice)
        {
            [a, b] if prepends(a) && replaces(b) => Some(true),
            [a] if replaces(a) => Some(false),
            _ => None,
        },
        (false, true)
            if pre_tokenizer["type"] == "Metaspace"
                && pre_tokenizer["split"] == false
                && pre_tokenizer["replacement"] == "▁" =>
        {
            match pre_tokenizer["prepend_scheme"].as_str() {
                Some("never") => Some(false),
                // None is put before a text that begins with one, nor, by one of both, behind
                // special tokens: files cannot say that.
                _ => None,
            }
        }
        _ => None,
    }
}

fn refuse(what: String) -> Error {
    Error::Tokenizer { message: format!("cannot be written to a GGUF file: {what}") }
}
