//! The server on a socket, with two layers of the shipped model.

mod access;
mod answers;
mod bounds;
#[path = "../client/mod.rs"]
mod client;
mod connections;
mod dialects;
mod embeddings;
mod fairness;
mod fields;
mod formatted_tools;
mod grammar;
mod life;
mod logprobs;
mod manners;
mod mutations;
mod open_webui;
mod page;
#[path = "../client/raw.rs"]
mod raw;
mod requests;
mod tool_streams;
mod tools;

use bitnet_serve::{Options, Server};
use bitnet_wgpu::{
    Context,
    model::{BatchOptions, GenerateOptions, Model, ModelBuilder},
};
use client::{get, post};
use serde_json::{Value, json};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::LazyLock,
    thread::{JoinHandle, sleep, spawn},
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, sync::oneshot};

const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tales-22m");

/// A folder with the first two layers of the shipped model, since a server does not depend on what
/// its model says: a token takes a third of the time.
fn folder() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("two-layers");
        // Other processes may run tests at the same time.
        let unfinished = folder.with_extension(std::process::id().to_string());
        fs::create_dir_all(&unfinished).unwrap();
        for file in fs::read_dir(TALES).unwrap().map(|file| file.unwrap().path()) {
            if file.is_file() {
                fs::copy(&file, unfinished.join(file.file_name().unwrap())).unwrap();
            }
        }
        let config = fs::read(unfinished.join("config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&config).unwrap();
        config["num_hidden_layers"] = 2.into();
        fs::write(unfinished.join("config.json"), config.to_string()).unwrap();
        let _ = fs::remove_dir_all(&folder);
        if fs::rename(&unfinished, &folder).is_err() {
            fs::remove_dir_all(unfinished).unwrap();
        }
        folder
    });
    &FOLDER
}

fn builder<'a>() -> ModelBuilder<'a> {
    Model::builder(folder()).ignore_unused(true).text_check(false)
}

/// The model on the CPU.
fn cpu() -> Model {
    static MODEL: LazyLock<Model> = LazyLock::new(|| builder().cpu().build().unwrap());
    MODEL.clone()
}

fn gpu() -> Model {
    static MODEL: LazyLock<Model> = LazyLock::new(|| {
        builder().device(&pollster::block_on(Context::new()).unwrap()).build().unwrap()
    });
    MODEL.clone()
}

/// Tests of a function that takes a model: `NAME::cpu`, and `NAME::gpu`, which is ignored unless it
/// is asked for.
macro_rules! each_engine {
    ($name:ident) => {
        mod $name {
            #[test]
            fn cpu() {
                super::$name(&crate::cpu());
            }

            #[test]
            #[ignore = "needs a GPU"]
            fn gpu() {
                super::$name(&crate::gpu());
            }
        }
    };
}
use each_engine;

/// A server that ends when it is dropped, or told to.
struct Served {
    address: String,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Served {
    fn new(
        model: &Model,
        slots: usize,
        queue: usize,
        options: impl FnOnce(Options) -> Options,
    ) -> Self {
        Self::at("127.0.0.1:0", model, slots, queue, options)
    }

    fn at(
        listener: &str,
        model: &Model,
        slots: usize,
        queue: usize,
        options: impl FnOnce(Options) -> Options,
    ) -> Self {
        let batch = model.batch(BatchOptions::new(slots, 500).queue(queue)).unwrap();
        let server = Server::new(batch, options(Options::new("tales"))).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind(listener)).unwrap();
        let (port, (end, ended)) = (listener.local_addr().unwrap().port(), oneshot::channel());
        let thread = spawn(move || {
            runtime.block_on(server.run(listener, async { ended.await.unwrap_or(()) }))
        });
        Self { address: format!("127.0.0.1:{port}"), end: Some(end), thread: Some(thread) }
    }

    /// Its texts do not end by themselves.
    fn endless(
        model: &Model,
        slots: usize,
        queue: usize,
        options: impl FnOnce(Options) -> Options,
    ) -> Self {
        Self::new(model, slots, queue, |defaults| {
            options(defaults.defaults(GenerateOptions::default().ignore_eos(true)))
        })
    }

    fn end(&mut self) {
        self.end.take().unwrap().send(()).unwrap();
    }

    /// What its life came to.
    fn result(&mut self) -> io::Result<()> {
        let start = Instant::now();
        while !self.thread.as_ref().unwrap().is_finished() {
            assert!(start.elapsed() < Duration::from_secs(60), "it does not end");
            sleep(Duration::from_millis(5));
        }
        self.thread.take().unwrap().join().unwrap()
    }

    fn load(&self) -> (Value, Value) {
        let health = get(&self.address, "/health").json();
        (health["running"].clone(), health["waiting"].clone())
    }

    fn wait_for_load(&self, running: u64, waiting: u64) {
        let start = Instant::now();
        while self.load() != (running.into(), waiting.into()) {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{:?}, not {running} and {waiting}",
                self.load()
            );
            sleep(Duration::from_millis(5));
        }
    }

    fn complete(&self, body: &Value) -> Value {
        let answer = post(&self.address, "/v1/completions", body);
        assert_eq!(answer.status, 200);
        answer.json()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
        let joined = self.thread.take().is_none_or(|thread| matches!(thread.join(), Ok(Ok(()))));
        assert!(joined || std::thread::panicking());
    }
}

/// A request that takes seconds.
fn long() -> Value {
    json!({ "prompt": "Once", "max_tokens": 500, "stream": true })
}

fn with(mut body: Value, more: &[(&str, Value)]) -> Value {
    more.iter().for_each(|(field, value)| body[*field] = value.clone());
    body
}

/// The text of a choice in chunks, and why it ended.
fn joined(chunks: &[Value], choice: u64) -> (String, String) {
    let (mut text, mut reason) = (String::new(), String::new());
    for part in chunks
        .iter()
        .filter_map(|chunk| chunk["choices"].get(0))
        .filter(|part| part["index"] == choice)
    {
        assert!(reason.is_empty(), "{part} after the end");
        text += part["text"].as_str().or(part["delta"]["content"].as_str()).unwrap_or("");
        reason += part["finish_reason"].as_str().unwrap_or("");
    }
    (text, reason)
}
