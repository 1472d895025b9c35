//! Optimizers: three steps of each, with what they keep, against `f64`.

use super::{By::*, Family};
use crate::{Case, Data, Near, Recorder, U, convert, floats, rng};
use bitnet_wgpu::{
    optimizer::{self, AdamW, AdamWState, Ema, Lion, Sgd},
    reference,
    tensor::{Float, f16},
};

pub const OPS: Family = &[
    ("optimizer::adamw", KernelsAndReference, || vec![adamw::<f32>(), adamw::<f16>()]),
    ("optimizer::clip", WgslAndReference, || {
        let mut cases = vec![average::<f32>(), average::<f16>()];
        for (limit, lengths) in [(2.0, [130, 7, 0]), (1e4, [130, 7, 1]), (3.0, [1, 8193, 20_000])] {
            cases.extend([clip::<f32>(limit, lengths), clip::<f16>(limit, lengths)]);
        }
        cases
    }),
    ("optimizer::lion", KernelsAndReference, || vec![lion::<f32>(), lion::<f16>()]),
    ("optimizer::sgd", KernelsAndReference, || {
        vec![
            sgd::<f32>(Sgd::new(0.1)),
            sgd::<f32>(Sgd::new(0.1).momentum(0.9)),
            sgd::<f16>(Sgd::new(0.1).momentum(0.9).decay(0.01).nesterov()),
        ]
    }),
];

/// All that a thread takes, and a few.
const N: usize = 1050;
const STEPS: usize = 3;

/// Weights, and a gradient for each step.
fn numbers<T: Float>(seed: u64) -> (Vec<f32>, Vec<Vec<T>>) {
    let mut rng = rng(seed);
    (
        floats(&mut rng, N, 1.0),
        (0..STEPS).map(|_| convert::<T>(&floats(&mut rng, N, 3.0))).collect(),
    )
}

/// The steps of each weight by `step(w, g, number, kept)`, as weights and what is kept, the first
/// number of which is the weight.
fn path<const K: usize, T: Float>(
    weights: &[f32],
    gradients: &[Vec<T>],
    step: impl Fn(f64, usize, [f64; K]) -> [f64; K],
) -> [Vec<f64>; K] {
    let of = |i: usize| {
        let mut state = [0.0; K];
        state[0] = weights[i].into();
        (0..STEPS).for_each(|n| state = step(f64::from(gradients[n][i].into()), n + 1, state));
        state
    };
    let all: Vec<[f64; K]> = (0..N).map(of).collect();
    std::array::from_fn(|k| all.iter().map(|state| state[k]).collect())
}

/// Compares with `wanted`, of which each number is off by `units` of U at most of the largest that
/// it was made of, about 4.
fn check<const K: usize>(
    expected: [Vec<f64>; K],
    units: f64,
) -> impl Fn(&[Data], crate::Leeway) -> Result<(), String> {
    move |got, _| {
        expected.iter().zip(got).enumerate().try_for_each(|(i, (expected, got))| {
            let near = expected.iter().map(|&exact| Near { exact, error: 4.0 * U * units });
            got.check_near(near).map_err(|e| format!("output {i}: {e}"))
        })
    }
}

/// What a CPU reference makes of the same.
fn reference<const K: usize, T: Float>(
    weights: &[f32],
    gradients: &[Vec<T>],
    step: impl Fn(f32, usize, [f32; K]) -> [f32; K],
) -> Vec<Data> {
    let of = |i: usize| {
        let mut state = [0.0; K];
        state[0] = weights[i];
        (0..STEPS).for_each(|n| state = step(gradients[n][i].into(), n + 1, state));
        state
    };
    let all: Vec<[f32; K]> = (0..N).map(of).collect();
    (0..K).map(|k| Data::F32(all.iter().map(|state| state[k]).collect())).collect()
}

fn sgd<T: Float>(options: Sgd) -> Case {
    let (weights, gradients) = numbers::<T>(1);
    let Sgd { rate, momentum, decay, nesterov, .. } = options;
    let [rate, momentum, decay] = [rate, momentum, decay].map(f64::from);
    let expected = path(&weights, &gradients, |g, _, [w, v]| {
        let g = g + decay * w;
        let v = momentum * v + g;
        [w - rate * if nesterov { g + momentum * v } else { v }, v]
    });
    let by_reference =
        reference(&weights, &gradients, |g, _, [w, v]| reference::sgd(options, w, g, v).into());
    let record = move |r: &mut Recorder| {
        let (w, v) = (r.upload(&weights, [N])?, r.upload(&[0.0f32; N], [N])?);
        for gradient in &gradients {
            let gradient = r.upload(gradient, [N])?;
            options.step(&mut r.encoder, &w, &gradient, &v)?;
        }
        [&w, &v].into_iter().for_each(|tensor| r.watch_all(tensor));
        Ok(())
    };
    // Each step rounds four times, and velocities come to 9.
    Case::new(format!("{options:?} {:?}", T::ELEMENT), record, check(expected, 40.0))
        .reference(move || by_reference.clone())
        .of(T::ELEMENT)
}

fn adamw<T: Float>() -> Case {
    let (weights, gradients) = numbers::<T>(2);
    let options = AdamW::new(0.01).betas(0.8, 0.9).eps(1e-6).decay(0.1);
    let AdamW { rate, betas: (b1, b2), eps, decay, .. } = options;
    let [rate, b1, b2, eps, decay] = [rate, b1, b2, eps, decay].map(f64::from);
    let expected = path(&weights, &gradients, |g, n, [w, m, v]| {
        let (m, v) = (b1 * m + (1.0 - b1) * g, b2 * v + (1.0 - b2) * g * g);
        let (of_m, of_v) = (m / (1.0 - b1.powi(n as i32)), v / (1.0 - b2.powi(n as i32)));
        [w - rate * decay * w - rate * of_m / (of_v.sqrt() + eps), m, v]
    });
    let by_reference = reference(&weights, &gradients, |g, n, [w, m, v]| {
        let (w, [m, v]) = reference::adamw(options, n as u32, w, g, [m, v]);
        [w, m, v]
    });
    let record = move |r: &mut Recorder| {
        let (w, mean, square) =
            (r.upload(&weights, [N])?, r.upload(&[0.0f32; N], [N])?, r.upload(&[0.0f32; N], [N])?);
        let state = AdamWState { mean, square };
        for (n, gradient) in (1..).zip(&gradients) {
            let gradient = r.upload(gradient, [N])?;
            options.step(&mut r.encoder, n, &w, &gradient, &state)?;
        }
        [&w, &state.mean, &state.square].into_iter().for_each(|tensor| r.watch_all(tensor));
        Ok(())
    };
    Case::new(format!("{:?}", T::ELEMENT), record, check(expected, 30.0))
        .reference(move || by_reference.clone())
        .of(T::ELEMENT)
}

fn lion<T: Float>() -> Case {
    let (weights, gradients) = numbers::<T>(3);
    let options = Lion::new(0.01).decay(0.1);
    let Lion { rate, betas: (b1, b2), decay, .. } = options;
    let [rate, b1, b2, decay] = [rate, b1, b2, decay].map(f64::from);
    let expected = path(&weights, &gradients, |g, _, [w, m]| {
        let direction = b1 * m + (1.0 - b1) * g;
        [w - rate * (direction.signum() + decay * w), b2 * m + (1.0 - b2) * g]
    });
    let by_reference =
        reference(&weights, &gradients, |g, _, [w, m]| reference::lion(options, w, g, m).into());
    let record = move |r: &mut Recorder| {
        let (w, mean) = (r.upload(&weights, [N])?, r.upload(&[0.0f32; N], [N])?);
        for gradient in &gradients {
            let gradient = r.upload(gradient, [N])?;
            options.step(&mut r.encoder, &w, &gradient, &mean)?;
        }
        [&w, &mean].into_iter().for_each(|tensor| r.watch_all(tensor));
        Ok(())
    };
    Case::new(format!("{:?}", T::ELEMENT), record, check(expected, 20.0))
        .reference(move || by_reference.clone())
        .of(T::ELEMENT)
}

/// Gradients of such lengths as one vector.
fn clip<T: Float>(limit: f32, lengths: [usize; 3]) -> Case {
    let gradients: Vec<Vec<T>> = (4..)
        .zip(lengths)
        .map(|(seed, length)| convert(&floats(&mut rng(seed), length, 3.0)))
        .collect();
    let exact = |&v: &T| f64::from(v.into());
    let norm = gradients.iter().flatten().map(exact).map(|v| v * v).sum::<f64>().sqrt();
    let factor = (f64::from(limit) / (norm + 1e-6)).min(1.0);
    let clipped =
        gradients.iter().map(|gradient| gradient.iter().map(|v| exact(v) * factor).collect());
    let expected: Vec<Vec<f64>> = std::iter::once(vec![norm]).chain(clipped).collect();
    let check = move |got: &[Data], _| {
        // A sum of squares in a tree, two roots, a quotient and a product.
        let near = |expected: &Vec<f64>| {
            expected
                .iter()
                .map(|&exact| Near { exact, error: 100.0 * U * exact.abs() })
                .collect::<Vec<_>>()
        };
        expected.iter().zip(got).try_for_each(|(expected, got)| got.check_near(near(expected)))
    };
    let of_reference = gradients.clone();
    let reference = move || {
        let mut clipped = of_reference.clone();
        let norm = reference::clip_gradients(
            &mut clipped.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
            limit,
        )
        .unwrap();
        let numbers = |gradient: Vec<T>| gradient.into_iter().map(Into::into).collect::<Vec<f32>>();
        std::iter::once(Data::F32(vec![norm]))
            .chain(clipped.into_iter().map(|gradient| Data::floats(T::ELEMENT, &numbers(gradient))))
            .collect()
    };
    let record = move |r: &mut Recorder| {
        let tensors = gradients
            .iter()
            .map(|gradient| r.upload(gradient, [gradient.len(), 1]))
            .collect::<Result<Vec<_>, _>>()?;
        let norm = optimizer::clip_gradients(&tensors.iter().collect::<Vec<_>>(), limit)
            .forward(&mut r.encoder)?;
        r.watch_all(&norm);
        tensors.iter().for_each(|tensor| r.watch_all(tensor));
        Ok(())
    };
    Case::new(format!("{lengths:?} to {limit}, {:?}", T::ELEMENT), record, check)
        .of(T::ELEMENT)
        .reference(reference)
}

fn average<T: Float>() -> Case {
    let (average, weights) =
        (floats(&mut rng(6), N, 3.0), convert::<T>(&floats(&mut rng(7), N, 3.0)));
    let near = |(&a, &w): (&f32, &T)| Near {
        exact: f64::from(reference::ema(Ema::new(0.9), a, w.into())),
        error: 20.0 * U,
    };
    let expected = average.iter().zip(&weights).map(near).collect();
    Case::near(format!("ema of {:?}", T::ELEMENT), expected, move |r: &mut Recorder| {
        let (average, weights) = (r.upload(&average, [N])?, r.upload(&weights, [N])?);
        Ema::new(0.9).step(&mut r.encoder, &average, &weights)?;
        r.watch_all(&average);
        Ok(())
    })
    .of(T::ELEMENT)
}
