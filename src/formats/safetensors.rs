//! The safetensors format: the header's length in eight bytes, a JSON header, the tensors' bytes.

use super::{
    file::InputFile,
    format_error::FormatError,
    stand_in::{START, stand_in},
};
use crate::{
    error::{Error, Result},
    limits::files::MOST_JSON,
};
use bytemuck::Pod;
use half::{bf16, f16};
use safetensors::{Dtype, tensor::Metadata};
use serde_json::Value;
use std::path::Path;

/// A safetensors file whose header has been checked.
pub struct SafeTensors {
    file: InputFile,
    metadata: Metadata,
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
    pub bytes: Vec<u8>,
}

impl SafeTensors {
    /// Opens `path` and checks its header: tensors must cover the file without gap or overlap.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Format`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let file = InputFile::open(path.as_ref())?;
        let header = read_header(&file).map_err(|error| instead_of(&file, error))?;
        let metadata = metadata(&header, file.len() - 8 - header.len())
            .map_err(|message| FormatError::Damaged(message).at(path))?;
        Ok(Self { file, metadata, data: 8 + header.len() })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the tensors' names, in the order of their bytes.
    pub fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// Returns whether there is a tensor of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.metadata.info(name).is_some()
    }

    /// Returns a string that the file says about itself.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// Returns the type of a tensor.
    pub fn dtype(&self, name: &str) -> Option<Dtype> {
        self.metadata.info(name).map(|info| info.dtype)
    }

    /// Returns the dimensions of a tensor, outermost first.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.metadata.info(name).map(|info| &*info.shape)
    }

    /// Returns the bytes of a tensor.
    pub fn size(&self, name: &str) -> Option<usize> {
        self.metadata.info(name).map(|info| info.data_offsets.1 - info.data_offsets.0)
    }

    /// Reads a tensor.
    ///
    /// # Errors
    /// [`Error::Format`] if there is no tensor of that name, or the file has been truncated;
    /// [`Error::Io`].
    pub fn tensor(&self, name: &str) -> Result<TensorBytes<'_>> {
        let info =
            self.metadata.info(name).ok_or_else(|| self.error(format!("no tensor `{name}`")))?;
        let (start, end) = info.data_offsets;
        let bytes = self.file.read(self.data + start, end - start)?;
        Ok(TensorBytes {
            path: self.path(),
            name: name.to_owned(),
            dtype: info.dtype,
            shape: &info.shape,
            bytes,
        })
    }

    /// Reads a tensor of this type and shape as numbers of its type, to where they stay.
    ///
    /// # Errors
    /// As [`SafeTensors::tensor`]; [`Error::Format`] for one of another type or shape.
    pub(super) fn numbers<T: Pod>(
        &self,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
    ) -> Result<Vec<T>> {
        let info =
            self.metadata.info(name).ok_or_else(|| self.error(format!("no tensor `{name}`")))?;
        if info.dtype != dtype || info.shape != shape {
            return Err(self.error(format!(
                "`{name}` is {} of shape {:?}; {dtype} of {shape:?} is needed",
                info.dtype, info.shape
            )));
        }
        let (start, end) = info.data_offsets;
        self.file.numbers(self.data + start, (end - start) / size_of::<T>())
    }

    pub(super) fn error(&self, message: String) -> Error {
        FormatError::Damaged(message).at(self.path())
    }
}

/// Returns an error that says what the file is, if it is known by its first bytes.
fn instead_of(file: &InputFile, error: Error) -> Error {
    let start = file.read(0, file.len().min(START)).ok();
    start.and_then(|start| stand_in(&start)).map_or(error, |problem| problem.at(file.path()))
}

/// The header's bytes.
fn read_header(file: &InputFile) -> Result<Vec<u8>> {
    let damaged = |message: String| Err(FormatError::from(message).at(file.path()));
    let Some(rest) = file.len().checked_sub(8) else {
        return damaged(format!(
            "{} bytes are too few for a safetensors file, which begins with the 8-byte length of its header",
            file.len()
        ));
    };
    let claimed =
        file.read(0, 8)?.iter().rev().fold(0, |length, &byte| length << 8 | u64::from(byte));
    if claimed > MOST_JSON as u64 {
        return damaged(format!("the header claims {claimed} bytes; {MOST_JSON} are supported"));
    }
    match usize::try_from(claimed) {
        Ok(length) if length <= rest => file.read(8, length),
        _ => damaged(format!("the header claims {claimed} bytes, the file has {rest} more")),
    }
}

/// What a header says of a file with this many bytes of data. Offsets are checked before the
/// `safetensors` crate does: it adds them up without overflow checks, and its errors name no
/// tensor.
fn metadata(header: &[u8], data: usize) -> Result<Metadata, String> {
    let json: Value = serde_json::from_slice(header)
        .map_err(|e| format!("the header is not a JSON object: {e}"))?;
    let entries = json.as_object().ok_or("the header is not a JSON object")?;
    for (name, info) in entries.iter().filter(|(name, _)| *name != "__metadata__") {
        let offsets = info.get("data_offsets").and_then(|offsets| offsets.as_array());
        let offsets: Option<Vec<u64>> =
            offsets.and_then(|offsets| offsets.iter().map(|offset| offset.as_u64()).collect());
        match offsets.as_deref() {
            Some(&[start, end]) if start <= end && end <= data as u64 => {}
            Some(&[start, end]) => {
                return Err(format!(
                    "`{name}` claims bytes {start}..{end} of the {data} there are"
                ));
            }
            _ => return Err(format!("`{name}` has no data_offsets [start, end]")),
        }
    }
    let metadata: Metadata = serde_json::from_slice(header).map_err(|e| e.to_string())?;
    match metadata.data_len() {
        used if used == data => Ok(metadata),
        used => Err(format!("its tensors cover {used} of the {data} bytes there are")),
    }
}

impl TensorBytes<'_> {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// A matrix of this shape among several, which lie one after another.
    pub(super) fn part<'a>(&'a self, index: usize, shape: &'a [usize]) -> TensorBytes<'a> {
        let bytes = shape.iter().product::<usize>() * self.dtype.bitsize() / 8;
        TensorBytes {
            path: self.path,
            name: self.name.clone(),
            dtype: self.dtype,
            shape,
            bytes: self.bytes[index * bytes..][..bytes].to_vec(),
        }
    }

    /// Returns the elements as `f32`: F32 as stored, BF16 and F16 widened.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for another type.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        use rayon::prelude::*;
        // Tensors in a file need not be aligned for their type.
        let pairs = || self.bytes.par_chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
        match self.dtype {
            Dtype::F32 => Ok(self
                .bytes
                .par_chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect()),
            Dtype::BF16 => Ok(pairs().map(|bits| bf16::from_bits(bits).to_f32()).collect()),
            Dtype::F16 => Ok(pairs().map(|bits| f16::from_bits(bits).to_f32()).collect()),
            other => Err(self.unsupported(format!("is {other}; F32, BF16 or F16 is needed"))),
        }
    }

    /// The dimensions of a matrix.
    ///
    /// # Errors
    /// [`Error::Format`] if it has another rank.
    pub(crate) fn matrix(&self) -> Result<(usize, usize)> {
        match self.shape {
            // A convolution by channels, too.
            &[rows, columns] | &[rows, 1, columns] => Ok((rows, columns)),
            shape => Err(self.error(format!("has shape {shape:?}; a matrix is needed"))),
        }
    }

    /// An error about this tensor.
    pub(crate) fn error(&self, message: impl std::fmt::Display) -> Error {
        self.problem(FormatError::Damaged(message.to_string()))
    }

    pub(super) fn unsupported(&self, message: impl std::fmt::Display) -> Error {
        self.problem(FormatError::Unsupported(message.to_string()))
    }

    pub(super) fn problem(&self, problem: FormatError) -> Error {
        problem.map(|message| format!("`{}` {message}", self.name)).at(self.path)
    }
}
