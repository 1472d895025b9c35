//! Errors of the downloader. Whatever comes from the network is escaped and shortened here.

use bitnet_wgpu::internals::files::display;
use std::{
    fmt::{self, Display, Formatter},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Characters of a text from the network that an error shows: enough for the URL of a file, too few
/// to fill a screen.
const MOST_SHOWN: usize = 300;

/// What [`is_component`](super::name::is_component) accepts.
pub const ACCEPTED_NAMES: &str = "a name of up to 255 letters, digits, `.`, `_` and `-` that does not begin with `.` would be accepted";

/// An answer of the hub, or a state of the cache, with which a download cannot go on.
#[derive(Debug)]
pub enum HubError {
    /// A name from the network that would become a path.
    Name { what: &'static str, name: String },
    /// A header or a URL that is missing or cannot be read.
    Answer { from: String, problem: String },
    /// A redirect that is not followed.
    Redirect { from: String, problem: String },
    /// A listing that cannot be read, or is too long.
    Listing { problem: String },
    /// A status other than success.
    Status { from: String, code: u16 },
    /// A time limit that has passed.
    Silent { from: String, limit: Duration, doing: Doing },
    /// A connection that failed.
    Connection { from: String, problem: String },
    /// A body that ended early.
    Short { found: u64, size: u64 },
    /// A body that is longer than announced.
    Long { size: u64 },
    /// A file whose SHA-256 is not the one announced.
    Digest { announced: String, found: String },
    /// A symbolic link where the cache has none, or one that leads out of it.
    Link { path: PathBuf },
    /// A file of the cache that cannot be read or written.
    File { path: PathBuf, error: io::Error },
    /// A variable of the environment, or the token's file, that cannot be used.
    Setting { name: String, problem: String },
}

/// What a time limit was for.
#[derive(Clone, Copy, Debug)]
pub enum Doing {
    Connecting,
    Answering,
    Sending,
}

impl HubError {
    /// Returns a function for `map_err` that names the file.
    pub fn file(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        |error| Self::File { path: path.into(), error }
    }

    /// Returns whether another attempt may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Status { code, .. } => *code == 429 || *code >= 500,
            Self::Silent { .. } | Self::Connection { .. } | Self::Short { .. } => true,
            _ => false,
        }
    }
}

impl Display for HubError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name { what, name } => {
                write!(f, "the hub sent `{}` as {what}; {ACCEPTED_NAMES}", shown(name))
            }
            Self::Answer { from, problem } => write!(f, "the answer of {from} has {problem}"),
            Self::Redirect { from, problem } => write!(f, "{from} redirects {problem}"),
            Self::Listing { problem } => write!(f, "the listing of the repository {problem}"),
            Self::Status { from, code } => write!(f, "{from} answers with HTTP status {code}"),
            Self::Silent { from, limit, doing } => {
                let seconds = limit.as_secs();
                match doing {
                    Doing::Connecting => {
                        write!(f, "there was no connection to {from} within {seconds} s")
                    }
                    Doing::Answering => write!(f, "{from} has not answered for {seconds} s"),
                    Doing::Sending => {
                        write!(f, "the download stalled: {from} sent nothing for {seconds} s")
                    }
                }
            }
            Self::Connection { from, problem } => write!(f, "{from}: {}", shown(problem)),
            Self::Short { found, size } => write!(f, "it ended after {found} of {size} bytes"),
            Self::Long { size } => {
                write!(f, "its body goes on after the {size} bytes that were announced")
            }
            Self::Digest { announced, found } => {
                write!(
                    f,
                    "its SHA-256 is {found}, and the hub announced {announced}; the file was removed"
                )
            }
            Self::Link { path } => write!(
                f,
                "{} is a symbolic link, which is not followed out of the model's cache folder; remove it, or set HF_HUB_CACHE to another folder",
                display(path)
            ),
            Self::File { path, error } => write!(f, "{}: {error}", display(path)),
            Self::Setting { name, problem } => write!(f, "{name} {problem}"),
        }
    }
}

impl std::error::Error for HubError {}

/// Returns a text with its control characters and quotes escaped, shortened to what an error shows.
pub fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(MOST_SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST_SHOWN).is_some() {
        shown += " ..";
    }
    shown
}
