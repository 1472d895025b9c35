//! The server on a socket, with the shipped model on both engines.

mod client;

use bitnet_serve::{Options, Server};
use bitnet_wgpu::{
    Context,
    model::{BatchOptions, EmbedOptions, GenerateOptions, LoadOptions, Message, Model, Sampling},
};
use client::{get, open, post, send};
use serde_json::{Value, json};
use std::{
    io::Write,
    path::Path,
    sync::LazyLock,
    thread::{JoinHandle, sleep, spawn},
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, sync::oneshot};

const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tales-22m");

/// The shipped model on each engine.
fn models() -> [(&'static str, Model); 2] {
    static MODELS: LazyLock<[Model; 2]> =
        LazyLock::new(|| [Model::load_cpu(TALES).unwrap(), Model::load(&pollster::block_on(Context::new()).unwrap(), TALES).unwrap()]);
    let [cpu, gpu] = &*MODELS;
    [("CPU", cpu.clone()), ("GPU", gpu.clone())]
}

fn cpu() -> Model {
    models()[0].1.clone()
}

/// A server that ends when it is dropped, or told to.
struct Served {
    address: String,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn new(model: &Model, slots: usize, queue: usize, options: impl FnOnce(Options) -> Options) -> Self {
        let batch = model.batch(BatchOptions::new(slots, 500).queue(queue)).unwrap();
        let server = Server::new(batch, options(Options::new("tales")));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let (address, (end, ended)) = (listener.local_addr().unwrap().to_string(), oneshot::channel());
        let thread = spawn(move || {
            runtime.block_on(server.run(listener, async { ended.await.unwrap_or(()) })).unwrap();
        });
        Self { address, end: Some(end), thread: Some(thread) }
    }

    /// Its texts do not end by themselves.
    fn endless(model: &Model, slots: usize, queue: usize) -> Self {
        Self::new(model, slots, queue, |options| options.defaults(GenerateOptions::default().ignore_eos(true)))
    }

    fn end(&mut self) {
        self.end.take().unwrap().send(()).unwrap();
    }

    fn load(&self) -> (Value, Value) {
        let health = get(&self.address, "/health").json();
        (health["running"].clone(), health["waiting"].clone())
    }

    fn wait_for_load(&self, running: u64, waiting: u64) {
        let start = Instant::now();
        while self.load() != (running.into(), waiting.into()) {
            assert!(start.elapsed() < Duration::from_secs(60), "{:?}, not {running} and {waiting}", self.load());
            sleep(Duration::from_millis(5));
        }
    }

    fn complete(&self, body: &Value) -> Value {
        let answer = post(&self.address, "/v1/completions", body);
        assert_eq!(answer.status, 200);
        answer.json()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
        let joined = self.thread.take().unwrap().join();
        assert!(joined.is_ok() || std::thread::panicking());
    }
}

/// A request that takes seconds.
fn long() -> Value {
    json!({ "prompt": "Once", "max_tokens": 500, "stream": true })
}

fn with(mut body: Value, more: &[(&str, Value)]) -> Value {
    more.iter().for_each(|(field, value)| body[*field] = value.clone());
    body
}

/// The text of a choice in chunks, and why it ended.
fn joined(chunks: &[Value], choice: u64) -> (String, String) {
    let (mut text, mut reason) = (String::new(), String::new());
    for part in chunks.iter().filter_map(|chunk| chunk["choices"].get(0)).filter(|part| part["index"] == choice) {
        assert!(reason.is_empty(), "{part} after the end");
        text += part["text"].as_str().or(part["delta"]["content"].as_str()).unwrap_or("");
        reason += part["finish_reason"].as_str().unwrap_or("");
    }
    (text, reason)
}

#[test]
fn answers_and_streams_are_what_the_model_writes_alone() {
    for (engine, model) in models() {
        let server = Served::new(&model, 4, 8, |options| options);
        let sampled = Sampling::GREEDY.temperature(0.9).top_k(30).top_p(0.95).min_p(0.01).frequency_penalty(0.2).seed(5);
        let fields = json!({ "temperature": 0.9, "top_k": 30, "top_p": 0.95, "min_p": 0.01, "frequency_penalty": 0.2, "seed": 5 });
        let prompt = model.encode_prompt("The bear").unwrap();
        let cases = [
            (json!({}), GenerateOptions::default().max_tokens(16)),
            (with(fields, &[("max_tokens", 20.into())]), GenerateOptions::default().max_tokens(20).sampling(sampled)),
            (json!({ "stop": ["the", "and"], "max_tokens": 60 }), GenerateOptions::default().max_tokens(60).stop(["the", "and"])),
            (
                json!({ "logit_bias": { "2047": 100 }, "max_tokens": 9 }),
                GenerateOptions::default().max_tokens(9).logit_bias([(2047, 100.0)]),
            ),
            (
                json!({ "repetition_penalty": 1.5, "presence_penalty": -0.5, "max_tokens": 9 }),
                GenerateOptions::default().max_tokens(9).sampling(Sampling::GREEDY.repetition_penalty(1.5).presence_penalty(-0.5)),
            ),
        ];
        for (body, options) in cases {
            let mut generation = model.generate_ids(&prompt, &options).unwrap();
            let tokens: Vec<_> = (&mut generation).into_iter().map(Result::unwrap).collect();
            let text: String = tokens.iter().map(|token| &*token.text).collect();
            let stopped = format!("{:?}", generation.stop().unwrap());
            let reason = if stopped == "MaxTokens" { "length" } else { "stop" };
            let body = with(body, &[("model", "tales".into()), ("prompt", "The bear".into()), ("user", "me".into())]);
            let whole = server.complete(&body);
            let choice = &whole["choices"][0];
            assert_eq!(
                (&whole["object"], &choice["text"], &choice["finish_reason"]),
                (&json!("text_completion"), &json!(text), &json!(reason)),
                "{engine}: {body}"
            );
            let used = &whole["usage"];
            assert_eq!(
                (&used["prompt_tokens"], &used["completion_tokens"]),
                (&json!(prompt.len()), &json!(tokens.len())),
                "{engine}: {whole}"
            );
            assert_eq!(used["total_tokens"], prompt.len() + tokens.len());
            let chunks = post(&server.address, "/v1/completions", &with(body, &[("stream", true.into())])).chunks();
            assert_eq!(joined(&chunks, 0), (text, reason.to_owned()), "{engine}");
            assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"] && chunk.get("usage").is_none()));
        }
        server.wait_for_load(0, 0);
    }
}

#[test]
fn conversations_are_continued_by_the_template() {
    for (engine, model) in models() {
        let server = Served::new(&model, 2, 8, |options| options);
        let messages = [
            Message::new("system", "A tale of a bear, of a girl and of the king of the wood."),
            Message::new("user", "Once upon a time"),
            Message::new("assistant", "there was"),
        ];
        let options = GenerateOptions::default().max_tokens(12);
        let text: String = model.chat(&messages, &options).unwrap().into_iter().map(|token| token.unwrap().text).collect();
        let body = json!({
            "model": "tales", "max_completion_tokens": 12, "n": 1, "logprobs": false, "tools": [],
            "messages": [
                { "role": "developer", "content": "A tale of a bear, of a girl and of the king of the wood." },
                { "role": "user", "content": [{ "type": "text", "text": "Once upon" }, { "type": "text", "text": " a time" }] },
                { "role": "assistant", "content": "there was", "refusal": null },
            ],
        });
        let whole = post(&server.address, "/v1/chat/completions", &body).json();
        let message = &whole["choices"][0]["message"];
        assert_eq!(
            (&whole["object"], &message["role"], &message["content"]),
            (&json!("chat.completion"), &json!("assistant"), &json!(text)),
            "{engine}"
        );
        let stream = with(body, &[("stream", true.into()), ("stream_options", json!({ "include_usage": true }))]);
        let mut chunks = post(&server.address, "/v1/chat/completions", &stream).chunks();
        let last = chunks.pop().unwrap();
        assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(12)), "{engine}");
        // The prompt was there from the answer before.
        let prompt = last["usage"]["prompt_tokens"].as_u64().unwrap();
        let cached = last["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        assert!(prompt > 16 && cached == prompt - 1, "{engine}: {last}");
        assert_eq!(
            (&chunks[0]["object"], &chunks[0]["choices"][0]["delta"]["role"]),
            (&json!("chat.completion.chunk"), &json!("assistant"))
        );
        assert!(chunks.iter().all(|chunk| chunk["usage"] == Value::Null && chunk.get("usage").is_some()));
        assert_eq!(joined(&chunks, 0), (text, "length".to_owned()), "{engine}");
    }
}

/// The shipped model does not reason: what it says after `<think>` counts as reasoning, since nothing ends it.
#[test]
fn reasoning_is_told_from_the_answer() {
    const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m.reasoning_content }}{{ m.content }}{% endfor %}\
        {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}";
    let model = cpu();
    let tokenizer = model.tokenizer().unwrap().with_chat_template(TEMPLATE);
    let server = Served::new(&model, 2, 8, |options| options.tokenizer(Some(tokenizer.clone())));
    let text = |prompt: &str| -> String {
        let prompt = model.tokenizer().unwrap().encode_plain(&format!("<|begin_of_text|>{prompt}")).unwrap();
        model
            .generate_ids(&prompt, &GenerateOptions::default().max_tokens(9))
            .unwrap()
            .into_iter()
            .map(|token| token.unwrap().text)
            .collect()
    };
    let body = json!({ "messages": [{ "role": "user", "content": "The bear" }], "max_tokens": 9 });
    let off = with(body.clone(), &[("chat_template_kwargs", json!({ "enable_thinking": false }))]);
    let hidden = with(body.clone(), &[("include_reasoning", false.into())]);
    let thoughts = text("The bear<think>\n").trim().to_owned();
    for (body, reasoning, answer, count) in [
        (&body, Some(&thoughts), String::new(), 9),
        (&with(body.clone(), &[("chat_template_kwargs", json!({ "enable_thinking": true }))]), Some(&thoughts), String::new(), 9),
        (&off, None, text("The bear<think>\n\n</think>\n\n"), 0),
        (&hidden, None, String::new(), 9),
    ] {
        let whole = post(&server.address, "/v1/chat/completions", body).json();
        let message = &whole["choices"][0]["message"];
        assert_eq!(
            (message["content"].as_str(), message.get("reasoning_content")),
            (Some(answer.as_str()), reasoning.map(|text| json!(text)).as_ref())
        );
        let used = &whole["usage"];
        assert_eq!(
            (&used["completion_tokens"], &used["completion_tokens_details"]["reasoning_tokens"]),
            (&json!(9), &json!(count)),
            "{body}"
        );
        let chunks = post(&server.address, "/v1/chat/completions", &with(body.clone(), &[("stream", true.into())])).chunks();
        let said = |part: &str| chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][part].as_str()).collect::<String>();
        assert_eq!((said("reasoning_content"), said("content")), (reasoning.cloned().unwrap_or_default(), answer), "{body}");
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    }
    // What was said to itself may come back.
    let mut again = off;
    again["messages"] = json!([{ "role": "assistant", "reasoning_content": "The ", "content": "bear" }]);
    let answer = post(&server.address, "/v1/chat/completions", &again).json();
    assert_eq!(answer["choices"][0]["message"]["content"], text("The bear<think>\n\n</think>\n\n").as_str());
    // The shipped template does not heed it, and nobody else's variables are known.
    let refused = |server: &Served, body: Value, words: &str| {
        let answer = post(&server.address, "/v1/chat/completions", &body);
        assert_eq!(answer.status, 400);
        let error = answer.json()["error"].clone();
        // Begins with the field's name.
        let named = error["message"].as_str().unwrap().starts_with(error["param"].as_str().unwrap());
        assert!(named && error["message"].to_string().contains(words), "{error}");
    };
    let plain = Served::new(&model, 1, 1, |options| options);
    for thinking in [true, false] {
        refused(
            &plain,
            with(body.clone(), &[("chat_template_kwargs", json!({ "enable_thinking": thinking }))]),
            "chat_template_kwargs.enable_thinking: ",
        );
    }
    refused(&server, with(body.clone(), &[("chat_template_kwargs", json!({ "thinking": true }))]), "chat_template_kwargs.thinking");
    refused(&server, with(body.clone(), &[("chat_template_kwargs", json!({ "enable_thinking": "no" }))]), "true or false is expected");
    let by_user = json!([{ "role": "user", "reasoning_content": "a", "content": "b" }]);
    refused(&server, with(body, &[("messages", by_user)]), "messages[0].reasoning_content");
}

#[test]
fn several_choices_of_several_prompts() {
    let server = Served::new(&cpu(), 3, 8, |options| options);
    let ids = cpu().encode_prompt("The bear").unwrap();
    let options = |seed| GenerateOptions::default().max_tokens(8).sampling(Sampling::GREEDY.temperature(1.2).seed(seed));
    let alone = |prompt: &str, seed| -> String {
        cpu().generate(prompt, &options(seed)).unwrap().into_iter().map(|token| token.unwrap().text).collect()
    };
    let wanted = [alone("Once", 7), alone("Once", 8), alone("The bear", 9), alone("The bear", 10)];
    let body = json!({ "prompt": ["Once", "The bear"], "n": 2, "seed": 7, "temperature": 1.2, "max_tokens": 8 });
    let whole = server.complete(&body);
    let texts: Vec<_> = whole["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert_eq!(texts, wanted);
    let once = cpu().encode_prompt("Once").unwrap().len();
    assert_eq!((&whole["usage"]["prompt_tokens"], &whole["usage"]["completion_tokens"]), (&json!(once + ids.len()), &json!(32)));
    let chunks = post(&server.address, "/v1/completions", &with(body, &[("stream", true.into())])).chunks();
    (0..4).for_each(|n| assert_eq!(joined(&chunks, n as u64), (wanted[n].clone(), "length".to_owned())));
    let by_ids = json!({ "prompt": ids, "seed": 9, "temperature": 1.2, "max_tokens": 8 });
    assert_eq!(server.complete(&by_ids)["choices"][0]["text"], wanted[2].as_str());
    // Without a seed, texts differ.
    let body = json!({ "prompt": "Once", "n": 3, "temperature": 2.0, "max_tokens": 16 });
    let texts =
        || server.complete(&body)["choices"].as_array().unwrap().iter().map(|choice| choice["text"].to_string()).collect::<Vec<_>>();
    assert_ne!(texts(), texts());
    assert_eq!(server.complete(&json!({ "prompt": "Once", "max_tokens": 0 }))["choices"][0]["text"], "");
}

#[test]
fn what_is_served_and_who_may_ask() {
    let server = Served::new(&cpu(), 2, 3, |options| options.key(Some("sesame".into())));
    let key = |key: &str, head: &str, body: &[u8]| {
        let answer = send(&server.address, head, &[("Authorization", key)], body).unwrap();
        (answer.status, answer.header("www-authenticate").map(str::to_owned), answer.json())
    };
    assert_eq!(get(&server.address, "/health").json(), json!({ "status": "ok", "running": 0, "waiting": 0, "slots": 2, "queue": 3 }));
    let (status, _, list) = key("Bearer sesame", "GET /v1/models", b"");
    assert_eq!((status, &list["object"], &list["data"][0]["id"]), (200, &json!("list"), &json!("tales")));
    assert_eq!(key("Bearer sesame", "GET /v1/models/tales", b"").2["object"], "model");
    let (status, _, error) = key("Bearer sesame", "GET /v1/models/a/b", b"");
    assert_eq!((status, &error["error"]["code"]), (404, &json!("model_not_found")));
    for wrong in ["Bearer sesam", "Bearer sesame2", "Bearer sesamf", "sesame", "Bearer ", "Basic sesame"] {
        for head in ["GET /v1/models", "GET /v1/models/tales", "POST /v1/completions", "POST /v1/chat/completions"] {
            let (status, scheme, error) = key(wrong, head, b"{}");
            assert_eq!((status, scheme.as_deref(), &error["error"]["code"]), (401, Some("Bearer"), &json!("invalid_api_key")), "{wrong}");
        }
    }
    let (status, _, error) = key("Bearer sesame", "GET /v2", b"");
    assert!(status == 404 && error["error"]["message"].as_str().unwrap().contains("/v2"));
    let (status, _, error) = key("Bearer sesame", "DELETE /v1/models", b"");
    assert!(status == 405 && error["error"]["message"].as_str().unwrap().contains("DELETE"));
}

#[test]
fn what_is_wrong_is_named() {
    let server = Served::new(&cpu(), 2, 8, |options| options);
    let user = json!([{ "role": "user", "content": "Hi" }]);
    let chat = |more: Value| (true, with(json!({ "messages": user }), &object(more)));
    let text = |more: Value| (false, with(json!({ "prompt": "Hi" }), &object(more)));
    let messages = |messages: Value| (true, json!({ "messages": messages }));
    let table = [
        (messages(json!(null)), "messages", "none"),
        (messages(json!("Hi")), "messages", "list"),
        (messages(json!([])), "messages", "0 messages"),
        (messages(json!(vec![json!({ "role": "user", "content": "x" }); 4097])), "messages", "4097"),
        (messages(json!(["Hi"])), "messages[0]", "an object"),
        (messages(json!([{ "content": "Hi" }])), "messages[0].role", "none"),
        (messages(json!([{ "role": "tool", "content": "Hi" }])), "messages[0].role", "user"),
        (messages(json!([{ "role": 7, "content": "Hi" }])), "messages[0].role", "7"),
        (messages(json!([{ "role": "user" }])), "messages[0].content", "none"),
        (messages(json!([{ "role": "user", "content": 7 }])), "messages[0].content", "7"),
        (messages(json!([{ "role": "user", "content": [{ "type": "image_url" }] }])), "messages[0].content[0].type", "text"),
        (messages(json!([{ "role": "user", "content": [{ "type": "text" }] }])), "messages[0].content[0].text", "none"),
        (messages(json!([{ "role": "user", "content": "Hi", "name": "Ann" }])), "messages[0].name", "no such field"),
        (messages(json!([{ "role": "assistant", "content": "Hi", "tool_calls": [{}] }])), "messages[0].tool_calls", "not supported"),
        (chat(json!({ "max_tokens": 0 })), "max_tokens", "from 1"),
        (chat(json!({ "max_tokens": 3, "max_completion_tokens": 4 })), "max_tokens", "one of them"),
        (chat(json!({ "logprobs": true })), "logprobs", "not supported"),
        (chat(json!({ "top_logprobs": 2 })), "top_logprobs", "not supported"),
        (chat(json!({ "tools": [{}] })), "tools", "not supported"),
        (chat(json!({ "response_format": { "type": "json_object" } })), "response_format", "not supported"),
        (chat(json!({ "reasoning_effort": "low" })), "reasoning_effort", "not supported"),
        (chat(json!({ "temprature": 1 })), "temprature", "no such field"),
        (text(json!({ "prompt": null })), "prompt", "none"),
        (text(json!({ "prompt": 7 })), "prompt", "a string"),
        (text(json!({ "prompt": [] })), "prompt", "0 prompts"),
        (text(json!({ "prompt": vec!["x"; 65] })), "prompt", "65"),
        (text(json!({ "prompt": [7, "x"] })), "prompt", "list"),
        (text(json!({ "prompt": [[7], [-1]] })), "prompt", "list"),
        (text(json!({ "prompt": [[]] })), "prompt", "no tokens"),
        (text(json!({ "prompt": [99999] })), "prompt", "99999"),
        (text(json!({ "prompt": vec![7; 513] })), "prompt", "513 tokens; there is room for 500"),
        (text(json!({ "max_tokens": -1 })), "max_tokens", "from 0"),
        (text(json!({ "max_tokens": 1.5 })), "max_tokens", "1.5"),
        (text(json!({ "max_tokens": "7" })), "max_tokens", "a string"),
        (text(json!({ "echo": true })), "echo", "not supported"),
        (text(json!({ "suffix": "x" })), "suffix", "not supported"),
        (text(json!({ "best_of": 3 })), "best_of", "not supported"),
        (text(json!({ "logprobs": 3 })), "logprobs", "not supported"),
        (text(json!({ "n": 0 })), "n", "from 1"),
        (text(json!({ "n": 65 })), "n", "to 64"),
        (text(json!({ "n": 33, "prompt": ["a", "b"] })), "n", "33 choices of 2"),
        (text(json!({ "temperature": 2.1 })), "temperature", "from 0 to 2"),
        (text(json!({ "temperature": "hot" })), "temperature", "a string"),
        (text(json!({ "top_p": -0.1 })), "top_p", "from 0 to 1"),
        (text(json!({ "min_p": 1.1 })), "min_p", "from 0 to 1"),
        (text(json!({ "top_k": -1 })), "top_k", "from 0"),
        (text(json!({ "repetition_penalty": 0 })), "repetition_penalty", "from 0.01"),
        (text(json!({ "presence_penalty": 3 })), "presence_penalty", "from -2"),
        (text(json!({ "frequency_penalty": [] })), "frequency_penalty", "a list"),
        (text(json!({ "seed": 1.5 })), "seed", "1.5"),
        (text(json!({ "stop": [""] })), "stop", "empty"),
        (text(json!({ "stop": [7] })), "stop", "7"),
        (text(json!({ "stop": 7 })), "stop", "a string"),
        (text(json!({ "stop": vec!["x"; 17] })), "stop", "16"),
        (text(json!({ "logit_bias": [] })), "logit_bias", "an object"),
        (text(json!({ "logit_bias": { "x": 1 } })), "logit_bias", "\"x\""),
        (text(json!({ "logit_bias": { "7": 101 } })), "logit_bias", "token 7"),
        (text(json!({ "stream": "yes" })), "stream", "a string"),
        (text(json!({ "stream_options": {} })), "stream_options", "streams"),
        (text(json!({ "stream": true, "stream_options": { "usage": true } })), "stream_options.usage", "no such field"),
        (text(json!({ "model": 7 })), "model", "7"),
        (text(json!({ ("\n".to_owned() + &"x".repeat(300)): 7 })), "xxx", "no such field"),
    ];
    for ((is_chat, body), param, wanted) in table {
        let path = if is_chat { "/v1/chat/completions" } else { "/v1/completions" };
        let answer = post(&server.address, path, &body);
        let (status, error) = (answer.status, answer.json()["error"].clone());
        let named = error["param"].as_str().unwrap_or("");
        let right = named == param || (param == "xxx" && named.contains(param) && named.len() < 120 && !named.contains('\n'));
        assert!(status == 400 && right && error["type"] == "invalid_request_error", "{param}: {status} {error}");
        assert!(error["message"].as_str().unwrap().contains(wanted), "{param}: {error}");
    }
    let bias = post(&server.address, "/v1/completions", &json!({ "prompt": "Hi", "logit_bias": { "99999": 1 } }));
    assert!(bias.status == 400 && bias.json()["error"]["message"].as_str().unwrap().contains("99999"));
    let long = post(&server.address, "/v1/completions", &json!({ "prompt": vec![7; 513] })).json();
    assert_eq!(long["error"]["code"], "context_length_exceeded");
    let unknown = post(&server.address, "/v1/completions", &json!({ "prompt": "Hi", "model": "gpt" }));
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!("model_not_found")));
    for body in ["", "{", "[]", "7", "\"x\"", "{\"prompt\": \"\u{0}\"}", &"[".repeat(9000)] {
        let answer = send(
            &server.address,
            "POST /v1/completions",
            &[("Content-Type", "application/json"), ("Content-Length", &body.len().to_string())],
            body.as_bytes(),
        )
        .unwrap();
        assert!(answer.status == 400 && answer.json()["error"]["message"].as_str().unwrap().contains("body"), "{body:.20}");
    }
    assert_eq!(server.load(), (0.into(), 0.into()), "nothing of it ran");
}

fn object(value: Value) -> Vec<(&'static str, Value)> {
    let Value::Object(map) = value else { panic!("{value}") };
    map.into_iter().map(|(name, value)| (&*name.leak(), value)).collect()
}

#[test]
fn embeddings_are_the_librarys() {
    let (server, model) = (Served::new(&cpu(), 1, 1, |options| options), cpu());
    let embed = |body: Value| post(&server.address, "/v1/embeddings", &body);
    let texts = ["The bear ate honey.", "It rained."];
    let wanted = pollster::block_on(model.embed(&texts, &EmbedOptions::default())).unwrap();
    let answer = embed(json!({ "input": texts, "model": "tales", "user": "x", "dimensions": 512 })).json();
    let floats =
        |n: usize| -> Vec<f32> { answer["data"][n]["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect() };
    for n in 0..2 {
        assert_eq!((floats(n), &answer["data"][n]["index"]), (wanted[n].vector.clone(), &json!(n)));
    }
    let tokens = wanted.iter().map(|one| one.tokens).sum::<usize>();
    assert_eq!(answer["usage"], json!({ "prompt_tokens": tokens, "total_tokens": tokens }));
    assert_eq!((&answer["object"], &answer["model"], &answer["data"][0]["object"]), (&json!("list"), &json!("tales"), &json!("embedding")));
    // OpenAI's client asks for base64, of four bytes a number: the first three make the first four characters.
    let encoded = embed(json!({ "input": texts[0], "encoding_format": "base64" })).json();
    let encoded = encoded["data"][0]["embedding"].as_str().unwrap();
    let digit = |c: u8| "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".bytes().position(|d| d == c).unwrap_or(0) as u32;
    let bytes: Vec<u8> = encoded
        .as_bytes()
        .chunks(4)
        .flat_map(|four| four.iter().fold(0, |bits, &c| bits << 6 | digit(c)).to_be_bytes()[1..].to_vec())
        .take(4 * 512)
        .collect();
    assert_eq!((encoded.len(), bytes), (2732, wanted[0].vector.iter().flat_map(|x| x.to_le_bytes()).collect()));
    let ids = model.tokenizer().unwrap().encode(texts[0]).unwrap();
    assert_eq!(embed(json!({ "input": ids })).json()["data"][0]["embedding"], answer["data"][0]["embedding"]);
    for (body, param, words) in [
        (json!({}), "input", "there is none"),
        (json!({ "input": "" }), "input", "text 0 has no tokens"),
        (json!({ "input": ["a", ""] }), "input", "text 1 has no tokens"),
        (json!({ "input": [] }), "input", "0 prompts"),
        (json!({ "input": vec!["a"; 2049] }), "input", "2049 prompts"),
        (json!({ "input": [3, -1] }), "input", "token ids"),
        (json!({ "input": [99999] }), "input", "token 99999"),
        // Of which a model has room for 512.
        (json!({ "input": vec![7; 501] }), "input", "501 tokens"),
        (json!({ "input": "a", "dimensions": 64 }), "dimensions", "512 numbers"),
        (json!({ "input": "a", "encoding_format": "hex" }), "encoding_format", "base64"),
        (json!({ "input": "a", "stream": true }), "stream", "no such field"),
    ] {
        let answer = embed(body);
        let (status, error) = (answer.status, answer.json()["error"].clone());
        assert!(status == 400 && error["param"] == param && error["message"].as_str().unwrap().contains(words), "{status} {error}");
    }
    assert_eq!(embed(json!({ "input": "a", "model": "other" })).status, 404);
}

/// One is computed, and as many wait as the queue has places.
#[test]
fn requests_for_vectors_wait_in_a_queue_that_ends() {
    let server = Served::new(&cpu(), 1, 1, |options| options);
    let body = json!({ "input": vec![vec![7; 200]; 8] });
    let statuses: Vec<_> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..6).map(|_| scope.spawn(|| post(&server.address, "/v1/embeddings", &body).status)).collect();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    assert_eq!(post(&server.address, "/v1/embeddings", &json!({ "input": "a" })).status, 200, "there is room again");
}

#[test]
fn bodies_have_a_type_a_length_and_a_time() {
    let server = Served::new(&cpu(), 2, 8, |options| options.body(1000).patience(Duration::from_millis(300)));
    let body = json!({ "prompt": "Hi", "max_tokens": 1 }).to_string();
    let status = |headers: &[(&str, &str)], body: &[u8]| send(&server.address, "POST /v1/completions", headers, body).unwrap().status;
    assert_eq!(status(&[("Content-Type", "application/json; charset=utf-8")], body.as_bytes()), 200);
    // What a form of another site can send.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""] {
        assert_eq!(status(&[("Content-Type", kind)], body.as_bytes()), 415, "{kind}");
    }
    let longest = body.clone() + &" ".repeat(1000 - body.len());
    assert_eq!(status(&[], longest.as_bytes()), 200);
    assert_eq!(status(&[], (longest.clone() + " ").as_bytes()), 413);
    // Said to be long, and in pieces of which nobody says how many there are.
    assert_eq!(status(&[("Content-Length", "99999999999")], body.as_bytes()), 413);
    let mut pieces = open(&server.address, "POST /v1/completions", &[("Content-Length", "900")], b" ").unwrap();
    pieces.write_all(&[b' '; 100]).unwrap();
    assert_eq!(client::answer(pieces).unwrap().status, 408);
    let mut chunked = std::net::TcpStream::connect(&server.address).unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    chunked.write_all(format!("{head}7d0\r\n{}\r\n0\r\n\r\n", " ".repeat(2000)).as_bytes()).unwrap();
    assert_eq!(client::answer(chunked).unwrap().status, 413);
}

#[test]
fn a_full_queue_is_429_and_who_leaves_makes_room() {
    for (engine, model) in models() {
        let server = Served::endless(&model, 1, 1);
        let mut first = post(&server.address, "/v1/completions", &long());
        assert!(first.event().is_some());
        let second =
            open(&server.address, "POST /v1/completions", &[], with(long(), &[("stream", false.into())]).to_string().as_bytes()).unwrap();
        server.wait_for_load(1, 1);
        let refused = post(&server.address, "/v1/completions", &long());
        assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")), "{engine}");
        let error = refused.json()["error"].clone();
        assert!(
            error["code"] == "rate_limit_exceeded" && error["message"].as_str().unwrap().contains("1 sequences run and 1 wait"),
            "{error}"
        );
        // Of several choices all run, or none.
        let several = post(&server.address, "/v1/completions", &with(long(), &[("n", 2.into())]));
        assert_eq!(several.status, 429, "{engine}");
        // A client in the queue goes, then the one in the middle of its stream, then one that waits for all of it.
        drop(second);
        server.wait_for_load(1, 0);
        let third =
            open(&server.address, "POST /v1/completions", &[], with(long(), &[("stream", false.into())]).to_string().as_bytes()).unwrap();
        server.wait_for_load(1, 1);
        drop(first);
        server.wait_for_load(1, 0);
        drop(third);
        server.wait_for_load(0, 0);
        assert_eq!(server.complete(&json!({ "prompt": "Hi", "max_tokens": 3 }))["usage"]["completion_tokens"], 3, "{engine}");
    }
}

#[test]
fn the_end_lets_answers_finish_and_cuts_those_that_do_not() {
    for (engine, model) in models() {
        let finish = |grace: u64, tokens: u64| {
            let options = GenerateOptions::default().ignore_eos(true);
            let mut server = Served::new(&model, 2, 8, |o| o.defaults(options).grace(Duration::from_millis(grace)));
            let mut stream = post(&server.address, "/v1/completions", &with(long(), &[("max_tokens", tokens.into())]));
            assert!(stream.event().is_some(), "{engine}");
            let start = Instant::now();
            server.end();
            // It refuses what is new, and says so.
            while get(&server.address, "/health").status == 200 {
                assert!(start.elapsed() < Duration::from_secs(10), "{engine}");
            }
            let refused = post(&server.address, "/v1/completions", &long());
            assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("ending")), "{engine}");
            let mut last = String::new();
            while let Some(event) = stream.event() {
                last = event;
            }
            server.thread.take().unwrap().join().unwrap();
            let took = start.elapsed();
            server.thread = Some(spawn(|| ()));
            assert!(open(&server.address, "GET /health", &[], b"").is_err(), "{engine}: it still listens");
            (last, took)
        };
        let (last, _) = finish(60_000, 60);
        assert_eq!(last, "[DONE]", "{engine}");
        let (last, took) = finish(300, 500);
        assert!(last.contains("\"ending\"") && took < Duration::from_secs(20), "{engine}: {last} after {took:?}");
    }
}

#[test]
fn a_model_without_a_template_or_a_tokenizer_says_so() {
    let folder = std::env::temp_dir().join(format!("bitnet-serve-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(Path::new(TALES).join(file), folder.join(file)).unwrap();
    }
    let model = || Model::load_with(None, &folder, LoadOptions::default()).unwrap();
    let chat = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    let refused = |server: &Served, path: &str, body: &Value, param: &str, wanted: &str| {
        let answer = post(&server.address, path, body);
        let (status, error) = (answer.status, answer.json()["error"].clone());
        assert!(status == 400 && error["param"] == param && error["message"].as_str().unwrap().contains(wanted), "{status} {error}");
    };
    let server = Served::new(&model(), 1, 1, |options| options);
    refused(&server, "/v1/chat/completions", &chat, "messages", "chat template");
    assert_eq!(server.complete(&json!({ "prompt": "Hi", "max_tokens": 2 }))["usage"]["completion_tokens"], 2);
    // A template of somebody's own, which may refuse what it is given.
    let tokenizer = model()
        .tokenizer()
        .unwrap()
        .with_chat_template("{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}{{ messages[0].content }}");
    let server = Served::new(&model(), 1, 1, |options| options.tokenizer(Some(tokenizer)));
    assert_eq!(post(&server.address, "/v1/chat/completions", &with(chat.clone(), &[("max_tokens", 2.into())])).status, 200);
    let two = json!({ "messages": [{ "role": "user", "content": "Hi" }, { "role": "user", "content": "Hi" }] });
    refused(&server, "/v1/chat/completions", &two, "messages", "one only");
    std::fs::remove_file(folder.join("tokenizer.json")).unwrap();
    let server = Served::new(&model(), 1, 1, |options| options);
    refused(&server, "/v1/completions", &json!({ "prompt": "Hi" }), "prompt", "tokenizer");
    refused(&server, "/v1/completions", &json!({ "prompt": [5], "stop": "x" }), "prompt", "tokenizer");
    assert_eq!(server.complete(&json!({ "prompt": [5], "max_tokens": 2 }))["choices"][0]["text"], "");
    std::fs::remove_dir_all(folder).unwrap();
}
