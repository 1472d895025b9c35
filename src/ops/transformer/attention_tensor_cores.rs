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
        needs::TensorCore,
        params::Params as _,
        source::{Part, Source, glsl, spirv},
    },
    msl,
    ops::tensor::matmul_kernels::{CORE_8, CORE_16},
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
    "transformer/attention_tensor_cores"
];
const PARTS_8: &[Part] = wgsl![
    "shared/ids",
    "shared/lane",
    "tensor/matrix_8",
    "transformer/attention_rows",
    "transformer/attention_tensor_cores"
];

/// `rows` rows of `head` columns a workgroup; a subgroup takes as many as a matrix has.
const fn source(parts: &'static [Part], core: TensorCore, rows: u32, head: u32) -> Source {
    // Keys and values, in lines of two quads more; scores of one quad more, and weights of two.
    let bytes = 2 * TURN * (2 * head + 16) + rows * (4 * TURN + 16 + 2 * TURN + 16) + 16;
    Source::wgsl(parts)
        .workgroup_size([rows / core.size * core.lanes, 1, 1])
        .tile([rows, 1, 1])
        .workgroup_bytes(bytes)
}

const fn declared(name: &'static str, core: TensorCore, sources: &'static [Source]) -> Kernel {
    Kernel::trusted(name, Params::FIELDS, BINDINGS, sources)
        .entry("attention_tensor_cores")
        .tensor_core(core)
}

static CORES_16_64: Kernel = declared(
    "attention_tensor_cores_16_64",
    CORE_16,
    &[source(PARTS_16, CORE_16, 64, 64).constants(&[("SPAN", TURN), ("HEAD", 64)])],
);
static CORES_16_128: Kernel = declared(
    "attention_tensor_cores_16_128",
    CORE_16,
    &[source(PARTS_16, CORE_16, 64, 128).constants(&[("SPAN", TURN), ("HEAD", 128)])],
);
static CORES_16_128_LARGE: Kernel = declared(
    "attention_tensor_cores_16_128_large",
    CORE_16,
    &[source(PARTS_16, CORE_16, 128, 128).constants(&[("SPAN", TURN), ("HEAD", 128)])],
);
/// For software adapters.
static CORES_8_32: Kernel = declared(
    "attention_tensor_cores_8_32",
    CORE_8,
    &[source(PARTS_8, CORE_8, 64, 32).constants(&[("SPAN", TURN), ("HEAD", 32)])],
);
static CORES_8_64: Kernel = declared(
    "attention_tensor_cores_8_64",
    CORE_8,
    &[source(PARTS_8, CORE_8, 64, 64).constants(&[("SPAN", TURN), ("HEAD", 64)])],
);

/// A kernel that scales matrices row by row where they are, for devices whose lanes have the elements that it
/// expects (`Capabilities::matrix_elements`). WGSL has no words for it.
macro_rules! by_elements {
    ($name:literal, $core:expr, $subgroups:literal, $head:literal) => {
        declared_by_elements(
            $name,
            $core,
            &[Source::spirv(ELEMENTS_PARTS, spirv!($name, ""))
                .workgroup_size([$subgroups * $core.lanes, 1, 1])
                .tile([$subgroups * $core.size, 1, 1])
                .constants(&[("SPAN", TURN), ("HEAD", $head)])
                // Keys and values of two turns, in lines of eight numbers more.
                .workgroup_bytes(4 * TURN * 2 * ($head + 8))],
        )
    };
}

const ELEMENTS_PARTS: &[Part] = glsl!["shared/prelude", "transformer/attention_elements"];

const fn declared_by_elements(
    name: &'static str,
    core: TensorCore,
    sources: &'static [Source],
) -> Kernel {
    Kernel::trusted(name, Params::FIELDS, BINDINGS, sources)
        .entry("attention_elements")
        .tensor_core(core)
}

static ELEMENTS_16_64: Kernel = by_elements!("attention_elements_16_64", CORE_16, 4, 64);
static ELEMENTS_16_64_LARGE: Kernel =
    by_elements!("attention_elements_16_64_large", CORE_16, 8, 64);
static ELEMENTS_16_96: Kernel = by_elements!("attention_elements_16_96", CORE_16, 4, 96);
static ELEMENTS_16_128: Kernel = by_elements!("attention_elements_16_128", CORE_16, 4, 128);
static ELEMENTS_16_128_LARGE: Kernel =
    by_elements!("attention_elements_16_128_large", CORE_16, 8, 128);
/// For software adapters.
static ELEMENTS_8_32: Kernel = by_elements!("attention_elements_8_32", CORE_8, 8, 32);

const F16_WGSL: &[Part] = wgsl!["transformer/attention_f16"];

/// For GPUs by Apple, whose tensor cores only Metal reaches: on matrices of 8 × 8, eight rows a SIMD-group. In
/// WGSL it is the kernel without tensor cores.
const fn attention_f16(name: &'static str, sources: &'static [Source]) -> Kernel {
    Kernel::trusted(name, Params::FIELDS, BINDINGS, sources).entry("attention_f16").fill(F16_WGSL)
}

const F16_MSL: Source = Source::msl(msl![
    "shared/prelude",
    "shared/exp",
    "transformer/attention_rows",
    "transformer/attention_f16"
])
.workgroup_size([256, 1, 1])
.tile([64, 1, 1]);

const fn attention_f16_msl(constants: &'static [(&'static str, u32)], head: u32) -> Source {
    F16_MSL
        .constants(constants)
        .workgroup_bytes(2 * 2 * TURN * (head + 8) + 64 * (4 * (TURN + 4) + 2 * (TURN + 8)))
}

static F16_64: Kernel = attention_f16(
    "attention_f16_64",
    &[
        MANY_WGSL,
        attention_f16_msl(
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
static F16_128: Kernel = attention_f16(
    "attention_f16_128",
    &[
        MANY_WGSL,
        attention_f16_msl(
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
    &CORES_16_64,
    &CORES_16_128,
    &CORES_16_128_LARGE,
    &CORES_8_32,
    &CORES_8_64,
    &ELEMENTS_16_64,
    &ELEMENTS_16_64_LARGE,
    &ELEMENTS_16_96,
    &ELEMENTS_16_128,
    &ELEMENTS_16_128_LARGE,
    &ELEMENTS_8_32,
    &F16_64,
    &F16_128,
];

/// What a kernel multiplies on.
#[derive(Clone, Copy, PartialEq)]
enum On {
    /// Tensor cores, whose elements it knows the lanes of: SPIR-V.
    Elements(TensorCore),
    /// Tensor cores: WGSL.
    TensorCores(TensorCore),
    /// Simdgroup matrices: Metal.
    Apple,
}

/// What a kernel multiplies on, the width of its heads, and the kernels for tiles of 64 rows and of
/// 128, if there is one.
static TABLE: [(On, usize, [&Kernel; 2]); 10] = [
    (On::Elements(CORE_16), 64, [&ELEMENTS_16_64, &ELEMENTS_16_64_LARGE]),
    (On::Elements(CORE_16), 96, [&ELEMENTS_16_96; 2]),
    (On::Elements(CORE_16), 128, [&ELEMENTS_16_128, &ELEMENTS_16_128_LARGE]),
    (On::Elements(CORE_8), 32, [&ELEMENTS_8_32; 2]),
    (On::TensorCores(CORE_16), 64, [&CORES_16_64; 2]),
    (On::TensorCores(CORE_16), 128, [&CORES_16_128, &CORES_16_128_LARGE]),
    (On::TensorCores(CORE_8), 32, [&CORES_8_32; 2]),
    (On::TensorCores(CORE_8), 64, [&CORES_8_64; 2]),
    (On::Apple, 64, [&F16_64; 2]),
    (On::Apple, 128, [&F16_128; 2]),
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
    plan(capabilities, head_dim, cache.window.is_some(), [rows, groups])
}

/// Returns the kernel for heads of this width. `groups` are pairs of a sequence and a key head, each
/// with `rows` rows. Kernels in SPIR-V alone have windows.
fn plan(
    capabilities: &Capabilities,
    head_dim: usize,
    window: bool,
    [rows, groups]: [usize; 2],
) -> Option<&'static Kernel> {
    // Larger tiles read keys and values half as often; they must keep a GPU busy.
    let large = rows.div_ceil(128) * groups >= capabilities.tuned(TuningKey::AttentionLargeTiles);
    let kernel = |on| {
        let row = TABLE.iter().find(|row| (row.0, row.1) == (on, head_dim))?;
        Some(row.2[usize::from(large)])
    };
    let cores = &capabilities.tensor_cores;
    // The one that is probed: src/gpu/setup/probes.rs.
    let probed = [CORE_16, CORE_8].into_iter().find(|core| cores.contains(core));
    let by_elements = probed.filter(|_| capabilities.matrix_elements).map(On::Elements);
    let others = cores
        .iter()
        .map(|&core| On::TensorCores(core))
        .chain(capabilities.apple.then_some(On::Apple));
    by_elements.into_iter().chain(others.filter(|_| !window)).find_map(kernel)
}

#[cfg(test)]
mod tests {
    use super::{CORE_8, CORE_16, Capabilities, plan};

    fn name(with: &Capabilities, head_dim: usize, rows: usize) -> Option<&'static str> {
        plan(with, head_dim, false, [rows, 5]).map(|kernel| kernel.name)
    }

    #[test]
    fn elements_need_the_expected_lanes() {
        let mut with = Capabilities::example(false);
        with.tensor_cores = vec![CORE_16];
        assert_eq!(name(&with, 96, 512 * 4), None);
        with.matrix_elements = true;
        assert_eq!(name(&with, 128, 512 * 4), Some("attention_elements_16_128"));
        assert_eq!(name(&with, 128, 1024 * 4), Some("attention_elements_16_128_large"));
        assert_eq!(name(&with, 96, 512 * 4), Some("attention_elements_16_96"));
        assert_eq!(name(&with, 80, 512 * 4), None);
        // A core without elements for this width, and one that is not probed.
        with.tensor_cores = vec![CORE_8];
        assert_eq!(name(&with, 64, 512 * 4), Some("attention_tensor_cores_8_64"));
        with.tensor_cores = vec![CORE_16, CORE_8];
        assert_eq!(name(&with, 32, 512 * 4), Some("attention_tensor_cores_8_32"));
    }

    #[test]
    fn a_kernel_for_the_unit_and_the_head() {
        let mut with = Capabilities::example(false);
        let mut of = |cores: &[_], head_dim, rows| {
            with.tensor_cores = cores.to_vec();
            name(&with, head_dim, rows)
        };
        assert_eq!(of(&[CORE_16], 128, 512 * 4), Some("attention_tensor_cores_16_128"));
        assert_eq!(of(&[CORE_16], 128, 1024 * 4), Some("attention_tensor_cores_16_128_large"));
        assert_eq!(of(&[CORE_16], 64, 1024 * 4), Some("attention_tensor_cores_16_64"));
        assert_eq!(of(&[CORE_8], 64, 1024 * 4), Some("attention_tensor_cores_8_64"));
        assert_eq!(of(&[CORE_16], 80, 512 * 4), None);
        assert_eq!(of(&[], 128, 512 * 4), None);
        let apple = Capabilities::example(true);
        let on_apple = [64, 128, 80].map(|head_dim| name(&apple, head_dim, 512 * 4));
        assert_eq!(on_apple, [Some("attention_f16_64"), Some("attention_f16_128"), None]);
    }

    #[test]
    fn windows_are_in_spirv_only() {
        let mut with = Capabilities::example(false);
        with.tensor_cores = vec![CORE_16];
        let name = |with: &_| plan(with, 128, true, [512 * 4, 5]).map(|kernel| kernel.name);
        assert_eq!(name(&with), None);
        with.matrix_elements = true;
        assert_eq!(name(&with), Some("attention_elements_16_128"));
    }
}
