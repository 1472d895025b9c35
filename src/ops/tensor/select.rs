//! select: y = a where a condition holds, else b.

use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        source::Part,
    },
    ops::{
        forward::forward,
        frames::{Operand, broadcast_shape, elementwise, function, record_three, three_inputs},
    },
    shape::Shape,
};

const BINDINGS: &[Binding; 4] =
    &[read("a", U32), read("b", Float("X")), read("c", Float("X")), read_write("y", Float("Y"))];
const CONDITION: Part = Part::new("alias A", "alias A = u32;\n");
const COMBINE: Part = function!("combine(a: f32, b: f32, c: f32)", "select(c, b, a != 0.0)");

static SELECT: Kernel =
    three_inputs("select", BINDINGS, elementwise!("frames/elementwise_3", [CONDITION, COMBINE]))
        .one_float();

pub(super) const KERNELS: &[&Kernel] = &[&SELECT];

/// A choice between two tensors, element by element: what [`select`] returns. All are broadcast to
/// the shape of the result, which may overwrite `a` or `b`.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct Select<'a, T> {
    condition: &'a Tensor<u32>,
    a: &'a Tensor<T>,
    b: &'a Tensor<T>,
}

/// `a` where `condition` is not 0, else `b`: PyTorch's `where`. Gradients: `select(condition, dy,
/// 0)` and `select(condition, 0, dy)`.
pub fn select<'a, T: Float>(
    condition: &'a Tensor<u32>,
    a: &'a Tensor<T>,
    b: &'a Tensor<T>,
) -> Select<'a, T> {
    Select { condition, a, b }
}

forward!(impl['a, T: Float] Select<'a, T> => T);

impl<T: Float> Select<'_, T> {
    fn shape(&self) -> Result<Shape> {
        let of_a = broadcast_shape(SELECT.name, self.condition.shape(), self.a.shape())?;
        broadcast_shape(SELECT.name, of_a, self.b.shape())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        let (op, shape) = (SELECT.name, y.tensor().shape());
        let condition = Operand::broadcast(op, "condition", self.condition, shape)?;
        let a = Operand::broadcast(op, "a", self.a, shape)?;
        let b = Operand::broadcast(op, "b", self.b, shape)?;
        record_three(encoder, &SELECT, &[], [&condition, &a, &b], y)
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    /// CPU reference of [`select`](fn@crate::tensor::select), of one element.
    pub fn select(condition: u32, a: f32, b: f32) -> f32 {
        if condition != 0 { a } else { b }
    }
}
