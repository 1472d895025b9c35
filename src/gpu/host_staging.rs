//! Bytes that stay in host memory, from which the device copies them into tensors where a recording
//! says so.

use super::{
    context::Context, device::scopes::guarded, memory::pool::Pooled, tensor::Bind,
    transfer::upload::UploadStream,
};
use crate::error::{Error, Result};
use std::sync::Arc;

/// A buffer in host memory that the device copies from, into a tensor. It is not GPU memory, and no
/// limit counts it.
pub struct Hosted {
    from: wgpu::Buffer,
    to: Arc<Pooled>,
    bytes: u64,
}

/// Copies between the dispatches of a recording.
#[derive(Clone)]
pub struct Upload {
    /// What was copied before is read by the next steps, and need not wait for these copies.
    pub ready: Option<Arc<Vec<Hosted>>>,
    pub copies: Arc<Vec<Hosted>>,
}

/// Refuses a device that cannot have them.
pub fn check(context: &Context) -> Result<()> {
    let feature = wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;
    if context.device().features().contains(feature) {
        Ok(())
    } else {
        Err(Error::missing_feature("offloading layers", feature))
    }
}

impl Hosted {
    /// Copies `data` to host memory that the device reaches; the device will copy it to the
    /// beginning of `to`.
    ///
    /// # Errors
    /// [`Error::DeviceUnsupported`] for a device that was not opened for it, by wgpu's
    /// `MAPPABLE_PRIMARY_BUFFERS`; [`Error::Length`] for more than `to` has room for, or what is
    /// not whole words; [`Error::OutOfMemory`].
    pub fn new(context: &Context, data: &[u8], to: &dyn Bind) -> Result<Self> {
        check(context)?;
        let (bytes, to) = (data.len() as u64, to.bound());
        if bytes > to.bytes || !bytes.is_multiple_of(4) {
            return Err(Error::Length { shape: [to.bytes as usize].into(), found: data.len() });
        }
        // Drivers put what the host reads into host memory. What it only writes they may put into
        // the GPU's, where the processor reaches all of that.
        let usage = wgpu::BufferUsages::MAP_READ
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor {
            label: Some("offloaded"),
            size: bytes,
            usage,
            mapped_at_creation: false,
        };
        let device = context.device();
        let from = guarded(
            device,
            || "taking host memory for layers".into(),
            || device.create_buffer(&descriptor),
        )?;
        let mut upload = UploadStream::new(context, &from, false, data.len());
        upload.push(data)?;
        upload.flush()?;
        drop(upload);
        Ok(Self { from, to: to.buffer.clone(), bytes })
    }

    /// How many bytes are copied.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Upload {
    /// Encodes the copies. What was copied before is declared to be read first: so what reads it
    /// needs no barrier after these copies, and may run while they do.
    pub fn encode(&self, encoder: &mut wgpu::CommandEncoder) {
        let state = wgpu::BufferUses::STORAGE_READ_ONLY;
        let ready = self.ready.iter().flat_map(|ready| ready.iter());
        encoder.transition_resources(
            ready.map(|hosted| wgpu::BufferTransition { buffer: &**hosted.to, state }),
            std::iter::empty(),
        );
        for Hosted { from, to, bytes } in &*self.copies {
            to.mark_written();
            encoder.copy_buffer_to_buffer(from, 0, to, 0, *bytes);
        }
    }

    /// The tensors' buffers that it writes.
    pub fn written(&self) -> impl Iterator<Item = &Arc<Pooled>> {
        self.copies.iter().map(|hosted| &hosted.to)
    }
}
