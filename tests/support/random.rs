//! Seeded random data, and shapes.

use bitnet_wgpu::{
    tensor::{Float, f16},
    weights::{Affine, Bits, DenseElement, PackedDense, PackedInt, PackedTernary, Scales},
};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::sync::LazyLock;

/// What seeds the random cases: `TEST_SEED`, or 1.
pub fn seed() -> u64 {
    static SEED: LazyLock<u64> = LazyLock::new(|| {
        std::env::var("TEST_SEED")
            .map_or(1, |seed| seed.parse().expect("TEST_SEED is a whole number"))
    });
    *SEED
}

/// How many cases a property is tried on, unless `PROPTEST_CASES` says it.
pub fn cases(usually: u32) -> u32 {
    std::env::var("PROPTEST_CASES")
        .map_or(usually, |cases| cases.parse().expect("PROPTEST_CASES is a whole number"))
}

/// Random numbers that are the same every time.
pub fn rng(seed: u64) -> SmallRng {
    SmallRng::seed_from_u64(seed)
}

/// (m, n, k): none, one, primes, tails on every side of 4, 16, 32, 64 and 128, and larger than a
/// tile.
pub const SHAPES: &[(usize, usize, usize)] = &[
    (0, 5, 16),
    (1, 0, 16),
    (3, 4, 0),
    (1, 1, 1),
    (1, 7, 3),
    (2, 9, 17),
    (1, 33, 65),
    (5, 31, 127),
    (8, 64, 128),
    (9, 65, 129),
    (16, 100, 96),
    (63, 13, 257),
    (64, 128, 64),
    (65, 67, 191),
    (130, 70, 320),
];

/// Twenty random shapes, small ones more often than large ones; `op` has its own.
pub fn random_shapes(op: &str) -> Vec<(usize, usize, usize)> {
    let mut rng =
        rng(op.bytes().fold(seed(), |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into())));
    let mut dimension = |most: f64| most.powf(rng.random_range(0.0..1.0)) as usize;
    (0..20).map(|_| (dimension(40.0), dimension(100.0), dimension(500.0))).collect()
}

/// [`SHAPES`] and [`random_shapes`], each with a source of random numbers.
pub fn shapes(op: &str) -> impl Iterator<Item = (SmallRng, (usize, usize, usize))> {
    let all = SHAPES.iter().copied().chain(random_shapes(op));
    (0u64..).zip(all).map(|(i, shape)| (rng(1000 * seed() + i), shape))
}

/// Floats between -bound and bound.
pub fn floats(rng: &mut SmallRng, len: usize, bound: f32) -> Vec<f32> {
    (0..len).map(|_| rng.random_range(-bound..bound)).collect()
}

/// Floats that are exact in `f16`.
pub fn f16_floats(rng: &mut SmallRng, len: usize, bound: f32) -> Vec<f32> {
    floats(rng, len, bound).iter().map(|&v| f16::from_f32(v).to_f32()).collect()
}

/// The nearest numbers of a type.
pub fn convert<T: Float>(x: &[f32]) -> Vec<T> {
    x.iter().map(|&v| T::from_f32(v)).collect()
}

/// Activations with rows of every awkward kind in turn: plain, zero, one huge value, subnormals,
/// signed zeros, and many magnitudes.
pub fn activations(rng: &mut SmallRng, tokens: usize, features: usize) -> Vec<f32> {
    let mut x = floats(rng, tokens * features, 3.0);
    for (token, row) in x.chunks_mut(features.max(1)).enumerate() {
        match token % 7 {
            1 => row.fill(0.0),
            2 => row[token % features] = 3e38,
            3 => row.iter_mut().for_each(|v| *v = f32::from_bits(v.to_bits() % 0x80_0000)),
            4 => row.iter_mut().for_each(|v| *v = if *v < 0.0 { -0.0 } else { 0.0 }),
            5 => row.iter_mut().for_each(|v| *v *= 10f32.powf(rng.random_range(-12.0..4.0))),
            _ => {}
        }
    }
    x
}

/// [`activations`], and rows that are not finite among them.
pub fn wild_activations(rng: &mut SmallRng, tokens: usize, features: usize) -> Vec<f32> {
    let mut x = activations(rng, tokens, features);
    for (token, row) in x.chunks_mut(features.max(1)).enumerate() {
        let at = token * 3 % features;
        match token % 11 {
            3 => row[at] = f32::NAN,
            6 => row[at] = f32::NEG_INFINITY,
            8 => row[at] = f32::INFINITY,
            _ => {}
        }
    }
    x
}

/// Random ternary values under one scale.
pub fn ternary(rng: &mut SmallRng, rows: usize, columns: usize) -> PackedTernary {
    let scale = rng.random_range(0.01..2.0);
    ternary_with(rng, rows, columns, Scales::Tensor(scale))
}

/// Random ternary values under given scales.
pub fn ternary_with(
    rng: &mut SmallRng,
    rows: usize,
    columns: usize,
    scales: Scales,
) -> PackedTernary {
    let values: Vec<i8> = (0..rows * columns).map(|_| rng.random_range(-1..=1)).collect();
    PackedTernary::from_values(rows, columns, &values, scales).unwrap()
}

/// Random codes under random scales and zero points, whole ones and others.
pub fn ints(
    rng: &mut SmallRng,
    rows: usize,
    columns: usize,
    bits: Bits,
    group: Option<usize>,
) -> PackedInt {
    let codes: Vec<u8> =
        (0..rows * columns).map(|_| rng.random_range(0..=bits.max_code())).collect();
    let groups = rows * group.map_or(1, |size| columns.div_ceil(size));
    let zero = |i: usize| {
        rng.random_range(0..=2 * u32::from(bits.max_code())) as f32
            / if i.is_multiple_of(2) { 2.0 } else { 3.0 }
    };
    let zeros = (0..groups).map(zero).collect();
    PackedInt::from_codes(
        rows,
        columns,
        bits,
        &codes,
        Affine { group, scales: floats(rng, groups, 1.0), zeros },
    )
    .unwrap()
}

/// All types of dense matrices.
pub const DENSE: [DenseElement; 4] =
    [DenseElement::F32, DenseElement::F16, DenseElement::Bf16, DenseElement::Int8];

/// A random dense matrix.
pub fn dense(
    rng: &mut SmallRng,
    element: DenseElement,
    rows: usize,
    columns: usize,
) -> PackedDense {
    let values = floats(rng, rows * columns, 3.0);
    let bits: Vec<u16> = match element {
        DenseElement::F16 => values.iter().map(|&v| f16::from_f32(v).to_bits()).collect(),
        _ => values.iter().map(|v| (v.to_bits() >> 16) as u16).collect(),
    };
    match element {
        DenseElement::F32 => PackedDense::from_f32(rows, columns, &values),
        DenseElement::Int8 => {
            PackedDense::from_f32(rows, columns, &values).map(|table| table.quantize())
        }
        _ => PackedDense::from_bytes(element, rows, columns, bytemuck::cast_slice(&bits)),
    }
    .unwrap()
}
