//! RMSNorm and `fake_quantize_activations` in one dispatch.

use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{encoder::Encoder, out::Out, tensor::Tensor},
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{CELLS, EXACT, REDUCE, Source, Work},
    },
    msl, params, wgsl,
};

params! { struct Params { tokens: u32, features: u32, add: u32, eps: f32, lambda: f32 } }

static RMS_NORM_FAKE_QUANTIZE: Kernel = Kernel::trusted(
    "rms_norm_fake_quantize",
    Params::FIELDS,
    &[read("x", Float("X")), read("gain", F32), read_write("y", Float("X"))],
    &[
        Source::wgsl(wgsl![
            REDUCE,
            CELLS,
            EXACT,
            "bitnet/absmax_scale",
            "shared/row_of_group",
            "shared/row",
            "shared/row_any",
            "shared/row_numbers",
            "shared/rms",
            "shared/gain_any",
            "shared/rms_row",
            "shared/flat",
            "bitnet/fake_quantize",
            "bitnet/rms_norm_fake_quantize"
        ])
        .workgroup_size([256, 1, 1])
        .tile([1, 1, 1])
        .constants(&[("HELD", 3)])
        .workgroup_bytes(1056)
        .work(Work::new(1, "elements", 8, 5)),
        Source::msl(msl![
            "shared/prelude",
            "shared/exact",
            "bitnet/absmax_scale",
            "shared/reduce",
            "shared/rms",
            "shared/rms_row",
            "bitnet/fake_quantize",
            "bitnet/rms_norm_fake_quantize"
        ])
        .workgroup_size([256, 1, 1])
        .tile([1, 1, 1])
        .workgroup_bytes(256)
        .work(Work::new(1, "elements", 8, 5)),
    ],
)
.flat();

pub(super) const KERNELS: &[&Kernel] = &[&RMS_NORM_FAKE_QUANTIZE];

/// Records the norm and the quantizer. λ and the shape of `y` have been checked.
///
/// # Errors
/// [`Error::Shape`] if the gain is not `[k]`.
pub(super) fn rms_norm_fake_quantize<T: Float>(
    encoder: &mut Encoder,
    x: &Tensor<T>,
    (gain, eps): (&Tensor<f32>, f32),
    lambda: f32,
    y: Out<'_, T>,
) -> Result<()> {
    let (tokens, features) = x.shape().as_matrix();
    if gain.shape().dims() != [features] {
        return Err(Error::Shape {
            op: "rms_norm_fake_quantize",
            what: "gain",
            expected: format!("[{features}]"),
            found: gain.shape(),
        });
    }
    let params = Params {
        tokens: tokens as u32,
        features: features as u32,
        add: y.adds().into(),
        eps,
        lambda,
    };
    encoder.dispatch(&RMS_NORM_FAKE_QUANTIZE, &params, &[x, gain, y.tensor()], [tokens, 1, 1])
}
