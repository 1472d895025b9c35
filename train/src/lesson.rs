//! What a student learns of a batch beside its tokens.

use bitnet_wgpu::{
    Tensor,
    tensor::{self, LinearDistillation},
};

/// A teacher's distribution of every token of a batch.
pub struct Lesson {
    /// What goes into the teacher's LM head, `[batch · tokens, hidden]`.
    pub states: Tensor<f32>,
    /// The teacher's LM head, `[vocabulary, hidden]`.
    pub head: Tensor<f32>,
    pub temperature: f32,
    pub share: f32,
}

impl Lesson {
    /// Returns the loss of a student with this LM head.
    pub fn loss<'a>(
        &'a self,
        states: &'a Tensor<f32>,
        head: &'a Tensor<f32>,
        targets: &'a Tensor<u32>,
    ) -> LinearDistillation<'a> {
        tensor::linear_distillation((states, head), (&self.states, &self.head), targets)
            .temperature(self.temperature)
            .teacher_share(self.share)
    }
}

/// What the gradients of a batch are those of.
#[derive(Clone, Copy)]
pub struct Goal<'a> {
    /// The factor of the sum of losses.
    pub factor: f32,
    pub lesson: Option<&'a Lesson>,
}
