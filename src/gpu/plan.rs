//! What would be allocated, found out by doing everything else: a context that plans counts the buffers of its tensors, and neither fills them nor records
//! work on them. So an estimate cannot differ from what it is about.

use super::{pool::Pooled, scopes::guarded};
use crate::error::Result;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Bytes by label.
#[derive(Default)]
pub struct Plan(Mutex<BTreeMap<Arc<str>, u64>>);

impl Plan {
    /// Bytes that were asked for under a label.
    #[cfg(feature = "models")]
    pub fn bytes(&self, label: &str) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(label).copied().unwrap_or(0)
    }

    fn add(&self, label: &Arc<str>, bytes: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = all.entry(label.clone()).or_default();
        *sum = sum.saturating_add(bytes);
    }

    /// Counts a buffer; gives a small one in its place.
    pub fn allocate(&self, device: &wgpu::Device, bytes: u64, usage: wgpu::BufferUsages, label: &Arc<str>) -> Result<Arc<Pooled>> {
        self.add(label, bytes);
        // Each is another: kernels may not be given one buffer under two names.
        let stand_in = guarded(
            device,
            || "planning".into(),
            || device.create_buffer(&wgpu::BufferDescriptor { label: Some("plan"), size: 16, usage, mapped_at_creation: false }),
        )?;
        Ok(Arc::new(Pooled::foreign(stand_in)))
    }
}
