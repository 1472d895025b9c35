//! Submissions that were not done to their end, and nobody was told: Metal stops a command buffer whose kernel faults or takes too long, and wgpu hears
//! nothing of it. So each submission ends with the copy of a word that belongs to it alone, into a log on the device; a read brings its own, and the log with
//! it, and looks whether all have come.

use super::scopes::guarded;
use crate::error::{Error, Result};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// How many submissions the log has: the last ones.
const PLACES: u64 = 64;

/// How many words there are, many more than places: a place has another word each time.
const WORDS: u64 = 1024;

/// What a read brings: its own word, and the log.
pub const BYTES: u64 = 4 + 4 * PLACES;

/// The words of a device, and its log.
pub struct Canary {
    words: wgpu::Buffer,
    log: wgpu::Buffer,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// The submissions in the log that no read has seen done, in the order in which the device has them.
    unread: VecDeque<(u64, &'static str)>,
}

/// A submission that is made: the next begins when this has ended, so that the device has them in the order of their numbers.
pub struct Marking<'a> {
    canary: &'a Arc<Canary>,
    state: MutexGuard<'a, State>,
}

/// The words that a read must find.
pub struct Expected {
    canary: Arc<Canary>,
    /// Where its own begins in what is read.
    at: u64,
    own: (u64, &'static str),
    before: Vec<(u64, &'static str)>,
}

/// The word of a submission: what is left over in a buffer is another.
fn word(number: u64) -> u32 {
    ((number % WORDS) as u32 + 1).wrapping_mul(0x9e37_79b1)
}

impl Canary {
    pub fn new(device: &wgpu::Device) -> Result<Self> {
        let (to, from) = (wgpu::BufferUsages::COPY_DST, wgpu::BufferUsages::COPY_SRC);
        let descriptor = |size, usage, mapped| wgpu::BufferDescriptor { label: Some("canary"), size, usage, mapped_at_creation: mapped };
        let make = || {
            let words = device.create_buffer(&descriptor(4 * WORDS, to | from, true));
            let all: Vec<u32> = (0..WORDS).map(word).collect();
            let written = words.slice(..).get_mapped_range_mut().map(|mut view| view.copy_from_slice(bytemuck::cast_slice(&all)));
            words.unmap();
            written.map(|()| (words, device.create_buffer(&descriptor(4 * PLACES, to | from, false))))
        };
        let made = guarded(device, || "making a canary".into(), make)?;
        let (words, log) = made.map_err(|error| Error::Gpu { during: "making a canary".into(), message: error.to_string() })?;
        Ok(Self { words, log, state: Mutex::default() })
    }

    /// Begins a submission. Nobody else's is made before it ends: let it be short.
    pub fn begin(self: &Arc<Self>) -> Marking<'_> {
        Marking { canary: self, state: self.state() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in a critical section can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Marking<'_> {
    fn number(&mut self) -> u64 {
        self.state.next += 1;
        self.state.next - 1
    }

    fn copy(&self, number: u64, encoder: &mut wgpu::CommandEncoder, buffer: &wgpu::Buffer, at: u64) {
        encoder.copy_buffer_to_buffer(&self.canary.words, 4 * (number % WORDS), buffer, at, 4);
    }

    /// The end of a submission that reads nothing.
    pub fn mark(&mut self, label: &'static str, encoder: &mut wgpu::CommandEncoder) {
        let number = self.number();
        self.copy(number, encoder, &self.canary.log, 4 * (number % PLACES));
        // Whose place this was, nobody can know any more.
        while self.state.unread.front().is_some_and(|&(first, _)| first + PLACES <= number) {
            self.state.unread.pop_front();
        }
        self.state.unread.push_back((number, label));
    }

    /// The end of one that reads to a staging buffer: [`BYTES`] from `at` on.
    pub fn read(&mut self, label: &'static str, encoder: &mut wgpu::CommandEncoder, staging: &wgpu::Buffer, at: u64) -> Expected {
        let number = self.number();
        let before: Vec<_> = self.state.unread.iter().copied().collect();
        if !before.is_empty() {
            encoder.copy_buffer_to_buffer(&self.canary.log, 0, staging, at + 4, 4 * PLACES);
        }
        self.copy(number, encoder, staging, at);
        Expected { canary: self.canary.clone(), at, own: (number, label), before }
    }

    /// What was marked last has been refused: the device will not do it.
    pub fn refused(mut self) {
        self.state.unread.pop_back();
    }
}

impl Expected {
    /// Where [`BYTES`] of them are in what is read.
    pub fn at(&self) -> usize {
        self.at as usize
    }

    /// The first submission that was not done, as an error, by the words that were read. It is told to those who read now, and not again.
    pub fn check(&self, words: &[u32]) -> Result<()> {
        let number = self.own.0;
        self.canary.state().unread.retain(|&(other, _)| other > number);
        let before = self.before.iter().map(|&(number, label)| (words[1 + (number % PLACES) as usize], number, label));
        match before.chain([(words[0], number, self.own.1)]).find(|&(found, number, _)| found != word(number)) {
            Some((_, _, submission)) => Err(Error::Unfinished { submission }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, ErrorKind, Tensor, gpu::noop::context, tensor};
    use pollster::block_on;

    fn unfinished<T: std::fmt::Debug>(result: Result<T>) -> &'static str {
        match result {
            Err(error @ Error::Unfinished { submission }) if error.kind() == ErrorKind::Lost => submission,
            other => panic!("{other:?}"),
        }
    }

    fn submit(context: &Context, x: &Tensor<f32>, label: &'static str) {
        let mut encoder = context.encoder(label);
        tensor::mul(&mut encoder, x, x).unwrap();
        encoder.submit().unwrap();
    }

    #[test]
    fn what_was_not_done_is_told_once_by_name() {
        let context = context();
        let canary = context.canary().unwrap();
        let x = context.upload(&[1f32, 2.0], [2]).unwrap();
        let read = || block_on(x.read());
        // As if the device had not come to the end of a submission: its place has what was there before, at last the word of the one that had it.
        let poison = |number: u64, word: u32| context.queue().write_buffer(&canary.log, 4 * (number % PLACES), bytemuck::bytes_of(&word));
        for round in 0..3 * WORDS {
            submit(&context, &x, "first");
            submit(&context, &x, "second");
            let (bad, next) = (round % 4, canary.state().next);
            match bad {
                0 => {}
                1 => poison(next - 1, 0),
                2 => poison(next - 1, word(next - 1 + WORDS - PLACES)),
                _ => [1, 2].iter().for_each(|back| poison(next - back, 0)),
            }
            let told = read();
            match bad {
                0 => assert_eq!(told.unwrap(), [1.0, 2.0]),
                1 | 2 => assert_eq!(unfinished(told), "second"),
                _ => assert_eq!(unfinished(told), "first"),
            }
            assert_eq!(read().unwrap(), [1.0, 2.0], "what was told is past");
        }
    }

    #[test]
    fn a_read_that_was_not_done_is_told() {
        let context = context();
        let canary = context.canary().unwrap();
        let x = context.upload(&[1f32; 3], [3]).unwrap();
        let read = || block_on(x.read());
        read().unwrap();
        let next = canary.state().next;
        context.queue().write_buffer(&canary.words, 4 * (next % WORDS), bytemuck::bytes_of(&word(next - 1)));
        assert_eq!(unfinished(read()), "readback", "what is left over in the buffer of another read will not do");
        read().unwrap();
        // Two that saw the same, and one that nobody looked at.
        submit(&context, &x, "lost");
        context.queue().write_buffer(&canary.log, 0, &[0; 4 * PLACES as usize]);
        drop(x.read());
        let reads = [x.read(), x.read()];
        reads.into_iter().for_each(|read| assert_eq!(unfinished(block_on(read)), "lost"));
        read().unwrap();
    }

    #[test]
    fn of_many_that_nobody_read_the_last_are_known() {
        let context = context();
        let canary = context.canary().unwrap();
        let x = context.upload(&[1f32; 3], [3]).unwrap();
        (0..3 * PLACES).for_each(|_| submit(&context, &x, "many"));
        assert_eq!(canary.state().unread.len() as u64, PLACES);
        assert_eq!(block_on(x.read()).unwrap(), [1.0; 3]);
        assert_eq!(canary.state().unread.len(), 0);
        // What is refused is not waited for.
        let closed = context.device().create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: 16,
            usage: wgpu::BufferUsages::STORAGE,
            mapped_at_creation: false,
        });
        assert!(context.clear(&closed).is_err());
        assert_eq!(block_on(x.read()).unwrap(), [1.0; 3]);
    }

    /// Kernels do nothing here: what they would write is what it was, and whoever waits has an answer.
    #[test]
    fn a_device_that_does_nothing_gives_what_was_there() {
        let context = context();
        assert!(
            !context.capabilities().half_subnormals && !context.capabilities().fused_multiply_add,
            "probes are not believed without their numbers"
        );
        assert!(!context.capabilities().timestamps);
        let (x, y) = (context.upload(&[3f32; 5], [5]).unwrap(), Tensor::zeros(&context, [5]).unwrap());
        let mut encoder = context.encoder("nothing");
        tensor::mul_into(&mut encoder, &x, &x, &y).unwrap();
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
