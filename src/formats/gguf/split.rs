//! Models that llama.cpp has split into several files, `NAME-00001-of-00003.gguf` and so on. The
//! first one has the metadata, and each one says which it is.

use crate::{
    formats::format_error::{FormatError, unsupported},
    limits::files::MOST_GGUF_PARTS,
};
use std::path::{Path, PathBuf};

const COUNT: &str = "split.count";
const INDEX: &str = "split.no";
/// Key of how many tensors all parts have together.
pub(super) const TENSORS: &str = "split.tensors.count";

/// Which of the parts a file is, from 0 on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub index: usize,
    pub count: usize,
}

impl Place {
    /// What the metadata of a file say.
    fn of(number: impl Fn(&str) -> Option<u64>) -> Self {
        let size = |key, other| {
            number(key).map_or(other, |number| usize::try_from(number).unwrap_or(usize::MAX))
        };
        Self { index: size(INDEX, 0), count: size(COUNT, 1) }
    }

    /// How the names of such files end.
    fn ending(self) -> String {
        format!("-{:05}-of-{:05}.gguf", self.index + 1, self.count)
    }
}

/// Returns the paths of the parts after the first one; none for a whole model.
///
/// # Errors
/// [`FormatError::Unsupported`] for another part, with the name of the first one, and for too many
/// parts; [`FormatError::Damaged`] for a file of another name, by which no other part is found.
pub(super) fn others(
    path: &Path,
    number: impl Fn(&str) -> Option<u64>,
) -> Result<Vec<PathBuf>, FormatError> {
    let place @ Place { index, count } = Place::of(number);
    if count <= 1 {
        return Ok(Vec::new());
    }
    if count > MOST_GGUF_PARTS {
        return unsupported(format!(
            "is a part of {count} of a split model; up to {MOST_GGUF_PARTS} are supported"
        ));
    }
    let part = index.saturating_add(1);
    if index >= count {
        return Err(format!("is part {part} of {count} of a split model").into());
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
    let Some(begin) = name.strip_suffix(&place.ending()) else {
        let ending = place.ending();
        return Err(format!(
            "is part {part} of {count} of a split model, whose other parts are found by its name, which does not end with {ending}"
        )
        .into());
    };
    let named = |index| format!("{begin}{}", Place { index, count }.ending());
    if index > 0 {
        let first = named(0);
        return unsupported(format!(
            "is part {part} of {count} of a split model: open the first part, {first}"
        ));
    }
    Ok((1..count).map(|index| path.with_file_name(named(index))).collect())
}

/// Checks that a file is the part that its name says.
///
/// # Errors
/// A message that says which one it is.
pub(super) fn check(
    expected: Place,
    number: impl Fn(&str) -> Option<u64>,
) -> Result<(), FormatError> {
    let found = Place::of(number);
    if found == expected {
        return Ok(());
    }
    let words = |place: Place| format!("part {} of {}", place.index.saturating_add(1), place.count);
    Err(format!(
        "is {} of a split model by its metadata, and {} by its name",
        words(found),
        words(expected)
    )
    .into())
}
