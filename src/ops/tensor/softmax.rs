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
        forward::{backward, forward},
        frames::Operand,
        reduce::{HELD, Ways, alone, by_rows, held, lanes, rows_extent},
    },
    params,
    shape::Shape,
    wgsl,
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

/// A softmax along the last dimension: what [`softmax`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct Softmax<'a, T> {
    x: &'a Tensor<T>,
    causal: bool,
    mask: Option<&'a Tensor<u32>>,
}

/// e^x / Σ e^x along the last dimension. Logits of -infinity get 0; a row that has a NaN, an
/// infinity or nothing but -infinity gets NaNs, unless a compiler takes all floats for finite (as
/// Metal's does for WGSL). By the crate's own exponential; sums in `f32`.
///
/// The gradient is dx = y·(dy - Σ y·dy), of the output `y` alone.
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, tensor};
/// # fn f(encoder: &mut Encoder, scores: &Tensor<f32>, positions: &Tensor<f32>, lengths: &Tensor<f32>) -> Result<()> {
/// let shares = tensor::softmax(scores).forward(encoder)?;
/// let causal = tensor::softmax(scores).causal().forward(encoder)?;
/// // Scores [batch, heads, queries, keys] of several lengths [batch, 1, 1, 1]; positions [keys] are 0, 1, ..
/// let inside = tensor::less(positions, lengths).forward(encoder)?;
/// let padded = tensor::softmax(scores).mask(&inside).forward(encoder)?;
/// # Ok(())
/// # }
/// ```
pub fn softmax<T: Float>(x: &Tensor<T>) -> Softmax<'_, T> {
    Softmax { x, causal: false, mask: None }
}

forward!(impl['a, T: Float] Softmax<'a, T> => T);
backward!(impl['a, T: Float] Softmax<'a, T> => T; y: T, dy: T);

impl<'a, T: Float> Softmax<'a, T> {
    /// Adds a causal mask, for scores `[.., n, m]` of n queries and m keys: the last query sees all
    /// keys, and each before it one less. Where a key is not seen, y is 0.
    pub fn causal(self) -> Self {
        Self { causal: true, ..self }
    }

    /// Takes only elements for which `mask`, broadcast to the shape of `x`, is not 0. For others y
    /// is 0, whatever `x` has there. For a mask that is added to scores, [`add`](super::add) it to
    /// `x`.
    pub fn mask(self, mask: &'a Tensor<u32>) -> Self {
        Self { mask: Some(mask), ..self }
    }

    fn shape(&self) -> Result<Shape> {
        Ok(self.x.shape())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        let Self { x, causal, mask } = self;
        let op = "softmax";
        let mut params = Params::new(op, x, y)?;
        if causal {
            let &[.., queries, keys] = x.shape().dims() else {
                let expected = "[.., queries, keys]".to_owned();
                return Err(Error::Shape { op, what: "x", expected, found: x.shape() });
            };
            let beyond = keys as i32 - queries as i32;
            params = Params { queries: queries as u32, beyond, ..params };
        }
        let Some(mask) = mask else { return params.record(encoder, x, y) };
        let [(_, m3), (n2, m2), (n1, m1), (_, m0)] =
            Operand::broadcast(op, "mask", mask, x.shape())?.strides(x.shape());
        params = Params { n1, n2, m0, m1, m2, m3, ..params };
        let (rows, columns) = x.shape().as_matrix();
        encoder.dispatch(
            &SOFTMAX_MASKED,
            &params,
            &[x, y.tensor(), mask],
            rows_extent(rows, columns),
        )
    }

    #[cfg(feature = "train")]
    fn gradient(
        self,
        encoder: &mut Encoder,
        y: &Tensor<T>,
        dy: &Tensor<T>,
        dx: Out<'_, T>,
    ) -> Result<()> {
        gradient(encoder, "softmax_backward", y, dy, false, dx)
    }
}

/// A logarithm of a softmax: what [`log_softmax`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct LogSoftmax<'a, T> {
    x: &'a Tensor<T>,
}

/// ln softmax(x) = x - ln Σ e^x along the last dimension, which keeps its digits where softmax is
/// nearly 0 or 1. The gradient is dx = dy - e^y·Σ dy, of the output `y` alone.
pub fn log_softmax<T: Float>(x: &Tensor<T>) -> LogSoftmax<'_, T> {
    LogSoftmax { x }
}

forward!(impl['a, T: Float] LogSoftmax<'a, T> => T);
backward!(impl['a, T: Float] LogSoftmax<'a, T> => T; y: T, dy: T);

impl<T: Float> LogSoftmax<'_, T> {
    fn shape(&self) -> Result<Shape> {
        Ok(self.x.shape())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        let params = Params { logarithm: 1, ..Params::new("log_softmax", self.x, y)? };
        params.record(encoder, self.x, y)
    }

    #[cfg(feature = "train")]
    fn gradient(
        self,
        encoder: &mut Encoder,
        y: &Tensor<T>,
        dy: &Tensor<T>,
        dx: Out<'_, T>,
    ) -> Result<()> {
        gradient(encoder, "log_softmax_backward", y, dy, true, dx)
    }
}

impl Params {
    /// A softmax of whole rows.
    fn new<T: Float>(op: &'static str, x: &Tensor<T>, y: Out<'_, T>) -> Result<Self> {
        y.check_shape(op, x.shape())?;
        let (rows, columns) = x.shape().as_matrix();
        Ok(Self {
            rows: rows as u32,
            columns: columns as u32,
            lanes: lanes(columns) as u32,
            queries: 0,
            beyond: 0,
            logarithm: 0,
            add: y.adds().into(),
            n1: 1,
            n2: 1,
            m0: 0,
            m1: 0,
            m2: 0,
            m3: 0,
        })
    }

    /// Records a softmax without a mask tensor.
    fn record<T: Float>(self, encoder: &mut Encoder, x: &Tensor<T>, y: Out<'_, T>) -> Result<()> {
        let (rows, columns) = x.shape().as_matrix();
        let ways = Ways { shared: &SOFTMAX, alone: Some(&SOFTMAX_ALONE) };
        let (kernel, extent) = ways.choose(encoder, rows, || rows_extent(rows, columns));
        encoder.dispatch(kernel, &self, &[x, y.tensor()], extent)
    }
}

fn gradient<T: Float>(
    encoder: &mut Encoder,
    op: &'static str,
    y: &Tensor<T>,
    dy: &Tensor<T>,
    logarithm: bool,
    dx: Out<'_, T>,
) -> Result<()> {
    Operand::same(op, "dy", dy, y.shape())?;
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

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    /// The largest of a row, and Σ e^(x - largest) in `f64`.
    pub(crate) fn statistics(row: &[f32]) -> (f32, f64) {
        let largest = row.iter().copied().fold(f32::MIN, f32::max);
        (largest, row.iter().map(|&v| f64::from(v - largest).exp()).sum())
    }

    /// CPU reference of [`softmax`](fn@crate::tensor::softmax) for one row, or for the part of it
    /// that a mask leaves: within a few units in the last place.
    pub fn softmax(row: &[f32]) -> Vec<f32> {
        let (largest, sum) = statistics(row);
        row.iter().map(|&v| (f64::from(v - largest).exp() / sum) as f32).collect()
    }

    /// CPU reference of [`log_softmax`](fn@crate::tensor::log_softmax) for one row, as close.
    pub fn log_softmax(row: &[f32]) -> Vec<f32> {
        let (largest, sum) = statistics(row);
        row.iter().map(|&v| (f64::from(v - largest) - sum.ln()) as f32).collect()
    }

    /// CPU reference of the gradient of [`softmax`](fn@crate::tensor::softmax) for one row, as
    /// close.
    #[cfg(feature = "train")]
    pub fn softmax_backward(y: &[f32], dy: &[f32]) -> Vec<f32> {
        let sum =
            y.iter().zip(dy).map(|(&y, &dy)| f64::from(y) * f64::from(dy)).sum::<f64>() as f32;
        y.iter().zip(dy).map(|(y, dy)| y * (dy - sum)).collect()
    }

    /// CPU reference of the gradient of [`log_softmax`](fn@crate::tensor::log_softmax) for one row,
    /// as close.
    #[cfg(feature = "train")]
    pub fn log_softmax_backward(y: &[f32], dy: &[f32]) -> Vec<f32> {
        let sum = dy.iter().map(|&dy| f64::from(dy)).sum::<f64>() as f32;
        y.iter().zip(dy).map(|(y, dy)| dy - y.exp() * sum).collect()
    }
}
