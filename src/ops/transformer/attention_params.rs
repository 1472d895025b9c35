//! Params and tiles that kernels of [`attention`](super::attention()) share.

use crate::{
    kernel::source::{HOLE, Source, Work},
    params, wgsl,
};

params! {
    pub(super) struct Params {
        pub run: u32, pub sequences: u32, pub heads: u32, pub kv_heads: u32, pub head_dim: u32, pub capacity: u32, pub longest: u32, pub rotate: u32, pub add: u32, pub window: u32,
        pub scale: f32,
    }
}

/// Positions of a KV split.
pub(super) const SPAN: usize = 64;

/// Columns of a row that a workgroup of `attention_many` makes.
pub(super) const COLUMNS: usize = 128;

/// Tiles of 32 rows, for a prompt; the entry point comes last.
pub(super) const MANY_WGSL: Source = Source::wgsl(wgsl![
    "shared/ids",
    "shared/exp",
    "transformer/attention_rows",
    "transformer/attention_merge",
    "transformer/attention_all",
    HOLE
])
.workgroup_size([128, 1, 1])
.tile([32, 1, 1])
.constants(&[("SPAN", SPAN as u32), ("COLUMNS", COLUMNS as u32)])
.workgroup_bytes(16_384)
.work(Work::new(512, "products", 64, 1024));
