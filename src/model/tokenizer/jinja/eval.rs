//! Running a template.

use super::{
    MAX_CALLS, MAX_EVALUATIONS,
    ast::{Arguments, CAPTURED, Constant, Expr, ExprKind, Macro, Stmt, StmtKind, Target},
    builtins,
    value::{Budget, Items, Loop, Output, Value, find},
};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::Rc,
};

type Result<T> = std::result::Result<T, String>;

/// Why statements ended early.
enum Flow {
    On,
    Break,
    Continue,
}

pub struct Interpreter {
    pub budget: Rc<Budget>,
    /// From the template's own variables to the innermost.
    scopes: Vec<HashMap<String, Value>>,
    /// Macros that are being called.
    calls: usize,
    /// Statements and expressions that are being evaluated.
    depth: usize,
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
        self.positional.get(at).or_else(|| self.named.iter().find(|(known, _)| known == name).map(|(_, value)| value))
    }

    /// Refuses what a function does not take.
    pub fn at_most(&self, positional: usize, named: &[&str]) -> Result<()> {
        if self.positional.len() > positional {
            return Err(format!("{} arguments where {positional} are taken", self.positional.len()));
        }
        match self.named.iter().find(|(name, _)| !named.contains(&name.as_str())) {
            Some((name, _)) => Err(format!("there is no argument `{name}`")),
            None => Ok(()),
        }
    }
}

impl Interpreter {
    pub fn new(budget: Rc<Budget>, variables: HashMap<String, Value>) -> Self {
        Self { budget, scopes: vec![variables], calls: 0, depth: 0 }
    }

    /// Runs a whole template; gives its text.
    pub fn run(&mut self, template: &[Stmt]) -> Result<String> {
        let mut out = Output::new(&self.budget);
        self.statements(template, &mut out)?;
        Ok(out.into_text())
    }

    fn statements(&mut self, statements: &[Stmt], out: &mut Output) -> Result<Flow> {
        for statement in statements {
            self.budget.step(1)?;
            self.deeper()?;
            let flow = self.statement(statement, out);
            self.depth -= 1;
            match flow.map_err(|what| at(statement.line, what))? {
                Flow::On => {}
                other => return Ok(other),
            }
        }
        Ok(Flow::On)
    }

    /// Statements in a scope of their own.
    fn scoped(&mut self, statements: &[Stmt], out: &mut Output) -> Result<Flow> {
        self.scopes.push(HashMap::new());
        let flow = self.statements(statements, out);
        self.scopes.pop();
        flow
    }

    /// What statements write, instead of writing it.
    fn captured(&mut self, statements: &[Stmt]) -> Result<Value> {
        let mut text = Output::new(&self.budget);
        match self.scoped(statements, &mut text)? {
            Flow::On => Value::text(&self.budget, text.into_text()),
            _ => Err("a loop cannot be left from within a block whose text is kept".into()),
        }
    }

    fn statement(&mut self, statement: &Stmt, out: &mut Output) -> Result<Flow> {
        match &statement.kind {
            StmtKind::Raw(text) => out.push(text)?,
            StmtKind::Emit(value) => self.evaluate(value)?.write(out)?,
            StmtKind::If { branches, otherwise } => {
                for (condition, body) in branches {
                    if self.evaluate(condition)?.is_true() {
                        return self.statements(body, out);
                    }
                }
                return self.statements(otherwise, out);
            }
            StmtKind::For { target, iter, filter, body, otherwise } => {
                return self.for_loop(target, iter, filter.as_ref(), body, otherwise, out);
            }
            StmtKind::Set { target, value } => {
                let value = self.evaluate(value)?;
                self.assign(target, value)?;
            }
            StmtKind::SetBlock { target, value, body } => {
                let value = self.filtered(value, body)?;
                self.assign(target, value)?;
            }
            StmtKind::FilterBlock { value, body } => self.filtered(value, body)?.write(out)?,
            StmtKind::With { variables, body } => {
                let values = variables.iter().map(|(_, value)| self.evaluate(value)).collect::<Result<Vec<_>>>()?;
                self.scopes.push(HashMap::new());
                let assigned = variables.iter().zip(values).try_for_each(|((target, _), value)| self.assign(target, value));
                let flow = assigned.and_then(|()| self.statements(body, out));
                self.scopes.pop();
                return flow;
            }
            StmtKind::Macro { name, definition } => self.set(name, Value::Macro(definition.clone())),
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    /// What a block wrote, filtered.
    fn filtered(&mut self, value: &Expr, body: &[Stmt]) -> Result<Value> {
        let text = self.captured(body)?;
        self.scopes.push(HashMap::from([(CAPTURED.to_owned(), text)]));
        let value = self.evaluate(value);
        self.scopes.pop();
        value
    }

    fn for_loop(
        &mut self,
        target: &Target,
        iter: &Expr,
        filter: Option<&Expr>,
        body: &[Stmt],
        otherwise: &[Stmt],
        out: &mut Output,
    ) -> Result<Flow> {
        let iter = self.evaluate(iter)?;
        let mut items = self.items(&iter)?;
        if let Some(filter) = filter {
            let mut kept = Vec::new();
            for item in items.iter() {
                self.budget.step(1)?;
                self.scopes.push(HashMap::new());
                let keep = self.assign(target, item.clone()).and_then(|()| Ok(self.evaluate(filter)?.is_true()));
                self.scopes.pop();
                if keep? {
                    kept.push(item.clone());
                }
            }
            items = self.counted(kept)?;
        }
        if items.is_empty() {
            return self.statements(otherwise, out);
        }
        let state = Rc::new(Loop { index: Cell::new(0), items: items.clone(), changed: RefCell::new(None) });
        let mut flow = Ok(Flow::On);
        for (index, item) in items.iter().enumerate() {
            self.budget.step(1)?;
            state.index.set(index);
            self.scopes.push(HashMap::from([("loop".to_owned(), Value::Loop(state.clone()))]));
            flow = self.assign(target, item.clone()).and_then(|()| self.statements(body, out));
            self.scopes.pop();
            if !matches!(flow, Ok(Flow::On | Flow::Continue)) {
                break;
            }
        }
        flow.map(|_| Flow::On)
    }

    /// The elements of a list, the keys of a dictionary, the characters of a string.
    pub fn items(&self, value: &Value) -> Result<Items> {
        match value {
            Value::List(items) => Ok(items.clone()),
            Value::Map(entries) => self.counted(entries.iter().map(|(key, _)| key.clone()).collect()),
            Value::Str(text) => {
                self.budget.check(text.len() * (size_of::<Value>() + 96))?;
                let characters = text.chars().map(|c| Value::text(&self.budget, c.to_string())).collect::<Result<_>>()?;
                self.counted(characters)
            }
            Value::Undefined => self.counted(Vec::new()),
            other => Err(format!("{} has no elements", other.kind())),
        }
    }

    fn counted(&self, items: Vec<Value>) -> Result<Items> {
        match Value::list(&self.budget, items)? {
            Value::List(items) => Ok(items),
            _ => Err("a list is no list".into()),
        }
    }

    fn set(&mut self, name: &str, value: Value) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.to_owned(), value);
        }
    }

    fn assign(&mut self, target: &Target, value: Value) -> Result<()> {
        match target {
            Target::Name(name) => self.set(name, value),
            Target::Attribute(name, attribute) => {
                // So that no namespace ever contains itself.
                value.nesting()?;
                match self.lookup(name) {
                    Value::Namespace(namespace) => drop(namespace.borrow_mut().insert(attribute.clone(), value)),
                    other => return Err(format!("`{name}.{attribute}` cannot be set: `{name}` is {}", other.kind())),
                }
            }
            Target::Several(targets) => {
                let items = self.items(&value)?;
                if items.len() != targets.len() {
                    return Err(format!("{} values for {} names", items.len(), targets.len()));
                }
                for (target, item) in targets.iter().zip(items.iter()) {
                    self.assign(target, item.clone())?;
                }
            }
        }
        Ok(())
    }

    fn lookup(&self, name: &str) -> Value {
        let found = self.scopes.iter().rev().find_map(|scope| scope.get(name));
        found.cloned().or_else(|| builtins::function(name).map(Value::Function)).unwrap_or(Value::Undefined)
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

    fn evaluate(&mut self, expr: &Expr) -> Result<Value> {
        self.budget.step(1)?;
        self.deeper()?;
        let value = self.expression(expr).map_err(|what| at(expr.line, what));
        self.depth -= 1;
        value
    }

    /// Goes one evaluation deeper: what calls each other in macros is not seen when it is parsed.
    fn deeper(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > MAX_EVALUATIONS { Err(format!("evaluations are nested deeper than {MAX_EVALUATIONS} times")) } else { Ok(()) }
    }

    fn expression(&mut self, expr: &Expr) -> Result<Value> {
        Ok(match &*expr.kind {
            ExprKind::Constant(constant) => match constant {
                Constant::None => Value::None,
                Constant::Bool(value) => Value::Bool(*value),
                Constant::Int(value) => Value::Int(*value),
                Constant::Float(value) => Value::Float(*value),
                Constant::Str(text) => {
                    self.budget.check(text.len())?;
                    self.text(text.as_str())?
                }
            },
            ExprKind::Name(name) => self.lookup(name),
            ExprKind::List(all) => {
                let all = all.iter().map(|value| self.evaluate(value)).collect::<Result<_>>()?;
                Value::list(&self.budget, all)?
            }
            ExprKind::Tuple(all) => {
                let all = all.iter().map(|value| self.evaluate(value)).collect::<Result<_>>()?;
                Value::tuple(&self.budget, all)?
            }
            ExprKind::Map(all) => {
                let all = all.iter().map(|(key, value)| Ok((self.evaluate(key)?, self.evaluate(value)?))).collect::<Result<_>>()?;
                Value::map(&self.budget, all)?
            }
            ExprKind::Attribute(value, name) => {
                let value = self.evaluate(value)?;
                self.attribute(&value, name)?
            }
            ExprKind::Item(value, index) => {
                let (value, index) = (self.evaluate(value)?, self.evaluate(index)?);
                self.item(&value, &index)?
            }
            ExprKind::Slice(value, parts) => {
                let value = self.evaluate(value)?;
                let part = |part: &Option<Expr>, this: &mut Self| part.as_ref().map(|part| this.evaluate(part)).transpose();
                let parts = [part(&parts[0], self)?, part(&parts[1], self)?, part(&parts[2], self)?];
                self.slice(&value, parts)?
            }
            ExprKind::Call(function, arguments) => {
                let (function, given) = (self.evaluate(function)?, self.arguments(arguments)?);
                self.call(&function, &given)?
            }
            ExprKind::Filter(value, name, arguments) => {
                let (value, given) = (self.evaluate(value)?, self.arguments(arguments)?);
                builtins::filter(self, name, &value, &given).map_err(|what| format!("`{name}`: {what}"))?
            }
            ExprKind::Test { value, name, arguments, negated } => {
                let (value, given) = (self.evaluate(value)?, self.arguments(arguments)?);
                Value::Bool(builtins::test(self, name, &value, &given).map_err(|what| format!("`{name}`: {what}"))? != *negated)
            }
            ExprKind::Not(value) => Value::Bool(!self.evaluate(value)?.is_true()),
            ExprKind::Negative(value) => match self.evaluate(value)? {
                Value::Float(value) => Value::Float(-value),
                other => Value::Int(other.as_int().and_then(i64::checked_neg).ok_or_else(|| format!("{} has no negative", other.kind()))?),
            },
            ExprKind::Positive(value) => match self.evaluate(value)? {
                value @ (Value::Int(_) | Value::Float(_)) => value,
                other => return Err(format!("`+` of {}", other.kind())),
            },
            ExprKind::Binary(operator, a, b) => {
                let (a, b) = (self.evaluate(a)?, self.evaluate(b)?);
                self.binary(operator, &a, &b)?
            }
            ExprKind::And(a, b) => match self.evaluate(a)? {
                a if a.is_true() => self.evaluate(b)?,
                a => a,
            },
            ExprKind::Or(a, b) => match self.evaluate(a)? {
                a if a.is_true() => a,
                _ => self.evaluate(b)?,
            },
            ExprKind::Choice { condition, yes, no } => match (self.evaluate(condition)?.is_true(), no) {
                (true, _) => self.evaluate(yes)?,
                (false, Some(no)) => self.evaluate(no)?,
                (false, None) => Value::Undefined,
            },
            ExprKind::Compare(first, others) => {
                let mut left = self.evaluate(first)?;
                for (operator, right) in others {
                    let right = self.evaluate(right)?;
                    if !self.compares(operator, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Value::Bool(true)
            }
        })
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
            (Value::Undefined, _) => Ok(false),
            _ => Err(format!("{} in {}", one.kind(), all.kind())),
        }
    }

    fn arguments(&mut self, arguments: &Arguments) -> Result<Given> {
        let positional = arguments.positional.iter().map(|value| self.evaluate(value)).collect::<Result<_>>()?;
        let named = arguments.named.iter().map(|(name, value)| Ok((name.clone(), self.evaluate(value)?))).collect::<Result<_>>()?;
        Ok(Given { positional, named })
    }

    /// `value.name`; what is not there is undefined.
    pub fn attribute(&self, value: &Value, name: &str) -> Result<Value> {
        Ok(match value {
            Value::Undefined => return Err(format!("`.{name}` of an undefined value")),
            Value::Namespace(namespace) => namespace.borrow().get(name).cloned().unwrap_or(Value::Undefined),
            Value::Loop(state) => self.loop_attribute(state, name)?,
            Value::Map(_) if ["items", "keys", "values", "get"].contains(&name) => Value::Method(Box::new(value.clone()), name.to_owned()),
            Value::Map(entries) => {
                let found = entries.iter().find(|(key, _)| key.as_str() == Some(name));
                self.budget.step(entries.len())?;
                found.map_or(Value::Undefined, |(_, value)| value.clone())
            }
            Value::Str(_) if builtins::is_method(name) => Value::Method(Box::new(value.clone()), name.to_owned()),
            _ => Value::Undefined,
        })
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
            "previtem" => index.checked_sub(1).and_then(|at| state.items.get(at)).cloned().unwrap_or(Value::Undefined),
            "nextitem" => state.items.get(index + 1).cloned().unwrap_or(Value::Undefined),
            "cycle" | "changed" => Value::Method(Box::new(Value::Loop(state.clone())), name.to_owned()),
            _ => Value::Undefined,
        })
    }

    /// `value[index]`; what is not there is undefined.
    pub fn item(&self, value: &Value, index: &Value) -> Result<Value> {
        Ok(match (value, index) {
            (Value::Undefined, _) => return Err("an item of an undefined value".into()),
            (Value::Map(entries), key) => find(entries, key, &self.budget)?.cloned().unwrap_or(Value::Undefined),
            (Value::List(items), _) => match index.as_int() {
                Some(at) => position(at, items.len()).map_or(Value::Undefined, |at| items[at].clone()),
                None => Value::Undefined,
            },
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

    fn slice(&self, value: &Value, parts: [Option<Value>; 3]) -> Result<Value> {
        let number = |part: &Option<Value>| match part {
            None | Some(Value::None) => Ok(None),
            Some(value) => value.as_int().map(Some).ok_or_else(|| format!("a slice at {}", value.kind())),
        };
        let [start, end, step] = [number(&parts[0])?, number(&parts[1])?, number(&parts[2])?];
        let step = step.unwrap_or(1);
        if step == 0 {
            return Err("a slice in steps of 0".into());
        }
        let items = match value {
            Value::Undefined => return Err("a slice of an undefined value".into()),
            value => self.items(value)?,
        };
        let length = items.len() as i64;
        let place = |at: Option<i64>, default: i64, least: i64, most: i64| {
            at.map_or(default, |at| if at < 0 { at.saturating_add(length) } else { at }.clamp(least, most))
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
            _ => Value::list(&self.budget, kept),
        }
    }

    pub fn binary(&self, operator: &str, a: &Value, b: &Value) -> Result<Value> {
        match (operator, a, b) {
            ("~", ..) => {
                let (mut text, other) = (self.written(a)?, self.written(b)?);
                self.budget.check(text.len() + other.len())?;
                text += &other;
                return self.text(text);
            }
            ("+", Value::Str(a), Value::Str(b)) => {
                self.budget.check(a.len() + b.len())?;
                return self.text([a.as_str(), b.as_str()].concat());
            }
            ("+", Value::List(a), Value::List(b)) => {
                self.budget.check((a.len() + b.len()) * size_of::<Value>())?;
                return Value::list(&self.budget, a.iter().chain(b.iter()).cloned().collect());
            }
            ("*", Value::Str(text), count) | ("*", count, Value::Str(text)) if count.as_int().is_some() => {
                let count = usize::try_from(count.as_int().unwrap_or(0)).unwrap_or(0);
                self.budget.check(text.len().saturating_mul(count))?;
                return self.text(text.repeat(count));
            }
            _ => {}
        }
        let wrong = || format!("`{operator}` of {} and {}", a.kind(), b.kind());
        if let (Some(a), Some(b)) = (a.as_int(), b.as_int()) {
            let result = match operator {
                "+" => a.checked_add(b),
                "-" => a.checked_sub(b),
                "*" => a.checked_mul(b),
                "//" | "%" | "/" if b == 0 => return Err("a division by zero".into()),
                "//" => a.checked_div_euclid(b).map(|q| if b < 0 && a.rem_euclid(b) != 0 { q - 1 } else { q }),
                "%" => a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r }),
                "**" if b >= 0 => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
                _ => return float(operator, a as f64, b as f64).map(Value::Float).ok_or_else(wrong),
            };
            return result.map(Value::Int).ok_or_else(|| "a number is too large".into());
        }
        match (a.as_float(), b.as_float()) {
            (Some(_), Some(0.0)) if ["/", "//", "%"].contains(&operator) => Err("a division by zero".into()),
            (Some(a), Some(b)) => float(operator, a, b).map(Value::Float).ok_or_else(wrong),
            _ => Err(wrong()),
        }
    }

    pub fn call(&mut self, function: &Value, given: &Given) -> Result<Value> {
        match function {
            Value::Function(name) => builtins::call(self, name, given).map_err(|what| format!("`{name}`: {what}")),
            Value::Method(of, name) => builtins::method(self, of, name, given).map_err(|what| format!("`{name}`: {what}")),
            Value::Macro(definition) => self.call_macro(definition, given).map_err(|what| format!("`{}`: {what}", definition.name)),
            other => Err(format!("{} is no function", other.kind())),
        }
    }

    fn call_macro(&mut self, definition: &Macro, given: &Given) -> Result<Value> {
        if self.calls >= MAX_CALLS {
            return Err(format!("macros call each other deeper than {MAX_CALLS} times"));
        }
        let names: Vec<&str> = definition.parameters.iter().map(|(name, _)| name.as_str()).collect();
        given.at_most(names.len(), &names)?;
        // A macro sees the template's own variables, not those of its caller.
        let callers = self.scopes.split_off(1);
        self.scopes.push(HashMap::new());
        self.calls += 1;
        let bound = definition.parameters.iter().enumerate().try_for_each(|(at, (name, default))| {
            let value = match (given.get(at, name), default) {
                (Some(value), _) => value.clone(),
                (None, Some(default)) => self.evaluate(default)?,
                (None, None) => Value::Undefined,
            };
            self.set(name, value);
            Ok(())
        });
        let text = bound.and_then(|()| self.captured(&definition.body));
        self.calls -= 1;
        self.scopes.truncate(1);
        self.scopes.extend(callers);
        text
    }
}

/// Python's index, from the end where it is negative.
fn position(at: i64, length: usize) -> Option<usize> {
    let at = if at < 0 { at.checked_add(i64::try_from(length).ok()?)? } else { at };
    usize::try_from(at).ok().filter(|&at| at < length)
}

fn float(operator: &str, a: f64, b: f64) -> Option<f64> {
    Some(match operator {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        "/" => a / b,
        "//" => (a / b).floor(),
        "%" => a - b * (a / b).floor(),
        "**" => a.powf(b),
        _ => return None,
    })
}

/// The line is said once, where it happened.
fn at(line: u32, what: String) -> String {
    if what.starts_with("line ") { what } else { format!("line {line}: {what}") }
}
