//! Householder's QR factorization of batches, for [`qr`](super::qr), `solve`, `least_squares` and
//! `svd`: by panels, whose reflections are joined so that the rest of the matrix is changed by
//! products of matrices (Schreiber and Van Loan 1989; Golub and Van Loan, Matrix Computations, 4th
//! edition, 5.2.3).

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
    ops::linalg::matrices::{BLOCK, HostMatrix, Matrices},
    params, wgsl,
};

params! { struct PanelParams { matrices: u32, m: u32, n: u32, k: u32, first: u32, width: u32, panels: u32 } }
params! {
    struct ApplyParams {
        groups: u32, m: u32, k: u32, first: u32, panels: u32, columns: u32, column0: u32, tiles: u32, transposed: u32,
    }
}

pub static HOUSEHOLDER_PANEL: Kernel = Kernel::trusted(
    "householder_panel",
    PanelParams::FIELDS,
    &[read_write("a", F32), read_write("v", F32), read_write("t", F32)],
    &[Source::wgsl(wgsl![
        "shared/ids",
        "shared/flat",
        "shared/fixed_tree",
        "linalg/tree_max",
        "linalg/householder_panel"
    ])
    .workgroup_size([256, 1, 1])
    .tile([1, 1, 1])
    .constants(&[("BLOCK", BLOCK as u32)])
    .workgroup_bytes(7296)],
)
.flat();

pub static HOUSEHOLDER_APPLY: Kernel = Kernel::trusted(
    "householder_apply",
    ApplyParams::FIELDS,
    &[read("v", F32), read("t", F32), read_write("c", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "linalg/householder_apply"])
        .workgroup_size([256, 1, 1])
        .tile([1, 1, 1])
        .constants(&[("BLOCK", BLOCK as u32)])
        .workgroup_bytes(8320)],
)
.flat();

/// Q of a batch of matrices `m × n`, as the product of k = min(m, n) reflections, joined by panels
/// of [`BLOCK`].
pub struct Reflections {
    count: usize,
    m: usize,
    k: usize,
    v: Tensor<f32>,
    t: Tensor<f32>,
}

impl Reflections {
    /// Records A = Q·R in place: `a` becomes R, `m × n`, with zeros below the diagonal.
    pub fn of(encoder: &mut Encoder, a: Matrices<'_>) -> Result<Self> {
        let Matrices { tensor, count, rows: m, columns: n } = a;
        let (k, context) = (m.min(n), encoder.context());
        let panels = k.div_ceil(BLOCK);
        let edge = k.min(BLOCK);
        let (v, t) = (
            Tensor::uninit(context, [count, m, k])?,
            Tensor::uninit(context, [count, panels, edge, edge])?,
        );
        let reflections = Self { count, m, k, v, t };
        for first in reflections.panels() {
            let width = BLOCK.min(k - first);
            let [matrices, m, n, k, panels] = [count, m, n, k, panels].map(|number| number as u32);
            let params =
                PanelParams { matrices, m, n, k, first: first as u32, width: width as u32, panels };
            let extent = Extent::with_work(
                [count, 1, 1],
                product(&[2, reflections.count, reflections.m, width, width]),
            );
            encoder.dispatch(
                &HOUSEHOLDER_PANEL,
                &params,
                &[tensor, &reflections.v, &reflections.t],
                extent,
            )?;
            reflections.apply_panel(encoder, first, a, first + width, true)?;
        }
        Ok(reflections)
    }

    fn panels(&self) -> impl DoubleEndedIterator<Item = usize> + use<> {
        (0..self.k).step_by(BLOCK)
    }

    /// Records C := Qᵀ·C.
    pub fn apply_transposed(&self, encoder: &mut Encoder, c: Matrices<'_>) -> Result<()> {
        self.panels().try_for_each(|first| self.apply_panel(encoder, first, c, 0, true))
    }

    /// Records C := Q·C.
    pub fn apply(&self, encoder: &mut Encoder, c: Matrices<'_>) -> Result<()> {
        self.panels().rev().try_for_each(|first| self.apply_panel(encoder, first, c, 0, false))
    }

    /// Records the first `columns` columns of Q.
    pub fn columns(
        &self,
        encoder: &mut Encoder,
        of: Matrices<'_>,
        columns: usize,
    ) -> Result<Tensor<f32>> {
        let q = of.identity(encoder, [self.m, columns])?;
        let c = Matrices { tensor: &q, rows: self.m, columns, ..of };
        // From the last panel on, columns before a panel's first are still those of the identity,
        // which it does not change.
        self.panels()
            .rev()
            .try_for_each(|first| self.apply_panel(encoder, first, c, first, false))?;
        Ok(q)
    }

    fn apply_panel(
        &self,
        encoder: &mut Encoder,
        first: usize,
        c: Matrices<'_>,
        column0: usize,
        transposed: bool,
    ) -> Result<()> {
        let tiles = (c.columns - column0).div_ceil(BLOCK);
        let params = ApplyParams {
            groups: (self.count * tiles) as u32,
            m: self.m as u32,
            k: self.k as u32,
            first: first as u32,
            panels: self.k.div_ceil(BLOCK) as u32,
            columns: c.columns as u32,
            column0: column0 as u32,
            tiles: tiles as u32,
            transposed: transposed.into(),
        };
        let extent = Extent::with_work(
            [self.count * tiles, 1, 1],
            product(&[2, self.count, self.m, c.columns - column0, BLOCK]),
        );
        encoder.dispatch(&HOUSEHOLDER_APPLY, &params, &[&self.v, &self.t, c.tensor], extent)
    }
}

/// For CPU references: `a`, `m × n`, becomes R, and `c`, of m rows, Qᵀ·C. Gives the reflections,
/// each as its v, from its own row on, and τ.
pub fn reflect_cpu(a: &mut HostMatrix, m: usize, c: &mut HostMatrix) -> Vec<(Vec<f64>, f64)> {
    let k = m.min(a.columns);
    let reflect = |j: usize| {
        let mut v: Vec<f64> = (j..m).map(|i| a[(i, j)]).collect();
        // Squares of f32 neither overflow nor vanish in f64.
        let below: f64 = v[1..].iter().map(|x| x * x).sum();
        let (alpha, norm) = (v[0], (v[0] * v[0] + below).sqrt());
        let beta = if alpha >= 0.0 { -norm } else { norm };
        let tau = if below == 0.0 { 0.0 } else { (beta - alpha) / beta };
        v[0] = 1.0;
        v[1..].iter_mut().for_each(|x| *x /= if below == 0.0 { 1.0 } else { alpha - beta });
        apply_cpu(&v, tau, a, j);
        apply_cpu(&v, tau, c, 0);
        (j + 1..m).for_each(|i| a[(i, j)] = 0.0);
        (v, tau)
    };
    (0..k).map(reflect).collect()
}

/// C := (I - τ·v·vᵀ)·C on columns from `column0`; v ends in C's last row.
pub fn apply_cpu(v: &[f64], tau: f64, c: &mut HostMatrix, column0: usize) {
    let first = c.rows.saturating_sub(v.len());
    for column in column0..c.columns {
        let step = tau * v.iter().enumerate().map(|(i, v)| v * c[(first + i, column)]).sum::<f64>();
        v.iter().enumerate().for_each(|(i, v)| c[(first + i, column)] -= step * v);
    }
}
