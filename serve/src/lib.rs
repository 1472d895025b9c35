//! A server of ternary language models, as OpenAI's API has it: many clients share one [`Batch`].
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
//! | `POST /v1/chat/completions`, `POST /v1/completions` | continue conversations and texts, as one answer or as a stream |
//! | `POST /v1/embeddings` | texts as vectors |
//! | `GET /v1/models`, `GET /v1/models/NAME` | the model |
//! | `GET /health` | whether it runs, ends or has failed, and how busy it is; needs no key |
//!
//! A request that asks for what is not done here is refused by the name of the field.
//!
//! Clients take turns, and what they send is bounded in bytes, tokens and time: see [`Options`].

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod access;
mod answer;
mod budget;
mod choices;
mod client;
mod connections;
mod embeddings;
mod error;
mod fields;
mod files;
mod hosts;
mod http;
mod json;
mod life;
mod limits;
mod options;
mod prepare;
mod request;
mod server;
mod shared;
mod socket;
mod turns;
mod vectors;

#[doc(no_inline)]
pub use bitnet_wgpu::model::Batch;
pub use files::check_open_files;
pub use options::Options;
pub use server::Server;
