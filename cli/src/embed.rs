//! `bitnet embed`: embeddings of texts.

use crate::{
    input::{Line, Lines, MAX_EMBEDDED},
    model::{ModelArgs, Placement},
    note, say,
};
use anyhow::{Context as _, Result, bail};
use bitnet_wgpu::{
    Element,
    formats::Pooling,
    model::{EmbedOptions, Model, SessionOptions},
};
use clap::{Args, ValueEnum};
use serde_json::json;
use std::{
    io::{BufRead, IsTerminal},
    path::PathBuf,
};

/// Texts of standard input that are embedded in one batch.
const BATCH: usize = 64;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PoolingName {
    Cls,
    Mean,
    Last,
}

/// Computes embeddings, one JSON object per line: index, tokens, embedding
#[derive(Args)]
pub struct Embed {
    /// Model directory, GGUF file, prepacked model file, or name on the Hugging Face hub
    model: PathBuf,
    /// Texts to embed; `-` or no text reads lines of at most 1 MiB from standard input
    texts: Vec<String>,
    /// Pooling of the token states: of the first token, their mean, or of the last token
    /// [default: what the model's files say, or last]
    #[arg(long, value_name = "POOLING")]
    pooling: Option<PoolingName>,
    /// Do not normalize embeddings to length 1
    #[arg(long)]
    no_normalize: bool,
    /// Whether EOS is added to texts [default: what the model's files say]
    #[arg(long, value_name = "true|false")]
    add_eos: Option<bool>,
    #[command(flatten, next_help_heading = "Device")]
    device: ModelArgs,
}

/// Tokens of a text that `--cpu-offload auto` leaves room for.
const LONGEST: usize = 4096;

impl Embed {
    pub fn run(self) -> Result<()> {
        let read = self.texts.is_empty() || self.texts == ["-"];
        if self.texts.is_empty() && std::io::stdin().is_terminal() {
            bail!("missing texts");
        }
        let files = self.device.open(&self.model)?;
        files.tokenizer()?;
        let model = self.device.load(
            &files,
            SessionOptions::new(1, files.config().context.min(LONGEST)).kv_type(Element::F32),
        )?;
        note(Placement::of(&model)?);
        let pooling = self.pooling.map(|pooling| match pooling {
            PoolingName::Cls => Pooling::Cls,
            PoolingName::Mean => Pooling::Mean,
            PoolingName::Last => Pooling::Last,
        });
        let options = EmbedOptions::default()
            .pooling(pooling)
            .normalize(self.no_normalize.then_some(false))
            .add_eos(self.add_eos);
        if !read {
            return print(&model, 0, &self.texts, &options);
        }
        let mut lines = Lines::new(std::io::stdin().lock(), MAX_EMBEDDED);
        let mut done = 0;
        loop {
            let texts = some_texts(&mut lines, done)?;
            if texts.is_empty() {
                return Ok(());
            }
            print(&model, done, &texts, &options)?;
            done += texts.len();
        }
    }
}

/// Reads the next texts, of which the first has the number `first`; none at the end of the input.
fn some_texts(lines: &mut Lines<impl BufRead>, first: usize) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    while texts.len() < BATCH
        && let Some(line) = lines.next_line().context("standard input")?
    {
        match line {
            Line::Text(text) => texts.push(text),
            // Nobody would notice the embedding of a repaired text.
            Line::Repaired(_) => bail!("text {} is not UTF-8", first + texts.len()),
            Line::TooLong => {
                bail!("text {} has more than {MAX_EMBEDDED} bytes", first + texts.len())
            }
        }
    }
    Ok(texts)
}

/// Prints the embeddings of texts, of which the first has the number `first`.
fn print(model: &Model, first: usize, texts: &[String], options: &EmbedOptions) -> Result<()> {
    if let Some(empty) = texts.iter().position(String::is_empty) {
        bail!("text {} is empty", first + empty);
    }
    for (n, embedding) in pollster::block_on(model.embed(texts, options))?.into_iter().enumerate() {
        say(format!(
            "{}\n",
            json!({ "index": first + n, "tokens": embedding.tokens, "embedding": embedding.vector })
        ))?;
    }
    Ok(())
}
