//! The chat page at `/`.

use axum::{
    http::{HeaderValue, header},
    response::{Html, IntoResponse as _, Response},
};
use std::hash::{BuildHasher, RandomState};

/// The whole page: it loads nothing else. `{nonce}` marks what may run.
const PAGE: &str = include_str!("../page.html");

/// Returns the page. Its own script and style alone are allowed, by a number that is new each time,
/// and it reaches no other server.
pub async fn page() -> Response {
    let part = || RandomState::new().hash_one(0);
    let nonce = format!("{:016x}{:016x}", part(), part());
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let mut response = Html(PAGE.replace("{nonce}", &nonce)).into_response();
    let headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::try_from(policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    let fixed = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    fixed.into_iter().for_each(|(name, value)| {
        headers.insert(name, HeaderValue::from_static(value));
    });
    response
}
