//! Continues a prompt with the shipped model, or with one of your own, and prints each token as it
//! comes.
//!
//!     cargo run --release --example generate
//!     cargo run --release --example generate -- --model path/to/a/model --cpu "The bear was hungry"
//!
//! The model runs on the GPU if there is one, else on the CPU. `bitnet run`, of the package
//! `bitnet-wgpu-cli`, has many more options.

use bitnet_wgpu::{
    ContextOptions,
    model::{Device, GenerateOptions, Model},
};
use pico_args::Arguments;
use std::{
    convert::Infallible,
    error::Error,
    ffi::OsString,
    io::{Write, stdout},
    process::ExitCode,
    time::Instant,
};

const HELP: &str = "\
usage: generate [OPTIONS] [PROMPT]

  --model PATH       a model directory, a GGUF file, or a prepacked file [default: the shipped model]
  --max-tokens N     the most tokens to generate [default: 128]
  --temperature T    0 takes the most likely token each time [default: the model's]
  --seed N           seed of the random numbers [default: 0]
  --gpu              use the GPU, also a software one; fail if there is none
  --cpu              use the CPU";

fn main() -> ExitCode {
    env_logger::init();
    match run(Arguments::from_env()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    if arguments.contains(["-h", "--help"]) {
        println!("{HELP}");
        return Ok(());
    }
    let path = arguments
        .opt_value_from_os_str("--model", |path| Ok::<OsString, Infallible>(path.into()))?;
    let (max_tokens, temperature) = (
        arguments.opt_value_from_str("--max-tokens")?,
        arguments.opt_value_from_str("--temperature")?,
    );
    let seed = arguments.opt_value_from_str("--seed")?.unwrap_or(0);
    let device = match (arguments.contains("--cpu"), arguments.contains("--gpu")) {
        (true, true) => return Err("--cpu and --gpu exclude each other".into()),
        (true, false) => Device::Cpu,
        (false, true) => Device::Gpu(ContextOptions::default()),
        (false, false) => Device::default(),
    };
    let prompt = match &*arguments.finish() {
        [] => {
            "Once upon a time there was a little girl who lived in a cottage by the sea.".to_owned()
        }
        [prompt] if !prompt.to_string_lossy().starts_with('-') => {
            prompt.to_string_lossy().into_owned()
        }
        [unknown, ..] => {
            return Err(format!(
                "{unknown:?}: one prompt in quotes is expected, or an option of --help"
            )
            .into());
        }
    };

    let path =
        path.unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tales-22m").into());
    let model = Model::builder(path).device(device).build()?;
    let name = model.context().map_or("the CPU", |context| &context.capabilities().adapter);
    println!("computing on {}\n", model.auto_reason().unwrap_or(name));
    // What the model's authors recommend, unless something else is asked for.
    let options = model.options();
    let sampling = options.get_sampling().seed(seed);
    let sampling = temperature.map_or(sampling, |temperature| sampling.temperature(temperature));
    let options: GenerateOptions = options.max_tokens(max_tokens.unwrap_or(128)).sampling(sampling);

    print!("{prompt}");
    let (mut first, mut tokens) = (None, 0u32);
    for token in model.generate(&prompt, &options)? {
        print!("{}", token?.text);
        stdout().flush()?;
        first.get_or_insert_with(Instant::now);
        tokens += 1;
    }
    let seconds = first.map_or(0.0, |first| first.elapsed().as_secs_f64());
    println!(
        "\n\n{tokens} tokens, {:.1} per second after the first",
        f64::from(tokens.saturating_sub(1)) / seconds.max(1e-9)
    );
    Ok(())
}
