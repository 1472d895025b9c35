//! What a model is loaded to.

use crate::{
    error::{Error, Result},
    gpu::context::Context,
};
use std::slice;

/// What a model is loaded to: a GPU, several that share its layers, or the CPU. It is made of what
/// names them: `&context` or `Some(&context)`, a slice, an array or a `Vec` of contexts, `None` for
/// the CPU.
///
/// Several contexts are of devices of one machine, each with a run of layers, in their order: the
/// first has the embedding too, and the last the head. How many layers each has is
/// [`LoadOptions::split`](crate::model::LoadOptions::split). Everything works as on one device and, where
/// devices are alike, to the same bits (but with
/// [`LoadOptions::half_attention`](crate::model::LoadOptions::half_attention), since a prompt's pieces are
/// cut otherwise). Two contexts that were opened on one adapter count as two devices. Between two
/// of them the residual stream goes by way of the host, 4 · hidden bytes a token; a token visits
/// one after another, so one text is no faster than on one device, but a prompt's pieces are
/// computed on all of them at once, and so are texts of several sessions.
///
/// ```no_run
/// # fn main() -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::{
///     AdapterChoice, Context, ContextOptions,
///     model::{LoadOptions, Model, SessionOptions},
/// };
///
/// let open = |index| pollster::block_on(Context::open(ContextOptions::default().adapter(AdapterChoice::Index(index))));
/// let gpus = [open(0)?, open(1)?];
/// let model = Model::load_with(&gpus, "path/to/a/model", LoadOptions::default())?;
/// for part in model.parts(SessionOptions::new(1, 2048))? {
///     println!("layers {:?} on {}", part.layers, part.context.capabilities().adapter);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Devices<'a>(Option<&'a [Context]>);

impl<'a> Devices<'a> {
    /// The contexts; none for the CPU.
    pub(crate) fn contexts(self) -> &'a [Context] {
        self.0.unwrap_or_default()
    }

    /// Can a model of so many layers be there, so many of them on each, or, where that is empty, as
    /// many as is best?
    pub(crate) fn check(self, layers: usize, split: &[usize]) -> Result<()> {
        let (contexts, sum) =
            (self.contexts(), split.iter().try_fold(0usize, |sum, &count| sum.checked_add(count)));
        let again =
            |n: &usize| contexts[..*n].iter().any(|context| context.same_device(&contexts[*n]));
        let what = if self.0.is_some_and(<[_]>::is_empty) {
            "no context; without any device it is the CPU: `None`".into()
        } else if let Some(n) = (0..contexts.len()).find(again) {
            format!("context {n} is of the same device as one before it")
        } else if contexts.len() > layers {
            format!("{} contexts for {layers} layers", contexts.len())
        } else if split.is_empty() {
            return Ok(());
        } else if split.len() != contexts.len() {
            format!(
                "numbers of layers for {} contexts, of which there are {}",
                split.len(),
                contexts.len()
            )
        } else if let Some(n) = split.iter().position(|&count| count == 0) {
            format!("no layers for context {n}")
        } else if sum != Some(layers) {
            format!("layers {split:?}; the model has {layers}")
        } else {
            return Ok(());
        };
        Err(Error::Invalid { op: "split", what })
    }
}

impl<'a> From<&'a Context> for Devices<'a> {
    fn from(context: &'a Context) -> Self {
        Some(context).into()
    }
}

impl<'a> From<Option<&'a Context>> for Devices<'a> {
    fn from(context: Option<&'a Context>) -> Self {
        Self(context.map(slice::from_ref))
    }
}

impl<'a> From<&'a [Context]> for Devices<'a> {
    fn from(contexts: &'a [Context]) -> Self {
        Self(Some(contexts))
    }
}

impl<'a, const N: usize> From<&'a [Context; N]> for Devices<'a> {
    fn from(contexts: &'a [Context; N]) -> Self {
        Self(Some(contexts))
    }
}

impl<'a> From<&'a Vec<Context>> for Devices<'a> {
    fn from(contexts: &'a Vec<Context>) -> Self {
        Self(Some(contexts))
    }
}
