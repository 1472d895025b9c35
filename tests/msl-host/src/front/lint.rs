//! What clang does not find in either reading.

mod names;
mod signature;
mod tree;

use super::{Fault, library::Library};
use crate::text::{Kind, Token, tokens};

pub use names::directives;
pub use tree::lint as tree;

/// Words that no kernel may have, and why.
const REFUSED: &[(&str, &str)] = &[
    ("asm", "assembly"),
    ("catch", "exceptions"),
    ("double", "`double`"),
    ("dynamic_cast", "types at run time"),
    ("fragment", "a word of Metal for graphics"),
    ("goto", "`goto`"),
    ("new", "memory from the heap"),
    ("noexcept", "`noexcept`"),
    ("object_data", "a word of Metal for graphics"),
    ("ray_data", "a word of Metal for graphics"),
    ("register", "`register`"),
    ("thread_local", "`thread_local`"),
    ("threadgroup_imageblock", "a word of Metal for graphics"),
    ("throw", "exceptions"),
    ("try", "exceptions"),
    ("typeid", "types at run time"),
    ("vertex", "a word of Metal for graphics"),
    ("virtual", "virtual functions"),
    ("wchar_t", "`wchar_t`"),
];

/// Checks a preprocessed text in a language version.
pub fn lint(expanded: &str, version: u32, library: &Library) -> Vec<Fault> {
    let tokens = tokens(expanded);
    let placed = placed(&tokens);
    let mut found = words(&placed, version);
    found.extend(names::at_file_scope(&placed, library));
    found.extend(signature::kernels(&tokens));
    found
}

/// A token that is not space, with its line.
#[derive(Clone, Copy)]
struct Placed<'a> {
    line: usize,
    kind: Kind,
    text: &'a str,
}

impl Placed<'_> {
    fn fault(self, what: impl Into<String>) -> Fault {
        Fault { line: self.line, what: what.into() }
    }
}

/// The tokens that are not space. The preprocessor's `# 7 "file"` says what the next line's number
/// is.
fn placed<'a>(tokens: &[Token<'a>]) -> Vec<Placed<'a>> {
    let mut line = 1;
    let mut placed = Vec::new();
    for token in tokens {
        match token.kind {
            Kind::Directive => {
                line = token
                    .text
                    .split(' ')
                    .nth(1)
                    .and_then(|at| at.parse().ok())
                    .map_or(line, |at: usize| at - 1)
            }
            Kind::Space => {}
            kind => placed.push(Placed { line, kind, text: token.text }),
        }
        line += token.text.matches('\n').count();
    }
    placed
}

/// The line of a token.
fn line_of(tokens: &[Token<'_>], at: usize) -> usize {
    placed(&tokens[..=at]).last().map_or(0, |token| token.line)
}

/// Words and literals that Metal does not have.
fn words(tokens: &[Placed<'_>], version: u32) -> Vec<Fault> {
    let mut found = Vec::new();
    for (at, &token) in tokens.iter().enumerate() {
        let before = at.checked_sub(1).map_or("", |at| tokens[at].text);
        if let Some((_, why)) = REFUSED.iter().find(|(word, _)| *word == token.text) {
            found.push(token.fault(format!("Metal does not have {why}")));
        }
        match (before, token.text) {
            ("=", "delete") => {}
            (_, "delete") => found.push(token.fault("Metal does not have memory from the heap")),
            ("long", "long") => found.push(token.fault("Metal does not have `long long`")),
            (before, "[") if version < 320 && !ends_operand(before) => {
                found.push(token.fault("lambdas need Metal 3.2"))
            }
            (_, number) if token.kind == Kind::Number && is_double(number) => {
                found.push(token.fault(format!("`{number}` has no suffix f or h")));
            }
            _ => {}
        }
    }
    found
}

/// Returns whether a bracket after this token is an index, not the start of a lambda.
fn ends_operand(token: &str) -> bool {
    token != "return" && token.starts_with(|c: char| c.is_alphanumeric() || "_)]".contains(c))
}

fn is_double(number: &str) -> bool {
    let hexadecimal = number.starts_with("0x") || number.starts_with("0X");
    let fraction =
        number.contains('.') || number.contains(if hexadecimal { ['p', 'P'] } else { ['e', 'E'] });
    fraction && !number.ends_with(['f', 'F', 'h', 'H'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, version: u32) -> Vec<(usize, String)> {
        words(&placed(&tokens(text)), version)
            .into_iter()
            .map(|fault| (fault.line, fault.what))
            .collect()
    }

    #[test]
    fn lines_are_those_of_the_source() {
        assert_eq!(
            found("# 40 \"f\"\n\n  goto x; /* goto\n */ new\n", 230)
                .iter()
                .map(|(line, _)| *line)
                .collect::<Vec<_>>(),
            [41, 42]
        );
    }

    #[test]
    fn brackets_are_lambdas_where_no_operand_ends() {
        for text in ["auto f = [] {};", "g([&](int v) {});", "return [x] {};"] {
            assert_eq!(found(text, 310).len(), 1, "{text}");
            assert!(found(text, 320).is_empty(), "{text}");
        }
        for text in ["a[1]", "f(x)[2]", "a[1][2]", "X y[N];", "[[buffer(0)]]"] {
            assert!(found(text, 310).is_empty(), "{text}");
        }
    }

    #[test]
    fn fractions_need_a_suffix() {
        for (number, double) in [
            ("1.0", true),
            ("1e5", true),
            ("0x1p3", true),
            ("1.0f", false),
            ("2h", false),
            ("0xef", false),
            ("1e5f", false),
            ("7ul", false),
        ] {
            assert_eq!(is_double(number), double, "{number}");
        }
    }
}
