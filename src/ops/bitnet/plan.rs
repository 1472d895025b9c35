//! Which kernel computes a BitLinear: a pure function of the problem and the device.
//!
//! Constants were measured as docs/performance.md tells.

use super::Layout;
use crate::{Capabilities, ShaderLanguage};

/// The most input features: up to here |Σ xq·Wq| ≤ 128·k < 2^24, so that the sum is exact as an `f32`, in any order.
pub const MAX_FEATURES: usize = (1 << 17) - 1;

/// Up to this many tokens the weights' bytes are the cost, and a GEMV reads them fewest times.
const GEMV_TOKENS: usize = 8;

/// From so many rows on, a GEMV keeps a large GPU busy with four rows a team; fewer are better spread thin.
const TALL_ROWS: usize = 16_384;

/// How a BitLinear is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Few tokens: a team of lanes a row, by packed integer dot products.
    GemvInt8,
    /// The same for many rows.
    GemvInt8Tall,
    /// Few tokens, half layout, on masked fields as subnormal halves.
    GemvHalf,
    /// The same on a processor that plays a GPU: more rows a workgroup.
    GemvHalfSoftware,
    /// Few tokens, half layout, where subnormal halves are flushed.
    GemvBiased,
    /// Many tokens, by tiles and packed integer dot products.
    GemmInt8,
    /// Many tokens, half layout: by tiles in float arithmetic, in MSL on matrix units.
    GemmHalf,
    /// Scales by groups of columns, int8 layout.
    Grouped,
}

impl Layout {
    /// The most features for which every kernel on this layout is exact.
    pub const fn max_features(self, half_subnormals: bool) -> usize {
        match (self, half_subnormals) {
            (Self::Int8, _) => MAX_FEATURES,
            // Raw codes are 0 to 2: |Σ code·x| ≤ 2·128·k ≤ 2^24.
            (Self::Half, true) => 1 << 16,
            // |Σ (1024·4^-f + code)·x| ≤ 128·342·k on average over the fields, in an i32.
            (Self::Half, false) => 1 << 15,
        }
    }
}

/// The layout in which activations of so many features are best quantised: int8 where packed integer products are fast; halves on
/// Apple GPUs, which have none, as far as they are exact.
pub fn layout(features: usize, capabilities: &Capabilities, language: ShaderLanguage) -> Layout {
    let prefers_half = language == ShaderLanguage::Msl || !capabilities.fast_packed_dot;
    if prefers_half && features <= Layout::Half.max_features(capabilities.half_subnormals) { Layout::Half } else { Layout::Int8 }
}

/// The kernel for `tokens` activations in `layout`, times a matrix of `rows` that is scaled by groups or not.
pub fn plan(tokens: usize, rows: usize, layout: Layout, grouped: bool, capabilities: &Capabilities) -> Method {
    match (layout, tokens <= GEMV_TOKENS) {
        _ if grouped => Method::Grouped,
        (Layout::Int8, true) if rows >= TALL_ROWS => Method::GemvInt8Tall,
        (Layout::Int8, true) => Method::GemvInt8,
        (Layout::Int8, false) => Method::GemmInt8,
        (Layout::Half, true) if capabilities.half_subnormals && capabilities.software => Method::GemvHalfSoftware,
        (Layout::Half, true) if capabilities.half_subnormals => Method::GemvHalf,
        (Layout::Half, true) => Method::GemvBiased,
        (Layout::Half, false) => Method::GemmHalf,
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
    fn methods() {
        let mut apple = Capabilities::example(true);
        assert_eq!(plan(1, 2560, Layout::Half, false, &apple), Method::GemvHalf);
        assert_eq!(plan(128, 2560, Layout::Half, false, &apple), Method::GemmHalf);
        assert_eq!(plan(8, 2560, Layout::Int8, false, &apple), Method::GemvInt8);
        assert_eq!(plan(1, 16384, Layout::Int8, false, &apple), Method::GemvInt8Tall);
        assert_eq!(plan(9, 16384, Layout::Int8, false, &apple), Method::GemmInt8);
        assert_eq!(plan(128, 2560, Layout::Int8, true, &apple), Method::Grouped);
        apple.software = true;
        assert_eq!(plan(1, 2560, Layout::Half, false, &apple), Method::GemvHalfSoftware);
        apple.half_subnormals = false;
        assert_eq!(plan(1, 2560, Layout::Half, false, &apple), Method::GemvBiased);
    }
}
