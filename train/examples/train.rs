//! Trains a small ternary model on a short text: the shortest program on top of `Trainer`. It is run
//! in the folder of the repository.
//! `cargo run --release -p bitnet-wgpu-train --example train [steps]`

use bitnet_train::{Corpus, Settings, Source, Trainer, end_of_text};
use bitnet_wgpu::{Context, model::Tokenizer};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let steps = std::env::args().nth(1).map_or(Ok(30), |steps| steps.parse())?;
    let folder = "assets/tales-22m".as_ref();
    let source = Source::from_config("train/examples/small")?;
    let tokenizer = Tokenizer::from_directory(folder)?;
    let end = end_of_text(&tokenizer, source.config(), folder)?;
    let text = Corpus::read(&["examples/learn/text.txt".into()], &tokenizer, end, 64)?;

    let mut settings = Settings::new(steps, 4, 64);
    settings.rate = 5e-3;
    let context = pollster::block_on(Context::new())?;
    let mut trainer = Trainer::new(&context, source, text, settings)?;
    while !trainer.is_done() {
        let step = trainer.step()?;
        println!("step {:2}: loss {:.4}", step.step, step.loss);
    }
    let prompt = tokenizer.encode("Once upon a time")?;
    let more = trainer.sample(&prompt, 20, &[end])?;
    println!("{}", tokenizer.decode(&[prompt, more].concat())?);
    Ok(())
}
