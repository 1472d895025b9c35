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
}

impl Chooser {
    /// For the n-th sequence of a batch, which draws its random numbers from seed + n.
    pub fn new(options: &GenerateOptions, n: u64, prompt: &[u32]) -> Result<Self> {
        let sampling = options.sampling;
        let sampler = Sampler::new(sampling.seed(sampling.seed.wrapping_add(n)))?;
        Ok(Self { options: options.clone(), sampler, tokens: prompt.to_vec(), prompt: prompt.len() })
    }

    /// The prompt's tokens, then those that were chosen.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
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
        self.options.logits.is_some() || !self.options.logit_bias.is_empty() || self.options.sampling.penalises()
    }

    /// Chooses from all logits, which biases, penalties and hook change.
    pub fn of_logits(&mut self, logits: &mut [f32]) -> Result<u32> {
        for &(id, bias) in &self.options.logit_bias {
            logits[id as usize] += bias;
        }
        self.penalise(logits);
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
        Chooser::new(&options, 0, &[0, 1]).unwrap()
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
    fn no_more_logits_are_wanted_than_needed() {
        let wanted = |sampling: Sampling| chooser(GenerateOptions::default().sampling(sampling)).wanted();
        assert_eq!(wanted(Sampling::GREEDY), Some(1));
        assert_eq!(wanted(Sampling::GREEDY.temperature(1.0)), None);
        assert_eq!(wanted(Sampling::GREEDY.temperature(1.0).top_k(40)), Some(40));
        assert_eq!(wanted(Sampling::GREEDY.temperature(1.0).top_k(TopK::MAX + 1)), None);
        assert_eq!(wanted(Sampling::GREEDY.repetition_penalty(1.1)), None);
    }
}
