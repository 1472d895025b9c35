//! Recording work: shapes and bindings are checked here, once.

use super::{
    context::Context,
    host_staging::Upload,
    recording::{Dispatch, Extent, Recording, Step, Submission},
    tensor::{Bind, Bound, Tensor},
};
use crate::{
    element::{Element, ElementType},
    error::{Error, Result},
    kernel::{
        binding::{Access, Type},
        declaration::{Kernel, KernelRef},
        params::{Params, list},
    },
    shape::Shape,
};
use std::{fmt, time::Instant};

/// Records ops and kernels. Shapes and bindings are checked as they are recorded; nothing runs before
/// [`Encoder::submit`]. [`Encoder::finish`] returns a [`Recording`] that can run many times.
///
/// ```no_run
/// # async fn f(context: bitnet_wgpu::Context) -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::tensor;
///
/// let x = context.upload(&[1.0f32, -2.0, 3.0], [3])?;
/// let mut encoder = context.encoder("relu");
/// let y = tensor::relu(&x).forward(&mut encoder)?;
/// encoder.submit()?;
/// println!("{:?}", y.read().await?); // [1.0, 0.0, 3.0]
/// # Ok(())
/// # }
/// ```
pub struct Encoder {
    context: Context,
    label: &'static str,
    steps: Vec<Step>,
    /// How many of these are submitted already.
    #[cfg(feature = "models")]
    submitted: usize,
    /// By the numbers of the steps before which they are.
    uploads: Vec<(usize, Upload)>,
    /// Memory that ops take for themselves, the largest of each slot so far.
    scratch: [Option<Tensor<u32>>; 3],
    counters: Option<Tensor<u32>>,
    /// When what is in `steps` was begun.
    begun: Instant,
}

impl Context {
    /// Begins a recording; `label` names it in captures, traces and errors.
    pub fn encoder(&self, label: &'static str) -> Encoder {
        Encoder {
            context: self.clone(),
            label,
            steps: Vec::new(),
            #[cfg(feature = "models")]
            submitted: 0,
            uploads: Vec::new(),
            scratch: [None, None, None],
            counters: None,
            begun: Instant::now(),
        }
    }
}

impl Encoder {
    /// Returns the context that it records for.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the number of recorded dispatches.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Records one kernel over `extent` outputs, which its tile turns into workgroups. An empty extent
    /// records nothing. The kernel is a `static`, or an `&Arc<Kernel>` made at run time. A kernel
    /// that loops over much data states its work by [`Extent::products`].
    ///
    /// # Errors
    /// [`Error::Dispatch`] if tensors or parameters do not fit the kernel;
    /// [`Error::DeviceUnsupported`] if the device cannot run it, or not for so large an extent;
    /// [`Error::Shader`] if it does not compile.
    pub fn dispatch<P: Params>(
        &mut self,
        kernel: impl Into<KernelRef>,
        params: &P,
        bindings: &[&dyn Bind],
        extent: impl Into<Extent>,
    ) -> Result<()> {
        let (kernel, extent) = (kernel.into(), extent.into());
        if P::FIELDS != kernel.params {
            let what = declared("params", list(kernel.params), list(P::FIELDS));
            return Err(Error::Dispatch { kernel: kernel.name, what });
        }
        let bound: Vec<_> = bindings.iter().map(|binding| binding.bound()).collect();
        let floats = check_bindings(&kernel, &self.context, &bound)?;
        if extent.outputs.contains(&0) {
            return Ok(());
        }
        if let Some(plan) = self.context.plan() {
            plan.dispatch(kernel, floats);
            return Ok(());
        }
        let bound = bound.iter().map(|b| (b.buffer.clone(), b.bytes)).collect();
        self.steps.push(Step::new(
            &self.context,
            kernel,
            bytemuck::cast_slice(&params.words()).to_vec(),
            extent,
            floats,
            bound,
        )?);
        Ok(())
    }

    /// Records a dispatch of another recording once more, on the same buffers, with another kernel
    /// of the same declaration: to compare sources.
    ///
    /// # Errors
    /// [`Error::Dispatch`] for a kernel of another declaration; else as [`Encoder::dispatch`].
    #[cfg(feature = "internals")]
    pub fn repeat(&mut self, dispatch: &Dispatch<'_>, kernel: impl Into<KernelRef>) -> Result<()> {
        let (kernel, step) = (kernel.into(), dispatch.step);
        if (kernel.params, kernel.bindings) != (step.kernel.params, step.kernel.bindings) {
            let recorded = step.kernel.name;
            let what = format!("it is declared with other parameters or tensors than `{recorded}`");
            return Err(Error::Dispatch { kernel: kernel.name, what });
        }
        if !dispatch.context.same_device(&self.context) {
            return Err(Error::other_device(kernel.name, "the dispatch"));
        }
        let (params, floats, bound) =
            (step.params.clone(), step.floats.clone(), step.bound.clone());
        self.steps.push(Step::new(&self.context, kernel, params, step.extent, floats, bound)?);
        Ok(())
    }

    /// Records all that `record` does, or nothing of it where that fails. An op that has changed a
    /// tensor of the caller's before its last dispatch does so by itself: what fails can be
    /// recorded again. (Of others, dispatches may stay that write to memory of their own, which
    /// nobody reads.) A caller has several ops be one by it.
    ///
    /// ```
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// use bitnet_wgpu::{Context, tensor};
    ///
    /// let context = pollster::block_on(Context::new())?;
    /// let (x, y) = (context.upload(&[1.0f32, -2.0], [2])?, context.upload(&[0.0f32; 3], [3])?);
    /// let mut encoder = context.encoder("both or none");
    /// let both = encoder.transaction(|encoder| {
    ///     tensor::mul(&x, &x).forward_into(encoder, &x)?; // where it is
    ///     tensor::mul(&x, &y).forward_into(encoder, &x) // of another shape
    /// });
    /// assert!(both.is_err() && encoder.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `record`.
    pub fn transaction<T>(&mut self, record: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let (steps, uploads) = (self.steps.len(), self.uploads.len());
        let recorded = record(self);
        if recorded.is_err() {
            self.steps.truncate(steps);
            self.uploads.truncate(uploads);
        }
        recorded
    }

    /// Memory of an op's own, which nobody reads after it: the next op that takes this slot has the
    /// same, since dispatches run one after another. So a recording of many layers holds it once.
    pub(crate) fn scratch<T: ElementType>(
        &mut self,
        slot: usize,
        shape: impl Into<Shape>,
    ) -> Result<Tensor<T>> {
        const { assert!(size_of::<T>() == 4) };
        let (shape, scratch) = (shape.into(), &mut self.scratch[slot]);
        if let Some(Ok(tensor)) = scratch.as_ref().map(|scratch| scratch.beginning(shape)) {
            return Ok(tensor.cast());
        }
        Ok(scratch.insert(Tensor::uninit(&self.context, shape)?).cast())
    }

    /// Counters of an op's own, which it finds at 0 and leaves at 0: so a recording of many layers
    /// has them once, and clears them once.
    pub(crate) fn counters(&mut self, count: usize) -> Result<Tensor<u32>> {
        if let Some(Ok(counters)) =
            self.counters.as_ref().map(|counters| counters.beginning([count]))
        {
            return Ok(counters);
        }
        Ok(self.counters.insert(Tensor::zeros(&self.context, [count])?).clone())
    }

    /// Records copies from host memory, which come before the next dispatch.
    #[cfg(feature = "models")]
    pub(crate) fn upload(&mut self, upload: Upload) {
        if self.context.plan().is_none() {
            self.uploads.push((self.steps.len(), upload));
        }
    }

    /// Submits what is recorded and not yet submitted: the device has work while the rest is
    /// recorded. Copies before the next dispatch stay before it. What is submitted is kept, to be
    /// run again, or given up with its memory. Whoever runs what is kept for the first time leaves
    /// out [`Encoder::submitted`].
    #[cfg(feature = "models")]
    pub(crate) fn flush(&mut self, keep: bool) -> Result<()> {
        let (context, label) = (self.context.clone(), self.label);
        let (steps, uploads) = (std::mem::take(&mut self.steps), std::mem::take(&mut self.uploads));
        let mut so_far = Recording { context, label, steps, uploads };
        let end = so_far.steps.len();
        so_far.submit_range(self.submitted..end)?;
        if keep {
            (self.steps, self.uploads, self.submitted) = (so_far.steps, so_far.uploads, end);
        } else {
            let next = so_far.uploads.partition_point(|&(at, _)| at < end);
            self.uploads = so_far.uploads.drain(next..).map(|(_, upload)| (0, upload)).collect();
        }
        Ok(())
    }

    /// How many of the dispatches that are kept are submitted already.
    #[cfg(feature = "models")]
    pub(crate) fn submitted(&self) -> usize {
        self.submitted
    }

    /// Ends the recording, which can then run any number of times.
    pub fn finish(mut self) -> Recording {
        if let Some(log) = self.context.trace_log() {
            log.recorded(self.label, self.begun);
        }
        Recording {
            context: self.context.clone(),
            label: self.label,
            steps: std::mem::take(&mut self.steps),
            uploads: std::mem::take(&mut self.uploads),
        }
    }

    /// Runs what is recorded once, as `finish().submit()` does.
    ///
    /// # Errors
    /// As [`Recording::submit`].
    pub fn submit(self) -> Result<Submission> {
        self.finish().submit()
    }
}

/// Warns of dispatches that will never run.
impl Drop for Encoder {
    fn drop(&mut self) {
        #[cfg(feature = "models")]
        let lost = self.steps.len().saturating_sub(self.submitted);
        #[cfg(not(feature = "models"))]
        let lost = self.steps.len();
        if lost > 0 && !std::thread::panicking() {
            log::warn!(
                "encoder `{}` was dropped with {lost} dispatches that have not run: call `submit` or `finish`",
                self.label
            );
        }
    }
}

fn declared(what: &str, expected: impl fmt::Display, found: impl fmt::Display) -> String {
    format!("{what}: declared {expected}, given {found}")
}

/// The number and types of the tensors, their device, and that none is written under two names.
/// Returns the types behind the kernel's aliases.
fn check_bindings(
    kernel: &Kernel,
    context: &Context,
    bound: &[Bound<'_>],
) -> Result<Vec<(&'static str, Element)>> {
    let name = kernel.name;
    if bound.len() != kernel.bindings.len() {
        let what = declared("bindings", format!("{} tensors", kernel.bindings.len()), bound.len());
        return Err(Error::Dispatch { kernel: name, what });
    }
    let mut floats: Vec<(&'static str, Element)> = Vec::new();
    for (i, (binding, b)) in kernel.bindings.iter().zip(bound).enumerate() {
        if !b.context.same_device(context) {
            return Err(Error::other_device(name, &format!("`{}`", binding.name)));
        }
        let mismatch = |expected: &str| {
            let (binding, found) = (binding.name, b.element);
            let what = format!("`{binding}` takes {expected}, found a tensor of {found}");
            Err(Error::Dispatch { kernel: name, what })
        };
        match (binding.ty, b.element) {
            (Type::U32, Element::U32 | Element::I8) | (Type::I32, Element::I32) => {}
            (Type::F32, Element::F32) | (Type::F16, Element::F16) => {}
            (Type::U32, _) => return mismatch("u32 words"),
            (Type::I32, _) => return mismatch("i32"),
            (Type::F32, _) => return mismatch("f32"),
            (Type::F16, _) => return mismatch("f16"),
            (Type::Float(alias), element @ (Element::F32 | Element::F16))
            | (Type::Bits(alias), element)
                if element != Element::I8 =>
            {
                // What is only moved is words, or f16.
                let moved = matches!(binding.ty, Type::Bits(_)) && element != Element::F16;
                let element = if moved { Element::U32 } else { element };
                if floats
                    .iter()
                    .any(|&(known, first)| (kernel.one_float || known == alias) && first != element)
                {
                    return mismatch("the float type of an earlier binding");
                }
                if floats.iter().all(|&(known, _)| known != alias) {
                    floats.push((alias, element));
                }
            }
            (Type::Float(_), _) => return mismatch("f32 or f16"),
            (Type::Bits(_), _) => return mismatch("elements of 2 or 4 bytes"),
        }
        for (j, (other, o)) in kernel.bindings.iter().zip(bound).enumerate() {
            if i != j && binding.access == Access::ReadWrite && ***b.buffer == ***o.buffer {
                let (written, other) = (binding.name, other.name);
                let what = format!("`{written}` is written and is the same buffer as `{other}`");
                return Err(Error::Dispatch { kernel: name, what });
            }
        }
    }
    Ok(floats)
}
