//! `src/ops/tensor/sigmoid.rs`. Exponentials differ, so it is judged in `f64`, with what `f32` may stray.

use super::in_both_forms;
use crate::{Case, Data, Near, U, convert, floats, shapes};
use bitnet_wgpu::{Element, Float, f16, tensor};

pub fn cases() -> Vec<Case> {
    let all = shapes("sigmoid").flat_map(|(mut rng, (m, _, k))| {
        let (mut x, dy) = (floats(&mut rng, m * k, 9.0), floats(&mut rng, m * k, 3.0));
        // Far out σ is 1 or nothing; at ±80 no result is subnormal yet.
        x.iter_mut().zip([-80.0, 0.0, 80.0, -0.0, -30.0, 30.0]).for_each(|(x, far)| *x = far);
        [case::<f32, f16>(&x, &dy, [m, k]), case::<f16, f32>(&x, &dy, [m, k])]
    });
    all.collect()
}

fn case<X: Float, Y: Float>(x: &[f32], dy: &[f32], shape: [usize; 2]) -> Case {
    let (x, dy) = (convert::<X>(x), convert::<X>(dy));
    let numbers: Vec<(f32, f32)> = x.iter().zip(&dy).map(|(&x, &dy)| (x.into(), dy.into())).collect();
    let wanted: Vec<(Near, Near)> = numbers.iter().map(|&(x, dy)| near(x.into(), dy.into())).collect();
    let check = move |got: &[Data], _| {
        // The op in both forms, then its gradient; of the twin one each.
        let (y, dx) = got.split_at(got.len() / 2);
        y.iter().try_for_each(|y| y.check_near(wanted.iter().map(|near| near.0)))?;
        dx.iter().try_for_each(|dx| dx.check_near(wanted.iter().map(|near| near.1)))
    };
    Case::new(
        format!("{shape:?} {:?} to {:?}", X::ELEMENT, Y::ELEMENT),
        move |r| {
            let (x, dy) = (r.upload(&x, shape)?, r.upload(&dy, shape)?);
            in_both_forms::<X, Y>(r, |e| tensor::sigmoid(e, &x), |e, y| tensor::sigmoid_into(e, &x, y))?;
            in_both_forms::<X, Y>(r, |e| tensor::sigmoid_backward(e, &x, &dy), |e, dx| tensor::sigmoid_backward_into(e, &x, &dy, dx))
        },
        check,
    )
    .twin(move || {
        let twin = |of: fn((f32, f32)) -> f32| Data::F32(numbers.iter().copied().map(of).collect());
        vec![twin(|(x, _)| tensor::sigmoid_cpu(x)), twin(|(x, dy)| tensor::sigmoid_backward_cpu(x, dy))]
    })
    .of(Element::F16)
}

/// σ and its gradient. `f32` misses e^-|x| by 4 + 2·|x| of U where sums are reordered, and of that σ by the share 1 - σ; its own sum and quotient
/// are 8 U. The gradient is a product of two and of `dy`.
fn near(x: f64, dy: f64) -> (Near, Near) {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let (s, t) = (sigmoid(x), sigmoid(-x));
    let strays = 8.0 + t * (4.0 + 2.0 * x.abs());
    let of_other = 8.0 + s * (4.0 + 2.0 * x.abs());
    let gradient = dy * s * t;
    (Near { exact: s, error: U * s * strays }, Near { exact: gradient, error: U * gradient.abs() * (strays + of_other + 3.0) })
}
