//! Numbers in 8 bits, a byte each: what several quantizers make, and the way back to floats.

use super::{dequantize::dequantize, host_activations::HostCodes};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{context::Context, encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{EXACT, Source},
    },
    ops::reduce::{THREADS, lanes},
    params,
    shape::Shape,
    wgsl,
};

params! { struct Params { length: u32, per_scale: u32, zeros: u32, add: u32 } }

static DEQUANTIZE_INT8: Kernel = Kernel::trusted(
    "dequantize_int8",
    Params::FIELDS,
    &[
        read("codes", U32),
        read("scales", F32),
        read("zero_points", I32),
        read_write("y", Float("Y")),
    ],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", EXACT, "bitnet/dequantize_int8"])],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&DEQUANTIZE_INT8];

/// Numbers on the GPU in 8 bits: x ≈ (code - zero point) / scale. They lie as `x` does, in plain
/// tensors: [`cast`](crate::tensor::cast) and others take the codes.
/// ([`QuantizedActivations`](super::QuantizedActivations) are laid out for BitLinear.)
#[derive(Clone, Debug)]
pub struct QuantizedInt8 {
    /// Of the shape of `x`.
    pub codes: Tensor<i8>,
    /// `[rows]`, one a row, or `[]`, one for the tensor. What is not finite has scale NaN and codes
    /// 0.
    pub scales: Tensor<f32>,
    /// The code of 0, one for each scale; `None` where that is 0.
    pub zero_points: Option<Tensor<i32>>,
}

/// Which numbers have a scale in common.
#[derive(Clone, Copy)]
pub(super) enum Scaled {
    Rows,
    Tensor,
}

impl Scaled {
    fn shape(self, x: Shape) -> Shape {
        match self {
            Self::Rows => [x.as_matrix().0].into(),
            Self::Tensor => [].into(),
        }
    }
}

impl QuantizedInt8 {
    /// What an op will write for `x` of a shape, with zero points or without.
    pub(super) fn uninit(context: &Context, x: Shape, scaled: Scaled, zeros: bool) -> Result<Self> {
        let (codes, scales) =
            (Tensor::uninit(context, x)?, Tensor::uninit(context, scaled.shape(x))?);
        let zero_points =
            if zeros { Some(Tensor::uninit(context, scaled.shape(x))?) } else { None };
        Ok(Self { codes, scales, zero_points })
    }

    /// Refuses what of the caller an op that writes so cannot write for `x` of a shape.
    pub(super) fn check_output(
        &self,
        op: &'static str,
        x: Shape,
        scaled: Scaled,
        zeros: bool,
    ) -> Result<()> {
        let expected = scaled.shape(x);
        let zero_points = self
            .zero_points
            .as_ref()
            .map(|zeros| ("zero_points of the output", zeros.shape(), expected));
        let parts = [
            ("codes of the output", self.codes.shape(), x),
            ("scales of the output", self.scales.shape(), expected),
        ];
        if let Some((what, found, expected)) =
            parts.into_iter().chain(zero_points).find(|(_, found, expected)| found != expected)
        {
            return Err(Error::Shape { op, what, expected: expected.to_string(), found });
        }
        match (zeros, zero_points) {
            (true, None) => Err(Error::Invalid {
                op,
                what: "the output has no zero points; they are made".to_owned(),
            }),
            (false, Some(_)) => Err(Error::Invalid {
                op,
                what: "the output has zero points; none are made".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// What is bound as zero points: where there are none, it is not read.
    pub(super) fn bound_zero_points(&self) -> Tensor<i32> {
        self.zero_points.clone().unwrap_or_else(|| self.scales.cast())
    }

    /// Checks that every code has a scale.
    fn check(&self, op: &'static str) -> Result<()> {
        let (shape, found) = (self.codes.shape(), self.scales.shape());
        let [rows, one] = [Scaled::Rows, Scaled::Tensor].map(|scaled| scaled.shape(shape));
        if found != rows && found != one {
            return Err(Error::Shape {
                op,
                what: "scales",
                expected: format!("{rows} or {one}"),
                found,
            });
        }
        match &self.zero_points {
            Some(zeros) if zeros.shape() != found => Err(Error::Shape {
                op,
                what: "zero_points",
                expected: found.to_string(),
                found: zeros.shape(),
            }),
            _ => Ok(()),
        }
    }

    /// Copies them back.
    ///
    /// # Errors
    /// What the device reports.
    pub async fn read(&self) -> Result<HostCodes> {
        let (codes, scales, zeros) =
            (self.codes.read(), self.scales.read(), self.zero_points.as_ref().map(Tensor::read));
        let zero_points = match zeros {
            Some(zeros) => Some(zeros.await?),
            None => None,
        };
        Ok(HostCodes { codes: codes.await?, scales: scales.await?, zero_points })
    }
}

dequantize!(
    QuantizedInt8,
    "(code - zero point) / scale, of the shape of the codes; NaN where the scale is."
);

impl QuantizedInt8 {
    fn values_shape(&self) -> Shape {
        self.codes.shape()
    }

    fn record<T: Float>(&self, encoder: &mut Encoder, y: Out<'_, T>) -> Result<()> {
        let (op, length) = ("dequantize", self.codes.len());
        self.check(op)?;
        y.check_shape(op, self.codes.shape())?;
        let params = Params {
            length: length as u32,
            per_scale: (length / self.scales.len().max(1)) as u32,
            zeros: self.zero_points.is_some().into(),
            add: y.adds().into(),
        };
        encoder.dispatch(
            &DEQUANTIZE_INT8,
            &params,
            &[&self.codes, &self.scales, &self.bound_zero_points(), y.tensor()],
            [length.div_ceil(4), 1, 1],
        )
    }
}

/// Threads that share a row in wgsl/bitnet/quantize_rows.wgsl: no more than leave whole words of
/// codes to a workgroup.
pub(super) fn word_lanes(columns: usize) -> usize {
    let most = if columns.is_multiple_of(4) { THREADS } else { THREADS / 4 };
    lanes(columns).min(most)
}

/// The workgroups of such a kernel.
pub(super) fn word_extent(rows: usize, columns: usize) -> [usize; 3] {
    [rows.div_ceil(THREADS / word_lanes(columns)), 1, 1]
}
