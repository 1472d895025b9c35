//! The ways to run a case.

use crate::{
    By, Case, Leeway, Op, Recorded, context,
    machine::{self, Memory, Text},
    with_tensor_cores,
};
use bitnet_wgpu::{
    Context, Element, Kernel, Recording, Result,
    internals::{KernelInternals as _, Variant},
    kernel::ShaderLanguage,
    wgpu,
};
#[cfg(target_os = "linux")]
use msl_host::Order;
use naga::{back::spv, valid::Capabilities};
use std::{collections::HashMap, sync::Arc};

/// A way to run cases.
#[derive(Clone, Copy)]
pub enum Executor {
    /// The CPU references.
    Reference,
    /// The device under test, as some context on it; `None` where it has no such.
    Device(fn() -> Option<Context>),
    /// The device under test without subgroup operations: kernels that have any. The others are
    /// what they are with them, and so is every plan.
    Portable,
    /// The device under test with its tensor cores, where it has some: ops that have kernels for
    /// them.
    TensorCores,
    /// The device under test, with SPIR-V that naga makes of the WGSL: the path by which
    /// hand-written Metal reaches its driver, where there is no Metal.
    Spirv,
    /// The CPU, by compiled Metal source; naga's with and without subgroup operations.
    Host(Text),
    /// As `Host` with our Metal source, by the orders of threads that it leaves out.
    Orders,
}

/// All of them, by the names that trials have.
pub const EXECUTORS: &[(&str, Executor)] = &[
    ("cpu", Executor::Reference),
    ("wgsl", Executor::Device(|| context().with_language(ShaderLanguage::Wgsl).ok())),
    ("msl", Executor::Device(|| context().with_language(ShaderLanguage::Msl).ok())),
    ("wgsl_without_subgroups", Executor::Portable),
    ("tensor_cores", Executor::TensorCores),
    ("spirv", Executor::Spirv),
    ("our_metal", Executor::Host(Text::Metal)),
    ("metal_orders", Executor::Orders),
    ("naga_metal", Executor::Host(Text::Naga { subgroups: true })),
];

/// Metal promises none of these orders. A random one finds most faults; `metal_orders` tries the
/// others.
#[cfg(target_os = "linux")]
const ORDERS: [Order; 3] = [Order::Random(1), Order::Forward, Order::Reverse];

fn without_subgroups() -> Option<Context> {
    let wgsl = context().with_language(ShaderLanguage::Wgsl).ok()?;
    wgsl.capabilities()
        .subgroups
        .then(|| wgsl.restricted(|c| (c.subgroups, c.fused_multiply_add) = (false, false)))
}

/// A kernel's declaration with the SPIR-V that naga writes for its WGSL.
fn with_spirv(kernel: &Kernel, floats: &[(&'static str, Element)]) -> Kernel {
    let able = context().capabilities();
    let language = ShaderLanguage::Wgsl;
    let variant = Variant {
        language,
        subgroups: able.subgroups,
        fused: able.fused_multiply_add,
        floats: floats.to_vec(),
    };
    let (module, info) = machine::parse(&kernel.joined_source(&variant), Capabilities::all());
    // As in the release pipelines of the library; else drivers compile for minutes.
    let zero_initialize_workgroup_memory = spv::ZeroInitializeWorkgroupMemoryMode::None;
    let options = spv::Options {
        lang_version: (1, 3),
        zero_initialize_workgroup_memory,
        force_loop_bounding: false,
        ..Default::default()
    };
    let pipeline = spv::PipelineOptions {
        shader_stage: naga::ShaderStage::Compute,
        entry_point: kernel.entry.to_owned(),
    };
    let words =
        spv::write_vec(&module, &info, &options, Some(&pipeline)).expect("naga writes SPIR-V");
    // SAFETY: naga writes valid modules, and the kernels keep to their bounds, as the other
    // executors show.
    unsafe { kernel.with_spirv(words) }
}

/// The recorded dispatches once more, in SPIR-V.
fn repeated_in_spirv(recorded: Recorded, context: &Context) -> Result<Recorded> {
    let mut encoder = context.encoder("spirv");
    // An iteration has the same few kernels hundreds of times.
    let mut made = HashMap::new();
    for dispatch in recorded.recording.dispatches() {
        let (kernel, floats) = (dispatch.kernel(), dispatch.floats());
        let key = (std::ptr::from_ref::<Kernel>(kernel).addr(), floats.to_vec());
        encoder.repeat(
            &dispatch,
            &*made.entry(key).or_insert_with(|| Arc::new(with_spirv(kernel, floats))),
        )?;
    }
    Ok(recorded.as_recorded(encoder.finish()))
}

/// The most threadgroups of a case on the CPU: for runs under sanitizers, which take their time.
pub fn threadgroups_limit() -> Option<u64> {
    let limit = std::env::var("MSL_TEST_THREADGROUPS").ok()?;
    Some(limit.parse().expect("MSL_TEST_THREADGROUPS is a number"))
}

impl Executor {
    /// Returns whether it can run an op here at all.
    pub fn runs(self, op: &Op) -> bool {
        match self {
            Self::Reference => matches!(op.by, By::KernelsAndReference | By::WgslAndReference),
            // Metal has tensor cores where a GPU by Apple runs it.
            Self::Device(context) if op.by == By::TensorCores => context()
                .is_some_and(|c| c.language() == ShaderLanguage::Msl && c.capabilities().apple),
            Self::Portable | Self::Spirv | Self::Host(Text::Naga { .. })
                if op.by == By::TensorCores =>
            {
                false
            }
            Self::Device(context) => context().is_some(),
            Self::Portable => without_subgroups().is_some(),
            Self::TensorCores => op.on_tensor_cores() && with_tensor_cores().is_some(),
            Self::Spirv => {
                let features = context().device().features();
                let vulkan = context().capabilities().backend == wgpu::Backend::Vulkan;
                vulkan && features.contains(wgpu::Features::PASSTHROUGH_SHADERS)
            }
            Self::Host(Text::Metal) | Self::Orders if op.by.is_wgsl_only() => false,
            Self::Host(_) | Self::Orders => op.by != By::Device && cfg!(target_os = "linux"),
        }
    }

    /// Runs a case and has it judged. Gives false for a case that it leaves to others.
    ///
    /// # Errors
    /// How it failed.
    pub fn run(self, case: &Case) -> Result<bool, String> {
        self.observed(case, &mut |_| ())
    }

    /// [`Executor::run`], after which `observe` sees what was recorded on a device.
    ///
    /// # Errors
    /// How it failed.
    pub fn observed(
        self,
        case: &Case,
        observe: &mut dyn FnMut(&Recording),
    ) -> Result<bool, String> {
        match self {
            Self::Reference => case.check_reference().transpose().map(|checked| checked.is_some()),
            Self::Device(context) => {
                let context = context().expect("it is here");
                on_device(case, &context, |recorded, _| Ok(recorded), true, observe)
            }
            Self::Portable => on_portable_device(case, &without_subgroups().expect("it is here")),
            Self::TensorCores => on_device(
                case,
                with_tensor_cores().expect("they are here"),
                |recorded, _| Ok(recorded),
                true,
                observe,
            ),
            Self::Spirv => on_device(case, context(), repeated_in_spirv, false, observe),
            #[cfg(target_os = "linux")]
            Self::Host(Text::Metal) => crate::emulated::check(case, Text::Metal, &ORDERS[..1]),
            #[cfg(target_os = "linux")]
            Self::Orders => crate::emulated::check(case, Text::Metal, &ORDERS[1..]),
            #[cfg(target_os = "linux")]
            Self::Host(text) => crate::emulated::check(case, text, &ORDERS[..2]),
            #[cfg(not(target_os = "linux"))]
            Self::Host(_) | Self::Orders => Ok(false),
        }
    }
}

fn on_portable_device(case: &Case, context: &Context) -> Result<bool, String> {
    if case.f16 && !context.capabilities().f16 {
        return Ok(false);
    }
    let recorded = case.record(&context.restricted(case.restrict)).map_err(|e| e.to_string())?;
    if !recorded.recording.kernels().any(Kernel::uses_subgroups) {
        return Ok(false);
    }
    on_device(case, context, |recorded, _| Ok(recorded), true, &mut |_| ())
}

/// `again`: a second time too, which must be bit-identical.
fn on_device(
    case: &Case,
    context: &Context,
    change: fn(Recorded, &Context) -> Result<Recorded>,
    again: bool,
    observe: &mut dyn FnMut(&Recording),
) -> Result<bool, String> {
    if case.f16 && !context.capabilities().f16 {
        return Ok(false);
    }
    let context = context.restricted(case.restrict);
    let run = |context: &Context, again: bool| {
        let recorded = case
            .record(context)
            .and_then(|recorded| change(recorded, context))
            .map_err(|e| e.to_string())?;
        let run = |before: &Memory| {
            recorded.write(before)?;
            recorded.recording.submit()?.wait()?;
            recorded.read()
        };
        let run = || {
            recorded.before().and_then(|before| {
                Ok((run(&before)?, if again { Some(run(&before)?) } else { None }, before))
            })
        };
        let (after, second, before) = run().map_err(|e| e.to_string())?;
        case.check(&recorded.watched(&before, &after)?, Leeway::Device)?;
        match second {
            Some(second) if second != after => Err("other bits the second time".to_owned()),
            _ => Ok(recorded),
        }
    };
    let recorded = run(&context, again)?;
    observe(&recorded.recording);
    if let Some(limit) = recorded.folding(context.language()) {
        run(&context.restricted(|c| c.max_workgroups = limit), false)
            .map_err(|e| format!("grid folded at {limit}: {e}"))?;
    }
    Ok(true)
}
