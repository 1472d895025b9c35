//! `bitnet adapters`: the GPUs, and what would run on them.

use crate::{model::matrix_units, say, text};
use anyhow::Result;
use bitnet_wgpu::{Capabilities, Context, bitnet, wgpu};
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

/// Shapes for which the choice of kernels is shown: tokens and input features, of 2560 output features.
const SHAPES: [(usize, usize); 2] = [(1, 2560), (512, 2560)];

impl Adapters {
    pub fn run(self) -> Result<()> {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle().with_env());
        let adapters = block_on(instance.enumerate_adapters(wgpu::Backends::all()));
        if self.json {
            let all: Vec<_> =
                adapters.iter().map(|adapter| open(adapter).map_or_else(|error| refused(adapter, &error), |c| object(&c))).collect();
            say(format!("{}\n", Value::Array(all)))?;
            return Ok(());
        }
        if adapters.is_empty() {
            say("no adapters; models run on the CPU\n")?;
        }
        for adapter in adapters {
            say(format!(
                "{}\n{}\n",
                adapter.get_info().name,
                open(&adapter).map_or_else(|e| format!("  cannot be used: {e}\n"), |c| shown(&c))
            ))?;
        }
        Ok(())
    }
}

fn open(adapter: &wgpu::Adapter) -> Result<Context> {
    let (features, required_limits) = Context::device_needs(adapter);
    let required_features = features | (adapter.features() & wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX);
    let descriptor =
        wgpu::DeviceDescriptor { required_features, required_limits, experimental_features: matrix_units(), ..Default::default() };
    let (device, queue) = block_on(adapter.request_device(&descriptor))?;
    Ok(block_on(Context::from_wgpu(adapter, device, queue))?)
}

fn shown(context: &Context) -> String {
    let c = context.capabilities();
    let mut text = format!("  {} on {:?}; kernels in {:?}, {:?} by choice\n", c.driver, c.backend, c.languages, context.language());
    text += &format!("  subgroup operations {}, f16 {}, subnormal halves kept {}\n", c.subgroups, c.f16, c.half_subnormals);
    text += &format!("  matrix units: {}\n", units(c));
    text += &format!("  timestamps {}, largest tensor {} MiB\n", c.timestamps, c.max_binding_bytes >> 20);
    for (tokens, features) in SHAPES {
        let layout = bitnet::layout(features, c, context.language());
        text +=
            &format!("  {tokens} × {features}: {layout:?} activations, {}\n", bitnet::plan(tokens, 2560, features, layout, false, c).name);
    }
    text
}

/// The sizes of the matrices that are multiplied on units.
pub fn units(c: &Capabilities) -> String {
    let sizes: Vec<_> = c.matrix_units.iter().map(|unit| format!("{0} × {0}", unit.size)).collect();
    if sizes.is_empty() { "none that are used".into() } else { sizes.join(", ") }
}

fn object(context: &Context) -> Value {
    let c = context.capabilities();
    json!({
        "adapter": c.adapter, "driver": c.driver, "backend": format!("{:?}", c.backend), "software": c.software, "usable": true,
        "languages": c.languages.iter().map(|language| format!("{language:?}")).collect::<Vec<_>>(), "language": format!("{:?}", context.language()),
        "subgroups": c.subgroups, "f16": c.f16, "half_subnormals": c.half_subnormals, "timestamps": c.timestamps,
        "matrix_units": c.matrix_units.iter().map(|unit| json!({ "size": unit.size, "lanes": unit.lanes })).collect::<Vec<_>>(),
        "max_binding_bytes": c.max_binding_bytes,
    })
}

fn refused(adapter: &wgpu::Adapter, error: &anyhow::Error) -> Value {
    let info = adapter.get_info();
    json!({ "adapter": info.name, "backend": format!("{:?}", info.backend), "usable": false, "why": text(error) })
}
