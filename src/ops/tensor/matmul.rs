//! matmul: y = a·b, of matrices or batches of them, either side transposed.

use super::{
    epilogue::{Activation, Epilogue},
    matmul_kernels::{Forms, MATMUL_DIRECT, Params, Product, plan},
    strided::transpose,
    sum::sum,
};
use crate::{
    element::{Element, Float},
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, recording::Extent, tensor::Tensor},
    kernel::declaration::Kernel,
    shape::Shape,
    tuning::TuningKey,
};
use rayon::prelude::*;
use std::any::Any;

pub(super) const KERNELS: &[&Kernel] = super::matmul_kernels::KERNELS;

/// A side of a product: a matrix, or a batch of them, as it is or transposed.
#[derive(Clone, Copy)]
pub struct Side<'a, T> {
    tensor: &'a Tensor<T>,
    transposed: bool,
}

impl<'a, T> Side<'a, T> {
    /// The matrices of a tensor `[.., rows, columns]`, transposed.
    pub fn transposed(tensor: &'a Tensor<T>) -> Self {
        Self { tensor, transposed: true }
    }
}

impl<'a, T> From<&'a Tensor<T>> for Side<'a, T> {
    fn from(tensor: &'a Tensor<T>) -> Self {
        Self { tensor, transposed: false }
    }
}

/// A side as the product sees it.
struct View {
    batch: usize,
    rows: usize,
    columns: usize,
}

impl<T> Side<'_, T> {
    fn view(&self, what: &'static str) -> Result<View> {
        let shape = self.tensor.shape();
        let &[ref batch @ .., rows, columns] = shape.dims() else {
            return Err(Error::Shape {
                op: "matmul",
                what,
                expected: "[.., rows, columns]".into(),
                found: shape,
            });
        };
        let (rows, columns) = if self.transposed { (columns, rows) } else { (rows, columns) };
        Ok(View { batch: batch.iter().product(), rows, columns })
    }

    /// The rows of its tensor from one matrix to the next. Without a batch, it begins at the same
    /// place for all.
    fn step(&self) -> u32 {
        match *self.tensor.shape().dims() {
            [_, .., rows, _] => rows as u32,
            _ => 0,
        }
    }
}

/// A product of matrices: what [`matmul`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct Matmul<'a, T> {
    a: Side<'a, T>,
    b: Side<'a, T>,
    epilogue: Epilogue<'a, T>,
}

/// a·b: `[.., m, k]` by `[.., k, n]` gives `[.., m, n]`. Leading dimensions are a batch and must
/// agree; a side that has none is the same for all. Either side may be [`Side::transposed`].
/// Products are added in `f32`, in an order that follows from the shapes (that of k where there are
/// many rows; eight at a time in simdgroup matrices on Metal; in ranges of k, whose sums are added
/// last, where aᵀ·b has few outputs and a k of 1024 or more), so a device's results are bit-identical
/// every time. `f16` in rows of whole quads is multiplied on tensor cores where the device has them
/// (`Capabilities::tensor_cores`): in `f32` too, but the order
/// of additions, and how they round on the way, is the hardware's.
///
/// Gradients: `matmul(dy, Side::transposed(b))` for a, `matmul(Side::transposed(a), dy)` for b
/// (summed over the batch for a side that has none). That of an activation needs a·b + bias: keep
/// it by a product with a bias alone, and record the activation by itself.
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, tensor::{self, Activation, Side}};
/// # fn f(encoder: &mut Encoder, q: &Tensor<f32>, k: &Tensor<f32>, w: &Tensor<f32>, bias: &Tensor<f32>) -> Result<()> {
/// let scores = tensor::matmul(q, Side::transposed(k)).forward(encoder)?; // [heads, tokens, head_dim] each, to [heads, tokens, tokens]
/// let linear = tensor::matmul(q, Side::transposed(w)).bias(bias).activation(Activation::Gelu);
/// let y = linear.forward(encoder)?;
/// # Ok(())
/// # }
/// ```
pub fn matmul<'a, T: Float>(a: impl Into<Side<'a, T>>, b: impl Into<Side<'a, T>>) -> Matmul<'a, T> {
    Matmul { a: a.into(), b: b.into(), epilogue: Epilogue::new() }
}

impl<'a, X: Float> Matmul<'a, X> {
    /// Adds `bias`, `[n]`, to every row of the product.
    pub fn bias(self, bias: &'a Tensor<X>) -> Self {
        Self { epilogue: self.epilogue.bias(bias), ..self }
    }

    /// Applies `activation`, after the bias, in the kernel that makes the product.
    pub fn activation(self, activation: Activation) -> Self {
        Self { epilogue: self.epilogue.activation(activation), ..self }
    }

    /// Records the product and returns it, a new tensor.
    ///
    /// # Errors
    /// [`Error::Shape`] if the sides do not fit, or for a bias that is not `[n]`.
    pub fn forward(self, encoder: &mut Encoder) -> Result<Tensor<X>> {
        let y = Tensor::uninit(encoder.context(), output(&self.a, &self.b)?)?;
        self.forward_into(encoder, &y)?;
        Ok(y)
    }

    /// Records the product, which is written to a tensor of the caller, of either type of float, or
    /// added to one ([`Out::add`]), after the activation, as for a residual.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::Shape`] if the tensor has another shape than the
    /// product.
    pub fn forward_into<'out, Y: Float>(
        self,
        encoder: &mut Encoder,
        out: impl Into<Out<'out, Y>>,
    ) -> Result<()> {
        let (Self { a, b, epilogue }, y) = (self, out.into());
        y.check_shape("matmul", output(&a, &b)?)?;
        let (left, right) = (a.view("a")?, b.view("b")?);
        let batch = if a.tensor.shape().rank() == 2 { right.batch } else { left.batch };
        let (m, n, k) = (left.rows, right.columns, left.columns);
        let product = Product { m, n, k, batch, a_along_k: !a.transposed, b_along_k: b.transposed };
        let parts = product.parts();
        let floats = (y.tensor() as &dyn Any).downcast_ref::<Tensor<f32>>();
        if let Some(floats) = floats.filter(|_| parts > 1 && epilogue.is_empty()) {
            let y = if y.adds() { Out::add(floats) } else { Out::set(floats) };
            return in_parts(encoder, (a.tensor, b.tensor), parts, y);
        }
        let params = Params {
            m: m as u32,
            n: n as u32,
            k: k as u32,
            a_transposed: a.transposed.into(),
            b_transposed: b.transposed.into(),
            a_batch: a.step(),
            b_batch: b.step(),
            add: y.adds().into(),
            biased: epilogue.has_bias().into(),
            activation: epilogue.code(),
        };
        let [plain, finish] = forms::<X>(encoder, product);
        if std::ptr::eq(plain, &MATMUL_DIRECT[0]) && product.is_far_apart() {
            return encoder.transaction(|encoder| {
                let across = transpose(b.tensor).forward(encoder)?;
                Matmul { a, b: Side::transposed(&across), epilogue }.forward_into(encoder, y)
            });
        }
        let extent = Extent::products([n, m, batch], k);
        if epilogue.is_empty() {
            return encoder.dispatch(plain, &params, &[a.tensor, b.tensor, y.tensor()], extent);
        }
        let bias = epilogue.bias_or("matmul", n, a.tensor)?;
        encoder.dispatch(finish, &params, &[a.tensor, b.tensor, y.tensor(), bias], extent)
    }
}

/// Records aᵀ·b, `a` being `[k, m]` and `b` `[k, n]`: the products of `parts` equal ranges of k,
/// and their sum.
fn in_parts<X: Float>(
    encoder: &mut Encoder,
    (a, b): (&Tensor<X>, &Tensor<X>),
    parts: usize,
    y: Out<'_, f32>,
) -> Result<()> {
    let ((k, m), (_, n)) = (a.shape().as_matrix(), b.shape().as_matrix());
    let (a, b) = (a.reshape([parts, k / parts, m])?, b.reshape([parts, k / parts, n])?);
    let sums = Tensor::<f32>::uninit(encoder.context(), [parts, m, n])?;
    encoder.transaction(|encoder| {
        matmul(Side::transposed(&a), &b).forward_into(encoder, &sums)?;
        sum(&sums, [0]).forward_into(encoder, y)
    })
}

/// The kernels for a product of `X` on this device.
fn forms<X: Float>(encoder: &Encoder, product: Product) -> &'static Forms {
    let capabilities = encoder.context().capabilities();
    let cores = if X::ELEMENT == Element::F16 { &capabilities.tensor_cores[..] } else { &[] };
    let outputs = product.m.saturating_mul(product.n).saturating_mul(product.batch);
    plan(product, cores, outputs <= capabilities.tuned(TuningKey::UntiledOutputs))
}

/// The shape of a product.
fn output<T>(a: &Side<'_, T>, b: &Side<'_, T>) -> Result<Shape> {
    let (left, right) = (a.view("a")?, b.view("b")?);
    let batch =
        |side: &Side<'_, T>| side.tensor.shape().dims()[..side.tensor.shape().rank() - 2].to_vec();
    let (of_a, of_b) = (batch(a), batch(b));
    if left.columns != right.rows || (of_a != of_b && !of_a.is_empty() && !of_b.is_empty()) {
        let expected = format!("[.., {}, n] with the batch of {}", left.columns, a.tensor.shape());
        return Err(Error::Shape { op: "matmul", what: "b", expected, found: b.tensor.shape() });
    }
    let batch = if of_a.is_empty() { of_b } else { of_a };
    Ok(Shape::of(&[&batch[..], &[left.rows, right.columns]].concat()))
}

/// Checks that the slices are matrices `[m, k]` and `[k, n]`, and returns zeros for their product.
pub(crate) fn zeros(a: &[f32], b: &[f32], [m, k, n]: [usize; 3]) -> Result<Vec<f32>> {
    for (slice, rows, columns) in [(a, m, k), (b, k, n)] {
        if rows.checked_mul(columns) != Some(slice.len()) {
            return Err(Error::Length { shape: [rows, columns].into(), found: slice.len() });
        }
    }
    // With k = 0, no slice bounds the number of outputs.
    let outputs = m.checked_mul(n).filter(|outputs| *outputs <= isize::MAX as usize / 4);
    Ok(vec![0.0; outputs.ok_or(Error::Length { shape: [m, n].into(), found: 0 })?])
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`matmul`](fn@crate::tensor::matmul), of one matrix `[m, k]` by another
    /// `[k, n]`: products added in the order of k. The bits of a device that fuses them.
    ///
    /// # Errors
    /// [`Error::Length`] if a slice is no such matrix.
    pub fn matmul(a: &[f32], b: &[f32], [m, k, n]: [usize; 3]) -> Result<Vec<f32>> {
        let mut y = zeros(a, b, [m, k, n])?;
        if n > 0 && k > 0 {
            y.par_chunks_exact_mut(n).zip(a.par_chunks_exact(k)).for_each(|(y, a)| {
                for (a, b) in a.iter().zip(b.chunks_exact(n)) {
                    y.iter_mut().zip(b).for_each(|(y, b)| *y = a.mul_add(*b, *y));
                }
            });
        }
        Ok(y)
    }
}
