//! The safetensors format: the header's length in eight bytes, a JSON header, the tensors' bytes.

use super::{json::MOST_JSON, mapped, problem::Problem};
use crate::error::{Error, Result};
use half::{bf16, f16};
use safetensors::Dtype;
use std::path::{Path, PathBuf};

/// A memory-mapped safetensors file whose header has been checked.
pub struct SafeTensors {
    path: PathBuf,
    map: memmap2::Mmap,
    metadata: safetensors::tensor::Metadata,
    /// Offset in the file where the tensors' bytes begin.
    data: usize,
}

/// One tensor of a file: its type, its shape, its bytes.
#[derive(Clone, Debug)]
pub struct TensorBytes<'a> {
    path: &'a Path,
    name: String,
    /// The element type.
    pub dtype: Dtype,
    /// The dimensions, outermost first.
    pub shape: &'a [usize],
    /// Row-major, little-endian.
    pub bytes: &'a [u8],
}

impl SafeTensors {
    /// Maps `path` and checks its header: tensors must cover the file without gap or overlap. Do not truncate the file while it is in use.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Format`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let map = mapped::map(&path)?;
        check_offsets(&map).map_err(|message| Problem::Damaged(message).at(&path))?;
        let header = safetensors::SafeTensors::read_metadata(&map);
        let (length, metadata) = header.map_err(|e| Problem::Damaged(e.to_string()).at(&path))?;
        Ok(Self { path, map, metadata, data: 8 + length })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tensors' names, in the order of their bytes.
    pub fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// Is there a tensor of that name?
    pub fn contains(&self, name: &str) -> bool {
        self.metadata.info(name).is_some()
    }

    /// A string that the file says about itself.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// One tensor.
    ///
    /// # Errors
    /// [`Error::Format`] if there is no tensor of that name.
    pub fn tensor(&self, name: &str) -> Result<TensorBytes<'_>> {
        let info = self.metadata.info(name).ok_or_else(|| self.error(format!("no tensor `{name}`")))?;
        let (start, end) = info.data_offsets;
        let bytes = self.map.get(self.data + start..self.data + end);
        let bytes = bytes.ok_or_else(|| self.error(format!("`{name}` ends at {end}, beyond the file")))?;
        Ok(TensorBytes { path: &self.path, name: name.to_owned(), dtype: info.dtype, shape: &info.shape, bytes })
    }

    fn error(&self, message: String) -> Error {
        Problem::Damaged(message).at(&self.path)
    }
}

/// Checks offsets before the `safetensors` crate does: it adds them up without overflow checks, and its errors name no tensor.
fn check_offsets(file: &[u8]) -> Result<(), String> {
    let short = || format!("{} bytes are too few for a safetensors file, which begins with the 8-byte length of its header", file.len());
    let (length, rest) = file.split_first_chunk::<8>().ok_or_else(short)?;
    let length = u64::from_le_bytes(*length);
    if length > MOST_JSON as u64 {
        return Err(format!("the header claims {length} bytes; {MOST_JSON} are supported"));
    }
    let header = usize::try_from(length).ok().and_then(|length| rest.get(..length));
    let header = header.ok_or_else(|| format!("the header claims {length} bytes, the file has {} more", rest.len()))?;
    let header: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(header).map_err(|e| format!("the header is not a JSON object: {e}"))?;
    let bytes = (rest.len() as u64).saturating_sub(length);
    for (name, info) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        let offsets = info.get("data_offsets").and_then(|offsets| offsets.as_array());
        let offsets: Option<Vec<u64>> = offsets.and_then(|offsets| offsets.iter().map(|offset| offset.as_u64()).collect());
        match offsets.as_deref() {
            Some(&[start, end]) if start <= end && end <= bytes => {}
            Some(&[start, end]) => return Err(format!("`{name}` claims bytes {start}..{end} of the {bytes} there are")),
            _ => return Err(format!("`{name}` has no data_offsets [start, end]")),
        }
    }
    Ok(())
}

impl TensorBytes<'_> {
    /// The elements as `f32`: F32 as stored, BF16 and F16 widened.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for another type.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        use rayon::prelude::*;
        // Tensors in a file need not be aligned for their type.
        let pairs = || self.bytes.par_chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
        match self.dtype {
            Dtype::F32 => Ok(self.bytes.par_chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()),
            Dtype::BF16 => Ok(pairs().map(|bits| bf16::from_bits(bits).to_f32()).collect()),
            Dtype::F16 => Ok(pairs().map(|bits| f16::from_bits(bits).to_f32()).collect()),
            other => Err(self.unsupported(format!("is {other:?}; F32, BF16 or F16 is needed"))),
        }
    }

    /// The dimensions of a matrix.
    ///
    /// # Errors
    /// [`Error::Format`] if it has another rank.
    pub fn matrix(&self) -> Result<(usize, usize)> {
        match self.shape {
            &[rows, columns] => Ok((rows, columns)),
            shape => Err(self.error(format!("has shape {shape:?}; a matrix is needed"))),
        }
    }

    /// An error about this tensor.
    pub(crate) fn error(&self, message: impl std::fmt::Display) -> Error {
        self.problem(Problem::Damaged(message.to_string()))
    }

    pub(super) fn unsupported(&self, message: impl std::fmt::Display) -> Error {
        self.problem(Problem::Unsupported(message.to_string()))
    }

    pub(super) fn problem(&self, problem: Problem) -> Error {
        problem.map(|message| format!("`{}` {message}", self.name)).at(self.path)
    }
}
