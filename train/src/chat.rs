//! Conversations as tokens: which of them are answers, and are learned.

use bitnet_wgpu::{
    Result,
    internals::TokenizerInternals as _,
    model::{Message, Tokenizer},
};
use serde_json::Value;

/// The roles that chat templates know. Most templates leave out a message of another one.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Most bytes of a conversation. Each answer renders the template again.
const MOST_BYTES: usize = 1 << 20;

/// A conversation.
#[derive(Debug)]
pub struct Turns {
    messages: Vec<Message>,
    /// The numbers of the messages that are learned.
    answers: Vec<usize>,
}

/// Tokens of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    pub ids: Vec<u32>,
    /// Whether a token is part of an answer, by tokens. The first one is not.
    pub scored: Vec<bool>,
}

/// Reads `{"messages": [{"role": .., "content": ..}, ..]}`, as OpenAI and TRL have it.
///
/// # Errors
/// What is wrong, with the number of the message from 1.
pub fn conversation(json: &Value) -> Result<Turns, String> {
    let messages = json["messages"].as_array().ok_or("`messages` is not an array")?;
    refuse(json, &["tools", "functions"])?;
    let mut turns = Turns { messages: Vec::new(), answers: Vec::new() };
    for (i, json) in messages.iter().enumerate() {
        let (message, learned) =
            message(json).map_err(|problem| format!("message {}: {problem}", i + 1))?;
        if learned {
            turns.answers.push(i);
        }
        turns.messages.push(message);
    }
    match turns.answers.is_empty() {
        true => Err("has no message of the role `assistant` to learn".into()),
        false => Ok(turns),
    }
}

/// Refuses fields that would be ignored, unless they are empty.
fn refuse(json: &Value, fields: &[&str]) -> Result<(), String> {
    let empty = |value: &Value| {
        value.is_null() || value == "" || value.as_array().is_some_and(Vec::is_empty)
    };
    match fields.iter().find(|field| json.get(**field).is_some_and(|value| !empty(value))) {
        Some(field) => Err(format!("has `{field}`, which cannot be trained on")),
        None => Ok(()),
    }
}

/// Returns a message, and whether it is learned: all answers are, but those of `"weight": 0`.
fn message(json: &Value) -> Result<(Message, bool), String> {
    let Some(role) = json.get("role").and_then(Value::as_str) else {
        return Err(format!("has no string `role`; {} are accepted", ROLES.join(", ")));
    };
    if !ROLES.contains(&role) {
        return Err(format!("the role `{role}` is not known; {} are accepted", ROLES.join(", ")));
    }
    refuse(json, &["tool_calls", "function_call", "tool_call_id"])?;
    refuse(json, &["reasoning_content", "reasoning", "thinking"])?;
    let content = text(json.get("content").unwrap_or(&Value::Null))?;
    let is_answer = role == "assistant";
    if is_answer && content.trim().is_empty() {
        return Err("the answer is empty".into());
    }
    let weight = json.get("weight").filter(|weight| !weight.is_null());
    let learned = match weight.map(Value::as_f64) {
        None => is_answer,
        Some(Some(weight)) if weight == 0.0 || weight == 1.0 => is_answer && weight == 1.0,
        Some(_) => return Err("`weight` is neither 0 nor 1".into()),
    };
    Ok((Message::new(role, content), learned))
}

/// Returns a content: a string, or an array of parts of text.
fn text(content: &Value) -> Result<String, String> {
    let part = |part: &Value| part.get("text").and_then(Value::as_str).map(str::to_owned);
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => parts.iter().map(part).collect::<Option<String>>(),
        _ => None,
    }
    .ok_or_else(|| "has no `content`; a string, or parts with `text`, is needed".into())
}

impl Turns {
    /// Encodes a conversation by the chat template. An answer begins behind the tokens of the prompt
    /// that a model would be given, and ends with the last of `ends` in it. If the last message is an
    /// answer that the template does not end so, `end` is added. What follows the last answer is
    /// left out.
    ///
    /// # Errors
    /// What the template or the tokenizer refuses, or an answer whose beginning or end is not found.
    pub fn encode(&self, tokenizer: &Tokenizer, end: u32) -> Result<Conversation, String> {
        let ids = |messages: &[Message], prompt: bool| {
            tokenizer.chat_ids(messages, prompt).map_err(|error| error.to_string())
        };
        let is_end = |id: u32| id == end || tokenizer.eos().contains(&id);
        self.check_texts(tokenizer)?;
        let mut all = ids(&self.messages, false)?;
        let mut scored = vec![false; all.len()];
        for &answer in &self.answers {
            let is_last = answer + 1 == self.messages.len();
            self.check_prompt(tokenizer, answer)?;
            // A token that joins the prompt's end and the answer's beginning is part of the answer.
            let start = common(&ids(&self.messages[..answer], true)?, &all).max(1);
            let mut stop = match is_last {
                true => all.len(),
                false => common(&ids(&self.messages[..=answer], false)?, &all),
            };
            // Some templates write the last answer in another way than those before it.
            if start >= stop && !is_last {
                stop = common(&ids(&self.with_other_next(answer), false)?, &all);
                let last = all[start.min(stop)..stop].iter().rposition(|&id| is_end(id));
                stop = last.map_or(start, |last| start + last + 1);
            }
            if start >= stop {
                return Err(format!("message {}: the chat template writes no answer", answer + 1));
            }
            match all[start..stop].iter().rposition(|&id| is_end(id)) {
                Some(last) => scored[start..=start + last].fill(true),
                None => {
                    scored[start..stop].fill(true);
                    if is_last {
                        all.push(end);
                        scored.push(true);
                    }
                }
            }
        }
        let used = scored.iter().rposition(|&scored| scored).map_or(0, |last| last + 1);
        all.truncate(used);
        scored.truncate(used);
        Ok(Conversation { ids: all, scored })
    }

    /// Returns the messages to an answer, and the next one with other content.
    fn with_other_next(&self, answer: usize) -> Vec<Message> {
        let mut messages = self.messages[..=answer].to_vec();
        messages.extend(self.messages.get(answer + 1).map(|next| {
            let other = if next.content.starts_with('x') { "y" } else { "x" };
            Message::new(&*next.role, other)
        }));
        messages
    }

    /// Checks that a conversation is not too long, and that the template writes what is asked.
    fn check_texts(&self, tokenizer: &Tokenizer) -> Result<(), String> {
        let bytes: usize = self.messages.iter().map(|message| message.content.len()).sum();
        if bytes > MOST_BYTES {
            return Err(format!("has {bytes} bytes; at most {MOST_BYTES} are supported"));
        }
        let text = tokenizer.chat_text(&self.messages, false).map_err(|error| error.to_string())?;
        let is_lost = |message: &Message| {
            message.role != "assistant" && !text.contains(message.content.trim())
        };
        match self.messages.iter().position(is_lost) {
            Some(lost) => Err(format!("message {}: the chat template leaves it out", lost + 1)),
            None => Ok(()),
        }
    }

    /// Checks that the conversation begins with the prompt of an answer, as text. Templates that
    /// write earlier turns in another way than the last one have no such prompts.
    fn check_prompt(&self, tokenizer: &Tokenizer, answer: usize) -> Result<(), String> {
        let text = |messages: &[Message], prompt| {
            tokenizer.chat_text(messages, prompt).map_err(|error| error.to_string())
        };
        let prompt = text(&self.messages[..answer], true)?;
        match text(&self.messages, false)?.starts_with(&prompt) {
            true => Ok(()),
            false => Err(format!(
                "message {}: the chat template writes another text before this answer than a model is given",
                answer + 1
            )),
        }
    }
}

/// Number of tokens that two lists begin with alike.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
