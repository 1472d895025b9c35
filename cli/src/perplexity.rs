//! `bitnet perplexity`: scores a text.

use crate::{
    generation::rate,
    input, interrupt,
    model::{self, ModelArgs, Placement},
    say,
};
use anyhow::{Context as _, Result, bail};
use bitnet_wgpu::{
    Element,
    model::{Model, SessionOptions},
};
use clap::Args;
use serde_json::json;
use std::{
    path::{Path, PathBuf},
    pin::pin,
    time::Instant,
};

/// Tokens of windows that are scored side by side: as many as a GPU computes in one pass. The
/// interim value covers whole groups of them.
const TOGETHER: usize = 2048;

/// [`TOGETHER`] on the CPU, whose passes are no faster for being longer.
const TOGETHER_ON_CPU: usize = 64;

/// Computes the perplexity of a model on a text
///
/// The text is cut into windows with BOS before each, and every token is scored once. A terminal
/// shows a progress bar with the perplexity so far. Ctrl-C prints the perplexity of the windows
/// that are done.
#[derive(Args)]
pub struct Perplexity {
    /// Model directory, GGUF file, prepacked model file, or name on the Hugging Face hub
    model: PathBuf,
    /// File or pipe with the text, of at most 16 MiB
    text: PathBuf,
    #[command(flatten)]
    how: PerplexityArgs,
}

/// Options of `bitnet perplexity` and of the example.
#[derive(Args)]
pub struct PerplexityArgs {
    /// Number of tokens per window [default: the model's context]
    #[arg(long, value_name = "TOKENS")]
    pub window: Option<usize>,
    /// Number of tokens of the text to score [default: all]
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten, next_help_heading = "Device")]
    pub model: ModelArgs,
}

impl Perplexity {
    pub fn run(self) -> Result<()> {
        run(&self.model, &self.text, &self.how)
    }
}

/// Sums over the tokens that are scored.
#[derive(Clone, Copy, Default)]
struct Scored {
    /// Negative log-likelihoods.
    nll: f64,
    /// Squares of them.
    squares: f64,
    tokens: usize,
}

impl Scored {
    fn perplexity(self) -> f64 {
        (self.nll / self.tokens as f64).exp()
    }

    /// Returns the standard error of the perplexity; none for a single token.
    fn error(self) -> Option<f64> {
        let tokens = self.tokens as f64;
        let mean = self.nll / tokens;
        let variance = (self.squares / tokens - mean * mean).max(0.0);
        (self.tokens > 1).then(|| self.perplexity() * (variance / (tokens - 1.0)).sqrt())
    }
}

pub fn run(name: &Path, text: &Path, args: &PerplexityArgs) -> Result<()> {
    let text = input::text(text, input::MAX_TEXT)?;
    let files = args.model.open(name)?;
    let mut ids = files.tokenizer()?.encode_plain(&text)?;
    ids.truncate(args.max_tokens.unwrap_or(usize::MAX));
    let bos = files
        .tokenizer()?
        .bos()
        .or(files.config().bos)
        .context("the model has no BOS token, which is needed before each window")?;
    let context = files.config().context;
    let window = args.window.unwrap_or(context.saturating_sub(1));
    if args.max_tokens == Some(0) {
        bail!("--max-tokens 0: at least 1 is needed");
    }
    if ids.is_empty() {
        bail!("the text has no tokens");
    }
    if window == 0 || window >= context {
        bail!("--window {window}: 1 to {} tokens are accepted", context.saturating_sub(1));
    }
    let model =
        args.model.load(&files, SessionOptions::new(1, window + 1).kv_type(Element::F32))?;
    let windows: Vec<Vec<u32>> =
        ids.chunks(window).map(|window| [&[bos], window].concat()).collect();
    let start = Instant::now();
    let scored = with_bar(&model, &windows, ids.len())?;
    let rate = rate(scored.tokens, start.elapsed());
    let complete = scored.tokens == ids.len();
    if scored.tokens == 0 {
        bail!("interrupted before the first tokens were scored");
    }
    let device = Placement::of(&model)?;
    let perplexity = scored.perplexity();
    let error = scored.error();
    let Scored { nll, tokens, .. } = scored;
    if args.json {
        let object = json!({
            "perplexity": perplexity, "standard_error": error, "tokens": tokens, "complete": complete, "text_tokens": ids.len(), "window": window, "nll": nll,
            "tokens_per_second": rate, "adapter": device.adapter, "shader_language": device.language(),
        });
        say(format!("{object}\n"))?;
    } else {
        let error = error.map_or_else(String::new, |error| format!(" ± {error:.4}"));
        let rate = rate.map_or_else(String::new, |rate| format!("{rate:.0} tok/s "));
        say(format!(
            "perplexity {perplexity:.4}{error} over {tokens} tokens in windows of {window} ({rate}on {device})\n"
        ))?;
    }
    if !complete {
        let share = 100.0 * tokens as f64 / ids.len() as f64;
        bail!(
            "interrupted: the perplexity covers the first {tokens} of {} tokens ({share:.1} %)",
            ids.len()
        );
    }
    Ok(())
}

/// Scores windows until they are done or interrupted, with a progress bar.
fn with_bar(model: &Model, windows: &[Vec<u32>], tokens: usize) -> Result<Scored> {
    let bar = model::progress("scoring", "tokens");
    bar.set_length(tokens as u64);
    let runtime = interrupt::runtime()?;
    let scored = runtime.block_on(score(model, windows, interrupt::interrupt(), |scored| {
        bar.set_position(scored.tokens as u64);
        bar.set_message(format!("perplexity {:.4}", scored.perplexity()));
    }));
    bar.finish_and_clear();
    scored
}

/// Scores windows in their order, until they are done or `interrupted` is.
async fn score(
    model: &Model,
    windows: &[Vec<u32>],
    interrupted: impl Future<Output = ()>,
    mut progress: impl FnMut(Scored),
) -> Result<Scored> {
    let (mut scored, mut interrupted) = (Scored::default(), pin!(interrupted));
    let together = if model.context().is_some() { TOGETHER } else { TOGETHER_ON_CPU };
    let count = together / windows.first().map_or(1, Vec::len).max(1);
    for group in windows.chunks(count.max(1)) {
        let scores = tokio::select! {
            biased;
            () = &mut interrupted => break,
            scores = model.score_batch(group) => scores?,
        };
        // By window, so that the sum does not depend on the groups.
        for scores in scores {
            scored.nll += scores.iter().sum::<f64>();
            scored.squares += scores.iter().map(|nll| nll * nll).sum::<f64>();
            scored.tokens += scores.len();
        }
        progress(scored);
    }
    Ok(scored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, future::poll_fn, task::Poll};

    const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tales-22m");

    fn windows(count: u32, tokens: u32) -> Vec<Vec<u32>> {
        (0..count).map(|n| (0..=tokens).map(|i| (n * 31 + i * 7) % 2000).collect()).collect()
    }

    #[test]
    fn windows_side_by_side_score_the_same_bits() {
        let model = Model::builder(TALES).cpu().build().unwrap();
        let mut windows = windows(9, 20);
        windows.last_mut().unwrap().truncate(17);
        let together =
            pollster::block_on(score(&model, &windows, std::future::pending(), |_| ())).unwrap();
        let alone: Vec<_> =
            windows.iter().map(|window| pollster::block_on(model.score(window)).unwrap()).collect();
        let sum: f64 = alone.iter().map(|scores| scores.iter().sum::<f64>()).sum();
        assert_eq!((together.nll.to_bits(), together.tokens), (sum.to_bits(), 8 * 20 + 16));
        assert_eq!(pollster::block_on(model.score_batch(&windows)).unwrap(), alone);
    }

    #[test]
    fn the_error_is_that_of_a_mean() {
        let scored = Scored { nll: 6.0, squares: 1.0 + 4.0 + 9.0, tokens: 3 };
        // Variance 2/3, over two degrees of freedom.
        let error = scored.error().unwrap() / scored.perplexity();
        assert!((error - (1.0f64 / 3.0).sqrt()).abs() < 1e-12, "{error}");
        assert_eq!(Scored { nll: 1.0, squares: 1.0, tokens: 1 }.error(), None);
    }

    #[test]
    fn an_interrupt_keeps_whole_groups() {
        let model = Model::builder(TALES).cpu().build().unwrap();
        let (windows, groups, count) = (windows(12, 15), Cell::new(0), TOGETHER_ON_CPU / 16);
        let interrupted =
            poll_fn(|_| if groups.get() == 1 { Poll::Ready(()) } else { Poll::Pending });
        let scored = pollster::block_on(score(&model, &windows, interrupted, |_| {
            groups.set(groups.get() + 1)
        }))
        .unwrap();
        assert_eq!(scored.tokens, count * 15);
        let first =
            pollster::block_on(score(&model, &windows[..count], std::future::pending(), |_| ()))
                .unwrap();
        assert_eq!(scored.nll.to_bits(), first.nll.to_bits());
    }
}
