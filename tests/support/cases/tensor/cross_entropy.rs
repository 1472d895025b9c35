//! `src/ops/tensor/cross_entropy.rs`

use super::softmax::{numbers, rows, shares, statistics, strays};
use crate::{Case, Data, Near, Recorder, U, convert, floats, rng, seed};
use bitnet_wgpu::{
    reference,
    tensor::{self, CrossEntropy, Float, f16},
};
use rand::{RngExt, rngs::SmallRng};

/// The target that is ignored, and the smoothing.
type Options = (Option<u32>, f32);

pub fn cases() -> Vec<Case> {
    let mut shapes = vec![[0, 5], [1, 1], [7, 3], [70, 33], [5, 1500]];
    let mut random = rng(1000 * seed());
    shapes.extend((0..4).map(|_| [random.random_range(1..20), random.random_range(1..300)]));
    let all = (0..).zip(shapes).flat_map(|(i, shape)| {
        [
            case::<f32>(&mut rng(i), shape, (None, 0.0)),
            case::<f32>(&mut rng(i), shape, (Some(2), 0.1)),
            case::<f16>(&mut rng(i), shape, (Some(u32::MAX), 0.0)),
        ]
    });
    all.collect()
}

/// Losses and gradients. Some targets are ignored, some are no column.
fn case<X: Float>(rng: &mut SmallRng, shape: [usize; 2], options: Options) -> Case {
    let (ignore, share) = options;
    let [m, n] = shape;
    let mut x = floats(rng, m * n, 9.0);
    let mut targets: Vec<u32> = (0..m).map(|_| rng.random_range(0..n as u32)).collect();
    targets.iter_mut().skip(1).step_by(5).for_each(|target| *target = n as u32);
    targets.iter_mut().skip(3).step_by(5).for_each(|target| *target = u32::MAX);
    // Without smoothing, what has no chance counts for nothing.
    if share == 0.0 && n > 1 {
        x.chunks_exact_mut(n)
            .zip(&targets)
            .for_each(|(row, target)| row[usize::from(*target == 0)] = f32::NEG_INFINITY);
    }
    let (x, dloss) = (convert::<X>(&x), floats(rng, m, 3.0));
    let (values, smoothing) = (numbers(&x), f64::from(share));
    let unless_odd = |row: usize, near: &dyn Fn(usize) -> Near| match targets[row] {
        target if ignore == Some(target) => Near::exactly(0.0),
        target if target as usize >= n => Near { exact: f64::NAN, error: 0.0 },
        target => near(target as usize),
    };
    let losses = rows(&values, n, |row, x| {
        let near = |target: usize| {
            let ((largest, logarithm), strays) = (statistics(x), strays(x));
            let below = largest - x[target];
            let (mut exact, mut error) =
                (logarithm + (1.0 - smoothing) * below, strays + 14.0 * logarithm + 4.0 * below);
            if smoothing != 0.0 {
                let (sum, all): (f64, f64) = (x.iter().sum(), x.iter().map(|v| v.abs()).sum());
                exact += smoothing * (largest - sum / n as f64);
                // A sum as long as that of a row, a quotient, a difference and a product.
                error += smoothing * (20.0 * all / n as f64 + 5.0 * largest.abs());
            }
            Near { exact, error: U * (error + 3.0 * exact.abs()) }
        };
        vec![unless_odd(row, &near)]
    });
    let gradients = rows(&values, n, |row, x| {
        let (shares, slope) = (shares(x), f64::from(dloss[row]));
        let dx = |i: usize| {
            let near = |target: usize| {
                let expected =
                    if i == target { 1.0 - smoothing } else { 0.0 } + smoothing / n as f64;
                let exact = (shares[i].exact - expected) * slope;
                Near {
                    exact,
                    error: (shares[i].error + 4.0 * U * expected) * slope.abs()
                        + 2.0 * U * exact.abs(),
                }
            };
            unless_odd(row, &near)
        };
        (0..n).map(dx).collect()
    });
    let check = move |got: &[Data], _| {
        got[0].check_near(losses.iter().copied())?;
        got[1].check_near(gradients.iter().copied())
    };
    let reference = {
        let (targets, dloss) = (targets.clone(), dloss.clone());
        move || {
            let rows = || values.chunks_exact(n).zip(&targets);
            let losses = rows()
                .map(|(row, &target)| reference::cross_entropy(row, target, ignore, share))
                .collect();
            let dx = rows().zip(&dloss).flat_map(|((row, &target), &dloss)| {
                reference::cross_entropy_backward(row, target, ignore, share, dloss)
            });
            vec![Data::F32(losses), Data::F32(dx.collect())]
        }
    };
    let record = move |r: &mut Recorder| {
        let (x, targets, dloss) =
            (r.upload(&x, shape)?, r.upload(&targets, [m])?, r.upload(&dloss, [m])?);
        let op = tensor::cross_entropy(&x, &targets).label_smoothing(share);
        let op = ignore.into_iter().fold(op, CrossEntropy::ignore_index);
        let losses = op.forward(&mut r.encoder)?;
        let dx = op.backward(&mut r.encoder, &dloss)?;
        r.watch_all(&losses);
        r.watch_all(&dx);
        Ok(())
    };
    Case::new(format!("{shape:?} {:?} {options:?}", X::ELEMENT), record, check)
        .reference(reference)
        .of(X::ELEMENT)
}
