//! Settings from the environment, by the names that huggingface_hub gives them.

use super::{
    error::{HubError, shown},
    url::Url,
};
use bitnet_wgpu::internals::files;
use std::{env, ffi::OsString, path::PathBuf, time::Duration};

/// Longest file of a token, in bytes: tokens have some 40.
const MOST_TOKEN_BYTES: u64 = 4096;
/// Longest time limit that a variable can set: a day.
const MOST_SECONDS: u64 = 86_400;

/// Returns a variable, or none if it is empty.
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns whether `HF_HUB_OFFLINE` keeps this program off the network.
pub fn is_offline() -> bool {
    env::var("HF_HUB_OFFLINE")
        .is_ok_and(|value| !["", "0", "false"].contains(&value.to_lowercase().as_str()))
}

/// Returns the folder of caches and tokens: `HF_HOME`, or else `huggingface` in `XDG_CACHE_HOME` or
/// in `~/.cache`.
fn home() -> Result<PathBuf, HubError> {
    if let Some(home) = variable("HF_HOME") {
        return Ok(home.into());
    }
    if let Some(caches) = variable("XDG_CACHE_HOME") {
        return Ok(PathBuf::from(caches).join("huggingface"));
    }
    let user = env::home_dir().ok_or_else(|| HubError::Setting {
        name: "HF_HOME".into(),
        problem:
            "is not set, and there is no home directory; the path of a folder would be accepted"
                .into(),
    })?;
    Ok(user.join(".cache").join("huggingface"))
}

/// Returns the folder of the cache that other programs use too: `HF_HUB_CACHE`, its older name
/// `HUGGINGFACE_HUB_CACHE`, or else `hub` in the folder of caches.
pub fn cache() -> Result<PathBuf, HubError> {
    match variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE")) {
        Some(path) => Ok(path.into()),
        None => Ok(home()?.join("hub")),
    }
}

/// Returns the URL of the hub, or of a mirror.
pub fn endpoint() -> Result<Url, HubError> {
    let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
    Url::parse(endpoint.to_string_lossy().trim_end_matches('/')).map_err(|problem| {
        HubError::Setting { name: "HF_ENDPOINT".into(), problem: format!("has {problem}") }
    })
}

/// Returns the token that opens private repositories, if there is one.
pub fn token() -> Option<String> {
    let token = match variable("HF_TOKEN") {
        Some(token) => token.to_string_lossy().into_owned(),
        None => String::from_utf8(files::read(home().ok()?.join("token"), MOST_TOKEN_BYTES).ok()?)
            .ok()?,
    };
    Some(token.trim().to_owned()).filter(|token| !token.is_empty())
}

/// Returns a time limit in seconds from a variable.
pub fn seconds(name: &str, default: Duration) -> Result<Duration, HubError> {
    let Some(value) = variable(name) else { return Ok(default) };
    let value = value.to_string_lossy();
    match value.parse() {
        Ok(seconds @ 1..=MOST_SECONDS) => Ok(Duration::from_secs(seconds)),
        _ => Err(HubError::Setting {
            name: name.into(),
            problem: format!(
                "is `{}`; a number of seconds from 1 to {MOST_SECONDS} would be accepted",
                shown(&value)
            ),
        }),
    }
}
