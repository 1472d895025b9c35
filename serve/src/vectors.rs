//! Embeddings and scores, computed in parts: others get their turn between two of them.

use crate::{
    budget::Held,
    client::Client,
    embeddings::{self, Answer},
    error::{ApiError, Result},
    json,
    limits::{PART_TEXTS, PART_TOKENS},
    logprobs::Echo,
    request::Prompt,
    shared::{Body, Shared},
    turns::{Counts, Full},
};
use bitnet_wgpu::{
    Error,
    model::{EmbedOptions, Embedding},
};
use std::cmp::Reverse;
use tokio::select;

/// Computes what a request asks for. Dropped, as when the client has gone, it is given up.
pub async fn embed(shared: &Shared, client: Client, body: Body) -> Result<Answer> {
    let mut alive = shared.life.begin()?;
    let held = shared.bytes.begin(client);
    let prepared =
        shared.prepare(client, body, move |shared, bytes| prepare(shared, bytes, held)).await?;
    let found = select! {
        found = compute(shared, client, &prepared.ids) => found?,
        () = alive.cut() => return Err(ApiError::ending()),
    };
    Ok(Answer::new(&prepared.request, shared.options.name.clone(), found, prepared.held))
}

struct Prepared {
    request: embeddings::Request,
    ids: Vec<Vec<u32>>,
    /// Counts the tokens, and the vectors to come.
    held: Held,
}

fn prepare(shared: &Shared, bytes: &[u8], mut held: Held) -> Result<Prepared> {
    let mut request = embeddings::Request::read(json::read(bytes)?, shared.options.strict)?;
    let hidden = shared.batch.model().config().hidden;
    shared.check_model(request.model.as_deref())?;
    request.check(hidden)?;
    let (mut ids, mut tokens) = (Vec::new(), 0);
    for (n, text) in std::mem::take(&mut request.texts).into_iter().enumerate() {
        let text = encode(shared, text).map_err(|error| ApiError::library("input", &error))?;
        if text.is_empty() {
            return Err(ApiError::field("input", format!("text {n} has no tokens")));
        }
        tokens += text.len();
        if tokens > shared.options.max_embedding_tokens {
            let what = format!(
                "more than {} tokens in total (`--max-embedding-tokens`)",
                shared.options.max_embedding_tokens
            );
            return Err(ApiError::field("input", what));
        }
        ids.push(text);
    }
    let bytes = size_of::<f32>() * (tokens + ids.len() * hidden);
    hold(shared, &mut held, bytes, "input", "embeddings")?;
    Ok(Prepared { request, ids, held })
}

/// Counts bytes of an answer, which a field of the request asks for.
pub fn hold(shared: &Shared, held: &mut Held, bytes: usize, field: &str, what: &str) -> Result<()> {
    let most = shared.options.max_pending_bytes / 2;
    if bytes > most {
        return Err(ApiError::field(
            field,
            format!("{what} of {bytes} bytes; at most {most} are accepted in one request"),
        ));
    }
    held.grow(bytes)
        .map_err(|_| ApiError::busy(format!("no room for {bytes} bytes of {what} at the moment")))
}

/// The tokens of a text, no longer than the texts for which the server has room.
fn encode(shared: &Shared, text: Prompt) -> bitnet_wgpu::Result<Vec<u32>> {
    let ids = match text {
        Prompt::Ids(ids) => ids,
        Prompt::Text(text) if text.is_empty() => Vec::new(),
        Prompt::Text(text) => shared.text_tokenizer()?.encode_for_embedding(&text)?,
        Prompt::Chat { .. } => {
            return Err(Error::Invalid {
                op: "embed",
                what: "a conversation cannot be embedded".into(),
            });
        }
    };
    shared.check_length(ids.len())?;
    Ok(ids)
}

/// Computes embeddings of texts, in their order.
async fn compute(shared: &Shared, client: Client, ids: &[Vec<u32>]) -> Result<Vec<Embedding>> {
    let busy = |full| busy(shared, full);
    let mut place = Some(shared.embedding.place(client).map_err(busy)?);
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_by_key(|&n| Reverse(ids[n].len()));
    let mut found: Vec<(usize, Embedding)> = Vec::new();
    let mut left = &order[..];
    while let ([longest, ..], Some(waiting)) = (left, place.take()) {
        let turn = waiting.turn().await.map_err(busy)?;
        let (part, rest) =
            left.split_at(left.len().min(PART_TEXTS).min(PART_TOKENS / ids[*longest].len()).max(1));
        found.extend(part.iter().copied().zip(compute_part(shared, part, ids).await?));
        left = rest;
        place = if left.is_empty() { None } else { turn.pass() };
    }
    found.sort_by_key(|(n, _)| *n);
    Ok(found.into_iter().map(|(_, vector)| vector).collect())
}

/// The error of a full queue beside the batch.
fn busy(shared: &Shared, _: Full) -> ApiError {
    let (Counts { running, waiting }, queue) =
        (shared.embedding.counts(), shared.batch.options().get_queue());
    ApiError::library("input", &Error::Busy { running, waiting, slots: 1, queue })
}

/// Computes the log-probabilities of prompts, one prompt at a time.
pub async fn score(
    shared: &Shared,
    client: Client,
    prompts: &mut [Echo],
    top: usize,
) -> Result<()> {
    let busy = |full| busy(shared, full);
    let mut place = None;
    let count = prompts.len();
    for (n, prompt) in prompts.iter_mut().enumerate() {
        let waiting = place.take().map_or_else(|| shared.embedding.place(client), Ok);
        let turn = waiting.map_err(busy)?.turn().await.map_err(busy)?;
        let found = shared.batch.model().logprobs(&prompt.ids, top).await;
        prompt.logprobs = found.map_err(|error| failed(shared, "prompt", error))?;
        place = if n + 1 < count { turn.pass() } else { None };
    }
    Ok(())
}

/// Returns the answer to an error of the model, and notes a lost device.
fn failed(shared: &Shared, field: &str, error: Error) -> ApiError {
    let during = match &error {
        Error::DeviceLost { during } | Error::WaitLimit { during, .. } => Some(during.as_str()),
        Error::Unfinished { submission, .. } => Some(*submission),
        _ => None,
    };
    if let Some(during) = during {
        shared.lost.get_or_init(|| during.to_owned());
    }
    ApiError::library(field, &error)
}

async fn compute_part(shared: &Shared, part: &[usize], ids: &[Vec<u32>]) -> Result<Vec<Embedding>> {
    let texts: Vec<Vec<u32>> = part.iter().map(|&n| ids[n].clone()).collect();
    shared.batch.model().embed_ids(&texts, &EmbedOptions::default()).await.map_err(|error| {
        match error {
            // Of the model's files, which are no business of a client's.
            Error::Unsupported { .. } => {
                ApiError::not_implemented("embeddings of this model are not supported")
            }
            // It counts from the part's first text.
            Error::Overflow { .. } => ApiError::server("the embedding of a text is not finite"),
            error => failed(shared, "input", error),
        }
    })
}
