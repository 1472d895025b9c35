//! Items that a thread computes, and whoever takes them.

use super::workers::{self, Work, Workers};
use crate::error::Result;
use futures_core::Stream;
use futures_intrusive::channel::shared::{OneshotReceiver, channel, oneshot_channel};
use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

/// Items that wait for being taken, where a source does not say otherwise.
pub(crate) const AHEAD: usize = 4;

/// What computes items, one after another.
pub(crate) trait Producer: Send + 'static {
    type Item: Send + 'static;
    /// What it leaves when it ends, or is ended.
    type Rest: Send + 'static;

    /// The next item, and whether it is the last. After an error nothing follows.
    fn next(&mut self) -> impl Future<Output = Result<(Self::Item, bool)>> + Send;

    /// Most items that wait to be taken; with this many, the thread waits.
    fn ahead(&self) -> usize {
        AHEAD
    }

    fn rest(self) -> Self::Rest;
}

/// The items of a source. From the first that is asked for, they are computed on a thread of its
/// own, a few ahead of who takes them.
pub(crate) struct BackgroundStream<S: Producer>(State<S>);

enum State<S: Producer> {
    /// Nobody has asked for an item yet.
    New(Box<S>, Arc<Workers>),
    // Dropped in this order: the channel closes before the work is given up.
    Running(Items<S::Item>, Begun<S::Rest>),
    /// All items were taken.
    Ended(Begun<S::Rest>),
    /// There was nothing to compute.
    Empty(Box<S>),
    Failed,
}

/// What has begun on a thread: gives the rest back when it ends.
struct Begun<R: 'static> {
    rest: OneshotReceiver<R>,
    _work: Work,
}

type Items<T> = Pin<Box<dyn Stream<Item = Result<(T, bool)>> + Send>>;

type Started<S> = (Items<<S as Producer>::Item>, Begun<<S as Producer>::Rest>);

impl<S: Producer> BackgroundStream<S> {
    pub fn new(source: S, workers: &Arc<Workers>) -> Self {
        Self(State::New(Box::new(source), workers.clone()))
    }

    /// One without items.
    pub fn empty(source: S) -> Self {
        Self(State::Empty(Box::new(source)))
    }

    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<S::Item>>> {
        let (mut items, begun) = match std::mem::replace(&mut self.0, State::Failed) {
            State::New(source, workers) => match start(source, &workers) {
                Ok(started) => started,
                Err(error) => return Poll::Ready(Some(Err(error))),
            },
            State::Running(items, begun) => (items, begun),
            other => {
                self.0 = other;
                return Poll::Ready(None);
            }
        };
        let Poll::Ready(item) = items.as_mut().poll_next(cx) else {
            self.0 = State::Running(items, begun);
            return Poll::Pending;
        };
        let item = item.unwrap_or_else(|| Err(workers::stopped()));
        let last = item.as_ref().map_or(true, |(_, last)| *last);
        self.0 = if last { State::Ended(begun) } else { State::Running(items, begun) };
        Poll::Ready(Some(item.map(|(item, _)| item)))
    }

    /// Ends the source, and gives what it leaves.
    ///
    /// # Errors
    /// [`Error::Gpu`](crate::Error::Gpu) if its thread panicked.
    pub async fn into_rest(self) -> Result<S::Rest> {
        let begun = match self.0 {
            State::New(source, _) | State::Empty(source) => return Ok(source.rest()),
            State::Running(items, begun) => {
                // What has nobody to listen to it ends.
                drop(items);
                begun
            }
            State::Ended(begun) => begun,
            State::Failed => return Err(workers::stopped()),
        };
        begun.rest.receive().await.ok_or_else(workers::stopped)
    }
}

fn start<S: Producer>(mut source: Box<S>, workers: &Arc<Workers>) -> Result<Started<S>> {
    let (sender, receiver) = channel(source.ahead());
    let (back, rest) = oneshot_channel();
    let _work = workers.spawn(async move {
        loop {
            let item = source.next().await;
            let last = item.as_ref().map_or(true, |(_, last)| *last);
            // It fails where nobody listens any more.
            if sender.send(item).await.is_err() || last {
                break;
            }
        }
        // It fails where nobody wants it back.
        let _ = back.send(source.rest());
    })?;
    Ok((Box::pin(receiver.into_stream()), Begun { rest, _work }))
}

/// The items of a stream, each waited for on this thread.
pub struct Blocking<S>(pub(crate) S);

impl<S: Stream + Unpin> Iterator for Blocking<S> {
    type Item = S::Item;

    fn next(&mut self) -> Option<S::Item> {
        pollster::block_on(poll_fn(|cx| Pin::new(&mut self.0).poll_next(cx)))
    }
}
