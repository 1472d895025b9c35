//! Shared by the ops that end by quantizing rows: kernels for each layout of activations, one
//! workgroup or one thread per row.

/// The kernels of an op: in each layout for rows of any length, for rows of whole quads, and for
/// short ones of these, of which a workgroup of half as many threads holds every number; and that
/// for many rows on software adapters, of which a thread has one alone, in their layout.
pub struct RowQuantizer {
    pub int8: [Kernel; 3],
    pub half: [Kernel; 3],
    pub alone: Kernel,
}

impl RowQuantizer {
    pub const fn kernels(&'static self) -> [&'static Kernel; 7] {
        let ([int8, whole_int8, short_int8], [half, whole_half, short_half]) =
            (&self.int8, &self.half);
        [int8, half, whole_int8, whole_half, short_int8, short_half, &self.alone]
    }

    pub fn choose(
        &'static self,
        layout: Layout,
        tokens: usize,
        features: usize,
        encoder: &Encoder,
    ) -> &'static Kernel {
        let capabilities = encoder.context().capabilities();
        if layout == Layout::Int8 && tokens >= capabilities.tuned(TuningKey::RowPerThread) {
            return &self.alone;
        }
        let at = match capabilities.tuned(TuningKey::SmallWorkgroupFeatures) {
            most if most == 0 || !features.is_multiple_of(4) => 0,
            most if features > most => 1,
            _ => 2,
        };
        layout.choose(&self.int8[at], &self.half[at])
    }
}

/// Declares a [`RowQuantizer`]: `$file` computes the numbers of a row, `$wgsl` and `$msl` are the
/// parts that it needs besides those of the quantizer, `$any` and `$whole` those that load numbers
/// and quads. A thread holds `$held` quads of a row of any length. More make a longer source, which
/// takes longer to fetch, whether a row has as many or not.
macro_rules! row_quantizer {
    ($stem:literal, $($row:tt)*) => {{
        use $crate::{
            kernel::{params::Params as _, source::{CELLS, EXACT, REDUCE, Source}},
            ops::bitnet::row_quantizer::{RowQuantizer, kernel, one_row, row_alone, short_rows, whole_rows},
        };
        RowQuantizer {
            int8: row_quantizer!(@layout concat!($stem, "_int8"), ["bitnet/layout_int8"] ["bitnet/layout_int8"] $($row)*),
            half: row_quantizer!(
                @layout concat!($stem, "_f16"), ["bitnet/f16_planes", "bitnet/layout_f16"] ["bitnet/layout_f16"] $($row)*
            ),
            alone: row_quantizer!(@alone concat!($stem, "_int8_alone"), $($row)*),
        }
    }};
    (
        @layout $name:expr, [$($layout:tt),*] [$($msl_layout:tt),*]
        $entry:literal in $file:literal, $params:ty, $bindings:expr, $held:literal, $work:expr,
        wgsl [$($wgsl:tt),*], any [$($any:tt),*], whole [$($whole:tt),*], msl [$($msl:tt),*]
    ) => {{
        const ANY: Source = row_quantizer!(@wgsl $work, "shared/row_any", $($any,)* $($wgsl,)* $($layout,)* "bitnet/quantize_row", $file);
        const WHOLE: Source =
            row_quantizer!(@wgsl $work, "shared/row_whole", $($whole,)* $($wgsl,)* $($layout,)* "bitnet/quantize_row", $file);
        const MSL: Source = one_row(
            Source::msl($crate::msl![
                "shared/prelude", "shared/exact", "bitnet/absmax_scale", "shared/reduce", $($msl,)* $($msl_layout,)* "bitnet/quantize_row", $file
            ]),
            $work,
        );
        const SOURCES: &[Source] = &[ANY.workgroup_bytes(1056).constants(&[("HELD", $held)]), MSL.workgroup_bytes(256)];
        [
            kernel($name, $entry, <$params>::FIELDS, $bindings, SOURCES),
            kernel(concat!($name, "_whole"), $entry, <$params>::FIELDS, $bindings, &[whole_rows(WHOLE)]),
            kernel(concat!($name, "_short"), $entry, <$params>::FIELDS, $bindings, &[short_rows(WHOLE)]),
        ]
    }};
    (@wgsl $work:expr, $($part:tt),*) => {
        one_row(
            Source::wgsl($crate::wgsl![
                REDUCE, CELLS, EXACT, "bitnet/absmax_scale", "shared/flat", "shared/row_of_group", "shared/row", $($part),*
            ]),
            $work,
        )
    };
    (
        @alone $name:expr, $entry:literal in $file:literal, $params:ty, $bindings:expr, $held:literal, $work:expr,
        wgsl [$($wgsl:tt),*], any [$($any:tt),*], whole [$($whole:tt),*], msl [$($msl:tt),*]
    ) => {{
        const ALONE: Source = Source::wgsl($crate::wgsl![
            "shared/ids", EXACT, "bitnet/absmax_scale", "shared/flat", "shared/row_of_thread", "shared/row", "shared/row_any",
            $($any,)* $($wgsl,)* "bitnet/layout_int8", "bitnet/quantize_row", $file
        ]);
        kernel($name, $entry, <$params>::FIELDS, $bindings, &[row_alone(ALONE, $work)])
    }};
}
pub(super) use row_quantizer;

/// Threads of a workgroup that holds short rows.
const SHORT_THREADS: u32 = 128;

/// Rows of up to 2560 numbers, held whole.
pub const fn short_rows(source: Source) -> Source {
    source
        .workgroup_bytes(4 * SHORT_THREADS + 32)
        .workgroup_size([SHORT_THREADS, 1, 1])
        .tile([1, 1, 1])
        .constants(&[("HELD", 5)])
}

/// Rows of which up to 7168 numbers are held.
pub const fn whole_rows(source: Source) -> Source {
    source.workgroup_bytes(1056).constants(&[("HELD", 7)])
}

/// One row for a workgroup.
pub const fn one_row(source: Source, work: Work) -> Source {
    source.workgroup_size([256, 1, 1]).tile([1, 1, 1]).work(work)
}

/// Sixteen rows for a workgroup, each read again whenever it is needed.
pub const fn row_alone(source: Source, work: Work) -> Source {
    source.workgroup_size([16, 1, 1]).constants(&[("HELD", 1)]).work(work)
}

/// A kernel whose threads share rows, in WGSL and Metal: `$words` words of workgroup memory a
/// thread, and parts that are there in both languages, besides exact quotients.
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

use super::activations::Layout;
use crate::{
    gpu::encoder::Encoder,
    kernel::{
        binding::Binding,
        declaration::Kernel,
        params::Fields,
        source::{Source, Work},
    },
    tuning::TuningKey,
};

/// A kernel that takes rows, however the grid is folded.
pub const fn kernel(
    name: &'static str,
    entry: &'static str,
    params: Fields,
    bindings: &'static [Binding],
    sources: &'static [Source],
) -> Kernel {
    Kernel::trusted(name, params, bindings, sources).entry(entry).flat()
}
