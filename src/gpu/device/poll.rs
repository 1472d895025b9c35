//! The thread that waits for the GPU on behalf of futures.

use super::{
    scopes::is_lost,
    sync::{Arc, Mutex, PoisonError, mpsc, thread},
};
use crate::error::{Error, Result};
use futures_intrusive::channel::shared::oneshot_channel;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

/// A device, as those see it who wait for it.
#[derive(Clone)]
pub struct Waits {
    device: wgpu::Device,
    /// The most time that a wait may take.
    limit: Arc<Mutex<Option<Duration>>>,
}

impl Waits {
    pub fn new(device: wgpu::Device, limit: Option<Duration>) -> Self {
        Self { device, limit: Arc::new(Mutex::new(limit)) }
    }

    pub fn limit(&self) -> Option<Duration> {
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_limit(&self, limit: Option<Duration>) {
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = limit;
    }

    /// Waits for a submission, or for all.
    pub fn wait(&self, index: Option<wgpu::SubmissionIndex>) -> Result<()> {
        self.wait_since(index, Instant::now(), self.limit())
    }

    /// Waits, for a time that counts from `since`.
    fn wait_since(
        &self,
        index: Option<wgpu::SubmissionIndex>,
        since: Instant,
        limit: Option<Duration>,
    ) -> Result<()> {
        let timeout = limit.map(|limit| limit.saturating_sub(since.elapsed()));
        self.poll(wgpu::PollType::Wait { submission_index: index, timeout }, limit)
    }

    /// Sees to the callbacks of what is done, without waiting.
    pub fn progress(&self) -> Result<()> {
        self.poll(wgpu::PollType::Poll, None)
    }

    fn poll(&self, poll: wgpu::PollType, limit: Option<Duration>) -> Result<()> {
        let poll = || self.device.poll(poll);
        let during = WAITING.into();
        // wgpu panics where a driver says that the device is gone. Its locks are free then, and all
        // that is done with the device later is refused.
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(wgpu::PollError::Timeout)) => {
                Err(Error::WaitLimit { during, limit: limit.unwrap_or_default() })
            }
            Ok(Err(error)) if !is_lost(&self.device) => {
                Err(Error::Gpu { during, message: error.to_string() })
            }
            Ok(Err(_)) | Err(_) => Err(Error::DeviceLost { during }),
        }
    }
}

/// A thread that waits for submissions whose readback is pending, so that futures complete under
/// any executor. It sleeps while there are none.
pub struct PollThread {
    waits: Waits,
    sender: Option<mpsc::Sender<Wait>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// A submission to wait for, and whom to tell.
struct Wait {
    index: wgpu::SubmissionIndex,
    since: Instant,
    limit: Option<Duration>,
    tell: Box<dyn FnOnce(Result<()>) + Send>,
}

impl PollThread {
    pub fn spawn(waits: Waits) -> Result<Self> {
        let (sender, receiver) = mpsc::channel::<Wait>();
        let on_thread = waits.clone();
        let poll = move || {
            for Wait { index, since, limit, tell } in receiver {
                tell(on_thread.wait_since(Some(index), since, limit));
            }
        };
        let thread =
            thread::Builder::new().name("bitnet-wgpu poll".into()).spawn(poll).map_err(|e| {
                Error::Gpu { during: "starting the poll thread".into(), message: e.to_string() }
            })?;
        Ok(Self { waits, sender: Some(sender), thread: Some(thread) })
    }

    /// Sees to the callbacks of a submission. Where waiting for it fails, they may never be called;
    /// `failed` is.
    pub fn watch(&self, index: wgpu::SubmissionIndex, failed: impl FnOnce(Error) + Send + 'static) {
        let tell = |waited: Result<()>| {
            if let Err(error) = waited {
                failed(error);
            }
        };
        self.send(index, tell);
    }

    /// Completes when a submission is done.
    pub fn done(
        &self,
        index: wgpu::SubmissionIndex,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let (sender, receiver) = oneshot_channel();
        self.send(index, move |waited| drop(sender.send(waited)));
        async move {
            receiver
                .receive()
                .await
                .unwrap_or_else(|| Err(Error::DeviceLost { during: WAITING.into() }))
        }
    }

    fn send(&self, index: wgpu::SubmissionIndex, tell: impl FnOnce(Result<()>) + Send + 'static) {
        if let Some(sender) = &self.sender {
            // Fails only if the thread died; then the readers' channels close and say so.
            let _ = sender.send(Wait {
                index,
                since: Instant::now(),
                limit: self.waits.limit(),
                tell: Box::new(tell),
            });
        }
    }

    /// Has nobody wait for the thread, which waits for a device that does not answer, perhaps
    /// without a limit.
    pub fn leave(&mut self) {
        self.thread = None;
    }
}

const WAITING: &str = "waiting for the GPU";

/// The error of a read whose callback was never called.
pub fn unanswered() -> Error {
    Error::DeviceLost { during: "a readback".into() }
}

impl Drop for PollThread {
    fn drop(&mut self) {
        self.sender = None;
        // A device must not outlive the program's last thread; but the thread itself may drop the
        // last context.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
