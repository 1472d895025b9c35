//! The parts of a transformer on the GPU, and their CPU twins, on awkward shapes: with and without subgroup operations.

use bitnet_wgpu::{
    Capabilities, Context, DenseElement, Element, Error, Kernel, PackedDense, PackedTernary, Scales, Tensor,
    bitnet::{self, Gate, Layout, QuantizedActivations},
    bytemuck, catalog, f16, params,
    transformer::{self, AttentionShape, HostKvCache, KvCache, Places, TopK},
};
use rand::{RngExt, rngs::StdRng};
use support::{SHAPES, activations, block_on, contexts, rng, ternary};

/// Half a unit in the last place of 1: the most that a rounding is off, relatively.
const U: f64 = f32::EPSILON as f64 / 2.0;

const DENSE: [DenseElement; 4] = [DenseElement::F32, DenseElement::F16, DenseElement::Bf16, DenseElement::Int8];

fn floats(rng: &mut StdRng, len: usize, bound: f32) -> Vec<f32> {
    (0..len).map(|_| rng.random_range(-bound..bound)).collect()
}

fn dense(rng: &mut StdRng, element: DenseElement, rows: usize, columns: usize) -> PackedDense {
    let values = floats(rng, rows * columns, 3.0);
    let bits: Vec<u16> = match element {
        DenseElement::F16 => values.iter().map(|&v| f16::from_f32(v).to_bits()).collect(),
        _ => values.iter().map(|v| (v.to_bits() >> 16) as u16).collect(),
    };
    match element {
        DenseElement::F32 => PackedDense::from_f32(rows, columns, &values).unwrap(),
        DenseElement::Int8 => PackedDense::from_f32(rows, columns, &values).unwrap().quantize(),
        _ => PackedDense::from_bytes(element, rows, columns, bytemuck::cast_slice(&bits)).unwrap(),
    }
}

/// A tensor of NaNs: what is not written shows.
fn unwritten<const N: usize>(context: &Context, shape: [usize; N]) -> Tensor<f32> {
    context.upload(&vec![f32::NAN; shape.iter().product()], shape).unwrap()
}

fn short_grids(context: &Context, max_workgroups: u32) -> Context {
    context.restricted(|c: &mut Capabilities| c.max_workgroups = max_workgroups)
}

#[track_caller]
fn assert_bits(got: &[f32], want: &[f32], case: &str) {
    assert_eq!(got.len(), want.len(), "{case}");
    let different = got.iter().zip(want).position(|(g, w)| g.to_bits() != w.to_bits() && !(g.is_nan() && w.is_nan()));
    assert!(different.is_none(), "{case}: number {different:?} of {}: {:?}", got.len(), different.map(|i| (got[i], want[i])));
}

#[track_caller]
fn assert_shape<T: std::fmt::Debug>(result: bitnet_wgpu::Result<T>) {
    assert!(matches!(result, Err(Error::Shape { .. })), "{result:?}");
}

#[track_caller]
fn assert_invalid<T: std::fmt::Debug>(result: bitnet_wgpu::Result<T>) {
    assert!(matches!(result, Err(Error::Invalid { .. })), "{result:?}");
}

// Embedding ---------------------------------------------------------------------------------------------------------------------------------

fn check_embed(context: &Context, rng: &mut StdRng, element: DenseElement, (m, rows, columns): (usize, usize, usize)) {
    let table = dense(rng, element, rows, columns);
    let mut tokens: Vec<u32> = (0..m).map(|_| rng.random_range(0..rows as u32)).collect();
    tokens.iter_mut().step_by(3).for_each(|token| *token = rows as u32 - 1);
    let mut encoder = context.encoder("test");
    let y = unwritten(context, [m, columns]);
    let gpu_table = table.upload(context).unwrap();
    transformer::embed_into(&mut encoder, &context.upload(&tokens, [m]).unwrap(), &gpu_table, &y).unwrap();
    let _ = encoder.submit().unwrap();
    let case = format!("{m} of {rows} × {columns} {element:?}, {:?}", context.capabilities());
    assert_bits(&block_on(y.read()).unwrap(), &transformer::embed_cpu(&tokens, &table).unwrap(), &case);
}

#[test]
fn embed_equals_the_cpu() {
    let shapes = [(0, 3, 5), (3, 4, 0), (1, 1, 1), (3, 7, 13), (17, 5, 16), (2, 9, 33), (64, 3, 65), (5, 31, 127), (301, 19, 31)];
    let mut rng = rng(21);
    for context in contexts() {
        for element in DENSE {
            shapes.into_iter().for_each(|shape| check_embed(&context, &mut rng, element, shape));
            // From 19 to 75 workgroups.
            check_embed(&short_grids(&context, 9), &mut rng, element, (300, 7, 61));
        }
    }
}

#[test]
fn embed_reads_the_last_row_for_tokens_beyond() {
    let context = support::context();
    let table = dense(&mut rng(22), DenseElement::Bf16, 5, 9);
    let tokens = [5, u32::MAX, 0];
    let mut encoder = context.encoder("test");
    let y = transformer::embed(&mut encoder, &context.upload(&tokens, [3]).unwrap(), &table.upload(context).unwrap()).unwrap();
    let _ = encoder.submit().unwrap();
    assert_bits(&block_on(y.read()).unwrap(), &[table.row(4), table.row(4), table.row(0)].concat(), "tokens beyond");
    assert_invalid(transformer::embed_cpu(&tokens, &table));
}

#[test]
fn embed_refuses_what_does_not_fit() {
    let context = support::context();
    let mut encoder = context.encoder("test");
    let tokens = context.upload(&[0u32, 0], [2]).unwrap();
    let table = dense(&mut rng(23), DenseElement::F32, 3, 4).upload(context).unwrap();
    assert_shape(transformer::embed_into(&mut encoder, &tokens, &table, &unwritten(context, [2, 5])));
    assert_shape(transformer::embed_into(&mut encoder, &tokens, &table, &unwritten(context, [3, 4])));
    let empty = dense(&mut rng(23), DenseElement::F32, 0, 4).upload(context).unwrap();
    assert_invalid(transformer::embed(&mut encoder, &tokens, &empty));
    assert!(encoder.is_empty());
}

// The head ----------------------------------------------------------------------------------------------------------------------------------

/// Columns of a row with what pads it to whole groups of sixteen bytes.
fn padded(element: DenseElement, columns: usize) -> usize {
    (columns * element.bytes()).div_ceil(16) * 16 / element.bytes()
}

fn check_dense_gemv(context: &Context, rng: &mut StdRng, element: DenseElement, (m, n, k): (usize, usize, usize)) {
    let case = format!("{m} × {n} × {k} {element:?}, {:?}", context.capabilities());
    let (w, x) = (dense(rng, element, n, k), floats(rng, m * k, 2.0));
    let width = padded(element, k);
    let mut wide = vec![0.0; m * width];
    for token in 0..m {
        wide[token * width..][..k].copy_from_slice(&x[token * k..][..k]);
    }
    let mut encoder = context.encoder("test");
    let y = unwritten(context, [m, n]);
    transformer::dense_gemv_into(&mut encoder, &context.upload(&wide, [m, width]).unwrap(), &w.upload(context).unwrap(), &y).unwrap();
    let _ = encoder.submit().unwrap();
    let (gpu, cpu) = (block_on(y.read()).unwrap(), transformer::dense_gemv_cpu(&x, &w).unwrap());
    let rows: Vec<Vec<f32>> = (0..n).map(|row| w.row(row)).collect();
    for (whose, got) in [("GPU", gpu), ("CPU", cpu)] {
        assert_eq!(got.len(), m * n, "{whose}: {case}");
        for (at, &got) in got.iter().enumerate() {
            let terms = || rows[at % n].iter().zip(&x[at / n * k..][..k]).map(|(&w, &x)| f64::from(w) * f64::from(x));
            // A rounding for the product, less than k for additions in whatever order, one for the scale, and one for that of `row`.
            let bound = terms().map(f64::abs).sum::<f64>() * (k + 3) as f64 * U;
            let exact: f64 = terms().sum();
            assert!((f64::from(got) - exact).abs() <= bound, "{whose}: output {at} of {case}: {got} for {exact} ± {bound}");
        }
    }
}

#[test]
fn dense_gemv_is_within_its_tolerance() {
    let shapes = [
        (0, 5, 16),
        (2, 0, 16),
        (1, 1, 1),
        (1, 3, 4),
        (2, 31, 5),
        (3, 32, 8),
        (4, 33, 15),
        (5, 67, 17),
        (9, 7, 33),
        (1, 130, 257),
        (2, 5, 1280),
    ];
    let mut rng = rng(24);
    for context in contexts() {
        for element in DENSE {
            shapes.into_iter().for_each(|shape| check_dense_gemv(&context, &mut rng, element, shape));
        }
    }
}

#[test]
fn dense_gemv_refuses_what_does_not_fit() {
    let context = support::context();
    let mut encoder = context.encoder("test");
    let w = dense(&mut rng(25), DenseElement::Int8, 70, 20).upload(context).unwrap();
    assert_shape(transformer::dense_gemv(&mut encoder, &unwritten(context, [1, 20]), &w));
    assert_shape(transformer::dense_gemv_into(&mut encoder, &unwritten(context, [2, 32]), &w, &unwritten(context, [1, 70])));
    assert_shape(transformer::dense_gemv_into(&mut encoder, &unwritten(context, [2, 32]), &w, &unwritten(context, [2, 69])));
    // Its grid has tokens in the second dimension, so it does not fold.
    let mut encoder = short_grids(context, 2).encoder("test");
    let result = transformer::dense_gemv(&mut encoder, &unwritten(context, [1, 32]), &w);
    assert!(matches!(result, Err(Error::Grid { grid: [3, 1, 1], .. })), "{result:?}");
    assert!(matches!(transformer::dense_gemv_cpu(&[0.0; 3], &dense(&mut rng(25), DenseElement::F32, 2, 2)), Err(Error::Length { .. })));
}

// RMSNorm -----------------------------------------------------------------------------------------------------------------------------------

fn check_rms_norm(context: &Context, rng: &mut StdRng, (m, k): (usize, usize), first: usize, tokens: usize, padding: usize) {
    let (mut x, gain, eps) = (floats(rng, m * k, 4.0), floats(rng, k, 2.0), 1e-5);
    x.chunks_mut(k.max(1)).skip(2).step_by(3).for_each(|row| row.fill(0.0));
    let width = k + padding;
    let case = format!("rows {first}.. of {m} × {k} as {tokens} × {width}, {:?}", context.capabilities());
    let mut encoder = context.encoder("test");
    let (gx, gg, y) = (context.upload(&x, [m, k]).unwrap(), context.upload(&gain, [k]).unwrap(), unwritten(context, [tokens, width]));
    transformer::rms_norm(&mut encoder, &gx, first, &gg, eps, &y).unwrap();
    let _ = encoder.submit().unwrap();
    let gpu = block_on(y.read()).unwrap();
    let cpu = transformer::rms_norm_cpu(&x, &gain, eps).unwrap();
    for token in 0..tokens {
        let row = &x[(first + token) * k..][..k];
        let mean = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / k as f64;
        let inverse = 1.0 / (mean + f64::from(eps)).sqrt();
        // Half of k roundings in the mean of squares (a square root halves them; a sum's are fewer than its terms), and a dozen in divisions,
        // root and products, a GPU's division being off by up to 2.5 units.
        let error = (k as f64 / 2.0 + 12.0) * f64::from(f32::EPSILON);
        for (whose, got) in [("GPU", &gpu[token * width..][..k]), ("CPU", &cpu[(first + token) * k..][..k])] {
            for (i, (&got, (&v, &g))) in got.iter().zip(row.iter().zip(&gain)).enumerate() {
                let exact = f64::from(v) * inverse * f64::from(g);
                assert!((f64::from(got) - exact).abs() <= error * exact.abs(), "{whose}: {i} of row {token} of {case}: {got} for {exact}");
            }
        }
        assert!(gpu[token * width..][k..width].iter().all(|v| v.to_bits() == 0), "padding of row {token} of {case}");
    }
}

#[test]
fn rms_norm_is_within_its_tolerance() {
    let mut rng = rng(26);
    for context in contexts() {
        for (m, k, first, tokens, padding) in [
            (1, 1, 0, 1, 0),
            (2, 31, 1, 1, 1),
            (5, 257, 0, 5, 15),
            (3, 1280, 2, 1, 0),
            (4, 8, 4, 0, 0),
            (0, 8, 0, 0, 8),
            (7, 33, 3, 2, 300),
            (3, 2560, 0, 3, 0),
        ] {
            check_rms_norm(&context, &mut rng, (m, k), first, tokens, padding);
        }
        check_rms_norm(&short_grids(&context, 7), &mut rng, (45, 19), 4, 40, 13);
    }
}

#[test]
fn rms_norm_refuses_what_does_not_fit() {
    let context = support::context();
    let mut encoder = context.encoder("test");
    let (x, gain) = (unwritten(context, [3, 8]), unwritten(context, [8]));
    assert_shape(transformer::rms_norm(&mut encoder, &x, 0, &unwritten(context, [7]), 1e-5, &unwritten(context, [3, 8])));
    assert_shape(transformer::rms_norm(&mut encoder, &x, 0, &gain, 1e-5, &unwritten(context, [3, 7])));
    assert_shape(transformer::rms_norm(&mut encoder, &x, 1, &gain, 1e-5, &unwritten(context, [3, 8])));
    assert_shape(transformer::rms_norm(&mut encoder, &x, 4, &gain, 1e-5, &unwritten(context, [0, 8])));
    assert!(matches!(transformer::rms_norm_cpu(&[0.0; 3], &[1.0; 2], 1e-5), Err(Error::Length { .. })));
}

// Rotary positions --------------------------------------------------------------------------------------------------------------------------

params! { struct RopeParams { tokens: u32, run: u32, slot: u32, heads: u32, kv_heads: u32, head_dim: u32, capacity: u32 } }

fn kernel(name: &str) -> &'static Kernel {
    catalog().find(|kernel| kernel.name == name).unwrap()
}

fn shape(heads: usize, kv_heads: usize, head_dim: usize) -> AttentionShape {
    AttentionShape { heads, kv_heads, head_dim }
}

/// A cache's tensor that starts with odd numbers, none of which may change but those that are stored.
struct Stored {
    before: Vec<f32>,
    /// What is stored, and how far `f32` may stray from it.
    wanted: Vec<Option<(f64, f64)>>,
}

impl Stored {
    fn new(len: usize) -> Self {
        // Exact in f16.
        Self { before: (0..len).map(|i| (i % 1949) as f32 + 99.0).collect(), wanted: vec![None; len] }
    }

    fn check(&self, got: &[f32], half: bool, case: &str) {
        assert_eq!(got.len(), self.before.len(), "{case}");
        for (i, (&got, wanted)) in got.iter().zip(&self.wanted).enumerate() {
            let Some((exact, error)) = *wanted else {
                assert_eq!(got.to_bits(), self.before[i].to_bits(), "{case}: neighbour {i}");
                continue;
            };
            // A unit in the last place of a half: Vulkan leaves open how a conversion rounds.
            let rounding = if half { exact.abs().max(6.2e-5) / 1024.0 } else { 0.0 };
            assert!((f64::from(got) - exact).abs() <= error + rounding, "{case}: {i} is {got}, not {exact}");
        }
    }
}

struct RopeCase {
    shape: AttentionShape,
    capacity: usize,
    slot: usize,
    run: usize,
    sequences: usize,
    /// One a slot.
    positions: Vec<u32>,
}

/// The kernel on tensors of our own, since those of a cache are not to be seen.
fn check_rope(context: &Context, rng: &mut StdRng, case: &RopeCase, half: bool) {
    let &RopeCase { shape, capacity, slot, run, sequences, ref positions } = case;
    let AttentionShape { heads, kv_heads, head_dim } = shape;
    let (tokens, quads, middle) = (run * sequences, head_dim.div_ceil(4), head_dim / 2);
    let name =
        format!("{shape:?}, {capacity} positions, {sequences} runs of {run} at {positions:?}, half {half}, {:?}", context.capabilities());
    let qkv = floats(rng, tokens * shape.row(), 5.0);
    let frequencies: Vec<f32> = (0..middle).map(|i| 100f32.powf(-(i as f32) / middle as f32)).collect();
    let angles = transformer::rope_angles(&frequencies, capacity);

    let len = positions.len() * kv_heads * quads * capacity * 4;
    let (mut queries, mut keys, mut values) = (Stored::new(0), Stored::new(len), Stored::new(len));
    (queries.before, queries.wanted) = (qkv.clone(), vec![None; qkv.len()]);
    for token in 0..tokens {
        let at_slot = slot + token / run;
        let position = positions[at_slot] as usize + token % run;
        for (head, i) in (0..heads + 2 * kv_heads).flat_map(|head| (0..head_dim).map(move |i| (head, i))).filter(|_| position < capacity) {
            let start = token * shape.row() + head * head_dim;
            let v = |i: usize| f64::from(qkv[start + i]);
            let turn = |j: usize| f64::from(angles[(position * middle + i % middle) * 2 + j]);
            let other = if i < middle { -v(i + middle) } else { v(i - middle) };
            let (a, b) = (v(i) * turn(0), other * turn(1));
            // Two products and their sum are rounded, or fewer.
            let turned = Some((a + b, 2.0 * U * (a.abs() + b.abs())));
            let row = |first: usize| at_slot * kv_heads + head - first;
            match head {
                _ if head < heads => queries.wanted[start + i] = turned,
                _ if head < heads + kv_heads => keys.wanted[((row(heads) * quads + i / 4) * capacity + position) * 4 + i % 4] = turned,
                _ => values.wanted[(row(heads + kv_heads) * capacity + position) * quads * 4 + i] = Some((v(i), 0.0)),
            }
        }
    }

    let mut encoder = context.encoder("test");
    let gpu_positions = context.upload(positions, [positions.len()]).unwrap();
    let gpu_angles = context.upload(&angles, [angles.len()]).unwrap();
    let gpu_qkv = context.upload(&qkv, [qkv.len()]).unwrap();
    let params = RopeParams {
        tokens: tokens as u32,
        run: run as u32,
        slot: slot as u32,
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        head_dim: head_dim as u32,
        capacity: capacity as u32,
    };
    let extent = [tokens * shape.row() / 2, 1, 1];
    let (got_keys, got_values) = if half {
        let upload = |stored: &Stored| context.upload(&support::halves(&stored.before), [len]).unwrap();
        let (k, v) = (upload(&keys), upload(&values));
        encoder.dispatch(kernel("rope"), &params, &[&gpu_positions, &gpu_angles, &gpu_qkv, &k, &v], extent).unwrap();
        let _ = encoder.submit().unwrap();
        let read = |tensor: &Tensor<f16>| block_on(tensor.read()).unwrap().iter().map(|v| v.to_f32()).collect::<Vec<_>>();
        (read(&k), read(&v))
    } else {
        let upload = |stored: &Stored| context.upload(&stored.before, [len]).unwrap();
        let (k, v) = (upload(&keys), upload(&values));
        encoder.dispatch(kernel("rope"), &params, &[&gpu_positions, &gpu_angles, &gpu_qkv, &k, &v], extent).unwrap();
        let _ = encoder.submit().unwrap();
        (block_on(k.read()).unwrap(), block_on(v.read()).unwrap())
    };
    queries.check(&block_on(gpu_qkv.read()).unwrap(), false, &format!("queries: {name}"));
    keys.check(&got_keys, half, &format!("keys: {name}"));
    values.check(&got_values, half, &format!("values: {name}"));
}

#[test]
fn rope_turns_and_stores() {
    let case = |shape, capacity, slot, run, sequences, positions: &[u32]| RopeCase {
        shape,
        capacity,
        slot,
        run,
        sequences,
        positions: positions.to_vec(),
    };
    let cases = [
        case(shape(1, 1, 2), 1, 0, 1, 1, &[0]),
        case(shape(3, 1, 6), 5, 0, 1, 1, &[4]),
        case(shape(4, 2, 14), 7, 0, 5, 1, &[1]),
        // The last tokens of the first run, and all of the second, have no room.
        case(shape(2, 2, 40), 9, 1, 4, 2, &[0, 7, 9, 3]),
        case(shape(8, 2, 64), 33, 2, 1, 3, &[5, 5, 0, 32, 40]),
        case(shape(6, 3, 32), 11, 0, 11, 1, &[0, 4]),
        case(shape(2, 1, 128), 3, 0, 0, 0, &[0]),
    ];
    let mut rng = rng(27);
    for context in contexts() {
        for case in &cases {
            check_rope(&context, &mut rng, case, false);
            if context.capabilities().f16 {
                check_rope(&context, &mut rng, case, true);
            }
        }
        // 65 workgroups.
        check_rope(&short_grids(&context, 10), &mut rng, &case(shape(6, 2, 64), 17, 0, 13, 1, &[3]), false);
    }
}

#[test]
fn rope_cpu_turns_as_the_gpu() {
    let context = support::context();
    let (shape, mut rng) = (shape(4, 2, 14), rng(28));
    let frequencies: Vec<f32> = (0..7).map(|i| 10f32.powi(-i)).collect();
    let angles = transformer::rope_angles(&frequencies, 13);
    let (first, second) = (floats(&mut rng, 6 * shape.row(), 2.0), floats(&mut rng, 3 * shape.row(), 2.0));
    let mut cache = HostKvCache::new(shape).unwrap();
    let (mut cpu, gpu) = (second.clone(), context.upload(&second, [3, shape.row()]).unwrap());
    transformer::rope_cpu(&mut first.clone(), &angles, &mut cache).unwrap();
    transformer::rope_cpu(&mut cpu, &angles, &mut cache).unwrap();
    assert_eq!(cache.len(), 9);
    let gpu_cache = KvCache::new(context, shape, 1, 13, Element::F32).unwrap();
    let mut encoder = context.encoder("test");
    let positions = context.upload(&[6u32], [1]).unwrap();
    transformer::rope(
        &mut encoder,
        &gpu,
        &Places { slot: 0, run: 3, positions: &positions },
        &context.upload(&angles, [13, 7, 2]).unwrap(),
        &gpu_cache,
    )
    .unwrap();
    let _ = encoder.submit().unwrap();
    for (gpu, cpu) in block_on(gpu.read()).unwrap().chunks(shape.row()).zip(cpu.chunks(shape.row())) {
        // Numbers below 2: two products and a sum, on each side.
        assert!(gpu.iter().zip(cpu).take(4 * 14).all(|(g, c)| f64::from(g - c).abs() <= 4.0 * U * 4.0), "{gpu:?}, not {cpu:?}");
    }
    assert_invalid(transformer::rope_cpu(&mut floats(&mut rng, 5 * shape.row(), 1.0), &angles, &mut cache));
    assert!(matches!(transformer::rope_cpu(&mut [0.0; 3], &angles, &mut cache), Err(Error::Length { .. })));
    cache.truncate(2);
    assert_eq!(cache.len(), 2);
}

#[test]
fn rope_and_attention_refuse_what_does_not_fit() {
    let context = support::context();
    let mut encoder = context.encoder("test");
    let shape = shape(4, 2, 6);
    let cache = KvCache::new(context, shape, 3, 5, Element::F32).unwrap();
    let positions = context.upload(&[0u32; 3], [3]).unwrap();
    let qkv = |tokens: usize| unwritten(context, [tokens, shape.row()]);
    let angles = unwritten(context, [5, 3, 2]);
    let mut rope = |qkv: &Tensor<f32>, slot, run, positions: &Tensor<u32>, angles: &Tensor<f32>| {
        let y = unwritten(context, [qkv.shape().as_matrix().0, 24]);
        let attended = transformer::attention(&mut encoder, qkv, &Places { slot, run, positions }, &cache, 1, &y);
        let turned = transformer::rope(&mut encoder, qkv, &Places { slot, run, positions }, angles, &cache);
        if turned.is_ok() { attended } else { turned }
    };
    rope(&qkv(2), 1, 1, &positions, &angles).unwrap();
    assert_shape(rope(&unwritten(context, [2, shape.row() + 1]), 0, 1, &positions, &angles));
    assert_shape(rope(&qkv(1), 0, 1, &context.upload(&[0u32; 2], [2]).unwrap(), &angles));
    assert_shape(rope(&qkv(1), 0, 1, &positions, &unwritten(context, [4, 3, 2])));
    assert_invalid(rope(&qkv(3), 0, 2, &positions, &angles));
    assert_invalid(rope(&qkv(3), 0, 0, &positions, &angles));
    assert_invalid(rope(&qkv(3), 1, 1, &positions, &angles));
    assert_invalid(rope(&qkv(1), usize::MAX, 1, &positions, &angles));
    let y = unwritten(context, [1, 23]);
    assert_shape(transformer::attention(&mut encoder, &qkv(1), &Places { slot: 0, run: 1, positions: &positions }, &cache, 1, &y));
    for (heads, kv_heads, head_dim) in [(3, 2, 8), (2, 0, 8), (0, 1, 8), (2, 1, 7), (2, 1, 0), (2, 1, 258)] {
        let shape = AttentionShape { heads, kv_heads, head_dim };
        assert_invalid(KvCache::new(context, shape, 1, 4, Element::F32));
        assert_invalid(HostKvCache::new(shape));
    }
    assert_invalid(KvCache::new(context, shape, 1, 4, Element::U32));
    for (slots, capacity) in [(usize::MAX, 4), (1, usize::MAX)] {
        let cache = KvCache::new(context, shape, slots, capacity, Element::F32);
        assert!(matches!(cache, Err(Error::TooLarge { .. })), "{cache:?}");
    }
    let host = HostKvCache::new(shape).unwrap();
    assert_invalid(transformer::attention_cpu(&vec![0.0; shape.row()], &host));
    assert!(matches!(transformer::attention_cpu(&[0.0; 3], &host), Err(Error::Length { .. })));
}

// Attention ---------------------------------------------------------------------------------------------------------------------------------

struct AttentionCase {
    shape: AttentionShape,
    element: Element,
    /// Tokens before the run, of every slot.
    past: Vec<usize>,
    slot: usize,
    run: usize,
    sequences: usize,
    splits: usize,
}

/// Tokens of every slot: those of the past, then those of the run.
struct Sequences {
    rows: Vec<Vec<f32>>,
    /// Are scores exact in `f32`?
    exact: bool,
}

/// Rows `[heads + 2·kv_heads, D]` of numbers that are exact in f16.
fn plain(rng: &mut StdRng, case: &AttentionCase, bound: f32) -> Sequences {
    let numbers = |rng: &mut StdRng, tokens: usize| {
        let numbers = floats(rng, tokens * case.shape.row(), bound);
        numbers.iter().map(|&v| f16::from_f32(v).to_f32()).collect()
    };
    Sequences { rows: case.past.iter().map(|past| numbers(rng, past + case.run)).collect(), exact: false }
}

/// Turns nothing, so that caches hold what queries, keys and values are.
fn no_turn(capacity: usize, head_dim: usize) -> Vec<f32> {
    [1.0, 0.0].repeat(capacity * head_dim / 2)
}

fn gpu_attention(context: &Context, case: &AttentionCase, given: &Sequences) -> Vec<f32> {
    let (shape, slots) = (case.shape, case.past.len());
    // Odd, and no more than what is needed.
    let capacity = (case.past.iter().max().unwrap() + case.run) | 1;
    let cache = KvCache::new(context, shape, slots, capacity, case.element).unwrap();
    let angles = context.upload(&no_turn(capacity, shape.head_dim), [capacity, shape.head_dim / 2, 2]).unwrap();
    let zeros = context.upload(&vec![0u32; slots], [slots]).unwrap();
    let past: Vec<u32> = case.past.iter().map(|&past| past as u32).collect();
    let positions = context.upload(&past, [slots]).unwrap();
    let mut encoder = context.encoder("test");
    for (slot, (&past, rows)) in case.past.iter().zip(&given.rows).enumerate().filter(|(_, (past, _))| **past > 0) {
        let qkv = context.upload(&rows[..past * shape.row()], [past, shape.row()]).unwrap();
        transformer::rope(&mut encoder, &qkv, &Places { slot, run: past, positions: &zeros }, &angles, &cache).unwrap();
    }
    let used = case.slot..case.slot + case.sequences;
    let new: Vec<f32> = used.flat_map(|slot| given.rows[slot][case.past[slot] * shape.row()..].to_vec()).collect();
    let tokens = case.sequences * case.run;
    let qkv = context.upload(&new, [tokens, shape.row()]).unwrap();
    transformer::rope(&mut encoder, &qkv, &Places { slot: case.slot, run: case.run, positions: &positions }, &angles, &cache).unwrap();
    let y = unwritten(context, [tokens, shape.heads * shape.head_dim]);
    transformer::attention(&mut encoder, &qkv, &Places { slot: case.slot, run: case.run, positions: &positions }, &cache, case.splits, &y)
        .unwrap();
    let _ = encoder.submit().unwrap();
    block_on(y.read()).unwrap()
}

fn cpu_attention(case: &AttentionCase, given: &Sequences) -> Vec<f32> {
    let shape = case.shape;
    let one = |slot: usize| {
        let (past, new) = given.rows[slot].split_at(case.past[slot] * shape.row());
        let mut cache = HostKvCache::new(shape).unwrap();
        let angles = no_turn(case.past[slot] + case.run, shape.head_dim);
        transformer::rope_cpu(&mut past.to_vec(), &angles, &mut cache).unwrap();
        let mut new = new.to_vec();
        transformer::rope_cpu(&mut new, &angles, &mut cache).unwrap();
        transformer::attention_cpu(&new, &cache).unwrap()
    };
    (case.slot..case.slot + case.sequences).flat_map(one).collect()
}

/// What attention is, in `f64`, and by how much `f32` may miss it: for every output.
fn exact_attention(case: &AttentionCase, given: &Sequences) -> Vec<(f64, f64)> {
    let AttentionShape { heads, kv_heads, head_dim } = case.shape;
    let scale = f64::from((head_dim as f32).sqrt().recip());
    let mut all = Vec::new();
    for slot in case.slot..case.slot + case.sequences {
        let row = |token: usize, head: usize| &given.rows[slot][token * case.shape.row() + head * head_dim..][..head_dim];
        for (token, head) in (0..case.run).flat_map(|token| (0..heads).map(move |head| (token, head))) {
            let (last, shared) = (case.past[slot] + token, head / (heads / kv_heads));
            let q = row(last, head);
            let terms = |position: usize| q.iter().zip(row(position, heads + shared)).map(|(&q, &k)| f64::from(q) * f64::from(k) * scale);
            let scores: Vec<f64> = (0..=last).map(|position| terms(position).sum()).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let total: f64 = weights.iter().sum();
            // A score strays by a rounding of q, of a product, and of less than D sums. What all scores have in common cancels out. Then there
            // are a difference, which is off by U·|x|, and exp, by (3 + 2·|x|)·2U as WGSL has it, on the way from the score to the largest of
            // its tile, from there to those of later tiles and of other shares: the |x| add up to that of the whole way; and a product each.
            let steps = (last / 128 + 3) as f64;
            let stray = |position: usize| {
                let score = if given.exact { 0.0 } else { terms(position).map(f64::abs).sum::<f64>() * (head_dim + 2) as f64 * U };
                (score + (5.0 * (largest - scores[position]) + 7.0 * steps) * U).exp_m1()
            };
            let strays: Vec<f64> = (0..=last).map(stray).collect();
            for d in 0..head_dim {
                let v = |position: usize| f64::from(row(position, heads + kv_heads + shared)[d]);
                let sum = |of: &dyn Fn(usize) -> f64| {
                    (0..=last).map(|p| if weights[p] == 0.0 { 0.0 } else { weights[p] * of(p) }).sum::<f64>() / total
                };
                let y = sum(&v);
                // Sums of weights and of weighted values in some order, their quotient (2.5 units), and weights that are flushed.
                let sums = 2.0 * (last + 12) as f64 * U * sum(&|p| v(p).abs());
                all.push((y, sum(&|p| strays[p] * (v(p).abs() + y.abs())) + sums + 1e-30));
            }
        }
    }
    all
}

fn check_attention(context: &Context, case: &AttentionCase, given: &Sequences) {
    let AttentionCase { shape, element, past, slot, run, sequences, splits } = case;
    let name = format!(
        "{shape:?} {element:?}, {sequences} runs of {run} from slot {slot} of {past:?}, {splits} splits, {:?}",
        context.capabilities()
    );
    let exact = exact_attention(case, given);
    for (whose, got) in [("GPU", gpu_attention(context, case, given)), ("CPU", cpu_attention(case, given))] {
        assert_eq!(got.len(), exact.len(), "{whose}: {name}");
        for (at, (&got, &(exact, bound))) in got.iter().zip(&exact).enumerate() {
            assert!(bound < 0.1, "{name}: a bound of {bound} shows nothing");
            assert!((f64::from(got) - exact).abs() <= bound, "{whose}: output {at} of {name}: {got} for {exact} ± {bound}");
        }
    }
}

fn elements(context: &Context) -> &'static [Element] {
    if context.capabilities().f16 { &[Element::F32, Element::F16] } else { &[Element::F32] }
}

#[test]
fn attention_is_within_its_tolerance() {
    let one = |heads, kv_heads, head_dim, past, run, splits| (shape(heads, kv_heads, head_dim), vec![past], 0, run, 1, splits);
    let cases = [
        one(1, 1, 2, 0, 1, 1),
        one(2, 1, 6, 126, 1, 1),
        one(3, 1, 14, 127, 1, 2),
        one(4, 1, 32, 128, 1, 5),
        one(8, 1, 40, 299, 1, 3),
        one(8, 2, 64, 299, 1, 40),
        one(5, 5, 128, 128, 1, 2),
        one(6, 2, 256, 40, 1, 1),
        // As many rows as the kernel for few takes, and one more.
        one(2, 1, 6, 126, 2, 1),
        one(1, 1, 40, 124, 5, 1),
        // Tiles of rows that end in a run, and positions that some rows of a tile do not see.
        one(3, 1, 14, 0, 129, 1),
        one(4, 2, 6, 120, 20, 5),
        one(8, 1, 32, 297, 3, 2),
        one(2, 2, 256, 250, 11, 3),
        (shape(4, 2, 40), vec![0, 5, 127, 128, 299], 0, 1, 5, 2),
        (shape(4, 1, 14), vec![9, 130, 0, 3], 1, 7, 2, 2),
        (shape(2, 1, 2), vec![3, 3], 1, 0, 0, 1),
    ];
    let mut rng = rng(29);
    for context in contexts() {
        for &element in elements(&context) {
            for (shape, past, slot, run, sequences, splits) in cases.clone() {
                let case = AttentionCase { shape, element, past, slot, run: run.max(1), sequences, splits };
                check_attention(&context, &case, &plain(&mut rng, &case, 1.5));
            }
        }
    }
}

#[test]
fn huge_scores_do_not_overflow() {
    let mut rng = rng(30);
    for context in contexts() {
        for &element in elements(&context) {
            for (run, splits) in [(1, 1), (1, 3), (5, 2)] {
                let case = AttentionCase { shape: shape(4, 2, 64), element, past: vec![290], slot: 0, run, sequences: 1, splits };
                // Whole numbers, products and sums of which are: 64·500² < 2^24, over 8.
                let mut given = plain(&mut rng, &case, 500.0);
                given.rows.iter_mut().flatten().for_each(|v| *v = v.round());
                given.exact = true;
                // Values that tell which position won.
                for row in given.rows.iter_mut().flat_map(|rows| rows.chunks_mut(case.shape.row())) {
                    row[6 * 64..].iter_mut().for_each(|v| *v /= 512.0);
                }
                check_attention(&context, &case, &given);
            }
        }
        // Scores up to 2^118 and down to -2^93 (-10^30 is less than any may be); equal ones share the weight.
        for (key, query) in [(2f32.powi(60), 2f32.powi(60)), (-2f32.powi(50), 2f32.powi(45)), (2f32.powi(60), 0.0)] {
            let case =
                AttentionCase { shape: shape(2, 1, 16), element: Element::F32, past: vec![200], slot: 0, run: 1, sequences: 1, splits: 2 };
            let mut given = plain(&mut rng, &case, 1.0);
            for (token, row) in given.rows[0].chunks_mut(case.shape.row()).enumerate() {
                row[..3 * 16].fill(0.0);
                (row[3], row[16 + 3], row[32 + 3]) = (query, -query.min(2f32.powi(30)), if token % 3 == 0 { key } else { key / 2.0 });
            }
            given.exact = true;
            check_attention(&context, &case, &given);
        }
    }
}

#[test]
fn splits_keep_a_gpu_busy_and_have_work() {
    assert_eq!(transformer::attention_splits(1, 1), 1);
    assert_eq!(transformer::attention_splits(0, 0), 1);
    assert_eq!(transformer::attention_splits(8, 4096), 32);
    assert_eq!(transformer::attention_splits(64, 4096), 4);
    assert_eq!(transformer::attention_splits(1000, 4096), 1);
    assert_eq!(transformer::attention_splits(5, 129), 2);
}

// The largest logits ------------------------------------------------------------------------------------------------------------------------

fn check_top_k(context: &Context, logits: &[f32], count: usize, k: usize, named: bool, case: &str) {
    let rows = logits.len() / count.max(1);
    let mut encoder = context.encoder("test");
    let into = named.then(|| context.upload(&vec![7u32; rows * k], [rows, k]).unwrap());
    let top = transformer::top_k(&mut encoder, &context.upload(logits, [rows, count]).unwrap(), k, into.as_ref()).unwrap();
    let _ = encoder.submit().unwrap();
    let (found, ids) = (block_on(top.logits.read()).unwrap(), block_on(into.as_ref().unwrap_or(&top.ids).read()).unwrap());
    assert_eq!(top.ids.shape().dims(), [rows, k]);
    for row in 0..rows {
        let case = format!("{case}, row {row} of {rows} × {count}, k = {k}, {:?}", context.capabilities());
        let mut expected = transformer::top_k_cpu(&logits[row * count..][..count], k);
        assert_eq!(expected.len(), k.min(count), "{case}");
        expected.resize(k, (TopK::NONE, f32::NEG_INFINITY));
        let (want_ids, want): (Vec<u32>, Vec<f32>) = expected.into_iter().unzip();
        assert_eq!(&ids[row * k..][..k], want_ids, "{case}");
        assert_bits(&found[row * k..][..k], &want, &case);
    }
}

#[test]
fn top_k_equals_the_cpu() {
    let mut rng = rng(31);
    for context in contexts() {
        for (rows, count) in [(1, 1), (3, 5), (2, 255), (1, 257), (2, 2048), (3, 2049), (2, 5000), (1, 200_000), (1, 0), (0, 9)] {
            let plain = floats(&mut rng, rows * count, 20.0);
            // A few values, so that most are equal to others; and some that are no numbers.
            let ties: Vec<f32> = plain.iter().map(|v| (v / 8.0).round()).collect();
            let mut odd = ties.clone();
            for v in &mut odd {
                match rng.random_range(0..count.clamp(1, 1000) + 5) {
                    0 => *v = f32::NEG_INFINITY,
                    1 => *v = f32::INFINITY,
                    2 => *v = -0.0,
                    3 => *v = f32::MIN_POSITIVE,
                    _ => {}
                }
            }
            for k in [1, 2, 7, 64, 256] {
                check_top_k(&context, &plain, count, k, k == 7, "plain");
                check_top_k(&context, &ties, count, k, k == 2, "ties");
                check_top_k(&context, &odd, count, k, false, "infinities");
            }
        }
    }
}

#[test]
fn top_k_says_where_logits_are_not_numbers() {
    let mut rng = rng(32);
    for context in contexts() {
        for count in [3, 300, 2049, 9000] {
            let mut logits = floats(&mut rng, 3 * count, 5.0);
            // One, several in different runs of 2048, and nothing else.
            logits[count / 2] = f32::NAN;
            logits[count..2 * count].iter_mut().step_by(2000).for_each(|v| *v = -f32::NAN);
            logits[2 * count..].fill(f32::NAN);
            for k in [1, 2, 5, 30] {
                check_top_k(&context, &logits, count, k, false, "NaN");
            }
            check_top_k(&context, &vec![f32::NEG_INFINITY; count], count, 4, false, "-inf");
        }
    }
}

#[test]
fn top_k_refuses_what_does_not_fit() {
    let context = support::context();
    let mut encoder = context.encoder("test");
    let logits = unwritten(context, [2, 9]);
    assert_invalid(transformer::top_k(&mut encoder, &logits, 0, None));
    assert_invalid(transformer::top_k(&mut encoder, &logits, TopK::MAX + 1, None));
    assert_shape(transformer::top_k(&mut encoder, &logits, 3, Some(&context.upload(&[0u32; 3], [1, 3]).unwrap())));
    assert!(encoder.is_empty());
}

// The gate ----------------------------------------------------------------------------------------------------------------------------------

fn check_gate(context: &Context, x: &[f32], features: usize, gate: Gate, gain: Option<&[f32]>, layout: Layout) {
    let (m, eps) = (x.len() / (2 * features).max(1), 1e-5);
    let case = format!("{m} × {features} {gate:?} {layout:?}, norm {}, {:?}", gain.is_some(), context.capabilities());
    let mut encoder = context.encoder("test");
    let gpu_gain = gain.map(|gain| context.upload(gain, [features]).unwrap());
    let norm = gpu_gain.as_ref().map(|gain| (gain, eps));
    let xq = support::gate_quantize_as(&mut encoder, &context.upload(x, [m, 2 * features]).unwrap(), gate, norm, layout).unwrap();
    let _ = encoder.submit().unwrap();
    let gpu = block_on(xq.read()).unwrap();
    let cpu = bitnet::gate_quantize_cpu(x, features, gate, gain.map(|gain| (gain, eps))).unwrap();
    if gate == Gate::Relu2 && gain.is_none() {
        // Products only.
        assert_eq!(gpu, cpu, "{case}");
        return;
    }
    for (whose, got) in [("GPU", gpu), ("CPU", cpu)] {
        assert_eq!((got.tokens, got.features, got.codes.len()), (m, features, m * features), "{whose}: {case}");
        for token in 0..m {
            let (gates, ups) = x[token * 2 * features..][..2 * features].split_at(features);
            let bend = |v: f64| if gate == Gate::Silu { v / (1.0 + (-v).exp()) } else { v.max(0.0) * v.max(0.0) };
            let mut values: Vec<f64> = gates.iter().zip(ups).map(|(&g, &u)| bend(f64::from(g)) * f64::from(u)).collect();
            let mean = values.iter().map(|v| v * v).sum::<f64>() / features as f64;
            if let Some(gain) = gain {
                let inverse = 1.0 / (mean + f64::from(eps)).sqrt();
                values.iter_mut().zip(gain).for_each(|(v, &g)| *v *= inverse * f64::from(g));
            }
            let scale = 127.0 / values.iter().fold(1e-5f64, |m, v| m.max(v.abs()));
            // Units in the last place: exp has 3 + 2·|x|, x at most 10, and a sum, a quotient (2.5) and a product follow; a norm has half of the
            // k roundings of a sum, those of its terms, and a dozen; the quantiser has five.
            let bent = if gate == Gate::Silu { 23.0 + 4.5 } else { 1.5 };
            let normed = if gain.is_some() { features as f64 / 2.0 + 12.0 + bent } else { 0.0 };
            let error = (bent + normed + 5.0) * f64::from(f32::EPSILON);
            assert!((f64::from(got.scales[token]) / scale - 1.0).abs() <= error, "{whose}: scale of row {token} of {case}");
            for (i, (&code, value)) in got.row(token).iter().zip(&values).enumerate() {
                // A value and the scale stray each.
                let off = (f64::from(code) - value * scale).abs();
                assert!(off <= 0.5 + 2.0 * 127.0 * error, "{whose}: code {i} of row {token} of {case}: {code} for {}", value * scale);
            }
        }
    }
}

#[test]
fn gate_quantize_is_within_its_tolerance() {
    let mut rng = rng(33);
    for context in contexts() {
        for (m, features) in [(1, 1), (2, 31), (3, 64), (5, 257), (0, 8), (2, 1280)] {
            let (x, gain) = (floats(&mut rng, m * 2 * features, 10.0), floats(&mut rng, features, 2.0));
            for layout in [Layout::Int8, Layout::Half] {
                for gate in [Gate::Relu2, Gate::Silu] {
                    check_gate(&context, &x, features, gate, None, layout);
                    check_gate(&context, &x, features, gate, Some(&gain), layout);
                    check_gate(&context, &vec![0.0; x.len()], features, gate, Some(&gain), layout);
                }
            }
        }
        let (x, gain) = (floats(&mut rng, 50 * 2 * 9, 10.0), floats(&mut rng, 9, 2.0));
        check_gate(&short_grids(&context, 8), &x, 9, Gate::Silu, Some(&gain), Layout::Int8);
        check_gate(&short_grids(&context, 8), &x, 9, Gate::Relu2, None, Layout::Half);
    }
}

#[test]
fn gates_far_from_zero() {
    // e^-x overflows, and what it divides is nothing then.
    let x = [-1e4f32, -100.0, 100.0, 1e4, 1.0, 1.0, 1.0, 1.0];
    for context in contexts() {
        let mut encoder = context.encoder("test");
        let gx = context.upload(&x, [1, 8]).unwrap();
        let silu = support::gate_quantize_as(&mut encoder, &gx, Gate::Silu, None, Layout::Int8).unwrap();
        // The square of 1e20 is infinite, and so is the row.
        let huge = context.upload(&[1e20f32, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0], [2, 4]).unwrap();
        let relu2 = support::gate_quantize_as(&mut encoder, &huge, Gate::Relu2, None, Layout::Half).unwrap();
        let _ = encoder.submit().unwrap();
        let silu = block_on(silu.read()).unwrap();
        assert_eq!(silu.codes, [0, 0, 1, 127]);
        assert_eq!(silu, bitnet::gate_quantize_cpu(&x, 4, Gate::Silu, None).unwrap());
        let relu2 = block_on(relu2.read()).unwrap();
        assert!(relu2.scales[0].is_nan() && relu2.scales[1].is_finite());
        assert_eq!(relu2.codes, [0, 0, 127, 32]);
    }
}

#[test]
fn gate_quantize_refuses_what_does_not_fit() {
    let context = support::context();
    let mut encoder = context.encoder("test");
    let mut gate = |x: &Tensor<f32>, gain: Option<&Tensor<f32>>| {
        support::gate_quantize_as(&mut encoder, x, Gate::Silu, gain.map(|gain| (gain, 1e-5)), Layout::Int8).map(|_| ())
    };
    assert_shape(gate(&unwritten(context, [2, 9]), None));
    assert_shape(gate(&unwritten(context, [2, 8]), Some(&unwritten(context, [5]))));
    assert_invalid(gate(&unwritten(context, [1, 2 << 17]), None));
    let xq = QuantizedActivations::uninit(context, 2, 5, Layout::Half).unwrap();
    assert_shape(bitnet::gate_quantize_into(&mut encoder, &unwritten(context, [2, 8]), Gate::Relu2, None, &xq));
    assert!(matches!(bitnet::gate_quantize_cpu(&[0.0; 5], 2, Gate::Silu, None), Err(Error::Length { .. })));
    assert!(matches!(bitnet::gate_quantize_cpu(&[0.0; 4], 2, Gate::Silu, Some((&[1.0], 0.0))), Err(Error::Length { .. })));
}

// A BitLinear on top of what is there ---------------------------------------------------------------------------------------------------------

fn check_add(context: &Context, rng: &mut StdRng, layout: Layout, (m, n, k): (usize, usize, usize)) {
    let case = format!("{m} × {n} × {k}, {layout:?}, {:?}", context.capabilities());
    let (w, x) = (ternary(rng, n, k), floats(rng, m * k, 3.0));
    let host = bitnet::quantize_activations_cpu(&x, m, k).unwrap();
    let products = bitnet::bitlinear_quantized_cpu(&host, &w).unwrap();
    let base: Vec<f16> = support::halves(&floats(rng, m * n, 50.0));
    let wide: Vec<f32> = base.iter().map(|v| v.to_f32()).collect();
    let mut encoder = context.encoder("test");
    let (gx, gw) = (context.upload(&x, [m, k]).unwrap(), w.upload(context).unwrap());
    let xq = support::quantize_as(&mut encoder, &gx, layout).unwrap();
    let y = context.upload(&wide, [m, n]).unwrap();
    bitnet::bitlinear_quantized_into(&mut encoder, &xq, &gw, bitnet_wgpu::Out::add(&y)).unwrap();
    let halves = context.capabilities().f16.then(|| context.upload(&base, [m, n]).unwrap());
    if let Some(y) = &halves {
        bitnet::bitlinear_quantized_into(&mut encoder, &xq, &gw, bitnet_wgpu::Out::add(y)).unwrap();
    }
    let _ = encoder.submit().unwrap();
    let sums = || wide.iter().zip(&products).map(|(&base, &product)| (base, product)).enumerate();
    for (got, (at, (base, product))) in block_on(y.read()).unwrap().into_iter().zip(sums()) {
        let exact = f64::from(base) + f64::from(product);
        // The product is rounded here, and there or not; so is the sum.
        let bound = U * (2.0 * f64::from(product).abs() + 1.01 * exact.abs());
        assert!((f64::from(got) - exact).abs() <= bound, "output {at} of {case}: {got} for {base} + {product}");
    }
    for (got, (at, (base, product))) in halves.map_or(vec![], |y| block_on(y.read()).unwrap()).into_iter().zip(sums()) {
        let exact = f64::from(base) + f64::from(product);
        // A unit in the last place of a half, by whichever rounding, and those of f32.
        let bound = exact.abs().max(6.2e-5) / 1024.0 + U * (2.0 * f64::from(product).abs() + 1.01 * exact.abs());
        assert!((got.to_f64() - exact).abs() <= bound, "half {at} of {case}: {got} for {base} + {product}");
    }
}

#[test]
fn bitlinear_adds_to_what_is_there() {
    let mut rng = rng(34);
    for context in contexts() {
        let flushing = context.restricted(|c| c.half_subnormals = false);
        for (context, layout) in [(&context, Layout::Int8), (&context, Layout::Half), (&flushing, Layout::Half)] {
            SHAPES.iter().for_each(|&shape| check_add(context, &mut rng, layout, shape));
        }
        let tall = (2, 16_387, 70);
        assert_eq!(bitnet::plan(tall.0, tall.1, Layout::Int8, false, context.capabilities()).name, "bitlinear_gemv_int8_tall");
        check_add(&context, &mut rng, Layout::Int8, tall);
    }
}

#[test]
fn bitlinear_of_groups_adds_to_what_is_there() {
    let mut rng = rng(35);
    for context in contexts() {
        for (m, n, k, size) in [(1, 9, 256usize, 64), (3, 17, 200, 16), (12, 5, 100, 48)] {
            let values: Vec<i8> = (0..n * k).map(|_| rng.random_range(-1..=1)).collect();
            let scales = Scales::Groups { size, scales: floats(&mut rng, n * k.div_ceil(size), 1.0) };
            let w = PackedTernary::from_values(n, k, &values, scales).unwrap();
            let (x, base) = (activations(&mut rng, 1, k).repeat(m), floats(&mut rng, m * n, 50.0));
            let mut encoder = context.encoder("test");
            let xq = support::quantize_as(&mut encoder, &context.upload(&x, [m, k]).unwrap(), Layout::Int8).unwrap();
            let y = context.upload(&base, [m, n]).unwrap();
            bitnet::bitlinear_quantized_into(&mut encoder, &xq, &w.upload(&context).unwrap(), bitnet_wgpu::Out::add(&y)).unwrap();
            let _ = encoder.submit().unwrap();
            let host = bitnet::quantize_activations_cpu(&x, m, k).unwrap();
            let dense = w.dequantize();
            for (at, (got, base)) in block_on(y.read()).unwrap().into_iter().zip(base).enumerate() {
                let terms = || dense[at % n * k..][..k].iter().zip(host.row(at / n)).map(|(&w, &x)| f64::from(w) * f64::from(x));
                let scale = f64::from(host.scales[at / n]);
                // Words' sums are rounded on their way as in tests/bitlinear.rs; and the last sum.
                let bound = terms().map(f64::abs).sum::<f64>() / scale * (k.div_ceil(16) + 8) as f64 * f64::from(f32::EPSILON);
                let exact = f64::from(base) + terms().sum::<f64>() / scale;
                assert!(
                    (f64::from(got) - exact).abs() <= bound + U * 1.01 * exact.abs(),
                    "{m} × {n} × {k}, groups of {size}: {got} for {exact}"
                );
            }
        }
    }
}

#[test]
fn bitlinear_add_refuses_what_does_not_fit() {
    let context = support::context();
    let mut encoder = context.encoder("test");
    let w = ternary(&mut rng(36), 6, 40).upload(context).unwrap();
    let xq = |features| QuantizedActivations::uninit(context, 2, features, Layout::Int8).unwrap();
    assert_shape(bitnet::bitlinear_quantized_into(&mut encoder, &xq(40), &w, bitnet_wgpu::Out::add(&unwritten(context, [2, 5]))));
    assert_shape(bitnet::bitlinear_quantized_into(&mut encoder, &xq(40), &w, bitnet_wgpu::Out::add(&unwritten(context, [3, 6]))));
    assert_shape(bitnet::bitlinear_quantized_into(&mut encoder, &xq(41), &w, bitnet_wgpu::Out::add(&unwritten(context, [2, 6]))));
    assert!(encoder.is_empty());
}
