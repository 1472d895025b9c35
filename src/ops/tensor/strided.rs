//! permute, transpose, slice, concat and pad: elements as they are, in other places. Of any type
//! but `i8`; `pad` of floats.

use crate::{
    element::{ElementType, Float},
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    msl,
    ops::tensor::copy::fill,
    params,
    shape::Shape,
    tuning::TuningKey,
    wgsl,
};
use std::ops::Range;

params! {
    struct StridedParams {
        length: u32, n0: u32, n1: u32, n2: u32,
        x_offset: u32, x0: u32, x1: u32, x2: u32, x3: u32,
        y_offset: u32, y0: u32, y1: u32, y2: u32, y3: u32,
    }
}
params! { struct TransposeParams { rows: u32, columns: u32 } }

static STRIDED_COPY: Kernel = Kernel::trusted(
    "strided_copy",
    StridedParams::FIELDS,
    &[read("x", Bits("X")), read_write("y", Bits("X"))],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "tensor/strided_copy"])],
)
.flat();

const TRANSPOSE_BINDINGS: &[Binding] = &[read("x", Bits("X")), read_write("y", Bits("X"))];

static TRANSPOSE: Kernel = Kernel::trusted(
    "transpose",
    TransposeParams::FIELDS,
    TRANSPOSE_BINDINGS,
    &[
        Source::wgsl(wgsl!["shared/ids", "tensor/transpose"])
            .workgroup_size([32, 8, 1])
            .tile([32, 32, 1])
            .workgroup_bytes(4224),
        Source::msl(msl!["shared/prelude", "tensor/transpose"])
            .workgroup_size([32, 8, 1])
            .tile([32, 32, 1])
            .workgroup_bytes(4224),
    ],
);

static TRANSPOSE_DIRECT: Kernel = Kernel::trusted(
    "transpose_direct",
    TransposeParams::FIELDS,
    TRANSPOSE_BINDINGS,
    &[Source::wgsl(wgsl!["shared/ids", "tensor/transpose_direct"])
        .workgroup_size([64, 1, 1])
        .tile([8, 64, 1])],
);

pub(super) const KERNELS: &[&Kernel] = &[&STRIDED_COPY, &TRANSPOSE, &TRANSPOSE_DIRECT];

/// `x` with its dimensions in another order: dimension i of the result is dimension `axes[i]` of
/// `x`. Its gradient is the permutation back.
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, tensor};
/// # fn f(encoder: &mut Encoder, x: &Tensor<f32>) -> Result<()> {
/// let heads_first = tensor::permute(encoder, x, &[1, 0, 2])?; // [tokens, heads, head_dim] to [heads, tokens, head_dim]
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`permute_into`].
pub fn permute<T: ElementType>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    axes: &[usize],
) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), permuted("permute", x.shape(), axes)?)?;
    permute_into(encoder, x, axes, &y)?;
    Ok(y)
}

/// [`permute`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Invalid`] if `axes` does not name every dimension once; [`Error::Shape`] if the output
/// does not fit; [`Error::ElementType`] for `i8`.
pub fn permute_into<T: ElementType>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    axes: &[usize],
    y: &Tensor<T>,
) -> Result<()> {
    let shape = permuted("permute", x.shape(), axes)?;
    check("permute", y, shape)?;
    let (own, mut dims) = (strides(x.shape()), Vec::new());
    // Neighbours that stay neighbours are one dimension.
    for &axis in axes.iter().filter(|axis| x.shape().dims()[**axis] != 1) {
        let (length, stride) = (x.shape().dims()[axis], own[axis]);
        match dims.last_mut() {
            Some((outer, last)) if *last == length * stride => {
                (*outer, *last) = (*outer * length, stride)
            }
            _ => dims.push((length, stride)),
        }
    }
    // What only swaps the last two dimensions goes through tiles, so that both sides are read and
    // written in runs.
    let tiled = match dims[..] {
        [(columns, 1), (rows, width)] => Some((1, rows, columns)).filter(|_| width == columns),
        [(batch, size), (columns, 1), (rows, width)] => {
            Some((batch, rows, columns)).filter(|_| width == columns && size == rows * columns)
        }
        _ => None,
    };
    if let Some((batch, rows, columns)) = tiled
        .filter(|(batch, ..)| *batch <= encoder.context().capabilities().max_workgroups as usize)
    {
        let params = TransposeParams { rows: rows as u32, columns: columns as u32 };
        let direct =
            rows * columns <= encoder.context().capabilities().tuned(TuningKey::DirectOutputs);
        return encoder.dispatch(
            [&TRANSPOSE, &TRANSPOSE_DIRECT][usize::from(direct)],
            &params,
            &[x, y],
            [columns, rows, batch],
        );
    }
    let lengths: Vec<usize> = dims.iter().map(|(length, _)| *length).collect();
    let of_x: Vec<usize> = dims.iter().map(|(_, stride)| *stride).collect();
    copy(encoder, &lengths, (x, 0, &of_x), (y, 0, &strides(Shape::of(&lengths))))
}

/// The CPU twin of [`permute`].
///
/// # Errors
/// As [`permute`]; [`Error::Length`] if `x` has not as many elements as the shape.
pub fn permute_cpu<T: Copy>(x: &[T], shape: impl Into<Shape>, axes: &[usize]) -> Result<Vec<T>> {
    let shape = held(x, shape.into())?;
    let (result, own) = (permuted("permute", shape, axes)?, strides(shape));
    Ok(places(result, &axes.iter().map(|&axis| own[axis]).collect::<Vec<_>>())
        .into_iter()
        .map(|at| x[at])
        .collect())
}

/// `x` with its last two dimensions swapped: [`permute`].
///
/// # Errors
/// [`Error::Shape`] for fewer than two dimensions.
pub fn transpose<T: ElementType>(encoder: &mut Encoder, x: &Tensor<T>) -> Result<Tensor<T>> {
    let mut axes: Vec<usize> = (0..x.shape().rank()).collect();
    let [.., rows, columns] = &mut axes[..] else {
        return Err(Error::Shape {
            op: "transpose",
            what: "x",
            expected: "[.., rows, columns]".into(),
            found: x.shape(),
        });
    };
    std::mem::swap(rows, columns);
    permute(encoder, x, &axes)
}

/// A part of `x`: a range of a dimension. Its gradient is [`pad`] by what was left out, with 0.
///
/// # Errors
/// As [`slice_into`].
pub fn slice<T: ElementType>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    axis: usize,
    range: Range<usize>,
) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), sliced(x.shape(), axis, &range)?)?;
    slice_into(encoder, x, axis, range, &y)?;
    Ok(y)
}

/// [`slice()`] into a tensor of the caller.
///
/// # Errors
/// [`Error::Invalid`] for what is no range of a dimension of `x`; [`Error::Shape`] if the output
/// does not fit; [`Error::ElementType`] for `i8`.
pub fn slice_into<T: ElementType>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    axis: usize,
    range: Range<usize>,
    y: &Tensor<T>,
) -> Result<()> {
    let shape = sliced(x.shape(), axis, &range)?;
    check("slice", y, shape)?;
    let of_x = strides(x.shape());
    copy(encoder, shape.dims(), (x, range.start * of_x[axis], &of_x), (y, 0, &strides(shape)))
}

/// The CPU twin of [`slice()`].
///
/// # Errors
/// As [`slice()`]; [`Error::Length`] if `x` has not as many elements as the shape.
pub fn slice_cpu<T: Copy>(
    x: &[T],
    shape: impl Into<Shape>,
    axis: usize,
    range: Range<usize>,
) -> Result<Vec<T>> {
    let shape = held(x, shape.into())?;
    let (result, own) = (sliced(shape, axis, &range)?, strides(shape));
    Ok(places(result, &own).into_iter().map(|at| x[at + range.start * own[axis]]).collect())
}

/// Tensors one after another along a dimension; the others must agree. Its gradient for each is the
/// [`slice()`] of dy that it became.
///
/// # Errors
/// [`Error::Invalid`] for no tensor, or for a dimension that they have not; [`Error::Shape`] for
/// one that does not fit the first; [`Error::ElementType`] for `i8`.
pub fn concat<T: ElementType>(
    encoder: &mut Encoder,
    tensors: &[&Tensor<T>],
    axis: usize,
) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), joined(&shapes(tensors), axis)?)?;
    concat_into(encoder, tensors, axis, &y)?;
    Ok(y)
}

/// [`concat()`] into a tensor of the caller.
///
/// # Errors
/// As [`concat()`]; [`Error::Shape`] if the output does not fit.
pub fn concat_into<T: ElementType>(
    encoder: &mut Encoder,
    tensors: &[&Tensor<T>],
    axis: usize,
    y: &Tensor<T>,
) -> Result<()> {
    check("concat", y, joined(&shapes(tensors), axis)?)?;
    let of_y = strides(y.shape());
    encoder.whole(|encoder| {
        let mut start = 0;
        for x in tensors {
            copy(
                encoder,
                x.shape().dims(),
                (x, 0, &strides(x.shape())),
                (y, start * of_y[axis], &of_y),
            )?;
            start += x.shape().dims()[axis];
        }
        Ok(())
    })
}

/// The CPU twin of [`concat()`], of elements and their shapes.
///
/// # Errors
/// As [`concat()`]; [`Error::Length`] for elements that are not as many as their shape has.
pub fn concat_cpu<T: Copy>(parts: &[(&[T], Shape)], axis: usize) -> Result<Vec<T>> {
    parts.iter().try_for_each(|&(x, shape)| held(x, shape).map(|_| ()))?;
    let shapes: Vec<Shape> = parts.iter().map(|(_, shape)| *shape).collect();
    let result = joined(&shapes, axis)?;
    // Before the dimension, parts take turns, each with a run of what is from there on.
    let run = |shape: &Shape| shape.dims()[axis..].iter().product::<usize>();
    let turns = if result.dims().contains(&0) { 0 } else { result.dims()[..axis].iter().product() };
    Ok((0..turns)
        .flat_map(|turn| {
            parts.iter().flat_map(move |(x, shape)| &x[turn * run(shape)..][..run(shape)])
        })
        .copied()
        .collect())
}

fn shapes<T: ElementType>(tensors: &[&Tensor<T>]) -> Vec<Shape> {
    tensors.iter().map(|tensor| tensor.shape()).collect()
}

/// The shape of tensors one after another.
fn joined(shapes: &[Shape], axis: usize) -> Result<Shape> {
    let invalid = |what: String| Error::Invalid { op: "concat", what };
    let first = *shapes.first().ok_or_else(|| invalid("there is no tensor".into()))?;
    let others = |shape: &Shape| {
        shape.dims().iter().copied().enumerate().filter(|(i, _)| *i != axis).collect::<Vec<_>>()
    };
    if axis >= first.rank() {
        return Err(invalid(format!("there is no dimension {axis} in {first}")));
    }
    if let Some(&found) =
        shapes.iter().find(|shape| shape.rank() != first.rank() || others(shape) != others(&first))
    {
        return Err(Error::Shape {
            op: "concat",
            what: "a tensor",
            expected: format!("{first} but for dimension {axis}"),
            found,
        });
    }
    let mut dims = first.dims().to_vec();
    dims[axis] = shapes.iter().map(|shape| shape.dims()[axis]).fold(0, usize::saturating_add);
    Ok(Shape::of(&dims))
}

/// `x` with `value` around it: for each dimension, how many elements before and after. Its gradient
/// is the [`slice()`] of dy where `x` is.
///
/// # Errors
/// [`Error::Invalid`] unless there is one pair for each dimension; [`Error::TooLarge`] if the
/// result is.
pub fn pad<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    around: &[(usize, usize)],
    value: f32,
) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), padded(x.shape(), around)?)?;
    fill(encoder, &y, value)?;
    let of_y = strides(y.shape());
    copy(
        encoder,
        x.shape().dims(),
        (x, 0, &strides(x.shape())),
        (&y, corner(around, &of_y), &of_y),
    )?;
    Ok(y)
}

/// The CPU twin of [`pad`].
///
/// # Errors
/// As [`pad`]; [`Error::Length`] if `x` has not as many elements as the shape.
pub fn pad_cpu<T: Copy>(
    x: &[T],
    shape: impl Into<Shape>,
    around: &[(usize, usize)],
    value: T,
) -> Result<Vec<T>> {
    let shape = held(x, shape.into())?;
    let result = padded(shape, around)?;
    let mut y =
        vec![value; result.checked_len().ok_or(Error::Length { shape: result, found: x.len() })?];
    let of_y = strides(result);
    places(shape, &of_y).into_iter().zip(x).for_each(|(at, &x)| y[corner(around, &of_y) + at] = x);
    Ok(y)
}

/// What [`pad`] makes of a shape.
fn padded(shape: Shape, around: &[(usize, usize)]) -> Result<Shape> {
    if around.len() != shape.rank() {
        return Err(Error::Invalid {
            op: "pad",
            what: format!("{} pairs for the {} dimensions of {shape}", around.len(), shape.rank()),
        });
    }
    let wide = |(dim, (before, after)): (&usize, &(usize, usize))| {
        dim.saturating_add(*before).saturating_add(*after)
    };
    Ok(Shape::of(&shape.dims().iter().zip(around).map(wide).collect::<Vec<_>>()))
}

/// Where the first element goes.
fn corner(around: &[(usize, usize)], strides: &[usize]) -> usize {
    around.iter().zip(strides).map(|((before, _), stride)| before * stride).sum()
}

/// What [`permute`] makes of a shape.
fn permuted(op: &'static str, shape: Shape, axes: &[usize]) -> Result<Shape> {
    let mut sorted = axes.to_vec();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..shape.rank()) {
        return Err(Error::Invalid {
            op,
            what: format!("axes {axes:?} do not name each dimension of {shape} once"),
        });
    }
    Ok(Shape::of(&axes.iter().map(|&axis| shape.dims()[axis]).collect::<Vec<_>>()))
}

fn sliced(shape: Shape, axis: usize, range: &Range<usize>) -> Result<Shape> {
    let mut dims = shape.dims().to_vec();
    match dims.get_mut(axis) {
        Some(dim) if range.start <= range.end && range.end <= *dim => *dim = range.len(),
        _ => {
            return Err(Error::Invalid {
                op: "slice",
                what: format!("{range:?} is no range of dimension {axis} of {shape}"),
            });
        }
    }
    Ok(Shape::of(&dims))
}

fn check<T: ElementType>(op: &'static str, y: &Tensor<T>, shape: Shape) -> Result<()> {
    if y.shape() == shape {
        return Ok(());
    }
    Err(Error::Shape { op, what: "the output", expected: shape.to_string(), found: y.shape() })
}

/// Elements from one of a dimension to the next, outermost first.
fn strides(shape: Shape) -> Vec<usize> {
    let mut strides = vec![1usize; shape.rank()];
    for i in (1..shape.rank()).rev() {
        strides[i - 1] = strides[i].saturating_mul(shape.dims()[i]);
    }
    strides
}

/// For twins: a shape of which there are as many elements.
fn held<T>(x: &[T], shape: Shape) -> Result<Shape> {
    if shape.checked_len() == Some(x.len()) {
        Ok(shape)
    } else {
        Err(Error::Length { shape, found: x.len() })
    }
}

/// For twins: where elements of a shape are, in their order, with other strides.
fn places(shape: Shape, strides: &[usize]) -> Vec<usize> {
    if shape.dims().contains(&0) {
        return Vec::new();
    }
    let of_dim = |outer: Vec<usize>, (&dim, &stride): (&usize, &usize)| {
        outer.into_iter().flat_map(|at| (0..dim).map(move |i| at + i * stride)).collect()
    };
    shape.dims().iter().zip(strides).fold(vec![0], of_dim)
}

/// A tensor, the place of its first element, and strides.
type View<'a, T> = (&'a Tensor<T>, usize, &'a [usize]);

/// Copies `dims` elements from one view to another.
fn copy<T: ElementType>(
    encoder: &mut Encoder,
    dims: &[usize],
    (x, x_offset, of_x): View<'_, T>,
    (y, y_offset, of_y): View<'_, T>,
) -> Result<()> {
    let length: usize = dims.iter().product();
    // Innermost first; a dimension that is not there has one element.
    let inner =
        |numbers: &[usize], i: usize| numbers.iter().rev().nth(i).copied().unwrap_or(1) as u32;
    let params = StridedParams {
        length: length as u32,
        n0: inner(dims, 0),
        n1: inner(dims, 1),
        n2: inner(dims, 2),
        x_offset: x_offset as u32,
        x0: inner(of_x, 0),
        x1: inner(of_x, 1),
        x2: inner(of_x, 2),
        x3: inner(of_x, 3),
        y_offset: y_offset as u32,
        y0: inner(of_y, 0),
        y1: inner(of_y, 1),
        y2: inner(of_y, 2),
        y3: inner(of_y, 3),
    };
    encoder.dispatch(&STRIDED_COPY, &params, &[x, y], [length, 1, 1])
}
