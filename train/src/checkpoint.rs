//! Checkpoints: folders `step-00000100` with the float weights, the optimizer's means and the state
//! of a run. A folder is complete under its name.

use crate::{
    error::{Error, Result},
    plan::{ParameterInfo, Plan},
    settings::{MOST_STEPS, Settings},
};
use bitnet_wgpu::{
    Error as LibraryError,
    internals::{
        SafeTensors,
        files::{read, write},
    },
};
use safetensors::{Dtype, tensor::TensorView};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
};

pub const WEIGHTS: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "state.json";
pub const CONFIG: &str = "config.json";
const PREFIX: &str = "step-";
const PARTIAL: &str = ".partial";

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
    pub config: Value,
}

impl State {
    pub fn new(progress: Progress, text: u64, settings: &Settings, config: &Value) -> Self {
        let (settings, config) = (settings.clone(), config.clone());
        Self { format: FORMAT, progress, text: format!("{text:016x}"), settings, config }
    }
}

/// The numbers of one parameter: the float weights, and AdamW's means of gradients and squares.
pub type Numbers = [Vec<f32>; 3];

/// Writes a checkpoint to a folder of `folder` and returns its path. Then only the last `keep`
/// checkpoints stay.
///
/// # Errors
/// [`LibraryError::Io`].
pub fn save(
    folder: &Path,
    plan: &Plan,
    numbers: &[Numbers],
    state: &State,
    keep: usize,
) -> Result<PathBuf> {
    let path = folder.join(format!("{PREFIX}{:08}", state.progress.step));
    let partial = folder.join(format!("{PREFIX}{:08}{PARTIAL}", state.progress.step));
    at(folder, fs::create_dir_all(folder))?;
    remove_partial(folder)?;
    at(&partial, fs::create_dir(&partial))?;
    let weights = named(plan, numbers, &[("", 0)]);
    write(partial.join(WEIGHTS), &serialized(&weights)?)?;
    drop(weights);
    let means = named(plan, numbers, &[("mean.", 1), ("square.", 2)]);
    write(partial.join(OPTIMIZER), &serialized(&means)?)?;
    write(partial.join(STATE), &at(&path, pretty(state))?)?;
    // With it, training can start from the weights.
    write(partial.join(CONFIG), &at(&path, pretty(&state.config))?)?;
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

/// Reads a checkpoint.
///
/// # Errors
/// [`Error::Checkpoint`] for files that do not fit the plan; [`Error::Library`] for damaged ones.
pub fn load(path: &Path, plan: &Plan) -> Result<(Vec<Numbers>, State)> {
    let state = state(path)?;
    let weights = SafeTensors::open(path.join(WEIGHTS))?;
    let means = SafeTensors::open(path.join(OPTIMIZER))?;
    let all = plan.parameters.iter().map(|info| {
        Ok([
            numbers(&weights, &info.name, info)?,
            numbers(&means, &format!("mean.{}", info.name), info)?,
            numbers(&means, &format!("square.{}", info.name), info)?,
        ])
    });
    Ok((all.collect::<Result<_>>()?, state))
}

fn state(path: &Path) -> Result<State> {
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
/// [`LibraryError::Io`]; a folder that is missing has none.
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
/// [`LibraryError::Io`].
pub fn latest(folder: impl AsRef<Path>) -> Result<Option<PathBuf>> {
    Ok(list(folder.as_ref())?.pop().map(|(_, path)| path))
}

/// A tensor that is written: its name, type, dimensions and bytes.
pub type NamedBytes = (String, Dtype, Vec<usize>, Vec<u8>);

/// The bytes of some numbers of each parameter, by names with these prefixes.
fn named(plan: &Plan, numbers: &[Numbers], which: &[(&str, usize)]) -> Vec<NamedBytes> {
    let one = |(info, numbers): (&ParameterInfo, &Numbers)| {
        let tensors = which.iter().map(|&(prefix, i)| {
            let name = format!("{prefix}{}", info.name);
            (name, Dtype::F32, info.shape.clone(), bytes(&numbers[i]))
        });
        tensors.collect::<Vec<_>>()
    };
    plan.parameters.iter().zip(numbers).flat_map(one).collect()
}

pub fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Returns a safetensors file.
///
/// # Errors
/// [`LibraryError::Io`] for tensors whose bytes do not fit their shapes.
pub fn serialized(tensors: &[NamedBytes]) -> Result<Vec<u8>> {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        Ok((name.as_str(), TensorView::new(*dtype, shape.clone(), bytes)?))
    });
    let views: Result<Vec<_>, safetensors::SafeTensorError> = views.collect();
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let file = views.and_then(|views| safetensors::serialize(views, Some(metadata)));
    at(Path::new(WEIGHTS), file.map_err(io::Error::other))
}

/// Removes a folder with its files; a missing one is fine.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => at(path, Err(error)),
        _ => Ok(()),
    }
}

fn at<T>(path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|source| LibraryError::Io { path: path.to_owned(), source }.into())
}
