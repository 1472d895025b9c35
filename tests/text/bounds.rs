//! Texts and templates that would take too much work or memory.

use super::*;

/// Number of bytes that were found, and of those that are allowed.
fn too_long<T: std::fmt::Debug>(result: Result<T>) -> (usize, usize) {
    match result {
        Err(Error::TextTooLong { bytes, most, .. }) => (bytes, most),
        other => panic!("{other:?}"),
    }
}

/// Bytes of text that the longest token of the shipped vocabulary stands for.
fn longest() -> usize {
    let json = tales("tokenizer.json");
    let vocabulary = json["model"]["vocab"].as_object().unwrap().keys().map(|token| token.chars().count());
    vocabulary.chain(["<|begin_of_text|>".len()]).max().unwrap()
}

#[test]
fn texts_beyond_the_bound_are_refused() {
    let most = 8 * longest();
    let tokenizer = TOKENIZER.within(8);
    let (fits, long) = ("a".repeat(most), "a".repeat(most + 1));
    for encode in [Tokenizer::encode, Tokenizer::encode_plain, Tokenizer::encode_for_embedding] {
        assert_eq!(encode(&tokenizer, &fits).unwrap(), encode(&TOKENIZER, &fits).unwrap());
        assert_eq!(too_long(encode(&tokenizer, &long)), (most + 1, most));
        assert!(encode(&TOKENIZER, &long).is_ok());
    }
    let error = tokenizer.encode(&long).unwrap_err();
    assert_eq!(error.kind(), bitnet_wgpu::ErrorKind::Invalid);
    assert_eq!(error.to_string(), format!("the text has {} bytes; 8 tokens hold at most {most}", most + 1));
}

/// The longest tokens, one after the other, have the bytes that their number allows.
#[test]
fn texts_of_the_longest_tokens_pass() {
    for tokenizer in [&*TOKENIZER, &SENTENCE_PIECE] {
        for id in 0..tokenizer.vocab_size() as u32 {
            let text = tokenizer.decode_with_special(&[id; 3]).unwrap();
            let ids = tokenizer.encode_plain(&text).unwrap();
            assert_eq!(tokenizer.within(ids.len()).encode_plain(&text).unwrap(), ids, "{text:?}");
        }
    }
}

#[test]
fn output_of_templates_stops_at_the_bound() {
    for template in [
        "{{ 'a ' * 1000000 }}",
        "{% for i in range(100000) %}aaaaaaaaaa{% endfor %}",
        "{% for m in messages %}{{ m.content * 100 }}{% endfor %}",
    ] {
        let tokenizer = with_template(template).within(64);
        let messages = user(&"Hello ".repeat(200));
        let (bytes, most) = too_long(tokenizer.chat(&messages));
        assert_eq!(most, 64 * longest());
        // Stopped at the piece that goes beyond it.
        assert!(bytes > most && bytes <= most + 2_000_000, "{bytes}");
        assert!(too_long(tokenizer.chat_text(&messages, true)).0 == bytes);
    }
    let (bytes, most) = too_long(with_template("{% for i in range(100000) %}aaaaaaaaaa{% endfor %}").within(64).chat(&[]));
    assert!(bytes <= most + 10);
}

/// Of a short conversation and a small context, a template's values are small, too.
#[test]
fn values_of_templates_are_in_proportion() {
    let gathered = |count: usize| format!("{{% set x = 'a' * {count} %}}{{{{ x | length }}}}");
    let tokenizer = |count| with_template(&gathered(count)).within(64);
    assert_eq!(tokenizer(1 << 20).chat_text(&[], true).unwrap(), "1048576");
    let error = message(tokenizer(20 << 20).chat_text(&[], true));
    assert!(error.contains("take more than 16 MiB"), "{error}");
    // In proportion to the conversation.
    assert!(tokenizer(20 << 20).within(1 << 20).chat_text(&user(&"a".repeat(1 << 20)), true).is_ok());
}

#[test]
fn models_refuse_prompts_beyond_their_context() {
    let model = bitnet_wgpu::model::Model::open(TALES).unwrap();
    let most = model.config().context * longest();
    let long = "a".repeat(most + 1);
    assert_eq!(too_long(model.encode_prompt(&long)), (most + 1, most));
    assert_eq!(too_long(model.generate(&long, &Default::default()).map(|_| ())), (most + 1, most));
    let messages = [Message::new("user", long.clone())];
    assert_eq!(too_long(model.chat(&messages, &Default::default()).map(|_| ())).1, most);
    assert_eq!(too_long(pollster::block_on(model.embed(&[&long], &Default::default()))).1, most);
}
