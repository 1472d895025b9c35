//! The thread of a batch: prompts come to slots of a session, are computed in chunks, and
//! their sequences step together until each ends.

use crate::{
    error::{Error, Result},
    model::{
        engine::interface::Pending,
        generate::{
            chooser::Chooser,
            generation::BatchItem,
            sequence::{Sequence, choose_by, step},
        },
        session::sequences::Session,
        threads::{
            unbounded::Sender,
            workers::{stopped, yield_now},
        },
    },
};
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

/// Minimum shared prefix, in tokens, for which a slot's KV cache is reused.
const WORTH_KEEPING: usize = 16;

/// A prompt to be continued, and where its tokens go.
pub(crate) struct Request {
    pub sequence: Sequence,
    pub tokens: Sender<BatchItem>,
    /// Where it is said how many of the prompt's tokens its slot had.
    pub cached: Arc<AtomicUsize>,
}

/// Where requests wait for the thread.
#[derive(Default)]
pub(crate) struct RequestQueue(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    requests: VecDeque<Request>,
    /// Sequences in slots.
    running: usize,
    /// How many there may be, where it is fewer than slots.
    limit: Option<usize>,
    /// The thread's, while it has nothing to do.
    waker: Option<Waker>,
    /// Why the thread ended, if it did; none inside if nobody knows.
    ended: Option<Option<Arc<Error>>>,
}

impl Waiting {
    fn is_below_limit(&self, running: usize) -> bool {
        self.limit.is_none_or(|limit| running < limit)
    }
}

impl RequestQueue {
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

    /// From now on no sequence begins while this many run.
    pub fn limit(&self, running: usize) {
        let mut waiting = self.lock();
        waiting.limit = Some(running);
        let waker = waiting.waker.take();
        drop(waiting);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Returns whether a waiting request may begin beside those that run.
    fn admits(&self, running: usize) -> bool {
        let waiting = self.lock();
        waiting.is_below_limit(running) && !waiting.requests.is_empty()
    }

    /// Why the thread ended, if it did.
    pub fn ended(&self) -> Option<Error> {
        self.lock().ended.clone().map(|cause| cause.map_or_else(stopped, Error::BatchEnded))
    }

    /// Why the thread ended, for who found it gone.
    pub fn cause(&self) -> Error {
        self.ended().unwrap_or_else(stopped)
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
            return Err(Error::Busy {
                running: waiting.running,
                waiting: waiting.requests.len(),
                slots,
                queue,
            });
        }
        waiting.requests.push_back(request);
        let waker = waiting.waker.take();
        drop(waiting);
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }
}

/// A session whose sequences are of different requests.
pub(crate) struct Scheduler {
    session: Session,
    slots: Vec<Slot>,
    request_queue: Arc<RequestQueue>,
    /// Tokens of prompts that are computed between two steps.
    prefill_chunk: usize,
    /// How many requests there were.
    count: u64,
    ahead: Ahead,
}

/// Steps that are submitted and not yet awaited. While any of their sequences is wanted, all are
/// awaited: what a step computes for a sequence that has ended is dropped. No request comes to a
/// slot while there are any.
#[derive(Default)]
struct Ahead {
    /// Whose steps these are.
    slots: Vec<usize>,
    steps: VecDeque<Pending<Vec<u32>>>,
}

#[derive(Default)]
struct Slot {
    request: Option<Request>,
    /// The number of the request that had it last.
    last: u64,
    /// That request's [`GenerateOptions::cache_salt`](crate::model::GenerateOptions::cache_salt).
    salt: Option<Arc<str>>,
    /// Whether the engine can choose its tokens, and has counted them since.
    plan_is_set: bool,
}

impl Slot {
    /// A sequence whose prompt is computed has a token at least.
    fn steps(&self) -> bool {
        self.request.as_ref().is_some_and(|request| request.sequence.chooser.has_chosen())
    }
}

impl Scheduler {
    pub fn new(session: Session, request_queue: Arc<RequestQueue>, prefill_chunk: usize) -> Self {
        let slots = (0..session.options().sequences).map(|_| Slot::default()).collect();
        Self { session, slots, request_queue, prefill_chunk, count: 0, ahead: Ahead::default() }
    }

    /// Serves requests until it is dropped. An error of the device ends it, and fails all requests.
    pub async fn run(mut self) {
        let Err(error) = self.turns().await;
        let cause = Arc::new(error);
        let mut waiting = self.request_queue.lock();
        waiting.ended = Some(Some(cause.clone()));
        let requests: Vec<_> = waiting
            .requests
            .drain(..)
            .chain(self.slots.iter_mut().filter_map(|slot| slot.request.take()))
            .collect();
        drop(waiting);
        requests
            .iter()
            .for_each(|request| request.tokens.send(Err(Error::BatchEnded(cause.clone()))));
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
        let request_queue = self.request_queue.clone();
        poll_fn(|cx| {
            let mut waiting = request_queue.lock();
            for slot in 0..self.slots.len() {
                if self.slots[slot]
                    .request
                    .as_ref()
                    .is_some_and(|request| request.tokens.is_abandoned())
                {
                    self.free(slot);
                }
            }
            if self.slots.iter().all(|slot| slot.request.is_none()) {
                self.ahead.steps.clear();
            }
            while self.ahead.steps.is_empty()
                && self.running() < self.slots.len()
                && waiting.is_below_limit(self.running())
                && let Some(request) = waiting.requests.pop_front()
            {
                self.place(request);
            }
            waiting.running = self.running();
            if waiting.running > 0 {
                return Poll::Ready(());
            }
            waiting.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Sequences in slots.
    fn running(&self) -> usize {
        self.slots.iter().filter(|slot| slot.request.is_some()).count()
    }

    /// Gives a request the free slot of its salt that has most of its prompt already; else that
    /// which was free for longest.
    fn place(&mut self, request: Request) {
        let (prompt, salt) = (request.sequence.chooser.tokens(), request.sequence.chooser.salt());
        let reusable = |slot: usize| if self.slots[slot].salt == salt { prompt } else { &[] };
        let common = |slot: usize| {
            Some(self.session.common(slot, reusable(slot)))
                .filter(|&common| common >= WORTH_KEEPING)
                .unwrap_or(0)
        };
        let free = (0..self.slots.len()).filter(|&slot| self.slots[slot].request.is_none());
        let Some(slot) = free.max_by_key(|&slot| (common(slot), Reverse(self.slots[slot].last)))
        else {
            return;
        };
        let kept = self.session.keep_common(slot, reusable(slot));
        request.cached.store(kept, Ordering::Relaxed);
        self.count += 1;
        self.slots[slot] =
            Slot { request: Some(request), last: self.count, salt, plan_is_set: false };
    }

    /// Computes a chunk of the prompts that are not computed yet: as many tokens of each, those
    /// that came first before others.
    async fn prefill(&mut self) -> Result<()> {
        let mut budget = self.prefill_chunk;
        loop {
            let waits =
                |slot: &usize| self.slots[*slot].request.is_some() && !self.slots[*slot].steps();
            let mut slots: Vec<usize> = (0..self.slots.len()).filter(waits).collect();
            slots.sort_by_key(|&slot| self.slots[slot].last);
            slots.truncate(budget);
            let left: Vec<&[u32]> = slots.iter().map(|&slot| self.left(slot)).collect();
            let Some(shortest) = left.iter().map(|left| left.len()).min() else { return Ok(()) };
            let run = shortest.min(budget / slots.len());
            let tokens: Vec<u32> = left.iter().flat_map(|left| &left[..run]).copied().collect();
            let complete: Vec<bool> = left.iter().map(|left| left.len() == run).collect();
            budget -= tokens.len();
            let ends: Vec<(usize, usize)> =
                slots.iter().copied().enumerate().filter(|(n, _)| complete[*n]).collect();
            if ends.is_empty() {
                self.session.extend(&slots, &tokens, 0).await?;
            } else if ends
                .iter()
                .all(|&(_, slot)| self.chooser(slot).is_some_and(Chooser::is_for_engine))
            {
                self.tell(|slot| ends.iter().any(|&(_, end)| end == slot))?;
                let next = self.session.step_next(&slots, &tokens, 1).await?;
                ends.into_iter().for_each(|(n, slot)| {
                    self.take(slot, |sequence| sequence.chooser.of_engine(next[n]))
                });
            } else {
                let (vocab, mut logits) =
                    (self.session.vocab(), self.session.extend(&slots, &tokens, 1).await?);
                ends.into_iter().for_each(|(n, slot)| {
                    self.take(slot, |sequence| {
                        sequence.chooser.of_logits(&mut logits[n * vocab..][..vocab])
                    })
                });
            }
        }
    }

    /// What chooses the tokens of a slot's sequence.
    fn chooser(&self, slot: usize) -> Option<&Chooser> {
        self.slots[slot].request.as_ref().map(|request| &request.sequence.chooser)
    }

    /// Tells the engine how the sequences that step choose, and those of slots that do from now on,
    /// where it does not know it of all.
    fn tell(&mut self, also: impl Fn(usize) -> bool) -> Result<()> {
        let stepping: Vec<usize> =
            (0..self.slots.len()).filter(|&n| self.slots[n].steps() || also(n)).collect();
        let choosers = stepping.iter().filter_map(|&n| {
            let request = self.slots[n].request.as_ref()?;
            Some((n, &request.sequence.chooser, self.slots[n].plan_is_set))
        });
        if !stepping.iter().all(|&n| self.slots[n].plan_is_set) {
            choose_by(&mut self.session, choosers.clone())?;
        }
        for (n, chooser, _) in choosers {
            self.session.mask(n, chooser.allowed())?;
        }
        stepping.into_iter().for_each(|n| self.slots[n].plan_is_set = true);
        Ok(())
    }

    /// What of a prompt is not computed yet.
    fn left(&self, slot: usize) -> &[u32] {
        let tokens = self.slots[slot]
            .request
            .as_ref()
            .map_or(&[][..], |request| request.sequence.chooser.tokens());
        &tokens[self.session.len(slot)..]
    }

    /// A token for every sequence whose prompt is computed.
    async fn step(&mut self) -> Result<()> {
        if self.ahead.steps.is_empty() {
            let mut live = live(&mut self.slots);
            let slots: Vec<usize> = live.iter().map(|(slot, _)| *slot).collect();
            if slots.is_empty() {
                return Ok(());
            }
            if !live.iter().all(|(_, sequence)| sequence.chooser.is_for_engine()) {
                let chosen = step(&mut self.session, &mut live).await?;
                for (slot, chosen) in slots.into_iter().zip(chosen) {
                    self.slots[slot].plan_is_set = false;
                    self.take(slot, |_| chosen);
                }
                return Ok(());
            }
            let last: Vec<u32> = live.iter().map(|(_, sequence)| sequence.chooser.last()).collect();
            self.tell(|_| false)?;
            let first = self.session.submit_next(&slots, Some(&last))?;
            self.ahead = Ahead { slots, steps: VecDeque::from([first]) };
        }
        self.run_ahead()?;
        let Some(first) = self.ahead.steps.pop_front() else { return Ok(()) };
        let next = first.await?;
        for (slot, id) in self.ahead.slots.clone().into_iter().zip(next) {
            self.take(slot, |sequence| sequence.chooser.of_engine(id));
        }
        Ok(())
    }

    /// Submits steps beyond the one that is awaited, while nobody waits for a slot that is free, or
    /// for a prompt.
    fn run_ahead(&mut self) -> Result<()> {
        let running = self.running();
        if running < self.slots.len() && self.request_queue.admits(running) {
            return Ok(());
        }
        let requests =
            self.slots.iter().enumerate().filter_map(|(n, slot)| Some((n, slot.request.as_ref()?)));
        let (slots, left): (Vec<usize>, Vec<usize>) =
            requests.map(|(n, request)| (n, request.sequence.left())).unzip();
        if slots != self.ahead.slots {
            return Ok(());
        }
        if slots.iter().any(|&slot| self.chooser(slot).is_some_and(|c| c.allowed().is_some())) {
            return Ok(());
        }
        // None goes on after its last token.
        let most = left.into_iter().min().unwrap_or(0).min(1 + self.session.steps_ahead());
        while self.ahead.steps.len() < most && slots.iter().all(|&slot| self.session.room(slot) > 0)
        {
            self.ahead.steps.push_back(self.session.submit_next(&slots, None)?);
        }
        Ok(())
    }

    /// Hands on a token that was chosen, or why there is none. The slot of a sequence that has
    /// ended is free, and keeps its tokens.
    fn take(&mut self, slot: usize, choose: impl FnOnce(&mut Sequence) -> Result<u32>) {
        let capacity = self.session.options().capacity;
        // It may have ended, or been given up, while steps were ahead.
        let Some(Request { sequence, tokens, .. }) = &mut self.slots[slot].request else { return };
        let item = choose(sequence).and_then(|_| {
            let full = sequence.chooser.tokens().len() > capacity;
            Ok((sequence.take(full)?, sequence.stop))
        });
        let ended = item.as_ref().map_or(true, |(_, stop)| stop.is_some());
        tokens.send(item);
        if ended {
            self.free(slot);
        }
    }

    /// Has a slot free again. It keeps the tokens of its sequence but for the last, which was
    /// chosen and not appended.
    fn free(&mut self, slot: usize) {
        let Some(Request { sequence, .. }) = self.slots[slot].request.take() else { return };
        let known = sequence.chooser.tokens();
        if sequence.chooser.has_chosen() {
            self.session.settle(slot, 0, &known[..known.len() - 1]);
        }
    }
}

/// The sequences whose prompts are computed, by their slots.
fn live(slots: &mut [Slot]) -> Vec<(usize, &mut Sequence)> {
    let steps = slots.iter_mut().enumerate().filter(|(_, slot)| slot.steps());
    steps
        .filter_map(|(n, slot)| slot.request.as_mut().map(|request| (n, &mut request.sequence)))
        .collect()
}

/// On drop (also by panic), fails all queued requests.
impl Drop for Scheduler {
    fn drop(&mut self) {
        let mut waiting = self.request_queue.lock();
        waiting.ended.get_or_insert(None);
        waiting.running = 0;
        let requests = std::mem::take(&mut waiting.requests);
        drop(waiting);
        drop(requests);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::ErrorKind,
        gpu::{recording::Recording, tensor::Tensor},
        model::{
            engine::{
                interface::{EngineSession, SessionOptions},
                sampling_plan::SamplingPlan,
            },
            generate::options::GenerateOptions,
            load::model::Model,
            threads::unbounded::{Receiver, unbounded},
        },
        ops::transformer::HostKvCache,
    };

    /// An engine whose device is lost after some calls.
    struct Lost(Box<dyn EngineSession>, usize);

    impl Lost {
        fn call(&mut self) -> Result<()> {
            self.1 = self
                .1
                .checked_sub(1)
                .ok_or_else(|| Error::Readback("the device was lost".into()))?;
            Ok(())
        }
    }

    impl EngineSession for Lost {
        fn len(&self, sequence: usize) -> usize {
            self.0.len(sequence)
        }
        fn truncate(&mut self, sequence: usize, tokens: usize) {
            self.0.truncate(sequence, tokens)
        }
        fn fork(&self) -> Result<Box<dyn EngineSession>> {
            self.0.fork()
        }
        fn read(&self) -> Result<Pending<Vec<Vec<HostKvCache>>>> {
            self.0.read()
        }
        fn write(&mut self, layers: Vec<Vec<HostKvCache>>) -> Result<()> {
            self.0.write(layers)
        }
        fn batch(&self) -> usize {
            self.0.batch()
        }
        fn extend(
            &mut self,
            sequences: &[usize],
            tokens: &[u32],
            rows: usize,
        ) -> Result<Pending<Vec<f32>>> {
            self.call()?;
            self.0.extend(sequences, tokens, rows)
        }
        fn states(
            &mut self,
            sequences: &[usize],
            tokens: &[u32],
            rows: usize,
        ) -> Result<Pending<Vec<f32>>> {
            self.call()?;
            self.0.states(sequences, tokens, rows)
        }
        fn choose_by(&mut self, choice: SamplingPlan) -> Result<()> {
            self.0.choose_by(choice)
        }
        fn mask(&mut self, sequence: usize, mask: Option<&[u32]>) -> Result<()> {
            self.0.mask(sequence, mask)
        }
        fn step_next(
            &mut self,
            sequences: &[usize],
            tokens: Option<&[u32]>,
            rows: usize,
        ) -> Result<Pending<Vec<u32>>> {
            self.call()?;
            self.0.step_next(sequences, tokens, rows)
        }
        fn steps_ahead(&self) -> usize {
            self.0.steps_ahead()
        }
        fn layer_output(&mut self, layer: usize, hidden: &[f32]) -> Result<Pending<Vec<f32>>> {
            self.0.layer_output(layer, hidden)
        }
        fn record(&self, ids: &[u32]) -> Result<(Recording, Tensor<f32>)> {
            self.0.record(ids)
        }
        fn record_step(&mut self, past: usize) -> Result<Recording> {
            self.0.record_step(past)
        }
    }

    fn next(tokens: &Receiver<BatchItem>) -> Option<BatchItem> {
        pollster::block_on(poll_fn(|cx| tokens.poll_next(cx)))
    }

    #[test]
    fn device_errors_reach_every_caller() {
        let model = Model::builder("assets/tales-22m").cpu().build().unwrap();
        let session = model.session(SessionOptions::new(2, 64)).unwrap();
        // Two prompts in one chunk, a step for both, and no more.
        let session = session.with_state(|state| Box::new(Lost(state, 2)));
        let (request_queue, options) =
            (Arc::<RequestQueue>::default(), GenerateOptions::default().ignore_eos(true));
        let enter = || {
            let (tokens, taken) = unbounded();
            let request = Request {
                sequence: model.sequence(0, &[5, 6], &options).unwrap(),
                tokens,
                cached: Arc::default(),
            };
            request_queue.enter(request, 2, 1).map(|()| taken)
        };
        let streams: Vec<_> = (0..3).map(|_| enter().unwrap()).collect();
        assert!(matches!(enter(), Err(Error::Busy { running: 0, waiting: 3, slots: 2, queue: 1 })));
        pollster::block_on(Scheduler::new(session, request_queue.clone(), 16).run());
        for (stream, tokens) in streams.iter().zip([2, 2, 0]) {
            (0..tokens).for_each(|_| assert!(next(stream).unwrap().is_ok()));
            let error = next(stream).unwrap().unwrap_err();
            assert!(
                matches!(&error, Error::BatchEnded(_)) && error.to_string().contains("was lost"),
                "{error}"
            );
            assert_eq!(error.kind(), ErrorKind::Lost);
            assert!(next(stream).is_none());
        }
        assert!(matches!(enter().map(drop), Err(Error::BatchEnded(_))));
        assert_eq!(request_queue.counts(), (0, 0));
    }
}
