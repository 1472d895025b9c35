//! GEMM kernels of BitLinear without tensor cores.

use super::bitlinear_product::{forms, names};
use crate::{
    kernel::source::{EXACT, HOLE, Part, Source, Work},
    msl,
    ops::tensor::matmul_kernels::Forms,
    wgsl,
};

/// A turn makes 4 × 4 outputs per thread from `products / 16` elements of each.
const fn gemm(source: Source, products: u32) -> Source {
    source.workgroup_size([256, 1, 1]).tile([64, 64, 1]).constants(&[("STEP", 4)]).work(Work::new(
        products,
        "products",
        0,
        2 * products,
    ))
}

/// Tiles in workgroup memory, packed integer dot products.
pub static GEMM_INT8: Forms = forms(
    names!("bitlinear_gemm_int8"),
    "bitlinear_gemm",
    &[gemm(
        Source::wgsl(wgsl![
            "shared/ids",
            EXACT,
            "bitnet/tile_int8",
            HOLE,
            "bitnet/write_rows",
            "bitnet/bitlinear_gemm"
        ]),
        16 * 4 * 16,
    )
    .workgroup_bytes(8192)],
);

const GEMM_F16_PARTS: &[Part] = wgsl![
    "shared/ids",
    EXACT,
    "bitnet/tile_f16",
    HOLE,
    "bitnet/write_rows",
    "bitnet/bitlinear_gemm"
];

const GEMM_MSL: &[Part] = msl!["shared/prelude", "shared/exact", HOLE, "bitnet/bitlinear_gemm"];

/// On tensor cores: tiles of 64 rows and `tokens` tokens.
const fn gemm_msl(tokens: u32, workgroup_bytes: u32) -> Source {
    Source::msl(GEMM_MSL)
        .workgroup_size([128, 1, 1])
        .tile([64, tokens, 1])
        .workgroup_bytes(workgroup_bytes)
}

/// Tiles in workgroup memory, float arithmetic; in Metal on tensor cores.
pub static GEMM_F16: Forms = forms(
    names!("bitlinear_gemm_f16"),
    "bitlinear_gemm",
    &[gemm(Source::wgsl(GEMM_F16_PARTS), 16 * 8).workgroup_bytes(16_384), gemm_msl(64, 19_456)],
);

/// [`GEMM_F16`] with tiles of 32 tokens, where 64 would mostly be empty.
pub static GEMM_F16_NARROW: Forms = forms(
    names!("bitlinear_gemm_f16_narrow"),
    "bitlinear_gemm",
    &[
        gemm(Source::wgsl(GEMM_F16_PARTS), 8 * 8).tile([64, 32, 1]).workgroup_bytes(12_288),
        gemm_msl(32, 14_848),
    ],
);

/// In WGSL, 16 threads, each of which makes four rows of `tokens` tokens, two rows by one
/// multiplication; a turn is a word of each.
const fn direct(tokens: u32) -> Source {
    const PARTS: &[Part] = wgsl![
        "shared/ids",
        EXACT,
        "bitnet/unpack_int8",
        HOLE,
        "bitnet/write_rows",
        "bitnet/bitlinear_direct"
    ];
    let (pairs, bytes) = (2 * 16 * tokens, 4 * 4 + 16 * tokens);
    Source::wgsl(PARTS).workgroup_size([16, 1, 1]).tile([64, tokens, 1]).work(Work::new(
        pairs,
        "pairs of products",
        bytes,
        4 * pairs,
    ))
}

/// For software adapters, which pay for barriers and gain nothing by workgroup memory.
pub static DIRECT: Forms = forms(names!("bitlinear_direct"), "bitlinear_direct", &[direct(1)]);

/// [`DIRECT`] for eight tokens at a time.
pub static DIRECT_8: Forms = forms(names!("bitlinear_direct_8"), "bitlinear_direct", &[direct(8)]);
