//! `src/ops/tensor/softmax.rs`

use crate::{Case, Data, Near, Recorder, U, convert, floats, rng, seed};
use bitnet_wgpu::{
    Out, reference,
    tensor::{self, Float, f16},
};
use rand::{RngExt, rngs::SmallRng};

/// Softmaxes, queries and keys.
type Shape = [usize; 3];

pub fn cases() -> Vec<Case> {
    let mut shapes: Vec<Shape> = vec![
        [0, 1, 5],
        [3, 2, 0],
        [1, 1, 1],
        [1, 3, 4],
        [2, 9, 4],
        [3, 5, 9],
        [1, 70, 33],
        [1, 2, 65],
        [1, 2, 1500],
        [2, 2, 700],
        [1, 1, 5000],
    ];
    let mut random = rng(1000 * seed());
    shapes.extend((0..4).map(|_| {
        [random.random_range(1..4), random.random_range(1..20), random.random_range(1..90)]
    }));
    let all = (0..).zip(shapes).flat_map(|(i, shape)| {
        let ways = [
            Case::as_on_either(0, || forward::<f32>(&mut rng(i), shape)),
            Case::as_on_either(0, || forward::<f16>(&mut rng(i), shape)),
            Case::as_on_either(0, || backward::<f32>(&mut rng(i), shape)),
            Case::as_on_either(0, || backward::<f16>(&mut rng(i), shape)),
            Case::as_on_either(i as usize, || added(&mut rng(i), shape)),
        ];
        ways.into_iter().flatten()
    });
    all.chain(masks()).collect()
}

/// Masks of every kind of shape, some of which hide whole rows.
fn masks() -> Vec<Case> {
    const X: [usize; 4] = [2, 3, 5, 70];
    vec![
        masked::<f32, 4>(X, X),
        masked::<f16, 4>(X, [2, 1, 1, 70]),
        masked::<f32, 4>(X, [2, 3, 1, 1]),
        masked::<f32, 2>(X, [5, 70]),
        masked::<f16, 3>(X, [3, 1, 70]),
        masked::<f32, 1>(X, [70]),
        masked::<f32, 2>(X, [5, 1]),
        masked::<f32, 0>(X, []),
        masked::<f32, 2>([1, 1, 2, 3000], [2, 3000]),
        masked::<f32, 1>([1, 1, 0, 4], [4]),
        masked_twice(),
    ]
}

/// A causal mask and one of the caller: an element is seen where both see it.
fn masked_twice() -> Case {
    let (shape, mut rng) = ([3, 4, 9], rng(71));
    let x = floats(&mut rng, 3 * 4 * 9, 5.0);
    let mask: Vec<u32> = (0..36).map(|_| rng.random_range(0..2)).collect();
    let seen: Vec<u32> =
        (0..36).map(|i| if i % 9 < seen(shape, i / 9) { mask[i] } else { 0 }).collect();
    let expected = rows(&x, 9, |row, x| {
        let of = |i: usize| seen[row % 4 * 9 + i] != 0;
        let kept: Vec<f64> = (0..9).filter(|&i| of(i)).map(|i| x[i]).collect();
        let mut all = shares(&kept).into_iter();
        (0..9)
            .map(|i| if of(i) { all.next().unwrap() } else { Near::exactly(0.0) })
            .collect::<Vec<_>>()
    });
    Case::near("causal, with a mask".to_owned(), expected, move |r| {
        let (x, mask) = (r.upload(&x, shape)?, r.upload(&mask, [4, 9])?);
        let y = tensor::softmax(&x).causal().mask(&mask).forward(&mut r.encoder)?;
        r.watch_all(&y);
        Ok(())
    })
}

fn masked<X: Float, const N: usize>(shape: [usize; 4], of_mask: [usize; N]) -> Case {
    let (mut rng, columns) = (rng(60 + N as u64), shape[3]);
    let mask: Vec<u32> = (0..of_mask.iter().product())
        .map(|_| [0, 0, 1, u32::MAX, 1 << 31][rng.random_range(0..5)])
        .collect();
    let mut x = convert::<X>(&floats(&mut rng, shape.iter().product(), 12.0));
    // Where the mask is that has element i of x.
    let place = |i: usize| {
        let at = [
            i / columns / shape[2] / shape[1],
            i / columns / shape[2] % shape[1],
            i / columns % shape[2],
            i % columns,
        ];
        at[4 - N..].iter().zip(&of_mask).fold(0, |place, (at, length)| place * length + at % length)
    };
    let seen: Vec<bool> = (0..x.len()).map(|i| mask[place(i)] != 0).collect();
    // What is hidden may be anything.
    let hidden: Vec<usize> = (0..x.len()).filter(|&i| !seen[i]).collect();
    hidden
        .iter()
        .step_by(7)
        .for_each(|&i| x[i] = convert::<X>(&[[f32::NAN, f32::INFINITY, 6e4][i % 3]])[0]);
    let by_row = move |x: &[f32], of: &dyn Fn(&[f32]) -> Vec<Near>| {
        let row = |(x, seen): (&[f32], &[bool])| {
            let kept: Vec<f32> =
                x.iter().zip(seen).filter(|(_, seen)| **seen).map(|(x, _)| *x).collect();
            let mut shares = of(&kept).into_iter();
            seen.iter()
                .map(|seen| if *seen { shares.next().unwrap() } else { Near::exactly(0.0) })
                .collect::<Vec<_>>()
        };
        x.chunks_exact(columns).zip(seen.chunks_exact(columns)).flat_map(row).collect::<Vec<_>>()
    };
    let values = numbers(&x);
    let expected =
        by_row(&values, &|row| shares(&row.iter().map(|&v| v.into()).collect::<Vec<_>>()));
    let reference = move || {
        let exact = by_row(&values, &|row| {
            reference::softmax(row).into_iter().map(Near::exactly).collect()
        });
        vec![Data::F32(exact.iter().map(|near| near.exact as f32).collect())]
    };
    let record = move |r: &mut Recorder| {
        let (x, mask) = (r.upload(&x, shape)?, r.upload(&mask, of_mask)?);
        let y = tensor::softmax(&x).mask(&mask).forward(&mut r.encoder)?;
        r.watch_all(&y);
        Ok(())
    };
    Case::near(format!("{shape:?} {:?}, a mask of {of_mask:?}", X::ELEMENT), expected, record)
        .reference(reference)
        .of(X::ELEMENT)
}

/// How many numbers of a row are added one after another: those of a thread, then the steps of a
/// tree.
pub fn steps(columns: usize) -> f64 {
    let lanes = columns.div_ceil(8).next_power_of_two().clamp(1, 256);
    (columns.div_ceil(lanes) + 8) as f64
}

/// What the sum of exponentials that makes a row's softmax may miss, relatively, in units of U. A
/// share is scaled down once for each number that its thread takes after it, and for each step of a
/// tree; each time an exponential is 4 + 2·|x| off where a driver reorders its sums, and a product
/// and a sum are rounded. All the distances make up that to the maximum.
pub fn strays(row: &[f64]) -> f64 {
    let largest = row.iter().copied().fold(f64::MIN, f64::max);
    let shares: Vec<(f64, f64)> = row.iter().map(|v| ((v - largest).exp(), largest - v)).collect();
    let of_share = |(share, below): &(f64, f64)| {
        if *share == 0.0 { 0.0 } else { share * (6.0 * steps(row.len()) + 2.0 * below) }
    };
    shares.iter().map(of_share).sum::<f64>() / shares.iter().map(|share| share.0).sum::<f64>()
}

/// (largest, ln Σ e^(x - largest))
pub fn statistics(row: &[f64]) -> (f64, f64) {
    let largest = row.iter().copied().fold(f64::MIN, f64::max);
    (largest, row.iter().map(|v| (v - largest).exp()).sum::<f64>().ln())
}

/// A softmax: beside the sum, its own exponential, its quotient and two products.
pub fn shares(row: &[f64]) -> Vec<Near> {
    let ((largest, logarithm), strays) = (statistics(row), strays(row));
    let share = |v: &f64| {
        let exact = (v - largest - logarithm).exp();
        // What is below e^-87 is nothing.
        let below = if exact == 0.0 { 0.0 } else { largest - v };
        Near { exact, error: U * exact * (strays + 10.0 + 3.0 * below) + 1e-37 }
    };
    row.iter().map(share).collect()
}

/// Its logarithm. The crate's own is 14 U off at most.
fn logarithms(row: &[f64]) -> Vec<Near> {
    let ((largest, logarithm), strays) = (statistics(row), strays(row));
    let near = |v: &f64| {
        let exact = v - largest - logarithm;
        Near { exact, error: U * ((v - largest).abs() + exact.abs() + strays + 14.0 * logarithm) }
    };
    row.iter().map(near).collect()
}

pub fn numbers<X: Float>(x: &[X]) -> Vec<f32> {
    x.iter().map(|&v| v.into()).collect()
}

/// Rows of `x` as `of` makes them.
pub fn rows<T>(x: &[f32], columns: usize, of: impl Fn(usize, &[f64]) -> Vec<T>) -> Vec<T> {
    let row = |(i, row): (usize, &[f32])| of(i, &row.iter().map(|&v| v.into()).collect::<Vec<_>>());
    x.chunks_exact(columns.max(1)).enumerate().flat_map(row).collect()
}

/// What query `row % n` of n sees of m keys.
fn seen([_, n, m]: Shape, row: usize) -> usize {
    (row % n + 1 + m).saturating_sub(n)
}

fn forward<X: Float>(rng: &mut SmallRng, shape: Shape) -> Case {
    let columns = shape[2];
    let x = convert::<X>(&floats(rng, shape.iter().product(), 12.0));
    let values = numbers(&x);
    let masked = rows(&values, columns, |row, x| {
        let mut y = shares(&x[..seen(shape, row)]);
        y.resize(columns, Near::exactly(0.0));
        y
    });
    let expected = [
        rows(&values, columns, |_, x| shares(x)),
        rows(&values, columns, |_, x| logarithms(x)),
        masked,
    ];
    let check = move |got: &[Data], _| {
        got.iter().zip(&expected).try_for_each(|(got, near)| got.check_near(near.iter().copied()))
    };
    let reference = move || {
        let (mut y, mut logarithms, mut masked) = (Vec::new(), Vec::new(), Vec::new());
        for (i, row) in values.chunks_exact(columns.max(1)).enumerate() {
            y.extend(reference::softmax(row));
            logarithms.extend(reference::log_softmax(row));
            masked.extend(reference::softmax(&row[..seen(shape, i)]));
            masked.resize((i + 1) * columns, 0.0);
        }
        [y, logarithms, masked].map(Data::F32).to_vec()
    };
    let record = move |r: &mut Recorder| {
        let x = r.upload(&x, shape)?;
        let all = [
            tensor::softmax(&x).forward(&mut r.encoder)?,
            tensor::log_softmax(&x).forward(&mut r.encoder)?,
            tensor::softmax(&x).causal().forward(&mut r.encoder)?,
        ];
        all.iter().for_each(|y| r.watch_all(y));
        Ok(())
    };
    Case::new(format!("{shape:?} {:?}", X::ELEMENT), record, check)
        .reference(reference)
        .of(X::ELEMENT)
}

/// The gradients, of what softmax and its logarithm give.
fn backward<X: Float>(rng: &mut SmallRng, shape: Shape) -> Case {
    let columns = shape[2];
    let (x, dy) = (
        floats(rng, shape.iter().product(), 5.0),
        convert::<X>(&floats(rng, shape.iter().product(), 3.0)),
    );
    let of_rows = |of: fn(&[f32]) -> Vec<f32>| {
        convert::<X>(&x.chunks_exact(columns.max(1)).flat_map(of).collect::<Vec<_>>())
    };
    let ys = [of_rows(reference::softmax), of_rows(reference::log_softmax)];
    let (values, slopes) = ([numbers(&ys[0]), numbers(&ys[1])], numbers(&dy));
    let near = |logarithm: bool, row: usize, y: &[f64]| {
        let dy: Vec<f64> = slopes[row * columns..][..columns].iter().map(|&v| v.into()).collect();
        let terms: Vec<f64> =
            y.iter().zip(&dy).map(|(y, dy)| if logarithm { *dy } else { y * dy }).collect();
        let adds = steps(columns) + 1.0;
        let (sum, strays): (f64, f64) =
            (terms.iter().sum(), U * adds * terms.iter().map(|v| v.abs()).sum::<f64>());
        let dx = |(y, dy): (&f64, &f64)| {
            let share = y.exp();
            match logarithm {
                true => Near {
                    exact: dy - share * sum,
                    error: share * (strays + U * (6.0 + 2.0 * y.abs()) * sum.abs())
                        + U * (dy - share * sum).abs(),
                },
                false => Near {
                    exact: y * (dy - sum),
                    error: y.abs() * (strays + 2.0 * U * (dy - sum).abs()),
                },
            }
        };
        y.iter().zip(&dy).map(dx).collect::<Vec<_>>()
    };
    let expected = [false, true].map(|logarithm| {
        rows(&values[usize::from(logarithm)], columns, |row, y| near(logarithm, row, y))
    });
    let check = move |got: &[Data], _| {
        got.iter().zip(&expected).try_for_each(|(got, near)| got.check_near(near.iter().copied()))
    };
    let reference = move || {
        let all = |y: &[f32], of: fn(&[f32], &[f32]) -> Vec<f32>| {
            Data::F32(
                y.chunks_exact(columns.max(1))
                    .zip(slopes.chunks_exact(columns.max(1)))
                    .flat_map(|(y, dy)| of(y, dy))
                    .collect(),
            )
        };
        vec![
            all(&values[0], reference::softmax_backward),
            all(&values[1], reference::log_softmax_backward),
        ]
    };
    let record = move |r: &mut Recorder| {
        let (y, logarithms, dy) =
            (r.upload(&ys[0], shape)?, r.upload(&ys[1], shape)?, r.upload(&dy, shape)?);
        let all = [
            tensor::softmax(&y).backward(&mut r.encoder, &y, &dy)?,
            tensor::log_softmax(&logarithms).backward(&mut r.encoder, &logarithms, &dy)?,
        ];
        all.iter().for_each(|dx| r.watch_all(dx));
        Ok(())
    };
    Case::new(format!("{shape:?} {:?}, backward", X::ELEMENT), record, check)
        .reference(reference)
        .of(X::ELEMENT)
}

/// On top of what is there.
fn added(rng: &mut SmallRng, shape: Shape) -> Case {
    let (x, base) =
        (floats(rng, shape.iter().product(), 12.0), floats(rng, shape.iter().product(), 9.0));
    let expected = rows(&x, shape[2], |_, x| shares(x))
        .into_iter()
        .zip(&base)
        .map(|(near, &base)| near.on_top_of(base))
        .collect();
    Case::near(format!("{shape:?}, added"), expected, move |r| {
        let (x, y) = (r.upload(&x, shape)?, r.upload(&base, shape)?);
        tensor::softmax(&x).forward_into(&mut r.encoder, Out::add(&y))?;
        r.watch_all(&y);
        Ok(())
    })
}

/// Rows with a NaN, with -infinity, far from 0, and of nothing but -infinity.
pub fn extremes() -> Vec<Case> {
    let mut x = floats(&mut rng(50), 5 * 40, 3.0);
    x[7] = f32::NAN;
    x[40..80].iter_mut().step_by(3).for_each(|v| *v = f32::NEG_INFINITY);
    x[80..120].iter_mut().for_each(|v| *v += 3e4);
    x[120..160].iter_mut().for_each(|v| *v *= 3e4);
    x[160..].fill(f32::NEG_INFINITY);
    let expected = rows(&x, 40, |row, x| {
        if matches!(row, 0 | 4) {
            vec![Near { exact: f64::NAN, error: 0.0 }; 40]
        } else {
            shares(x)
        }
    });
    let values = x.clone();
    let case = Case::near("NaN and infinities".to_owned(), expected, move |r| {
        let x = r.upload(&x, [5, 40])?;
        let y = tensor::softmax(&x).forward(&mut r.encoder)?;
        r.watch_all(&y);
        Ok(())
    })
    .reference(move || {
        vec![Data::F32(values.chunks_exact(40).flat_map(reference::softmax).collect())]
    });
    vec![case]
}
