//! The thread that waits for the GPU on behalf of futures.

use crate::error::{Error, Result};
use futures_intrusive::channel::shared::{OneshotSender, oneshot_channel};
use std::{sync::mpsc, thread};

/// A thread that waits for submissions whose readback is pending, so that futures complete under any executor. It sleeps
/// while there are none.
pub struct PollThread {
    sender: Option<mpsc::Sender<Wait>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// A submission to wait for, and whom to tell.
struct Wait {
    index: wgpu::SubmissionIndex,
    done: Option<OneshotSender<Result<()>>>,
}

impl PollThread {
    pub fn spawn(device: wgpu::Device) -> Result<Self> {
        let (sender, receiver) = mpsc::channel::<Wait>();
        let poll = move || {
            for Wait { index, done } in receiver {
                let waited = device.poll(wgpu::PollType::Wait { submission_index: Some(index), timeout: None });
                match (waited, done) {
                    (waited, Some(done)) => drop(done.send(waited.map(drop).map_err(failed))),
                    (Err(error), None) => log::error!("waiting for the GPU: {error}"),
                    _ => {}
                }
            }
        };
        let thread = thread::Builder::new()
            .name("bitnet-wgpu poll".into())
            .spawn(poll)
            .map_err(|e| Error::Gpu { during: "starting the poll thread".into(), message: e.to_string() })?;
        Ok(Self { sender: Some(sender), thread: Some(thread) })
    }

    /// Sees to the callbacks of a submission.
    pub fn watch(&self, index: wgpu::SubmissionIndex) {
        self.send(Wait { index, done: None });
    }

    /// Completes when a submission is done.
    pub fn done(&self, index: wgpu::SubmissionIndex) -> impl Future<Output = Result<()>> + Send + use<> {
        let (sender, receiver) = oneshot_channel();
        self.send(Wait { index, done: Some(sender) });
        async move { receiver.receive().await.unwrap_or_else(|| Err(Error::Readback("the device was lost".into()))) }
    }

    fn send(&self, wait: Wait) {
        if let Some(sender) = &self.sender {
            // Fails only if the thread died; then the readers' channels close and say so.
            let _ = sender.send(wait);
        }
    }
}

/// The error of a wait.
pub fn failed(error: wgpu::PollError) -> Error {
    Error::Gpu { during: "waiting for the GPU".into(), message: error.to_string() }
}

impl Drop for PollThread {
    fn drop(&mut self) {
        self.sender = None;
        // A device must not outlive the program's last thread; but the thread itself may drop the last context.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
