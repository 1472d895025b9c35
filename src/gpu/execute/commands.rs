//! What a submission is recorded into: wgpu's command encoder, and the marks of a
//! [`CompletionCheck`](super::completion_check::CompletionCheck).

use super::completion_check::{Expected, Marking};

/// The most compute passes of a submission. On Metal a pass is two command buffers, and wgpu loses
/// the device at 4096 that are made and not submitted.
pub const MOST_PASSES: usize = 1000;

/// A command encoder whose compute passes end with a mark, where submissions are checked.
pub struct Commands<'a, 'check> {
    pub encoder: &'a mut wgpu::CommandEncoder,
    marking: Option<&'a mut Marking<'check>>,
}

impl<'a, 'check> Commands<'a, 'check> {
    pub fn new(
        encoder: &'a mut wgpu::CommandEncoder,
        marking: Option<&'a mut Marking<'check>>,
    ) -> Self {
        Self { encoder, marking }
    }

    /// Records a compute pass. Passes that are timed begin on [`Commands::encoder`] instead, since
    /// a mark would be in their time.
    pub fn pass(
        &mut self,
        descriptor: &wgpu::ComputePassDescriptor<'_>,
        record: impl FnOnce(&mut wgpu::ComputePass<'_>),
    ) {
        let mut pass = self.encoder.begin_compute_pass(descriptor);
        record(&mut pass);
        if let Some(marking) = &mut self.marking {
            marking.end_pass(&mut pass);
        }
    }

    /// Ends a submission that reads nothing.
    pub fn end(self) {
        if let Some(marking) = self.marking {
            marking.end(self.encoder);
        }
    }

    /// Ends a submission that copies to a staging buffer, whose bytes from `at` on are for the
    /// marks.
    pub fn end_read(self, staging: &wgpu::Buffer, at: u64) -> Option<Expected> {
        self.marking.map(|marking| marking.read(self.encoder, staging, at))
    }
}
