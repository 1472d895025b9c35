//! Optimizers: weights in `f32` that follow their gradients, in one dispatch per tensor and in
//! place.

pub(crate) mod adamw;
pub(crate) mod clip;
pub(crate) mod lion;
pub(crate) mod sgd;
mod step;

family!(adamw, clip, lion, sgd; reference: adamw, clip, lion, sgd);
