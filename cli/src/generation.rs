//! Options of generation: sampling, stop conditions and speculative decoding.

use crate::model::ModelArgs;
use anyhow::{Context, Result, bail};
use bitnet_wgpu::{
    internals::files::display,
    model::{GenerateOptions, Model, ModelFiles, Sampling, Speculation, SpeculationCounts},
};
use clap::Args;
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

/// How a text is continued. Without options, sampling is as generation_config.json says. If that
/// does not say whether to sample, the temperature is 0.7 among the 40 most likely tokens.
#[derive(Args, Clone, Debug, Default)]
pub struct GenerationArgs {
    /// Maximum number of tokens to generate
    /// [default: the model's, or 256; of `serve` 16, and for chats the context]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub max_tokens: Option<usize>,
    /// Sampling temperature; 0 takes the most likely token
    /// [default: the model's, or 0.7]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Number of most likely tokens to sample from; 0 means all
    /// [default: the model's, or 40]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub top_k: Option<usize>,
    /// Sample from the fewest tokens whose total probability reaches this number, from 0 to 1
    /// [default: the model's, or 1]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Minimum probability of a token relative to the most likely one, from 0 to 1
    /// [default: the model's, or 0]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Divisor of the logits of tokens that are already in the text
    /// [default: the model's, or 1]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
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
    /// Seed of the random numbers; -1 chooses one
    /// [default: 0; of `chat` -1; of `serve` another for each request]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    pub seed: Option<Seed>,
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

/// A seed of random numbers, as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seed {
    Random,
    Number(u64),
}

impl Default for Seed {
    fn default() -> Self {
        Self::Number(0)
    }
}

impl Seed {
    /// Returns the number, or a random one of 32 bits.
    pub fn number(self) -> u64 {
        match self {
            Self::Random => u64::from(rand::random::<u32>()),
            Self::Number(number) => number,
        }
    }
}

fn seed(text: &str) -> Result<Seed, String> {
    match text {
        "-1" => Ok(Seed::Random),
        number => number.parse().map(Seed::Number).map_err(|_| {
            format!("expected a number from 0 to {}, or -1 for a random one", u64::MAX)
        }),
    }
}

/// Parses a token id and the bias of its logit.
fn logit_bias(text: &str) -> Result<(u32, f32)> {
    let (id, bias) = text.split_once('=').context("expected TOKEN=BIAS, as in 42=-1.5")?;
    let id = id.parse().with_context(|| format!("`{id}` is not a token id"))?;
    Ok((id, bias.parse().with_context(|| format!("`{bias}` is not a number"))?))
}

/// Options that [`GenerationArgs::set`] knows.
const SETTABLE: [&str; 9] = [
    "temperature",
    "top-k",
    "top-p",
    "min-p",
    "repetition-penalty",
    "presence-penalty",
    "frequency-penalty",
    "max-tokens",
    "seed",
];

/// Shortest time of which a rate is taken: tokens of one draft come at once.
const SHORTEST: Duration = Duration::from_millis(1);

/// Returns tokens per second; none for no tokens, or too short a time.
pub fn rate(tokens: usize, time: Duration) -> Option<f64> {
    (tokens > 0 && time >= SHORTEST).then(|| tokens as f64 / time.as_secs_f64())
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
        let mut sampling = authors.get_sampling().seed(self.seed.unwrap_or_default().number());
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

    /// Returns the options for a model and their seed, which was chosen if that is asked for.
    pub fn seeded(&self, files: &ModelFiles) -> (GenerateOptions, u64) {
        let seed = self.seed.unwrap_or_default().number();
        let options = self.options(files);
        let sampling = options.get_sampling().seed(seed);
        (options.sampling(sampling), seed)
    }

    /// Sets an option by its name, without dashes.
    ///
    /// # Errors
    /// An option that is not of sampling, and a value that does not parse.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        fn parsed<T: FromStr>(value: &str, to: &mut Option<T>, kind: &str) -> Result<(), String> {
            let number = value.parse().map_err(|_| format!("`{value}` is not {kind}"))?;
            *to = Some(number);
            Ok(())
        }
        let number = |to| parsed(value, to, "a number");
        match name {
            "temperature" => number(&mut self.temperature),
            "top-p" => number(&mut self.top_p),
            "min-p" => number(&mut self.min_p),
            "repetition-penalty" => number(&mut self.repetition_penalty),
            "presence-penalty" => number(&mut self.presence_penalty),
            "frequency-penalty" => number(&mut self.frequency_penalty),
            "top-k" => parsed(value, &mut self.top_k, "a whole number"),
            "max-tokens" => parsed(value, &mut self.max_tokens, "a whole number"),
            "seed" => {
                self.seed = Some(seed(value)?);
                Ok(())
            }
            _ => Err(format!("unknown option {name}; options: {}", SETTABLE.join(", "))),
        }
    }

    /// Returns how tokens are chosen: as `defaults` say, except for what is given as an argument.
    pub fn sampling(&self, defaults: Sampling) -> Sampling {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_rates_are_none() {
        assert_eq!(rate(0, Duration::from_secs(1)), None);
        assert_eq!(rate(5, Duration::from_micros(9)), None);
        assert_eq!(rate(5, Duration::from_secs(2)), Some(2.5));
    }

    #[test]
    fn options_are_set_by_name() {
        let mut args = GenerationArgs::default();
        for name in SETTABLE {
            assert_eq!(args.set(name, "1"), Ok(()), "{name}");
            assert!(args.set(name, "x").is_err(), "{name}");
        }
        assert_eq!((args.seed, args.top_k), (Some(Seed::Number(1)), Some(1)));
        assert!(args.set("stop", "x").unwrap_err().contains("options: temperature, top-k"));
    }

    #[test]
    fn minus_one_is_a_random_seed() {
        assert_eq!(seed("-1"), Ok(Seed::Random));
        assert_eq!(seed("18446744073709551615"), Ok(Seed::Number(u64::MAX)));
        assert!(seed("-2").unwrap_err().contains("or -1 for a random one"));
    }
}
