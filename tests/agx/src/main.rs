//! Compiles every kernel of the catalog for Apple GPUs, without such a GPU, and compares
//! instruction counts with those recorded in counts.md. docs/internals/apple-gpu.md has the background.
//! `scripts/agx-check` sets up the drivers and runs this.

mod budgets;
mod catalog;
mod cost;
mod listing;
mod loops;
mod msl;
mod quads;
mod report;
mod spirv;
mod tools;
mod wgsl;

use bitnet_wgpu::kernel::ShaderLanguage;
use listing::Listing;
use report::Row;
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Mutex,
    thread,
};
use tools::Tools;

/// The page that explains the counts, with what kernels of decoding may cost.
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/internals/apple-gpu.md");
const NOTES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/notes/measurements.md");
/// The counts of all kernels.
const COUNTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/counts.md");
/// The GPUs to compile for, and their product names. The table has the first one's figures.
const GPUS: [(&str, &str); 2] = [("G13G", "M1"), ("G14G", "M2")];
/// Begins the last line that a failing process on the driver prints: its error.
const FAILED: &str = "@@failed ";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        // Processes on the driver, which `check` starts.
        ["compile-wgsl"] => wgsl::compile(&wgsl::catalog()).map_err(|e| format!("{FAILED}{e}")),
        ["compile-wgsl", file] => wgsl::of_file(Path::new(file))
            .and_then(|text| wgsl::compile(&[text]))
            .map_err(|e| format!("{FAILED}{e}")),
        ["compile-spirv", folder] => {
            spirv::compile(Path::new(folder)).map_err(|e| format!("{FAILED}{e}"))
        }
        ["check"] => check(false),
        ["check", "--write"] => check(true),
        ["check", file] => count(Path::new(file)),
        _ => Err("usage: scripts/agx-check [--write | FILE.metal | FILE.wgsl]".to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", error.trim_end());
            ExitCode::FAILURE
        }
    }
}

/// The programs that `scripts/agx-check` has set up.
fn tools() -> Result<Tools, String> {
    let prefix = std::env::var("AGX_PREFIX")
        .map_err(|_| "AGX_PREFIX is not set; scripts/agx-check sets it")?;
    Ok(Tools(PathBuf::from(prefix)))
}

/// Counts one kernel's source in a file, as `examples/dump_shaders` writes them: for whoever changes
/// one. Prints its line of the table, without what a turn does, and where the disassembly is.
fn count(file: &Path) -> Result<(), String> {
    let (tools, work, name) =
        (tools()?, work_folder()?, file.file_stem().unwrap_or_default().to_string_lossy());
    let folder = work.to_string_lossy();
    let (driver, arguments) = if file.extension().is_some_and(|extension| extension == "metal") {
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        msl::to_spirv(&tools, &text, &work, &name)?;
        ("agx-opencl", ["compile-spirv", &folder])
    } else {
        ("agx-vulkan", ["compile-wgsl", &file.to_string_lossy()])
    };
    let path = work.join(format!("{driver}.log"));
    let (log, error) = tools.on_driver(driver, GPUS[0].0, &arguments, &path)?;
    print!("{}", report::table(&listing::read(&log)?.iter().map(Row::of).collect::<Vec<_>>()));
    println!("{}", path.display());
    error.map_or(Ok(()), Err)
}

fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))
}

fn write_to(path: &str, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("{path}: {e}"))
}

/// The whole check; `write` records the figures.
fn check(write: bool) -> Result<(), String> {
    let (tools, work) = (tools()?, work_folder()?);
    let mut wrong = to_spirv(&tools, &work);
    let (document, counts) = (read(DOCUMENT)?, read(COUNTS)?);
    let recorded = report::read(&counts)?;
    wrong.extend(uncounted(&read(NOTES)?));
    for (i, (gpu, name)) in GPUS.into_iter().enumerate() {
        let found = compile(&tools, &work, gpu, &mut wrong)?;
        wrong.extend(faults(&found.listings).into_iter().map(|fault| format!("{name}: {fault}")));
        let (f16s, floats): (Vec<_>, Vec<_>) =
            found.listings.iter().partition(|listing| catalog::is_of_f16(&listing.kernel));
        let rows: Vec<_> = floats.into_iter().map(Row::of).collect();
        if i == 0 && write && wrong.is_empty() {
            let notes = format!(
                "{}; clang {}. Registers are of 32 bits.\n",
                found.driver,
                tools.clang_version()?
            );
            write_to(COUNTS, &report::write(&counts, &rows, &notes)?)?;
            write_to(
                DOCUMENT,
                &report::replace(&document, budgets::SECTION, &budgets::table(&found.listings))?,
            )?;
            println!("written: {} kernels", rows.len());
        } else if !write {
            let difference = report::compare(&recorded, &rows);
            wrong.extend(difference.worse.into_iter().map(|line| format!("{name}: {line}")));
            difference
                .better
                .into_iter()
                .for_each(|line| println!("{name}: better than recorded: {line}"));
        }
        println!("{name}: {} kernels, and {} in f16, by {}", rows.len(), f16s.len(), found.driver);
        if i == 0 {
            print!("{}", budgets::table(&found.listings));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{}\nIf this is intended, or the compiler has changed: run scripts/agx-check --write, and review the difference.",
        wrong.join("\n")
    ))
}

/// A new folder for intermediate files, which are kept for inspection.
fn work_folder() -> Result<PathBuf, String> {
    let me = std::env::current_exe().map_err(|e| e.to_string())?;
    let folder = me.with_file_name("agx-work");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(folder)
}

/// Compiles all Metal sources to SPIR-V except those for tensor cores; returns the errors.
fn to_spirv(tools: &Tools, work: &Path) -> Vec<String> {
    let kernels = Mutex::new(
        catalog::kernels(ShaderLanguage::Msl).filter(|kernel| !kernel.on_tensor_cores()),
    );
    let next = || kernels.lock().ok()?.next();
    let worker = || {
        let mut wrong = Vec::new();
        while let Some(kernel) = next() {
            if let Err(error) = msl::to_spirv(tools, &kernel.text(), work, &kernel.name()) {
                wrong.push(format!("{}: {error}", kernel.name()));
            }
        }
        wrong
    };
    thread::scope(|scope| {
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        threads
            .into_iter()
            .flat_map(|thread| {
                thread.join().unwrap_or_else(|_| vec!["a thread panicked".to_owned()])
            })
            .collect()
    })
}

/// All kernels, compiled for one GPU.
struct Compiled {
    listings: Vec<Listing>,
    /// The driver's name and version.
    driver: String,
}

fn compile(
    tools: &Tools,
    work: &Path,
    gpu: &str,
    wrong: &mut Vec<String>,
) -> Result<Compiled, String> {
    let mut logs = String::new();
    let folder = work.to_string_lossy();
    for (driver, arguments) in
        [("agx-vulkan", &["compile-wgsl"][..]), ("agx-opencl", &["compile-spirv", &folder])]
    {
        let (log, error) =
            tools.on_driver(driver, gpu, arguments, &work.join(format!("{gpu}-{driver}.log")))?;
        logs += &log;
        wrong.extend(error);
    }
    let driver = logs
        .lines()
        .find_map(|line| line.strip_prefix(wgsl::DRIVER))
        .unwrap_or("no driver")
        .trim()
        .to_owned();
    Ok(Compiled { listings: listing::read(&logs)?, driver })
}

/// Errors for kernels on tensor cores that the notes do not count by hand.
fn uncounted(notes: &str) -> Vec<String> {
    let by_hand = catalog::kernels(ShaderLanguage::Msl).filter(catalog::Text::on_tensor_cores);
    let uncounted = by_hand.filter(|kernel| {
        !notes.contains(&format!("`{}` in Metal is on `simdgroup_matrix`", kernel.declaration.name))
    });
    uncounted
        .map(|kernel| {
            format!(
                "{}: uses simdgroup matrices, and is not counted by hand in the notes",
                kernel.name()
            )
        })
        .collect()
}

/// Faults regardless of the recorded figures: missing kernels, spills, work that is not what is
/// declared, kernels above their limits.
fn faults(listings: &[Listing]) -> Vec<String> {
    let mut faults = Vec::new();
    for kernel in [ShaderLanguage::Wgsl, ShaderLanguage::Msl].into_iter().flat_map(catalog::kernels)
    {
        let name = kernel.name();
        let Some(listing) = listings.iter().find(|listing| listing.kernel == name) else {
            if !kernel.on_tensor_cores() {
                faults.push(format!("{name}: not compiled"));
            }
            continue;
        };
        if listing.spills != (0, 0) && !catalog::may_spill(&kernel) {
            faults.push(format!("{name}: {} spills, {} fills", listing.spills.0, listing.spills.1));
        }
        if !catalog::is_of_f16(&name) {
            faults.extend(report::unlike(listing));
        }
    }
    faults.extend(budgets::faults(listings));
    faults
}
