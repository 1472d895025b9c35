//! Options of structured output.

use crate::input;
use anyhow::{Context as _, Result};
use bitnet_wgpu::model::Grammar;
use clap::Args;
use std::path::{Path, PathBuf};

/// Most bytes of a schema or a grammar, as the library takes it.
const MAX_GRAMMAR: u64 = 1 << 20;

/// What a text must be. One of the options is accepted; it begins after the model's reasoning.
#[derive(Args, Clone, Debug, Default)]
#[group(multiple = false)]
pub struct GrammarArgs {
    /// Generate JSON that fulfills a JSON schema: a file, or the schema itself, which begins with
    /// `{`
    #[arg(long, value_name = "FILE|SCHEMA")]
    json_schema: Option<String>,
    /// Generate a JSON object
    #[arg(long)]
    json_object: bool,
    /// Generate text that a regular expression matches as a whole
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    regex: Option<String>,
    /// Generate text by a grammar in a file: GBNF, whose rules have `::=`, or llguidance's variant of
    /// Lark's syntax
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,
}

impl GrammarArgs {
    /// Reads and checks the grammar.
    ///
    /// # Errors
    /// A file that cannot be read, and what is wrong with the grammar.
    pub fn grammar(&self) -> Result<Option<Grammar>> {
        let grammar = if let Some(schema) = &self.json_schema {
            let inline = schema.trim_start().starts_with('{');
            let schema = match inline {
                true => schema.clone(),
                false => input::text(Path::new(schema), MAX_GRAMMAR).context("--json-schema")?,
            };
            Grammar::json_schema(&schema).context("--json-schema")?
        } else if let Some(expression) = &self.regex {
            Grammar::regex(expression).context("--regex")?
        } else if let Some(file) = &self.grammar {
            let source = input::text(file, MAX_GRAMMAR).context("--grammar")?;
            Grammar::detect(&source).context("--grammar")?
        } else if self.json_object {
            Grammar::json()
        } else {
            return Ok(None);
        };
        Ok(Some(grammar.after_reasoning(true)))
    }
}
