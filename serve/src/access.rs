//! Who may ask: hosts, origins and keys.

use crate::{
    client::Client,
    error::{ApiError, Result, shown},
    hosts::{address, host_of, is_local, origin_host},
    options::Options,
    paths::{HEALTH, PAGE},
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Version, header};
use std::{net::IpAddr, sync::Arc};

/// Checks of requests that come before anything else.
pub struct Access {
    options: Arc<Options>,
    /// The listener's address is one that only this machine reaches.
    is_loopback: bool,
    has_page: bool,
}

impl Access {
    pub fn new(options: Arc<Options>, listener: IpAddr) -> Self {
        let has_page = options.page;
        Self { options, is_loopback: listener.to_canonical().is_loopback(), has_page }
    }

    /// Creates the access of an app that has its own listener and no page: hosts and origins are
    /// checked only if some are allowed.
    pub fn of_app(options: Arc<Options>) -> Self {
        Self { options, is_loopback: false, has_page: false }
    }

    /// Returns the origin of a request, if its pages may read the answers of this server.
    pub fn cors_origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = single(headers, header::ORIGIN).ok().flatten()?;
        self.is_cors_origin(origin).then(|| headers.get(header::ORIGIN).cloned()).flatten()
    }

    fn is_cors_origin(&self, origin: &str) -> bool {
        let is = |allowed: &String| allowed == "*" || allowed.eq_ignore_ascii_case(origin);
        self.options.cors_origins.iter().any(is)
    }

    /// Tests whether other machines may ask without a key.
    pub fn is_open(&self) -> bool {
        !self.is_loopback && self.options.keys.is_empty()
    }

    /// Returns the client that a request comes from, if it may ask.
    pub fn client<B>(&self, request: &Request<B>, peer: IpAddr) -> Result<Client> {
        if self.is_loopback || !self.options.allowed_hosts.is_empty() {
            self.check_host(request)?;
            self.check_origin(request.headers())?;
        }
        let keys = &self.options.keys;
        let path = request.uri().path();
        if keys.is_empty() || path == HEALTH || (self.has_page && path == PAGE) {
            return Ok(Client::peer(peer));
        }
        let key = find(keys, sent_key(request.headers())).ok_or_else(ApiError::key)?;
        Ok(if keys.len() > 1 { Client::Key(key) } else { Client::peer(peer) })
    }

    fn check_host<B>(&self, request: &Request<B>) -> Result<()> {
        let wrong = |host: &str| forbidden("Host", host);
        // In the request line, as for a proxy, it is a host too.
        if let Some(authority) = request.uri().authority()
            && !self.is_host(authority.as_str())
        {
            return Err(wrong(authority.as_str()));
        }
        match single(request.headers(), header::HOST) {
            Ok(Some(host)) if self.is_host(host) => Ok(()),
            Ok(Some(host)) => Err(wrong(host)),
            // Browsers send it; programs of HTTP/1.0 need not.
            Ok(None) if request.version() < Version::HTTP_11 => Ok(()),
            Ok(None) => Err(wrong("")),
            Err(()) => Err(wrong("repeated, or not text")),
        }
    }

    fn check_origin(&self, headers: &HeaderMap) -> Result<()> {
        let wrong = |origin: &str| Err(forbidden("Origin", origin));
        match single(headers, header::ORIGIN) {
            Ok(None) => Ok(()),
            Ok(Some(origin)) if self.is_cors_origin(origin) => Ok(()),
            Ok(Some(origin)) if origin_host(origin).is_some_and(|host| self.is_name(&host)) => {
                Ok(())
            }
            Ok(Some(origin)) if self.is_own_address(origin, headers) => Ok(()),
            Ok(Some(origin)) => wrong(origin),
            Err(()) => wrong("repeated, or not text"),
        }
    }

    /// Tests whether an origin is the address and port by which this request reached the server, as
    /// for its own page. DNS rebinding makes a name point here, and a browser then sends that name
    /// in both headers. An address in them was connected to as it is, so the page came from there.
    fn is_own_address(&self, origin: &str, headers: &HeaderMap) -> bool {
        let host = single(headers, header::HOST).ok().flatten().unwrap_or("");
        let is_address = host_of(host).is_some_and(|host| address(&host).is_some());
        let own = origin.split_once("://").is_some_and(|(_, own)| own.eq_ignore_ascii_case(host));
        is_address && own && self.is_host(host)
    }

    fn is_host(&self, host: &str) -> bool {
        // An address is no name that somebody else could let point here; load balancers ask by it.
        host_of(host).is_some_and(|host| {
            self.is_name(&host) || (!self.is_loopback && address(&host).is_some())
        })
    }

    fn is_name(&self, host: &str) -> bool {
        is_local(host)
            || self.options.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(host))
    }
}

fn forbidden(header: &str, found: &str) -> ApiError {
    let found = shown(found);
    ApiError::forbidden(format!(
        "wrong header `{header}` ({found}); localhost, a loopback address, or a host of `--allowed-host` \
         (`Options::allowed_hosts`) is accepted"
    ))
}

/// Returns the value of a header that may come once.
fn single(headers: &HeaderMap, name: HeaderName) -> Result<Option<&str>, ()> {
    let mut values = headers.get_all(name).iter();
    match (values.next().map(HeaderValue::to_str), values.next()) {
        (None, _) => Ok(None),
        (Some(Ok(value)), None) => Ok(Some(value)),
        _ => Err(()),
    }
}

/// Returns the key of a request: that of `Authorization`, or of `x-api-key`, as Anthropic's clients
/// send it.
fn sent_key(headers: &HeaderMap) -> &str {
    if headers.contains_key(header::AUTHORIZATION) {
        return bearer(headers);
    }
    single(headers, HeaderName::from_static("x-api-key")).ok().flatten().unwrap_or("")
}

/// Returns what follows the scheme `Bearer`, whose case does not matter (RFC 9110), and its spaces;
/// empty if that is missing.
fn bearer(headers: &HeaderMap) -> &str {
    let credentials = single(headers, header::AUTHORIZATION).ok().flatten().unwrap_or("");
    match credentials.split_once(' ') {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => key.trim_matches(' '),
        _ => "",
    }
}

/// Returns which of the keys was sent. All bytes of all keys of its length are compared: the time
/// says nothing about where a key is wrong.
fn find(keys: &[String], sent: &str) -> Option<usize> {
    let differs =
        |key: &str| key.bytes().zip(sent.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
    let is_sent = |key: &str| (key.len() == sent.len()) & (differs(key) == 0);
    keys.iter().enumerate().fold(None, |found, (n, key)| if is_sent(key) { Some(n) } else { found })
}
