//! `src/ops/tensor/max.rs` and `src/ops/tensor/argmax.rs`

use super::reductions::{Reduced, reductions};
use crate::{Case, Data, Recorder, convert, rng};
use bitnet_wgpu::{Element, Float, Tensor, f16, tensor};
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

/// Is `a` before `b`, by the definition? NaNs first, then larger ones; 0 before -0.
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
    let wanted = [largest(|v| v), min, largest(f64::abs)].map(Data::F32).to_vec();
    let twin = {
        let x = x.clone();
        let all = move || {
            [
                tensor::max_cpu(&x, shape, axes),
                tensor::min_cpu(&x, shape, axes),
                tensor::absmax_cpu(&x, shape, axes),
            ]
        };
        move || all().map(|y| Data::F32(y.unwrap())).to_vec()
    };
    Case::exact(format!("{} {:?}", r.name(), X::ELEMENT), wanted, move |r| {
        let x = r.upload(&x, shape)?;
        let mut y = [
            tensor::max(&mut r.encoder, &x, axes)?,
            tensor::min(&mut r.encoder, &x, axes)?,
            tensor::absmax(&mut r.encoder, &x, axes)?,
        ];
        // Of halves, into tensors that are there.
        if X::ELEMENT == Element::F16 {
            let zeros = |r: &Recorder, y: &Tensor<f32>| {
                Tensor::<f32>::zeros(r.encoder.context(), y.shape())
            };
            let into = [zeros(r, &y[0])?, zeros(r, &y[1])?, zeros(r, &y[2])?];
            tensor::max_into(&mut r.encoder, &x, axes, &into[0])?;
            tensor::min_into(&mut r.encoder, &x, axes, &into[1])?;
            tensor::absmax_into(&mut r.encoder, &x, axes, &into[2])?;
            y = into;
        }
        y.iter().for_each(|y| r.watch_all(y));
        Ok(())
    })
    .twin(twin)
    .of(X::ELEMENT)
}

/// The winners, and the gradient that goes to them.
fn winners<X: Float>(r: &mut Reduced) -> Case {
    let (shape, axes) = (r.shape, r.axes());
    let (x, dy) = (convert::<X>(&odd(r)), r.per_output(3.0));
    let numbers: Vec<f32> = x.iter().map(|&v| v.into()).collect();
    let [largest, smallest] = [|v: f64| v, |v: f64| -v]
        .map(|of| r.each(&numbers, |v| first(v, of).map_or(u32::MAX, |(index, _)| index)));
    let mut dx = vec![0.0; x.len()];
    for ((elements, &winner), &dy) in
        r.elements.iter().zip(&largest).zip(&dy).filter(|((elements, _), _)| !elements.is_empty())
    {
        dx[elements[winner as usize]] = dy;
    }
    let wanted = vec![Data::U32(largest), Data::U32(smallest), Data::floats(X::ELEMENT, &dx)];
    let twin = {
        let (x, dy) = (x.clone(), dy.clone());
        move || {
            let [largest, smallest] =
                [tensor::argmax_cpu(&x, shape, axes), tensor::argmin_cpu(&x, shape, axes)]
                    .map(|y| y.unwrap());
            let dx = tensor::max_backward_cpu(&largest, &dy, axes, shape).unwrap();
            vec![Data::U32(largest), Data::U32(smallest), Data::floats(X::ELEMENT, &dx)]
        }
    };
    Case::exact(format!("{} {:?}", r.name(), X::ELEMENT), wanted, move |r| {
        let x = r.upload(&x, shape)?;
        let largest = tensor::argmax(&mut r.encoder, &x, axes)?;
        let smallest = tensor::argmin(&mut r.encoder, &x, axes)?;
        let dy = r.upload(&dy, largest.shape())?;
        let dx = tensor::max_backward::<X>(&mut r.encoder, &largest, &dy, axes, shape)?;
        r.watch_all(&largest);
        r.watch_all(&smallest);
        r.watch_all(&dx);
        Ok(())
    })
    .twin(twin)
    .of(X::ELEMENT)
}
