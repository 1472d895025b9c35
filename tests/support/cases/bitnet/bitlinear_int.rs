//! `src/ops/bitnet/bitlinear_int.rs`

use super::{
    decoded::{Operands, Product},
    random_groups,
};
use crate::{
    Case, Data, Near, Recorder,
    cases::tensor::{
        activated,
        epilogue::{Way, finishing, ways},
    },
    convert, floats, ints, rng,
};
use bitnet_wgpu::bitnet::BitLinear;
use bitnet_wgpu::{
    Out,
    tensor::{Float, f16},
    weights::Bits,
};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes = [
        (1, 1, 1, None),
        (0, 3, 5, None),
        (2, 3, 0, None),
        (5, 70, 65, None),
        (3, 20, 300, Some(32)),
        (66, 33, 260, Some(128)),
    ];
    for (bits, (m, rows, columns, size)) in
        Bits::ALL.into_iter().flat_map(|bits| shapes.map(|shape| (bits, shape)))
    {
        cases.push(case::<f32, f32>(m, rows, columns, (bits, size)));
    }
    for (((m, rows, columns), size), bits) in
        random_groups("bitlinear_int").zip(Bits::ALL.into_iter().cycle())
    {
        cases.push(case::<f32, f32>(m, rows, columns, (bits, size)));
    }
    for (bits, (m, rows, columns, size)) in
        Bits::ALL.into_iter().zip([(4, 20, 50, Some(32)), (3, 65, 129, None)].into_iter().cycle())
    {
        let how = (bits, size);
        cases.extend([
            case::<f16, f16>(m, rows, columns, how),
            case::<f32, f16>(m, rows, columns, how),
            case::<f16, f32>(m, rows, columns, how),
        ]);
    }
    cases
}

/// With an into every type from every type.
pub fn finished() -> Vec<Case> {
    let shapes = [(2, 3, 0), (5, 70, 65), (3, 20, 300), (66, 33, 260)];
    let mut ways = ways();
    let mut way = || ways.next().expect("it has no end");
    let all = shapes.into_iter().zip(Bits::ALL.into_iter().cycle());
    all.flat_map(|(shape, bits)| {
        let of_f32 =
            [finish::<f32, f32>(shape, bits, way()), finish::<f32, f16>(shape, bits, way())];
        of_f32
            .into_iter()
            .chain([finish::<f16, f32>(shape, bits, way()), finish::<f16, f16>(shape, bits, way())])
    })
    .collect()
}

fn finish<X: Float, Y: Float>(
    (m, rows, columns): (usize, usize, usize),
    bits: Bits,
    way: Way,
) -> Case {
    let mut rng = rng((rows + columns) as u64);
    let w = ints(&mut rng, rows, columns, bits, Some(32));
    let product = Product { shape: [m, rows, columns], dense: w.dequantize(), roundings: 1.0 };
    let [x, bias] = [m * columns, rows].map(|length| convert::<X>(&floats(&mut rng, length, 1.0)));
    let base = convert::<Y>(&floats(&mut rng, m * rows, 9.0));
    let near = |i: usize| {
        let sum = product.forward(&x, i);
        activated(if way.1 { sum.on_top_of(bias[i % rows]) } else { sum }, way.0)
    };
    let y: Vec<Near> = (0..m * rows).map(near).collect();
    let added: Vec<Near> = y.iter().zip(&base).map(|(near, &base)| near.on_top_of(base)).collect();
    let check = move |got: &[Data], _| {
        got[0].check_near(y.iter().copied()).and_then(|()| got[1].check_near(added.iter().copied()))
    };
    let record = move |r: &mut Recorder| {
        let (w, x, bias) =
            (w.upload(r.encoder.context())?, r.upload(&x, [m, columns])?, r.upload(&bias, [rows])?);
        let (y, added) = (r.output::<Y>([m, rows])?, r.upload(&base, [m, rows])?);
        let layer = finishing(BitLinear::new(&w), way, &bias);
        layer.forward_into(&mut r.encoder, &x, &y)?;
        layer.forward_into(&mut r.encoder, &x, Out::add(&added))?;
        [&y, &added].into_iter().for_each(|tensor| r.watch_all(tensor));
        Ok(())
    };
    let name = format!(
        "{m} × {rows} × {columns}, {bits:?}, {way:?}, {:?} to {:?}",
        X::ELEMENT,
        Y::ELEMENT
    );
    Case::new(name, record, check).of(X::ELEMENT).of(Y::ELEMENT)
}

/// Forward, on top of something, and the gradient for the input.
fn case<X: Float, Y: Float>(
    m: usize,
    rows: usize,
    columns: usize,
    (bits, size): (Bits, Option<usize>),
) -> Case {
    let mut rng = rng((rows + columns) as u64);
    let w = ints(&mut rng, rows, columns, bits, size);
    let product = Product { shape: [m, rows, columns], dense: w.dequantize(), roundings: 1.0 };
    let name = format!(
        "{m} × {rows} × {columns}, {bits:?} by {size:?}, {:?} to {:?}",
        X::ELEMENT,
        Y::ELEMENT
    );
    product.case(name, &mut rng, move |r, on: &Operands<X, Y>| {
        let w = w.upload(r.encoder.context())?;
        BitLinear::new(&w).forward_into(&mut r.encoder, &on.x, &on.y)?;
        BitLinear::new(&w).backward_into(&mut r.encoder, &on.dy, &on.dx)?;
        BitLinear::new(&w).forward_into(&mut r.encoder, &on.x, Out::add(&on.base))
    })
}
