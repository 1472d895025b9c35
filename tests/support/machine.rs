//! Runs recorded dispatches on the CPU: the crate's Metal texts, or what naga's Metal writer makes of its WGSL, compiled by msl-host.

use bitnet_wgpu::{
    Dispatch, Element, Kernel, ShaderLanguage,
    kernel::{Access, KernelRef, Variant},
};
use msl_host::{Order, Program};
use naga::{
    back::msl,
    valid::{Capabilities, ModuleInfo, ValidationFlags, Validator},
};
use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, OnceLock},
};

/// Which texts are run.
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
    fn variant(self, kernel: &Kernel, floats: &[(&'static str, Element)]) -> Variant {
        let language = if self == Self::Metal { kernel.language(ShaderLanguage::Msl) } else { ShaderLanguage::Wgsl };
        let able = self != (Self::Naga { subgroups: false });
        Variant { language, subgroups: able, fused: able || !kernel.uses_fused(language), floats: floats.to_vec() }
    }
}

type Compiled = Arc<OnceLock<Result<Program, String>>>;

/// The program of a kernel's variant, compiled once a process.
fn program(kernel: &KernelRef, variant: &Variant) -> Compiled {
    static PROGRAMS: LazyLock<Mutex<HashMap<(usize, Variant), Compiled>>> = LazyLock::new(Mutex::default);
    let key = (std::ptr::from_ref::<Kernel>(kernel).addr(), variant.clone());
    let compiled = PROGRAMS.lock().unwrap().entry(key).or_default().clone();
    compiled.get_or_init(|| {
        let (text, entry) = match variant.language {
            ShaderLanguage::Msl => (kernel.text(variant), kernel.entry.to_owned()),
            _ => naga_metal(kernel, &parse(&kernel.text(variant), Capabilities::all()), (3, 1)),
        };
        let program = Program::compile(&text, &entry, kernel.source_for(variant.language).workgroup_size);
        program.map_err(|e| format!("{} {variant:?}: {e}", kernel.name))
    });
    compiled
}

/// The contents of a recording's buffers, by the numbers that its dispatches give them.
pub type Memory = HashMap<usize, Vec<u8>>;

/// Runs one dispatch on `memory`, on a device that allows `limit` workgroups a dimension.
///
/// # Errors
/// What the compiler says, and what the kernel did that it must not.
pub fn run(dispatch: &Dispatch<'_>, memory: &mut Memory, text: Text, order: Order, limit: u32) -> Result<(), String> {
    let kernel = dispatch.kernel();
    let variant = text.variant(kernel, dispatch.floats());
    let compiled = program(kernel, &variant);
    let program = compiled.wait().as_ref().map_err(Clone::clone)?;
    let ids = dispatch.buffers();
    // The parameters, if any, then the bindings; naga's text asks for their sizes as well.
    let params = (!dispatch.params().is_empty()).then(|| dispatch.params().to_vec());
    let first = usize::from(params.is_some());
    let mut buffers: Vec<_> = params.into_iter().chain(ids.iter().map(|id| memory[id].clone())).collect();
    if variant.language == ShaderLanguage::Wgsl {
        buffers.push(ids.iter().flat_map(|id| (memory[id].len() as u32).to_ne_bytes()).collect());
    }
    let grid = kernel.workgroups(variant.language, dispatch.extent(), limit).map(|n| u32::try_from(n).unwrap());
    program.dispatch(&mut buffers, grid, order).map_err(|e| format!("{} {variant:?}: {e}", kernel.name))?;
    for ((binding, id), after) in kernel.bindings.iter().zip(ids).zip(buffers.drain(first..)) {
        if binding.access == Access::ReadWrite {
            memory.insert(id, after);
        } else if memory[&id] != after {
            return Err(format!("{}: the input `{}` is written", kernel.name, binding.name));
        }
    }
    Ok(())
}

/// How many threadgroups a dispatch has on the CPU.
pub fn threadgroups(dispatch: &Dispatch<'_>, text: Text, limit: u32) -> u64 {
    let kernel = dispatch.kernel();
    kernel.workgroups(text.variant(kernel, dispatch.floats()).language, dispatch.extent(), limit).iter().product()
}

/// A WGSL text as naga reads it.
///
/// # Panics
/// If naga refuses it, with naga's words.
pub fn parse(text: &str, capabilities: Capabilities) -> (naga::Module, ModuleInfo) {
    let module = naga::front::wgsl::parse_str(text).unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
    let info = Validator::new(ValidationFlags::all(), capabilities).validate(&module);
    let info = info.unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
    (module, info)
}

/// naga's Metal text of a kernel's WGSL, with the buffer numbers that wgpu gives on Metal, and the name of the entry point in it.
///
/// Index checks are left out, as they are in release builds of the library: an index that is out of bounds should be seen.
///
/// # Panics
/// If naga cannot write it.
pub fn naga_metal(kernel: &Kernel, (module, info): &(naga::Module, ModuleInfo), lang_version: (u8, u8)) -> (String, String) {
    let first = u8::from(!kernel.params.is_empty());
    let target = |i: u8, access| msl::BindTarget { buffer: Some(first + i), mutable: access == Access::ReadWrite, ..Default::default() };
    let bindings = (0u8..).zip(kernel.bindings);
    let resources = msl::EntryPointResources {
        resources: bindings.map(|(i, b)| (naga::ResourceBinding { group: 0, binding: i.into() }, target(i, b.access))).collect(),
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
    let (text, translated) = msl::write_string(module, info, &options, &pipeline).expect("naga writes MSL");
    let entry = translated.entry_point_names[0].clone().expect("the entry point is translated");
    (text, entry)
}
