//! `src/ops/bitnet/dequantize_int.rs`

use super::random_groups;
use crate::{Case, Data, convert, ints, rng, sums};
use bitnet_wgpu::{
    Out,
    tensor::{Float, f16},
    weights::Bits,
};

pub fn cases() -> Vec<Case> {
    let shapes = [
        (0, 5, None),
        (3, 0, None),
        (1, 1, None),
        (5, 65, None),
        (3, 300, Some(64)),
        (7, 129, Some(32)),
        (2, 100, Some(128)),
    ];
    let random =
        random_groups("dequantize_int").map(|((_, rows, columns), size)| (rows, columns, size));
    let all =
        shapes.into_iter().chain(random).flat_map(|shape| Bits::ALL.map(|bits| (shape, bits)));
    all.flat_map(|((rows, columns, size), bits)| {
        [case::<f32>(rows, columns, bits, size), case::<f16>(rows, columns, bits, size)]
    })
    .collect()
}

/// In a tensor of their own, and on top of what is there.
fn case<T: Float>(rows: usize, columns: usize, bits: Bits, size: Option<usize>) -> Case {
    let w = ints(&mut rng((rows + columns) as u64), rows, columns, bits, size);
    let numbers = w.dequantize();
    let base = vec![1.5; numbers.len()];
    let (y, added) = (Data::floats(T::ELEMENT, &numbers), sums(&base, &numbers));
    let check = move |got: &[Data], leeway| {
        got[0].check(&y, leeway)?;
        got[1].check_near(added.iter().copied()).map_err(|e| format!("added: {e}"))
    };
    let base = convert::<T>(&base);
    let record = move |r: &mut crate::Recorder| {
        let (w, z) = (w.upload(r.encoder.context())?, r.upload(&base, [rows, columns])?);
        let y = w.dequantize::<T>(&mut r.encoder)?;
        w.dequantize_into(&mut r.encoder, Out::add(&z))?;
        r.watch_all(&y);
        r.watch_all(&z);
        Ok(())
    };
    let name = format!("{rows} × {columns}, {bits:?} by {size:?} {:?}", T::ELEMENT);
    let mut case = Case::new(name, record, check).of(T::ELEMENT);
    case.exact = true;
    case
}
