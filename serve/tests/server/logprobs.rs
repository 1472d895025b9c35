//! Log-probabilities, and prompts that answers repeat.

use crate::{Served, client::post, cpu, each_engine, with};
use bitnet_wgpu::model::Model;
use pollster::block_on;
use serde_json::{Value, json};

fn numbers(value: &Value) -> Vec<Option<f64>> {
    value.as_array().unwrap().iter().map(Value::as_f64).collect()
}

/// Tests whether numbers are equal but for the last bit, which JSON's reader may round otherwise.
fn close(found: &[Option<f64>], expected: &[Option<f64>]) -> bool {
    let close = |(found, expected): (&Option<f64>, &Option<f64>)| match (found, expected) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-12 * b.abs(),
        (a, b) => a == b,
    };
    found.len() == expected.len() && found.iter().zip(expected).all(close)
}

fn prompts_are_scored_as_the_library_does(model: &Model) {
    let server = Served::new(model, 2, 2, |options| options);
    let text = "The bear ate honey.";
    let ids = model.tokenizer().unwrap().encode(text).unwrap();
    let expected = block_on(model.score(&ids)).unwrap();
    let body = json!({ "prompt": [text, text], "echo": true, "logprobs": 2, "max_tokens": 0 });
    let answer = server.complete(&body);
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!((choices.len(), &choices[0]["text"]), (2, &json!(text)));
    let logprobs = &choices[0]["logprobs"];
    assert_eq!(logprobs, &choices[1]["logprobs"]);
    let found = numbers(&logprobs["token_logprobs"]);
    let scores: Vec<_> = [None].into_iter().chain(expected.iter().map(|nll| Some(-nll))).collect();
    assert!(close(&found, &scores), "{found:?} {scores:?}");
    assert_eq!(logprobs["top_logprobs"][0], Value::Null);
    for n in 1..ids.len() {
        let (token, top) = (&logprobs["tokens"][n], &logprobs["top_logprobs"][n]);
        assert_eq!(top[token.as_str().unwrap()], logprobs["token_logprobs"][n]);
        assert!((2..=3).contains(&top.as_object().unwrap().len()), "{top}");
    }
    // The offsets are where the tokens begin.
    for n in 1..ids.len() {
        let offset = logprobs["text_offset"][n].as_u64().unwrap() as usize;
        let token = logprobs["tokens"][n].as_str().unwrap();
        assert!(
            text[offset..].starts_with(token.trim_start()) || text[offset..].starts_with(token)
        );
    }
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    // As evaluation harnesses ask: token ids, and one token more.
    let body =
        json!({ "prompt": ids, "echo": true, "logprobs": 1, "max_tokens": 1, "temperature": 0 });
    let choice = server.complete(&body)["choices"][0].clone();
    let found = numbers(&choice["logprobs"]["token_logprobs"]);
    assert!(found.len() == ids.len() + 1 && close(&found[..ids.len()], &scores), "{found:?}");
    let chunks = post(&server.address, "/v1/completions", &with(body, &[("stream", true.into())]));
    let mut streamed = (String::new(), Vec::new());
    for chunk in chunks.chunks() {
        let choice = &chunk["choices"][0];
        streamed.0 += choice["text"].as_str().unwrap();
        if !choice["logprobs"].is_null() {
            streamed.1.extend(numbers(&choice["logprobs"]["token_logprobs"]));
        }
    }
    assert_eq!(streamed, (choice["text"].as_str().unwrap().to_owned(), found));
}

each_engine!(prompts_are_scored_as_the_library_does);

/// A character of several tokens begins where its first token does.
#[test]
fn offsets_count_characters_of_several_tokens() {
    let (server, model) = (Served::new(&cpu(), 1, 1, |options| options), cpu());
    let tokenizer = model.tokenizer().unwrap();
    let text = "Bär 🐻 ate 蜂蜜, and slept.";
    let ids = tokenizer.encode(text).unwrap();
    let complete = |ids: &[u32]| {
        let text = tokenizer.decode(ids).unwrap();
        text.trim_end_matches(char::REPLACEMENT_CHARACTER).chars().count()
    };
    let expected: Vec<usize> = (0..ids.len()).map(|n| complete(&ids[..n])).collect();
    assert!(expected.windows(3).any(|three| three[0] == three[2]), "{expected:?}");
    let body = json!({ "prompt": text, "echo": true, "logprobs": 0, "max_tokens": 3, "seed": 0 });
    let choice = server.complete(&body)["choices"][0].clone();
    let offsets = choice["logprobs"]["text_offset"].as_array().unwrap().clone();
    assert_eq!(json!(offsets[..ids.len()]), json!(expected));
    assert_eq!(offsets[ids.len()], text.chars().count());
    let chunks = post(&server.address, "/v1/completions", &with(body, &[("stream", true.into())]));
    let streamed: Vec<Value> = chunks
        .chunks()
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["text_offset"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(streamed, offsets);
}

#[test]
fn prompts_are_repeated_without_scores() {
    let server = Served::new(&cpu(), 1, 1, |options| options);
    let plain = server.complete(&json!({ "prompt": "Once", "max_tokens": 4 }));
    let text = format!("Once{}", plain["choices"][0]["text"].as_str().unwrap());
    let body = json!({ "prompt": "Once", "max_tokens": 4, "echo": true });
    let choice = server.complete(&body)["choices"][0].clone();
    assert_eq!((&choice["text"], &choice["logprobs"]), (&json!(text), &Value::Null));
}

/// They are of the model's distribution, whatever the sampling is.
#[test]
fn chats_have_logprobs_of_their_tokens() {
    let (server, model) = (Served::new(&cpu(), 1, 1, |options| options), cpu());
    let messages = json!([{ "role": "user", "content": "Once" }]);
    let body = json!({
        "messages": messages, "max_tokens": 6, "seed": 2, "temperature": 1.5, "logprobs": true,
        "top_logprobs": 3,
    });
    let ask = |body: &Value| post(&server.address, "/v1/chat/completions", body);
    let answer = ask(&body).json();
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let text: String = content.iter().map(|it| it["token"].as_str().unwrap()).collect();
    assert_eq!(answer["choices"][0]["message"]["content"], text);
    assert_eq!(content.len(), 6);
    let tokenizer = model.tokenizer().unwrap();
    let mut ids = tokenizer.chat(&[bitnet_wgpu::model::Message::new("user", "Once")]).unwrap();
    for entry in content {
        let top = entry["top_logprobs"].as_array().unwrap();
        let likely =
            numbers(&json!(top.iter().map(|it| it["logprob"].clone()).collect::<Vec<_>>()));
        assert!(likely.len() == 3 && likely.is_sorted_by(|a, b| a >= b), "{entry}");
        assert!(entry["logprob"].as_f64() <= likely[0], "{entry}");
        assert_eq!(entry["bytes"], json!(entry["token"].as_str().unwrap().as_bytes()));
        let logprobs = block_on(model.logits(&ids)).unwrap();
        let vocab = model.config().vocab;
        let last = &logprobs[logprobs.len() - vocab..];
        let sum: f64 = last.iter().map(|&logit| f64::from(logit).exp()).sum();
        // The id of which the text and the log-probability are these.
        let id = (0..vocab as u32).find(|&id| {
            let logprob = f64::from(last[id as usize]) - sum.ln();
            (logprob - entry["logprob"].as_f64().unwrap()).abs() < 1e-4
                && tokenizer.decode_with_special(&[id]).is_ok_and(|text| {
                    text.trim_start() == entry["token"].as_str().unwrap().trim_start()
                })
        });
        ids.push(id.unwrap_or_else(|| panic!("no token is {entry}")));
    }
    let chunks = ask(&with(body.clone(), &[("stream", true.into())])).chunks();
    let streamed: Vec<Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(&streamed, content);
    let plain = with(body, &[("logprobs", false.into()), ("top_logprobs", Value::Null)]);
    let plain = ask(&plain).json()["choices"][0].clone();
    assert_eq!(plain["message"], answer["choices"][0]["message"], "tokens do not change");
    assert_eq!(plain["logprobs"], Value::Null);
}
