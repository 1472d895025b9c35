//! `src/ops/bitnet/int4.rs`

use crate::{Case, Data, convert, rng, shapes, sums, wild_activations};
use bitnet_wgpu::{
    Out, bitnet, reference,
    tensor::{Float, f16},
};

pub fn cases() -> Vec<Case> {
    let more = [(3, 5000), (700, 1), (300, 9)]
        .map(|(rows, columns)| (rng(columns as u64), (rows, 0, columns)));
    let mut cases = Vec::new();
    for (mut rng, (rows, _, columns)) in shapes("quantize_activations_4bit").chain(more) {
        let x = wild_activations(&mut rng, rows, columns);
        cases.extend([case::<f32>(&x, rows, columns), case::<f16>(&x, rows, columns)]);
    }
    cases
}

/// Codes in words whose last has zeros at its end, scales, the numbers that they stand for, and
/// those added to something.
fn case<T: Float>(x: &[f32], rows: usize, columns: usize) -> Case {
    let x = convert::<T>(x);
    let host = reference::quantize_activations_4bit(&x, rows, columns).unwrap();
    let values = host.dequantize();
    let word = |codes: &[i8]| {
        codes.iter().rev().fold(0, |word, &code| (word << 4) | u32::from(code as u8 & 15))
    };
    let words = host.codes.chunks(columns.max(1)).flat_map(|row| row.chunks(8).map(word)).collect();
    let expected = [Data::U32(words), Data::F32(host.scales), Data::floats(T::ELEMENT, &values)];
    let base = vec![1.5; values.len()];
    let added = sums(&base, &values);
    let check = move |got: &[Data], leeway| {
        got.iter().zip(&expected).try_for_each(|(got, expected)| got.check(expected, leeway))?;
        got[3].check_near(added.iter().copied()).map_err(|e| format!("added: {e}"))
    };
    let base = convert::<T>(&base);
    let mut case = Case::new(
        format!("{rows} × {columns} {:?}", T::ELEMENT),
        move |r| {
            let (x, base) = (r.upload(&x, [rows, columns])?, r.upload(&base, [rows, columns])?);
            let xq = bitnet::ActivationQuantizer::int4().quantize(&mut r.encoder, &x)?;
            let y = xq.dequantize::<T>(&mut r.encoder)?;
            xq.dequantize_into(&mut r.encoder, Out::add(&base))?;
            r.watch_all(xq.codes());
            r.watch_all(xq.scales());
            [&y, &base].into_iter().for_each(|tensor| r.watch_all(tensor));
            Ok(())
        },
        check,
    )
    .of(T::ELEMENT);
    case.exact = true;
    case
}
