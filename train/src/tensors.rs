//! Safetensors files that are written a tensor at a time.

use crate::error::Result;
use bitnet_wgpu::Error as LibraryError;
use safetensors::Dtype;
use serde_json::{Map, Value, json};
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, BufWriter, Write as _},
    path::Path,
};

/// A tensor that is written.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
}

impl Entry {
    fn bytes(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product::<u64>() * self.dtype.bitsize() as u64 / 8
    }
}

/// Writes a file, which is complete under its name or not there. `read` gives the bytes of each
/// entry, in any order, so that one tensor is in memory.
///
/// # Errors
/// [`LibraryError::Io`], also for bytes that do not fit the entry; what `read` reports.
pub fn write(
    path: &Path,
    entries: &[Entry],
    mut read: impl FnMut(usize) -> Result<Vec<u8>>,
) -> Result<()> {
    let mut partial = OsString::from(path);
    partial.push(".partial");
    let partial = Path::new(&partial);
    // Wider types first, so that all are aligned.
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(entries[i].dtype.bitsize()), &entries[i].name));
    let made = (|| {
        let mut file = BufWriter::new(at(partial, File::create(partial))?);
        at(partial, file.write_all(&header(entries, &order)))?;
        for &i in &order {
            let bytes = read(i)?;
            if bytes.len() as u64 != entries[i].bytes() {
                let problem = format!("`{}` has {} bytes", entries[i].name, bytes.len());
                return at(partial, Err(io::Error::other(problem)));
            }
            at(partial, file.write_all(&bytes))?;
        }
        at(partial, file.flush())?;
        at(partial, file.get_ref().sync_all())
    })();
    match made {
        Ok(()) => at(path, fs::rename(partial, path)),
        Err(error) => {
            // The error says more than what cannot be removed.
            let _ = fs::remove_file(partial);
            Err(error)
        }
    }
}

/// The length of the header, and the header, in JSON with spaces behind it.
fn header(entries: &[Entry], order: &[usize]) -> Vec<u8> {
    let mut json = Map::new();
    json.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut first = 0;
    for &i in order {
        let Entry { name, dtype, shape } = &entries[i];
        let end = first + entries[i].bytes();
        let tensor = json!({
            "dtype": dtype.to_string(), "shape": shape, "data_offsets": [first, end],
        });
        json.insert(name.clone(), tensor);
        first = end;
    }
    let mut header = Value::Object(json).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    [&(header.len() as u64).to_le_bytes()[..], &header].concat()
}

pub fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

pub fn at<T>(path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|source| LibraryError::Io { path: path.to_owned(), source }.into())
}
