//! What elementwise ops share. A frame's source (wgsl/frames) owns index, bounds, parameters,
//! broadcasting, accumulation and work in place; an op brings a function: `forward(x)` of one
//! input, `combine(a, b)` of two, `combine(a, b, c)` of three. Numbers that come with a call are
//! `params.alpha` and `params.beta`. Ops that are one expression are lines of a table:
//! op_tables.rs. On Metal, elementwise ops are what naga makes of their WGSL; a source of our own
//! took no fewer instructions (docs/internals/apple-gpu.md).

use crate::{
    element::{ElementType, Float},
    error::{Error, Result},
    gpu::{
        encoder::Encoder,
        out::Out,
        tensor::{Bind, Tensor},
    },
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Part, Source},
    },
    params,
    shape::Shape,
};

params! {
    struct FrameParams {
        length: u32,
        rank: u32,
        n0: u32,
        n1: u32,
        n2: u32,
        add: u32,
        in_place: u32,
        a_dims: u32,
        b_dims: u32,
        c_dims: u32,
        alpha: f32,
        beta: f32,
    }
}

/// The source of an elementwise op: its parts between those of the frame.
macro_rules! elementwise {
    ($frame:literal, [$($part:tt),* $(,)?]) => {
        &[$crate::kernel::source::Source::wgsl($crate::wgsl!["shared/ids", "shared/flat", "shared/finite", $($part,)* "frames/operand", $frame])
            .workgroup_size([256, 1, 1])
            .tile([2048, 1, 1])]
    };
}
pub(super) use elementwise;

/// What "frames/elementwise_2" needs where both inputs are of one type.
pub const ALIKE: Part = Part::new("alias B", "alias B = X;\n");

/// A part of a source that is a function in one expression.
macro_rules! function {
    ($head:literal, $expression:literal) => {
        $crate::kernel::source::Part::new(
            $expression,
            concat!("fn ", $head, " -> f32 { return ", $expression, "; }\n"),
        )
    };
}
pub(super) use function;

/// A kernel with one input, `sources` made with "frames/elementwise_1".
pub const fn one_input(name: &'static str, sources: &'static [Source]) -> Kernel {
    const BINDINGS: &[Binding; 2] = &[read("a", Float("X")), read_write("y", Float("Y"))];
    one_input_of(name, BINDINGS, sources)
}

/// A kernel with one input of another type; the parts of its source say what `X` or `Y` is where
/// the binding does not.
pub const fn one_input_of(
    name: &'static str,
    bindings: &'static [Binding; 2],
    sources: &'static [Source],
) -> Kernel {
    Kernel::trusted(name, FrameParams::FIELDS, bindings, sources).entry("elementwise_1").flat()
}

/// A kernel with two inputs, `sources` made with "frames/elementwise_2".
pub const fn two_inputs(name: &'static str, sources: &'static [Source]) -> Kernel {
    const BINDINGS: &[Binding; 3] =
        &[read("a", Float("X")), read("b", Float("X")), read_write("y", Float("Y"))];
    two_inputs_of(name, BINDINGS, sources)
}

/// A kernel with two inputs of another type; the parts of its source say what `X` or `Y` is where
/// the binding does not.
pub const fn two_inputs_of(
    name: &'static str,
    bindings: &'static [Binding; 3],
    sources: &'static [Source],
) -> Kernel {
    Kernel::trusted(name, FrameParams::FIELDS, bindings, sources).entry("elementwise_2").flat()
}

/// A kernel with three inputs, `sources` made with "frames/elementwise_3".
pub const fn three_inputs(
    name: &'static str,
    bindings: &'static [Binding; 4],
    sources: &'static [Source],
) -> Kernel {
    Kernel::trusted(name, FrameParams::FIELDS, bindings, sources).entry("elementwise_3").flat()
}

/// An input: a tensor and the dimensions of the output that it has, innermost first; it is the same
/// along the others.
pub struct Operand<'a> {
    tensor: &'a dyn Bind,
    has: Vec<bool>,
}

impl<'a> Operand<'a> {
    /// A tensor, broadcast to `shape`: dimensions are aligned from the last on, and one of 1 serves
    /// for any.
    ///
    /// # Errors
    /// [`Error::Shape`] if it does not fit.
    pub fn broadcast<T: ElementType>(
        op: &'static str,
        what: &'static str,
        tensor: &'a Tensor<T>,
        shape: Shape,
    ) -> Result<Self> {
        let own = tensor.shape();
        let pairs = || own.dims().iter().rev().zip(shape.dims().iter().rev());
        if own.rank() > shape.rank() || pairs().any(|(own, dim)| own != dim && *own != 1) {
            return Err(Error::Shape {
                op,
                what,
                expected: format!("what broadcasts to {shape}"),
                found: own,
            });
        }
        let mut has: Vec<bool> = pairs().map(|(own, dim)| own == dim).collect();
        has.resize(shape.rank(), false);
        Ok(Self { tensor, has })
    }

    /// A tensor that has to have `shape`.
    ///
    /// # Errors
    /// [`Error::Shape`] if it has another.
    pub fn same<T: ElementType>(
        op: &'static str,
        what: &'static str,
        tensor: &'a Tensor<T>,
        shape: Shape,
    ) -> Result<Self> {
        if tensor.shape() != shape {
            return Err(Error::Shape {
                op,
                what,
                expected: shape.to_string(),
                found: tensor.shape(),
            });
        }
        Self::broadcast(op, what, tensor, shape)
    }

    /// The dimensions of `shape`, which it is broadcast to, innermost first and as four, with its
    /// strides, 0 where it is the same along one.
    pub fn strides(&self, shape: Shape) -> [(u32, u32); Shape::MAX_RANK] {
        let (mut all, mut next) = ([(1, 0); Shape::MAX_RANK], 1);
        for (of, (&dim, has)) in all.iter_mut().zip(shape.dims().iter().rev().zip(&self.has)) {
            *of = (dim as u32, if *has { next } else { 0 });
            next *= if *has { dim as u32 } else { 1 };
        }
        all
    }
}

/// The shape to which two tensors are broadcast: dimensions are aligned from the last on, and one
/// of 1 serves for any.
///
/// # Errors
/// [`Error::Shape`] if they do not fit.
pub fn broadcast_shape(op: &'static str, a: Shape, b: Shape) -> Result<Shape> {
    let (longer, shorter) = if a.rank() < b.rank() { (b, a) } else { (a, b) };
    let mut dims = longer.dims().to_vec();
    let outer = dims.len() - shorter.rank();
    for (dim, &other) in dims[outer..].iter_mut().zip(shorter.dims()) {
        if *dim != other && *dim != 1 && other != 1 {
            return Err(Error::Shape {
                op,
                what: "b",
                expected: format!("what broadcasts with {a}"),
                found: b,
            });
        }
        // One of 1 serves for none, too.
        *dim = if *dim == 1 { other } else { *dim };
    }
    Ok(Shape::of(&dims))
}

/// Joins neighboring dimensions of which each operand has all or none; gives dimensions, innermost
/// first, and for each of them the operands that have it, a bit each. Operands of one shape have
/// one dimension.
fn join(dims: &[usize], operands: &[&[bool]]) -> (Vec<usize>, Vec<u32>) {
    let (mut joined, mut have): (Vec<usize>, Vec<u32>) = (Vec::new(), Vec::new());
    for (i, &dim) in dims.iter().rev().enumerate().filter(|(_, dim)| **dim != 1) {
        let bits =
            operands.iter().enumerate().map(|(operand, has)| u32::from(has[i]) << operand).sum();
        match (joined.last_mut(), have.last()) {
            (Some(inner), Some(&last)) if last == bits => *inner *= dim,
            _ => {
                joined.push(dim);
                have.push(bits);
            }
        }
    }
    (joined, have)
}

/// The numbers of a call that are `params.alpha` and `params.beta`.
pub type Scalars<'a> = &'a [f32];

/// Records a kernel of this file's declarations. An input that is `y` itself, element for element,
/// is read where it is written.
fn record<Y: ElementType>(
    encoder: &mut Encoder,
    kernel: &'static Kernel,
    scalars: Scalars<'_>,
    inputs: &[&Operand<'_>],
    y: Out<'_, Y>,
) -> Result<()> {
    let (add, y) = (y.adds().into(), y.tensor());
    let (n, have) =
        join(y.shape().dims(), &inputs.iter().map(|input| &*input.has).collect::<Vec<_>>());
    let is_y = |input: &Operand<'_>| {
        let (bound, y) = (input.tensor.bound(), y.bound());
        bound.id() == y.id() && bound.element() == y.element()
    };
    let all = |input: usize| have.iter().all(|bits| bits >> input & 1 == 1);
    let in_place: u32 =
        inputs.iter().enumerate().map(|(i, input)| u32::from(is_y(input) && all(i)) << i).sum();
    let dims_of =
        |input: usize| have.iter().enumerate().map(|(dim, bits)| (bits >> input & 1) << dim).sum();
    let dim = |i: usize| n.get(i).copied().unwrap_or(1) as u32;
    let scalar = |i: usize| scalars.get(i).copied().unwrap_or(0.0);
    let params = FrameParams {
        length: y.len() as u32,
        rank: n.len() as u32,
        n0: dim(0),
        n1: dim(1),
        n2: dim(2),
        add,
        in_place,
        a_dims: dims_of(0),
        b_dims: dims_of(1),
        c_dims: dims_of(2),
        alpha: scalar(0),
        beta: scalar(1),
    };
    // wgpu binds no buffer for reading that is bound for writing.
    let unread =
        if in_place == 0 { None } else { Some(Tensor::<Y>::uninit(encoder.context(), [1])?) };
    let mut bindings: Vec<&dyn Bind> = Vec::new();
    for (i, input) in inputs.iter().enumerate() {
        bindings.push(match &unread {
            Some(unread) if in_place >> i & 1 == 1 => unread,
            _ => input.tensor,
        });
    }
    bindings.push(y);
    encoder.dispatch(kernel, &params, &bindings, [y.len(), 1, 1])
}

/// An op with one input: `y` has the shape of `x`.
pub fn map<X: ElementType, Y: ElementType>(
    encoder: &mut Encoder,
    kernel: &'static Kernel,
    scalars: Scalars<'_>,
    x: &Tensor<X>,
    y: Out<'_, Y>,
) -> Result<()> {
    y.check_shape(kernel.name, x.shape())?;
    spread(encoder, kernel, scalars, x, y)
}

/// An op with one input, which is broadcast to the shape of `y`.
pub fn spread<X: ElementType, Y: ElementType>(
    encoder: &mut Encoder,
    kernel: &'static Kernel,
    scalars: Scalars<'_>,
    x: &Tensor<X>,
    y: Out<'_, Y>,
) -> Result<()> {
    let x = Operand::broadcast(kernel.name, "x", x, y.tensor().shape())?;
    record(encoder, kernel, scalars, &[&x], y)
}

/// The gradient of an op with one input: `dy` and `dx` have the shape of `x`.
pub fn gradient<T: Float>(
    encoder: &mut Encoder,
    kernel: &'static Kernel,
    scalars: Scalars<'_>,
    x: &Tensor<T>,
    dy: &Tensor<T>,
    dx: Out<'_, T>,
) -> Result<()> {
    let (op, shape) = (kernel.name, x.shape());
    let (x, dy) = (Operand::broadcast(op, "x", x, shape)?, Operand::same(op, "dy", dy, shape)?);
    dx.check_shape(op, shape)?;
    record_two(encoder, kernel, scalars, &x, &dy, dx)
}

/// An op with two inputs, broadcast to the shape of `y`.
pub fn combine<X: ElementType, Y: ElementType>(
    encoder: &mut Encoder,
    kernel: &'static Kernel,
    a: &Tensor<X>,
    b: &Tensor<X>,
    y: Out<'_, Y>,
) -> Result<()> {
    let shape = y.tensor().shape();
    let (a, b) = (
        Operand::broadcast(kernel.name, "a", a, shape)?,
        Operand::broadcast(kernel.name, "b", b, shape)?,
    );
    record_two(encoder, kernel, &[], &a, &b, y)
}

/// Records a kernel of two inputs, both for the dimensions of `y`.
pub fn record_two<Y: ElementType>(
    encoder: &mut Encoder,
    kernel: &'static Kernel,
    scalars: Scalars<'_>,
    a: &Operand<'_>,
    b: &Operand<'_>,
    y: Out<'_, Y>,
) -> Result<()> {
    record(encoder, kernel, scalars, &[a, b], y)
}

/// Records a kernel of three inputs, all for the dimensions of `y`.
pub fn record_three<Y: ElementType>(
    encoder: &mut Encoder,
    kernel: &'static Kernel,
    scalars: Scalars<'_>,
    inputs: [&Operand<'_>; 3],
    y: Out<'_, Y>,
) -> Result<()> {
    record(encoder, kernel, scalars, &inputs, y)
}

#[cfg(test)]
mod tests {
    use super::join;

    #[test]
    fn dimensions_that_belong_together_are_joined() {
        let (all, row, column) = ([true; 3], [true, false, false], [false, true, true]);
        assert_eq!(join(&[2, 3, 5], &[&all]), (vec![30], vec![1]));
        // A row for all rows, a number for each.
        assert_eq!(join(&[2, 3, 5], &[&all, &row]), (vec![5, 6], vec![3, 1]));
        assert_eq!(join(&[2, 3, 5], &[&all, &column]), (vec![5, 6], vec![1, 3]));
        assert_eq!(join(&[2, 1, 5], &[&all, &row]), (vec![5, 2], vec![3, 1]));
        assert_eq!(join(&[1, 1], &[&[true, false]]), (vec![], vec![]));
        assert_eq!(join(&[], &[&[]]), (vec![], vec![]));
    }
}
