//! What templates see of a context, and limits in proportion to it.

use super::*;
use serde_json::{Value, json};

fn rendered(template: &str, context: impl Serialize) -> Result<String, Error> {
    Template::parse(template)?.render(&context, &Limits::default())
}

#[test]
fn contexts_are_values_of_any_shape() {
    let tool = json!({ "name": "add", "parameters": { "type": "object", "required": ["a", "b"] } });
    let context = json!({ "tools": [tool], "flag": false, "count": -3, "share": 0.5, "no": null });
    let text = rendered(
        "{{ tools[0].parameters.required | join }} {{ flag }} {{ count }} {{ share }} {{ no }} {{ absent is defined }}",
        &context,
    );
    assert_eq!(text.unwrap(), "ab False -3 0.5 None False");
    #[derive(Serialize)]
    enum Kind {
        Plain,
        Of(u8),
    }
    #[derive(Serialize)]
    struct Mixed {
        z: (u64, char),
        a: Option<Kind>,
        m: Kind,
        none: Option<()>,
    }
    let mixed = Mixed { z: (7, 'é'), a: Some(Kind::Plain), m: Kind::Of(1), none: None };
    let context = std::collections::HashMap::from([("all", mixed)]);
    // Keys keep the order of the fields.
    let text = rendered("{{ all | tojson }}", context).unwrap();
    assert_eq!(text, r#"{"z": [7, "é"], "a": "Plain", "m": {"Of": 1}, "none": null}"#);
}

#[test]
fn contexts_that_are_not_supported_are_errors() {
    let refused = |context: &dyn Fn() -> Result<String, Error>| match context() {
        Err(Error::Context(message)) => message,
        other => panic!("{other:?}"),
    };
    let nested = (0..100).fold(Value::Null, |inner, _| json!([inner]));
    assert_eq!(refused(&|| rendered("", json!({ "x": nested }))), "nested deeper than 60 times");
    assert_eq!(refused(&|| rendered("", json!([1]))), "a list where an object is needed");
    assert_eq!(
        refused(&|| rendered("", json!({ "x": u64::MAX }))),
        "18446744073709551615 is out of range"
    );
    let keys = std::collections::HashMap::from([(1, 2)]);
    assert_eq!(refused(&|| rendered("", &keys)), "a number as a key");
}

#[test]
fn values_are_in_proportion_to_the_context() {
    let template = |count: usize| format!("{{% set x = 'a' * {count} %}}{{{{ x | length }}}}");
    assert_eq!(render(&template(1 << 20), &[]).unwrap(), "1048576");
    assert!(error(&template(20 << 20)).contains("take more than 16 MiB"));
    assert!(render(&template(20 << 20), &user(&"a".repeat(1 << 20))).is_ok());
    // Many keys take no steps for each pair of them.
    let keys: serde_json::Map<_, _> = (0..200_000).map(|i| (i.to_string(), Value::Null)).collect();
    assert_eq!(rendered("{{ x | length }}", json!({ "x": keys })).unwrap(), "200000");
}

#[test]
fn limits_are_adjustable() {
    let template =
        Template::parse("{% for i in range(1000) %}{{ 'abcd' * 250 }}{% endfor %}").unwrap();
    let render = |limits| template.render(&json!({}), &limits);
    let limits = Limits::default();
    assert_eq!(render(limits).unwrap().len(), 1_000_000);
    let bytes = |output| match render(Limits { output: Some(output), ..limits }) {
        Err(Error::OutputTooLong { bytes }) => bytes,
        other => panic!("{:?}", other.map(|text| text.len())),
    };
    assert_eq!((bytes(999_999), bytes(2500), bytes(0)), (1_000_000, 3000, 1000));
    assert!(render(Limits { output: Some(1_000_000), ..limits }).is_ok());
    let message = |limits| render(limits).unwrap_err().to_string();
    assert_eq!(
        message(Limits { steps: 500, ..limits }),
        "line 1: `range`: the template takes too many steps"
    );
    assert!(message(Limits { values: 1 << 20, ..limits }).contains("take more than 1 MiB"));
}

#[test]
fn templates_are_shared_between_threads() {
    let template = Template::parse("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(n) }}").unwrap();
    let render = |n: usize| template.render(&json!({ "n": n }), &Limits::default()).unwrap();
    let texts: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || render(n))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(texts, ["<0>", "<1>", "<2>", "<3>"]);
}
