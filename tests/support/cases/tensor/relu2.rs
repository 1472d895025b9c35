//! `src/ops/tensor/relu2.rs`

use crate::{Case, Data, convert, floats, shapes};
use bitnet_wgpu::{Float, f16, tensor};

pub fn cases() -> Vec<Case> {
    let all = shapes("relu2").flat_map(|(mut rng, (m, _, k))| {
        let (x, dy) = (floats(&mut rng, m * k, 9.0), floats(&mut rng, m * k, 3.0));
        [case::<f32>(&x, &dy, [m, k]), case::<f16>(&x, &dy, [m, k])]
    });
    all.collect()
}

fn case<T: Float>(x: &[f32], dy: &[f32], shape: [usize; 2]) -> Case {
    let (x, dy) = (convert::<T>(x), convert::<T>(dy));
    let y: Vec<f32> = x.iter().map(|&x| tensor::relu2_cpu(x.into())).collect();
    let dx: Vec<f32> = x.iter().zip(&dy).map(|(&x, &dy)| tensor::relu2_backward_cpu(x.into(), dy.into())).collect();
    let wanted = vec![Data::floats(T::ELEMENT, &y), Data::floats(T::ELEMENT, &dx)];
    Case::exact(format!("{shape:?} {:?}", T::ELEMENT), wanted, move |r| {
        let (x, dy) = (r.upload(&x, shape)?, r.upload(&dy, shape)?);
        let y = tensor::relu2(&mut r.encoder, &x)?;
        let dx = tensor::relu2_backward(&mut r.encoder, &x, &dy)?;
        r.watch_all(&y);
        r.watch_all(&dx);
        Ok(())
    })
    .of(T::ELEMENT)
}
