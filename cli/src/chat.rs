//! `bitnet chat`: a conversation.

use crate::{
    generation::{self, GenerationArgs},
    input::{Line, Lines, MAX_TEXT},
    model::{ChatArgs, ModelArgs, Placement},
    note, say,
};
use anyhow::{Context as _, Result, bail};
use bitnet_wgpu::model::{
    GenerateOptions, Message, Model, ReasoningParser, Session, SessionOptions, SplitText, Stop,
    Tokenizer,
};
use clap::Args;
use serde_json::json;
use std::{
    io::{IsTerminal, StdinLock},
    path::PathBuf,
};

/// Default size of a conversation: the whole context of a large model takes gigabytes.
const CONTEXT: usize = 4096;

/// Talks with a model: a line is a message, `/clear` starts over, `/bye` or the end of the input
/// quits
#[derive(Args)]
pub struct Chat {
    /// Model directory, GGUF file, prepacked model file, or name on the Hugging Face hub
    model: PathBuf,
    /// Size of the conversation in tokens [default: the model's context, at most 4096]
    #[arg(long, value_name = "TOKENS")]
    context_length: Option<usize>,
    /// Print one JSON object per answer instead of its text
    #[arg(long)]
    json: bool,
    /// System message at the start of the conversation [default: none]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system_prompt: Option<String>,
    /// Show the answers without the reasoning before them
    #[arg(long)]
    hide_thinking: bool,
    #[command(flatten, next_help_heading = "Chat")]
    template: ChatArgs,
    #[command(flatten, next_help_heading = "Generation")]
    generation: GenerationArgs,
    #[command(flatten, next_help_heading = "Device")]
    device: ModelArgs,
}

/// Messages of a conversation, and how they are answered.
struct Conversation<'a> {
    chat: &'a Chat,
    model: &'a Model,
    tokenizer: Tokenizer,
    options: GenerateOptions,
    /// Size in tokens.
    room: usize,
    messages: Vec<Message>,
}

impl Chat {
    pub fn run(self) -> Result<()> {
        let files = self.device.open(&self.model)?;
        let options = self.generation.options(&files);
        let first: Vec<Message> =
            self.system_prompt.iter().map(|text| Message::new("system", text)).collect();
        let with_user = [&first[..], &[Message::new("user", "Hello")]].concat();
        // An error, before the weights are read, if there is no chat template or it has no system
        // messages.
        let tokenizer = self.template.tokenizer(files.tokenizer()?)?;
        let shortest = tokenizer.chat(&with_user)?;
        files.check(&shortest, &options)?;
        let room = self.context_length.unwrap_or(CONTEXT.min(files.config().context));
        if room < shortest.len() || room > files.config().context {
            bail!(
                "--context-length {room}: {} to {} tokens are accepted",
                shortest.len(),
                files.config().context
            );
        }
        let draft = self.generation.draft(&files, &self.device)?;
        let model = self.device.load(&files, SessionOptions::new(1, room))?;
        let options = self.generation.with_draft(options, draft, &model, &self.device)?;
        if !self.json {
            note(format!("{}; /clear starts over, /bye quits", Placement::of(&model)?));
        }
        let tokenizer = tokenizer.within(room);
        let mut session = model.session(SessionOptions::new(1, room))?;
        let messages = first.clone();
        let mut conversation =
            Conversation { chat: &self, model: &model, tokenizer, options, room, messages };
        let mut lines = Lines::new(std::io::stdin().lock(), MAX_TEXT);
        while let Some(line) = self.next_line(&mut lines)? {
            match line.trim() {
                "" => {}
                "/bye" => break,
                "/clear" => conversation.messages.clone_from(&first),
                text => session = conversation.turn(session, text)?,
            }
        }
        Ok(())
    }

    /// Reads the next line that is not too long; none at the end of the input.
    fn next_line(&self, lines: &mut Lines<StdinLock>) -> Result<Option<String>> {
        loop {
            if std::io::stdin().is_terminal() && !self.json {
                say("> ")?;
            }
            match lines.next_line().context("standard input")? {
                None => return Ok(None),
                Some(Line::Text(text)) => return Ok(Some(text)),
                Some(Line::Repaired(text)) => {
                    note("the line is not UTF-8; U+FFFD replaces invalid bytes");
                    return Ok(Some(text));
                }
                Some(Line::TooLong) => {
                    self.refuse(format!("message ignored: more than {MAX_TEXT} bytes"))?
                }
            }
        }
    }

    /// Says why a message is not answered.
    fn refuse(&self, what: String) -> Result<()> {
        if self.json {
            say(format!("{}\n", json!({ "error": what })))?;
        }
        note(what);
        Ok(())
    }

    /// Ends the line of an answer, and says what of it is not shown.
    fn end_answer(&self, stop: Option<Stop>, reasoning_tokens: usize) -> Result<()> {
        say("\n")?;
        if self.hide_thinking && reasoning_tokens > 0 {
            note(format!("({reasoning_tokens} tokens of reasoning not shown)"));
        }
        match stop {
            Some(Stop::MaxTokens) => note("(stopped at --max-tokens)"),
            Some(Stop::Context) => {
                note("(stopped: --context-length is used up; /clear starts over)");
            }
            _ => {}
        }
        Ok(())
    }
}

impl Conversation<'_> {
    /// Answers a message, and returns the session.
    fn turn(&mut self, session: Session, text: &str) -> Result<Session> {
        self.messages.push(Message::new("user", text));
        let prompt = match self.prompt()? {
            Ok(prompt) => prompt,
            Err(what) => {
                self.messages.pop();
                self.chat.refuse(what)?;
                return Ok(session);
            }
        };
        let mut generation = self.model.generate_ids_in(session, &prompt, &self.options)?;
        let mut parts = ReasoningParser::after(&self.tokenizer, &prompt)?;
        let mut said = SplitText::default();
        let mut ids = Vec::new();
        let Chat { json, hide_thinking, .. } = *self.chat;
        for token in &mut generation {
            let token = token?;
            let more = parts.push(&token.text);
            if !json {
                say(if hide_thinking { &more.answer } else { &token.text })?;
            }
            said += more;
            ids.push(token.id);
        }
        let last = parts.finish();
        let reasoning_tokens = parts.reasoning_tokens();
        if hide_thinking && !json {
            say(&last.answer)?;
        }
        said += last;
        let stop = generation.stop();
        if json {
            let object = json!({
                "role": "assistant",
                "content": said.answer,
                "reasoning": said.reasoning,
                "reasoning_tokens": reasoning_tokens,
                "token_ids": ids,
                "prompt_tokens": prompt.len(),
                "stop_reason": stop.map(|stop| stop.to_string()),
                "speculation": generation::counts(generation.speculation()),
            });
            say(format!("{object}\n"))?;
        } else {
            self.chat.end_answer(stop, reasoning_tokens)?;
        }
        // Templates decide what of the reasoning in earlier turns is repeated.
        let reasoning = if said.reasoning.is_empty() { None } else { Some(said.reasoning) };
        self.messages.push(Message::new("assistant", said.answer).reasoning(reasoning));
        Ok(pollster::block_on(generation.into_session())?)
    }

    /// Returns the tokens of the conversation, or why there is no room for it.
    fn prompt(&self) -> Result<Result<Vec<u32>, String>> {
        let room = self.room;
        let what = match self.tokenizer.chat(&self.messages) {
            Ok(prompt) if prompt.len() <= room => return Ok(Ok(prompt)),
            Ok(prompt) => format!("the conversation has {} tokens", prompt.len()),
            Err(error @ bitnet_wgpu::Error::TextTooLong { .. }) => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        Ok(Err(format!("{what}; --context-length is {room}; /clear starts over")))
    }
}
