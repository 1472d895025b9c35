//! triangular_solve: A·x = b for triangular A, by substitution in blocks (Golub and Van Loan,
//! Matrix Computations, 4th edition, 3.1).

use crate::{
    error::{Error, Result},
    gpu::{
        encoder::Encoder,
        recording::{Extent, product},
        tensor::Tensor,
    },
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    ops::linalg::{
        matrices::{BLOCK, COPY_MATRICES, HostMatrix, Matrices},
        outcome::{Fault, NOT_FINITE, Outcome, Status},
    },
    params, wgsl,
};

params! { struct CheckParams { matrices: u32, n: u32, a_matrix: u32, tolerance: f32 } }
params! {
    struct SolveParams {
        groups: u32, n: u32, columns: u32, tiles: u32, a_matrix: u32, backward: u32, transposed: u32, unit: u32,
    }
}

static CHECK_DIAGONAL: Kernel = Kernel::trusted(
    "check_diagonal",
    CheckParams::FIELDS,
    &[read("a", F32), read_write("status", U32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "linalg/tree_max", "linalg/check_diagonal"])
        .workgroup_size([256, 1, 1])
        .tile([1, 1, 1])
        .constants(&[("NOT_FINITE", NOT_FINITE)])
        .workgroup_bytes(1024)],
)
.flat();

static TRIANGULAR_SOLVE: Kernel = Kernel::trusted(
    "triangular_solve",
    SolveParams::FIELDS,
    &[read("a", F32), read_write("x", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "linalg/triangular_solve"])
        .workgroup_size([256, 1, 1])
        .tile([1, 1, 1])
        .constants(&[("BLOCK", BLOCK as u32)])
        .workgroup_bytes(8448)],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&COPY_MATRICES, &CHECK_DIAGONAL, &TRIANGULAR_SOLVE];

/// Which triangle of a matrix there is, and how it is used. What lies in the other triangle is not
/// read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Triangle {
    upper: bool,
    transposed: bool,
    unit: bool,
}

impl Triangle {
    /// The diagonal and what is below it.
    pub const LOWER: Self = Self { upper: false, transposed: false, unit: false };
    /// The diagonal and what is above it.
    pub const UPPER: Self = Self { upper: true, ..Self::LOWER };

    /// Its transpose: Aᵀ·x = b.
    pub const fn transposed(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    /// With ones on the diagonal; what the matrix has there is not used.
    pub const fn unit_diagonal(self) -> Self {
        Self { unit: true, ..self }
    }

    pub(super) fn is_upper(self) -> bool {
        self.upper
    }

    pub(super) fn is_transposed(self) -> bool {
        self.transposed
    }

    pub(super) fn has_unit_diagonal(self) -> bool {
        self.unit
    }
}

/// What [`triangular_solve`] returns.
#[derive(Clone, Copy, Debug)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct TriangularSolve<'a> {
    pub(super) a: &'a Tensor<f32>,
    pub(super) b: &'a Tensor<f32>,
    pub(super) triangle: Triangle,
}

/// x `[.., n, r]` with A·x = b for r right-hand sides b `[.., n, r]` and triangular A `[.., n, n]`.
///
/// ```
/// # fn main() -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::{Context, linalg::{self, Triangle}};
///
/// let context = pollster::block_on(Context::new())?;
/// let l = context.upload(&[2.0f32, 0.0, 1.0, 2.0], [2, 2])?;
/// let b = context.upload(&[8.0f32, 14.0], [2, 1])?;
/// let mut encoder = context.encoder("L·Lᵀ·x = b");
/// let (y, _) = linalg::triangular_solve(&l, &b, Triangle::LOWER).forward(&mut encoder)?.unchecked();
/// let x = linalg::triangular_solve(&l, &y, Triangle::LOWER.transposed()).forward(&mut encoder)?;
/// encoder.submit()?;
/// println!("{:?}", pollster::block_on(pollster::block_on(x.check())?.read())?); // [0.75, 2.5]
/// # Ok(())
/// # }
/// ```
pub fn triangular_solve<'a>(
    a: &'a Tensor<f32>,
    b: &'a Tensor<f32>,
    triangle: Triangle,
) -> TriangularSolve<'a> {
    TriangularSolve { a, b, triangle }
}

impl TriangularSolve<'_> {
    /// Records the op.
    ///
    /// # Errors
    /// [`Error::Shape`] if A is not square, or b has other rows or leading dimensions. The outcome:
    /// [`Error::Singular`] at the first zero on the diagonal; [`Error::NotFinite`], also where the
    /// solution overflows; x is NaN then.
    pub fn forward(self, encoder: &mut Encoder) -> Result<Outcome<Tensor<f32>>> {
        let Self { a, b, triangle } = self;
        let op = "triangular_solve";
        let a = Matrices::square(op, "A", a)?;
        let b = a.right_hand_sides(op, b)?;
        let status = Status::new(encoder, op, a.count, Fault::Singular)?;
        // Ones on the diagonal need no check.
        check_diagonal(encoder, a, if triangle.unit { 0 } else { a.columns }, 0.0, &status)?;
        let x = b.copy(encoder, [b.rows, b.columns], false)?;
        substitute(encoder, a, &x, triangle)?;
        status.scan(encoder, &x, false)?;
        status.guard(encoder, &[&x], x.clone())
    }
}

/// Records the status of triangular matrices, the upper `n` rows of each of `a`: the first column
/// with an element on the diagonal that is at most `tolerance` of the column's norm, which is for
/// upper triangles.
pub(super) fn check_diagonal(
    encoder: &mut Encoder,
    a: Matrices<'_>,
    n: usize,
    tolerance: f32,
    status: &Status,
) -> Result<()> {
    let params = CheckParams {
        matrices: a.count as u32,
        n: n as u32,
        a_matrix: (a.rows * a.columns) as u32,
        tolerance,
    };
    encoder.dispatch(&CHECK_DIAGONAL, &params, &[a.tensor, status.words()], [a.count, 1, 1])
}

/// Records substitution in place: x `[.., n, r]` holds the right-hand sides. The triangle is in the
/// upper n rows of each matrix of `a` `[.., m, n]`.
pub(super) fn substitute(
    encoder: &mut Encoder,
    a: Matrices<'_>,
    x: &Tensor<f32>,
    triangle: Triangle,
) -> Result<()> {
    let Triangle { upper, transposed, unit } = triangle;
    let Matrices { count, rows: n, columns, .. } = Matrices::of("triangular_solve", "x", x)?;
    let tiles = columns.div_ceil(BLOCK);
    let params = SolveParams {
        groups: (count * tiles) as u32,
        n: n as u32,
        columns: columns as u32,
        tiles: tiles as u32,
        a_matrix: (a.rows * a.columns) as u32,
        backward: (upper != transposed).into(),
        transposed: transposed.into(),
        unit: unit.into(),
    };
    encoder.dispatch(
        &TRIANGULAR_SOLVE,
        &params,
        &[a.tensor, x],
        Extent::with_work([count * tiles, 1, 1], product(&[count, n, n, columns])),
    )
}

/// [`substitute`] in `f64`.
pub(super) fn substitute_cpu(
    op: &'static str,
    a: &HostMatrix,
    x: &mut HostMatrix,
    n: usize,
    triangle: Triangle,
) -> Result<()> {
    let Triangle { upper, transposed, unit } = triangle;
    let of_a = |i: usize, j: usize| if transposed { a[(j, i)] } else { a[(i, j)] };
    let infinite = |v: &f64| !(*v as f32).is_finite();
    if (0..n).any(|j| !unit && infinite(&a[(j, j)])) {
        return Err(Error::NotFinite { op, matrix: 0 });
    }
    if let Some(column) = (0..n).find(|&j| !unit && a[(j, j)] == 0.0) {
        return Err(Error::Singular { op, matrix: 0, column: column + 1 });
    }
    for step in 0..n {
        let backward = upper != transposed;
        let (i, known) = if backward { (n - 1 - step, n - step..n) } else { (step, 0..step) };
        for c in 0..x.columns {
            let rest = x[(i, c)] - known.clone().map(|k| of_a(i, k) * x[(k, c)]).sum::<f64>();
            x[(i, c)] = if unit { rest } else { rest / of_a(i, i) };
        }
    }
    if x.numbers[..n * x.columns].iter().any(infinite) {
        Err(Error::NotFinite { op, matrix: 0 })
    } else {
        Ok(())
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`triangular_solve`](super::triangular_solve()) for one matrix `n × n` and right-hand sides `b` `[n, r]`, in `f64` and rounded at
    /// the end.
    ///
    /// # Errors
    /// [`Error::Length`] if `a` is not `n × n`, or `b` not n rows; else as [`triangular_solve`](super::triangular_solve()).
    pub fn triangular_solve(
        a: &[f32],
        b: &[f32],
        n: usize,
        triangle: Triangle,
    ) -> Result<Vec<f32>> {
        let columns = b.len() / n.max(1);
        let (a, mut x) = (HostMatrix::new(a, n, n)?, HostMatrix::new(b, n, columns)?);
        substitute_cpu("triangular_solve", &a, &mut x, n, triangle)?;
        Ok(x.corner(n, columns))
    }
}
