//! An OpenAI-compatible server of ternary language models: many clients share one [`Batch`].
//!
//! ```no_run
//! use bitnet_serve::{Options, Server};
//! use bitnet_wgpu::model::{BatchOptions, Model};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::open("assets/tales-22m")?;
//! let batch = model.batch(BatchOptions::new(8, 512))?; // eight sequences of up to 512 tokens
//! let server = Server::new(batch, Options::new("tales-22m"))?;
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! server.run(listener, async { tokio::signal::ctrl_c().await.unwrap_or(()) }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! | | |
//! | --- | --- |
//! | `POST /v1/chat/completions`, `POST /v1/completions` | chat and text completion, whole or streamed, with log-probabilities and tool calls |
//! | `POST /v1/responses` | chat, by OpenAI's newer API |
//! | `POST /v1/messages`, `POST /v1/messages/count_tokens` | chat, by Anthropic's API |
//! | `POST /v1/embeddings` | embeddings |
//! | `POST /tokenize`, `POST /detokenize` | tokens of a text or a conversation, and the text of tokens |
//! | `GET /v1/models`, `GET /v1/models/NAME` | the model |
//! | `GET /health` | whether the server runs, ends or has failed, and its load; needs no key |
//! | `GET /metrics` | counters for Prometheus |
//! | `GET /` | a chat page |
//!
//! A field that is not supported is an error that names it. Clients take turns, and requests are
//! bounded in bytes, tokens and time: see [`Options`]. Each request is logged at the level `info`.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod access;
mod answer;
mod budget;
mod choices;
mod client;
mod connections;
mod conversation;
mod embeddings;
mod error;
mod fields;
mod files;
mod gate;
mod grammar;
mod hosts;
mod http;
mod json;
mod keeping;
mod life;
mod limits;
mod logprobs;
mod messages;
mod metrics;
mod options;
mod page;
mod parts;
mod paths;
mod prepare;
mod receive;
mod repeated;
mod request;
mod responses;
mod server;
mod shared;
mod socket;
mod stream;
mod tokens;
mod tool_blocks;
mod tools;
mod turns;
mod vectors;

#[doc(no_inline)]
pub use bitnet_wgpu::model::Batch;
pub use files::check_open_files;
pub use options::Options;
pub use server::Server;
