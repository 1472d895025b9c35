//! Values of a template, and what they take: every string, list and map counts against a budget as
//! long as it lives.

use crate::{ast::Macro, limits::MAX_NESTING};
use std::{
    cell::{Cell, RefCell},
    cmp::Ordering,
    collections::HashMap,
    fmt::Write as _,
    ops::Deref,
    rc::Rc,
    sync::Arc,
};

/// What a template may still use.
pub struct Budget {
    /// Bytes of values that are alive.
    bytes: Cell<usize>,
    max_bytes: Cell<usize>,
    /// Steps that are left.
    steps: Cell<u64>,
    /// Bytes that the template may write.
    max_output: usize,
    /// Length of the output at which the template was stopped.
    too_long: Cell<Option<usize>>,
}

impl Budget {
    /// Creates a budget that limits only the output, until [`Budget::limit`].
    pub fn new(max_output: Option<usize>) -> Rc<Self> {
        Rc::new(Self {
            bytes: Cell::new(0),
            max_bytes: Cell::new(usize::MAX),
            steps: Cell::new(u64::MAX),
            max_output: max_output.unwrap_or(usize::MAX),
            too_long: Cell::new(None),
        })
    }

    /// Limits the bytes of all values, with those that are alive, and the steps from here on.
    pub fn limit(&self, max_bytes: usize, steps: u64) {
        self.max_bytes.set(max_bytes);
        self.steps.set(steps);
    }

    /// Length of the output at which the template was stopped.
    pub fn too_long(&self) -> Option<usize> {
        self.too_long.get()
    }

    /// Takes steps: one for everything that is evaluated, and one for every 16 bytes that are read
    /// or written.
    pub fn step(&self, steps: usize) -> Result<(), String> {
        match self.steps.get().checked_sub(steps as u64) {
            Some(left) => {
                self.steps.set(left);
                Ok(())
            }
            None => Err("the template takes too many steps".into()),
        }
    }

    /// Checks that `bytes` more may be allocated, before they are.
    pub fn check(&self, bytes: usize) -> Result<(), String> {
        self.step(bytes / 16)?;
        self.room(bytes)
    }

    fn room(&self, bytes: usize) -> Result<(), String> {
        let max = self.max_bytes.get();
        if self.bytes.get().saturating_add(bytes) > max {
            return Err(format!("the template's values take more than {} MiB", max >> 20));
        }
        Ok(())
    }

    pub fn take(&self, bytes: usize) -> Result<(), String> {
        self.step(bytes / 16)?;
        self.grow(bytes)
    }

    /// [`Budget::take`] for what has taken its steps.
    fn grow(&self, bytes: usize) -> Result<(), String> {
        self.room(bytes)?;
        self.bytes.set(self.bytes.get() + bytes);
        Ok(())
    }

    pub fn give(&self, bytes: usize) {
        self.bytes.set(self.bytes.get().saturating_sub(bytes));
    }
}

/// Text that is being written, and counts as it grows.
pub struct Output {
    text: String,
    budget: Rc<Budget>,
    counted: usize,
    most: usize,
}

impl Output {
    pub fn new(budget: &Rc<Budget>) -> Self {
        Self::within(budget, usize::MAX)
    }

    /// What the whole template writes, which has a length of its own.
    pub fn of_template(budget: &Rc<Budget>) -> Self {
        Self::within(budget, budget.max_output)
    }

    fn within(budget: &Rc<Budget>, most: usize) -> Self {
        Self { text: String::new(), budget: budget.clone(), counted: 0, most }
    }

    pub fn push(&mut self, text: &str) -> Result<(), String> {
        let bytes = self.text.len() + text.len();
        if bytes > self.most {
            self.budget.too_long.set(Some(bytes));
            return Err(format!("the template writes more than {} bytes", self.most));
        }
        // A string that grows doubles, and for a moment there are both.
        let needed = 3 * bytes;
        self.budget.step(text.len() / 16)?;
        if needed > self.counted {
            let more = 2 * needed - self.counted;
            self.budget.grow(more)?;
            self.counted += more;
        }
        self.text.push_str(text);
        Ok(())
    }

    pub fn blanks(&mut self, count: usize) -> Result<(), String> {
        self.push(&" ".repeat(count))
    }

    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    pub fn into_text(mut self) -> String {
        std::mem::take(&mut self.text)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.budget.give(self.counted);
    }
}

/// Data that counts against a budget until it is dropped.
pub struct Counted<T> {
    data: T,
    bytes: usize,
    budget: Rc<Budget>,
    /// How deep it is nested: dropping or printing it recurses no deeper.
    depth: usize,
    /// Whether a list is written in round brackets.
    tuple: bool,
}

impl<T> Counted<T> {
    fn new(
        budget: &Rc<Budget>,
        data: T,
        bytes: usize,
        depth: usize,
        tuple: bool,
    ) -> Result<Rc<Self>, String> {
        if depth > MAX_NESTING {
            return Err(format!("a value is nested deeper than {MAX_NESTING} times"));
        }
        budget.take(bytes)?;
        Ok(Rc::new(Self { data, bytes, budget: budget.clone(), depth, tuple }))
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

pub type Text = Rc<Counted<String>>;
pub type Items = Rc<Counted<Vec<Value>>>;
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
    List(Items),
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
        Ok(Self::Str(Counted::new(budget, text, bytes, 1, false)?))
    }

    pub fn list(budget: &Rc<Budget>, items: Vec<Value>) -> Result<Self, String> {
        Self::sequence(budget, items, false)
    }

    pub fn tuple(budget: &Rc<Budget>, items: Vec<Value>) -> Result<Self, String> {
        Self::sequence(budget, items, true)
    }

    fn sequence(budget: &Rc<Budget>, items: Vec<Value>, tuple: bool) -> Result<Self, String> {
        let depth = items
            .iter()
            .map(Self::nesting)
            .try_fold(0, |most, depth| Ok::<_, String>(most.max(depth?)))?;
        let bytes = items.capacity() * size_of::<Value>() + 64;
        Ok(Self::List(Counted::new(budget, items, bytes, depth + 1, tuple)?))
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
        Ok(Self::Map(Counted::new(budget, entries, bytes, depth + 1, false)?))
    }

    /// How deep data is nested.
    ///
    /// # Errors
    /// For what is no data.
    pub fn nesting(&self) -> Result<usize, String> {
        match self {
            Self::Str(_)
            | Self::Undefined
            | Self::None
            | Self::Bool(_)
            | Self::Int(_)
            | Self::Float(_) => Ok(0),
            Self::List(items) => Ok(items.depth),
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
            Self::List(_) => "a list",
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
            (Self::List(a), Self::List(b)) => {
                a.len() == b.len() && all(a.iter().zip(b.iter()), |(a, b)| a.equals(b, budget))?
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

    /// Order as in Python: numbers with numbers, strings with strings, lists with lists.
    pub fn compare(&self, other: &Self, budget: &Budget) -> Result<Ordering, String> {
        budget.step(1)?;
        match (self, other) {
            (Self::Str(a), Self::Str(b)) => {
                budget.step(a.len().min(b.len()) / 16)?;
                Ok(a.as_str().cmp(b.as_str()))
            }
            (Self::List(a), Self::List(b)) => {
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

    /// As it is written into the text.
    pub fn write(&self, out: &mut Output) -> Result<(), String> {
        match self {
            Self::Str(text) => out.push(text),
            Self::Undefined => Ok(()),
            other => other.write_python(out),
        }
    }

    /// As Python's `repr` writes it.
    fn write_python(&self, out: &mut Output) -> Result<(), String> {
        match self {
            Self::None => out.push("None"),
            Self::Bool(value) => out.push(if *value { "True" } else { "False" }),
            Self::Int(value) => out.push(&value.to_string()),
            Self::Float(value) => out.push(&float(*value)),
            Self::Str(text) => quoted(text, out),
            Self::List(items) => {
                out.push(if items.tuple { "(" } else { "[" })?;
                for (i, item) in items.iter().enumerate() {
                    out.push(if i > 0 { ", " } else { "" })?;
                    item.write_python(out)?;
                }
                out.push(match (items.tuple, items.len()) {
                    (false, _) => "]",
                    (true, 1) => ",)",
                    (true, _) => ")",
                })
            }
            Self::Map(entries) => {
                out.push("{")?;
                for (i, (key, value)) in entries.iter().enumerate() {
                    out.push(if i > 0 { ", " } else { "" })?;
                    key.write_python(out)?;
                    out.push(": ")?;
                    value.write_python(out)?;
                }
                out.push("}")
            }
            Self::Undefined => out.push("Undefined"),
            other => Err(format!("{} cannot be written", other.kind())),
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

/// A float as Python writes it.
pub fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
    }
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) =
            exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = format!("{value}");
    if text.contains('.') { text } else { text + ".0" }
}

/// A string as Python's `repr` writes it.
fn quoted(text: &str, out: &mut Output) -> Result<(), String> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.budget.check(4 * text.len())?;
    let mut all = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => all.push_str("\\n"),
            '\r' => all.push_str("\\r"),
            '\t' => all.push_str("\\t"),
            '\\' => all.push_str("\\\\"),
            c if c == quote => all.extend(['\\', c]),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => drop(write!(all, "\\x{:02x}", c as u32)),
            c => all.push(c),
        }
    }
    all.push(quote);
    out.push(&all)
}
