//! least_squares: the x that makes ‖A·x - b‖ least, by A = Q·R: R·x = Qᵀ·b (Golub 1965, Numerical
//! methods for solving linear least squares problems; Golub and Van Loan, Matrix Computations, 4th
//! edition, 5.3).

use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::declaration::Kernel,
    ops::linalg::{
        householder::{Reflections, reflect_cpu},
        matrices::{HostMatrix, Matrices},
        outcome::{Fault, NOT_FINITE, Outcome, Status},
        triangular_solve::{Triangle, check_diagonal, substitute, substitute_cpu},
    },
};

pub(super) const KERNELS: &[&Kernel] = &[];

/// How much of a column's norm R has on the diagonal by rounding alone, if the column depends on
/// those before it. A reflection changes a column by a few units in the last place of its norm
/// (Higham, Accuracy and Stability, lemma 19.3), and such errors of random direction grow with the
/// root of their number. Of columns that were sums of those before them, with factors up to 1, in
/// random matrices of up to 200 rows, none was above a quarter of this.
fn rounding(m: usize) -> f32 {
    8.0 * f32::EPSILON * (m as f32).sqrt()
}

/// What [`least_squares`] returns.
#[derive(Clone, Copy, Debug)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct LeastSquares<'a> {
    pub(super) a: &'a Tensor<f32>,
    pub(super) b: &'a Tensor<f32>,
}

/// x `[.., n, r]` with the least ‖A·x - b‖ for each of r right-hand sides b `[.., m, r]`, for A
/// `[.., m, n]` with m >= n and independent columns.
///
/// ```
/// # fn main() -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::{Context, linalg};
///
/// let context = pollster::block_on(Context::new())?;
/// // The line c + d·t near (1, 1), (2, 3), (3, 2).
/// let a = context.upload(&[1.0f32, 1.0, 1.0, 2.0, 1.0, 3.0], [3, 2])?;
/// let b = context.upload(&[1.0f32, 3.0, 2.0], [3, 1])?;
/// let mut encoder = context.encoder("line");
/// let line = linalg::least_squares(&a, &b).forward(&mut encoder)?;
/// encoder.submit()?;
/// println!("{:?}", pollster::block_on(pollster::block_on(line.check())?.read())?); // [1.0, 0.5]
/// # Ok(())
/// # }
/// ```
pub fn least_squares<'a>(a: &'a Tensor<f32>, b: &'a Tensor<f32>) -> LeastSquares<'a> {
    LeastSquares { a, b }
}

impl LeastSquares<'_> {
    /// Records the op.
    ///
    /// # Errors
    /// [`Error::Shape`] if m < n, or b has other rows or leading dimensions. The outcome:
    /// [`Error::RankDeficient`] at the first column that depends on those before it, up to rounding (a
    /// change of it by √m·2^-20 of its norm would do); [`Error::NotFinite`], also where x overflows; x
    /// is NaN then. Where columns before it nearly depend on each other, a dependent one may pass, and
    /// x be as large as rounding makes it: [`svd`](super::svd::svd) tells.
    pub fn forward(self, encoder: &mut Encoder) -> Result<Outcome<Tensor<f32>>> {
        let Self { a, b } = self;
        let op = "least_squares";
        let of_a = Matrices::of(op, "A", a)?;
        if of_a.rows < of_a.columns {
            return Err(Error::Shape {
                op,
                what: "A",
                expected: "[.., m, n] with m >= n".into(),
                found: a.shape(),
            });
        }
        by_reflections(encoder, op, Fault::RankDeficient, of_a, b)
    }
}

/// [`least_squares`] of A with at least as many rows as columns; `fault` is what a dependent column
/// is called.
pub(super) fn by_reflections(
    encoder: &mut Encoder,
    op: &'static str,
    fault: Fault,
    a: Matrices<'_>,
    b: &Tensor<f32>,
) -> Result<Outcome<Tensor<f32>>> {
    let b = a.right_hand_sides(op, b)?;
    let status = Status::new(encoder, op, a.count, fault)?;
    let r = a.copy(encoder, [a.rows, a.columns], false)?;
    let r = Matrices { tensor: &r, ..a };
    let c = b.copy(encoder, [b.rows, b.columns], false)?;
    let c = Matrices { tensor: &c, ..b };
    Reflections::of(encoder, r)?.apply_transposed(encoder, c)?;
    check_diagonal(encoder, r, a.columns, rounding(a.rows), &status)?;
    let x = c.copy(encoder, [a.columns, b.columns], false)?;
    substitute(encoder, r, &x, Triangle::UPPER)?;
    status.scan(encoder, &x, false)?;
    status.guard(encoder, &[&x], x.clone())
}

/// [`by_reflections`] in `f64`. What depends is judged as for `f32`.
pub(super) fn by_reflections_cpu(
    op: &'static str,
    fault: Fault,
    a: &[f32],
    b: &[f32],
    [m, n]: [usize; 2],
) -> Result<Vec<f32>> {
    let columns = b.len() / m.max(1);
    let (mut r, mut x) = (HostMatrix::new(a, m, n)?, HostMatrix::new(b, m, columns)?);
    reflect_cpu(&mut r, m, &mut x);
    if (0..n).any(|j| !(r[(j, j)] as f32).is_finite()) {
        fault.of(op, 0, NOT_FINITE)?;
    }
    let norm = |j: usize| (0..=j).map(|i| r[(i, j)] * r[(i, j)]).sum::<f64>().sqrt();
    if let Some(column) = (0..n).find(|&j| r[(j, j)].abs() <= f64::from(rounding(m)) * norm(j)) {
        fault.of(op, 0, column as u32 + 1)?;
    }
    substitute_cpu(op, &r, &mut x, n, Triangle::UPPER)?;
    Ok(x.corner(n, columns))
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`least_squares`](super::least_squares()) for one matrix `m × n` and right-hand sides `b` `[m, r]`, in `f64` and rounded at
    /// the end.
    ///
    /// # Errors
    /// [`Error::Length`] if `a` is not `m × n`, or `b` not m rows; [`Error::Invalid`] if m < n; else as
    /// [`least_squares`].
    pub fn least_squares(a: &[f32], b: &[f32], m: usize, n: usize) -> Result<Vec<f32>> {
        let op = "least_squares";
        if m < n {
            return Err(Error::Invalid {
                op,
                what: format!("{m} rows are fewer than {n} columns"),
            });
        }
        by_reflections_cpu(op, Fault::RankDeficient, a, b, [m, n])
    }
}
