//! Ops on host slices that run on the CPU or on the GPU, wherever a call is expected to be faster.
//!
//! A round trip to the GPU takes as long as tens of thousands of additions, so small calls stay on
//! the CPU. The limit depends on the machine, on the op and on what else runs. [`Auto`] measures the
//! round trip when it is created, and learns from the time of each call. Every [`Answer`] says where
//! it was computed, and why. [`Auto::save_measurements`] keeps what was learned in a file.
//!
//! For several ops in a row, record them in one [`Encoder`] and read the last result.

mod cost;
mod learned;
mod saved;

pub use cost::{Target, Why};

use crate::{
    cpu,
    error::{Error, Result},
    gpu::{context::Context, encoder::Encoder, tensor::Tensor},
    ops::{
        bitnet::BitLinear,
        op_tables::Unary,
        tensor::{self, Axes, binary::Binary},
    },
    weights::ternary::{
        interleaved::InterleavedTernary, matrix::TernaryMatrix, packed::PackedTernary,
    },
};
use cost::{Costs, Decision, Link, Work, duration};
use std::{
    fmt,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The ops, in the order of [`NAMES`].
#[derive(Clone, Copy)]
enum Op {
    Add,
    Mul,
    Relu2,
    Silu,
    Gelu,
    Softmax,
    Sum,
    Matmul,
    BitLinear,
}

const NAMES: [&str; 9] =
    ["add", "mul", "relu2", "silu", "gelu", "softmax", "sum", "matmul", "bitlinear"];

/// Computes on the CPU or on the GPU. Threads may share it.
///
/// ```
/// use bitnet_wgpu::auto::{Auto, Target};
///
/// # fn main() -> bitnet_wgpu::Result<()> {
/// let auto = Auto::new(None)?; // or a context
/// let answer = auto.silu(&[0.0, 1.0, -1.0])?;
/// assert_eq!(answer.values.len(), 3);
/// assert_eq!(answer.ran.on, Target::Cpu);
/// println!("{}", answer.ran); // silu on the CPU, since there is no GPU: 53ns expected, took 410ns
/// # Ok(())
/// # }
/// ```
///
/// `add`, `mul`, `relu2` and `bitlinear` give bit-identical results on CPU and GPU. Results of other
/// ops differ in their last bits, so that a call may give other bits than an equal call before. The
/// CPU side is [`cpu`].
pub struct Auto {
    context: Option<Context>,
    costs: Mutex<Costs>,
    always: Option<Target>,
}

/// What a call gives.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The result.
    pub values: Vec<f32>,
    /// Where it was computed, and why.
    pub ran: Ran,
}

/// Where a call ran, what it was expected to take, and what it took. As a text, a sentence for
/// people.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Ran {
    /// The op's name.
    pub op: &'static str,
    /// Where it ran.
    pub on: Target,
    /// Why there.
    pub why: Why,
    /// What was expected of the CPU.
    pub cpu: Duration,
    /// What was expected of the GPU, transfers included; none where there is none.
    pub gpu: Option<Duration>,
    /// What it took.
    pub took: Duration,
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, on, why, cpu, gpu, took } = *self;
        let (here, there) = if on == Target::Cpu { ("CPU", "GPU") } else { ("GPU", "CPU") };
        let (expected, other) = if on == Target::Cpu { (Some(cpu), gpu) } else { (gpu, Some(cpu)) };
        let why = match why {
            Why::Expected => "which should be faster",
            Why::Trial => "to see what it takes there",
            Why::NoGpu => "since there is no GPU",
            Why::Always => "as the caller says",
        };
        write!(f, "{op} on the {here}, {why}: {:?} expected", expected.unwrap_or_default())?;
        if let Some(other) = other {
            write!(f, ", {other:?} on the {there}")?;
        }
        write!(f, "; took {took:?}")
    }
}

/// Ternary weights for CPU and GPU, from [`Auto::weights`].
#[derive(Clone, Debug)]
pub struct AutoTernary {
    host: InterleavedTernary,
    device: Option<TernaryMatrix>,
}

impl Auto {
    /// On the CPU, and on the GPU where there is one. It measures the way there and back, which
    /// takes some milliseconds, unless the context's folder has what [`Auto::save_measurements`] wrote.
    ///
    /// # Errors
    /// What the device reports.
    pub fn new(context: Option<&Context>) -> Result<Self> {
        let costs = match (context, context.and_then(|context| saved::load(context, &NAMES))) {
            (_, Some(costs)) => costs,
            (context, None) => Costs::new(context.map(measure).transpose()?, NAMES.len()),
        };
        Ok(Self { context: context.cloned(), costs: Mutex::new(costs), always: None })
    }

    /// Writes the measured costs to the folder of
    /// [`ContextOptions::kernel_cache`](crate::ContextOptions::kernel_cache). The next `Auto` on the
    /// same adapter reads them, if driver, language, tensor cores, processor, number of threads and
    /// version of the crate are those of the file. It then chooses as this one does, from its first
    /// call on. Returns the path. What other processes have written there is kept, unless this one
    /// knows better; of two that write at the same time, one wins.
    ///
    /// Costs that were read are corrected by the time that calls take. The side that is not chosen
    /// is tried again after 64 calls of a size, where that may pay. After 64 calls in all, the
    /// transfer to the GPU is measured. If it differs from the file, all costs that were read are
    /// dropped, with a warning in the log. A file that is damaged, of another machine, or out of
    /// range is ignored, with a warning.
    ///
    /// ```no_run
    /// use bitnet_wgpu::{Context, ContextOptions, auto::Auto};
    /// use std::path::PathBuf;
    ///
    /// # async fn run() -> bitnet_wgpu::Result<()> {
    /// let context = Context::open(ContextOptions::default().kernel_cache(PathBuf::from("cache/kernels"))).await?;
    /// let auto = Auto::new(Some(&context))?; // with what was kept
    /// auto.silu(&[1.0; 100_000])?;
    /// println!("kept in {}", auto.save_measurements()?.display());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no context, or it was opened without a folder; [`Error::Io`].
    pub fn save_measurements(&self) -> Result<PathBuf> {
        // No call waits for the disk.
        let costs = self.costs().clone();
        saved::save(self.context.as_ref(), &NAMES, &costs)
    }

    /// Has all calls run on one side, or where they should be faster again.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the GPU where there is none.
    pub fn always(self, target: Option<Target>) -> Result<Self> {
        if target == Some(Target::Gpu) && self.context.is_none() {
            return Err(Error::Invalid { op: "auto", what: "there is no GPU to run on".into() });
        }
        Ok(Self { always: target, ..self })
    }

    /// Ternary weights for [`Auto::bitlinear`], on the GPU too where there is one.
    ///
    /// # Errors
    /// As [`PackedTernary::upload`].
    pub fn weights(&self, weights: PackedTernary) -> Result<AutoTernary> {
        let device = self.context.as_ref().map(|context| weights.upload(context)).transpose()?;
        Ok(AutoTernary { host: InterleavedTernary::new(&weights), device })
    }

    /// a + b, number by number.
    ///
    /// # Errors
    /// [`Error::Length`] if there are not as many of both; what the device reports.
    pub fn add(&self, a: &[f32], b: &[f32]) -> Result<Answer> {
        self.pairs(Op::Add, a, b, cpu::add, tensor::add)
    }

    /// a·b, number by number; else as [`Auto::add`].
    ///
    /// # Errors
    /// As [`Auto::add`].
    pub fn mul(&self, a: &[f32], b: &[f32]) -> Result<Answer> {
        self.pairs(Op::Mul, a, b, cpu::mul, tensor::mul)
    }

    /// [`relu2`](fn@tensor::relu2) of each number.
    ///
    /// # Errors
    /// What the device reports.
    pub fn relu2(&self, x: &[f32]) -> Result<Answer> {
        self.each(Op::Relu2, 1, x, cpu::relu2, tensor::relu2)
    }

    /// [`silu`](fn@tensor::silu) of each number.
    ///
    /// # Errors
    /// What the device reports.
    pub fn silu(&self, x: &[f32]) -> Result<Answer> {
        self.each(Op::Silu, 4, x, cpu::silu, tensor::silu)
    }

    /// [`gelu`](fn@tensor::gelu) of each number.
    ///
    /// # Errors
    /// What the device reports.
    pub fn gelu(&self, x: &[f32]) -> Result<Answer> {
        self.each(Op::Gelu, 4, x, cpu::gelu, tensor::gelu)
    }

    /// [`softmax`](fn@tensor::softmax) of rows of this many columns.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not whole rows; what the device reports.
    pub fn softmax(&self, x: &[f32], columns: usize) -> Result<Answer> {
        let shape = rows(x, columns)?;
        let work = Work { operations: 8 * x.len(), bytes: 8 * x.len() };
        self.call(
            Op::Softmax,
            work,
            || cpu::softmax(x, columns),
            |e| {
                let x = e.context().upload(x, shape)?;
                tensor::softmax(&x).forward(e)
            },
        )
    }

    /// The sum of all numbers, as [`sum`](fn@tensor::sum) adds them: one value.
    ///
    /// # Errors
    /// What the device reports.
    pub fn sum(&self, x: &[f32]) -> Result<Answer> {
        let work = Work { operations: x.len(), bytes: 4 * x.len() };
        self.call(
            Op::Sum,
            work,
            || Ok(vec![cpu::sum(x)]),
            |e| {
                let x = e.context().upload(x, [x.len()])?;
                tensor::sum(&x, Axes::ALL).forward(e)
            },
        )
    }

    /// a·b: `[m, k]` by `[k, n]` gives `[m, n]`.
    ///
    /// # Errors
    /// [`Error::Length`] if a side has not as many numbers; what the device reports.
    pub fn matmul(&self, a: &[f32], b: &[f32], [m, k, n]: [usize; 3]) -> Result<Answer> {
        let sides = [(a, [m, k]), (b, [k, n])];
        for (side, shape) in sides {
            if shape[0].checked_mul(shape[1]) != Some(side.len()) {
                return Err(Error::Length { shape: shape.into(), found: side.len() });
            }
        }
        let outputs = m.checked_mul(n).ok_or(Error::Length { shape: [m, n].into(), found: 0 })?;
        let work = Work {
            operations: outputs.saturating_mul(k),
            bytes: (a.len() + b.len()).saturating_add(outputs).saturating_mul(4),
        };
        self.call(
            Op::Matmul,
            work,
            || cpu::matmul(a, b, [m, k, n]),
            |e| {
                let [a, b] = sides.map(|(side, shape)| e.context().upload(side, shape));
                tensor::matmul(&a?, &b?).forward(e)
            },
        )
    }

    /// [`BitLinear`] of `tokens` rows with ternary weights that are on both
    /// sides.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not such rows; [`Error::Dispatch`] for weights of another
    /// [`Auto`]'s GPU; what the device reports.
    pub fn bitlinear(&self, x: &[f32], tokens: usize, w: &AutoTernary) -> Result<Answer> {
        let (m, n) = (w.host.rows(), w.host.columns());
        if tokens.checked_mul(n) != Some(x.len()) {
            return Err(Error::Length { shape: [tokens, n].into(), found: x.len() });
        }
        // Sixty-four weights a nanosecond, or so.
        let operations = x.len().saturating_mul(m) / 64;
        let work = Work {
            operations,
            bytes: x.len().saturating_add(tokens.saturating_mul(m)).saturating_mul(4),
        };
        self.call(
            Op::BitLinear,
            work,
            || cpu::BitLinear::new(&w.host).forward(x, tokens),
            |e| {
                let Some(w) = &w.device else {
                    return Err(Error::other_device("bitlinear", "`codes`"));
                };
                let x = e.context().upload(x, [tokens, n])?;
                BitLinear::new(w).forward(e, &x)
            },
        )
    }

    /// An op on each number, of this many operations.
    fn each(
        &self,
        op: Op,
        operations: usize,
        x: &[f32],
        cpu: fn(&[f32]) -> Vec<f32>,
        gpu: fn(&Tensor<f32>) -> Unary<'_, f32>,
    ) -> Result<Answer> {
        let work = Work { operations: operations.saturating_mul(x.len()), bytes: 8 * x.len() };
        self.call(
            op,
            work,
            || Ok(cpu(x)),
            |e| {
                let x = e.context().upload(x, [x.len()])?;
                gpu(&x).forward(e)
            },
        )
    }

    /// An op on pairs of numbers.
    fn pairs(
        &self,
        op: Op,
        a: &[f32],
        b: &[f32],
        cpu: fn(&[f32], &[f32]) -> Result<Vec<f32>>,
        gpu: for<'a> fn(&'a Tensor<f32>, &'a Tensor<f32>) -> Binary<'a, f32>,
    ) -> Result<Answer> {
        if b.len() != a.len() {
            return Err(Error::Length { shape: [a.len()].into(), found: b.len() });
        }
        let work = Work { operations: a.len(), bytes: 12 * a.len() };
        self.call(
            op,
            work,
            || cpu(a, b),
            |e| {
                let [a, b] = [a, b].map(|side| e.context().upload(side, [side.len()]));
                gpu(&a?, &b?).forward(e)
            },
        )
    }

    fn call(
        &self,
        op: Op,
        work: Work,
        cpu: impl FnOnce() -> Result<Vec<f32>>,
        gpu: impl FnOnce(&mut Encoder) -> Result<Tensor<f32>>,
    ) -> Result<Answer> {
        let name = NAMES[op as usize];
        self.compare()?;
        let mut decision = self.costs().decide(op as usize, work);
        if let Some(target) = self.always {
            decision = Decision { target, why: Why::Always, ..decision };
        }
        let begin = Instant::now();
        let values = match (decision.target, &self.context) {
            (Target::Gpu, Some(context)) => on_gpu(context, name, gpu)?,
            _ => cpu()?,
        };
        let took = begin.elapsed();
        self.costs().learn(op as usize, work, decision.target, took.as_nanos() as f64);
        let Decision { target: on, why, cpu, gpu } = decision;
        Ok(Answer {
            values,
            ran: Ran { op: name, on, why, cpu: duration(cpu), gpu: gpu.map(duration), took },
        })
    }

    /// Measures the way to the GPU again, once, where it is from a file.
    fn compare(&self) -> Result<()> {
        let doubts = self.costs().doubts();
        if let Some(context) = self.context.as_ref().filter(|_| doubts) {
            let link = measure(context)?;
            if self.costs().compare(link) {
                log::warn!("auto: saved times do not match this machine: times are measured again");
            }
        }
        Ok(())
    }

    fn costs(&self) -> MutexGuard<'_, Costs> {
        // Whoever panicked has left numbers behind.
        self.costs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records an op, and waits for what it gives.
fn on_gpu(
    context: &Context,
    name: &'static str,
    record: impl FnOnce(&mut Encoder) -> Result<Tensor<f32>>,
) -> Result<Vec<f32>> {
    let mut encoder = context.encoder(name);
    let y = record(&mut encoder)?;
    let _ = encoder.submit()?;
    pollster::block_on(y.read())
}

/// Measures the way to the GPU and back: the least of some calls of few numbers, and of some of
/// many.
fn measure(context: &Context) -> Result<Link> {
    const MANY: usize = 1 << 20;
    let numbers = vec![1.0f32; MANY];
    let least = |numbers: &[f32], calls: usize| -> Result<f64> {
        let mut least = f64::INFINITY;
        for _ in 0..calls {
            let begin = Instant::now();
            on_gpu(context, "auto", |e| {
                let x = e.context().upload(numbers, [numbers.len()])?;
                tensor::relu2(&x).forward(e)
            })?;
            least = least.min(begin.elapsed().as_nanos() as f64);
        }
        Ok(least)
    };
    // The first compiles.
    let call = least(&numbers[..64], 8)?;
    let many = least(&numbers, 4)?;
    Ok(Link::new(call, (many - call) / (8 * MANY) as f64))
}

/// The shape of whole rows.
fn rows(x: &[f32], columns: usize) -> Result<[usize; 2]> {
    let rows = x.len() / columns.max(1);
    if rows * columns == x.len() {
        Ok([rows, columns])
    } else {
        Err(Error::Length { shape: [rows, columns].into(), found: x.len() })
    }
}
