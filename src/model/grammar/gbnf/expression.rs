//! What the rules of a grammar match.

/// Rules of a grammar, which name each other by their index.
pub struct Rules {
    pub root: usize,
    pub bodies: Vec<Expression>,
}

/// What a part of a rule matches.
#[derive(Clone)]
pub enum Expression {
    /// These characters, one after another.
    Literal(String),
    Class(Class),
    Rule(usize),
    Sequence(Vec<Expression>),
    Choice(Vec<Expression>),
    /// From `least` to `most` times; without a limit if there is no `most`.
    Repeat {
        part: Box<Expression>,
        least: u32,
        most: Option<u32>,
    },
    /// Several characters that are read together, by a regular expression. The class is of the
    /// first.
    Lexeme {
        regex: String,
        first: Class,
    },
}

/// One character of some ranges, which are sorted and do not overlap.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Class(Vec<(u32, u32)>);

impl Class {
    /// Of ranges in any order, or of all other characters.
    pub fn new(mut ranges: Vec<(u32, u32)>, negated: bool) -> Self {
        ranges.sort_unstable();
        let mut class = Vec::<(u32, u32)>::new();
        for (first, last) in ranges {
            match class.last_mut() {
                Some(before) if first <= before.1 => before.1 = before.1.max(last),
                _ => class.push((first, last)),
            }
        }
        Self(if negated { others(&class) } else { class })
    }

    /// Of any character.
    pub fn any() -> Self {
        Self(vec![(0, u32::from(char::MAX))])
    }

    /// Of one character.
    pub fn of(character: char) -> Self {
        Self(vec![(character.into(), character.into())])
    }

    /// Of the characters of two.
    pub fn or(&self, other: &Self) -> Self {
        Self::new([&self.0[..], &other.0].concat(), false)
    }

    /// Returns whether a character is in both.
    pub fn intersects(&self, other: &Self) -> bool {
        let meets = |&(first, last): &(u32, u32)| {
            let at = other.0.partition_point(|&(_, last)| last < first);
            other.0.get(at).is_some_and(|&(first, _)| first <= last)
        };
        self.0.iter().any(meets)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the class in the syntax of regular expressions.
    pub fn to_regex(&self) -> String {
        let range = |&(first, last): &(u32, u32)| match first == last {
            true => format!(r"\x{{{first:x}}}"),
            false => format!(r"\x{{{first:x}}}-\x{{{last:x}}}"),
        };
        format!("[{}]", self.0.iter().map(range).collect::<String>())
    }
}

/// The characters between ranges. None begins or ends among surrogates, which are no characters.
fn others(class: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let (mut next, mut others) = (0, Vec::new());
    for &(first, last) in class.iter().chain([&(u32::from(char::MAX) + 1, 0)]) {
        let last_before = if first == 0xe000 { 0xd7ff } else { first.wrapping_sub(1) };
        if next < first && next <= last_before {
            others.push((next, last_before));
        }
        next = if last == 0xd7ff { 0xe000 } else { last + 1 };
    }
    others
}
