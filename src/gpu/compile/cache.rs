//! Compiled kernels in a folder: what a driver made of a kernel, in a file of its own, by the name
//! of all that it depends on. A file that is not what was written there is not used, and neither
//! that nor a folder that cannot be written to is more than a line in the log. (`tuning.rs` keeps
//! what was measured in files of the same form.)

use crate::{
    error::{Error, Result, at},
    files::{self, display, read::read_regular},
    gpu::device::scopes::guarded,
    limits::cache::MOST_BYTES,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

/// A file begins with its kind; the hash of its name's origin and that of what follows come next.
pub type Kind = [u8; 21];
const HEADER: usize = size_of::<Kind>() + 16;

const KERNEL: &Kind = b"bitnet-wgpu kernel 1\n";

/// The folder, and which device it is for.
pub struct KernelCache {
    pub folder: PathBuf,
    /// Adapter, driver, and this crate.
    device: String,
    /// Whether the log already says that it cannot be written to.
    warned: AtomicBool,
}

/// A kernel's place in the folder, and the driver's cache for it.
pub struct Cached<'a> {
    cache: &'a KernelCache,
    path: PathBuf,
    key: u64,
    /// How many bytes the folder has.
    found: usize,
    raw: wgpu::PipelineCache,
}

impl KernelCache {
    pub fn new(folder: PathBuf, info: &wgpu::AdapterInfo) -> Self {
        Self { folder, device: identity(info), warned: AtomicBool::new(false) }
    }

    /// The driver's cache for a kernel of this source, with what the folder has of it; `None` where
    /// the driver makes none.
    pub fn open(
        &self,
        device: &wgpu::Device,
        kernel: &'static str,
        text: &[u8],
    ) -> Option<Cached<'_>> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        if let Err(error) = at(&self.folder, check_folder(&self.folder)) {
            self.warn_once(&error);
            return None;
        }
        let key = hash([self.device.as_bytes(), kernel.as_bytes(), b"\n", text]);
        let path = self.folder.join(format!("{key:016x}.kernel"));
        let data = read(&path, KERNEL, key, MOST_BYTES).unwrap_or_else(|why| {
            log::warn!("{}: {why}: the kernel is compiled again", display(&path));
            None
        });
        let known = data.and_then(|data| match create(device, kernel, Some(&data)) {
            Ok(raw) => Some((data.len(), raw)),
            Err(why) => {
                log::warn!("{}: {why}: the kernel is compiled again", display(&path));
                None
            }
        });
        let (found, raw) = known.or_else(|| Some((0, create(device, kernel, None).ok()?)))?;
        Some(Cached { cache: self, path, key, found, raw })
    }

    fn warn_once(&self, error: &Error) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            log::warn!("compiled kernels are not cached: {error}");
        }
    }
}

impl Cached<'_> {
    /// For the pipeline's descriptor.
    pub fn raw(&self) -> &wgpu::PipelineCache {
        &self.raw
    }

    /// Writes what the driver has made, unless it was there: where it has made more, what was there
    /// was not what it needed.
    pub fn keep(self) {
        let fits = |data: &Vec<u8>| (HEADER + data.len()) as u64 <= MOST_BYTES;
        let Some(data) = self.raw.get_data().filter(|data| data.len() > self.found && fits(data))
        else {
            return;
        };
        if let Err(error) = write(&self.path, KERNEL, self.key, &data) {
            self.cache.warn_once(&error);
        }
    }
}

/// What files rest on: an adapter, its driver, and this crate.
pub fn identity(info: &wgpu::AdapterInfo) -> String {
    let wgpu::AdapterInfo { name, vendor, device, driver, driver_info, backend, .. } = info;
    // In debug builds, kernels have bounds checks.
    let (version, checked) = (env!("CARGO_PKG_VERSION"), cfg!(debug_assertions));
    format!(
        "{version} {checked}\n{backend:?}\n{name}\n{vendor:x} {device:x}\n{driver}\n{driver_info}\n"
    )
}

/// Writes a file that [`read`] takes, in a folder that is made where it is not there.
pub fn write(path: &Path, kind: &Kind, key: u64, data: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    at(folder, make_folder(folder))?;
    at(folder, check_folder(folder))?;
    files::write(path, &[&header(kind, key, data)[..], data].concat())
}

/// Makes a folder that nobody else may write to, unless it is there.
fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

/// Refuses a folder that others may write to: a driver runs what is in it.
fn check_folder(folder: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let found = match fs::metadata(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        let (owner, mode) = (found.uid(), found.mode() & 0o777);
        let why = if owner != 0 && owner != rustix::process::geteuid().as_raw() {
            format!("the cache folder belongs to user {owner}; name a folder of your own")
        } else if mode & 0o022 != 0 {
            format!("others may write to the cache folder (mode {mode:o}): run chmod go-w on it")
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }
    #[cfg(not(unix))]
    Ok(())
}

#[allow(unsafe_code)]
fn create(
    device: &wgpu::Device,
    kernel: &'static str,
    data: Option<&[u8]>,
) -> Result<wgpu::PipelineCache> {
    let descriptor = wgpu::PipelineCacheDescriptor { label: Some(kernel), data, fallback: false };
    // SAFETY: `read` has seen that the data is what `keep` wrote, which wgpu gave it, in a folder
    // that nobody else may write to. wgpu itself compares device and driver.
    guarded(
        device,
        || "taking a compiled kernel".into(),
        || unsafe { device.create_pipeline_cache(&descriptor) },
    )
}

/// What was written to a file under this key; `None` where there is no file.
pub fn read(
    path: &Path,
    kind: &Kind,
    key: u64,
    most_bytes: u64,
) -> Result<Option<Vec<u8>>, String> {
    check_folder(path.parent().unwrap_or(path)).map_err(|error| error.to_string())?;
    let mut bytes = match read_regular(path, most_bytes) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(|error| error.to_string())?,
    };
    match bytes.split_at_checked(HEADER) {
        Some((found, data)) if found == header(kind, key, data) => {
            Ok(Some(bytes.split_off(HEADER)))
        }
        _ => Err("is damaged, or of something else".into()),
    }
}

fn header(kind: &Kind, key: u64, data: &[u8]) -> Vec<u8> {
    [&kind[..], &key.to_le_bytes(), &hash([data]).to_le_bytes()].concat()
}

/// FNV-1a: the same in every build.
pub fn hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    parts.into_iter().flatten().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It would wait for ever otherwise, or read until memory ends.
    #[cfg(unix)]
    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let [fifo, long, inner] = ["fifo", "long", "inner"].map(|name| folder.path().join(name));
        files::read::make_fifo(&fifo);
        fs::create_dir(&inner).unwrap();
        for path in [fifo.as_path(), Path::new("/dev/zero"), &inner] {
            assert_eq!(
                read(path, KERNEL, 0, MOST_BYTES).unwrap_err(),
                "is not a regular file",
                "{path:?}"
            );
        }
        fs::write(&long, [0; 101]).unwrap();
        assert!(read(&long, KERNEL, 0, 100).unwrap_err().contains("more than 100 bytes"));
        assert_eq!(read(&folder.path().join("none"), KERNEL, 0, 100), Ok(None));
    }

    #[cfg(unix)]
    #[test]
    fn folders_that_others_may_write_to_are_refused() {
        use std::os::unix::fs::{PermissionsExt as _, chown};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.kernel");
        let refusals = || {
            let written = write(&path, KERNEL, 0, b"data").err().map(|error| error.to_string());
            (written, read(&path, KERNEL, 0, MOST_BYTES).err())
        };
        assert_eq!(refusals(), (None, None));
        for mode in [0o775, 0o757, 0o777] {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
            let (written, read) = refusals();
            assert!(written.unwrap().contains("chmod go-w"), "{mode:o}");
            assert!(read.unwrap().contains(&format!("mode {mode:o}")));
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(refusals(), (None, None));
        // Only root may give a folder away.
        if chown(folder.path(), Some(12_345), None).is_ok() {
            assert!(refusals().1.unwrap().contains("belongs to user 12345"));
        }
    }

    #[test]
    fn files_are_of_one_adapter_and_driver() {
        let info = |change: fn(&mut wgpu::AdapterInfo)| {
            let mut info =
                wgpu::AdapterInfo::new(wgpu::DeviceType::DiscreteGpu, wgpu::Backend::Vulkan);
            change(&mut info);
            hash([identity(&info).as_bytes()])
        };
        let changes: [fn(&mut wgpu::AdapterInfo); 7] = [
            |_| (),
            |info| info.name.push('x'),
            |info| info.vendor = 1,
            |info| info.device = 1,
            |info| info.driver.push('x'),
            |info| info.driver_info.push('x'),
            |info| info.backend = wgpu::Backend::Metal,
        ];
        for (n, change) in changes.iter().enumerate() {
            assert!(changes[..n].iter().all(|other| info(*other) != info(*change)), "change {n}");
        }
    }
}
