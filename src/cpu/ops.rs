//! Ops on slices: elementwise, norms, reductions, and products of packed weights.

use super::{dense, isa::Isa, ternary_float, threads::by_chunks};
use crate::{
    error::{Error, Result},
    ops::{
        exp::{exp, exp_f64},
        host,
        reduce::{THREADS, TURNS, lanes, tree_cpu},
        rms::{inverse_rms, normalize},
        tensor::epilogue::Activation,
    },
    weights::{dense::PackedDense, ternary::interleaved::InterleavedTernary},
};

/// Numbers of a chunk, whose op takes a thread about as long as it takes to wake another: of a sum
/// or product, of a function of some instructions, and of one of many.
const MANY: usize = 1 << 16;
const SOME: usize = 1 << 14;
const FEW: usize = 1 << 11;

/// Sums side by side, for vectors.
const SUMS: usize = 16;

/// Returns a + b, number by number. Bit-identical to [`reference::add`](crate::reference::add).
///
/// # Errors
/// [`Error::Length`] if there are not as many of both.
pub fn add(a: &[f32], b: &[f32]) -> Result<Vec<f32>> {
    #[multiversion::multiversion(targets = "simd")]
    fn add(y: &mut [f32], b: &[f32]) {
        for (y, b) in y.iter_mut().zip(b) {
            *y += b;
        }
    }
    pairs(a, b, add)
}

/// Returns a·b, number by number. Bit-identical to [`reference::mul`](crate::reference::mul).
///
/// # Errors
/// [`Error::Length`] if there are not as many of both.
pub fn mul(a: &[f32], b: &[f32]) -> Result<Vec<f32>> {
    #[multiversion::multiversion(targets = "simd")]
    fn mul(y: &mut [f32], b: &[f32]) {
        for (y, b) in y.iter_mut().zip(b) {
            *y *= b;
        }
    }
    pairs(a, b, mul)
}

/// Returns max(x, 0)² of each number. Bit-identical to [`reference::relu2`](crate::reference::relu2).
pub fn relu2(x: &[f32]) -> Vec<f32> {
    activated(x, Activation::Relu2)
}

/// Returns x·σ(x) of each number. Within two units in the last place of [`reference::silu`](crate::reference::silu).
pub fn silu(x: &[f32]) -> Vec<f32> {
    activated(x, Activation::Silu)
}

/// Returns x·Φ(x) of each number. Bit-identical to [`reference::gelu`](crate::reference::gelu).
pub fn gelu(x: &[f32]) -> Vec<f32> {
    activated(x, Activation::Gelu)
}

/// Returns the softmax of rows of `columns` numbers. Within a unit in the last place of
/// [`reference::softmax`](crate::reference::softmax).
///
/// # Errors
/// [`Error::Length`] if `x` is not whole rows.
pub fn softmax(x: &[f32], columns: usize) -> Result<Vec<f32>> {
    let columns = whole_rows(x, columns)?;
    let mut y = x.to_vec();
    by_chunks(&mut y, rows_of(columns, SOME), |_, y| {
        y.chunks_exact_mut(columns).for_each(softmax_row);
    });
    Ok(y)
}

/// Returns the sum of all numbers, added in the order of [`reference::sum`](crate::reference::sum): bit-identical.
pub fn sum(x: &[f32]) -> f32 {
    let mut partial = partial_sums(x);
    while partial.len() > 1 {
        partial = partial_sums(&partial);
    }
    partial[0]
}

/// Returns the RMSNorm of rows with as many columns as `gain`. Bit-identical to
/// [`reference::rms_norm`](crate::reference::rms_norm).
///
/// # Errors
/// [`Error::Length`] if `x` is not whole rows.
pub fn rms_norm(x: &[f32], gain: &[f32], eps: f32) -> Result<Vec<f32>> {
    let columns = whole_rows(x, gain.len())?;
    let mut y = x.to_vec();
    by_chunks(&mut y, rows_of(columns, SOME), |_, y| {
        y.chunks_exact_mut(columns).for_each(|row| normalize(row, gain, inverse_rms(row, eps)));
    });
    Ok(y)
}

/// Returns the layer norm of rows: (x - mean) / sqrt(variance + eps) · weight + bias. Computed in
/// `f64`, as [`reference::layer_norm`](crate::reference::layer_norm): within a unit in the last
/// place, or within 2^-40 of weight and bias where these cancel out.
///
/// # Errors
/// [`Error::Length`] if `x` is not whole rows of as many numbers as `weight` and `bias` have.
pub fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32) -> Result<Vec<f32>> {
    let columns = whole_rows(x, weight.len())?;
    if bias.len() != weight.len() {
        return Err(Error::Length { shape: [weight.len()].into(), found: bias.len() });
    }
    let mut y = x.to_vec();
    by_chunks(&mut y, rows_of(columns, SOME), |_, y| {
        y.chunks_exact_mut(columns).for_each(|row| layer_norm_row(row, weight, bias, eps));
    });
    Ok(y)
}

#[multiversion::multiversion(targets = "simd")]
fn layer_norm_row(row: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    let count = row.len() as f64;
    let mean = sum_by_lanes(row, f64::from) / count;
    let variance = sum_by_lanes(row, |v| (f64::from(v) - mean).powi(2)) / count;
    let inverse = 1.0 / (variance + f64::from(eps)).sqrt();
    for ((v, &w), &b) in row.iter_mut().zip(weight).zip(bias) {
        *v = ((f64::from(*v) - mean) * inverse * f64::from(w) + f64::from(b)) as f32;
    }
}

/// Returns Σ `of` each number, by sums side by side.
#[inline(always)]
fn sum_by_lanes(row: &[f32], of: impl Fn(f32) -> f64) -> f64 {
    let mut sums = [0f64; SUMS];
    let (whole, rest) = row.as_chunks::<SUMS>();
    for numbers in whole {
        for i in 0..SUMS {
            sums[i] += of(numbers[i]);
        }
    }
    let mut sum = 0.0;
    for partial in sums {
        sum += partial;
    }
    for &v in rest {
        sum += of(v);
    }
    sum
}

/// Multiplies `x` `[tokens, columns]` by a dense matrix `[rows, columns]`, and returns
/// `[tokens, rows]`. Bit-identical to [`reference::dense_gemv`](crate::reference::dense_gemv).
///
/// # Errors
/// [`Error::Length`] if `x` is not whole rows.
pub fn dense_gemv(x: &[f32], w: &PackedDense) -> Result<Vec<f32>> {
    dense::gemv(Isa::best(), x, w)
}

/// Returns the rows of `table` that `tokens` name, `[tokens, columns]`. Bit-identical to
/// [`reference::embed_ternary`](crate::reference::embed_ternary).
///
/// # Errors
/// [`Error::Invalid`] for a token that the table does not have.
pub fn embed_ternary(tokens: &[u32], table: &InterleavedTernary) -> Result<Vec<f32>> {
    ternary_float::embed(tokens, table)
}

/// Adds a bias of as many numbers as a row has, and applies an activation.
pub(super) fn finish(y: &mut [f32], bias: Option<&[f32]>, activation: Option<Activation>) {
    if let Some(bias) = bias.filter(|bias| !bias.is_empty()) {
        for row in y.chunks_exact_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
        }
    }
    if let Some(activation) = activation {
        activate(y, activation);
    }
}

fn activated(x: &[f32], activation: Activation) -> Vec<f32> {
    let mut y = x.to_vec();
    activate(&mut y, activation);
    y
}

fn activate(y: &mut [f32], activation: Activation) {
    let (chunk, each): (_, fn(&mut [f32])) = match activation {
        Activation::Relu => (MANY, |y| y.iter_mut().for_each(|y| *y = host::relu(*y))),
        Activation::Relu2 => (MANY, |y| y.iter_mut().for_each(|y| *y = host::relu2(*y))),
        Activation::Silu => (SOME, silu_each),
        Activation::Gelu => (FEW, |y| y.iter_mut().for_each(|y| *y = host::gelu(*y))),
    };
    by_chunks(y, chunk, |_, y| each(y));
}

/// x·σ(x), in the form of [`reference::silu`](crate::reference::silu) with this crate's exponential.
#[multiversion::multiversion(targets = "simd")]
fn silu_each(y: &mut [f32]) {
    for y in y {
        let e = exp(-y.abs());
        *y *= (if *y >= 0.0 { 1.0 } else { e }) / (1.0 + e);
    }
}

/// An op on chunks of `a`, copied, and of `b`.
fn pairs(a: &[f32], b: &[f32], op: fn(&mut [f32], &[f32])) -> Result<Vec<f32>> {
    if a.len() != b.len() {
        return Err(Error::Length { shape: [a.len()].into(), found: b.len() });
    }
    let mut y = a.to_vec();
    by_chunks(&mut y, MANY, |first, y| op(y, &b[first..][..y.len()]));
    Ok(y)
}

/// Computes in doubles, as the reference does. Below e^-200 nothing is left in a float.
#[multiversion::multiversion(targets = "simd")]
fn softmax_row(row: &mut [f32]) {
    let mut maxima = [f32::MIN; SUMS];
    let (whole, rest) = row.as_chunks::<SUMS>();
    for numbers in whole {
        for i in 0..SUMS {
            maxima[i] = maxima[i].max(numbers[i]);
        }
    }
    let mut largest = f32::MIN;
    for &v in maxima.iter().chain(rest) {
        largest = largest.max(v);
    }
    let sum = sum_by_lanes(row, |v| weight(v - largest));
    for v in row {
        *v = (weight(*v - largest) / sum) as f32;
    }
}

#[inline(always)]
fn weight(x: f32) -> f64 {
    if x < -200.0 { 0.0 } else { exp_f64(f64::from(x)) }
}

/// Sums of the chunks that the GPU's workgroups have, at least one.
fn partial_sums(x: &[f32]) -> Vec<f32> {
    let lanes = lanes(x.len());
    let chunk = lanes * TURNS;
    let mut sums = vec![0.0; x.len().div_ceil(chunk).max(1)];
    by_chunks(&mut sums, (MANY / chunk).max(1), |first, sums| {
        for (sum, x) in sums.iter_mut().zip(x[first * chunk..].chunks(chunk)) {
            *sum = chunk_sum(x, lanes);
        }
    });
    sums
}

#[multiversion::multiversion(targets = "simd")]
fn chunk_sum(x: &[f32], lanes: usize) -> f32 {
    let mut sums = [0f32; THREADS];
    for turn in x.chunks(lanes) {
        for (sum, v) in sums.iter_mut().zip(turn) {
            *sum += v;
        }
    }
    tree_cpu(sums[..lanes].to_vec(), &|a, b| a + b)
}

/// Checks that `x` is whole rows, and returns how many numbers a row has, at least one.
fn whole_rows(x: &[f32], columns: usize) -> Result<usize> {
    let width = columns.max(1);
    if x.len().is_multiple_of(width) && (columns > 0 || x.is_empty()) {
        return Ok(width);
    }
    Err(Error::Length { shape: [x.len() / width, columns].into(), found: x.len() })
}

/// Numbers of as many whole rows as have about `numbers`.
fn rows_of(columns: usize, numbers: usize) -> usize {
    (numbers / columns).max(1) * columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::reference;
    use crate::ops::tensor::Axes;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    const LENGTHS: [usize; 12] = [0, 1, 2, 7, 16, 33, 255, 2049, 8193, 16_385, 70_000, 300_001];

    /// Numbers of all magnitudes, and special ones.
    fn numbers(rng: &mut StdRng, count: usize) -> Vec<f32> {
        let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, -3e38];
        let number = |at: usize, rng: &mut StdRng| {
            if at % 97 == 50 { special[at / 97 % 7] } else { rng.random_range(-30.0..30.0) }
        };
        (0..count).map(|at| number(at, rng)).collect()
    }

    fn finite(rng: &mut StdRng, count: usize) -> Vec<f32> {
        (0..count).map(|_| rng.random_range(-12.0..12.0)).collect()
    }

    /// Bits, one pattern for every NaN.
    fn bits(y: impl IntoIterator<Item = f32>) -> Vec<u32> {
        y.into_iter().map(|v| if v.is_nan() { f32::NAN } else { v }.to_bits()).collect()
    }

    /// Whether no number is further from its reference than `units` in the last place.
    fn close(found: &[f32], expected: &[f32], units: u32) -> bool {
        let near = |(found, expected): (&f32, &f32)| {
            found.is_nan() && expected.is_nan()
                || found.is_sign_negative() == expected.is_sign_negative()
                    && found.to_bits().abs_diff(expected.to_bits()) <= units
        };
        found.len() == expected.len() && found.iter().zip(expected).all(near)
    }

    #[test]
    fn elementwise_ops_are_bit_identical_to_references() {
        let mut rng = StdRng::seed_from_u64(10);
        for count in LENGTHS {
            let (a, b) = (numbers(&mut rng, count), numbers(&mut rng, count));
            let pairs = || a.iter().zip(&b);
            assert_eq!(bits(add(&a, &b).unwrap()), bits(pairs().map(|(a, b)| a + b)), "{count}");
            assert_eq!(bits(mul(&a, &b).unwrap()), bits(pairs().map(|(a, b)| a * b)), "{count}");
            let each = |op: fn(f32) -> f32| bits(a.iter().map(|&a| op(a)));
            assert_eq!(bits(relu2(&a)), each(reference::relu2), "{count}");
            assert_eq!(bits(gelu(&a)), each(reference::gelu), "{count}");
        }
    }

    #[test]
    fn silu_is_within_two_units() {
        let mut rng = StdRng::seed_from_u64(11);
        for count in LENGTHS {
            let x = numbers(&mut rng, count);
            let expected: Vec<f32> = x.iter().map(|&x| reference::silu(x)).collect();
            assert!(close(&silu(&x), &expected, 2), "{count}");
        }
    }

    #[test]
    fn softmax_is_within_a_unit() {
        let mut rng = StdRng::seed_from_u64(12);
        for (rows, columns) in [(0, 3), (1, 1), (3, 15), (5, 16), (7, 100), (2, 40_000), (900, 33)]
        {
            let mut x = finite(&mut rng, rows * columns);
            // Masked positions, and weights below the least float.
            x.iter_mut().step_by(11).for_each(|x| *x = f32::NEG_INFINITY);
            x.iter_mut().skip(3).step_by(13).for_each(|x| *x -= 150.0);
            let expected: Vec<f32> = x.chunks(columns).flat_map(reference::softmax).collect();
            assert!(close(&softmax(&x, columns).unwrap(), &expected, 1), "{rows} × {columns}");
        }
        let special = [1.0, f32::NAN, f32::INFINITY, 2.0];
        for row in [&special[..], &special[2..], &[f32::NEG_INFINITY; 3]] {
            let expected = reference::softmax(row);
            assert_eq!(bits(softmax(row, row.len()).unwrap()), bits(expected));
        }
    }

    #[test]
    fn sums_are_bit_identical_to_the_reference() {
        let mut rng = StdRng::seed_from_u64(13);
        for count in LENGTHS.into_iter().chain([2_100_000]) {
            let x = finite(&mut rng, count);
            let expected = reference::sum(&x, [count], Axes::ALL).unwrap();
            assert_eq!(bits([sum(&x)]), bits(expected), "{count}");
        }
    }

    #[test]
    fn norms_are_bit_identical_to_the_reference() {
        let mut rng = StdRng::seed_from_u64(14);
        for (rows, columns) in [(0, 4), (1, 1), (3, 65), (40, 640), (2, 20_000)] {
            let (x, gain) = (numbers(&mut rng, rows * columns), finite(&mut rng, columns));
            let expected = reference::rms_norm(&x, &gain, 1e-6).unwrap();
            assert_eq!(
                bits(rms_norm(&x, &gain, 1e-6).unwrap()),
                bits(expected),
                "{rows} × {columns}"
            );
        }
    }

    #[test]
    fn layer_norms_are_within_a_unit() {
        let mut rng = StdRng::seed_from_u64(16);
        for (rows, columns) in [(0, 4), (1, 1), (3, 65), (40, 640), (2, 20_000), (7, 16)] {
            let [x, weight, bias] =
                [rows * columns, columns, columns].map(|count| finite(&mut rng, count));
            let expected = reference::layer_norm(&x, &weight, &bias, 1e-5).unwrap();
            let found = layer_norm(&x, &weight, &bias, 1e-5).unwrap();
            assert_eq!(found.len(), expected.len());
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let sizes = weight[i % columns].abs() * (columns as f32).sqrt();
                let cancelled = 2f32.powi(-40) * (sizes + bias[i % columns].abs());
                let near = found.to_bits().abs_diff(expected.to_bits()) <= 1;
                assert!(near || (found - expected).abs() <= cancelled, "{found}, not {expected}");
            }
        }
    }

    #[test]
    fn results_do_not_depend_on_threads() {
        let mut rng = StdRng::seed_from_u64(15);
        let x = finite(&mut rng, 200_000);
        let all = || [softmax(&x, 1000).unwrap(), silu(&x), vec![sum(&x)]].map(bits);
        let expected = all();
        for count in [1, 2, 3] {
            assert!(super::super::Threads::new(count).unwrap().run(all) == expected, "{count}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let five = [1.0; 5];
        let length = |found: Result<Vec<f32>>| matches!(found, Err(Error::Length { .. }));
        assert!(length(add(&five, &five[1..])) && length(mul(&five, &[])));
        assert!(length(softmax(&five, 2)) && length(softmax(&five, 0)));
        assert!(length(rms_norm(&five, &[1.0; 3], 0.0)) && length(rms_norm(&five, &[], 0.0)));
        assert!(length(layer_norm(&five, &[1.0; 3], &[1.0; 3], 0.0)));
        assert!(length(layer_norm(&five, &five, &[1.0; 3], 0.0)));
        assert!(softmax(&[], 0).unwrap().is_empty());
        let table = PackedDense::from_f32(2, 3, &[0.0; 6]).unwrap();
        assert!(length(dense_gemv(&five, &table)));
    }
}
