//! Choosing the next token of a sequence.

use super::{
    constraint::Constraint,
    logprobs::TokenLogprobs,
    options::GenerateOptions,
    sampling::{Sampler, Sampling},
};
use crate::{
    error::{Error, Result},
    model::engine::sampling_plan::{LogitChanges, SamplingPlan},
    ops::{
        host,
        transformer::{Penalties, TopK},
    },
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// Chooses the tokens of one sequence, and knows those so far.
pub(crate) struct Chooser {
    options: GenerateOptions,
    /// Of each token, the sum of what is added to its logit.
    bias: BTreeMap<u32, f32>,
    sampler: Sampler,
    tokens: Vec<u32>,
    /// How many of them are the prompt's.
    prompt: usize,
    /// How many of them were there from the beginning: the prompt's, and those that were generated
    /// before.
    given: usize,
    /// Tokens that end the text.
    ends: Vec<u32>,
    /// How often each token occurred, as [`count()`] counts; empty unless there are penalties.
    counts: HashMap<u32, u32>,
    /// Of the token that was chosen last.
    logprobs: Option<TokenLogprobs>,
    /// What restricts the tokens.
    constraint: Option<Box<dyn Constraint>>,
}

impl Chooser {
    /// For the n-th sequence of a batch, which draws its random numbers from seed + n.
    pub fn new(options: &GenerateOptions, n: u64, prompt: &[u32], ends: &[u32]) -> Result<Self> {
        let sampling = options.sampling;
        let sampler = Sampler::new(sampling.seed(sampling.seed.wrapping_add(n)))?;
        let mut bias = BTreeMap::new();
        options.logit_bias.iter().for_each(|&(id, more)| *bias.entry(id).or_default() += more);
        let mut chooser = Self {
            options: options.clone(),
            bias,
            sampler,
            tokens: Vec::new(),
            prompt: prompt.len(),
            given: prompt.len(),
            ends: ends.to_vec(),
            counts: HashMap::new(),
            logprobs: None,
            constraint: None,
        };
        prompt.iter().for_each(|&id| chooser.append(id));
        Ok(chooser)
    }

    /// Restricts the tokens that follow the prompt.
    pub fn constrained(self, constraint: Option<Box<dyn Constraint>>) -> Self {
        Self { constraint, ..self }
    }

    /// The salt of the prompt's cached prefix.
    pub fn salt(&self) -> Option<Arc<str>> {
        self.options.cache_salt.clone()
    }

    fn append(&mut self, id: u32) {
        if self.penalises() {
            let is_prompt = self.tokens.len() < self.prompt;
            count(is_prompt, self.counts.entry(id).or_default());
        }
        self.tokens.push(id);
    }

    /// The prompt's tokens, then those that were chosen.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many tokens were chosen, those before a resumption among them.
    pub fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Returns whether it has chosen a token. The last that it chose is not in the session yet.
    pub fn has_chosen(&self) -> bool {
        self.tokens.len() > self.given
    }

    /// Takes a token that was chosen before.
    pub fn resume(&mut self, id: u32) -> Result<()> {
        self.given += 1;
        self.chosen(id).map(drop)
    }

    /// Returns whether the text is complete by what restricts it, and nothing can follow.
    pub fn is_complete(&self) -> bool {
        self.constraint.as_ref().is_some_and(|constraint| constraint.is_complete())
    }

    /// Returns the tokens that may come next, as [`Constraint::allowed`] has them, if not all may.
    /// They depend on the token before: no step can be submitted ahead.
    pub fn allowed(&self) -> Option<&[u32]> {
        self.constraint.as_ref().map(|constraint| constraint.allowed())
    }

    /// Returns how many tokens of a draft may come next, one after another.
    pub fn valid_draft(&mut self, draft: &[u32]) -> Result<usize> {
        let constraint = self.constraint.as_mut();
        constraint.map_or(Ok(draft.len()), |constraint| constraint.valid_prefix(draft))
    }

    /// Returns whether this token ends the text.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// The token that was chosen last.
    pub fn last(&self) -> u32 {
        self.tokens.last().copied().unwrap_or(0)
    }

    /// Returns whether a token changes the logits of all that follow it.
    pub fn penalises(&self) -> bool {
        self.options.sampling.penalises()
    }

    /// Returns whether penalties, biases or a constraint change the logits.
    pub fn changes_logits(&self) -> bool {
        self.penalises() || !self.bias.is_empty() || self.constraint.is_some()
    }

    /// Returns whether the engine can choose the next token. It knows no hook, gives no
    /// log-probabilities, and does not forbid tokens for what came before them.
    pub fn is_for_engine(&self) -> bool {
        let GenerateOptions { logits, logprobs, bad_words, no_repeat_ngram, .. } = &self.options;
        logits.is_none()
            && logprobs.is_none()
            && bad_words.is_empty()
            && *no_repeat_ngram == 0
            && !self.must_go_on()
    }

    /// Returns how the engine chooses tokens of some of `slots` sequences, whose last ones are the
    /// last of its next step's input. The `bool` of each says whether the engine has its counts.
    pub fn for_engine<'a>(
        choosers: impl Iterator<Item = (usize, &'a Self, bool)>,
        slots: usize,
        vocab: usize,
    ) -> SamplingPlan {
        let mut choice = SamplingPlan::new(vec![(Sampling::GREEDY.options, 0); slots]);
        for (slot, chooser, counted) in choosers {
            let Sampling { options, seed, .. } = *chooser.sampler.sampling();
            let counts =
                (chooser.penalises() && !counted).then(|| chooser.counts_before_last(vocab));
            choice.draws[slot] = (options, seed);
            choice.changes[slot] = LogitChanges {
                penalties: chooser.options.sampling.penalties,
                bias: chooser.bias.clone(),
                counts,
            };
        }
        choice
    }

    /// The counts of [`Penalizer`](crate::transformer::Penalizer), before it counts the last token
    /// as one that was generated.
    fn counts_before_last(&self, vocab: usize) -> Vec<u32> {
        let mut counts = vec![0; vocab];
        let Some((&last, before)) = self.tokens.split_last() else { return counts };
        for (i, &id) in before.iter().enumerate() {
            count(i < self.prompt, &mut counts[id as usize]);
        }
        // The prompt's is counted too, and is not to be one that was generated.
        if before.len() < self.prompt {
            counts[last as usize] = Penalties::SEEN - 1;
        }
        counts
    }

    /// Returns whether there are too few tokens yet for an end.
    fn must_go_on(&self) -> bool {
        self.generated() < self.options.min_tokens
    }

    /// Chooses from all logits, which biases, penalties, forbidden tokens and the hook change.
    pub fn of_logits(&mut self, logits: &mut [f32]) -> Result<u32> {
        let unchanged = self.options.logprobs.map(|top| (top, logits.to_vec()));
        for (&id, &bias) in self.bias.iter().filter(|(_, bias)| **bias != 0.0) {
            logits[id as usize] += bias;
        }
        self.penalise(logits);
        self.forbid(logits);
        if let Some(hook) = &self.options.logits {
            hook.call(&self.tokens, logits);
        }
        if let Some(allowed) = self.allowed() {
            host::mask_logits(logits, allowed);
        }
        let sampled = self.sampler.at(self.tokens.len().saturating_sub(1) as u32).sample(logits);
        // What a hook gives is its own.
        let its_own = || {
            self.options.logits.is_some()
                || !logits.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY)
        };
        let id = sampled.map_err(|error| if its_own() { error } else { self.no_token() })?;
        self.logprobs = unchanged.map(|(top, logits)| TokenLogprobs::new(&logits, id, top));
        self.chosen(id)
    }

    /// Takes the log-probabilities of the token that was chosen last, if the options ask for them.
    pub fn take_logprobs(&mut self) -> Option<TokenLogprobs> {
        self.logprobs.take()
    }

    /// Takes a token that the engine chose.
    pub fn of_engine(&mut self, id: u32) -> Result<u32> {
        if id == TopK::NONE {
            return Err(self.no_token());
        }
        self.chosen(id)
    }

    fn chosen(&mut self, id: u32) -> Result<u32> {
        self.append(id);
        if let Some(constraint) = &mut self.constraint {
            constraint.append(id)?;
        }
        Ok(id)
    }

    /// Why there was nothing to choose from.
    fn no_token(&self) -> Error {
        let forbids = !self.bias.is_empty()
            || !self.options.bad_words.is_empty()
            || self.options.no_repeat_ngram > 0;
        if self.constraint.is_some() && forbids {
            let what = "no token is left: other options forbid all that the grammar allows, or the logits are not finite";
            return Error::Invalid { op: "generate", what: what.into() };
        }
        Error::Overflow { op: "generate", what: "the logits".into() }
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
        let penalties = self.options.sampling.penalties;
        for (&id, &count) in &self.counts {
            logits[id as usize] = penalties.apply(logits[id as usize], count);
        }
    }
}

/// Counts a token of the prompt, or one that was generated.
fn count(is_prompt: bool, count: &mut u32) {
    if is_prompt { *count |= Penalties::SEEN } else { *count += 1 }
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
                chooser.chosen(id).unwrap();
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
            penalised(
                Sampling::GREEDY
                    .repetition_penalty(2.0)
                    .presence_penalty(1.0)
                    .frequency_penalty(1.0)
            ),
            [1.0, -1.0, -8.0, 5.0]
        );
    }

    #[test]
    fn biases_and_hooks_decide() {
        let logits = || [2.0f32, 4.0, -3.0, 5.0];
        assert_eq!(chooser(GenerateOptions::default()).of_logits(&mut logits()).unwrap(), 3);
        assert_eq!(
            chooser(GenerateOptions::default().logit_bias([(3, f32::NEG_INFINITY)]))
                .of_logits(&mut logits())
                .unwrap(),
            1
        );
        assert_eq!(
            chooser(GenerateOptions::default().logit_bias([(0, 3.5)]))
                .of_logits(&mut logits())
                .unwrap(),
            0
        );
        let hook = |tokens: &[u32], logits: &mut [f32]| logits[tokens.len()] = 9.0;
        let mut chooser = chooser(GenerateOptions::default().logits(hook));
        assert!(!chooser.is_for_engine(), "it needs all logits");
        assert_eq!(
            [chooser.of_logits(&mut logits()).unwrap(), chooser.of_logits(&mut logits()).unwrap()],
            [2, 3]
        );
    }

    #[test]
    fn what_is_forbidden_is_not_chosen() {
        let forbidden = |options: GenerateOptions, generated: &[u32]| {
            let mut chooser = chooser(options);
            for &id in generated {
                chooser.chosen(id).unwrap();
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
    fn non_finite_logits_are_the_models_fault() {
        let overflows = |result: Result<u32>| matches!(result, Err(Error::Overflow { .. }));
        let mut plain = chooser(GenerateOptions::default());
        assert!(overflows(plain.of_engine(TopK::NONE)));
        assert!(
            overflows(plain.of_logits(&mut [0.0, f32::NAN, 1.0]))
                && overflows(plain.of_logits(&mut [0.0, f32::INFINITY]))
        );
        let mut hooked =
            chooser(GenerateOptions::default().logits(|_, logits| logits[1] = f32::NAN));
        assert!(matches!(hooked.of_logits(&mut [0.0; 3]), Err(Error::Invalid { .. })));
    }

    #[test]
    fn the_engine_gets_what_it_needs() {
        let begun = |options: GenerateOptions| {
            let mut chooser = chooser(options);
            assert!(chooser.is_for_engine());
            [1, 2, 2, 3].into_iter().for_each(|id| chooser.append(id));
            chooser
        };
        let of = |choosers: [&Chooser; 2], counted| {
            Chooser::for_engine(
                [(0, choosers[0], false), (2, choosers[1], counted)].into_iter(),
                3,
                5,
            )
        };
        let choice = |choosers| of(choosers, false);
        let sampled = Sampling::GREEDY.temperature(0.5).top_k(3).seed(9);
        let (sampled, greedy) = (
            begun(GenerateOptions::default().sampling(sampled)),
            begun(GenerateOptions::default()),
        );
        let (options, largest) =
            (SampleOptions::default().temperature(0.5).top_k(3), Sampling::GREEDY.options);
        let plain = choice([&sampled, &greedy]);
        assert_eq!(plain.draws, [(options, 9), (largest, 0), (largest, 0)]);
        assert!(plain.changes.iter().all(|change| *change == LogitChanges::NONE));
        // 0 and 1 are of the prompt; the last token is the last of the step's input, and counted
        // there.
        let penalties = Penalties::NONE.presence(0.5);
        let penalised =
            begun(GenerateOptions::default().sampling(Sampling::GREEDY.presence_penalty(0.5)));
        let change = LogitChanges {
            penalties,
            counts: Some(vec![Penalties::SEEN, Penalties::SEEN + 1, 2, 0, 0]),
            ..LogitChanges::NONE
        };
        assert_eq!(
            choice([&penalised, &penalised]).changes,
            [change.clone(), LogitChanges::NONE, change.clone()]
        );
        // The engine counts itself what it has begun to count.
        assert_eq!(
            of([&penalised, &penalised], true).changes,
            [change.clone(), LogitChanges::NONE, LogitChanges { counts: None, ..change }]
        );
        // A step counts the last token; a prompt's becomes SEEN by that.
        let mut begins =
            chooser(GenerateOptions::default().sampling(Sampling::GREEDY.presence_penalty(0.5)));
        begins.tokens = vec![1, 1];
        assert_eq!(
            choice([&begins, &penalised]).changes[0].counts,
            Some(vec![0, Penalties::SEEN - 1, 0, 0, 0])
        );
        let biased = begun(GenerateOptions::default().logit_bias([(4, 1.0), (2, -1.0), (4, 0.5)]));
        // Each has its own; counts are for penalties alone.
        let [own, none, other] = &choice([&biased, &penalised]).changes[..] else {
            unreachable!("three sequences")
        };
        assert_eq!((own.biases(5), &own.counts), (vec![0.0, 0.0, -1.0, 0.0, 1.5], &None));
        assert_eq!(
            (none, other.penalties, other.biases(5)),
            (&LogitChanges::NONE, penalties, vec![0.0; 5])
        );
    }
}
