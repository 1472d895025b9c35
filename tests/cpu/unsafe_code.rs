//! Where `unsafe` code is, how much, and why.

use std::{collections::BTreeMap, fs, path::Path};
use support::repository;

/// Each file with `unsafe` code: uses of `unsafe`, `allow(unsafe_code)`, and the reason.
const LIST: &[(&str, usize, usize, &str)] = &[
    ("cli/src/allocator.rs", 2, 1, "calls of glibc's allocator"),
    ("cli/src/doctor/arithmetic.rs", 1, 1, "Metal source of a probe"),
    ("cli/src/model.rs", 1, 1, "wgpu's token for experimental features, for tensor cores"),
    ("coreml/src/run.rs", 10, 1, "calls of Core ML"),
    ("src/cpu/dense.rs", 3, 2, "vector instructions, after the processor was asked"),
    ("src/cpu/f16_convert.rs", 1, 1, "vector instructions, after the processor was asked"),
    ("src/cpu/prefetch.rs", 1, 1, "prefetch instruction"),
    ("src/cpu/ternary/mod.rs", 5, 1, "vector instructions, after the processor was asked"),
    ("src/cpu/ternary/neon_dot.rs", 2, 2, "an instruction without a stable intrinsic"),
    ("src/cpu/ternary/neon_i8mm.rs", 1, 1, "an instruction without a stable intrinsic"),
    ("src/gpu/device/adapter.rs", 2, 2, "asks Vulkan for memory and matrices"),
    ("src/gpu/compile/cache.rs", 1, 1, "hands compiled kernels to the driver"),
    ("src/gpu/device/capture.rs", 2, 2, "starts and stops a graphics debugger"),
    (
        "src/gpu/device/metal.rs",
        8,
        1,
        "asks Metal for family, memory, messages and captures; takes cached memory from it",
    ),
    ("src/gpu/compile/pipeline.rs", 3, 1, "hands sources to the driver"),
    ("src/gpu/transfer/mapping.rs", 1, 1, "mapped memory as a slice of elements"),
    ("src/kernel/declaration.rs", 2, 2, "unsafe constructors: Metal and SPIR-V of a caller"),
    ("src/kernel/source.rs", 1, 1, "unsafe constructor: Metal of a caller"),
];

/// Uses of `unsafe` and of `allow(unsafe_code)` in a file's code.
fn count(text: &str) -> (usize, usize) {
    let code = || text.lines().map(str::trim_start).filter(|line| !line.starts_with("//"));
    let words = |line: &str| {
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.filter(|word| *word == "unsafe").count()
    };
    let allowed = |line: &&str| line.contains("allow(") && line.contains("unsafe_code");
    (code().map(words).sum(), code().filter(allowed).count())
}

fn collect(folder: &Path, found: &mut BTreeMap<String, (usize, usize)>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            collect(&path, found);
            continue;
        }
        let counts = count(&fs::read_to_string(&path).unwrap());
        if counts != (0, 0) {
            let name = path.strip_prefix(repository("")).unwrap().display().to_string();
            found.insert(name, counts);
        }
    }
}

#[test]
fn unsafe_code_is_where_it_is_listed() {
    let mut found = BTreeMap::new();
    for folder in ["src", "cli/src", "coreml/src", "serve/src", "train/src"] {
        collect(&repository(folder), &mut found);
    }
    let listed: BTreeMap<_, _> =
        LIST.iter().map(|&(file, uses, allowed, _)| (file.to_owned(), (uses, allowed))).collect();
    assert_eq!(found, listed, "uses of `unsafe` and of `allow(unsafe_code)`, by file");
}

#[test]
fn unsafe_code_is_counted() {
    let text =
        "// unsafe\n#[allow(unsafe_code)]\nunsafe fn f() { unsafe { g() } }\nlet unsafely = 1;";
    assert_eq!(count(text), (2, 1));
    assert_eq!(count("    /// let token = unsafe { t() };"), (0, 0));
}
