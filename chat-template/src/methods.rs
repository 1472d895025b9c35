//! Names and parameters of methods.

use crate::value::{Shape, Value};

/// Returns whether a value has a method of this name that changes nothing.
pub fn is_method(value: &Value, name: &str) -> bool {
    let methods: &[&str] = match value {
        Value::Str(_) => return parameters(name).is_some(),
        Value::Bytes(_) => &["decode", "hex"],
        Value::Map(_) => &["items", "keys", "values", "get", "copy"],
        Value::List(items) => match items.shape().class() {
            Shape::List => &["index", "count", "copy"],
            Shape::Tuple => &["index", "count"],
            _ => &[],
        },
        Value::Float(_) => &["is_integer"],
        _ => &[],
    };
    methods.contains(&name)
}

/// Most positional arguments of a method of strings, and those that may have names.
pub fn parameters(method: &str) -> Option<(usize, &'static [&'static str])> {
    Some(match method {
        "split" | "rsplit" => (2, &["sep", "maxsplit"]),
        "replace" => (3, &["count"]),
        "splitlines" => (1, &["keepends"]),
        "expandtabs" => (1, &["tabsize"]),
        "encode" => (2, &["encoding", "errors"]),
        "strip" | "lstrip" | "rstrip" | "join" | "partition" | "rpartition" | "removeprefix"
        | "removesuffix" | "zfill" => (1, &[]),
        "ljust" | "rjust" | "center" => (2, &[]),
        "startswith" | "endswith" | "find" | "rfind" | "index" | "rindex" | "count" => (3, &[]),
        "format" => (usize::MAX, &[]),
        "upper" | "lower" | "casefold" | "title" | "capitalize" | "swapcase" | "isdigit"
        | "isdecimal" | "isnumeric" | "isalpha" | "isalnum" | "isascii" | "isspace" | "islower"
        | "isupper" => (0, &[]),
        _ => return None,
    })
}
