//! Compiles Metal text to a shared library, and caches it.
//!
//! `CXX` names the compiler; `MSL_HOST_FLAGS` are flags for kernels, `MSL_HOST_RUNTIME_FLAGS` for
//! the runtime.

use crate::{
    Error,
    rewrite::{Argument, Kernel, rewrite},
};
use std::{
    ffi::OsStr,
    fmt::Write as _,
    fs,
    hash::{DefaultHasher, Hasher as _},
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const CACHE: &str = env!("OUT_DIR");
const RUNTIME: &[&str] =
    &["runtime/runtime.h", "runtime/fiber.h", "runtime/guarded.h", "runtime/runtime.cpp"];
const METAL: &[&str] = &[
    "metal/metal.h",
    "metal/vector.h",
    "metal/math.h",
    "metal/threads_host.h",
    "metal/arguments.h",
    "runtime/runtime.h",
    "src/compiler.rs",
    "src/rewrite.rs",
    "src/text.rs",
];

/// The path of a library with `msl_entry`, which runs one thread of the kernel, and `msl_slots`,
/// its number of buffers.
pub fn program(text: &str, entry: &str, threads: u32) -> Result<PathBuf, Error> {
    let (compiler, runtime) = (Compiler::get()?, runtime()?);
    let stem = name(entry, &(text, entry, threads, contents(METAL)?, &compiler.program, &runtime));
    let (metal, cpp) = (Path::new(CACHE).join(format!("{stem}.metal")), format!("{stem}.cpp"));
    cached(format!("{stem}.so"), |library| {
        write(&metal, text)?;
        let unit = rewrite(&preprocess(&metal)?).map_err(Error::Text)?;
        let kernel = unit.kernels.iter().find(|kernel| kernel.name == entry);
        let kernel = kernel.ok_or_else(|| Error::Text(format!("no kernel `{entry}`")))?;
        if kernel.max_threads != Some(threads) {
            let found = kernel.max_threads.map_or("no limit".to_owned(), |n| n.to_string());
            return Err(Error::Text(format!(
                "max_total_threads_per_threadgroup of `{entry}` is {threads}, the text has {found}"
            )));
        }
        write(
            &Path::new(CACHE).join(&cpp),
            &format!("#include \"metal.h\"\n{}\n{}", unit.cpp, wrapper(kernel)),
        )?;
        // A kernel that calls nothing of the runtime must link to it too, since `msl_run` is found
        // through the kernel's library.
        let link = [
            cpp.as_ref(),
            "-Wl,--no-as-needed".as_ref(),
            runtime.as_ref(),
            "-Wl,-rpath,$ORIGIN".as_ref(),
        ];
        compiler.link(
            &compiler.program,
            &[&["-w", "-I", &support("metal")].map(OsStr::new)[..], &link].concat(),
            library,
        )
    })
}

/// Expands a text's own macros. Metal's headers are empty here, so their names stay.
pub fn preprocess(metal: &Path) -> Result<String, Error> {
    let mut command = Compiler::get()?.command();
    command.args([
        "-E",
        "-x",
        "c++",
        "-std=c++17",
        "-undef",
        "-nostdinc",
        "-D__METAL__",
        "-D__METAL_VERSION__=310",
        "-I",
    ]);
    run(command.arg(support("metal")).arg(metal.file_name().unwrap_or_default()))
}

/// Writes `text` to a file of the cache.
pub fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text)
        .map_err(|source| Error::Io { what: format!("writing {}", path.display()), source })
}

/// The path in the cache of a file that depends on `content`.
pub fn cache_path(entry: &str, content: &impl std::hash::Hash, extension: &str) -> PathBuf {
    Path::new(CACHE).join(format!("{}.{extension}", name(entry, content)))
}

/// The path of one of this crate's folders.
pub fn support(folder: &str) -> String {
    format!("{HERE}/{folder}")
}

/// Runs a command in the cache folder and returns its standard output.
pub fn run(command: &mut Command) -> Result<String, Error> {
    run_on(command, "")
}

/// Runs a command in the cache folder on `input`, and returns its standard output.
pub fn run_on(command: &mut Command, input: &str) -> Result<String, Error> {
    // A preloaded sanitizer is meant for the test process, not for the compiler.
    command.current_dir(CACHE).env_remove("LD_PRELOAD").env("LC_ALL", "C");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.spawn().and_then(|mut child| {
        let pipe = child.stdin.take();
        std::thread::scope(|scope| {
            // A command that fails early need not read its input.
            scope.spawn(|| pipe.map(|mut pipe| pipe.write_all(input.as_bytes())));
            child.wait_with_output()
        })
    });
    let output = output.map_err(|source| Error::Io {
        what: format!("running {:?}", command.get_program()),
        source,
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Error::Compile { output: String::from_utf8_lossy(&output.stderr).into_owned() })
}

/// The file name of the library that runs kernels; compiled at most once per process.
fn runtime() -> Result<String, Error> {
    static NAME: OnceLock<Result<String, String>> = OnceLock::new();
    let build = || {
        let compiler = Compiler::get()?;
        let file = format!("{}.so", name("runtime", &(contents(RUNTIME)?, &compiler.runtime)));
        let source = format!("{HERE}/runtime/runtime.cpp");
        // The library must never be unloaded: its signal handler may be called as long as the
        // process lives.
        cached(&file, |library| {
            compiler.link(
                &compiler.runtime,
                &[source.as_ref(), "-Wl,-z,nodelete".as_ref()],
                library,
            )
        })?;
        Ok(file)
    };
    NAME.get_or_init(|| build().map_err(|e: Error| e.to_string()))
        .clone()
        .map_err(|output| Error::Compile { output })
}

/// The C++ compiler and its flags for kernels (`program`) and for the runtime.
struct Compiler {
    path: String,
    program: Vec<String>,
    runtime: Vec<String>,
}

impl Compiler {
    fn get() -> Result<&'static Self, Error> {
        static COMPILER: OnceLock<Result<Compiler, String>> = OnceLock::new();
        COMPILER
            .get_or_init(|| Self::find().map_err(|e| e.to_string()))
            .as_ref()
            .map_err(|e| Error::NoCompiler(e.clone()))
    }

    fn find() -> Result<Self, Error> {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let path =
            Some(variable("CXX")).filter(|path| !path.is_empty()).unwrap_or("c++".to_owned());
        let version = run(Command::new(&path).arg("--version"))?;
        let flags = |more: &[&str], extra: &str| -> Vec<String> {
            let own =
                ["-std=c++17", "-O1", "-fPIC"].iter().chain(more).map(|flag| (*flag).to_owned());
            // Makes the cache depend on the compiler's version.
            let version =
                format!("-DMSL_COMPILER=\"{}\"", version.lines().next().unwrap_or_default());
            own.chain(extra.split_whitespace().map(str::to_owned)).chain([version]).collect()
        };
        // Fused multiply-adds only where the text asks for them, and every half operation rounded.
        let mut exact = vec!["-ffp-contract=off", "-fexcess-precision=16", "-fno-strict-aliasing"];
        if !version.contains("clang") {
            // naga declares arrays of unknown length with length 1, and g++ would assume that loops
            // stop there.
            exact.push("-fno-aggressive-loop-optimizations");
        }
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("f16c") {
            exact.push("-mf16c");
        }
        Ok(Self {
            path,
            program: flags(&exact, &variable("MSL_HOST_FLAGS")),
            runtime: flags(&["-O2"], &variable("MSL_HOST_RUNTIME_FLAGS")),
        })
    }

    fn command(&self) -> Command {
        Command::new(&self.path)
    }

    fn link(&self, flags: &[String], arguments: &[&OsStr], library: &Path) -> Result<(), Error> {
        run(self.command().args(flags).args(arguments).args(["-shared", "-o"]).arg(library))
            .map(drop)
    }
}

/// A file in the cache. If it is missing, `make` creates it under a temporary name, as other
/// processes may want it at the same time.
pub fn cached(
    file: impl AsRef<Path>,
    make: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<PathBuf, Error> {
    let path = Path::new(CACHE).join(file);
    if !path.exists() {
        let unfinished = path.with_extension(format!(
            "{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        make(&unfinished)?;
        fs::rename(&unfinished, &path).map_err(|source| Error::Io {
            what: format!("renaming {}", unfinished.display()),
            source,
        })?;
    }
    Ok(path)
}

/// A file name with the hash of the content that it depends on.
fn name(stem: &str, content: &impl std::hash::Hash) -> String {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("{stem}-{:016x}", hasher.finish())
}

/// The files' contents.
fn contents(files: &[&str]) -> Result<Vec<String>, Error> {
    let read = |file: &&str| fs::read_to_string(format!("{HERE}/{file}"));
    files
        .iter()
        .map(|file| {
            read(file).map_err(|source| Error::Io { what: format!("reading {file}"), source })
        })
        .collect()
}

/// The argument list for calling a kernel, from the variables `place` and `buffers`.
pub fn arguments(kernel: &Kernel) -> String {
    let arguments = kernel.parameters.iter().enumerate().map(|(i, p)| match p.source {
        Argument::Buffer(slot) => {
            format!("msl::{}{{buffers[{slot}]}}", if p.reference { "Reference" } else { "Pointer" })
        }
        Argument::Threadgroup => format!("msl::Shared{{{i}, \"{}\"}}", p.name),
        Argument::Place(place) => format!("msl::Place{{place->{place}}}"),
    });
    arguments.collect::<Vec<_>>().join(", ")
}

/// C++ of the function that calls a kernel for one thread.
fn wrapper(kernel: &Kernel) -> String {
    let slots = kernel
        .parameters
        .iter()
        .filter_map(|p| if let Argument::Buffer(slot) = p.source { Some(slot + 1) } else { None });
    let slots = slots.max().unwrap_or(0);
    let mut text = format!(
        "#line 1 \"arguments of {}\"\nextern \"C\" const unsigned msl_slots = {slots};\n",
        kernel.name
    );
    let _ = write!(
        text,
        "extern \"C\" void msl_entry(const msl_place* place, void* const* buffers) {{\n    {}(",
        kernel.name
    );
    let _ = writeln!(text, "{});\n}}", arguments(kernel));
    text
}
