//! `src/ops/tensor/unary.rs`, and what it shares with the activation functions.

use crate::{Case, Data, Near, Recorder, U, convert, floats, rng};
use bitnet_wgpu::{
    Out, Tensor, reference,
    tensor::{self, Float, Unary, f16},
};

pub fn cases() -> Vec<Case> {
    // By Vulkan's rules: an exponential, a logarithm, a quotient, a root and its reciprocal.
    let exp = |x: f64| near(x.exp(), 2.0 * (3.0 + 2.0 * x.abs()));
    let log =
        |x: f64| Near { exact: x.ln(), error: (6.0 * U * x.ln().abs()).max(0.5_f64.powi(21)) };
    let both = |forward: Near, gradient: Near| (forward, gradient);
    vec![
        unary!(neg, neg_backward, (), any, the_reference),
        unary!(abs, abs_backward, (), any, the_reference),
        unary!(binarize, binarize_backward, (), any, the_reference),
        unary!(square, square_backward, (), any, the_reference),
        unary!(scale, scale_backward, (-1.7), any, the_reference),
        unary!(clamp, clamp_backward, (-1.5, 2.5), any, the_reference),
        unary!(clamp, clamp_backward, (3.0, -2.0), any, the_reference),
        unary!(exp, exp_backward, (), any, |x, dy, _| { both(exp(x), times(exp(x), dy, 1.0)) }),
        unary!(log, log_backward, (), positive, |x, dy, _| { both(log(x), near(dy / x, 6.0)) }),
        unary!(sqrt, sqrt_backward, (), positive, |x, dy, _| {
            both(near(x.sqrt(), 10.0), near(0.5 * dy / x.sqrt(), 10.0))
        }),
        unary!(rsqrt, rsqrt_backward, (), positive, |x, dy, _| {
            both(near(1.0 / x.sqrt(), 10.0), near(-0.5 * dy / x.sqrt() / x, 16.0))
        }),
        unary!(recip, recip_backward, (), positive, |x, dy, _| {
            both(near(1.0 / x, 6.0), near(-dy / x / x, 12.0))
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// `exact`, of which `units` of U may be missed; and what is too small for a normal float.
pub fn near(exact: f64, units: f64) -> Near {
    Near { exact, error: U * units * exact.abs() + 1e-36 }
}

/// A product, itself off by `units` of U.
pub fn times(a: Near, b: f64, units: f64) -> Near {
    Near { exact: a.exact * b, error: a.error * b.abs() + U * units * (a.exact * b).abs() }
}

/// For what has no error at all.
pub fn the_reference(_: f64, _: f64, reference: [f32; 2]) -> (Near, Near) {
    (Near::exactly(reference[0]), Near::exactly(reference[1]))
}

/// From -9 to 9, and far out; at ±80 no result is subnormal yet.
pub fn any(rng: &mut rand::rngs::SmallRng, n: usize) -> Vec<f32> {
    let mut x = floats(rng, n, 9.0);
    x.iter_mut()
        .zip([-80.0, 0.0, 80.0, -0.0, -30.0, 30.0, 0.57, -0.56, 0.001])
        .for_each(|(x, far)| *x = far);
    x
}

/// From 0.02 to 100.
pub fn positive(rng: &mut rand::rngs::SmallRng, n: usize) -> Vec<f32> {
    floats(rng, n, 1.0).iter().map(|x| 10.0 * x.abs() * x.abs() * 10.0 + 0.02).collect()
}

/// The cases of an op of one input and its gradient, in both types. Its numbers are constants;
/// `$near` gives both results at x and dy, in `f64` with bounds, from them and from the references' results.
macro_rules! unary {
    (@of $t:ty, $name:ident, $back:ident, ($($scalar:expr),*), $inputs:expr, $near:expr) => {
        $crate::cases::tensor::unary::case::<$t>(
            stringify!($name), $inputs, $near,
            |x, dy| [reference::$name(x $(, $scalar)*), reference::$back(x, $($scalar,)* dy)],
            |x| tensor::$name(x $(, $scalar)*),
        )
    };
    ($name:ident, $back:ident, $scalars:tt, $inputs:expr, $near:expr) => {
        [
            unary!(@of f32, $name, $back, $scalars, $inputs, $near),
            unary!(@of f16, $name, $back, $scalars, $inputs, $near),
        ]
    };
}
pub(super) use unary;

/// Each form once: what it allocates, on itself, and added to another; of the gradient, what it
/// allocates, and on `dy` and `x` themselves.
pub fn case<T: Float>(
    name: &str,
    inputs: fn(&mut rand::rngs::SmallRng, usize) -> Vec<f32>,
    near: impl Fn(f64, f64, [f32; 2]) -> (Near, Near),
    reference: fn(f32, f32) -> [f32; 2],
    op: fn(&Tensor<T>) -> Unary<'_, T>,
) -> Case {
    // More than the first half of a thread's outputs.
    let (shape, mut rng) = ([19, 67], rng(name.bytes().map(u64::from).sum()));
    let x = convert::<T>(&inputs(&mut rng, 1273));
    let (dy, base) =
        (convert::<T>(&floats(&mut rng, 1273, 3.0)), convert::<T>(&floats(&mut rng, 1273, 3.0)));
    let numbers: Vec<(f32, f32)> =
        x.iter().zip(&dy).map(|(&x, &dy)| (x.into(), dy.into())).collect();
    let references: Vec<[f32; 2]> = numbers.iter().map(|&(x, dy)| reference(x, dy)).collect();
    let (y, dx): (Vec<Near>, Vec<Near>) = numbers
        .iter()
        .zip(&references)
        .map(|(&(x, dy), &reference)| near(x.into(), dy.into(), reference))
        .unzip();
    let sum: Vec<Near> = y.iter().zip(&base).map(|(near, &base)| near.on_top_of(base)).collect();
    let check = move |got: &[Data], _| match got {
        // Of the CPU reference.
        [first, second] => {
            first.check_near(y.iter().copied()).and_then(|()| second.check_near(dx.iter().copied()))
        }
        _ => {
            let expected = [&y, &y, &sum, &dx, &dx, &dx].into_iter().enumerate();
            expected.zip(got).try_for_each(|((i, near), got)| {
                got.check_near(near.iter().copied()).map_err(|e| format!("output {i}: {e}"))
            })
        }
    };
    let record = move |r: &mut Recorder| {
        let (itself, added) = (r.upload(&x, shape)?, r.upload(&base, shape)?);
        let (x, dy, dx, x_too) = (
            r.upload(&x, shape)?,
            r.upload(&dy, shape)?,
            r.upload(&dy, shape)?,
            r.upload(&x, shape)?,
        );
        let y = op(&x).forward(&mut r.encoder)?;
        op(&itself).forward_into(&mut r.encoder, &itself)?;
        op(&x).forward_into(&mut r.encoder, Out::add(&added))?;
        let allocated = op(&x).backward(&mut r.encoder, &dy)?;
        op(&x).backward_into(&mut r.encoder, &dx, &dx)?;
        op(&x_too).backward_into(&mut r.encoder, &dy, &x_too)?;
        [&y, &itself, &added, &allocated, &dx, &x_too]
            .into_iter()
            .for_each(|tensor| r.watch_all(tensor));
        Ok(())
    };
    let references = move || {
        let (y, dx) = references.iter().map(|&[y, dx]| (y, dx)).unzip();
        vec![Data::F32(y), Data::F32(dx)]
    };
    Case::new(format!("{name} {:?}", T::ELEMENT), record, check)
        .reference(references)
        .of(T::ELEMENT)
}
