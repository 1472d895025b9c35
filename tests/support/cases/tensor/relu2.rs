//! `src/ops/tensor/relu2.rs`

use super::in_both_forms;
use crate::{Case, Data, convert, floats, shapes};
use bitnet_wgpu::{Element, Float, f16, tensor};

pub fn cases() -> Vec<Case> {
    let all = shapes("relu2").flat_map(|(mut rng, (m, _, k))| {
        let (x, dy) = (floats(&mut rng, m * k, 9.0), floats(&mut rng, m * k, 3.0));
        [case::<f32, f16>(&x, &dy, [m, k]), case::<f16, f32>(&x, &dy, [m, k])]
    });
    all.collect()
}

fn case<X: Float, Y: Float>(x: &[f32], dy: &[f32], shape: [usize; 2]) -> Case {
    let (x, dy) = (convert::<X>(x), convert::<X>(dy));
    let y: Vec<f32> = x.iter().map(|&x| tensor::relu2_cpu(x.into())).collect();
    let dx: Vec<f32> = x.iter().zip(&dy).map(|(&x, &dy)| tensor::relu2_backward_cpu(x.into(), dy.into())).collect();
    let wanted = [&y, &dx].into_iter().flat_map(|wanted| [X::ELEMENT, Y::ELEMENT].map(|element| Data::floats(element, wanted)));
    Case::exact(format!("{shape:?} {:?} to {:?}", X::ELEMENT, Y::ELEMENT), wanted.collect(), move |r| {
        let (x, dy) = (r.upload(&x, shape)?, r.upload(&dy, shape)?);
        in_both_forms::<X, Y>(r, |e| tensor::relu2(e, &x), |e, y| tensor::relu2_into(e, &x, y))?;
        in_both_forms::<X, Y>(r, |e| tensor::relu2_backward(e, &x, &dy), |e, dx| tensor::relu2_backward_into(e, &x, &dy, dx))
    })
    .of(Element::F16)
}
