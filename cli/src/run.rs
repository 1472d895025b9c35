//! `bitnet run`: continues a prompt.

use crate::{
    generation::{self, GenerationArgs},
    input,
    model::{self, ChatArgs, ModelArgs},
    note, profile, say,
};
use anyhow::{Result, bail};
use bitnet_wgpu::{
    formats::SafeTensors,
    internals::files::{check_output, display},
    model::{
        GenerateOptions, Message, Model, ModelFiles, Session, SessionOptions, SpeculationCounts,
        Stop,
    },
};
use clap::Args;
use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Continues a text, or answers it
#[derive(Args)]
pub struct Run {
    /// A model directory, a GGUF file, or a name on the Hugging Face hub
    model: PathBuf,
    /// The text to continue; `-`, or none, is read from standard input, at most 16 MiB
    prompt: Option<String>,
    #[command(flatten)]
    how: RunArgs,
}

/// Options of `bitnet run` beside the model and the prompt.
#[derive(Args)]
struct RunArgs {
    /// Token ids to continue instead of a text, without adding BOS
    #[arg(long, value_delimiter = ',')]
    ids: Option<Vec<u32>>,
    /// Take the prompt as a user's message and answer it, using the model's chat template
    #[arg(long, conflicts_with = "ids")]
    chat: bool,
    #[command(flatten)]
    template: ChatArgs,
    /// Keep what is computed of the text in this file; another run on the same model goes on from
    /// what its prompt has in common with it
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,
    #[command(flatten)]
    generation: GenerationArgs,
    /// After the text, time its prompt and a decoding step in the middle of it kernel by kernel,
    /// and what the host does for them
    #[arg(long)]
    profile: bool,
    #[command(flatten)]
    model: ModelArgs,
    /// Print one JSON object instead of the text
    #[arg(long)]
    json: bool,
}

impl Run {
    pub fn run(self) -> Result<()> {
        let prompt = match (&self.prompt, &self.how.ids) {
            (Some(_), Some(_)) => bail!("a prompt and --ids are given; one of them is needed"),
            (None, Some(_)) => String::new(),
            (Some(prompt), None) if prompt != "-" => prompt.clone(),
            (None, None) if std::io::stdin().is_terminal() => bail!("a prompt is needed, or --ids"),
            _ => {
                let prompt = input::standard_input()?;
                // The end of the last line is not the text's.
                let text = prompt.strip_suffix('\n').unwrap_or(&prompt);
                text.strip_suffix('\r').unwrap_or(text).to_owned()
            }
        };
        run(&self.model, &prompt, &self.how)
    }
}

/// Generated tokens, and the time they took.
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
    let (ids, options) = (tokens(&files, prompt, args)?, args.generation.options(&files));
    files.check(&ids, &options)?;
    if let Some(file) = &args.session {
        check_session(file, &files, ids.len())?;
    }
    let draft = args.generation.draft(&files, &args.model)?;
    let contexts = args.model.contexts()?;
    let profiled = if args.profile { Some(profile::device(&contexts)?) } else { None };
    let model = args.model.load_to(
        &contexts,
        &files,
        options.room(1, ids.len(), files.config().context)?,
    )?;
    let options = args.generation.with_draft(options, draft, &model, &args.model)?;
    let (adapter, language) = model::device(&model)?;
    if !args.json {
        note(format!("{adapter}, kernels in {language}"));
    }
    let saved =
        args.session.as_deref().map(|file| session(&model, &ids, &options, file)).transpose()?;
    let mut shown =
        if !args.json && args.ids.is_none() && !args.chat { say(prompt) } else { Ok(()) };
    let (generated, session) = generate(&model, saved, &ids, &options, |text| {
        if shown.is_ok() && !args.json {
            shown = say(text);
        }
        // What is kept in a file goes on, though nobody reads the text any more.
        match &shown {
            Err(error) if args.session.is_none() => {
                Err(std::io::Error::new(error.kind(), error.to_string()).into())
            }
            _ => Ok(()),
        }
    })?;
    let rate = |tokens: usize, time: Duration| {
        if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
    };
    // Of a session's prompt, only what is new was computed.
    let prefill =
        if args.session.is_none() { Some(rate(ids.len(), generated.prefill)) } else { None };
    let decode = rate(generated.ids.len().saturating_sub(1), generated.decode);
    let stop = generated.stop.map(|stop| format!("{stop:?}"));
    let profile = || {
        profiled
            .map(|context| profile::OfText::new(&model, context, &ids, generated.ids.len()))
            .transpose()
    };
    // An error of it is told when all else is done.
    let profile = if args.json {
        let profile = profile();
        let object = serde_json::json!({
            "prompt_tokens": ids.len(),
            "ids": generated.ids,
            "text": generated.text,
            "stop": stop,
            "speculation": generation::counts(generated.speculation),
            "seconds_to_first_token": generated.prefill.as_secs_f64(),
            "prefill_tokens_per_second": prefill,
            "decode_tokens_per_second": decode,
            "adapter": adapter,
            "language": language,
            "profile": profile.as_ref().ok().and_then(Option::as_ref).map(profile::OfText::object),
        });
        shown = say(format!("{object}\n"));
        profile
    } else {
        shown = shown.and_then(|()| say("\n"));
        let stop = stop.map_or_else(String::new, |stop| format!(", ended by {stop}"));
        let prefill =
            prefill.map_or_else(String::new, |prefill| format!(", {prefill:.0} per second"));
        let drafts = generated.speculation.map_or_else(String::new, |counts| {
            format!(
                ", of {} drafted {} were accepted in {} passes",
                counts.drafted, counts.accepted, counts.passes
            )
        });
        let (prompt, generated) = (ids.len(), generated.ids.len());
        note(format!(
            "prompt: {prompt} tokens{prefill}; generated: {generated} tokens, {decode:.1} per second{drafts}{stop}"
        ));
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

fn tokens(files: &ModelFiles, prompt: &str, args: &RunArgs) -> Result<Vec<u32>> {
    Ok(match &args.ids {
        _ if !args.chat && !args.template.is_usual() => {
            bail!("--chat-template, --thinking and --special-tokens-in-content are for --chat")
        }
        Some(ids) => ids.clone(),
        None if args.chat => args
            .template
            .tokenizer(files.tokenizer()?)?
            .within(files.config().context)
            .chat(&[Message::new("user", prompt)])?,
        None => files.encode_prompt(prompt)?,
    })
}

/// A file that cannot be written, or is no session, is better known before the text than after it.
fn check_session(file: &Path, files: &ModelFiles, tokens: usize) -> Result<()> {
    let folder =
        file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        bail!("{}: there is no directory {}", display(file), display(folder));
    }
    let known = || {
        SafeTensors::open(file).is_ok_and(|file| {
            file.metadata("format").is_some_and(|format| format.starts_with("bitnet-wgpu session"))
        })
    };
    if file.exists() && !(file.is_file() && known()) {
        bail!("{}: is not a saved session", display(file));
    }
    // Keys and values of the prompt take as much at least: two bytes a number.
    let c = files.config();
    let bytes = 4 * (c.layers * c.kv_heads * c.head_dim * tokens) as u64;
    Ok(check_output(file, bytes, &files.paths()?)?)
}

/// Continues a prompt, in a session that there may be; gives the session back.
fn generate(
    model: &Model,
    session: Option<Session>,
    prompt: &[u32],
    options: &GenerateOptions,
    mut show: impl FnMut(&str) -> Result<()>,
) -> Result<(Generated, Session)> {
    let start = Instant::now();
    let mut generation = match session {
        Some(session) => model.generate_in(session, prompt, options)?,
        None => model.generate_ids(prompt, options)?,
    };
    let (mut ids, mut text, mut prefill) = (Vec::new(), String::new(), Duration::ZERO);
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
    if options.max_tokens == 0 {
        // Nothing was computed; a session in a file is to have the prompt all the same.
        session.truncate(0, 0)?;
        pollster::block_on(session.prefill(0, prompt))?;
    }
    Ok((Generated { ids, text, stop, speculation, prefill, decode }, session))
}

/// The session in a file, if there is one, with room for what follows.
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
    Ok(model.load_session(file, SessionOptions::new(1, room.capacity.max(tokens)))?)
}
