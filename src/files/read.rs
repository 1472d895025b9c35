//! Bounded reads. A path that somebody else has written to may have a FIFO, a device or an endless
//! file by now.

use crate::error::{Result, at};
use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Read},
    path::Path,
};

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io), also for what is not a regular file (which is not waited for)
/// and for a file of more bytes.
pub fn read(path: impl AsRef<Path>, most: u64) -> Result<Vec<u8>> {
    let path = path.as_ref();
    at(path, read_regular(path, most))
}

/// Reads a file or a pipe, `/dev/stdin` for example, of at most `most` bytes. It waits for whoever
/// writes the pipe.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io), also for more bytes, of which no more are read.
pub fn read_stream(path: impl AsRef<Path>, most: u64) -> Result<Vec<u8>> {
    let path = path.as_ref();
    at(path, File::open(path).and_then(|file| read_bounded(file, most)))
}

/// Opens a regular file for reading; anything else is an error, and is not waited for.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    open_regular_with(path, OpenOptions::new().read(true))
}

/// [`open_regular`] with other options.
pub(crate) fn open_regular_with(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // Opening some devices does something.
    check_regular(&fs::metadata(path)?)?;
    // Another file may have the name by now: opening a FIFO must not wait.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        options,
        rustix::fs::OFlags::NONBLOCK.bits().cast_signed(),
    );
    let file = options.open(path)?;
    check_regular(&file.metadata()?)?;
    Ok(file)
}

/// Checks, before the work, that there is a file that [`read`] can read.
#[cfg(feature = "formats")]
pub(crate) fn check_input(path: &Path, most: u64) -> Result<()> {
    at(path, open_bounded(path, most).map(drop))
}

/// [`read`], with the error of the system.
pub(crate) fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_bounded(open_bounded(path, most)?, most)
}

fn open_bounded(path: &Path, most: u64) -> io::Result<File> {
    let file = open_regular(path)?;
    if file.metadata()?.len() > most { Err(too_long(most)) } else { Ok(file) }
}

/// Reads to the end, which comes after `most` bytes at the latest.
pub(crate) fn read_bounded(from: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_long(most)) } else { Ok(bytes) }
}

fn check_regular(found: &Metadata) -> io::Result<()> {
    if found.is_file() {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file"))
    }
}

fn too_long(most: u64) -> io::Error {
    io::Error::new(
        io::ErrorKind::FileTooLarge,
        format!("has more than {most} bytes, which is the most that is read"),
    )
}

/// Makes a FIFO that nobody writes to.
#[cfg(all(test, unix))]
pub(crate) fn make_fifo(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// An endless input that counts the bytes it has given.
    struct Endless<'a>(&'a Cell<u64>);

    impl Read for Endless<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.0.set(self.0.get() + to.len() as u64);
            Ok(to.len())
        }
    }

    #[test]
    fn endless_inputs_are_read_to_the_bound() {
        let given = Cell::new(0);
        assert_eq!(
            read_bounded(Endless(&given), 5000).unwrap_err().kind(),
            io::ErrorKind::FileTooLarge
        );
        assert_eq!(given.get(), 5001);
        assert_eq!(read_bounded(&b"12345"[..], 5).unwrap(), b"12345");
    }

    #[cfg(unix)]
    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let [fifo, file, link] = ["fifo", "file", "link"].map(|name| folder.path().join(name));
        make_fifo(&fifo);
        fs::write(&file, "12345").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&fifo, Path::new("/dev/zero"), folder.path()] {
            assert!(
                read(path, 9).unwrap_err().to_string().ends_with("is not a regular file"),
                "{path:?}"
            );
        }
        assert_eq!(read(&link, 5).unwrap(), b"12345");
        for read in [read(&file, 4), read_stream(&file, 4)] {
            assert!(read.unwrap_err().to_string().contains("more than 4 bytes"));
        }
        assert!(read_stream("/dev/zero", 9).unwrap_err().to_string().contains("more than 9 bytes"));
    }
}
