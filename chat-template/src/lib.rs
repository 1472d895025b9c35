#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
// How the bounds hold: nesting of statements and expressions is checked by the parser, of values
// when they are created, of macros when they are called. A value counts against the budget before
// it is allocated and until it is dropped. Only data can be put into other values, so that none
// contains itself.

mod ast;
mod budget;
mod context;
mod error;
mod eval;
mod expressions;
mod filters;
mod format;
mod json;
mod lexer;
pub mod limits;
mod methods;
mod operators;
mod ops;
mod parser;
mod printing;
mod sorting;
mod statements;
mod strings;
mod tests_and_functions;
mod text_filters;
mod time;
mod value;

pub use error::Error;
pub use limits::Limits;
pub use time::{InvalidTime, LocalTime};

use ast::Stmt;
use budget::Budget;
use eval::Interpreter;
use ops::Ops;
use serde::Serialize;

/// A parsed template.
#[derive(Debug)]
pub struct Template {
    statements: Vec<Stmt>,
    now: Option<LocalTime>,
}

impl Template {
    /// Parses a template's source.
    ///
    /// # Errors
    /// [`Error::Syntax`] for a source that is faulty, uses what is not supported, is longer than
    /// [`limits::MAX_TEMPLATE_BYTES`], or is nested deeper than [`limits::MAX_NESTING`].
    pub fn parse(source: &str) -> Result<Self, Error> {
        if source.len() > limits::MAX_TEMPLATE_BYTES {
            let (bytes, max) = (source.len(), limits::MAX_TEMPLATE_BYTES);
            return Err(Error::Syntax(format!("has {bytes} bytes; {max} are supported")));
        }
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let statements = statements::parse(&source).map_err(Error::Syntax)?;
        Ok(Self { statements, now: None })
    }

    /// Sets the time of `strftime_now`, which is [`LocalTime::now`] at each rendering by default.
    #[must_use]
    pub fn with_now(self, now: LocalTime) -> Self {
        Self { now: Some(now), ..self }
    }

    /// Renders the template. The context serializes to a JSON object, whose entries are the
    /// variables of the template: `messages`, `tools`, `add_generation_prompt`. Objects keep the
    /// order of their keys. `serde_json` sorts the keys of its own values, unless its feature
    /// `preserve_order` is on.
    ///
    /// # Errors
    /// [`Error::Context`], [`Error::Render`], [`Error::OutputTooLong`].
    pub fn render(&self, context: &impl Serialize, limits: &Limits) -> Result<String, Error> {
        let budget = Budget::new(limits.output);
        let variables = context::variables(context, &budget, limits)?;
        let ops = Ops { budget: budget.clone(), now: self.now.unwrap_or_else(LocalTime::now) };
        let rendered = Interpreter::new(ops, variables).run(&self.statements);
        rendered.map_err(|message| match budget.too_long() {
            Some(bytes) => Error::OutputTooLong { bytes },
            None => Error::Render(message),
        })
    }
}
