//! Text that a terminal can show without obeying it.

use std::{fmt, path::Path};

/// The longest message that is shown, in characters: names in files may be of any length.
pub(crate) const MOST_MESSAGE: usize = 2000;

/// Shows a path in a message: control characters and those that change the direction of text are
/// escaped, and bytes that are not UTF-8 are replaced.
pub fn display(path: &Path) -> impl fmt::Display + '_ {
    Shown(path)
}

struct Shown<'a>(&'a Path);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.to_string_lossy().chars().try_for_each(|c| show(f, c))
    }
}

/// Escapes a message, and cuts it after [`MOST_MESSAGE`] characters: names in files, and what a
/// template says, may have control characters.
pub(crate) fn printable(message: &str) -> String {
    let mut shown = String::new();
    for (at, c) in message.chars().enumerate() {
        if at == MOST_MESSAGE {
            return shown + " ..";
        }
        // Writing to a string never fails.
        let _ = show(&mut shown, c);
    }
    shown
}

/// Writes a character, escaped where a terminal would obey it.
fn show(to: &mut impl fmt::Write, c: char) -> fmt::Result {
    if c.is_control() || is_invisible(c) {
        write!(to, "{}", c.escape_default())
    } else {
        to.write_char(c)
    }
}

/// Returns whether a character has no shape of its own, and hides or reorders others: line and
/// paragraph separators, directions, zero widths, tags.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_command_no_terminal() {
        let path = Path::new("é/\u{1b}[2J\r\n\u{202e}txt.fgug\u{2066}\u{85}");
        assert_eq!(
            display(path).to_string(),
            "é/\\u{1b}[2J\\r\\n\\u{202e}txt.fgug\\u{2066}\\u{85}"
        );
        #[cfg(unix)]
        {
            let bytes: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"a\xff\x07");
            assert_eq!(display(Path::new(bytes)).to_string(), "a\u{fffd}\\u{7}");
        }
    }
}
