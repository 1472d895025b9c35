//! cross_entropy: loss = ln Σ e^x - x_target for rows of logits, with label smoothing ε (Szegedy et
//! al. 2015, arXiv:1512.00567): (1 - ε)·(ln Σ e^x - x_target) + ε·(ln Σ e^x - mean x). Backward: dx
//! = dloss·(softmax(x) - (1 - ε)·[i = target] - ε / n).

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{
        encoder::Encoder,
        out::Out,
        tensor::{Bind, Tensor},
    },
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    msl,
    ops::{
        forward::{backward, forward},
        frames::Operand,
        reduce::{by_rows, lanes, rows_extent},
    },
    params,
    shape::Shape,
    wgsl,
};

params! { struct Params { rows: u32, columns: u32, lanes: u32, ignores: u32, ignored: u32, add: u32, smoothing: f32 } }

static CROSS_ENTROPY: Kernel = Kernel::trusted(
    "cross_entropy",
    Params::FIELDS,
    &[read("logits", Float("X")), read("targets", U32), read_write("loss", F32)],
    &[
        by_rows(
            Source::wgsl(wgsl![
                "shared/ids",
                "shared/flat",
                "shared/exp",
                "shared/log",
                "shared/softmax",
                "shared/lanes",
                "tensor/cross_entropy"
            ]),
            4,
        ),
        by_rows(
            Source::msl(msl![
                "shared/prelude",
                "shared/exp",
                "shared/log",
                "shared/softmax",
                "tensor/cross_entropy_row",
                "shared/lanes",
                "tensor/cross_entropy"
            ]),
            4,
        ),
    ],
)
.flat();
static CROSS_ENTROPY_BACKWARD: Kernel = Kernel::trusted(
    "cross_entropy_backward",
    Params::FIELDS,
    &[
        read("logits", Float("X")),
        read("targets", U32),
        read("dloss", F32),
        read_write("dx", Float("X")),
    ],
    &[
        by_rows(
            Source::wgsl(wgsl![
                "shared/ids",
                "shared/flat",
                "shared/exp",
                "shared/softmax",
                "shared/lanes",
                "tensor/cross_entropy_backward"
            ]),
            2,
        ),
        by_rows(
            Source::msl(msl![
                "shared/prelude",
                "shared/exp",
                "shared/softmax",
                "shared/lanes",
                "tensor/cross_entropy_backward"
            ]),
            2,
        ),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&CROSS_ENTROPY, &CROSS_ENTROPY_BACKWARD];

/// What a loss leaves out or softens.
#[derive(Clone, Copy, Default)]
pub(super) struct Options {
    pub ignore: Option<u32>,
    pub smoothing: f32,
}

/// A cross-entropy of rows of logits: what [`cross_entropy`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct CrossEntropy<'a, X> {
    x: &'a Tensor<X>,
    targets: &'a Tensor<u32>,
    options: Options,
}

/// The loss of every row of `logits` `[.., n]` in nats, `[rows]`: -ln of the target's share of the
/// softmax, for `targets` `[rows]`. 0 for ignored rows; NaN for a target that is not below n, which
/// reads nothing out of bounds. A mean over the rows that count is a [`sum`](fn@super::sum), and a
/// division by their number.
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, tensor};
/// # fn f(encoder: &mut Encoder, logits: &Tensor<f32>, targets: &Tensor<u32>, dloss: &Tensor<f32>) -> Result<()> {
/// let op = tensor::cross_entropy(logits, targets).ignore_index(u32::MAX).label_smoothing(0.1);
/// let loss = op.forward(encoder)?;
/// let dlogits = op.backward(encoder, dloss)?;
/// # Ok(())
/// # }
/// ```
pub fn cross_entropy<'a, X: Float>(
    logits: &'a Tensor<X>,
    targets: &'a Tensor<u32>,
) -> CrossEntropy<'a, X> {
    CrossEntropy { x: logits, targets, options: Options::default() }
}

forward!(impl['a, X: Float] CrossEntropy<'a, X> => f32);
backward!(impl['a, X: Float] CrossEntropy<'a, X> => X; dloss: f32);

impl<X: Float> CrossEntropy<'_, X> {
    /// Gives rows with the target `id`, which need not be a column, no loss and no gradient.
    pub fn ignore_index(self, id: u32) -> Self {
        Self { options: Options { ignore: Some(id), ..self.options }, ..self }
    }

    /// Spreads `share`, 0 to 1, of the target over all columns.
    pub fn label_smoothing(self, share: f32) -> Self {
        Self { options: Options { smoothing: share, ..self.options }, ..self }
    }

    fn shape(&self) -> Result<Shape> {
        Ok([self.x.shape().as_matrix().0].into())
    }

    fn record(self, encoder: &mut Encoder, loss: Out<'_, f32>) -> Result<()> {
        let (params, extent) = self.params("cross_entropy", loss.adds())?;
        loss.check_shape("cross_entropy", self.shape()?)?;
        let bound: [&dyn Bind; 3] = [self.x, self.targets, loss.tensor()];
        encoder.dispatch(&CROSS_ENTROPY, &params, &bound, extent)
    }

    fn gradient(self, encoder: &mut Encoder, dloss: &Tensor<f32>, dx: Out<'_, X>) -> Result<()> {
        let op = "cross_entropy_backward";
        let (params, extent) = self.params(op, dx.adds())?;
        Operand::same(op, "dloss", dloss, self.shape()?)?;
        dx.check_shape(op, self.x.shape())?;
        let bound: [&dyn Bind; 4] = [self.x, self.targets, dloss, dx.tensor()];
        encoder.dispatch(&CROSS_ENTROPY_BACKWARD, &params, &bound, extent)
    }

    fn params(self, op: &'static str, add: bool) -> Result<(Params, [usize; 3])> {
        Operand::same(op, "targets", self.targets, self.shape()?)?;
        let Options { ignore, smoothing } = self.options;
        check_smoothing(op, smoothing)?;
        let (rows, columns) = self.x.shape().as_matrix();
        let params = Params {
            rows: rows as u32,
            columns: columns as u32,
            lanes: lanes(columns) as u32,
            ignores: ignore.is_some().into(),
            ignored: ignore.unwrap_or_default(),
            add: add.into(),
            smoothing,
        };
        Ok((params, rows_extent(rows, columns)))
    }
}

/// Checks that it is a share.
pub(super) fn check_smoothing(op: &'static str, smoothing: f32) -> Result<()> {
    if (0.0..=1.0).contains(&smoothing) {
        return Ok(());
    }
    Err(Error::Invalid { op, what: format!("a smoothing of {smoothing}; 0 to 1 are possible") })
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use crate::ops::tensor::softmax::reference::{softmax, statistics};

    /// CPU reference of [`cross_entropy`](fn@crate::tensor::cross_entropy) for one row, with its
    /// ignored index and label smoothing: within a few units in the last place of its logits.
    pub fn cross_entropy(row: &[f32], target: u32, ignore: Option<u32>, smoothing: f32) -> f32 {
        if ignore == Some(target) {
            return 0.0;
        }
        let Some(&logit) = row.get(target as usize) else { return f32::NAN };
        let (largest, sum) = statistics(row);
        let below = |v: f64| f64::from(largest) - v;
        let mean = row.iter().map(|&v| f64::from(v)).sum::<f64>() / row.len() as f64;
        // Without smoothing, a logit of -infinity counts for nothing.
        let spread = if smoothing == 0.0 { 0.0 } else { f64::from(smoothing) * below(mean) };
        (sum.ln() + f64::from(1.0 - smoothing) * below(logit.into()) + spread) as f32
    }

    /// CPU reference of the gradient of [`cross_entropy`](fn@crate::tensor::cross_entropy) for one
    /// row, as close.
    pub fn cross_entropy_backward(
        row: &[f32],
        target: u32,
        ignore: Option<u32>,
        smoothing: f32,
        dloss: f32,
    ) -> Vec<f32> {
        if ignore == Some(target) || target as usize >= row.len() {
            return vec![if ignore == Some(target) { 0.0 } else { f32::NAN }; row.len()];
        }
        let target = |i: u32| {
            (if i == target { 1.0 - smoothing } else { 0.0 }) + smoothing / row.len() as f32
        };
        (0..).zip(softmax(row)).map(|(i, share)| (share - target(i)) * dloss).collect()
    }
}
