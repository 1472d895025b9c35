//! `src/ops/tensor/matmul_int8.rs`

use super::binary::shape;
use crate::{Case, Data, Recorder, random_shapes, rng, seed};
use bitnet_wgpu::{reference, tensor};
use rand::{RngExt, rngs::SmallRng};

/// m, k and n, and the batches of both sides.
type Problem = ([usize; 3], [Vec<usize>; 2]);

pub fn cases() -> Vec<Case> {
    // m, k, n on every side of the tiles, rows of every length modulo 4, and batches of a, b or
    // both.
    let fixed = [
        ([1, 1, 1], [vec![], vec![]]),
        ([3, 0, 5], [vec![], vec![]]),
        ([0, 4, 5], [vec![], vec![]]),
        ([2, 3, 2], [vec![], vec![]]),
        ([5, 6, 7], [vec![], vec![]]),
        ([64, 64, 64], [vec![], vec![]]),
        ([65, 67, 63], [vec![], vec![]]),
        ([63, 61, 66], [vec![], vec![]]),
        ([5, 130, 70], [vec![3], vec![3]]),
        ([66, 17, 3], [vec![2, 2], vec![]]),
        ([2, 33, 129], [vec![], vec![3]]),
        ([2, 8, 2], [vec![0], vec![0]]),
        // Longer than floats add up exactly.
        ([3, 1025, 4], [vec![], vec![]]),
        ([2, 2090, 3], [vec![2], vec![]]),
    ];
    let random =
        random_shapes("matmul_int8").into_iter().map(|(m, n, k)| ([m, k, n], [vec![], vec![]]));
    let of = |(i, (dims, [a, b])): (u64, Problem)| {
        let mut rng = rng(1000 * seed() + i);
        let of = |rng: &mut SmallRng, batch: &[usize], rows| {
            (0..batch.iter().product::<usize>() * rows * dims[1])
                .map(|_| rng.random())
                .collect::<Vec<i8>>()
        };
        let (left, right) = (of(&mut rng, &a, dims[0]), of(&mut rng, &b, dims[2]));
        case(dims, [a, b], left, right)
    };
    let mut cases: Vec<Case> = (0..).zip(fixed.into_iter().chain(random)).map(of).collect();
    // As large sums as a float holds, and odd ones that it does not.
    cases.extend(
        [(1024, -128), (1057, 127), (3001, 127)]
            .map(|(k, v)| case([1, k, 2], [vec![], vec![]], vec![v; k], vec![v; 2 * k])),
    );
    // As many of the largest products as an i32 holds, and of the smallest.
    let most = (1 << 17) - 1;
    cases.extend([-128, 127].map(|b| {
        case([1, most, 1], [vec![], vec![]], vec![-128; most], vec![b; most]).device_only()
    }));
    cases
}

fn case(
    [m, k, n]: [usize; 3],
    [a_batch, b_batch]: [Vec<usize>; 2],
    a: Vec<i8>,
    b: Vec<i8>,
) -> Case {
    let batch = if a_batch.is_empty() { &b_batch } else { &a_batch };
    let of = |all: &'_ [i8], own: &[usize], which: usize, size: usize| {
        all[if own.is_empty() { 0 } else { which * size }..][..size].to_vec()
    };
    let product = |which| {
        reference::matmul_int8(
            &of(&a, &a_batch, which, m * k),
            &of(&b, &b_batch, which, n * k),
            [m, k, n],
        )
        .unwrap()
    };
    let expected: Vec<i32> = (0..batch.iter().product()).flat_map(product).collect();
    let shapes =
        [shape(&[&a_batch[..], &[m, k]].concat()), shape(&[&b_batch[..], &[n, k]].concat())];
    Case::exact(
        format!("{}·{}ᵀ", shapes[0], shapes[1]),
        vec![Data::I32(expected)],
        move |r: &mut Recorder| {
            let (a, b) = (r.upload(&a, shapes[0])?, r.upload(&b, shapes[1])?);
            let y = tensor::matmul_int8(&a, &b).forward(&mut r.encoder)?;
            r.watch_all(&y);
            Ok(())
        },
    )
}
