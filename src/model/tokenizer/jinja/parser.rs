//! Tokens to statements and expressions, by recursive descent.

use super::{
    ast::{Arguments, CAPTURED, Constant, Expr, ExprKind, Macro, Stmt, StmtKind, Target},
    lexer::{self, Token},
};
use crate::limits::template::{MAX_DEPTH, MOST_ARGUMENTS};
use std::rc::Rc;

/// Statements of a template.
pub fn parse(template: &str) -> Result<Vec<Stmt>> {
    let tokens = lexer::tokens(template)?;
    let mut parser = Parser { tokens, at: 0, depth: 0, in_loop: false };
    let parsed = parser.statements(&[]);
    parsed.map_err(|what| format!("line {}: {what}", parser.line()))
}

struct Parser<'a> {
    tokens: Vec<(Token<'a>, u32)>,
    at: usize,
    depth: usize,
    /// Is there a loop that `break` and `continue` mean?
    in_loop: bool,
}

type Result<T> = std::result::Result<T, String>;

impl<'a> Parser<'a> {
    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |(_, line)| *line)
    }

    fn peek(&self) -> Option<&Token<'a>> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn next(&mut self) -> Result<Token<'a>> {
        let token = self.peek().cloned().ok_or("the template ends too early")?;
        self.at += 1;
        Ok(token)
    }

    fn is(&self, operator: &str) -> bool {
        matches!(self.peek(), Some(Token::Op(found)) if *found == operator)
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(found)) if *found == name)
    }

    fn skip(&mut self, operator: &str) -> bool {
        let found = self.is(operator);
        self.at += usize::from(found);
        found
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, operator: &str) -> Result<()> {
        if self.skip(operator) { Ok(()) } else { Err(format!("`{operator}` is missing{}", self.found())) }
    }

    fn expect_name(&mut self, name: &str) -> Result<()> {
        if self.skip_name(name) { Ok(()) } else { Err(format!("`{name}` is missing{}", self.found())) }
    }

    fn found(&self) -> String {
        match self.peek() {
            Some(Token::Op(operator)) => format!(" before `{operator}`"),
            Some(Token::Name(name)) => format!(" before `{name}`"),
            Some(_) | None => String::new(),
        }
    }

    fn name(&mut self) -> Result<String> {
        match self.next()? {
            Token::Name(name) => Ok(name.to_owned()),
            _ => Err("a name is missing".into()),
        }
    }

    /// Goes into something nested.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("is nested deeper than {MAX_DEPTH} times"));
        }
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Parses what is the body of a loop, or is not part of the loop around it.
    fn within<T>(&mut self, in_loop: bool, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let around = std::mem::replace(&mut self.in_loop, in_loop);
        let parsed = parse(self);
        self.in_loop = around;
        parsed
    }

    fn block_end(&mut self) -> Result<()> {
        match self.next()? {
            Token::BlockEnd => Ok(()),
            _ => {
                self.at -= 1;
                Err(format!("`%}}` is missing{}", self.found()))
            }
        }
    }

    /// Statements up to the tag of one of these names, which stays; up to the end of the template for none.
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
                    if matches!(self.tokens.get(self.at + 1), Some((Token::Name(name), _)) if ends.contains(name)) {
                        return Ok(statements);
                    }
                    self.at += 1;
                    self.nested(Self::block)?
                }
            };
            statements.push(Stmt { line, kind });
        }
        if ends.is_empty() { Ok(statements) } else { Err(format!("`{}` is missing", ends.join("` or `"))) }
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
            // It marks the assistant's words for training; what is set in it ends with it.
            "generation" => StmtKind::With { variables: Vec::new(), body: self.body_until("endgeneration")? },
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
            other => return Err(format!("the statement `{other}` is not supported in chat templates, or ends nothing")),
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
                "else" => return Ok(StmtKind::If { branches, otherwise: self.body_until("endif")? }),
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
        Ok(StmtKind::Macro { name: name.clone(), definition: Rc::new(Macro { name, parameters, body }) })
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
        if self.skip(".") { Ok(Target::Attribute(name, self.name()?)) } else { Ok(Target::Name(name)) }
    }

    /// One expression, or several with commas between them, which make a list.
    fn expression_list(&mut self) -> Result<Expr> {
        let first = self.expression()?;
        if !self.is(",") {
            return Ok(first);
        }
        let (line, mut all) = (first.line, vec![first]);
        while self.skip(",") {
            if matches!(self.peek(), Some(Token::VariableEnd | Token::BlockEnd)) || self.is(")") {
                break;
            }
            all.push(self.expression()?);
        }
        new(line, ExprKind::Tuple(all))
    }

    fn expression(&mut self) -> Result<Expr> {
        self.nested(|parser| {
            let mut value = parser.or()?;
            while parser.is_name("if") {
                let line = parser.line();
                parser.at += 1;
                let condition = parser.or()?;
                let no = if parser.skip_name("else") { Some(parser.expression()?) } else { None };
                value = new(line, ExprKind::Choice { condition, yes: value, no })?;
            }
            Ok(value)
        })
    }

    fn or(&mut self) -> Result<Expr> {
        let mut left = self.and()?;
        while self.is_name("or") {
            let line = self.line();
            self.at += 1;
            left = new(line, ExprKind::Or(left, self.and()?))?;
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Expr> {
        let mut left = self.not()?;
        while self.is_name("and") {
            let line = self.line();
            self.at += 1;
            left = new(line, ExprKind::And(left, self.not()?))?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Expr> {
        let line = self.line();
        if self.skip_name("not") {
            let value = self.nested(Self::not)?;
            return new(line, ExprKind::Not(value));
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<Expr> {
        let (line, left) = (self.line(), self.sum()?);
        let mut others = Vec::new();
        loop {
            let operator = match self.peek() {
                Some(Token::Op(operator @ ("==" | "!=" | "<" | "<=" | ">" | ">="))) => *operator,
                Some(Token::Name("in")) => "in",
                Some(Token::Name("not")) if matches!(self.tokens.get(self.at + 1), Some((Token::Name("in"), _))) => {
                    self.at += 1;
                    "not in"
                }
                _ => break,
            };
            self.at += 1;
            others.push((operator, self.sum()?));
        }
        if others.is_empty() { Ok(left) } else { new(line, ExprKind::Compare(left, others)) }
    }

    fn binary(&mut self, operators: &[&'static str], operand: fn(&mut Self) -> Result<Expr>) -> Result<Expr> {
        let mut left = operand(self)?;
        while let Some(&operator) = operators.iter().find(|operator| self.is(operator)) {
            let line = self.line();
            self.at += 1;
            left = new(line, ExprKind::Binary(operator, left, operand(self)?))?;
        }
        Ok(left)
    }

    fn sum(&mut self) -> Result<Expr> {
        self.binary(&["+", "-"], Self::concatenation)
    }

    fn concatenation(&mut self) -> Result<Expr> {
        self.binary(&["~"], Self::product)
    }

    fn product(&mut self) -> Result<Expr> {
        self.binary(&["*", "//", "/", "%"], Self::power)
    }

    fn power(&mut self) -> Result<Expr> {
        self.binary(&["**"], Self::unary)
    }

    fn unary(&mut self) -> Result<Expr> {
        let signed = self.sign()?;
        self.postfix(signed)
    }

    fn sign(&mut self) -> Result<Expr> {
        let line = self.line();
        if self.skip("-") {
            let value = self.nested(Self::sign)?;
            return new(line, ExprKind::Negative(value));
        }
        if self.skip("+") {
            let value = self.nested(Self::sign)?;
            return new(line, ExprKind::Positive(value));
        }
        let primary = self.primary()?;
        self.attributes(primary)
    }

    /// Attributes, items and calls.
    fn attributes(&mut self, mut value: Expr) -> Result<Expr> {
        loop {
            let line = self.line();
            value = if self.skip(".") {
                match self.next()? {
                    Token::Name(name) => new(line, ExprKind::Attribute(value, name.to_owned()))?,
                    Token::Int(index) => {
                        let index = new(line, ExprKind::Constant(Constant::Int(index)))?;
                        new(line, ExprKind::Item(value, index))?
                    }
                    _ => return Err("the name of an attribute is missing".into()),
                }
            } else if self.skip("[") {
                self.item(value, line)?
            } else if self.skip("(") {
                let arguments = self.arguments()?;
                new(line, ExprKind::Call(value, arguments))?
            } else {
                return Ok(value);
            };
        }
    }

    /// Filters and tests of a value.
    fn postfix(&mut self, mut value: Expr) -> Result<Expr> {
        loop {
            value = if self.skip("|") {
                self.filter(value)?
            } else if self.is_name("is") {
                self.test(value)?
            } else {
                return Ok(value);
            };
        }
    }

    fn filter(&mut self, value: Expr) -> Result<Expr> {
        let (line, name) = (self.line(), self.name()?);
        let arguments = if self.skip("(") { self.arguments()? } else { Arguments::default() };
        new(line, ExprKind::Filter(value, name, arguments))
    }

    fn test(&mut self, value: Expr) -> Result<Expr> {
        let line = self.line();
        self.at += 1;
        let negated = self.skip_name("not");
        let name = self.name()?;
        let mut arguments = Arguments::default();
        if self.skip("(") {
            arguments = self.arguments()?;
        } else {
            let begins = match self.peek() {
                Some(Token::Name(name)) => !["else", "or", "and", "is", "if", "in", "not"].contains(name),
                Some(Token::Int(_) | Token::Float(_) | Token::Str(_) | Token::Op("[" | "{")) => true,
                _ => false,
            };
            if begins {
                let argument = self.primary()?;
                arguments.positional.push(self.attributes(argument)?);
            }
        }
        new(line, ExprKind::Test { value, name, arguments, negated })
    }

    /// The rest of `value[`.
    fn item(&mut self, value: Expr, line: u32) -> Result<Expr> {
        let mut parts = [None, None, None];
        let mut colons = 0;
        while !self.skip("]") {
            if self.skip(":") {
                colons += 1;
                if colons > 2 {
                    return Err("a slice has three parts at most".into());
                }
            } else if parts[colons].is_none() {
                parts[colons] = Some(self.expression()?);
            } else {
                return Err(format!("`]` is missing{}", self.found()));
            }
        }
        match (colons, parts) {
            (0, [Some(index), ..]) => new(line, ExprKind::Item(value, index)),
            (0, _) => Err("an index is missing".into()),
            (_, parts) => new(line, ExprKind::Slice(value, parts)),
        }
    }

    /// The rest of `name(`.
    fn arguments(&mut self) -> Result<Arguments> {
        let mut arguments = Arguments::default();
        while !self.skip(")") {
            if self.is("*") || self.is("**") {
                return Err("lists of arguments are not supported in chat templates".into());
            }
            let named = match (self.peek(), self.tokens.get(self.at + 1)) {
                (Some(Token::Name(name)), Some((Token::Op("="), _))) => Some((*name).to_owned()),
                _ => None,
            };
            match named {
                Some(name) => {
                    self.at += 2;
                    arguments.named.push((name, self.expression()?));
                }
                None => arguments.positional.push(self.expression()?),
            }
            at_most(arguments.positional.len() + arguments.named.len())?;
            if !self.is(")") {
                self.expect(",")?;
            }
        }
        Ok(arguments)
    }

    fn primary(&mut self) -> Result<Expr> {
        let line = self.line();
        let kind = match self.next()? {
            Token::Name("true" | "True") => ExprKind::Constant(Constant::Bool(true)),
            Token::Name("false" | "False") => ExprKind::Constant(Constant::Bool(false)),
            Token::Name("none" | "None") => ExprKind::Constant(Constant::None),
            Token::Name(name) => ExprKind::Name(name.to_owned()),
            Token::Int(value) => ExprKind::Constant(Constant::Int(value)),
            Token::Float(value) => ExprKind::Constant(Constant::Float(value)),
            Token::Str(mut text) => {
                while let Some(Token::Str(more)) = self.peek() {
                    text += more;
                    self.at += 1;
                }
                ExprKind::Constant(Constant::Str(text))
            }
            Token::Op("(") => {
                if self.skip(")") {
                    return new(line, ExprKind::Tuple(Vec::new()));
                }
                let inner = self.expression_list()?;
                self.expect(")")?;
                return Ok(inner);
            }
            Token::Op("[") => {
                let mut all = Vec::new();
                while !self.skip("]") {
                    all.push(self.expression()?);
                    if !self.is("]") {
                        self.expect(",")?;
                    }
                }
                ExprKind::List(all)
            }
            Token::Op("{") => {
                let mut all = Vec::new();
                while !self.skip("}") {
                    let key = self.expression()?;
                    self.expect(":")?;
                    all.push((key, self.expression()?));
                    if !self.is("}") {
                        self.expect(",")?;
                    }
                }
                ExprKind::Map(all)
            }
            _ => {
                self.at -= 1;
                return Err(format!("an expression is missing{}", self.found()));
            }
        };
        new(line, kind)
    }
}

/// What a block wrote, as the filters of the block see it.
fn at_most(arguments: usize) -> Result<()> {
    if arguments > MOST_ARGUMENTS { Err(format!("more than {MOST_ARGUMENTS} arguments")) } else { Ok(()) }
}

fn captured(line: u32) -> Expr {
    Expr { line, depth: 0, kind: Box::new(ExprKind::Name(CAPTURED.to_owned())) }
}

/// An expression that is not too deep: chains of operators are as deep as they are long.
fn new(line: u32, kind: ExprKind) -> Result<Expr> {
    let of = |arguments: &Arguments| {
        let named = arguments.named.iter().map(|(_, value)| value.depth);
        arguments.positional.iter().map(|value| value.depth).chain(named).max().unwrap_or(0)
    };
    let depth = 1 + match &kind {
        ExprKind::Constant(_) | ExprKind::Name(_) => 0,
        ExprKind::List(all) | ExprKind::Tuple(all) => all.iter().map(|value| value.depth).max().unwrap_or(0),
        ExprKind::Map(all) => all.iter().map(|(key, value)| key.depth.max(value.depth)).max().unwrap_or(0),
        ExprKind::Attribute(value, _) | ExprKind::Not(value) | ExprKind::Negative(value) | ExprKind::Positive(value) => value.depth,
        ExprKind::Item(a, b) | ExprKind::Binary(_, a, b) | ExprKind::And(a, b) | ExprKind::Or(a, b) => a.depth.max(b.depth),
        ExprKind::Slice(value, parts) => parts.iter().flatten().map(|part| part.depth).fold(value.depth, u16::max),
        ExprKind::Call(value, arguments) | ExprKind::Filter(value, _, arguments) | ExprKind::Test { value, arguments, .. } => {
            value.depth.max(of(arguments))
        }
        ExprKind::Compare(value, others) => others.iter().map(|(_, other)| other.depth).fold(value.depth, u16::max),
        ExprKind::Choice { condition, yes, no } => condition.depth.max(yes.depth).max(no.as_ref().map_or(0, |no| no.depth)),
    };
    if usize::from(depth) > MAX_DEPTH {
        return Err(format!("an expression is deeper than {MAX_DEPTH} operators"));
    }
    Ok(Expr { line, depth, kind: Box::new(kind) })
}
