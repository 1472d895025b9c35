//! Which part of a kernel a line of its source comes from, for the messages of compilers.

use naga::{SourceLocation, WithSpan, front::wgsl::ParseError, valid::ValidationError};
use std::error::Error as _;

/// The source of a variant, and the parts that it is joined from.
pub struct JoinedSource {
    /// The source as the driver gets it.
    pub source: String,
    /// The parts, each with the lines of `source` before its first.
    parts: Vec<(String, usize)>,
}

impl JoinedSource {
    /// A source that so far has only what this crate writes before the first part.
    pub fn new(head: String) -> Self {
        Self { source: head, parts: Vec::new() }
    }

    /// Appends a part; `path` names it in messages.
    pub fn push(&mut self, path: &str, part: &str) {
        self.parts.push((path.to_owned(), self.source.matches('\n').count()));
        self.source += part;
    }

    /// Returns the part of a line, and the line's number in the part, both from 1. Lines before the
    /// first part are this crate's.
    fn origin(&self, line: usize) -> (&str, usize) {
        let part = self.parts.iter().rev().find(|(_, before)| line > *before);
        part.map_or(("the lines before the source", line), |(path, before)| (path, line - before))
    }

    /// A message with the place in its part, and that line with a mark below.
    fn located(&self, location: Option<SourceLocation>, message: &str) -> String {
        let Some(location) = location.filter(|location| location.length > 0) else {
            return message.to_owned();
        };
        let (number, column) = (location.line_number as usize, location.line_position as usize);
        let (path, at) = self.origin(number);
        let line = self.source.lines().nth(number.saturating_sub(1)).unwrap_or_default();
        // As many columns as the line has before the mark, in characters, not bytes.
        let before = line.get(..column.saturating_sub(1)).map_or(0, |start| start.chars().count());
        format!("{path}:{at}:{}: {message}\n{line}\n{:before$}^", before + 1, "", before = before)
    }

    /// What naga's parser says of the source.
    pub fn parse_error(&self, error: &ParseError) -> String {
        let labels = error.labels().map(|(_, label)| label).filter(|label| !label.is_empty());
        let message = [error.message()].into_iter().chain(labels).chain(error.notes());
        self.located(error.location(&self.source), &message.collect::<Vec<_>>().join("; "))
    }

    /// What naga's validator says of the source.
    pub fn validation_error(&self, error: &WithSpan<ValidationError>) -> String {
        let mut message = error.as_inner().to_string();
        let mut cause = error.as_inner().source();
        while let Some(error) = cause {
            message += ": ";
            message += &error.to_string();
            cause = error.source();
        }
        // A function and what is wrong in it: the shorter is the place.
        let spans = error.spans().filter_map(|(span, _)| Some((span.to_range()?.len(), span)));
        let place = spans.min_by_key(|&(len, _)| len).map(|(_, span)| span.location(&self.source));
        self.located(place, &message)
    }

    /// Replaces the places that Metal's compiler names, `program_source:LINE`, by those of the
    /// parts.
    pub fn metal_message(&self, message: &str) -> String {
        const PLACE: &str = "program_source:";
        let mut pieces = message.split(PLACE);
        let mut mapped = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let digits = piece.bytes().take_while(u8::is_ascii_digit).count();
            match piece[..digits].parse() {
                Ok(line) => {
                    let (path, at) = self.origin(line);
                    mapped += &format!("{path}:{at}{}", &piece[digits..]);
                }
                Err(_) => mapped = mapped + PLACE + piece,
            }
        }
        mapped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined() -> JoinedSource {
        let mut joined = JoinedSource::new("const A = 1u;\nconst B = 2u;\n".to_owned());
        joined.push("first.wgsl", "fn one() -> u32 {\n    return A;\n}\n");
        joined.push("second.wgsl", "/* é */ fn two() -> u32 {\n    return wrong;\n}\n");
        joined
    }

    #[test]
    fn parse_errors_name_part_line_and_column() {
        let joined = joined();
        let error = naga::front::wgsl::parse_str(&joined.source).unwrap_err();
        let message = joined.parse_error(&error);
        assert!(message.starts_with("second.wgsl:2:12: "), "{message}");
        assert!(message.ends_with("    return wrong;\n           ^"), "{message}");
    }

    #[test]
    fn validation_errors_name_part_and_cause() {
        let mut joined = JoinedSource::new("\n".to_owned());
        let part =
            "@group(0) @binding(0) var<storage> x: array<u32>;\nfn wrong() {\n    x[0] = 1;\n}\n";
        joined.push("store.wgsl", part);
        let module = naga::front::wgsl::parse_str(&joined.source).unwrap();
        let (flags, all) = (naga::valid::ValidationFlags::all(), naga::valid::Capabilities::all());
        let error = naga::valid::Validator::new(flags, all).validate(&module).unwrap_err();
        let message = joined.validation_error(&error);
        assert!(
            message.starts_with("store.wgsl:3:5: Function [0] 'wrong' is invalid: "),
            "{message}"
        );
    }

    #[test]
    fn metal_messages_name_parts() {
        let message = "program_source:4:5: error: x\nprogram_source:7:1: note: y, program_source:z";
        let expected = "first.wgsl:2:5: error: x\nsecond.wgsl:2:1: note: y, program_source:z";
        assert_eq!(joined().metal_message(message), expected);
        assert_eq!(joined().metal_message("program_source:1:1"), "the lines before the source:1:1");
    }
}
