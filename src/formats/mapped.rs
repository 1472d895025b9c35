//! Memory-mapped files.

use crate::error::{Error, Result};
use std::{fs::File, io, path::Path};

/// Maps a whole file into memory.
#[allow(unsafe_code)]
pub(super) fn map(path: &Path) -> Result<memmap2::Mmap> {
    let error = |source| Error::Io { path: path.to_owned(), source };
    // To open a pipe would wait for whoever writes it.
    if !path.metadata().map_err(error)?.is_file() {
        return Err(error(io::Error::new(io::ErrorKind::InvalidInput, "is not a file")));
    }
    let file = File::open(path).map_err(error)?;
    // SAFETY: callers are told, in the public docs, not to truncate the file while it is mapped. Any bytes are valid contents, and
    // all offsets into them are checked.
    unsafe { memmap2::Mmap::map(&file) }.map_err(error)
}
