//! Threads: one recording of several, and all that a context and a model do at once.

use bitnet_wgpu::bitnet::BitLinear;
use bitnet_wgpu::{
    Context, Result, Tensor,
    internals::{ModelInternals as _, SubmissionLimit},
    model::{BatchOptions, GenerateOptions, Model, Sampling, SessionOptions, Speculation},
    reference, tensor,
    weights::PackedTernary,
};
use std::{
    future::IntoFuture as _,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};
use support::{block_on, context, rng, ternary};

/// It counts its own runs. Each read has a count of its own: nobody else's run comes between a run
/// and its copy, nor between its dispatches.
#[test]
fn one_recording_is_submitted_by_two_threads() {
    const ROUNDS: usize = 100;
    let context = context();
    let (one, count) = (
        context.upload(&[1f32; 3000], [3000]).unwrap(),
        Tensor::<f32>::zeros(context, [3000]).unwrap(),
    );
    let mut encoder = context.encoder("count");
    tensor::add(&count, &one).forward_into(&mut encoder, &count).unwrap();
    let double = tensor::add(&count, &count).forward(&mut encoder).unwrap();
    let (recording, begin) = (encoder.finish(), Barrier::new(2));
    let counts = |waits: bool| -> Vec<usize> {
        begin.wait();
        let mut reads = Vec::new();
        for round in 0..ROUNDS {
            reads.push(recording.submit_read(&double).unwrap());
            // One thread has its results as they come, the other when all is submitted; and runs
            // that nobody reads are runs.
            if waits && round % 2 == 0 {
                recording.submit().unwrap().wait().unwrap();
            } else {
                drop(recording.submit().unwrap());
            }
        }
        let count_of = |read: Vec<f32>| {
            assert!(read.iter().all(|&v| v == read[0]), "two runs in one read: {read:?}");
            (read[0] / 2.0) as usize
        };
        reads.into_iter().map(|read| count_of(block_on(read).unwrap())).collect()
    };
    let [a, b] = thread::scope(|scope| {
        [true, false]
            .map(|waits| scope.spawn(move || counts(waits)))
            .map(|thread| thread.join().unwrap())
    });
    for counts in [&a, &b] {
        assert!(
            counts.is_sorted_by(|a, b| a + 1 < *b),
            "a thread's runs are in its order, and none is lost: {counts:?}"
        );
    }
    let mut all = [a, b].concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 2 * ROUNDS, "a read that saw another's run");
    assert_eq!(
        block_on(count.read()).unwrap(),
        [4.0 * ROUNDS as f32; 3000],
        "each submission ran once"
    );
}

#[test]
fn threads_record_submit_read_and_generate_at_once() {
    all_at_once(&block_on(Context::new()).unwrap());
}

/// Nothing is taken for unfinished that was done, also where recordings are several submissions.
#[test]
fn checked_and_limited_submissions_of_threads_are_finished() {
    let context = block_on(Context::new()).unwrap();
    context.check_submissions().unwrap();
    all_at_once(
        &context
            .restricted(|c| c.submission_limit = Some(SubmissionLimit::new(1_000_000, 1_000_000))),
    );
}

fn all_at_once(context: &Context) {
    const ROUNDS: u32 = 12;
    let model =
        &Model::builder(support::data("models").join("odd")).device(context).build().unwrap();
    let greedy = &GenerateOptions::default().max_tokens(10).ignore_eos(true);
    let sampled =
        &greedy.clone().sampling(Sampling::GREEDY.temperature(0.8).presence_penalty(0.5).seed(3));
    let text = |options: &GenerateOptions| -> Result<Vec<u32>> {
        model
            .generate_ids(&[1, 2, 3, 4], options)?
            .into_iter()
            .map(|token| token.map(|token| token.id))
            .collect()
    };
    let session = || -> Result<Vec<f32>> {
        let mut session = model.session(SessionOptions::new(2, 24))?;
        block_on(session.prefill(0, &[1, 2, 3]))?;
        let mut fork = session.fork()?;
        block_on(fork.prefill(1, &[5; 12]))?;
        block_on(fork.decode(&[1, 2]))
    };
    let batch = || -> Result<Vec<Vec<u32>>> {
        let batch = model.batch(BatchOptions::new(2, 24))?;
        let streams =
            [&[1u32, 2][..], &[3, 4, 5], &[6]].map(|prompt| batch.generate_ids(prompt, greedy));
        streams.into_iter().map(|stream| Ok(block_on(stream?.all())?.ids)).collect()
    };
    let score = || block_on(model.score(&[7; 20]));
    // What each gives alone.
    let (plain, chosen, guessed) = (
        text(greedy).unwrap(),
        text(sampled).unwrap(),
        greedy.clone().speculate(Speculation::ngram()),
    );
    let (logits, texts, scored) = (session().unwrap(), batch().unwrap(), score().unwrap());

    let w: &PackedTernary = &ternary(&mut rng(2), 100, 70);
    let (gpu, done) = (&w.upload(context).unwrap(), &AtomicBool::new(false));
    // Sizes that change: the pool has buffers for some.
    let ops = |seed: u32| {
        for i in 0..4 * ROUNDS {
            let rows = 1 + (i * 7 + seed) as usize % 9;
            let x: Vec<f32> =
                (0..rows * 70).map(|j| ((j as u32 * (i + seed)) as f32).sin()).collect();
            let mut encoder = context.encoder("thread");
            let y = BitLinear::new(gpu)
                .forward(&mut encoder, &context.upload(&x, [rows, 70]).unwrap())
                .unwrap();
            let submission = encoder.submit().unwrap();
            match i % 3 {
                0 => submission.wait().unwrap(),
                1 => block_on(submission.into_future()).unwrap(),
                _ => drop(y.read()),
            }
            assert_eq!(
                block_on(y.read()).unwrap(),
                reference::bitlinear(&x, rows, w).unwrap(),
                "{i}"
            );
        }
    };
    let works: [&(dyn Fn() + Sync); 7] = [
        &|| ops(1),
        &|| ops(2),
        &|| {
            (0..ROUNDS).for_each(|_| {
                assert_eq!((&text(greedy).unwrap(), &text(sampled).unwrap()), (&plain, &chosen))
            })
        },
        &|| (0..ROUNDS).for_each(|_| assert_eq!(text(&guessed).unwrap(), plain)),
        &|| (0..ROUNDS).for_each(|_| assert_eq!(session().unwrap(), logits)),
        &|| (0..ROUNDS / 2).for_each(|_| assert_eq!(batch().unwrap(), texts)),
        &|| (0..ROUNDS).for_each(|_| assert_eq!(score().unwrap(), scored)),
    ];
    thread::scope(|scope| {
        // Meanwhile buffers that wait are taken away, and statistics asked.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                context.trim_memory();
                let stats = context.memory_stats();
                let live: u64 = context.live_memory().iter().map(|live| live.bytes).sum();
                assert!(
                    live > 0 && stats.live_bytes > 0 && stats.peak_bytes >= stats.live_bytes,
                    "{stats:?}"
                );
                thread::yield_now();
            }
        });
        let threads = works.map(|work| scope.spawn(work));
        // Whichever fails, the thread above ends.
        let results = threads.map(|thread| thread.join());
        done.store(true, Ordering::Relaxed);
        results
            .into_iter()
            .for_each(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    });
    let weights = model.weight_bytes();
    drop((plain, logits));
    let stats = context.memory_stats();
    assert!(
        stats.live_bytes < 2 * weights as u64 + (1 << 20),
        "what threads made is gone: {stats:?}"
    );
}
