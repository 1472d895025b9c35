//! `src/ops/tensor/sum.rs`

use super::reductions::{Reduced, reductions, sum_near};
use crate::{Case, Data, Near, U, convert, floats, rng, sums};
use bitnet_wgpu::{
    Element, Out, Shape, reference,
    tensor::{self, Float, f16},
};

pub fn cases() -> Vec<Case> {
    let reduced = || {
        reductions()
            .into_iter()
            .flat_map(|mut r| [case::<f32>(&mut r), case::<f16>(&mut r), added(&mut r)])
    };
    // Three passes.
    let long = || case::<f32>(&mut Reduced::new(rng(30), &[2_100_007], &[0])).device_only();
    let software = reduced().chain([long()]).map(Case::as_on_software);
    let mut all: Vec<_> = software.chain(reduced().chain([long()]).map(Case::as_on_gpus)).collect();
    all.extend(reductions().iter_mut().flat_map(|r| [gradient::<f32>(r), gradient::<f16>(r)]));
    let to: [(&[usize], &[usize]); 5] = [
        (&[2, 3, 5], &[0, 1]),
        (&[4, 3], &[]),
        (&[4, 3], &[1]),
        (&[2, 3, 4, 5], &[0, 2]),
        (&[6], &[0]),
    ];
    let shapes: [Shape; 5] =
        [[5].into(), [4, 3].into(), [4, 1].into(), [3, 1, 5].into(), [].into()];
    all.extend(
        to.into_iter()
            .zip(shapes)
            .map(|((dims, axes), shape)| summed_to(&mut Reduced::new(rng(31), dims, axes), shape)),
    );
    all
}

/// Sum and mean have the bits of the CPU reference, which are near the sum.
fn case<X: Float>(r: &mut Reduced) -> Case {
    let (shape, axes) = (r.shape, r.axes());
    let x = convert::<X>(&r.floats(3.0));
    let numbers: Vec<f32> = x.iter().map(|&v| v.into()).collect();
    let near = r.each(&numbers, sum_near);
    let means: Vec<Near> = r.each(&numbers, |v| {
        let (Near { exact, error }, n) = (sum_near(v), v.len() as f64);
        Near { exact: exact / n, error: error / n + U * (exact / n).abs() }
    });
    let reference = {
        let x = x.clone();
        move || {
            vec![
                reference::sum(&x, shape, axes).unwrap(),
                reference::mean(&x, shape, axes).unwrap(),
            ]
        }
    };
    let reference = move || reference().into_iter().map(Data::F32).collect::<Vec<_>>();
    let bits = reference();
    let check = move |got: &[Data], leeway| {
        got.iter().zip(&bits).try_for_each(|(got, bits)| got.check(bits, leeway))?;
        got[0].check_near(near.iter().copied())?;
        got[1].check_near(means.iter().copied())
    };
    let record = move |r: &mut crate::Recorder| {
        let x = r.upload(&x, shape)?;
        let y = tensor::sum(&x, axes).forward(&mut r.encoder)?;
        r.watch_all(&y);
        // With ones in place of what is reduced.
        let y = tensor::mean(&x, axes).keep_axes().forward(&mut r.encoder)?;
        assert_eq!(y.shape().rank(), shape.rank());
        r.watch_all(&y);
        Ok(())
    };
    let mut case = Case::new(format!("{} {:?}", r.name(), X::ELEMENT), record, check)
        .reference(reference)
        .of(X::ELEMENT);
    case.exact = true;
    case
}

fn added(r: &mut Reduced) -> Case {
    let (shape, axes) = (r.shape, r.axes());
    let (x, base) = (r.floats(3.0), r.per_output(9.0));
    let expected = sums(&base, &reference::sum(&x, shape, axes).unwrap());
    Case::near(format!("{}, added", r.name()), expected, move |r| {
        let x = r.upload(&x, shape)?;
        let y = tensor::sum(&x, axes).forward(&mut r.encoder)?.shape();
        let y = r.upload(&base, y)?;
        tensor::sum(&x, axes).forward_into(&mut r.encoder, Out::add(&y))?;
        r.watch_all(&y);
        Ok(())
    })
}

/// Sums over `axes` under another shape.
/// dy for every element of an output, and its share of a mean.
fn gradient<X: Float>(r: &mut Reduced) -> Case {
    let (shape, axes, dy) = (r.shape, r.axes(), r.per_output(3.0));
    let x = convert::<X>(&r.floats(3.0));
    let dx = r.spread(0.0, |_, output| dy[output]);
    let shares = r.spread(Near::exactly(0.0), |_, output| {
        let exact = f64::from(dy[output]) / r.elements[output].len() as f64;
        Near { exact, error: 3.0 * U * exact.abs() }
    });
    let check = move |got: &[Data], leeway| {
        got[0].check(&Data::floats(X::ELEMENT, &dx), leeway)?;
        got[1].check_near(shares.iter().copied())
    };
    let record = move |r: &mut crate::Recorder| {
        let x = r.upload(&x, shape)?;
        let (sum, mean) = (tensor::sum(&x, axes), tensor::mean(&x, axes).keep_axes());
        let of = sum.forward(&mut r.encoder)?.shape();
        let dy = r.upload(&dy, of)?;
        let dx = sum.backward(&mut r.encoder, &dy)?;
        r.watch_all(&dx);
        let dx = mean.backward(&mut r.encoder, &dy)?;
        r.watch_all(&dx);
        Ok(())
    };
    Case::new(format!("{} {:?}, backward", r.name(), X::ELEMENT), record, check).of(X::ELEMENT)
}

fn summed_to(r: &mut Reduced, to: Shape) -> Case {
    let shape = r.shape;
    let x = floats(&mut r.rng, r.elements.iter().map(Vec::len).sum(), 3.0);
    let expected = reference::sum(&x, shape, r.axes()).unwrap();
    let dy = r.per_output(3.0);
    let dx = r.spread(0.0, |_, output| dy[output]);
    let expected = vec![Data::F32(expected), Data::F32(dx)];
    Case::exact(format!("{shape} to {to}"), expected, move |r| {
        let (x, dy) = (r.upload(&x, shape)?, r.upload(&dy, to)?);
        let y = tensor::sum_to(&x, to).forward(&mut r.encoder)?;
        let dx = tensor::sum_to(&x, to).backward(&mut r.encoder, &dy)?;
        r.watch_all(&y);
        r.watch_all(&dx);
        Ok(())
    })
    .of(Element::F32)
}
