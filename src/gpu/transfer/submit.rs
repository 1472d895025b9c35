//! How work reaches the queue: in turns and parts, marked so that a read can check that it was
//! finished, traced and captured.

use crate::{
    error::{Error, Result},
    gpu::{
        context::Context,
        device::{capture::Captures, scopes::guarded},
        execute::{
            commands::Commands,
            completion_check::{COMPLETION, CompletionCheck},
            submissions::{SubmissionPart, Turn, likely_cause},
        },
    },
    kernel::declaration::KernelRef,
    spans::span,
};
use std::sync::Arc;

impl Context {
    /// Has reads on this device, by any context on it, check from here on whether the GPU finished
    /// what was submitted before them. Metal does not report where a kernel faults, runs for too
    /// long or lacks memory: tensors then keep what they had, and a read returns that. With the
    /// check it returns [`Error::Unfinished`], with the label of the first such submission among
    /// the last 64, its own included. Loading a model turns it on for a
    /// device on Metal.
    ///
    /// It costs one small dispatch per compute pass, and 260 bytes per read. Threads that submit at
    /// the same time take turns. Not checked: what an app submits itself, profiles and traces, and
    /// kernels that fault without being stopped. [`Context::recover`] turns it on again for the new
    /// device.
    ///
    /// ```
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// use bitnet_wgpu::{Context, tensor};
    ///
    /// let context = pollster::block_on(Context::new())?;
    /// context.check_submissions()?;
    /// let x = context.upload(&[1.0f32, -2.0, 3.0], [3])?;
    /// let mut encoder = context.encoder("relu²");
    /// let y = tensor::relu2(&x).forward(&mut encoder)?;
    /// encoder.submit()?;
    /// assert_eq!(pollster::block_on(y.read())?, [1.0, 0.0, 9.0]); // or an error: the GPU did not finish `relu²`
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// What the device reports.
    pub fn check_submissions(&self) -> Result<()> {
        if self.completion_check().is_none() {
            let pipeline = self.pipeline(&KernelRef::Static(&COMPLETION), Vec::new())?;
            let check = Arc::new(CompletionCheck::new(self.device(), pipeline)?);
            self.submissions().check.get_or_init(|| check);
        }
        Ok(())
    }

    /// Turns on [`Context::check_submissions`] where the system does not report work that it
    /// stopped, as Metal does not.
    #[cfg(feature = "models")]
    pub(crate) fn check_unreported_submissions(&self) -> Result<()> {
        if self.capabilities().backend == wgpu::Backend::Metal {
            self.check_submissions()
        } else {
            Ok(())
        }
    }

    /// The check of submissions, where it is on.
    pub(crate) fn completion_check(&self) -> Option<&Arc<CompletionCheck>> {
        self.submissions().check.get()
    }

    /// The error of a submission that was not finished, with the cause that is likely by what
    /// memory is in use.
    pub(crate) fn unfinished(&self, submission: &'static str) -> Error {
        Error::Unfinished {
            submission,
            cause: likely_cause(self.memory_stats().live_bytes, self.memory_bytes()),
        }
    }

    /// Submits what `record` records.
    pub(crate) fn submit_with(
        &self,
        label: &'static str,
        record: impl FnOnce(&mut Commands<'_, '_>),
    ) -> Result<wgpu::SubmissionIndex> {
        self.submit_in(&self.submissions().turn(1), label, record)
    }

    /// Submits parts in order, one by one, with no other submission between them.
    pub(crate) fn submit_parts(
        &self,
        label: &'static str,
        parts: &[SubmissionPart<'_>],
    ) -> Result<wgpu::SubmissionIndex> {
        let turn = self.submissions().turn(parts.len());
        let Some((last, first)) = parts.split_last() else {
            return self.submit_in(&turn, label, |_| ());
        };
        first.iter().try_for_each(|part| self.submit_in(&turn, label, part).map(drop))?;
        self.submit_in(&turn, label, last)
    }

    pub(crate) fn submit_in(
        &self,
        _: &Turn<'_>,
        label: &'static str,
        record: impl FnOnce(&mut Commands<'_, '_>),
    ) -> Result<wgpu::SubmissionIndex> {
        let mut marking = self.completion_check().map(|check| check.begin(label));
        let submitted = self.submit(label, |encoder| {
            let mut commands = Commands::new(encoder, marking.as_mut());
            record(&mut commands);
            commands.end();
        });
        if let (Err(_), Some(marking)) = (&submitted, marking) {
            marking.refused();
        }
        submitted
    }

    /// Has submissions captured from here on, which are counted from the next.
    pub(crate) fn capture(&self, captures: Captures) {
        self.submissions().captures.get_or_init(|| captures);
    }

    /// Submits what `record` puts into a command encoder, in a turn.
    pub(crate) fn submit(
        &self,
        label: &'static str,
        record: impl FnOnce(&mut wgpu::CommandEncoder),
    ) -> Result<wgpu::SubmissionIndex> {
        let device = self.device();
        let encode = || {
            let mut encoder = device
                .create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some(label) });
            record(&mut encoder);
            self.queue().submit([encoder.finish()])
        };
        span!("submit", label);
        let log = self.trace_log();
        let _call = self.traced("submit", label, None);
        let captured = || match self.submissions().captures.get() {
            Some(captures) => captures.around(device, label, encode),
            None => encode(),
        };
        let submitted = guarded(device, || format!("`{label}`"), captured);
        match (&submitted, log) {
            // So that a trace has the time when the host can know that it is done.
            (Ok(index), Some(log)) => self.watch(index.clone(), move |error| log.fail(error)),
            // What was refused will not be done.
            (Err(_), Some(log)) => log.refuse(label),
            _ => {}
        }
        submitted
    }
}
