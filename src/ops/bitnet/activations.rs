//! Quantized activations: one type, two compute layouts, the same integers.

use super::host_activations::{HostActivations, MAX_FEATURES};
use crate::{
    error::{Error, Result},
    gpu::{context::Context, encoder::Encoder, tensor::Tensor},
    kernel::declaration::Kernel,
    weights::ternary::layout::row_words,
};
use std::fmt;

/// How quantized activations lie in memory. Both are padded with zeros to whole words of
/// [`TernaryMatrix`](crate::weights::TernaryMatrix).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Layout {
    /// Bytes in order, four a word: for packed integer dot products, and for software adapters.
    Int8,
    /// f16 numbers, permuted and scaled by powers of four to meet the masked fields of a
    /// word of codes: for GPUs without integer dot products, and for tensor cores. See
    /// `wgsl/bitnet/layout_f16.wgsl`.
    F16,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Int8 => "int8",
            Self::F16 => "f16",
        })
    }
}

impl Layout {
    /// The most features for which every kernel on this layout is exact.
    pub const fn max_features(self, f16_subnormals: bool) -> usize {
        match (self, f16_subnormals) {
            (Self::Int8, _) => MAX_FEATURES,
            // Raw codes are 0 to 2: |Σ code·x| ≤ 2·128·k ≤ 2^24.
            (Self::F16, true) => 1 << 16,
            // |Σ (1024·4^-f + code)·x| ≤ 128·342·k on average over the fields, in an i32.
            (Self::F16, false) => 1 << 15,
        }
    }

    /// The kernel for this layout, of one for each.
    pub(super) fn choose(self, int8: &'static Kernel, half: &'static Kernel) -> &'static Kernel {
        match self {
            Self::Int8 => int8,
            Self::F16 => half,
        }
    }

    /// Refuses what the integer sums could not hold exactly.
    pub(super) fn check_features(
        self,
        op: &'static str,
        features: usize,
        encoder: &Encoder,
    ) -> Result<()> {
        let limit = self.max_features(encoder.context().capabilities().f16_subnormals);
        if features <= limit {
            return Ok(());
        }
        let what = format!(
            "{features} input features in the {self} layout; at most {limit} are supported, so that integer sums are exact in f32"
        );
        Err(Error::Invalid { op, what })
    }

    /// 32-bit words of codes for one row of `features`.
    pub(crate) const fn words(self, features: usize) -> usize {
        row_words(features) * if matches!(self, Self::Int8) { 4 } else { 8 }
    }
}

/// Activations on the GPU, quantized to 8 bits a token: x ≈ code / scale.
#[derive(Clone, Debug)]
pub struct QuantizedActivations {
    pub(crate) layout: Layout,
    /// `[tokens, layout.words(features)]`
    pub(crate) codes: Tensor<u32>,
    /// `[tokens]`: a = 127 / max(max|x|, 1e-5), NaN for a row that is not finite.
    pub(crate) scales: Tensor<f32>,
    /// `[tokens, 2]`: Σ code, and Σ code·4^(5-f) where f is the field that meets it (the bias of
    /// `dot_biased`).
    pub(crate) sums: Tensor<i32>,
    tokens: usize,
    features: usize,
}

impl QuantizedActivations {
    /// Activations that an op will write, and can write again.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn uninit(
        context: &Context,
        tokens: usize,
        features: usize,
        layout: Layout,
    ) -> Result<Self> {
        Ok(Self {
            layout,
            codes: Tensor::uninit(context, [tokens, layout.words(features)])?,
            scales: Tensor::uninit(context, [tokens])?,
            sums: Tensor::uninit(context, [tokens, 2])?,
            tokens,
            features,
        })
    }

    /// Checks the numbers of tokens and features, and that integer sums are exact.
    pub(super) fn check(
        &self,
        op: &'static str,
        tokens: usize,
        features: usize,
        encoder: &Encoder,
    ) -> Result<()> {
        self.layout.check_features(op, features, encoder)?;
        if (self.tokens, self.features) == (tokens, features) {
            return Ok(());
        }
        let found = [self.tokens, self.features].into();
        Err(Error::Shape { op, what: "xq", expected: format!("[{tokens}, {features}]"), found })
    }

    pub(super) fn with_scales(&self, scales: Tensor<f32>) -> Self {
        Self { scales, ..self.clone() }
    }

    /// Rows.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Columns.
    pub fn features(&self) -> usize {
        self.features
    }

    /// The compute layout.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Codes, scales and sums as they lie in memory, for tests.
    #[doc(hidden)]
    pub fn tensors(&self) -> (&Tensor<u32>, &Tensor<f32>, &Tensor<i32>) {
        (&self.codes, &self.scales, &self.sums)
    }

    /// Copies codes and scales back.
    ///
    /// # Errors
    /// What the device reports.
    pub async fn read(&self) -> Result<HostActivations> {
        let (words, scales) = (self.codes.read(), self.scales.read());
        let (words, scales) = (words.await?, scales.await?);
        let stride = self.layout.words(self.features);
        let code = |token: usize, i: usize| match self.layout {
            Layout::Int8 => bytemuck::cast_slice::<u32, i8>(&words)[token * stride * 4 + i],
            Layout::F16 => {
                // Group of four codes, field, and which half of which plane: 0 and 2 are in plane
                // 0, 1 and 3 in plane 1.
                let (group, j) = (i / 4, i % 4);
                let place = token * stride + j % 2 * (stride / 2) + group;
                let half = half::f16::from_bits((words[place] >> (16 * (j / 2))) as u16);
                (half.to_f32() * 4f32.powi((group % 4) as i32)) as i8
            }
        };
        let codes = (0..self.tokens).flat_map(|token| (0..self.features).map(move |i| (token, i)));
        let codes = codes.map(|(token, i)| code(token, i)).collect();
        Ok(HostActivations { tokens: self.tokens, features: self.features, codes, scales })
    }
}
