//! `src/ops/tensor/norm.rs`

use super::reductions::{Reduced, reductions, sum_near};
use crate::{Case, Data, Near, U, convert};
use bitnet_wgpu::{
    reference,
    tensor::{self, Float, f16},
};

pub fn cases() -> Vec<Case> {
    reductions().iter_mut().flat_map(|r| [case::<f32>(r), case::<f16>(r)]).collect()
}

/// Norms, and the gradient at given norms. A device's root is off by up to 9 U (2 for a reciprocal
/// root, 2.5 for a quotient, in units of two U).
fn case<X: Float>(r: &mut Reduced) -> Case {
    let (shape, axes) = (r.shape, r.axes());
    let (x, dy) = (convert::<X>(&r.floats(3.0)), r.per_output(3.0));
    let numbers: Vec<f32> = x.iter().map(|&v| v.into()).collect();
    let expected = r.each(&numbers, |v| {
        let squares = sum_near(&v.iter().map(|v| v * v).collect::<Vec<_>>());
        let exact = squares.exact.sqrt();
        // A root has half the relative error of what it is of, of which each square has one
        // rounding.
        Near {
            exact,
            error: if exact == 0.0 { 0.0 } else { squares.error / exact / 2.0 + U * 10.0 * exact },
        }
    });
    // One of them is nothing, as for zeros.
    let mut y = reference::norm(&x, shape, axes).unwrap();
    y.iter_mut().skip(2).take(1).for_each(|y| *y = 0.0);
    let gradients = r.spread(Near::exactly(0.0), |at, output| {
        let [x, y, dy] = [numbers[at], y[output], dy[output]].map(f64::from);
        let exact = if y == 0.0 { 0.0 } else { x / y * dy };
        Near { exact, error: U * 7.0 * exact.abs() }
    });
    let check = move |got: &[Data], _| {
        got[0].check_near(expected.iter().copied())?;
        got[1].check_near(gradients.iter().copied())
    };
    let reference = {
        let (x, y, dy) = (x.clone(), y.clone(), dy.clone());
        let all = move || {
            [reference::norm(&x, shape, axes), reference::norm_backward(&x, shape, axes, &y, &dy)]
        };
        move || all().map(|y| Data::F32(y.unwrap())).to_vec()
    };
    let record = move |r: &mut crate::Recorder| {
        let x = r.upload(&x, shape)?;
        let norms = tensor::norm(&x, axes).forward(&mut r.encoder)?;
        let (y, dy) = (r.upload(&y, norms.shape())?, r.upload(&dy, norms.shape())?);
        let dx = tensor::norm(&x, axes).backward(&mut r.encoder, &y, &dy)?;
        r.watch_all(&norms);
        r.watch_all(&dx);
        Ok(())
    };
    Case::new(format!("{} {:?}", r.name(), X::ELEMENT), record, check)
        .reference(reference)
        .of(X::ELEMENT)
}
