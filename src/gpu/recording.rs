//! Recorded work: run it, run it again, look at it.

use super::{
    capabilities::SubmissionLimit,
    compile::pipeline::Pipeline,
    context::Context,
    device::scopes::guarded,
    execute::{
        commands::{Commands, MOST_PASSES},
        submissions::SubmissionPart,
    },
    host_staging::Upload,
    memory::pool::Pooled,
    tensor::{Bind, Tensor},
    trace::Dispatched,
    transfer::readback,
};
use crate::{
    element::{Element, ElementType},
    error::{Error, Result},
    kernel::{
        binding::Access,
        declaration::{Kernel, KernelRef},
    },
};
use std::{ops::Range, pin::Pin, sync::Arc};

/// Recorded work: plain data that can be run again and again. It holds on to the buffers it names.
///
/// ```no_run
/// use bitnet_wgpu::{Context, tensor};
///
/// # async fn squares() -> bitnet_wgpu::Result<()> {
/// let context = Context::new().await?;
/// let x = context.upload(&[1.0f32, 2.0, 3.0], [3])?;
/// let mut encoder = context.encoder("squares");
/// let y = tensor::mul(&x, &x).forward(&mut encoder)?; // [3]
/// let squares = encoder.finish();
/// squares.submit()?.await?; // or drop what `submit` gives: it runs all the same
/// x.write(&[4.0, 5.0, 6.0])?;
/// println!("{:?}", squares.submit_read(&y)?.await?); // [16.0, 25.0, 36.0]
/// # Ok(())
/// # }
/// ```
pub struct Recording {
    pub(super) context: Context,
    pub(super) label: &'static str,
    pub(super) steps: Vec<Step>,
    /// By the numbers of the steps before which they are.
    pub(super) uploads: Vec<(usize, Upload)>,
}

/// Number of outputs of a dispatch in three dimensions, and how much work they are. An array of
/// three numbers is an extent with little work for each output.
///
/// ```
/// use bitnet_wgpu::gpu::Extent;
///
/// let elementwise = Extent::from([100, 3, 1]);
/// let matrix_product = Extent::products([100, 3, 1], 64); // its inner dimension is 64
/// assert_ne!(elementwise, matrix_product);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The outputs; the tile of a kernel turns them into workgroups.
    pub(crate) outputs: [usize; 3],
    /// Multiply-adds, or as much other arithmetic. `SubmissionLimit` bounds submissions by it.
    pub(crate) multiply_adds: u64,
}

impl Extent {
    /// Outputs, and the multiply-adds of all of them together.
    pub(crate) fn with_work(outputs: [usize; 3], multiply_adds: u64) -> Self {
        Self { outputs, multiply_adds }
    }

    /// Returns outputs of `depth` multiply-adds each. Submissions of long work are split by it, so
    /// that the system does not stop them.
    pub fn products(outputs: [usize; 3], depth: usize) -> Self {
        Self::with_work(outputs, product(&[&outputs[..], &[depth]].concat()))
    }
}

/// The product of counts; the largest number where it overflows.
pub(crate) fn product(counts: &[usize]) -> u64 {
    counts.iter().fold(1, |product: u64, &count| product.saturating_mul(count as u64))
}

impl From<[usize; 3]> for Extent {
    fn from(outputs: [usize; 3]) -> Self {
        Self { outputs, multiply_adds: 0 }
    }
}

/// Workgroups that keep a small GPU busy: it has four to eight cores, which run several at a time.
const CORES: u64 = 16;

/// One dispatch, ready to be encoded.
pub struct Step {
    pub kernel: KernelRef,
    pub pipeline: Arc<Pipeline>,
    pub bind_group: wgpu::BindGroup,
    pub params: Vec<u8>,
    pub workgroups: [u32; 3],
    pub extent: Extent,
    pub floats: Vec<(&'static str, Element)>,
    /// The buffers, and how many bytes of each are bound. Keeps them out of the pool while this
    /// work may still be submitted.
    pub bound: Vec<(Arc<Pooled>, u64)>,
}

impl Step {
    /// Makes the bind group and settles the grid; everything else has been checked.
    pub fn new(
        context: &Context,
        kernel: KernelRef,
        params: Vec<u8>,
        extent: Extent,
        floats: Vec<(&'static str, Element)>,
        bound: Vec<(Arc<Pooled>, u64)>,
    ) -> Result<Self> {
        let (limit, pipeline) =
            (context.capabilities().max_workgroups, context.pipeline(&kernel, floats.clone())?);
        let grid = kernel.workgroups(pipeline.language, extent.outputs, limit);
        if grid.iter().any(|&n| n > u64::from(limit)) {
            let [x, y, z] = grid;
            let what = format!(
                "{}: a grid of {x} × {y} × {z} workgroups; this device allows {limit} in one dimension",
                kernel.name
            );
            return Err(Error::DeviceUnsupported { what });
        }
        let resource = |buffer, bytes| {
            let size = wgpu::BufferSize::new(bytes);
            wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset: 0, size })
        };
        let entry = |(binding, (buffer, bytes))| wgpu::BindGroupEntry {
            binding,
            resource: resource(buffer, bytes),
        };
        let buffers = bound.iter().map(|(buffer, bytes): &(Arc<Pooled>, u64)| (&***buffer, *bytes));
        let entries: Vec<_> = (0u32..).zip(buffers).map(entry).collect();
        let descriptor = wgpu::BindGroupDescriptor {
            label: Some(kernel.name),
            layout: &pipeline.layout,
            entries: &entries,
        };
        let device = context.device();
        let bind_group = guarded(
            device,
            || format!("binding `{}`", kernel.name),
            || device.create_bind_group(&descriptor),
        )?;
        Ok(Self {
            kernel,
            pipeline,
            bind_group,
            params,
            workgroups: grid.map(|n| n as u32),
            extent,
            floats,
            bound,
        })
    }

    /// Its part of what a submission may have, at most: as if it read and wrote all that is bound.
    /// Fewer workgroups than a GPU has cores leave the others idle.
    fn share(&self, limit: &SubmissionLimit) -> f64 {
        let workgroups = self.workgroups.iter().map(|&n| u64::from(n)).product::<u64>().max(1);
        let multiply_adds = self.extent.multiply_adds.saturating_mul(CORES.div_ceil(workgroups));
        limit.share(multiply_adds, self.bound.iter().map(|(_, bytes)| bytes).sum())
    }

    /// Encodes it after `last`, whose pipeline and parameters are still set.
    fn encode(&self, pass: &mut wgpu::ComputePass<'_>, last: Option<&Self>) {
        let [x, y, z] = self.workgroups;
        let same_pipeline = last.is_some_and(|last| Arc::ptr_eq(&last.pipeline, &self.pipeline));
        // For captures; release builds open devices without debug labels.
        if cfg!(debug_assertions) {
            pass.push_debug_group(self.kernel.name);
        }
        if !same_pipeline {
            pass.set_pipeline(&self.pipeline.raw);
        }
        if !self.params.is_empty()
            && !last.is_some_and(|last| same_pipeline && last.params == self.params)
        {
            pass.set_immediates(0, &self.params);
        }
        for (binding, (buffer, _)) in self.kernel.bindings.iter().zip(&self.bound) {
            if binding.access == Access::ReadWrite {
                buffer.mark_written();
            }
        }
        pass.set_bind_group(0, &self.bind_group, &[]);
        pass.dispatch_workgroups(x, y, z);
        if cfg!(debug_assertions) {
            pass.pop_debug_group();
        }
    }
}

/// Encodes `steps` in order, all of them `times` times.
pub fn encode(steps: &[Step], times: u32, pass: &mut wgpu::ComputePass<'_>) {
    let mut last = None;
    for _ in 0..times {
        for step in steps {
            step.encode(pass, last);
            last = Some(step);
        }
    }
}

/// Splits steps into submissions: each has at most `most` steps, and a share of 1 in all, unless a
/// single step has more.
fn split(shares: impl Iterator<Item = f64>, most: usize) -> Vec<Range<usize>> {
    let (mut parts, mut begin, mut sum, mut end) = (Vec::new(), 0, 0.0, 0);
    for share in shares {
        if end > begin && (sum + share > 1.0 || end - begin == most) {
            parts.push(begin..end);
            (begin, sum) = (end, 0.0);
        }
        (end, sum) = (end + 1, sum + share);
    }
    parts.push(begin..end);
    parts
}

/// Dispatches of the first of several submissions; each has twice as many as the one before, and
/// the last has all the rest.
#[cfg(feature = "models")]
const FIRST_PART: usize = 16;

impl Recording {
    /// Runs it once, as one compute pass in one submission. Offloaded layers take several passes. On
    /// GPUs whose system stops long work, it is split into several submissions, between which no
    /// other work of this crate runs. Each dispatch sees the results of earlier ones.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], and what else the device reports.
    pub fn submit(&self) -> Result<Submission> {
        self.submit_rest(0)
    }

    /// [`Recording::submit`] of the steps from one on.
    pub(crate) fn submit_rest(&self, begin: usize) -> Result<Submission> {
        self.submit_range(begin..self.steps.len())
    }

    /// Runs some of its steps once.
    pub(crate) fn submit_range(&self, range: Range<usize>) -> Result<Submission> {
        self.check_unmapped(range.clone())?;
        let index = self.context.submit_parts(self.label, &self.parts(range))?;
        Ok(Submission { context: self.context.clone(), index })
    }

    /// Submits the beginning of many steps, in parts, for who waits for the end: the device
    /// computes while the host encodes the rest. Gives the first step that is left. Where there are
    /// copies, nothing is submitted here, and that is the first of all: between two submissions
    /// another recording's copies may come.
    #[cfg(feature = "models")]
    pub(crate) fn submit_beginning(&self) -> Result<usize> {
        let (mut begin, mut part) = (0, FIRST_PART);
        while self.uploads.is_empty() && self.steps.len() - begin > 2 * part {
            self.submit_range(begin..begin + part)?;
            (begin, part) = (begin + part, 2 * part);
        }
        Ok(begin)
    }

    /// Runs it once and copies `tensor` back, in one submission. It sees what was written to tensors
    /// before. The future can be awaited on any executor, also after later submissions, or dropped.
    ///
    /// # Errors
    /// [`Error::Dispatch`] for a tensor of another device; what the device reports.
    pub fn submit_read<T: ElementType>(
        &self,
        tensor: &Tensor<T>,
    ) -> Result<impl Future<Output = Result<Vec<T>>> + Send + use<T>> {
        self.submit_rest_read(0, tensor)
    }

    /// [`Recording::submit_read`] of the steps from one on.
    pub(crate) fn submit_rest_read<T: ElementType>(
        &self,
        begin: usize,
        tensor: &Tensor<T>,
    ) -> Result<impl Future<Output = Result<Vec<T>>> + Send + use<T>> {
        if !tensor.context().same_device(&self.context) {
            return Err(Error::other_device(self.label, "the tensor to read"));
        }
        self.check_unmapped(begin..self.steps.len())?;
        Ok(tensor.read_after(self.label, &self.parts(begin..self.steps.len())))
    }

    /// Refuses tensors that are mapped, before anything is submitted.
    fn check_unmapped(&self, range: Range<usize>) -> Result<()> {
        let mut bound = self.steps[range].iter().flat_map(|step| &step.bound);
        bound.try_for_each(|(buffer, _)| buffer.check_unmapped(self.label))
    }

    /// Puts it, as one compute pass (more where a model's layers are offloaded), into a command
    /// encoder of the app's, between passes of the app's own: their results are seen by it, and its
    /// by those after it. The app finishes and submits the encoder, which is one submission,
    /// however much work it is. Its buffers are kept until that work is done.
    ///
    /// ```
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// use bitnet_wgpu::{Context, tensor};
    ///
    /// let context = pollster::block_on(Context::new())?;
    /// let x = context.upload(&[1.0f32, -2.0, 3.0], [3])?;
    /// let mut recorded = context.encoder("relu²");
    /// let y = tensor::relu2(&x).forward(&mut recorded)?;
    ///
    /// let mut encoder = context.device().create_command_encoder(&Default::default());
    /// // The app's own passes may go here ...
    /// recorded.finish().encode(&mut encoder);
    /// // ... and here, on y.buffer().
    /// context.queue().submit([encoder.finish()]);
    /// assert_eq!(pollster::block_on(y.read())?, [1.0, 0.0, 9.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn encode(&self, encoder: &mut wgpu::CommandEncoder) {
        self.encode_range(&mut Commands::new(encoder, None), self.label, 0..self.steps.len());
        let bound = self.steps.iter().flat_map(|step| &step.bound).map(|(buffer, _)| buffer);
        let held: Vec<_> = bound
            .chain(self.uploads.iter().flat_map(|(_, upload)| upload.written()))
            .cloned()
            .collect();
        encoder.on_submitted_work_done(move || drop(held));
    }

    /// The submissions of some steps.
    fn parts(&self, range: Range<usize>) -> Vec<SubmissionPart<'_>> {
        let limit = self.context.capabilities().submission_limit;
        let most = if self.context.trace_log().is_some() { MOST_PASSES } else { usize::MAX };
        let shares = self.steps[range.clone()]
            .iter()
            .map(|step| limit.map_or(0.0, |limit| step.share(&limit)));
        let part = |part: Range<usize>| -> SubmissionPart<'_> {
            let range = range.start + part.start..range.start + part.end;
            Box::new(move |commands| self.encode_submitted(commands, range.clone()))
        };
        split(shares, most).into_iter().map(part).collect()
    }

    /// Encodes steps: as passes between which uploads are, or as one, where there are none.
    pub(super) fn encode_range(
        &self,
        commands: &mut Commands<'_, '_>,
        label: &str,
        range: Range<usize>,
    ) {
        let descriptor = wgpu::ComputePassDescriptor { label: Some(label), timestamp_writes: None };
        let mut begin = range.start;
        let bounds = self
            .uploads
            .iter()
            .map(|&(at, _)| at)
            .filter(|at| range.contains(at))
            .chain([range.end]);
        for end in bounds {
            if end > begin {
                self.encode_uploads(commands.encoder, begin);
                commands.pass(&descriptor, |pass| encode(&self.steps[begin..end], 1, pass));
                begin = end;
            }
        }
    }

    /// Encodes the uploads before a step.
    pub(super) fn encode_uploads(&self, encoder: &mut wgpu::CommandEncoder, step: usize) {
        self.uploads
            .iter()
            .filter(|&&(at, _)| at == step)
            .for_each(|(_, upload)| upload.encode(encoder));
    }

    /// Encodes what will be submitted at once: as one pass, or, while it is traced, as passes that
    /// are timed.
    fn encode_submitted(&self, commands: &mut Commands<'_, '_>, range: Range<usize>) {
        let Some(log) = self.context.trace_log() else {
            return self.encode_range(commands, self.label, range);
        };
        let encoder = &mut *commands.encoder;
        let (device, timestamps) = (self.context.device(), self.context.capabilities().timestamps);
        let dispatched = |step: &Step| Dispatched {
            kernel: step.kernel.name,
            workgroups: step.workgroups,
            bytes: step.bound.iter().map(|(_, bytes)| bytes).sum(),
        };
        let timer = log.pass(
            device,
            timestamps,
            self.label,
            self.steps[range.clone()].iter().map(dispatched).collect(),
        );
        for (n, step) in self.steps[range.clone()].iter().enumerate() {
            self.encode_uploads(encoder, range.start + n);
            let descriptor = wgpu::ComputePassDescriptor {
                label: Some(self.label),
                timestamp_writes: timer.writes(n),
            };
            step.encode(&mut encoder.begin_compute_pass(&descriptor), None);
        }
        timer.finish(device, encoder, self.context.queue().get_timestamp_period());
    }

    /// The recorded dispatches, in order, as plain data: to print a plan, or to run it elsewhere.
    #[cfg(feature = "internals")]
    pub fn dispatches(&self) -> impl Iterator<Item = Dispatch<'_>> {
        self.steps.iter().map(|step| Dispatch { context: &self.context, step })
    }

    /// The recorded kernels, in order.
    #[cfg(feature = "internals")]
    pub fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.steps.iter().map(|step| &*step.kernel)
    }
}

/// One dispatch of a [`Recording`].
#[derive(Clone, Copy)]
pub struct Dispatch<'a> {
    pub(super) context: &'a Context,
    pub(super) step: &'a Step,
}

impl<'a> Dispatch<'a> {
    /// The kernel.
    pub fn kernel(&self) -> &'a KernelRef {
        &self.step.kernel
    }

    /// The bytes of its parameters.
    pub fn params(&self) -> &'a [u8] {
        &self.step.params
    }

    /// Its outputs, which its tile turns into workgroups.
    pub fn extent(&self) -> [usize; 3] {
        self.step.extent.outputs
    }

    /// Its multiply-adds, as the op states them; 0 where they do not matter.
    pub fn multiply_adds(&self) -> u64 {
        self.step.extent.multiply_adds
    }

    /// The element types behind its kernel's aliases.
    pub fn floats(&self) -> &'a [(&'static str, Element)] {
        &self.step.floats
    }

    /// A number for each of its buffers, in binding order; the same buffer has the same number in
    /// every dispatch of a recording.
    pub fn buffers(&self) -> Vec<usize> {
        self.step.bound.iter().map(|(buffer, _)| buffer.id()).collect()
    }

    /// How many bytes of each of its buffers are bound, in binding order.
    pub fn bytes(&self) -> Vec<u64> {
        self.step.bound.iter().map(|&(_, bytes)| bytes).collect()
    }

    /// Copies back what is bound, as bytes.
    ///
    /// # Errors
    /// What the device reports.
    ///
    /// # Panics
    /// If there is no such binding.
    pub fn read(&self, binding: usize) -> impl Future<Output = Result<Vec<u8>>> + Send + use<> {
        let (buffer, bytes) = &self.step.bound[binding];
        let (bytes, staging) =
            (*bytes, readback::read_after(self.context, "dispatch", &[], (buffer, 0), *bytes));
        async move { staging.await?.map_or(Ok(Vec::new()), |staging| staging.to_vec(bytes as usize)) }
    }

    /// Overwrites what is bound, from its beginning. Takes effect before anything that is submitted
    /// later.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more bytes than are bound; what the device reports.
    ///
    /// # Panics
    /// If there is no such binding.
    pub fn write(&self, binding: usize, bytes: &[u8]) -> Result<()> {
        let (buffer, bound) = &self.step.bound[binding];
        if bytes.len() as u64 > *bound {
            return Err(Error::Invalid {
                op: "dispatch",
                what: format!("{} bytes for a binding of {bound}", bytes.len()),
            });
        }
        self.context.write(buffer, 0, bytes)
    }

    /// Returns the binding that has the buffer of `tensor`, if there is one.
    pub fn binding_of(&self, tensor: &dyn Bind) -> Option<usize> {
        let id = tensor.bound().id();
        self.buffers().into_iter().position(|buffer| buffer == id)
    }
}

/// Work that was submitted to the GPU. Await it, wait for it, or drop it: it runs all the same, and
/// reads wait for all work submitted before them.
pub struct Submission {
    context: Context,
    index: wgpu::SubmissionIndex,
}

impl Submission {
    /// Blocks until the work is done.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::WaitLimit`]; what the device reports.
    pub fn wait(self) -> Result<()> {
        self.context.wait(self.index)
    }
}

/// Awaited, it is done; on any executor.
impl IntoFuture for Submission {
    type Output = Result<()>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.context.done(self.index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::single_range_in_vec_init, reason = "lists of ranges, some of one")]
    fn submissions_are_bounded_by_work_and_by_passes() {
        let split = |shares: &[f64], most| split(shares.iter().copied(), most);
        assert_eq!(split(&[], 9), vec![0..0]);
        assert_eq!(split(&[0.5, 0.5, 0.1, 0.1], 9), [0..2, 2..4]);
        assert_eq!(
            split(&[3.0, 0.0, 1.5, 0.2], 9),
            [0..1, 1..2, 2..3, 3..4],
            "what is too much alone stays alone"
        );
        assert_eq!(split(&[0.0; 7], 3), [0..3, 3..6, 6..7]);
        assert_eq!(split(&[0.0; 7], usize::MAX), vec![0..7]);
    }
}
