//! Metadata of a GGUF file that is written: the graph and the tokenizer.

use super::{
    blocks::GgufType,
    value::Kind,
    vocabulary::{ENDS, GgufVocabulary},
};
use crate::formats::{
    checkpoint::Checkpoint,
    config::ModelConfig,
    embedding::Pooling,
    family::{Architecture, RotaryOrder},
    format_error::{FormatError, unsupported},
    rope::{RopeScaling, yarn_attention},
};
use std::{collections::HashSet, path::Path};

/// Keys and their values, as the file has them.
#[derive(Default)]
pub(super) struct Metadata {
    pub bytes: Vec<u8>,
    pub count: u64,
}

pub(super) fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

impl Metadata {
    fn put(&mut self, key: &str, kind: Kind) -> &mut Vec<u8> {
        self.count += 1;
        put_text(&mut self.bytes, key);
        self.bytes.extend((kind as u32).to_le_bytes());
        &mut self.bytes
    }

    fn text(&mut self, key: &str, text: &str) {
        put_text(self.put(key, Kind::String), text);
    }

    fn number(&mut self, key: &str, number: impl TryInto<u32>) {
        // Sizes and tokens are far below.
        self.put(key, Kind::U32).extend(number.try_into().unwrap_or(u32::MAX).to_le_bytes());
    }

    fn float(&mut self, key: &str, float: f32) {
        self.put(key, Kind::F32).extend(float.to_le_bytes());
    }

    fn flag(&mut self, key: &str, flag: Option<bool>) {
        if let Some(flag) = flag {
            self.put(key, Kind::Bool).push(flag.into());
        }
    }

    fn list<T>(&mut self, key: &str, kind: Kind, list: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
        let bytes = self.put(key, Kind::Array);
        bytes.extend((kind as u32).to_le_bytes());
        bytes.extend((list.len() as u64).to_le_bytes());
        list.iter().for_each(|element| put(bytes, element));
    }
}

pub(super) fn metadata(
    checkpoint: &Checkpoint,
    architecture: &Architecture,
    vocabulary: Option<&GgufVocabulary>,
    kind: GgufType,
) -> Result<Metadata, FormatError> {
    let mut metadata = Metadata::default();
    metadata.text("general.architecture", architecture.name);
    if let Some(name) = checkpoint
        .path()
        .canonicalize()
        .ok()
        .as_deref()
        .and_then(Path::file_name)
        .and_then(|name| name.to_str())
    {
        metadata.text("general.name", name);
    }
    metadata.number("general.quantization_version", 2u32);
    // As llama.cpp numbers what most tensors of a file are.
    metadata.number(
        "general.file_type",
        match kind {
            GgufType::Tq2_0 => 37u32,
            GgufType::Q2_0 => 41,
            other => {
                return unsupported(format!(
                    "cannot be written as {other}; TQ2_0 and Q2_0 are supported"
                ));
            }
        },
    );
    graph(&mut metadata, architecture, checkpoint.config())?;
    tokens(&mut metadata, checkpoint.config(), vocabulary)?;
    Ok(metadata)
}

/// The keys of the model's graph.
fn graph(
    metadata: &mut Metadata,
    architecture: &Architecture,
    c: &ModelConfig,
) -> Result<(), FormatError> {
    let key = |name: &str| architecture.key(name);
    let sizes = [
        ("vocab_size", c.vocab),
        ("context_length", c.context),
        ("embedding_length", c.hidden),
        ("block_count", c.layers),
        ("feed_forward_length", c.intermediate),
        ("attention.head_count", c.heads),
        ("attention.head_count_kv", c.kv_heads),
        ("attention.key_length", c.head_dim),
        ("attention.value_length", c.head_dim),
        ("rope.dimension_count", c.head_dim),
    ];
    sizes.into_iter().for_each(|(name, size)| metadata.number(&key(name), size));
    metadata.float(&key("attention.layer_norm_rms_epsilon"), c.eps);
    metadata.float(&key("rope.freq_base"), c.rope_theta);
    if c.family().scale_keys {
        let scales = [
            ("embedding_scale", c.embedding_scale),
            ("residual_scale", c.residual_scale),
            ("logit_scale", 1.0 / c.logit_scale),
        ];
        scales.into_iter().for_each(|(name, scale)| metadata.float(&key(name), scale));
        if c.query_scale != 1.0 {
            let scale = c.query_scale / (c.head_dim as f32).sqrt();
            metadata.float(&key("attention.scale"), scale);
        }
    }
    embedding(metadata, architecture, c)?;
    rope_scaling(metadata, architecture, c)
}

/// The keys of embeddings.
fn embedding(
    metadata: &mut Metadata,
    architecture: &Architecture,
    c: &ModelConfig,
) -> Result<(), FormatError> {
    if let Some(what) = &c.embedding.unsupported {
        return unsupported(format!(
            "makes embeddings in a way that GGUF files cannot store: {what}"
        ));
    }
    if c.embedding.normalize == Some(false) {
        return unsupported("does not normalize its embeddings, which GGUF files cannot store");
    }
    let kind = match c.embedding.pooling {
        Some(Pooling::Mean) => 1u32,
        Some(Pooling::Cls) => 2,
        Some(Pooling::Last) => 3,
        None => return Ok(()),
    };
    metadata.number(&architecture.key("pooling_type"), kind);
    Ok(())
}

/// The keys of rotary scaling.
fn rope_scaling(
    metadata: &mut Metadata,
    architecture: &Architecture,
    c: &ModelConfig,
) -> Result<(), FormatError> {
    let key = |name: &str| architecture.key(&format!("rope.scaling.{name}"));
    match c.rope_scaling {
        RopeScaling::None => {}
        RopeScaling::Linear(factor) => {
            metadata.text(&key("type"), "linear");
            metadata.float(&key("factor"), factor);
        }
        RopeScaling::Yarn { factor, context, attention, fast, slow, truncate: true } => {
            metadata.text(&key("type"), "yarn");
            metadata.number(&key("original_context_length"), context as usize);
            let usual = yarn_attention(factor, 1.0);
            let floats = [
                ("factor", factor),
                ("attn_factor", attention / usual),
                ("yarn_beta_fast", fast),
                ("yarn_beta_slow", slow),
            ];
            floats.into_iter().for_each(|(name, float)| metadata.float(&key(name), float));
        }
        // What is the same for all texts is so whatever the original context was.
        RopeScaling::LongRope { attention } if architecture.rotary == RotaryOrder::Pairs => {
            metadata.text(&key("type"), "longrope");
            metadata.number(&key("original_context_length"), c.context);
            metadata.float(&key("attn_factor"), attention);
        }
        other => {
            return unsupported(format!(
                "has the rotary scaling {other}, which is not written to GGUF files"
            ));
        }
    }
    Ok(())
}

fn token_key(name: &str) -> String {
    format!("tokenizer.ggml.{name}")
}

fn tokens(
    metadata: &mut Metadata,
    c: &ModelConfig,
    vocabulary: Option<&GgufVocabulary>,
) -> Result<(), FormatError> {
    token_ids(metadata, c, vocabulary)?;
    let Some(v) = vocabulary else {
        metadata.text(&token_key("model"), NO_VOCABULARY);
        return Ok(());
    };
    if v.tokens.len() > c.vocab {
        return Err(format!(
            "has {} tokens in its tokenizer, {} in its configuration",
            v.tokens.len(),
            c.vocab
        )
        .into());
    }
    metadata.text(&token_key("model"), &v.model);
    if let Some(pre) = &v.pre {
        metadata.text(&token_key("pre"), pre);
    }
    token_lists(metadata, c, v)?;
    if !v.merges.is_empty() {
        metadata.list(&token_key("merges"), Kind::String, &v.merges, |bytes, merge| {
            put_text(bytes, merge)
        });
    }
    let flags = [
        ("add_bos_token", v.add_bos),
        ("add_eos_token", v.add_eos),
        ("add_space_prefix", v.add_space_prefix),
    ];
    flags.into_iter().for_each(|(name, flag)| metadata.flag(&token_key(name), flag));
    if let Some(template) = &v.chat_template {
        metadata.text("tokenizer.chat_template", template);
    }
    Ok(())
}

/// The tokens that begin and end a text.
fn token_ids(
    metadata: &mut Metadata,
    c: &ModelConfig,
    vocabulary: Option<&GgufVocabulary>,
) -> Result<(), FormatError> {
    let eos = vocabulary.and_then(|vocabulary| vocabulary.eos).or(c.eos.first().copied());
    // Some are known by their names.
    let named = |id: u32| {
        vocabulary
            .and_then(|v| v.tokens.get(id as usize))
            .is_some_and(|token| ENDS.contains(&token.as_str()))
    };
    let others: Vec<u32> = c.eos.iter().copied().filter(|&id| Some(id) != eos).collect();
    let nameless: Vec<u32> = others.iter().copied().filter(|&id| !named(id)).collect();
    if nameless.len() > 1 {
        return unsupported(format!(
            "has the end-of-sequence tokens {:?}; a GGUF file can name two",
            c.eos
        ));
    }
    let eot = nameless.first().or(others.first()).copied();
    let ids = [
        ("bos", vocabulary.and_then(|vocabulary| vocabulary.bos).or(c.bos)),
        ("eos", eos),
        ("eot", eot),
    ];
    for (name, id) in ids {
        if let Some(id) = id {
            metadata.number(&token_key(&format!("{name}_token_id")), id);
        }
    }
    Ok(())
}

/// The tokens with their types and scores.
fn token_lists(
    metadata: &mut Metadata,
    c: &ModelConfig,
    v: &GgufVocabulary,
) -> Result<(), FormatError> {
    // As many as the embedding has rows, which llama.cpp needs.
    let added = v.tokens.len()..c.vocab;
    let unused: HashSet<String> = added.clone().map(unused_token).collect();
    if let Some(token) = v.tokens.iter().find(|token| unused.contains(*token)) {
        return unsupported(format!(
            "has the token `{token}`; GGUF files use this name for unused tokens"
        ));
    }
    let texts: Vec<String> =
        v.tokens.iter().cloned().chain(added.clone().map(unused_token)).collect();
    let kinds = (0..v.tokens.len())
        .map(|id| v.token_types.get(id).copied().unwrap_or(NORMAL))
        .chain(added.clone().map(|_| UNUSED));
    metadata.list(&token_key("tokens"), Kind::String, &texts, |bytes, text| put_text(bytes, text));
    metadata.list(
        &token_key("token_type"),
        Kind::I32,
        &kinds.collect::<Vec<_>>(),
        |bytes, kind| bytes.extend(kind.to_le_bytes()),
    );
    if let Some(scores) = &v.scores {
        let scores: Vec<f32> = scores.iter().copied().chain(added.map(|_| 0.0)).collect();
        metadata.list(&token_key("scores"), Kind::F32, &scores, |bytes, score| {
            bytes.extend(score.to_le_bytes())
        });
    }
    Ok(())
}

/// What a file without a tokenizer has as its model.
pub(crate) const NO_VOCABULARY: &str = "no_vocab";
/// The type of a usual token, and of one that does not occur.
const NORMAL: i32 = 1;
const UNUSED: i32 = 5;

/// The text of a token that does not occur, which has none of its own.
pub(crate) fn unused_token(id: usize) -> String {
    format!("[PAD{id}]")
}
