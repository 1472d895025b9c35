//! Parses the container: magic, version, counts, metadata, tensor infos, aligned data. No memory is
//! reserved by a count from the file.

use super::{
    blocks::GgufType,
    cursor::Cursor,
    value::{Kind, show, value},
};
use crate::formats::format_error::{FormatError, unsupported};
use std::collections::{BTreeMap, btree_map::Entry};

/// A metadata value's type and its byte offset in the file.
pub(super) struct Place {
    pub(super) kind: Kind,
    pub(super) at: usize,
}

/// A tensor's entry in the file, not yet checked against the file's size.
pub(super) struct Info {
    /// Outermost first.
    pub(super) shape: Vec<usize>,
    /// The type's number.
    pub(super) id: u32,
    /// In bytes from the beginning of the data.
    pub(super) offset: u64,
    /// The product of all dimensions.
    pub(super) elements: usize,
}

pub(super) struct Header {
    pub(super) metadata: BTreeMap<String, Place>,
    pub(super) tensors: BTreeMap<String, Info>,
    /// Offset in the file where the tensors' data begin, in bytes.
    pub(super) data: usize,
    pub(super) alignment: usize,
}

impl Info {
    /// Its bytes; none for a type that is not read.
    pub(super) fn size(&self) -> Result<Option<usize>, String> {
        GgufType::from_id(self.id).bytes(self.elements, self.shape.last().copied().unwrap_or(1))
    }
}

/// Reads the header of a file of `length` bytes, of which these are the first.
pub(super) fn header(bytes: &[u8], length: usize) -> Result<Header, FormatError> {
    let mut cursor = Cursor { bytes, at: 0 };
    if cursor.take(4, "the magic")? != b"GGUF" {
        return Err("is not a GGUF file: it does not begin with the bytes `GGUF`".into());
    }
    match cursor.u32("the version")? {
        2 | 3 => {}
        version if (1..=3).contains(&version.swap_bytes()) => {
            return unsupported("is a big-endian GGUF file; only little-endian ones are supported");
        }
        version => {
            return unsupported(format!(
                "is GGUF version {version}; versions 2 and 3 are supported"
            ));
        }
    }
    // Least sizes. Tensor: name length 8, rank 4, type 4, offset 8. Metadata entry: key length 8,
    // type 4, value 1.
    let tensors = cursor.count(24, "tensors")?;
    let entries = cursor.count(13, "metadata entries")?;
    let metadata = metadata(&mut cursor, entries)?;
    let alignment = alignment(bytes, &metadata)?;
    let tensors = infos(&mut cursor, tensors)?;
    let data = cursor.at.next_multiple_of(alignment);
    if data > length && !tensors.is_empty() {
        return Err(format!("the data should begin at byte {data}; the file has {length}").into());
    }
    Ok(Header { metadata, tensors, data, alignment })
}

fn metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<BTreeMap<String, Place>, String> {
    let mut metadata = BTreeMap::new();
    for _ in 0..count {
        let key = cursor.string("a metadata key")?;
        let kind =
            Kind::from_id(cursor.u32("a metadata type")?).map_err(|e| format!("`{key}` {e}"))?;
        let at = cursor.at;
        value(cursor, kind).map_err(|e| format!("`{key}`: {e}"))?;
        if metadata.insert(key.to_owned(), Place { kind, at }).is_some() {
            return Err(format!("`{key}` occurs twice in the metadata"));
        }
    }
    Ok(metadata)
}

fn alignment(bytes: &[u8], metadata: &BTreeMap<String, Place>) -> Result<usize, String> {
    let Some(place) = metadata.get("general.alignment") else { return Ok(32) };
    let stored = value(&mut Cursor { bytes, at: place.at }, place.kind)?;
    let alignment =
        stored.as_u64().filter(|alignment| alignment.is_power_of_two() && *alignment <= 1 << 20);
    alignment.map(|alignment| alignment as usize).ok_or_else(|| {
        format!("general.alignment is {}; a power of two up to 2^20 is needed", show(stored))
    })
}

fn infos(cursor: &mut Cursor<'_>, count: u64) -> Result<BTreeMap<String, Info>, String> {
    let mut infos = BTreeMap::new();
    for _ in 0..count {
        let name = cursor.string("a tensor's name")?;
        let info = info(cursor).map_err(|e| format!("`{name}`: {e}"))?;
        match infos.entry(name.to_owned()) {
            Entry::Occupied(_) => return Err(format!("`{name}` occurs twice")),
            Entry::Vacant(entry) => drop(entry.insert(info)),
        }
    }
    Ok(infos)
}

fn info(cursor: &mut Cursor<'_>) -> Result<Info, String> {
    let rank = cursor.u32("a count of dimensions")?;
    if rank > 4 {
        return Err(format!("has {rank} dimensions; at most 4 are supported"));
    }
    let mut sizes = Vec::new();
    for _ in 0..rank {
        sizes.push(cursor.u64("a dimension")?);
    }
    // The file has the innermost first.
    sizes.reverse();
    // Zeros count as ones here, so that a zero does not hide an overflow of the other dimensions.
    let sound = sizes
        .iter()
        .try_fold(1usize, |all, &size| all.checked_mul(usize::try_from(size).ok()?.max(1)));
    sound.ok_or_else(|| format!("has shape {sizes:?}, which overflows"))?;
    let shape: Vec<usize> = sizes.iter().map(|&size| size as usize).collect();
    Ok(Info {
        elements: shape.iter().product(),
        shape,
        id: cursor.u32("a type")?,
        offset: cursor.u64("an offset")?,
    })
}
