//! Connections: how many there are, and how long each may wait.

use crate::{
    budget::{Budget, Held},
    client::Client,
    error::ApiError,
    files,
    gate::Peer,
    keeping::Keeping,
    life::{Life, is_writable},
    limits::{ACCEPT_RETRY, BUFFER},
    options::Options,
    socket::{Answering, Answers, Socket},
};
use axum::{
    Router,
    http::{Request, Response},
};
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{
    convert::Infallible,
    future::poll_fn,
    io::{self, Write as _},
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::SystemTime,
};
use tokio::{
    net::{TcpListener, TcpStream},
    select,
    sync::watch,
    time::sleep,
};

/// State that all connections share.
#[derive(Clone)]
pub struct Connections {
    options: Arc<Options>,
    life: Arc<Life>,
    routes: TowerToHyperService<Router>,
    /// Connections, which addresses share.
    places: Arc<Budget>,
    alive: watch::Sender<()>,
}

impl Connections {
    /// # Errors
    /// If the process may open too few files, or its clock says a time that HTTP cannot write.
    pub fn new(options: Arc<Options>, life: Arc<Life>, routes: Router) -> io::Result<Self> {
        if !is_writable(SystemTime::now()) {
            return Err(io::Error::other(
                "the system clock is before 1970 or after 9999; set it and restart the server",
            ));
        }
        // A budget leaves one for others.
        let places = Budget::new(files::connections(options.max_connections)?.saturating_add(1));
        let routes = TowerToHyperService::new(routes);
        Ok(Self { options, life, routes, places, alive: watch::Sender::new(()) })
    }

    /// Answers whoever connects, until answers are cut; then waits for the last connection to end.
    pub async fn serve(self, listener: TcpListener) {
        let accepting = async {
            loop {
                let (stream, peer) = accept(&listener).await;
                let Some(place) = self.place(peer.ip()) else {
                    refuse(stream, peer.ip());
                    continue;
                };
                let (connection, alive) =
                    (self.clone().connection(stream, peer.ip()), self.alive.subscribe());
                tokio::spawn(async move {
                    connection.await;
                    drop((place, alive));
                });
            }
        };
        select! {
            () = accepting => {}
            () = self.life.cut() => {}
        }
        drop(listener);
        self.alive.closed().await;
    }

    /// Takes a connection of its address's share, if that has one left.
    fn place(&self, peer: IpAddr) -> Option<Held> {
        let mut place = self.places.begin(Client::peer(peer));
        place.grow(1).ok().map(|()| place)
    }

    async fn connection(self, stream: TcpStream, peer: IpAddr) {
        // Tokens are small and to be seen at once.
        let _ = stream.set_nodelay(true);
        let answers = Answers::default();
        let socket = TokioIo::new(Socket::new(stream, answers.clone(), &self.options));
        let (routes, life, counter) = (self.routes, self.life, answers.clone());
        let service = service_fn(move |request| answer(&routes, peer, request, counter.begin()));
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(self.options.header_timeout)
            .max_header_size(BUFFER)
            .max_buf_size(BUFFER);
        let mut connection = pin!(builder.serve_connection(socket, service));
        let mut is_cut = false;
        loop {
            // hyper panics where it cannot write the time.
            let while_writable = poll_fn(|cx| {
                if is_writable(SystemTime::now()) {
                    return connection.as_mut().poll(cx);
                }
                log::warn!("connection closed: the system clock is before 1970 or after 9999");
                Poll::Ready(Ok(()))
            });
            select! {
                ended = while_writable => {
                    if let Err(error) = ended {
                        log::debug!("connection of {peer} closed: {error}");
                    }
                    return;
                }
                () = life.cut(), if !is_cut => is_cut = true,
            }
            if !answers.any() {
                return;
            }
            connection.as_mut().graceful_shutdown();
        }
    }
}

/// The next connection. What goes wrong with one, or with the listener for a while, does not end
/// the server.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) if is_of_connection(&error) => {}
            Err(error) => {
                log::warn!("cannot accept a connection: {error}");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Closes a connection. Its client may read why: the answer is lost if more of a request comes than
/// was there.
fn refuse(stream: TcpStream, peer: IpAddr) {
    log::debug!("connection of {peer} refused: too many of this address or in total");
    let body = ApiError::busy(
        "too many connections of this address or in total; close some, or try again later",
    )
    .object()
    .to_string();
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n{body}"
    );
    // It fits into the socket's buffer, so that nothing waits.
    let _ = stream.into_std().and_then(|mut stream| stream.write_all(answer.as_bytes()));
}

fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    [ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&error.kind())
}

/// Answers a request of an address.
fn answer(
    routes: &TowerToHyperService<Router>,
    peer: IpAddr,
    mut request: Request<Incoming>,
    answering: Answering,
) -> impl Future<Output = Result<Response<Keeping<Answering>>, Infallible>> + use<> {
    request.extensions_mut().insert(Peer(peer));
    let response = routes.call(request);
    async move { Ok(response.await?.map(|body| Keeping { body, _kept: answering })) }
}
