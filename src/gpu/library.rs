//! Metal libraries in the folder of compiled kernels: what Apple's tools made of a text, in place of that text. wgpu does not give what a device makes of
//! one, so they are brought there, from a Mac (`scripts/mac-verify`). A file that is not what was written there is not used, which is a line in the log.

use super::cache::{KernelCache, Kind, hash, read, write};
use crate::{
    error::{Error, Result},
    kernel::declaration::{Kernel, Variant},
    language::ShaderLanguage,
    limits::cache::MOST_BYTES,
};
use std::path::{Path, PathBuf};

const LIBRARY: &Kind = b"bitnet-wgpu mtllib 1\n";

/// The system whose libraries this app takes, as [`system`] has it. Where there is no Metal, tests take macOS's.
const SYSTEM: u8 = if cfg!(target_abi = "macabi") {
    6
} else if cfg!(target_os = "ios") {
    if cfg!(target_abi = "sim") { 7 } else { 2 }
} else if cfg!(target_os = "tvos") {
    if cfg!(target_abi = "sim") { 8 } else { 3 }
} else if cfg!(target_os = "visionos") {
    if cfg!(target_abi = "sim") { 12 } else { 11 }
} else {
    1
};

/// As what texts are compiled to libraries.
const STANDARD: &str = "metal3.1";

impl Kernel {
    /// Writes a Metal library, which Apple's tools made of a variant's text, to a folder for
    /// [`ContextOptions::cache`](crate::ContextOptions::cache): on Metal, a context with that folder takes the library in place of the text, which need not
    /// be compiled then. Gives the file, which takes the place of one that was there. The library is
    ///
    /// ```sh
    /// xcrun metal -std=metal3.1 -c KERNEL.metal -o KERNEL.air && xcrun metallib KERNEL.air -o KERNEL.metallib
    /// ```
    ///
    /// of [`Kernel::text`]. `scripts/mac-verify` makes those of all kernels of this crate, with the example `dump_shaders`. They are of one version of this
    /// crate, for any adapter: a library holds AIR, which each driver compiles on. It is for one system, which it names: those for macOS and for iOS
    /// (`xcrun -sdk iphoneos`) are files beside one another, and an app takes its system's. One that wgpu refuses, such as that of a newer version of the system, is
    /// a warning in the log, and the text is used.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a variant in another language, and for what is no Metal library; [`Error::Io`].
    ///
    /// # Safety
    /// The library must be what Apple's tools made of that text: it goes to the driver as it is, and nothing checks what it does.
    #[allow(unsafe_code)]
    pub unsafe fn keep_metal_library(&self, variant: &Variant, library: &[u8], folder: impl AsRef<Path>) -> Result<PathBuf> {
        let invalid = |what: String| Error::Invalid { op: "keep_metal_library", what };
        if variant.language != ShaderLanguage::Msl || self.source(ShaderLanguage::Msl).is_none() {
            return Err(invalid(format!("`{}` has no such text in Metal", self.name)));
        }
        let Some(system) = system(library) else {
            return Err(invalid(format!("what was made of `{}` is no Metal library, or not all of one", self.name)));
        };
        let (path, key) = place(folder.as_ref(), self, &self.text(variant), system);
        write(&path, LIBRARY, key, library)?;
        Ok(path)
    }
}

/// Compiles a kernel: from the library that the folder has of its Metal text, or from the text, where there is none or wgpu refuses it.
pub fn or_text<R>(
    cache: Option<&KernelCache>,
    kernel: &Kernel,
    variant: &Variant,
    text: &str,
    compile: impl Fn(Option<&[u8]>) -> Result<R>,
) -> Result<R> {
    let Some(cache) = cache.filter(|_| variant.language == ShaderLanguage::Msl) else { return compile(None) };
    let (path, key) = place(&cache.folder, kernel, text, SYSTEM);
    let why = match read(&path, LIBRARY, key, MOST_BYTES) {
        Ok(None) => return compile(None),
        Ok(Some(library)) if system(&library) != Some(SYSTEM) => "is no Metal library of this system".into(),
        // Some of what is wrong with a library is known only when a pipeline is made of it.
        Ok(Some(library)) => match compile(Some(&library)) {
            Err(Error::Gpu { message, .. }) => message,
            done => return done.inspect(|_| log::debug!("{}: taken for `{}`", path.display(), kernel.name)),
        },
        Err(why) => why,
    };
    log::warn!("{}: {why}: the kernel's text is compiled", path.display());
    compile(None)
}

/// For Metal, the library if there is one, else the text.
pub fn descriptor<'a>(
    passthrough: wgpu::ShaderModuleDescriptorPassthrough<'a>,
    text: &'a str,
    library: Option<&'a [u8]>,
) -> wgpu::ShaderModuleDescriptorPassthrough<'a> {
    let msl = library.is_none().then(|| text.into());
    wgpu::ShaderModuleDescriptorPassthrough { metallib: library.map(Into::into), msl, ..passthrough }
}

/// Where a folder has the library of a kernel's text, and the hash of all that it rests on, which no adapter or driver is.
fn place(folder: &Path, kernel: &Kernel, text: &str, system: u8) -> (PathBuf, u64) {
    let parts = [env!("CARGO_PKG_VERSION"), STANDARD, &system.to_string(), kernel.name, text];
    let key = hash(parts.map(str::as_bytes).into_iter().flat_map(|part| [part, b"\n"]));
    (folder.join(format!("{key:016x}.metallib")), key)
}

/// The system of a whole library, by the numbers of LLVM's `BinaryFormat/MachO.def`. A library begins with four letters; after seven more bytes comes its system, whose
/// highest bit says that it is of 64 bits, and after four more its length. Apple does not say so: <https://github.com/gfx-rs/naga/wiki/Metallib-file-format>
/// does, and `src/compiler/library.jl` of <https://github.com/JuliaGPU/Metal.jl>, which reads and writes libraries.
fn system(library: &[u8]) -> Option<u8> {
    let whole = library.starts_with(b"MTLB") && library.get(16..24) == Some(&(library.len() as u64).to_le_bytes());
    library.get(11).filter(|_| whole).map(|system| system & 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        gpu::{noop, pipeline::build},
        kernel::{
            binding::{Type::F32, read_write},
            source::{Part, Source},
        },
    };
    use pollster::block_on;
    use std::{
        cell::{Cell, RefCell},
        fs,
    };

    const TEXT: &str = "[[max_total_threads_per_threadgroup(THREADS)]] kernel void one(device float* x [[buffer(0)]]) {}";
    const MSL: &[Part] = &[Part::new("one", TEXT)];

    static ONE: Kernel = Kernel::new("one", &[], &[read_write("x", F32)], &[Source::wgsl(&[]), Source::msl(MSL)]);

    /// What begins as a library does.
    fn stand_in(code: &[u8]) -> Vec<u8> {
        [b"MTLB\x01\x80\x02\0\x07\0\0\x81\x0e\0\0\0", &(24 + code.len() as u64).to_le_bytes()[..], code].concat()
    }

    /// The same of iOS.
    fn of_ios(library: &[u8]) -> Vec<u8> {
        [&library[..11], &[0x82], &library[12..]].concat()
    }

    fn without_its_end(library: &[u8]) -> &[u8] {
        library.split_last().unwrap().1
    }

    fn metal() -> Variant {
        ONE.variants().into_iter().find(|variant| variant.language == ShaderLanguage::Msl).unwrap()
    }

    fn cache(folder: &Path) -> KernelCache {
        KernelCache::new(folder.to_owned(), &wgpu::AdapterInfo::new(wgpu::DeviceType::IntegratedGpu, wgpu::Backend::Metal))
    }

    #[allow(unsafe_code)]
    fn keep(variant: &Variant, library: &[u8], folder: &Path) -> Result<PathBuf> {
        // SAFETY: no driver gets it.
        unsafe { ONE.keep_metal_library(variant, library, folder) }
    }

    thread_local! {
        static TOLD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    struct Logger;

    impl log::Log for Logger {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &log::Record<'_>) {
            if record.level() == log::Level::Warn {
                TOLD.with_borrow_mut(|told| told.push(record.args().to_string()));
            }
        }

        fn flush(&self) {}
    }

    /// What `work` gives, and its warnings.
    fn told<R>(work: impl FnOnce() -> R) -> (R, Vec<String>) {
        let _ = log::set_logger(&Logger);
        log::set_max_level(log::LevelFilter::Warn);
        TOLD.take();
        (work(), TOLD.take())
    }

    /// What Metal gets of the kernel, library or text, and the warnings.
    fn given(cache: Option<&KernelCache>, variant: &Variant) -> (Option<Vec<u8>>, Option<String>, Vec<String>) {
        let text = ONE.text(variant);
        let given = |library: Option<&[u8]>| {
            let descriptor = descriptor(wgpu::ShaderModuleDescriptorPassthrough::default(), &text, library);
            Ok((descriptor.metallib.map(|library| library.to_vec()), descriptor.msl.map(String::from)))
        };
        let (given, told) = told(|| or_text(cache, &ONE, variant, &text, given));
        let (library, msl) = given.unwrap();
        (library, msl, told)
    }

    #[test]
    fn metal_gets_a_sound_library_in_place_of_the_text() {
        let folder = tempfile::tempdir().unwrap();
        let (library, text, cache) = (stand_in(b"code"), ONE.text(&metal()), cache(&folder.path().join("new")));
        let by_text = (None, Some(text.clone()), Vec::new());
        assert_eq!(given(Some(&cache), &metal()), by_text, "there is none");
        let path = keep(&metal(), &library, &cache.folder).unwrap();
        let key = hash([format!("{}\nmetal3.1\n1\none\n{text}\n", env!("CARGO_PKG_VERSION")).as_bytes()]);
        assert_eq!(path, cache.folder.join(format!("{key:016x}.metallib")), "known by version, Metal's, system, name and text");
        assert_eq!(fs::read_dir(&cache.folder).unwrap().count(), 1, "and nothing beside it");
        assert_eq!(given(Some(&cache), &metal()), (Some(library.clone()), None, Vec::new()));
        assert_eq!(given(None, &metal()), by_text);
        // That of another system is beside it.
        let other = keep(&metal(), &of_ios(&library), &cache.folder).unwrap();
        assert_eq!(given(Some(&cache), &metal()), (Some(library.clone()), None, Vec::new()));
        fs::rename(&path, folder.path().join("moved")).unwrap();
        assert_eq!(given(Some(&cache), &metal()), by_text, "no warning");
        fs::rename(folder.path().join("moved"), &path).unwrap();
        fs::remove_file(other).unwrap();

        // It is not that of another language, kernel or text.
        let wgsl = ONE.variants().into_iter().find(|variant| variant.language == ShaderLanguage::Wgsl).unwrap();
        let (beside, key) = place(&cache.folder, &ONE, &ONE.text(&wgsl), SYSTEM);
        write(&beside, LIBRARY, key, &library).unwrap();
        assert_eq!(given(Some(&cache), &wgsl), (None, Some(ONE.text(&wgsl)), Vec::new()));
        static OTHER: Kernel = Kernel::new("other", &[], &[], &[Source::msl(MSL)]);
        for (kernel, text) in [(&OTHER, text.clone()), (&ONE, text + " ")] {
            assert!(!place(&cache.folder, kernel, &text, SYSTEM).0.exists());
        }
    }

    #[test]
    fn what_is_no_sound_library_is_one_warning_and_the_text_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let (library, text, cache) = (stand_in(b"some code"), ONE.text(&metal()), cache(folder.path()));
        let path = keep(&metal(), &library, folder.path()).unwrap();
        let sound = fs::read(&path).unwrap();
        let changed = |at: usize| sound.iter().enumerate().map(|(i, &byte)| if i == at { byte ^ 1 } else { byte }).collect::<Vec<u8>>();
        // As it is written, with other bytes.
        let lying = |library: &[u8]| {
            write(&path, LIBRARY, place(folder.path(), &ONE, &text, SYSTEM).1, library).unwrap();
            fs::read(&path).unwrap()
        };
        let mut wrong: Vec<(String, Vec<u8>)> = vec![
            ("longer".into(), [&sound[..], b"x"].concat()),
            ("a bare library".into(), library.clone()),
            ("a driver's kernel".into(), [b"bitnet-wgpu kernel 1\n", &sound[21..]].concat()),
            ("no library".into(), lying(b"code")),
            ("another format".into(), lying(&[b"MTLX", &library[4..]].concat())),
            ("half a library".into(), lying(without_its_end(&library))),
            ("of another system".into(), lying(&of_ios(&library))),
            ("more than a library".into(), lying(&[&library[..], b"x"].concat())),
        ];
        wrong.extend((0..sound.len()).map(|at| (format!("cut off at {at}"), sound[..at].to_vec())));
        wrong.extend((0..sound.len()).map(|at| (format!("a bit in {at}: of another version, text or code"), changed(at))));
        let by_text = |what: &str| {
            let (given, msl, told) = given(Some(&cache), &metal());
            assert_eq!((given, msl), (None, Some(text.clone())), "{what}");
            assert!(
                told.len() == 1 && told[0].contains(&path.display().to_string()) && told[0].contains("the kernel's text"),
                "{what}: {told:?}"
            );
        };
        for (what, bytes) in wrong {
            fs::write(&path, bytes).unwrap();
            by_text(&what);
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        by_text("a folder");
    }

    #[test]
    fn a_library_that_is_refused_is_one_warning_and_the_text_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let (text, cache) = (ONE.text(&metal()), cache(folder.path()));
        let path = keep(&metal(), &stand_in(b"code"), folder.path()).unwrap();
        let tried = Cell::new(0);
        let refused = |library: Option<&[u8]>| {
            tried.set(tried.get() + 1);
            match library {
                Some(_) => Err(Error::Gpu { during: "compiling".into(), message: "of a newer system".into() }),
                None => Ok("by the text"),
            }
        };
        let (given, warnings) = told(|| or_text(Some(&cache), &ONE, &metal(), &text, refused));
        assert_eq!((given.unwrap(), tried.take()), ("by the text", 2));
        assert!(warnings.len() == 1 && warnings[0].contains("of a newer system"), "{warnings:?}");
        // A device that is gone takes no text either.
        let lost = |_: Option<&[u8]>| {
            tried.set(tried.get() + 1);
            Err::<(), _>(Error::DeviceLost { during: "compiling".into() })
        };
        let (given, warnings) = told(|| or_text(Some(&cache), &ONE, &metal(), &text, lost));
        assert!(matches!(given, Err(Error::DeviceLost { .. })) && tried.take() == 1 && warnings.is_empty(), "{warnings:?}");

        // A device that compiles neither: so it is seen that it was given both.
        let (device, _queue) = block_on(noop::adapter().request_device(&Default::default())).unwrap();
        let (built, warnings) = told(|| build(&device, &ONE, &metal(), Some(&cache)).map(drop));
        assert!(matches!(built, Err(Error::Shader { kernel: "one", language: ShaderLanguage::Msl, .. })), "{built:?}");
        let ours: Vec<_> = warnings.iter().filter(|line| line.contains(&path.display().to_string())).collect();
        assert_eq!(ours.len(), 1, "{warnings:?}");
    }

    #[test]
    fn what_is_no_library_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (library, file) = (stand_in(b"code"), folder.path().join("file"));
        let wgsl = ONE.variants().into_iter().find(|variant| variant.language == ShaderLanguage::Wgsl).unwrap();
        for (variant, library) in [(&metal(), without_its_end(&library)), (&metal(), &[]), (&wgsl, &library)] {
            assert!(matches!(keep(variant, library, folder.path()), Err(Error::Invalid { op: "keep_metal_library", .. })));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        fs::write(&file, "no folder").unwrap();
        assert!(matches!(keep(&metal(), &library, &file), Err(Error::Io { .. })));
    }
}
