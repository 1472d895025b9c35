//! Numbers that kernels write down while they run, for debugging.

use crate::{
    error::{Error, Result},
    gpu::{context::Context, tensor::Tensor},
    kernel::source::Part,
};
use std::fmt;

/// The first word of `shader_log` counts the records that were appended, modulo 2^32. Each record
/// has four words: thread, label, type and bits.
const WGSL: &str = "
fn log_u32(thread: u32, label: u32, value: u32) { log_record(thread, label, 0u, value); }
fn log_i32(thread: u32, label: u32, value: i32) { log_record(thread, label, 1u, bitcast<u32>(value)); }
fn log_f32(thread: u32, label: u32, value: f32) { log_record(thread, label, 2u, bitcast<u32>(value)); }

fn log_record(thread: u32, label: u32, kind: u32, bits: u32) {
    let capacity = arrayLength(&shader_log) / 4u - 1u;
    let at = 4u * (1u + atomicAdd(&shader_log[0], 1u) % capacity);
    atomicStore(&shader_log[at], thread);
    atomicStore(&shader_log[at + 1u], label);
    atomicStore(&shader_log[at + 2u], kind);
    atomicStore(&shader_log[at + 3u], bits);
}
";

/// A ring buffer to which custom kernels in WGSL append numbers, for debugging.
///
/// A kernel has [`ShaderLog::PART`] among its parts, and a binding
/// `read_write("shader_log", U32)` that its source declares as
/// `var<storage, read_write> shader_log: array<atomic<u32>>`. It then calls
/// `log_u32(thread, label, value)`, `log_i32` or `log_f32`, where `thread` and `label` are numbers of
/// your choice. The order of records is that of the GPU, and differs from run to run.
///
/// ```no_run
/// use bitnet_wgpu::{Context, Kernel, kernel::{Part, Source, Type::*, read_write}, telemetry::ShaderLog};
///
/// static SQUARES: Kernel = Kernel::new("squares", &[], &[read_write("shader_log", U32)], &[Source::wgsl(&[
///     ShaderLog::PART,
///     Part::new("squares", "
///         @group(0) @binding(0) var<storage, read_write> shader_log: array<atomic<u32>>;
///         @compute @workgroup_size(WG_X, WG_Y, WG_Z)
///         fn squares(@builtin(global_invocation_id) id: vec3<u32>) {
///             if id.x < 3u { log_u32(id.x, 7u, id.x * id.x); }
///         }"),
/// ])]);
///
/// # fn main() -> bitnet_wgpu::Result<()> {
/// let context = pollster::block_on(Context::new())?;
/// let log = ShaderLog::new(&context, 1000)?;
/// let mut encoder = context.encoder("squares");
/// encoder.dispatch(&SQUARES, &(), &[log.tensor()], [3, 1, 1])?;
/// encoder.submit()?;
/// for record in pollster::block_on(log.read())?.records {
///     println!("{record}"); // thread 2, label 7: 4
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ShaderLog {
    words: Tensor<u32>,
}

/// What a [`ShaderLog`] holds.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LogRecords {
    /// The newest records, the oldest of them first. Where records were lost, threads may have
    /// written the same one at once, which mixes their words.
    pub records: Vec<LogRecord>,
    /// Number of older records that were overwritten. Counting starts again after 2^32 records.
    pub lost: usize,
}

/// A number that a thread wrote down.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct LogRecord {
    /// First argument of the shader's function.
    pub thread: u32,
    /// Second argument of the shader's function.
    pub label: u32,
    /// The number itself.
    pub value: LogValue,
}

/// A number in a [`LogRecord`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum LogValue {
    /// Of `log_u32`.
    U32(u32),
    /// Of `log_i32`.
    I32(i32),
    /// Of `log_f32`.
    F32(f32),
}

impl ShaderLog {
    /// The functions `log_u32`, `log_i32` and `log_f32`, for the parts of a source.
    pub const PART: Part = Part::new("shader_log", WGSL);

    /// Makes an empty log with room for `capacity` records of 16 bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a capacity of 0 or above 2^26, and what [`Tensor::zeros`] returns.
    pub fn new(context: &Context, capacity: usize) -> Result<Self> {
        if !(1..=1 << 26).contains(&capacity) {
            let what = format!("capacity is {capacity}; 1 to {} records are accepted", 1 << 26);
            return Err(Error::Invalid { op: "shader log", what });
        }
        Ok(Self { words: Tensor::zeros(context, [1 + capacity, 4])? })
    }

    /// Returns the tensor for the binding `shader_log`.
    pub fn tensor(&self) -> &Tensor<u32> {
        &self.words
    }

    /// Empties the log.
    ///
    /// # Errors
    /// As [`Tensor::write`].
    pub fn clear(&self) -> Result<()> {
        self.words.write(&vec![0; self.words.len()])
    }

    /// Reads the records of all work that was submitted.
    ///
    /// # Errors
    /// As [`Tensor::read`].
    pub async fn read(&self) -> Result<LogRecords> {
        let words = self.words.read().await?;
        let (count, capacity) = (words[0] as usize, words.len() / 4 - 1);
        let first = count.saturating_sub(capacity);
        let record = |n: usize| LogRecord::of(&words[4 * (1 + n % capacity)..][..4]);
        Ok(LogRecords { records: (first..count).map(record).collect(), lost: first })
    }
}

impl LogRecord {
    fn of(words: &[u32]) -> Self {
        let value = match words[2] {
            0 => LogValue::U32(words[3]),
            1 => LogValue::I32(words[3] as i32),
            _ => LogValue::F32(f32::from_bits(words[3])),
        };
        Self { thread: words[0], label: words[1], value }
    }
}

impl fmt::Display for LogRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {}, label {}: {}", self.thread, self.label, self.value)
    }
}

impl fmt::Display for LogValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U32(value) => value.fmt(f),
            Self::I32(value) => value.fmt(f),
            Self::F32(value) => value.fmt(f),
        }
    }
}
