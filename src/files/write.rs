//! Atomic writes: a file is complete under its name, or what was there stays.
//!
//! A file is made under another name beside its target, `TARGET.RANDOM.partial`, and renamed. A
//! process that is killed leaves that file behind; the next writer of the same target removes it. A
//! writer that lives holds a lock on its own, so that nobody takes it for left behind.

use super::display::display;
#[cfg(unix)]
use super::read::open_regular_with;
use crate::{
    error::{Result, at},
    limits::partial_files::{MOST_LISTED, PARTIAL_RANDOM},
};
use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};
use tempfile::TempPath;

const SUFFIX: &str = ".partial";

/// Attempts to make a partial file. Another writer can remove one only between its creation and its
/// lock, so a second attempt is rare.
const ATTEMPTS: usize = 100;

/// Writes a file and renames it to `path` when it is complete and on the disk. A FIFO or a device
/// is written to directly.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io), also for a directory and for a file that is read-only.
pub fn write(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    let path = path.as_ref();
    if is_special(path) {
        return at(
            path,
            OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(bytes)),
        );
    }
    let mut file = AtomicFile::create(path)?;
    at(path, file.file().write_all(bytes))?;
    file.commit()
}

/// Checks that `path` can be written, before the work whose result it will have. Its folder must
/// take a file of `bytes` bytes (on Linux; elsewhere of one). `path` must be no directory, not
/// read-only, and none of `inputs`, also through links. What is there stays as it is.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io).
pub fn check_output(path: impl AsRef<Path>, bytes: u64, inputs: &[PathBuf]) -> Result<()> {
    let path = path.as_ref();
    check_no_input(path, inputs)?;
    if is_special(path) { Ok(()) } else { AtomicFile::create(path)?.reserve(bytes) }
}

/// Checks that `path` is none of `inputs`. A link to an input is the input.
pub(crate) fn check_no_input(path: &Path, inputs: &[PathBuf]) -> Result<()> {
    let Some(input) = inputs.iter().find(|input| is_same(path, input)) else { return Ok(()) };
    let what = format!(
        "it is an input, {}, which would be overwritten: choose another output",
        display(input)
    );
    at(path, Err(io::Error::new(io::ErrorKind::AlreadyExists, what)))
}

/// Checks, before the work, that `path` can be written in a folder that may not exist yet.
#[cfg(feature = "formats")]
pub(crate) fn check_new_output(path: &Path) -> Result<()> {
    // The first folder that is missing stands for the file.
    let missing =
        path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).last();
    AtomicFile::create(missing.unwrap_or(path))?.reserve(1)
}

/// Removes what killed writers of `path` left behind.
fn remove_stale(path: &Path) {
    let Some(name) = path.file_name() else { return };
    // What cannot be listed or removed stays: the writer that follows says why it fails, if it
    // does.
    for entry in fs::read_dir(folder(path)).into_iter().flatten().flatten().take(MOST_LISTED) {
        if is_partial_of(&entry.file_name(), name)
            && entry.file_type().is_ok_and(|kind| kind.is_file())
        {
            remove_if_stale(&entry.path());
        }
    }
}

/// A file that is being written under another name.
pub(crate) struct AtomicFile {
    target: PathBuf,
    file: File,
    /// Removed when it is dropped, unless it has been renamed.
    partial: TempPath,
    hold: Hold,
}

impl AtomicFile {
    /// Makes an empty file beside `target`, and removes those that killed writers of `target` left
    /// behind.
    pub fn create(target: &Path) -> Result<Self> {
        at(target, check_replaceable(target))?;
        remove_stale(target);
        let (file, partial, hold) = at(target, held(target))?;
        Ok(Self { target: target.to_owned(), file, partial, hold })
    }

    /// Makes the file `bytes` bytes long and takes room for them from the disk, where the system
    /// can. So a full disk is an error before the work. The caller then writes all of them.
    pub fn reserve(&mut self, bytes: u64) -> Result<()> {
        at(&self.target, reserve(&mut self.file, bytes))
    }

    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// The name that the file has until it is complete.
    #[cfg(any(test, feature = "formats"))]
    pub fn partial(&self) -> &Path {
        &self.partial
    }

    /// Writes bytes at a place, in bytes from the beginning.
    #[cfg(feature = "formats")]
    pub fn write_at(&mut self, start: u64, bytes: &[u8]) -> Result<()> {
        at(
            &self.target,
            io::Seek::seek(&mut self.file, io::SeekFrom::Start(start))
                .and_then(|_| self.file.write_all(bytes)),
        )
    }

    /// Waits until the bytes are on the disk. Some systems report a full disk only then.
    pub fn sync(&self) -> Result<()> {
        at(&self.target, self.file.sync_all())
    }

    /// Renames the file to its target.
    pub fn commit(self) -> Result<()> {
        self.sync()?;
        let Self { target, file: _file, partial, hold } = self;
        hold.end();
        at(&target, partial.persist(&target).map_err(|failed| failed.error))
    }
}

/// Creates a partial file that other writers do not remove.
fn held(target: &Path) -> io::Result<(File, TempPath, Hold)> {
    for _ in 0..ATTEMPTS {
        let (file, path) = new_partial(target)?.into_parts();
        if let Some(hold) = Hold::on(&file, &path)? {
            return Ok((file, path, hold));
        }
    }
    Err(io::Error::other("another program removes every file that is made beside it"))
}

fn new_partial(target: &Path) -> io::Result<tempfile::NamedTempFile> {
    let (mut builder, mut prefix) =
        (tempfile::Builder::new(), target.file_name().unwrap_or_default().to_owned());
    prefix.push(".");
    builder.prefix(&prefix).rand_bytes(PARTIAL_RANDOM).suffix(SUFFIX);
    // Others may read it, where they may read what this program makes.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder(target))
}

/// Returns whether a file is named as [`new_partial`] names those of `target`.
fn is_partial_of(name: &OsStr, target: &OsStr) -> bool {
    let random = name
        .as_encoded_bytes()
        .strip_prefix(target.as_encoded_bytes())
        .and_then(|rest| rest.strip_prefix(b"."));
    let random = random.and_then(|rest| rest.strip_suffix(SUFFIX.as_bytes()));
    random.is_some_and(|random| {
        random.len() == PARTIAL_RANDOM && random.iter().all(u8::is_ascii_alphanumeric)
    })
}

/// Marks a partial file as in use while its process lives, by a lock on it.
#[cfg(unix)]
struct Hold;

#[cfg(unix)]
impl Hold {
    /// None where the file was removed before it was locked.
    fn on(file: &File, _: &Path) -> io::Result<Option<Self>> {
        // Without locks in the file system, no writer gets one, and none removes anything.
        let _ = file.lock();
        Ok((std::os::unix::fs::MetadataExt::nlink(&file.metadata()?) > 0).then_some(Self))
    }

    fn end(self) {}
}

/// Marks a partial file as in use while its process lives, by a handle that prevents its removal.
#[cfg(windows)]
struct Hold(File);

#[cfg(windows)]
impl Hold {
    fn on(_: &File, path: &Path) -> io::Result<Option<Self>> {
        const READ_AND_WRITE: u32 = 1 | 2;
        let mut options = OpenOptions::new();
        std::os::windows::fs::OpenOptionsExt::share_mode(options.read(true), READ_AND_WRITE);
        match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            held => held.map(|file| Some(Self(file))),
        }
    }

    /// Renaming is removing too.
    fn end(self) {
        drop(self.0);
    }
}

#[cfg(not(any(unix, windows)))]
struct Hold;

#[cfg(not(any(unix, windows)))]
impl Hold {
    fn on(_: &File, _: &Path) -> io::Result<Option<Self>> {
        Ok(Some(Self))
    }

    fn end(self) {}
}

#[cfg(unix)]
fn remove_if_stale(partial: &Path) {
    if let Ok(file) = open_regular_with(partial, OpenOptions::new().write(true))
        && file.try_lock().is_ok()
    {
        let _ = fs::remove_file(partial);
    }
}

#[cfg(windows)]
fn remove_if_stale(partial: &Path) {
    // Fails where it is held.
    let _ = fs::remove_file(partial);
}

#[cfg(not(any(unix, windows)))]
fn remove_if_stale(_: &Path) {}

#[cfg(target_os = "linux")]
fn reserve(file: &mut File, bytes: u64) -> io::Result<()> {
    use rustix::{fs, io::Errno};
    match fs::fallocate(&*file, fs::FallocateFlags::empty(), 0, bytes.max(1)) {
        // Not every file system can.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
        reserved => Ok(reserved?),
    }
}

#[cfg(not(target_os = "linux"))]
fn reserve(file: &mut File, _: u64) -> io::Result<()> {
    // A byte at least.
    file.write_all(b"\0")?;
    file.set_len(0)?;
    io::Seek::rewind(file)
}

/// Returns whether two paths lead to one file.
#[cfg(unix)]
fn is_same(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    identity(a).is_some_and(|a| identity(b) == Some(a))
}

/// Returns whether two paths lead to one file. Hard links are not recognized. A rename over one
/// leaves the other intact.
#[cfg(not(unix))]
fn is_same(a: &Path, b: &Path) -> bool {
    a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b))
}

/// Returns whether there is something at a path that is neither a file nor a directory.
fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Checks that a file may take the place of what is at a path.
fn check_replaceable(path: &Path) -> io::Result<()> {
    let refuse = |kind, what: &str| Err(io::Error::new(kind, what));
    match fs::metadata(path) {
        _ if path.file_name().is_none() => {
            refuse(io::ErrorKind::InvalidInput, "is not the name of a file")
        }
        Ok(found) if found.is_dir() => {
            refuse(io::ErrorKind::IsADirectory, "is a directory; a file is written")
        }
        Ok(found) if !found.is_file() => {
            refuse(io::ErrorKind::InvalidInput, "is neither a regular file nor free")
        }
        Ok(found) if found.permissions().readonly() => {
            refuse(io::ErrorKind::PermissionDenied, "is read-only")
        }
        _ => Ok(()),
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn inputs_are_not_overwritten() {
        let model = ["assets/tales-22m/config.json".into()];
        let error = check_output("assets/../assets/tales-22m/config.json", 1000, &model);
        assert!(error.unwrap_err().to_string().ends_with(
            "it is an input, assets/tales-22m/config.json, which would be overwritten: choose another output"
        ));
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_next_writer_removes_stale_partials() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("model");
        let other = [
            "model.safetensors.abcdefghijkl.partial",
            "model.my-own.partial",
            "model.abcdefghijk-.partial",
            "model.abcdefghijkl.part",
        ];
        for name in
            [&other[..], &["model.abcdefghijkl.partial", "model.0123456789AB.partial"]].concat()
        {
            fs::write(directory.path().join(name), "left behind").unwrap();
        }
        write(&target, b"new").unwrap();
        let mut kept: Vec<_> =
            other.iter().map(ToString::to_string).chain(["model".to_owned()]).collect();
        kept.sort();
        assert_eq!(names(directory.path()), kept);
        assert_eq!(fs::read(&target).unwrap(), b"new");
    }

    #[test]
    fn writers_leave_each_others_partials() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("model");
        let mut first = AtomicFile::create(&target).unwrap();
        first.file().write_all(b"first").unwrap();
        let mut second = AtomicFile::create(&target).unwrap();
        second.file().write_all(b"second").unwrap();
        assert!(first.partial().exists() && second.partial().exists());
        second.commit().unwrap();
        first.commit().unwrap();
        assert_eq!(
            (names(directory.path()), fs::read(&target).unwrap()),
            (vec!["model".to_owned()], b"first".to_vec())
        );
    }

    #[test]
    fn outputs_are_checked_before_work() {
        let directory = tempfile::tempdir().unwrap();
        let [input, output, folder, link] =
            ["input", "output", "folder", "link"].map(|name| directory.path().join(name));
        fs::write(&input, "input").unwrap();
        fs::create_dir(&folder).unwrap();
        let check = |path: &Path| {
            check_output(path, 1, &[output.clone(), input.clone()])
                .map_err(|error| error.to_string())
        };
        check(&output).unwrap();
        for (path, expected) in [
            (&folder, "is a directory"),
            (&input, "it is an input"),
            (&folder.join("../input"), "it is an input"),
        ] {
            assert!(check(path).unwrap_err().contains(expected), "{path:?}");
        }
        assert!(matches!(check_output(folder.join("no/where"), 1, &[]), Err(Error::Io { .. })));
        #[cfg(unix)]
        for make in [std::os::unix::fs::symlink::<&Path, &Path>, fs::hard_link] {
            make(&input, &link).unwrap();
            assert!(check(&link).unwrap_err().contains("it is an input"));
            fs::remove_file(&link).unwrap();
        }
        let mut permissions = fs::metadata(&input).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&input, permissions).unwrap();
        assert!(check_output(&input, 1, &[]).unwrap_err().to_string().ends_with("is read-only"));
        assert_eq!(names(directory.path()), ["folder", "input"]);
        assert_eq!(fs::read(&input).unwrap(), b"input");
    }
}
