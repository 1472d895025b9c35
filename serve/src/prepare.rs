//! The work of a request before it runs: prompts become tokens.

use crate::{
    budget::Held,
    choices::{Choice, Choices},
    client::Client,
    error::{ApiError, Result},
    json,
    limits::{LOGPROB_BYTES, LOGPROB_NUMBERS},
    logprobs::Echo,
    options::Options,
    parts::Parts,
    repeated::Repeated,
    request::{Prompt, Request, Thinking},
    shared::{Body, Shared},
    vectors,
};
use bitnet_wgpu::{
    Error,
    model::{
        GenerateOptions, Grammar, Message, ReasoningParser, Tokenizer, ToolCallParser, ToolChoice,
    },
};
use serde_json::Value;
use std::{sync::Arc, time::Instant};
use tokio::select;

/// Form of an answer, as its request asks for it.
pub struct Shape {
    pub stream: bool,
    /// Whether a last chunk says how many tokens there were.
    pub usage: bool,
    /// Whether tokens have log-probabilities.
    pub logprobs: bool,
    /// Choices of each prompt.
    pub n: usize,
    /// The prompts, if the answer repeats them.
    pub echoes: Vec<Echo>,
    /// Stop strings of the request.
    pub stops: Vec<String>,
    /// Fields of the answer that repeat those of the request.
    pub repeated: Repeated,
    /// Bytes of log-probabilities and of repeated fields, counted until the answer is written.
    pub held: Arc<Held>,
}

/// Begins what a request asks for.
pub async fn begin(
    shared: &Shared,
    client: Client,
    body: Body,
    read: fn(Value, &Options) -> Result<Request>,
) -> Result<(Shape, Choices)> {
    let (mut alive, arrival) = (shared.life.begin()?, Instant::now());
    let prepared = shared.prepare(client, body, move |shared, bytes| {
        let mut request = read(json::read(bytes)?, &shared.options)?;
        let prompts = std::mem::take(&mut request.prompts);
        if let Some(salt) = salt(client, request.cache_salt.as_deref()) {
            request.options = request.options.cache_salt(Some(salt));
        }
        let texts = if request.echo { texts(&prompts) } else { Vec::new() };
        let choices = choices(shared, &request, prompts)?;
        let held = hold(shared, client, &request, &choices)?;
        let ids = choices.iter().step_by(request.n).map(|choice| choice.ids.to_vec());
        let echoes = ids.zip(texts).map(|(ids, text)| echo(shared, ids, text));
        let echoes = echoes.collect::<bitnet_wgpu::Result<Vec<_>>>();
        let echoes = echoes.map_err(|error| ApiError::library(request.field, &error))?;
        Ok((request, choices, echoes, held))
    });
    let (request, choices, mut echoes, held) = prepared.await?;
    if let Some(top) = request.logprobs {
        select! {
            done = vectors::score(shared, client, &mut echoes, top) => done?,
            () = alive.cut() => return Err(ApiError::ending()),
        }
    }
    let choices =
        Choices::begin(shared, client, choices, request.n, request.reasoning, alive, arrival)?;
    let Request { stream, usage, n, stops, repeated, .. } = request;
    let logprobs = request.logprobs.is_some();
    let held = Arc::new(held);
    Ok((Shape { stream, usage, logprobs, n, echoes, stops, repeated, held }, choices))
}

/// Counts the bytes of the log-probabilities of an answer, which is JSON at its end. A stream holds
/// the numbers that its reader has not taken. Where there are none, fields may be repeated.
fn hold(shared: &Shared, client: Client, request: &Request, choices: &[Choice]) -> Result<Held> {
    let mut held = shared.bytes.begin(client);
    let Some(top) = request.logprobs else {
        // They are in the first two events of a stream.
        let Repeated { json, longest } = &request.repeated;
        vectors::hold(shared, &mut held, 3 * json.len(), longest, "fields that events repeat")?;
        return Ok(held);
    };
    let capacity = shared.batch.options().capacity();
    let written = (top + 1) * LOGPROB_BYTES;
    let generated = if request.stream { (top + 1) * LOGPROB_NUMBERS } else { written };
    let bytes = |choice: &Choice| {
        let prompt = choice.ids.len();
        let repeated = if request.echo { prompt } else { 0 };
        let most = request.most.min(capacity.saturating_sub(prompt));
        repeated.saturating_mul(written).saturating_add(most.saturating_mul(generated))
    };
    let bytes = choices.iter().map(bytes).fold(0, usize::saturating_add);
    vectors::hold(shared, &mut held, bytes, "logprobs", "log-probabilities")?;
    Ok(held)
}

/// The texts of prompts; none for token ids.
fn texts(prompts: &[Prompt]) -> Vec<Option<String>> {
    let text = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => Some(text.clone()),
        _ => None,
    };
    prompts.iter().map(text).collect()
}

fn echo(shared: &Shared, ids: Vec<u32>, text: Option<String>) -> bitnet_wgpu::Result<Echo> {
    let text = text.map_or_else(|| shared.text_tokenizer()?.decode(&ids), Ok)?;
    Ok(Echo { ids, text, logprobs: Vec::new() })
}

/// The salt of a request's cached prefix: its own, and its key where there are several. Different
/// ones make different salts.
fn salt(client: Client, own: Option<&str>) -> Option<String> {
    match client {
        Client::Key(key) => Some(format!("{key}:{}", own.unwrap_or(""))),
        Client::Peer(_) => own.map(|own| format!(":{own}")),
    }
}

/// The choices of all prompts, checked as the batch checks them.
fn choices(shared: &Shared, request: &Request, prompts: Vec<Prompt>) -> Result<Vec<Choice>> {
    shared.check_model(request.model.as_deref())?;
    let (field, n, count) = (request.field, request.n, prompts.len());
    let most = shared.batch.options().slots().saturating_add(shared.batch.options().get_queue());
    if count * n > most {
        // To try again would not help.
        let field = if count > most { field } else { "n" };
        return Err(ApiError::field(
            field,
            format!("{n} choices of {count} prompts; at most {most} in total are accepted"),
        ));
    }
    request
        .options
        .check(shared.batch.model().config().vocab)
        .map_err(|error| ApiError::request(error.to_string()))?;
    let chat = Chat::new(shared, request)?;
    let options = request.options.clone().grammar(chat.grammar.clone());
    let mut choices = Vec::new();
    for prompt in prompts {
        let encoded = encode(shared, prompt, &chat, &options);
        let (ids, parts) = encoded.map_err(|error| match error {
            Error::Grammar { .. } => ApiError::library(&chat.source, &error),
            error => ApiError::library(field, &error),
        })?;
        for _ in 0..n {
            let seed = request.seed.wrapping_add(choices.len() as u64);
            let sampling = options.get_sampling().seed(seed);
            let options = options.clone().sampling(sampling);
            choices.push(Choice { ids: ids.clone(), options, parts: parts.clone() });
        }
    }
    Ok(choices)
}

/// Returns the tokenizer of conversations whose model reasons as the request says; none where that
/// is the server's own.
pub fn thinking_tokenizer(
    shared: &Shared,
    thinking: Option<Thinking>,
) -> Result<Option<Tokenizer>> {
    let Some(Thinking { is_on, field, is_required }) = thinking else { return Ok(None) };
    match shared.tokenizer().and_then(|tokenizer| tokenizer.with_thinking(is_on)) {
        Ok(tokenizer) => Ok(Some(tokenizer)),
        Err(Error::ChatTemplate { .. }) if !is_required => Ok(None),
        Err(error) => Err(ApiError::library(field, &error)),
    }
}

/// How a request's conversation becomes tokens.
struct Chat {
    /// The tokenizer, if it is another than the server's.
    tokenizer: Option<Tokenizer>,
    /// Finds tool calls in the answer.
    calls: Option<ToolCallParser>,
    /// Whether the answer can only be calls.
    is_forced: bool,
    /// What the answer must be: calls, or the format that is asked for.
    grammar: Option<Grammar>,
    /// The field that the grammar is of.
    source: String,
}

impl Chat {
    fn new(shared: &Shared, request: &Request) -> Result<Self> {
        let tokenizer = thinking_tokenizer(shared, request.thinking)?;
        let format = request.format.as_ref();
        let source = format.map_or("tools", |format| &format.field).to_owned();
        let text = format.map(|format| format.grammar.clone());
        let Some(tools) = &request.tools else {
            return Ok(Self { tokenizer, calls: None, is_forced: false, grammar: text, source });
        };
        let tokenizer = tokenizer.map_or_else(|| shared.tokenizer(), Ok);
        let tokenizer = tokenizer.map_err(|error| ApiError::library("tools", &error))?;
        let (tokenizer, mut calls) = tools.prepare(&tokenizer)?;
        if let Some(text) = text {
            calls = calls.or_text(text);
        }
        let grammar = tools.grammar(&calls, format.is_some())?;
        let is_forced = tools.choice != ToolChoice::Auto;
        Ok(Self { tokenizer: Some(tokenizer), calls: Some(calls), is_forced, grammar, source })
    }
}

/// A prompt's tokens, and for a conversation what separates the parts of the answer.
fn encode(
    shared: &Shared,
    prompt: Prompt,
    chat: &Chat,
    options: &GenerateOptions,
) -> bitnet_wgpu::Result<(Arc<[u32]>, Option<Parts>)> {
    let (ids, parts) = match prompt {
        Prompt::Text(text) => match shared.text_tokenizer()?.encode(&text)? {
            // The model knows what begins an empty text.
            ids if ids.is_empty() => (shared.batch.model().encode_prompt(&text)?, None),
            ids => (ids, None),
        },
        Prompt::Ids(ids) => (ids, None),
        Prompt::Chat { messages, continues } => {
            let tokenizer = chat.tokenizer.clone().map_or_else(|| shared.tokenizer(), Ok)?;
            let ids = encode_chat(&tokenizer, &messages, continues)?;
            let reasoning = ReasoningParser::after(&tokenizer, &ids)?;
            (ids, Some(Parts::new(reasoning, chat.calls.clone(), chat.is_forced)))
        }
    };
    shared.check_length(ids.len())?;
    // An answer of no tokens enters no queue, but is checked as any other.
    shared.batch.generate_ids(&ids, &options.clone().max_tokens(0))?;
    Ok((ids.into(), parts))
}

/// The tokens of a conversation. Where the answer `continues` the last message, that message is
/// without an end.
pub fn encode_chat(
    tokenizer: &Tokenizer,
    messages: &[Message],
    continues: bool,
) -> bitnet_wgpu::Result<Vec<u32>> {
    let Some((last, before)) = messages.split_last().filter(|_| continues) else {
        return tokenizer.chat(messages);
    };
    // The message alone, with names of special tokens as text.
    let begun = tokenizer.with_chat_template("{{ messages[0].content }}");
    let mut ids = tokenizer.chat(before)?;
    ids.extend(begun.chat(std::slice::from_ref(last))?);
    Ok(ids)
}
