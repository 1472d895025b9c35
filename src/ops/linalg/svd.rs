//! svd: A = U·Σ·Vᵀ by the one-sided Jacobi method: rotations make vectors orthogonal, whose norms
//! are the singular values then (Hestenes 1958, Inversion of matrices by biorthogonalization;
//! Demmel and Veselić 1992, Jacobi's method is more accurate than QR; by blocks, Golub and Van
//! Loan, Matrix Computations, 4th edition, 8.6.3). What is rotated are the rows of R, where A = Q·R
//! with the columns of A sorted by their norms: that takes few sweeps also where A's own columns
//! would take many (Drmač and Veselić 2008, New fast and accurate Jacobi SVD algorithm).

use crate::{
    error::{Error, Result},
    gpu::{
        encoder::Encoder,
        recording::{Extent, product},
        tensor::{Bind, Tensor},
    },
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    ops::linalg::{
        householder::{Reflections, apply_cpu, reflect_cpu},
        matrices::{BLOCK, HostMatrix, Matrices},
        outcome::{Fault, NOT_FINITE, Outcome, Status},
    },
    params, wgsl,
};

params! { struct BeginParams { matrices: u32, count: u32 } }
params! { struct PermuteParams { length: u32, p: u32, q: u32, a_row: u32, a_column: u32 } }
params! { struct LoadParams { length: u32, p: u32, q: u32 } }
params! { struct RotateParams { groups: u32, q: u32, blocks: u32, round: u32 } }
params! { struct ConvergedParams { matrices: u32, places: u32, sweep: u32, tolerance: f32 } }
params! { struct NormsParams { groups: u32, q: u32, count: u32, x_matrix: u32, x_i: u32, x_j: u32 } }
params! { struct SortParams { length: u32, q: u32 } }
params! { struct GatherParams { length: u32, q: u32, offset: u32 } }
params! { struct SignsParams { length: u32, rows: u32, q: u32, ordered: u32, y_row: u32, y_column: u32 } }

/// A source whose workgroups have work of their own, and not a number per thread.
const fn by_groups(source: Source, workgroup_bytes: u32) -> Source {
    source.workgroup_size([256, 1, 1]).tile([1, 1, 1]).workgroup_bytes(workgroup_bytes)
}

static SVD_BEGIN: Kernel = Kernel::trusted(
    "svd_begin",
    BeginParams::FIELDS,
    &[read("a", F32), read_write("scale", F32), read_write("status", U32)],
    &[by_groups(
        Source::wgsl(wgsl!["shared/ids", "shared/flat", "linalg/tree_max", "linalg/svd_begin"]),
        1024,
    )
    .constants(&[("NOT_FINITE", NOT_FINITE)])],
)
.flat();

static SVD_PERMUTE: Kernel = Kernel::trusted(
    "svd_permute",
    PermuteParams::FIELDS,
    &[read("a", F32), read("order", U32), read("scale", F32), read_write("b", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "linalg/svd_permute"])],
)
.flat();

static SVD_LOAD: Kernel = Kernel::trusted(
    "svd_load",
    LoadParams::FIELDS,
    &[read("r", F32), read_write("rows", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "linalg/svd_load"])],
)
.flat();

static SVD_ROTATE: Kernel = Kernel::trusted(
    "svd_rotate",
    RotateParams::FIELDS,
    &[read("status", U32), read_write("rows", F32), read_write("cosines", F32)],
    &[by_groups(
        Source::wgsl(wgsl!["shared/ids", "shared/flat", "linalg/tree_max", "linalg/svd_rotate"]),
        13_824,
    )
    .constants(&[("BLOCK", BLOCK as u32), ("NOT_FINITE", NOT_FINITE)])],
)
.flat();

static SVD_CONVERGED: Kernel = Kernel::trusted(
    "svd_converged",
    ConvergedParams::FIELDS,
    &[read("cosines", F32), read_write("status", U32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "linalg/svd_converged"])
        .constants(&[("NOT_FINITE", NOT_FINITE)])],
)
.flat();

static SVD_NORMS: Kernel = Kernel::trusted(
    "svd_norms",
    NormsParams::FIELDS,
    &[read("x", F32), read_write("norms", F32)],
    &[by_groups(
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "shared/fixed_tree",
            "linalg/tree_max",
            "linalg/svd_norms"
        ]),
        2048,
    )],
)
.flat();

static SVD_SORT: Kernel = Kernel::trusted(
    "svd_sort",
    SortParams::FIELDS,
    &[read("norms", F32), read("scale", F32), read_write("s", F32), read_write("order", U32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "linalg/svd_sort"])],
)
.flat();

static SVD_GATHER: Kernel = Kernel::trusted(
    "svd_gather",
    GatherParams::FIELDS,
    &[read("rows", F32), read("order", U32), read_write("y", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "linalg/svd_gather"])],
)
.flat();

static SVD_SIGNS: Kernel = Kernel::trusted(
    "svd_signs",
    SignsParams::FIELDS,
    &[read("vectors", F32), read("r", F32), read("order", U32), read_write("y", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "linalg/svd_signs"])],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[
    &SVD_BEGIN,
    &SVD_PERMUTE,
    &SVD_LOAD,
    &SVD_ROTATE,
    &SVD_CONVERGED,
    &SVD_NORMS,
    &SVD_SORT,
    &SVD_GATHER,
    &SVD_SIGNS,
];

/// The factors of A `[.., m, n]`; k = min(m, n).
#[derive(Clone, Debug)]
pub struct Svd<T = Tensor<f32>> {
    /// `[.., m, k]`: the left singular vectors, as columns
    pub u: T,
    /// `[.., k]`: the singular values, descending
    pub s: T,
    /// `[.., k, n]`: the right singular vectors, as rows
    pub vt: T,
}

/// Random matrices take 8 for n = 200, and none that was tried took more than 10.
const SWEEPS: usize = 20;

/// The CPU reference rotates A's own columns, in any order.
const SWEEPS_CPU: usize = 100;

/// The largest cosine between two columns before a sweep that is the last one. The method converges
/// quadratically, so after that sweep only rounding is left, which is some √n·2^-24: this is far
/// above it.
const TOLERANCE: f32 = 2e-5;

/// What [`svd`] returns.
#[derive(Clone, Copy, Debug)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct SvdFactorization<'a> {
    pub(super) a: &'a Tensor<f32>,
    pub(super) sweeps: usize,
}

/// A = U·Σ·Vᵀ in the thin form, for A `[.., m, n]` of any rank. Small singular values are found to
/// within rounding of the largest.
///
/// ```
/// # fn main() -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::{Context, linalg};
///
/// let context = pollster::block_on(Context::new())?;
/// let a = context.upload(&[3.0f32, 0.0, 4.0, 5.0], [2, 2])?;
/// let mut encoder = context.encoder("svd");
/// let factors = linalg::svd(&a).forward(&mut encoder)?;
/// encoder.submit()?;
/// let factors = pollster::block_on(factors.check())?;
/// println!("{:?}", pollster::block_on(factors.s.read())?); // √45 and √5: [6.708, 2.236]
/// # Ok(())
/// # }
/// ```
pub fn svd(a: &Tensor<f32>) -> SvdFactorization<'_> {
    SvdFactorization { a, sweeps: SWEEPS }
}

impl SvdFactorization<'_> {
    /// Sets the largest number of sweeps. All are recorded: matrices that have converged are left
    /// alone by those that follow. If more are needed, the outcome is [`Error::NotConverged`].
    pub fn sweeps(self, sweeps: usize) -> Self {
        Self { sweeps, ..self }
    }

    /// Records the op.
    ///
    /// # Errors
    /// [`Error::Shape`] for a tensor without matrices. The outcome: [`Error::NotConverged`], to which
    /// none of the matrices that were tried leads; [`Error::NotFinite`], also where a singular value
    /// overflows; U, Σ and V are NaN then.
    pub fn forward(self, encoder: &mut Encoder) -> Result<Outcome<Svd>> {
        let Self { a, sweeps } = self;
        let op = "svd";
        let a = Matrices::of(op, "A", a)?;
        let Matrices { count, rows: m, columns: n, .. } = a;
        // Of a wide matrix, the transpose is taken apart: p × q, and its element (i, j) is at i·row +
        // j·column.
        let (p, q, wide) = (m.max(n), m.min(n), m < n);
        let [row, column] = if wide { [1, n] } else { [n, 1] };
        let context = encoder.context().clone();
        let status = Status::new(encoder, op, count, Fault::NotConverged)?;

        let scale = Tensor::<f32>::uninit(&context, [count])?;
        let params = BeginParams { matrices: count as u32, count: (m * n) as u32 };
        encoder.dispatch(
            &SVD_BEGIN,
            &params,
            &[a.tensor, &scale, status.words()],
            [count, 1, 1],
        )?;
        let (_, by_norm) = sort(encoder, a.tensor, &scale, [count, q, p], [p * q, column, row])?;
        let tall = Tensor::<f32>::uninit(&context, a.shape(p, q))?;
        let params = PermuteParams {
            length: tall.len() as u32,
            p: p as u32,
            q: q as u32,
            a_row: row as u32,
            a_column: column as u32,
        };
        encoder.dispatch(
            &SVD_PERMUTE,
            &params,
            &[a.tensor as &dyn Bind, &by_norm, &scale, &tall],
            [tall.len(), 1, 1],
        )?;
        let of_tall = Matrices { tensor: &tall, count, rows: p, columns: q };
        let reflections = Reflections::of(encoder, of_tall)?;

        // Rᵀ·X = W with orthogonal columns, and R = X·Σ·Yᵀ where W = Y·Σ. The rows have those of Wᵀ and
        // of Xᵀ.
        let rows = Tensor::<f32>::uninit(&context, [count, q, 2 * q])?;
        let params = LoadParams { length: rows.len() as u32, p: p as u32, q: q as u32 };
        encoder.dispatch(&SVD_LOAD, &params, &[&tall, &rows], [rows.len(), 1, 1])?;
        sweep(encoder, &rows, [count, q], sweeps, &status)?;
        let (s, order) = sort(encoder, &rows, &scale, [count, q, q], [2 * q * q, 2 * q, 1])?;
        let s = s.reshape(a.tensor.shape().without_last().with_last(q))?;
        let gather = |encoder: &mut Encoder, offset: usize| {
            let y = Tensor::<f32>::uninit(&context, a.shape(q, q))?;
            let params =
                GatherParams { length: y.len() as u32, q: q as u32, offset: offset as u32 };
            encoder.dispatch(
                &SVD_GATHER,
                &params,
                &[&rows as &dyn Bind, &order, &y],
                [y.len(), 1, 1],
            )?;
            Ok::<_, Error>(y)
        };
        // X and W are as orthogonal as rotations left them, and where a singular value is 0, W is not.
        // Reflections make vectors of them that are so to rounding.
        let orthogonal = |encoder: &mut Encoder,
                          of: &Tensor<f32>,
                          length: usize,
                          ordered: bool,
                          [y_row, y_column]: [usize; 2]| {
            let of = Matrices { tensor: of, count, rows: q, columns: q };
            let vectors = Reflections::of(encoder, of)?.columns(encoder, of, q)?;
            let y = Tensor::<f32>::uninit(&context, a.shape(length, q))?;
            let [length, rows, q, y_row, y_column] =
                [y.len(), length, q, y_row, y_column].map(|number| number as u32);
            let params = SignsParams { length, rows, q, ordered: ordered.into(), y_row, y_column };
            encoder.dispatch(
                &SVD_SIGNS,
                &params,
                &[&vectors as &dyn Bind, of.tensor, &by_norm, &y],
                [y.len(), 1, 1],
            )?;
            Ok::<_, Error>(y)
        };
        // Q·X, the left vectors of the tall matrix, and Y, its right ones.
        let (x, w) = (gather(encoder, q)?, gather(encoder, 0)?);
        let left = orthogonal(encoder, &x, p, false, [q, 1])?;
        let of_left = Matrices { tensor: &left, ..of_tall };
        reflections.apply(encoder, of_left)?;
        let right = orthogonal(encoder, &w, q, true, if wide { [q, 1] } else { [1, q] })?;

        let (u, vt) =
            if wide { (right, of_left.copy(encoder, [q, p], true)?) } else { (left, right) };
        status.scan(encoder, &s, false)?;
        status.guard(encoder, &[&u, &s, &vt], Svd { u: u.clone(), s: s.clone(), vt: vt.clone() })
    }
}

/// Records the norms of `q` vectors of `length` numbers in each of `count` matrices, largest first
/// and without their scale, and whose they are. Matrices, vectors and their numbers are as far
/// apart as `strides` say.
fn sort(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    scale: &Tensor<f32>,
    [count, q, length]: [usize; 3],
    strides: [usize; 3],
) -> Result<(Tensor<f32>, Tensor<u32>)> {
    let context = encoder.context();
    let norms = Tensor::<f32>::uninit(context, [count, q])?;
    let (sorted, order) =
        (Tensor::uninit(context, [count, q])?, Tensor::uninit(context, [count, q])?);
    let [x_matrix, x_i, x_j] = strides.map(|stride| stride as u32);
    let params = NormsParams {
        groups: (count * q) as u32,
        q: q as u32,
        count: length as u32,
        x_matrix,
        x_i,
        x_j,
    };
    encoder.dispatch(&SVD_NORMS, &params, &[x, &norms], [count * q, 1, 1])?;
    let bindings: [&dyn Bind; 4] = [&norms, scale, &sorted, &order];
    encoder.dispatch(
        &SVD_SORT,
        &SortParams { length: (count * q) as u32, q: q as u32 },
        &bindings,
        [count * q, 1, 1],
    )?;
    Ok((sorted, order))
}

/// Records sweeps over all pairs of rows, `[count, q, 2·q]`.
fn sweep(
    encoder: &mut Encoder,
    rows: &Tensor<f32>,
    [count, q]: [usize; 2],
    sweeps: usize,
    status: &Status,
) -> Result<()> {
    let blocks = q.div_ceil(BLOCK / 2).next_multiple_of(2).max(2);
    let places = blocks / 2;
    let cosines = Tensor::<f32>::uninit(encoder.context(), [count, places])?;
    // Inner products of a place's rows, of q numbers, and the product of its rotations and its
    // rows, of 2·q.
    let extent =
        Extent::with_work([count * places, 1, 1], product(&[3, count, places, BLOCK, BLOCK, q]));
    for sweep in 1..=sweeps {
        for round in 0..blocks - 1 {
            let [groups, q, blocks, round] =
                [count * places, q, blocks, round].map(|number| number as u32);
            let params = RotateParams { groups, q, blocks, round };
            encoder.dispatch(&SVD_ROTATE, &params, &[status.words(), rows, &cosines], extent)?;
        }
        let params = ConvergedParams {
            matrices: count as u32,
            places: places as u32,
            sweep: sweep as u32,
            tolerance: TOLERANCE,
        };
        encoder.dispatch(&SVD_CONVERGED, &params, &[&cosines, status.words()], [count, 1, 1])?;
    }
    Ok(())
}

/// Rotates each pair of rows once, and gives the largest cosine between the first p numbers of two
/// of them that was met.
fn sweep_cpu(rows: &mut [Vec<f64>], p: usize) -> f64 {
    let norm = rows.iter().map(|row| dot(&row[..p], &row[..p])).fold(0.0, f64::max);
    let mut largest = 0.0;
    for (i, j) in (0..rows.len()).flat_map(|j| (0..j).map(move |i| (i, j))) {
        let (x, y, product) = (
            dot(&rows[i][..p], &rows[i][..p]),
            dot(&rows[j][..p], &rows[j][..p]),
            dot(&rows[i][..p], &rows[j][..p]),
        );
        let cosine = product.abs() / (x * y).sqrt();
        // Of rows that are nothing but rounding, down to zeros, there is no cosine.
        if cosine > f64::EPSILON && (x * y).sqrt() > f64::EPSILON.powi(2) * norm {
            largest = cosine.max(largest);
            let zeta = (y - x) / (2.0 * product);
            let t = zeta.signum() / (zeta.abs() + zeta.hypot(1.0));
            let (cos, sin) = (1.0 / t.hypot(1.0), t / t.hypot(1.0));
            for at in 0..rows[i].len() {
                (rows[i][at], rows[j][at]) =
                    (cos * rows[i][at] - sin * rows[j][at], sin * rows[i][at] + cos * rows[j][at]);
            }
        }
    }
    largest
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`svd`](super::svd()) for one matrix `m × n`, in `f64` and rounded at the end.
    ///
    /// # Errors
    /// [`Error::Length`] if `a` is not `m × n`; else as [`svd`](super::svd()).
    pub fn svd(a: &[f32], m: usize, n: usize) -> Result<Svd<Vec<f32>>> {
        let op = "svd";
        let (a, p, q, wide) = (HostMatrix::new(a, m, n)?, m.max(n), m.min(n), m < n);
        if a.numbers.iter().any(|v| !v.is_finite()) {
            return Err(Error::NotFinite { op, matrix: 0 });
        }
        let of_a = |i: usize, j: usize| if wide { a[(j, i)] } else { a[(i, j)] };
        let one = |equal: bool| f64::from(u8::from(equal));
        // Columns of the tall matrix, and after each a row of the identity, which becomes one of Vᵀ.
        let row =
            |j: usize| (0..p).map(|i| of_a(i, j)).chain((0..q).map(|i| one(i == j))).collect();
        let mut rows: Vec<Vec<f64>> = (0..q).map(row).collect();
        if !(0..SWEEPS_CPU).any(|_| sweep_cpu(&mut rows, p) <= f64::from(f32::EPSILON).powi(2)) {
            return Err(Error::NotConverged { op, matrix: 0, sweeps: SWEEPS_CPU });
        }
        rows.sort_by(|x, y| dot(&y[..p], &y[..p]).total_cmp(&dot(&x[..p], &x[..p])));
        let s: Vec<f32> = rows.iter().map(|row| dot(&row[..p], &row[..p]).sqrt() as f32).collect();
        if s.iter().any(|v| !v.is_finite()) {
            return Err(Error::NotFinite { op, matrix: 0 });
        }
        let mut r = HostMatrix::from_fn([p, q], |i, j| rows[j][i]);
        let mut left = HostMatrix::identity(p, q);
        let reflections = reflect_cpu(&mut r, p, &mut HostMatrix::identity(0, 0));
        reflections.iter().rev().for_each(|(v, tau)| apply_cpu(v, *tau, &mut left, 0));
        (0..p * q).filter(|at| r[(at % q, at % q)] < 0.0).for_each(|at| left.numbers[at] *= -1.0);
        let right = HostMatrix::from_fn([q, q], |i, j| rows[i][p + j]);
        let transposed = |x: &HostMatrix, rows: usize, columns: usize| {
            (0..rows * columns).map(|at| x[(at % columns, at / columns)] as f32).collect()
        };
        Ok(match wide {
            false => Svd { u: left.corner(m, q), s, vt: right.corner(q, n) },
            true => Svd { u: transposed(&right, m, q), s, vt: transposed(&left, q, n) },
        })
    }
}
