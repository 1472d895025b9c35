//! Bodies of requests. A field that would change the answer and is not supported is an error.

use crate::{
    error::{ApiError, Result},
    fields::{Fields, kind},
    options::Options,
};
use bitnet_wgpu::model::{GenerateOptions, Message, Sampling};
use serde_json::Value;
use std::{
    hash::{BuildHasher, RandomState},
    ops::RangeInclusive,
};

/// The most choices of a request, of all its prompts together.
const MOST_CHOICES: usize = 64;
/// The most messages of a conversation.
const MOST_MESSAGES: usize = 4096;
/// The most stop strings.
const MOST_STOPS: usize = 16;
/// The longest stop string, in bytes.
const LONGEST_STOP: usize = 1024;
/// All stop strings together, in bytes.
const MOST_STOP_BYTES: usize = 4096;
/// The longest salt of cached prefixes, in bytes.
const LONGEST_SALT: usize = 256;
/// The most biases of tokens.
const MOST_BIASES: usize = 1024;
/// Tokens of a completion where neither its request nor the server says how many, as in OpenAI's
/// API.
const COMPLETION: usize = 16;

/// Fields without effect.
const HARMLESS: [&str; 7] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];
/// Fields that are not supported, and the values that they may have nevertheless.
const UNSUPPORTED: [(&str, &[&str]); 16] = [
    ("logprobs", &["false"]),
    ("top_logprobs", &["0"]),
    ("tools", &["[]"]),
    ("tool_choice", &["\"none\"", "\"auto\""]),
    ("parallel_tool_calls", &["true", "false"]),
    ("functions", &["[]"]),
    ("function_call", &["\"none\"", "\"auto\""]),
    ("response_format", &[r#"{"type":"text"}"#]),
    ("modalities", &[r#"["text"]"#]),
    ("audio", &[]),
    ("prediction", &[]),
    ("reasoning_effort", &[]),
    ("verbosity", &[]),
    ("web_search_options", &[]),
    ("echo", &["false"]),
    ("suffix", &["\"\""]),
];

/// A prompt, before it is tokens.
pub enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    Chat(Vec<Message>),
}

/// A request, checked as far as it can be without a model.
pub struct Request {
    pub model: Option<String>,
    pub prompts: Vec<Prompt>,
    /// The field that they come from.
    pub field: &'static str,
    /// Choices of each.
    pub n: usize,
    pub options: GenerateOptions,
    /// Seed of the first choice; each next one is greater by 1.
    pub seed: u64,
    /// Requests share cached prefixes only with those of an equal salt; named as in vLLM.
    pub cache_salt: Option<String>,
    pub stream: bool,
    /// Whether the last chunk of a stream counts the tokens.
    pub usage: bool,
    /// Whether the model reasons before it answers. None leaves it to the server or the template.
    pub thinking: Option<bool>,
    /// Whether the answer has the reasoning.
    pub reasoning: bool,
}

impl Request {
    /// Reads a chat request. The server's options are the defaults.
    pub fn chat(body: Value, server: &Options) -> Result<Self> {
        let mut fields = Fields::new("", body)?;
        let messages = messages(fields.take("messages"))?;
        let most = fields.count("max_completion_tokens", 1..=u64::MAX)?;
        let older = fields.count("max_tokens", 1..=u64::MAX)?;
        if let (Some(a), Some(b)) = (most, older)
            && a != b
        {
            return Err(fields.wrong(
                "max_tokens",
                format!("{b} differs from max_completion_tokens, which is {a}"),
            ));
        }
        let thinking = thinking(&mut fields)?;
        let reasoning = fields.flag_or("include_reasoning", true)?;
        let most = most.or(older).or(server.max_tokens).unwrap_or(usize::MAX);
        let request = Self::rest(fields, vec![Prompt::Chat(messages)], "messages", most, server)?;
        Ok(Self { thinking, reasoning, ..request })
    }

    /// Reads a completion request.
    pub fn completion(body: Value, server: &Options) -> Result<Self> {
        let mut fields = Fields::new("", body)?;
        let prompts = prompts("prompt", MOST_CHOICES, fields.take("prompt"))?;
        let most = fields.count("max_tokens", 0..=u64::MAX)?;
        Self::rest(
            fields,
            prompts,
            "prompt",
            most.or(server.max_tokens).unwrap_or(COMPLETION),
            server,
        )
    }

    /// Reads the fields that both have in common.
    fn rest(
        mut fields: Fields,
        prompts: Vec<Prompt>,
        field: &'static str,
        most: usize,
        server: &Options,
    ) -> Result<Self> {
        fields.harmless(&HARMLESS);
        fields.unsupported(&UNSUPPORTED)?;
        let model = fields.text("model")?;
        let n = fields.count("n", 1..=MOST_CHOICES as u64)?.unwrap_or(1);
        if n * prompts.len() > MOST_CHOICES {
            return Err(fields.wrong(
                "n",
                format!(
                    "{n} choices of {} prompts; at most {MOST_CHOICES} in total are accepted",
                    prompts.len()
                ),
            ));
        }
        if let Some(best) = fields.count("best_of", 1..=u64::MAX)?
            && best != n
        {
            return Err(fields.wrong("best_of", "is not supported"));
        }
        let stream = fields.flag("stream")?;
        let usage = usage(&mut fields, stream)?;
        let (options, seed) = options(&mut fields, server)?;
        let options = options.max_tokens(most);
        let cache_salt = fields.text("cache_salt")?;
        let length = cache_salt.as_ref().map_or(0, String::len);
        if length > LONGEST_SALT {
            let what = format!("{length} bytes; at most {LONGEST_SALT} are accepted");
            return Err(fields.wrong("cache_salt", what));
        }
        fields.end()?;
        Ok(Self {
            model,
            prompts,
            field,
            n,
            options,
            seed,
            cache_salt,
            stream,
            usage,
            thinking: None,
            reasoning: false,
        })
    }
}

/// Reads whether the last chunk of a stream counts the tokens.
fn usage(fields: &mut Fields, stream: bool) -> Result<bool> {
    let Some(options) = fields.take("stream_options") else { return Ok(false) };
    if !stream {
        return Err(fields.wrong("stream_options", "needs streams: set `stream` to true"));
    }
    let mut options = Fields::new("stream_options", options)?;
    let usage = options.flag("include_usage")?;
    options.flag("include_obfuscation")?;
    options.end()?;
    Ok(usage)
}

/// Reads `chat_template_kwargs`, as in vLLM's and llama.cpp's servers, with one known variable.
fn thinking(fields: &mut Fields) -> Result<Option<bool>> {
    let Some(variables) = fields.take("chat_template_kwargs") else { return Ok(None) };
    let mut variables = Fields::new("chat_template_kwargs", variables)?;
    let thinking = variables.choice("enable_thinking")?;
    variables.end()?;
    Ok(thinking)
}

/// Reads the options of generation, and the seed of the first choice.
fn options(fields: &mut Fields, server: &Options) -> Result<(GenerateOptions, u64)> {
    let sampling = sampling(fields, server.defaults.get_sampling())?;
    let seed = seed(fields)?.or(server.seed).unwrap_or_else(|| RandomState::new().hash_one(0));
    let options = server.defaults.clone().sampling(sampling);
    Ok((options.stop(stops(fields)?).logit_bias(biases(fields)?), seed))
}

/// Reads the fields of sampling; those that are missing are as in `defaults`.
fn sampling(fields: &mut Fields, defaults: Sampling) -> Result<Sampling> {
    type Set = fn(Sampling, f32) -> Sampling;
    let numbers: [(&str, RangeInclusive<f64>, Set); 6] = [
        ("temperature", 0.0..=2.0, Sampling::temperature),
        ("top_p", 0.0..=1.0, Sampling::top_p),
        ("min_p", 0.0..=1.0, Sampling::min_p),
        ("repetition_penalty", 0.01..=100.0, Sampling::repetition_penalty),
        ("presence_penalty", -2.0..=2.0, Sampling::presence_penalty),
        ("frequency_penalty", -2.0..=2.0, Sampling::frequency_penalty),
    ];
    let mut sampling = defaults;
    for (field, range, set) in numbers {
        if let Some(number) = fields.number(field, range)? {
            sampling = set(sampling, number);
        }
    }
    let top_k = fields.count("top_k", 0..=u64::from(u32::MAX))?;
    Ok(top_k.map_or(sampling, |top_k| sampling.top_k(top_k)))
}

fn seed(fields: &mut Fields) -> Result<Option<u64>> {
    let Some(seed) = fields.take("seed") else { return Ok(None) };
    match seed.as_u64().or(seed.as_i64().map(i64::cast_unsigned)) {
        Some(seed) => Ok(Some(seed)),
        None => {
            Err(fields.wrong("seed", format!("expected a whole number, found {}", kind(&seed))))
        }
    }
}

fn stops(fields: &mut Fields) -> Result<Vec<String>> {
    let stops = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(stop)) => vec![stop],
        Some(Value::Array(stops)) if stops.len() <= MOST_STOPS => {
            let text = |stop: Value| match stop {
                Value::String(stop) => Ok(stop),
                other => {
                    Err(fields.wrong("stop", format!("expected strings, found {}", kind(&other))))
                }
            };
            stops.into_iter().map(text).collect::<Result<_>>()?
        }
        Some(_) => {
            return Err(
                fields.wrong("stop", format!("expected a string or at most {MOST_STOPS} strings"))
            );
        }
    };
    if stops.iter().any(String::is_empty) {
        return Err(fields.wrong("stop", "a stop string is empty"));
    }
    let (longest, all) = (
        stops.iter().map(String::len).max().unwrap_or(0),
        stops.iter().map(String::len).sum::<usize>(),
    );
    if longest > LONGEST_STOP || all > MOST_STOP_BYTES {
        let what = format!(
            "{longest} bytes in one string, {all} in total; at most {LONGEST_STOP} and {MOST_STOP_BYTES} are accepted"
        );
        return Err(fields.wrong("stop", what));
    }
    Ok(stops)
}

fn biases(fields: &mut Fields) -> Result<Vec<(u32, f32)>> {
    let biases = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(biases)) if biases.len() <= MOST_BIASES => biases,
        Some(_) => {
            return Err(fields.wrong(
                "logit_bias",
                format!("expected an object of at most {MOST_BIASES} tokens"),
            ));
        }
    };
    let bias = |(id, bias): (String, Value)| {
        let id = id.parse().map_err(|_| {
            fields.wrong("logit_bias", format!("`{}` is not a token id", crate::error::shown(&id)))
        })?;
        let number = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        let number = number.ok_or_else(|| {
            fields.wrong("logit_bias", format!("token {id}: expected a number from -100 to 100"))
        })?;
        Ok((id, number as f32))
    };
    biases.into_iter().map(bias).collect()
}

fn messages(value: Option<Value>) -> Result<Vec<Message>> {
    let wrong = |what: &str| ApiError::field("messages", what);
    let Some(value) = value else { return Err(ApiError::missing("messages")) };
    let Value::Array(list) = value else { return Err(wrong("expected a list")) };
    if list.is_empty() || list.len() > MOST_MESSAGES {
        return Err(wrong(&format!("{} messages; 1 to {MOST_MESSAGES} are accepted", list.len())));
    }
    list.into_iter()
        .enumerate()
        .map(|(n, value)| message(&format!("messages[{n}]"), value))
        .collect()
}

fn message(place: &str, value: Value) -> Result<Message> {
    let mut fields = Fields::new(place, value)?;
    let role = fields.text("role")?.ok_or_else(|| fields.missing("role"))?;
    let role = match role.as_str() {
        // Newer models of OpenAI call it so.
        "developer" => "system",
        "system" | "user" | "assistant" => &role,
        _ => return Err(fields.wrong("role", "expected system, developer, user or assistant")),
    };
    let text = match fields.take("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => parts
            .into_iter()
            .enumerate()
            .map(|(n, part)| text_part(&format!("{place}.content[{n}]"), part))
            .collect::<Result<_>>()?,
        Some(other) => {
            return Err(
                fields.wrong("content", format!("expected a string, found {}", kind(&other)))
            );
        }
        None => return Err(fields.missing("content")),
    };
    let reasoning = if role == "assistant" { fields.text("reasoning_content")? } else { None };
    // An answer of this server may come back as it was.
    fields.unsupported(&[
        ("tool_calls", &["[]"]),
        ("function_call", &[]),
        ("audio", &[]),
        ("annotations", &["[]"]),
        ("refusal", &[]),
    ])?;
    fields.end()?;
    Ok(Message::new(role, text).reasoning(reasoning))
}

fn text_part(place: &str, part: Value) -> Result<String> {
    let mut fields = Fields::new(place, part)?;
    if fields.text("type")?.as_deref() != Some("text") {
        return Err(fields.wrong("type", "only `text` is supported"));
    }
    let text = fields.text("text")?.ok_or_else(|| fields.missing("text"))?;
    fields.end()?;
    Ok(text)
}

/// Reads a text, token ids, or a list of either of at most `most`.
pub fn prompts(field: &str, most: usize, value: Option<Value>) -> Result<Vec<Prompt>> {
    let wrong =
        || ApiError::field(field, "expected a string, a list of token ids, or a list of either");
    match value {
        Some(Value::String(text)) => Ok(vec![Prompt::Text(text)]),
        Some(Value::Array(list)) if list.first().is_some_and(Value::is_number) => {
            Ok(vec![ids(&list).ok_or_else(wrong)?])
        }
        Some(Value::Array(list)) if (1..=most).contains(&list.len()) => {
            let prompt = |value| match value {
                Value::String(text) => Some(Prompt::Text(text)),
                Value::Array(list) => ids(&list),
                _ => None,
            };
            list.into_iter().map(|value| prompt(value).ok_or_else(wrong)).collect()
        }
        Some(Value::Array(list)) => {
            Err(ApiError::field(field, format!("{} prompts; 1 to {most} are accepted", list.len())))
        }
        Some(_) => Err(wrong()),
        None => Err(ApiError::missing(field)),
    }
}

fn ids(list: &[Value]) -> Option<Prompt> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    list.iter().map(id).collect::<Option<_>>().map(Prompt::Ids)
}
