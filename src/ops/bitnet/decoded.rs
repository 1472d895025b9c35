//! What products of floats with matrices that are decoded where they are multiplied have in common:
//! their shapes, and their CPU references.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::out::Out,
    shape::Shape,
};

/// m, n and k of a·Wᵀ, or of a·W if not `transposed`, for W `[rows, columns]`.
///
/// # Errors
/// [`Error::Shape`] if the input or the output does not fit.
pub(super) fn product_shape<Y: Float>(
    op: &'static str,
    a: Shape,
    [rows, columns]: [usize; 2],
    y: &Out<'_, Y>,
    transposed: bool,
) -> Result<[usize; 3]> {
    let (m, k) = a.as_matrix();
    let (depth, n) = if transposed { (columns, rows) } else { (rows, columns) };
    if k != depth {
        return Err(Error::Shape {
            op,
            what: "the input",
            expected: format!("[.., {depth}]"),
            found: a,
        });
    }
    y.check_shape(op, a.with_last(n))?;
    Ok([m, n, k])
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`BitLinear`](crate::bitnet::BitLinear) with float activations, of one row:
    /// x·Wᵀ, where products are added in the order of k. `dense` is the dequantized matrix.
    ///
    /// # Errors
    /// [`Error::Length`] if the row has another length.
    pub fn bitlinear_float(
        x: &[f32],
        dense: &[f32],
        [rows, columns]: [usize; 2],
    ) -> Result<Vec<f32>> {
        if x.len() != columns {
            return Err(Error::Length { shape: [columns].into(), found: x.len() });
        }
        let row = |row: &[f32]| row.iter().zip(x).fold(0.0, |sum: f32, (w, x)| w.mul_add(*x, sum));
        Ok(if x.is_empty() {
            vec![0.0; rows]
        } else {
            dense.chunks_exact(columns).map(row).collect()
        })
    }

    /// CPU reference of the gradient of [`BitLinear`](crate::bitnet::BitLinear), of one row: dy·W,
    /// where products are added in the order of W's rows. `dense` is the dequantized matrix.
    ///
    /// # Errors
    /// [`Error::Length`] if the row has another length.
    #[cfg(feature = "train")]
    pub fn bitlinear_backward(
        dy: &[f32],
        dense: &[f32],
        [rows, columns]: [usize; 2],
    ) -> Result<Vec<f32>> {
        if dy.len() != rows {
            return Err(Error::Length { shape: [rows].into(), found: dy.len() });
        }
        let mut dx = vec![0.0; columns];
        for (dy, row) in dy.iter().zip(dense.chunks_exact(columns.max(1))) {
            dx.iter_mut().zip(row).for_each(|(dx, w)| *dx = dy.mul_add(*w, *dx));
        }
        Ok(dx)
    }
}
