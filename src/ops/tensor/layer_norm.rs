//! layer_norm: y = (x - mean) / sqrt(variance + eps)·weight + bias along rows (Ba et al. 2016,
//! arXiv:1607.06450), and its gradients.
//!
//! With n the normed row and g = dy·weight: dx = (g - mean g - n·mean(g·n)) / sqrt(variance + eps),
//! dweight = Σ dy·n and dbias = Σ dy over rows. The gradient of an RMS norm is the same without
//! means of x and g, by the same kernels.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::Source,
    },
    msl,
    ops::{
        reduce::{
            self, Geometry, HELD, Numbers, Reduction, Ways, alone, by_rows, held, lanes, reduction,
            rows_extent,
        },
        tensor::sum::{self, sum},
    },
    params, wgsl,
};

params! { struct Params { rows: u32, columns: u32, lanes: u32, add: u32, eps: f32 } }
params! { struct BackwardParams { rows: u32, columns: u32, lanes: u32, center: u32, add: u32, eps: f32 } }

const BINDINGS: &[Binding] =
    &[read("x", Float("X")), read("weight", F32), read("bias", F32), read_write("y", Float("X"))];
const WGSL: Source = by_rows(
    Source::wgsl(wgsl![
        "shared/ids",
        "shared/flat",
        "frames/reduce_sum",
        "shared/lanes",
        "shared/held",
        "tensor/layer_norm"
    ]),
    1,
);

static LAYER_NORM: Kernel = Kernel::trusted(
    "layer_norm",
    Params::FIELDS,
    BINDINGS,
    &[
        WGSL.constants(&[("HELD", 1)]),
        by_rows(
            Source::msl(msl![
                "shared/prelude",
                "frames/reduce_sum",
                "shared/lanes",
                "tensor/layer_norm"
            ]),
            1,
        ),
    ],
)
.flat();
static LAYER_NORM_HELD: Kernel = Kernel::trusted(
    "layer_norm_held",
    Params::FIELDS,
    BINDINGS,
    &[WGSL.constants(&[("HELD", HELD)])],
)
.entry("layer_norm")
.flat();
static NORM_ROWS_BACKWARD: Kernel = Kernel::trusted(
    "norm_rows_backward",
    BackwardParams::FIELDS,
    &[
        read("x", Float("X")),
        read("weight", F32),
        read("dy", Float("X")),
        read_write("dx", Float("X")),
        read_write("statistics", F32),
    ],
    &[
        by_rows(
            Source::wgsl(wgsl![
                "shared/ids",
                "shared/flat",
                "shared/lanes",
                "tensor/norm_rows_backward"
            ]),
            2,
        ),
        by_rows(
            Source::msl(msl![
                "shared/prelude",
                "shared/add_pairs",
                "shared/lanes",
                "tensor/norm_rows_backward"
            ]),
            2,
        ),
    ],
)
.flat();
static NORM_WEIGHT_BACKWARD: Kernel = reduce::kernel(
    "norm_weight_backward",
    &[read("x", Float("X")), read("dy", Float("X")), read("statistics", F32), read_write("y", F32)],
    &[reduction!(wgsl["tensor/norm_weight_backward", "frames/reduce_sum"])],
);

static LAYER_NORM_ALONE: Kernel = Kernel::trusted(
    "layer_norm_alone",
    Params::FIELDS,
    BINDINGS,
    &[alone(Source::wgsl(wgsl![
        "shared/ids",
        "shared/flat",
        "frames/reduce_sum",
        "shared/row_alone",
        "tensor/layer_norm_alone"
    ]))],
)
.flat();

pub(super) const KERNELS: &[&Kernel] =
    &[&LAYER_NORM, &LAYER_NORM_HELD, &LAYER_NORM_ALONE, &NORM_ROWS_BACKWARD, &NORM_WEIGHT_BACKWARD];

/// A layer norm with its weights. Every row of `x` `[.., k]` becomes (x - mean) / sqrt(variance +
/// eps)·weight + bias; the variance is Σ (x - mean)² / k.
///
/// ```no_run
/// # use bitnet_wgpu::{Encoder, Result, Tensor, tensor::LayerNorm};
/// # fn f(encoder: &mut Encoder, x: &Tensor<f32>, weight: &Tensor<f32>, bias: &Tensor<f32>, dy: &Tensor<f32>) -> Result<()> {
/// let norm = LayerNorm::new(weight, bias, 1e-5);
/// let y = norm.forward(encoder, x)?;
/// let gradients = norm.backward(encoder, x, dy)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct LayerNorm<'a> {
    weight: &'a Tensor<f32>,
    bias: &'a Tensor<f32>,
    eps: f32,
}

impl<'a> LayerNorm<'a> {
    /// A norm of rows of k numbers, with `weight` and `bias` `[k]`.
    pub fn new(weight: &'a Tensor<f32>, bias: &'a Tensor<f32>, eps: f32) -> Self {
        Self { weight, bias, eps }
    }

    /// Records the norm of the rows of `x` and returns it, a new tensor.
    ///
    /// # Errors
    /// [`Error::Shape`] if `weight` or `bias` is not `[k]`.
    pub fn forward<T: Float>(self, encoder: &mut Encoder, x: &Tensor<T>) -> Result<Tensor<T>> {
        let y = Tensor::uninit(encoder.context(), x.shape())?;
        self.forward_into(encoder, x, &y)?;
        Ok(y)
    }

    /// Like [`forward`](Self::forward), into a tensor of the caller.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::Shape`] if the tensor has another shape than `x`.
    pub fn forward_into<'out, T: Float>(
        self,
        encoder: &mut Encoder,
        x: &Tensor<T>,
        out: impl Into<Out<'out, T>>,
    ) -> Result<()> {
        let (op, y) = ("layer_norm", out.into());
        let (rows, columns) = x.shape().as_matrix();
        check_columns(op, "weight", self.weight, columns)?;
        check_columns(op, "bias", self.bias, columns)?;
        y.check_shape(op, x.shape())?;
        let params = Params {
            rows: rows as u32,
            columns: columns as u32,
            lanes: lanes(columns) as u32,
            add: y.adds().into(),
            eps: self.eps,
        };
        let ways = Ways {
            shared: held(encoder, columns, &LAYER_NORM, &LAYER_NORM_HELD),
            alone: Some(&LAYER_NORM_ALONE),
        };
        let (kernel, extent) = ways.choose(encoder, rows, || rows_extent(rows, columns));
        encoder.dispatch(kernel, &params, &[x, self.weight, self.bias, y.tensor()], extent)
    }

    /// Records the gradients of the norm at `x`, where `dy` is that of its output.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::Shape`] if `dy` has another shape than `x`.
    #[cfg(feature = "train")]
    pub fn backward<T: Float>(
        self,
        encoder: &mut Encoder,
        x: &Tensor<T>,
        dy: &Tensor<T>,
    ) -> Result<LayerNormGradients<Tensor<T>, Tensor<f32>>> {
        let context = encoder.context();
        let made = LayerNormGradients {
            x: Tensor::uninit(context, x.shape())?,
            weight: Tensor::uninit(context, self.weight.shape())?,
            bias: Tensor::uninit(context, self.weight.shape())?,
        };
        let LayerNormGradients { x: dx, weight, bias } = &made;
        let outs = LayerNormGradients { x: dx.into(), weight: weight.into(), bias: bias.into() };
        self.backward_into(encoder, x, dy, outs)?;
        Ok(made)
    }

    /// Like [`backward`](Self::backward), into tensors of the caller.
    ///
    /// # Errors
    /// As [`backward`](Self::backward); [`Error::Shape`] if a tensor has another shape than its
    /// gradient.
    #[cfg(feature = "train")]
    pub fn backward_into<T: Float>(
        self,
        encoder: &mut Encoder,
        x: &Tensor<T>,
        dy: &Tensor<T>,
        gradients: LayerNormGradients<Out<'_, T>, Out<'_, f32>>,
    ) -> Result<()> {
        let (op, columns) = ("layer_norm_backward", x.shape().as_matrix().1);
        check_columns(op, "the gradient of the bias", gradients.bias.tensor(), columns)?;
        let LayerNormGradients { x: dx, weight: dweight, bias: dbias } = gradients;
        let norm = Norm { center: true, eps: self.eps };
        encoder.transaction(|encoder| {
            norm_rows_backward(encoder, op, x, self.weight, norm, dy, dx, dweight)?;
            let rows: Vec<usize> = (0..x.shape().rank().saturating_sub(1)).collect();
            sum(dy, rows.as_slice()).forward_into(encoder, dbias)
        })
    }
}

/// The gradients of a layer norm: `LayerNormGradients<Tensor<T>, Tensor<f32>>` as they are made, or
/// where they go to (`LayerNormGradients<Out<T>, Out<f32>>`).
#[derive(Clone, Copy, Debug)]
pub struct LayerNormGradients<X, W> {
    /// `[.., k]`
    pub x: X,
    /// `[k]`
    pub weight: W,
    /// `[k]`
    pub bias: W,
}

/// Which norm of rows.
pub(in crate::ops) struct Norm {
    /// Whether the mean is subtracted from a row first, as by a layer norm.
    pub center: bool,
    pub eps: f32,
}

/// The gradients of a norm of rows at `x` and its weight.
#[allow(clippy::too_many_arguments, reason = "all of them are the formula's")]
pub(in crate::ops) fn norm_rows_backward<T: Float>(
    encoder: &mut Encoder,
    op: &'static str,
    x: &Tensor<T>,
    weight: &Tensor<f32>,
    norm: Norm,
    dy: &Tensor<T>,
    dx: Out<'_, T>,
    dweight: Out<'_, f32>,
) -> Result<()> {
    let (rows, columns) = x.shape().as_matrix();
    check_columns(op, "weight", weight, columns)?;
    check_columns(op, "the gradient of the weight", dweight.tensor(), columns)?;
    if dy.shape() != x.shape() {
        return Err(Error::Shape {
            op,
            what: "dy",
            expected: x.shape().to_string(),
            found: dy.shape(),
        });
    }
    dx.check_shape(op, x.shape())?;
    let statistics = Tensor::<f32>::uninit(encoder.context(), [rows, 2])?;
    let params = BackwardParams {
        rows: rows as u32,
        columns: columns as u32,
        lanes: lanes(columns) as u32,
        center: norm.center.into(),
        add: dx.adds().into(),
        eps: norm.eps,
    };
    encoder.transaction(|encoder| {
        encoder.dispatch(
            &NORM_ROWS_BACKWARD,
            &params,
            &[x, weight, dy, dx.tensor(), &statistics],
            rows_extent(rows, columns),
        )?;
        let geometry = Geometry::new(op, [rows, columns].into(), [0].into())?;
        Reduction { first: Ways::shared(&NORM_WEIGHT_BACKWARD), then: sum::WAYS, words: 1 }.record(
            encoder,
            &[x, dy, &statistics],
            &geometry,
            Numbers::default(),
            dweight,
        )
    })
}

fn check_columns(
    op: &'static str,
    what: &'static str,
    found: &Tensor<f32>,
    columns: usize,
) -> Result<()> {
    if found.shape().dims() == [columns] {
        return Ok(());
    }
    Err(Error::Shape { op, what, expected: format!("[{columns}]"), found: found.shape() })
}

fn check_rows(x: &[f32], weight: &[f32]) -> Result<usize> {
    let k = weight.len().max(1);
    if x.len().is_multiple_of(k) {
        Ok(k)
    } else {
        Err(Error::Length { shape: [x.len() / k, k].into(), found: x.len() })
    }
}

impl Norm {
    /// The mean, or 0, and 1 / sqrt(mean square + eps).
    fn statistics_cpu(&self, row: &[f32]) -> (f64, f64) {
        let mean_of = |of: &dyn Fn(f64) -> f64| {
            row.iter().map(|&v| of(v.into())).sum::<f64>() / row.len() as f64
        };
        let mean = if self.center { mean_of(&|v| v) } else { 0.0 };
        (mean, 1.0 / (mean_of(&|v| (v - mean).powi(2)) + f64::from(self.eps)).sqrt())
    }

    /// The gradients of x, weight and bias.
    pub(in crate::ops) fn backward_cpu(
        &self,
        x: &[f32],
        weight: &[f32],
        dy: &[f32],
    ) -> Result<[Vec<f32>; 3]> {
        let k = check_rows(x, weight)?;
        if dy.len() != x.len() {
            return Err(Error::Length { shape: [x.len() / k, k].into(), found: dy.len() });
        }
        let (mut dx, mut dweight, mut dbias) =
            (Vec::with_capacity(x.len()), vec![0f64; weight.len()], vec![0f64; weight.len()]);
        for (x, dy) in x.chunks_exact(k).zip(dy.chunks_exact(k)) {
            let (mean, inverse) = self.statistics_cpu(x);
            let normed: Vec<f64> = x.iter().map(|&v| (f64::from(v) - mean) * inverse).collect();
            let g: Vec<f64> =
                dy.iter().zip(weight).map(|(&dy, &w)| f64::from(dy) * f64::from(w)).collect();
            let mean_g = if self.center { g.iter().sum::<f64>() / k as f64 } else { 0.0 };
            let slope = g.iter().zip(&normed).map(|(g, n)| g * n).sum::<f64>() / k as f64;
            dx.extend(
                g.iter().zip(&normed).map(|(g, n)| (inverse * (g - mean_g - n * slope)) as f32),
            );
            for (i, (&dy, n)) in dy.iter().zip(&normed).enumerate() {
                dweight[i] += f64::from(dy) * n;
                dbias[i] += f64::from(dy);
            }
        }
        let rounded = |sums: Vec<f64>| sums.into_iter().map(|v| v as f32).collect();
        Ok([dx, rounded(dweight), rounded(dbias)])
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`LayerNorm`](crate::tensor::LayerNorm) on whole rows: within its bounds,
    /// in `f64`.
    ///
    /// # Errors
    /// [`Error::Length`] if `x` is not whole rows of as many numbers as `weight` and `bias` have.
    pub fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32) -> Result<Vec<f32>> {
        let k = check_rows(x, weight)?;
        check_rows(bias, weight)?;
        let row = |row: &[f32]| {
            let (mean, inverse) = Norm { center: true, eps }.statistics_cpu(row);
            let normed = |(v, (w, b)): (&f32, (&f32, &f32))| {
                ((f64::from(*v) - mean) * inverse * f64::from(*w) + f64::from(*b)) as f32
            };
            row.iter().zip(weight.iter().zip(bias)).map(normed).collect::<Vec<_>>()
        };
        Ok(x.chunks_exact(k).flat_map(row).collect())
    }

    /// CPU reference of the gradients of [`LayerNorm`](crate::tensor::LayerNorm), as close.
    ///
    /// # Errors
    /// As [`layer_norm`], of `x` and `dy`.
    #[cfg(feature = "train")]
    pub fn layer_norm_backward(
        x: &[f32],
        weight: &[f32],
        eps: f32,
        dy: &[f32],
    ) -> Result<LayerNormGradients<Vec<f32>, Vec<f32>>> {
        let [dx, dweight, dbias] = Norm { center: true, eps }.backward_cpu(x, weight, dy)?;
        Ok(LayerNormGradients { x: dx, weight: dweight, bias: dbias })
    }
}
