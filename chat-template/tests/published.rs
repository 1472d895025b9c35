//! Constructs of published templates, against Jinja2 under the settings of transformers.

use super::*;
use crate::ordered::Ordered;
use serde_json::Value;
use std::{collections::BTreeMap, path::PathBuf};

/// A file of tests/data, which `scripts/chat-template-check --write` makes or reads.
fn data(file: &str) -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/data", file].iter().collect();
    std::fs::read_to_string(path).unwrap()
}

fn goldens() -> Value {
    serde_json::from_str(&data("goldens.json")).unwrap()
}

fn conversations() -> BTreeMap<String, Ordered> {
    serde_json::from_str(&data("conversations.json")).unwrap()
}

fn rendered(template: &str, context: &impl Serialize, now: &Value) -> Result<String, Error> {
    let template = Template::parse(template)?.with_now(now.as_str().unwrap().parse().unwrap());
    template.render(context, &Limits::default())
}

#[test]
fn families_write_what_jinja_writes() {
    let (goldens, conversations) = (goldens(), conversations());
    let templates = goldens["templates"].as_object().unwrap();
    assert!(templates.len() >= 40, "{}", templates.len());
    for (name, cases) in templates {
        let source = data(&format!("templates/{name}.jinja"));
        for (conversation, expected) in cases.as_object().unwrap() {
            let found = rendered(&source, &conversations[conversation], &goldens["now"]);
            match expected["text"].as_str() {
                Some(text) => assert_eq!(found.unwrap(), text, "{name}, {conversation}"),
                None => assert!(found.is_err(), "{name}, {conversation}: {found:?}"),
            }
        }
    }
}

#[test]
fn constructs_write_what_jinja_writes() {
    let (goldens, conversations) = (goldens(), conversations());
    let pieces = data("pieces.txt");
    let pieces: Vec<_> = pieces.lines().collect();
    let expected = goldens["pieces"].as_array().unwrap();
    assert_eq!(pieces.len(), expected.len());
    let mut wrong = Vec::new();
    for (piece, expected) in pieces.into_iter().zip(expected) {
        let found = rendered(piece, &conversations["plain"], &goldens["now"]).ok();
        if found.as_deref() != expected["text"].as_str() && expected["text"].is_string() {
            wrong.push(format!("{piece}\n  gives {found:?}\n  needs {}", expected["text"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn errors_name_function_and_line() {
    let refuses = "{% macro check(x) %}\n{% if x %}\n{{ raise_exception('no tools') }}\n{% endif %}\n{% endmacro %}\n\n{{ check(true) }}";
    for (template, expected) in [
        (refuses, "line 3: `check`: `raise_exception`: no tools"),
        ("\n{{ 'a'.nothing() }}", "line 2: `nothing`: is no method of this value"),
        ("\n\n{{ nothing(1) }}", "line 3: `nothing`: an undefined value is no function"),
        ("{{ 'a' | nothing }}", "line 1: `nothing`: is no filter of chat templates"),
        ("{{ 1 is nothing }}", "line 1: `nothing`: is no test of chat templates"),
        ("{{ '{}'.format() }}", "line 1: `format`: there is no argument 0"),
        ("{{ '%d' | format('x') }}", "line 1: `format`: `%d` of a string"),
        (
            "{{ strftime_now('%s') }}",
            "line 1: `strftime_now`: `%s` needs a time zone, and a local time has none",
        ),
        ("{{ strftime_now() }}", "line 1: `strftime_now`: a format is needed"),
        (
            "{{ messages | map(attribute='role') }}",
            "line 1: a generator cannot be written; `| list` can",
        ),
        (
            "{% call f() %}x{% endcall %}",
            "line 1: the statement `call` is not supported in chat templates, or ends nothing",
        ),
        ("{{ '\\N{BULLET}' }}", "line 1: names of characters are not supported in strings"),
    ] {
        assert_eq!(error(template), expected, "{template}");
    }
}

#[test]
fn the_time_is_local_or_set() {
    let template = Template::parse("{{ strftime_now('%Y-%m-%dT%H:%M:%S') }}").unwrap();
    let render =
        |template: &Template| template.render(&user_context(), &Limits::default()).unwrap();
    let before = LocalTime::now().to_string();
    let text = render(&template);
    assert!(before <= text && text <= LocalTime::now().to_string(), "{before} {text}");
    let set = template.with_now("2024-02-29".parse().unwrap());
    assert_eq!(render(&set), "2024-02-29T00:00:00");
    for invalid in [
        "2026-02-29",
        "2026-13-01",
        "0000-01-01",
        "2026-1-01",
        "2026-01-01T24:00:00",
        "26-01-01",
        "",
        "2026-01-01T00:00",
        "+026-01-01",
    ] {
        assert!(invalid.parse::<LocalTime>().is_err(), "{invalid}");
    }
}

/// Zones that are 26 hours apart never have the same date.
#[cfg(feature = "local-time")]
#[test]
fn the_date_is_of_the_time_zone() {
    let date_in = |zone: &str| {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "published::print_the_date", "--ignored", "--nocapture"]);
        let out = child.env("TZ", zone).output().unwrap().stdout;
        let out = String::from_utf8(out).unwrap();
        out.lines().find_map(|line| Some(line.split_once("date: ")?.1.to_owned())).unwrap()
    };
    assert_ne!(date_in("EAST-14"), date_in("WEST+12"));
}

/// Run by [`the_date_is_of_the_time_zone`] in processes of their own.
#[cfg(feature = "local-time")]
#[test]
#[ignore = "prints for another test"]
fn print_the_date() {
    println!("date: {}", &LocalTime::now().to_string()[..10]);
}

fn user_context() -> Value {
    serde_json::json!({})
}
