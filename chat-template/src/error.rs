//! Errors of templates.

/// Reason why a template has no output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The source is not a supported template. The message names the line.
    #[error("{0}")]
    Syntax(String),
    /// The context is not an object, or has a value that templates cannot have.
    #[error("context: {0}")]
    Context(String),
    /// Evaluation failed, exceeded a limit, or called `raise_exception`. The message names the
    /// line.
    #[error("{0}")]
    Render(String),
    /// The output is longer than [`Limits::output`](crate::Limits::output). Rendering stopped at
    /// this length, in bytes.
    #[error("the output of {bytes} bytes is longer than its limit")]
    OutputTooLong {
        /// Length at which rendering stopped.
        bytes: usize,
    },
}

impl serde::ser::Error for Error {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self::Context(message.to_string())
    }
}
