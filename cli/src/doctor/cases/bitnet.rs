//! Quantizers and BitLinear. Most results are integers or one rounding away from them, so they are
//! compared bit for bit.

use super::{Case, SUM, case, half};
use crate::doctor::{
    compare::{Bound, Number},
    trial::Trial,
};
use anyhow::Result;
use bitnet_wgpu::bitnet::{ActivationType, BitLinear};
use bitnet_wgpu::{
    Tensor,
    bitnet::{self, Gate, QuantizationError, WeightQuantizer},
    reference,
    tensor::{Float, f16},
    weights::{Affine, Bits, PackedInt, PackedTernary, Scales},
};
use pollster::block_on;

const EPS: f32 = 1e-5;

pub const CASES: &[Case] = &[
    case("bitnet::bitlinear, one token", |t| bitlinear::<f32>(t, 1)),
    case("bitnet::bitlinear, a few tokens", |t| bitlinear::<f32>(t, 5)),
    case("bitnet::bitlinear, many tokens", |t| bitlinear::<f32>(t, 70)),
    half("bitnet::bitlinear, f16", |t| bitlinear::<f16>(t, 5)),
    case("bitnet::bitlinear_backward", bitlinear_backward),
    case("bitnet::bitlinear_float", bitlinear_float),
    case("bitnet::bitlinear_int", bitlinear_int),
    case("bitnet::bitlinear_int_quantized", bitlinear_int_quantized),
    case("bitnet::bitlinear_block_float", bitlinear_block_float),
    case("bitnet::bitlinear_experts", bitlinear_experts),
    case("bitnet::experts_sum", experts_sum),
    case("bitnet::norm_bitlinear", norm_bitlinear),
    case("bitnet::norm_bitlinear_gated", norm_bitlinear_gated),
    case("bitnet::norm_bitlinear_block_float", norm_bitlinear_block_float),
    case("bitnet::clamp_gates", clamp_gates),
    case("bitnet::dequantize", dequantize),
    case("bitnet::fake_quantize_activations", fake_quantize_activations),
    case("bitnet::fake_quantize_backward", fake_quantize_backward),
    case("bitnet::fake_quantize_weights", fake_quantize_weights),
    case("bitnet::gate", gate),
    case("bitnet::gate_backward", gate_backward),
    case("bitnet::gate_quantize", gate_quantize),
    case("bitnet::hadamard", hadamard),
    case("bitnet::quantization_error", quantization_error),
    case("bitnet::quantize_activations", quantize_activations::<f32>),
    half("bitnet::quantize_activations, f16", quantize_activations::<f16>),
    case("bitnet::quantize_activations_4bit", quantize_activations_4bit),
    case("bitnet::quantize_activations_by_tensor", quantize_activations_by_tensor),
    case("bitnet::quantize_activations_with_zero_point", quantize_activations_with_zero_point),
    case("bitnet::quantize_gradients", quantize_gradients),
    case("bitnet::quantize_weights", quantize_weights::<f32>),
    half("bitnet::quantize_weights, f16", quantize_weights::<f16>),
    case("bitnet::quantize_weights_by_group", quantize_weights_by_group),
    case("bitnet::quantize_weights_binary", quantize_weights_binary),
    case("bitnet::quantize_weights_int", quantize_weights_int),
    case("bitnet::rms_norm_fake_quantize", rms_norm_fake_quantize),
    case("bitnet::rms_norm_quantize", rms_norm_quantize),
];

/// Random ternary weights: one scale, or one per group of columns.
fn ternary(
    t: &mut Trial,
    rows: usize,
    columns: usize,
    group: Option<usize>,
) -> Result<PackedTernary> {
    let values: Vec<i8> = t.ids(rows * columns, 3).into_iter().map(|code| code as i8 - 1).collect();
    let scales = match group {
        Some(size) => Scales::Groups { size, scales: positive(t, rows * columns.div_ceil(size)) },
        None => Scales::Tensor(0.37),
    };
    Ok(PackedTernary::from_values(rows, columns, &values, scales)?)
}

/// Random codes of four bits, with scales and zero points.
fn integers(t: &mut Trial, rows: usize, columns: usize) -> Result<PackedInt> {
    let codes: Vec<u8> = t.ids(rows * columns, 16).into_iter().map(|code| code as u8).collect();
    let groups = rows * columns.div_ceil(64);
    let affine = Affine { group: Some(64), scales: positive(t, groups), zeros: vec![7.5; groups] };
    Ok(PackedInt::from_codes(rows, columns, Bits::Four, &codes, affine)?)
}

fn positive(t: &mut Trial, len: usize) -> Vec<f32> {
    t.floats(len).into_iter().map(|v| 0.1 + v.abs()).collect()
}

/// What a reference of one row makes of all.
fn by_row(
    x: &[f32],
    columns: usize,
    reference: impl Fn(&[f32]) -> bitnet_wgpu::Result<Vec<f32>>,
) -> Result<Vec<f32>> {
    Ok(x.chunks(columns).map(reference).collect::<bitnet_wgpu::Result<Vec<_>>>()?.concat())
}

fn bitlinear<T: Float + Number>(t: &mut Trial, tokens: usize) -> Result<()> {
    let (rows, columns) = (67, 452);
    let (x, w) = (t.values::<T>(tokens * columns), ternary(t, rows, columns, None)?);
    let y = BitLinear::new(&w.upload(&t.context)?)
        .output_type::<T>()
        .forward(&mut t.encoder, &t.context.upload(&x, [tokens, columns])?)?;
    let expected: Vec<f32> =
        reference::bitlinear(&x, tokens, &w)?.into_iter().map(Into::into).collect();
    // The integer sums are exact; only the rounding to f16 is open.
    t.near(&y, &expected, 0.0);
    Ok(())
}

fn bitlinear_backward(t: &mut Trial) -> Result<()> {
    let (tokens, outputs, columns) = (5, 67, 130);
    let (dy, w) = (t.floats(tokens * outputs), ternary(t, outputs, columns, None)?);
    let dx = BitLinear::new(&w.upload(&t.context)?)
        .backward(&mut t.encoder, &t.context.upload(&dy, [tokens, outputs])?)?;
    let dense = w.dequantize();
    t.near(
        &dx,
        &by_row(&dy, outputs, |row| {
            reference::bitlinear_backward(row, &dense, [outputs, columns])
        })?,
        SUM,
    );
    Ok(())
}

fn bitlinear_float(t: &mut Trial) -> Result<()> {
    let (tokens, rows, columns) = (5, 67, 300);
    let (x, w) = (t.floats(tokens * columns), ternary(t, rows, columns, Some(128))?);
    let y = BitLinear::new(&w.upload(&t.context)?)
        .activation_type(ActivationType::Float)
        .forward(&mut t.encoder, &t.context.upload(&x, [tokens, columns])?)?;
    let dense = w.dequantize();
    t.near(
        &y,
        &by_row(&x, columns, |row| reference::bitlinear_float(row, &dense, [rows, columns]))?,
        SUM,
    );
    Ok(())
}

fn bitlinear_int(t: &mut Trial) -> Result<()> {
    let (tokens, rows, columns) = (5, 67, 300);
    let (x, w) = (t.floats(tokens * columns), integers(t, rows, columns)?);
    let y = BitLinear::new(&w.upload(&t.context)?)
        .forward(&mut t.encoder, &t.context.upload(&x, [tokens, columns])?)?;
    let dense = w.dequantize();
    t.near(
        &y,
        &by_row(&x, columns, |row| reference::bitlinear_float(row, &dense, [rows, columns]))?,
        SUM,
    );
    Ok(())
}

fn bitlinear_int_quantized(t: &mut Trial) -> Result<()> {
    let (tokens, rows, columns) = (5, 67, 300);
    let (x, w) = (t.floats(tokens * columns), integers(t, rows, columns)?);
    // Integer weights take codes of 8 bits, also where ternary ones take another layout.
    let codes = bitnet::ActivationQuantizer::int8()
        .layout(bitnet::Layout::Int8)
        .quantize(&mut t.encoder, &t.context.upload(&x, [tokens, columns])?)?;
    let y: Tensor<f32> = BitLinear::new(&w.upload(&t.context)?).forward(&mut t.encoder, &codes)?;
    t.near(
        &y,
        &reference::bitlinear_int_quantized(
            &reference::quantize_activations(&x, tokens, columns)?,
            &w,
        )?,
        SUM,
    );
    Ok(())
}

fn bitlinear_block_float(t: &mut Trial) -> Result<()> {
    let (tokens, rows, columns) = (5, 67, 300);
    let (mut x, w) = (t.floats(tokens * columns), ternary(t, rows, columns, Some(128))?);
    let rounded = bitnet::ActivationQuantizer::block_float(w.group())
        .quantize(&mut t.encoder, &t.context.upload(&x, [tokens, columns])?)?;
    let y = BitLinear::new(&w.upload(&t.context)?).forward(&mut t.encoder, &rounded)?;
    reference::quantize_block_float(&mut x, columns, w.group())?;
    t.same(&y, by_row(&x, columns, |row| reference::bitlinear_block_float(row, &w))?);
    Ok(())
}

fn bitlinear_experts(t: &mut Trial) -> Result<()> {
    let (tokens, used, rows, columns) = (3, 2, 35, 300);
    let (x, w) = (t.floats(tokens * columns), ternary(t, 5 * rows, columns, Some(128))?);
    let chosen = t.ids(tokens * used, 5);
    let x_there = t.context.upload(&x, [tokens, columns])?;
    let chosen_there = t.context.upload(&chosen, [tokens, used])?;
    let y = bitnet::bitlinear_experts(&x_there, &w.upload(&t.context)?, 5, &chosen_there)
        .forward(&mut t.encoder)?;
    let mut expected = Vec::new();
    for (i, &expert) in chosen.iter().enumerate() {
        let all = reference::bitlinear_expert(&x[i / used * columns..][..columns], &w, false)?;
        expected.extend_from_slice(&all[expert as usize * rows..][..rows]);
    }
    t.same(&y, expected);
    Ok(())
}

fn clamp_gates(t: &mut Trial) -> Result<()> {
    let (tokens, features) = (3, 37);
    let mut x: Vec<f32> = t.floats(tokens * 2 * features).iter().map(|v| v * 20.0).collect();
    let there = t.context.upload(&x, [tokens, 2 * features])?;
    bitnet::clamp_gates(&mut t.encoder, &there, 7.0)?;
    reference::clamp_gates(&mut x, features, 7.0);
    t.same(&there, x);
    Ok(())
}

fn experts_sum(t: &mut Trial) -> Result<()> {
    let (tokens, used, columns) = (3, 4, 37);
    let (x, weights) = (t.floats(tokens * used * columns), t.floats(tokens * used));
    let x_there = t.context.upload(&x, [tokens * used, columns])?;
    let weights_there = t.context.upload(&weights, [tokens, used])?;
    let y = bitnet::experts_sum(&x_there, &weights_there).forward(&mut t.encoder)?;
    let rows = x.chunks(used * columns).zip(weights.chunks(used));
    let expected: Vec<f32> =
        rows.flat_map(|(x, weights)| reference::experts_sum(x, weights)).collect();
    t.near(&y, &expected, SUM);
    Ok(())
}

fn norm_bitlinear(t: &mut Trial) -> Result<()> {
    let (rows, columns) = (67, 516);
    let (x, gain, w) = (t.floats(columns), t.floats(columns), ternary(t, rows, columns, None)?);
    let (x_there, gain_there) =
        (t.context.upload(&x, [1, columns])?, t.context.upload(&gain, [columns])?);
    let y = BitLinear::new(&w.upload(&t.context)?)
        .norm(Some((&gain_there, EPS)))
        .forward(&mut t.encoder, &x_there)?;
    t.same(&y, reference::norm_bitlinear(&x, 1, Some((&gain, EPS)), &w, None)?);
    Ok(())
}

fn norm_bitlinear_gated(t: &mut Trial) -> Result<()> {
    let (rows, columns) = (66, 516);
    let (x, gain, w) = (t.floats(columns), t.floats(columns), ternary(t, rows, columns, None)?);
    let (x_there, gain_there, w_there) = (
        t.context.upload(&x, [1, columns])?,
        t.context.upload(&gain, [columns])?,
        w.upload(&t.context)?,
    );
    for (gate, share) in [(Gate::Relu2, 0.0), (Gate::Silu, SUM), (Gate::GeluTanh, SUM)] {
        let y = BitLinear::new(&w_there)
            .norm(Some((&gain_there, EPS)))
            .gate(gate)
            .forward(&mut t.encoder, &x_there)?;
        t.near(&y, &reference::norm_bitlinear(&x, 1, Some((&gain, EPS)), &w, Some(gate))?, share);
    }
    Ok(())
}

fn norm_bitlinear_block_float(t: &mut Trial) -> Result<()> {
    let (rows, columns) = (66, 640);
    let (x, gain, w) =
        (t.floats(columns), t.floats(columns), ternary(t, rows, columns, Some(128))?);
    let (x_there, gain_there, w_there) = (
        t.context.upload(&x, [1, columns])?,
        t.context.upload(&gain, [columns])?,
        w.upload(&t.context)?,
    );
    let (y, gated) = (
        Tensor::<f32>::uninit(&t.context, [1, rows])?,
        Tensor::<f32>::uninit(&t.context, [1, rows / 2])?,
    );
    let (there, here) = (Some((&gain_there, EPS)), Some((&gain[..], EPS)));
    BitLinear::new(&w_there).activation_type(ActivationType::BlockFloat).norm(there).forward_into(
        &mut t.encoder,
        &x_there,
        &y,
    )?;
    BitLinear::new(&w_there)
        .activation_type(ActivationType::BlockFloat)
        .norm(there)
        .gate(Gate::Silu)
        .forward_into(&mut t.encoder, &x_there, &gated)?;
    t.same(&y, reference::norm_bitlinear_block_float(&x, here, &w, None)?);
    t.near(&gated, &reference::norm_bitlinear_block_float(&x, here, &w, Some(Gate::Silu))?, SUM);
    Ok(())
}

fn dequantize(t: &mut Trial) -> Result<()> {
    let (rows, columns) = (7, 300);
    let (x, ternary, int) = (
        t.floats(rows * columns),
        ternary(t, rows, columns, Some(48))?,
        integers(t, rows, columns)?,
    );
    let codes = bitnet::ActivationQuantizer::int8()
        .quantize(&mut t.encoder, &t.context.upload(&x, [rows, columns])?)?;
    let from_codes: Tensor<f32> = codes.dequantize(&mut t.encoder)?;
    let from_ternary: Tensor<f32> = ternary.upload(&t.context)?.dequantize(&mut t.encoder)?;
    let from_int: Tensor<f32> = int.upload(&t.context)?.dequantize(&mut t.encoder)?;
    t.same(&from_codes, reference::quantize_activations(&x, rows, columns)?.dequantize());
    t.same(&from_ternary, ternary.dequantize());
    t.near(&from_int, &int.dequantize(), SUM);
    Ok(())
}

fn fake_quantize_activations(t: &mut Trial) -> Result<()> {
    let (rows, columns) = (5, 300);
    let x = t.floats(rows * columns);
    let there = t.context.upload(&x, [rows, columns])?;
    let y = bitnet::fake_quantize_activations(&there, 1.0).forward(&mut t.encoder)?;
    t.same(&y, reference::fake_quantize_activations(&x, [rows, columns], None, 1.0)?);
    Ok(())
}

fn fake_quantize_backward(t: &mut Trial) -> Result<()> {
    let (x, dy, scale, range) = (t.floats(300), t.floats(300), 0.6, (-1.0, 1.0));
    let (x_there, dy_there, scale_there) = (
        t.context.upload(&x, [300])?,
        t.context.upload(&dy, [300])?,
        t.context.upload(&[scale], [1])?,
    );
    let op = bitnet::fake_quantize_weights(&x_there, 1.0);
    let dx = op.backward(&mut t.encoder, &scale_there, &dy_there)?;
    t.same(
        &dx,
        x.iter()
            .zip(&dy)
            .map(|(&x, &dy)| reference::fake_quantize_weights_backward(x, scale, range, dy))
            .collect(),
    );
    Ok(())
}

fn fake_quantize_weights(t: &mut Trial) -> Result<()> {
    let w = t.floats(65 * 129);
    let there = t.context.upload(&w, [65, 129])?;
    let fake = bitnet::fake_quantize_weights(&there, 1.0).forward(&mut t.encoder)?;
    let expected = reference::fake_quantize_weights(&w, [1, 65, 129], 1.0)?;
    t.same(&fake.values, expected.values);
    t.same(&fake.scale, expected.scale);
    Ok(())
}

fn gate(t: &mut Trial) -> Result<()> {
    let (tokens, features) = (5, 65);
    let x = t.floats(tokens * 2 * features);
    let there = t.context.upload(&x, [tokens, 2 * features])?;
    let y = bitnet::gate(&there, Gate::Relu2).forward(&mut t.encoder)?;
    t.same(&y, reference::gate(&x, features, Gate::Relu2)?);
    for gate in [Gate::Silu, Gate::GeluTanh] {
        let y = bitnet::gate(&there, gate).forward(&mut t.encoder)?;
        t.near(&y, &reference::gate(&x, features, gate)?, SUM);
    }
    Ok(())
}

fn gate_backward(t: &mut Trial) -> Result<()> {
    let (tokens, features) = (5, 65);
    let (x, dy) = (t.floats(tokens * 2 * features), t.floats(tokens * features));
    let there = t.context.upload(&x, [tokens, 2 * features])?;
    let dx = bitnet::gate(&there, Gate::Silu)
        .backward(&mut t.encoder, &t.context.upload(&dy, [tokens, features])?)?;
    let mut expected = vec![0.0; x.len()];
    for ((x, dx), dy) in
        x.chunks(2 * features).zip(expected.chunks_mut(2 * features)).zip(dy.chunks(features))
    {
        for (i, &dy) in dy.iter().enumerate() {
            (dx[i], dx[features + i]) =
                reference::gate_backward(x[i], x[features + i], dy, Gate::Silu);
        }
    }
    t.near(&dx, &expected, SUM);
    Ok(())
}

fn gate_quantize(t: &mut Trial) -> Result<()> {
    let (tokens, features) = (5, 300);
    let (x, gain) = (t.floats(tokens * 2 * features), t.floats(features));
    let (x_there, gain_there) =
        (t.context.upload(&x, [tokens, 2 * features])?, t.context.upload(&gain, [features])?);
    let plain = bitnet::ActivationQuantizer::int8()
        .gate(Gate::Relu2)
        .norm(None)
        .quantize(&mut t.encoder, &x_there)?;
    let normed = bitnet::ActivationQuantizer::int8()
        .gate(Gate::Relu2)
        .norm(Some((&gain_there, EPS)))
        .quantize(&mut t.encoder, &x_there)?;
    let expected = reference::gate_quantize(&x, features, Gate::Relu2, None)?;
    t.check(Bound::Exact, move || Ok(block_on(plain.read())?), &expected);
    let expected = reference::gate_quantize(&x, features, Gate::Relu2, Some((&gain, EPS)))?;
    t.check(Bound::Exact, move || Ok(block_on(normed.read())?), &expected);
    Ok(())
}

fn hadamard(t: &mut Trial) -> Result<()> {
    let mut x = t.floats(5 * 384);
    let y = bitnet::hadamard(&t.context.upload(&x, [5, 384])?, 128).forward(&mut t.encoder)?;
    reference::hadamard(&mut x, 128)?;
    t.same(&y, x);
    Ok(())
}

fn quantization_error(t: &mut Trial) -> Result<()> {
    let w = t.floats(5 * 1800);
    let rounded: Vec<f32> = w.iter().map(|v| v.round()).collect();
    let (there, rounded_there) =
        (t.context.upload(&w, [5, 1800])?, t.context.upload(&rounded, [5, 1800])?);
    let error = bitnet::quantization_error(&there, &rounded_there).forward(&mut t.encoder)?;
    let QuantizationError { mean_squared, largest, cosine, zeros } =
        reference::quantization_error(&w, &rounded)?;
    t.near(&error, &[mean_squared, largest, cosine, zeros], SUM);
    Ok(())
}

fn quantize_activations<T: Float>(t: &mut Trial) -> Result<()> {
    let (tokens, features) = (5, 300);
    let x = t.values::<T>(tokens * features);
    let codes = bitnet::ActivationQuantizer::int8()
        .quantize(&mut t.encoder, &t.context.upload(&x, [tokens, features])?)?;
    t.check(
        Bound::Exact,
        move || Ok(block_on(codes.read())?),
        &reference::quantize_activations(&x, tokens, features)?,
    );
    Ok(())
}

fn quantize_activations_4bit(t: &mut Trial) -> Result<()> {
    let (tokens, features) = (5, 300);
    let x = t.floats(tokens * features);
    let codes = bitnet::ActivationQuantizer::int4()
        .quantize(&mut t.encoder, &t.context.upload(&x, [tokens, features])?)?;
    t.check(
        Bound::Exact,
        move || Ok(block_on(codes.read())?),
        &reference::quantize_activations_4bit(&x, tokens, features)?,
    );
    Ok(())
}

fn quantize_activations_by_tensor(t: &mut Trial) -> Result<()> {
    let x = t.floats(5 * 300);
    let there = t.context.upload(&x, [5, 300])?;
    let codes =
        bitnet::ActivationQuantizer::int8().per_tensor().quantize(&mut t.encoder, &there)?;
    t.check(
        Bound::Exact,
        move || Ok(block_on(codes.read())?),
        &reference::quantize_activations_by_tensor(&x),
    );
    let codes = bitnet::ActivationQuantizer::int8()
        .static_range(-2.0, 1.5)
        .quantize(&mut t.encoder, &there)?;
    t.check(
        Bound::Exact,
        move || Ok(block_on(codes.read())?),
        &reference::quantize_activations_static(&x, (-2.0, 1.5))?,
    );
    Ok(())
}

fn quantize_activations_with_zero_point(t: &mut Trial) -> Result<()> {
    let x = t.floats(5 * 300);
    let codes = bitnet::ActivationQuantizer::int8()
        .with_zero_point()
        .quantize(&mut t.encoder, &t.context.upload(&x, [5, 300])?)?;
    t.check(
        Bound::Exact,
        move || Ok(block_on(codes.read())?),
        &reference::quantize_activations_with_zero_point(&x, 5, 300)?,
    );
    Ok(())
}

fn quantize_gradients(t: &mut Trial) -> Result<()> {
    let (x, seed) = (t.floats(5 * 300), 0x1234_5678_9abc_def0);
    let codes = bitnet::ActivationQuantizer::int8()
        .stochastic(seed)
        .quantize(&mut t.encoder, &t.context.upload(&x, [5, 300])?)?;
    t.check(
        Bound::Exact,
        move || Ok(block_on(codes.read())?),
        &reference::quantize_gradients(&x, 5, 300, seed)?,
    );
    Ok(())
}

fn quantize_weights<T: Float>(t: &mut Trial) -> Result<()> {
    let (rows, columns) = (65, 129);
    let w = t.values::<T>(rows * columns);
    let there = t.context.upload(&w, [rows, columns])?;
    let by_tensor = WeightQuantizer::absmean().quantize(&mut t.encoder, &there)?;
    t.check(
        Bound::Exact,
        move || Ok(block_on(by_tensor.read())?),
        &reference::quantize_weights(&w, [rows, columns], WeightQuantizer::absmean())?,
    );
    let by_row = WeightQuantizer::absmean().per_row().quantize(&mut t.encoder, &there)?;
    t.check(
        Bound::Exact,
        move || Ok(block_on(by_row.read())?),
        &reference::quantize_weights(&w, [rows, columns], WeightQuantizer::absmean().per_row())?,
    );
    Ok(())
}

fn quantize_weights_by_group(t: &mut Trial) -> Result<()> {
    let (rows, columns) = (65, 300);
    let w = t.floats(rows * columns);
    let packed = WeightQuantizer::absmean()
        .per_group(128)
        .quantize(&mut t.encoder, &t.context.upload(&w, [rows, columns])?)?;
    t.check(
        Bound::Exact,
        move || Ok(block_on(packed.read())?),
        &reference::quantize_weights(
            &w,
            [rows, columns],
            WeightQuantizer::absmean().per_group(128),
        )?,
    );
    Ok(())
}

fn quantize_weights_binary(t: &mut Trial) -> Result<()> {
    let (rows, columns) = (65, 129);
    let w = t.floats(rows * columns);
    let packed = WeightQuantizer::binary()
        .quantize(&mut t.encoder, &t.context.upload(&w, [rows, columns])?)?;
    t.check(
        Bound::Exact,
        move || Ok(block_on(packed.read())?),
        &reference::quantize_weights(&w, [rows, columns], WeightQuantizer::binary())?,
    );
    Ok(())
}

fn quantize_weights_int(t: &mut Trial) -> Result<()> {
    let (rows, columns) = (65, 300);
    let w = t.floats(rows * columns);
    let there = t.context.upload(&w, [rows, columns])?;
    for quantizer in [
        WeightQuantizer::int(Bits::Two).asymmetric(),
        WeightQuantizer::int(Bits::Four),
        WeightQuantizer::int(Bits::Eight).asymmetric(),
    ]
    .map(|quantizer| quantizer.per_group(64))
    {
        let packed = quantizer.quantize(&mut t.encoder, &there)?;
        let expected = reference::quantize_weights(&w, [rows, columns], quantizer)?;
        t.check(Bound::Exact, move || Ok(block_on(packed.read())?), &expected);
    }
    Ok(())
}

fn rms_norm_fake_quantize(t: &mut Trial) -> Result<()> {
    let (tokens, features) = (5, 300);
    let (x, gain) = (t.floats(tokens * features), t.floats(features));
    let (x_there, gain_there) =
        (t.context.upload(&x, [tokens, features])?, t.context.upload(&gain, [features])?);
    let y = bitnet::fake_quantize_activations(&x_there, 1.0)
        .norm((&gain_there, EPS))
        .forward(&mut t.encoder)?;
    let norm = Some((&gain[..], EPS));
    t.same(&y, reference::fake_quantize_activations(&x, [tokens, features], norm, 1.0)?);
    Ok(())
}

fn rms_norm_quantize(t: &mut Trial) -> Result<()> {
    let (tokens, features) = (5, 300);
    let (x, gain) = (t.floats(tokens * features), t.floats(features));
    let codes = bitnet::ActivationQuantizer::int8()
        .norm((&t.context.upload(&gain, [features])?, EPS))
        .quantize(&mut t.encoder, &t.context.upload(&x, [tokens, features])?)?;
    t.check(
        Bound::Exact,
        move || Ok(block_on(codes.read())?),
        &reference::rms_norm_quantize(&x, tokens, &gain, EPS)?,
    );
    Ok(())
}
