//! The supported families of models: a file for each, and its name in [`FAMILIES`].

mod bitnet;
mod gemma3;
mod granite;
mod llama;
mod maple;
mod minicpm;
mod qwen3;
pub mod qwen35;
mod qwen3_moe;
mod unsupported;

use super::{
    config::ModelConfig,
    family::{Architecture, Family, Part},
    format_error::FormatError,
};
use std::ptr;

static FAMILIES: &[&Family] = &[
    &bitnet::FAMILY,
    &llama::FAMILY,
    &qwen3::FAMILY,
    &qwen3_moe::FAMILY,
    &maple::FAMILY,
    &minicpm::FAMILY,
    &gemma3::FAMILY,
    &granite::FAMILY,
    &qwen35::FAMILY,
];

fn architectures() -> impl Iterator<Item = (&'static Family, &'static Architecture)> {
    FAMILIES.iter().flat_map(|family| family.architectures.iter().map(move |own| (*family, own)))
}

/// Returns the family of a `model_type` in config.json.
///
/// # Errors
/// A message that names what is missing for it, or the names that are supported.
pub fn of_json(name: &str) -> Result<&'static Family, FormatError> {
    let known = FAMILIES.iter().flat_map(|family| family.model_types).copied();
    let found = FAMILIES.iter().copied().find(|family| family.model_types.contains(&name));
    found.ok_or_else(|| unsupported::problem("model_type", name, known.collect()))
}

/// Returns the family of a `general.architecture` in a GGUF file.
///
/// # Errors
/// As [`of_json`].
pub fn of_gguf(name: &str) -> Result<(&'static Family, &'static Architecture), FormatError> {
    let known = architectures().map(|(_, own)| own.name);
    let found = architectures().find(|(_, own)| own.name == name);
    found.ok_or_else(|| unsupported::problem("architecture", name, known.collect()))
}

/// Returns the GGUF architecture with the graph of a model, if there is one, and its family. Any
/// Llama with sub-norms is a BitNet.
pub fn with_graph(c: &ModelConfig) -> Option<(&'static Family, &'static Architecture)> {
    architectures().find(|(family, own)| {
        (own.activation, own.sub_norms) == (c.activation, c.sub_norms)
            && (ptr::eq(*family, c.family()) || own.sub_norms && !c.qk_norms())
    })
}

/// Returns the family of a name in either format.
pub fn of_name(name: &str) -> Option<&'static Family> {
    of_json(name).or_else(|_| of_gguf(name).map(|(family, _)| family)).ok()
}

impl ModelConfig {
    /// Returns the family by the name of the architecture; Llama's where the name is unknown, as in
    /// an app's own [`ModelFile`](super::ModelFile).
    pub(crate) fn family(&self) -> &'static Family {
        of_name(&self.architecture).unwrap_or(&llama::FAMILY)
    }

    /// Whether query and key heads are normed before they are rotated.
    pub(crate) fn qk_norms(&self) -> bool {
        self.family().layer.iter().any(|part| matches!(part, Part::HeadNorms(..)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_name_belongs_to_one_family() {
        let mut seen = BTreeSet::new();
        for family in FAMILIES {
            let architectures = family.architectures.iter().map(|architecture| architecture.name);
            let names: BTreeSet<&str> =
                family.model_types.iter().copied().chain(architectures).collect();
            assert!(!names.is_empty() && seen.is_disjoint(&names), "{names:?}");
            seen.extend(names);
        }
        assert!(seen.iter().all(|name| of_name(name).is_some()) && of_name("gpt").is_none());
    }
}
