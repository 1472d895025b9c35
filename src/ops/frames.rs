//! What elementwise ops share. A frame's text (wgsl/frames, msl/frames) owns index, bounds, parameters, broadcasting and accumulation; an op's text
//! brings a function: `forward(a)` for one input, `combine(a, b)` for two. A gradient is `combine(x, dy)`, made of `backward(x, dy)`.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{
        encoder::Encoder,
        out::Out,
        tensor::{Bind, Tensor},
    },
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::{Fields, Params, Scalar::U32},
        source::Source,
    },
    shape::Shape,
};

/// Parameters of `W` words: those of the output, then five for each input.
#[repr(transparent)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct FrameParams<const W: usize>([u32; W]);
const ONE_INPUT: usize = 11;
const TWO_INPUTS: usize = 16;

impl<const W: usize> Params for FrameParams<W> {
    const FIELDS: Fields = FIELDS.split_at(W).0;
}

#[rustfmt::skip]
const FIELDS: Fields = &[
    ("length", U32), ("rank", U32), ("n0", U32), ("n1", U32), ("n2", U32), ("add", U32),
    ("a_offset", U32), ("a0", U32), ("a1", U32), ("a2", U32), ("a3", U32),
    ("b_offset", U32), ("b0", U32), ("b1", U32), ("b2", U32), ("b3", U32),
];

/// The sources of an elementwise op: its parts between those of the frame.
macro_rules! elementwise {
    ($frame:literal, wgsl [$($wgsl:tt),*], msl [$($msl:tt),*]) => {
        &[
            $crate::kernel::source::Source::wgsl($crate::wgsl!["shared/ids", "shared/flat", $($wgsl,)* "frames/operand", $frame]),
            $crate::kernel::source::Source::msl($crate::msl!["shared/prelude", $($msl,)* "frames/operand", $frame]),
        ]
    };
}
pub(super) use elementwise;

/// A kernel with one input, `sources` made with "frames/elementwise_1".
pub const fn one_input(name: &'static str, sources: &'static [Source]) -> Kernel {
    const BINDINGS: &[Binding] = &[read("a", Float("X")), read_write("y", Float("Y"))];
    Kernel::trusted(name, FrameParams::<ONE_INPUT>::FIELDS, BINDINGS, sources).entry("elementwise_1").flat()
}

/// A kernel with two inputs, `sources` made with "frames/elementwise_2".
pub const fn two_inputs(name: &'static str, sources: &'static [Source]) -> Kernel {
    const BINDINGS: &[Binding] = &[read("a", Float("X")), read("b", Float("X")), read_write("y", Float("Y"))];
    Kernel::trusted(name, FrameParams::<TWO_INPUTS>::FIELDS, BINDINGS, sources).entry("elementwise_2").flat()
}

/// An input: which elements of a tensor belong to those of the output.
pub struct Operand<'a, T> {
    tensor: &'a Tensor<T>,
    /// The output's, outermost first.
    dims: Vec<usize>,
    offset: usize,
    /// One for each dimension of the output; 0 where the tensor is broadcast.
    strides: Vec<usize>,
}

impl<'a, T> Operand<'a, T> {
    /// A tensor, broadcast to `shape`: dimensions are aligned from the last on, and one of 1 serves for any.
    ///
    /// # Errors
    /// [`Error::Shape`] if it does not fit.
    pub fn broadcast(op: &'static str, what: &'static str, tensor: &'a Tensor<T>, shape: Shape) -> Result<Self> {
        let (own, dims) = (tensor.shape(), shape.dims());
        let mut strides = vec![0; dims.len()];
        let misfit = || Error::Shape { op, what, expected: format!("what broadcasts to {shape}"), found: own };
        let outer = dims.len().checked_sub(own.rank()).ok_or_else(misfit)?;
        let mut stride = 1;
        for (i, &dim) in own.dims().iter().enumerate().rev() {
            if dim == dims[outer + i] {
                strides[outer + i] = stride;
            } else if dim != 1 {
                return Err(misfit());
            }
            stride *= dim;
        }
        Ok(Self { tensor, dims: dims.to_vec(), offset: 0, strides })
    }

    /// `width` columns of a matrix from `first` on, for an output of `[rows, width]`.
    pub fn columns(tensor: &'a Tensor<T>, first: usize, width: usize) -> Self {
        let (rows, columns) = tensor.shape().as_matrix();
        Self { tensor, dims: vec![rows, width], offset: first, strides: vec![columns, 1] }
    }
}

/// Joins neighbouring dimensions that lie one after another in every operand; gives dimensions and strides, innermost first.
fn join(dims: &[usize], operands: &[&[usize]]) -> (Vec<usize>, Vec<Vec<usize>>) {
    let (mut joined, mut strides): (Vec<usize>, Vec<Vec<usize>>) = (Vec::new(), vec![Vec::new(); operands.len()]);
    for (i, &dim) in dims.iter().enumerate().rev().filter(|(_, dim)| **dim != 1) {
        let follows = |(operand, strides): (&&[usize], &Vec<usize>)| match (strides.last(), joined.last()) {
            (Some(inner), Some(length)) => operand[i] == inner * length,
            _ => false,
        };
        if operands.iter().zip(&strides).all(follows) {
            joined.iter_mut().rev().take(1).for_each(|length| *length *= dim);
        } else {
            joined.push(dim);
            strides.iter_mut().zip(operands).for_each(|(strides, operand)| strides.push(operand[i]));
        }
    }
    if joined.is_empty() {
        joined.push(1);
        strides.iter_mut().for_each(|strides| strides.push(0));
    }
    (joined, strides)
}

/// Records a kernel of [`one_input`] or [`two_inputs`]; all inputs are for the dimensions of `y`.
fn record<const W: usize, X: Float, Y: Float>(
    encoder: &mut Encoder,
    kernel: &'static Kernel,
    inputs: &[&Operand<'_, X>],
    y: Out<'_, Y>,
) -> Result<()> {
    let length = y.tensor().len();
    let strides: Vec<&[usize]> = inputs.iter().map(|input| &*input.strides).collect();
    let (n, strides) = join(&inputs[0].dims, &strides);
    // Numbers that a rank does not have are not read.
    let word = |numbers: &[usize], i: usize| numbers.get(i).copied().unwrap_or(1) as u32;
    let of_output = [length as u32, n.len() as u32, word(&n, 0), word(&n, 1), word(&n, 2), y.adds().into()];
    let of_input = |(input, s): (&&Operand<'_, X>, &Vec<usize>)| [input.offset as u32, word(s, 0), word(s, 1), word(s, 2), word(s, 3)];
    let mut params = FrameParams([0; W]);
    let words = of_output.into_iter().chain(inputs.iter().zip(&strides).flat_map(of_input));
    params.0.iter_mut().zip(words).for_each(|(param, word)| *param = word);
    let mut bindings: Vec<&dyn Bind> = inputs.iter().map(|input| input.tensor as &dyn Bind).collect();
    bindings.push(y.tensor());
    encoder.dispatch(kernel, &params, &bindings, [length, 1, 1])
}

/// Records a kernel of [`two_inputs`]; both operands are for the dimensions of `y`.
pub fn record_two<X: Float, Y: Float>(
    encoder: &mut Encoder,
    kernel: &'static Kernel,
    a: &Operand<'_, X>,
    b: &Operand<'_, X>,
    y: Out<'_, Y>,
) -> Result<()> {
    record::<TWO_INPUTS, X, Y>(encoder, kernel, &[a, b], y)
}

/// An op with one input: `y` has the shape of `x`.
pub fn map<X: Float, Y: Float>(
    encoder: &mut Encoder,
    op: &'static str,
    kernel: &'static Kernel,
    x: &Tensor<X>,
    y: Out<'_, Y>,
) -> Result<()> {
    y.check_shape(op, x.shape())?;
    record::<ONE_INPUT, X, Y>(encoder, kernel, &[&Operand::broadcast(op, "x", x, x.shape())?], y)
}

/// The gradient of an op with one input: `dy` and `dx` have the shape of `x`.
pub fn gradient<X: Float, Y: Float>(
    encoder: &mut Encoder,
    op: &'static str,
    kernel: &'static Kernel,
    x: &Tensor<X>,
    dy: &Tensor<X>,
    dx: Out<'_, Y>,
) -> Result<()> {
    let shape = x.shape();
    if dy.shape() != shape {
        return Err(Error::Shape { op, what: "dy", expected: shape.to_string(), found: dy.shape() });
    }
    dx.check_shape(op, shape)?;
    record_two(encoder, kernel, &Operand::broadcast(op, "x", x, shape)?, &Operand::broadcast(op, "dy", dy, shape)?, dx)
}

#[cfg(test)]
mod tests {
    use super::join;

    #[test]
    fn dimensions_that_lie_one_after_another_are_joined() {
        assert_eq!(join(&[2, 3, 5], &[&[15, 5, 1]]), (vec![30], vec![vec![1]]));
        // A row for all rows, a column for all columns.
        assert_eq!(join(&[2, 3, 5], &[&[15, 5, 1], &[0, 0, 1]]), (vec![5, 6], vec![vec![1, 5], vec![1, 0]]));
        assert_eq!(join(&[6, 5], &[&[1, 0]]), (vec![5, 6], vec![vec![0, 1]]));
        assert_eq!(join(&[2, 1, 5], &[&[5, 0, 1]]), (vec![10], vec![vec![1]]));
        assert_eq!(join(&[1, 1], &[&[0, 0]]), (vec![1], vec![vec![0]]));
        assert_eq!(join(&[], &[&[]]), (vec![1], vec![vec![0]]));
        // Half of the columns of a wider matrix.
        assert_eq!(join(&[4, 3], &[&[6, 1]]), (vec![3, 4], vec![vec![1, 6]]));
    }
}
