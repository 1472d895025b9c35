//! What computes a model.

use crate::{
    error::{Error, Result},
    gpu::{context::Context, device::context_options::ContextOptions},
};
use std::slice;

/// What computes a model: a GPU, several GPUs that share its layers, or the CPU. The default is
/// [`Device::Auto`]: the GPU if there is one and it is faster than the CPU, else the CPU.
///
/// `&context`, and a slice, an array or a `Vec` of contexts convert to [`Device::Contexts`]; so does
/// `Some(&context)`, and `None` to the CPU.
///
/// Several contexts are on devices of one machine, and each gets a run of layers, in their order:
/// the first also the embedding, the last also the LM head. [`ModelBuilder::split`] sets how many
/// layers each gets. Results are bit-identical to those of one device if the devices are alike
/// (except with [`ModelBuilder::f16_attention`]). Two contexts on one adapter count as two devices.
/// The residual stream goes from one device to the next through the host, 4 · hidden bytes a token.
/// A token visits the devices in turn, so that one sequence is no faster than on one device.
/// Prefill chunks and sequences of several sessions are computed on all devices at once.
///
/// ```no_run
/// # fn main() -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::{
///     Context, ContextOptions,
///     model::{Model, SessionOptions},
/// };
///
/// let open = |index| pollster::block_on(Context::open(ContextOptions::default().adapter(index)));
/// let gpus = [open(0)?, open(1)?];
/// let model = Model::builder("path/to/a/model").device(&gpus).build()?;
/// let session = model.session(SessionOptions::new(1, 2048))?;
/// # Ok(())
/// # }
/// ```
///
/// [`ModelBuilder::split`]: crate::model::ModelBuilder::split
/// [`ModelBuilder::f16_attention`]: crate::model::ModelBuilder::f16_attention
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Device<'a> {
    /// The GPU that [`Context::preferred`] opens with these options. The CPU computes if there is
    /// none, if it has too little memory for the weights, cannot compute them, or if its driver
    /// fails. [`Model::auto_reason`](crate::model::Model::auto_reason) says which it is.
    Auto(ContextOptions),
    /// The GPU that [`Context::open`] opens with these options, also a software one. It is an error
    /// if there is none.
    Gpu(ContextOptions),
    /// The CPU.
    Cpu,
    /// One GPU or several, which the caller has opened.
    Contexts(&'a [Context]),
}

impl Default for Device<'_> {
    fn default() -> Self {
        Self::Auto(ContextOptions::default())
    }
}

impl<'a> From<&'a Context> for Device<'a> {
    fn from(context: &'a Context) -> Self {
        Self::Contexts(slice::from_ref(context))
    }
}

impl<'a> From<Option<&'a Context>> for Device<'a> {
    fn from(context: Option<&'a Context>) -> Self {
        context.map_or(Self::Cpu, Self::from)
    }
}

impl<'a, C: AsRef<[Context]> + ?Sized> From<&'a C> for Device<'a> {
    fn from(contexts: &'a C) -> Self {
        Self::Contexts(contexts.as_ref())
    }
}

/// Checks that a model of `layers` layers can be on these contexts, none for the CPU, with `split`
/// layers on each unless it is empty.
pub(crate) fn check_split(contexts: &[Context], layers: usize, split: &[usize]) -> Result<()> {
    let sum = split.iter().try_fold(0usize, |sum, &count| sum.checked_add(count));
    let again = |n: &usize| contexts[..*n].iter().any(|context| context.same_device(&contexts[*n]));
    let what = if let Some(n) = (0..contexts.len()).find(again) {
        format!("context {n} is of the same device as one before it")
    } else if contexts.len() > layers {
        format!("there are more contexts ({}) than layers ({layers})", contexts.len())
    } else if split.is_empty() {
        return Ok(());
    } else if split.len() != contexts.len() {
        let (parts, contexts) = (split.len(), contexts.len());
        format!("the split and the contexts differ in number: {parts} and {contexts}")
    } else if let Some(n) = split.iter().position(|&count| count == 0) {
        format!("no layers for context {n}")
    } else if sum != Some(layers) {
        format!("the split {split:?} does not add up to the {layers} layers of the model")
    } else {
        return Ok(());
    };
    Err(Error::Invalid { op: "split", what })
}
