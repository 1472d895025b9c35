//! Threads that compute on behalf of futures, so that an executor's own threads never do.

use crate::error::{Error, Result};
use futures_intrusive::channel::shared::{OneshotSender, oneshot_channel};
use std::{
    convert::Infallible,
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
    thread::{self, JoinHandle},
};

/// The threads of a model. The last owner waits for them: none outlives the model and the work that
/// was begun with it, since a driver may not stand being used while the process ends.
#[derive(Default)]
pub(crate) struct Workers(Mutex<Vec<JoinHandle<()>>>);

/// Work on a thread of its own. Dropped, it is given up: what it computes at the moment is
/// finished, and nothing after it is begun.
pub(crate) struct Work {
    /// Closes when dropped, before `workers` is.
    _alive: OneshotSender<Infallible>,
    _workers: Arc<Workers>,
}

impl Workers {
    /// Runs `work` on a thread of its own, as long as it is kept.
    pub fn spawn(
        self: &Arc<Self>,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Work> {
        let (alive, dropped) = oneshot_channel::<Infallible>();
        let run = move || {
            let (mut work, mut dropped) = (pin!(work), pin!(dropped.receive()));
            pollster::block_on(poll_fn(|cx| match dropped.as_mut().poll(cx) {
                Poll::Ready(_) => Poll::Ready(()),
                Poll::Pending => work.as_mut().poll(cx),
            }));
        };
        let thread = thread::Builder::new().name("bitnet-wgpu model".into()).spawn(run);
        let thread = thread.map_err(|e| Error::Gpu {
            during: "starting a thread for the model".into(),
            message: e.to_string(),
        })?;
        let mut threads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(Work { _alive: alive, _workers: self.clone() })
    }

    /// The result of `work`, which begins at once on a thread of its own; dropped, the work is
    /// given up.
    pub fn run<T: Send + 'static, W: Future<Output = Result<T>> + Send + 'static>(
        self: &Arc<Self>,
        work: W,
    ) -> impl Future<Output = Result<T>> + Send + 'static + use<T, W> {
        let (sender, receiver) = oneshot_channel();
        // Sending fails only if nobody waits any more.
        let work = self.spawn(async move { drop(sender.send(work.await)) });
        async move {
            let _work = work?;
            receiver.receive().await.unwrap_or_else(|| Err(stopped()))
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for thread in self.0.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // A panic on it was reported by whoever waited for its result.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

/// The thread ended without a result.
pub(crate) fn stopped() -> Error {
    Error::Gpu {
        during: "a model's work".into(),
        message: "its thread panicked; the panic's message says why".into(),
    }
}

/// Lets other work of this thread's executor go first: computing on the CPU never waits for
/// anything.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        future::pending,
        sync::atomic::{AtomicUsize, Ordering},
    };

    /// Tells its owner that it was dropped.
    fn token() -> (Arc<()>, std::sync::Weak<()>) {
        let token = Arc::new(());
        let weak = Arc::downgrade(&token);
        (token, weak)
    }

    #[test]
    fn results_come_back() {
        let workers = Arc::new(Workers::default());
        assert_eq!(pollster::block_on(workers.run(async { Ok(7) })).unwrap(), 7);
        let panicked = pollster::block_on(
            workers.run(async { if true { panic!("on purpose") } else { Ok(()) } }),
        );
        assert!(
            matches!(panicked, Err(Error::Gpu { message, .. }) if message.contains("panicked"))
        );
    }

    #[test]
    fn what_is_dropped_is_given_up() {
        // Work that waits for something that never comes.
        let workers = Arc::new(Workers::default());
        let (owned, weak) = token();
        let work = workers.spawn(async move {
            let _owned = owned;
            pending().await
        });
        drop((work, workers));
        assert!(weak.upgrade().is_none(), "the thread has ended and dropped its work");

        // Work that never waits, but yields.
        let workers = Arc::new(Workers::default());
        let steps = Arc::new(AtomicUsize::new(0));
        let (owned, weak) = token();
        let counted = steps.clone();
        let work = workers.run::<(), _>(async move {
            let _owned = owned;
            loop {
                counted.fetch_add(1, Ordering::SeqCst);
                yield_now().await;
            }
        });
        while steps.load(Ordering::SeqCst) < 10 {
            thread::yield_now();
        }
        drop((work, workers));
        assert!(weak.upgrade().is_none());
    }
}
