//! A server, from its start to its end.

use crate::{
    access::Access,
    connections::Connections,
    http,
    limits::{LAST_WORDS, LOOK},
    options::Options,
    shared::Shared,
};
use axum::Router;
use bitnet_wgpu::model::Batch;
use std::{io, sync::Arc};
use tokio::{net::TcpListener, select, time::sleep};

/// A model to be served. Clones are the same server.
#[derive(Clone)]
pub struct Server {
    shared: Shared,
}

impl Server {
    /// Serves what a batch has room for. Requests wait in the server's own queue, as long as the
    /// batch's, so that clients take turns.
    ///
    /// # Errors
    /// [`Error::Invalid`](bitnet_wgpu::Error::Invalid) for options that [`Options::check`] refuses,
    /// and for defaults that the batch refuses: those that are out of range, speculate, or resume
    /// what was generated before.
    pub fn new(batch: Batch, options: Options) -> bitnet_wgpu::Result<Self> {
        options.check()?;
        // Checks the defaults; nothing is computed for an answer of no tokens.
        batch.generate_ids(&[0], &options.defaults.clone().max_tokens(0))?;
        Ok(Self { shared: Shared::new(batch, options) })
    }

    /// Answers clients of a listener until `end` is over: then nothing new begins, what has begun
    /// has [`Options::shutdown_timeout`] to end, and is cut.
    ///
    /// # Errors
    /// What the listener reports, and an [`Error`](bitnet_wgpu::Error) inside for what ends the
    /// batch: a device that is lost, or a panic. Load the model anew then, or begin the process
    /// anew. Before anything is served, an error if the process may open too few files, or its
    /// clock is not set.
    pub async fn run(
        self,
        listener: TcpListener,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let Shared { options, life, .. } = self.shared.clone();
        let address = listener.local_addr()?;
        let access = Access::new(options.clone(), address.ip());
        if access.is_open() {
            log::warn!(
                "{address} accepts other machines without an API key; set one by --api-key-file or BITNET_API_KEY"
            );
        }
        let connections = Connections::new(
            options.clone(),
            life.clone(),
            http::service(self.shared.clone(), access),
        )?;
        let ending = life.clone();
        tokio::spawn(async move {
            end.await;
            ending.end(options.shutdown_timeout).await;
        });
        let cut = async {
            life.cut().await;
            sleep(LAST_WORDS).await;
        };
        select! {
            () = connections.serve(listener) => Ok(()),
            () = cut => Ok(()),
            error = self.failed() => Err(error),
        }
    }

    /// Returns the routes for an app that has an axum server of its own, to be merged or nested.
    ///
    /// Keys are checked, and so are hosts if [`Options::allowed_hosts`] has some. Without keys,
    /// addresses are clients if the app serves by `into_make_service_with_connect_info`. The chat
    /// page and the limits of connections are not part of it.
    ///
    /// ```no_run
    /// # async fn run(server: bitnet_serve::Server) -> std::io::Result<()> {
    /// let app = axum::Router::new().nest("/llm", server.router());
    /// let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    /// axum::serve(listener, app).await
    /// # }
    /// ```
    pub fn router(&self) -> Router {
        let access = Access::of_app(self.shared.options.clone());
        http::router(self.shared.clone(), Arc::new(access))
    }

    /// Returns the error after which nothing is answered any more: a lost device, or a panic. An
    /// app that serves [`Server::router`] should look at it now and then.
    pub fn failure(&self) -> Option<bitnet_wgpu::Error> {
        self.shared.failure()
    }

    /// Waits until the server has failed, and clients have received the error.
    async fn failed(&self) -> io::Error {
        loop {
            if let Some(error) = self.shared.failure() {
                sleep(LAST_WORDS).await;
                return io::Error::other(error);
            }
            sleep(LOOK).await;
        }
    }
}
