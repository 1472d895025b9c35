//! Files that are written: complete under their names, or not there.

use crate::error::{Error, Result};
use std::{
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
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
    let partial = partial(path);
    // That there is no room may be known only when all is on the disk.
    let synced = || at(path, OpenOptions::new().write(true).open(&partial).and_then(|file| file.sync_all()));
    let renamed = || at(path, fs::rename(&partial, path));
    let done = write(&partial).and_then(|()| synced()).and_then(|()| before()).and_then(|()| renamed());
    if done.is_err() {
        let _ = fs::remove_file(&partial);
    }
    done
}

/// What happened to a file.
pub(crate) fn at<T>(path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|source| Error::Io { path: path.to_owned(), source })
}

/// A name beside `path` that no other thread or process of this system has.
fn partial(path: &Path) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{}.partial", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    path.with_file_name(name)
}
