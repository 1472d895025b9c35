//! A model on the GPU, or on the CPU where that will not do: by a policy, and with the reason.

use super::{
    files::{LoadOptions, ModelFiles},
    model::Model,
};
use crate::{
    error::{Error, ErrorKind, Result},
    gpu::{context::Context, device::adapters::ContextOptions},
};
use std::{path::Path, sync::Arc};

/// What [`Model::load_auto`] may choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DevicePolicy {
    /// The GPU; the CPU where there is none, where there is only a software one, which is slower
    /// (unless somebody names it: see [`Context::preferred`]), and where the GPU has too little
    /// memory for the weights or cannot compute them, or its driver fails.
    #[default]
    PreferGpu,
    /// The same, but for software GPUs, which are taken as others are.
    AnyGpu,
    /// The GPU, a software one too, or an error.
    RequireGpu,
    /// The CPU.
    Cpu,
}

impl DevicePolicy {
    /// Does an error of the GPU lead to the CPU?
    fn falls_back(self, error: &Error) -> bool {
        let kind = error.kind();
        matches!(self, Self::PreferGpu | Self::AnyGpu)
            && (matches!(
                kind,
                ErrorKind::NoDevice
                    | ErrorKind::OutOfMemory
                    | ErrorKind::Unsupported
                    | ErrorKind::Lost
            ) || matches!(error, Error::Shader { .. } | Error::Gpu { .. }))
    }
}

/// Where [`Model::load_auto`] has put a model, and why.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Placement {
    /// The GPU's name; none for the CPU.
    pub gpu: Option<String>,
    /// For people.
    pub why: String,
    /// What is wrong with the GPU, where the CPU has taken its place for that.
    pub error: Option<Arc<Error>>,
}

impl Model {
    /// Loads a model directory, a .gguf file or a native container to the GPU, or for the CPU, as
    /// `policy` says, and tells which it is and why. The log has it too: a warning where something
    /// is wrong with the GPU. It waits for the device. What a session needs is not known yet: see
    /// [`Model::session_footprint`].
    ///
    /// ```no_run
    /// use bitnet_wgpu::{
    ///     ContextOptions,
    ///     model::{DevicePolicy, LoadOptions, Model},
    /// };
    ///
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// let limited = ContextOptions::default().memory_limit(2 << 30);
    /// let (model, placement) = Model::load_auto("path/to/a/model", DevicePolicy::PreferGpu, limited, LoadOptions::default())?;
    /// println!("computing on {}", placement.why);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Of the files, as [`Model::load`]; of the GPU, as [`Context::open`] and [`Model::load`], with
    /// [`DevicePolicy::RequireGpu`].
    pub fn load_auto(
        path: impl AsRef<Path>,
        policy: DevicePolicy,
        context: ContextOptions,
        mut options: LoadOptions<'_>,
    ) -> Result<(Self, Placement)> {
        let files = ModelFiles::open(path, &options)?;
        let mut load =
            |context: Option<&Context>| Self::from_files(context, &files, options.again());
        let opened = match policy {
            DevicePolicy::Cpu => Ok((None, "the CPU, as the policy says".into())),
            DevicePolicy::PreferGpu => pollster::block_on(Context::preferred(context)),
            DevicePolicy::AnyGpu | DevicePolicy::RequireGpu => {
                pollster::block_on(Context::open(context)).map(|context| {
                    let name = context.capabilities().adapter.clone();
                    (Some(context), name)
                })
            }
        };
        let loaded = opened.and_then(|(context, why)| {
            let gpu = context.as_ref().map(|context| context.capabilities().adapter.clone());
            Ok((load(context.as_ref())?, Placement { gpu, why, error: None }))
        });
        match loaded {
            Err(error) if policy.falls_back(&error) => {
                let model = load(None)?;
                let why = format!("the CPU, as the GPU will not do: {error}");
                log::warn!("computing on {why}");
                Ok((model, Placement { gpu: None, why, error: Some(Arc::new(error)) }))
            }
            loaded => {
                let (model, placement) = loaded?;
                log::info!("computing on {}", placement.why);
                Ok((model, placement))
            }
        }
    }
}
