//! Turns Metal text into C++, and reads the kernels' signatures.
//!
//! Most of Metal is C++ under other names, which `metal/metal.h` defines. The rest is done here, on
//! preprocessed tokens: attributes go, numbers get their C++ suffix, `v.xz` becomes a call, and a
//! threadgroup variable a reference to memory from the runtime.

use crate::text::{Kind, Token, cpp_number, tokens};
use std::fmt::Write as _;

/// A text in C++, with the same line numbers, and its kernels.
#[derive(Debug)]
pub struct Unit {
    pub cpp: String,
    pub kernels: Vec<Kernel>,
}

/// The signature of a kernel.
#[derive(Debug)]
pub struct Kernel {
    pub name: String,
    /// `[[max_total_threads_per_threadgroup(n)]]`
    pub max_threads: Option<u32>,
    pub parameters: Vec<Parameter>,
}

/// A parameter of a kernel.
#[derive(Debug)]
pub struct Parameter {
    pub name: String,
    pub reference: bool,
    /// Whether it points to Metal's `constant` memory.
    pub constant: bool,
    pub source: Argument,
}

/// Where an argument comes from.
#[derive(Debug, PartialEq, Eq)]
pub enum Argument {
    /// `[[buffer(n)]]`
    Buffer(u32),
    /// Threadgroup memory that the caller allocates.
    Threadgroup,
    /// A thread position: `[[thread_index_in_simdgroup]]` and the like.
    Place(&'static str),
}

/// The attributes for a thread's position, which are also the fields of `msl_place` in
/// `runtime/runtime.h`.
const PLACES: &[&str] = &[
    "thread_position_in_grid",
    "threads_per_grid",
    "thread_position_in_threadgroup",
    "threads_per_threadgroup",
    "threadgroup_position_in_grid",
    "threadgroups_per_grid",
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "threads_per_simdgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
];

/// Rewrites preprocessed text.
pub fn rewrite(text: &str) -> Result<Unit, String> {
    let tokens = tokens(text);
    let mut rewriter = Rewriter {
        text: Tokens(&tokens),
        unit: Unit { cpp: String::new(), kernels: Vec::new() },
        shared: Vec::new(),
    };
    rewriter.run()?;
    Ok(rewriter.unit)
}

struct Rewriter<'a> {
    text: Tokens<'a>,
    unit: Unit,
    /// `sizeof` expressions of the current function's threadgroup variables so far.
    shared: Vec<String>,
}

impl Rewriter<'_> {
    fn run(&mut self) -> Result<(), String> {
        let (mut at, mut braces, mut parentheses) = (0, 0, 0);
        let mut previous = ";";
        let mut attributes = Vec::new();
        while let Some(&token) = self.text.0.get(at) {
            let mut end = at + 1;
            let statement_starts = parentheses == 0 && matches!(previous, ";" | "{" | "}");
            match (token.kind, token.text) {
                (Kind::Space | Kind::Directive, text) => self.unit.cpp.push_str(text),
                (Kind::Number, text) => self.unit.cpp.push_str(&cpp_number(text)),
                (_, "[[") => {
                    end = self.text.after_bracket(at)?;
                    attributes.extend(self.text.attributes(at, end)?);
                    self.keep_lines(at, end);
                }
                (_, "threadgroup")
                    if braces > 0 && statement_starts && self.text.declares_storage(at) =>
                {
                    end = self.declare_shared(at)?;
                    previous = ";";
                }
                (Kind::Word, "kernel") if braces == 0 => {
                    let kernel = self.kernel(at, std::mem::take(&mut attributes))?;
                    self.unit.kernels.push(kernel);
                    self.unit.cpp.push_str(token.text);
                }
                (_, ".") if self.text.swizzle(at + 1).is_some() => {
                    let _ = write!(
                        self.unit.cpp,
                        ".swizzle<{}>()",
                        self.text.swizzle(at + 1).unwrap_or_default()
                    );
                    end = at + 2;
                }
                (_, text) => {
                    match text {
                        "(" => parentheses += 1,
                        ")" => parentheses -= 1,
                        "{" => braces += 1,
                        "}" => braces -= 1,
                        _ => {}
                    }
                    if braces == 0 && matches!(text, ";" | "}") {
                        attributes.clear();
                        self.shared.clear();
                    }
                    self.unit.cpp.push_str(text);
                }
            }
            if !matches!(token.kind, Kind::Space | Kind::Directive) && end == at + 1 {
                previous = token.text;
            }
            at = end;
        }
        Ok(())
    }

    /// Emits the line breaks of tokens that are left out, to keep line numbers.
    fn keep_lines(&mut self, from: usize, to: usize) {
        let breaks =
            self.text.0[from..to].iter().map(|token| token.text.matches('\n').count()).sum();
        self.unit.cpp.extend(std::iter::repeat_n('\n', breaks));
    }

    /// Rewrites a declaration such as `threadgroup float tree[64];` that begins at `at`.
    fn declare_shared(&mut self, at: usize) -> Result<usize, String> {
        let end =
            self.text.find(at, ";").ok_or("a declaration in threadgroup memory does not end")?;
        let declaration = self.text.join(at + 1, end);
        let (head, dimensions) =
            declaration.split_at(declaration.find('[').unwrap_or(declaration.len()));
        let (ty, name) = head
            .trim()
            .rsplit_once(char::is_whitespace)
            .ok_or_else(|| format!("unreadable: `threadgroup {declaration}`"))?;
        if declaration.contains([',', '=']) {
            return Err(format!(
                "`threadgroup {declaration}`: declare one variable at a time, without a value"
            ));
        }
        let site = self.unit.cpp.len();
        let storage = format!("msl_type_{site}");
        let _ = write!(
            self.unit.cpp,
            "typedef {ty} {storage}{dimensions}; MSL_THREADGROUP_REFERENCE({storage}, {name}, {site}); "
        );
        self.shared.push(format!("sizeof({storage})"));
        let _ = write!(self.unit.cpp, "MSL_THREADGROUP_BYTES({});", self.shared.join(" + "));
        self.keep_lines(at, end + 1);
        Ok(end + 1)
    }

    /// Reads the signature `kernel void name(parameters)`.
    fn kernel(&self, at: usize, attributes: Vec<(String, String)>) -> Result<Kernel, String> {
        let open = self.text.find(at, "(").ok_or("a kernel without parameters")?;
        let name = self
            .text
            .join(at, open)
            .rsplit(char::is_whitespace)
            .next()
            .unwrap_or_default()
            .to_owned();
        let max_threads =
            match attributes.iter().find(|(name, _)| name == "max_total_threads_per_threadgroup") {
                Some((_, value)) => Some(integer(value)?),
                None => None,
            };
        let close = self.text.after_bracket(open)? - 1;
        let parameters = self
            .text
            .split(open + 1, close)?
            .into_iter()
            .map(|(from, to)| self.parameter(from, to));
        Ok(Kernel {
            parameters: parameters
                .collect::<Result<_, _>>()
                .map_err(|e| format!("kernel `{name}`: {e}"))?,
            name,
            max_threads,
        })
    }

    fn parameter(&self, from: usize, to: usize) -> Result<Parameter, String> {
        let start = self.text.find(from, "[[").filter(|&start| start < to).unwrap_or(to);
        let declaration = self.text.join(from, start);
        let name = declaration
            .rsplit(|c: char| !c.is_alphanumeric() && c != '_')
            .next()
            .unwrap_or_default()
            .to_owned();
        let reference = declaration.contains('&');
        let constant = declaration.split_whitespace().any(|word| word == "constant");
        let source = match self.text.attributes(start, to)?.first() {
            Some((attribute, slot)) if attribute == "buffer" => Argument::Buffer(integer(slot)?),
            Some((attribute, _)) => {
                let place = PLACES.iter().find(|place| *place == attribute);
                Argument::Place(
                    place.ok_or_else(|| {
                        format!("`{name}`: no attribute [[{attribute}]] is known")
                    })?,
                )
            }
            None if declaration.starts_with("threadgroup") && reference => Argument::Threadgroup,
            None => return Err(format!("`{name}` has no attribute")),
        };
        Ok(Parameter { name, reference, constant, source })
    }
}

/// Look-ups in a list of tokens.
#[derive(Clone, Copy)]
pub struct Tokens<'a>(pub &'a [Token<'a>]);

impl Tokens<'_> {
    pub fn find(&self, from: usize, text: &str) -> Option<usize> {
        (from..self.0.len()).find(|&at| self.0[at].text == text)
    }

    /// The index after the bracket that closes the one at `open`.
    pub fn after_bracket(&self, open: usize) -> Result<usize, String> {
        let mut depth = 0;
        for (at, token) in self.0.iter().enumerate().skip(open) {
            depth += match token.text {
                "[[" => 2,
                "(" | "[" | "{" => 1,
                ")" | "]" | "}" => -1,
                _ => 0,
            };
            if depth == 0 {
                return Ok(at + 1);
            }
        }
        Err(format!("`{}` is not closed", self.0[open].text))
    }

    /// The text between two tokens, with white space as single spaces.
    pub fn join(&self, from: usize, to: usize) -> String {
        let mut text = String::new();
        for token in &self.0[from..to] {
            text.push_str(if matches!(token.kind, Kind::Space | Kind::Directive) {
                " "
            } else {
                token.text
            });
        }
        text.trim().to_owned()
    }

    /// The token ranges between commas outside of brackets; none for an empty list.
    pub fn split(&self, from: usize, to: usize) -> Result<Vec<(usize, usize)>, String> {
        let (mut parts, mut start, mut at, mut angles) = (Vec::new(), from, from, 0);
        while at < to {
            match self.0[at].text {
                "(" | "[" | "[[" => at = self.after_bracket(at)? - 1,
                "<" => angles += 1,
                ">" => angles -= 1,
                "," if angles == 0 => {
                    parts.push((start, at));
                    start = at + 1;
                }
                _ => {}
            }
            at += 1;
        }
        if !self.join(start, to).is_empty() {
            parts.push((start, to));
        }
        Ok(parts)
    }

    /// The names and values of the attributes in `[[...]]`.
    pub fn attributes(&self, from: usize, to: usize) -> Result<Vec<(String, String)>, String> {
        if from >= to {
            return Ok(Vec::new());
        }
        let inner = self.split(from + 1, self.after_bracket(from)? - 2)?;
        let named = inner.into_iter().map(|(from, to)| {
            let text = self.join(from, to);
            let (name, value) = text.split_once('(').unwrap_or((&text, ""));
            (name.trim().to_owned(), value.trim_end_matches(')').trim().to_owned())
        });
        Ok(named.collect())
    }

    /// Returns whether the declaration at `threadgroup` allocates memory, rather than declares a
    /// pointer or reference.
    pub fn declares_storage(&self, at: usize) -> bool {
        let pointer = self.0[at..].iter().find(|token| matches!(token.text, ";" | "*" | "&" | "["));
        pointer.is_some_and(|token| matches!(token.text, ";" | "["))
    }

    /// The component indices of a swizzle such as `xz`, if the token is one.
    fn swizzle(&self, at: usize) -> Option<String> {
        let token = self.0.get(at)?;
        let indices: Option<Vec<_>> =
            token.text.chars().map(|c| "xyzw".find(c).map(|i| i.to_string())).collect();
        indices
            .filter(|indices| token.kind == Kind::Word && (2..=4).contains(&indices.len()))
            .map(|indices| indices.join(", "))
    }
}

pub fn integer(text: &str) -> Result<u32, String> {
    text.trim_end_matches(['u', 'U']).parse().map_err(|_| format!("`{text}` is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_read() {
        let text = "[[max_total_threads_per_threadgroup(64u)]] kernel void k(constant P& p [[buffer(0)]],\n device const A<B, 2>* x [[ buffer(3) ]],\
                    uint lane [[thread_index_in_simdgroup]], threadgroup T& t) { threadgroup float a[2 * 4]; threadgroup float* b = a; y = v.xz; }";
        let unit = rewrite(text).unwrap();
        let [kernel] = &unit.kernels[..] else { panic!("{unit:?}") };
        assert_eq!((kernel.name.as_str(), kernel.max_threads), ("k", Some(64)));
        let parameters: Vec<_> = kernel
            .parameters
            .iter()
            .map(|p| (p.name.as_str(), p.reference, p.constant, &p.source))
            .collect();
        let lane = Argument::Place("thread_index_in_simdgroup");
        let expected = [
            ("p", true, true, &Argument::Buffer(0)),
            ("x", false, false, &Argument::Buffer(3)),
            ("lane", false, false, &lane),
            ("t", true, false, &Argument::Threadgroup),
        ];
        assert_eq!(parameters, expected);
        assert!(unit.cpp.contains("typedef float msl_type_"), "{}", unit.cpp);
        assert!(unit.cpp.contains("threadgroup float* b = a;"), "{}", unit.cpp);
        assert!(unit.cpp.contains("v.swizzle<0, 2>()"), "{}", unit.cpp);
        assert_eq!(unit.cpp.matches('\n').count(), 1);
    }

    #[test]
    fn what_cannot_be_bound_is_refused() {
        let error = |text| rewrite(text).unwrap_err();
        assert!(error("kernel void k(device float* x) {}").contains("`x` has no attribute"));
        assert!(
            error("kernel void k(uint i [[thread_position]]) {}").contains("[[thread_position]]")
        );
        assert!(
            error("kernel void k(device float* x [[buffer(N)]]) {}")
                .contains("`N` is not a number")
        );
        assert!(error("kernel void k(device float* x [[buffer(0)]]").contains("not closed"));
    }
}
