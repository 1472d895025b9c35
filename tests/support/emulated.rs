//! Runs recorded dispatches on the CPU: their Metal sources, compiled by msl-host. Only Linux has
//! this: the emulator's linker flags and its runtime are for Linux, and a Mac runs the same sources
//! on its GPU.
#![cfg(target_os = "linux")]

use crate::{
    Case, Leeway, context,
    executors::threadgroups_limit,
    machine::{Memory, Text, naga_metal, parse, threadgroups},
};
use bitnet_wgpu::{
    Kernel,
    internals::{Access, Dispatch, KernelInternals as _, Variant},
    kernel::{KernelRef, ShaderLanguage},
};
use msl_host::{Order, Program};
use naga::valid::Capabilities;
use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, OnceLock},
};

type Compiled = Arc<OnceLock<Result<Program, String>>>;

/// The program of a kernel's variant, compiled once a process.
fn program(kernel: &KernelRef, variant: &Variant) -> Compiled {
    static PROGRAMS: LazyLock<Mutex<HashMap<(usize, Variant), Compiled>>> =
        LazyLock::new(Mutex::default);
    let key = (std::ptr::from_ref::<Kernel>(kernel).addr(), variant.clone());
    let compiled = PROGRAMS.lock().unwrap().entry(key).or_default().clone();
    compiled.get_or_init(|| {
        let (text, entry) = match variant.language {
            ShaderLanguage::Msl => (kernel.joined_source(variant), kernel.entry.to_owned()),
            _ => naga_metal(
                kernel,
                &parse(&kernel.joined_source(variant), Capabilities::all()),
                (3, 1),
            ),
        };
        let program =
            Program::compile(&text, &entry, kernel.source_for(variant.language).workgroup_size);
        program.map_err(|e| format!("{} {variant:?}: {e}", kernel.name))
    });
    compiled
}

/// Runs one dispatch on `memory`, on a device that allows `limit` workgroups a dimension.
///
/// # Errors
/// What the compiler says, and what the kernel did that it must not.
pub fn run(
    dispatch: &Dispatch<'_>,
    memory: &mut Memory,
    text: Text,
    order: Order,
    limit: u32,
) -> Result<(), String> {
    let kernel = dispatch.kernel();
    let variant = text.variant(kernel, dispatch.floats());
    let compiled = program(kernel, &variant);
    let program = compiled.wait().as_ref().map_err(Clone::clone)?;
    let ids = dispatch.buffers();
    // The parameters, if any, then the bindings; naga's source asks for their sizes as well.
    let params = (!dispatch.params().is_empty()).then(|| dispatch.params().to_vec());
    let first = usize::from(params.is_some());
    let mut buffers: Vec<_> =
        params.into_iter().chain(ids.iter().map(|id| memory[id].clone())).collect();
    if variant.language == ShaderLanguage::Wgsl {
        buffers.push(ids.iter().flat_map(|id| (memory[id].len() as u32).to_ne_bytes()).collect());
    }
    let grid = kernel
        .workgroups(variant.language, dispatch.extent(), limit)
        .map(|n| u32::try_from(n).unwrap());
    program
        .dispatch(&mut buffers, grid, order)
        .map_err(|e| format!("{} {variant:?}: {e}", kernel.name))?;
    for ((binding, id), after) in kernel.bindings.iter().zip(ids).zip(buffers.drain(first..)) {
        if binding.access == Access::ReadWrite {
            memory.insert(id, after);
        } else if memory[&id] != after {
            return Err(format!("{}: the input `{}` is written", kernel.name, binding.name));
        }
    }
    Ok(())
}

/// Runs a case by its Metal sources in each of these orders of threads, and checks the results.
/// Returns false for a case that needs a device.
///
/// # Errors
/// The compiler's message, a fault of a kernel, or a wrong result.
pub(crate) fn check(case: &Case, text: Text, orders: &[Order]) -> Result<bool, String> {
    let wgsl = context().with_language(ShaderLanguage::Wgsl).expect("WGSL runs everywhere");
    if case.device_only || case.f16 && !wgsl.capabilities().f16 {
        return Ok(false);
    }
    // It stands for Metal, whose barriers order a threadgroup; our own sources for Apple's GPUs,
    // whose kernels they are.
    let wgsl = wgsl
        .restricted(case.restrict)
        .restricted(|c| (c.device_barriers, c.apple) = (false, text == Text::Metal));
    let recorded = case.record(&wgsl).map_err(|e| e.to_string())?;
    let kernels = || recorded.recording.kernels();
    let has_metal = |kernel: &Kernel| kernel.source(ShaderLanguage::Msl).is_some();
    // Sanitizers refuse naga's sources, in which an array of unknown length is one of a single
    // element.
    let sanitized = threadgroups_limit().is_some();
    let others = text == Text::Metal
        && if sanitized { !kernels().all(has_metal) } else { !kernels().any(has_metal) };
    let groups: u64 = recorded
        .recording
        .dispatches()
        .map(|dispatch| threadgroups(&dispatch, text, u32::MAX))
        .sum();
    if others || threadgroups_limit().is_some_and(|limit| groups > limit) {
        return Ok(false);
    }
    let before = recorded.before().map_err(|e| e.to_string())?;
    let language = if text == Text::Metal { ShaderLanguage::Msl } else { ShaderLanguage::Wgsl };
    let portable = text != Text::Metal && kernels().any(Kernel::uses_subgroups);
    let portable = portable.then_some((Text::Naga { subgroups: false }, Order::Forward));
    let runs = orders.iter().map(|&order| (text, order)).chain(portable);
    let folding = recorded.folding(language);
    for (i, (text, order)) in runs.enumerate() {
        // In turns as it is and folded, where it can be.
        let limit = folding.filter(|_| i % 2 == 0).unwrap_or(65_535);
        let run = || {
            let mut memory = before.clone();
            recorded
                .recording
                .dispatches()
                .try_for_each(|dispatch| run(&dispatch, &mut memory, text, order, limit))?;
            case.check(&recorded.watched(&before, &memory)?, Leeway::None)
        };
        run().map_err(|e| format!("{text:?}, {order:?}, at most {limit} workgroups: {e}"))?;
    }
    Ok(true)
}
