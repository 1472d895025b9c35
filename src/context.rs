//! The device and everything that is shared by the work on it.

use crate::{
    Capabilities, Element, ElementType, Encoder, Error, Kernel, PoolStats, Result, Shape, Tensor,
    kernel::Variant,
    ops::half_subnormals,
    pipeline::{Pipeline, Pipelines},
    pool::{Pool, Pooled},
    readback::PollThread,
};
use std::sync::Arc;

/// The language that kernels are compiled from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShaderLanguage {
    /// WebGPU's shading language: runs on every backend.
    Wgsl,
    /// Hand-written Metal, passed to Apple's compiler as it is. Kernels without a Metal text run their WGSL.
    Msl,
}

/// A GPU device with its buffer pool, pipeline cache and poll thread. Clones are cheap and share all of them.
#[derive(Clone)]
pub struct Context {
    shared: Arc<Shared>,
    settings: Settings,
}

/// What may differ between contexts on one device.
#[derive(Clone)]
struct Settings {
    language: ShaderLanguage,
    capabilities: Arc<Capabilities>,
    translate: Option<Translate>,
}

/// Makes SPIR-V of a kernel's WGSL: lets tests drive the passthrough path where there is no Metal.
#[doc(hidden)]
pub type Translate = fn(&Kernel, &str) -> Vec<u32>;

struct Shared {
    device: wgpu::Device,
    queue: wgpu::Queue,
    info: wgpu::AdapterInfo,
    pool: Arc<Pool>,
    pipelines: Pipelines,
    poll: PollThread,
}

/// The wgpu features without which nothing works: parameters travel as immediates.
const REQUIRED: wgpu::Features = wgpu::Features::IMMEDIATES;
/// Those that are used where the adapter has them.
const WANTED: wgpu::Features = REQUIRED
    .union(wgpu::Features::SUBGROUP)
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::TIMESTAMP_QUERY)
    .union(wgpu::Features::PASSTHROUGH_SHADERS);

impl Context {
    /// Opens a device. The adapter is the one that `WGPU_ADAPTER_NAME` names (a part of the name, any case), else what
    /// wgpu prefers given `WGPU_BACKEND` and `WGPU_POWER_PREF` (the fast one unless set).
    ///
    /// # Errors
    /// [`Error::NoAdapter`], [`Error::NoDevice`], [`Error::MissingFeature`] (immediates).
    pub async fn new() -> Result<Self> {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        if !cfg!(debug_assertions) {
            descriptor.flags = wgpu::InstanceFlags::empty();
        }
        Self::with_instance(wgpu::Instance::new(descriptor.with_env())).await
    }

    async fn with_instance(instance: wgpu::Instance) -> Result<Self> {
        let adapter = choose_adapter(&instance).await?;
        let (features, limits) = Self::device_needs(&adapter);
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("bitnet-wgpu"),
            required_features: features,
            required_limits: limits,
            ..Default::default()
        };
        let opened = adapter.request_device(&descriptor).await;
        let (device, queue) = opened.map_err(|source| Error::NoDevice { adapter: adapter.get_info().name, source })?;
        Self::from_wgpu(&adapter, device, queue).await
    }

    /// The features and limits to request for a device that is to be handed to [`Context::from_wgpu`]: all that this crate
    /// can use of what `adapter` offers.
    pub fn device_needs(adapter: &wgpu::Adapter) -> (wgpu::Features, wgpu::Limits) {
        (adapter.features() & WANTED, adapter.limits())
    }

    /// Works on an app's own device. What the device was opened without is not used.
    ///
    /// # Errors
    /// [`Error::MissingFeature`] if the device has no immediates, [`Error::Limit`] if it was opened with too low limits; see
    /// [`Context::device_needs`].
    pub async fn from_wgpu(adapter: &wgpu::Adapter, device: wgpu::Device, queue: wgpu::Queue) -> Result<Self> {
        let (info, features) = (adapter.get_info(), device.features());
        if !features.contains(REQUIRED) {
            return Err(Error::MissingFeature { what: "bitnet-wgpu", feature: REQUIRED - features });
        }
        check_limits(&device.limits())?;
        let mut capabilities = Capabilities::of(&info, features, &device.limits());
        let language = *capabilities.languages.last().unwrap_or(&ShaderLanguage::Wgsl);
        let poll = PollThread::spawn(device.clone())?;
        let shared = Shared { device, queue, info, pool: Arc::default(), pipelines: Pipelines::default(), poll };
        let settings = Settings { language, capabilities: Arc::new(capabilities.clone()), translate: None };
        let mut context = Self { shared: Arc::new(shared), settings };
        (capabilities.half_subnormals, capabilities.timestamps) = half_subnormals::kept(&context).await?;
        log::info!("{language:?} kernels on {capabilities:?}");
        context.settings.capabilities = Arc::new(capabilities);
        Ok(context)
    }

    /// The same device, buffers and caches, with kernels from another language.
    ///
    /// # Errors
    /// [`Error::Language`] where it cannot run.
    pub fn with_language(&self, language: ShaderLanguage) -> Result<Self> {
        if !self.capabilities().languages.contains(&language) {
            return Err(Error::Language { language, backend: self.capabilities().backend });
        }
        Ok(Self { settings: Settings { language, ..self.settings.clone() }, ..self.clone() })
    }

    /// The same device, taken for less than it is: `change` may clear what it offers, so that the kernels for lesser
    /// devices can be tested and timed on it. What it lacks cannot be added.
    pub fn restricted(&self, change: impl FnOnce(&mut Capabilities)) -> Self {
        let old = self.capabilities();
        let mut new = old.clone();
        change(&mut new);
        new.languages = old.languages;
        new.backend = old.backend;
        new.subgroups &= old.subgroups;
        new.f16 &= old.f16;
        new.timestamps &= old.timestamps;
        new.half_subnormals &= old.half_subnormals;
        new.max_binding_bytes = new.max_binding_bytes.min(old.max_binding_bytes);
        new.max_workgroups = new.max_workgroups.clamp(1, old.max_workgroups);
        Self { settings: Settings { capabilities: Arc::new(new), ..self.settings.clone() }, ..self.clone() }
    }

    /// The same device, with every kernel passed to the driver as SPIR-V that `translate` makes of its WGSL.
    #[doc(hidden)]
    pub fn with_spirv(&self, translate: Translate) -> Self {
        Self { settings: Settings { translate: Some(translate), ..self.settings.clone() }, ..self.clone() }
    }

    /// The language that kernels are compiled from, where they have it.
    pub fn language(&self) -> ShaderLanguage {
        self.settings.language
    }

    /// What the device offers.
    pub fn capabilities(&self) -> &Capabilities {
        &self.settings.capabilities
    }

    /// The adapter as wgpu describes it.
    pub fn adapter_info(&self) -> &wgpu::AdapterInfo {
        &self.shared.info
    }

    /// wgpu's device, for work beside this crate's.
    pub fn device(&self) -> &wgpu::Device {
        &self.shared.device
    }

    /// wgpu's queue.
    pub fn queue(&self) -> &wgpu::Queue {
        &self.shared.queue
    }

    /// Counters of the buffer pool.
    pub fn pool_stats(&self) -> PoolStats {
        self.shared.pool.stats()
    }

    /// Gives the memory of waiting buffers back to the driver.
    pub fn trim_pool(&self) {
        self.shared.pool.trim();
    }

    /// A new recording; `label` names it in captures and profiles.
    pub fn encoder(&self, label: &'static str) -> Encoder {
        Encoder::new(self.clone(), label)
    }

    /// Copies `data` into a new tensor.
    ///
    /// # Errors
    /// [`Error::Length`] if `data` does not fill `shape`, [`Error::TooLarge`] if the device cannot bind that much.
    pub fn upload<T: ElementType>(&self, data: &[T], shape: impl Into<Shape>) -> Result<Tensor<T>> {
        Tensor::upload(self, data, shape.into())
    }

    /// The compiled kernel, from the cache or made now; `floats` are the types behind its aliases.
    pub(crate) fn pipeline(&self, kernel: &'static Kernel, floats: Vec<(&'static str, Element)>) -> Result<Arc<Pipeline>> {
        let language = kernel.language(self.language());
        let subgroups = self.capabilities().subgroups;
        let f16 = wgpu::Features::SHADER_F16;
        if floats.iter().any(|&(_, element)| element == Element::F16) && !self.capabilities().f16 {
            return Err(Error::MissingFeature { what: kernel.name, feature: f16 });
        }
        let variant = Variant { language, subgroups, floats };
        self.shared.pipelines.get(&self.shared.device, kernel, variant, self.settings.translate)
    }

    pub(crate) fn same_device(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    pub(crate) fn allocate(&self, bytes: u64, usage: wgpu::BufferUsages, label: &str) -> Result<Arc<Pooled>> {
        self.shared.pool.get(&self.shared.device, bytes, usage, label)
    }

    pub(crate) fn write(&self, buffer: &wgpu::Buffer, data: &[u8]) -> Result<()> {
        let (words, tail) = data.split_at(data.len() & !3);
        guarded(
            &self.shared.device,
            || "an upload".into(),
            || {
                if !words.is_empty() {
                    self.shared.queue.write_buffer(buffer, 0, words);
                }
                if !tail.is_empty() {
                    let mut word = [0; 4];
                    word[..tail.len()].copy_from_slice(tail);
                    self.shared.queue.write_buffer(buffer, words.len() as u64, &word);
                }
            },
        )
    }

    pub(crate) fn clear(&self, buffer: &wgpu::Buffer) -> Result<()> {
        self.submit_with("clear", |encoder| encoder.clear_buffer(buffer, 0, None)).map(drop)
    }

    /// Submits what `record` puts into a command encoder.
    pub(crate) fn submit_with(&self, label: &'static str, record: impl FnOnce(&mut wgpu::CommandEncoder)) -> Result<wgpu::SubmissionIndex> {
        let device = &self.shared.device;
        let encode = || {
            let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some(label) });
            record(&mut encoder);
            self.shared.queue.submit([encoder.finish()])
        };
        guarded(device, || format!("`{label}`"), encode)
    }

    /// Has the poll thread see to the callbacks of a submission. Plain submissions are not its business: two threads that wait for one take
    /// a millisecond longer.
    pub(crate) fn watch(&self, index: wgpu::SubmissionIndex) {
        self.shared.poll.watch(index);
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context({} on {:?}, {:?})", self.shared.info.name, self.shared.info.backend, self.language())
    }
}

/// What the crate's kernels take for granted.
fn check_limits(limits: &wgpu::Limits) -> Result<()> {
    let needs = [
        ("max_immediate_size", 32, limits.max_immediate_size),
        ("max_storage_buffers_per_shader_stage", 6, limits.max_storage_buffers_per_shader_stage),
        ("max_compute_invocations_per_workgroup", 256, limits.max_compute_invocations_per_workgroup),
        ("max_compute_workgroup_storage_size", 16_384, limits.max_compute_workgroup_storage_size),
    ];
    match needs.into_iter().find(|(_, needed, found)| found < needed) {
        Some((name, needed, found)) => Err(Error::Limit { name, needed: needed.into(), found: found.into() }),
        None => Ok(()),
    }
}

async fn choose_adapter(instance: &wgpu::Instance) -> Result<wgpu::Adapter> {
    // wgpu's own helper panics if no adapter has the name.
    let reason = if let Ok(wanted) = std::env::var("WGPU_ADAPTER_NAME") {
        let adapters = instance.enumerate_adapters(wgpu::Backends::all()).await;
        let matches = |adapter: &wgpu::Adapter| adapter.get_info().name.to_lowercase().contains(&wanted.to_lowercase());
        match adapters.into_iter().find(matches) {
            Some(adapter) => return Ok(adapter),
            None => format!("WGPU_ADAPTER_NAME is {wanted:?}, which no adapter's name contains"),
        }
    } else {
        let power_preference = wgpu::PowerPreference::from_env().unwrap_or(wgpu::PowerPreference::HighPerformance);
        let options = wgpu::RequestAdapterOptions { power_preference, ..Default::default() };
        match instance.request_adapter(&options).await {
            Ok(adapter) => return Ok(adapter),
            Err(error) => error.to_string(),
        }
    };
    let adapters = instance.enumerate_adapters(wgpu::Backends::all()).await;
    let names: Vec<_> = adapters.iter().map(|adapter| adapter.get_info().name).collect();
    Err(Error::NoAdapter { reason, found: if names.is_empty() { "none".into() } else { names.join(", ") } })
}

/// Runs `work` and returns wgpu's complaints about it as an error; by default they panic.
pub(crate) fn guarded<R>(device: &wgpu::Device, during: impl FnOnce() -> String, work: impl FnOnce() -> R) -> Result<R> {
    let filters = [wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Internal];
    let scopes = filters.map(|filter| device.push_error_scope(filter));
    let result = work();
    let mut first = None;
    for scope in scopes.into_iter().rev() {
        first = first.or(now(scope.pop()).flatten());
    }
    match first {
        None => Ok(result),
        Some(error) => Err(Error::Gpu { during: during(), message: error.to_string() }),
    }
}

/// The result of a future that is complete from the start, as those of error scopes are on native backends.
fn now<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}
