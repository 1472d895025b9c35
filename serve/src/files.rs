//! The limit of open files.

use crate::limits::OTHER_FILES;
use std::io;

/// Checks that the process may open enough files to serve: starting the threads of a server panics
/// otherwise.
///
/// # Errors
/// An error that says how many it may open, and how many are needed.
pub fn check_open_files() -> io::Result<()> {
    connections(1).map(drop)
}

/// Returns how many connections the process may have open, at most as many as wanted.
pub(crate) fn connections(requested: usize) -> io::Result<usize> {
    let most = most_files()?;
    match most.saturating_sub(OTHER_FILES) {
        0 => Err(io::Error::other(format!(
            "the process may open {most} files; at least {} are needed (`ulimit -n`)",
            OTHER_FILES + 1
        ))),
        room => Ok(room.min(requested)),
    }
}

#[cfg(unix)]
fn most_files() -> io::Result<usize> {
    let (soft, _) = rlimit::getrlimit(rlimit::Resource::NOFILE)?;
    Ok(usize::try_from(soft).unwrap_or(usize::MAX))
}

/// Sockets are no files there.
#[cfg(not(unix))]
fn most_files() -> io::Result<usize> {
    Ok(usize::MAX)
}
