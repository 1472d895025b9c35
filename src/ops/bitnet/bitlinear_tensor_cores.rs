//! GEMM kernels of BitLinear on tensor cores (cooperative matrices).

use super::bitlinear_product::{BINDINGS, PRODUCT, Params, names};
use crate::{
    kernel::{
        declaration::Kernel,
        needs::MatrixUnit,
        params::Params as _,
        source::{EXACT, HOLE, Part, Source, glsl, spirv},
    },
    ops::tensor::matmul_kernels::{Forms, UNIT_8, UNIT_16},
    wgsl,
};

/// The kernels of a tensor core, on the int8 layout.
pub struct OnUnit {
    /// Four matrices of tokens for a subgroup, so that a matrix of rows is read once for them. On a
    /// GPU tiles of 128 × 128.
    pub large: Forms,
    /// Two of them, in tiles of 64 × 64.
    pub small: Forms,
}

impl OnUnit {
    /// |Σ code·x| ≤ 2·128·k ≤ 2^24, as codes are 0 to 2: exact in the floats of a unit.
    pub const MAX_FEATURES: usize = 1 << 16;

    /// The unit that both of them multiply on.
    pub fn unit(&self) -> Option<MatrixUnit> {
        self.large[0].matrix_unit
    }
}

/// `side` × `side` outputs a workgroup, of which a subgroup makes 2 × `down` matrices; `depth`
/// columns of them are staged at a time. (A matrix has eight outputs for each of a subgroup's
/// threads, on either unit.)
const fn units(parts: &'static [Part], side: u32, down: u32, depth: u32) -> Source {
    let threads = side * side / (16 * down);
    let (staged, outputs, of_tokens) = (2 * side * (2 * depth + 16), 32 * threads, 8 * side);
    Source::wgsl(parts)
        .workgroup_size([threads, 1, 1])
        .tile([side, side, 1])
        .workgroup_bytes(staged + outputs + of_tokens)
}

const fn units_kernel(
    unit: MatrixUnit,
    names: [&'static str; 2],
    sources: &'static [Source],
) -> Forms {
    let entry = "bitlinear_gemm_units";
    [
        PRODUCT.plain(names[0], entry, sources).matrix_unit(unit),
        PRODUCT.finish(names[1], entry, sources).matrix_unit(unit),
    ]
}

const UNITS_16_PARTS: &[Part] = wgsl![
    "shared/ids",
    EXACT,
    "shared/lane",
    "tensor/matrix_16",
    HOLE,
    "bitnet/bitlinear_gemm_units"
];
const UNITS_8_PARTS: &[Part] = wgsl![
    "shared/ids",
    EXACT,
    "shared/lane",
    "tensor/matrix_8",
    HOLE,
    "bitnet/bitlinear_gemm_units"
];

/// For GPUs.
pub static UNITS_16: OnUnit = OnUnit {
    large: units_kernel(
        UNIT_16,
        names!("bitlinear_gemm_units_16_large"),
        &[units(UNITS_16_PARTS, 128, 4, 64).constants(&[("DOWN", 4), ("DEPTH", 64)])],
    ),
    small: units_kernel(
        UNIT_16,
        names!("bitlinear_gemm_units_16"),
        &[units(UNITS_16_PARTS, 64, 2, 64).constants(&[("DOWN", 2), ("DEPTH", 64)])],
    ),
};

/// [`UNITS_16`] for the matrices and the workgroup memory of software adapters. Tests run it;
/// `plan` does not choose it.
pub static UNITS_8: OnUnit = OnUnit {
    large: units_kernel(
        UNIT_8,
        names!("bitlinear_gemm_units_8_large"),
        &[units(UNITS_8_PARTS, 64, 4, 32).constants(&[("DOWN", 4), ("DEPTH", 32)])],
    ),
    small: units_kernel(
        UNIT_8,
        names!("bitlinear_gemm_units_8"),
        &[units(UNITS_8_PARTS, 64, 2, 64).constants(&[("DOWN", 2), ("DEPTH", 64)])],
    ),
};

/// The kernels of a tensor core for int8, for products as they are. They count on fused
/// multiply-adds.
pub struct OnInt8Unit {
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

impl OnInt8Unit {
    /// The unit that all of them multiply on.
    pub fn unit(&self) -> Option<MatrixUnit> {
        self.large[0].matrix_unit
    }
}

/// `rows` × `tokens` outputs a workgroup, of which a subgroup makes `down` × `across` matrices.
/// `depth` columns are staged at a time, which `teams` of subgroups share. Sums take their place in
/// the end.
const fn int8_units(
    source: Source,
    unit: MatrixUnit,
    [rows, tokens]: [u32; 2],
    [down, across]: [u32; 2],
    [depth, teams]: [u32; 2],
) -> Source {
    let subgroups = rows * tokens / (down * across * unit.size * unit.size);
    let (staged, sums) = ((rows + tokens) * (depth + 16), (teams - 1) * rows * tokens * 4);
    let most = if staged > sums { staged } else { sums };
    source
        .workgroup_size([subgroups * unit.lanes * teams, 1, 1])
        .tile([rows, tokens, 1])
        .workgroup_bytes(most + 4 * unit.size * unit.size)
}

/// A kernel on `int8_units`, by its name, and so its binaries. `lanes` is how elements lie: neighboring
/// rows of a lane, and lanes of a token.
macro_rules! int8_units_of_spirv {
    ($name:literal, $unit:expr, $tile:expr, [$down:literal, $across:literal], [$depth:literal, $teams:literal], lanes [$wide:literal, $lanes_across:literal]) => {
        [Kernel::trusted(
            $name,
            Params::FIELDS,
            BINDINGS.split_at(6).0,
            &[int8_units(
                Source::spirv(INT8_UNITS_PARTS, spirv!($name)),
                $unit,
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
        .entry("bitlinear_gemm_int8_units")
        .matrix_unit($unit)]
    };
}

const INT8_UNITS_PARTS: &[Part] =
    glsl!["shared/prelude", "shared/exact", "shared/outputs", "bitnet/bitlinear_gemm_int8_units"];

/// Of GPUs of NVIDIA.
const INT8_UNIT_16: MatrixUnit = MatrixUnit::int8(16, 32, 32);
/// Of software adapters, on which tests run the same text.
const INT8_UNIT_8: MatrixUnit = MatrixUnit::int8(8, 8, 8);

/// For GPUs.
pub static INT8_UNITS_16: OnInt8Unit = OnInt8Unit {
    large: int8_units_of_spirv!(
        "bitlinear_gemm_int8_units_16_large", INT8_UNIT_16, [128, 128], [4, 4], [128, 1], lanes [2, 4]
    ),
    small: int8_units_of_spirv!(
        "bitlinear_gemm_int8_units_16", INT8_UNIT_16, [128, 64], [2, 4], [128, 1], lanes [2, 4]
    ),
    deep: int8_units_of_spirv!(
        "bitlinear_gemm_int8_units_16_deep", INT8_UNIT_16, [64, 64], [2, 2], [256, 2], lanes [2, 4]
    ),
};

/// For tests on software adapters, in what workgroup memory they have.
pub static INT8_UNITS_8: OnInt8Unit = OnInt8Unit {
    large: int8_units_of_spirv!(
        "bitlinear_gemm_int8_units_8_large", INT8_UNIT_8, [64, 64], [2, 4], [64, 1], lanes [1, 8]
    ),
    small: int8_units_of_spirv!(
        "bitlinear_gemm_int8_units_8", INT8_UNIT_8, [64, 32], [2, 2], [64, 1], lanes [1, 8]
    ),
    deep: int8_units_of_spirv!(
        "bitlinear_gemm_int8_units_8_deep", INT8_UNIT_8, [32, 32], [2, 2], [128, 2], lanes [1, 8]
    ),
};
