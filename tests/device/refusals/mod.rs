//! What ops do with tensors that do not fit: a typed error where they are recorded, and nothing is
//! recorded.

mod bitnet;
mod optimizer;
mod quantizers;
mod recurrent;
mod tensor;
mod transformer;

use bitnet_wgpu::{Context, Error, Tensor};

fn unwritten<const N: usize>(context: &Context, shape: [usize; N]) -> Tensor<f32> {
    Tensor::uninit(context, shape).unwrap()
}

#[track_caller]
fn assert_shape<T: std::fmt::Debug>(result: bitnet_wgpu::Result<T>) {
    assert!(matches!(result, Err(Error::Shape { .. })), "{result:?}");
}

#[track_caller]
fn assert_invalid<T: std::fmt::Debug>(result: bitnet_wgpu::Result<T>) {
    assert!(matches!(result, Err(Error::Invalid { .. })), "{result:?}");
}
