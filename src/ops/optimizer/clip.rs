//! clip_gradients: all gradients, as one vector, to a norm of at most so much. Pascanu et al. 2012, arXiv:1211.5063. And the moving average of weights.

use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        source::Part,
    },
    ops::{
        frames::{Operand, elementwise, function, map, one_input_of, record_two, two_inputs_of},
        tensor::{
            Axes,
            binary::mul_into,
            norm::{norm, norm_cpu},
            strided::concat,
        },
    },
};

const FLOATS: Part = Part::new("alias X, Y", "alias X = f32;\nalias Y = f32;\n");
const FACTOR: Part = function!("forward(x: f32)", "min(1.0, params.alpha / (x + 1e-6))");
const AVERAGE: Part = function!("combine(a: f32, b: f32)", "fma(params.alpha, a - b, b)");

static CLIP_FACTOR: Kernel =
    one_input_of("clip_factor", &[read("a", F32), read_write("y", F32)], elementwise!("frames/elementwise_1", [FLOATS, FACTOR]));
static EMA: Kernel =
    two_inputs_of("ema", &[read("a", F32), read("b", F32), read_write("y", F32)], elementwise!("frames/elementwise_2", [FLOATS, AVERAGE]));

pub(super) const KERNELS: &[&Kernel] = &[&CLIP_FACTOR, &EMA];

/// Multiplies all `gradients`, in place, by min(1, limit / (norm + 10⁻⁶)), and gives their norm before: that of all of them as one vector, `[]`.
///
/// # Errors
/// [`Error::Invalid`] for no gradients, or a limit that is not positive.
pub fn clip_gradients(encoder: &mut Encoder, gradients: &[&Tensor<f32>], limit: f32) -> Result<Tensor<f32>> {
    check(gradients.len(), limit)?;
    encoder.whole(|encoder| {
        let norms = gradients.iter().map(|gradient| norm(encoder, gradient, Axes::ALL)?.reshape([1])).collect::<Result<Vec<_>>>()?;
        let all = concat(encoder, &norms.iter().collect::<Vec<_>>(), 0)?;
        let norm = norm(encoder, &all, Axes::ALL)?;
        let factor = Tensor::uninit(encoder.context(), norm.shape())?;
        map(encoder, &CLIP_FACTOR, &[limit], &norm, (&factor).into())?;
        gradients.iter().try_for_each(|gradient| mul_into(encoder, gradient, &factor, *gradient))?;
        Ok(norm)
    })
}

fn check(gradients: usize, limit: f32) -> Result<()> {
    if gradients == 0 || limit.is_nan() || limit <= 0.0 {
        return Err(Error::Invalid { op: "clip_gradients", what: format!("{gradients} gradients, to a norm of {limit}") });
    }
    Ok(())
}

/// The CPU twin of [`clip_gradients`], which gives the norm before: sums in its order, quotient and root rounded once.
///
/// # Errors
/// As [`clip_gradients`].
pub fn clip_gradients_cpu(gradients: &mut [&mut [f32]], limit: f32) -> Result<f32> {
    check(gradients.len(), limit)?;
    let norm = |x: &[f32]| Ok(norm_cpu(x, [x.len()], Axes::ALL)?[0]);
    let norms = gradients.iter().map(|gradient| norm(gradient)).collect::<Result<Vec<_>>>()?;
    let norm = norm(&norms)?;
    let factor = (limit / (norm + 1e-6)).min(1.0);
    gradients.iter_mut().flat_map(|gradient| gradient.iter_mut()).for_each(|v| *v *= factor);
    Ok(norm)
}

/// Moves `average` towards `weights`: decay·average + (1 - decay)·weights, in place. Its name is short for exponential moving average.
///
/// # Errors
/// [`Error::Shape`] if they differ.
pub fn ema(encoder: &mut Encoder, average: &Tensor<f32>, weights: &Tensor<f32>, decay: f32) -> Result<()> {
    let shape = average.shape();
    let operands = [Operand::same("ema", "average", average, shape)?, Operand::same("ema", "weights", weights, shape)?];
    record_two(encoder, &EMA, &[decay], &operands[0], &operands[1], average.into())
}

/// The CPU twin of [`ema`], of one number.
pub fn ema_cpu(average: f32, weight: f32, decay: f32) -> f32 {
    decay.mul_add(average - weight, weight)
}
