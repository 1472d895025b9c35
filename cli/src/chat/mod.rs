//! `bitnet chat`: a conversation.

mod command;
mod conversation;
mod reader;
mod screen;
mod wrap;

use self::{
    command::Command,
    conversation::Conversation,
    reader::{Entry, Reader},
    screen::Screen,
};
use crate::{
    counted,
    generation::{GenerationArgs, Seed},
    grammar::GrammarArgs,
    input,
    model::{ChatArgs, ModelArgs, Placement},
    note,
};
use anyhow::{Context as _, Result, bail};
use bitnet_wgpu::{
    internals::files::{self, display},
    model::{Message, ModelFiles, SessionOptions, Tokenizer},
};
use clap::Args;
use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
};

/// Default size of a conversation: the whole context of a large model takes gigabytes.
const CONTEXT: usize = 4096;

/// Talks with a model
///
/// A line is a message. `/help` lists the commands of a conversation. When the context is full, the
/// oldest turns are left out. Ctrl-C stops an answer, Ctrl-D quits.
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
    /// Do not keep the messages that are typed, for the next conversation's line editing
    #[arg(long)]
    no_history: bool,
    #[command(flatten, next_help_heading = "Chat")]
    template: ChatArgs,
    #[command(flatten, next_help_heading = "Generation")]
    generation: GenerationArgs,
    #[command(flatten, next_help_heading = "Structured output")]
    grammar: GrammarArgs,
    #[command(flatten, next_help_heading = "Device")]
    device: ModelArgs,
}

impl Chat {
    pub fn run(self) -> Result<()> {
        let files = self.device.open(&self.model)?;
        let options = self.generation.options(&files).grammar(self.grammar.grammar()?);
        let messages: Vec<Message> =
            self.system_prompt.iter().map(|text| Message::new("system", text)).collect();
        let with_user = [&messages[..], &[Message::new("user", "Hello")]].concat();
        // An error, before the weights are read, if there is no chat template or it has no system
        // messages.
        let tokenizer = self.template.tokenizer(files.tokenizer()?)?;
        let shortest = tokenizer.chat(&with_user)?;
        files.check(&shortest, &options)?;
        let room = self.room(&files, shortest.len())?;
        let draft = self.generation.draft(&files, &self.device)?;
        let model = self.device.load(&files, SessionOptions::new(1, room))?;
        let options = self.generation.with_draft(options, draft, &model, &self.device)?;
        let is_terminal =
            std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && !self.json;
        let screen = Screen::new(self.json, self.hide_thinking);
        if !self.json {
            screen.say_aside(&format!("{}; /help lists commands", Placement::of(&model)?));
        }
        let tokenizer = tokenizer.within(room);
        let mut conversation = Conversation::new(&model, tokenizer, options, room, messages)?;
        conversation.seed = self.generation.seed.unwrap_or(Seed::Random).number();
        conversation.is_interruptible = is_terminal;
        let mut reader = Reader::new(is_terminal, !self.no_history)?;
        while let Some(entry) = reader.next_entry()? {
            let outcome = match &entry {
                Entry::Text(text) => take(text, &mut conversation, &screen)?,
                Entry::Refused(why) => Err(why.clone()),
            };
            match outcome {
                Ok(Next::Continue) => {}
                Ok(Next::Quit) => break,
                Err(why) => screen.refuse(&why)?,
            }
        }
        Ok(())
    }

    /// Returns the size of the conversation in tokens.
    fn room(&self, files: &ModelFiles, shortest: usize) -> Result<usize> {
        let longest = files.config().context;
        let room = self.context_length.unwrap_or(CONTEXT.min(longest));
        if room < shortest || room > longest {
            bail!("--context-length {room}: {shortest} to {longest} tokens are accepted");
        }
        Ok(room)
    }
}

/// What follows a message.
enum Next {
    Continue,
    Quit,
}

/// Answers a message or obeys a command. Returns why it cannot.
fn take(
    text: &str,
    conversation: &mut Conversation,
    screen: &Screen,
) -> Result<Result<Next, String>> {
    if text.is_empty() {
        return Ok(Ok(Next::Continue));
    }
    let command = match command::parse(text) {
        None => {
            let message = Message::new("user", text);
            let messages = [&conversation.messages[..], &[message]].concat();
            return reply(messages, conversation, screen);
        }
        Some(Err(why)) => return Ok(Err(why)),
        Some(Ok(command)) => command,
    };
    let done = match command {
        Command::Bye => return Ok(Ok(Next::Quit)),
        Command::Regenerate => {
            let mut messages = conversation.messages.clone();
            if messages.pop_if(|message| message.role == "assistant").is_none() {
                return Ok(Err("there is no answer to generate again".into()));
            }
            return reply(messages, conversation, screen);
        }
        Command::Help => {
            note(command::help());
            Ok(())
        }
        Command::Clear => {
            let is_system = |message: &&Message| message.role == "system";
            conversation
                .restart(conversation.messages.iter().take_while(is_system).cloned().collect());
            Ok(())
        }
        Command::System(text) => set_system(text, conversation),
        Command::Set(name, value) => set(name, value, conversation),
        Command::Save(file) => save(Path::new(file), conversation, screen),
        Command::Load(file) => load(Path::new(file), conversation, screen),
    };
    Ok(done.map(|()| Next::Continue).map_err(|error| crate::text(&error)))
}

/// Answers messages, of which the last is a user's. Returns why it cannot.
fn reply(
    messages: Vec<Message>,
    conversation: &mut Conversation,
    screen: &Screen,
) -> Result<Result<Next, String>> {
    let prompt = match conversation.prompt(messages) {
        Ok(prompt) => prompt,
        Err(why) => return Ok(Err(why)),
    };
    let dropped = prompt.dropped_turns;
    screen.start(dropped);
    let mut shown = screen.answer();
    let answer = conversation.answer(prompt, |token, more| shown.show(&token.text, more))?;
    shown.end(&answer, dropped)?;
    Ok(Ok(Next::Continue))
}

fn set_system(text: &str, conversation: &mut Conversation) -> Result<()> {
    let mut messages = conversation.messages.clone();
    messages.retain(|message| message.role != "system");
    if !text.is_empty() {
        messages.insert(0, Message::new("system", text));
    }
    check(&messages, &conversation.tokenizer)?;
    conversation.messages = messages;
    Ok(())
}

/// Checks that the chat template accepts messages, with one of a user after them.
fn check(messages: &[Message], tokenizer: &Tokenizer) -> Result<()> {
    let next = Message::new("user", "Hello");
    match tokenizer.chat(&[messages, &[next]].concat()) {
        // The oldest turns can be left out.
        Ok(_) | Err(bitnet_wgpu::Error::TextTooLong { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Changes an option of generation.
fn set(name: &str, value: &str, conversation: &mut Conversation) -> Result<()> {
    let mut args = GenerationArgs::default();
    args.set(name, value).map_err(anyhow::Error::msg)?;
    let mut options = conversation.options.clone();
    options = options.clone().sampling(args.sampling(options.get_sampling()));
    if let Some(max_tokens) = args.max_tokens {
        options = options.max_tokens(max_tokens);
    }
    options.check(conversation.model.config().vocab)?;
    conversation.options = options;
    if let Some(seed) = args.seed {
        conversation.reseed(seed.number());
    }
    Ok(())
}

fn save(file: &Path, conversation: &Conversation, screen: &Screen) -> Result<()> {
    if file.exists() {
        bail!("{}: exists already; a new file is accepted", display(file));
    }
    files::write(file, format!("{:#}\n", conversation.object()).as_bytes())?;
    screen.say_aside(&format!("saved: {}", display(file)));
    Ok(())
}

fn load(file: &Path, conversation: &mut Conversation, screen: &Screen) -> Result<()> {
    let name = || display(file).to_string();
    let text = input::text(file, input::MAX_TEXT)?;
    let messages = conversation::messages_of(&text).with_context(name)?;
    check(&messages, &conversation.tokenizer).with_context(name)?;
    screen.say_aside(&counted(messages.len(), "message"));
    conversation.restart(messages);
    Ok(())
}
