//! The keys `prism.hadamard.*`: weights that meet rotated activations. What they mean is that of
//! the fork of llama.cpp that writes them.

use super::{
    file::GgufFile,
    value::{GgufValue, show},
};
use crate::formats::{
    config::ModelConfig,
    format_error::{FormatError, unsupported},
    hadamard::Hadamard,
};
use std::collections::{BTreeMap, BTreeSet};

const PREFIX: &str = "prism.hadamard.";

/// Keys that have one value that is supported.
const FIXED: [(&str, &str); 2] =
    [("transform", "normalized-sylvester-walsh-hadamard"), ("axis", "input-last-dimension")];

/// All others. The last is of recurrent layers.
const KEYS: [&str; 8] = [
    "version",
    "block_size",
    "sign_mode",
    "sign_widths",
    "sign_values",
    "weight_names",
    "inverse_weight_names",
    "gdn_v_grouped",
];

/// Reads the rotation of a model whose linear layers are `linears`, by their names in the file.
/// None where the file has no such key: with any of them it is never loaded as if it had none.
pub(super) fn read(
    file: &GgufFile,
    config: &ModelConfig,
    linears: &[String],
) -> Result<Option<Hadamard>, FormatError> {
    let Some(first) = file.keys().find(|key| key.starts_with(PREFIX)) else { return Ok(None) };
    let known = |key: &str| KEYS.contains(&key) || FIXED.iter().any(|(fixed, _)| *fixed == key);
    if let Some(key) =
        file.keys().filter_map(|key| key.strip_prefix(PREFIX)).find(|key| !known(key))
    {
        return unsupported(format!(
            "{PREFIX}{key} is not known, and would change what weights mean"
        ));
    }
    if !["qwen3", "qwen35"].contains(&&*config.architecture) {
        let name = &config.architecture;
        return unsupported(format!(
            "has the key {first}: rotated weights of the architecture `{name}` are not supported; those of `qwen3` and `qwen35` are"
        ));
    }
    if config.quantized_activations {
        return unsupported(format!(
            "has the key {first}: quantized rotated activations are not supported"
        ));
    }
    let keys = Keys(file);
    keys.check_fixed()?;
    let block = keys
        .needed("block_size", |value| value.as_u64().and_then(|size| usize::try_from(size).ok()))?;
    let signs = keys.signs_by_mode()?;
    let (head, embedding) = keys.rotated_ends(config, linears)?;
    let hadamard = Hadamard { block, signs, head, embedding };
    let widths = config.input_widths();
    if let Some(width) = widths
        .iter()
        .find(|width| !hadamard.signs.is_empty() && !hadamard.signs.contains_key(width))
    {
        return Err(format!("{PREFIX}sign_widths is without {width}").into());
    }
    // A block that is larger than what is supported is nothing wrong with the file.
    hadamard.check(&widths, config.quantized_activations).map_err(FormatError::Unsupported)?;
    Ok(Some(hadamard))
}

/// Returns whether the output projections of recurrent layers take value heads in the order in which
/// those that read a key head are neighbors.
///
/// # Errors
/// A message, for a value that is neither true nor false.
pub(super) fn regrouped(file: &GgufFile) -> Result<bool, FormatError> {
    let key = "gdn_v_grouped";
    match file.get(&format!("{PREFIX}{key}")) {
        None => Ok(false),
        Some(_) => Ok(Keys(file).needed(key, |value| value.as_bool())?),
    }
}

#[derive(Clone, Copy)]
struct Keys<'a>(&'a GgufFile);

impl<'a> Keys<'a> {
    /// Checks the keys that have one supported value.
    fn check_fixed(self) -> Result<(), FormatError> {
        match self.needed("version", |value| value.as_u64())? {
            1 => {}
            other => return unsupported(format!("{PREFIX}version is {other}; 1 is supported")),
        }
        for (key, only) in FIXED {
            let found = self.needed(key, |value| value.as_str())?;
            if found != only {
                return unsupported(format!("{PREFIX}{key} is `{found}`; `{only}` is supported"));
            }
        }
        Ok(())
    }

    /// The signs of inputs by their width, none where all are 1.
    fn signs_by_mode(self) -> Result<BTreeMap<usize, Vec<f32>>, FormatError> {
        match self.needed("sign_mode", |value| value.as_str())? {
            "identity" => match self.0.get(&format!("{PREFIX}sign_values")) {
                Some(_) if self.sign_values()?.iter().any(|&sign| sign != 1.0) => Err(format!(
                    "{PREFIX}sign_mode is `identity`, and {PREFIX}sign_values has others than 1"
                )
                .into()),
                _ => Ok(BTreeMap::new()),
            },
            "explicit" => Ok(self.signs()?),
            other => unsupported(format!(
                "{PREFIX}sign_mode is `{other}`; `explicit` and `identity` are supported"
            )),
        }
    }

    /// Whether the LM head and the embedding are rotated, where all linear layers are.
    fn rotated_ends(
        self,
        config: &ModelConfig,
        linears: &[String],
    ) -> Result<(bool, bool), FormatError> {
        let (mut named, inverse) =
            (self.names("weight_names")?, self.names("inverse_weight_names")?);
        if let Some(missing) = linears.iter().find(|name| !named.remove(name.as_str())) {
            return unsupported(format!(
                "{PREFIX}weight_names is without `{missing}`; that all linear layers are rotated is supported"
            ));
        }
        let embedding = "token_embd.weight";
        let head = if config.tied_head { embedding } else { "output.weight" };
        let rotated = (named.remove(head), inverse.contains(embedding));
        if let Some(other) =
            named.iter().chain(inverse.iter().filter(|name| **name != embedding)).next()
        {
            return Err(format!("{PREFIX}weight_names or inverse_weight_names has `{other}`, which is not a weight with rotated activations").into());
        }
        if config.tied_head && rotated.0 != rotated.1 {
            return unsupported(format!(
                "{PREFIX}weight_names and inverse_weight_names disagree about `{embedding}`, which is the head too"
            ));
        }
        Ok(rotated)
    }

    fn needed<T>(self, key: &str, read: impl Fn(GgufValue<'a>) -> Option<T>) -> Result<T, String> {
        let value =
            self.0.get(&format!("{PREFIX}{key}")).ok_or_else(|| format!("has no {PREFIX}{key}"))?;
        read(value)
            .ok_or_else(|| format!("{PREFIX}{key} is {}, a value of the wrong type", show(value)))
    }

    fn list<T>(
        self,
        key: &str,
        read: impl Fn(GgufValue<'a>) -> Option<T>,
    ) -> Result<Vec<T>, String> {
        self.needed(key, |value| value.as_array()?.iter().map(&read).collect())
    }

    /// Names without those that are there twice.
    fn names(self, key: &str) -> Result<BTreeSet<&'a str>, String> {
        let names = self.list(key, |value| value.as_str())?;
        let count = names.len();
        let names: BTreeSet<_> = names.into_iter().collect();
        if names.len() == count {
            Ok(names)
        } else {
            Err(format!("{PREFIX}{key} has a name twice"))
        }
    }

    /// The signs of each width, which are one after another.
    fn sign_values(self) -> Result<Vec<f32>, String> {
        self.list("sign_values", |value| {
            value.as_i64().map(|sign| sign as f32).or(value.as_f64().map(|sign| sign as f32))
        })
    }

    fn signs(self) -> Result<BTreeMap<usize, Vec<f32>>, String> {
        let widths = self.list("sign_widths", |value| {
            value.as_u64().and_then(|width| usize::try_from(width).ok())
        })?;
        let values = self.sign_values()?;
        let total = widths.iter().try_fold(0usize, |sum, &width| sum.checked_add(width));
        if total != Some(values.len()) || widths.is_empty() {
            return Err(format!(
                "{PREFIX}sign_values has {} numbers for sign_widths {widths:?}",
                values.len()
            ));
        }
        if let Some(wrong) = values.iter().find(|sign| sign.abs() != 1.0) {
            return Err(format!("{PREFIX}sign_values has {wrong}; 1 and -1 are signs"));
        }
        let (mut signs, mut left) = (BTreeMap::new(), &values[..]);
        for width in widths {
            let (of_width, rest) = left.split_at(width);
            if signs.insert(width, of_width.to_vec()).is_some() {
                return Err(format!("{PREFIX}sign_widths has {width} twice"));
            }
            left = rest;
        }
        Ok(signs)
    }
}
