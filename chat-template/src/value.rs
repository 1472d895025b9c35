//! Values of a template, and what they take: every string, list and map counts against a budget as
//! long as it lives.

use crate::{ast::Macro, budget::Budget, limits::MAX_NESTING};
use std::{
    cell::{Cell, RefCell},
    cmp::Ordering,
    collections::HashMap,
    ops::Deref,
    rc::Rc,
    sync::Arc,
};

/// Data that counts against a budget until it is dropped.
pub struct Counted<T> {
    data: T,
    bytes: usize,
    budget: Rc<Budget>,
    /// How deep it is nested: dropping or printing it recurses no deeper.
    depth: usize,
    /// Type of a list.
    shape: Shape,
}

impl<T> Counted<T> {
    fn new(
        budget: &Rc<Budget>,
        data: T,
        bytes: usize,
        depth: usize,
        shape: Shape,
    ) -> Result<Rc<Self>, String> {
        if depth > MAX_NESTING {
            return Err(format!("a value is nested deeper than {MAX_NESTING} times"));
        }
        budget.take(bytes)?;
        Ok(Rc::new(Self { data, bytes, budget: budget.clone(), depth, shape }))
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }
}

impl<T> Deref for Counted<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.data
    }
}

impl<T> Drop for Counted<T> {
    fn drop(&mut self) {
        self.budget.give(self.bytes);
    }
}

/// Type of a sequence in Python.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    List,
    Tuple,
    /// A tuple of `grouper` and `list`, from `groupby`.
    Group,
    /// Keys, values or items of a dictionary, under the name of this view in Python.
    View(&'static str),
}

impl Shape {
    /// Type that is compared, concatenated and written.
    pub fn class(self) -> Self {
        if self == Self::Group { Self::Tuple } else { self }
    }
}

/// Elements that are iterated over once.
pub struct Generator {
    pub items: Items,
    /// Number of elements that were taken.
    pub taken: Cell<usize>,
}

pub type Text = Rc<Counted<String>>;
pub type Items = Rc<Counted<Vec<Value>>>;
pub type Bytes = Rc<Counted<Vec<u8>>>;
pub type Entries = Rc<Counted<Vec<(Value, Value)>>>;

/// A value. Only data is ever part of other values, so that none contains itself.
#[derive(Clone)]
pub enum Value {
    Undefined,
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Text),
    Bytes(Bytes),
    List(Items),
    Generator(Rc<Generator>),
    Map(Entries),
    Namespace(Rc<Namespace>),
    Macro(Arc<Macro>),
    Loop(Rc<Loop>),
    /// A function by its name.
    Function(&'static str),
    /// A method of a value that is about to be called.
    Method(Box<Value>, String),
}

/// Variables that outlive their scope.
pub struct Namespace {
    fields: RefCell<HashMap<String, Value>>,
    bytes: Cell<usize>,
    budget: Rc<Budget>,
}

impl Namespace {
    pub fn new(budget: &Rc<Budget>) -> Self {
        Self { fields: RefCell::default(), bytes: Cell::new(0), budget: budget.clone() }
    }

    pub fn get(&self, name: &str) -> Value {
        self.fields.borrow().get(name).cloned().unwrap_or(Value::Undefined)
    }

    /// Only data is put in, so that no namespace contains itself.
    pub fn set(&self, name: &str, value: Value) -> Result<(), String> {
        value.nesting()?;
        let mut fields = self.fields.borrow_mut();
        if let Some(field) = fields.get_mut(name) {
            *field = value;
            return Ok(());
        }
        // A map that grows doubles, and for a moment there are both.
        let bytes = name.len() + 4 * size_of::<(String, Value)>();
        self.budget.take(bytes)?;
        self.bytes.set(self.bytes.get() + bytes);
        fields.insert(name.to_owned(), value);
        Ok(())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.budget.give(self.bytes.get());
    }
}

/// The state of a `for` loop.
pub struct Loop {
    pub index: Cell<usize>,
    pub items: Items,
    pub changed: RefCell<Option<Value>>,
}

impl Value {
    pub fn text(budget: &Rc<Budget>, text: String) -> Result<Self, String> {
        let bytes = text.capacity() + 64;
        Ok(Self::Str(Counted::new(budget, text, bytes, 1, Shape::List)?))
    }

    pub fn bytes(budget: &Rc<Budget>, data: Vec<u8>) -> Result<Self, String> {
        let bytes = data.capacity() + 64;
        Ok(Self::Bytes(Counted::new(budget, data, bytes, 1, Shape::List)?))
    }

    /// Elements that can be iterated over once, as most filters return them.
    pub fn generator(budget: &Rc<Budget>, items: Vec<Value>) -> Result<Self, String> {
        let Self::List(items) = Self::list(budget, items)? else { return Ok(Self::Undefined) };
        Ok(Self::Generator(Rc::new(Generator { items, taken: Cell::new(0) })))
    }

    pub fn list(budget: &Rc<Budget>, items: Vec<Value>) -> Result<Self, String> {
        Self::sequence(budget, items, Shape::List)
    }

    pub fn tuple(budget: &Rc<Budget>, items: Vec<Value>) -> Result<Self, String> {
        Self::sequence(budget, items, Shape::Tuple)
    }

    pub fn sequence(budget: &Rc<Budget>, items: Vec<Value>, shape: Shape) -> Result<Self, String> {
        let depth = items
            .iter()
            .map(Self::nesting)
            .try_fold(0, |most, depth| Ok::<_, String>(most.max(depth?)))?;
        let bytes = items.capacity() * size_of::<Value>() + 64;
        Ok(Self::List(Counted::new(budget, items, bytes, depth + 1, shape)?))
    }

    /// A later value for a key takes the place of the former.
    pub fn map(budget: &Rc<Budget>, entries: Vec<(Value, Value)>) -> Result<Self, String> {
        let mut kept: Vec<(Value, Value)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            match position(&kept, &key, budget)? {
                Some(at) => kept[at].1 = value,
                None => kept.push((key, value)),
            }
        }
        Self::map_of_unique(budget, kept)
    }

    /// Creates a map of entries whose keys differ from each other.
    pub fn map_of_unique(
        budget: &Rc<Budget>,
        entries: Vec<(Value, Value)>,
    ) -> Result<Self, String> {
        let mut depth = 0;
        for (key, value) in &entries {
            depth = depth.max(key.nesting()?).max(value.nesting()?);
        }
        let bytes = entries.capacity() * 2 * size_of::<Value>() + 64;
        Ok(Self::Map(Counted::new(budget, entries, bytes, depth + 1, Shape::List)?))
    }

    /// How deep data is nested.
    ///
    /// # Errors
    /// For what is no data.
    pub fn nesting(&self) -> Result<usize, String> {
        match self {
            Self::Str(_)
            | Self::Bytes(_)
            | Self::Undefined
            | Self::None
            | Self::Bool(_)
            | Self::Int(_)
            | Self::Float(_) => Ok(0),
            Self::List(items) => Ok(items.depth),
            Self::Generator(generator) => Ok(generator.items.depth),
            Self::Map(entries) => Ok(entries.depth),
            other => Err(format!("{} cannot be part of a value", other.kind())),
        }
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Self::Undefined => "an undefined value",
            Self::None => "none",
            Self::Bool(_) => "a boolean",
            Self::Int(_) | Self::Float(_) => "a number",
            Self::Str(_) => "a string",
            Self::Bytes(_) => "a sequence of bytes",
            Self::Generator(_) => "a generator",
            Self::List(items) => match items.shape.class() {
                Shape::List => "a list",
                Shape::View(_) => "a view of a dictionary",
                _ => "a tuple",
            },
            Self::Map(_) => "a dictionary",
            Self::Namespace(_) => "a namespace",
            Self::Macro(_) | Self::Function(_) | Self::Method(..) => "a function",
            Self::Loop(_) => "a loop",
        }
    }

    pub fn is_true(&self) -> bool {
        match self {
            Self::Undefined | Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Str(text) => !text.is_empty(),
            Self::Bytes(bytes) => !bytes.is_empty(),
            Self::List(items) => !items.is_empty(),
            Self::Map(entries) => !entries.is_empty(),
            _ => true,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    /// A number, with booleans as Python has them.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(value) => Some(*value),
            Self::Bool(value) => Some(i64::from(*value)),
            _ => None,
        }
    }

    pub fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            other => other.as_int().map(|value| value as f64),
        }
    }

    /// Equality as in Python: 1 == 1.0 == true.
    pub fn equals(&self, other: &Self, budget: &Budget) -> Result<bool, String> {
        budget.step(1)?;
        Ok(match (self, other) {
            (Self::Undefined, Self::Undefined) | (Self::None, Self::None) => true,
            (Self::Str(a), Self::Str(b)) => {
                budget.step(a.len().min(b.len()) / 16)?;
                a.as_str() == b.as_str()
            }
            (Self::Bytes(a), Self::Bytes(b)) => {
                budget.step(a.len().min(b.len()) / 16)?;
                ***a == ***b
            }
            (Self::Generator(a), Self::Generator(b)) => Rc::ptr_eq(a, b),
            (Self::List(a), Self::List(b)) => {
                a.shape.class() == b.shape.class()
                    && a.len() == b.len()
                    && all(a.iter().zip(b.iter()), |(a, b)| a.equals(b, budget))?
            }
            (Self::Map(a), Self::Map(b)) => {
                let same = |(key, value): &(Value, Value)| {
                    find(b, key, budget)?.map_or(Ok(false), |found| found.equals(value, budget))
                };
                a.len() == b.len() && all(a.iter(), same)?
            }
            _ => match (self.as_int(), other.as_int()) {
                (Some(a), Some(b)) => a == b,
                _ => matches!((self.as_float(), other.as_float()), (Some(a), Some(b)) if a == b),
            },
        })
    }

    /// Identity as in Python: of types that have no identity here, equality.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Undefined, Self::Undefined) | (Self::None, Self::None) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a == b,
            (Self::Str(a), Self::Str(b)) => a.as_str() == b.as_str(),
            (Self::List(a), Self::List(b)) => Rc::ptr_eq(a, b),
            (Self::Map(a), Self::Map(b)) => Rc::ptr_eq(a, b),
            (Self::Generator(a), Self::Generator(b)) => Rc::ptr_eq(a, b),
            (Self::Namespace(a), Self::Namespace(b)) => Rc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Order as in Python: numbers with numbers, strings with strings, lists with lists.
    pub fn compare(&self, other: &Self, budget: &Budget) -> Result<Ordering, String> {
        budget.step(1)?;
        match (self, other) {
            (Self::Str(a), Self::Str(b)) => {
                budget.step(a.len().min(b.len()) / 16)?;
                Ok(a.as_str().cmp(b.as_str()))
            }
            (Self::List(a), Self::List(b)) if a.shape.class() == b.shape.class() => {
                for (a, b) in a.iter().zip(b.iter()) {
                    let order =
                        if a.equals(b, budget)? { Ordering::Equal } else { a.compare(b, budget)? };
                    if order.is_ne() {
                        return Ok(order);
                    }
                }
                Ok(a.len().cmp(&b.len()))
            }
            _ => match (self.as_float(), other.as_float()) {
                (Some(a), Some(b)) => {
                    a.partial_cmp(&b).ok_or_else(|| "NaN has no order".to_owned())
                }
                _ => Err(format!("{} and {} have no order", self.kind(), other.kind())),
            },
        }
    }
}

/// The value of a key.
pub fn find<'a>(
    entries: &'a [(Value, Value)],
    key: &Value,
    budget: &Budget,
) -> Result<Option<&'a Value>, String> {
    Ok(position(entries, key, budget)?.map(|at| &entries[at].1))
}

fn position(
    entries: &[(Value, Value)],
    key: &Value,
    budget: &Budget,
) -> Result<Option<usize>, String> {
    for (at, (known, _)) in entries.iter().enumerate() {
        if known.equals(key, budget)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

fn all<T>(
    items: impl Iterator<Item = T>,
    mut test: impl FnMut(T) -> Result<bool, String>,
) -> Result<bool, String> {
    for item in items {
        if !test(item)? {
            return Ok(false);
        }
    }
    Ok(true)
}
