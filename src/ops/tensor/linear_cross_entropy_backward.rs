//! The gradients of [`linear_cross_entropy`](super::linear_cross_entropy()): with dlogits =
//! dloss·(softmax - target), dx = dlogits·W and dW = dlogitsᵀ·x, a chunk of the vocabulary at a
//! time.

use super::{
    cross_entropy::{CrossEntropyOptions, cross_entropy_backward_cpu},
    linear_cross_entropy::{
        Chunk, Linear, LinearCrossEntropyOptions, Problem, narrow, rows_cpu, wide,
    },
    matmul::{Side, matmul_into},
};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    params, wgsl,
};

params! {
    struct Params { length: u32, columns: u32, first: u32, vocabulary: u32, ignores: u32, ignored: u32, smoothing: f32 }
}

static LINEAR_CROSS_ENTROPY_BACKWARD: Kernel = Kernel::trusted(
    "linear_cross_entropy_backward",
    Params::FIELDS,
    &[read_write("logits", F32), read("targets", U32), read("lse", F32), read("dloss", F32)],
    &[Source::wgsl(wgsl![
        "shared/ids",
        "shared/flat",
        "shared/exp",
        "tensor/linear_cross_entropy_backward"
    ])],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&LINEAR_CROSS_ENTROPY_BACKWARD];

/// The gradients of [`linear_cross_entropy`](super::linear_cross_entropy()) for `x` and `w`, where
/// `lse` is what it gave and `dloss` `[rows]` is the gradient of the losses. The logits are
/// computed again, a chunk at a time, and become their own gradients: beside its results this takes
/// 4·(c·(rows + k) + 2·rows·k) bytes for chunks of c columns.
///
/// # Errors
/// As [`linear_cross_entropy_backward_into`].
pub fn linear_cross_entropy_backward<X: Float, W: Float>(
    encoder: &mut Encoder,
    head: Linear<&Tensor<X>, &Tensor<W>>,
    targets: &Tensor<u32>,
    options: LinearCrossEntropyOptions,
    lse: &Tensor<f32>,
    dloss: &Tensor<f32>,
) -> Result<Linear<Tensor<X>, Tensor<W>>> {
    let context = encoder.context();
    let made = Linear {
        x: Tensor::uninit(context, head.x.shape())?,
        w: Tensor::uninit(context, head.w.shape())?,
    };
    let outs = Linear { x: Out::set(&made.x), w: Out::set(&made.w) };
    linear_cross_entropy_backward_into(encoder, head, targets, options, lse, dloss, outs)?;
    Ok(made)
}

/// [`linear_cross_entropy_backward`] into tensors of the caller.
///
/// # Errors
/// As [`linear_cross_entropy_into`](super::linear_cross_entropy_into); [`Error::Shape`] if `lse` or
/// `dloss` is not one for each row, or a gradient has another shape than what it is of.
pub fn linear_cross_entropy_backward_into<X: Float, W: Float>(
    encoder: &mut Encoder,
    head: Linear<&Tensor<X>, &Tensor<W>>,
    targets: &Tensor<u32>,
    options: LinearCrossEntropyOptions,
    lse: &Tensor<f32>,
    dloss: &Tensor<f32>,
    gradients: Linear<Out<'_, X>, Out<'_, W>>,
) -> Result<()> {
    let op = "linear_cross_entropy_backward";
    let by_rows = [("targets", targets.shape()), ("lse", lse.shape()), ("dloss", dloss.shape())];
    let problem = Problem::of(op, head, &by_rows, options)?;
    gradients.x.check_shape(op, head.x.shape())?;
    gradients.w.check_shape(op, head.w.shape())?;
    encoder.whole(|encoder| {
        let (x, chunk) = (wide(encoder, head.x, problem)?, Chunk::new(encoder, problem)?);
        let dx = Tensor::<f32>::uninit(encoder.context(), x.shape())?;
        for (first, columns) in problem.chunks() {
            let Chunk { w, logits } = chunk.fill(encoder, &x, head.w, (first, columns))?;
            let params = Params {
                length: logits.len() as u32,
                columns: columns as u32,
                first: first as u32,
                vocabulary: problem.vocabulary as u32,
                ignores: options.loss.ignore.is_some().into(),
                ignored: options.loss.ignore.unwrap_or_default(),
                smoothing: options.loss.smoothing,
            };
            encoder.dispatch(
                &LINEAR_CROSS_ENTROPY_BACKWARD,
                &params,
                &[&logits, targets, lse, dloss],
                [logits.len(), 1, 1],
            )?;
            matmul_into(
                encoder,
                &logits,
                &w,
                if first == 0 { Out::set(&dx) } else { Out::add(&dx) },
            )?;
            // The weights have done their part: their gradients take their place.
            matmul_into(encoder, Side::transposed(&logits), &x, &w)?;
            narrow(encoder, &w, gradients.w, first * problem.k)?;
        }
        narrow(encoder, &dx, gradients.x, 0)
    })
}

/// The CPU twin of [`linear_cross_entropy_backward`], as close.
///
/// # Errors
/// As [`linear_cross_entropy_cpu`](super::linear_cross_entropy_cpu); [`Error::Length`] if `dloss`
/// is not one for each target.
pub fn linear_cross_entropy_backward_cpu(
    head: Linear<&[f32], &[f32]>,
    k: usize,
    targets: &[u32],
    options: CrossEntropyOptions,
    dloss: &[f32],
) -> Result<Linear<Vec<f32>, Vec<f32>>> {
    if dloss.len() != targets.len() {
        return Err(Error::Length { shape: [targets.len()].into(), found: dloss.len() });
    }
    let mut made = Linear { x: vec![0f32; head.x.len()], w: vec![0f32; head.w.len()] };
    for (row, (logits, target)) in rows_cpu(head, k, targets)?.enumerate() {
        let slopes = cross_entropy_backward_cpu(&logits, target, options, dloss[row]);
        let (x, dx) = (&head.x[row * k..][..k], &mut made.x[row * k..][..k]);
        for ((slope, w), dw) in
            slopes.iter().zip(head.w.chunks_exact(k)).zip(made.w.chunks_exact_mut(k))
        {
            dx.iter_mut().zip(w).for_each(|(dx, w)| *dx = slope.mul_add(*w, *dx));
            dw.iter_mut().zip(x).for_each(|(dw, x)| *dw = slope.mul_add(*x, *dw));
        }
    }
    Ok(made)
}
