//! Memory-mapped files.

use crate::{Error, Result};
use std::{fs::File, path::Path};

/// Maps a whole file into memory.
#[allow(unsafe_code)]
pub(super) fn map(path: &Path) -> Result<memmap2::Mmap> {
    let error = |source| Error::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(error)?;
    // SAFETY: the file must not be truncated while it is mapped; the public functions' docs ask this of the caller. Any contents are valid
    // as plain bytes, and all offsets into them are checked.
    unsafe { memmap2::Mmap::map(&file) }.map_err(error)
}
