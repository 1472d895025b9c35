//! Factorisations and solutions of dense matrices. They are judged by what defines them, in `f64`: A = L·Lᵀ, QᵀQ = I and so on.

mod cholesky;
mod least_squares;
mod qr;
mod solve;
mod svd;
mod triangular_solve;

use super::{By::*, Family};
use crate::{Case, Data, Recorder, U, floats};
use bitnet_wgpu::{
    Error, Result, Shape, Tensor,
    linear_algebra::{Outcome, Status},
};
use rand::rngs::StdRng;

pub const OPS: Family = &[
    ("linear_algebra::cholesky", WgslAndTwin, cholesky::cases),
    ("linear_algebra::least_squares", WgslAndTwin, least_squares::cases),
    ("linear_algebra::qr", WgslAndTwin, qr::cases),
    ("linear_algebra::solve", WgslAndTwin, solve::cases),
    ("linear_algebra::svd", WgslAndTwin, svd::cases),
    ("linear_algebra::triangular_solve", WgslAndTwin, triangular_solve::cases),
];

/// What must become of a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Fine,
    /// Its status is this.
    Fails(u32),
    /// At which column, rounding decides.
    FailsSomewhere,
    /// Rounding decides whether it fails; if it does not, its results are right.
    Open,
}
use Fate::*;

const NOT_FINITE: Fate = Fails(Status::NOT_FINITE);

/// The matrices of a batch: a row of numbers for each, all of these dimensions.
struct Input {
    rows: usize,
    columns: usize,
    matrices: Vec<Vec<f32>>,
}

impl Input {
    /// One matrix in two dimensions, four in four, others in three.
    fn shape(&self) -> Shape {
        let [m, n] = [self.rows, self.columns];
        match self.matrices.len() {
            1 => [m, n].into(),
            4 => [2, 2, m, n].into(),
            count => [count, m, n].into(),
        }
    }
}

/// An op on a batch. `record` gives its results, `twin` those of one matrix by the CPU twin, and `judge` says what is wrong with those of one matrix;
/// both take the inputs' numbers of that matrix.
fn case<T: 'static>(
    name: String,
    inputs: Vec<Input>,
    fates: Vec<Fate>,
    record: impl Fn(&mut Recorder, &[Tensor<f32>]) -> Result<Outcome<T>> + Send + Sync + 'static,
    tensors: fn(&T) -> Vec<Tensor<f32>>,
    twin: impl Fn(&[&[f32]]) -> Result<Vec<Vec<f32>>> + Send + Sync + Clone + 'static,
    judge: impl Fn(&[&[f32]], &[&[f32]]) -> Result<(), String> + Send + Sync + 'static,
) -> Case {
    let count = fates.len();
    let given: Vec<Vec<Vec<f32>>> = (0..count).map(|i| inputs.iter().map(|input| input.matrices[i].clone()).collect()).collect();
    let judged = given.clone();
    let check = move |got: &[Data], _| {
        let Some((Data::U32(status), results)) = got.split_last() else { return Err("there is no status".to_owned()) };
        let results: Vec<Vec<f32>> = results.iter().map(Data::to_f32).collect();
        for (i, (fate, &code)) in fates.iter().zip(status).enumerate() {
            let of_matrix: Vec<&[f32]> = results.iter().map(|all| &all[i * (all.len() / count)..][..all.len() / count]).collect();
            let wrong = match (fate, code) {
                (Fine | Open, 0) => judge(&slices(&judged[i]), &of_matrix),
                (FailsSomewhere, 0) => Err("it does not fail".to_owned()),
                (Fails(wanted), code) if code != *wanted => Err(format!("its status is {code:#x}, not {wanted:#x}")),
                (Fine, code) => Err(format!("its status is {code:#x}")),
                _ if of_matrix.iter().any(|all| all.iter().any(|v| !v.is_nan())) => Err("it failed, and has results".to_owned()),
                _ => Ok(()),
            };
            wrong.map_err(|wrong| format!("matrix {i}: {wrong}"))?;
        }
        Ok(())
    };
    let shapes: Vec<Shape> = inputs.iter().map(Input::shape).collect();
    let flat: Vec<Vec<f32>> = inputs.into_iter().map(|input| input.matrices.concat()).collect();
    let record = move |r: &mut Recorder| {
        let inputs: Vec<_> = flat.iter().zip(&shapes).map(|(numbers, &shape)| r.upload(numbers, shape)).collect::<Result<_>>()?;
        let (value, status) = record(r, &inputs)?.unchecked();
        tensors(&value).iter().for_each(|tensor| r.watch_all(tensor));
        r.watch_all(status.words());
        Ok(())
    };
    Case::new(name, record, check).twin(move || {
        let of_all: Vec<Result<Vec<Vec<f32>>>> = given.iter().map(|inputs| twin(&slices(inputs))).collect();
        // Those of a matrix that failed are as long as those of one that did not; where all failed there is nothing to compare.
        let sound = of_all.iter().find_map(|results| results.as_ref().ok().cloned()).unwrap_or_default();
        let nan: Vec<Vec<f32>> = sound.iter().map(|numbers| vec![f32::NAN; numbers.len()]).collect();
        let result = |i: usize| of_all.iter().flat_map(|all| all.as_ref().unwrap_or(&nan)[i].clone()).collect();
        let status = of_all.iter().map(|all| all.as_ref().err().map_or(0, word)).collect();
        (0..sound.len()).map(|i| Data::F32(result(i))).chain([Data::U32(status)]).collect()
    })
}

fn slices(vectors: &[Vec<f32>]) -> Vec<&[f32]> {
    vectors.iter().map(|vector| &vector[..]).collect()
}

/// The status that an error of a CPU twin stands for.
fn word(error: &Error) -> u32 {
    match *error {
        Error::NotPositiveDefinite { column, .. } | Error::Singular { column, .. } | Error::RankDeficient { column, .. } => column as u32,
        Error::NotConverged { sweeps, .. } => sweeps as u32,
        Error::NotFinite { .. } => Status::NOT_FINITE,
        ref other => panic!("{other}"),
    }
}

/// A matrix in `f64`.
#[derive(Clone)]
struct Matrix {
    rows: usize,
    columns: usize,
    numbers: Vec<f64>,
}

impl Matrix {
    fn new(numbers: &[f32], rows: usize, columns: usize) -> Self {
        assert_eq!(numbers.len(), rows * columns);
        Self { rows, columns, numbers: numbers.iter().map(|&v| v.into()).collect() }
    }

    fn from_fn(rows: usize, columns: usize, f: impl Fn(usize, usize) -> f64) -> Self {
        Self { rows, columns, numbers: (0..rows * columns).map(|at| f(at / columns, at % columns)).collect() }
    }

    fn identity(n: usize) -> Self {
        Self::from_fn(n, n, |i, j| if i == j { 1.0 } else { 0.0 })
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.numbers[row * self.columns + column]
    }

    fn column(&self, column: usize) -> Self {
        Self::from_fn(self.rows, 1, |row, _| self.at(row, column))
    }

    fn transposed(&self) -> Self {
        Self::from_fn(self.columns, self.rows, |i, j| self.at(j, i))
    }

    fn times(&self, other: &Self) -> Self {
        let mut product = Self::from_fn(self.rows, other.columns, |_, _| 0.0);
        for i in 0..self.rows {
            for k in 0..self.columns {
                let (v, row) = (self.at(i, k), &other.numbers[k * other.columns..][..other.columns]);
                product.numbers[i * other.columns..][..other.columns].iter_mut().zip(row).for_each(|(sum, other)| *sum += v * other);
            }
        }
        product
    }

    fn minus(&self, other: &Self) -> Self {
        Self { numbers: self.numbers.iter().zip(&other.numbers).map(|(a, b)| a - b).collect(), ..*self }
    }

    /// The Frobenius norm.
    fn norm(&self) -> f64 {
        self.numbers.iter().map(|v| v * v).sum::<f64>().sqrt()
    }

    fn to_f32(&self) -> Vec<f32> {
        self.numbers.iter().map(|&v| v as f32).collect()
    }
}

/// What roundings of random direction make of sums of n products, relatively: it grows with the root of n. Divisions and roots of Vulkan, off by 2.5
/// units, count beside it.
fn roundings(n: usize) -> f64 {
    (n as f64).sqrt().mul_add(2.0, 8.0) * U
}

/// Hilbert's matrix, or its first columns: the textbook's ill-conditioned one.
fn hilbert(rows: usize, columns: usize) -> Vec<f32> {
    Matrix::from_fn(rows, columns, |i, j| 1.0 / (i + j + 1) as f64).to_f32()
}

/// A random matrix of a lower rank.
fn of_rank(rng: &mut StdRng, rank: usize, rows: usize, columns: usize) -> Vec<f32> {
    let (left, right) = (floats(rng, rows * rank, 1.0), floats(rng, rank * columns, 1.0));
    Matrix::new(&left, rows, rank).times(&Matrix::new(&right, rank, columns)).to_f32()
}

/// Are the columns orthonormal?
fn orthonormal(what: &str, q: &Matrix) -> Result<(), String> {
    let error = q.transposed().times(q).minus(&Matrix::identity(q.columns)).norm();
    small(what, error, (q.columns as f64).sqrt(), roundings(q.rows))
}

/// Is `error` at most this share of `whole`?
fn small(what: &str, error: f64, whole: f64, share: f64) -> Result<(), String> {
    if error <= share * whole { Ok(()) } else { Err(format!("{what} is {:e}, above {share:e}", error / whole)) }
}
