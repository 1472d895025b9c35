//! Functions of two numbers, and their gradients. Tensors of other shapes are broadcast: dimensions
//! are aligned from the last on, and one of 1 serves for any.

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
        frames::{
            ALIKE, Operand, broadcast_shape, combine, elementwise, function, record_three,
            three_inputs, two_inputs,
        },
        tensor::{copy::cast, sum::sum_to},
    },
};

const GRADIENT: &[Binding; 4] = &[
    read("a", Float("A")),
    read("b", Float("X")),
    read("c", Float("X")),
    read_write("y", Float("Y")),
];

/// An op is its names, then WGSL and Rust that say the same, of the function and of its gradients
/// for a and b.
macro_rules! binary {
    ($(
        $(#[$doc:meta])*
        $name:ident, $into:ident, $cpu:ident [$($part:tt),*] $forward:literal |$a:ident, $b:ident| $twin:expr;
        $back:ident, $back_cpu:ident $da:literal, $db:literal |$at:ident, $bt:ident, $dy:ident| $back_twin:expr;
    )+) => {
        pub(super) const KERNELS: &[&Kernel] = &[$(&$name::FORWARD, &$name::BACKWARD),+];
        $(
            mod $name {
                use super::*;
                const COMBINE: Part = function!("combine(a: f32, b: f32)", $forward);
                const OF_A: Part = function!("of_a(a: f32, b: f32, dy: f32)", $da);
                const OF_B: Part = function!("of_b(a: f32, b: f32, dy: f32)", $db);
                const CHOICE: Part = function!("combine(a: f32, b: f32, c: f32)", "select(of_a(a, b, c), of_b(a, b, c), params.alpha != 0.0)");
                pub static FORWARD: Kernel = two_inputs(stringify!($name), elementwise!("frames/elementwise_2", [$($part,)* ALIKE, COMBINE])).one_float();
                pub static BACKWARD: Kernel =
                    three_inputs(stringify!($back), GRADIENT, elementwise!("frames/elementwise_3", [$($part,)* OF_A, OF_B, CHOICE])).one_float();
            }

            $(#[$doc])*
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($into), "`].")]
            pub fn $name<T: Float>(encoder: &mut Encoder, a: &Tensor<T>, b: &Tensor<T>) -> Result<Tensor<T>> {
                let y = Tensor::uninit(encoder.context(), broadcast_shape(stringify!($name), a.shape(), b.shape())?)?;
                $into(encoder, a, b, &y)?;
                Ok(y)
            }

            #[doc = concat!("[`", stringify!($name), "`] into a tensor of the caller, to whose shape `a` and `b` are broadcast; one of them may be it.")]
            ///
            /// # Errors
            /// [`Error::Shape`](crate::Error::Shape) if they do not fit.
            pub fn $into<'y, T: Float>(encoder: &mut Encoder, a: &Tensor<T>, b: &Tensor<T>, y: impl Into<Out<'y, T>>) -> Result<()> {
                combine(encoder, &$name::FORWARD, a, b, y.into())
            }

            #[doc = concat!("The gradients of [`", stringify!($name), "`] at `a` and `b`, where `dy` is that of its output: for each in its own shape, ")]
            /// summed over what it was repeated for.
            ///
            /// # Errors
            /// [`Error::Shape`](crate::Error::Shape) if `dy` has not the shape of the output.
            pub fn $back<T: Float>(encoder: &mut Encoder, a: &Tensor<T>, b: &Tensor<T>, dy: &Tensor<T>) -> Result<(Tensor<T>, Tensor<T>)> {
                let shape = broadcast_shape(stringify!($name), a.shape(), b.shape())?;
                Operand::same(stringify!($back), "dy", dy, shape)?;
                Ok((gradient(encoder, &$name::BACKWARD, a, b, dy, Of::A)?, gradient(encoder, &$name::BACKWARD, a, b, dy, Of::B)?))
            }

            #[doc = concat!("The CPU twin of [`", stringify!($name), "`], of two numbers.")]
            pub fn $cpu($a: f32, $b: f32) -> f32 {
                $twin
            }

            #[doc = concat!("The CPU twin of [`", stringify!($back), "`], of three numbers.")]
            #[allow(unused_variables)]
            pub fn $back_cpu($at: f32, $bt: f32, $dy: f32) -> (f32, f32) {
                $back_twin
            }
        )+
    };
}

/// Of which input a gradient is.
#[derive(Clone, Copy)]
enum Of {
    A,
    B,
}

fn gradient<T: Float>(
    encoder: &mut Encoder,
    kernel: &'static Kernel,
    a: &Tensor<T>,
    b: &Tensor<T>,
    dy: &Tensor<T>,
    of: Of,
) -> Result<Tensor<T>> {
    let shape = dy.shape();
    let (op, all) = (kernel.name, Tensor::uninit(encoder.context(), shape)?);
    let operands = (
        Operand::broadcast(op, "a", a, shape)?,
        Operand::broadcast(op, "b", b, shape)?,
        Operand::same(op, "dy", dy, shape)?,
    );
    let which = f32::from(u8::from(matches!(of, Of::B)));
    record_three(
        encoder,
        kernel,
        &[which],
        [&operands.0, &operands.1, &operands.2],
        Out::set(&all),
    )?;
    let own = match of {
        Of::A => a.shape(),
        Of::B => b.shape(),
    };
    if own == shape {
        return Ok(all);
    }
    let sum = sum_to(encoder, &all, own)?;
    cast(encoder, &sum)
}

binary! {
    /// a + b.
    add, add_into, add_cpu [] "a + b" |a, b| a + b;
    add_backward, add_backward_cpu "dy", "dy" |a, b, dy| (dy, dy);

    /// a - b.
    sub, sub_into, sub_cpu [] "a - b" |a, b| a - b;
    sub_backward, sub_backward_cpu "dy", "-dy" |a, b, dy| (dy, -dy);

    /// a·b.
    mul, mul_into, mul_cpu [] "a * b" |a, b| a * b;
    mul_backward, mul_backward_cpu "dy * b", "dy * a" |a, b, dy| (dy * b, dy * a);

    /// a / b.
    div, div_into, div_cpu [] "a / b" |a, b| a / b;
    div_backward, div_backward_cpu "dy / b", "-dy * (a / b) / b" |a, b, dy| (dy / b, -dy * (a / b) / b);

    /// The lesser of a and b; NaN where one is. Its gradient goes to the lesser, and half of it to
    /// each where they are equal.
    minimum, minimum_into, minimum_cpu [] "select(min(a, b), a + b, is_nan(a) || is_nan(b))"
        |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { a.min(b) };
    minimum_backward, minimum_backward_cpu "dy * select(select(0.0, 0.5, a == b), 1.0, a < b)", "dy * select(select(0.0, 0.5, a == b), 1.0, b < a)"
        |a, b, dy| (dy * share(b - a), dy * share(a - b));

    /// The greater of a and b; NaN where one is. Its gradient goes to the greater, and half of it
    /// to each where they are equal.
    maximum, maximum_into, maximum_cpu [] "select(max(a, b), a + b, is_nan(a) || is_nan(b))"
        |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { a.max(b) };
    maximum_backward, maximum_backward_cpu "dy * select(select(0.0, 0.5, a == b), 1.0, a > b)", "dy * select(select(0.0, 0.5, a == b), 1.0, b > a)"
        |a, b, dy| (dy * share(a - b), dy * share(b - a));

    /// a to the power of b, as 2^(b·log₂ |a|) with the sign that an odd b gives; NaN for a < 0
    /// where b is no integer; 1 for b = 0. The gradient for b is 0 where a is.
    pow, pow_into, pow_cpu ["tensor/pow"] "power(a, b)" |a, b| a.powf(b);
    pow_backward, pow_backward_cpu "select(dy * b * power(a, b - 1.0), 0.0, b == 0.0)", "select(dy * power(a, b) * log(a), 0.0, a == 0.0)"
        |a, b, dy| {
            (if b == 0.0 { 0.0 } else { dy * b * a.powf(b - 1.0) }, if a == 0.0 { 0.0 } else { dy * a.powf(b) * a.ln() })
        };
}

/// 1 for what is positive, ½ for 0.
fn share(ahead: f32) -> f32 {
    if ahead > 0.0 {
        1.0
    } else if ahead == 0.0 {
        0.5
    } else {
        0.0
    }
}
