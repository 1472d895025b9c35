//! Ops on tensors of any meaning: elementwise, broadcast, forward and backward.

pub(crate) mod mul;
pub(crate) mod pad_rows;
pub(crate) mod relu2;

pub use mul::{mul, mul_into};
pub use pad_rows::{pad_rows, pad_rows_into};
pub use relu2::{relu2, relu2_backward, relu2_backward_cpu, relu2_backward_into, relu2_cpu, relu2_into};

pub(super) static KERNELS: &[&crate::kernel::declaration::Kernel] =
    &[&mul::MUL, &pad_rows::PAD_ROWS, &relu2::RELU2, &relu2::RELU2_BACKWARD];
