//! One run for a folder.

use crate::{
    error::{Error, Result},
    tensors::at,
};
use std::{
    fs::{self, File, TryLockError},
    path::Path,
};

/// The name of the file that is locked. It stays: to remove it, one would have to lock it.
const NAME: &str = ".lock";

/// A lock on the folder of a run, until it is dropped or the process ends.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Makes a folder, if it is missing, and locks it.
    ///
    /// # Errors
    /// [`Error::Locked`] if another run has the lock; [`Error::Library`] for what the disk reports.
    pub fn new(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        at(folder, fs::create_dir_all(folder))?;
        let path = folder.join(NAME);
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = at(&path, file)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(Error::Locked { path: folder.to_owned() }),
            Err(TryLockError::Error(error)) => at(&path, Err(error)),
        }
    }
}
