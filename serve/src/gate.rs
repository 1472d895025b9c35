//! What every request passes: access, cross-origin rules, the log and the counters.

use crate::{
    access::Access,
    budget::Held,
    client::Client,
    keeping::Keeping,
    messages,
    metrics::Metrics,
    paths::{MESSAGES, route},
};
use axum::{
    body::Body,
    extract::{ConnectInfo, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Instant,
};

/// Seconds for which browsers remember a preflight's answer: Chromium's limit.
const PREFLIGHT_AGE: &str = "7200";

/// The address that a request comes from.
#[derive(Clone, Copy)]
pub struct Peer(pub IpAddr);

/// Access rules and counters.
#[derive(Clone)]
pub struct Gate {
    pub access: Arc<Access>,
    pub metrics: Arc<Metrics>,
}

/// Answers a request that may be answered.
pub async fn pass(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    let peer = peer(&request);
    let mut record = Record::new(&gate, &request, peer);
    let origin = gate.access.cors_origin(request.headers());
    let mut response = match gate.access.client(&request, peer) {
        _ if origin.is_some() && is_preflight(&request) => preflight(request.headers()),
        Ok(client) => {
            record.client = client;
            request.extensions_mut().insert(client);
            next.run(request).await
        }
        Err(error) if record.path.starts_with(MESSAGES) => messages::failed(&error),
        Err(error) => error.into_response(),
    };
    if let Some(origin) = origin {
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        response.headers_mut().append(header::VARY, HeaderValue::from_static("Origin"));
    }
    record.status = response.status();
    // Bytes of the answer are counted until it is written.
    let held: Option<Arc<Held>> = response.extensions_mut().remove();
    response.map(|body| Body::new(Keeping { body, _kept: (record, held) }))
}

/// Returns the address of the connection; 0.0.0.0 in a server that does not say it.
fn peer(request: &Request) -> IpAddr {
    let extensions = request.extensions();
    let own = extensions.get().map(|Peer(address)| *address);
    let other =
        || extensions.get().map(|ConnectInfo(address): &ConnectInfo<SocketAddr>| address.ip());
    own.or_else(other).unwrap_or(Ipv4Addr::UNSPECIFIED.into())
}

fn is_preflight(request: &Request) -> bool {
    request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Allows what the browser asks for: keys are checked when the request itself comes.
fn preflight(headers: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let answer = response.headers_mut();
    let mut allow = |name: HeaderName, value: &'static str| {
        answer.insert(name, HeaderValue::from_static(value));
    };
    allow(header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST");
    allow(header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_AGE);
    if let Some(asked) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    response
}

/// A request of the log and the counters. It is written on drop, when the answer has ended.
struct Record {
    metrics: Arc<Metrics>,
    method: Method,
    path: String,
    client: Client,
    status: StatusCode,
    start: Instant,
}

impl Record {
    fn new(gate: &Gate, request: &Request, peer: IpAddr) -> Self {
        Self {
            metrics: gate.metrics.clone(),
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            client: Client::peer(peer),
            // As nginx has it, for a client that has gone before it was answered.
            status: StatusCode::from_u16(499).unwrap_or_default(),
            start: Instant::now(),
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let Self { method, path, client, status, start, .. } = self;
        self.metrics.request(route(path), status.as_u16());
        let (path, status) = (crate::error::shown(path), status.as_u16());
        log::info!("{client} {method} {path} {status} {} ms", start.elapsed().as_millis());
    }
}
