//! Which kernel computes a BitLinear: a pure function of the problem and the device.
//!
//! Constants were measured as docs/performance.md tells.

use super::{
    activations::Layout,
    bitlinear_kernels::{GEMM_HALF, GEMM_INT8, GEMV_BIASED, GEMV_HALF, GEMV_HALF_SOFTWARE, GEMV_INT8, GEMV_INT8_TALL, GROUPED},
};
use crate::{
    gpu::{capabilities::Capabilities, context::Context},
    kernel::declaration::Kernel,
    language::ShaderLanguage,
};

/// Up to this many tokens the weights' bytes are the cost, and a GEMV reads them fewest times.
const GEMV_TOKENS: usize = 8;

/// From so many rows on, a GEMV keeps a large GPU busy with four rows per team; fewer are better spread thin.
const TALL_ROWS: usize = 16_384;

/// The layout in which activations of so many features are best quantised: int8 where packed integer products are fast; halves on
/// Apple GPUs, which have none, as far as they are exact.
pub fn layout(features: usize, capabilities: &Capabilities, language: ShaderLanguage) -> Layout {
    let prefers_half = language == ShaderLanguage::Msl || !capabilities.fast_packed_dot;
    if prefers_half && features <= Layout::Half.max_features(capabilities.half_subnormals) { Layout::Half } else { Layout::Int8 }
}

/// [`layout`] on a context.
pub(super) fn layout_on(features: usize, context: &Context) -> Layout {
    layout(features, context.capabilities(), context.language())
}

/// The kernel for `tokens` activations in `layout`, times a matrix of `rows` that is scaled by groups or not.
pub fn plan(tokens: usize, rows: usize, layout: Layout, grouped: bool, capabilities: &Capabilities) -> &'static Kernel {
    match (layout, tokens <= GEMV_TOKENS) {
        _ if grouped => &GROUPED,
        (Layout::Int8, true) if rows >= TALL_ROWS => &GEMV_INT8_TALL,
        (Layout::Int8, true) => &GEMV_INT8,
        (Layout::Int8, false) => &GEMM_INT8,
        (Layout::Half, true) if capabilities.half_subnormals && capabilities.software => &GEMV_HALF_SOFTWARE,
        (Layout::Half, true) if capabilities.half_subnormals => &GEMV_HALF,
        (Layout::Half, true) => &GEMV_BIASED,
        (Layout::Half, false) => &GEMM_HALF,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ShaderLanguage::{Msl, Wgsl};

    #[test]
    fn apple_gets_halves_and_others_int8() {
        let (apple, other) = (Capabilities::example(true), Capabilities::example(false));
        assert_eq!(layout(2560, &apple, Msl), Layout::Half);
        assert_eq!(layout(2560, &apple, Wgsl), Layout::Half);
        assert_eq!(layout(2560, &other, Wgsl), Layout::Int8);
    }

    #[test]
    fn layouts_keep_to_where_they_are_exact() {
        let mut apple = Capabilities::example(true);
        assert_eq!(layout(65_536, &apple, Msl), Layout::Half);
        assert_eq!(layout(65_537, &apple, Msl), Layout::Int8);
        apple.half_subnormals = false;
        assert_eq!(layout(32_768, &apple, Msl), Layout::Half);
        assert_eq!(layout(32_769, &apple, Msl), Layout::Int8);
    }

    #[test]
    fn kernels() {
        let mut apple = Capabilities::example(true);
        let plan = |tokens, rows, layout, grouped, capabilities: &Capabilities| plan(tokens, rows, layout, grouped, capabilities).name;
        assert_eq!(plan(1, 2560, Layout::Half, false, &apple), "bitlinear_gemv_half");
        assert_eq!(plan(128, 2560, Layout::Half, false, &apple), "bitlinear_gemm_half");
        assert_eq!(plan(8, 2560, Layout::Int8, false, &apple), "bitlinear_gemv_int8");
        assert_eq!(plan(1, 16384, Layout::Int8, false, &apple), "bitlinear_gemv_int8_tall");
        assert_eq!(plan(9, 16384, Layout::Int8, false, &apple), "bitlinear_gemm_int8");
        assert_eq!(plan(128, 2560, Layout::Int8, true, &apple), "bitlinear_grouped");
        apple.software = true;
        assert_eq!(plan(1, 2560, Layout::Half, false, &apple), "bitlinear_gemv_half_software");
        apple.half_subnormals = false;
        assert_eq!(plan(1, 2560, Layout::Half, false, &apple), "bitlinear_gemv_biased");
    }
}
