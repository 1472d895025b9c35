//! `bitnet chat`: a conversation.

use crate::{
    generation::{self, GenerationArgs},
    input::{Line, Lines, MAX_TEXT},
    model::{self, ChatArgs, ModelArgs},
    note, say,
};
use anyhow::{Context as _, Result, bail};
use bitnet_wgpu::model::{Message, Reasoning, Said, SessionOptions, Stop, Tokenizer};
use clap::Args;
use serde_json::json;
use std::{io::IsTerminal, path::PathBuf};

/// What a conversation may take unless it is said: a large model's whole context takes gigabytes.
const CONTEXT: usize = 4096;

/// Talks with a model; a line is a message, the end of the input or `/bye` ends it, `/clear` begins
/// anew
#[derive(Args)]
pub struct Chat {
    /// A model directory, a GGUF file, or a name on the Hugging Face hub
    model: PathBuf,
    /// What the model is told before the conversation
    #[arg(long, allow_hyphen_values = true)]
    system: Option<String>,
    #[command(flatten)]
    template: ChatArgs,
    /// Leave out what the model says to itself before it answers
    #[arg(long)]
    hide_thinking: bool,
    /// Room for so many tokens of conversation [default: the model's context, 4096 at most]
    #[arg(long)]
    context: Option<usize>,
    #[command(flatten)]
    generation: GenerationArgs,
    #[command(flatten)]
    device: ModelArgs,
    /// Print one JSON object for each answer instead of its text
    #[arg(long)]
    json: bool,
}

/// Returns the tokens of the conversation, or why there is no room for it.
fn prompt(
    tokenizer: &Tokenizer,
    messages: &[Message],
    room: usize,
) -> Result<Result<Vec<u32>, String>> {
    let what = match tokenizer.chat(messages) {
        Ok(prompt) if prompt.len() <= room => return Ok(Ok(prompt)),
        Ok(prompt) => format!("the conversation would have {} tokens", prompt.len()),
        Err(error @ bitnet_wgpu::Error::TextTooLong { .. }) => error.to_string(),
        Err(error) => return Err(error.into()),
    };
    Ok(Err(format!("{what}, there is room for {room} (--context): /clear begins anew")))
}

impl Chat {
    pub fn run(self) -> Result<()> {
        let files = self.device.open(&self.model)?;
        let options = self.generation.options(&files);
        let first: Vec<Message> =
            self.system.iter().map(|text| Message::new("system", text)).collect();
        let with_user = [&first[..], &[Message::new("user", "Hello")]].concat();
        // Of a model without a template, and of one that takes no system's message, this says so
        // before its weights are read.
        let tokenizer = self.template.tokenizer(files.tokenizer()?)?;
        let shortest = tokenizer.chat(&with_user)?;
        files.check(&shortest, &options)?;
        let room = self.context.unwrap_or(CONTEXT.min(files.config().context));
        if room < shortest.len() || room > files.config().context {
            bail!(
                "--context {room}: a first message takes {} tokens, and the model's context is {}",
                shortest.len(),
                files.config().context
            );
        }
        let draft = self.generation.draft(&files, &self.device)?;
        let model = self.device.load(&files, SessionOptions::new(1, room))?;
        let options = self.generation.with_draft(options, draft, &model, &self.device)?;
        if !self.json {
            let (adapter, language) = model::device(&model)?;
            note(format!(
                "{adapter}, kernels in {language}; /bye or the end of the input ends it, /clear begins anew"
            ));
        }
        let tokenizer = tokenizer.within(room);
        let mut session = model.session(SessionOptions::new(1, room))?;
        let (mut messages, ask) = (first.clone(), std::io::stdin().is_terminal() && !self.json);
        let mut lines = Lines::new(std::io::stdin().lock(), MAX_TEXT);
        loop {
            if ask {
                say("> ")?;
            }
            let Some(line) = lines.next_line().context("standard input")? else { break };
            let line = match line {
                Line::Text(text) => text,
                Line::Repaired(text) => {
                    note("the line is not UTF-8: U+FFFD takes the place of wrong bytes");
                    text
                }
                Line::TooLong => {
                    self.refuse(format!(
                        "the line has more than {MAX_TEXT} bytes, and is left out"
                    ))?;
                    continue;
                }
            };
            match line.trim() {
                "" => continue,
                "/bye" => break,
                "/clear" => {
                    messages.clone_from(&first);
                    continue;
                }
                text => messages.push(Message::new("user", text)),
            }
            let prompt = match prompt(&tokenizer, &messages, room)? {
                Ok(prompt) => prompt,
                Err(what) => {
                    self.refuse(what)?;
                    messages.pop();
                    continue;
                }
            };
            let mut answer = model.generate_in(session, &prompt, &options)?;
            let (mut parts, mut said, mut ids) =
                (Reasoning::after(&tokenizer, &prompt)?, Said::default(), Vec::new());
            for token in &mut answer {
                let token = token?;
                let more = parts.push(&token.text);
                if !self.json {
                    say(if self.hide_thinking { &more.answer } else { &token.text })?;
                }
                said += more;
                ids.push(token.id);
            }
            let (last, reasoning_tokens) = (parts.finish(), parts.pieces());
            if self.hide_thinking && !self.json {
                say(&last.answer)?;
            }
            said += last;
            let (stop, speculation) = (answer.stop(), generation::counts(answer.speculation()));
            if self.json {
                let stop = stop.map(|stop| format!("{stop:?}"));
                let (prompt_tokens, role) = (prompt.len(), "assistant");
                let object = json!({
                    "role": role, "content": said.answer, "reasoning": said.reasoning, "reasoning_tokens": reasoning_tokens, "ids": ids, "prompt_tokens": prompt_tokens, "stop": stop, "speculation": speculation
                });
                say(format!("{object}\n"))?;
            } else {
                say("\n")?;
                if self.hide_thinking && reasoning_tokens > 0 {
                    note(format!("(after {reasoning_tokens} tokens of reasoning)"));
                }
                match stop {
                    Some(Stop::MaxTokens) => {
                        note("(cut at the most tokens of an answer: --max-tokens)")
                    }
                    Some(Stop::Context) => note(
                        "(cut: the conversation fills its room; /clear begins anew, --context gives more)",
                    ),
                    _ => {}
                }
            }
            // Templates leave out what was said to itself in turns before, or have their own way to
            // say it.
            let reasoning = if said.reasoning.is_empty() { None } else { Some(said.reasoning) };
            messages.push(Message::new("assistant", said.answer).reasoning(reasoning));
            session = pollster::block_on(answer.into_session())?;
        }
        Ok(())
    }

    /// Says why a message is left out.
    fn refuse(&self, what: String) -> Result<()> {
        if self.json {
            say(format!("{}\n", json!({ "error": what })))?;
        }
        note(what);
        Ok(())
    }
}
