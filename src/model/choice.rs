//! Choosing the next token of a sequence.

use super::{
    engine::{Changes, Choice},
    options::GenerateOptions,
    sampling::Sampler,
};
use crate::{
    error::{Error, Result},
    ops::transformer::{Penalties, TopK},
};
use std::collections::HashMap;

/// Chooses the tokens of one sequence, and knows those so far.
pub(super) struct Chooser {
    options: GenerateOptions,
    /// Of each token, the sum of what is added to its logit.
    bias: HashMap<u32, f32>,
    sampler: Sampler,
    tokens: Vec<u32>,
    /// How many of them are the prompt's.
    prompt: usize,
    /// How many of them were there from the beginning: the prompt's, and those that were generated before.
    given: usize,
    /// Tokens that end the text.
    ends: Vec<u32>,
}

impl Chooser {
    /// For the n-th sequence of a batch, which draws its random numbers from seed + n.
    pub fn new(options: &GenerateOptions, n: u64, prompt: &[u32], ends: &[u32]) -> Result<Self> {
        let sampling = options.sampling;
        let sampler = Sampler::new(sampling.seed(sampling.seed.wrapping_add(n)))?;
        let mut bias = HashMap::new();
        options.logit_bias.iter().for_each(|&(id, more)| *bias.entry(id).or_default() += more);
        Ok(Self {
            options: options.clone(),
            bias,
            sampler,
            tokens: prompt.to_vec(),
            prompt: prompt.len(),
            given: prompt.len(),
            ends: ends.to_vec(),
        })
    }

    /// The prompt's tokens, then those that were chosen.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many tokens were chosen, those before a resumption among them.
    pub fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Has it chosen a token? The last that it chose is not in the session yet.
    pub fn has_chosen(&self) -> bool {
        self.tokens.len() > self.given
    }

    /// Takes a token that was chosen before.
    pub fn resume(&mut self, id: u32) {
        self.given += 1;
        self.tokens.push(id);
    }

    /// Does this token end the text?
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// The token that was chosen last.
    pub fn last(&self) -> u32 {
        self.tokens.last().copied().unwrap_or(0)
    }

    /// Does a token change the logits of all that follow it?
    pub fn penalises(&self) -> bool {
        self.options.sampling.penalises()
    }

    /// Do penalties or biases change the logits?
    pub fn changes_logits(&self) -> bool {
        self.penalises() || !self.bias.is_empty()
    }

    /// Can the engine choose the next token? It knows no hook, and does not forbid tokens for what came before them.
    pub fn is_for_engine(&self) -> bool {
        let GenerateOptions { logits, bad_words, no_repeat_ngram, .. } = &self.options;
        logits.is_none() && bad_words.is_empty() && *no_repeat_ngram == 0 && !self.must_go_on()
    }

    /// Can the engine choose the next tokens of these? It chooses for all in the same way, but for their random numbers.
    pub fn are_for_engine<'a>(mut choosers: impl Iterator<Item = &'a Self> + Clone) -> bool {
        let Some(first) = choosers.clone().next() else { return false };
        choosers.all(|chooser| chooser.is_for_engine() && chooser.is_like(first))
    }

    /// Does the engine choose for both in the same way?
    fn is_like(&self, other: &Self) -> bool {
        let (a, b) = (self.options.sampling, other.options.sampling);
        a.options == b.options && a.penalties == b.penalties && self.bias == other.bias
    }

    /// How the engine chooses tokens of some of `slots` sequences, whose last ones are its next step's input.
    pub fn for_engine<'a>(choosers: impl Iterator<Item = (usize, &'a Self)> + Clone, slots: usize, vocab: usize) -> Option<Choice> {
        let (_, Self { options: GenerateOptions { sampling, .. }, bias, .. }) = choosers.clone().next()?;
        let changes = || {
            let (mut dense, mut counts) = (vec![0.0; vocab], vec![0; slots * vocab]);
            bias.iter().for_each(|(&id, &bias)| dense[id as usize] = bias);
            choosers.clone().for_each(|(slot, chooser)| chooser.counts_before_last(&mut counts[slot * vocab..][..vocab]));
            Changes { penalties: sampling.penalties, bias: dense, counts }
        };
        let changes = choosers.clone().next()?.1.changes_logits().then(changes);
        let mut seeds = vec![0; slots];
        choosers.for_each(|(slot, chooser)| seeds[slot] = chooser.sampler.sampling().seed);
        Some(Choice { options: sampling.options, seeds, changes })
    }

    /// The counts of [`penalize`](crate::transformer::penalize()), without the last token.
    fn counts_before_last(&self, counts: &mut [u32]) {
        for (i, &id) in self.tokens[..self.tokens.len().saturating_sub(1)].iter().enumerate() {
            self.count(i, &mut counts[id as usize]);
        }
    }

    /// Counts token `i` of the text.
    fn count(&self, i: usize, count: &mut u32) {
        if i < self.prompt { *count |= Penalties::SEEN } else { *count += 1 }
    }

    /// Are there too few tokens yet for an end?
    fn must_go_on(&self) -> bool {
        self.generated() < self.options.min_tokens
    }

    /// Chooses from all logits, which biases, penalties, forbidden tokens and the hook change.
    pub fn of_logits(&mut self, logits: &mut [f32]) -> Result<u32> {
        for (&id, &bias) in self.bias.iter().filter(|(_, bias)| **bias != 0.0) {
            logits[id as usize] += bias;
        }
        self.penalise(logits);
        self.forbid(logits);
        if let Some(hook) = &self.options.logits {
            hook.call(&self.tokens, logits);
        }
        let id = self.sampler.at(self.tokens.len().saturating_sub(1) as u32).sample_logits(logits)?;
        Ok(self.chosen(id))
    }

    /// Takes a token that the engine chose.
    pub fn of_engine(&mut self, id: u32) -> Result<u32> {
        if id == TopK::NONE {
            return Err(Error::Invalid { op: "generate", what: "the logits are not finite".into() });
        }
        Ok(self.chosen(id))
    }

    fn chosen(&mut self, id: u32) -> u32 {
        self.tokens.push(id);
        id
    }

    /// Forbids what would end the text too early, complete a bad word, or repeat a run of tokens.
    fn forbid(&self, logits: &mut [f32]) {
        let mut forbid = |id: u32| logits[id as usize] = f32::NEG_INFINITY;
        if self.must_go_on() {
            self.ends.iter().for_each(|&id| forbid(id));
        }
        for word in &self.options.bad_words {
            if let Some((&last, before)) = word.split_last()
                && self.tokens.ends_with(before)
            {
                forbid(last);
            }
        }
        let Some(length) = self.options.no_repeat_ngram.checked_sub(1) else { return };
        if let Some(at) = self.tokens.len().checked_sub(length) {
            let last = &self.tokens[at..];
            let repeated = self.tokens.windows(length + 1).filter(|run| &run[..length] == last);
            repeated.for_each(|run| forbid(run[length]));
        }
    }

    fn penalise(&self, logits: &mut [f32]) {
        if !self.penalises() {
            return;
        }
        let (penalties, mut counts) = (self.options.sampling.penalties, HashMap::new());
        for (i, &id) in self.tokens.iter().enumerate() {
            self.count(i, counts.entry(id).or_default());
        }
        for (id, count) in counts {
            logits[id as usize] = penalties.apply(logits[id as usize], count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::sampling::Sampling, *};
    use crate::ops::transformer::SampleOptions;

    fn chooser(options: GenerateOptions) -> Chooser {
        Chooser::new(&options, 0, &[0, 1], &[3]).unwrap()
    }

    #[test]
    fn penalties_are_those_of_the_definitions() {
        // Tokens 0 and 1 are of the prompt; 1 was then generated twice, 2 once.
        let penalised = |sampling: Sampling| {
            let mut chooser = chooser(GenerateOptions::default().sampling(sampling));
            for id in [1, 1, 2] {
                chooser.chosen(id);
            }
            let mut logits = [2.0f32, 4.0, -3.0, 5.0];
            chooser.penalise(&mut logits);
            logits
        };
        assert_eq!(penalised(Sampling::GREEDY), [2.0, 4.0, -3.0, 5.0]);
        assert_eq!(penalised(Sampling::GREEDY.repetition_penalty(2.0)), [1.0, 2.0, -6.0, 5.0]);
        assert_eq!(penalised(Sampling::GREEDY.presence_penalty(0.5)), [2.0, 3.5, -3.5, 5.0]);
        assert_eq!(penalised(Sampling::GREEDY.frequency_penalty(0.5)), [2.0, 3.0, -3.5, 5.0]);
        assert_eq!(
            penalised(Sampling::GREEDY.repetition_penalty(2.0).presence_penalty(1.0).frequency_penalty(1.0)),
            [1.0, -1.0, -8.0, 5.0]
        );
    }

    #[test]
    fn biases_and_hooks_decide() {
        let logits = || [2.0f32, 4.0, -3.0, 5.0];
        assert_eq!(chooser(GenerateOptions::default()).of_logits(&mut logits()).unwrap(), 3);
        assert_eq!(chooser(GenerateOptions::default().logit_bias([(3, f32::NEG_INFINITY)])).of_logits(&mut logits()).unwrap(), 1);
        assert_eq!(chooser(GenerateOptions::default().logit_bias([(0, 3.5)])).of_logits(&mut logits()).unwrap(), 0);
        let hook = |tokens: &[u32], logits: &mut [f32]| logits[tokens.len()] = 9.0;
        let mut chooser = chooser(GenerateOptions::default().logits(hook));
        assert!(!chooser.is_for_engine(), "it needs all logits");
        assert_eq!([chooser.of_logits(&mut logits()).unwrap(), chooser.of_logits(&mut logits()).unwrap()], [2, 3]);
    }

    #[test]
    fn what_is_forbidden_is_not_chosen() {
        let forbidden = |options: GenerateOptions, generated: &[u32]| {
            let mut chooser = chooser(options);
            for &id in generated {
                chooser.chosen(id);
            }
            let mut logits = [0.0; 4];
            chooser.forbid(&mut logits);
            (0..4).filter(|&id| logits[id] == f32::NEG_INFINITY).collect::<Vec<usize>>()
        };
        let options = GenerateOptions::default;
        assert_eq!(forbidden(options(), &[2]), [0usize; 0]);
        // 3 ends the text.
        assert_eq!(forbidden(options().min_tokens(2), &[2]), [3]);
        assert_eq!(forbidden(options().min_tokens(2), &[2, 2]), [0usize; 0]);
        let words = || options().bad_words([vec![2], vec![1, 0], vec![0, 1, 3]]);
        assert_eq!(forbidden(words(), &[]), [0, 2, 3]);
        assert_eq!(forbidden(words(), &[1]), [0, 2]);
        assert_eq!(forbidden(words(), &[1, 0]), [2]);
        // The text begins with 0 1.
        assert_eq!(forbidden(options().no_repeat_ngram(1), &[3]), [0, 1, 3]);
        assert_eq!(forbidden(options().no_repeat_ngram(2), &[2, 0]), [1]);
        assert_eq!(forbidden(options().no_repeat_ngram(3), &[2, 0, 1]), [2]);
        assert_eq!(forbidden(options().no_repeat_ngram(3), &[2, 1]), [0usize; 0]);
        assert_eq!(forbidden(options().no_repeat_ngram(9), &[2, 1]), [0usize; 0]);
        for options in [options().min_tokens(1), options().no_repeat_ngram(2), words()] {
            assert!(!chooser(options).is_for_engine());
        }
    }

    #[test]
    fn the_engine_gets_what_it_needs() {
        let choice = |options: GenerateOptions| {
            let mut chooser = chooser(options);
            assert!(chooser.is_for_engine());
            [1, 2, 2, 3].into_iter().for_each(|id| chooser.tokens.push(id));
            Chooser::for_engine([(0, &chooser), (2, &chooser)].into_iter(), 3, 5).unwrap()
        };
        let plain = choice(GenerateOptions::default().sampling(Sampling::GREEDY.temperature(0.5).top_k(3).seed(9)));
        assert_eq!((plain.options, plain.seeds), (SampleOptions::default().temperature(0.5).top_k(3), vec![9, 0, 9]));
        assert!(plain.changes.is_none());
        // 0 and 1 are of the prompt; the last token is the step's input, and counted there.
        let penalised = choice(GenerateOptions::default().sampling(Sampling::GREEDY.presence_penalty(0.5))).changes.unwrap();
        let counts = [Penalties::SEEN, Penalties::SEEN + 1, 2, 0, 0];
        assert_eq!((penalised.counts, penalised.bias), ([counts, [0; 5], counts].concat(), vec![0.0; 5]));
        let biased = choice(GenerateOptions::default().logit_bias([(4, 1.0), (2, -1.0), (4, 0.5)])).changes.unwrap();
        assert_eq!((biased.penalties, biased.bias), (Penalties::NONE, vec![0.0, 0.0, -1.0, 0.0, 1.5]));
    }
}
