//! Detects submissions that the GPU did not finish without an error: Metal stops a command
//! buffer whose kernel faults, runs for too long or lacks memory, and wgpu does not report it. So
//! the last dispatch of each compute pass writes a word of its submission to a log on the device.
//! wgpu gives each pass a command buffer of its own on Metal, so that a copy after the pass would
//! prove nothing. A read brings the log with it and compares the words.

use crate::{
    error::{Error, Result},
    gpu::{compile::pipeline::Pipeline, device::scopes::guarded},
    kernel::{
        binding::{Type::U32, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    params, wgsl,
};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// All kernels of this file.
pub static KERNELS: &[&Kernel] = &[&COMPLETION];

params! { struct Params { place: u32, word: u32, first: u32 } }

/// Writes a word to a place of the log in the first pass of a submission, and adds 1 to it in each
/// pass that follows.
pub static COMPLETION: Kernel = Kernel::trusted(
    "completion",
    Params::FIELDS,
    &[read_write("log", U32)],
    &[Source::wgsl(wgsl!["measure/completion"]).workgroup_size([1, 1, 1])],
);

/// Number of submissions that the log has room for: the last ones.
const PLACES: u64 = 64;

/// Number of words. Many more than places, so that a place has another word each time.
const WORDS: u64 = 1024;

/// Bytes that a read needs for its own word and the log.
pub const BYTES: u64 = 4 + 4 * PLACES;

/// The words of a device, and its log.
pub struct CompletionCheck {
    words: wgpu::Buffer,
    log: wgpu::Buffer,
    pipeline: Arc<Pipeline>,
    bind_group: wgpu::BindGroup,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// The submissions in the log that no read has checked, in submission order.
    unread: VecDeque<Sent>,
}

/// A submission whose end is in the log.
#[derive(Clone, Copy)]
struct Sent {
    number: u64,
    label: &'static str,
    passes: u32,
}

/// A submission that is being made. The next one begins when this is dropped, so that numbers
/// follow the order of the queue.
pub struct Marking<'a> {
    check: &'a Arc<CompletionCheck>,
    state: MutexGuard<'a, State>,
    sent: Sent,
}

/// The words that a read must find.
pub struct Expected {
    check: Arc<CompletionCheck>,
    /// Byte of the staging buffer where they begin.
    at: u64,
    own: Sent,
    before: Vec<Sent>,
}

/// The word of a submission; what is left over in a buffer is another.
fn word(number: u64) -> u32 {
    ((number % WORDS) as u32 + 1).wrapping_mul(0x9e37_79b1)
}

impl Sent {
    fn place(self) -> u64 {
        self.number % PLACES
    }

    /// The word in the log after its last pass.
    fn expected(self) -> u32 {
        word(self.number).wrapping_add(self.passes.saturating_sub(1))
    }
}

impl CompletionCheck {
    /// A log and its words on a device; `pipeline` is that of [`COMPLETION`].
    pub fn new(device: &wgpu::Device, pipeline: Arc<Pipeline>) -> Result<Self> {
        use wgpu::BufferUsages as Usage;
        const MAKING: &str = "making the completion log";
        let buffer = |size, usage, mapped| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("completion"),
                size,
                usage,
                mapped_at_creation: mapped,
            })
        };
        let make = || {
            let words = buffer(4 * WORDS, Usage::COPY_DST | Usage::COPY_SRC, true);
            let all: Vec<u32> = (0..WORDS).map(word).collect();
            let written = words
                .slice(..)
                .get_mapped_range_mut()
                .map(|mut view| view.copy_from_slice(bytemuck::cast_slice(&all)));
            words.unmap();
            let log = buffer(4 * PLACES, Usage::STORAGE | Usage::COPY_DST | Usage::COPY_SRC, false);
            let entries = [wgpu::BindGroupEntry { binding: 0, resource: log.as_entire_binding() }];
            let descriptor = wgpu::BindGroupDescriptor {
                label: Some("completion"),
                layout: &pipeline.layout,
                entries: &entries,
            };
            let bind_group = device.create_bind_group(&descriptor);
            written.map(|()| (words, bind_group, log))
        };
        let made = guarded(device, || MAKING.into(), make)?;
        let (words, bind_group, log) =
            made.map_err(|error| Error::Gpu { during: MAKING.into(), message: error.to_string() })?;
        Ok(Self { words, log, pipeline, bind_group, state: Mutex::default() })
    }

    /// Begins a submission. No other is made before it ends, so keep it short.
    pub fn begin(self: &Arc<Self>, label: &'static str) -> Marking<'_> {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        // What had this place before is overwritten.
        while state.unread.front().is_some_and(|first| first.number + PLACES <= number) {
            state.unread.pop_front();
        }
        Marking { check: self, state, sent: Sent { number, label, passes: 0 } }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in a critical section can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Marking<'_> {
    /// Records the last dispatch of a pass.
    pub fn end_pass(&mut self, pass: &mut wgpu::ComputePass<'_>) {
        let Sent { number, passes, .. } = self.sent;
        let params = Params {
            place: self.sent.place() as u32,
            word: word(number),
            first: u32::from(passes == 0),
        };
        pass.set_pipeline(&self.check.pipeline.raw);
        pass.set_immediates(0, bytemuck::cast_slice(&params.words()));
        pass.set_bind_group(0, &self.check.bind_group, &[]);
        pass.dispatch_workgroups(1, 1, 1);
        self.sent.passes += 1;
    }

    fn copy(&self, encoder: &mut wgpu::CommandEncoder, buffer: &wgpu::Buffer, at: u64) {
        encoder.copy_buffer_to_buffer(
            &self.check.words,
            4 * (self.sent.number % WORDS),
            buffer,
            at,
            4,
        );
    }

    /// Ends a submission that reads nothing. One without a pass has only copies, and a copy marks
    /// its end.
    pub fn end(&mut self, encoder: &mut wgpu::CommandEncoder) {
        if self.sent.passes == 0 {
            self.copy(encoder, &self.check.log, 4 * self.sent.place());
        }
        self.state.unread.push_back(self.sent);
    }

    /// Ends a submission that copies to a staging buffer: [`BYTES`] from `at` on.
    pub fn read(
        &mut self,
        encoder: &mut wgpu::CommandEncoder,
        staging: &wgpu::Buffer,
        at: u64,
    ) -> Expected {
        if self.sent.passes > 0 {
            self.state.unread.push_back(self.sent);
        }
        let before: Vec<_> = self.state.unread.iter().copied().collect();
        if !before.is_empty() {
            encoder.copy_buffer_to_buffer(&self.check.log, 0, staging, at + 4, 4 * PLACES);
        }
        self.copy(encoder, staging, at);
        Expected { check: self.check.clone(), at, own: self.sent, before }
    }

    /// Takes back a submission that was refused: the device will not run it.
    pub fn refused(mut self) {
        let number = self.sent.number;
        self.state.unread.retain(|sent| sent.number != number);
    }
}

impl Expected {
    /// Byte of the staging buffer where [`BYTES`] of them begin.
    pub fn at(&self) -> usize {
        self.at as usize
    }

    /// The label of the first submission that was not finished, by the words that were read. It is
    /// reported to the reads that saw it, and not again.
    pub fn unfinished(&self, words: &[u32]) -> Option<&'static str> {
        let number = self.own.number;
        self.check.state().unread.retain(|other| other.number > number);
        let lost =
            self.before.iter().find(|sent| words[1 + sent.place() as usize] != sent.expected());
        lost.or((words[0] != word(number)).then_some(&self.own)).map(|sent| sent.label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Context, Tensor,
        error::ErrorKind,
        gpu::{memory::pool::Pooled, setup::noop},
        tensor,
    };
    use pollster::block_on;

    /// A device that copies and runs no kernel: like Metal where it stops each pass. `finish` does
    /// what the last dispatch of a pass would.
    fn context() -> (Context, Arc<CompletionCheck>) {
        let context = noop::context();
        context.check_submissions().unwrap();
        let check = context.completion_check().unwrap().clone();
        (context, check)
    }

    fn finish(context: &Context, check: &CompletionCheck, number: u64, passes: u32) {
        let sent = Sent { number, label: "", passes };
        context.queue().write_buffer(
            &check.log,
            4 * sent.place(),
            bytemuck::bytes_of(&sent.expected()),
        );
    }

    fn unfinished<T: std::fmt::Debug>(result: Result<T>) -> &'static str {
        match result {
            Err(error @ Error::Unfinished { submission, .. })
                if error.kind() == ErrorKind::Lost =>
            {
                submission
            }
            other => panic!("{other:?}"),
        }
    }

    fn submit(context: &Context, x: &Tensor<f32>, label: &'static str) {
        let mut encoder = context.encoder(label);
        tensor::mul(x, x).forward(&mut encoder).unwrap();
        encoder.submit().unwrap();
    }

    #[test]
    fn unfinished_submissions_are_reported_once_by_name() {
        let (context, check) = context();
        let x = context.upload(&[1f32, 2.0], [2]).unwrap();
        let read = || block_on(x.read());
        for round in 0..3 * WORDS {
            submit(&context, &x, "first");
            submit(&context, &x, "second");
            let next = check.state().next;
            // What is not finished leaves what was there: at last the word of an earlier
            // submission.
            let lost = round % 3;
            (lost..2).for_each(|i| finish(&context, &check, next - 2 + [1, 0][i as usize], 1));
            match lost {
                0 => assert_eq!(read().unwrap(), [1.0, 2.0]),
                1 => assert_eq!(unfinished(read()), "second"),
                _ => assert_eq!(unfinished(read()), "first"),
            }
            assert_eq!(read().unwrap(), [1.0, 2.0], "it is reported once");
        }
    }

    #[test]
    fn a_stopped_pass_is_detected_among_others() {
        let (context, check) = context();
        let x = context.upload(&[1f32], [1]).unwrap();
        for finished in 0..=3 {
            let descriptor = wgpu::ComputePassDescriptor::default();
            context
                .submit_with("three passes", |commands| {
                    (0..3).for_each(|_| commands.pass(&descriptor, |_| ()))
                })
                .unwrap();
            let number = check.state().next - 1;
            finish(&context, &check, number, finished);
            match finished {
                3 => assert_eq!(block_on(x.read()).unwrap(), [1.0]),
                _ => assert_eq!(unfinished(block_on(x.read())), "three passes"),
            }
        }
    }

    #[test]
    fn reading_a_stopped_recording_fails() {
        let (context, check) = context();
        let x = context.upload(&[3f32], [1]).unwrap();
        let mut encoder = context.encoder("squares");
        let y = tensor::mul(&x, &x).forward(&mut encoder).unwrap();
        let recording = encoder.finish();
        assert_eq!(unfinished(block_on(recording.submit_read(&y).unwrap())), "squares");
        let read = recording.submit_read(&y).unwrap();
        // Nobody has checked it: the next read does.
        drop(read);
        assert_eq!(unfinished(block_on(x.read())), "squares");
        // A copy of its own that did not come is noticed too.
        let next = check.state().next;
        context.queue().write_buffer(
            &check.words,
            4 * (next % WORDS),
            bytemuck::bytes_of(&word(next - 1)),
        );
        assert_eq!(unfinished(block_on(x.read())), "readback");
        assert_eq!(block_on(x.read()).unwrap(), [3.0]);
    }

    #[test]
    fn every_read_reports_a_shared_loss() {
        let (context, _) = context();
        let x = context.upload(&[1f32; 3], [3]).unwrap();
        submit(&context, &x, "lost");
        drop(x.read());
        let reads = [x.read(), x.read()];
        reads.into_iter().for_each(|read| assert_eq!(unfinished(block_on(read)), "lost"));
        assert_eq!(block_on(x.read()).unwrap(), [1.0; 3]);
    }

    #[test]
    fn the_log_holds_the_last_accepted_submissions() {
        let (context, check) = context();
        let x = context.upload(&[1f32; 3], [3]).unwrap();
        (0..3 * PLACES).for_each(|_| submit(&context, &x, "many"));
        assert_eq!(check.state().unread.len() as u64, PLACES);
        check
            .state()
            .unread
            .iter()
            .for_each(|sent| assert_eq!((sent.label, sent.passes), ("many", 1)));
        let next = check.state().next;
        (next - PLACES..next).for_each(|number| finish(&context, &check, number, 1));
        assert_eq!(block_on(x.read()).unwrap(), [1.0; 3]);
        assert_eq!(check.state().unread.len(), 0);
        let usage = wgpu::BufferUsages::STORAGE;
        let closed = context.device().create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: 16,
            usage,
            mapped_at_creation: false,
        });
        assert!(context.clear(&Pooled::foreign(closed)).is_err());
        assert_eq!(block_on(x.read()).unwrap(), [1.0; 3]);
    }

    /// Without the check, a device that runs no kernel gives what was there, and whoever waits has
    /// an answer.
    #[test]
    fn a_device_that_runs_nothing_answers() {
        let context = noop::context();
        assert!(
            !context.capabilities().f16_subnormals && !context.capabilities().fused_multiply_add,
            "probes are not believed without their numbers"
        );
        assert!(!context.capabilities().timestamps);
        let (x, y) =
            (context.upload(&[3f32; 5], [5]).unwrap(), Tensor::zeros(&context, [5]).unwrap());
        let mut encoder = context.encoder("nothing");
        tensor::mul(&x, &x).forward_into(&mut encoder, &y).unwrap();
        let recording = encoder.finish();
        recording.submit().unwrap().wait().unwrap();
        block_on(std::future::IntoFuture::into_future(recording.submit().unwrap())).unwrap();
        assert_eq!(block_on(recording.submit_read(&y).unwrap()).unwrap(), [0.0; 5]);
        assert_eq!(block_on(y.duplicate().unwrap().read()).unwrap(), [0.0; 5]);
        assert_eq!(block_on(x.read()).unwrap(), [3.0; 5], "copies are made");
        assert!(block_on(recording.time(2)).is_ok() && block_on(recording.profile()).is_ok());
        context.device().destroy();
        assert_eq!(block_on(y.read()).map_err(|error| error.kind()), Err(ErrorKind::Lost));
    }
}
