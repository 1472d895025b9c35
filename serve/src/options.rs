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
    /// Name of the model, which requests may give.
    pub name: String,
    /// Keys, of which requests must send one as `Authorization: Bearer KEY`. Without keys anybody
    /// is answered.
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
    /// here, and accepts any IP address as `Host` too. The check is for all paths.
    pub allowed_hosts: Vec<String>,
    /// Values for what requests do not say of sampling and ends: by default the library's. Of
    /// these, `max_tokens`, `max_length` and the seed are not used; see [`Options::max_tokens`] and
    /// [`Options::seed`].
    pub defaults: GenerateOptions,
    /// Most tokens of an answer whose request does not say how many: by default 16 for completions,
    /// and what fits for chats.
    pub max_tokens: Option<usize>,
    /// Seed of requests without one of their own: by default a new one for each.
    pub seed: Option<u64>,
    /// Tokenizer of texts and conversations: by default the model's.
    pub tokenizer: Option<Tokenizer>,
    /// Longest body, in bytes: 4 MiB by default.
    pub body: usize,
    /// Bytes of all bodies that arrive, wait or are being prepared, and of vectors that are
    /// computed or sent: 64 MiB by default. One client gets half of what others leave at most. More
    /// are refused with status 429. The longest body has to fit twice.
    pub bytes: usize,
    /// Tokens of all texts of one request for embeddings: 300 000 by default.
    pub embedding_tokens: usize,
    /// Time for a body to arrive: 30 seconds by default.
    pub patience: Duration,
    /// Time for a request's head to arrive, from the connection's start or the answer before: 30
    /// seconds by default. Idle connections end with it too.
    pub idle: Duration,
    /// Time that a write may wait for a client that does not read its answer: 60 seconds by
    /// default. The connection is closed then.
    pub stall: Duration,
    /// Time that an answer goes on without progress after its client has closed its side of the
    /// connection: 10 seconds by default. A client that has gone looks the same as one that has
    /// finished sending.
    pub half_closed: Duration,
    /// Connections at a time: 1024 by default, and at most as many as the process may open files.
    /// One IP address, and one /64 network of IPv6, gets half of what others leave at most: a proxy
    /// that needs 1000 needs 2000 here. More are closed, with status 429.
    pub connections: usize,
    /// Time that answers which have begun may go on when the server is to end: 10 seconds by
    /// default.
    pub grace: Duration,
}

impl Options {
    /// Default options for a model of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            keys: Vec::new(),
            allowed_hosts: Vec::new(),
            defaults: GenerateOptions::default(),
            max_tokens: None,
            seed: None,
            tokenizer: None,
            body: limits::BODY,
            bytes: limits::BYTES,
            embedding_tokens: limits::EMBEDDING_TOKENS,
            patience: limits::PATIENCE,
            idle: limits::IDLE,
            stall: limits::STALL,
            half_closed: limits::HALF_CLOSED,
            connections: limits::CONNECTIONS,
            grace: limits::GRACE,
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

    /// Sets [`Options::body`].
    #[must_use]
    pub fn body(self, body: usize) -> Self {
        Self { body, ..self }
    }

    /// Sets [`Options::bytes`].
    #[must_use]
    pub fn bytes(self, bytes: usize) -> Self {
        Self { bytes, ..self }
    }

    /// Sets [`Options::embedding_tokens`].
    #[must_use]
    pub fn embedding_tokens(self, embedding_tokens: usize) -> Self {
        Self { embedding_tokens, ..self }
    }

    /// Sets [`Options::patience`].
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Sets [`Options::idle`].
    #[must_use]
    pub fn idle(self, idle: Duration) -> Self {
        Self { idle, ..self }
    }

    /// Sets [`Options::stall`].
    #[must_use]
    pub fn stall(self, stall: Duration) -> Self {
        Self { stall, ..self }
    }

    /// Sets [`Options::half_closed`].
    #[must_use]
    pub fn half_closed(self, half_closed: Duration) -> Self {
        Self { half_closed, ..self }
    }

    /// Sets [`Options::connections`].
    #[must_use]
    pub fn connections(self, connections: usize) -> Self {
        Self { connections, ..self }
    }

    /// Sets [`Options::grace`].
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// Checks what does not depend on a model.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key that no header can have, an allowed host that is none, no
    /// connections, fewer bytes than two bodies have, or [`Options::defaults`] with which no
    /// request can be served: those that speculate, or go on with what was generated before.
    pub fn check(&self) -> bitnet_wgpu::Result<()> {
        let GenerateOptions { speculate, resumed, .. } = &self.defaults;
        for (option, is_set) in [("speculate", speculate.is_some()), ("resumed", *resumed > 0)] {
            if is_set {
                return invalid(format!("`{option}` is not supported in the defaults of a server"));
            }
        }
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
        if self.bytes < self.body.saturating_mul(2) {
            return invalid(format!(
                "{} bytes of all bodies; the largest body, of {}, has to fit twice",
                self.bytes, self.body
            ));
        }
        if self.connections == 0 {
            return invalid("0 connections; at least 1 is needed".into());
        }
        Ok(())
    }
}

fn invalid(what: String) -> bitnet_wgpu::Result<()> {
    Err(Error::Invalid { op: "serve", what })
}
