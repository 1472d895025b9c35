//! softmax: y = e^x / Σ e^x along rows, plain, causal or with a mask; log_softmax: its logarithm;
//! and their gradients. A row is read twice, in one kernel: its maximum and sum come in one pass
//! (Milakov and Gimelshein 2018, arXiv:1805.02867).

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    msl,
    ops::{
        frames::Operand,
        reduce::{HELD, Ways, alone, by_rows, held, lanes, rows_extent},
    },
    params, wgsl,
};

params! {
    /// From `n1` on for a mask: the middle dimensions of x as four, and strides.
    struct Params {
        rows: u32, columns: u32, lanes: u32, queries: u32, beyond: i32, logarithm: u32, add: u32,
        n1: u32, n2: u32, m0: u32, m1: u32, m2: u32, m3: u32,
    }
}
params! { struct BackwardParams { rows: u32, columns: u32, lanes: u32, logarithm: u32, add: u32 } }

const BINDINGS: &[Binding] = &[read("x", Float("X")), read_write("y", Float("X"))];

static SOFTMAX: Kernel = Kernel::trusted(
    "softmax",
    Params::FIELDS,
    BINDINGS,
    &[
        by_rows(
            Source::wgsl(wgsl![
                "shared/ids",
                "shared/flat",
                "shared/exp",
                "shared/log",
                "shared/softmax",
                "shared/lanes",
                "shared/row_shared",
                "tensor/mask_none",
                "tensor/softmax"
            ]),
            2,
        ),
        by_rows(
            Source::msl(msl![
                "shared/prelude",
                "shared/exp",
                "shared/log",
                "shared/softmax",
                "shared/lanes",
                "tensor/softmax"
            ]),
            2,
        ),
    ],
)
.flat();
static SOFTMAX_ALONE: Kernel = Kernel::trusted(
    "softmax_alone",
    Params::FIELDS,
    BINDINGS,
    &[alone(Source::wgsl(wgsl![
        "shared/ids",
        "shared/flat",
        "shared/exp",
        "shared/log",
        "shared/softmax",
        "shared/row_alone",
        "tensor/mask_none",
        "tensor/softmax"
    ]))],
)
.entry("softmax")
.flat();
static SOFTMAX_MASKED: Kernel = Kernel::trusted(
    "softmax_masked",
    Params::FIELDS,
    &[read("x", Float("X")), read_write("y", Float("X")), read("mask", U32)],
    &[by_rows(
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "shared/exp",
            "shared/log",
            "shared/softmax",
            "shared/lanes",
            "shared/row_shared",
            "tensor/mask",
            "tensor/softmax"
        ]),
        2,
    )],
)
.entry("softmax")
.flat();
const BACKWARD: &[Binding] =
    &[read("y", Float("X")), read("dy", Float("X")), read_write("dx", Float("X"))];
const BACKWARD_WGSL: Source = by_rows(
    Source::wgsl(wgsl![
        "shared/ids",
        "shared/flat",
        "shared/exp",
        "frames/reduce_sum",
        "shared/lanes",
        "shared/held",
        "tensor/softmax_backward"
    ]),
    1,
);
static SOFTMAX_BACKWARD: Kernel = Kernel::trusted(
    "softmax_backward",
    BackwardParams::FIELDS,
    BACKWARD,
    &[
        BACKWARD_WGSL.constants(&[("HELD", 1)]),
        by_rows(
            Source::msl(msl![
                "shared/prelude",
                "shared/exp",
                "frames/reduce_sum",
                "shared/lanes",
                "tensor/softmax_backward"
            ]),
            1,
        ),
    ],
)
.flat();
static SOFTMAX_BACKWARD_HELD: Kernel = Kernel::trusted(
    "softmax_backward_held",
    BackwardParams::FIELDS,
    BACKWARD,
    &[BACKWARD_WGSL.constants(&[("HELD", HELD)])],
)
.entry("softmax_backward")
.flat();

pub(super) const KERNELS: &[&Kernel] =
    &[&SOFTMAX, &SOFTMAX_ALONE, &SOFTMAX_MASKED, &SOFTMAX_BACKWARD, &SOFTMAX_BACKWARD_HELD];

/// Which softmax.
#[derive(Clone, Copy)]
enum Form<'a> {
    Plain,
    Causal,
    Masked(&'a Tensor<u32>),
    Logarithm,
}

/// e^x / Σ e^x along the last dimension. Logits of -infinity have no share; a row that has a NaN,
/// an infinity or nothing but -infinity has NaNs, unless a compiler takes all floats for finite (as
/// Metal's does for WGSL). By the crate's own exponential; sums in `f32`.
///
/// # Errors
/// What [`Encoder::dispatch`] reports.
pub fn softmax<T: Float>(encoder: &mut Encoder, x: &Tensor<T>) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), x.shape())?;
    softmax_into(encoder, x, &y)?;
    Ok(y)
}

/// [`softmax`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`] if it has another shape.
pub fn softmax_into<'y, T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    y: impl Into<Out<'y, T>>,
) -> Result<()> {
    record(encoder, "softmax", x, Form::Plain, y.into())
}

/// [`softmax`] with a causal mask, for scores `[.., n, m]` of n queries with m keys: the last query
/// sees all keys, and each before it one less. Of what is not seen, the share is 0; where a query
/// sees nothing (of n > m), all are. Its gradient is [`softmax_backward`].
///
/// # Errors
/// [`Error::Shape`] for a tensor of less than two dimensions.
pub fn causal_softmax<T: Float>(encoder: &mut Encoder, x: &Tensor<T>) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), x.shape())?;
    causal_softmax_into(encoder, x, &y)?;
    Ok(y)
}

/// [`causal_softmax`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`] if it has another shape; as [`causal_softmax`].
pub fn causal_softmax_into<'y, T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    y: impl Into<Out<'y, T>>,
) -> Result<()> {
    record(encoder, "causal_softmax", x, Form::Causal, y.into())
}

/// [`softmax`] of what `mask` has a number other than 0 for; it is broadcast to the shape of `x`,
/// as in [`add`](super::add). Of what is hidden, the share is 0, whatever `x` has there; of a row
/// that is hidden, all are. Its gradient is [`softmax_backward`]. A mask that is added to scores is
/// an addition before [`softmax`].
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, tensor};
/// # fn f(encoder: &mut Encoder, scores: &Tensor<f32>, positions: &Tensor<f32>, lengths: &Tensor<f32>) -> Result<()> {
/// // Scores [batch, heads, queries, keys] of texts of several lengths [batch, 1, 1, 1]; positions [keys] are 0, 1, ..
/// let inside = tensor::less(positions, lengths).forward(encoder)?;
/// let shares = tensor::masked_softmax(encoder, scores, &inside)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`masked_softmax_into`].
pub fn masked_softmax<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    mask: &Tensor<u32>,
) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), x.shape())?;
    masked_softmax_into(encoder, x, mask, &y)?;
    Ok(y)
}

/// [`masked_softmax`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`] if it has another shape, or the mask does not broadcast to that.
pub fn masked_softmax_into<'y, T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    mask: &Tensor<u32>,
    y: impl Into<Out<'y, T>>,
) -> Result<()> {
    record(encoder, "masked_softmax", x, Form::Masked(mask), y.into())
}

/// ln softmax(x) = x - ln Σ e^x, which keeps its digits where softmax is nearly 0 or 1.
///
/// # Errors
/// As [`softmax`].
pub fn log_softmax<T: Float>(encoder: &mut Encoder, x: &Tensor<T>) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), x.shape())?;
    log_softmax_into(encoder, x, &y)?;
    Ok(y)
}

/// [`log_softmax`] into a tensor of the caller.
///
/// # Errors
/// As [`softmax_into`].
pub fn log_softmax_into<'y, T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    y: impl Into<Out<'y, T>>,
) -> Result<()> {
    record(encoder, "log_softmax", x, Form::Logarithm, y.into())
}

fn record<T: Float>(
    encoder: &mut Encoder,
    op: &'static str,
    x: &Tensor<T>,
    form: Form<'_>,
    y: Out<'_, T>,
) -> Result<()> {
    y.check_shape(op, x.shape())?;
    let (rows, columns) = x.shape().as_matrix();
    let queries = match (form, x.shape().dims()) {
        (Form::Causal, [.., queries, _]) => *queries,
        (Form::Causal, _) => {
            return Err(Error::Shape {
                op,
                what: "x",
                expected: "[.., queries, keys]".to_owned(),
                found: x.shape(),
            });
        }
        _ => 0,
    };
    let mut params = Params {
        rows: rows as u32,
        columns: columns as u32,
        lanes: lanes(columns) as u32,
        queries: queries as u32,
        beyond: columns as i32 - queries as i32,
        logarithm: matches!(form, Form::Logarithm).into(),
        add: y.adds().into(),
        n1: 1,
        n2: 1,
        m0: 0,
        m1: 0,
        m2: 0,
        m3: 0,
    };
    if let Form::Masked(mask) = form {
        let [(_, m3), (n2, m2), (n1, m1), (_, m0)] =
            Operand::broadcast(op, "mask", mask, x.shape())?.strides(x.shape());
        params = Params { n1, n2, m0, m1, m2, m3, ..params };
        return encoder.dispatch(
            &SOFTMAX_MASKED,
            &params,
            &[x, y.tensor(), mask],
            rows_extent(rows, columns),
        );
    }
    let ways = Ways { shared: &SOFTMAX, alone: Some(&SOFTMAX_ALONE) };
    let (kernel, extent) = ways.choose(encoder, rows, || rows_extent(rows, columns));
    encoder.dispatch(kernel, &params, &[x, y.tensor()], extent)
}

/// The gradient of [`softmax`], [`causal_softmax`] or [`masked_softmax`], which gave `y`: dx =
/// y·(dy - Σ y·dy).
///
/// # Errors
/// As [`softmax_backward_into`].
pub fn softmax_backward<T: Float>(
    encoder: &mut Encoder,
    y: &Tensor<T>,
    dy: &Tensor<T>,
) -> Result<Tensor<T>> {
    let dx = Tensor::uninit(encoder.context(), y.shape())?;
    softmax_backward_into(encoder, y, dy, &dx)?;
    Ok(dx)
}

/// [`softmax_backward`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Shape`] if `dy` or the output has another shape than `y`.
pub fn softmax_backward_into<'y, T: Float>(
    encoder: &mut Encoder,
    y: &Tensor<T>,
    dy: &Tensor<T>,
    dx: impl Into<Out<'y, T>>,
) -> Result<()> {
    record_backward(encoder, "softmax_backward", y, dy, false, dx.into())
}

/// The gradient of [`log_softmax`], which gave `y`: dx = dy - e^y·Σ dy.
///
/// # Errors
/// As [`softmax_backward_into`].
pub fn log_softmax_backward<T: Float>(
    encoder: &mut Encoder,
    y: &Tensor<T>,
    dy: &Tensor<T>,
) -> Result<Tensor<T>> {
    let dx = Tensor::uninit(encoder.context(), y.shape())?;
    log_softmax_backward_into(encoder, y, dy, &dx)?;
    Ok(dx)
}

/// [`log_softmax_backward`] into a tensor of the caller.
///
/// # Errors
/// As [`softmax_backward_into`].
pub fn log_softmax_backward_into<'y, T: Float>(
    encoder: &mut Encoder,
    y: &Tensor<T>,
    dy: &Tensor<T>,
    dx: impl Into<Out<'y, T>>,
) -> Result<()> {
    record_backward(encoder, "log_softmax_backward", y, dy, true, dx.into())
}

fn record_backward<T: Float>(
    encoder: &mut Encoder,
    op: &'static str,
    y: &Tensor<T>,
    dy: &Tensor<T>,
    logarithm: bool,
    dx: Out<'_, T>,
) -> Result<()> {
    if dy.shape() != y.shape() {
        return Err(Error::Shape {
            op,
            what: "dy",
            expected: y.shape().to_string(),
            found: dy.shape(),
        });
    }
    dx.check_shape(op, y.shape())?;
    let (rows, columns) = y.shape().as_matrix();
    let params = BackwardParams {
        rows: rows as u32,
        columns: columns as u32,
        lanes: lanes(columns) as u32,
        logarithm: logarithm.into(),
        add: dx.adds().into(),
    };
    encoder.dispatch(
        held(encoder, columns, &SOFTMAX_BACKWARD, &SOFTMAX_BACKWARD_HELD),
        &params,
        &[y, dy, dx.tensor()],
        rows_extent(rows, columns),
    )
}

/// The largest of a row, and Σ e^(x - largest) in `f64`.
pub(super) fn statistics_cpu(row: &[f32]) -> (f32, f64) {
    let largest = row.iter().copied().fold(f32::MIN, f32::max);
    (largest, row.iter().map(|&v| f64::from(v - largest).exp()).sum())
}

/// The CPU twin of [`softmax`] for one row, or for what a query sees of it: within a few units in
/// the last place.
pub fn softmax_cpu(row: &[f32]) -> Vec<f32> {
    let (largest, sum) = statistics_cpu(row);
    row.iter().map(|&v| (f64::from(v - largest).exp() / sum) as f32).collect()
}

/// The CPU twin of [`log_softmax`] for one row, as close.
pub fn log_softmax_cpu(row: &[f32]) -> Vec<f32> {
    let (largest, sum) = statistics_cpu(row);
    row.iter().map(|&v| (f64::from(v - largest) - sum.ln()) as f32).collect()
}

/// The CPU twin of [`softmax_backward`] for one row, as close.
pub fn softmax_backward_cpu(y: &[f32], dy: &[f32]) -> Vec<f32> {
    let sum = y.iter().zip(dy).map(|(&y, &dy)| f64::from(y) * f64::from(dy)).sum::<f64>() as f32;
    y.iter().zip(dy).map(|(y, dy)| y * (dy - sum)).collect()
}

/// The CPU twin of [`log_softmax_backward`] for one row, as close.
pub fn log_softmax_backward_cpu(y: &[f32], dy: &[f32]) -> Vec<f32> {
    let sum = dy.iter().map(|&dy| f64::from(dy)).sum::<f64>() as f32;
    y.iter().zip(dy).map(|(y, dy)| dy - y.exp() * sum).collect()
}
