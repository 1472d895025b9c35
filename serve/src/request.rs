//! Bodies of requests. A field that would change the answer and is not supported is an error.

use crate::{
    conversation::messages,
    error::{ApiError, Result},
    fields::{Fields, kind},
    grammar::{self, Format},
    options::Options,
    repeated::Repeated,
    tools::{Api, Tools},
};
use bitnet_wgpu::model::{GenerateOptions, Message, Sampling};
use serde_json::Value;
use std::{
    hash::{BuildHasher, RandomState},
    ops::RangeInclusive,
};

/// The most choices of a request, of all its prompts together.
const MOST_CHOICES: usize = 64;
/// The most stop strings.
const MOST_STOPS: usize = 16;
/// The longest stop string, in bytes.
const LONGEST_STOP: usize = 1024;
/// All stop strings together, in bytes.
const MOST_STOP_BYTES: usize = 4096;
/// The longest salt of cached prefixes, in bytes.
const LONGEST_SALT: usize = 256;
/// The most likely tokens of which log-probabilities are given, at each place, as in OpenAI's API.
const MOST_LOGPROBS: u64 = 20;
/// The most biases of tokens.
const MOST_BIASES: usize = 1024;
/// Tokens of a completion where neither its request nor the server says how many, as in OpenAI's
/// API.
const COMPLETION: usize = 16;

/// Fields that cannot change an answer of this server: labels, limits of other services, and hints
/// about speed. Some are of other servers: vLLM, llama.cpp, Ollama and OpenRouter.
pub const HARMLESS: [&str; 22] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls",
    "prediction",
    "request_id",
    "priority",
    "guided_decoding_backend",
    "cache_prompt",
    "id_slot",
    "timings_per_token",
    "keep_alive",
    "num_batch",
    "num_thread",
    "use_mlock",
    "use_mmap",
    "provider",
    "usage",
];
/// Fields that are not supported, and the values that they may have nevertheless.
const UNSUPPORTED: [(&str, &[&str]); 12] = [
    ("top_logprobs", &["0"]),
    ("tools", &["[]"]),
    ("tool_choice", &["\"none\"", "\"auto\""]),
    ("functions", &["[]"]),
    ("function_call", &["\"none\"", "\"auto\""]),
    ("modalities", &[r#"["text"]"#]),
    ("audio", &[]),
    ("reasoning_effort", &["\"medium\""]),
    ("verbosity", &["\"medium\""]),
    ("web_search_options", &[]),
    ("echo", &["false"]),
    ("suffix", &["\"\""]),
];

/// A prompt, before it is tokens.
pub enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    Chat {
        messages: Vec<Message>,
        /// Whether the answer continues the last message, which is the assistant's.
        continues: bool,
    },
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
    /// None leaves it to the server or the template whether the model reasons.
    pub thinking: Option<Thinking>,
    /// Whether the answer has the reasoning.
    pub reasoning: bool,
    /// The most likely tokens of which log-probabilities are given; none without any.
    pub logprobs: Option<usize>,
    /// The most tokens of each choice.
    pub most: usize,
    /// Whether answers repeat their prompts.
    pub echo: bool,
    /// Stop strings, of the request alone.
    pub stops: Vec<String>,
    /// Tools that the model may call.
    pub tools: Option<Tools>,
    /// What the answer must be.
    pub format: Option<Format>,
    /// Fields of the answer that repeat those of the request.
    pub repeated: Repeated,
}

/// Whether the model reasons before it answers.
#[derive(Clone, Copy)]
pub struct Thinking {
    pub is_on: bool,
    /// Field of the request that says so.
    pub field: &'static str,
    /// Whether a chat template without the choice is an error.
    pub is_required: bool,
}

impl Request {
    /// Reads a chat request. The server's options are the defaults.
    pub fn chat(body: Value, server: &Options) -> Result<Self> {
        let mut fields = Fields::new("", body, server.strict)?;
        let messages = messages(fields.take("messages"), server.strict)?;
        let continues = continues(&mut fields, &messages)?;
        let tools = Tools::take(&mut fields, Api::Chat)?;
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
        let logprobs = chat_logprobs(&mut fields)?;
        let most = most.or(older).or(server.max_tokens).unwrap_or(usize::MAX);
        let prompt = Prompt::Chat { messages, continues };
        let request = Self::rest(fields, vec![prompt], "messages", most, server)?;
        Ok(Self { thinking, reasoning, tools, ..request }.with_logprobs(logprobs))
    }

    /// Reads a completion request.
    pub fn completion(body: Value, server: &Options) -> Result<Self> {
        let mut fields = Fields::new("", body, server.strict)?;
        let prompts = prompts("prompt", MOST_CHOICES, fields.take("prompt"))?;
        let most = fields.count("max_tokens", 0..=u64::MAX)?;
        let logprobs = fields.count("logprobs", 0..=MOST_LOGPROBS)?;
        let echo = fields.flag("echo")?;
        let most = most.or(server.max_tokens).unwrap_or(COMPLETION);
        let request = Self::rest(fields, prompts, "prompt", most, server)?;
        Ok(Self { echo, ..request }.with_logprobs(logprobs))
    }

    /// Sets of how many tokens log-probabilities are given.
    fn with_logprobs(self, logprobs: Option<usize>) -> Self {
        Self { logprobs, options: self.options.logprobs(logprobs), ..self }
    }

    /// A request for one answer to a conversation, which is in this field. Others of its fields are
    /// read by the caller.
    pub fn conversation(field: &'static str, prompt: Prompt, server: &Options) -> Self {
        Self {
            model: None,
            prompts: vec![prompt],
            field,
            n: 1,
            options: server.defaults.clone().max_tokens(server.max_tokens.unwrap_or(usize::MAX)),
            seed: server.seed.unwrap_or_else(|| RandomState::new().hash_one(0)),
            cache_salt: None,
            stream: false,
            usage: false,
            thinking: None,
            reasoning: true,
            logprobs: None,
            most: usize::MAX,
            echo: false,
            stops: Vec::new(),
            tools: None,
            format: None,
            repeated: Repeated::default(),
        }
    }

    /// Reads the fields that both have in common.
    fn rest(
        mut fields: Fields,
        prompts: Vec<Prompt>,
        field: &'static str,
        most: usize,
        server: &Options,
    ) -> Result<Self> {
        fields.harmless(&HARMLESS)?;
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
            let what = format!("is not supported; only {n}, the value of `n`, is accepted");
            return Err(fields.wrong("best_of", what));
        }
        let stream = fields.flag("stream")?;
        let usage = usage(&mut fields, stream)?;
        let (options, seed, stops) = options(&mut fields, server)?;
        let is_chat = matches!(prompts[..], [Prompt::Chat { .. }]);
        let format = grammar::read(&mut fields)?.map(|format| format.after_reasoning(is_chat));
        let options = options.max_tokens(most);
        let cache_salt = cache_salt(&mut fields)?;
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
            logprobs: None,
            most,
            echo: false,
            stops,
            tools: None,
            format,
            repeated: Repeated::default(),
        })
    }
}

/// Reads whether the last message is to be continued, as vLLM names it.
fn continues(fields: &mut Fields, messages: &[Message]) -> Result<bool> {
    let continues = fields.flag("continue_final_message")?;
    let begins = fields.flag_or("add_generation_prompt", !continues)?;
    if continues == begins {
        let what = "must be true without `continue_final_message`, and false with it";
        return Err(fields.wrong("add_generation_prompt", what));
    }
    let is_assistant = |message: &Message| message.role == "assistant";
    if continues && !messages.last().is_some_and(is_assistant) {
        let what = "the last message is not the assistant's";
        return Err(fields.wrong("continue_final_message", what));
    }
    Ok(continues)
}

/// Reads whether the last chunk of a stream counts the tokens.
fn usage(fields: &mut Fields, stream: bool) -> Result<bool> {
    let Some(options) = fields.take("stream_options") else { return Ok(false) };
    if !stream {
        return Err(fields.wrong("stream_options", "needs streams: set `stream` to true"));
    }
    let mut options = fields.nested("stream_options", options)?;
    let usage = options.flag("include_usage")?;
    if options.choice("include_obfuscation")?.is_some() {
        options.ineffective("include_obfuscation")?;
    }
    options.end()?;
    Ok(usage)
}

/// Reads `chat_template_kwargs`, as in vLLM's and llama.cpp's servers, with one known variable.
fn thinking(fields: &mut Fields) -> Result<Option<Thinking>> {
    let Some(variables) = fields.take("chat_template_kwargs") else { return Ok(None) };
    let mut variables = fields.nested("chat_template_kwargs", variables)?;
    let is_on = variables.choice("enable_thinking")?;
    variables.end()?;
    let field = "chat_template_kwargs.enable_thinking";
    Ok(is_on.map(|is_on| Thinking { is_on, field, is_required: true }))
}

/// Reads `logprobs` and `top_logprobs` of a chat request.
fn chat_logprobs(fields: &mut Fields) -> Result<Option<usize>> {
    let logprobs = fields.flag("logprobs")?;
    let top = fields.count("top_logprobs", 0..=MOST_LOGPROBS)?;
    if top.is_some_and(|top| top > 0) && !logprobs {
        return Err(fields.wrong("top_logprobs", "needs `logprobs`: set it to true"));
    }
    Ok(logprobs.then_some(top.unwrap_or(0)))
}

/// Reads the options of generation, the seed of the first choice, and the stop strings.
fn options(fields: &mut Fields, server: &Options) -> Result<(GenerateOptions, u64, Vec<String>)> {
    let sampling = sampling(fields, server.defaults.get_sampling())?;
    let seed = seed(fields)?.or(server.seed).unwrap_or_else(|| RandomState::new().hash_one(0));
    let options = server.defaults.clone().sampling(sampling);
    let stops = stops(fields, "stop")?;
    Ok((options.stop(&stops).logit_bias(biases(fields)?), seed, stops))
}

/// Reads the fields of sampling; those that are missing are as in `defaults`.
pub fn sampling(fields: &mut Fields, defaults: Sampling) -> Result<Sampling> {
    type Set = fn(Sampling, f32) -> Sampling;
    let numbers: [(&str, RangeInclusive<f64>, Set); 7] = [
        ("temperature", 0.0..=2.0, Sampling::temperature),
        ("top_p", 0.0..=1.0, Sampling::top_p),
        ("min_p", 0.0..=1.0, Sampling::min_p),
        ("repetition_penalty", 0.01..=100.0, Sampling::repetition_penalty),
        // Its name in llama.cpp and Ollama.
        ("repeat_penalty", 0.01..=100.0, Sampling::repetition_penalty),
        ("presence_penalty", -2.0..=2.0, Sampling::presence_penalty),
        ("frequency_penalty", -2.0..=2.0, Sampling::frequency_penalty),
    ];
    if fields.has("repetition_penalty") && fields.has("repeat_penalty") {
        let what = "`repetition_penalty` is there too; expected one of them";
        return Err(fields.wrong("repeat_penalty", what));
    }
    let mut sampling = defaults;
    for (field, range, set) in numbers {
        if let Some(number) = fields.number(field, range)? {
            sampling = set(sampling, number);
        }
    }
    let top_k = fields.count("top_k", 0..=u64::from(u32::MAX))?;
    Ok(top_k.map_or(sampling, |top_k| sampling.top_k(top_k)))
}

/// Reads the salt of cached prefixes.
pub fn cache_salt(fields: &mut Fields) -> Result<Option<String>> {
    let salt = fields.text("cache_salt")?;
    let length = salt.as_ref().map_or(0, String::len);
    if length > LONGEST_SALT {
        let what = format!("{length} bytes; at most {LONGEST_SALT} are accepted");
        return Err(fields.wrong("cache_salt", what));
    }
    Ok(salt)
}

/// Reads a seed.
pub fn seed(fields: &mut Fields) -> Result<Option<u64>> {
    // As llama.cpp's clients ask for a random one.
    let Some(seed) = fields.take("seed").filter(|seed| *seed != -1) else { return Ok(None) };
    match seed.as_u64().or(seed.as_i64().map(i64::cast_unsigned)) {
        Some(seed) => Ok(Some(seed)),
        None => {
            Err(fields.wrong("seed", format!("expected a whole number, found {}", kind(&seed))))
        }
    }
}

/// Reads stop strings.
pub fn stops(fields: &mut Fields, field: &str) -> Result<Vec<String>> {
    let stops = match fields.take(field) {
        None => return Ok(Vec::new()),
        Some(Value::String(stop)) => vec![stop],
        Some(Value::Array(stops)) if stops.len() <= MOST_STOPS => {
            let text = |stop: Value| match stop {
                Value::String(stop) => Ok(stop),
                other => {
                    Err(fields.wrong(field, format!("expected strings, found {}", kind(&other))))
                }
            };
            stops.into_iter().map(text).collect::<Result<_>>()?
        }
        Some(_) => {
            return Err(
                fields.wrong(field, format!("expected a string or at most {MOST_STOPS} strings"))
            );
        }
    };
    if stops.iter().any(String::is_empty) {
        return Err(fields.wrong(field, "a stop string is empty"));
    }
    let (longest, all) = (
        stops.iter().map(String::len).max().unwrap_or(0),
        stops.iter().map(String::len).sum::<usize>(),
    );
    if longest > LONGEST_STOP || all > MOST_STOP_BYTES {
        let what = format!(
            "{longest} bytes in one string, {all} in total; at most {LONGEST_STOP} and {MOST_STOP_BYTES} are accepted"
        );
        return Err(fields.wrong(field, what));
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

/// Reads a text, token ids, or a list of either of at most `most`.
pub fn prompts(field: &str, most: usize, value: Option<Value>) -> Result<Vec<Prompt>> {
    let wrong =
        || ApiError::field(field, "expected a string, a list of token ids, or a list of either");
    match value {
        Some(Value::String(text)) => Ok(vec![Prompt::Text(text)]),
        Some(Value::Array(list)) if list.first().is_some_and(Value::is_number) => {
            Ok(vec![Prompt::Ids(ids(&list).ok_or_else(wrong)?)])
        }
        Some(Value::Array(list)) if (1..=most).contains(&list.len()) => {
            let prompt = |value| match value {
                Value::String(text) => Some(Prompt::Text(text)),
                Value::Array(list) => ids(&list).map(Prompt::Ids),
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

/// Reads token ids.
pub fn ids(list: &[Value]) -> Option<Vec<u32>> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    list.iter().map(id).collect()
}
