//! What can be done with values, within a budget.

use crate::{
    budget::{Budget, Output},
    methods::is_method,
    time::LocalTime,
    value::{Entries, Generator, Items, Loop, Shape, Value, find},
};
use std::rc::Rc;

type Result<T> = std::result::Result<T, String>;

/// Operations on values that count against a budget.
pub struct Ops {
    pub budget: Rc<Budget>,
    /// Time of `strftime_now`.
    pub now: LocalTime,
}

/// Evaluated arguments.
#[derive(Default)]
pub struct Given {
    pub positional: Vec<Value>,
    pub named: Vec<(String, Value)>,
}

impl Given {
    /// The argument at a position or of a name.
    pub fn get(&self, at: usize, name: &str) -> Option<&Value> {
        self.positional
            .get(at)
            .or_else(|| self.named.iter().find(|(known, _)| known == name).map(|(_, value)| value))
    }

    /// The argument at a position or of a name, where none counts as not given.
    pub fn some(&self, at: usize, name: &str) -> Option<&Value> {
        self.get(at, name).filter(|value| !matches!(value, Value::None))
    }

    /// Refuses what a function does not take, by position and by name.
    pub fn at_most(&self, positional: usize, named: &[&str]) -> Result<()> {
        if self.positional.len() > positional {
            return Err(format!(
                "{} arguments where {positional} are taken",
                self.positional.len()
            ));
        }
        match self.named.iter().find(|(name, _)| !named.contains(&name.as_str())) {
            Some((name, _)) => Err(format!("there is no argument `{name}`")),
            None => Ok(()),
        }
    }

    /// Returns whether it is given, and true.
    pub fn is(&self, at: usize, name: &str) -> bool {
        self.get(at, name).is_some_and(Value::is_true)
    }

    /// A string; `None` where it is not given, or is none.
    pub fn string(&self, at: usize, name: &str) -> Result<Option<&str>> {
        match self.get(at, name) {
            None | Some(Value::None) => Ok(None),
            Some(value) => value
                .as_str()
                .map(Some)
                .ok_or_else(|| format!("{} where a string is needed", value.kind())),
        }
    }

    /// A number of things; `None` where it is not given, or is none.
    pub fn count(&self, at: usize, name: &str) -> Result<Option<usize>> {
        match self.get(at, name) {
            None | Some(Value::None) => Ok(None),
            Some(value) => {
                let count = value.as_int().and_then(|count| usize::try_from(count).ok());
                count.map(Some).ok_or_else(|| format!("{} where a count is needed", value.kind()))
            }
        }
    }
}

impl Ops {
    /// Takes the steps of reading a value and arguments once.
    pub fn visit(&self, value: &Value, given: &Given) -> Result<()> {
        let size = |value: &Value| match value {
            Value::Str(text) => text.len(),
            Value::List(items) => items.len(),
            Value::Map(entries) => entries.len(),
            _ => 0,
        };
        let given = given.positional.iter().chain(given.named.iter().map(|(_, value)| value));
        self.budget.step(std::iter::once(value).chain(given).map(|value| size(value) / 16).sum())
    }

    /// The elements that a generator has left, all of which it gives.
    fn rest(&self, generator: &Generator) -> Result<Items> {
        let taken = generator.taken.replace(generator.items.len());
        match taken {
            0 => Ok(generator.items.clone()),
            taken => self.counted(generator.items[taken..].to_vec()),
        }
    }

    /// The first element, which a generator gives.
    pub fn first(&self, value: &Value) -> Result<Value> {
        let Value::Generator(generator) = value else {
            return Ok(self.items(value)?.first().cloned().unwrap_or(Value::Undefined));
        };
        let at = generator.taken.get();
        let first = generator.items.get(at).cloned();
        generator.taken.set(at + usize::from(first.is_some()));
        Ok(first.unwrap_or(Value::Undefined))
    }

    /// The elements of a list, the keys of a dictionary, the characters of a string.
    pub fn items(&self, value: &Value) -> Result<Items> {
        match value {
            Value::List(items) => Ok(items.clone()),
            Value::Map(entries) => {
                self.counted(entries.iter().map(|(key, _)| key.clone()).collect())
            }
            Value::Str(text) => {
                self.budget.check(text.len() * (size_of::<Value>() + 96))?;
                let characters = text
                    .chars()
                    .map(|c| Value::text(&self.budget, c.to_string()))
                    .collect::<Result<_>>()?;
                self.counted(characters)
            }
            Value::Undefined => self.counted(Vec::new()),
            Value::Generator(generator) => self.rest(generator),
            Value::Bytes(bytes) => {
                self.budget.check(bytes.len().saturating_mul(size_of::<Value>()))?;
                self.counted(bytes.iter().map(|&byte| Value::Int(byte.into())).collect())
            }
            other => Err(format!("{} has no elements", other.kind())),
        }
    }

    pub fn counted(&self, items: Vec<Value>) -> Result<Items> {
        match Value::list(&self.budget, items)? {
            Value::List(items) => Ok(items),
            _ => Err("a list is no list".into()),
        }
    }

    pub fn text(&self, text: impl Into<String>) -> Result<Value> {
        Value::text(&self.budget, text.into())
    }

    /// A value as text.
    pub fn written(&self, value: &Value) -> Result<String> {
        let mut out = Output::new(&self.budget);
        value.write(&mut out)?;
        Ok(out.into_text())
    }

    pub fn compares(&self, operator: &str, a: &Value, b: &Value) -> Result<bool> {
        Ok(match operator {
            "==" => a.equals(b, &self.budget)?,
            "!=" => !a.equals(b, &self.budget)?,
            "in" => self.contains(b, a)?,
            "not in" => !self.contains(b, a)?,
            "<" => a.compare(b, &self.budget)?.is_lt(),
            "<=" => a.compare(b, &self.budget)?.is_le(),
            ">" => a.compare(b, &self.budget)?.is_gt(),
            _ => a.compare(b, &self.budget)?.is_ge(),
        })
    }

    fn contains(&self, all: &Value, one: &Value) -> Result<bool> {
        match (all, one) {
            (Value::Str(text), Value::Str(part)) => {
                self.budget.step((text.len() + part.len()) / 4)?;
                Ok(text.contains(part.as_str()))
            }
            (Value::Map(entries), key) => Ok(find(entries, key, &self.budget)?.is_some()),
            (Value::List(items), one) => {
                for item in items.iter() {
                    if item.equals(one, &self.budget)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            (Value::Generator(generator), one) => {
                while let Some(item) = generator.items.get(generator.taken.get()) {
                    generator.taken.set(generator.taken.get() + 1);
                    if item.equals(one, &self.budget)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            (Value::Undefined, _) => Ok(false),
            _ => Err(format!("{} in {}", one.kind(), all.kind())),
        }
    }

    /// `value.name`; what is not there is undefined.
    pub fn attribute(&self, value: &Value, name: &str) -> Result<Value> {
        Ok(match value {
            Value::Undefined => return Err(format!("`.{name}` of an undefined value")),
            Value::Namespace(namespace) => namespace.get(name),
            Value::Loop(state) => self.loop_attribute(state, name)?,
            value if is_method(value, name) => {
                Value::Method(Box::new(value.clone()), name.to_owned())
            }
            Value::Map(entries) => self.entry(entries, name)?,
            Value::List(items) if items.shape() == Shape::Group => {
                let at = ["grouper", "list"].iter().position(|known| *known == name);
                at.and_then(|at| items.get(at)).cloned().unwrap_or(Value::Undefined)
            }
            _ => Value::Undefined,
        })
    }

    fn entry(&self, entries: &Entries, name: &str) -> Result<Value> {
        self.budget.step(entries.len())?;
        let found = entries.iter().find(|(key, _)| key.as_str() == Some(name));
        Ok(found.map_or(Value::Undefined, |(_, value)| value.clone()))
    }

    fn loop_attribute(&self, state: &Rc<Loop>, name: &str) -> Result<Value> {
        let (index, length) = (state.index.get(), state.items.len());
        let int = |value: usize| Value::Int(value as i64);
        Ok(match name {
            "index" => int(index + 1),
            "index0" => int(index),
            "revindex" => int(length - index),
            "revindex0" => int(length - index - 1),
            "first" => Value::Bool(index == 0),
            "last" => Value::Bool(index + 1 == length),
            "length" => int(length),
            // Only recursive loops, which there are not, go deeper.
            "depth" => Value::Int(1),
            "depth0" => Value::Int(0),
            "previtem" => index
                .checked_sub(1)
                .and_then(|at| state.items.get(at))
                .cloned()
                .unwrap_or(Value::Undefined),
            "nextitem" => state.items.get(index + 1).cloned().unwrap_or(Value::Undefined),
            "cycle" | "changed" => {
                Value::Method(Box::new(Value::Loop(state.clone())), name.to_owned())
            }
            _ => Value::Undefined,
        })
    }

    /// `value[index]`; what is not there is undefined.
    pub fn item(&self, value: &Value, index: &Value) -> Result<Value> {
        Ok(match (value, index) {
            (Value::Undefined, _) => return Err("an item of an undefined value".into()),
            (Value::Map(entries), key) => {
                find(entries, key, &self.budget)?.cloned().unwrap_or(Value::Undefined)
            }
            (Value::List(items), _) if !matches!(items.shape(), Shape::View(_)) => {
                match index.as_int() {
                    Some(at) => {
                        position(at, items.len()).map_or(Value::Undefined, |at| items[at].clone())
                    }
                    None => match index {
                        Value::Str(name) => self.attribute(value, name)?,
                        _ => Value::Undefined,
                    },
                }
            }
            (Value::Bytes(bytes), Value::Int(at)) => {
                let at = position(*at, bytes.len());
                at.map_or(Value::Undefined, |at| Value::Int(bytes[at].into()))
            }
            (Value::Str(text), Value::Int(at)) => {
                self.budget.step(text.len() / 4)?;
                let at = position(*at, text.chars().count());
                match at.and_then(|at| text.chars().nth(at)) {
                    Some(c) => self.text(c)?,
                    None => Value::Undefined,
                }
            }
            (value, Value::Str(name)) => self.attribute(value, name)?,
            _ => Value::Undefined,
        })
    }

    /// An attribute as filters name it: `a.b` is the attribute `b` of `a`.
    pub fn path(&self, value: &Value, path: &Value) -> Result<Value> {
        let Some(names) = path.as_str() else { return self.item(value, path) };
        names.split('.').try_fold(value.clone(), |value, name| match name.parse() {
            Ok(index) => self.item(&value, &Value::Int(index)),
            Err(_) => match &value {
                Value::Map(entries) => self.entry(entries, name),
                value => self.attribute(value, name),
            },
        })
    }

    pub fn slice(&self, value: &Value, parts: [Option<Value>; 3]) -> Result<Value> {
        let number = |part: &Option<Value>| match part {
            None | Some(Value::None) => Ok(None),
            Some(value) => {
                value.as_int().map(Some).ok_or_else(|| format!("a slice at {}", value.kind()))
            }
        };
        let [start, end, step] = [number(&parts[0])?, number(&parts[1])?, number(&parts[2])?];
        let step = step.unwrap_or(1);
        if step == 0 {
            return Err("a slice in steps of 0".into());
        }
        let items = match value {
            Value::Str(_) => self.items(value)?,
            Value::List(items) if !matches!(items.shape(), Shape::View(_)) => items.clone(),
            other => return Err(format!("a slice of {}", other.kind())),
        };
        let length = items.len() as i64;
        let place = |at: Option<i64>, default: i64, least: i64, most: i64| {
            at.map_or(default, |at| {
                if at < 0 { at.saturating_add(length) } else { at }.clamp(least, most)
            })
        };
        let (mut at, end) = match step > 0 {
            true => (place(start, 0, 0, length), place(end, length, 0, length)),
            false => (place(start, length - 1, -1, length - 1), place(end, -1, -1, length - 1)),
        };
        let mut kept = Vec::new();
        while if step > 0 { at < end } else { at > end } {
            self.budget.step(1)?;
            kept.push(items[at as usize].clone());
            at = at.saturating_add(step);
        }
        match value {
            Value::Str(_) => self.text(kept.iter().filter_map(Value::as_str).collect::<String>()),
            Value::List(items) => Value::sequence(&self.budget, kept, items.shape().class()),
            _ => Value::list(&self.budget, kept),
        }
    }
}

/// Python's index, from the end where it is negative.
fn position(at: i64, length: usize) -> Option<usize> {
    let at = if at < 0 { at.checked_add(i64::try_from(length).ok()?)? } else { at };
    usize::try_from(at).ok().filter(|&at| at < length)
}
