//! `bitnet pull`, `bitnet list` and `bitnet rm`: models of the Hugging Face hub in the cache.

use crate::{hub, say};
use anyhow::{Context as _, Result};
use bitnet_wgpu::internals::files::display;
use clap::Args;
use serde_json::{Value, json};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Start of the names of folders in the cache that are of models.
const PREFIX: &str = "models--";

/// Downloads a model from the Hugging Face hub, and prints its path
#[derive(Args)]
pub struct Pull {
    /// Name on the hub: OWNER/NAME[@REVISION][:FILE.gguf]
    name: String,
}

impl Pull {
    pub fn run(self) -> Result<()> {
        Ok(say(format!("{}\n", display(&hub::resolve(&self.name)?)))?)
    }
}

/// Lists downloaded models
///
/// Other programs use the cache of the Hugging Face hub too, so some of these models may not be supported; `bitnet info`
/// says so.
#[derive(Args)]
pub struct List {
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

impl List {
    pub fn run(self) -> Result<()> {
        let cache = hub::cache()?;
        let models = Cached::all(&cache)?;
        if self.json {
            let all: Vec<_> = models.iter().map(Cached::object).collect();
            return Ok(say(format!("{}\n", Value::Array(all)))?);
        }
        if models.is_empty() {
            return Ok(say(format!("no models in {}\n", display(&cache)))?);
        }
        let line = |model: &Cached| {
            let name = display(Path::new(&model.name)).to_string();
            let revisions = model.revisions.join(", ");
            format!("{name:<48} {:>12}  {revisions}\n", megabytes(model.bytes))
        };
        Ok(say(models.iter().map(line).collect::<String>())?)
    }
}

/// Removes downloaded models, with all their revisions
#[derive(Args)]
pub struct Remove {
    /// Names of models as `bitnet list` shows them: OWNER/NAME
    #[arg(required = true)]
    names: Vec<String>,
}

impl Remove {
    pub fn run(self) -> Result<()> {
        let cache = hub::cache()?;
        let models = Cached::all(&cache)?;
        // Nothing is removed if a name is wrong.
        let find = |name: &String| {
            let found = models.iter().find(|model| model.name == *name);
            found.with_context(|| {
                format!("{name}: not in the cache; `bitnet list` shows its models")
            })
        };
        let found = self.names.iter().map(find).collect::<Result<Vec<_>>>()?;
        for model in found {
            model.remove(&cache)?;
            say(format!("removed {}: {}\n", model.name, megabytes(model.bytes)))?;
        }
        Ok(())
    }
}

/// A model in the cache.
struct Cached {
    /// Its name on the hub.
    name: String,
    folder: PathBuf,
    bytes: u64,
    /// Branches and tags that were downloaded.
    revisions: Vec<String>,
}

impl Cached {
    /// Returns the models of a cache, sorted by name. A link is not one.
    fn all(cache: &Path) -> Result<Vec<Self>> {
        let mut models = Vec::new();
        for folder in entries(cache)? {
            let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(name) = name.strip_prefix(PREFIX) else { continue };
            if !folder.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
                continue;
            }
            let name = name.replacen("--", "/", 1);
            let bytes = entries(&folder.join("blobs"))?.iter().map(|blob| size(blob)).sum();
            let revisions = entries(&folder.join("refs"))?;
            let revisions = revisions.iter().filter_map(|path| path.file_name());
            let revisions = revisions.map(|name| display(Path::new(name)).to_string()).collect();
            models.push(Self { name, bytes, revisions, folder });
        }
        Ok(models)
    }

    fn object(&self) -> Value {
        json!({
            "name": self.name, "bytes": self.bytes, "revisions": self.revisions,
            "path": self.folder.to_string_lossy(),
        })
    }

    /// Removes the files of the model and their locks.
    fn remove(&self, cache: &Path) -> Result<()> {
        let failed = || display(&self.folder).to_string();
        fs::remove_dir_all(&self.folder).with_context(failed)?;
        let folder = self.folder.file_name().unwrap_or_default();
        match fs::remove_dir_all(cache.join(".locks").join(folder)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(failed)
            }
            _ => Ok(()),
        }
    }
}

/// Returns what is in a folder, sorted; nothing if there is no folder.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.with_context(|| display(folder).to_string())?,
    };
    let mut paths: Vec<_> = read.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    Ok(paths)
}

fn size(path: &Path) -> u64 {
    path.symlink_metadata().map_or(0, |metadata| metadata.len())
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
