//! Weights of 1 to 8 bits back to floats: W = scale·(code - zero).

use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Source, Work},
    },
    params,
    weights::int::matrix::IntMatrix,
    wgsl,
};

params! { struct Params { length: u32, columns: u32, words: u32, groups: u32, group_size: u32, bits: u32, add: u32 } }

static DEQUANTIZE_INT: Kernel = Kernel::trusted(
    "dequantize_int",
    Params::FIELDS,
    &[read("codes", U32), read("w_scale", F32), read("w_zero", F32), read_write("y", Float("Y"))],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "bitnet/dequantize_int"])
        .work(Work::new(1, "element", 16, 2))],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&DEQUANTIZE_INT];

/// Weights of 1 to 8 bits as floats, `[rows, columns]`. The CPU twin is
/// [`PackedInt::dequantize`](crate::weights::PackedInt::dequantize).
///
/// # Errors
/// [`Error::TooLarge`](crate::Error::TooLarge); what [`Encoder::dispatch`] reports.
pub fn dequantize_int<T: Float>(encoder: &mut Encoder, w: &IntMatrix) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), [w.rows(), w.columns()])?;
    dequantize_int_into(encoder, w, &y)?;
    Ok(y)
}

/// [`dequantize_int`] into a tensor of the caller, `[rows, columns]`.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if it does not fit.
pub fn dequantize_int_into<'y, T: Float>(
    encoder: &mut Encoder,
    w: &IntMatrix,
    y: impl Into<Out<'y, T>>,
) -> Result<()> {
    let y = y.into();
    y.check("dequantize_int", w.rows(), w.columns())?;
    let length = y.tensor().len();
    let params = Params {
        length: length as u32,
        columns: w.columns() as u32,
        words: w.row_words() as u32,
        groups: w.groups() as u32,
        group_size: w.group_size() as u32,
        bits: w.bits().count() as u32,
        add: y.adds().into(),
    };
    encoder.dispatch(
        &DEQUANTIZE_INT,
        &params,
        &[&w.codes, &w.scales, &w.zeros, y.tensor()],
        [length, 1, 1],
    )
}
