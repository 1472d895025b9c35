//! A tensor as a batch of matrices, and how they are copied.

use crate::{
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    params,
    shape::Shape,
    wgsl,
};

/// Columns of a panel, and edge of a tile: a row of them is a cache line, and three tiles fit into
/// the workgroup memory of any device.
pub const BLOCK: usize = 32;

params! { struct CopyParams { length: u32, rows: u32, columns: u32, x_matrix: u32, x_row: u32, x_column: u32 } }
params! { struct IdentityParams { length: u32, rows: u32, columns: u32 } }

pub static COPY_MATRICES: Kernel = Kernel::trusted(
    "copy_matrices",
    CopyParams::FIELDS,
    &[read("x", F32), read_write("y", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "linalg/copy_matrices"])],
)
.flat();

pub static IDENTITY_MATRICES: Kernel = Kernel::trusted(
    "identity_matrices",
    IdentityParams::FIELDS,
    &[read_write("y", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "linalg/identity_matrices"])],
)
.flat();

/// A tensor `[.., rows, columns]`.
#[derive(Clone, Copy)]
pub struct Matrices<'a> {
    pub tensor: &'a Tensor<f32>,
    pub count: usize,
    pub rows: usize,
    pub columns: usize,
}

impl<'a> Matrices<'a> {
    /// # Errors
    /// [`Error::Shape`] for a tensor of less than two dimensions.
    pub fn of(op: &'static str, what: &'static str, tensor: &'a Tensor<f32>) -> Result<Self> {
        match *tensor.shape().dims() {
            [ref leading @ .., rows, columns] => {
                Ok(Self { tensor, count: leading.iter().product(), rows, columns })
            }
            _ => {
                Err(Error::Shape { op, what, expected: "[.., m, n]".into(), found: tensor.shape() })
            }
        }
    }

    /// # Errors
    /// [`Error::Shape`] for matrices that are not square.
    pub fn square(op: &'static str, what: &'static str, tensor: &'a Tensor<f32>) -> Result<Self> {
        match Self::of(op, what, tensor)? {
            square if square.rows == square.columns => Ok(square),
            _ => {
                Err(Error::Shape { op, what, expected: "[.., n, n]".into(), found: tensor.shape() })
            }
        }
    }

    /// Right-hand sides `b` for these matrices: as many, with as many rows.
    ///
    /// # Errors
    /// [`Error::Shape`] if they are others.
    pub fn right_hand_sides<'b>(
        &self,
        op: &'static str,
        b: &'b Tensor<f32>,
    ) -> Result<Matrices<'b>> {
        let of_each = Matrices::of(op, "b", b)?;
        if self.shape(self.rows, of_each.columns) == b.shape() {
            return Ok(of_each);
        }
        Err(Error::Shape {
            op,
            what: "b",
            expected: self.shape(self.rows, of_each.columns).to_string(),
            found: b.shape(),
        })
    }

    /// As many matrices of other dimensions.
    pub fn shape(&self, rows: usize, columns: usize) -> Shape {
        self.tensor.shape().with_matrix(rows, columns)
    }

    /// The upper left corners of all matrices, `rows × columns`; `transposed`: of their transposes.
    pub fn copy(
        &self,
        encoder: &mut Encoder,
        [rows, columns]: [usize; 2],
        transposed: bool,
    ) -> Result<Tensor<f32>> {
        let y = Tensor::uninit(encoder.context(), self.shape(rows, columns))?;
        let (x_row, x_column) =
            if transposed { (1, self.columns as u32) } else { (self.columns as u32, 1) };
        let (length, x_matrix) = (y.len() as u32, (self.rows * self.columns) as u32);
        let params = CopyParams {
            length,
            rows: rows as u32,
            columns: columns as u32,
            x_matrix,
            x_row,
            x_column,
        };
        encoder.dispatch(&COPY_MATRICES, &params, &[self.tensor, &y], [y.len(), 1, 1])?;
        Ok(y)
    }

    /// As many matrices with ones on the diagonal and zeros elsewhere.
    pub fn identity(
        &self,
        encoder: &mut Encoder,
        [rows, columns]: [usize; 2],
    ) -> Result<Tensor<f32>> {
        let y = Tensor::uninit(encoder.context(), self.shape(rows, columns))?;
        let params =
            IdentityParams { length: y.len() as u32, rows: rows as u32, columns: columns as u32 };
        encoder.dispatch(&IDENTITY_MATRICES, &params, &[&y], [y.len(), 1, 1])?;
        Ok(y)
    }
}

/// For CPU references: a row-major matrix in `f64`.
#[derive(Clone)]
pub struct HostMatrix {
    pub rows: usize,
    pub columns: usize,
    pub numbers: Vec<f64>,
}

impl HostMatrix {
    /// # Errors
    /// [`Error::Length`] if `numbers` are not `rows × columns`.
    pub fn new(numbers: &[f32], rows: usize, columns: usize) -> Result<Self> {
        if rows.checked_mul(columns) != Some(numbers.len()) {
            return Err(Error::Length { shape: [rows, columns].into(), found: numbers.len() });
        }
        Ok(Self { rows, columns, numbers: numbers.iter().map(|&v| v.into()).collect() })
    }

    /// Of what a function gives for row and column.
    pub fn from_fn([rows, columns]: [usize; 2], f: impl Fn(usize, usize) -> f64) -> Self {
        Self {
            rows,
            columns,
            numbers: (0..rows * columns).map(|at| f(at / columns, at % columns)).collect(),
        }
    }

    /// Ones on the diagonal, zeros elsewhere.
    pub fn identity(rows: usize, columns: usize) -> Self {
        Self::from_fn([rows, columns], |i, j| if i == j { 1.0 } else { 0.0 })
    }

    pub fn transposed(&self) -> Self {
        Self::from_fn([self.columns, self.rows], |i, j| self[(j, i)])
    }

    pub fn times(&self, other: &Self) -> Self {
        Self::from_fn([self.rows, other.columns], |i, j| {
            (0..self.columns).map(|l| self[(i, l)] * other[(l, j)]).sum()
        })
    }

    pub fn plus(&self, other: &Self) -> Self {
        Self::from_fn([self.rows, self.columns], |i, j| self[(i, j)] + other[(i, j)])
    }

    pub fn minus(&self, other: &Self) -> Self {
        Self::from_fn([self.rows, self.columns], |i, j| self[(i, j)] - other[(i, j)])
    }

    /// The upper left corner, in `f32`.
    pub fn corner(&self, rows: usize, columns: usize) -> Vec<f32> {
        (0..rows * columns).map(|at| self[(at / columns, at % columns)] as f32).collect()
    }
}

impl std::ops::Index<(usize, usize)> for HostMatrix {
    type Output = f64;
    fn index(&self, (row, column): (usize, usize)) -> &f64 {
        &self.numbers[row * self.columns + column]
    }
}

impl std::ops::IndexMut<(usize, usize)> for HostMatrix {
    fn index_mut(&mut self, (row, column): (usize, usize)) -> &mut f64 {
        &mut self.numbers[row * self.columns + column]
    }
}
