//! The bytes of a tokenizer's tokens, in a trie that grammars choose from.

use crate::{
    error::{Error, Result},
    limits::grammar::{
        LEXER_FUEL, LEXER_STATES, LONGEST_TOKEN, MASK_ITEMS, MASK_LEXER_FUEL, MOST_SYMBOLS,
        ROW_ITEMS, STACK,
    },
};
use llguidance::{
    Logger, Matcher, ParserFactory,
    api::{GrammarInit, ParserLimits, TopLevelGrammar},
    earley::CGrammar,
    panic_utils::catch_unwind,
    toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie},
};
use std::{fmt::Display, panic::AssertUnwindSafe, sync::Arc, thread};

/// The tokens that grammars choose from, and what makes matchers for them. Clones share it.
#[derive(Clone)]
pub struct Vocabulary(Arc<ParserFactory>);

impl Vocabulary {
    /// Of tokens with these bytes, by their ids; none for a token that is never chosen. One more
    /// token stands for the end of a text. Tokens within one of the `slices`, regular expressions,
    /// are looked up together.
    pub fn new(mut tokens: Vec<Vec<u8>>, slices: &[String]) -> Result<Self> {
        tokens.iter_mut().filter(|token| token.len() > LONGEST_TOKEN).for_each(Vec::clear);
        let end = tokens.len() as u32;
        tokens.push(special("<end of text>"));
        let made = catch_unwind(AssertUnwindSafe(|| {
            let trie = TokTrie::from(&TokRxInfo::new(end + 1, end), &tokens);
            // It says that it is no more than an approximation, so that no token is forced because
            // a tokenizer would choose it.
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), slices)?;
            *factory.quiet().limits_mut() = limits();
            Ok(factory)
        }));
        made.map(|factory| Self(Arc::new(factory))).map_err(failed)
    }

    /// Of the 256 bytes, and special tokens of these names.
    pub fn of_bytes<'a>(names: impl Iterator<Item = &'a str>) -> Result<Self> {
        Self::new((0..=u8::MAX).map(|byte| vec![byte]).chain(names.map(special)).collect(), &[])
    }

    fn trie(&self) -> &TokTrie {
        self.0.tok_env().tok_trie()
    }

    /// Returns the number of tokens, that for the end of a text included.
    pub fn tokens(&self) -> usize {
        self.trie().vocab_size()
    }

    /// Returns the token that stands for the end of a text.
    pub fn end(&self) -> u32 {
        self.trie().eos_token()
    }

    /// Returns the bytes of a token.
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.trie().token(id)
    }

    /// Returns tokens with these bytes together.
    pub fn tokenize(&self, bytes: &[u8]) -> Vec<u32> {
        self.trie().greedy_tokenize(bytes)
    }

    /// Returns whether two are the same.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Compiles a grammar to its rules.
    pub fn rules(&self, grammar: TopLevelGrammar) -> Result<Arc<CGrammar>> {
        let (tokens, limits) = (self.0.tok_env().clone(), self.0.limits().clone());
        let compile = || {
            let init = GrammarInit::Serialized(grammar);
            init.to_cgrammar(Some(tokens), &mut Logger::new(0, 0), limits, Vec::new())
        };
        with_stack(|| catch_unwind(AssertUnwindSafe(compile)).map_err(failed))
    }

    /// Returns a matcher at the beginning of a text.
    pub fn matcher(&self, grammar: TopLevelGrammar) -> Result<Matcher> {
        with_stack(|| {
            let parser = catch_unwind(AssertUnwindSafe(|| self.0.create_parser(grammar)));
            let matcher = Matcher::new(parser);
            matcher.get_error().map_or(Ok(matcher), |error| Err(failed(error)))
        })
    }
}

/// Runs what recurses over a grammar.
fn with_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        thread.map_err(failed)?.join().unwrap_or_else(|_| Err(failed("compiling it panicked")))
    })
}

/// The bytes of a special token, which no text has.
pub fn special(name: &str) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()
}

fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: ROW_ITEMS,
        initial_lexer_fuel: LEXER_FUEL,
        step_lexer_fuel: MASK_LEXER_FUEL,
        step_max_items: MASK_ITEMS,
        max_lexer_states: LEXER_STATES,
        max_grammar_size: MOST_SYMBOLS,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// The error of a grammar: of llguidance's messages, the first line.
pub fn failed(message: impl Display) -> Error {
    let message = message.to_string();
    Error::Grammar { message: message.lines().next().unwrap_or_default().trim().into() }
}
