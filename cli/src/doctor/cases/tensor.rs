//! Elementwise ops, reductions, products, losses and norms.

use super::{Case, SUM, case, half};
use crate::doctor::{compare::Number, trial::Trial};
use anyhow::Result;
use bitnet_wgpu::{
    Tensor, reference,
    tensor::{self, Activation, Float, LayerNorm, Side, f16},
};

const EPS: f32 = 1e-5;
/// Gradients are sums of products of what was rounded before.
const GRADIENT: f64 = 1e-4;

pub const CASES: &[Case] = &[
    case("tensor::activations", activations),
    case("tensor::argmax", argmax),
    case("tensor::binary", binary),
    case("tensor::cast", cast),
    case("tensor::compare", compare),
    case("tensor::concat", concat),
    case("tensor::cross_entropy", cross_entropy),
    case("tensor::dropout", dropout),
    case("tensor::finish", finish),
    case("tensor::gather", gather),
    case("tensor::layer_norm", layer_norm),
    case("tensor::layer_norm_backward", layer_norm_backward),
    case("tensor::linear_cross_entropy", linear_cross_entropy),
    case("tensor::linear_cross_entropy_backward", linear_cross_entropy_backward),
    case("tensor::linear_distillation", linear_distillation),
    case("tensor::matmul, one row", |t| matmul::<f32>(t, 1)),
    case("tensor::matmul, many rows", |t| matmul::<f32>(t, 67)),
    half("tensor::matmul, f16", |t| matmul::<f16>(t, 67)),
    case("tensor::matmul_int8", matmul_int8),
    case("tensor::max", max),
    case("tensor::norm", norm),
    case("tensor::pad", pad),
    case("tensor::pad_rows", pad_rows),
    case("tensor::permute", permute),
    case("tensor::prefix_sum", prefix_sum),
    case("tensor::select", select),
    case("tensor::softmax", softmax::<f32>),
    half("tensor::softmax, f16", softmax::<f16>),
    case("tensor::softmax_backward", softmax_backward),
    case("tensor::sum", sum),
    case("tensor::unary", unary),
    case("tensor::variance", variance),
];

/// A few workgroups and a part of one.
const LEN: usize = 1000;

fn map(x: &[f32], function: impl Fn(f32) -> f32) -> Vec<f32> {
    x.iter().map(|&x| function(x)).collect()
}

fn zip<T>(a: &[f32], b: &[f32], function: impl Fn(f32, f32) -> T) -> Vec<T> {
    a.iter().zip(b).map(|(&a, &b)| function(a, b)).collect()
}

fn rows(x: &[f32], columns: usize, function: impl Fn(&[f32]) -> Vec<f32>) -> Vec<f32> {
    x.chunks(columns).flat_map(function).collect()
}

/// Checks functions of one tensor against their references.
macro_rules! functions {
    ($t:ident, $x:ident, $($name:ident),+) => {{
        let there = $t.context.upload(&$x, [LEN])?;
        $(
            let y = tensor::$name(&there).forward(&mut $t.encoder)?;
            $t.near(&y, &map(&$x, reference::$name), SUM);
        )+
    }};
}

fn activations(t: &mut Trial) -> Result<()> {
    let x = t.floats(LEN);
    functions!(t, x, relu, relu2, silu, gelu, gelu_tanh, sigmoid, tanh);
    Ok(())
}

fn unary(t: &mut Trial) -> Result<()> {
    let x: Vec<f32> = t.floats(LEN).into_iter().map(|v| 0.1 + v.abs()).collect();
    functions!(t, x, abs, neg, exp, log, sqrt, rsqrt, recip, square);
    Ok(())
}

fn binary(t: &mut Trial) -> Result<()> {
    let (a, b) = (t.floats(LEN), t.floats(LEN));
    let (a_there, b_there) = (t.context.upload(&a, [LEN])?, t.context.upload(&b, [LEN])?);
    let sum = tensor::add(&a_there, &b_there).forward(&mut t.encoder)?;
    t.same(&sum, zip(&a, &b, reference::add));
    let difference = tensor::sub(&a_there, &b_there).forward(&mut t.encoder)?;
    t.same(&difference, zip(&a, &b, reference::sub));
    let product = tensor::mul(&a_there, &b_there).forward(&mut t.encoder)?;
    t.same(&product, zip(&a, &b, reference::mul));
    let quotient = tensor::div(&a_there, &b_there).forward(&mut t.encoder)?;
    t.near(&quotient, &zip(&a, &b, reference::div), SUM);
    let larger = tensor::maximum(&a_there, &b_there).forward(&mut t.encoder)?;
    t.same(&larger, zip(&a, &b, reference::maximum));
    let magnitudes = map(&a, |v| 0.1 + v.abs());
    let power =
        tensor::pow(&t.context.upload(&magnitudes, [LEN])?, &b_there).forward(&mut t.encoder)?;
    t.near(&power, &zip(&magnitudes, &b, reference::pow), SUM);
    Ok(())
}

fn compare(t: &mut Trial) -> Result<()> {
    // Whole numbers, so that some are equal; and NaN, which is unequal to all.
    let mut a: Vec<f32> = t.floats(LEN).into_iter().map(f32::round).collect();
    let b: Vec<f32> = t.floats(LEN).into_iter().map(f32::round).collect();
    a.iter_mut().step_by(9).for_each(|v| *v = f32::NAN);
    let (a_there, b_there) = (t.context.upload(&a, [LEN])?, t.context.upload(&b, [LEN])?);
    let less = tensor::less(&a_there, &b_there).forward(&mut t.encoder)?;
    t.same(&less, zip(&a, &b, |a, b| reference::less(a, b).into()));
    let equal = tensor::equal(&a_there, &b_there).forward(&mut t.encoder)?;
    t.same(&equal, zip(&a, &b, |a, b| reference::equal(a, b).into()));
    let unequal = tensor::not_equal(&a_there, &b_there).forward(&mut t.encoder)?;
    t.same(&unequal, zip(&a, &b, |a, b| reference::not_equal(a, b).into()));
    Ok(())
}

fn select(t: &mut Trial) -> Result<()> {
    let (choice, a, b) = (t.ids(LEN, 2), t.floats(LEN), t.floats(LEN));
    let y = tensor::select(
        &t.context.upload(&choice, [LEN])?,
        &t.context.upload(&a, [LEN])?,
        &t.context.upload(&b, [LEN])?,
    )
    .forward(&mut t.encoder)?;
    t.same(&y, (0..LEN).map(|i| reference::select(choice[i], a[i], b[i])).collect());
    Ok(())
}

fn cast(t: &mut Trial) -> Result<()> {
    let x: Vec<f32> = t.floats(LEN).into_iter().map(|v| v * 40.0).collect();
    let there = t.context.upload(&x, [LEN])?;
    let whole: Tensor<i32> = tensor::cast(&there).forward(&mut t.encoder)?;
    let bytes: Tensor<i8> = tensor::cast(&there).forward(&mut t.encoder)?;
    let back: Tensor<f32> = tensor::cast(&bytes).forward(&mut t.encoder)?;
    t.same(&whole, x.iter().map(|&v| v as i32).collect());
    t.same(&bytes, x.iter().map(|&v| v as i8).collect());
    t.same(&back, x.iter().map(|&v| f32::from(v as i8)).collect());
    Ok(())
}

fn concat(t: &mut Trial) -> Result<()> {
    let (a, b) = (t.floats(7 * 30), t.floats(7 * 35));
    let joined =
        tensor::concat(&[&t.context.upload(&a, [7, 30])?, &t.context.upload(&b, [7, 35])?], 1)
            .forward(&mut t.encoder)?;
    t.same(&joined, reference::concat(&[(&a[..], [7, 30].into()), (&b[..], [7, 35].into())], 1)?);
    let part = tensor::slice(&joined, 1, 28..41).forward(&mut t.encoder)?;
    let expected = reference::concat(&[(&a[..], [7, 30].into()), (&b[..], [7, 35].into())], 1)?;
    t.same(&part, reference::slice(&expected, [7, 65], 1, 28..41)?);
    Ok(())
}

fn pad(t: &mut Trial) -> Result<()> {
    let x = t.floats(7 * 30);
    let around = [(1, 0), (2, 3)];
    let y = tensor::pad(&t.context.upload(&x, [7, 30])?, &around)
        .value(-1.5)
        .forward(&mut t.encoder)?;
    t.same(&y, reference::pad(&x, [7, 30], &around, -1.5)?);
    Ok(())
}

fn pad_rows(t: &mut Trial) -> Result<()> {
    let x = t.floats(7 * 30);
    let y = tensor::pad_rows(&t.context.upload(&x, [7, 30])?, 36).forward(&mut t.encoder)?;
    t.same(&y, rows(&x, 30, |row| [row, &[0.0; 6]].concat()));
    Ok(())
}

fn permute(t: &mut Trial) -> Result<()> {
    let x = t.floats(3 * 33 * 20);
    let there = t.context.upload(&x, [3, 33, 20])?;
    let y = tensor::permute(&there, &[2, 0, 1]).forward(&mut t.encoder)?;
    t.same(&y, reference::permute(&x, [3, 33, 20], &[2, 0, 1])?);
    let y = tensor::transpose(&there).forward(&mut t.encoder)?;
    t.same(&y, reference::permute(&x, [3, 33, 20], &[0, 2, 1])?);
    Ok(())
}

fn gather(t: &mut Trial) -> Result<()> {
    let (x, ids, dy) = (t.floats(9 * 65), t.ids(20, 9), t.floats(20 * 65));
    let ids_there = t.context.upload(&ids, [20])?;
    let there = t.context.upload(&x, [9, 65])?;
    let y = tensor::gather(&there, &ids_there).forward(&mut t.encoder)?;
    t.same(&y, reference::gather(&x, 65, &ids)?);
    let dx = tensor::gather(&there, &ids_there)
        .backward(&mut t.encoder, &t.context.upload(&dy, [20, 65])?)?;
    t.same(&dx, reference::gather_backward(&dy, &ids, 9));
    Ok(())
}

fn sum(t: &mut Trial) -> Result<()> {
    let x = t.floats(9 * 1100);
    let there = t.context.upload(&x, [9, 1100])?;
    let sums = tensor::sum(&there, [1]).forward(&mut t.encoder)?;
    t.same(&sums, reference::sum(&x, [9, 1100], [1])?);
    let means = tensor::mean(&there, [0]).forward(&mut t.encoder)?;
    t.same(&means, reference::mean(&x, [9, 1100], [0])?);
    Ok(())
}

fn max(t: &mut Trial) -> Result<()> {
    let x = t.floats(9 * 1100);
    let there = t.context.upload(&x, [9, 1100])?;
    let largest = tensor::max(&there, [1]).forward(&mut t.encoder)?;
    t.same(&largest, reference::max(&x, [9, 1100], [1])?);
    let magnitudes = tensor::absmax(&there, [0]).forward(&mut t.encoder)?;
    t.same(&magnitudes, reference::absmax(&x, [9, 1100], [0])?);
    Ok(())
}

fn argmax(t: &mut Trial) -> Result<()> {
    let x = t.floats(9 * 1100);
    let there = t.context.upload(&x, [9, 1100])?;
    let largest = tensor::argmax(&there, [1]).forward(&mut t.encoder)?;
    t.same(&largest, reference::argmax(&x, [9, 1100], [1])?);
    let smallest = tensor::argmin(&there, [0]).forward(&mut t.encoder)?;
    t.same(&smallest, reference::argmin(&x, [9, 1100], [0])?);
    Ok(())
}

fn norm(t: &mut Trial) -> Result<()> {
    let x = t.floats(9 * 1100);
    let y = tensor::norm(&t.context.upload(&x, [9, 1100])?, [1]).forward(&mut t.encoder)?;
    t.near(&y, &reference::norm(&x, [9, 1100], [1])?, SUM);
    Ok(())
}

fn variance(t: &mut Trial) -> Result<()> {
    let x = t.floats(9 * 1100);
    let y = tensor::variance(&t.context.upload(&x, [9, 1100])?, [1]).forward(&mut t.encoder)?;
    t.near(&y, &reference::variance(&x, [9, 1100], [1], 1)?, SUM);
    Ok(())
}

fn prefix_sum(t: &mut Trial) -> Result<()> {
    let (x, counts) = (t.floats(3 * 2100), t.ids(3 * 2100, 100));
    let sums = tensor::prefix_sum(&t.context.upload(&counts, [3, 2100])?, 1)
        .exclusive()
        .forward(&mut t.encoder)?;
    t.same(&sums, reference::prefix_sum(&counts, [3, 2100], 1, true)?);
    let sums = tensor::prefix_sum(&t.context.upload(&x, [3, 2100])?, 1).forward(&mut t.encoder)?;
    t.near(&sums, &reference::prefix_sum(&x, [3, 2100], 1, false)?, SUM);
    Ok(())
}

fn dropout(t: &mut Trial) -> Result<()> {
    let (x, rate, seed) = (t.floats(LEN + 1), 0.25, 0x1234_5678_9abc_def0);
    let there = t.context.upload(&x, [LEN + 1])?;
    let y = tensor::dropout(&there, rate, seed).forward(&mut t.encoder)?;
    t.same(&y, reference::dropout(&x, rate, seed)?);
    let y = tensor::dropout(&there, rate, seed).relu().forward(&mut t.encoder)?;
    t.same(&y, reference::dropout(&map(&x, reference::relu), rate, seed)?);
    Ok(())
}

fn softmax<T: Float + Number>(t: &mut Trial) -> Result<()> {
    let x = t.values::<T>(9 * 1100);
    let there = t.context.upload(&x, [9, 1100])?;
    let x: Vec<f32> = x.into_iter().map(Into::into).collect();
    let y = tensor::softmax(&there).forward(&mut t.encoder)?;
    t.near(&y, &rows(&x, 1100, reference::softmax), SUM);
    let y = tensor::log_softmax(&there).forward(&mut t.encoder)?;
    t.near(&y, &rows(&x, 1100, reference::log_softmax), SUM);
    Ok(())
}

fn softmax_backward(t: &mut Trial) -> Result<()> {
    let (y, dy) = (rows(&t.floats(9 * 300), 300, reference::softmax), t.floats(9 * 300));
    let there = t.context.upload(&y, [9, 300])?;
    let dy_there = t.context.upload(&dy, [9, 300])?;
    let dx = tensor::softmax(&there).backward(&mut t.encoder, &there, &dy_there)?;
    let expected: Vec<f32> = y
        .chunks(300)
        .zip(dy.chunks(300))
        .flat_map(|(y, dy)| reference::softmax_backward(y, dy))
        .collect();
    t.near(&dx, &expected, SUM);
    Ok(())
}

fn layer_norm(t: &mut Trial) -> Result<()> {
    let (x, weight, bias) = (t.floats(9 * 300), t.floats(300), t.floats(300));
    let x_there = t.context.upload(&x, [9, 300])?;
    let (weight_there, bias_there) =
        (t.context.upload(&weight, [300])?, t.context.upload(&bias, [300])?);
    let y = LayerNorm::new(&weight_there, &bias_there, EPS).forward(&mut t.encoder, &x_there)?;
    t.near(&y, &reference::layer_norm(&x, &weight, &bias, EPS)?, SUM);
    Ok(())
}

fn layer_norm_backward(t: &mut Trial) -> Result<()> {
    let (x, weight, dy) = (t.floats(9 * 300), t.floats(300), t.floats(9 * 300));
    let (x_there, weight_there, dy_there) = (
        t.context.upload(&x, [9, 300])?,
        t.context.upload(&weight, [300])?,
        t.context.upload(&dy, [9, 300])?,
    );
    let gradients = LayerNorm::new(&weight_there, &weight_there, EPS).backward(
        &mut t.encoder,
        &x_there,
        &dy_there,
    )?;
    let expected = reference::layer_norm_backward(&x, &weight, EPS, &dy)?;
    t.near(&gradients.x, &expected.x, GRADIENT);
    t.near(&gradients.weight, &expected.weight, GRADIENT);
    t.near(&gradients.bias, &expected.bias, GRADIENT);
    Ok(())
}

fn cross_entropy(t: &mut Trial) -> Result<()> {
    const SMOOTHING: f32 = 0.1;
    let (x, targets, dloss) = (t.floats(9 * 300), t.ids(9, 300), t.floats(9));
    let (x_there, targets_there) =
        (t.context.upload(&x, [9, 300])?, t.context.upload(&targets, [9])?);
    let op = tensor::cross_entropy(&x_there, &targets_there).label_smoothing(SMOOTHING);
    let loss = op.forward(&mut t.encoder)?;
    let dx = op.backward(&mut t.encoder, &t.context.upload(&dloss, [9])?)?;
    let of_rows = || x.chunks(300).zip(&targets);
    let losses: Vec<f32> = of_rows()
        .map(|(row, &target)| reference::cross_entropy(row, target, None, SMOOTHING))
        .collect();
    let gradient = |((row, &target), &dloss): ((&[f32], &u32), &f32)| {
        reference::cross_entropy_backward(row, target, None, SMOOTHING, dloss)
    };
    let gradients: Vec<f32> = of_rows().zip(&dloss).flat_map(gradient).collect();
    t.near(&loss, &losses, SUM);
    t.near(&dx, &gradients, SUM);
    Ok(())
}

/// Rows, columns of them, and of the vocabulary, which is two chunks and a part of one.
const HEAD: [usize; 3] = [9, 40, 130];
const CHUNK: usize = 64;

fn linear_cross_entropy(t: &mut Trial) -> Result<()> {
    let [m, k, n] = HEAD;
    let (x, w, targets) = (t.floats(m * k), t.floats(n * k), t.ids(m, n as u32));
    let (x_there, w_there, targets_there) = (
        t.context.upload(&x, [m, k])?,
        t.context.upload(&w, [n, k])?,
        t.context.upload(&targets, [m])?,
    );
    let op = tensor::linear_cross_entropy(&x_there, &w_there, &targets_there).chunk(CHUNK);
    let made = op.forward(&mut t.encoder)?;
    let expected = reference::linear_cross_entropy(&x, &w, k, &targets, None, 0.0)?;
    t.near(&made.loss, &expected.loss, SUM);
    t.near(&made.lse, &expected.lse, SUM);
    Ok(())
}

fn linear_cross_entropy_backward(t: &mut Trial) -> Result<()> {
    let [m, k, n] = HEAD;
    let (x, w, targets, dloss) =
        (t.floats(m * k), t.floats(n * k), t.ids(m, n as u32), t.floats(m));
    let (x_there, w_there, targets_there) = (
        t.context.upload(&x, [m, k])?,
        t.context.upload(&w, [n, k])?,
        t.context.upload(&targets, [m])?,
    );
    let dloss_there = t.context.upload(&dloss, [m])?;
    let lse = reference::linear_cross_entropy(&x, &w, k, &targets, None, 0.0)?.lse;
    let lse = t.context.upload(&lse, [m])?;
    let op = tensor::linear_cross_entropy(&x_there, &w_there, &targets_there).chunk(CHUNK);
    let gradients = op.backward(&mut t.encoder, &lse, &dloss_there)?;
    let expected =
        reference::linear_cross_entropy_backward(&x, &w, k, &targets, None, 0.0, &dloss)?;
    t.near(&gradients.x, &expected.x, GRADIENT);
    t.near(&gradients.w, &expected.w, GRADIENT);
    Ok(())
}

/// At a temperature of 2, and with a target's share.
const MIX: (f32, f32) = (2.0, 0.7);

fn linear_distillation(t: &mut Trial) -> Result<()> {
    let [m, k, n] = HEAD;
    let [x, teacher_x] = [(); 2].map(|()| t.floats(m * k));
    let [w, teacher_w] = [(); 2].map(|()| t.floats(n * k));
    let (targets, dloss) = (t.ids(m, n as u32), t.floats(m));
    let there = |numbers: &[f32], rows| t.context.upload(numbers, [rows, k]);
    let student = (there(&x, m)?, there(&w, n)?);
    let teacher = (there(&teacher_x, m)?, there(&teacher_w, n)?);
    let (targets_there, dloss_there) =
        (t.context.upload(&targets, [m])?, t.context.upload(&dloss, [m])?);
    let op = tensor::linear_distillation(
        (&student.0, &student.1),
        (&teacher.0, &teacher.1),
        &targets_there,
    );
    let op = op.temperature(MIX.0).teacher_share(MIX.1).chunk(CHUNK);
    let made = op.forward(&mut t.encoder)?;
    let gradients = op.backward(&mut t.encoder, &made.lse, &dloss_there)?;
    let (student, teacher) = ((&*x, &*w, k), (&*teacher_x, &*teacher_w, k));
    let expected = reference::linear_distillation(student, teacher, &targets, None, MIX)?;
    t.near(&made.loss, &expected.loss, SUM);
    t.near(&made.lse, &expected.lse, SUM);
    let expected =
        reference::linear_distillation_backward(student, teacher, &targets, None, MIX, &dloss)?;
    t.near(&gradients.x, &expected.x, GRADIENT);
    t.near(&gradients.w, &expected.w, GRADIENT);
    Ok(())
}

fn matmul<T: Float + Number>(t: &mut Trial, m: usize) -> Result<()> {
    let (k, n) = (130, 70);
    let (a, b) = (t.values::<T>(m * k), t.values::<T>(k * n));
    let (a_there, b_there) = (t.context.upload(&a, [m, k])?, t.context.upload(&b, [k, n])?);
    let [a, b] = [a, b].map(|side| side.into_iter().map(Into::into).collect::<Vec<f32>>());
    let y = tensor::matmul(&a_there, &b_there).forward(&mut t.encoder)?;
    t.near(&y, &reference::matmul(&a, &b, [m, k, n])?, SUM);
    let turned = tensor::transpose(&b_there).forward(&mut t.encoder)?;
    let y = tensor::matmul(&a_there, Side::transposed(&turned)).forward(&mut t.encoder)?;
    t.near(&y, &reference::matmul(&a, &b, [m, k, n])?, SUM);
    Ok(())
}

/// The second side lies with its columns in a row, [n, k].
fn matmul_int8(t: &mut Trial) -> Result<()> {
    let [m, k, n] = [67, 130, 70];
    let (a, b) = (t.bytes(m * k), t.bytes(n * k));
    let y = tensor::matmul_int8(&t.context.upload(&a, [m, k])?, &t.context.upload(&b, [n, k])?)
        .forward(&mut t.encoder)?;
    t.same(&y, reference::matmul_int8(&a, &b, [m, k, n])?);
    Ok(())
}

fn finish(t: &mut Trial) -> Result<()> {
    let (x, bias) = (t.floats(9 * 65), t.floats(65));
    let (x_there, bias_there) = (t.context.upload(&x, [9, 65])?, t.context.upload(&bias, [65])?);
    for activation in [Activation::Relu2, Activation::Silu] {
        let op = tensor::finish(&x_there).bias(&bias_there).activation(activation);
        let y = op.forward(&mut t.encoder)?;
        t.near(&y, &reference::finish(&x, Some(&bias), Some(activation))?, SUM);
    }
    Ok(())
}
