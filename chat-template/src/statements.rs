//! Tokens to statements, by recursive descent.

use crate::{
    ast::{CAPTURED, Expr, ExprKind, Macro, Stmt, StmtKind, Target},
    lexer::{self, Token},
    parser::{Parser, Result, at_most},
};
use std::sync::Arc;

/// Statements of a template.
pub fn parse(template: &str) -> Result<Vec<Stmt>> {
    let tokens = lexer::tokens(template)?;
    let mut parser = Parser { tokens, at: 0, depth: 0, in_loop: false };
    let parsed = parser.statements(&[]);
    parsed.map_err(|what| format!("line {}: {what}", parser.line()))
}

impl Parser<'_> {
    fn block_end(&mut self) -> Result<()> {
        match self.next()? {
            Token::BlockEnd => Ok(()),
            _ => {
                self.at -= 1;
                Err(format!("`%}}` is missing{}", self.found()))
            }
        }
    }

    /// Statements up to the tag of one of these names, which stays; up to the end of the template
    /// for none.
    fn statements(&mut self, ends: &[&str]) -> Result<Vec<Stmt>> {
        let mut statements = Vec::new();
        while let Some((token, line)) = self.tokens.get(self.at).cloned() {
            let kind = match token {
                Token::Raw(text) => {
                    self.at += 1;
                    StmtKind::Raw(text.to_owned())
                }
                Token::VariableStart => {
                    self.at += 1;
                    let value = self.expression_list()?;
                    match self.next()? {
                        Token::VariableEnd => StmtKind::Emit(value),
                        _ => {
                            self.at -= 1;
                            return Err(format!("`}}}}` is missing{}", self.found()));
                        }
                    }
                }
                _ => {
                    if matches!(self.tokens.get(self.at + 1), Some((Token::Name(name), _)) if ends.contains(name))
                    {
                        return Ok(statements);
                    }
                    self.at += 1;
                    self.nested(Self::block)?
                }
            };
            statements.push(Stmt { line, kind });
        }
        if ends.is_empty() {
            Ok(statements)
        } else {
            Err(format!("`{}` is missing", ends.join("` or `")))
        }
    }

    /// The rest of a block's tag, statements, and the tag that ends it.
    fn body(&mut self, ends: &[&str]) -> Result<(Vec<Stmt>, String)> {
        self.block_end()?;
        let body = self.statements(ends)?;
        self.at += 1;
        Ok((body, self.name()?))
    }

    fn body_until(&mut self, end: &str) -> Result<Vec<Stmt>> {
        let (body, _) = self.body(&[end])?;
        self.block_end()?;
        Ok(body)
    }

    /// The body of a block whose text is kept: a loop around it cannot be left from there.
    fn kept(&mut self, end: &str) -> Result<Vec<Stmt>> {
        self.within(false, |parser| parser.body_until(end))
    }

    fn block(&mut self) -> Result<StmtKind> {
        let name = self.name()?;
        Ok(match name.as_str() {
            "for" => self.for_loop()?,
            "if" => self.condition()?,
            "set" => self.set()?,
            "with" => {
                let mut variables = Vec::new();
                while !matches!(self.peek(), Some(Token::BlockEnd)) {
                    let target = self.target()?;
                    self.expect("=")?;
                    variables.push((target, self.expression()?));
                    if !self.skip(",") {
                        break;
                    }
                }
                StmtKind::With { variables, body: self.body_until("endwith")? }
            }
            // It marks the assistant's words for training, as the body of a function does in
            // transformers: what is set in it ends with it, and it leaves no loop.
            "generation" => {
                StmtKind::With { variables: Vec::new(), body: self.kept("endgeneration")? }
            }
            "macro" => self.macro_definition()?,
            "filter" => {
                let value = self.filter(captured(self.line()))?;
                let value = self.postfix(value)?;
                StmtKind::FilterBlock { value, body: self.kept("endfilter")? }
            }
            "break" | "continue" => {
                if !self.in_loop {
                    return Err(format!("`{name}` is in no loop that it could end"));
                }
                self.block_end()?;
                if name == "break" { StmtKind::Break } else { StmtKind::Continue }
            }
            other => {
                return Err(format!(
                    "the statement `{other}` is not supported in chat templates, or ends nothing"
                ));
            }
        })
    }

    fn for_loop(&mut self) -> Result<StmtKind> {
        let target = self.targets()?;
        self.expect_name("in")?;
        // `if` begins the loop's filter here, not a choice.
        let iter = self.or()?;
        let filter = if self.skip_name("if") { Some(self.expression()?) } else { None };
        if self.is_name("recursive") {
            return Err("recursive loops are not supported in chat templates".into());
        }
        let (body, end) = self.within(true, |parser| parser.body(&["else", "endfor"]))?;
        let otherwise = if end == "else" {
            self.body_until("endfor")?
        } else {
            self.block_end()?;
            Vec::new()
        };
        Ok(StmtKind::For { target, iter, filter, body, otherwise })
    }

    fn condition(&mut self) -> Result<StmtKind> {
        let mut branches = Vec::new();
        loop {
            let condition = self.expression()?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            branches.push((condition, body));
            match end.as_str() {
                "elif" => {}
                "else" => {
                    return Ok(StmtKind::If { branches, otherwise: self.body_until("endif")? });
                }
                _ => {
                    self.block_end()?;
                    return Ok(StmtKind::If { branches, otherwise: Vec::new() });
                }
            }
        }
    }

    fn set(&mut self) -> Result<StmtKind> {
        let target = self.targets()?;
        if self.skip("=") {
            let value = self.expression_list()?;
            self.block_end()?;
            return Ok(StmtKind::Set { target, value });
        }
        let value = self.postfix(captured(self.line()))?;
        Ok(StmtKind::SetBlock { target, value, body: self.kept("endset")? })
    }

    fn macro_definition(&mut self) -> Result<StmtKind> {
        let name = self.name()?;
        self.expect("(")?;
        let mut parameters = Vec::new();
        while !self.skip(")") {
            let parameter = self.name()?;
            let default = if self.skip("=") { Some(self.expression()?) } else { None };
            parameters.push((parameter, default));
            at_most(parameters.len())?;
            if !self.is(")") {
                self.expect(",")?;
            }
        }
        let body = self.kept("endmacro")?;
        Ok(StmtKind::Macro {
            name: name.clone(),
            definition: Arc::new(Macro { name, parameters, body }),
        })
    }

    fn targets(&mut self) -> Result<Target> {
        let first = self.target()?;
        if !self.is(",") {
            return Ok(first);
        }
        let mut several = vec![first];
        while self.skip(",") {
            several.push(self.target()?);
        }
        Ok(Target::Several(several))
    }

    fn target(&mut self) -> Result<Target> {
        if self.skip("(") {
            let inner = self.nested(Self::targets)?;
            self.expect(")")?;
            return Ok(inner);
        }
        let name = self.name()?;
        if ["true", "false", "none", "True", "False", "None"].contains(&name.as_str()) {
            return Err(format!("`{name}` cannot be set"));
        }
        if self.skip(".") {
            Ok(Target::Attribute(name, self.name()?))
        } else {
            Ok(Target::Name(name))
        }
    }
}

/// What a block wrote, as the filters of the block see it.
fn captured(line: u32) -> Expr {
    Expr { line, depth: 0, kind: Box::new(ExprKind::Name(CAPTURED.to_owned())) }
}
