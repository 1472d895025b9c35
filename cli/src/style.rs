//! Styles of text on a terminal.

use std::io::IsTerminal;

/// Returns a text without control characters other than line feeds and tabs.
pub fn without_controls(text: &str) -> String {
    text.chars().filter(|&c| c == '\n' || c == '\t' || !c.is_control()).collect()
}

/// How text is shown on a stream.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    has_color: bool,
}

impl Style {
    /// Returns the style of a stream: without colors if it is no terminal, or if `NO_COLOR` is set.
    pub fn of(stream: &impl IsTerminal) -> Self {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { has_color: stream.is_terminal() && !is_set("NO_COLOR") && !is_dumb }
    }

    /// Returns a text in a fainter color.
    pub fn dim(self, text: &str) -> String {
        self.within("\x1b[2m", text)
    }

    /// Returns a text in bold letters.
    pub fn bold(self, text: &str) -> String {
        self.within("\x1b[1m", text)
    }

    fn within(self, start: &str, text: &str) -> String {
        if self.has_color { format!("{start}{text}\x1b[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_model_commands_no_terminal() {
        assert_eq!(without_controls("a\u{1b}[2J\tb\r\nc\u{9b}é"), "a[2J\tb\ncé");
    }
}
