//! `src/ops/transformer/rotate.rs`

use super::super::tensor::shape;
use crate::{Case, Data, Near, Recorder, U, convert, floats, rng};
use bitnet_wgpu::{
    reference,
    tensor::{Float, f16},
    transformer::{RotaryEmbedding, rope_angles},
};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dims, start) in
        [(&[1, 1, 2][..], 0), (&[5, 3, 8], 2), (&[2, 7, 2, 64], 9), (&[0, 2, 4], 1)]
    {
        cases.extend([case::<f32>(dims, start), case::<f16>(dims, start)]);
    }
    cases
}

/// There, and back again from the same.
fn case<T: Float>(dims: &'static [usize], start: usize) -> Case {
    let &[.., tokens, heads, dim] = dims else { panic!("three dimensions at least") };
    let x = convert::<T>(&floats(&mut rng(dim as u64), dims.iter().product(), 3.0));
    let frequencies: Vec<f32> =
        (0..dim / 2).map(|i| 100f32.powf(-(i as f32) / dim as f32)).collect();
    let positions = start + tokens + 1;
    let angles = rope_angles(&frequencies, positions);
    let position = |head: usize| start + head / heads % tokens.max(1);
    let expected = |direction: f64| -> Vec<Near> {
        let element = |index: usize| {
            let (head, i) = (index / dim, index % dim);
            let v = |i: usize| f64::from(x[head * dim + i].into());
            let turn = |j: usize| f64::from(angles[position(head) * dim + i % (dim / 2) * 2 + j]);
            let other = if i < dim / 2 { -v(i + dim / 2) } else { v(i - dim / 2) };
            let (a, b) = (v(i) * turn(0), other * direction * turn(1));
            Near { exact: a + b, error: 2.0 * U * (a.abs() + b.abs()) }
        };
        (0..x.len()).map(element).collect()
    };
    let expected = [expected(1.0), expected(-1.0)];
    let reference = [1.0, -1.0].map(|direction| {
        let mut y: Vec<f32> = x.iter().map(|&v| v.into()).collect();
        y.chunks_exact_mut(dim)
            .enumerate()
            .for_each(|(i, head)| reference::rotate(head, &angles, position(i), direction));
        Data::F32(y)
    });
    let check = move |got: &[Data], _| {
        expected
            .iter()
            .zip(got)
            .try_for_each(|(expected, got)| got.check_near(expected.iter().copied()))
    };
    let record = move |r: &mut Recorder| {
        let (x, angles) = (r.upload(&x, shape(dims))?, r.upload(&angles, [positions, dim / 2, 2])?);
        let there = RotaryEmbedding::new(&angles).start(start).forward(&mut r.encoder, &x)?;
        let back = RotaryEmbedding::new(&angles).start(start).backward(&mut r.encoder, &x)?;
        r.watch_all(&there);
        r.watch_all(&back);
        Ok(())
    };
    Case::new(format!("{dims:?} from {start} {:?}", T::ELEMENT), record, check)
        .reference(move || reference.to_vec())
        .of(T::ELEMENT)
}
