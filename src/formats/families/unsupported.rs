//! Families that are known and not supported, by what they have that is missing here.

use crate::formats::problem::{Problem, unsupported};

const DELTA_NET: &str = "most of its layers are linear attention (Gated DeltaNet), and queries of the others have gates";
const EXPERTS: &str = "its feed-forward blocks are mixtures of experts";
const IMAGES: &str = "it sees images";
const BOTH_WAYS: &str = "tokens attend to those that follow; only causal attention is";

/// Their names in config.json (`model_type`) and in GGUF files (`general.architecture`), and what
/// is missing.
const FAMILIES: [(&[&str], &[&str]); 8] = [
    // Bonsai 27B and Bonsai 2 are such.
    (&["qwen35", "qwen3_5", "qwen3_5_text", "prism_hadamard_qwen35"], &[DELTA_NET]),
    (
        &["qwen35moe", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3next", "qwen3_next"],
        &[DELTA_NET, EXPERTS],
    ),
    (
        &["qwen3moe", "qwen3_moe", "qwen2moe", "qwen2_moe", "mixtral", "olmoe", "granitemoe"],
        &[EXPERTS],
    ),
    (
        &["maple"],
        &[
            EXPERTS,
            "its gates are clamped",
            "only its layers that see a window rotate, half of a head",
        ],
    ),
    (
        &[
            "qwen3vl",
            "qwen3_vl",
            "qwen3_vl_text",
            "qwen2vl",
            "qwen2_vl",
            "qwen2_5_vl",
            "llava",
            "mllama",
            "clip",
        ],
        &[IMAGES],
    ),
    (&["qwen3vlmoe", "qwen3_vl_moe", "qwen3_vl_moe_text"], &[IMAGES, EXPERTS]),
    (&["gemma3"], &["it sees images; of its models of text it is `gemma3_text`"]),
    (&["gemma-embedding"], &[BOTH_WAYS]),
];

/// Refuses the model that `key` says is a `name`: with what is missing, or with the `known` names
/// of that key.
pub fn refuse<T>(key: &str, name: &str, known: &[&str]) -> Result<T, Problem> {
    if let Some((_, missing)) = FAMILIES.iter().find(|(names, _)| names.contains(&name)) {
        return unsupported(format!("{key} `{name}` is not supported: {}", missing.join("; ")));
    }
    let (last, others) = known.split_last().unwrap_or((&"", &[]));
    let known = format!("`{}` and `{last}`", others.join("`, `"));
    unsupported(format!("{key} `{name}` is not supported; {known} are"))
}
