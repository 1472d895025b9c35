//! The tensors of a model directory: one safetensors file, or several with an index.

use super::{
    format_error::FormatError,
    json::read_json,
    safetensors::{SafeTensors, TensorBytes},
    stand_in::PYTORCH,
};
use crate::error::Result;
use safetensors::Dtype;
use std::{
    collections::{BTreeMap, HashMap},
    path::{Component, Path, PathBuf},
};

pub(super) struct Shards {
    /// Path of model.safetensors or of the index, for error messages.
    path: PathBuf,
    files: Vec<SafeTensors>,
    /// For each tensor, by its full name, the index in `files` of the file that holds it.
    places: BTreeMap<String, usize>,
    /// What full names begin with, and names in the files do not.
    prefix: &'static str,
    /// Names in the files of text models within others, by their full names.
    within: BTreeMap<String, String>,
}

impl Shards {
    pub(super) fn open(directory: &Path) -> Result<Self> {
        let (single, index) =
            (directory.join("model.safetensors"), directory.join("model.safetensors.index.json"));
        if !single.exists() && !index.exists() {
            refuse_others(directory)?;
        }
        if single.exists() || !index.exists() {
            let file = SafeTensors::open(&single)?;
            let places = file.names().into_iter().map(|name| (name, 0)).collect();
            return Ok(Self::new(single, vec![file], places));
        }
        let format = |message: String| FormatError::from(message).at(&index);
        let json = read_json(&index)?;
        let map =
            json["weight_map"].as_object().ok_or_else(|| format("has no weight_map".into()))?;
        let (mut files, mut numbers, mut places) = (Vec::new(), HashMap::new(), BTreeMap::new());
        for (tensor, shard) in map {
            let name = shard.as_str().ok_or_else(|| {
                format(format!("`{tensor}` lies in {shard}; a file name is needed"))
            })?;
            let number = match numbers.get(name) {
                Some(&number) => number,
                None => {
                    if !is_plain(name) {
                        return Err(format(format!(
                            "`{tensor}` lies in {shard}; a file of the same directory is needed"
                        )));
                    }
                    files.push(SafeTensors::open(directory.join(name))?);
                    numbers.insert(name, files.len() - 1);
                    files.len() - 1
                }
            };
            if !files[number].contains(tensor) {
                return Err(format(format!(
                    "the index places `{tensor}` in {shard}, which has no such tensor"
                )));
            }
            places.insert(tensor.clone(), number);
        }
        Ok(Self::new(index, files, places))
    }

    /// A model that was saved without a head, as embedding models are, lacks the `model.` before
    /// its names.
    fn new(path: PathBuf, files: Vec<SafeTensors>, places: BTreeMap<String, usize>) -> Self {
        let bare = places.contains_key("embed_tokens.weight")
            && !places.keys().any(|name| name.starts_with("model."));
        let full = |(name, place): (String, usize)| {
            (if name.starts_with("lm_head.") { name } else { format!("model.{name}") }, place)
        };
        match bare {
            true => Self {
                path,
                files,
                places: places.into_iter().map(full).collect(),
                prefix: "model.",
                within: BTreeMap::new(),
            },
            false => Self { path, files, places, prefix: "", within: BTreeMap::new() }.unwrapped(),
        }
    }

    /// Gives the tensors of a text model within another the names that they have without it.
    fn unwrapped(mut self) -> Self {
        let full = |name: &str| {
            name.strip_prefix("model.language_model.").map(|own| format!("model.{own}"))
        };
        let renamed = self.places.keys().filter_map(|name| Some((full(name)?, name.clone())));
        self.within = renamed.filter(|(name, _)| !self.places.contains_key(name)).collect();
        for (name, stored) in &self.within {
            if let Some(place) = self.places.remove(stored) {
                self.places.insert(name.clone(), place);
            }
        }
        self
    }

    /// Returns whether its names are those of a model that was saved without a head.
    pub(super) fn without_head(&self) -> bool {
        !self.prefix.is_empty()
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// The files of the tensors, and the index where there is one.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.files.iter().map(|file| file.path().to_owned()).chain([self.path.clone()])
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.places.keys().cloned().collect()
    }

    /// The type of a tensor's numbers, where it is there. Nothing of it is read.
    pub(super) fn dtype(&self, name: &str) -> Option<Dtype> {
        self.place_of(name).ok().and_then(|(file, stored)| file.dtype(stored))
    }

    pub(super) fn tensor(&self, name: &str) -> Result<TensorBytes<'_>> {
        let (file, stored) = self.place_of(name)?;
        file.tensor(stored)
    }

    /// The file that has a tensor, and its name there.
    pub(super) fn place_of<'a: 'n, 'n>(
        &'a self,
        name: &'n str,
    ) -> Result<(&'a SafeTensors, &'n str)> {
        let missing = || FormatError::from(format!("no tensor `{name}`")).at(&self.path);
        let file = &self.files[*self.places.get(name).ok_or_else(missing)?];
        let own = || name.strip_prefix(self.prefix).unwrap_or(name);
        Ok((file, self.within.get(name).map_or_else(own, String::as_str)))
    }
}

/// Refuses a directory with weights in a format that is not read from a directory.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) that names the file.
fn refuse_others(directory: &Path) -> Result<()> {
    let Ok(entries) = directory.read_dir() else { return Ok(()) };
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    for file in files {
        let problem = match file.extension().and_then(|extension| extension.to_str()) {
            Some("bin" | "pt" | "pth") => PYTORCH,
            Some("gguf") => "is a GGUF file, and model.safetensors is needed",
            _ => continue,
        };
        return Err(FormatError::Unsupported(problem.into()).at(file));
    }
    Ok(())
}

/// Returns whether this is a plain file name on every operating system. A hostile index must not
/// reach other directories.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let one = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
    one && !name.contains(['/', '\\', ':', '\0'])
}
