//! Fake quantization of weights: the ternary weights that BitLinear multiplies by, as floats; and
//! its gradient, which is none where numbers are clipped.

use super::{
    fake_quantize_activations::{check_lambda, warmed},
    partition::{Granularity, Partition},
    quantize_weights::{absmean, sum_abs},
};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{EXACT, Part, Source, Work},
    },
    msl,
    ops::{
        forward::backward,
        frames::{Operand, elementwise, function, record_three, three_inputs},
    },
    params, wgsl,
};

params! { struct Params { length: u32, sums: u32, matrices: u32, add: u32, count: f32, lambda: f32 } }

const THREADS: u32 = 256;
/// Weights that a workgroup takes.
const TILE: u32 = 16 * THREADS;

static FAKE_QUANTIZE_WEIGHTS: Kernel = Kernel::trusted(
    "fake_quantize_weights",
    Params::FIELDS,
    &[
        read("w", Float("X")),
        read("sums", F32),
        read_write("y", Float("X")),
        read_write("scale", F32),
    ],
    &[
        source(Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            EXACT,
            "shared/finite",
            "shared/fixed_tree",
            "bitnet/fake_quantize_weights"
        ])),
        source(Source::msl(msl![
            "shared/prelude",
            "shared/exact",
            "shared/finite",
            "shared/fixed_tree",
            "bitnet/fake_quantize_weights"
        ])),
    ],
)
.flat();

const fn source(source: Source) -> Source {
    source
        .workgroup_size([THREADS, 1, 1])
        .tile([TILE, 1, 1])
        .workgroup_bytes(4 * THREADS)
        .work(Work::new(1, "element", 8, 5))
}

const BACKWARD_BINDINGS: &[Binding; 4] =
    &[read("a", F32), read("b", Float("X")), read("c", Float("X")), read_write("y", Float("Y"))];
const SCALE: Part = Part::new("alias A", "alias A = f32;\n");
const UNCLIPPED: Part = function!(
    "combine(a: f32, b: f32, c: f32)",
    "select(0.0, c, a * b >= params.alpha && a * b <= params.beta)"
);

static FAKE_QUANTIZE_BACKWARD: Kernel = three_inputs(
    "fake_quantize_backward",
    BACKWARD_BINDINGS,
    elementwise!("frames/elementwise_3", [SCALE, UNCLIPPED]),
)
.one_float();

pub(super) const KERNELS: &[&Kernel] = &[&FAKE_QUANTIZE_WEIGHTS, &FAKE_QUANTIZE_BACKWARD];

/// Result of [`fake_quantize_weights`].
#[derive(Clone, Debug)]
pub struct FakeQuantizedWeights<V, S> {
    /// w + λ·(w̃ - w), of the shape of `w`.
    pub values: V,
    /// s = 1 / max(mean|w|, 1e-5), `[]`, or `[.., 1, 1]` with one for each matrix: what `backward`
    /// takes.
    pub scale: S,
}

/// Returns w + λ·(w̃ - w) of `w` of any shape, where w̃ = clamp(round(w·s), -1, 1) / s with s = 1 /
/// max(mean|w|, 1e-5) over the tensor, ties to even. For λ = 1 it is w̃: the bits of
/// [`TernaryMatrix::dequantize`](crate::weights::TernaryMatrix::dequantize) after
/// [`WeightQuantizer::absmean`](super::WeightQuantizer::absmean). A smaller λ eases training into
/// the quantizer. Where `w` is not finite, all is NaN.
///
/// The gradient straight through the rounding is `dy`. `backward` leaves out what was clipped: dw =
/// dy where -1 <= w·scale <= 1, else 0, whatever λ. (Courbariaux et al. 2016, arXiv:1602.02830.)
///
/// A BitLinear that is trained, y = x̃·w̃ᵀ, and its gradients:
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, bitnet, tensor::{Side, matmul}};
/// # fn f(encoder: &mut Encoder, x: &Tensor<f32>, w: &Tensor<f32>, dy: &Tensor<f32>) -> Result<()> {
/// let x = bitnet::fake_quantize_activations(x, 1.0).forward(encoder)?;
/// let quantizer = bitnet::fake_quantize_weights(w, 1.0);
/// let rounded = quantizer.forward(encoder)?;
/// let y = matmul(&x, Side::transposed(&rounded.values)).forward(encoder)?;
/// // Backward, where dy is the gradient of y:
/// let dx = matmul(dy, &rounded.values).forward(encoder)?;
/// let dw = matmul(Side::transposed(dy), &x).forward(encoder)?;
/// let dw = quantizer.backward(encoder, &rounded.scale, &dw)?;
/// # Ok(())
/// # }
/// ```
///
/// Any other quantizer is eased in by a mean of `w` and its result, here that of one bit:
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, bitnet, optimizer, tensor};
/// # fn f(encoder: &mut Encoder, w: &Tensor<f32>, lambda: f32) -> Result<Tensor<f32>> {
/// let binary = bitnet::WeightQuantizer::binary().quantize(encoder, w)?;
/// let rounded = binary.dequantize::<f32>(encoder)?;
/// let values = tensor::cast(w).forward(encoder)?; // a copy
/// optimizer::Ema::new(1.0 - lambda).step(encoder, &values, &rounded)?; // w + λ·(w̃ - w)
/// # Ok(values)
/// # }
/// ```
pub fn fake_quantize_weights<T: Float>(w: &Tensor<T>, lambda: f32) -> FakeQuantizeWeights<'_, T> {
    FakeQuantizeWeights { x: w, lambda, per: Granularity::Tensor, range: (-1.0, 1.0) }
}

/// Fake quantization of weights; see [`fake_quantize_weights`].
#[must_use = "an op does nothing until it is recorded"]
pub struct FakeQuantizeWeights<'a, T> {
    x: &'a Tensor<T>,
    lambda: f32,
    per: Granularity,
    range: (f32, f32),
}

impl<T> Clone for FakeQuantizeWeights<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for FakeQuantizeWeights<'_, T> {}

impl<T: Float> FakeQuantizeWeights<'_, T> {
    /// Takes s for each matrix of a stack `[.., rows, columns]`, which gets the bits that it gets
    /// alone: for λ = 1 those of [`per_matrix`](super::WeightQuantizer::per_matrix). What is not
    /// finite harms its own matrix only.
    ///
    /// Rows, or groups of columns that are all as long, are matrices of one row under another
    /// shape: with `w` as `[rows, 1, columns]`, or `[rows, groups, 1, columns / groups]`, they have
    /// a scale each, and so has their gradient.
    pub fn per_matrix(self) -> Self {
        Self { per: Granularity::Matrix, ..self }
    }

    /// Sets from where to where numbers have a gradient: low <= w·scale <= high. It is that of
    /// clamp(w·scale, low, high) / scale. By default -1 to 1, the codes of weights.
    pub fn range(self, low: f32, high: f32) -> Self {
        Self { range: (low, high), ..self }
    }

    /// Records the op and returns its result.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless 0 <= λ <= 1; what an allocation reports.
    pub fn forward(
        self,
        encoder: &mut Encoder,
    ) -> Result<FakeQuantizedWeights<Tensor<T>, Tensor<f32>>> {
        let (context, shape) = (encoder.context(), self.x.shape());
        let scale = match self.per {
            Granularity::Matrix if shape.rank() < 2 => shape.with_last(1),
            Granularity::Matrix => shape.with_matrix(1, 1),
            _ => [].into(),
        };
        let result = FakeQuantizedWeights {
            values: Tensor::uninit(context, shape)?,
            scale: Tensor::uninit(context, scale)?,
        };
        self.forward_into(encoder, &result.values, &result.scale)?;
        Ok(result)
    }

    /// Records the op, which writes its values to a tensor of the caller, or adds them to one
    /// ([`Out::add`]), and overwrites `scale`, one number or one for each matrix.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::Shape`] if the tensors do not fit.
    pub fn forward_into<'out>(
        self,
        encoder: &mut Encoder,
        values: impl Into<Out<'out, T>>,
        scale: &Tensor<f32>,
    ) -> Result<()> {
        let (w, values) = (self.x, values.into());
        check_lambda(OP, self.lambda)?;
        values.check_shape(OP, w.shape())?;
        let Partition { matrices, rows, columns, .. } =
            Partition::new(w.shape(), w.len(), self.per)?;
        if scale.len() != matrices {
            return Err(Error::Shape {
                op: OP,
                what: "scale",
                expected: format!("[{matrices}]"),
                found: scale.shape(),
            });
        }
        let (sums, length) = (sum_abs(encoder, w, matrices)?, (rows * columns).max(1));
        let params = Params {
            length: (rows * columns) as u32,
            sums: (sums.len() / matrices.max(1)) as u32,
            matrices: matrices as u32,
            add: values.adds().into(),
            count: length as f32,
            lambda: self.lambda,
        };
        // Whole workgroups for each matrix.
        let extent = matrices * length.next_multiple_of(TILE as usize);
        encoder.dispatch(
            &FAKE_QUANTIZE_WEIGHTS,
            &params,
            &[w, &sums, values.tensor(), scale],
            [extent, 1, 1],
        )
    }

    fn gradient(
        self,
        encoder: &mut Encoder,
        scale: &Tensor<f32>,
        dy: &Tensor<T>,
        dx: Out<'_, T>,
    ) -> Result<()> {
        let (op, shape) = (FAKE_QUANTIZE_BACKWARD.name, self.x.shape());
        dx.check_shape(op, shape)?;
        let x = Operand::same(op, "w", self.x, shape)?;
        let dy = Operand::same(op, "dy", dy, shape)?;
        let scale = Operand::broadcast(op, "scale", scale, shape)?;
        let (low, high) = self.range;
        record_three(encoder, &FAKE_QUANTIZE_BACKWARD, &[low, high], [&scale, &x, &dy], dx)
    }
}

// The gradient takes `scale`, which is broadcast to `w`, and may be written to `w` or `dy` itself.
backward!(impl[T: Float] FakeQuantizeWeights<'_, T> => T; scale: f32, dy: T);

const OP: &str = "fake_quantize_weights";

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`fake_quantize_weights`](fn@super::fake_quantize_weights) of a stack
    /// `[matrices, rows, columns]`, with a scale for each matrix: for λ = 1 bit-identical.
    ///
    /// # Errors
    /// [`Error::Length`] if `w` is no such stack; [`Error::Invalid`] unless 0 <= λ <= 1.
    pub fn fake_quantize_weights<T: Float>(
        w: &[T],
        stack: [usize; 3],
        lambda: f32,
    ) -> Result<FakeQuantizedWeights<Vec<f32>, Vec<f32>>> {
        check_lambda(OP, lambda)?;
        let partition = Partition::new(stack.into(), w.len(), Granularity::Matrix)?;
        let length = partition.rows * partition.columns;
        let (mut values, mut scale) = (Vec::with_capacity(w.len()), Vec::new());
        for matrix in 0..partition.matrices {
            let w = &w[matrix * length..][..length];
            let s = match absmean(w, true) {
                mean if mean.is_finite() => 1.0 / mean.max(1e-5),
                _ => f32::NAN,
            };
            let rounded =
                |w: f32| f32::from((w * s).round_ties_even().clamp(-1.0, 1.0) as i8) * (1.0 / s);
            values.extend(w.iter().map(|&w| warmed(w.into(), rounded(w.into()), lambda)));
            scale.push(s);
        }
        Ok(FakeQuantizedWeights { values, scale })
    }

    /// CPU reference of the gradient of [`fake_quantize_weights`](fn@super::fake_quantize_weights)
    /// for one number, bit-identical.
    pub fn fake_quantize_weights_backward(
        w: f32,
        scale: f32,
        (low, high): (f32, f32),
        dy: f32,
    ) -> f32 {
        if (low..=high).contains(&(w * scale)) { dy } else { 0.0 }
    }
}
