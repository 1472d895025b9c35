//! The tensors of a model directory: one safetensors file, or several with an index.

use super::{
    json::read_json,
    problem::Problem,
    safetensors::{SafeTensors, TensorBytes},
};
use crate::error::Result;
use std::{
    collections::{BTreeMap, HashMap},
    path::{Component, Path, PathBuf},
};

pub(super) struct Shards {
    /// Path of model.safetensors or of the index, for error messages.
    path: PathBuf,
    files: Vec<SafeTensors>,
    /// For each tensor, the index in `files` of the file that holds it.
    places: BTreeMap<String, usize>,
}

impl Shards {
    pub(super) fn open(directory: &Path) -> Result<Self> {
        let (single, index) = (directory.join("model.safetensors"), directory.join("model.safetensors.index.json"));
        if single.exists() || !index.exists() {
            let file = SafeTensors::open(&single)?;
            let places = file.names().into_iter().map(|name| (name, 0)).collect();
            return Ok(Self { path: single, files: vec![file], places });
        }
        let format = |message: String| Problem::from(message).at(&index);
        let json = read_json(&index)?;
        let map = json["weight_map"].as_object().ok_or_else(|| format("has no weight_map".into()))?;
        let (mut files, mut numbers, mut places) = (Vec::new(), HashMap::new(), BTreeMap::new());
        for (tensor, shard) in map {
            let name = shard.as_str().ok_or_else(|| format(format!("`{tensor}` lies in {shard}; a file name is needed")))?;
            let number = match numbers.get(name) {
                Some(&number) => number,
                None => {
                    if !is_plain(name) {
                        return Err(format(format!("`{tensor}` lies in {shard}; a file of the same directory is needed")));
                    }
                    files.push(SafeTensors::open(directory.join(name))?);
                    numbers.insert(name, files.len() - 1);
                    files.len() - 1
                }
            };
            if !files[number].contains(tensor) {
                return Err(format(format!("`{tensor}` should lie in {shard}, which has no such tensor")));
            }
            places.insert(tensor.clone(), number);
        }
        Ok(Self { path: index, files, places })
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.places.keys().cloned().collect()
    }

    pub(super) fn tensor(&self, name: &str) -> Result<TensorBytes<'_>> {
        self.file_of(name)?.tensor(name)
    }

    pub(super) fn file_of(&self, name: &str) -> Result<&SafeTensors> {
        let missing = || Problem::from(format!("no tensor `{name}`")).at(&self.path);
        Ok(&self.files[*self.places.get(name).ok_or_else(missing)?])
    }
}

/// Is this a plain file name on every operating system? A hostile index must not reach other directories.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let one = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
    one && !name.contains(['/', '\\', ':', '\0'])
}
