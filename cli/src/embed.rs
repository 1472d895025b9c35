//! `bitnet embed`: texts as vectors.

use crate::{
    input::{Line, Lines, MAX_EMBEDDED},
    model::{self, ModelArgs},
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

/// Texts of standard input whose vectors are printed together.
const TOGETHER: usize = 64;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PoolingName {
    Cls,
    Mean,
    Last,
}

/// Prints texts as vectors, one JSON object a line: index, tokens, embedding
#[derive(Args)]
pub struct Embed {
    /// A model directory, a GGUF file, or a name on the Hugging Face hub
    model: PathBuf,
    /// The texts; `-`, or none, reads them from standard input, one a line of at most 1 MiB
    texts: Vec<String>,
    /// How the states of a text's tokens become one vector: that of the first, their mean, or that
    /// of the last [default: what the model's files say, or last]
    #[arg(long)]
    pooling: Option<PoolingName>,
    /// Leave vectors as long as they are, instead of dividing them by their length
    #[arg(long)]
    no_normalize: bool,
    /// Have texts end with the tokenizer's EOS, or not [default: what the model's files say]
    #[arg(long)]
    add_eos: Option<bool>,
    #[command(flatten)]
    device: ModelArgs,
}

/// Tokens of a text that `--offload auto` leaves room for.
const LONGEST: usize = 4096;

impl Embed {
    pub fn run(self) -> Result<()> {
        let read = self.texts.is_empty() || self.texts == ["-"];
        if self.texts.is_empty() && std::io::stdin().is_terminal() {
            bail!("texts are needed");
        }
        let files = self.device.open(&self.model)?;
        files.tokenizer()?;
        let model = self.device.load(
            &files,
            SessionOptions::new(1, files.config().context.min(LONGEST)).cache(Element::F32),
        )?;
        let (adapter, language) = model::device(&model)?;
        note(format!("{adapter}, kernels in {language}"));
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
        let (mut lines, mut done) = (Lines::new(std::io::stdin().lock(), MAX_EMBEDDED), 0);
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

/// The next texts of an input, of which the first has the number `first`; none at its end.
fn some_texts(lines: &mut Lines<impl BufRead>, first: usize) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    while texts.len() < TOGETHER
        && let Some(line) = lines.next_line().context("standard input")?
    {
        match line {
            Line::Text(text) => texts.push(text),
            // The vector of another text would not be noticed.
            Line::Repaired(_) => bail!("text {} is not UTF-8", first + texts.len()),
            Line::TooLong => {
                bail!("text {} has more than {MAX_EMBEDDED} bytes", first + texts.len())
            }
        }
    }
    Ok(texts)
}

/// Prints the vectors of texts, of which the first has the number `first`.
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
