//! What the tests share: one device, one source of random numbers, one list of awkward shapes, and where files are.

pub mod files;
mod golden;

pub use golden::Golden;

use bitnet_wgpu::{
    Capabilities, Context, Encoder, Float, PackedTernary, Result, Scales, ShaderLanguage, Tensor,
    bitnet::{self, Gate, Layout, Norm, QuantizedActivations},
    f16,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
};

pub use pollster::block_on;

/// The device under test, opened once for a test binary.
pub fn context() -> &'static Context {
    static CONTEXT: LazyLock<Context> = LazyLock::new(|| {
        let _ = env_logger::builder().is_test(true).try_init();
        let context = block_on(Context::new()).expect("tests need a GPU driver; scripts/test installs lavapipe");
        eprintln!("{context:?}");
        context
    });
    &CONTEXT
}

/// The device in each of its languages, and in WGSL as if it had no subgroup operations.
pub fn contexts() -> Vec<Context> {
    let languages = context().capabilities().languages.iter();
    let mut all: Vec<_> = languages.map(|&language| context().with_language(language).unwrap()).collect();
    if context().capabilities().subgroups {
        let wgsl = context().with_language(ShaderLanguage::Wgsl).unwrap();
        all.push(wgsl.restricted(|capabilities: &mut Capabilities| capabilities.subgroups = false));
    }
    all
}

pub fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// Random ternary values under one scale.
pub fn ternary(rng: &mut StdRng, rows: usize, columns: usize) -> PackedTernary {
    let values: Vec<i8> = (0..rows * columns).map(|_| rng.random_range(-1..=1)).collect();
    PackedTernary::from_values(rows, columns, &values, Scales::Tensor(rng.random_range(0.01..2.0))).unwrap()
}

/// Activations with rows of every awkward kind in turn: plain, zero, one huge value, subnormals, signed zeros, and many magnitudes.
pub fn activations(rng: &mut StdRng, tokens: usize, features: usize) -> Vec<f32> {
    let mut x: Vec<f32> = (0..tokens * features).map(|_| rng.random_range(-3.0..3.0)).collect();
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

pub fn halves(x: &[f32]) -> Vec<f16> {
    x.iter().map(|&v| f16::from_f32(v)).collect()
}

/// (m, n, k): none, one, primes, tails on every side of 4, 16, 32, 64 and 128, and larger than a tile.
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

/// A path in the repository.
pub fn repository(path: impl AsRef<Path>) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path)
}

/// A file or folder of tests/data.
pub fn data(path: impl AsRef<Path>) -> PathBuf {
    repository("tests/data").join(path)
}

/// The shipped model, or the one that `BITNET_MODEL_DIR` names.
pub fn real_model() -> PathBuf {
    std::env::var_os("BITNET_MODEL_DIR").map_or_else(|| repository("assets/tales-22m"), PathBuf::from)
}

/// Activations quantised in a layout of the test's choice.
pub fn quantize_as<T: Float>(encoder: &mut Encoder, x: &Tensor<T>, layout: Layout) -> Result<QuantizedActivations> {
    let (tokens, features) = x.shape().as_matrix();
    let xq = QuantizedActivations::uninit(encoder.context(), tokens, features, layout)?;
    bitnet::quantize_activations_into(encoder, x, &xq)?;
    Ok(xq)
}

/// The same after a norm.
pub fn rms_norm_quantize_as<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    gain: &Tensor<f32>,
    eps: f32,
    layout: Layout,
) -> Result<QuantizedActivations> {
    let (tokens, features) = x.shape().as_matrix();
    let xq = QuantizedActivations::uninit(encoder.context(), tokens, features, layout)?;
    bitnet::rms_norm_quantize_into(encoder, x, gain, eps, &xq)?;
    Ok(xq)
}

/// The same after a gate.
pub fn gate_quantize_as(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    gate: Gate,
    norm: Norm<'_, Tensor<f32>>,
    layout: Layout,
) -> Result<QuantizedActivations> {
    let (tokens, columns) = x.shape().as_matrix();
    let xq = QuantizedActivations::uninit(encoder.context(), tokens, columns / 2, layout)?;
    bitnet::gate_quantize_into(encoder, x, gate, norm, &xq)?;
    Ok(xq)
}
