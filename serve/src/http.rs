//! Paths, headers and bodies.

use crate::{
    access::HEALTH,
    answer::{Answer, Kind},
    budget::Full,
    client::Client,
    error::{ApiError, Result, json_response, shown},
    life::Phase,
    options::Options,
    prepare,
    request::Request,
    shared::{Body as Prepared, Shared},
    turns::Counts,
    vectors,
};
use axum::{
    Extension, Router,
    body::{Body, HttpBody as _},
    extract::{Path, State, rejection::PathRejection},
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::time::timeout;

pub fn router(shared: Shared) -> Router {
    Router::new()
        .route(HEALTH, get(health))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completion))
        .route("/v1/embeddings", post(embeddings))
        .fallback(unknown)
        .method_not_allowed_fallback(not_allowed)
        .with_state(shared)
}

async fn unknown(uri: Uri) -> ApiError {
    let path = shown(uri.path());
    ApiError::with_status(StatusCode::NOT_FOUND, format!("unknown path {path}"))
}

async fn not_allowed(method: Method, uri: Uri) -> ApiError {
    let path = shown(uri.path());
    ApiError::with_status(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("{path} does not accept {method}"),
    )
}

async fn health(State(shared): State<Shared>) -> Response {
    let (Counts { running, waiting }, room) = (shared.load(), shared.batch.options());
    let (status, word) = match shared.life.phase() {
        _ if shared.failure().is_some() => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
        Phase::Runs => (StatusCode::OK, "ok"),
        Phase::Ends | Phase::Cut => (StatusCode::SERVICE_UNAVAILABLE, "ending"),
    };
    let body = json!({ "status": word, "running": running, "waiting": waiting, "slots": room.slots(), "queue": room.get_queue() });
    json_response(status, &body)
}

fn card(shared: &Shared) -> Value {
    json!({ "id": shared.options.name, "object": "model", "created": shared.started, "owned_by": "bitnet-wgpu" })
}

async fn models(State(shared): State<Shared>) -> Response {
    json_response(StatusCode::OK, &json!({ "object": "list", "data": [card(&shared)] }))
}

async fn model(
    State(shared): State<Shared>,
    uri: Uri,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response> {
    // A name that is not UTF-8 is shown as it was sent.
    let name = name.map_or_else(
        |_| uri.path().trim_start_matches("/v1/models/").to_owned(),
        |Path(name)| name,
    );
    shared.check_model(Some(&name))?;
    Ok(json_response(StatusCode::OK, &card(&shared)))
}

async fn chat(
    shared: State<Shared>,
    client: Extension<Client>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response> {
    answer(shared, client, headers, body, Kind::Chat, Request::chat).await
}

async fn completion(
    shared: State<Shared>,
    client: Extension<Client>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response> {
    answer(shared, client, headers, body, Kind::Completion, Request::completion).await
}

async fn embeddings(
    State(shared): State<Shared>,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response> {
    check_type(&headers)?;
    let body = receive(&shared, client, body).await?;
    Ok(vectors::embed(&shared, client, body).await?.into_response())
}

async fn answer(
    State(shared): State<Shared>,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    body: Body,
    kind: Kind,
    read: fn(Value, &Options) -> Result<Request>,
) -> Result<Response> {
    check_type(&headers)?;
    let body = receive(&shared, client, body).await?;
    let (shape, choices) = prepare::begin(&shared, client, body, read).await?;
    let answer = Answer::new(kind, shared.options.name.clone());
    if shape.stream {
        return Ok(answer.stream(choices, shape.usage).into_response());
    }
    Ok(json_response(StatusCode::OK, &answer.whole(choices).await?))
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
async fn receive(shared: &Shared, client: Client, body: Body) -> Result<Prepared> {
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
            Prepared { bytes: Vec::new(), held: shared.bytes.begin(client) },
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
            "timeout while the body was received",
        ))
    })
}

/// Makes room for more bytes, as a vector does for itself, but counted.
fn reserve(body: &mut Prepared, more: usize, most: usize) -> Result<(), Full> {
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
        "too many bytes of requests: of {bytes} in total, a client may use half of what others leave"
    ))
}
