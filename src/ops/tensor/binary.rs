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
        forward::forward,
        frames::{
            ALIKE, Operand, broadcast_shape, combine, elementwise, function, record_three,
            three_inputs, two_inputs,
        },
        op_tables::Kernels,
        tensor::broadcast::copy,
    },
    shape::Shape,
};

const GRADIENT: &[Binding; 4] = &[
    read("a", Float("A")),
    read("b", Float("X")),
    read("c", Float("X")),
    read_write("y", Float("Y")),
];

/// An elementwise op of two tensors: what [`add`], [`mul`] and others return. Both are broadcast to
/// the shape of the result, which may overwrite either of them if it has that shape.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` or `backward` records it"]
pub struct Binary<'a, T> {
    a: &'a Tensor<T>,
    b: &'a Tensor<T>,
    kernels: &'static Kernels,
}

forward!(impl['a, T: Float] Binary<'a, T> => T);

impl<T: Float> Binary<'_, T> {
    fn shape(&self) -> Result<Shape> {
        broadcast_shape(self.kernels.forward.name, self.a.shape(), self.b.shape())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        combine(encoder, &self.kernels.forward, self.a, self.b, y)
    }

    /// Records the gradients of the op: returns those of `a` and `b`, each in its own shape and
    /// summed over what it was repeated for, where `dy` is the gradient of the output.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if `dy` has another shape than the output.
    #[cfg(feature = "train")]
    pub fn backward(self, encoder: &mut Encoder, dy: &Tensor<T>) -> Result<(Tensor<T>, Tensor<T>)> {
        Operand::same(self.kernels.backward.name, "dy", dy, self.shape()?)?;
        Ok((self.gradient(encoder, dy, Of::A)?, self.gradient(encoder, dy, Of::B)?))
    }

    #[cfg(feature = "train")]
    fn gradient(self, encoder: &mut Encoder, dy: &Tensor<T>, of: Of) -> Result<Tensor<T>> {
        let kernel = &self.kernels.backward;
        let op = kernel.name;
        let shape = dy.shape();
        let all = Tensor::uninit(encoder.context(), shape)?;
        let a = Operand::broadcast(op, "a", self.a, shape)?;
        let b = Operand::broadcast(op, "b", self.b, shape)?;
        let dy = Operand::same(op, "dy", dy, shape)?;
        let (which, own) = match of {
            Of::A => (0.0, self.a),
            Of::B => (1.0, self.b),
        };
        record_three(encoder, kernel, &[which], [&a, &b, &dy], Out::set(&all))?;
        if own.shape() == shape { Ok(all) } else { copy(own).backward(encoder, &all) }
    }
}

/// Of which input a gradient is.
#[derive(Clone, Copy)]
enum Of {
    A,
    B,
}

/// An op is its names, then WGSL and Rust that say the same, of the function and of its gradients
/// for a and b.
macro_rules! binary {
    ($(
        $(#[$doc:meta])*
        $name:ident [$($part:tt),*] $forward:literal |$a:ident, $b:ident| $reference:expr;
        $back:ident $da:literal, $db:literal |$at:ident, $bt:ident, $dy:ident| $back_reference:expr;
    )+) => {
        pub(super) const KERNELS: &[&Kernel] =
            &[$(&$name::KERNELS.forward, &$name::KERNELS.backward),+];
        $(
            mod $name {
                use super::*;
                const COMBINE: Part = function!("combine(a: f32, b: f32)", $forward);
                const OF_A: Part = function!("of_a(a: f32, b: f32, dy: f32)", $da);
                const OF_B: Part = function!("of_b(a: f32, b: f32, dy: f32)", $db);
                const CHOICE: Part = function!("combine(a: f32, b: f32, c: f32)", "select(of_a(a, b, c), of_b(a, b, c), params.alpha != 0.0)");
                pub static KERNELS: Kernels = Kernels {
                    forward: two_inputs(stringify!($name), elementwise!("frames/elementwise_2", [$($part,)* ALIKE, COMBINE])).one_float(),
                    backward: three_inputs(stringify!($back), GRADIENT, elementwise!("frames/elementwise_3", [$($part,)* OF_A, OF_B, CHOICE])).one_float(),
                };
            }

            $(#[$doc])*
            pub fn $name<'a, T: Float>(a: &'a Tensor<T>, b: &'a Tensor<T>) -> Binary<'a, T> {
                Binary { a, b, kernels: &$name::KERNELS }
            }
        )+

        #[cfg(any(test, feature = "reference"))]
        pub(crate) mod reference {
            use super::share;
            $(
                #[doc = concat!("CPU reference of [`", stringify!($name), "`](crate::tensor::", stringify!($name), "), of two numbers.")]
                pub fn $name($a: f32, $b: f32) -> f32 {
                    $reference
                }

                #[doc = concat!("CPU reference of the gradients of [`", stringify!($name), "`](crate::tensor::", stringify!($name), ").")]
                #[allow(unused_variables)]
                pub fn $back($at: f32, $bt: f32, $dy: f32) -> (f32, f32) {
                    $back_reference
                }
            )+
        }
    };
}

binary! {
    /// a + b.
    add [] "a + b" |a, b| a + b;
    add_backward "dy", "dy" |a, b, dy| (dy, dy);

    /// a - b.
    sub [] "a - b" |a, b| a - b;
    sub_backward "dy", "-dy" |a, b, dy| (dy, -dy);

    /// a·b.
    mul [] "a * b" |a, b| a * b;
    mul_backward "dy * b", "dy * a" |a, b, dy| (dy * b, dy * a);

    /// a / b.
    div [] "a / b" |a, b| a / b;
    div_backward "dy / b", "-dy * (a / b) / b" |a, b, dy| (dy / b, -dy * (a / b) / b);

    /// The lesser of a and b; NaN where one is. Its gradient goes to the lesser, and half of it to
    /// each where they are equal.
    minimum [] "select(min(a, b), a + b, is_nan(a) || is_nan(b))"
        |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { a.min(b) };
    minimum_backward "dy * select(select(0.0, 0.5, a == b), 1.0, a < b)", "dy * select(select(0.0, 0.5, a == b), 1.0, b < a)"
        |a, b, dy| (dy * share(b - a), dy * share(a - b));

    /// The greater of a and b; NaN where one is. Its gradient goes to the greater, and half of it
    /// to each where they are equal.
    maximum [] "select(max(a, b), a + b, is_nan(a) || is_nan(b))"
        |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { a.max(b) };
    maximum_backward "dy * select(select(0.0, 0.5, a == b), 1.0, a > b)", "dy * select(select(0.0, 0.5, a == b), 1.0, b > a)"
        |a, b, dy| (dy * share(a - b), dy * share(b - a));

    /// a to the power of b, as 2^(b·log₂ |a|) with the sign that an odd b gives; NaN for a < 0
    /// where b is no integer; 1 for b = 0. The gradient for b is 0 where a is.
    pow ["tensor/pow"] "power(a, b)" |a, b| a.powf(b);
    pow_backward "select(dy * b * power(a, b - 1.0), 0.0, b == 0.0)", "select(dy * power(a, b) * log(a), 0.0, a == 0.0)"
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
