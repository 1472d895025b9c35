//! Uploads of many bytes, as streams: through a few staging buffers, each of which the host fills
//! while the device copies those before it, or into the buffer itself, where the host reaches it.

use crate::{
    error::{Error, Result},
    gpu::{
        context::Context,
        device::scopes::{guarded, is_lost},
        trace::Call,
    },
};
use std::{collections::VecDeque, time::Instant};

/// Bytes of a staging buffer.
const STAGE: usize = 1 << 20;

/// How many there are at most.
const STAGES: usize = 4;

/// Bytes on their way into a buffer, from its beginning on, which nobody reads or writes meanwhile.
pub struct UploadStream<'a> {
    context: &'a Context,
    to: &'a wgpu::Buffer,
    /// Whether it is mapped, so that the host writes to it and no staging buffer is needed. It is
    /// unmapped at the end.
    in_place: bool,
    /// Bytes of its staging buffers.
    size: usize,
    _call: Option<Call>,
    /// Where the staging buffer that is filled goes.
    at: u64,
    filled: Option<Stage>,
    /// Those that are copied, and mapped again after that.
    copied: VecDeque<(wgpu::Buffer, wgpu::SubmissionIndex)>,
}

/// A staging buffer that is mapped, and has this many bytes.
struct Stage {
    buffer: wgpu::Buffer,
    view: wgpu::BufferViewMut,
    bytes: usize,
    start: Instant,
}

impl<'a> UploadStream<'a> {
    /// A stream of `bytes` in all, into a buffer that is mapped (`in_place`), or by way of staging
    /// buffers.
    pub fn new(context: &'a Context, to: &'a wgpu::Buffer, in_place: bool, bytes: usize) -> Self {
        let words = bytes.next_multiple_of(4);
        let (size, call) =
            (if in_place { words } else { words.min(STAGE) }, context.uploading(bytes as u64));
        Self {
            context,
            to,
            in_place,
            size,
            _call: call,
            at: 0,
            filled: None,
            copied: VecDeque::new(),
        }
    }

    /// The next bytes. Waits for the device where as many as there may be are on their way.
    pub fn push(&mut self, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() && self.context.plan().is_none() {
            let mut stage = match self.filled.take() {
                Some(stage) => stage,
                None => self.stage()?,
            };
            let (now, later) = data.split_at(data.len().min(self.size - stage.bytes));
            stage.put(now);
            let full = stage.bytes == self.size;
            self.filled = Some(stage);
            if full {
                self.flush()?;
            }
            data = later;
        }
        Ok(())
    }

    /// Has the device copy what has been filled, in whole words: after the last byte come zeros.
    /// What was written in place is handed over.
    pub fn flush(&mut self) -> Result<()> {
        let Some(mut stage) = self.filled.take() else { return Ok(()) };
        stage.put(&[0; 3][..stage.bytes.next_multiple_of(4) - stage.bytes]);
        let Stage { buffer, view, bytes, start } = stage;
        drop(view);
        if std::mem::take(&mut self.in_place) {
            return guarded(self.context.device(), || STAGING.into(), || buffer.unmap());
        }
        let (bytes, log) = (bytes as u64, self.context.trace_log());
        let index = self.context.submit_with("upload", |commands| {
            let encoder = &mut *commands.encoder;
            buffer.unmap();
            encoder.copy_buffer_to_buffer(&buffer, 0, self.to, self.at, bytes);
            encoder.map_buffer_on_submit(
                &buffer,
                wgpu::MapMode::Write,
                0..self.size as u64,
                move |_| {
                    if let Some(log) = log {
                        log.uploaded(start, bytes);
                    }
                },
            );
        })?;
        self.at += bytes;
        self.copied.push_back((buffer, index));
        Ok(())
    }

    /// A staging buffer to be filled: a new one, or the one that has been on its way longest.
    fn stage(&mut self) -> Result<Stage> {
        let device = self.context.device();
        let first = if self.copied.len() < STAGES { None } else { self.copied.pop_front() };
        let buffer = match first {
            Some((buffer, index)) => {
                // Who waits has it mapped, unless that failed.
                self.context.wait(index)?;
                buffer
            }
            None if self.in_place => self.to.clone(),
            None => {
                let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
                let descriptor = wgpu::BufferDescriptor {
                    label: Some("upload"),
                    size: self.size as u64,
                    usage,
                    mapped_at_creation: true,
                };
                guarded(device, || STAGING.into(), || device.create_buffer(&descriptor))?
            }
        };
        let view =
            guarded(device, || STAGING.into(), || buffer.get_mapped_range_mut(..self.size as u64))?;
        // wgpu has no complaint of a buffer that it makes on a device that is gone, but that has no
        // memory.
        let view = view.map_err(|error| match is_lost(device) {
            true => Error::DeviceLost { during: STAGING.into() },
            false => Error::Gpu { during: STAGING.into(), message: error.to_string() },
        })?;
        Ok(Stage { buffer, view, bytes: 0, start: Instant::now() })
    }
}

/// A buffer that is given up half-way may be another's next.
impl Drop for UploadStream<'_> {
    fn drop(&mut self) {
        if self.in_place {
            self.filled = None;
            let _ = guarded(self.context.device(), || STAGING.into(), || self.to.unmap());
        }
    }
}

impl Stage {
    fn put(&mut self, data: &[u8]) {
        self.view.slice(self.bytes..self.bytes + data.len()).copy_from_slice(data);
        self.bytes += data.len();
    }
}

const STAGING: &str = "staging an upload";
