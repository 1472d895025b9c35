//! `src/ops/bitnet/hadamard.rs`

use crate::{Case, Data, Near, Recorder, U, convert, floats, rng};
use bitnet_wgpu::{
    Out, bitnet, reference,
    tensor::{Float, f16},
};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // Every block; rows of several, and tensors that end within a workgroup.
    for (i, (rows, columns)) in [
        (3, 1),
        (1, 2),
        (5, 12),
        (2, 8),
        (7, 48),
        (3, 32),
        (9, 64),
        (3, 384),
        (1, 256),
        (5, 512),
        (2, 1024),
        (1, 3072),
    ]
    .into_iter()
    .chain([(0, 4), (33, 32), (1, 4096)])
    .enumerate()
    {
        let block = if i == 14 { 128 } else { 1 << (columns as u32).trailing_zeros() };
        cases.extend([
            transforms::<f32>(rows, columns, block),
            transforms::<f16>(rows, columns, block),
            adding::<f32>(rows, columns, block),
        ]);
    }
    cases.push(adding::<f16>(3, 64, 16));
    cases
}

fn reference(x: &[f32], block: usize) -> Vec<f32> {
    let mut y = x.to_vec();
    reference::hadamard(&mut y, block).unwrap();
    y
}

/// To another tensor, and in place there.
fn transforms<T: Float>(rows: usize, columns: usize, block: usize) -> Case {
    let x = convert::<T>(&floats(&mut rng((rows + columns) as u64), rows * columns, 3.0));
    let numbers: Vec<f32> = x.iter().map(|&v| v.into()).collect();
    let once = Data::floats(T::ELEMENT, &reference(&numbers, block));
    // Halves in place begin with the numbers that are there.
    let expected = vec![once.clone(), once];
    Case::exact(
        format!("{rows} × {columns} by {block}, {:?}", T::ELEMENT),
        expected,
        move |r: &mut Recorder| {
            let (x, y, own) = (
                r.upload(&x, [rows, columns])?,
                r.output::<T>([rows, columns])?,
                r.upload(&x, [rows, columns])?,
            );
            bitnet::hadamard(&x, block).forward_into(&mut r.encoder, &y)?;
            bitnet::hadamard(&own, block).forward_into(&mut r.encoder, &own)?;
            [&y, &own].into_iter().for_each(|tensor| r.watch_all(tensor));
            Ok(())
        },
    )
    .of(T::ELEMENT)
}

/// On top of another tensor, and of its input.
fn adding<T: Float>(rows: usize, columns: usize, block: usize) -> Case {
    let mut rng = rng((rows * columns) as u64);
    let (x, base) = (floats(&mut rng, rows * columns, 3.0), floats(&mut rng, rows * columns, 9.0));
    let (x, base) = (convert::<T>(&x), convert::<T>(&base));
    let numbers: Vec<f32> = x.iter().map(|&v| v.into()).collect();
    let made: Vec<Near> = near(&numbers, block);
    let on = |base: &[T]| -> Vec<Near> {
        made.iter().zip(base).map(|(near, &base)| near.on_top_of(base)).collect()
    };
    let (added, own) = (on(&base), on(&x));
    let check = move |got: &[Data], _| {
        got[0]
            .check_near(added.iter().copied())
            .and_then(|()| got[1].check_near(own.iter().copied()))
    };
    let record = move |r: &mut Recorder| {
        let (own, y) = (r.upload(&x, [rows, columns])?, r.upload(&base, [rows, columns])?);
        bitnet::hadamard(&own, block).forward_into(&mut r.encoder, Out::add(&y))?;
        bitnet::hadamard(&own, block).forward_into(&mut r.encoder, Out::add(&own))?;
        [&y, &own].into_iter().for_each(|tensor| r.watch_all(tensor));
        Ok(())
    };
    Case::new(format!("{rows} × {columns} by {block}, added, {:?}", T::ELEMENT), record, check)
        .of(T::ELEMENT)
}

/// By the definition, an element at a time: a rounding for each step, one for the factor and one
/// for its product.
fn near(x: &[f32], block: usize) -> Vec<Near> {
    let element = |at: usize| {
        let (first, i) = (at / block * block, at % block);
        let term = |j: usize| {
            f64::from(x[first + j])
                * if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 }
        };
        let (exact, sizes) =
            (0..block).map(term).fold((0.0, 0.0), |(sum, sizes), v| (sum + v, sizes + v.abs()));
        let root = (block as f64).sqrt();
        Near { exact: exact / root, error: U * f64::from(block.ilog2() + 2) * sizes / root }
    };
    (0..x.len()).map(element).collect()
}
