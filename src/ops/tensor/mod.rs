//! Ops on tensors of any meaning: elementwise, broadcast, reduced, by rows; forward and backward.

pub(crate) mod argmax;
pub(crate) mod cross_entropy;
pub(crate) mod layer_norm;
pub(crate) mod max;
pub(crate) mod mul;
pub(crate) mod norm;
pub(crate) mod pad_rows;
pub(crate) mod prefix_sum;
pub(crate) mod relu2;
pub(crate) mod sigmoid;
pub(crate) mod silu;
pub(crate) mod softmax;
pub(crate) mod sum;
pub(crate) mod variance;

pub use super::reduce::Axes;

family!(argmax, cross_entropy, layer_norm, max, mul, norm, pad_rows, prefix_sum, relu2, sigmoid, silu, softmax, sum, variance);
