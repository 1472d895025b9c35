//! Options of generation: sampling, stop conditions and speculative decoding.

use crate::model::ModelArgs;
use anyhow::{Context, Result, bail};
use bitnet_wgpu::{
    internals::files::display,
    model::{GenerateOptions, Model, ModelFiles, Sampling, Speculation, SpeculationCounts},
};
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// How a text is continued. Without options, sampling is as generation_config.json says. If that
/// does not say whether to sample, the temperature is 0.7 among the 40 most likely tokens.
#[derive(Args, Clone, Debug)]
pub struct GenerationArgs {
    /// Maximum number of tokens to generate
    /// [default: generation_config.json, or 256; of `serve` 16 for completions, the context for
    /// chats]
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
    /// Sampling temperature; 0 takes the most likely token
    /// [default: generation_config.json, or 0.7]
    #[arg(long, value_name = "NUMBER")]
    pub temperature: Option<f32>,
    /// Number of most likely tokens to sample from; 0 means all
    /// [default: generation_config.json, or 40]
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    /// Sample from the fewest tokens whose total probability reaches this number, from 0 to 1
    /// [default: generation_config.json, or 1]
    #[arg(long, value_name = "NUMBER")]
    pub top_p: Option<f32>,
    /// Minimum probability of a token relative to the most likely one, from 0 to 1
    /// [default: generation_config.json, or 0]
    #[arg(long, value_name = "NUMBER")]
    pub min_p: Option<f32>,
    /// Divisor of the logits of tokens that are already in the text
    /// [default: generation_config.json, or 1]
    #[arg(long, value_name = "NUMBER")]
    pub repetition_penalty: Option<f32>,
    /// Number subtracted from the logits of tokens that were already generated [default: 0]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Number subtracted from the logits of tokens for each time they were generated [default: 0]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Number added to the logit of a token id; -inf forbids the token; may be repeated
    #[arg(long, value_name = "TOKEN=BIAS", value_parser = logit_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers [default: 0; of `serve`, a new one for each request]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Always take the most likely token
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p"])]
    pub greedy: bool,
    /// Continue after an end-of-text token
    #[arg(long)]
    pub ignore_eos: bool,
    /// Stop before this string, which is left out; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Speculative decoding, which does not change the text: `ngram` drafts by prompt lookup, a
    /// smaller MODEL of the same vocabulary drafts by itself [default: none]
    #[arg(long, value_name = "ngram|MODEL")]
    pub speculate: Option<PathBuf>,
    /// Maximum number of draft tokens per pass [default: 7]
    #[arg(long, value_name = "N", requires = "speculate")]
    pub draft_tokens: Option<usize>,
}

/// Parses a token id and the bias of its logit.
fn logit_bias(text: &str) -> Result<(u32, f32)> {
    let (id, bias) = text.split_once('=').context("expected TOKEN=BIAS, as in 42=-1.5")?;
    let id = id.parse().with_context(|| format!("`{id}` is not a token id"))?;
    Ok((id, bias.parse().with_context(|| format!("`{bias}` is not a number"))?))
}

/// The files of a model that drafts.
pub struct Draft(ModelFiles);

/// Returns the counts of speculative decoding for `--json`; null without it.
pub fn counts(speculation: Option<SpeculationCounts>) -> Value {
    speculation.map_or(Value::Null, |counts| json!({ "passes": counts.passes, "drafted": counts.drafted, "accepted": counts.accepted }))
}

impl GenerationArgs {
    /// Returns the options for a model.
    pub fn options(&self, files: &ModelFiles) -> GenerateOptions {
        let authors = GenerateOptions::recommended(files.config());
        let mut sampling = authors.get_sampling().seed(self.seed.unwrap_or(0));
        if self.greedy {
            sampling = sampling.temperature(0.0);
        } else if files.config().generation.sample.is_none() {
            // Without any recommendation: a small model soon repeats itself with greedy decoding.
            sampling = sampling.temperature(0.7).top_k(40);
        }
        let sampling = self.sampling(sampling);
        let options = match self.max_tokens {
            Some(max_tokens) => authors.max_tokens(max_tokens),
            None => authors,
        };
        // A draft model takes the place of n-grams when it is loaded.
        let speculation = self.speculate.as_ref().map(|_| self.draft_tokens(Speculation::ngram()));
        options
            .sampling(sampling)
            .ignore_eos(self.ignore_eos)
            .stop(&self.stop)
            .logit_bias(self.logit_bias.iter().copied())
            .speculate(speculation)
    }

    /// Returns how tokens are chosen: as `defaults` say, except for what is given as an argument.
    fn sampling(&self, defaults: Sampling) -> Sampling {
        type Set = fn(Sampling, f32) -> Sampling;
        let numbers: [(Option<f32>, Set); 6] = [
            (self.temperature, Sampling::temperature),
            (self.top_p, Sampling::top_p),
            (self.min_p, Sampling::min_p),
            (self.repetition_penalty, Sampling::repetition_penalty),
            (self.presence_penalty, Sampling::presence_penalty),
            (self.frequency_penalty, Sampling::frequency_penalty),
        ];
        let set = |sampling, (number, set): (Option<f32>, Set)| {
            number.map_or(sampling, |number| set(sampling, number))
        };
        let sampling = numbers.into_iter().fold(defaults, set);
        self.top_k.map_or(sampling, |top_k| sampling.top_k(top_k))
    }

    fn draft_tokens(&self, speculation: Speculation) -> Speculation {
        match self.draft_tokens {
            Some(tokens) => speculation.tokens(tokens),
            None => speculation,
        }
    }

    /// Opens the files of the draft model, if there is one, without reading weights.
    pub fn draft(&self, files: &ModelFiles, model: &ModelArgs) -> Result<Option<Draft>> {
        let Some(name) = self.speculate.as_deref().filter(|name| *name != Path::new("ngram"))
        else {
            return Ok(None);
        };
        let draft = model.open(name)?;
        let other = draft.config().vocab;
        let vocab = files.config().vocab;
        if other != vocab {
            bail!(
                "--speculate {}: its vocabulary has {other} tokens, not the model's {vocab}",
                display(name)
            );
        }
        Ok(Some(Draft(draft)))
    }

    /// Loads the draft model, if there is one, to the device of the model.
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
