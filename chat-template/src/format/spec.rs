//! Format specifications, as in `{:>8.2f}`, and numbers and strings as they say.

use crate::{ops::Ops, printing::float, value::Value};

pub type Result<T> = std::result::Result<T, String>;

/// Digits after the point of a number; more are an error.
const MAX_PRECISION: usize = 1000;

/// How a value is written: Python's format specification.
#[derive(Clone, Default)]
pub struct Spec {
    /// What fills the width; a blank by default.
    pub fill: Option<char>,
    /// `<`, `>`, `^`, or `=` for filling between sign and digits.
    pub align: Option<char>,
    /// `+` or a blank: how numbers that are not negative begin.
    pub sign: Option<char>,
    /// `#`: prefixes of hexadecimal, octal and binary numbers.
    pub alternate: bool,
    pub width: usize,
    /// `,` or `_` between groups of digits.
    pub grouping: Option<char>,
    pub precision: Option<usize>,
    pub kind: Option<char>,
}

impl Spec {
    /// Parses the text after the colon of a field.
    pub fn parse(text: &str) -> Result<Self> {
        let (mut spec, mut rest) = (Self::default(), text);
        let mut ahead = text.chars();
        let (first, second) = (ahead.next(), ahead.next());
        let is_align = |c: Option<char>| c.filter(|c| "<>=^".contains(*c));
        if let (Some(fill), Some(align)) = (first, is_align(second)) {
            (spec.fill, spec.align) = (Some(fill), Some(align));
            rest = &rest[fill.len_utf8() + 1..];
        } else if let Some(align) = is_align(first) {
            spec.align = Some(align);
            rest = &rest[1..];
        }
        spec.sign = take(&mut rest, "+- ").filter(|sign| *sign != '-');
        spec.alternate = take(&mut rest, "#").is_some();
        if take(&mut rest, "0").is_some() {
            spec.fill = spec.fill.or(Some('0'));
            spec.align = spec.align.or(Some('='));
        }
        spec.width = number(&mut rest)?.unwrap_or(0);
        spec.grouping = take(&mut rest, ",_");
        if take(&mut rest, ".").is_some() {
            spec.precision = Some(number(&mut rest)?.ok_or("a precision is missing")?);
        }
        spec.kind = rest.chars().next();
        match rest.chars().count() {
            0 | 1 => Ok(spec),
            _ => Err(format!("`{text}` is not a format")),
        }
    }

    /// Text that fills the width, of a value's sign or prefix and the rest of it.
    pub fn padded(&self, ops: &Ops, sign: &str, body: &str, align: char) -> Result<String> {
        let (fill, align) = (self.fill.unwrap_or(' '), self.align.unwrap_or(align));
        let length = sign.len() + body.chars().count();
        let missing = self.width.saturating_sub(length);
        let fill_bytes = missing.saturating_mul(fill.len_utf8());
        ops.budget.check(fill_bytes.saturating_add(body.len()))?;
        let fills = |count: usize| fill.to_string().repeat(count);
        Ok(match align {
            '<' => [sign, body, &fills(missing)].concat(),
            '^' => {
                let left = missing / 2;
                [&fills(left), sign, body, &fills(missing - left)].concat()
            }
            '=' => [sign, &fills(missing), body].concat(),
            _ => [&fills(missing), sign, body].concat(),
        })
    }

    /// A string, cut to the precision.
    pub fn string(&self, ops: &Ops, text: &str) -> Result<String> {
        let end = self.precision.and_then(|most| text.char_indices().nth(most));
        self.padded(ops, "", end.map_or(text, |(end, _)| &text[..end]), '<')
    }

    /// An integer in a base of 2, 8, 10 or 16.
    pub fn integer(&self, ops: &Ops, value: i64) -> Result<String> {
        let kind = self.kind.unwrap_or('d');
        let magnitude = value.unsigned_abs();
        let (prefix, digits) = match kind {
            'b' => ("0b", format!("{magnitude:b}")),
            'o' => ("0o", format!("{magnitude:o}")),
            'x' => ("0x", format!("{magnitude:x}")),
            'X' => ("0X", format!("{magnitude:X}")),
            _ => ("", magnitude.to_string()),
        };
        let prefix = if self.alternate { prefix } else { "" };
        let sign = [self.sign_of(value < 0), prefix].concat();
        let every = if "boxX".contains(kind) { 4 } else { 3 };
        self.padded(ops, &sign, &self.grouped(ops, &sign, &digits, every)?, '>')
    }

    /// A float with `e`, `f`, `g`, `%`, or as Python writes it by itself.
    pub fn float(&self, ops: &Ops, value: f64) -> Result<String> {
        let precision = self.precision.unwrap_or(6);
        if precision > MAX_PRECISION {
            return Err(format!("a precision of {precision}; {MAX_PRECISION} is supported"));
        }
        let magnitude = value.abs();
        let kind = self.kind.map(|kind| kind.to_ascii_lowercase());
        let mut digits = match kind {
            _ if !value.is_finite() => float(magnitude),
            Some('e') => exponent(magnitude, precision),
            Some('f') => format!("{magnitude:.precision$}"),
            Some('%') => format!("{:.precision$}%", magnitude * 100.0),
            Some(_) => general(magnitude, precision, self.alternate),
            None if self.precision.is_none() => float(magnitude),
            None => {
                let text = general(magnitude, precision, false);
                if text.contains(['.', 'e']) { text } else { text + ".0" }
            }
        };
        if self.kind.is_some_and(|kind| kind.is_ascii_uppercase()) {
            digits = digits.to_uppercase();
        }
        if value.is_nan() && kind == Some('%') {
            digits.push('%');
        }
        let sign = self.sign_of(value.is_sign_negative() && !value.is_nan());
        self.padded(ops, sign, &self.grouped(ops, sign, &digits, 3)?, '>')
    }

    fn sign_of(&self, negative: bool) -> &'static str {
        match (negative, self.sign) {
            (true, _) => "-",
            (false, Some('+')) => "+",
            (false, Some(' ')) => " ",
            (false, _) => "",
        }
    }

    /// Digits before a point, with a separator between groups. Zeros that fill the width are
    /// grouped too.
    fn grouped(&self, ops: &Ops, sign: &str, digits: &str, every: usize) -> Result<String> {
        let Some(separator) = self.grouping else { return Ok(digits.to_owned()) };
        let end = digits.find(|c: char| !c.is_ascii_hexdigit() || c == 'e').unwrap_or(digits.len());
        let (mut whole, rest) = (digits[..end].to_owned(), &digits[end..]);
        if self.fill == Some('0') && self.align == Some('=') {
            let width = self.width.saturating_sub(sign.len() + rest.len());
            ops.budget.check(width.saturating_mul(2))?;
            // A separator does not come first.
            let length = (width - width / (every + 1)).max(1);
            let length = length + usize::from(length + (length - 1) / every < width);
            whole.insert_str(0, &"0".repeat(length.saturating_sub(whole.len())));
        }
        let mut grouped = String::new();
        for (i, digit) in whole.chars().enumerate() {
            if i > 0 && (whole.len() - i).is_multiple_of(every) {
                grouped.push(separator);
            }
            grouped.push(digit);
        }
        Ok(grouped + rest)
    }

    /// A value as `format(value, spec)` writes it.
    pub fn value(&self, ops: &Ops, value: &Value) -> Result<String> {
        let kind = self.kind;
        let numeric = kind.is_some_and(|kind| "eEfFgGn%".contains(kind));
        match value {
            Value::Str(text) if kind.is_none_or(|kind| kind == 's') => {
                if self.sign.is_some() || self.align == Some('=') || self.grouping.is_some() {
                    return Err("a format of numbers for a string".into());
                }
                self.string(ops, text)
            }
            Value::Float(value) if kind.is_none() || numeric => self.float(ops, *value),
            Value::Bool(_) | Value::Int(_) => {
                let integer = value.as_int().unwrap_or(0);
                match kind {
                    Some('n') => Self { kind: None, ..self.clone() }.integer(ops, integer),
                    _ if numeric => self.float(ops, integer as f64),
                    Some('c') => {
                        let c = character(value).ok_or("no character has this number")?;
                        self.padded(ops, "", &c.to_string(), '<')
                    }
                    None | Some('d' | 'b' | 'o' | 'x' | 'X') if self.precision.is_none() => {
                        self.integer(ops, integer)
                    }
                    _ => Err(self.unknown(value)),
                }
            }
            _ => Err(self.unknown(value)),
        }
    }

    fn unknown(&self, value: &Value) -> String {
        match self.kind {
            Some(kind) => format!("`{kind}` is not a format of {}", value.kind()),
            None => format!("{} has no format but the empty one", value.kind()),
        }
    }
}

/// Text that is filled to a width, as `ljust`, `rjust` and `center` do.
pub fn justified(ops: &Ops, text: &str, width: i64, fill: char, align: char) -> Result<String> {
    let width = usize::try_from(width).unwrap_or(0);
    let missing = width.saturating_sub(text.chars().count());
    if align == '^' {
        // Unlike a format, `center` puts an odd blank to the left of an odd width.
        let left = missing / 2 + (missing & width & 1);
        let spec = Spec { fill: Some(fill), width: width - left.min(width), ..Spec::default() };
        let right = spec.padded(ops, "", text, '<')?;
        let spec = Spec { width, ..spec };
        return spec.padded(ops, "", &right, '>');
    }
    Spec { fill: Some(fill), width, ..Spec::default() }.padded(ops, "", text, align)
}

/// A value as `repr` writes it.
pub fn represented(ops: &Ops, value: &Value, ascii: bool) -> Result<String> {
    let mut out = crate::budget::Output::new(&ops.budget);
    value.write_python(&mut out)?;
    let text = out.into_text();
    if !ascii {
        return Ok(text);
    }
    ops.budget.check(10 * text.len())?;
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            c if c.is_ascii() => escaped.push(c),
            c => crate::printing::escape(c, &mut escaped),
        }
    }
    Ok(escaped)
}

/// The character of a number.
pub fn character(value: &Value) -> Option<char> {
    value.as_int().and_then(|code| u32::try_from(code).ok()).and_then(char::from_u32)
}

/// A float with an exponent of two digits or more.
fn exponent(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |it| ('-', it));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// A float with this many significant digits, with an exponent if it is small or large.
fn general(value: f64, precision: usize, keep_zeros: bool) -> String {
    let precision = precision.max(1);
    let text = exponent(value, precision - 1);
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let power: i64 = power.parse().unwrap_or(0);
    let short = |text: &str| match text.contains('.') && !keep_zeros {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..precision as i64).contains(&power) {
        let after = usize::try_from(precision as i64 - 1 - power).unwrap_or(0);
        return short(&format!("{value:.after$}"));
    }
    short(digits) + &text[digits.len()..]
}

/// Takes one of these characters from the beginning of a text.
pub fn take(rest: &mut &str, of: &str) -> Option<char> {
    let c = rest.chars().next().filter(|c| of.contains(*c))?;
    *rest = &rest[c.len_utf8()..];
    Some(c)
}

/// Takes a number from the beginning of a text.
pub fn number(rest: &mut &str) -> Result<Option<usize>> {
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, after) = rest.split_at(end);
    *rest = after;
    if digits.is_empty() {
        return Ok(None);
    }
    digits.parse().map(Some).map_err(|_| format!("a width or precision of {digits}"))
}
