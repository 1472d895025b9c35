//! Tokens to expressions, by recursive descent.

use crate::{
    ast::{Arguments, Constant, Expr, ExprKind},
    lexer::Token,
    limits::MAX_NESTING,
    parser::{Parser, Result, at_most},
};

impl Parser<'_> {
    /// One expression, or several with commas between them, which make a list.
    pub fn expression_list(&mut self) -> Result<Expr> {
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

    pub fn expression(&mut self) -> Result<Expr> {
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

    pub fn or(&mut self) -> Result<Expr> {
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
                Some(Token::Name("not"))
                    if matches!(self.tokens.get(self.at + 1), Some((Token::Name("in"), _))) =>
                {
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

    fn binary(
        &mut self,
        operators: &[&'static str],
        operand: fn(&mut Self) -> Result<Expr>,
    ) -> Result<Expr> {
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
    pub fn postfix(&mut self, mut value: Expr) -> Result<Expr> {
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

    pub fn filter(&mut self, value: Expr) -> Result<Expr> {
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
                Some(Token::Name(name)) => {
                    !["else", "or", "and", "is", "if", "in", "not"].contains(name)
                }
                Some(Token::Int(_) | Token::Float(_) | Token::Str(_) | Token::Op("[" | "{")) => {
                    true
                }
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
            if arguments.dictionary.is_some() {
                return Err(format!("an argument after `**`{}", self.found()));
            }
            if self.is("*") || self.is("**") {
                self.unpacked(&mut arguments)?;
                continue;
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
                None if arguments.named.is_empty() && arguments.list.is_none() => {
                    arguments.positional.push(self.expression()?);
                }
                None => return Err("a positional argument after others".into()),
            }
            at_most(arguments.positional.len() + arguments.named.len())?;
            if !self.is(")") {
                self.expect(",")?;
            }
        }
        Ok(arguments)
    }

    /// `*list` or `**dictionary` in a call, and the comma after it.
    fn unpacked(&mut self, arguments: &mut Arguments) -> Result<()> {
        let place = if self.skip("**") {
            &mut arguments.dictionary
        } else {
            self.at += 1;
            &mut arguments.list
        };
        if place.is_some() {
            return Err("one list and one dictionary of arguments are supported".into());
        }
        *place = Some(self.expression()?);
        if self.is(")") { Ok(()) } else { self.expect(",") }
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

/// An expression that is not too deep: chains of operators are as deep as they are long.
fn new(line: u32, kind: ExprKind) -> Result<Expr> {
    let of = |arguments: &Arguments| {
        let named = arguments.named.iter().map(|(_, value)| value.depth);
        let unpacked = arguments.list.iter().chain(&arguments.dictionary).map(|value| value.depth);
        let positional = arguments.positional.iter().map(|value| value.depth);
        positional.chain(named).chain(unpacked).max().unwrap_or(0)
    };
    let depth = 1 + match &kind {
        ExprKind::Constant(_) | ExprKind::Name(_) => 0,
        ExprKind::List(all) | ExprKind::Tuple(all) => {
            all.iter().map(|value| value.depth).max().unwrap_or(0)
        }
        ExprKind::Map(all) => {
            all.iter().map(|(key, value)| key.depth.max(value.depth)).max().unwrap_or(0)
        }
        ExprKind::Attribute(value, _)
        | ExprKind::Not(value)
        | ExprKind::Negative(value)
        | ExprKind::Positive(value) => value.depth,
        ExprKind::Item(a, b)
        | ExprKind::Binary(_, a, b)
        | ExprKind::And(a, b)
        | ExprKind::Or(a, b) => a.depth.max(b.depth),
        ExprKind::Slice(value, parts) => {
            parts.iter().flatten().map(|part| part.depth).fold(value.depth, u16::max)
        }
        ExprKind::Call(value, arguments)
        | ExprKind::Filter(value, _, arguments)
        | ExprKind::Test { value, arguments, .. } => value.depth.max(of(arguments)),
        ExprKind::Compare(value, others) => {
            others.iter().map(|(_, other)| other.depth).fold(value.depth, u16::max)
        }
        ExprKind::Choice { condition, yes, no } => {
            condition.depth.max(yes.depth).max(no.as_ref().map_or(0, |no| no.depth))
        }
    };
    if usize::from(depth) > MAX_NESTING {
        return Err(format!("an expression is deeper than {MAX_NESTING} operators"));
    }
    Ok(Expr { line, depth, kind: Box::new(kind) })
}
