//! Bounds of a template. [`Limits`] are adjustable; those in this module are fixed.

/// Bytes of a template's source. The longest known templates have 20 KB.
pub const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// Nesting of statements, of operators in an expression, and of values.
pub const MAX_NESTING: usize = 60;
/// Statements and expressions that are evaluated within each other. Each takes less than 4 KiB of
/// stack in an unoptimized build, and a thread has 2 MiB.
pub const MAX_EVALUATION_DEPTH: usize = 200;
/// Macros that call each other.
pub const MAX_MACRO_DEPTH: usize = 8;
/// Length of a `range`, as in Jinja's sandbox.
pub const MAX_RANGE: i64 = 100_000;
/// Spaces that `indent` and `tojson` indent by.
pub const MAX_INDENT: usize = 100;
/// Arguments of a call, and parameters of a macro. Each is compared with the others.
pub const MAX_ARGUMENTS: usize = 256;
/// Bytes of values for each byte of the context, or of the output limit, whichever is larger. The
/// output and one more string that is built count six times as they grow, and once when complete.
pub const VALUE_BYTES_PER_BYTE: usize = 8;

/// Adjustable bounds of a rendering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the output; unlimited by default.
    pub output: Option<usize>,
    /// Steps in addition to the bytes of the context: one for each evaluation, and one for every 16
    /// bytes that are read or written. 50 million by default; ten thousand messages take a few
    /// hundred thousand.
    pub steps: u64,
    /// Bytes of values that are alive at once, in addition to [`VALUE_BYTES_PER_BYTE`]; 16 MiB by
    /// default. The longest `range` takes 3 MiB.
    pub values: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { output: None, steps: 50_000_000, values: 16 << 20 }
    }
}
