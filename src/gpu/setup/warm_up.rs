//! Kernels that are compiled before somebody waits for what they compute.

use crate::{
    error::{Error, Result},
    gpu::{
        compile::pipeline,
        context::Context,
        memory::plan::PlannedKernel,
        recording::{Recording, Step, Submission},
    },
    kernel::declaration::{KernelRef, Variant},
    language::ShaderLanguage,
};
use rayon::prelude::*;

/// Enough for any element that a kernel's buffers are made of: none of them is read.
const BYTES: u64 = 256;

impl Context {
    /// Compiles exactly this variant of a kernel, without a fallback to another language, and drops
    /// the result. For programs that check a device: a dispatch compiles the variant that suits the
    /// device, and keeps it.
    ///
    /// Some drivers, lavapipe among them, generate machine code only at the first dispatch: for
    /// them this covers the front of the compiler.
    ///
    /// # Errors
    /// [`Error::DeviceUnsupported`] where this device cannot run the variant; [`Error::Shader`] where it does not compile.
    #[cfg(feature = "internals")]
    pub fn compile_kernel(&self, kernel: impl Into<KernelRef>, variant: &Variant) -> Result<()> {
        let kernel = kernel.into();
        self.check_needs(kernel.name, &kernel.needs(variant), variant.language)?;
        let subgroups = variant.language == ShaderLanguage::Wgsl
            && variant.subgroups
            && kernel.uses_subgroups();
        if subgroups && !self.capabilities().subgroups {
            return Err(Error::missing_feature(kernel.name, wgpu::Features::SUBGROUP));
        }
        pipeline::build(self.device(), &kernel, variant, None, None).map(drop)
    }

    /// Compiles kernels that are not compiled yet, on the threads of the rayon pool that this is
    /// called in, and submits a dispatch of no workgroups of each of them: some drivers compile at
    /// a kernel's first dispatch.
    pub(crate) fn compile(&self, kernels: &[PlannedKernel]) -> Result<Submission> {
        let most = kernels.iter().map(|planned| planned.kernel.bindings.len()).max().unwrap_or(0);
        let usage = wgpu::BufferUsages::STORAGE;
        let buffers = (0..most)
            .map(|_| Ok((self.allocate(BYTES, usage, "warm-up")?, BYTES)))
            .collect::<Result<Vec<_>>>()?;
        let step = |PlannedKernel { kernel, floats }: &PlannedKernel| {
            let (params, bound) =
                (vec![0; 4 * kernel.params.len()], buffers[..kernel.bindings.len()].to_vec());
            Step::new(self, kernel.clone(), params, [0; 3].into(), floats.clone(), bound)
        };
        let steps = kernels.par_iter().map(step).collect::<Result<_>>()?;
        Recording { context: self.clone(), label: "warm-up", steps, uploads: Vec::new() }.submit()
    }
}
