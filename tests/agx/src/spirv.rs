//! Builds OpenCL kernels from SPIR-V with Mesa's OpenCL. Runs in a separate process on the driver.

use crate::wgsl::mark;
use libloading::{Library, Symbol};
use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    path::Path,
    ptr::{null, null_mut},
};

type Handle = *mut c_void;

const DEVICE_TYPE_ALL: u64 = 0xffff_ffff;
const DEVICE_NAME: c_uint = 0x102b;
const PROGRAM_BUILD_LOG: c_uint = 0x1183;
const PROGRAM_KERNEL_NAMES: c_uint = 0x1168;

/// Builds the kernel of every `NAME.spv` in a folder. Prints a marker with `NAME` before each, and
/// an empty one after.
///
/// # Errors
/// The errors of OpenCL and the compiler, kernel by kernel.
pub fn compile(folder: &Path) -> Result<(), String> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))? {
        let path = entry.map_err(|e| e.to_string())?.path();
        if path.extension().is_some_and(|extension| extension == "spv") {
            files.push(path);
        }
    }
    files.sort();
    let device = Device::open()?;
    let mut failures = String::new();
    for file in files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if let Err(error) = device.build(&file, &name) {
            failures += &format!("{name}: {error}\n");
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures) }
}

/// The only device of the only platform.
struct Device {
    opencl: Library,
    device: Handle,
    context: Handle,
}

/// Loads OpenCL's function `$name` with its standard signature.
macro_rules! function {
    ($library:expr, $name:literal, fn($($argument:ty),* $(,)?) -> $result:ty $(,)?) => {{
        // SAFETY: the signatures are those of OpenCL 2.1.
        let function: Symbol<unsafe extern "C" fn($($argument),*) -> $result> = unsafe { $library.get($name) }.map_err(|e| e.to_string())?;
        function
    }};
}

impl Device {
    fn open() -> Result<Self, String> {
        // SAFETY: the initializers of OpenCL's loader have no preconditions.
        let opencl = unsafe { Library::new("libOpenCL.so.1") }.map_err(|e| e.to_string())?;
        let platforms =
            function!(opencl, b"clGetPlatformIDs", fn(c_uint, *mut Handle, *mut c_uint) -> c_int);
        let devices = function!(
            opencl,
            b"clGetDeviceIDs",
            fn(Handle, u64, c_uint, *mut Handle, *mut c_uint) -> c_int
        );
        let information = function!(
            opencl,
            b"clGetDeviceInfo",
            fn(Handle, c_uint, usize, *mut c_void, *mut usize) -> c_int
        );
        let create = function!(
            opencl,
            b"clCreateContext",
            fn(
                *const isize,
                c_uint,
                *const Handle,
                *const c_void,
                *const c_void,
                *mut c_int,
            ) -> Handle
        );
        let (mut platform, mut device, mut status, mut name) =
            (null_mut(), null_mut(), 0, [0u8; 256]);
        // SAFETY: every pointer outlives its call, and lengths are those of what they point to.
        let context = unsafe {
            check("clGetPlatformIDs", platforms(1, &mut platform, null_mut()))?;
            check(
                "clGetDeviceIDs",
                devices(platform, DEVICE_TYPE_ALL, 1, &mut device, null_mut()),
            )?;
            check(
                "clGetDeviceInfo",
                information(device, DEVICE_NAME, name.len(), name.as_mut_ptr().cast(), null_mut()),
            )?;
            create(null(), 1, &device, null(), null(), &mut status)
        };
        check("clCreateContext", status)?;
        let name = text(&name);
        if !name.starts_with("Apple ") {
            return Err(format!("the device is not an Apple GPU but {name}"));
        }
        Ok(Self { opencl, device, context })
    }

    fn build(&self, file: &Path, name: &str) -> Result<(), String> {
        let spirv = std::fs::read(file).map_err(|e| e.to_string())?;
        let create = function!(
            self.opencl,
            b"clCreateProgramWithIL",
            fn(Handle, *const u8, usize, *mut c_int) -> Handle
        );
        let build = function!(
            self.opencl,
            b"clBuildProgram",
            fn(Handle, c_uint, *const Handle, *const c_char, *const c_void, *const c_void) -> c_int
        );
        let log = function!(
            self.opencl,
            b"clGetProgramBuildInfo",
            fn(Handle, Handle, c_uint, usize, *mut c_void, *mut usize) -> c_int
        );
        let information = function!(
            self.opencl,
            b"clGetProgramInfo",
            fn(Handle, c_uint, usize, *mut c_void, *mut usize) -> c_int
        );
        let kernel = function!(
            self.opencl,
            b"clCreateKernel",
            fn(Handle, *const c_char, *mut c_int) -> Handle
        );
        let (mut status, mut bytes) = (0, vec![0u8; 1 << 16]);
        // SAFETY: every pointer outlives its call, and lengths are those of what they point to.
        unsafe {
            let program = create(self.context, spirv.as_ptr(), spirv.len(), &mut status);
            check("clCreateProgramWithIL", status)?;
            let built = build(program, 1, &self.device, c"".as_ptr(), null(), null());
            log(
                program,
                self.device,
                PROGRAM_BUILD_LOG,
                bytes.len(),
                bytes.as_mut_ptr().cast(),
                null_mut(),
            );
            check(&format!("clBuildProgram: {}", text(&bytes).trim()), built)?;
            check(
                "clGetProgramInfo",
                information(
                    program,
                    PROGRAM_KERNEL_NAMES,
                    bytes.len(),
                    bytes.as_mut_ptr().cast(),
                    null_mut(),
                ),
            )?;
            let entry = CString::new(text(&bytes)).map_err(|e| e.to_string())?;
            mark(name);
            kernel(program, entry.as_ptr(), &mut status);
            mark("");
        }
        check("clCreateKernel", status)
    }
}

fn check(what: &str, status: c_int) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{what}: OpenCL error {status}")) }
}

/// The text up to the first zero byte.
fn text(bytes: &[u8]) -> String {
    CStr::from_bytes_until_nul(bytes).unwrap_or_default().to_string_lossy().into_owned()
}
