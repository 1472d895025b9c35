//! Threadgroup variables in C++, which has no local variables in an address space.

use crate::{
    rewrite::Tokens,
    text::{Kind, Token, tokens},
};

/// Metal's limit on all GPUs.
const MOST_BYTES: u32 = 32768;

/// Makes threadgroup variables of functions static, and adds assertions of their size.
pub fn with_static(expanded: &str) -> String {
    let tokens = tokens(expanded);
    let (mut text, mut braces, mut previous) = (String::new(), 0, ";");
    // The variables of the current function so far, and where the last one's declaration ends.
    let (mut names, mut end) = (Vec::new(), None);
    for (at, token) in tokens.iter().enumerate() {
        let starts = braces > 0 && matches!(previous, ";" | "{" | "}");
        if starts && token.text == "threadgroup" && Tokens(&tokens).declares_storage(at) {
            text += "static ";
            end = Tokens(&tokens).find(at, ";");
            names.push(name(&tokens[at..]));
        }
        text += token.text;
        match token.text {
            "{" => braces += 1,
            "}" => braces -= 1,
            _ => {}
        }
        if end == Some(at) {
            let bytes: Vec<_> = names.iter().map(|name| format!("sizeof({name})")).collect();
            text += &format!(
                " static_assert({} <= {MOST_BYTES}, \"more than 32 KiB of threadgroup memory\");",
                bytes.join(" + ")
            );
        }
        if braces == 0 {
            names.clear();
        }
        if !matches!(token.kind, Kind::Space | Kind::Directive) {
            previous = token.text;
        }
    }
    text
}

/// The name that a declaration such as `threadgroup float tree[64];` declares.
fn name<'a>(declaration: &[Token<'a>]) -> &'a str {
    let head = declaration.iter().take_while(|token| !matches!(token.text, "[" | ";" | "="));
    head.filter(|token| token.kind == Kind::Word).last().map_or("", |token| token.text)
}

#[cfg(test)]
mod tests {
    use super::with_static;

    #[test]
    fn variables_become_static_and_pointers_do_not() {
        let text = "kernel void k() { threadgroup float a[2 * N]; threadgroup uint b; threadgroup float* p = a; }";
        let limit = "<= 32768, \"more than 32 KiB of threadgroup memory\");";
        let expected = format!(
            "kernel void k() {{ static threadgroup float a[2 * N]; static_assert(sizeof(a) {limit} static threadgroup uint b; \
             static_assert(sizeof(a) + sizeof(b) {limit} threadgroup float* p = a; }}"
        );
        assert_eq!(with_static(text), expected);
    }
}
