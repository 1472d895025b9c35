//! A package: a folder with the model, its weights, and a manifest.

use crate::{
    blob::BlobWriter,
    error::{Error, Result, at},
    graph::{DECODE, PREFILL, Port, Shape, block},
    mil::{state_type, tensor_type},
    proto::{
        ArrayFeature, ArrayType, DataType, Feature, FeatureDescription, FeatureType, Function,
        FunctionDescription, Metadata, Model, ModelDescription, NamedValueType, Program,
        StateFeature,
    },
    support::check,
    weights::StoredModel,
};
use bitnet_wgpu::formats::{ModelConfig, ModelFile};
use prost::Message as _;
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Core ML's version of macOS 15 and iOS 18, the first with states and two-bit tables.
const SPECIFICATION: i32 = 9;
/// The set of operations of that version.
const OPSET: &str = "CoreML8";
/// A package's folder of files, and the one of weights in it.
pub(crate) const FOLDER: &str = "Data/com.apple.CoreML";
const WEIGHTS: &str = "weights";
/// Identifiers in the manifest. They need to differ from each other only.
const MODEL_ITEM: &str = "7D9B4B0E-4C55-4F0B-9C0B-6B1E5B1C6E01";
const WEIGHTS_ITEM: &str = "7D9B4B0E-4C55-4F0B-9C0B-6B1E5B1C6E02";

/// Sizes of an exported program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportOptions {
    /// Tokens that the KV cache has room for; none is the model's context, up to 2048.
    pub context: Option<usize>,
    /// Tokens of a prefill chunk.
    pub prefill: usize,
    /// Whether an existing package is overwritten.
    pub force: bool,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self { context: None, prefill: 64, force: false }
    }
}

impl ExportOptions {
    /// Sets the number of tokens that the KV cache has room for.
    #[must_use]
    pub fn context(mut self, context: Option<usize>) -> Self {
        self.context = context;
        self
    }

    /// Sets the number of tokens of a prefill chunk.
    #[must_use]
    pub fn prefill(mut self, prefill: usize) -> Self {
        self.prefill = prefill;
        self
    }

    /// Sets whether an existing package is overwritten.
    #[must_use]
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// The room of the KV cache, in tokens.
    ///
    /// # Errors
    /// [`Error::Setting`].
    fn checked_context(&self, config: &ModelConfig) -> Result<usize> {
        /// A mask has as many numbers for each token of a chunk.
        const USUAL: usize = 2048;
        let context = self.context.unwrap_or(config.context.min(USUAL));
        if context == 0 || context > config.context {
            let accepted = format!("1 to the model's {} tokens are possible", config.context);
            return Err(Error::Setting { name: "the context", value: context, accepted });
        }
        if self.prefill == 0 || self.prefill > context {
            let accepted = format!("1 to the context's {context} tokens are possible");
            let (name, value) = ("the prefill chunk", self.prefill);
            return Err(Error::Setting { name, value, accepted });
        }
        Ok(context)
    }
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exported {
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes of the program.
    pub program_bytes: u64,
    /// Tokens that the KV cache has room for.
    pub context: usize,
    /// Tokens of a prefill chunk.
    pub prefill: usize,
    /// Bytes of the KV cache.
    pub cache_bytes: u64,
}

/// Writes a model as the package `output`, a folder. `inputs` are the model's files, which are not
/// overwritten. `progress` gets the layers that are written, and their number. The package is
/// complete under its name, or what was there stays.
///
/// # Errors
/// [`Error::Exists`] without [`ExportOptions::force`], [`Error::NoPackage`],
/// [`Error::Unsupported`], [`Error::Setting`], [`Error::Io`], and [`Error::Library`] for tensors
/// that cannot be read.
pub fn export(
    model: &dyn ModelFile,
    output: impl AsRef<Path>,
    inputs: &[PathBuf],
    options: ExportOptions,
    mut progress: impl FnMut(usize, usize),
) -> Result<Exported> {
    let (config, output) = (model.config(), output.as_ref());
    check(config)?;
    let context = options.checked_context(config)?;
    check_output(output, inputs, options.force)?;
    let parent = match output.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    at(parent, fs::create_dir_all(parent))?;
    let mut prefix = output.file_name().unwrap_or_default().to_owned();
    prefix.push(".");
    let mut partial = tempfile::Builder::new();
    let partial = at(output, partial.prefix(&prefix).suffix(".partial").tempdir_in(parent))?;
    let folder = partial.path().join(FOLDER);
    at(&folder, fs::create_dir_all(folder.join(WEIGHTS)))?;
    let mut writer = BlobWriter::create(&folder.join(WEIGHTS).join("weight.bin"))?;
    let stored = StoredModel::write(model, context, &mut writer, &mut progress)?;
    let weight_bytes = writer.finish()?;
    let program = program(config, &stored, context, options.prefill).encode_to_vec();
    write(&folder.join("model.mlmodel"), &program)?;
    write(&partial.path().join("Manifest.json"), manifest().as_bytes())?;
    replace(partial, output, parent, &prefix)?;
    let cache = 2 * config.layers * config.kv_heads * context * config.head_dim;
    Ok(Exported {
        weight_bytes,
        program_bytes: program.len() as u64,
        context,
        prefill: options.prefill,
        cache_bytes: 2 * cache as u64,
    })
}

/// Checks that an output may be written.
fn check_output(output: &Path, inputs: &[PathBuf], force: bool) -> Result<()> {
    let Ok(metadata) = fs::symlink_metadata(output) else { return Ok(()) };
    // Whoever wants a package removed has one there. It is none of the model's own files, then.
    let is_package = metadata.is_dir() && output.join("Manifest.json").is_file();
    let own = output.canonicalize().ok();
    let is_input = inputs.iter().any(|input| {
        let input = input.canonicalize().ok();
        input.is_some_and(|input| own.as_ref().is_some_and(|own| input.starts_with(own)))
    });
    match (is_package && !is_input, force) {
        (false, _) if force || !metadata.is_dir() => Err(Error::NoPackage { path: output.into() }),
        (_, false) => Err(Error::Exists { path: output.into() }),
        _ => Ok(()),
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    Ok(bitnet_wgpu::internals::files::write(path, bytes)?)
}

/// Renames a complete folder to the output. What is there is renamed first, and removed last.
fn replace(
    partial: tempfile::TempDir,
    output: &Path,
    parent: &Path,
    prefix: &std::ffi::OsStr,
) -> Result<()> {
    let old = if output.exists() {
        let mut place = tempfile::Builder::new();
        let place = at(output, place.prefix(prefix).suffix(".old").tempdir_in(parent))?;
        at(output, fs::rename(output, place.path().join("old")))?;
        Some(place)
    } else {
        None
    };
    let renamed = open_to_all(partial.path()).and_then(|()| fs::rename(partial.path(), output));
    if let (Err(_), Some(old)) = (&renamed, &old) {
        at(output, fs::rename(old.path().join("old"), output))?;
    }
    at(output, renamed)?;
    // It is under another name now.
    let _ = partial.keep();
    Ok(())
}

/// Gives a folder the rights of usual ones; temporary ones are their owner's only.
fn open_to_all(folder: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let _ = folder;
    Ok(())
}

/// What names the files of a package.
fn manifest() -> String {
    let item = |name: &str, description: &str| {
        json!({
            "author": "com.apple.CoreML",
            "description": description,
            "name": name,
            "path": format!("com.apple.CoreML/{name}"),
        })
    };
    let manifest = json!({
        "fileFormatVersion": "1.0.0",
        "itemInfoEntries": {
            MODEL_ITEM: item("model.mlmodel", "CoreML Model Specification"),
            WEIGHTS_ITEM: item(WEIGHTS, "CoreML Model Weights"),
        },
        "rootModelIdentifier": MODEL_ITEM,
    });
    format!("{manifest:#}\n")
}

/// The model file of both functions.
pub(crate) fn program(
    config: &ModelConfig,
    stored: &StoredModel,
    context: usize,
    prefill: usize,
) -> Model {
    let shape = |tokens, picks_row| Shape { config, tokens, context, picks_row };
    let functions = [(DECODE, shape(1, false)), (PREFILL, shape(prefill, true))];
    let described = functions.iter().map(|(name, shape)| description(name, shape)).collect();
    let built = functions.iter().map(|(name, shape)| ((*name).to_owned(), function(shape, stored)));
    let eos: Vec<String> = config.eos.iter().map(ToString::to_string).collect();
    let user_defined = [
        ("context".to_owned(), context.to_string()),
        ("prefill".to_owned(), prefill.to_string()),
        ("eos".to_owned(), eos.join(",")),
    ];
    Model {
        specification_version: SPECIFICATION,
        description: Some(ModelDescription {
            functions: described,
            default_function_name: DECODE.into(),
            metadata: Some(Metadata {
                short_description: format!("A ternary {} model", config.architecture),
                version: env!("CARGO_PKG_VERSION").into(),
                user_defined: user_defined.into(),
            }),
        }),
        ml_program: Some(Program { version: 1, functions: built.collect() }),
    }
}

fn function(shape: &Shape<'_>, stored: &StoredModel) -> Function {
    let input = |port: Port| NamedValueType {
        name: port.name.into(),
        r#type: Some(tensor_type(port.data_type, &port.shape)),
    };
    let state = |port: Port| NamedValueType {
        name: port.name.into(),
        r#type: Some(state_type(port.data_type, &port.shape)),
    };
    let inputs = shape.inputs().into_iter().map(input);
    Function {
        inputs: inputs.chain(shape.states().into_iter().map(state)).collect(),
        opset: OPSET.into(),
        block_specializations: [(OPSET.to_owned(), block(shape, stored))].into(),
    }
}

fn description(name: &str, shape: &Shape<'_>) -> FunctionDescription {
    let array = |port: &Port| ArrayFeature {
        shape: port.shape.iter().map(|&size| size as i64).collect(),
        data_type: match port.data_type {
            DataType::Int32 => ArrayType::Int32,
            DataType::Float16 => ArrayType::Float16,
            _ => ArrayType::Float32,
        }
        .into(),
    };
    let feature = |port: Port, feature| FeatureDescription {
        name: port.name.into(),
        short_description: port.meaning.into(),
        r#type: Some(FeatureType { feature: Some(feature) }),
    };
    let plain = |port: Port| {
        let array = array(&port);
        feature(port, Feature::MultiArray(array))
    };
    let state = |port: Port| {
        let array = Some(array(&port));
        feature(port, Feature::State(StateFeature { array }))
    };
    FunctionDescription {
        name: name.into(),
        input: shape.inputs().into_iter().map(plain).collect(),
        output: vec![plain(shape.output())],
        state: shape.states().into_iter().map(state).collect(),
    }
}
