//! What the tests share: one device, seeded data, where files are, and every op's cases with the ways to run them.

mod case;
mod cases;
mod data;
mod executors;
pub mod files;
mod golden;
mod gradient;
mod layouts;
mod log;
pub mod machine;
mod matrix;
pub mod models;
mod random;

pub use self::log::warnings;
pub use case::{Case, Recorded, Recorder};
pub use cases::{By, Op, ops};
pub use data::{Data, FROM_SUBNORMAL, Leeway, Near, U, sums};
pub use executors::{EXECUTORS, Executor, threadgroups_limit};
pub use golden::Golden;
pub use gradient::assert_gradient;
pub use layouts::{gate_quantize_as, quantize_as, rms_norm_quantize_as};
pub use matrix::{Matrix, hilbert, of_rank, roundings};
pub use pollster::block_on;
pub use random::*;

use bitnet_wgpu::{Capabilities, Context, ShaderLanguage, wgpu};
use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
};

/// The device under test, opened once for a test binary.
pub fn context() -> &'static Context {
    static CONTEXT: LazyLock<Context> = LazyLock::new(|| {
        log::init();
        let context = block_on(Context::new()).expect("tests need a GPU driver; scripts/test installs lavapipe");
        eprintln!("{context:?}");
        context
    });
    &CONTEXT
}

/// The same device with its matrix units, which only an app can ask for; `None` where it has none that kernels use.
pub fn with_matrix_units() -> Option<&'static Context> {
    static CONTEXT: LazyLock<Option<Context>> = LazyLock::new(|| {
        let known = context().adapter_info();
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle().with_env());
        let mut adapters = block_on(instance.enumerate_adapters(wgpu::Backends::all())).into_iter();
        let adapter = adapters.find(|adapter| adapter.get_info().name == known.name && adapter.get_info().backend == known.backend)?;
        let (features, required_limits) = Context::device_needs(&adapter);
        let units = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
        if !adapter.features().contains(units) {
            return None;
        }
        // SAFETY: kernels of the crate alone run on this device.
        let experimental_features = unsafe { wgpu::ExperimentalFeatures::enabled() };
        let required_features = features | units;
        let descriptor = wgpu::DeviceDescriptor { required_features, required_limits, experimental_features, ..Default::default() };
        let (device, queue) = block_on(adapter.request_device(&descriptor)).expect("it has the feature");
        let context = block_on(Context::from_wgpu(&adapter, device, queue)).expect("it is what the crate needs");
        (!context.capabilities().matrix_units.is_empty()).then_some(context)
    });
    CONTEXT.as_ref()
}

/// The device in each of its languages, and in WGSL as if it had no subgroup operations.
pub fn contexts() -> Vec<Context> {
    let languages = context().capabilities().languages.iter();
    let mut all: Vec<_> = languages.map(|&language| context().with_language(language).unwrap()).collect();
    if context().capabilities().subgroups {
        let wgsl = context().with_language(ShaderLanguage::Wgsl).unwrap();
        all.push(wgsl.restricted(|capabilities: &mut Capabilities| capabilities.subgroups = false));
    }
    all
}

/// A path in the repository.
pub fn repository(path: impl AsRef<Path>) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path)
}

/// A file or folder of tests/data.
pub fn data(path: impl AsRef<Path>) -> PathBuf {
    repository("tests/data").join(path)
}

/// The shipped model, or the one that `BITNET_MODEL_DIR` names.
pub fn real_model() -> PathBuf {
    std::env::var_os("BITNET_MODEL_DIR").map_or_else(|| repository("assets/tales-22m"), PathBuf::from)
}
