//! Limits of the server, and why each has its number. What an operator may want otherwise is in
//! [`Options`](crate::Options).

use std::time::Duration;

/// Longest body of a request, in bytes: prompts of a million tokens are about as long.
pub const MAX_BODY_BYTES: usize = 4 << 20;
/// Bytes of all bodies that arrive, wait or are being prepared: eight of the longest for one
/// client, and as many for the others.
pub const MAX_PENDING_BYTES: usize = 64 << 20;
/// Time for a body to arrive: 4 MiB at 1.1 Mbit/s.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a request's head to be complete. hyper's own default; clients that keep connections
/// open for longer open new ones.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that a write may wait for a client that reads nothing: as long as nginx's `send_timeout`.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that an answer goes on without progress after its client has closed its side. A client that
/// is gone looks the same until something is written to it, and holds a slot for this long at most.
pub const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that answers which have begun may go on when the server ends.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections at a time: 512 for one address, and as many for the others. With [`BUFFER`],
/// unfinished heads take at most 64 MiB.
pub const MAX_CONNECTIONS: usize = 1024;
/// Longest head of a request, in bytes: four times what nginx accepts of one header. hyper buffers
/// up to twice as much input of a connection; bodies are copied out of it.
pub const BUFFER: usize = 32 << 10;
/// Files that the process keeps open beside connections: the model's, the runtime's and the device
/// driver's.
pub const OTHER_FILES: usize = 64;
/// Time that a connection's input is read and dropped after the last answer. A client that still
/// sends its body would otherwise lose the answer.
pub const LINGER: Duration = Duration::from_secs(2);
/// Time that connections have to take what is left for them when the server has ended.
pub const LAST_WORDS: Duration = Duration::from_secs(2);
/// Time between two looks at whether the batch still runs: it does not notify.
pub const LOOK: Duration = Duration::from_millis(500);
/// Time to wait after the listener has failed, as when no more files may be opened. axum waits as
/// long.
pub const ACCEPT_RETRY: Duration = Duration::from_secs(1);
/// Requests that are prepared at a time, at most, however many cores there are.
pub const PREPARING: usize = 8;
/// Longest body, in bytes, that is prepared beside others of its kind. Reading its JSON may take
/// 100 MiB, and tokenizing it 220 bytes for each.
pub const SMALL_BODY: usize = 256 << 10;
/// Tokens of all texts of one request for embeddings, as in OpenAI's API.
pub const MAX_EMBEDDING_TOKENS: usize = 300_000;
/// Bytes of a token's log-probability in memory and in JSON: a map of three entries, with the
/// token's text and its bytes.
pub const LOGPROB_BYTES: usize = 900;
/// Bytes of a token's log-probability before it is JSON, with its part of the list's.
pub const LOGPROB_NUMBERS: usize = 48;
/// Texts that are embedded before others get their turn. The library computes as many together.
pub const PART_TEXTS: usize = 16;
/// Tokens that are embedded before others get their turn, counting each text as long as the
/// longest. The library computes as many together; a longer text is a part of its own.
pub const PART_TOKENS: usize = 4096;
