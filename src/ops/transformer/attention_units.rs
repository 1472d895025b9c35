//! The kernels of `f16` attention of prompts, on tensor cores.

use super::{
    attention_params::{MANY_WGSL, Params, SPAN},
    cache::KvCache,
};
use crate::{
    gpu::capabilities::Capabilities,
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        needs::MatrixUnit,
        params::Params as _,
        source::{Part, Source, glsl},
    },
    msl,
    ops::tensor::matmul_kernels::{UNIT_8, UNIT_16},
    tuning::TuningKey,
    wgsl,
};

/// Positions that a workgroup takes at a time.
const TURN: u32 = SPAN as u32 / 2;
/// Fewer new tokens of a sequence than this leave most of a tile empty.
const MIN_RUN: usize = 64;

const BINDINGS: &[Binding] = &[
    read("runs", U32),
    read("qkv", F32),
    read("keys", F16),
    read("values", F16),
    read_write("y", F32),
];
const PARTS_16: &[Part] = wgsl![
    "shared/ids",
    "shared/lane",
    "tensor/matrix_16",
    "transformer/attention_rows",
    "transformer/attention_units"
];
const PARTS_8: &[Part] = wgsl![
    "shared/ids",
    "shared/lane",
    "tensor/matrix_8",
    "transformer/attention_rows",
    "transformer/attention_units"
];

/// `rows` rows of `head` columns a workgroup; a subgroup takes as many as a matrix has.
const fn source(parts: &'static [Part], unit: MatrixUnit, rows: u32, head: u32) -> Source {
    // Keys and values, in lines of two quads more; scores of one quad more, and weights of two.
    let bytes = 2 * TURN * (2 * head + 16) + rows * (4 * TURN + 16 + 2 * TURN + 16) + 16;
    Source::wgsl(parts)
        .workgroup_size([rows / unit.size * unit.lanes, 1, 1])
        .tile([rows, 1, 1])
        .workgroup_bytes(bytes)
}

const fn declared(name: &'static str, unit: MatrixUnit, sources: &'static [Source]) -> Kernel {
    Kernel::trusted(name, Params::FIELDS, BINDINGS, sources)
        .entry("attention_units")
        .matrix_unit(unit)
}

static UNITS_16_64: Kernel = declared(
    "attention_units_16_64",
    UNIT_16,
    &[source(PARTS_16, UNIT_16, 64, 64).constants(&[("SPAN", TURN), ("HEAD", 64)])],
);
static UNITS_16_128: Kernel = declared(
    "attention_units_16_128",
    UNIT_16,
    &[source(PARTS_16, UNIT_16, 64, 128).constants(&[("SPAN", TURN), ("HEAD", 128)])],
);
static UNITS_16_128_LARGE: Kernel = declared(
    "attention_units_16_128_large",
    UNIT_16,
    &[source(PARTS_16, UNIT_16, 128, 128).constants(&[("SPAN", TURN), ("HEAD", 128)])],
);
/// For software adapters.
static UNITS_8_32: Kernel = declared(
    "attention_units_8_32",
    UNIT_8,
    &[source(PARTS_8, UNIT_8, 64, 32).constants(&[("SPAN", TURN), ("HEAD", 32)])],
);
static UNITS_8_64: Kernel = declared(
    "attention_units_8_64",
    UNIT_8,
    &[source(PARTS_8, UNIT_8, 64, 64).constants(&[("SPAN", TURN), ("HEAD", 64)])],
);

/// A kernel that scales matrices row by row where they are, for devices whose lanes have the elements that it
/// expects (`Capabilities::matrix_elements`). WGSL has no words for it.
macro_rules! by_elements {
    ($name:literal, $unit:expr, $subgroups:literal, $head:literal) => {
        declared_by_elements(
            $name,
            $unit,
            &[Source::spirv(
                ELEMENTS_PARTS,
                &[include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/spirv/", $name, ".spv"))],
            )
            .workgroup_size([$subgroups * $unit.lanes, 1, 1])
            .tile([$subgroups * $unit.size, 1, 1])
            .constants(&[("SPAN", TURN), ("HEAD", $head)])
            // Keys and values of two turns, in lines of eight numbers more.
            .workgroup_bytes(4 * TURN * 2 * ($head + 8))],
        )
    };
}

const ELEMENTS_PARTS: &[Part] = glsl!["shared/prelude", "transformer/attention_elements"];

const fn declared_by_elements(
    name: &'static str,
    unit: MatrixUnit,
    sources: &'static [Source],
) -> Kernel {
    Kernel::trusted(name, Params::FIELDS, BINDINGS, sources)
        .entry("attention_elements")
        .matrix_unit(unit)
}

static ELEMENTS_16_64: Kernel = by_elements!("attention_elements_16_64", UNIT_16, 4, 64);
static ELEMENTS_16_64_LARGE: Kernel =
    by_elements!("attention_elements_16_64_large", UNIT_16, 8, 64);
static ELEMENTS_16_96: Kernel = by_elements!("attention_elements_16_96", UNIT_16, 4, 96);
static ELEMENTS_16_128: Kernel = by_elements!("attention_elements_16_128", UNIT_16, 4, 128);
static ELEMENTS_16_128_LARGE: Kernel =
    by_elements!("attention_elements_16_128_large", UNIT_16, 8, 128);
/// For software adapters.
static ELEMENTS_8_32: Kernel = by_elements!("attention_elements_8_32", UNIT_8, 8, 32);

const HALVES_WGSL: &[Part] = wgsl!["transformer/attention_halves"];

/// For GPUs by Apple, whose tensor cores only Metal reaches: on matrices of 8 × 8, eight rows a SIMD-group. In
/// WGSL it is the kernel without tensor cores.
const fn halves(name: &'static str, sources: &'static [Source]) -> Kernel {
    Kernel::trusted(name, Params::FIELDS, BINDINGS, sources)
        .entry("attention_halves")
        .fill(HALVES_WGSL)
}

const HALVES_MSL: Source = Source::msl(msl![
    "shared/prelude",
    "shared/exp",
    "transformer/attention_rows",
    "transformer/attention_halves"
])
.workgroup_size([256, 1, 1])
.tile([64, 1, 1]);

const fn halves_msl(constants: &'static [(&'static str, u32)], head: u32) -> Source {
    HALVES_MSL
        .constants(constants)
        .workgroup_bytes(2 * 2 * TURN * (head + 8) + 64 * (4 * (TURN + 4) + 2 * (TURN + 8)))
}

static HALVES_64: Kernel = halves(
    "attention_halves_64",
    &[
        MANY_WGSL,
        halves_msl(
            &[
                ("SPAN", TURN),
                ("HEAD", 64),
                ("PITCH", 18),
                ("SCORES", TURN / 4 + 1),
                ("WEIGHTS", TURN / 4 + 2),
            ],
            64,
        ),
    ],
);
static HALVES_128: Kernel = halves(
    "attention_halves_128",
    &[
        MANY_WGSL,
        halves_msl(
            &[
                ("SPAN", TURN),
                ("HEAD", 128),
                ("PITCH", 34),
                ("SCORES", TURN / 4 + 1),
                ("WEIGHTS", TURN / 4 + 2),
            ],
            128,
        ),
    ],
);

pub(super) const KERNELS: &[&Kernel] = &[
    &UNITS_16_64,
    &UNITS_16_128,
    &UNITS_16_128_LARGE,
    &UNITS_8_32,
    &UNITS_8_64,
    &ELEMENTS_16_64,
    &ELEMENTS_16_64_LARGE,
    &ELEMENTS_16_96,
    &ELEMENTS_16_128,
    &ELEMENTS_16_128_LARGE,
    &ELEMENTS_8_32,
    &HALVES_64,
    &HALVES_128,
];

/// Returns the kernel that serves `tokens` new tokens of each sequence, if one does. They have
/// `rows` rows for each of `sequences` and key heads.
pub(super) fn kernel(
    capabilities: &Capabilities,
    cache: &KvCache,
    tokens: usize,
    rows: usize,
    sequences: usize,
) -> Option<&'static Kernel> {
    if tokens < MIN_RUN || !cache.is_f16() {
        return None;
    }
    let (head_dim, groups) = (cache.shape.head_dim, cache.shape.kv_heads * sequences);
    by_elements(capabilities, head_dim, rows, groups)
        .or_else(|| plan(capabilities, head_dim, rows, groups).filter(|_| cache.window.is_none()))
}

/// Tiles of 128 rows read keys and values half as often; they must keep a GPU busy. `groups` are pairs of a
/// sequence and a key head, each with `rows` rows.
fn is_large(capabilities: &Capabilities, rows: usize, groups: usize) -> bool {
    rows.div_ceil(128) * groups >= capabilities.tuned(TuningKey::AttentionLargeTiles)
}

/// The kernel in SPIR-V that serves, if one does.
fn by_elements(
    capabilities: &Capabilities,
    head_dim: usize,
    rows: usize,
    groups: usize,
) -> Option<&'static Kernel> {
    let large = is_large(capabilities, rows, groups);
    let kernel = |unit| match (unit, head_dim) {
        (UNIT_16, 64) => Some(if large { &ELEMENTS_16_64_LARGE } else { &ELEMENTS_16_64 }),
        (UNIT_16, 96) => Some(&ELEMENTS_16_96),
        (UNIT_16, 128) => Some(if large { &ELEMENTS_16_128_LARGE } else { &ELEMENTS_16_128 }),
        (UNIT_8, 32) => Some(&ELEMENTS_8_32),
        _ => None,
    };
    // The one that is probed: src/gpu/setup/probes.rs.
    let has = |unit: &MatrixUnit| capabilities.matrix_units.contains(unit);
    let unit = [UNIT_16, UNIT_8].into_iter().find(has);
    unit.filter(|_| capabilities.matrix_elements).and_then(kernel)
}

/// The kernel in WGSL or Metal that serves, if one does.
fn plan(
    capabilities: &Capabilities,
    head_dim: usize,
    rows: usize,
    groups: usize,
) -> Option<&'static Kernel> {
    let large = is_large(capabilities, rows, groups);
    let kernel = |unit| match (unit, head_dim) {
        (UNIT_16, 64) => Some(&UNITS_16_64),
        (UNIT_16, 128) => Some(if large { &UNITS_16_128_LARGE } else { &UNITS_16_128 }),
        (UNIT_8, 32) => Some(&UNITS_8_32),
        (UNIT_8, 64) => Some(&UNITS_8_64),
        _ => None,
    };
    let of_apple = || match head_dim {
        64 if capabilities.apple => Some(&HALVES_64),
        128 if capabilities.apple => Some(&HALVES_128),
        _ => None,
    };
    capabilities.matrix_units.iter().find_map(|&unit| kernel(unit)).or_else(of_apple)
}

#[cfg(test)]
mod tests {
    use super::{Capabilities, UNIT_8, UNIT_16, by_elements, plan};

    #[test]
    fn elements_need_the_expected_lanes() {
        let mut with = Capabilities::example(false);
        with.matrix_units = vec![UNIT_16];
        let name = |with: &_, head_dim, rows| {
            by_elements(with, head_dim, rows, 5).map(|kernel| kernel.name)
        };
        assert_eq!(name(&with, 128, 512 * 4), None);
        with.matrix_elements = true;
        assert_eq!(name(&with, 128, 512 * 4), Some("attention_elements_16_128"));
        assert_eq!(name(&with, 128, 1024 * 4), Some("attention_elements_16_128_large"));
        assert_eq!(name(&with, 96, 512 * 4), Some("attention_elements_16_96"));
        assert_eq!(name(&with, 80, 512 * 4), None);
    }

    #[test]
    fn a_kernel_for_the_unit_and_the_head() {
        let mut with = Capabilities::example(false);
        let mut name = |units: &[_], head_dim, rows| {
            with.matrix_units = units.to_vec();
            plan(&with, head_dim, rows, 5).map(|kernel| kernel.name)
        };
        assert_eq!(name(&[UNIT_16], 128, 512 * 4), Some("attention_units_16_128"));
        assert_eq!(name(&[UNIT_16], 128, 1024 * 4), Some("attention_units_16_128_large"));
        assert_eq!(name(&[UNIT_16], 64, 1024 * 4), Some("attention_units_16_64"));
        assert_eq!(name(&[UNIT_8], 64, 1024 * 4), Some("attention_units_8_64"));
        assert_eq!(name(&[UNIT_16], 80, 512 * 4), None);
        assert_eq!(name(&[], 128, 512 * 4), None);
        let apple = Capabilities::example(true);
        let on_apple = [64, 128, 80]
            .map(|head_dim| plan(&apple, head_dim, 512 * 4, 5).map(|kernel| kernel.name));
        assert_eq!(on_apple, [Some("attention_halves_64"), Some("attention_halves_128"), None]);
    }
}
