//! The crate's kernels in the variants that are compiled here: either language, all in `f32` or all
//! in `f16`, with subgroup operations.

use bitnet_wgpu::{
    Element, Kernel,
    internals::{KernelInternals as _, Variant, Work},
    kernel::ShaderLanguage,
};

/// What ends the names of variants in f16.
const F16: &str = " f16";

/// Returns whether a name is that of a variant in f16. They are compiled and may not spill, but
/// have no line in the table.
pub fn is_of_f16(name: &str) -> bool {
    name.ends_with(F16)
}

/// A kernel's source in one language.
pub struct Text {
    pub declaration: &'static Kernel,
    variant: Variant,
}

impl Text {
    /// The kernel's name, the language, and whether it is of f16; unique.
    pub fn name(&self) -> String {
        let f16s = if self.variant.floats.iter().any(|&(_, element)| element == Element::F16) {
            F16
        } else {
            ""
        };
        format!("{} {}{f16s}", self.declaration.name, language_name(self.variant.language))
    }

    pub fn text(&self) -> String {
        self.declaration.joined_source(&self.variant)
    }

    /// Returns whether it uses tensor cores. They have no counterpart in OpenCL, through which MSL
    /// is compiled here.
    pub fn on_tensor_cores(&self) -> bool {
        self.variant.language == ShaderLanguage::Msl
            && self.text().contains("simdgroup_multiply_accumulate")
    }
}

pub fn language_name(language: ShaderLanguage) -> &'static str {
    match language {
        ShaderLanguage::Wgsl => "WGSL",
        ShaderLanguage::Msl => "MSL",
        _ => "SPIR-V",
    }
}

/// Returns whether a source may spill: those for other GPUs, and `attention_many` in WGSL, the
/// tiles of which fill registers: where a device takes Metal sources, it has smaller ones.
pub fn may_spill(kernel: &Text) -> bool {
    let name = kernel.declaration.name;
    is_for_others(name)
        || (matches!(kernel.declaration.entry, "attention_many" | "attention_f16")
            && kernel.variant.language == ShaderLanguage::Wgsl)
}

/// Returns whether no Apple GPU is given this kernel by its `plan`. Those for packed integer
/// products fill registers there with expanded ones, and spill.
fn is_for_others(name: &str) -> bool {
    const SEVERAL_TOKENS: [&str; 3] =
        ["bitlinear_gemv_int8_4_busy", "bitlinear_gemv_int8_8", "bitlinear_gemv_int8_8_busy"];
    // What is done to a product before it is stored changes nothing about that.
    let name = name.strip_suffix("_finish").unwrap_or(name);
    let of_a_step = name.starts_with("norm_bitlinear") && name.contains("_int8_");
    let of_bytes = name.starts_with("bitlinear_block_float_packed")
        || name.starts_with("norm_bitlinear_block_float_packed");
    of_a_step || of_bytes || SEVERAL_TOKENS.contains(&name)
}

/// Every kernel that has a text in `language`, of 32-bit elements, and where it has a choice of
/// f16 too.
pub fn kernels(language: ShaderLanguage) -> impl Iterator<Item = Text> {
    let alike = |variant: &Variant| {
        let f16s = variant.floats.iter().filter(|&&(_, element)| element == Element::F16).count();
        f16s == 0 || f16s == variant.floats.len()
    };
    let variants = move |declaration: &'static Kernel| {
        let expected = move |variant: &Variant| {
            variant.language == language && variant.subgroups && alike(variant)
        };
        declaration
            .variants()
            .into_iter()
            .filter(expected)
            .map(move |variant| Text { declaration, variant })
    };
    // Tensor cores of WGSL have no counterpart here, as those of Metal.
    bitnet_wgpu::internals::catalog()
        .filter(|kernel| kernel.tensor_core.is_none())
        .flat_map(variants)
}

/// What a turn of the hot loop of a kernel's source does, as its source states it; kernel and
/// language by name.
pub fn work(kernel: &str, language: &str) -> Option<Work> {
    let kernel = bitnet_wgpu::internals::catalog().find(|declared| declared.name == kernel)?;
    kernel.sources().iter().find(|source| language_name(source.language) == language)?.work
}
