//! Ops on tensors of any meaning.

mod cross_entropy;
mod layer_norm;
mod max;
mod mul;
mod norm;
mod pad_rows;
mod prefix_sum;
mod reductions;
mod relu2;
mod sigmoid;
mod silu;
mod softmax;
mod sum;
mod variance;

use super::{By::*, Family};
use crate::{Case, Data, Near, Recorder, convert, floats, shapes};
use bitnet_wgpu::{Element, Encoder, Float, Result, Tensor};

pub const OPS: Family = &[
    ("tensor::argmax", WgslAndTwin, max::argmax_cases),
    ("tensor::cross_entropy", WgslAndTwin, cross_entropy::cases),
    ("tensor::layer_norm", KernelsAndTwin, layer_norm::cases),
    ("tensor::max", KernelsAndTwin, max::cases),
    ("tensor::mul", Kernels, mul::cases),
    ("tensor::norm", KernelsAndTwin, norm::cases),
    ("tensor::pad_rows", Kernels, pad_rows::cases),
    ("tensor::prefix_sum", WgslAndTwin, prefix_sum::cases),
    ("tensor::relu2", Kernels, relu2::cases),
    ("tensor::sigmoid", KernelsAndTwin, sigmoid::cases),
    ("tensor::silu", KernelsAndTwin, silu::cases),
    ("tensor::softmax", KernelsAndTwin, softmax::cases),
    ("tensor::softmax_extremes", KernelsAndTwin, softmax::extremes),
    ("tensor::sum", KernelsAndTwin, sum::cases),
    ("tensor::variance", KernelsAndTwin, variance::cases),
];

/// The gradients of an RMS norm, whose kernels are those of a layer norm.
pub fn rms_norm_gradients() -> Vec<Case> {
    layer_norm::rms_cases()
}

/// An op in its two forms: into a tensor that it allocates, of the input's type, and into one of another type.
fn in_both_forms<X: Float, Y: Float>(
    r: &mut Recorder,
    op: impl FnOnce(&mut Encoder) -> Result<Tensor<X>>,
    into: impl FnOnce(&mut Encoder, &Tensor<Y>) -> Result<()>,
) -> Result<()> {
    let allocated = op(&mut r.encoder)?;
    let y = r.output::<Y>(allocated.shape())?;
    into(&mut r.encoder, &y)?;
    r.watch_all(&allocated);
    r.watch_all(&y);
    Ok(())
}

/// Inputs of a function that has an exponential, and gradients of its outputs.
struct Smooth {
    shape: [usize; 2],
    x: Vec<f32>,
    dy: Vec<f32>,
}

impl Smooth {
    fn all(op: &str) -> impl Iterator<Item = Self> {
        shapes(op).map(|(mut rng, (m, _, k))| {
            let (mut x, dy) = (floats(&mut rng, m * k, 9.0), floats(&mut rng, m * k, 3.0));
            // Far out exponentials are nothing; at ±80 no result is subnormal yet.
            x.iter_mut().zip([-80.0, 0.0, 80.0, -0.0, -30.0, 30.0]).for_each(|(x, far)| *x = far);
            Self { shape: [m, k], x, dy }
        })
    }

    /// A case from `X` to `Y`. `near` and `twin` give function and gradient at x and dy, in `f64` with bounds and on the CPU; `record` has the
    /// function in both forms, then its gradient. Exponentials differ, so nothing is judged by its bits.
    fn case<X: Float, Y: Float>(
        &self,
        near: fn(f64, f64) -> (Near, Near),
        twin: fn(f32, f32) -> (f32, f32),
        record: impl Fn(&mut Recorder, &Tensor<X>, &Tensor<X>) -> Result<()> + Send + Sync + 'static,
    ) -> Case {
        let (shape, x, dy) = (self.shape, convert::<X>(&self.x), convert::<X>(&self.dy));
        let numbers: Vec<(f32, f32)> = x.iter().zip(&dy).map(|(&x, &dy)| (x.into(), dy.into())).collect();
        let wanted: Vec<(Near, Near)> = numbers.iter().map(|&(x, dy)| near(x.into(), dy.into())).collect();
        let check = move |got: &[Data], _| {
            // Of the kernels each in two forms, of the twin in one.
            let (y, dx) = got.split_at(got.len() / 2);
            y.iter().try_for_each(|y| y.check_near(wanted.iter().map(|near| near.0)))?;
            dx.iter().try_for_each(|dx| dx.check_near(wanted.iter().map(|near| near.1)))
        };
        let record = move |r: &mut Recorder| {
            let (x, dy) = (r.upload(&x, shape)?, r.upload(&dy, shape)?);
            record(r, &x, &dy)
        };
        let twin = move || {
            let (y, dx) = numbers.iter().map(|&(x, dy)| twin(x, dy)).unzip();
            vec![Data::F32(y), Data::F32(dx)]
        };
        Case::new(format!("{shape:?} {:?} to {:?}", X::ELEMENT, Y::ELEMENT), record, check).twin(twin).of(Element::F16)
    }
}
