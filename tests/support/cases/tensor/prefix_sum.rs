//! `src/ops/tensor/prefix_sum.rs`

use super::binary::shape;
use crate::{Case, Data, Near, U, floats, rng, seed};
use bitnet_wgpu::{
    reference,
    tensor::{self, ElementType, PrefixSumElement},
};
use rand::RngExt;

pub fn cases() -> Vec<Case> {
    // A workgroup has 2048 numbers.
    let mut shapes = vec![
        [0, 5],
        [2, 0],
        [1, 1],
        [3, 7],
        [2, 257],
        [2, 2048],
        [3, 2049],
        [1, 9000],
        [70, 40],
        [300, 5],
        [5, 1024],
    ];
    let mut random = rng(1000 * seed());
    shapes.extend((0..4).map(|_| [random.random_range(1..9), random.random_range(1..700)]));
    let mut all: Vec<_> = (0..).zip(shapes).flat_map(|(i, shape)| of_types(i, shape)).collect();
    // Three levels.
    all.push(whole((0..4_200_003u32).collect(), [1, 4_200_003], true).device_only());
    all.extend([&[5, 3][..], &[3, 70, 9], &[2, 0, 3], &[2, 3, 4, 5]].into_iter().flat_map(along));
    all
}

fn of_types(seed: u64, shape: [usize; 2]) -> [Case; 4] {
    let mut rng = rng(seed);
    let words: Vec<u32> = (0..shape[0] * shape[1]).map(|_| rng.random()).collect();
    let signed: Vec<i32> = words.iter().map(|&v| v as i32).collect();
    let x = floats(&mut rng, words.len(), 3.0);
    [
        whole(words, shape, false),
        whole(signed, shape, true),
        float(x.clone(), shape, false),
        float(x, shape, true),
    ]
}

/// Whole numbers along each dimension.
fn along(dims: &'static [usize]) -> Vec<Case> {
    let mut rng = rng(7);
    let x: Vec<u32> = (0..dims.iter().product()).map(|_| rng.random()).collect();
    let case = |axis: usize| {
        let step = dims[axis + 1..].iter().product::<usize>();
        let mut sums = x.clone();
        (0..x.len())
            .filter(|at| at / step % dims[axis] > 0)
            .for_each(|at| sums[at] = sums[at].wrapping_add(sums[at - step]));
        let (given, of_reference) = (x.clone(), x.clone());
        let record = move |r: &mut crate::Recorder| {
            let x = r.upload(&given, shape(dims))?;
            let y = tensor::prefix_sum(&x, axis).forward(&mut r.encoder)?;
            r.watch_all(&y);
            Ok(())
        };
        let reference = move || {
            vec![Data::U32(reference::prefix_sum(&of_reference, shape(dims), axis, false).unwrap())]
        };
        Case::exact(format!("{dims:?} along {axis}"), vec![Data::U32(sums)], record)
            .reference(reference)
    };
    (0..dims.len()).map(case).collect()
}

fn record<T: PrefixSumElement>(
    x: Vec<T>,
    shape: [usize; 2],
    exclusive: bool,
) -> impl Fn(&mut crate::Recorder) -> bitnet_wgpu::Result<()> {
    move |r| {
        let x = r.upload(&x, shape)?;
        let op = tensor::prefix_sum(&x, 1);
        let op = if exclusive { op.exclusive() } else { op };
        let y = op.forward(&mut r.encoder)?;
        r.watch_all(&y);
        Ok(())
    }
}

fn name<T: ElementType>(shape: [usize; 2], exclusive: bool) -> String {
    format!("{shape:?} {:?} exclusive: {exclusive}", T::ELEMENT)
}

/// Whole numbers, equal.
fn whole<T: PrefixSumElement>(x: Vec<T>, shape: [usize; 2], exclusive: bool) -> Case {
    let words: &[u32] = bytemuck::cast_slice(&x);
    let mut sums = Vec::new();
    for row in words.chunks_exact(shape[1].max(1)) {
        let mut sum = 0u64;
        for &v in row {
            let without = sum as u32;
            sum += u64::from(v);
            sums.push(if !exclusive { sum as u32 } else { without });
        }
    }
    let data = |sums: &[u32]| Data::from_bytes(T::ELEMENT, bytemuck::cast_slice(sums));
    let expected = vec![data(&sums)];
    let reference = {
        let x = x.clone();
        move || {
            vec![Data::from_bytes(
                T::ELEMENT,
                bytemuck::cast_slice(&reference::prefix_sum(&x, shape, 1, exclusive).unwrap()),
            )]
        }
    };
    Case::exact(name::<T>(shape, exclusive), expected, record(x, shape, exclusive))
        .reference(reference)
}

/// Floats: the bound is that of three levels, of 8 numbers, 8 steps, and what is before; or of a
/// rounding.
fn float(x: Vec<f32>, shape: [usize; 2], exclusive: bool) -> Case {
    let mut expected = Vec::new();
    for row in x.chunks_exact(shape[1].max(1)) {
        let (mut sum, mut magnitudes) = (0.0, 0.0);
        for (i, &v) in (0..).zip(row) {
            let near = |terms: usize, exact: f64, magnitudes: f64| Near {
                exact,
                error: U * terms.min(3 * 24) as f64 * magnitudes,
            };
            let without = near(i, sum, magnitudes);
            sum += f64::from(v);
            magnitudes += f64::from(v.abs());
            expected.push(if !exclusive { near(i + 1, sum, magnitudes) } else { without });
        }
    }
    let reference = {
        let x = x.clone();
        move || vec![Data::F32(reference::prefix_sum(&x, shape, 1, exclusive).unwrap())]
    };
    Case::near(name::<f32>(shape, exclusive), expected, record(x, shape, exclusive))
        .reference(reference)
}
