//! How a model's authors would have it generate: generation_config.json.

use super::{
    format_error::FormatError,
    json::{Keys, token_ids},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How a model's authors would have it generate: generation_config.json.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GenerationDefaults {
    /// Draw tokens at random, or always take the most likely one; the latter too where nothing is
    /// said.
    pub sample: Option<bool>,
    /// Divides the logits.
    pub temperature: Option<f32>,
    /// This many most likely tokens are candidates.
    pub top_k: Option<usize>,
    /// The fewest tokens that reach this total probability are candidates.
    pub top_p: Option<f32>,
    /// Tokens that are less likely than this share of the most likely one are none.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens that the text has.
    pub repetition_penalty: Option<f32>,
    /// The most tokens to generate.
    pub max_tokens: Option<usize>,
    /// The most tokens of prompt and continuation together; of no account where there is a
    /// `max_tokens`.
    pub max_length: Option<usize>,
    /// No end before this many tokens.
    pub min_tokens: Option<usize>,
    /// No run of this many tokens occurs twice.
    pub no_repeat_ngram: Option<usize>,
    /// Runs of tokens that must not occur.
    pub bad_words: Vec<Vec<u32>>,
    /// Tokens that must not occur.
    pub suppressed: Vec<u32>,
    /// Strings that end the text.
    pub stop: Vec<String>,
    /// Keys that would change the text and are not supported.
    pub ignored: Vec<String>,
}

/// Keys of a generation_config.json that change what is generated, and are not supported, with the
/// value that changes nothing (as null does).
const NOT_SUPPORTED: [(&str, f64); 20] = [
    ("begin_suppress_tokens", 0.0),
    ("diversity_penalty", 0.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("exponential_decay_length_penalty", 0.0),
    ("forced_bos_token_id", f64::NAN),
    ("forced_eos_token_id", f64::NAN),
    ("guidance_scale", 1.0),
    ("max_time", f64::NAN),
    ("min_length", 0.0),
    ("num_beam_groups", 1.0),
    ("num_beams", 1.0),
    ("num_return_sequences", 1.0),
    ("penalty_alpha", 0.0),
    ("sequence_bias", 0.0),
    ("top_h", 1.0),
    ("typical_p", 1.0),
    ("watermarking_config", 0.0),
];

impl GenerationDefaults {
    pub(super) fn from_json(json: &Value) -> Result<Self, FormatError> {
        let json = Keys(json.as_object().ok_or("is not a JSON object")?);
        let float = |key| json.get(key).map(|_| json.float(key, 0.0)).transpose();
        let count = |key| {
            json.get(key)
                .map(|value| {
                    count(value).ok_or_else(|| format!("{key} is {value}; a count is needed"))
                })
                .transpose()
        };
        let max_tokens = count("max_new_tokens")?;
        let changes = |(key, neutral): &&(&str, f64)| {
            json.get(key).is_some_and(|value| value.as_f64() != Some(*neutral))
        };
        Ok(Self {
            sample: json.get("do_sample").map(|_| json.flag("do_sample")).transpose()?,
            temperature: float("temperature")?,
            top_k: count("top_k")?,
            top_p: float("top_p")?,
            min_p: float("min_p")?,
            repetition_penalty: float("repetition_penalty")?,
            max_tokens,
            max_length: count("max_length")?.filter(|_| max_tokens.is_none()),
            min_tokens: count("min_new_tokens")?,
            no_repeat_ngram: count("no_repeat_ngram_size")?,
            bad_words: list(json, "bad_words_ids", |word| token_ids(word).ok())?,
            suppressed: list(json, "suppress_tokens", id)?,
            stop: list(json, "stop_strings", |string| string.as_str().map(str::to_owned))?,
            ignored: NOT_SUPPORTED
                .iter()
                .filter(changes)
                .map(|(key, _)| (*key).to_owned())
                .collect(),
        })
    }

    /// Drops tokens beyond a vocabulary: as with ends, what is not in it cannot occur.
    pub(super) fn of_vocabulary(mut self, vocab: usize) -> Self {
        self.suppressed.retain(|&id| (id as usize) < vocab);
        self.bad_words.retain(|word| word.iter().all(|&id| (id as usize) < vocab));
        self
    }
}

fn count(value: &Value) -> Option<usize> {
    value.as_u64()?.try_into().ok()
}

fn id(value: &Value) -> Option<u32> {
    value.as_u64()?.try_into().ok()
}

/// A list, or one element for a list of one; empty where there is no such key.
fn list<T>(
    json: Keys<'_>,
    key: &str,
    element: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<T>, String> {
    let Some(value) = json.get(key) else { return Ok(Vec::new()) };
    let elements = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    elements
        .iter()
        .map(element)
        .collect::<Option<_>>()
        .ok_or_else(|| format!("{key} is {value}, which is not understood"))
}
