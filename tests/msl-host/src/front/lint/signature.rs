//! Signatures of kernels: the attributes of section 5.2 of the specification, as far as wgpu can
//! bind what they stand for.

use super::{Fault, line_of};
use crate::{
    rewrite::{Tokens, integer},
    text::Token,
};

/// Slots of buffers that Metal has.
const BUFFERS: u32 = 31;

/// Attributes of positions and sizes, which may have up to three components.
const POSITIONS: &[&str] = &[
    "thread_position_in_grid",
    "threads_per_grid",
    "thread_position_in_threadgroup",
    "threads_per_threadgroup",
    "threadgroup_position_in_grid",
    "threadgroups_per_grid",
];

/// Attributes of indices and numbers.
const INDICES: &[&str] = &[
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "threads_per_simdgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
];

/// Attributes that must be of one type in a kernel.
const ALIKE: &[[&str; 2]] = &[
    ["thread_position_in_grid", "threads_per_grid"],
    ["thread_position_in_threadgroup", "threads_per_threadgroup"],
];

/// Checks all kernels of a preprocessed text.
pub fn kernels(all: &[Token<'_>]) -> Vec<Fault> {
    let (mut found, mut attributes, mut at) = (Vec::new(), Vec::new(), 0);
    while at < all.len() {
        match all[at].text {
            "[[" => {
                attributes.extend(Tokens(all).attributes(at, all.len()).unwrap_or_default());
                at = Tokens(all).after_bracket(at).unwrap_or(all.len());
                continue;
            }
            ";" | "}" => attributes.clear(),
            "kernel" => {
                let faults = kernel(all, at, &attributes).unwrap_or_else(|what| vec![what]);
                let line = line_of(all, at);
                found.extend(faults.into_iter().map(|what| Fault { line, what }));
            }
            _ => {}
        }
        at += 1;
    }
    found
}

type Attribute = (String, String);

fn kernel(all: &[Token<'_>], at: usize, attributes: &[Attribute]) -> Result<Vec<String>, String> {
    let tokens = Tokens(all);
    let open = tokens.find(at, "(").ok_or("a kernel without parameters")?;
    let head = tokens.join(at, open);
    let (result, name) = head.rsplit_once(' ').unwrap_or(("", &head));
    let mut found = Vec::new();
    if result != "kernel void" {
        found.push(format!("kernel `{name}` does not return void"));
    }
    match attributes
        .iter()
        .find(|(name, _)| name == "max_total_threads_per_threadgroup")
        .map(|(_, threads)| integer(threads))
    {
        None => found.push(format!("kernel `{name}` has no max_total_threads_per_threadgroup")),
        Some(Ok(1..=1024)) => {}
        Some(_) => found
            .push(format!("kernel `{name}`: max_total_threads_per_threadgroup is not 1 to 1024")),
    }
    let close = tokens.after_bracket(open)? - 1;
    let mut parameters = Vec::new();
    for (from, to) in tokens.split(open + 1, close)? {
        match Parameter::read(tokens, from, to) {
            Ok(parameter) => parameters.push(parameter),
            Err(what) => found.push(format!("kernel `{name}`: {what}")),
        }
    }
    if found.is_empty() {
        let faults = [slots(&parameters), places(&parameters)].into_iter().filter_map(Result::err);
        found.extend(faults.map(|what| format!("kernel `{name}`: {what}")));
    }
    Ok(found)
}

/// A parameter with its attribute, `attribute(value)`.
struct Parameter {
    attribute: String,
    value: String,
    ty: String,
}

impl Parameter {
    /// Reads the tokens of a parameter.
    fn read(tokens: Tokens<'_>, from: usize, to: usize) -> Result<Self, String> {
        let start = tokens.find(from, "[[").filter(|&start| start < to).unwrap_or(to);
        let declaration = tokens.join(from, start);
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let (ty, name) = declaration.split_at(declaration.trim_end_matches(is_name).len());
        let rest =
            if start < to { tokens.join(tokens.after_bracket(start)?, to) } else { String::new() };
        let mut attributes = tokens.attributes(start, to)?;
        if attributes.len() != 1 || !rest.is_empty() {
            return Err(format!(
                "`{name}` has {} attribute",
                if attributes.is_empty() { "no" } else { "more than one" }
            ));
        }
        let (attribute, value) = attributes.remove(0);
        let parameter = Self { attribute, value, ty: ty.trim_end().to_owned() };
        match parameter.is_sound() {
            Some(true) => Ok(parameter),
            Some(false) => Err(format!(
                "`{name}` of type `{}` cannot be {}({})",
                parameter.ty, parameter.attribute, parameter.value
            )),
            None if parameter.attribute == "threadgroup" => {
                Err(format!("nothing allocates memory for `{name}`"))
            }
            None => Err(format!("`{name}`: attribute `{}` is not known", parameter.attribute)),
        }
    }

    /// Returns whether the attribute's value and the type fit it; `None` for one that is not known.
    fn is_sound(&self) -> Option<bool> {
        let ty = self.ty.as_str();
        let index = |ty: &str| matches!(ty, "uint" | "ushort");
        if self.is_buffer() {
            let words: Vec<_> = ty.split_whitespace().collect();
            let in_memory = ty.ends_with(['*', '&'])
                && (words.contains(&"device") || words.contains(&"constant"));
            Some(in_memory && integer(&self.value).is_ok_and(|slot| slot < BUFFERS))
        } else if self.is_position() {
            Some(index(ty.trim_end_matches(['2', '3'])))
        } else {
            INDICES.contains(&self.attribute.as_str()).then(|| index(ty))
        }
    }

    fn is_buffer(&self) -> bool {
        self.attribute == "buffer"
    }

    fn is_position(&self) -> bool {
        POSITIONS.contains(&self.attribute.as_str())
    }

    /// The number of components of a position that is a vector.
    fn components(&self) -> Option<u32> {
        self.ty.chars().last()?.to_digit(10).filter(|_| self.is_position())
    }
}

/// Checks that buffers have the slots 0, 1, .., each once.
fn slots(parameters: &[Parameter]) -> Result<(), String> {
    let mut slots: Vec<_> = parameters
        .iter()
        .filter(|p| p.is_buffer())
        .filter_map(|p| integer(&p.value).ok())
        .collect();
    slots.sort_unstable();
    match (0..).zip(slots).find(|(slot, found)| slot != found) {
        Some((slot, found)) if found < slot => {
            Err(format!("two parameters in [[buffer({found})]]"))
        }
        Some((slot, _)) => Err(format!("no parameter in [[buffer({slot})]]")),
        None => Ok(()),
    }
}

/// Checks positions and indices against one another.
fn places(parameters: &[Parameter]) -> Result<(), String> {
    let places: Vec<_> = parameters.iter().filter(|p| !p.is_buffer()).collect();
    for (i, b) in places.iter().enumerate() {
        for a in &places[..i] {
            if a.attribute == b.attribute {
                return Err(format!("two parameters are {}", a.attribute));
            }
            let pair = [a.attribute.as_str(), b.attribute.as_str()];
            if ALIKE.iter().any(|alike| alike.iter().all(|attribute| pair.contains(attribute)))
                && a.ty != b.ty
            {
                return Err(format!("{} and {} have different types", a.attribute, b.attribute));
            }
            if a.components().zip(b.components()).is_some_and(|(a, b)| a != b) {
                return Err(format!(
                    "{} and {} have different numbers of components",
                    a.attribute, b.attribute
                ));
            }
        }
    }
    Ok(())
}
