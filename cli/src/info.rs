//! `bitnet info`: a model's architecture and tensors, and whether it is supported.

use crate::{
    counted,
    model::{FileArgs, progress, resolve},
    say, text,
};
use anyhow::{Result, bail};
use bitnet_wgpu::{
    formats::{GgufFile, ModelConfig},
    internals::{
        ModelConfigInternals as _, ModelFilesInternals as _, ModelFormat, SafeTensors,
        files::display, identify,
    },
    model::ModelFiles,
};
use clap::Args;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
};

/// Shows a model's architecture and tensors, and what is not supported
///
/// A model that is not supported is no failure of this command.
#[derive(Args)]
pub struct Info {
    /// Model directory, GGUF file, prepacked model file, or name on the Hugging Face hub
    model: PathBuf,
    /// Do not read the weights to check that all of them can be loaded
    #[arg(long)]
    quick: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Model files")]
    how: FileArgs,
}

/// A tensor as it is stored.
struct Stored {
    name: String,
    kind: String,
    shape: Vec<usize>,
    /// None for an unknown type.
    bytes: Option<u64>,
}

impl Info {
    pub fn run(self) -> Result<()> {
        let path = resolve(&self.model)?;
        let (kind, tensors) = stored(&path)?;
        // An unsupported model is shown, so this is no error.
        let files = ModelFiles::open_with(&path, self.how.options()).map_err(anyhow::Error::from);
        let problems = match &files {
            Err(error) => vec![text(error)],
            Ok(_) if self.quick => Vec::new(),
            Ok(files) => problems(files),
        };
        let files = files.ok();
        if self.json {
            let mut object = object(&path, kind, files.as_ref(), &tensors);
            object["checked"] = (!self.quick).into();
            object["problems"] = problems.into();
            say(format!("{object}\n"))?;
            return Ok(());
        }
        let mut text = format!("{}\nformat        {kind}\n", display(&path));
        if let Some(files) = &files {
            text += &described(files);
        }
        text += &table(&tensors);
        for problem in &problems {
            writeln!(text, "not supported: {problem}")?;
        }
        if problems.is_empty() {
            text += if self.quick {
                "weights not checked (--quick)\n"
            } else {
                "all weights can be loaded\n"
            };
        }
        say(text)?;
        Ok(())
    }
}

/// Returns the errors that loading would report.
fn problems(files: &ModelFiles) -> Vec<String> {
    let bar = progress("reading", "layers");
    bar.set_length(files.config().layers as u64);
    let problems =
        files.problems().inspect(|_| bar.inc(1)).map(|error| error.to_string()).collect();
    bar.finish_and_clear();
    problems
}

/// Returns the format of a model and its tensors, even if it is not supported.
fn stored(path: &Path) -> Result<(&'static str, Vec<Stored>)> {
    let directory = match identify(path)? {
        ModelFormat::Directory(directory) => directory,
        ModelFormat::Prepacked => return Ok(("prepacked model file", safetensors(path)?)),
        ModelFormat::Gguf(file) => return Ok(("GGUF file", gguf(&file)?)),
        _ => bail!("{}: is of an unknown format", display(path)),
    };
    if !directory.join("config.json").exists() {
        bail!("{}: is not a model: missing config.json", display(path));
    }
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&directory)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "safetensors"));
    files.sort();
    let all: Vec<_> = files.iter().map(|file| safetensors(file)).collect::<Result<_>>()?;
    Ok(("directory", all.into_iter().flatten().collect()))
}

fn safetensors(path: &Path) -> Result<Vec<Stored>> {
    let file = SafeTensors::open(path)?;
    let tensor = |name: String| Stored {
        kind: file.dtype(&name).map_or_else(String::new, |dtype| dtype.to_string()),
        shape: file.shape(&name).unwrap_or_default().to_vec(),
        bytes: file.size(&name).map(|bytes| bytes as u64),
        name,
    };
    Ok(file.names().into_iter().map(tensor).collect())
}

fn gguf(path: &Path) -> Result<Vec<Stored>> {
    let file = GgufFile::open(path)?;
    let tensor = |name: &str| {
        let kind = file.kind(name).map_or_else(String::new, |kind| kind.to_string());
        let bytes = file.size(name).map(|bytes| bytes as u64);
        Stored {
            name: name.to_owned(),
            kind,
            shape: file.shape(name).unwrap_or_default().to_vec(),
            bytes,
        }
    };
    Ok(file.names().map(tensor).collect())
}

fn object(path: &Path, kind: &str, files: Option<&ModelFiles>, tensors: &[Stored]) -> Value {
    let tensor =
        |t: &Stored| json!({ "name": t.name, "type": t.kind, "shape": t.shape, "bytes": t.bytes });
    json!({
        "path": path.to_string_lossy(),
        "format": kind,
        "config": files.map(|files| config(files.config())),
        "tokenizer": files.map(tokenizer_json),
        "tensors": tensors.iter().map(tensor).collect::<Vec<_>>(),
    })
}

fn config(c: &ModelConfig) -> Value {
    json!({
        "architecture": c.architecture,
        "activation": c.activation.to_string(),
        "sub_norms": c.sub_norms,
        "qk_norms": c.qk_norms(),
        "quantized_activations": c.quantized_activations,
        "layers": c.layers,
        "hidden": c.hidden,
        "intermediate": c.intermediate,
        "heads": c.heads,
        "kv_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "vocab": c.vocab,
        "context": c.context,
        "tied_head": c.tied_head,
        "rope_theta": c.rope_theta,
        "rope_scaling": c.rope_scaling.to_string(),
        "generation_config_ignored": c.generation.ignored,
    })
}

fn tokenizer_json(files: &ModelFiles) -> Value {
    match files.tokenizer() {
        Ok(tokenizer) => json!({
            "tokens": tokenizer.vocab_size(),
            "bos": tokenizer.bos(),
            "eos": tokenizer.eos(),
            "chat_template": tokenizer.has_chat_template(),
        }),
        Err(error) => json!({ "error": error.to_string() }),
    }
}

fn described(files: &ModelFiles) -> String {
    let c = files.config();
    let norms = if c.sub_norms { ", sub-norms" } else { "" };
    let heads = if c.qk_norms() { ", QK norms" } else { "" };
    let activations = if c.quantized_activations { "int8" } else { "float" };
    let head = if c.tied_head { "tied with the embedding" } else { "separate" };
    let ignored = match c.generation.ignored.as_slice() {
        [] => String::new(),
        keys => format!("generation    ignored keys: {}\n", keys.join(", ")),
    };
    format!(
        "architecture  {}, {} layers × {} × {}; {}{norms}{heads}; {activations} activations; LM head {head}\n\
         attention     {} query heads, {} KV heads of width {}; RoPE base {}, scaling {}\n\
         vocabulary    {}; context {} tokens\n\
         tokenizer     {}\n{ignored}",
        c.architecture,
        c.layers,
        c.hidden,
        c.intermediate,
        c.activation,
        c.heads,
        c.kv_heads,
        c.head_dim,
        c.rope_theta,
        c.rope_scaling,
        c.vocab,
        c.context,
        tokenizer(files)
    )
}

fn tokenizer(files: &ModelFiles) -> String {
    let tokenizer = match files.tokenizer() {
        Ok(tokenizer) => tokenizer,
        Err(error) => return format!("not usable: {error}"),
    };
    let template = if tokenizer.has_chat_template() { "a" } else { "no" };
    let bos = tokenizer.bos().map_or_else(|| "none".into(), |id| id.to_string());
    let eos: Vec<_> = tokenizer.eos().iter().map(ToString::to_string).collect();
    let eos = if eos.is_empty() { "none".into() } else { eos.join(", ") };
    let tokens = counted(tokenizer.vocab_size(), "token");
    format!("{tokens}, BOS {bos}, EOS {eos}, {template} chat template")
}

/// One line for the tensors of all layers that differ only in the layer's number.
fn table(tensors: &[Stored]) -> String {
    let mut groups: BTreeMap<_, Vec<&Stored>> = BTreeMap::new();
    for tensor in tensors {
        let number =
            |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let shown: String = tensor.name.escape_debug().take(200).collect();
        let name: Vec<_> =
            shown.split('.').map(|part| if number(part) { "*" } else { part }).collect();
        groups.entry((name.join("."), &tensor.kind, &tensor.shape)).or_default().push(tensor);
    }
    let mut text = String::new();
    for ((name, kind, shape), group) in groups {
        let count = group.len();
        let bytes = group.iter().map(|tensor| tensor.bytes).sum::<Option<u64>>();
        let size = bytes
            .map_or_else(|| "unknown size".into(), |bytes| format!("{:.2} MB", bytes as f64 / 1e6));
        let shape: Vec<_> = shape.iter().map(ToString::to_string).collect();
        let shape = format!("[{}]", shape.join(", "));
        text += &format!("{name:<46} {count:>4} × {kind:<5} {shape:<16} {size:>12}\n");
    }
    let bytes: u64 = tensors.iter().filter_map(|tensor| tensor.bytes).sum();
    text + &format!("{}, {:.1} MB\n", counted(tensors.len(), "tensor"), bytes as f64 / 1e6)
}
