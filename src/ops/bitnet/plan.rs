//! Which kernel computes a BitLinear: a pure function of the problem and the device. The numbers
//! that decide are in `src/tuning.rs`.

use super::{
    activations::Layout,
    bitlinear_gemm::{DIRECT, DIRECT_8, GEMM_F16, GEMM_F16_NARROW, GEMM_INT8},
    bitlinear_gemv::{
        GEMV_BIASED, GEMV_BIASED_4, GEMV_F16, GEMV_F16_2, GEMV_F16_4, GEMV_INT8, GEMV_INT8_2,
        GEMV_INT8_4, GEMV_INT8_4_BUSY, GEMV_INT8_8, GEMV_INT8_8_BUSY, GEMV_INT8_TALL,
    },
    bitlinear_tensor_cores::{CORES_8, CORES_16, INT8_CORES_8, INT8_CORES_16, OnTensorCore},
};
use crate::{
    gpu::{capabilities::Capabilities, context::Context},
    kernel::{declaration::Kernel, needs::TensorCore},
    language::ShaderLanguage,
    tuning::TuningKey,
};

/// The fewest rows that a workgroup of a GEMV of several tokens has; a dimension of a grid has only
/// this many workgroups.
const LEAST_TILE_ROWS: usize = 4;

/// The layout in which activations of this many features are best quantized: int8 where packed
/// integer products are fast; f16 on Apple GPUs, which have none, as far as they are exact; int8
/// on software adapters, whose kernel makes two rows' products by one integer multiplication.
pub fn layout(features: usize, capabilities: &Capabilities, language: ShaderLanguage) -> Layout {
    let prefers_f16 =
        language == ShaderLanguage::Msl || !(capabilities.fast_packed_dot || capabilities.software);
    if prefers_f16 && features <= Layout::F16.max_features(capabilities.f16_subnormals) {
        Layout::F16
    } else {
        Layout::Int8
    }
}

/// [`layout`] on a context.
pub(super) fn layout_on(features: usize, context: &Context) -> Layout {
    layout(features, context.capabilities(), context.language())
}

/// The kernel for `tokens` activations of this many `features` in `layout`, times a matrix of
/// `rows` without per-group scales.
pub fn plan(
    tokens: usize,
    rows: usize,
    features: usize,
    layout: Layout,
    capabilities: &Capabilities,
) -> &'static Kernel {
    &forms(tokens, rows, features, layout, capabilities)[0]
}

/// [`plan`], and behind it the kernel of the same product with an epilogue, if it has one.
pub(super) fn forms(
    tokens: usize,
    rows: usize,
    features: usize,
    layout: Layout,
    capabilities: &Capabilities,
) -> &'static [Kernel] {
    if layout == Layout::Int8
        && let Some(forms) = without_workgroup_memory(tokens, rows, capabilities)
            .or_else(|| on_tensor_core(tokens, rows, features, capabilities))
    {
        return forms;
    }
    let gemv_fits =
        tokens <= 1 || rows.div_ceil(LEAST_TILE_ROWS) <= capabilities.max_workgroups as usize;
    match layout {
        Layout::Int8 if gemv_fits && !capabilities.fast_packed_dot => {
            int8_expanded(tokens, rows, capabilities)
        }
        Layout::Int8 if gemv_fits => int8(tokens, rows, capabilities),
        Layout::Int8 => &GEMM_INT8,
        Layout::F16 if gemv_fits => half(tokens, capabilities),
        Layout::F16 => &GEMM_F16,
    }
}

/// The kernel for devices that gain nothing by workgroup memory.
fn without_workgroup_memory(
    tokens: usize,
    rows: usize,
    capabilities: &Capabilities,
) -> Option<&'static [Kernel]> {
    let kernel = if tokens <= 1 { &DIRECT } else { &DIRECT_8 };
    let [tile_rows, tile_tokens, _] = kernel[0].sources()[0].tile;
    let workgroups = rows.div_ceil(tile_rows as usize).max(tokens.div_ceil(tile_tokens as usize));
    let fits = workgroups <= capabilities.max_workgroups as usize;
    let pays = !capabilities.fast_packed_dot
        && tokens.saturating_mul(rows) <= capabilities.tuned(TuningKey::UntiledOutputs);
    (fits && pays).then_some(&kernel[..])
}

/// The kernel on tensor cores, where there is one, and where it is exact and the best. Quotients of
/// those for int8 count on fused multiply-adds.
fn on_tensor_core(
    tokens: usize,
    rows: usize,
    features: usize,
    capabilities: &Capabilities,
) -> Option<&'static [Kernel]> {
    let has = |core: Option<TensorCore>| {
        core.is_some_and(|core| capabilities.tensor_cores.contains(&core))
    };
    let many = |tokens_from, outputs_from| {
        let [tokens_from, outputs_from] =
            [tokens_from, outputs_from].map(|choice| capabilities.tuned(choice));
        tokens > capabilities.tuned(TuningKey::PackedGemvTokens)
            || tokens > tokens_from && tokens.saturating_mul(rows) >= outputs_from
    };
    let tiles = |side: usize| rows.div_ceil(side).saturating_mul(tokens.div_ceil(side));
    // Up to 64 tokens, half of a large tile would be empty.
    let large = |tiles_from| tokens > 64 && tiles(128) >= capabilities.tuned(tiles_from);
    if features == 0 {
        return None;
    }
    let int8 = [&INT8_CORES_16, &INT8_CORES_8].into_iter().find(|on| has(on.core()));
    if let Some(on) = int8.filter(|_| capabilities.fused_multiply_add) {
        return many(TuningKey::Int8TensorCoreTokens, TuningKey::Int8TensorCoreOutputs).then(
            || match tiles(64) {
                _ if large(TuningKey::Int8TensorCoreLargeTiles) => &on.large[..],
                tiles if tiles <= capabilities.tuned(TuningKey::Int8TensorCoreDeepTiles) => {
                    &on.deep
                }
                _ => &on.small,
            },
        );
    }
    if !many(TuningKey::TensorCoreTokens, TuningKey::TensorCoreOutputs)
        || features > OnTensorCore::MAX_FEATURES
    {
        return None;
    }
    let on = [&CORES_16, &CORES_8].into_iter().find(|on| has(on.core()))?;
    Some(if large(TuningKey::TensorCoreLargeTiles) { &on.large } else { &on.small })
}

/// The GEMV whose pass has room for the tokens, at most eight of them.
fn int8(tokens: usize, rows: usize, capabilities: &Capabilities) -> &'static [Kernel] {
    let busy = |in_a_pass| {
        rows.div_ceil(4).saturating_mul(tokens.div_ceil(in_a_pass))
            >= capabilities.tuned(TuningKey::GemvUnsplitTiles)
    };
    match tokens {
        0..=1 if rows >= capabilities.tuned(TuningKey::GemvTallTileRows) => &GEMV_INT8_TALL,
        0..=1 => &GEMV_INT8,
        _ if tokens > capabilities.tuned(TuningKey::PackedGemvTokens) => &GEMM_INT8,
        2 => &GEMV_INT8_2,
        3..=4 if busy(4) => &GEMV_INT8_4_BUSY,
        3..=4 => &GEMV_INT8_4,
        _ if busy(8) => &GEMV_INT8_8_BUSY,
        _ => &GEMV_INT8_8,
    }
}

/// Where a packed product is expanded to sixteen instructions: what fits an Apple GPU's registers.
fn int8_expanded(tokens: usize, rows: usize, capabilities: &Capabilities) -> &'static [Kernel] {
    match tokens {
        0..=1 => int8(tokens, rows, capabilities),
        _ if tokens > capabilities.tuned(TuningKey::GemvTokens) => &GEMM_INT8,
        2 => &GEMV_INT8_2,
        _ => &GEMV_INT8_4,
    }
}

/// The GEMV whose pass has room for the tokens, at most four of them.
fn half(tokens: usize, capabilities: &Capabilities) -> &'static [Kernel] {
    match tokens {
        0..=1 if !capabilities.f16_subnormals => &GEMV_BIASED,
        0..=1 => &GEMV_F16,
        _ if tokens > capabilities.tuned(TuningKey::GemvTokens) => {
            match tokens <= capabilities.tuned(TuningKey::NarrowTileTokens) {
                true => &GEMM_F16_NARROW,
                false => &GEMM_F16,
            }
        }
        _ if !capabilities.f16_subnormals => &GEMV_BIASED_4,
        2 => &GEMV_F16_2,
        _ => &GEMV_F16_4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ShaderLanguage::{Msl, Wgsl};

    #[test]
    fn apple_gets_f16_and_others_int8() {
        let (apple, other) = (Capabilities::example(true), Capabilities::example(false));
        assert_eq!(layout(2560, &apple, Msl), Layout::F16);
        assert_eq!(layout(2560, &apple, Wgsl), Layout::F16);
        assert_eq!(layout(2560, &other, Wgsl), Layout::Int8);
    }

    #[test]
    fn layouts_keep_to_where_they_are_exact() {
        let mut apple = Capabilities::example(true);
        assert_eq!(layout(65_536, &apple, Msl), Layout::F16);
        assert_eq!(layout(65_537, &apple, Msl), Layout::Int8);
        apple.f16_subnormals = false;
        assert_eq!(layout(32_768, &apple, Msl), Layout::F16);
        assert_eq!(layout(32_769, &apple, Msl), Layout::Int8);
    }

    #[test]
    fn kernels() {
        let (mut apple, other) = (Capabilities::example(true), Capabilities::example(false));
        let plan = |tokens, rows, layout, capabilities: &Capabilities| {
            plan(tokens, rows, 2560, layout, capabilities).name
        };
        assert_eq!(plan(1, 2560, Layout::F16, &apple), "bitlinear_gemv_f16");
        assert_eq!(plan(2, 2560, Layout::F16, &apple), "bitlinear_gemv_f16_2");
        assert_eq!(plan(3, 2560, Layout::F16, &apple), "bitlinear_gemv_f16_4");
        assert_eq!(plan(24, 2560, Layout::F16, &apple), "bitlinear_gemv_f16_4");
        assert_eq!(plan(25, 2560, Layout::F16, &apple), "bitlinear_gemm_f16_narrow");
        assert_eq!(plan(33, 2560, Layout::F16, &apple), "bitlinear_gemm_f16");
        assert_eq!(plan(1, 2560, Layout::Int8, &other), "bitlinear_gemv_int8");
        assert_eq!(plan(1, 16384, Layout::Int8, &other), "bitlinear_gemv_int8_tall");
        assert_eq!(plan(2, 16384, Layout::Int8, &other), "bitlinear_gemv_int8_2");
        assert_eq!(plan(4, 8188, Layout::Int8, &other), "bitlinear_gemv_int8_4");
        assert_eq!(plan(4, 8189, Layout::Int8, &other), "bitlinear_gemv_int8_4_busy");
        assert_eq!(plan(5, 2560, Layout::Int8, &other), "bitlinear_gemv_int8_8");
        assert_eq!(plan(24, 2560, Layout::Int8, &other), "bitlinear_gemv_int8_8");
        assert_eq!(plan(25, 2560, Layout::Int8, &other), "bitlinear_gemv_int8_8_busy");
        assert_eq!(plan(2, 262_140, Layout::Int8, &other), "bitlinear_gemv_int8_2");
        assert_eq!(plan(2, 262_141, Layout::Int8, &other), "bitlinear_gemm_int8");
        assert_eq!(plan(2, 262_141, Layout::F16, &apple), "bitlinear_gemm_f16");
        assert_eq!(plan(257, 2560, Layout::Int8, &other), "bitlinear_gemm_int8");
        assert_eq!(plan(2, 16384, Layout::Int8, &apple), "bitlinear_gemv_int8_2");
        assert_eq!(plan(8, 16384, Layout::Int8, &apple), "bitlinear_gemv_int8_4");
        assert_eq!(plan(25, 16384, Layout::Int8, &apple), "bitlinear_gemm_int8");
        apple.f16_subnormals = false;
        assert_eq!(plan(1, 2560, Layout::F16, &apple), "bitlinear_gemv_biased");
        assert_eq!(plan(2, 2560, Layout::F16, &apple), "bitlinear_gemv_biased_4");
    }

    #[test]
    fn software_adapters_have_kernels_without_workgroup_memory() {
        let mut software = Capabilities::example(true);
        (software.apple, software.software, software.max_workgroups) = (false, true, 1000);
        assert_eq!(
            (layout(2560, &software, Wgsl), layout(2560, &software, Msl)),
            (Layout::Int8, Layout::F16)
        );
        let name =
            |tokens, rows, features| plan(tokens, rows, features, Layout::Int8, &software).name;
        assert_eq!(
            [name(0, 8, 64), name(1, 64_000, 131_071), name(2, 8, 0)],
            ["bitlinear_direct", "bitlinear_direct", "bitlinear_direct_8"]
        );
        assert_eq!(name(8000, 64_000, 64), "bitlinear_direct_8");
        // Where the grid has too few workgroups.
        assert_eq!(
            [name(8001, 8, 64), name(1, 64_001, 64)],
            ["bitlinear_gemm_int8", "bitlinear_gemv_int8_tall"]
        );
        software.tuning.set(TuningKey::UntiledOutputs, 4096).unwrap();
        let name = |tokens, rows| plan(tokens, rows, 64, Layout::Int8, &software).name;
        assert_eq!([name(8, 512), name(8, 513)], ["bitlinear_direct_8", "bitlinear_gemv_int8_4"]);
    }

    #[test]
    fn tensor_core_kernels_fit_into_workgroup_memory() {
        let of_f16 =
            [&CORES_16, &CORES_8].into_iter().flat_map(|on| on.large.iter().chain(&on.small));
        let of_int8 = [&INT8_CORES_16, &INT8_CORES_8]
            .into_iter()
            .flat_map(|on| [&on.large, &on.small, &on.deep])
            .flatten();
        for kernel in of_f16.chain(of_int8) {
            assert!(
                kernel.source_for(Wgsl).workgroup_bytes
                    <= kernel.tensor_core.unwrap().workgroup_bytes(),
                "{}",
                kernel.name
            );
        }
    }

    #[test]
    fn units_for_int8_come_first() {
        let mut with = Capabilities::example(false);
        with.tensor_cores = vec![TensorCore::new(16, 32), TensorCore::int8(16, 32, 32)];
        let name = |tokens, rows, features| plan(tokens, rows, features, Layout::Int8, &with).name;
        assert_eq!(name(16, 13_824, 2560), "bitlinear_gemv_int8_8_busy");
        assert_eq!(name(34, 6912, 2560), "bitlinear_gemv_int8_8_busy");
        assert_eq!(name(35, 6912, 2560), "bitlinear_gemm_int8_tensor_cores_16_deep");
        assert_eq!(name(64, 8448, 2560), "bitlinear_gemm_int8_tensor_cores_16_deep");
        assert_eq!(name(64, 8449, 2560), "bitlinear_gemm_int8_tensor_cores_16");
        assert_eq!(name(128, 13_824, 2560), "bitlinear_gemm_int8_tensor_cores_16_large");
        assert_eq!(name(128, 8064, 2560), "bitlinear_gemm_int8_tensor_cores_16");
        assert_eq!(name(128, 8065, 2560), "bitlinear_gemm_int8_tensor_cores_16_large");
        assert_eq!(name(512, 2560, 6912), "bitlinear_gemm_int8_tensor_cores_16_large");
        // Sums of 32 bits, as in every kernel for int8.
        assert_eq!(name(512, 4096, 65_537), "bitlinear_gemm_int8_tensor_cores_16_large");
        assert_eq!(name(512, 4096, 0), "bitlinear_gemm_int8");
        with.fused_multiply_add = false;
        assert_eq!(
            plan(512, 4096, 2560, Layout::Int8, &with).name,
            "bitlinear_gemm_tensor_cores_16_large"
        );
    }

    #[test]
    fn tensor_cores_make_many_tokens_of_whole_matrices() {
        let mut with = Capabilities::example(false);
        with.tensor_cores = vec![TensorCore::new(16, 64), TensorCore::new(16, 32)];
        let name =
            |tokens, rows, features, layout| plan(tokens, rows, features, layout, &with).name;
        assert_eq!(name(32, 13_824, 2560, Layout::Int8), "bitlinear_gemv_int8_8_busy");
        assert_eq!(name(64, 13_824, 2560, Layout::Int8), "bitlinear_gemm_tensor_cores_16");
        assert_eq!(name(65, 13_824, 2560, Layout::Int8), "bitlinear_gemm_tensor_cores_16_large");
        assert_eq!(name(117, 2560, 2560, Layout::Int8), "bitlinear_gemv_int8_8_busy");
        assert_eq!(name(118, 2560, 2560, Layout::Int8), "bitlinear_gemm_tensor_cores_16");
        assert_eq!(name(257, 1, 1, Layout::Int8), "bitlinear_gemm_tensor_cores_16");
        assert_eq!(name(512, 2944, 2560, Layout::Int8), "bitlinear_gemm_tensor_cores_16");
        assert_eq!(name(512, 2945, 2560, Layout::Int8), "bitlinear_gemm_tensor_cores_16_large");
        assert_eq!(name(512, 4096, 65_536, Layout::Int8), "bitlinear_gemm_tensor_cores_16_large");
        // Where sums would not be exact, or there is nothing to load.
        assert_eq!(name(512, 4096, 65_537, Layout::Int8), "bitlinear_gemm_int8");
        assert_eq!(name(512, 4096, 0, Layout::Int8), "bitlinear_gemm_int8");
        assert_eq!(name(512, 4096, 2560, Layout::F16), "bitlinear_gemm_f16");
        with.tensor_cores = vec![TensorCore::new(8, 8)];
        assert_eq!(plan(300, 64, 64, Layout::Int8, &with).name, "bitlinear_gemm_tensor_cores_8");
    }
}
