//! `/tokenize` and `/detokenize`, as vLLM has them.

use crate::{
    conversation::messages,
    error::{ApiError, Result},
    fields::Fields,
    json,
    prepare::encode_chat,
    request::ids,
    shared::Shared,
    tools::{Api, Tools},
};
use serde_json::{Value, json};

/// Returns the tokens of a text (`prompt`), or of a conversation (`messages`) with its `tools`.
pub fn tokenize(shared: &Shared, body: &[u8]) -> Result<Value> {
    let mut fields = Fields::new("", json::read(body)?, shared.options.strict)?;
    shared.check_model(fields.text("model")?.as_deref())?;
    let text = fields.text("prompt")?;
    let special = fields.flag_or("add_special_tokens", true)?;
    let conversation = fields.take("messages");
    let tools = match conversation {
        Some(_) => Tools::take(&mut fields, Api::Chat)?,
        None => None,
    };
    fields.end()?;
    let (field, tokens) = match (text, conversation) {
        (Some(_), Some(_)) => {
            return Err(ApiError::field("messages", "`prompt` is there too; expected one of them"));
        }
        (None, None) => return Err(ApiError::missing("prompt")),
        (Some(text), None) => {
            let tokenizer = shared.text_tokenizer();
            let encode = |tokenizer: bitnet_wgpu::model::Tokenizer| match special {
                true => tokenizer.encode(&text),
                false => tokenizer.encode_plain(&text),
            };
            ("prompt", tokenizer.and_then(encode))
        }
        (None, conversation) => {
            let messages = messages(conversation, shared.options.strict)?;
            let mut tokenizer = shared.tokenizer();
            if let (Some(tools), Ok(plain)) = (tools, &tokenizer) {
                tokenizer = Ok(tools.prepare(plain)?.0);
            }
            ("messages", tokenizer.and_then(|it| encode_chat(&it, &messages, false)))
        }
    };
    let tokens = tokens.map_err(|error| ApiError::library(field, &error))?;
    let capacity = shared.batch.options().capacity();
    Ok(json!({ "tokens": tokens, "count": tokens.len(), "max_model_len": capacity }))
}

/// Returns the text of tokens, with special tokens by their names.
pub fn detokenize(shared: &Shared, body: &[u8]) -> Result<Value> {
    let mut fields = Fields::new("", json::read(body)?, shared.options.strict)?;
    shared.check_model(fields.text("model")?.as_deref())?;
    let wrong = || ApiError::field("tokens", "expected a list of token ids");
    let tokens = match fields.take("tokens") {
        Some(Value::Array(list)) => ids(&list).ok_or_else(wrong)?,
        Some(_) => return Err(wrong()),
        None => return Err(ApiError::missing("tokens")),
    };
    fields.end()?;
    let text = shared
        .check_length(tokens.len())
        .and_then(|()| shared.text_tokenizer())
        .and_then(|it| it.decode_with_special(&tokens));
    Ok(json!({ "prompt": text.map_err(|error| ApiError::library("tokens", &error))? }))
}
