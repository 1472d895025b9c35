//! Models by their names on the Hugging Face hub.

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

/// A name on the hub: `OWNER/NAME[@REVISION][:FILE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    repository: String,
    revision: String,
    file: Option<String>,
}

impl Name {
    fn parse(name: &str) -> Option<Self> {
        let (name, file) = name.split_once(':').map_or((name, None), |(name, file)| (name, Some(file)));
        if file.is_none() && name.ends_with(".gguf") {
            // A file's path, mistyped perhaps.
            return None;
        }
        let (repository, revision) = name.split_once('@').unwrap_or((name, "main"));
        let word =
            |word: &str| !word.is_empty() && !word.starts_with('.') && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        let (owner, model) = repository.split_once('/')?;
        let sound = [owner, model, revision].into_iter().chain(file).all(word);
        sound.then(|| Self { repository: repository.into(), revision: revision.into(), file: file.map(Into::into) })
    }

    /// How to get the files without this program's help.
    fn by_hand(&self) -> String {
        let Self { repository, revision, file } = self;
        let what = match file {
            Some(file) => format!("download https://huggingface.co/{repository}/resolve/{revision}/{file} and give the file"),
            None => format!(
                "download the .gguf file, or config.json, generation_config.json, tokenizer.json, tokenizer_config.json and all *.safetensors \
                 (with their index, and hadamard.json where there is one; of an embedding model, its other .json files and the folder 1_Pooling too), from https://huggingface.co/{repository}/tree/{revision}, and give the file or the directory"
            ),
        };
        format!("to do it by hand, {what}")
    }
}

/// The path of a model: a path as it is, or that of a copy of a model on the hub, downloaded if it is not here yet.
pub fn resolve(name: &str) -> Result<PathBuf> {
    if Path::new(name).exists() {
        return Ok(name.into());
    }
    match Name::parse(name) {
        Some(hub) => fetch(name, &hub),
        None => bail!("{name}: there is no such file or directory"),
    }
}

#[cfg(not(feature = "hub"))]
fn fetch(name: &str, hub: &Name) -> Result<PathBuf> {
    bail!(
        "{name}: there is no such file or directory. If it is a name on the Hugging Face hub: this program was built without downloads; \
         `cargo install bitnet-wgpu-cli --features hub` builds it with them; {}",
        hub.by_hand()
    )
}

#[cfg(feature = "hub")]
use download::fetch;

#[cfg(feature = "hub")]
mod download {
    use super::Name;
    use crate::{note, text};
    use anyhow::{Context, Result, anyhow, bail};
    use hf_hub::{
        Cache, Repo, RepoType,
        api::sync::{Api, ApiBuilder, ApiError, ApiRepo},
    };
    use std::{
        fs,
        io::IsTerminal,
        path::{Path, PathBuf},
        sync::mpsc,
        time::Duration,
    };

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
    /// Where an embedding model says how its states become one vector: sentence-transformers' name for it.
    const POOLING: &str = "1_Pooling/config.json";
    /// How long the hub may take to say what a model's files are.
    const PATIENCE: Duration = Duration::from_secs(15);
    /// How often a download that broke off goes on by itself.
    const TRIES: usize = 3;

    pub fn fetch(name: &str, hub: &Name) -> Result<PathBuf> {
        let offline = std::env::var("HF_HUB_OFFLINE").is_ok_and(|value| !["", "0", "false"].contains(&value.to_lowercase().as_str()));
        let problem = if offline {
            anyhow!("HF_HUB_OFFLINE is set")
        } else {
            match listing(hub) {
                Ok(listing) => match download(name, hub, &listing) {
                    Ok(path) => return Ok(path),
                    // What is asked for is not there: an older copy would be another answer.
                    Err(error) if !error.is::<ApiError>() => return Err(error),
                    Err(error) => error,
                },
                Err(error) => error.context("the hub does not list its files"),
            }
        };
        match cached(name, hub) {
            Some(path) => {
                note(format!("{}; taking the copy at {}", text(&problem), path.display()));
                Ok(path)
            }
            None => Err(problem.context(format!(
                "{name}: there is no such file or directory, no copy in the cache, and it could not be downloaded (if it is private, set HF_TOKEN; {})",
                hub.by_hand()
            ))),
        }
    }

    fn repo(hub: &Name, revision: &str) -> Repo {
        Repo::with_revision(hub.repository.clone(), RepoType::Model, revision.to_owned())
    }

    /// The cache that other programs use too.
    fn cache() -> Cache {
        match std::env::var("HF_HUB_CACHE") {
            Ok(path) if !path.is_empty() => Cache::new(path.into()),
            _ => Cache::from_env(),
        }
    }

    /// A repository at its present commit.
    struct Listing {
        api: Api,
        repository: ApiRepo,
        files: Vec<String>,
        commit: String,
    }

    fn listing(hub: &Name) -> Result<Listing> {
        let (sender, receiver) = mpsc::channel();
        let hub = hub.clone();
        // `hf-hub` waits for ever; a thread that still waits ends with the program.
        std::thread::spawn(move || drop(sender.send(list(&hub).map_err(Box::new))));
        match receiver.recv_timeout(PATIENCE) {
            Ok(listing) => Ok(listing?),
            Err(_) => bail!("it has not answered for {} s", PATIENCE.as_secs()),
        }
    }

    fn list(hub: &Name) -> Result<Listing, ApiError> {
        // Without retries: those of `hf-hub` begin anew and append to what there is.
        let api =
            ApiBuilder::from_env().with_cache_dir(cache().path().clone()).with_progress(std::io::stderr().is_terminal()).with_retries(0);
        let api = api.with_user_agent("bitnet-wgpu-cli", env!("CARGO_PKG_VERSION"));
        let api = match std::env::var("HF_TOKEN") {
            Ok(token) if !token.is_empty() => api.with_token(Some(token)),
            _ => api,
        };
        let api = api.build()?;
        let info = api.repo(repo(hub, &hub.revision)).info()?;
        // What lies in other folders is not the model; and a name from the hub never leaves the cache's folder.
        let plain = |file: &String| file == POOLING || !file.contains(['/', '\\']) && file != "..";
        let files = info.siblings.into_iter().map(|file| file.rfilename).filter(plain).collect();
        Ok(Listing { repository: api.repo(repo(hub, &info.sha)), api, files, commit: info.sha })
    }

    fn download(name: &str, hub: &Name, listing: &Listing) -> Result<PathBuf> {
        let wanted = wanted(name, hub, &listing.files)?;
        let mut paths = Vec::new();
        for file in &wanted {
            let path = (1..TRIES).find_map(|_| listing.whole(hub, file).ok()).map_or_else(|| listing.whole(hub, file), Ok);
            paths.push(path.with_context(|| format!("{name}: downloading {file}; run it again to go on where it stopped"))?);
        }
        // So that the copy is found without network, by this program and others.
        let _ = cache().repo(repo(hub, &hub.revision)).create_ref(&listing.commit);
        let path = paths.into_iter().next().with_context(|| format!("{name}: it has no files"))?;
        Ok(if wanted.len() == 1 { path } else { path.parent().map_or(path.clone(), Into::into) })
    }

    impl Listing {
        /// A file of the repository. What is in the cache already is not downloaded again, and what was broken off goes on.
        fn whole(&self, hub: &Name, file: &str) -> Result<PathBuf> {
            let cache = cache().repo(repo(hub, &self.commit));
            let place = cache.pointer_path(&self.commit).join(file);
            if place.exists() {
                return Ok(place);
            }
            let metadata = self.api.metadata(&self.repository.url(file))?;
            let (size, blob) = (metadata.size() as u64, cache.blob_path(metadata.etag()));
            // The same file of an earlier commit.
            if blob.metadata().is_ok_and(|blob| blob.len() == size) {
                fs::create_dir_all(place.parent().unwrap_or(Path::new(".")))?;
                link(&blob, &place)?;
                return Ok(place);
            }
            let part = blob.with_extension("part");
            if part.metadata().is_ok_and(|part| part.len() > size) {
                fs::remove_file(&part)?;
            }
            let path = self.repository.download(file)?;
            let found = path.metadata()?.len();
            if found == size {
                return Ok(path);
            }
            // `hf-hub` takes a connection that closes early for the end of the file.
            let blob = path.canonicalize()?;
            if found < size {
                fs::rename(&blob, part)?
            } else {
                fs::remove_file(&blob)?
            }
            // A link to the blob, or the blob itself.
            let _ = fs::remove_file(&path);
            bail!("it ended after {found} of {size} bytes")
        }
    }

    #[cfg(unix)]
    fn link(blob: &Path, place: &Path) -> std::io::Result<()> {
        std::os::unix::fs::symlink(blob.canonicalize()?, place)
    }

    #[cfg(not(unix))]
    fn link(blob: &Path, place: &Path) -> std::io::Result<()> {
        fs::hard_link(blob, place)
    }

    /// The files of the model: one .gguf file, or config.json first and what belongs to it.
    fn wanted(name: &str, hub: &Name, files: &[String]) -> Result<Vec<String>> {
        let ending = |ending: &str| files.iter().filter(|file| file.ends_with(ending)).cloned().collect::<Vec<_>>();
        let (weights, ggufs) = (ending(".safetensors"), ending(".gguf"));
        if let Some(file) = &hub.file {
            return match ggufs.contains(file) {
                true => Ok(vec![file.clone()]),
                false => bail!("{name}: it has no {file}; GGUF files that it has: {ggufs:?}"),
            };
        }
        if files.iter().any(|file| file == "config.json") && !weights.is_empty() {
            let companions = COMPANIONS.iter().filter(|name| files.iter().any(|file| file == *name)).map(|name| (*name).to_owned());
            let weights = match files.iter().any(|file| file == "model.safetensors") {
                true => vec!["model.safetensors".to_owned()],
                false => weights.into_iter().filter(|file| file.starts_with("model")).chain(ending(".safetensors.index.json")).collect(),
            };
            return Ok(companions.chain(weights).collect());
        }
        match ggufs.as_slice() {
            [one] => Ok(vec![one.clone()]),
            [] => bail!("{name}: it has neither a .gguf file nor a config.json with .safetensors files"),
            several => bail!("{name}: it has several models; name one, as in {name}:{}. GGUF files that it has: {several:?}", several[0]),
        }
    }

    /// A copy from an earlier download, by this program or another, if it has all that is wanted.
    fn cached(name: &str, hub: &Name) -> Option<PathBuf> {
        let cache = cache();
        let commit = fs::read_to_string(cache.path().join(repo(hub, &hub.revision).folder_name()).join("refs").join(&hub.revision)).ok()?;
        let directory = cache.repo(repo(hub, &hub.revision)).pointer_path(commit.trim());
        let files: Vec<_> = fs::read_dir(&directory).ok()?.filter_map(|file| file.ok()?.file_name().into_string().ok()).collect();
        match wanted(name, hub, &files).ok()?.as_slice() {
            [one] => Some(directory.join(one)),
            _ => Some(directory),
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_model_is_found_among_the_files() {
            let wanted = |name: &str, files: &[&str]| {
                let files: Vec<String> = files.iter().map(|&file| file.into()).collect();
                wanted(name, &Name::parse(name).unwrap(), &files).map_err(|error| error.to_string())
            };
            assert_eq!(wanted("a/b", &["x.gguf", "README.md"]).unwrap(), ["x.gguf"]);
            assert_eq!(wanted("a/b:y.gguf", &["x.gguf", "y.gguf"]).unwrap(), ["y.gguf"]);
            assert!(wanted("a/b", &["x.gguf", "y.gguf"]).unwrap_err().contains("a/b:x.gguf"));
            assert!(wanted("a/b:z.gguf", &["x.gguf"]).unwrap_err().contains("x.gguf"));
            assert!(wanted("a/b", &["pytorch_model.bin", "config.json"]).is_err());
            let one = ["README.md", "config.json", "model.safetensors", "other.safetensors", "tokenizer.json"];
            assert_eq!(wanted("a/b", &one).unwrap(), ["config.json", "tokenizer.json", "model.safetensors"]);
            let shards = ["config.json", "model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"];
            assert_eq!(wanted("a/b", &shards).unwrap(), shards);
            let embeds = ["1_Pooling/config.json", "README.md", "config.json", "model.safetensors", "modules.json"];
            assert_eq!(wanted("a/b", &embeds).unwrap(), ["config.json", "modules.json", "1_Pooling/config.json", "model.safetensors"]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_hub_are_told_from_paths() {
        let name = Name::parse("microsoft/bitnet-b1.58-2B-4T").unwrap();
        assert_eq!((name.repository.as_str(), name.revision.as_str(), name.file), ("microsoft/bitnet-b1.58-2B-4T", "main", None));
        let name = Name::parse("a/b@v1:model.gguf").unwrap();
        assert_eq!((name.repository.as_str(), name.revision.as_str(), name.file.as_deref()), ("a/b", "v1", Some("model.gguf")));
        for path in
            ["model", "./a/b", "../a/b", "/a/b", "a/b/c", "a/", "a/b:../c", "a/b:x/y", "a b/c", "a/b@", "C:\\a", "~/a", "models/tiny.gguf"]
        {
            assert_eq!(Name::parse(path), None, "{path}");
        }
    }
}
