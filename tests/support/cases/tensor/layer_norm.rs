//! `src/ops/tensor/layer_norm.rs`, and what it does for `src/ops/transformer/rms_norm.rs`

use super::softmax::{numbers, steps};
use crate::{Case, Data, Near, Recorder, U, convert, floats, rng, seed};
use bitnet_wgpu::{
    Out, reference,
    tensor::{Float, LayerNorm, f16},
    transformer::RmsNorm,
};
use rand::{RngExt, rngs::SmallRng};

const EPS: f32 = 1e-5;

fn all_shapes() -> impl Iterator<Item = (SmallRng, [usize; 2])> {
    let mut shapes = vec![
        [0, 5],
        [3, 0],
        [1, 1],
        [3, 4],
        [5, 7],
        [70, 33],
        [300, 9],
        [2, 1500],
        [600, 40],
        [2, 5000],
    ];
    let mut random = rng(1000 * seed());
    shapes.extend((0..3).map(|_| [random.random_range(1..40), random.random_range(1..200)]));
    (0..).zip(shapes).map(|(i, shape)| (rng(i), shape))
}

pub fn cases() -> Vec<Case> {
    let all = all_shapes().flat_map(|(mut rng, shape)| {
        let seeded = rng.random();
        let ways = [
            Case::as_on_either(0, || forward::<f32>(&mut self::rng(seeded), shape, 0.0)),
            Case::as_on_either(0, || forward::<f32>(&mut self::rng(seeded), shape, 300.0)),
            Case::as_on_either(0, || forward::<f16>(&mut self::rng(seeded), shape, 0.0)),
        ];
        let apple = [
            forward::<f32>(&mut self::rng(seeded), shape, 0.0),
            forward::<f16>(&mut self::rng(seeded), shape, 0.0),
        ]
        .map(Case::as_on_apple);
        ways.into_iter()
            .flatten()
            .chain(apple)
            .chain([backward::<f32>(&mut rng, shape, true), backward::<f16>(&mut rng, shape, true)])
    });
    all.collect()
}

/// The gradients of an RMS norm.
pub fn rms_cases() -> Vec<Case> {
    all_shapes()
        .flat_map(|(mut rng, shape)| {
            [backward::<f32>(&mut rng, shape, false), backward::<f16>(&mut rng, shape, false)]
        })
        .collect()
}

/// A row as a norm sees it: mean, 1 / sqrt(variance + eps), and by how much they may miss. A sum of
/// k numbers has `adds` roundings, a quotient 5 U; a root's inverse has half of what the variance
/// is off, and 14 U of its own.
struct Row {
    mean: f64,
    inverse: f64,
    mean_error: f64,
    inverse_error: f64,
    adds: f64,
}

impl Row {
    fn new(x: &[f64], center: bool) -> Self {
        let k = x.len() as f64;
        let adds = steps(x.len());
        let magnitude = x.iter().map(|v| v.abs()).sum::<f64>() / k;
        let (mean, mean_error) = if center {
            (x.iter().sum::<f64>() / k, U * (adds + 5.0) * magnitude)
        } else {
            (0.0, 0.0)
        };
        let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / k;
        let variance_error = U * (adds + 9.0) * variance + 1.01 * mean_error * mean_error;
        let inverse = 1.0 / (variance + f64::from(EPS)).sqrt();
        let inverse_error =
            inverse * (variance_error / (variance + f64::from(EPS)) / 2.0 + 14.0 * U);
        Self { mean, inverse, mean_error, inverse_error, adds }
    }

    fn normed(&self, v: f64) -> Near {
        let deviation = v - self.mean;
        let error = (self.mean_error + 2.0 * U * deviation.abs()) * self.inverse
            + deviation.abs() * self.inverse_error;
        Near { exact: deviation * self.inverse, error: 1.01 * error }
    }
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&v| v.into()).collect()
}

/// Of numbers around `center`, and on top of what is there.
fn forward<X: Float>(rng: &mut SmallRng, [m, k]: [usize; 2], center: f32) -> Case {
    let x = convert::<X>(&floats(rng, m * k, 3.0).iter().map(|v| v + center).collect::<Vec<_>>());
    let (weight, bias) = (floats(rng, k, 2.0), floats(rng, k, 2.0));
    let base = convert::<X>(&floats(rng, m * k, 2.0));
    let (values, bases) = (numbers(&x), numbers(&base));
    let mut expected = Vec::new();
    for x in values.chunks_exact(k.max(1)).map(wide) {
        let row = Row::new(&x, true);
        expected.extend(x.iter().zip(weight.iter().zip(&bias)).map(|(&v, (&w, &b))| {
            let (Near { exact, error }, w, b) = (row.normed(v), f64::from(w), f64::from(b));
            let y = exact * w + b;
            Near { exact: y, error: error * w.abs() + U * ((exact * w).abs() + y.abs()) }
        }));
    }
    let sums: Vec<Near> =
        expected.iter().zip(&bases).map(|(near, &base)| near.on_top_of(base)).collect();
    let check = move |got: &[Data], _| {
        got[0].check_near(expected.iter().copied())?;
        got.get(1).map_or(Ok(()), |got| got.check_near(sums.iter().copied()))
    };
    let reference = {
        let (weight, bias) = (weight.clone(), bias.clone());
        move || vec![Data::F32(reference::layer_norm(&values, &weight, &bias, EPS).unwrap())]
    };
    let record = move |r: &mut Recorder| {
        let (x, weight, bias, added) = (
            r.upload(&x, [m, k])?,
            r.upload(&weight, [k])?,
            r.upload(&bias, [k])?,
            r.upload(&base, [m, k])?,
        );
        let norm = LayerNorm::new(&weight, &bias, EPS);
        let y = norm.forward(&mut r.encoder, &x)?;
        norm.forward_into(&mut r.encoder, &x, Out::add(&added))?;
        r.watch_all(&y);
        r.watch_all(&added);
        Ok(())
    };
    Case::new(format!("{m} × {k} {:?}, around {center}", X::ELEMENT), record, check)
        .reference(reference)
        .of(X::ELEMENT)
}

/// The gradients of x and weight, and of the bias where there is one.
fn backward<X: Float>(rng: &mut SmallRng, [m, k]: [usize; 2], center: bool) -> Case {
    let (x, dy, weight) = (
        convert::<X>(&floats(rng, m * k, 3.0)),
        convert::<X>(&floats(rng, m * k, 3.0)),
        floats(rng, k, 2.0),
    );
    let (values, slopes, weights) = (numbers(&x), numbers(&dy), wide(&weight));
    let (mut dx, mut terms) = (Vec::new(), vec![Vec::new(); k]);
    for (x, dy) in
        values.chunks_exact(k.max(1)).map(wide).zip(slopes.chunks_exact(k.max(1)).map(wide))
    {
        let row = Row::new(&x, center);
        let normed: Vec<Near> = x.iter().map(|&v| row.normed(v)).collect();
        let g: Vec<f64> = dy.iter().zip(&weights).map(|(dy, w)| dy * w).collect();
        let mean = |of: &dyn Fn(usize) -> f64| (0..k).map(of).sum::<f64>() / k as f64;
        let mean_g = if center { mean(&|i| g[i]) } else { 0.0 };
        let mean_g_error = if center { U * (row.adds + 6.0) * mean(&|i| g[i].abs()) } else { 0.0 };
        let slope = mean(&|i| g[i] * normed[i].exact);
        // Sums of rounded products of rounded deviations, a quotient, and the root's inverse.
        let slope_error = mean(&|i| {
            g[i].abs() * (normed[i].error + U * (row.adds + 12.0) * normed[i].exact.abs())
        }) + slope.abs() * row.inverse_error / row.inverse;
        for i in 0..k {
            let inner = g[i] - mean_g - normed[i].exact * slope;
            let sizes = g[i].abs() + mean_g.abs() + (normed[i].exact * slope).abs();
            let error = mean_g_error
                + normed[i].error * slope.abs()
                + normed[i].exact.abs() * slope_error
                + 4.0 * U * sizes;
            let exact = row.inverse * inner;
            dx.push(Near {
                exact,
                error: 1.01 * (row.inverse * error + row.inverse_error * inner.abs())
                    + U * exact.abs(),
            });
            terms[i].push((dy[i] * normed[i].exact, dy[i].abs() * normed[i].error, dy[i]));
        }
    }
    let adds = m.min(3 * 41) as f64;
    let dweight: Vec<Near> = terms
        .iter()
        .map(|terms| {
            let sizes: f64 = terms.iter().map(|term| term.0.abs()).sum();
            Near {
                exact: terms.iter().map(|term| term.0).sum(),
                error: terms.iter().map(|term| term.1).sum::<f64>() + U * (adds + 3.0) * sizes,
            }
        })
        .collect();
    let dbias: Vec<Near> = terms
        .iter()
        .map(|terms| Near {
            exact: terms.iter().map(|term| term.2).sum(),
            error: U * adds * terms.iter().map(|term| term.2.abs()).sum::<f64>(),
        })
        .collect();
    let expected = [dx, dweight, dbias];
    let check = move |got: &[Data], _| {
        got.iter().zip(&expected).try_for_each(|(got, near)| got.check_near(near.iter().copied()))
    };
    let reference = {
        let weight = weight.clone();
        move || {
            if center {
                let all = reference::layer_norm_backward(&values, &weight, EPS, &slopes).unwrap();
                return [all.x, all.weight, all.bias].map(Data::F32).to_vec();
            }
            let (dx, dweight) =
                reference::rms_norm_backward(&values, &weight, EPS, &slopes).unwrap();
            [dx, dweight].map(Data::F32).to_vec()
        }
    };
    let record = move |r: &mut Recorder| {
        let (weight, x, dy) =
            (r.upload(&weight, [k])?, r.upload(&x, [m, k])?, r.upload(&dy, [m, k])?);
        if center {
            let all = LayerNorm::new(&weight, &weight, EPS).backward(&mut r.encoder, &x, &dy)?;
            r.watch_all(&all.x);
            r.watch_all(&all.weight);
            r.watch_all(&all.bias);
        } else {
            let (dx, dweight) = RmsNorm::new(&weight, EPS).backward(&mut r.encoder, &x, &dy)?;
            r.watch_all(&dx);
            r.watch_all(&dweight);
        }
        Ok(())
    };
    Case::new(format!("{m} × {k} {:?}, backward, centered {center}", X::ELEMENT), record, check)
        .reference(reference)
        .of(X::ELEMENT)
}
