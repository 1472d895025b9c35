//! Dequantizing ternary weights and activations: W = (code - 1)·scale, x = code / scale.

use super::activations::QuantizedActivations;
use crate::{
    element::Float,
    error::Result,
    gpu::{encoder::Encoder, out::Out},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{EXACT, Source, Work},
    },
    msl, params,
    shape::Shape,
    weights::ternary::{layout::row_words, matrix::TernaryMatrix, scales::groups},
    wgsl,
};

params! { struct Weights { rows: u32, columns: u32, words: u32, groups: u32, group_size: u32, add: u32 } }
params! { struct Activations { tokens: u32, features: u32, words: u32, add: u32 } }

static WEIGHTS: Kernel = Kernel::trusted(
    "dequantize_weights",
    Weights::FIELDS,
    &[read("codes", U32), read("w_scale", F32), read_write("y", Float("Y"))],
    &[
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            "shared/ternary",
            "bitnet/dequantize_weights"
        ])
        .work(Work::new(1, "element", 8, 1)),
        Source::msl(msl!["shared/prelude", "shared/ternary", "bitnet/dequantize_weights"]),
    ],
)
.flat();

const fn activations(name: &'static str, sources: &'static [Source]) -> Kernel {
    const BINDINGS: &[Binding] =
        &[read("x", U32), read("x_scale", F32), read_write("y", Float("Y"))];
    Kernel::trusted(name, Activations::FIELDS, BINDINGS, sources)
        .entry("dequantize_activations")
        .flat()
}

static ACTIVATIONS_INT8: Kernel = activations(
    "dequantize_activations_int8",
    &[
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            EXACT,
            "bitnet/unpack_int8",
            "bitnet/dequantize_activations"
        ]),
        Source::msl(msl![
            "shared/prelude",
            "shared/exact",
            "bitnet/layout_int8",
            "bitnet/dequantize_activations"
        ]),
    ],
);

static ACTIVATIONS_F16: Kernel = activations(
    "dequantize_activations_f16",
    &[
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            EXACT,
            "bitnet/f16_planes",
            "bitnet/unpack_f16",
            "bitnet/dequantize_activations"
        ]),
        Source::msl(msl![
            "shared/prelude",
            "shared/exact",
            "bitnet/layout_f16",
            "bitnet/dequantize_activations"
        ]),
    ],
);

pub(super) const KERNELS: &[&Kernel] = &[&WEIGHTS, &ACTIVATIONS_INT8, &ACTIVATIONS_F16];

/// Gives a quantized type its `dequantize` and `dequantize_into`. The type has
/// `fn values_shape(&self) -> Shape` and `fn record(&self, &mut Encoder, Out<'_, T>) -> Result<()>`,
/// which checks that shape.
macro_rules! dequantize {
    ($quantized:ty, $values:literal) => {
        impl $quantized {
            #[doc = concat!("Records the conversion to floats and returns them, ", $values)]
            ///
            /// # Errors
            /// [`Error::TooLarge`](crate::Error::TooLarge);
            /// [`Error::Shape`](crate::Error::Shape) if public parts of it do not fit together.
            pub fn dequantize<T: $crate::element::Float>(
                &self,
                encoder: &mut $crate::gpu::encoder::Encoder,
            ) -> $crate::error::Result<$crate::gpu::tensor::Tensor<T>> {
                let y =
                    $crate::gpu::tensor::Tensor::uninit(encoder.context(), self.values_shape())?;
                self.record(encoder, $crate::gpu::out::Out::set(&y))?;
                Ok(y)
            }

            /// Like [`dequantize`](Self::dequantize), into a tensor of the caller.
            ///
            /// # Errors
            /// [`Error::Shape`](crate::Error::Shape) if the tensor has another shape.
            pub fn dequantize_into<'y, T: $crate::element::Float>(
                &self,
                encoder: &mut $crate::gpu::encoder::Encoder,
                out: impl Into<$crate::gpu::out::Out<'y, T>>,
            ) -> $crate::error::Result<()> {
                self.record(encoder, out.into())
            }
        }
    };
}
pub(super) use dequantize;

dequantize!(
    TernaryMatrix,
    "`[rows, columns]`. [`PackedTernary::dequantize`](crate::weights::PackedTernary::dequantize) is the CPU reference."
);
dequantize!(
    QuantizedActivations,
    "`[tokens, features]`. [`HostActivations::dequantize`](crate::cpu::HostActivations::dequantize) is the CPU reference."
);

impl TernaryMatrix {
    fn values_shape(&self) -> Shape {
        [self.rows(), self.columns()].into()
    }

    fn record<T: Float>(&self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        y.check("dequantize", self.rows(), self.columns())?;
        let params = Weights {
            rows: self.rows() as u32,
            columns: self.columns() as u32,
            words: self.row_words() as u32,
            groups: groups(self.columns(), self.group()) as u32,
            group_size: self.group().unwrap_or(self.columns()) as u32,
            add: y.adds().into(),
        };
        encoder.dispatch(
            &WEIGHTS,
            &params,
            &[&self.codes, &self.scales, y.tensor()],
            [self.rows() * self.row_words(), 1, 1],
        )
    }
}

impl QuantizedActivations {
    fn values_shape(&self) -> Shape {
        [self.tokens(), self.features()].into()
    }

    fn record<T: Float>(&self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        let (tokens, features) = (self.tokens(), self.features());
        y.check("dequantize", tokens, features)?;
        let words = row_words(features);
        let params = Activations {
            tokens: tokens as u32,
            features: features as u32,
            words: words as u32,
            add: y.adds().into(),
        };
        encoder.dispatch(
            self.layout().choose(&ACTIVATIONS_INT8, &ACTIVATIONS_F16),
            &params,
            &[&self.codes, &self.scales, y.tensor()],
            [tokens * words * 4, 1, 1],
        )
    }
}
