//! The exported model, scored by the inference path.

use crate::{
    data::Corpus,
    error::{Error, Result},
};
use bitnet_wgpu::model::{Device, Model};
use pollster::block_on;
use std::path::Path;

/// Tokens of windows that are scored side by side.
const TOGETHER: usize = 2048;

/// How a model scores on a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Mean loss of a token, in nats.
    pub loss: f64,
    /// Number of tokens that were scored.
    pub tokens: usize,
}

/// Loads a model from its folder and returns its loss on a text. The first token of a window is
/// given, and every other one is scored, up to the model's context; of conversations, the answers.
///
/// # Errors
/// [`Error::Library`] as [`ModelBuilder::build`](bitnet_wgpu::model::ModelBuilder::build) and
/// [`Model::score`]; [`Error::Setting`] for a model with a context of one token.
pub fn score<'a>(
    folder: impl AsRef<Path>,
    device: impl Into<Device<'a>>,
    text: &Corpus,
) -> Result<Score> {
    let model = Model::builder(folder).device(device).text_check(false).build()?;
    // A window has a token more than the context that it was trained with.
    let most = model.config().context;
    let windows: Vec<&[u32]> =
        (0..text.windows()).map(|i| text.window(i)).map(|w| &w[..w.len().min(most)]).collect();
    let together = (TOGETHER / (text.context() + 1)).max(1);
    let (mut sum, mut count) = (0.0, 0);
    for first in (0..windows.len()).step_by(together) {
        let group = &windows[first..windows.len().min(first + together)];
        let scored = block_on(model.score_batch(group)).map_err(Error::from)?;
        for (window, scores) in (first..).zip(scored) {
            let learned = text.scored(window);
            let is_learned = |at: usize| learned.is_none_or(|learned| learned[at + 1]);
            for (_, score) in scores.iter().enumerate().filter(|(at, _)| is_learned(*at)) {
                sum += score;
                count += 1;
            }
        }
    }
    if count == 0 {
        let accepted = format!("none is within the model's context of {most} tokens");
        return Err(Error::setting("the number of scored tokens", 0, accepted));
    }
    Ok(Score { loss: sum / count as f64, tokens: count })
}
