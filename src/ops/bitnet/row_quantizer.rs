//! What the ops that end by quantising rows share: a kernel for each layout of activations, one workgroup per row.

/// Declares the kernels `INT8` and `HALF` of an op: `$file` computes the numbers of a row, `$wgsl` and `$msl` are the parts that it needs besides
/// those of the quantiser. A thread holds `$held` quads of a row. More make a longer text, which takes longer to fetch,
/// whether a row has so many or not.
macro_rules! row_quantizer {
    (
        $(#[$meta:meta])* $int8:ident = $int8_name:literal, $half:ident = $half_name:literal, $entry:literal in $file:literal,
        $params:ty, $bindings:expr, $held:literal, $work:expr, wgsl [$($wgsl:tt),*], msl [$($msl:tt),*]
    ) => {
        $(#[$meta])*
        static $int8: $crate::kernel::declaration::Kernel = $crate::ops::bitnet::row_quantizer::kernel(
            $int8_name,
            $entry,
            <$params as $crate::kernel::params::Params>::FIELDS,
            $bindings,
            &[
                $crate::kernel::source::Source::wgsl($crate::wgsl![
                    REDUCE, CELLS, EXACT, "bitnet/absmax_scale", "shared/row", $($wgsl,)* "shared/flat", "bitnet/layout_int8", "bitnet/quantize_row", $file
                ])
                .workgroup_size([256, 1, 1])
                .tile([1, 1, 1])
                .constants(&[("HELD", $held)])
                .workgroup_bytes(1056)
                .work($work),
                $crate::kernel::source::Source::msl($crate::msl![
                    "shared/prelude", "shared/exact", "bitnet/absmax_scale", "shared/reduce", $($msl,)* "bitnet/layout_int8", "bitnet/quantize_row", $file
                ])
                .workgroup_size([256, 1, 1])
                .tile([1, 1, 1]).workgroup_bytes(256)
                .work($work),
            ],
        );
        $(#[$meta])*
        static $half: $crate::kernel::declaration::Kernel = $crate::ops::bitnet::row_quantizer::kernel(
            $half_name,
            $entry,
            <$params as $crate::kernel::params::Params>::FIELDS,
            $bindings,
            &[
                $crate::kernel::source::Source::wgsl($crate::wgsl![
                    REDUCE, CELLS, EXACT, "bitnet/absmax_scale", "shared/row", $($wgsl,)* "shared/flat", "bitnet/half_planes", "bitnet/layout_half", "bitnet/quantize_row", $file
                ])
                .workgroup_size([256, 1, 1])
                .tile([1, 1, 1])
                .constants(&[("HELD", $held)])
                .workgroup_bytes(1056)
                .work($work),
                $crate::kernel::source::Source::msl($crate::msl![
                    "shared/prelude", "shared/exact", "bitnet/absmax_scale", "shared/reduce", $($msl,)* "bitnet/layout_half", "bitnet/quantize_row", $file
                ])
                .workgroup_size([256, 1, 1])
                .tile([1, 1, 1]).workgroup_bytes(256)
                .work($work),
            ],
        );
    };
}
pub(super) use row_quantizer;

/// A kernel whose threads share rows, in WGSL and Metal: `$words` words of workgroup memory a thread, and parts that are there in both languages,
/// besides exact quotients.
macro_rules! shared_rows {
    ($name:literal, $params:ty, $bindings:expr, $words:expr, $work:expr, [$($part:literal),+ $(,)?]) => {{
        use $crate::{
            kernel::{declaration::Kernel, source::{EXACT, Source}},
            ops::reduce::by_rows,
        };
        Kernel::trusted(
            $name,
            <$params as $crate::kernel::params::Params>::FIELDS,
            $bindings,
            &[
                by_rows(Source::wgsl($crate::wgsl!["shared/ids", "shared/flat", EXACT, $($part),+]), $words).work($work),
                by_rows(Source::msl($crate::msl!["shared/prelude", "shared/exact", $($part),+]), $words).work($work),
            ],
        )
        .flat()
    }};
}
pub(super) use shared_rows;

use crate::kernel::{binding::Binding, declaration::Kernel, params::Fields, source::Source};

/// A kernel that takes one row per workgroup.
pub const fn kernel(
    name: &'static str,
    entry: &'static str,
    params: Fields,
    bindings: &'static [Binding],
    sources: &'static [Source],
) -> Kernel {
    Kernel::trusted(name, params, bindings, sources).entry(entry).flat()
}
