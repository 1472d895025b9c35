//! `bitnet serve`: a server that many clients share.

use crate::{
    allocator,
    generation::GenerationArgs,
    input,
    model::{self, ChatArgs, ModelArgs},
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
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::net::TcpListener;

/// What a sequence may take unless it is said: a large model's whole context takes gigabytes.
const CONTEXT: usize = 4096;
/// Most bytes of a file of keys: some ten thousand.
const MAX_KEYS: u64 = 1 << 20;

/// Serves a model over HTTP, as OpenAI's API does; an interrupt ends it
///
/// POST /v1/chat/completions, POST /v1/completions, POST /v1/embeddings, GET /v1/models, GET
/// /health. Sampling options, --max-tokens and --seed are for requests that do not give their own.
#[derive(Args)]
pub struct Serve {
    /// A model directory, a GGUF file, or a name on the Hugging Face hub
    model: PathBuf,
    /// The address to listen at; 0.0.0.0 lets other machines in
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// The port to listen at; 0 takes a free one
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Requests that are computed side by side
    #[arg(long, default_value_t = 8)]
    slots: usize,
    /// Room for so many tokens of each, its prompt's among them
    /// [default: the model's context, 4096 at most]
    #[arg(long)]
    context: Option<usize>,
    /// Requests that may wait for a slot; more are refused
    #[arg(long, default_value_t = 64)]
    queue: usize,
    /// A key that clients must send as `Authorization: Bearer KEY`; may be repeated. Better in a
    /// file, or in the environment variable BITNET_API_KEY (several with commas), since others see
    /// command lines
    ///
    /// The variable is read if there is neither --api-key nor --api-key-file. With several keys,
    /// each is a client: clients take turns, and do not share cached prefixes. Else each IP address
    /// is a client.
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// A file of keys, one a line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// A name by which the server may be reached, or a site whose pages may use it; may be repeated
    ///
    /// On a loopback address, the headers Host and Origin must say localhost, a loopback address or
    /// one of these, against DNS rebinding. On another address they are checked only with this
    /// option.
    #[arg(long, value_name = "HOST")]
    allowed_host: Vec<String>,
    /// Tokens of all texts of one request for embeddings; more are refused
    #[arg(long, default_value_t = 300_000)]
    embedding_tokens: usize,
    /// The model's name for clients [default: that of its file or directory]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    chat: ChatArgs,
    /// Seconds that answers which have begun may go on after an interrupt
    #[arg(long, default_value_t = 10)]
    grace: u64,
    #[command(flatten)]
    generation: GenerationArgs,
    #[command(flatten)]
    device: ModelArgs,
    /// Print the address as a JSON object
    #[arg(long)]
    json: bool,
}

impl Serve {
    pub fn run(self) -> Result<()> {
        bitnet_serve::check_open_files()?;
        let options = Options::new(self.name.clone().unwrap_or_else(|| name(&self.model)));
        let options = options
            .keys(self.keys()?)
            .allowed_hosts(self.allowed_host.clone())
            .embedding_tokens(self.embedding_tokens);
        options.check()?;
        if self.generation.speculate.is_some() {
            bail!("--speculate: requests that are computed side by side do not speculate");
        }
        let files = self.device.open(&self.model)?;
        let defaults = self.generation.options(&files);
        defaults.check(files.config().vocab)?;
        let tokenizer = if self.chat.is_usual() {
            None
        } else {
            Some(self.chat.tokenizer(files.tokenizer()?)?)
        };
        let context = self.context.unwrap_or(CONTEXT.min(files.config().context));
        if self.slots == 0 {
            bail!("--slots 0: one is needed at least");
        }
        if context == 0 || context > files.config().context {
            bail!("--context {context}: the model's context is {}", files.config().context);
        }
        allocator::keep_large_blocks_apart();
        let runtime = tokio::runtime::Runtime::new().context("starting the server's threads")?;
        // An address that is taken is better known before the weights are read.
        let address = (self.host.as_str(), self.port);
        let listener = runtime
            .block_on(TcpListener::bind(address))
            .with_context(|| format!("{}:{}", self.host, self.port))?;
        let model = self.device.load(&files, SessionOptions::new(self.slots, context))?;
        let (adapter, language) = model::device(&model)?;
        note(format!("{adapter}, kernels in {language}"));
        let batch = model.batch(BatchOptions::new(self.slots, context).queue(self.queue))?;
        let options = options
            .defaults(defaults)
            .tokenizer(tokenizer)
            .max_tokens(self.generation.max_tokens)
            .seed(self.generation.seed);
        let options = options.grace(Duration::from_secs(self.grace));
        let server = Server::new(batch, options.clone())?;
        let url = format!("http://{}", listener.local_addr()?);
        if self.json {
            say(format!(
                "{}\n",
                json!({ "address": url, "model": options.name, "slots": self.slots, "context": context })
            ))?;
        } else {
            say(format!("serving {} at {url}\n", options.name))?;
        }
        runtime.spawn(allocator::return_freed_memory());
        runtime.block_on(server.run(listener, interrupted()))?;
        note("ended");
        Ok(())
    }

    /// The keys of the command line and the file; without either, those of the environment.
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
                bail!(
                    "--api-key-file {}: there is no key in it; one a line is expected",
                    display(file)
                );
            }
            keys.extend(lines);
        }
        if keys.is_empty()
            && let Ok(text) = std::env::var("BITNET_API_KEY")
        {
            keys = text
                .trim_end_matches('\n')
                .split([',', '\n'])
                .map(|key| key.trim().to_owned())
                .collect();
        }
        Ok(keys)
    }
}

/// The last part of a path or of a name on the hub.
fn name(model: &Path) -> String {
    let resolved = std::fs::canonicalize(model).ok();
    let last = resolved.as_ref().and_then(|path| path.file_name()).unwrap_or(model.as_os_str());
    last.to_string_lossy().into_owned()
}

/// Until somebody wants it to end. A second time, it ends at once.
async fn interrupted() {
    signal().await;
    note("ending; answers that have begun may go on for a while");
    tokio::spawn(async {
        signal().await;
        std::process::exit(130);
    });
}

async fn signal() {
    #[cfg(unix)]
    if let Ok(mut term) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
    {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = term.recv() => {}
        }
        return;
    }
    if tokio::signal::ctrl_c().await.is_err() {
        // Nobody can interrupt it so.
        std::future::pending().await
    }
}
