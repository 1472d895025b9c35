//! `src/ops/tensor/unary.rs`, and what it shares with the activation functions.

use crate::{Case, Data, Near, Recorder, U, convert, floats, rng};
use bitnet_wgpu::{Encoder, Float, Out, Result, Tensor, f16, tensor};

pub fn cases() -> Vec<Case> {
    // By Vulkan's rules: an exponential, a logarithm, a quotient, a root and its reciprocal.
    let exp = |x: f64| near(x.exp(), 2.0 * (3.0 + 2.0 * x.abs()));
    let log =
        |x: f64| Near { exact: x.ln(), error: (6.0 * U * x.ln().abs()).max(0.5_f64.powi(21)) };
    let both = |forward: Near, gradient: Near| (forward, gradient);
    vec![
        unary!(
            neg,
            neg_into,
            neg_cpu,
            neg_backward,
            neg_backward_into,
            neg_backward_cpu,
            (),
            any,
            the_twin
        ),
        unary!(
            abs,
            abs_into,
            abs_cpu,
            abs_backward,
            abs_backward_into,
            abs_backward_cpu,
            (),
            any,
            the_twin
        ),
        unary!(
            binarize,
            binarize_into,
            binarize_cpu,
            binarize_backward,
            binarize_backward_into,
            binarize_backward_cpu,
            (),
            any,
            the_twin
        ),
        unary!(
            square,
            square_into,
            square_cpu,
            square_backward,
            square_backward_into,
            square_backward_cpu,
            (),
            any,
            the_twin
        ),
        unary!(
            scale,
            scale_into,
            scale_cpu,
            scale_backward,
            scale_backward_into,
            scale_backward_cpu,
            (-1.7),
            any,
            the_twin
        ),
        unary!(
            clamp,
            clamp_into,
            clamp_cpu,
            clamp_backward,
            clamp_backward_into,
            clamp_backward_cpu,
            (-1.5, 2.5),
            any,
            the_twin
        ),
        unary!(
            clamp,
            clamp_into,
            clamp_cpu,
            clamp_backward,
            clamp_backward_into,
            clamp_backward_cpu,
            (3.0, -2.0),
            any,
            the_twin
        ),
        unary!(
            exp,
            exp_into,
            exp_cpu,
            exp_backward,
            exp_backward_into,
            exp_backward_cpu,
            (),
            any,
            |x, dy, _| { both(exp(x), times(exp(x), dy, 1.0)) }
        ),
        unary!(
            log,
            log_into,
            log_cpu,
            log_backward,
            log_backward_into,
            log_backward_cpu,
            (),
            positive,
            |x, dy, _| { both(log(x), near(dy / x, 6.0)) }
        ),
        unary!(
            sqrt,
            sqrt_into,
            sqrt_cpu,
            sqrt_backward,
            sqrt_backward_into,
            sqrt_backward_cpu,
            (),
            positive,
            |x, dy, _| { both(near(x.sqrt(), 10.0), near(0.5 * dy / x.sqrt(), 10.0)) }
        ),
        unary!(
            rsqrt,
            rsqrt_into,
            rsqrt_cpu,
            rsqrt_backward,
            rsqrt_backward_into,
            rsqrt_backward_cpu,
            (),
            positive,
            |x, dy, _| { both(near(1.0 / x.sqrt(), 10.0), near(-0.5 * dy / x.sqrt() / x, 16.0)) }
        ),
        unary!(
            recip,
            recip_into,
            recip_cpu,
            recip_backward,
            recip_backward_into,
            recip_backward_cpu,
            (),
            positive,
            |x, dy, _| { both(near(1.0 / x, 6.0), near(-dy / x / x, 12.0)) }
        ),
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
pub fn the_twin(_: f64, _: f64, twin: [f32; 2]) -> (Near, Near) {
    (Near::exactly(twin[0]), Near::exactly(twin[1]))
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
/// `$near` gives both results at x and dy, in `f64` with bounds; it is told what the twins say.
macro_rules! unary {
    ($name:ident, $into:ident, $cpu:ident, $back:ident, $back_into:ident, $back_cpu:ident, ($($scalar:expr),*), $inputs:expr, $near:expr) => {
        [
            $crate::cases::tensor::unary::case::<f32>(
                stringify!($name), $inputs, $near,
                |x, dy| [tensor::$cpu(x $(, $scalar)*), tensor::$back_cpu(x, $($scalar,)* dy)],
                |e, x| tensor::$name(e, x $(, $scalar)*),
                |e, x, y| tensor::$into(e, x, $($scalar,)* y),
                |e, x, dy| tensor::$back(e, x, $($scalar,)* dy),
                |e, x, dy, dx| tensor::$back_into(e, x, $($scalar,)* dy, dx),
            ),
            $crate::cases::tensor::unary::case::<f16>(
                stringify!($name), $inputs, $near,
                |x, dy| [tensor::$cpu(x $(, $scalar)*), tensor::$back_cpu(x, $($scalar,)* dy)],
                |e, x| tensor::$name(e, x $(, $scalar)*),
                |e, x, y| tensor::$into(e, x, $($scalar,)* y),
                |e, x, dy| tensor::$back(e, x, $($scalar,)* dy),
                |e, x, dy, dx| tensor::$back_into(e, x, $($scalar,)* dy, dx),
            ),
        ]
    };
}
pub(super) use unary;

type Op<T> = fn(&mut Encoder, &Tensor<T>) -> Result<Tensor<T>>;
type Into<T> = fn(&mut Encoder, &Tensor<T>, Out<'_, T>) -> Result<()>;
type Back<T> = fn(&mut Encoder, &Tensor<T>, &Tensor<T>) -> Result<Tensor<T>>;
type BackInto<T> = fn(&mut Encoder, &Tensor<T>, &Tensor<T>, Out<'_, T>) -> Result<()>;

/// Each form once: what it allocates, on itself, and added to another; of the gradient, what it
/// allocates, and on `dy` and `x` themselves.
#[allow(clippy::too_many_arguments)]
pub fn case<T: Float>(
    name: &str,
    inputs: fn(&mut rand::rngs::SmallRng, usize) -> Vec<f32>,
    near: impl Fn(f64, f64, [f32; 2]) -> (Near, Near),
    twin: fn(f32, f32) -> [f32; 2],
    op: Op<T>,
    into: Into<T>,
    back: Back<T>,
    back_into: BackInto<T>,
) -> Case {
    // More than the first half of a thread's outputs.
    let (shape, mut rng) = ([19, 67], rng(name.bytes().map(u64::from).sum()));
    let x = convert::<T>(&inputs(&mut rng, 1273));
    let (dy, base) =
        (convert::<T>(&floats(&mut rng, 1273, 3.0)), convert::<T>(&floats(&mut rng, 1273, 3.0)));
    let numbers: Vec<(f32, f32)> =
        x.iter().zip(&dy).map(|(&x, &dy)| (x.into(), dy.into())).collect();
    let twins: Vec<[f32; 2]> = numbers.iter().map(|&(x, dy)| twin(x, dy)).collect();
    let (y, dx): (Vec<Near>, Vec<Near>) =
        numbers.iter().zip(&twins).map(|(&(x, dy), &twin)| near(x.into(), dy.into(), twin)).unzip();
    let sum: Vec<Near> = y.iter().zip(&base).map(|(near, &base)| near.on_top_of(base)).collect();
    let check = move |got: &[Data], _| match got {
        // Of the twin.
        [first, second] => {
            first.check_near(y.iter().copied()).and_then(|()| second.check_near(dx.iter().copied()))
        }
        _ => {
            let wanted = [&y, &y, &sum, &dx, &dx, &dx].into_iter().enumerate();
            wanted.zip(got).try_for_each(|((i, near), got)| {
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
        let y = op(&mut r.encoder, &x)?;
        into(&mut r.encoder, &itself, Out::set(&itself))?;
        into(&mut r.encoder, &x, Out::add(&added))?;
        let allocated = back(&mut r.encoder, &x, &dy)?;
        back_into(&mut r.encoder, &x, &dx, Out::set(&dx))?;
        back_into(&mut r.encoder, &x_too, &dy, Out::set(&x_too))?;
        [&y, &itself, &added, &allocated, &dx, &x_too]
            .into_iter()
            .for_each(|tensor| r.watch_all(tensor));
        Ok(())
    };
    let twins = move || {
        let (y, dx) = twins.iter().map(|&[y, dx]| (y, dx)).unzip();
        vec![Data::F32(y), Data::F32(dx)]
    };
    Case::new(format!("{name} {:?}", T::ELEMENT), record, check).twin(twins).of(T::ELEMENT)
}
