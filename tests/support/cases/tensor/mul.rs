//! `src/ops/tensor/mul.rs`

use super::in_both_forms;
use crate::{Case, Data, convert, floats, rng, seed, sums};
use bitnet_wgpu::{Element, Float, Out, Shape, f16, tensor};
use rand::{RngExt, rngs::StdRng};

pub fn cases() -> Vec<Case> {
    // The shape of the result, and of what is broadcast to it.
    let fixed: [(&[usize], &[usize]); 12] = [
        (&[], &[]),
        (&[7], &[]),
        (&[0, 3], &[3]),
        (&[65], &[65]),
        (&[3, 5], &[5]),
        (&[3, 5], &[3, 1]),
        (&[2, 3, 4, 5], &[2, 3, 4, 5]),
        (&[2, 3, 4, 5], &[3, 1, 5]),
        (&[2, 3, 4, 5], &[2, 1, 4, 1]),
        (&[4, 3, 2, 7], &[1, 3, 1, 7]),
        (&[4, 1, 2, 7], &[4, 1, 1, 1]),
        (&[70, 300], &[300]),
    ];
    let mut all: Vec<(StdRng, Vec<usize>, Vec<usize>)> =
        (0u64..).zip(fixed).map(|(i, (shape, other))| (rng(i), shape.to_vec(), other.to_vec())).collect();
    for i in 0..20 {
        let mut rng = rng(1000 * seed() + i);
        let shape: Vec<usize> = (0..rng.random_range(0..=4)).map(|_| rng.random_range(1..9)).collect();
        let first = rng.random_range(0..=shape.len());
        let other = shape[first..].iter().map(|&dim| if rng.random_bool(0.5) { dim } else { 1 }).collect();
        all.push((rng, shape, other));
    }
    all.into_iter()
        .flat_map(|(mut rng, shape, other)| {
            [case::<f32, f16>(&mut rng, [&shape, &other]), case::<f16, f32>(&mut rng, [&shape, &other]), added(&mut rng, [&other, &shape])]
        })
        .collect()
}

fn shape(dims: &[usize]) -> Shape {
    match *dims {
        [] => [].into(),
        [a] => [a].into(),
        [a, b] => [a, b].into(),
        [a, b, c] => [a, b, c].into(),
        [a, b, c, d] => [a, b, c, d].into(),
        _ => panic!("at most four dimensions"),
    }
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

/// The operands, and the products at the elements of a result.
fn products<T: Float>(rng: &mut StdRng, [a_dims, b_dims]: [&[usize]; 2], y_dims: &[usize]) -> (Vec<T>, Vec<T>, Vec<f32>) {
    let of = |rng: &mut StdRng, dims: &[usize]| convert::<T>(&floats(rng, dims.iter().product(), 3.0));
    let (a, b) = (of(rng, a_dims), of(rng, b_dims));
    let product = |i: usize| -> f32 {
        let (a, b): (f32, f32) = (a[element(i, y_dims, a_dims)].into(), b[element(i, y_dims, b_dims)].into());
        a * b
    };
    let products = (0..y_dims.iter().product()).map(product).collect();
    (a, b, products)
}

/// `b` broadcast to the shape of `a`.
fn case<X: Float, Y: Float>(rng: &mut StdRng, [a_dims, b_dims]: [&[usize]; 2]) -> Case {
    let (a, b, y) = products::<X>(rng, [a_dims, b_dims], a_dims);
    let (a_shape, b_shape) = (shape(a_dims), shape(b_dims));
    let name = format!("{a_shape} · {b_shape} {:?} to {:?}", X::ELEMENT, Y::ELEMENT);
    Case::exact(name, vec![Data::floats(X::ELEMENT, &y), Data::floats(Y::ELEMENT, &y)], move |r| {
        let (a, b) = (r.upload(&a, a_shape)?, r.upload(&b, b_shape)?);
        in_both_forms::<X, Y>(r, |e| tensor::mul(e, &a, &b), |e, y| tensor::mul_into(e, &a, &b, y))
    })
    .of(Element::F16)
}

/// On top of what is there.
fn added(rng: &mut StdRng, [a_dims, b_dims]: [&[usize]; 2]) -> Case {
    let (a, b, y) = products::<f32>(rng, [a_dims, b_dims], b_dims);
    let base = floats(rng, y.len(), 9.0);
    let (a_shape, b_shape) = (shape(a_dims), shape(b_dims));
    Case::near(format!("{a_shape} · {b_shape}, added"), sums(&base, &y), move |r| {
        let (a, b, y) = (r.upload(&a, a_shape)?, r.upload(&b, b_shape)?, r.upload(&base, b_shape)?);
        tensor::mul_into(&mut r.encoder, &a, &b, Out::add(&y))?;
        r.watch_all(&y);
        Ok(())
    })
}
