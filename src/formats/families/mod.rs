//! The supported families of models: a file for each, and its name in [`FAMILIES`].

mod bitnet;
mod gemma3;
mod granite;
mod llama;
mod minicpm;
mod qwen3;
mod unsupported;

use super::{
    config::ModelConfig,
    family::{Architecture, Family, Part},
    problem::Problem,
};

static FAMILIES: [&Family; 6] = [
    &bitnet::FAMILY,
    &llama::FAMILY,
    &qwen3::FAMILY,
    &minicpm::FAMILY,
    &gemma3::FAMILY,
    &granite::FAMILY,
];

/// Returns the family of a `model_type` in config.json.
///
/// # Errors
/// A message that names what is missing for it, or the names that are supported.
pub fn of_json(name: &str) -> Result<&'static Family, Problem> {
    match FAMILIES.into_iter().find(|family| family.model_types.contains(&name)) {
        Some(family) => Ok(family),
        None => {
            let known: Vec<&str> =
                FAMILIES.iter().flat_map(|family| family.model_types).copied().collect();
            unsupported::refuse("model_type", name, &known)
        }
    }
}

/// Returns the family of a `general.architecture` in a GGUF file.
///
/// # Errors
/// As [`of_json`].
pub fn of_gguf(name: &str) -> Result<(&'static Family, &'static Architecture), Problem> {
    let all = || {
        FAMILIES
            .into_iter()
            .flat_map(|family| family.architectures.iter().map(move |a| (family, a)))
    };
    match all().find(|(_, architecture)| architecture.name == name) {
        Some(found) => Ok(found),
        None => {
            let known: Vec<&str> = all().map(|(_, architecture)| architecture.name).collect();
            unsupported::refuse("architecture", name, &known)
        }
    }
}

/// Returns the GGUF architecture with the graph of a model, if there is one, and its family. Any
/// Llama with sub-norms is a BitNet.
pub fn with_graph(c: &ModelConfig) -> Option<(&'static Family, &'static Architecture)> {
    let bitnet = Some(&bitnet::FAMILY).filter(|_| !c.qk_norms());
    let architectures = [Some(c.family()), bitnet]
        .into_iter()
        .flatten()
        .flat_map(|family| family.architectures.iter().map(move |a| (family, a)));
    let same = |architecture: &Architecture| {
        (architecture.activation, architecture.sub_norms) == (c.activation, c.sub_norms)
    };
    architectures.into_iter().find(|(_, architecture)| same(architecture))
}

/// Whether a name is a `model_type` or an architecture of a family.
pub fn is_known(name: &str) -> bool {
    of_name(name).is_some()
}

fn of_name(name: &str) -> Option<&'static Family> {
    FAMILIES.into_iter().find(|family| {
        family.model_types.contains(&name)
            || family.architectures.iter().any(|architecture| architecture.name == name)
    })
}

impl ModelConfig {
    /// Returns the family by the name of the architecture; Llama's where the name is unknown, as in
    /// an app's own [`ModelFile`](super::ModelFile).
    pub(crate) fn family(&self) -> &'static Family {
        of_name(&self.architecture).unwrap_or(&llama::FAMILY)
    }

    /// Whether query and key heads are normed before they are rotated.
    pub fn qk_norms(&self) -> bool {
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
        assert!(seen.iter().all(|name| is_known(name)) && !is_known("gpt"));
    }
}
