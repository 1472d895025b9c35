//! `src/ops/tensor/strided.rs`

use super::binary::shape;
use crate::{Case, Data, Recorder, convert, floats, rng};
use bitnet_wgpu::{
    Result, reference,
    tensor::{self, ElementType, Float, f16},
};
use std::ops::Range;

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let permutations: [(&[usize], &[usize]); 16] = [
        (&[], &[]),
        (&[5], &[0]),
        (&[3, 0], &[1, 0]),
        (&[1, 7], &[1, 0]),
        (&[33, 65], &[1, 0]),
        (&[64, 32], &[1, 0]),
        (&[3, 34, 40], &[0, 2, 1]),
        (&[3, 34, 40], &[1, 0, 2]),
        (&[3, 34, 40], &[2, 0, 1]),
        (&[3, 34, 40], &[1, 2, 0]),
        (&[3, 4, 5], &[2, 1, 0]),
        (&[2, 3, 4, 5], &[0, 2, 1, 3]),
        (&[2, 3, 4, 5], &[3, 2, 1, 0]),
        (&[2, 3, 4, 5], &[1, 0, 3, 2]),
        (&[2, 3, 4, 5], &[2, 3, 0, 1]),
        (&[2, 1, 4, 5], &[0, 3, 1, 2]),
    ];
    for (i, (dims, axes)) in permutations.into_iter().enumerate() {
        cases.extend(Case::as_on_either(0, || {
            if i % 2 == 0 { permuted::<f32>(dims, axes) } else { permuted::<f16>(dims, axes) }
        }));
    }
    cases.extend(Case::as_on_either(0, || permuted::<f16>(&[33, 65], &[1, 0])));
    cases.extend([permuted::<f32>(&[3, 34, 40], &[1, 0, 2]), of_words()]);
    cases.extend([
        sliced(&[7], 0, 2..5),
        sliced(&[3, 12], 1, 4..8),
        sliced(&[3, 12], 1, 4..10),
        sliced(&[4, 6], 1, 5..5),
        sliced(&[4, 6], 1, 1..6),
        sliced(&[3, 4, 5, 6], 1, 1..3),
        sliced(&[3, 4, 5], 0, 2..3),
    ]);
    cases.extend([
        padded::<f32>(&[3], &[(0, 2)]),
        padded::<f16>(&[2, 3, 4], &[(1, 0), (0, 0), (2, 3)]),
    ]);
    cases.extend([
        joined(&[&[2, 3], &[4, 3], &[0, 3]], 0),
        joined(&[&[2, 3, 4], &[2, 1, 4], &[2, 5, 4]], 1),
    ]);
    cases
}

/// Every place of a tensor, the last index changing first.
fn places(dims: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &dim in dims {
        all = all
            .into_iter()
            .flat_map(|place| (0..dim).map(move |i| [&place[..], &[i]].concat()))
            .collect();
    }
    all
}

/// The index of a place.
fn index(place: &[usize], dims: &[usize]) -> usize {
    place.iter().zip(dims).fold(0, |at, (i, dim)| at * dim + i)
}

fn data(dims: &[usize]) -> Vec<f32> {
    convert::<f16>(&floats(&mut rng(5), dims.iter().product(), 9.0))
        .iter()
        .map(|v| v.to_f32())
        .collect()
}

/// What the CPU reference makes of a tensor.
fn reference<T: ElementType>(
    x: &[T],
    of: impl Fn(&[T]) -> Result<Vec<T>> + Send + Sync + 'static,
) -> impl Fn() -> Vec<Data> + Send + Sync + 'static {
    let x = x.to_vec();
    move || vec![Data::from_bytes(T::ELEMENT, bytemuck::cast_slice(&of(&x).unwrap()))]
}

fn permuted<T: Float>(dims: &'static [usize], axes: &'static [usize]) -> Case {
    let x = data(dims);
    let result: Vec<usize> = axes.iter().map(|&axis| dims[axis]).collect();
    let source = |place: Vec<usize>| {
        let mut from = vec![0; dims.len()];
        axes.iter().zip(place).for_each(|(&axis, i)| from[axis] = i);
        x[index(&from, dims)]
    };
    let y: Vec<f32> = places(&result).into_iter().map(source).collect();
    let x = convert::<T>(&x);
    let reference = reference(&x, move |x| reference::permute(x, shape(dims), axes));
    Case::exact(
        format!("{dims:?} by {axes:?} {:?}", T::ELEMENT),
        vec![Data::floats(T::ELEMENT, &y)],
        move |r: &mut Recorder| {
            let x = r.upload(&x, shape(dims))?;
            let y = tensor::permute(&x, axes).forward(&mut r.encoder)?;
            r.watch_all(&y);
            Ok(())
        },
    )
    .of(T::ELEMENT)
    .reference(reference)
}

/// Words of any meaning, by `transpose`.
fn of_words() -> Case {
    let x: Vec<u32> = (0..70 * 35).map(|i| 0x7fc0_0000 + i).collect();
    let y =
        (0..35).flat_map(|c| (0..70).map(move |r| (r, c))).map(|(r, c)| x[r * 35 + c]).collect();
    let reference = reference(&x, |x| reference::permute(x, [70, 35], &[1, 0]));
    Case::exact("words".into(), vec![Data::U32(y)], move |r: &mut Recorder| {
        let x = r.upload(&x, [70, 35])?;
        let y = tensor::transpose(&x).forward(&mut r.encoder)?;
        r.watch_all(&y);
        Ok(())
    })
    .reference(reference)
}

fn sliced(dims: &'static [usize], axis: usize, range: Range<usize>) -> Case {
    let x = data(dims);
    let y: Vec<f32> = places(dims)
        .iter()
        .filter(|place| range.contains(&place[axis]))
        .map(|place| x[index(place, dims)])
        .collect();
    let of_reference = range.clone();
    let reference =
        reference(&x, move |x| reference::slice(x, shape(dims), axis, of_reference.clone()));
    Case::exact(
        format!("{range:?} of dimension {axis} of {dims:?}"),
        vec![Data::F32(y)],
        move |r: &mut Recorder| {
            let x = r.upload(&x, shape(dims))?;
            let y = tensor::slice(&x, axis, range.clone()).forward(&mut r.encoder)?;
            r.watch_all(&y);
            Ok(())
        },
    )
    .reference(reference)
}

fn padded<T: Float>(dims: &'static [usize], around: &'static [(usize, usize)]) -> Case {
    let x = data(dims);
    let result: Vec<usize> =
        dims.iter().zip(around).map(|(dim, (before, after))| before + dim + after).collect();
    let source = |place: &Vec<usize>| {
        let inner: Option<Vec<usize>> =
            place.iter().zip(around).map(|(i, (before, _))| i.checked_sub(*before)).collect();
        inner
            .filter(|inner| inner.iter().zip(dims).all(|(i, dim)| i < dim))
            .map_or(-1.5, |inner| x[index(&inner, dims)])
    };
    let y: Vec<f32> = places(&result).iter().map(source).collect();
    let x = convert::<T>(&x);
    let reference =
        reference(&x, move |x| reference::pad(x, shape(dims), around, T::from_f32(-1.5)));
    Case::exact(
        format!("{around:?} around {dims:?} {:?}", T::ELEMENT),
        vec![Data::floats(T::ELEMENT, &y)],
        move |r: &mut Recorder| {
            let x = r.upload(&x, shape(dims))?;
            let y = tensor::pad(&x, around).value(-1.5).forward(&mut r.encoder)?;
            r.watch_all(&y);
            Ok(())
        },
    )
    .of(T::ELEMENT)
    .reference(reference)
}

fn joined(all: &'static [&'static [usize]], axis: usize) -> Case {
    let parts: Vec<Vec<f32>> = all.iter().map(|dims| data(dims)).collect();
    let mut result = all[0].to_vec();
    result[axis] = all.iter().map(|dims| dims[axis]).sum();
    let source = |mut place: Vec<usize>| {
        let mut which = 0;
        while place[axis] >= all[which][axis] {
            place[axis] -= all[which][axis];
            which += 1;
        }
        parts[which][index(&place, all[which])]
    };
    let y: Vec<f32> = places(&result).into_iter().map(source).collect();
    let of_reference = parts.clone();
    let reference = move || {
        let parts: Vec<_> =
            of_reference.iter().zip(all).map(|(part, dims)| (&part[..], shape(dims))).collect();
        vec![Data::F32(reference::concat(&parts, axis).unwrap())]
    };
    Case::exact(format!("{all:?} along {axis}"), vec![Data::F32(y)], move |r: &mut Recorder| {
        let tensors = all
            .iter()
            .zip(&parts)
            .map(|(dims, part)| r.upload(part, shape(dims)))
            .collect::<Result<Vec<_>>>()?;
        let y =
            tensor::concat(&tensors.iter().collect::<Vec<_>>(), axis).forward(&mut r.encoder)?;
        r.watch_all(&y);
        Ok(())
    })
    .reference(reference)
}
