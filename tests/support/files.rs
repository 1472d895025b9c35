//! Directories for tests of files, files in safetensors, and documents that are made from the code.

use crate::repository;
use std::{fs, path::PathBuf};

/// A directory that is gone with the test.
pub struct Directory(pub PathBuf);

impl Directory {
    /// An empty one.
    pub fn temporary() -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("bitnet-wgpu-{}-{number}", std::process::id()));
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

/// What stands in a document between `<!-- name: begin -->` and `<!-- name: end -->` is `wanted`;
/// with `UPDATE` in the environment, it is made so.
///
/// # Errors
/// It is not.
pub fn check_table(document: &str, name: &str, expected: &str) -> Result<(), String> {
    let path = repository(document);
    let text = fs::read_to_string(&path).map_err(|e| format!("{document}: {e}"))?;
    let [begin, end] = ["begin", "end"].map(|at| format!("<!-- {name}: {at} -->"));
    let (before, rest) =
        text.split_once(&begin).ok_or_else(|| format!("{document} lacks {begin}"))?;
    let (found, after) = rest.split_once(&end).ok_or_else(|| format!("{document} lacks {end}"))?;
    if std::env::var_os("UPDATE").is_some() {
        return fs::write(&path, format!("{before}{begin}\n{expected}{end}{after}"))
            .map_err(|e| format!("{document}: {e}"));
    }
    if found.trim() == expected.trim() {
        Ok(())
    } else {
        Err(format!("{document}: the table `{name}` is out of date; UPDATE=1 writes it"))
    }
}

/// A safetensors file from (name, dtype, shape, bytes), written by hand: the oracle is the format's
/// description, not the crate that reads it.
pub fn safetensors(tensors: &[(&str, &str, &[usize], &[u8])]) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        entries.push(format!(
            "{name:?}:{{\"dtype\":{dtype:?},\"shape\":{shape:?},\"data_offsets\":{offsets:?}}}"
        ));
        data.extend_from_slice(bytes);
    }
    with_header(&format!("{{{}}}", entries.join(",")), &data)
}

/// A safetensors file of this header.
pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// Words of MLX: an integer of this many bits for every weight, the first in the lowest.
pub fn words(integers: &[u32], bits: usize) -> Vec<u8> {
    let word = |all: &[u32]| all.iter().rev().fold(0u32, |word, integer| word << bits | integer);
    integers.chunks(32 / bits).flat_map(|all| word(all).to_le_bytes()).collect()
}
