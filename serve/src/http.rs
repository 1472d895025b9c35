//! Paths, headers and bodies.

use crate::{
    answer::{self, Kind},
    embeddings,
    error::{ApiError, Result, json_response},
    request::Request,
    server::{Options, Phase, Server},
};
use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Path, State},
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};
use tokio::time::timeout;

pub fn router(server: Server) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completion))
        .route("/v1/embeddings", post(embeddings))
        .fallback(unknown)
        .method_not_allowed_fallback(not_allowed)
        .with_state(server)
}

async fn unknown(uri: Uri) -> ApiError {
    let path = crate::error::shown(uri.path());
    ApiError::with_status(StatusCode::NOT_FOUND, format!("there is no {path} here"))
}

async fn not_allowed(method: Method, uri: Uri) -> ApiError {
    let path = crate::error::shown(uri.path());
    ApiError::with_status(StatusCode::METHOD_NOT_ALLOWED, format!("{path} does not take {method}"))
}

async fn health(State(server): State<Server>) -> Response {
    let (load, room) = (server.batch.load(), server.batch.options());
    let (status, word) = match *server.phase.borrow() {
        _ if server.failure().is_some() => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
        Phase::Runs => (StatusCode::OK, "ok"),
        Phase::Ends | Phase::Cut => (StatusCode::SERVICE_UNAVAILABLE, "ending"),
    };
    let body = json!({ "status": word, "running": load.running, "waiting": load.waiting, "slots": room.slots, "queue": room.queue });
    json_response(status, &body)
}

fn card(server: &Server) -> Value {
    json!({ "id": server.options.name, "object": "model", "created": server.started, "owned_by": "bitnet-wgpu" })
}

async fn models(State(server): State<Server>, headers: HeaderMap) -> Result<Response> {
    check_key(&server, &headers)?;
    Ok(json_response(StatusCode::OK, &json!({ "object": "list", "data": [card(&server)] })))
}

async fn model(State(server): State<Server>, Path(name): Path<String>, headers: HeaderMap) -> Result<Response> {
    check_key(&server, &headers)?;
    if name != server.options.name {
        return Err(ApiError::model(&name, &server.options.name));
    }
    Ok(json_response(StatusCode::OK, &card(&server)))
}

async fn chat(State(server): State<Server>, headers: HeaderMap, body: Body) -> Result<Response> {
    answer(server, headers, body, Kind::Chat, Request::chat).await
}

async fn completion(State(server): State<Server>, headers: HeaderMap, body: Body) -> Result<Response> {
    answer(server, headers, body, Kind::Completion, Request::completion).await
}

async fn embeddings(State(server): State<Server>, headers: HeaderMap, body: Body) -> Result<Response> {
    check_key(&server, &headers)?;
    check_type(&headers)?;
    let body = bytes(&server, body).await?;
    let read = move || embeddings::Request::read(json_of(&body)?);
    Ok(json_response(StatusCode::OK, &server.embed(read).await?))
}

fn json_of(body: &[u8]) -> Result<Value> {
    serde_json::from_slice(body).map_err(|error| ApiError::request(format!("the body is no JSON: {error}")))
}

async fn answer(
    server: Server,
    headers: HeaderMap,
    body: Body,
    kind: Kind,
    read: fn(Value, &Options) -> Result<Request>,
) -> Result<Response> {
    check_key(&server, &headers)?;
    check_type(&headers)?;
    let body = bytes(&server, body).await?;
    let parse = move |options: &Options| read(json_of(&body)?, options);
    let (request, choices) = server.begin(parse).await?;
    let answer = answer::Answer::new(kind, server.options.name.clone(), request.n);
    if request.stream {
        return Ok(answer.stream(choices, request.usage).into_response());
    }
    Ok(json_response(StatusCode::OK, &answer.whole(choices).await?))
}

/// A page of another site can send what it likes to this machine, but for this header.
fn check_type(headers: &HeaderMap) -> Result<()> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
    if kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")) {
        return Ok(());
    }
    Err(ApiError::with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the header `Content-Type: application/json` is needed"))
}

/// Compares all of the key, so that the time it takes says nothing about where it is wrong.
fn check_key(server: &Server, headers: &HeaderMap) -> Result<()> {
    let Some(key) = &server.options.key else { return Ok(()) };
    let sent = headers.get(header::AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
    let sent = sent.strip_prefix(b"Bearer ").unwrap_or_default();
    let differs = sent.iter().zip(key.as_bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
    if sent.len() == key.len() && differs == 0 { Ok(()) } else { Err(ApiError::key()) }
}

async fn bytes(server: &Server, body: Body) -> Result<Vec<u8>> {
    let most = server.options.body;
    let too_large = || ApiError::with_status(StatusCode::PAYLOAD_TOO_LARGE, format!("the body has more than {most} bytes"));
    if axum::body::HttpBody::size_hint(&body).lower() > most as u64 {
        return Err(too_large());
    }
    match timeout(server.options.patience, to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(bytes.into()),
        Ok(Err(error)) if is_length(&error) => Err(too_large()),
        Ok(Err(error)) => Err(ApiError::request(format!("the body: {error}"))),
        Err(_) => Err(ApiError::with_status(StatusCode::REQUEST_TIMEOUT, "the body took too long to arrive")),
    }
}

/// Is it that a body was longer than it may be?
fn is_length(error: &axum::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if error.to_string().contains("length limit exceeded") {
            return true;
        }
        cause = error.source();
    }
    false
}
