//! weight.bin: blobs, each with metadata of 64 bytes before it, after a header of 64 bytes.
//! Everything begins at a multiple of 64 bytes, and numbers are little-endian.
//!
//! | part | bytes |
//! | --- | --- |
//! | header | u32 number of blobs, u32 version 2, zeros |
//! | metadata | u32 0xDEADBEEF, u32 type, u64 bytes of data, u64 place of the data, u64 unused bits at its end, zeros |

use crate::error::{Result, at};
use std::{
    fs::File,
    io::{BufWriter, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

/// What a blob begins at a multiple of, and the size of the header and of metadata, in bytes.
pub(crate) const ALIGNMENT: u64 = 64;

const VERSION: u32 = 2;
const SENTINEL: u32 = 0xDEAD_BEEF;

/// Type of a blob's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum BlobType {
    Float32 = 2,
    /// Four in a byte, the first one in the lowest bits.
    Uint2 = 10,
}

/// Writes weight.bin from its beginning to its end.
pub(crate) struct BlobWriter {
    path: PathBuf,
    file: BufWriter<File>,
    count: u32,
    /// Bytes that are written.
    end: u64,
}

impl BlobWriter {
    pub fn create(path: &Path) -> Result<Self> {
        let file = BufWriter::new(at(path, File::create(path))?);
        let mut writer = Self { path: path.to_owned(), file, count: 0, end: 0 };
        writer.put(&[0; ALIGNMENT as usize])?;
        Ok(writer)
    }

    /// Writes floats. Returns the place of the metadata, which programs name.
    pub fn floats(&mut self, values: &[f32]) -> Result<u64> {
        self.rows(1, values.len(), |_| values.to_vec())
    }

    /// Writes `rows` rows of `columns` floats, a row after another.
    pub fn rows(
        &mut self,
        rows: usize,
        columns: usize,
        row: impl Fn(usize) -> Vec<f32>,
    ) -> Result<u64> {
        let bytes = 4 * rows as u64 * columns as u64;
        let place = self.begin(BlobType::Float32, bytes, 0)?;
        for index in 0..rows {
            let bytes: Vec<u8> = row(index).iter().flat_map(|v| v.to_le_bytes()).collect();
            self.put(&bytes)?;
        }
        self.pad()?;
        Ok(place)
    }

    /// Writes codes of 0 to 3, two bits each. Returns the place of the metadata.
    pub fn codes(&mut self, codes: &[u8]) -> Result<u64> {
        let byte = |four: &[u8]| {
            four.iter().enumerate().fold(0, |byte, (place, code)| byte | code << (2 * place))
        };
        let bytes: Vec<u8> = codes.chunks(4).map(byte).collect();
        let unused = (4 * bytes.len() - codes.len()) * 2;
        let place = self.begin(BlobType::Uint2, bytes.len() as u64, unused as u64)?;
        self.put(&bytes)?;
        self.pad()?;
        Ok(place)
    }

    /// Writes the metadata of a blob, and returns their place.
    fn begin(&mut self, kind: BlobType, bytes: u64, unused_bits: u64) -> Result<u64> {
        let place = self.end;
        let mut metadata = Vec::with_capacity(ALIGNMENT as usize);
        metadata.extend(SENTINEL.to_le_bytes());
        metadata.extend((kind as u32).to_le_bytes());
        for number in [bytes, place + ALIGNMENT, unused_bits] {
            metadata.extend(number.to_le_bytes());
        }
        metadata.resize(ALIGNMENT as usize, 0);
        self.put(&metadata)?;
        self.count += 1;
        Ok(place)
    }

    fn pad(&mut self) -> Result<()> {
        let padding = self.end.next_multiple_of(ALIGNMENT) - self.end;
        self.put(&vec![0; padding as usize])
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        at(&self.path, self.file.write_all(bytes))?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Writes the header, and waits until the file is on the disk. Returns its size, in bytes.
    pub fn finish(mut self) -> Result<u64> {
        let header = [self.count.to_le_bytes(), VERSION.to_le_bytes()].concat();
        let mut write = || {
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(&header)?;
            self.file.flush()?;
            self.file.get_ref().sync_all()
        };
        at(&self.path, write())?;
        Ok(self.end)
    }
}
