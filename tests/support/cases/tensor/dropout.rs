//! `src/ops/tensor/dropout.rs`

use crate::{Case, Data, Recorder, convert, f16_floats, floats, rng, sums};
use bitnet_wgpu::{
    Out, reference,
    tensor::{self, Float, f16},
};

pub fn cases() -> Vec<Case> {
    vec![
        case::<f32>(301, 0.3, 7),
        case::<f16>(301, 0.3, 7),
        case::<f32>(64, 0.0, 1),
        case::<f32>(1000, 0.9, u64::MAX - 3),
    ]
}

/// The masks are those of the CPU reference: equal bits; and what comes of it on top of something.
fn case<T: Float>(n: usize, rate: f32, seed: u64) -> Case {
    let mut rng = rng(n as u64);
    let mut given = floats(&mut rng, n, 3.0);
    given.iter_mut().step_by(5).for_each(|v| *v = -0.0);
    let (x, dy) = (convert::<T>(&given), convert::<T>(&floats(&mut rng, n, 3.0)));
    let numbers = |values: &[T]| values.iter().map(|&v| v.into()).collect::<Vec<f32>>();
    let relu: Vec<f32> = numbers(&x).iter().map(|&x| if x > 0.0 { x } else { 0.0 }).collect();
    let at_positive: Vec<f32> =
        numbers(&dy).iter().zip(&relu).map(|(dy, x)| if *x > 0.0 { *dy } else { 0.0 }).collect();
    let made =
        [numbers(&x), relu, at_positive].map(|x| reference::dropout(&x, rate, seed).unwrap());
    let base = f16_floats(&mut rng, n, 9.0);
    let added = made.each_ref().map(|made| sums(&base, made));
    let expected = made.map(|made| Data::floats(T::ELEMENT, &made));
    let check = move |got: &[Data], leeway| {
        expected.iter().zip(got).try_for_each(|(expected, got)| got.check(expected, leeway))?;
        added.iter().zip(&got[3..]).try_for_each(|(added, got)| {
            got.check_near(added.iter().copied()).map_err(|e| format!("added: {e}"))
        })
    };
    let base = convert::<T>(&base);
    let record = move |r: &mut Recorder| {
        let (x, dy) = (r.upload(&x, [n])?, r.upload(&dy, [n])?);
        let dropped = tensor::dropout(&x, rate, seed).forward(&mut r.encoder)?;
        let fused = tensor::dropout(&x, rate, seed).relu().forward(&mut r.encoder)?;
        let dx = tensor::dropout(&x, rate, seed).relu().backward(&mut r.encoder, &dy)?;
        let [on_dropped, on_fused, on_dx] =
            [r.upload(&base, [n])?, r.upload(&base, [n])?, r.upload(&base, [n])?];
        tensor::dropout(&x, rate, seed).forward_into(&mut r.encoder, Out::add(&on_dropped))?;
        tensor::dropout(&x, rate, seed).relu().forward_into(&mut r.encoder, Out::add(&on_fused))?;
        tensor::dropout(&x, rate, seed).relu().backward_into(
            &mut r.encoder,
            &dy,
            Out::add(&on_dx),
        )?;
        [&dropped, &fused, &dx, &on_dropped, &on_fused, &on_dx]
            .into_iter()
            .for_each(|tensor| r.watch_all(tensor));
        Ok(())
    };
    let mut case = Case::new(format!("{n} at {rate} by {seed} {:?}", T::ELEMENT), record, check)
        .of(T::ELEMENT);
    case.exact = true;
    case
}
