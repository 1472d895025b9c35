//! The device that is examined, and its memory.

use crate::{
    adapters::{backend, tensor_cores},
    model::experimental_features,
};
use anyhow::Result;
use bitnet_wgpu::{
    Adapters, Context, ContextOptions,
    device::{Adapter, AdapterChoice},
    wgpu,
};
use pollster::block_on;
use serde_json::{Value, json};
use std::{
    env::consts::{ARCH, OS},
    fmt,
    time::Duration,
};

/// A device that has not answered for so long hangs.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// An open device, and its adapter.
pub struct Device {
    pub context: Context,
    pub adapter: Adapter,
}

impl Device {
    /// Opens the device that is asked for, or that models would run on.
    ///
    /// # Errors
    /// If there is none, or it cannot be used.
    pub fn open(choice: Option<AdapterChoice>) -> Result<Self> {
        let options =
            ContextOptions::default().experimental(experimental_features()).wait_limit(WAIT_LIMIT);
        let options = options.adapter(choice.unwrap_or_default());
        let mut list = block_on(Adapters::list(&options));
        let index = list.chosen?.index;
        let context = block_on(Context::open(options.adapter(index)))?;
        Ok(Self { context, adapter: list.all.swap_remove(index) })
    }

    /// Names of what the device offers, and whether it does.
    fn offers(&self) -> [(&'static str, bool); 9] {
        let (c, features) = (self.context.capabilities(), self.context.device().features());
        [
            ("subgroup operations", c.subgroups),
            ("f16", c.f16),
            ("f16 subnormals", c.f16_subnormals),
            ("fused multiply-add", c.fused_multiply_add),
            ("timestamps", c.timestamps),
            ("device barriers", c.device_barriers),
            ("shader passthrough", features.contains(wgpu::Features::PASSTHROUGH_SHADERS)),
            ("writes in place", c.writes_in_place),
            ("maps in place", c.maps_in_place),
        ]
    }

    /// Where the thresholds come from by which kernels are chosen, and whether measuring them may
    /// pay.
    fn thresholds(&self) -> &'static str {
        let c = self.context.capabilities();
        match c.backend {
            wgpu::Backend::Metal => {
                "from instruction counts, not measured on Apple GPUs; `bitnet tune` may find faster kernels"
            }
            _ if c.software => "measured on lavapipe, a software adapter",
            _ if c.adapter.contains("H200") => "measured on this GPU",
            _ => "measured on an NVIDIA H200; `bitnet tune` may find faster kernels",
        }
    }

    pub fn object(&self) -> Value {
        let (c, limits) = (self.context.capabilities(), self.context.device().limits());
        json!({
            "version": env!("CARGO_PKG_VERSION"), "debug_build": cfg!(debug_assertions), "os": OS, "os_version": os_version(), "arch": ARCH,
            "adapter": c.adapter, "driver": c.driver, "backend": backend(c.backend), "software": c.software,
            "unified_memory": self.adapter.unified_memory, "memory_bytes": self.adapter.memory_bytes,
            "shader_languages": c.languages.iter().map(ToString::to_string).collect::<Vec<_>>(), "shader_language": self.context.language().to_string(),
            "features": self.offers().into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect::<Vec<_>>(),
            "tensor_cores": tensor_cores(c), "thresholds": self.thresholds(), "max_tensor_bytes": c.max_binding_bytes,
            "max_workgroup_memory": limits.max_compute_workgroup_storage_size, "max_workgroup_threads": limits.max_compute_invocations_per_workgroup,
        })
    }

    /// What is known of its memory, after a part of it was tried.
    pub fn memory(&self, tried: Result<u64>) -> Memory {
        Memory {
            adapter: self.adapter.memory_bytes,
            tensor: self.context.capabilities().max_binding_bytes,
            reserved: self.context.reserved_bytes(),
            peak: self.context.memory_stats().peak_live_bytes,
            tried: tried.map_err(|error| crate::text(&error)),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (c, limits) = (self.context.capabilities(), self.context.device().limits());
        let system =
            os_version().map_or_else(|| OS.to_owned(), |version| format!("{OS} {version}"));
        let build = if cfg!(debug_assertions) { ", debug build" } else { "" };
        let mut languages =
            c.languages.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        if c.languages.len() > 1 {
            languages += &format!(", {} by default", self.context.language());
        }
        let named = |supported: bool| {
            self.offers()
                .into_iter()
                .filter(|&(_, has)| has == supported)
                .map(|(name, _)| name)
                .collect::<Vec<_>>()
        };
        let listed =
            |names: Vec<&str>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        writeln!(f, "bitnet      {} on {system}, {ARCH}{build}", env!("CARGO_PKG_VERSION"))?;
        writeln!(f, "adapter     {}", c.adapter)?;
        writeln!(f, "driver      {}", if c.driver.is_empty() { "not named" } else { &c.driver })?;
        writeln!(f, "backend     {}; kernels in {languages}", backend(c.backend))?;
        writeln!(f, "features    {}", listed(named(true)))?;
        writeln!(f, "without     {}", listed(named(false)))?;
        writeln!(f, "tensor cores {}", tensor_cores(c))?;
        writeln!(f, "thresholds  {}", self.thresholds())?;
        let (threads, bytes) = (
            limits.max_compute_invocations_per_workgroup,
            limits.max_compute_workgroup_storage_size,
        );
        writeln!(f, "workgroups  {threads} threads, {bytes} bytes")
    }
}

/// The version of macOS: drivers come with it.
#[cfg(target_os = "macos")]
fn os_version() -> Option<String> {
    let output =
        std::process::Command::new("/usr/bin/sw_vers").arg("-productVersion").output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
        .filter(|version| !version.is_empty())
}

#[cfg(not(target_os = "macos"))]
fn os_version() -> Option<String> {
    None
}

/// Memory, in bytes.
#[derive(Debug)]
pub struct Memory {
    /// Of the adapter, where the system says it.
    adapter: Option<u64>,
    /// The largest tensor.
    tensor: u64,
    /// Taken from the driver, where that is counted.
    reserved: Option<u64>,
    /// The most that tensors took.
    peak: u64,
    /// What was filled and read back.
    pub tried: Result<u64, String>,
}

impl Memory {
    /// Memory of which nothing is known but what came of the test.
    #[cfg(test)]
    pub fn tried(tried: Result<u64, String>) -> Self {
        Self { adapter: None, tensor: 0, reserved: None, peak: 0, tried }
    }

    pub fn object(&self) -> Value {
        json!({
            "adapter_bytes": self.adapter, "max_tensor_bytes": self.tensor, "reserved_bytes": self.reserved, "peak_tensor_bytes": self.peak,
            "tried_bytes": self.tried.as_ref().ok(), "error": self.tried.as_ref().err(),
        })
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let adapter = self.adapter.map_or_else(
            || "of unknown size".to_owned(),
            |bytes| format!("of {}", mebibytes(bytes)),
        );
        write!(
            f,
            "\nmemory {adapter}, tensors of up to {}, at most {} in use: ",
            mebibytes(self.tensor),
            mebibytes(self.peak)
        )?;
        match &self.tried {
            Ok(bytes) => writeln!(f, "{} filled and read back", mebibytes(*bytes)),
            Err(error) => writeln!(f, "FAILED: {error}"),
        }
    }
}

/// Bytes in MiB.
fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
