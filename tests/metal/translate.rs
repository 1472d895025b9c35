//! WGSL as Metal text, by naga, with the buffers numbered as wgpu numbers them.

use bitnet_wgpu::{
    Kernel,
    kernel::{Access, Variant},
};
use naga::back::msl;

/// naga's Metal text of a WGSL variant, and the name that the entry point has in it.
///
/// Index checks are left out, as they are in release builds of the library: an index that is out of bounds should be seen.
pub fn metal(kernel: &Kernel, variant: &Variant) -> (String, String) {
    let text = kernel.text(variant);
    let module = naga::front::wgsl::parse_str(&text).unwrap_or_else(|e| panic!("{}", e.emit_to_string(&text)));
    let mut validator = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), naga::valid::Capabilities::all());
    let info = validator.validate(&module).unwrap_or_else(|e| panic!("{}", e.emit_to_string(&text)));

    let first = u8::from(!kernel.params.is_empty());
    let slots = (first..).zip(kernel.bindings).enumerate().map(|(i, (slot, binding))| {
        let at = naga::ResourceBinding { group: 0, binding: i as u32 };
        (at, msl::BindTarget { buffer: Some(slot), mutable: binding.access == Access::ReadWrite, ..Default::default() })
    });
    let resources = msl::EntryPointResources {
        resources: slots.collect(),
        immediates_buffer: (first == 1).then_some(0),
        sizes_buffer: Some(first + kernel.bindings.len() as u8),
    };
    let options = msl::Options {
        lang_version: (3, 1),
        per_entry_point_map: [(kernel.entry.to_owned(), resources)].into(),
        fake_missing_bindings: false,
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: false,
        ..Default::default()
    };
    let (metal, translation) = msl::write_string(&module, &info, &options, &msl::PipelineOptions::default()).expect("naga writes MSL");
    let entry = translation.entry_point_names[0].clone().expect("the entry point is translated");
    (metal, entry)
}
