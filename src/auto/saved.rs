//! What was learned, in a file of the folder that a context was opened with. A file that is not
//! what was written there is not used, which is a line in the log.

use super::cost::Costs;
use crate::{
    error::{Error, Result},
    files::display,
    gpu::{
        compile::cache::{Kind, hash, read, write},
        context::Context,
    },
    limits::cache::MOST_COSTS,
};
use std::{
    fs,
    path::{Path, PathBuf},
    thread::available_parallelism,
};

const TIMING: &Kind = b"bitnet-wgpu timing 1\n";

/// What the folder has for this device and these ops.
pub fn load(context: &Context, names: &[&str]) -> Option<Costs> {
    let (path, key) = file(context, context.cache_folder()?, names);
    stored(&path, key, names).unwrap_or_else(|why| {
        log::warn!("{}: {why}: times are measured again", display(&path));
        None
    })
}

/// Writes the file, with what another process has written there meanwhile, and gives it.
pub fn save(context: Option<&Context>, names: &[&str], costs: &Costs) -> Result<PathBuf> {
    let place = context.and_then(|context| Some(file(context, context.cache_folder()?, names)));
    let none = || Error::Invalid {
        op: "save_measurements",
        what: "no context with a cache folder; open one with ContextOptions::kernel_cache".into(),
    };
    let (path, key) = place.ok_or_else(none)?;
    // A file that is not sound is replaced.
    let both =
        stored(&path, key, names).ok().flatten().and_then(|others| others.with(costs).text(names));
    let text = both.or_else(|| costs.text(names)).ok_or_else(none)?;
    write(&path, TIMING, key, text.as_bytes())?;
    Ok(path)
}

/// What a file has, if there is one.
fn stored(path: &Path, key: u64, names: &[&str]) -> Result<Option<Costs>, String> {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).map_err(|error| error.to_string());
    read(path, TIMING, key, MOST_COSTS)
        .and_then(|saved| saved.map(|bytes| Costs::parse(&text(bytes)?, names)).transpose())
}

/// The file, and the hash of what it rests on.
fn file(context: &Context, folder: &Path, names: &[&str]) -> (PathBuf, u64) {
    let key = key([&context.measured_on(), &processor(), &names.join(" ")]);
    (folder.join(format!("{key:016x}.timing")), key)
}

fn key(parts: [&str; 3]) -> u64 {
    hash(parts.iter().flat_map(|part| [part.as_bytes(), b"\n"]))
}

/// What CPU references run on, as far as it is easily known.
fn processor() -> String {
    let threads = available_parallelism().map_or(1, usize::from);
    // Linux has it for most architectures.
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find(|line| line.starts_with("model name")).unwrap_or_default();
    format!("{} {threads} {name}", std::env::consts::ARCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_name_device_processor_and_ops() {
        let keys =
            [["a", "b", "c"], ["x", "b", "c"], ["a", "x", "c"], ["a", "b", "x"], ["ab", "", "c"]]
                .map(key);
        for (n, key) in keys.iter().enumerate() {
            assert!(!keys[..n].contains(key), "{n}");
        }
        assert!(processor().starts_with(std::env::consts::ARCH) && processor() == processor());
    }
}
