//! `src/ops/tensor/max.rs` and `src/ops/tensor/argmax.rs`

use super::reductions::{Reduced, reductions};
use crate::{Case, Data, Near, Recorder, convert, rng};
use bitnet_wgpu::{
    Element, Tensor, reference,
    tensor::{self, Float, f16},
};
use rand::RngExt;

pub fn cases() -> Vec<Case> {
    let mut all: Vec<_> =
        reductions().iter_mut().flat_map(|r| [values::<f32>(r), values::<f16>(r)]).collect();
    all.push(values::<f32>(&mut Reduced::new(rng(30), &[2_100_007], &[0])).device_only());
    all
}

pub fn argmax_cases() -> Vec<Case> {
    let mut all: Vec<_> =
        reductions().iter_mut().flat_map(|r| [winners::<f32>(r), winners::<f16>(r)]).collect();
    all.extend(reductions().iter_mut().flat_map(|r| [magnitudes::<f32>(r), magnitudes::<f16>(r)]));
    all.push(winners::<f32>(&mut Reduced::new(rng(30), &[2_100_007], &[0])).device_only());
    all
}

/// A few values, so that most are equal to others, zeros of either sign and infinities among them,
/// and now and then a NaN.
fn odd(r: &mut Reduced) -> Vec<f32> {
    let kinds = if r.len() > 10_000 { r.len() } else { 90 };
    let mut x = r.floats(4.0);
    x.iter_mut().for_each(|v| {
        *v = match r.rng.random_range(0..kinds) {
            0 => f32::NAN,
            1 => f32::INFINITY,
            2 => f32::NEG_INFINITY,
            3 => -0.0,
            4 => 0.0,
            _ => v.round(),
        }
    });
    x
}

/// Compares `a` with `b` by the definition: NaNs first, then larger ones; 0 before -0.
fn order(a: f64, b: f64) -> std::cmp::Ordering {
    b.is_nan().cmp(&a.is_nan()).then(if a.is_nan() {
        std::cmp::Ordering::Equal
    } else {
        b.total_cmp(&a)
    })
}

/// The first of the largest, and its index.
fn first(v: &[f64], of: impl Fn(f64) -> f64) -> Option<(u32, f64)> {
    (0..).zip(v).map(|(i, &v)| (i, of(v))).min_by(|a, b| order(a.1, b.1).then(a.0.cmp(&b.0)))
}

fn values<X: Float>(r: &mut Reduced) -> Case {
    let (shape, axes) = (r.shape, r.axes());
    let x = convert::<X>(&odd(r));
    let numbers: Vec<f32> = x.iter().map(|&v| v.into()).collect();
    let largest = |of: fn(f64) -> f64| {
        r.each(&numbers, |v| first(v, of).map_or(f64::NEG_INFINITY, |(_, v)| v) as f32)
    };
    let min = largest(|v| -v).into_iter().map(|v| -v).collect();
    let expected = [largest(|v| v), min, largest(f64::abs)].map(Data::F32).to_vec();
    let reference = {
        let x = x.clone();
        let all = move || {
            [
                reference::max(&x, shape, axes),
                reference::min(&x, shape, axes),
                reference::absmax(&x, shape, axes),
            ]
        };
        move || all().map(|y| Data::F32(y.unwrap())).to_vec()
    };
    Case::exact(format!("{} {:?}", r.name(), X::ELEMENT), expected, move |r| {
        let x = r.upload(&x, shape)?;
        let mut y = [
            tensor::max(&x, axes).forward(&mut r.encoder)?,
            tensor::min(&x, axes).forward(&mut r.encoder)?,
            tensor::absmax(&x, axes).forward(&mut r.encoder)?,
        ];
        // Of f16, into tensors that are there.
        if X::ELEMENT == Element::F16 {
            let zeros = |r: &Recorder, y: &Tensor<f32>| {
                Tensor::<f32>::zeros(r.encoder.context(), y.shape())
            };
            let into = [zeros(r, &y[0])?, zeros(r, &y[1])?, zeros(r, &y[2])?];
            tensor::max(&x, axes).forward_into(&mut r.encoder, &into[0])?;
            tensor::min(&x, axes).forward_into(&mut r.encoder, &into[1])?;
            tensor::absmax(&x, axes).forward_into(&mut r.encoder, &into[2])?;
            y = into;
        }
        y.iter().for_each(|y| r.watch_all(y));
        Ok(())
    })
    .reference(reference)
    .of(X::ELEMENT)
}

/// The winners, and the gradient that goes to them.
fn winners<X: Float>(r: &mut Reduced) -> Case {
    let (shape, axes) = (r.shape, r.axes());
    let (x, dy) = (convert::<X>(&odd(r)), r.per_output(3.0));
    let numbers: Vec<f32> = x.iter().map(|&v| v.into()).collect();
    let [largest, smallest] = [|v: f64| v, |v: f64| -v]
        .map(|of| r.each(&numbers, |v| first(v, of).map_or(u32::MAX, |(index, _)| index)));
    let of = |winners: &[u32]| {
        let mut dx = vec![0.0; x.len()];
        for (output, elements) in r.elements.iter().enumerate().filter(|(_, all)| !all.is_empty()) {
            dx[elements[winners[output] as usize]] = dy[output];
        }
        Data::floats(X::ELEMENT, &dx)
    };
    let [of_max, of_min] = [&largest, &smallest].map(|winners| of(winners));
    let expected = vec![Data::U32(largest), Data::U32(smallest), of_max, of_min];
    let reference = {
        let (x, dy) = (x.clone(), dy.clone());
        move || {
            let [largest, smallest] =
                [reference::argmax(&x, shape, axes), reference::argmin(&x, shape, axes)]
                    .map(|y| y.unwrap());
            let [of_max, of_min] = [&largest, &smallest].map(|winners| {
                let dx = reference::max_backward(winners, &dy, shape, axes).unwrap();
                Data::floats(X::ELEMENT, &dx)
            });
            vec![Data::U32(largest), Data::U32(smallest), of_max, of_min]
        }
    };
    Case::exact(format!("{} {:?}", r.name(), X::ELEMENT), expected, move |r| {
        let x = r.upload(&x, shape)?;
        let largest = tensor::argmax(&x, axes).forward(&mut r.encoder)?;
        let smallest = tensor::argmin(&x, axes).forward(&mut r.encoder)?;
        let dy = r.upload(&dy, largest.shape())?;
        let of_max = tensor::max(&x, axes).backward(&mut r.encoder, &dy)?;
        let of_min = tensor::min(&x, axes).backward(&mut r.encoder, &dy)?;
        r.watch_all(&largest);
        r.watch_all(&smallest);
        r.watch_all(&of_max);
        r.watch_all(&of_min);
        Ok(())
    })
    .reference(reference)
    .of(X::ELEMENT)
}

/// The gradient of the largest magnitude: dy by the sign of the element that has it. Some are
/// equal.
fn magnitudes<X: Float>(r: &mut Reduced) -> Case {
    let (shape, axes, dy) = (r.shape, r.axes(), r.per_output(3.0));
    let x: Vec<f32> = r.floats(4.0).iter().map(|v| v.round()).collect();
    let mut dx = vec![0.0; x.len()];
    for (elements, dy) in r.elements.iter().zip(&dy).filter(|(all, _)| !all.is_empty()) {
        let numbers: Vec<f64> = elements.iter().map(|&at| x[at].into()).collect();
        let winner = elements[first(&numbers, f64::abs).expect("there are some").0 as usize];
        dx[winner] = reference::abs_backward(x[winner], *dy);
    }
    // The zero of an element that did not win may have either sign.
    let expected = dx.into_iter().map(Near::exactly).collect();
    let x = convert::<X>(&x);
    Case::near(format!("{} {:?}, magnitudes", r.name(), X::ELEMENT), expected, move |r| {
        let x = r.upload(&x, shape)?;
        let op = tensor::absmax(&x, axes).keep_axes();
        let of = op.forward(&mut r.encoder)?.shape();
        let dy = r.upload(&dy, of)?;
        let dx = op.backward(&mut r.encoder, &dy)?;
        r.watch_all(&dx);
        Ok(())
    })
    .of(X::ELEMENT)
}
