//! Checkpoints: folders `step-00000100` with the float weights, the optimizer's means and the state
//! of a run. A folder is complete under its name.

use crate::{
    error::{Error, Result},
    plan::ParameterInfo,
    settings::{MOST_STEPS, Settings},
    teacher::TeacherState,
    tensors::{self, Entry, at, bytes},
};
use bitnet_wgpu::internals::{
    SafeTensors,
    files::{read, write},
};
use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

pub const WEIGHTS: &str = "model.safetensors";
/// As PEFT names the files of adapters.
pub const ADAPTER: &str = "adapter_model.safetensors";
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "state.json";
pub const CONFIG: &str = "config.json";
const PREFIX: &str = "step-";
const PARTIAL: &str = ".partial";
/// AdamW's means, by the beginnings of their names.
const MEANS: [(&str, usize); 2] = [("mean.", 1), ("square.", 2)];

/// Most bytes of a state: it has settings and a config.json.
const MOST_STATE: u64 = 32 << 20;

/// The version of the files of a checkpoint.
const FORMAT: u32 = 1;

/// Where a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Steps that were computed, those that were skipped included.
    pub step: u64,
    /// Steps that changed the weights.
    pub updates: u32,
    /// Windows that were used, counted over all epochs.
    pub position: u64,
    /// Steps that were skipped, since a loss or a gradient was not finite.
    pub skipped: u64,
    /// Steps that were skipped since the last one that was not.
    pub skipped_in_row: u32,
}

/// The state of a run, in `state.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    pub format: u32,
    pub progress: Progress,
    /// [`Corpus::fingerprint`](crate::data::Corpus::fingerprint), in hexadecimal digits.
    pub text: String,
    pub settings: Settings,
    /// A number of the frozen weights, in hexadecimal digits, where adapters are trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// From which the student learns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher: Option<TeacherState>,
    pub config: Value,
}

impl State {
    pub fn new(progress: Progress, text: u64, settings: &Settings, config: &Value) -> Self {
        let (settings, config) = (settings.clone(), config.clone());
        let text = format!("{text:016x}");
        Self { format: FORMAT, progress, text, settings, base: None, teacher: None, config }
    }
}

/// The numbers of one parameter: the weights, and AdamW's means of gradients and squares.
pub type Numbers = [Vec<f32>; 3];

/// What is written beside the weights.
pub struct Files<'a> {
    /// What is trained.
    pub trained: &'a [ParameterInfo],
    pub state: &'a State,
    /// Names of the file of weights, and of its configuration, with that.
    pub weights: &'static str,
    pub config: (&'static str, &'a Value),
}

/// Writes a checkpoint to a folder of `folder` and returns its path. Then only the last `keep`
/// checkpoints stay. `read` gives the numbers of each parameter, [`Numbers`] one by one, and no more
/// than one is in memory.
///
/// # Errors
/// [`Error::Library`]; what `read` reports.
pub fn save(
    folder: &Path,
    files: &Files<'_>,
    keep: usize,
    read: impl FnMut(usize, usize) -> Result<Vec<f32>>,
) -> Result<PathBuf> {
    let path = folder.join(format!("{PREFIX}{:08}", files.state.progress.step));
    let partial = folder.join(format!("{PREFIX}{:08}{PARTIAL}", files.state.progress.step));
    at(folder, fs::create_dir_all(folder))?;
    remove_partial(folder)?;
    if let Err(error) = fill(&partial, files, read) {
        // The error says more than what cannot be removed.
        let _ = remove(&partial);
        return Err(error);
    }
    remove(&path)?;
    at(&path, fs::rename(&partial, &path))?;
    let all = list(folder)?;
    // What was written stays, even if a later step is there of another run.
    let others = all.iter().rev().filter(|(_, other)| *other != path);
    for (_, old) in others.skip(keep.max(1) - 1) {
        remove(old)?;
    }
    Ok(path)
}

/// Writes the files of a checkpoint.
fn fill(
    partial: &Path,
    files: &Files<'_>,
    mut read: impl FnMut(usize, usize) -> Result<Vec<f32>>,
) -> Result<()> {
    at(partial, fs::create_dir(partial))?;
    for (name, which) in [(files.weights, &[("", 0)][..]), (OPTIMIZER, &MEANS)] {
        let entries = entries(files.trained, which.iter().map(|(prefix, _)| *prefix));
        tensors::write(&partial.join(name), &entries, |entry| {
            read(entry / which.len(), which[entry % which.len()].1).map(|numbers| bytes(&numbers))
        })?;
    }
    write(partial.join(STATE), &at(partial, pretty(files.state))?)?;
    let (name, config) = files.config;
    Ok(write(partial.join(name), &at(partial, pretty(config))?)?)
}

fn pretty(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec_pretty(value).map_err(io::Error::other);
    json.map(|json| [json, b"\n".to_vec()].concat())
}

/// Removes checkpoints that were not finished.
fn remove_partial(folder: &Path) -> Result<()> {
    for entry in at(folder, fs::read_dir(folder))? {
        let entry = at(folder, entry)?;
        let is_partial = |name: &str| name.starts_with(PREFIX) && name.ends_with(PARTIAL);
        if entry.file_name().to_str().is_some_and(is_partial) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Reads a checkpoint, and gives the numbers of each parameter to `each`.
///
/// # Errors
/// [`Error::Checkpoint`] for files that do not fit; [`Error::Library`] for damaged ones.
pub fn load(
    path: &Path,
    trained: &[ParameterInfo],
    weights: &str,
    mut each: impl FnMut(usize, Numbers) -> Result<()>,
) -> Result<()> {
    let weights = SafeTensors::open(path.join(weights))?;
    let means = SafeTensors::open(path.join(OPTIMIZER))?;
    for (index, info) in trained.iter().enumerate() {
        let mean = |(prefix, _)| numbers(&means, &format!("{prefix}{}", info.name), info);
        let [first, second] = MEANS;
        each(index, [numbers(&weights, &info.name, info)?, mean(first)?, mean(second)?])?;
    }
    Ok(())
}

/// Reads the state of a checkpoint.
///
/// # Errors
/// As [`load`].
pub fn state(path: &Path) -> Result<State> {
    let file = path.join(STATE);
    let damaged = |problem: String| Error::Checkpoint { path: file.clone(), problem };
    let json: Value = serde_json::from_slice(&read(&file, MOST_STATE)?)
        .map_err(|error| damaged(format!("is not JSON: {error}")))?;
    if json.get("format").and_then(Value::as_u64) != Some(FORMAT.into()) {
        return Err(damaged(format!("is of another format than {FORMAT}, which is supported")));
    }
    let state: State = serde_json::from_value(json).map_err(|error| damaged(error.to_string()))?;
    let Progress { step, updates, position, skipped, skipped_in_row } = state.progress;
    let windows = (state.settings.batch as u64).checked_mul(state.settings.accumulation as u64);
    let counted = u64::from(updates).checked_add(skipped) == Some(step)
        && step <= MOST_STEPS
        && windows.and_then(|windows| windows.checked_mul(step)) == Some(position)
        && u64::from(skipped_in_row) <= skipped;
    if counted { Ok(state) } else { Err(damaged("has counters that contradict each other".into())) }
}

fn numbers(file: &SafeTensors, name: &str, info: &ParameterInfo) -> Result<Vec<f32>> {
    let tensor = file.tensor(name)?;
    if tensor.shape != info.shape || tensor.dtype != Dtype::F32 {
        let problem = format!("`{name}` has another shape or type than the model");
        return Err(Error::Checkpoint { path: file.path().to_owned(), problem });
    }
    Ok(tensor.to_f32()?)
}

/// Returns the checkpoints of a folder with their steps, the oldest first.
///
/// # Errors
/// [`Error::Library`]; a folder that is missing has none.
pub fn list(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => at(folder, entries)?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = at(folder, entry)?;
        let name = entry.file_name();
        let digits = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let step: Option<u64> = digits.and_then(|digits| digits.parse().ok());
        let path = entry.path();
        all.extend(step.filter(|_| path.is_dir()).map(|step| (step, path)));
    }
    all.sort();
    Ok(all)
}

/// Returns the last checkpoint of a folder, if there is one.
///
/// # Errors
/// [`Error::Library`].
pub fn latest(folder: impl AsRef<Path>) -> Result<Option<PathBuf>> {
    Ok(list(folder.as_ref())?.pop().map(|(_, path)| path))
}

/// The tensors of parameters, by names with these prefixes.
fn entries<'a>(
    trained: &[ParameterInfo],
    prefixes: impl Iterator<Item = &'a str> + Clone,
) -> Vec<Entry> {
    let one = |info: &ParameterInfo| {
        let entry = |prefix: &str| Entry {
            name: format!("{prefix}{}", info.name),
            dtype: Dtype::F32,
            shape: info.shape.clone(),
        };
        prefixes.clone().map(entry).collect::<Vec<_>>()
    };
    trained.iter().flat_map(one).collect()
}

/// Removes a folder with its files; a missing one is fine.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => at(path, Err(error)),
        _ => Ok(()),
    }
}
