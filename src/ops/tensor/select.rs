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
    ops::frames::{Operand, broadcast_shape, elementwise, function, record_three, three_inputs},
};

const BINDINGS: &[Binding; 4] =
    &[read("a", U32), read("b", Float("X")), read("c", Float("X")), read_write("y", Float("Y"))];
const CONDITION: Part = Part::new("alias A", "alias A = u32;\n");
const COMBINE: Part = function!("combine(a: f32, b: f32, c: f32)", "select(c, b, a != 0.0)");

static SELECT: Kernel =
    three_inputs("select", BINDINGS, elementwise!("frames/elementwise_3", [CONDITION, COMBINE]))
        .one_float();

pub(super) const KERNELS: &[&Kernel] = &[&SELECT];

/// `a` where `condition` is not 0, else `b`; all are broadcast as in [`add`](super::add). `where`
/// in other libraries, which is a word of Rust. Its gradients: `select(condition, dy, 0)` and
/// `select(condition, 0, dy)`.
///
/// # Errors
/// As [`select_into`].
pub fn select<T: Float>(
    encoder: &mut Encoder,
    condition: &Tensor<u32>,
    a: &Tensor<T>,
    b: &Tensor<T>,
) -> Result<Tensor<T>> {
    let shape = broadcast_shape(
        SELECT.name,
        broadcast_shape(SELECT.name, condition.shape(), a.shape())?,
        b.shape(),
    )?;
    let y = Tensor::uninit(encoder.context(), shape)?;
    select_into(encoder, condition, a, b, &y)?;
    Ok(y)
}

/// [`select`] into a tensor of the caller, to whose shape all are broadcast; `a` or `b` may be it.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if they do not fit.
pub fn select_into<'y, T: Float>(
    encoder: &mut Encoder,
    condition: &Tensor<u32>,
    a: &Tensor<T>,
    b: &Tensor<T>,
    y: impl Into<Out<'y, T>>,
) -> Result<()> {
    let (op, y) = (SELECT.name, y.into());
    let shape = y.tensor().shape();
    let condition = Operand::broadcast(op, "condition", condition, shape)?;
    let (a, b) = (Operand::broadcast(op, "a", a, shape)?, Operand::broadcast(op, "b", b, shape)?);
    record_three(encoder, &SELECT, &[], [&condition, &a, &b], y)
}

/// The CPU twin, of one element.
pub fn select_cpu(condition: u32, a: f32, b: f32) -> f32 {
    if condition != 0 { a } else { b }
}
