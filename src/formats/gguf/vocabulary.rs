//! The tokenizer's part of the metadata.

use super::{
    file::GgufFile,
    value::{GgufValue, show},
};
use crate::visibility::internal_fields;

/// Tokens that end a turn of a chat, and one that ends a text where EOS is that of a turn. GGUF
/// names a single EOS.
pub(crate) const ENDS: [&str; 4] = ["<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|endoftext|>"];

internal_fields! {
    /// A tokenizer as a GGUF file's metadata describes it, for
    /// [`write_gguf`](crate::formats::write_gguf).
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct GgufVocabulary {}
    internals {
        /// The kind of tokenizer: `gpt2` for byte-level BPE, `llama` for SentencePiece.
        model: String,
        /// The name of the rule that splits text before BPE (`llama-bpe`, ...).
        pre: Option<String>,
        /// The text of every token.
        tokens: Vec<String>,
        /// One per token, or empty: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6
        /// byte.
        token_types: Vec<i32>,
        /// BPE merges by falling priority, each two token texts with a space between.
        merges: Vec<String>,
        /// SentencePiece scores, one per token.
        scores: Option<Vec<f32>>,
        /// The token that begins a text.
        bos: Option<u32>,
        /// The token that ends a text.
        eos: Option<u32>,
        /// Whether a text begins with `bos`.
        add_bos: Option<bool>,
        /// Whether a text that is embedded ends with `eos`.
        add_eos: Option<bool>,
        /// Whether a space is put before a text (SentencePiece). `None` means yes.
        add_space_prefix: Option<bool>,
        /// The chat template, in Jinja.
        chat_template: Option<String>,
    }
}

pub(super) fn read(file: &GgufFile, vocab: usize) -> Result<GgufVocabulary, String> {
    let tokens = array(file, "tokenizer.ggml.tokens", |value| value.as_str().map(str::to_owned))?
        .ok_or("has no tokenizer.ggml.tokens")?;
    if tokens.len() > vocab {
        return Err(format!(
            "tokenizer.ggml.tokens has {} tokens, the model {vocab}",
            tokens.len()
        ));
    }
    let token_types = array(file, "tokenizer.ggml.token_type", |value| {
        value.as_i64().and_then(|kind| i32::try_from(kind).ok())
    })?;
    let scores =
        array(file, "tokenizer.ggml.scores", |value| value.as_f64().map(|score| score as f32))?;
    for (key, length) in [
        ("token_type", token_types.as_ref().map(Vec::len)),
        ("scores", scores.as_ref().map(Vec::len)),
    ] {
        if let Some(length) = length.filter(|&length| length != tokens.len()) {
            return Err(format!(
                "tokenizer.ggml.{key} has {length} elements for {} tokens",
                tokens.len()
            ));
        }
    }
    let id = |name: &str| {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let id = one(file, &key, |value| value.as_u64())?;
        match id.filter(|&id| id >= vocab as u64) {
            Some(id) => Err(format!("{key} is {id}; the model has {vocab} tokens")),
            None => Ok(id.map(|id| id as u32)),
        }
    };
    let text = |key: &str| one(file, key, |value| value.as_str().map(str::to_owned));
    Ok(GgufVocabulary {
        model: text("tokenizer.ggml.model")?.ok_or("has no tokenizer.ggml.model")?,
        pre: text("tokenizer.ggml.pre")?,
        token_types: token_types.unwrap_or_default(),
        merges: array(file, "tokenizer.ggml.merges", |value| value.as_str().map(str::to_owned))?
            .unwrap_or_default(),
        scores,
        bos: id("bos")?,
        eos: id("eos")?,
        add_bos: one(file, "tokenizer.ggml.add_bos_token", |value| value.as_bool())?,
        add_eos: one(file, "tokenizer.ggml.add_eos_token", |value| value.as_bool())?,
        add_space_prefix: one(file, "tokenizer.ggml.add_space_prefix", |value| value.as_bool())?,
        chat_template: text("tokenizer.chat_template")?,
        tokens,
    })
}

fn one<T>(
    file: &GgufFile,
    key: &str,
    read: impl Fn(GgufValue<'_>) -> Option<T>,
) -> Result<Option<T>, String> {
    let Some(value) = file.get(key) else { return Ok(None) };
    read(value)
        .map(Some)
        .ok_or_else(|| format!("{key} is {}, a value of the wrong type", show(value)))
}

fn array<T>(
    file: &GgufFile,
    key: &str,
    read: impl Fn(GgufValue<'_>) -> Option<T>,
) -> Result<Option<Vec<T>>, String> {
    let Some(array) = one(file, key, |value| {
        value.as_array().map(|array| array.iter().map(&read).collect::<Option<Vec<T>>>())
    })?
    else {
        return Ok(None);
    };
    array.map(Some).ok_or_else(|| format!("{key} has elements of another type than it should"))
}
