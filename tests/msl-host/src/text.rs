//! Splits Metal text into tokens.

/// The kind of a [`Token`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// White space and comments.
    Space,
    /// A preprocessor line.
    Directive,
    /// An identifier or a keyword.
    Word,
    /// A number with its suffix.
    Number,
    /// A string or a character.
    Quoted,
    /// Anything else: one character, or `[[`.
    Symbol,
}

/// A piece of text. Joined, all tokens are the text.
#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    pub kind: Kind,
    pub text: &'a str,
}

/// Splits a text.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    let mut line_start = true;
    while let Some(first) = rest.chars().next() {
        let (kind, bytes) = match first {
            '#' if line_start => (Kind::Directive, rest.find('\n').unwrap_or(rest.len())),
            c if c.is_whitespace() => (Kind::Space, span(rest, char::is_whitespace)),
            '/' if rest.starts_with("//") => (Kind::Space, rest.find('\n').unwrap_or(rest.len())),
            '/' if rest.starts_with("/*") => {
                (Kind::Space, rest.find("*/").map_or(rest.len(), |end| end + 2))
            }
            '"' | '\'' => (Kind::Quoted, quoted(rest, first)),
            c if c.is_ascii_digit() => (Kind::Number, number(rest)),
            '.' if rest[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                (Kind::Number, number(rest))
            }
            c if c.is_alphabetic() || c == '_' => {
                (Kind::Word, span(rest, |c| c.is_alphanumeric() || c == '_'))
            }
            _ if rest.starts_with("[[") => (Kind::Symbol, 2),
            c => (Kind::Symbol, c.len_utf8()),
        };
        let (token, after) = rest.split_at(bytes);
        line_start = (line_start && kind == Kind::Space) || token.contains('\n');
        tokens.push(Token { kind, text: token });
        rest = after;
    }
    tokens
}

fn span(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    text.find(|c| !belongs(c)).unwrap_or(text.len())
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|&(_, c)| {
        let is_end = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        is_end
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

/// The length of a number: digits, points, suffix, and the sign of an exponent.
fn number(text: &str) -> usize {
    let hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    let mut last = ' ';
    let end = text.find(|c: char| {
        let exponent =
            if hexadecimal { matches!(last, 'p' | 'P') } else { matches!(last, 'e' | 'E') };
        let belongs = c.is_ascii_alphanumeric() || c == '.' || (matches!(c, '+' | '-') && exponent);
        last = c;
        !belongs
    });
    end.unwrap_or(text.len())
}

/// A Metal number in C++. In Metal a fraction without a suffix is a `float`, and the suffix `h`
/// means `half`.
pub fn cpp_number(text: &str) -> String {
    if text.starts_with("0x") || text.starts_with("0X") {
        let fraction = text.contains(['p', 'P']) && !text.ends_with(['f', 'F']);
        return if fraction { format!("{text}f") } else { text.to_owned() };
    }
    if let Some(half) = text.strip_suffix(['h', 'H']) {
        return format!("half({half}{}f)", if half.contains('.') { "" } else { ".0" });
    }
    let fraction = text.contains(['.', 'e', 'E']) && !text.ends_with(['f', 'F']);
    if fraction { format!("{text}f") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_the_text() {
        let text = "# 1 \"f\"\n  kernel void k(device X* x [[buffer(0)]]) { x[0] = .5 + 1e-5f*0x1fu; /* ' */ f('\\'', \"\\\"\"); } // \"\n";
        let all = tokens(text);
        assert_eq!(all.iter().map(|t| t.text).collect::<String>(), text);
        let of = |kind| all.iter().filter(|t| t.kind == kind).map(|t| t.text).collect::<Vec<_>>();
        assert_eq!(of(Kind::Directive), ["# 1 \"f\""]);
        assert_eq!(of(Kind::Number), ["0", "0", ".5", "1e-5f", "0x1fu"]);
        assert_eq!(of(Kind::Quoted), ["'\\''", "\"\\\"\""]);
        assert_eq!(of(Kind::Word), ["kernel", "void", "k", "device", "X", "x", "buffer", "x", "f"]);
    }

    #[test]
    fn numbers() {
        let cases = [
            ("1", "1"),
            ("1u", "1u"),
            ("0x1f", "0x1f"),
            ("0x1p-3", "0x1p-3f"),
            ("0x1p3f", "0x1p3f"),
            ("1.0", "1.0f"),
            ("1e-5", "1e-5f"),
            ("2.0f", "2.0f"),
            ("1024.0h", "half(1024.0f)"),
            ("2h", "half(2.0f)"),
        ];
        for (metal, cpp) in cases {
            assert_eq!(cpp_number(metal), cpp);
        }
    }
}
