//! Checks hand-written Metal for what Apple's compiler refuses.
//!
//! No compiler for Linux reads Metal, so clang reads each text twice, as two languages that are
//! close to it: C++ for OpenCL, which is strict in address spaces, casts and conversions of
//! vectors; and C++14 with clang's address spaces, which is strict in references, `this` and copies
//! of classes. Both see declarations of Metal's standard library as its specification has them
//! (`front/library.txt`). `lint` checks what neither reading can.

mod library;
mod lint;
mod threadgroup;

use crate::{
    Error, compiler,
    text::{Kind, Token, tokens},
};
use library::Library;
use std::{
    collections::{BTreeSet, HashSet},
    fmt::Write as _,
    path::PathBuf,
    process::Command,
    sync::{LazyLock, Mutex},
};

/// Language versions, as `__METAL_VERSION__` has them, in which kernels must compile.
pub const VERSIONS: [u32; 5] = [230, 240, 300, 310, 320];

/// Warnings that are errors here, beside those of `-Wall`.
const CONVERSIONS: &[&str] =
    &["conversion", "float-conversion", "implicit-float-conversion", "shorten-64-to-32"];

/// Checks a Metal text in a language version with the clang that `MSL_CLANG` names (default
/// `clang++-19`).
///
/// # Errors
/// [`Error::Compile`] with all that was found, one line each: `LINE: MESSAGE`.
pub fn check(text: &str, version: u32) -> Result<(), Error> {
    let mut found: BTreeSet<_> = lint::directives(text, Library::get()).into_iter().collect();
    match preprocess(text, version) {
        Ok(expanded) => {
            found.extend(lint::lint(&expanded, version, Library::get()));
            for reading in [Reading::OpenCl, Reading::Cxx] {
                match reading.read(&expanded, version) {
                    Ok(tree) => found.extend(lint::tree(&tree)),
                    Err(Error::Compile { output }) => found.extend(errors(&output)),
                    Err(error) => return Err(error),
                }
            }
        }
        Err(Error::Compile { output }) => found.extend(errors(&output)),
        Err(error) => return Err(error),
    }
    let lines: Vec<_> = found.iter().map(|fault| fault.in_version(version)).collect();
    if lines.is_empty() { Ok(()) } else { Err(Error::Compile { output: lines.join("\n") }) }
}

/// Checks a Metal text in all [`VERSIONS`].
///
/// # Errors
/// [`Error::Compile`] of the first version in which something is found, with that version.
pub fn check_all(text: &str) -> Result<(), Error> {
    for version in versions_to_read(text) {
        check(text, version).map_err(|error| match error {
            Error::Compile { output } => Error::Compile {
                output: format!("in Metal {}.{}:\n{output}", version / 100, version % 100 / 10),
            },
            error => error,
        })?;
    }
    Ok(())
}

/// The first version, and those that declare something new by a name that the text has. In any
/// other version, clang would read the same as in the one before, unless the text itself asks for
/// the version.
fn versions_to_read(text: &str) -> Vec<u32> {
    let tokens = tokens(text);
    let words: HashSet<_> =
        tokens.iter().filter(|token| token.kind == Kind::Word).map(|token| token.text).collect();
    let asks = |token: &Token<'_>| {
        token.text.contains("__METAL_VERSION__") && !token.text.contains("__METAL_VERSION__ < 230")
    };
    let depends = tokens.iter().any(|token| token.kind == Kind::Directive && asks(token));
    let mut before = 0;
    VERSIONS
        .into_iter()
        .filter(|&version| {
            let differs = before == 0
                || depends
                || words.iter().any(|word| Library::get().changes(word, before + 1..=version));
            before = version;
            differs
        })
        .collect()
}

/// A line of a text, and why it is refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fault {
    line: usize,
    what: String,
}

impl Fault {
    /// Writes the fault, and the version that has a name of the library which clang does not know.
    fn in_version(&self, version: u32) -> String {
        let mut text = format!("{}: {}", self.line, self.what);
        let unknown = self.what.contains("undeclared")
            || self.what.contains("no member")
            || self.what.contains("unknown type");
        for name in self.what.split('\'').skip(1).step_by(2).filter(|_| unknown) {
            if let Some(&since) = Library::get().since.get(name).filter(|&&since| since > version) {
                let _ = write!(text, " (needs Metal {}.{})", since / 100, since % 100 / 10);
            }
        }
        text
    }
}

/// Expands a text's own macros.
fn preprocess(text: &str, version: u32) -> Result<String, Error> {
    let mut clang = clang();
    clang.args([
        "-E",
        "-x",
        "c++",
        "-std=c++14",
        "-undef",
        "-nostdinc",
        "-D__METAL__",
        &format!("-D__METAL_VERSION__={version}"),
        "-I",
    ]);
    compiler::run_on(clang.arg(compiler::support("front/include")).arg("-"), text)
}

/// The errors in clang's output.
fn errors(output: &str) -> Vec<Fault> {
    let mut found: Vec<_> = output
        .lines()
        .filter_map(|message| {
            let (place, what) = message.split_once(" error: ")?;
            let line = place.split(':').nth(1)?.parse().ok()?;
            Some(Fault { line, what: what.to_owned() })
        })
        .collect();
    if found.is_empty() {
        found.push(Fault { line: 0, what: output.to_owned() });
    }
    found
}

/// A language as which clang reads Metal.
#[derive(Clone, Copy, Debug)]
enum Reading {
    OpenCl,
    Cxx,
}

impl Reading {
    fn flags(self) -> &'static [&'static str] {
        match self {
            // Without `double`.
            Self::OpenCl => &[
                "-x",
                "clcpp",
                "-cl-std=clc++2021",
                "-cl-no-stdinc",
                "-Xclang",
                "-cl-ext=-cl_khr_fp64,-__opencl_c_fp64,-__opencl_c_device_enqueue,-__opencl_c_program_scope_global_variables",
            ],
            Self::Cxx => &[
                "-x",
                "c++",
                "-std=c++14",
                "-Werror=c++17-extensions",
                "-flax-vector-conversions=none",
            ],
        }
    }

    /// Metal's words in the language.
    fn words(self) -> &'static str {
        match self {
            Self::OpenCl => include_str!("../../front/opencl.h"),
            Self::Cxx => include_str!("../../front/cxx.h"),
        }
    }

    /// Reads preprocessed text. Returns the tree of its syntax where that is asked for, which is in
    /// OpenCL.
    fn read(self, expanded: &str, version: u32) -> Result<String, Error> {
        let mut clang = clang();
        clang
            .args(self.flags())
            .args(COMMON)
            .args(["-fsyntax-only", "-Xclang", "-include-pch", "-Xclang"])
            .arg(self.header(version)?);
        match self {
            Self::OpenCl => compiler::run_on(
                clang.args(["-Wno-everything", "-Xclang", "-ast-dump", "-"]),
                expanded,
            ),
            Self::Cxx => {
                clang.args([
                    "-Wall",
                    "-Werror",
                    "-Wno-unknown-attributes",
                    "-Wno-unused-function",
                    "-Wno-unneeded-internal-declaration",
                ]);
                clang.args(CONVERSIONS.iter().map(|warning| format!("-Werror={warning}")));
                compiler::run_on(clang.arg("-"), &threadgroup::with_static(expanded))
            }
        }
    }

    /// The path of the precompiled declarations.
    fn header(self, version: u32) -> Result<PathBuf, Error> {
        static COMPILING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = COMPILING.lock();
        let text =
            [self.words(), include_str!("../../front/base.h"), &Library::get().header(version)]
                .concat();
        let header = compiler::cache_path(
            &format!("{self:?}-{version}"),
            &(&text, CLANG_VERSION.as_str(), self.flags()),
            "h",
        );
        compiler::cached(&header, |unfinished| compiler::write(unfinished, &text))?;
        compiler::cached(header.with_extension("pch"), |precompiled| {
            let mut clang = clang();
            clang.args(self.flags()).args(COMMON).args([
                "-w",
                "-c",
                "-Xclang",
                "-emit-pch",
                "-Xclang",
                "-fno-pch-timestamp",
                "-o",
            ]);
            // Not an error of the text that is checked.
            let compiled = compiler::run(clang.arg(precompiled).arg(&header));
            compiled
                .map(drop)
                .map_err(|error| Error::Text(format!("declarations of Metal's library: {error}")))
        })
    }
}

const COMMON: &[&str] = &[
    "-target",
    "x86_64-linux-gnu",
    "-nostdinc",
    "-fno-color-diagnostics",
    "-fno-caret-diagnostics",
    "-ferror-limit=0",
];

static CLANG_VERSION: LazyLock<String> =
    LazyLock::new(|| compiler::run(clang().arg("--version")).unwrap_or_default());

fn clang() -> Command {
    Command::new(std::env::var("MSL_CLANG").unwrap_or("clang++-19".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_where_declarations_differ() {
        let start = "#if __METAL_VERSION__ < 230\n#error\n#endif\n";
        assert_eq!(versions_to_read(&format!("{start}float v = simd_sum(x);")), [230]);
        assert_eq!(
            versions_to_read(&format!("{start}threadgroup_barrier(mem_flags::mem_none);")),
            [230, 320]
        );
        assert_eq!(
            versions_to_read("float v = nextafter(x, y) + simd_shuffle_and_fill_up(x, y, 1);"),
            [230, 240, 310]
        );
        assert_eq!(versions_to_read("#if __METAL_VERSION__ >= 310\n#endif"), VERSIONS);
    }
}
