//! Dequantizing weights of 1 to 8 bits: W = scale·(code - zero).

use super::dequantize::dequantize;
use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, out::Out},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Source, Work},
    },
    params,
    shape::Shape,
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

dequantize!(
    IntMatrix,
    "`[rows, columns]`. [`PackedInt::dequantize`](crate::weights::PackedInt::dequantize) is the CPU reference."
);

impl IntMatrix {
    fn values_shape(&self) -> Shape {
        [self.rows(), self.columns()].into()
    }

    fn record<T: Float>(&self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        y.check("dequantize", self.rows(), self.columns())?;
        let length = y.tensor().len();
        let params = Params {
            length: length as u32,
            columns: self.columns() as u32,
            words: self.row_words() as u32,
            groups: self.groups() as u32,
            group_size: self.group_size() as u32,
            bits: self.bits().count() as u32,
            add: y.adds().into(),
        };
        encoder.dispatch(
            &DEQUANTIZE_INT,
            &params,
            &[&self.codes, &self.scales, &self.zeros, y.tensor()],
            [length, 1, 1],
        )
    }
}
