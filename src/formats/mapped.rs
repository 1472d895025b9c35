//! Files in memory without reading them.

use crate::{Error, Result};
use std::{fs::File, path::Path};

/// Maps a whole file.
#[allow(unsafe_code)]
pub(super) fn map(path: &Path) -> Result<memmap2::Mmap> {
    let error = |source| Error::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(error)?;
    // SAFETY: as every mapping: the file must not be truncated while it is in use. Contents are plain bytes, any of which are valid, and all
    // offsets into them are checked.
    unsafe { memmap2::Mmap::map(&file) }.map_err(error)
}
