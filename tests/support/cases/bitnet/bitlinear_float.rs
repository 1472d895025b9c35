//! `src/ops/bitnet/bitlinear_float.rs`

use super::decoded::{Operands, Product};
use crate::{
    Case, Data, Near, Recorder,
    cases::tensor::{activated, epilogue::finishing},
    convert, floats, rng, ternary_with,
};
use bitnet_wgpu::bitnet::{ActivationType, BitLinear};
use bitnet_wgpu::{
    Out,
    tensor::{Activation, Float, f16},
    weights::Scales,
};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (m, rows, columns, size) in [
        (1, 1, 1, None),
        (0, 3, 5, None),
        (5, 70, 65, None),
        (3, 20, 300, Some(16)),
        (66, 33, 260, Some(128)),
        (2, 129, 64, Some(64)),
        (8, 9, 1100, Some(128)),
        (1, 21, 1040, Some(48)),
    ] {
        cases.extend([
            case::<f32, f32>(m, rows, columns, size),
            case::<f16, f32>(m, rows, columns, size),
        ]);
    }
    // Each kernel to f16: few tokens of any length and of quads, one of whole words, more
    // tokens, and as many as make large tiles.
    for (m, rows, columns, size) in
        [(4, 20, 50, Some(32)), (6, 21, 1028, Some(128)), (1, 35, 1600, None), (9, 20, 50, None)]
    {
        cases.extend([
            case::<f16, f16>(m, rows, columns, size),
            case::<f32, f16>(m, rows, columns, size),
        ]);
    }
    let (m, rows, columns, size) = (16_257, 68, 20, Some(16));
    cases.extend([
        case::<f32, f32>(m, rows, columns, size),
        case::<f16, f32>(m, rows, columns, size),
    ]);
    cases.extend([
        case::<f32, f16>(m, rows, columns, size),
        case::<f16, f16>(m, rows, columns, size),
    ]);
    cases
}

/// Every kernel that finishes products by every type of float, with every activation and a bias or
/// none.
pub fn finished() -> Vec<Case> {
    use Activation::*;
    let mut ways = [None, Some(Relu), Some(Relu2), Some(Silu), Some(Gelu)].into_iter().cycle();
    let mut cases = Vec::new();
    for (i, shape) in [(4, 20, 50), (7, 21, 1028), (1, 19, 560), (9, 70, 50), (16_257, 68, 16)]
        .into_iter()
        .enumerate()
    {
        let mut way = || (ways.next().expect("it is a cycle"), i % 2 == 0);
        cases.extend([finish::<f32, f32>(shape, way()), finish::<f16, f32>(shape, way())]);
        cases.extend([finish::<f32, f16>(shape, way()), finish::<f16, f16>(shape, way())]);
    }
    cases
}

/// Into a tensor, and on top of one. Where there is no activation, there is a bias.
fn finish<X: Float, Y: Float>(
    (m, rows, columns): (usize, usize, usize),
    (activation, biased): (Option<Activation>, bool),
) -> Case {
    let biased = biased || activation.is_none();
    let mut rng = rng((rows * columns) as u64);
    let scales =
        Scales::Groups { size: 32, scales: floats(&mut rng, rows * columns.div_ceil(32), 1.0) };
    let w = ternary_with(&mut rng, rows, columns, scales);
    // A weight is a product, and with what it meets another.
    let product = Product { shape: [m, rows, columns], dense: w.dequantize(), roundings: 2.0 };
    let [x, bias] = [m * columns, rows].map(|length| convert::<X>(&floats(&mut rng, length, 1.0)));
    let base = convert::<Y>(&floats(&mut rng, m * rows, 9.0));
    let near = |i: usize| {
        let sum = product.forward(&x, i);
        activated(if biased { sum.on_top_of(bias[i % rows]) } else { sum }, activation)
    };
    let y: Vec<Near> = (0..m * rows).map(near).collect();
    let added: Vec<Near> = y.iter().zip(&base).map(|(near, &base)| near.on_top_of(base)).collect();
    let check = move |got: &[Data], _| {
        got[0].check_near(y.iter().copied()).and_then(|()| got[1].check_near(added.iter().copied()))
    };
    let record = move |r: &mut Recorder| {
        let w = w.upload(r.encoder.context())?;
        let (x, bias) = (r.upload(&x, [m, columns])?, r.upload(&bias, [rows])?);
        let (y, added) = (r.output::<Y>([m, rows])?, r.upload(&base, [m, rows])?);
        let layer = BitLinear::new(&w).activation_type(ActivationType::Float);
        let layer = finishing(layer, (activation, biased), &bias);
        layer.forward_into(&mut r.encoder, &x, &y)?;
        layer.forward_into(&mut r.encoder, &x, Out::add(&added))?;
        [&y, &added].into_iter().for_each(|tensor| r.watch_all(tensor));
        Ok(())
    };
    let name = format!(
        "{m} × {rows} × {columns}, {activation:?}, bias: {biased}, {:?} to {:?}",
        X::ELEMENT,
        Y::ELEMENT
    );
    Case::new(name, record, check).of(X::ELEMENT).of(Y::ELEMENT)
}

/// Forward, on top of something, and the gradient for the input.
fn case<X: Float, Y: Float>(m: usize, rows: usize, columns: usize, size: Option<usize>) -> Case {
    let mut rng = rng((rows + columns) as u64);
    let scales = match size {
        Some(size) => {
            Scales::Groups { size, scales: floats(&mut rng, rows * columns.div_ceil(size), 1.0) }
        }
        None => Scales::Segments((0..rows).map(|row| (1, 0.5 + row as f32 / 100.0)).collect()),
    };
    let w = ternary_with(&mut rng, rows, columns, scales);
    let product = Product { shape: [m, rows, columns], dense: w.dequantize(), roundings: 2.0 };
    let name =
        format!("{m} × {rows} × {columns} by {size:?}, {:?} to {:?}", X::ELEMENT, Y::ELEMENT);
    product.case(name, &mut rng, move |r, on: &Operands<X, Y>| {
        let w = w.upload(r.encoder.context())?;
        BitLinear::new(&w).activation_type(ActivationType::Float).forward_into(
            &mut r.encoder,
            &on.x,
            &on.y,
        )?;
        BitLinear::new(&w).backward_into(&mut r.encoder, &on.dy, &on.dx)?;
        BitLinear::new(&w).activation_type(ActivationType::Float).forward_into(
            &mut r.encoder,
            &on.x,
            Out::add(&on.base),
        )
    })
}
