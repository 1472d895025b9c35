//! Jinja as chat templates use it, for templates from strangers. A template is a program, and a
//! general interpreter bounds neither the memory nor the stack that one takes. This one does,
//! before it takes them:
//!
//! - nesting: of statements and expressions when it is parsed, of values when they are made, of
//!   macros when they are called;
//! - memory: values count against [`MOST_BYTES`] as long as they live, and are asked for before
//!   they are allocated;
//! - time: [`STEPS`], one for everything that is evaluated, and for every 16 bytes that are read or
//!   written.
//!
//! No value contains itself, since only data can be put into other values. What templates of
//! published models use is there, with the results of Jinja2 under the settings of transformers;
//! the rest (inheritance, imports, recursive loops, call blocks) is an error that names it.

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

use crate::limits::template::{BYTES_PER_BYTE, MOST_BYTES, MOST_TEMPLATE, STEPS};
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

/// Why a template has no result.
pub enum Refusal {
    /// Its output is longer than what is allowed; it was stopped at the limit in bytes.
    TooLong { bytes: usize },
    /// It is faulty, refuses its input, or is beyond the limits. The message names the line.
    Faulty(String),
}

/// Renders a template, whose output has at most `most_output` bytes.
pub fn render(
    template: &str,
    variables: &[(&str, Variable<'_>)],
    most_output: Option<usize>,
) -> Result<String, Refusal> {
    let statements = parsed(template).map_err(Refusal::Faulty)?;
    let budget = budget(variables, most_output);
    let rendered = run(&budget, variables, &statements);
    rendered.map_err(|message| {
        budget.too_long().map_or(Refusal::Faulty(message), |bytes| Refusal::TooLong { bytes })
    })
}

fn parsed(template: &str) -> Result<Vec<ast::Stmt>, String> {
    if template.len() > MOST_TEMPLATE {
        return Err(format!("has {} bytes; {MOST_TEMPLATE} are supported", template.len()));
    }
    statements::parse(&template.replace("\r\n", "\n").replace('\r', "\n"))
}

/// What the template may use, in proportion to the conversation and to the output that is allowed.
fn budget(variables: &[(&str, Variable<'_>)], most_output: Option<usize>) -> Rc<Budget> {
    // The conversation is the caller's, however long it is.
    let size = |(_, variable): &(&str, Variable<'_>)| match variable {
        Variable::Messages(messages) => messages
            .iter()
            .map(|message| 256 + message.iter().map(|(_, text)| 256 + text.len()).sum::<usize>())
            .sum(),
        Variable::Str(text) => text.len() + 256,
        Variable::Bool(_) => 0,
    };
    let given: usize = variables.iter().map(size).sum();
    let size = given.max(most_output.unwrap_or(0));
    let bytes = MOST_BYTES.saturating_add(size.saturating_mul(BYTES_PER_BYTE));
    Budget::new(bytes, STEPS.saturating_add(given as u64), most_output)
}

fn run(
    budget: &Rc<Budget>,
    variables: &[(&str, Variable<'_>)],
    statements: &[ast::Stmt],
) -> Result<String, String> {
    let mut values = HashMap::new();
    for (name, variable) in variables {
        values.insert((*name).to_owned(), value(budget, variable)?);
    }
    Interpreter::new(budget.clone(), values).run(statements)
}

fn value(budget: &Rc<Budget>, variable: &Variable<'_>) -> Result<Value, String> {
    let text = |text: &str| Value::text(budget, text.to_owned());
    match variable {
        Variable::Bool(value) => Ok(Value::Bool(*value)),
        Variable::Str(string) => text(string),
        Variable::Messages(messages) => {
            let entry = |(key, value): &(&str, &str)| Ok((text(key)?, text(value)?));
            let message = |message: &Vec<(&str, &str)>| {
                Value::map(budget, message.iter().map(entry).collect::<Result<_, String>>()?)
            };
            Value::list(budget, messages.iter().map(message).collect::<Result<_, String>>()?)
        }
    }
}
