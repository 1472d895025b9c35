//! Buffers in memory that the processor shares, which it reads and writes in place.

use crate::{
    error::{Error, Result},
    gpu::{
        context::Context,
        device::{poll, scopes::guarded},
        memory::pool::Pooled,
        transfer::readback,
    },
};
use bytemuck::Pod;
use futures_intrusive::channel::shared::oneshot_channel;
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

/// A buffer that the processor has, and the device not. It is the device's again when this is
/// dropped, mapped or not.
pub struct Mapping {
    context: Context,
    buffer: Arc<Pooled>,
    bytes: u64,
}

impl Mapping {
    /// Waits for the work that was submitted before, then maps the first `bytes`, for reading or for
    /// reading and writing. Work on the buffer that is submitted from here on is refused.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a buffer that is mapped already, [`Error::Unfinished`] as reads have
    /// it, and what the device reports.
    pub async fn of(
        context: &Context,
        buffer: &Arc<Pooled>,
        bytes: u64,
        mode: wgpu::MapMode,
    ) -> Result<Self> {
        buffer.begin_map("map")?;
        let mapping = Self { context: context.clone(), buffer: buffer.clone(), bytes };
        if context.completion_check().is_some() {
            readback::read_after(context, "map", &[], (buffer, 0), 4).await?;
        }
        let (sender, receiver) = oneshot_channel();
        // Who comes first answers: the callback, or who waits for it in vain.
        let sender = Arc::new(Mutex::new(Some(sender)));
        let answer = move |mapped: Result<()>| {
            if let Some(sender) = sender.lock().unwrap_or_else(PoisonError::into_inner).take() {
                let _ = sender.send(mapped);
            }
        };
        let failed = answer.clone();
        let index = context.submit_with("map", |commands| {
            // What kernels wrote is to be seen by the host.
            let state = match mode {
                wgpu::MapMode::Read => wgpu::BufferUses::MAP_READ,
                wgpu::MapMode::Write => wgpu::BufferUses::MAP_WRITE,
            };
            let transition = wgpu::BufferTransition { buffer: &***buffer, state };
            commands.encoder.transition_resources([transition].into_iter(), std::iter::empty());
            commands.encoder.map_buffer_on_submit(buffer, mode, 0..bytes, move |mapped| {
                answer(mapped.map_err(|error| Error::Readback(error.to_string())));
            });
        })?;
        context.watch(index, move |error| failed(Err(error)));
        receiver.receive().await.ok_or_else(poll::unanswered)??;
        Ok(mapping)
    }

    /// Calls `read` with the first `len` elements.
    pub fn read<T: Pod, R>(&self, len: usize, read: impl FnOnce(&[T]) -> R) -> Result<R> {
        let view = self.buffer.slice(..self.bytes).get_mapped_range().map_err(unreadable)?;
        let elements = bytemuck::try_cast_slice(&view[..len * size_of::<T>()]);
        Ok(read(elements.map_err(unreadable)?))
    }

    /// Calls `write` with the first `len` elements.
    #[allow(unsafe_code)]
    pub fn write<T: Pod, R>(&self, len: usize, write: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        let mut view =
            self.buffer.slice(..self.bytes).get_mapped_range_mut().map_err(unreadable)?;
        let mut bytes = view.slice(..len * size_of::<T>());
        let first = bytes.as_raw_element_ptr().cast::<T>();
        if !first.is_aligned() {
            return Err(unreadable("the driver's memory is not aligned"));
        }
        // SAFETY: the bytes are mapped, initialized and nobody else's while `view` is there, aligned,
        // and as many as `bytes` was checked for. Any bits are elements (`Pod`).
        let elements = unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), len) };
        let result = write(elements);
        self.buffer.mark_written();
        Ok(result)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A device that was destroyed meanwhile has unmapped it, and wgpu says so.
        let _ = guarded(self.context.device(), String::new, || self.buffer.unmap());
        self.buffer.end_map();
    }
}

/// Maps a buffer that nobody else has for writing, unless the device still works on what it had
/// before. Returns whether it is mapped.
pub fn map_idle(context: &Context, buffer: &wgpu::Buffer) -> Result<bool> {
    let mapped = Arc::new(AtomicBool::new(false));
    let noted = mapped.clone();
    let done = move |result: std::result::Result<(), _>| {
        noted.store(result.is_ok(), Ordering::Release);
    };
    let during = || "mapping memory for an upload".into();
    guarded(context.device(), during, || buffer.map_async(wgpu::MapMode::Write, .., done))?;
    context.progress()?;
    let mapped = mapped.load(Ordering::Acquire);
    if !mapped {
        guarded(context.device(), during, || buffer.unmap())?;
    }
    Ok(mapped)
}

fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::Readback(error.to_string())
}
