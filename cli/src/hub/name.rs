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

impl Name {
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
