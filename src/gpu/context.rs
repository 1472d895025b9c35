//! The device and everything that is shared by the work on it.

use super::{
    capabilities::Capabilities,
    compile::{cache::KernelCache, pipeline::Pipeline, pipelines::Pipelines},
    device::{
        adapter::memory_bytes,
        context_options::ContextOptions,
        metal::allocated_bytes,
        poll::{PollThread, Waits},
        scopes::guarded,
    },
    execute::submissions::Submissions,
    memory::{
        plan::Plan,
        pool::{Pool, Pooled, buffer_bytes},
    },
    trace::{Call, Log, Settled, Tracer, Tracing},
};
use crate::{
    element::Element,
    error::{Error, Result},
    kernel::{
        declaration::{KernelRef, Variant},
        needs::Needs,
    },
    language::ShaderLanguage,
    memory::{FreeMemory, LiveMemory, MemoryStats},
    spans::span,
};
use std::{sync::Arc, time::Duration};

/// A GPU device with its buffer pool, pipeline cache and poll thread. Clones are cheap and share
/// all of them.
#[derive(Clone)]
pub struct Context {
    shared: Arc<Shared>,
    settings: Arc<Settings>,
}

/// What may differ between contexts on one device.
#[derive(Clone)]
struct Settings {
    language: ShaderLanguage,
    /// Whether a kernel's WGSL takes the place of a source that does not compile.
    fallback: bool,
    capabilities: Capabilities,
    /// What its tensors are for.
    label: Arc<str>,
    /// Where allocations are counted instead of made.
    plan: Option<Arc<Plan>>,
    /// How the device was opened, unless it is an app's own.
    opened: Option<Arc<ContextOptions>>,
}

struct Shared {
    device: wgpu::Device,
    queue: wgpu::Queue,
    info: wgpu::AdapterInfo,
    /// Bytes of the adapter's memory, where the system says it.
    memory_bytes: Option<u64>,
    features: wgpu::Features,
    limits: wgpu::Limits,
    pool: Arc<Pool>,
    pipelines: Pipelines,
    waits: Waits,
    poll: PollThread,
    tracer: Arc<Tracer>,
    submissions: Submissions,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // wgpu waits without end for what is dropped with work on it. A device that does not answer
        // is kept instead.
        if self.waits.limit().is_some()
            && matches!(self.waits.wait(None), Err(Error::WaitLimit { .. }))
        {
            std::mem::forget(self.queue.clone());
            self.poll.leave();
        }
    }
}

impl Context {
    /// A context on an open device, with kernels in the last of the languages that it runs.
    pub(super) fn on(
        adapter: &wgpu::Adapter,
        device: wgpu::Device,
        queue: wgpu::Queue,
        capabilities: Capabilities,
        wait_limit: Option<Duration>,
        cache: Option<KernelCache>,
    ) -> Result<Self> {
        let waits = Waits::new(device.clone(), wait_limit);
        let poll = PollThread::spawn(waits.clone())?;
        let (features, limits) = (device.features(), device.limits());
        let (pool, pipelines, tracer) = (Arc::default(), Pipelines::new(cache), Arc::default());
        let shared = Shared {
            device,
            queue,
            info: adapter.get_info(),
            memory_bytes: memory_bytes(adapter),
            features,
            limits,
            pool,
            pipelines,
            waits,
            poll,
            tracer,
            submissions: Submissions::default(),
        };
        let language = capabilities.languages.last().copied().unwrap_or(ShaderLanguage::Wgsl);
        let settings = Settings {
            language,
            fallback: true,
            capabilities,
            label: "tensors".into(),
            plan: None,
            opened: None,
        };
        Ok(Self { shared: Arc::new(shared), settings: Arc::new(settings) })
    }

    /// Returns a context of the device with other capabilities.
    pub(super) fn with_capabilities(&self, capabilities: Capabilities) -> Self {
        self.with(Settings { capabilities, ..self.settings() })
    }

    /// Returns a context of the device that knows how it was opened.
    pub(super) fn opened_by(&self, options: &ContextOptions) -> Self {
        self.with(Settings { opened: Some(options.clone().into()), ..self.settings() })
    }

    /// Returns a context of the device in which a kernel that does not compile from its language is
    /// an error.
    pub(super) fn without_fallback(&self) -> Self {
        self.with(Settings { fallback: false, ..self.settings() })
    }

    /// How its device was opened, unless it is an app's own.
    pub(super) fn opened(&self) -> Option<&ContextOptions> {
        self.settings.opened.as_deref()
    }

    fn settings(&self) -> Settings {
        (*self.settings).clone()
    }

    fn with(&self, settings: Settings) -> Self {
        Self { shared: self.shared.clone(), settings: Arc::new(settings) }
    }

    /// Returns a context of the same device whose kernels are compiled from `language`, where they
    /// have such a source. A kernel that does not compile from it is an error; without this call,
    /// its WGSL takes its place, with a warning.
    ///
    /// # Errors
    /// [`Error::DeviceUnsupported`] where it cannot run.
    pub fn with_language(&self, language: ShaderLanguage) -> Result<Self> {
        if !self.capabilities().languages.contains(&language) {
            return Err(Error::language(language, self.capabilities().backend));
        }
        Ok(self.with(Settings { language, fallback: false, ..self.settings() }))
    }

    /// Returns a context of the device that is used as if it offered less: `change` may clear
    /// capabilities, so that the kernels for lesser devices can be tested and timed on it. What it
    /// lacks cannot be added.
    #[cfg(feature = "internals")]
    pub fn restricted(&self, change: impl FnOnce(&mut Capabilities)) -> Self {
        self.with_capabilities(self.capabilities().restricted(change))
    }

    /// Returns the language that kernels are compiled from, where they have such a source.
    pub fn language(&self) -> ShaderLanguage {
        self.settings.language
    }

    /// Returns what the device offers.
    pub fn capabilities(&self) -> &Capabilities {
        &self.settings.capabilities
    }

    /// Returns the adapter as wgpu describes it.
    pub fn adapter_info(&self) -> &wgpu::AdapterInfo {
        &self.shared.info
    }

    /// Returns wgpu's device, for an app's own work beside this crate's.
    pub fn device(&self) -> &wgpu::Device {
        &self.shared.device
    }

    /// Returns wgpu's queue.
    pub fn queue(&self) -> &wgpu::Queue {
        &self.shared.queue
    }

    /// Returns a context of the device whose tensors are counted under this label in
    /// [`Context::live_memory`] and in errors.
    ///
    /// ```no_run
    /// # async fn load() -> bitnet_wgpu::Result<()> {
    /// use bitnet_wgpu::Context;
    ///
    /// let context = Context::new().await?;
    /// let images = context.with_label("images").upload(&[0.0f32; 1000], [10, 100])?;
    /// for live in context.live_memory() {
    ///     println!("{}: {} bytes in {} buffers", live.label, live.bytes, live.buffers);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_label(&self, label: &str) -> Self {
        self.with(Settings { label: label.into(), ..self.settings() })
    }

    /// Returns the GPU memory that tensors of this context and its clones take. It leaves out what an
    /// app allocates itself and what wgpu and the driver need: see [`Context::reserved_bytes`].
    pub fn memory_stats(&self) -> MemoryStats {
        self.shared.pool.stats()
    }

    /// Returns the live bytes of [`Context::memory_stats`] by label, the largest first.
    pub fn live_memory(&self) -> Vec<LiveMemory> {
        self.shared.pool.live()
    }

    /// Returns the bytes that wgpu has taken from the driver for all buffers of the device, including
    /// an app's own. Under Metal, these are all resources of this process on the GPU
    /// (`currentAllocatedSize`), including those of other devices. `None` under backends that do not
    /// count them.
    pub fn reserved_bytes(&self) -> Option<u64> {
        let report =
            self.device().generate_allocator_report().map(|report| report.total_reserved_bytes);
        report.or_else(|| allocated_bytes(self.device()))
    }

    /// Limits the bytes of GPU memory that tensors may take, live and cached for reuse; `None` removes
    /// the limit. Under Metal there is one by default:
    /// [`ContextOptions::memory_limit`](crate::ContextOptions::memory_limit()). The oldest cached
    /// buffers are evicted to stay below it. An allocation that still does not fit is
    /// [`Error::MemoryLimit`], unless
    /// [`ContextOptions::on_memory_pressure`](crate::ContextOptions::on_memory_pressure) makes room.
    pub fn limit_memory(&self, bytes: impl Into<Option<u64>>) {
        self.shared.pool.limit(bytes.into());
    }

    /// Has the app's function called where memory is short.
    pub(super) fn free_memory_by(&self, free: Option<FreeMemory>) {
        self.shared.pool.free_by(free);
    }

    /// Limits the time of each wait for the device, including all work submitted before; `None` removes
    /// the limit. A longer wait is [`Error::WaitLimit`]. Waits that have begun keep their limit.
    ///
    /// A limit is for devices that may hang. Most drivers reset such a device after some seconds,
    /// which is [`Error::DeviceLost`]. Choose a limit longer than any sound work: a slow device
    /// computes a large model's prompt for minutes.
    pub fn limit_waits(&self, time: impl Into<Option<Duration>>) {
        self.shared.waits.set_limit(time.into());
    }

    pub(super) fn wait_limit(&self) -> Option<Duration> {
        self.shared.waits.limit()
    }

    /// Waits for a submission.
    pub(super) fn wait(&self, index: wgpu::SubmissionIndex) -> Result<()> {
        span!("wait");
        let _call = self.traced("wait", "", None);
        self.shared.waits.wait(Some(index))
    }

    /// Sees to the callbacks of work that is done.
    pub(super) fn progress(&self) -> Result<()> {
        self.shared.waits.progress()
    }

    /// A context whose tensors are counted and not made, and whose work is checked and not
    /// recorded.
    #[cfg(feature = "models")]
    pub(crate) fn planning(&self) -> (Self, Arc<Plan>) {
        let plan = Arc::<Plan>::default();
        (self.with(Settings { plan: Some(plan.clone()), ..self.settings() }), plan)
    }

    /// Where work is noted instead of recorded.
    pub(super) fn plan(&self) -> Option<&Plan> {
        self.settings.plan.as_deref()
    }

    /// Refuses what would be over the limit, given what is live; `what` names it.
    #[cfg(feature = "models")]
    pub(crate) fn check_room(&self, bytes: u64, what: impl Fn() -> String) -> Result<()> {
        let fits = || {
            let MemoryStats { limit, live_bytes, .. } = self.memory_stats();
            match limit {
                Some(limit) if live_bytes.saturating_add(bytes) > limit => {
                    Err(Error::MemoryLimit { what: what(), bytes, limit, live: self.live_memory() })
                }
                _ => Ok(()),
            }
        };
        self.shared.pool.relieved(&what, bytes, fits)
    }

    /// Bytes that tensors may still take: up to the limit or, without one, up to what the adapter
    /// has; `None` where the system does not say that.
    #[cfg(feature = "models")]
    pub(crate) fn free_memory(&self) -> Option<u64> {
        let MemoryStats { limit, live_bytes, .. } = self.memory_stats();
        Some(limit.or(self.shared.memory_bytes)?.saturating_sub(live_bytes))
    }

    /// Bytes of the adapter's memory, where the system says it.
    pub(super) fn memory_bytes(&self) -> Option<u64> {
        self.shared.memory_bytes
    }

    /// Refuses a device that is gone: what is made on it is no error before somebody waits.
    #[cfg(feature = "models")]
    pub(crate) fn check_there(&self, during: &str) -> Result<()> {
        if super::device::scopes::is_lost(self.device()) {
            Err(Error::DeviceLost { during: during.into() })
        } else {
            Ok(())
        }
    }

    /// Returns the number of kernels that have been compiled for the device.
    #[cfg(any(test, feature = "internals"))]
    pub fn compiled_kernels(&self) -> usize {
        self.shared.pipelines.len()
    }

    /// Returns the memory of cached buffers to the driver.
    pub fn trim_memory(&self) {
        self.shared.pool.trim();
    }

    /// The compiled kernel, from the cache or made now; `floats` are the types behind its aliases.
    /// Its language is that of this context, or WGSL where the kernel does not compile from that.
    pub(super) fn pipeline(
        &self,
        kernel: &KernelRef,
        floats: Vec<(&'static str, Element)>,
    ) -> Result<Arc<Pipeline>> {
        let variant = self.variant(kernel, kernel.language(self.language()), floats);
        let instead = (self.settings.fallback
            && variant.language == ShaderLanguage::Msl
            && kernel.source(ShaderLanguage::Wgsl).is_some())
        .then(|| self.variant(kernel, ShaderLanguage::Wgsl, variant.floats.clone()))
        .filter(|wgsl| {
            self.check_needs(kernel.name, &kernel.needs(wgsl), ShaderLanguage::Wgsl).is_ok()
        });
        self.check_needs(kernel.name, &kernel.needs(&variant), variant.language)?;
        self.shared.pipelines.get(&self.shared.device, kernel, variant, instead.as_ref())
    }

    /// The variant of a kernel in a language that suits this device.
    fn variant(
        &self,
        kernel: &KernelRef,
        language: ShaderLanguage,
        floats: Vec<(&'static str, Element)>,
    ) -> Variant {
        // A kernel that has no other form is the same with and without.
        let subgroups = self.capabilities().subgroups || !kernel.uses_subgroups();
        let fused = self.capabilities().fused_multiply_add || !kernel.uses_fused(language);
        Variant { language, subgroups, fused, floats }
    }

    pub(super) fn check_needs(
        &self,
        kernel: &'static str,
        needs: &Needs,
        language: ShaderLanguage,
    ) -> Result<()> {
        let capabilities = self.capabilities();
        let runs = match language {
            ShaderLanguage::Spirv => capabilities.backend == wgpu::Backend::Vulkan,
            other => capabilities.languages.contains(&other),
        };
        if !runs {
            return Err(Error::language(language, capabilities.backend));
        }
        let mut offered = self.shared.features;
        offered.set(wgpu::Features::SHADER_F16, capabilities.f16);
        if !offered.contains(needs.features) {
            return Err(Error::missing_feature(kernel, needs.features - offered));
        }
        if needs.tensor_core.is_some_and(|core| !capabilities.tensor_cores.contains(&core)) {
            let feature = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
            return Err(Error::missing_feature(kernel, feature));
        }
        match needs
            .limits(&self.shared.limits)
            .into_iter()
            .find(|(_, needed, found)| found < needed)
        {
            Some(limit) => Err(Error::low_limit(kernel, limit)),
            None => Ok(()),
        }
    }

    /// Returns whether both work on one device.
    pub(crate) fn same_device(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Refuses a buffer of another device.
    pub(super) fn check_own(&self, buffer: &wgpu::Buffer) -> Result<()> {
        let device = &self.shared.device;
        let ty = wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Storage { read_only: true },
            has_dynamic_offset: false,
            min_binding_size: None,
        };
        let entry = wgpu::BindGroupLayoutEntry {
            binding: 0,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty,
            count: None,
        };
        let resource = wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer,
            offset: 0,
            size: wgpu::BufferSize::new(16),
        });
        let bind = || {
            let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                label: None,
                entries: &[entry],
            });
            let entries = [wgpu::BindGroupEntry { binding: 0, resource }];
            let _ = device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &layout,
                entries: &entries,
            });
        };
        guarded(device, || "taking a buffer of the app's".into(), bind)
    }

    /// A buffer for a tensor.
    pub(super) fn allocate_tensor(
        &self,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<Arc<Pooled>> {
        let Settings { label, plan, .. } = &*self.settings;
        match plan {
            Some(plan) => plan.allocate(self.device(), buffer_bytes(bytes), usage, label),
            None => self.allocate(bytes, usage, label),
        }
    }

    pub(super) fn allocate(
        &self,
        bytes: u64,
        usage: wgpu::BufferUsages,
        label: &str,
    ) -> Result<Arc<Pooled>> {
        self.shared.pool.get(&self.shared.device, bytes, usage, label)
    }

    /// This many bytes are uploaded from here on, until what is given is dropped.
    pub(super) fn uploading(&self, bytes: u64) -> Option<Call> {
        self.traced("upload", "", Some(bytes))
    }

    /// Writes from a byte on that is the first of a word.
    pub(super) fn write(&self, buffer: &Pooled, at: u64, data: &[u8]) -> Result<()> {
        if self.plan().is_some() {
            return Ok(());
        }
        buffer.check_unmapped("write")?;
        buffer.mark_written();
        let _call = self.uploading(data.len() as u64);
        let (words, tail) = data.split_at(data.len() & !3);
        guarded(
            &self.shared.device,
            || "an upload".into(),
            || {
                if !words.is_empty() {
                    self.shared.queue.write_buffer(buffer, at, words);
                }
                if !tail.is_empty() {
                    let mut word = [0; 4];
                    word[..tail.len()].copy_from_slice(tail);
                    self.shared.queue.write_buffer(buffer, at + words.len() as u64, &word);
                }
            },
        )
    }

    pub(super) fn clear(&self, buffer: &Pooled) -> Result<()> {
        if self.plan().is_some() {
            return Ok(());
        }
        buffer.mark_written();
        self.submit_with("clear", |commands| commands.encoder.clear_buffer(buffer, 0, None))
            .map(drop)
    }

    /// Begins a trace: the times of kernels, and of all recording, uploads, submissions, waits and
    /// reads on the device, by this context or another. A device has one trace at a time. While it
    /// runs, each dispatch is a compute pass of its own, which takes longer, and events are kept in
    /// memory. Recordings that an app encodes itself, and other work of the app, are not in it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use bitnet_wgpu::{Context, tensor};
    ///
    /// let context = pollster::block_on(Context::new())?;
    /// let tracing = context.trace()?;
    /// let x = context.upload(&[1.0f32, -2.0, 3.0], [3])?;
    /// let mut encoder = context.encoder("relu²");
    /// let y = tensor::relu2(&x).forward(&mut encoder)?;
    /// encoder.submit()?;
    /// pollster::block_on(y.read())?;
    /// let trace = pollster::block_on(tracing.finish())?;
    /// std::fs::write(std::env::temp_dir().join("relu2.json"), trace.to_string())?; // for https://ui.perfetto.dev
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] while another trace runs.
    pub fn trace(&self) -> Result<Tracing> {
        let context = self.clone();
        let settled: Settled = Box::new(move || {
            let index = context.submit_with("trace", |_| ())?;
            Ok(Box::pin(context.done(index)))
        });
        Tracing::begin(self.shared.tracer.clone(), self.shared.info.name.clone(), settled)
    }

    /// What the submissions on the device share.
    pub(super) fn submissions(&self) -> &Submissions {
        &self.shared.submissions
    }

    /// A call of this thread, noted while it is traced, from here until the value is dropped.
    pub(super) fn traced(
        &self,
        name: &'static str,
        what: &'static str,
        bytes: Option<u64>,
    ) -> Option<Call> {
        self.shared.tracer.call(name, what, bytes)
    }

    /// Where work is noted, while it is traced.
    pub(super) fn trace_log(&self) -> Option<Arc<Log>> {
        self.shared.tracer.log()
    }

    /// Completes when a submission is done.
    pub(super) fn done(
        &self,
        index: wgpu::SubmissionIndex,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        self.shared.poll.done(index)
    }

    /// Has the poll thread see to the callbacks of a submission. Only reads need it: two threads
    /// that wait for one submission take a millisecond longer.
    pub(super) fn watch(
        &self,
        index: wgpu::SubmissionIndex,
        failed: impl FnOnce(Error) + Send + 'static,
    ) {
        self.shared.poll.watch(index, failed);
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Context({} on {:?}, {:?})",
            self.shared.info.name,
            self.shared.info.backend,
            self.language()
        )
    }
}

#[cfg(test)]
mod tests;
