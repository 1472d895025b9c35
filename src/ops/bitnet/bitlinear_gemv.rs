//! GEMV kernels of BitLinear: of one token, and of several in a pass.

use super::bitlinear_product::{forms, names};
use crate::{
    kernel::source::{EXACT, HOLE, Part, REDUCE, Source, Work},
    msl,
    ops::tensor::matmul_kernels::Forms,
    wgsl,
};

/// `threads` threads, of which 32 lanes make `rows` rows (teams of other sizes take several turns
/// or share the rows); a turn of the loop is `weights` weights.
const fn gemv(source: Source, threads: u32, rows: u32, weights: u32, bytes: u32) -> Source {
    source.workgroup_size([threads, 1, 1]).tile([threads / 32 * rows, 1, 1]).work(Work::new(
        weights,
        "weights",
        bytes,
        2 * weights,
    ))
}

const GEMV_INT8_PARTS: &[Part] =
    wgsl![REDUCE, EXACT, "bitnet/dot_int8", "bitnet/row_sums", HOLE, "bitnet/bitlinear_gemv"];
const GEMV_F16_PARTS: &[Part] =
    wgsl![REDUCE, EXACT, "bitnet/dot_f16", "bitnet/row_sums", HOLE, "bitnet/bitlinear_gemv"];

/// Packed integer dot products: TURNS × ROWS pairs of words a turn. Two teams share two rows.
pub static GEMV_INT8: Forms = forms(
    names!("bitlinear_gemv_int8"),
    "bitlinear_gemv",
    &[gemv(Source::wgsl(GEMV_INT8_PARTS), 256, 2, 2 * 2 * 2 * 16, 2 * 2 * 24)
        .tile([8, 1, 1])
        .constants(&[("ROWS", 2), ("TURNS", 2), ("SPLIT", 2)])
        .workgroup_bytes(1088)],
);

/// For matrices with enough rows to keep the whole GPU busy.
pub static GEMV_INT8_TALL: Forms = forms(
    names!("bitlinear_gemv_int8_tall"),
    "bitlinear_gemv",
    &[gemv(Source::wgsl(GEMV_INT8_PARTS), 256, 4, 4 * 2 * 4 * 16, 4 * 2 * 32)
        .constants(&[("ROWS", 4), ("TURNS", 4), ("SPLIT", 1)])
        .workgroup_bytes(1152)],
);

/// Masked codes are subnormal f16 numbers: 8 rows × a word of 16 codes a turn.
pub static GEMV_F16: Forms = forms(
    names!("bitlinear_gemv_f16"),
    "bitlinear_gemv",
    &[
        gemv(Source::wgsl(GEMV_F16_PARTS), 64, 8, 8 * 16, 64)
            .constants(&[("ROWS", 8), ("TURNS", 1), ("SPLIT", 1)])
            .workgroup_bytes(320),
        gemv(
            Source::msl(msl![
                "shared/prelude",
                "shared/exact",
                "bitnet/dot_f16",
                "shared/share_sums",
                HOLE,
                "bitnet/bitlinear_gemv"
            ]),
            64,
            8,
            8 * 16,
            64,
        )
        .constants(&[("ROWS", 8)]),
    ],
);

/// For devices that flush subnormal f16 numbers.
pub static GEMV_BIASED: Forms = forms(
    names!("bitlinear_gemv_biased"),
    "bitlinear_gemv",
    &[
        gemv(
            Source::wgsl(wgsl![
                REDUCE,
                EXACT,
                "bitnet/dot_biased",
                "bitnet/row_sums",
                HOLE,
                "bitnet/bitlinear_gemv"
            ]),
            64,
            8,
            8 * 16,
            64,
        )
        .constants(&[("ROWS", 8), ("TURNS", 1), ("SPLIT", 1)])
        .workgroup_bytes(320),
        gemv(
            Source::msl(msl![
                "shared/prelude",
                "shared/exact",
                "bitnet/dot_biased",
                "shared/share_sums",
                HOLE,
                "bitnet/bitlinear_gemv"
            ]),
            64,
            8,
            8 * 16,
            64,
        )
        .constants(&[("ROWS", 8)]),
    ],
);

/// In WGSL `threads` threads, of which `split` teams of 32 lanes share four rows of `tokens`
/// tokens; a turn of the loop is `turns` times `words` words of four rows. Its workgroup memory has
/// a number per thread in the portable form of reductions, and four sums per eight lanes and token.
const fn several(
    parts: &'static [Part],
    threads: u32,
    tokens: u32,
    [turns, words, split]: [u32; 3],
) -> Source {
    let (pieces, products) = (threads / 32, turns * words * 4 * 16 * tokens);
    Source::wgsl(parts)
        .workgroup_size([threads, 1, 1])
        .tile([pieces / split * 4, tokens, 1])
        .workgroup_bytes(4 * threads + 16 * pieces * 8 * tokens)
        .work(Work::new(products, "products", turns * words * (16 + 16 * tokens), 2 * products))
}

/// In Metal 64 threads, of which 32 lanes make `rows` rows of `tokens` tokens; a turn of the loop
/// is a word of each, activations in f16.
const fn several_msl(parts: &'static [Part], rows: u32, tokens: u32) -> Source {
    let products = 16 * rows * tokens;
    Source::msl(parts).workgroup_size([64, 1, 1]).tile([2 * rows, tokens, 1]).work(Work::new(
        products,
        "products",
        4 * rows + 32 * tokens,
        2 * products,
    ))
}

const fn several_kernel(names: [&'static str; 2], sources: &'static [Source]) -> Forms {
    forms(names, "bitlinear_gemv_several", sources)
}

const SEVERAL_INT8: &[Part] =
    wgsl![REDUCE, EXACT, "bitnet/dot_int8", HOLE, "bitnet/bitlinear_gemv_several"];
const SEVERAL_F16: &[Part] =
    wgsl![REDUCE, EXACT, "bitnet/dot_f16", HOLE, "bitnet/bitlinear_gemv_several"];
const SEVERAL_F16_MSL: &[Part] = msl![
    "shared/prelude",
    "shared/exact",
    "bitnet/dot_f16",
    "shared/share_sums",
    HOLE,
    "bitnet/bitlinear_gemv_several"
];

/// Two tokens at a time; two teams share four rows.
pub static GEMV_INT8_2: Forms = several_kernel(
    names!("bitlinear_gemv_int8_2"),
    &[several(SEVERAL_INT8, 128, 2, [2, 2, 2]).constants(&[("TURNS", 2), ("SPLIT", 2)])],
);

/// Four tokens at a time; four teams share four rows, so that a large GPU is busy.
pub static GEMV_INT8_4: Forms = several_kernel(
    names!("bitlinear_gemv_int8_4"),
    &[several(SEVERAL_INT8, 128, 4, [1, 2, 4]).constants(&[("TURNS", 1), ("SPLIT", 4)])],
);

/// For enough rows and tokens to keep it busy.
pub static GEMV_INT8_4_BUSY: Forms = several_kernel(
    names!("bitlinear_gemv_int8_4_busy"),
    &[several(SEVERAL_INT8, 128, 4, [2, 2, 1]).constants(&[("TURNS", 2), ("SPLIT", 1)])],
);

/// Eight tokens at a time, as [`GEMV_INT8_4`].
pub static GEMV_INT8_8: Forms = several_kernel(
    names!("bitlinear_gemv_int8_8"),
    &[several(SEVERAL_INT8, 128, 8, [1, 2, 4]).constants(&[("TURNS", 1), ("SPLIT", 4)])],
);

/// Eight tokens at a time, as [`GEMV_INT8_4_BUSY`].
pub static GEMV_INT8_8_BUSY: Forms = several_kernel(
    names!("bitlinear_gemv_int8_8_busy"),
    &[several(SEVERAL_INT8, 128, 8, [2, 2, 1]).constants(&[("TURNS", 2), ("SPLIT", 1)])],
);

/// Masked codes, each met by two tokens.
pub static GEMV_F16_2: Forms = several_kernel(
    names!("bitlinear_gemv_f16_2"),
    &[
        several(SEVERAL_F16, 64, 2, [1, 1, 1]).constants(&[("TURNS", 1), ("SPLIT", 1)]),
        several_msl(SEVERAL_F16_MSL, 8, 2).constants(&[("ROWS", 8)]),
    ],
);

/// Each met by four.
pub static GEMV_F16_4: Forms = several_kernel(
    names!("bitlinear_gemv_f16_4"),
    &[
        several(SEVERAL_F16, 64, 4, [1, 1, 1]).constants(&[("TURNS", 1), ("SPLIT", 1)]),
        several_msl(SEVERAL_F16_MSL, 8, 4).constants(&[("ROWS", 8)]),
    ],
);

/// For devices that flush subnormal f16 numbers.
pub static GEMV_BIASED_4: Forms = several_kernel(
    names!("bitlinear_gemv_biased_4"),
    &[
        several(
            wgsl![REDUCE, EXACT, "bitnet/dot_biased", HOLE, "bitnet/bitlinear_gemv_several"],
            64,
            4,
            [1, 1, 1],
        )
        .constants(&[("TURNS", 1), ("SPLIT", 1)]),
        several_msl(
            msl![
                "shared/prelude",
                "shared/exact",
                "bitnet/dot_biased",
                "shared/share_sums",
                HOLE,
                "bitnet/bitlinear_gemv_several"
            ],
            8,
            4,
        )
        .constants(&[("ROWS", 8)]),
    ],
);
