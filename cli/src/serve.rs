//! `bitnet serve`: a server with OpenAI's API.

use crate::{
    allocator,
    generation::{GenerationArgs, Seed},
    input,
    keep_warm::KeepWarm,
    model::{ChatArgs, ModelArgs, Placement},
    note, say,
};
use anyhow::{Context as _, Result, bail};
use bitnet_serve::{Options, Server};
use bitnet_wgpu::{
    internals::files::display,
    model::{BatchOptions, SessionOptions},
};
use clap::Args;
use serde_json::json;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::net::TcpListener;

/// Default size of a slot: the whole context of a large model takes gigabytes.
const CONTEXT: usize = 4096;
/// Most bytes of a key file: some ten thousand keys.
const MAX_KEYS: u64 = 1 << 20;

/// Serves a model over HTTP with OpenAI's API
///
/// A chat page is at /, and docs/guide/server.md lists the endpoints. Generation options, --max-tokens and --seed are defaults for requests that do not set
/// their own. The first interrupt (Ctrl-C) shuts the server down, a second one at once.
#[derive(Args)]
pub struct Serve {
    /// Model directory, GGUF file, prepacked model file, or name on the Hugging Face hub
    model: PathBuf,
    /// Address to listen on; 0.0.0.0 accepts other machines
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// Number of requests that are computed at a time (continuous batching)
    #[arg(long, value_name = "N", default_value_t = 8)]
    slots: usize,
    /// Size of a slot in tokens, prompt and answer together
    /// [default: the model's context, at most 4096]
    #[arg(long, value_name = "TOKENS")]
    context_length: Option<usize>,
    /// Number of requests that may wait for a slot; others get status 429
    #[arg(long, value_name = "N", default_value_t = 64)]
    queue: usize,
    /// API key that clients must send as `Authorization: Bearer KEY`; may be repeated
    /// [default: --api-key-file, or the environment variable BITNET_API_KEY, or none]
    ///
    /// Other users of this machine can see command lines, so a file or BITNET_API_KEY
    /// (comma-separated) is safer. With several keys, each key is a client: clients take turns and
    /// do not share cached prefixes. Otherwise each IP address is a client.
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// File of API keys, one per line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Host name that is accepted in the headers Host and Origin; may be repeated
    ///
    /// On a loopback address, both headers must name localhost, a loopback address or one of these
    /// hosts, against DNS rebinding. On other addresses they are checked only with this option.
    #[arg(long, value_name = "HOST")]
    allowed_host: Vec<String>,
    /// Origin whose pages may use the server from a browser (CORS), as in `https://app.example`;
    /// `*` allows all; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// Refuse request fields that have no effect, instead of ignoring them
    #[arg(long)]
    strict: bool,
    /// Serve no chat page at /
    #[arg(long)]
    no_page: bool,
    /// Maximum number of tokens in one embeddings request
    #[arg(long, value_name = "N", default_value_t = 300_000)]
    max_embedding_tokens: usize,
    /// Model name in the API [default: name of the file or directory]
    #[arg(long, value_name = "NAME")]
    model_name: Option<String>,
    /// Seconds that running requests may continue after an interrupt
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    shutdown_timeout: u64,
    /// Keep an idle GPU busy, so that it does not lower its clock
    ///
    /// Requests after a pause are then faster. This takes the power of a busy GPU all the time.
    #[arg(long, conflicts_with = "cpu")]
    keep_warm: bool,
    /// Print the address as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Chat")]
    chat: ChatArgs,
    #[command(flatten, next_help_heading = "Generation")]
    generation: GenerationArgs,
    #[command(flatten, next_help_heading = "Device")]
    device: ModelArgs,
}

impl Serve {
    pub fn run(self) -> Result<()> {
        bitnet_serve::check_open_files()?;
        let options = self.options()?;
        if self.generation.speculate.is_some() {
            bail!("--speculate: not supported by the server");
        }
        let files = self.device.open(&self.model)?;
        let defaults = self.generation.options(&files);
        defaults.check(files.config().vocab)?;
        let tokenizer = if self.chat.is_usual() {
            None
        } else {
            Some(self.chat.tokenizer(files.tokenizer()?)?)
        };
        let options = options.defaults(defaults).tokenizer(tokenizer);
        let context = self.context(files.config().context)?;
        allocator::keep_large_blocks_apart();
        let runtime = tokio::runtime::Runtime::new().context("starting the server's threads")?;
        // Report an address in use before the weights are read.
        let address = (self.host.as_str(), self.port);
        let listener = runtime
            .block_on(TcpListener::bind(address))
            .with_context(|| format!("{}:{}", self.host, self.port))?;
        let contexts = self.device.contexts()?;
        if self.keep_warm && contexts.is_empty() {
            bail!("--keep-warm needs a GPU; --gpu chooses one");
        }
        let room = SessionOptions::new(self.slots, context);
        let model = self.device.load_to(&contexts, &files, room)?;
        note(Placement::of(&model)?);
        let batch = model.batch(BatchOptions::new(self.slots, context).queue(self.queue))?;
        let name = options.name.clone();
        let warm = self.keep_warm.then(|| KeepWarm::start(&contexts, &batch)).transpose()?;
        let server = Server::new(batch, options)?;
        self.announce(&name, context, listener.local_addr()?)?;
        runtime.spawn(allocator::return_freed_memory());
        runtime.block_on(server.run(listener, interrupted()))?;
        drop(warm);
        note("server stopped");
        Ok(())
    }

    /// Returns the options that do not depend on the model.
    fn options(&self) -> Result<Options> {
        let name = self.model_name.clone().unwrap_or_else(|| name(&self.model));
        let options = Options::new(name)
            .keys(self.keys()?)
            .allowed_hosts(self.allowed_host.clone())
            .cors_origins(self.cors_origin.clone())
            .strict(self.strict)
            .page(!self.no_page)
            .max_embedding_tokens(self.max_embedding_tokens)
            .max_tokens(self.generation.max_tokens)
            .seed(self.seed())
            .shutdown_timeout(Duration::from_secs(self.shutdown_timeout));
        options.check()?;
        Ok(options)
    }

    /// Returns the seed of all requests; none if each has another.
    fn seed(&self) -> Option<u64> {
        match self.generation.seed {
            Some(Seed::Number(seed)) => Some(seed),
            Some(Seed::Random) | None => None,
        }
    }

    /// Returns the tokens of a slot, for a model of this context.
    fn context(&self, longest: usize) -> Result<usize> {
        if self.slots == 0 {
            bail!("--slots 0: at least 1 is needed");
        }
        let context = self.context_length.unwrap_or(CONTEXT.min(longest));
        if context == 0 || context > longest {
            bail!("--context-length {context}: 1 to {longest} tokens are accepted");
        }
        Ok(context)
    }

    /// Prints the address.
    fn announce(&self, name: &str, context: usize, address: SocketAddr) -> Result<()> {
        let url = format!("http://{address}");
        let object = json!({
            "address": url, "model": name, "slots": self.slots, "context_length": context,
        });
        say(if self.json { format!("{object}\n") } else { format!("serving {name} at {url}\n") })?;
        Ok(())
    }

    /// Returns the keys of the command line and the file, or else those of the environment.
    fn keys(&self) -> Result<Vec<String>> {
        let mut keys = self.api_key.clone();
        if let Some(file) = &self.api_key_file {
            let text = input::text(file, MAX_KEYS).context("--api-key-file")?;
            let lines: Vec<String> = text
                .lines()
                .map(str::trim)
                .filter(|line| !line.is_empty())
                .map(str::to_owned)
                .collect();
            if lines.is_empty() {
                bail!("--api-key-file {}: no keys; expected one per line", display(file));
            }
            keys.extend(lines);
        }
        if keys.is_empty()
            && let Some(text) = std::env::var_os("BITNET_API_KEY")
        {
            // Who sets it wants a key, so that what cannot be one must not open the server.
            let Some(text) = text.to_str() else { bail!("BITNET_API_KEY is not UTF-8") };
            keys = text
                .trim_end_matches('\n')
                .split([',', '\n'])
                .map(|key| key.trim().to_owned())
                .collect();
            if keys.iter().any(String::is_empty) {
                bail!(
                    "BITNET_API_KEY has an empty key; set a key, or unset it to serve without one"
                );
            }
        }
        Ok(keys)
    }
}

/// Returns the last part of a path or of a name on the hub.
fn name(model: &Path) -> String {
    let resolved = std::fs::canonicalize(model).ok();
    let last = resolved.as_ref().and_then(|path| path.file_name()).unwrap_or(model.as_os_str());
    last.to_string_lossy().into_owned()
}

/// Waits for an interrupt. A second one ends the process, however soon it comes.
async fn interrupted() {
    let mut signals = Signals::new();
    signals.next().await;
    note("shutting down; running requests may finish");
    tokio::spawn(async move {
        signals.next().await;
        std::process::exit(130);
    });
}

/// SIGINT and SIGTERM; none that are not available.
#[cfg(unix)]
struct Signals([Option<tokio::signal::unix::Signal>; 2]);

#[cfg(unix)]
impl Signals {
    fn new() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        let kinds = [SignalKind::interrupt(), SignalKind::terminate()];
        Self(kinds.map(|kind| signal(kind).ok()))
    }

    /// Waits for the next one since the last, or since the beginning.
    async fn next(&mut self) {
        let [interrupt, terminate] = &mut self.0;
        tokio::select! {
            () = received(interrupt) => {}
            () = received(terminate) => {}
        }
    }
}

#[cfg(unix)]
async fn received(signal: &mut Option<tokio::signal::unix::Signal>) {
    if let Some(signal) = signal
        && signal.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}

/// Ctrl-C.
#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> Self {
        Self
    }

    async fn next(&mut self) {
        crate::interrupt::interrupt().await;
    }
}
