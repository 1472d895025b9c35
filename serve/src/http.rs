//! Paths, headers and bodies.

use crate::{
    access::Access,
    answer::{Answer, Kind},
    budget::Full,
    client::Client,
    error::{ApiError, Result, json_response, shown},
    gate::{self, Gate},
    life::Phase,
    logprobs::TokenTexts,
    messages,
    options::Options,
    page,
    paths::{
        CHAT, COMPLETIONS, COUNT, DETOKENIZE, EMBEDDINGS, HEALTH, MESSAGES, METRICS, MODELS, PAGE,
        RESPONSES, TOKENIZE,
    },
    prepare,
    request::Request,
    responses,
    shared::{Body as Prepared, Shared},
    stream, tokens,
    turns::Counts,
    vectors,
};
use axum::{
    Extension, Router,
    body::{Body, HttpBody as _},
    extract::{Path, State, rejection::PathRejection},
    http::{HeaderMap, Method, StatusCode, Uri, header},
    middleware::from_fn_with_state,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::time::timeout;

/// Returns the routes of the API, for an app with paths of its own.
pub fn router(shared: Shared, access: Arc<Access>) -> Router {
    let gate = Gate { access, metrics: shared.metrics.clone() };
    routes().route_layer(from_fn_with_state(gate, gate::pass)).with_state(shared)
}

/// Returns all that a server answers.
pub fn service(shared: Shared, access: Access) -> Router {
    let gate = Gate { access: Arc::new(access), metrics: shared.metrics.clone() };
    let routes = match shared.options.page {
        true => routes().route(PAGE, get(page::page)),
        false => routes(),
    };
    routes.fallback(unknown).layer(from_fn_with_state(gate, gate::pass)).with_state(shared)
}

fn routes() -> Router<Shared> {
    Router::new()
        .route(HEALTH, get(health))
        .route(METRICS, get(metrics))
        .route(MODELS, get(models))
        .route("/v1/models/{*name}", get(model))
        .route(CHAT, post(chat))
        .route(COMPLETIONS, post(completion))
        .route(EMBEDDINGS, post(embeddings))
        .route(RESPONSES, post(response))
        .route(MESSAGES, post(message))
        .route(COUNT, post(count))
        .route(TOKENIZE, post(tokenize))
        .route(DETOKENIZE, post(detokenize))
        .method_not_allowed_fallback(not_allowed)
}

async fn unknown(uri: Uri) -> ApiError {
    let path = shown(uri.path());
    let known = "those of the APIs begin with /v1";
    ApiError::with_status(StatusCode::NOT_FOUND, format!("unknown path {path}; {known}"))
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

async fn metrics(State(shared): State<Shared>) -> Response {
    let text = shared.metrics.text(shared.load(), &shared.batch.options());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// The model as OpenAI's API has it, and the tokens of a slot as vLLM names them.
fn card(shared: &Shared) -> Value {
    json!({
        "id": shared.options.name,
        "object": "model",
        "created": shared.started,
        "owned_by": "bitnet-wgpu",
        "max_model_len": shared.batch.options().capacity(),
    })
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

async fn response(
    State(shared): State<Shared>,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response> {
    check_type(&headers)?;
    let body = receive(&shared, client, body).await?;
    let (shape, choices) = prepare::begin(&shared, client, body, responses::read).await?;
    let answer = responses::Answer::new(shared.options.name.clone());
    if shape.stream {
        return Ok(stream::events(answer, choices));
    }
    Ok(json_response(StatusCode::OK, &answer.whole(choices).await?))
}

async fn message(
    State(shared): State<Shared>,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answered = async {
        check_type(&headers)?;
        let body = receive(&shared, client, body).await?;
        let (shape, choices) = prepare::begin(&shared, client, body, messages::read).await?;
        let (streams, tokenizer) = (shape.stream, shared.text_tokenizer().ok());
        let answer = messages::Answer::new(shared.options.name.clone(), shape, tokenizer);
        if streams {
            return Ok(stream::events(answer, choices));
        }
        Ok(json_response(StatusCode::OK, &answer.whole(choices).await?))
    };
    answered.await.unwrap_or_else(|error| messages::failed(&error))
}

async fn count(
    State(shared): State<Shared>,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let counted = async {
        check_type(&headers)?;
        let body = receive(&shared, client, body).await?;
        let count = shared.prepare(client, body, messages::count).await?;
        Ok(json_response(StatusCode::OK, &count))
    };
    counted.await.unwrap_or_else(|error| messages::failed(&error))
}

async fn tokenize(
    State(shared): State<Shared>,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response> {
    check_type(&headers)?;
    let body = receive(&shared, client, body).await?;
    let answer = shared.prepare(client, body, tokens::tokenize).await?;
    Ok(json_response(StatusCode::OK, &answer))
}

async fn detokenize(
    State(shared): State<Shared>,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response> {
    check_type(&headers)?;
    let body = receive(&shared, client, body).await?;
    let answer = shared.prepare(client, body, tokens::detokenize).await?;
    Ok(json_response(StatusCode::OK, &answer))
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
    let tokenizer = shape.logprobs.then(|| shared.text_tokenizer().ok()).flatten();
    let (streams, texts) = (shape.stream, TokenTexts::new(tokenizer));
    let answer = Answer::new(kind, shared.options.name.clone(), shape, texts);
    if streams {
        return Ok(stream::events(answer, choices));
    }
    let held = answer.held();
    let mut response = json_response(StatusCode::OK, &answer.whole(choices).await?);
    response.extensions_mut().insert(held);
    Ok(response)
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
            format!("the body did not arrive within {} s", body_timeout.as_secs_f32()),
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
        "too many bytes of pending requests; of {bytes} in total, a client may use half of what others leave"
    ))
}
