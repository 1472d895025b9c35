//! Tokenizers of GGUF files: the vocabulary is translated to an equivalent `tokenizer.json`.

use super::text::{Settings, Tokenizer, parse};
use crate::{
    error::{Error, Result},
    formats::gguf::vocabulary::{ENDS, GgufVocabulary},
    limits::tokenizer::MOST_CONTENT,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};

pub(super) const NORMAL: i32 = 1;
pub(super) const UNKNOWN: i32 = 2;
pub(super) const CONTROL: i32 = 3;
pub(super) const USER_DEFINED: i32 = 4;
pub(super) const UNUSED: i32 = 5;
pub(super) const BYTE: i32 = 6;

/// How a text is split into pieces before BPE merges within them.
pub(super) struct Split {
    pub regex: &'static str,
    /// A piece that is a token as a whole is taken as it is, without merging.
    pub ignore_merges: bool,
    add_bos: bool,
}

const LLAMA_3: Split = Split {
    regex: r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ignore_merges: true,
    add_bos: true,
};
const QWEN_2: Split = Split {
    regex: r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ignore_merges: false,
    add_bos: false,
};
/// As Qwen 3.5: marks go with the letters before them.
const QWEN_35: Split = Split {
    regex: r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ignore_merges: false,
    add_bos: false,
};
pub(super) const GPT_2: Split = Split {
    regex: r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    ignore_merges: false,
    add_bos: false,
};

/// Rules by their names, of which the first is the one that is written.
pub(super) static SPLITS: [(&[&str], Split); 4] = [
    (&["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "smaug-bpe"], LLAMA_3),
    (&["qwen2", "deepseek-r1-qwen"], QWEN_2),
    (&["qwen35"], QWEN_35),
    (&["gpt-2", "gpt2", "olmo"], GPT_2),
];

impl Tokenizer {
    /// The tokenizer of a GGUF file.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] for a kind of tokenizer other than `gpt2` or `llama`, for a rule that
    /// splits texts and is not known, or if the vocabulary contradicts itself.
    pub(crate) fn from_gguf(vocabulary: &GgufVocabulary) -> Result<Self> {
        let (json, add_bos) = vocabulary.to_json().map_err(error)?;
        let parsed = parse(json).map_err(error)?;
        let add_bos = vocabulary.add_bos.unwrap_or(add_bos && vocabulary.bos.is_some());
        if add_bos && vocabulary.bos.is_none() {
            return Err(error("BOS is wanted by add_bos_token, but the file names none".into()));
        }
        let add_eos = vocabulary.add_eos.unwrap_or(false);
        if add_eos && vocabulary.eos.is_none() {
            return Err(error("EOS is wanted by add_eos_token, but the file names none".into()));
        }
        let mut eos: Vec<u32> = vocabulary.eos.into_iter().collect();
        eos.extend(
            ENDS.iter()
                .filter_map(|name| parsed.inner.token_to_id(name))
                .filter(|id| Some(*id) != vocabulary.eos),
        );
        let template = vocabulary.chat_template.clone();
        Self::new(
            parsed,
            Settings {
                bos: vocabulary.bos,
                eos,
                eos_token: vocabulary.eos,
                add_bos,
                add_eos,
                template,
            },
        )
    }
}

impl GgufVocabulary {
    /// A `tokenizer.json`, and whether texts begin with BOS by default.
    fn to_json(&self) -> Result<(Value, bool), String> {
        let ids = self.ids()?;
        let (parts, add_bos) = match self.model.as_str() {
            "gpt2" => self.byte_level(&ids)?,
            "llama" => (self.sentence_piece(&ids)?, true),
            other => {
                return Err(format!(
                    "the model `{other}` is not supported (`gpt2` and `llama` are)"
                ));
            }
        };
        let mut json = json!({ "version": "1.0", "added_tokens": self.added_tokens() });
        for (key, value) in parts {
            json[key] = value;
        }
        json["model"]["type"] = "BPE".into();
        json["model"]["vocab"] = ids
            .into_iter()
            .map(|(token, id)| (token.to_owned(), Value::from(id)))
            .collect::<serde_json::Map<_, _>>()
            .into();
        Ok((json, add_bos))
    }

    /// The id of each token; also checks the vocabulary's lengths and ids.
    fn ids(&self) -> Result<HashMap<&str, u32>, String> {
        let count = self.tokens.len();
        let count_u32 = u32::try_from(count).map_err(|_| format!("{count} tokens are too many"))?;
        let lengths = [
            ("token types", self.token_types.len()),
            ("scores", self.scores.as_ref().map_or(0, Vec::len)),
        ];
        if let Some((what, len)) = lengths.into_iter().find(|(_, len)| *len != 0 && *len != count) {
            return Err(format!("{count} tokens have {len} {what}"));
        }
        if let Some(id) = [self.bos, self.eos].into_iter().flatten().find(|id| *id >= count_u32) {
            return Err(format!("the id of BOS or EOS is {id} of {count} tokens"));
        }
        let mut ids = HashMap::with_capacity(count);
        for (token, id) in self.tokens.iter().zip(0..count_u32) {
            if let Some(other) = ids.insert(token.as_str(), id) {
                return Err(format!("tokens {other} and {id} are both `{token}`"));
            }
        }
        Ok(ids)
    }

    fn kind(&self, id: u32) -> i32 {
        self.token_types.get(id as usize).copied().unwrap_or(NORMAL)
    }

    /// The tokens that are recognized in a text before it is split.
    fn added_tokens(&self) -> Vec<Value> {
        let flags =
            json!({ "single_word": false, "lstrip": false, "rstrip": false, "normalized": false });
        let added = self
            .tokens
            .iter()
            .zip(0u32..)
            .filter(|(_, id)| matches!(self.kind(*id), UNKNOWN | CONTROL | USER_DEFINED));
        let entry = |(content, id): (&String, u32)| {
            let mut entry = flags.clone();
            entry["id"] = id.into();
            entry["content"] = content.as_str().into();
            entry["special"] = (self.kind(id) != USER_DEFINED).into();
            entry
        };
        added.map(entry).collect()
    }

    fn byte_level(&self, ids: &HashMap<&str, u32>) -> Result<(Parts, bool), String> {
        let split = self.split()?;
        let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
        let pieces = json!({ "type": "Split", "pattern": { "Regex": split.regex }, "behavior": "Isolated", "invert": false });
        let merges = self
            .merges
            .iter()
            .map(|merge| read_merge(merge, ids))
            .collect::<Result<Vec<_>, _>>()?;
        let parts = vec![
            ("pre_tokenizer", json!({ "type": "Sequence", "pretokenizers": [pieces, bytes] })),
            ("decoder", bytes),
            ("model", json!({ "ignore_merges": split.ignore_merges, "merges": merges })),
        ];
        Ok((parts, split.add_bos))
    }

    fn split(&self) -> Result<&'static Split, String> {
        // Files of older converters, bitnet.cpp's among them, name none.
        let Some(name) = self.pre.as_deref().filter(|name| *name != "default") else {
            log::warn!("the file names no pre-tokenizer; llama-bpe is used");
            return Ok(&LLAMA_3);
        };
        let known = SPLITS.iter().find(|(names, _)| names.contains(&name)).map(|(_, split)| split);
        known.ok_or_else(|| {
            let names = SPLITS
                .iter()
                .flat_map(|(names, _)| *names)
                .copied()
                .collect::<Vec<_>>()
                .join("`, `");
            format!("tokenizer.ggml.pre `{name}` is not supported (`{names}` are)")
        })
    }

    fn sentence_piece(&self, ids: &HashMap<&str, u32>) -> Result<Parts, String> {
        // Every way to cut a token in two is tried, so a hostile long token could take hours.
        // SentencePiece's have at most 16 characters.
        if let Some((token, id)) = ids.iter().find(|(token, _)| token.len() > MOST_CONTENT) {
            return Err(format!(
                "token {id} has {} bytes; at most {MOST_CONTENT} are supported",
                token.len()
            ));
        }
        let scores = self.scores.as_deref().ok_or("a SentencePiece vocabulary needs scores")?;
        // Of several, the first: the order of a map is another in every process.
        let unknown = self
            .tokens
            .iter()
            .zip(0..)
            .find(|(_, id)| self.kind(*id) == UNKNOWN)
            .map(|(token, _)| token);
        let space = json!({ "String": " " });
        let mut normalizers = vec![json!({ "type": "Replace", "pattern": space, "content": "▁" })];
        let mut decoders = vec![
            json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " }),
            json!({ "type": "ByteFallback" }),
            json!({ "type": "Fuse" }),
        ];
        if self.add_space_prefix.unwrap_or(true) {
            normalizers.insert(0, json!({ "type": "Prepend", "prepend": "▁" }));
            decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
        }
        let merges = self.scored_merges(ids, scores);
        Ok(vec![
            ("normalizer", json!({ "type": "Sequence", "normalizers": normalizers })),
            ("decoder", json!({ "type": "Sequence", "decoders": decoders })),
            (
                "model",
                json!({ "unk_token": unknown, "fuse_unk": true, "byte_fallback": true, "merges": merges }),
            ),
        ])
    }

    /// All ways to cut a token in two tokens, of the tokens that have a rank.
    pub(super) fn cuts(
        &self,
        ranks: &HashMap<String, usize>,
    ) -> BTreeMap<usize, HashSet<(&str, &str)>> {
        let kinds = self.tokens.iter().map(String::as_str).zip(self.token_types.iter().copied());
        let normal: HashSet<&str> =
            kinds.filter(|(_, kind)| *kind == NORMAL).map(|(token, _)| token).collect();
        let mut cuts: BTreeMap<usize, HashSet<(&str, &str)>> = BTreeMap::new();
        for token in &normal {
            let two = token
                .char_indices()
                .skip(1)
                .map(|(at, _)| token.split_at(at))
                .filter(|(a, b)| normal.contains(a) && normal.contains(b));
            for pair in two {
                // One that no merge makes has no rank: beyond all others.
                cuts.entry(ranks.get(*token).copied().unwrap_or(usize::MAX))
                    .or_default()
                    .insert(pair);
            }
        }
        cuts
    }

    /// Merges that are equivalent to SentencePiece, which joins the two neighbors whose joint
    /// token has the highest score: one merge for every way to cut a token in two, ordered by the
    /// token's score.
    fn scored_merges<'a>(
        &self,
        ids: &HashMap<&'a str, u32>,
        scores: &[f32],
    ) -> Vec<(&'a str, &'a str)> {
        let normal = |token: &&str| ids.get(token).is_some_and(|id| self.kind(*id) == NORMAL);
        let mut merges = Vec::new();
        for (&token, &id) in ids.iter().filter(|(_, id)| self.kind(**id) == NORMAL) {
            let cuts = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
            merges.extend(
                cuts.filter(|(a, b)| normal(a) && normal(b))
                    .map(|(a, b)| (scores[id as usize], (ids[a], ids[b]), (a, b))),
            );
        }
        merges.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        merges.into_iter().map(|(_, _, pair)| pair).collect()
    }
}

/// Top-level fields of a `tokenizer.json`.
type Parts = Vec<(&'static str, Value)>;

/// Splits the merge `a b`, if `a`, `b` and `ab` are tokens.
fn read_merge<'a>(merge: &'a str, ids: &HashMap<&str, u32>) -> Result<(&'a str, &'a str), String> {
    let known = |token: &str| ids.contains_key(token);
    match merge.split_once(' ') {
        Some((a, b)) if known(a) && known(b) && known(&format!("{a}{b}")) => Ok((a, b)),
        _ => Err(format!("the merge `{merge}` does not join two tokens into a third")),
    }
}

fn error(message: String) -> Error {
    Error::Tokenizer { message }
}
