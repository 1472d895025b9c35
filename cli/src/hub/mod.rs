//! Models by their names on the Hugging Face hub.

#[cfg(feature = "hub")]
mod cache;
#[cfg(feature = "hub")]
mod client;
#[cfg(feature = "hub")]
mod download;
#[cfg(feature = "hub")]
mod environment;
#[cfg(feature = "hub")]
mod error;
mod name;
#[cfg(feature = "hub")]
mod url;

use anyhow::{Result, bail};
#[cfg(feature = "hub")]
use download::fetch;
use name::Name;
use std::path::{Path, PathBuf};

/// The path of a model: a path as it is, or that of a copy of a model on the hub, downloaded if it
/// is not here yet. The hub's models have names and URLs.
pub fn resolve(name: &str) -> Result<PathBuf> {
    if Path::new(name).exists() {
        return Ok(name.into());
    }
    match Name::parse(name).or_else(|| Name::from_url(name)) {
        Some(hub) => fetch(name, &hub),
        None if name.contains("://") => bail!(
            "{name}: is no URL of a model on the Hugging Face hub, as https://huggingface.co/OWNER/NAME; download the model and give its path"
        ),
        None => bail!(
            "{name}: no such file or directory, and not OWNER/NAME, a name on the Hugging Face hub"
        ),
    }
}

/// Returns the folder of the cache.
#[cfg(feature = "hub")]
pub fn cache() -> Result<PathBuf> {
    Ok(environment::cache()?)
}

#[cfg(not(feature = "hub"))]
fn fetch(name: &str, hub: &Name) -> Result<PathBuf> {
    bail!(
        "{name}: no such file or directory. If it is a name on the Hugging Face hub: this program was built without downloads; \
         `cargo install bitnet-wgpu-cli` builds it with them; {}",
        hub.by_hand()
    )
}
