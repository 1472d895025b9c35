//! What a kernel is: plain `static` data, stated once and read by both shader languages.
//!
//! What must agree between WGSL and MSL (entry point, params, bindings) is stated once on [`Kernel`]; what may differ
//! (text, group shape, tile, constants) is stated per language on [`Source`]. Numbers exist once, in Rust: both languages
//! get them as lines put before the text. [`contract`](crate::contract) checks the texts against the declaration.

use crate::{Element, ShaderLanguage};
use std::fmt::Write as _;

/// How a kernel uses a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `var<storage, read>`, `device const T*`.
    Read,
    /// `var<storage, read_write>`, `device T*`.
    ReadWrite,
}

/// What a binding's words are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Unsigned words, or anything packed in them (tensors of `i8`, four to a word, among them).
    U32,
    /// Signed words.
    I32,
    /// 32-bit floats.
    F32,
    /// `f32` or `f16`, as the tensor that is bound has it; the shader knows it by this alias (`X`, say; in MSL `X4` is the vector of four).
    Float(&'static str),
}

/// One storage buffer of a kernel: binding `i` in WGSL, `[[buffer(i + 1)]]` in MSL (`i` where there are no params).
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// The variable's name in both languages.
    pub name: &'static str,
    /// What it holds.
    pub ty: Type,
    /// Whether the kernel writes it.
    pub access: Access,
}

/// A binding that the kernel only reads.
pub const fn read(name: &'static str, ty: Type) -> Binding {
    Binding { name, ty, access: Access::Read }
}

/// A binding that the kernel writes, or reads and writes.
pub const fn read_write(name: &'static str, ty: Type) -> Binding {
    Binding { name, ty, access: Access::ReadWrite }
}

/// The type of one field of [`Params`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// `u32`, `uint`
    U32,
    /// `i32`, `int`
    I32,
    /// `f32`, `float`
    F32,
}

/// The host types that a field of [`Params`] may have.
pub trait ScalarType {
    /// Which one.
    const SCALAR: Scalar;
}
impl ScalarType for u32 {
    const SCALAR: Scalar = Scalar::U32;
}
impl ScalarType for i32 {
    const SCALAR: Scalar = Scalar::I32;
}
impl ScalarType for f32 {
    const SCALAR: Scalar = Scalar::F32;
}

/// Name and type of every field of a `Params` struct, in order.
pub type Fields = &'static [(&'static str, Scalar)];

/// The host mirror of a shader's `Params`; made by [`params!`](crate::params). At most 128 bytes.
pub trait Params: bytemuck::Pod {
    /// The fields, for the contract check.
    const FIELDS: Fields;
}

impl Params for () {
    const FIELDS: Fields = &[];
}

/// Declares a [`Params`] struct of `u32`, `i32` and `f32` fields.
///
/// ```
/// bitnet_wgpu::params! { struct Params { rows: u32, eps: f32 } }
/// use bitnet_wgpu::kernel::{Params as _, Scalar};
/// assert_eq!(Params::FIELDS, [("rows", Scalar::U32), ("eps", Scalar::F32)]);
/// ```
#[macro_export]
macro_rules! params {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($field:ident : $ty:ty),+ $(,)? }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, $crate::bytemuck::Pod, $crate::bytemuck::Zeroable)]
        #[bytemuck(crate = "::bitnet_wgpu::bytemuck")]
        $vis struct $name { $($field: $ty),+ }
        impl $crate::kernel::Params for $name {
            const FIELDS: $crate::kernel::Fields =
                &[$((stringify!($field), <$ty as $crate::kernel::ScalarType>::SCALAR)),+];
        }
    };
}

/// A piece of shader text and the file it came from.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The file, relative to the crate that includes it.
    pub path: &'static str,
    /// Its text.
    pub text: &'static str,
    /// The same interface without subgroup operations, where `text` needs them.
    pub portable: Option<&'static str>,
}

impl Part {
    /// A part that every adapter can run.
    pub const fn new(path: &'static str, text: &'static str) -> Self {
        Self { path, text, portable: None }
    }
}

/// Sums and maxima over a team of lanes and over a workgroup: with subgroup operations where the adapter has them, else
/// through workgroup memory. See `wgsl/shared/reduce.wgsl` for the interface.
pub const REDUCE: Part = Part {
    path: "wgsl/shared/reduce.wgsl",
    text: include_str!("../wgsl/shared/reduce.wgsl"),
    portable: Some(include_str!("../wgsl/shared/reduce_portable.wgsl")),
};

/// One language's text, and the numbers that belong to it.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// The text, in parts that are joined.
    pub parts: &'static [Part],
    /// Threads of a workgroup: `WG_X`, `WG_Y`, `WG_Z` in the shader.
    pub workgroup_size: [u32; 3],
    /// Outputs that a workgroup covers: `TILE_X`, `TILE_Y`, `TILE_Z` in the shader. The grid follows from it.
    pub tile: [u32; 3],
    /// More numbers, by name.
    pub constants: &'static [(&'static str, u32)],
}

/// A GPU function: its declaration and its text in one or two languages.
#[derive(Debug)]
pub struct Kernel {
    /// Label, and the name in profiles and errors.
    pub name: &'static str,
    /// The entry point in both languages, and the stem of its files.
    pub entry: &'static str,
    /// [`Params::FIELDS`] of its parameters.
    pub params: Fields,
    /// Its storage buffers, in binding order.
    pub bindings: &'static [Binding],
    /// The text that runs everywhere.
    pub wgsl: Source,
    /// The hand-written Metal text, for hot paths.
    pub msl: Option<Source>,
}

/// Includes WGSL files of the calling crate as [`Part`]s: `wgsl!["shared/exact", "bitnet/dequantize"]` names
/// `wgsl/shared/exact.wgsl` and `wgsl/bitnet/dequantize.wgsl`. A part that is not a literal stands for itself.
#[macro_export]
macro_rules! wgsl { [$($part:tt),+ $(,)?] => { &[$($crate::part!("wgsl/", $part, ".wgsl")),+] } }

/// Includes Metal files of the calling crate as [`Part`]s; see [`wgsl!`](crate::wgsl).
#[macro_export]
macro_rules! msl { [$($part:tt),+ $(,)?] => { &[$($crate::part!("msl/", $part, ".metal")),+] } }

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

/// What of a kernel's text is still open after its declaration: the language, whether subgroup operations may be used,
/// and the element types behind its [`Type::Float`] aliases.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// Which text.
    pub language: ShaderLanguage,
    /// Whether parts use their subgroup text or their portable one (WGSL only).
    pub subgroups: bool,
    /// Alias and element, in the order in which the bindings first name them.
    pub floats: Vec<(&'static str, Element)>,
}

impl Kernel {
    /// The language that runs when `preferred` is asked for.
    pub fn language(&self, preferred: ShaderLanguage) -> ShaderLanguage {
        if self.msl.is_some() { preferred } else { ShaderLanguage::Wgsl }
    }

    /// The source of [`Kernel::language`].
    pub fn source(&self, preferred: ShaderLanguage) -> &Source {
        match (preferred, &self.msl) {
            (ShaderLanguage::Msl, Some(msl)) => msl,
            _ => &self.wgsl,
        }
    }

    /// Does the WGSL have a portable form beside one with subgroup operations?
    pub fn uses_subgroups(&self) -> bool {
        self.wgsl.parts.iter().any(|part| part.portable.is_some())
    }

    /// The distinct [`Type::Float`] aliases, in binding order.
    pub fn floats(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        for binding in self.bindings {
            if let Type::Float(name) = binding.ty
                && !names.contains(&name)
            {
                names.push(name);
            }
        }
        names
    }

    /// Every variant there is, for tests that walk the catalog: languages × subgroups × `f32` or `f16` for each alias.
    pub fn variants(&self) -> Vec<Variant> {
        let aliases = self.floats();
        let languages = [(ShaderLanguage::Wgsl, true), (ShaderLanguage::Wgsl, false), (ShaderLanguage::Msl, true)];
        let mut all = Vec::new();
        for (language, subgroups) in languages {
            let exists = match language {
                ShaderLanguage::Wgsl => subgroups || self.uses_subgroups(),
                ShaderLanguage::Msl => self.msl.is_some(),
            };
            for bits in 0..if exists { 1 << aliases.len() } else { 0 } {
                let element = |i: usize| if bits >> i & 1 == 0 { Element::F32 } else { Element::F16 };
                let floats = aliases.iter().enumerate().map(|(i, &name)| (name, element(i))).collect();
                all.push(Variant { language, subgroups, floats });
            }
        }
        all
    }

    /// Workgroups that cover `extent` outputs. A one-dimensional grid longer than `limit` is folded into two where the kernel
    /// takes its place from `flat_group`, and checks it against its extent; others would take the second dimension for theirs.
    pub fn grid(&self, language: ShaderLanguage, extent: [usize; 3], limit: u32) -> [u64; 3] {
        let tile = self.source(language).tile;
        let mut grid = [0, 1, 2].map(|i| extent[i].div_ceil(tile[i] as usize) as u64);
        let limit = u64::from(limit);
        let folds = || self.wgsl.parts.iter().any(|part| part.text.contains("flat_group("));
        if grid[0] > limit && grid[1] == 1 && grid[2] == 1 && folds() {
            grid = [limit, grid[0].div_ceil(limit), 1];
        }
        grid
    }

    /// Every number that the shader gets, by name.
    pub fn numbers(&self, language: ShaderLanguage) -> impl Iterator<Item = (&'static str, u32)> {
        let source = self.source(language);
        let ([wx, wy, wz], [tx, ty, tz]) = (source.workgroup_size, source.tile);
        [("WG_X", wx), ("WG_Y", wy), ("WG_Z", wz), ("THREADS", wx * wy * wz), ("TILE_X", tx), ("TILE_Y", ty), ("TILE_Z", tz)]
            .into_iter()
            .chain(source.constants.iter().copied())
    }

    /// The whole text of a variant, as it is handed to the driver: its numbers and aliases, then its parts.
    pub fn text(&self, variant: &Variant) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = match variant.language {
            ShaderLanguage::Wgsl => self.write_wgsl(variant, &mut text),
            ShaderLanguage::Msl => self.write_msl(variant, &mut text),
        };
        text
    }

    fn write_wgsl(&self, variant: &Variant, text: &mut String) -> std::fmt::Result {
        if variant.floats.iter().any(|&(_, element)| element == Element::F16) {
            writeln!(text, "enable f16;")?;
        }
        for (name, element) in &variant.floats {
            writeln!(text, "alias {name} = {};", if *element == Element::F16 { "f16" } else { "f32" })?;
        }
        for (name, value) in self.numbers(ShaderLanguage::Wgsl) {
            writeln!(text, "const {name}: u32 = {value}u;")?;
        }
        for part in self.wgsl.parts {
            let body = if variant.subgroups { part.text } else { part.portable.unwrap_or(part.text) };
            writeln!(text, "// {}\n{body}", part.path)?;
        }
        Ok(())
    }

    fn write_msl(&self, variant: &Variant, text: &mut String) -> std::fmt::Result {
        // wgpu compiles passthrough MSL with fast math; this is the only handle on it.
        writeln!(text, "#pragma METAL fp math_mode(safe)")?;
        for (name, element) in &variant.floats {
            let ty = if *element == Element::F16 { "half" } else { "float" };
            writeln!(text, "#define {name} {ty}\n#define {name}4 {ty}4")?;
        }
        for (name, value) in self.numbers(ShaderLanguage::Msl) {
            writeln!(text, "#define {name} {value}u")?;
        }
        for part in self.source(ShaderLanguage::Msl).parts {
            writeln!(text, "// {}\n{}", part.path, part.text)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{ShaderLanguage::Wgsl, catalog};

    #[test]
    fn a_grid_is_folded_for_kernels_that_know_of_it() {
        for kernel in catalog() {
            let tile = kernel.wgsl.tile[0] as usize;
            let long = kernel.grid(Wgsl, [35 * tile, 1, 1], 10);
            let knows = kernel.wgsl.parts.iter().any(|part| part.path == "wgsl/shared/flat.wgsl");
            assert_eq!(long, if knows { [10, 4, 1] } else { [35, 1, 1] }, "{}", kernel.name);
        }
        assert!(catalog().any(|kernel| kernel.name == "bitlinear_gemv_half" && kernel.grid(Wgsl, [1 << 30, 1, 1], 65_535)[0] > 65_535));
    }
}
