//! gather: y[i] = x[ids[i]], its gradient, and one_hot.

use crate::{
    element::{ElementType, Float},
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    ops::{forward::forward, frames::Operand},
    params,
    shape::Shape,
    wgsl,
};
use std::marker::PhantomData;

params! { struct GatherParams { length: u32, rows: u32, columns: u32 } }
params! { struct BackwardParams { count: u32, rows: u32, columns: u32 } }
params! { struct OneHotParams { length: u32, classes: u32 } }

static GATHER: Kernel = Kernel::trusted(
    "gather",
    GatherParams::FIELDS,
    &[read("x", Bits("X")), read("ids", U32), read_write("y", Bits("X"))],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "tensor/gather"])],
)
.flat();
static GATHER_BACKWARD: Kernel = Kernel::trusted(
    "gather_backward",
    BackwardParams::FIELDS,
    &[read("dy", Float("X")), read("ids", U32), read_write("dx", Float("X"))],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "tensor/gather_backward"])
        .workgroup_size([256, 1, 1])
        .tile([1, 1, 1])
        .workgroup_bytes(1056)],
)
.flat();
static ONE_HOT: Kernel = Kernel::trusted(
    "one_hot",
    OneHotParams::FIELDS,
    &[read("ids", U32), read_write("y", Float("Y"))],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "tensor/one_hot"])],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&GATHER, &GATHER_BACKWARD, &ONE_HOT];

/// Rows of a matrix: what [`gather`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct Gather<'a, T> {
    x: &'a Tensor<T>,
    ids: &'a Tensor<u32>,
}

/// The rows of `x` `[rows, columns]` that `ids` name: `[ids.., columns]`. Rows of zeros for ids
/// that are none. `x` has any element type but `i8`, and `ids` at most three dimensions.
///
/// In the gradient, each row is the sum of the rows of `dy` that it went to, in their order, so
/// that it is bit-identical every time.
pub fn gather<'a, T: ElementType>(x: &'a Tensor<T>, ids: &'a Tensor<u32>) -> Gather<'a, T> {
    Gather { x, ids }
}

forward!(impl['a, T: ElementType] Gather<'a, T> => overwrite T);

impl<T: ElementType> Gather<'_, T> {
    fn shape(&self) -> Result<Shape> {
        match *self.x.shape().dims() {
            [_, columns] => with_columns("gather", self.ids, columns),
            _ => Err(Error::Shape {
                op: "gather",
                what: "x",
                expected: "[rows, columns]".into(),
                found: self.x.shape(),
            }),
        }
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        y.check_shape("gather", self.shape()?)?;
        let ((rows, columns), y) = (self.x.shape().as_matrix(), y.tensor());
        let params =
            GatherParams { length: y.len() as u32, rows: rows as u32, columns: columns as u32 };
        encoder.dispatch(&GATHER, &params, &[self.x, self.ids, y], [y.len(), 1, 1])
    }
}

impl<T: Float> Gather<'_, T> {
    /// Records the gradient of the op: returns that of `x`, where `dy` is that of its output.
    ///
    /// # Errors
    /// As `forward`; [`Error::Shape`] if `dy` has another shape than the output.
    #[cfg(feature = "train")]
    pub fn backward(self, encoder: &mut Encoder, dy: &Tensor<T>) -> Result<Tensor<T>> {
        let dx = Tensor::uninit(encoder.context(), self.x.shape())?;
        self.backward_into(encoder, dy, &dx)?;
        Ok(dx)
    }

    /// Like [`backward`](Self::backward), into a tensor of the caller, which is overwritten.
    ///
    /// # Errors
    /// As [`backward`](Self::backward); [`Error::Shape`] if the tensor has another shape than `x`.
    #[cfg(feature = "train")]
    pub fn backward_into(
        self,
        encoder: &mut Encoder,
        dy: &Tensor<T>,
        dx: &Tensor<T>,
    ) -> Result<()> {
        let op = "gather_backward";
        Operand::same(op, "dy", dy, self.shape()?)?;
        Out::set(dx).check_shape(op, self.x.shape())?;
        let (rows, columns) = self.x.shape().as_matrix();
        let count = self.ids.len() as u32;
        let params = BackwardParams { count, rows: rows as u32, columns: columns as u32 };
        let extent = [if columns == 0 { 0 } else { rows }, 1, 1];
        encoder.dispatch(&GATHER_BACKWARD, &params, &[dy, self.ids, dx], extent)
    }
}

/// A one-hot vector for every id: what [`one_hot`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct OneHot<'a, T> {
    ids: &'a Tensor<u32>,
    classes: usize,
    element: PhantomData<T>,
}

/// A row of `classes` for every id: 1 at the id, else 0. All 0 for an id that is no class. `ids` has
/// at most three dimensions.
pub fn one_hot<T: Float>(ids: &Tensor<u32>, classes: usize) -> OneHot<'_, T> {
    OneHot { ids, classes, element: PhantomData }
}

forward!(impl['a, T: Float] OneHot<'a, T> => overwrite T);

impl<T: Float> OneHot<'_, T> {
    fn shape(&self) -> Result<Shape> {
        with_columns("one_hot", self.ids, self.classes)
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        y.check_shape("one_hot", self.shape()?)?;
        let y = y.tensor();
        let params = OneHotParams { length: y.len() as u32, classes: self.classes as u32 };
        encoder.dispatch(&ONE_HOT, &params, &[self.ids, y], [y.len(), 1, 1])
    }
}

/// The shape of `ids` with one dimension more.
fn with_columns(op: &'static str, ids: &Tensor<u32>, columns: usize) -> Result<Shape> {
    if ids.shape().rank() == Shape::MAX_RANK {
        return Err(Error::Shape {
            op,
            what: "ids",
            expected: "at most three dimensions".into(),
            found: ids.shape(),
        });
    }
    Ok(Shape::of(&[ids.shape().dims(), &[columns]].concat()))
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`gather`](fn@crate::tensor::gather), of rows of `columns`.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not whole rows.
    pub fn gather<T: ElementType>(x: &[T], columns: usize, ids: &[u32]) -> Result<Vec<T>> {
        let rows = x.len() / columns.max(1);
        if x.len() != rows * columns {
            return Err(Error::Length { shape: [rows, columns].into(), found: x.len() });
        }
        let row = |&id: &u32| {
            (0..columns).map(move |c| {
                if (id as usize) < rows { x[id as usize * columns + c] } else { T::zeroed() }
            })
        };
        Ok(ids.iter().flat_map(row).collect())
    }

    /// CPU reference of the gradient of [`gather`](fn@crate::tensor::gather) for `rows` rows:
    /// bit-identical in `f32`.
    #[cfg(feature = "train")]
    pub fn gather_backward(dy: &[f32], ids: &[u32], rows: usize) -> Vec<f32> {
        let columns = dy.len() / ids.len().max(1);
        let mut dx = vec![0.0; rows * columns];
        for (i, &id) in ids.iter().enumerate().filter(|(_, id)| (**id as usize) < rows) {
            (0..columns).for_each(|c| dx[id as usize * columns + c] += dy[i * columns + c]);
        }
        dx
    }

    /// CPU reference of [`one_hot`](fn@crate::tensor::one_hot).
    pub fn one_hot(ids: &[u32], classes: usize) -> Vec<f32> {
        ids.iter()
            .flat_map(|&id| {
                (0..classes).map(move |class| if class == id as usize { 1.0 } else { 0.0 })
            })
            .collect()
    }
}
