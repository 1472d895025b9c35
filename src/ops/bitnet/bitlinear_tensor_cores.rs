//! GEMM kernels of BitLinear on tensor cores (cooperative matrices).

use super::bitlinear_product::{BINDINGS, PRODUCT, Params, names};
use crate::{
    kernel::{
        declaration::Kernel,
        needs::TensorCore,
        params::Params as _,
        source::{EXACT, HOLE, Part, Source, glsl, spirv},
    },
    ops::tensor::matmul_kernels::{CORE_8, CORE_16, Forms},
    wgsl,
};

/// The kernels of a tensor core, on the int8 layout.
pub struct OnTensorCore {
    /// Four matrices of tokens for a subgroup, so that a matrix of rows is read once for them. On a
    /// GPU tiles of 128 × 128.
    pub large: Forms,
    /// Two of them, in tiles of 64 × 64.
    pub small: Forms,
}

impl OnTensorCore {
    /// |Σ code·x| ≤ 2·128·k ≤ 2^24, as codes are 0 to 2: exact in the floats of a core.
    pub const MAX_FEATURES: usize = 1 << 16;

    /// The core that both of them multiply on.
    pub fn core(&self) -> Option<TensorCore> {
        self.large[0].tensor_core
    }
}

/// `side` × `side` outputs a workgroup, of which a subgroup makes 2 × `down` matrices; `depth`
/// columns of them are staged at a time. (A matrix has eight outputs for each of a subgroup's
/// threads, on either core.)
const fn cores(parts: &'static [Part], side: u32, down: u32, depth: u32) -> Source {
    let threads = side * side / (16 * down);
    let (staged, outputs, of_tokens) = (2 * side * (2 * depth + 16), 32 * threads, 8 * side);
    Source::wgsl(parts)
        .workgroup_size([threads, 1, 1])
        .tile([side, side, 1])
        .workgroup_bytes(staged + outputs + of_tokens)
}

const fn tensor_core_kernel(
    core: TensorCore,
    names: [&'static str; 2],
    sources: &'static [Source],
) -> Forms {
    let entry = "bitlinear_gemm_tensor_cores";
    [
        PRODUCT.plain(names[0], entry, sources).tensor_core(core),
        PRODUCT.finish(names[1], entry, sources).tensor_core(core),
    ]
}

const CORES_16_PARTS: &[Part] = wgsl![
    "shared/ids",
    EXACT,
    "shared/lane",
    "tensor/matrix_16",
    HOLE,
    "bitnet/bitlinear_gemm_tensor_cores"
];
const CORES_8_PARTS: &[Part] = wgsl![
    "shared/ids",
    EXACT,
    "shared/lane",
    "tensor/matrix_8",
    HOLE,
    "bitnet/bitlinear_gemm_tensor_cores"
];

/// For GPUs.
pub static CORES_16: OnTensorCore = OnTensorCore {
    large: tensor_core_kernel(
        CORE_16,
        names!("bitlinear_gemm_tensor_cores_16_large"),
        &[cores(CORES_16_PARTS, 128, 4, 64).constants(&[("DOWN", 4), ("DEPTH", 64)])],
    ),
    small: tensor_core_kernel(
        CORE_16,
        names!("bitlinear_gemm_tensor_cores_16"),
        &[cores(CORES_16_PARTS, 64, 2, 64).constants(&[("DOWN", 2), ("DEPTH", 64)])],
    ),
};

/// [`CORES_16`] for the matrices and the workgroup memory of software adapters. Tests run it;
/// `plan` does not choose it.
pub static CORES_8: OnTensorCore = OnTensorCore {
    large: tensor_core_kernel(
        CORE_8,
        names!("bitlinear_gemm_tensor_cores_8_large"),
        &[cores(CORES_8_PARTS, 64, 4, 32).constants(&[("DOWN", 4), ("DEPTH", 32)])],
    ),
    small: tensor_core_kernel(
        CORE_8,
        names!("bitlinear_gemm_tensor_cores_8"),
        &[cores(CORES_8_PARTS, 64, 2, 64).constants(&[("DOWN", 2), ("DEPTH", 64)])],
    ),
};

/// The kernels of a tensor core for int8, for products as they are. They count on fused
/// multiply-adds.
pub struct OnInt8TensorCore {
    /// Four matrices of tokens and four of rows for a subgroup, in tiles of 128 × 128 on a GPU.
    /// Registers have room for no more.
    pub large: [Kernel; 1],
    /// Half as many tokens, in tiles of 64 tokens × 128 rows.
    pub small: [Kernel; 1],
    /// Two by two, in tiles of 64 × 64. As many columns are staged as workgroup memory has room for,
    /// and two teams of subgroups share them. For so few tiles that each has a core of a GPU to
    /// itself.
    pub deep: [Kernel; 1],
}

impl OnInt8TensorCore {
    /// The core that all of them multiply on.
    pub fn core(&self) -> Option<TensorCore> {
        self.large[0].tensor_core
    }
}

/// `rows` × `tokens` outputs a workgroup, of which a subgroup makes `down` × `across` matrices.
/// `depth` columns are staged at a time, which `teams` of subgroups share. Sums take their place in
/// the end.
const fn int8_tensor_cores(
    source: Source,
    core: TensorCore,
    [rows, tokens]: [u32; 2],
    [down, across]: [u32; 2],
    [depth, teams]: [u32; 2],
) -> Source {
    let subgroups = rows * tokens / (down * across * core.size * core.size);
    let (staged, sums) = ((rows + tokens) * (depth + 16), (teams - 1) * rows * tokens * 4);
    let most = if staged > sums { staged } else { sums };
    source
        .workgroup_size([subgroups * core.lanes * teams, 1, 1])
        .tile([rows, tokens, 1])
        .workgroup_bytes(most + 4 * core.size * core.size)
}

/// A kernel on `int8_tensor_cores`, by its name, and so its binaries. `lanes` is how elements lie: neighboring
/// rows of a lane, and lanes of a token.
macro_rules! int8_tensor_cores_of_spirv {
    ($name:literal, $core:expr, $tile:expr, [$down:literal, $across:literal], [$depth:literal, $teams:literal], lanes [$wide:literal, $lanes_across:literal]) => {
        [Kernel::trusted(
            $name,
            Params::FIELDS,
            BINDINGS.split_at(6).0,
            &[int8_tensor_cores(
                Source::spirv(INT8_CORES_PARTS, spirv!($name)),
                $core,
                $tile,
                [$down, $across],
                [$depth, $teams],
            )
            .constants(&[
                ("DOWN", $down),
                ("ACROSS", $across),
                ("DEPTH", $depth),
                ("TEAMS", $teams),
                ("WIDE", $wide),
                ("LANES_ACROSS", $lanes_across),
                ("BINDING", 5),
            ])],
        )
        .entry("bitlinear_gemm_int8_tensor_cores")
        .tensor_core($core)]
    };
}

const INT8_CORES_PARTS: &[Part] = glsl![
    "shared/prelude",
    "shared/exact",
    "shared/outputs",
    "bitnet/bitlinear_gemm_int8_tensor_cores"
];

/// Of GPUs of NVIDIA.
pub(super) const INT8_CORE_16: TensorCore = TensorCore::int8(16, 32, 32);
/// Of software adapters, on which tests run the same text.
pub(super) const INT8_CORE_8: TensorCore = TensorCore::int8(8, 8, 8);

/// For GPUs.
pub static INT8_CORES_16: OnInt8TensorCore = OnInt8TensorCore {
    large: int8_tensor_cores_of_spirv!(
        "bitlinear_gemm_int8_tensor_cores_16_large", INT8_CORE_16, [128, 128], [4, 4], [128, 1], lanes [2, 4]
    ),
    small: int8_tensor_cores_of_spirv!(
        "bitlinear_gemm_int8_tensor_cores_16", INT8_CORE_16, [128, 64], [2, 4], [128, 1], lanes [2, 4]
    ),
    deep: int8_tensor_cores_of_spirv!(
        "bitlinear_gemm_int8_tensor_cores_16_deep", INT8_CORE_16, [64, 64], [2, 2], [256, 2], lanes [2, 4]
    ),
};

/// For tests on software adapters, in what workgroup memory they have.
pub static INT8_CORES_8: OnInt8TensorCore = OnInt8TensorCore {
    large: int8_tensor_cores_of_spirv!(
        "bitlinear_gemm_int8_tensor_cores_8_large", INT8_CORE_8, [64, 64], [2, 4], [64, 1], lanes [1, 8]
    ),
    small: int8_tensor_cores_of_spirv!(
        "bitlinear_gemm_int8_tensor_cores_8", INT8_CORE_8, [64, 32], [2, 2], [64, 1], lanes [1, 8]
    ),
    deep: int8_tensor_cores_of_spirv!(
        "bitlinear_gemm_int8_tensor_cores_8_deep", INT8_CORE_8, [32, 32], [2, 2], [128, 2], lanes [1, 8]
    ),
};
