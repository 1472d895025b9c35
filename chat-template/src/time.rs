//! The time of `strftime_now`, and its formats.

use crate::budget::Budget;
use std::{fmt, str::FromStr};

/// Date and time of a clock on the wall, without a time zone: what `strftime_now` formats.
///
/// Parses from `2026-07-04` and from `2026-07-04T09:05:03`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    year: i64,
    month: usize,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

/// A text that is no [`LocalTime`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a date like 2026-07-04, or a time like 2026-07-04T09:05:03")]
pub struct InvalidTime {
    text: String,
}

const MONTHS: [(&str, i64); 12] = [
    ("January", 31),
    ("February", 28),
    ("March", 31),
    ("April", 30),
    ("May", 31),
    ("June", 30),
    ("July", 31),
    ("August", 31),
    ("September", 30),
    ("October", 31),
    ("November", 30),
    ("December", 31),
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl LocalTime {
    /// Returns the current time: of this machine's time zone with the feature `local-time`, else UTC.
    pub fn now() -> Self {
        #[cfg(feature = "local-time")]
        {
            use chrono::{Datelike, Timelike};
            let now = chrono::Local::now().naive_local();
            let [day, hour, minute, second] =
                [now.day(), now.hour(), now.minute(), now.second()].map(i64::from);
            let (year, month) = (now.year().into(), now.month() as usize);
            Self { year, month, day, hour, minute, second }
        }
        #[cfg(not(feature = "local-time"))]
        {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            Self::from_unix(since.map_or(0, |since| since.as_secs() as i64))
        }
    }

    /// Time of a number of seconds since 1970, in UTC.
    #[cfg(any(test, not(feature = "local-time")))]
    fn from_unix(seconds: i64) -> Self {
        let (mut days, seconds) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let mut year = 1970;
        while days >= days_of(year) {
            days -= days_of(year);
            year += 1;
        }
        let mut month = 1;
        while days >= days_in(year, month) {
            days -= days_in(year, month);
            month += 1;
        }
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        Self { year, month, day: days + 1, hour, minute, second }
    }

    /// Day of the year, from 1.
    fn day_of_year(&self) -> i64 {
        (1..self.month).map(|month| days_in(self.year, month)).sum::<i64>() + self.day
    }

    /// Day of the week, from Sunday, which is 0.
    fn weekday(&self) -> i64 {
        let years = self.year - 1;
        (years * 365 + years / 4 - years / 100 + years / 400 + self.day_of_year()) % 7
    }

    /// Year and week by ISO 8601: weeks begin on Monday, and the first has four days or more.
    fn iso_week(&self) -> (i64, i64) {
        let monday = (self.weekday() + 6) % 7;
        let week = (self.day_of_year() - 1 - monday + 10) / 7;
        let weeks = |year: i64| {
            let first = Self { year, month: 1, day: 1, ..*self }.weekday();
            if first == 4 || first == 3 && days_of(year) == 366 { 53 } else { 52 }
        };
        match week {
            0 => (self.year - 1, weeks(self.year - 1)),
            week if week > weeks(self.year) => (self.year + 1, 1),
            week => (self.year, week),
        }
    }

    /// Text of a format, as `strftime` of Python writes it on Linux, in English.
    pub(crate) fn formatted(&self, budget: &Budget, format: &str) -> Result<String, String> {
        // A directive of two bytes writes 24 at most.
        budget.check(12 * format.len())?;
        let (mut text, mut chars) = (String::new(), format.chars());
        while let Some(c) = chars.next() {
            if c != '%' {
                text.push(c);
                continue;
            }
            let rest = chars.as_str();
            let flag = rest.chars().next().filter(|c| "-_0^#".contains(*c));
            let name = rest[flag.map_or(0, |_| 1)..].chars().next();
            match name.map(|name| self.directive(budget, name)).transpose()? {
                Some(Some(part)) => {
                    part.write(flag, &mut text);
                    chars = rest[flag.map_or(0, |_| 1) + 1..].chars();
                }
                Some(None) if flag.is_some() || name.is_some_and(|c| c.is_ascii_digit()) => {
                    return Err(format!("`%{rest}` is not a supported format", rest = first(rest)));
                }
                _ => text.push('%'),
            }
        }
        Ok(text)
    }

    /// What a letter after `%` stands for; `None` for an unknown one, which stays as it is.
    fn directive(&self, budget: &Budget, name: char) -> Result<Option<Part>, String> {
        let number = |value, width| Some(Part::Number(value, width, '0'));
        let blank = |value| Some(Part::Number(value, 2, ' '));
        let text = |text: &str| Some(Part::Text(text.to_owned()));
        let composed = |format| self.formatted(budget, format).map(|text| Some(Part::Text(text)));
        let (weekday, hour12) = (self.weekday(), (self.hour + 11) % 12 + 1);
        let (month, _) = MONTHS[self.month - 1];
        let day_name = DAYS[weekday as usize];
        let half = if self.hour < 12 { "AM" } else { "PM" };
        Ok(match name {
            'a' => text(&day_name[..3]),
            'A' => text(day_name),
            'b' | 'h' => text(&month[..3]),
            'B' => text(month),
            'c' => composed("%a %b %e %H:%M:%S %Y")?,
            'C' => number(self.year / 100, 2),
            'd' => number(self.day, 2),
            'D' | 'x' => composed("%m/%d/%y")?,
            'e' => blank(self.day),
            'f' => text("000000"),
            'F' => composed("%Y-%m-%d")?,
            'g' => number(self.iso_week().0 % 100, 2),
            'G' => number(self.iso_week().0, 1),
            'H' => number(self.hour, 2),
            'I' => number(hour12, 2),
            'j' => number(self.day_of_year(), 3),
            'k' => blank(self.hour),
            'l' => blank(hour12),
            'm' => number(self.month as i64, 2),
            'M' => number(self.minute, 2),
            'n' => text("\n"),
            'p' => text(half),
            'P' => text(&half.to_lowercase()),
            'r' => composed("%I:%M:%S %p")?,
            'R' => composed("%H:%M")?,
            's' => return Err("`%s` needs a time zone, and a local time has none".into()),
            'S' => number(self.second, 2),
            't' => text("\t"),
            'T' | 'X' => composed("%H:%M:%S")?,
            'u' => number((weekday + 6) % 7 + 1, 1),
            'U' => number((self.day_of_year() + 6 - weekday) / 7, 2),
            'V' => number(self.iso_week().1, 2),
            'w' => number(weekday, 1),
            'W' => number((self.day_of_year() + 6 - (weekday + 6) % 7) / 7, 2),
            'y' => number(self.year % 100, 2),
            'Y' => number(self.year, 1),
            // Python's local time has no zone.
            'z' | 'Z' => text(""),
            '%' => text("%"),
            _ => None,
        })
    }
}

/// Replacement of a directive.
enum Part {
    /// A number, its width, and what it is padded with.
    Number(i64, usize, char),
    Text(String),
}

impl Part {
    fn write(self, flag: Option<char>, out: &mut String) {
        match self {
            Self::Number(value, width, pad) => {
                let pad = match flag {
                    Some('_') => ' ',
                    Some('0') => '0',
                    _ => pad,
                };
                let digits = value.to_string();
                let width = if flag == Some('-') { 0 } else { width };
                out.extend(std::iter::repeat_n(pad, width.saturating_sub(digits.len())));
                out.push_str(&digits);
            }
            Self::Text(text) if matches!(flag, Some('^')) => out.push_str(&text.to_uppercase()),
            // `#` swaps the case: of names to capitals, of AM and PM to small letters.
            Self::Text(text) if flag == Some('#') && ["AM", "PM"].contains(&text.as_str()) => {
                out.push_str(&text.to_lowercase());
            }
            Self::Text(text) if flag == Some('#') => out.push_str(&text.to_uppercase()),
            Self::Text(text) => out.push_str(&text),
        }
    }
}

/// The first characters of a text, for a message.
fn first(text: &str) -> String {
    text.chars().take(2).collect()
}

fn days_of(year: i64) -> i64 {
    if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) { 366 } else { 365 }
}

fn days_in(year: i64, month: usize) -> i64 {
    let leap = i64::from(month == 2 && days_of(year) == 366);
    MONTHS.get(month.wrapping_sub(1)).map_or(0, |(_, days)| days + leap)
}

impl FromStr for LocalTime {
    type Err = InvalidTime;

    fn from_str(text: &str) -> Result<Self, InvalidTime> {
        let parsed = || {
            let (date, time) = text.split_once('T').unwrap_or((text, "00:00:00"));
            let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
            let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
            let month = usize::try_from(month).ok()?;
            let valid = year >= 1
                && (1..=days_in(year, month)).contains(&day)
                && hour < 24
                && minute < 60
                && second < 60;
            valid.then_some(Self { year, month, day, hour, minute, second })
        };
        parsed().ok_or_else(|| InvalidTime { text: text.to_owned() })
    }
}

/// Three numbers with these counts of digits.
fn numbers(text: &str, separator: char, digits: [usize; 3]) -> Option<[i64; 3]> {
    let mut parts = text.split(separator);
    let mut number = |digits: usize| {
        let part = parts.next().filter(|part| part.len() == digits)?;
        let all_digits = part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse().ok().filter(|_| all_digits)
    };
    let all = [number(digits[0])?, number(digits[1])?, number(digits[2])?];
    parts.next().is_none().then_some(all)
}

impl fmt::Display for LocalTime {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let Self { year, month, day, hour, minute, second } = self;
        write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_seconds_are_dates() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_783_155_903, "2026-07-04T09:05:03"),
        ] {
            assert_eq!(LocalTime::from_unix(seconds).to_string(), expected);
        }
    }
}
