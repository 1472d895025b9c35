//! Results on their way to the host: a staging copy, a mapped buffer, a future, and the thread that drives them.

use crate::{Context, Error, Result, pool::Pooled};
use futures_intrusive::channel::shared::{OneshotReceiver, oneshot_channel};
use std::{
    sync::{Arc, mpsc},
    thread,
};

/// A thread that waits for submissions whose readback is pending, so that futures complete under any executor. It sleeps
/// while there are none.
pub(crate) struct PollThread {
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

/// A staging buffer that is mapped for reading. Unmapped when dropped, read or not, and only then back in the pool: that
/// is what makes it safe to drop a read future at any time.
pub(crate) struct Staging {
    buffer: Arc<Pooled>,
    bytes: u64,
}

impl Staging {
    /// The first `len` elements.
    pub fn to_vec<T: bytemuck::Pod>(&self, len: usize) -> Result<Vec<T>> {
        let view = self.buffer.slice(..self.bytes).get_mapped_range().map_err(|e| Error::Readback(e.to_string()))?;
        let mut data = vec![T::zeroed(); len];
        bytemuck::cast_slice_mut(&mut data).copy_from_slice(&view[..len * size_of::<T>()]);
        Ok(data)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.buffer.unmap();
    }
}

type Receiver = OneshotReceiver<std::result::Result<Staging, String>>;

/// Submits what `record` puts into a command encoder and, after it, a copy of the first `bytes` of `source`; `None` for no bytes.
pub(crate) fn read_after(
    context: &Context,
    label: &'static str,
    record: &dyn Fn(&mut wgpu::CommandEncoder),
    source: &wgpu::Buffer,
    bytes: u64,
) -> impl Future<Output = Result<Option<Staging>>> + Send + use<> {
    let submitted = match bytes {
        0 => context.submit_with(label, record).map(|_| None),
        bytes => submit_read(context, label, record, source, bytes).map(Some),
    };
    async move {
        let Some(receiver) = submitted? else { return Ok(None) };
        let staging = receiver.receive().await.ok_or_else(|| Error::Readback("the device was lost".into()))?;
        staging.map(Some).map_err(Error::Readback)
    }
}

fn submit_read(
    context: &Context,
    label: &'static str,
    record: &dyn Fn(&mut wgpu::CommandEncoder),
    source: &wgpu::Buffer,
    bytes: u64,
) -> Result<Receiver> {
    let bytes = bytes.next_multiple_of(4);
    let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
    let buffer = context.allocate(bytes, usage, "readback")?;
    let (sender, receiver) = oneshot_channel();
    let index = context.submit_with(label, |encoder| {
        record(encoder);
        encoder.copy_buffer_to_buffer(source, 0, &buffer, 0, bytes);
        let staging = buffer.clone();
        encoder.map_buffer_on_submit(&buffer, wgpu::MapMode::Read, 0..bytes, move |mapped| {
            let result = match mapped {
                Ok(()) => Ok(Staging { buffer: staging, bytes }),
                Err(error) => Err(error.to_string()),
            };
            // Fails if the future was dropped: the mapping is undone with the value.
            let _ = sender.send(result);
        });
    })?;
    context.watch(index);
    Ok(receiver)
}
