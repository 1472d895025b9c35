//! Gradients of solutions and factorizations, made of products and triangular solves (Giles 2008,
//! An extended collection of matrix derivative results for forward and reverse mode algorithmic
//! differentiation; Murray 2016, arXiv:1602.07527, for Cholesky; Walter and Lehmann 2010,
//! arXiv:1009.6112, and Roberts and Roberts 2020, arXiv:2009.10071, for QR).
//!
//! Where the op itself failed, its results are NaN, and so are these.

use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    ops::{
        linalg::{
            cholesky::Cholesky,
            least_squares::LeastSquares,
            matrices::{HostMatrix, Matrices},
            qr::{self, Qr, QrFactorization, qr},
            solve::{self, Solve, solve},
            svd::{Svd, SvdFactorization},
            triangular_solve::{Triangle, TriangularSolve, substitute_cpu, triangular_solve},
        },
        tensor::{
            binary::{add, div, sub},
            matmul::{Side, matmul},
            strided::{concat, slice, transpose},
            unary::{neg, scale},
        },
    },
    params,
    shape::Shape,
    wgsl,
};
use std::{cmp::Ordering, ops::Range};

params! { struct WeighParams { length: u32, n: u32, below: f32, diagonal: f32, above: f32 } }
params! { struct CoreParams { length: u32, k: u32 } }

static WEIGH_TRIANGLES: Kernel = Kernel::trusted(
    "weigh_triangles",
    WeighParams::FIELDS,
    &[read("x", F32), read_write("y", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "linalg/weigh_triangles"])],
)
.flat();

static SVD_CORE: Kernel = Kernel::trusted(
    "svd_core",
    CoreParams::FIELDS,
    &[read("u", F32), read("v", F32), read("s", F32), read("ds", F32), read_write("y", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "linalg/svd_core"])],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&WEIGH_TRIANGLES, &SVD_CORE];

/// What elements below the diagonal, on it and above it are multiplied by.
type Weights = [f32; 3];

/// Of a matrix of which only a triangle is read, less its product.
fn minus_triangle(triangle: Triangle) -> Weights {
    let diagonal = if triangle.has_unit_diagonal() { 0.0 } else { -1.0 };
    if triangle.is_upper() { [0.0, diagonal, -1.0] } else { [-1.0, diagonal, 0.0] }
}

/// The lower triangle with half of the diagonal: with its transpose it is the whole of a symmetric
/// matrix.
const HALF: Weights = [1.0, 0.5, 0.0];

fn weigh(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    [below, diagonal, above]: Weights,
) -> Result<Tensor<f32>> {
    let n = Matrices::square("weigh_triangles", "x", x)?.rows;
    let y = Tensor::uninit(encoder.context(), x.shape())?;
    let params = WeighParams { length: x.len() as u32, n: n as u32, below, diagonal, above };
    encoder.dispatch(&WEIGH_TRIANGLES, &params, &[x, &y], [x.len(), 1, 1])?;
    Ok(y)
}

/// What has the shape of another tensor.
fn same(op: &'static str, what: &'static str, found: &Tensor<f32>, expected: Shape) -> Result<()> {
    if found.shape() == expected {
        return Ok(());
    }
    Err(Error::Shape { op, what, expected: expected.to_string(), found: found.shape() })
}

impl TriangularSolve<'_> {
    /// Records the gradients of the op, which gave `x` `[.., n, r]`: db = A⁻ᵀ·dx, and dA = -db·xᵀ
    /// in the triangle that is read, 0 elsewhere (for Aᵀ·x = b, A⁻¹·dx and -x·dbᵀ).
    ///
    /// # Errors
    /// [`Error::Shape`] as of `forward`, or if `x` and `dx` differ.
    pub fn backward(
        self,
        encoder: &mut Encoder,
        x: &Tensor<f32>,
        dx: &Tensor<f32>,
    ) -> Result<(Tensor<f32>, Tensor<f32>)> {
        let Self { a, triangle, .. } = self;
        same("triangular_solve_backward", "x", x, dx.shape())?;
        let (b, _) = triangular_solve(a, dx, triangle.transposed()).forward(encoder)?.unchecked();
        let [left, right] = if triangle.is_transposed() { [x, &b] } else { [&b, x] };
        let product = matmul(left, Side::transposed(right)).forward(encoder)?;
        Ok((weigh(encoder, &product, minus_triangle(triangle))?, b))
    }
}

impl Solve<'_> {
    /// Records the gradients of the op, which gave `x` `[.., n, r]`: db = A⁻ᵀ·dx and dA = -db·xᵀ.
    ///
    /// ```no_run
    /// # use bitnet_wgpu::{Encoder, Result, Tensor, linalg};
    /// # fn f(encoder: &mut Encoder, a: &Tensor<f32>, b: &Tensor<f32>, dx: &Tensor<f32>) -> Result<()> {
    /// let (x, status) = linalg::solve(a, b).forward(encoder)?.unchecked();
    /// // .. what is made of x has the gradient dx ..
    /// let (da, db) = linalg::solve(a, b).backward(encoder, &x, dx)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] as of `forward`, or if `x` and `dx` differ.
    pub fn backward(
        self,
        encoder: &mut Encoder,
        x: &Tensor<f32>,
        dx: &Tensor<f32>,
    ) -> Result<(Tensor<f32>, Tensor<f32>)> {
        let a = self.a;
        let op = "solve_backward";
        Matrices::square(op, "A", a)?.right_hand_sides(op, dx)?;
        same(op, "x", x, dx.shape())?;
        let turned = transpose(a).forward(encoder)?;
        let (b, _) = solve(&turned, dx).forward(encoder)?.unchecked();
        let product = matmul(&b, Side::transposed(x)).forward(encoder)?;
        Ok((neg(&product).forward(encoder)?, b))
    }
}

impl LeastSquares<'_> {
    /// Records the gradients of A and b, where the op gave `x`
    /// `[.., n, r]`: with u = (AᵀA)⁻¹·dx, db = A·u and dA = (b - A·x)·uᵀ - db·xᵀ. Factors of A are made
    /// again.
    ///
    /// # Errors
    /// [`Error::Shape`] if m < n, or `b`, `x` or `dx` is not of the op.
    pub fn backward(
        self,
        encoder: &mut Encoder,
        x: &Tensor<f32>,
        dx: &Tensor<f32>,
    ) -> Result<(Tensor<f32>, Tensor<f32>)> {
        let Self { a, b } = self;
        let op = "least_squares_backward";
        let of_a = Matrices::of(op, "A", a)?;
        tall(op, "A", of_a)?;
        let sides = of_a.right_hand_sides(op, b)?.columns;
        same(op, "x", x, of_a.shape(of_a.columns, sides))?;
        same(op, "dx", dx, x.shape())?;
        // AᵀA = RᵀR.
        let r = qr(a).forward(encoder)?.unchecked().0.r;
        let (half, _) =
            triangular_solve(&r, dx, Triangle::UPPER.transposed()).forward(encoder)?.unchecked();
        let (u, _) = triangular_solve(&r, &half, Triangle::UPPER).forward(encoder)?.unchecked();
        let (db, ax) = (matmul(a, &u).forward(encoder)?, matmul(a, x).forward(encoder)?);
        let rest = sub(b, &ax).forward(encoder)?;
        let (more, less) = (
            matmul(&rest, Side::transposed(&u)).forward(encoder)?,
            matmul(&db, Side::transposed(x)).forward(encoder)?,
        );
        Ok((sub(&more, &less).forward(encoder)?, db))
    }
}

/// At least as many rows as columns.
fn tall(op: &'static str, what: &'static str, a: Matrices<'_>) -> Result<()> {
    if a.rows >= a.columns {
        return Ok(());
    }
    Err(Error::Shape {
        op,
        what,
        expected: "[.., m, n] with m >= n".into(),
        found: a.tensor.shape(),
    })
}

impl Cholesky<'_> {
    /// Records the gradient of the op, which gave L: dA = (S + Sᵀ) / 2 with S =
    /// L⁻ᵀ·Φ(Lᵀ·dL)·L⁻¹, where Φ keeps the lower triangle and half of the diagonal. It is that of a
    /// symmetric A, both of whose triangles change together. Of `dl` the lower triangle counts.
    ///
    /// # Errors
    /// [`Error::Shape`] if L is not square, or `dl` has another shape.
    pub fn backward(
        self,
        encoder: &mut Encoder,
        l: &Tensor<f32>,
        dl: &Tensor<f32>,
    ) -> Result<Tensor<f32>> {
        let op = "cholesky_backward";
        Matrices::square(op, "L", l)?;
        same(op, "dL", dl, l.shape())?;
        let product = matmul(Side::transposed(l), dl).forward(encoder)?;
        let mut s = weigh(encoder, &product, HALF)?;
        // From the left, and from the left of the transpose.
        for _ in 0..2 {
            let (solved, _) =
                triangular_solve(l, &s, Triangle::LOWER.transposed()).forward(encoder)?.unchecked();
            s = transpose(&solved).forward(encoder)?;
        }
        let turned = transpose(&s).forward(encoder)?;
        let both = add(&s, &turned).forward(encoder)?;
        scale(&both, 0.5).forward(encoder)
    }
}

impl QrFactorization<'_> {
    /// Records the gradient of the op, which gave `factors`: dA = (dQ + Q·C)·R⁻ᵀ, where C is the lower triangle
    /// of M = R·dRᵀ - dQᵀ·Q, and what is below its diagonal once more above it. Of a wide A = \[X Y\],
    /// whose R is \[U V\], this is the gradient of X with U in the place of R and dQ + Q·V·dVᵀ in that
    /// of dQ, and that of Y is Q·dV (Roberts and Roberts 2020, arXiv:2009.10071). As many of the first
    /// columns of A as Q has must be independent; where they are not, there is none, and it is infinite
    /// or NaN. Of the gradient of R (of U) the upper triangle counts.
    ///
    /// # Errors
    /// [`Error::Shape`] for full factors of a tall matrix, or gradients of
    /// other shapes.
    pub fn backward(
        self,
        encoder: &mut Encoder,
        factors: &Qr,
        gradients: &Qr,
    ) -> Result<Tensor<f32>> {
        let op = "qr_backward";
        let (Qr { q, r }, Qr { q: dq, r: dr }) = (factors, gradients);
        let of_q = Matrices::of(op, "Q", q)?;
        tall(op, "Q", of_q)?;
        let (k, columns) = (of_q.columns, Matrices::of(op, "R", r)?.columns);
        let wide = columns > k && of_q.rows == k;
        same(op, "R", r, of_q.shape(k, if wide { columns } else { k }))?;
        same(op, "dQ", dq, q.shape())?;
        same(op, "dR", dr, r.shape())?;
        if !wide {
            return tall_qr_backward(encoder, factors, gradients);
        }
        let last = r.shape().rank() - 1;
        let [u, v] =
            [slice(r, last, 0..k).forward(encoder)?, slice(r, last, k..columns).forward(encoder)?];
        let [du, dv] = [
            slice(dr, last, 0..k).forward(encoder)?,
            slice(dr, last, k..columns).forward(encoder)?,
        ];
        let through = matmul(&v, Side::transposed(&dv)).forward(encoder)?;
        let through = matmul(q, &through).forward(encoder)?;
        let dq = add(dq, &through).forward(encoder)?;
        let dx = tall_qr_backward(encoder, &Qr { q: q.clone(), r: u }, &Qr { q: dq, r: du })?;
        let dy = matmul(q, &dv).forward(encoder)?;
        concat(&[&dx, &dy], last).forward(encoder)
    }
}

/// [`qr_backward`] where R is square.
fn tall_qr_backward(
    encoder: &mut Encoder,
    Qr { q, r }: &Qr,
    gradients: &Qr,
) -> Result<Tensor<f32>> {
    let (of_r, of_q) = (
        matmul(r, Side::transposed(&gradients.r)).forward(encoder)?,
        matmul(Side::transposed(&gradients.q), q).forward(encoder)?,
    );
    let m = sub(&of_r, &of_q).forward(encoder)?;
    let half = weigh(encoder, &m, HALF)?;
    let turned = transpose(&half).forward(encoder)?;
    let c = add(&half, &turned).forward(encoder)?;
    let qc = matmul(q, &c).forward(encoder)?;
    let left = add(&gradients.q, &qc).forward(encoder)?;
    let left = transpose(&left).forward(encoder)?;
    let (solved, _) = triangular_solve(r, &left, Triangle::UPPER).forward(encoder)?.unchecked();
    transpose(&solved).forward(encoder)
}

impl SvdFactorization<'_> {
    /// Records the gradient of the op, which gave `factors`: dA = U·C·Vᵀ + (I - U·Uᵀ)·dU·Σ⁻¹·Vᵀ +
    /// U·Σ⁻¹·dVᵀ·(I - V·Vᵀ), with C of wgsl/linalg/svd_core.wgsl. It exists where singular
    /// values differ and none is 0, and what is made of the factors does not change with signs of
    /// vectors; else it is infinite, NaN or without meaning. That of the singular values alone, where
    /// `gradients.u` and `gradients.vt` are 0, exists wherever they differ.
    ///
    /// # Errors
    /// [`Error::Shape`] for gradients of other shapes than the factors.
    pub fn backward(
        self,
        encoder: &mut Encoder,
        factors: &Svd,
        gradients: &Svd,
    ) -> Result<Tensor<f32>> {
        let op = "svd_backward";
        let Svd { u, s, vt } = factors;
        let (of_u, k) = (Matrices::of(op, "U", u)?, s.shape().as_matrix().1);
        let of_vt = Matrices::of(op, "Vᵀ", vt)?;
        same(op, "U", u, of_u.shape(of_u.rows, k))?;
        same(op, "Vᵀ", vt, of_u.shape(k, of_vt.columns))?;
        same(op, "σ", s, u.shape().without_last().with_last(k))?;
        same(op, "dU", &gradients.u, u.shape())?;
        same(op, "dσ", &gradients.s, s.shape())?;
        same(op, "dVᵀ", &gradients.vt, vt.shape())?;
        let (of_left, of_right) = (
            matmul(Side::transposed(u), &gradients.u).forward(encoder)?,
            matmul(vt, Side::transposed(&gradients.vt)).forward(encoder)?,
        );
        let core = Tensor::uninit(encoder.context(), of_left.shape())?;
        let params = CoreParams { length: core.len() as u32, k: k as u32 };
        encoder.dispatch(
            &SVD_CORE,
            &params,
            &[&of_left, &of_right, s, &gradients.s, &core],
            [core.len(), 1, 1],
        )?;
        // What is between U and Vᵀ, what is beside U, and what is beside Vᵀ.
        let mut left = matmul(u, &core).forward(encoder)?;
        if of_u.rows > k {
            let projected = matmul(u, &of_left).forward(encoder)?;
            let beside = sub(&gradients.u, &projected).forward(encoder)?;
            let beside = div(&beside, &s.reshape(of_u.shape(1, k))?).forward(encoder)?;
            left = add(&left, &beside).forward(encoder)?;
        }
        let da = matmul(&left, vt).forward(encoder)?;
        if of_vt.columns == k {
            return Ok(da);
        }
        let projected = matmul(Side::transposed(&of_right), vt).forward(encoder)?;
        let beside = sub(&gradients.vt, &projected).forward(encoder)?;
        let beside = div(&beside, &s.reshape(of_u.shape(k, 1))?).forward(encoder)?;
        let right = matmul(u, &beside).forward(encoder)?;
        add(&da, &right).forward(encoder)
    }
}

/// A solution and its gradient, of n rows each.
fn sides(x: &[f32], dx: &[f32], n: usize) -> Result<[HostMatrix; 2]> {
    let columns = x.len() / n.max(1);
    Ok([HostMatrix::new(x, n, columns)?, HostMatrix::new(dx, n, columns)?])
}

/// [`weigh`] on the host.
fn weigh_cpu(x: HostMatrix, [below, diagonal, above]: Weights) -> HostMatrix {
    let weight = |i: usize, j: usize| match i.cmp(&j) {
        Ordering::Greater => below,
        Ordering::Equal => diagonal,
        Ordering::Less => above,
    };
    HostMatrix::from_fn([x.rows, x.columns], |i, j| x[(i, j)] * f64::from(weight(i, j)))
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`TriangularSolve::backward`] for one matrix `n × n`, in `f64` and rounded at
    /// the end.
    ///
    /// # Errors
    /// [`Error::Length`] for numbers that are not of such matrices; else as [`triangular_solve`](super::triangular_solve()).
    pub fn triangular_solve_backward(
        a: &[f32],
        x: &[f32],
        dx: &[f32],
        n: usize,
        triangle: Triangle,
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        let (a, [x, mut b]) = (HostMatrix::new(a, n, n)?, sides(x, dx, n)?);
        substitute_cpu("triangular_solve_backward", &a, &mut b, n, triangle.transposed())?;
        let product = if triangle.is_transposed() {
            x.times(&b.transposed())
        } else {
            b.times(&x.transposed())
        };
        Ok((weigh_cpu(product, minus_triangle(triangle)).corner(n, n), b.corner(n, x.columns)))
    }

    /// CPU reference of [`Solve::backward`] for one matrix `n × n`; its solution is rounded before the
    /// product, else it is in `f64`.
    ///
    /// # Errors
    /// [`Error::Length`] for numbers that are not of such matrices; else as [`solve`](super::solve()).
    pub fn solve_backward(
        a: &[f32],
        x: &[f32],
        dx: &[f32],
        n: usize,
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        let (turned, [x, _]) = (HostMatrix::new(a, n, n)?.transposed(), sides(x, dx, n)?);
        let b = solve::reference::solve(&turned.corner(n, n), dx, n)?;
        let product = HostMatrix::new(&b, n, x.columns)?.times(&x.transposed());
        Ok((weigh_cpu(product, [-1.0; 3]).corner(n, n), b))
    }

    /// CPU reference of [`LeastSquares::backward`] for one matrix `m × n`; R is rounded, else it is in
    /// `f64`.
    ///
    /// # Errors
    /// [`Error::Length`] for numbers that are not of such matrices; [`Error::Invalid`] if m < n; else
    /// as [`triangular_solve`](super::triangular_solve()).
    pub fn least_squares_backward(
        a: &[f32],
        b: &[f32],
        x: &[f32],
        dx: &[f32],
        m: usize,
        n: usize,
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        let op = "least_squares_backward";
        if m < n {
            return Err(Error::Invalid {
                op,
                what: format!("{m} rows are fewer than {n} columns"),
            });
        }
        let columns = b.len() / m.max(1);
        let (of_a, b) = (HostMatrix::new(a, m, n)?, HostMatrix::new(b, m, columns)?);
        let (x, mut u) = (HostMatrix::new(x, n, columns)?, HostMatrix::new(dx, n, columns)?);
        let r = HostMatrix::new(&qr::reference::qr(a, m, n, false)?.r, n, n)?;
        substitute_cpu(op, &r, &mut u, n, Triangle::UPPER.transposed())?;
        substitute_cpu(op, &r, &mut u, n, Triangle::UPPER)?;
        let db = of_a.times(&u);
        let (more, less) =
            (b.minus(&of_a.times(&x)).times(&u.transposed()), db.times(&x.transposed()));
        Ok((more.minus(&less).corner(m, n), db.corner(m, columns)))
    }

    /// CPU reference of [`Cholesky::backward`] for one matrix `n × n`, in `f64` and rounded at the end.
    ///
    /// # Errors
    /// [`Error::Length`] for numbers that are not of such matrices; else as [`triangular_solve`](super::triangular_solve()).
    pub fn cholesky_backward(l: &[f32], dl: &[f32], n: usize) -> Result<Vec<f32>> {
        let (l, dl) = (HostMatrix::new(l, n, n)?, HostMatrix::new(dl, n, n)?);
        let mut s = weigh_cpu(l.transposed().times(&dl), HALF);
        for _ in 0..2 {
            substitute_cpu("cholesky_backward", &l, &mut s, n, Triangle::LOWER.transposed())?;
            s = s.transposed();
        }
        Ok(weigh_cpu(s.plus(&s.transposed()), [0.5; 3]).corner(n, n))
    }

    /// CPU reference of [`QrFactorization::backward`] for one matrix `m × n`, in `f64` and rounded at the end.
    ///
    /// # Errors
    /// [`Error::Length`] for numbers that are not of such matrices; else as [`triangular_solve`](super::triangular_solve()).
    pub fn qr_backward(
        factors: &Qr<Vec<f32>>,
        gradients: &Qr<Vec<f32>>,
        m: usize,
        n: usize,
    ) -> Result<Vec<f32>> {
        let k = m.min(n);
        let of = |factors: &Qr<Vec<f32>>| {
            Ok::<_, Error>((HostMatrix::new(&factors.q, m, k)?, HostMatrix::new(&factors.r, k, n)?))
        };
        let ((q, r), (mut dq, dr)) = (of(factors)?, of(gradients)?);
        let columns = |r: &HostMatrix, range: Range<usize>| {
            HostMatrix::from_fn([k, range.len()], |i, j| r[(i, range.start + j)])
        };
        let [u, du] = [&r, &dr].map(|r| columns(r, 0..k));
        let [v, dv] = [&r, &dr].map(|r| columns(r, k..n));
        dq = dq.plus(&q.times(&v.times(&dv.transposed())));
        let half = weigh_cpu(u.times(&du.transposed()).minus(&dq.transposed().times(&q)), HALF);
        let mut left = dq.plus(&q.times(&half.plus(&half.transposed()))).transposed();
        substitute_cpu("qr_backward", &u, &mut left, k, Triangle::UPPER)?;
        let (dx, dy) = (left.transposed(), q.times(&dv));
        Ok(HostMatrix::from_fn([m, n], |i, j| if j < k { dx[(i, j)] } else { dy[(i, j - k)] })
            .corner(m, n))
    }

    /// CPU reference of [`SvdFactorization::backward`] for one matrix `m × n`, in `f64` and rounded at the end.
    ///
    /// # Errors
    /// [`Error::Length`] for numbers that are not of such matrices.
    pub fn svd_backward(
        factors: &Svd<Vec<f32>>,
        gradients: &Svd<Vec<f32>>,
        m: usize,
        n: usize,
    ) -> Result<Vec<f32>> {
        let k = m.min(n);
        let of = |factors: &Svd<Vec<f32>>| {
            let s = HostMatrix::new(&factors.s, 1, k)?.numbers;
            Ok::<_, Error>((
                HostMatrix::new(&factors.u, m, k)?,
                s,
                HostMatrix::new(&factors.vt, k, n)?,
            ))
        };
        let ((u, s, vt), (du, ds, dvt)) = (of(factors)?, of(gradients)?);
        let (of_left, of_right) = (u.transposed().times(&du), vt.times(&dvt.transposed()));
        let core = HostMatrix::from_fn([k, k], |i, j| {
            let both = (of_left[(i, j)] - of_left[(j, i)]) * s[j]
                + s[i] * (of_right[(i, j)] - of_right[(j, i)]);
            if i == j { ds[i] } else { both / (s[j] * s[j] - s[i] * s[i]) }
        });
        let mut left = u.times(&core);
        if m > k {
            let beside = du.minus(&u.times(&of_left));
            left = left.plus(&HostMatrix::from_fn([m, k], |i, j| beside[(i, j)] / s[j]));
        }
        let mut da = left.times(&vt);
        if n > k {
            let beside = dvt.minus(&of_right.transposed().times(&vt));
            da = da.plus(&u.times(&HostMatrix::from_fn([k, n], |i, j| beside[(i, j)] / s[i])));
        }
        Ok(da.corner(m, n))
    }
}
