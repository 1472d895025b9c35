//! RMSNorm without a quantiser after it, for what is not quantised: the head's input.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{CELLS, EXACT, REDUCE, Source},
    },
    msl,
    ops::{
        rms::{inverse_rms, normalize},
        tensor::layer_norm::{Norm, norm_rows_backward},
    },
    params, wgsl,
};

params! { struct Params { tokens: u32, features: u32, first: u32, add: u32, eps: f32 } }

static RMS_NORM: Kernel = Kernel::trusted(
    "rms_norm",
    Params::FIELDS,
    &[read("x", Float("X")), read("gain", F32), read_write("y", Float("X"))],
    &[
        Source::wgsl(wgsl![
            REDUCE,
            CELLS,
            EXACT,
            "shared/row_of_group",
            "shared/row",
            "shared/row_any",
            "shared/row_numbers",
            "shared/rms",
            "shared/gain_any",
            "shared/rms_row",
            "shared/flat",
            "transformer/rms_norm"
        ])
        .workgroup_size([256, 1, 1])
        .tile([1, 1, 1])
        .constants(&[("HELD", 3)])
        .workgroup_bytes(1056),
        Source::msl(msl![
            "shared/prelude",
            "shared/exact",
            "shared/reduce",
            "shared/rms",
            "shared/rms_row",
            "transformer/rms_norm"
        ])
        .workgroup_size([256, 1, 1])
        .tile([1, 1, 1])
        .workgroup_bytes(256),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&RMS_NORM];

/// Every row of `x` `[m, k]` (`f32` or `f16`) as x / sqrt(mean(x²) + eps) · gain, rounded once more
/// for `f16`.
///
/// # Errors
/// As [`rms_norm_into`].
pub fn rms_norm<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    gain: &Tensor<f32>,
    eps: f32,
) -> Result<Tensor<T>> {
    let y = Tensor::uninit(encoder.context(), x.shape())?;
    rms_norm_into(encoder, x, 0, gain, eps, &y)?;
    Ok(y)
}

/// [`rms_norm`] of rows `first..` of `x` `[m, k]`, as many as the caller's tensor `[.., k]` has.
///
/// # Errors
/// [`Error::Shape`] if `gain` is not `[k]`, or the output has more rows than there are or other
/// columns.
pub fn rms_norm_into<'y, T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    first: usize,
    gain: &Tensor<f32>,
    eps: f32,
    y: impl Into<Out<'y, T>>,
) -> Result<()> {
    let (op, y) = ("rms_norm", y.into());
    let ((m, k), (tokens, columns)) = (x.shape().as_matrix(), y.tensor().shape().as_matrix());
    if gain.shape().dims() != [k] {
        return Err(Error::Shape {
            op,
            what: "gain",
            expected: format!("[{k}]"),
            found: gain.shape(),
        });
    }
    if first > m || tokens > m - first || columns != k {
        let expected = format!("[≤ {}, {k}]", m.saturating_sub(first));
        return Err(Error::Shape { op, what: "the output", expected, found: y.tensor().shape() });
    }
    let params = Params {
        tokens: tokens as u32,
        features: k as u32,
        first: first as u32,
        add: y.adds().into(),
        eps,
    };
    encoder.dispatch(&RMS_NORM, &params, &[x, gain, y.tensor()], [tokens, 1, 1])
}

/// The gradients of [`rms_norm`]: `RmsNormGradients<Tensor<T>, Tensor<f32>>` as they are made, or
/// where they go to (`RmsNormGradients<Out<T>, Out<f32>>`).
#[derive(Clone, Copy, Debug)]
pub struct RmsNormGradients<X, W> {
    /// `[m, k]`
    pub x: X,
    /// `[k]`
    pub gain: W,
}

/// The gradients of [`rms_norm`] of whole rows, where `dy` is that of its output: with n the normed
/// row and g = dy·gain, dx = (g - n·mean(g·n)) / sqrt(mean(x²) + eps), and dgain = Σ dy·n over
/// rows. Here squares are plain floats: of numbers above 2^63 there is no gradient.
///
/// # Errors
/// As [`rms_norm_backward_into`].
pub fn rms_norm_backward<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    gain: &Tensor<f32>,
    eps: f32,
    dy: &Tensor<T>,
) -> Result<RmsNormGradients<Tensor<T>, Tensor<f32>>> {
    let context = encoder.context();
    let made = RmsNormGradients {
        x: Tensor::uninit(context, x.shape())?,
        gain: Tensor::uninit(context, gain.shape())?,
    };
    rms_norm_backward_into(
        encoder,
        x,
        gain,
        eps,
        dy,
        RmsNormGradients { x: (&made.x).into(), gain: (&made.gain).into() },
    )?;
    Ok(made)
}

/// [`rms_norm_backward`] into tensors of the caller.
///
/// # Errors
/// [`Error::Shape`] if `gain` or its gradient is not `[k]`, or `dy` or the gradient of `x` has
/// another shape than `x`.
pub fn rms_norm_backward_into<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    gain: &Tensor<f32>,
    eps: f32,
    dy: &Tensor<T>,
    gradients: RmsNormGradients<Out<'_, T>, Out<'_, f32>>,
) -> Result<()> {
    norm_rows_backward(
        encoder,
        "rms_norm_backward",
        x,
        gain,
        Norm { center: false, eps },
        dy,
        gradients.x,
        gradients.gain,
    )
}

/// The CPU twin on whole rows: the same bits.
///
/// # Errors
/// [`Error::Length`] if `x` is not whole rows.
pub fn rms_norm_cpu(x: &[f32], gain: &[f32], eps: f32) -> Result<Vec<f32>> {
    let k = gain.len().max(1);
    if !x.len().is_multiple_of(k) {
        return Err(Error::Length { shape: [x.len() / k, k].into(), found: x.len() });
    }
    let normal = |row: &[f32]| {
        let mut normed = row.to_vec();
        normalize(&mut normed, gain, inverse_rms(row, eps));
        normed
    };
    Ok(x.chunks_exact(k).flat_map(normal).collect())
}

/// The CPU twin of [`rms_norm_backward`]: within its bounds, in `f64`.
///
/// # Errors
/// [`Error::Length`] if `x` is not whole rows, or `dy` has another length.
pub fn rms_norm_backward_cpu(
    x: &[f32],
    gain: &[f32],
    eps: f32,
    dy: &[f32],
) -> Result<RmsNormGradients<Vec<f32>, Vec<f32>>> {
    let [x, gain, _] = Norm { center: false, eps }.backward_cpu(x, gain, dy)?;
    Ok(RmsNormGradients { x, gain })
}
