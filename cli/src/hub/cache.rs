//! The cache's folder of one repository, in the layout of huggingface_hub:
//! `models--OWNER--NAME/{blobs,refs,snapshots}`.
//!
//! Names that come from the network are checked by [`is_component`] before they come here. Folders
//! and files that are written are checked to be no symbolic links before they are opened, so that
//! one that an attacker had planted leads nowhere. (Another program of the same user, which could
//! write anywhere itself, is not an attacker.)
//!
//! The folder itself may be a link, as of a user who has moved a model to another disk. It is read
//! as any other, since whoever could plant such a link could plant the files too. Nothing is
//! written through it.

use super::{error::HubError, name::is_component};
use crate::note;
use bitnet_wgpu::internals::files;
use ring::digest::{Context, SHA256};
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// Longest file of a reference, in bytes: a commit has 40.
const MOST_REFERENCE_BYTES: u64 = 1024;

/// Bytes of one read of a file that is hashed.
const HASH_BUFFER_BYTES: usize = 64 << 10;

/// The cache's folder of a repository of models.
pub struct Cache {
    cache: PathBuf,
    name: String,
}

impl Cache {
    pub fn new(cache: PathBuf, repository: &str) -> Self {
        Self { cache, name: format!("models--{}", repository.replace('/', "--")) }
    }

    fn root(&self) -> PathBuf {
        self.cache.join(&self.name)
    }

    /// Returns the folder of a commit's files, whether it is there or not.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.root().join("snapshots").join(commit)
    }

    /// Returns the commit that a revision had at the last download. A revision may be a commit
    /// itself, for which Python's programs keep no reference.
    pub fn commit(&self, revision: &str) -> Option<String> {
        let is_commit = is_hash(revision) && self.snapshot(revision).is_dir();
        self.reference(revision).or_else(|| is_commit.then(|| revision.to_owned()))
    }

    fn reference(&self, revision: &str) -> Option<String> {
        let folder = self.root().join("refs");
        let path = folder.join(revision);
        if folder.symlink_metadata().ok()?.is_symlink() || plain_size(&path).ok()?.is_none() {
            return None;
        }
        let text = String::from_utf8(files::read(&path, MOST_REFERENCE_BYTES).ok()?).ok()?;
        Some(text.trim().to_owned()).filter(|commit| is_component(commit))
    }

    /// Records the commit of a revision, so that programs without a network find it.
    pub fn set_commit(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if self.reference(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let folder = self.folder(&["refs"])?;
        let (path, new) =
            (folder.join(revision), folder.join(format!(".{}.part", std::process::id())));
        plain_size(&path)?;
        // Of a killed process with this id.
        let _ = fs::remove_file(&new);
        let written = File::create_new(&new)
            .and_then(|mut file| file.write_all(commit.as_bytes()))
            .and_then(|()| fs::rename(&new, &path));
        written.map_err(HubError::file(&path))
    }

    /// Returns the path of a commit's file if it is there. Refuses a link that leads out of the
    /// repository's folder.
    pub fn find(&self, commit: &str, file: &str) -> Result<Option<PathBuf>, HubError> {
        let path = self.snapshot(commit).join(file);
        let target = match path.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            target => target.map_err(HubError::file(&path))?,
        };
        let root = self.root();
        match target.starts_with(root.canonicalize().map_err(HubError::file(&root))?) {
            true => Ok(Some(path)),
            false => Err(HubError::Link { path }),
        }
    }

    /// Takes the lock of a file's version, which other programs and processes use too. It is given
    /// back when it is dropped.
    pub fn lock(&self, etag: &str) -> Result<File, HubError> {
        let path = self.folder_of(&[".locks", &self.name])?.join(format!("{etag}.lock"));
        plain_size(&path)?;
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(HubError::file(&path))?;
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) => {
                note("another process downloads this file; waiting for it")
            }
            Err(TryLockError::Error(error)) => return Err(HubError::File { path, error }),
        }
        lock.lock().map_err(HubError::file(&path))?;
        Ok(lock)
    }

    /// Returns the folder of the files' versions, as one that is there.
    fn blobs(&self) -> Result<PathBuf, HubError> {
        self.folder(&["blobs"])
    }

    /// Returns whether a version of a file is there as a whole.
    pub fn has_blob(&self, etag: &str, size: u64) -> Result<bool, HubError> {
        Ok(plain_size(&self.blobs()?.join(etag))? == Some(size))
    }

    /// Opens what there is of a version of a file, or begins it. The caller has its lock.
    pub fn partial(&self, etag: &str) -> Result<Partial, HubError> {
        let blob = self.blobs()?.join(etag);
        let path = self.blobs()?.join(format!("{etag}.part"));
        plain_size(&path)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(HubError::file(&path))?;
        Ok(Partial { file, path, blob })
    }

    /// Makes a version of a file that is there a file of a commit. The caller has its lock.
    pub fn link(&self, etag: &str, commit: &str, file: &str) -> Result<PathBuf, HubError> {
        let mut parts: Vec<&str> =
            ["snapshots", commit].into_iter().chain(file.split('/')).collect();
        let name = parts.pop().unwrap_or_default();
        let path = self.folder(&parts)?.join(name);
        // A link whose target is gone.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(HubError::File { path, error });
            }
            _ => {}
        }
        // Relative, so that the cache can be moved.
        let target: PathBuf = parts.iter().map(|_| "..").chain(["blobs", etag]).collect();
        link(&target, &path).map_err(HubError::file(&path))?;
        Ok(path)
    }

    /// Returns a folder of the repository, as one that is there. Follows no links.
    fn folder(&self, parts: &[&str]) -> Result<PathBuf, HubError> {
        self.folder_of(&[&[self.name.as_str()], parts].concat())
    }

    fn folder_of(&self, parts: &[&str]) -> Result<PathBuf, HubError> {
        let mut path = self.cache.clone();
        fs::create_dir_all(&path).map_err(HubError::file(&path))?;
        for part in parts {
            path.push(part);
            match fs::create_dir(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(HubError::File { path, error });
                }
                _ => {}
            }
            let metadata = path.symlink_metadata().map_err(HubError::file(&path))?;
            if metadata.is_symlink() {
                return Err(HubError::Link { path });
            }
            if !metadata.is_dir() {
                return Err(HubError::File { path, error: io::ErrorKind::NotADirectory.into() });
            }
        }
        Ok(path)
    }
}

/// Returns whether a revision is the hash of a commit: 40 hexadecimal digits.
fn is_hash(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What there is of a version of a file.
pub struct Partial {
    file: File,
    path: PathBuf,
    blob: PathBuf,
}

impl Partial {
    /// Returns the bytes that are there.
    pub fn len(&self) -> Result<u64, HubError> {
        self.file.metadata().map(|metadata| metadata.len()).map_err(HubError::file(&self.path))
    }

    /// Begins anew.
    pub fn truncate(&mut self) -> Result<(), HubError> {
        self.file.set_len(0).map_err(HubError::file(&self.path))
    }

    /// Sets the byte at which the next write begins.
    pub fn seek(&mut self, start: u64) -> Result<(), HubError> {
        self.file.seek(SeekFrom::Start(start)).map(|_| ()).map_err(HubError::file(&self.path))
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        self.file.write_all(bytes).map_err(HubError::file(&self.path))
    }

    /// Returns the SHA-256 of what is there, in hexadecimal digits.
    pub fn sha256(&mut self) -> Result<String, HubError> {
        self.seek(0)?;
        let (mut context, mut buffer) = (Context::new(&SHA256), vec![0; HASH_BUFFER_BYTES]);
        loop {
            match self.file.read(&mut buffer).map_err(HubError::file(&self.path))? {
                0 => {
                    return Ok(context
                        .finish()
                        .as_ref()
                        .iter()
                        .map(|byte| format!("{byte:02x}"))
                        .collect());
                }
                read => context.update(&buffer[..read]),
            }
        }
    }

    /// Makes it the whole version, at once.
    pub fn finish(self) -> Result<(), HubError> {
        let Self { file, path, blob } = self;
        let synced = file.sync_all();
        // Some systems rename no file that is open.
        drop(file);
        synced.and_then(|()| fs::rename(&path, blob)).map_err(HubError::file(&path))
    }

    pub fn remove(self) -> Result<(), HubError> {
        let Self { file, path, .. } = self;
        drop(file);
        fs::remove_file(&path).map_err(HubError::file(&path))
    }
}

/// Returns the size of a file in bytes, or none if there is nothing. Refuses links, folders and
/// devices.
fn plain_size(path: &Path) -> Result<Option<u64>, HubError> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(HubError::File { path: path.into(), error }),
        Ok(metadata) if metadata.is_symlink() => Err(HubError::Link { path: path.into() }),
        Ok(metadata) if metadata.is_file() => Ok(Some(metadata.len())),
        Ok(_) => {
            Err(HubError::File { path: path.into(), error: io::Error::other("is not a file") })
        }
    }
}

#[cfg(unix)]
fn link(target: &Path, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

/// Symbolic links need rights of their own elsewhere.
#[cfg(not(unix))]
fn link(target: &Path, path: &Path) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::hard_link(folder.join(target), path)
}
