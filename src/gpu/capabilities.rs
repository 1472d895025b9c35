//! What a device offers, as plain data: kernel choice is a pure function of it.

use crate::{
    kernel::needs::{TensorCore, WGSL_LANES},
    language::ShaderLanguage,
    tuning::{Family, Tuning, TuningKey},
    visibility::internal_fields,
};

internal_fields! {
    /// What a device offers, which decides how kernels are chosen.
    #[derive(Clone, Debug, PartialEq)]
    #[non_exhaustive]
    pub struct Capabilities {
        /// The adapter's name.
        pub adapter: String,
        /// The driver's name and version.
        pub driver: String,
        /// Metal, Vulkan, ...
        pub backend: wgpu::Backend,
        /// A software adapter: lavapipe or SwiftShader, which run kernels on the CPU.
        pub software: bool,
        /// The kernel languages that run here.
        pub languages: &'static [ShaderLanguage],
        /// `f16` in shaders and in storage buffers.
        pub f16: bool,
        /// The largest storage binding, in bytes.
        pub max_binding_bytes: u64,
    }
    internals {
        /// An Apple GPU, under Metal or Vulkan.
        apple: bool,
        /// Subgroup operations, on subgroups of 8 to 64 lanes.
        subgroups: bool,
        /// Tensor cores that BitLinear of many tokens, attention and f16 products use. None unless the device was opened with wgpu's experimental feature for them:
        /// [`ContextOptions::experimental`](crate::ContextOptions::experimental) says how.
        tensor_cores: Vec<TensorCore>,
        /// Whether kernels in SPIR-V may work with single elements of a matrix: no specification says
        /// which a lane has. Measured on the device when a context is made.
        matrix_elements: bool,
        /// Whether `dot4I8Packed` is faster than float arithmetic. Apple GPUs and software adapters
        /// have no such instruction.
        fast_packed_dot: bool,
        /// Whether an f16 subnormal keeps its value when widened. Measured on the device when a
        /// context is made.
        f16_subnormals: bool,
        /// Whether `fma` rounds once: Vulkan lets it round the product too. Measured on the device
        /// when a context is made.
        fused_multiply_add: bool,
        /// Whether a WGSL `storageBarrier` orders memory for the whole device, and not for its
        /// workgroup alone. As naga translates it for Vulkan it does.
        device_barriers: bool,
        /// Timestamps at the bounds of a compute pass, which were seen to move.
        timestamps: bool,
        /// Whether the processor writes uploads of 64 KiB and more to new memory in place. It does
        /// where memory is shared, on devices with wgpu's `MAPPABLE_PRIMARY_BUFFERS`. Elsewhere, and
        /// in memory that is reused, the device copies them.
        writes_in_place: bool,
        /// Whether all tensors are in memory that the processor reads and writes in place, as
        /// `Tensor::map` does: on Apple GPUs and software adapters, where that is how all memory is.
        maps_in_place: bool,
        /// The most workgroups in one dimension of a dispatch.
        max_workgroups: u32,
        /// The most threads of a workgroup.
        max_workgroup_threads: u32,
        /// The most bytes of workgroup memory of a workgroup.
        max_workgroup_bytes: u32,
        /// The most work of one submission, about 100 ms of the slowest GPU of the kind. Systems stop
        /// work that takes long on a GPU that also draws the screen: Apple's and integrated ones.
        /// `None` for others, whose work is submitted as it comes.
        submission_limit: Option<SubmissionLimit>,
        /// What was measured on this device, in place of the numbers of its family; nothing unless the
        /// folder of [`ContextOptions::kernel_cache`](crate::ContextOptions::kernel_cache) has it, or
        /// `Context::restricted` sets it.
        tuning: Tuning,
    }
}

impl Capabilities {
    /// Those of an adapter or a device, with kernels in MSL or without.
    pub(crate) fn of(
        info: &wgpu::AdapterInfo,
        features: wgpu::Features,
        limits: &wgpu::Limits,
        matrices: &Matrices,
        msl: bool,
    ) -> Self {
        let metal = info.backend == wgpu::Backend::Metal;
        let apple = is_apple(info);
        // wgpu states 4 to 64 lanes for all of Metal; Apple GPUs have 32, GPUs of old Macs have
        // others.
        let lanes = if metal && apple { 32 } else { info.subgroup_min_size };
        let writes_in_place = unified_memory(info.device_type, apple) == Some(true)
            && features.contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS);
        let software = info.device_type == wgpu::DeviceType::Cpu;
        Self {
            adapter: info.name.clone(),
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
            backend: info.backend,
            software,
            apple,
            languages: if msl {
                &[ShaderLanguage::Wgsl, ShaderLanguage::Msl]
            } else {
                &[ShaderLanguage::Wgsl]
            },
            subgroups: features.contains(wgpu::Features::SUBGROUP)
                && lanes >= WGSL_LANES[0]
                && info.subgroup_max_size <= WGSL_LANES[1],
            f16: features.contains(wgpu::Features::SHADER_F16),
            tensor_cores: tensor_cores(info, features, limits, matrices),
            matrix_elements: false,
            // lavapipe expands it: what multiplies f16 or two numbers at once is faster
            // (benches/notes/measurements.md).
            fast_packed_dot: !apple && !software,
            f16_subnormals: false,
            fused_multiply_add: false,
            device_barriers: info.backend == wgpu::Backend::Vulkan,
            timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
            writes_in_place,
            maps_in_place: writes_in_place && (apple || software),
            // Whole words, and as many as 32-bit indices reach: kernels, and the casts of their
            // parameters, rest on it.
            max_binding_bytes: limits
                .max_storage_buffer_binding_size
                .min(limits.max_buffer_size)
                .min(u32::MAX.into())
                & !3,
            max_workgroups: limits.max_compute_workgroups_per_dimension,
            max_workgroup_threads: limits.max_compute_invocations_per_workgroup,
            max_workgroup_bytes: limits.max_compute_workgroup_storage_size,
            submission_limit: SubmissionLimit::of(info.device_type, apple),
            tuning: Tuning::default(),
        }
    }

    /// Returns these capabilities as `change` leaves them, without any that were not there before.
    #[cfg(feature = "internals")]
    pub(crate) fn restricted(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut new = self.clone();
        change(&mut new);
        new.languages = self.languages;
        new.backend = self.backend;
        new.subgroups &= self.subgroups;
        new.device_barriers &= self.device_barriers;
        new.f16 &= self.f16;
        new.tensor_cores.retain(|core| self.tensor_cores.contains(core));
        new.matrix_elements &= self.matrix_elements;
        new.timestamps &= self.timestamps;
        new.writes_in_place &= self.writes_in_place;
        new.maps_in_place &= self.maps_in_place;
        new.f16_subnormals &= self.f16_subnormals;
        new.fused_multiply_add &= self.fused_multiply_add;
        new.max_binding_bytes = new.max_binding_bytes.min(self.max_binding_bytes);
        new.max_workgroups = new.max_workgroups.clamp(1, self.max_workgroups);
        new.max_workgroup_threads = new.max_workgroup_threads.min(self.max_workgroup_threads);
        new.max_workgroup_bytes = new.max_workgroup_bytes.min(self.max_workgroup_bytes);
        new
    }

    /// Capabilities of an Apple M1 or of a discrete GPU.
    #[cfg(test)]
    pub(crate) fn example(apple: bool) -> Self {
        Self {
            adapter: if apple { "Apple M1" } else { "a discrete GPU" }.to_owned(),
            driver: String::new(),
            backend: if apple { wgpu::Backend::Metal } else { wgpu::Backend::Vulkan },
            software: false,
            apple,
            languages: if apple {
                &[ShaderLanguage::Wgsl, ShaderLanguage::Msl]
            } else {
                &[ShaderLanguage::Wgsl]
            },
            subgroups: true,
            f16: true,
            tensor_cores: Vec::new(),
            matrix_elements: false,
            fast_packed_dot: !apple,
            f16_subnormals: true,
            fused_multiply_add: true,
            device_barriers: !apple,
            timestamps: true,
            writes_in_place: apple,
            maps_in_place: apple,
            max_binding_bytes: (2 << 30) - 4,
            max_workgroups: 65_535,
            max_workgroup_threads: 1024,
            max_workgroup_bytes: 32_768,
            submission_limit: apple.then_some(SubmissionLimit::APPLE),
            tuning: Tuning::default(),
        }
    }

    /// A number that kernels are chosen by: the device's own where it was measured, else that of
    /// its family.
    pub fn tuned(&self, key: TuningKey) -> usize {
        let family = match (self.software, self.apple) {
            (true, _) => Family::Software,
            (false, true) => Family::Apple,
            (false, false) => Family::Gpu,
        };
        self.tuning.get(key).unwrap_or_else(|| key.on(family)) as usize
    }
}

/// The most work of one submission. Work that takes both is bounded by the sum of its shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubmissionLimit {
    /// Multiply-adds.
    pub multiply_adds: u64,
    /// Bytes that kernels read and write.
    pub bytes: u64,
}

impl SubmissionLimit {
    /// 100 ms of an A14's GPU, the slowest that runs the Metal kernels: four cores that multiply
    /// and add 0.65 · 10^12 times a second at most, of which a matrix product reaches about 40 %,
    /// and 40 GB/s.
    pub(crate) const APPLE: Self = Self { multiply_adds: 25_000_000_000, bytes: 4_000_000_000 };
    /// 100 ms of an integrated GPU with 24 execution units (Intel UHD): 0.2 · 10^12 at most, of
    /// which a product reaches about 25 %, and 15 GB/s.
    const INTEGRATED: Self = Self { multiply_adds: 5_000_000_000, bytes: 1_500_000_000 };

    /// A limit in multiply-adds and bytes.
    pub fn new(multiply_adds: u64, bytes: u64) -> Self {
        Self { multiply_adds, bytes }
    }

    fn of(kind: wgpu::DeviceType, apple: bool) -> Option<Self> {
        match kind {
            _ if apple => Some(Self::APPLE),
            wgpu::DeviceType::IntegratedGpu => Some(Self::INTEGRATED),
            _ => None,
        }
    }

    /// The part of a submission that this work takes.
    pub(crate) fn share(&self, multiply_adds: u64, bytes: u64) -> f64 {
        multiply_adds as f64 / self.multiply_adds.max(1) as f64
            + bytes as f64 / self.bytes.max(1) as f64
    }
}

pub fn is_apple(info: &wgpu::AdapterInfo) -> bool {
    // Honeykrisp, Mesa's Vulkan driver for Apple GPUs, has Mesa's vendor number.
    info.vendor == 0x106b || info.name.starts_with("Apple ")
}

/// Returns whether it works in the memory of the processor. `None` where the system does not say.
pub fn unified_memory(kind: wgpu::DeviceType, apple: bool) -> Option<bool> {
    match kind {
        _ if apple => Some(true),
        wgpu::DeviceType::IntegratedGpu | wgpu::DeviceType::Cpu => Some(true),
        wgpu::DeviceType::DiscreteGpu => Some(false),
        wgpu::DeviceType::VirtualGpu | wgpu::DeviceType::Other => None,
    }
}

/// The matrices that an adapter multiplies.
pub struct Matrices {
    /// Those that wgpu knows.
    pub known: Vec<wgpu::CooperativeMatrixProperties>,
    /// Rows, and products of an output, of those of int8 that it does not.
    pub int8: Vec<[u32; 2]>,
}

/// The tensor cores that kernels here can use. Only Vulkan's: on Metal these products have Metal of their
/// own, and naga 30 writes matrices of 16 × 16 that Metal does not have. Only subgroups of one
/// size: wgpu cannot ask for one.
fn tensor_cores(
    info: &wgpu::AdapterInfo,
    features: wgpu::Features,
    limits: &wgpu::Limits,
    matrices: &Matrices,
) -> Vec<TensorCore> {
    use wgpu::CooperativeScalarType::{F16, F32};
    let needed = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
        | wgpu::Features::SHADER_F16
        | wgpu::Features::SUBGROUP;
    let lanes = info.subgroup_min_size;
    if info.backend != wgpu::Backend::Vulkan
        || !features.contains(needed)
        || lanes != info.subgroup_max_size
    {
        return Vec::new();
    }
    let fits = |matrix: &wgpu::CooperativeMatrixProperties| {
        let square = matrix.m_size == matrix.n_size && matrix.n_size == matrix.k_size;
        square && (matrix.ab_type, matrix.cr_type) == (F16, F32) && !matrix.saturating_accumulation
    };
    let f16s = matrices
        .known
        .iter()
        .filter(|matrix| fits(matrix))
        .map(|matrix| TensorCore::new(matrix.m_size, lanes));
    let spirv = features.contains(wgpu::Features::PASSTHROUGH_SHADERS);
    let int8 = matrices
        .int8
        .iter()
        .filter(|_| spirv)
        .map(|&[size, depth]| TensorCore::int8(size, depth, lanes));
    f16s.chain(int8)
        .filter(|core| core.workgroup_bytes() <= limits.max_compute_workgroup_storage_size)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgpu::DeviceType::{Cpu, DiscreteGpu, IntegratedGpu, Other};

    #[test]
    fn memory_is_the_processors_or_not() {
        assert_eq!(
            [Cpu, IntegratedGpu, DiscreteGpu, Other].map(|kind| unified_memory(kind, false)),
            [Some(true), Some(true), Some(false), None]
        );
        assert_eq!(unified_memory(Other, true), Some(true));
    }

    #[test]
    fn uploads_are_in_place_on_unified_memory() {
        let mappable = wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;
        let of = |kind, features| {
            let info = wgpu::AdapterInfo::new(kind, wgpu::Backend::Vulkan);
            let none = Matrices { known: Vec::new(), int8: Vec::new() };
            let found = Capabilities::of(&info, features, &wgpu::Limits::default(), &none, false);
            [found.writes_in_place, found.maps_in_place]
        };
        assert_eq!(
            [Cpu, IntegratedGpu, DiscreteGpu, Other].map(|kind| of(kind, mappable)),
            [[true; 2], [true, false], [false; 2], [false; 2]]
        );
        let without = of(IntegratedGpu, wgpu::Features::empty());
        assert_eq!(without, [false; 2], "a device that was opened without");
    }
}
