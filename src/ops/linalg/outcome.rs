//! What came of each matrix of a batch. A kernel cannot return an error, so every op writes a word
//! per matrix, which becomes one when it is read.

use crate::{
    error::{Error, Result},
    gpu::{
        encoder::Encoder,
        tensor::{Bind, Tensor},
    },
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    params, wgsl,
};

params! { struct ScanParams { matrices: u32, count: u32, first: u32 } }
params! { struct FillParams { length: u32, count: u32 } }

static SCAN_FINITE: Kernel = Kernel::trusted(
    "scan_finite",
    ScanParams::FIELDS,
    &[read("x", F32), read_write("status", U32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "linalg/tree_max", "linalg/scan_finite"])
        .workgroup_size([256, 1, 1])
        .tile([1, 1, 1])
        .constants(&[("NOT_FINITE", NOT_FINITE)])
        .workgroup_bytes(1024)],
)
.flat();

static FILL_FAILED: Kernel = Kernel::trusted(
    "fill_failed",
    FillParams::FIELDS,
    &[read("status", U32), read_write("y", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "linalg/fill_failed"])],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&SCAN_FINITE, &FILL_FAILED];

/// The status of a matrix that is sound.
pub(super) const FINE: u32 = 0;
/// For texts: [`Status::NOT_FINITE`].
pub(super) const NOT_FINITE: u32 = Status::NOT_FINITE;
/// Before the op has run.
const NOT_RUN: u32 = u32::MAX;

/// What is wrong with a matrix whose status is a small number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    NotPositiveDefinite,
    Singular,
    RankDeficient,
    NotConverged,
    /// Nothing but numbers that are not finite can be wrong.
    Nothing,
}

impl Fault {
    /// The error that a status stands for.
    pub fn of(self, op: &'static str, matrix: usize, code: u32) -> Result<()> {
        let number = code as usize;
        Err(match (code, self) {
            (FINE, _) => return Ok(()),
            (NOT_RUN, _) => Error::Invalid {
                op,
                what: "what was recorded has not run: submit it before its outcome is read".into(),
            },
            (NOT_FINITE, _) | (_, Self::Nothing) => Error::NotFinite { op, matrix },
            (_, Self::NotPositiveDefinite) => {
                Error::NotPositiveDefinite { op, matrix, column: number }
            }
            (_, Self::Singular) => Error::Singular { op, matrix, column: number },
            (_, Self::RankDeficient) => Error::RankDeficient { op, matrix, column: number },
            (_, Self::NotConverged) => Error::NotConverged { op, matrix, sweeps: number },
        })
    }
}

/// A word per matrix: whether its results are sound. It is there when what was recorded has run.
///
/// Results of a matrix that failed are NaN, all of them, and NaN makes the ops after it fail too.
/// So one check at the end of a chain is enough to know that something failed; the check of each op
/// says what.
#[derive(Clone, Debug)]
#[must_use = "some matrices may have failed: `check` tells"]
pub struct Status {
    op: &'static str,
    fault: Fault,
    words: Tensor<u32>,
}

impl Status {
    /// The word of a matrix with numbers that are not finite, or that leads to some. Others, but
    /// for 0, are a column, counted from 1, or a number of sweeps, as the op's error has them.
    pub const NOT_FINITE: u32 = u32::MAX - 1;

    pub(super) fn new(
        encoder: &Encoder,
        op: &'static str,
        matrices: usize,
        fault: Fault,
    ) -> Result<Self> {
        let words = encoder.context().upload(&vec![NOT_RUN; matrices], [matrices])?;
        Ok(Self { op, fault, words })
    }

    /// The words, `[matrices]`, 0 where all is well: for kernels that depend on them.
    pub fn words(&self) -> &Tensor<u32> {
        &self.words
    }

    /// Reads what came of all matrices: the first error, if there is one. The copy is submitted at
    /// once, after all work submitted before; the future can be awaited on any executor, or
    /// dropped.
    ///
    /// # Errors
    /// [`Error::NotPositiveDefinite`], [`Error::Singular`], [`Error::RankDeficient`],
    /// [`Error::NotConverged`] or [`Error::NotFinite`], as the op says; [`Error::Invalid`] if it
    /// has not been submitted; what [`Tensor::read`] reports.
    pub fn check(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let results = self.results();
        async move { results.await?.into_iter().collect() }
    }

    /// Reads what came of each matrix, in their order; else as [`Status::check`].
    ///
    /// # Errors
    /// What [`Tensor::read`] reports.
    pub fn results(&self) -> impl Future<Output = Result<Vec<Result<()>>>> + Send + use<> {
        let (op, fault, words) = (self.op, self.fault, self.words.read());
        async move {
            Ok(words
                .await?
                .into_iter()
                .enumerate()
                .map(|(matrix, word)| fault.of(op, matrix, word))
                .collect())
        }
    }

    /// Records that matrices of `x`, `[.., m, n]`, must be finite; `first` if this is the first
    /// that is written.
    pub(super) fn scan(&self, encoder: &mut Encoder, x: &Tensor<f32>, first: bool) -> Result<()> {
        let matrices = self.words.len();
        let params = ScanParams {
            matrices: matrices as u32,
            count: (x.len() / matrices.max(1)) as u32,
            first: first.into(),
        };
        encoder.dispatch(&SCAN_FINITE, &params, &[x, &self.words], [matrices, 1, 1])
    }

    /// Records NaN for what came of matrices that failed, and gives all results with this status.
    pub(super) fn guard<T>(
        self,
        encoder: &mut Encoder,
        outputs: &[&Tensor<f32>],
        value: T,
    ) -> Result<Outcome<T>> {
        for y in outputs.iter().filter(|y| !y.is_empty()) {
            let params =
                FillParams { length: y.len() as u32, count: (y.len() / self.words.len()) as u32 };
            encoder.dispatch(
                &FILL_FAILED,
                &params,
                &[&self.words as &dyn Bind, *y],
                [y.len(), 1, 1],
            )?;
        }
        Ok(Outcome { value, status: self })
    }
}

/// What an op makes of a batch of matrices, some of which may fail. Nothing is known before it has
/// run, so the results are behind one of two doors: [`check`](Self::check) waits and gives them or
/// an error, [`unchecked`](Self::unchecked) gives them at once, with a [`Status`] for later.
///
/// ```
/// # fn main() -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::{Context, Error, linalg};
///
/// let context = pollster::block_on(Context::new())?;
/// let a = context.upload(&[4.0f32, 2.0, 2.0, 5.0], [2, 2])?;
/// let b = context.upload(&[8.0f32, 14.0], [2, 1])?;
/// let mut encoder = context.encoder("chain");
/// let (x, status) = linalg::solve(&a, &b).forward(&mut encoder)?.unchecked();
/// let (y, _) = linalg::solve(&a, &x).forward(&mut encoder)?.unchecked(); // its failure would be that of `x`
/// encoder.submit()?;
/// pollster::block_on(status.check())?; // one read for the whole chain
/// assert_eq!(pollster::block_on(y.read())?.len(), 2);
///
/// let zero = context.upload(&[0.0f32; 4], [2, 2])?;
/// let mut encoder = context.encoder("singular");
/// let x = linalg::solve(&zero, &b).forward(&mut encoder)?;
/// encoder.submit()?;
/// assert!(matches!(pollster::block_on(x.check()), Err(Error::Singular { matrix: 0, column: 1, .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "some matrices may fail: `check` tells, once the recording is submitted"]
pub struct Outcome<T> {
    value: T,
    status: Status,
}

impl<T> Outcome<T> {
    /// The results, if all matrices are sound. To be called after the recording is submitted; else
    /// as [`Status::check`].
    ///
    /// # Errors
    /// As [`Status::check`].
    pub fn check(self) -> impl Future<Output = Result<T>> + Send + use<T>
    where
        T: Send,
    {
        let (value, checked) = (self.value, self.status.check());
        async move { checked.await.map(|()| value) }
    }

    /// The results as they will be, for ops that are recorded next, and the status, to be checked
    /// when all has run.
    pub fn unchecked(self) -> (T, Status) {
        (self.value, self.status)
    }
}
