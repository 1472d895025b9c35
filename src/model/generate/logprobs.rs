//! Log-probabilities of tokens.

use crate::ops::transformer::sample::order;

/// Log-probabilities at one position of a text, in nats, of the model's own distribution: before
/// biases, penalties and temperature.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TokenLogprobs {
    /// Log-probability of the text's token.
    pub logprob: f64,
    /// The most likely tokens and their log-probabilities, in falling order; of equals, the smaller
    /// id first.
    pub top: Vec<(u32, f64)>,
}

impl TokenLogprobs {
    /// Those of the token `id` and of the `top` most likely ones.
    pub(in crate::model) fn new(logits: &[f32], id: u32, top: usize) -> Self {
        let scale = LogSumExp::new(logits);
        let mut likely: Vec<(u32, f32)> = Vec::new();
        if top > 0 {
            likely.extend((0..).zip(logits.iter().copied()));
        }
        if top < likely.len() {
            likely.select_nth_unstable_by(top, order);
            likely.truncate(top);
        }
        likely.sort_unstable_by(order);
        Self {
            logprob: scale.logprob(logits[id as usize]),
            top: likely.into_iter().map(|(id, logit)| (id, scale.logprob(logit))).collect(),
        }
    }
}

/// Returns the log-probability of a token, in nats.
pub(in crate::model) fn logprob(logits: &[f32], id: u32) -> f64 {
    LogSumExp::new(logits).logprob(logits[id as usize])
}

/// The logarithm of the sum of exponentials of all logits, which a log-probability subtracts.
struct LogSumExp {
    largest: f32,
    /// Beyond the largest. In `f64`: it is a sum over a vocabulary.
    rest: f64,
}

impl LogSumExp {
    fn new(logits: &[f32]) -> Self {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
        Self { largest, rest: sum.ln() }
    }

    fn logprob(&self, logit: f32) -> f64 {
        f64::from(logit - self.largest) - self.rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{BatchOptions, GenerateOptions, Model, Sampling};
    use pollster::block_on;

    #[test]
    fn logprobs_follow_the_definition() {
        let logits = [1.0f32, 3.0, 3.0, -2.0];
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let expected = |id: usize| f64::from(logits[id]) - sum.ln();
        for top in 0..6 {
            let found = TokenLogprobs::new(&logits, 3, top);
            let ids: Vec<u32> = found.top.iter().map(|(id, _)| *id).collect();
            assert_eq!(ids, [1, 2, 0, 3][..top.min(4)]);
            assert!((found.logprob - expected(3)).abs() < 1e-12);
            for (id, logprob) in found.top {
                assert!((logprob - expected(id as usize)).abs() < 1e-12);
            }
        }
    }

    /// Whatever chooses the tokens, their log-probabilities are those that scoring gives.
    #[test]
    fn generated_logprobs_equal_scores() {
        let model = Model::builder("assets/tales-22m").cpu().build().unwrap();
        let batch = model.batch(BatchOptions::new(2, 64)).unwrap();
        let prompt = model.encode_prompt("The bear").unwrap();
        let sampled = Sampling::GREEDY.temperature(1.5).repetition_penalty(1.3).seed(4);
        for sampling in [Sampling::GREEDY, sampled] {
            let plain = GenerateOptions::default().max_tokens(12).sampling(sampling);
            let options = plain.clone().logit_bias([(7, -3.0)]).logprobs(3);
            let alone = model.generate_ids(&prompt, &options).unwrap();
            let tokens: Vec<_> = alone.into_iter().map(Result::unwrap).collect();
            let batched = batch.generate_ids(&prompt, &options).unwrap();
            assert_eq!(batched.into_iter().map(Result::unwrap).collect::<Vec<_>>(), tokens);
            let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
            let text = [&prompt[..], &ids].concat();
            let scores = block_on(model.score(&text)).unwrap();
            let logprobs = block_on(model.logprobs(&text, 3)).unwrap();
            assert_eq!(logprobs.len(), text.len() - 1);
            assert!(logprobs.iter().zip(&scores).all(|(found, score)| found.logprob == -score));
            for (token, expected) in tokens.iter().zip(&logprobs[prompt.len() - 1..]) {
                assert_eq!(token.logprobs.as_ref(), Some(expected));
                assert!(sampling != Sampling::GREEDY || expected.top[0].0 == token.id);
            }
            let mut without = model.generate_ids(&prompt, &plain.logit_bias([(7, -3.0)])).unwrap();
            let same = |token: crate::model::Token| (token.id, token.logprobs.is_none());
            let found: Vec<_> =
                (&mut without).into_iter().map(|token| same(token.unwrap())).collect();
            assert_eq!(found, ids.iter().map(|&id| (id, true)).collect::<Vec<_>>());
        }
    }
}
