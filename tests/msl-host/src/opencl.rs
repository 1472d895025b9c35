//! Turns Metal text into C++ for OpenCL with OpenCL kernels, for compilers that emit SPIR-V.

use crate::{
    Error, compiler,
    rewrite::{Argument, Kernel, Parameter, rewrite},
};
use std::fmt::Write as _;

/// The macro that must be defined when the source is compiled, with [`headers`] in the include
/// path.
pub const DEFINE: &str = "MSL_SPIRV";

/// A placeholder for threadgroup memory: a function from a variable's number and its size in bytes
/// to its address. It has no body; calls must be replaced in the LLVM IR.
pub const THREADGROUP_MEMORY: &str = "msl_threadgroup_memory";

/// A placeholder that reinterprets a word as two halves. It has no body; calls must be replaced by
/// a bitcast in the LLVM IR.
pub const AS_HALF2: &str = "msl_as_half2";

/// The folder of the headers.
pub fn headers() -> String {
    compiler::support("metal")
}

/// The source for a text. For each kernel it has an OpenCL kernel that calls it, named `opencl_` +
/// the kernel's name.
///
/// # Errors
/// [`Error::Text`] for a kernel parameter without a counterpart in OpenCL, [`Error::Compile`] from
/// the preprocessor.
pub fn source(text: &str) -> Result<String, Error> {
    let metal = compiler::cache_path("opencl", &text, "metal");
    compiler::write(&metal, text)?;
    let unit = rewrite(&compiler::preprocess(&metal)?).map_err(Error::Text)?;
    let mut source = format!("#include <metal.h>\n{}\n", unit.cpp);
    for kernel in &unit.kernels {
        source.push_str(&entry(kernel).map_err(Error::Text)?);
    }
    Ok(source)
}

fn entry(kernel: &Kernel) -> Result<String, String> {
    let (mut parameters, mut arguments) = (Vec::new(), Vec::new());
    for Parameter { name, reference, constant, source } in &kernel.parameters {
        let (space, class) =
            if *constant { ("const __constant", "Constant") } else { ("__global", "Global") };
        match source {
            Argument::Buffer(_) => {
                parameters.push(format!("{space} void* {name}"));
                arguments.push(format!(
                    "msl::{class}{}{{{name}}}",
                    if *reference { "Reference" } else { "" }
                ));
            }
            Argument::Place(attribute) => {
                arguments.push(format!("msl::Place{{{}}}", place(attribute)))
            }
            Argument::Threadgroup => {
                return Err(format!("`{}`: nothing allocates memory for `{name}`", kernel.name));
            }
        }
    }
    let mut text = String::new();
    if let Some(threads) = kernel.max_threads {
        let _ = write!(text, "__attribute__((reqd_work_group_size({threads}, 1, 1))) ");
    }
    let (name, parameters, arguments) = (&kernel.name, parameters.join(", "), arguments.join(", "));
    let _ = writeln!(text, "__kernel void opencl_{name}({parameters}) {{ {name}({arguments}); }}");
    Ok(text)
}

/// The OpenCL expressions for a thread-position attribute: three components, or a scalar in the
/// first.
fn place(attribute: &str) -> String {
    let of =
        |function: &str| format!("uint({function}(0)), uint({function}(1)), uint({function}(2))");
    match attribute {
        "thread_position_in_grid" => of("get_global_id"),
        "threads_per_grid" => of("get_global_size"),
        "thread_position_in_threadgroup" => of("get_local_id"),
        "threads_per_threadgroup" => of("get_local_size"),
        "threadgroup_position_in_grid" => of("get_group_id"),
        "threadgroups_per_grid" => of("get_num_groups"),
        "thread_index_in_threadgroup" => "uint(get_local_id(0)), 0, 0".to_owned(),
        "thread_index_in_simdgroup" => "get_sub_group_local_id(), 0, 0".to_owned(),
        "simdgroup_index_in_threadgroup" => "get_sub_group_id(), 0, 0".to_owned(),
        "simdgroups_per_threadgroup" => "get_num_sub_groups(), 0, 0".to_owned(),
        // Only threads_per_simdgroup is left.
        _ => "32, 0, 0".to_owned(),
    }
}
