//! The languages of shader sources.

use std::fmt;

/// The language that kernels are compiled from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ShaderLanguage {
    /// WebGPU's shading language: runs on every backend.
    Wgsl,
    /// Hand-written Metal, passed to Apple's compiler as it is. Kernels without a Metal source run
    /// their WGSL.
    Msl,
    /// SPIR-V, passed to a Vulkan driver as it is: what WGSL has no words for, made from sources in
    /// GLSL. See [`Kernel::with_spirv`](crate::Kernel::with_spirv) for an app's own.
    Spirv,
}

impl fmt::Display for ShaderLanguage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Wgsl => "WGSL",
            Self::Msl => "MSL",
            Self::Spirv => "SPIR-V",
        })
    }
}
