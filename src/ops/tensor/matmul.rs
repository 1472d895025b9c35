//! matmul: y = a·b, of matrices or batches of them, either side transposed.

use super::{
    epilogue::Epilogue,
    matmul_kernels::{MATMUL_DIRECT, Params, Product, plan},
    strided::transpose,
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

pub(super) const KERNELS: &[&Kernel] = super::matmul_kernels::KERNELS;

/// A side of a product: a matrix, or a batch of them, as it is or transposed.
pub struct Side<'a, T> {
    tensor: &'a Tensor<T>,
    transposed: bool,
}

impl<T> Clone for Side<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Side<'_, T> {}

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

/// a·b: `[.., m, k]` by `[.., k, n]` gives `[.., m, n]`. Leading dimensions are a batch and must
/// agree; a side that has none is the same for all. Either side may be [`Side::transposed`].
/// Products are added in `f32`, in an order that follows from the shapes (that of k where there are
/// many rows; eight at a time on the matrix units of Metal), so a device gives the same bits every
/// time. Halves in lines of whole quads are multiplied on matrix units where the device has them
/// (`Capabilities::matrix_units`): in `f32` too, but in which
/// order they add, and how they round on the way, is the unit's.
///
/// Gradients: `matmul(dy, Side::transposed(b))` for a, `matmul(Side::transposed(a), dy)` for b
/// (summed over the batch for a side that has none).
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, tensor::{self, Side}};
/// # fn f(encoder: &mut Encoder, queries: &Tensor<f32>, keys: &Tensor<f32>) -> Result<()> {
/// let scores = tensor::matmul(encoder, queries, Side::transposed(keys))?; // [heads, tokens, head_dim] each, to [heads, tokens, tokens]
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`matmul_into`].
pub fn matmul<'a, T: Float>(
    encoder: &mut Encoder,
    a: impl Into<Side<'a, T>>,
    b: impl Into<Side<'a, T>>,
) -> Result<Tensor<T>> {
    let (a, b) = (a.into(), b.into());
    let y = Tensor::uninit(encoder.context(), output(&a, &b)?)?;
    matmul_into(encoder, a, b, &y)?;
    Ok(y)
}

/// [`matmul`] into a tensor of the caller; of halves also into `f32`.
///
/// # Errors
/// [`Error::Shape`] if the sides or the output do not fit.
pub fn matmul_into<'a, 'y, X: Float, Y: Float>(
    encoder: &mut Encoder,
    a: impl Into<Side<'a, X>>,
    b: impl Into<Side<'a, X>>,
    y: impl Into<Out<'y, Y>>,
) -> Result<()> {
    matmul_with_into(encoder, a, b, &Epilogue::new(), y)
}

/// [`matmul`], finished by an [`Epilogue`] before it is stored: activation(a·b + bias).
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, tensor::{self, Activation, Epilogue, Side}};
/// # fn f(encoder: &mut Encoder, x: &Tensor<f32>, weight: &Tensor<f32>, bias: &Tensor<f32>) -> Result<()> {
/// let y = tensor::matmul_with(encoder, x, Side::transposed(weight), &Epilogue::new().bias(bias).activation(Activation::Gelu))?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`matmul_with_into`].
pub fn matmul_with<'a, T: Float>(
    encoder: &mut Encoder,
    a: impl Into<Side<'a, T>>,
    b: impl Into<Side<'a, T>>,
    epilogue: &Epilogue<'_, T>,
) -> Result<Tensor<T>> {
    let (a, b) = (a.into(), b.into());
    let y = Tensor::uninit(encoder.context(), output(&a, &b)?)?;
    matmul_with_into(encoder, a, b, epilogue, &y)?;
    Ok(y)
}

/// [`matmul_with`] into a tensor of the caller. What is finished is added to an [`Out::add`], which
/// so serves for a residual.
///
/// # Errors
/// As [`matmul_into`]; [`Error::Shape`] for a bias that is not `[n]`.
pub fn matmul_with_into<'a, 'y, X: Float, Y: Float>(
    encoder: &mut Encoder,
    a: impl Into<Side<'a, X>>,
    b: impl Into<Side<'a, X>>,
    epilogue: &Epilogue<'_, X>,
    y: impl Into<Out<'y, Y>>,
) -> Result<()> {
    let (a, b, y) = (a.into(), b.into(), y.into());
    y.check_shape("matmul", output(&a, &b)?)?;
    let (left, right) = (a.view("a")?, b.view("b")?);
    let batch = if a.tensor.shape().rank() == 2 { right.batch } else { left.batch };
    let (m, n, k) = (left.rows, right.columns, left.columns);
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
    let of_halves = X::ELEMENT == Element::F16;
    let capabilities = encoder.context().capabilities();
    let units = if of_halves { &capabilities.matrix_units[..] } else { &[] };
    let direct =
        m.saturating_mul(n).saturating_mul(batch) <= capabilities.tuned(TuningKey::DirectOutputs);
    let product = Product { m, n, k, batch, a_along_k: !a.transposed, b_along_k: b.transposed };
    let [plain, finish] = plan(product, units, direct);
    if std::ptr::eq(plain, &MATMUL_DIRECT[0]) && product.is_far_apart() {
        return encoder.whole(|encoder| {
            let across = transpose(encoder, b.tensor)?;
            matmul_with_into(encoder, a, Side::transposed(&across), epilogue, y)
        });
    }
    if epilogue.is_empty() {
        return encoder.dispatch(
            plain,
            &params,
            &[a.tensor, b.tensor, y.tensor()],
            Extent::products([n, m, batch], k),
        );
    }
    let bias = epilogue.bias_or("matmul", n, a.tensor)?;
    encoder.dispatch(
        finish,
        &params,
        &[a.tensor, b.tensor, y.tensor(), bias],
        Extent::products([n, m, batch], k),
    )
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

/// The CPU twin of [`matmul`], of one matrix `[m, k]` by another `[k, n]`: products added in the
/// order of k. The bits of a device that fuses them.
///
/// # Errors
/// [`Error::Length`] if a slice is no such matrix.
pub fn matmul_cpu(a: &[f32], b: &[f32], [m, k, n]: [usize; 3]) -> Result<Vec<f32>> {
    for (slice, rows, columns) in [(a, m, k), (b, k, n)] {
        if rows.checked_mul(columns) != Some(slice.len()) {
            return Err(Error::Length { shape: [rows, columns].into(), found: slice.len() });
        }
    }
    // Of k = 0 there is nothing in memory that says how many there are.
    let outputs = m.checked_mul(n).filter(|outputs| *outputs <= isize::MAX as usize / 4);
    let mut y = vec![0.0; outputs.ok_or(Error::Length { shape: [m, n].into(), found: 0 })?];
    if n > 0 && k > 0 {
        y.par_chunks_exact_mut(n).zip(a.par_chunks_exact(k)).for_each(|(y, a)| {
            for (a, b) in a.iter().zip(b.chunks_exact(n)) {
                y.iter_mut().zip(b).for_each(|(y, b)| *y = a.mul_add(*b, *y));
            }
        });
    }
    Ok(y)
}
