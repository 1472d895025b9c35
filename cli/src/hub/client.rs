//! Requests to the hub: time limits, redirects, the token, and what its answers say.

use super::{
    environment,
    error::{Doing, HubError, shown},
    name::is_component,
    url::Url,
};
use serde::Deserialize;
use std::{
    io::{self, Read},
    time::Duration,
};
use ureq::{
    Agent, Body, Error, Timeout,
    http::{HeaderValue, Response, header},
};

/// Redirects of one request: the hub needs two (to the new name of a repository, and to the
/// storage).
const MOST_REDIRECTS: usize = 5;
/// Longest listing of a repository, in bytes: a file takes some 300, and the largest repositories
/// of models have some thousand.
const MOST_LISTING_BYTES: u64 = 8 << 20;
/// Longest header of an answer, in bytes: the hub's have 4 KB, most of it signatures of URLs.
const MOST_HEADER_BYTES: usize = 64 << 10;
/// Time for a connection with its TLS handshake.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Time from a request to the end of the answer's header. `HF_HUB_ETAG_TIMEOUT` sets another.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// Time between two reads of a body. `HF_HUB_DOWNLOAD_TIMEOUT` sets another. A download has no
/// limit as a whole.
const STALL_LIMIT: Duration = Duration::from_secs(30);
/// Time for the whole body of a listing, of whatever speed: it has some 100 KB at most.
const LISTING_LIMIT: Duration = Duration::from_secs(60);

/// A hub with the token for it.
pub struct Client {
    agent: Agent,
    endpoint: Url,
    token: Option<HeaderValue>,
    answer_limit: Duration,
    stall_limit: Duration,
}

/// An answer after its redirects.
pub struct Answer {
    response: Response<Body>,
    url: Url,
    /// The last version that the endpoint itself named, of a large file by its own header: storages
    /// have others.
    etag: Option<String>,
}

/// A file of the hub: its version, which becomes the name of a file, and its size in bytes.
#[derive(Debug)]
pub struct Metadata {
    pub etag: String,
    pub size: u64,
}

/// A repository at a commit.
#[derive(Deserialize)]
pub struct Listing {
    #[serde(rename = "sha")]
    pub commit: String,
    pub siblings: Vec<Sibling>,
}

/// A file of a repository.
#[derive(Deserialize)]
pub struct Sibling {
    #[serde(rename = "rfilename")]
    pub name: String,
    #[serde(default)]
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    #[serde(default)]
    sha256: Option<String>,
}

impl Sibling {
    /// Returns the SHA-256 that the listing announces, in hexadecimal digits.
    pub fn sha256(&self) -> Option<&str> {
        self.lfs.as_ref()?.sha256.as_deref()
    }
}

impl Client {
    /// Returns a client with the settings of the environment.
    pub fn from_environment() -> Result<Self, HubError> {
        let answer_limit = environment::seconds("HF_HUB_ETAG_TIMEOUT", ANSWER_LIMIT)?;
        let stall_limit = environment::seconds("HF_HUB_DOWNLOAD_TIMEOUT", STALL_LIMIT)?;
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            // Redirects are followed here, so that each is checked.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_response_header_size(MOST_HEADER_BYTES)
            .user_agent(concat!("bitnet-wgpu-cli/", env!("CARGO_PKG_VERSION")))
            // Sizes and ranges are those of the file.
            .accept_encoding("identity")
            .timeout_resolve(Some(CONNECT_LIMIT))
            .timeout_connect(Some(CONNECT_LIMIT))
            .timeout_send_request(Some(answer_limit))
            .timeout_recv_response(Some(answer_limit))
            .timeout_per_read(Some(stall_limit))
            .build()
            .into();
        let token = environment::token().map(bearer).transpose()?;
        Ok(Self { agent, endpoint: environment::endpoint()?, token, answer_limit, stall_limit })
    }

    /// Returns the files of a repository at a revision, and its commit.
    pub fn listing(&self, repository: &str, revision: &str) -> Result<Listing, HubError> {
        let url = self
            .endpoint
            .below(&format!("/api/models/{repository}/revision/{revision}?blobs=true"))?;
        let answer = self.get(&url, None, Some(LISTING_LIMIT))?;
        let mut text = Vec::new();
        let read = answer
            .response
            .into_body()
            .into_reader()
            .take(MOST_LISTING_BYTES + 1)
            .read_to_end(&mut text);
        read.map_err(|error| self.failed(&answer.url, error.into()))?;
        let refuse = |problem| HubError::Listing { problem };
        if text.len() as u64 > MOST_LISTING_BYTES {
            return Err(refuse(format!(
                "is longer than the {} MiB that are accepted",
                MOST_LISTING_BYTES >> 20
            )));
        }
        let listing: Listing = serde_json::from_slice(&text)
            .map_err(|error| refuse(format!("cannot be read: {}", shown(&error.to_string()))))?;
        if !is_component(&listing.commit) {
            return Err(HubError::Name { what: "the commit", name: listing.commit });
        }
        match listing
            .siblings
            .iter()
            .find_map(|file| file.sha256().filter(|digest| !is_sha256(digest)))
        {
            Some(digest) => Err(refuse(format!(
                "has the SHA-256 `{}`; 64 hexadecimal digits would be accepted",
                shown(digest)
            ))),
            None => Ok(listing),
        }
    }

    /// Returns the URL of a file at a commit.
    pub fn file_url(&self, repository: &str, commit: &str, file: &str) -> Result<Url, HubError> {
        self.endpoint.below(&format!("/{repository}/resolve/{commit}/{file}"))
    }

    /// Returns the version and size of a file.
    pub fn metadata(&self, url: &Url) -> Result<Metadata, HubError> {
        // Storages answer a range with the size of the whole.
        let answer = self.get(url, Some("bytes=0-0"), None)?;
        let size = answer.size().ok_or_else(|| HubError::Answer {
            from: answer.url.to_string(),
            problem: "no size; a Content-Range or Content-Length header would be accepted".into(),
        })?;
        Ok(Metadata { etag: answer.etag()?, size })
    }

    /// Requests a file from a byte on.
    pub fn file_from(&self, url: &Url, start: u64) -> Result<Answer, HubError> {
        self.get(url, Some(&format!("bytes={start}-")), None)
    }

    /// Reads from a body.
    pub fn read(
        &self,
        reader: &mut impl Read,
        buffer: &mut [u8],
        url: &Url,
    ) -> Result<usize, HubError> {
        loop {
            match reader.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read.map_err(|error| self.failed(url, error.into())),
            }
        }
    }

    /// Requests a URL and follows its redirects. The token goes to the endpoint's scheme, host and
    /// port only.
    fn get(
        &self,
        url: &Url,
        range: Option<&str>,
        body_limit: Option<Duration>,
    ) -> Result<Answer, HubError> {
        let (mut url, mut linked, mut own) = (url.clone(), None, None);
        for _ in 0..=MOST_REDIRECTS {
            let response = self.send(&url, range, body_limit)?;
            if url.has_origin_of(&self.endpoint) {
                linked = value(&response, "x-linked-etag").or(linked);
                own = value(&response, "etag").or(own);
            }
            // An empty file has no range.
            let is_empty = value(&response, "content-range").as_deref() == Some("bytes */0");
            match (response.status().as_u16(), value(&response, "location")) {
                (301..=303 | 307 | 308, Some(location)) => url = url.redirect(&location)?,
                (code, _) if matches!(code, 200 | 206) || code == 416 && is_empty => {
                    return Ok(Answer { response, url, etag: linked.or(own) });
                }
                (code, _) => return Err(HubError::Status { from: url.to_string(), code }),
            }
        }
        Err(HubError::Redirect {
            from: url.to_string(),
            problem: format!("further than the {MOST_REDIRECTS} times that are followed"),
        })
    }

    fn send(
        &self,
        url: &Url,
        range: Option<&str>,
        body_limit: Option<Duration>,
    ) -> Result<Response<Body>, HubError> {
        let mut request = self.agent.get(url.uri()).config().timeout_recv_body(body_limit).build();
        if let Some(range) = range {
            request = request.header(header::RANGE, range);
        }
        if let Some(token) = self.token.as_ref().filter(|_| url.has_origin_of(&self.endpoint)) {
            request = request.header(header::AUTHORIZATION, token);
        }
        request.call().map_err(|error| self.failed(url, error))
    }

    fn failed(&self, url: &Url, error: Error) -> HubError {
        let from = url.to_string();
        let (limit, doing) = match error {
            Error::Timeout(Timeout::Resolve | Timeout::Connect) => {
                (CONNECT_LIMIT, Doing::Connecting)
            }
            Error::Timeout(Timeout::PerRead) => (self.stall_limit, Doing::Sending),
            Error::Timeout(Timeout::RecvBody) => (LISTING_LIMIT, Doing::Answering),
            Error::Timeout(_) => (self.answer_limit, Doing::Answering),
            error => return HubError::Connection { from, problem: error.to_string() },
        };
        HubError::Silent { from, limit, doing }
    }
}

impl Answer {
    /// Returns the version of the file, which can become the name of a file.
    pub fn etag(&self) -> Result<String, HubError> {
        let Some(etag) = &self.etag else {
            return Err(HubError::Answer {
                from: self.url.to_string(),
                problem: "no ETag header, which names the version".into(),
            });
        };
        let etag = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
        // The longest name that is made of it.
        match is_component(&format!("{etag}.part")) && is_component(etag) {
            true => Ok(etag.into()),
            false => Err(HubError::Name { what: "the ETag", name: etag.into() }),
        }
    }

    /// Returns the byte of the file at which the body begins.
    pub fn start(&self) -> Result<u64, HubError> {
        match (self.response.status().as_u16(), self.content_range()) {
            (206, Some((start, _))) => Ok(start),
            (206, None) => Err(HubError::Answer {
                from: self.url.to_string(),
                problem: "no Content-Range header that can be read".into(),
            }),
            _ => Ok(0),
        }
    }

    /// Returns the size of the whole file in bytes, if the answer has it.
    pub fn size(&self) -> Option<u64> {
        match self.response.status().as_u16() {
            206 => self.content_range()?.1,
            416 => Some(0),
            _ => value(&self.response, "content-length")?.parse().ok(),
        }
    }

    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Returns the body, and where it comes from.
    pub fn into_body(self) -> (impl Read, Url) {
        (self.response.into_body().into_reader(), self.url)
    }

    fn content_range(&self) -> Option<(u64, Option<u64>)> {
        content_range(&value(&self.response, "content-range")?)
    }
}

/// Returns start and size of `bytes START-END/SIZE`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, size.parse().ok()))
}

/// Returns a header as text; what is no UTF-8 becomes characters that no name has.
fn value(response: &Response<Body>, name: &str) -> Option<String> {
    response.headers().get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

fn bearer(token: String) -> Result<HeaderValue, HubError> {
    let mut value =
        HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| HubError::Setting {
            name: "the token (HF_TOKEN, or the file `token`)".into(),
            problem: "has control characters; one line of text would be accepted".into(),
        })?;
    value.set_sensitive(true);
    Ok(value)
}

/// Returns whether a text is a SHA-256 in hexadecimal digits.
pub fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_are_read() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        for text in
            ["", "bytes */10", "bytes -1-9/10", "items 5-9/10", "bytes 99999999999999999999-9/10"]
        {
            assert_eq!(content_range(text), None, "{text}");
        }
    }

    #[test]
    fn tokens_are_headers_and_not_shown() {
        assert!(bearer("hf_abc".into()).unwrap().is_sensitive());
        let error = bearer("hf_secret\r\nEvil: x".into()).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
    }
}
