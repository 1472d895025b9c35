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
pub enum GgufValue<'a> {
    /// An unsigned integer of 8 to 64 bits.
    Unsigned(u64),
    /// A signed integer of 8 to 64 bits.
    Signed(i64),
    /// A float of 32 or 64 bits.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    String(&'a str),
    /// An array.
    Array(GgufArray<'a>),
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
    /// Returns the value of an integer, if it is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::Unsigned(v) => Some(v),
            Self::Signed(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// Returns the value of an integer, if it fits.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::Unsigned(v) => v.try_into().ok(),
            Self::Signed(v) => Some(v),
            _ => None,
        }
    }

    /// Returns the value of a float.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::Float(v) => Some(v),
            _ => None,
        }
    }

    /// Returns the value of a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// Returns the string, if it is one.
    pub fn as_str(&self) -> Option<&'a str> {
        match *self {
            Self::String(v) => Some(v),
            _ => None,
        }
    }

    /// Returns the array, if it is one.
    pub fn as_array(&self) -> Option<GgufArray<'a>> {
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
        Kind::I8 => GgufValue::Signed((word as i8).into()),
        Kind::I16 => GgufValue::Signed((word as i16).into()),
        Kind::I32 => GgufValue::Signed((word as i32).into()),
        Kind::I64 => GgufValue::Signed(word as i64),
        Kind::F32 => GgufValue::Float(f32::from_bits(word as u32).into()),
        Kind::F64 => GgufValue::Float(f64::from_bits(word)),
        Kind::Bool if word > 1 => {
            return Err(format!("byte {at} is {word}; a truth value is 0 or 1"));
        }
        Kind::Bool => GgufValue::Bool(word == 1),
        // The others have been read above.
        Kind::U8 | Kind::U16 | Kind::U32 | Kind::U64 | Kind::String | Kind::Array => {
            GgufValue::Unsigned(word)
        }
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
        // In the fewest digits of its type.
        GgufValue::Float(v) if f64::from(v as f32) == v => (v as f32).to_string(),
        GgufValue::Float(v) => v.to_string(),
        GgufValue::Unsigned(v) => v.to_string(),
        GgufValue::Signed(v) => v.to_string(),
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
            (GgufValue::Signed(-7), "-7"),
            (GgufValue::Unsigned(u64::MAX), "18446744073709551615"),
            (GgufValue::Float(0.1f32.into()), "0.1"),
            (GgufValue::Float(0.1), "0.1"),
            (GgufValue::Bool(true), "true"),
            (GgufValue::String("a\"b"), "`a\"b`"),
        ] {
            assert_eq!(show(value), shown);
        }
        let long = "x".repeat(100);
        assert_eq!(show(GgufValue::String(&long)).len(), 80);
    }
}
