//! Files that are written: complete under their names, or not there.

use crate::error::{Error, Result};
use std::{
    ffi::OsStr,
    fs::OpenOptions,
    io,
    path::{Path, PathBuf},
};

/// Has `write` make a file beside `path`, which takes its place when it is complete and on the disk. Where that fails, what was there stays.
///
/// # Errors
/// Those of `write`; [`Error::Io`].
pub(crate) fn written(path: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    written_after(path, write, || Ok(()))
}

/// The same for a file that takes its place after something else has been done, which comes when it is on the disk.
pub(crate) fn written_after(path: &Path, write: impl FnOnce(&Path) -> Result<()>, before: impl FnOnce() -> Result<()>) -> Result<()> {
    // Removed when it is dropped, unless it has taken its place.
    let partial = at(path, partial(path))?;
    write(&partial)?;
    // That there is no room may be known only when all is on the disk.
    at(path, OpenOptions::new().write(true).open(&partial).and_then(|file| file.sync_all()))?;
    before()?;
    at(path, partial.persist(path).map_err(|failed| failed.error))
}

/// What happened to a file.
pub(crate) fn at<T>(path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|source| Error::Io { path: path.to_owned(), source })
}

/// An empty file beside `path`, of a name that nobody else has.
fn partial(path: &Path) -> io::Result<tempfile::TempPath> {
    let (mut builder, mut prefix) = (tempfile::Builder::new(), path.file_name().unwrap_or_default().to_owned());
    prefix.push(".");
    builder.prefix(&prefix).suffix(OsStr::new(".partial"));
    // Others may read it, where they may read what this program makes.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).map_or_else(|| PathBuf::from("."), Path::to_owned);
    Ok(builder.tempfile_in(folder)?.into_temp_path())
}
