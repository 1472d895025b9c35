//! Results that other implementations recorded, in safetensors files.

use bitnet_wgpu::internals::SafeTensors;
use std::path::Path;

/// A file of recorded tensors.
pub struct Golden(pub SafeTensors);

impl Golden {
    /// Opens a file that must be there.
    pub fn open(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        Self(SafeTensors::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    /// A tensor of floats, or of small integers, as floats.
    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.0.tensor(name).unwrap().to_f32().unwrap()
    }

    /// A tensor of 32-bit integers.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        let tensor = self.0.tensor(name).unwrap();
        tensor.bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }
}
