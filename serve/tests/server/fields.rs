//! Which fields work in which APIs: what docs/guide/server.md says, and nested fields without effect.

use crate::{
    Served,
    client::post,
    cpu,
    tools::{TEMPLATE, tokenizer, user, weather},
    with,
};
use serde_json::{Value, json};

const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guide/server.md"));
const APIS: [&str; 5] = ["completions", "chat", "responses", "messages", "embeddings"];

/// A server whose template has tools, and reasoning that can be turned off.
fn served(strict: bool) -> Served {
    let template = TEMPLATE.to_owned()
        + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}";
    let tokenizer = tokenizer(&template);
    Served::new(&cpu(), 2, 8, |options| options.strict(strict).tokenizer(Some(tokenizer)))
}

fn path(api: &str) -> &'static str {
    match api {
        "completions" => "/v1/completions",
        "chat" => "/v1/chat/completions",
        "responses" => "/v1/responses",
        "messages" => "/v1/messages",
        "embeddings" => "/v1/embeddings",
        _ => panic!("{api}"),
    }
}

/// A small request.
fn body(api: &str) -> Value {
    match api {
        "completions" => json!({ "prompt": "Hi", "max_tokens": 1 }),
        "responses" => json!({ "input": "Hi", "max_output_tokens": 1 }),
        "embeddings" => json!({ "input": "Hi" }),
        _ => json!({ "messages": user(), "max_tokens": 1 }),
    }
}

fn tools(api: &str) -> Value {
    let mut function = weather()["function"].clone();
    match api {
        "responses" => function["type"] = "function".into(),
        "messages" => {
            let schema = function["parameters"].clone();
            function = json!({ "name": "weather", "input_schema": schema });
        }
        _ => function = weather(),
    }
    json!([function])
}

/// A value of a field.
fn value(field: &str, api: &str) -> Value {
    let schema = json!({ "const": 7 });
    match field {
        "model" => json!("tales"),
        "max_tokens" | "max_completion_tokens" | "max_output_tokens" | "top_k" | "seed" => json!(1),
        "temperature" | "top_p" | "min_p" | "presence_penalty" | "frequency_penalty" => json!(0.5),
        "repetition_penalty" | "repeat_penalty" => json!(1.1),
        "logit_bias" => json!({ "5": 1 }),
        "stop" | "stop_sequences" => json!(["x"]),
        "chat_template_kwargs.enable_thinking"
        | "echo"
        | "continue_final_message"
        | "stream"
        | "stream_options.include_usage" => json!(true),
        "include_reasoning" | "add_generation_prompt" | "parallel_tool_calls" | "store" => {
            json!(false)
        }
        "thinking" => json!({ "type": "adaptive" }),
        "cache_salt" | "user" => json!("a"),
        "logprobs" if api == "chat" => json!(true),
        "logprobs" | "top_logprobs" => json!(1),
        "response_format" => json!({ "type": "json_object" }),
        "text.format" | "output_config.format" => {
            json!({ "type": "json_schema", "name": "x", "schema": schema })
        }
        "structured_outputs" => json!({ "json": schema }),
        "guided_json" | "json_schema" => schema,
        "guided_regex" => json!("a"),
        "guided_grammar" | "grammar" => json!("root ::= \"a\""),
        "guided_choice" => json!(["a"]),
        "tools" => tools(api),
        "tool_choice" if api == "messages" => json!({ "type": "any" }),
        "tool_choice" => json!("required"),
        "n" => json!(2),
        "dimensions" => json!(cpu().config().hidden),
        "encoding_format" => json!("float"),
        "metadata" => json!({ "a": "b" }),
        "prediction" => json!({ "type": "content", "content": "x" }),
        _ => panic!("no value of {field}"),
    }
}

/// Fields without which another does not work.
fn beside(field: &str, api: &str) -> Vec<(&'static str, Value)> {
    match field {
        "top_logprobs" if api == "chat" => vec![("logprobs", json!(true))],
        "stream_options.include_usage" => vec![("stream", json!(true))],
        "tool_choice" | "parallel_tool_calls"
            if ["chat", "responses", "messages"].contains(&api) =>
        {
            vec![("tools", tools(api))]
        }
        "continue_final_message" | "add_generation_prompt" if api == "chat" => {
            let mut messages = user();
            let said = json!({ "role": "assistant", "content": "It is" });
            messages.as_array_mut().unwrap().push(said);
            vec![("messages", messages), ("continue_final_message", json!(true))]
        }
        _ => Vec::new(),
    }
}

/// A request with a field, which may be in an object.
fn asked(server: &Served, field: &str, api: &str) -> (u16, String) {
    let mut body = with(body(api), &beside(field, api));
    let value = value(field, api);
    match field.split_once('.') {
        Some((outer, inner)) => body[outer] = json!({ inner: value }),
        None => body[field] = value,
    }
    let answer = post(&server.address, path(api), &body);
    (answer.status, answer.text())
}

/// The rows of the page's table of fields: fields, their APIs, and what they do.
fn rows() -> Vec<(Vec<&'static str>, Vec<&'static str>, &'static str)> {
    let table = PAGE.split("| field | in | |\n| --- | --- | --- |\n").nth(1).unwrap();
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [fields, apis, effect] = cells[..] else { panic!("{line}") };
        let apis = if apis == "all" { APIS.to_vec() } else { apis.split(", ").collect() };
        (fields.split('`').skip(1).step_by(2).collect(), apis, effect)
    };
    table.lines().take_while(|line| line.starts_with('|')).map(row).collect()
}

#[test]
fn fields_work_where_the_page_says() {
    let [lenient, strict] = [false, true].map(served);
    let mut count = 0;
    for (fields, apis, effect) in rows() {
        assert!(apis.iter().all(|api| APIS.contains(api)), "{fields:?}: {apis:?}");
        // Those of lists have no place here.
        for field in fields.into_iter().filter(|field| !field.contains('[')) {
            count += 1;
            let is_ignored = effect.starts_with("ignored");
            for api in APIS {
                let (status, text) = asked(&strict, field, api);
                let works = apis.contains(&api) && !is_ignored;
                assert_eq!(status, if works { 200 } else { 400 }, "{field} in {api}: {text}");
                if is_ignored {
                    assert_eq!(asked(&lenient, field, api).0, 200, "{field} in {api}");
                }
            }
        }
    }
    assert!(count > 40, "{count} fields");
}

/// A request with a field that has no effect, and the field's place.
type Case = (&'static str, Value, &'static str);

fn hint() -> Value {
    json!({ "type": "ephemeral" })
}

/// A text with a hint about caching.
fn text() -> Value {
    json!({ "type": "text", "text": "Hi", "cache_control": hint() })
}

fn user_of(parts: Value) -> Value {
    json!({ "messages": [{ "role": "user", "content": parts }] })
}

/// Tools of an API, with a hint about caching.
fn hinted(api: &str) -> Value {
    let mut tools = tools(api);
    let tool = if api == "chat" { &mut tools[0]["function"] } else { &mut tools[0] };
    tool["cache_control"] = hint();
    json!({ "tools": tools })
}

fn cases_of_completions_and_chats() -> Vec<Case> {
    let outputs = |field: &str| json!({ "structured_outputs": { "regex": "a", field: true } });
    let format = |field: &str, value: Value| {
        let schema = json!({ "name": "x", "schema": { "const": 7 }, field: value });
        json!({ "response_format": { "type": "json_schema", "json_schema": schema } })
    };
    let function = json!({ "name": "weather", "arguments": "{}" });
    let call = json!({ "id": "a", "type": "function", "index": 0, "function": function });
    let called = json!({ "messages": [
        { "role": "assistant", "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "a", "content": "x" },
    ] });
    let stream = json!({ "stream": true, "stream_options": { "include_obfuscation": false } });
    let description = "response_format.json_schema.description";
    vec![
        ("completions", outputs("backend"), "structured_outputs.backend"),
        ("chat", outputs("disable_fallback"), "structured_outputs.disable_fallback"),
        ("chat", user_of(json!([text()])), "messages[0].content[0].cache_control"),
        ("chat", hinted("chat"), "tools[0].function.cache_control"),
        ("chat", called, "messages[0].tool_calls[0].index"),
        ("chat", format("description", "A.".into()), description),
        ("chat", format("strict", false.into()), "response_format.json_schema.strict"),
        ("chat", stream, "stream_options.include_obfuscation"),
    ]
}

fn cases_of_responses() -> Vec<Case> {
    let message = |field: &str, value: Value| json!({ "input": [{ "role": "user", "content": "Hi", field: value }] });
    let reasoning = json!({ "type": "reasoning", "id": "r", "summary": [], "color": 1 });
    let after = json!({ "input": [{ "role": "user", "content": "Hi" }, reasoning] });
    vec![
        ("responses", json!({ "reasoning": { "summary": "auto" } }), "reasoning.summary"),
        ("responses", hinted("responses"), "tools[0].cache_control"),
        ("responses", message("phase", "final_answer".into()), "input[0].phase"),
        ("responses", after, "input[1].color"),
    ]
}

fn cases_of_messages() -> Vec<Case> {
    let thinking = |field: &str| json!({ "thinking": { "type": "adaptive", field: 1024 } });
    let said = |block: Value| {
        let user = json!({ "role": "user", "content": "Hi" });
        json!({ "messages": [user, { "role": "assistant", "content": [block] }, user] })
    };
    let used = json!({ "type": "tool_use", "id": "a", "name": "weather", "input": {}, "caller": { "type": "direct" } });
    let thought = json!({ "type": "thinking", "thinking": "x", "color": 1 });
    let result = json!({ "type": "tool_result", "tool_use_id": "a", "cache_control": hint() });
    let result = json!({ "messages": [
        { "role": "assistant", "content": [{ "type": "tool_use", "id": "a", "name": "weather" }] },
        { "role": "user", "content": [result] },
    ] });
    vec![
        ("messages", thinking("display"), "thinking.display"),
        ("messages", json!({ "system": [text()] }), "system[0].cache_control"),
        ("messages", user_of(json!([text()])), "messages[0].content[0].cache_control"),
        ("messages", hinted("messages"), "tools[0].cache_control"),
        ("messages", said(used), "messages[1].content[0].caller"),
        ("messages", said(thought), "messages[1].content[0].color"),
        ("messages", result, "messages[1].content[0].cache_control"),
    ]
}

#[test]
fn strict_servers_refuse_ineffective_nested_fields() {
    let [lenient, strict] = [false, true].map(served);
    let cases = [cases_of_completions_and_chats(), cases_of_responses(), cases_of_messages()];
    for (api, more, place) in cases.concat() {
        let mut body = body(api);
        let fields = more.as_object().unwrap().clone();
        fields.into_iter().for_each(|(field, value)| body[field] = value);
        let answer = post(&lenient.address, path(api), &body);
        assert!(answer.status == 200, "{place} in {api}: {}", answer.text());
        let answer = post(&strict.address, path(api), &body);
        assert_eq!(answer.status, 400, "{place} in {api}");
        let error = answer.json()["error"].clone();
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("{place}: ")), "{place} in {api}: {message}");
        assert!(api == "messages" || error["param"] == place, "{error}");
    }
}

/// What has an effect stays: fields that come back with their ids, and names that an API needs.
#[test]
fn strict_servers_accept_nested_fields_with_effect() {
    let strict = served(true);
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "strict": true, "schema": { "const": 7 } } });
    let result = json!([
        { "role": "assistant", "content": [{ "type": "thinking", "thinking": "x", "signature": "" }, { "type": "tool_use", "id": "a", "name": "weather", "input": {} }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "a", "is_error": true }] },
    ]);
    let said = json!({ "type": "output_text", "text": "Hi", "annotations": [], "logprobs": [] });
    let answered = json!([
        { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "Hi" }] },
        { "type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [said] },
        { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "Hi" }] },
    ]);
    for (api, field, value) in [
        ("chat", "response_format", format),
        ("messages", "messages", result),
        ("messages", "thinking", json!({ "type": "adaptive", "budget_tokens": 1024 })),
        ("responses", "input", answered),
    ] {
        let answer = post(&strict.address, path(api), &with(body(api), &[(field, value)]));
        assert!(answer.status == 200, "{field} in {api}: {}", answer.text());
    }
}
