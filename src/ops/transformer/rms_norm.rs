//! RMSNorm without a quantizer after it (Zhang and Sennrich 2019, arXiv 1910.07467).

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{CELLS, EXACT, REDUCE, Source},
    },
    msl,
    ops::{
        rms::{inverse_rms, normalize},
        tensor::layer_norm::{Norm, norm_rows_backward},
    },
    params, wgsl,
};

params! { struct Params { tokens: u32, features: u32, first: u32, add: u32, eps: f32 } }

static RMS_NORM: Kernel = Kernel::trusted(
    "rms_norm",
    Params::FIELDS,
    &[read("x", Float("X")), read("gain", F32), read_write("y", Float("X"))],
    &[
        Source::wgsl(wgsl![
            REDUCE,
            CELLS,
            EXACT,
            "shared/row_of_group",
            "shared/row",
            "shared/row_any",
            "shared/row_numbers",
            "shared/rms",
            "shared/gain_any",
            "shared/rms_row",
            "shared/flat",
            "transformer/rms_norm"
        ])
        .workgroup_size([256, 1, 1])
        .tile([1, 1, 1])
        .constants(&[("HELD", 3)])
        .workgroup_bytes(1056),
        Source::msl(msl![
            "shared/prelude",
            "shared/exact",
            "shared/reduce",
            "shared/rms",
            "shared/rms_row",
            "transformer/rms_norm"
        ])
        .workgroup_size([256, 1, 1])
        .tile([1, 1, 1])
        .workgroup_bytes(256),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&RMS_NORM];

const OP: &str = "rms_norm";

/// RMSNorm with a weight `[k]`: each row of `x` `[m, k]` becomes x / sqrt(mean(x²) + eps) · weight.
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, transformer::RmsNorm};
/// # fn f(encoder: &mut Encoder, weight: &Tensor<f32>, x: &Tensor<f32>, dy: &Tensor<f32>) -> Result<()> {
/// let norm = RmsNorm::new(weight, 1e-5);
/// let y = norm.forward(encoder, x)?;
/// let (dx, dweight) = norm.backward(encoder, x, dy)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm<'a> {
    weight: &'a Tensor<f32>,
    eps: f32,
    first: usize,
}

impl<'a> RmsNorm<'a> {
    /// RMSNorm with this weight; `eps` is added to the mean of squares.
    pub fn new(weight: &'a Tensor<f32>, eps: f32) -> Self {
        Self { weight, eps, first: 0 }
    }

    /// Leaves out the first rows of the input. The output then has the rows after them, or as many
    /// of these as the tensor of the caller has.
    #[must_use]
    pub fn skip_rows(self, rows: usize) -> Self {
        Self { first: rows, ..self }
    }

    /// Records the norm of `x` `[m, k]` (`f32`, or `f16`, which is rounded once more) and returns
    /// the result.
    ///
    /// # Errors
    /// [`Error::Shape`] if the weight is not `[k]`, or fewer rows are there than are skipped.
    pub fn forward<T: Float>(self, encoder: &mut Encoder, x: &Tensor<T>) -> Result<Tensor<T>> {
        let (m, k) = x.shape().as_matrix();
        let shape =
            if self.first == 0 { x.shape() } else { [m.saturating_sub(self.first), k].into() };
        let y = Tensor::uninit(encoder.context(), shape)?;
        self.forward_into(encoder, x, &y)?;
        Ok(y)
    }

    /// Like [`forward`](Self::forward), into a tensor of the caller.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::Shape`] if the output has more rows than there are,
    /// or other columns.
    pub fn forward_into<'y, T: Float>(
        self,
        encoder: &mut Encoder,
        x: &Tensor<T>,
        y: impl Into<Out<'y, T>>,
    ) -> Result<()> {
        let (Self { weight, eps, first }, y) = (self, y.into());
        let ((m, k), (tokens, columns)) = (x.shape().as_matrix(), y.tensor().shape().as_matrix());
        let misfit = |what, expected, found| Err(Error::Shape { op: OP, what, expected, found });
        if weight.shape().dims() != [k] {
            return misfit("weight", format!("[{k}]"), weight.shape());
        }
        if first > m || tokens > m - first || columns != k {
            let expected = format!("[≤ {}, {k}]", m.saturating_sub(first));
            return misfit("the output", expected, y.tensor().shape());
        }
        let params = Params {
            tokens: tokens as u32,
            features: k as u32,
            first: first as u32,
            add: y.adds().into(),
            eps,
        };
        encoder.dispatch(&RMS_NORM, &params, &[x, weight, y.tensor()], [tokens, 1, 1])
    }

    /// Records the gradients of `x` and of the weight, where `dy` is that of the output: with n the
    /// normed row and g = dy·weight, dx = (g - n·mean(g·n)) / sqrt(mean(x²) + eps), and
    /// dweight = Σ dy·n over rows. Squares are plain floats here: numbers above 2^63 have no
    /// gradient.
    ///
    /// # Errors
    /// As [`backward_into`](Self::backward_into).
    #[cfg(feature = "train")]
    pub fn backward<T: Float>(
        self,
        encoder: &mut Encoder,
        x: &Tensor<T>,
        dy: &Tensor<T>,
    ) -> Result<(Tensor<T>, Tensor<f32>)> {
        let dx = Tensor::uninit(encoder.context(), x.shape())?;
        let dweight = Tensor::uninit(encoder.context(), self.weight.shape())?;
        self.backward_into(encoder, x, dy, &dx, &dweight)?;
        Ok((dx, dweight))
    }

    /// Like [`backward`](Self::backward), into tensors of the caller.
    ///
    /// # Errors
    /// [`Error::Shape`] if the weight or its gradient is not `[k]`, or `dy` or `dx` has another
    /// shape than `x`; [`Error::Invalid`] if rows are skipped.
    #[cfg(feature = "train")]
    pub fn backward_into<'out, T: Float>(
        self,
        encoder: &mut Encoder,
        x: &Tensor<T>,
        dy: &Tensor<T>,
        dx: impl Into<Out<'out, T>>,
        dweight: impl Into<Out<'out, f32>>,
    ) -> Result<()> {
        let (Self { weight, eps, first }, op) = (self, "rms_norm_backward");
        if first > 0 {
            return Err(Error::Invalid { op, what: "rows are skipped; all have gradients".into() });
        }
        let norm = Norm { center: false, eps };
        norm_rows_backward(encoder, op, x, weight, norm, dy, dx.into(), dweight.into())
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`RmsNorm::forward`] on whole rows: bit-identical.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not whole rows.
    pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Result<Vec<f32>> {
        let k = weight.len().max(1);
        if !x.len().is_multiple_of(k) {
            return Err(Error::Length { shape: [x.len() / k, k].into(), found: x.len() });
        }
        let mut y = x.to_vec();
        y.chunks_exact_mut(k).for_each(|row| normalize(row, weight, inverse_rms(row, eps)));
        Ok(y)
    }

    /// CPU reference of [`RmsNorm::backward`], in `f64`: the gradients of `x` and of the weight.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not whole rows, or `dy` has another length.
    #[cfg(feature = "train")]
    pub fn rms_norm_backward(
        x: &[f32],
        weight: &[f32],
        eps: f32,
        dy: &[f32],
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        let [dx, dweight, _] = Norm { center: false, eps }.backward_cpu(x, weight, dy)?;
        Ok((dx, dweight))
    }
}
