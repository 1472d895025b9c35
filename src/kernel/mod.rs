//! What a kernel is: `static` data, stated once and read by every shader language.
//!
//! What must be the same in all languages (entry point, params, bindings, grid, needs) is stated on
//! [`Kernel`](crate::Kernel); what may differ (source, workgroup size, tile, constants, work) is stated per language
//! on [`Source`]. Numbers exist once, in Rust: each language gets them as lines before its source.
//! [`Kernel::check`](crate::Kernel::check) compares the sources with the declaration.

pub(crate) mod binding;
pub(crate) mod contract;
pub(crate) mod declaration;
pub(crate) mod needs;
pub(crate) mod origin;
pub(crate) mod params;
mod signature;
pub(crate) mod source;
mod spirv;

pub use crate::language::ShaderLanguage;
pub use binding::{Binding, Type, read, read_write};
pub use declaration::KernelRef;
pub use params::{Fields, Params, Scalar, ScalarType};
pub use source::{Part, Source};
