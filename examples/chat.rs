//! Talks with a model: each line of the input is a question.
//! `cargo run --release --example chat`, or `-- MODEL` for a model of your own. A conversation keeps
//! its key-value cache, so that each turn computes only what is new:
//!
//! ```text
//! let mut chat = model.conversation(model.session(SessionOptions::new(1, 512))?)?;
//! for question in ["Tell me a tale.", "Another one."] {
//!     for token in pollster::block_on(chat.ask(question, &options))? { print!("{}", token?.text); }
//! }
//! ```

use bitnet_wgpu::model::{Model, SessionOptions};
use std::{
    error::Error,
    io::{Write, stdin, stdout},
};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1);
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tales-22m");
    let model = Model::open(path.as_deref().unwrap_or(shipped))?;
    let options = model.options().max_tokens(100);
    let room = model.config().context.min(2048);
    let mut chat = model.conversation(model.session(SessionOptions::new(1, room))?)?;
    for question in stdin().lines() {
        match pollster::block_on(chat.ask(question?, &options)) {
            Ok(answer) => {
                for token in answer {
                    print!("{}", token?.text);
                    stdout().flush()?;
                }
                println!();
            }
            // The conversation is as it was before.
            Err(error) => eprintln!("not answered: {error}"),
        }
    }
    Ok(())
}
