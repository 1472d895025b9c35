//! BitNet: quantizers and BitLinear.

mod bitlinear;
mod bitlinear_block_float;
mod bitlinear_experts;
mod bitlinear_float;
mod bitlinear_int;
mod bitlinear_int_quantized;
mod clamp_gates;
mod decoded;
mod dequantize;
mod dequantize_int;
mod fake_quantize;
mod gate;
mod gate_quantize;
mod hadamard;
mod layer;
mod norm_bitlinear;
mod norm_bitlinear_block_float;
mod quantization_error;
mod quantize_activations;
mod quantize_int4;
mod quantize_int8;
mod quantize_weights;
mod quantize_weights_binary;
mod quantize_weights_by_group;
mod quantize_weights_int;
mod rms_norm_quantize;

use super::{By::*, Family};
use crate::{Data, Leeway, Recorder, floats, random_shapes, rng, shapes};
use bitnet_wgpu::{
    bitnet::{Layout, QuantizedActivations},
    cpu::HostActivations,
    tensor::f16,
    weights::{IntMatrix, PackedInt, PackedTernary},
};

pub const OPS: Family = &[
    ("bitnet::bitlinear", Kernels, bitlinear::cases),
    ("bitnet::bitlinear_add", Kernels, bitlinear::adding),
    ("bitnet::bitlinear_block_float", Kernels, bitlinear_block_float::cases),
    ("bitnet::bitlinear_block_float_fused", Kernels, bitlinear_block_float::fused),
    ("bitnet::bitlinear_block_float_gates", Kernels, bitlinear_block_float::gates),
    ("bitnet::bitlinear_experts", Kernels, bitlinear_experts::cases),
    ("bitnet::bitlinear_float", KernelsAndReference, bitlinear_float::cases),
    ("bitnet::bitlinear_float_with", Kernels, bitlinear_float::finished),
    ("bitnet::bitlinear_groups", KernelsAndReference, bitlinear::groups),
    ("bitnet::bitlinear_groups_with", Kernels, bitlinear::groups_finished),
    ("bitnet::bitlinear_int", KernelsAndReference, bitlinear_int::cases),
    ("bitnet::bitlinear_int_quantized", KernelsAndReference, bitlinear_int_quantized::cases),
    ("bitnet::bitlinear_int_quantized_with", Kernels, bitlinear_int_quantized::finished),
    ("bitnet::bitlinear_int_with", Kernels, bitlinear_int::finished),
    ("bitnet::bitlinear_with", Kernels, bitlinear::finished),
    ("bitnet::clamp_gates", Wgsl, clamp_gates::cases),
    ("bitnet::dequantize_activations", Kernels, dequantize::activations),
    ("bitnet::dequantize_int", Wgsl, dequantize_int::cases),
    ("bitnet::dequantize_weights", Kernels, dequantize::weights),
    ("bitnet::experts_sum", KernelsAndReference, bitlinear_experts::sums),
    ("bitnet::fake_quantize_activations", Kernels, fake_quantize::activations),
    ("bitnet::fake_quantize_backward", Wgsl, fake_quantize::backward),
    ("bitnet::fake_quantize_weights", Kernels, fake_quantize::weights),
    ("bitnet::fake_quantize_weights_by_matrix", Kernels, fake_quantize::weights_by_matrix),
    ("bitnet::gate", WgslAndReference, gate::cases),
    ("bitnet::gate_extremes", Kernels, gate_quantize::extremes),
    ("bitnet::gate_norm_quantize", KernelsAndReference, gate_quantize::with_norm),
    ("bitnet::gate_quantize", KernelsAndReference, gate_quantize::cases),
    ("bitnet::hadamard", Kernels, hadamard::cases),
    ("bitnet::layer_block_float", Kernels, layer::block_float),
    ("bitnet::layer_gates", Kernels, layer::gates),
    ("bitnet::layer_int8", Kernels, layer::int8),
    ("bitnet::layer_int_weights", Kernels, layer::int_weights),
    ("bitnet::norm_bitlinear", Kernels, norm_bitlinear::cases),
    ("bitnet::norm_bitlinear_add", Kernels, norm_bitlinear::adding),
    ("bitnet::norm_bitlinear_block_float", Kernels, norm_bitlinear_block_float::cases),
    ("bitnet::norm_bitlinear_block_float_finished", Kernels, norm_bitlinear_block_float::finished),
    ("bitnet::norm_bitlinear_gated", KernelsAndReference, norm_bitlinear::gated),
    ("bitnet::quantization_error", WgslAndReference, quantization_error::cases),
    ("bitnet::quantize_activations", Kernels, quantize_activations::cases),
    ("bitnet::quantize_activations_4bit", Kernels, quantize_int4::cases),
    ("bitnet::quantize_activations_by_tensor", Wgsl, quantize_int8::by_tensor),
    ("bitnet::quantize_activations_static", Wgsl, quantize_int8::with_range),
    ("bitnet::quantize_activations_with_zero_point", Kernels, quantize_int8::with_zero_point),
    ("bitnet::quantize_gradients", Kernels, quantize_int8::gradients),
    ("bitnet::quantize_weights", Kernels, quantize_weights::cases),
    ("bitnet::quantize_weights_binary", Kernels, quantize_weights_binary::cases),
    ("bitnet::quantize_weights_binary_by_matrix", Kernels, quantize_weights_binary::by_matrix),
    ("bitnet::quantize_weights_by_group", Kernels, quantize_weights_by_group::cases),
    ("bitnet::quantize_weights_by_matrix", Kernels, quantize_weights::by_matrix),
    ("bitnet::quantize_weights_int", Kernels, quantize_weights_int::cases),
    ("bitnet::rms_norm_fake_quantize", Kernels, fake_quantize::with_norm),
    ("bitnet::rms_norm_quantize", Kernels, rms_norm_quantize::cases),
    ("bitnet::sort_experts", Wgsl, bitlinear_experts::sorted),
];

const LAYOUTS: [Layout; 2] = [Layout::Int8, Layout::F16];

/// Words of sixteen codes in a row, padded to whole vectors of four.
fn row_words(features: usize) -> usize {
    features.div_ceil(64) * 4
}

/// The codes of a row in the f16 layout as `wgsl/bitnet/f16_planes.wgsl` describes it, or as
/// bytes in order.
fn pack(layout: Layout, codes: &[i8]) -> Vec<u32> {
    let groups = row_words(codes.len()) * 4;
    let mut row = vec![0; if layout == Layout::F16 { 2 * groups } else { groups }];
    for (i, &code) in codes.iter().enumerate() {
        let (group, j) = (i / 4, i % 4);
        if layout == Layout::F16 {
            let scaled = f16::from_f32(f32::from(code) / 4f32.powi(group as i32 % 4));
            row[j % 2 * groups + group] |= u32::from(scaled.to_bits()) << (16 * (j / 2));
        } else {
            row[group] |= u32::from(code as u8) << (8 * j);
        }
    }
    row
}

/// The codes that a row of words should hold; whether they do, packing them again will tell.
fn unpack(layout: Layout, words: &[u32], features: usize) -> Vec<i8> {
    let code = |i: usize| {
        let (group, j) = (i / 4, i % 4);
        if layout == Layout::F16 {
            let bits = words[j % 2 * (words.len() / 2) + group] >> (16 * (j / 2));
            (f16::from_bits(bits as u16).to_f32() * 4f32.powi(group as i32 % 4)) as i8
        } else {
            (words[group] >> (8 * j)) as i8
        }
    };
    (0..features).map(code).collect()
}

/// Σ code and Σ code·4^(5-f), where f is the field of a word that meets the code. Rows that are too
/// long for the second sum let it wrap around: kernels that use it refuse them.
fn sums(codes: &[i8]) -> [i32; 2] {
    let sum = codes.iter().map(|&code| i32::from(code)).sum();
    let weighted =
        codes.iter().enumerate().map(|(i, &code)| i32::from(code) * 4i32.pow(5 - i as u32 / 4 % 4));
    [sum, weighted.fold(0, i32::wrapping_add)]
}

/// Activations as they must lie in memory: codes, scales, sums.
fn quantized(x: &HostActivations, layout: Layout) -> Vec<Data> {
    let rows = || (0..x.tokens).map(|token| x.row(token));
    vec![
        Data::U32(rows().flat_map(|row| pack(layout, row)).collect()),
        Data::F32(x.scales.clone()),
        Data::I32(rows().flat_map(sums).collect()),
    ]
}

/// Watches what [`quantized`] gives.
fn watch_quantized(r: &mut Recorder, x: &QuantizedActivations) {
    let (codes, scales, sums) = x.tensors();
    r.watch_all(codes);
    r.watch_all(scales);
    r.watch_all(sums);
}

/// Random shapes, and sizes of groups in turn.
fn random_groups(op: &str) -> impl Iterator<Item = ((usize, usize, usize), Option<usize>)> {
    random_shapes(op).into_iter().zip([None, Some(32), Some(64), Some(160)].into_iter().cycle())
}

/// Stacks of matrices that end within a workgroup of words, and within and beyond a chunk of sums;
/// and some without any. Their weights twice: alike, and in matrices that differ by much, of which
/// some are nothing.
fn stacks(op: &str) -> impl Iterator<Item = ([usize; 3], Vec<f32>, Vec<f32>)> {
    let fixed = [
        [1, 3, 17],
        [3, 5, 70],
        [2, 129, 515],
        [5, 1, 1],
        [4, 65, 64],
        [3, 1, 65_537],
        [0, 3, 5],
        [3, 0, 5],
        [3, 2, 0],
    ];
    let others = shapes(op).map(|(_, (matrices, rows, columns))| [matrices, rows, columns]);
    // Larger ones take a minute and show nothing else.
    let others = others.filter(|stack| stack.iter().product::<usize>() < 1 << 18);
    fixed.into_iter().chain(others).map(|stack| {
        let length = stack[1] * stack[2];
        let plain = floats(&mut rng(length as u64), stack[0] * length, 3.0);
        let uneven =
            plain.iter().enumerate().map(|(i, v)| v * [1.0, 0.0, 1e-3][i / length % 3]).collect();
        (stack, plain, uneven)
    })
}

/// What [`watch_ints`] watches: codes, scales, zero points.
fn ints_of(w: &PackedInt) -> Vec<Data> {
    vec![
        Data::U32(w.words().to_vec()),
        Data::F32(w.affine().scales.clone()),
        Data::F32(w.affine().zeros.clone()),
    ]
}

/// Watches a matrix of 1 to 8 bits.
fn watch_ints(r: &mut Recorder, w: &IntMatrix) {
    let (codes, scales, zeros) = w.tensors();
    r.watch_all(codes);
    r.watch_all(scales);
    r.watch_all(zeros);
}

/// Says where [`ints_of`] a matrix with groups that are not finite differ from `wanted`: their
/// codes and zero points are what they are there, and their scales no numbers.
fn check_not_finite(got: &[Data], expected: &[Data], broken: &[usize]) -> Result<(), String> {
    got[0].check(&expected[0], Leeway::None)?;
    got[2].check(&expected[2], Leeway::None)?;
    let (Data::F32(found), Data::F32(scales)) = (&got[1], &expected[1]) else {
        return Err("scales are f32".to_owned());
    };
    let right = |i: usize| {
        if broken.contains(&i) {
            found[i].is_nan()
        } else {
            found[i].to_bits() == scales[i].to_bits()
        }
    };
    if found.len() == scales.len() && (0..found.len()).all(right) {
        Ok(())
    } else {
        Err(format!("scales {found:?}"))
    }
}

/// A scale for every row, so that a wrong row shows.
fn row_scales(scales: &[f32]) -> bitnet_wgpu::weights::Scales {
    bitnet_wgpu::weights::Scales::Segments(scales.iter().map(|&scale| (1, scale)).collect())
}

/// What a matrix multiplies a token by, and by what the sums are divided: Σ and Σ|..| of the terms
/// of an output, in `f64`.
fn exact_product(dense: &[f32], x: &HostActivations, w: &PackedTernary, at: usize) -> (f64, f64) {
    let (n, k) = (w.rows(), w.columns());
    let terms = || {
        dense[at % n * k..][..k]
            .iter()
            .zip(x.row(at / n))
            .map(|(&w, &x)| f64::from(w) * f64::from(x))
    };
    let scale = f64::from(x.scales[at / n]);
    (terms().sum::<f64>() / scale, terms().map(f64::abs).sum::<f64>() / scale)
}
