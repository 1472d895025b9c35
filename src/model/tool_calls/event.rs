//! What is found in an answer that may contain tool calls.

/// The most white space before a call that is left out of the text, in bytes.
pub const MOST_SPACES: usize = 64;

/// What a [`ToolCallParser`](super::parser::ToolCallParser) finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolCallEvent {
    /// Text outside of calls.
    Text(String),
    /// A call begins.
    Begin {
        /// A new random id.
        id: String,
        /// Name of the tool, which is one of the tokenizer's.
        name: String,
    },
    /// A piece of the call's arguments, which together are a JSON object.
    Arguments(String),
    /// The call is complete.
    End,
    /// What began as a call, with [`Begin`](Self::Begin) or without, is none. This is its text.
    Malformed(String),
}
