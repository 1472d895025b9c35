//! gather: y[i] = x[ids[i]], its gradient, and one_hot.

use crate::{
    element::{ElementType, Float},
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

/// The rows of `x` `[rows, columns]` that `ids` name: `[ids.., columns]`. Rows of zeros for ids
/// that are none.
///
/// # Errors
/// [`Error::Shape`] if `x` is no matrix, or for `ids` of more than three dimensions;
/// [`Error::ElementType`] for `i8`.
pub fn gather<T: ElementType>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    ids: &Tensor<u32>,
) -> Result<Tensor<T>> {
    let &[rows, columns] = x.shape().dims() else {
        return Err(Error::Shape {
            op: "gather",
            what: "x",
            expected: "[rows, columns]".into(),
            found: x.shape(),
        });
    };
    let y = Tensor::uninit(encoder.context(), with_columns("gather", ids, columns)?)?;
    let params =
        GatherParams { length: y.len() as u32, rows: rows as u32, columns: columns as u32 };
    encoder.dispatch(&GATHER, &params, &[x, ids, &y], [y.len(), 1, 1])?;
    Ok(y)
}

/// The gradient of [`gather`] for an `x` of `rows` rows: each is the sum of the rows of `dy`
/// `[ids.., columns]` that it went to, in their order, so that it is the same bits every time. Ids
/// that are no row are left out.
///
/// # Errors
/// [`Error::Shape`] if `dy` does not fit `ids`.
pub fn gather_backward<T: Float>(
    encoder: &mut Encoder,
    dy: &Tensor<T>,
    ids: &Tensor<u32>,
    rows: usize,
) -> Result<Tensor<T>> {
    let (count, columns) = dy.shape().as_matrix();
    if dy.shape() != with_columns("gather_backward", ids, columns)? {
        return Err(Error::Shape {
            op: "gather_backward",
            what: "dy",
            expected: format!("{} and columns", ids.shape()),
            found: dy.shape(),
        });
    }
    let dx = Tensor::uninit(encoder.context(), [rows, columns])?;
    let params = BackwardParams { count: count as u32, rows: rows as u32, columns: columns as u32 };
    encoder.dispatch(
        &GATHER_BACKWARD,
        &params,
        &[dy, ids, &dx],
        [if columns == 0 { 0 } else { rows }, 1, 1],
    )?;
    Ok(dx)
}

/// A row of `classes` for every id: 1 at the id, else 0. All 0 for an id that is no class.
///
/// # Errors
/// [`Error::Shape`] for `ids` of more than three dimensions.
pub fn one_hot<T: Float>(
    encoder: &mut Encoder,
    ids: &Tensor<u32>,
    classes: usize,
) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), with_columns("one_hot", ids, classes)?)?;
    let params = OneHotParams { length: y.len() as u32, classes: classes as u32 };
    encoder.dispatch(&ONE_HOT, &params, &[ids, &y], [y.len(), 1, 1])?;
    Ok(y)
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

/// The CPU twin of [`gather`], of rows of `columns`.
///
/// # Errors
/// [`Error::Length`] if `x` is not whole rows.
pub fn gather_cpu<T: ElementType>(x: &[T], columns: usize, ids: &[u32]) -> Result<Vec<T>> {
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

/// The CPU twin of [`one_hot`].
pub fn one_hot_cpu(ids: &[u32], classes: usize) -> Vec<f32> {
    ids.iter()
        .flat_map(|&id| (0..classes).map(move |class| if class == id as usize { 1.0 } else { 0.0 }))
        .collect()
}

/// The CPU twin of [`gather_backward`]: the same bits in `f32`.
pub fn gather_backward_cpu(dy: &[f32], ids: &[u32], rows: usize) -> Vec<f32> {
    let columns = dy.len() / ids.len().max(1);
    let mut dx = vec![0.0; rows * columns];
    for (i, &id) in ids.iter().enumerate().filter(|(_, id)| (**id as usize) < rows) {
        (0..columns).for_each(|c| dx[id as usize * columns + c] += dy[i * columns + c]);
    }
    dx
}
