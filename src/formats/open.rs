//! Finding the reader that a path needs.

use super::{
    checkpoint::Checkpoint,
    file::InputFile,
    format_error::FormatError,
    gguf::model::GgufModel,
    model_file::ModelFile,
    prepacked::Prepacked,
    read_options::ReadOptions,
    stand_in::{START, stand_in},
};
use crate::{
    error::{Result, at},
    limits::files::MOST_JSON,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Format of a stored model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelFormat {
    /// A directory as transformers writes it; [`Checkpoint::open`] reads it.
    Directory(PathBuf),
    /// A GGUF file, which may be the only one of a directory. [`open`] reads the model in it,
    /// [`GgufFile`](super::GgufFile) its tensors.
    Gguf(PathBuf),
    /// A safetensors file, a prepacked model file:
    /// [`ModelBuilder::write_prepacked`](crate::model::ModelBuilder::write_prepacked) writes it; [`open`] reads it.
    Prepacked,
}

/// Returns the format of the model at a path: a directory (or the config.json in it), a GGUF file or
/// a prepacked model file. Files are recognized by their first bytes. A directory without
/// safetensors files and with one GGUF file is that file.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io); [`Error::Format`](crate::Error::Format) or
/// [`Error::Unsupported`](crate::Error::Unsupported) for anything else, which say what it is if
/// that is known.
pub fn identify(path: impl AsRef<Path>) -> Result<ModelFormat> {
    let path = path.as_ref();
    if path.is_dir() {
        return in_directory(path);
    }
    match (path.file_name(), path.parent()) {
        (Some(name), Some(directory)) if name == "config.json" => {
            Ok(ModelFormat::Directory(directory.to_owned()))
        }
        _ => by_first_bytes(path),
    }
}

fn by_first_bytes(path: &Path) -> Result<ModelFormat> {
    if !path.exists() && path.to_str().is_some_and(|path| path.contains("://")) {
        let problem =
            "is a URL, and not a path: download the model, and open the file or directory";
        return Err(FormatError::Unsupported(problem.into()).at(path));
    }
    let file = InputFile::open(path)?;
    let start = file.read(0, file.len().min(START))?;
    match start.split_first_chunk() {
        _ if start.starts_with(b"GGUF") => Ok(ModelFormat::Gguf(path.to_owned())),
        // A header of JSON, after its length.
        Some((&length, [b'{', ..])) if u64::from_le_bytes(length) <= MOST_JSON as u64 => {
            Ok(ModelFormat::Prepacked)
        }
        _ => {
            let unknown = || {
                "is not a model: a directory with a config.json, a GGUF file or a prepacked model file is needed".into()
            };
            Err(stand_in(&start).unwrap_or_else(unknown).at(path))
        }
    }
}

/// Returns the format of a directory, or of the only GGUF file in one without safetensors files.
fn in_directory(directory: &Path) -> Result<ModelFormat> {
    let format = ModelFormat::Directory(directory.to_owned());
    let entries = at(directory, fs::read_dir(directory))?;
    let files = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let (mut files, safetensors): (Vec<_>, Vec<_>) =
        files.partition(|name| !name.contains(".safetensors"));
    files.retain(|name| name.ends_with(".gguf") && !is_later_part(name));
    files.sort();
    match files.as_slice() {
        [only] if safetensors.is_empty() => Ok(ModelFormat::Gguf(directory.join(only))),
        [first, second, ..] if safetensors.is_empty() => {
            let count = files.len();
            let problem =
                format!("has {count} GGUF files, as {first} and {second}: open one of them");
            Err(FormatError::from(problem).at(directory))
        }
        _ => Ok(format),
    }
}

/// Returns whether a file's name is that of a part of a split model, but of the first one:
/// `NAME-00002-of-00003.gguf`.
fn is_later_part(name: &str) -> bool {
    let parts = name.strip_suffix(".gguf").and_then(|name| name.rsplit_once("-of-"));
    let number = parts.and_then(|(name, _)| name.rsplit_once('-')?.1.parse::<u32>().ok());
    number.is_some_and(|number| number > 1)
}

/// Opens a model in any supported format.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io), [`Error::Format`](crate::Error::Format),
/// [`Error::Unsupported`](crate::Error::Unsupported).
pub fn open(path: impl AsRef<Path>) -> Result<Box<dyn ModelFile>> {
    open_with(path, ReadOptions::default())
}

/// [`open`] with options for what the files do not say.
///
/// # Errors
/// As [`open`].
pub fn open_with(path: impl AsRef<Path>, read: ReadOptions) -> Result<Box<dyn ModelFile>> {
    Ok(match identify(path.as_ref())? {
        ModelFormat::Directory(directory) => {
            Box::new(Checkpoint::open(directory)?.with_options(read))
        }
        ModelFormat::Gguf(file) => Box::new(GgufModel::open(file)?.with_options(read)),
        ModelFormat::Prepacked => Box::new(Prepacked::open(path)?.with_options(read)),
    })
}
