//! Families that are known and not supported, by what they have that is missing here.

use crate::formats::format_error::FormatError;

const FUSED: &str = "the projections of its recurrent layers are fused";
const ROTATED: &str = "its weights are rotated, which is supported in GGUF files only";
const EXPERTS: &str = "its feed-forward blocks are mixtures of experts";
const OTHER_EXPERTS: &str =
    "its feed-forward blocks are mixtures of experts of another form than Qwen3-MoE's";
const IMAGES: &str = "it takes images";
const BOTH_WAYS: &str = "tokens attend to those that follow; only causal attention is";

/// Their names in config.json (`model_type`) and in GGUF files (`general.architecture`), and what
/// is missing.
const FAMILIES: [(&[&str], &[&str]); 8] = [
    // Bonsai 2 in MLX's format.
    (&["prism_hadamard_qwen35"], &[ROTATED]),
    (&["qwen35moe", "qwen3_5_moe", "qwen3_5_moe_text"], &[EXPERTS]),
    (&["qwen3next", "qwen3_next"], &[FUSED, EXPERTS]),
    (&["qwen2moe", "qwen2_moe", "mixtral", "olmoe", "granitemoe"], &[OTHER_EXPERTS]),
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
    (&["gemma3"], &["it takes images; the text model is `gemma3_text`"]),
    (&["gemma-embedding"], &[BOTH_WAYS]),
];

/// Returns why a model is refused that `key` says is a `name`: what is missing, or the `known` names
/// of that key.
pub fn problem(key: &str, name: &str, known: Vec<&str>) -> FormatError {
    let missing = FAMILIES.iter().find(|(names, _)| names.contains(&name));
    let why = match (missing, known.split_last()) {
        (Some((_, missing)), _) => format!(": {}", missing.join("; ")),
        (None, Some((last, others))) => format!("; `{}` and `{last}` are", others.join("`, `")),
        (None, None) => String::new(),
    };
    FormatError::Unsupported(format!("{key} `{name}` is not supported{why}"))
}
