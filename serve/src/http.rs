//! Routes and their handlers.

use crate::{
    access::Access,
    answer::{Answer, Kind},
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
    receive::Received,
    request::Request,
    responses,
    shared::Shared,
    stream, tokens,
    turns::Counts,
    vectors,
};
use axum::{
    Router,
    extract::{Path, State, rejection::PathRejection},
    http::{Method, StatusCode, Uri, header},
    middleware::from_fn_with_state,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};
use std::sync::Arc;

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

async fn chat(State(shared): State<Shared>, received: Received) -> Result<Response> {
    answer(shared, received, Kind::Chat, Request::chat).await
}

async fn completion(State(shared): State<Shared>, received: Received) -> Result<Response> {
    answer(shared, received, Kind::Completion, Request::completion).await
}

async fn embeddings(
    State(shared): State<Shared>,
    Received { client, body }: Received,
) -> Result<Response> {
    Ok(vectors::embed(&shared, client, body).await?.into_response())
}

async fn response(
    State(shared): State<Shared>,
    Received { client, body }: Received,
) -> Result<Response> {
    let (shape, choices) = prepare::begin(&shared, client, body, responses::read).await?;
    let (streams, held) = (shape.stream, shape.held.clone());
    let answer = responses::Answer::new(shared.options.name.clone(), shape);
    if streams {
        return Ok(stream::events(answer, choices));
    }
    let mut response = json_response(StatusCode::OK, &answer.whole(choices).await?);
    response.extensions_mut().insert(held);
    Ok(response)
}

async fn message(State(shared): State<Shared>, received: Result<Received>) -> Response {
    let answered = async {
        let Received { client, body } = received?;
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

async fn count(State(shared): State<Shared>, received: Result<Received>) -> Response {
    let counted = async {
        let Received { client, body } = received?;
        let count = shared.prepare(client, body, messages::count).await?;
        Ok(json_response(StatusCode::OK, &count))
    };
    counted.await.unwrap_or_else(|error| messages::failed(&error))
}

async fn tokenize(
    State(shared): State<Shared>,
    Received { client, body }: Received,
) -> Result<Response> {
    let answer = shared.prepare(client, body, tokens::tokenize).await?;
    Ok(json_response(StatusCode::OK, &answer))
}

async fn detokenize(
    State(shared): State<Shared>,
    Received { client, body }: Received,
) -> Result<Response> {
    let answer = shared.prepare(client, body, tokens::detokenize).await?;
    Ok(json_response(StatusCode::OK, &answer))
}

async fn answer(
    shared: Shared,
    Received { client, body }: Received,
    kind: Kind,
    read: fn(Value, &Options) -> Result<Request>,
) -> Result<Response> {
    let (shape, choices) = prepare::begin(&shared, client, body, read).await?;
    let tokenizer = shape.logprobs.then(|| shared.text_tokenizer().ok()).flatten();
    let (streams, texts) = (shape.stream, TokenTexts::new(tokenizer));
    let answer = Answer::new(kind, shared.options.name.clone(), shape, texts);
    if streams { answer.events(choices).await } else { answer.whole(choices).await }
}
