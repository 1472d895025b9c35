//! clip_gradients: all gradients, as one vector, to a norm of at most so much. Pascanu et al. 2012,
//! arXiv:1211.5063. And the moving average of weights.

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
            sum::{sum, sum_cpu},
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

/// Multiplies all `gradients`, in place, by min(1, limit / (norm + 10⁻⁶)), and gives their norm
/// before: that of all of them as one vector, `[]`. Two dispatches for each, and two or three for
/// all. Squares are plain floats, as those of [`norm`](crate::tensor::norm()), of halves too.
///
/// # Errors
/// [`Error::Invalid`] for no gradients, or a limit that is not positive.
pub fn clip_gradients<T: Float>(
    encoder: &mut Encoder,
    gradients: &[&Tensor<T>],
    limit: f32,
) -> Result<Tensor<f32>> {
    check(gradients.len(), limit)?;
    encoder.whole(|encoder| {
        let chunks = |gradient: &&Tensor<T>| gradient.len().div_ceil(CHUNK);
        let parts = Tensor::<f32>::uninit(
            encoder.context(),
            [gradients.iter().map(chunks).sum::<usize>()],
        )?;
        let mut first = 0;
        for gradient in gradients {
            let params =
                SquaresParams { length: gradient.len() as u32, first, chunk: CHUNK as u32 };
            encoder.dispatch(
                &SUM_SQUARES,
                &params,
                &[*gradient, &parts],
                [chunks(gradient), 1, 1],
            )?;
            first += chunks(gradient) as u32;
        }
        let squares = sum(encoder, &parts, Axes::ALL)?;
        let norm = sqrt(&squares).forward(encoder)?;
        for gradient in gradients {
            let shape = gradient.shape();
            let operands = [
                Operand::same(CLIP.name, "gradient", gradient, shape)?,
                Operand::broadcast(CLIP.name, "norm", &norm, shape)?,
            ];
            record_two(encoder, &CLIP, &[limit], &operands[0], &operands[1], (*gradient).into())?;
        }
        Ok(norm)
    })
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

/// The CPU twin of [`clip_gradients`], which gives the norm before: sums in its order, but devices
/// may round squares or not.
///
/// # Errors
/// As [`clip_gradients`].
pub fn clip_gradients_cpu<T: Float>(gradients: &mut [&mut [T]], limit: f32) -> Result<f32> {
    check(gradients.len(), limit)?;
    let squares = |chunk: &[T]| {
        let mut sums = [0.0; reduce::THREADS];
        chunk
            .iter()
            .map(|&v| v.into())
            .enumerate()
            .for_each(|(i, v): (usize, f32)| sums[i % reduce::THREADS] += v * v);
        reduce::tree_cpu(sums.to_vec(), &|a: f32, b| a + b)
    };
    let parts: Vec<f32> =
        gradients.iter().flat_map(|gradient| gradient.chunks(CHUNK)).map(squares).collect();
    let norm = sum_cpu(&parts, [parts.len()], Axes::ALL)?[0].sqrt();
    let factor = (limit / (norm + 1e-6)).min(1.0);
    gradients
        .iter_mut()
        .flat_map(|gradient| gradient.iter_mut())
        .for_each(|v| *v = T::from_f32((*v).into() * factor));
    Ok(norm)
}

/// Moves `average` towards `weights`: decay·average + (1 - decay)·weights, in place. Its name is
/// short for exponential moving average.
///
/// # Errors
/// [`Error::Shape`] if they differ.
pub fn ema<T: Float>(
    encoder: &mut Encoder,
    average: &Tensor<f32>,
    weights: &Tensor<T>,
    decay: f32,
) -> Result<()> {
    let shape = average.shape();
    let operands = [
        Operand::same("ema", "average", average, shape)?,
        Operand::same("ema", "weights", weights, shape)?,
    ];
    record_two(encoder, &EMA, &[decay], &operands[0], &operands[1], average.into())
}

/// The CPU twin of [`ema`], of one number.
pub fn ema_cpu(average: f32, weight: f32, decay: f32) -> f32 {
    decay.mul_add(average - weight, weight)
}
