//! What has been compiled: a kernel once per variant.

use super::{
    cache::KernelCache,
    pipeline::{Pipeline, build},
};
use crate::{
    error::Result,
    gpu::device::sync::{Arc, Mutex, PoisonError},
    kernel::declaration::{Kernel, KernelRef, Variant},
};
use std::collections::HashMap;

/// A static kernel is known by its address, which is quick to compare; one made at run time by its
/// content.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Static(usize, Variant),
    Content(Arc<Kernel>, Variant),
}

impl Key {
    fn of(kernel: &KernelRef, variant: Variant) -> Self {
        match kernel {
            KernelRef::Static(kernel) => Self::Static(std::ptr::from_ref(*kernel).addr(), variant),
            KernelRef::Shared(kernel) => Self::Content(kernel.clone(), variant),
        }
    }

    fn variant(&self) -> &Variant {
        match self {
            Self::Static(_, variant) | Self::Content(_, variant) => variant,
        }
    }
}

/// Compiled kernels by kernel and variant.
pub struct Pipelines {
    compiled: Mutex<HashMap<Key, Arc<Pipeline>>>,
    /// Where they are kept for the next program.
    cache: Option<KernelCache>,
}

impl Pipelines {
    pub fn new(cache: Option<KernelCache>) -> Self {
        Self { compiled: Mutex::default(), cache }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The pipeline of a kernel's variant, or of the variant that may take its place where its
    /// source does not compile.
    pub fn get(
        &self,
        device: &wgpu::Device,
        kernel: &KernelRef,
        variant: Variant,
        instead: Option<&Variant>,
    ) -> Result<Arc<Pipeline>> {
        let lock = || self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Key::of(kernel, variant);
        // One in the place of another will do only for who takes such.
        let fits = |pipeline: &&Arc<Pipeline>| {
            instead.is_some() || pipeline.language == key.variant().language
        };
        if let Some(pipeline) = lock().get(&key).filter(fits) {
            return Ok(pipeline.clone());
        }
        // Compiled outside the lock: two threads may compile the same kernel, the first to finish
        // is kept.
        let pipeline =
            Arc::new(build(device, kernel, key.variant(), instead, self.cache.as_ref())?);
        Ok(lock().entry(key).or_insert(pipeline).clone())
    }
}
