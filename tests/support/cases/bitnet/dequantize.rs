//! `src/ops/bitnet/dequantize.rs`

use super::{LAYOUTS, row_scales};
use crate::{Case, Data, Recorder, convert, floats, shapes, sums, ternary_with, wild_activations};
use bitnet_wgpu::{
    Out, Result, Tensor,
    bitnet::Layout,
    cpu::HostActivations,
    reference,
    tensor::{Float, f16},
    weights::{PackedTernary, Scales},
};

pub fn activations() -> Vec<Case> {
    let mut cases = Vec::new();
    for (mut rng, (tokens, _, features)) in shapes("dequantize_activations") {
        let x = wild_activations(&mut rng, tokens, features);
        let host = reference::quantize_activations(&x, tokens, features).unwrap();
        for layout in LAYOUTS {
            // Under fast math, what quantizes them has to be in Metal too.
            cases.extend(
                [
                    of_activations::<f32>(&x, &host, layout),
                    of_activations::<f16>(&x, &host, layout),
                ]
                .map(Case::as_on_apple),
            );
        }
    }
    cases
}

fn of_activations<T: Float>(x: &[f32], host: &HostActivations, layout: Layout) -> Case {
    let (x, tokens, features) = (x.to_vec(), host.tokens, host.features);
    let name = format!("{tokens} × {features} {:?}, {layout:?}", T::ELEMENT);
    case::<T>(name, host.dequantize(), move |r, z| {
        let x = r.upload(&x, [tokens, features])?;
        let xq = crate::quantize_as(&mut r.encoder, &x, layout)?;
        let y = xq.dequantize::<T>(&mut r.encoder)?;
        let z = r.upload(z, [tokens, features])?;
        xq.dequantize_into(&mut r.encoder, Out::add(&z))?;
        Ok((y, z))
    })
}

pub fn weights() -> Vec<Case> {
    let mut cases = Vec::new();
    for (mut rng, (_, n, k)) in shapes("dequantize_weights") {
        for size in [None, Some(16), Some(48)] {
            let factors = floats(&mut rng, n * size.map_or(1, |size| k.div_ceil(size)), 2.0);
            let scales = match size {
                Some(size) => Scales::Groups { size, scales: factors },
                None => row_scales(&factors),
            };
            let w = ternary_with(&mut rng, n, k, scales);
            cases.extend([of_weights::<f32>(&w, size), of_weights::<f16>(&w, size)]);
        }
    }
    cases
}

fn of_weights<T: Float>(w: &PackedTernary, size: Option<usize>) -> Case {
    let w = w.clone();
    let name = format!("{} × {} {:?}, groups of {size:?}", w.rows(), w.columns(), T::ELEMENT);
    case::<T>(name, w.dequantize(), move |r, z| {
        let z = r.upload(z, [w.rows(), w.columns()])?;
        let w = w.upload(r.encoder.context())?;
        let y = w.dequantize::<T>(&mut r.encoder)?;
        w.dequantize_into(&mut r.encoder, Out::add(&z))?;
        Ok((y, z))
    })
}

/// `record` makes the numbers in a tensor of their own, and adds them to what it is given.
fn case<T: Float>(
    name: String,
    numbers: Vec<f32>,
    record: impl Fn(&mut Recorder, &[T]) -> Result<(Tensor<T>, Tensor<T>)> + Send + Sync + 'static,
) -> Case {
    let base = vec![1.5; numbers.len()];
    let (y, z) = (Data::floats(T::ELEMENT, &numbers), sums(&base, &numbers));
    let check = move |got: &[Data], leeway| {
        got[0].check(&y, leeway)?;
        got[1].check_near(z.iter().copied()).map_err(|e| format!("added: {e}"))
    };
    let base = convert::<T>(&base);
    let record = move |r: &mut Recorder| {
        let (y, z) = record(r, &base)?;
        r.watch_all(&y);
        r.watch_all(&z);
        Ok(())
    };
    let mut case = Case::new(name, record, check).of(T::ELEMENT);
    case.exact = true;
    case
}
