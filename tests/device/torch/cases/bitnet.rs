//! Quantized weights and activations, and products with them.

use super::{
    super::golden::{Case, Out},
    Run, SEED,
};
use bitnet_wgpu::{
    Encoder, Result, Tensor,
    bitnet::{
        self, ActivationType, BitLinear, Gate, Layout, QuantizedActivations, QuantizedInt8,
        WeightQuantizer,
    },
    tensor::{self, Activation, Float, Side, f16},
    transformer::RmsNorm,
    weights::{Bits, IntMatrix},
};
use support::context;

/// A gate, and its gradient.
fn gate<T: Float>(c: &mut Case, gate: Gate) -> Result<Vec<Out>>
where
    Out: From<Tensor<T>>,
{
    let (x, dy, e) = (c.floats::<T>("in0"), c.floats("dy"), &mut c.encoder);
    let op = bitnet::gate(&x, gate);
    Ok(vec![op.forward(e)?.into(), op.backward(e, &dy)?.into()])
}

fn int_rows(bits: Bits) -> WeightQuantizer<IntMatrix> {
    WeightQuantizer::int(bits).asymmetric()
}

fn symmetric(bits: Bits) -> WeightQuantizer<IntMatrix> {
    WeightQuantizer::int(bits).per_group(32)
}

/// What the codes of weights stand for.
fn int_weights(c: &mut Case, quantizer: WeightQuantizer<IntMatrix>) -> Result<Vec<Out>> {
    let (w, e) = (c.x(0), &mut c.encoder);
    let w = quantizer.quantize(e, &w)?;
    Ok(vec![w.dequantize::<f32>(e)?.into()])
}

fn ternary_weights(c: &mut Case, quantizer: WeightQuantizer) -> Result<Vec<Out>> {
    let (w, e) = (c.x(0), &mut c.encoder);
    let w = quantizer.quantize(e, &w)?;
    Ok(vec![w.dequantize::<f32>(e)?.into()])
}

/// Activations that are not quantized.
fn bitlinear_int(c: &mut Case, quantizer: WeightQuantizer<IntMatrix>) -> Result<Vec<Out>> {
    let (x, w, dy, e) = (c.x(0), c.x(1), c.dy(), &mut c.encoder);
    let w = quantizer.quantize(e, &w)?;
    let (y, dx) = (BitLinear::new(&w).forward(e, &x)?, BitLinear::new(&w).backward(e, &dy)?);
    Ok(vec![y.into(), dx.into(), tensor::matmul(Side::transposed(&dy), &x).forward(e)?.into()])
}

/// Float activations with ternary weights.
fn bitlinear_float(c: &mut Case, quantizer: WeightQuantizer) -> Result<Vec<Out>> {
    let (x, w, dy, e) = (c.x(0), c.x(1), c.dy(), &mut c.encoder);
    let w = quantizer.quantize(e, &w)?;
    let (y, dx) = (
        BitLinear::new(&w).activation_type(ActivationType::Float).forward(e, &x)?,
        BitLinear::new(&w).backward(e, &dy)?,
    );
    Ok(vec![y.into(), dx.into(), tensor::matmul(Side::transposed(&dy), &x).forward(e)?.into()])
}

/// And with activations of 8 bits.
fn bitlinear(c: &mut Case, quantizer: WeightQuantizer) -> Result<Vec<Out>> {
    let (x, weights, dy, e) = (c.x(0), c.x(1), c.dy(), &mut c.encoder);
    let (w, quantized) =
        (quantizer.quantize(e, &weights)?, bitnet::ActivationQuantizer::int8().quantize(e, &x)?);
    let (dx, rounded) = (BitLinear::new(&w).backward(e, &dy)?, quantized.dequantize(e)?);
    Ok(vec![
        BitLinear::new(&w).forward(e, &x)?.into(),
        dx.into(),
        tensor::matmul(Side::transposed(&dy), &rounded).forward(e)?.into(),
    ])
}

/// Weights with a scale for 32 columns, and activations of 8 bits.
fn bitlinear_int_quantized(
    c: &mut Case,
    bits: Bits,
    bias: Option<&Tensor<f32>>,
) -> Result<Vec<Out>> {
    let (x, w, e) = (c.x(0), c.x(1), &mut c.encoder);
    let w = WeightQuantizer::int(bits).asymmetric().per_group(32).quantize(e, &w)?;
    let (tokens, features) = x.shape().as_matrix();
    let quantized = QuantizedActivations::uninit(context(), tokens, features, Layout::Int8)?;
    bitnet::ActivationQuantizer::int8().quantize_into(e, &x, &quantized)?;
    let layer = BitLinear::new(&w).bias(bias).activation(bias.map(|_| Activation::Relu));
    Ok(vec![layer.forward(e, &quantized)?.into()])
}

/// Activations in block floating point.
fn bitlinear_block_float(c: &mut Case, quantizer: WeightQuantizer) -> Result<Vec<Out>> {
    let (x, w, e) = (c.x(0), c.x(1), &mut c.encoder);
    let w = quantizer.quantize(e, &w)?;
    let rounded = bitnet::ActivationQuantizer::block_float(w.group()).quantize(e, &x)?;
    Ok(vec![BitLinear::new(&w).forward(e, &rounded)?.into()])
}

/// What the codes of activations stand for, scales, and zero points if there are any.
fn int8(
    c: &mut Case,
    quantize: fn(&mut Encoder, &Tensor<f32>) -> Result<QuantizedInt8>,
) -> Result<Vec<Out>> {
    let (x, e) = (c.x(0), &mut c.encoder);
    let made = quantize(e, &x)?;
    let zeros =
        made.zero_points.as_ref().map(|zeros| tensor::cast(zeros).forward::<f32>(e)).transpose()?;
    let values = made.dequantize::<f32>(e)?;
    Ok([values, made.scales].into_iter().chain(zeros).map(Out::from).collect())
}

/// By the names of the golden.
pub const CASES: &[(&str, Run)] = &[
    ("bitlinear_float", |c| bitlinear_float(c, WeightQuantizer::absmean())),
    ("bitlinear_float_by_row", |c| bitlinear_float(c, WeightQuantizer::absmean().per_row())),
    ("bitlinear_float_grouped", |c| bitlinear_float(c, WeightQuantizer::absmean().per_group(16))),
    ("bitlinear_float_grouped_by_128", |c| {
        bitlinear_float(c, WeightQuantizer::absmean().per_group(128))
    }),
    ("relu2_gate", |c| gate::<f32>(c, Gate::Relu2)),
    ("silu_gate", |c| gate::<f32>(c, Gate::Silu)),
    ("gelu_tanh_gate", |c| gate::<f32>(c, Gate::GeluTanh)),
    ("fake_quantize_weights", |c| {
        let (w, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let op = bitnet::fake_quantize_weights(&w, 0.6);
        let fake = op.forward(e)?;
        Ok(vec![fake.values.into(), op.backward(e, &fake.scale, &dy)?.into()])
    }),
    ("fake_quantize_activations", |c| {
        let (x, dy) = (c.x(0), c.dy());
        Ok(vec![
            bitnet::fake_quantize_activations(&x, 1.0).forward(&mut c.encoder)?.into(),
            dy.into(),
        ])
    }),
    ("hadamard", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        Ok(vec![
            bitnet::hadamard(&x, 8).forward(e)?.into(),
            bitnet::hadamard(&dy, 8).forward(e)?.into(),
        ])
    }),
    ("rms_norm_fake_quantize", |c| {
        let (x, gain, dy, e) = (c.x(0), c.x(1), c.dy(), &mut c.encoder);
        let (dx, dgain) = RmsNorm::new(&gain, 1e-5).backward(e, &x, &dy)?;
        Ok(vec![
            bitnet::fake_quantize_activations(&x, 1.0).norm((&gain, 1e-5)).forward(e)?.into(),
            dx.into(),
            dgain.into(),
        ])
    }),
    ("bitlinear", |c| bitlinear(c, WeightQuantizer::absmean())),
    ("bitlinear_grouped", |c| bitlinear(c, WeightQuantizer::absmean().per_group(16))),
    ("quantize_weights_int2", |c| int_weights(c, int_rows(Bits::Two))),
    ("quantize_weights_int4", |c| int_weights(c, int_rows(Bits::Four))),
    ("quantize_weights_int8", |c| int_weights(c, int_rows(Bits::Eight))),
    ("quantize_weights_int2_symmetric", |c| int_weights(c, symmetric(Bits::Two))),
    ("quantize_weights_int4_symmetric", |c| int_weights(c, symmetric(Bits::Four))),
    ("quantize_weights_int8_symmetric", |c| int_weights(c, symmetric(Bits::Eight))),
    ("quantize_weights_binary", |c| int_weights(c, WeightQuantizer::binary())),
    ("quantize_weights_binary_by_row", |c| int_weights(c, WeightQuantizer::binary().per_row())),
    ("bitlinear_int1", |c| bitlinear_int(c, WeightQuantizer::binary())),
    ("bitlinear_int2", |c| bitlinear_int(c, int_rows(Bits::Two))),
    ("bitlinear_int4", |c| bitlinear_int(c, int_rows(Bits::Four))),
    ("bitlinear_int8", |c| bitlinear_int(c, int_rows(Bits::Eight))),
    ("bitlinear_int2_quantized", |c| bitlinear_int_quantized(c, Bits::Two, None)),
    ("bitlinear_int4_quantized", |c| bitlinear_int_quantized(c, Bits::Four, None)),
    ("bitlinear_int8_quantized", |c| bitlinear_int_quantized(c, Bits::Eight, None)),
    ("quantize_activations", |c| {
        let (x, e) = (c.x(0), &mut c.encoder);
        let made = bitnet::ActivationQuantizer::int8().quantize(e, &x)?;
        Ok(vec![made.dequantize::<f32>(e)?.into()])
    }),
    ("quantize_activations_4bit", |c| {
        let (x, e) = (c.x(0), &mut c.encoder);
        let made = bitnet::ActivationQuantizer::int4().quantize(e, &x)?;
        Ok(vec![made.dequantize::<f32>(e)?.into(), made.scales().clone().into()])
    }),
    ("quantize_activations_by_tensor", |c| {
        int8(c, |e, x| bitnet::ActivationQuantizer::int8().per_tensor().quantize(e, x))
    }),
    ("quantize_activations_static", |c| {
        int8(c, |e, x| bitnet::ActivationQuantizer::int8().static_range(-0.7, 1.6).quantize(e, x))
    }),
    ("quantize_activations_with_zero_point", |c| {
        int8(c, |e, x| bitnet::ActivationQuantizer::int8().with_zero_point().quantize(e, x))
    }),
    ("quantize_weights_by_row", |c| ternary_weights(c, WeightQuantizer::absmean().per_row())),
    ("quantize_weights_by_group", |c| ternary_weights(c, WeightQuantizer::absmean().per_group(16))),
    ("quantize_weights_by_matrix", |c| ternary_weights(c, WeightQuantizer::absmean().per_matrix())),
    ("quantize_weights_binary_by_matrix", |c| {
        int_weights(c, WeightQuantizer::binary().per_matrix())
    }),
    ("fake_quantize_weights_by_matrix", |c| {
        let w = c.x(0);
        let op = bitnet::fake_quantize_weights(&w, 1.0).per_matrix();
        Ok(vec![op.forward(&mut c.encoder)?.values.into()])
    }),
    ("quantization_error", |c| {
        let (w, quantized) = (c.x(0), c.x(1));
        Ok(vec![bitnet::quantization_error(&w, &quantized).forward(&mut c.encoder)?.into()])
    }),
    ("rms_norm_quantize", |c| {
        let (x, gain, e) = (c.x(0), c.x(1), &mut c.encoder);
        let quantized = bitnet::ActivationQuantizer::int8().norm((&gain, 1e-5)).quantize(e, &x)?;
        Ok(vec![quantized.dequantize::<f32>(e)?.into()])
    }),
    ("gate_quantize", |c| {
        let (x, e) = (c.x(0), &mut c.encoder);
        let quantized =
            bitnet::ActivationQuantizer::int8().gate(Gate::Relu2).norm(None).quantize(e, &x)?;
        Ok(vec![quantized.dequantize::<f32>(e)?.into()])
    }),
    ("bitlinear_with", |c| {
        let (x, w, bias, e) = (c.x(0), c.x(1), c.x(2), &mut c.encoder);
        let w = WeightQuantizer::absmean().quantize(e, &w)?;
        let layer = BitLinear::new(&w).bias(&bias);
        Ok(vec![layer.activation(Activation::Silu).forward(e, &x)?.into()])
    }),
    ("bitlinear_float_with", |c| {
        let (x, w, bias, e) = (c.x(0), c.x(1), c.x(2), &mut c.encoder);
        let w = WeightQuantizer::absmean().quantize(e, &w)?;
        let layer = BitLinear::new(&w).activation_type(ActivationType::Float).bias(&bias);
        Ok(vec![layer.activation(Activation::Gelu).forward(e, &x)?.into()])
    }),
    ("bitlinear_int_with", |c| {
        let (x, w, bias, e) = (c.x(0), c.x(1), c.x(2), &mut c.encoder);
        let w = int_rows(Bits::Four).quantize(e, &w)?;
        let layer = BitLinear::new(&w).bias(&bias);
        Ok(vec![layer.activation(Activation::Relu).forward(e, &x)?.into()])
    }),
    ("bitlinear_int_quantized_with", |c| {
        let bias = c.x(2);
        bitlinear_int_quantized(c, Bits::Four, Some(&bias))
    }),
    ("bitlinear_block_float", |c| bitlinear_block_float(c, WeightQuantizer::absmean())),
    ("bitlinear_block_float_grouped", |c| {
        bitlinear_block_float(c, WeightQuantizer::absmean().per_group(16))
    }),
    ("bitlinear_int4_grouped", |c| {
        bitlinear_int(c, WeightQuantizer::int(Bits::Four).asymmetric().per_group(32))
    }),
    ("bitlinear_int1_quantized", |c| {
        let (x, w, e) = (c.x(0), c.x(1), &mut c.encoder);
        let w = WeightQuantizer::binary().per_row().quantize(e, &w)?;
        let (tokens, features) = x.shape().as_matrix();
        let quantized = QuantizedActivations::uninit(context(), tokens, features, Layout::Int8)?;
        bitnet::ActivationQuantizer::int8().quantize_into(e, &x, &quantized)?;
        Ok(vec![BitLinear::new(&w).forward(e, &quantized)?.into()])
    }),
    ("quantize_weights_binary_by_group", |c| {
        int_weights(c, WeightQuantizer::binary().per_group(32))
    }),
    ("quantize_gradients", |c| {
        int8(c, |e, x| bitnet::ActivationQuantizer::int8().stochastic(SEED).quantize(e, x))
    }),
    ("gelu_tanh_gate_f16", |c| gate::<f16>(c, Gate::GeluTanh)),
];
