//! Choosing the next token of a sequence.

use super::{
    engine::TokenLogit,
    options::GenerateOptions,
    sampling::{Sampler, Sampling},
};
use crate::{error::Result, ops::transformer::TopK};
use std::collections::HashMap;

/// Chooses the tokens of one sequence, and knows those so far.
pub(super) struct Chooser {
    options: GenerateOptions,
    sampler: Sampler,
    tokens: Vec<u32>,
    /// How many of them are the prompt's.
    prompt: usize,
    /// Tokens that end the text.
    ends: Vec<u32>,
}

impl Chooser {
    /// For the n-th sequence of a batch, which draws its random numbers from seed + n.
    pub fn new(options: &GenerateOptions, n: u64, prompt: &[u32], ends: &[u32]) -> Result<Self> {
        let sampling = options.sampling;
        let sampler = Sampler::new(sampling.seed(sampling.seed.wrapping_add(n)))?;
        Ok(Self { options: options.clone(), sampler, tokens: prompt.to_vec(), prompt: prompt.len(), ends: ends.to_vec() })
    }

    /// The prompt's tokens, then those that were chosen.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many tokens were chosen.
    pub fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Does this token end the text?
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// The token that was chosen last.
    pub fn last(&self) -> u32 {
        self.tokens.last().copied().unwrap_or(0)
    }

    /// How many of the largest logits it chooses from, where it does not need all.
    pub fn wanted(&self) -> Option<usize> {
        let Sampling { top_k, .. } = self.options.sampling;
        let k = if self.options.sampling.is_greedy() { 1 } else { top_k };
        ((1..=TopK::MAX).contains(&k) && !self.changes_logits()).then_some(k)
    }

    fn changes_logits(&self) -> bool {
        let GenerateOptions { logits, logit_bias, sampling, bad_words, no_repeat_ngram, .. } = &self.options;
        let forbids = !bad_words.is_empty() || *no_repeat_ngram > 0 || self.must_go_on();
        forbids || logits.is_some() || !logit_bias.is_empty() || sampling.penalises()
    }

    /// Are there too few tokens yet for an end?
    fn must_go_on(&self) -> bool {
        self.generated() < self.options.min_tokens
    }

    /// Chooses from all logits, which biases, penalties, forbidden tokens and the hook change.
    pub fn of_logits(&mut self, logits: &mut [f32]) -> Result<u32> {
        for &(id, bias) in &self.options.logit_bias {
            logits[id as usize] += bias;
        }
        self.penalise(logits);
        self.forbid(logits);
        if let Some(hook) = &self.options.logits {
            hook.call(&self.tokens, logits);
        }
        let id = self.sampler.sample_logits(logits)?;
        Ok(self.chosen(id))
    }

    /// Chooses from the largest logits, largest first. A vocabulary may have fewer than were asked for; a NaN has no id, and stays for the sampler to
    /// find.
    pub fn of_top(&mut self, mut top: Vec<TokenLogit>) -> Result<u32> {
        top.retain(|&(id, logit)| id != TopK::NONE || logit.is_nan());
        let id = self.sampler.sample(&top)?;
        Ok(self.chosen(id))
    }

    /// Takes a token that was chosen elsewhere.
    pub fn chosen(&mut self, id: u32) -> u32 {
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
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.options.sampling;
        if !self.options.sampling.penalises() {
            return;
        }
        let mut generated: HashMap<u32, u32> = self.tokens[..self.prompt].iter().map(|&id| (id, 0)).collect();
        for &id in &self.tokens[self.prompt..] {
            *generated.entry(id).or_default() += 1;
        }
        for (id, count) in generated {
            let logit = &mut logits[id as usize];
            *logit = if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
            if count > 0 {
                *logit -= presence_penalty + frequency_penalty * count as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(chooser.wanted(), None, "it needs all logits");
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
        assert_eq!(chooser(options().min_tokens(1)).wanted(), None);
        assert_eq!(chooser(options().no_repeat_ngram(2)).wanted(), None);
        assert_eq!(chooser(words()).wanted(), None);
    }

    #[test]
    fn no_more_logits_are_wanted_than_needed() {
        let wanted = |sampling: Sampling| chooser(GenerateOptions::default().sampling(sampling)).wanted();
        assert_eq!(wanted(Sampling::GREEDY), Some(1));
        assert_eq!(wanted(Sampling::GREEDY.temperature(1.0)), None);
        assert_eq!(wanted(Sampling::GREEDY.temperature(1.0).top_k(40)), Some(40));
        assert_eq!(wanted(Sampling::GREEDY.temperature(1.0).top_k(TopK::MAX + 1)), None);
        assert_eq!(wanted(Sampling::GREEDY.repetition_penalty(1.1)), None);
    }
}
