//! `src/ops/tensor/binary.rs`

use super::unary::{near, times};
use crate::{Case, Data, Near, Recorder, U, convert, floats, rng, seed};
use bitnet_wgpu::{
    Element, Out, Shape, Tensor, reference,
    tensor::{self, Binary, Float, f16},
};
use rand::{RngExt, rngs::SmallRng};

macro_rules! op {
    ($name:ident, $back:ident) => {
        Op {
            name: stringify!($name),
            reference: reference::$name,
            back_reference: reference::$back,
            single: tensor::$name,
            half: tensor::$name,
        }
    };
}

pub fn cases() -> Vec<Case> {
    // Index and broadcasting are the frame's: `mul` tries them for all.
    let mut cases: Vec<Case> = shapes()
        .iter()
        .zip(0..)
        .flat_map(|((a, b), i)| with(op!(mul, mul_backward), rng(i), a, b, the_reference))
        .collect();
    let (a, b): (&[usize], &[usize]) = (&[4, 1, 31], &[3, 1]);
    cases.extend(with(op!(add, add_backward), rng(1), a, b, the_reference));
    cases.extend(with(op!(sub, sub_backward), rng(2), a, b, the_reference));
    cases.extend(with(op!(minimum, minimum_backward), rng(3), a, b, the_reference));
    cases.extend(with(op!(maximum, maximum_backward), rng(4), a, b, the_reference));
    cases.extend(with(op!(div, div_backward), rng(5), a, b, div));
    cases.extend(with(op!(pow, pow_backward), rng(6), a, &[5, 1], pow));
    cases
}

/// The shapes of two tensors.
fn shapes() -> Vec<(Vec<usize>, Vec<usize>)> {
    let fixed: [(&[usize], &[usize]); 14] = [
        (&[], &[]),
        (&[7], &[]),
        (&[], &[7]),
        (&[0, 3], &[3]),
        (&[0, 3], &[1, 1]),
        (&[65], &[65]),
        (&[3, 5], &[3, 1]),
        (&[3, 1], &[1, 5]),
        (&[2, 3, 4, 5], &[2, 3, 4, 5]),
        (&[2, 3, 4, 5], &[3, 1, 5]),
        (&[2, 1, 4, 1], &[2, 3, 4, 5]),
        (&[4, 3, 2, 7], &[1, 3, 1, 7]),
        (&[4, 1, 2, 7], &[4, 1, 1, 1]),
        (&[70, 300], &[300]),
    ];
    let mut all: Vec<_> = fixed.map(|(a, b)| (a.to_vec(), b.to_vec())).into();
    for i in 0..20 {
        let mut rng = rng(1000 * seed() + i);
        let shape: Vec<usize> =
            (0..rng.random_range(0..=4)).map(|_| rng.random_range(1..9)).collect();
        let first = rng.random_range(0..=shape.len());
        let mut part = |dims: &[usize]| {
            dims.iter().map(|&dim| if rng.random_bool(0.5) { dim } else { 1 }).collect()
        };
        all.push(if i % 2 == 0 {
            (part(&shape), part(&shape[first..]))
        } else {
            (part(&shape[first..]), shape.clone())
        });
    }
    all
}

/// An op at a, b and dy: its result, and the gradients for both; the CPU references say the same in
/// `f32`.
type Bounds = fn([f64; 3], [f32; 3]) -> [Near; 3];

fn the_reference(_: [f64; 3], references: [f32; 3]) -> [Near; 3] {
    references.map(Near::exactly)
}

fn div([a, b, dy]: [f64; 3], _: [f32; 3]) -> [Near; 3] {
    [near(a / b, 6.0), near(dy / b, 6.0), near(-dy * a / b / b, 13.0)]
}

fn pow([a, b, dy]: [f64; 3], _: [f32; 3]) -> [Near; 3] {
    let [of_a, of_b] = [power(a, b - 1.0), power(a, b)];
    let zero = Near::exactly(0.0);
    // The logarithm of its own is off by 2^-21 or by three units in the last place.
    let log = Near { exact: a.ln(), error: (6.0 * U * a.ln().abs()).max(0.5_f64.powi(21)) };
    let of_log = Near {
        exact: of_b.exact * log.exact,
        error: of_b.error * log.exact.abs() + log.error * of_b.exact.abs(),
    };
    [
        of_b,
        if b == 0.0 { zero } else { times(of_a, dy * b, 3.0) },
        if a == 0.0 { zero } else { times(of_log, dy, 3.0) },
    ]
}

/// log₂ is off by 2^-21 or three units in the last place, which b and ln 2 make larger; then comes
/// 2^x.
fn power(a: f64, b: f64) -> Near {
    let (y, log) = (a.powf(b), a.abs().log2());
    let of_log = (b * (6.0 * U * log.abs()).max(0.5_f64.powi(21))).abs();
    let units = 2.0 * (3.0 + 2.0 * (b * log).abs()) + (b * log).abs();
    if b == 0.0 {
        Near::exactly(1.0)
    } else {
        Near { exact: y, error: y.abs() * (U * units + of_log) }
    }
}

/// Which element of `own` an element of `of` takes, by the definition of broadcasting.
fn element(index: usize, of: &[usize], own: &[usize]) -> usize {
    let (mut rest, mut at, mut stride) = (index, 0, 1);
    for (i, &dim) in of.iter().enumerate().rev() {
        if let Some(own_dim) = (i + own.len()).checked_sub(of.len()).map(|i| own[i]) {
            at += if own_dim == 1 { 0 } else { rest % dim * stride };
            stride *= own_dim;
        }
        rest /= dim;
    }
    at
}

/// What two shapes are broadcast to, by its definition.
fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let dim = |dims: &[usize], i: usize| (i + dims.len()).checked_sub(rank).map_or(1, |i| dims[i]);
    (0..rank).map(|i| if dim(a, i) == 1 { dim(b, i) } else { dim(a, i) }).collect()
}

pub fn shape(dims: &[usize]) -> Shape {
    match *dims {
        [] => [].into(),
        [a] => [a].into(),
        [a, b] => [a, b].into(),
        [a, b, c] => [a, b, c].into(),
        [a, b, c, d] => [a, b, c, d].into(),
        _ => panic!("at most four dimensions"),
    }
}

type Form<T> = for<'a> fn(&'a Tensor<T>, &'a Tensor<T>) -> Binary<'a, T>;

/// An op's name, its CPU references, and its function for both types.
struct Op {
    name: &'static str,
    reference: fn(f32, f32) -> f32,
    back_reference: fn(f32, f32, f32) -> (f32, f32),
    single: Form<f32>,
    half: Form<f16>,
}

fn with(op: Op, mut rng: SmallRng, a: &[usize], b: &[usize], bounds: Bounds) -> Vec<Case> {
    vec![
        case::<f32>(&op, op.single, &mut rng, a, b, bounds),
        case::<f16>(&op, op.half, &mut rng, a, b, bounds),
    ]
}

/// What is allocated, what is added, both gradients, and, where that is one of the inputs, the
/// result in its place.
fn case<T: Float>(
    op: &Op,
    form: Form<T>,
    rng: &mut SmallRng,
    a_dims: &[usize],
    b_dims: &[usize],
    bounds: Bounds,
) -> Case {
    let of = |rng: &mut SmallRng, dims: &[usize], bound| {
        convert::<T>(&floats(rng, dims.iter().product(), bound))
    };
    let (mut a, mut b) = (of(rng, a_dims, 3.0), of(rng, b_dims, 3.0));
    if op.name == "pow" {
        a = a.iter().map(|&a| T::from_f32(a.into().abs() + 0.1)).collect();
        // Powers of negative numbers, and of whole numbers.
        let special = [-2.0, -3.0, -0.5, 1.0, -1.5].map(T::from_f32);
        a.iter_mut().zip(special).for_each(|(a, special)| *a = special);
        b.iter_mut().zip([2.0, -3.0, 0.0].map(T::from_f32)).for_each(|(b, special)| *b = special);
    }
    if let ("minimum" | "maximum", [first, second, third, ..]) = (op.name, &mut a[..]) {
        (*first, *second, *third) = (T::from_f32(f32::NAN), b[0], T::from_f32(f32::INFINITY));
    }
    let y_dims = broadcast(a_dims, b_dims);
    let (base, dy) = (of(rng, &y_dims, 9.0), of(rng, &y_dims, 3.0));
    let sources: Vec<[usize; 2]> =
        (0..base.len()).map(|i| [a_dims, b_dims].map(|own| element(i, &y_dims, own))).collect();
    let numbers =
        |i: usize| -> [f32; 3] { [a[sources[i][0]].into(), b[sources[i][1]].into(), dy[i].into()] };
    let references = |[a, b, dy]: [f32; 3]| {
        let (da, db) = (op.back_reference)(a, b, dy);
        [(op.reference)(a, b), da, db]
    };
    let references: Vec<[f32; 3]> = (0..base.len()).map(|i| references(numbers(i))).collect();
    let all: Vec<[Near; 3]> =
        (0..base.len()).map(|i| bounds(numbers(i).map(f64::from), references[i])).collect();
    let y: Vec<Near> = all.iter().map(|[y, ..]| *y).collect();
    let sum: Vec<Near> = y.iter().zip(&base).map(|(near, &base)| near.on_top_of(base)).collect();
    // The gradient of each element of an input is a sum, of numbers that are rounded to its type.
    let gradient = |which: usize, dims: &[usize]| {
        let mut sums = vec![(Near::exactly(0.0), 0.0, 0.0); dims.iter().product()];
        for (near, source) in all.iter().map(|near| near[1 + which]).zip(&sources) {
            let (sum, sizes, count) = &mut sums[source[which]];
            let rounding =
                if T::ELEMENT == Element::F16 { near.exact.abs() / 1024.0 + 6e-8 } else { 0.0 };
            *sum = Near { exact: sum.exact + near.exact, error: sum.error + near.error + rounding };
            (*sizes, *count) = (*sizes + near.exact.abs(), *count + 1.0);
        }
        sums.into_iter()
            .map(|(near, sizes, count)| Near {
                error: near.error + (count - 1.0_f64).max(0.0) * U * sizes,
                ..near
            })
            .collect::<Vec<_>>()
    };
    let (da, db) = (gradient(0, a_dims), gradient(1, b_dims));
    let check = move |got: &[Data], _| {
        got.iter().enumerate().try_for_each(|(i, got)| {
            let expected = [&y, &sum, &da, &db].into_iter().nth(i).unwrap_or(&y);
            got.check_near(expected.iter().copied()).map_err(|e| format!("output {i}: {e}"))
        })
    };
    let name = format!("{}: {a_dims:?} and {b_dims:?} {:?}", op.name, T::ELEMENT);
    let (a_shape, b_shape, y_shape) = (shape(a_dims), shape(b_dims), shape(&y_dims));
    let record = move |r: &mut Recorder| {
        let (a, b, sum) =
            (r.upload(&a, a_shape)?, r.upload(&b, b_shape)?, r.upload(&base, y_shape)?);
        let dy = r.upload(&dy, y_shape)?;
        let y = form(&a, &b).forward(&mut r.encoder)?;
        form(&a, &b).forward_into(&mut r.encoder, Out::add(&sum))?;
        let (da, db) = form(&a, &b).backward(&mut r.encoder, &dy)?;
        [&y, &sum, &da, &db].into_iter().for_each(|tensor| r.watch_all(tensor));
        for itself in [&a, &b].into_iter().filter(|itself| itself.shape() == y_shape).take(1) {
            form(&a, &b).forward_into(&mut r.encoder, itself)?;
            r.watch_all(itself);
        }
        Ok(())
    };
    Case::new(name, record, check)
        .reference(move || vec![Data::F32(references.iter().map(|[y, ..]| *y).collect())])
        .of(T::ELEMENT)
}
