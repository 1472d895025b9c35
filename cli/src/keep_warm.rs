//! `--keep-warm` of `bitnet serve`: keeps an idle GPU from lowering its clock.
//!
//! An idle GPU lowers its clock, an H200 within a second, and a request then takes longer until the
//! clock has risen. Short work now and then does not hold the clock; a kernel that always runs
//! does, at the power of a busy GPU. It has a single thread, and ends within a millisecond.

use anyhow::Result;
use bitnet_wgpu::{
    Context, Kernel, Tensor,
    kernel::{Params as _, Part, Source, Type::U32, read_write},
    model::Batch,
    params,
};
use pollster::block_on;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{JoinHandle, sleep, spawn},
    time::Duration,
};

params! { struct Params { turns: u32 } }

static SPIN: Kernel = Kernel::new(
    "spin",
    Params::FIELDS,
    &[read_write("sink", U32)],
    &[Source::wgsl(&[Part::new(
        "spin",
        "struct Params { turns: u32 }
        var<immediate> params: Params;
        @group(0) @binding(0) var<storage, read_write> sink: array<u32>;
        @compute @workgroup_size(WG_X, WG_Y, WG_Z)
        fn spin() {
            var x = sink[0];
            for (var i = 0u; i < params.turns; i += 1u) { x = x * 1664525u + 1013904223u; }
            sink[0] = x;
        }",
    )])
    .workgroup_size([1, 1, 1])],
);

/// How long a submission takes: a request waits for this at most.
const SUBMISSION: Duration = Duration::from_millis(1);
/// How often a busy batch is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Threads that keep GPUs busy while a batch has nothing to do, until this is dropped.
pub struct KeepWarm {
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl KeepWarm {
    /// Starts a thread for each GPU.
    ///
    /// # Errors
    /// If the kernel cannot be compiled, or there is no memory.
    pub fn start(contexts: &[Context], batch: &Batch) -> Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        let mut new = Self { ended: ended.clone(), threads: Vec::new() };
        for context in contexts {
            let sink = Tensor::<u32>::zeros(context, [1])?;
            let turns = turns(context, &sink)?;
            let (context, batch, ended) = (context.clone(), batch.clone(), ended.clone());
            new.threads.push(spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    let load = batch.load();
                    if load.running + load.waiting > 0 {
                        sleep(LOOK);
                    } else if let Err(error) = run(&context, &sink, turns) {
                        // A lost device ends the server, which reports it.
                        return log::warn!("--keep-warm ended: {error}");
                    }
                }
            }));
        }
        Ok(new)
    }
}

impl Drop for KeepWarm {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn run(context: &Context, sink: &Tensor<u32>, turns: u32) -> bitnet_wgpu::Result<()> {
    let mut encoder = context.encoder("keep warm");
    encoder.dispatch(&SPIN, &Params { turns }, &[sink], [1, 1, 1])?;
    encoder.submit()?.wait()
}

/// Returns how many turns of the kernel's loop a submission takes.
fn turns(context: &Context, sink: &Tensor<u32>) -> Result<u32> {
    const FIRST: u32 = 1 << 14;
    let mut encoder = context.encoder("keep warm");
    encoder.dispatch(&SPIN, &Params { turns: FIRST }, &[sink], [1, 1, 1])?;
    let recording = encoder.finish();
    block_on(recording.time(1))?; // compiles
    let (_, time) = block_on(recording.time(4))?;
    let turns = f64::from(FIRST) * SUBMISSION.as_secs_f64() / time.as_secs_f64().max(1e-6);
    Ok(turns.clamp(1.0, 1e8) as u32)
}
