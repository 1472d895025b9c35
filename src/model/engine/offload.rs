//! Layers in host memory.

use super::interface::SessionOptions;
use crate::error::{Error, Result};

/// Which of a model's layers stay in host memory, so that a model which is larger than a context's
/// memory limit still runs: bit-identical, and slower.
///
/// Their matrices are copied to the GPU in every pass, while the layers before them are computed,
/// into two slots. So a step takes at least the [`Offloaded::bytes`](crate::model::Offloaded::bytes)
/// divided by the bandwidth of the link, however many sequences it is of: batches and prompts cost
/// little more for it, single tokens most. One or two layers save nothing, since there are two
/// slots. On GPUs that share the processor's memory it saves nothing either, but the limit's
/// numbers.
///
/// A model on the CPU has all of it in host memory.
///
/// ```no_run
/// # fn main() -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::{
///     Context, ContextOptions,
///     model::{Model, Offload, SessionOptions},
/// };
///
/// let context = pollster::block_on(Context::open(ContextOptions::default().memory_limit(1 << 30)))?;
/// let room = SessionOptions::new(1, 2048);
/// let model = Model::builder("path/to/a/model").device(&context).offload(Offload::Auto(room)).build()?;
/// println!("{} layers stay in host memory", model.offloaded().layers);
/// let session = model.session(room)?; // fits
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offload {
    /// None: all weights are in GPU memory, or the model is refused.
    #[default]
    None,
    /// This many layers, evenly spread.
    Layers(usize),
    /// As few as it takes for the weights and a session of these options to fit the context's
    /// memory limit, together with what is there already; without a limit, none.
    Auto(SessionOptions),
}

impl Offload {
    pub(crate) fn check(self, layers: usize) -> Result<()> {
        match self {
            Self::Layers(count) if count > layers => Err(Error::Invalid {
                op: "offload",
                what: format!("{count} layers; the model has {layers}"),
            }),
            _ => Ok(()),
        }
    }
}
