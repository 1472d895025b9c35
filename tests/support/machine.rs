//! The Metal sources of recorded dispatches: the crate's own, or naga's translation of its WGSL.
//! `emulated` runs them on the CPU.

use bitnet_wgpu::{
    Element, Kernel,
    internals::{Access, Dispatch, KernelInternals as _, Variant},
    kernel::ShaderLanguage,
};
use naga::{
    back::msl,
    valid::{Capabilities, ModuleInfo, ValidationFlags, Validator},
};
use std::collections::HashMap;

/// Which sources are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Text {
    /// The hand-written Metal; naga's where a kernel has none.
    Metal,
    /// naga's Metal of the WGSL.
    Naga {
        /// Of the form with subgroup operations, or of the portable one.
        subgroups: bool,
    },
}

impl Text {
    pub(crate) fn variant(self, kernel: &Kernel, floats: &[(&'static str, Element)]) -> Variant {
        let language = if self == Self::Metal {
            kernel.language(ShaderLanguage::Msl)
        } else {
            ShaderLanguage::Wgsl
        };
        let able = self != (Self::Naga { subgroups: false });
        Variant {
            language,
            subgroups: able,
            fused: able || !kernel.uses_fused(language),
            floats: floats.to_vec(),
        }
    }
}

/// The contents of a recording's buffers, by the numbers that its dispatches give them.
pub type Memory = HashMap<usize, Vec<u8>>;

/// How many threadgroups a dispatch has on the CPU.
pub fn threadgroups(dispatch: &Dispatch<'_>, text: Text, limit: u32) -> u64 {
    let kernel = dispatch.kernel();
    kernel
        .workgroups(text.variant(kernel, dispatch.floats()).language, dispatch.extent(), limit)
        .iter()
        .product()
}

/// A WGSL source as naga reads it.
///
/// # Panics
/// If naga refuses it, with naga's words.
pub fn parse(text: &str, capabilities: Capabilities) -> (naga::Module, ModuleInfo) {
    let module =
        naga::front::wgsl::parse_str(text).unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
    let info = Validator::new(ValidationFlags::all(), capabilities).validate(&module);
    let info = info.unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
    (module, info)
}

/// naga's Metal source of a kernel's WGSL, with the buffer numbers that wgpu gives on Metal, and the
/// name of the entry point in it.
///
/// Index checks are left out, as they are in release builds of the library: an index that is out of
/// bounds should be seen.
///
/// # Panics
/// If naga cannot write it.
pub fn naga_metal(
    kernel: &Kernel,
    (module, info): &(naga::Module, ModuleInfo),
    lang_version: (u8, u8),
) -> (String, String) {
    let first = u8::from(!kernel.params.is_empty());
    let target = |i: u8, access| msl::BindTarget {
        buffer: Some(first + i),
        mutable: access == Access::ReadWrite,
        ..Default::default()
    };
    let bindings = (0u8..).zip(kernel.bindings);
    let resources = msl::EntryPointResources {
        resources: bindings
            .map(|(i, b)| {
                (naga::ResourceBinding { group: 0, binding: i.into() }, target(i, b.access))
            })
            .collect(),
        immediates_buffer: (first == 1).then_some(0),
        sizes_buffer: Some(first + kernel.bindings.len() as u8),
    };
    let options = msl::Options {
        lang_version,
        per_entry_point_map: [(kernel.entry.to_owned(), resources)].into(),
        fake_missing_bindings: false,
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: false,
        ..Default::default()
    };
    let entry_point = Some((naga::ShaderStage::Compute, kernel.entry.to_owned()));
    let pipeline = msl::PipelineOptions { entry_point, ..Default::default() };
    let (text, translated) =
        msl::write_string(module, info, &options, &pipeline).expect("naga writes MSL");
    let entry = translated.entry_point_names[0].clone().expect("the entry point is translated");
    (text, entry)
}
