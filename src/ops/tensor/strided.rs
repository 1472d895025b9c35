//! permute, transpose, slice, concat and pad: elements as they are, in other places. Of any type
//! but `i8`; `pad` of floats.

use crate::{
    element::{ElementType, Float},
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Part, Source},
    },
    msl,
    ops::{forward::forward, tensor::copy::fill},
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

const COPY_BINDINGS: &[Binding] = &[read("x", Bits("X")), read_write("y", Bits("X"))];

const ONE: Part = Part::new("alias E", "alias E = X;\n");
const FOUR: Part = Part::new("alias E", "alias E = vec4<X>;\n");

static STRIDED_COPY: Kernel = Kernel::trusted(
    "strided_copy",
    StridedParams::FIELDS,
    COPY_BINDINGS,
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", ONE, "tensor/strided_copy"])],
)
.flat();

/// [`STRIDED_COPY`] of runs that are whole quads on both sides; its params count quads.
static STRIDED_COPY_QUADS: Kernel = Kernel::trusted(
    "strided_copy_quads",
    StridedParams::FIELDS,
    COPY_BINDINGS,
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", FOUR, "tensor/strided_copy"])],
)
.entry("strided_copy")
.flat();

static TRANSPOSE: Kernel = Kernel::trusted(
    "transpose",
    TransposeParams::FIELDS,
    COPY_BINDINGS,
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
    COPY_BINDINGS,
    &[Source::wgsl(wgsl!["shared/ids", "tensor/transpose_direct"])
        .workgroup_size([64, 1, 1])
        .tile([8, 64, 1])],
);

pub(super) const KERNELS: &[&Kernel] =
    &[&STRIDED_COPY, &STRIDED_COPY_QUADS, &TRANSPOSE, &TRANSPOSE_DIRECT];

/// A tensor with its dimensions in another order: what [`permute`] and [`transpose`] return. It has
/// any element type but `i8`. The gradient is the permutation back.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct Permute<'a, T> {
    x: &'a Tensor<T>,
    /// `None` swaps the last two.
    axes: Option<&'a [usize]>,
}

/// `x` with its dimensions in another order: dimension i of the result is dimension `axes[i]` of
/// `x`.
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, tensor};
/// # fn f(encoder: &mut Encoder, x: &Tensor<f32>) -> Result<()> {
/// let heads_first = tensor::permute(x, &[1, 0, 2]).forward(encoder)?; // [tokens, heads, head_dim] to [heads, tokens, head_dim]
/// # Ok(())
/// # }
/// ```
pub fn permute<'a, T: ElementType>(x: &'a Tensor<T>, axes: &'a [usize]) -> Permute<'a, T> {
    Permute { x, axes: Some(axes) }
}

/// `x` with its last two dimensions swapped.
pub fn transpose<T: ElementType>(x: &Tensor<T>) -> Permute<'_, T> {
    Permute { x, axes: None }
}

forward!(impl['a, T: ElementType] Permute<'a, T> => overwrite T);

impl<T: ElementType> Permute<'_, T> {
    fn axes(&self) -> Result<Vec<usize>> {
        let mut axes: Vec<usize> = (0..self.x.shape().rank()).collect();
        match (self.axes, &mut axes[..]) {
            (Some(axes), _) => return Ok(axes.to_vec()),
            (None, [.., rows, columns]) => std::mem::swap(rows, columns),
            (None, _) => {
                let (expected, found) = ("[.., rows, columns]".into(), self.x.shape());
                return Err(Error::Shape { op: "transpose", what: "x", expected, found });
            }
        }
        Ok(axes)
    }

    fn shape(&self) -> Result<Shape> {
        permuted(self.x.shape(), &self.axes()?)
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        y.check_shape("permute", self.shape()?)?;
        let (x, y, axes) = (self.x, y.tensor(), self.axes()?);
        let (own, mut dims) = (strides(x.shape()), Vec::new());
        // Neighbors that stay neighbors are one dimension.
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
        if let Some((batch, rows, columns)) = tiled.filter(|(batch, ..)| {
            *batch <= encoder.context().capabilities().max_workgroups as usize
        }) {
            let params = TransposeParams { rows: rows as u32, columns: columns as u32 };
            let direct =
                rows * columns <= encoder.context().capabilities().tuned(TuningKey::UntiledOutputs);
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
}

/// A range of a dimension of a tensor: what [`slice()`] returns. It has any element type but `i8`.
/// The gradient is a [`pad`] of dy by what was left out, with 0.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct Slice<'a, T> {
    x: &'a Tensor<T>,
    axis: usize,
    start: usize,
    end: usize,
}

/// The elements of `x` whose index in dimension `axis` is in `range`.
pub fn slice<T: ElementType>(x: &Tensor<T>, axis: usize, range: Range<usize>) -> Slice<'_, T> {
    Slice { x, axis, start: range.start, end: range.end }
}

forward!(impl['a, T: ElementType] Slice<'a, T> => overwrite T);

impl<T: ElementType> Slice<'_, T> {
    fn shape(&self) -> Result<Shape> {
        sliced(self.x.shape(), self.axis, &(self.start..self.end))
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        let (Self { x, axis, start, .. }, shape, y) = (self, self.shape()?, y);
        y.check_shape("slice", shape)?;
        let of_x = strides(x.shape());
        let (from, to) = ((x, start * of_x[axis], &of_x[..]), (y.tensor(), 0, &strides(shape)[..]));
        copy(encoder, shape.dims(), from, to)
    }
}

/// Tensors one after another: what [`concat()`] returns. They have any element type but `i8`. The
/// gradient for each is the [`slice()`] of dy that it became.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct Concat<'a, T> {
    tensors: &'a [&'a Tensor<T>],
    axis: usize,
}

/// `tensors` one after another along dimension `axis`; their other dimensions must agree.
pub fn concat<'a, T: ElementType>(tensors: &'a [&'a Tensor<T>], axis: usize) -> Concat<'a, T> {
    Concat { tensors, axis }
}

forward!(impl['a, T: ElementType] Concat<'a, T> => overwrite T);

impl<T: ElementType> Concat<'_, T> {
    fn shape(&self) -> Result<Shape> {
        joined(&self.tensors.iter().map(|tensor| tensor.shape()).collect::<Vec<_>>(), self.axis)
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        y.check_shape("concat", self.shape()?)?;
        let (y, of_y) = (y.tensor(), strides(y.tensor().shape()));
        encoder.transaction(|encoder| {
            let mut start = 0;
            for x in self.tensors {
                let (shape, corner) = (x.shape(), start * of_y[self.axis]);
                copy(encoder, shape.dims(), (x, 0, &strides(shape)), (y, corner, &of_y))?;
                start += shape.dims()[self.axis];
            }
            Ok(())
        })
    }
}

/// The shape of tensors one after another.
fn joined(shapes: &[Shape], axis: usize) -> Result<Shape> {
    let invalid = |what: String| Error::Invalid { op: "concat", what };
    let first =
        *shapes.first().ok_or_else(|| invalid("no tensors; at least one is needed".into()))?;
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

/// A tensor with a margin: what [`pad`] returns. The gradient is the [`slice()`] of dy where `x` is.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct Pad<'a, T> {
    x: &'a Tensor<T>,
    around: &'a [(usize, usize)],
    value: f32,
}

/// `x` with zeros around it: for each dimension, how many elements before and after.
pub fn pad<'a, T: Float>(x: &'a Tensor<T>, around: &'a [(usize, usize)]) -> Pad<'a, T> {
    Pad { x, around, value: 0.0 }
}

forward!(impl['a, T: Float] Pad<'a, T> => overwrite T);

impl<T: Float> Pad<'_, T> {
    /// Sets the value of the new elements, in place of 0.
    pub fn value(self, value: f32) -> Self {
        Self { value, ..self }
    }

    fn shape(&self) -> Result<Shape> {
        padded(self.x.shape(), self.around)
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        y.check_shape("pad", self.shape()?)?;
        let (shape, y, of_y) = (self.x.shape(), y.tensor(), strides(y.tensor().shape()));
        encoder.transaction(|encoder| {
            fill(self.value).forward_into(encoder, y)?;
            let to = (y, corner(self.around, &of_y), &of_y[..]);
            copy(encoder, shape.dims(), (self.x, 0, &strides(shape)), to)
        })
    }
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
fn permuted(shape: Shape, axes: &[usize]) -> Result<Shape> {
    let mut sorted = axes.to_vec();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..shape.rank()) {
        return Err(Error::Invalid {
            op: "permute",
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
                what: format!(
                    "{}..{} is not within dimension {axis} of {shape}",
                    range.start, range.end
                ),
            });
        }
    }
    Ok(Shape::of(&dims))
}

/// Elements from one of a dimension to the next, outermost first.
fn strides(shape: Shape) -> Vec<usize> {
    let mut strides = vec![1usize; shape.rank()];
    for i in (1..shape.rank()).rev() {
        strides[i - 1] = strides[i].saturating_mul(shape.dims()[i]);
    }
    strides
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
    // Innermost first; a dimension that is not there has one element.
    let inner = |numbers: &[usize]| {
        let mut four = [1; 4];
        four.iter_mut().zip(numbers.iter().rev()).for_each(|(to, from)| *to = *from);
        four
    };
    let (mut n, mut by_x, mut by_y) = (inner(dims), inner(of_x), inner(of_y));
    let (mut corners, mut kernel) = ([x_offset, y_offset], &STRIDED_COPY);
    let steps = by_x[1..].iter().chain(&by_y[1..]).zip(n[1..].iter().cycle());
    let steps = steps.filter(|(_, n)| **n > 1).map(|(step, _)| step);
    let of_quads = steps.chain(&corners).chain(&n[..1]).all(|number| number.is_multiple_of(4));
    if of_quads && by_x[0] == 1 && by_y[0] == 1 {
        let fourth = |numbers: &mut [usize]| numbers.iter_mut().for_each(|number| *number /= 4);
        [&mut n[..1], &mut by_x[1..], &mut by_y[1..], &mut corners].into_iter().for_each(fourth);
        kernel = &STRIDED_COPY_QUADS;
    }
    let length: usize = n.iter().product();
    let [n0, n1, n2, _] = n.map(|number| number as u32);
    let ([x0, x1, x2, x3], [y0, y1, y2, y3]) =
        (by_x.map(|step| step as u32), by_y.map(|step| step as u32));
    let [x_offset, y_offset] = corners.map(|at| at as u32);
    let params = StridedParams {
        length: length as u32,
        n0,
        n1,
        n2,
        x_offset,
        x0,
        x1,
        x2,
        x3,
        y_offset,
        y0,
        y1,
        y2,
        y3,
    };
    encoder.dispatch(kernel, &params, &[x, y], [length, 1, 1])
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`permute`](fn@crate::tensor::permute).
    ///
    /// # Errors
    /// As the op; [`Error::Length`] if `x` does not fill the shape.
    pub fn permute<T: Copy>(x: &[T], shape: impl Into<Shape>, axes: &[usize]) -> Result<Vec<T>> {
        let shape = held(x, shape.into())?;
        let (result, own) = (permuted(shape, axes)?, strides(shape));
        Ok(places(result, &axes.iter().map(|&axis| own[axis]).collect::<Vec<_>>())
            .into_iter()
            .map(|at| x[at])
            .collect())
    }

    /// CPU reference of [`slice`](fn@crate::tensor::slice).
    ///
    /// # Errors
    /// As the op; [`Error::Length`] if `x` does not fill the shape.
    pub fn slice<T: Copy>(
        x: &[T],
        shape: impl Into<Shape>,
        axis: usize,
        range: Range<usize>,
    ) -> Result<Vec<T>> {
        let shape = held(x, shape.into())?;
        let (result, own) = (sliced(shape, axis, &range)?, strides(shape));
        Ok(places(result, &own).into_iter().map(|at| x[at + range.start * own[axis]]).collect())
    }

    /// CPU reference of [`concat`](fn@crate::tensor::concat), of elements and their shapes.
    ///
    /// # Errors
    /// As the op; [`Error::Length`] for elements that do not fill their shape.
    pub fn concat<T: Copy>(parts: &[(&[T], Shape)], axis: usize) -> Result<Vec<T>> {
        parts.iter().try_for_each(|&(x, shape)| held(x, shape).map(|_| ()))?;
        let shapes: Vec<Shape> = parts.iter().map(|(_, shape)| *shape).collect();
        let result = joined(&shapes, axis)?;
        // Before the dimension, parts take turns, each with a run of what is from there on.
        let run = |shape: &Shape| shape.dims()[axis..].iter().product::<usize>();
        let turns =
            if result.dims().contains(&0) { 0 } else { result.dims()[..axis].iter().product() };
        Ok((0..turns)
            .flat_map(|turn| {
                parts.iter().flat_map(move |(x, shape)| &x[turn * run(shape)..][..run(shape)])
            })
            .copied()
            .collect())
    }

    /// CPU reference of [`pad`](fn@crate::tensor::pad).
    ///
    /// # Errors
    /// As the op; [`Error::Length`] if `x` does not fill the shape.
    pub fn pad<T: Copy>(
        x: &[T],
        shape: impl Into<Shape>,
        around: &[(usize, usize)],
        value: T,
    ) -> Result<Vec<T>> {
        let shape = held(x, shape.into())?;
        let result = padded(shape, around)?;
        let mut y =
            vec![
                value;
                result.checked_len().ok_or(Error::Length { shape: result, found: x.len() })?
            ];
        let of_y = strides(result);
        places(shape, &of_y)
            .into_iter()
            .zip(x)
            .for_each(|(at, &x)| y[corner(around, &of_y) + at] = x);
        Ok(y)
    }

    /// The shape, if `x` fills it.
    fn held<T>(x: &[T], shape: Shape) -> Result<Shape> {
        if shape.checked_len() == Some(x.len()) {
            Ok(shape)
        } else {
            Err(Error::Length { shape, found: x.len() })
        }
    }

    /// The places of the elements of a shape, in their order, with other strides.
    fn places(shape: Shape, strides: &[usize]) -> Vec<usize> {
        if shape.dims().contains(&0) {
            return Vec::new();
        }
        let of_dim = |outer: Vec<usize>, (&dim, &stride): (&usize, &usize)| {
            outer.into_iter().flat_map(|at| (0..dim).map(move |i| at + i * stride)).collect()
        };
        shape.dims().iter().zip(strides).fold(vec![0], of_dim)
    }
}
