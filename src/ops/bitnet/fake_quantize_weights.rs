//! fake_quantize_weights: the ternary weights that BitLinear multiplies by, as floats; and the gradient of fake quantisation where numbers are clipped.

use super::{
    fake_quantize_activations::{check_lambda, warmed},
    quantize_weights::{absmean_cpu, sum_abs},
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
    ops::frames::{Operand, elementwise, function, record_three, three_inputs},
    params, wgsl,
};

params! { struct Params { length: u32, sums: u32, add: u32, count: f32, lambda: f32 } }

const THREADS: u32 = 256;

static FAKE_QUANTIZE_WEIGHTS: Kernel = Kernel::trusted(
    "fake_quantize_weights",
    Params::FIELDS,
    &[read("w", Float("X")), read("sums", F32), read_write("y", Float("X")), read_write("scale", F32)],
    &[Source::wgsl(wgsl!["shared/ids", "shared/flat", EXACT, "shared/finite", "shared/fixed_tree", "bitnet/fake_quantize_weights"])
        .workgroup_size([THREADS, 1, 1])
        .tile([16 * THREADS, 1, 1])
        .workgroup_bytes(4 * THREADS)
        .work(Work::new(1, "element", 8, 5))],
)
.flat();

const BACKWARD_BINDINGS: &[Binding; 4] = &[read("a", F32), read("b", Float("X")), read("c", Float("X")), read_write("y", Float("Y"))];
const SCALE: Part = Part::new("alias A", "alias A = f32;\n");
const UNCLIPPED: Part = function!("combine(a: f32, b: f32, c: f32)", "select(0.0, c, a * b >= params.alpha && a * b <= params.beta)");

static FAKE_QUANTIZE_BACKWARD: Kernel =
    three_inputs("fake_quantize_backward", BACKWARD_BINDINGS, elementwise!("frames/elementwise_3", [SCALE, UNCLIPPED])).one_float();

pub(super) const KERNELS: &[&Kernel] = &[&FAKE_QUANTIZE_WEIGHTS, &FAKE_QUANTIZE_BACKWARD];

/// What [`fake_quantize_weights`] makes: `FakeQuantizedWeights<Tensor<T>, Tensor<f32>>` on the GPU, of vectors on the host.
#[derive(Clone, Debug)]
pub struct FakeQuantizedWeights<V, S> {
    /// w + λ·(w̃ - w), of the shape of `w`.
    pub values: V,
    /// s = 1 / max(mean|w|, 1e-5), `[]`: what [`fake_quantize_backward`] asks for.
    pub scale: S,
}

/// w + λ·(w̃ - w) of `w` of any shape, where w̃ = clamp(round(w·s), -1, 1) / s with s = 1 / max(mean|w|, 1e-5) over the tensor, ties to even. For
/// λ = 1 it is w̃: the bits of [`dequantize_weights`](super::dequantize_weights) after [`quantize_weights`](super::quantize_weights()). Less eases
/// training into the quantiser.
///
/// Its gradient straight through the rounding is `dy`, or [`fake_quantize_backward`] with the range -1 to 1, which leaves out what was clipped. Where
/// `w` is not finite, all is NaN.
///
/// A BitLinear that is trained, y = x̃·w̃ᵀ, and its gradients:
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, bitnet, tensor::{Side, matmul}};
/// # fn f(encoder: &mut Encoder, x: &Tensor<f32>, w: &Tensor<f32>, dy: &Tensor<f32>) -> Result<()> {
/// let x = bitnet::fake_quantize_activations(encoder, x, 1.0)?;
/// let rounded = bitnet::fake_quantize_weights(encoder, w, 1.0)?;
/// let y = matmul(encoder, &x, Side::transposed(&rounded.values))?;
/// // Backward, where dy is the gradient of y:
/// let dx = matmul(encoder, dy, &rounded.values)?;
/// let dw = matmul(encoder, Side::transposed(dy), &x)?;
/// let dw = bitnet::fake_quantize_backward(encoder, w, &rounded.scale, (-1.0, 1.0), &dw)?;
/// # Ok(())
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
    let made = FakeQuantizedWeights { values: Tensor::uninit(context, w.shape())?, scale: Tensor::uninit(context, [])? };
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
    let (op, values) = ("fake_quantize_weights", values.into());
    check_lambda(op, lambda)?;
    values.check_shape(op, w.shape())?;
    if scale.len() != 1 {
        return Err(Error::Shape { op, what: "scale", expected: "[]".to_owned(), found: scale.shape() });
    }
    let sums = sum_abs(encoder, w, 1)?;
    let params =
        Params { length: w.len() as u32, sums: sums.len() as u32, add: values.adds().into(), count: w.len().max(1) as f32, lambda };
    // One workgroup at least: the scale of no weights is a number too.
    encoder.dispatch(&FAKE_QUANTIZE_WEIGHTS, &params, &[w, &sums, values.tensor(), scale], [w.len().max(1), 1, 1])
}

/// The gradient of fake quantisation at `x`, straight through the rounding and none where numbers are clipped: dx = dy where low <= x·scale <= high,
/// else 0, (low, high) being `range`. `scale` is a number for all, or broadcast to `x`: `[rows, 1]` for one a row. For weights
/// `fake_quantize_backward(w, scale, (-1.0, 1.0), dy)`; this is the gradient of clamp(x·scale, low, high) / scale. (Courbariaux et al. 2016,
/// arXiv:1602.02830.)
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
/// [`Error::Shape`] if `dy` or the output has another shape than `x`, or `scale` does not broadcast to it.
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
pub fn fake_quantize_weights_cpu<T: Float>(w: &[T], lambda: f32) -> Result<FakeQuantizedWeights<Vec<f32>, f32>> {
    check_lambda("fake_quantize_weights", lambda)?;
    let mean = absmean_cpu(w);
    if !mean.is_finite() {
        return Ok(FakeQuantizedWeights { values: vec![f32::NAN; w.len()], scale: f32::NAN });
    }
    let scale = 1.0 / mean.max(1e-5);
    let rounded = |w: f32| f32::from((w * scale).round_ties_even().clamp(-1.0, 1.0) as i8) * (1.0 / scale);
    Ok(FakeQuantizedWeights { values: w.iter().map(|&w| warmed(w.into(), rounded(w.into()), lambda)).collect(), scale })
}

/// The CPU twin of [`fake_quantize_backward`], of one number: the same bits.
pub fn fake_quantize_backward_cpu(x: f32, scale: f32, (low, high): (f32, f32), dy: f32) -> f32 {
    if (low..=high).contains(&(x * scale)) { dy } else { 0.0 }
}
