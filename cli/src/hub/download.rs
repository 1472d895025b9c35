//! Downloads of the files of a model, into the cache.

use super::{
    cache::{Cache, Partial},
    client::{Answer, Client, Listing, Metadata, is_sha256},
    environment,
    error::{ACCEPTED_NAMES, HubError, shown},
    name::{Name, is_component},
    url::Url,
};
use crate::{note, printable, text};
use anyhow::{Context, Result, anyhow, bail};
use bitnet_wgpu::internals::files::display;
use indicatif::{ProgressBar, ProgressStyle};
use std::{fs, path::PathBuf};

/// What a model directory may have besides its weights.
const COMPANIONS: [&str; 11] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    // With it the library refuses a model that it would misread without.
    "hadamard.json",
    POOLING,
];
/// Where an embedding model says how its states become one vector: sentence-transformers' name for
/// it.
const POOLING: &str = "1_Pooling/config.json";
/// Attempts at a file in one run. Each goes on where the last stopped.
const TRIES: usize = 3;
/// Bytes of one read of a body.
const BUFFER_BYTES: usize = 64 << 10;

/// Returns the path of a model's copy, downloaded if it is not here yet.
pub fn fetch(name: &str, hub: &Name) -> Result<PathBuf> {
    let cache = Cache::new(environment::cache()?, &hub.repository);
    let problem = match online(hub) {
        Ok((client, listing)) => {
            // What is asked for is not there: an older copy would be another answer.
            let selected =
                select(name, hub, &usable(&listing)).map_err(|error| explained(error, &listing))?;
            match download(name, hub, &Download { client, cache: &cache, hub, listing }, &selected)
            {
                Ok(path) => return Ok(path),
                Err(error) => error,
            }
        }
        Err(error) => error,
    };
    match cached(name, hub, &cache) {
        Some(path) => {
            note(printable(&format!("{}; using the copy at {}", text(&problem), display(&path))));
            Ok(path)
        }
        None => Err(problem.context(format!(
            "{name}: no such file or directory, no copy in the cache, and it could not be downloaded (if it is private, set HF_TOKEN; {})",
            hub.by_hand()
        ))),
    }
}

fn online(hub: &Name) -> Result<(Client, Listing)> {
    if environment::is_offline() {
        bail!("HF_HUB_OFFLINE is set");
    }
    let client = Client::from_environment()?;
    let listing = client
        .listing(&hub.repository, &hub.revision)
        .context("the hub does not list its files")?;
    Ok((client, listing))
}

/// Returns the names that can become files of a snapshot. What lies in other folders is not the
/// model.
fn usable(listing: &Listing) -> Vec<String> {
    let names = listing.siblings.iter().map(|file| &file.name);
    names.filter(|name| is_component(name) || *name == POOLING).cloned().collect()
}

/// Returns an error with the first file of weights that has no usable name, if there is one.
fn explained(error: anyhow::Error, listing: &Listing) -> anyhow::Error {
    let is_weights = |name: &str| name.ends_with(".gguf") || name.ends_with(".safetensors");
    match listing.siblings.iter().find(|file| {
        is_weights(&file.name) && !file.name.contains('/') && !is_component(&file.name)
    }) {
        Some(file) => anyhow!("{error}; it has `{}`: {ACCEPTED_NAMES}", shown(&file.name)),
        None => error,
    }
}

fn download(name: &str, hub: &Name, download: &Download, selected: &[String]) -> Result<PathBuf> {
    let commit = &download.listing.commit;
    let mut paths = Vec::new();
    for file in selected {
        let path = download.with_retries(file).map_err(|error| {
            let hint =
                if error.is_transient() { "; run it again to go on where it stopped" } else { "" };
            anyhow::Error::new(error).context(format!("{name}: downloading {file}{hint}"))
        });
        paths.push(path?);
    }
    // So that the copy is found without network, by this program and others.
    if let Err(error) = download.cache.set_commit(&hub.revision, commit) {
        note(format!("the copy will not be found without a network: {error}"));
    }
    model_of(&paths, download.cache.snapshot(commit)).with_context(|| format!("{name}: no files"))
}

/// Returns what is opened of these files: the GGUF file, or the first of its parts, or the snapshot.
fn model_of(files: &[PathBuf], snapshot: PathBuf) -> Option<PathBuf> {
    let first = files.first()?;
    let is_gguf = first.extension().is_some_and(|extension| extension == "gguf");
    Some(if is_gguf { first.clone() } else { snapshot })
}

/// A repository that is downloaded.
struct Download<'a> {
    client: Client,
    cache: &'a Cache,
    hub: &'a Name,
    listing: Listing,
}

impl Download<'_> {
    fn with_retries(&self, file: &str) -> Result<PathBuf, HubError> {
        let mut path = self.file(file);
        for _ in 1..TRIES {
            match &path {
                Err(error) if error.is_transient() => path = self.file(file),
                _ => break,
            }
        }
        path
    }

    /// Returns the path of a file. What is in the cache already is not downloaded again, and what
    /// was broken off goes on.
    fn file(&self, file: &str) -> Result<PathBuf, HubError> {
        let commit = &self.listing.commit;
        if let Some(path) = self.cache.find(commit, file)? {
            return Ok(path);
        }
        let url = self.client.file_url(&self.hub.repository, commit, file)?;
        let metadata = self.client.metadata(&url)?;
        let _lock = self.cache.lock(&metadata.etag)?;
        // Another process may have downloaded it, or it is the same file of an earlier commit.
        if !self.cache.has_blob(&metadata.etag, metadata.size)? {
            self.blob(file, &url, &metadata)?;
        }
        self.cache.link(&metadata.etag, commit, file)
    }

    /// Downloads a version of a file, from where an earlier download stopped.
    fn blob(&self, file: &str, url: &Url, metadata: &Metadata) -> Result<(), HubError> {
        let mut partial = self.cache.partial(&metadata.etag)?;
        let outcome = self
            .complete(file, url, metadata, &mut partial)
            .and_then(|()| self.verify(file, metadata, &mut partial));
        match outcome {
            Ok(()) => partial.finish(),
            // It is not the beginning of the file.
            Err(error @ (HubError::Long { .. } | HubError::Digest { .. })) => {
                partial.remove().and(Err(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Appends what is missing.
    fn complete(
        &self,
        file: &str,
        url: &Url,
        metadata: &Metadata,
        partial: &mut Partial,
    ) -> Result<(), HubError> {
        let mut start = partial.len()?;
        if start > metadata.size {
            partial.truncate()?;
            start = 0;
        }
        if start == metadata.size {
            return Ok(());
        }
        let answer = self.client.file_from(url, start)?;
        if check_version(&answer, metadata, start)? == 0 {
            partial.truncate()?;
            start = 0;
        }
        let bar = progress(file, metadata.size);
        bar.set_position(start);
        let copied = self.copy(answer, metadata.size, start, partial, &bar);
        bar.finish_and_clear();
        copied
    }

    /// Copies a body to the end of a partial file. Writes no byte beyond the announced size.
    fn copy(
        &self,
        answer: Answer,
        size: u64,
        start: u64,
        partial: &mut Partial,
        bar: &ProgressBar,
    ) -> Result<(), HubError> {
        let (mut body, url) = answer.into_body();
        let (mut found, mut buffer) = (start, vec![0; BUFFER_BYTES]);
        partial.seek(start)?;
        loop {
            let read = self.client.read(&mut body, &mut buffer, &url)?;
            if read == 0 {
                return if found == size { Ok(()) } else { Err(HubError::Short { found, size }) };
            }
            if read as u64 > size - found {
                return Err(HubError::Long { size });
            }
            partial.write(&buffer[..read])?;
            found += read as u64;
            bar.set_position(found);
        }
    }

    /// Compares the SHA-256 with those that the hub announced: the listing's, and the version of a
    /// large file.
    fn verify(
        &self,
        file: &str,
        metadata: &Metadata,
        partial: &mut Partial,
    ) -> Result<(), HubError> {
        let listed = self
            .listing
            .siblings
            .iter()
            .find(|sibling| sibling.name == file)
            .and_then(|sibling| sibling.sha256());
        let announced: Vec<&str> = listed
            .into_iter()
            .chain(Some(metadata.etag.as_str()).filter(|etag| is_sha256(etag)))
            .collect();
        if announced.is_empty() {
            return Ok(());
        }
        let found = partial.sha256()?;
        match announced.iter().find(|announced| !announced.eq_ignore_ascii_case(&found)) {
            Some(&announced) => Err(HubError::Digest { announced: announced.into(), found }),
            None => Ok(()),
        }
    }
}

/// Returns the byte at which the answer begins: the one that was asked for, or 0. Refuses another
/// version of the file.
fn check_version(answer: &Answer, metadata: &Metadata, asked: u64) -> Result<u64, HubError> {
    let refuse =
        |problem: String| Err(HubError::Answer { from: answer.url().to_string(), problem });
    let (etag, start) = (answer.etag()?, answer.start()?);
    if etag != metadata.etag {
        return refuse(format!(
            "the ETag {etag}, and another one a moment ago ({}); run it again",
            metadata.etag
        ));
    }
    if start != 0 && start != asked {
        return refuse(format!("a body that begins at byte {start}; {asked} was asked for"));
    }
    match answer.size() {
        Some(size) if size > metadata.size => Err(HubError::Long { size: metadata.size }),
        Some(size) if size < metadata.size => refuse(format!(
            "a size of {size} bytes, and {} a moment ago; run it again",
            metadata.size
        )),
        _ => Ok(start),
    }
}

fn progress(file: &str, size: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
    );
    ProgressBar::new(size)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(file.to_owned())
}

/// The files of the model: one .gguf file or all its parts, or config.json first and what belongs to
/// it.
fn select(name: &str, hub: &Name, files: &[String]) -> Result<Vec<String>> {
    let ending = |ending: &str| {
        files.iter().filter(|file| file.ends_with(ending)).cloned().collect::<Vec<_>>()
    };
    let (weights, ggufs) = (ending(".safetensors"), ending(".gguf"));
    if let Some(file) = &hub.file {
        return match ggufs.contains(file) {
            true => parts(name, file, &ggufs),
            false => bail!("{name}: no file {file}; GGUF files: {}", ggufs.join(", ")),
        };
    }
    if files.iter().any(|file| file == "config.json") && !weights.is_empty() {
        let companions = COMPANIONS
            .iter()
            .filter(|name| files.iter().any(|file| file == *name))
            .map(|name| (*name).to_owned());
        let weights = match files.iter().any(|file| file == "model.safetensors") {
            true => vec!["model.safetensors".to_owned()],
            false => weights
                .into_iter()
                .filter(|file| file.starts_with("model"))
                .chain(ending(".safetensors.index.json"))
                .collect(),
        };
        return Ok(companions.chain(weights).collect());
    }
    let is_first = |file: &&String| part(file).is_none_or(|(_, index, _)| index <= 1);
    let models: Vec<_> = ggufs.iter().filter(is_first).collect();
    match models.as_slice() {
        [one] => parts(name, one, &ggufs),
        [] => {
            bail!("{name}: neither a .gguf file nor a config.json with .safetensors files")
        }
        several => bail!(
            "{name}: several models; choose one, as in {name}:{}; GGUF files: {}",
            several[0],
            several.iter().map(|file| file.as_str()).collect::<Vec<_>>().join(", ")
        ),
    }
}

/// What is before the number of a part of a split GGUF model, the number, and that of all parts:
/// `NAME-00002-of-00003.gguf`.
fn part(file: &str) -> Option<(&str, usize, usize)> {
    let (before, count) = file.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (begin, index) = before.rsplit_once('-')?;
    Some((begin, index.parse().ok()?, count.parse().ok()?))
}

/// Returns a GGUF file, or all parts of the model if it is one of them.
fn parts(name: &str, file: &str, ggufs: &[String]) -> Result<Vec<String>> {
    let Some((begin, _, count)) = part(file) else { return Ok(vec![file.to_owned()]) };
    let of_model =
        |file: &&String| part(file).is_some_and(|(own, _, all)| (own, all) == (begin, count));
    let mut found: Vec<String> = ggufs.iter().filter(of_model).cloned().collect();
    found.sort();
    match found.len() == count {
        true => Ok(found),
        false => bail!("{name}: {} of {count} parts of {file}", found.len()),
    }
}

/// Returns a copy from an earlier download, by this program or another, if it has all that is
/// selected.
fn cached(name: &str, hub: &Name, cache: &Cache) -> Option<PathBuf> {
    let commit = cache.commit(&hub.revision)?;
    let directory = cache.snapshot(&commit);
    let files: Vec<_> = fs::read_dir(&directory)
        .ok()?
        .filter_map(|file| file.ok()?.file_name().into_string().ok())
        .collect();
    let selected = select(name, hub, &files).ok()?;
    let paths: Option<Vec<_>> =
        selected.iter().map(|file| cache.find(&commit, file).ok()?).collect();
    model_of(&paths?, directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_found_among_the_files() {
        let select = |name: &str, files: &[&str]| {
            let files: Vec<String> = files.iter().map(|&file| file.into()).collect();
            select(name, &Name::parse(name).unwrap(), &files).map_err(|error| error.to_string())
        };
        assert_eq!(select("a/b", &["x.gguf", "README.md"]).unwrap(), ["x.gguf"]);
        assert_eq!(select("a/b:y.gguf", &["x.gguf", "y.gguf"]).unwrap(), ["y.gguf"]);
        assert!(select("a/b", &["x.gguf", "y.gguf"]).unwrap_err().contains("a/b:x.gguf"));
        assert!(select("a/b:z.gguf", &["x.gguf"]).unwrap_err().contains("x.gguf"));
        assert!(select("a/b", &["pytorch_model.bin", "config.json"]).is_err());
        let split = ["m-00002-of-00002.gguf", "m-00001-of-00002.gguf", "x.gguf"];
        let both = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
        assert_eq!(select("a/b", &split[..2]).unwrap(), both);
        assert_eq!(select("a/b:m-00002-of-00002.gguf", &split).unwrap(), both);
        assert!(select("a/b", &split).unwrap_err().ends_with("m-00001-of-00002.gguf, x.gguf"));
        assert!(select("a/b", &split[1..2]).unwrap_err().contains("1 of 2 parts"));
        let one = [
            "README.md",
            "config.json",
            "model.safetensors",
            "other.safetensors",
            "tokenizer.json",
        ];
        assert_eq!(
            select("a/b", &one).unwrap(),
            ["config.json", "tokenizer.json", "model.safetensors"]
        );
        let shards = [
            "config.json",
            "model-1.safetensors",
            "model-2.safetensors",
            "model.safetensors.index.json",
        ];
        assert_eq!(select("a/b", &shards).unwrap(), shards);
        let embeds = [
            "1_Pooling/config.json",
            "README.md",
            "config.json",
            "model.safetensors",
            "modules.json",
        ];
        assert_eq!(
            select("a/b", &embeds).unwrap(),
            ["config.json", "modules.json", "1_Pooling/config.json", "model.safetensors"]
        );
    }
}
