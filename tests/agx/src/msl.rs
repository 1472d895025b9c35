//! Compiles Metal source to OpenCL SPIR-V, by way of C++ for OpenCL: clang, opt and llvm-spirv.

use crate::{
    quads,
    tools::{Tools, run},
};
use msl_host::opencl;
use std::{fmt::Write as _, fs, path::Path};

/// Inline all functions, as Metal's compiler does; otherwise arguments passed by value go through
/// memory.
const INLINE: [&str; 2] = ["-mllvm", "-inline-threshold=1000000"];
/// Unroll loops of constant length, as Metal's compiler does; otherwise local arrays stay in
/// memory.
const UNROLL: [&str; 2] = ["-mllvm", "-unroll-threshold=8000"];
/// Keep 32-bit indices: the load instruction itself adds one to a 64-bit base.
const NARROW: [&str; 2] = ["-mllvm", "-indvars-widen-indvars=false"];

/// Compiles a text of one kernel to `folder/name.spv`.
///
/// # Errors
/// The error output of whichever tool fails.
pub fn to_spirv(tools: &Tools, text: &str, folder: &Path, name: &str) -> Result<(), String> {
    let path =
        |extension: &str| folder.join(format!("{name}.{extension}")).to_string_lossy().into_owned();
    let write = |extension: &str, text: &str| {
        fs::write(path(extension), text).map_err(|e| format!("{}: {e}", path(extension)))
    };
    let read = |extension: &str| {
        fs::read_to_string(path(extension)).map_err(|e| format!("{}: {e}", path(extension)))
    };
    write("clcpp", &opencl::source(text).map_err(|e| e.to_string())?)?;
    let define = format!("-D{}", opencl::DEFINE);
    let mut clang = tools.command("clang");
    clang.args([
        "-x",
        "clcpp",
        "-cl-std=clc++2021",
        "-cl-no-stdinc",
        "-target",
        "spirv64",
        "-Xclang",
        "-cl-ext=-cl_khr_fp64,-__opencl_c_fp64",
    ]);
    // The sources forbid contraction, but the library's `dot`, which most sums of products are, is
    // not theirs to forbid.
    clang.args([
        "-O2",
        "-fno-math-errno",
        "-ffp-contract=fast",
        "-w",
        &define,
        "-I",
        &opencl::headers(),
        "-S",
        "-emit-llvm",
    ]);
    run(clang.args(INLINE).args(UNROLL).args(NARROW).args(["-o", &path("ll"), &path("clcpp")]))?;
    write("local.ll", &with_threadgroup_memory(&read("ll")?)?)?;
    let mut opt = tools.command("opt");
    opt.args([
        "-mtriple=spirv64",
        "-passes=function(infer-address-spaces),default<O3>",
        INLINE[1],
        UNROLL[1],
        NARROW[1],
    ]);
    run(opt.args(["-S", "-o", &path("opt.ll"), &path("local.ll")]))?;
    write("final.ll", &for_translator(&read("opt.ll")?)?)?;
    run(tools.command("opt").args([
        "-mtriple=spirv64",
        "-passes=verify",
        "-o",
        &path("bc"),
        &path("final.ll"),
    ]))?;
    run(tools.command("llvm-spirv").args([
        "--spirv-max-version=1.3",
        "--spirv-ext=-all",
        "-o",
        &path("translated"),
        &path("bc"),
    ]))?;
    let translated =
        fs::read(path("translated")).map_err(|e| format!("{}: {e}", path("translated")))?;
    fs::write(path("spv"), quads::swap(&translated)?).map_err(|e| format!("{}: {e}", path("spv")))
}

/// Replaces each placeholder call for threadgroup memory by a variable.
fn with_threadgroup_memory(ir: &str) -> Result<String, String> {
    let (mut body, mut variables) = (String::new(), std::collections::BTreeMap::new());
    for line in ir.lines() {
        if let Some((result, arguments)) = call(line, opencl::THREADGROUP_MEMORY) {
            let [site, bytes] = arguments[..] else {
                return Err(format!("not two arguments: {line}"));
            };
            let _ = writeln!(
                body,
                "{result} = getelementptr inbounds i8, ptr addrspace(3) @threadgroup_{site}, i64 0"
            );
            variables.insert(site, bytes);
        } else {
            let _ = writeln!(body, "{line}");
        }
    }
    for (site, bytes) in variables {
        let _ = writeln!(
            body,
            "@threadgroup_{site} = internal addrspace(3) global [{bytes} x i8] undef, align 16"
        );
    }
    Ok(body)
}

/// Adapts LLVM IR to the translator: it knows OpenCL's functions by name only if the source is not
/// marked as C++ for OpenCL; loop hints would become OpLoopMerge, which is only valid in structured
/// control flow; and the half2 placeholder becomes a bitcast.
fn for_translator(ir: &str) -> Result<String, String> {
    let mut text = String::new();
    for line in ir.lines().filter(|line| !line.starts_with("!opencl.cxx.version")) {
        let line = line.split_once(", !llvm.loop").map_or(line, |(before, _)| before);
        if let Some((result, arguments)) = call(line, opencl::AS_HALF2) {
            let [word] = arguments[..] else { return Err(format!("not one argument: {line}")) };
            let _ = writeln!(text, "{result} = bitcast i32 {word} to <2 x half>");
        } else {
            let _ = writeln!(text, "{line}");
        }
    }
    Ok(text)
}

/// Parses a call to `function`: its result, and its arguments' values without types and attributes.
fn call<'a>(line: &'a str, function: &str) -> Option<(&'a str, Vec<&'a str>)> {
    let (result, _) = line.split_once(" = ").filter(|_| line.contains("call "))?;
    let (_, rest) = line.split_once(&format!("@{function}("))?;
    // An argument's attributes may contain commas and parentheses: range(i32 0, 193).
    let (mut depth, mut start, mut arguments) = (0, 0, Vec::new());
    for (at, c) in rest.char_indices() {
        match c {
            '(' => depth += 1,
            ')' | ',' if depth == 0 => {
                arguments.extend(rest[start..at].split_whitespace().last());
                start = at + 1;
                if c == ')' {
                    return Some((result, arguments));
                }
            }
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_past_the_attributes_of_arguments() {
        let line = "  %5 = tail call spir_func <2 x half> @msl_as_half2(i32 noundef range(i32 0, 193) %4) #5, !x !{i32 7}";
        assert_eq!(call(line, "msl_as_half2"), Some(("  %5", vec!["%4"])));
        let line = "  %1 = call ptr addrspace(3) @f(i32 noundef 12, i32 noundef 256) #5";
        assert_eq!(call(line, "f"), Some(("  %1", vec!["12", "256"])));
        assert_eq!(call("declare ptr @f(i32 noundef, i32 noundef)", "f"), None);
        assert_eq!(call(line, "g"), None);
    }

    #[test]
    fn threadgroup_memory_becomes_variables() {
        let ir = "  %1 = call ptr addrspace(3) @msl_threadgroup_memory(i32 noundef 12, i32 noundef 256) #5\n  ret void";
        let expected = "  %1 = getelementptr inbounds i8, ptr addrspace(3) @threadgroup_12, i64 0\n  ret void\n\
                        @threadgroup_12 = internal addrspace(3) global [256 x i8] undef, align 16\n";
        assert_eq!(with_threadgroup_memory(ir).unwrap(), expected);
    }

    #[test]
    fn the_translator_gets_bitcasts_and_no_hints() {
        let ir = "!opencl.cxx.version = !{!1}\n  %5 = call <2 x half> @msl_as_half2(i32 range(i32 0, 4) %4)\n  br label %9, !llvm.loop !3";
        assert_eq!(
            for_translator(ir).unwrap(),
            "  %5 = bitcast i32 %4 to <2 x half>\n  br label %9\n"
        );
    }
}
