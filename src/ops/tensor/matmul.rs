//! matmul: y = a·b, of matrices or batches of them, either side transposed.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Source, Work},
    },
    params,
    shape::Shape,
    wgsl,
};
use rayon::prelude::*;

params! {
    struct Params {
        m: u32, n: u32, k: u32, a_row: u32, a_column: u32, a_batch: u32, b_row: u32, b_column: u32, b_batch: u32, add: u32,
    }
}

static MATMUL: Kernel = Kernel::trusted(
    "matmul",
    Params::FIELDS,
    &[read("a", Float("X")), read("b", Float("X")), read_write("y", Float("Y"))],
    &[Source::wgsl(wgsl!["shared/ids", "tensor/matmul_dense", "tensor/matmul"])
        .workgroup_size([256, 1, 1])
        .tile([64, 64, 1])
        .constants(&[("DEPTH", 16)])
        .workgroup_bytes(8320)
        .work(Work::new(256, "products", 32, 512))],
);

pub(super) const KERNELS: &[&Kernel] = &[&MATMUL];

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

/// A side as the kernel sees it.
struct View {
    batch: usize,
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<T> Side<'_, T> {
    fn view(&self, what: &'static str) -> Result<View> {
        let shape = self.tensor.shape();
        let &[ref batch @ .., rows, columns] = shape.dims() else {
            return Err(Error::Shape { op: "matmul", what, expected: "[.., rows, columns]".into(), found: shape });
        };
        let batch = batch.iter().product();
        Ok(if self.transposed {
            View { batch, rows: columns, columns: rows, row_stride: 1, column_stride: columns }
        } else {
            View { batch, rows, columns, row_stride: columns, column_stride: 1 }
        })
    }
}

/// a·b: `[.., m, k]` by `[.., k, n]` gives `[.., m, n]`. Leading dimensions are a batch and must agree; a side that has none is the same for all. Either
/// side may be [`Side::transposed`]. Products are added in `f32`, in the order of k, so a device gives the same bits every time.
///
/// Gradients: `matmul(dy, Side::transposed(b))` for a, `matmul(Side::transposed(a), dy)` for b (summed over the batch for a side that has none).
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
pub fn matmul<'a, T: Float>(encoder: &mut Encoder, a: impl Into<Side<'a, T>>, b: impl Into<Side<'a, T>>) -> Result<Tensor<T>> {
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
    let (a, b, y) = (a.into(), b.into(), y.into());
    y.check_shape("matmul", output(&a, &b)?)?;
    let (left, right) = (a.view("a")?, b.view("b")?);
    let batch = if a.tensor.shape().rank() == 2 { right.batch } else { left.batch };
    // A side without a batch begins at the same place for all.
    let step = |side: &Side<'_, X>, view: &View| if side.tensor.shape().rank() == 2 { 0 } else { (view.rows * view.columns) as u32 };
    let params = Params {
        m: left.rows as u32,
        n: right.columns as u32,
        k: left.columns as u32,
        a_row: left.row_stride as u32,
        a_column: left.column_stride as u32,
        a_batch: step(&a, &left),
        b_row: right.row_stride as u32,
        b_column: right.column_stride as u32,
        b_batch: step(&b, &right),
        add: y.adds().into(),
    };
    encoder.dispatch(&MATMUL, &params, &[a.tensor, b.tensor, y.tensor()], [right.columns, left.rows, batch])
}

/// The shape of a product.
fn output<T>(a: &Side<'_, T>, b: &Side<'_, T>) -> Result<Shape> {
    let (left, right) = (a.view("a")?, b.view("b")?);
    let batch = |side: &Side<'_, T>| side.tensor.shape().dims()[..side.tensor.shape().rank() - 2].to_vec();
    let (of_a, of_b) = (batch(a), batch(b));
    if left.columns != right.rows || (of_a != of_b && !of_a.is_empty() && !of_b.is_empty()) {
        let expected = format!("[.., {}, n] with the batch of {}", left.columns, a.tensor.shape());
        return Err(Error::Shape { op: "matmul", what: "b", expected, found: b.tensor.shape() });
    }
    let batch = if of_a.is_empty() { of_b } else { of_a };
    Ok(Shape::of(&[&batch[..], &[left.rows, right.columns]].concat()))
}

/// The CPU twin of [`matmul`], of one matrix `[m, k]` by another `[k, n]`: products added in the order of k. The bits of a device that fuses them.
///
/// # Errors
/// [`Error::Length`] if a slice is no such matrix.
pub fn matmul_cpu(a: &[f32], b: &[f32], [m, k, n]: [usize; 3]) -> Result<Vec<f32>> {
    for (slice, rows, columns) in [(a, m, k), (b, k, n)] {
        if rows.checked_mul(columns) != Some(slice.len()) {
            return Err(Error::Length { shape: [rows, columns].into(), found: slice.len() });
        }
    }
    let mut y = vec![0.0; m.saturating_mul(n)];
    if n > 0 && k > 0 {
        y.par_chunks_exact_mut(n).zip(a.par_chunks_exact(k)).for_each(|(y, a)| {
            for (a, b) in a.iter().zip(b.chunks_exact(n)) {
                y.iter_mut().zip(b).for_each(|(y, b)| *y = a.mul_add(*b, *y));
            }
        });
    }
    Ok(y)
}
