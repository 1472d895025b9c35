//! The kernels of matmul, and which of them computes a product: a pure function of its shape, since
//! the order of its sums follows from it.

use crate::{
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        needs::TensorCore,
        params::Params as _,
        source::{HOLE, Part, Source, Work},
    },
    msl,
    ops::tensor::epilogue::{Filling, STORE, finished},
    params, wgsl,
};

params! {
    pub struct Params {
        pub m: u32, pub n: u32, pub k: u32, pub a_transposed: u32, pub b_transposed: u32,
        pub a_batch: u32, pub b_batch: u32, pub add: u32, pub biased: u32, pub activation: u32,
    }
}

pub const KERNELS: &[&Kernel] = &[
    &MATMUL[0],
    &MATMUL[1],
    &MATMUL_QUADS[0],
    &MATMUL_QUADS[1],
    &MATMUL_LARGE[0],
    &MATMUL_LARGE[1],
    &MATMUL_DIRECT[0],
    &MATMUL_DIRECT[1],
    &MATMUL_TENSOR_CORES_16[0],
    &MATMUL_TENSOR_CORES_16[1],
    &MATMUL_TENSOR_CORES_16_LARGE[0],
    &MATMUL_TENSOR_CORES_16_LARGE[1],
    &MATMUL_TENSOR_CORES_8[0],
    &MATMUL_TENSOR_CORES_8[1],
    &MATMUL_TENSOR_CORES_8_LARGE[0],
    &MATMUL_TENSOR_CORES_8_LARGE[1],
    &MATMUL_GEMV[0],
    &MATMUL_GEMV[1],
    &MATMUL_GEMV_QUADS[0],
    &MATMUL_GEMV_QUADS[1],
    &MATMUL_GEMV_COLUMNS[0],
    &MATMUL_GEMV_COLUMNS[1],
    &MATMUL_GEMV_COLUMNS_QUADS[0],
    &MATMUL_GEMV_COLUMNS_QUADS[1],
];

/// A kernel for products as they are, and one for products with an epilogue, which has a bias
/// bound: where it is none, anything of its type.
pub type Forms = [Kernel; 2];

/// With an epilogue, whose bias is bound in the fourth place.
const FINISH: Filling = finished!("X", 3, 4, wgsl ["tensor/matmul_finish"], msl []);

/// 64 × 64 outputs a workgroup, 4 × 4 a thread; a turn takes four elements of the depth, which are
/// in workgroup memory.
pub const fn tile(parts: &'static [Part]) -> Source {
    tiles(parts, 64).constants(&[("BLOCKS", 1), ("DEPTH", 32)]).work(Work::new(
        4 * 16,
        "products",
        0,
        2 * 4 * 16,
    ))
}

/// 128 × 128 outputs a workgroup, 8 × 8 a thread: half as many loads from workgroup memory for a
/// product.
pub const fn large_tile(parts: &'static [Part]) -> Source {
    tiles(parts, 128).constants(&[("BLOCKS", 2), ("DEPTH", 16)]).work(Work::new(
        16 * 64,
        "products",
        64,
        2 * 16 * 64,
    ))
}

const fn tiles(parts: &'static [Part], side: u32) -> Source {
    Source::wgsl(parts).workgroup_size([256, 1, 1]).tile([side, side, 1]).workgroup_bytes(16_384)
}

/// In Metal, on the tensor cores: 64 × 64 outputs, of which a SIMD-group makes a quarter.
pub const fn metal_tile(parts: &'static [Part]) -> Source {
    const CONSTANTS: &[(&str, u32)] = &[("DEPTH", 16), ("ALIGNED", 0)];
    Source::msl(parts)
        .workgroup_size([128, 1, 1])
        .tile([64, 64, 1])
        .constants(CONSTANTS)
        .workgroup_bytes(10_496)
}

/// A Metal tile for rows of whole quads.
pub const fn metal_tile_of_quads(parts: &'static [Part]) -> Source {
    metal_tile(parts).constants(&[("DEPTH", 16), ("ALIGNED", 1)])
}

const METAL_PARTS: &[Part] =
    msl!["shared/prelude", "tensor/matmul_side", HOLE, "tensor/matmul_tiles", "tensor/matmul"];
const METAL: Source = metal_tile(METAL_PARTS);
const METAL_QUADS: Source = metal_tile_of_quads(METAL_PARTS);

/// In WGSL, on tensor cores: 64 × 64 outputs, or 128 × 128.
const fn cores(parts: &'static [Part]) -> Source {
    const SMALL: &[(&str, u32)] = &[("BLOCKS", 1), ("DEPTH", 32)];
    Source::wgsl(parts)
        .workgroup_size([128, 1, 1])
        .tile([64, 64, 1])
        .constants(SMALL)
        .workgroup_bytes(14_336)
}

const fn large_tensor_cores(parts: &'static [Part]) -> Source {
    const LARGE: &[(&str, u32)] = &[("BLOCKS", 2), ("DEPTH", 32)];
    Source::wgsl(parts)
        .workgroup_size([256, 1, 1])
        .tile([128, 128, 1])
        .constants(LARGE)
        .workgroup_bytes(28_672)
}

/// 128 columns of 16 rows a workgroup, four columns a thread; a turn takes four elements of the
/// depth.
const fn direct(parts: &'static [Part]) -> Source {
    Source::wgsl(parts)
        .workgroup_size([32, 1, 1])
        .tile([128, 16, 1])
        .work(Work::new(256, "products", 320, 512))
}

/// 8 columns of 8 rows a workgroup, 32 lanes a column; a turn is two quads of all rows, or in Metal
/// one.
const fn gemv(parts: &'static [Part]) -> Source {
    Source::wgsl(parts)
        .workgroup_size([256, 1, 1])
        .tile([8, 8, 1])
        .workgroup_bytes(4096)
        .work(Work::new(64, "products", 160, 128))
}

const fn metal_gemv(aligned: &'static [(&'static str, u32)]) -> Source {
    const PARTS: &[Part] = msl!["shared/prelude", "tensor/matmul_side", HOLE, "tensor/matmul_gemv"];
    let source = Source::msl(PARTS).workgroup_size([256, 1, 1]).tile([8, 8, 1]);
    source.constants(aligned).work(Work::new(32, "products", 144, 64))
}

/// 32 columns of 4 rows a workgroup, 32 threads for four columns.
const fn gemv_columns(source: Source) -> Source {
    source
        .workgroup_size([256, 1, 1])
        .tile([32, 4, 1])
        .workgroup_bytes(4096)
        .work(Work::new(64, "products", 128, 128))
}

const fn metal_gemv_columns(aligned: &'static [(&'static str, u32)]) -> Source {
    const PARTS: &[Part] = msl![
        "shared/prelude",
        "tensor/matmul_side",
        "shared/add_quads",
        "shared/lanes",
        HOLE,
        "tensor/matmul_gemv_columns"
    ];
    gemv_columns(Source::msl(PARTS)).constants(aligned)
}

/// Whether lines are whole quads, for Metal.
const ANY: &[(&str, u32)] = &[("ALIGNED", 0)];
const ALIGNED: &[(&str, u32)] = &[("ALIGNED", 1)];

/// A product as it is: all bindings but the bias, which is the last.
const fn plain(
    name: &'static str,
    entry: &'static str,
    bindings: &'static [Binding],
    sources: &'static [Source],
) -> Kernel {
    STORE.fill(
        Kernel::trusted(name, Params::FIELDS, bindings.split_at(bindings.len() - 1).0, sources)
            .entry(entry),
    )
}

/// A declaration with an epilogue.
const fn finish(
    name: &'static str,
    entry: &'static str,
    bindings: &'static [Binding],
    sources: &'static [Source],
) -> Kernel {
    FINISH.fill(Kernel::trusted(name, Params::FIELDS, bindings, sources).entry(entry))
}

const fn forms(names: [&'static str; 2], entry: &'static str, sources: &'static [Source]) -> Forms {
    const BINDINGS: &[Binding] = &[
        read("a", Float("X")),
        read("b", Float("X")),
        read_write("y", Float("Y")),
        read("bias", Float("X")),
    ];
    [plain(names[0], entry, BINDINGS, sources), finish(names[1], entry, BINDINGS, sources)]
}

/// Both forms of a kernel for f16 on tensor cores.
const fn forms_on(core: TensorCore, names: [&'static str; 2], sources: &'static [Source]) -> Forms {
    const BINDINGS: &[Binding] =
        &[read("a", F16), read("b", F16), read_write("y", Float("Y")), read("bias", F16)];
    let entry = "matmul_tensor_cores";
    [
        plain(names[0], entry, BINDINGS, sources).tensor_core(core),
        finish(names[1], entry, BINDINGS, sources).tensor_core(core),
    ]
}

/// Sides of any shape.
pub static MATMUL: Forms = forms(
    ["matmul", "matmul_finish"],
    "matmul",
    &[
        tile(wgsl![
            "shared/ids",
            "tensor/matmul_dense",
            "tensor/matmul_a",
            "tensor/matmul_b",
            "tensor/matmul_block",
            HOLE,
            "tensor/matmul"
        ]),
        METAL,
    ],
);

/// The tiles of sides whose rows are whole quads.
const QUADS: &[Part] = wgsl![
    "shared/ids",
    "tensor/matmul_dense",
    "tensor/matmul_a_quads",
    "tensor/matmul_b_quads",
    "tensor/matmul_block",
    HOLE,
    "tensor/matmul"
];

/// Both tensors have rows of whole quads.
pub static MATMUL_QUADS: Forms =
    forms(["matmul_quads", "matmul_quads_finish"], "matmul", &[tile(QUADS), METAL_QUADS]);

/// [`MATMUL_QUADS`] with larger tiles, for products that keep a GPU busy with few workgroups. (In
/// Metal they are no larger.)
pub static MATMUL_LARGE: Forms =
    forms(["matmul_large", "matmul_large_finish"], "matmul", &[large_tile(QUADS), METAL_QUADS]);

/// Tensor cores for matrices of 16 × 16, as NVIDIA's are.
pub const CORE_16: TensorCore = TensorCore::new(16, 32);
const CORES_16: &[Part] = wgsl![
    "shared/ids",
    "tensor/matmul_dense",
    "shared/lane",
    "tensor/matrix_16",
    HOLE,
    "tensor/matmul_tensor_cores"
];
/// Those of 8 × 8 of a software adapter, which run the same source.
pub const CORE_8: TensorCore = TensorCore::new(8, 8);
const CORES_8: &[Part] = wgsl![
    "shared/ids",
    "tensor/matmul_dense",
    "shared/lane",
    "tensor/matrix_8",
    HOLE,
    "tensor/matmul_tensor_cores"
];

/// F16 in rows of whole quads.
pub static MATMUL_TENSOR_CORES_16: Forms = forms_on(
    CORE_16,
    ["matmul_tensor_cores_16", "matmul_tensor_cores_16_finish"],
    &[cores(CORES_16)],
);
pub static MATMUL_TENSOR_CORES_16_LARGE: Forms = forms_on(
    CORE_16,
    ["matmul_tensor_cores_16_large", "matmul_tensor_cores_16_large_finish"],
    &[large_tensor_cores(CORES_16)],
);
pub static MATMUL_TENSOR_CORES_8: Forms =
    forms_on(CORE_8, ["matmul_tensor_cores_8", "matmul_tensor_cores_8_finish"], &[cores(CORES_8)]);
pub static MATMUL_TENSOR_CORES_8_LARGE: Forms = forms_on(
    CORE_8,
    ["matmul_tensor_cores_8_large", "matmul_tensor_cores_8_large_finish"],
    &[large_tensor_cores(CORES_8)],
);

/// Few rows, both sides in lines along k.
pub static MATMUL_GEMV: Forms = forms(
    ["matmul_gemv", "matmul_gemv_finish"],
    "matmul_gemv",
    &[
        gemv(wgsl![
            "shared/ids",
            "tensor/matmul_dense",
            "tensor/matmul_a",
            "tensor/matmul_b",
            "shared/add_quads",
            "shared/lanes",
            HOLE,
            "tensor/matmul_gemv"
        ]),
        metal_gemv(ANY),
    ],
);

/// [`MATMUL_GEMV`] for rows of whole quads.
pub static MATMUL_GEMV_QUADS: Forms = forms(
    ["matmul_gemv_quads", "matmul_gemv_quads_finish"],
    "matmul_gemv",
    &[
        gemv(wgsl![
            "shared/ids",
            "tensor/matmul_dense",
            "tensor/matmul_a_quads",
            "tensor/matmul_b_quads",
            "shared/add_quads",
            "shared/lanes",
            HOLE,
            "tensor/matmul_gemv"
        ]),
        metal_gemv(ALIGNED),
    ],
);

/// Few rows, the right side in lines of columns.
pub static MATMUL_GEMV_COLUMNS: Forms = forms(
    ["matmul_gemv_columns", "matmul_gemv_columns_finish"],
    "matmul_gemv_columns",
    &[
        gemv_columns(Source::wgsl(wgsl![
            "shared/ids",
            "tensor/matmul_dense",
            "tensor/matmul_a",
            "tensor/matmul_b",
            "tensor/matmul_block",
            "shared/add_quads",
            "shared/lanes",
            HOLE,
            "tensor/matmul_gemv_columns"
        ])),
        metal_gemv_columns(ANY),
    ],
);

/// [`MATMUL_GEMV_COLUMNS`] for rows of whole quads.
pub static MATMUL_GEMV_COLUMNS_QUADS: Forms = forms(
    ["matmul_gemv_columns_quads", "matmul_gemv_columns_quads_finish"],
    "matmul_gemv_columns",
    &[
        gemv_columns(Source::wgsl(wgsl![
            "shared/ids",
            "tensor/matmul_dense",
            "tensor/matmul_a_quads",
            "tensor/matmul_b_quads",
            "tensor/matmul_block",
            "shared/add_quads",
            "shared/lanes",
            HOLE,
            "tensor/matmul_gemv_columns"
        ])),
        metal_gemv_columns(ALIGNED),
    ],
);

/// Sides of any shape, without workgroup memory.
pub static MATMUL_DIRECT: Forms = forms(
    ["matmul_direct", "matmul_direct_finish"],
    "matmul_direct",
    &[direct(wgsl![
        "shared/ids",
        "tensor/matmul_dense",
        "tensor/matmul_block",
        HOLE,
        "tensor/matmul_direct"
    ])],
);

/// A product `[m, k]` by `[k, n]`, `batch` times, and which sides lie in memory in lines along k.
#[derive(Clone, Copy)]
pub struct Product {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub batch: usize,
    pub a_along_k: bool,
    pub b_along_k: bool,
}

/// Up to this many rows a line along k is read for all of them at once, or twice.
const GEMV_ROWS: usize = 16;
/// As many for a right side in lines of columns, of which a thread makes four rows.
const GEMV_COLUMNS_ROWS: usize = 8;
/// More columns than the GEMV's workgroups reach in one dimension of a grid: 8 × 65 535.
const GEMV_COLUMNS: usize = 524_280;

impl Product {
    /// Returns whether all rows of both tensors are whole quads. (A tensor without elements has
    /// none.)
    fn of_quads(&self) -> bool {
        let lines = [
            if self.a_along_k { self.k } else { self.m },
            if self.b_along_k { self.k } else { self.n },
        ];
        self.k > 0 && lines.iter().all(|line| line.is_multiple_of(4))
    }

    /// Returns whether [`MATMUL_DIRECT`] gains by transposing the right side first, which changes
    /// no bit.
    /// Of 2048² numbers on lavapipe 26.1, whose rows are 8 KiB apart, a product takes 747 ms as it
    /// is and 431 transposed; of 1024² 49 and 54.
    pub fn is_far_apart(&self) -> bool {
        !self.b_along_k && self.k >= 2048 && self.n >= 2048 && self.m >= 256
    }

    /// Into how many parts k is cut, each with outputs of its own, which are added afterwards: 1
    /// where the outputs alone keep a GPU busy. Only sides in lines of outputs are cut, such as
    /// those of a weight's gradient.
    pub fn parts(&self) -> usize {
        if self.batch != 1 || self.a_along_k || self.b_along_k {
            return 1;
        }
        let tiles = self.m.div_ceil(128).saturating_mul(self.n.div_ceil(128)).max(1);
        let most = [(512 / tiles).max(1), self.k / 512, 32].into_iter().min().unwrap_or(1);
        let whole = |&parts: &usize| self.k.is_multiple_of(parts);
        (0..=most.max(1).ilog2()).rev().map(|power| 1 << power).find(whole).unwrap_or(1)
    }

    /// Returns whether a tile of 128 × 128 is faster: not before there are workgroups for most
    /// GPUs.
    pub fn is_large(&self) -> bool {
        let tiles = [self.m.div_ceil(128), self.n.div_ceil(128), self.batch]
            .into_iter()
            .fold(1, usize::saturating_mul);
        self.m.min(self.n) > 64 && tiles >= 128
    }
}

/// The kernels for a product; `cores` are those that its elements can be multiplied on, `direct` is
/// for devices that gain nothing by workgroup memory.
pub fn plan(product: Product, cores: &[TensorCore], direct: bool) -> &'static Forms {
    let Product { m, n, a_along_k, b_along_k, .. } = product;
    let few = a_along_k
        && m <= if b_along_k { GEMV_ROWS } else { GEMV_COLUMNS_ROWS }
        && n <= GEMV_COLUMNS;
    match (few, product.of_quads()) {
        (true, quads) if b_along_k => [&MATMUL_GEMV, &MATMUL_GEMV_QUADS][usize::from(quads)],
        (true, quads) => [&MATMUL_GEMV_COLUMNS, &MATMUL_GEMV_COLUMNS_QUADS][usize::from(quads)],
        (false, quads) => {
            on_tensor_cores(product, cores).filter(|_| quads).unwrap_or(match (direct, quads) {
                (true, _) => &MATMUL_DIRECT,
                (false, true) => [&MATMUL_QUADS, &MATMUL_LARGE][usize::from(product.is_large())],
                (false, false) => &MATMUL,
            })
        }
    }
}

/// Those for the first kind of tensor core that they are made for.
fn on_tensor_cores(product: Product, cores: &[TensorCore]) -> Option<&'static Forms> {
    let all: [[&Forms; 2]; 2] = [
        [&MATMUL_TENSOR_CORES_16, &MATMUL_TENSOR_CORES_16_LARGE],
        [&MATMUL_TENSOR_CORES_8, &MATMUL_TENSOR_CORES_8_LARGE],
    ];
    let forms = all.map(|of_unit| of_unit[usize::from(product.is_large())]);
    forms.into_iter().find(|forms| forms[0].tensor_core.is_some_and(|core| cores.contains(&core)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name([m, n, k, batch]: [usize; 4], a_along_k: bool, b_along_k: bool) -> &'static str {
        plan(Product { m, n, k, batch, a_along_k, b_along_k }, &[], false)[0].name
    }

    #[test]
    fn tensor_cores_need_aligned_products_with_rows() {
        let name = |m, n, k, cores: &[TensorCore]| {
            plan(Product { m, n, k, batch: 1, a_along_k: true, b_along_k: true }, cores, false)[0]
                .name
        };
        assert_eq!(name(1024, 1024, 64, &[CORE_16]), "matmul_tensor_cores_16");
        assert_eq!(name(1024, 2048, 64, &[CORE_16]), "matmul_tensor_cores_16_large");
        assert_eq!(name(17, 1024, 64, &[CORE_8, CORE_16]), "matmul_tensor_cores_16");
        assert_eq!(name(1024, 2048, 64, &[CORE_8]), "matmul_tensor_cores_8_large");
        assert_eq!(name(1024, 1024, 64, &[TensorCore::new(16, 64)]), "matmul_quads");
        assert_eq!(name(1024, 1024, 63, &[CORE_16]), "matmul");
        assert_eq!(name(16, 1024, 64, &[CORE_16]), "matmul_gemv_quads");
    }

    #[test]
    fn few_rows_are_read_along_lines() {
        assert_eq!(name([1, 4096, 4096, 1], true, true), "matmul_gemv_quads");
        assert_eq!(name([16, 4096, 4095, 1], true, true), "matmul_gemv");
        assert_eq!(name([17, 4096, 4096, 1], true, true), "matmul_quads");
        assert_eq!(name([8, 4096, 4096, 1], true, false), "matmul_gemv_columns_quads");
        assert_eq!(name([8, 4095, 4096, 1], true, false), "matmul_gemv_columns");
        assert_eq!(name([9, 4096, 4096, 1], true, false), "matmul_quads");
        assert_eq!(name([4, 4096, 4096, 1], false, true), "matmul_quads");
        assert_eq!(name([1, 524_281, 4, 1], true, true), "matmul_quads");
    }

    #[test]
    fn few_outputs_are_made_in_parts() {
        let parts = |m, n, k, along| {
            Product { m, n, k, batch: 1, a_along_k: along, b_along_k: false }.parts()
        };
        assert_eq!(parts(1280, 512, 16_384, false), 8);
        assert_eq!(parts(128, 512, 16_384, false), 32);
        assert_eq!(parts(128, 512, 1536, false), 2);
        assert_eq!(parts(128, 512, 16_382, false), 2);
        assert_eq!(parts(128, 512, 16_383, false), 1);
        assert_eq!(parts(4096, 4096, 16_384, false), 1);
        assert_eq!(parts(128, 512, 16_384, true), 1);
        assert_eq!(parts(0, 0, 16_384, false), 32);
        assert_eq!(parts(8, 8, 0, false), 1);
    }

    #[test]
    fn what_lies_far_apart_is_transposed() {
        let far = |m, n, k, b_along_k| {
            Product { m, n, k, batch: 1, a_along_k: true, b_along_k }.is_far_apart()
        };
        assert!(far(256, 2048, 2048, false) && !far(256, 2048, 2048, true));
        assert!(
            !far(255, 2048, 2048, false)
                && !far(256, 2047, 2048, false)
                && !far(256, 2048, 2047, false)
        );
    }

    #[test]
    fn tiles_follow_from_the_outputs() {
        assert_eq!(name([1024, 1024, 1024, 1], true, false), "matmul_quads");
        assert_eq!(name([1024, 2048, 1024, 1], true, false), "matmul_large");
        assert_eq!(name([1024, 2048, 1023, 1], true, false), "matmul");
        assert_eq!(name([1024, 2048, 1023, 1], false, false), "matmul_large");
        assert_eq!(name([65, 65, 4, 128], true, true), "matmul_large");
        assert_eq!(name([64, 65, 4, 128], true, true), "matmul_quads");
        assert_eq!(name([64, 64, 0, 1], true, true), "matmul");
    }
}
