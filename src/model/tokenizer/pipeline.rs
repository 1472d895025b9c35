//! Encoding within bounds: the steps that a tokenizer.json puts before its model. The `tokenizers`
//! crate runs them without a bound on their work, and drops the errors of patterns and of
//! normalizers.

use super::pattern::{OutOfSteps, Pattern};
use crate::{
    error::Error,
    limits::tokenizer::{GROWTH_OF_ANY, MOST_GROWN, MOST_STEPS_OF_ANY, MOST_STEPS_PER_BYTE},
};
use serde_json::Value;
use std::sync::{Mutex, PoisonError};
use tokenizers::{
    Model, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType, Offsets,
    PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
    pattern::Invert,
    pre_tokenizers::split::{Split, SplitPattern},
    tokenizer::Result,
};

/// Bytes of a text that are normalized at once to learn how long it becomes.
const SAMPLE: usize = 4096;

/// The steps of a tokenizer before its model.
pub struct Pipeline {
    normalizers: Vec<Normalize>,
    pre_tokenizers: Vec<PreTokenize>,
}

enum Normalize {
    Replace {
        pattern: Pattern,
        content: String,
    },
    Prepend(String),
    /// Steps that make of each character at most `growth` times as many bytes.
    Characters {
        step: NormalizerWrapper,
        growth: usize,
    },
}

enum PreTokenize {
    Split { pattern: Pattern, split: Split },
    Other(PreTokenizerWrapper),
}

/// A bound that a text is beyond.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("more than {most} {what}")]
pub struct Excess {
    what: &'static str,
    most: usize,
}

impl Excess {
    /// The error for a text of this many bytes.
    pub fn of(self, bytes: usize) -> Error {
        Error::Invalid { op: "tokenizer", what: format!("a text of {bytes} bytes takes {self}") }
    }
}

/// What a text may still take. The crate wants normalizers that threads share.
struct Work {
    most_steps: u64,
    most_bytes: usize,
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    steps: u64,
    /// Bytes of the normalized pieces before the present one.
    bytes: usize,
    excess: Option<Excess>,
}

impl Pipeline {
    /// Compiles the steps of a tokenizer.
    ///
    /// # Errors
    /// A message that names the pattern which is not supported.
    pub fn new(tokenizer: &tokenizers::Tokenizer) -> std::result::Result<Self, String> {
        let mut pipeline = Self { normalizers: Vec::new(), pre_tokenizers: Vec::new() };
        tokenizer.get_normalizer().map_or(Ok(()), |step| pipeline.normalizer(step))?;
        tokenizer.get_pre_tokenizer().map_or(Ok(()), |step| pipeline.pre_tokenizer(step))?;
        Ok(pipeline)
    }

    fn normalizer(&mut self, step: &NormalizerWrapper) -> std::result::Result<(), String> {
        self.normalizers.push(match step {
            NormalizerWrapper::Sequence(steps) => {
                return steps.as_ref().iter().try_for_each(|step| self.normalizer(step));
            }
            NormalizerWrapper::Replace(replace) => {
                // Its pattern is private.
                let json = serde_json::to_value(replace).map_err(|error| error.to_string())?;
                let pattern = match &json["pattern"] {
                    pattern if pattern["String"].is_string() => {
                        Pattern::literal(text_of(&pattern["String"]))
                    }
                    pattern => regex(text_of(&pattern["Regex"]))?,
                };
                Normalize::Replace { pattern, content: replace.content.clone() }
            }
            NormalizerWrapper::Prepend(prepend) => Normalize::Prepend(prepend.prepend.clone()),
            other => Normalize::Characters { step: other.clone(), growth: growth(other) },
        });
        Ok(())
    }

    fn pre_tokenizer(&mut self, step: &PreTokenizerWrapper) -> std::result::Result<(), String> {
        self.pre_tokenizers.push(match step {
            PreTokenizerWrapper::Sequence(steps) => {
                return steps.as_ref().iter().try_for_each(|step| self.pre_tokenizer(step));
            }
            PreTokenizerWrapper::Split(split) => {
                let pattern = match &split.pattern {
                    SplitPattern::String(text) => Pattern::literal(text),
                    SplitPattern::Regex(pattern) => regex(pattern)?,
                };
                PreTokenize::Split { pattern, split: split.clone() }
            }
            other => PreTokenize::Other(other.clone()),
        });
        Ok(())
    }

    /// Encodes a text as `encode_fast` of the tokenizer does. A mark in it keeps names of added
    /// tokens from being recognized, and is no part of the text otherwise.
    ///
    /// # Errors
    /// [`Excess`] for a text that takes too much work; else what the tokenizer reports.
    pub fn encode(
        &self,
        tokenizer: &tokenizers::Tokenizer,
        text: &str,
        special: bool,
        mark: Option<char>,
    ) -> Result<Vec<u32>> {
        let work = Work::new(text.len());
        let normalizer = Normalizing { steps: &self.normalizers, work: &work };
        let normalizer = (!self.normalizers.is_empty()).then_some(&normalizer);
        let mut pieces = tokenizer.get_added_vocabulary().extract_and_normalize(normalizer, text);
        work.checked()?;
        if let Some(mark) = mark {
            check_names(tokenizer, &pieces, text)?;
            pieces.normalize(|piece| {
                if piece.get().contains(mark) {
                    piece.filter(|c| c != mark);
                }
                Ok(())
            })?;
        }
        self.pre_tokenizers.iter().try_for_each(|step| step.run(&mut pieces, &work))?;
        tokenizer.get_model().tokenize_in_pretokenized(&mut pieces, None)?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::None)?;
        Ok(tokenizer.post_process(encoding, None, special)?.get_ids().to_vec())
    }
}

/// Refuses special tokens that are not in a text by their names, but were found once it was
/// normalized: nothing in the text could have kept them from it.
fn check_names(
    tokenizer: &tokenizers::Tokenizer,
    pieces: &PreTokenizedString,
    text: &str,
) -> Result<()> {
    let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
    for (_, (start, end), tokens) in
        pieces.get_splits(OffsetReferential::Original, OffsetType::Byte)
    {
        let token = tokens
            .as_ref()
            .and_then(|tokens| added.get(&tokens.first()?.id))
            .filter(|token| token.special && token.normalized);
        if let Some(token) = token
            && text.get(start..end).is_none_or(|found| found.trim() != token.content.trim())
        {
            return Err(format!(
                "the normalizer can turn a message into the special token `{}`",
                token.content
            )
            .into());
        }
    }
    Ok(())
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn regex(pattern: &str) -> std::result::Result<Pattern, String> {
    Pattern::regex(pattern).map_err(|error| format!("the pattern `{pattern}`: {error}"))
}

/// How many times as many bytes a character can become.
fn growth(step: &NormalizerWrapper) -> usize {
    match step {
        NormalizerWrapper::StripNormalizer(_)
        | NormalizerWrapper::StripAccents(_)
        | NormalizerWrapper::Nmt(_) => 1,
        NormalizerWrapper::ByteLevel(_) => 2,
        NormalizerWrapper::NFC(_) | NormalizerWrapper::NFD(_) | NormalizerWrapper::Lowercase(_) => {
            3
        }
        _ => GROWTH_OF_ANY,
    }
}

impl Work {
    fn new(bytes: usize) -> Self {
        let most_steps =
            MOST_STEPS_OF_ANY.saturating_add(MOST_STEPS_PER_BYTE.saturating_mul(bytes as u64));
        Self {
            most_steps,
            most_bytes: MOST_GROWN.max(bytes.saturating_mul(4)),
            used: Mutex::default(),
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Used) -> T) -> T {
        act(&mut self.used.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The error that was remembered, as the crate drops those of normalizers.
    fn checked(&self) -> std::result::Result<(), Excess> {
        self.with(|used| used.excess.map_or(Ok(()), Err))
    }

    fn find(
        &self,
        pattern: &Pattern,
        text: &str,
    ) -> std::result::Result<Vec<(usize, usize)>, Excess> {
        self.with(|used| {
            let mut left = self.most_steps.saturating_sub(used.steps);
            let found = pattern.find_all(text, &mut left);
            used.steps = self.most_steps - left;
            let most = usize::try_from(self.most_steps).unwrap_or(usize::MAX);
            found.map_err(|OutOfSteps| {
                *used.excess.insert(Excess { what: "steps of the tokenizer's patterns", most })
            })
        })
    }

    /// Returns whether the present piece may become so long.
    fn allows(&self, bytes: usize) -> bool {
        self.with(|used| used.bytes.saturating_add(bytes) <= self.most_bytes)
    }

    fn check(&self, bytes: usize) -> std::result::Result<(), Excess> {
        if self.allows(bytes) {
            return Ok(());
        }
        let excess = Excess { what: "bytes once it is normalized", most: self.most_bytes };
        self.with(|used| Err(*used.excess.insert(excess)))
    }
}

/// The normalizers of a tokenizer, on a text.
struct Normalizing<'a> {
    steps: &'a [Normalize],
    work: &'a Work,
}

impl Normalizer for Normalizing<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> Result<()> {
        self.work.checked()?;
        self.steps.iter().try_for_each(|step| step.run(text, self.work))?;
        self.work.with(|used| used.bytes += text.len());
        Ok(())
    }
}

impl Normalize {
    /// Runs it on a piece of a text. Its length is known before it is allocated.
    fn run(&self, text: &mut NormalizedString, work: &Work) -> Result<()> {
        match self {
            Self::Replace { .. } if text.is_empty() => Ok(()),
            Self::Replace { pattern, content } => {
                let found = work.find(pattern, text.get())?;
                let removed: usize = found.iter().map(|(start, end)| end - start).sum();
                work.check(
                    (text.len() - removed)
                        .saturating_add(found.len().saturating_mul(content.len())),
                )?;
                text.replace(Found(found), content)
            }
            Self::Prepend(prefix) => {
                work.check(text.len() + prefix.len())?;
                if !text.is_empty() {
                    text.prepend(prefix);
                }
                Ok(())
            }
            Self::Characters { step, growth } => {
                if !work.allows(text.len().saturating_mul(*growth)) {
                    check_length(step, text.get(), work)?;
                }
                step.normalize(text)
            }
        }
    }
}

/// Refuses a text that a step would make too long: it is normalized in short parts, which are
/// dropped.
fn check_length(step: &NormalizerWrapper, text: &str, work: &Work) -> Result<()> {
    let (mut rest, mut bytes) = (text, 0);
    while !rest.is_empty() {
        let end = (0..=SAMPLE.min(rest.len()))
            .rev()
            .find(|&at| rest.is_char_boundary(at))
            .unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        let mut part = NormalizedString::from(part);
        step.normalize(&mut part)?;
        bytes += part.len();
        work.check(bytes)?;
        rest = after;
    }
    Ok(())
}

impl PreTokenize {
    fn run(&self, pieces: &mut PreTokenizedString, work: &Work) -> Result<()> {
        match self {
            Self::Split { pattern, split } => pieces.split(|_, piece| {
                let found = Found(work.find(pattern, piece.get())?);
                if split.invert {
                    piece.split(Invert(found), split.behavior)
                } else {
                    piece.split(found, split.behavior)
                }
            }),
            Self::Other(step) => step.pre_tokenize(pieces),
        }
    }
}

/// Matches that were found.
struct Found(Vec<(usize, usize)>);

impl tokenizers::pattern::Pattern for Found {
    fn find_matches(&self, text: &str) -> Result<Vec<(Offsets, bool)>> {
        // Nothing is found in an empty text, as the crate has it.
        if text.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let (mut parts, mut end) = (Vec::with_capacity(2 * self.0.len() + 1), 0);
        for &(start, after) in &self.0 {
            if end < start {
                parts.push(((end, start), false));
            }
            parts.push(((start, after), true));
            end = after;
        }
        if end < text.len() {
            parts.push(((end, text.len()), false));
        }
        Ok(parts)
    }
}

#[cfg(test)]
mod tests;
