//! Traces: what they have of work whose dispatches are known, and that their spans are where they
//! belong.

use bitnet_wgpu::{
    Context, ContextOptions, Error, Result,
    internals::ModelInternals as _,
    model::{GenerateOptions, Model, Sampling, SessionOptions},
    tensor,
};
use serde_json::Value;
use std::thread;
use support::{block_on, real_model};

fn open() -> Context {
    block_on(Context::open(ContextOptions::default())).unwrap()
}

/// A span, in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
struct Span {
    category: String,
    name: String,
    /// Process and thread.
    track: (u64, u64),
    start: i64,
    end: i64,
    args: Value,
}

impl Span {
    fn has(&self, other: &Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

/// The spans of what `work` does, in order.
fn traced(context: &Context, work: impl FnOnce() -> Result<()>) -> Vec<Span> {
    let tracing = context.trace().unwrap();
    work().unwrap();
    let text = block_on(tracing.finish()).unwrap().to_string();
    let json: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let events = json["traceEvents"].as_array().unwrap();
    let nanoseconds =
        |event: &Value, field: &str| (event[field].as_f64().unwrap() * 1e3).round() as i64;
    let text = |event: &Value, field: &str| event[field].as_str().unwrap().to_owned();
    let mut spans = Vec::new();
    for event in events {
        let start = || nanoseconds(event, "ts");
        let end = match event["ph"].as_str().unwrap() {
            "X" => start() + nanoseconds(event, "dur"),
            "b" => {
                let ends = |other: &&Value| other["ph"] == "e" && other["id"] == event["id"];
                let end: Vec<_> = events.iter().filter(ends).collect();
                assert_eq!(
                    (end.len(), &end[0]["cat"], &end[0]["name"]),
                    (1, &event["cat"], &event["name"])
                );
                nanoseconds(end[0], "ts")
            }
            "M" | "e" => continue,
            other => panic!("{other}"),
        };
        let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap_or(0));
        spans.push(Span {
            category: text(event, "cat"),
            name: text(event, "name"),
            track,
            start: start(),
            end,
            args: event["args"].clone(),
        });
    }
    check(&spans);
    spans
}

fn of<'a>(spans: &'a [Span], category: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.category == category).collect()
}

/// What holds of every trace.
fn check(spans: &[Span]) {
    assert!(spans.iter().all(|span| 0 <= span.start && span.start <= span.end), "{spans:?}");
    // Slices of a track are within one another or apart.
    for (a, b) in spans
        .iter()
        .flat_map(|a| spans.iter().map(move |b| (a, b)))
        .filter(|(a, b)| a.track.1 > 0 && a.track == b.track)
    {
        assert!(a.has(b) || b.has(a) || a.end <= b.start || b.end <= a.start, "{a:?}\n{b:?}");
    }
    let (host, device): (Vec<_>, Vec<_>) =
        of(spans, "submission").into_iter().partition(|span| span.track.0 == 1);
    if device.is_empty() {
        assert!(of(spans, "kernel").is_empty());
        return;
    }
    // A submission is in the host's span of it, and its kernels are in it, in order.
    assert_eq!(host.len(), device.len());
    for (n, (host, device)) in host.iter().zip(&device).enumerate() {
        assert!(host.name == device.name && host.has(device), "{host:?}\n{device:?}");
        assert_eq!(device.args["submission"], n);
        let kernels: Vec<_> = of(spans, "kernel")
            .into_iter()
            .filter(|kernel| kernel.args["submission"] == n)
            .collect();
        assert_eq!(device.args["dispatches"], kernels.len());
        assert!(
            kernels
                .iter()
                .all(|kernel| device.has(kernel) && kernel.args["bytes"].as_u64().unwrap() > 0)
        );
        assert!(kernels.windows(2).all(|pair| pair[0].end <= pair[1].start), "{kernels:?}");
        assert!(kernels.iter().any(|kernel| kernel.start < kernel.end), "time passes");
        // Of several threads, others may submit meanwhile.
        let submits = |call: &&Span| {
            call.name == format!("submit {}", host.name)
                && call.start <= host.start
                && host.start <= call.end
        };
        assert!(of(spans, "call").into_iter().any(|call| submits(&call)), "{host:?}");
    }
}

#[test]
fn a_trace_has_recordings_transfers_and_kernels() {
    let context = open();
    let x = context.upload(&[0.5f32; 3000], [3000]).unwrap();
    let mut dispatches = 0;
    let spans = traced(&context, || {
        x.write(&[2.0; 3000])?;
        let mut encoder = context.encoder("some \"work\"\n");
        let mut y = tensor::mul(&x, &x).forward(&mut encoder)?;
        y = tensor::add(&y, &x).forward(&mut encoder)?;
        dispatches = encoder.len();
        let recording = encoder.finish();
        recording.submit()?.wait()?;
        drop(recording.submit()?);
        assert_eq!(block_on(recording.submit_read(&y)?)?, [6.0; 3000]);
        Ok(())
    });
    let names = |category: &str| {
        of(&spans, category).iter().map(|span| span.name.clone()).collect::<Vec<_>>()
    };
    let label = "some \"work\"\n";
    assert_eq!(names("recording"), [label]);
    assert_eq!(
        (names("readback"), &of(&spans, "readback")[0].args["bytes"]),
        (vec![label.to_owned()], &12_000.into())
    );
    let submit = format!("submit {label}");
    assert_eq!(names("call"), ["upload", &submit, "wait", &submit, &submit], "{spans:?}");
    assert_eq!(of(&spans, "call")[0].args["bytes"], 12_000);
    assert!(of(&spans, "recording")[0].end <= of(&spans, "call")[1].start);
    let submissions = if context.capabilities().timestamps { 6 } else { 3 };
    assert_eq!(names("submission"), vec![label; submissions]);
    assert_eq!(
        names("kernel").len(),
        if context.capabilities().timestamps { 3 * dispatches } else { 0 }
    );
    assert!(
        names("kernel").iter().step_by(2).all(|name| name.contains("mul")),
        "{:?}",
        names("kernel")
    );

    // Afterwards nothing is noted, and there may be another; without a clock it has no kernels.
    let blind = context.restricted(|c| c.timestamps = false);
    let spans = traced(&context, || {
        let mut encoder = blind.encoder("blind");
        let y = tensor::mul(&x, &x).forward(&mut encoder)?;
        encoder.submit()?;
        block_on(y.read()).map(drop)
    });
    assert!(of(&spans, "kernel").is_empty() && of(&spans, "submission").len() == 1);
    assert_eq!(of(&spans, "recording").len(), 1);
}

#[test]
fn prompts_and_steps_are_traced_alike() {
    let model = Model::builder(real_model()).device(&open()).build().unwrap();
    let context = model.context().unwrap();
    let step = model.record_step(1, 10).unwrap();
    let (prompt, _) = model.record_prompt(&[1, 2, 3, 4, 5]).unwrap();
    let spans = traced(context, || {
        prompt.submit()?.wait()?;
        step.submit()?.wait()
    });
    if !context.capabilities().timestamps {
        return eprintln!("this device has no clock");
    }
    let recorded: Vec<_> = [&prompt, &step]
        .iter()
        .flat_map(|recording| recording.kernels())
        .map(|kernel| kernel.name)
        .collect();
    assert_eq!(
        of(&spans, "kernel").iter().map(|kernel| &*kernel.name).collect::<Vec<_>>(),
        recorded
    );

    // A generation, and another on a thread beside it.
    let dispatches = |name: &str, spans: &[Span]| {
        let of_name = of(spans, "submission")
            .into_iter()
            .filter(|span| span.name == name && span.track.0 == 2);
        of_name.map(|span| span.args["dispatches"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let options = GenerateOptions::default().max_tokens(3).ignore_eos(true);
    let run = || {
        model
            .generate_ids(&[1, 2, 3, 4, 5], &options)?
            .into_iter()
            .try_for_each(|token| token.map(drop))
    };
    let spans = traced(context, || {
        thread::scope(|scope| {
            scope.spawn(|| run().unwrap());
            run()
        })
    });
    // The choice of the first token comes with the prompt.
    let choice = step.kernels().filter(|kernel| kernel.name.starts_with("top_k")).count();
    let whole = prompt.kernels().count() + choice;
    assert!(
        choice > 0 && dispatches("prefill", &spans).iter().sum::<u64>() == 2 * whole as u64,
        "pieces of a prompt are the whole"
    );
    let steps = dispatches("decode", &spans);
    assert_eq!(
        steps.iter().sum::<u64>(),
        4 * step.kernels().count() as u64,
        "a step for each token after the first"
    );
    assert!(steps.len() > 4, "the first of each text is submitted while it is recorded");
    assert!(!of(&spans, "upload").iter().any(|span| span.args["bytes"] == 0));
    assert!(
        block_on(model.session(SessionOptions::new(1, 5)).unwrap().prefill(0, &[1])).is_ok(),
        "nothing is left behind"
    );
}

/// Whatever a text's length, nothing is uploaded for a step, nothing allocated on the device, and
/// only its token comes back. Sampling takes a few dispatches more than the largest logit.
#[test]
fn steps_upload_and_allocate_nothing() {
    let context = open();
    let model = Model::builder(real_model()).device(&context).build().unwrap();
    let sampled = Sampling::GREEDY.temperature(0.8).top_k(40).top_p(0.9).seed(5);
    let mut steps = Vec::new();
    for sampling in [Sampling::GREEDY, sampled, sampled.frequency_penalty(0.5)] {
        let costs = [40, 8, 40].map(|tokens| {
            let options =
                GenerateOptions::default().max_tokens(tokens).ignore_eos(true).sampling(sampling);
            let missed = context.memory_stats().misses;
            let spans = traced(&context, || {
                model
                    .generate_ids(&[1, 2, 3, 4, 5], &options)?
                    .into_iter()
                    .try_for_each(|token| token.map(drop))
            });
            let submissions = of(&spans, "submission");
            let step = submissions.iter().rfind(|span| span.name == "decode" && span.track.0 == 2);
            steps.push(step.map_or(0, |step| step.args["dispatches"].as_u64().unwrap()));
            let back: u64 = of(&spans, "readback")
                .iter()
                .map(|span| span.args["bytes"].as_u64().unwrap())
                .sum();
            (
                of(&spans, "call").iter().filter(|call| call.name == "upload").count(),
                context.memory_stats().misses - missed,
                back,
            )
        });
        println!("{sampling:?}: {costs:?}");
        assert_eq!(costs[1].0, costs[2].0, "uploads");
        assert_eq!(costs[2].1, 0, "allocations");
        assert_eq!(costs[2].2 - costs[1].2, 4 * 32, "bytes read back");
    }
    println!("{steps:?} dispatches");
    let [greedy, sampled, penalised] = [0, 3, 6].map(|first| steps[first]);
    assert!(
        steps.chunks(3).all(|step| step.iter().all(|dispatches| *dispatches == step[0])),
        "{steps:?}"
    );
    assert!(sampled <= greedy + 12 && penalised <= sampled + 1, "{steps:?}");
}

#[test]
fn a_device_has_one_trace_at_a_time() {
    let context = open();
    let tracing = context.trace().unwrap();
    assert!(matches!(
        context.with_label("the same device").trace(),
        Err(Error::Invalid { op: "trace", .. })
    ));
    drop(tracing);
    assert!(traced(&context, || Ok(())).is_empty(), "what was dropped is over");
    // One that is about to finish leaves the next one alone.
    let mut finishing = Box::pin(context.trace().unwrap().finish());
    let _ = finishing.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    let next = context.trace().unwrap();
    drop(finishing);
    assert!(context.trace().is_err(), "the next one goes on");
    drop(next);
}

#[test]
fn what_is_refused_is_not_waited_for() {
    let context = open();
    let tracing = context.trace().unwrap();
    let x = context.upload(&[1.0f32; 4], [4]).unwrap();
    let mut encoder = context.encoder("refused");
    tensor::mul(&x, &x).forward(&mut encoder).unwrap();
    x.buffer().destroy();
    assert!(encoder.finish().submit().is_err());
    let trace = block_on(tracing.finish()).unwrap().to_string();
    assert!(!trace.contains("\"submission\""), "{trace}");
}

#[test]
fn a_trace_of_a_lost_device_ends() {
    let context = open();
    let tracing = context.trace().unwrap();
    let x = context.upload(&[1.0f32; 4], [4]).unwrap();
    let mut encoder = context.encoder("lost");
    let y = tensor::mul(&x, &x).forward(&mut encoder).unwrap();
    let recording = encoder.finish();
    let before = recording.submit();
    context.device().destroy();
    let results = [
        before.and_then(|before| before.wait()).is_ok(),
        recording.submit().is_ok(),
        block_on(y.read()).is_ok(),
    ];
    // What was done before is in it, or the trace is an error: nobody waits without end.
    let finished = block_on(tracing.finish());
    assert!(finished.is_ok() || results.contains(&false), "{results:?}: {finished:?}");
}

/// More passes than one submission may have on Metal, and more submissions under way than it has
/// sets of timestamps.
#[test]
fn long_and_many_submissions_are_traced() {
    let context = &open();
    let x = context.upload(&[1.0f32; 4], [4]).unwrap();
    let recording = |steps: usize| {
        let mut encoder = context.encoder("long");
        (0..steps).for_each(|_| tensor::mul(&x, &x).forward_into(&mut encoder, &x).unwrap());
        encoder.finish()
    };
    let (long, short) = (recording(1100), recording(2));
    let spans = traced(context, || {
        long.submit()?;
        (0..40).try_for_each(|_| short.submit().map(drop))
    });
    assert_eq!(
        of(&spans, "kernel").len(),
        if context.capabilities().timestamps { 1100 + 80 } else { 0 }
    );
    assert_eq!(spans.iter().filter(|span| span.name == "submit long").count(), 2 + 40);
}
