//! A server, from its start to its end.

use crate::{
    access::Access,
    connections::Connections,
    http,
    limits::{LAST_WORDS, LOOK},
    options::Options,
    shared::Shared,
};
use bitnet_wgpu::model::Batch;
use std::io;
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
                "{address} is open to other machines without an API key; --api-key-file or BITNET_API_KEY sets one"
            );
        }
        let connections = Connections::new(
            options.clone(),
            access,
            life.clone(),
            http::router(self.shared.clone()),
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

    /// Waits until nothing will be answered any more, and clients have been told.
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
