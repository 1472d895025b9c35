//! BitLinear with activations in block floating point, y = x·Wᵀ with W = β·Wq: for models whose
//! activations are floats (W1.58A16).

use super::{
    bitlinear_tensor_cores::{INT8_CORE_8, INT8_CORE_16},
    quantize_block_float::{BLOCK, BlockFloatActivations, BlockFloatLayout, block_columns},
};
use crate::{
    element::Float,
    error::{Error, Result},
    gpu::{
        encoder::Encoder,
        out::Out,
        recording::{Extent, product},
        tensor::{Bind, Tensor},
    },
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        needs::TensorCore,
        params::Params as _,
        source::{Part, Source, Work, glsl},
    },
    msl, params,
    tuning::TuningKey,
    weights::ternary::{layout::CODES_PER_WORD, matrix::TernaryMatrix, packed::PackedTernary},
    wgsl,
};

params! {
    struct Params { m: u32, n: u32, blocks: u32, words: u32, block_words: u32, groups: u32, group_blocks: u32, lanes: u32, add: u32 }
}

const BINDINGS: &[Binding] =
    &[read("x", F32), read("codes", U32), read("w_scale", F32), read_write("y", Float("Y"))];

/// Threads of a workgroup of the GEMV, and places for what they leave to each other: one more after
/// every four.
pub(super) const THREADS: u32 = 64;
pub(super) const PLACES: u32 = THREADS + THREADS / 4;

/// Four rows of `tokens` for each lane; a turn is this many words of each.
pub(super) const fn gemv(source: Source, tokens: u32, words: u32) -> Source {
    let work = Work::new(
        64 * words * tokens,
        "products",
        16 * words * (1 + 4 * tokens),
        128 * words * tokens,
    );
    source
        .workgroup_size([THREADS, 1, 1])
        .tile([1, tokens, 1])
        .work(work)
        .workgroup_bytes(16 * PLACES * tokens)
}

/// A [`gemv`] by the part that loads codes, this many words at a time.
macro_rules! gemv_of {
    ($name:literal, $codes:literal, $tokens:literal, $words:literal) => {
        Kernel::trusted(
            $name,
            Params::FIELDS,
            BINDINGS,
            &[
                gemv(
                    Source::wgsl(wgsl![
                        "shared/ids",
                        "tensor/matmul_block",
                        "bitnet/bitlinear_float_word",
                        $codes,
                        "bitnet/matrix_of_all",
                        "bitnet/bitlinear_block_float_gemv"
                    ]),
                    $tokens,
                    1,
                )
                .constants(&[("PLACES", PLACES)]),
                gemv(
                    Source::msl(msl![
                        "shared/prelude",
                        "bitnet/bitlinear_float_word",
                        "bitnet/matrix_of_all",
                        "bitnet/bitlinear_block_float_gemv"
                    ]),
                    $tokens,
                    $words,
                )
                .constants(&[("PLACES", PLACES), ("STEP", $words)]),
            ],
        )
        .entry("bitlinear_block_float_gemv")
    };
}

static GEMV: Kernel = gemv_of!("bitlinear_block_float_gemv", "bitnet/block_float_words", 1, 1);
static GEMV_4: Kernel = gemv_of!("bitlinear_block_float_gemv_4", "bitnet/block_float_words", 4, 1);
static GEMV_QUADS: Kernel =
    gemv_of!("bitlinear_block_float_gemv_quads", "bitnet/block_float_quads", 1, 4);
static GEMV_QUADS_4: Kernel =
    gemv_of!("bitlinear_block_float_gemv_quads_4", "bitnet/block_float_quads", 4, 4);

/// Tiles, of 64 rows and 64 tokens: in WGSL 4 × 4 a thread, 32 columns at a time; in Metal on the
/// tensor cores.
static GEMM: Kernel = Kernel::trusted(
    "bitlinear_block_float_gemm",
    Params::FIELDS,
    BINDINGS,
    &[
        Source::wgsl(wgsl![
            "shared/ids",
            "tensor/matmul_block",
            "bitnet/bitlinear_float_word",
            "bitnet/bitlinear_block_float_gemm"
        ])
        .workgroup_size([256, 1, 1])
        .tile([64, 64, 1])
        .workgroup_bytes(16_384)
        .work(Work::new(512, "products", 0, 1024)),
        Source::msl(msl![
            "shared/prelude",
            "bitnet/bitlinear_float_word",
            "bitnet/bitlinear_block_float_gemm"
        ])
        .workgroup_size([128, 1, 1])
        .tile([64, 64, 1])
        .workgroup_bytes(10_240),
    ],
);

/// Bindings of kernels that take the units of blocks.
const WITH_UNITS: &[Binding] = &[
    read("x", U32),
    read("codes", U32),
    read("w_scale", F32),
    read("units", F32),
    read_write("y", Float("Y")),
];

/// `rows` of `tokens` a workgroup, four of them by a team of lanes; a turn is a quad of words of
/// each.
const fn packed(rows: u32, tokens: u32) -> Source {
    const PARTS: &[Part] = wgsl![
        "shared/ids",
        "bitnet/row_quads",
        "bitnet/block_float_rows",
        "bitnet/bitlinear_block_float_packed"
    ];
    let lanes = 4 * 128 / rows;
    let source = Source::wgsl(PARTS).workgroup_size([128, 1, 1]).tile([rows, tokens, 1]);
    let source = source.workgroup_bytes(tokens * (16 * 128 + 4 * rows * (lanes / 2 + 1)));
    // Of a token, in two planes.
    source.work(Work::new(2 * 256, "products", 64 + 128, 2 * 2 * 256))
}

static PACKED: Kernel =
    Kernel::trusted("bitlinear_block_float_packed", Params::FIELDS, WITH_UNITS, &[packed(16, 1)]);
static PACKED_4: Kernel =
    Kernel::trusted("bitlinear_block_float_packed_4", Params::FIELDS, WITH_UNITS, &[packed(16, 4)])
        .entry("bitlinear_block_float_packed");

/// `rows` × `tokens` outputs a workgroup, of which a subgroup makes `down` × `across` matrices; a
/// turn is a block.
pub(super) const fn tensor_cores(
    source: Source,
    core: TensorCore,
    [rows, tokens]: [u32; 2],
    [down, across]: [u32; 2],
) -> Source {
    let subgroups = rows * tokens / (down * across * core.size * core.size);
    let threads = subgroups * core.lanes;
    let staged = (BLOCK as u32 + 16) * (rows + 2 * tokens);
    let stored = subgroups * core.size * (across * core.size + 4) * 4;
    let most = if staged > stored { staged } else { stored };
    let scales = 4 * (rows + 2 * tokens);
    source
        .workgroup_size([threads, 1, 1])
        .tile([rows, tokens, 1])
        .workgroup_bytes(most + scales + 4 * core.size * core.size)
}

/// A kernel on tensor cores by its parameters, bindings and parts.
macro_rules! tensor_cores_of_spirv {
    ($name:literal, $core:expr, $tile:expr, [$down:literal, $across:literal], lanes [$wide:literal, $lanes_across:literal]) => {
        $crate::ops::bitnet::bitlinear_block_float::tensor_cores_of_spirv!(
            $name, $core, $tile, [$down, $across], lanes [$wide, $lanes_across], Params, WITH_UNITS, CORES_PARTS
        )
    };
    ($name:literal, $core:expr, $tile:expr, [$down:literal, $across:literal], lanes [$wide:literal, $lanes_across:literal], $params:ty, $bindings:expr, $parts:expr) => {
        $crate::kernel::declaration::Kernel::trusted(
            $name,
            <$params>::FIELDS,
            $bindings,
            &[$crate::ops::bitnet::bitlinear_block_float::tensor_cores(
                $crate::kernel::source::Source::spirv($parts, $crate::kernel::source::spirv!($name)),
                $core,
                $tile,
                [$down, $across],
            )
            .constants(&[
                ("DOWN", $down),
                ("ACROSS", $across),
                ("WIDE", $wide),
                ("LANES_ACROSS", $lanes_across),
                ("BINDING", 4),
                ("DEPTH", $crate::ops::bitnet::quantize_block_float::BLOCK as u32),
            ])],
        )
        .entry("bitlinear_block_float_tensor_cores")
        .tensor_core($core)
    };
}
pub(super) use tensor_cores_of_spirv;

const CORES_PARTS: &[Part] = glsl![
    "shared/prelude",
    "shared/outputs",
    "bitnet/matrix_of_all",
    "bitnet/bitlinear_block_float_tensor_cores"
];

static CORES_16: Kernel = tensor_cores_of_spirv!("bitlinear_block_float_tensor_cores_16", INT8_CORE_16, [64, 64], [2, 2], lanes [2, 4]);
static CORES_16_LARGE: Kernel = tensor_cores_of_spirv!("bitlinear_block_float_tensor_cores_16_large", INT8_CORE_16, [128, 64], [2, 2], lanes [2, 4]);
/// For tests on software adapters.
static CORES_8: Kernel = tensor_cores_of_spirv!("bitlinear_block_float_tensor_cores_8", INT8_CORE_8, [32, 32], [2, 2], lanes [1, 8]);
static CORES_8_LARGE: Kernel = tensor_cores_of_spirv!("bitlinear_block_float_tensor_cores_8_large", INT8_CORE_8, [64, 32], [2, 2], lanes [1, 8]);

pub(super) const KERNELS: &[&Kernel] = &[
    &GEMV,
    &GEMV_4,
    &GEMV_QUADS,
    &GEMV_QUADS_4,
    &GEMM,
    &PACKED,
    &PACKED_4,
    &CORES_16,
    &CORES_16_LARGE,
    &CORES_8,
    &CORES_8_LARGE,
];

/// y = x·Wᵀ: `x` `[.., k]` in block floating point, `w` `[rows, k]` with any scales; gives
/// `[.., rows]`. For models whose activations are not quantized.
///
/// The products of a block, which are ±x or 0, are added exactly. The sum is multiplied by its
/// group's scale, and these products, each rounded, are added in the order of the columns. So what
/// comes of a row of `x` is bit-identical however many there are, by every kernel and on every
/// device, where no number is above 2^119, so that no sum of a block is infinite on its way.
///
/// # Errors
/// As [`bitlinear_block_float_into`].
pub(crate) fn bitlinear_block_float(
    encoder: &mut Encoder,
    x: &BlockFloatActivations,
    w: &TernaryMatrix,
) -> Result<Tensor<f32>> {
    let y = Tensor::uninit(encoder.context(), [x.tokens(), w.rows()])?;
    bitlinear_block_float_into(encoder, x, w, &y)?;
    Ok(y)
}

/// [`bitlinear_block_float`] into a tensor of the caller, `[.., rows]`.
///
/// # Errors
/// [`Error::Shape`] if `x` or the output does not fit `w`; [`Error::Invalid`] if the blocks of `x`
/// are not those of `w`.
pub(crate) fn bitlinear_block_float_into<'y, Y: Float>(
    encoder: &mut Encoder,
    x: &BlockFloatActivations,
    w: &TernaryMatrix,
    y: impl Into<Out<'y, Y>>,
) -> Result<()> {
    let (op, y) = ("bitlinear_block_float", y.into());
    let (m, n, k, block) = (x.tokens(), w.rows(), w.columns(), x.block());
    if x.features() != k {
        return Err(Error::Shape {
            op,
            what: "x",
            expected: format!("[m, {k}]"),
            found: [m, x.features()].into(),
        });
    }
    if block != block_columns(w.group()) {
        let what =
            format!("blocks of {block} columns, for a matrix of {}", block_columns(w.group()));
        return Err(Error::Invalid { op, what });
    }
    y.check(op, m, n)?;
    let blocks = k.div_ceil(block);
    let lanes = if x.layout == BlockFloatLayout::ByPlace { lanes(m, blocks) } else { 0 };
    let params = Params {
        m: m as u32,
        n: n as u32,
        blocks: blocks as u32,
        words: w.row_words() as u32,
        block_words: (block / CODES_PER_WORD) as u32,
        groups: (w.scales.len() / n.max(1)) as u32,
        group_blocks: w.group().map_or(blocks, |size| size / block).max(1) as u32,
        lanes,
        add: y.adds().into(),
    };
    let (kernel, extent) = match x.layout {
        BlockFloatLayout::ByPlace => {
            (plan_gemv(m, k, block), [n.div_ceil((4 * THREADS / lanes) as usize), m, 1])
        }
        BlockFloatLayout::InOrder => (&GEMM, [n, m, 1]),
        BlockFloatLayout::TensorCores => (on_tensor_cores(encoder, m, n), [n, m, 1]),
        BlockFloatLayout::Bytes => (if m <= 1 { &PACKED } else { &PACKED_4 }, [n, m, 1]),
    };
    let floats = x.values.cast::<f32>();
    let bindings: [&[&dyn Bind]; 2] = [
        &[&floats, &w.codes, &w.scales, y.tensor()],
        &[&x.values, &w.codes, &w.scales, &x.units, y.tensor()],
    ];
    encoder.dispatch(
        kernel,
        &params,
        bindings[usize::from(x.layout.is_bytes())],
        Extent::with_work(extent, product(&[n, m, k])),
    )
}

/// Lanes that share a row: as many as there are blocks, but at least four for each token, which
/// each of them adds up for a row.
pub(super) fn lanes(tokens: usize, blocks: usize) -> u32 {
    (blocks.next_power_of_two() as u32).clamp(if tokens == 1 { 4 } else { 16 }, 32)
}

fn plan_gemv(m: usize, k: usize, block: usize) -> &'static Kernel {
    let quads = block.is_multiple_of(4 * CODES_PER_WORD) && k.is_multiple_of(block);
    match (m <= 1, quads) {
        (true, false) => &GEMV,
        (false, false) => &GEMV_4,
        (true, true) => &GEMV_QUADS,
        (false, true) => &GEMV_QUADS_4,
    }
}

/// Whether tiles of 128 rows and 64 tokens take less time than those of 64 and 64, of which `cores`
/// are made at once, in 10 and in 7 units of time.
fn large_tiles(m: usize, n: usize, cores: usize) -> bool {
    let rounds = |rows: usize| n.div_ceil(rows).saturating_mul(m.div_ceil(64)).div_ceil(cores);
    rounds(128).saturating_mul(10) <= rounds(64).saturating_mul(7)
}

fn on_tensor_cores(encoder: &Encoder, m: usize, n: usize) -> &'static Kernel {
    let capabilities = encoder.context().capabilities();
    let large = large_tiles(m, n, capabilities.tuned(TuningKey::BlockFloatTensorCoreTiles));
    match (capabilities.tensor_cores.contains(&INT8_CORE_16), large) {
        (true, false) => &CORES_16,
        (true, true) => &CORES_16_LARGE,
        (false, false) => &CORES_8,
        (false, true) => &CORES_8_LARGE,
    }
}

#[cfg(any(test, feature = "reference"))]
pub(crate) mod reference {
    use super::*;

    /// CPU reference of [`BitLinear`](crate::bitnet::BitLinear) with block-floating-point
    /// activations, of one row as [`quantize_block_float`](crate::reference::quantize_block_float)
    /// gives it: bit-identical.
    ///
    /// # Errors
    /// [`Error::Length`] if it has another length.
    pub fn bitlinear_block_float(x: &[f32], w: &PackedTernary) -> Result<Vec<f32>> {
        if x.len() != w.columns() {
            return Err(Error::Length { shape: [w.columns()].into(), found: x.len() });
        }
        let (scales, block) = (w.row_scales(), block_columns(w.group()));
        let groups = scales.len() / w.rows().max(1);
        let group_blocks = w.group().map_or(usize::MAX, |size| size / block);
        let of_block = |row: usize, b: usize, x: &[f32]| {
            let sum = x
                .iter()
                .enumerate()
                .fold(0.0, |sum: f32, (i, x)| sum + f32::from(w.value(row, b * block + i)) * x);
            sum * scales[row * groups + b / group_blocks]
        };
        Ok((0..w.rows())
            .map(|row| {
                x.chunks(block).enumerate().fold(0.0, |all: f32, (b, x)| all + of_block(row, b, x))
            })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_those_that_were_faster() {
        // On an H200 with 132 cores: layers of Ternary-Bonsai of 8B, then of 1.7B.
        for (m, n, large) in [
            (128, 4096, false),
            (128, 24_576, true),
            (512, 4096, true),
            (512, 24_576, true),
            (2048, 24_576, true),
            (512, 2048, true),
            (512, 12_288, true),
        ] {
            assert_eq!(large_tiles(m, n, 132), large, "{m} × {n}");
        }
    }
}
