//! `bitnet adapters`: the GPUs, and what would run on them.

use crate::{model::matrix_units, say};
use anyhow::Result;
use bitnet_wgpu::{
    Context, ContextOptions, Element, bitnet,
    device::{Adapter, Capabilities},
    internals::MatrixUnit,
    kernel::ShaderLanguage,
    telemetry::{Health, Reading},
    wgpu,
};
use clap::Args;
use pollster::block_on;
use serde_json::{Value, json};

/// Lists the GPUs, their capabilities, and the kernels that would be chosen on each
#[derive(Args)]
pub struct Adapters {
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// Shapes for which the choice of kernels is shown: tokens and input features, of 2560 output
/// features.
const SHAPES: [(usize, usize); 2] = [(1, 2560), (512, 2560)];

impl Adapters {
    pub fn run(self) -> Result<()> {
        let list = block_on(bitnet_wgpu::Adapters::list(
            &ContextOptions::default().experimental(matrix_units()),
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
            say("no adapters; models run on the CPU\n")?;
        }
        for adapter in &list.all {
            let opened = open(adapter).map_or_else(
                |error| format!("  cannot be used: {error}\n"),
                |context| shown(&context),
            );
            say(format!(
                "{}: {}\n{}{opened}\n",
                adapter.index,
                adapter.capabilities.adapter,
                offered(adapter, why(adapter))
            ))?;
        }
        if let (Err(error), false) = (chosen, list.all.is_empty()) {
            say(format!("none is chosen: {error}\n"))?;
        }
        Ok(())
    }
}

fn open(adapter: &Adapter) -> bitnet_wgpu::Result<Context> {
    block_on(Context::open(
        ContextOptions::default().adapter(adapter.index).experimental(matrix_units()),
    ))
}

/// What is known before it is opened.
fn offered(adapter: &Adapter, why: Option<&str>) -> String {
    let recommended = if adapter.capabilities.backend == wgpu::Backend::Metal {
        " (recommended working set)"
    } else {
        ""
    };
    let memory = adapter
        .memory_bytes
        .map_or("of unknown size".into(), |bytes| format!("of {} MiB{recommended}", bytes >> 20));
    let shared = match adapter.unified_memory {
        Some(true) => ", the processor's own",
        Some(false) => ", apart from the processor's",
        None => "",
    };
    let generation = adapter
        .apple_generation
        .map(|generation| format!(", generation of M{generation}"))
        .unwrap_or_default();
    let family = adapter
        .apple_family
        .map(|family| format!(", GPU family Apple{family}"))
        .unwrap_or_default();
    let chosen = why.map(|why| format!("; chosen: {why}")).unwrap_or_default();
    let now = now(&adapter.health());
    let msl = if adapter.capabilities.languages.contains(&ShaderLanguage::Msl) {
        "used"
    } else {
        "not used"
    };
    let (kind, score, reason) = (adapter.kind, adapter.score, &adapter.msl_reason);
    format!(
        "  {kind:?}{generation}{family}; memory {memory}{shared}; score {score}{chosen}\n  MSL is {msl}: {reason}\n{now}"
    )
}

/// What the system says of its load, memory, temperature, power and thermal state; nothing where it
/// says nothing.
fn now(health: &Health) -> String {
    let mut said = Vec::new();
    let value = |reading: &Option<Reading<f64>>| reading.as_ref().map(|reading| reading.value);
    said.extend(value(&health.utilization).map(|share| format!("{:.0} % busy", 100.0 * share)));
    said.extend(
        health.memory_used.as_ref().map(|bytes| format!("{} MiB in use", bytes.value >> 20)),
    );
    said.extend(value(&health.temperature).map(|celsius| format!("{celsius:.0} °C")));
    said.extend(value(&health.power).map(|watts| format!("{watts:.0} W")));
    said.extend(health.thermal.as_ref().map(|thermal| format!("thermal state {}", thermal.value)));
    if said.is_empty() { String::new() } else { format!("  now {}\n", said.join(", ")) }
}

/// The same for `--json`, with sources.
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
    let mut text = format!(
        "  {} on {:?}; kernels in {:?}, {:?} by choice\n",
        c.driver,
        c.backend,
        c.languages,
        context.language()
    );
    text += &format!(
        "  subgroup operations {}, f16 {}, subnormal halves kept {}",
        c.subgroups, c.f16, c.half_subnormals
    );
    text += &format!(", multiply-adds fused {}\n", c.fused_multiply_add);
    text += &format!("  matrix units: {}\n", units(c));
    text += &format!(
        "  timestamps {}, largest tensor {} MiB\n",
        c.timestamps,
        c.max_binding_bytes >> 20
    );
    for (tokens, features) in SHAPES {
        let layout = bitnet::layout(features, c, context.language());
        text += &format!(
            "  {tokens} × {features}: {layout:?} activations, {}\n",
            bitnet::plan(tokens, 2560, features, layout, c).name
        );
    }
    text
}

/// The sizes of the matrices that are multiplied on units.
pub fn units(c: &Capabilities) -> String {
    let sizes: Vec<_> = c
        .matrix_units
        .iter()
        .map(|unit| format!("{} × {} ({})", unit.size, unit.depth, element(unit)))
        .collect();
    if sizes.is_empty() { "none that are used".into() } else { sizes.join(", ") }
}

fn element(unit: &MatrixUnit) -> &'static str {
    if unit.element == Element::I8 { "int8" } else { "f16" }
}

fn object(adapter: &Adapter, opened: bitnet_wgpu::Result<Context>, why: Option<&str>) -> Value {
    let c = opened.as_ref().map_or(&adapter.capabilities, Context::capabilities);
    let mut object = json!({
        "index": adapter.index, "adapter": c.adapter, "driver": c.driver, "backend": format!("{:?}", c.backend), "kind": format!("{:?}", adapter.kind),
        "software": c.software, "unified_memory": adapter.unified_memory, "memory_bytes": adapter.memory_bytes,
        "apple_generation": adapter.apple_generation, "apple_family": adapter.apple_family, "msl_reason": adapter.msl_reason, "score": adapter.score, "reasons": adapter.reasons, "chosen": why.is_some(), "chosen_why": why,
        "usable": opened.is_ok(), "why": opened.as_ref().err().map(ToString::to_string),
        "languages": c.languages.iter().map(|language| format!("{language:?}")).collect::<Vec<_>>(),
        "subgroups": c.subgroups, "f16": c.f16, "timestamps": c.timestamps,
        "matrix_units": c.matrix_units.iter().map(|unit| json!({ "element": element(unit), "size": unit.size, "depth": unit.depth, "lanes": unit.lanes })).collect::<Vec<_>>(),
        "max_binding_bytes": c.max_binding_bytes, "health": health(&adapter.health()),
    });
    if let Ok(context) = &opened {
        // Only an open device shows these.
        object["language"] = json!(format!("{:?}", context.language()));
        object["half_subnormals"] = json!(c.half_subnormals);
        object["fused_multiply_add"] = json!(c.fused_multiply_add);
    }
    object
}
