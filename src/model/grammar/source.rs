//! Grammars, as callers write them.

use super::{
    alternatives::Alternatives,
    bounds::{check_lark, check_length, check_schema},
    gbnf,
    matcher::{Reasoning, TokenGrammar},
    productive::is_productive,
    token_bytes::vocabulary_of,
};
use crate::{
    error::Result,
    limits::grammar::MOST_SPECIAL,
    model::{
        generate::{
            constraint::{Constraint, ConstraintSource},
            options::GenerateOptions,
        },
        tokenizer::{
            text::Tokenizer,
            vocabulary::{Vocabulary, failed},
        },
    },
};
use llguidance::{JsonCompileOptions, Matcher, api::TopLevelGrammar};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

/// What a text must be: JSON, JSON of a schema, or what a regular expression or a grammar allows.
/// Cloning is cheap.
///
/// A generation with a grammar chooses only among tokens that the grammar allows, so its text
/// parses if it ends by itself. [`Stop::MaxTokens`](crate::model::Stop::MaxTokens) says that it was
/// cut short.
///
/// ```no_run
/// # fn main() -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::model::{GenerateOptions, Grammar, Model};
///
/// let model = Model::open("path/to/a/model")?;
/// let schema = r#"{"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}"#;
/// let options = GenerateOptions::default().grammar(Grammar::json_schema(schema)?);
/// for token in model.generate("Ada is 36 years old. As JSON: ", &options)? {
///     print!("{}", token?.text); // {"age": 36}
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Grammar {
    shared: Arc<Shared>,
    after_reasoning: bool,
    other: Option<Arc<Other>>,
}

/// Another grammar, which a text may fulfill instead.
struct Other {
    grammar: Grammar,
    /// What its texts do not begin with.
    starts: Vec<String>,
}

struct Shared {
    grammar: TopLevelGrammar,
    /// At the beginning of a text, for the vocabulary that it was last used with.
    last: Mutex<Option<(Vocabulary, Matcher)>>,
}

impl Grammar {
    /// Returns the grammar of any JSON object.
    pub fn json() -> Self {
        Self::of_schema(json!({"type": "object"}))
    }

    /// Returns the grammar of JSON that fulfills a schema. Keywords that are not supported are
    /// errors. Properties come in the order of the schema; between tokens of JSON, there may be a
    /// space, or one or two line breaks with an indentation.
    ///
    /// # Errors
    /// [`Error::Grammar`](crate::Error::Grammar) for text that is not JSON, a schema that is wrong, uses unknown keywords,
    /// or is fulfilled by nothing, or one that takes too much work.
    ///
    /// ```
    /// use bitnet_wgpu::model::Grammar;
    ///
    /// assert!(Grammar::json_schema(r#"{"type": "string", "maxLength": 3}"#).is_ok());
    /// assert!(Grammar::json_schema(r#"{"type": "string", "minLength": 3, "maxLength": 2}"#).is_err());
    /// ```
    pub fn json_schema(schema: &str) -> Result<Self> {
        check_length(schema)?;
        let schema: Value = serde_json::from_str(schema)
            .map_err(|error| failed(format!("the schema is not JSON: {error}")))?;
        if !matches!(schema, Value::Object(_) | Value::Bool(_)) {
            return Err(failed("a JSON schema is an object, `true` or `false`"));
        }
        check_schema(&schema)?;
        Self::of_schema(schema).checked("")
    }

    /// Returns the grammar of texts that a regular expression matches as a whole, in the syntax of
    /// the crate `regex`. There are no look-around, no lazy repetitions and no anchors.
    ///
    /// # Errors
    /// [`Error::Grammar`](crate::Error::Grammar) for an expression that is wrong, matches nothing, or takes too much work.
    pub fn regex(expression: &str) -> Result<Self> {
        check_length(expression)?;
        Self::new(TopLevelGrammar::from_regex(expression)).checked("")
    }

    /// Returns a grammar in [llguidance's variant of Lark's
    /// syntax](https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md). It may contain
    /// JSON schemas, as in `%json {"type": "string"}`, and special tokens, as in `<|im_end|>`.
    ///
    /// # Errors
    /// [`Error::Grammar`](crate::Error::Grammar) for a grammar that is wrong, allows no finite text, or takes too much
    /// work. Whether a model has its special tokens is checked when a generation begins. A grammar
    /// with tokens by their ids, as in `<[42]>`, is checked as a whole then.
    pub fn lark(grammar: &str) -> Result<Self> {
        check_lark(grammar)?;
        let made = Self::new(TopLevelGrammar::from_lark(grammar.to_owned()));
        if grammar.contains("<[") { Ok(made) } else { made.checked(grammar) }
    }

    /// Returns a grammar in [GBNF](https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md),
    /// the syntax of llama.cpp. A text begins with the rule `root`. Tokens, as in `<think>`, are not
    /// supported.
    ///
    /// # Errors
    /// [`Error::Grammar`](crate::Error::Grammar), with line and column, for a grammar that is wrong; for one that
    /// allows no finite text, or takes too much work.
    ///
    /// ```
    /// use bitnet_wgpu::model::Grammar;
    ///
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// Grammar::gbnf(r#"root ::= "yes" | "no" [.!]?"#)?;
    /// let error = Grammar::gbnf("root ::= answer").err().map(|error| error.to_string());
    /// assert_eq!(error.as_deref(), Some("grammar: line 1, column 10: there is no rule `answer`"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn gbnf(grammar: &str) -> Result<Self> {
        Self::new(gbnf::read(grammar)?).checked("")
    }

    /// Returns a grammar in the syntax that it is written in: [`Grammar::gbnf`] if its first rule has
    /// `::=`, else [`Grammar::lark`].
    ///
    /// # Errors
    /// Those of the two.
    pub fn detect(grammar: &str) -> Result<Self> {
        if gbnf::is_gbnf(grammar) { Self::gbnf(grammar) } else { Self::lark(grammar) }
    }

    /// Has the grammar begin after a model's reasoning, if there is some: reasoning that the prompt
    /// opened with `<think>`, or that the model begins with a token of that name. It ends with
    /// `</think>`. As for [`ReasoningParser`](crate::model::ReasoningParser), the marks must not be
    /// special tokens.
    #[must_use]
    pub fn after_reasoning(self, after_reasoning: bool) -> Self {
        Self { after_reasoning, ..self }
    }

    /// Returns the grammar of its texts and of those of `other` that begin with none of `starts`.
    pub(in crate::model) fn or(self, other: Self, starts: Vec<String>) -> Self {
        Self { other: Some(Arc::new(Other { grammar: other, starts })), ..self }
    }

    fn of_schema(mut schema: Value) -> Self {
        let options = JsonCompileOptions {
            // As llama.cpp has it: with any white space, some models write nothing else.
            whitespace_pattern: Some(r"\x20|\x0A{1,2}[\x20\x09]{0,20}".into()),
            ..JsonCompileOptions::default()
        };
        if schema.is_object() {
            options.apply_to(&mut schema);
        }
        Self::new(TopLevelGrammar::from_json_schema(schema))
    }

    fn new(grammar: TopLevelGrammar) -> Self {
        let shared = Shared { grammar, last: Mutex::default() };
        Self { shared: Arc::new(shared), after_reasoning: false, other: None }
    }

    /// Checks the grammar with a vocabulary of bytes and of all special tokens that its `source`
    /// names.
    fn checked(self, source: &str) -> Result<Self> {
        let names = special_names(source);
        if names.len() > MOST_SPECIAL {
            let count = names.len();
            return Err(failed(format!(
                "{count} special tokens; at most {MOST_SPECIAL} are accepted"
            )));
        }
        let vocabulary = Vocabulary::of_bytes(names.iter().map(String::as_str))?;
        let rules = vocabulary.rules(self.shared.grammar.clone())?;
        if !is_productive(&rules) {
            return Err(failed("no finite text fulfills it"));
        }
        let matcher = vocabulary.matcher(self.shared.grammar.clone())?;
        TokenGrammar::new(Alternatives::one(matcher), vocabulary, Reasoning::None, &[])?;
        Ok(self)
    }

    /// Returns a matcher at the beginning of a text.
    fn matcher(&self, vocabulary: &Vocabulary) -> Result<Matcher> {
        let mut last = self.shared.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, matcher)) = last.as_ref().filter(|(known, _)| known.is(vocabulary)) {
            return Ok(matcher.deep_clone());
        }
        let matcher = vocabulary.matcher(self.shared.grammar.clone())?;
        *last = Some((vocabulary.clone(), matcher.deep_clone()));
        Ok(matcher)
    }
}

impl ConstraintSource for Grammar {
    fn begin(
        &self,
        tokenizer: &Tokenizer,
        prompt: &[u32],
        ends: &[u32],
    ) -> Result<Box<dyn Constraint>> {
        let vocabulary = vocabulary_of(tokenizer)?;
        let reasoning = if self.after_reasoning {
            Reasoning::after(tokenizer, prompt)?
        } else {
            Reasoning::None
        };
        let first = self.matcher(&vocabulary)?;
        let grammars = match self.other.as_deref() {
            None => Alternatives::one(first),
            Some(Other { grammar, starts }) => {
                Alternatives::two(first, grammar.matcher(&vocabulary)?, starts)
            }
        };
        Ok(Box::new(TokenGrammar::new(grammars, vocabulary, reasoning, ends)?))
    }
}

impl GenerateOptions {
    /// Restricts the text to a [`Grammar`]. Of the other options, it comes last: no bias, penalty
    /// or hook brings a token back. Log-probabilities are those of the model, without it.
    ///
    /// The model needs a tokenizer. The end of the text is among the tokens only where the grammar
    /// may end. Where nothing can follow, the generation ends with
    /// [`Stop::EndOfText`](crate::model::Stop::EndOfText), whatever `min_tokens` says. A GPU
    /// chooses the tokens itself, but a step waits for the token before it.
    #[must_use]
    pub fn grammar(self, grammar: impl Into<Option<Grammar>>) -> Self {
        let constraint =
            grammar.into().map(|grammar| Arc::new(grammar) as Arc<dyn ConstraintSource>);
        Self { constraint, ..self }
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grammar")
    }
}

/// Names in angle brackets, which may be special tokens.
fn special_names(source: &str) -> BTreeSet<String> {
    let name = |text: &str| {
        let (name, _) = text.split_once('>')?;
        (!name.is_empty() && !name.contains(char::is_whitespace)).then(|| format!("<{name}>"))
    };
    source.split('<').skip(1).filter_map(name).collect()
}
