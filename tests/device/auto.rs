//! Ops that run on either side: what they compute, where, what they refuse, and what they do if the
//! GPU fails.

use bitnet_wgpu::{
    Context, ContextOptions, Error, ErrorKind, Result,
    auto::{Answer, Auto, GpuFailure, Placed, Target, Value, Why},
    bitnet::WeightQuantizer,
    reference,
    transformer::{AttentionShape, HostKvCache, rope_angles},
    weights::{Bits, PackedTernary, Scales},
};
use rand::{RngExt, rngs::SmallRng};
use support::{U, block_on, context, floats, rng, ternary, warnings};

const SIDES: [Target; 2] = [Target::Cpu, Target::Gpu];

/// An [`Auto`] for one side, or for both.
fn auto(target: Option<Target>) -> Auto {
    Auto::new(Some(context())).always(target).unwrap()
}

/// One with a device of its own.
fn fresh() -> (Auto, Context) {
    let context = block_on(Context::open(ContextOptions::default())).unwrap();
    (Auto::new(Some(&context)), context)
}

fn value<T>(answer: Result<Answer<T>>, on: Target) -> T {
    let answer = answer.unwrap();
    assert_eq!((answer.ran.on, answer.ran.why), (on, Why::Always), "{}", answer.ran);
    assert!(answer.failure.is_none());
    answer.value
}

fn bits(numbers: impl IntoIterator<Item = f32>) -> Vec<u32> {
    numbers.into_iter().map(f32::to_bits).collect()
}

/// Asserts that numbers are within an error, relative where they are above 1.
fn near(what: &str, error: f32, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        let within = (found - expected).abs() <= error * expected.abs().max(1.0);
        assert!(within, "{what}: {found}, not {expected}");
    }
}

#[test]
fn both_sides_compute_elementwise_ops_and_rows() {
    let mut rng = rng(1);
    let [a, b] = [3000, 3000].map(|n| floats(&mut rng, n, 4.0));
    let [gain, bias] = [100, 100].map(|n| floats(&mut rng, n, 2.0));
    for on in SIDES {
        let auto = auto(Some(on));
        let each = |f: fn(f32) -> f32| a.iter().map(|&x| f(x)).collect::<Vec<_>>();
        let pairs =
            |f: fn(f32, f32) -> f32| a.iter().zip(&b).map(|(&a, &b)| f(a, b)).collect::<Vec<_>>();
        assert_eq!(value(auto.add(&a, &b), on), pairs(|a, b| a + b));
        assert_eq!(value(auto.mul(&a, &b), on), pairs(|a, b| a * b));
        assert_eq!(value(auto.relu2(&a), on), each(|x| x.max(0.0) * x.max(0.0)));
        let normed = reference::rms_norm(&a, &gain, 1e-5).unwrap();
        assert_eq!(bits(value(auto.rms_norm(&a, &gain, 1e-5), on)), bits(normed));
        // Others within what cases of these ops say more closely.
        near("silu", 3e-6, &value(auto.silu(&a), on), &each(reference::silu));
        near("gelu", 3e-6, &value(auto.gelu(&a), on), &each(reference::gelu));
        let rows: Vec<f32> = a.chunks(100).flat_map(reference::softmax).collect();
        near("softmax", 3e-6, &value(auto.softmax(&a, 100), on), &rows);
        let normed = reference::layer_norm(&a, &gain, &bias, 1e-5).unwrap();
        near("layer_norm", 1e-5, &value(auto.layer_norm(&a, &gain, &bias, 1e-5), on), &normed);
        let exact: f64 = a.iter().map(|&v| f64::from(v)).sum();
        let sum = value(auto.sum(&a), on);
        let error = 40.0 * U * 4.0 * 3000.0;
        assert!(sum.len() == 1 && (f64::from(sum[0]) - exact).abs() <= error, "{sum:?}");
        // Nothing.
        let nothing: [f32; 0] = [];
        assert!(value(auto.silu(&nothing), on).is_empty());
        assert!(value(auto.softmax(&nothing, 5), on).is_empty());
        assert!(value(auto.rms_norm(&nothing, &gain, 0.0), on).is_empty());
        assert_eq!(value(auto.sum(&nothing), on), [0.0]);
    }
}

#[test]
fn both_sides_compute_products() {
    let mut rng = rng(2);
    let [a, b] = [3000, 3000].map(|n| floats(&mut rng, n, 4.0));
    let w = ternary(&mut rng, 40, 100);
    for on in SIDES {
        let auto = auto(Some(on));
        let weights = auto.weights(w.clone()).unwrap();
        let expected = reference::bitlinear(&a, 30, &w).unwrap();
        assert_eq!(bits(value(auto.bitlinear(&a, 30, &weights), on)), bits(expected));
        // A hundred products of up to 16 each.
        let error = 100.0 * (100.0 * 16.0) * U as f32;
        let product = reference::matmul(&a, &b, [30, 100, 30]).unwrap();
        near("matmul", error, &value(auto.matmul(&a, &b, [30, 100, 30]), on), &product);
        let nothing: [f32; 0] = [];
        assert_eq!(value(auto.matmul(&nothing, &nothing, [2, 0, 2]), on), [0.0; 4]);
        assert!(value(auto.bitlinear(&nothing, 0, &weights), on).is_empty());
    }
}

/// A sequence's rows of queries, keys and values, its angles, and its attention.
fn sequence(rng: &mut SmallRng, shape: AttentionShape, tokens: usize) -> [Vec<f32>; 3] {
    let qkv = floats(rng, tokens * shape.row(), 1.0);
    let frequencies: Vec<f32> = (0..shape.head_dim / 2).map(|i| 0.5 / (1 + i) as f32).collect();
    let angles = rope_angles(&frequencies, tokens + 3);
    let (mut rotated, mut cache) = (qkv.clone(), HostKvCache::new(shape).unwrap());
    reference::rope(&mut rotated, &angles, &mut cache).unwrap();
    [qkv, angles, reference::attention(&rotated, &cache).unwrap()]
}

#[test]
fn both_sides_compute_attention() {
    let mut rng = rng(3);
    for (heads, kv_heads, head_dim, tokens) in [(4, 2, 16, 70), (1, 1, 2, 1), (6, 3, 34, 9)] {
        let shape = AttentionShape { heads, kv_heads, head_dim };
        let [qkv, angles, expected] = sequence(&mut rng, shape, tokens);
        // Scores are below √34, of 34 products; a weight is off by as much, and by its exponential
        // and the sums of weights and values over all tokens.
        let error = (2.0 * 34f64.sqrt() * 36.0 + 2.0 * tokens as f64 + 40.0) * U;
        for on in SIDES {
            let y = value(auto(Some(on)).attention(&qkv, &angles, shape), on);
            near("attention", error as f32, &y, &expected);
        }
    }
    let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 16 };
    for on in SIDES {
        let auto = auto(Some(on));
        assert!(value(auto.attention(&Vec::new(), &[], shape), on).is_empty());
        let short = auto.attention(&vec![0.0; 2 * shape.row()], &[0.0; 16], shape);
        assert!(matches!(short, Err(Error::Invalid { .. })));
    }
}

/// Random ternary weights with a scale per 16 columns.
fn by_group(rng: &mut SmallRng, n: usize, k: usize) -> PackedTernary {
    let values: Vec<i8> = (0..n * k).map(|_| rng.random_range(-1..=1)).collect();
    let scales = floats(rng, n * k.div_ceil(16), 2.0);
    PackedTernary::from_values(n, k, &values, Scales::Groups { size: 16, scales }).unwrap()
}

/// Awkward and random shapes, since instruction sets take rows and columns by different numbers.
#[test]
fn promised_ops_are_bit_identical_on_both_sides() {
    let mut rng = rng(4);
    let sides = SIDES.map(|target| auto(Some(target)));
    let awkward = [[1, 1, 1], [2, 16, 64], [3, 17, 63], [9, 100, 65], [5, 33, 300]];
    let random: Vec<_> =
        (0..6).map(|_| [30, 200, 700].map(|most| rng.random_range(1..most))).collect();
    for (i, [m, n, k]) in awkward.into_iter().chain(random).enumerate() {
        let w = if i % 3 == 2 { by_group(&mut rng, n, k) } else { ternary(&mut rng, n, k) };
        let (x, gain) = (floats(&mut rng, m * k, 4.0), floats(&mut rng, k, 2.0));
        let [cpu, gpu] = sides.each_ref().map(|auto| {
            let w = auto.weights(w.clone()).unwrap();
            let y = [
                auto.bitlinear(&x, m, &w),
                auto.add(&x, &x),
                auto.mul(&x, &x),
                auto.relu2(&x),
                auto.rms_norm(&x, &gain, 1e-5),
            ];
            let codes = auto.quantize_activations(&x, m, k).unwrap().value;
            let ternary = auto.quantize_weights(&x, [m, k], WeightQuantizer::absmean()).unwrap();
            let int = auto.quantize_weights(&x, [m, k], WeightQuantizer::int(Bits::Four)).unwrap();
            let y = y.map(|y| bits(y.unwrap().value));
            (y, bits(codes.scales), codes.codes, ternary.value, int.value)
        });
        assert!(cpu == gpu, "{m} tokens, {n} × {k}");
    }
}

#[test]
fn small_calls_leave_the_gpu_alone() {
    let (auto, context) = fresh();
    let compiled = context.compiled_kernels();
    for n in [0, 1, 64, 4096] {
        let answer = auto.add(&vec![1.0; n], &vec![2.0; n]).unwrap();
        assert!(answer.value == vec![3.0; n]);
        assert_eq!(answer.ran.to_string(), "add on the CPU, which is faster");
    }
    assert_eq!(context.compiled_kernels(), compiled);
}

#[test]
fn a_size_is_measured_once() {
    let (auto, _context) = fresh();
    let x = vec![0.5; 200_000];
    let first = auto.gelu(&x).unwrap();
    assert_eq!(first.ran.why, Why::Measured);
    let (again, other) = (auto.gelu(&x).unwrap(), auto.silu(&x).unwrap());
    assert_eq!((again.ran.why, again.ran.on), (Why::Faster, first.ran.on));
    assert_eq!(other.ran.why, Why::Measured, "ops are measured apart");
    near("gelu", 1e-6, &again.value, &first.value);
}

#[test]
fn without_a_gpu_all_runs_on_the_processor() {
    let auto = Auto::new(None);
    let answer = auto.gelu(&[1.0]).unwrap();
    assert_eq!((answer.ran.on, answer.ran.why), (Target::Cpu, Why::NoGpu));
    assert_eq!(answer.ran.to_string(), "gelu on the CPU, since there is no GPU");
    // What is on a GPU all the same is read.
    let x = context().upload(&[-2.0f32, 3.0], [2]).unwrap();
    assert_eq!(auto.relu2(&x).unwrap().value.read().unwrap(), [0.0, 9.0]);
    assert!(matches!(auto.always(Some(Target::Gpu)), Err(Error::Invalid { .. })));
}

#[test]
fn work_stays_where_its_operands_are() {
    let mut rng = rng(5);
    let (auto, w) = (auto(None), ternary(&mut rng, 30, 64));
    let weights = auto.weights(w.clone()).unwrap();
    let (x, gain) = (floats(&mut rng, 6 * 64, 2.0), floats(&mut rng, 64, 1.0));
    let product = |x: &[f32]| bits(reference::bitlinear(x, 6, &w).unwrap());
    let normed = reference::rms_norm(&x, &gain, 1e-5).unwrap();
    for (operand, on, why) in [
        (Value::from(context().upload(&x, [2, 3, 64]).unwrap()), Target::Gpu, Why::Placed),
        (Value::from(x.clone()), Target::Cpu, Why::Faster),
    ] {
        let norm = auto.rms_norm(&operand, &gain, 1e-5).unwrap();
        assert_eq!((norm.ran.on, norm.ran.why, norm.value.target()), (on, why, on));
        let y = auto.bitlinear(&norm.value, 6, &weights).unwrap();
        assert!(y.value.target() == y.ran.on && (y.ran.on == on || on == Target::Cpu));
        assert_eq!(bits(y.value.read().unwrap()), product(&normed));
        let codes = auto.quantize_activations(&norm.value, 6, 64).unwrap().value;
        let y = auto.bitlinear_quantized(&codes, &weights).unwrap();
        assert_eq!((y.ran.on, y.ran.why, y.value.target()), (on, Why::Placed, on));
        assert_eq!(bits(y.value.read().unwrap()), product(&normed));
    }
    // A tensor beside a slice; the first says what the result is.
    let tensor = context().upload(&x, [6, 64]).unwrap();
    let (sum, doubled) = (auto.add(&tensor, &x).unwrap(), auto.add(&x, &tensor).unwrap());
    assert_eq!((sum.ran.on, doubled.ran.on), (Target::Gpu, Target::Gpu));
    assert!(matches!(&sum.value, Placed::Gpu(y) if y.shape() == tensor.shape()));
    assert_eq!(sum.value.read().unwrap(), doubled.value);
    // It is the caller's tensor still.
    let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 16 };
    let [qkv, angles, expected] = sequence(&mut rng, shape, 5);
    let own = context().upload(&qkv, [5, shape.row()]).unwrap();
    let y = auto.attention(&own, &angles, shape).unwrap().value.read().unwrap();
    near("attention", 1e-4, &y, &expected);
    assert_eq!(block_on(own.read()).unwrap(), qkv);
}

#[test]
fn bad_arguments_fail_on_both_sides() {
    let w = ternary(&mut rng(2), 4, 8);
    let nothing: [f32; 0] = [];
    for target in [Some(Target::Cpu), Some(Target::Gpu), None] {
        let auto = auto(target).on_gpu_failure(GpuFailure::ComputeOnCpu);
        let weights = auto.weights(w.clone()).unwrap();
        let refused = [
            auto.add(&[1.0], &nothing),
            auto.mul(&nothing, &[1.0]),
            auto.softmax(&[1.0; 5], 2),
            auto.softmax(&[1.0; 5], 0),
            auto.rms_norm(&[1.0; 5], &[1.0; 2], 0.0),
            auto.layer_norm(&[1.0; 6], &[1.0; 2], &[1.0; 3], 0.0),
            auto.matmul(&[1.0; 6], &[1.0; 6], [2, 3, 3]),
            auto.matmul(&[1.0; 5], &[1.0; 6], [2, 3, 2]),
            auto.matmul(&nothing, &nothing, [usize::MAX, 2, 0]),
            auto.matmul(&nothing, &nothing, [usize::MAX, 0, 2]),
            auto.bitlinear(&[1.0; 9], 1, &weights),
            auto.bitlinear(&[1.0; 8], usize::MAX, &weights),
        ];
        for (i, refused) in refused.into_iter().enumerate() {
            assert!(matches!(refused, Err(Error::Length { .. })), "{i} on {target:?}: {refused:?}");
        }
        assert!(matches!(auto.quantize_activations(&[1.0; 5], 2, 3), Err(Error::Length { .. })));
        let found = auto.quantize_weights(&[1.0; 5], [2, 3], WeightQuantizer::absmean());
        assert!(matches!(found, Err(Error::Length { .. })));
    }
    // Weights that are not on the GPU.
    let elsewhere = Auto::new(None).weights(w).unwrap();
    let found = auto(Some(Target::Gpu)).bitlinear(&[1.0; 8], 1, &elsewhere);
    assert!(matches!(found, Err(Error::Dispatch { .. })));
    let found = auto(None).bitlinear(&[1.0; 8], 1, &elsewhere).unwrap();
    assert_eq!((found.ran.on, found.ran.why), (Target::Cpu, Why::Placed));
}

#[test]
fn too_little_memory_falls_back_aloud() {
    let (auto, context) = fresh();
    let auto = auto.always(Some(Target::Gpu)).unwrap();
    let (x, w) = (vec![2.0; 100_000], ternary(&mut rng(6), 300, 1000));
    let tensor = Value::from(context.upload(&x[..1000], [1000]).unwrap());
    // Room for the tensor and a copy on its way to the host, not for a product.
    context.limit_memory(10_000);
    // Without a policy, an error.
    assert_eq!(auto.add(&x, &x).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(auto.weights(w.clone()).unwrap_err().kind(), ErrorKind::OutOfMemory);

    let auto = auto.on_gpu_failure(GpuFailure::ComputeOnCpu);
    let logged = warnings(|| {
        let answer = auto.add(&x, &x).unwrap();
        assert!(answer.value == vec![4.0; 100_000]);
        assert_eq!((answer.ran.on, answer.ran.why), (Target::Cpu, Why::Failed));
        assert_eq!(answer.failure.unwrap().kind(), ErrorKind::OutOfMemory);
        // What is on the GPU is read.
        let answer = auto.mul(&tensor, &x[..1000]).unwrap();
        assert!(matches!(&answer.value, Placed::Cpu(y) if *y == vec![4.0; 1000]));
        assert!(answer.failure.is_some());
    });
    assert_eq!(logged.len(), 2, "{logged:?}");
    assert!(logged[0].starts_with("auto: add is computed on the CPU, since the GPU failed: "));
    // Weights say so whenever they are used.
    let auto = auto.always(None).unwrap();
    let mut weights = None;
    let logged = warnings(|| weights = Some(auto.weights(w.clone()).unwrap()));
    let answer = auto.bitlinear(&x[..1000], 1, &weights.unwrap()).unwrap();
    assert!(logged.len() == 1 && answer.ran.why == Why::Placed && answer.failure.is_some());
    // When there is memory again, the GPU is taken again.
    context.limit_memory(None);
    let answer = auto.always(Some(Target::Gpu)).unwrap().add(&x, &x).unwrap();
    assert!(answer.ran.on == Target::Gpu && answer.failure.is_none());
}

#[test]
fn a_lost_device_falls_back_aloud() {
    let (auto, context) = fresh();
    let tensor = context.upload(&[1.0f32; 8], [8]).unwrap();
    context.device().destroy();
    let auto = auto.always(Some(Target::Gpu)).unwrap();
    assert_eq!(auto.add(&[1.0], &[2.0]).unwrap_err().kind(), ErrorKind::Lost);
    let auto = auto.on_gpu_failure(GpuFailure::ComputeOnCpu);
    let logged = warnings(|| {
        for _ in 0..3 {
            let answer = auto.add(&[1.0], &[2.0]).unwrap();
            assert_eq!((answer.value, answer.ran.why), (vec![3.0], Why::Failed));
            assert_eq!(answer.failure.unwrap().kind(), ErrorKind::Lost);
        }
        // By a measurement, too.
        let auto = Auto::new(Some(&context)).on_gpu_failure(GpuFailure::ComputeOnCpu);
        let answer = auto.relu2(&vec![3.0; 50_000]).unwrap();
        assert!(answer.value == vec![9.0; 50_000] && answer.ran.why == Why::Failed);
        // What was on it is lost.
        assert_eq!(auto.relu2(&tensor).unwrap_err().kind(), ErrorKind::Lost);
    });
    assert_eq!(logged.len(), 2, "after the first, the GPU is not tried: {logged:?}");
}

#[test]
fn threads_share_it() {
    let auto = auto(None);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let auto = &auto;
            scope.spawn(move || {
                for n in (0..60).map(|i| 1 + i * 977 % 50_000) {
                    let x = floats(&mut rng(seed), n, 1.0);
                    let answer = auto.add(&x, &x).unwrap();
                    let right = answer.value.iter().zip(&x).all(|(y, x)| *y == x + x);
                    assert!(right, "{}", answer.ran);
                }
            });
        }
    });
}
