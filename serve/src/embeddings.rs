//! Requests for embeddings and their answers: `/v1/embeddings`.

use crate::{
    budget::Held,
    error::{ApiError, Result},
    fields::Fields,
    request::{HARMLESS, Prompt, prompts},
};
use axum::{
    body::Body,
    http::header,
    response::{IntoResponse, Response},
};
use bitnet_wgpu::model::Embedding;
use futures_util::stream::iter;
use serde_json::{Value, json};
use std::{convert::Infallible, iter::once};

/// Most texts of a request, as in OpenAI's API.
const MOST_TEXTS: usize = 2048;

/// A request for embeddings, checked as far as it can be without a model.
pub struct Request {
    pub model: Option<String>,
    pub texts: Vec<Prompt>,
    /// Whether vectors are little-endian floats in base64: OpenAI's own client asks for it.
    base64: bool,
    /// Length of the vectors; only their own will do.
    dimensions: Option<usize>,
}

impl Request {
    pub fn read(body: Value, strict: bool) -> Result<Self> {
        let mut fields = Fields::new("", body, strict)?;
        let texts = prompts("input", MOST_TEXTS, fields.take("input"))?;
        fields.harmless(&HARMLESS)?;
        let base64 = match fields.text("encoding_format")?.as_deref() {
            None | Some("float") => false,
            Some("base64") => true,
            Some(_) => return Err(fields.wrong("encoding_format", "expected `float` or `base64`")),
        };
        let (model, dimensions) =
            (fields.text("model")?, fields.count("dimensions", 1..=u64::MAX)?);
        fields.end()?;
        Ok(Self { model, texts, base64, dimensions })
    }

    /// Checks that vectors of `hidden` numbers are what is asked for.
    pub fn check(&self, hidden: usize) -> Result<()> {
        match self.dimensions {
            Some(asked) if asked != hidden => Err(ApiError::field(
                "dimensions",
                format!("only {hidden}, the size of the model's embeddings, is accepted"),
            )),
            _ => Ok(()),
        }
    }
}

/// An answer, serialized as it is sent: its JSON is several times as long as its numbers.
pub struct Answer {
    base64: bool,
    model: String,
    found: Vec<Embedding>,
    held: Held,
}

impl Answer {
    pub fn new(request: &Request, model: String, found: Vec<Embedding>, held: Held) -> Self {
        Self { base64: request.base64, model, found, held }
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let Self { base64, model, found, held } = self;
        let tokens = found.iter().map(|found| found.tokens).sum::<usize>();
        let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
        let end =
            format!("],\"model\":{},\"object\":\"list\",\"usage\":{usage}}}", Value::from(model));
        let vectors = found.into_iter().enumerate().map(move |(n, found)| {
            let _held = &held;
            let comma = if n == 0 { "" } else { "," };
            format!(
                "{comma}{{\"embedding\":{},\"index\":{n},\"object\":\"embedding\"}}",
                vector(&found.vector, base64)
            )
        });
        let texts = once("{\"data\":[".to_owned()).chain(vectors).chain(once(end));
        let body = Body::from_stream(iter(texts.map(Ok::<_, Infallible>)));
        ([(header::CONTENT_TYPE, "application/json")], body).into_response()
    }
}

/// A vector in JSON.
fn vector(vector: &[f32], base64: bool) -> String {
    if base64 {
        let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
        return format!("\"{}\"", base64::encode(bytes));
    }
    let numbers: Vec<String> = vector.iter().map(|x| Value::from(*x).to_string()).collect();
    format!("[{}]", numbers.join(","))
}
