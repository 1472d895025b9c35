//! The kernels of BitLinear; `plan` chooses among them.

use crate::{
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        needs::MatrixUnit,
        params::{Fields, Params as _},
        source::{EXACT, EXACT_GLSL, HOLE, Part, REDUCE, Source, Work, glsl, spirv},
    },
    msl,
    ops::tensor::{
        epilogue::{self, Filling, finished},
        matmul_kernels::{Forms, UNIT_8, UNIT_16},
    },
    params, wgsl,
};

params! { pub struct Params { pub rows: u32, pub tokens: u32, pub words: u32, pub add: u32 } }
params! {
    pub struct FinishParams { pub rows: u32, pub tokens: u32, pub words: u32, pub add: u32, pub biased: u32, pub activation: u32 }
}

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
    &GEMV_HALF[0],
    &GEMV_HALF[1],
    &GEMV_HALF_2[0],
    &GEMV_HALF_2[1],
    &GEMV_HALF_4[0],
    &GEMV_HALF_4[1],
    &GEMV_BIASED[0],
    &GEMV_BIASED[1],
    &GEMV_BIASED_4[0],
    &GEMV_BIASED_4[1],
    &GEMM_INT8[0],
    &GEMM_INT8[1],
    &GEMM_HALF[0],
    &GEMM_HALF[1],
    &GEMM_HALF_NARROW[0],
    &GEMM_HALF_NARROW[1],
    &UNITS_16.large[0],
    &UNITS_16.large[1],
    &UNITS_16.small[0],
    &UNITS_16.small[1],
    &UNITS_8.large[0],
    &UNITS_8.large[1],
    &UNITS_8.small[0],
    &UNITS_8.small[1],
    &INT8_UNITS_16.large[0],
    &INT8_UNITS_16.small[0],
    &INT8_UNITS_16.deep[0],
    &INT8_UNITS_8.large[0],
    &INT8_UNITS_8.small[0],
    &INT8_UNITS_8.deep[0],
    &DIRECT[0],
    &DIRECT[1],
    &DIRECT_8[0],
    &DIRECT_8[1],
    &QUOTIENT,
];

const BINDINGS: &[Binding] = &[
    read("codes", U32),
    read("w_scale", F32),
    read("x", U32),
    read("x_scale", F32),
    read("x_sum", I32),
    read_write("y", Float("Y")),
    read("bias", Float("Y")),
];

/// What the two forms of a product are declared by: as it is, and finished by a bias, which is the
/// last binding, and an activation.
pub(super) struct Product {
    pub params: [Fields; 2],
    pub bindings: &'static [Binding],
    pub fillings: [Filling; 2],
}

impl Product {
    const fn plain(
        &self,
        name: &'static str,
        entry: &'static str,
        sources: &'static [Source],
    ) -> Kernel {
        let bindings = self.bindings.split_at(self.bindings.len() - 1).0;
        self.fillings[0].fill(Kernel::trusted(name, self.params[0], bindings, sources).entry(entry))
    }

    const fn finish(
        &self,
        name: &'static str,
        entry: &'static str,
        sources: &'static [Source],
    ) -> Kernel {
        self.fillings[1]
            .fill(Kernel::trusted(name, self.params[1], self.bindings, sources).entry(entry))
    }

    pub const fn forms(
        &self,
        names: [&'static str; 2],
        entry: &'static str,
        sources: &'static [Source],
    ) -> Forms {
        [self.plain(names[0], entry, sources), self.finish(names[1], entry, sources)]
    }
}

/// Products of integers as they are, whose kernels bring their parameters.
pub(super) const PRODUCT_PLAIN: Filling =
    Filling { wgsl: wgsl!["bitnet/product_plain"], msl: msl!["tensor/product_plain"] };

/// Weights with a scale a row.
const PRODUCT: Product = {
    const PARAMS: Part =
        Part::new("Params", "struct Params { rows: u32, tokens: u32, words: u32, add: u32 }\n");
    const MSL_PARAMS: Part =
        Part::new("Params", "struct Params { uint rows, tokens, words, add; };\n");
    const FINISH_PARAMS: Part = Part::new(
        "Params",
        "struct Params { rows: u32, tokens: u32, words: u32, add: u32, biased: u32, activation: u32 }\n",
    );
    const MSL_FINISH_PARAMS: Part = Part::new(
        "Params",
        "struct Params { uint rows, tokens, words, add, biased, activation; };\n",
    );
    const PLAIN: Filling = Filling {
        wgsl: wgsl![PARAMS, "bitnet/product_plain"],
        msl: msl![MSL_PARAMS, "tensor/product_plain"],
    };
    const FINISH: Filling = finished!("Y", 6, 7, wgsl [FINISH_PARAMS, "bitnet/product_finish"], msl [MSL_FINISH_PARAMS]);
    Product {
        params: [Params::FIELDS, FinishParams::FIELDS],
        bindings: BINDINGS,
        fillings: [PLAIN, FINISH],
    }
};

const fn forms(names: [&'static str; 2], entry: &'static str, sources: &'static [Source]) -> Forms {
    PRODUCT.forms(names, entry, sources)
}

/// The names of both forms.
macro_rules! names {
    ($name:literal) => {
        [$name, concat!($name, "_finish")]
    };
}

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
const GEMV_HALF_PARTS: &[Part] =
    wgsl![REDUCE, EXACT, "bitnet/dot_half", "bitnet/row_sums", HOLE, "bitnet/bitlinear_gemv"];

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

/// Masked codes are subnormal f16: 8 rows × a word of 16 codes a turn.
pub static GEMV_HALF: Forms = forms(
    names!("bitlinear_gemv_half"),
    "bitlinear_gemv",
    &[
        gemv(Source::wgsl(GEMV_HALF_PARTS), 64, 8, 8 * 16, 64)
            .constants(&[("ROWS", 8), ("TURNS", 1), ("SPLIT", 1)])
            .workgroup_bytes(320),
        gemv(
            Source::msl(msl![
                "shared/prelude",
                "shared/exact",
                "bitnet/dot_half",
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

/// For devices that flush subnormal f16.
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
const SEVERAL_HALF: &[Part] =
    wgsl![REDUCE, EXACT, "bitnet/dot_half", HOLE, "bitnet/bitlinear_gemv_several"];
const SEVERAL_HALF_MSL: &[Part] = msl![
    "shared/prelude",
    "shared/exact",
    "bitnet/dot_half",
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
pub static GEMV_HALF_2: Forms = several_kernel(
    names!("bitlinear_gemv_half_2"),
    &[
        several(SEVERAL_HALF, 64, 2, [1, 1, 1]).constants(&[("TURNS", 1), ("SPLIT", 1)]),
        several_msl(SEVERAL_HALF_MSL, 8, 2).constants(&[("ROWS", 8)]),
    ],
);

/// Each met by four.
pub static GEMV_HALF_4: Forms = several_kernel(
    names!("bitlinear_gemv_half_4"),
    &[
        several(SEVERAL_HALF, 64, 4, [1, 1, 1]).constants(&[("TURNS", 1), ("SPLIT", 1)]),
        several_msl(SEVERAL_HALF_MSL, 8, 4).constants(&[("ROWS", 8)]),
    ],
);

/// For devices that flush subnormal f16.
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

const GEMM_HALF_PARTS: &[Part] = wgsl![
    "shared/ids",
    EXACT,
    "bitnet/tile_half",
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
pub static GEMM_HALF: Forms = forms(
    names!("bitlinear_gemm_half"),
    "bitlinear_gemm",
    &[gemm(Source::wgsl(GEMM_HALF_PARTS), 16 * 8).workgroup_bytes(16_384), gemm_msl(64, 19_456)],
);

/// [`GEMM_HALF`] with tiles of 32 tokens, where 64 would mostly be empty.
pub static GEMM_HALF_NARROW: Forms = forms(
    names!("bitlinear_gemm_half_narrow"),
    "bitlinear_gemm",
    &[
        gemm(Source::wgsl(GEMM_HALF_PARTS), 8 * 8).tile([64, 32, 1]).workgroup_bytes(12_288),
        gemm_msl(32, 14_848),
    ],
);

/// The kernels of a tensor core, on the int8 layout.
pub struct OnUnit {
    /// Four matrices of tokens for a subgroup, so that a matrix of rows is read once for them. On a
    /// GPU tiles of 128 × 128.
    pub large: Forms,
    /// Two of them, in tiles of 64 × 64.
    pub small: Forms,
}

impl OnUnit {
    /// |Σ code·x| ≤ 2·128·k ≤ 2^24, as codes are 0 to 2: exact in the floats of tensor cores.
    pub const MAX_FEATURES: usize = 1 << 16;

    /// The tensor cores that both of them use.
    pub fn unit(&self) -> Option<MatrixUnit> {
        self.large[0].matrix_unit
    }
}

/// `side` × `side` outputs a workgroup, of which a subgroup makes 2 × `down` matrices; `depth`
/// columns of them are staged at a time. (A matrix has eight outputs for each of a subgroup's
/// threads, on either kind of tensor core.)
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

/// The kernels of a tensor core for int8, for products as they are.
pub struct OnInt8Unit {
    /// Tiles of 128 × 128 on a GPU.
    pub large: [Kernel; 1],
    /// Of 64 × 64.
    pub small: [Kernel; 1],
    /// Of 64 × 64, with as many columns at a time as workgroup memory has room for: for so few
    /// tiles that each has a core of a GPU to itself.
    pub deep: [Kernel; 1],
}

impl OnInt8Unit {
    /// The tensor cores that all of them use.
    pub fn unit(&self) -> Option<MatrixUnit> {
        self.large[0].matrix_unit
    }
}

/// `side` × `side` outputs a workgroup, of which a subgroup of `lanes` makes `down` × `across`
/// matrices of `size` × `size`; `depth` columns of them are staged at a time, and then, in their
/// place, outputs.
const fn int8_units(
    source: Source,
    unit: MatrixUnit,
    side: u32,
    [down, across]: [u32; 2],
    depth: u32,
) -> Source {
    let subgroups = side * side / (down * across * unit.size * unit.size);
    let (staged, outputs) =
        (2 * side * (depth + 16), subgroups * unit.size * (across * unit.size + 4) * 4);
    let most = if staged > outputs { staged } else { outputs };
    source
        .workgroup_size([subgroups * unit.lanes, 1, 1])
        .tile([side, side, 1])
        .workgroup_bytes(most + 8 * side)
}

/// A kernel on `int8_units`, by its name, and so its binaries.
macro_rules! int8_units_of_spirv {
    ($name:literal, $unit:expr, $side:literal, [$down:literal, $across:literal], $depth:literal) => {
        [Kernel::trusted(
            $name,
            Params::FIELDS,
            BINDINGS.split_at(6).0,
            &[int8_units(
                Source::spirv(INT8_UNITS_PARTS, spirv!($name)),
                $unit,
                $side,
                [$down, $across],
                $depth,
            )
            .constants(&[("DOWN", $down), ("ACROSS", $across), ("DEPTH", $depth)])],
        )
        .entry("bitlinear_gemm_int8_units")
        .matrix_unit($unit)]
    };
}

const INT8_UNITS_PARTS: &[Part] =
    glsl!["shared/prelude", EXACT_GLSL, "bitnet/bitlinear_gemm_int8_units"];

/// Of GPUs of NVIDIA.
const INT8_UNIT_16: MatrixUnit = MatrixUnit::int8(16, 32, 32);
/// Of software adapters, on which tests run the same source.
const INT8_UNIT_8: MatrixUnit = MatrixUnit::int8(8, 8, 8);

/// For GPUs.
pub static INT8_UNITS_16: OnInt8Unit = OnInt8Unit {
    large: int8_units_of_spirv!(
        "bitlinear_gemm_int8_units_16_large",
        INT8_UNIT_16,
        128,
        [2, 4],
        128
    ),
    small: int8_units_of_spirv!("bitlinear_gemm_int8_units_16", INT8_UNIT_16, 64, [2, 2], 128),
    deep: int8_units_of_spirv!("bitlinear_gemm_int8_units_16_deep", INT8_UNIT_16, 64, [2, 2], 256),
};

/// For tests on software adapters, in what workgroup memory they have.
pub static INT8_UNITS_8: OnInt8Unit = OnInt8Unit {
    large: int8_units_of_spirv!("bitlinear_gemm_int8_units_8_large", INT8_UNIT_8, 64, [2, 4], 64),
    small: int8_units_of_spirv!("bitlinear_gemm_int8_units_8", INT8_UNIT_8, 32, [2, 2], 64),
    deep: int8_units_of_spirv!("bitlinear_gemm_int8_units_8_deep", INT8_UNIT_8, 32, [2, 2], 128),
};

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

/// What is left to do of products per group: the quotient, and an epilogue. Its parameters are
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
