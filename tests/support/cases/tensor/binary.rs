//! `src/ops/tensor/binary.rs`

use super::unary::near;
use crate::{Case, Data, Near, Recorder, U, convert, floats, rng, seed};
use bitnet_wgpu::{Encoder, Float, Out, Result, Shape, Tensor, f16, tensor};
use rand::{RngExt, rngs::StdRng};

macro_rules! op {
    ($name:ident, $into:ident, $twin:ident) => {
        Op {
            name: stringify!($name),
            twin: tensor::$twin,
            single: (tensor::$name, |e, a, b, y| tensor::$into(e, a, b, y)),
            half: (tensor::$name, |e, a, b, y| tensor::$into(e, a, b, y)),
        }
    };
}

pub fn cases() -> Vec<Case> {
    // Index and broadcasting are the frame's: `mul` tries them for all.
    let mut cases: Vec<Case> =
        shapes().iter().zip(0..).flat_map(|((a, b), i)| with(op!(mul, mul_into, mul_cpu), rng(i), a, b, the_twin)).collect();
    let (a, b): (&[usize], &[usize]) = (&[4, 1, 31], &[3, 1]);
    cases.extend(with(op!(add, add_into, add_cpu), rng(1), a, b, the_twin));
    cases.extend(with(op!(sub, sub_into, sub_cpu), rng(2), a, b, the_twin));
    cases.extend(with(op!(min, min_into, min_cpu), rng(3), a, b, the_twin));
    cases.extend(with(op!(max, max_into, max_cpu), rng(4), a, b, the_twin));
    cases.extend(with(op!(div, div_into, div_cpu), rng(5), a, b, |a, b, _| near(a / b, 6.0)));
    cases.extend(with(op!(pow, pow_into, pow_cpu), rng(6), a, &[5, 1], pow));
    cases
}

/// The shapes of two tensors.
fn shapes() -> Vec<(Vec<usize>, Vec<usize>)> {
    let fixed: [(&[usize], &[usize]); 14] = [
        (&[], &[]),
        (&[7], &[]),
        (&[], &[7]),
        (&[0, 3], &[3]),
        (&[0, 3], &[1, 1]),
        (&[65], &[65]),
        (&[3, 5], &[3, 1]),
        (&[3, 1], &[1, 5]),
        (&[2, 3, 4, 5], &[2, 3, 4, 5]),
        (&[2, 3, 4, 5], &[3, 1, 5]),
        (&[2, 1, 4, 1], &[2, 3, 4, 5]),
        (&[4, 3, 2, 7], &[1, 3, 1, 7]),
        (&[4, 1, 2, 7], &[4, 1, 1, 1]),
        (&[70, 300], &[300]),
    ];
    let mut all: Vec<_> = fixed.map(|(a, b)| (a.to_vec(), b.to_vec())).into();
    for i in 0..20 {
        let mut rng = rng(1000 * seed() + i);
        let shape: Vec<usize> = (0..rng.random_range(0..=4)).map(|_| rng.random_range(1..9)).collect();
        let first = rng.random_range(0..=shape.len());
        let mut part = |dims: &[usize]| dims.iter().map(|&dim| if rng.random_bool(0.5) { dim } else { 1 }).collect();
        all.push(if i % 2 == 0 { (part(&shape), part(&shape[first..])) } else { (part(&shape[first..]), shape.clone()) });
    }
    all
}

fn the_twin(_: f64, _: f64, twin: f32) -> Near {
    Near::exactly(twin)
}

/// log₂ is off by 2^-21 or three units in the last place, which b and ln 2 make larger; then comes 2^x.
fn pow(a: f64, b: f64, _: f32) -> Near {
    let (y, log) = (a.powf(b), a.abs().log2());
    let of_log = (b * (6.0 * U * log.abs()).max(0.5_f64.powi(21))).abs();
    let units = 2.0 * (3.0 + 2.0 * (b * log).abs()) + (b * log).abs();
    if b == 0.0 { Near::exactly(1.0) } else { Near { exact: y, error: y.abs() * (U * units + of_log) } }
}

/// Which element of `own` an element of `of` takes, by the definition of broadcasting.
fn element(index: usize, of: &[usize], own: &[usize]) -> usize {
    let (mut rest, mut at, mut stride) = (index, 0, 1);
    for (i, &dim) in of.iter().enumerate().rev() {
        if let Some(own_dim) = (i + own.len()).checked_sub(of.len()).map(|i| own[i]) {
            at += if own_dim == 1 { 0 } else { rest % dim * stride };
            stride *= own_dim;
        }
        rest /= dim;
    }
    at
}

/// What two shapes are broadcast to, by its definition.
fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let dim = |dims: &[usize], i: usize| (i + dims.len()).checked_sub(rank).map_or(1, |i| dims[i]);
    (0..rank).map(|i| if dim(a, i) == 1 { dim(b, i) } else { dim(a, i) }).collect()
}

pub fn shape(dims: &[usize]) -> Shape {
    match *dims {
        [] => [].into(),
        [a] => [a].into(),
        [a, b] => [a, b].into(),
        [a, b, c] => [a, b, c].into(),
        [a, b, c, d] => [a, b, c, d].into(),
        _ => panic!("at most four dimensions"),
    }
}

type Forms<T> =
    (fn(&mut Encoder, &Tensor<T>, &Tensor<T>) -> Result<Tensor<T>>, fn(&mut Encoder, &Tensor<T>, &Tensor<T>, Out<'_, T>) -> Result<()>);

/// An op's name, its twin, and its forms in both types.
struct Op {
    name: &'static str,
    twin: fn(f32, f32) -> f32,
    single: Forms<f32>,
    half: Forms<f16>,
}

fn with(op: Op, mut rng: StdRng, a: &[usize], b: &[usize], near: fn(f64, f64, f32) -> Near) -> Vec<Case> {
    vec![case::<f32>(&op, op.single, &mut rng, a, b, near), case::<f16>(&op, op.half, &mut rng, a, b, near)]
}

/// What is allocated, what is added, and, where that is one of the inputs, in its place.
fn case<T: Float>(
    op: &Op,
    (allocated, into): Forms<T>,
    rng: &mut StdRng,
    a_dims: &[usize],
    b_dims: &[usize],
    near: fn(f64, f64, f32) -> Near,
) -> Case {
    let of = |rng: &mut StdRng, dims: &[usize], bound| convert::<T>(&floats(rng, dims.iter().product(), bound));
    let (mut a, mut b) = (of(rng, a_dims, 3.0), of(rng, b_dims, 3.0));
    if op.name == "pow" {
        a = a.iter().map(|&a| T::from_f32(a.into().abs() + 0.1)).collect();
        // Powers of negative numbers, and of whole numbers.
        let special = [-2.0, -3.0, -0.5, 1.0, -1.5].map(T::from_f32);
        a.iter_mut().zip(special).for_each(|(a, special)| *a = special);
        b.iter_mut().zip([2.0, -3.0, 0.0].map(T::from_f32)).for_each(|(b, special)| *b = special);
    }
    if let ("min" | "max", [first, _, third, ..]) = (op.name, &mut a[..]) {
        (*first, *third) = (T::from_f32(f32::NAN), T::from_f32(f32::INFINITY));
    }
    let y_dims = broadcast(a_dims, b_dims);
    let base = of(rng, &y_dims, 9.0);
    let pairs = (0..base.len()).map(|i| (a[element(i, &y_dims, a_dims)].into(), b[element(i, &y_dims, b_dims)].into()));
    let pairs: Vec<(f32, f32)> = pairs.collect();
    let twins: Vec<f32> = pairs.iter().map(|&(a, b)| (op.twin)(a, b)).collect();
    let y: Vec<Near> = pairs.iter().zip(&twins).map(|(&(a, b), &twin)| near(a.into(), b.into(), twin)).collect();
    let on_top = |(near, &base): (&Near, &T)| {
        let exact = near.exact + f64::from(base.into());
        Near { exact, error: near.error + U * (near.exact.abs() + 1.01 * exact.abs()) }
    };
    let sum: Vec<Near> = y.iter().zip(&base).map(on_top).collect();
    let check = move |got: &[Data], _| {
        got.iter().enumerate().try_for_each(|(i, got)| {
            let wanted = if i == 1 { &sum } else { &y };
            got.check_near(wanted.iter().copied()).map_err(|e| format!("output {i}: {e}"))
        })
    };
    let name = format!("{}: {a_dims:?} and {b_dims:?} {:?}", op.name, T::ELEMENT);
    let (a_shape, b_shape, y_shape) = (shape(a_dims), shape(b_dims), shape(&y_dims));
    let record = move |r: &mut Recorder| {
        let (a, b, sum) = (r.upload(&a, a_shape)?, r.upload(&b, b_shape)?, r.upload(&base, y_shape)?);
        let y = allocated(&mut r.encoder, &a, &b)?;
        into(&mut r.encoder, &a, &b, Out::add(&sum))?;
        r.watch_all(&y);
        r.watch_all(&sum);
        for itself in [&a, &b].into_iter().filter(|itself| itself.shape() == y_shape).take(1) {
            into(&mut r.encoder, &a, &b, Out::set(itself))?;
            r.watch_all(itself);
        }
        Ok(())
    };
    Case::new(name, record, check).twin(move || vec![Data::F32(twins.clone())]).of(T::ELEMENT)
}
