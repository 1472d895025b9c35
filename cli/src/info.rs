//! `bitnet info`: what a model is, and whether it runs.

use crate::{
    model::{FileArgs, progress, resolve},
    say, text,
};
use anyhow::{Result, bail};
use bitnet_wgpu::{
    formats::{self, GgufFile, GgufType, ModelConfig, SafeTensors},
    internals::files::display,
    model::ModelFiles,
};
use clap::Args;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
};

/// Shows a model: architecture, tensors, types, sizes, and what of it is unsupported and why (which
/// is no failure of this command)
#[derive(Args)]
pub struct Info {
    /// A model directory, a GGUF file, a native container, or a name on the Hugging Face hub
    model: PathBuf,
    /// Do not read the weights to see whether all of them can be loaded
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    how: FileArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A tensor as it is stored.
struct Stored {
    name: String,
    kind: String,
    shape: Vec<usize>,
    /// None for a type that is not read.
    bytes: Option<u64>,
}

impl Info {
    pub fn run(self) -> Result<()> {
        let path = resolve(&self.model)?;
        let (kind, tensors) = stored(&path)?;
        // What is unsupported is what is to be shown; so it is no error here.
        let files = ModelFiles::open_with(&path, self.how.options()).map_err(anyhow::Error::from);
        let problems = match &files {
            Err(error) => vec![text(error)],
            Ok(_) if self.quick => Vec::new(),
            Ok(files) => problems(files),
        };
        let files = files.ok();
        if self.json {
            let tensors: Vec<_> =
                tensors.iter().map(|t| json!({ "name": t.name, "type": t.kind, "shape": t.shape, "bytes": t.bytes })).collect();
            let object = json!({
                "path": path.to_string_lossy(), "format": kind, "config": files.as_ref().map(|files| config(files.config())), "tokenizer": files.as_ref().map(tokenizer_json),
                "tensors": tensors, "checked": !self.quick, "problems": problems,
            });
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

/// What loading would find wrong.
fn problems(files: &ModelFiles) -> Vec<String> {
    let bar = progress("reading", "layers");
    bar.set_length(files.config().layers as u64);
    let problems =
        files.problems().inspect(|_| bar.inc(1)).map(|error| error.to_string()).collect();
    bar.finish_and_clear();
    problems
}

/// How a model is stored, and the tensors of its files, whether or not it is one that runs.
fn stored(path: &Path) -> Result<(&'static str, Vec<Stored>)> {
    let directory = match formats::kind(path)? {
        formats::Kind::Directory(directory) => directory,
        formats::Kind::Prepacked => return Ok(("native container", safetensors(path)?)),
        _ => return Ok(("GGUF file", gguf(path)?)),
    };
    if !directory.join("config.json").exists() {
        bail!("{}: is not a model: it has no config.json", display(path));
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
    let tensor = |name: String| {
        let (kind, shape) = (
            file.dtype(&name).map_or_else(String::new, |dtype| dtype.to_string()),
            file.shape(&name).unwrap_or_default(),
        );
        Stored {
            kind,
            shape: shape.to_vec(),
            bytes: file.size(&name).map(|bytes| bytes as u64),
            name,
        }
    };
    Ok(file.names().into_iter().map(tensor).collect())
}

fn gguf(path: &Path) -> Result<Vec<Stored>> {
    let file = GgufFile::open(path)?;
    let tensor = |name: &str| {
        let kind = match file.kind(name) {
            Some(GgufType::Other(id)) => format!("type {id}"),
            kind => kind.map_or_else(String::new, |kind| format!("{kind:?}").to_uppercase()),
        };
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

fn config(c: &ModelConfig) -> Value {
    json!({
        "architecture": c.architecture, "activation": format!("{:?}", c.activation), "sub_norms": c.sub_norms, "qk_norms": c.qk_norms(),
        "quantized_activations": c.quantized_activations, "layers": c.layers,
        "hidden": c.hidden, "intermediate": c.intermediate, "heads": c.heads, "kv_heads": c.kv_heads, "head_dim": c.head_dim, "vocab": c.vocab,
        "context": c.context, "tied_head": c.tied_head, "rope_theta": c.rope_theta, "rope_scaling": format!("{:?}", c.rope_scaling),
        "generation_config_ignored": c.generation.ignored,
    })
}

fn tokenizer_json(files: &ModelFiles) -> Value {
    match files.tokenizer() {
        Ok(tokenizer) => json!({
            "tokens": tokenizer.vocab_size(), "bos": tokenizer.bos(), "eos": tokenizer.eos(), "chat_template": tokenizer.has_chat_template(),
        }),
        Err(error) => json!({ "error": error.to_string() }),
    }
}

fn described(files: &ModelFiles) -> String {
    let c = files.config();
    let norms = if c.sub_norms { ", sub-norms" } else { "" };
    let heads = if c.qk_norms() { ", norms of heads" } else { "" };
    let activations = if c.quantized_activations { "" } else { ", activations in floats" };
    let head = if c.tied_head { "the embedding is the head" } else { "a head of its own" };
    let tokenizer = match files.tokenizer() {
        Ok(tokenizer) => {
            let template =
                if tokenizer.has_chat_template() { "a chat template" } else { "no chat template" };
            format!(
                "{} tokens, BOS {:?}, EOS {:?}, {template}",
                tokenizer.vocab_size(),
                tokenizer.bos(),
                tokenizer.eos()
            )
        }
        Err(error) => format!("none that can be used: {error}"),
    };
    let ignored = match c.generation.ignored.as_slice() {
        [] => String::new(),
        keys => format!("generation    ignored: {}\n", keys.join(", ")),
    };
    format!(
        "architecture  {} ({:?}{norms}{heads}{activations}), {} layers × {} × {}, {head}\n\
         attention     {} query heads, {} key heads of width {}; rotary base {}, scaling {:?}\n\
         vocabulary    {}; context {} tokens\n\
         tokenizer     {tokenizer}\n{ignored}",
        c.architecture,
        c.activation,
        c.layers,
        c.hidden,
        c.intermediate,
        c.heads,
        c.kv_heads,
        c.head_dim,
        c.rope_theta,
        c.rope_scaling,
        c.vocab,
        c.context
    )
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
        let (count, bytes) =
            (group.len(), group.iter().map(|tensor| tensor.bytes).sum::<Option<u64>>());
        let size = bytes.map_or_else(
            || "of unknown size".into(),
            |bytes| format!("{:.2} MB", bytes as f64 / 1e6),
        );
        text +=
            &format!("{name:<46} {count:>4} × {kind:<5} {:<16} {size:>12}\n", format!("{shape:?}"));
    }
    let bytes: u64 = tensors.iter().filter_map(|tensor| tensor.bytes).sum();
    text + &format!("{} tensors, {:.1} MB\n", tensors.len(), bytes as f64 / 1e6)
}
