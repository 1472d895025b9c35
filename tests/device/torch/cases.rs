//! What is compared: an op and its gradients a case.

use super::golden::{Case, Out};
use bitnet_wgpu::bitnet::{ActivationType, BitLinear};
use bitnet_wgpu::{
    Encoder, Result, Tensor,
    bitnet::{self, Gate, Layout, QuantizedActivations, QuantizedInt8, WeightQuantizer},
    linalg::{self as la, Qr, Svd, Triangle},
    optimizer::{self, AdamW, AdamWState, Ema, Lion, Sgd},
    tensor::{self, Activation, Float, Reduction, Side, f16},
    transformer::{self, AttentionShape, RmsNorm, RmsNormHeads, RotaryEmbedding},
    weights::{Bits, IntMatrix, PackedDense},
};
use support::context;

/// What records a case and gives its outputs, in the order of the golden.
pub type Run = fn(&mut Case) -> Result<Vec<Out>>;

/// An op of one input, with constants, and its gradient.
macro_rules! unary {
    ($op:ident $(, $constant:expr)*) => {
        (stringify!($op), |c| {
            let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
            let op = tensor::$op(&x $(, $constant)*);
            Ok(vec![op.forward(e)?.into(), op.backward(e, &dy)?.into()])
        })
    };
}

/// An op of two inputs that are broadcast, and their gradients.
macro_rules! binary {
    ($op:ident) => {
        (stringify!($op), |c| {
            let (a, b, dy, e) = (c.x(0), c.x(1), c.dy(), &mut c.encoder);
            let (da, db) = tensor::$op(&a, &b).backward(e, &dy)?;
            Ok(vec![tensor::$op(&a, &b).forward(e)?.into(), da.into(), db.into()])
        })
    };
}

macro_rules! compare {
    ($op:ident) => {
        (stringify!($op), |c| {
            let (a, b) = (c.x(0), c.x(1));
            Ok(vec![tensor::$op(&a, &b).forward(&mut c.encoder)?.into()])
        })
    };
}

/// Of masks of dropout.
const SEED: u64 = 5 << 32 | 7;

/// The middle dimension of three.
const MIDDLE: [usize; 1] = [1];

fn reduced(c: &mut Case, op: fn(&Tensor<f32>) -> Reduction<'_, f32>) -> Result<Vec<Out>> {
    let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
    Ok(vec![op(&x).forward(e)?.into(), op(&x).backward(e, &dy)?.into()])
}

fn steps(
    c: &mut Case,
    mut step: impl FnMut(&mut Encoder, u32, &Tensor<f32>, &Tensor<f32>) -> Result<()>,
) -> Result<Vec<Out>> {
    let w = c.x(0);
    for i in 1..=3 {
        let gradient = c.x(i);
        step(&mut c.encoder, i as u32, &w, &gradient)?;
    }
    Ok(vec![w.into()])
}

fn sgd(c: &mut Case, numbers: Sgd) -> Result<Vec<Out>> {
    let velocity = Tensor::zeros(context(), [6, 5])?;
    steps(c, |e, _, w, gradient| numbers.step(e, w, gradient, &velocity))
}

/// A gate, and its gradient.
fn gate<T: Float>(c: &mut Case, gate: Gate) -> Result<Vec<Out>>
where
    Out: From<Tensor<T>>,
{
    let (x, dy, e) = (c.floats::<T>("in0"), c.floats("dy"), &mut c.encoder);
    let op = bitnet::gate(&x, gate);
    Ok(vec![op.forward(e)?.into(), op.backward(e, &dy)?.into()])
}

fn softmax<T: Float>(c: &mut Case) -> Result<Vec<Out>>
where
    Out: From<Tensor<T>>,
{
    let (x, dy, e) = (c.floats::<T>("in0"), c.floats("dy"), &mut c.encoder);
    let y = tensor::softmax(&x).forward(e)?;
    let dx = tensor::softmax(&x).backward(e, &y, &dy)?;
    Ok(vec![y.into(), dx.into()])
}

fn layer_norm<T: Float>(c: &mut Case) -> Result<Vec<Out>>
where
    Out: From<Tensor<T>>,
{
    let (x, weight, bias, dy, e) =
        (c.floats::<T>("in0"), c.x(1), c.x(2), c.floats("dy"), &mut c.encoder);
    let norm = tensor::LayerNorm::new(&weight, &bias, 1e-5);
    let of = norm.backward(e, &x, &dy)?;
    Ok(vec![norm.forward(e, &x)?.into(), of.x.into(), of.weight.into(), of.bias.into()])
}

fn rms_norm<T: Float>(c: &mut Case) -> Result<Vec<Out>>
where
    Out: From<Tensor<T>>,
{
    let (x, gain, dy, e) = (c.floats::<T>("in0"), c.x(1), c.floats("dy"), &mut c.encoder);
    let norm = RmsNorm::new(&gain, 1e-5);
    let (dx, dgain) = norm.backward(e, &x, &dy)?;
    Ok(vec![norm.forward(e, &x)?.into(), dx.into(), dgain.into()])
}

fn matmul<T: Float>(c: &mut Case) -> Result<Vec<Out>>
where
    Out: From<Tensor<T>>,
{
    let (a, b, dy, e) = (c.floats::<T>("in0"), c.floats("in1"), c.floats("dy"), &mut c.encoder);
    let (da, db) = (
        tensor::matmul(&dy, Side::transposed(&b)).forward(e)?,
        tensor::matmul(Side::transposed(&a), &dy).forward(e)?,
    );
    Ok(vec![tensor::matmul(&a, &b).forward(e)?.into(), da.into(), db.into()])
}

fn flash_attention<T: Float>(c: &mut Case) -> Result<Vec<Out>>
where
    Out: From<Tensor<T>>,
{
    let (q, k, v, dy, e) =
        (c.floats::<T>("in0"), c.floats("in1"), c.floats("in2"), c.floats("dy"), &mut c.encoder);
    let attention = transformer::flash_attention(&q, &k, &v).causal();
    let (y, lse) = attention.forward(e)?;
    let (dq, dk, dv) = attention.backward(e, &y, &lse, &dy)?;
    Ok(vec![y.into(), dq.into(), dk.into(), dv.into()])
}

/// Inclusive or exclusive prefix sums; the gradient is made of the others.
fn prefix_sum(c: &mut Case, exclusive: bool) -> Result<Vec<Out>> {
    let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
    let all = tensor::sum(&dy, [1]).forward(e)?.reshape([x.shape().dims()[0], 1])?;
    let [y, before] = [(&x, exclusive), (&dy, !exclusive)].map(|(x, exclusive)| {
        let op = tensor::prefix_sum(x, 1);
        if exclusive { op.exclusive() } else { op }.forward(e)
    });
    let before = before?;
    Ok(vec![y?.into(), tensor::sub(&all, &before).forward(e)?.into()])
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

/// The same with ternary weights.
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

fn triangular_solve(c: &mut Case, triangle: Triangle) -> Result<Vec<Out>> {
    let (a, b, dy) = (c.x(0), c.x(1), c.dy());
    let x = c.sound(|e| la::triangular_solve(&a, &b, triangle).forward(e))?;
    let (da, db) = la::triangular_solve(&a, &b, triangle).backward(&mut c.encoder, &x, &dy)?;
    Ok(vec![x.into(), da.into(), db.into()])
}

fn qr_backward(c: &mut Case) -> Result<Vec<Out>> {
    let [q, r, dq, dr] = [0, 1, 2, 3].map(|i| c.x(i));
    let (factors, gradients) = (Qr { q, r }, Qr { q: dq, r: dr });
    Ok(vec![la::qr(&factors.q).backward(&mut c.encoder, &factors, &gradients)?.into()])
}

fn svd_backward(c: &mut Case) -> Result<Vec<Out>> {
    let [u, s, vt, du, ds, dvt] = [0, 1, 2, 3, 4, 5].map(|i| c.x(i));
    let (factors, gradients) = (Svd { u, s, vt }, Svd { u: du, s: ds, vt: dvt });
    Ok(vec![la::svd(&factors.u).backward(&mut c.encoder, &factors, &gradients)?.into()])
}

/// By the names of the golden.
pub const CASES: &[(&str, Run)] = &[
    unary!(neg),
    unary!(abs),
    unary!(exp),
    unary!(log),
    unary!(sqrt),
    unary!(rsqrt),
    unary!(square),
    unary!(recip),
    unary!(scale, 1.7),
    unary!(clamp, -1.0, 1.5),
    unary!(relu),
    unary!(leaky_relu, 0.01),
    unary!(relu2),
    unary!(gelu),
    unary!(gelu_tanh),
    unary!(silu),
    unary!(sigmoid),
    unary!(tanh),
    unary!(softplus),
    binary!(add),
    binary!(sub),
    binary!(mul),
    binary!(div),
    binary!(minimum),
    binary!(maximum),
    binary!(pow),
    compare!(equal),
    compare!(not_equal),
    compare!(less),
    compare!(less_equal),
    compare!(greater),
    compare!(greater_equal),
    ("select", |c| {
        let (condition, a, b, dy, e) = (c.ids(0), c.x(1), c.x(2), c.dy(), &mut c.encoder);
        let zero = Tensor::zeros(context(), [])?;
        let (da, db) = (
            tensor::select(&condition, &dy, &zero).forward(e)?,
            tensor::select(&condition, &zero, &dy).forward(e)?,
        );
        Ok(vec![tensor::select(&condition, &a, &b).forward(e)?.into(), da.into(), db.into()])
    }),
    ("sum", |c| reduced(c, |x| tensor::sum(x, MIDDLE))),
    ("mean", |c| reduced(c, |x| tensor::mean(x, MIDDLE))),
    ("norm", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let y = tensor::norm(&x, MIDDLE).forward(e)?;
        let dx = tensor::norm(&x, MIDDLE).backward(e, &y, &dy)?;
        Ok(vec![y.into(), dx.into()])
    }),
    ("variance", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        Ok(vec![
            tensor::variance(&x, MIDDLE).correction(1).forward(e)?.into(),
            tensor::variance(&x, MIDDLE).correction(1).backward(e, &dy)?.into(),
        ])
    }),
    ("max", |c| reduced(c, |x| tensor::max(x, MIDDLE))),
    ("min", |c| reduced(c, |x| tensor::min(x, MIDDLE))),
    ("absmax", |c| {
        let x = c.x(0);
        Ok(vec![tensor::absmax(&x, MIDDLE).forward(&mut c.encoder)?.into()])
    }),
    ("argmax", |c| {
        let x = c.x(0);
        Ok(vec![tensor::argmax(&x, MIDDLE).forward(&mut c.encoder)?.into()])
    }),
    ("argmin", |c| {
        let x = c.x(0);
        Ok(vec![tensor::argmin(&x, MIDDLE).forward(&mut c.encoder)?.into()])
    }),
    ("prefix_sum", |c| prefix_sum(c, false)),
    ("prefix_sum_exclusive", |c| prefix_sum(c, true)),
    ("permute", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        Ok(vec![
            tensor::permute(&x, &[2, 0, 1]).forward(e)?.into(),
            tensor::permute(&dy, &[1, 2, 0]).forward(e)?.into(),
        ])
    }),
    ("slice", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        Ok(vec![
            tensor::slice(&x, 1, 2..5).forward(e)?.into(),
            tensor::pad(&dy, &[(0, 0), (2, 2), (0, 0)]).forward(e)?.into(),
        ])
    }),
    ("concat", |c| {
        let (a, b, dy, e) = (c.x(0), c.x(1), c.dy(), &mut c.encoder);
        let (da, db) =
            (tensor::slice(&dy, 1, 0..3).forward(e)?, tensor::slice(&dy, 1, 3..7).forward(e)?);
        Ok(vec![tensor::concat(&[&a, &b], 1).forward(e)?.into(), da.into(), db.into()])
    }),
    ("pad", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let dx = tensor::slice(&dy, 0, 1..4).forward(e)?;
        Ok(vec![
            tensor::pad(&x, &[(1, 0), (0, 2)]).value(0.5).forward(e)?.into(),
            tensor::slice(&dx, 1, 0..4).forward(e)?.into(),
        ])
    }),
    ("gather", |c| {
        let (x, ids, dy, e) = (c.x(0), c.ids(1), c.dy(), &mut c.encoder);
        Ok(vec![
            tensor::gather(&x, &ids).forward(e)?.into(),
            tensor::gather(&x, &ids).backward(e, &dy)?.into(),
        ])
    }),
    ("one_hot", |c| {
        let ids = c.ids(0);
        Ok(vec![tensor::one_hot::<f32>(&ids, 7).forward(&mut c.encoder)?.into()])
    }),
    ("softmax", softmax::<f32>),
    ("log_softmax", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let y = tensor::log_softmax(&x).forward(e)?;
        let dx = tensor::log_softmax(&x).backward(e, &y, &dy)?;
        Ok(vec![y.into(), dx.into()])
    }),
    ("causal_softmax", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let y = tensor::softmax(&x).causal().forward(e)?;
        let dx = tensor::softmax(&x).backward(e, &y, &dy)?;
        Ok(vec![y.into(), dx.into()])
    }),
    ("masked_softmax", |c| {
        let (x, mask, dy, e) = (c.x(0), c.ids(1), c.dy(), &mut c.encoder);
        let y = tensor::softmax(&x).mask(&mask).forward(e)?;
        let dx = tensor::softmax(&x).backward(e, &y, &dy)?;
        Ok(vec![y.into(), dx.into()])
    }),
    ("cross_entropy", |c| {
        let (x, targets, dy, e) = (c.x(0), c.ids(1), c.dy(), &mut c.encoder);
        let op = tensor::cross_entropy(&x, &targets).ignore_index(3).label_smoothing(0.1);
        let dx = op.backward(e, &dy)?;
        Ok(vec![op.forward(e)?.into(), dx.into()])
    }),
    ("layer_norm", layer_norm::<f32>),
    ("rms_norm", rms_norm::<f32>),
    ("rotate", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let frequencies: Vec<f32> =
            (0..4).map(|i| 10000f64.powf(-f64::from(i) / 4.0) as f32).collect();
        let angles = context().upload(&transformer::rope_angles(&frequencies, 5), [5, 4, 2])?;
        Ok(vec![
            RotaryEmbedding::new(&angles).forward(e, &x)?.into(),
            RotaryEmbedding::new(&angles).backward(e, &dy)?.into(),
        ])
    }),
    ("matmul", matmul::<f32>),
    ("matmul_transposed", |c| {
        let (a, b, dy, e) = (c.x(0), c.x(1), c.dy(), &mut c.encoder);
        let y = tensor::matmul(Side::transposed(&a), Side::transposed(&b)).forward(e)?;
        let (da, db) = (
            tensor::matmul(Side::transposed(&b), Side::transposed(&dy)).forward(e)?,
            tensor::matmul(Side::transposed(&dy), Side::transposed(&a)).forward(e)?,
        );
        Ok(vec![y.into(), da.into(), db.into()])
    }),
    ("bitlinear_float", |c| bitlinear_float(c, WeightQuantizer::absmean())),
    ("bitlinear_float_by_row", |c| bitlinear_float(c, WeightQuantizer::absmean().per_row())),
    ("bitlinear_float_grouped", |c| bitlinear_float(c, WeightQuantizer::absmean().per_group(16))),
    ("bitlinear_float_grouped_by_128", |c| {
        bitlinear_float(c, WeightQuantizer::absmean().per_group(128))
    }),
    ("relu2_gate", |c| gate::<f32>(c, Gate::Relu2)),
    ("silu_gate", |c| gate::<f32>(c, Gate::Silu)),
    ("gelu_tanh_gate", |c| gate::<f32>(c, Gate::GeluTanh)),
    ("flash_attention", flash_attention::<f32>),
    ("linear_cross_entropy", |c| {
        let (x, w, targets, dy, e) = (c.x(0), c.x(1), c.ids(2), c.dy(), &mut c.encoder);
        let op = tensor::linear_cross_entropy(&x, &w, &targets).ignore_index(3).chunk(4);
        let made = op.forward(e)?;
        let of = op.backward(e, &made.lse, &dy)?;
        Ok(vec![made.loss.into(), of.x.into(), of.w.into()])
    }),
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
    ("matmul_with", |c| {
        let (a, b, bias, dy, e) = (c.x(0), c.x(1), c.x(2), c.dy(), &mut c.encoder);
        let biased = tensor::matmul(&a, &b).bias(&bias);
        let y = biased.activation(Activation::Gelu).forward(e)?;
        let before = biased.forward(e)?;
        let d = tensor::gelu(&before).backward(e, &dy)?;
        let (da, db) = (
            tensor::matmul(&d, Side::transposed(&b)).forward(e)?,
            tensor::matmul(Side::transposed(&a), &d).forward(e)?,
        );
        Ok(vec![y.into(), da.into(), db.into(), tensor::sum(&d, [0]).forward(e)?.into()])
    }),
    unary!(binarize),
    ("dropout", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        Ok(vec![
            tensor::dropout(&x, 0.1, SEED).forward(e)?.into(),
            tensor::dropout(&dy, 0.1, SEED).forward(e)?.into(),
        ])
    }),
    ("relu_dropout", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        Ok(vec![
            tensor::dropout(&x, 0.1, SEED).relu().forward(e)?.into(),
            tensor::dropout(&x, 0.1, SEED).relu().backward(e, &dy)?.into(),
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
    ("rms_norm_heads", |c| {
        let (qkv, query_gain, key_gain) = (c.x(0), c.x(1), c.x(2));
        let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 8 };
        RmsNormHeads::new(shape, &query_gain, &key_gain, 1e-5).forward(&mut c.encoder, &qkv)?;
        Ok(vec![qkv.into()])
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
    ("matmul_int8", |c| {
        let (a, b, e) = (c.x(0), c.x(1), &mut c.encoder);
        let (a, b) = (tensor::cast(&a).forward(e)?, tensor::cast(&b).forward(e)?);
        let y = tensor::matmul_int8(&a, &b).forward(e)?;
        Ok(vec![tensor::cast(&y).forward::<f32>(e)?.into()])
    }),
    ("embed_ternary", |c| {
        let (w, ids, e) = (c.x(0), c.ids(1), &mut c.encoder);
        let table = WeightQuantizer::absmean().quantize(e, &w)?;
        Ok(vec![transformer::embed(&ids, &table).forward(e)?.into()])
    }),
    ("top_k", |c| {
        let x = c.x(0);
        let (top, ids) = transformer::top_k(&x, 4).forward(&mut c.encoder)?;
        Ok(vec![top.into(), ids.into()])
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
    ("embed", |c| {
        let (table, ids, dy) = (c.x(0), c.ids(1), c.dy());
        let (rows, columns) = table.shape().as_matrix();
        let numbers = support::block_on(table.read())?;
        let zeros = Tensor::<f32>::zeros(context(), [rows, columns])?;
        let table = PackedDense::from_f32(rows, columns, &numbers)?.upload(context())?;
        let e = &mut c.encoder;
        Ok(vec![
            transformer::embed(&ids, &table).forward(e)?.into(),
            tensor::gather(&zeros, &ids).backward(e, &dy)?.into(),
        ])
    }),
    ("broadcast_to", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        Ok(vec![
            tensor::broadcast_to(&x, [4, 3, 5]).forward(e)?.into(),
            tensor::sum_to(&dy, [3, 1]).forward(e)?.into(),
        ])
    }),
    ("cast", |c| {
        let (x, e) = (c.x(0), &mut c.encoder);
        let words = tensor::cast(&x).forward::<i32>(e)?;
        Ok(vec![tensor::cast(&words).forward::<f32>(e)?.into()])
    }),
    ("finish", |c| {
        let (x, bias) = (c.x(0), c.x(1));
        Ok(vec![
            tensor::finish(&x)
                .bias(&bias)
                .activation(Activation::Gelu)
                .forward(&mut c.encoder)?
                .into(),
        ])
    }),
    ("sum_to", |c| {
        let x = c.x(0);
        Ok(vec![tensor::sum_to(&x, [7, 1]).forward(&mut c.encoder)?.into()])
    }),
    ("qr_full", |c| {
        let a = c.x(0);
        let r = c.sound(|e| la::qr(&a).full().forward(e))?.r;
        Ok(vec![tensor::abs(&r).forward(&mut c.encoder)?.into()])
    }),
    ("silu_f16", |c| {
        let (x, dy, e) = (c.floats::<f16>("in0"), c.floats("dy"), &mut c.encoder);
        let op = tensor::silu(&x);
        Ok(vec![op.forward(e)?.into(), op.backward(e, &dy)?.into()])
    }),
    ("mul_f16", |c| {
        let (a, b, dy, e) =
            (c.floats::<f16>("in0"), c.floats("in1"), c.floats("dy"), &mut c.encoder);
        let (da, db) = tensor::mul(&a, &b).backward(e, &dy)?;
        Ok(vec![tensor::mul(&a, &b).forward(e)?.into(), da.into(), db.into()])
    }),
    ("softmax_f16", softmax::<f16>),
    ("layer_norm_f16", layer_norm::<f16>),
    ("rms_norm_f16", rms_norm::<f16>),
    ("matmul_f16", matmul::<f16>),
    ("gelu_tanh_gate_f16", |c| gate::<f16>(c, Gate::GeluTanh)),
    ("flash_attention_f16", flash_attention::<f16>),
    ("adamw", |c| {
        let (numbers, state) =
            (AdamW::new(0.02).betas(0.9, 0.99).decay(0.1), AdamWState::new(context(), [6, 5])?);
        steps(c, |e, step, w, gradient| numbers.step(e, step, w, gradient, &state))
    }),
    ("sgd", |c| sgd(c, Sgd::new(0.05).decay(0.1))),
    ("sgd_momentum", |c| sgd(c, Sgd::new(0.05).momentum(0.9))),
    ("sgd_nesterov", |c| sgd(c, Sgd::new(0.05).momentum(0.9).nesterov().decay(0.1))),
    ("lion", |c| {
        let mean = Tensor::zeros(context(), [6, 5])?;
        steps(c, |e, _, w, gradient| Lion::new(0.02).decay(0.1).step(e, w, gradient, &mean))
    }),
    ("ema", |c| {
        let (average, w) = (c.x(0), c.x(1));
        Ema::new(0.9).step(&mut c.encoder, &average, &w)?;
        Ok(vec![average.into()])
    }),
    ("clip_gradients", |c| {
        let (a, b) = (c.x(0), c.x(1));
        let norm = optimizer::clip_gradients(&[&a, &b], 1.5).forward(&mut c.encoder)?;
        Ok(vec![norm.into(), a.into(), b.into()])
    }),
    ("cholesky", |c| {
        let (a, dy) = (c.x(0), c.dy());
        let l = c.sound(|e| la::cholesky(&a).forward(e))?;
        let da = la::cholesky(&a).backward(&mut c.encoder, &l, &dy)?;
        Ok(vec![l.into(), da.into()])
    }),
    ("triangular_solve", |c| triangular_solve(c, Triangle::LOWER)),
    ("triangular_solve_transposed", |c| triangular_solve(c, Triangle::LOWER.transposed())),
    ("triangular_solve_unit", |c| triangular_solve(c, Triangle::UPPER.unit_diagonal())),
    ("solve", |c| {
        let (a, b, dy) = (c.x(0), c.x(1), c.dy());
        let x = c.sound(|e| la::solve(&a, &b).forward(e))?;
        let (da, db) = la::solve(&a, &b).backward(&mut c.encoder, &x, &dy)?;
        Ok(vec![x.into(), da.into(), db.into()])
    }),
    ("svd", |c| {
        let a = c.x(0);
        Ok(vec![c.sound(|e| la::svd(&a).forward(e))?.s.into()])
    }),
    ("least_squares", |c| {
        let (a, b, dy) = (c.x(0), c.x(1), c.dy());
        let x = c.sound(|e| la::least_squares(&a, &b).forward(e))?;
        let (da, db) = la::least_squares(&a, &b).backward(&mut c.encoder, &x, &dy)?;
        Ok(vec![x.into(), da.into(), db.into()])
    }),
    ("qr_backward_tall", qr_backward),
    ("qr_backward_wide", qr_backward),
    ("svd_backward_tall", svd_backward),
    ("svd_backward_wide", svd_backward),
    ("svd_backward_square", svd_backward),
    // Signs of rows are a matter of taste.
    ("qr", |c| {
        let a = c.x(0);
        let r = c.sound(|e| la::qr(&a).forward(e))?.r;
        Ok(vec![tensor::abs(&r).forward(&mut c.encoder)?.into()])
    }),
];
