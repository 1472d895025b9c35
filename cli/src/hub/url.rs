//! URLs of the hub and of where it redirects.

use super::error::{HubError, shown};
use std::fmt::{self, Display, Formatter};
use ureq::http::Uri;

/// An absolute URL of the scheme `http` or `https`.
#[derive(Clone, Debug)]
pub struct Url(Uri);

impl Url {
    /// Parses an absolute URL. The error says what it has instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let uri: Uri = text
            .parse()
            .map_err(|error| format!("`{}`, which is no URL ({error})", shown(text)))?;
        if !matches!(uri.scheme_str(), Some("http" | "https"))
            || uri.host().is_none_or(str::is_empty)
        {
            return Err(format!(
                "`{}`; a URL of the scheme http or https would be accepted",
                shown(text)
            ));
        }
        Ok(Self(uri))
    }

    pub fn uri(&self) -> &Uri {
        &self.0
    }

    /// Returns a URL below this one.
    pub fn below(&self, path: &str) -> Result<Self, HubError> {
        Self::parse(&format!("{}{path}", self.0.to_string().trim_end_matches('/')))
            .map_err(|problem| HubError::Answer { from: self.to_string(), problem })
    }

    /// Returns scheme, host and port, of which all must be equal for a token to be sent.
    fn origin(&self) -> (bool, String, u16) {
        let secure = self.0.scheme_str() == Some("https");
        let port = self.0.port_u16().unwrap_or(if secure { 443 } else { 80 });
        (secure, self.0.host().unwrap_or_default().to_ascii_lowercase(), port)
    }

    /// Returns whether scheme, host and port are the same.
    pub fn has_origin_of(&self, other: &Self) -> bool {
        self.origin() == other.origin()
    }

    /// Returns the target of a redirect. Refuses other schemes than http and https, http after
    /// https, and names of users.
    pub fn redirect(&self, location: &str) -> Result<Self, HubError> {
        let refuse = |problem: String| HubError::Redirect { from: self.to_string(), problem };
        let target = Self::parse(&self.absolute(location))
            .map_err(|problem| refuse(format!("to {problem}")))?;
        if self.origin().0 && !target.origin().0 {
            return Err(refuse(format!(
                "to {target}, which is not encrypted; https would be accepted"
            )));
        }
        // `ureq` would make an Authorization header of it. The endpoint's own comes back with a
        // relative path.
        if target.0.authority() != self.0.authority()
            && target.0.authority().is_some_and(|authority| authority.as_str().contains('@'))
        {
            return Err(refuse(format!(
                "to {target} with the name of a user; a URL without one would be accepted"
            )));
        }
        Ok(target)
    }

    /// Returns a reference to a URL as an absolute URL.
    fn absolute(&self, location: &str) -> String {
        let (scheme, authority) = (
            self.0.scheme_str().unwrap_or_default(),
            self.0.authority().map_or("", |authority| authority.as_str()),
        );
        let location = location.split('#').next().unwrap_or_default();
        let has_scheme = location.split_once(':').is_some_and(|(scheme, _)| {
            scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        });
        if has_scheme {
            location.into()
        } else if location.starts_with("//") {
            format!("{scheme}:{location}")
        } else if location.starts_with('/') {
            format!("{scheme}://{authority}{location}")
        } else {
            let folder = self.0.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{scheme}://{authority}{folder}/{location}")
        }
    }
}

/// Shows a URL without its query, which has signatures, and without names of users.
impl Display for Url {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (scheme, host) =
            (self.0.scheme_str().unwrap_or_default(), self.0.host().unwrap_or_default());
        let port = self.0.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
        f.write_str(&shown(&format!("{scheme}://{host}{port}{}", self.0.path())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn origin_is_scheme_host_and_port() {
        let hub = url("https://hub.example/a");
        assert!(url("https://HUB.example:443/b?c").has_origin_of(&hub));
        for other in [
            "http://hub.example",
            "https://hub.example:8443",
            "https://hub.example.evil",
            "https://evil.example/hub.example",
        ] {
            assert!(!url(other).has_origin_of(&hub), "{other}");
        }
        assert!(!url("https://hub.example@evil.example/").has_origin_of(&hub));
    }

    #[test]
    fn redirects_keep_to_http_and_encryption() {
        let hub = url("https://hub.example/a/b?c");
        for (location, target) in [
            ("/x?y", "https://hub.example/x?y"),
            ("x", "https://hub.example/a/x"),
            ("//cdn.example/x", "https://cdn.example/x"),
            ("https://cdn.example/x#y", "https://cdn.example/x"),
        ] {
            assert_eq!(hub.redirect(location).unwrap().uri().to_string(), target);
        }
        for location in [
            "file:///etc/passwd",
            "http://hub.example/x",
            "https://me:secret@cdn.example",
            "ftp://a/b",
            "https://",
            "data:,x",
            "//",
        ] {
            let error = hub.redirect(location).unwrap_err().to_string();
            assert!(
                error.starts_with("https://hub.example/a/b redirects to")
                    && !error.contains("secret"),
                "{location}: {error}"
            );
        }
        assert!(url("http://127.0.0.1/x").redirect("http://127.0.0.2/x").is_ok());
    }

    #[test]
    fn shown_urls_have_no_secrets() {
        assert_eq!(
            url("https://me:secret@hub.example:1/x?signature=secret").to_string(),
            "https://hub.example:1/x"
        );
    }
}
