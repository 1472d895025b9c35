//! What Metal reports and wgpu does not: a GPU's family, how much memory to stay within, and the
//! messages of Apple's compiler.

use crate::language::ShaderLanguage;
use std::path::Path;

/// Family and memory of a GPU under Metal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(target_vendor = "apple"),
    allow(dead_code, reason = "only Apple's systems have Metal")
)]
pub struct MetalGpu {
    /// The largest N of the families `MTLGPUFamilyAppleN` that it supports. `None` for GPUs that
    /// are not Apple's.
    pub family: Option<u32>,
    /// Bytes that resources of this process can take without command buffers being paged or
    /// refused: see [`working_set`].
    pub working_set: u64,
    /// Bytes of the resources that this process has on the GPU, the app's own among them.
    pub allocated: u64,
}

impl MetalGpu {
    /// Asks Metal. `None` under other backends.
    pub fn of(adapter: &wgpu::Adapter) -> Option<Self> {
        system::gpu(adapter)
    }

    /// Default memory limit of a context, in bytes: the working set, less what this process has
    /// allocated before. Other processes are not subtracted: Metal does not report them, and
    /// recommends a working set for each process alone.
    pub fn memory_limit(self) -> u64 {
        self.working_set.saturating_sub(self.allocated)
    }
}

/// Bytes of the resources that this process has on the GPU of a device. `None` where Metal does not
/// say it, and under other backends.
pub fn allocated_bytes(device: &wgpu::Device) -> Option<u64> {
    system::allocated_bytes(device)
}

/// The message of Apple's compiler about an MSL source that wgpu has refused: wgpu itself writes it
/// to the log alone. `None` for other languages, and where the source compiles.
pub fn compiler_message(
    device: &wgpu::Device,
    language: ShaderLanguage,
    source: &str,
) -> Option<String> {
    if language == ShaderLanguage::Msl { system::compiler_message(device, source) } else { None }
}

/// A buffer that the processor reads and writes through its caches. wgpu makes one that it may write
/// to as write-combined memory, of which reads take many times as long. `None` for other usages,
/// under other backends, and where there is no memory.
pub fn shared_buffer(
    device: &wgpu::Device,
    descriptor: &wgpu::BufferDescriptor<'_>,
) -> Option<wgpu::Buffer> {
    let both = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::MAP_WRITE;
    if descriptor.usage.contains(both) { system::shared_buffer(device, descriptor) } else { None }
}

/// Begins to write what a device does to a `.gputrace` file, until [`end_capture`].
///
/// # Errors
/// Metal's message, and one under other backends.
pub fn begin_capture(device: &wgpu::Device, file: &Path) -> Result<(), String> {
    system::begin_capture(device, file)
}

/// Ends the capture of [`begin_capture`].
pub fn end_capture() {
    system::end_capture();
}

/// Metal's recommended working set in bytes; two thirds of the physical memory where it recommends
/// none (before iOS 16). Macs with 8 GB recommend two thirds, larger ones up to three quarters.
#[cfg(any(target_vendor = "apple", test))]
fn working_set(recommended: Option<u64>, physical: u64) -> u64 {
    recommended.filter(|&bytes| bytes > 0).unwrap_or(physical / 3 * 2)
}

/// The largest N of `MTLGPUFamilyAppleN` that `supports` confirms. A family's GPUs support those
/// before it, so that a GPU of a family that is newer than this list counts as the last one of the
/// list.
#[cfg(any(target_vendor = "apple", test))]
fn apple_family(supports: impl Fn(u32) -> bool) -> Option<u32> {
    const NEWEST: u32 = 10;
    (1..=NEWEST).rev().find(|&family| supports(family))
}

#[cfg(target_vendor = "apple")]
#[allow(unsafe_code)]
mod system {
    use super::{MetalGpu, apple_family, working_set};
    use objc2::{
        available,
        runtime::{AnyObject, ProtocolObject, Sel},
        sel,
    };
    use objc2_foundation::{NSProcessInfo, NSString, NSURL};
    use objc2_metal::{
        MTLCaptureDescriptor, MTLCaptureDestination, MTLCaptureManager, MTLDevice, MTLGPUFamily,
        MTLResource, MTLResourceOptions,
    };
    use std::path::Path;
    use wgpu::hal::api::Metal;

    type Device = ProtocolObject<dyn MTLDevice>;

    pub fn gpu(adapter: &wgpu::Adapter) -> Option<MetalGpu> {
        // SAFETY: the device is only asked for its properties, while the guard keeps it alive.
        let adapter = unsafe { adapter.as_hal::<Metal>() }?;
        let device = adapter.raw_device();
        let physical = NSProcessInfo::processInfo().physicalMemory();
        Some(MetalGpu {
            family: family(device),
            working_set: working_set(recommended(device), physical),
            allocated: allocated(device).unwrap_or(0),
        })
    }

    pub fn allocated_bytes(device: &wgpu::Device) -> Option<u64> {
        // SAFETY: as above.
        let device = unsafe { device.as_hal::<Metal>() }?;
        allocated(device.raw_device())
    }

    pub fn compiler_message(device: &wgpu::Device, source: &str) -> Option<String> {
        // SAFETY: the device only compiles a source, while the guard keeps it alive; nothing is
        // kept.
        let device = unsafe { device.as_hal::<Metal>() }?;
        let refused = device
            .raw_device()
            .newLibraryWithSource_options_error(&NSString::from_str(source), None)
            .err()?;
        Some(refused.localizedDescription().to_string())
    }

    pub fn shared_buffer(
        device: &wgpu::Device,
        descriptor: &wgpu::BufferDescriptor<'_>,
    ) -> Option<wgpu::Buffer> {
        // SAFETY: as above.
        let metal = unsafe { device.as_hal::<Metal>() }?;
        let buffer = metal.raw_device().newBufferWithLength_options(
            descriptor.size as usize,
            MTLResourceOptions::StorageModeShared,
        )?;
        if let Some(label) = descriptor.label {
            buffer.setLabel(Some(&NSString::from_str(label)));
        }
        // SAFETY: the buffer is new, of this device and size, in memory of the mode that wgpu chooses
        // for this usage; its pages are the system's, which are zeros or this process's own.
        unsafe {
            let buffer = wgpu::hal::metal::Device::buffer_from_raw(buffer, descriptor.size);
            Some(device.create_buffer_from_hal::<Metal>(buffer, descriptor))
        }
    }

    pub fn begin_capture(device: &wgpu::Device, file: &Path) -> Result<(), String> {
        if !available!(macos = 10.15, ios = 13.0, tvos = 13.0, visionos = 1.0) {
            return Err("captures to files need macOS 10.15 or iOS 13".to_owned());
        }
        let path = file.to_str().ok_or("the path is not UTF-8")?;
        // SAFETY: the device is only named as what to capture, while the guard keeps it alive.
        let device = unsafe { device.as_hal::<Metal>() }.ok_or("the backend is not Metal")?;
        let descriptor = MTLCaptureDescriptor::new();
        descriptor.set_capture_device(device.raw_device());
        descriptor.setDestination(MTLCaptureDestination::GPUTraceDocument);
        descriptor.setOutputURL(Some(&NSURL::fileURLWithPath(&NSString::from_str(path))));
        // SAFETY: the manager is shared by design, and may be asked for on any thread.
        let manager = unsafe { MTLCaptureManager::sharedCaptureManager() };
        let started = manager.startCaptureWithDescriptor_error(&descriptor);
        started.map_err(|error| error.localizedDescription().to_string())
    }

    pub fn end_capture() {
        // SAFETY: as above.
        unsafe { MTLCaptureManager::sharedCaptureManager() }.stopCapture();
    }

    fn family(device: &Device) -> Option<u32> {
        if !available!(macos = 10.15, ios = 13.0, tvos = 13.0, visionos = 1.0) {
            return None;
        }
        let first = MTLGPUFamily::Apple1.0;
        apple_family(|family| device.supportsFamily(MTLGPUFamily(first + family as isize - 1)))
    }

    fn recommended(device: &Device) -> Option<u64> {
        answers(device, sel!(recommendedMaxWorkingSetSize))
            .then(|| device.recommendedMaxWorkingSetSize())
    }

    fn allocated(device: &Device) -> Option<u64> {
        answers(device, sel!(currentAllocatedSize)).then(|| device.currentAllocatedSize() as u64)
    }

    /// Whether the device's class has a method. Old systems lack some, and so does the class that
    /// Xcode puts in front of a device for captures.
    fn answers(device: &Device, method: Sel) -> bool {
        AnyObject::class(device.as_ref()).responds_to(method)
    }
}

#[cfg(not(target_vendor = "apple"))]
mod system {
    use super::MetalGpu;
    use std::path::Path;

    pub fn begin_capture(_: &wgpu::Device, _: &Path) -> Result<(), String> {
        Err("the backend is not Metal".to_owned())
    }

    pub fn end_capture() {}

    pub fn gpu(_: &wgpu::Adapter) -> Option<MetalGpu> {
        None
    }

    pub fn allocated_bytes(_: &wgpu::Device) -> Option<u64> {
        None
    }

    pub fn compiler_message(_: &wgpu::Device, _: &str) -> Option<String> {
        None
    }

    pub fn shared_buffer(_: &wgpu::Device, _: &wgpu::BufferDescriptor<'_>) -> Option<wgpu::Buffer> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn working_set_falls_back_to_two_thirds() {
        let m1 = 8192 * MIB;
        assert_eq!(working_set(None, m1) / MIB, 5461);
        assert_eq!(working_set(Some(0), m1) / MIB, 5461);
        assert_eq!(working_set(Some(21_845 * MIB), 32_768 * MIB), 21_845 * MIB);
        assert_eq!(working_set(None, u64::MAX), u64::MAX / 3 * 2);
    }

    #[test]
    fn memory_limit_leaves_out_what_is_allocated() {
        let gpu = MetalGpu { family: Some(7), working_set: 5461 * MIB, allocated: 461 * MIB };
        assert_eq!(gpu.memory_limit(), 5000 * MIB);
        assert_eq!(MetalGpu { allocated: 6000 * MIB, ..gpu }.memory_limit(), 0);
    }

    #[test]
    #[cfg(feature = "models")]
    fn working_set_bounds_models_and_sessions() {
        use crate::{Error, gpu::setup::noop};
        let gpu =
            MetalGpu { family: Some(7), working_set: working_set(None, 8192 * MIB), allocated: 0 };
        let context = noop::context();
        context.limit_memory(gpu.memory_limit());
        let free = context.free_memory().unwrap();
        assert_eq!(
            (free + context.memory_stats().live_bytes) / MIB,
            5461,
            "what a split shares out"
        );
        assert!(context.check_room(free, || "weights".into()).is_ok());
        let refused = context.check_room(free + 1, || "weights".into()).unwrap_err();
        assert!(
            matches!(refused, Error::MemoryLimit { limit, .. } if limit == gpu.working_set),
            "{refused}"
        );
        assert!(refused.to_string().contains("raise the limit"), "{refused}");
    }

    #[test]
    fn largest_supported_family_counts() {
        assert_eq!(apple_family(|family| family <= 7), Some(7));
        assert_eq!(apple_family(|_| true), Some(10));
        assert_eq!(apple_family(|_| false), None);
    }
}
