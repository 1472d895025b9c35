//! qr: A = Q·R, Q with orthonormal columns and R upper triangular, by Householder's reflections
//! (Householder 1958, Unitary triangularization of a nonsymmetric matrix; Golub and Van Loan,
//! Matrix Computations, 4th edition, 5.2).

use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::declaration::Kernel,
    ops::linalg::{
        householder::{HOUSEHOLDER_APPLY, HOUSEHOLDER_PANEL, Reflections, apply_cpu, reflect_cpu},
        matrices::{HostMatrix, IDENTITY_MATRICES, Matrices},
        outcome::{Fault, Outcome, Status},
    },
};

pub(super) const KERNELS: &[&Kernel] =
    &[&HOUSEHOLDER_PANEL, &HOUSEHOLDER_APPLY, &IDENTITY_MATRICES];

/// The factors of A `[.., m, n]`. In the thin form p = min(m, n), in the full one p = m.
#[derive(Clone, Debug)]
pub struct Qr<T = Tensor<f32>> {
    /// `[.., m, p]`, with orthonormal columns
    pub q: T,
    /// `[.., p, n]`, upper triangular; numbers on the diagonal may have any sign
    pub r: T,
}

/// What [`qr`] returns.
#[derive(Clone, Copy, Debug)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct QrFactorization<'a> {
    pub(super) a: &'a Tensor<f32>,
    pub(super) full: bool,
}

/// A = Q·R in the thin form, which is enough to have the columns' span: Q `[.., m, p]` and R
/// `[.., p, n]`, p = min(m, n). Any A has such factors.
///
/// ```
/// # fn main() -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::{Context, linalg};
///
/// let context = pollster::block_on(Context::new())?;
/// let a = context.upload(&[3.0f32, 1.0, 4.0, 2.0, 0.0, 2.0], [3, 2])?;
/// let mut encoder = context.encoder("qr");
/// let factors = linalg::qr(&a).forward(&mut encoder)?;
/// encoder.submit()?;
/// let factors = pollster::block_on(factors.check())?;
/// println!("{:?}", pollster::block_on(factors.r.read())?); // [-5.0, -2.2, 0.0, -2.04]
/// # Ok(())
/// # }
/// ```
pub fn qr(a: &Tensor<f32>) -> QrFactorization<'_> {
    QrFactorization { a, full: false }
}

impl QrFactorization<'_> {
    /// Makes the full form, where Q `[.., m, m]` is orthogonal and R is `[.., m, n]`.
    pub fn full(self) -> Self {
        Self { full: true, ..self }
    }

    /// Records the op.
    ///
    /// # Errors
    /// [`Error::Shape`] for a tensor without matrices. The outcome: [`Error::NotFinite`], also where R
    /// overflows; Q and R are NaN then.
    pub fn forward(self, encoder: &mut Encoder) -> Result<Outcome<Qr>> {
        let op = "qr";
        let a = Matrices::of(op, "A", self.a)?;
        let columns = if self.full { a.rows } else { a.rows.min(a.columns) };
        let status = Status::new(encoder, op, a.count, Fault::Nothing)?;
        let whole = a.copy(encoder, [a.rows, a.columns], false)?;
        let work = Matrices { tensor: &whole, ..a };
        let q = Reflections::of(encoder, work)?.columns(encoder, a, columns)?;
        let r =
            if columns < a.rows { work.copy(encoder, [columns, a.columns], false)? } else { whole };
        // What is not finite in A is not finite in R: reflections spread it over the columns.
        status.scan(encoder, &r, true)?;
        status.guard(encoder, &[&q, &r], Qr { q: q.clone(), r: r.clone() })
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`qr`](super::qr()) for one matrix `m × n`, in `f64` and rounded at the end.
    /// With `full`, Q is `m × m` and R `m × n`.
    ///
    /// # Errors
    /// [`Error::Length`] if `a` is not `m × n`; else as [`qr`](super::qr()).
    pub fn qr(a: &[f32], m: usize, n: usize, full: bool) -> Result<Qr<Vec<f32>>> {
        let columns = if full { m } else { m.min(n) };
        let (mut r, mut q) = (HostMatrix::new(a, m, n)?, HostMatrix::identity(m, columns));
        let reflections = reflect_cpu(&mut r, m, &mut HostMatrix::identity(0, 0));
        reflections.iter().rev().for_each(|(v, tau)| apply_cpu(v, *tau, &mut q, 0));
        let r = r.corner(columns, n);
        if r.iter().all(|v| v.is_finite()) {
            Ok(Qr { q: q.corner(m, columns), r })
        } else {
            Err(Error::NotFinite { op: "qr", matrix: 0 })
        }
    }
}
