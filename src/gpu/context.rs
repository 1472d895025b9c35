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

    /// This device, its buffers and caches, with kernels from another language, where they have it.
    /// A kernel that does not compile from a language that was asked for is an error. (Where the
    /// language was chosen by the device, its WGSL takes its place, with a warning.)
    ///
    /// # Errors
    /// [`Error::Language`] where it cannot run.
    pub fn with_language(&self, language: ShaderLanguage) -> Result<Self> {
        if !self.capabilities().languages.contains(&language) {
            return Err(Error::Language { language, backend: self.capabilities().backend });
        }
        Ok(self.with(Settings { language, fallback: false, ..self.settings() }))
    }

    /// Returns a context of the device that is used as if it offered less: `change` may clear
    /// capabilities, so that the kernels for lesser devices can be tested and timed on it. What it
    /// lacks cannot be added.
    #[cfg(feature = "internals")]
    pub fn restricted(&self, change: impl FnOnce(&mut Capabilities)) -> Self {
        let old = self.capabilities();
        let mut new = old.clone();
        change(&mut new);
        new.languages = old.languages;
        new.backend = old.backend;
        new.subgroups &= old.subgroups;
        new.device_barriers &= old.device_barriers;
        new.f16 &= old.f16;
        new.matrix_units.retain(|unit| old.matrix_units.contains(unit));
        new.matrix_elements &= old.matrix_elements;
        new.timestamps &= old.timestamps;
        new.writes_in_place &= old.writes_in_place;
        new.half_subnormals &= old.half_subnormals;
        new.fused_multiply_add &= old.fused_multiply_add;
        new.max_binding_bytes = new.max_binding_bytes.min(old.max_binding_bytes);
        new.max_workgroups = new.max_workgroups.clamp(1, old.max_workgroups);
        self.with_capabilities(new)
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

    /// How much GPU memory the tensors of this context and its clones take. What an app allocates
    /// itself is not in it, nor what wgpu and the driver need: see [`Context::reserved_bytes`].
    pub fn memory_stats(&self) -> MemoryStats {
        self.shared.pool.stats()
    }

    /// What the live bytes of [`Context::memory_stats`] are for, the most first.
    pub fn live_memory(&self) -> Vec<LiveMemory> {
        self.shared.pool.live()
    }

    /// Bytes that wgpu has taken from the driver for all buffers of the device, an app's and its
    /// own among them. Under Metal, bytes of all resources that this process has on the GPU
    /// (`currentAllocatedSize`), those of other devices among them. `None` under backends that do
    /// not count them.
    pub fn reserved_bytes(&self) -> Option<u64> {
        let report =
            self.device().generate_allocator_report().map(|report| report.total_reserved_bytes);
        report.or_else(|| allocated_bytes(self.device()))
    }

    /// Sets the most bytes of GPU memory that tensors may take, live and waiting for reuse; `None`
    /// for no limit. Under Metal there is one by default:
    /// [`ContextOptions::memory_limit`](crate::ContextOptions::memory_limit()). Buffers that have
    /// waited longest are given back to keep it. What is live is not touched; what would be more is
    /// [`Error::MemoryLimit`], unless
    /// [`ContextOptions::on_memory_pressure`](crate::ContextOptions::on_memory_pressure) makes
    /// room.
    pub fn limit_memory(&self, bytes: impl Into<Option<u64>>) {
        self.shared.pool.limit(bytes.into());
    }

    /// Has the app's function called where memory is short.
    pub(super) fn free_memory_by(&self, free: Option<FreeMemory>) {
        self.shared.pool.free_by(free);
    }

    /// Sets the most time that a wait for the device may take, with all that was submitted before;
    /// `None` for no limit. What takes longer is [`Error::WaitLimit`]. Waits that have begun keep
    /// to the limit that they began with.
    ///
    /// A limit is for devices that may hang. Most drivers reset those that do, which is
    /// [`Error::DeviceLost`], after some seconds. Let it be longer than anything takes that is
    /// sound: on a large model's prompt a slow device computes for long.
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

    /// How many kernels have been compiled for the device: each is at its first use, or by
    /// [`Model::warm_up`](crate::model::Model::warm_up).
    pub fn compiled_kernels(&self) -> usize {
        self.shared.pipelines.len()
    }

    /// Gives the memory of waiting buffers back to the driver.
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
            return Err(Error::Language { language, backend: capabilities.backend });
        }
        let mut offered = self.shared.features;
        offered.set(wgpu::Features::SHADER_F16, capabilities.f16);
        if !offered.contains(needs.features) {
            return Err(Error::MissingFeature { what: kernel, feature: needs.features - offered });
        }
        if needs.matrix_unit.is_some_and(|unit| !capabilities.matrix_units.contains(&unit)) {
            return Err(Error::MissingFeature {
                what: kernel,
                feature: wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX,
            });
        }
        match needs
            .limits(&self.shared.limits)
            .into_iter()
            .find(|(_, needed, found)| found < needed)
        {
            Some((name, needed, found)) => {
                Err(Error::Limit { what: kernel, name, needed: needed.into(), found: found.into() })
            }
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

    /// Begins to trace what is recorded, uploaded, submitted, awaited and read back on the device,
    /// by this context or another on it, and what kernels take. A device has one trace at a time.
    /// Meanwhile each dispatch is a compute pass of its own, as in
    /// [`Recording::profile`](crate::Recording::profile), which takes longer; and what is noted is
    /// kept in memory. Recordings that an app encodes itself are not in it, nor work of the app's
    /// own.
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
    /// [`Error::Invalid`] while there is another.
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
mod tests {
    use super::*;
    use crate::{
        Tensor,
        gpu::setup::noop,
        kernel::{
            binding::{Type::F32, read_write},
            declaration::Kernel,
            source::{Part, Source},
        },
    };

    const WGSL: &[Part] = &[Part::new(
        "one",
        "@group(0) @binding(0) var<storage, read_write> x: array<f32>;
        @compute @workgroup_size(WG_X) fn one(@builtin(global_invocation_id) id: vec3<u32>) { x[id.x] = 1.0; }",
    )];
    const MSL: &[Part] = &[Part::new(
        "one",
        "[[max_total_threads_per_threadgroup(THREADS)]] kernel void one(device float* x [[buffer(0)]],
        uint3 id [[thread_position_in_grid]]) { x[id.x] = 1.0f; }",
    )];
    /// The tiles differ: the grid is that of the source which runs.
    static ONE: Kernel = Kernel::new(
        "one",
        &[],
        &[read_write("x", F32)],
        &[Source::wgsl(WGSL), Source::msl(MSL).tile([256, 1, 1])],
    );

    /// A device that runs no Metal, taken for one that does: no Metal source compiles there.
    fn metal(fallback: bool) -> Context {
        let context = noop::context();
        let languages = &[ShaderLanguage::Wgsl, ShaderLanguage::Msl];
        let capabilities = Capabilities { languages, ..context.capabilities().clone() };
        context.with(Settings {
            language: ShaderLanguage::Msl,
            fallback,
            capabilities,
            ..context.settings()
        })
    }

    fn record(context: &Context) -> Result<[u32; 3]> {
        let x = Tensor::<f32>::zeros(context, [5000])?;
        let mut encoder = context.encoder("one");
        encoder.dispatch(&ONE, &(), &[&x], [5000, 1, 1])?;
        Ok(encoder.finish().steps[0].workgroups)
    }

    #[test]
    fn wgsl_replaces_metal_that_does_not_compile() {
        let (context, workgroups) = (metal(true), [5000u32.div_ceil(64), 1, 1]);
        assert_eq!(record(&context).unwrap(), workgroups);
        let compiled = context.compiled_kernels();
        assert_eq!(
            (record(&context).unwrap(), context.compiled_kernels()),
            (workgroups, compiled),
            "it is compiled once"
        );
        // Who asks for the language gets it or an error, also where another has fallen back before.
        for strict in [metal(false), context.with_language(ShaderLanguage::Msl).unwrap()] {
            for _ in 0..2 {
                let refused = record(&strict);
                assert!(
                    matches!(refused, Err(Error::Shader { language: ShaderLanguage::Msl, .. })),
                    "{refused:?}"
                );
            }
        }
        assert_eq!(record(&context).unwrap(), workgroups);
    }
}
