//! How a text is continued: everything that a caller may choose.

use super::{engine::SessionOptions, sampling::Sampling};
use crate::{
    element::Element,
    error::{Error, Result},
};
use std::sync::Arc;

/// How a text is continued.
///
/// ```
/// use bitnet_wgpu::model::{GenerateOptions, Sampling};
///
/// let options = GenerateOptions::default().max_tokens(100).sampling(Sampling::GREEDY.temperature(0.8).top_p(0.95)).stop(["\n\n"]);
/// assert_eq!(options.max_tokens, 100);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// The most tokens to generate: 256, unless it is set.
    pub max_tokens: usize,
    /// How each is chosen: [`Sampling::GREEDY`], unless it is set.
    pub sampling: Sampling,
    /// Go on after an end-of-text token.
    pub ignore_eos: bool,
    /// Strings at which the text ends; the first that occurs, and what follows it, is left out of [`Token::text`](super::Token::text).
    pub stop: Vec<String>,
    /// What is added to the logits of these tokens; -∞ forbids one.
    pub logit_bias: Vec<(u32, f32)>,
    /// Changes the logits before a token is chosen.
    pub logits: Option<LogitsHook>,
    /// The type of cached keys and values on a GPU; see [`SessionOptions::cache`].
    pub cache: Element,
}

/// What a caller does with the logits of the next token: given the tokens so far, the prompt's among them, it changes `[vocab]` logits in place. It
/// runs on the generation's thread, after biases and penalties.
#[derive(Clone)]
pub struct LogitsHook(Arc<Change>);

type Change = dyn Fn(&[u32], &mut [f32]) + Send + Sync;

impl LogitsHook {
    pub(super) fn call(&self, tokens: &[u32], logits: &mut [f32]) {
        (self.0)(tokens, logits);
    }
}

impl std::fmt::Debug for LogitsHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogitsHook")
    }
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_tokens: 256,
            sampling: Sampling::GREEDY,
            ignore_eos: false,
            stop: Vec::new(),
            logit_bias: Vec::new(),
            logits: None,
            cache: Element::F32,
        }
    }
}

impl GenerateOptions {
    /// Sets [`GenerateOptions::max_tokens`].
    #[must_use]
    pub fn max_tokens(self, max_tokens: usize) -> Self {
        Self { max_tokens, ..self }
    }

    /// Sets [`GenerateOptions::sampling`].
    #[must_use]
    pub fn sampling(self, sampling: Sampling) -> Self {
        Self { sampling, ..self }
    }

    /// Sets [`GenerateOptions::ignore_eos`].
    #[must_use]
    pub fn ignore_eos(self, ignore_eos: bool) -> Self {
        Self { ignore_eos, ..self }
    }

    /// Sets [`GenerateOptions::cache`].
    #[must_use]
    pub fn cache(self, cache: Element) -> Self {
        Self { cache, ..self }
    }

    /// Sets [`GenerateOptions::stop`].
    #[must_use]
    pub fn stop<S: Into<String>>(self, stop: impl IntoIterator<Item = S>) -> Self {
        Self { stop: stop.into_iter().map(Into::into).collect(), ..self }
    }

    /// Sets [`GenerateOptions::logit_bias`].
    #[must_use]
    pub fn logit_bias(self, logit_bias: impl IntoIterator<Item = (u32, f32)>) -> Self {
        Self { logit_bias: logit_bias.into_iter().collect(), ..self }
    }

    /// Sets [`GenerateOptions::logits`].
    #[must_use]
    pub fn logits(self, change: impl Fn(&[u32], &mut [f32]) + Send + Sync + 'static) -> Self {
        Self { logits: Some(LogitsHook(Arc::new(change))), ..self }
    }

    /// Checks that the numbers are in range for a vocabulary.
    ///
    /// # Errors
    /// [`Error::Invalid`] for one that is not, or an empty stop string.
    pub fn check(&self, vocab: usize) -> Result<()> {
        if let Some((id, bias)) = self.logit_bias.iter().find(|(id, bias)| *id as usize >= vocab || bias.is_nan() || *bias == f32::INFINITY)
        {
            let what = format!("a logit bias of {bias} for token {id}; the vocabulary has {vocab}, a bias is finite or -inf");
            return Err(Error::Invalid { op: "generate", what });
        }
        if self.stop.iter().any(String::is_empty) {
            return Err(Error::Invalid { op: "generate", what: "a stop string is empty".into() });
        }
        self.sampling.check()
    }

    /// Room for prompts of up to `prompt` tokens and what may follow in a model's `context`. The last token generated is not appended.
    pub(super) fn room(&self, sequences: usize, prompt: usize, context: usize) -> Result<SessionOptions> {
        if prompt > context {
            return Err(Error::Context { needed: prompt, capacity: context });
        }
        let capacity = prompt.saturating_add(self.max_tokens.saturating_sub(1)).clamp(1, context);
        Ok(SessionOptions::new(sequences, capacity).cache(self.cache))
    }
}
