//! Turns Metal text into CUDA source, to run it on a GPU that runs threads concurrently, in warps
//! of 32 like SIMD-groups.

use crate::{
    Error, compiler,
    rewrite::{Argument, rewrite},
    text::{Kind, tokens},
};

/// Metal's keywords in CUDA. Helper functions must be `static` or operators: others get no
/// `__device__`, and nvcc refuses calls to them.
const WORDS: &[(&str, &str)] = &[
    ("constant", "const"),
    ("device", ""),
    ("kernel", "static __device__"),
    ("operator", "__device__ operator"),
    ("static", "static __device__"),
    ("thread", ""),
    ("threadgroup", ""),
];

/// CUDA source with `extern "C" __global__ void symbol(msl_buffers)`, which runs the kernel `entry`
/// of a text. It must be included after `metal/metal.h`, in a namespace of its own.
///
/// # Errors
/// [`Error::Text`] for a signature that is not supported, [`Error::Compile`] from the preprocessor.
pub fn cuda(text: &str, entry: &str, symbol: &str) -> Result<String, Error> {
    let metal = compiler::cache_path("cuda", &text, "metal");
    compiler::write(&metal, text)?;
    let unit = rewrite(&compiler::preprocess(&metal)?).map_err(Error::Text)?;
    let kernel = unit.kernels.iter().find(|kernel| kernel.name == entry);
    let kernel = kernel.ok_or_else(|| Error::Text(format!("no kernel `{entry}`")))?;
    let threads = kernel.max_threads.ok_or_else(|| {
        Error::Text(format!("`{entry}` has no max_total_threads_per_threadgroup"))
    })?;
    if kernel.parameters.iter().any(|parameter| parameter.source == Argument::Threadgroup) {
        return Err(Error::Text(format!("`{entry}` has a parameter in threadgroup memory")));
    }
    let arguments = compiler::arguments(kernel);
    Ok(format!(
        "{}\n#line 1 \"arguments of {entry}\"\n\
         extern \"C\" __global__ void __launch_bounds__({threads}) {symbol}(msl_buffers given) {{\n    \
         const msl_place here = msl::place();\n    [[maybe_unused]] const msl_place* place = &here;\n    void* const* buffers = given.at;\n    {entry}({arguments});\n}}\n",
        words(&unit.cpp)
    ))
}

fn words(text: &str) -> String {
    let word =
        |text| WORDS.iter().find(|(metal, _)| *metal == text).map_or(text, |(_, cuda)| *cuda);
    tokens(text)
        .iter()
        .map(|token| if token.kind == Kind::Word { word(token.text) } else { token.text })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn words_are_replaced_whole() {
        let text = "# 1 \"device\"\nkernel void k(device T* x, constant P& p) { threadgroup_barrier(mem_flags::mem_device); // static\n}";
        let cuda = "# 1 \"device\"\nstatic __device__ void k( T* x, const P& p) { threadgroup_barrier(mem_flags::mem_device); // static\n}";
        assert_eq!(words(text), cuda);
    }
}
