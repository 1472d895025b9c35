//! Finding a pattern in a text, with steps that are counted.

use super::compile::{Instruction, Pattern};
use crate::limits::tokenizer::MOST_BRANCHES;
use fancy_regex::Assertion;

/// The steps that were allowed are used up.
#[derive(Debug, PartialEq)]
pub struct OutOfSteps;

/// A place to go on from if matching fails: `at`, or for a run of characters the ends before `at`
/// down to `least`.
struct Branch {
    next: usize,
    at: usize,
    least: usize,
}

/// A text, and the steps that are left for it.
struct Search<'a> {
    pattern: &'a Pattern,
    text: &'a str,
    steps: &'a mut u64,
}

impl Pattern {
    /// Finds all matches that do not overlap, from left to right, as `find_iter` of `fancy-regex`
    /// does. Takes a step for each instruction and character.
    pub fn find_all(&self, text: &str, steps: &mut u64) -> Result<Vec<(usize, usize)>, OutOfSteps> {
        let mut search = Search { pattern: self, text, steps };
        if let [Instruction::Literal(literal), Instruction::Accept] = &self.program[..] {
            search.step(text.len() / 16)?;
            return Ok(text
                .match_indices(literal.as_str())
                .map(|(at, found)| (at, at + found.len()))
                .collect());
        }
        let (mut found, mut from, mut last) = (Vec::new(), 0, None);
        while let Some((start, end)) = search.find(from)? {
            from =
                if start == end { end + search.next(end).map_or(1, char::len_utf8) } else { end };
            // What is empty just behind a match is none.
            if start < end || last != Some(end) {
                found.push((start, end));
            }
            last = Some(end);
            if from > text.len() {
                break;
            }
        }
        Ok(found)
    }
}

impl Search<'_> {
    fn step(&mut self, count: usize) -> Result<(), OutOfSteps> {
        *self.steps = self.steps.checked_sub(count as u64).ok_or(OutOfSteps)?;
        Ok(())
    }

    fn next(&self, at: usize) -> Option<char> {
        self.text[at..].chars().next()
    }

    fn previous(&self, at: usize) -> Option<char> {
        self.text[..at].chars().next_back()
    }

    /// Finds the first match at or behind `from`.
    fn find(&mut self, from: usize) -> Result<Option<(usize, usize)>, OutOfSteps> {
        let mut start = from;
        loop {
            if let Some(end) = self.match_at(0, start)? {
                return Ok(Some((start, end)));
            }
            match self.next(start) {
                Some(c) => start += c.len_utf8(),
                None => return Ok(None),
            }
        }
    }

    /// Runs the program from an instruction to the one that accepts; gives the end of the match.
    fn match_at(&mut self, first: usize, start: usize) -> Result<Option<usize>, OutOfSteps> {
        let (mut next, mut at, mut branches) = (first, start, Vec::new());
        loop {
            self.step(1)?;
            let continued = match &self.pattern.program[next] {
                Instruction::Accept => return Ok(Some(at)),
                Instruction::Jump(to) => Some((*to, at)),
                Instruction::Split(one, other) => {
                    branches.push(Branch { next: *other, at, least: at });
                    Some((*one, at))
                }
                Instruction::Literal(literal) => {
                    self.step(literal.len() / 16)?;
                    self.text[at..]
                        .starts_with(literal.as_str())
                        .then(|| (next + 1, at + literal.len()))
                }
                Instruction::Run { class, least, most } => match self
                    .run(*class, *least, *most, at)?
                {
                    Some((shortest, longest)) => {
                        if shortest < longest {
                            branches.push(Branch { next: next + 1, at: longest, least: shortest });
                        }
                        Some((next + 1, longest))
                    }
                    None => None,
                },
                Instruction::Assert(assertion) => {
                    self.holds(*assertion, at).then_some((next + 1, at))
                }
                Instruction::Look { behind, negated, end } => {
                    let from = self.before(at, *behind)?;
                    let found = from
                        .map(|from| self.match_at(next + 1, from))
                        .transpose()?
                        .flatten()
                        .is_some();
                    (found != *negated).then_some((*end, at))
                }
                Instruction::Atomic { end } => self.match_at(next + 1, at)?.map(|to| (*end, to)),
            };
            if branches.len() > MOST_BRANCHES {
                return Err(OutOfSteps);
            }
            let Some(to) = continued.or_else(|| self.back(&mut branches)) else { return Ok(None) };
            (next, at) = to;
        }
    }

    /// Where to go on after a failure.
    fn back(&self, branches: &mut Vec<Branch>) -> Option<(usize, usize)> {
        let Branch { next, at, least } = branches.pop()?;
        if at == least {
            return Some((next, at));
        }
        let at = at - self.previous(at).map_or(0, char::len_utf8);
        if at > least {
            branches.push(Branch { next, at, least });
        }
        Some((next, at))
    }

    /// The ends of the shortest and the longest run of a class.
    fn run(
        &mut self,
        class: usize,
        least: usize,
        most: usize,
        at: usize,
    ) -> Result<Option<(usize, usize)>, OutOfSteps> {
        let class = &self.pattern.classes[class];
        let (mut count, mut end, mut shortest) = (0, at, at);
        for c in self.text[at..].chars().take(most) {
            if !class.has(c) {
                break;
            }
            *self.steps = self.steps.checked_sub(1).ok_or(OutOfSteps)?;
            (count, end) = (count + 1, end + c.len_utf8());
            if count == least {
                shortest = end;
            }
        }
        Ok((count >= least).then_some((shortest, end)))
    }

    /// Returns the place `count` characters before `at`.
    fn before(&mut self, at: usize, count: usize) -> Result<Option<usize>, OutOfSteps> {
        self.step(count)?;
        let mut all = self.text[..at].char_indices().rev();
        Ok(if count == 0 { Some(at) } else { all.nth(count - 1).map(|(at, _)| at) })
    }

    fn holds(&self, assertion: Assertion, at: usize) -> bool {
        let word = |c: Option<char>| c.is_some_and(regex_syntax::is_word_character);
        let (before, after) = (self.previous(at), self.next(at));
        match assertion {
            Assertion::StartText => before.is_none(),
            Assertion::EndText => after.is_none(),
            Assertion::StartLine { .. } => before.is_none_or(|c| c == '\n'),
            Assertion::EndLine { .. } => after.is_none_or(|c| c == '\n'),
            Assertion::WordBoundary => word(before) != word(after),
            Assertion::NotWordBoundary => word(before) == word(after),
            Assertion::LeftWordBoundary => !word(before) && word(after),
            Assertion::RightWordBoundary => word(before) && !word(after),
            Assertion::LeftWordHalfBoundary => !word(before),
            Assertion::RightWordHalfBoundary => !word(after),
        }
    }
}
