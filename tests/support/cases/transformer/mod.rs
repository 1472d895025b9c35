//! What a transformer needs beside its linear layers.

mod attention;
mod cache;
mod dense_gemv;
mod embed;
mod rms_norm;
mod rope;
mod top_k;

use super::Family;

pub const OPS: Family = &[
    ("transformer::attention", attention::cases),
    ("transformer::dense_gemv", dense_gemv::cases),
    ("transformer::embed", embed::cases),
    ("transformer::rms_norm", rms_norm::cases),
    ("transformer::rope", rope::cases),
    ("transformer::top_k", top_k::cases),
];
