//! How a text is continued, as the command line says.

use crate::model::ModelArgs;
use anyhow::{Context, Result, bail};
use bitnet_wgpu::{
    internals::files::display,
    model::{GenerateOptions, Model, ModelFiles, Speculation, SpeculationCounts},
};
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// What is not given is as the model's authors recommend it, in its generation_config.json; where
/// that does not say whether to sample, the temperature is 0.7 among the 40 most likely tokens.
#[derive(Args, Clone, Debug)]
pub struct GenerationArgs {
    /// The most tokens to generate
    /// [default: the authors', or 256; of `serve`, 16 for completions and what fits for chats]
    #[arg(long)]
    pub max_tokens: Option<usize>,
    /// Divides the logits; 0 always takes the most likely token
    /// [default: the authors', or 0.7 where they say nothing]
    #[arg(long)]
    pub temperature: Option<f32>,
    /// Sample from so many most likely tokens; 0 means all
    /// [default: the authors', or 40 where they say nothing]
    #[arg(long)]
    pub top_k: Option<usize>,
    /// Sample from the fewest tokens that reach this total probability
    #[arg(long)]
    pub top_p: Option<f32>,
    /// Sample from the tokens that are at least this share as likely as the first
    #[arg(long)]
    pub min_p: Option<f32>,
    /// Divide the logits of tokens that the text has already
    #[arg(long)]
    pub repetition_penalty: Option<f32>,
    /// Subtract from the logits of tokens that were generated already
    #[arg(long, allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Subtract from the logits of tokens for each time that they were generated already
    #[arg(long, allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Add BIAS to the logit of a token, by its id; -inf forbids it; may be given several times
    #[arg(long, value_name = "TOKEN=BIAS", value_parser = logit_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Seeds the random numbers [default: 0; of `serve`, a new one for each request]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Always take the most likely token
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p"])]
    pub greedy: bool,
    /// Continue after an end-of-text token
    #[arg(long)]
    pub ignore_eos: bool,
    /// End the text at this string, which is left out; may be given several times
    #[arg(long, allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Guess tokens ahead, for the same text in less time: `ngram`, by what followed the last
    /// tokens before, or a smaller MODEL of the same vocabulary
    #[arg(long, value_name = "ngram|MODEL")]
    pub speculate: Option<PathBuf>,
    /// The most tokens to guess at once [default: 7]
    #[arg(long, value_name = "K", requires = "speculate")]
    pub draft_tokens: Option<usize>,
}

/// A token's id and what is added to its logit.
fn logit_bias(text: &str) -> Result<(u32, f32)> {
    let (id, bias) = text.split_once('=').context("it is TOKEN=BIAS, as in 42=-1.5")?;
    let id = id.parse().with_context(|| format!("{id:?} is no token's id"))?;
    Ok((id, bias.parse().with_context(|| format!("{bias:?} is no number"))?))
}

/// The files of a model that drafts.
pub struct Draft(ModelFiles);

/// What `--json` says of drafts; nothing without.
pub fn counts(speculation: Option<SpeculationCounts>) -> Value {
    speculation.map_or(Value::Null, |counts| json!({ "passes": counts.passes, "drafted": counts.drafted, "accepted": counts.accepted }))
}

impl GenerationArgs {
    /// These options for a model.
    pub fn options(&self, files: &ModelFiles) -> GenerateOptions {
        let authors = GenerateOptions::recommended(files.config());
        let mut sampling = authors.sampling.seed(self.seed.unwrap_or(0));
        if self.greedy {
            sampling = sampling.temperature(0.0);
        } else if files.config().generation.sample.is_none() {
            // Where nobody says anything: a small model that always takes the most likely token
            // soon repeats itself.
            sampling = sampling.temperature(0.7).top_k(40);
        }
        sampling = sampling.temperature(self.temperature.unwrap_or(sampling.options.temperature));
        sampling = sampling
            .top_k(self.top_k.unwrap_or(sampling.options.top_k))
            .top_p(self.top_p.unwrap_or(sampling.options.top_p));
        sampling = sampling.min_p(self.min_p.unwrap_or(sampling.options.min_p));
        sampling = sampling
            .repetition_penalty(self.repetition_penalty.unwrap_or(sampling.penalties.repetition));
        sampling =
            sampling.presence_penalty(self.presence_penalty.unwrap_or(sampling.penalties.presence));
        sampling = sampling
            .frequency_penalty(self.frequency_penalty.unwrap_or(sampling.penalties.frequency));
        let logit_bias: Vec<(u32, f32)> =
            authors.logit_bias.iter().chain(&self.logit_bias).copied().collect();
        let stop: Vec<String> = authors.stop.iter().chain(&self.stop).cloned().collect();
        let options = match self.max_tokens {
            Some(max_tokens) => authors.max_tokens(max_tokens),
            None => authors,
        };
        // A draft model takes the place of n-grams when it is loaded.
        let speculation = self.speculate.as_ref().map(|_| self.draft_tokens(Speculation::ngram()));
        options
            .sampling(sampling)
            .ignore_eos(self.ignore_eos)
            .stop(stop)
            .logit_bias(logit_bias)
            .speculate(speculation)
    }

    fn draft_tokens(&self, speculation: Speculation) -> Speculation {
        let tokens = self.draft_tokens.unwrap_or(speculation.tokens);
        speculation.tokens(tokens)
    }

    /// Opens the files of the draft model, if there is one, before any weights are read.
    pub fn draft(&self, files: &ModelFiles, model: &ModelArgs) -> Result<Option<Draft>> {
        let Some(name) = self.speculate.as_deref().filter(|name| *name != Path::new("ngram"))
        else {
            return Ok(None);
        };
        let draft = model.open(name)?;
        let (other, vocab) = (draft.config().vocab, files.config().vocab);
        if other != vocab {
            bail!(
                "--speculate {}: its vocabulary has {other} tokens, the model's {vocab}",
                display(name)
            );
        }
        Ok(Some(Draft(draft)))
    }

    /// Has a draft model draft for a model, on the same device.
    pub fn with_draft(
        &self,
        options: GenerateOptions,
        draft: Option<Draft>,
        model: &Model,
        args: &ModelArgs,
    ) -> Result<GenerateOptions> {
        let Some(Draft(files)) = draft else { return Ok(options) };
        let draft = args.load_draft(model.context(), &files)?;
        Ok(options.speculate(self.draft_tokens(Speculation::from(&draft))))
    }
}
