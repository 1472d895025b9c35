//! The loss of other text, by the forward pass of training.

use crate::{
    data::{Corpus, check_ids},
    error::{Error, Result},
    network::Batch,
    trainer::Trainer,
};
use bitnet_wgpu::Tensor;
use pollster::block_on;

impl Trainer {
    /// Returns the mean loss of a token of other windows, in nats, by the forward pass of training;
    /// of conversations, that of the answers.
    ///
    /// # Errors
    /// [`Error::Setting`] for windows of more tokens than those of the run; what the device reports.
    pub fn loss(&self, text: &Corpus) -> Result<f64> {
        self.mean(text, |batch| self.network.losses(batch, None))
    }

    /// Returns the mean of what a student's steps make small: its distance from the teacher and from
    /// the text. Without a teacher, it is [`loss`](Self::loss).
    ///
    /// # Errors
    /// As [`loss`](Self::loss).
    pub fn objective(&self, text: &Corpus) -> Result<f64> {
        self.mean(text, |batch| self.network.losses(batch, self.lesson(batch)?.as_ref()))
    }

    /// Returns the teacher's [`loss`](Self::loss), if there is a teacher.
    ///
    /// # Errors
    /// As [`loss`](Self::loss).
    pub fn teacher_loss(&self, text: &Corpus) -> Result<Option<f64>> {
        let Some(teacher) = &self.teacher else { return Ok(None) };
        self.mean(text, |batch| teacher.network.losses(batch, None)).map(Some)
    }

    /// The mean of losses of learned tokens.
    fn mean(&self, text: &Corpus, losses: impl Fn(&Batch) -> Result<Tensor<f32>>) -> Result<f64> {
        let (length, most) = (text.context(), self.settings().context);
        if length > most {
            let accepted = format!("at most {most} tokens are supported");
            return Err(Error::setting("the length of held-out windows", length, accepted));
        }
        check_ids(text.ids(), self.source().config())?;
        let (mut sum, mut learned) = (0.0, 0);
        let windows: Vec<usize> = (0..text.windows()).collect();
        for windows in windows.chunks(self.settings().batch) {
            let batch = Batch::of_text(&self.network.context, text, windows)?;
            let losses = block_on(losses(&batch)?.read())?;
            sum += losses.iter().map(|&loss| f64::from(loss)).sum::<f64>();
            learned += batch.learned;
        }
        Ok(sum / learned as f64)
    }

    /// Returns [`loss`](Self::loss) without adapters: that of the base model.
    ///
    /// # Errors
    /// As [`loss`](Self::loss).
    pub fn base_loss(&mut self, text: &Corpus) -> Result<f64> {
        let adapted = std::mem::replace(&mut self.network.adapted, false);
        let loss = self.loss(text);
        self.network.adapted = adapted;
        loss
    }
}
