//! Variables of a template from what serializes to a JSON object.

use crate::{
    Error, Limits,
    budget::Budget,
    limits::{MAX_NESTING, VALUE_BYTES_PER_BYTE},
    value::Value,
};
use serde::ser::{self, Impossible, Serialize};
use std::{cell::Cell, collections::HashMap, fmt::Display, rc::Rc};

type Result<T> = std::result::Result<T, Error>;

/// Converts a context, and limits the budget in proportion to it. The context is the caller's,
/// however long it is: converting it is not limited.
pub fn variables(
    context: &impl Serialize,
    budget: &Rc<Budget>,
    limits: &Limits,
) -> Result<HashMap<String, Value>> {
    let bytes = Cell::new(0);
    let value = context.serialize(Converter { budget, bytes: &bytes, depth: 0 })?;
    let Value::Map(entries) = &value else {
        return Err(Error::Context(format!("{} where an object is needed", value.kind())));
    };
    let size = bytes.get().max(limits.output.unwrap_or(0));
    budget.limit(
        limits.values.saturating_add(size.saturating_mul(VALUE_BYTES_PER_BYTE)),
        limits.steps.saturating_add(bytes.get() as u64),
    );
    let entry = |(key, value): &(Value, Value)| Some((key.as_str()?.to_owned(), value.clone()));
    Ok(entries.iter().filter_map(entry).collect())
}

/// Serializer whose output is a value that counts against a budget.
#[derive(Clone, Copy)]
struct Converter<'a> {
    budget: &'a Rc<Budget>,
    /// Size of the context so far: 256 bytes for each string and object, 16 for each other value,
    /// and the text.
    bytes: &'a Cell<usize>,
    depth: usize,
}

impl<'a> Converter<'a> {
    fn count(self, bytes: usize) {
        self.bytes.set(self.bytes.get().saturating_add(bytes));
    }

    fn scalar(self, value: Value) -> Result<Value> {
        self.count(16);
        Ok(value)
    }

    fn integer(self, value: impl TryInto<i64> + Display + Copy) -> Result<Value> {
        let integer = value.try_into();
        let integer = integer.map_err(|_| Error::Context(format!("{value} is out of range")))?;
        self.scalar(Value::Int(integer))
    }

    fn collection(self, length: Option<usize>) -> Result<Collection<'a>> {
        if self.depth >= MAX_NESTING {
            return Err(Error::Context(format!("nested deeper than {MAX_NESTING} times")));
        }
        let inner = Self { depth: self.depth + 1, ..self };
        // A length is a hint that may be wrong.
        let capacity = length.unwrap_or(0).min(1024);
        Ok(Collection { inner, keys: Vec::new(), values: Vec::with_capacity(capacity) })
    }
}

/// Elements of a list; with keys, entries of an object.
struct Collection<'a> {
    inner: Converter<'a>,
    keys: Vec<Value>,
    values: Vec<Value>,
}

impl Collection<'_> {
    fn key(&mut self, key: &(impl Serialize + ?Sized)) -> Result<()> {
        match key.serialize(self.inner)? {
            key @ Value::Str(_) => self.keys.push(key),
            other => return Err(Error::Context(format!("{} as a key", other.kind()))),
        }
        Ok(())
    }

    fn value(&mut self, value: &(impl Serialize + ?Sized)) -> Result<()> {
        self.values.push(value.serialize(self.inner)?);
        Ok(())
    }

    fn list(self) -> Result<Value> {
        self.inner.count(16);
        Value::list(self.inner.budget, self.values).map_err(Error::Context)
    }

    fn map(self) -> Result<Value> {
        self.inner.count(256);
        let entries = self.keys.into_iter().zip(self.values).collect();
        Value::map_of_unique(self.inner.budget, entries).map_err(Error::Context)
    }
}

macro_rules! integers {
    ($($method:ident $type:ty,)*) => {
        $(fn $method(self, value: $type) -> Result<Value> {
            self.integer(value)
        })*
    };
}

impl<'a> ser::Serializer for Converter<'a> {
    type Ok = Value;
    type Error = Error;
    type SerializeSeq = Collection<'a>;
    type SerializeTuple = Collection<'a>;
    type SerializeTupleStruct = Collection<'a>;
    type SerializeTupleVariant = Impossible<Value, Error>;
    type SerializeMap = Collection<'a>;
    type SerializeStruct = Collection<'a>;
    type SerializeStructVariant = Impossible<Value, Error>;

    integers! {
        serialize_i8 i8, serialize_i16 i16, serialize_i32 i32, serialize_i64 i64,
        serialize_u8 u8, serialize_u16 u16, serialize_u32 u32, serialize_u64 u64,
    }

    fn serialize_bool(self, value: bool) -> Result<Value> {
        self.scalar(Value::Bool(value))
    }

    fn serialize_f32(self, value: f32) -> Result<Value> {
        self.scalar(Value::Float(value.into()))
    }

    fn serialize_f64(self, value: f64) -> Result<Value> {
        self.scalar(Value::Float(value))
    }

    fn serialize_char(self, value: char) -> Result<Value> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, text: &str) -> Result<Value> {
        self.count(256 + text.len());
        Value::text(self.budget, text.to_owned()).map_err(Error::Context)
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<Value> {
        Err(Error::Context("bytes are not supported".into()))
    }

    fn serialize_none(self) -> Result<Value> {
        self.scalar(Value::None)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Value> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Value> {
        self.scalar(Value::None)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Value> {
        self.scalar(Value::None)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<Value> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Value> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Value> {
        let mut map = self.collection(Some(1))?;
        map.key(variant)?;
        map.value(value)?;
        map.map()
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<Collection<'a>> {
        self.collection(length)
    }

    fn serialize_tuple(self, length: usize) -> Result<Collection<'a>> {
        self.collection(Some(length))
    }

    fn serialize_tuple_struct(self, _: &'static str, length: usize) -> Result<Collection<'a>> {
        self.collection(Some(length))
    }

    fn serialize_map(self, length: Option<usize>) -> Result<Collection<'a>> {
        self.collection(length)
    }

    fn serialize_struct(self, _: &'static str, length: usize) -> Result<Collection<'a>> {
        self.collection(Some(length))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant> {
        Err(Error::Context(format!("the variant {variant} has fields")))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant> {
        Err(Error::Context(format!("the variant {variant} has fields")))
    }
}

macro_rules! lists {
    ($($trait:ident $method:ident,)*) => {
        $(impl ser::$trait for Collection<'_> {
            type Ok = Value;
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
                self.value(value)
            }

            fn end(self) -> Result<Value> {
                self.list()
            }
        })*
    };
}

lists! {
    SerializeSeq serialize_element,
    SerializeTuple serialize_element,
    SerializeTupleStruct serialize_field,
}

impl ser::SerializeMap for Collection<'_> {
    type Ok = Value;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<()> {
        self.key(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        self.value(value)
    }

    fn end(self) -> Result<Value> {
        self.map()
    }
}

impl ser::SerializeStruct for Collection<'_> {
    type Ok = Value;
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<()> {
        self.key(key)?;
        self.value(value)
    }

    fn end(self) -> Result<Value> {
        self.map()
    }
}
