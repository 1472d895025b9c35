//! Params and tiles that kernels of [`attention`](super::attention()) share.

use crate::{
    kernel::source::{HOLE, Part, Source, Work},
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
pub(super) const MANY_WGSL: Source = many(
    wgsl![
        "shared/ids",
        "shared/exp",
        "transformer/attention_rows",
        "transformer/attention_merge",
        "transformer/attention_tile",
        "transformer/attention_all",
        HOLE
    ],
    16_384,
);

/// As [`MANY_WGSL`] for heads of [`COLUMNS`], with bit-identical results. NVIDIA's driver gives a core 48 KiB
/// of workgroup memory, so two workgroups fit (H200: "Exact attention and rows of prompts").
pub(super) const BUFFERED_WGSL: Source = many(
    wgsl![
        "shared/ids",
        "shared/exp",
        "transformer/attention_rows",
        "transformer/attention_merge",
        "transformer/attention_tile",
        "transformer/attention_buffered",
        HOLE
    ],
    24_576,
);

const fn many(parts: &'static [Part], bytes: u32) -> Source {
    Source::wgsl(parts)
        .workgroup_size([128, 1, 1])
        .tile([32, 1, 1])
        .constants(&[("SPAN", SPAN as u32), ("COLUMNS", COLUMNS as u32)])
        .workgroup_bytes(bytes)
        .work(Work::new(512, "products", 64, 1024))
}
