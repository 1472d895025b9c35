//! cross_entropy: loss = ln Σ e^x - x_target for rows of logits, with label smoothing ε (Szegedy et
//! al. 2015, arXiv:1512.00567): (1 - ε)·(ln Σ e^x - x_target) + ε·(ln Σ e^x - mean x). Backward: dx
//! = dloss·(softmax(x) - (1 - ε)·[i = target] - ε / n).

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    msl,
    ops::{
        reduce::{by_rows, lanes, rows_extent},
        tensor::softmax::{softmax_cpu, statistics_cpu},
    },
    params, wgsl,
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

/// What [`cross_entropy`] may leave out or soften.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CrossEntropyOptions {
    /// Rows with this target have no loss and no gradient. It need not be a column.
    pub ignore: Option<u32>,
    /// How much of the target is spread over all columns, 0 to 1.
    pub smoothing: f32,
}

impl CrossEntropyOptions {
    /// Rows with the target `id` have no loss and no gradient.
    #[must_use]
    pub fn ignore(self, id: u32) -> Self {
        Self { ignore: Some(id), ..self }
    }

    /// `share` of the target is spread over all columns.
    #[must_use]
    pub fn smoothing(self, share: f32) -> Self {
        Self { smoothing: share, ..self }
    }
}

/// The loss of every row of `logits` `[.., n]` in nats, `[rows]`: -ln of the target's share of the
/// softmax. 0 for ignored rows; NaN for a target that is not below n, which reads nothing out of
/// bounds. A mean over the rows that count is [`sum`](fn@super::sum), and a division by their
/// number.
///
/// # Errors
/// As [`cross_entropy_into`].
pub fn cross_entropy<X: Float>(
    encoder: &mut Encoder,
    logits: &Tensor<X>,
    targets: &Tensor<u32>,
    options: CrossEntropyOptions,
) -> Result<Tensor<f32>> {
    let loss = Tensor::uninit(encoder.context(), [logits.shape().as_matrix().0])?;
    cross_entropy_into(encoder, logits, targets, options, &loss)?;
    Ok(loss)
}

/// [`cross_entropy`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`] if `targets` or the output are not one for each row; [`Error::Invalid`] for a
/// smoothing that is not from 0 to 1.
pub fn cross_entropy_into<'y, X: Float>(
    encoder: &mut Encoder,
    logits: &Tensor<X>,
    targets: &Tensor<u32>,
    options: CrossEntropyOptions,
    loss: impl Into<Out<'y, f32>>,
) -> Result<()> {
    let (op, loss) = ("cross_entropy", loss.into());
    let (params, extent) = params(op, logits, targets, options, loss.adds())?;
    check(op, "the output", logits, loss.tensor())?;
    encoder.dispatch(&CROSS_ENTROPY, &params, &[logits, targets, loss.tensor()], extent)
}

/// The gradient of [`cross_entropy`] at `logits`, where `dloss` `[rows]` is that of the losses.
///
/// # Errors
/// As [`cross_entropy_backward_into`].
pub fn cross_entropy_backward<X: Float>(
    encoder: &mut Encoder,
    logits: &Tensor<X>,
    targets: &Tensor<u32>,
    options: CrossEntropyOptions,
    dloss: &Tensor<f32>,
) -> Result<Tensor<X>> {
    let dx = Tensor::uninit(encoder.context(), logits.shape())?;
    cross_entropy_backward_into(encoder, logits, targets, options, dloss, &dx)?;
    Ok(dx)
}

/// [`cross_entropy_backward`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`] if `dloss` is not one for each row, or the output has another shape than
/// `logits`; else as [`cross_entropy_into`].
pub fn cross_entropy_backward_into<'y, X: Float>(
    encoder: &mut Encoder,
    logits: &Tensor<X>,
    targets: &Tensor<u32>,
    options: CrossEntropyOptions,
    dloss: &Tensor<f32>,
    dx: impl Into<Out<'y, X>>,
) -> Result<()> {
    let (op, dx) = ("cross_entropy_backward", dx.into());
    let (params, extent) = params(op, logits, targets, options, dx.adds())?;
    check(op, "dloss", logits, dloss)?;
    dx.check_shape(op, logits.shape())?;
    encoder.dispatch(
        &CROSS_ENTROPY_BACKWARD,
        &params,
        &[logits, targets, dloss, dx.tensor()],
        extent,
    )
}

/// Is it one for each row?
fn check<X: Float, T>(
    op: &'static str,
    what: &'static str,
    logits: &Tensor<X>,
    found: &Tensor<T>,
) -> Result<()> {
    let (rows, _) = logits.shape().as_matrix();
    if found.shape().dims() == [rows] {
        return Ok(());
    }
    Err(Error::Shape { op, what, expected: format!("[{rows}]"), found: found.shape() })
}

/// Is it a share?
pub(super) fn check_smoothing(op: &'static str, smoothing: f32) -> Result<()> {
    if (0.0..=1.0).contains(&smoothing) {
        return Ok(());
    }
    Err(Error::Invalid { op, what: format!("a smoothing of {smoothing}; 0 to 1 are possible") })
}

fn params<X: Float>(
    op: &'static str,
    logits: &Tensor<X>,
    targets: &Tensor<u32>,
    CrossEntropyOptions { ignore, smoothing }: CrossEntropyOptions,
    add: bool,
) -> Result<(Params, [usize; 3])> {
    check(op, "targets", logits, targets)?;
    check_smoothing(op, smoothing)?;
    let (rows, columns) = logits.shape().as_matrix();
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

/// The CPU twin of [`cross_entropy`] for one row: within a few units in the last place of its
/// logits.
pub fn cross_entropy_cpu(
    row: &[f32],
    target: u32,
    CrossEntropyOptions { ignore, smoothing }: CrossEntropyOptions,
) -> f32 {
    if ignore == Some(target) {
        return 0.0;
    }
    let Some(&logit) = row.get(target as usize) else { return f32::NAN };
    let (largest, sum) = statistics_cpu(row);
    let below = |v: f64| f64::from(largest) - v;
    let mean = row.iter().map(|&v| f64::from(v)).sum::<f64>() / row.len() as f64;
    // Without smoothing, a logit of -infinity counts for nothing.
    let spread = if smoothing == 0.0 { 0.0 } else { f64::from(smoothing) * below(mean) };
    (sum.ln() + f64::from(1.0 - smoothing) * below(logit.into()) + spread) as f32
}

/// The CPU twin of [`cross_entropy_backward`] for one row, as close.
pub fn cross_entropy_backward_cpu(
    row: &[f32],
    target: u32,
    options: CrossEntropyOptions,
    dloss: f32,
) -> Vec<f32> {
    let CrossEntropyOptions { ignore, smoothing } = options;
    if ignore == Some(target) || target as usize >= row.len() {
        return vec![if ignore == Some(target) { 0.0 } else { f32::NAN }; row.len()];
    }
    let wanted =
        |i: u32| (if i == target { 1.0 - smoothing } else { 0.0 }) + smoothing / row.len() as f32;
    (0..).zip(softmax_cpu(row)).map(|(i, share)| (share - wanted(i)) * dloss).collect()
}
