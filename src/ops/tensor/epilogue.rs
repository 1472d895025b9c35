//! What is done to a product before it is stored, in the kernel that makes it, or by an op of its
//! own.

use super::activations::host as activations;
use crate::{
    element::{ElementType, Float},
    error::{Error, Result},
    gpu::{context::Context, encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Part, Source},
    },
    msl,
    ops::forward::forward,
    params,
    shape::Shape,
    wgsl,
};

/// What fills the holes of a product's sources, in WGSL and in Metal.
#[derive(Clone, Copy)]
pub(crate) struct Filling {
    pub wgsl: &'static [Part],
    pub msl: &'static [Part],
}

impl Filling {
    pub const fn fill(self, kernel: Kernel) -> Kernel {
        kernel.fill(self.wgsl).fill_msl(self.msl)
    }
}

/// For products of floats as they are; those of integers bring their parameters too.
pub(crate) const STORE: Filling =
    Filling { wgsl: wgsl!["tensor/matmul_store"], msl: msl!["tensor/product_plain"] };

/// The [`Filling`] of an epilogue: `bias`, of the type `$type`, in binding `$binding` of WGSL and
/// `$buffer` of Metal, and more parts of each.
macro_rules! finished {
    ($type:literal, $binding:literal, $buffer:literal, wgsl [$($wgsl:tt),*], msl [$($msl:tt),*]) => {{
        use $crate::kernel::source::Part;
        const BIAS: Part = Part::new("bias", concat!("@group(0) @binding(", $binding, ") var<storage, read> bias: array<", $type, ">;\n"));
        const BIAS_MSL: Part = Part::new("bias", concat!(
            "#define BIAS_PARAMETER , device const ", $type, "* bias\n",
            "#define BIAS_ARGUMENT , device const ", $type, "* bias [[buffer(", $buffer, ")]]\n",
        ));
        $crate::ops::tensor::epilogue::Filling {
            wgsl: $crate::wgsl![BIAS, "shared/exp", "shared/sigmoid", "shared/normal", "tensor/activated", $($wgsl),*],
            msl: $crate::msl![
                BIAS_MSL, "shared/exp", "shared/sigmoid", "shared/normal", "tensor/activated", $($msl,)* "tensor/product_finish"
            ],
        }
    }};
}
pub(crate) use finished;

params! { pub(crate) struct Params { pub length: u32, pub columns: u32, pub add: u32, pub biased: u32, pub activation: u32 } }

impl Params {
    pub fn new<Y: ElementType>(
        length: usize,
        columns: usize,
        epilogue: &Epilogue<'_, Y>,
        y: &Out<'_, Y>,
    ) -> Self {
        let (biased, activation) = (epilogue.has_bias().into(), epilogue.code());
        Self {
            length: length as u32,
            columns: columns as u32,
            add: y.adds().into(),
            biased,
            activation,
        }
    }
}

static FINISH: Kernel = Kernel::trusted(
    "finish",
    Params::FIELDS,
    &[read("x", Float("X")), read("bias", Float("Y")), read_write("y", Float("Y"))],
    &[
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "shared/exp",
            "shared/sigmoid",
            "shared/normal",
            "tensor/activated",
            "tensor/finish_plain",
            "tensor/finish"
        ]),
        Source::msl(msl![
            "shared/prelude",
            "shared/exp",
            "shared/sigmoid",
            "shared/normal",
            "tensor/activated",
            "tensor/finish_plain",
            "tensor/finish"
        ]),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&FINISH];

/// An activation function, as the op of its name ([`relu`](super::relu), [`relu2`](super::relu2),
/// [`silu`](super::silu), [`gelu`](super::gelu)) has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// max(x, 0)
    Relu,
    /// max(x, 0)²
    Relu2,
    /// x·σ(x)
    Silu,
    /// x·Φ(x)
    Gelu,
}

impl Activation {
    /// CPU reference of the activation, of one number.
    fn reference(self, x: f32) -> f32 {
        match self {
            Self::Relu => activations::relu(x),
            Self::Relu2 => activations::relu2(x),
            Self::Silu => activations::silu(x),
            Self::Gelu => activations::gelu(x),
        }
    }
}

/// How a product is finished: v becomes activation(v + bias), in `f32`, and then the type of the
/// output.
#[derive(Clone, Copy)]
pub(crate) struct Epilogue<'a, T> {
    bias: Option<&'a Tensor<T>>,
    activation: Option<Activation>,
}

impl<T> Default for Epilogue<'_, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a, T> Epilogue<'a, T> {
    /// Nothing is done.
    pub fn new() -> Self {
        Self { bias: None, activation: None }
    }

    pub(crate) fn of(bias: Option<&'a Tensor<T>>, activation: Option<Activation>) -> Self {
        Self { bias, activation }
    }

    /// Adds `bias`, `[n]`, to every row.
    #[must_use]
    pub fn bias(self, bias: &'a Tensor<T>) -> Self {
        Self { bias: Some(bias), ..self }
    }

    /// Applies `activation`, after the bias.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation: Some(activation), ..self }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bias.is_none() && self.activation.is_none()
    }

    pub(crate) fn has_bias(&self) -> bool {
        self.bias.is_some()
    }

    /// The activation as wgsl/tensor/activated.wgsl knows it.
    pub(crate) fn code(&self) -> u32 {
        match self.activation {
            None => 0,
            Some(Activation::Relu) => 1,
            Some(Activation::Relu2) => 2,
            Some(Activation::Silu) => 3,
            Some(Activation::Gelu) => 4,
        }
    }

    /// The bias of `n` columns; `other`, which is not read, where there is none.
    pub(crate) fn bias_or(
        &self,
        op: &'static str,
        n: usize,
        other: &'a Tensor<T>,
    ) -> Result<&'a Tensor<T>> {
        match self.bias {
            Some(bias) if bias.shape().dims() != [n] => Err(Error::Shape {
                op,
                what: "the bias",
                expected: format!("[{n}]"),
                found: bias.shape(),
            }),
            Some(bias) => Ok(bias),
            None => Ok(other),
        }
    }
}

impl<T: ElementType> Epilogue<'_, T> {
    /// The bias of `n` columns; where there is none, a tensor that is not read.
    pub(crate) fn bound_bias(
        &self,
        op: &'static str,
        n: usize,
        context: &Context,
    ) -> Result<Tensor<T>> {
        match self.bias {
            Some(bias) => self.bias_or(op, n, bias).cloned(),
            None => Tensor::uninit(context, [1]),
        }
    }
}

/// A bias and an activation: what [`finish`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct Finish<'a, X, Y> {
    x: &'a Tensor<X>,
    epilogue: Epilogue<'a, Y>,
}

/// activation(x + bias) of every row of `x` `[.., n]`, in one dispatch; either may be left out. The
/// result, another tensor than `x`, has the type of the bias. [`matmul`](super::matmul()) and
/// products of packed weights have these options themselves.
pub fn finish<X: Float, Y: Float>(x: &Tensor<X>) -> Finish<'_, X, Y> {
    Finish { x, epilogue: Epilogue::new() }
}

forward!(impl['a, X: Float, Y: Float] Finish<'a, X, Y> => Y);

impl<'a, X: Float, Y: Float> Finish<'a, X, Y> {
    /// Adds `bias`, `[n]`, to every row.
    pub fn bias(self, bias: &'a Tensor<Y>) -> Self {
        Self { epilogue: self.epilogue.bias(bias), ..self }
    }

    /// Applies `activation`, after the bias.
    pub fn activation(self, activation: Activation) -> Self {
        Self { epilogue: self.epilogue.activation(activation), ..self }
    }

    fn shape(&self) -> Result<Shape> {
        Ok(self.x.shape())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, Y>) -> Result<()> {
        self.epilogue.record(encoder, self.x, y)
    }
}

impl<Y: Float> Epilogue<'_, Y> {
    /// Records [`finish`] of rows that a kernel without an epilogue made.
    pub(crate) fn record<X: Float>(
        &self,
        encoder: &mut Encoder,
        x: &Tensor<X>,
        y: Out<'_, Y>,
    ) -> Result<()> {
        let (op, columns) = ("finish", x.shape().as_matrix().1);
        y.check_shape(op, x.shape())?;
        let bias = self.bound_bias(op, columns, encoder.context())?;
        let params = Params::new(x.len(), columns, self, &y);
        encoder.dispatch(&FINISH, &params, &[x, &bias, y.tensor()], [x.len(), 1, 1])
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`finish`](fn@crate::tensor::finish), and so of every product's bias and
    /// activation. `x` is whole rows of as many columns as the bias has, where there is one.
    ///
    /// # Errors
    /// [`Error::Length`] if it is not.
    pub fn finish(
        x: &[f32],
        bias: Option<&[f32]>,
        activation: Option<Activation>,
    ) -> Result<Vec<f32>> {
        let columns = bias.map_or(1, <[f32]>::len);
        if !x.len().is_multiple_of(columns.max(1)) || (columns == 0 && !x.is_empty()) {
            return Err(Error::Length {
                shape: [x.len() / columns.max(1), columns].into(),
                found: x.len(),
            });
        }
        let biased =
            x.iter().enumerate().map(|(i, &v)| bias.map_or(v, |bias| v + bias[i % columns]));
        Ok(biased.map(|v| activation.map_or(v, |activation| activation.reference(v))).collect())
    }
}
