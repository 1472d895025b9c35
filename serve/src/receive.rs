//! Bodies of requests.

use crate::{
    budget::Full,
    client::Client,
    error::{ApiError, Result},
    options::Options,
    shared::{Body as Counted, Shared},
};
use axum::{
    body::{Body, HttpBody as _},
    extract::{FromRequest, Request},
    http::{HeaderMap, StatusCode, header},
};
use futures_util::StreamExt as _;
use tokio::time::timeout;

/// A complete body in JSON, and the client that sent it.
pub struct Received {
    pub client: Client,
    pub body: Counted,
}

impl FromRequest<Shared> for Received {
    type Rejection = ApiError;

    async fn from_request(request: Request, shared: &Shared) -> Result<Self> {
        check_type(request.headers())?;
        let client = request.extensions().get().copied().ok_or_else(|| {
            ApiError::with_status(StatusCode::INTERNAL_SERVER_ERROR, "the client is not known")
        })?;
        Ok(Self { client, body: receive(shared, client, request.into_body()).await? })
    }
}

/// Checks the content type, which pages of other sites cannot send without permission.
fn check_type(headers: &HeaderMap) -> Result<()> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
    if kind
        .split(';')
        .next()
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
    {
        return Ok(());
    }
    Err(ApiError::with_status(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "missing header `Content-Type: application/json`",
    ))
}

/// Receives a body within its time and size, and counts its bytes as they arrive.
async fn receive(shared: &Shared, client: Client, body: Body) -> Result<Counted> {
    let Options { body_timeout, max_body_bytes: most, .. } = *shared.options;
    let too_large = || {
        ApiError::with_status(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("body is too large; at most {most} bytes are accepted"),
        )
    };
    if body.size_hint().lower() > most as u64 {
        return Err(too_large());
    }
    let receiving = async {
        let (mut received, mut frames) = (
            Counted { bytes: Vec::new(), held: shared.bytes.begin(client) },
            body.into_data_stream(),
        );
        while let Some(frame) = frames.next().await {
            let frame =
                frame.map_err(|error| ApiError::request(format!("invalid body: {error}")))?;
            if received.bytes.len() + frame.len() > most {
                return Err(too_large());
            }
            reserve(&mut received, frame.len(), most)
                .map_err(|_| no_room(shared.options.max_pending_bytes))?;
            received.bytes.extend_from_slice(&frame);
        }
        Ok(received)
    };
    timeout(body_timeout, receiving).await.unwrap_or_else(|_| {
        Err(ApiError::with_status(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not arrive within {} s", body_timeout.as_secs_f32()),
        ))
    })
}

/// Makes room for more bytes, as a vector does for itself, but counted.
fn reserve(body: &mut Counted, more: usize, most: usize) -> Result<(), Full> {
    let needed = body.bytes.len() + more;
    if needed > body.bytes.capacity() {
        let capacity = (2 * body.bytes.capacity()).min(most).max(needed);
        body.held.grow(capacity)?;
        body.bytes.reserve_exact(capacity - body.bytes.len());
    }
    Ok(())
}

fn no_room(bytes: usize) -> ApiError {
    ApiError::busy(format!(
        "too many bytes of pending requests; of {bytes} in total, a client may use half of what others leave"
    ))
}
