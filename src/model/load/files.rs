//! A model's files, before its weights are read.

use crate::{
    error::{Error, Result},
    formats::{
        self, Checkpoint, GgufModel, ModelConfig, ModelFile, ReadOptions,
        gguf::metadata::NO_VOCABULARY, input_files::input_files, prepacked::Prepacked,
    },
    model::{
        engine::layers::{HostEnds, HostLayer},
        generate::options::GenerateOptions,
        tokenizer::text::Tokenizer,
    },
};
use std::path::{Path, PathBuf};

/// A model's files, opened: its configuration and its tokenizer are known, its weights are not read
/// yet. So options and prompts can be checked before a load, which takes its time.
///
/// ```no_run
/// use bitnet_wgpu::model::{GenerateOptions, ModelFiles};
///
/// # fn main() -> bitnet_wgpu::Result<()> {
/// let files = ModelFiles::open("path/to/a/model")?;
/// let options = GenerateOptions::recommended(files.config()).max_tokens(100);
/// options.check(files.config().vocab)?;
/// let prompt = files.encode_prompt("Once upon a time")?;
/// let model = files.builder().cpu().build()?;
/// let story = model.generate_ids(&prompt, &options)?;
/// # Ok(())
/// # }
/// ```
pub struct ModelFiles {
    pub(crate) file: Box<dyn ModelFile>,
    pub(super) tokenizer: MaybeTokenizer,
    /// Absolute: the process may be in another folder when they are read again.
    pub(super) path: PathBuf,
    pub(super) read: ReadOptions,
}

/// A tokenizer, or why there is none: models take ids without one.
pub(crate) type MaybeTokenizer = std::result::Result<Tokenizer, String>;

impl ModelFiles {
    /// Opens a model directory, a GGUF file or a prepacked model file.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Format`], [`Error::Unsupported`]. What is wrong with a tokenizer is
    /// an error where text is used.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, ReadOptions::default())
    }

    /// [`ModelFiles::open`] with options for what the files do not say.
    ///
    /// # Errors
    /// As [`ModelFiles::open`].
    pub fn open_with(path: impl AsRef<Path>, read: ReadOptions) -> Result<Self> {
        let path = path.as_ref();
        let (file, tokenizer): (Box<dyn ModelFile>, _) = match formats::identify(path)? {
            formats::ModelFormat::Directory(directory) => {
                let tokenizer = tokenizer_in(&directory);
                (Box::new(Checkpoint::open(&directory)?.with_options(read)), tokenizer)
            }
            formats::ModelFormat::Gguf(path) => {
                let file = GgufModel::open(path)?.with_options(read);
                let named = file
                    .file()
                    .get("tokenizer.ggml.model")
                    .is_some_and(|model| model.as_str() != Some(NO_VOCABULARY));
                let tokenizer = named.then(|| Tokenizer::from_gguf(&file.vocabulary()?));
                (Box::new(file), tokenizer)
            }
            formats::ModelFormat::Prepacked => {
                let file = Prepacked::open(path)?.with_options(read);
                let tokenizer = file.tokenizer().transpose().map(|stored| {
                    stored.and_then(|(json, settings)| Tokenizer::from_stored(&json, settings))
                });
                (Box::new(file), tokenizer)
            }
        };
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Ok(Self { file, tokenizer: usable(tokenizer), path, read })
    }

    /// Returns the files that the model is read from: none of them is an output of a tool that
    /// reads it.
    ///
    /// # Errors
    /// As [`ModelFiles::open`].
    pub(crate) fn paths(&self) -> Result<Vec<PathBuf>> {
        input_files(&self.path)
    }

    /// Returns the configuration.
    pub fn config(&self) -> &ModelConfig {
        self.file.config()
    }

    /// As [`Model::tokenizer`](crate::model::Model::tokenizer).
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        tokenizer(&self.tokenizer)
    }

    /// As [`Model::encode_prompt`](crate::model::Model::encode_prompt).
    ///
    /// # Errors
    /// [`Error::Tokenizer`]; [`Error::TextTooLong`] for a text that cannot fit into the model's
    /// context; else as [`Tokenizer::encode`].
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<u32>> {
        encode_prompt(self.tokenizer()?, self.config(), prompt)
    }

    /// Checks a prompt and options as generating does.
    ///
    /// # Errors
    /// As [`Model::generate_ids`](crate::model::Model::generate_ids).
    pub fn check(&self, prompt: &[u32], options: &GenerateOptions) -> Result<()> {
        let c = config(&*self.file)?;
        options.check(c.vocab)?;
        if !options.stop.is_empty() {
            self.tokenizer()?;
        }
        if let Some(id) = prompt.iter().find(|&&id| id as usize >= c.vocab) {
            return Err(Error::Invalid {
                op: "generate",
                what: format!("token {id}; the vocabulary has {}", c.vocab),
            });
        }
        if let Some(constraint) = &options.constraint {
            constraint.begin(self.tokenizer()?, &[], &[]).map(drop)?;
        }
        options.room(1, prompt.len(), c.context).map(drop)
    }

    /// Returns the errors that loading would find: tensors that are not used, the configuration, the
    /// tensors outside the layers, and one error for each layer that has one. It reads all tensors,
    /// and so takes as long as loading them.
    pub(crate) fn problems(&self) -> impl Iterator<Item = Error> + '_ {
        let ends =
            || config(&*self.file).err().or_else(|| HostEnds::read(&*self.file, false).err());
        let layer = |layer| HostLayer::read(&*self.file, layer).err();
        let unused = || self.file.check_unused().err();
        std::iter::once_with(unused)
            .chain(std::iter::once_with(ends))
            .chain((0..self.config().layers).map(layer))
            .flatten()
    }
}

/// Returns the tokenizer of a model directory; none if it has no files of one.
fn tokenizer_in(directory: &Path) -> Option<Result<Tokenizer>> {
    if directory.join("tokenizer.json").exists() {
        return Some(Tokenizer::from_directory(directory));
    }
    directory.join("tokenizer.model").exists().then(|| {
        let message = "the model has tokenizer.model, which is not read, and no tokenizer.json: \
            `AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)` of transformers writes one";
        Err(Error::Tokenizer { message: message.into() })
    })
}

/// The configuration, if it is one that can be computed.
pub(crate) fn config(file: &dyn ModelFile) -> Result<ModelConfig> {
    let config =
        file.config().clone().checked().map_err(|what| Error::Invalid { op: "model", what })?;
    config.attention().check("model")?;
    Ok(config)
}

pub(crate) fn usable(tokenizer: Option<Result<Tokenizer>>) -> MaybeTokenizer {
    let tokenizer = tokenizer.unwrap_or_else(|| {
        Err(Error::Tokenizer { message: "the model came without one; it takes ids".into() })
    });
    tokenizer.map_err(|error| match error {
        Error::Tokenizer { message } => message,
        other => other.to_string(),
    })
}

pub(crate) fn tokenizer(tokenizer: &MaybeTokenizer) -> Result<&Tokenizer> {
    tokenizer.as_ref().map_err(|message| Error::Tokenizer { message: message.clone() })
}

/// The tokens of a text that is to be continued, and fits the context. An empty text is BOS,
/// whatever the tokenizer adds.
pub(crate) fn encode_prompt(
    tokenizer: &Tokenizer,
    config: &ModelConfig,
    prompt: &str,
) -> Result<Vec<u32>> {
    let mut ids = tokenizer.within(config.context).encode(prompt)?;
    if ids.is_empty() {
        ids.extend(config.bos);
    }
    Ok(ids)
}
