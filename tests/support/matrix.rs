//! Matrices in `f64`, by which results in `f32` are judged, and those that linear algebra is tried
//! on.

use crate::{U, floats};
use rand::rngs::SmallRng;

/// A matrix in `f64`.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub rows: usize,
    pub columns: usize,
    pub numbers: Vec<f64>,
}

impl Matrix {
    /// Of numbers in `f32`, row by row.
    pub fn new(numbers: &[f32], rows: usize, columns: usize) -> Self {
        assert_eq!(numbers.len(), rows * columns);
        Self { rows, columns, numbers: numbers.iter().map(|&v| v.into()).collect() }
    }

    /// Of what a function gives for row and column.
    pub fn from_fn(rows: usize, columns: usize, f: impl Fn(usize, usize) -> f64) -> Self {
        Self {
            rows,
            columns,
            numbers: (0..rows * columns).map(|at| f(at / columns, at % columns)).collect(),
        }
    }

    /// Ones on the diagonal.
    pub fn identity(n: usize) -> Self {
        Self::from_fn(n, n, |i, j| if i == j { 1.0 } else { 0.0 })
    }

    /// The number in a row and a column.
    pub fn at(&self, row: usize, column: usize) -> f64 {
        self.numbers[row * self.columns + column]
    }

    /// A column.
    pub fn column(&self, column: usize) -> Self {
        Self::from_fn(self.rows, 1, |row, _| self.at(row, column))
    }

    /// Rows for columns.
    pub fn transposed(&self) -> Self {
        Self::from_fn(self.columns, self.rows, |i, j| self.at(j, i))
    }

    /// The product.
    pub fn times(&self, other: &Self) -> Self {
        let mut product = Self::from_fn(self.rows, other.columns, |_, _| 0.0);
        for i in 0..self.rows {
            for k in 0..self.columns {
                let (v, row) =
                    (self.at(i, k), &other.numbers[k * other.columns..][..other.columns]);
                product.numbers[i * other.columns..][..other.columns]
                    .iter_mut()
                    .zip(row)
                    .for_each(|(sum, other)| *sum += v * other);
            }
        }
        product
    }

    /// The difference.
    pub fn minus(&self, other: &Self) -> Self {
        Self {
            numbers: self.numbers.iter().zip(&other.numbers).map(|(a, b)| a - b).collect(),
            ..*self
        }
    }

    /// The Frobenius norm.
    pub fn norm(&self) -> f64 {
        self.numbers.iter().map(|v| v * v).sum::<f64>().sqrt()
    }

    /// The nearest numbers in `f32`, row by row.
    pub fn to_f32(&self) -> Vec<f32> {
        self.numbers.iter().map(|&v| v as f32).collect()
    }
}

/// What roundings of random direction make of sums of n products, relatively: it grows with the
/// root of n. Divisions and roots of Vulkan, off by 2.5 units, count beside it.
pub fn roundings(n: usize) -> f64 {
    (n as f64).sqrt().mul_add(2.0, 8.0) * U
}

/// Hilbert's matrix, or its first columns: the textbook's ill-conditioned one.
pub fn hilbert(rows: usize, columns: usize) -> Vec<f32> {
    Matrix::from_fn(rows, columns, |i, j| 1.0 / (i + j + 1) as f64).to_f32()
}

/// A random matrix of a lower rank.
pub fn of_rank(rng: &mut SmallRng, rank: usize, rows: usize, columns: usize) -> Vec<f32> {
    let (left, right) = (floats(rng, rows * rank, 1.0), floats(rng, rank * columns, 1.0));
    Matrix::new(&left, rows, rank).times(&Matrix::new(&right, rank, columns)).to_f32()
}
