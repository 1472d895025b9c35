//! How a model's authors compute embeddings: what sentence-transformers writes beside a
//! model, and a GGUF's `pooling_type`.

use super::{
    format_error::FormatError,
    json::{Keys, read_json},
};
use crate::{error::Result, files::display};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Component, Path, PathBuf};

/// How the states of a text's tokens, after the final norm, become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub enum Pooling {
    /// That of the first token. In a causal model it has seen no other.
    Cls,
    /// Their mean.
    Mean,
    /// That of the last token, which has seen all others.
    Last,
}

/// How a model's authors compute embeddings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct EmbeddingDefaults {
    /// How a text becomes one vector; none where the files do not say.
    pub pooling: Option<Pooling>,
    /// Whether the vector is divided by its length (L2). None where the files do not say.
    pub normalize: Option<bool>,
    /// The most tokens that a text may have (`max_seq_length`); none where the files do not say.
    pub max_tokens: Option<usize>,
    /// What the files ask for and is not supported: another pooling or none, a layer behind it, or
    /// that texts are changed before.
    pub unsupported: Option<String>,
}

/// The flags of sentence-transformers' pooling, and their names in its newer versions. Others are
/// not supported.
const MODES: [(&str, &str, Pooling); 3] = [
    ("pooling_mode_cls_token", "cls", Pooling::Cls),
    ("pooling_mode_mean_tokens", "mean", Pooling::Mean),
    ("pooling_mode_lasttoken", "lasttoken", Pooling::Last),
];

/// The modules that modules.json lists: the names of their classes, and of poolings the folders.
/// None without such a list.
fn modules(directory: &Path) -> Result<Option<Vec<(String, PathBuf)>>> {
    let path = directory.join("modules.json");
    if !path.exists() {
        return Ok(None);
    }
    let json = read_json(&path)?;
    let wrong = |what: String| FormatError::from(what).at(&path);
    let module = |module: &Value| {
        let text = |key: &str| {
            module[key].as_str().ok_or_else(|| wrong(format!("a module has no {key}: {module}")))
        };
        // The name of a class, with those of the packages that it has moved through.
        let kind = text("type")?.rsplit('.').next().unwrap_or_default().to_owned();
        let folder = Path::new(if kind == "Pooling" { text("path")? } else { "." });
        if kind == "Pooling"
            && (folder.as_os_str().is_empty()
                || !folder.components().all(|part| matches!(part, Component::Normal(_))))
        {
            return Err(wrong(format!(
                "names the folder `{}`, which is not in the model's",
                display(folder)
            )));
        }
        Ok((kind, folder.to_owned()))
    };
    let list = json.as_array().ok_or_else(|| wrong("is no list of modules".into()))?;
    list.iter().map(module).collect::<Result<_>>().map(Some)
}

/// The folders of a model directory in which a pooling's config.json may be: those that
/// modules.json names, and without that list the usual one.
pub(super) fn pooling_folders(directory: &Path) -> Result<Vec<PathBuf>> {
    let usual = || {
        [PathBuf::from("1_Pooling")]
            .into_iter()
            .filter(|folder| directory.join(folder).join("config.json").exists())
            .collect()
    };
    let poolings = |modules: Vec<(String, PathBuf)>| {
        modules
            .into_iter()
            .filter(|(kind, _)| kind == "Pooling")
            .map(|(_, folder)| folder)
            .collect()
    };
    Ok(modules(directory)?.map_or_else(usual, poolings))
}

impl EmbeddingDefaults {
    /// What a model directory says: modules.json lists what a text goes through.
    pub(super) fn read(directory: &Path) -> Result<Self> {
        let mut defaults = Self::default();
        let Some(modules) = modules(directory)? else {
            for folder in pooling_folders(directory)? {
                defaults.pool(directory, &folder)?;
            }
            return Ok(defaults);
        };
        defaults.normalize = Some(false);
        let transformer = beside(directory, TRANSFORMER)?;
        defaults.max_tokens = max_tokens(&transformer)
            .map_err(|message| FormatError::from(message).at(directory.join(TRANSFORMER)))?;
        match modules.iter().filter(|(kind, _)| kind == "Pooling").count() {
            0 => {
                defaults.unsupported = Some(
                    "modules.json has no pooling, which asks for the states of all tokens"
                        .to_owned(),
                )
            }
            1 => {}
            _ => {
                defaults.unsupported = Some("modules.json has several poolings".to_owned());
                return Ok(defaults);
            }
        }
        defaults.unsupported = changed_texts(directory, &transformer)?.or(defaults.unsupported);
        for (kind, folder) in modules {
            match kind.as_str() {
                "Transformer" => {}
                "Pooling" => defaults.pool(directory, &folder)?,
                "Normalize" => defaults.normalize = Some(true),
                other => {
                    defaults.unsupported = Some(format!("modules.json has a module `{other}`"))
                }
            }
        }
        Ok(defaults)
    }

    /// Reads the pooling's config.json.
    fn pool(&mut self, directory: &Path, folder: &Path) -> Result<()> {
        let path = directory.join(folder).join("config.json");
        if !path.exists() {
            self.unsupported = Some(format!(
                "modules.json has a pooling in `{}`, which has no config.json",
                display(folder)
            ));
            return Ok(());
        }
        let json = read_json(&path)?;
        let (names, pooling) = modes(&json).map_err(|problem| problem.at(&path))?;
        self.pooling = pooling;
        if pooling.is_none() {
            self.unsupported = Some(format!(
                "{} asks for the pooling `{}`",
                display(&folder.join("config.json")),
                names.join("` and `")
            ));
        }
        Ok(())
    }

    /// What a GGUF's `pooling_type` says, as llama.cpp numbers it; 0 is none.
    pub(super) fn from_gguf(kind: Option<u64>) -> Self {
        let pooling = match kind {
            None | Some(0) => None,
            Some(1) => Some(Pooling::Mean),
            Some(2) => Some(Pooling::Cls),
            Some(3) => Some(Pooling::Last),
            Some(other) => {
                let what = if other == 4 { " (ranking)" } else { "" };
                return Self {
                    unsupported: Some(format!("pooling_type is {other}{what}")),
                    ..Self::default()
                };
            }
        };
        Self { pooling, ..Self::default() }
    }
}

/// What sentence-transformers writes of a model whose texts go through a pooling.
const TRANSFORMER: &str = "sentence_bert_config.json";

/// A JSON file of a directory; null where it is not there.
fn beside(directory: &Path, name: &str) -> Result<Value> {
    let path = directory.join(name);
    if path.exists() { read_json(&path) } else { Ok(Value::Null) }
}

/// The longest text, where longer ones would be cut.
fn max_tokens(transformer: &Value) -> Result<Option<usize>, String> {
    const KEY: &str = "max_seq_length";
    let keys = transformer.as_object().map(Keys).filter(|keys| keys.get(KEY).is_some());
    keys.map(|keys| keys.size(KEY, None)).transpose()
}

/// What the files would have done to every text, and is not: a prompt before it, or no capital
/// letters in it.
fn changed_texts(directory: &Path, transformer: &Value) -> Result<Option<String>> {
    let json = beside(directory, "config_sentence_transformers.json")?;
    let prompt = json["default_prompt_name"].as_str().filter(|name| json["prompts"][name] != "");
    if let Some(name) = prompt {
        return Ok(Some(format!(
            "config_sentence_transformers.json has the default prompt `{name}`, which is not supported"
        )));
    }
    Ok((transformer["do_lower_case"] == true)
        .then(|| format!("{TRANSFORMER} has `do_lower_case`, which is not supported")))
}

/// The names of the poolings that are asked for, and the pooling where it is one that is supported.
/// Where a name is given, the older flags do not count; where nothing is, the mean is taken, as
/// sentence-transformers does.
fn modes(json: &Value) -> Result<(Vec<String>, Option<Pooling>), FormatError> {
    let json = Keys(json.as_object().ok_or("is not a JSON object")?);
    let mut names = Vec::new();
    match json.get("pooling_mode") {
        None => {
            for key in json.0.keys().filter(|key| key.starts_with("pooling_mode_")) {
                if json.flag(key)? {
                    names.push(key.clone());
                }
            }
        }
        Some(Value::String(mode)) => names.push(mode.clone()),
        Some(Value::Array(list)) => {
            let list = list
                .iter()
                .map(|mode| mode.as_str().map(str::to_owned))
                .collect::<Option<Vec<_>>>();
            names = list.ok_or("pooling_mode is no list of strings")?;
        }
        Some(other) => return Err(format!("pooling_mode is {other}; a string is needed").into()),
    }
    let pooling = match &names[..] {
        [] => Some(Pooling::Mean),
        [one] => MODES
            .iter()
            .find(|(old, new, _)| one == old || one == new)
            .map(|(.., pooling)| *pooling),
        _ => None,
    };
    Ok((names, pooling))
}
