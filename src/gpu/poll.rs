//! The thread that waits for the GPU on behalf of futures.

use crate::error::{Error, Result};
use std::{sync::mpsc, thread};

/// A thread that waits for submissions whose readback is pending, so that futures complete under any executor. It sleeps
/// while there are none.
pub struct PollThread {
    sender: Option<mpsc::Sender<wgpu::SubmissionIndex>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl PollThread {
    pub fn spawn(device: wgpu::Device) -> Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let poll = move || {
            for index in receiver {
                if let Err(error) = device.poll(wgpu::PollType::Wait { submission_index: Some(index), timeout: None }) {
                    log::error!("waiting for the GPU: {error}");
                }
            }
        };
        let thread = thread::Builder::new()
            .name("bitnet-wgpu poll".into())
            .spawn(poll)
            .map_err(|e| Error::Gpu { during: "starting the poll thread".into(), message: e.to_string() })?;
        Ok(Self { sender: Some(sender), thread: Some(thread) })
    }

    pub fn watch(&self, index: wgpu::SubmissionIndex) {
        if let Some(sender) = &self.sender {
            // Fails only if the thread died; then the readers' channels close and say so.
            let _ = sender.send(index);
        }
    }
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
