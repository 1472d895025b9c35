//! Running a template.

use crate::{
    ast::{Arguments, CAPTURED, Constant, Expr, ExprKind, Macro, Stmt, StmtKind, Target},
    budget::Output,
    filters::filter,
    limits::{MAX_EVALUATION_DEPTH, MAX_MACRO_DEPTH},
    operators,
    ops::{Given, Ops},
    parser::at_most,
    tests_and_functions as functions,
    value::{Loop, Value},
};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::Rc,
};

type Result<T> = std::result::Result<T, String>;

/// Why statements ended early. The parser has seen to it that there is a loop for that.
enum Flow {
    On,
    Break,
    Continue,
}

pub struct Interpreter {
    ops: Ops,
    /// From the template's own variables to the innermost.
    scopes: Vec<HashMap<String, Value>>,
    /// Macros that are being called.
    calls: usize,
    /// Statements and expressions that are being evaluated.
    depth: usize,
}

impl Interpreter {
    pub fn new(ops: Ops, variables: HashMap<String, Value>) -> Self {
        Self { ops, scopes: vec![variables], calls: 0, depth: 0 }
    }

    /// Runs a whole template; gives its text.
    pub fn run(&mut self, template: &[Stmt]) -> Result<String> {
        let mut out = Output::of_template(&self.ops.budget);
        self.statements(template, &mut out)?;
        Ok(out.into_text())
    }

    fn statements(&mut self, statements: &[Stmt], out: &mut Output) -> Result<Flow> {
        for statement in statements {
            self.ops.budget.step(1)?;
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
        let mut text = Output::new(&self.ops.budget);
        self.scoped(statements, &mut text)?;
        Value::text(&self.ops.budget, text.into_text())
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
                let values = variables
                    .iter()
                    .map(|(_, value)| self.evaluate(value))
                    .collect::<Result<Vec<_>>>()?;
                self.scopes.push(HashMap::new());
                let assigned = variables
                    .iter()
                    .zip(values)
                    .try_for_each(|((target, _), value)| self.assign(target, value));
                let flow = assigned.and_then(|()| self.statements(body, out));
                self.scopes.pop();
                return flow;
            }
            StmtKind::Macro { name, definition } => {
                self.set(name, Value::Macro(definition.clone()))
            }
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
        let mut items = self.ops.items(&iter)?;
        if let Some(filter) = filter {
            let mut kept = Vec::new();
            for item in items.iter() {
                self.ops.budget.step(1)?;
                self.scopes.push(HashMap::new());
                let keep = self
                    .assign(target, item.clone())
                    .and_then(|()| Ok(self.evaluate(filter)?.is_true()));
                self.scopes.pop();
                if keep? {
                    kept.push(item.clone());
                }
            }
            items = self.ops.counted(kept)?;
        }
        if items.is_empty() {
            return self.statements(otherwise, out);
        }
        let state = Rc::new(Loop {
            index: Cell::new(0),
            items: items.clone(),
            changed: RefCell::new(None),
        });
        let mut flow = Ok(Flow::On);
        for (index, item) in items.iter().enumerate() {
            self.ops.budget.step(1)?;
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

    fn set(&mut self, name: &str, value: Value) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.to_owned(), value);
        }
    }

    fn assign(&mut self, target: &Target, value: Value) -> Result<()> {
        match target {
            Target::Name(name) => self.set(name, value),
            Target::Attribute(name, attribute) => match self.lookup(name) {
                Value::Namespace(namespace) => namespace.set(attribute, value)?,
                other => {
                    return Err(format!(
                        "`{name}.{attribute}` cannot be set: `{name}` is {}",
                        other.kind()
                    ));
                }
            },
            Target::Several(targets) => {
                let items = self.ops.items(&value)?;
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
        found
            .cloned()
            .or_else(|| functions::function(name).map(Value::Function))
            .unwrap_or(Value::Undefined)
    }

    fn evaluate(&mut self, expr: &Expr) -> Result<Value> {
        self.ops.budget.step(1)?;
        self.deeper()?;
        let value = self.expression(expr).map_err(|what| at(expr.line, what));
        self.depth -= 1;
        value
    }

    /// Goes one evaluation deeper: what calls each other in macros is not seen when it is parsed.
    fn deeper(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > MAX_EVALUATION_DEPTH {
            Err(format!("evaluations are nested deeper than {MAX_EVALUATION_DEPTH} times"))
        } else {
            Ok(())
        }
    }

    fn expression(&mut self, expr: &Expr) -> Result<Value> {
        Ok(match &*expr.kind {
            ExprKind::Constant(constant) => match constant {
                Constant::None => Value::None,
                Constant::Bool(value) => Value::Bool(*value),
                Constant::Int(value) => Value::Int(*value),
                Constant::Float(value) => Value::Float(*value),
                Constant::Str(text) => {
                    self.ops.budget.check(text.len())?;
                    self.ops.text(text.as_str())?
                }
            },
            ExprKind::Name(name) => self.lookup(name),
            ExprKind::List(all) => {
                let all = all.iter().map(|value| self.evaluate(value)).collect::<Result<_>>()?;
                Value::list(&self.ops.budget, all)?
            }
            ExprKind::Tuple(all) => {
                let all = all.iter().map(|value| self.evaluate(value)).collect::<Result<_>>()?;
                Value::tuple(&self.ops.budget, all)?
            }
            ExprKind::Map(all) => {
                let all = all
                    .iter()
                    .map(|(key, value)| Ok((self.evaluate(key)?, self.evaluate(value)?)))
                    .collect::<Result<_>>()?;
                Value::map(&self.ops.budget, all)?
            }
            ExprKind::Attribute(value, name) => {
                let value = self.evaluate(value)?;
                self.ops.attribute(&value, name)?
            }
            ExprKind::Item(value, index) => {
                let (value, index) = (self.evaluate(value)?, self.evaluate(index)?);
                self.ops.item(&value, &index)?
            }
            ExprKind::Slice(value, parts) => {
                let value = self.evaluate(value)?;
                let part = |part: &Option<Expr>, this: &mut Self| {
                    part.as_ref().map(|part| this.evaluate(part)).transpose()
                };
                let parts =
                    [part(&parts[0], self)?, part(&parts[1], self)?, part(&parts[2], self)?];
                self.ops.slice(&value, parts)?
            }
            ExprKind::Call(function, arguments) => {
                let (called, given) = (self.evaluate(function)?, self.arguments(arguments)?);
                self.call(function, &called, &given)?
            }
            ExprKind::Filter(value, name, arguments) => {
                let (value, given) = (self.evaluate(value)?, self.arguments(arguments)?);
                filter(&self.ops, name, &value, &given).map_err(|what| within(name, what))?
            }
            ExprKind::Test { value, name, arguments, negated } => {
                let (value, given) = (self.evaluate(value)?, self.arguments(arguments)?);
                Value::Bool(
                    functions::test(&self.ops, name, &value, &given)
                        .map_err(|what| within(name, what))?
                        != *negated,
                )
            }
            ExprKind::Not(value) => Value::Bool(!self.evaluate(value)?.is_true()),
            ExprKind::Negative(value) => match self.evaluate(value)? {
                Value::Float(value) => Value::Float(-value),
                other => Value::Int(
                    other
                        .as_int()
                        .and_then(i64::checked_neg)
                        .ok_or_else(|| format!("{} has no negative", other.kind()))?,
                ),
            },
            ExprKind::Positive(value) => match self.evaluate(value)? {
                value @ (Value::Int(_) | Value::Float(_)) => value,
                other => return Err(format!("`+` of {}", other.kind())),
            },
            ExprKind::Binary(operator, a, b) => {
                let (a, b) = (self.evaluate(a)?, self.evaluate(b)?);
                operators::binary(&self.ops, operator, &a, &b)?
            }
            ExprKind::And(a, b) => match self.evaluate(a)? {
                a if a.is_true() => self.evaluate(b)?,
                a => a,
            },
            ExprKind::Or(a, b) => match self.evaluate(a)? {
                a if a.is_true() => a,
                _ => self.evaluate(b)?,
            },
            ExprKind::Choice { condition, yes, no } => {
                match (self.evaluate(condition)?.is_true(), no) {
                    (true, _) => self.evaluate(yes)?,
                    (false, Some(no)) => self.evaluate(no)?,
                    (false, None) => Value::Undefined,
                }
            }
            ExprKind::Compare(first, others) => {
                let mut left = self.evaluate(first)?;
                for (operator, right) in others {
                    let right = self.evaluate(right)?;
                    if !self.ops.compares(operator, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Value::Bool(true)
            }
        })
    }

    fn arguments(&mut self, arguments: &Arguments) -> Result<Given> {
        let mut positional = arguments
            .positional
            .iter()
            .map(|value| self.evaluate(value))
            .collect::<Result<Vec<_>>>()?;
        let mut named = arguments
            .named
            .iter()
            .map(|(name, value)| Ok((name.clone(), self.evaluate(value)?)))
            .collect::<Result<Vec<_>>>()?;
        if let Some(list) = &arguments.list {
            let list = self.evaluate(list)?;
            let list = self.ops.items(&list)?;
            at_most(positional.len() + named.len() + list.len())?;
            positional.extend(list.iter().cloned());
        }
        if let Some(dictionary) = &arguments.dictionary {
            let Value::Map(entries) = self.evaluate(dictionary)? else {
                return Err("what follows `**` is a dictionary".into());
            };
            at_most(positional.len() + named.len() + entries.len())?;
            for (key, value) in entries.iter() {
                let key = key.as_str().ok_or("names of arguments are strings")?;
                if named.iter().any(|(known, _)| known == key) {
                    return Err(format!("the argument `{key}` is given twice"));
                }
                self.ops.budget.check(key.len())?;
                named.push((key.to_owned(), value.clone()));
            }
        }
        Ok(Given { positional, named })
    }

    fn call(&mut self, expr: &Expr, function: &Value, given: &Given) -> Result<Value> {
        match function {
            Value::Function(name) => {
                functions::call(&self.ops, name, given).map_err(|what| within(name, what))
            }
            Value::Method(of, name) => {
                functions::method(&self.ops, of, name, given).map_err(|what| within(name, what))
            }
            Value::Macro(definition) => {
                self.call_macro(definition, given).map_err(|what| within(&definition.name, what))
            }
            other => Err(match &*expr.kind {
                ExprKind::Name(name) => within(name, format!("{} is no function", other.kind())),
                ExprKind::Attribute(_, name) => within(name, "is no method of this value".into()),
                _ => format!("{} is no function", other.kind()),
            }),
        }
    }

    fn call_macro(&mut self, definition: &Macro, given: &Given) -> Result<Value> {
        if self.calls >= MAX_MACRO_DEPTH {
            return Err(format!("macros call each other deeper than {MAX_MACRO_DEPTH} times"));
        }
        let names: Vec<&str> =
            definition.parameters.iter().map(|(name, _)| name.as_str()).collect();
        given.at_most(names.len(), &names)?;
        // A macro sees the template's own variables, not those of its caller.
        let callers = self.scopes.split_off(1);
        self.scopes.push(HashMap::new());
        self.calls += 1;
        let bound =
            definition.parameters.iter().enumerate().try_for_each(|(at, (name, default))| {
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

/// The line is said once, where it happened.
fn at(line: u32, what: String) -> String {
    if what.starts_with("line ") { what } else { format!("line {line}: {what}") }
}

/// Names the function that failed, after the line if that is known.
fn within(name: &str, what: String) -> String {
    match what.strip_prefix("line ").and_then(|rest| rest.split_once(": ")) {
        Some((line, what)) => format!("line {line}: `{name}`: {what}"),
        None => format!("`{name}`: {what}"),
    }
}
