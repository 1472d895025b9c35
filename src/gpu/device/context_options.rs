//! Options of a context, and the choice of its adapter.

use super::{adapter::Adapter, msl::MslPolicy};
use crate::memory::{FreeMemory, MemoryPressure};
use std::{convert::Infallible, fmt, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

/// How a [`Context`](crate::Context) is opened.
///
/// ```no_run
/// use bitnet_wgpu::{Context, ContextOptions};
///
/// # async fn open() -> bitnet_wgpu::Result<()> {
/// let first = Context::open(ContextOptions::default().adapter(0)).await?;
/// let apple = Context::open(ContextOptions::default().adapter("apple").memory_limit(4 << 30)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ContextOptions {
    pub(crate) adapter: AdapterChoice,
    pub(crate) experimental: wgpu::ExperimentalFeatures,
    pub(crate) memory_limit: Option<u64>,
    pub(crate) memory_pressure: Option<FreeMemory>,
    pub(crate) wait_limit: Option<Duration>,
    pub(crate) kernel_cache: Option<PathBuf>,
    pub(crate) offload: bool,
    pub(crate) msl: MslPolicy,
}

impl ContextOptions {
    /// Sets the adapter, by a part of its name or by its index.
    #[must_use]
    pub fn adapter(self, adapter: impl Into<AdapterChoice>) -> Self {
        Self { adapter: adapter.into(), ..self }
    }

    /// Sets the adapter to the one that a function chooses. It gets all adapters, in the order of
    /// their indices, and returns the index of one, or `None` if none will do.
    ///
    /// ```no_run
    /// use bitnet_wgpu::{Context, ContextOptions, device::Adapter};
    ///
    /// # async fn open() -> bitnet_wgpu::Result<()> {
    /// // The one with the most memory.
    /// let largest = |adapters: &[Adapter]| Some(adapters.iter().max_by_key(|adapter| adapter.memory_bytes)?.index);
    /// let context = Context::open(ContextOptions::default().adapter_by(largest)).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn adapter_by(
        self,
        choose: impl Fn(&[Adapter]) -> Option<usize> + Send + Sync + 'static,
    ) -> Self {
        self.adapter(AdapterChoice(AdapterRule::By(Arc::new(choose))))
    }

    /// Sets wgpu's token for experimental features. With it, tensor cores are used where the GPU has
    /// some that kernels use (`Capabilities::tensor_cores`). Prompts are then computed 1.5 to 2.7
    /// times as fast, and large f16 products up to three times (an H200).
    ///
    /// ```no_run
    /// use bitnet_wgpu::{Context, ContextOptions, wgpu};
    ///
    /// # async fn open() -> bitnet_wgpu::Result<Context> {
    /// // SAFETY: only this crate's kernels run on the device.
    /// let token = unsafe { wgpu::ExperimentalFeatures::enabled() };
    /// Context::open(ContextOptions::default().experimental(token)).await
    /// # }
    /// ```
    ///
    /// # Safety of the token
    /// It is `unsafe` to make, since wgpu does not check all that a shader does with matrices
    /// (cooperative ones, in its words). Whoever makes it promises that no shader on this device
    /// reads or writes one beyond the memory that it was given: neither a [`Kernel`](crate::Kernel)
    /// that is not of this crate, nor a shader that an app makes on
    /// [`Context::device`](crate::Context::device). A shader without
    /// `enable wgpu_cooperative_matrix` has none. The kernels of this crate keep to their memory:
    /// they read and write matrices in workgroup memory, at places that follow from constants.
    #[must_use]
    pub fn experimental(self, experimental: wgpu::ExperimentalFeatures) -> Self {
        Self { experimental, ..self }
    }

    /// Sets the most bytes of GPU memory that tensors may take, including buffers that wait for
    /// reuse: [`Context::limit_memory`](crate::Context::limit_memory). By default it is what the
    /// device has.
    ///
    /// Under Metal it is by default the working set that Metal recommends to a process (5461 MiB of
    /// a Mac's 8 GB), less what the process has allocated on the GPU when the context is opened.
    /// Beyond the working set, Metal may drop command buffers without an error. What the app or
    /// another context allocates later is not subtracted: an app that renders too should set a
    /// limit. `u64::MAX` stands for no limit.
    #[must_use]
    pub fn memory_limit(self, bytes: impl Into<Option<u64>>) -> Self {
        Self { memory_limit: bytes.into(), ..self }
    }

    /// Sets a function that frees GPU memory. It is called before a request for memory fails,
    /// because it would pass the limit or the device has none left, on the thread that makes it.
    /// Then the request is tried once more. Without such a function, the request fails.
    ///
    /// Buffers that wait for reuse are given back before it is called. The function may drop
    /// tensors, sessions and models, read statistics, change the limit, and wait for work: no lock
    /// of the memory is held. Several threads may call it at once. What it asks for itself, on its
    /// thread, is served or fails at once. What the request is a part of, such as the session of a
    /// step, is in use and not to be waited for; nor is a lock of the app's that this thread may
    /// hold.
    ///
    /// ```no_run
    /// use bitnet_wgpu::{Context, ContextOptions, model::Session};
    /// use std::{collections::VecDeque, sync::{Arc, Mutex}};
    ///
    /// # async fn open() -> bitnet_wgpu::Result<Context> {
    /// // Conversations that nobody is in, the one that was left first in front.
    /// let idle = Arc::new(Mutex::new(VecDeque::<Session>::new()));
    /// let sessions = idle.clone();
    /// let options = ContextOptions::default().memory_limit(4 << 30).on_memory_pressure(move |pressure| {
    ///     eprintln!("no room for {} bytes ({})", pressure.bytes, pressure.what);
    ///     let first = sessions.lock().unwrap().pop_front();
    ///     drop(first);
    /// });
    /// Context::open(options).await
    /// # }
    /// ```
    #[must_use]
    pub fn on_memory_pressure(
        self,
        free: impl Fn(&MemoryPressure) + Send + Sync + 'static,
    ) -> Self {
        Self { memory_pressure: Some(FreeMemory::new(free)), ..self }
    }

    /// Prepares the device for a model's layers in host memory
    /// ([`ModelBuilder::offload`](crate::model::ModelBuilder::offload)). It is asked for wgpu's
    /// `MAPPABLE_PRIMARY_BUFFERS`, if it has that. One that works in the processor's memory has
    /// it anyhow. wgpu warns of it on GPUs with memory of their own, for whoever keeps buffers that
    /// kernels use in host memory; here only copies read them.
    #[must_use]
    pub fn offload(self, offload: bool) -> Self {
        Self { offload, ..self }
    }

    /// Sets whether kernels are compiled from MSL or from WGSL. Under Metal, kernels exist in MSL, written by hand, and in
    /// WGSL, which wgpu translates. By default MSL runs on the GPUs whose compiler takes it:
    /// [`MslPolicy::Auto`]. [`Context::language`](crate::Context::language) returns what is used.
    ///
    /// ```no_run
    /// use bitnet_wgpu::{Context, ContextOptions, device::MslPolicy};
    ///
    /// # async fn open() -> bitnet_wgpu::Result<Context> {
    /// Context::open(ContextOptions::default().msl(MslPolicy::Never)).await
    /// # }
    /// ```
    #[must_use]
    pub fn msl(self, msl: MslPolicy) -> Self {
        Self { msl, ..self }
    }

    /// Sets the most time that a wait for the device may take:
    /// [`Context::limit_waits`](crate::Context::limit_waits). By default only the device ends waits.
    #[must_use]
    pub fn wait_limit(self, time: impl Into<Option<Duration>>) -> Self {
        Self { wait_limit: time.into(), ..self }
    }

    /// Sets a folder for compiled kernels, so that a program begins sooner. Kernels that were compiled
    /// before, on an equal adapter by an equal driver, are read from it, and others are written there.
    /// By default nothing is read or written. Only Vulkan gives them; with other backends nothing is written. Drivers, too,
    /// keep their own, unless they are told not to.
    ///
    /// What was measured on the device by `bitnet tune`, and written by
    /// [`Context::save_tuning`](crate::Context::save_tuning), is read from the folder with any
    /// backend, and kernels are chosen by it: `Capabilities::tuning`.
    ///
    /// A driver does not check compiled kernels. So on Unix, a folder that belongs to another user
    /// than this one or root, or that others may write to, is not used, and the log has a warning. A
    /// folder that is not there is made for its owner alone. A file that is damaged or of something
    /// else is not used, and a folder that is full or cannot be written to leaves a warning in the
    /// log. Files of older drivers and versions stay; the folder may be removed at any time.
    ///
    /// ```no_run
    /// use bitnet_wgpu::{Context, ContextOptions};
    /// use std::path::PathBuf;
    ///
    /// # async fn open() -> bitnet_wgpu::Result<Context> {
    /// Context::open(ContextOptions::default().kernel_cache(PathBuf::from("cache/kernels"))).await
    /// # }
    /// ```
    #[must_use]
    pub fn kernel_cache(self, folder: impl Into<Option<PathBuf>>) -> Self {
        Self { kernel_cache: folder.into(), ..self }
    }
}

/// Which adapter is taken: a number is an [`Adapter::index`], a string is a part of a name, in any
/// case. The default is the adapter that `WGPU_ADAPTER_NAME` names, or else the one with the highest
/// [`Adapter::score`].
///
/// Parsed from what a user writes, a whole number is an index, and any other text is a part of a
/// name:
///
/// ```
/// use bitnet_wgpu::{ContextOptions, device::AdapterChoice};
///
/// # fn main() -> Result<(), std::convert::Infallible> {
/// let choice: AdapterChoice = "1".parse()?;
/// let options = ContextOptions::default().adapter(choice);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct AdapterChoice(pub(crate) AdapterRule);

/// How an adapter is found.
#[derive(Clone, Default)]
pub(crate) enum AdapterRule {
    /// By the environment, or else by the score.
    #[default]
    Best,
    Name(String),
    Index(usize),
    /// By a function of the caller's.
    By(Arc<Choose>),
}

type Choose = dyn Fn(&[Adapter]) -> Option<usize> + Send + Sync;

impl fmt::Debug for AdapterRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Best => f.write_str("Best"),
            Self::Name(name) => write!(f, "Name({name:?})"),
            Self::Index(index) => write!(f, "Index({index})"),
            Self::By(_) => f.write_str("By"),
        }
    }
}

impl From<usize> for AdapterChoice {
    fn from(index: usize) -> Self {
        Self(AdapterRule::Index(index))
    }
}

impl From<&str> for AdapterChoice {
    fn from(name: &str) -> Self {
        Self(AdapterRule::Name(name.into()))
    }
}

impl From<String> for AdapterChoice {
    fn from(name: String) -> Self {
        Self(AdapterRule::Name(name))
    }
}

/// An index, if the text is a whole number, or else a part of a name.
impl FromStr for AdapterChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.parse::<usize>() {
            Ok(index) => Self::from(index),
            Err(_) => Self::from(text),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_indices_are_parsed() {
        let read = |text: &str| text.parse::<AdapterChoice>().map(|choice| choice.0);
        for (text, index) in [("0", 0), ("12", 12)] {
            assert!(
                matches!(read(text), Ok(AdapterRule::Index(found)) if found == index),
                "{text}"
            );
        }
        for text in ["", "apple", "-1", "7 W"] {
            assert!(matches!(read(text), Ok(AdapterRule::Name(name)) if name == text), "{text}");
        }
        let owned = AdapterChoice::from("7".to_owned()).0;
        assert!(matches!(owned, AdapterRule::Name(name) if name == "7"));
    }
}
