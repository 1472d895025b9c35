//! What a kernel needs of a device.

use crate::element::Element;

/// Lanes of a subgroup that WGSL sources with subgroup operations are written for: no more than the
/// smallest workgroup has threads.
pub const WGSL_LANES: [u32; 2] = [8, 64];
/// Lanes of a SIMD-group that Metal sources are written for.
pub const MSL_LANES: [u32; 2] = [32, 32];

/// Tensor cores: a subgroup of `lanes` threads multiplies matrices of `size` × `depth` and `depth`
/// × `size`, and adds the product to one of `size` × `size`: of f16 to floats, or of int8 to
/// integers of 32 bits. In which order it adds floats, and how it rounds on the way, is its own: no
/// specification says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TensorCore {
    /// What it multiplies: [`Element::F16`] or [`Element::I8`].
    pub element: Element,
    /// Rows and columns of a product: 16 on GPUs of NVIDIA.
    pub size: u32,
    /// Products that make an output of it: 16 of f16, 32 of int8 there.
    pub depth: u32,
    /// Threads of a subgroup, all of which take part.
    pub lanes: u32,
}

impl TensorCore {
    /// Tensor cores for matrices of `size` × `size` f16, and subgroups of `lanes` threads.
    pub const fn new(size: u32, lanes: u32) -> Self {
        Self { element: Element::F16, size, depth: size, lanes }
    }

    /// Tensor cores for matrices of `size` × `depth` int8.
    pub const fn int8(size: u32, depth: u32, lanes: u32) -> Self {
        Self { element: Element::I8, size, depth, lanes }
    }

    /// What this crate's kernels on such tensor cores need of workgroup memory at most. A device with
    /// less is taken for one without them.
    pub(crate) const fn workgroup_bytes(self) -> u32 {
        if self.size == 16 { 46_096 } else { 28_672 }
    }
}

/// What a variant of a kernel needs of a device. A device that lacks something refuses that kernel
/// and no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Needs {
    /// wgpu features, experimental ones (cooperative matrices) among them.
    pub features: wgpu::Features,
    /// Fewest and most lanes of a subgroup, where it uses subgroup operations. A device outside of
    /// them is taken for one without (`Capabilities::subgroups`),
    /// and runs the variant without.
    pub lanes: Option<[u32; 2]>,
    /// A tensor core, where it multiplies on one
    /// (`Capabilities::tensor_cores`).
    pub tensor_core: Option<TensorCore>,
    /// Bytes of immediates.
    pub immediate_bytes: u32,
    /// Storage buffers.
    pub storage_buffers: u32,
    /// Threads of a workgroup.
    pub threads: u32,
    /// Bytes of workgroup memory.
    pub workgroup_bytes: u32,
}

impl Needs {
    /// Its numbers beside the limits of a device: wgpu's name, needed, found.
    pub fn limits(&self, device: &wgpu::Limits) -> [(&'static str, u32, u32); 4] {
        [
            ("max_immediate_size", self.immediate_bytes, device.max_immediate_size),
            (
                "max_storage_buffers_per_shader_stage",
                self.storage_buffers,
                device.max_storage_buffers_per_shader_stage,
            ),
            (
                "max_compute_invocations_per_workgroup",
                self.threads,
                device.max_compute_invocations_per_workgroup,
            ),
            (
                "max_compute_workgroup_storage_size",
                self.workgroup_bytes,
                device.max_compute_workgroup_storage_size,
            ),
        ]
    }

    /// What satisfies both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        let lanes = |a: Option<[u32; 2]>, b: Option<[u32; 2]>| match (a, b) {
            (Some(a), Some(b)) => Some([a[0].max(b[0]), a[1].min(b[1])]),
            (a, b) => a.or(b),
        };
        Self {
            features: self.features | other.features,
            lanes: lanes(self.lanes, other.lanes),
            tensor_core: self.tensor_core.or(other.tensor_core),
            immediate_bytes: self.immediate_bytes.max(other.immediate_bytes),
            storage_buffers: self.storage_buffers.max(other.storage_buffers),
            threads: self.threads.max(other.threads),
            workgroup_bytes: self.workgroup_bytes.max(other.workgroup_bytes),
        }
    }

    /// Nothing.
    pub const NONE: Self = Self {
        features: wgpu::Features::empty(),
        lanes: None,
        tensor_core: None,
        immediate_bytes: 0,
        storage_buffers: 0,
        threads: 0,
        workgroup_bytes: 0,
    };
}
