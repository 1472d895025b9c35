//! Linear algebra against the crate `nalgebra`, in `f64`, on the same matrices: well-conditioned,
//! ill-conditioned, rank-deficient. Also large ones, and how failures come to the caller.

use bitnet_wgpu::{
    Encoder, Error, ErrorKind, Result, Shape, Tensor,
    linalg::{self, Outcome, Qr, Svd, Triangle},
    reference,
};
use nalgebra::DMatrix;
use rand::rngs::SmallRng;
use std::time::Instant;
use support::{
    Matrix, U, assert_gradient, block_on, context, floats, hilbert, of_rank, rng, roundings,
};

/// Runs an op on tensors of these numbers and waits for its results.
fn run<T: Send>(
    given: &[(&[f32], Shape)],
    op: impl Fn(&mut Encoder, &[Tensor<f32>]) -> Result<Outcome<T>>,
) -> Result<T> {
    let context = context();
    let tensors: Vec<_> =
        given.iter().map(|&(numbers, shape)| context.upload(numbers, shape).unwrap()).collect();
    let mut encoder = context.encoder("test");
    let outcome = op(&mut encoder, &tensors).unwrap();
    encoder.submit().unwrap();
    block_on(outcome.check())
}

fn read(tensor: &Tensor<f32>) -> Vec<f32> {
    block_on(tensor.read()).unwrap()
}

fn matrix(tensor: &Tensor<f32>) -> Matrix {
    let (rows, columns) = tensor.shape().as_matrix();
    Matrix::new(&read(tensor), rows, columns)
}

fn reference(a: &Matrix) -> DMatrix<f64> {
    DMatrix::from_fn(a.rows, a.columns, |i, j| a.at(i, j))
}

fn from_reference(a: DMatrix<f64>) -> Matrix {
    Matrix::from_fn(a.nrows(), a.ncols(), |i, j| a[(i, j)])
}

/// From the largest on.
fn singular_values(a: &Matrix) -> Vec<f64> {
    let mut values = reference(a).singular_values().as_slice().to_vec();
    values.sort_by(|a, b| b.total_cmp(a));
    values
}

/// Also of a matrix with more rows than columns, by its QR.
fn solved(a: &Matrix, b: &Matrix) -> Matrix {
    let qr = reference(a).qr();
    from_reference(qr.r().solve_upper_triangular(&(qr.q().transpose() * reference(b))).unwrap())
}

/// The largest singular value, and how many times the smallest it is.
fn condition(a: &Matrix) -> (f64, f64) {
    let s = singular_values(a);
    (s[0], s[0] / s[s.len() - 1])
}

#[track_caller]
fn assert_near(what: &str, got: &Matrix, expected: &Matrix, bound: f64) {
    let error = got.minus(expected).norm() / expected.norm();
    assert!(error <= bound, "{what}: off by {error:e}, not {bound:e}");
}

/// Random, wide, Hilbert's, of rank 7, of columns of many magnitudes.
fn kinds() -> Vec<(&'static str, Matrix)> {
    let mut rng = rng(1);
    let mut random = |m: usize, n: usize| Matrix::new(&floats(&mut rng, m * n, 1.0), m, n);
    let (tall, wide, mut graded) = (random(70, 45), random(20, 50), random(40, 40));
    (0..graded.numbers.len())
        .for_each(|at| graded.numbers[at] *= 10f64.powi(-(at as i32 % 40) / 3));
    let low = of_rank(&mut support::rng(2), 7, 50, 40);
    [
        ("tall", tall),
        ("wide", wide),
        ("hilbert", Matrix::new(&hilbert(30, 30), 30, 30)),
        ("rank 7", Matrix::new(&low, 50, 40)),
        ("graded", graded),
    ]
    .map(|(kind, a)| (kind, Matrix::new(&a.to_f32(), a.rows, a.columns)))
    .into()
}

#[test]
fn singular_values_are_nalgebras() {
    for (kind, a) in kinds() {
        let expected = singular_values(&a);
        let factors =
            run(&[(&a.to_f32(), [a.rows, a.columns].into())], |e, a| linalg::svd(&a[0]).forward(e))
                .unwrap();
        let (s, cpu) =
            (read(&factors.s), reference::svd(&a.to_f32(), a.rows, a.columns).unwrap().s);
        for (i, &expected) in expected.iter().enumerate() {
            // A change of A moves no singular value by more than its norm (Weyl).
            let bound = roundings(10 * a.rows.max(a.columns)) * a.norm();
            assert!(
                (f64::from(s[i]) - expected).abs() <= bound,
                "{kind}: σ{i} = {}, not {expected} ± {bound}",
                s[i]
            );
            // The CPU reference computes in f64: its small ones are right to rounding of their own.
            assert!(
                (f64::from(cpu[i]) - expected).abs() <= U * expected + 1e-13 * a.norm(),
                "{kind}: σ{i} = {}, not {expected}",
                cpu[i]
            );
        }
    }
}

#[test]
fn r_is_nalgebras_up_to_signs() {
    for (kind, a) in kinds().into_iter().filter(|(kind, _)| matches!(*kind, "tall" | "wide")) {
        let factors: Qr =
            run(&[(&a.to_f32(), [a.rows, a.columns].into())], |e, a| linalg::qr(&a[0]).forward(e))
                .unwrap();
        let (expected, r) = (from_reference(reference(&a).qr().r()), matrix(&factors.r));
        let sizes = |r: &Matrix| Matrix::from_fn(r.rows, r.columns, |i, j| r.at(i, j).abs());
        let leading = Matrix::from_fn(a.rows, a.rows.min(a.columns), |i, j| a.at(i, j));
        assert_near(kind, &sizes(&r), &sizes(&expected), condition(&leading).1 * roundings(a.rows));
    }
}

#[test]
fn solutions_are_nalgebras() {
    let mut rng = rng(3);
    let hilbert = |n| Matrix::new(&hilbert(n, n), n, n);
    for (kind, a) in [
        ("random", Matrix::new(&floats(&mut rng, 60 * 60, 1.0), 60, 60)),
        ("hilbert of 3", hilbert(3)),
        ("hilbert of 5", hilbert(5)),
    ] {
        let n = a.rows;
        let b = Matrix::new(&floats(&mut rng, n * 2, 1.0), n, 2);
        let given = [(a.to_f32(), [n, n].into()), (b.to_f32(), [n, 2].into())];
        let x = run(&given.each_ref().map(|(v, shape)| (&v[..], *shape)), |e, t| {
            linalg::solve(&t[0], &t[1]).forward(e)
        })
        .unwrap();
        let expected = from_reference(reference(&a).lu().solve(&reference(&b)).unwrap());
        assert_near(kind, &matrix(&x), &expected, condition(&a).1 * roundings(n));
        let cpu = reference::solve(&given[0].0, &given[1].0, n).unwrap();
        assert_near(kind, &Matrix::new(&cpu, n, 2), &expected, 1e-7);
    }
}

#[test]
fn least_squares_are_nalgebras() {
    let mut rng = rng(4);
    let mut random = |m: usize, n: usize| Matrix::new(&floats(&mut rng, m * n, 1.0), m, n);
    for (kind, a) in [("random", random(80, 33)), ("hilbert", Matrix::new(&hilbert(40, 4), 40, 4))]
    {
        let (m, n) = (a.rows, a.columns);
        let b = Matrix::from_fn(m, 1, |i, _| (i as f64 * 0.1).sin());
        let b = Matrix::new(&b.to_f32(), m, 1);
        let given = [(a.to_f32(), [m, n].into()), (b.to_f32(), [m, 1].into())];
        let x = run(&given.each_ref().map(|(v, shape)| (&v[..], *shape)), |e, t| {
            linalg::least_squares(&t[0], &t[1]).forward(e)
        })
        .unwrap();
        let expected = solved(&a, &b);
        // What is left counts with the square of the condition (Golub and Van Loan, 5.3.7).
        let ((norm, condition), rest) = (condition(&a), a.times(&expected).minus(&b).norm());
        let bound =
            roundings(m) * (condition + condition * condition * rest / (norm * expected.norm()));
        assert_near(kind, &matrix(&x), &expected, bound);
    }
}

#[test]
fn cholesky_factors_are_nalgebras() {
    let b = Matrix::new(&floats(&mut rng(5), 50 * 80, 1.0), 50, 80);
    let a = Matrix::new(&b.times(&b.transposed()).to_f32(), 50, 50);
    let l =
        run(&[(&a.to_f32(), [50, 50].into())], |e, a| linalg::cholesky(&a[0]).forward(e)).unwrap();
    let expected = from_reference(reference(&a).cholesky().unwrap().l());
    assert_near("L", &matrix(&l), &expected, condition(&a).1 * roundings(50));
}

/// The bounds on singular values and vectors, and bit-identical results twice.
fn assert_svd(kind: &str, a: &Matrix) {
    let ([m, n], share) = ([a.rows, a.columns], 1e-5 * (a.columns as f64).sqrt());
    let svd =
        || run(&[(&a.to_f32(), [m, n].into())], |e, a| linalg::svd(&a[0]).forward(e)).unwrap();
    let (start, Svd { u, s, vt }) = (Instant::now(), svd());
    eprintln!("svd of {m} × {n}, {kind}, in {:?}", start.elapsed());
    let (u, s, vt) = (matrix(&u), read(&s), matrix(&vt));
    let scaled = Matrix::from_fn(m, n, |i, j| u.at(i, j) * f64::from(s[j]));
    assert_orthonormal(&format!("{kind}: U"), &u);
    assert_orthonormal(&format!("{kind}: V"), &vt.transposed());
    assert_near(&format!("{kind}: U·Σ·Vᵀ"), &scaled.times(&vt), a, share);
    let again = svd();
    assert_eq!((u.to_f32(), s, vt.to_f32()), (read(&again.u), read(&again.s), read(&again.vt)));
}

/// ‖QᵀQ - I‖ is at most 1e-5·√n, which is 1e-5 of the norm of I.
fn assert_orthonormal(what: &str, q: &Matrix) {
    assert_near(what, &q.transposed().times(q), &Matrix::identity(q.columns), 1e-5);
}

/// The bounds that are promised for 512 × 512: of random matrices, of lower rank, and
/// ill-conditioned.
#[test]
fn large_matrices() {
    let (n, share) = (512, 1e-5 * 512f64.sqrt());
    // The square takes a minute where the GPU is a CPU.
    let columns = if context().capabilities().software { 96 } else { n };
    let a = Matrix::new(&floats(&mut rng(6), n * n, 1.0), n, n);
    let low = Matrix::new(&of_rank(&mut rng(10), 50, n, n), n, n);
    for (kind, a) in
        [("random", &a), ("rank 50", &low), ("hilbert", &Matrix::new(&hilbert(n, n), n, n))]
    {
        let Qr { q, r } =
            run(&[(&a.to_f32(), [n, n].into())], |e, a| linalg::qr(&a[0]).forward(e)).unwrap();
        assert_orthonormal(&format!("{kind}: Q"), &matrix(&q));
        assert_near(&format!("{kind}: Q·R"), &matrix(&q).times(&matrix(&r)), a, share / 10.0);
        assert_svd(kind, &Matrix::from_fn(n, columns, |i, j| a.at(i, j)));
    }

    // A square random matrix is all but singular, so what is added decides on the condition.
    let product = a.times(&a.transposed());
    for added in [0.1, 1e-4] {
        let positive = Matrix::from_fn(n, n, |i, j| {
            product.at(i, j) / n as f64 + if i == j { added } else { 0.0 }
        });
        let positive = Matrix::new(&positive.to_f32(), n, n);
        let l = matrix(
            &run(&[(&positive.to_f32(), [n, n].into())], |e, a| linalg::cholesky(&a[0]).forward(e))
                .unwrap(),
        );
        assert_near(
            &format!("L·Lᵀ with {added}"),
            &l.times(&l.transposed()),
            &positive,
            share / 10.0,
        );
    }

    let b = floats(&mut rng(7), n, 1.0);
    let x = matrix(
        &run(&[(&a.to_f32(), [n, n].into()), (&b, [n, 1].into())], |e, t| {
            linalg::solve(&t[0], &t[1]).forward(e)
        })
        .unwrap(),
    );
    let rest = a.times(&x).minus(&Matrix::new(&b, n, 1)).norm();
    assert!(rest <= share / 10.0 * a.norm() * x.norm(), "{rest}");
}

/// Rotations by themselves leave vectors of this many less orthogonal, by 4e-6; for 512 × 512 that
/// is more than is promised.
#[test]
fn singular_vectors_are_orthonormal() {
    let n = 192;
    let Svd { u, vt, .. } =
        run(&[(&hilbert(n, n), [n, n].into())], |e, a| linalg::svd(&a[0]).forward(e)).unwrap();
    for (what, q) in [("U", matrix(&u)), ("V", matrix(&vt).transposed())] {
        assert_near(what, &q.transposed().times(&q), &Matrix::identity(n), 2e-6);
    }
}

#[test]
fn the_same_bits_twice() {
    let (context, n) = (context(), 70);
    let product = of_rank(&mut rng(9), n, n, n);
    let dominant: Vec<f32> = product
        .iter()
        .enumerate()
        .map(|(at, v)| if at / n == at % n { v + 200.0 } else { *v })
        .collect();
    let a = context.upload(&dominant, [n, n]).unwrap();
    let mut encoder = context.encoder("twice");
    let e = &mut encoder;
    let (l, status) = linalg::cholesky(&a).forward(e).unwrap().unchecked();
    let (Qr { q, r }, _) = linalg::qr(&a).full().forward(e).unwrap().unchecked();
    let (Svd { u, s, vt }, _) = linalg::svd(&a).forward(e).unwrap().unchecked();
    let (x, _) = linalg::solve(&a, &q).forward(e).unwrap().unchecked();
    let (y, _) = linalg::triangular_solve(&l, &q, Triangle::LOWER).forward(e).unwrap().unchecked();
    let recording = encoder.finish();
    let results = || {
        drop(recording.submit().unwrap());
        block_on(status.check()).unwrap();
        [&l, &q, &r, &u, &s, &vt, &x, &y].map(read)
    };
    assert_eq!(results(), results());
}

#[test]
fn failures_are_typed_errors() {
    let error = |result: Result<Tensor<f32>>| result.map(|_| ()).unwrap_err();
    let ones = [1.0f32; 4 * 12];
    let given: [(&[f32], Shape); 2] = [(&ones[..4], [2, 2].into()), (&ones[..2], [2, 1].into())];
    let singular = error(run(&given, |e, t| linalg::solve(&t[0], &t[1]).forward(e)));
    assert!(
        matches!(singular, Error::Singular { op: "solve", matrix: 0, column: 2 }),
        "{singular}"
    );
    assert_eq!(singular.kind(), ErrorKind::Numbers);
    assert_eq!(
        singular.to_string(),
        "solve: matrix 0 is singular: column 2 has no pivot beyond rounding"
    );

    let given: [(&[f32], Shape); 2] =
        [(&ones, [2, 2, 4, 3].into()), (&ones[..16], [2, 2, 4, 1].into())];
    let deficient = error(run(&given, |e, t| linalg::least_squares(&t[0], &t[1]).forward(e)));
    assert!(
        matches!(deficient, Error::RankDeficient { op: "least_squares", matrix: 0, column: 2 }),
        "{deficient}"
    );

    // The second matrix of two.
    let a = [1.0f32, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, -1.0];
    let indefinite =
        error(run(&[(&a, [2, 2, 2].into())], |e, t| linalg::cholesky(&t[0]).forward(e)));
    assert!(
        matches!(indefinite, Error::NotPositiveDefinite { op: "cholesky", matrix: 1, column: 2 }),
        "{indefinite}"
    );

    let given: [(&[f32], Shape); 2] = [(&[0.0], [1, 1].into()), (&[f32::NAN], [1, 1].into())];
    let zero = error(run(&given, |e, t| {
        linalg::triangular_solve(&t[0], &t[0], Triangle::LOWER).forward(e)
    }));
    assert!(
        matches!(zero, Error::Singular { op: "triangular_solve", matrix: 0, column: 1 }),
        "{zero}"
    );
    let nan = run(&given[1..], |e, t| linalg::qr(&t[0]).forward(e)).map(|_| ()).unwrap_err();
    assert!(matches!(nan, Error::NotFinite { op: "qr", matrix: 0 }), "{nan}");

    let random = floats(&mut rng(8), 400, 1.0);
    let early = run(&[(&random, [20, 20].into())], |e, t| linalg::svd(&t[0]).sweeps(2).forward(e))
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(early, Error::NotConverged { op: "svd", matrix: 0, sweeps: 2 }), "{early}");
}

/// A matrix that fails spoils no other of its batch, and what is made of it fails too.
#[test]
fn failures_reach_the_end_of_a_chain() {
    let context = context();
    let mut encoder = context.encoder("chain");
    let a = context.upload(&[4.0f32, 0.0, 0.0, 4.0, -1.0, 0.0, 0.0, 1.0], [2, 2, 2]).unwrap();
    let (l, first) = linalg::cholesky(&a).forward(&mut encoder).unwrap().unchecked();
    let (x, last) = linalg::triangular_solve(&l, &a, Triangle::LOWER)
        .forward(&mut encoder)
        .unwrap()
        .unchecked();
    // Before it has run there is nothing to know.
    assert!(matches!(block_on(first.check()), Err(Error::Invalid { op: "cholesky", .. })));
    let recording = encoder.finish();
    for _ in 0..2 {
        drop(recording.submit().unwrap());
        assert!(matches!(
            block_on(first.check()),
            Err(Error::NotPositiveDefinite { matrix: 1, column: 1, .. })
        ));
        let results = block_on(last.results()).unwrap();
        assert!(
            matches!(
                results[..],
                [Ok(()), Err(Error::NotFinite { op: "triangular_solve", matrix: 1 })]
            ),
            "{results:?}"
        );
        assert_eq!(read(&x)[..4], [2.0, 0.0, 0.0, 2.0]);
        assert!(read(&x)[4..].iter().all(|v| v.is_nan()));
    }
    // The same recording, on a matrix that is sound now.
    a.write(&[4.0, 0.0, 0.0, 4.0, 1.0, 0.0, 0.0, 1.0]).unwrap();
    drop(recording.submit().unwrap());
    block_on(last.check()).unwrap();
    assert_eq!(read(&x)[4..], [1.0, 0.0, 0.0, 1.0]);
}

#[test]
fn what_does_not_fit_is_refused() {
    fn refused<T>(result: Result<Outcome<T>>) {
        assert!(matches!(result.map(|_| ()), Err(Error::Shape { .. })));
    }
    let mut encoder = context().encoder("test");
    let [vector, wide, square] = [vec![4], vec![2, 3], vec![3, 3]].map(|dims| {
        let shape: Shape = if let [m, n] = dims[..] { [m, n].into() } else { [4].into() };
        Tensor::<f32>::uninit(context(), shape).unwrap()
    });
    let batch = Tensor::<f32>::uninit(context(), [2, 3, 1]).unwrap();
    refused(linalg::cholesky(&vector).forward(&mut encoder));
    refused(linalg::cholesky(&wide).forward(&mut encoder));
    refused(linalg::triangular_solve(&wide, &wide, Triangle::UPPER).forward(&mut encoder));
    refused(linalg::triangular_solve(&square, &batch, Triangle::UPPER).forward(&mut encoder));
    refused(linalg::solve(&wide, &wide).forward(&mut encoder));
    refused(linalg::solve(&square, &wide).forward(&mut encoder));
    refused(linalg::solve(&square, &batch).forward(&mut encoder));
    refused(linalg::least_squares(&wide, &wide).forward(&mut encoder));
    refused(linalg::qr(&vector).forward(&mut encoder));
    refused(linalg::qr(&vector).full().forward(&mut encoder));
    refused(linalg::svd(&vector).forward(&mut encoder));
    fn no_gradient<T>(result: Result<T>) {
        assert!(matches!(result.map(|_| ()), Err(Error::Shape { .. })));
    }
    let (column, row) = (
        Tensor::<f32>::uninit(context(), [3, 1]).unwrap(),
        Tensor::<f32>::uninit(context(), [1, 3]).unwrap(),
    );
    no_gradient(linalg::triangular_solve(&square, &column, Triangle::UPPER).backward(
        &mut encoder,
        &wide,
        &column,
    ));
    no_gradient(linalg::triangular_solve(&wide, &column, Triangle::UPPER).backward(
        &mut encoder,
        &column,
        &column,
    ));
    no_gradient(linalg::solve(&wide, &column).backward(&mut encoder, &column, &column));
    no_gradient(linalg::solve(&square, &column).backward(&mut encoder, &batch, &column));
    no_gradient(linalg::least_squares(&wide, &column).backward(&mut encoder, &column, &column));
    no_gradient(linalg::least_squares(&square, &column).backward(&mut encoder, &square, &column));
    no_gradient(linalg::least_squares(&square, &column).backward(&mut encoder, &column, &square));
    no_gradient(linalg::cholesky(&wide).backward(&mut encoder, &wide, &wide));
    no_gradient(linalg::cholesky(&square).backward(&mut encoder, &square, &wide));
    let qr = |q: &Tensor<f32>, r: &Tensor<f32>| Qr { q: q.clone(), r: r.clone() };
    no_gradient(linalg::qr(&square).backward(
        &mut encoder,
        &qr(&wide, &square),
        &qr(&wide, &square),
    ));
    no_gradient(linalg::qr(&square).backward(
        &mut encoder,
        &qr(&square, &wide),
        &qr(&square, &wide),
    ));
    // Of the full form.
    no_gradient(linalg::qr(&square).backward(
        &mut encoder,
        &qr(&square, &column),
        &qr(&square, &column),
    ));
    no_gradient(linalg::qr(&square).backward(&mut encoder, &qr(&column, &row), &qr(&column, &row)));
    no_gradient(linalg::qr(&square).backward(
        &mut encoder,
        &qr(&square, &square),
        &qr(&square, &wide),
    ));
    let svd = |u: &Tensor<f32>, s: &Tensor<f32>, vt: &Tensor<f32>| Svd {
        u: u.clone(),
        s: s.clone(),
        vt: vt.clone(),
    };
    let three = Tensor::<f32>::uninit(context(), [3]).unwrap();
    let sound = svd(&square, &three, &square);
    no_gradient(linalg::svd(&square).backward(
        &mut encoder,
        &svd(&square, &vector, &square),
        &sound,
    ));
    no_gradient(linalg::svd(&square).backward(&mut encoder, &svd(&wide, &vector, &square), &sound));
    no_gradient(linalg::svd(&square).backward(&mut encoder, &sound, &svd(&square, &three, &wide)));
    assert!(encoder.is_empty());
    assert!(matches!(
        reference::least_squares_backward(&[0.0; 2], &[0.0], &[0.0; 2], &[0.0; 2], 1, 2),
        Err(Error::Invalid { .. })
    ));
    assert!(matches!(
        reference::solve_backward(&[1.0], &[0.0], &[0.0; 2], 1),
        Err(Error::Length { .. })
    ));
    assert!(matches!(reference::cholesky(&[0.0; 3], 2), Err(Error::Length { .. })));
    assert!(matches!(
        reference::triangular_solve(&[0.0; 4], &[0.0; 3], 2, Triangle::LOWER),
        Err(Error::Length { .. })
    ));
    assert!(matches!(reference::solve(&[0.0; 4], &[0.0; 3], 2), Err(Error::Length { .. })));
    assert!(matches!(
        reference::least_squares(&[0.0; 2], &[0.0; 1], 1, 2),
        Err(Error::Invalid { .. })
    ));
    assert!(matches!(reference::qr(&[0.0; 3], 2, 2, false), Err(Error::Length { .. })));
    assert!(matches!(reference::svd(&[0.0; 3], 2, 2), Err(Error::Length { .. })));
}

/// Twice the identity, and something.
fn near_two(rng: &mut SmallRng, rows: usize, columns: usize) -> Vec<f32> {
    let noise = floats(rng, rows * columns, 0.3);
    noise
        .iter()
        .enumerate()
        .map(|(at, v)| if at / columns == at % columns { v + 2.0 } else { *v })
        .collect()
}

/// Σ dy·y
fn weighed(y: &Matrix, dy: &[f32]) -> f64 {
    dy.iter()
        .enumerate()
        .map(|(at, dy)| y.at(at / y.columns, at % y.columns) * f64::from(*dy))
        .sum()
}

/// The gradients of the CPU references against finite differences of `nalgebra`'s results.
#[test]
fn gradients_are_slopes() {
    let of = |numbers: &[f64], rows: usize, columns: usize| {
        Matrix::from_fn(rows, columns, |i, j| numbers[i * columns + j])
    };
    let wide = |numbers: &[f32]| numbers.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    let solved =
        |a: &Matrix, b: &Matrix| from_reference(reference(a).lu().solve(&reference(b)).unwrap());
    let mut rng = rng(80);

    let (n, sides) = (4, 2);
    let (a, b, dx) = (
        near_two(&mut rng, n, n),
        floats(&mut rng, n * sides, 1.0),
        floats(&mut rng, n * sides, 1.0),
    );
    let lower = |a: &[f64]| Matrix::from_fn(n, n, |i, j| if i < j { 0.0 } else { a[i * n + j] });
    let x = solved(&of(&wide(&a), n, n), &of(&wide(&b), n, sides)).to_f32();
    let made = reference::solve_backward(&a, &x, &dx, n).unwrap();
    assert_gradient("solve, A", &a, &made.0, |a| {
        weighed(&solved(&of(a, n, n), &of(&wide(&b), n, sides)), &dx)
    });
    assert_gradient("solve, b", &b, &made.1, |b| {
        weighed(&solved(&of(&wide(&a), n, n), &of(b, n, sides)), &dx)
    });
    let x = solved(&lower(&wide(&a)), &of(&wide(&b), n, sides)).to_f32();
    let made = reference::triangular_solve_backward(&a, &x, &dx, n, Triangle::LOWER).unwrap();
    assert_gradient("triangular, A", &a, &made.0, |a| {
        weighed(&solved(&lower(a), &of(&wide(&b), n, sides)), &dx)
    });
    assert_gradient("triangular, b", &b, &made.1, |b| {
        weighed(&solved(&lower(&wide(&a)), &of(b, n, sides)), &dx)
    });

    let (m, n) = (6, 3);
    let (a, b, dx) = (
        near_two(&mut rng, m, n),
        floats(&mut rng, m * sides, 1.0),
        floats(&mut rng, n * sides, 1.0),
    );
    let fitted = |a: &[f64], b: &[f64]| {
        let turned = of(a, m, n).transposed();
        solved(&turned.times(&of(a, m, n)), &turned.times(&of(b, m, sides)))
    };
    let x = fitted(&wide(&a), &wide(&b)).to_f32();
    let made = reference::least_squares_backward(&a, &b, &x, &dx, m, n).unwrap();
    assert_gradient("least squares, A", &a, &made.0, |a| weighed(&fitted(a, &wide(&b)), &dx));
    assert_gradient("least squares, b", &b, &made.1, |b| weighed(&fitted(&wide(&a), b), &dx));

    // Both triangles change together.
    let (n, dl) = (4, floats(&mut rng, 16, 1.0));
    let a = near_two(&mut rng, n, n);
    let factor = |a: &[f64]| {
        let symmetric = Matrix::from_fn(n, n, |i, j| 0.5 * (a[i * n + j] + a[j * n + i]));
        from_reference(reference(&symmetric).cholesky().unwrap().l())
    };
    let made = reference::cholesky_backward(&factor(&wide(&a)).to_f32(), &dl, n).unwrap();
    assert_gradient("cholesky", &a, &made, |a| weighed(&factor(a), &dl));

    for [m, n] in [[5, 3], [3, 3], [3, 5]] {
        let (a, k) = (near_two(&mut rng, m, n), m.min(n));
        let (dq, dr) = (floats(&mut rng, m * k, 1.0), floats(&mut rng, k * n, 1.0));
        // With a positive diagonal.
        let factors = |a: &[f64]| {
            let made = reference(&of(a, m, n)).qr();
            let (q, r) = (from_reference(made.q()), from_reference(made.r()));
            let sign = |i: usize| r.at(i, i).signum();
            [
                Matrix::from_fn(m, k, |i, j| q.at(i, j) * sign(j)),
                Matrix::from_fn(k, n, |i, j| r.at(i, j) * sign(i)),
            ]
        };
        let [q, r] = factors(&wide(&a)).map(|factor| factor.to_f32());
        let gradients = Qr { q: dq.clone(), r: dr.clone() };
        let made = reference::qr_backward(&Qr { q, r }, &gradients, m, n).unwrap();
        assert_gradient(&format!("qr, {m} × {n}"), &a, &made, |a| {
            let [q, r] = factors(a);
            weighed(&q, &dq) + weighed(&r, &dr)
        });
        let (made, ds) = (reference::svd(&a, m, n).unwrap(), floats(&mut rng, k, 1.0));
        let gradients = Svd { u: vec![0.0; m * k], s: ds.clone(), vt: vec![0.0; k * n] };
        let made = reference::svd_backward(&made, &gradients, m, n).unwrap();
        assert_gradient(&format!("singular values, {m} × {n}"), &a, &made, |a| {
            singular_values(&of(a, m, n)).iter().zip(&ds).map(|(s, ds)| s * f64::from(*ds)).sum()
        });
    }
}
