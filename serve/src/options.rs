//! Options of a server.

use crate::limits;
use bitnet_wgpu::{
    Error,
    model::{GenerateOptions, Tokenizer},
};
use std::time::Duration;

/// How a model is served.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Name of the model in the API.
    pub name: String,
    /// API keys, one of which requests must send as `Authorization: Bearer KEY`. Without keys,
    /// every request is answered.
    ///
    /// Clients take turns: how many requests one has makes no difference to others. With two or
    /// more keys, each key is a client, and keys do not share cached prefixes; of four slots or
    /// more, one client leaves one free for others. Else each IP address is one, and each /64
    /// network of IPv6: all that come through one proxy are a single client.
    pub keys: Vec<String>,
    /// Names by which the server may be reached, as in the header `Host`, and sites whose pages may
    /// use it, as in `Origin`; without ports.
    ///
    /// A listener on a loopback address always checks both headers, so that pages of other sites
    /// cannot reach it by a name of their own (DNS rebinding): `localhost` and loopback addresses
    /// are accepted, and these names. A listener on another address checks only if there are names
    /// here. It accepts any IP address as `Host` too, and the same one as `Origin`: a browser sends
    /// both for a page that the server itself gave. The check is for all paths.
    pub allowed_hosts: Vec<String>,
    /// Origins whose pages may use the server from a browser (CORS), as in
    /// `https://app.example:8443`; `*` allows all. None by default.
    pub cors_origins: Vec<String>,
    /// Whether fields without effect are errors. By default they are ignored, such as `user`. A
    /// field that is unknown is always an error.
    pub strict: bool,
    /// Whether there is a chat page at `/`: true by default.
    pub page: bool,
    /// Generation options of requests that do not set their own: by default the library's. Of
    /// these, `max_tokens`, `max_length` and the seed are not used; see [`Options::max_tokens`] and
    /// [`Options::seed`].
    pub defaults: GenerateOptions,
    /// Maximum tokens of an answer if the request does not set it: by default 16 for completions,
    /// and the context for chats.
    pub max_tokens: Option<usize>,
    /// Seed of requests that do not set one: by default a new one for each.
    pub seed: Option<u64>,
    /// Tokenizer of prompts and chats: by default the model's.
    pub tokenizer: Option<Tokenizer>,
    /// Maximum size of a body in bytes: 4 MiB by default.
    pub max_body_bytes: usize,
    /// Maximum bytes of all bodies that arrive, wait or are being prepared, and of embeddings that
    /// are computed or sent: 64 MiB by default. One client gets at most half of what others leave.
    /// More are refused with status 429. The largest body has to fit twice.
    pub max_pending_bytes: usize,
    /// Maximum tokens of one embeddings request: 300 000 by default.
    pub max_embedding_tokens: usize,
    /// Time limit for a body to arrive: 30 seconds by default.
    pub body_timeout: Duration,
    /// Time limit for a request's head to arrive, from the connection's start or the answer before:
    /// 30 seconds by default. Idle connections end with it too.
    pub header_timeout: Duration,
    /// Time limit for a write to a client that does not read its answer, after which the connection
    /// is closed: 60 seconds by default.
    pub write_timeout: Duration,
    /// Time that an answer goes on without progress after its client has closed its side of the
    /// connection: 10 seconds by default. A client that has gone looks the same as one that has
    /// finished sending.
    pub half_closed_timeout: Duration,
    /// Maximum number of connections: 1024 by default, and at most as many as the process may open
    /// files.
    /// One IP address, and one /64 network of IPv6, gets half of what others leave at most: a proxy
    /// that needs 1000 needs 2000 here. More are closed, with status 429.
    pub max_connections: usize,
    /// Time that running requests may continue after the server is told to stop: 10 seconds by
    /// default.
    pub shutdown_timeout: Duration,
}

impl Options {
    /// Returns the default options for a model of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            keys: Vec::new(),
            allowed_hosts: Vec::new(),
            cors_origins: Vec::new(),
            strict: false,
            page: true,
            defaults: GenerateOptions::default(),
            max_tokens: None,
            seed: None,
            tokenizer: None,
            max_body_bytes: limits::MAX_BODY_BYTES,
            max_pending_bytes: limits::MAX_PENDING_BYTES,
            max_embedding_tokens: limits::MAX_EMBEDDING_TOKENS,
            body_timeout: limits::BODY_TIMEOUT,
            header_timeout: limits::HEADER_TIMEOUT,
            write_timeout: limits::WRITE_TIMEOUT,
            half_closed_timeout: limits::HALF_CLOSED_TIMEOUT,
            max_connections: limits::MAX_CONNECTIONS,
            shutdown_timeout: limits::SHUTDOWN_TIMEOUT,
        }
    }

    /// Sets [`Options::keys`].
    #[must_use]
    pub fn keys(self, keys: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { keys: keys.into_iter().map(Into::into).collect(), ..self }
    }

    /// Sets [`Options::allowed_hosts`].
    #[must_use]
    pub fn allowed_hosts(self, hosts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { allowed_hosts: hosts.into_iter().map(Into::into).collect(), ..self }
    }

    /// Sets [`Options::cors_origins`].
    #[must_use]
    pub fn cors_origins(self, origins: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { cors_origins: origins.into_iter().map(Into::into).collect(), ..self }
    }

    /// Sets [`Options::strict`].
    #[must_use]
    pub fn strict(self, strict: bool) -> Self {
        Self { strict, ..self }
    }

    /// Sets [`Options::page`].
    #[must_use]
    pub fn page(self, page: bool) -> Self {
        Self { page, ..self }
    }

    /// Sets [`Options::defaults`].
    #[must_use]
    pub fn defaults(self, defaults: GenerateOptions) -> Self {
        Self { defaults, ..self }
    }

    /// Sets [`Options::max_tokens`].
    #[must_use]
    pub fn max_tokens(self, max_tokens: Option<usize>) -> Self {
        Self { max_tokens, ..self }
    }

    /// Sets [`Options::seed`].
    #[must_use]
    pub fn seed(self, seed: Option<u64>) -> Self {
        Self { seed, ..self }
    }

    /// Sets [`Options::tokenizer`].
    #[must_use]
    pub fn tokenizer(self, tokenizer: Option<Tokenizer>) -> Self {
        Self { tokenizer, ..self }
    }

    /// Sets [`Options::max_body_bytes`].
    #[must_use]
    pub fn max_body_bytes(self, max_body_bytes: usize) -> Self {
        Self { max_body_bytes, ..self }
    }

    /// Sets [`Options::max_pending_bytes`].
    #[must_use]
    pub fn max_pending_bytes(self, max_pending_bytes: usize) -> Self {
        Self { max_pending_bytes, ..self }
    }

    /// Sets [`Options::max_embedding_tokens`].
    #[must_use]
    pub fn max_embedding_tokens(self, max_embedding_tokens: usize) -> Self {
        Self { max_embedding_tokens, ..self }
    }

    /// Sets [`Options::body_timeout`].
    #[must_use]
    pub fn body_timeout(self, body_timeout: Duration) -> Self {
        Self { body_timeout, ..self }
    }

    /// Sets [`Options::header_timeout`].
    #[must_use]
    pub fn header_timeout(self, header_timeout: Duration) -> Self {
        Self { header_timeout, ..self }
    }

    /// Sets [`Options::write_timeout`].
    #[must_use]
    pub fn write_timeout(self, write_timeout: Duration) -> Self {
        Self { write_timeout, ..self }
    }

    /// Sets [`Options::half_closed_timeout`].
    #[must_use]
    pub fn half_closed_timeout(self, half_closed_timeout: Duration) -> Self {
        Self { half_closed_timeout, ..self }
    }

    /// Sets [`Options::max_connections`].
    #[must_use]
    pub fn max_connections(self, max_connections: usize) -> Self {
        Self { max_connections, ..self }
    }

    /// Sets [`Options::shutdown_timeout`].
    #[must_use]
    pub fn shutdown_timeout(self, shutdown_timeout: Duration) -> Self {
        Self { shutdown_timeout, ..self }
    }

    /// Checks the options that do not depend on a model.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key that no header can have, a host or an origin that is none, no
    /// connections, or fewer bytes than two bodies have.
    pub fn check(&self) -> bitnet_wgpu::Result<()> {
        if self
            .keys
            .iter()
            .any(|key| key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return invalid(
                "invalid API key; one or more visible ASCII characters are accepted".into(),
            );
        }
        if let Some(host) = self
            .allowed_hosts
            .iter()
            .find(|host| crate::hosts::host_of(host).is_none_or(|name| name.len() != host.len()))
        {
            return invalid(format!(
                "`{}` is not a host; a name or an address without a port is accepted",
                crate::error::shown(host)
            ));
        }
        if let Some(origin) =
            self.cors_origins.iter().find(|origin| *origin != "*" && !is_origin(origin))
        {
            return invalid(format!(
                "`{}` is not an origin; `https://HOST[:PORT]` or `*` is accepted",
                crate::error::shown(origin)
            ));
        }
        if self.max_pending_bytes < self.max_body_bytes.saturating_mul(2) {
            return invalid(format!(
                "{} bytes of all bodies; the largest body, of {}, has to fit twice",
                self.max_pending_bytes, self.max_body_bytes
            ));
        }
        if self.max_connections == 0 {
            return invalid("0 connections; at least 1 is needed".into());
        }
        Ok(())
    }
}

/// Tests whether a browser could send this as `Origin`.
fn is_origin(text: &str) -> bool {
    crate::hosts::origin_host(text).is_some() && text.matches('/').count() == 2
}

fn invalid(what: String) -> bitnet_wgpu::Result<()> {
    Err(Error::Invalid { op: "serve", what })
}
