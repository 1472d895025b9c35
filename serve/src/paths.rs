//! Paths of the server.

/// The path that never needs a key.
pub const HEALTH: &str = "/health";
/// The chat page, which needs none either: it asks its user for the key.
pub const PAGE: &str = "/";
pub const METRICS: &str = "/metrics";
pub const MODELS: &str = "/v1/models";
pub const CHAT: &str = "/v1/chat/completions";
pub const COMPLETIONS: &str = "/v1/completions";
pub const EMBEDDINGS: &str = "/v1/embeddings";
pub const RESPONSES: &str = "/v1/responses";
pub const MESSAGES: &str = "/v1/messages";
pub const COUNT: &str = "/v1/messages/count_tokens";
pub const TOKENIZE: &str = "/tokenize";
pub const DETOKENIZE: &str = "/detokenize";
/// All paths but those of single models.
const PATHS: [&str; 12] = [
    PAGE,
    HEALTH,
    METRICS,
    MODELS,
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    RESPONSES,
    MESSAGES,
    COUNT,
    TOKENIZE,
    DETOKENIZE,
];

/// Returns the route of a path, as metrics count it.
pub fn route(path: &str) -> &'static str {
    if let Some(route) = PATHS.into_iter().find(|route| *route == path) {
        return route;
    }
    if path.starts_with("/v1/models/") { "/v1/models/NAME" } else { "other" }
}
