//! Texts from files, pipes and standard input. Their length is bounded, so that an endless input is
//! an error.

use anyhow::{Context as _, Result, bail};
use bitnet_wgpu::internals::files::{display, read_stream};
use std::{
    io::{self, BufRead, Read},
    path::Path,
};

/// Most bytes of a prompt, a message, or a text that is scored. Tokenizing takes up to 200 times as
/// much memory, and the longest contexts have some 8 MB.
pub const MAX_TEXT: u64 = 16 << 20;

/// Most bytes of a text that is embedded: 64 of them are in memory together, and a context of 128 K
/// tokens has half a megabyte.
pub const MAX_EMBEDDED: u64 = 1 << 20;

/// Most bytes of a chat template, as the library takes it.
pub const MAX_TEMPLATE: u64 = 1 << 20;

/// Most bytes of a config.json, as the library reads it.
pub const MAX_CONFIG: u64 = 16 << 20;

/// Reads the text of a file or a pipe.
///
/// # Errors
/// More than `most` bytes, and bytes that are not UTF-8.
pub fn text(path: &Path, most: u64) -> Result<String> {
    utf8(read_stream(path, most)?).with_context(|| display(path).to_string())
}

/// Reads standard input to its end.
///
/// # Errors
/// As [`text`], for [`MAX_TEXT`].
pub fn standard_input() -> Result<String> {
    whole(io::stdin().lock(), MAX_TEXT).context("standard input")
}

/// Reads standard input to its end. The last line feed is not part of the text.
///
/// # Errors
/// As [`standard_input`].
pub fn piped_text() -> Result<String> {
    let input = standard_input()?;
    let text = input.strip_suffix('\n').unwrap_or(&input);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}

/// Parses an argument that is a prompt. One that begins with a dash is a prompt if it has a space;
/// others are options that are not known.
///
/// # Errors
/// What could be a mistyped option.
pub fn prompt(argument: &str) -> Result<String, String> {
    let letter = argument.strip_prefix('-').map(|rest| rest.trim_start_matches('-'));
    let is_option = letter.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic()));
    if is_option && !argument.contains(char::is_whitespace) {
        return Err(format!("unknown option; as a prompt, `-- {argument}` is accepted"));
    }
    Ok(argument.to_owned())
}

fn whole(input: impl Read, most: u64) -> Result<String> {
    let mut bytes = Vec::new();
    input.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        bail!("has more than {most} bytes, which is the limit");
    }
    utf8(bytes)
}

/// Returns the text without its byte order mark.
fn utf8(mut bytes: Vec<u8>) -> Result<String> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        bail!("is text in UTF-16: save it as UTF-8");
    }
    if bytes.starts_with("\u{feff}".as_bytes()) {
        bytes.drain(..3);
    }
    String::from_utf8(bytes).map_err(|error| {
        anyhow::anyhow!("is not UTF-8: byte {} is wrong", error.utf8_error().valid_up_to())
    })
}

/// A line of an input, without its end.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// UTF-8.
    Text(String),
    /// Bytes that are not UTF-8, each of which is U+FFFD here.
    Repaired(String),
    /// More bytes than are read. The rest of the line has been skipped.
    TooLong,
}

/// Reads lines of a bounded length.
pub struct Lines<R> {
    input: R,
    most: u64,
}

impl<R: BufRead> Lines<R> {
    /// Reads lines of at most `most` bytes.
    pub fn new(input: R, most: u64) -> Self {
        Self { input, most }
    }

    /// Reads the next line; none at the end of the input.
    ///
    /// # Errors
    /// Those of the input.
    pub fn next_line(&mut self) -> io::Result<Option<Line>> {
        let mut bytes = Vec::new();
        self.input.by_ref().take(self.most.saturating_add(1)).read_until(b'\n', &mut bytes)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        if !bytes.ends_with(b"\n") && bytes.len() as u64 > self.most {
            self.input.skip_until(b'\n')?;
            return Ok(Some(Line::TooLong));
        }
        let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        Ok(Some(match str::from_utf8(line) {
            Ok(text) => Line::Text(text.to_owned()),
            Err(_) => Line::Repaired(String::from_utf8_lossy(line).into_owned()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// An endless line that counts the bytes it has given.
    struct Endless<'a>(&'a Cell<u64>);

    impl Read for Endless<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            to.fill(b'x');
            self.0.set(self.0.get() + to.len() as u64);
            Ok(to.len())
        }
    }

    #[test]
    fn endless_inputs_are_read_to_the_bound() {
        let given = Cell::new(0);
        assert!(
            whole(Endless(&given), 5000).unwrap_err().to_string().contains("more than 5000 bytes")
        );
        assert_eq!(given.get(), 5001);
    }

    #[test]
    fn prompts_begin_with_dashes() {
        for text in ["- a list", "-", "--", "-5", "--- x", "-x is negative", "--greedy is good"] {
            assert_eq!(prompt(text).as_deref(), Ok(text));
        }
        for option in ["--greddy", "-x", "--max-tokens=5"] {
            assert!(prompt(option).unwrap_err().contains("is accepted"), "{option}");
        }
    }

    #[test]
    fn lines_are_bounded_and_repaired() {
        let mut lines = Lines::new(&b"five5\nsixsix\n\xffab\r\n\nsixsixsix"[..], 5);
        let text = |text: &str| Some(Line::Text(text.into()));
        let expected = [
            text("five5"),
            Some(Line::TooLong),
            Some(Line::Repaired("\u{fffd}ab".into())),
            text(""),
            Some(Line::TooLong),
            None,
        ];
        for expected in expected {
            assert_eq!(lines.next_line().unwrap(), expected);
        }
    }
}
