//! Long submissions, which systems may stop, and memory.

use anyhow::{Result, bail, ensure};
use bitnet_wgpu::{
    Context, Kernel, Recording, Tensor,
    kernel::{Params as _, Source, Type::*, read_write},
    params, tensor, wgsl,
};
use pollster::block_on;
use std::time::{Duration, Instant};

params! { struct Params { length: u32, turns: u32 } }

static WORK: Kernel =
    Kernel::new("work", Params::FIELDS, &[read_write("x", U32)], &[Source::wgsl(wgsl!["work"])]);

/// Threads of a dispatch.
const THREADS: usize = 64 * 64;
/// What a dispatch should take: kernels of models take less, and a display is drawn in between.
const DISPATCH: Duration = Duration::from_millis(2);
/// The most dispatches in a submission.
const MOST: u32 = 2000;
/// The longest loop of a dispatch.
const MOST_TURNS: u32 = 1 << 24;

/// A submission of known length.
#[derive(Debug)]
pub struct Submission {
    pub asked: Duration,
    pub dispatches: u32,
    pub came: Came,
}

/// What came of a submission.
#[derive(Debug, PartialEq, Eq)]
pub enum Came {
    /// The right result, after this time.
    Right(Duration),
    /// So many wrong numbers, and no error.
    Wrong(usize),
    /// An error, which programs can handle.
    Failed(String),
}

/// The longest submission that models make; systems let longer ones run as well, or end them with
/// an error.
const USUAL: Duration = Duration::from_millis(100);

impl Submission {
    /// Submits as many dispatches as take about the time that is asked for.
    fn of(context: &Context, asked: Duration, turns: u32, dispatch: Duration) -> Self {
        let dispatches = (asked.as_secs_f64() / dispatch.as_secs_f64())
            .ceil()
            .clamp(1.0, f64::from(MOST)) as u32;
        let came = submit(context, turns, dispatches)
            .unwrap_or_else(|error| Came::Failed(crate::text(&error)));
        Self { asked, dispatches, came }
    }

    /// Returns whether it ended as programs can expect.
    pub fn sound(&self) -> bool {
        match self.came {
            Came::Right(_) => true,
            Came::Wrong(_) => false,
            Came::Failed(_) => self.asked > USUAL,
        }
    }
}

/// Submissions of several lengths.
#[derive(Debug, Default)]
pub struct Submissions {
    pub all: Vec<Submission>,
    /// Why there are none.
    pub error: Option<String>,
}

impl Submissions {
    /// Submits work of about these times, each in one piece, and checks the results.
    pub fn of(context: &Context, times: &[Duration]) -> Self {
        // Systems that stop work without a word are asked about it, as models do.
        match context.check_submissions().map_err(Into::into).and_then(|()| calibrate(context)) {
            Ok((turns, dispatch)) => Self {
                all: times
                    .iter()
                    .map(|&asked| Submission::of(context, asked, turns, dispatch))
                    .collect(),
                error: None,
            },
            Err(error) => Self { all: Vec::new(), error: Some(crate::text(&error)) },
        }
    }

    /// Number of submissions that ended in a way that programs cannot handle.
    pub fn failures(&self) -> usize {
        self.all.iter().filter(|submission| !submission.sound()).count()
            + usize::from(self.error.is_some())
    }
}

/// The length of a loop that takes about [`DISPATCH`], and what it takes.
fn calibrate(context: &Context) -> Result<(u32, Duration)> {
    const DISPATCHES: u32 = 4;
    let mut turns = 1 << 8;
    // The first one compiles.
    time(context, turns, 1)?;
    loop {
        let each = time(context, turns, DISPATCHES)? / DISPATCHES;
        if each >= DISPATCH || turns >= MOST_TURNS {
            return Ok((turns, each));
        }
        turns *= 2;
    }
}

fn time(context: &Context, turns: u32, dispatches: u32) -> Result<Duration> {
    match submit(context, turns, dispatches)? {
        Came::Right(took) => Ok(took),
        Came::Wrong(count) => bail!("{count} of {THREADS} results of a short submission are wrong"),
        Came::Failed(error) => bail!(error),
    }
}

fn submit(context: &Context, turns: u32, dispatches: u32) -> Result<Came> {
    let seeds: Vec<u32> = (0..THREADS as u32).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
    let x = context.upload(&seeds, [THREADS])?;
    let recording = record(context, &x, turns, dispatches)?;
    let start = Instant::now();
    let got = block_on(recording.submit_read(&x)?)?;
    let took = start.elapsed();
    let after = steps(u64::from(turns) * u64::from(dispatches));
    let wrong = seeds.iter().zip(&got).filter(|(seed, got)| after(**seed) != **got).count();
    Ok(if wrong == 0 { Came::Right(took) } else { Came::Wrong(wrong) })
}

fn record(context: &Context, x: &Tensor<u32>, turns: u32, dispatches: u32) -> Result<Recording> {
    let mut encoder = context.encoder("work");
    for _ in 0..dispatches {
        encoder.dispatch(
            &WORK,
            &Params { length: THREADS as u32, turns },
            &[x],
            [THREADS, 1, 1],
        )?;
    }
    Ok(encoder.finish())
}

/// So many steps of the kernel's function, as one: the steps are v·factor + term, and two of those
/// are another.
fn steps(mut count: u64) -> impl Fn(u32) -> u32 {
    let after =
        |[f, t]: [u32; 2], [g, u]: [u32; 2]| [f.wrapping_mul(g), t.wrapping_mul(g).wrapping_add(u)];
    let (mut all, mut power) = ([1u32, 0], [747_796_405u32, 2_891_336_453]);
    while count > 0 {
        if count & 1 == 1 {
            all = after(all, power);
        }
        (power, count) = (after(power, power), count >> 1);
    }
    move |v| v.wrapping_mul(all[0]).wrapping_add(all[1])
}

/// The share of the adapter's memory that is allocated, and the most.
const SHARE: u64 = 20;
const MOST_BYTES: u64 = 256 << 20;

/// Fills a tensor of a part of the adapter's memory, of which nothing may be known, and reads a few
/// numbers back. Gives its bytes.
///
/// # Errors
/// What the device reports, or numbers that are not those which were written.
pub fn memory(context: &Context, memory_bytes: Option<u64>) -> Result<u64> {
    const FEW: usize = 8;
    let room = memory_bytes.map_or(MOST_BYTES, |bytes| bytes / SHARE).min(MOST_BYTES);
    let len = (room.min(context.capabilities().max_binding_bytes) / 4) as usize;
    ensure!(len >= 4 * FEW, "{room} bytes are too few to try");
    let x = Tensor::<f32>::uninit(context, [len])?;
    let mut encoder = context.encoder("memory");
    tensor::fill(1.5).forward_into(&mut encoder, &x)?;
    let parts =
        [0, len / 2, len - FEW].map(|at| tensor::slice(&x, 0, at..at + FEW).forward(&mut encoder));
    encoder.submit()?.wait()?;
    for part in parts {
        let numbers = block_on(part?.read())?;
        ensure!(numbers == [1.5; FEW], "wrong numbers; 1.5 is expected");
    }
    drop(x);
    context.trim_memory();
    Ok(4 * len as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_steps_are_found_at_once() {
        let mut v = 77u32;
        for count in 0..100 {
            assert_eq!(steps(count)(77), v, "{count}");
            v = v.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        }
    }
}
