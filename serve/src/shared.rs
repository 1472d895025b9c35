//! What all requests of a server share, and how they are prepared.

use crate::{
    budget::{Budget, Held},
    client::Client,
    error::{ApiError, Result},
    life::{Life, now},
    limits::{PREPARING, SMALL_BODY},
    metrics::Metrics,
    options::Options,
    turns::{Counts, Turns},
};
use bitnet_wgpu::{
    Error,
    model::{Batch, Tokenizer},
};
use std::{
    num::NonZero,
    sync::{Arc, OnceLock},
    thread::available_parallelism,
};

/// A server's state. Clones are the same.
#[derive(Clone)]
pub struct Shared {
    pub batch: Batch,
    pub options: Arc<Options>,
    pub started: u64,
    pub life: Arc<Life>,
    /// Bytes of bodies, and of vectors.
    pub bytes: Arc<Budget>,
    /// Turns at reading bodies, and at templates and tokenizers, which compute on threads that may
    /// block.
    preparing: Arc<Turns>,
    /// Turns at preparing bodies of more than [`SMALL_BODY`], of which one takes the memory of many
    /// others.
    preparing_large: Arc<Turns>,
    /// Turns at the batch's slots: its own queue is not used, as it knows no clients.
    pub running: Arc<Turns>,
    /// Turns at computing vectors, beside the batch: one at a time, as each takes memory of its
    /// own.
    pub embedding: Arc<Turns>,
    /// Operation of embeddings during which the device was lost: a batch without requests does
    /// not notice it.
    pub lost: Arc<OnceLock<String>>,
    pub metrics: Arc<Metrics>,
}

/// Returns how many slots one client holds at most. Clients that keys tell apart leave one to
/// others, so that another client's first request starts at once, however long the answers are.
/// With fewer than four slots, that would cost one client alone too much.
fn share(slots: usize, options: &Options) -> usize {
    if options.keys.len() > 1 && slots >= 4 { slots - 1 } else { slots }
}

/// A body, which is counted until it is dropped.
pub struct Body {
    pub bytes: Vec<u8>,
    pub held: Held,
}

impl Shared {
    pub fn new(batch: Batch, options: Options) -> Self {
        let (slots, queue) = (batch.options().slots(), batch.options().get_queue());
        let threads = available_parallelism().map_or(1, NonZero::get).min(PREPARING);
        Self {
            started: now(),
            life: Arc::new(Life::new()),
            bytes: Budget::new(options.max_pending_bytes),
            preparing: Turns::new(threads, slots.saturating_add(queue)),
            preparing_large: Turns::new(1, slots.saturating_add(queue)),
            running: Turns::with_share(slots, share(slots, &options), queue),
            embedding: Turns::new(1, queue),
            lost: Arc::default(),
            metrics: Arc::default(),
            options: Arc::new(options),
            batch,
        }
    }

    /// Returns why nothing will be answered any more, if so.
    pub fn failure(&self) -> Option<Error> {
        self.batch
            .ended()
            .or_else(|| self.lost.get().map(|during| Error::DeviceLost { during: during.clone() }))
    }

    /// Checks that a prompt of this many tokens has room.
    pub fn check_length(&self, tokens: usize) -> bitnet_wgpu::Result<()> {
        let capacity = self.batch.options().capacity();
        if tokens > capacity { Err(Error::Context { needed: tokens, capacity }) } else { Ok(()) }
    }

    /// Sequences that run and wait.
    pub fn load(&self) -> Counts {
        let (batch, turns) = (self.batch.load(), self.running.counts());
        Counts { running: batch.running, waiting: batch.waiting + turns.waiting }
    }

    /// Returns what is made of a body, in turns with other clients, on a thread that may block.
    pub async fn prepare<T: Send + 'static>(
        &self,
        client: Client,
        body: Body,
        work: impl FnOnce(&Self, &[u8]) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let busy = |_| {
            let Counts { running, waiting } = self.preparing.counts();
            ApiError::busy(format!(
                "too many requests: {running} in preparation, {waiting} queued for it"
            ))
        };
        let large = match body.bytes.len() > SMALL_BODY {
            true => {
                Some(self.preparing_large.place(client).map_err(busy)?.turn().await.map_err(busy)?)
            }
            false => None,
        };
        let turn = self.preparing.place(client).map_err(busy)?.turn().await.map_err(busy)?;
        let shared = self.clone();
        let prepared = tokio::task::spawn_blocking(move || {
            // It goes on though the client may have gone.
            let (body, _turns) = (body, (turn, large));
            work(&shared, &body.bytes)
        });
        prepared.await.unwrap_or_else(|_| {
            Err(ApiError::server("internal error: preparation of the request panicked"))
        })
    }

    pub fn check_model(&self, asked: Option<&str>) -> Result<()> {
        let there = &self.options.name;
        match asked {
            Some(asked) if asked != there => Err(ApiError::model(asked, there)),
            _ => Ok(()),
        }
    }

    /// The tokenizer of conversations. It refuses texts that cannot fit before it works on them.
    pub fn tokenizer(&self) -> bitnet_wgpu::Result<Tokenizer> {
        let tokenizer =
            self.options.tokenizer.as_ref().map_or_else(|| self.batch.model().tokenizer(), Ok)?;
        Ok(tokenizer.within(self.batch.options().capacity()))
    }

    /// The tokenizer of text prompts. It refuses such too.
    pub fn text_tokenizer(&self) -> bitnet_wgpu::Result<Tokenizer> {
        Ok(self.batch.model().tokenizer()?.within(self.batch.options().capacity()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bitnet_wgpu::model::{BatchOptions, Model};
    use std::{
        net::Ipv4Addr,
        sync::atomic::{AtomicUsize, Ordering},
        thread::sleep,
        time::Duration,
    };

    const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tales-22m");

    /// How many slots one client gets, of a server with some slots and keys.
    fn slots_of_one_client((slots, keys): (usize, &[&str])) -> usize {
        let batch = Model::builder(MODEL)
            .cpu()
            .build()
            .unwrap()
            .batch(BatchOptions::new(slots, 8))
            .unwrap();
        let shared = Shared::new(batch, Options::new("tales").keys(keys.iter().copied()));
        let _places = shared.running.enter(Client::Key(0), slots).unwrap();
        shared.running.counts().running
    }

    #[test]
    fn clients_with_keys_leave_one_slot() {
        let servers: [(usize, &[&str]); 4] =
            [(8, &["ann", "bob"]), (3, &["ann", "bob"]), (8, &["ann"]), (8, &[])];
        assert_eq!(servers.map(slots_of_one_client), [7, 3, 8, 8]);
    }

    /// The most bodies of `bytes` bytes that are prepared at a time, of twelve that come together.
    fn most_at_once(bytes: usize) -> usize {
        let batch = Model::builder(MODEL)
            .cpu()
            .build()
            .unwrap()
            .batch(BatchOptions::new(1, 8).queue(20))
            .unwrap();
        let shared = Shared::new(batch, Options::new("tales"));
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let prepare = || {
            let (shared, running, most) = (shared.clone(), running.clone(), most.clone());
            let client = Client::peer(Ipv4Addr::LOCALHOST.into());
            let body = Body { bytes: vec![0; bytes], held: shared.bytes.begin(client) };
            async move {
                let work = move |_: &Shared, _: &[u8]| {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    sleep(Duration::from_millis(20));
                    running.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                };
                shared.prepare(client, body, work).await
            }
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let prepared: Vec<_> = (0..12).map(|_| runtime.spawn(prepare())).collect();
        prepared.into_iter().for_each(|prepared| runtime.block_on(prepared).unwrap().unwrap());
        most.load(Ordering::SeqCst)
    }

    #[test]
    fn large_bodies_are_prepared_one_at_a_time() {
        assert_eq!(most_at_once(SMALL_BODY + 1), 1);
        let cores = available_parallelism().map_or(1, NonZero::get).min(PREPARING);
        let small = most_at_once(SMALL_BODY);
        assert!((1..=cores).contains(&small), "{small} of {cores}");
    }
}
