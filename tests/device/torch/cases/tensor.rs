//! Elementwise ops, reductions, shapes, softmax, products of floats.

use super::{
    super::golden::{Case, Out},
    Run, SEED,
};
use bitnet_wgpu::{
    Result, Tensor,
    tensor::{self, Activation, Float, Reduction, Side, f16},
};
use support::context;

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

/// The middle dimension of three.
const MIDDLE: [usize; 1] = [1];

fn reduced(c: &mut Case, op: fn(&Tensor<f32>) -> Reduction<'_, f32>) -> Result<Vec<Out>> {
    let (x, dy, e) = (c.x(0), c.dy(), &mut c.encoder);
    Ok(vec![op(&x).forward(e)?.into(), op(&x).backward(e, &dy)?.into()])
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
    ("linear_cross_entropy", |c| {
        let (x, w, targets, dy, e) = (c.x(0), c.x(1), c.ids(2), c.dy(), &mut c.encoder);
        let op = tensor::linear_cross_entropy(&x, &w, &targets).ignore_index(3).chunk(4);
        let made = op.forward(e)?;
        let of = op.backward(e, &made.lse, &dy)?;
        Ok(vec![made.loss.into(), of.x.into(), of.w.into()])
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
    ("matmul_int8", |c| {
        let (a, b, e) = (c.x(0), c.x(1), &mut c.encoder);
        let (a, b) = (tensor::cast(&a).forward(e)?, tensor::cast(&b).forward(e)?);
        let y = tensor::matmul_int8(&a, &b).forward(e)?;
        Ok(vec![tensor::cast(&y).forward::<f32>(e)?.into()])
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
    ("matmul_f16", matmul::<f16>),
];
