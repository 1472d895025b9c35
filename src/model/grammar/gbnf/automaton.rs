//! Which characters may come at the same place of a text, as far as an automaton without a stack
//! knows. It reads at least the texts of a grammar: after a rule it goes on behind any reference to
//! the rule, and a part that is repeated may come any number of times.

use super::expression::{Class, Expression, Rules};
use std::collections::{HashMap, HashSet};

/// States and pairs of states that are looked at: some 20 ms.
const MOST_WORK: usize = 300_000;

/// States, some of which read a character.
#[derive(Default)]
pub struct Automaton {
    /// States that follow each one without a character.
    free: Vec<Vec<usize>>,
    reads: Vec<Option<Read>>,
    first: usize,
    last: usize,
}

/// What a state reads, and the state behind it.
struct Read {
    class: Class,
    /// The lexeme, if it is not of one character.
    lexeme: Option<String>,
    next: usize,
}

impl Automaton {
    /// Of a part, with the rules that it refers to.
    pub fn new(rules: &Rules, part: &Expression) -> Self {
        let (mut automaton, mut ends) = (Self::default(), HashMap::new());
        (automaton.first, automaton.last) = automaton.add(part, &mut ends);
        let mut known = HashSet::new();
        while let Some((&rule, &(start, end))) =
            ends.iter().find(|(rule, _)| !known.contains(*rule))
        {
            known.insert(rule);
            let (first, last) = automaton.add(&rules.bodies[rule], &mut ends);
            automaton.free[start].push(first);
            automaton.free[last].push(end);
        }
        automaton
    }

    fn state(&mut self) -> usize {
        self.free.push(Vec::new());
        self.reads.push(None);
        self.reads.len() - 1
    }

    fn read(&mut self, class: Class, lexeme: Option<String>) -> (usize, usize) {
        let (start, next) = (self.state(), self.state());
        self.reads[start] = Some(Read { class, lexeme, next });
        (start, next)
    }

    /// Adds states for a part. `rules` has the first and last states of the rules so far.
    fn add(
        &mut self,
        part: &Expression,
        rules: &mut HashMap<usize, (usize, usize)>,
    ) -> (usize, usize) {
        match part {
            Expression::Class(class) => return self.read(class.clone(), None),
            Expression::Lexeme { regex, first } => {
                return self.read(first.clone(), Some(regex.clone()));
            }
            _ => {}
        }
        let (start, mut end) = (self.state(), self.state());
        match part {
            Expression::Class(_) | Expression::Lexeme { .. } => {}
            Expression::Literal(text) => {
                self.free[start].push(end);
                for character in text.chars() {
                    let (first, last) = self.read(Class::of(character), None);
                    self.free[end].push(first);
                    end = last;
                }
            }
            Expression::Rule(rule) => {
                let (first, last) =
                    *rules.entry(*rule).or_insert_with(|| (self.state(), self.state()));
                self.free[start].push(first);
                self.free[last].push(end);
            }
            Expression::Sequence(parts) => {
                self.free[start].push(end);
                for part in parts {
                    let (first, last) = self.add(part, rules);
                    self.free[end].push(first);
                    end = last;
                }
            }
            Expression::Choice(parts) => {
                for part in parts {
                    let (first, last) = self.add(part, rules);
                    self.free[start].push(first);
                    self.free[last].push(end);
                }
            }
            Expression::Repeat { part, least, .. } => {
                let (first, last) = self.add(part, rules);
                self.free[start].push(first);
                self.free[last].extend([first, end]);
                if *least == 0 {
                    self.free[start].push(end);
                }
            }
        }
        (start, end)
    }

    /// States that read, or the last one, which are reached without a character, and how many were
    /// looked at.
    fn ready(&self, from: usize) -> (Vec<usize>, usize) {
        let (mut open, mut known, mut ready) = (vec![from], HashSet::from([from]), Vec::new());
        while let Some(state) = open.pop() {
            if self.reads[state].is_some() || state == self.last {
                ready.push(state);
            }
            open.extend(self.free[state].iter().filter(|&&next| known.insert(next)));
        }
        (ready, known.len())
    }

    /// Pairs of states that may be reached by the same text; none where there are too many.
    fn pairs(&self) -> Option<HashSet<(usize, usize)>> {
        let (mut known, mut open, mut ready) = (HashSet::new(), Vec::new(), HashMap::new());
        let mut work = 0;
        let mut next = Some((self.first, self.first));
        while let Some((a, b)) = next {
            for state in [a, b] {
                ready.entry(state).or_insert_with(|| {
                    let (ready, looked_at) = self.ready(state);
                    work += looked_at;
                    ready
                });
            }
            work += ready[&a].len() * ready[&b].len();
            if work > MOST_WORK {
                return None;
            }
            for &a in &ready[&a] {
                let pairs = ready[&b].iter().map(|&b| (a.min(b), a.max(b)));
                open.extend(pairs.filter(|&pair| known.insert(pair)));
            }
            next = std::iter::from_fn(|| open.pop()).find_map(|(a, b)| self.after(a, b));
        }
        Some(known)
    }

    /// The states behind two that read the same character, if they do.
    fn after(&self, a: usize, b: usize) -> Option<(usize, usize)> {
        let (a, b) = (self.reads[a].as_ref()?, self.reads[b].as_ref()?);
        a.class.intersects(&b.class).then_some((a.next, b.next))
    }

    /// Returns the class of the first character, if there is one and no text begins another.
    pub fn prefix_free(&self) -> Option<Class> {
        let goes_on = |&(a, b): &(usize, usize)| a != b && (a == self.last || b == self.last);
        if self.pairs()?.iter().any(goes_on) {
            return None;
        }
        let first = self.ready(self.first).0.into_iter();
        first
            .filter_map(|state| Some(self.reads[state].as_ref()?.class.clone()))
            .reduce(|a, b| a.or(&b))
    }

    /// Returns the lexemes of several characters that may come where something else begins with
    /// their first; nothing where that takes too much work.
    pub fn ambiguous(&self) -> Option<HashSet<String>> {
        let reads = |(a, b): (usize, usize)| self.reads[a].as_ref().zip(self.reads[b].as_ref());
        let pairs = self.pairs()?.into_iter().filter_map(reads);
        let differ = pairs.filter(|(a, b)| a.lexeme != b.lexeme && a.class.intersects(&b.class));
        Some(differ.flat_map(|(a, b)| [&a.lexeme, &b.lexeme]).flatten().cloned().collect())
    }
}
