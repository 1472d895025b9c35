//! `src/ops/transformer/dense_int8.rs`

use crate::{Case, Data, Near, U, activations, dense, floats, rng, shapes};
use bitnet_wgpu::{
    Out, device::Capabilities, reference, transformer, tuning::TuningKey, weights::DenseElement,
    weights::PackedDense,
};

/// Tokens × rows × columns: every kernel, off and at the edges of its tiles and of the columns that
/// are staged at a time.
const SHAPES: [(usize, usize, usize); 16] = [
    (1, 1, 1),
    (1, 33, 2560),
    (2, 130, 15),
    (3, 31, 257),
    (4, 129, 16),
    (5, 127, 17),
    (7, 64, 128),
    (8, 65, 129),
    (9, 3, 1030),
    (16, 257, 64),
    (17, 40, 127),
    (31, 128, 33),
    (33, 129, 300),
    (64, 1, 5),
    (65, 96, 48),
    (70, 131, 270),
];

pub fn cases() -> Vec<Case> {
    let ways = [packed as fn(&mut Capabilities), on_tensor_cores];
    let mut cases = Vec::new();
    for (i, shape) in SHAPES.into_iter().enumerate() {
        let make = |add: bool| exact_or_added(shape, add);
        cases.extend(ways.map(|on| make(i % 3 == 2).on(on)));
    }
    for (mut rng, (m, n, k)) in shapes("dense_int8").filter(|(_, (_, _, k))| *k > 0) {
        let (w, x) = (dense(&mut rng, DenseElement::Int8, n, k), activations(&mut rng, m, k));
        cases.extend(ways.map(|on| near([m, n, k], &w, &x).on(on)));
    }
    cases.extend(ways.map(|on| wild().on(on)));
    for digit in [1.0, -1.0] {
        cases.extend(ways.map(|on| largest(digit).device_only().on(on)));
    }
    cases
}

fn packed(c: &mut Capabilities) {
    c.fast_packed_dot = true;
    c.tuning.set(TuningKey::LmHeadTensorCoreTokens, 1024).unwrap();
}

/// However few tokens there are.
fn on_tensor_cores(c: &mut Capabilities) {
    c.fast_packed_dot = true;
    c.tuning.set(TuningKey::LmHeadTensorCoreTokens, 0).unwrap();
}

/// The bits of the CPU reference; bounds, where products are added to a tensor.
fn exact_or_added((m, n, k): (usize, usize, usize), add: bool) -> Case {
    let mut rng = rng((m + n + k) as u64);
    let (w, x) = (dense(&mut rng, DenseElement::Int8, n, k), activations(&mut rng, m, k));
    if !add {
        return exact(format!("{m} × {n} × {k}"), [m, n, k], w, x);
    }
    let base = floats(&mut rng, m * n, 9.0);
    let products = reference::dense_gemv_int8(&x, &w).unwrap();
    let near = |(product, &base): (&f32, &f32)| {
        let exact = f64::from(base) + f64::from(*product);
        // Fused, the product keeps the rounding of its last multiplication by a scale.
        Near { exact, error: U * (2.0 * f64::from(product.abs()) + 1.01 * exact.abs()) }
    };
    let expected = products.iter().zip(&base).map(near).collect();
    Case::near(format!("{m} × {n} × {k}, added"), expected, move |r| {
        let (x, w) = (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?);
        let y = r.upload(&base, [m, n])?;
        transformer::dense_gemv(&x, &w).forward_into(&mut r.encoder, Out::add(&y))?;
        r.watch_all(&y);
        Ok(())
    })
}

fn exact(name: String, [m, n, k]: [usize; 3], w: PackedDense, x: Vec<f32>) -> Case {
    let expected = reference::dense_gemv_int8(&x, &w).unwrap();
    assert_eq!(expected.len(), m * n);
    Case::exact(name, vec![Data::F32(expected)], record([m, k], w, x))
}

fn record(
    [m, k]: [usize; 2],
    w: PackedDense,
    x: Vec<f32>,
) -> impl Fn(&mut crate::Recorder) -> bitnet_wgpu::Result<()> {
    move |r| {
        let (x, w) = (r.upload(&x, [m, k])?, w.upload(r.encoder.context())?);
        let y = transformer::dense_gemv(&x, &w).forward(&mut r.encoder)?;
        r.watch_all(&y);
        Ok(())
    }
}

/// The bound that the documentation states, for the kernel and for the CPU reference.
fn near([m, n, k]: [usize; 3], w: &PackedDense, x: &[f32]) -> Case {
    let rows: Vec<Vec<f32>> = (0..n).map(|row| w.row(row)).collect();
    let product = |at: usize| {
        let (x, row) = (&x[at / n * k..][..k], &rows[at % n]);
        let products = row.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
        let largest = x.iter().fold(0.0, |largest: f64, &v| largest.max(f64::from(v).abs()));
        let weights: f64 = row.iter().map(|&w| f64::from(w).abs()).sum();
        let exact: f64 = products.clone().sum();
        // Half a unit is 2^-22 of the largest magnitude, or 2^-117. The product is rounded twice;
        // `row` rounds each weight.
        let off = largest.mul_add(2f64.powi(-22), 2f64.powi(-117)) * weights * (1.0 + 2.0 * U);
        Near { exact, error: off + U * (2.01 * exact.abs() + products.map(f64::abs).sum::<f64>()) }
    };
    let expected = (0..m * n).map(product).collect();
    let (given, packed) = (x.to_vec(), w.clone());
    Case::near(format!("{m} × {n} × {k}, bounds"), expected, record([m, k], w.clone(), x.to_vec()))
        .reference(move || vec![Data::F32(reference::dense_gemv_int8(&given, &packed).unwrap())])
}

/// Numbers that are not finite make their own row NaN, and no other; huge, tiny and zero rows.
fn wild() -> Case {
    let (m, n, k) = (9, 37, 45);
    let mut rng = rng(3);
    let (w, mut x) = (dense(&mut rng, DenseElement::Int8, n, k), floats(&mut rng, m * k, 3.0));
    x[k + 44] = f32::INFINITY;
    x[2 * k] = f32::NAN;
    x[3 * k..4 * k].fill(0.0);
    x[4 * k..5 * k].fill(-0.0);
    x[5 * k..6 * k].iter_mut().for_each(|v| *v *= 1e37);
    x[6 * k..7 * k].iter_mut().for_each(|v| *v *= 1e-37);
    x[7 * k + 3] = f32::NEG_INFINITY;
    let expected = reference::dense_gemv_int8(&x, &w).unwrap();
    for (token, row) in expected.chunks(n).enumerate() {
        let nan = [1, 2, 7].contains(&token);
        assert!(row.iter().all(|v| v.is_nan() == nan), "token {token}: {row:?}");
    }
    exact("wild rows".into(), [m, n, k], w, x)
}

/// The largest sums there are: every digit -128 or near 127, or the reverse, at the most columns.
fn largest(sign: f32) -> Case {
    let (m, n, k) = (3, 2, 1 << 16);
    let w = PackedDense::from_f32(n, k, &vec![1.0; n * k]).unwrap().quantize();
    let rows = [4_161_408.0, 4_194_303.0, 4_161_407.0].map(|v| vec![sign * v; k]);
    exact(format!("largest sums, {sign}"), [m, n, k], w, rows.concat())
}
