//! What would be allocated, found out by doing everything else: a context that plans counts the
//! buffers of its tensors, and neither fills them nor records work on them. So an estimate cannot
//! differ from what it is about. What it does note is which kernels the work is of.

use super::pool::Pooled;
use crate::{
    element::Element, error::Result, gpu::device::scopes::guarded, kernel::declaration::KernelRef,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Bytes by label, and kernels.
#[derive(Default)]
pub struct Plan {
    bytes: Mutex<BTreeMap<Arc<str>, u64>>,
    kernels: Mutex<Vec<PlannedKernel>>,
}

/// A kernel that would be dispatched.
#[derive(Clone)]
pub struct PlannedKernel {
    pub kernel: KernelRef,
    /// The element types behind its aliases.
    pub floats: Vec<(&'static str, Element)>,
}

impl Plan {
    /// Bytes that were asked for under a label.
    #[cfg(feature = "models")]
    pub fn bytes(&self, label: &str) -> u64 {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).get(label).copied().unwrap_or(0)
    }

    /// The kernels of all that would have been recorded, each once.
    #[cfg(feature = "models")]
    pub fn kernels(&self) -> Vec<PlannedKernel> {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes a dispatch.
    pub fn dispatch(&self, kernel: KernelRef, floats: Vec<(&'static str, Element)>) {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        // By its place: it is a `static`, or held here.
        if !kernels
            .iter()
            .any(|planned| std::ptr::eq(&*planned.kernel, &*kernel) && planned.floats == floats)
        {
            kernels.push(PlannedKernel { kernel, floats });
        }
    }

    fn add(&self, label: &Arc<str>, bytes: u64) {
        let mut all = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = all.entry(label.clone()).or_default();
        *sum = sum.saturating_add(bytes);
    }

    /// Counts a buffer; gives a small one in its place.
    pub fn allocate(
        &self,
        device: &wgpu::Device,
        bytes: u64,
        usage: wgpu::BufferUsages,
        label: &Arc<str>,
    ) -> Result<Arc<Pooled>> {
        self.add(label, bytes);
        // Each is another: kernels may not be given one buffer under two names.
        let stand_in = guarded(
            device,
            || "planning".into(),
            || {
                device.create_buffer(&wgpu::BufferDescriptor {
                    label: Some("plan"),
                    size: 16,
                    usage,
                    mapped_at_creation: false,
                })
            },
        )?;
        Ok(Arc::new(Pooled::foreign(stand_in)))
    }
}
