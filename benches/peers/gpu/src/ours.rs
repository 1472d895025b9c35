//! This library's side: calls are recorded anew each time, and a submission has a few of them, so
//! that the GPU computes while the next are recorded.

use crate::turns::Rival;
use bitnet_wgpu::{Context, Encoder, Result, telemetry::Clock};
use pollster::block_on;

const PER_SUBMISSION: usize = 16;

/// `call` records the so-manieth call; after `copies` of them the first one's weights come again.
pub fn rival<'a>(
    name: &'static str,
    context: &'a Context,
    copies: usize,
    call: impl Fn(&mut Encoder, usize) -> Result<()> + 'a,
) -> Rival<'a> {
    let record = move |calls: std::ops::Range<usize>| {
        let mut encoder = context.encoder("calls");
        calls.for_each(|i| call(&mut encoder, i).expect("it fits"));
        encoder
    };
    let recording = record(0..copies).finish();
    let (clock, time) = (0..3).map(|_| block_on(recording.time(2)).expect("it runs")).min_by_key(|(_, time)| *time).expect("three");
    let gpu = (clock == Clock::Gpu).then(|| time.as_secs_f64() / copies as f64);
    let compute = move |calls: usize| {
        let submit = |first| record(first..(first + PER_SUBMISSION).min(calls)).submit().expect("it runs");
        let last = (0..calls).step_by(PER_SUBMISSION).map(submit).last();
        last.expect("one call or more").wait().expect("it ends");
    };
    Rival { gpu, ..Rival::new(name, compute) }
}
