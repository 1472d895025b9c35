//! The kernels of [`flash_attention`](super::flash_attention()) of f16 on tensor cores.

use super::flash_attention::{Params, Problem};
use crate::{
    kernel::{
        binding::{Type::*, read, read_write},
        declaration::Kernel,
        needs::TensorCore,
        params::Params as _,
        source::{Part, Source},
    },
    ops::tensor::matmul_kernels::{CORE_8, CORE_16},
};

/// A kernel for each of [`TILES`].
pub(super) type Kernels = [Kernel; 2];

/// Kinds of tensor core, those of GPUs and those of software adapters, and the rows of two matrices
/// that a workgroup takes there.
pub(super) const TILES: [(TensorCore, u32); 2] = [(CORE_16, 64), (CORE_8, 32)];

/// A source with weights of so many kinds for each row.
pub(super) const fn source(parts: &'static [Part], at: usize, kinds: u32) -> Source {
    let (core, rows) = TILES[at];
    let threads = rows / core.size * core.lanes;
    // Scores in rows of a quad more, weights in rows of two, two numbers of each thread.
    let bytes = rows * (4 * rows + 16 + kinds * (2 * rows + 16)) + 8 * threads;
    Source::wgsl(parts).workgroup_size([threads, 1, 1]).tile([1, 1, 1]).workgroup_bytes(bytes)
}

/// Both kernels of a text. (Macros include its file.)
macro_rules! kernels {
    ([$name_16:literal, $name_8:literal], $text:literal, $kinds:literal, $fields:expr, $bindings:expr) => {{
        use crate::{
            kernel::{declaration::Kernel, source::Source},
            ops::transformer::flash_attention_tensor_cores::{TILES, source},
            wgsl,
        };
        const SOURCES_16: &[Source] = &[source(
            wgsl![
                "shared/ids",
                "shared/flat",
                "shared/lane",
                "shared/exp",
                "shared/log",
                "tensor/matrix_16",
                "transformer/flash_attention_matrices",
                $text
            ],
            0,
            $kinds,
        )
        .constants(&[("ROWS", TILES[0].1), ("KINDS", $kinds)])];
        const SOURCES_8: &[Source] = &[source(
            wgsl![
                "shared/ids",
                "shared/flat",
                "shared/lane",
                "shared/exp",
                "shared/log",
                "tensor/matrix_8",
                "transformer/flash_attention_matrices",
                $text
            ],
            1,
            $kinds,
        )
        .constants(&[("ROWS", TILES[1].1), ("KINDS", $kinds)])];
        [
            Kernel::trusted($name_16, $fields, $bindings, SOURCES_16)
                .entry("attend")
                .flat()
                .tensor_core(TILES[0].0),
            Kernel::trusted($name_8, $fields, $bindings, SOURCES_8)
                .entry("attend")
                .flat()
                .tensor_core(TILES[1].0),
        ]
    }};
}
pub(super) use kernels;

pub(super) static FORWARD: Kernels = kernels!(
    ["flash_attention_tensor_cores_16", "flash_attention_tensor_cores_8"],
    "transformer/flash_attention_tensor_cores",
    1,
    Params::FIELDS,
    &[read("q", F16), read("k", F16), read("v", F16), read_write("y", F16), read_write("lse", F32)]
);

/// Which of the kernels computes a problem in f16 on a device with these tensor cores: one for heads
/// of four or eight of its matrices, and for whole tiles of tokens. Gives the workgroups of a head
/// as well.
pub(super) fn choose(cores: &[TensorCore], problem: &Problem) -> Option<(usize, usize)> {
    let at = TILES.iter().position(|(core, rows)| {
        let half = 4 * core.size as usize;
        cores.contains(core)
            && [half, 2 * half].contains(&problem.dim)
            && problem.tokens.is_multiple_of(*rows as usize)
    })?;
    Some((at, problem.tokens / TILES[at].1 as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_tiles_are_on_tensor_cores() {
        let chosen =
            |core, tokens, dim| choose(&[core], &Problem { heads: 1, kv_heads: 1, tokens, dim });
        assert_eq!(chosen(CORE_16, 256, 64), Some((0, 4)));
        assert_eq!(chosen(CORE_16, 64, 128), Some((0, 1)));
        assert_eq!(chosen(CORE_8, 96, 32), Some((1, 3)));
        for (core, tokens, dim) in
            [(CORE_16, 32, 64), (CORE_16, 64, 96), (CORE_16, 64, 32), (CORE_8, 32, 128)]
        {
            assert_eq!(chosen(core, tokens, dim), None, "{tokens} {dim}");
        }
    }
}
