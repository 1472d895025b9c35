//! Training: batches, clipping, AdamW.

use super::{
    data::Text,
    model::{Model, Settings},
};
use bitnet_wgpu::{
    Context, Result, Tensor,
    optimizer::{self, AdamW, AdamWState},
};

const RATE: f32 = 5e-3;
/// Steps until the rate is reached.
const WARM_UP: u32 = 100;
/// The largest norm of all gradients together.
const LIMIT: f32 = 1.0;

pub struct Training {
    context: Context,
    settings: Settings,
    text: Text,
    pub model: Model,
    states: Vec<AdamWState>,
    step: u32,
}

impl Training {
    pub fn new(context: &Context, settings: Settings) -> Result<Self> {
        let text = Text::new();
        let model = Model::new(context, settings, text.vocabulary)?;
        let states = model
            .parameters
            .iter()
            .map(|weights| AdamWState::new(context, weights.shape()))
            .collect::<Result<_>>()?;
        Ok(Self { context: context.clone(), settings, text, model, states, step: 0 })
    }

    /// Learns from a batch, without waiting: gives its loss and the norm of the gradients, before
    /// they were clipped.
    pub fn step(&mut self) -> Result<(Tensor<f32>, Tensor<f32>)> {
        self.step += 1;
        let Settings { batch, context, .. } = self.settings;
        let (tokens, targets) = self.text.batch(self.step.into(), batch, context);
        let [tokens, targets] = [tokens, targets].map(|ids| self.context.upload(&ids, [ids.len()]));
        let mut encoder = self.context.encoder("step");
        let (loss, gradients) =
            self.model.learn(&mut encoder, &tokens?, &targets?, u64::from(self.step) << 32)?;
        let norm = optimizer::clip_gradients(&gradients.iter().collect::<Vec<_>>(), LIMIT)
            .forward(&mut encoder)?;
        let numbers = AdamW::new(RATE * (self.step as f32 / WARM_UP as f32).min(1.0));
        for ((weights, gradient), state) in
            self.model.parameters.iter().zip(&gradients).zip(&self.states)
        {
            numbers.step(&mut encoder, self.step, weights, gradient, state)?;
        }
        let _ = encoder.submit()?;
        Ok((loss, norm))
    }
}
