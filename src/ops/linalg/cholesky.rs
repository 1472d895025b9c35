//! cholesky: A = L·Lᵀ, by blocks of columns, right-looking (Golub and Van Loan, Matrix
//! Computations, 4th edition, 4.2.5).

use crate::{
    error::Result,
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
        matrices::{BLOCK, HostMatrix, Matrices},
        outcome::{Fault, NOT_FINITE, Outcome, Status},
    },
    params, wgsl,
};

params! { struct UpdateParams { groups: u32, n: u32, first: u32, tiles: u32 } }
params! { struct PanelParams { groups: u32, n: u32, first: u32, chunks: u32 } }

static CHOLESKY_UPDATE: Kernel = Kernel::trusted(
    "cholesky_update",
    UpdateParams::FIELDS,
    &[read("a", F32), read_write("l", F32), read_write("diagonal", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "linalg/cholesky_update"])
        .workgroup_size([256, 1, 1])
        .tile([1, 1, 1])
        .constants(&[("BLOCK", BLOCK as u32)])
        .workgroup_bytes(8448)],
)
.flat();

static CHOLESKY_PANEL: Kernel = Kernel::trusted(
    "cholesky_panel",
    PanelParams::FIELDS,
    &[read("diagonal", F32), read_write("l", F32), read_write("status", U32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "shared/finite", "linalg/cholesky_panel"])
        .workgroup_size([256, 1, 1])
        .tile([1, 1, 1])
        .constants(&[("BLOCK", BLOCK as u32), ("NOT_FINITE", NOT_FINITE)])
        .workgroup_bytes(8448)],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&CHOLESKY_UPDATE, &CHOLESKY_PANEL];

/// What [`cholesky`] returns.
#[derive(Clone, Copy, Debug)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct Cholesky<'a> {
    pub(super) a: &'a Tensor<f32>,
}

/// The lower triangular L `[.., n, n]` with positive diagonal for which A = L·Lᵀ, for symmetric
/// positive definite A `[.., n, n]`. Only the lower triangle of A is read; above the diagonal, L
/// has zeros.
///
/// ```
/// # fn main() -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::{Context, linalg};
///
/// let context = pollster::block_on(Context::new())?;
/// let a = context.upload(&[4.0f32, 2.0, 2.0, 5.0], [2, 2])?;
/// let mut encoder = context.encoder("cholesky");
/// let l = linalg::cholesky(&a).forward(&mut encoder)?;
/// encoder.submit()?;
/// let l = pollster::block_on(l.check())?; // an error where A is not positive definite
/// println!("{:?}", pollster::block_on(l.read())?); // [2.0, 0.0, 1.0, 2.0]
/// # Ok(())
/// # }
/// ```
pub fn cholesky(a: &Tensor<f32>) -> Cholesky<'_> {
    Cholesky { a }
}

impl Cholesky<'_> {
    /// Records the op.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if A is not square. The outcome:
    /// [`Error::NotPositiveDefinite`](crate::Error::NotPositiveDefinite) at the first column whose
    /// pivot is not positive, [`Error::NotFinite`](crate::Error::NotFinite); L is NaN then.
    pub fn forward(self, encoder: &mut Encoder) -> Result<Outcome<Tensor<f32>>> {
        let a = self.a;
        let op = "cholesky";
        let Matrices { count, rows: n, .. } = Matrices::square(op, "A", a)?;
        let status = Status::new(encoder, op, count, Fault::NotPositiveDefinite)?;
        let l = Tensor::uninit(encoder.context(), a.shape())?;
        let diagonal =
            Tensor::<f32>::uninit(encoder.context(), [count, n.min(BLOCK), n.min(BLOCK)])?;
        // Where n is 0 there is still a status to be written.
        for first in (0..n.max(1)).step_by(BLOCK) {
            let tiles = (n - first).div_ceil(BLOCK).max(1);
            let groups = count * tiles * tiles;
            let params = UpdateParams {
                groups: groups as u32,
                n: n as u32,
                first: first as u32,
                tiles: tiles as u32,
            };
            encoder.dispatch(
                &CHOLESKY_UPDATE,
                &params,
                &[a, &l, &diagonal],
                Extent::with_work([groups, 1, 1], product(&[groups, BLOCK, BLOCK, first])),
            )?;
            let chunks = (tiles - 1).max(1);
            let params = PanelParams {
                groups: (count * chunks) as u32,
                n: n as u32,
                first: first as u32,
                chunks: chunks as u32,
            };
            encoder.dispatch(
                &CHOLESKY_PANEL,
                &params,
                &[&diagonal, &l, status.words()],
                Extent::with_work(
                    [count * chunks, 1, 1],
                    product(&[count, chunks, BLOCK, BLOCK, BLOCK]),
                ),
            )?;
        }
        status.guard(encoder, &[&l], l.clone())
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`cholesky`](super::cholesky()) for one matrix `n × n`, in `f64` and rounded at the end.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) if `a` is not `n × n`; else as [`cholesky`](super::cholesky()).
    pub fn cholesky(a: &[f32], n: usize) -> Result<Vec<f32>> {
        let (a, mut l) = (HostMatrix::new(a, n, n)?, HostMatrix::from_fn([n, n], |_, _| 0.0));
        for j in 0..n {
            for i in j..n {
                let rest = a[(i, j)] - (0..j).map(|k| l[(i, k)] * l[(j, k)]).sum::<f64>();
                if i == j && (!rest.is_finite() || rest <= 0.0) {
                    let code = if rest.is_finite() { j as u32 + 1 } else { NOT_FINITE };
                    Fault::NotPositiveDefinite.of("cholesky", 0, code)?;
                }
                l[(i, j)] = if i == j { rest.sqrt() } else { rest / l[(j, j)] };
            }
        }
        Ok(l.corner(n, n))
    }
}
