//! A GPU, and what it offers.

use super::{
    metal::MetalGpu,
    msl::{MslPolicy, MslSupport},
};
use crate::{
    error::Error,
    gpu::capabilities::{Capabilities, Matrices, is_apple, unified_memory},
    kernel::needs::Needs,
    visibility::internal_fields,
};

/// The features that are used where an adapter has them.
pub fn optional_features(adapter: &wgpu::Adapter) -> wgpu::Features {
    let (info, features) = (adapter.get_info(), adapter.features());
    let unified = unified_memory(info.device_type, is_apple(&info)) == Some(true);
    features & if unified { WANTED | wgpu::Features::MAPPABLE_PRIMARY_BUFFERS } else { WANTED }
}

/// Those that any adapter may be asked for.
const WANTED: wgpu::Features = NEEDED
    .features
    .union(wgpu::Features::SUBGROUP)
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::TIMESTAMP_QUERY)
    .union(wgpu::Features::PASSTHROUGH_SHADERS);

/// What a device must offer: see [`Context::REQUIRED`](crate::gpu::context::Context::REQUIRED).
pub const NEEDED: Needs = Needs {
    features: wgpu::Features::IMMEDIATES,
    // What WebGPU promises.
    immediate_bytes: 64,
    storage_buffers: 8,
    threads: 256,
    workgroup_bytes: 16_384,
    ..Needs::NONE
};

internal_fields! {
    /// A GPU as the system offers it, before it is opened.
    #[derive(Clone, Debug)]
    #[non_exhaustive]
    pub struct Adapter {
        /// Its place among the adapters of this system, as
        /// [`ContextOptions::adapter`](crate::ContextOptions::adapter) takes it. It stays the same while drivers and the environment do.
        pub index: usize,
        /// Name, driver, backend, and what kernels may count on. What only an open device shows,
        /// `Capabilities::f16_subnormals`, `fused_multiply_add` and `matrix_elements`, is false here.
        pub capabilities: Capabilities,
        /// Discrete, integrated, a processor, ...
        pub kind: wgpu::DeviceType,
        /// Whether it works in the memory of the processor. `None` where the system does not say.
        pub unified_memory: Option<bool>,
        /// Bytes of its memory, which other programs use too: under Vulkan its largest heap, under
        /// Metal the working set that Metal recommends to one process (`recommendedMaxWorkingSetSize`).
        /// `None` where the system does not say.
        pub memory_bytes: Option<u64>,
        /// What it can do for this crate, to be compared with that of others: the adapter with the most
        /// is taken unless somebody says otherwise. 0 for one that cannot be used.
        pub score: u32,
        /// What gave the score, the most important first.
        pub reasons: Vec<&'static str>,
        /// Why it cannot be used.
        pub refused: Option<String>,
        raw: wgpu::Adapter,
    }
    internals {
        /// Generation of an Apple GPU: 1 for those of M1 to 5 for those of M5. It is read from the
        /// name. Of names without it, such as those of iPhones, it is the first generation of their
        /// [`Adapter::apple_family`]: 1 for A14.
        apple_generation: Option<u32>,
        /// Family of an Apple GPU under Metal, the N of `MTLGPUFamilyAppleN`: 7 for M1 and A14, 8 for
        /// M2 and A15, 9 for M3, M4 and A17, 10 for M5. `None` for other GPUs and backends.
        apple_family: Option<u32>,
        /// Why kernels are compiled from MSL or are not, for people. [`Capabilities::languages`] says
        /// which of both.
        msl_reason: String,
    }
}

impl Adapter {
    /// wgpu's adapter, for an app that opens devices itself: see
    /// [`Context::from_wgpu`](crate::Context::from_wgpu).
    pub fn raw(&self) -> &wgpu::Adapter {
        &self.raw
    }

    pub(super) fn new(
        index: usize,
        raw: wgpu::Adapter,
        experimental: wgpu::ExperimentalFeatures,
        msl: MslPolicy,
    ) -> Self {
        let (info, features, limits) = (raw.get_info(), raw.features(), raw.limits());
        let units = if experimental.is_enabled() {
            wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
        } else {
            wgpu::Features::empty()
        };
        let metal = MetalGpu::of(&raw);
        let used = optional_features(&raw) | features & units;
        let msl = MslSupport::of(info.backend, used, metal).choose(msl);
        let capabilities = Capabilities::of(&info, used, &limits, &matrices(&raw), msl.used);
        let family = metal.and_then(|gpu| gpu.family);
        let refused = lacking(features, &limits).map(|error| error.to_string());
        let low_power = wgpu::PowerPreference::from_env() == Some(wgpu::PowerPreference::LowPower);
        let (score, reasons) = match refused {
            None => score(info.device_type, &capabilities, low_power),
            Some(_) => (0, Vec::new()),
        };
        Self {
            index,
            unified_memory: unified_memory(info.device_type, capabilities.apple),
            memory_bytes: memory_bytes(&raw),
            apple_generation: apple_generation(&info.name, family),
            apple_family: family,
            msl_reason: msl.reason,
            kind: info.device_type,
            capabilities,
            score,
            reasons,
            refused,
            raw,
        }
    }
}

/// What a device of these features and limits lacks.
pub fn lacking(features: wgpu::Features, limits: &wgpu::Limits) -> Option<Error> {
    if !features.contains(NEEDED.features) {
        return Some(Error::missing_feature("bitnet-wgpu", NEEDED.features - features));
    }
    let limit = NEEDED.limits(limits).into_iter().find(|(_, needed, found)| found < needed)?;
    Some(Error::low_limit("bitnet-wgpu", limit))
}

/// The kind decides; what kernels use decides among those of a kind.
fn score(
    kind: wgpu::DeviceType,
    capabilities: &Capabilities,
    low_power: bool,
) -> (u32, Vec<&'static str>) {
    let kind = match kind {
        wgpu::DeviceType::DiscreteGpu => (400, "a discrete GPU"),
        wgpu::DeviceType::IntegratedGpu if low_power => {
            (500, "an integrated GPU, as WGPU_POWER_PREF asks for")
        }
        wgpu::DeviceType::IntegratedGpu => (300, "an integrated GPU"),
        wgpu::DeviceType::VirtualGpu => (200, "a virtual GPU"),
        wgpu::DeviceType::Other => (100, "a device of unknown kind"),
        wgpu::DeviceType::Cpu => (10, "a software adapter"),
    };
    let able = [
        (capabilities.languages.len() > 1, 16, "kernels in Metal"),
        (capabilities.subgroups, 8, "subgroup operations"),
        (capabilities.f16, 4, "f16"),
        (!capabilities.tensor_cores.is_empty(), 2, "tensor cores"),
    ];
    let parts: Vec<_> = [kind]
        .into_iter()
        .chain(able.into_iter().filter(|able| able.0).map(|(_, points, what)| (points, what)))
        .collect();
    (parts.iter().map(|part| part.0).sum(), parts.iter().map(|part| part.1).collect())
}

/// The largest of the heaps that Vulkan calls the device's own. (Others of them may be windows to
/// the same memory.)
#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
#[allow(unsafe_code)]
pub fn memory_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
    const DEVICE_LOCAL: u32 = 1;
    // SAFETY: what wgpu lends is only asked for its properties, while wgpu keeps it alive.
    let memory = unsafe {
        let adapter = adapter.as_hal::<wgpu::hal::api::Vulkan>()?;
        adapter
            .shared_instance()
            .raw_instance()
            .get_physical_device_memory_properties(adapter.raw_physical_device())
    };
    let local = memory
        .memory_heaps_as_slice()
        .iter()
        .filter(|heap| heap.flags.as_raw() & DEVICE_LOCAL != 0);
    local.map(|heap| heap.size).max()
}

/// Metal's recommended working set.
#[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
pub fn memory_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
    Some(MetalGpu::of(adapter)?.working_set)
}

/// The matrices that an adapter multiplies.
pub fn matrices(adapter: &wgpu::Adapter) -> Matrices {
    Matrices { known: adapter.cooperative_matrix_properties(), int8: int8_matrices(adapter) }
}

/// Vulkan is asked, since wgpu leaves these out. Kernels on them are SPIR-V 1.5, of Vulkan 1.2.
#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
#[allow(unsafe_code)]
fn int8_matrices(adapter: &wgpu::Adapter) -> Vec<[u32; 2]> {
    use ash::{khr::cooperative_matrix, vk};
    // What has the extension: its functions are there.
    if !adapter.features().contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX) {
        return Vec::new();
    }
    let (int8, int32) = (vk::ComponentTypeKHR::SINT8, vk::ComponentTypeKHR::SINT32);
    let fits = |matrix: &&vk::CooperativeMatrixPropertiesKHR<'_>| {
        let types = (matrix.a_type, matrix.b_type, matrix.c_type, matrix.result_type)
            == (int8, int8, int32, int32);
        types
            && matrix.m_size == matrix.n_size
            && matrix.scope == vk::ScopeKHR::SUBGROUP
            && matrix.saturating_accumulation == vk::FALSE
    };
    // SAFETY: what wgpu lends is only asked for its properties, while wgpu keeps it alive.
    unsafe {
        let Some(adapter) = adapter.as_hal::<wgpu::hal::api::Vulkan>() else { return Vec::new() };
        let (shared, device) = (adapter.shared_instance(), adapter.raw_physical_device());
        if shared.raw_instance().get_physical_device_properties(device).api_version
            < vk::API_VERSION_1_2
        {
            return Vec::new();
        }
        let extension = cooperative_matrix::Instance::new(shared.entry(), shared.raw_instance());
        let matrices =
            extension.get_physical_device_cooperative_matrix_properties(device).unwrap_or_default();
        matrices.iter().filter(fits).map(|matrix| [matrix.m_size, matrix.k_size]).collect()
    }
}

#[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
fn int8_matrices(_: &wgpu::Adapter) -> Vec<[u32; 2]> {
    Vec::new()
}

/// "Apple M3 Pro" is of the third generation, and so is "Apple M3 (G15G B0)", as Mesa has it. Of
/// other names, the family says it: the first generation that has it, as M3 and M4 share one.
fn apple_generation(name: &str, family: Option<u32>) -> Option<u32> {
    let digits = name
        .strip_prefix("Apple M")
        .and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    digits.and_then(|digits| digits.parse().ok()).or_else(|| match family? {
        7 => Some(1),
        8 => Some(2),
        9 => Some(3),
        10 => Some(5),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgpu::DeviceType::*;

    #[test]
    fn kinds_decide_before_abilities() {
        let (able, plain) = (
            Capabilities::example(true),
            Capabilities { subgroups: false, f16: false, ..Capabilities::example(false) },
        );
        let points = |kind, low_power| {
            [&plain, &able].map(|capabilities| score(kind, capabilities, low_power).0)
        };
        let order: Vec<u32> = [Cpu, Other, VirtualGpu, IntegratedGpu, DiscreteGpu]
            .iter()
            .flat_map(|&kind| points(kind, false))
            .collect();
        assert!(order.is_sorted() && order[0] > 0, "{order:?}");
        assert!(points(IntegratedGpu, true)[0] > points(DiscreteGpu, true)[1]);
        assert_eq!(
            score(IntegratedGpu, &able, false).1,
            ["an integrated GPU", "kernels in Metal", "subgroup operations", "f16"]
        );
    }

    #[test]
    fn generations_of_apple_gpus_are_read_from_names() {
        let names = [
            "Apple M1",
            "Apple M2 Ultra",
            "Apple M3 (G15G B0)",
            "Apple M5 Pro",
            "Apple A17 Pro",
            "Apple Mx",
            "AMD Radeon M4",
            "",
        ];
        assert_eq!(
            names.map(|name| apple_generation(name, None)),
            [Some(1), Some(2), Some(3), Some(5), None, None, None, None]
        );
    }

    #[test]
    fn families_give_generations_of_other_names() {
        let of = |name, family| apple_generation(name, Some(family));
        assert_eq!(
            [5, 6, 7, 8, 9, 10].map(|family| of("Apple A17 Pro GPU", family)),
            [None, None, Some(1), Some(2), Some(3), Some(5)]
        );
        assert_eq!(of("Apple M4 Max", 9), Some(4), "the name is more precise");
    }

    #[test]
    fn missing_device_features_are_named() {
        let (features, limits) =
            (WANTED, wgpu::Limits { max_immediate_size: 64, ..wgpu::Limits::default() });
        assert!(lacking(features, &limits).is_none());
        let said = |error: Option<Error>| error.unwrap().to_string();
        let missing = said(lacking(features - NEEDED.features, &limits));
        assert!(missing.contains("IMMEDIATES"), "{missing}");
        let low = said(lacking(features, &wgpu::Limits { max_immediate_size: 16, ..limits }));
        assert!(
            low.contains("needs max_immediate_size of 64; this device was opened with 16"),
            "{low}"
        );
    }
}
