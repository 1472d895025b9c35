//! The GPUs that a system offers, and which of them is taken.

use super::{
    adapter::Adapter,
    context_options::{AdapterChoice, AdapterRule, ContextOptions},
    environment::environment,
    msl::MslPolicy,
};
use crate::error::{Error, Result};

/// All adapters of a system, and the one that is taken.
///
/// ```no_run
/// use bitnet_wgpu::{Adapters, ContextOptions};
///
/// # async fn list() -> bitnet_wgpu::Result<()> {
/// let adapters = Adapters::list(&ContextOptions::default()).await;
/// for adapter in &adapters.all {
///     println!("{}: {}, score {}", adapter.index, adapter.capabilities.adapter, adapter.score);
/// }
/// println!("taken: {}", adapters.chosen?.why);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Adapters {
    /// In the order of their indices.
    pub all: Vec<Adapter>,
    /// The one that [`Context::open`](crate::Context::open) opens by these options;
    /// [`Error::NoAdapter`] where there is none, [`Error::Invalid`] for values of `BITNET_WGPU_MSL`
    /// other than `0` and `1`.
    pub chosen: Result<ChosenAdapter>,
}

/// The adapter that is taken, and why.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChosenAdapter {
    /// Its [`Adapter::index`].
    pub index: usize,
    /// For people.
    pub why: String,
}

impl Adapters {
    /// Asks the drivers. `WGPU_BACKEND` narrows which are asked.
    pub async fn list(options: &ContextOptions) -> Self {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        if !cfg!(debug_assertions) {
            descriptor.flags = wgpu::InstanceFlags::empty();
        }
        if let Some(value) = environment("WGPU_BACKEND")
            .filter(|value| wgpu::Backends::from_comma_list(value).is_empty())
        {
            // wgpu would take any.
            let reason = format!(
                "WGPU_BACKEND is `{value}`, which names no backend; `vulkan` and `metal` are supported"
            );
            return Self {
                all: Vec::new(),
                chosen: Err(Error::NoAdapter { reason, found: "none".into() }),
            };
        }
        let instance = wgpu::Instance::new(descriptor.with_env());
        let raw = instance.enumerate_adapters(wgpu::Backends::all()).await;
        let msl = options.msl.resolved();
        let shown = *msl.as_ref().unwrap_or(&MslPolicy::Auto);
        let all: Vec<_> = raw
            .into_iter()
            .enumerate()
            .map(|(index, raw)| Adapter::new(index, raw, options.experimental, shown))
            .collect();
        let chosen = match all.is_empty() {
            true => Err("no adapter found; a Vulkan or Metal driver is needed".into()),
            false => choose(&all, &options.adapter),
        };
        let found = || {
            all.iter()
                .map(|adapter| adapter.capabilities.adapter.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        };
        let found = || if all.is_empty() { "none".into() } else { found() };
        let chosen = chosen.map_err(|reason| Error::NoAdapter { reason, found: found() });
        Self { chosen: msl.and(chosen), all }
    }
}

impl Adapters {
    /// The one that is chosen, and why.
    pub(crate) fn take(mut self) -> Result<(Adapter, String)> {
        self.chosen.map(|ChosenAdapter { index, why }| (self.all.swap_remove(index), why))
    }
}

fn choose(all: &[Adapter], AdapterChoice(rule): &AdapterChoice) -> Result<ChosenAdapter, String> {
    let named = |name: &str, whose: &str| {
        let has = |adapter: &&Adapter| {
            adapter.capabilities.adapter.to_lowercase().contains(&name.to_lowercase())
        };
        match best(all.iter().filter(has)) {
            _ if name.is_empty() => Err(format!("{whose} is empty")),
            Some(adapter) => {
                Ok(ChosenAdapter { index: adapter.index, why: format!("{whose} is `{name}`") })
            }
            None => Err(format!("{whose} is `{name}`, which no adapter's name contains")),
        }
    };
    let at = |index: usize, why: String| match all.get(index) {
        Some(_) => Ok(ChosenAdapter { index, why }),
        None => Err(format!("{why}; there are {}", all.len())),
    };
    match rule {
        AdapterRule::Name(name) => named(name, "the name asked for"),
        AdapterRule::Index(index) => at(*index, format!("adapter {index} was asked for")),
        AdapterRule::By(choose) => match choose(all) {
            Some(index) => at(index, format!("the caller's function chose adapter {index}")),
            None => Err("the caller's function chose none".into()),
        },
        AdapterRule::Best => match environment("WGPU_ADAPTER_NAME") {
            Some(name) => named(&name, "WGPU_ADAPTER_NAME"),
            None => match best(all.iter().filter(|adapter| adapter.score > 0)) {
                Some(Adapter { index, score, reasons, .. }) => Ok(ChosenAdapter {
                    index: *index,
                    why: format!(
                        "the highest score of {}: {score} ({})",
                        all.len(),
                        reasons.join(", ")
                    ),
                }),
                None => Err(all
                    .iter()
                    .filter_map(|adapter| adapter.refused.as_deref())
                    .collect::<Vec<_>>()
                    .join("; ")),
            },
        },
    }
}

/// The first of those with the highest score.
fn best<'a>(adapters: impl Iterator<Item = &'a Adapter>) -> Option<&'a Adapter> {
    adapters.reduce(|best, adapter| if adapter.score > best.score { adapter } else { best })
}
