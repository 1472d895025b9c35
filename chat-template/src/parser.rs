//! What statements and expressions are parsed with: where in the tokens a parser is, and how deep.

use crate::{
    lexer::Token,
    limits::{MAX_ARGUMENTS, MAX_NESTING},
};

pub type Result<T> = std::result::Result<T, String>;

pub struct Parser<'a> {
    pub tokens: Vec<(Token<'a>, u32)>,
    pub at: usize,
    pub depth: usize,
    /// Whether there is a loop that `break` and `continue` belong to.
    pub in_loop: bool,
}

impl<'a> Parser<'a> {
    pub fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |(_, line)| *line)
    }

    pub fn peek(&self) -> Option<&Token<'a>> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    pub fn next(&mut self) -> Result<Token<'a>> {
        let token = self.peek().cloned().ok_or("the template ends too early")?;
        self.at += 1;
        Ok(token)
    }

    pub fn is(&self, operator: &str) -> bool {
        matches!(self.peek(), Some(Token::Op(found)) if *found == operator)
    }

    pub fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(found)) if *found == name)
    }

    pub fn skip(&mut self, operator: &str) -> bool {
        let found = self.is(operator);
        self.at += usize::from(found);
        found
    }

    pub fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    pub fn expect(&mut self, operator: &str) -> Result<()> {
        if self.skip(operator) {
            Ok(())
        } else {
            Err(format!("`{operator}` is missing{}", self.found()))
        }
    }

    pub fn expect_name(&mut self, name: &str) -> Result<()> {
        if self.skip_name(name) {
            Ok(())
        } else {
            Err(format!("`{name}` is missing{}", self.found()))
        }
    }

    pub fn found(&self) -> String {
        match self.peek() {
            Some(Token::Op(operator)) => format!(" before `{operator}`"),
            Some(Token::Name(name)) => format!(" before `{name}`"),
            Some(_) | None => String::new(),
        }
    }

    pub fn name(&mut self) -> Result<String> {
        match self.next()? {
            Token::Name(name) => Ok(name.to_owned()),
            _ => Err("a name is missing".into()),
        }
    }

    /// Goes into something nested.
    pub fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.depth += 1;
        if self.depth > MAX_NESTING {
            return Err(format!("is nested deeper than {MAX_NESTING} times"));
        }
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Parses what is the body of a loop, or is not part of the loop around it.
    pub fn within<T>(
        &mut self,
        in_loop: bool,
        parse: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let around = std::mem::replace(&mut self.in_loop, in_loop);
        let parsed = parse(self);
        self.in_loop = around;
        parsed
    }
}

pub fn at_most(arguments: usize) -> Result<()> {
    if arguments > MAX_ARGUMENTS {
        Err(format!("more than {MAX_ARGUMENTS} arguments"))
    } else {
        Ok(())
    }
}
