//! `bitnet run`: continues a prompt.

use crate::{
    counted,
    generation::{self, GenerationArgs, rate},
    grammar::GrammarArgs,
    input,
    model::{ChatArgs, ModelArgs, Placement},
    note, profile, say, say_text,
};
use anyhow::{Result, bail};
use bitnet_wgpu::{
    internals::{
        GenerateOptionsInternals as _, ModelFilesInternals as _, SafeTensors,
        files::{check_output, display},
    },
    model::{
        GenerateOptions, Message, Model, ModelFiles, Session, SessionOptions, SpeculationCounts,
        Stop,
    },
};
use clap::Args;
use serde_json::{Value, json};
use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Continues a prompt, or answers it
#[derive(Args)]
pub struct Run {
    /// Model directory, GGUF file, prepacked model file, or name on the Hugging Face hub
    model: PathBuf,
    /// Text to continue, of at most 16 MiB; `-` or no prompt reads standard input
    #[arg(allow_hyphen_values = true, value_parser = input::prompt)]
    prompt: Option<String>,
    /// Prompt after `--`, which may be like an option
    #[arg(last = true, hide = true, conflicts_with = "prompt")]
    literal: Option<String>,
    #[command(flatten)]
    how: RunArgs,
}

/// Options of `bitnet run` beside the model and the prompt.
#[derive(Args)]
struct RunArgs {
    /// Token ids to continue instead of a prompt, without adding BOS
    #[arg(long, value_name = "ID,ID", value_delimiter = ',')]
    token_ids: Option<Vec<u32>>,
    /// Answer the prompt as a user message, with the model's chat template
    #[arg(long, conflicts_with = "token_ids")]
    chat: bool,
    /// File that keeps the KV cache; later runs with the same model reuse the common prefix
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,
    /// Time the kernels of the prompt and of one decode step, on standard error
    #[arg(long)]
    profile: bool,
    /// Print one JSON object instead of the text
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Chat")]
    template: ChatArgs,
    #[command(flatten, next_help_heading = "Generation")]
    generation: GenerationArgs,
    #[command(flatten, next_help_heading = "Structured output")]
    grammar: GrammarArgs,
    #[command(flatten, next_help_heading = "Device")]
    model: ModelArgs,
}

impl Run {
    pub fn run(self) -> Result<()> {
        let given = self.literal.clone().or(self.prompt.clone().filter(|prompt| prompt != "-"));
        let prompt = match (given, &self.how.token_ids) {
            (None, Some(_)) if self.prompt.is_none() => String::new(),
            (_, Some(_)) => {
                bail!("a prompt and --token-ids: only one of them is accepted")
            }
            (Some(prompt), None) => prompt,
            (None, None) if self.prompt.is_none() && std::io::stdin().is_terminal() => {
                bail!("missing prompt; a text, `-` for standard input, or --token-ids is accepted")
            }
            (None, None) => input::piped_text()?,
        };
        run(&self.model, &prompt, &self.how)
    }
}

/// Generated tokens, and their times.
struct Generated {
    ids: Vec<u32>,
    text: String,
    stop: Option<Stop>,
    speculation: Option<SpeculationCounts>,
    /// Time to the first token.
    prefill: Duration,
    /// Time from the first token to the last.
    decode: Duration,
}

fn run(name: &Path, prompt: &str, args: &RunArgs) -> Result<()> {
    let files = args.model.open(name)?;
    let ids = tokens(&files, prompt, args)?;
    let (options, seed) = args.generation.seeded(&files);
    let options = options.grammar(args.grammar.grammar()?);
    files.check(&ids, &options)?;
    if let Some(file) = &args.session {
        check_session(file, &files, ids.len())?;
    }
    let draft = args.generation.draft(&files, &args.model)?;
    let contexts = args.model.contexts()?;
    let profiled = if args.profile { Some(profile::device(&contexts)?) } else { None };
    let room = options.room(1, ids.len(), files.config().context)?;
    let model = args.model.load_to(&contexts, &files, room)?;
    let options = args.generation.with_draft(options, draft, &model, &args.model)?;
    let device = Placement::of(&model)?;
    if !args.json {
        note(&device);
    }
    let saved = args.session.as_deref();
    let saved = saved.map(|file| session(&model, &ids, &options, file)).transpose()?;
    let is_continued = !args.json && args.token_ids.is_none() && !args.chat;
    let mut shown = if is_continued { say(prompt) } else { Ok(()) };
    let (generated, session) = generate(&model, saved, &ids, &options, |text| {
        if shown.is_ok() && !args.json {
            shown = say_text(text);
        }
        // A session is completed even if nobody reads the text any more.
        match &shown {
            Err(error) if args.session.is_none() => Err(repeated(error)),
            _ => Ok(()),
        }
    })?;
    let profile = || {
        let count = generated.ids.len();
        profiled.map(|context| profile::OfText::new(&model, context, &ids, count)).transpose()
    };
    // An error of the profile is reported last, after the session is saved.
    let profile = if args.json {
        let profile = profile();
        let mut object = generated.object(&ids, args, &device);
        object["seed"] = seed.into();
        object["profile"] =
            profile.as_ref().ok().and_then(Option::as_ref).map(profile::OfText::object).into();
        shown = say(format!("{object}\n"));
        profile
    } else {
        shown = shown.and_then(|()| say("\n"));
        note(generated.summary(ids.len(), args));
        let profile = profile();
        profile.iter().flatten().for_each(note);
        profile
    };
    if let Some(file) = &args.session {
        pollster::block_on(session.save(file))?;
    }
    profile?;
    Ok(shown?)
}

/// Returns an error again, for a caller that keeps it.
fn repeated(error: &std::io::Error) -> anyhow::Error {
    std::io::Error::new(error.kind(), error.to_string()).into()
}

impl Generated {
    /// Returns the tokens per second of a prompt; none for a session, of whose prompt only a part
    /// may have been computed.
    fn prefill_rate(&self, prompt: usize, args: &RunArgs) -> Option<f64> {
        rate(prompt, self.prefill).filter(|_| args.session.is_none())
    }

    fn decode_rate(&self) -> Option<f64> {
        rate(self.ids.len().saturating_sub(1), self.decode)
    }

    /// Returns the object of `--json`, without the profile.
    fn object(&self, prompt: &[u32], args: &RunArgs, device: &Placement) -> Value {
        json!({
            "prompt_tokens": prompt.len(),
            "prompt_token_ids": prompt,
            "token_ids": self.ids,
            "text": self.text,
            "stop_reason": self.stop.map(|stop| stop.to_string()),
            "speculation": generation::counts(self.speculation),
            "seconds_to_first_token": self.prefill.as_secs_f64(),
            "prefill_tokens_per_second": self.prefill_rate(prompt.len(), args),
            "decode_tokens_per_second": self.decode_rate(),
            "adapter": device.adapter,
            "shader_language": device.language(),
        })
    }

    /// Returns the line that follows the text.
    fn summary(&self, prompt: usize, args: &RunArgs) -> String {
        let prefill = self.prefill_rate(prompt, args);
        let prefill = prefill.map_or_else(String::new, |rate| format!(" ({rate:.0} tok/s)"));
        let drafts = self.speculation.map_or_else(String::new, |counts| {
            format!(
                "; draft tokens accepted: {} of {}, passes: {}",
                counts.accepted, counts.drafted, counts.passes
            )
        });
        let stop = match self.stop {
            Some(Stop::EndOfText) => "; stopped at the end of the text",
            Some(Stop::StopString) => "; stopped at a stop string",
            Some(Stop::MaxTokens) => "; stopped at --max-tokens",
            Some(Stop::Context) => "; stopped at the end of the context",
            _ => "",
        };
        let generated = counted(self.ids.len(), "token");
        let prompt = counted(prompt, "token");
        let decode = self.decode_rate();
        let decode = decode.map_or_else(String::new, |rate| format!(" ({rate:.1} tok/s)"));
        format!("prompt: {prompt}{prefill}; generated: {generated}{decode}{drafts}{stop}")
    }
}

fn tokens(files: &ModelFiles, prompt: &str, args: &RunArgs) -> Result<Vec<u32>> {
    if !args.chat {
        args.template.check_unused()?;
    }
    Ok(match &args.token_ids {
        Some(ids) => ids.clone(),
        None if args.chat => args
            .template
            .tokenizer(files.tokenizer()?)?
            .within(files.config().context)
            .chat(&[Message::new("user", prompt)])?,
        None => files.encode_prompt(prompt)?,
    })
}

/// Checks before the generation that a session can be saved to a file.
fn check_session(file: &Path, files: &ModelFiles, tokens: usize) -> Result<()> {
    let folder =
        file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        bail!("{}: no such directory: {}", display(file), display(folder));
    }
    let known = || {
        SafeTensors::open(file).is_ok_and(|file| {
            file.metadata("format").is_some_and(|format| format.starts_with("bitnet-wgpu session"))
        })
    };
    if file.exists() && !(file.is_file() && known()) {
        bail!("{}: is not a saved session", display(file));
    }
    // Lower bound: keys and values of the prompt in f16.
    let c = files.config();
    let bytes = 4 * (c.layers * c.kv_heads * c.head_dim * tokens) as u64;
    Ok(check_output(file, bytes, &files.paths()?)?)
}

/// Continues a prompt, in a saved session or a new one, and returns the session.
fn generate(
    model: &Model,
    session: Option<Session>,
    prompt: &[u32],
    options: &GenerateOptions,
    mut show: impl FnMut(&str) -> Result<()>,
) -> Result<(Generated, Session)> {
    let start = Instant::now();
    let mut generation = match session {
        Some(session) => model.generate_ids_in(session, prompt, options)?,
        None => model.generate_ids(prompt, options)?,
    };
    let mut ids = Vec::new();
    let mut text = String::new();
    let mut prefill = Duration::ZERO;
    for token in &mut generation {
        let token = token?;
        if ids.is_empty() {
            prefill = start.elapsed();
        }
        ids.push(token.id);
        text += &token.text;
        show(&token.text)?;
    }
    let (decode, stop, speculation) =
        (start.elapsed() - prefill, generation.stop(), generation.speculation());
    let mut session = pollster::block_on(generation.into_session())?;
    if ids.is_empty() {
        // Nothing was computed, but the saved session has to contain the prompt.
        session.truncate(0, 0)?;
        pollster::block_on(session.prefill(0, prompt))?;
    }
    Ok((Generated { ids, text, stop, speculation, prefill, decode }, session))
}

/// Loads the session of a file, or creates one, with room for the prompt and the options.
fn session(
    model: &Model,
    prompt: &[u32],
    options: &GenerateOptions,
    file: &Path,
) -> Result<Session> {
    let context = model.config().context;
    let room = options.room(1, prompt.len(), context)?;
    if !file.exists() {
        return Ok(model.session(room)?);
    }
    let tokens = SafeTensors::open(file)?.tensor("tokens.0")?.shape.iter().product();
    Ok(model.load_session(file, SessionOptions::new(1, room.capacity().max(tokens)))?)
}
