//! How a prompt is continued: everything that a caller may choose.

use super::{constraint::ConstraintSource, sampling::Sampling, speculation::Speculation};
use crate::{
    element::Element,
    error::{Error, Result},
    formats::ModelConfig,
    limits::generation::{LONGEST_SALT, LONGEST_STOP, MOST_STOP_BYTES},
    model::engine::interface::SessionOptions,
};
use std::sync::Arc;

/// How a prompt is continued.
///
/// ```
/// use bitnet_wgpu::model::{GenerateOptions, Sampling};
///
/// let sampling = Sampling::GREEDY.temperature(0.8).top_p(0.95);
/// let options = GenerateOptions::default().max_tokens(100).sampling(sampling).stop(["\n\n"]);
/// assert_eq!(options.get_sampling(), sampling);
/// ```
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    pub(crate) max_tokens: usize,
    pub(crate) sampling: Sampling,
    /// Clones of the options share them.
    pub(crate) stop: Arc<[String]>,
    pub(crate) logit_bias: Vec<(u32, f32)>,
    pub(crate) resumed: usize,
    pub(crate) speculate: Option<Speculation>,
    pub(crate) ignore_eos: bool,
    pub(crate) max_length: Option<usize>,
    pub(crate) capacity: usize,
    pub(crate) min_tokens: usize,
    pub(crate) bad_words: Vec<Vec<u32>>,
    pub(crate) no_repeat_ngram: usize,
    pub(crate) logits: Option<LogitsHook>,
    pub(crate) logprobs: Option<usize>,
    pub(crate) kv_type: Option<Element>,
    pub(crate) cache_salt: Option<Arc<str>>,
    /// What restricts the tokens.
    pub(crate) constraint: Option<Arc<dyn ConstraintSource>>,
}

/// A caller's function that changes the logits of the next token.
#[derive(Clone)]
pub(crate) struct LogitsHook(Arc<Change>);

type Change = dyn Fn(&[u32], &mut [f32]) + Send + Sync;

impl LogitsHook {
    pub fn call(&self, tokens: &[u32], logits: &mut [f32]) {
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
            stop: Arc::default(),
            max_length: None,
            capacity: 0,
            min_tokens: 0,
            resumed: 0,
            bad_words: Vec::new(),
            no_repeat_ngram: 0,
            logit_bias: Vec::new(),
            logits: None,
            logprobs: None,
            kv_type: None,
            speculate: None,
            cache_salt: None,
            constraint: None,
        }
    }
}

impl GenerateOptions {
    /// Sets the most tokens to generate, by default 256, and removes the limit of
    /// [`max_length`](Self::max_length()).
    #[must_use]
    pub fn max_tokens(self, max_tokens: usize) -> Self {
        Self { max_tokens, max_length: None, ..self }
    }

    /// Sets how each token is chosen; the default is [`Sampling::GREEDY`].
    #[must_use]
    pub fn sampling(self, sampling: Sampling) -> Self {
        Self { sampling, ..self }
    }

    /// Returns how each token is chosen, for changes to what a model's authors recommend:
    ///
    /// ```
    /// # fn options(model: &bitnet_wgpu::model::Model) {
    /// let options = model.options();
    /// let sampling = options.get_sampling().temperature(0.2);
    /// let options = options.sampling(sampling);
    /// # }
    /// ```
    pub fn get_sampling(&self) -> Sampling {
        self.sampling
    }

    /// Continues after an end-of-text token.
    #[must_use]
    pub fn ignore_eos(self, ignore_eos: bool) -> Self {
        Self { ignore_eos, ..self }
    }

    /// Sets the type of the KV cache; see
    /// [`SessionOptions::kv_type`](crate::model::SessionOptions::kv_type).
    #[must_use]
    pub fn kv_type(self, kv_type: impl Into<Option<Element>>) -> Self {
        Self { kv_type: kv_type.into(), ..self }
    }

    /// Decodes speculatively: the same text in less time, if drafts are good. A batch refuses it.
    #[must_use]
    pub fn speculate(self, speculate: impl Into<Option<Speculation>>) -> Self {
        Self { speculate: speculate.into(), ..self }
    }

    /// Limits the reuse of cached prompt prefixes in a [`Batch`](crate::model::Batch) to requests of
    /// an equal salt; requests without one share theirs. Whether a prefix was cached shows in the
    /// time to the first token and in
    /// [`Generation::cached_tokens`](crate::model::Generation::cached_tokens), so that a user
    /// could otherwise learn how prompts of others begin. At most 1024 bytes.
    #[must_use]
    pub fn cache_salt(self, cache_salt: Option<impl Into<Arc<str>>>) -> Self {
        Self { cache_salt: cache_salt.map(Into::into), ..self }
    }

    /// Adds strings at which the text ends. The first that occurs, and what follows it, is left out
    /// of [`Token::text`](crate::model::Token::text). At most 4096 bytes each, and 16 KiB together.
    #[must_use]
    pub fn stop<S: Into<String>>(self, stop: impl IntoIterator<Item = S>) -> Self {
        let added = stop.into_iter().map(Into::into);
        Self { stop: self.stop.iter().cloned().chain(added).collect(), ..self }
    }

    /// Sets the most tokens of prompt and continuation together. By default only the model's context
    /// limits them.
    #[must_use]
    pub fn max_length(self, max_length: Option<usize>) -> Self {
        Self { max_length, ..self }
    }

    /// Sets the least number of tokens that a session of [`Model::generate`] has room for, up to the
    /// model's context. By default a session has room for the prompt and `max_tokens`. More is for
    /// texts that go on with [`Model::generate_in`] later.
    ///
    /// [`Model::generate`]: crate::model::Model::generate
    /// [`Model::generate_in`]: crate::model::Model::generate_in
    #[must_use]
    pub fn capacity(self, capacity: usize) -> Self {
        Self { capacity, ..self }
    }

    /// Forbids end-of-text tokens before `min_tokens` tokens are generated.
    #[must_use]
    pub fn min_tokens(self, min_tokens: usize) -> Self {
        Self { min_tokens, ..self }
    }

    /// Goes on with a generation that broke off, when its device was lost perhaps: the last
    /// `tokens` of the prompt are those that it gave. What follows is what would have followed: the
    /// same options, but for this one, count these tokens as generated, for lengths, penalties and
    /// stop strings. (With [`ModelBuilder::f16_attention`](crate::model::ModelBuilder::f16_attention) not
    /// to the last bit.) The n-th sequence of a batch goes on with a seed greater by n. Drafts of a
    /// model that fails, since its device is gone perhaps, are left out.
    ///
    /// ```no_run
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// use bitnet_wgpu::model::{GenerateOptions, Model};
    ///
    /// let model = Model::open("path/to/a/model")?;
    /// let (options, mut text) = (GenerateOptions::default(), model.encode_prompt("Once upon a time")?);
    /// let prompt = text.len();
    /// for token in model.generate_ids(&text.clone(), &options)? {
    ///     let Ok(token) = token else { break }; // the device is gone, say
    ///     text.push(token.id);
    /// }
    /// // On this device or another:
    /// let rest = model.generate_ids(&text, &options.resumed(text.len() - prompt))?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn resumed(self, tokens: usize) -> Self {
        Self { resumed: tokens, ..self }
    }

    /// Sets runs of tokens that never occur: the last of one is not chosen after the others.
    #[must_use]
    pub fn bad_words(self, bad_words: impl IntoIterator<Item = Vec<u32>>) -> Self {
        Self { bad_words: bad_words.into_iter().collect(), ..self }
    }

    /// Lets no run of `no_repeat_ngram` tokens occur twice, the prompt's among them; 0 allows all.
    #[must_use]
    pub fn no_repeat_ngram(self, no_repeat_ngram: usize) -> Self {
        Self { no_repeat_ngram, ..self }
    }

    /// Adds numbers to the logits of tokens; -∞ forbids a token.
    #[must_use]
    pub fn logit_bias(mut self, logit_bias: impl IntoIterator<Item = (u32, f32)>) -> Self {
        self.logit_bias.extend(logit_bias);
        self
    }

    /// Sets a function that changes the logits of the next token in place. It gets the tokens so
    /// far, the prompt's among them, and `[vocab]` logits. It runs on the generation's thread, after
    /// biases, penalties and forbidden tokens.
    #[must_use]
    pub fn logits(self, change: impl Fn(&[u32], &mut [f32]) + Send + Sync + 'static) -> Self {
        Self { logits: Some(LogitsHook(Arc::new(change))), ..self }
    }

    /// Adds to each token its log-probability and those of the `top` most likely tokens, as
    /// [`Token::logprobs`](crate::model::Token::logprobs). Tokens do not change; the logits are read
    /// back in every step.
    #[must_use]
    pub fn logprobs(self, top: impl Into<Option<usize>>) -> Self {
        Self { logprobs: top.into(), ..self }
    }

    /// Options as a model's authors would have them: those of its generation_config.json, else the
    /// defaults. As in transformers, sampling without a temperature has one of 1, and without a
    /// `top_k` one of 50. What of it is not supported is logged as a warning.
    pub fn recommended(config: &ModelConfig) -> Self {
        let (defaults, options) = (&config.generation, Self::default());
        if !defaults.ignored.is_empty() {
            log::warn!(
                "generation_config.json: ignored unsupported settings: {}",
                defaults.ignored.join(", ")
            );
        }
        let mut sampling =
            Sampling::GREEDY.repetition_penalty(defaults.repetition_penalty.unwrap_or(1.0));
        if defaults.sample == Some(true) {
            sampling = sampling
                .temperature(defaults.temperature.unwrap_or(1.0))
                .top_k(defaults.top_k.unwrap_or(50));
            sampling =
                sampling.top_p(defaults.top_p.unwrap_or(1.0)).min_p(defaults.min_p.unwrap_or(0.0));
        }
        // A limit on prompt and continuation together stands in for one on the continuation.
        let most = if defaults.max_length.is_some() { usize::MAX } else { options.max_tokens };
        let options = options
            .max_tokens(defaults.max_tokens.unwrap_or(most))
            .max_length(defaults.max_length)
            .sampling(sampling);
        let options = options
            .min_tokens(defaults.min_tokens.unwrap_or(0))
            .no_repeat_ngram(defaults.no_repeat_ngram.unwrap_or(0));
        let suppressed = defaults.suppressed.iter().map(|&id| (id, f32::NEG_INFINITY));
        options.stop(&defaults.stop).bad_words(defaults.bad_words.clone()).logit_bias(suppressed)
    }

    /// Checks that the numbers are in range for a vocabulary.
    ///
    /// # Errors
    /// [`Error::Invalid`] for one that is not, a stop string that is empty or too long, or a draft
    /// model of another vocabulary.
    pub fn check(&self, vocab: usize) -> Result<()> {
        if let Some((id, bias)) = self
            .logit_bias
            .iter()
            .find(|(id, bias)| *id as usize >= vocab || bias.is_nan() || *bias == f32::INFINITY)
        {
            let what = format!(
                "a logit bias of {bias} for token {id}; the vocabulary has {vocab}, a bias is finite or -inf"
            );
            return Err(Error::Invalid { op: "generate", what });
        }
        let invalid = |what: String| Error::Invalid { op: "generate", what };
        let empty = |what: &str| invalid(format!("{what} is empty"));
        if self.stop.iter().any(String::is_empty) {
            return Err(empty("a stop string"));
        }
        let (longest, all) = (
            self.stop.iter().map(String::len).max().unwrap_or(0),
            self.stop.iter().map(String::len).sum::<usize>(),
        );
        if longest > LONGEST_STOP || all > MOST_STOP_BYTES {
            let what = format!(
                "stop strings of up to {longest} bytes, {all} together; at most {LONGEST_STOP} and {MOST_STOP_BYTES} are accepted"
            );
            return Err(invalid(what));
        }
        if let Some(length) =
            self.cache_salt.as_ref().map(|salt| salt.len()).filter(|&length| length > LONGEST_SALT)
        {
            return Err(invalid(format!(
                "a cache salt of {length} bytes; at most {LONGEST_SALT} are accepted"
            )));
        }
        if self.bad_words.iter().any(Vec::is_empty) {
            return Err(empty("a bad word"));
        }
        if let Some(id) = self.bad_words.iter().flatten().find(|&&id| id as usize >= vocab) {
            return Err(invalid(format!("token {id} in a bad word; the vocabulary has {vocab}")));
        }
        if let Some(speculation) = &self.speculate {
            speculation.check(vocab)?;
        }
        self.sampling.check()
    }

    /// Room for this many sequences, with prompts of up to `prompt` tokens and what may follow in a
    /// model's `context`. The last token generated is not appended.
    ///
    /// # Errors
    /// [`Error::Context`] for a prompt that does not fit.
    pub(crate) fn room(
        &self,
        sequences: usize,
        prompt: usize,
        context: usize,
    ) -> Result<SessionOptions> {
        if prompt > context {
            return Err(Error::Context { needed: prompt, capacity: context });
        }
        let before = prompt.saturating_sub(self.resumed);
        let capacity = before
            .saturating_add(self.tokens_after(before).saturating_sub(1))
            .max(self.capacity)
            .clamp(prompt.clamp(1, context), context);
        Ok(SessionOptions::new(sequences, capacity).kv_type(self.kv_type))
    }

    /// The most tokens to generate after a prompt of this many.
    pub(crate) fn tokens_after(&self, prompt: usize) -> usize {
        self.max_length
            .map_or(self.max_tokens, |length| self.max_tokens.min(length.saturating_sub(prompt)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_strings_and_biases_are_added() {
        let options = GenerateOptions::default().stop(["a"]).logit_bias([(1, 0.5)]);
        let options = options.stop(["b".to_owned(), "c".to_owned()]).logit_bias([(1, 2.0)]);
        assert_eq!(*options.stop, ["a", "b", "c"]);
        assert_eq!(options.logit_bias, [(1, 0.5), (1, 2.0)]);
    }
}
