//! Names: of models on the hub, and of what becomes a file or folder.

/// Longest name of a file or folder, in bytes: common file systems take no longer one.
const MOST_NAME_BYTES: usize = 255;

/// A name on the hub: `OWNER/NAME[@REVISION][:FILE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub repository: String,
    pub revision: String,
    pub file: Option<String>,
}

/// What URLs of models on the hub begin with.
const URLS: [&str; 4] =
    ["https://huggingface.co/", "https://hf.co/", "https://www.huggingface.co/", "hf://"];

impl Name {
    /// Reads a URL of a repository or of a file in it, as
    /// `https://huggingface.co/OWNER/NAME/blob/REVISION/FILE` or `hf://OWNER/NAME/FILE`. A file
    /// that is not GGUF stands for the whole model.
    pub fn from_url(url: &str) -> Option<Self> {
        let path = URLS.iter().find_map(|start| url.strip_prefix(start))?;
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let mut parts = path.trim_end_matches('/').split('/');
        let (owner, model) = (parts.next()?, parts.next()?);
        let rest: Vec<&str> = parts.collect();
        let (revision, file) = match rest.as_slice() {
            [] => ("", None),
            ["tree" | "blob" | "resolve", revision] => (*revision, None),
            ["blob" | "resolve", revision, file] => (*revision, Some(*file)),
            [file] if url.starts_with("hf://") => ("", Some(*file)),
            _ => return None,
        };
        let mut name = format!("{owner}/{model}");
        if !revision.is_empty() {
            name += &format!("@{revision}");
        }
        if let Some(file) = file.filter(|file| file.ends_with(".gguf")) {
            name += &format!(":{file}");
        }
        Self::parse(&name)
    }

    pub fn parse(name: &str) -> Option<Self> {
        let (name, file) =
            name.split_once(':').map_or((name, None), |(name, file)| (name, Some(file)));
        if file.is_none() && name.ends_with(".gguf") {
            // A file's path, mistyped perhaps.
            return None;
        }
        let (repository, revision) = name.split_once('@').unwrap_or((name, "main"));
        let (owner, model) = repository.split_once('/')?;
        let sound = is_word(owner)
            && is_word(model)
            && is_component(revision)
            && file.is_none_or(is_component);
        sound.then(|| Self {
            repository: repository.into(),
            revision: revision.into(),
            file: file.map(Into::into),
        })
    }

    /// How to get the files without this program's help.
    pub fn by_hand(&self) -> String {
        let Self { repository, revision, file } = self;
        let what = match file {
            Some(file) => format!(
                "download https://huggingface.co/{repository}/resolve/{revision}/{file} and give the file"
            ),
            None => format!(
                "download the .gguf file, or config.json, generation_config.json, tokenizer.json, tokenizer_config.json and all *.safetensors \
                 (with their index, and hadamard.json where there is one; of an embedding model, its other .json files and the folder 1_Pooling too), from https://huggingface.co/{repository}/tree/{revision}, and give the file or the directory"
            ),
        };
        format!("to do it by hand, {what}")
    }
}

/// Returns whether a name has only characters that are plain in paths and URLs.
fn is_word(name: &str) -> bool {
    !name.starts_with('.')
        && (1..=MOST_NAME_BYTES).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Returns whether a name can become one component of a path, on every system.
pub fn is_component(name: &str) -> bool {
    is_word(name) && !name.ends_with('.') && !is_windows_device(name)
}

/// Returns whether Windows takes a file of this name for a device, in whatever folder and with
/// whatever extension.
fn is_windows_device(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default().to_ascii_uppercase();
    let numbered = |stem: &str| stem.len() == 1 && stem.bytes().all(|byte| byte.is_ascii_digit());
    ["CON", "PRN", "AUX", "NUL"].contains(&stem.as_str())
        || ["COM", "LPT"].iter().any(|port| stem.strip_prefix(port).is_some_and(numbered))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_hub_are_told_from_paths() {
        let name = Name::parse("microsoft/bitnet-b1.58-2B-4T").unwrap();
        assert_eq!(
            (name.repository.as_str(), name.revision.as_str(), name.file),
            ("microsoft/bitnet-b1.58-2B-4T", "main", None)
        );
        let name = Name::parse("a/b@v1:model.gguf").unwrap();
        assert_eq!(
            (name.repository.as_str(), name.revision.as_str(), name.file.as_deref()),
            ("a/b", "v1", Some("model.gguf"))
        );
        for path in [
            "model",
            "./a/b",
            "../a/b",
            "/a/b",
            "a/b/c",
            "a/",
            "a/b:../c",
            "a/b:x/y",
            "a b/c",
            "a/b@",
            "C:\\a",
            "~/a",
            "models/tiny.gguf",
            "a/b@..",
            "a/b:con.gguf",
        ] {
            assert_eq!(Name::parse(path), None, "{path}");
        }
    }

    #[test]
    fn urls_of_the_hub_are_names() {
        for (url, expected) in [
            ("https://huggingface.co/a/b", Some("a/b")),
            ("https://huggingface.co/a/b/", Some("a/b")),
            ("https://hf.co/a/b/tree/main", Some("a/b@main")),
            ("https://huggingface.co/a/b/blob/v1/m.gguf", Some("a/b@v1:m.gguf")),
            (
                "https://huggingface.co/a/b/resolve/main/m.gguf?download=true",
                Some("a/b@main:m.gguf"),
            ),
            ("https://huggingface.co/a/b/resolve/main/model.safetensors", Some("a/b@main")),
            ("hf://a/b", Some("a/b")),
            ("hf://a/b@v1/m.gguf", Some("a/b@v1:m.gguf")),
            ("https://huggingface.co/a", None),
            ("https://huggingface.co/a/b/discussions/1", None),
            ("https://huggingface.co/a/b/resolve/main/../m.gguf", None),
            ("https://huggingface.co/a/../m.gguf", None),
            ("https://example.org/a/b", None),
            ("a/b", None),
        ] {
            let expected = expected.map(|name| Name::parse(name).unwrap());
            assert_eq!(Name::from_url(url), expected, "{url}");
        }
    }

    #[test]
    fn components_stay_in_their_folder() {
        let longest = "a".repeat(MOST_NAME_BYTES);
        for name in [
            "a",
            "model-1.safetensors",
            "0123abcDEF",
            "a..b",
            "console",
            "com10",
            "x.con",
            &longest,
        ] {
            assert!(is_component(name), "{name}");
        }
        let longer = "a".repeat(MOST_NAME_BYTES + 1);
        let hostile = [
            "",
            ".",
            "..",
            ".git",
            "a.",
            "a/b",
            "/etc",
            "a\\b",
            "C:",
            "a\0",
            "a\n",
            "a b",
            "%2e%2e",
            "é",
            "CON",
            "nul.gguf",
            "Com1.json",
        ];
        for name in hostile.into_iter().chain([longer.as_str()]) {
            assert!(!is_component(name), "{name:?}");
        }
    }
}
