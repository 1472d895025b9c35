//! The product of two dense matrices.

use super::threads::by_chunks;
use crate::{error::Result, ops::tensor::matmul::zeros};

/// Rows and columns of outputs that stay in registers.
const ROWS: usize = 4;
const COLUMNS: usize = 32;

/// Products that are worth being given to another thread.
const TASK: usize = 1 << 17;

/// Returns a·b of matrices `[m, k]` and `[k, n]`, `[m, n]`. Products are fused with their sum, and
/// added in the order of k: bit-identical to [`reference::matmul`](crate::reference::matmul).
///
/// # Errors
/// [`Error::Length`](crate::Error::Length) if a slice is no such matrix.
pub fn matmul(a: &[f32], b: &[f32], [m, k, n]: [usize; 3]) -> Result<Vec<f32>> {
    let mut y = zeros(a, b, [m, k, n])?;
    if n > 0 && k > 0 {
        let rows = (TASK / k.saturating_mul(n)).max(1).next_multiple_of(ROWS);
        by_chunks(&mut y, rows.saturating_mul(n), |first, y| {
            multiply(&a[first / n * k..], b, [k, n], y);
        });
    }
    Ok(y)
}

/// Some rows of the product; `a` begins with theirs.
#[multiversion::multiversion(targets = "simd")]
fn multiply(a: &[f32], b: &[f32], [k, n]: [usize; 2], y: &mut [f32]) {
    let rows = y.len() / n;
    // Columns first: those of `b` are read from memory once.
    for column in (0..n).step_by(COLUMNS) {
        let width = COLUMNS.min(n - column);
        let mut row = 0;
        while row < rows {
            let (a, y) = (&a[row * k..], &mut y[row * n + column..]);
            row += match (width == COLUMNS, rows - row >= ROWS) {
                (true, true) => tile::<ROWS>(a, &b[column..], [k, n], y),
                (true, false) => tile::<1>(a, &b[column..], [k, n], y),
                (false, _) => narrow(a, &b[column..], [k, n], &mut y[..width]),
            };
        }
    }
}

/// R rows by [`COLUMNS`] columns; returns R.
#[inline(always)]
fn tile<const R: usize>(a: &[f32], b: &[f32], [k, n]: [usize; 2], y: &mut [f32]) -> usize {
    let mut sums = [[0f32; COLUMNS]; R];
    for i in 0..k {
        let Some(b) = b[i * n..].first_chunk::<COLUMNS>() else { continue };
        for r in 0..R {
            let a = a[r * k + i];
            for c in 0..COLUMNS {
                sums[r][c] = a.mul_add(b[c], sums[r][c]);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        y[r * n..][..COLUMNS].copy_from_slice(sums);
    }
    R
}

/// A row by fewer columns, those of `y`; returns 1.
#[inline(always)]
fn narrow(a: &[f32], b: &[f32], [k, n]: [usize; 2], y: &mut [f32]) -> usize {
    for i in 0..k {
        for (y, b) in y.iter_mut().zip(&b[i * n..]) {
            *y = a[i].mul_add(*b, *y);
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::reference;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    fn check(rng: &mut StdRng, [m, k, n]: [usize; 3]) {
        let mut numbers =
            |count: usize| (0..count).map(|_| rng.random_range(-2.0..2.0)).collect::<Vec<f32>>();
        let (a, b) = (numbers(m * k), numbers(k * n));
        let bits = |y: Vec<f32>| y.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert!(
            bits(matmul(&a, &b, [m, k, n]).unwrap())
                == bits(reference::matmul(&a, &b, [m, k, n]).unwrap()),
            "{m} × {k} × {n}"
        );
    }

    #[test]
    fn products_are_bit_identical_to_the_reference() {
        let mut rng = StdRng::seed_from_u64(9);
        for shape in [
            [0, 3, 4],
            [3, 0, 4],
            [3, 4, 0],
            [1, 1, 1],
            [4, 7, 32],
            [5, 8, 33],
            [3, 2, 31],
            [9, 65, 100],
            [130, 70, 96],
            [33, 300, 65],
            [1, 1000, 500],
            [2000, 90, 3],
        ] {
            check(&mut rng, shape);
        }
        for _ in 0..30 {
            let shape = [70, 90, 150].map(|most| rng.random_range(0..most));
            check(&mut rng, shape);
        }
    }

    #[test]
    fn matrices_of_other_shapes_are_refused() {
        for (a, b, shape) in [(5, 6, [2, 3, 2]), (6, 5, [2, 3, 2]), (0, 0, [usize::MAX, 0, 2])] {
            let found = matmul(&vec![0.0; a], &vec![0.0; b], shape);
            assert!(matches!(found, Err(crate::Error::Length { .. })), "{shape:?}");
        }
    }
}
