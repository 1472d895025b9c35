//! The files that a model consists of.

use super::{
    embedding::pooling_folders,
    gguf::file::GgufFile,
    open::{ModelFormat, identify},
    shards::Shards,
};
use crate::error::Result;
use std::path::{Path, PathBuf};

/// Files of a model directory beside its configuration and weights. Packing copies them unchanged.
pub(super) const COMPANIONS: [&str; 13] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
];

/// Returns the files of the model at `path`: the file itself, all parts of a split GGUF, or of a directory those that are read
/// or copied.
pub(crate) fn input_files(path: &Path) -> Result<Vec<PathBuf>> {
    let directory = match identify(path)? {
        ModelFormat::Directory(directory) => directory,
        ModelFormat::Gguf(file) => {
            return Ok(GgufFile::open(file)?.paths().map(Path::to_owned).collect());
        }
        ModelFormat::Prepacked => return Ok(vec![path.to_owned()]),
    };
    let names = ["config.json", "hadamard.json"]
        .map(PathBuf::from)
        .into_iter()
        .chain(companions(&directory)?);
    let files = names.map(|name| directory.join(name)).filter(|file| file.exists());
    Ok(files.chain(Shards::open(&directory)?.paths()).collect())
}

/// Returns the companions that a model directory has, by their paths in it, with the configurations
/// of poolings.
pub(super) fn companions(directory: &Path) -> Result<Vec<PathBuf>> {
    let poolings = pooling_folders(directory)?.into_iter().map(|folder| folder.join("config.json"));
    Ok(COMPANIONS
        .iter()
        .map(PathBuf::from)
        .chain(poolings)
        .filter(|name| directory.join(name).is_file())
        .collect())
}
