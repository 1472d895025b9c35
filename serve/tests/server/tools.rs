//! Tool calls by the three APIs. The shipped model knows no tools: grammars make it call them.

use crate::{
    Served,
    client::{post, send},
    cpu, with,
};
use bitnet_wgpu::model::{Model, Tokenizer};
use serde_json::{Value, json};

/// A template that writes tools and calls as Qwen's do.
pub const TEMPLATE: &str = "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}{{ '\\n' }}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

pub fn tokenizer(template: &str) -> Tokenizer {
    cpu().tokenizer().unwrap().with_chat_template(template)
}

pub fn served() -> Served {
    served_by(&cpu())
}

pub fn served_by(model: &Model) -> Served {
    Served::new(model, 2, 8, |options| options.tokenizer(Some(tokenizer(TEMPLATE))))
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": { "city": { "enum": ["Oslo", "Rome"] }, "days": { "type": "integer", "minimum": 1, "maximum": 7 } },
        "required": ["city", "days"],
        "additionalProperties": false,
    })
}

pub fn weather() -> Value {
    let description = "Tells the weather.";
    json!({ "type": "function", "function": { "name": "weather", "description": description, "parameters": schema() } })
}

pub fn add() -> Value {
    json!({ "type": "function", "function": { "name": "add", "parameters": {
        "type": "object", "properties": { "a": { "type": "boolean" } }, "required": ["a"], "additionalProperties": false,
    } } })
}

pub fn user() -> Value {
    json!([{ "role": "user", "content": "How is the weather in Oslo?" }])
}

/// Checks that these are arguments of `weather`.
pub fn check_weather(arguments: &Value) {
    let city = arguments["city"].as_str().unwrap();
    assert!(["Oslo", "Rome"].contains(&city), "{arguments}");
    assert!((1..=7).contains(&arguments["days"].as_u64().unwrap()), "{arguments}");
    assert_eq!(arguments.as_object().unwrap().len(), 2);
}

pub fn parsed(arguments: &Value) -> Value {
    serde_json::from_str(arguments.as_str().unwrap()).unwrap()
}

#[test]
fn forced_calls_conform_to_their_schemas() {
    let server = served();
    let ask = |more: &[(&str, Value)]| {
        let body = json!({ "messages": user(), "tools": [weather(), add()], "max_tokens": 100, "temperature": 0.8, "seed": 3 });
        let answer = post(&server.address, "/v1/chat/completions", &with(body, more));
        assert!(answer.status == 200, "{}", answer.json());
        answer
    };
    for (choice, names) in [
        (json!("required"), &["weather", "add"][..]),
        (json!({ "type": "function", "function": { "name": "weather" } }), &["weather"]),
        (json!({ "type": "function", "function": { "name": "add" } }), &["add"]),
    ] {
        let choice = [("tool_choice", choice), ("parallel_tool_calls", false.into())];
        let whole = ask(&choice).json()["choices"][0].clone();
        let calls = whole["message"]["tool_calls"].as_array().unwrap();
        assert_eq!((&whole["finish_reason"], calls.len()), (&json!("tool_calls"), 1), "{whole}");
        assert_eq!(whole["message"]["content"], Value::Null);
        let (call, function) = (&calls[0], &calls[0]["function"]);
        assert!(names.contains(&function["name"].as_str().unwrap()), "{call}");
        assert_eq!((&call["type"], call["id"].as_str().unwrap().len()), (&json!("function"), 9));
        let arguments = parsed(&function["arguments"]);
        if function["name"] == "weather" {
            check_weather(&arguments);
        } else {
            assert!(arguments["a"].is_boolean(), "{arguments}");
        }
        // Streamed, it is the same in pieces.
        let streamed = [&choice[..], &[("stream", Value::from(true))]].concat();
        let chunks = ask(&streamed).chunks();
        let deltas =
            chunks.iter().flat_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array());
        let entries: Vec<&Value> = deltas.flatten().collect();
        let begun = entries.iter().filter(|entry| entry["id"].is_string());
        let names: Vec<&Value> = begun.map(|entry| &entry["function"]["name"]).collect();
        assert_eq!(names, [&function["name"]], "the name comes once");
        assert!(
            entries.len() > 2 && entries.iter().all(|entry| entry["index"] == 0),
            "{entries:?}"
        );
        let pieces = entries.iter().filter_map(|entry| entry["function"]["arguments"].as_str());
        assert_eq!(pieces.collect::<String>(), function["arguments"].as_str().unwrap());
        let last = &chunks.last().unwrap()["choices"][0];
        assert_eq!(last["finish_reason"], "tool_calls");
    }
}

#[test]
fn results_of_calls_go_into_the_prompt() {
    let server = served();
    let call = |arguments: &str| json!({ "id": "a1", "type": "function", "function": { "name": "weather", "arguments": arguments } });
    let messages = json!([
        { "role": "user", "content": "Oslo?" },
        { "role": "assistant", "content": null, "tool_calls": [call("{\"days\": 1, \"city\": \"Oslo\"}")] },
        { "role": "tool", "tool_call_id": "a1", "content": "Rain." },
    ]);
    let tokens = |path: &str, body: &Value| {
        let answer = post(&server.address, path, body);
        assert!(answer.status == 200, "{}", answer.json());
        answer.json()
    };
    let body = json!({ "messages": messages, "tools": [weather()] });
    let ids = tokens("/tokenize", &body)["tokens"].clone();
    let text =
        tokens("/detokenize", &json!({ "tokens": ids }))["prompt"].as_str().unwrap().to_owned();
    assert!(text.contains("\"description\": \"Tells the weather.\""), "{text}");
    // As the caller ordered them.
    let turn = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"days\": 1, \"city\": \"Oslo\"}}\n</tool_call>\ntool: Rain.\nassistant: ";
    assert!(text.ends_with(turn), "{text}");
    // The other APIs write the same prompt.
    let count = ids.as_array().unwrap().len();
    let chat = tokens("/v1/chat/completions", &with(body, &[("max_tokens", 1.into())]));
    assert_eq!(chat["usage"]["prompt_tokens"], count);
    let input = json!([
        { "role": "user", "content": "Oslo?" },
        { "type": "function_call", "id": "fc_1", "call_id": "a1", "name": "weather", "arguments": "{\"days\": 1, \"city\": \"Oslo\"}" },
        { "type": "function_call_output", "call_id": "a1", "output": "Rain." },
    ]);
    let mut function = weather()["function"].clone();
    function["type"] = "function".into();
    let body = json!({ "input": input, "tools": [function], "max_output_tokens": 1 });
    assert_eq!(tokens("/v1/responses", &body)["usage"]["input_tokens"], count);
    let messages = json!([
        { "role": "user", "content": "Oslo?" },
        { "role": "assistant", "content": [{ "type": "tool_use", "id": "a1", "name": "weather", "input": { "days": 1, "city": "Oslo" } }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "a1", "content": "Rain." }] },
    ]);
    let tool =
        json!({ "name": "weather", "description": "Tells the weather.", "input_schema": schema() });
    let body = json!({ "messages": messages, "tools": [tool] });
    assert_eq!(tokens("/v1/messages/count_tokens", &body)["input_tokens"], count);
}

#[test]
fn wrong_tools_are_named() {
    let server = served();
    let function = |function: Value| json!([{ "type": "function", "function": function }]);
    let named = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let call = |arguments: &str| json!([{ "id": "a", "type": "function", "function": { "name": "add", "arguments": arguments } }]);
    let said = |calls: Value| json!([{ "role": "assistant", "tool_calls": calls }]);
    for (field, value, param, what) in [
        ("tools", json!({}), "tools", "a list"),
        ("tools", json!(vec![add(); 129]), "tools", "at most 128"),
        ("tools", json!([{ "function": {} }]), "tools[0].type", "missing"),
        ("tools", json!([{ "type": "web_search" }]), "tools[0].type", "only `function`"),
        ("tools", json!([{ "type": "function" }]), "tools[0].function", "missing"),
        ("tools", function(json!({})), "tools[0].function.name", "missing"),
        (
            "tools",
            function(json!({ "name": "a b" })),
            "tools[0].function.name",
            "1 to 128 characters",
        ),
        ("tools", function(json!({ "name": "" })), "tools[0].function.name", "1 to 128 characters"),
        (
            "tools",
            function(json!({ "name": "a", "parameters": [] })),
            "tools[0].function.parameters",
            "a list",
        ),
        (
            "tools",
            function(json!({ "name": "a", "parameters": { "type": "string" } })),
            "tools[0].function.parameters",
            "not of objects",
        ),
        (
            "tools",
            function(json!({ "name": "a", "strict": 1 })),
            "tools[0].function.strict",
            "true or false",
        ),
        ("tools", json!([add(), add()]), "tools", "the name `add`"),
        ("tool_choice", json!("some"), "tool_choice", "none, auto, required"),
        ("tool_choice", named("sub"), "tool_choice", "`sub` is not in `tools`"),
        ("tool_choice", json!({ "type": "custom" }), "tool_choice.type", "only `function`"),
        ("parallel_tool_calls", json!(1), "parallel_tool_calls", "true or false"),
        (
            "messages",
            json!([{ "role": "tool", "content": "x" }]),
            "messages[0].tool_call_id",
            "missing",
        ),
        (
            "messages",
            json!([{ "role": "tool", "content": "x", "tool_call_id": "b" }]),
            "messages[0].tool_call_id",
            "`b`",
        ),
        ("messages", said(json!([{}])), "messages[0].tool_calls[0].id", "missing"),
        (
            "messages",
            said(call("[]")),
            "messages[0].tool_calls[0].function.arguments",
            "a JSON object",
        ),
        (
            "messages",
            said(call("{")),
            "messages[0].tool_calls[0].function.arguments",
            "a JSON object",
        ),
        (
            "messages",
            json!([{ "role": "user", "content": "x", "tool_calls": call("{}") }]),
            "messages[0].tool_calls",
            "not supported",
        ),
    ] {
        let body = with(
            json!({ "messages": user(), "max_tokens": 1 }),
            &[("tools", json!([add()])), (field, value.clone())],
        );
        let answer = post(&server.address, "/v1/chat/completions", &body);
        let (status, error) = (answer.status, answer.json()["error"].clone());
        assert_eq!((status, &error["param"]), (400, &json!(param)), "{value}: {error}");
        assert!(error["message"].as_str().unwrap().contains(what), "{value}: {error}");
    }
}

/// Templates write integers of 64 bits.
#[test]
fn large_integers_of_calls_are_errors() {
    let server = served();
    let chat = |arguments: &str| {
        let call = json!({ "id": "a", "type": "function", "function": { "name": "add", "arguments": arguments } });
        let messages = json!([{ "role": "assistant", "tool_calls": [call] }, { "role": "tool", "tool_call_id": "a", "content": "x" }]);
        let body = json!({ "messages": messages, "max_tokens": 1 });
        post(&server.address, "/v1/chat/completions", &body)
    };
    for fine in ["{\"a\": -9223372036854775808}", "{\"a\": 1e300, \"b\": \"99999999999999999999\"}"]
    {
        assert_eq!(chat(fine).status, 200, "{fine}");
    }
    let wrong = chat("{\"a\": [99999999999999999999]}");
    let (status, error) = (wrong.status, wrong.json()["error"].clone());
    assert_eq!((status, &error["param"]), (400, &json!("messages")), "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("`add`: the integer 99999999999999999999 is not a signed 64-bit integer"),
        "{message}"
    );
    // Anthropic's API has objects, whose numbers are read with the request.
    for (number, expected) in [("99999999999999999999", 400), ("9007199254740993", 200)] {
        let body = format!(
            r#"{{ "max_tokens": 1, "messages": [{{ "role": "assistant", "content": [{{ "type": "tool_use", "id": "a", "name": "add", "input": {{ "a": [{number}] }} }}] }}, {{ "role": "user", "content": [{{ "type": "tool_result", "tool_use_id": "a" }}] }}] }}"#
        );
        let answer = send(&server.address, "POST /v1/messages", &[], body.as_bytes()).unwrap();
        let (status, object) = (answer.status, answer.json());
        assert_eq!(status, expected, "{object}");
        let message = object["error"]["message"].as_str().unwrap_or("messages[0].content[0].input");
        assert!(message.contains("messages[0].content[0].input"), "{message}");
    }
}

#[test]
fn forced_calls_need_tools() {
    let server = served();
    let body = json!({ "messages": user(), "tool_choice": "required", "max_tokens": 1 });
    let answer = post(&server.address, "/v1/chat/completions", &body);
    let (status, error) = (answer.status, answer.json()["error"].clone());
    assert_eq!((status, &error["param"]), (400, &json!("tool_choice")), "{error}");
}

/// Templates that write no tools, no calls, or calls in another form.
#[test]
fn templates_without_tools_are_errors() {
    let ask = |template: &str, body: Value| {
        let served =
            Served::new(&cpu(), 1, 1, |options| options.tokenizer(Some(tokenizer(template))));
        let body = with(body, &[("max_tokens", 1.into())]);
        let answer = post(&served.address, "/v1/chat/completions", &body);
        (answer.status, answer.json()["error"]["message"].as_str().unwrap_or("").to_owned())
    };
    let body = json!({ "messages": user(), "tools": [weather()] });
    for (template, what) in [
        ("{{ messages[0].content }}", "does not write tools"),
        ("{{ tools }}{{ messages[0].content }}", "does not write tool calls"),
        (
            "{{ tools }}{% for m in messages %}{{ m }}{% endfor %}",
            "in a form that is not supported",
        ),
    ] {
        let (status, message) = ask(template, body.clone());
        assert!(
            status == 400 && message.starts_with("tools: ") && message.contains(what),
            "{message}"
        );
    }
    let none = with(body, &[("tool_choice", "none".into())]);
    assert_eq!(ask("{{ messages[0].content }}", none).0, 200);
    let call = json!([{ "id": "a", "type": "function", "function": { "name": "add", "arguments": "{}" } }]);
    let called = json!({ "messages": [{ "role": "assistant", "tool_calls": call }, { "role": "tool", "tool_call_id": "a", "content": "2" }] });
    let (status, message) = ask("{{ messages[0].content }}", called);
    assert!(status == 400 && message.contains("does not write tool calls"), "{message}");
}
