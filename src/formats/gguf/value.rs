//! Metadata values, borrowed from the file's header.

use super::cursor::Cursor;

/// The type of a metadata value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    pub(super) fn from_id(id: u32) -> Result<Self, String> {
        use Kind::*;
        const ALL: [Kind; 13] =
            [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64];
        ALL.get(id as usize)
            .copied()
            .ok_or_else(|| format!("has a value of type {id}, which does not exist"))
    }

    /// The fewest bytes that a value of this type takes.
    const fn least(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

/// A metadata value of a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "named as the format names them")]
pub enum GgufValue<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(&'a str),
    Array(GgufArray<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of metadata values of one type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GgufArray<'a> {
    kind: Kind,
    count: usize,
    bytes: &'a [u8],
}

impl<'a> GgufArray<'a> {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the elements in order.
    pub fn iter(&self) -> impl Iterator<Item = GgufValue<'a>> + use<'a> {
        let (kind, mut cursor) = (self.kind, Cursor { bytes: self.bytes, at: 0 });
        // The elements were checked when the file was opened, so `ok` drops no error.
        (0..self.count).map_while(move |_| value(&mut cursor, kind).ok())
    }
}

impl<'a> GgufValue<'a> {
    /// Returns the value of an integer of any width, if it is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        self.as_i128().and_then(|value| u64::try_from(value).ok())
    }

    /// Returns the value of an integer of any width, if it fits.
    pub fn as_i64(&self) -> Option<i64> {
        self.as_i128().and_then(|value| i64::try_from(value).ok())
    }

    fn as_i128(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// Returns the value of a float of either width.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            _ => None,
        }
    }

    /// The value of a boolean.
    pub(crate) fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// The string, if it is one.
    pub(crate) fn as_str(&self) -> Option<&'a str> {
        match *self {
            Self::String(v) => Some(v),
            _ => None,
        }
    }

    /// The array, if it is one.
    pub(crate) fn as_array(&self) -> Option<GgufArray<'a>> {
        match *self {
            Self::Array(v) => Some(v),
            _ => None,
        }
    }
}

/// Reads and checks one value and moves the cursor past it.
pub(super) fn value<'a>(cursor: &mut Cursor<'a>, kind: Kind) -> Result<GgufValue<'a>, String> {
    if kind == Kind::Array {
        return array(cursor).map(GgufValue::Array);
    }
    if kind == Kind::String {
        return cursor.string("a string").map(GgufValue::String);
    }
    let at = cursor.at;
    let taken = cursor.take(kind.least(), "a value")?;
    let mut bytes = [0; 8];
    bytes[..taken.len()].copy_from_slice(taken);
    let word = u64::from_le_bytes(bytes);
    Ok(match kind {
        Kind::U8 => GgufValue::U8(word as u8),
        Kind::I8 => GgufValue::I8(word as i8),
        Kind::U16 => GgufValue::U16(word as u16),
        Kind::I16 => GgufValue::I16(word as i16),
        Kind::U32 => GgufValue::U32(word as u32),
        Kind::I32 => GgufValue::I32(word as i32),
        Kind::F32 => GgufValue::F32(f32::from_bits(word as u32)),
        Kind::I64 => GgufValue::I64(word as i64),
        Kind::F64 => GgufValue::F64(f64::from_bits(word)),
        Kind::Bool if word > 1 => {
            return Err(format!("byte {at} is {word}; a truth value is 0 or 1"));
        }
        Kind::Bool => GgufValue::Bool(word == 1),
        Kind::U64 | Kind::String | Kind::Array => GgufValue::U64(word),
    })
}

fn array<'a>(cursor: &mut Cursor<'a>) -> Result<GgufArray<'a>, String> {
    let at = cursor.at;
    let kind = Kind::from_id(cursor.u32("an array's type")?)?;
    if kind == Kind::Array {
        return Err(format!("byte {at} begins an array of arrays, which is not supported"));
    }
    let count = cursor.count(kind.least(), "array elements")?;
    let start = cursor.at;
    if matches!(kind, Kind::String | Kind::Bool) {
        for _ in 0..count {
            value(cursor, kind)?;
        }
    } else {
        // Any bytes are valid numbers, so there is nothing to check but the length.
        cursor.take(count * kind.least(), "an array")?;
    }
    Ok(GgufArray { kind, count: count as usize, bytes: &cursor.bytes[start..cursor.at] })
}

/// A metadata value for an error message, shortened.
pub fn show(value: GgufValue<'_>) -> String {
    match value {
        GgufValue::Array(array) => return format!("an array of {}", array.len()),
        GgufValue::Bool(flag) => flag.to_string(),
        GgufValue::String(text) => format!("`{text}`"),
        GgufValue::F32(number) => number.to_string(),
        GgufValue::F64(number) => number.to_string(),
        GgufValue::U64(number) => number.to_string(),
        integer => integer.as_i64().map_or_else(String::new, |integer| integer.to_string()),
    }
    .chars()
    .take(80)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_without_their_types() {
        for (value, shown) in [
            (GgufValue::U8(7), "7"),
            (GgufValue::I64(-7), "-7"),
            (GgufValue::U64(u64::MAX), "18446744073709551615"),
            (GgufValue::F32(0.5), "0.5"),
            (GgufValue::Bool(true), "true"),
            (GgufValue::String("a\"b"), "`a\"b`"),
        ] {
            assert_eq!(show(value), shown);
        }
        let long = "x".repeat(100);
        assert_eq!(show(GgufValue::String(&long)).len(), 80);
    }
}
