//! `src/ops/tensor/dropout.rs`

use crate::{Case, Data, Recorder, convert, floats, rng};
use bitnet_wgpu::{Float, f16, tensor};

pub fn cases() -> Vec<Case> {
    vec![case::<f32>(301, 0.3, 7), case::<f16>(301, 0.3, 7), case::<f32>(64, 0.0, 1), case::<f32>(1000, 0.9, u64::MAX - 3)]
}

/// The masks are those of the twin: equal bits.
fn case<T: Float>(n: usize, rate: f32, seed: u64) -> Case {
    let mut rng = rng(n as u64);
    let (x, dy) = (convert::<T>(&floats(&mut rng, n, 3.0)), convert::<T>(&floats(&mut rng, n, 3.0)));
    let numbers = |values: &[T]| values.iter().map(|&v| v.into()).collect::<Vec<f32>>();
    let relu: Vec<f32> = numbers(&x).iter().map(|x| x.max(0.0)).collect();
    let at_positive: Vec<f32> = numbers(&dy).iter().zip(&relu).map(|(dy, x)| if *x > 0.0 { *dy } else { 0.0 }).collect();
    let wanted = [numbers(&x), relu, at_positive].map(|x| Data::floats(T::ELEMENT, &tensor::dropout_cpu(&x, rate, seed).unwrap()));
    Case::exact(format!("{n} at {rate} by {seed} {:?}", T::ELEMENT), wanted.into(), move |r: &mut Recorder| {
        let (x, dy) = (r.upload(&x, [n])?, r.upload(&dy, [n])?);
        let dropped = tensor::dropout(&mut r.encoder, &x, rate, seed)?;
        let fused = tensor::relu_dropout(&mut r.encoder, &x, rate, seed)?;
        let dx = tensor::relu_dropout_backward(&mut r.encoder, &x, &dy, rate, seed)?;
        [&dropped, &fused, &dx].into_iter().for_each(|tensor| r.watch_all(tensor));
        Ok(())
    })
    .of(T::ELEMENT)
}
