//! What a model writes while it is trained.

use anyhow::{Context as _, Result, bail};
use bitnet_train::Trainer;
use bitnet_wgpu::model::Tokenizer;

/// The most tokens of a sample: each is a forward pass over all before it.
const TOKENS: usize = 40;

/// A prompt that the model continues.
pub struct Prompt<'a> {
    tokenizer: &'a Tokenizer,
    ids: Vec<u32>,
    ends: Vec<u32>,
}

impl<'a> Prompt<'a> {
    /// Encodes a prompt that leaves room within `context`.
    pub fn new(text: &str, tokenizer: &'a Tokenizer, end: u32, context: usize) -> Result<Self> {
        let mut ids = tokenizer.encode(text).context("reading --sample")?;
        if ids.is_empty() {
            ids.push(tokenizer.bos().unwrap_or(end));
        }
        if ids.len() >= context {
            let (count, most) = (ids.len(), context.saturating_sub(1));
            bail!("--sample: has {count} tokens; at most {most} leave room within --context");
        }
        let ends = [&[end], tokenizer.eos()].concat();
        Ok(Self { tokenizer, ids, ends })
    }

    /// Returns the prompt and what the model makes of it.
    pub fn continued(&self, trainer: &Trainer) -> Result<String> {
        let more = trainer.sample(&self.ids, TOKENS, &self.ends)?;
        Ok(self.tokenizer.decode(&[&self.ids[..], &more].concat())?)
    }
}
