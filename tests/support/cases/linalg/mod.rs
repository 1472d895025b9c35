//! Factorizations and solutions of dense matrices. They are judged by what defines them, in `f64`:
//! A = L·Lᵀ, QᵀQ = I and so on.

mod cholesky;
mod gradients;
mod least_squares;
mod qr;
mod solve;
mod svd;
mod triangular_solve;

use super::{By::*, Family};
use crate::{Case, Compared, Data, Matrix, Recorder, roundings};
use bitnet_wgpu::{
    Error, Result, Shape, Tensor,
    linalg::{Outcome, Status},
};

pub const OPS: Family = &[
    ("linalg::cholesky", WgslAndReference, cholesky::cases),
    ("linalg::gradients", Wgsl, gradients::cases),
    ("linalg::least_squares", WgslAndReference, least_squares::cases),
    ("linalg::qr", WgslAndReference, qr::cases),
    ("linalg::solve", WgslAndReference, solve::cases),
    ("linalg::svd", WgslAndReference, svd::cases),
    ("linalg::triangular_solve", WgslAndReference, triangular_solve::cases),
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

/// An op on a batch. `record` gives its results, `reference` those of one matrix by the CPU reference,
/// and `judge` says what is wrong with those of one matrix; both take the inputs' numbers of that
/// matrix.
fn case<T: 'static>(
    name: String,
    inputs: Vec<Input>,
    fates: Vec<Fate>,
    record: impl Fn(&mut Recorder, &[Tensor<f32>]) -> Result<Outcome<T>> + Send + Sync + 'static,
    tensors: fn(&T) -> Vec<Tensor<f32>>,
    reference: impl Fn(&[&[f32]]) -> Result<Vec<Vec<f32>>> + Send + Sync + Clone + 'static,
    judge: impl Fn(&[&[f32]], &[&[f32]]) -> Result<(), String> + Send + Sync + 'static,
) -> Case {
    let count = fates.len();
    let given: Vec<Vec<Vec<f32>>> = (0..count)
        .map(|i| inputs.iter().map(|input| input.matrices[i].clone()).collect())
        .collect();
    let judged = given.clone();
    let check = move |got: &[Data], _| {
        let Some((Data::U32(status), results)) = got.split_last() else {
            return Err("there is no status".to_owned());
        };
        let results: Vec<Vec<f32>> = results.iter().map(Data::to_f32).collect();
        for (i, (fate, &code)) in fates.iter().zip(status).enumerate() {
            let of_matrix: Vec<&[f32]> = results
                .iter()
                .map(|all| &all[i * (all.len() / count)..][..all.len() / count])
                .collect();
            let wrong = match (fate, code) {
                (Fine | Open, 0) => judge(&slices(&judged[i]), &of_matrix),
                (FailsSomewhere, 0) => Err("it does not fail".to_owned()),
                (Fails(expected), code) if code != *expected => {
                    Err(format!("its status is {code:#x}, not {expected:#x}"))
                }
                (Fine, code) => Err(format!("its status is {code:#x}")),
                _ if of_matrix.iter().any(|all| all.iter().any(|v| !v.is_nan())) => {
                    Err("it failed, and has results".to_owned())
                }
                _ => Ok(()),
            };
            wrong.map_err(|wrong| format!("matrix {i}: {wrong}"))?;
        }
        Ok(())
    };
    let shapes: Vec<Shape> = inputs.iter().map(Input::shape).collect();
    let flat: Vec<Vec<f32>> = inputs.into_iter().map(|input| input.matrices.concat()).collect();
    let record = move |r: &mut Recorder| {
        let inputs: Vec<_> = flat
            .iter()
            .zip(&shapes)
            .map(|(numbers, &shape)| r.upload(numbers, shape))
            .collect::<Result<_>>()?;
        let (value, status) = record(r, &inputs)?.unchecked();
        tensors(&value).iter().for_each(|tensor| r.watch_all(tensor));
        r.watch_all(status.words());
        Ok(())
    };
    Case::new(name, record, check).reference(move || {
        let of_all: Vec<Result<Vec<Vec<f32>>>> =
            given.iter().map(|inputs| reference(&slices(inputs))).collect();
        // Those of a matrix that failed are as long as those of one that did not; where all failed
        // there is nothing to compare.
        let sound =
            of_all.iter().find_map(|results| results.as_ref().ok().cloned()).unwrap_or_default();
        let nan: Vec<Vec<f32>> =
            sound.iter().map(|numbers| vec![f32::NAN; numbers.len()]).collect();
        let result = |i: usize| {
            of_all.iter().flat_map(|all| all.as_ref().unwrap_or(&nan)[i].clone()).collect()
        };
        let status = of_all.iter().map(|all| all.as_ref().err().map_or(0, word)).collect();
        (0..sound.len()).map(|i| Data::F32(result(i))).chain([Data::U32(status)]).collect()
    })
}

fn slices(vectors: &[Vec<f32>]) -> Vec<&[f32]> {
    vectors.iter().map(|vector| &vector[..]).collect()
}

/// The status that an error of a CPU reference stands for.
fn word(error: &Error) -> u32 {
    match *error {
        Error::NotPositiveDefinite { column, .. }
        | Error::Singular { column, .. }
        | Error::RankDeficient { column, .. } => column as u32,
        Error::NotConverged { sweeps, .. } => sweeps as u32,
        Error::NotFinite { .. } => Status::NOT_FINITE,
        ref other => panic!("{other}"),
    }
}

/// Checks that the columns are orthonormal.
fn orthonormal(what: &str, q: &Matrix) -> Result<(), String> {
    let error = q.transposed().times(q).minus(&Matrix::identity(q.columns)).norm();
    small(what, error, (q.columns as f64).sqrt(), roundings(q.rows))
}

/// Checks that `error` is at most this share of `whole`.
fn small(what: &str, error: f64, whole: f64, share: f64) -> Result<(), String> {
    Compared::BOUNDS.note();
    if error <= share * whole {
        Ok(())
    } else {
        Err(format!("{what} is {:e}, above {share:e}", error / whole))
    }
}
