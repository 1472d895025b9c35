//! What only this crate's tests, benchmarks and tools use. Anything here may change in any release.

use crate::{
    error::Result,
    gpu::{encoder::Encoder, tensor::Tensor},
    kernel::{
        declaration::Kernel,
        source::{Part, Source},
    },
    language::ShaderLanguage,
    ops::bitnet::{self, BlockFloatActivations},
};
pub use crate::{
    gpu::{capabilities::SubmissionLimit, recording::Dispatch, tensor::Residency},
    kernel::{
        binding::Access,
        declaration::{Grid, Variant},
        needs::{MatrixUnit, Needs},
        source::{HOLE, REDUCE, Work},
    },
    ops::{
        bitnet::{
            activations::MAX_FEATURES,
            plan::{layout, plan},
        },
        catalog,
    },
};

/// Records the norm and the conversion to block floating point of rows `first..` of `x`, as many as
/// `out` has: what models do before the LM head.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the gain or `out` does not fit.
pub fn rms_norm_block_float_into(
    encoder: &mut Encoder,
    x: &Tensor<f32>,
    first: usize,
    (gain, eps): (&Tensor<f32>, f32),
    out: &BlockFloatActivations,
) -> Result<()> {
    bitnet::rms_norm_block_float_into(encoder, x, first, gain, eps, out)
}

/// Whether the sources of a kernel agree with its declaration.
pub mod contract {
    pub use crate::kernel::contract::{check, workgroup_bytes};
}

/// Reads files with a bound, writes them atomically, and names them without control characters.
pub mod files {
    pub use crate::files::{
        display::display,
        read::{read, read_stream},
        write::{check_output, write},
    };
}

/// Declares a trait that makes methods of a type public.
macro_rules! expose {
    ($(#[$meta:meta])* $trait:ident for $type:ident {
        $(fn $name:ident$(<$life:lifetime>)?(&$($of:lifetime)? self $(, $argument:ident: $ty:ty)*) -> $result:ty;)+
    }) => {
        $(#[$meta])*
        #[allow(missing_docs, reason = "the methods have their documentation where they are")]
        pub trait $trait {
            $(fn $name$(<$life>)?(&$($of)? self $(, $argument: $ty)*) -> $result;)+
        }

        impl $trait for $type {
            $(fn $name$(<$life>)?(&$($of)? self $(, $argument: $ty)*) -> $result {
                $type::$name(self $(, $argument)*)
            })+
        }
    };
}

expose! {
    /// The sources and variants of a [`Kernel`].
    KernelInternals for Kernel {
        fn language(&self, preferred: ShaderLanguage) -> ShaderLanguage;
        fn needs(&self, variant: &Variant) -> Needs;
        fn parts<'a>(&'a self, source: &'a Source) -> impl Iterator<Item = &'a Part>;
        fn source(&self, language: ShaderLanguage) -> Option<&Source>;
        fn source_for(&self, preferred: ShaderLanguage) -> &Source;
        fn sources(&self) -> &[Source];
        fn text(&self, variant: &Variant) -> String;
        fn uses_fused(&self, preferred: ShaderLanguage) -> bool;
        fn uses_subgroups(&self) -> bool;
        fn variants(&self) -> Vec<Variant>;
        fn workgroups(&self, language: ShaderLanguage, extent: [usize; 3], limit: u32) -> [u64; 3];
    }
}
