//! linear_distillation: a student's loss against a teacher's distribution and a target (Hinton et
//! al. 2015, arXiv:1503.02531). For rows of logits s of the student and t of the teacher, a
//! temperature T and the teacher's share α: (1 - α)·(ln Σ e^s - s_target) + α·T²·Σ p·(ln p - ln q)
//! with p = softmax(t / T) and q = softmax(s / T). Backward: ds = dloss·((1 - α)·(softmax(s) - [i =
//! target]) + α·T·(q - p)). The logits x·Wᵀ exist a chunk of the vocabulary at a time, as in
//! [`linear_cross_entropy`](super::linear_cross_entropy()).

use super::{
    linear_cross_entropy::{Chunk, LinearLoss, Problem, chunk, narrow, wide},
    linear_cross_entropy_backward::LinearGradients,
    matmul::{Side, matmul},
};
use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    ops::{
        frames::Operand,
        reduce::{by_rows, lanes, rows_extent},
    },
    params, wgsl,
};

params! {
    struct Params {
        rows: u32, columns: u32, lanes: u32, first: u32, vocabulary: u32, last: u32, ignores: u32, ignored: u32, temperature: f32, teacher: f32,
    }
}

static LINEAR_DISTILLATION: Kernel = Kernel::trusted(
    "linear_distillation",
    Params::FIELDS,
    &[
        read("logits", F32),
        read("teacher_logits", F32),
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
            "shared/lanes",
            "tensor/linear_distillation"
        ]),
        8,
    )],
)
.flat();
static LINEAR_DISTILLATION_BACKWARD: Kernel = Kernel::trusted(
    "linear_distillation_backward",
    Params::FIELDS,
    &[
        read_write("logits", F32),
        read("teacher_logits", F32),
        read("targets", U32),
        read("lse", F32),
        read("dloss", F32),
    ],
    &[Source::wgsl(wgsl![
        "shared/ids",
        "shared/flat",
        "shared/exp",
        "tensor/linear_distillation_backward"
    ])],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&LINEAR_DISTILLATION, &LINEAR_DISTILLATION_BACKWARD];

/// Lowest and highest temperature: beyond, T² and 1 / T leave what `f32` adds up.
const TEMPERATURES: std::ops::RangeInclusive<f32> = 1e-3..=1e3;

/// What goes into an output layer, and its weights.
type Head<'a> = (&'a Tensor<f32>, &'a Tensor<f32>);

/// A student's loss: what [`linear_distillation`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct LinearDistillation<'a> {
    student: Head<'a>,
    teacher: Head<'a>,
    targets: &'a Tensor<u32>,
    ignore: Option<u32>,
    temperature: f32,
    share: f32,
    chunk: Option<usize>,
}

/// The loss of every row of a student's logits x·Wᵀ, `[rows]`, in nats, with `lse` `[rows, 3]` for
/// the gradients: (1 - α)·cross-entropy against `targets` `[rows]`, and α·T²·KL(teacher ‖ student).
/// In the divergence, the logits of both are divided by T. `student` and `teacher` are x `[.., k]`
/// and W `[vocabulary, k]`, each with a k of its own. By default, T is 1 and α is 1. An ignored row
/// has a loss of 0, and a target that is not below the vocabulary one of NaN. Logits must be finite.
/// They exist a chunk of columns at a time: beside its results this takes 4·(c·(2·rows + k + k') +
/// rows·(k + k' + 8)) bytes for chunks of c columns.
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, tensor};
/// # fn f(encoder: &mut Encoder, student: (&Tensor<f32>, &Tensor<f32>), teacher: (&Tensor<f32>, &Tensor<f32>), targets: &Tensor<u32>, dloss: &Tensor<f32>) -> Result<()> {
/// let op = tensor::linear_distillation(student, teacher, targets).temperature(2.0).teacher_share(0.9);
/// let made = op.forward(encoder)?;
/// let gradients = op.backward(encoder, &made.lse, dloss)?;
/// # Ok(())
/// # }
/// ```
pub fn linear_distillation<'a>(
    student: (&'a Tensor<f32>, &'a Tensor<f32>),
    teacher: (&'a Tensor<f32>, &'a Tensor<f32>),
    targets: &'a Tensor<u32>,
) -> LinearDistillation<'a> {
    let (ignore, temperature, share, chunk) = (None, 1.0, 1.0, None);
    LinearDistillation { student, teacher, targets, ignore, temperature, share, chunk }
}

impl LinearDistillation<'_> {
    /// Gives rows with the target `id`, which need not be a column, no loss and no gradient.
    pub fn ignore_index(self, id: u32) -> Self {
        Self { ignore: Some(id), ..self }
    }

    /// Sets T, 0.001 to 1000, by which logits are divided in the divergence.
    pub fn temperature(self, temperature: f32) -> Self {
        Self { temperature, ..self }
    }

    /// Sets α, 0 to 1, the weight of the teacher's distribution; the targets have the rest.
    pub fn teacher_share(self, share: f32) -> Self {
        Self { share, ..self }
    }

    /// Sets how many columns of logits (rows of both W) exist at a time; by default, as many as take
    /// 64 MiB together with their weights.
    pub fn chunk(self, columns: usize) -> Self {
        Self { chunk: Some(columns), ..self }
    }

    /// Records the losses `[rows]` and `lse` `[rows, 3]`, new tensors.
    ///
    /// # Errors
    /// [`Error::Shape`] if a W is not `[vocabulary, k]`, or rows, targets and vocabularies do not
    /// fit together; [`Error::Invalid`] for a temperature, a share or a chunk out of range.
    pub fn forward(self, encoder: &mut Encoder) -> Result<LinearLoss<Tensor<f32>>> {
        let [own, other] = self.problems("linear_distillation")?;
        let (context, rows) = (encoder.context(), own.rows);
        let made = LinearLoss {
            loss: Tensor::uninit(context, [rows])?,
            lse: Tensor::uninit(context, [rows, 3])?,
        };
        let running = Tensor::<f32>::uninit(context, [rows, 8])?;
        let sides = Sides::new(encoder, self, [own, other])?;
        for (first, columns) in own.chunks() {
            let [Chunk { logits, .. }, teacher] = sides.fill(encoder, self, (first, columns))?;
            encoder.dispatch(
                &LINEAR_DISTILLATION,
                &self.params(own, (first, columns)),
                &[&logits, &teacher.logits, self.targets, &running, &made.loss, &made.lse],
                rows_extent(rows, columns),
            )?;
        }
        Ok(made)
    }

    /// Records the gradients of the student's x and W, new tensors, where `lse` is what `forward`
    /// computed and `dloss` `[rows]` is the gradient of the losses. The logits are computed again, a
    /// chunk at a time: beside its results this takes 4·(c·(2·rows + k + k') + rows·(2·k + k'))
    /// bytes for chunks of c columns.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::Shape`] if `lse` or `dloss` does not fit.
    pub fn backward(
        self,
        encoder: &mut Encoder,
        lse: &Tensor<f32>,
        dloss: &Tensor<f32>,
    ) -> Result<LinearGradients<Tensor<f32>, Tensor<f32>>> {
        let (x, w) = self.student;
        let context = encoder.context();
        let made = LinearGradients {
            x: Tensor::uninit(context, x.shape())?,
            w: Tensor::uninit(context, w.shape())?,
        };
        self.backward_into(encoder, lse, dloss, Out::set(&made.x), Some(Out::set(&made.w)))?;
        Ok(made)
    }

    /// Like [`backward`](Self::backward), into tensors of the caller; weights that do not learn have
    /// no `dw`.
    ///
    /// # Errors
    /// As [`backward`](Self::backward); [`Error::Shape`] if a tensor has another shape than its
    /// gradient.
    pub fn backward_into(
        self,
        encoder: &mut Encoder,
        lse: &Tensor<f32>,
        dloss: &Tensor<f32>,
        dx: Out<'_, f32>,
        dw: Option<Out<'_, f32>>,
    ) -> Result<()> {
        let op = "linear_distillation_backward";
        let [own, other] = self.problems(op)?;
        Operand::same(op, "lse", lse, [own.rows, 3].into())?;
        Operand::same(op, "dloss", dloss, [own.rows].into())?;
        dx.check_shape(op, self.student.0.shape())?;
        dw.map_or(Ok(()), |dw| dw.check_shape(op, self.student.1.shape()))?;
        encoder.transaction(|encoder| {
            let sides = Sides::new(encoder, self, [own, other])?;
            let sum = Tensor::<f32>::uninit(encoder.context(), sides.x[0].shape())?;
            for (first, columns) in own.chunks() {
                let [Chunk { w, logits }, teacher] = sides.fill(encoder, self, (first, columns))?;
                encoder.dispatch(
                    &LINEAR_DISTILLATION_BACKWARD,
                    &self.params(own, (first, columns)),
                    &[&logits, &teacher.logits, self.targets, lse, dloss],
                    [logits.len(), 1, 1],
                )?;
                let out = if first == 0 { Out::set(&sum) } else { Out::add(&sum) };
                matmul(&logits, &w).forward_into(encoder, out)?;
                let Some(dw) = dw else { continue };
                // The weights have done their part: their gradients take their place.
                matmul(Side::transposed(&logits), &sides.x[0]).forward_into(encoder, &w)?;
                narrow(encoder, &w, dw, first * own.k)?;
            }
            narrow(encoder, &sum, dx, 0)
        })
    }

    fn params(self, problem: Problem, (first, columns): (usize, usize)) -> Params {
        Params {
            rows: problem.rows as u32,
            columns: columns as u32,
            lanes: lanes(columns) as u32,
            first: first as u32,
            vocabulary: problem.vocabulary as u32,
            last: (first + columns == problem.vocabulary).into(),
            ignores: self.ignore.is_some().into(),
            ignored: self.ignore.unwrap_or_default(),
            temperature: self.temperature,
            teacher: self.share,
        }
    }

    /// Checks the sizes of student and teacher, which differ in k alone.
    fn problems(self, op: &'static str) -> Result<[Problem; 2]> {
        let (rows, vocabulary) = (self.student.0.shape().as_matrix().0, self.student.1.shape());
        let vocabulary = vocabulary.dims().first().copied().unwrap_or(0);
        let sides = [("w", self.student), ("the teacher's w", self.teacher)];
        for (what, (x, w)) in sides {
            let (found, k) = x.shape().as_matrix();
            if found != rows {
                let expected = format!("{rows} rows");
                return Err(Error::Shape {
                    op,
                    what: "the teacher's x",
                    expected,
                    found: x.shape(),
                });
            }
            if *w.shape().dims() != [vocabulary, k] {
                let expected = format!("[{vocabulary}, {k}]");
                return Err(Error::Shape { op, what, expected, found: w.shape() });
            }
        }
        Operand::same(op, "targets", self.targets, [rows].into())?;
        let invalid = |what: String| Err(Error::Invalid { op, what });
        if !TEMPERATURES.contains(&self.temperature) {
            let found = self.temperature;
            return invalid(format!("a temperature of {found}; 0.001 to 1000 are possible"));
        }
        if !(0.0..=1.0).contains(&self.share) {
            let found = self.share;
            return invalid(format!("a teacher's share of {found}; 0 to 1 are possible"));
        }
        if self.chunk == Some(0) {
            return invalid("chunks of 0 columns".into());
        }
        let [own, other] = sides.map(|(_, (x, _))| x.shape().as_matrix().1);
        let chunk = chunk(2 * rows, own + other, vocabulary, self.chunk);
        Ok([own, other].map(|k| Problem { rows, k, vocabulary, chunk }))
    }
}

/// The rows of student and teacher, and the buffers of a chunk of each.
struct Sides {
    x: [Tensor<f32>; 2],
    chunks: [Chunk; 2],
}

impl Sides {
    fn new(encoder: &mut Encoder, op: LinearDistillation<'_>, sizes: [Problem; 2]) -> Result<Self> {
        let [own, other] = sizes;
        let x = [wide(encoder, op.student.0, own)?, wide(encoder, op.teacher.0, other)?];
        Ok(Self { x, chunks: [Chunk::new(encoder, own)?, Chunk::new(encoder, other)?] })
    }

    /// Records the logits of a chunk: the student's, and the teacher's.
    fn fill(
        &self,
        encoder: &mut Encoder,
        op: LinearDistillation<'_>,
        columns: (usize, usize),
    ) -> Result<[Chunk; 2]> {
        let ([own, other], [x, teacher_x]) = (&self.chunks, &self.x);
        Ok([
            own.fill(encoder, x, op.student.1, columns)?,
            other.fill(encoder, teacher_x, op.teacher.1, columns)?,
        ])
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;
    use crate::ops::tensor::linear_cross_entropy::reference::rows;

    /// A row's loss, lse and gradients of logits, in f64.
    type Row = (f64, [f64; 3], Vec<f64>);

    fn log_sum(row: &[f32], divisor: f64) -> f64 {
        let largest = row.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = row.iter().map(|&v| (f64::from(v - largest) / divisor).exp()).sum();
        f64::from(largest) / divisor + sum.ln()
    }

    fn of_row(
        (logits, target): &(Vec<f32>, u32),
        teacher: &[f32],
        ignore: Option<u32>,
        (temperature, share): (f32, f32),
    ) -> Row {
        let (t, share) = (f64::from(temperature), f64::from(share));
        let lse = [log_sum(logits, 1.0), log_sum(logits, t), log_sum(teacher, t)];
        if ignore == Some(*target) {
            return (0.0, lse, vec![0.0; logits.len()]);
        }
        let Some(&own) = logits.get(*target as usize) else {
            return (f64::NAN, lse, vec![f64::NAN; logits.len()]);
        };
        let (mut divergence, mut slopes) = (0.0, Vec::new());
        for (i, (&s, &other)) in logits.iter().zip(teacher).enumerate() {
            let (s, log_p) = (f64::from(s), f64::from(other) / t - lse[2]);
            let log_q = s / t - lse[1];
            divergence += log_p.exp() * (log_p - log_q);
            let hit = if i == *target as usize { 1.0 } else { 0.0 };
            let hard = (1.0 - share) * ((s - lse[0]).exp() - hit);
            slopes.push(hard + share * t * (log_q.exp() - log_p.exp()));
        }
        let hard = (1.0 - share) * (lse[0] - f64::from(own));
        (hard + share * t * t * divergence, lse, slopes)
    }

    /// CPU reference of [`linear_distillation`](fn@crate::tensor::linear_distillation): `student`
    /// and `teacher` are rows x of k numbers, W, and k; `mix` is the temperature and the teacher's
    /// share.
    ///
    /// # Errors
    /// [`Error::Length`] if an x is not a row for each target, a W not whole rows, or a k is 0.
    pub fn linear_distillation(
        student: (&[f32], &[f32], usize),
        teacher: (&[f32], &[f32], usize),
        targets: &[u32],
        ignore: Option<u32>,
        mix: (f32, f32),
    ) -> Result<LinearLoss<Vec<f32>>> {
        let mut made = LinearLoss { loss: Vec::new(), lse: Vec::new() };
        let others = rows(teacher.0, teacher.1, teacher.2, targets)?;
        for (row, (other, _)) in rows(student.0, student.1, student.2, targets)?.zip(others) {
            let (loss, lse, _) = of_row(&row, &other, ignore, mix);
            made.loss.push(loss as f32);
            made.lse.extend(lse.map(|lse| lse as f32));
        }
        Ok(made)
    }

    /// CPU reference of the gradients of
    /// [`linear_distillation`](fn@crate::tensor::linear_distillation) for the student's x and W.
    ///
    /// # Errors
    /// As [`linear_distillation`](fn@crate::reference::linear_distillation); [`Error::Length`] if
    /// `dloss` is not one for each target.
    pub fn linear_distillation_backward(
        student: (&[f32], &[f32], usize),
        teacher: (&[f32], &[f32], usize),
        targets: &[u32],
        ignore: Option<u32>,
        mix: (f32, f32),
        dloss: &[f32],
    ) -> Result<LinearGradients<Vec<f32>, Vec<f32>>> {
        if dloss.len() != targets.len() {
            return Err(Error::Length { shape: [targets.len()].into(), found: dloss.len() });
        }
        let (x, w, k) = student;
        let mut made = LinearGradients { x: vec![0f32; x.len()], w: vec![0f32; w.len()] };
        let others = rows(teacher.0, teacher.1, teacher.2, targets)?;
        for (i, (row, (other, _))) in rows(x, w, k, targets)?.zip(others).enumerate() {
            let (x, dx) = (&x[i * k..][..k], &mut made.x[i * k..][..k]);
            let (_, _, slopes) = of_row(&row, &other, ignore, mix);
            for ((slope, w), dw) in
                slopes.iter().zip(w.chunks_exact(k)).zip(made.w.chunks_exact_mut(k))
            {
                let slope = (slope * f64::from(dloss[i])) as f32;
                dx.iter_mut().zip(w).for_each(|(dx, w)| *dx = slope.mul_add(*w, *dx));
                dw.iter_mut().zip(x).for_each(|(dw, x)| *dw = slope.mul_add(*x, *dw));
            }
        }
        Ok(made)
    }
}
