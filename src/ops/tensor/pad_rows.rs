//! Rows as kernels take them: pad_rows, with zeros after them; quads_by_place, with their quads in
//! another order.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    msl,
    ops::forward::forward,
    params,
    shape::Shape,
    wgsl,
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

/// `x` `[tokens, k]`, k being whole quads in each of this many blocks, as kernels for several
/// tokens have it: quads of equal places in their blocks lie side by side.
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

/// A matrix with zeros after every row: what [`pad_rows`] returns.
#[cfg_attr(not(feature = "internals"), doc(hidden))]
#[derive(Clone, Copy)]
#[must_use = "an op does nothing until `forward` records it"]
pub struct PadRows<'a, T> {
    x: &'a Tensor<T>,
    columns: usize,
}

/// `x` `[m, k]` with zeros after every row, `[m, columns]`; `columns` is at least k. Faster than
/// [`pad`](super::pad), of which it is a case.
#[cfg_attr(not(feature = "internals"), doc(hidden))]
pub fn pad_rows<T: Float>(x: &Tensor<T>, columns: usize) -> PadRows<'_, T> {
    PadRows { x, columns }
}

forward!(impl['a, T: Float] PadRows<'a, T> => overwrite T);

impl<T: Float> PadRows<'_, T> {
    fn shape(&self) -> Result<Shape> {
        Ok([self.x.shape().as_matrix().0, self.columns].into())
    }

    fn record(self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        let (op, (rows, columns), padded) = ("pad_rows", self.x.shape().as_matrix(), self.columns);
        if padded < columns {
            let (expected, found) = (format!("[{rows}, ≥ {columns}]"), self.shape()?);
            return Err(Error::Shape { op, what: "the output", expected, found });
        }
        y.check_shape(op, self.shape()?)?;
        let params = Params { rows: rows as u32, columns: columns as u32, padded: padded as u32 };
        encoder.dispatch(&PAD_ROWS, &params, &[self.x, y.tensor()], [rows * padded, 1, 1])
    }
}
