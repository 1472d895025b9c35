//! Errors in the form of OpenAI's API: a status, and an object with message, type, field and code.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bitnet_wgpu::{Error, ErrorKind};
use serde_json::{Value, json};

/// Words by which clients recognize that a prompt is too long: those of Anthropic's API, and of
/// OpenAI's.
const TOO_LONG: &str = "prompt is too long";
const MAXIMUM: &str = "this model's maximum context length is";
/// Characters of a name from a request that an error repeats.
const SHOWN: usize = 100;

/// An error response.
#[derive(Clone, Debug)]
pub struct ApiError {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    /// The field of the request.
    param: Option<String>,
    message: String,
}

pub(crate) type Result<T, E = ApiError> = std::result::Result<T, E>;

impl ApiError {
    fn new(
        status: StatusCode,
        kind: &'static str,
        code: Option<&'static str>,
        message: impl Into<String>,
    ) -> Self {
        Self { status, kind, code, param: None, message: message.into() }
    }

    /// A field of the request is wrong.
    pub fn field(name: &str, what: impl std::fmt::Display) -> Self {
        let name = shown(name);
        let message = format!("{name}: {what}");
        Self { param: Some(name), ..Self::request(message) }
    }

    /// A field of the request is missing.
    pub fn missing(name: &str) -> Self {
        let message = format!("missing field `{name}`");
        Self { param: Some(name.into()), ..Self::request(message) }
    }

    /// The request is wrong as a whole.
    pub fn request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", None, message)
    }

    /// The request is wrong in a way that has a status of its own.
    pub fn with_status(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, "invalid_request_error", None, message)
    }

    pub fn key() -> Self {
        let message = "missing or wrong API key; expected the header `Authorization: Bearer KEY` or \
                       `x-api-key: KEY`";
        Self::new(
            StatusCode::UNAUTHORIZED,
            "invalid_request_error",
            Some("invalid_api_key"),
            message,
        )
    }

    /// A request that may come from another site's page.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "invalid_request_error", Some("forbidden"), message)
    }

    pub fn not_implemented(message: impl Into<String>) -> Self {
        Self::with_status(StatusCode::NOT_IMPLEMENTED, message)
    }

    pub fn model(asked: &str, there: &str) -> Self {
        let message = format!("unknown model `{}`; `{there}` is served", shown(asked));
        let error = Self::new(
            StatusCode::NOT_FOUND,
            "invalid_request_error",
            Some("model_not_found"),
            message,
        );
        Self { param: Some("model".into()), ..error }
    }

    pub fn ending() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "server_error",
            Some("ending"),
            "the server is shutting down",
        )
    }

    /// No room at the moment; the client may try again.
    pub fn busy(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "rate_limit_error",
            Some("rate_limit_exceeded"),
            message,
        )
    }

    /// A failure of the server, not of the request.
    pub fn server(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", None, message)
    }

    /// An error of the library about the field `name`.
    pub fn library(name: &str, error: &Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Busy { .. } => Self::busy(message),
            Error::Context { needed, capacity } => {
                let what = format!("{TOO_LONG}: {needed} tokens; {MAXIMUM} {capacity} tokens");
                Self { code: Some("context_length_exceeded"), ..Self::field(name, what) }
            }
            Error::TextTooLong { bytes, most, tokens } => {
                let what = format!(
                    "{TOO_LONG}: {bytes} bytes; {MAXIMUM} {tokens} tokens, at most {most} bytes"
                );
                Self { code: Some("context_length_exceeded"), ..Self::field(name, what) }
            }
            Error::BatchEnded(_) => Self::server(message),
            _ if matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Text) => {
                Self::field(name, message)
            }
            _ => Self::server(message),
        }
    }

    pub fn status(&self) -> StatusCode {
        self.status
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the error as the object of a body or of a stream event.
    pub fn object(&self) -> Value {
        json!({ "error": { "message": self.message, "type": self.kind, "param": self.param, "code": self.code } })
    }
}

/// Returns the beginning of a name, without control characters.
pub(crate) fn shown(name: &str) -> String {
    let end = if name.chars().nth(SHOWN).is_some() { ".." } else { "" };
    name.chars()
        .take(SHOWN)
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect::<String>()
        + end
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &self.object());
        let mut header =
            |name, value| response.headers_mut().insert(name, HeaderValue::from_static(value));
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                header(header::RETRY_AFTER, "1")
            }
            StatusCode::UNAUTHORIZED => header(header::WWW_AUTHENTICATE, "Bearer"),
            _ => None,
        };
        response
    }
}

pub(crate) fn json_response(status: StatusCode, body: &impl ToString) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_errors_are_server_errors() {
        let status = |error: Error| ApiError::library("prompt", &error).status;
        assert_eq!(
            status(Error::Overflow { op: "embed", what: "the states of text 0".into() }),
            StatusCode::INTERNAL_SERVER_ERROR
        );
        assert_eq!(
            status(Error::Invalid { op: "embed", what: "text 0 is empty".into() }),
            StatusCode::BAD_REQUEST
        );
        assert_eq!(status(Error::Context { needed: 9, capacity: 8 }), StatusCode::BAD_REQUEST);
    }
}
