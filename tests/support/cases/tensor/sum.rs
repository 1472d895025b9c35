//! `src/ops/tensor/sum.rs`

use super::reductions::{Reduced, reductions, sum_near};
use crate::{Case, Data, Near, U, convert, floats, rng, sums};
use bitnet_wgpu::{Element, Float, Out, Shape, f16, tensor};

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

/// Sum and mean have the bits of the twin, which are near the sum.
fn case<X: Float>(r: &mut Reduced) -> Case {
    let (shape, axes) = (r.shape, r.axes());
    let x = convert::<X>(&r.floats(3.0));
    let numbers: Vec<f32> = x.iter().map(|&v| v.into()).collect();
    let near = r.each(&numbers, sum_near);
    let means: Vec<Near> = r.each(&numbers, |v| {
        let (Near { exact, error }, n) = (sum_near(v), v.len() as f64);
        Near { exact: exact / n, error: error / n + U * (exact / n).abs() }
    });
    let twin = {
        let x = x.clone();
        move || {
            vec![
                tensor::sum_cpu(&x, shape, axes).unwrap(),
                tensor::mean_cpu(&x, shape, axes.keep()).unwrap(),
            ]
        }
    };
    let twin = move || twin().into_iter().map(Data::F32).collect::<Vec<_>>();
    let bits = twin();
    let check = move |got: &[Data], leeway| {
        got.iter().zip(&bits).try_for_each(|(got, bits)| got.check(bits, leeway))?;
        got[0].check_near(near.iter().copied())?;
        got[1].check_near(means.iter().copied())
    };
    let record = move |r: &mut crate::Recorder| {
        let x = r.upload(&x, shape)?;
        let y = tensor::sum(&mut r.encoder, &x, axes)?;
        r.watch_all(&y);
        // With ones in place of what is reduced.
        let y = tensor::mean(&mut r.encoder, &x, axes.keep())?;
        assert_eq!(y.shape().rank(), shape.rank());
        r.watch_all(&y);
        Ok(())
    };
    let mut case = Case::new(format!("{} {:?}", r.name(), X::ELEMENT), record, check)
        .twin(twin)
        .of(X::ELEMENT);
    case.exact = true;
    case
}

fn added(r: &mut Reduced) -> Case {
    let (shape, axes) = (r.shape, r.axes());
    let (x, base) = (r.floats(3.0), r.per_output(9.0));
    let wanted = sums(&base, &tensor::sum_cpu(&x, shape, axes).unwrap());
    Case::near(format!("{}, added", r.name()), wanted, move |r| {
        let x = r.upload(&x, shape)?;
        let y = tensor::sum(&mut r.encoder, &x, axes)?.shape();
        let y = r.upload(&base, y)?;
        tensor::sum_into(&mut r.encoder, &x, axes, Out::add(&y))?;
        r.watch_all(&y);
        Ok(())
    })
}

/// Sums over `axes` under another shape.
fn summed_to(r: &mut Reduced, to: Shape) -> Case {
    let shape = r.shape;
    let x = floats(&mut r.rng, r.elements.iter().map(Vec::len).sum(), 3.0);
    let wanted = tensor::sum_cpu(&x, shape, r.axes()).unwrap();
    Case::exact(format!("{shape} to {to}"), vec![Data::F32(wanted)], move |r| {
        let x = r.upload(&x, shape)?;
        let y = tensor::sum_to(&mut r.encoder, &x, to)?;
        r.watch_all(&y);
        Ok(())
    })
    .of(Element::F32)
}
