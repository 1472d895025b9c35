//! The quantizer of weights: its format, and which weights share a scale.

use super::{
    pack_weights,
    partition::{Granularity, IntCodes, OP, Partition},
    quantize_weights, quantize_weights_binary, quantize_weights_by_group, quantize_weights_int,
};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{context::Context, encoder::Encoder, tensor::Tensor},
    kernel::declaration::Kernel,
    ops::tensor::broadcast::copy,
    shape::Shape,
    weights::{
        int::{
            affine::check_group as check_int_group, bits::Bits, matrix::IntMatrix,
            packed::PackedInt,
        },
        ternary::{
            matrix::TernaryMatrix, packed::PackedTernary,
            scales::check_group as check_ternary_group,
        },
    },
};
use sealed::Sealed;
use std::fmt::Debug;

/// Quantizes weights `[.., columns]` (`f32` or `f16`), all but the last dimension being rows. The
/// format is that of the matrix `M`.
///
/// | quantizer | weight, ties to even | matrix | scales |
/// | --- | --- | --- | --- |
/// | [`absmean()`](Self::absmean) | -β, 0 or β; β = max(mean\|w\|, 1e-5) | [`TernaryMatrix`] | any |
/// | [`binary()`](Self::binary) | β above the mean, else -β; β = mean\|w\| | [`IntMatrix`] | any |
/// | [`int(bits)`](Self::int) | equal steps from -max\|w\| to max\|w\| | [`IntMatrix`] | per row, per group |
/// | `int(bits).asymmetric()` | equal steps from the smallest to the largest | [`IntMatrix`] | per row, per group |
///
/// Weights must be finite: otherwise the scale of those that share it is NaN, which `read` of the
/// matrix refuses; others are untouched.
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, bitnet::WeightQuantizer, weights::Bits};
/// # fn f(encoder: &mut Encoder, w: &Tensor<f32>) -> Result<()> {
/// let ternary = WeightQuantizer::absmean().quantize(encoder, w)?;
/// let int4 = WeightQuantizer::int(Bits::Four).per_group(128).quantize(encoder, w)?;
/// # Ok(())
/// # }
/// ```
///
/// Ternary weights have no zero point:
///
/// ```compile_fail,E0599
/// # use bitnet_wgpu::bitnet::WeightQuantizer;
/// let quantizer = WeightQuantizer::absmean().asymmetric();
/// ```
#[must_use = "a quantizer does nothing until `quantize` records it"]
pub struct WeightQuantizer<M: QuantizedWeights = TernaryMatrix> {
    codes: M::Codes,
    per: Granularity,
}

impl<M: QuantizedWeights> Clone for WeightQuantizer<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: QuantizedWeights> Copy for WeightQuantizer<M> {}

impl WeightQuantizer {
    /// Returns a quantizer to -1, 0 and 1, with one scale for the tensor: code = clamp(round(w·s),
    /// -1, 1) with s = 1 / max(mean|w|, 1e-5). (Ma et al. 2024, arXiv:2402.17764.)
    pub fn absmean() -> Self {
        Self { codes: (), per: Granularity::Tensor }
    }
}

impl WeightQuantizer<IntMatrix> {
    /// Returns a quantizer to one bit, with a mean and a scale for the tensor: a weight is β where
    /// it is above the mean, else -β. A β below 2^-81 counts as 0. (Wang et al. 2023,
    /// arXiv:2310.11453.)
    pub fn binary() -> Self {
        let codes = IntCodes { bits: Bits::One, binary: true, asymmetric: false };
        Self { codes, per: Granularity::Tensor }
    }

    /// Returns a quantizer to 2, 4 or 8 bits, with a scale for each row. Codes are rounded to the
    /// nearest step, and 0 is exact. The zero point is 2^(bits-1), and code 0 is not used. A group
    /// whose scale would be below 2^-80 counts as zeros. For one bit, `quantize` is an error:
    /// [`binary`](Self::binary) makes it.
    pub fn int(bits: Bits) -> Self {
        let codes = IntCodes { bits, binary: false, asymmetric: false };
        Self { codes, per: Granularity::Row }
    }

    /// Takes a zero point for each scale, so that steps go from the smallest weight to the largest
    /// and all codes are used. (Jacob et al. 2018, arXiv:1712.05877.)
    pub fn asymmetric(self) -> Self {
        Self { codes: IntCodes { asymmetric: true, ..self.codes }, ..self }
    }
}

impl<M: QuantizedWeights> WeightQuantizer<M> {
    /// Takes one scale for the tensor.
    pub fn per_tensor(self) -> Self {
        Self { per: Granularity::Tensor, ..self }
    }

    /// Takes a scale for each row.
    pub fn per_row(self) -> Self {
        Self { per: Granularity::Row, ..self }
    }

    /// Takes a scale for every `size` neighboring columns of a row; the last group may be short.
    /// The size is a multiple of 16 for [`absmean`](WeightQuantizer::absmean), of 32 for the others.
    pub fn per_group(self, size: usize) -> Self {
        Self { per: Granularity::Group(size), ..self }
    }

    /// Takes a scale for each matrix of a stack `[.., rows, columns]`: the experts of a mixture, or
    /// heads. They become one matrix, row after row, that is multiplied at once. Each has the bits
    /// of a matrix that is quantized alone.
    pub fn per_matrix(self) -> Self {
        Self { per: Granularity::Matrix, ..self }
    }

    /// Records the quantizer and returns its result.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a combination that is not supported, or another group size than
    /// [`per_group`](Self::per_group) takes; what an allocation reports.
    pub fn quantize<T: Float>(self, encoder: &mut Encoder, w: &Tensor<T>) -> Result<M> {
        M::check(self.codes, self.per)?;
        let (rows, columns) = w.shape().as_matrix();
        let matrix = M::uninit(encoder.context(), rows, columns, self.codes, self.per.group())?;
        self.quantize_into(encoder, w, &matrix)?;
        Ok(matrix)
    }

    /// Records the quantizer, which writes into a matrix of the caller.
    ///
    /// # Errors
    /// As [`quantize`](Self::quantize); [`Error::Shape`] if the matrix has another shape;
    /// [`Error::Invalid`] if it has other bits or groups.
    pub fn quantize_into<T: Float>(
        self,
        encoder: &mut Encoder,
        w: &Tensor<T>,
        matrix: &M,
    ) -> Result<()> {
        M::check(self.codes, self.per)?;
        let partition = Partition::new(w.shape(), w.len(), self.per)?;
        let ([rows, columns], found) = matrix.form();
        if [rows, columns] != [partition.all_rows(), partition.columns] {
            return Err(Error::Shape {
                op: OP,
                what: "the output",
                expected: format!("[{}, {}]", partition.all_rows(), partition.columns),
                found: [rows, columns].into(),
            });
        }
        let expected = (M::bits(self.codes), partition.group);
        if found != expected {
            let [found, expected] = [found, expected].map(|(bits, group)| match group {
                None => format!("{} bits without groups", bits.count()),
                Some(size) => format!("{} bits in groups of {size} columns", bits.count()),
            });
            return Err(invalid(format!("an output of {found} for a quantizer to {expected}")));
        }
        if w.is_empty() {
            // There is nothing to quantize, but the scales must be something.
            return matrix.write_scales(encoder, &M::pack::<T>(&[], &partition, self.codes)?);
        }
        matrix.record(encoder, w, &partition, self.codes)
    }

    /// Quantizes weights of `shape` on the CPU, on the threads of the caller's pool.
    ///
    /// # Errors
    /// [`Error::Length`] if there are not as many; [`Error::Invalid`] for weights that are not
    /// finite, and as [`quantize`](Self::quantize).
    pub(crate) fn quantize_cpu<T: Float>(
        self,
        w: &[T],
        shape: impl Into<Shape>,
    ) -> Result<M::Packed> {
        M::check(self.codes, self.per)?;
        let partition = Partition::new(shape.into(), w.len(), self.per)?;
        match pack_weights::first_not_finite(w) {
            Some(at) => Err(not_finite(at, partition.columns)),
            None => M::pack(w, &partition, self.codes),
        }
    }
}

/// Matrices that a [`WeightQuantizer`] makes on the GPU.
pub trait QuantizedWeights: Sealed {
    /// The matrix in host memory, which
    /// [`cpu::quantize_weights`](crate::cpu::quantize_weights) returns.
    type Packed: Clone + Debug + PartialEq + Send + Sync;
}

impl QuantizedWeights for TernaryMatrix {
    type Packed = PackedTernary;
}

impl QuantizedWeights for IntMatrix {
    type Packed = PackedInt;
}

mod sealed {
    use super::*;

    pub trait Sealed: Sized {
        /// What a quantizer to this matrix chooses.
        type Codes: Copy + Send + Sync;

        /// Refuses combinations that are not supported.
        fn check(codes: Self::Codes, per: Granularity) -> Result<()>;
        fn bits(codes: Self::Codes) -> Bits;
        fn uninit(
            context: &Context,
            rows: usize,
            columns: usize,
            codes: Self::Codes,
            group: Option<usize>,
        ) -> Result<Self>;
        /// Returns rows and columns, then bits and the group.
        fn form(&self) -> ([usize; 2], (Bits, Option<usize>));
        fn record<T: Float>(
            &self,
            encoder: &mut Encoder,
            w: &Tensor<T>,
            partition: &Partition,
            codes: Self::Codes,
        ) -> Result<()>;
        /// Records a copy of scales and zero points.
        fn write_scales(&self, encoder: &mut Encoder, from: &Self::Packed) -> Result<()>
        where
            Self: QuantizedWeights;
        /// Quantizes finite weights on the CPU.
        fn pack<T: Float>(
            w: &[T],
            partition: &Partition,
            codes: Self::Codes,
        ) -> Result<Self::Packed>
        where
            Self: QuantizedWeights;
        /// Quantizes finite weights number by number.
        #[cfg(any(test, feature = "reference"))]
        fn pack_reference<T: Float>(
            w: &[T],
            partition: &Partition,
            codes: Self::Codes,
        ) -> Result<Self::Packed>
        where
            Self: QuantizedWeights;
    }
}

impl Sealed for TernaryMatrix {
    type Codes = ();

    fn check((): (), per: Granularity) -> Result<()> {
        check_ternary_group(per.group())
    }

    fn bits((): ()) -> Bits {
        Bits::Two
    }

    fn uninit(
        context: &Context,
        rows: usize,
        columns: usize,
        (): (),
        group: Option<usize>,
    ) -> Result<Self> {
        Self::uninit(context, rows, columns, group)
    }

    fn form(&self) -> ([usize; 2], (Bits, Option<usize>)) {
        ([self.rows(), self.columns()], (Bits::Two, self.group()))
    }

    fn record<T: Float>(
        &self,
        encoder: &mut Encoder,
        w: &Tensor<T>,
        partition: &Partition,
        (): (),
    ) -> Result<()> {
        if partition.whole {
            quantize_weights::record(encoder, w, partition, self)
        } else {
            quantize_weights_by_group::record(encoder, w, partition, self)
        }
    }

    fn write_scales(&self, encoder: &mut Encoder, from: &PackedTernary) -> Result<()> {
        let from = from.upload(encoder.context())?;
        copy(&from.scales).forward_into(encoder, &self.scales)
    }

    fn pack<T: Float>(w: &[T], partition: &Partition, (): ()) -> Result<PackedTernary> {
        pack_weights::ternary(w, partition)
    }

    #[cfg(any(test, feature = "reference"))]
    fn pack_reference<T: Float>(w: &[T], partition: &Partition, (): ()) -> Result<PackedTernary> {
        reference::ternary(w, partition)
    }
}

impl Sealed for IntMatrix {
    type Codes = IntCodes;

    fn check(codes: IntCodes, per: Granularity) -> Result<()> {
        let IntCodes { bits, binary, asymmetric } = codes;
        match per {
            _ if binary && asymmetric => {
                Err(invalid("asymmetric binary weights are not supported".to_owned()))
            }
            _ if !binary && bits == Bits::One => {
                Err(invalid("one bit has no steps; WeightQuantizer::binary makes it".to_owned()))
            }
            Granularity::Tensor | Granularity::Matrix if !binary => Err(invalid(format!(
                "weights of {} bits have scales per row or per group",
                bits.count()
            ))),
            _ => check_int_group(per.group()),
        }
    }

    fn bits(codes: IntCodes) -> Bits {
        codes.bits
    }

    fn uninit(
        context: &Context,
        rows: usize,
        columns: usize,
        codes: IntCodes,
        group: Option<usize>,
    ) -> Result<Self> {
        Self::uninit(context, rows, columns, codes.bits, group)
    }

    fn form(&self) -> ([usize; 2], (Bits, Option<usize>)) {
        ([self.rows(), self.columns()], (self.bits(), self.group()))
    }

    fn record<T: Float>(
        &self,
        encoder: &mut Encoder,
        w: &Tensor<T>,
        partition: &Partition,
        codes: IntCodes,
    ) -> Result<()> {
        if codes.binary {
            quantize_weights_binary::record(encoder, w, partition, self)
        } else {
            quantize_weights_int::record(encoder, w, partition, codes.asymmetric, self)
        }
    }

    fn write_scales(&self, encoder: &mut Encoder, from: &PackedInt) -> Result<()> {
        let from = from.upload(encoder.context())?;
        encoder.transaction(|encoder| {
            copy(&from.scales).forward_into(encoder, &self.scales)?;
            copy(&from.zeros).forward_into(encoder, &self.zeros)
        })
    }

    fn pack<T: Float>(w: &[T], partition: &Partition, codes: IntCodes) -> Result<PackedInt> {
        pack_weights::int(w, partition, codes)
    }

    #[cfg(any(test, feature = "reference"))]
    fn pack_reference<T: Float>(
        w: &[T],
        partition: &Partition,
        codes: IntCodes,
    ) -> Result<PackedInt> {
        reference::int(w, partition, codes)
    }
}

/// The error for weights of which the one at a position is not finite.
fn not_finite(at: usize, columns: usize) -> Error {
    let (row, column) = (at / columns, at % columns);
    invalid(format!("weights must be finite; that of row {row}, column {column} is not"))
}

fn invalid(what: String) -> Error {
    Error::Invalid { op: OP, what }
}

pub(super) const KERNELS: &[&Kernel] = &[];

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::{
        super::{
            quantize_weights::absmean, quantize_weights_binary::scale_and_mean,
            quantize_weights_int::Steps,
        },
        *,
    };
    use crate::weights::{int::affine::Affine, ternary::scales::Scales};

    /// CPU reference of [`WeightQuantizer`], bit-identical: quantizes weights of `shape`.
    /// [`cpu::quantize_weights`](crate::cpu::quantize_weights) is faster.
    ///
    /// # Errors
    /// [`Error::Length`] if there are not as many; [`Error::Invalid`] for weights that are not
    /// finite, and as [`WeightQuantizer::quantize`].
    pub fn quantize_weights<T: Float, M: QuantizedWeights>(
        w: &[T],
        shape: impl Into<Shape>,
        quantizer: WeightQuantizer<M>,
    ) -> Result<M::Packed> {
        M::check(quantizer.codes, quantizer.per)?;
        let partition = Partition::new(shape.into(), w.len(), quantizer.per)?;
        match w.iter().position(|&v| !v.into().is_finite()) {
            Some(at) => Err(not_finite(at, partition.columns)),
            None => M::pack_reference(w, &partition, quantizer.codes),
        }
    }

    pub(super) fn ternary<T: Float>(w: &[T], partition: &Partition) -> Result<PackedTernary> {
        let (rows, columns) = (partition.all_rows(), partition.columns);
        let s = partition.map(w, |w| 1.0 / absmean(w, partition.whole).max(1e-5));
        let scales = Scales::compress(partition.group, s.iter().map(|s| 1.0 / s).collect());
        PackedTernary::from_codes(rows, columns, scales, |row, column| {
            let value = w[row * columns + column].into() * s[partition.at(row, column)];
            (value.round_ties_even().clamp(-1.0, 1.0) as i32 + 1) as u32
        })
    }

    pub(super) fn int<T: Float>(
        w: &[T],
        partition: &Partition,
        IntCodes { bits, binary, asymmetric }: IntCodes,
    ) -> Result<PackedInt> {
        if binary {
            let of = |w: &[T]| scale_and_mean(w, partition.whole);
            return pack_int(
                w,
                partition,
                bits,
                of,
                |(scale, _)| (scale, 0.5),
                |(_, mean), v| u8::from(v > mean),
            );
        }
        let of = |w: &[T]| Steps::of(w, bits, asymmetric);
        pack_int(w, partition, bits, of, |steps| (steps.scale, steps.zero), Steps::code)
    }

    /// Packs the codes that `code` makes of weights and of what `of` makes of those that share a scale.
    fn pack_int<T: Float, S: Copy + Send + Sync>(
        w: &[T],
        partition: &Partition,
        bits: Bits,
        of: impl Fn(&[T]) -> S + Sync,
        affine: impl Fn(S) -> (f32, f32),
        code: impl Fn(S, f32) -> u8 + Sync,
    ) -> Result<PackedInt> {
        let (rows, columns) = (partition.all_rows(), partition.columns);
        let parts = partition.map(w, of);
        let (scales, zeros) = parts.iter().map(|&part| affine(part)).unzip();
        let affine = Affine { group: partition.group, scales, zeros };
        PackedInt::from_fn(rows, columns, bits, affine, |row, column| {
            code(parts[partition.at(row, column)], w[row * columns + column].into())
        })
    }
}
