//! What is answered: texts, conversations, reasoning, choices.

use crate::{Served, client::post, cpu, each_engine, joined, with};
use bitnet_wgpu::model::{GenerateOptions, Message, Model, Sampling};
use serde_json::{Value, json};

fn answers_equal_the_models_own_output(model: &Model) {
    let server = Served::new(model, 4, 8, |options| options);
    let sampled = Sampling::GREEDY
        .temperature(0.9)
        .top_k(30)
        .top_p(0.95)
        .min_p(0.01)
        .frequency_penalty(0.2)
        .seed(5);
    let fields = json!({ "temperature": 0.9, "top_k": 30, "top_p": 0.95, "min_p": 0.01, "frequency_penalty": 0.2, "seed": 5 });
    let prompt = model.encode_prompt("The bear").unwrap();
    let cases = [
        (json!({}), GenerateOptions::default().max_tokens(16)),
        (
            with(fields, &[("max_tokens", 20.into())]),
            GenerateOptions::default().max_tokens(20).sampling(sampled),
        ),
        (
            json!({ "stop": ["the", "and"], "max_tokens": 60 }),
            GenerateOptions::default().max_tokens(60).stop(["the", "and"]),
        ),
        (
            json!({ "logit_bias": { "2047": 100 }, "max_tokens": 9 }),
            GenerateOptions::default().max_tokens(9).logit_bias([(2047, 100.0)]),
        ),
        (
            json!({ "repetition_penalty": 1.5, "presence_penalty": -0.5, "max_tokens": 9 }),
            GenerateOptions::default()
                .max_tokens(9)
                .sampling(Sampling::GREEDY.repetition_penalty(1.5).presence_penalty(-0.5)),
        ),
    ];
    for (body, options) in cases {
        let mut generation = model.generate_ids(&prompt, &options).unwrap();
        let tokens: Vec<_> = (&mut generation).into_iter().map(Result::unwrap).collect();
        let text: String = tokens.iter().map(|token| &*token.text).collect();
        let stopped = format!("{:?}", generation.stop().unwrap());
        let reason = if stopped == "MaxTokens" { "length" } else { "stop" };
        let body = with(
            body,
            &[("model", "tales".into()), ("prompt", "The bear".into()), ("user", "me".into())],
        );
        let whole = server.complete(&body);
        let choice = &whole["choices"][0];
        assert_eq!(
            (&whole["object"], &choice["text"], &choice["finish_reason"]),
            (&json!("text_completion"), &json!(text), &json!(reason)),
            "{body}"
        );
        let used = &whole["usage"];
        assert_eq!(
            (&used["prompt_tokens"], &used["completion_tokens"]),
            (&json!(prompt.len()), &json!(tokens.len())),
            "{whole}"
        );
        assert_eq!(used["total_tokens"], prompt.len() + tokens.len());
        let chunks =
            post(&server.address, "/v1/completions", &with(body, &[("stream", true.into())]))
                .chunks();
        assert_eq!(joined(&chunks, 0), (text, reason.to_owned()));
        assert!(
            chunks
                .iter()
                .all(|chunk| chunk["id"] == chunks[0]["id"] && chunk.get("usage").is_none())
        );
    }
    server.wait_for_load(0, 0);
}

each_engine!(answers_equal_the_models_own_output);

fn conversations_are_continued_by_the_template(model: &Model) {
    let server = Served::new(model, 2, 8, |options| options);
    let messages = [
        Message::new("system", "A tale of a bear, of a girl and of the king of the wood."),
        Message::new("user", "Once upon a time"),
        Message::new("assistant", "there was"),
    ];
    let options = GenerateOptions::default().max_tokens(12);
    let text: String = model
        .chat(&messages, &options)
        .unwrap()
        .into_iter()
        .map(|token| token.unwrap().text)
        .collect();
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
        (&json!("chat.completion"), &json!("assistant"), &json!(text))
    );
    let stream = with(
        body,
        &[("stream", true.into()), ("stream_options", json!({ "include_usage": true }))],
    );
    let mut chunks = post(&server.address, "/v1/chat/completions", &stream).chunks();
    let last = chunks.pop().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(12)));
    // The prompt was there from the answer before.
    let prompt = last["usage"]["prompt_tokens"].as_u64().unwrap();
    let cached = last["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(prompt > 16 && cached == prompt - 1, "{last}");
    assert_eq!(
        (&chunks[0]["object"], &chunks[0]["choices"][0]["delta"]["role"]),
        (&json!("chat.completion.chunk"), &json!("assistant"))
    );
    assert!(
        chunks.iter().all(|chunk| chunk["usage"] == Value::Null && chunk.get("usage").is_some())
    );
    assert_eq!(joined(&chunks, 0), (text, "length".to_owned()));
}

each_engine!(conversations_are_continued_by_the_template);

/// The shipped model does not reason: what it says after `<think>` counts as reasoning, since
/// nothing ends it.
#[test]
fn reasoning_is_told_from_the_answer() {
    const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m.reasoning_content }}{{ m.content }}{% endfor %}\
        {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}";
    let model = cpu();
    let tokenizer = model.tokenizer().unwrap().with_chat_template(TEMPLATE);
    let server = Served::new(&model, 2, 8, |options| options.tokenizer(Some(tokenizer.clone())));
    let text = |prompt: &str| -> String {
        let prompt =
            model.tokenizer().unwrap().encode_plain(&format!("<|begin_of_text|>{prompt}")).unwrap();
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
        (
            &with(body.clone(), &[("chat_template_kwargs", json!({ "enable_thinking": true }))]),
            Some(&thoughts),
            String::new(),
            9,
        ),
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
        let chunks = post(
            &server.address,
            "/v1/chat/completions",
            &with(body.clone(), &[("stream", true.into())]),
        )
        .chunks();
        let said = |part: &str| {
            chunks
                .iter()
                .filter_map(|chunk| chunk["choices"][0]["delta"][part].as_str())
                .collect::<String>()
        };
        assert_eq!(
            (said("reasoning_content"), said("content")),
            (reasoning.cloned().unwrap_or_default(), answer),
            "{body}"
        );
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    }
    // What was said to itself may come back.
    let mut again = off;
    again["messages"] =
        json!([{ "role": "assistant", "reasoning_content": "The ", "content": "bear" }]);
    let answer = post(&server.address, "/v1/chat/completions", &again).json();
    assert_eq!(
        answer["choices"][0]["message"]["content"],
        text("The bear<think>\n\n</think>\n\n").as_str()
    );
    // The shipped template does not heed it, and nobody else's variables are known.
    let refused = |server: &Served, body: Value, words: &str| {
        let answer = post(&server.address, "/v1/chat/completions", &body);
        assert_eq!(answer.status, 400);
        let error = answer.json()["error"].clone();
        // Begins with the field's name.
        let named =
            error["message"].as_str().unwrap().starts_with(error["param"].as_str().unwrap());
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
    refused(
        &server,
        with(body.clone(), &[("chat_template_kwargs", json!({ "thinking": true }))]),
        "chat_template_kwargs.thinking",
    );
    refused(
        &server,
        with(body.clone(), &[("chat_template_kwargs", json!({ "enable_thinking": "no" }))]),
        "expected true or false",
    );
    let by_user = json!([{ "role": "user", "reasoning_content": "a", "content": "b" }]);
    refused(&server, with(body, &[("messages", by_user)]), "messages[0].reasoning_content");
}

#[test]
fn several_choices_of_several_prompts() {
    let server = Served::new(&cpu(), 3, 8, |options| options);
    let ids = cpu().encode_prompt("The bear").unwrap();
    let options = |seed| {
        GenerateOptions::default()
            .max_tokens(8)
            .sampling(Sampling::GREEDY.temperature(1.2).seed(seed))
    };
    let alone = |prompt: &str, seed| -> String {
        cpu()
            .generate(prompt, &options(seed))
            .unwrap()
            .into_iter()
            .map(|token| token.unwrap().text)
            .collect()
    };
    let expected =
        [alone("Once", 7), alone("Once", 8), alone("The bear", 9), alone("The bear", 10)];
    let body = json!({ "prompt": ["Once", "The bear"], "n": 2, "seed": 7, "temperature": 1.2, "max_tokens": 8 });
    let whole = server.complete(&body);
    let texts: Vec<_> = whole["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, expected);
    let once = cpu().encode_prompt("Once").unwrap().len();
    assert_eq!(
        (&whole["usage"]["prompt_tokens"], &whole["usage"]["completion_tokens"]),
        (&json!(once + ids.len()), &json!(32))
    );
    let chunks =
        post(&server.address, "/v1/completions", &with(body, &[("stream", true.into())])).chunks();
    (0..4).for_each(|n| {
        assert_eq!(joined(&chunks, n as u64), (expected[n].clone(), "length".to_owned()))
    });
    let by_ids = json!({ "prompt": ids, "seed": 9, "temperature": 1.2, "max_tokens": 8 });
    assert_eq!(server.complete(&by_ids)["choices"][0]["text"], expected[2].as_str());
    // Without a seed, texts differ.
    let body = json!({ "prompt": "Once", "n": 3, "temperature": 2.0, "max_tokens": 16 });
    let texts = || {
        server.complete(&body)["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|choice| choice["text"].to_string())
            .collect::<Vec<_>>()
    };
    assert_ne!(texts(), texts());
    assert_eq!(
        server.complete(&json!({ "prompt": "Once", "max_tokens": 0 }))["choices"][0]["text"],
        ""
    );
}

#[test]
fn a_server_says_what_requests_do_not() {
    let defaults =
        GenerateOptions::default().sampling(Sampling::GREEDY.temperature(1.2)).ignore_eos(true);
    let server = Served::new(&cpu(), 2, 2, |options| {
        options.defaults(defaults.clone()).max_tokens(Some(20)).seed(Some(7))
    });
    let alone = |tokens: usize, seed: u64| -> String {
        let options =
            defaults.clone().max_tokens(tokens).sampling(defaults.get_sampling().seed(seed));
        cpu()
            .generate("Once", &options)
            .unwrap()
            .into_iter()
            .map(|token| token.unwrap().text)
            .collect()
    };
    let texts = |body: Value| -> Vec<String> {
        let whole = server.complete(&with(body, &[("prompt", "Once".into())]));
        whole["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|choice| choice["text"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(texts(json!({ "n": 2 })), [alone(20, 7), alone(20, 8)]);
    assert_eq!(
        texts(json!({ "max_tokens": 30, "seed": 9 })),
        [alone(30, 9)],
        "a default is no limit"
    );
    let chat = |body: Value| {
        let body = with(body, &[("messages", json!([{ "role": "user", "content": "Once" }]))]);
        post(&server.address, "/v1/chat/completions", &body).json()
    };
    let (said, longer) = (chat(json!({})), chat(json!({ "max_completion_tokens": 25 })));
    assert_eq!(
        (&said["usage"]["completion_tokens"], &longer["usage"]["completion_tokens"]),
        (&json!(20), &json!(25))
    );
    assert_eq!(said["choices"], chat(json!({}))["choices"], "the same seed");
}

#[test]
fn penalties_have_two_names() {
    let server = Served::new(&cpu(), 1, 1, |options| options);
    let body = json!({ "prompt": "The bear", "max_tokens": 12, "temperature": 0 });
    let ask = |more: &[(&str, Value)]| {
        server.complete(&with(body.clone(), more))["choices"][0]["text"].clone()
    };
    let penalty = ask(&[("repetition_penalty", 3.into())]);
    assert_eq!(ask(&[("repeat_penalty", 3.into())]), penalty);
    assert_ne!(ask(&[]), penalty);
    let both = [("repeat_penalty", 3.into()), ("repetition_penalty", 3.into())];
    let refused = post(&server.address, "/v1/completions", &with(body, &both));
    let (status, error) = (refused.status, refused.json()["error"].clone());
    assert_eq!((status, &error["param"]), (400, &json!("repeat_penalty")), "{error}");
}
