//! A parsed template.

/// A statement and the line that it is on.
#[derive(Debug)]
pub struct Stmt {
    pub line: u32,
    pub kind: StmtKind,
}

#[derive(Debug)]
pub enum StmtKind {
    Raw(String),
    Emit(Expr),
    For {
        target: Target,
        iter: Expr,
        filter: Option<Expr>,
        body: Vec<Stmt>,
        otherwise: Vec<Stmt>,
    },
    If {
        branches: Vec<(Expr, Vec<Stmt>)>,
        otherwise: Vec<Stmt>,
    },
    Set {
        target: Target,
        value: Expr,
    },
    /// `{% set x | filter %} .. {% endset %}`; the value is [`CAPTURED`] in it.
    SetBlock {
        target: Target,
        value: Expr,
        body: Vec<Stmt>,
    },
    FilterBlock {
        value: Expr,
        body: Vec<Stmt>,
    },
    /// A scope: `with`, and `generation` without variables.
    With {
        variables: Vec<(Target, Expr)>,
        body: Vec<Stmt>,
    },
    Macro {
        name: String,
        definition: std::sync::Arc<Macro>,
    },
    Break,
    Continue,
}

/// The name of what a block wrote, in the filters of the block. No template's name has a blank.
pub const CAPTURED: &str = "what was written";

#[derive(Debug)]
pub struct Macro {
    pub name: String,
    pub parameters: Vec<(String, Option<Expr>)>,
    pub body: Vec<Stmt>,
}

#[derive(Debug)]
pub enum Target {
    Name(String),
    /// An attribute of a namespace.
    Attribute(String, String),
    Several(Vec<Target>),
}

/// An expression, the line that it is on, and how deep it is: no evaluation recurses deeper.
#[derive(Debug)]
pub struct Expr {
    pub line: u32,
    pub depth: u16,
    pub kind: Box<ExprKind>,
}

#[derive(Debug)]
pub enum ExprKind {
    Constant(Constant),
    Name(String),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    Attribute(Expr, String),
    Item(Expr, Expr),
    Slice(Expr, [Option<Expr>; 3]),
    Call(Expr, Arguments),
    Filter(Expr, String, Arguments),
    Test {
        value: Expr,
        name: String,
        arguments: Arguments,
        negated: bool,
    },
    Not(Expr),
    Negative(Expr),
    Positive(Expr),
    Binary(&'static str, Expr, Expr),
    /// `a < b <= c`
    Compare(Expr, Vec<(&'static str, Expr)>),
    And(Expr, Expr),
    Or(Expr, Expr),
    /// `a if condition else b`
    Choice {
        condition: Expr,
        yes: Expr,
        no: Option<Expr>,
    },
}

#[derive(Debug)]
pub enum Constant {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
}

#[derive(Debug, Default)]
pub struct Arguments {
    pub positional: Vec<Expr>,
    pub named: Vec<(String, Expr)>,
    /// `*list`: more positional arguments.
    pub list: Option<Expr>,
    /// `**dictionary`: more named arguments.
    pub dictionary: Option<Expr>,
}
