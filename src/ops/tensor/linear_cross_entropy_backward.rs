//! The gradients of [`linear_cross_entropy`](super::linear_cross_entropy()): with dlogits =
//! dloss·(softmax - target), dx = dlogits·W and dW = dlogitsᵀ·x, a chunk of the vocabulary at a
//! time.

use super::{
    linear_cross_entropy::{Chunk, LinearCrossEntropy, narrow, wide},
    matmul::{Side, matmul},
};
use crate::{
    element::Float,
    error::Result,
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

/// The gradients of [`linear_cross_entropy`](super::linear_cross_entropy()):
/// `LinearGradients<Tensor<X>, Tensor<W>>` as they are made, or where they go to
/// (`LinearGradients<Out<X>, Out<W>>`).
#[derive(Clone, Copy, Debug)]
pub struct LinearGradients<X, W> {
    /// `[.., k]`
    pub x: X,
    /// `[vocabulary, k]`
    pub w: W,
}

impl<X: Float, W: Float> LinearCrossEntropy<'_, X, W> {
    /// Records the gradients for `x` and `w`, where `lse` is what `forward` computed and `dloss`
    /// `[rows]` is the gradient of the losses. The logits are computed again, a chunk at a time,
    /// and become their own gradients: beside its results this takes 4·(c·(rows + k) + 2·rows·k)
    /// bytes for chunks of c columns.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::Shape`](crate::Error::Shape) if `lse` or `dloss` is
    /// not one for each row.
    pub fn backward(
        self,
        encoder: &mut Encoder,
        lse: &Tensor<f32>,
        dloss: &Tensor<f32>,
    ) -> Result<LinearGradients<Tensor<X>, Tensor<W>>> {
        let context = encoder.context();
        let made = LinearGradients {
            x: Tensor::uninit(context, self.x.shape())?,
            w: Tensor::uninit(context, self.w.shape())?,
        };
        let outs = LinearGradients { x: Out::set(&made.x), w: Out::set(&made.w) };
        self.backward_into(encoder, lse, dloss, outs)?;
        Ok(made)
    }

    /// Like [`backward`](Self::backward), into tensors of the caller.
    ///
    /// # Errors
    /// As [`backward`](Self::backward); [`Error::Shape`](crate::Error::Shape) if a tensor has
    /// another shape than its gradient.
    pub fn backward_into(
        self,
        encoder: &mut Encoder,
        lse: &Tensor<f32>,
        dloss: &Tensor<f32>,
        gradients: LinearGradients<Out<'_, X>, Out<'_, W>>,
    ) -> Result<()> {
        self.record_backward(encoder, (lse, dloss), gradients.x, Some(gradients.w))
    }

    /// Records the gradient of `x` alone, for weights that do not learn.
    ///
    /// # Errors
    /// As [`backward_into`](Self::backward_into).
    pub fn backward_x_into<'y>(
        self,
        encoder: &mut Encoder,
        lse: &Tensor<f32>,
        dloss: &Tensor<f32>,
        dx: impl Into<Out<'y, X>>,
    ) -> Result<()>
    where
        X: 'y,
    {
        self.record_backward(encoder, (lse, dloss), dx.into(), None)
    }

    fn record_backward(
        self,
        encoder: &mut Encoder,
        (lse, dloss): (&Tensor<f32>, &Tensor<f32>),
        dx_out: Out<'_, X>,
        dw_out: Option<Out<'_, W>>,
    ) -> Result<()> {
        let op = "linear_cross_entropy_backward";
        let problem = self.problem(op, [("lse", lse), ("dloss", dloss)])?;
        dx_out.check_shape(op, self.x.shape())?;
        dw_out.map_or(Ok(()), |dw| dw.check_shape(op, self.w.shape()))?;
        encoder.transaction(|encoder| {
            let (x, chunk) = (wide(encoder, self.x, problem)?, Chunk::new(encoder, problem)?);
            let dx = Tensor::<f32>::uninit(encoder.context(), x.shape())?;
            for (first, columns) in problem.chunks() {
                let Chunk { w, logits } = chunk.fill(encoder, &x, self.w, (first, columns))?;
                let params = Params {
                    length: logits.len() as u32,
                    columns: columns as u32,
                    first: first as u32,
                    vocabulary: problem.vocabulary as u32,
                    ignores: self.options.ignore.is_some().into(),
                    ignored: self.options.ignore.unwrap_or_default(),
                    smoothing: self.options.smoothing,
                };
                encoder.dispatch(
                    &LINEAR_CROSS_ENTROPY_BACKWARD,
                    &params,
                    &[&logits, self.targets, lse, dloss],
                    [logits.len(), 1, 1],
                )?;
                let sum = if first == 0 { Out::set(&dx) } else { Out::add(&dx) };
                matmul(&logits, &w).forward_into(encoder, sum)?;
                let Some(dw) = dw_out else { continue };
                // The weights have done their part: their gradients take their place.
                matmul(Side::transposed(&logits), &x).forward_into(encoder, &w)?;
                narrow(encoder, &w, dw, first * problem.k)?;
            }
            narrow(encoder, &dx, dx_out, 0)
        })
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::LinearGradients;
    use crate::{
        error::{Error, Result},
        ops::tensor::{
            cross_entropy::reference::cross_entropy_backward, linear_cross_entropy::reference::rows,
        },
    };

    /// CPU reference of the gradients of
    /// [`linear_cross_entropy`](fn@crate::tensor::linear_cross_entropy), as close.
    ///
    /// # Errors
    /// As [`linear_cross_entropy`](fn@crate::reference::linear_cross_entropy); [`Error::Length`] if
    /// `dloss` is not one for each target.
    pub fn linear_cross_entropy_backward(
        x: &[f32],
        w: &[f32],
        k: usize,
        targets: &[u32],
        ignore: Option<u32>,
        smoothing: f32,
        dloss: &[f32],
    ) -> Result<LinearGradients<Vec<f32>, Vec<f32>>> {
        if dloss.len() != targets.len() {
            return Err(Error::Length { shape: [targets.len()].into(), found: dloss.len() });
        }
        let mut made = LinearGradients { x: vec![0f32; x.len()], w: vec![0f32; w.len()] };
        for (row, (logits, target)) in rows(x, w, k, targets)?.enumerate() {
            let slopes = cross_entropy_backward(&logits, target, ignore, smoothing, dloss[row]);
            let (x, dx) = (&x[row * k..][..k], &mut made.x[row * k..][..k]);
            for ((slope, w), dw) in
                slopes.iter().zip(w.chunks_exact(k)).zip(made.w.chunks_exact_mut(k))
            {
                dx.iter_mut().zip(w).for_each(|(dx, w)| *dx = slope.mul_add(*w, *dx));
                dw.iter_mut().zip(x).for_each(|(dw, x)| *dw = slope.mul_add(*x, *dw));
            }
        }
        Ok(made)
    }
}
