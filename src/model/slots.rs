//! The thread of a batch: prompts come to slots of a session, are computed piece by piece, and their sequences step together until each ends.

use super::{
    mailbox::Sender,
    sequence::{Sequence, Token, step},
    session::Session,
    stop::Stop,
    worker::{stopped, yield_now},
};
use crate::error::{Error, Result};
use std::{
    cmp::Reverse,
    collections::VecDeque,
    convert::Infallible,
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Poll, Waker},
};

/// A common beginning of fewer tokens is no reason to take a slot, whose tokens may be of more use to somebody else.
const WORTH_KEEPING: usize = 16;

/// A prompt to be continued, and where its tokens go.
pub(super) struct Request {
    pub sequence: Sequence,
    pub tokens: Sender<Item>,
    /// Where it is said how many of the prompt's tokens its slot had.
    pub cached: Arc<AtomicUsize>,
}

/// A token, and why it was the last if it was.
pub(super) type Item = Result<(Token, Option<Stop>)>;

/// Where requests wait for the thread.
#[derive(Default)]
pub(super) struct Desk(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    requests: VecDeque<Request>,
    /// Sequences in slots.
    running: usize,
    /// The thread's, while it has nothing to do.
    waker: Option<Waker>,
    /// Why the thread ended, if it did; none inside if nobody knows.
    ended: Option<Option<Arc<Error>>>,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.requests.retain(|request| !request.tokens.is_abandoned());
        waiting
    }

    /// Sequences that run, and requests that wait.
    pub fn counts(&self) -> (usize, usize) {
        let waiting = self.lock();
        (waiting.running, waiting.requests.len())
    }

    /// Why the thread ended.
    pub fn cause(&self) -> Error {
        self.lock().ended.clone().flatten().map_or_else(stopped, Error::BatchEnded)
    }

    /// Has a request wait for one of `slots` slots, among at most `queue` others.
    pub fn enter(&self, request: Request, slots: usize, queue: usize) -> Result<()> {
        let mut waiting = self.lock();
        if waiting.ended.is_some() {
            drop(waiting);
            return Err(self.cause());
        }
        let all = waiting.running + waiting.requests.len();
        if all >= slots.saturating_add(queue) {
            return Err(Error::Busy { running: waiting.running, waiting: waiting.requests.len(), slots, queue });
        }
        waiting.requests.push_back(request);
        let waker = waiting.waker.take();
        drop(waiting);
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }
}

/// A session whose sequences are of different requests.
pub(super) struct Slots {
    session: Session,
    slots: Vec<Slot>,
    desk: Arc<Desk>,
    /// Tokens of prompts that are computed between two steps.
    piece: usize,
    /// How many requests there were.
    count: u64,
    /// Does the engine know how to choose?
    told: bool,
}

#[derive(Default)]
struct Slot {
    request: Option<Request>,
    /// The number of the request that had it last.
    last: u64,
}

impl Slot {
    /// A sequence whose prompt is computed has a token at least.
    fn steps(&self) -> bool {
        self.request.as_ref().is_some_and(|request| request.sequence.chooser.generated() > 0)
    }
}

impl Slots {
    pub fn new(session: Session, desk: Arc<Desk>, piece: usize) -> Self {
        let slots = (0..session.options().sequences).map(|_| Slot::default()).collect();
        Self { session, slots, desk, piece, count: 0, told: false }
    }

    /// Serves requests until it is dropped. What a device reports ends it, and is told to all.
    pub async fn run(mut self) {
        let Err(error) = self.turns().await;
        let cause = Arc::new(error);
        let mut waiting = self.desk.lock();
        waiting.ended = Some(Some(cause.clone()));
        let requests: Vec<_> = waiting.requests.drain(..).chain(self.slots.iter_mut().filter_map(|slot| slot.request.take())).collect();
        drop(waiting);
        requests.iter().for_each(|request| request.tokens.send(Err(Error::BatchEnded(cause.clone()))));
    }

    async fn turns(&mut self) -> Result<Infallible> {
        loop {
            self.admit().await;
            self.prefill().await?;
            self.step().await?;
            yield_now().await;
        }
    }

    /// Brings waiting requests to free slots; waits while there is nothing to do.
    async fn admit(&mut self) {
        let desk = self.desk.clone();
        poll_fn(|cx| {
            let mut waiting = desk.lock();
            for slot in &mut self.slots {
                slot.request.take_if(|request| request.tokens.is_abandoned());
            }
            while self.slots.iter().any(|slot| slot.request.is_none())
                && let Some(request) = waiting.requests.pop_front()
            {
                self.place(request);
            }
            waiting.running = self.slots.iter().filter(|slot| slot.request.is_some()).count();
            if waiting.running > 0 {
                return Poll::Ready(());
            }
            waiting.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Gives a request the free slot that has most of its prompt already; else that which was free for longest.
    fn place(&mut self, request: Request) {
        let prompt = request.sequence.chooser.tokens();
        let common = |slot: usize| Some(self.session.common(slot, prompt)).filter(|&common| common >= WORTH_KEEPING).unwrap_or(0);
        let free = (0..self.slots.len()).filter(|&slot| self.slots[slot].request.is_none());
        let Some(slot) = free.max_by_key(|&slot| (common(slot), Reverse(self.slots[slot].last))) else { return };
        request.cached.store(self.session.keep_common(slot, prompt), Ordering::Relaxed);
        self.count += 1;
        self.slots[slot] = Slot { request: Some(request), last: self.count };
    }

    /// Computes a piece of the prompts that are not computed yet: as many tokens of each, those that came first before others.
    async fn prefill(&mut self) -> Result<()> {
        let mut budget = self.piece;
        loop {
            let waits = |slot: &usize| self.slots[*slot].request.is_some() && !self.slots[*slot].steps();
            let mut slots: Vec<usize> = (0..self.slots.len()).filter(waits).collect();
            slots.sort_by_key(|&slot| self.slots[slot].last);
            slots.truncate(budget);
            let left: Vec<&[u32]> = slots.iter().map(|&slot| self.left(slot)).collect();
            let Some(shortest) = left.iter().map(|left| left.len()).min() else { return Ok(()) };
            let run = shortest.min(budget / slots.len());
            let tokens: Vec<u32> = left.iter().flat_map(|left| &left[..run]).copied().collect();
            let complete: Vec<bool> = left.iter().map(|left| left.len() == run).collect();
            budget -= tokens.len();
            let mut logits = self.session.extend(&slots, &tokens, usize::from(complete.contains(&true))).await?;
            for (n, &slot) in slots.iter().enumerate().filter(|(n, _)| complete[*n]) {
                let vocab = self.session.vocab();
                self.take(slot, |sequence| sequence.chooser.of_logits(&mut logits[n * vocab..][..vocab]));
                self.told = false;
            }
        }
    }

    /// What of a prompt is not computed yet.
    fn left(&self, slot: usize) -> &[u32] {
        let tokens = self.slots[slot].request.as_ref().map_or(&[][..], |request| request.sequence.chooser.tokens());
        &tokens[self.session.len(slot)..]
    }

    /// A token for every sequence whose prompt is computed.
    async fn step(&mut self) -> Result<()> {
        let (mut live, mut places) = (Vec::new(), Vec::new());
        for (n, slot) in self.slots.iter_mut().enumerate().filter(|(_, slot)| slot.steps()) {
            live.extend(slot.request.as_mut().map(|request| (n, &mut request.sequence)));
            places.push(n);
        }
        if live.is_empty() {
            return Ok(());
        }
        let chosen = step(&mut self.session, &mut live, &mut self.told).await?;
        for (slot, chosen) in places.into_iter().zip(chosen) {
            self.take(slot, |_| chosen);
        }
        Ok(())
    }

    /// Hands on a token that was chosen, or why there is none. The slot of a sequence that has ended is free, and keeps its tokens.
    fn take(&mut self, slot: usize, choose: impl FnOnce(&mut Sequence) -> Result<u32>) {
        let full = self.session.len(slot) == self.session.options().capacity;
        let Some(Request { sequence, tokens, .. }) = &mut self.slots[slot].request else { return };
        let item = choose(sequence).and_then(|_| Ok((sequence.take(full)?, sequence.stop)));
        let ended = item.as_ref().map_or(true, |(_, stop)| stop.is_some());
        tokens.send(item);
        if ended {
            self.slots[slot].request = None;
        }
    }
}

/// However it ended: what still waits is told, and nobody waits in vain after it.
impl Drop for Slots {
    fn drop(&mut self) {
        let mut waiting = self.desk.lock();
        waiting.ended.get_or_insert(None);
        waiting.running = 0;
        let requests = std::mem::take(&mut waiting.requests);
        drop(waiting);
        drop(requests);
    }
}
