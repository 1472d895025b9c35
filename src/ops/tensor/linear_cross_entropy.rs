//! linear_cross_entropy: [`cross_entropy`](super::cross_entropy()) of the logits x·Wᵀ, which exist
//! a chunk of the vocabulary at a time. ("Fused linear cross entropy" in Liger Kernel, Hsu et al.
//! 2024, arXiv:2410.10989, which cuts the rows; "Cut Your Losses in Large-Vocabulary Language
//! Models", Wijmans et al. 2024, arXiv:2411.09009.)

use super::{
    cross_entropy::{Options, check_smoothing},
    matmul::{Side, matmul},
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
    ops::{
        frames::Operand,
        reduce::{by_rows, lanes, rows_extent},
    },
    params, wgsl,
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

/// The most bytes that the logits and the weights of a chunk take together, unless the caller says
/// how long a chunk is, or one column of them is more.
const CHUNK_BYTES: usize = 64 << 20;

/// A cross-entropy of the logits of an output layer: what [`linear_cross_entropy`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct LinearCrossEntropy<'a, X, W> {
    pub(super) x: &'a Tensor<X>,
    pub(super) w: &'a Tensor<W>,
    pub(super) targets: &'a Tensor<u32>,
    pub(super) options: Options,
    chunk: Option<usize>,
}

/// What [`linear_cross_entropy`] computes.
#[derive(Clone, Copy, Debug)]
pub struct LinearLoss<T> {
    /// The loss of every row, `[rows]`.
    pub loss: T,
    /// ln Σ e^logit of every row, `[rows]`, for the gradients.
    pub lse: T,
}

/// The loss of every row of the logits x·Wᵀ, `x` being `[.., k]`, `w` the weights of the output
/// layer `[vocabulary, k]` and `targets` `[rows]`, with `lse` for the gradients: in nats, as
/// [`cross_entropy`](super::cross_entropy()) has it, with the same options. Products are in `f32`,
/// and so are the logits. They exist a chunk of columns at a time, so that beside its results this
/// takes 4·(c·(rows + k) + rows·(k + 4)) bytes for chunks of c columns. The order of sums follows
/// from the shapes and c, so a device's results are bit-identical every time.
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, tensor};
/// # fn f(encoder: &mut Encoder, x: &Tensor<f32>, w: &Tensor<f32>, targets: &Tensor<u32>, dloss: &Tensor<f32>) -> Result<()> {
/// let op = tensor::linear_cross_entropy(x, w, targets);
/// let made = op.forward(encoder)?;
/// let gradients = op.backward(encoder, &made.lse, dloss)?;
/// # Ok(())
/// # }
/// ```
pub fn linear_cross_entropy<'a, X: Float, W: Float>(
    x: &'a Tensor<X>,
    w: &'a Tensor<W>,
    targets: &'a Tensor<u32>,
) -> LinearCrossEntropy<'a, X, W> {
    LinearCrossEntropy { x, w, targets, options: Options::default(), chunk: None }
}

impl<X: Float, W: Float> LinearCrossEntropy<'_, X, W> {
    /// Gives rows with the target `id`, which need not be a column, no loss and no gradient.
    pub fn ignore_index(self, id: u32) -> Self {
        Self { options: Options { ignore: Some(id), ..self.options }, ..self }
    }

    /// Spreads `share`, 0 to 1, of the target over all columns.
    pub fn label_smoothing(self, share: f32) -> Self {
        Self { options: Options { smoothing: share, ..self.options }, ..self }
    }

    /// Sets how many columns of logits (rows of `w`) exist at a time; by default, as many as take
    /// 64 MiB together with their weights.
    pub fn chunk(self, columns: usize) -> Self {
        Self { chunk: Some(columns), ..self }
    }

    /// Records the losses and returns them, new tensors.
    ///
    /// # Errors
    /// [`Error::Shape`] if `w` is not `[vocabulary, k]`, or `targets` not one for each row;
    /// [`Error::Invalid`] for a smoothing that is not from 0 to 1, or chunks of 0 columns.
    pub fn forward(self, encoder: &mut Encoder) -> Result<LinearLoss<Tensor<f32>>> {
        let (context, rows) = (encoder.context(), self.x.shape().as_matrix().0);
        let made = LinearLoss {
            loss: Tensor::uninit(context, [rows])?,
            lse: Tensor::uninit(context, [rows])?,
        };
        self.forward_into(
            encoder,
            LinearLoss { loss: (&made.loss).into(), lse: (&made.lse).into() },
        )?;
        Ok(made)
    }

    /// Like [`forward`](Self::forward), into tensors of the caller; `lse` is overwritten.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::Shape`] if a tensor is not one for each row.
    pub fn forward_into(
        self,
        encoder: &mut Encoder,
        LinearLoss { loss, lse }: LinearLoss<Out<'_, f32>>,
    ) -> Result<()> {
        let by_rows = [("the loss", loss.tensor()), ("lse", lse.tensor())];
        let problem = self.problem("linear_cross_entropy", by_rows)?;
        let running = Tensor::<f32>::uninit(encoder.context(), [problem.rows, 4])?;
        let (x, chunk) = (wide(encoder, self.x, problem)?, Chunk::new(encoder, problem)?);
        for (first, columns) in problem.chunks() {
            let logits = chunk.fill(encoder, &x, self.w, (first, columns))?.logits;
            let params = Params {
                rows: problem.rows as u32,
                columns: columns as u32,
                lanes: lanes(columns) as u32,
                first: first as u32,
                vocabulary: problem.vocabulary as u32,
                last: (first + columns == problem.vocabulary).into(),
                ignores: self.options.ignore.is_some().into(),
                ignored: self.options.ignore.unwrap_or_default(),
                add: loss.adds().into(),
                smoothing: self.options.smoothing,
            };
            encoder.dispatch(
                &LINEAR_CROSS_ENTROPY,
                &params,
                &[&logits, self.targets, &running, loss.tensor(), lse.tensor()],
                rows_extent(problem.rows, columns),
            )?;
        }
        Ok(())
    }

    /// Checks the sizes; `by_rows` are numbers for each row.
    pub(super) fn problem(
        self,
        op: &'static str,
        by_rows: [(&'static str, &Tensor<f32>); 2],
    ) -> Result<Problem> {
        let (rows, k) = self.x.shape().as_matrix();
        let &[vocabulary, columns] = self.w.shape().dims() else { return Err(self.misfit(op, k)) };
        if columns != k {
            return Err(self.misfit(op, k));
        }
        Operand::same(op, "targets", self.targets, [rows].into())?;
        for (what, tensor) in by_rows {
            Operand::same(op, what, tensor, [rows].into())?;
        }
        check_smoothing(op, self.options.smoothing)?;
        if self.chunk == Some(0) {
            return Err(Error::Invalid { op, what: "chunks of 0 columns".into() });
        }
        Ok(Problem { rows, k, vocabulary, chunk: chunk(rows, k, vocabulary, self.chunk) })
    }

    fn misfit(&self, op: &'static str, k: usize) -> Error {
        let expected = format!("[vocabulary, {k}]");
        Error::Shape { op, what: "w", expected, found: self.w.shape() }
    }
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
    /// First column and columns of each chunk; of no columns, there is one chunk.
    pub fn chunks(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.vocabulary.max(1))
            .step_by(self.chunk)
            .map(move |first| (first, self.chunk.min(self.vocabulary - first)))
    }
}

/// Columns of a chunk, at least one: whole tiles of a product where there is room for them.
pub(super) fn chunk(rows: usize, k: usize, vocabulary: usize, requested: Option<usize>) -> usize {
    let most = CHUNK_BYTES / 4 / rows.saturating_add(k).max(1);
    requested.unwrap_or(if most < 64 { most } else { most / 64 * 64 }).min(vocabulary).max(1)
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
        matmul(x, Side::transposed(&part.w)).forward_into(encoder, &part.logits)?;
        Ok(part)
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;
    use crate::ops::tensor::cross_entropy::reference::cross_entropy;
    use crate::ops::tensor::softmax;

    /// The logits of every row, its target with them.
    pub(crate) fn rows<'a>(
        x: &'a [f32],
        w: &'a [f32],
        k: usize,
        targets: &'a [u32],
    ) -> Result<impl Iterator<Item = (Vec<f32>, u32)> + use<'a>> {
        let vocabulary = w.len().checked_div(k).unwrap_or(0);
        for (slice, rows) in [(x, targets.len()), (w, vocabulary)] {
            if k == 0 || rows.checked_mul(k) != Some(slice.len()) {
                return Err(Error::Length { shape: [rows, k].into(), found: slice.len() });
            }
        }
        let logit =
            |x: &[f32], w: &[f32]| x.iter().zip(w).fold(0f32, |sum, (x, w)| x.mul_add(*w, sum));
        let logits = move |x: &'a [f32]| w.chunks_exact(k).map(|w| logit(x, w)).collect();
        Ok(x.chunks_exact(k).map(logits).zip(targets.iter().copied()))
    }

    /// CPU reference of [`linear_cross_entropy`](fn@crate::tensor::linear_cross_entropy), for rows
    /// of `k` numbers, with an ignored index and label smoothing: within a few units in the last
    /// place of the logits.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not a row for each target, `w` not whole rows, or `k` is 0.
    pub fn linear_cross_entropy(
        x: &[f32],
        w: &[f32],
        k: usize,
        targets: &[u32],
        ignore: Option<u32>,
        smoothing: f32,
    ) -> Result<LinearLoss<Vec<f32>>> {
        let of_row = |(logits, target): (Vec<f32>, u32)| {
            let (largest, sum) = softmax::reference::statistics(&logits);
            let loss = cross_entropy(&logits, target, ignore, smoothing);
            (loss, (f64::from(largest) + sum.ln()) as f32)
        };
        let (loss, lse) = rows(x, w, k, targets)?.map(of_row).unzip();
        Ok(LinearLoss { loss, lse })
    }
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
                bytes(chunk) <= CHUNK_BYTES && bytes(chunk + 64) > CHUNK_BYTES,
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
