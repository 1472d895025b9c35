//! Directories for tests of files, and documents that are made from the code.

use crate::repository;
use std::{fs, path::PathBuf};

/// A directory that is gone with the test.
pub struct Directory(pub PathBuf);

impl Directory {
    /// An empty one.
    pub fn temporary() -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("bitnet-wgpu-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Writes a file and gives its path.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What stands in a document between `<!-- name: begin -->` and `<!-- name: end -->` is `wanted`; with `UPDATE` in the environment, it is made so.
///
/// # Errors
/// It is not.
pub fn check_table(document: &str, name: &str, wanted: &str) -> Result<(), String> {
    let path = repository(document);
    let text = fs::read_to_string(&path).map_err(|e| format!("{document}: {e}"))?;
    let [begin, end] = ["begin", "end"].map(|at| format!("<!-- {name}: {at} -->"));
    let (before, rest) = text.split_once(&begin).ok_or_else(|| format!("{document} lacks {begin}"))?;
    let (found, after) = rest.split_once(&end).ok_or_else(|| format!("{document} lacks {end}"))?;
    if std::env::var_os("UPDATE").is_some() {
        return fs::write(&path, format!("{before}{begin}\n{wanted}{end}{after}")).map_err(|e| format!("{document}: {e}"));
    }
    if found.trim() == wanted.trim() { Ok(()) } else { Err(format!("{document}: the table `{name}` is out of date; UPDATE=1 writes it")) }
}
