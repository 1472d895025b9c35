//! Tokens to text, one by one.

use super::*;

/// In SentencePiece a space belongs to the word after it, and is left out where a text begins.
#[test]
fn what_follows_a_prompt_keeps_its_space() {
    let text = "Oliver ran after the kite.";
    for tokenizer in [&*SENTENCE_PIECE, &*TOKENIZER] {
        let ids = tokenizer.encode_plain(text).unwrap();
        for cut in 0..ids.len() {
            let mut stream = tokenizer.stream();
            stream.follow(&ids[..cut]);
            let rest: String = ids[cut..].iter().map(|&id| stream.push(id).unwrap()).collect();
            let prompt = tokenizer.decode(&ids[..cut]).unwrap();
            assert_eq!(prompt + &rest + &stream.finish().unwrap(), text, "{cut}");
        }
        // After a special token a text begins.
        let mut stream = tokenizer.stream();
        stream.follow(&[ids[0], tokenizer.bos().unwrap()]);
        let begun: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
        assert_eq!(begun, text);
        stream.follow(&[u32::MAX]);
    }
}

/// Bytes that are never a character are given up while they come: a stream holds a few tokens,
/// however long it is.
#[test]
fn what_is_no_character_is_not_held_back() {
    let byte = |byte: u8| SENTENCE_PIECE.token(&format!("<0x{byte:02X}>")).unwrap();
    let mut stream = SENTENCE_PIECE.stream();
    let mut text = String::new();
    for at in 1..=4000 {
        text += &stream.push(byte(0x80)).unwrap();
        assert!(text.chars().count() + 70 >= at, "{} of {at}", text.chars().count());
    }
    text += &stream.finish().unwrap();
    assert_eq!(text, "\u{fffd}".repeat(4000));
}

#[test]
fn characters_come_whole() {
    let text = "a🦊東é!";
    let mut stream = TOKENIZER.stream();
    let mut pieces: Vec<String> =
        TOKENIZER.encode(text).unwrap().iter().map(|id| stream.push(*id).unwrap()).collect();
    pieces.retain(|piece| !piece.is_empty());
    assert_eq!(pieces, ["a", "🦊", "東", "é", "!"]);
    assert_eq!(stream.finish().unwrap(), "");

    let fox = TOKENIZER.encode_plain("🦊").unwrap();
    assert_eq!(fox.iter().take(2).map(|id| stream.push(*id).unwrap()).collect::<String>(), "");
    assert_eq!(stream.finish().unwrap(), "\u{fffd}");
    assert_eq!(stream.finish().unwrap(), "");
}

#[test]
fn replacement_characters_of_the_output_are_kept() {
    let text = "\u{fffd}\u{fffd}ኲ";
    let ids = SENTENCE_PIECE.encode_plain(text).unwrap();
    assert_eq!(streamed(SENTENCE_PIECE.stream(), &ids), text);
}

proptest! {
    #[test]
    fn streams_give_what_decode_gives(ids in prop::collection::vec(prop_oneof![0u32..256, 0u32..2048], 0..60)) {
        prop_assert_eq!(streamed(TOKENIZER.stream(), &ids), TOKENIZER.decode(&ids).unwrap());
    }

    #[test]
    fn streams_of_sentence_pieces_too(text in "\\PC{0,40}", noise in prop::collection::vec(prop_oneof![3u32..259, 0u32..420], 0..60)) {
        let ids = SENTENCE_PIECE.encode_plain(&text).unwrap();
        prop_assert_eq!(streamed(SENTENCE_PIECE.stream(), &ids), SENTENCE_PIECE.decode(&ids).unwrap());
        // Of bytes that are not UTF-8, a stream keeps what was whole before.
        let (noise, streamed) = (SENTENCE_PIECE.decode(&noise).unwrap(), streamed(SENTENCE_PIECE.stream(), &noise));
        prop_assert!(noise.contains(char::REPLACEMENT_CHARACTER) || noise == streamed);
    }

    #[test]
    fn text_survives(text in "\\PC{0,40}") {
        let ids = TOKENIZER.encode_plain(&text).unwrap();
        prop_assert_eq!(TOKENIZER.decode_with_special(&ids).unwrap(), text);
    }
}
