//! Grammars in llama.cpp's syntax: texts that they allow and do not allow, errors, and hostile ones.

use super::{hostile::made, *};

/// Constructs of the grammars that llama.cpp comes with.
const ARITHMETIC: &str = r#"
root  ::= (sum "=" gap factor "\n")+
sum   ::= product ([-+] gap product)*
product ::= factor ([*/] gap factor)*
factor  ::= name | number | "(" gap sum ")" gap
name  ::= [a-z] [a-z0-9_]* gap
number ::= [0-9]+ gap
gap   ::= [ \t\n]*
"#;

const JSON: &str = r#"
# A value, with an object at the beginning.
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # what is escaped
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;

const LIST: &str =
    "root ::= item+\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"\n";

const CHESS: &str = r#"
root ::= (
    # The first move
    "1. " move " " move "\n"
    # and the others
    ([1-9] [0-9]? ". " move " " move "\n")+
)
move ::= (pawn | piece | castle) [+#]?
piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"#;

const C: &str = r#"
root ::= (declaration)*
declaration ::= dataType identifier "(" parameter? ")" "{" statement* "}"
dataType ::= "int" ws | "float" ws | "char" ws
identifier ::= [a-zA-Z_] [a-zA-Z_0-9]*
parameter ::= dataType identifier
statement ::=
    ( dataType identifier ws "=" ws expression ";" ) |
    ( identifier ws "=" ws expression ";" ) |
    ( "return" ws expression ";" ) |
    ( "while" "(" condition ")" "{" statement* "}" ) |
    ( singleLineComment )
condition ::= expression ("<=" | "<" | "==") expression
expression ::= term (("+" | "-") term)*
term ::= identifier | number | "(" expression ")"
number ::= [0-9]+
singleLineComment ::= "//" [^\n]* "\n"
ws ::= ([ \t\n]+)
"#;

/// Returns whether a text is one of a grammar, by its tokens.
fn accepts(grammar: &Grammar, tokenizer: &Tokenizer, text: &str) -> bool {
    let ends = tokenizer.eos();
    let mut walk = GrammarWalk::new(grammar, tokenizer, ends).unwrap();
    let ids = tokenizer.encode_plain(text).unwrap();
    ids.into_iter().all(|id| !walk.is_complete() && walk.append(id).is_ok())
        && (walk.is_complete() || walk.allowed().iter().any(|id| ends.contains(id)))
}

#[test]
fn gbnf_texts_are_accepted_exactly() {
    let cases = [
        (
            ARITHMETIC,
            &["a+b1=12\n", "(x_1*2)/3 - y= 4\n", "1=1\n2+2=4\n"][..],
            &["a+b\n", "=1\n", "(1=1\n", "A=1\n"][..],
        ),
        (
            JSON,
            &[
                r#"{"a": [1, -2.5e3, true], "b\n": {"ü\u00e9": null}}"#,
                "{}",
                "{\n  \"x\": \"true\"}",
            ],
            &["[1]", r#"{"a" 1}"#, r#"{"a": 01}"#, r#"{"a": "\x"}"#, r#"{"a": tru}"#],
        ),
        (LIST, &["- one\n- two, ü\n"], &["- \n", "-one\n", "- a\r\n", "- a\u{85}\n"]),
        (
            CHESS,
            &["1. e4 e5\n2. Nf3 Nc6\n13. O-O-O exd8=Q+\n"],
            &["1. e4 e5\n", "1. e9 e5\n2. a3 a4\n"],
        ),
        (
            C,
            // Names that begin as keywords do.
            &[
                "",
                "int f(int integer){integer = x+1;return returned;}",
                "char w(){while(a<=b){whiles = 1;}//int\n}",
            ],
            &["int f(", "int 1(){}", "intf(){}", "int f(){while(a=b){}}"],
        ),
        ("root ::= [a-c]+ \"bc\"", &["abc", "bcbc", "cccbc"], &["bc", "abcb", ""]),
        (
            "root ::= (\"a\" | \"ab\") (\"c\" | \"bc\")?",
            &["a", "ab", "ac", "abc", "abbc"],
            &["abcc", "b", ""],
        ),
        ("root ::= \"(\" root \")\" | [^()]", &["((x))", "(é)", "→"], &["((x)", "()"]),
        (
            "root ::= x{2} x{,1} y{1,} z{0,0}\nx ::= .\ny ::= \"\\x41\\u00e9\\U0001F600\"\nz ::= root",
            &["\n\nAé😀", "abcAé😀Aé😀"],
            &["aAé😀", "ab"],
        ),
        (
            "root ::= a |\n  \"\" # nothing\n | [\\]\\-^]\na ::=\n \"x\" b?\nb-2 ::= b\r\nb ::= [a-]",
            &["", "xa", "x-", "]", "-", "^"],
            &["xb", "xx", "\\"],
        ),
        ("root ::= [^\\uE000-\\U0010FFFF]\n", &["a", "\u{d7ff}"], &["\u{e000}", "😀"]),
    ];
    for (source, right, wrong) in cases {
        check(source, right, wrong);
    }
}

/// Checks texts that a grammar allows, and texts that it does not.
fn check(source: &str, right: &[&str], wrong: &[&str]) {
    let grammar = Grammar::gbnf(source).unwrap_or_else(|error| panic!("{error}: {source}"));
    let all = right.iter().map(|text| (text, true));
    for (text, right) in all.chain(wrong.iter().map(|text| (text, false))) {
        assert_eq!(accepts(&grammar, &TOKENIZER, text), right, "{text:?} by {source}");
    }
}

/// A string would be one lexeme, and hide the name that begins as it does.
#[test]
fn ambiguous_strings_are_read_by_characters() {
    check(
        r#"
root ::= "{" ("\"name\"" ":" | string "=") root? "}"
string ::= "\"" [^"]* "\""
"#,
        &[r#"{"name":}"#, r#"{"x"=}"#, r#"{"name"=}"#, r#"{"name":{"y"={"name":}}}"#],
        &[r#"{"x":}"#, r#"{"name"}"#, r#"{"name":{"y":}}"#],
    );
}

#[test]
fn spaces_may_precede_operators() {
    check(
        "root ::= \"a\" * ( \"b\"\n {2} \"c\" \t+ ) ?",
        &["", "aaa", "abbc", "bbccc"],
        &["ab", "bbb", "bbcbbc"],
    );
}

/// Parsers of regular expressions do not go so deep: these rules are not one expression.
#[test]
fn deep_rules_are_no_expression() {
    let rules: String = (0..190).map(|n| format!("r{n} ::= \"x\" r{}?\n", n + 1)).collect();
    let source = format!("root ::= r0\n{rules}r190 ::= \"y\"\n");
    let most = "x".repeat(190);
    check(&source, &["x", "xxx", &most, &format!("{most}y")], &["", "y", "xy", &"x".repeat(191)]);
}

#[test]
fn random_gbnf_texts_are_accepted_by_others() {
    type Check<'a> = &'a dyn Fn(&str) -> bool;
    let move_ = r"(([a-h]x)?[a-h][1-8](=[NBKQR])?|[NBKQR][a-h]?[1-8]?x?[a-h][1-8]|O-O(-O)?)[+#]?";
    let chess =
        regex::Regex::new(&format!(r"^1\. {move_} {move_}\n([1-9][0-9]?\. {move_} {move_}\n)+$"));
    let (chess, list) = (chess.unwrap(), regex::Regex::new("^(- [^\r\n]+\n)+$").unwrap());
    let is_json =
        |text: &str| serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object());
    let cases: [(&str, Check); 3] = [
        (CHESS, &|text| chess.is_match(text)),
        (LIST, &|text| list.is_match(text)),
        (JSON, &is_json),
    ];
    for (seed, (source, is_right)) in (0..).zip(cases) {
        let (grammar, rng) = (Grammar::gbnf(source).unwrap(), &mut SmallRng::seed_from_u64(seed));
        let texts: Vec<String> =
            (0..30).filter_map(|_| random_text(&grammar, &TOKENIZER, rng, 400).unwrap()).collect();
        assert!(texts.len() > 5, "{source}: {texts:?}");
        for text in texts {
            assert!(is_right(&text), "{text:?} by {source}");
        }
    }
}

#[test]
fn errors_of_gbnf_have_line_and_column() {
    let cases = [
        ("", "no rule `root`"),
        ("a ::= \"x\"", "no rule `root`"),
        (
            "root ::= a\nroot ::= \"b\"\na ::= \"c\"",
            "line 2, column 1: the rule `root` is defined twice",
        ),
        ("root ::= \"ü\" a", "line 1, column 14: there is no rule `a`"),
        ("root := \"a\"", "line 1, column 6: expected `::=`, found `:`"),
        ("root ::= \"a", "line 1, column 10: `\"` without `\"`"),
        ("root ::= \"a\nb\"", "line 1, column 10: `\"` without `\"`"),
        ("root ::= [a", "line 1, column 10: `[` without `]`"),
        ("root ::=\n  (\"a\"", "line 2, column 3: `(` without `)`"),
        ("root ::= (\"a\" ]", "line 1, column 15: expected `)`, found `]`"),
        ("root ::= \"a\")", "line 1, column 13: expected a literal"),
        ("root ::= \"a\" b ::= \"c\"", "line 1, column 14: expected a literal"),
        ("root ::= \"a\"\n\"b\"", "line 2, column 1: expected a rule"),
        ("root ::= *", "line 1, column 10: expected a literal"),
        ("root ::= \"a\"+*", "line 1, column 14: an operator cannot follow another"),
        ("root ::= \"a\"{2", "line 1, column 13: `{` without `}`"),
        ("root ::= \"a\"{2,1}", "line 1, column 13: expected `{m}`"),
        ("root ::= \"a\"{x}", "line 1, column 13: expected `{m}`"),
        ("root ::= \"a\"{}", "line 1, column 13: expected `{m}`"),
        ("root ::= \"a\"{3000}", "at most 2000 is accepted"),
        ("root ::= [z-a]", "line 1, column 11: the first character of a range"),
        ("root ::= []", "line 1, column 10: a class needs a character"),
        ("root ::= \"\\q\"", "line 1, column 11: unknown escape"),
        ("root ::= \"\\x4\"", "line 1, column 11: this escape has 2"),
        ("root ::= \"\\x4ü\"", "line 1, column 11: this escape has 2"),
        ("root ::= [\\uD800]", "line 1, column 11: this is no character"),
        ("root ::= <think> \"a\"", "line 1, column 10: tokens such as `<think>`"),
        ("root ::= !<[1000]>", "line 1, column 10: tokens such as `!<[1000]>`"),
        ("root ::= root", "no finite text"),
        ("root ::= \"a\" root", "no finite text"),
    ];
    for (source, expected) in cases {
        let message = grammar_error(Grammar::gbnf(source));
        assert!(message.contains(expected), "{source}: {message}");
    }
}

#[test]
fn hostile_gbnf_is_bounded() {
    let nested = |depth: usize| format!("root ::= {}\"a\"{}", "(".repeat(depth), ")".repeat(depth));
    let repeated =
        |depth: usize| format!("root ::= {}\"a\"{}", "(".repeat(depth), ")*".repeat(depth));
    let chain = |rules: usize, last: &str, open: usize| {
        let (open, close) = ("(".repeat(open), " | \"b\")".repeat(open));
        let all: String =
            (0..rules).map(|n| format!("r{n} ::= {open}r{}{close}\n", n + 1)).collect();
        format!("root ::= r0\n{all}r{rules} ::= {last}")
    };
    let doubled: String = (0..60).map(|n| format!("r{n} ::= r{0} r{0}\n", n + 1)).collect();
    let wide: Vec<String> = (0..1500).map(|n| format!("\"w{n}\"")).collect();
    let sources = [
        nested(200),
        repeated(200),
        chain(1990, "\"a\"", 0),
        chain(1990, "\"a\" r0?", 0),
        chain(200, "\"a\" r0?", 50),
        chain(200, "\"a\"", 50),
        format!("root ::= r0\n{doubled}r60 ::= \"a\""),
        format!("root ::= r0\n{doubled}r60 ::= \"\""),
        format!("root ::= \"x\" root | {}", wide.join(" | ")),
        format!("root ::= {}", wide.join(" | ")),
        format!("root ::= \"{}\"", "a".repeat(9_000)),
        format!("root ::= root? \"{}\"", "a".repeat(9_000)),
        "root ::= root root | root root root | \"a\" | \"\"".into(),
        "root ::= ((([a-z]{2000}){2000}){2000}){2000} root?".into(),
        "root ::= ((\"a\"{0,2000}){0,2000}){0,2000}".into(),
        "root ::= (\"a\" | \"b\")* \"a\" (\"a\" | \"b\"){60}".into(),
    ];
    for source in sources {
        made(&source[..source.len().min(40)], || Grammar::gbnf(&source));
    }
    for (source, expected) in [
        (nested(201), "nested more than 200 deep"),
        (nested(100_000), "nested more than 200 deep"),
        (chain(2100, "\"a\"", 0), "at most 2000 rules"),
        (format!("root ::= \"{}\"", "a".repeat(21_000)), "at most 20000 characters"),
        (format!("root ::= \"{}\"", "a".repeat(2 << 20)), "at most 1048576"),
    ] {
        let message = grammar_error(Grammar::gbnf(&source));
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn syntax_of_a_grammar_is_detected() {
    for gbnf in ["root ::= \"a\"", "\n # x: y\n\tab-c::= \"a\"\nroot ::= ab-c"] {
        assert!(accepts(&Grammar::detect(gbnf).unwrap(), &TOKENIZER, "a"));
    }
    for lark in ["start: \"::=\"", "// root ::= x\nstart: \"::=\""] {
        assert!(accepts(&Grammar::detect(lark).unwrap(), &TOKENIZER, "::="));
    }
    assert!(grammar_error(Grammar::detect("root ::= a")).contains("line 1, column 10"));
    assert!(!grammar_error(Grammar::detect("start: a")).contains("column 10"));
}
