//! Text of a model that is being trained.

use crate::{
    data::check_ids,
    error::{Error, Result},
    network::Batch,
    trainer::Trainer,
};
use bitnet_wgpu::tensor::{self, Side};
use pollster::block_on;

impl Trainer {
    /// Continues a prompt by up to `tokens` of the most likely tokens, until one of `ends` or until
    /// the settings' context is full, and returns them. Each token is a forward pass of training
    /// over all before it: this is for a short look at a run. It changes nothing of the run.
    ///
    /// # Errors
    /// [`Error::Setting`] for a prompt that is empty, fills the context or has unknown tokens; what
    /// the device reports.
    pub fn sample(&self, prompt: &[u32], tokens: usize, ends: &[u32]) -> Result<Vec<u32>> {
        let most = self.settings().context;
        if !(1..most).contains(&prompt.len()) {
            let accepted = format!("1 to {} tokens are supported by the context", most - 1);
            return Err(Error::setting("the prompt", prompt.len(), accepted));
        }
        check_ids(prompt, self.source().config())?;
        let mut ids = prompt.to_vec();
        while ids.len() < most.min(prompt.len().saturating_add(tokens)) {
            let next = self.most_likely(&ids)?;
            if ends.contains(&next) {
                break;
            }
            ids.push(next);
        }
        Ok(ids.split_off(prompt.len()))
    }

    /// The most likely token after some.
    fn most_likely(&self, ids: &[u32]) -> Result<u32> {
        let (network, last) = (&self.network, ids.len() - 1);
        // The last id of a window is predicted, and not read.
        let window = [ids, &[ids[last]]].concat();
        let batch = Batch::upload(&network.context, &[(&window, None)], self.settings().context)?;
        let states = network.states(&batch)?;
        let mut encoder = network.context.encoder("sample");
        let place = network.context.upload(&[last as u32], [1])?;
        let state = tensor::gather(&states, &place).forward(&mut encoder)?;
        let head = network.float(network.plan.head)?;
        let logits = tensor::matmul(&state, Side::transposed(head)).forward(&mut encoder)?;
        let next = tensor::argmax(&logits, [1]).forward(&mut encoder)?;
        let _ = encoder.submit()?;
        Ok(block_on(next.read())?[0])
    }
}
