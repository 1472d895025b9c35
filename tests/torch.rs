//! Ops and their gradients against PyTorch's (data/torch/make.py).

use bitnet_wgpu::{
    ElementType, Encoder, Error, Result, Tensor, bitnet,
    linear_algebra::{self as la, Outcome, Triangle},
    optimizer::{self, AdamW, AdamWState, Sgd},
    tensor::{self, Activation, Axes, CrossEntropyOptions, Epilogue, Linear, LinearCrossEntropyOptions, Prefix, Side},
    transformer::{self, FlashAttentionOptions, Qkv},
};
use safetensors::SafeTensors;
use std::{collections::HashSet, sync::LazyLock};
use support::{block_on, context, repository};

static GOLDEN: LazyLock<Vec<u8>> = LazyLock::new(|| std::fs::read(repository("tests/data/torch/golden.safetensors")).unwrap());

/// The inputs of a case, and where it is recorded.
struct Case {
    name: &'static str,
    encoder: Encoder,
}

fn words(name: &str) -> Option<(Vec<usize>, Vec<u32>)> {
    let file = SafeTensors::deserialize(&GOLDEN).unwrap();
    let tensor = file.tensor(name).ok()?;
    let words = tensor.data().chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect();
    Some((tensor.shape().to_vec(), words))
}

fn upload<T: ElementType>(name: &str, of: fn(u32) -> T) -> Tensor<T> {
    let (shape, words) = words(name).unwrap_or_else(|| panic!("there is no {name}"));
    let numbers: Vec<T> = words.into_iter().map(of).collect();
    let flat = context().upload(&numbers, [numbers.len()]).unwrap();
    match shape[..] {
        [] => flat.reshape([]),
        [a] => flat.reshape([a]),
        [a, b] => flat.reshape([a, b]),
        [a, b, c] => flat.reshape([a, b, c]),
        [a, b, c, d] => flat.reshape([a, b, c, d]),
        _ => panic!("{name} has {} dimensions", shape.len()),
    }
    .unwrap()
}

impl Case {
    fn x(&self, i: usize) -> Tensor<f32> {
        upload(&format!("{}/in{i}", self.name), f32::from_bits)
    }

    fn ids(&self, i: usize) -> Tensor<u32> {
        upload(&format!("{}/in{i}", self.name), |word| word)
    }

    fn dy(&self) -> Tensor<f32> {
        upload(&format!("{}/dy", self.name), f32::from_bits)
    }

    /// Submits what was recorded, and gives a result that is now known to be sound.
    fn sound<T: Send + 'static>(&mut self, record: impl FnOnce(&mut Encoder) -> Result<Outcome<T>>) -> Result<T> {
        let mut encoder = context().encoder(self.name);
        let outcome = record(&mut encoder)?;
        let _ = encoder.submit()?;
        block_on(outcome.check())
    }
}

/// What an op gives: floats, or ids.
enum Out {
    Floats(Tensor<f32>),
    Ids(Tensor<u32>),
}

impl From<Tensor<f32>> for Out {
    fn from(from: Tensor<f32>) -> Self {
        Self::Floats(from)
    }
}

impl From<Tensor<u32>> for Out {
    fn from(from: Tensor<u32>) -> Self {
        Self::Ids(from)
    }
}

type Run = fn(&mut Case) -> Result<Vec<Out>>;
/// An op of one input, and its gradient.
type Forward = fn(&mut Encoder, &Tensor<f32>) -> Result<Tensor<f32>>;
type Backward = fn(&mut Encoder, &Tensor<f32>, &Tensor<f32>) -> Result<Tensor<f32>>;

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

fn steps(c: &mut Case, mut step: impl FnMut(&mut Encoder, u32, &Tensor<f32>, &Tensor<f32>) -> Result<()>) -> Result<Vec<Out>> {
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

fn gate(c: &mut Case, op: Forward, backward: Backward) -> Result<Vec<Out>> {
    let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
    Ok(vec![op(e, &x)?.into(), backward(e, &x, &dy)?.into()])
}

const CASES: &[(&str, Run)] = &[
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
        let (condition, a, b) = (c.ids(0), c.x(1), c.x(2));
        Ok(vec![tensor::select(&mut c.encoder, &condition, &a, &b)?.into()])
    }),
    ("sum", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        Ok(vec![tensor::sum(e, &x, MIDDLE)?.into(), spread(e, &dy, &x)?.into()])
    }),
    ("mean", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let dx = spread(e, &dy, &x)?;
        Ok(vec![tensor::mean(e, &x, MIDDLE)?.into(), tensor::scale(e, &dx, 1.0 / 7.0)?.into()])
    }),
    ("norm", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let y = tensor::norm(e, &x, MIDDLE)?;
        let dx = tensor::norm_backward(e, &x, MIDDLE, &y, &dy)?;
        Ok(vec![y.into(), dx.into()])
    }),
    ("variance", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        Ok(vec![tensor::variance(e, &x, MIDDLE, 1)?.into(), tensor::variance_backward(e, &x, MIDDLE, 1, &dy)?.into()])
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
    ("prefix_sum", |c| {
        let x = c.x(0);
        Ok(vec![tensor::prefix_sum(&mut c.encoder, &x, Prefix::Inclusive)?.into()])
    }),
    ("permute", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        Ok(vec![tensor::permute(e, &x, &[2, 0, 1])?.into(), tensor::permute(e, &dy, &[1, 2, 0])?.into()])
    }),
    ("slice", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        Ok(vec![tensor::slice(e, &x, 1, 2..5)?.into(), tensor::pad(e, &dy, &[(0, 0), (2, 2), (0, 0)], 0.0)?.into()])
    }),
    ("concat", |c| {
        let (a, b, dy, e) = (c.x(0), c.x(1), c.dy(), &mut c.encoder);
        let (da, db) = (tensor::slice(e, &dy, 1, 0..3)?, tensor::slice(e, &dy, 1, 3..7)?);
        Ok(vec![tensor::concat(e, &[&a, &b], 1)?.into(), da.into(), db.into()])
    }),
    ("pad", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let dx = tensor::slice(e, &dy, 0, 1..4)?;
        Ok(vec![tensor::pad(e, &x, &[(1, 0), (0, 2)], 0.5)?.into(), tensor::slice(e, &dx, 1, 0..4)?.into()])
    }),
    ("gather", |c| {
        let (x, ids, dy, e) = (c.x(0), c.ids(1), c.dy(), &mut c.encoder);
        Ok(vec![tensor::gather(e, &x, &ids)?.into(), tensor::gather_backward(e, &dy, &ids, 5)?.into()])
    }),
    ("one_hot", |c| {
        let ids = c.ids(0);
        Ok(vec![tensor::one_hot::<f32>(&mut c.encoder, &ids, 7)?.into()])
    }),
    ("softmax", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let y = tensor::softmax(e, &x)?;
        let dx = tensor::softmax_backward(e, &y, &dy)?;
        Ok(vec![y.into(), dx.into()])
    }),
    ("log_softmax", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let y = tensor::log_softmax(e, &x)?;
        let dx = tensor::log_softmax_backward(e, &y, &dy)?;
        Ok(vec![y.into(), dx.into()])
    }),
    ("masked_softmax", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let y = tensor::masked_softmax(e, &x)?;
        let dx = tensor::softmax_backward(e, &y, &dy)?;
        Ok(vec![y.into(), dx.into()])
    }),
    ("cross_entropy", |c| {
        let (x, targets, dy, e) = (c.x(0), c.ids(1), c.dy(), &mut c.encoder);
        let options = CrossEntropyOptions::default().ignore(3).smoothing(0.1);
        let dx = tensor::cross_entropy_backward(e, &x, &targets, options, &dy)?;
        Ok(vec![tensor::cross_entropy(e, &x, &targets, options)?.into(), dx.into()])
    }),
    ("layer_norm", |c| {
        let (x, weight, bias, dy, e) = (c.x(0), c.x(1), c.x(2), c.dy(), &mut c.encoder);
        let of = tensor::layer_norm_backward(e, &x, &weight, 1e-5, &dy)?;
        Ok(vec![tensor::layer_norm(e, &x, &weight, &bias, 1e-5)?.into(), of.x.into(), of.weight.into(), of.bias.into()])
    }),
    ("rms_norm", |c| {
        let (x, gain, dy, e) = (c.x(0), c.x(1), c.dy(), &mut c.encoder);
        let of = transformer::rms_norm_backward(e, &x, &gain, 1e-5, &dy)?;
        Ok(vec![transformer::rms_norm(e, &x, &gain, 1e-5)?.into(), of.x.into(), of.gain.into()])
    }),
    ("rotate", |c| {
        let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
        let frequencies: Vec<f32> = (0..4).map(|i| 10000f64.powf(-f64::from(i) / 4.0) as f32).collect();
        let angles = context().upload(&transformer::rope_angles(&frequencies, 5), [5, 4, 2])?;
        Ok(vec![transformer::rotate(e, &x, &angles, 0)?.into(), transformer::rotate_backward(e, &dy, &angles, 0)?.into()])
    }),
    ("matmul", |c| {
        let (a, b, dy, e) = (c.x(0), c.x(1), c.dy(), &mut c.encoder);
        let (da, db) = (tensor::matmul(e, &dy, Side::transposed(&b))?, tensor::matmul(e, Side::transposed(&a), &dy)?);
        Ok(vec![tensor::matmul(e, &a, &b)?.into(), da.into(), db.into()])
    }),
    ("matmul_transposed", |c| {
        let (a, b, dy, e) = (c.x(0), c.x(1), c.dy(), &mut c.encoder);
        let y = tensor::matmul(e, Side::transposed(&a), Side::transposed(&b))?;
        let (da, db) = (
            tensor::matmul(e, Side::transposed(&b), Side::transposed(&dy))?,
            tensor::matmul(e, Side::transposed(&dy), Side::transposed(&a))?,
        );
        Ok(vec![y.into(), da.into(), db.into()])
    }),
    ("bitlinear_float", |c| {
        let (x, weights, dy, e) = (c.x(0), c.x(1), c.dy(), &mut c.encoder);
        let w = bitnet::quantize_weights(e, &weights)?;
        let (y, dx) = (bitnet::bitlinear_float(e, &x, &w)?, bitnet::bitlinear_backward(e, &dy, &w)?);
        Ok(vec![y.into(), dx.into(), tensor::matmul(e, Side::transposed(&dy), &x)?.into()])
    }),
    ("relu2_gate", |c| gate(c, bitnet::relu2_gate, bitnet::relu2_gate_backward)),
    ("silu_gate", |c| gate(c, bitnet::silu_gate, bitnet::silu_gate_backward)),
    ("flash_attention", |c| {
        let (q, k, v, dy, e) = (c.x(0), c.x(1), c.x(2), c.dy(), &mut c.encoder);
        let (qkv, causal) = (Qkv { q: &q, k: &k, v: &v }, FlashAttentionOptions::default().causal());
        let attended = transformer::flash_attention(e, qkv, causal)?;
        let of = transformer::flash_attention_backward(e, qkv, &attended, &dy, causal)?;
        Ok(vec![attended.y.into(), of.q.into(), of.k.into(), of.v.into()])
    }),
    ("linear_cross_entropy", |c| {
        let (x, w, targets, dy, e) = (c.x(0), c.x(1), c.ids(2), c.dy(), &mut c.encoder);
        let options = LinearCrossEntropyOptions::from(CrossEntropyOptions::default().ignore(3)).chunk(4);
        let made = tensor::linear_cross_entropy(e, Linear { x: &x, w: &w }, &targets, options)?;
        let of = tensor::linear_cross_entropy_backward(e, Linear { x: &x, w: &w }, &targets, options, &made.lse, &dy)?;
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
        let (a, b, bias) = (c.x(0), c.x(1), c.x(2));
        let epilogue = Epilogue::new().bias(&bias).activation(Activation::Gelu);
        Ok(vec![tensor::matmul_with(&mut c.encoder, &a, &b, &epilogue)?.into()])
    }),
    ("adamw", |c| {
        let (numbers, state) = (AdamW::new(0.02).betas(0.9, 0.99).decay(0.1), AdamWState::new(context(), [6, 5])?);
        steps(c, |e, step, w, gradient| optimizer::adamw(e, numbers, step, w, gradient, &state))
    }),
    ("sgd", |c| sgd(c, Sgd::new(0.05).decay(0.1))),
    ("sgd_momentum", |c| sgd(c, Sgd::new(0.05).momentum(0.9))),
    ("sgd_nesterov", |c| sgd(c, Sgd::new(0.05).momentum(0.9).nesterov().decay(0.1))),
    ("clip_gradients", |c| {
        let (a, b) = (c.x(0), c.x(1));
        let norm = optimizer::clip_gradients(&mut c.encoder, &[&a, &b], 1.5)?;
        Ok(vec![norm.into(), a.into(), b.into()])
    }),
    ("cholesky", |c| {
        let a = c.x(0);
        Ok(vec![c.sound(|e| la::cholesky(e, &a))?.into()])
    }),
    ("triangular_solve", |c| {
        let (a, b) = (c.x(0), c.x(1));
        Ok(vec![c.sound(|e| la::triangular_solve(e, &a, &b, Triangle::LOWER))?.into()])
    }),
    ("solve", |c| {
        let (a, b) = (c.x(0), c.x(1));
        Ok(vec![c.sound(|e| la::solve(e, &a, &b))?.into()])
    }),
    ("svd", |c| {
        let a = c.x(0);
        Ok(vec![c.sound(|e| la::svd(e, &a))?.s.into()])
    }),
    ("least_squares", |c| {
        let (a, b) = (c.x(0), c.x(1));
        Ok(vec![c.sound(|e| la::least_squares(e, &a, &b))?.into()])
    }),
    // Signs of rows are a matter of taste.
    ("qr", |c| {
        let a = c.x(0);
        let r = c.sound(|e| la::qr(e, &a))?.r;
        Ok(vec![tensor::abs(&mut c.encoder, &r)?.into()])
    }),
];

/// Panics if an output is off: floats by more than 2e-6 of the largest of their tensor, ids at all.
fn compare(name: &str, found: &Out) {
    let (shape, wanted) = words(name).unwrap_or_else(|| panic!("there is no {name}"));
    let (dims, off) = match found {
        Out::Ids(found) => (found.shape(), (block_on(found.read()).unwrap() != wanted).then_some(f64::INFINITY)),
        Out::Floats(found) => {
            let wanted: Vec<f64> = wanted.into_iter().map(|word| f32::from_bits(word).into()).collect();
            let largest = wanted.iter().fold(0f64, |max, v| max.max(v.abs()));
            let got = block_on(found.read()).unwrap();
            assert_eq!(got.len(), wanted.len(), "{name}");
            let off = got
                .iter()
                .zip(&wanted)
                .map(|(&got, wanted)| (f64::from(got) - wanted).abs())
                .fold(0.0, |max: f64, v| if v.is_nan() { v } else { max.max(v) });
            (found.shape(), (off.is_nan() || off > 2e-6 * largest).then_some(off / largest))
        }
    };
    assert_eq!(dims.dims(), shape, "{name}");
    assert_eq!(off, None, "{name}");
}

#[test]
fn ops_and_gradients_are_those_of_pytorch() {
    let file = SafeTensors::deserialize(&GOLDEN).unwrap();
    let mut left: HashSet<&str> = file.names().into_iter().filter(|name| name.contains("/out")).collect();
    for &(name, run) in CASES {
        let mut case = Case { name, encoder: context().encoder(name) };
        let outputs = run(&mut case).unwrap_or_else(|error: Error| panic!("{name}: {error}"));
        let _ = case.encoder.submit().unwrap();
        for (i, output) in outputs.iter().enumerate() {
            let name = format!("{name}/out{i}");
            compare(&name, output);
            assert!(left.remove(name.as_str()), "{name} twice");
        }
    }
    assert!(left.is_empty(), "nothing is compared with {left:?}");
}
