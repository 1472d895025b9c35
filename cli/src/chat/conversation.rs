//! The messages of a conversation, and how they are answered.

use crate::{
    counted,
    interrupt::{interrupt, runtime},
};
use anyhow::{Context as _, Result};
use bitnet_wgpu::model::{
    GenerateOptions, Generation, Message, Model, ReasoningParser, Session, SessionOptions,
    SpeculationCounts, SplitText, Stop, Token, Tokenizer,
};
use serde_json::{Value, json};
use std::{
    future::pending,
    pin::pin,
    time::{Duration, Instant},
};
use tokio::runtime::Runtime;

/// Part of the context that old messages leave to an answer: a quarter.
const ANSWER: usize = 4;

/// A conversation with a model.
pub struct Conversation<'a> {
    pub model: &'a Model,
    pub tokenizer: Tokenizer,
    pub options: GenerateOptions,
    /// Size in tokens.
    pub room: usize,
    /// Seed of the first answer. Each answer has the next one.
    pub seed: u64,
    /// Whether Ctrl-C stops an answer, instead of the program.
    pub is_interruptible: bool,
    pub messages: Vec<Message>,
    /// Number of answers since the start.
    answers: u64,
    /// The KV cache, once there is one.
    session: Option<Session>,
    runtime: Runtime,
}

/// Messages that fit, and their tokens.
pub struct Prompt {
    pub messages: Vec<Message>,
    pub ids: Vec<u32>,
    /// Number of the oldest turns that were left out.
    pub dropped_turns: usize,
}

/// An answer, as far as it was generated.
pub struct Answer {
    pub text: SplitText,
    /// End of the answer that came with no token.
    pub rest: String,
    pub ids: Vec<u32>,
    pub reasoning_tokens: usize,
    pub prompt_tokens: usize,
    /// Why it ended; none for one that was interrupted.
    pub stop: Option<Stop>,
    pub speculation: Option<SpeculationCounts>,
    pub seed: u64,
    /// Time to the first token.
    pub prefill: Duration,
    /// Time from the first token to the last.
    pub decode: Duration,
}

impl<'a> Conversation<'a> {
    /// Starts a conversation of at most `room` tokens with these messages.
    pub fn new(
        model: &'a Model,
        tokenizer: Tokenizer,
        options: GenerateOptions,
        room: usize,
        messages: Vec<Message>,
    ) -> Result<Self> {
        Ok(Self {
            model,
            tokenizer,
            options,
            room,
            seed: 0,
            is_interruptible: false,
            messages,
            answers: 0,
            session: None,
            runtime: runtime()?,
        })
    }

    /// Starts over with these messages.
    pub fn restart(&mut self, messages: Vec<Message>) {
        self.messages = messages;
        self.answers = 0;
    }

    /// Sets the seed of the next answer.
    pub fn reseed(&mut self, seed: u64) {
        self.seed = seed;
        self.answers = 0;
    }

    /// Returns the tokens of messages. Where they leave too little of the context to an answer, the
    /// oldest turns are left out, but not the system message nor the last turn.
    ///
    /// # Errors
    /// Messages that have no room, or that the chat template does not accept.
    pub fn prompt(&self, mut messages: Vec<Message>) -> Result<Prompt, String> {
        let room = self.room;
        let mut dropped_turns = 0;
        loop {
            let ids = match self.tokenizer.chat(&messages) {
                Ok(ids) => Ok(ids),
                Err(error @ bitnet_wgpu::Error::TextTooLong { .. }) => Err(error.to_string()),
                Err(error) => return Err(error.to_string()),
            };
            let leaves_room = ids.as_ref().is_ok_and(|ids| ids.len() <= room - room / ANSWER);
            if !leaves_room && drop_oldest(&mut messages) {
                dropped_turns += 1;
                continue;
            }
            let what = match ids {
                Ok(ids) if ids.len() <= room => return Ok(Prompt { messages, ids, dropped_turns }),
                Ok(ids) => format!("the message has {}", counted(ids.len(), "token")),
                Err(what) => what,
            };
            return Err(format!("{what}; --context-length is {room}"));
        }
    }

    /// Answers the messages of a prompt, which become the conversation. `show` gets each token, with
    /// what of it belongs to the answer.
    pub fn answer(
        &mut self,
        prompt: Prompt,
        mut show: impl FnMut(&Token, &SplitText) -> std::io::Result<()>,
    ) -> Result<Answer> {
        let seed = self.seed.wrapping_add(self.answers);
        self.answers += 1;
        let options = self.options.clone().sampling(self.options.get_sampling().seed(seed));
        let session = match self.session.take() {
            Some(session) => session,
            None => self.model.session(SessionOptions::new(1, self.room))?,
        };
        let start = Instant::now();
        let mut generation = self.model.generate_ids_in(session, &prompt.ids, &options)?;
        let mut parts = ReasoningParser::after(&self.tokenizer, &prompt.ids)?;
        let (mut text, mut ids, mut prefill) = (SplitText::default(), Vec::new(), Duration::ZERO);
        let interrupted = self.generate(&mut generation, |token| {
            if ids.is_empty() {
                prefill = start.elapsed();
            }
            ids.push(token.id);
            let more = parts.push(&token.text);
            show(token, &more)?;
            text += more;
            Ok(())
        })?;
        let decode = start.elapsed() - prefill;
        let last = parts.finish();
        let rest = last.answer.clone();
        text += last;
        let stop = generation.stop().filter(|_| !interrupted);
        let speculation = generation.speculation();
        self.session = Some(self.runtime.block_on(generation.into_session())?);
        // Nothing of an interrupted answer: as if the message had not been sent.
        if !interrupted || !ids.is_empty() {
            self.messages = prompt.messages;
            self.keep(&text);
        }
        Ok(Answer {
            text,
            rest,
            ids,
            reasoning_tokens: parts.reasoning_tokens(),
            prompt_tokens: prompt.ids.len(),
            stop,
            speculation,
            seed,
            prefill,
            decode,
        })
    }

    /// Takes tokens to the end of the generation or an interrupt, and returns whether there was an
    /// interrupt.
    fn generate(
        &self,
        generation: &mut Generation,
        mut take: impl FnMut(&Token) -> Result<()>,
    ) -> Result<bool> {
        let is_interruptible = self.is_interruptible;
        self.runtime.block_on(async {
            let mut interrupted = pin!(async {
                match is_interruptible {
                    true => interrupt().await,
                    false => pending().await,
                }
            });
            loop {
                tokio::select! {
                    biased;
                    () = &mut interrupted => return Ok(true),
                    token = generation.next_token() => match token {
                        Some(token) => take(&token?)?,
                        None => return Ok(false),
                    },
                }
            }
        })
    }

    /// Adds an answer to the messages.
    fn keep(&mut self, text: &SplitText) {
        // Templates decide what of the reasoning in earlier turns is repeated.
        let reasoning = Some(text.reasoning.clone()).filter(|reasoning| !reasoning.is_empty());
        let message = Message::new("assistant", text.answer.clone()).reasoning(reasoning);
        self.messages.push(message);
    }

    /// Returns the conversation for a file.
    pub fn object(&self) -> Value {
        let message = |message: &Message| {
            let mut object = json!({ "role": message.role, "content": message.content });
            if let Some(reasoning) = &message.reasoning {
                object["reasoning"] = reasoning.as_str().into();
            }
            object
        };
        json!({ "messages": self.messages.iter().map(message).collect::<Vec<_>>() })
    }
}

/// Removes the oldest turn: a user message and what follows it. The last one stays.
fn drop_oldest(messages: &mut Vec<Message>) -> bool {
    let is_user = |message: &Message| message.role == "user";
    let first = messages.iter().position(is_user).unwrap_or(messages.len());
    match messages.iter().skip(first + 1).position(is_user) {
        Some(turn) => {
            messages.drain(first..=first + turn);
            true
        }
        None => false,
    }
}

/// Returns the messages of a conversation's file.
///
/// # Errors
/// What is wrong with the file's content.
pub fn messages_of(text: &str) -> Result<Vec<Message>> {
    let object: Value = serde_json::from_str(text).context("is not JSON")?;
    let messages = object["messages"].as_array().context("has no array `messages`")?;
    let message = |(number, message): (usize, &Value)| {
        let text = |key: &str| message[key].as_str();
        let role = text("role").filter(|role| ["system", "user", "assistant"].contains(role));
        let role = role.with_context(|| {
            format!("message {number} has no `role`: system, user and assistant are accepted")
        })?;
        let content = text("content");
        let content =
            content.with_context(|| format!("message {number} has no text in `content`"))?;
        Ok(Message::new(role, content).reasoning(text("reasoning").map(str::to_owned)))
    };
    (1..).zip(messages).map(message).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(roles: &str) -> Vec<Message> {
        let role = |c| match c {
            's' => "system",
            'u' => "user",
            _ => "assistant",
        };
        roles.chars().map(|c| Message::new(role(c), "x")).collect()
    }

    #[test]
    fn the_oldest_turn_is_dropped_first() {
        for (before, after) in [("suauau", "suau"), ("uau", "u"), ("uuu", "uu")] {
            let mut conversation = messages(before);
            assert!(drop_oldest(&mut conversation));
            let roles: String = conversation.iter().map(|m| &m.role[..1]).collect();
            assert_eq!(roles, after, "{before}");
        }
        for whole in ["", "s", "su", "sua"] {
            assert!(!drop_oldest(&mut messages(whole)), "{whole}");
        }
    }

    #[test]
    fn files_of_conversations_are_checked() {
        let found = messages_of(
            r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning": "c"}]}"#,
        )
        .unwrap();
        assert_eq!((&*found[0].content, found[1].reasoning.as_deref()), ("a", Some("c")));
        for (text, error) in [
            ("x", "is not JSON"),
            ("[]", "has no array `messages`"),
            (r#"{"messages": [{"role": "king", "content": "a"}]}"#, "message 1 has no `role`"),
            (r#"{"messages": [{"role": "user"}]}"#, "message 1 has no text"),
        ] {
            assert!(messages_of(text).unwrap_err().to_string().contains(error), "{text}");
        }
    }
}
