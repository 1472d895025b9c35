//! Which side a call runs on, and what happens if the GPU fails.

use super::{
    answer::{Answer, GpuFailure, Ran, Target, Why},
    crossing::{Crossings, Work},
    operand::{Placed, Stored, View},
};
use crate::{
    error::{Error, ErrorKind, Result},
    gpu::{context::Context, encoder::Encoder},
};
use std::{
    sync::{Arc, Mutex, OnceLock, TryLockError},
    time::{Duration, Instant},
};

/// The ops, in the order of [`NAMES`].
#[derive(Clone, Copy)]
pub enum Op {
    Add,
    Mul,
    Relu2,
    Silu,
    Gelu,
    Softmax,
    Sum,
    RmsNorm,
    LayerNorm,
    QuantizeActivations,
    QuantizeWeights,
    Matmul,
    BitLinear,
    Attention,
}

const NAMES: [&str; 14] = [
    "add",
    "mul",
    "relu2",
    "silu",
    "gelu",
    "softmax",
    "sum",
    "rms_norm",
    "layer_norm",
    "quantize_activations",
    "quantize_weights",
    "matmul",
    "bitlinear",
    "attention",
];

/// A call: an op, its work, the sides that can do it, and whether the result is wanted in host
/// memory.
pub struct Call {
    pub op: Op,
    pub work: Work,
    pub sides: Sides,
    pub reads: bool,
}

/// The sides that have a call's operands, or can get them.
pub enum Sides {
    Both,
    Gpu,
    /// And why the GPU has not.
    Cpu(Option<Arc<Error>>),
}

impl Call {
    /// A call of this number of operations, whose result has as many numbers as `results`; whether
    /// it is wanted in host memory, and the operands.
    pub fn new(
        op: Op,
        operations: usize,
        results: usize,
        (reads, operands): (bool, &[View<'_>]),
    ) -> Self {
        let transfers = operands.iter().fold(results, |all, view| all.saturating_add(view.len()));
        let on_gpu = operands.iter().any(|view| matches!(view, View::Gpu(_)));
        let sides = if on_gpu { Sides::Gpu } else { Sides::Both };
        Self { op, work: Work { operations, transfers }, sides, reads }
    }
}

/// Computes on the CPU or on the GPU. Threads may share it.
pub struct Auto {
    pub(super) context: Option<Context>,
    crossings: Crossings,
    /// Held by the call that measures: two at once would measure each other.
    measures: Mutex<()>,
    always: Option<Target>,
    policy: GpuFailure,
    /// The error by which the device was lost.
    lost: OnceLock<Arc<Error>>,
}

impl Auto {
    /// On the CPU, and on the GPU where there is one.
    pub fn new(context: Option<&Context>) -> Self {
        Self {
            context: context.cloned(),
            crossings: Crossings::new(NAMES.len()),
            measures: Mutex::new(()),
            always: None,
            policy: GpuFailure::default(),
            lost: OnceLock::new(),
        }
    }

    /// Has all calls run on one side, or where they are faster again.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the GPU where there is none.
    pub fn always(self, target: Option<Target>) -> Result<Self> {
        if target == Some(Target::Gpu) && self.context.is_none() {
            return Err(Error::Invalid { op: "auto", what: "there is no GPU to run on".into() });
        }
        Ok(Self { always: target, ..self })
    }

    /// Sets what calls do if the GPU fails. A [`Value`](super::Value) that is left on the GPU may
    /// be an error later, when it is read.
    #[must_use]
    pub fn on_gpu_failure(self, policy: GpuFailure) -> Self {
        Self { policy, ..self }
    }

    /// Runs a call.
    pub(super) fn run<G: Stored>(
        &self,
        call: Call,
        cpu: impl Fn() -> Result<G::Host>,
        gpu: impl Fn(&mut Encoder) -> Result<G>,
    ) -> Result<Answer<Placed<G>>> {
        let op = NAMES[call.op as usize];
        let (target, mut why, mut failure) = self.choose(&call)?;
        let done = match (target, &self.context) {
            (None, Some(context)) => self.measure(&call, context, &cpu, &gpu),
            (Some(Target::Gpu), Some(context)) => {
                on_gpu(context, op, call.reads, &gpu).map(|placed| (placed, Target::Gpu))
            }
            _ => cpu().map(|host| (Placed::Cpu(host), Target::Cpu)),
        };
        let (value, on) = match done {
            Err(error) if target != Some(Target::Cpu) && self.falls_back(&error) => {
                failure = Some(self.failed(op, error));
                why = Why::Failed;
                (Placed::Cpu(cpu()?), Target::Cpu)
            }
            done => done?,
        };
        Ok(Answer { value, ran: Ran { op, on, why }, failure })
    }

    /// The side of a call, or `None` where it has to be measured; why, and the GPU's failure if
    /// that is why.
    fn choose(&self, call: &Call) -> Result<(Option<Target>, Why, Option<Arc<Error>>)> {
        let target = match (&self.context, self.always, &call.sides) {
            (None, ..) => return Ok((Some(Target::Cpu), Why::NoGpu, None)),
            (_, Some(Target::Gpu), Sides::Cpu(_)) => {
                return Err(Error::other_device(NAMES[call.op as usize], "an operand"));
            }
            (_, Some(target), _) => (Some(target), Why::Always, None),
            (_, None, Sides::Gpu) => (Some(Target::Gpu), Why::Placed, None),
            (_, None, Sides::Cpu(failure)) => (Some(Target::Cpu), Why::Placed, failure.clone()),
            (_, None, Sides::Both) => match self.crossings.decide(call.op as usize, call.work) {
                None => (None, Why::Measured, None),
                faster => (faster, Why::Faster, None),
            },
        };
        match (self.policy, self.lost.get()) {
            (GpuFailure::ComputeOnCpu, Some(lost)) if target.0 != Some(Target::Cpu) => {
                Ok((Some(Target::Cpu), Why::Failed, Some(lost.clone())))
            }
            _ => Ok(target),
        }
    }

    /// Runs a call on both sides, and returns what the faster one gave.
    fn measure<G: Stored>(
        &self,
        call: &Call,
        context: &Context,
        cpu: &impl Fn() -> Result<G::Host>,
        gpu: &impl Fn(&mut Encoder) -> Result<G>,
    ) -> Result<(Placed<G>, Target)> {
        let _measures = match self.measures.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok((Placed::Cpu(cpu()?), Target::Cpu)),
            measures => measures,
        };
        let on_gpu = || on_gpu(context, NAMES[call.op as usize], true, gpu)?.read();
        // The first compiles.
        on_gpu()?;
        let (gpu, gpu_took) = least(&on_gpu)?;
        let (cpu, cpu_took) = least(cpu)?;
        let (host, faster) =
            if gpu_took < cpu_took { (gpu, Target::Gpu) } else { (cpu, Target::Cpu) };
        self.crossings.learn(call.op as usize, call.work, faster);
        Ok((Placed::Cpu(host), faster))
    }

    /// Whether the CPU computes in the GPU's place after this error.
    pub(super) fn falls_back(&self, error: &Error) -> bool {
        use ErrorKind::*;
        let failed =
            matches!(error.kind(), NoDevice | Unsupported | OutOfMemory | Lost | Shader | Internal);
        failed && self.policy == GpuFailure::ComputeOnCpu
    }

    /// Logs a failure of the GPU, and stores that of a lost device.
    pub(super) fn failed(&self, op: &str, error: Error) -> Arc<Error> {
        log::warn!("auto: {op} is computed on the CPU, since the GPU failed: {error}");
        let error = Arc::new(error);
        if error.kind() == ErrorKind::Lost {
            let _ = self.lost.set(error.clone());
        }
        error
    }
}

/// Records an op and submits it; reads its result, if that is wanted in host memory.
fn on_gpu<G: Stored>(
    context: &Context,
    op: &'static str,
    reads: bool,
    record: &impl Fn(&mut Encoder) -> Result<G>,
) -> Result<Placed<G>> {
    let mut encoder = context.encoder(op);
    let y = record(&mut encoder)?;
    if reads {
        return y.submit_read(encoder).map(Placed::Cpu);
    }
    let _ = encoder.submit()?;
    Ok(Placed::Gpu(y))
}

/// Runs some work a few times, long work once. Returns its last result, and the least time, since
/// new memory and other programs make it slow, and nothing makes it fast.
fn least<T>(work: &impl Fn() -> Result<T>) -> Result<(T, Duration)> {
    const TIMES: usize = 3;
    const LONG: Duration = Duration::from_millis(200);
    let begin = Instant::now();
    let mut result = work()?;
    let mut least = begin.elapsed();
    for _ in 1..TIMES {
        if begin.elapsed() > LONG {
            break;
        }
        let again = Instant::now();
        result = work()?;
        least = least.min(again.elapsed());
    }
    Ok((result, least))
}
