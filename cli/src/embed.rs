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

/// Computes embeddings, one JSON object per line
///
/// Its keys are `index`, `tokens` and `embedding`.
#[derive(Args)]
pub struct Embed {
    /// Model directory, GGUF file, prepacked model file, or name on the Hugging Face hub
    model: PathBuf,
    /// Texts to embed; `-` or no text reads lines of at most 1 MiB from standard input, of which
    /// blank ones have no embedding
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
            bail!("missing texts; `-` for standard input is accepted");
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
            let texts: Vec<_> = self.texts.iter().cloned().enumerate().collect();
            return print(&model, &texts, &options);
        }
        let mut lines = Lines::new(std::io::stdin().lock(), MAX_EMBEDDED);
        let mut line = 0;
        loop {
            let texts = some_texts(&mut lines, &mut line)?;
            if texts.is_empty() {
                return Ok(());
            }
            print(&model, &texts, &options)?;
        }
    }
}

/// Reads the next texts that are not blank, with their lines; none at the end of the input. `line`
/// is the number of the next line.
fn some_texts(lines: &mut Lines<impl BufRead>, line: &mut usize) -> Result<Vec<(usize, String)>> {
    let mut texts = Vec::new();
    while texts.len() < BATCH
        && let Some(read) = lines.next_line().context("standard input")?
    {
        match read {
            Line::Text(text) if text.trim().is_empty() => {}
            Line::Text(text) => texts.push((*line, text)),
            // Nobody would notice the embedding of a repaired text.
            Line::Repaired(_) => bail!("text {line} is not UTF-8"),
            Line::TooLong => bail!("text {line} has more than {MAX_EMBEDDED} bytes"),
        }
        *line += 1;
    }
    Ok(texts)
}

/// Prints the embeddings of texts with these numbers.
fn print(model: &Model, texts: &[(usize, String)], options: &EmbedOptions) -> Result<()> {
    let (numbers, texts): (Vec<usize>, Vec<&str>) =
        texts.iter().map(|(number, text)| (number, text.as_str())).unzip();
    if let Some((number, _)) = numbers.iter().zip(&texts).find(|(_, text)| text.is_empty()) {
        bail!("text {number} is empty");
    }
    let embeddings = pollster::block_on(model.embed(&texts, options))?;
    for (number, embedding) in numbers.iter().zip(embeddings) {
        let object = json!({
            "index": number, "tokens": embedding.tokens, "embedding": embedding.vector,
        });
        say(format!("{object}\n"))?;
    }
    Ok(())
}
