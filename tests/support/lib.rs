//! What the tests share: one device, seeded data, where files are, and every op's cases with the
//! ways to run them.

mod case;
mod cases;
mod data;
pub mod emulated;
mod executors;
pub mod files;
mod golden;
mod gradient;
mod layouts;
mod log;
pub mod machine;
mod matrix;
pub mod memory;
pub mod models;
mod own_process;
mod random;

pub use self::log::warnings;
pub use case::{Case, Recorded, Recorder};
pub use cases::{By, Op, ops};
pub use data::{Compared, Data, FROM_SUBNORMAL, Leeway, Near, U, sums};
pub use executors::{EXECUTORS, Executor, threadgroups_limit};
pub use golden::Golden;
pub use gradient::assert_gradient;
pub use layouts::quantize_as;
pub use matrix::{Matrix, hilbert, of_rank, roundings};
pub use own_process::own_process;
pub use pollster::block_on;
pub use random::*;

/// Tests of a function that takes `Option<&Context>`: `NAME::cpu`, and `NAME::gpu`, which is
/// ignored unless it is asked for.
#[macro_export]
macro_rules! each_device {
    ($name:ident) => {
        mod $name {
            #[test]
            fn cpu() {
                super::$name(None);
            }

            #[test]
            #[ignore = "needs a GPU"]
            fn gpu() {
                super::$name(Some($crate::context()));
            }
        }
    };
}

use bitnet_wgpu::{
    Context, ContextOptions, Error, device::Capabilities, kernel::ShaderLanguage, wgpu,
};
use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
};

/// An app that opens devices itself.
pub struct App {
    pub adapter: wgpu::Adapter,
}

impl Default for App {
    fn default() -> Self {
        Self::of(wgpu::InstanceDescriptor::new_without_display_handle())
    }
}

impl App {
    pub fn of(descriptor: wgpu::InstanceDescriptor) -> Self {
        Self {
            adapter: block_on(
                wgpu::Instance::new(descriptor.with_env()).request_adapter(&Default::default()),
            )
            .unwrap(),
        }
    }

    /// A context on a device of the app's, with what the crate needs as `change` has it.
    ///
    /// # Errors
    ///
    /// As [`Context::from_wgpu`].
    pub fn open(&self, change: impl FnOnce(&mut wgpu::DeviceDescriptor)) -> Result<Context, Error> {
        let (required_features, required_limits) = Context::device_needs(&self.adapter);
        let mut descriptor =
            wgpu::DeviceDescriptor { required_features, required_limits, ..Default::default() };
        change(&mut descriptor);
        let (device, queue) = block_on(self.adapter.request_device(&descriptor)).unwrap();
        block_on(Context::from_wgpu(&self.adapter, device, queue))
    }
}

/// The device under test, opened once for a test binary.
pub fn context() -> &'static Context {
    static CONTEXT: LazyLock<Context> = LazyLock::new(|| {
        log::init();
        let context = block_on(Context::new())
            .expect("tests need a GPU driver; scripts/test installs lavapipe");
        eprintln!("{context:?}");
        context
    });
    &CONTEXT
}

/// The tests' device, opened once more with its tensor cores; `None` if kernels use none of them.
pub fn with_tensor_cores() -> Option<&'static Context> {
    static CONTEXT: LazyLock<Option<Context>> = LazyLock::new(|| {
        context();
        // SAFETY: kernels of the crate alone run on this device.
        let token = unsafe { wgpu::ExperimentalFeatures::enabled() };
        let context = block_on(Context::open(ContextOptions::default().experimental(token)))
            .expect("it was opened before");
        (!context.capabilities().tensor_cores.is_empty()).then_some(context)
    });
    CONTEXT.as_ref()
}

/// The device as a model has it that computes prompts on tensor cores; `None` where it has none.
/// Software adapters are faster without tensor cores.
pub fn prompts_on_tensor_cores() -> Option<Context> {
    with_tensor_cores().map(|context| context.restricted(|c| c.fast_packed_dot = true))
}

/// The device in each of its languages, and in WGSL as if it had no subgroup operations.
pub fn contexts() -> Vec<Context> {
    let languages = context().capabilities().languages.iter();
    let mut all: Vec<_> =
        languages.map(|&language| context().with_language(language).unwrap()).collect();
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

/// The text of all files of Rust in a folder and in those within it.
pub fn sources_below(folder: &Path) -> String {
    let entries =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let text = |path: PathBuf| match path.extension() {
        _ if path.is_dir() => sources_below(&path),
        Some(extension) if extension == "rs" => std::fs::read_to_string(path).expect("a source"),
        _ => String::new(),
    };
    entries.map(text).collect()
}

/// A file or folder of tests/data.
pub fn data(path: impl AsRef<Path>) -> PathBuf {
    repository("tests/data").join(path)
}

/// The shipped model, or the one that `BITNET_MODEL_DIR` names.
pub fn real_model() -> PathBuf {
    std::env::var_os("BITNET_MODEL_DIR")
        .map_or_else(|| repository("assets/tales-22m"), PathBuf::from)
}
