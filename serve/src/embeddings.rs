//! Texts as vectors: `/v1/embeddings`.

use crate::{
    error::{ApiError, Result},
    fields::Fields,
    request::{Prompt, prompts},
};
use bitnet_wgpu::model::Embedding;
use serde_json::{Value, json};

/// The most texts of a request, as in OpenAI's API.
const MOST_TEXTS: usize = 2048;

/// What a body asks for, checked as far as it can be without a model.
pub struct Request {
    pub model: Option<String>,
    pub texts: Vec<Prompt>,
    /// Are vectors to be little-endian floats in base64? OpenAI's own client asks for it.
    base64: bool,
    /// How long vectors are to be; only as they are will do.
    dimensions: Option<usize>,
}

impl Request {
    pub fn read(body: Value) -> Result<Self> {
        let mut fields = Fields::new("", body)?;
        let texts = prompts("input", MOST_TEXTS, fields.take("input"))?;
        fields.harmless(&["user"]);
        let base64 = match fields.text("encoding_format")?.as_deref() {
            None | Some("float") => false,
            Some("base64") => true,
            Some(_) => return Err(fields.wrong("encoding_format", "float or base64 is expected")),
        };
        let (model, dimensions) = (fields.text("model")?, fields.count("dimensions", 1..=u64::MAX)?);
        fields.end()?;
        Ok(Self { model, texts, base64, dimensions })
    }

    /// Are vectors of so many numbers what is asked for?
    pub fn check(&self, hidden: usize) -> Result<()> {
        match self.dimensions {
            Some(asked) if asked != hidden => Err(ApiError::field("dimensions", format!("vectors have {hidden} numbers, and are not cut"))),
            _ => Ok(()),
        }
    }

    /// The body of the answer.
    pub fn answer(&self, model: &str, found: &[Embedding]) -> Value {
        let embedding = |(index, found): (usize, &Embedding)| {
            let vector = if self.base64 {
                let bytes: Vec<u8> = found.vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                json!(base64::encode(bytes))
            } else {
                json!(found.vector)
            };
            json!({ "object": "embedding", "index": index, "embedding": vector })
        };
        let (data, tokens) =
            (found.iter().enumerate().map(embedding).collect::<Value>(), found.iter().map(|found| found.tokens).sum::<usize>());
        json!({ "object": "list", "data": data, "model": model, "usage": { "prompt_tokens": tokens, "total_tokens": tokens } })
    }
}
