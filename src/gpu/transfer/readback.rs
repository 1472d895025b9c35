//! Results on their way to the host: a staging copy, a mapped buffer, a future.

use crate::{
    error::{Error, Result},
    gpu::{
        context::Context,
        device::{poll, scopes::guarded},
        execute::{
            commands::Commands,
            completion_check::{self, CompletionCheck, Expected},
            submissions::SubmissionPart,
        },
        memory::pool::Pooled,
    },
    memory::Footprint,
};
use futures_intrusive::channel::shared::{OneshotReceiver, oneshot_channel};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// A staging buffer that is mapped for reading. Unmapped when dropped, read or not, and only then
/// back in the pool: that is what makes it safe to drop a read future at any time.
pub struct Staging {
    device: wgpu::Device,
    buffer: Arc<Pooled>,
    bytes: u64,
}

impl Staging {
    /// The first `len` elements.
    pub fn to_vec<T: bytemuck::Pod>(&self, len: usize) -> Result<Vec<T>> {
        self.from(0, len)
    }

    /// `len` elements from byte `at` on.
    fn from<T: bytemuck::Pod>(&self, at: usize, len: usize) -> Result<Vec<T>> {
        let view = self
            .buffer
            .slice(..self.bytes)
            .get_mapped_range()
            .map_err(|e| Error::Readback(e.to_string()))?;
        let bytes = &view[at..at + len * size_of::<T>()];
        // One pass over new memory, whose pages cost more than the copy.
        Ok(bytemuck::try_cast_slice(bytes)
            .map_or_else(|_| bytemuck::pod_collect_to_vec(bytes), <[T]>::to_vec))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // A device that was destroyed meanwhile has unmapped it, and wgpu says so.
        let _ = guarded(&self.device, String::new, || self.buffer.unmap());
    }
}

type Receiver = OneshotReceiver<Result<Staging>>;

/// Submits `parts` in order, the last of them together with a copy of `bytes` of a buffer from a
/// byte on. `None` for no bytes.
pub fn read_after(
    context: &Context,
    label: &'static str,
    parts: &[SubmissionPart<'_>],
    source: (&wgpu::Buffer, u64),
    bytes: u64,
) -> impl Future<Output = Result<Option<Staging>>> + Send + use<> {
    let submitted = match bytes {
        0 => context.submit_parts(label, parts).map(|_| None),
        bytes => submit_read(context, label, parts, source, bytes).map(Some),
    };
    async move {
        let Some((receiver, expected)) = submitted? else { return Ok(None) };
        let staging = receiver.receive().await.ok_or_else(poll::unanswered)??;
        if let Some((expected, context)) = expected {
            let words: Vec<u32> =
                staging.from(expected.at(), completion_check::BYTES as usize / 4)?;
            expected
                .unfinished(&words)
                .map_or(Ok(()), |submission| Err(context.unfinished(submission)))?;
        }
        Ok(Some(staging))
    }
}

fn submit_read(
    context: &Context,
    label: &'static str,
    parts: &[SubmissionPart<'_>],
    source: (&wgpu::Buffer, u64),
    bytes: u64,
) -> Result<(Receiver, Option<(Expected, Context)>)> {
    let (bytes, start, log) = (bytes.next_multiple_of(4), Instant::now(), context.trace_log());
    let (check, mut expected) = (context.completion_check(), None);
    let mapped_bytes = bytes + check.map_or(0, |_| completion_check::BYTES);
    let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
    let buffer = context.allocate(mapped_bytes, usage, Footprint::STAGING)?;
    let (sender, receiver) = oneshot_channel();
    // Who comes first answers: the callback, or who waits for it in vain. It fails if the future
    // was dropped: the mapping is undone with the value.
    let sender = Arc::new(Mutex::new(Some(sender)));
    let answer = move |staging| {
        if let Some(sender) = sender.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = sender.send(staging);
        }
    };
    let failed = answer.clone();
    let turn = context.submissions().turn(parts.len());
    let (first, last) = parts.split_at(parts.len().saturating_sub(1));
    first.iter().try_for_each(|part| context.submit_in(&turn, label, part).map(drop))?;
    let mut marking = check.map(|check| CompletionCheck::begin(check, label));
    let submitted = context.submit(label, |encoder| {
        let mut commands = Commands::new(encoder, marking.as_mut());
        last.iter().for_each(|part| part(&mut commands));
        commands.encoder.copy_buffer_to_buffer(source.0, source.1, &buffer, 0, bytes);
        expected = commands.end_read(&buffer, bytes);
        let (device, staging) = (context.device().clone(), buffer.clone());
        encoder.map_buffer_on_submit(
            &buffer,
            wgpu::MapMode::Read,
            0..mapped_bytes,
            move |mapped| {
                if let Some(log) = log {
                    log.read(label, start, bytes);
                }
                answer(match mapped {
                    Ok(()) => Ok(Staging { device, buffer: staging, bytes: mapped_bytes }),
                    Err(error) => Err(Error::Readback(error.to_string())),
                });
            },
        );
    });
    if let (Err(_), Some(marking)) = (&submitted, marking) {
        marking.refused();
    }
    let index = submitted?;
    drop(turn);
    context.watch(index, move |error| failed(Err(error)));
    Ok((receiver, expected.map(|expected| (expected, context.clone()))))
}
