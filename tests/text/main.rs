//! Tokenizers against transformers and sentencepiece; chat templates of models; damaged and hostile
//! files.

mod bounds;
mod chat;
mod contents;
mod gguf;
mod grammar;
mod stream;
mod tokenizer;
mod tools;

use bitnet_wgpu::model::{LocalTime, Message, ReasoningParser, TextStream, Tokenizer};
use bitnet_wgpu::{Error, Result, formats::GgufVocabulary, internals::TokenizerInternals as _};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::Path;
use std::{collections::BTreeSet, fs, sync::LazyLock};
use support::{Golden, cases};

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
        directory
            .write("tokenizer.json", fs::read(Path::new(TALES).join("tokenizer.json")).unwrap());
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
        Err(
            Error::Tokenizer { message }
            | Error::ChatTemplate { message }
            | Error::Format { message, .. },
        ) => message,
        other => panic!("{other:?}"),
    }
}

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
    GgufVocabulary {
        model,
        pre,
        tokens,
        token_types,
        merges,
        bos: Some(2046),
        eos: Some(2047),
        ..Default::default()
    }
}

static SENTENCE_PIECE: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_gguf(&sentence_piece()).unwrap());

fn sentence_piece() -> GgufVocabulary {
    let json = data("sentencepiece.json");
    let array = |key: &str| json[key].as_array().unwrap().clone();
    GgufVocabulary {
        model: "llama".into(),
        tokens: array("tokens").iter().map(|token| token.as_str().unwrap().into()).collect(),
        token_types: array("token_types")
            .iter()
            .map(|kind| kind.as_i64().unwrap() as i32)
            .collect(),
        scores: Some(array("scores").iter().map(|score| score.as_f64().unwrap() as f32).collect()),
        bos: Some(json["bos"].as_u64().unwrap() as u32),
        eos: Some(json["eos"].as_u64().unwrap() as u32),
        ..Default::default()
    }
}

fn with_template(template: &str) -> Tokenizer {
    TOKENIZER.with_chat_template(template)
}

fn user(content: &str) -> [Message; 1] {
    [Message::new("user", content)]
}
