//! A GGUF file and its tensors.

use super::{
    blocks::{self, GgufType, I2sLayout},
    cursor::Cursor,
    parse::{self, Header, Info},
    split::{self, Place},
    value::{self, GgufValue},
};
use crate::{
    error::{Error, Result},
    files::display,
    formats::{
        file::InputFile,
        float_weights::FloatWeights,
        format_error::FormatError,
        stand_in::{START, stand_in},
    },
    limits::files::MOST_GGUF_HEADER,
    weights::{
        dense::{DenseElement, PackedDense},
        ternary::packed::PackedTernary,
    },
};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    path::Path,
};

/// A GGUF file of any model (version 2 or 3, little-endian), whose header has been checked:
/// metadata and tensors. Of a model that llama.cpp has split into several files, all of them.
pub struct GgufFile {
    /// The first one has the metadata.
    parts: Vec<Part>,
    /// The part that has each tensor.
    places: BTreeMap<String, usize>,
}

/// One file.
struct Part {
    file: InputFile,
    /// What comes before the tensors' data.
    head: Vec<u8>,
    header: Header,
}

/// One tensor of a file: its type, its shape, its bytes.
#[derive(Clone, Debug)]
pub struct GgufTensor<'a> {
    path: &'a Path,
    name: String,
    /// Offset in the file, in bytes.
    start: usize,
    /// The element type.
    pub kind: GgufType,
    /// The dimensions, outermost first (the file has them innermost first).
    pub shape: &'a [usize],
    /// The elements, encoded as `kind` says.
    pub bytes: Vec<u8>,
}

impl GgufFile {
    /// Opens `path` and checks its header: every length, count, type and offset, and that tensors
    /// are within the file and do not overlap. If it is the first part of a split model
    /// (`NAME-00001-of-00003.gguf`), the others are opened too.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Format`]; [`Error::Unsupported`] for another version or byte order,
    /// and for a part that is not the first.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let first = Part::open(path.as_ref())?;
        let others = split::others(path.as_ref(), |key| first.number(key))
            .map_err(|problem| problem.at(&path))?;
        let count = others.len() + 1;
        let mut file = Self { parts: Vec::new(), places: BTreeMap::new() };
        file.add(first)?;
        for (index, path) in (1..).zip(others) {
            let part = Part::open(&path)?;
            let expected = Place { index, count };
            split::check(expected, |key| part.number(key)).map_err(|problem| problem.at(&path))?;
            file.add(part)?;
        }
        file.check_count().map_err(|problem| file.error(problem))?;
        Ok(file)
    }

    /// Adds the tensors of a part.
    fn add(&mut self, part: Part) -> Result<()> {
        for name in part.header.tensors.keys() {
            match self.places.entry(name.clone()) {
                Entry::Vacant(place) => place.insert(self.parts.len()),
                Entry::Occupied(place) => {
                    let other = display(self.parts[*place.get()].file.path());
                    let problem = format!("has a tensor `{name}`, as {other} does");
                    return Err(FormatError::from(problem).at(part.file.path()));
                }
            };
        }
        self.parts.push(part);
        Ok(())
    }

    /// Checks how many tensors there are against what a split model says of itself.
    fn check_count(&self) -> Result<(), String> {
        let (found, count) = (self.places.len(), self.parts.len());
        match self.parts[0].number(split::TENSORS).filter(|_| count > 1) {
            Some(said) if said != found as u64 => {
                Err(format!("says {said} tensors, and its {count} parts have {found}"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the paths of all files.
    pub(in crate::formats) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().map(|part| part.file.path())
    }

    /// The part that has a tensor, and its entry there.
    fn entry(&self, name: &str) -> Option<(&Part, &Info)> {
        let part = self.parts.get(*self.places.get(name)?)?;
        Some((part, part.header.tensors.get(name)?))
    }

    /// Returns the path of the file; of a split model, that of the first part.
    pub fn path(&self) -> &Path {
        self.parts[0].file.path()
    }

    /// Returns the metadata's keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.parts[0].header.metadata.keys().map(String::as_str)
    }

    /// Returns a metadata value.
    pub fn get(&self, key: &str) -> Option<GgufValue<'_>> {
        self.parts[0].get(key)
    }

    /// Returns the tensors' names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// Returns whether there is a tensor of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// Returns the dimensions of a tensor of any type, outermost first.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entry(name).map(|(_, info)| &*info.shape)
    }

    /// Returns the type of a tensor.
    pub fn kind(&self, name: &str) -> Option<GgufType> {
        self.entry(name).map(|(_, info)| GgufType::from_id(info.id))
    }

    /// Returns the bytes of a tensor; none for one of a type that is not read.
    pub fn size(&self, name: &str) -> Option<usize> {
        self.entry(name)?.1.size().ok().flatten()
    }

    /// Reads a tensor.
    ///
    /// # Errors
    /// [`Error::Format`] if there is no tensor of that name, or the file has been truncated;
    /// [`Error::Unsupported`] for a type that is not read; [`Error::Io`].
    pub fn tensor(&self, name: &str) -> Result<GgufTensor<'_>> {
        let (part, info) =
            self.entry(name).ok_or_else(|| self.error(format!("no tensor `{name}`")))?;
        let (kind, start) = (GgufType::from_id(info.id), part.header.data + info.offset as usize);
        let mut tensor = GgufTensor {
            path: part.file.path(),
            name: name.to_owned(),
            start,
            kind,
            shape: &info.shape,
            bytes: Vec::new(),
        };
        let length = info.size().map_err(|e| tensor.error(e))?;
        let length = length.ok_or_else(|| {
            tensor.unsupported(format!("is of type {}; {SUPPORTED} are supported", info.id))
        })?;
        tensor.bytes = part.file.read(start, length)?;
        Ok(tensor)
    }

    pub(super) fn error(&self, problem: impl Into<FormatError>) -> Error {
        problem.into().at(self.path())
    }
}

impl Part {
    fn open(path: &Path) -> Result<Self> {
        let file = InputFile::open(path)?;
        // Nothing says how long a header is: more is read until it is whole.
        let mut length = (1 << 20).min(file.len());
        let (mut head, mut header) = loop {
            let head = file.read(0, length)?;
            match parse::header(&head, file.len()) {
                Ok(header) => break (head, header),
                Err(_) if length < MOST_GGUF_HEADER.min(file.len()) => {
                    length = (4 * length).min(MOST_GGUF_HEADER).min(file.len())
                }
                Err(problem) => {
                    let start = &head[..head.len().min(START)];
                    return Err(stand_in(start).unwrap_or(problem).at(path));
                }
            }
        };
        let checked = name_older_q2(&mut header, file.len())
            .and_then(|()| check_tensors(&header, file.len()));
        checked.map_err(|message| FormatError::from(message).at(path))?;
        head.truncate(header.data);
        Ok(Self { file, head, header })
    }

    fn get(&self, key: &str) -> Option<GgufValue<'_>> {
        let place = self.header.metadata.get(key)?;
        // The value was checked when the file was opened, so `ok` drops no error.
        value::value(&mut Cursor { bytes: &self.head, at: place.at }, place.kind).ok()
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(|value| value.as_u64())
    }
}

const SUPPORTED: &str =
    "F32, F16, BF16, Q8_0, Q4_K, Q6_K, I2_S, TQ1_0, TQ2_0, Q2_0, PQ2_0, PTQ1_0 and Q1_0";

/// Type 42 had blocks of 128 before it had blocks of 64, and what a file says of its type does not
/// tell which: the distances between tensors do. Where the larger blocks of 64 do not fit, and
/// blocks of 128 end exactly where they should, tensors get the number that blocks of 128 have now.
/// (Where only tensors below 2048 weights are of the type, both fit; they count as blocks of 64.)
///
/// # Errors
/// A message where both fit since tensors are far apart.
fn name_older_q2(header: &mut Header, file: usize) -> Result<(), String> {
    let data = file.saturating_sub(header.data) as u64;
    let mut offsets: Vec<u64> = header.tensors.values().map(|info| info.offset).collect();
    offsets.sort_unstable();
    let room = |info: &Info| {
        let next = offsets.get(offsets.partition_point(|&offset| offset <= info.offset));
        (next.is_some(), next.copied().unwrap_or(data).saturating_sub(info.offset))
    };
    let size = |info: &Info, kind: GgufType| {
        let columns = info.shape.last().copied().unwrap_or(1);
        kind.bytes(info.elements, columns).ok().flatten().map(|bytes| bytes as u64)
    };
    let newer = |info: &Info| size(info, GgufType::Q2_0).is_none_or(|bytes| bytes <= room(info).1);
    let older = |info: &Info| {
        let (is_followed, room) = room(info);
        size(info, GgufType::Pq2_0).is_some_and(|bytes| {
            let whole = bytes.checked_next_multiple_of(header.alignment as u64);
            // What pads the last tensor may be missing.
            whole == Some(room)
                || !is_followed && bytes <= room && whole.is_some_and(|whole| room <= whole)
        })
    };
    let of_type = || header.tensors.values().filter(|info| info.id == Q2_0);
    if !of_type().all(older) {
        return Ok(());
    }
    if !of_type().all(newer) {
        header.tensors.values_mut().filter(|info| info.id == Q2_0).for_each(|info| info.id = PQ2_0);
    } else if header.alignment > 32
        && of_type().any(|info| size(info, GgufType::Q2_0) != size(info, GgufType::Pq2_0))
    {
        let alignment = header.alignment;
        return Err(format!(
            "has tensors of type {Q2_0}; with an alignment of {alignment} it is unclear whether blocks have 64 or 128 weights"
        ));
    }
    Ok(())
}

/// The numbers of [`GgufType::Q2_0`] and [`GgufType::Pq2_0`].
const Q2_0: u32 = 42;
const PQ2_0: u32 = 142;

fn check_tensors(header: &Header, file: usize) -> Result<(), String> {
    let data = file.saturating_sub(header.data) as u64;
    let mut extents = Vec::new();
    for (name, info) in &header.tensors {
        let length = info.size().map_err(|e| format!("`{name}` {e}"))?.unwrap_or(0) as u64;
        if info.offset % header.alignment as u64 != 0 {
            return Err(format!(
                "`{name}` begins at byte {} of the data, which is not aligned to {}",
                info.offset, header.alignment
            ));
        }
        let end = info.offset.saturating_add(length);
        if end > data {
            return Err(format!(
                "`{name}` claims bytes {}..{end} of the {data} of data",
                info.offset
            ));
        }
        extents.push((info.offset, end, name.as_str(), info.id));
    }
    extents.push((data, data, "the end of the file", u32::MAX));
    extents.sort();
    let pairs = || extents.iter().zip(extents.iter().skip(1));
    if let Some(((_, end, a, _), (start, _, b, _))) =
        pairs().find(|((_, end, ..), (start, ..))| end > start)
    {
        return Err(format!(
            "`{a}` ends at byte {end} of the data, where `{b}` began at {start}: a damaged file, or a type with an unknown block size"
        ));
    }
    // Tensors of these types that were given each other's number.
    let is_apart = |end: u64, start: u64, id: u32| {
        matches!(id, Q2_0 | PQ2_0) && start - end >= header.alignment as u64
    };
    match pairs().find(|((_, end, _, id), (start, ..))| is_apart(*end, *start, *id)) {
        Some(((_, end, a, id), (start, _, b, _))) => {
            let kind = GgufType::from_id(*id);
            Err(format!(
                "`{a}` would end at byte {end} of the data, far before `{b}` at {start}: its blocks are not those of {kind}"
            ))
        }
        None => Ok(()),
    }
}

impl GgufTensor<'_> {
    /// Rows and columns of a matrix. Further outer dimensions must be 1.
    ///
    /// # Errors
    /// [`Error::Format`] if the tensor is not a matrix or has no elements.
    pub(crate) fn matrix(&self) -> Result<(usize, usize)> {
        match self.shape {
            [outer @ .., rows, columns]
                if *rows > 0 && *columns > 0 && outer.iter().all(|&size| size == 1) =>
            {
                Ok((*rows, *columns))
            }
            shape => {
                Err(self.error(format!("has shape {shape:?}; a matrix with elements is needed")))
            }
        }
    }

    /// A matrix of this shape among several, which lie one after another.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a type that has one scale for all of them.
    pub(in crate::formats) fn part<'a>(
        &'a self,
        index: usize,
        shape: &'a [usize],
    ) -> Result<GgufTensor<'a>> {
        if self.kind == GgufType::I2S {
            return Err(self.unsupported("is of several matrices in I2_S, which is not supported"));
        }
        let (elements, columns) = (shape.iter().product(), shape.last().copied().unwrap_or(1));
        let bytes = self.kind.bytes(elements, columns).map_err(|what| self.error(what))?;
        let bytes = bytes.unwrap_or(0);
        Ok(GgufTensor {
            path: self.path,
            name: self.name.clone(),
            start: self.start + index * bytes,
            kind: self.kind,
            shape,
            bytes: self.bytes[index * bytes..][..bytes].to_vec(),
        })
    }

    /// Returns the elements of a float tensor (F32, F16 or BF16) as `f32`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a quantized type.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        blocks::floats(self.kind, &self.bytes).ok_or_else(|| {
            self.unsupported(format!("is {}; F32, F16 or BF16 is needed", self.kind))
        })
    }

    /// Returns a ternary matrix, from a ternary type or from floats with only the values -a, 0 and
    /// a.
    ///
    /// # Errors
    /// [`Error::Format`] for another shape, or weights that are not ternary; [`Error::Unsupported`]
    /// for another type, or other floats.
    pub fn ternary(&self, layout: I2sLayout) -> Result<PackedTernary> {
        self.linear(layout, FloatWeights::Refuse)
    }

    /// [`GgufTensor::ternary`], or what `float_weights` makes of floats.
    pub(super) fn linear(
        &self,
        layout: I2sLayout,
        float_weights: FloatWeights,
    ) -> Result<PackedTernary> {
        let (rows, columns) = self.matrix()?;
        if let Some(matrix) = blocks::ternary(self.kind, layout, rows, columns, &self.bytes) {
            return matrix.map_err(|problem| self.problem(problem));
        }
        float_weights
            .matrix(&self.to_f32()?, rows, columns)
            .map_err(|problem| self.problem(problem))
    }

    /// Returns an embedding or a head: floats as stored; Q8_0, Q4_K, Q6_K, Q2_0, PQ2_0, PTQ1_0 and
    /// Q1_0 converted to `f16`.
    ///
    /// # Errors
    /// [`Error::Format`] for another shape, [`Error::Unsupported`] for another type.
    pub fn dense(&self) -> Result<PackedDense> {
        let (rows, columns) = self.matrix()?;
        let element = match self.kind {
            GgufType::F32 => DenseElement::F32,
            GgufType::Bf16 => DenseElement::Bf16,
            GgufType::F16 => DenseElement::F16,
            GgufType::Q8_0 | GgufType::Q4K | GgufType::Q6K => DenseElement::F16,
            GgufType::Q2_0 | GgufType::Pq2_0 | GgufType::Ptq1_0 | GgufType::Q1_0 => {
                DenseElement::F16
            }
            other => {
                let known = "F32, F16, BF16, Q8_0, Q4_K, Q6_K, Q2_0, PQ2_0, PTQ1_0 or Q1_0";
                return Err(self.unsupported(format!("is {other}; {known} is needed")));
            }
        };
        let f16s = blocks::f16s(self.kind, &self.bytes).transpose().map_err(|e| self.error(e))?;
        let bytes = f16s.as_deref().unwrap_or(&self.bytes);
        PackedDense::from_bytes(element, rows, columns, bytes).map_err(|e| self.error(e))
    }

    /// An error about this tensor.
    pub(in crate::formats) fn error(&self, message: impl std::fmt::Display) -> Error {
        self.problem(FormatError::Damaged(message.to_string()))
    }

    pub(in crate::formats) fn unsupported(&self, message: impl std::fmt::Display) -> Error {
        self.problem(FormatError::Unsupported(message.to_string()))
    }

    fn problem(&self, problem: FormatError) -> Error {
        problem
            .map(|message| format!("`{}` at byte {} {message}", self.name, self.start))
            .at(self.path)
    }
}

impl std::fmt::Debug for GgufFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GgufFile({})", display(self.path()))
    }
}
