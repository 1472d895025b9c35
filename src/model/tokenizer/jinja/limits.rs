//! What a template may take.

/// The longest template, in bytes. The longest known have 20 KB.
pub const MOST_TEMPLATE: usize = 1 << 20;
/// Nested statements, operators of an expression, and lists in lists.
pub const MAX_DEPTH: usize = 60;
/// Statements and expressions that are evaluated within each other. Each takes less than 4 KiB of stack, without optimisation, and a thread has 2 MiB.
pub const MAX_EVALUATIONS: usize = 200;
/// Macros that call each other.
pub const MAX_CALLS: usize = 8;
/// Bytes of values that are alive at once, beside those of the conversation.
pub const MOST_BYTES: usize = 256 << 20;
/// Steps of a rendering; ten thousand messages take a few hundred thousand.
pub const STEPS: u64 = 50_000_000;
