//! `src/ops/tensor/select.rs`

use crate::{Case, Data, Recorder, convert, floats, rng};
use bitnet_wgpu::{
    reference,
    tensor::{self, Float, f16},
};
use rand::RngExt;

pub fn cases() -> Vec<Case> {
    vec![case::<f32>(), case::<f16>()]
}

/// A condition for each row, a number for each column, and one for each element; then into that.
fn case<T: Float>() -> Case {
    let mut rng = rng(3);
    let condition: Vec<u32> = (0..45).map(|_| [0, 1, u32::MAX][rng.random_range(0..3)]).collect();
    let (a, b) =
        (convert::<T>(&floats(&mut rng, 33, 3.0)), convert::<T>(&floats(&mut rng, 1485, 3.0)));
    let y: Vec<f32> = (0..1485)
        .map(|i| reference::select(condition[i / 33], a[i % 33].into(), b[i].into()))
        .collect();
    let expected = vec![Data::floats(T::ELEMENT, &y); 2];
    Case::exact(format!("{:?}", T::ELEMENT), expected, move |r: &mut Recorder| {
        let (condition, a, b) =
            (r.upload(&condition, [45, 1])?, r.upload(&a, [33])?, r.upload(&b, [45, 33])?);
        let y = tensor::select(&condition, &a, &b).forward(&mut r.encoder)?;
        tensor::select(&condition, &a, &b).forward_into(&mut r.encoder, &b)?;
        r.watch_all(&y);
        r.watch_all(&b);
        Ok(())
    })
    .of(T::ELEMENT)
}
