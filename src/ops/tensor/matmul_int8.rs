//! matmul_int8: y = a·bᵀ of bytes with signs, exact in `i32`.

use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, recording::Extent, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Source, Work},
    },
    msl,
    ops::forward::forward,
    params,
    shape::Shape,
    wgsl,
};
use rayon::prelude::*;

params! { struct Params { m: u32, n: u32, k: u32, a_batch: u32, b_batch: u32 } }

static MATMUL_INT8: Kernel = Kernel::trusted(
    "matmul_int8",
    Params::FIELDS,
    &[read("a", U32), read("b", U32), read_write("y", I32)],
    &[
        // Four bytes to a word.
        Source::wgsl(wgsl!["shared/ids", "tensor/matmul_int8"])
            .workgroup_size([256, 1, 1])
            .tile([64, 64, 1])
            .constants(&[("DEPTH", 16)])
            .workgroup_bytes(8320)
            .work(Work::new(1024, "products", 32, 2048)),
        Source::msl(msl!["shared/prelude", "tensor/matmul_int8"])
            .workgroup_size([128, 1, 1])
            .tile([64, 64, 1])
            .constants(&[("DEPTH", 32)])
            .workgroup_bytes(11_264)
            .work(Work::new(1024, "products", 32, 2048)),
    ],
);

pub(super) const KERNELS: &[&Kernel] = &[&MATMUL_INT8];

/// The first k of which a sum of products may be larger than an `i32`: k·(-128)².
const TOO_MANY: usize = 1 << 17;

/// A product of bytes: what [`matmul_int8`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct MatmulInt8<'a> {
    a: &'a Tensor<i8>,
    b: &'a Tensor<i8>,
}

/// a·bᵀ: `[.., m, k]` by `[.., n, k]` gives `[.., m, n]`, exact. Leading dimensions are a batch and
/// must agree; a side that has none is the same for all. Rows may have any length: they are packed
/// one after another, in whole words or not. Devices that have it use a dot product of four bytes
/// (DP4A). k is below 2^17, so that no sum is too large for an `i32`.
pub fn matmul_int8<'a>(a: &'a Tensor<i8>, b: &'a Tensor<i8>) -> MatmulInt8<'a> {
    MatmulInt8 { a, b }
}

forward!(impl['a] MatmulInt8<'a> => overwrite i32);

impl MatmulInt8<'_> {
    fn shape(&self) -> Result<Shape> {
        output(self.a.shape(), self.b.shape())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, i32>) -> Result<()> {
        let (Self { a, b }, shape) = (self, self.shape()?);
        y.check_shape("matmul_int8", shape)?;
        let ((m, k), n) = (matrix(a.shape()), matrix(b.shape()).0);
        // A side without a batch begins at the same place for all.
        let step = |side: Shape, rows: usize| if side.rank() == 2 { 0 } else { (rows * k) as u32 };
        let (a_batch, b_batch) = (step(a.shape(), m), step(b.shape(), n));
        let params = Params { m: m as u32, n: n as u32, k: k as u32, a_batch, b_batch };
        let batch = shape.dims()[..shape.rank() - 2].iter().product();
        let extent = Extent::products([n, m, batch], k);
        encoder.dispatch(&MATMUL_INT8, &params, &[a, b, y.tensor()], extent)
    }
}

/// The last two dimensions.
fn matrix(shape: Shape) -> (usize, usize) {
    let dims = shape.dims();
    (dims[dims.len() - 2], dims[dims.len() - 1])
}

/// The shape of a product.
fn output(a: Shape, b: Shape) -> Result<Shape> {
    let op = "matmul_int8";
    let misfit = |what, expected: String, found| Err(Error::Shape { op, what, expected, found });
    let &[ref of_a @ .., m, k] = a.dims() else { return misfit("a", "[.., m, k]".into(), a) };
    let &[ref of_b @ .., n, depth] = b.dims() else { return misfit("b", "[.., n, k]".into(), b) };
    if depth != k || (of_a != of_b && !of_a.is_empty() && !of_b.is_empty()) {
        return misfit("b", format!("[.., n, {k}] with the batch of {a}"), b);
    }
    check_features(k)?;
    Ok(Shape::of(&[if of_a.is_empty() { of_b } else { of_a }, &[m, n]].concat()))
}

fn check_features(k: usize) -> Result<()> {
    if k < TOO_MANY {
        return Ok(());
    }
    let what =
        format!("a sum of {k} products may be too large for an i32; {} are the most", TOO_MANY - 1);
    Err(Error::Invalid { op: "matmul_int8", what })
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`matmul_int8`](fn@crate::tensor::matmul_int8), of one matrix `[m, k]` by
    /// another `[n, k]`: the same integers.
    ///
    /// # Errors
    /// [`Error::Length`] if a slice is no such matrix; [`Error::Invalid`] for k of 2^17 or more.
    pub fn matmul_int8(a: &[i8], b: &[i8], [m, k, n]: [usize; 3]) -> Result<Vec<i32>> {
        check_features(k)?;
        for (slice, rows) in [(a, m), (b, n)] {
            if rows.checked_mul(k) != Some(slice.len()) {
                return Err(Error::Length { shape: [rows, k].into(), found: slice.len() });
            }
        }
        let mut y = vec![0; m.saturating_mul(n)];
        if n > 0 && k > 0 {
            let dot = |a: &[i8], b: &[i8]| {
                a.iter().zip(b).map(|(&a, &b)| i32::from(a) * i32::from(b)).sum()
            };
            y.par_chunks_exact_mut(n).zip(a.par_chunks_exact(k)).for_each(|(y, a)| {
                y.iter_mut().zip(b.chunks_exact(k)).for_each(|(y, b)| *y = dot(a, b));
            });
        }
        Ok(y)
    }
}
