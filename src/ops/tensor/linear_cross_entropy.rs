//! linear_cross_entropy: [`cross_entropy`](super::cross_entropy()) of the logits x·Wᵀ, which exist
//! a chunk of the vocabulary at a time. ("Fused linear cross entropy" in Liger Kernel, Hsu et al.
//! 2024, arXiv:2410.10989, which cuts the rows; "Cut Your Losses in Large-Vocabulary Language
//! Models", Wijmans et al. 2024, arXiv:2411.09009.)

use super::{
    cross_entropy::{CrossEntropyOptions, check_smoothing, cross_entropy_cpu},
    matmul::{Side, matmul_into},
    softmax::statistics_cpu,
};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Part, Source},
    },
    ops::reduce::{by_rows, lanes, rows_extent},
    params,
    shape::Shape,
    wgsl,
};

params! { struct CopyParams { length: u32, x_first: u32, y_first: u32, add: u32 } }
params! {
    struct Params {
        rows: u32, columns: u32, lanes: u32, first: u32, vocabulary: u32, last: u32, ignores: u32, ignored: u32, add: u32, smoothing: f32,
    }
}

const WIDE_X: Part = Part::new("alias X", "alias X = f32;\n");
const WIDE_Y: Part = Part::new("alias Y", "alias Y = f32;\n");

static WIDEN: Kernel = copying(
    "linear_cross_entropy_widen",
    &[read("x", Float("X")), read_write("y", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", WIDE_Y, "tensor/linear_cross_entropy_copy"])],
);
static NARROW: Kernel = copying(
    "linear_cross_entropy_narrow",
    &[read("x", F32), read_write("y", Float("Y"))],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", WIDE_X, "tensor/linear_cross_entropy_copy"])],
);

const fn copying(
    name: &'static str,
    bindings: &'static [Binding],
    sources: &'static [Source],
) -> Kernel {
    Kernel::trusted(name, CopyParams::FIELDS, bindings, sources)
        .entry("linear_cross_entropy_copy")
        .flat()
}

static LINEAR_CROSS_ENTROPY: Kernel = Kernel::trusted(
    "linear_cross_entropy",
    Params::FIELDS,
    &[
        read("logits", F32),
        read("targets", U32),
        read_write("running", F32),
        read_write("loss", F32),
        read_write("lse", F32),
    ],
    &[by_rows(
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "shared/exp",
            "shared/log",
            "shared/softmax",
            "shared/lanes",
            "tensor/linear_cross_entropy"
        ]),
        4,
    )],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&WIDEN, &NARROW, &LINEAR_CROSS_ENTROPY];

/// The most bytes that the logits and the weights of a chunk take together in
/// [`linear_cross_entropy`], unless the caller says how long a chunk is, or one column of them is
/// more.
pub const LINEAR_CROSS_ENTROPY_BYTES: usize = 64 << 20;

/// How [`linear_cross_entropy`] computes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LinearCrossEntropyOptions {
    /// What the loss leaves out or softens.
    pub loss: CrossEntropyOptions,
    /// Columns of logits (rows of W) that exist at a time; unless given, as many as
    /// [`LINEAR_CROSS_ENTROPY_BYTES`] hold.
    pub chunk: Option<usize>,
}

impl LinearCrossEntropyOptions {
    /// So many columns of logits exist at a time.
    #[must_use]
    pub fn chunk(self, columns: usize) -> Self {
        Self { chunk: Some(columns), ..self }
    }
}

impl From<CrossEntropyOptions> for LinearCrossEntropyOptions {
    fn from(loss: CrossEntropyOptions) -> Self {
        Self { loss, chunk: None }
    }
}

/// What makes logits, `Linear<&Tensor<X>, &Tensor<W>>`; the gradients for it,
/// `Linear<Tensor<X>, Tensor<W>>`; or where these go to, `Linear<Out<X>, Out<W>>`.
#[derive(Clone, Copy, Debug)]
pub struct Linear<X, W> {
    /// Rows, one for each target: `[.., k]`.
    pub x: X,
    /// The weights of the output layer, `[vocabulary, k]`.
    pub w: W,
}

/// What [`linear_cross_entropy`] gives.
#[derive(Clone, Copy, Debug)]
pub struct LinearLoss<T> {
    /// The loss of every row, `[rows]`.
    pub loss: T,
    /// ln Σ e^logit of every row, `[rows]`, for the gradients.
    pub lse: T,
}

/// The sizes of a problem, checked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Problem {
    pub rows: usize,
    pub k: usize,
    pub vocabulary: usize,
    /// Columns of a chunk.
    pub chunk: usize,
}

impl Problem {
    pub fn of<X, W>(
        op: &'static str,
        Linear { x, w }: Linear<&Tensor<X>, &Tensor<W>>,
        by_rows: &[(&'static str, Shape)],
        options: LinearCrossEntropyOptions,
    ) -> Result<Self> {
        let (rows, k) = x.shape().as_matrix();
        let vocabulary = match *w.shape().dims() {
            [vocabulary, columns] if columns == k => vocabulary,
            _ => {
                return Err(Error::Shape {
                    op,
                    what: "w",
                    expected: format!("[vocabulary, {k}]"),
                    found: w.shape(),
                });
            }
        };
        if let Some(&(what, found)) = by_rows.iter().find(|(_, shape)| shape.dims() != [rows]) {
            return Err(Error::Shape { op, what, expected: format!("[{rows}]"), found });
        }
        check_smoothing(op, options.loss.smoothing)?;
        if options.chunk == Some(0) {
            return Err(Error::Invalid { op, what: "chunks of 0 columns".into() });
        }
        Ok(Self { rows, k, vocabulary, chunk: chunk(rows, k, vocabulary, options.chunk) })
    }

    /// First column and columns of each chunk; of no columns, there is one chunk.
    pub fn chunks(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.vocabulary.max(1))
            .step_by(self.chunk)
            .map(move |first| (first, self.chunk.min(self.vocabulary - first)))
    }
}

/// Columns of a chunk, at least one: whole tiles of a product where there is room for them.
fn chunk(rows: usize, k: usize, vocabulary: usize, wanted: Option<usize>) -> usize {
    let most = LINEAR_CROSS_ENTROPY_BYTES / 4 / rows.saturating_add(k).max(1);
    wanted.unwrap_or(if most < 64 { most } else { most / 64 * 64 }).min(vocabulary).max(1)
}

/// Records as many numbers of `x` as `y` has, from the `first` on, in `f32`.
fn widen<X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    first: usize,
    y: &Tensor<f32>,
) -> Result<()> {
    let params = CopyParams { length: y.len() as u32, x_first: first as u32, y_first: 0, add: 0 };
    encoder.dispatch(&WIDEN, &params, &[x, y], [y.len(), 1, 1])
}

/// Records the numbers of `x` in those of `y` from the `first` on.
pub(super) fn narrow<Y: Float>(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    y: Out<'_, Y>,
    first: usize,
) -> Result<()> {
    let params = CopyParams {
        length: x.len() as u32,
        x_first: 0,
        y_first: first as u32,
        add: y.adds().into(),
    };
    encoder.dispatch(&NARROW, &params, &[x, y.tensor()], [x.len(), 1, 1])
}

/// Rows as a matrix of `f32`.
pub(super) fn wide<X: Float>(
    encoder: &mut Encoder,
    x: &Tensor<X>,
    problem: Problem,
) -> Result<Tensor<f32>> {
    let y = Tensor::uninit(encoder.context(), [problem.rows, problem.k])?;
    widen(encoder, x, 0, &y)?;
    Ok(y)
}

/// The buffers of a chunk: its rows of W, and its columns of the logits.
pub(super) struct Chunk {
    pub w: Tensor<f32>,
    pub logits: Tensor<f32>,
}

impl Chunk {
    pub fn new(encoder: &Encoder, Problem { rows, k, chunk, .. }: Problem) -> Result<Self> {
        let context = encoder.context();
        Ok(Self {
            w: Tensor::uninit(context, [chunk, k])?,
            logits: Tensor::uninit(context, [rows, chunk])?,
        })
    }

    /// Records the logits of `columns` columns from `first` on. Gives the parts of the buffers that
    /// these take.
    pub fn fill<W: Float>(
        &self,
        encoder: &mut Encoder,
        x: &Tensor<f32>,
        w: &Tensor<W>,
        (first, columns): (usize, usize),
    ) -> Result<Self> {
        let (rows, k) = x.shape().as_matrix();
        let part = Self {
            w: self.w.beginning([columns, k])?,
            logits: self.logits.beginning([rows, columns])?,
        };
        widen(encoder, w, first * k, &part.w)?;
        matmul_into(encoder, x, Side::transposed(&part.w), &part.logits)?;
        Ok(part)
    }
}

/// The loss of every row of the logits x·Wᵀ, `x` being `[.., k]` and `w` `[vocabulary, k]`, with
/// `lse` for the gradients: in nats, as [`cross_entropy`](super::cross_entropy()) has it, with the
/// same options and the same answer to targets that are ignored or no column. Products are in
/// `f32`, and so are the logits. They exist a chunk of columns at a time, so that beside its
/// results this takes 4·(c·(rows + k) + rows·(k + 4)) bytes for chunks of c columns. The order of
/// sums follows from the shapes and c, so a device gives the same bits every time.
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, tensor::{self, Linear, LinearCrossEntropyOptions}};
/// # fn f(encoder: &mut Encoder, x: &Tensor<f32>, w: &Tensor<f32>, targets: &Tensor<u32>, dloss: &Tensor<f32>) -> Result<()> {
/// let (head, options) = (Linear { x, w }, LinearCrossEntropyOptions::default());
/// let made = tensor::linear_cross_entropy(encoder, head, targets, options)?;
/// let gradients = tensor::linear_cross_entropy_backward(encoder, head, targets, options, &made.lse, dloss)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`linear_cross_entropy_into`].
pub fn linear_cross_entropy<X: Float, W: Float>(
    encoder: &mut Encoder,
    head: Linear<&Tensor<X>, &Tensor<W>>,
    targets: &Tensor<u32>,
    options: LinearCrossEntropyOptions,
) -> Result<LinearLoss<Tensor<f32>>> {
    let (context, rows) = (encoder.context(), head.x.shape().as_matrix().0);
    let made = LinearLoss {
        loss: Tensor::uninit(context, [rows])?,
        lse: Tensor::uninit(context, [rows])?,
    };
    linear_cross_entropy_into(encoder, head, targets, options, Out::set(&made.loss), &made.lse)?;
    Ok(made)
}

/// [`linear_cross_entropy`] into tensors of the caller; `lse` is overwritten.
///
/// # Errors
/// [`Error::Shape`] if `w` is not `[vocabulary, k]`, or `targets` or an output is not one for each
/// row; [`Error::Invalid`] for a smoothing that is not from 0 to 1, or chunks of 0 columns.
pub fn linear_cross_entropy_into<'y, X: Float, W: Float>(
    encoder: &mut Encoder,
    head: Linear<&Tensor<X>, &Tensor<W>>,
    targets: &Tensor<u32>,
    options: LinearCrossEntropyOptions,
    loss: impl Into<Out<'y, f32>>,
    lse: &Tensor<f32>,
) -> Result<()> {
    let (op, loss) = ("linear_cross_entropy", loss.into());
    let by_rows =
        [("targets", targets.shape()), ("the loss", loss.tensor().shape()), ("lse", lse.shape())];
    let problem = Problem::of(op, head, &by_rows, options)?;
    let running = Tensor::<f32>::uninit(encoder.context(), [problem.rows, 4])?;
    let (x, chunk) = (wide(encoder, head.x, problem)?, Chunk::new(encoder, problem)?);
    for (first, columns) in problem.chunks() {
        let logits = chunk.fill(encoder, &x, head.w, (first, columns))?.logits;
        let params = Params {
            rows: problem.rows as u32,
            columns: columns as u32,
            lanes: lanes(columns) as u32,
            first: first as u32,
            vocabulary: problem.vocabulary as u32,
            last: (first + columns == problem.vocabulary).into(),
            ignores: options.loss.ignore.is_some().into(),
            ignored: options.loss.ignore.unwrap_or_default(),
            add: loss.adds().into(),
            smoothing: options.loss.smoothing,
        };
        let extent = rows_extent(problem.rows, columns);
        encoder.dispatch(
            &LINEAR_CROSS_ENTROPY,
            &params,
            &[&logits, targets, &running, loss.tensor(), lse],
            extent,
        )?;
    }
    Ok(())
}

/// The logits of every row, its target with them.
pub(super) fn rows_cpu<'a>(
    head: Linear<&'a [f32], &'a [f32]>,
    k: usize,
    targets: &'a [u32],
) -> Result<impl Iterator<Item = (Vec<f32>, u32)> + use<'a>> {
    let vocabulary = head.w.len().checked_div(k).unwrap_or(0);
    for (slice, rows) in [(head.x, targets.len()), (head.w, vocabulary)] {
        if k == 0 || rows.checked_mul(k) != Some(slice.len()) {
            return Err(Error::Length { shape: [rows, k].into(), found: slice.len() });
        }
    }
    let logit = |x: &[f32], w: &[f32]| x.iter().zip(w).fold(0f32, |sum, (x, w)| x.mul_add(*w, sum));
    let logits = move |x: &'a [f32]| head.w.chunks_exact(k).map(|w| logit(x, w)).collect();
    Ok(head.x.chunks_exact(k).map(logits).zip(targets.iter().copied()))
}

/// The CPU twin of [`linear_cross_entropy`], for rows of `k` numbers: within a few units in the
/// last place of the logits.
///
/// # Errors
/// [`Error::Length`] if `x` is not a row for each target, `w` not whole rows, or `k` is 0.
pub fn linear_cross_entropy_cpu(
    head: Linear<&[f32], &[f32]>,
    k: usize,
    targets: &[u32],
    options: CrossEntropyOptions,
) -> Result<LinearLoss<Vec<f32>>> {
    let of_row = |(logits, target): (Vec<f32>, u32)| {
        let (largest, sum) = statistics_cpu(&logits);
        (cross_entropy_cpu(&logits, target, options), (f64::from(largest) + sum.ln()) as f32)
    };
    let (loss, lse) = rows_cpu(head, k, targets)?.map(of_row).unzip();
    Ok(LinearLoss { loss, lse })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_stay_below_their_bytes() {
        let of = |rows: usize, k: usize, vocabulary: usize| chunk(rows, k, vocabulary, None);
        assert_eq!(of(1, 1, 300), 300);
        assert_eq!(of(0, 0, 0), 1);
        assert_eq!(of(8192, 2560, 128_256), 1536);
        assert_eq!(of(usize::MAX / 2, 1, 7), 1);
        assert_eq!(chunk(8192, 2560, 128_256, Some(5)), 5);
        assert_eq!(chunk(8, 8, 3, Some(5)), 3);
        for (rows, k) in [(100, 100), (70_000, 4096), (262_000, 144), (1, 16_000_000)] {
            let bytes = |chunk: usize| 4 * chunk * (rows + k);
            let chunk = of(rows, k, 1_000_000);
            assert!(
                bytes(chunk) <= LINEAR_CROSS_ENTROPY_BYTES
                    && bytes(chunk + 64) > LINEAR_CROSS_ENTROPY_BYTES,
                "{rows} {k}: {chunk}"
            );
        }
        let chunks = |vocabulary, chunk| {
            Problem { rows: 1, k: 1, vocabulary, chunk }.chunks().collect::<Vec<_>>()
        };
        assert_eq!(chunks(7, 3), [(0, 3), (3, 3), (6, 1)]);
        assert_eq!(chunks(6, 3), [(0, 3), (3, 3)]);
        assert_eq!(chunks(0, 1), [(0, 0)]);
    }
}
