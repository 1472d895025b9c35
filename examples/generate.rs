//! Generates text, printed token by token: `cargo run --release --example generate -- --prompt "Once upon a time"`.

#[path = "support/model.rs"]
mod support;

use bitnet_wgpu::{
    Result,
    model::{GenerateOptions, Message, Model, Sampling, Stop},
};
use clap::Parser;
use std::{
    io::Write as _,
    process::ExitCode,
    time::{Duration, Instant},
};
use support::ModelArgs;

/// Continues a prompt with a BitNet model
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// The text to continue
    #[arg(long, default_value = "Once upon a time there was a little girl who lived in a cottage by the sea.")]
    prompt: String,
    /// Token ids to continue instead of a text, without adding BOS
    #[arg(long, value_delimiter = ',')]
    ids: Option<Vec<u32>>,
    /// Take the prompt as a user's message and answer it, using the model's chat template
    #[arg(long, conflicts_with = "ids")]
    chat: bool,
    #[arg(long, default_value_t = 128)]
    max_tokens: usize,
    /// Divides the logits; 0 always takes the most likely token
    #[arg(long, default_value_t = 0.7)]
    temperature: f32,
    /// Sample from so many most likely tokens; 0 means all
    #[arg(long, default_value_t = 40)]
    top_k: usize,
    /// Sample from the fewest tokens that reach this total probability
    #[arg(long, default_value_t = 1.0)]
    top_p: f32,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Always take the most likely token
    #[arg(long)]
    greedy: bool,
    /// Continue after an end-of-text token
    #[arg(long)]
    ignore_eos: bool,
    /// End the text at this string, which is left out; may be given several times
    #[arg(long)]
    stop: Vec<String>,
    /// Print one JSON object instead of the text
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn options(&self) -> GenerateOptions {
        let sampling = Sampling::GREEDY.temperature(self.temperature).top_k(self.top_k).top_p(self.top_p).seed(self.seed);
        let sampling = if self.greedy { Sampling::GREEDY } else { sampling };
        GenerateOptions::default().max_tokens(self.max_tokens).sampling(sampling).ignore_eos(self.ignore_eos).stop(&self.stop)
    }

    fn prompt(&self, model: &Model) -> Result<Vec<u32>> {
        match &self.ids {
            Some(ids) => Ok(ids.clone()),
            None if self.chat => model.tokenizer()?.chat(&[Message::new("user", &self.prompt)]),
            None => model.encode_prompt(&self.prompt),
        }
    }
}

/// Generated tokens, and the time they took.
struct Generated {
    ids: Vec<u32>,
    text: String,
    stop: Option<Stop>,
    /// Time to the first token.
    prefill: Duration,
    /// Time from the first token to the last.
    decode: Duration,
}

fn generate(model: &Model, prompt: &[u32], options: &GenerateOptions, show: bool) -> Result<Generated> {
    let start = Instant::now();
    let mut generation = model.generate_ids(prompt, options)?;
    let (mut ids, mut text, mut prefill) = (Vec::new(), String::new(), Duration::ZERO);
    for token in &mut generation {
        let token = token?;
        if ids.is_empty() {
            prefill = start.elapsed();
        }
        ids.push(token.id);
        text += &token.text;
        if show && !say(&token.text) {
            break;
        }
    }
    let decode = start.elapsed() - prefill;
    Ok(Generated { ids, text, stop: generation.stop(), prefill, decode })
}

/// Prints without buffering; false if standard output is closed.
fn say(text: &str) -> bool {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}

fn run() -> Result<()> {
    let arguments = Arguments::parse();
    let model = arguments.model.load()?;
    let (adapter, language) = support::device(&model);
    let (prompt, options) = (arguments.prompt(&model)?, arguments.options());
    if !arguments.json {
        eprintln!("{adapter}, kernels in {language}");
        if arguments.ids.is_none() && !arguments.chat {
            say(&arguments.prompt);
        }
    }
    // Kernels are compiled at their first use. A short run first keeps that out of the timing.
    if options.max_tokens > 0 {
        generate(&model, &prompt, &options.clone().max_tokens(3), false)?;
    }
    let generated = generate(&model, &prompt, &options, !arguments.json)?;
    let rate = |tokens: usize, time: Duration| if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() };
    let prefill = rate(prompt.len(), generated.prefill);
    let decode = rate(generated.ids.len().saturating_sub(1), generated.decode);
    if arguments.json {
        let object = serde_json::json!({
            "ids": generated.ids,
            "text": generated.text,
            "prefill_tokens_per_second": prefill,
            "decode_tokens_per_second": decode,
            "adapter": adapter,
            "language": language,
        });
        say(&format!("{object}\n"));
    } else {
        say("\n");
        let stop = generated.stop.map_or_else(String::new, |stop| format!(", ended by {stop:?}"));
        eprintln!(
            "prompt: {} tokens, {prefill:.0} per second; generated: {} tokens, {decode:.1} per second{stop}",
            prompt.len(),
            generated.ids.len()
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    support::log();
    support::report(run())
}
