//! Devices that hang: limits on waiting.

use super::{HUNG, fresh};
use bitnet_wgpu::{
    Context, Error, ErrorKind, Kernel, Recording, Result, Tensor,
    gpu::Submission,
    kernel::{Part, Source, Type::U32, read_write},
    model::SessionOptions,
};
use std::{
    future::IntoFuture as _,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};
use support::block_on;

const SPIN_TEXT: &[Part] = &[Part::new(
    "spin",
    "@group(0) @binding(0) var<storage, read_write> y: array<u32>;
    @compute @workgroup_size(WG_X, WG_Y, WG_Z)
    fn spin(@builtin(global_invocation_id) id: vec3<u32>) {
        var x = y[id.x] | 1u;
        // Mesa's software drivers leave a loop after 65535 rounds.
        for (var i = 0u; i < 60000u; i++) { x ^= x << 13u; x ^= x >> 17u; x ^= x << 5u; }
        y[id.x] = x;
    }",
)];

/// Threads that do something for a while.
static SPIN: Kernel = Kernel::new(
    "spin",
    &[],
    &[read_write("y", U32)],
    &[Source::wgsl(SPIN_TEXT).workgroup_size([1, 1, 1])],
);

/// Work for a device that takes this many times as long, and what it makes.
fn spin(context: &Context, times: u32) -> (Recording, Tensor<u32>) {
    let y = Tensor::<u32>::zeros(context, [64]).unwrap();
    let mut encoder = context.encoder("spin");
    (0..times).for_each(|_| encoder.dispatch(&SPIN, &(), &[&y], [64, 1, 1]).unwrap());
    (encoder.finish(), y)
}

/// How many times take so long on a device.
fn times(context: &Context, time: Duration) -> u32 {
    let run = |times| spin(context, times).0.submit().and_then(Submission::wait).unwrap();
    run(1); // compiles
    let mut times = 1;
    loop {
        let start = Instant::now();
        run(times);
        if start.elapsed() > time / 20 {
            return (f64::from(times) * time.as_secs_f64() / start.elapsed().as_secs_f64()) as u32;
        }
        times *= 2;
    }
}

/// What is timed has the machine for itself.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long waits may take.
const LIMIT: Duration = Duration::from_millis(200);

fn assert_over(limit: Duration, result: Result<()>) {
    assert!(
        matches!(result, Err(Error::WaitLimit { limit: had, .. }) if had == limit),
        "{result:?}"
    );
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Lost);
}

/// One submission at a time: Mesa's software drivers wait for the one before where another is
/// submitted.
#[test]
fn a_wait_for_a_device_that_hangs_ends() {
    let _alone = alone();
    let context = block_on(Context::new()).unwrap();
    let (recording, y) = spin(&context, times(&context, HUNG));
    let ways: [(&str, &dyn Fn() -> Result<()>); 3] = [
        ("wait", &|| recording.submit()?.wait()),
        ("await", &|| block_on(recording.submit()?.into_future())),
        ("read", &|| block_on(recording.submit_read(&y)?).map(drop)),
    ];
    for (way, wait) in ways {
        context.limit_waits(LIMIT);
        assert_over(LIMIT, wait());
        // When it answers, all is as it was.
        context.limit_waits(None);
        let found = block_on(y.read()).unwrap();
        assert!(found.iter().all(|&x| x == found[0] && x != 0), "{way}: {found:?}");
    }
    context.limit_waits(LIMIT);
    assert!(block_on(y.read()).is_ok());
}

#[test]
fn dropping_a_hung_device_does_not_wait() {
    let _alone = alone();
    let context = block_on(Context::new()).unwrap();
    let (recording, y) = spin(&context, times(&context, HUNG));
    context.limit_waits(LIMIT);
    let start = Instant::now();
    let read = recording.submit_read(&y).unwrap();
    drop((recording, y, context));
    assert_over(LIMIT, block_on(read).map(drop));
    assert!(start.elapsed() < HUNG / 2, "{:?}", start.elapsed());
    // A driver may not stand being at work while the process ends.
    thread::sleep(HUNG);
}

#[test]
fn a_session_continues_after_a_timeout() {
    const AT_ONCE: Duration = Duration::from_nanos(1);
    let model = fresh();
    let context = model.context().unwrap();
    let mut session = model.session(SessionOptions::new(1, 32)).unwrap();
    block_on(session.prefill(0, &[1, 2, 3])).unwrap();
    let mut whole = session.fork().unwrap();
    let expected =
        [block_on(whole.decode(&[4])).unwrap(), block_on(whole.decode(&[5])).unwrap()].concat();
    context.limit_waits(AT_ONCE);
    // What is done before anybody looks takes no time.
    let over = (0..50).find_map(|_| {
        let over = block_on(session.prefill(0, &[9; 20])).err();
        if over.is_none() {
            session.truncate(0, 3).unwrap()
        }
        over
    });
    assert_over(AT_ONCE, over.map_or(Ok(()), Err));
    assert_eq!((session.tokens(0), session.len(0)), (&[1, 2, 3][..], 3));
    context.limit_waits(None);
    assert_eq!(
        [block_on(session.decode(&[4])).unwrap(), block_on(session.decode(&[5])).unwrap()].concat(),
        expected
    );
}
