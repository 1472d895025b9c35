//! `src/ops/tensor/variance.rs`

use super::reductions::{Reduced, reductions, sum_near};
use crate::{Case, Data, Near, U, convert};
use bitnet_wgpu::{
    reference,
    tensor::{self, Float, f16},
};

pub fn cases() -> Vec<Case> {
    reductions()
        .iter_mut()
        .flat_map(|r| [case::<f32>(r, 1, 0.0), case::<f32>(r, 0, 1000.0), case::<f16>(r, 1, 0.0)])
        .collect()
}

/// Of numbers around `center`.
fn case<X: Float>(r: &mut Reduced, correction: usize, center: f32) -> Case {
    let (shape, axes) = (r.shape, r.axes());
    let x = convert::<X>(&r.floats(3.0).iter().map(|v| v + center).collect::<Vec<_>>());
    let dy = r.per_output(3.0);
    let numbers: Vec<f32> = x.iter().map(|&v| v.into()).collect();
    // The mean is off by the error of a sum and a rounding, and n times the square of that is added
    // to the squares; a square has three roundings.
    let means = r.each(&numbers, |v| {
        let (Near { exact, error }, n) = (sum_near(v), v.len() as f64);
        Near { exact: exact / n, error: error / n + U * (exact / n).abs() }
    });
    let divisor = move |n: usize| n.saturating_sub(correction) as f64;
    let expected = r.each(&numbers, |v| {
        let (Near { exact: sum, error }, n) = (sum_near(v), v.len() as f64);
        let (mean, strays) = (sum / n, error / n + U * (sum / n).abs());
        let squares = sum_near(&v.iter().map(|v| (v - mean).powi(2)).collect::<Vec<_>>());
        let exact = squares.exact / divisor(v.len());
        let all = squares.error + U * 4.0 * squares.exact + 1.01 * n * strays * strays;
        Near { exact, error: all / divisor(v.len()) }
    });
    let gradients = r.spread(Near::exactly(0.0), |at, output| {
        let factor = 2.0 / divisor(r.elements[output].len()) * f64::from(dy[output]);
        let exact = (f64::from(numbers[at]) - means[output].exact) * factor;
        Near { exact, error: 1.01 * means[output].error * factor.abs() + U * 5.0 * exact.abs() }
    });
    // Where there are no degrees of freedom, there is no number, or none that is finite.
    let free = move |near: &Near| near.exact.is_finite();
    let check = move |got: &[Data], _| {
        let finite = |got: &Data, expected: &[Near]| {
            let (got, expected): (Vec<f32>, Vec<Near>) =
                got.to_f32().into_iter().zip(expected).filter(|(_, near)| free(near)).unzip();
            (got, expected)
        };
        if got[0].to_f32().iter().zip(&expected).any(|(got, near)| got.is_finite() != free(near)) {
            return Err(format!("{:?}, not {expected:?}", got[0]));
        }
        for (got, expected) in got.iter().zip([&expected, &gradients]) {
            let element = got.element();
            let (got, expected) = finite(got, expected);
            Data::floats(element, &got).check_near(expected)?;
        }
        Ok(())
    };
    let reference = {
        let (x, dy) = (x.clone(), dy.clone());
        let all = move || {
            [
                reference::variance(&x, shape, axes, correction),
                reference::variance_backward(&x, shape, axes, correction, &dy),
            ]
        };
        move || all().map(|y| Data::F32(y.unwrap())).to_vec()
    };
    let record = move |r: &mut crate::Recorder| {
        let x = r.upload(&x, shape)?;
        let y = tensor::variance(&x, axes).correction(correction).forward(&mut r.encoder)?;
        let dy = r.upload(&dy, y.shape())?;
        let dx = tensor::variance(&x, axes).correction(correction).backward(&mut r.encoder, &dy)?;
        r.watch_all(&y);
        r.watch_all(&dx);
        Ok(())
    };
    Case::new(format!("{} {:?}, around {center}", r.name(), X::ELEMENT), record, check)
        .reference(reference)
        .of(X::ELEMENT)
}
