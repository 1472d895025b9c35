//! Rows as kernels take them: pad_rows, with zeros after them; quads_by_place, with their quads in
//! another order.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    msl, params, wgsl,
};

params! { struct Params { rows: u32, columns: u32, padded: u32 } }

static PAD_ROWS: Kernel = Kernel::trusted(
    "pad_rows",
    Params::FIELDS,
    &[read("x", Float("X")), read_write("y", Float("X"))],
    &[
        Source::wgsl(wgsl!["shared/ids", "shared/flat", "tensor/pad_rows"]),
        Source::msl(msl!["shared/prelude", "tensor/pad_rows"]),
    ],
)
.flat();

params! { struct QuadsParams { tokens: u32, blocks: u32, quads: u32 } }

static QUADS_BY_PLACE: Kernel = Kernel::trusted(
    "quads_by_place",
    QuadsParams::FIELDS,
    &[read("x", F32), read_write("y", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", "tensor/quads_by_place"])],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&PAD_ROWS, &QUADS_BY_PLACE];

/// `x` `[tokens, k]`, k being whole quads in each of so many blocks, as kernels for several tokens
/// have it: quads of equal places in their blocks lie side by side.
pub(crate) fn quads_by_place(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    blocks: usize,
) -> Result<Tensor<f32>> {
    let (tokens, columns) = x.shape().as_matrix();
    let y = Tensor::uninit(encoder.context(), [tokens, columns])?;
    let params = QuadsParams {
        tokens: tokens as u32,
        blocks: blocks as u32,
        quads: (columns / 4 / blocks.max(1)) as u32,
    };
    encoder.dispatch(&QUADS_BY_PLACE, &params, &[x, &y], [tokens * columns / 4, 1, 1])?;
    Ok(y)
}

/// `x` `[m, k]` with zeros after every row, `[m, columns]`.
///
/// # Errors
/// As [`pad_rows_into`].
pub fn pad_rows<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    columns: usize,
) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), [x.shape().as_matrix().0, columns])?;
    pad_rows_into(encoder, x, &y)?;
    Ok(y)
}

/// [`pad_rows`] into a tensor of the caller, `[m, at least k]`.
///
/// # Errors
/// [`Error::Shape`] if it has other rows or fewer columns than `x`.
pub fn pad_rows_into<T: Float>(encoder: &mut Encoder, x: &Tensor<T>, y: &Tensor<T>) -> Result<()> {
    let ((rows, columns), (y_rows, padded)) = (x.shape().as_matrix(), y.shape().as_matrix());
    if y_rows != rows || padded < columns {
        return Err(Error::Shape {
            op: "pad_rows",
            what: "the output",
            expected: format!("[{rows}, ≥ {columns}]"),
            found: y.shape(),
        });
    }
    let params = Params { rows: rows as u32, columns: columns as u32, padded: padded as u32 };
    encoder.dispatch(&PAD_ROWS, &params, &[x, y], [rows * padded, 1, 1])
}
