//! What the host and the device did and when: spans, in the JSON that Perfetto and Chrome's tracing
//! read.

use super::execute::commands::MOST_PASSES;
use crate::error::{Error, Result};
use futures_intrusive::channel::shared::{OneshotReceiver, OneshotSender, oneshot_channel};
use std::{
    fmt::{self, Write as _},
    pin::Pin,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

/// Queries of a set: two for each pass of a submission.
const QUERIES: usize = 2 * MOST_PASSES;

/// The most sets at a time. Metal has 32 counter sample buffers for a device, and the 33rd loses
/// it.
const MOST_SETS: usize = 16;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The trace that a device's work goes into, while there is one.
#[derive(Default)]
pub struct Tracer(Mutex<Option<Arc<Log>>>);

impl Tracer {
    pub fn log(&self) -> Option<Arc<Log>> {
        lock(&self.0).clone()
    }

    /// A call of this thread, from here until what is given is dropped.
    pub fn call(&self, name: &'static str, what: &'static str, bytes: Option<u64>) -> Option<Call> {
        self.log().map(|log| Call { log, name, what, bytes, start: Instant::now() })
    }
}

/// What has been noted so far.
pub struct Log {
    began: Instant,
    spans: Mutex<Vec<Span>>,
    passes: Mutex<Vec<Pass>>,
    answers: Mutex<Vec<Weak<Answer>>>,
    failed: Mutex<Option<Error>>,
    sets: Arc<QuerySets>,
}

/// The query sets of a trace, which submissions take in turns.
#[derive(Default)]
struct QuerySets {
    /// Those that are free, and how many there are in all.
    state: Mutex<(Vec<wgpu::QuerySet>, usize)>,
    returned: Condvar,
}

/// A query set in use; dropped, the next submission may have it.
struct LentSet {
    sets: Arc<QuerySets>,
    set: Option<wgpu::QuerySet>,
}

impl Drop for LentSet {
    fn drop(&mut self) {
        lock(&self.sets.state).0.extend(self.set.take());
        self.sets.returned.notify_one();
    }
}

impl QuerySets {
    /// A set, when one is free; `None` where the trace has failed, and none will be.
    fn take(self: &Arc<Self>, device: &wgpu::Device, failed: impl Fn() -> bool) -> Option<LentSet> {
        const PATIENCE: Duration = Duration::from_millis(100);
        let lent = |set| Some(LentSet { sets: self.clone(), set: Some(set) });
        let mut state = lock(&self.state);
        loop {
            if let Some(set) = state.0.pop() {
                return lent(set);
            }
            if state.1 < MOST_SETS {
                state.1 += 1;
                let descriptor = wgpu::QuerySetDescriptor {
                    label: Some("trace"),
                    ty: wgpu::QueryType::Timestamp,
                    count: QUERIES as u32,
                };
                return lent(device.create_query_set(&descriptor));
            }
            if failed() {
                return None;
            }
            state = self
                .returned
                .wait_timeout(state, PATIENCE)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// Something that the host did, or saw, from one time to another.
struct Span {
    track: Track,
    name: String,
    start: Instant,
    end: Instant,
    bytes: Option<u64>,
}

/// Spans of a thread are within one another or apart; others may overlap.
enum Track {
    Thread(thread::ThreadId, Option<String>),
    Recordings,
    Submissions,
    Uploads,
    Readbacks,
}

/// A call of a thread, which ends when it is dropped.
pub struct Call {
    log: Arc<Log>,
    name: &'static str,
    what: &'static str,
    bytes: Option<u64>,
    start: Instant,
}

impl Drop for Call {
    fn drop(&mut self) {
        let (thread, end) = (thread::current(), Instant::now());
        let name = if self.what.is_empty() {
            self.name.to_owned()
        } else {
            format!("{} {}", self.name, self.what)
        };
        let track = Track::Thread(thread.id(), thread.name().map(str::to_owned));
        lock(&self.log.spans).push(Span { track, name, start: self.start, end, bytes: self.bytes });
    }
}

/// A dispatch, as a trace shows it.
pub struct Dispatched {
    pub kernel: &'static str,
    pub workgroups: [u32; 3],
    /// Of all its bindings.
    pub bytes: u64,
}

/// What was submitted of a recording.
struct Pass {
    label: &'static str,
    start: Instant,
    /// When it was handed to wgpu: the device has not begun before.
    encoded: Instant,
    steps: Vec<Dispatched>,
    /// Nanoseconds of a tick.
    period: f32,
    done: OneshotReceiver<Done>,
}

/// Held by the callback of a pass: where that is dropped uncalled, nobody waits for it any more.
type Answer = Mutex<Option<OneshotSender<Done>>>;

/// When the host learned that a pass is done, and the buffer with its ticks, mapped, where the
/// device has a clock.
struct Done(Instant, Option<wgpu::Buffer>);

/// Times the dispatches of a pass, each of which is encoded as a pass of its own.
pub struct PassTimer {
    log: Arc<Log>,
    label: &'static str,
    start: Instant,
    steps: Vec<Dispatched>,
    set: Option<LentSet>,
}

impl Log {
    /// What is recorded under a label, from `start` until now.
    pub fn recorded(&self, label: &str, start: Instant) {
        self.note(Track::Recordings, label, start, None);
    }

    /// Bytes that have come back under a label, of work that was submitted at `start`.
    pub fn read(&self, label: &str, start: Instant, bytes: u64) {
        self.note(Track::Readbacks, label, start, Some(bytes));
    }

    /// Bytes that the device has copied, and that the host staged from `start` on.
    pub fn uploaded(&self, start: Instant, bytes: u64) {
        self.note(Track::Uploads, "upload", start, Some(bytes));
    }

    fn note(&self, track: Track, name: &str, start: Instant, bytes: Option<u64>) {
        lock(&self.spans).push(Span {
            track,
            name: name.into(),
            start,
            end: Instant::now(),
            bytes,
        });
    }

    /// What was encoded last under a label is not submitted.
    pub fn refuse(&self, label: &str) {
        let mut passes = lock(&self.passes);
        if let Some(last) = passes.iter().rposition(|pass| pass.label == label) {
            passes.remove(last);
        }
    }

    /// Something that was submitted will never be done: nobody waits for its callback, or for
    /// others.
    pub fn fail(&self, error: Error) {
        lock(&self.failed).get_or_insert(error);
        lock(&self.answers)
            .drain(..)
            .filter_map(|answer| answer.upgrade())
            .for_each(|answer| drop(lock(&answer).take()));
    }

    /// Begins a pass of these dispatches.
    pub fn pass(
        self: Arc<Self>,
        device: &wgpu::Device,
        timestamps: bool,
        label: &'static str,
        steps: Vec<Dispatched>,
    ) -> PassTimer {
        let start = Instant::now();
        let timed = timestamps && (1..=MOST_PASSES).contains(&steps.len());
        let set = timed.then(|| self.sets.take(device, || lock(&self.failed).is_some())).flatten();
        PassTimer { log: self, label, start, steps, set }
    }
}

impl PassTimer {
    /// Where the n-th dispatch writes its times, if the device has a clock.
    pub fn writes(&self, n: usize) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        let (query_set, first) = (self.set.as_ref()?.set.as_ref()?, 2 * n as u32);
        Some(wgpu::ComputePassTimestampWrites {
            query_set,
            beginning_of_pass_write_index: Some(first),
            end_of_pass_write_index: Some(first + 1),
        })
    }

    /// Has the times come back with the work that is encoded.
    pub fn finish(self, device: &wgpu::Device, encoder: &mut wgpu::CommandEncoder, period: f32) {
        let Self { log, label, start, steps, set } = self;
        let (sender, done) = oneshot_channel();
        let answer: Arc<Answer> = Arc::new(Mutex::new(Some(sender)));
        lock(&log.answers).push(Arc::downgrade(&answer));
        let send = move |ticks| {
            if let Some(sender) = lock(&answer).take() {
                let _ = sender.send(Done(Instant::now(), ticks));
            }
        };
        if let Some(LentSet { set: Some(queries), .. }) = &set {
            let buffer = |usage| {
                let size = 16 * steps.len() as u64;
                device.create_buffer(&wgpu::BufferDescriptor {
                    label: Some("trace"),
                    size,
                    usage,
                    mapped_at_creation: false,
                })
            };
            let resolved = buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC);
            let staging = buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
            encoder.resolve_query_set(queries, 0..2 * steps.len() as u32, &resolved, 0);
            encoder.copy_buffer_to_buffer(&resolved, 0, &staging, 0, staging.size());
            let mapped = staging.clone();
            encoder.map_buffer_on_submit(&staging, wgpu::MapMode::Read, .., move |result| {
                drop(set);
                send(result.ok().map(|()| mapped));
            });
        } else {
            encoder.on_submitted_work_done(move || send(None));
        }
        let pass = Pass { label, start, encoded: Instant::now(), steps, period, done };
        lock(&log.passes).push(pass);
    }
}

/// Completes when all that was submitted before it is called is done, and its callbacks were
/// called.
pub type Settled =
    Box<dyn FnOnce() -> Result<Pin<Box<dyn Future<Output = Result<()>> + Send>>> + Send>;

/// Work that is being traced: see [`Context::trace`](crate::Context::trace). Dropped, the trace
/// ends, and is lost.
pub struct Tracing {
    tracer: Arc<Tracer>,
    log: Arc<Log>,
    adapter: String,
    settled: Option<Settled>,
}

impl Drop for Tracing {
    fn drop(&mut self) {
        self.end();
    }
}

impl Tracing {
    pub(super) fn begin(tracer: Arc<Tracer>, adapter: String, settled: Settled) -> Result<Self> {
        let (spans, passes, answers, failed, sets) = Default::default();
        let log = Arc::new(Log { began: Instant::now(), spans, passes, answers, failed, sets });
        let mut traced = lock(&tracer.0);
        if traced.is_some() {
            return Err(Error::Invalid {
                op: "trace",
                what: "the device is traced already".into(),
            });
        }
        *traced = Some(log.clone());
        drop(traced);
        Ok(Self { tracer, log, adapter, settled: Some(settled) })
    }

    /// Notes nothing more, and leaves another trace that has begun since alone.
    fn end(&self) {
        lock(&self.tracer.0).take_if(|log| Arc::ptr_eq(log, &self.log));
    }

    /// Ends the trace, when all that was submitted is done.
    ///
    /// # Errors
    /// What the device reported.
    pub async fn finish(mut self) -> Result<Trace> {
        self.end();
        // What was submitted while the trace began is watched by nobody else.
        if let Some(settled) = self.settled.take().map(|settled| settled()) {
            let settled = match settled {
                Ok(done) => done.await,
                Err(error) => Err(error),
            };
            settled.unwrap_or_else(|error| self.log.fail(error));
        }
        let passes = std::mem::take(&mut *lock(&self.log.passes));
        let mut finished = Vec::new();
        for pass in passes {
            // What was never submitted has no end.
            if let Some(Done(end, buffer)) = pass.done.receive().await {
                let ticks = buffer.map(|buffer| ticks(&buffer)).transpose()?.unwrap_or_default();
                finished.push(Finished { pass, end, ticks });
            }
        }
        if let Some(error) = lock(&self.log.failed).take() {
            return Err(error);
        }
        let mut events = Events {
            began: self.log.began,
            lines: Vec::new(),
            threads: Vec::new(),
            overlapping: 0,
        };
        lock(&self.log.spans).iter().for_each(|span| events.host(span));
        events.passes(&finished);
        Ok(Trace { events: events.named(&self.adapter) })
    }
}

/// A pass that is done.
struct Finished {
    pass: Pass,
    end: Instant,
    /// Of the beginning and the end of each of its dispatches; none without a clock.
    ticks: Vec<u64>,
}

fn ticks(buffer: &wgpu::Buffer) -> Result<Vec<u64>> {
    let view =
        buffer.slice(..).get_mapped_range().map_err(|error| Error::Readback(error.to_string()))?;
    Ok(view
        .chunks_exact(8)
        .map(|tick| u64::from_le_bytes(std::array::from_fn(|i| tick[i])))
        .collect())
}

/// What was traced. Its text (`to_string`, or `{}`) is JSON that <https://ui.perfetto.dev> shows,
/// and `chrome://tracing`.
///
/// Of the host it has the calls of each thread (`upload`, `submit`, `wait`, under the names of
/// recordings), and beside them what overlaps: recordings from their beginning to their end,
/// submissions until the host knows that they are done, readbacks. Of the device it has
/// submissions, and in them their kernels, by the device's clock, which is moved so that nothing
/// begins before it was submitted. Where a device has no clock
/// (`Capabilities::timestamps`), there is nothing of it.
#[derive(Clone)]
pub struct Trace {
    events: Vec<String>,
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{}\n]}}",
            self.events.join(",\n")
        )
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace({} events)", self.events.len())
    }
}

/// Events of the format, one a line:
/// <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>. Times are in
/// nanoseconds from the beginning of the trace on.
struct Events {
    began: Instant,
    lines: Vec<String>,
    threads: Vec<(thread::ThreadId, Option<String>)>,
    overlapping: usize,
}

/// Processes of the format.
const HOST: usize = 1;
const DEVICE: usize = 2;

impl Events {
    fn since(&self, time: Instant) -> i64 {
        time.saturating_duration_since(self.began).as_nanos() as i64
    }

    /// What the host did or saw.
    fn host(&mut self, span: &Span) {
        let (name, times) = (quoted(&span.name), [self.since(span.start), self.since(span.end)]);
        let args = span.bytes.map_or_else(String::new, |bytes| format!("\"bytes\":{bytes}"));
        let category = match &span.track {
            Track::Thread(id, thread) => {
                let known = self.threads.iter().position(|(other, _)| other == id);
                let at = known.unwrap_or(self.threads.len());
                if known.is_none() {
                    self.threads.push((*id, thread.clone()));
                }
                return self.slice([HOST, at + 1], "call", &name, times, &args);
            }
            Track::Recordings => "recording",
            Track::Submissions => "submission",
            Track::Uploads => "upload",
            Track::Readbacks => "readback",
        };
        self.overlapping += 1;
        let id = self.overlapping;
        for (kind, time) in ["b", "e"].into_iter().zip(times) {
            let (place, time) = (
                format!("\"pid\":{HOST},\"id\":{id},\"cat\":\"{category}\",\"name\":{name}"),
                Microseconds(time),
            );
            self.lines
                .push(format!("{{\"ph\":\"{kind}\",{place},\"ts\":{time},\"args\":{{{args}}}}}"));
        }
    }

    /// Submissions as the host sees them, and what the device says of them.
    fn passes(&mut self, finished: &[Finished]) {
        // Ticks count from long ago: from the first on, they are exact in what follows.
        let origin =
            finished.iter().find_map(|finished| finished.ticks.first()).copied().unwrap_or(0);
        let time = |pass: &Pass, tick: u64| {
            (tick.wrapping_sub(origin) as i64 as f64 * f64::from(pass.period)) as i64
        };
        // The device's clock began elsewhere. The least that makes it the host's: no work begins
        // before it was submitted.
        let waited = |Finished { pass, ticks, .. }: &Finished| {
            Some(self.since(pass.encoded) - time(pass, *ticks.first()?))
        };
        let behind = finished.iter().filter_map(waited).max().unwrap_or(0);
        for (n, Finished { pass, end, ticks }) in finished.iter().enumerate() {
            self.host(&Span {
                track: Track::Submissions,
                name: pass.label.into(),
                start: pass.start,
                end: *end,
                bytes: None,
            });
            let times: Vec<_> = ticks
                .chunks_exact(2)
                .map(|pair| [0, 1].map(|i| behind + time(pass, pair[i])))
                .collect();
            if let (Some([start, _]), Some([_, end])) = (times.first(), times.last()) {
                let args = format!("\"submission\":{n},\"dispatches\":{}", pass.steps.len());
                self.slice([DEVICE, 1], "submission", &quoted(pass.label), [*start, *end], &args);
            }
            for (Dispatched { kernel, workgroups, bytes }, times) in pass.steps.iter().zip(times) {
                let args =
                    format!("\"submission\":{n},\"workgroups\":{workgroups:?},\"bytes\":{bytes}");
                self.slice([DEVICE, 1], "kernel", &quoted(kernel), times, &args);
            }
        }
    }

    /// A span of a thread of a process.
    fn slice(
        &mut self,
        [process, thread]: [usize; 2],
        category: &str,
        name: &str,
        [start, end]: [i64; 2],
        args: &str,
    ) {
        let (time, took) = (Microseconds(start), Microseconds(end - start));
        let place =
            format!("\"pid\":{process},\"tid\":{thread},\"cat\":\"{category}\",\"name\":{name}");
        self.lines.push(format!(
            "{{\"ph\":\"X\",{place},\"ts\":{time},\"dur\":{took},\"args\":{{{args}}}}}"
        ));
    }

    /// All of them, and the names of processes and threads.
    fn named(self, adapter: &str) -> Vec<String> {
        let name = |process: usize, thread: usize, what: &str, name: &str| {
            let name = quoted(name);
            format!(
                "{{\"ph\":\"M\",\"pid\":{process},\"tid\":{thread},\"name\":\"{what}\",\"args\":{{\"name\":{name}}}}}"
            )
        };
        let threads = (1..).zip(&self.threads).map(|(n, (_, thread))| {
            name(HOST, n, "thread_name", thread.as_deref().unwrap_or("a thread"))
        });
        let processes = [(HOST, "host"), (DEVICE, adapter)]
            .map(|(process, what)| name(process, 0, "process_name", what));
        processes.into_iter().chain(threads).chain(self.lines).collect()
    }
}

/// Nanoseconds, as the format has them.
struct Microseconds(i64);

impl fmt::Display for Microseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}{}.{:03}",
            if self.0 < 0 { "-" } else { "" },
            self.0.abs() / 1000,
            self.0.abs() % 1000
        )
    }
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        // Writing to a String cannot fail.
        let _ = match c {
            '"' | '\\' => write!(quoted, "\\{c}"),
            c if c.is_control() => write!(quoted, "\\u{:04x}", u32::from(c)),
            c => write!(quoted, "{c}"),
        };
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::setup::noop;

    #[test]
    fn query_sets_are_few_and_go_round() {
        let (context, sets) = (noop::context(), Arc::<QuerySets>::default());
        let take = |failed: bool| sets.take(context.device(), || failed);
        let mut lent: Vec<_> = (0..MOST_SETS).map(|_| take(false).unwrap()).collect();
        assert!(take(true).is_none(), "there is none, and none will come");
        let one = lent.pop();
        let waiting = thread::scope(|scope| {
            let waiting = scope.spawn(|| take(false).is_some());
            drop(one);
            waiting.join().unwrap()
        });
        assert!(waiting);
        drop(lent);
        let state = lock(&sets.state);
        assert_eq!((state.0.len(), state.1), (MOST_SETS, MOST_SETS));
    }
}
