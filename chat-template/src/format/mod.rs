//! Formatting of values: `str.format`, `%` of strings, and what both share.

mod braces;
mod percent;
mod spec;

pub use braces::format as braces;
pub use percent::{entries, format as percent, operands};
pub use spec::justified;
