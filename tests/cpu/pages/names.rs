//! Names of tests: a few words that say what holds.

use support::{repository, sources_below};

const MOST_WORDS: usize = 8;

/// Returns the names of the tests in a text of Rust sources.
fn test_names(sources: &str) -> Vec<&str> {
    let (mut names, mut after_attribute) = (Vec::new(), false);
    for line in sources.lines().map(str::trim_start) {
        after_attribute |= line == "#[test]";
        let function = line.split_once("fn ").filter(|_| after_attribute);
        let on_each = ["each_device!(", "each_engine!("];
        let on_each = on_each.iter().find_map(|start| line.split_once(start));
        if let Some((_, rest)) = function.or(on_each) {
            let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next();
            names.extend(name.filter(|name| !name.is_empty()));
            after_attribute = false;
        }
    }
    names
}

#[test]
fn test_names_have_few_words() {
    let folders =
        ["src", "tests", "cli", "coreml", "serve", "chat-template", "benches", "examples", "train"];
    let sources = folders.map(|folder| sources_below(&repository(folder))).concat();
    let names = test_names(&sources);
    assert!(names.len() > 500, "{} tests", names.len());
    let words = |name: &str| name.split('_').filter(|word| !word.is_empty()).count();
    let long: Vec<_> = names.into_iter().filter(|name| words(name) > MOST_WORDS).collect();
    assert!(long.is_empty(), "more than {MOST_WORDS} words: {long:#?}");
}
