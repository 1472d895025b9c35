//! A kernel's source in one language, and the numbers that belong to it.

use crate::{language::ShaderLanguage, visibility::internal_fields};

internal_fields! {
    /// A piece of shader source and the file it came from.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Part {}
    internals {
        /// The file, relative to the crate that includes it.
        path: &'static str,
        /// Its source.
        source: &'static str,
        /// Its functions without subgroup operations, where `source` uses them.
        portable: Option<&'static str>,
        /// Its functions for devices whose `fma` may round the product, where `source` counts on one
        /// that does not.
        unfused: Option<&'static str>,
    }
}

impl Part {
    /// A part that every adapter can run.
    pub const fn new(path: &'static str, source: &'static str) -> Self {
        Self { path, source, portable: None, unfused: None }
    }
}

/// A place among the parts of a source for those that `Kernel::fill` names, in
/// Metal `Kernel::fill_msl`: one list of parts for kernels that differ
/// there.
pub const HOLE: Part = Part::new("", "");

/// Sums and maxima over a team of lanes and over a workgroup: with subgroup operations where the
/// adapter has them, else through workgroup memory. `wgsl/shared/reduce.wgsl` documents the
/// functions.
pub const REDUCE: Part = Part {
    path: "wgsl/shared/reduce.wgsl",
    source: include_str!("../../wgsl/shared/reduce.wgsl"),
    portable: Some(include_str!("../../wgsl/shared/reduce_portable.wgsl")),
    unfused: None,
};

/// Maxima and sums of integers over a workgroup with one barrier each, by atomics in workgroup
/// memory; after `REDUCE`. `wgsl/shared/cells.wgsl` documents the functions.
pub const CELLS: Part = Part {
    path: "wgsl/shared/cells.wgsl",
    source: include_str!("../../wgsl/shared/cells.wgsl"),
    portable: Some(include_str!("../../wgsl/shared/cells_portable.wgsl")),
    unfused: None,
};

/// The functions of [`CELLS`] for hot kernels, by shuffles where subgroups have 32 lanes.
/// `wgsl/shared/cells_shuffled.wgsl` says why.
pub const CELLS_SHUFFLED: Part = Part {
    path: "wgsl/shared/cells_shuffled.wgsl",
    source: include_str!("../../wgsl/shared/cells_shuffled.wgsl"),
    portable: Some(include_str!("../../wgsl/shared/cells_portable.wgsl")),
    unfused: None,
};

/// Quotients and roots, correctly rounded: by fused multiply-adds where the device has them, else
/// in integers. `wgsl/shared/exact.wgsl` documents the functions.
pub const EXACT: Part = Part {
    path: "wgsl/shared/exact.wgsl",
    source: include_str!("../../wgsl/shared/exact.wgsl"),
    portable: None,
    unfused: Some(include_str!("../../wgsl/shared/exact_unfused.wgsl")),
};

/// What one thread does in one turn of a source's hot loop: for instruction counts per unit of work,
/// and for roofs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Work {
    /// How many units.
    pub count: u32,
    /// Of what: `"weights"`, `"elements"`, ...
    pub unit: &'static str,
    /// Bytes that it loads from and stores to storage buffers.
    pub bytes: u32,
    /// Arithmetic operations that the formula asks for; a multiply-add is two.
    pub operations: u32,
}

impl Work {
    /// `count` `unit`s, for which `bytes` move and `operations` are done.
    pub const fn new(count: u32, unit: &'static str, bytes: u32, operations: u32) -> Self {
        Self { count, unit, bytes, operations }
    }
}

internal_fields! {
    /// One language's source, and the numbers that belong to it. Built by `const` functions:
    ///
    /// ```
    /// use bitnet_wgpu::kernel::{Part, Source};
    /// const TEXT: &[Part] = &[Part::new("scale", "...")];
    /// // 4 outputs per thread; without `tile`, it would be one.
    /// const SOURCE: Source = Source::wgsl(TEXT).workgroup_size([64, 1, 1]).tile([256, 1, 1]);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub struct Source {
        /// What the source was compiled to, where that is SPIR-V: of each variant, in the order of
        /// `Kernel::variants`.
        pub(crate) binaries: &'static [&'static [u8]],
    }
    internals {
        /// The language of `parts`.
        language: ShaderLanguage,
        /// The source, in parts that are joined.
        parts: &'static [Part],
        /// Threads of a workgroup: `WG_X`, `WG_Y`, `WG_Z` in the shader.
        workgroup_size: [u32; 3],
        /// Outputs that a workgroup covers: `TILE_X`, `TILE_Y`, `TILE_Z` in the shader. The grid
        /// follows from it.
        tile: [u32; 3],
        /// More numbers, by name.
        constants: &'static [(&'static str, u32)],
        /// Bytes of workgroup memory; where parts have a portable form, of the form that uses more.
        workgroup_bytes: u32,
        /// What a turn of its hot loop does; none where there is no loop worth counting.
        work: Option<Work>,
    }
}

impl Source {
    /// A WGSL source. Its workgroups have 64 threads, each of which makes one output, unless said
    /// otherwise.
    pub const fn wgsl(parts: &'static [Part]) -> Self {
        Self::new(ShaderLanguage::Wgsl, parts)
    }

    /// A Metal source; else as [`Source::wgsl`].
    ///
    /// ```
    /// use bitnet_wgpu::kernel::{Part, Source};
    /// const PARTS: &[Part] = &[Part::new("scale", "...")];
    /// // SAFETY: it compares its index with the length of its buffers.
    /// const SOURCE: Source = unsafe { Source::msl_unchecked(PARTS) };
    /// ```
    ///
    /// ```compile_fail,E0133
    /// # use bitnet_wgpu::kernel::Source;
    /// Source::msl_unchecked(&[]); // without `unsafe`
    /// ```
    ///
    /// # Safety
    /// The source must keep to the bounds of its buffers: it reaches the driver without checks. Its
    /// signature is compared with the declaration.
    #[allow(unsafe_code)]
    pub const unsafe fn msl_unchecked(parts: &'static [Part]) -> Self {
        Self::msl(parts)
    }

    /// A Metal source of this crate, which tests run with checks.
    pub(crate) const fn msl(parts: &'static [Part]) -> Self {
        Self::new(ShaderLanguage::Msl, parts)
    }

    /// A source in GLSL, and the SPIR-V that `scripts/spirv` made of it; else as [`Source::wgsl`]. A
    /// driver runs the binaries unchecked, so that only this crate makes one.
    pub(crate) const fn spirv(parts: &'static [Part], binaries: &'static [&'static [u8]]) -> Self {
        Self { binaries, ..Self::new(ShaderLanguage::Spirv, parts) }
    }

    pub(super) const fn new(language: ShaderLanguage, parts: &'static [Part]) -> Self {
        Self {
            language,
            parts,
            workgroup_size: [64, 1, 1],
            tile: [64, 1, 1],
            constants: &[],
            workgroup_bytes: 0,
            work: None,
            binaries: &[],
        }
    }

    /// Sets the threads of a workgroup, and the tile to as many outputs.
    pub const fn workgroup_size(mut self, threads: [u32; 3]) -> Self {
        self.workgroup_size = threads;
        self.tile = threads;
        self
    }

    /// Sets the outputs that a workgroup covers.
    pub const fn tile(mut self, outputs: [u32; 3]) -> Self {
        self.tile = outputs;
        self
    }

    /// Sets the further numbers of the source.
    pub const fn constants(mut self, constants: &'static [(&'static str, u32)]) -> Self {
        self.constants = constants;
        self
    }

    /// States the bytes of workgroup memory; the contract checks them.
    pub const fn workgroup_bytes(mut self, bytes: u32) -> Self {
        self.workgroup_bytes = bytes;
        self
    }

    /// States what a turn of the hot loop does.
    pub(crate) const fn work(mut self, work: Work) -> Self {
        self.work = Some(work);
        self
    }

    /// Threads of a workgroup, over all dimensions.
    pub(crate) const fn threads(&self) -> u32 {
        let [x, y, z] = self.workgroup_size;
        x * y * z
    }

    /// Every number that the source gets, by name.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = (&'static str, u32)> {
        let ([wx, wy, wz], [tx, ty, tz]) = (self.workgroup_size, self.tile);
        [
            ("WG_X", wx),
            ("WG_Y", wy),
            ("WG_Z", wz),
            ("THREADS", self.threads()),
            ("TILE_X", tx),
            ("TILE_Y", ty),
            ("TILE_Z", tz),
        ]
        .into_iter()
        .chain(self.constants.iter().copied())
    }
}

/// Includes WGSL files of the calling crate as [`Part`]s:
/// `wgsl!["shared/exact", "bitnet/dequantize"]` names `wgsl/shared/exact.wgsl` and
/// `wgsl/bitnet/dequantize.wgsl`. A part that is not a literal stands for itself.
#[macro_export]
macro_rules! wgsl { [$($part:tt),+ $(,)?] => { &[$($crate::part!("wgsl/", $part, ".wgsl")),+] } }

/// Includes Metal files of the calling crate as [`Part`]s; see [`wgsl!`](crate::wgsl).
#[macro_export]
macro_rules! msl { [$($part:tt),+ $(,)?] => { &[$($crate::part!("msl/", $part, ".metal")),+] } }

/// Includes GLSL files of this crate as [`Part`]s.
macro_rules! glsl { [$($part:tt),+ $(,)?] => { &[$($crate::part!("glsl/", $part, ".comp")),+] } }
pub(crate) use glsl;

/// Includes what a kernel's GLSL was compiled to: for outputs in `f32` and in `f16`, or one binary
/// for each end of a name.
macro_rules! spirv {
    ($name:literal) => { $crate::kernel::source::spirv!($name, "-Y_f32", "-Y_f16") };
    ($name:literal, $($end:literal),+) => {
        &[$(include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/spirv/", $name, $end, ".spv"))),+]
    };
}
pub(crate) use spirv;

#[doc(hidden)]
#[macro_export]
macro_rules! part {
    ($folder:literal, $stem:literal, $extension:literal) => {
        $crate::kernel::Part::new(
            concat!($folder, $stem, $extension),
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/", $folder, $stem, $extension)),
        )
    };
    ($folder:literal, $part:ident, $extension:literal) => {
        $part
    };
}
