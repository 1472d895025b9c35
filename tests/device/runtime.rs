//! The core: recording, replay, the pool, readback, threads, and what bad input gives.

use bitnet_wgpu::bitnet::BitLinear;
use bitnet_wgpu::{
    Context, Error, ErrorKind, Kernel, Recording, Result, Tensor, bitnet,
    gpu::Bind,
    internals::{self, Dispatch, SubmissionLimit, TensorCore},
    kernel::{Params as _, Part, ShaderLanguage, Source, Type::*, read, read_write},
    params, reference,
    tensor::{self, f16},
    transformer::flash_attention,
    weights::{PackedTernary, Scales},
    wgpu,
};
use std::{collections::HashMap, future::IntoFuture as _, thread};
use support::{block_on, context, rng, ternary, with_tensor_cores};

params! { struct AddParams { length: u32, addend: u32 } }

const ADD_TEXT: &[Part] = &[Part::new(
    "add",
    "struct Params { length: u32, addend: u32 }
    var<immediate> params: Params;
    @group(0) @binding(0) var<storage, read> x: array<u32>;
    @group(0) @binding(1) var<storage, read_write> y: array<u32>;
    @compute @workgroup_size(WG_X, WG_Y, WG_Z)
    fn add(@builtin(global_invocation_id) id: vec3<u32>) {
        if id.x < params.length { y[id.x] = x[id.x] + params.addend; }
    }",
)];

/// A kernel of a user's own.
static ADD: Kernel = Kernel::new(
    "add",
    AddParams::FIELDS,
    &[read("x", U32), read_write("y", U32)],
    &[Source::wgsl(ADD_TEXT)],
);

pub fn add(
    encoder: &mut bitnet_wgpu::Encoder,
    x: &Tensor<u32>,
    y: &Tensor<u32>,
    addend: u32,
) -> Result<()> {
    encoder.dispatch(&ADD, &AddParams { length: x.len() as u32, addend }, &[x, y], [x.len(), 1, 1])
}

#[test]
fn a_recording_replays() {
    let context = context();
    let (a, b) =
        (context.upload(&[1u32, 2, 3], [3]).unwrap(), Tensor::zeros(context, [3]).unwrap());
    let mut encoder = context.encoder("replay");
    add(&mut encoder, &a, &b, 10).unwrap();
    add(&mut encoder, &b, &a, 1).unwrap();
    assert_eq!(encoder.len(), 2);
    let recording = encoder.finish();
    assert_eq!(recording.kernels().map(|k| k.name).collect::<Vec<_>>(), ["add", "add"]);
    assert_eq!(block_on(a.read()).unwrap(), [1, 2, 3], "nothing runs before submit");
    for _ in 0..3 {
        recording.submit().unwrap().wait().unwrap();
    }
    assert_eq!(block_on(a.read()).unwrap(), [34, 35, 36]);
}

#[test]
fn a_recording_keeps_its_buffers() {
    // The recorded tensors are dropped; fresh tensors of the same size must not get their buffers
    // before the recording runs.
    let context = context();
    let y = Tensor::<u32>::zeros(context, [1000]).unwrap();
    let mut encoder = context.encoder("alive");
    {
        let x = context.upload(&[7u32; 1000], [1000]).unwrap();
        add(&mut encoder, &x, &y, 1).unwrap();
    }
    let others: Vec<_> = (0..8).map(|_| context.upload(&[99u32; 1000], [1000]).unwrap()).collect();
    let _ = encoder.submit().unwrap();
    assert_eq!(block_on(y.read()).unwrap(), [8; 1000]);
    drop(others);
}

#[test]
fn writing_two_names_of_a_buffer_is_refused() {
    let context = context();
    let x = context.upload(&[1u32], [1]).unwrap();
    let error = add(&mut context.encoder("alias"), &x, &x.clone(), 1).unwrap_err();
    assert!(matches!(error, Error::Dispatch { kernel: "add", .. }), "{error}");
    assert_eq!(error.to_string(), "add: `y` is written and is the same buffer as `x`");
    // Reading one buffer twice is fine.
    let w = ternary(&mut rng(1), 4, 4).upload(context).unwrap();
    let x = context.upload(&[1f32; 4], [1, 4]).unwrap();
    BitLinear::new(&w).forward(&mut context.encoder("same"), &x).unwrap();
}

#[test]
fn signatures_are_checked() {
    let context = context();
    let (x, f) = (context.upload(&[1u32], [1]).unwrap(), context.upload(&[1f32], [1]).unwrap());
    let mut encoder = context.encoder("signature");
    let params = AddParams { length: 1, addend: 1 };
    let mut refused = |bindings: &[&dyn Bind], words: &str| {
        let error = encoder.dispatch(&ADD, &params, bindings, [1, 1, 1]).unwrap_err();
        assert!(matches!(error, Error::Dispatch { kernel: "add", .. }), "{error}");
        assert_eq!(error.to_string(), format!("add: {words}"));
    };
    refused(&[&x], "bindings: declared 2 tensors, given 1");
    refused(&[&f, &x], "`x` takes u32 words, found a tensor of f32");
    let error = encoder.dispatch(&ADD, &(), &[&x, &x], [1, 1, 1]).unwrap_err();
    assert_eq!(error.to_string(), "add: params: declared length: u32, addend: u32, given none");
    assert!(encoder.is_empty());
}

#[test]
fn a_broken_kernel_is_a_typed_error() {
    const TEXT: &[Part] =
        &[Part::new("broken", "@compute @workgroup_size(1) fn broken() { nonsense }")];
    static BROKEN: Kernel = Kernel::new(
        "broken",
        &[],
        &[read_write("y", U32)],
        &[Source::wgsl(TEXT).workgroup_size([1, 1, 1])],
    );
    let y = context().upload(&[1u32], [1]).unwrap();
    let error = context().encoder("broken").dispatch(&BROKEN, &(), &[&y], [1, 1, 1]).unwrap_err();
    assert!(matches!(error, Error::Shader { kernel: "broken", .. }), "{error}");
}

#[test]
fn shapes_are_checked_where_they_are_given() {
    let context = context();
    let mut encoder = context.encoder("shapes");
    let error = |result: Result<Tensor<f32>>| result.unwrap_err().to_string();
    assert!(matches!(
        context.upload(&[1f32; 3], [2, 2]).unwrap_err(),
        Error::Length { found: 3, .. }
    ));
    assert!(matches!(
        Tensor::<f32>::uninit(context, [usize::MAX, 2]).unwrap_err(),
        Error::TooLarge { .. }
    ));
    assert!(matches!(
        Tensor::<i8>::uninit(context, [usize::MAX]).unwrap_err(),
        Error::TooLarge { .. }
    ));
    let w = ternary(&mut rng(1), 5, 8).upload(context).unwrap();
    let x = context.upload(&[1f32; 14], [2, 7]).unwrap();
    let text = error(BitLinear::new(&w).forward(&mut encoder, &x));
    assert!(text.contains("[2, 7]") && text.contains("[.., 8]"), "{text}");
    let xq = bitnet::ActivationQuantizer::int8()
        .quantize(&mut encoder, &context.upload(&[1f32; 16], [2, 8]).unwrap())
        .unwrap();
    let y = Tensor::<f32>::zeros(context, [2, 6]).unwrap();
    let text = BitLinear::new(&w).forward_into(&mut encoder, &xq, &y).unwrap_err().to_string();
    assert!(text.contains("[2, 6]") && text.contains("[2, 5]"), "{text}");
    let gain = context.upload(&[1f32; 3], [3]).unwrap();
    let text = bitnet::ActivationQuantizer::int8()
        .norm((&gain, 1e-5))
        .quantize(&mut encoder, &x)
        .unwrap_err()
        .to_string();
    assert!(text.contains("[3]") && text.contains("[7]"), "{text}");
    let odd = error(bitnet::gate(&x, bitnet::Gate::Relu2).forward(&mut encoder));
    assert!(odd.contains("[2, 7]"), "{odd}");
    assert!(x.reshape([3, 5]).is_err());
}

#[test]
fn sums_that_would_not_be_exact_are_refused() {
    let k = internals::MAX_FEATURES + 1;
    let w = PackedTernary::from_values(1, k, &vec![0; k], Scales::Tensor(1.0)).unwrap();
    let x = vec![0f32; k];
    let cpu = reference::bitlinear(&x, 1, &w).unwrap_err().to_string();
    let x = context().upload(&x, [1, k]).unwrap();
    let gpu = BitLinear::new(&w.upload(context()).unwrap())
        .forward(&mut context().encoder("long"), &x)
        .unwrap_err()
        .to_string();
    for text in [cpu, gpu] {
        assert!(text.contains("131072") && text.contains("exact"), "{text}");
    }
}

fn unsupported(error: &Error, words: &str) -> bool {
    matches!(error, Error::DeviceUnsupported { what } if what.contains(words))
}

#[test]
fn what_does_not_fit_the_device_is_refused() {
    let small = context().restricted(|c| c.max_binding_bytes = 1 << 20);
    let error = small.upload(&vec![0f32; 1 << 19], [1 << 19]).unwrap_err();
    assert!(
        matches!(error, Error::TooLarge { bytes, limit, .. } if bytes == 1 << 21 && limit == 1 << 20),
        "{error}"
    );
    // And the device's own limit, with nothing allocated.
    let limit = context().capabilities().max_binding_bytes as usize;
    assert!(matches!(
        Tensor::<f32>::uninit(context(), [limit]).unwrap_err(),
        Error::TooLarge { .. }
    ));
    let plain = context().restricted(|c| c.f16 = false);
    let x = plain.upload(&[f16::ONE; 4], [1, 4]).unwrap();
    let error =
        bitnet::ActivationQuantizer::int8().quantize(&mut plain.encoder("f16"), &x).unwrap_err();
    assert!(unsupported(&error, "SHADER_F16"), "{error}");
    // A two-dimensional grid cannot be folded.
    let narrow = context().restricted(|c| c.max_workgroups = 2);
    let x = narrow.upload(&[1f32; 9 * 4], [9, 4]).unwrap();
    let w = ternary(&mut rng(1), 300, 4).upload(&narrow).unwrap();
    let error = BitLinear::new(&w).forward(&mut narrow.encoder("grid"), &x).unwrap_err();
    assert!(unsupported(&error, "workgroups; this device allows 2 in one dimension"), "{error}");
    // What a kernel declares beyond the device's limits: bytes of workgroup memory.
    const WIDE_TEXT: &[Part] = &[Part::new("wide", "@compute @workgroup_size(1) fn wide() {}")];
    static WIDE: Kernel = Kernel::new(
        "wide",
        &[],
        &[read_write("y", U32)],
        &[Source::wgsl(WIDE_TEXT).workgroup_size([1, 1, 1]).workgroup_bytes(1 << 30)],
    );
    let y = context().upload(&[1u32], [1]).unwrap();
    let error = context().encoder("wide").dispatch(&WIDE, &(), &[&y], [1, 1, 1]).unwrap_err();
    let limit = "wide needs max_compute_workgroup_storage_size of 1073741824;";
    assert!(unsupported(&error, limit), "{error}");
    // A tensor core that no device has.
    const UNIT_TEXT: &[Part] =
        &[Part::new("on_tensor_cores", "@compute @workgroup_size(1) fn on_tensor_cores() {}")];
    static ON_TENSOR_CORES: Kernel = {
        let source = &[Source::wgsl(UNIT_TEXT).workgroup_size([1, 1, 1])];
        let mut kernel = Kernel::new("on_tensor_cores", &[], &[read_write("y", U32)], source)
            .features(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX);
        kernel.tensor_core = Some(TensorCore::new(3, 5));
        kernel
    };
    for context in [Some(context()), with_tensor_cores()].into_iter().flatten() {
        let y = context.upload(&[1u32], [1]).unwrap();
        let error = context
            .encoder("on tensor cores")
            .dispatch(&ON_TENSOR_CORES, &(), &[&y], [1, 1, 1])
            .unwrap_err();
        assert!(unsupported(&error, "on_tensor_cores needs the wgpu feature"), "{error}");
    }
}

#[test]
fn languages_that_cannot_run_are_refused() {
    assert!(context().with_language(ShaderLanguage::Wgsl).is_ok());
    let metal = context().capabilities().languages.contains(&ShaderLanguage::Msl);
    assert_eq!(context().with_language(ShaderLanguage::Msl).is_ok(), metal);
}

#[test]
fn tensors_of_every_type_come_back() {
    fn check<T: bitnet_wgpu::tensor::ElementType + PartialEq + std::fmt::Debug>(data: &[T]) {
        // Odd lengths of small types end inside a word.
        for length in 0..data.len() {
            let tensor = context().upload(&data[..length], [length]).unwrap();
            assert_eq!(block_on(tensor.read()).unwrap(), &data[..length]);
            tensor.write(&data[1..=length]).unwrap();
            assert_eq!(block_on(tensor.read()).unwrap(), &data[1..=length]);
            assert!(tensor.write(data).is_err());
        }
    }
    check(&[1f32, -0.0, 3.5, f32::MIN_POSITIVE, 9.0]);
    check(&[f16::ONE, f16::NEG_ONE, f16::MAX, f16::ZERO, f16::EPSILON]);
    check(&[1i8, -128, 127, 0, 5, 6, -7]);
    check(&[u32::MAX, 0, 1, 2]);
    check(&[i32::MIN, -1, 0, 1]);
}

#[test]
fn two_threads_share_a_context() {
    let context = context();
    let w = ternary(&mut rng(2), 100, 70);
    let gpu = w.upload(context).unwrap();
    let work = |seed: u32| {
        let own = context.clone();
        for i in 0..40 {
            let x: Vec<f32> = (0..140).map(|j| ((j * (i + seed)) as f32).sin()).collect();
            let mut encoder = own.encoder("thread");
            let y = BitLinear::new(&gpu)
                .forward(&mut encoder, &own.upload(&x, [2, 70]).unwrap())
                .unwrap();
            let _ = encoder.submit().unwrap();
            assert_eq!(block_on(y.read()).unwrap(), reference::bitlinear(&x, 2, &w).unwrap());
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (1..=3).map(|seed| scope.spawn(move || work(seed))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn read_futures_can_be_dropped_at_any_time() {
    // A context of its own, so that the pool's counters are this test's.
    let context = block_on(Context::new()).unwrap();
    let x = context.upload(&[5u32; 5000], [5000]).unwrap();
    for i in 0..200 {
        let mut future = Box::pin(x.read());
        if i % 2 == 0 {
            // Polled once, then dropped: pending, or already there.
            let _ =
                future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        }
        drop(future);
        if i % 10 == 0 {
            assert_eq!(block_on(x.read()).unwrap(), [5; 5000]);
        }
    }
    assert_eq!(block_on(x.read()).unwrap(), [5; 5000]);
    assert!(context.memory_stats().live_bytes < 2 << 20, "{:?}", context.memory_stats());
}

#[test]
fn a_read_outlives_its_tensor_and_thread() {
    let future = context().upload(&[1u32, 2], [2]).unwrap().read();
    assert_eq!(thread::spawn(|| block_on(future)).join().unwrap().unwrap(), [1, 2]);
}

#[test]
fn a_destroyed_device_fails_every_wait() {
    let context = block_on(Context::new()).unwrap();
    let (x, y) =
        (context.upload(&[1u32; 100], [100]).unwrap(), Tensor::zeros(&context, [100]).unwrap());
    let record = || {
        let mut encoder = context.encoder("lost");
        add(&mut encoder, &x, &y, 1).map(|()| encoder.finish())
    };
    let recording = record().unwrap();
    let before = recording.submit().unwrap();
    context.device().destroy();
    // What was submitted before may be done.
    let _ = before.wait();
    let (sender, done) = std::sync::mpsc::channel::<()>();
    thread::scope(|scope| {
        let (recording, y, record) = (&recording, &y, &record);
        scope.spawn(move || {
            let lost = |what: &str, result: Result<()>| {
                let kind = result.as_ref().err().map(Error::kind);
                assert_eq!(kind, Some(ErrorKind::Lost), "{what}: {result:?}");
            };
            lost("wait", recording.submit().and_then(bitnet_wgpu::gpu::Submission::wait));
            lost(
                "await",
                recording.submit().and_then(|submission| block_on(submission.into_future())),
            );
            lost("read", block_on(y.read()).map(drop));
            lost("read after work", recording.submit_read(y).and_then(block_on).map(drop));
            lost("a new recording", record().and_then(|recording| recording.submit()?.wait()));
            lost("time", block_on(recording.time(2)).map(drop));
            lost("profile", block_on(recording.profile()).map(drop));
            // The end of this thread, however it comes, ends the wait below.
            drop(sender);
        });
        // A wait without end would be one for this test too.
        if done.recv_timeout(std::time::Duration::from_secs(60))
            == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            std::process::abort();
        }
    });
    // Another device is none the worse.
    let other = block_on(Context::new()).unwrap();
    assert_eq!(block_on(other.upload(&[5u32], [1]).unwrap().read()).unwrap(), [5]);
}

#[test]
fn a_submission_can_be_awaited() {
    let context = context();
    let (x, y) = (context.upload(&[1u32], [1]).unwrap(), Tensor::zeros(context, [1]).unwrap());
    block_on(async {
        for i in 0..20 {
            let mut encoder = context.encoder("awaited");
            add(&mut encoder, &x, &y, i)?;
            encoder.submit()?.await?;
        }
        assert_eq!(y.read().await?, [20]);
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn times_come_with_their_clock() {
    let context = context();
    let w = ternary(&mut rng(4), 64, 64).upload(context).unwrap();
    let x = context.upload(&[1f32; 64], [1, 64]).unwrap();
    for restricted in [context.clone(), context.restricted(|c| c.timestamps = false)] {
        let mut encoder = restricted.encoder("profile");
        BitLinear::new(&w).forward(&mut encoder, &x).unwrap();
        let recording = encoder.finish();
        let profile = block_on(recording.profile()).unwrap();
        assert_eq!(profile.steps.len(), 2);
        assert!(profile.steps[1].kernel.starts_with("bitlinear_"));
        assert_eq!(
            profile.clock == bitnet_wgpu::telemetry::Clock::Gpu,
            restricted.capabilities().timestamps
        );
        if !restricted.capabilities().timestamps {
            assert_eq!(profile.clock, bitnet_wgpu::telemetry::Clock::Host);
            assert!(profile.total().as_nanos() > 0);
        }
        assert!(profile.to_string().contains("quantize_activations"));
        let (_, time) = block_on(recording.time(3)).unwrap();
        assert!(time.as_nanos() > 0);
    }
}

#[test]
fn a_recording_is_read_after_its_work() {
    let x = context().upload(&[1.0f32, 2.0, 3.0], [3]).unwrap();
    let mut encoder = context().encoder("squares");
    let y = bitnet_wgpu::tensor::mul(&x, &x).forward(&mut encoder).unwrap();
    let squares = encoder.finish();
    for (given, expected) in
        [([1.0f32, 2.0, 3.0], [1.0, 4.0, 9.0]), ([4.0, 5.0, 6.0], [16.0, 25.0, 36.0])]
    {
        x.write(&given).unwrap();
        assert_eq!(block_on(squares.submit_read(&y).unwrap()).unwrap(), expected);
    }
}

/// The bytes of each buffer that a recording uses.
fn buffers(recording: &Recording) -> HashMap<usize, usize> {
    let of = |dispatch: Dispatch<'_>| {
        let bytes = |binding| block_on(dispatch.read(binding)).unwrap().len();
        dispatch
            .buffers()
            .into_iter()
            .enumerate()
            .map(|(binding, id)| (id, bytes(binding)))
            .collect::<Vec<_>>()
    };
    recording.dispatches().flat_map(of).collect()
}

#[test]
fn linear_cross_entropy_stays_within_its_estimate() {
    let context = context();
    let (rows, k, vocabulary, c) = (96, 8, 1000, 64);
    let (x, w) = (
        context.upload(&vec![0.5f32; rows * k], [rows, k]).unwrap(),
        context.upload(&vec![0.5f32; vocabulary * k], [vocabulary, k]).unwrap(),
    );
    let (targets, dloss) = (
        context.upload(&vec![3u32; rows], [rows]).unwrap(),
        context.upload(&vec![1f32; rows], [rows]).unwrap(),
    );
    let op = tensor::linear_cross_entropy(&x, &w, &targets).chunk(c);
    let mut encoder = context.encoder("forward");
    let made = op.forward(&mut encoder).unwrap();
    let forward = buffers(&encoder.finish());
    let mut encoder = context.encoder("backward");
    op.backward(&mut encoder, &made.lse, &dloss).unwrap();
    let backward = buffers(&encoder.finish());
    // x, W, targets and losses, and the gradients; then what the documentation says.
    let (sides, row) = (4 * (rows + vocabulary) * k, 4 * rows);
    assert_eq!(
        forward.values().sum::<usize>(),
        sides + 3 * row + 4 * (c * (rows + k) + rows * (k + 4))
    );
    assert_eq!(
        backward.values().sum::<usize>(),
        2 * sides + 3 * row + 4 * (c * (rows + k) + 2 * rows * k)
    );
    assert!(
        forward.values().chain(backward.values()).all(|&bytes| bytes <= 4 * vocabulary * k),
        "{forward:?} {backward:?}"
    );
}

#[test]
fn linear_distillation_stays_within_its_estimate() {
    let context = context();
    let (rows, k, other, vocabulary, c) = (96, 8, 5, 1000, 64);
    let of = |rows: usize, k: usize| context.upload(&vec![0.5f32; rows * k], [rows, k]).unwrap();
    let (x, w, teacher_x, teacher_w) =
        (of(rows, k), of(vocabulary, k), of(rows, other), of(vocabulary, other));
    let targets = context.upload(&vec![3u32; rows], [rows]).unwrap();
    let dloss = context.upload(&vec![1f32; rows], [rows]).unwrap();
    let op = tensor::linear_distillation((&x, &w), (&teacher_x, &teacher_w), &targets).chunk(c);
    let mut encoder = context.encoder("forward");
    let made = op.forward(&mut encoder).unwrap();
    let forward: usize = buffers(&encoder.finish()).values().sum();
    let mut encoder = context.encoder("backward");
    op.backward(&mut encoder, &made.lse, &dloss).unwrap();
    let backward: usize = buffers(&encoder.finish()).values().sum();
    // Both sides, targets, losses and lse, and the gradients; then what the documentation says.
    let sides = [k, other].map(|k| 4 * (rows + vocabulary) * k);
    let (given, chunks) = (sides[0] + sides[1] + 4 * 5 * rows, c * (2 * rows + k + other));
    assert_eq!(forward, given + 4 * (chunks + rows * (k + other + 8)));
    assert_eq!(backward, given + sides[0] + 4 * (chunks + rows * (2 * k + other)));
}

#[test]
fn flash_attention_stays_within_its_memory_estimate() {
    let context = context();
    let (tokens, dim) = (300, 4);
    let x = || context.upload(&vec![0.5f32; tokens * dim], [1, tokens, dim]).unwrap();
    let (q, k, v, dy) = (x(), x(), x(), x());
    let (attention, mut encoder) = (flash_attention(&q, &k, &v), context.encoder("attention"));
    let (y, lse) = attention.forward(&mut encoder).unwrap();
    attention.backward(&mut encoder, &y, &lse, &dy).unwrap();
    // q, k, v, y and their gradients; the logarithms of sums, and a number a row.
    assert_eq!(
        buffers(&encoder.finish()).values().sum::<usize>(),
        8 * 4 * tokens * dim + 2 * 4 * tokens
    );
}

/// Steps that depend on one another, each a submission of its own: two threads run them, and
/// neither comes between the steps of the other.
#[test]
fn split_submissions_of_threads_do_not_mix() {
    const ROUNDS: usize = 100;
    let limited = context().restricted(|c| c.submission_limit = Some(SubmissionLimit::new(1, 1)));
    let (a, b) =
        (limited.upload(&[0u32; 300], [300]).unwrap(), Tensor::zeros(&limited, [300]).unwrap());
    let mut encoder = limited.encoder("in turns");
    add(&mut encoder, &a, &b, 10).unwrap();
    add(&mut encoder, &b, &a, 1).unwrap();
    let recording = &encoder.finish();
    let run = || {
        (0..ROUNDS)
            .map(|_| block_on(recording.submit_read(&a).unwrap()).unwrap())
            .collect::<Vec<_>>()
    };
    let mut seen = thread::scope(|scope| {
        [(); 2].map(|()| scope.spawn(run)).map(|thread| thread.join().unwrap())
    })
    .concat();
    seen.sort_unstable();
    let expected: Vec<_> = (1..=2 * ROUNDS as u32).map(|run| vec![11 * run; 300]).collect();
    assert_eq!(seen, expected, "each run sees the one before as a whole");
}

#[test]
fn extents_state_the_work_of_products() {
    let context = context();
    let w = ternary(&mut rng(3), 100, 70).upload(context).unwrap();
    let x = context.upload(&[1.0f32; 5 * 70], [5, 70]).unwrap();
    let mut encoder = context.encoder("work");
    BitLinear::new(&w).forward(&mut encoder, &x).unwrap();
    tensor::relu2(&x).forward(&mut encoder).unwrap();
    let work: u64 = encoder.finish().dispatches().map(|dispatch| dispatch.multiply_adds()).sum();
    assert_eq!(work, 5 * 100 * 70, "of the product alone");
}
