//! `src/ops/tensor/matmul.rs`

use super::binary::shape;
use crate::{Case, Data, Near, Recorder, U, convert, floats, rng};
use bitnet_wgpu::{
    Out, Tensor, reference,
    tensor::{self, Activation, Float, Matmul, Side, f16},
};

pub fn cases() -> Vec<Case> {
    let software = shapes().into_iter().map(Case::as_on_software);
    // The right side is transposed before.
    let far_apart = Problem::new([257, 2048, 2049], &[], [false, false])
        .case::<f32, f32>()
        .as_on_software()
        .device_only();
    software
        .chain(shapes().into_iter().chain(tiles()).map(Case::as_on_gpus))
        .chain([far_apart])
        .collect()
}

fn shapes() -> Vec<Case> {
    let mut cases = Vec::new();
    // m, k, n on every side of the tiles, and batches of a, b or both.
    for (i, (dims, a_batch, b_batch)) in [
        ([1, 1, 1], vec![], vec![]),
        ([3, 0, 5], vec![], vec![]),
        ([0, 4, 5], vec![], vec![]),
        ([65, 17, 63], vec![], vec![]),
        ([132, 36, 68], vec![], vec![2]),
        ([64, 32, 64], vec![], vec![]),
        ([5, 130, 70], vec![3], vec![3]),
        ([66, 16, 3], vec![2, 2], vec![]),
        ([2, 33, 129], vec![], vec![3]),
    ]
    .into_iter()
    .enumerate()
    {
        for (a_transposed, b_transposed) in
            [(false, false), (true, false), (false, true), (true, true)].into_iter().skip(i % 2)
        {
            let problem = Problem {
                dims,
                a_batch: a_batch.clone(),
                b_batch: b_batch.clone(),
                a_transposed,
                b_transposed,
            };
            cases.push(if (i + usize::from(a_transposed)) % 2 == 0 {
                problem.case::<f32, f32>()
            } else {
                problem.case::<f16, f32>()
            });
        }
    }
    // Few outputs of much, which are made in parts.
    cases.extend([
        Problem::new([5, 1024, 6], &[], [true, false]).case::<f32, f32>(),
        Problem::new([8, 1536, 4], &[], [true, false]).case::<f16, f32>(),
    ]);
    // Every kernel by every type of float: lines of any length and of quads, tiles small and large,
    // few rows with a right side either way.
    for (dims, batch, transposed) in [
        ([20, 41, 70], vec![], [false, true]),
        ([20, 40, 72], vec![], [false, true]),
        ([5, 37, 19], vec![2], [false, true]),
        ([9, 300, 21], vec![2], [false, true]),
        ([3, 37, 19], vec![2], [false, false]),
        ([6, 300, 68], vec![2], [false, false]),
    ] {
        let problem = || Problem::new(dims, &batch, transposed);
        cases.extend([
            problem().case::<f32, f32>(),
            problem().case::<f16, f32>(),
            problem().case::<f32, f16>(),
            problem().case::<f16, f16>(),
        ]);
    }
    cases
}

/// Large tiles, and tensor cores.
fn tiles() -> Vec<Case> {
    let mut cases = Vec::new();
    let large = |a_transposed, b_transposed| {
        Problem::new([68, 4, 68], &[128], [a_transposed, b_transposed])
    };
    cases.extend([large(false, false).case::<f32, f32>(), large(true, false).case::<f16, f32>()]);
    cases.extend([large(false, true).case::<f32, f16>(), large(true, true).case::<f16, f16>()]);
    // F16 for tensor cores, either side in lines either way, with more of k than is staged at
    // once; too much for an emulated GPU in large tiles.
    for transposed in [[false, false], [true, false], [false, true], [true, true]] {
        cases.push(Problem::new([68, 100, 76], &[2], transposed).case::<f16, f32>());
        cases.push(Problem::new([68, 36, 132], &[64], transposed).case::<f16, f16>().device_only());
    }
    cases
}

/// Every kernel that finishes products by every type of float, with every activation and a bias or
/// none.
pub fn finished() -> Vec<Case> {
    all_finished()
        .into_iter()
        .map(Case::as_on_software)
        .chain(all_finished().into_iter().map(Case::as_on_gpus))
        .collect()
}

fn all_finished() -> Vec<Case> {
    use Activation::*;
    let mut ways = [None, Some(Relu), Some(Relu2), Some(Silu), Some(Gelu)].into_iter().cycle();
    let mut cases = Vec::new();
    for (i, (dims, b_transposed)) in [
        ([20, 41, 70], true),
        ([70, 40, 68], false),
        ([5, 37, 19], true),
        ([9, 300, 21], true),
        ([3, 37, 19], false),
        ([6, 300, 68], false),
        ([16_260, 4, 68], true),
        ([2, 0, 5], true),
    ]
    .into_iter()
    .enumerate()
    {
        let mut way = || (ways.next().expect("it is a cycle"), i % 2 == 0);
        cases.push(finish::<f32, f32>(dims, b_transposed, way()));
        cases.push(finish::<f16, f32>(dims, b_transposed, way()));
        cases.push(finish::<f32, f16>(dims, b_transposed, way()));
        cases.push(finish::<f16, f16>(dims, b_transposed, way()));
    }
    cases
}

/// Into a tensor, and on top of one. Where there is no activation, there is a bias.
fn finish<X: Float, Y: Float>(
    [m, k, n]: [usize; 3],
    b_transposed: bool,
    (activation, biased): (Option<Activation>, bool),
) -> Case {
    let biased = biased || activation.is_none();
    let mut rng = rng((m * 100 + k * 10 + n) as u64);
    let [a, b, bias] = [m * k, k * n, n].map(|length| convert::<X>(&floats(&mut rng, length, 1.0)));
    let base = convert::<Y>(&floats(&mut rng, m * n, 9.0));
    let near = |index: usize| {
        let (i, j) = (index / n, index % n);
        let product = |l: usize| {
            f64::from(a[i * k + l].into())
                * f64::from(b[if b_transposed { j * k + l } else { l * n + j }].into())
        };
        let (exact, sizes) =
            (0..k).map(product).fold((0.0, 0.0), |(sum, sizes), p| (sum + p, sizes + p.abs()));
        let sum = Near { exact, error: U * (k + 1) as f64 * sizes };
        activated(if biased { sum.on_top_of(bias[j]) } else { sum }, activation)
    };
    let y: Vec<Near> = (0..m * n).map(near).collect();
    let added: Vec<Near> = y.iter().zip(&base).map(|(near, &base)| near.on_top_of(base)).collect();
    let check = move |got: &[Data], _| {
        got[0].check_near(y.iter().copied()).and_then(|()| got[1].check_near(added.iter().copied()))
    };
    let record = move |r: &mut Recorder| {
        let (a, b, bias) = (
            r.upload(&a, [m, k])?,
            r.upload(&b, if b_transposed { [n, k] } else { [k, n] })?,
            r.upload(&bias, [n])?,
        );
        let (y, added) = (r.output::<Y>([m, n])?, r.upload(&base, [m, n])?);
        let op = tensor::matmul(&a, side(&b, b_transposed));
        let op = activation.into_iter().fold(op, Matmul::activation);
        let op = if biased { op.bias(&bias) } else { op };
        op.forward_into(&mut r.encoder, &y)?;
        op.forward_into(&mut r.encoder, Out::add(&added))?;
        [&y, &added].into_iter().for_each(|tensor| r.watch_all(tensor));
        Ok(())
    };
    let name = format!(
        "{m} × {k} × {n}, {activation:?}, bias: {biased}, {:?} to {:?}",
        X::ELEMENT,
        Y::ELEMENT
    );
    Case::new(name, record, check).of(X::ELEMENT).of(Y::ELEMENT)
}

/// An activation of a number that is off by its error: that times the steepest slope, and what the
/// function itself is off by (the exponential by 4 + 2·|x| units at most, and that of -v²/2 counts
/// only where v is below 9).
pub(in crate::cases) fn activated(near: Near, activation: Option<Activation>) -> Near {
    let Near { exact: v, error } = near;
    let own = |units: f64| U * units * v.abs();
    match activation {
        None => near,
        Some(Activation::Relu) => Near { exact: v.max(0.0), error },
        Some(Activation::Relu2) => {
            let positive = v.max(0.0);
            Near {
                exact: positive * positive,
                error: (2.0 * positive + error) * error + own(2.0 * positive),
            }
        }
        Some(Activation::Silu) => Near {
            exact: v / (1.0 + (-v).exp()),
            error: 1.1 * error + own(16.0 + 4.0 * v.abs().min(9.0)),
        },
        Some(Activation::Gelu) => {
            let exact = 0.5 * v * libm::erfc(-v * std::f64::consts::FRAC_1_SQRT_2);
            Near { exact, error: 1.13 * error + own(16.0 + v.abs().min(9.0).powi(2)) }
        }
        Some(other) => panic!("{other:?} has no bound"),
    }
}

struct Problem {
    /// m, k, n.
    dims: [usize; 3],
    a_batch: Vec<usize>,
    b_batch: Vec<usize>,
    a_transposed: bool,
    b_transposed: bool,
}

fn side<T>(tensor: &Tensor<T>, transposed: bool) -> Side<'_, T> {
    if transposed { Side::transposed(tensor) } else { tensor.into() }
}

impl Problem {
    /// Both sides have the batch.
    fn new(dims: [usize; 3], batch: &[usize], [a_transposed, b_transposed]: [bool; 2]) -> Self {
        Self { dims, a_batch: batch.to_vec(), b_batch: batch.to_vec(), a_transposed, b_transposed }
    }

    /// Into a tensor, and on top of one.
    fn case<X: Float, Y: Float>(self) -> Case {
        let Self { dims: [m, k, n], a_batch, b_batch, a_transposed, b_transposed } = self;
        let mut rng = rng((m * 100 + k * 10 + n) as u64);
        let batch = if a_batch.is_empty() { &b_batch } else { &a_batch };
        let count: usize = batch.iter().product();
        let length = |own: &[usize]| own.iter().product::<usize>();
        let a = convert::<X>(&floats(&mut rng, length(&a_batch) * m * k, 3.0));
        let b = convert::<X>(&floats(&mut rng, length(&b_batch) * k * n, 3.0));
        let base = convert::<Y>(&floats(&mut rng, count * m * n, 9.0));
        // By the definition, an element at a time.
        let at = |data: &[X],
                  own: &[usize],
                  which: usize,
                  [rows, columns]: [usize; 2],
                  transposed: bool,
                  [r, c]: [usize; 2]|
         -> f64 {
            let first = if own.is_empty() { 0 } else { which * rows * columns };
            let place = if transposed { c * rows + r } else { r * columns + c };
            f64::from(data[first + place].into())
        };
        let near = |index: usize| {
            let (which, i, j) = (index / (m * n), index / n % m, index % n);
            let product = |l| {
                at(&a, &a_batch, which, [m, k], a_transposed, [i, l])
                    * at(&b, &b_batch, which, [k, n], b_transposed, [l, j])
            };
            let (exact, sizes) =
                (0..k).map(product).fold((0.0, 0.0), |(sum, sizes), p| (sum + p, sizes + p.abs()));
            // A product and a sum for each l.
            Near { exact, error: U * (k + 1) as f64 * sizes }
        };
        let y: Vec<Near> = (0..count * m * n).map(near).collect();
        let sum: Vec<Near> =
            y.iter().zip(&base).map(|(near, &base)| near.on_top_of(base)).collect();
        let check = move |got: &[Data], _| {
            got[0]
                .check_near(y.iter().copied())
                .and_then(|()| got[1].check_near(sum.iter().copied()))
        };
        let of = |own: &[usize], rows: usize, columns: usize, transposed: bool| {
            shape(&[own, &if transposed { [columns, rows] } else { [rows, columns] }].concat())
        };
        let numbers = |values: &[X]| values.iter().map(|&v| v.into()).collect::<Vec<f32>>();
        let (of_a, of_b, of_base) =
            (numbers(&a), numbers(&b), base.iter().map(|&v| v.into()).collect::<Vec<f32>>());
        let reference = move || {
            let y = reference::matmul(&of_a, &of_b, [m, k, n]).unwrap();
            let sum = y.iter().zip(&of_base).map(|(y, base)| y + base).collect();
            vec![Data::F32(y), Data::F32(sum)]
        };
        let shapes = [
            of(&a_batch, m, k, a_transposed),
            of(&b_batch, k, n, b_transposed),
            of(batch, m, n, false),
        ];
        let name = format!(
            "{}{}·{}{}, {:?} to {:?}",
            shapes[0],
            ["", "ᵀ"][usize::from(a_transposed)],
            shapes[1],
            ["", "ᵀ"][usize::from(b_transposed)],
            X::ELEMENT,
            Y::ELEMENT
        );
        let record = move |r: &mut Recorder| {
            let (a, b) = (r.upload(&a, shapes[0])?, r.upload(&b, shapes[1])?);
            let (y, sum) = (r.output::<Y>(shapes[2])?, r.upload(&base, shapes[2])?);
            tensor::matmul(side(&a, a_transposed), side(&b, b_transposed))
                .forward_into(&mut r.encoder, &y)?;
            tensor::matmul(side(&a, a_transposed), side(&b, b_transposed))
                .forward_into(&mut r.encoder, Out::add(&sum))?;
            r.watch_all(&y);
            r.watch_all(&sum);
            Ok(())
        };
        let case = Case::new(name, record, check).of(X::ELEMENT).of(Y::ELEMENT);
        // The CPU reference multiplies one matrix by another, as they are.
        if batch.is_empty() && !a_transposed && !b_transposed {
            case.reference(reference)
        } else {
            case
        }
    }
}
