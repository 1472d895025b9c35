//! Compiles regular expressions to programs of a matcher whose steps are counted.

use crate::limits::tokenizer::MOST_INSTRUCTIONS;
use fancy_regex::{Assertion, Expr, LookAround};
use regex_syntax::{
    ParserBuilder,
    hir::{Class as HirClass, Hir, HirKind},
};

/// A set of characters.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// One bit for each ASCII character.
    ascii: u128,
    /// Ranges of all characters, in order.
    ranges: Vec<(char, char)>,
}

impl Class {
    fn new(ranges: Vec<(char, char)>) -> Self {
        let in_ranges = |code: &u32| {
            ranges.iter().any(|(first, last)| (u32::from(*first)..=u32::from(*last)).contains(code))
        };
        let ascii = (0..128u32).filter(in_ranges).fold(0, |bits, code| bits | 1 << code);
        Self { ascii, ranges }
    }

    pub fn has(&self, c: char) -> bool {
        if c.is_ascii() {
            return self.ascii >> u32::from(c) & 1 == 1;
        }
        let at = self.ranges.partition_point(|(_, last)| *last < c);
        self.ranges.get(at).is_some_and(|(first, _)| *first <= c)
    }
}

/// A step of a program. Programs continue at the next one unless it says otherwise.
#[derive(Debug)]
pub enum Instruction {
    /// Takes this text.
    Literal(String),
    /// Takes `least` to `most` characters of a class, as many as it can first.
    Run {
        class: usize,
        least: usize,
        most: usize,
    },
    /// Continues at the first, and if that fails at the second.
    Split(usize, usize),
    Jump(usize),
    Assert(Assertion),
    /// Matches what follows up to `end`, `behind` characters before here, and takes nothing of it.
    Look {
        behind: usize,
        negated: bool,
        end: usize,
    },
    /// Matches what follows up to `end`, and tries nothing else there.
    Atomic {
        end: usize,
    },
    /// Ends the program, or the part of it that another instruction runs.
    Accept,
}

/// A compiled pattern.
#[derive(Debug, Default)]
pub struct Pattern {
    pub(super) program: Vec<Instruction>,
    pub(super) classes: Vec<Class>,
}

impl Pattern {
    /// Compiles a regular expression, in the syntax of `fancy-regex`.
    ///
    /// # Errors
    /// A message that names what is wrong or not supported.
    pub fn regex(pattern: &str) -> Result<Self, String> {
        let tree = Expr::parse_tree(pattern).map_err(|error| error.to_string())?;
        let mut compiled = Self::default();
        compiled.expression(&tree.expr)?;
        compiled.add(Instruction::Accept)?;
        Ok(compiled)
    }

    /// Compiles a text that is matched as it is.
    pub fn literal(text: &str) -> Self {
        Self {
            program: vec![Instruction::Literal(text.to_owned()), Instruction::Accept],
            classes: Vec::new(),
        }
    }

    fn add(&mut self, instruction: Instruction) -> Result<usize, String> {
        if self.program.len() >= MOST_INSTRUCTIONS {
            return Err(format!("it has more than {MOST_INSTRUCTIONS} instructions"));
        }
        self.program.push(instruction);
        Ok(self.program.len() - 1)
    }

    fn expression(&mut self, expression: &Expr) -> Result<(), String> {
        match expression {
            Expr::Empty => Ok(()),
            Expr::Literal { val, casei: false } => {
                self.add(Instruction::Literal(val.clone())).map(drop)
            }
            Expr::Literal { val, casei: true } => self.translated(&regex_syntax::escape(val), true),
            Expr::Delegate { inner, casei, .. } => self.translated(inner, *casei),
            Expr::Any { newline } => self.run(any(*newline), 1, 1),
            Expr::Assertion(
                Assertion::StartLine { crlf: true } | Assertion::EndLine { crlf: true },
            ) => Err(unsupported("`(?R)`")),
            Expr::Assertion(assertion) => self.add(Instruction::Assert(*assertion)).map(drop),
            Expr::Concat(all) => all.iter().try_for_each(|part| self.expression(part)),
            Expr::Alt(all) => self.alternatives(all, Self::expression),
            Expr::Group(inner) => self.expression(inner),
            Expr::AtomicGroup(inner) => {
                let at = self.add(Instruction::Atomic { end: 0 })?;
                self.expression(inner)?;
                let end = self.accepted()?;
                self.program[at] = Instruction::Atomic { end };
                Ok(())
            }
            Expr::Repeat { child, lo, hi, greedy } => self.repeat(child, *lo, *hi, *greedy),
            Expr::LookAround(inner, look) => self.look(inner, *look),
            _ => Err(unsupported("back-references, conditions, subroutines, `\\K` and `\\G`")),
        }
    }

    /// What `regex-syntax` makes of a class, or of a text in which case does not matter.
    fn translated(&mut self, pattern: &str, case_insensitive: bool) -> Result<(), String> {
        let hir = ParserBuilder::new()
            .case_insensitive(case_insensitive)
            .build()
            .parse(pattern)
            .map_err(|error| error.to_string())?;
        self.hir(&hir)
    }

    fn hir(&mut self, hir: &Hir) -> Result<(), String> {
        match hir.kind() {
            HirKind::Concat(all) => all.iter().try_for_each(|part| self.hir(part)),
            HirKind::Literal(literal) => {
                let text = std::str::from_utf8(&literal.0)
                    .map_err(|_| "it matches bytes that are no character".to_owned())?;
                self.add(Instruction::Literal(text.to_owned())).map(drop)
            }
            _ => match class(hir) {
                Some(class) => self.run(class, 1, 1),
                None => Err(unsupported("`\\Z`, and classes of bytes")),
            },
        }
    }

    fn run(&mut self, class: Class, least: usize, most: usize) -> Result<(), String> {
        let known = self.classes.iter().position(|known| *known == class);
        let class = known.unwrap_or_else(|| {
            self.classes.push(class);
            self.classes.len() - 1
        });
        self.add(Instruction::Run { class, least, most }).map(drop)
    }

    fn alternatives<T>(
        &mut self,
        all: &[T],
        mut one: impl FnMut(&mut Self, &T) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut jumps = Vec::new();
        for (n, part) in all.iter().enumerate() {
            if n + 1 == all.len() {
                one(self, part)?;
                break;
            }
            let split = self.add(Instruction::Split(0, 0))?;
            one(self, part)?;
            jumps.push(self.add(Instruction::Jump(0))?);
            self.program[split] = Instruction::Split(split + 1, self.program.len());
        }
        let end = self.program.len();
        jumps.into_iter().for_each(|jump| self.program[jump] = Instruction::Jump(end));
        Ok(())
    }

    fn repeat(
        &mut self,
        child: &Expr,
        least: usize,
        most: usize,
        greedy: bool,
    ) -> Result<(), String> {
        if let (true, Some(class)) = (greedy, one_character(child)) {
            return self.run(class, least, most);
        }
        if most == usize::MAX && can_be_empty(child) {
            return Err(unsupported("repetitions without an end of what may be empty"));
        }
        for _ in 0..least {
            let before = self.program.len();
            self.expression(child)?;
            // Of nothing, any number is nothing.
            if self.program.len() == before {
                return Ok(());
            }
        }
        let split = |inside, outside| {
            if greedy {
                Instruction::Split(inside, outside)
            } else {
                Instruction::Split(outside, inside)
            }
        };
        if most == usize::MAX {
            let at = self.add(Instruction::Split(0, 0))?;
            self.expression(child)?;
            self.add(Instruction::Jump(at))?;
            self.program[at] = split(at + 1, self.program.len());
            return Ok(());
        }
        let mut splits = Vec::new();
        for _ in least..most {
            splits.push(self.add(Instruction::Split(0, 0))?);
            self.expression(child)?;
        }
        let end = self.program.len();
        splits.into_iter().for_each(|at| self.program[at] = split(at + 1, end));
        Ok(())
    }

    fn look(&mut self, inner: &Expr, look: LookAround) -> Result<(), String> {
        let negated = matches!(look, LookAround::LookAheadNeg | LookAround::LookBehindNeg);
        if matches!(look, LookAround::LookAhead | LookAround::LookAheadNeg) {
            return self.looked(inner, 0, negated);
        }
        match (inner, characters(inner)) {
            (_, Some(behind)) => self.looked(inner, behind, negated),
            // Of several lengths: each alternative alone.
            (Expr::Alt(all), None) if negated => {
                all.iter().try_for_each(|part| self.look(part, look))
            }
            (Expr::Alt(all), None) => self.alternatives(all, |this, part| this.look(part, look)),
            _ => Err(unsupported("look-behinds of no fixed length")),
        }
    }

    fn looked(&mut self, inner: &Expr, behind: usize, negated: bool) -> Result<(), String> {
        let at = self.add(Instruction::Look { behind, negated, end: 0 })?;
        self.expression(inner)?;
        let end = self.accepted()?;
        self.program[at] = Instruction::Look { behind, negated, end };
        Ok(())
    }

    /// Ends a part of the program; gives what follows it.
    fn accepted(&mut self) -> Result<usize, String> {
        self.add(Instruction::Accept).map(|at| at + 1)
    }
}

fn unsupported(what: &str) -> String {
    format!("{what} are not supported")
}

fn any(newline: bool) -> Class {
    let before = if newline {
        vec![('\0', '\u{10ffff}')]
    } else {
        vec![('\0', '\t'), ('\u{b}', '\u{10ffff}')]
    };
    Class::new(before)
}

fn class(hir: &Hir) -> Option<Class> {
    match hir.kind() {
        HirKind::Class(HirClass::Unicode(class)) => Some(Class::new(
            class.ranges().iter().map(|range| (range.start(), range.end())).collect(),
        )),
        HirKind::Class(HirClass::Bytes(class)) => {
            let class = class.to_unicode_class()?;
            Some(Class::new(
                class.ranges().iter().map(|range| (range.start(), range.end())).collect(),
            ))
        }
        HirKind::Literal(literal) => {
            let mut all = std::str::from_utf8(&literal.0).ok()?.chars();
            let (first, None) = (all.next()?, all.next()) else { return None };
            Some(Class::new(vec![(first, first)]))
        }
        _ => None,
    }
}

/// The class of an expression that takes one character.
fn one_character(expression: &Expr) -> Option<Class> {
    let parse = |pattern: &str, casei: &bool| {
        ParserBuilder::new().case_insensitive(*casei).build().parse(pattern).ok()
    };
    match expression {
        Expr::Any { newline } => Some(any(*newline)),
        Expr::Delegate { inner, casei, .. } => class(&parse(inner, casei)?),
        Expr::Literal { val, casei } => class(&parse(&regex_syntax::escape(val), casei)?),
        Expr::Group(inner) => one_character(inner),
        _ => None,
    }
}

/// Number of characters that an expression takes, if it is always the same.
fn characters(expression: &Expr) -> Option<usize> {
    match expression {
        Expr::Empty | Expr::Assertion(_) | Expr::LookAround(..) => Some(0),
        Expr::Any { .. } => Some(1),
        Expr::Delegate { size, .. } => Some(*size),
        Expr::Literal { val, .. } => Some(val.chars().count()),
        Expr::Group(inner) | Expr::AtomicGroup(inner) => characters(inner),
        Expr::Concat(all) => all.iter().map(characters).sum(),
        Expr::Alt(all) => {
            let first = characters(all.first()?)?;
            all.iter().all(|part| characters(part) == Some(first)).then_some(first)
        }
        Expr::Repeat { child, lo, hi, .. } if lo == hi => characters(child)?.checked_mul(*lo),
        _ => None,
    }
}

fn can_be_empty(expression: &Expr) -> bool {
    match expression {
        Expr::Any { .. } => false,
        Expr::Delegate { size, .. } => *size == 0,
        Expr::Literal { val, .. } => val.is_empty(),
        Expr::Group(inner) | Expr::AtomicGroup(inner) => can_be_empty(inner),
        Expr::Concat(all) => all.iter().all(can_be_empty),
        Expr::Alt(all) => all.iter().any(can_be_empty),
        Expr::Repeat { child, lo, .. } => *lo == 0 || can_be_empty(child),
        _ => true,
    }
}
