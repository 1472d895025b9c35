//! Int8 with one scale for the tensor: from its largest magnitude, or from a range that is known
//! before (static quantization).

use super::{
    host_activations::HostCodes,
    int8::{QuantizedInt8, Scaled},
    quantize_activations::{absmax_scale, largest_magnitude},
    quantize_activations_with_zero_point::Grid,
};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{EXACT, Part, Source},
    },
    ops::{
        frames::{elementwise, map, one_input_of},
        tensor::{
            Axes,
            copy::{cast, fill},
            sum::absmax,
        },
    },
    params, wgsl,
};

params! { struct Params { length: u32, zeros: u32 } }

const FLOATS: Part = Part::new("alias X, Y", "alias X = f32;\nalias Y = f32;\n");
const SCALE: Part = Part::new(
    "forward(x)",
    "// NaN from infinity on; of no numbers, the largest is -infinity.
fn forward(x: f32) -> f32 {
    let finite = is_finite(x) || bitcast<u32>(x) == 0xff800000u;
    return bitcast<f32>(select(0x7fc00000u, bitcast<u32>(absmax_scale(x, 127.0)), finite));
}
",
);

static SCALE_OF_LARGEST: Kernel = one_input_of(
    "scale_of_largest",
    &[read("a", F32), read_write("y", F32)],
    elementwise!("frames/elementwise_1", [FLOATS, EXACT, "bitnet/absmax_scale", SCALE]),
);

static QUANTIZE_BY_TENSOR: Kernel = Kernel::trusted(
    "quantize_by_tensor",
    Params::FIELDS,
    &[read("x", Float("X")), read("scale", F32), read("zero_point", I32), read_write("codes", U32)],
    &[Source::wgsl(wgsl![
        "shared/ids",
        "shared/flat",
        "shared/finite",
        "bitnet/quantize_by_tensor"
    ])],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&SCALE_OF_LARGEST, &QUANTIZE_BY_TENSOR];

/// Records the quantizer into tensors of the caller.
///
/// # Errors
/// [`Error::Shape`] if codes do not have the shape of `x`, or scales `[]`; [`Error::Invalid`] if
/// there are zero points.
pub(crate) fn quantize_activations_by_tensor_into<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    out: &QuantizedInt8,
) -> Result<()> {
    out.check_output("quantize_activations_by_tensor", x.shape(), Scaled::Tensor, false)?;
    let largest = absmax(x, Axes::ALL).forward(encoder)?;
    encoder.transaction(|encoder| {
        map(encoder, &SCALE_OF_LARGEST, &[], &largest, (&out.scales).into())?;
        record(encoder, x, out)
    })
}

/// All of `x`, of any shape, in 8 bits from low to high, which are `range`:
/// code = clamp(round(x·a) + z, -128, 127), ties to even, with a = 255 / (high - low) and
/// z = round(-low·a) - 128, as `quantize_activations_with_zero_point` has them: the range is widened
/// to hold 0, and counts as 2e-5 at least. Numbers beyond it, infinities too, get the code of its
/// end; NaN gets that of 0. The range is what calibration has found: nothing is measured here, so
/// this is one dispatch.
///
/// # Errors
/// [`Error::Invalid`] unless low <= high, both finite; [`Error::TooLarge`].
pub(crate) fn quantize_activations_static<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    range: (f32, f32),
) -> Result<QuantizedInt8> {
    let grid = checked(range)?;
    let context = encoder.context();
    let (scales, zero_points) =
        (context.upload(&[grid.scale], [])?, context.upload(&[grid.zero_point], [])?);
    let out = QuantizedInt8 {
        codes: Tensor::uninit(context, x.shape())?,
        scales,
        zero_points: Some(zero_points),
    };
    record(encoder, x, &out)?;
    Ok(out)
}

/// `quantize_activations_static` into tensors of the caller: three dispatches, of which two write
/// scale and zero point.
///
/// # Errors
/// As `quantize_activations_static`; [`Error::Shape`] if codes do not have the shape of `x`, or
/// scales and zero points `[]`; [`Error::Invalid`] if there are no zero points.
pub(crate) fn quantize_activations_static_into<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    range: (f32, f32),
    out: &QuantizedInt8,
) -> Result<()> {
    let grid = checked(range)?;
    out.check_output("quantize_activations_static", x.shape(), Scaled::Tensor, true)?;
    let zero_point = encoder.context().upload(&[grid.zero_point as f32], [])?;
    encoder.transaction(|encoder| {
        fill(grid.scale).forward_into(encoder, &out.scales)?;
        cast(&zero_point).forward_into(encoder, &out.bound_zero_points())?;
        record(encoder, x, out)
    })
}

fn checked((low, high): (f32, f32)) -> Result<Grid> {
    if low.is_finite() && high.is_finite() && low <= high {
        return Ok(Grid::within(low, high));
    }
    Err(Error::Invalid {
        op: "quantize_activations_static",
        what: format!("a range from {low} to {high}"),
    })
}

/// Records the codes, of which the scale is known or will be.
fn record<T: Float>(encoder: &mut Encoder, x: &Tensor<T>, out: &QuantizedInt8) -> Result<()> {
    let params = Params { length: x.len() as u32, zeros: out.zero_points.is_some().into() };
    encoder.dispatch(
        &QUANTIZE_BY_TENSOR,
        &params,
        &[x, &out.scales, &out.bound_zero_points(), &out.codes],
        [x.len().div_ceil(4), 1, 1],
    )
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of
    /// [`ActivationQuantizer::per_tensor`](crate::bitnet::ActivationQuantizer::per_tensor):
    /// bit-identical.
    pub fn quantize_activations_by_tensor<T: Float>(x: &[T]) -> HostCodes {
        let scale = absmax_scale(largest_magnitude(x.iter().map(|&v| v.into())), 127.0);
        let grid = Grid { scale, zero_point: 0 };
        HostCodes {
            codes: x.iter().map(|&v| grid.code(v.into())).collect(),
            scales: vec![scale],
            zero_points: None,
        }
    }

    /// CPU reference of
    /// [`ActivationQuantizer::static_range`](crate::bitnet::ActivationQuantizer::static_range):
    /// bit-identical.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless low <= high, both finite.
    pub fn quantize_activations_static<T: Float>(x: &[T], range: (f32, f32)) -> Result<HostCodes> {
        let grid = checked(range)?;
        let codes = x.iter().map(|&v| grid.code(v.into())).collect();
        Ok(HostCodes { codes, scales: vec![grid.scale], zero_points: Some(vec![grid.zero_point]) })
    }
}
