//! Scores a short text after loading: a model that was misread scores it like noise.

use super::model::Model;
use crate::{error::Error, files::display};
use std::path::Path;

/// Plain English, as most corpora have it.
const TEXT: &str = "Once upon a time there was a little girl who lived with her mother in a small house near the forest. \
    One day her mother said to her: Take this bread and go to your grandmother.";
/// Most tokens that are scored: enough for 5 nats between a model that is read rightly and noise.
const MOST_TOKENS: usize = 24;
/// Fewest tokens that say something.
const LEAST_TOKENS: usize = 8;
/// Least perplexity of noise, as a share of the vocabulary. A model that knows nothing has a
/// perplexity of the whole vocabulary at least. The model in `assets` has 0.3 % of it, and from 440
/// to 2800 % if its I2_S tensors are read in a wrong layout.
const NOISE: f64 = 0.25;

/// Logs a warning if the model scores a plain text like noise. Does nothing where no warning would
/// be seen, for a model without a tokenizer, and for one that computes embeddings. What fails here
/// fails again where the model is used.
pub(super) fn warn_of_noise(model: &Model, path: Option<&Path>) {
    let c = model.config();
    let is_useful = log::log_enabled!(log::Level::Warn) && c.embedding.pooling.is_none();
    let Some(tokenizer) = model.tokenizer().ok().filter(|_| is_useful) else { return };
    let Ok(mut ids) = tokenizer.encode(TEXT) else { return };
    ids.truncate(MOST_TOKENS.min(c.context));
    if ids.len() < LEAST_TOKENS {
        return;
    }
    let perplexity = match pollster::block_on(model.score(&ids)) {
        Ok(scores) => (scores.iter().sum::<f64>() / scores.len() as f64).exp(),
        Err(Error::Overflow { .. }) => f64::INFINITY,
        Err(error) => return log::debug!("a text could not be scored after loading: {error}"),
    };
    log::debug!("perplexity of a short text after loading: {perplexity:.1}");
    if perplexity < NOISE * c.vocab as f64 {
        return;
    }
    let path = display(path.unwrap_or(Path::new("the model")));
    log::warn!(
        "{path}: a plain English text scores like noise (perplexity {perplexity:.0}, vocabulary {}). Its files are damaged, or read in the wrong way: \
         ReadOptions says how (--i2s-layout, --activations and --weight-scale on the command line). \
         ModelBuilder::text_check(false) skips this check (--no-text-check)",
        c.vocab
    );
}
