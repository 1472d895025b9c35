//! `bitnet adapters`: the GPUs and their capabilities.

use crate::{
    model::{self, experimental_features},
    say,
};
use anyhow::Result;
use bitnet_wgpu::{
    Context, ContextOptions, Element,
    bitnet::Layout,
    device::{Adapter, Capabilities},
    internals::{self, TensorCore},
    kernel::ShaderLanguage,
    telemetry::{Health, Reading},
    wgpu,
};
use clap::Args;
use pollster::block_on;
use serde_json::{Value, json};

/// Lists the GPUs and their capabilities, and which one is chosen
#[derive(Args)]
pub struct Adapters {
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// Shapes whose kernels are shown: tokens and input features, with 2560 output features.
const SHAPES: [(usize, usize); 2] = [(1, 2560), (512, 2560)];

impl Adapters {
    pub fn run(self) -> Result<()> {
        let list = block_on(bitnet_wgpu::Adapters::list(
            &ContextOptions::default().experimental(experimental_features()),
        ));
        let chosen = list.chosen.as_ref();
        let why = |adapter: &Adapter| {
            chosen
                .ok()
                .filter(|chosen| chosen.index == adapter.index)
                .map(|chosen| chosen.why.as_str())
        };
        if self.json {
            let all: Vec<_> = list
                .all
                .iter()
                .map(|adapter| object(adapter, open(adapter), why(adapter)))
                .collect();
            say(format!("{}\n", Value::Array(all)))?;
            return Ok(());
        }
        if list.all.is_empty() {
            say(format!("{}; models run on the CPU\n", model::no_gpu()))?;
        }
        for adapter in &list.all {
            let opened = open(adapter)
                .map_or_else(|error| format!("  not usable: {error}\n"), |context| shown(&context));
            say(format!(
                "{}: {}\n{}{opened}\n",
                adapter.index,
                adapter.capabilities.adapter,
                offered(adapter, why(adapter))
            ))?;
        }
        if let (Err(error), false) = (chosen, list.all.is_empty()) {
            say(format!("no GPU chosen: {error}\n"))?;
        }
        Ok(())
    }
}

fn open(adapter: &Adapter) -> bitnet_wgpu::Result<Context> {
    block_on(Context::open(
        ContextOptions::default().adapter(adapter.index).experimental(experimental_features()),
    ))
}

/// Describes an adapter that need not be open.
fn offered(adapter: &Adapter, why: Option<&str>) -> String {
    let working_set = match adapter.capabilities.backend {
        wgpu::Backend::Metal => " (recommended working set)",
        _ => "",
    };
    let memory = adapter
        .memory_bytes
        .map_or("of unknown size".into(), |bytes| format!("{} MiB{working_set}", bytes >> 20));
    let shared = match adapter.unified_memory {
        Some(true) => ", unified with the processor's",
        Some(false) => ", dedicated",
        None => "",
    };
    let generation = adapter.apple_generation;
    let generation = generation.map(|number| format!(", M{number} generation")).unwrap_or_default();
    let family = adapter.apple_family;
    let family = family.map(|number| format!(", GPU family Apple{number}")).unwrap_or_default();
    let chosen = why.map(|why| format!("; chosen: {why}")).unwrap_or_default();
    let now = now(&adapter.health());
    let is_used = adapter.capabilities.languages.contains(&ShaderLanguage::Msl);
    let msl = if is_used { "used" } else { "not used" };
    let kind = kind(adapter.kind);
    let score = adapter.score;
    let reason = &adapter.msl_reason;
    format!(
        "  {kind}{generation}{family}; memory {memory}{shared}; score {score}{chosen}\n  MSL is {msl}: {reason}\n{now}"
    )
}

fn kind(kind: wgpu::DeviceType) -> &'static str {
    match kind {
        wgpu::DeviceType::DiscreteGpu => "discrete GPU",
        wgpu::DeviceType::IntegratedGpu => "integrated GPU",
        wgpu::DeviceType::VirtualGpu => "virtual GPU",
        wgpu::DeviceType::Cpu => "software adapter",
        wgpu::DeviceType::Other => "device of unknown type",
    }
}

/// Returns the name of a graphics API as its makers write it.
pub fn backend(backend: wgpu::Backend) -> &'static str {
    match backend {
        wgpu::Backend::Metal => "Metal",
        wgpu::Backend::Vulkan => "Vulkan",
        other => other.to_str(),
    }
}

/// Returns a line of the load, memory, temperature, power and thermal state that the system
/// reports.
fn now(health: &Health) -> String {
    let mut readings = Vec::new();
    let value = |reading: &Option<Reading<f64>>| reading.as_ref().map(|reading| reading.value);
    readings.extend(value(&health.utilization).map(|share| format!("{:.0} % busy", 100.0 * share)));
    readings.extend(
        health.memory_used.as_ref().map(|bytes| format!("{} MiB in use", bytes.value >> 20)),
    );
    readings.extend(value(&health.temperature).map(|celsius| format!("{celsius:.0} °C")));
    readings.extend(value(&health.power).map(|watts| format!("{watts:.0} W")));
    readings
        .extend(health.thermal.as_ref().map(|thermal| format!("thermal state {}", thermal.value)));
    if readings.is_empty() { String::new() } else { format!("  now {}\n", readings.join(", ")) }
}

/// Returns the health of an adapter for `--json`, with sources.
fn health(health: &Health) -> Value {
    let thermal = health
        .thermal
        .as_ref()
        .map(|thermal| json!({ "value": thermal.value.to_string(), "source": thermal.source }));
    fn reading<T: Copy + Into<Value>>(reading: &Option<Reading<T>>) -> Value {
        reading.as_ref().map_or(Value::Null, |reading| json!({ "value": Into::<Value>::into(reading.value), "source": reading.source }))
    }
    json!({
        "utilization": reading(&health.utilization), "memory_used": reading(&health.memory_used), "memory_total": reading(&health.memory_total),
        "temperature_celsius": reading(&health.temperature), "power_watts": reading(&health.power),
        "energy_joules": reading(&health.energy), "thermal": thermal,
    })
}

fn shown(context: &Context) -> String {
    let c = context.capabilities();
    let has = |has: bool| if has { "yes" } else { "no" };
    let mut text = format!(
        "  {}, {}; shader languages {}, {} by default\n",
        c.driver,
        backend(c.backend),
        languages(c).join(", "),
        context.language()
    );
    text += &format!(
        "  subgroups {}, f16 {}, f16 subnormals {}, fused multiply-add {}, timestamps {}\n",
        has(c.subgroups),
        has(c.f16),
        has(c.f16_subnormals),
        has(c.fused_multiply_add),
        has(c.timestamps)
    );
    text += &format!("  tensor cores: {}\n", tensor_cores(c));
    text += &format!("  largest tensor {} MiB\n", c.max_binding_bytes >> 20);
    for (tokens, features) in SHAPES {
        let layout = internals::layout(features, c, context.language());
        let activations = if layout == Layout::Int8 { "int8" } else { "f16" };
        let kernel = internals::plan(tokens, 2560, features, layout, c).name;
        text += &format!(
            "  {tokens} × {features} activations: {activations} layout, kernel {kernel}\n"
        );
    }
    text
}

fn languages(c: &Capabilities) -> Vec<String> {
    c.languages.iter().map(ToString::to_string).collect()
}

/// Returns the sizes of the matrices that tensor cores multiply.
pub fn tensor_cores(c: &Capabilities) -> String {
    let sizes: Vec<_> = c
        .tensor_cores
        .iter()
        .map(|core| format!("{} × {} ({})", core.size, core.depth, element(core)))
        .collect();
    if sizes.is_empty() { "not used".into() } else { sizes.join(", ") }
}

fn element(core: &TensorCore) -> &'static str {
    if core.element == Element::I8 { "int8" } else { "f16" }
}

fn object(adapter: &Adapter, opened: bitnet_wgpu::Result<Context>, why: Option<&str>) -> Value {
    let c = opened.as_ref().map_or(&adapter.capabilities, Context::capabilities);
    let described = |core: &TensorCore| json!({ "element": element(core), "size": core.size, "depth": core.depth, "lanes": core.lanes });
    let mut object = json!({
        "index": adapter.index,
        "adapter": c.adapter,
        "driver": c.driver,
        "backend": backend(c.backend),
        "kind": kind(adapter.kind),
        "software": c.software,
        "unified_memory": adapter.unified_memory,
        "memory_bytes": adapter.memory_bytes,
        "apple_generation": adapter.apple_generation,
        "apple_family": adapter.apple_family,
        "msl_reason": adapter.msl_reason,
        "score": adapter.score,
        "score_reasons": adapter.reasons,
        "chosen": why.is_some(),
        "chosen_reason": why,
        "usable": opened.is_ok(),
        "error": opened.as_ref().err().map(ToString::to_string),
        "shader_languages": languages(c),
        "subgroups": c.subgroups,
        "f16": c.f16,
        "timestamps": c.timestamps,
        "tensor_cores": c.tensor_cores.iter().map(described).collect::<Vec<_>>(),
        "max_tensor_bytes": c.max_binding_bytes,
        "health": health(&adapter.health()),
    });
    if let Ok(context) = &opened {
        // Only an open device shows these.
        object["shader_language"] = json!(context.language().to_string());
        object["f16_subnormals"] = json!(c.f16_subnormals);
        object["fused_multiply_add"] = json!(c.fused_multiply_add);
    }
    object
}
