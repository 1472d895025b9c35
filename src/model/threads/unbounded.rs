//! A channel of one sender and one receiver that never makes the sender wait: for items of which
//! there is an end.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

struct Shared<T> {
    items: VecDeque<T>,
    waker: Option<Waker>,
    /// Whether the sender is gone.
    closed: bool,
}

/// Where items are put.
pub(crate) struct Sender<T>(Arc<Mutex<Shared<T>>>);

/// Where they are taken.
pub(crate) struct Receiver<T>(Arc<Mutex<Shared<T>>>);

pub(crate) fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    let shared =
        Arc::new(Mutex::new(Shared { items: VecDeque::new(), waker: None, closed: false }));
    (Sender(shared.clone()), Receiver(shared))
}

fn lock<T>(shared: &Mutex<Shared<T>>) -> MutexGuard<'_, Shared<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Sender<T> {
    pub fn send(&self, item: T) {
        self.change(|shared| shared.items.push_back(item));
    }

    /// Returns whether nobody is left to take items.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    fn change(&self, change: impl FnOnce(&mut Shared<T>)) {
        let mut shared = lock(&self.0);
        change(&mut shared);
        let waker = shared.waker.take();
        drop(shared);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.change(|shared| shared.closed = true);
    }
}

impl<T> Receiver<T> {
    /// The next item; none after the last, when the sender is gone.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut shared = lock(&self.0);
        match shared.items.pop_front() {
            Some(item) => Poll::Ready(Some(item)),
            None if shared.closed => Poll::Ready(None),
            None => {
                shared.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{future::poll_fn, thread, time::Duration};

    #[test]
    fn items_arrive_in_order_before_the_end() {
        let (sender, receiver) = unbounded();
        assert!(!sender.is_abandoned());
        let thread = thread::spawn(move || {
            for i in 0..100 {
                if i % 10 == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
                sender.send(i);
            }
        });
        let next = || pollster::block_on(poll_fn(|cx| receiver.poll_next(cx)));
        assert_eq!((0..100).map(|_| next()).collect::<Option<Vec<_>>>(), Some((0..100).collect()));
        assert_eq!([next(), next()], [None, None]);
        thread.join().unwrap();
    }

    #[test]
    fn the_sender_knows_whether_anybody_takes() {
        let (sender, receiver) = unbounded();
        sender.send(1);
        drop(receiver);
        assert!(sender.is_abandoned());
        sender.send(2);
    }
}
