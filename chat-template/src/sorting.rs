//! Filters that compare elements: `sort`, `dictsort`, `groupby`, `unique`, `min`, `max`.

use crate::{
    ops::{Given, Ops},
    value::{Shape, Value},
};
use std::cmp::Ordering;

type Result<T> = std::result::Result<T, String>;

/// What filters compare elements by.
pub struct Key<'a> {
    /// Attribute, or several with commas between them.
    attribute: Option<&'a Value>,
    /// Value of elements without the attribute.
    default: Option<&'a Value>,
    case_sensitive: bool,
    /// Whether the key is a list of attributes, which compares values that have no order if they
    /// are equal.
    several: bool,
}

impl<'a> Key<'a> {
    /// The key that arguments say, by their positions.
    fn of_arguments(given: &'a Given, attribute: usize, case_sensitive: usize) -> Self {
        Self {
            attribute: given.some(attribute, "attribute"),
            default: None,
            case_sensitive: given.is(case_sensitive, "case_sensitive"),
            several: false,
        }
    }

    fn of(&self, ops: &Ops, item: &Value) -> Result<Value> {
        ops.budget.step(1)?;
        let one = |attribute: &Value| -> Result<Value> {
            match (ops.path(item, attribute)?, self.default) {
                (Value::Undefined, Some(default)) => Ok(default.clone()),
                (found, _) => Ok(found),
            }
        };
        let several = self.attribute.and_then(Value::as_str).filter(|_| self.several);
        let key = match (self.attribute, several) {
            (_, Some(names)) => {
                let part = |name: &str| self.folded(ops, one(&ops.text(name)?)?);
                let parts = names.split(',').map(part).collect::<Result<_>>()?;
                return Value::list(&ops.budget, parts);
            }
            (Some(attribute), None) => one(attribute)?,
            (None, None) => item.clone(),
        };
        self.folded(ops, key)
    }

    /// A key in small letters, if their case does not matter.
    fn folded(&self, ops: &Ops, key: Value) -> Result<Value> {
        match &key {
            Value::Str(text) if !self.case_sensitive => {
                ops.budget.check(3 * text.len())?;
                ops.text(text.to_lowercase())
            }
            _ => Ok(key),
        }
    }
}

pub fn sort(ops: &Ops, value: &Value, given: &Given) -> Result<Value> {
    let key = Key { several: true, ..Key::of_arguments(given, 2, 1) };
    let items = keyed(ops, ops.items(value)?.iter(), &key)?;
    let items = sorted(ops, items, given.is(0, "reverse"))?;
    Value::list(&ops.budget, items.into_iter().map(|(_, item)| item).collect())
}

pub fn dict_sort(ops: &Ops, value: &Value, given: &Given) -> Result<Value> {
    let Value::Map(entries) = value else {
        return Err(format!("{} is no dictionary", value.kind()));
    };
    let by = match given.string(1, "by")?.unwrap_or("key") {
        "key" => Value::Int(0),
        "value" => Value::Int(1),
        other => return Err(format!("by `{other}`")),
    };
    let pair =
        |(key, value): &(Value, Value)| Value::tuple(&ops.budget, vec![key.clone(), value.clone()]);
    let pairs = entries.iter().map(pair).collect::<Result<Vec<_>>>()?;
    let case_sensitive = given.is(0, "case_sensitive");
    let key = Key { attribute: Some(&by), default: None, case_sensitive, several: false };
    let sorted = sorted(ops, keyed(ops, pairs.iter(), &key)?, given.is(2, "reverse"))?;
    Value::list(&ops.budget, sorted.into_iter().map(|(_, pair)| pair).collect())
}

/// Elements with equal keys, as tuples of key and list.
pub fn group_by(ops: &Ops, value: &Value, given: &Given) -> Result<Value> {
    given.get(0, "attribute").ok_or("an attribute is needed")?;
    let attribute = given.some(0, "attribute");
    let case_sensitive = given.is(2, "case_sensitive");
    let default = given.some(1, "default");
    let key = Key { attribute, default, case_sensitive, several: false };
    let sorted = sorted(ops, keyed(ops, ops.items(value)?.iter(), &key)?, false)?;
    let exact = Key { case_sensitive: true, ..key };
    let (mut groups, mut rest) = (Vec::new(), sorted.as_slice());
    while let Some((key, first)) = rest.first() {
        let mut length = 1;
        while let Some((other, _)) = rest.get(length)
            && other.equals(key, &ops.budget)?
        {
            length += 1;
        }
        let items = rest[..length].iter().map(|(_, item)| item.clone()).collect();
        let group = vec![exact.of(ops, first)?, Value::list(&ops.budget, items)?];
        groups.push(Value::sequence(&ops.budget, group, Shape::Group)?);
        rest = &rest[length..];
    }
    Value::list(&ops.budget, groups)
}

pub fn unique(ops: &Ops, value: &Value, given: &Given) -> Result<Value> {
    let by = Key::of_arguments(given, 1, 0);
    let (mut kept, mut keys) = (Vec::new(), Vec::<Value>::new());
    'items: for item in ops.items(value)?.iter() {
        let key = by.of(ops, item)?;
        for known in &keys {
            if known.equals(&key, &ops.budget)? {
                continue 'items;
            }
        }
        keys.push(key);
        kept.push(item.clone());
    }
    Value::generator(&ops.budget, kept)
}

/// The least or the greatest element.
pub fn extreme(ops: &Ops, name: &str, value: &Value, given: &Given) -> Result<Value> {
    let by = Key::of_arguments(given, 1, 0);
    let mut best: Option<(Value, Value)> = None;
    for item in ops.items(value)?.iter() {
        let key = by.of(ops, item)?;
        let better = match &best {
            Some((best, _)) => {
                key.compare(best, &ops.budget)?
                    == if name == "min" { Ordering::Less } else { Ordering::Greater }
            }
            None => true,
        };
        if better {
            best = Some((key, item.clone()));
        }
    }
    Ok(best.map_or(Value::Undefined, |(_, item)| item))
}

/// Elements with their keys.
fn keyed<'a>(
    ops: &Ops,
    items: impl ExactSizeIterator<Item = &'a Value>,
    key: &Key<'_>,
) -> Result<Vec<(Value, Value)>> {
    ops.budget.check(2 * items.len() * size_of::<(Value, Value)>())?;
    items.map(|item| Ok((key.of(ops, item)?, item.clone()))).collect()
}

/// Sorts by keys, by merging: it keeps the order of equal keys, and keys without an order are an
/// error instead of a panic.
fn sorted(ops: &Ops, mut items: Vec<(Value, Value)>, reverse: bool) -> Result<Vec<(Value, Value)>> {
    let after = if reverse { Ordering::Less } else { Ordering::Greater };
    let mut length = 1;
    while length < items.len() {
        let mut merged = Vec::with_capacity(items.len());
        let mut rest = items.into_iter().peekable();
        while rest.peek().is_some() {
            let mut a = rest.by_ref().take(length).collect::<Vec<_>>().into_iter().peekable();
            let mut b = rest.by_ref().take(length).collect::<Vec<_>>().into_iter().peekable();
            while let (Some((x, _)), Some((y, _))) = (a.peek(), b.peek()) {
                let second = x.compare(y, &ops.budget)? == after;
                merged.extend(if second { b.next() } else { a.next() });
            }
            merged.extend(a.chain(b));
        }
        items = merged;
        length *= 2;
    }
    Ok(items)
}
