//! A kernel's declaration, its variants, and the source of a variant.

use super::{
    binding::{Binding, Type},
    needs::{MSL_LANES, Needs, TensorCore, WGSL_LANES},
    origin::JoinedSource,
    params::Fields,
    source::{HOLE, Part, Source},
};
use crate::{element::Element, language::ShaderLanguage, visibility::internal_fields};
use std::{
    fmt::{self, Write as _},
    ops::Deref,
    sync::Arc,
};

internal_fields! {
    /// A GPU function: its declaration, and its source in one or more languages.
    ///
    /// A kernel of a crate's own is a `static`; [`Kernel::with_wgsl`] makes one from a source
    /// that exists only at run time.
    ///
    /// ```
    /// use bitnet_wgpu::{Kernel, kernel::{Part, Params as _, Source, Type::*, read, read_write}, params};
    ///
    /// params! { struct Params { length: u32, factor: f32 } }
    ///
    /// static SCALE: Kernel = Kernel::new(
    ///     "scale",
    ///     Params::FIELDS,
    ///     &[read("x", Float("X")), read_write("y", F32)],
    ///     &[Source::wgsl(&[Part::new("scale", "...")])],
    /// );
    /// assert!(SCALE.check().is_err()); // "..." is not WGSL
    /// ```
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub struct Kernel {
        /// Label, and the name in profiles and errors.
        pub name: &'static str,
        /// What is in the place of `HOLE` in its sources.
        pub(crate) filling: &'static [Part],
        /// What is in the place of `HOLE` in its Metal sources.
        pub(crate) filling_msl: &'static [Part],
        /// Whether all its [`Type::Float`] aliases are one type.
        pub(crate) one_float: bool,
        /// Keeps to the bounds of its buffers, as tests have shown: release builds leave out bounds
        /// checks.
        pub(crate) trusted: bool,
        sources: Sources,
    }
    internals {
        /// The entry point in all languages, and the stem of its files: `name`, unless
        /// [`Kernel::entry`] says otherwise.
        entry: &'static str,
        /// [`Params::FIELDS`](super::Params::FIELDS) of its parameters.
        params: Fields,
        /// Its storage buffers, in binding order.
        bindings: &'static [Binding],
        /// How its workgroups are laid out.
        grid: Grid,
        /// wgpu features that all its sources use. (`f16` and subgroups follow from the variant.)
        features: wgpu::Features,
        /// The tensor core that its WGSL or SPIR-V multiplies on.
        tensor_core: Option<TensorCore>,
    }
}

/// How the workgroups of a kernel are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Grid {
    /// A dimension of the grid is one of the problem.
    Blocks,
    /// One dimension. Where it is longer than a device allows, it is folded into two: the source
    /// takes its index from `flat_group` and checks it against its extent.
    Flat,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Sources {
    /// Part of the program.
    Declared(&'static [Source]),
    /// Brought at run time.
    Brought(Source, Code),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Code {
    Source(Arc<str>),
    Words(Arc<[u32]>),
}

/// What is still open after a kernel's declaration: the language, whether subgroup operations and
/// fused multiply-adds may be used, and the element types behind its [`Type::Float`] aliases.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// Which source.
    pub language: ShaderLanguage,
    /// Whether parts use their subgroup source or their portable one (WGSL only).
    pub subgroups: bool,
    /// Whether parts may count on fused multiply-adds, or use their source for devices without.
    pub fused: bool,
    /// Alias and element of `Kernel::aliases`, in their order.
    pub floats: Vec<(&'static str, Element)>,
}

impl Kernel {
    /// A kernel whose sources are part of the program. The first source is the one that runs by
    /// default.
    pub const fn new(
        name: &'static str,
        params: Fields,
        bindings: &'static [Binding],
        sources: &'static [Source],
    ) -> Self {
        Self {
            name,
            entry: name,
            params,
            bindings,
            grid: Grid::Blocks,
            features: wgpu::Features::empty(),
            tensor_core: None,
            filling: &[],
            filling_msl: &[],
            one_float: false,
            trusted: false,
            sources: Sources::Declared(sources),
        }
    }

    /// A kernel of this crate, which tests run on awkward shapes with bounds checks.
    pub(crate) const fn trusted(
        name: &'static str,
        params: Fields,
        bindings: &'static [Binding],
        sources: &'static [Source],
    ) -> Self {
        let mut kernel = Self::new(name, params, bindings, sources);
        kernel.trusted = true;
        kernel
    }

    /// Sets the entry point, where it is not the name.
    pub const fn entry(mut self, entry: &'static str) -> Self {
        self.entry = entry;
        self
    }

    /// Declares that its grid is one-dimensional: where it is longer than a dimension may be, it is
    /// folded into several.
    pub const fn flat(mut self) -> Self {
        self.grid = Grid::Flat;
        self
    }

    /// Says that tensors of one float type are bound to it: all `f32`, or all `f16`.
    pub(crate) const fn one_float(mut self) -> Self {
        self.one_float = true;
        self
    }

    /// States wgpu features that every source of it uses.
    pub const fn features(mut self, features: wgpu::Features) -> Self {
        self.features = features;
        self
    }

    /// States the tensor core that its WGSL multiplies on, with wgpu's extension
    /// `wgpu_cooperative_matrix`, and so a feature of wgpu; or its SPIR-V, for int8, which WGSL has
    /// no matrices of.
    pub(crate) const fn tensor_core(mut self, core: TensorCore) -> Self {
        self.features = self
            .features
            .union(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX)
            .union(wgpu::Features::SUBGROUP);
        self.tensor_core = Some(core);
        self
    }

    /// Puts `parts` in the place of `HOLE` in its sources, but for those in Metal.
    pub(crate) const fn fill(mut self, parts: &'static [Part]) -> Self {
        self.filling = parts;
        self
    }

    /// Fills the hole of its Metal sources.
    pub(crate) const fn fill_msl(mut self, parts: &'static [Part]) -> Self {
        self.filling_msl = parts;
        self
    }

    /// The parts of one of its sources, in order, and those that fill its hole.
    pub(crate) fn parts<'a>(&'a self, source: &'a Source) -> impl Iterator<Item = &'a Part> {
        let filling =
            if source.language == ShaderLanguage::Msl { self.filling_msl } else { self.filling };
        source
            .parts
            .iter()
            .flat_map(move |part| if *part == HOLE { filling } else { std::slice::from_ref(part) })
    }

    /// Returns this declaration with WGSL that is made at run time. Bounds are checked when it runs.
    /// It is compiled once for the same source, and the compiled kernel is kept as long as the
    /// device. Workgroup size, tile and constants are those of the first source; for a kernel that
    /// is [`flat`](Self::flat), the source brings its own `flat_group`. The example `custom_kernel`
    /// dispatches one.
    pub fn with_wgsl(&self, source: impl Into<Arc<str>>) -> Self {
        self.with_code(ShaderLanguage::Wgsl, Code::Source(source.into()))
    }

    /// Returns this declaration with Metal that is made at run time; else as
    /// [`Kernel::with_wgsl`]. It runs on Apple's GPUs only.
    ///
    /// ```compile_fail,E0133
    /// # use bitnet_wgpu::{Kernel, kernel::Source};
    /// # static NOTHING: Kernel = Kernel::new("nothing", &[], &[], &[]);
    /// NOTHING.with_msl("kernel void nothing() {}"); // without `unsafe`
    /// ```
    ///
    /// # Safety
    /// The source must keep to the bounds of its buffers: it reaches the driver without checks. Its
    /// signature is compared with the declaration.
    #[allow(unsafe_code)]
    pub unsafe fn with_msl(&self, source: impl Into<Arc<str>>) -> Self {
        self.with_code(ShaderLanguage::Msl, Code::Source(source.into()))
    }

    /// Returns this declaration with SPIR-V, which reaches the driver as it is.
    ///
    /// # Safety
    /// The module must be valid, have the declared entry point, bindings (group 0) and immediates,
    /// and keep to the bounds of its buffers: nothing checks it.
    #[allow(unsafe_code)]
    pub unsafe fn with_spirv(&self, words: impl Into<Arc<[u32]>>) -> Self {
        self.with_code(ShaderLanguage::Spirv, Code::Words(words.into()))
    }

    fn with_code(&self, language: ShaderLanguage, code: Code) -> Self {
        let source = Source { language, parts: &[], ..*self.default_source() };
        let sources = Sources::Brought(source, code);
        Self { trusted: language == ShaderLanguage::Spirv, sources, ..self.clone() }
    }

    /// Its sources, the default first.
    pub(crate) fn sources(&self) -> &[Source] {
        match &self.sources {
            Sources::Declared(sources) => sources,
            Sources::Brought(source, _) => std::slice::from_ref(source),
        }
    }

    /// Its source in a language, if it has one.
    pub(crate) fn source(&self, language: ShaderLanguage) -> Option<&Source> {
        self.sources().iter().find(|source| source.language == language)
    }

    fn default_source(&self) -> &Source {
        const NOTHING: Source = Source::new(ShaderLanguage::Wgsl, &[]);
        self.sources().first().unwrap_or(&NOTHING)
    }

    /// The source that runs when `preferred` is asked for: that language's, else the first.
    pub(crate) fn source_for(&self, preferred: ShaderLanguage) -> &Source {
        self.source(preferred).unwrap_or_else(|| self.default_source())
    }

    /// The language of `Kernel::source_for`.
    pub(crate) fn language(&self, preferred: ShaderLanguage) -> ShaderLanguage {
        self.source_for(preferred).language
    }

    /// Returns whether the WGSL has a portable form beside one with subgroup operations.
    pub(crate) fn uses_subgroups(&self) -> bool {
        self.source(ShaderLanguage::Wgsl)
            .is_some_and(|source| self.parts(source).any(|part| part.portable.is_some()))
    }

    /// Returns whether the source has another form for devices that do not fuse multiply-adds.
    /// Where a kernel has Metal, whose `fma` is rounded once, that has none.
    pub(crate) fn uses_fused(&self, preferred: ShaderLanguage) -> bool {
        self.parts(self.source_for(preferred)).any(|part| part.unfused.is_some())
    }

    /// The distinct aliases, in binding order, and the 32-bit type that each may be: of
    /// [`Type::Float`] `f32`, of [`Type::Bits`] `u32`. The other is `f16`.
    fn aliases(&self) -> Vec<(&'static str, Element)> {
        let mut aliases = Vec::new();
        for binding in self.bindings {
            let alias = match binding.ty {
                Type::Float(name) => (name, Element::F32),
                Type::Bits(name) => (name, Element::U32),
                _ => continue,
            };
            if !aliases.contains(&alias) {
                aliases.push(alias);
            }
        }
        aliases
    }

    /// Variants for tests that walk the catalog: languages × what they need beyond the plainest
    /// device, all of it or nothing × `f32` or `f16` for each alias, or for all.
    pub(crate) fn variants(&self) -> Vec<Variant> {
        let aliases = self.aliases();
        let mut all = Vec::new();
        for language in self.sources().iter().map(|source| source.language) {
            let (portable, unfused) = (
                language == ShaderLanguage::Wgsl && self.uses_subgroups(),
                self.uses_fused(language),
            );
            for able in [true, false].into_iter().take(1 + usize::from(portable || unfused)) {
                let (subgroups, fused) = (able || !portable, able || !unfused);
                let last = (1 << aliases.len()) - 1;
                for bits in (0..=last).filter(|&bits| !self.one_float || bits == 0 || bits == last)
                {
                    let element =
                        |i: usize, wide| if bits >> i & 1 == 0 { wide } else { Element::F16 };
                    let floats = aliases
                        .iter()
                        .enumerate()
                        .map(|(i, &(name, wide))| (name, element(i, wide)))
                        .collect();
                    all.push(Variant { language, subgroups, fused, floats });
                }
            }
        }
        all
    }

    /// What a variant needs of a device.
    pub(crate) fn needs(&self, variant: &Variant) -> Needs {
        let (source, mut features) = (self.source_for(variant.language), self.features);
        if self.uses_f16(variant) {
            features |= wgpu::Features::SHADER_F16;
        }
        let lanes = match variant.language {
            ShaderLanguage::Wgsl if variant.subgroups && self.uses_subgroups() => Some(WGSL_LANES),
            ShaderLanguage::Msl => Some(MSL_LANES),
            _ => None,
        };
        let lanes = self.tensor_core.map_or(lanes, |core| Some([core.lanes; 2]));
        if lanes == Some(WGSL_LANES) {
            features |= wgpu::Features::SUBGROUP;
        }
        if variant.language != ShaderLanguage::Wgsl {
            features |= wgpu::Features::PASSTHROUGH_SHADERS;
        }
        if !self.params.is_empty() {
            features |= wgpu::Features::IMMEDIATES;
        }
        Needs {
            features,
            lanes,
            tensor_core: self.tensor_core,
            immediate_bytes: 4 * self.params.len() as u32,
            storage_buffers: self.bindings.len() as u32,
            threads: source.threads(),
            workgroup_bytes: source.workgroup_bytes,
        }
    }

    /// Workgroups that cover `extent` outputs. A one-dimensional grid longer than `limit` is folded
    /// into two where the kernel's grid is [`Grid::Flat`]; others would take the second dimension
    /// for one of the problem.
    pub(crate) fn workgroups(
        &self,
        language: ShaderLanguage,
        extent: [usize; 3],
        limit: u32,
    ) -> [u64; 3] {
        let tile = self.source_for(language).tile;
        let mut grid = [0, 1, 2].map(|i| extent[i].div_ceil(tile[i] as usize) as u64);
        let limit = u64::from(limit);
        if grid[0] > limit && grid[1] == 1 && grid[2] == 1 && self.grid == Grid::Flat {
            grid = [limit, grid[0].div_ceil(limit), 1];
        }
        grid
    }

    /// The whole source of a variant, as it is handed to the driver: its numbers and aliases, then
    /// its parts. Of SPIR-V, the GLSL that it was made from; empty for what was brought at run
    /// time.
    pub(crate) fn joined_source(&self, variant: &Variant) -> String {
        self.joined(variant).source
    }

    /// The source of [`Kernel::joined_source`], which knows the parts that it is joined from.
    pub(crate) fn joined(&self, variant: &Variant) -> JoinedSource {
        let (source, mut head) = (self.source_for(variant.language), String::new());
        // Writing to a String cannot fail.
        let _ = match variant.language {
            ShaderLanguage::Wgsl => self.write_wgsl_head(source, variant, &mut head),
            ShaderLanguage::Msl => write_msl_head(source, variant, &mut head),
            ShaderLanguage::Spirv if source.parts.is_empty() => return JoinedSource::new(head),
            ShaderLanguage::Spirv => self.write_glsl_head(source, variant, &mut head),
        };
        let mut joined = JoinedSource::new(head);
        for part in self.parts(source) {
            let portable = part.portable.filter(|_| !variant.subgroups);
            let unfused = part.unfused.filter(|_| !variant.fused);
            joined.source += &format!("// {}\n", part.path);
            joined.push(part.path, portable.or(unfused).unwrap_or(part.source));
            joined.source.push('\n');
        }
        if let Some(Code::Source(brought)) = self.code() {
            joined.push(self.name, brought);
        }
        joined
    }

    fn uses_f16(&self, variant: &Variant) -> bool {
        let f16s = self.tensor_core.is_some_and(|core| core.element == Element::F16);
        let multiplies = f16s || self.bindings.iter().any(|binding| binding.ty == Type::F16);
        multiplies || variant.floats.iter().any(|&(_, element)| element == Element::F16)
    }

    fn write_wgsl_head(
        &self,
        source: &Source,
        variant: &Variant,
        head: &mut String,
    ) -> fmt::Result {
        if self.uses_f16(variant) {
            writeln!(head, "enable f16;")?;
        }
        if self.tensor_core.is_some() {
            writeln!(head, "enable wgpu_cooperative_matrix;")?;
        }
        for (name, element) in &variant.floats {
            let ty = match element {
                Element::F16 => "f16",
                Element::U32 => "u32",
                _ => "f32",
            };
            writeln!(head, "alias {name} = {ty};")?;
        }
        source
            .numbers()
            .chain(self.unit_numbers())
            .try_for_each(|(name, value)| writeln!(head, "const {name}: u32 = {value}u;"))
    }

    fn write_glsl_head(
        &self,
        source: &Source,
        variant: &Variant,
        head: &mut String,
    ) -> fmt::Result {
        writeln!(head, "#version 460")?;
        for (name, element) in &variant.floats {
            let [ty, pair] = match element {
                Element::F16 => ["float16_t", "f16vec2"],
                _ => ["float", "vec2"],
            };
            writeln!(head, "#define {name} {ty}\n#define {name}2 {pair}")?;
        }
        source
            .numbers()
            .chain(self.unit_numbers())
            .try_for_each(|(name, value)| writeln!(head, "#define {name} {value}"))
    }

    /// Rows, and products of an output, of the matrices of its tensor cores, and the threads of a subgroup.
    fn unit_numbers(&self) -> impl Iterator<Item = (&'static str, u32)> {
        self.tensor_core.into_iter().flat_map(|core| {
            let columns = (core.element == Element::I8).then_some(("COLUMNS", core.depth));
            [("SIDE", core.size), ("LANES", core.lanes)].into_iter().chain(columns)
        })
    }

    /// The SPIR-V of a variant, where its language is that.
    pub(crate) fn words(&self, variant: &Variant) -> Option<Arc<[u32]>> {
        if variant.language != ShaderLanguage::Spirv {
            return None;
        }
        if let Some(Code::Words(words)) = self.code() {
            return Some(words.clone());
        }
        let place = self
            .variants()
            .into_iter()
            .filter(|other| other.language == ShaderLanguage::Spirv)
            .position(|other| other == *variant)?;
        let bytes = self.source(ShaderLanguage::Spirv)?.binaries.get(place)?;
        Some(bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect())
    }

    /// What was brought at run time.
    pub(crate) fn code(&self) -> Option<&Code> {
        match &self.sources {
            Sources::Declared(_) => None,
            Sources::Brought(_, code) => Some(code),
        }
    }
}

/// How Metal sources begin. wgpu compiles passthrough MSL in the language version of the program's
/// deployment target, with fast math: the pragmas are the only handle on that. Safe math alone
/// would still fuse a product with a sum of the same statement. Compilers before Xcode 16 and macOS
/// 15 do not know the pragmas, which must not be an error with -Werror. The library comes before
/// any macro, which would change its source.
const MSL_HEAD: &str = r#"#if __METAL_VERSION__ < 230
#error "Metal 2.3 is needed: build the program for macOS 11 or iOS 14 or later (MACOSX_DEPLOYMENT_TARGET, IPHONEOS_DEPLOYMENT_TARGET)"
#endif
#pragma clang diagnostic ignored "-Wunknown-pragmas"
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#include <metal_stdlib>
"#;

fn write_msl_head(source: &Source, variant: &Variant, head: &mut String) -> fmt::Result {
    head.push_str(MSL_HEAD);
    for (name, element) in &variant.floats {
        let ty = match element {
            Element::F16 => "half",
            Element::U32 => "uint",
            _ => "float",
        };
        writeln!(head, "#define {name} {ty}\n#define {name}4 {ty}4")?;
    }
    source.numbers().try_for_each(|(name, value)| writeln!(head, "#define {name} {value}u"))
}

/// A kernel to dispatch: a `&'static Kernel`, or one made at run time, as a [`Kernel`] or
/// an `Arc<Kernel>`.
#[derive(Clone, Debug)]
pub enum KernelRef {
    /// Part of the program.
    #[cfg_attr(not(feature = "internals"), doc(hidden))]
    Static(&'static Kernel),
    /// Made at run time.
    #[cfg_attr(not(feature = "internals"), doc(hidden))]
    Shared(Arc<Kernel>),
}

impl Deref for KernelRef {
    type Target = Kernel;
    fn deref(&self) -> &Kernel {
        match self {
            Self::Static(kernel) => kernel,
            Self::Shared(kernel) => kernel,
        }
    }
}

impl From<&'static Kernel> for KernelRef {
    fn from(kernel: &'static Kernel) -> Self {
        Self::Static(kernel)
    }
}

impl From<Kernel> for KernelRef {
    fn from(kernel: Kernel) -> Self {
        Self::Shared(Arc::new(kernel))
    }
}

impl From<Arc<Kernel>> for KernelRef {
    fn from(kernel: Arc<Kernel>) -> Self {
        Self::Shared(kernel)
    }
}

impl From<&Arc<Kernel>> for KernelRef {
    fn from(kernel: &Arc<Kernel>) -> Self {
        Self::Shared(kernel.clone())
    }
}
