//! Names of hosts in the headers `Host` and `Origin`.

use axum::http::{Uri, uri::Authority};
use std::net::IpAddr;

/// Returns the host of `HOST[:PORT]`, an IPv6 address in its brackets; none if it is malformed.
pub fn host_of(text: &str) -> Option<String> {
    let authority: Authority = text.parse().ok()?;
    // The port may be empty, but is a number else; user names are for other protocols.
    let port = authority.as_str().strip_prefix(authority.host())?;
    let digits = port.strip_prefix(':').unwrap_or(port);
    (!authority.host().is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| authority.host().to_owned())
}

/// Returns the host of `SCHEME://HOST[:PORT]`, as browsers send it; none if it is malformed, or
/// `null`.
pub fn origin_host(text: &str) -> Option<String> {
    let origin: Uri = text.parse().ok()?;
    origin.scheme()?;
    host_of(origin.authority()?.as_str())
}

/// Returns the address that a host is; none for a name.
pub fn address(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.parse().ok().map(|address: IpAddr| address.to_canonical())
}

/// Tests whether a host is this machine by definition, whoever resolves the name.
pub fn is_local(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || address(host).is_some_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_hosts_are_told_from_others() {
        for host in [
            "localhost",
            "LOCALHOST:80",
            "127.0.0.1",
            "127.9.9.9:8080",
            "[::1]",
            "[::1]:8080",
            "localhost:",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert!(host_of(host).is_some_and(|host| is_local(&host)), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example:80",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "[::2]:80",
            "2130706433",
        ] {
            assert!(host_of(host).is_some_and(|host| !is_local(&host)), "{host}");
        }
        for host in [
            "",
            ":80",
            "me@localhost",
            "localhost:80:80",
            "localhost:evil",
            "local host",
            "localhost/",
            "::1",
        ] {
            assert_eq!(host_of(host), None, "{host}");
        }
        assert_eq!(origin_host("http://localhost:3000").as_deref(), Some("localhost"));
        for origin in ["null", "localhost", "", "file://", "http://me@localhost"] {
            assert_eq!(origin_host(origin), None, "{origin}");
        }
    }
}
