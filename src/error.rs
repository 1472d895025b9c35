//! One error type. Its variants are grouped by who can mend them: the environment, the caller,
//! whoever made a matrix, this machine, a shader, run time, files, text.

use crate::{
    files::display::{display, printable},
    language::ShaderLanguage,
    memory::{LiveMemory, listed},
    shape::Shape,
};
use std::{io, path::Path, sync::Arc, time::Duration};

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, with what is needed to mend it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a variant's text names its fields")]
pub enum Error {
    // --- the environment
    /// No adapter fits; `found` lists those that exist.
    #[error("no suitable GPU adapter: {reason} (adapters found: {found})")]
    NoAdapter { reason: String, found: String },
    /// The adapter refused to open a device.
    #[error("could not open a device on {adapter}: {source}")]
    NoDevice { adapter: String, source: wgpu::RequestDeviceError },

    // --- the caller
    /// An operand has the wrong shape.
    #[error("{op}: {what} has shape {found}, expected {expected}")]
    Shape { op: &'static str, what: &'static str, expected: String, found: Shape },
    /// Data and shape disagree about the number of elements, or the shape overflows.
    #[error("shape {shape} does not hold {found} elements")]
    Length { shape: Shape, found: usize },
    /// The tensors or parameters of a dispatch do not fit its kernel. Their number or a type is
    /// another than declared, a tensor is on another device than the work, or one buffer is
    /// bound twice and written.
    #[error("{kernel}: {what}")]
    Dispatch { kernel: &'static str, what: String },
    /// More tokens than a session has room for.
    #[error("{needed} positions are needed; there is room for {capacity}")]
    Context { needed: usize, capacity: usize },
    /// A text has more bytes than its number of tokens can hold: see
    /// [`Tokenizer::within`](crate::model::Tokenizer::within). It was not encoded. Of a
    /// conversation, `bytes` is what the chat template had written when it was stopped.
    #[cfg(feature = "models")]
    #[error("the text has {bytes} bytes; {tokens} tokens hold at most {most}")]
    TextTooLong { bytes: usize, most: usize, tokens: usize },
    /// A value outside its domain; `what` names it.
    #[error("{op}: {what}")]
    Invalid { op: &'static str, what: String },

    /// A [`Batch`](crate::model::Batch) takes no more: try again when some have ended.
    #[error("batch is full: {running}/{slots} running, {waiting}/{queue} queued")]
    Busy { running: usize, waiting: usize, slots: usize, queue: usize },

    // --- a matrix, `matrix` of its batch; columns are counted from 1
    /// A pivot of a Cholesky factorization is not positive.
    #[cfg(feature = "linalg")]
    #[error(
        "{op}: matrix {matrix} is not positive definite: the pivot of column {column} is not positive"
    )]
    NotPositiveDefinite { op: &'static str, matrix: usize, column: usize },
    /// A square matrix has no inverse, or none that its numbers determine.
    #[cfg(feature = "linalg")]
    #[error("{op}: matrix {matrix} is singular: column {column} has no pivot beyond rounding")]
    Singular { op: &'static str, matrix: usize, column: usize },
    /// The columns of a matrix are not independent.
    #[cfg(feature = "linalg")]
    #[error(
        "{op}: matrix {matrix} is rank deficient: column {column} depends on those before it, up to rounding"
    )]
    RankDeficient { op: &'static str, matrix: usize, column: usize },
    /// An iteration did not reach its end.
    #[cfg(feature = "linalg")]
    #[error("{op}: matrix {matrix} has not converged in {sweeps} sweeps")]
    NotConverged { op: &'static str, matrix: usize, sweeps: usize },
    /// A matrix has an infinity or a NaN, or what is made of it overflows.
    #[cfg(feature = "linalg")]
    #[error("{op}: matrix {matrix} has numbers, or leads to some, that are not finite")]
    NotFinite { op: &'static str, matrix: usize },
    /// What a model computes is not finite: its weights are damaged, or its numbers overflow.
    #[error("{op}: {what} are not finite")]
    Overflow { op: &'static str, what: String },

    // --- this machine
    /// The device cannot run a kernel or an operation. Its backend has another kernel language, or
    /// it lacks a wgpu feature or limit, or was opened without it, or a dispatch has more
    /// workgroups than it allows. `what` names what is missing. See
    /// [`Context::device_needs`](crate::Context::device_needs), and
    /// [`ContextOptions::offload`](crate::ContextOptions::offload) and
    /// [`ContextOptions::experimental`](crate::ContextOptions::experimental) for what an app asks
    /// for itself.
    #[error("{what}")]
    DeviceUnsupported { what: String },
    /// A tensor is larger than one binding may be.
    #[error("{what} needs {bytes} bytes in one buffer; this device allows {limit}")]
    TooLarge { what: String, bytes: u64, limit: u64 },

    // --- a shader
    /// A kernel did not compile, or its source does not match its declaration.
    #[error("kernel `{kernel}` ({language}) failed to build:\n{message}")]
    Shader { kernel: &'static str, language: ShaderLanguage, message: String },

    // --- run time
    /// The device has no memory left, though all that waited for reuse was given back. `live` is
    /// what this context has, the most first.
    #[error("out of GPU memory in {during}: {message}; {}", listed(live))]
    OutOfMemory { during: String, message: String, live: Vec<LiveMemory> },
    /// A context's memory is limited, and its tensors would take more: see
    /// [`Context::limit_memory`](crate::Context::limit_memory). `live` is what there is already,
    /// the most first.
    #[error(
        "{bytes} bytes more ({what}) are over the memory limit of {limit}; {}; free some of it, take a smaller model or context, or raise the limit",
        listed(live)
    )]
    MemoryLimit { what: String, bytes: u64, limit: u64, live: Vec<LiveMemory> },
    /// The device reported an error (validation, internal).
    #[error("GPU error in {during}: {message}")]
    Gpu { during: String, message: String },
    /// The device is gone: it was reset, unplugged or destroyed. What was on it is lost, and what
    /// the host has is valid: files, tokens, results that came back.
    /// [`Context::recover`](crate::Context::recover) opens another.
    #[error("the device was lost (noticed in {during})")]
    DeviceLost { during: String },
    /// The device has not answered within the limit of
    /// [`Context::limit_waits`](crate::Context::limit_waits): it hangs, or is slow. What the host
    /// has is valid. What was submitted may run still, and what is submitted now runs after it; if
    /// the device does answer later, it is as good as before.
    #[error("{during} took longer than the limit of {limit:?}")]
    WaitLimit { during: String, limit: Duration },
    /// The GPU did not finish a submission and did not report it, as Metal does when a kernel
    /// faults, runs for too long or lacks memory. Reads of a context with
    /// [`Context::check_submissions`](crate::Context::check_submissions) return it; models on Metal
    /// have that on. The results of the submission and of this read are not valid. Earlier reads
    /// are, and so are tensors that no later work writes. A session stays at the last token that it
    /// returned and can go on from there. `cause` names the likely cause and what to do.
    #[error("the GPU did not finish `{submission}` and its results are not valid; {cause}")]
    Unfinished { submission: &'static str, cause: &'static str },
    /// Results could not be read back.
    #[error("readback failed: {0}")]
    Readback(String),

    /// A [`Batch`](crate::model::Batch) ended, and with it all its sequences.
    #[error("the batch ended: {0}")]
    BatchEnded(Arc<Error>),

    // --- files
    /// A file could not be opened, read or written.
    #[error("{}: {source}", display(path))]
    Io { path: std::path::PathBuf, source: std::io::Error },
    /// A model file is sound, and needs what this crate does not do, or what the caller has not
    /// allowed.
    #[error("{}: {}", display(path), printable(message))]
    Unsupported { path: std::path::PathBuf, message: String },
    /// A model file is damaged, hostile, or not what it should be.
    #[error("{}: {}", display(path), printable(message))]
    Format { path: std::path::PathBuf, message: String },

    // --- text
    /// A tokenizer is not of a known kind, contradicts itself, or was asked for a token that it
    /// does not have.
    #[error("tokenizer: {}", printable(message))]
    Tokenizer { message: String },
    /// A grammar, a regular expression or a JSON schema is wrong, allows no text, or takes too much
    /// work. Or the tokens of a model cannot write what it allows.
    #[cfg(feature = "grammar")]
    #[error("grammar: {}", printable(message))]
    Grammar { message: String },
    /// There is no chat template, or it is wrong or refuses the messages.
    #[error("chat template: {}", printable(message))]
    ChatTemplate { message: String },
}

/// Adds a path to the error of an operation on it.
pub(crate) fn at<T>(path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|source| Error::Io { path: path.to_owned(), source })
}

/// What can be done about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no device that will do: compute on the CPU, or install a driver.
    NoDevice,
    /// The call was wrong: an argument is out of its domain, or does not fit the others.
    Invalid,
    /// The call is sound, and the numbers of a matrix are not: it has no such factors or solution,
    /// or none was found; or what a model computes is not finite.
    Numbers,
    /// The call or the file is sound, and this crate or this device does not do it.
    Unsupported,
    /// A file is damaged, hostile, or not what it should be.
    Damaged,
    /// There is no tokenizer or chat template, or it is wrong, or refuses its input. Or a grammar
    /// is wrong.
    Text,
    /// A file could not be opened or read.
    Io,
    /// There is not enough memory, or a tensor is larger than the device can hold: free some, or
    /// take a smaller model or context.
    OutOfMemory,
    /// Nothing is wrong, there is no room at the moment: try again later.
    Busy,
    /// The device was lost, or does not answer: open another.
    Lost,
    /// A kernel does not compile, or its source does not fit its declaration. The message has the
    /// line, in the source as it was given.
    Shader,
    /// The device reported an error that it should not: a bug of this crate or of a driver.
    Internal,
}

impl Error {
    pub(crate) fn other_device(kernel: &'static str, tensor: &str) -> Self {
        let what = format!("{tensor} is on another device than the work");
        Self::Dispatch { kernel, what }
    }

    pub(crate) fn missing_feature(what: &str, feature: wgpu::Features) -> Self {
        let what = format!(
            "{what} needs the wgpu feature {feature}, which this device was not opened with"
        );
        Self::DeviceUnsupported { what }
    }

    pub(crate) fn low_limit(what: &str, (name, needed, found): (&str, u32, u32)) -> Self {
        let what = format!(
            "{what} needs {name} of {needed}; this device was opened with {found} (see Context::device_needs)"
        );
        Self::DeviceUnsupported { what }
    }

    pub(crate) fn language(language: ShaderLanguage, backend: wgpu::Backend) -> Self {
        let what = format!("{language} kernels cannot run on the {backend} backend");
        Self::DeviceUnsupported { what }
    }

    /// Returns what can be done about it.
    ///
    /// ```
    /// use bitnet_wgpu::{formats, ErrorKind};
    /// assert_eq!(formats::open("no/such/model").err().map(|error| error.kind()), Some(ErrorKind::Io));
    /// ```
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoAdapter { .. } | Self::NoDevice { .. } => ErrorKind::NoDevice,
            Self::Shape { .. }
            | Self::Length { .. }
            | Self::Dispatch { .. }
            | Self::Context { .. }
            | Self::Invalid { .. } => ErrorKind::Invalid,
            #[cfg(feature = "linalg")]
            Self::NotPositiveDefinite { .. }
            | Self::Singular { .. }
            | Self::RankDeficient { .. }
            | Self::NotConverged { .. }
            | Self::NotFinite { .. } => ErrorKind::Numbers,
            Self::Overflow { .. } => ErrorKind::Numbers,
            Self::DeviceUnsupported { .. } | Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::TooLarge { .. } | Self::OutOfMemory { .. } | Self::MemoryLimit { .. } => {
                ErrorKind::OutOfMemory
            }
            Self::Shader { .. } => ErrorKind::Shader,
            Self::Gpu { .. } => ErrorKind::Internal,
            Self::Readback(_)
            | Self::DeviceLost { .. }
            | Self::WaitLimit { .. }
            | Self::Unfinished { .. } => ErrorKind::Lost,
            Self::Busy { .. } => ErrorKind::Busy,
            #[cfg(feature = "models")]
            Self::TextTooLong { .. } => ErrorKind::Invalid,
            Self::BatchEnded(cause) => cause.kind(),
            Self::Io { .. } => ErrorKind::Io,
            Self::Format { .. } => ErrorKind::Damaged,
            Self::Tokenizer { .. } | Self::ChatTemplate { .. } => ErrorKind::Text,
            #[cfg(feature = "grammar")]
            Self::Grammar { .. } => ErrorKind::Text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::display::MOST_MESSAGE;

    #[test]
    fn messages_command_no_terminal_and_have_an_end() {
        let error = Error::ChatTemplate { message: format!("`{}\u{1b}[2J` and é", "\n") };
        assert_eq!(error.to_string(), "chat template: `\\n\\u{1b}[2J` and é");
        let long = Error::Tokenizer { message: "é".repeat(200_000) }.to_string();
        assert_eq!(long.chars().count(), "tokenizer: ".len() + MOST_MESSAGE + " ..".len());
        let exact = Error::Tokenizer { message: "é".repeat(MOST_MESSAGE) }.to_string();
        assert_eq!(exact.chars().count(), "tokenizer: ".len() + MOST_MESSAGE);
    }
}
