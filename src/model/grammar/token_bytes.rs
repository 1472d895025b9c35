//! The bytes of a tokenizer's tokens, for its vocabulary of grammars.

use crate::{
    error::Result,
    model::tokenizer::{
        text::{Parts, Tokenizer, is_byte_level},
        vocabulary::{Vocabulary, failed, special},
    },
};
use llguidance::earley::SlicedBiasComputer;
use std::collections::HashMap;
use tokenizers::{Decoder as _, DecoderWrapper};

/// Returns the vocabulary of a tokenizer, which keeps it.
///
/// # Errors
/// [`Error::Grammar`](crate::Error::Grammar) for more tokens than fit, or a tokenizer without a
/// decoder.
pub fn vocabulary_of(tokenizer: &Tokenizer) -> Result<Vocabulary> {
    let parts = &*tokenizer.0;
    if let Some(kept) = parts.vocabulary.get() {
        return Ok(kept.clone());
    }
    let made = Vocabulary::new(token_bytes(parts)?, &SlicedBiasComputer::json_slices())?;
    Ok(parts.vocabulary.get_or_init(|| made).clone())
}

/// Bytes of every token of a tokenizer, by their ids, as they are in the middle of a text.
fn token_bytes(parts: &Parts) -> Result<Vec<Vec<u8>>> {
    let decoder =
        parts.inner.get_decoder().ok_or_else(|| failed("the tokenizer has no decoder"))?;
    let bytes_of = byte_alphabet();
    let byte_level = is_byte_level(&parts.inner);
    let falls_back = falls_back_to_bytes(decoder);
    let of_token = |name: String| {
        if byte_level {
            let bytes: Option<Vec<u8>> = name.chars().map(|c| bytes_of.get(&c).copied()).collect();
            return bytes.unwrap_or(name.into_bytes());
        }
        if let Some(byte) = byte_token(&name).filter(|_| falls_back) {
            return vec![byte];
        }
        // What decoders strip from the beginning of a text is part of it elsewhere.
        let text = decoder.decode(vec!["a".into(), name]).unwrap_or_default();
        text.strip_prefix('a').unwrap_or_default().as_bytes().to_vec()
    };
    let names = parts.inner.get_vocab(true);
    let count = names.values().max().map_or(0, |&last| last as usize + 1);
    let mut tokens = vec![Vec::new(); count];
    for (name, id) in names {
        let is_control = parts.special.contains(&id) || parts.eos.contains(&id);
        tokens[id as usize] =
            if is_control || parts.bos == Some(id) { special(&name) } else { of_token(name) };
    }
    Ok(tokens)
}

/// Returns whether tokens such as `<0x0A>` are bytes.
fn falls_back_to_bytes(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteFallback(_) => true,
        DecoderWrapper::Sequence(steps) => steps.get_decoders().iter().any(falls_back_to_bytes),
        _ => false,
    }
}

/// The byte of a token such as `<0x0A>`.
fn byte_token(name: &str) -> Option<u8> {
    let digits = name.strip_prefix("<0x")?.strip_suffix('>').filter(|digits| digits.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}

/// GPT-2's alphabet: printable bytes of Latin-1 are themselves, others come from U+0100 on.
fn byte_alphabet() -> HashMap<char, u8> {
    let is_printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let (printable, others): (Vec<u8>, Vec<u8>) = (0..=u8::MAX).partition(is_printable);
    let printable = printable.into_iter().map(|byte| (char::from(byte), byte));
    printable.chain(('\u{100}'..).zip(others)).collect()
}
