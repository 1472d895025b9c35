//! Opening a device, or taking over an app's own.

use super::probes;
use crate::{
    error::{Error, Result},
    gpu::{
        capabilities::Capabilities,
        compile::cache::KernelCache,
        context::Context,
        device::{
            adapter::{Adapter, NEEDED, lacking, matrices, optional_features},
            adapters::Adapters,
            capture::Captures,
            context_options::{AdapterRule, ContextOptions},
            environment::environment,
            metal::MetalGpu,
            msl::{MslPolicy, MslSupport},
        },
    },
    kernel::needs::Needs,
};

impl Context {
    /// What a device must offer: enough for every kernel of this crate that asks for no feature of
    /// its own. (A test holds it against the catalog.)
    #[cfg(feature = "internals")]
    pub const REQUIRED: Needs = NEEDED;

    /// Opens the device of [`AdapterChoice`](crate::device::AdapterChoice)'s default:
    /// [`Context::open`] with no options.
    ///
    /// # Errors
    /// As [`Context::open`].
    pub async fn new() -> Result<Self> {
        Self::open(ContextOptions::default()).await
    }

    /// Opens a device. One process may have several, of one adapter or of many; their tensors do
    /// not mix.
    ///
    /// Where the environment has `BITNET_WGPU_CAPTURE=N`, a graphics debugger that is attached
    /// (Xcode; RenderDoc, in builds with debug assertions) captures the N-th submission on the
    /// device, counted from 1; with `N:COUNT`, this many from it on, each by itself. The debugger
    /// is told by wgpu's `start_graphics_debugger_capture`: let it have no other capture meanwhile.
    /// So with [`Context::from_wgpu`].
    ///
    /// # Errors
    /// [`Error::NoAdapter`] where there is none, or none as the options or the environment want it;
    /// [`Error::NoDevice`]; [`Error::DeviceUnsupported`] for a device without immediates or with
    /// lower limits than kernels need, and for [`MslPolicy::Always`](crate::device::MslPolicy::Always) under other backends
    /// than Metal; [`Error::Invalid`] for another value of `BITNET_WGPU_CAPTURE` or
    /// `BITNET_WGPU_MSL`.
    pub async fn open(options: ContextOptions) -> Result<Self> {
        Self::open_listed(&Adapters::list(&options).await.take()?, &options).await
    }

    async fn open_listed(
        (adapter, why): &(Adapter, String),
        options: &ContextOptions,
    ) -> Result<Self> {
        log::info!("{}: {why}", adapter.capabilities.adapter);
        let raw = adapter.raw();
        let (mut required_features, required_limits) = Self::device_needs(raw);
        if options.experimental.is_enabled() {
            required_features |= raw.features() & wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
        }
        if options.offload {
            required_features |= raw.features() & wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;
        }
        if options.kernel_cache.is_some() {
            required_features |= raw.features() & wgpu::Features::PIPELINE_CACHE;
        }
        MslSupport::of(adapter.capabilities.backend, required_features, None)
            .check(options.msl.resolved()?)?;
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("bitnet-wgpu"),
            required_features,
            required_limits,
            experimental_features: options.experimental,
            // Tensors are kept and used again by this crate: wgpu need not take more than they
            // need.
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..Default::default()
        };
        let opened = raw.request_device(&descriptor).await;
        let (device, queue) = opened.map_err(|source| Error::NoDevice {
            adapter: adapter.capabilities.adapter.clone(),
            source,
        })?;
        let cache =
            options.kernel_cache.clone().map(|folder| KernelCache::new(folder, &raw.get_info()));
        let context = Self::probed(raw, device, queue, options, cache).await?.opened_by(options);
        context.free_memory_by(options.memory_pressure.clone());
        Ok(context.tuned())
    }

    /// Another device, opened as this one was, in place of one that was lost
    /// ([`Error::DeviceLost`]): by the same options, with the limits of memory and waits that hold
    /// now. What was on the old device is lost: a model is loaded again by
    /// [`Model::reload`](crate::model::Model::reload), and other tensors are the caller's to make
    /// again. This context, and what was made of it, stays with the old device.
    ///
    /// The adapter is chosen anew: it may be another, where one is gone. What was said of this
    /// context alone ([`Context::with_language`], `Context::restricted`, [`Context::with_label`])
    /// is to be said again.
    ///
    /// # Errors
    /// As [`Context::open`]; [`Error::Invalid`] for an app's own device, which the app opens again.
    pub async fn recover(&self) -> Result<Self> {
        let Some(options) = self.opened() else {
            let what =
                "the device is the app's own: open another, and hand it to Context::from_wgpu";
            return Err(Error::Invalid { op: "recover", what: what.into() });
        };
        let context = Self::open(options.clone().wait_limit(self.wait_limit())).await?;
        context.limit_memory(self.memory_stats().limit);
        if self.completion_check().is_some() {
            context.check_submissions()?;
        }
        Ok(context)
    }

    /// The device to compute on unless somebody says otherwise, and a line for people that says
    /// which it is and why: a GPU, or `None` for the CPU where that is faster, because there is no
    /// adapter, or only a software one. An adapter or a backend that the options or the environment
    /// name is always taken.
    ///
    /// # Errors
    /// As [`Context::open`], but for [`Error::NoAdapter`] where nobody named one.
    pub async fn preferred(options: ContextOptions) -> Result<(Option<Self>, String)> {
        let named = match options.adapter.0 {
            AdapterRule::Best => ["WGPU_ADAPTER_NAME", "WGPU_BACKEND"]
                .into_iter()
                .find(|name| environment(name).is_some()),
            _ => Some("the caller"),
        };
        let chosen = match Adapters::list(&options).await.take() {
            Err(Error::NoAdapter { reason, .. }) if named.is_none() => {
                return Ok((None, format!("the CPU, since there is no GPU driver: {reason}")));
            }
            chosen => chosen?,
        };
        let Capabilities { adapter, software, .. } = &chosen.0.capabilities;
        let why = match named {
            Some(name) => format!("{adapter}, as {name} says"),
            None if *software => {
                return Ok((
                    None,
                    format!("the CPU, as {adapter} is a software adapter, which is slower"),
                ));
            }
            None => adapter.clone(),
        };
        Ok((Some(Self::open_listed(&chosen, &options).await?), why))
    }

    /// The features and limits to request for a device that is to be handed to
    /// [`Context::from_wgpu`]: all that this crate can use of what `adapter` offers, but for wgpu's
    /// experimental features, and on a GPU with memory of its own `MAPPABLE_PRIMARY_BUFFERS`, for
    /// offloaded layers ([`ContextOptions::offload`]), which an app asks for itself.
    pub fn device_needs(adapter: &wgpu::Adapter) -> (wgpu::Features, wgpu::Limits) {
        (optional_features(adapter), adapter.limits())
    }

    /// Works on an app's own device. Features that the device was opened without are not used.
    ///
    /// ```no_run
    /// use bitnet_wgpu::{Context, wgpu};
    ///
    /// # async fn open() -> Result<Context, Box<dyn std::error::Error>> {
    /// let instance = wgpu::Instance::default();
    /// let adapter = instance.request_adapter(&wgpu::RequestAdapterOptions::default()).await?;
    /// let (required_features, required_limits) = Context::device_needs(&adapter); // and those of the app
    /// let descriptor = wgpu::DeviceDescriptor { required_features, required_limits, ..Default::default() };
    /// let (device, queue) = adapter.request_device(&descriptor).await?;
    /// let context = Context::from_wgpu(&adapter, device.clone(), queue.clone()).await?;
    /// # Ok(context)
    /// # }
    /// ```
    ///
    /// **Tensor cores** are used (`Capabilities::tensor_cores`) where the device was opened with
    /// wgpu's `EXPERIMENTAL_COOPERATIVE_MATRIX`, for which an app asks itself;
    /// [`ContextOptions::experimental`] says what the token promises.
    ///
    /// ```no_run
    /// # use bitnet_wgpu::{Context, wgpu};
    /// # async fn open(adapter: wgpu::Adapter) -> Result<Context, Box<dyn std::error::Error>> {
    /// let (features, required_limits) = Context::device_needs(&adapter);
    /// let required_features = features | (adapter.features() & wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX);
    /// // SAFETY: no other shader on this device uses cooperative matrices.
    /// let experimental_features = unsafe { wgpu::ExperimentalFeatures::enabled() };
    /// let descriptor = wgpu::DeviceDescriptor { required_features, required_limits, experimental_features, ..Default::default() };
    /// let (device, queue) = adapter.request_device(&descriptor).await?;
    /// let context = Context::from_wgpu(&adapter, device, queue).await?;
    /// # Ok(context)
    /// # }
    /// ```
    ///
    /// `BITNET_WGPU_MSL=1` in the environment forces MSL on a device under Metal with
    /// `PASSTHROUGH_SHADERS`, and does nothing on others. The memory limit is that of
    /// [`ContextOptions::default`]: under Metal, the working set.
    ///
    /// # Errors
    /// [`Error::DeviceUnsupported`] if the device has no immediates or was opened with too low
    /// limits; see [`Context::device_needs`]. [`Error::Invalid`] as with [`Context::open`].
    pub async fn from_wgpu(
        adapter: &wgpu::Adapter,
        device: wgpu::Device,
        queue: wgpu::Queue,
    ) -> Result<Self> {
        Self::probed(adapter, device, queue, &ContextOptions::default(), None).await
    }

    async fn probed(
        adapter: &wgpu::Adapter,
        device: wgpu::Device,
        queue: wgpu::Queue,
        options: &ContextOptions,
        cache: Option<KernelCache>,
    ) -> Result<Self> {
        let (info, features, limits) = (adapter.get_info(), device.features(), device.limits());
        if let Some(error) = lacking(features, &limits) {
            return Err(error);
        }
        let captures = Captures::asked()?;
        let (metal, policy) = (MetalGpu::of(adapter), options.msl.resolved()?);
        let msl = MslSupport::of(info.backend, features, metal);
        let mut capabilities =
            Capabilities::of(&info, features, &limits, &matrices(adapter), msl.choose(policy).used);
        let context =
            Self::on(adapter, device, queue, capabilities.clone(), options.wait_limit, cache)?;
        let found = probes::probe(&context).await?;
        capabilities.f16_subnormals = found.f16_subnormals;
        capabilities.fused_multiply_add = found.fused_multiply_add;
        capabilities.matrix_elements = found.matrix_elements;
        capabilities.timestamps = found.clock_moves;
        log::info!("{} kernels on {}", context.language(), capabilities.adapter);
        // After the probes: an app whose own resources exceed the working set can still open a
        // context and set a limit.
        context.limit_memory(options.memory_limit.or(metal.map(MetalGpu::memory_limit)));
        // What is counted is the app's work, not the probes'.
        if let Some(captures) = captures {
            context.capture(captures);
        }
        let context = context.with_capabilities(capabilities);
        Ok(if policy == MslPolicy::Always { context.without_fallback() } else { context })
    }
}
