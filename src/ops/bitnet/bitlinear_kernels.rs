//! The list of BitLinear's kernels, among which `plan` chooses, and the quotient after them.

use super::{
    bitlinear_gemm::{DIRECT, DIRECT_8, GEMM_F16, GEMM_F16_NARROW, GEMM_INT8},
    bitlinear_gemv::{
        GEMV_BIASED, GEMV_BIASED_4, GEMV_F16, GEMV_F16_2, GEMV_F16_4, GEMV_INT8, GEMV_INT8_2,
        GEMV_INT8_4, GEMV_INT8_4_BUSY, GEMV_INT8_8, GEMV_INT8_8_BUSY, GEMV_INT8_TALL,
    },
    bitlinear_tensor_cores::{CORES_8, CORES_16, INT8_CORES_8, INT8_CORES_16},
};
use crate::{
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{EXACT, Source},
    },
    msl,
    ops::tensor::epilogue,
    wgsl,
};

/// All of them.
pub const KERNELS: &[&Kernel] = &[
    &GEMV_INT8[0],
    &GEMV_INT8[1],
    &GEMV_INT8_TALL[0],
    &GEMV_INT8_TALL[1],
    &GEMV_INT8_2[0],
    &GEMV_INT8_2[1],
    &GEMV_INT8_4[0],
    &GEMV_INT8_4[1],
    &GEMV_INT8_4_BUSY[0],
    &GEMV_INT8_4_BUSY[1],
    &GEMV_INT8_8[0],
    &GEMV_INT8_8[1],
    &GEMV_INT8_8_BUSY[0],
    &GEMV_INT8_8_BUSY[1],
    &GEMV_F16[0],
    &GEMV_F16[1],
    &GEMV_F16_2[0],
    &GEMV_F16_2[1],
    &GEMV_F16_4[0],
    &GEMV_F16_4[1],
    &GEMV_BIASED[0],
    &GEMV_BIASED[1],
    &GEMV_BIASED_4[0],
    &GEMV_BIASED_4[1],
    &GEMM_INT8[0],
    &GEMM_INT8[1],
    &GEMM_F16[0],
    &GEMM_F16[1],
    &GEMM_F16_NARROW[0],
    &GEMM_F16_NARROW[1],
    &CORES_16.large[0],
    &CORES_16.large[1],
    &CORES_16.small[0],
    &CORES_16.small[1],
    &CORES_8.large[0],
    &CORES_8.large[1],
    &CORES_8.small[0],
    &CORES_8.small[1],
    &INT8_CORES_16.large[0],
    &INT8_CORES_16.small[0],
    &INT8_CORES_16.deep[0],
    &INT8_CORES_8.large[0],
    &INT8_CORES_8.small[0],
    &INT8_CORES_8.deep[0],
    &DIRECT[0],
    &DIRECT[1],
    &DIRECT_8[0],
    &DIRECT_8[1],
    &QUOTIENT,
];

/// The rest of a product with per-group scales: the quotient and an epilogue. Its parameters are
/// those of `finish`.
pub static QUOTIENT: Kernel = Kernel::trusted(
    "bitlinear_quotient",
    epilogue::Params::FIELDS,
    &[read("x", F32), read("bias", Float("Y")), read_write("y", Float("Y")), read("x_scale", F32)],
    &[
        Source::wgsl(wgsl![
            "shared/ids",
            "shared/flat",
            EXACT,
            "shared/exp",
            "shared/sigmoid",
            "shared/normal",
            "tensor/activated",
            "bitnet/finish_quotient",
            "tensor/finish"
        ]),
        Source::msl(msl![
            "shared/prelude",
            "shared/exact",
            "shared/exp",
            "shared/sigmoid",
            "shared/normal",
            "tensor/activated",
            "bitnet/finish_quotient",
            "tensor/finish"
        ]),
    ],
)
.entry("finish")
.flat();
