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
    /// Whether the text has nothing but white space so far. A text of the first grammar may begin
    /// with any, as far as the second allows it.
    is_blank: bool,
}

impl Alternatives {
    /// Of one grammar, at the beginning of a text.
    pub fn one(matcher: Matcher) -> Self {
        Self { first: Some(matcher), second: None, starts: Vec::new(), is_blank: false }
    }

    /// Of two. A text that begins with one of `starts`, behind white space or not, fulfills the
    /// first.
    pub fn two(first: Matcher, second: Matcher, starts: &[String]) -> Self {
        let starts = starts.iter().map(|start| start.clone().into_bytes()).collect();
        Self { first: Some(first), second: Some(second), starts, is_blank: true }
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
            let is_start = |id: &u32| begins(self.counted(vocabulary.bytes(*id)), &self.starts);
            let reserved: Vec<u32> = mask.iter().filter(is_start).collect();
            reserved.into_iter().for_each(|id| mask.disallow_token(id));
        }
        mask.or(&of(&mut self.first)?);
        Ok(mask)
    }

    /// Returns the bytes of a token that count for texts of the first grammar.
    fn counted<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        if self.is_blank { trimmed(bytes) } else { bytes }
    }

    /// Appends a token. Returns false if no grammar allows it.
    pub fn push(&mut self, id: u32, vocabulary: &Vocabulary) -> Result<bool> {
        let whole = vocabulary.bytes(id);
        let bytes = self.counted(whole);
        if begins(bytes, &self.starts) {
            (self.second, self.starts) = (None, Vec::new());
        }
        self.starts.retain(|start| start.starts_with(bytes));
        self.starts.iter_mut().for_each(|start| drop(start.drain(..bytes.len())));
        let counted = if bytes == whole { vec![id] } else { vocabulary.tokenize(bytes) };
        advance(&mut self.first, &counted)?;
        advance(&mut self.second, &[id])?;
        self.is_blank &= bytes.is_empty();
        Ok(self.matchers().next().is_some())
    }

    /// Returns how many of some tokens may come next, one after another. It may be too many.
    pub fn validate(&mut self, ids: &[u32]) -> Result<usize> {
        self.matchers().try_fold(0, |most, matcher| {
            Ok(most.max(matcher.validate_tokens(ids).map_err(failed)?))
        })
    }
}

/// Appends tokens to the text of a matcher, which is dropped if it does not allow them.
fn advance(matcher: &mut Option<Matcher>, ids: &[u32]) -> Result<()> {
    let Some(allowing) = matcher.as_mut().filter(|_| !ids.is_empty()) else { return Ok(()) };
    let is_last = is_stopped(allowing);
    if is_last || allowing.try_consume_tokens(ids).map_err(failed)? < ids.len() {
        *matcher = None;
    }
    Ok(())
}

/// Returns bytes without white space at their beginning, as parsers of answers leave it out.
fn trimmed(bytes: &[u8]) -> &[u8] {
    str::from_utf8(bytes).map_or(bytes.trim_ascii_start(), |text| text.trim_start().as_bytes())
}

/// Returns whether a text begins with one of these.
fn begins(bytes: &[u8], starts: &[Vec<u8>]) -> bool {
    starts.iter().any(|start| bytes.starts_with(start))
}

fn is_stopped(matcher: &Matcher) -> bool {
    matcher.is_stopped() && matcher.stop_reason().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use llguidance::api::TopLevelGrammar;

    /// Tokens that complete the begin of a call and go on, as a call does or not.
    #[test]
    fn long_tokens_do_not_hide_calls() {
        let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
        let more = [">1", ">x", "\n<"].map(|token| token.as_bytes().to_vec());
        let vocabulary = Vocabulary::new(bytes.chain(more).collect(), &[]).unwrap();
        let matcher =
            |expression: &str| vocabulary.matcher(TopLevelGrammar::from_regex(expression)).unwrap();
        for begin in [&[u32::from(b'<')][..], &[u32::from(b' '), u32::from(b'<')], &[258]] {
            let (call, text) = (matcher("<f>[0-9]"), matcher("(.|\n)*"));
            let mut both = Alternatives::two(call, text, &["<f>".to_owned()]);
            for &id in begin.iter().chain(&[u32::from(b'f')]) {
                assert!(both.push(id, &vocabulary).unwrap());
            }
            let mask = both.mask(&vocabulary).unwrap();
            let allowed = [u32::from(b'>'), 256, 257, u32::from(b'x')];
            let allowed = allowed.map(|id| mask.is_allowed(id));
            assert_eq!(allowed, [true, true, false, true], "{begin:?}");
            assert!(both.push(256, &vocabulary).unwrap());
            assert!(both.is_stopped(), "{begin:?}: it is a call");
        }
    }
}
