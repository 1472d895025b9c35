//! A template's text in pieces: what is written as it is, and the tokens between delimiters.

/// A piece of a template.
#[derive(Clone, Debug, PartialEq)]
pub enum Token<'a> {
    /// Text to be written as it is.
    Raw(&'a str),
    /// `{{`
    VariableStart,
    /// `}}`
    VariableEnd,
    /// `{%`
    BlockStart,
    /// `%}`
    BlockEnd,
    Name(&'a str),
    Int(i64),
    Float(f64),
    Str(String),
    /// An operator or a delimiter.
    Op(&'static str),
}

/// Longest first: `==` before `=`.
const OPERATORS: [&str; 27] = [
    "==", "!=", "<=", ">=", "**", "//", "<", ">", "=", "+", "-", "*", "/", "%", "~", "|", ".", ",",
    ":", "(", ")", "[", "]", "{", "}", "!", ";",
];

pub struct Lexer<'a> {
    rest: &'a str,
    line: u32,
    /// The last tag removes the newline that follows it, or all white space.
    trim: Trim,
    tokens: Vec<(Token<'a>, u32)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Trim {
    Nothing,
    Newline,
    All,
}

/// The tokens of a template and the lines that they are on. As in transformers, a block's tag takes
/// the newline after it and the blanks before it on its line with it.
pub fn tokens(template: &str) -> Result<Vec<(Token<'_>, u32)>, String> {
    // One newline at the end is not the template's.
    let template = template.strip_suffix('\n').unwrap_or(template);
    let mut lexer = Lexer { rest: template, line: 1, trim: Trim::Nothing, tokens: Vec::new() };
    lexer.run().map_err(|what| format!("line {}: {what}", lexer.line))?;
    Ok(lexer.tokens)
}

impl<'a> Lexer<'a> {
    fn run(&mut self) -> Result<(), String> {
        while !self.rest.is_empty() {
            let Some(start) = tag_start(self.rest) else {
                let text = self.take(self.rest.len());
                self.raw(text, false, false);
                break;
            };
            let (block, after) =
                (&self.rest[start..start + 2] != "{{", self.rest[start + 2..].chars().next());
            let text = self.take(start);
            self.raw(text, after == Some('-'), block && after != Some('+'));
            match &self.take(2)[1..] {
                "{" => self.tag(Token::VariableStart, "}}", Token::VariableEnd)?,
                "%" if self.verbatim()? => {}
                "%" => self.tag(Token::BlockStart, "%}", Token::BlockEnd)?,
                _ => {
                    let end = self.rest.find("#}").ok_or("a comment has no end")?;
                    let comment = self.take(end);
                    self.take(2);
                    self.trim = if comment.ends_with('-') { Trim::All } else { Trim::Newline };
                }
            }
        }
        Ok(())
    }

    /// Text between tags. `all` says that the tag after it removes white space before it, `blanks`
    /// that it removes those of its own line.
    fn raw(&mut self, text: &'a str, all: bool, blanks: bool) {
        let begins_line = self.trim != Trim::All
            && (self.tokens.is_empty() || self.trim == Trim::Newline && text.starts_with('\n'));
        let mut text = match self.trim {
            Trim::Nothing => text,
            Trim::Newline => text.strip_prefix('\n').unwrap_or(text),
            Trim::All => text.trim_start(),
        };
        self.trim = Trim::Nothing;
        if all {
            text = text.trim_end();
        } else if blanks {
            let kept = text.trim_end_matches([' ', '\t']);
            if kept.ends_with('\n') || kept.is_empty() && begins_line {
                text = kept;
            }
        }
        if !text.is_empty() {
            self.tokens.push((Token::Raw(text), self.line));
        }
    }

    /// What stands between `{% raw %}` and `{% endraw %}`, if that is what begins here.
    fn verbatim(&mut self) -> Result<bool, String> {
        let tag = |rest: &'a str, name: &str| {
            let inner = rest
                .strip_prefix(['-', '+'])
                .unwrap_or(rest)
                .trim_start()
                .strip_prefix(name)?
                .trim_start();
            let (inner, minus) =
                inner.strip_prefix('-').map_or((inner, false), |inner| (inner, true));
            Some((inner.strip_prefix("%}")?, minus))
        };
        let Some((inside, minus)) = tag(self.rest, "raw") else { return Ok(false) };
        self.take(self.rest.len() - inside.len());
        self.trim = if minus { Trim::All } else { Trim::Nothing };
        let ends = self.rest.match_indices("{%").find_map(|(at, _)| {
            tag(&self.rest[at + 2..], "endraw").map(|(rest, minus)| (at, rest, minus))
        });
        let (at, rest, minus) = ends.ok_or("`raw` has no `endraw`")?;
        let after = self.rest[at + 2..].chars().next();
        let text = self.take(at);
        self.raw(text, after == Some('-'), after != Some('+'));
        self.take(self.rest.len() - rest.len());
        self.trim = if minus { Trim::All } else { Trim::Newline };
        Ok(true)
    }

    /// The tokens of a tag up to its end.
    fn tag(&mut self, start: Token<'a>, close: &str, end: Token<'a>) -> Result<(), String> {
        if self.rest.starts_with(['-', '+']) {
            self.take(1);
        }
        self.tokens.push((start, self.line));
        let mut open = Vec::new();
        loop {
            let blank = self.rest.len() - self.rest.trim_start().len();
            self.take(blank);
            if open.is_empty() {
                for (sign, trim) in [
                    ("-", Trim::All),
                    ("+", Trim::Nothing),
                    ("", if close == "%}" { Trim::Newline } else { Trim::Nothing }),
                ] {
                    if self.rest.strip_prefix(sign).is_some_and(|rest| rest.starts_with(close)) {
                        self.take(sign.len() + 2);
                        self.trim = trim;
                        self.tokens.push((end, self.line));
                        return Ok(());
                    }
                }
            }
            let line = self.line;
            let token = self.token()?;
            match token {
                Token::Op(bracket @ ("(" | "[" | "{")) => open.push(bracket),
                Token::Op(bracket @ (")" | "]" | "}")) => match (open.pop(), bracket) {
                    (Some("("), ")") | (Some("["), "]") | (Some("{"), "}") => {}
                    _ => return Err(format!("`{bracket}` closes nothing")),
                },
                _ => {}
            }
            self.tokens.push((token, line));
        }
    }

    fn token(&mut self) -> Result<Token<'a>, String> {
        let first = self.rest.chars().next().ok_or("a tag has no end")?;
        if first.is_alphabetic() || first == '_' {
            let end = self
                .rest
                .find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(self.rest.len());
            return Ok(Token::Name(self.take(end)));
        }
        if first.is_ascii_digit() {
            return self.number();
        }
        if first == '"' || first == '\'' {
            return self.string(first);
        }
        let operator = OPERATORS.into_iter().find(|operator| self.rest.starts_with(operator));
        let operator =
            operator.ok_or_else(|| format!("`{}` is not understood", first.escape_default()))?;
        self.take(operator.len());
        Ok(Token::Op(operator))
    }

    fn number(&mut self) -> Result<Token<'a>, String> {
        let bases = [("0x", "0X", 16), ("0o", "0O", 8), ("0b", "0B", 2)];
        for (small, large, base) in bases {
            if !self.rest.starts_with(small) && !self.rest.starts_with(large) {
                continue;
            }
            let digits = |c: char| c.is_digit(base) || c == '_';
            let end = self.rest[2..].find(|c| !digits(c)).map_or(self.rest.len(), |end| end + 2);
            let text = self.take(end);
            let value = i64::from_str_radix(&text[2..].replace('_', ""), base);
            return value.map(Token::Int).map_err(|e| format!("{text}: {e}"));
        }
        let digits =
            |text: &str| text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
        let mut end = digits(self.rest);
        let mut float = false;
        if self.rest[end..].starts_with('.')
            && self.rest[end + 1..].starts_with(|c: char| c.is_ascii_digit())
        {
            end += 1 + digits(&self.rest[end + 1..]);
            float = true;
        }
        if let Some(exponent) = self.rest[end..].strip_prefix(['e', 'E']) {
            let sign = usize::from(exponent.starts_with(['+', '-']));
            let length = digits(&exponent[sign..]);
            if length > 0 {
                end += 1 + sign + length;
                float = true;
            }
        }
        let text = self.take(end).replace('_', "");
        match float {
            true => text.parse().map(Token::Float).map_err(|e| format!("{text}: {e}")),
            false => text.parse().map(Token::Int).map_err(|e| format!("{text}: {e}")),
        }
    }

    fn string(&mut self, quote: char) -> Result<Token<'a>, String> {
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        let end = loop {
            let (at, c) = chars.next().ok_or("a string has no end")?;
            match c {
                c if c == quote => break at + 1,
                '\\' => {
                    let (_, escaped) = chars.next().ok_or("a string has no end")?;
                    let mut code = |length: usize| -> Result<char, String> {
                        let digits: String = chars.by_ref().take(length).map(|(_, c)| c).collect();
                        let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                        code.ok_or_else(|| format!("\\{escaped}{digits} is no character"))
                    };
                    match escaped {
                        'a' => text.push('\u{7}'),
                        'b' => text.push('\u{8}'),
                        'f' => text.push('\u{c}'),
                        'v' => text.push('\u{b}'),
                        'n' => text.push('\n'),
                        't' => text.push('\t'),
                        'r' => text.push('\r'),
                        '0'..='7' => {
                            let digits = octal(&self.rest[at + 1..]);
                            let code = u32::from_str_radix(digits, 8).ok();
                            text.extend(code.and_then(char::from_u32));
                            for _ in 1..digits.len() {
                                chars.next();
                            }
                        }
                        '\n' => {}
                        'N' if self.rest[at + 2..].starts_with('{') => {
                            return Err("names of characters are not supported in strings".into());
                        }
                        'x' => text.push(code(2)?),
                        'u' => text.push(code(4)?),
                        'U' => text.push(code(8)?),
                        '\\' | '\'' | '"' => text.push(escaped),
                        other => text.extend(['\\', other]),
                    }
                }
                c => text.push(c),
            }
        };
        self.take(end);
        Ok(Token::Str(text))
    }

    fn take(&mut self, length: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        self.line = self.line.saturating_add(taken.matches('\n').count() as u32);
        taken
    }
}

/// The digits of an octal escape: three at most.
fn octal(text: &str) -> &str {
    let end = text.bytes().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
    &text[..end]
}

/// Where the next tag begins.
fn tag_start(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|two| matches!(two, b"{{" | b"{%" | b"{#"))
}
