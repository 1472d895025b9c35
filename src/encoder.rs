//! Recording work and running it: one submission, one compute pass.

use crate::{
    Bind, Context, Element, ElementType, Error, Kernel, Result, Tensor,
    kernel::{Access, Params, Type},
    pipeline::Pipeline,
    pool::Pooled,
    tensor::Bound,
};
use std::sync::Arc;

/// Records dispatches. Shapes and bindings are checked as they are recorded; nothing runs before [`Encoder::submit`].
pub struct Encoder {
    context: Context,
    label: &'static str,
    steps: Vec<Step>,
}

pub(crate) struct Step {
    pub kernel: &'static Kernel,
    pipeline: Arc<Pipeline>,
    bind_group: wgpu::BindGroup,
    params: Vec<u8>,
    workgroups: [u32; 3],
    extent: [usize; 3],
    floats: Vec<(&'static str, Element)>,
    /// The buffers, and how many bytes of each are bound. Keeps them out of the pool while this work may still be submitted.
    bound: Vec<(Arc<Pooled>, u64)>,
}

impl Encoder {
    pub(crate) fn new(context: Context, label: &'static str) -> Self {
        Self { context, label, steps: Vec::new() }
    }

    /// The context that it records for.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// How many dispatches are recorded.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Is nothing recorded?
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Records one kernel over `extent` outputs; its tile turns them into workgroups. An empty extent records nothing.
    ///
    /// # Errors
    /// [`Error::Signature`], [`Error::ElementType`], [`Error::Aliasing`], [`Error::OtherDevice`] for what is bound,
    /// [`Error::Grid`] for an extent that is too large, [`Error::Shader`] or [`Error::MissingFeature`] if it cannot run here.
    pub fn dispatch<P: Params>(&mut self, kernel: &'static Kernel, params: &P, bindings: &[&dyn Bind], extent: [usize; 3]) -> Result<()> {
        if P::FIELDS != kernel.params {
            let (expected, found) = (format!("{:?}", kernel.params), format!("{:?}", P::FIELDS));
            return Err(Error::Signature { kernel: kernel.name, what: "params", expected, found });
        }
        let bound: Vec<_> = bindings.iter().map(|binding| binding.bound()).collect();
        let floats = check_bindings(kernel, &self.context, &bound)?;
        if extent.contains(&0) {
            return Ok(());
        }
        let limit = self.context.capabilities().max_workgroups;
        let grid = kernel.grid(self.context.language(), extent, limit);
        if grid.iter().any(|&n| n > u64::from(limit)) {
            return Err(Error::Grid { kernel: kernel.name, grid, limit });
        }
        let pipeline = self.context.pipeline(kernel, floats.clone())?;
        let entry = |(binding, b)| wgpu::BindGroupEntry { binding, resource: Bound::resource(b) };
        let entries: Vec<_> = (0u32..).zip(&bound).map(entry).collect();
        let descriptor = wgpu::BindGroupDescriptor { label: Some(kernel.name), layout: &pipeline.layout, entries: &entries };
        let device = self.context.device();
        let bind_group =
            crate::context::guarded(device, || format!("binding `{}`", kernel.name), || device.create_bind_group(&descriptor))?;
        self.steps.push(Step {
            kernel,
            pipeline,
            bind_group,
            params: bytemuck::bytes_of(params).to_vec(),
            workgroups: grid.map(|n| n as u32),
            extent,
            floats,
            bound: bound.iter().map(|b| (b.buffer.clone(), b.bytes)).collect(),
        });
        Ok(())
    }

    /// Ends the recording, to be run any number of times.
    pub fn finish(self) -> Recording {
        Recording { context: self.context, label: self.label, steps: self.steps }
    }

    /// Runs what is recorded, once: `finish().submit()`.
    pub fn submit(self) -> Result<Submission> {
        self.finish().submit()
    }
}

/// The number and types of the tensors, their device, and that none is written under two names. Returns the types behind the
/// kernel's aliases.
fn check_bindings(kernel: &'static Kernel, context: &Context, bound: &[Bound<'_>]) -> Result<Vec<(&'static str, Element)>> {
    let name = kernel.name;
    if bound.len() != kernel.bindings.len() {
        let (expected, found) = (format!("{} tensors", kernel.bindings.len()), bound.len().to_string());
        return Err(Error::Signature { kernel: name, what: "bindings", expected, found });
    }
    let mut floats: Vec<(&'static str, Element)> = Vec::new();
    for (i, (binding, b)) in kernel.bindings.iter().zip(bound).enumerate() {
        if !b.context.same_device(context) {
            return Err(Error::OtherDevice { kernel: name, binding: binding.name });
        }
        let mismatch = |expected| Err(Error::ElementType { kernel: name, binding: binding.name, expected, found: b.element });
        match (binding.ty, b.element) {
            (Type::U32, Element::U32 | Element::I8) | (Type::I32, Element::I32) | (Type::F32, Element::F32) => {}
            (Type::U32, _) => return mismatch("u32 words"),
            (Type::I32, _) => return mismatch("i32"),
            (Type::F32, _) => return mismatch("f32"),
            (Type::Float(alias), element @ (Element::F32 | Element::F16)) => match floats.iter().find(|(known, _)| *known == alias) {
                Some(&(_, first)) if first != element => return mismatch("the float type of an earlier binding"),
                Some(_) => {}
                None => floats.push((alias, element)),
            },
            (Type::Float(_), _) => return mismatch("f32 or f16"),
        }
        for (j, (other, o)) in kernel.bindings.iter().zip(bound).enumerate() {
            if i != j && binding.access == Access::ReadWrite && Arc::ptr_eq(b.buffer, o.buffer) {
                return Err(Error::Aliasing { kernel: name, written: binding.name, other: other.name });
            }
        }
    }
    Ok(floats)
}

/// Recorded work: plain data that can be run again and again. It holds on to the buffers it names.
pub struct Recording {
    pub(crate) context: Context,
    pub(crate) label: &'static str,
    pub(crate) steps: Vec<Step>,
}

impl Recording {
    /// Runs it once: one command encoder, one compute pass, one submission. Dispatches see the results of earlier ones.
    pub fn submit(&self) -> Result<Submission> {
        let index = self.context.submit_with(self.label, |encoder| {
            let descriptor = wgpu::ComputePassDescriptor { label: Some(self.label), timestamp_writes: None };
            encode(&self.steps, 1, &mut encoder.begin_compute_pass(&descriptor));
        })?;
        Ok(Submission { context: self.context.clone(), index })
    }

    /// Runs it once and copies `tensor` back, in one submission. What is written to tensors before (the next token's position, say) is seen
    /// by it. The future can be awaited on any executor, later than other submissions, or dropped.
    ///
    /// # Errors
    /// [`Error::OtherDevice`] for a tensor of another device; what the device reports.
    pub fn submit_read<T: ElementType>(&self, tensor: &Tensor<T>) -> Result<impl Future<Output = Result<Vec<T>>> + Send + use<T>> {
        if !tensor.context().same_device(&self.context) {
            return Err(Error::OtherDevice { kernel: self.label, binding: "the tensor to read" });
        }
        Ok(tensor.read_after(self.label, &|encoder| {
            let descriptor = wgpu::ComputePassDescriptor { label: Some(self.label), timestamp_writes: None };
            encode(&self.steps, 1, &mut encoder.begin_compute_pass(&descriptor));
        }))
    }

    /// The recorded dispatches, in order, as plain data: to print a plan, or to run it elsewhere.
    pub fn dispatches(&self) -> impl Iterator<Item = Dispatch<'_>> {
        self.steps.iter().map(|step| Dispatch { context: &self.context, step })
    }

    /// The recorded kernels, in order.
    pub fn kernels(&self) -> impl Iterator<Item = &'static Kernel> {
        self.steps.iter().map(|step| step.kernel)
    }
}

/// One dispatch of a [`Recording`].
#[derive(Clone, Copy)]
pub struct Dispatch<'a> {
    context: &'a Context,
    step: &'a Step,
}

impl Dispatch<'_> {
    /// The kernel.
    pub fn kernel(&self) -> &'static Kernel {
        self.step.kernel
    }

    /// The bytes of its parameters.
    pub fn params(&self) -> &[u8] {
        &self.step.params
    }

    /// Its outputs, which its tile turns into workgroups.
    pub fn extent(&self) -> [usize; 3] {
        self.step.extent
    }

    /// The element types behind its kernel's aliases.
    pub fn floats(&self) -> &[(&'static str, Element)] {
        &self.step.floats
    }

    /// A number for each of its buffers, in binding order; the same buffer has the same number in every dispatch of a recording.
    pub fn buffers(&self) -> Vec<usize> {
        self.step.bound.iter().map(|(buffer, _)| Arc::as_ptr(buffer).addr()).collect()
    }

    /// Overwrites the start of what is bound. Takes effect before anything that is submitted later.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for more bytes than are bound.
    ///
    /// # Panics
    /// If there is no such binding.
    pub fn write(&self, binding: usize, data: &[u8]) -> Result<()> {
        let (buffer, limit) = &self.step.bound[binding];
        if data.len() as u64 > *limit {
            return Err(Error::TooLarge { what: "data for a binding".into(), bytes: data.len() as u64, limit: *limit });
        }
        self.context.write(buffer, data)
    }

    /// Copies back what is bound, as bytes.
    ///
    /// # Panics
    /// If there is no such binding.
    pub fn read(&self, binding: usize) -> impl Future<Output = Result<Vec<u8>>> + Send + use<> {
        let (buffer, bytes) = &self.step.bound[binding];
        let (bytes, staging) = (*bytes, crate::readback::read_after(self.context, "dispatch", &|_| {}, buffer, *bytes));
        async move { staging.await?.map_or(Ok(Vec::new()), |staging| staging.to_vec(bytes as usize)) }
    }
}

/// Encodes `steps` in order, all of them `times` times.
pub(crate) fn encode(steps: &[Step], times: u32, pass: &mut wgpu::ComputePass<'_>) {
    let mut last = None;
    for _ in 0..times {
        for step in steps {
            step.encode(pass, last);
            last = Some(step);
        }
    }
}

impl Step {
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
        if !self.params.is_empty() && !last.is_some_and(|last| same_pipeline && last.params == self.params) {
            pass.set_immediates(0, &self.params);
        }
        pass.set_bind_group(0, &self.bind_group, &[]);
        pass.dispatch_workgroups(x, y, z);
        if cfg!(debug_assertions) {
            pass.pop_debug_group();
        }
    }
}

/// Work that was handed to the GPU. It can be dropped: reads wait for what was submitted before them.
pub struct Submission {
    context: Context,
    index: wgpu::SubmissionIndex,
}

impl Submission {
    /// Blocks until it is done.
    pub fn wait(self) -> Result<()> {
        let wait = wgpu::PollType::Wait { submission_index: Some(self.index), timeout: None };
        match self.context.device().poll(wait) {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::Gpu { during: "waiting for the GPU".into(), message: error.to_string() }),
        }
    }
}
