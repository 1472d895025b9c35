//! Files that are read where a tensor is asked for. None is mapped: a mapped file that somebody
//! truncates ends the process.

use super::format_error::FormatError;
use crate::{
    error::{Error, Result},
    files::read::open_regular,
};
use bytemuck::{Pod, allocation::try_zeroed_vec};
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// An open file of the length that it had when it was opened.
pub(super) struct InputFile {
    path: PathBuf,
    file: Mutex<File>,
    length: usize,
}

impl InputFile {
    pub fn open(path: &Path) -> Result<Self> {
        let error = |source| Error::Io { path: path.to_owned(), source };
        let file = open_regular(path).map_err(error)?;
        let length = file.metadata().map_err(error)?.len();
        let length = usize::try_from(length)
            .map_err(|_| FormatError::from(format!("has {length} bytes")).at(path))?;
        Ok(Self { path: path.to_owned(), file: Mutex::new(file), length })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn len(&self) -> usize {
        self.length
    }

    /// Some bytes, as they are now.
    ///
    /// # Errors
    /// [`Error::Format`] if the file does not have them; [`Error::Io`] for what the system reports,
    /// and too little memory.
    pub fn read(&self, start: usize, length: usize) -> Result<Vec<u8>> {
        self.numbers(start, length)
    }

    /// Some little-endian numbers, read to where they stay.
    ///
    /// # Errors
    /// As [`InputFile::read`].
    pub fn numbers<T: Pod>(&self, start: usize, count: usize) -> Result<Vec<T>> {
        let error = |source| Error::Io { path: self.path.clone(), source };
        let length = count.saturating_mul(size_of::<T>());
        if length > self.length.saturating_sub(start) {
            return Err(FormatError::from(format!(
                "{length} bytes at {start} are beyond its {}",
                self.length
            ))
            .at(&self.path));
        }
        let mut numbers =
            try_zeroed_vec(count).map_err(|()| error(io::ErrorKind::OutOfMemory.into()))?;
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(start as u64)).map_err(error)?;
        let bytes = bytemuck::cast_slice_mut(&mut numbers);
        let mut found = 0;
        while found < length {
            match file.read(&mut bytes[found..]) {
                Ok(0) => {
                    let message = format!(
                        "had {} bytes when it was opened, and has {} now",
                        self.length,
                        start + found
                    );
                    return Err(FormatError::from(message).at(&self.path));
                }
                Ok(more) => found += more,
                Err(interrupted) if interrupted.kind() == io::ErrorKind::Interrupted => {}
                Err(other) => return Err(error(other)),
            }
        }
        Ok(numbers)
    }
}

/// A whole file.
///
/// # Errors
/// As [`InputFile::read`]; [`Error::Format`] for one of more than `most` bytes.
pub(crate) fn read(path: &Path, most: usize) -> Result<Vec<u8>> {
    let file = InputFile::open(path)?;
    if file.len() > most {
        return Err(
            FormatError::from(format!("has {} bytes; {most} are supported", file.len())).at(path)
        );
    }
    file.read(0, file.len())
}
