//! The kernels of BitLinear; `plan` chooses among them.

use crate::{
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::Params as _,
        source::{Part, REDUCE, Source, Work},
    },
    msl, params, wgsl,
};

params! { pub struct Params { pub rows: u32, pub tokens: u32, pub words: u32, pub add: u32 } }
params! {
    pub struct GroupedParams { pub rows: u32, pub tokens: u32, pub words: u32, pub groups: u32, pub group_words: u32, pub add: u32 }
}

/// All of them.
pub const KERNELS: &[&Kernel] =
    &[&GEMV_INT8, &GEMV_INT8_TALL, &GEMV_HALF, &GEMV_HALF_SOFTWARE, &GEMV_BIASED, &GEMM_INT8, &GEMM_HALF, &GROUPED];

const BINDINGS: &[Binding] =
    &[read("codes", U32), read("w_scale", F32), read("x", U32), read("x_scale", F32), read("x_sum", I32), read_write("y", Float("Y"))];

const fn kernel(name: &'static str, entry: &'static str, sources: &'static [Source]) -> Kernel {
    Kernel::trusted(name, Params::FIELDS, BINDINGS, sources).entry(entry)
}

/// `threads` threads, of which 32 lanes make `rows` rows (teams of other sizes take several turns or share the rows); a turn of the loop is
/// `weights` weights.
const fn gemv(source: Source, threads: u32, rows: u32, weights: u32, bytes: u32) -> Source {
    source.workgroup_size([threads, 1, 1]).tile([threads / 32 * rows, 1, 1]).work(Work::new(weights, "weights", bytes, 2 * weights))
}

const GEMV_INT8_PARTS: &[Part] = wgsl![REDUCE, "shared/exact", "bitnet/dot_int8", "bitnet/bitlinear_gemv"];
const GEMV_HALF_PARTS: &[Part] = wgsl![REDUCE, "shared/exact", "bitnet/dot_half", "bitnet/bitlinear_gemv"];

/// Packed integer dot products: TURNS × ROWS pairs of words a turn.
pub static GEMV_INT8: Kernel = kernel(
    "bitlinear_gemv_int8",
    "bitlinear_gemv",
    &[gemv(Source::wgsl(GEMV_INT8_PARTS), 256, 1, 4 * 2 * 16, 4 * 2 * 20).constants(&[("ROWS", 1), ("TURNS", 4)]).workgroup_bytes(1056)],
);

/// For matrices of so many rows that all of the GPU is busy anyway.
pub static GEMV_INT8_TALL: Kernel = kernel(
    "bitlinear_gemv_int8_tall",
    "bitlinear_gemv",
    &[gemv(Source::wgsl(GEMV_INT8_PARTS), 256, 4, 4 * 2 * 4 * 16, 4 * 2 * 32)
        .constants(&[("ROWS", 4), ("TURNS", 4)])
        .workgroup_bytes(1152)],
);

/// Masked codes are subnormal halves: 8 rows × a word of 16 codes a turn.
pub static GEMV_HALF: Kernel = kernel(
    "bitlinear_gemv_half",
    "bitlinear_gemv",
    &[
        gemv(Source::wgsl(GEMV_HALF_PARTS), 64, 8, 8 * 16, 64).constants(&[("ROWS", 8), ("TURNS", 1)]).workgroup_bytes(320),
        gemv(Source::msl(msl!["shared/prelude", "shared/exact", "bitnet/dot_half", "bitnet/bitlinear_gemv"]), 64, 8, 8 * 16, 64)
            .constants(&[("ROWS", 8)]),
    ],
);

/// For software adapters: more rows per workgroup, so that there are fewer of them and every thread scales a row.
pub static GEMV_HALF_SOFTWARE: Kernel = kernel(
    "bitlinear_gemv_half_software",
    "bitlinear_gemv",
    &[gemv(Source::wgsl(GEMV_HALF_PARTS), 64, 32, 8 * 16, 64).constants(&[("ROWS", 8), ("TURNS", 1)]).workgroup_bytes(512)],
);

/// For devices that flush subnormal halves.
pub static GEMV_BIASED: Kernel = kernel(
    "bitlinear_gemv_biased",
    "bitlinear_gemv",
    &[
        gemv(Source::wgsl(wgsl![REDUCE, "shared/exact", "bitnet/dot_biased", "bitnet/bitlinear_gemv"]), 64, 8, 8 * 16, 64)
            .constants(&[("ROWS", 8), ("TURNS", 1)])
            .workgroup_bytes(320),
        gemv(Source::msl(msl!["shared/prelude", "shared/exact", "bitnet/dot_biased", "bitnet/bitlinear_gemv"]), 64, 8, 8 * 16, 64)
            .constants(&[("ROWS", 8)]),
    ],
);

/// A turn makes 4 × 4 outputs per thread from `products / 16` elements of each.
const fn gemm(source: Source, products: u32) -> Source {
    source.workgroup_size([256, 1, 1]).tile([64, 64, 1]).constants(&[("STEP", 4)]).work(Work::new(products, "products", 0, 2 * products))
}

/// Tiles in workgroup memory, packed integer dot products.
pub static GEMM_INT8: Kernel = kernel(
    "bitlinear_gemm_int8",
    "bitlinear_gemm",
    &[gemm(Source::wgsl(wgsl!["shared/ids", "shared/exact", "bitnet/tile_int8", "bitnet/bitlinear_gemm"]), 16 * 4 * 16)
        .workgroup_bytes(8192)],
);

/// Tiles in workgroup memory, float arithmetic; in Metal on matrix units.
pub static GEMM_HALF: Kernel = kernel(
    "bitlinear_gemm_half",
    "bitlinear_gemm",
    &[
        gemm(Source::wgsl(wgsl!["shared/ids", "shared/exact", "bitnet/tile_half", "bitnet/bitlinear_gemm"]), 16 * 8)
            .workgroup_bytes(16_384),
        Source::msl(msl!["shared/prelude", "shared/exact", "bitnet/bitlinear_gemm"])
            .workgroup_size([128, 1, 1])
            .tile([64, 64, 1])
            .workgroup_bytes(19_456),
    ],
);

/// Scales by groups of columns; a word of a row a turn.
pub static GROUPED: Kernel = Kernel::trusted(
    "bitlinear_grouped",
    GroupedParams::FIELDS,
    &[read("codes", U32), read("w_scale", F32), read("x", U32), read("x_scale", F32), read_write("y", Float("Y"))],
    &[Source::wgsl(wgsl![REDUCE, "shared/exact", "bitnet/dot_int8", "bitnet/bitlinear_grouped"])
        .workgroup_size([64, 1, 1])
        .tile([8, 1, 1])
        .workgroup_bytes(256)
        .work(Work::new(16, "weights", 20, 32))],
);
