//! `bitnet serve`: a server that many clients share.

use crate::{
    generation::GenerationArgs,
    model::{self, ChatArgs, ModelArgs},
    note, say,
};
use anyhow::{Context as _, Result, bail};
use bitnet_serve::{Options, Server};
use bitnet_wgpu::model::{BatchOptions, SessionOptions};
use clap::Args;
use serde_json::json;
use std::time::Duration;
use tokio::net::TcpListener;

/// What a sequence may take unless it is said: a large model's whole context takes gigabytes.
const CONTEXT: usize = 4096;

/// Serves a model over HTTP, as OpenAI's API does; an interrupt ends it
///
/// POST /v1/chat/completions, POST /v1/completions, POST /v1/embeddings, GET /v1/models, GET /health. Sampling options, --max-tokens and --seed are for requests that do not give their own.
#[derive(Args)]
pub struct Serve {
    /// A model directory, a GGUF file, or a name on the Hugging Face hub
    model: String,
    /// The address to listen at; 0.0.0.0 lets other machines in
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// The port to listen at; 0 takes a free one
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Requests that are computed side by side
    #[arg(long, default_value_t = 8)]
    slots: usize,
    /// Room for so many tokens of each, its prompt's among them [default: the model's context, 4096 at most]
    #[arg(long)]
    context: Option<usize>,
    /// Requests that may wait for a slot; more are refused
    #[arg(long, default_value_t = 64)]
    queue: usize,
    /// What clients must send as `Authorization: Bearer KEY`. Better in the environment variable BITNET_API_KEY, since others see command lines
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
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
        let key = self.api_key.clone().or_else(|| std::env::var("BITNET_API_KEY").ok());
        if key.as_ref().is_some_and(|key| key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic())) {
            bail!("the API key is empty, or has characters that a header cannot have");
        }
        if self.generation.speculate.is_some() {
            bail!("--speculate: requests that are computed side by side do not speculate");
        }
        let files = self.device.open(&self.model)?;
        let defaults = self.generation.options(&files);
        defaults.check(files.config().vocab)?;
        let tokenizer = if self.chat.is_usual() { None } else { Some(self.chat.tokenizer(files.tokenizer()?)?) };
        let context = self.context.unwrap_or(CONTEXT.min(files.config().context));
        if self.slots == 0 {
            bail!("--slots 0: one is needed at least");
        }
        if context == 0 || context > files.config().context {
            bail!("--context {context}: the model's context is {}", files.config().context);
        }
        let runtime = tokio::runtime::Runtime::new().context("starting the server's threads")?;
        // An address that is taken is better known before the weights are read.
        let address = (self.host.as_str(), self.port);
        let listener = runtime.block_on(TcpListener::bind(address)).with_context(|| format!("{}:{}", self.host, self.port))?;
        let model = self.device.load(&files, SessionOptions::new(self.slots, context))?;
        let (adapter, language) = model::device(&model)?;
        note(format!("{adapter}, kernels in {language}"));
        let batch = model.batch(BatchOptions::new(self.slots, context).queue(self.queue))?;
        let options = Options::new(self.name.unwrap_or_else(|| name(&self.model))).key(key).defaults(defaults).tokenizer(tokenizer);
        let options = options.max_tokens(self.generation.max_tokens).seed(self.generation.seed);
        let server = Server::new(batch, options.clone().grace(Duration::from_secs(self.grace)))?;
        let url = format!("http://{}", listener.local_addr()?);
        if self.json {
            say(format!("{}\n", json!({ "address": url, "model": options.name, "slots": self.slots, "context": context })))?;
        } else {
            say(format!("serving {} at {url}\n", options.name))?;
        }
        runtime.block_on(server.run(listener, interrupted()))?;
        note("ended");
        Ok(())
    }
}

/// The last part of a path or of a name on the hub.
fn name(model: &str) -> String {
    let resolved = std::fs::canonicalize(model).ok();
    let last = resolved.as_ref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy().into_owned());
    last.unwrap_or_else(|| model.to_owned())
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
    if let Ok(mut term) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
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
