//! Jinja as chat templates use it, for templates from strangers. A template is a program, and a general interpreter bounds neither the memory nor the
//! stack that one takes. This one does, before it takes them:
//!
//! - nesting: of statements and expressions when it is parsed, of values when they are made, of macros when they are called;
//! - memory: values count against [`MOST_BYTES`] as long as they live, and are asked for before they are allocated;
//! - time: [`STEPS`], one for everything that is evaluated, and for every 16 bytes that are read or written.
//!
//! No value contains itself, since only data can be put into other values. What templates of published models use is there, with the results of Jinja2
//! under the settings of transformers; the rest (inheritance, imports, recursive loops, call blocks) is an error that names it.

mod ast;
mod eval;
mod expressions;
mod filters;
mod json;
mod lexer;
mod ops;
mod parser;
mod statements;
mod strings;
mod tests_and_functions;
mod value;

use crate::limits::template::{MOST_BYTES, MOST_TEMPLATE, STEPS};
use eval::Interpreter;
use std::{collections::HashMap, rc::Rc};
use value::{Budget, Value};

/// What a template is given.
pub enum Variable<'a> {
    Bool(bool),
    Str(&'a str),
    /// Dictionaries of strings: messages.
    Messages(Vec<Vec<(&'static str, &'a str)>>),
}

/// Renders a template.
///
/// # Errors
/// A message that names the line: a template that is faulty, refuses its input, or is beyond the limits.
pub fn render(template: &str, variables: &[(&str, Variable<'_>)]) -> Result<String, String> {
    if template.len() > MOST_TEMPLATE {
        return Err(format!("has {} bytes; {MOST_TEMPLATE} are supported", template.len()));
    }
    let statements = statements::parse(&template.replace("\r\n", "\n").replace('\r', "\n"))?;
    // The conversation is the caller's, however long it is.
    let size = |(_, variable): &(&str, Variable<'_>)| match variable {
        Variable::Messages(messages) => {
            messages.iter().map(|message| 256 + message.iter().map(|(_, text)| 256 + text.len()).sum::<usize>()).sum()
        }
        Variable::Str(text) => text.len() + 256,
        Variable::Bool(_) => 0,
    };
    let given: usize = variables.iter().map(size).sum();
    let budget = Budget::new(MOST_BYTES.saturating_add(given.saturating_mul(8)), STEPS.saturating_add(given as u64));
    let mut values = HashMap::new();
    for (name, variable) in variables {
        values.insert((*name).to_owned(), value(&budget, variable)?);
    }
    Interpreter::new(budget, values).run(&statements)
}

fn value(budget: &Rc<Budget>, variable: &Variable<'_>) -> Result<Value, String> {
    let text = |text: &str| Value::text(budget, text.to_owned());
    match variable {
        Variable::Bool(value) => Ok(Value::Bool(*value)),
        Variable::Str(string) => text(string),
        Variable::Messages(messages) => {
            let entry = |(key, value): &(&str, &str)| Ok((text(key)?, text(value)?));
            let message = |message: &Vec<(&str, &str)>| Value::map(budget, message.iter().map(entry).collect::<Result<_, String>>()?);
            Value::list(budget, messages.iter().map(message).collect::<Result<_, String>>()?)
        }
    }
}
