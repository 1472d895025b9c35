//! copy, broadcast_to, fill and cast: numbers as they are, elsewhere, or in another type.

use crate::{
    element::{Element, ElementType, Float},
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Part, Source},
    },
    ops::frames::{elementwise, function, map, one_input, one_input_of},
    params, wgsl,
};

const IDENTITY: Part = function!("forward(x: f32)", "x");
const CONSTANT: Part = function!("forward(x: f32)", "params.alpha");
const FROM_I32: Part = Part::new("alias X", "alias X = i32;\n");
const FROM_U32: Part = Part::new("alias X", "alias X = u32;\n");
const TO_I32: Part = Part::new("alias Y", "alias Y = i32;\n");
const TO_U32: Part = Part::new("alias Y", "alias Y = u32;\n");
// The ends are floats, so that nothing is left to the device.
const WITHIN_I32: Part =
    function!("forward(x: f32)", "select(clamp(x, -2147483648.0, 2147483520.0), 0.0, is_nan(x))");
const WITHIN_U32: Part =
    function!("forward(x: f32)", "select(clamp(x, 0.0, 4294967040.0), 0.0, is_nan(x))");

pub(super) static COPY: Kernel =
    one_input("copy", elementwise!("frames/elementwise_1", [IDENTITY]));
static FILL: Kernel =
    one_input("fill", elementwise!("frames/elementwise_1", [CONSTANT])).one_float();
static FLOAT_TO_I32: Kernel = one_input_of(
    "cast_float_to_i32",
    &[read("a", Float("X")), read_write("y", I32)],
    elementwise!("frames/elementwise_1", [TO_I32, WITHIN_I32]),
);
static FLOAT_TO_U32: Kernel = one_input_of(
    "cast_float_to_u32",
    &[read("a", Float("X")), read_write("y", U32)],
    elementwise!("frames/elementwise_1", [TO_U32, WITHIN_U32]),
);
static I32_TO_FLOAT: Kernel = one_input_of(
    "cast_i32_to_float",
    &[read("a", I32), read_write("y", Float("Y"))],
    elementwise!("frames/elementwise_1", [FROM_I32, IDENTITY]),
);
static U32_TO_FLOAT: Kernel = one_input_of(
    "cast_u32_to_float",
    &[read("a", U32), read_write("y", Float("Y"))],
    elementwise!("frames/elementwise_1", [FROM_U32, IDENTITY]),
);

params! { struct BytesParams { length: u32 } }

static I8_TO_FLOAT: Kernel = bytes(
    "cast_i8_to_float",
    "cast_from_i8",
    &[read("x", U32), read_write("y", Float("Y"))],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "tensor/cast_from_i8"])],
);
static I8_TO_I32: Kernel = bytes(
    "cast_i8_to_i32",
    "cast_from_i8",
    &[read("x", U32), read_write("y", I32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", TO_I32, "tensor/cast_from_i8"])],
);
static FLOAT_TO_I8: Kernel = bytes(
    "cast_float_to_i8",
    "cast_to_i8",
    &[read("x", Float("X")), read_write("y", U32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "shared/finite", "tensor/cast_to_i8"])],
);
static I32_TO_I8: Kernel = bytes(
    "cast_i32_to_i8",
    "cast_to_i8",
    &[read("x", I32), read_write("y", U32)],
    &[Source::wgsl(wgsl![
        "shared/ids",
        "shared/flat",
        "shared/finite",
        FROM_I32,
        "tensor/cast_to_i8"
    ])],
);

/// A kernel with a thread for each word of four bytes.
const fn bytes(
    name: &'static str,
    entry: &'static str,
    bindings: &'static [Binding],
    sources: &'static [Source],
) -> Kernel {
    Kernel::trusted(name, BytesParams::FIELDS, bindings, sources).entry(entry).flat()
}

#[rustfmt::skip]
pub(super) const KERNELS: &[&Kernel] = &[
    &COPY, &FILL, &FLOAT_TO_I32, &FLOAT_TO_U32, &I32_TO_FLOAT, &U32_TO_FLOAT, &I8_TO_FLOAT, &I8_TO_I32, &FLOAT_TO_I8, &I32_TO_I8,
];

/// A value for every element of a tensor: what [`fill`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward_into` records it"]
pub struct Fill {
    value: f32,
}

/// `value` in every element of a tensor, rounded to its type.
pub fn fill(value: f32) -> Fill {
    Fill { value }
}

impl Fill {
    /// Records the op, which overwrites `y`.
    ///
    /// # Errors
    /// What the device reports.
    pub fn forward_into<T: Float>(self, encoder: &mut Encoder, y: &Tensor<T>) -> Result<()> {
        map(encoder, &FILL, &[self.value], y, y.into())
    }
}

/// A conversion to another element type: what [`cast`] returns.
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct Cast<'a, X> {
    x: &'a Tensor<X>,
}

/// `x` in another element type: of `f32`, `f16`, `i32` and `i8` any to any other, and floats to and
/// from `u32`. As Rust's `as`: a fraction is cut off, what is too large for the type becomes its
/// largest number (of `i32` and `u32`, the largest that is a float: 2147483520 and 4294967040), NaN
/// becomes 0. Floats that are too large for `f16` become infinite.
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, tensor::{self, f16}};
/// # fn f(encoder: &mut Encoder, x: &Tensor<f32>) -> Result<()> {
/// let y = tensor::cast(x).forward::<f16>(encoder)?;
/// # Ok(())
/// # }
/// ```
pub fn cast<X: ElementType>(x: &Tensor<X>) -> Cast<'_, X> {
    Cast { x }
}

impl<X: ElementType> Cast<'_, X> {
    /// Records the op and returns its result, a new tensor.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a pair of types that is not supported.
    pub fn forward<Y: ElementType>(self, encoder: &mut Encoder) -> Result<Tensor<Y>> {
        let y = Tensor::uninit(encoder.context(), self.x.shape())?;
        self.forward_into(encoder, &y)?;
        Ok(y)
    }

    /// Records the op, which overwrites `y`.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::Shape`] if `y` has another shape than the input.
    pub fn forward_into<Y: ElementType>(self, encoder: &mut Encoder, y: &Tensor<Y>) -> Result<()> {
        use Element::{F16, F32, I8, I32, U32};
        let (x, out) = (self.x, Out::from(y));
        out.check_shape("cast", x.shape())?;
        let kernel = match (X::ELEMENT, Y::ELEMENT) {
            (F32 | F16, F32 | F16) => return map(encoder, &COPY, &[], x, out),
            (F32 | F16, I32) => return map(encoder, &FLOAT_TO_I32, &[], x, out),
            (F32 | F16, U32) => return map(encoder, &FLOAT_TO_U32, &[], x, out),
            (I32, F32 | F16) => return map(encoder, &I32_TO_FLOAT, &[], x, out),
            (U32, F32 | F16) => return map(encoder, &U32_TO_FLOAT, &[], x, out),
            (I8, F32 | F16) => &I8_TO_FLOAT,
            (I8, I32) => &I8_TO_I32,
            (F32 | F16, I8) => &FLOAT_TO_I8,
            (I32, I8) => &I32_TO_I8,
            (from, to) => {
                let what = format!("there is no cast from {from} to {to}");
                return Err(Error::Invalid { op: "cast", what });
            }
        };
        let params = BytesParams { length: x.len() as u32 };
        encoder.dispatch(kernel, &params, &[x, y], [x.len().div_ceil(4), 1, 1])
    }
}
