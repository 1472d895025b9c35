//! Clips all gradients, as one vector, to a norm (Pascanu et al. 2012, arXiv:1211.5063), and the
//! moving average of weights.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Part, Source},
    },
    ops::{
        frames::{Operand, elementwise, function, record_two, two_inputs_of},
        reduce,
        tensor::{
            Axes,
            sum::{self, sum},
            unary::sqrt,
        },
    },
    params, wgsl,
};

params! { struct SquaresParams { length: u32, first: u32, chunk: u32 } }

/// Gradients and what becomes of them are of one type, the norm is a float.
const GRADIENTS: Part = Part::new("alias B, Y", "alias B = f32;\nalias Y = X;\n");
/// Averages are floats.
const AVERAGES: Part = Part::new("alias X, Y", "alias X = f32;\nalias Y = f32;\n");
const CLIPPED: Part =
    function!("combine(a: f32, b: f32)", "a * min(1.0, params.alpha / (b + 1e-6))");
const AVERAGE: Part = function!("combine(a: f32, b: f32)", "fma(params.alpha, a - b, b)");

static SUM_SQUARES: Kernel = Kernel::trusted(
    "sum_squares",
    SquaresParams::FIELDS,
    &[read("x", Float("X")), read_write("parts", F32)],
    &[reduce::source(Source::wgsl(wgsl![
        "shared/ids",
        "shared/flat",
        "frames/reduce_sum",
        "shared/lanes",
        "optimizer/sum_squares"
    ]))],
)
.flat();
static CLIP: Kernel = two_inputs_of(
    "clip",
    &[read("a", Float("X")), read("b", F32), read_write("y", Float("X"))],
    elementwise!("frames/elementwise_2", [GRADIENTS, CLIPPED]),
);
static EMA: Kernel = two_inputs_of(
    "ema",
    &[read("a", F32), read("b", Float("B")), read_write("y", F32)],
    elementwise!("frames/elementwise_2", [AVERAGES, AVERAGE]),
);

pub(super) const KERNELS: &[&Kernel] = &[&SUM_SQUARES, &CLIP, &EMA];

/// Numbers whose squares a workgroup adds.
const CHUNK: usize = reduce::THREADS * reduce::TURNS;

/// Gradient clipping: what [`clip_gradients`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct ClipGradients<'a, T> {
    gradients: &'a [&'a Tensor<T>],
    limit: f32,
}

/// Multiplies all `gradients`, in place, by min(1, limit / (norm + 10⁻⁶)), where the norm is that
/// of all of them as one vector. It takes two dispatches for each, and two or three for all.
/// Squares are plain floats, as those of [`norm`](crate::tensor::norm()), of `f16` too.
pub fn clip_gradients<'a, T: Float>(
    gradients: &'a [&'a Tensor<T>],
    limit: f32,
) -> ClipGradients<'a, T> {
    ClipGradients { gradients, limit }
}

impl<T: Float> ClipGradients<'_, T> {
    /// Records the op, and returns the norm before it, `[]`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no gradients, or a limit that is not positive.
    pub fn forward(self, encoder: &mut Encoder) -> Result<Tensor<f32>> {
        let Self { gradients, limit } = self;
        check(gradients.len(), limit)?;
        encoder.transaction(|encoder| {
            let squares = sum_squares(encoder, gradients)?;
            let norm = sqrt(&squares).forward(encoder)?;
            for gradient in gradients {
                let shape = gradient.shape();
                let x = Operand::same(CLIP.name, "gradient", gradient, shape)?;
                let norm = Operand::broadcast(CLIP.name, "norm", &norm, shape)?;
                record_two(encoder, &CLIP, &[limit], &x, &norm, (*gradient).into())?;
            }
            Ok(norm)
        })
    }
}

/// The sum of all squares, `[]`.
fn sum_squares<T: Float>(encoder: &mut Encoder, gradients: &[&Tensor<T>]) -> Result<Tensor<f32>> {
    let chunks = |gradient: &&Tensor<T>| gradient.len().div_ceil(CHUNK);
    let all = gradients.iter().map(chunks).sum::<usize>();
    let parts = Tensor::<f32>::uninit(encoder.context(), [all])?;
    let mut first = 0;
    for gradient in gradients {
        let length = gradient.len() as u32;
        let params = SquaresParams { length, first, chunk: CHUNK as u32 };
        let extent = [chunks(gradient), 1, 1];
        encoder.dispatch(&SUM_SQUARES, &params, &[*gradient, &parts], extent)?;
        first += chunks(gradient) as u32;
    }
    sum(&parts, Axes::ALL).forward(encoder)
}

fn check(gradients: usize, limit: f32) -> Result<()> {
    if gradients == 0 || limit.is_nan() || limit <= 0.0 {
        return Err(Error::Invalid {
            op: "clip_gradients",
            what: format!("{gradients} gradients, to a norm of {limit}"),
        });
    }
    Ok(())
}

/// The exponential moving average of weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ema {
    decay: f32,
}

impl Ema {
    /// A moving average that keeps the share `decay` of itself in each step.
    pub fn new(decay: f32) -> Self {
        Self { decay }
    }

    /// Records a step of `average` towards `weights`, in place: decay·average + (1 - decay)·weights.
    ///
    /// # Errors
    /// [`Error::Shape`] if their shapes differ.
    pub fn step<T: Float>(
        self,
        encoder: &mut Encoder,
        average: &Tensor<f32>,
        weights: &Tensor<T>,
    ) -> Result<()> {
        let shape = average.shape();
        let a = Operand::same("ema", "average", average, shape)?;
        let b = Operand::same("ema", "weights", weights, shape)?;
        record_two(encoder, &EMA, &[self.decay], &a, &b, average.into())
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`clip_gradients`](fn@super::clip_gradients): returns the norm before it.
    /// Sums are in the same order; devices may fuse a square with its sum.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no gradients, or a limit that is not positive.
    pub fn clip_gradients<T: Float>(gradients: &mut [&mut [T]], limit: f32) -> Result<f32> {
        check(gradients.len(), limit)?;
        let squares = |chunk: &[T]| {
            let mut sums = [0.0; reduce::THREADS];
            let numbers = chunk.iter().map(|&v| v.into()).enumerate();
            numbers.for_each(|(i, v): (usize, f32)| sums[i % reduce::THREADS] += v * v);
            reduce::tree_cpu(sums.to_vec(), &|a: f32, b| a + b)
        };
        let parts: Vec<f32> =
            gradients.iter().flat_map(|gradient| gradient.chunks(CHUNK)).map(squares).collect();
        let norm = sum::reference::sum(&parts, [parts.len()], Axes::ALL)?[0].sqrt();
        let factor = (limit / (norm + 1e-6)).min(1.0);
        gradients
            .iter_mut()
            .flat_map(|gradient| gradient.iter_mut())
            .for_each(|v| *v = T::from_f32((*v).into() * factor));
        Ok(norm)
    }

    /// CPU reference of [`Ema::step`], of one number.
    pub fn ema(optimizer: Ema, average: f32, weight: f32) -> f32 {
        optimizer.decay.mul_add(average - weight, weight)
    }
}
