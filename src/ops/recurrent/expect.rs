//! What is checked of the arguments of ops.

use crate::error::{Error, Result};

/// Checks that there are as many numbers as an op takes.
///
/// # Errors
/// [`Error::Invalid`] that names both counts.
pub(super) fn expect(op: &'static str, what: &str, found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let what = format!("{what} of {found} numbers; {expected} are needed");
    Err(Error::Invalid { op, what })
}
