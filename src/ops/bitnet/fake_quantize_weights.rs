//! fake_quantize_weights: the ternary weights that BitLinear multiplies by, as floats; and the
//! gradient of fake quantisation where numbers are clipped.

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
    ops::frames::{Operand, elementwise, function, record_three, three_inputs},
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

/// What [`fake_quantize_weights`] and [`fake_quantize_weights_by_matrix`] make:
/// `FakeQuantizedWeights<Tensor<T>, Tensor<f32>>` on the GPU, of vectors on the host.
#[derive(Clone, Debug)]
pub struct FakeQuantizedWeights<V, S> {
    /// w + λ·(w̃ - w), of the shape of `w`.
    pub values: V,
    /// s = 1 / max(mean|w|, 1e-5), `[]`, or `[.., 1, 1]` with one for each matrix: what
    /// [`fake_quantize_backward`] asks for.
    pub scale: S,
}

/// w + λ·(w̃ - w) of `w` of any shape, where w̃ = clamp(round(w·s), -1, 1) / s with s = 1 /
/// max(mean|w|, 1e-5) over the tensor, ties to even. For λ = 1 it is w̃: the bits of
/// [`TernaryMatrix::dequantize`](crate::weights::TernaryMatrix::dequantize) after
/// [`WeightQuantizer::absmean`](super::WeightQuantizer::absmean). Less eases training into the quantiser.
///
/// Its gradient straight through the rounding is `dy`, or [`fake_quantize_backward`] with the range
/// -1 to 1, which leaves out what was clipped. Where `w` is not finite, all is NaN.
///
/// A BitLinear that is trained, y = x̃·w̃ᵀ, and its gradients:
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, bitnet, tensor::{Side, matmul}};
/// # fn f(encoder: &mut Encoder, x: &Tensor<f32>, w: &Tensor<f32>, dy: &Tensor<f32>) -> Result<()> {
/// let x = bitnet::fake_quantize_activations(encoder, x, 1.0)?;
/// let rounded = bitnet::fake_quantize_weights(encoder, w, 1.0)?;
/// let y = matmul(&x, Side::transposed(&rounded.values)).forward(encoder)?;
/// // Backward, where dy is the gradient of y:
/// let dx = matmul(dy, &rounded.values).forward(encoder)?;
/// let dw = matmul(Side::transposed(dy), &x).forward(encoder)?;
/// let dw = bitnet::fake_quantize_backward(encoder, w, &rounded.scale, (-1.0, 1.0), &dw)?;
/// # Ok(())
/// # }
/// ```
///
/// Any other quantiser is eased in by a mean of `w` and what it makes of it, here that of one bit:
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
///
/// # Errors
/// As [`fake_quantize_weights_into`].
pub fn fake_quantize_weights<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    lambda: f32,
) -> Result<FakeQuantizedWeights<Tensor<T>, Tensor<f32>>> {
    let context = encoder.context();
    let made = FakeQuantizedWeights {
        values: Tensor::uninit(context, w.shape())?,
        scale: Tensor::uninit(context, [])?,
    };
    fake_quantize_weights_into(encoder, w, lambda, &made.values, &made.scale)?;
    Ok(made)
}

/// [`fake_quantize_weights`] into tensors of the caller; `scale` holds one number.
///
/// # Errors
/// [`Error::Shape`] if they do not fit; [`Error::Invalid`] unless 0 <= λ <= 1.
pub fn fake_quantize_weights_into<'y, T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    lambda: f32,
    values: impl Into<Out<'y, T>>,
    scale: &Tensor<f32>,
) -> Result<()> {
    record(encoder, "fake_quantize_weights", w, [1, w.len()], lambda, values.into(), scale)
}

/// [`fake_quantize_weights`] of a stack of matrices, `w` `[.., rows, columns]`, with s for each,
/// `[.., 1, 1]`, and to the bits of each alone: for λ = 1 what
/// [`per_matrix`](super::WeightQuantizer::per_matrix) makes.
/// [`fake_quantize_backward`] takes such scales as they are. What is not finite harms its own
/// matrix only. Rows, or groups of columns that are all as long, are matrices of one row under
/// another shape: with `w` as `[rows, 1, columns]`, or `[rows, groups, 1, columns / groups]`, they
/// have a scale each, and so has their gradient.
///
/// # Errors
/// As [`fake_quantize_weights_into`].
pub fn fake_quantize_weights_by_matrix<T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    lambda: f32,
) -> Result<FakeQuantizedWeights<Tensor<T>, Tensor<f32>>> {
    let (context, shape) = (encoder.context(), w.shape());
    let scale = if shape.rank() < 2 { shape.with_last(1) } else { shape.with_matrix(1, 1) };
    let made = FakeQuantizedWeights {
        values: Tensor::uninit(context, shape)?,
        scale: Tensor::uninit(context, scale)?,
    };
    fake_quantize_weights_by_matrix_into(encoder, w, lambda, &made.values, &made.scale)?;
    Ok(made)
}

/// [`fake_quantize_weights_by_matrix`] into tensors of the caller; `scale` holds a number for each
/// matrix.
///
/// # Errors
/// As [`fake_quantize_weights_into`].
pub fn fake_quantize_weights_by_matrix_into<'y, T: Float>(
    encoder: &mut Encoder,
    w: &Tensor<T>,
    lambda: f32,
    values: impl Into<Out<'y, T>>,
    scale: &Tensor<f32>,
) -> Result<()> {
    let Partition { matrices, rows, columns, .. } =
        Partition::new(w.shape(), w.len(), Granularity::Matrix)?;
    record(
        encoder,
        "fake_quantize_weights_by_matrix",
        w,
        [matrices, rows * columns],
        lambda,
        values.into(),
        scale,
    )
}

/// Records matrices of `length` numbers.
fn record<T: Float>(
    encoder: &mut Encoder,
    op: &'static str,
    w: &Tensor<T>,
    [matrices, length]: [usize; 2],
    lambda: f32,
    values: Out<'_, T>,
    scale: &Tensor<f32>,
) -> Result<()> {
    check_lambda(op, lambda)?;
    values.check_shape(op, w.shape())?;
    if scale.len() != matrices {
        return Err(Error::Shape {
            op,
            what: "scale",
            expected: format!("[{matrices}]"),
            found: scale.shape(),
        });
    }
    let sums = sum_abs(encoder, w, matrices)?;
    let params = Params {
        length: length as u32,
        sums: (sums.len() / matrices.max(1)) as u32,
        matrices: matrices as u32,
        add: values.adds().into(),
        count: length.max(1) as f32,
        lambda,
    };
    // Whole workgroups for each matrix.
    let extent = matrices * length.max(1).next_multiple_of(TILE as usize);
    encoder.dispatch(
        &FAKE_QUANTIZE_WEIGHTS,
        &params,
        &[w, &sums, values.tensor(), scale],
        [extent, 1, 1],
    )
}

/// The gradient of fake quantisation at `x`, straight through the rounding and none where numbers
/// are clipped: dx = dy where low <= x·scale <= high, else 0, (low, high) being `range`. `scale` is
/// a number for all, or broadcast to `x`: `[rows, 1]` for one a row. For weights
/// `fake_quantize_backward(w, scale, (-1.0, 1.0), dy)`; this is the gradient of clamp(x·scale, low,
/// high) / scale. (Courbariaux et al. 2016, arXiv:1602.02830.)
///
/// # Errors
/// As [`fake_quantize_backward_into`].
pub fn fake_quantize_backward<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    scale: &Tensor<f32>,
    range: (f32, f32),
    dy: &Tensor<T>,
) -> Result<Tensor<T>> {
    let dx = Tensor::uninit(encoder.context(), x.shape())?;
    fake_quantize_backward_into(encoder, x, scale, range, dy, &dx)?;
    Ok(dx)
}

/// [`fake_quantize_backward`] into a tensor of the caller, which may be `x` or `dy` itself.
///
/// # Errors
/// [`Error::Shape`] if `dy` or the output has another shape than `x`, or `scale` does not broadcast
/// to it.
pub fn fake_quantize_backward_into<'y, T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    scale: &Tensor<f32>,
    (low, high): (f32, f32),
    dy: &Tensor<T>,
    dx: impl Into<Out<'y, T>>,
) -> Result<()> {
    let (op, shape, dx) = (FAKE_QUANTIZE_BACKWARD.name, x.shape(), dx.into());
    dx.check_shape(op, shape)?;
    let (x, dy) = (Operand::broadcast(op, "x", x, shape)?, Operand::same(op, "dy", dy, shape)?);
    let scale = Operand::broadcast(op, "scale", scale, shape)?;
    record_three(encoder, &FAKE_QUANTIZE_BACKWARD, &[low, high], [&scale, &x, &dy], dx)
}

/// The CPU twin of [`fake_quantize_weights`]: for λ = 1 the same bits.
///
/// # Errors
/// [`Error::Invalid`] unless 0 <= λ <= 1.
pub fn fake_quantize_weights_cpu<T: Float>(
    w: &[T],
    lambda: f32,
) -> Result<FakeQuantizedWeights<Vec<f32>, f32>> {
    check_lambda("fake_quantize_weights", lambda)?;
    let mean = absmean(w, true);
    if !mean.is_finite() {
        return Ok(FakeQuantizedWeights { values: vec![f32::NAN; w.len()], scale: f32::NAN });
    }
    let scale = 1.0 / mean.max(1e-5);
    let rounded =
        |w: f32| f32::from((w * scale).round_ties_even().clamp(-1.0, 1.0) as i8) * (1.0 / scale);
    Ok(FakeQuantizedWeights {
        values: w.iter().map(|&w| warmed(w.into(), rounded(w.into()), lambda)).collect(),
        scale,
    })
}

/// The CPU twin of [`fake_quantize_weights_by_matrix`]: for λ = 1 the same bits. `w` is
/// `[matrices, rows, columns]`.
///
/// # Errors
/// [`Error::Length`] if it is not; else as [`fake_quantize_weights_cpu`].
pub fn fake_quantize_weights_by_matrix_cpu<T: Float>(
    w: &[T],
    [matrices, rows, columns]: [usize; 3],
    lambda: f32,
) -> Result<FakeQuantizedWeights<Vec<f32>, Vec<f32>>> {
    check_lambda("fake_quantize_weights_by_matrix", lambda)?;
    Partition::new([matrices, rows, columns].into(), w.len(), Granularity::Matrix)?;
    let mut made = FakeQuantizedWeights { values: Vec::with_capacity(w.len()), scale: Vec::new() };
    for matrix in 0..matrices {
        let length = w.len() / matrices;
        let of = fake_quantize_weights_cpu(&w[matrix * length..][..length], lambda)?;
        made.values.extend(of.values);
        made.scale.push(of.scale);
    }
    Ok(made)
}

/// The CPU twin of [`fake_quantize_backward`], of one number: the same bits.
pub fn fake_quantize_backward_cpu(x: f32, scale: f32, (low, high): (f32, f32), dy: f32) -> f32 {
    if (low..=high).contains(&(x * scale)) { dy } else { 0.0 }
}
