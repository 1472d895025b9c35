//! What is compared: an op and its gradients a case.

use super::golden::{Case, Out};
use bitnet_wgpu::{
    Encoder, Float, Result, Tensor,
    bitnet::{self, Gate, Layout, QuantizedActivations, QuantizedInt8, Scheme},
    f16,
    linalg::{self as la, Qr, Svd, Triangle},
    optimizer::{self, AdamW, AdamWState, Lion, Sgd},
    tensor::{
        self, Activation, Axes, CrossEntropyOptions, Epilogue, Linear, LinearCrossEntropyOptions,
        Prefix, Side,
    },
    transformer::{self, AttentionShape, FlashAttentionOptions, Qkv},
    weights::{Bits, IntMatrix, PackedDense, TernaryMatrix},
};
use support::context;

/// What records a case and gives its outputs, in the order of the golden.
pub type Run = fn(&mut Case) -> Result<Vec<Out>>;

/// An op of one input, and its gradient.
type Forward<X, Y> = fn(&mut Encoder, &Tensor<X>) -> Result<Tensor<Y>>;
type Backward<T> = fn(&mut Encoder, &Tensor<T>, &Tensor<T>) -> Result<Tensor<T>>;

/// An op of one input, with constants, and its gradient.
macro_rules! unary {
    ($op:ident, $backward:ident $(, $constant:expr)*) => {
        (stringify!($op), |c| {
            let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
            Ok(vec![tensor::$op(e, &x $(, $constant)*)?.into(), tensor::$backward(e, &x, $($constant,)* &dy)?.into()])
        })
    };
}

/// An op of two inputs that are broadcast, and their gradients.
macro_rules! binary {
    ($op:ident, $backward:ident) => {
        (stringify!($op), |c| {
            let (a, b, dy, e) = (c.x(0), c.x(1), c.dy(), &mut c.encoder);
            let (da, db) = tensor::$backward(e, &a, &b, &dy)?;
            Ok(vec![tensor::$op(e, &a, &b)?.into(), da.into(), db.into()])
        })
    };
}

macro_rules! compare {
    ($op:ident) => {
        (stringify!($op), |c| {
            let (a, b) = (c.x(0), c.x(1));
            Ok(vec![tensor::$op(&mut c.encoder, &a, &b)?.into()])
        })
    };
}

/// Of masks of dropout.
const SEED: u64 = 5 << 32 | 7;

/// The middle dimension of three.
const MIDDLE: [usize; 1] = [1];

fn extreme(
    c: &mut Case,
    op: fn(&mut Encoder, &Tensor<f32>, Axes) -> Result<Tensor<f32>>,
    winner: fn(&mut Encoder, &Tensor<f32>, Axes) -> Result<Tensor<u32>>,
) -> Result<Vec<Out>> {
    let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
    let (y, winner) = (op(e, &x, MIDDLE.into())?, winner(e, &x, MIDDLE.into())?);
    Ok(vec![y.into(), tensor::max_backward::<f32>(e, &winner, &dy, MIDDLE, x.shape())?.into()])
}

/// dy of a reduction over the middle dimension, once for each of its elements.
fn spread(e: &mut Encoder, dy: &Tensor<f32>, of: &Tensor<f32>) -> Result<Tensor<f32>> {
    let &[rows, _, columns] = of.shape().dims() else { panic!("three dimensions") };
    tensor::broadcast_to(e, &dy.reshape([rows, 1, columns])?, of.shape())
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
    steps(c, |e, _, w, gradient| optimizer::sgd(e, numbers, w, gradient, &velocity))
}

fn one_input<X: Float, Y: Float>(
    c: &mut Case,
    op: Forward<X, Y>,
    backward: Backward<X>,
) -> Result<Vec<Out>>
where
    Out: From<Tensor<X>> + From<Tensor<Y>>,
{
    let (x, dy, e) = (c.floats("in0"), c.floats("dy"), &mut c.encoder);
    Ok(vec![op(e, &x)?.into(), backward(e, &x, &dy)?.into()])
}

fn softmax<T: Float>(c: &mut Case) -> Result<Vec<Out>>
where
    Out: From<Tensor<T>>,
{
    let (x, dy, e) = (c.floats::<T>("in0"), c.floats("dy"), &mut c.encoder);
    let y = tensor::softmax(e, &x)?;
    let dx = tensor::softmax_backward(e, &y, &dy)?;
    Ok(vec![y.into(), dx.into()])
}

fn layer_norm<T: Float>(c: &mut Case) -> Result<Vec<Out>>
where
    Out: From<Tensor<T>>,
{
    let (x, weight, bias, dy, e) =
        (c.floats::<T>("in0"), c.x(1), c.x(2), c.floats("dy"), &mut c.encoder);
    let of = tensor::layer_norm_backward(e, &x, &weight, 1e-5, &dy)?;
    Ok(vec![
        tensor::layer_norm(e, &x, &weight, &bias, 1e-5)?.into(),
        of.x.into(),
        of.weight.into(),
        of.bias.into(),
    ])
}

fn rms_norm<T: Float>(c: &mut Case) -> Result<Vec<Out>>
where
    Out: From<Tensor<T>>,
{
    let (x, gain, dy, e) = (c.floats::<T>("in0"), c.x(1), c.floats("dy"), &mut c.encoder);
    let of = transformer::rms_norm_backward(e, &x, &gain, 1e-5, &dy)?;
    Ok(vec![transformer::rms_norm(e, &x, &gain, 1e-5)?.into(), of.x.into(), of.gain.into()])
}

fn matmul<T: Float>(c: &mut Case) -> Result<Vec<Out>>
where
    Out: From<Tensor<T>>,
{
    let (a, b, dy, e) = (c.floats::<T>("in0"), c.floats("in1"), c.floats("dy"), &mut c.encoder);
    let (da, db) = (
        tensor::matmul(e, &dy, Side::transposed(&b))?,
        tensor::matmul(e, Side::transposed(&a), &dy)?,
    );
    Ok(vec![tensor::matmul(e, &a, &b)?.into(), da.into(), db.into()])
}

fn flash_attention<T: Float>(c: &mut Case) -> Result<Vec<Out>>
where
    Out: From<Tensor<T>>,
{
    let (q, k, v, dy, e) =
        (c.floats::<T>("in0"), c.floats("in1"), c.floats("in2"), c.floats("dy"), &mut c.encoder);
    let (qkv, causal) = (Qkv { q: &q, k: &k, v: &v }, FlashAttentionOptions::default().causal());
    let attended = transformer::flash_attention(e, qkv, causal)?;
    let of = transformer::flash_attention_backward(e, qkv, &attended, &dy, causal)?;
    Ok(vec![attended.y.into(), of.q.into(), of.k.into(), of.v.into()])
}

/// Sums with an element itself or without; the gradient is by the `other` ones.
fn prefix_sum(c: &mut Case, prefix: Prefix, other: Prefix) -> Result<Vec<Out>> {
    let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
    let all = tensor::sum(e, &dy, [1])?.reshape([x.shape().dims()[0], 1])?;
    let before = tensor::prefix_sum(e, &dy, 1, other)?;
    Ok(vec![
        tensor::prefix_sum(e, &x, 1, prefix)?.into(),
        tensor::sub(&all, &before).forward(e)?.into(),
    ])
}

type QuantizeWeights = fn(&mut Encoder, &Tensor<f32>) -> Result<IntMatrix>;

fn int_rows(e: &mut Encoder, w: &Tensor<f32>, bits: Bits) -> Result<IntMatrix> {
    bitnet::quantize_weights_int(e, w, bits, None, Scheme::Asymmetric)
}

fn symmetric(e: &mut Encoder, w: &Tensor<f32>, bits: Bits) -> Result<IntMatrix> {
    bitnet::quantize_weights_int(e, w, bits, Some(32), Scheme::Symmetric)
}

/// What the codes of weights stand for.
fn int_weights(c: &mut Case, quantize: QuantizeWeights) -> Result<Vec<Out>> {
    let (w, e) = (c.x(0), &mut c.encoder);
    let w = quantize(e, &w)?;
    Ok(vec![bitnet::dequantize_int::<f32>(e, &w)?.into()])
}

fn ternary_weights(
    c: &mut Case,
    quantize: fn(&mut Encoder, &Tensor<f32>) -> Result<TernaryMatrix>,
) -> Result<Vec<Out>> {
    let (w, e) = (c.x(0), &mut c.encoder);
    let w = quantize(e, &w)?;
    Ok(vec![bitnet::dequantize_weights::<f32>(e, &w)?.into()])
}

/// Activations that are not quantised.
fn bitlinear_int(c: &mut Case, quantize: QuantizeWeights) -> Result<Vec<Out>> {
    let (x, w, dy, e) = (c.x(0), c.x(1), c.dy(), &mut c.encoder);
    let w = quantize(e, &w)?;
    let (y, dx) = (bitnet::bitlinear_int(e, &x, &w)?, bitnet::bitlinear_int_backward(e, &dy, &w)?);
    Ok(vec![y.into(), dx.into(), tensor::matmul(e, Side::transposed(&dy), &x)?.into()])
}

/// The same with ternary weights.
fn bitlinear_float(
    c: &mut Case,
    quantize: fn(&mut Encoder, &Tensor<f32>) -> Result<TernaryMatrix>,
) -> Result<Vec<Out>> {
    let (x, w, dy, e) = (c.x(0), c.x(1), c.dy(), &mut c.encoder);
    let w = quantize(e, &w)?;
    let (y, dx) = (bitnet::bitlinear_float(e, &x, &w)?, bitnet::bitlinear_backward(e, &dy, &w)?);
    Ok(vec![y.into(), dx.into(), tensor::matmul(e, Side::transposed(&dy), &x)?.into()])
}

/// And with activations of 8 bits.
fn bitlinear(
    c: &mut Case,
    quantize: fn(&mut Encoder, &Tensor<f32>) -> Result<TernaryMatrix>,
) -> Result<Vec<Out>> {
    let (x, weights, dy, e) = (c.x(0), c.x(1), c.dy(), &mut c.encoder);
    let (w, quantized) = (quantize(e, &weights)?, bitnet::quantize_activations(e, &x)?);
    let (dx, rounded) =
        (bitnet::bitlinear_backward(e, &dy, &w)?, bitnet::dequantize_activations(e, &quantized)?);
    Ok(vec![
        bitnet::bitlinear(e, &x, &w)?.into(),
        dx.into(),
        tensor::matmul(e, Side::transposed(&dy), &rounded)?.into(),
    ])
}

/// Weights with a scale for 32 columns, and activations of 8 bits.
fn bitlinear_int_quantized(
    c: &mut Case,
    bits: Bits,
    epilogue: &Epilogue<'_, f32>,
) -> Result<Vec<Out>> {
    let (x, w, e) = (c.x(0), c.x(1), &mut c.encoder);
    let w = bitnet::quantize_weights_int(e, &w, bits, Some(32), Scheme::Asymmetric)?;
    let (tokens, features) = x.shape().as_matrix();
    let quantized = QuantizedActivations::uninit(context(), tokens, features, Layout::Int8)?;
    bitnet::quantize_activations_into(e, &x, &quantized)?;
    Ok(vec![bitnet::bitlinear_int_quantized_with(e, &quantized, &w, epilogue)?.into()])
}

/// Activations in block floating point.
fn bitlinear_rounded(
    c: &mut Case,
    quantize: fn(&mut Encoder, &Tensor<f32>) -> Result<TernaryMatrix>,
) -> Result<Vec<Out>> {
    let (x, w, e) = (c.x(0), c.x(1), &mut c.encoder);
    let w = quantize(e, &w)?;
    let rounded = bitnet::round_activations(e, &x, bitnet::rounded_block(w.group()))?;
    Ok(vec![bitnet::bitlinear_rounded(e, &rounded, &w)?.into()])
}

/// What the codes of activations stand for, scales, and zero points if there are any.
fn int8(
    c: &mut Case,
    quantize: fn(&mut Encoder, &Tensor<f32>) -> Result<QuantizedInt8>,
) -> Result<Vec<Out>> {
    let (x, e) = (c.x(0), &mut c.encoder);
    let made = quantize(e, &x)?;
    let zeros =
        made.zero_points.as_ref().map(|zeros| tensor::cast::<i32, f32>(e, zeros)).transpose()?;
    let values = bitnet::dequantize_int8::<f32>(e, &made)?;
    Ok([values, made.scales].into_iter().chain(zeros).map(Out::from).collect())
}

fn triangular_solve(c: &mut Case, triangle: Triangle) -> Result<Vec<Out>> {
    let (a, b, dy) = (c.x(0), c.x(1), c.dy());
    let x = c.sound(|e| la::triangular_solve(e, &a, &b, triangle))?;
    let of = la::triangular_solve_backward(&mut c.encoder, &a, &x, &dy, triangle)?;
    Ok(vec![x.into(), of.a.into(), of.b.into()])
}

fn qr_backward(c: &mut Case) -> Result<Vec<Out>> {
    let [q, r, dq, dr] = [0, 1, 2, 3].map(|i| c.x(i));
    Ok(vec![la::qr_backward(&mut c.encoder, &Qr { q, r }, &Qr { q: dq, r: dr })?.into()])
}

fn svd_backward(c: &mut Case) -> Result<Vec<Out>> {
    let [u, s, vt, du, ds, dvt] = [0, 1, 2, 3, 4, 5].map(|i| c.x(i));
    Ok(vec![
        la::svd_backward(&mut c.encoder, &Svd { u, s, vt }, &Svd { u: du, s: ds, vt: dvt })?.into(),
    ])
}

/// By the names of the golden.
pub const CASES: &[(&str, Run)] = &[
    unary!(neg, neg_backward),
    unary!(abs, abs_backward),
    unary!(exp, exp_backward),
    unary!(log, log_backward),
    unary!(sqrt, sqrt_backward),
    unary!(rsqrt, rsqrt_backward),
    unary!(square, square_backward),
    unary!(recip, recip_backward),
    unary!(scale, scale_backward, 1.7),
    unary!(clamp, clamp_backward, -1.0, 1.5),
    unary!(relu, relu_backward),
    unary!(leaky_relu, leaky_relu_backward, 0.01),
    unary!(relu2, relu2_backward),
    unary!(gelu, gelu_backward),
    unary!(gelu_tanh, gelu_tanh_backward),
    unary!(silu, silu_backward),
    unary!(sigmoid, sigmoid_backward),
    unary!(tanh, tanh_backward),
    unary!(softplus, softplus_backward),
    binary!(add, add_backward),
    binary!(sub, sub_backward),
    binary!(mul, mul_backward),
    binary!(div, div_backward),
    binary!(minimum, minimum_backward),
    binary!(maximum, maximum_backward),
    binary!(pow, pow_backward),
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
            tensor::select(e, &condition, &dy, &zero)?,
            tensor::select(e, &condition, &zero, &dy)?,
        );
        Ok(vec![tensor::select(e, &condition, &a, &b)?.into(), da.into(), db.into()])
    }),
    ("sum", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        Ok(vec![tensor::sum(e, &x, MIDDLE)?.into(), spread(e, &dy, &x)?.into()])
    }),
    ("mean", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let dx = spread(e, &dy, &x)?;
        Ok(vec![
            tensor::mean(e, &x, MIDDLE)?.into(),
            tensor::scale(&dx, 1.0 / 7.0).forward(e)?.into(),
        ])
    }),
    ("norm", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let y = tensor::norm(e, &x, MIDDLE)?;
        let dx = tensor::norm_backward(e, &x, MIDDLE, &y, &dy)?;
        Ok(vec![y.into(), dx.into()])
    }),
    ("variance", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        Ok(vec![
            tensor::variance(e, &x, MIDDLE, 1)?.into(),
            tensor::variance_backward(e, &x, MIDDLE, 1, &dy)?.into(),
        ])
    }),
    ("max", |c| extreme(c, tensor::max, tensor::argmax)),
    ("min", |c| extreme(c, tensor::min, tensor::argmin)),
    ("absmax", |c| {
        let x = c.x(0);
        Ok(vec![tensor::absmax(&mut c.encoder, &x, MIDDLE)?.into()])
    }),
    ("argmax", |c| {
        let x = c.x(0);
        Ok(vec![tensor::argmax(&mut c.encoder, &x, MIDDLE)?.into()])
    }),
    ("argmin", |c| {
        let x = c.x(0);
        Ok(vec![tensor::argmin(&mut c.encoder, &x, MIDDLE)?.into()])
    }),
    ("prefix_sum", |c| prefix_sum(c, Prefix::Inclusive, Prefix::Exclusive)),
    ("prefix_sum_exclusive", |c| prefix_sum(c, Prefix::Exclusive, Prefix::Inclusive)),
    ("permute", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        Ok(vec![
            tensor::permute(e, &x, &[2, 0, 1])?.into(),
            tensor::permute(e, &dy, &[1, 2, 0])?.into(),
        ])
    }),
    ("slice", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        Ok(vec![
            tensor::slice(e, &x, 1, 2..5)?.into(),
            tensor::pad(e, &dy, &[(0, 0), (2, 2), (0, 0)], 0.0)?.into(),
        ])
    }),
    ("concat", |c| {
        let (a, b, dy, e) = (c.x(0), c.x(1), c.dy(), &mut c.encoder);
        let (da, db) = (tensor::slice(e, &dy, 1, 0..3)?, tensor::slice(e, &dy, 1, 3..7)?);
        Ok(vec![tensor::concat(e, &[&a, &b], 1)?.into(), da.into(), db.into()])
    }),
    ("pad", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let dx = tensor::slice(e, &dy, 0, 1..4)?;
        Ok(vec![
            tensor::pad(e, &x, &[(1, 0), (0, 2)], 0.5)?.into(),
            tensor::slice(e, &dx, 1, 0..4)?.into(),
        ])
    }),
    ("gather", |c| {
        let (x, ids, dy, e) = (c.x(0), c.ids(1), c.dy(), &mut c.encoder);
        Ok(vec![
            tensor::gather(e, &x, &ids)?.into(),
            tensor::gather_backward(e, &dy, &ids, 5)?.into(),
        ])
    }),
    ("one_hot", |c| {
        let ids = c.ids(0);
        Ok(vec![tensor::one_hot::<f32>(&mut c.encoder, &ids, 7)?.into()])
    }),
    ("softmax", softmax::<f32>),
    ("log_softmax", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let y = tensor::log_softmax(e, &x)?;
        let dx = tensor::log_softmax_backward(e, &y, &dy)?;
        Ok(vec![y.into(), dx.into()])
    }),
    ("causal_softmax", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let y = tensor::causal_softmax(e, &x)?;
        let dx = tensor::softmax_backward(e, &y, &dy)?;
        Ok(vec![y.into(), dx.into()])
    }),
    ("masked_softmax", |c| {
        let (x, mask, dy, e) = (c.x(0), c.ids(1), c.dy(), &mut c.encoder);
        let y = tensor::masked_softmax(e, &x, &mask)?;
        let dx = tensor::softmax_backward(e, &y, &dy)?;
        Ok(vec![y.into(), dx.into()])
    }),
    ("cross_entropy", |c| {
        let (x, targets, dy, e) = (c.x(0), c.ids(1), c.dy(), &mut c.encoder);
        let options = CrossEntropyOptions::default().ignore(3).smoothing(0.1);
        let dx = tensor::cross_entropy_backward(e, &x, &targets, options, &dy)?;
        Ok(vec![tensor::cross_entropy(e, &x, &targets, options)?.into(), dx.into()])
    }),
    ("layer_norm", layer_norm::<f32>),
    ("rms_norm", rms_norm::<f32>),
    ("rotate", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let frequencies: Vec<f32> =
            (0..4).map(|i| 10000f64.powf(-f64::from(i) / 4.0) as f32).collect();
        let angles = context().upload(&transformer::rope_angles(&frequencies, 5), [5, 4, 2])?;
        Ok(vec![
            transformer::rotate(e, &x, &angles, 0)?.into(),
            transformer::rotate_backward(e, &dy, &angles, 0)?.into(),
        ])
    }),
    ("matmul", matmul::<f32>),
    ("matmul_transposed", |c| {
        let (a, b, dy, e) = (c.x(0), c.x(1), c.dy(), &mut c.encoder);
        let y = tensor::matmul(e, Side::transposed(&a), Side::transposed(&b))?;
        let (da, db) = (
            tensor::matmul(e, Side::transposed(&b), Side::transposed(&dy))?,
            tensor::matmul(e, Side::transposed(&dy), Side::transposed(&a))?,
        );
        Ok(vec![y.into(), da.into(), db.into()])
    }),
    ("bitlinear_float", |c| bitlinear_float(c, bitnet::quantize_weights)),
    ("bitlinear_float_by_row", |c| bitlinear_float(c, bitnet::quantize_weights_by_row)),
    ("bitlinear_float_grouped", |c| {
        bitlinear_float(c, |e, w| bitnet::quantize_weights_by_group(e, w, 16))
    }),
    ("bitlinear_float_grouped_by_128", |c| {
        bitlinear_float(c, |e, w| bitnet::quantize_weights_by_group(e, w, 128))
    }),
    ("relu2_gate", |c| one_input(c, bitnet::relu2_gate::<f32>, bitnet::relu2_gate_backward)),
    ("silu_gate", |c| one_input(c, bitnet::silu_gate::<f32>, bitnet::silu_gate_backward)),
    ("gelu_tanh_gate", |c| {
        one_input(c, bitnet::gelu_tanh_gate::<f32>, bitnet::gelu_tanh_gate_backward)
    }),
    ("flash_attention", flash_attention::<f32>),
    ("linear_cross_entropy", |c| {
        let (x, w, targets, dy, e) = (c.x(0), c.x(1), c.ids(2), c.dy(), &mut c.encoder);
        let options =
            LinearCrossEntropyOptions::from(CrossEntropyOptions::default().ignore(3)).chunk(4);
        let made = tensor::linear_cross_entropy(e, Linear { x: &x, w: &w }, &targets, options)?;
        let of = tensor::linear_cross_entropy_backward(
            e,
            Linear { x: &x, w: &w },
            &targets,
            options,
            &made.lse,
            &dy,
        )?;
        Ok(vec![made.loss.into(), of.x.into(), of.w.into()])
    }),
    ("fake_quantize_weights", |c| {
        let (w, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let made = bitnet::fake_quantize_weights(e, &w, 0.6)?;
        let dw = bitnet::fake_quantize_backward(e, &w, &made.scale, (-1.0, 1.0), &dy)?;
        Ok(vec![made.values.into(), dw.into()])
    }),
    ("fake_quantize_activations", |c| {
        let (x, dy) = (c.x(0), c.dy());
        Ok(vec![bitnet::fake_quantize_activations(&mut c.encoder, &x, 1.0)?.into(), dy.into()])
    }),
    ("hadamard", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        Ok(vec![bitnet::hadamard(e, &x, 8)?.into(), bitnet::hadamard(e, &dy, 8)?.into()])
    }),
    ("matmul_with", |c| {
        let (a, b, bias, dy, e) = (c.x(0), c.x(1), c.x(2), c.dy(), &mut c.encoder);
        let biased = Epilogue::new().bias(&bias);
        let y = tensor::matmul_with(e, &a, &b, &biased.activation(Activation::Gelu))?;
        let before = tensor::matmul_with(e, &a, &b, &biased)?;
        let d = tensor::gelu(&before).backward(e, &dy)?;
        let (da, db) = (
            tensor::matmul(e, &d, Side::transposed(&b))?,
            tensor::matmul(e, Side::transposed(&a), &d)?,
        );
        Ok(vec![y.into(), da.into(), db.into(), tensor::sum(e, &d, [0])?.into()])
    }),
    unary!(binarize, binarize_backward),
    ("dropout", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        Ok(vec![
            tensor::dropout(e, &x, 0.1, SEED)?.into(),
            tensor::dropout(e, &dy, 0.1, SEED)?.into(),
        ])
    }),
    ("relu_dropout", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        Ok(vec![
            tensor::relu_dropout(e, &x, 0.1, SEED)?.into(),
            tensor::relu_dropout_backward(e, &x, &dy, 0.1, SEED)?.into(),
        ])
    }),
    ("rms_norm_fake_quantize", |c| {
        let (x, gain, dy, e) = (c.x(0), c.x(1), c.dy(), &mut c.encoder);
        let of = transformer::rms_norm_backward(e, &x, &gain, 1e-5, &dy)?;
        Ok(vec![
            bitnet::rms_norm_fake_quantize(e, &x, &gain, 1e-5, 1.0)?.into(),
            of.x.into(),
            of.gain.into(),
        ])
    }),
    ("rms_norm_heads", |c| {
        let (qkv, query_gain, key_gain) = (c.x(0), c.x(1), c.x(2));
        let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 8 };
        transformer::rms_norm_heads(&mut c.encoder, &qkv, shape, &query_gain, &key_gain, 1e-5)?;
        Ok(vec![qkv.into()])
    }),
    ("bitlinear", |c| bitlinear(c, bitnet::quantize_weights)),
    ("bitlinear_grouped", |c| bitlinear(c, |e, w| bitnet::quantize_weights_by_group(e, w, 16))),
    ("quantize_weights_int2", |c| int_weights(c, |e, w| int_rows(e, w, Bits::Two))),
    ("quantize_weights_int4", |c| int_weights(c, |e, w| int_rows(e, w, Bits::Four))),
    ("quantize_weights_int8", |c| int_weights(c, |e, w| int_rows(e, w, Bits::Eight))),
    ("quantize_weights_int2_symmetric", |c| int_weights(c, |e, w| symmetric(e, w, Bits::Two))),
    ("quantize_weights_int4_symmetric", |c| int_weights(c, |e, w| symmetric(e, w, Bits::Four))),
    ("quantize_weights_int8_symmetric", |c| int_weights(c, |e, w| symmetric(e, w, Bits::Eight))),
    ("quantize_weights_binary", |c| int_weights(c, bitnet::quantize_weights_binary)),
    ("quantize_weights_binary_by_row", |c| {
        int_weights(c, |e, w| bitnet::quantize_weights_binary_by_group(e, w, None))
    }),
    ("bitlinear_int1", |c| bitlinear_int(c, bitnet::quantize_weights_binary)),
    ("bitlinear_int2", |c| bitlinear_int(c, |e, w| int_rows(e, w, Bits::Two))),
    ("bitlinear_int4", |c| bitlinear_int(c, |e, w| int_rows(e, w, Bits::Four))),
    ("bitlinear_int8", |c| bitlinear_int(c, |e, w| int_rows(e, w, Bits::Eight))),
    ("bitlinear_int2_quantized", |c| bitlinear_int_quantized(c, Bits::Two, &Epilogue::new())),
    ("bitlinear_int4_quantized", |c| bitlinear_int_quantized(c, Bits::Four, &Epilogue::new())),
    ("bitlinear_int8_quantized", |c| bitlinear_int_quantized(c, Bits::Eight, &Epilogue::new())),
    ("quantize_activations", |c| {
        let (x, e) = (c.x(0), &mut c.encoder);
        let made = bitnet::quantize_activations(e, &x)?;
        Ok(vec![bitnet::dequantize_activations::<f32>(e, &made)?.into()])
    }),
    ("quantize_activations_4bit", |c| {
        let (x, e) = (c.x(0), &mut c.encoder);
        let made = bitnet::quantize_activations_4bit(e, &x)?;
        Ok(vec![bitnet::dequantize_int4::<f32>(e, &made)?.into(), made.scales().clone().into()])
    }),
    ("quantize_activations_by_tensor", |c| int8(c, bitnet::quantize_activations_by_tensor)),
    ("quantize_activations_static", |c| {
        int8(c, |e, x| bitnet::quantize_activations_static(e, x, (-0.7, 1.6)))
    }),
    ("quantize_activations_with_zero_point", |c| {
        int8(c, bitnet::quantize_activations_with_zero_point)
    }),
    ("quantize_weights_by_row", |c| ternary_weights(c, bitnet::quantize_weights_by_row)),
    ("quantize_weights_by_group", |c| {
        ternary_weights(c, |e, w| bitnet::quantize_weights_by_group(e, w, 16))
    }),
    ("quantize_weights_by_matrix", |c| ternary_weights(c, bitnet::quantize_weights_by_matrix)),
    ("quantize_weights_binary_by_matrix", |c| {
        int_weights(c, bitnet::quantize_weights_binary_by_matrix)
    }),
    ("fake_quantize_weights_by_matrix", |c| {
        let w = c.x(0);
        Ok(vec![bitnet::fake_quantize_weights_by_matrix(&mut c.encoder, &w, 1.0)?.values.into()])
    }),
    ("quantization_error", |c| {
        let (w, quantized) = (c.x(0), c.x(1));
        Ok(vec![bitnet::quantization_error(&mut c.encoder, &w, &quantized)?.into()])
    }),
    ("matmul_int8", |c| {
        let (a, b, e) = (c.x(0), c.x(1), &mut c.encoder);
        let (a, b) = (tensor::cast(e, &a)?, tensor::cast(e, &b)?);
        let y = tensor::matmul_int8(e, &a, &b)?;
        Ok(vec![tensor::cast::<i32, f32>(e, &y)?.into()])
    }),
    ("embed_ternary", |c| {
        let (w, ids, e) = (c.x(0), c.ids(1), &mut c.encoder);
        let table = bitnet::quantize_weights(e, &w)?;
        Ok(vec![transformer::embed_ternary(e, &ids, &table)?.into()])
    }),
    ("top_k", |c| {
        let x = c.x(0);
        let top = transformer::top_k(&mut c.encoder, &x, 4)?;
        Ok(vec![top.logits.into(), top.ids.into()])
    }),
    ("rms_norm_quantize", |c| {
        let (x, gain, e) = (c.x(0), c.x(1), &mut c.encoder);
        let quantized = bitnet::rms_norm_quantize(e, &x, &gain, 1e-5)?;
        Ok(vec![bitnet::dequantize_activations::<f32>(e, &quantized)?.into()])
    }),
    ("gate_quantize", |c| {
        let (x, e) = (c.x(0), &mut c.encoder);
        let quantized = bitnet::gate_quantize(e, &x, Gate::Relu2, None)?;
        Ok(vec![bitnet::dequantize_activations::<f32>(e, &quantized)?.into()])
    }),
    ("bitlinear_with", |c| {
        let (x, w, bias, e) = (c.x(0), c.x(1), c.x(2), &mut c.encoder);
        let w = bitnet::quantize_weights(e, &w)?;
        Ok(vec![
            bitnet::bitlinear_with(
                e,
                &x,
                &w,
                &Epilogue::new().bias(&bias).activation(Activation::Silu),
            )?
            .into(),
        ])
    }),
    ("bitlinear_float_with", |c| {
        let (x, w, bias, e) = (c.x(0), c.x(1), c.x(2), &mut c.encoder);
        let w = bitnet::quantize_weights(e, &w)?;
        Ok(vec![
            bitnet::bitlinear_float_with(
                e,
                &x,
                &w,
                &Epilogue::new().bias(&bias).activation(Activation::Gelu),
            )?
            .into(),
        ])
    }),
    ("bitlinear_int_with", |c| {
        let (x, w, bias, e) = (c.x(0), c.x(1), c.x(2), &mut c.encoder);
        let w = int_rows(e, &w, Bits::Four)?;
        Ok(vec![
            bitnet::bitlinear_int_with(
                e,
                &x,
                &w,
                &Epilogue::new().bias(&bias).activation(Activation::Relu),
            )?
            .into(),
        ])
    }),
    ("bitlinear_int_quantized_with", |c| {
        let bias = c.x(2);
        bitlinear_int_quantized(
            c,
            Bits::Four,
            &Epilogue::new().bias(&bias).activation(Activation::Relu),
        )
    }),
    ("bitlinear_rounded", |c| bitlinear_rounded(c, bitnet::quantize_weights)),
    ("bitlinear_rounded_grouped", |c| {
        bitlinear_rounded(c, |e, w| bitnet::quantize_weights_by_group(e, w, 16))
    }),
    ("bitlinear_int4_grouped", |c| {
        bitlinear_int(c, |e, w| {
            bitnet::quantize_weights_int(e, w, Bits::Four, Some(32), Scheme::Asymmetric)
        })
    }),
    ("bitlinear_int1_quantized", |c| {
        let (x, w, e) = (c.x(0), c.x(1), &mut c.encoder);
        let w = bitnet::quantize_weights_binary_by_group(e, &w, None)?;
        let (tokens, features) = x.shape().as_matrix();
        let quantized = QuantizedActivations::uninit(context(), tokens, features, Layout::Int8)?;
        bitnet::quantize_activations_into(e, &x, &quantized)?;
        Ok(vec![bitnet::bitlinear_int_quantized::<f32>(e, &quantized, &w)?.into()])
    }),
    ("quantize_weights_binary_by_group", |c| {
        int_weights(c, |e, w| bitnet::quantize_weights_binary_by_group(e, w, Some(32)))
    }),
    ("quantize_gradients", |c| int8(c, |e, x| bitnet::quantize_gradients(e, x, SEED))),
    ("embed", |c| {
        let (table, ids, dy) = (c.x(0), c.ids(1), c.dy());
        let (rows, columns) = table.shape().as_matrix();
        let numbers = support::block_on(table.read())?;
        let table = PackedDense::from_f32(rows, columns, &numbers)?.upload(context())?;
        let e = &mut c.encoder;
        Ok(vec![
            transformer::embed(e, &ids, &table)?.into(),
            tensor::gather_backward(e, &dy, &ids, rows)?.into(),
        ])
    }),
    ("broadcast_to", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        Ok(vec![
            tensor::broadcast_to(e, &x, [4, 3, 5])?.into(),
            tensor::sum_to(e, &dy, [3, 1])?.into(),
        ])
    }),
    ("cast", |c| {
        let (x, e) = (c.x(0), &mut c.encoder);
        let words = tensor::cast::<f32, i32>(e, &x)?;
        Ok(vec![tensor::cast::<i32, f32>(e, &words)?.into()])
    }),
    ("finish", |c| {
        let (x, bias) = (c.x(0), c.x(1));
        Ok(vec![
            tensor::finish(
                &mut c.encoder,
                &x,
                &Epilogue::new().bias(&bias).activation(Activation::Gelu),
            )?
            .into(),
        ])
    }),
    ("sum_to", |c| {
        let x = c.x(0);
        Ok(vec![tensor::sum_to(&mut c.encoder, &x, [7, 1])?.into()])
    }),
    ("qr_full", |c| {
        let a = c.x(0);
        let r = c.sound(|e| la::qr_full(e, &a))?.r;
        Ok(vec![tensor::abs(&r).forward(&mut c.encoder)?.into()])
    }),
    ("silu_f16", |c| one_input(c, tensor::silu::<f16>, tensor::silu_backward)),
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
    ("gelu_tanh_gate_f16", |c| {
        one_input(c, bitnet::gelu_tanh_gate::<f16>, bitnet::gelu_tanh_gate_backward)
    }),
    ("flash_attention_f16", flash_attention::<f16>),
    ("adamw", |c| {
        let (numbers, state) =
            (AdamW::new(0.02).betas(0.9, 0.99).decay(0.1), AdamWState::new(context(), [6, 5])?);
        steps(c, |e, step, w, gradient| optimizer::adamw(e, numbers, step, w, gradient, &state))
    }),
    ("sgd", |c| sgd(c, Sgd::new(0.05).decay(0.1))),
    ("sgd_momentum", |c| sgd(c, Sgd::new(0.05).momentum(0.9))),
    ("sgd_nesterov", |c| sgd(c, Sgd::new(0.05).momentum(0.9).nesterov().decay(0.1))),
    ("lion", |c| {
        let mean = Tensor::zeros(context(), [6, 5])?;
        steps(c, |e, _, w, gradient| {
            optimizer::lion(e, Lion::new(0.02).decay(0.1), w, gradient, &mean)
        })
    }),
    ("ema", |c| {
        let (average, w) = (c.x(0), c.x(1));
        optimizer::ema(&mut c.encoder, &average, &w, 0.9)?;
        Ok(vec![average.into()])
    }),
    ("clip_gradients", |c| {
        let (a, b) = (c.x(0), c.x(1));
        let norm = optimizer::clip_gradients(&mut c.encoder, &[&a, &b], 1.5)?;
        Ok(vec![norm.into(), a.into(), b.into()])
    }),
    ("cholesky", |c| {
        let (a, dy) = (c.x(0), c.dy());
        let l = c.sound(|e| la::cholesky(e, &a))?;
        let da = la::cholesky_backward(&mut c.encoder, &l, &dy)?;
        Ok(vec![l.into(), da.into()])
    }),
    ("triangular_solve", |c| triangular_solve(c, Triangle::LOWER)),
    ("triangular_solve_transposed", |c| triangular_solve(c, Triangle::LOWER.transposed())),
    ("triangular_solve_unit", |c| triangular_solve(c, Triangle::UPPER.unit_diagonal())),
    ("solve", |c| {
        let (a, b, dy) = (c.x(0), c.x(1), c.dy());
        let x = c.sound(|e| la::solve(e, &a, &b))?;
        let of = la::solve_backward(&mut c.encoder, &a, &x, &dy)?;
        Ok(vec![x.into(), of.a.into(), of.b.into()])
    }),
    ("svd", |c| {
        let a = c.x(0);
        Ok(vec![c.sound(|e| la::svd(e, &a))?.s.into()])
    }),
    ("least_squares", |c| {
        let (a, b, dy) = (c.x(0), c.x(1), c.dy());
        let x = c.sound(|e| la::least_squares(e, &a, &b))?;
        let of = la::least_squares_backward(&mut c.encoder, &a, &b, &x, &dy)?;
        Ok(vec![x.into(), of.a.into(), of.b.into()])
    }),
    ("qr_backward_tall", qr_backward),
    ("qr_backward_wide", qr_backward),
    ("svd_backward_tall", svd_backward),
    ("svd_backward_wide", svd_backward),
    ("svd_backward_square", svd_backward),
    // Signs of rows are a matter of taste.
    ("qr", |c| {
        let a = c.x(0);
        let r = c.sound(|e| la::qr(e, &a))?.r;
        Ok(vec![tensor::abs(&r).forward(&mut c.encoder)?.into()])
    }),
];
