//! Two grammars, of which a text fulfills one.

use crate::{
    error::Result,
    model::tokenizer::vocabulary::{Vocabulary, failed},
};
use llguidance::{Matcher, toktrie::SimpleVob};

/// Matchers of the grammars that allow the text so far. They run side by side: in one grammar, a
/// long lexeme of one alternative would hide a short one of the other.
pub struct Alternatives {
    first: Option<Matcher>,
    second: Option<Matcher>,
    /// What is missing of the texts with which only those of the first grammar begin.
    starts: Vec<Vec<u8>>,
}

impl Alternatives {
    /// Of one grammar, at the beginning of a text.
    pub fn one(matcher: Matcher) -> Self {
        Self { first: Some(matcher), second: None, starts: Vec::new() }
    }

    /// Of two. A text that begins with one of `starts` fulfills the first.
    pub fn two(first: Matcher, second: Matcher, starts: &[String]) -> Self {
        let starts = starts.iter().map(|start| start.clone().into_bytes()).collect();
        Self { first: Some(first), second: Some(second), starts }
    }

    fn matchers(&mut self) -> impl Iterator<Item = &mut Matcher> {
        self.first.iter_mut().chain(&mut self.second)
    }

    /// Returns whether the text is complete and nothing can follow.
    pub fn is_stopped(&mut self) -> bool {
        self.matchers().all(|matcher| is_stopped(matcher))
    }

    /// Returns the tokens that may come next, that for the end of the text included.
    pub fn mask(&mut self, vocabulary: &Vocabulary) -> Result<SimpleVob> {
        let of = |matcher: &mut Option<Matcher>| {
            let mut none = SimpleVob::alloc(vocabulary.tokens());
            match matcher {
                Some(matcher) if is_stopped(matcher) => none.allow_token(vocabulary.end()),
                Some(matcher) => return matcher.compute_mask().map_err(failed),
                None => {}
            }
            Ok(none)
        };
        let mut mask = of(&mut self.second)?;
        if !self.starts.is_empty() {
            let is_start = |id: &u32| begins(vocabulary.bytes(*id), &self.starts);
            let reserved: Vec<u32> = mask.iter().filter(is_start).collect();
            reserved.into_iter().for_each(|id| mask.disallow_token(id));
        }
        mask.or(&of(&mut self.first)?);
        Ok(mask)
    }

    /// Appends a token of these bytes. Returns false if no grammar allows it.
    pub fn push(&mut self, id: u32, bytes: &[u8]) -> Result<bool> {
        if begins(bytes, &self.starts) {
            (self.second, self.starts) = (None, Vec::new());
        }
        self.starts.retain(|start| start.starts_with(bytes));
        self.starts.iter_mut().for_each(|start| drop(start.drain(..bytes.len())));
        for matcher in [&mut self.first, &mut self.second] {
            let Some(allowing) = matcher else { continue };
            let is_last = is_stopped(allowing);
            if is_last || allowing.try_consume_tokens(&[id]).map_err(failed)? == 0 {
                *matcher = None;
            }
        }
        Ok(self.matchers().next().is_some())
    }

    /// Returns how many of some tokens may come next, one after another. It may be too many.
    pub fn validate(&mut self, ids: &[u32]) -> Result<usize> {
        self.matchers().try_fold(0, |most, matcher| {
            Ok(most.max(matcher.validate_tokens(ids).map_err(failed)?))
        })
    }
}

/// Returns whether a text begins with one of these.
fn begins(bytes: &[u8], starts: &[Vec<u8>]) -> bool {
    starts.iter().any(|start| bytes.starts_with(start))
}

fn is_stopped(matcher: &Matcher) -> bool {
    matcher.is_stopped() && matcher.stop_reason().is_ok()
}
