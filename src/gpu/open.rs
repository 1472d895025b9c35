//! Opening a device, or taking over an app's own.

use super::{capabilities::Capabilities, context::Context, probes};
use crate::{
    error::{Error, Result},
    kernel::needs::Needs,
};

/// The features that are used where the adapter has them.
const WANTED: wgpu::Features = Context::REQUIRED
    .features
    .union(wgpu::Features::SUBGROUP)
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::TIMESTAMP_QUERY)
    .union(wgpu::Features::PASSTHROUGH_SHADERS);

impl Context {
    /// What a device must offer: enough for every kernel of this crate that asks for no feature of its own. (A test holds it against the catalog.)
    pub const REQUIRED: Needs = Needs {
        features: wgpu::Features::IMMEDIATES,
        // What WebGPU promises.
        immediate_bytes: 64,
        storage_buffers: 8,
        threads: 256,
        workgroup_bytes: 16_384,
        ..Needs::NONE
    };

    /// Opens a device. The adapter is the one that `WGPU_ADAPTER_NAME` names (a part of the name, any case), else what
    /// wgpu prefers given `WGPU_BACKEND` and `WGPU_POWER_PREF` (the fast one unless set).
    ///
    /// # Errors
    /// [`Error::NoAdapter`], [`Error::NoDevice`], [`Error::MissingFeature`] (immediates).
    pub async fn new() -> Result<Self> {
        Self::new_with(wgpu::ExperimentalFeatures::disabled()).await
    }

    /// [`Context::new`] with the matrix units of the GPU, where it has some that kernels use ([`Capabilities::matrix_units`]), by wgpu's token for
    /// experimental features: long prompts are computed 1.3 to 1.8 times as fast, large products of halves up to three times (an H200).
    ///
    /// ```no_run
    /// use bitnet_wgpu::{Context, wgpu};
    ///
    /// # async fn open() -> bitnet_wgpu::Result<Context> {
    /// // SAFETY: only this crate's kernels run on the device.
    /// let context = Context::new_with(unsafe { wgpu::ExperimentalFeatures::enabled() }).await?;
    /// # Ok(context)
    /// # }
    /// ```
    ///
    /// # Safety of the token
    /// It is `unsafe` to make, since wgpu does not check all that a shader does with matrices (cooperative ones, in its words). Whoever makes it promises
    /// that no shader on this device reads or writes one beyond the memory that it was given: neither a [`Kernel`](crate::Kernel) that is not of
    /// this crate, nor a shader that an app makes on [`Context::device`]. A shader without `enable wgpu_cooperative_matrix` has none. The kernels of this crate keep
    /// to their memory: they read and write matrices in workgroup memory, at places that follow from constants.
    ///
    /// # Errors
    /// As [`Context::new`].
    pub async fn new_with(experimental: wgpu::ExperimentalFeatures) -> Result<Self> {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        if !cfg!(debug_assertions) {
            descriptor.flags = wgpu::InstanceFlags::empty();
        }
        let instance = wgpu::Instance::new(descriptor.with_env());
        let adapter = choose_adapter(&instance).await?;
        let (mut required_features, required_limits) = Self::device_needs(&adapter);
        if experimental.is_enabled() {
            required_features |= adapter.features() & wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
        }
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("bitnet-wgpu"),
            required_features,
            required_limits,
            experimental_features: experimental,
            ..Default::default()
        };
        let opened = adapter.request_device(&descriptor).await;
        let (device, queue) = opened.map_err(|source| Error::NoDevice { adapter: adapter.get_info().name, source })?;
        Self::from_wgpu(&adapter, device, queue).await
    }

    /// The device to compute on unless somebody says otherwise, and a line for people that says which it is and why: a GPU, or `None` for the CPU
    /// where that is faster, because there is no adapter, or only a software one. An adapter or a backend that the environment names is always taken.
    ///
    /// # Errors
    /// As [`Context::new`], but for [`Error::NoAdapter`] where the environment names none.
    pub async fn preferred() -> Result<(Option<Self>, String)> {
        Self::preferred_with(wgpu::ExperimentalFeatures::disabled()).await
    }

    /// [`Context::preferred`] with matrix units, as [`Context::new_with`], which says what the token promises.
    ///
    /// # Errors
    /// As [`Context::preferred`].
    pub async fn preferred_with(experimental: wgpu::ExperimentalFeatures) -> Result<(Option<Self>, String)> {
        let named = ["WGPU_ADAPTER_NAME", "WGPU_BACKEND"].into_iter().find(|name| std::env::var_os(name).is_some());
        let context = match Self::new_with(experimental).await {
            Err(Error::NoAdapter { reason, .. }) if named.is_none() => {
                return Ok((None, format!("the CPU, as there is no GPU driver: {reason}")));
            }
            context => context?,
        };
        let adapter = context.capabilities().adapter.clone();
        Ok(match named {
            Some(name) => (Some(context), format!("{adapter}, as {name} says")),
            None if context.capabilities().software => (None, format!("the CPU, as {adapter} is a software adapter, which is slower")),
            None => (Some(context), adapter),
        })
    }

    /// The features and limits to request for a device that is to be handed to [`Context::from_wgpu`]: all that this crate
    /// can use of what `adapter` offers, but for wgpu's experimental features, which an app asks for itself.
    pub fn device_needs(adapter: &wgpu::Adapter) -> (wgpu::Features, wgpu::Limits) {
        (adapter.features() & WANTED, adapter.limits())
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
    /// **Matrix units** are used ([`Capabilities::matrix_units`]) where the device was opened with wgpu's `EXPERIMENTAL_COOPERATIVE_MATRIX`, for which an app
    /// asks itself; [`Context::new_with`] says what the token promises.
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
    /// # Errors
    /// [`Error::MissingFeature`] if the device has no immediates, [`Error::Limit`] if it was opened with too low limits; see
    /// [`Context::device_needs`].
    pub async fn from_wgpu(adapter: &wgpu::Adapter, device: wgpu::Device, queue: wgpu::Queue) -> Result<Self> {
        let (info, features, limits) = (adapter.get_info(), device.features(), device.limits());
        if !features.contains(Self::REQUIRED.features) {
            return Err(Error::MissingFeature { what: "bitnet-wgpu", feature: Self::REQUIRED.features - features });
        }
        if let Some((name, needed, found)) = Self::REQUIRED.limits(&limits).into_iter().find(|(_, needed, found)| found < needed) {
            return Err(Error::Limit { what: "bitnet-wgpu", name, needed: needed.into(), found: found.into() });
        }
        let mut capabilities = Capabilities::of(&info, features, &limits, &adapter.cooperative_matrix_properties());
        let context = Self::on(device, queue, info, capabilities.clone())?;
        (capabilities.half_subnormals, capabilities.timestamps) = probes::half_subnormals_kept(&context).await?;
        log::info!("{:?} kernels on {capabilities:?}", context.language());
        Ok(context.with_capabilities(capabilities))
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
    } else if let Some(wanted) = std::env::var("WGPU_BACKEND").ok().filter(|wanted| wgpu::Backends::from_comma_list(wanted).is_empty()) {
        // wgpu would take any.
        format!("WGPU_BACKEND is {wanted:?}, which names no backend")
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
