//! Vectors of texts.

use crate::{Served, client::post, cpu};
use bitnet_wgpu::model::EmbedOptions;
use serde_json::{Value, json};
use std::{thread::sleep, time::Duration};

#[test]
fn embeddings_are_the_librarys() {
    let (server, model) = (Served::new(&cpu(), 1, 1, |options| options), cpu());
    let embed = |body: Value| post(&server.address, "/v1/embeddings", &body);
    let texts = ["The bear ate honey.", "It rained."];
    let expected = pollster::block_on(model.embed(&texts, &EmbedOptions::default())).unwrap();
    let answer =
        embed(json!({ "input": texts, "model": "tales", "user": "x", "dimensions": 512 })).json();
    let floats = |n: usize| -> Vec<f32> {
        answer["data"][n]["embedding"]
            .as_array()
            .unwrap()
            .iter()
            .map(|x| x.as_f64().unwrap() as f32)
            .collect()
    };
    for n in 0..2 {
        assert_eq!(
            (floats(n), &answer["data"][n]["index"]),
            (expected[n].vector.clone(), &json!(n))
        );
    }
    let tokens = expected.iter().map(|one| one.tokens).sum::<usize>();
    assert_eq!(answer["usage"], json!({ "prompt_tokens": tokens, "total_tokens": tokens }));
    assert_eq!(
        (&answer["object"], &answer["model"], &answer["data"][0]["object"]),
        (&json!("list"), &json!("tales"), &json!("embedding"))
    );
    // OpenAI's client asks for base64, of four bytes a number: the first three make the first four
    // characters.
    let encoded = embed(json!({ "input": texts[0], "encoding_format": "base64" })).json();
    let encoded = encoded["data"][0]["embedding"].as_str().unwrap();
    let digit = |c: u8| {
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
            .bytes()
            .position(|d| d == c)
            .unwrap_or(0) as u32
    };
    let bytes: Vec<u8> = encoded
        .as_bytes()
        .chunks(4)
        .flat_map(|four| {
            four.iter().fold(0, |bits, &c| bits << 6 | digit(c)).to_be_bytes()[1..].to_vec()
        })
        .take(4 * 512)
        .collect();
    assert_eq!(
        (encoded.len(), bytes),
        (2732, expected[0].vector.iter().flat_map(|x| x.to_le_bytes()).collect())
    );
    let ids = model.tokenizer().unwrap().encode(texts[0]).unwrap();
    assert_eq!(
        embed(json!({ "input": ids })).json()["data"][0]["embedding"],
        answer["data"][0]["embedding"]
    );
    for (body, param, words) in [
        (json!({}), "input", "missing field `input`"),
        (json!({ "input": "" }), "input", "text 0 has no tokens"),
        (json!({ "input": ["a", ""] }), "input", "text 1 has no tokens"),
        (json!({ "input": [] }), "input", "0 prompts"),
        (json!({ "input": vec!["a"; 2049] }), "input", "2049 prompts"),
        (json!({ "input": [3, -1] }), "input", "token ids"),
        (json!({ "input": [99999] }), "input", "token 99999"),
        // Of which a model has room for 512.
        (json!({ "input": vec![7; 501] }), "input", "501 tokens"),
        (json!({ "input": "a", "dimensions": 64 }), "dimensions", "only 512"),
        (json!({ "input": "a", "encoding_format": "hex" }), "encoding_format", "base64"),
        (json!({ "input": "a", "stream": true }), "stream", "unknown field"),
    ] {
        let answer = embed(body);
        let (status, error) = (answer.status, answer.json()["error"].clone());
        assert!(
            status == 400
                && error["param"] == param
                && error["message"].as_str().unwrap().contains(words),
            "{status} {error}"
        );
    }
    assert_eq!(embed(json!({ "input": "a", "model": "other" })).status, 404);
}

/// One is computed, and as many wait as the queue has places.
#[test]
fn the_embeddings_queue_is_bounded() {
    let server = Served::new(&cpu(), 1, 1, |options| options);
    let body = json!({ "input": vec![vec![7; 60]; 8] });
    let statuses: Vec<_> = std::thread::scope(|scope| {
        // One after another, so that none is refused because others are prepared.
        let ask = |_| {
            let asked = scope.spawn(|| post(&server.address, "/v1/embeddings", &body).status);
            sleep(Duration::from_millis(50));
            asked
        };
        let asked: Vec<_> = (0..6).map(ask).collect();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    assert_eq!(
        post(&server.address, "/v1/embeddings", &json!({ "input": "a" })).status,
        200,
        "there is room again"
    );
}

#[test]
fn vectors_do_not_depend_on_parts() {
    let (server, model) = (Served::new(&cpu(), 1, 1, |options| options), cpu());
    let texts: Vec<Vec<u32>> =
        (0..24).map(|n| (0..1 + n * 37 % 50).map(|token| 20 + token as u32).collect()).collect();
    let alone = |ids: &Vec<u32>| {
        pollster::block_on(model.embed_ids(std::slice::from_ref(ids), &EmbedOptions::default()))
            .unwrap()
            .remove(0)
    };
    let answer = post(&server.address, "/v1/embeddings", &json!({ "input": texts })).json();
    for (n, ids) in texts.iter().enumerate() {
        let found: Vec<f32> = answer["data"][n]["embedding"]
            .as_array()
            .unwrap()
            .iter()
            .map(|x| x.as_f64().unwrap() as f32)
            .collect();
        assert!(
            found == alone(ids).vector && answer["data"][n]["index"] == n,
            "text {n}, of {} tokens",
            ids.len()
        );
    }
    assert_eq!(answer["usage"]["total_tokens"], texts.iter().map(Vec::len).sum::<usize>());
}
